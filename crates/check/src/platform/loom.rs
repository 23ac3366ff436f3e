//! loom: every interleaving of a few threads, and every stale value that the orderings allow a load to see.
#![expect(
    unsafe_code,
    reason = "a platform vouches for its words and cells, and clears descriptors by address"
)]

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use ::loom::cell::UnsafeCell;
use framewright::platform::{Platform, SharedCell, Word};

use super::pin::OwnedPin;
use crate::slot::Slot;

/// Runs under [`model()`]. CPUs ask each other for what lists hold.
pub type Loom = LoomWith<false>;

/// Like [`Loom`], and with `DRAINS` CPUs drain each other's lists.
#[derive(Debug)]
pub struct LoomWith<const DRAINS: bool>;

/// A defect of a model, with which it must fail. Not a part of the platform's type, so that the allocator is compiled
/// once for models that have it and that have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// Words keep no order but their own.
    Relaxed,
    /// A read-modify-write of a word is a load and a store.
    Torn,
    /// The barrier between a hit and a drain, on the side of hits.
    NoLightBarrier,
    /// That barrier, on the side of drains.
    NoHeavyBarrier,
}

/// Gives all later models of this thread a flaw.
pub fn lack(flaw: Flaw) {
    FLAW.set(Some(flaw));
}

fn lacks(flaw: Flaw) -> bool {
    FLAW.get() == Some(flaw)
}

/// A word whose loads return every value that the memory model allows, one execution each.
#[derive(Debug)]
pub struct LoomWord(::loom::sync::atomic::AtomicU64);

/// A cell that panics when an access does not happen after the last conflicting one.
#[derive(Debug)]
pub struct LoomCell<T>(UnsafeCell<T>);

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl<const DRAINS: bool> Platform for LoomWith<DRAINS> {
    type Word = LoomWord;
    type Cell<T> = LoomCell<T>;
    type Pin = OwnedPin;

    // Both halves are fences: the model has no barrier that one side pays alone.
    const DRAINS_REMOTELY: bool = DRAINS;

    fn light_barrier() {
        if DRAINS && !lacks(Flaw::NoLightBarrier) {
            ::loom::sync::atomic::fence(Ordering::SeqCst);
        }
    }

    fn heavy_barrier() -> bool {
        if DRAINS && !lacks(Flaw::NoHeavyBarrier) {
            ::loom::sync::atomic::fence(Ordering::SeqCst);
        }
        true
    }

    fn relax() {
        match SPINS_LEFT.get() {
            0 => ::loom::skip_branch(),
            left => SPINS_LEFT.set(left - 1),
        }
        ::loom::thread::yield_now();
    }

    /// Clears the first descriptor of each 1024 in the run only: a model that clears must make the
    /// others as they will be. Thousands of steps that differ in nothing would leave no execution for what matters.
    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        let descriptor = size_of::<Self::Word>() + size_of::<LoomCell<Slot>>();
        if !bytes.is_multiple_of(512 * descriptor) {
            return false;
        }
        for unit in (0..bytes).step_by(1024 * descriptor) {
            // SAFETY: a run of whole pageblocks of descriptors, a word and a slot each, which the caller may write.
            let (word, slot) = unsafe {
                let first = start.add(unit);
                (&*first.cast::<Self::Word>(), &*first.add(size_of::<Self::Word>()).cast::<LoomCell<Slot>>())
            };
            word.store(0, Ordering::Relaxed);
            // SAFETY: as above.
            slot.with_mut(|slot| unsafe { *slot = Slot(0) });
        }
        true
    }

    /// Always 0: a clock that moved would make executions differ in more than their schedule.
    fn now_ns() -> u64 {
        0
    }
}

/// Whether models get wider bounds and histories their full length: `FRAMEWRIGHT_FULL` is set, to something
/// else than 0, in the environment.
pub fn full() -> bool {
    is_set("FRAMEWRIGHT_FULL")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != "0" && !value.is_empty())
}

/// Whether all tests together are to take a minute: `./test --quick` sets `FRAMEWRIGHT_QUICK` in the environment.
/// Models then have a preemption less, random schedules are a tenth, and histories and small worlds are few.
pub fn quick() -> bool {
    is_set("FRAMEWRIGHT_QUICK")
}

/// How much of a model's executions is explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Switches away from a thread that could have gone on. Nearly all known concurrency bugs show with two.
    pub preemptions: usize,
    /// Turns of spin loops in one execution, all threads together, up to which its alternatives are explored.
    /// After them the execution runs to its end by fair turns. Three threads that spin have infinitely many
    /// ways to take turns at not getting on.
    pub spins: u32,
}

impl Bounds {
    /// These bounds, or in a full run one preemption and twice the spins more.
    pub fn widened_if_full(self) -> Self {
        if full() { Self { preemptions: self.preemptions + 1, spins: self.spins * 2 } } else { self }
    }
}

std::thread_local! {
    /// Turns that the running execution has left. loom runs all threads of a model on the thread that asked.
    static SPINS_LEFT: Cell<u32> = const { Cell::new(0) };
    static FLAW: Cell<Option<Flaw>> = const { Cell::new(None) };
}

/// Stack of the thread that runs a model's body, in words.
const STACK_WORDS: usize = 1 << 16;

/// Explores the executions of `body` within `bounds`; prints and returns their number.
///
/// A panic in `body`, a race, a deadlock, or an endless wait ends the exploration with a panic.
pub fn model(bounds: Bounds, body: impl Fn() + Send + Sync + 'static) -> u64 {
    explore(bounds, Arc::new(body))
}

/// Likewise. The checker is compiled here, once, and not for each model.
fn explore(bounds: Bounds, body: Arc<dyn Fn() + Send + Sync>) -> u64 {
    let mut builder = ::loom::model::Builder::new();
    // What must fail keeps its bounds.
    let fewer = usize::from(quick() && FLAW.get().is_none());
    builder.preemption_bound = Some(bounds.preemptions.saturating_sub(fewer));
    // Building an allocator alone takes thousands of steps; beyond this a wait is endless. loom counts
    // events in 16 bits.
    builder.max_branches = 60_000;
    let executions = Arc::new(AtomicU64::new(0));
    let counted = executions.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        SPINS_LEFT.set(bounds.spins);
        let body = body.clone();
        // A zone of loom's cells is larger than the stack that loom gives a model's first thread.
        let first = ::loom::thread::Builder::new().stack_size(STACK_WORDS).spawn(move || body());
        first.expect("a model has few threads").join().expect("a panic ends the model before");
    });
    let executions = executions.load(Ordering::Relaxed);
    println!("{executions} executions");
    executions
}

/// The order that a word keeps.
fn kept(order: Ordering) -> Ordering {
    if lacks(Flaw::Relaxed) { Ordering::Relaxed } else { order }
}

impl LoomWord {
    /// A read-modify-write as a load and a store: what others write between the two is lost.
    fn torn(&self, change: impl FnOnce(u64) -> Option<u64>) -> Result<u64, u64> {
        let now = self.0.load(Ordering::Acquire);
        let new = change(now).ok_or(now)?;
        self.0.store(new, Ordering::Release);
        Ok(now)
    }
}

// SAFETY: each call is one call of an atomic word of the model checker's; flawed words are for models that must fail.
unsafe impl Word for LoomWord {
    #[track_caller]
    fn new(value: u64) -> Self {
        Self(::loom::sync::atomic::AtomicU64::new(value))
    }
    #[track_caller]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(kept(order))
    }
    #[track_caller]
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, kept(order));
    }
    #[track_caller]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        if lacks(Flaw::Torn) {
            return self.torn(|now| (now == current).then_some(new));
        }
        self.0.compare_exchange(current, new, kept(success), kept(failure))
    }
    #[track_caller]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        if lacks(Flaw::Torn) {
            return self.torn(|_| Some(value)).unwrap_or(value);
        }
        self.0.swap(value, kept(order))
    }
    #[track_caller]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        if lacks(Flaw::Torn) {
            return self.torn(|now| Some(now.wrapping_add(value))).unwrap_or(value);
        }
        self.0.fetch_add(value, kept(order))
    }
}

// SAFETY: the closure is called once, with the address of the one value that the cell holds.
unsafe impl<T> SharedCell<T> for LoomCell<T> {
    #[track_caller]
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        self.0.with(f)
    }
    #[track_caller]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        self.0.with_mut(f)
    }
}
