//! Platforms: the only place that names an atomic word, a shared cell, a CPU pin, a pause.
//!
//! The allocator is generic over a [`Platform`]. On a host and on metal its methods compile to plain machine
//! instructions; in the simulator each one has a cost; under loom and shuttle each one is a point where another thread
//! may run. All shared state goes through a platform, so that no access is forgotten.
//!
//! # Promises of a platform
//! The allocator decides by the content of words who owns memory, and dereferences the pointers of cells. A platform
//! that breaks a promise breaks memory safety, so each of these traits is `unsafe` to implement. Each states its
//! contract once, on the trait: [`Platform`], [`Word`], [`SharedCell`], [`PinnedCpu`].
#![expect(clippy::disallowed_types, reason = "the trait of words is implemented here")]

mod ready;

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::config::LockKind;
use crate::units::CpuId;
pub use ready::{Metal, OneCpu, PinnedTo, PlainWord};

/// Environment of an allocator: words, cells, pins, a pause and a clock.
///
/// # Safety
/// 1. `Word`, `Cell` and `Pin` keep the contracts of their traits.
/// 2. If [`clear`](Self::clear) returns `true`, it has set exactly the given bytes to zero, and no others; if it
///    returns `false`, it has written nothing.
/// 3. If [`heavy_barrier`](Self::heavy_barrier) returns `true`, it has ordered this CPU against every
///    [`light_barrier`](Self::light_barrier) of every CPU: a write before one of the two barriers is seen by a read
///    after the other one.
///
/// Not needed for safety, but for progress: [`relax`](Self::relax) lets other CPUs continue, so that a spin loop ends,
/// [`heavy_barrier`](Self::heavy_barrier) does not wait for a CPU that waits for the caller, and
/// [`now_ns`](Self::now_ns) never goes back on one CPU.
#[expect(unsafe_code, reason = "the allocator's locks are built of what an implementor hands out")]
pub unsafe trait Platform: 'static + Sized {
    /// A shared word with explicit orderings.
    type Word: Word;
    /// A small shared value that a lock or an owner guards.
    type Cell<T>: SharedCell<T>;
    /// The proof that the caller runs on a CPU and no other code uses that CPU's lists.
    type Pin: PinnedCpu;

    /// The lock for [`LockKind::ByPlatform`]; any kind but `ByPlatform` itself. If a CPU may lose its processor, choose
    /// a lock that is not handed to a particular waiting CPU.
    const LOCK: LockKind = LockKind::Queued;

    /// Whether boot leaves descriptors of absent memory unwritten
    /// ([`Allocator::defer_and_clear`](crate::Allocator::defer_and_clear)), so that a free checks first whether its
    /// pageblock is present. Without it, an allocator that clears descriptors takes a slower path for each free.
    const CLEARS_DESCRIPTORS: bool = false;

    /// Whether a CPU may drain the lists of another CPU that is in no call (see
    /// [`heavy_barrier`](Self::heavy_barrier)). If not, it sets a request bit, and the owner CPU drains at its next
    /// slow call.
    const DRAINS_REMOTELY: bool = false;

    /// The hit's half of the barrier between a hit and a remote drain. Every hit calls it: it should be no instruction,
    /// but must keep the compiler from moving accesses across it.
    #[inline(always)]
    fn light_barrier() {}

    /// The half of the CPU that drains: `membarrier`, or an interrupt that every CPU acknowledges. `false`, without any
    /// ordering, if no such barrier is available at the moment: the CPU then sets request bits.
    ///
    /// Called with no zone lock held. But other CPUs may wait, in calls of their own, until this one has drained: with
    /// interrupts off they acknowledge none, and two CPUs in need would never stop waiting for each other. So a CPU
    /// acknowledges in [`relax`](Self::relax) and [`park`](Self::park), too, or this function returns `false` after a
    /// while. Only the latter helps if CPUs also wait with interrupts off for what the caller of the allocator holds.
    fn heavy_barrier() -> bool {
        false
    }

    /// Lets other CPUs continue while this one waits: a pause, a yield, or virtual time.
    fn relax();

    /// Sleeps until another CPU calls [`unpark`](Self::unpark) on `word`, but only if `word` holds `expected`. The
    /// comparison and the sleep are one step for a CPU that changes the word and then calls `unpark`. May return early.
    /// Called with any kind of lock, and with the pin held: a platform whose pinned CPUs cannot sleep lets other CPUs
    /// continue.
    fn park(word: &Self::Word, expected: u64) {
        let _ = (word, expected);
        Self::relax();
    }

    /// Wakes one of the CPUs that sleep on `word`, if there is one.
    fn unpark(word: &Self::Word) {
        let _ = word;
    }

    /// A monotonic clock in nanoseconds, with any origin and any resolution; 0 if there is none. Read off the fast path
    /// only.
    fn now_ns() -> u64;

    /// Sets `bytes` bytes from `start` on to zero, as fast as the machine can: a `memset`, `rep stos`, or in the
    /// simulator a cost. Returns whether it did; a platform whose words are not plain memory returns `false` and leaves
    /// them unchanged.
    ///
    /// # Safety
    /// The memory is valid for writes, zero bytes are a valid value of its type (if words are plain memory), and no
    /// other code accesses it during the call.
    #[expect(unsafe_code, reason = "the memory comes as an address")]
    #[must_use]
    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        let _ = (start, bytes);
        false
    }
}

/// A 64-bit word that several CPUs may access at the same time.
///
/// # Safety
/// A word behaves like [`AtomicU64`]. All accesses to one word have one total order, which agrees with each CPU's own
/// order. An access reads the last value written before it in that order, or at creation. A read with
/// [`Acquire`](Ordering::Acquire) of a value written with [`Release`](Ordering::Release) makes everything before the
/// write visible after the read. `compare_exchange`, `swap` and `fetch_add` read and write in one step;
/// `compare_exchange` returns `Ok` if and only if it has written.
#[expect(unsafe_code, reason = "locks are built of words")]
pub unsafe trait Word: Send + Sync {
    /// A word that holds `value`.
    fn new(value: u64) -> Self;
    /// Reads the word.
    fn load(&self, order: Ordering) -> u64;
    /// Replaces the word.
    fn store(&self, value: u64, order: Ordering);
    /// Replaces the word by `new` if it holds `current`. `Err` carries the value that it held instead.
    ///
    /// # Errors
    /// The word holds another value, and is unchanged.
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64>;
    /// Replaces the word and returns its old value.
    fn swap(&self, value: u64, order: Ordering) -> u64;
    /// Adds to the word, wrapping, and returns its old value.
    fn fetch_add(&self, value: u64, order: Ordering) -> u64;
}

/// Replaces a word by what `next` makes of its value; again if another CPU changes it in between. Returns the value
/// that was replaced; `None`, and the word is unchanged, if `next` has no other value.
#[inline]
pub(crate) fn update(
    word: &impl Word,
    success: Ordering,
    mut next: impl FnMut(u64) -> Option<u64>,
) -> Option<u64> {
    let mut old = word.load(Ordering::Relaxed);
    loop {
        match word.compare_exchange(old, next(old)?, success, Ordering::Relaxed) {
            Ok(_) => return Some(old),
            Err(now) => old = now,
        }
    }
}

/// The machine's own word, for a host or a kernel.
// SAFETY: the standard library's atomic, call by call.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Word for AtomicU64 {
    #[inline(always)]
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }

    #[inline(always)]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.swap(value, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.fetch_add(value, order)
    }
}

/// A value that only the holder of a lock, or its owner, accesses. The cell does not enforce this: the module `sync`
/// builds the safe wrappers, and a model checker's cell reports violations.
///
/// # Safety
/// 1. [`with`](Self::with) and [`with_mut`](Self::with_mut) call the closure exactly once, and return its result.
/// 2. The pointer is aligned, non-null, the same in every call, and valid for reads (`with_mut`: and writes) of a `T`
///    until the closure returns.
/// 3. It points to the value given to [`new`](Self::new), as changed through the pointers of `with_mut` since. Nothing
///    else writes there.
#[expect(unsafe_code, reason = "what a cell hands out is dereferenced")]
pub unsafe trait SharedCell<T> {
    /// A cell that holds `value`.
    fn new(value: T) -> Self;
    /// Calls `f` with a pointer to read through.
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R;
    /// Calls `f` with a pointer to write through.
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R;
}

/// Plain memory, for a host or a kernel.
// SAFETY: the pointer is that of the cell's own value, which lives as long as `&self`.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<T> SharedCell<T> for UnsafeCell<T> {
    #[inline(always)]
    fn new(value: T) -> Self {
        Self::new(value)
    }

    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.get())
    }

    #[inline(always)]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.get())
    }
}

/// The proof that the caller runs on a CPU and that no other code uses that CPU's lists while the proof exists.
///
/// # Safety
/// While a value of this type exists for a CPU, no other value for the same CPU is used, by this thread or another. The
/// end of the use of an earlier value happens before the use of the next (a lock, a join, interrupts off on the same
/// CPU). [`cpu`](PinnedCpu::cpu) always returns the same CPU.
#[expect(unsafe_code, reason = "an unsafe trait is how an implementor vouches for exclusivity")]
pub unsafe trait PinnedCpu: fmt::Debug {
    /// The CPU that is pinned.
    fn cpu(&self) -> CpuId;
}

/// The platform of the unit tests: plain memory. Other code has a turn wherever a CPU waits.
#[cfg(test)]
pub(crate) mod machine {
    extern crate std;

    use core::cell::{Cell, RefCell};
    use std::boxed::Box;

    use super::*;

    #[derive(Debug)]
    pub(crate) struct Machine;

    /// No test has a CPU of its own here.
    #[derive(Debug)]
    pub(crate) enum NoPin {}

    // SAFETY: there is no value of it.
    #[expect(unsafe_code, reason = "see above")]
    unsafe impl PinnedCpu for NoPin {
        fn cpu(&self) -> CpuId {
            match *self {}
        }
    }

    type Others = Option<Box<dyn FnMut(u32)>>;

    std::thread_local! {
        static OTHERS: RefCell<Others> = const { RefCell::new(None) };
        static WAITS: Cell<u32> = const { Cell::new(0) };
        static WOKEN: Cell<u32> = const { Cell::new(0) };
        static CLEARS: Cell<u32> = const { Cell::new(0) };
        static NOW: Cell<u64> = const { Cell::new(0) };
    }

    // SAFETY: words and cells are those of the machine; it clears nothing.
    #[expect(unsafe_code, reason = "see above")]
    unsafe impl Platform for Machine {
        type Word = AtomicU64;
        type Cell<T> = UnsafeCell<T>;
        type Pin = NoPin;

        fn relax() {
            let n = WAITS.with(|waits| {
                waits.set(waits.get() + 1);
                waits.get()
            });
            OTHERS.with_borrow_mut(|others| others.as_mut().expect("somebody else is there")(n));
        }

        fn unpark(_: &AtomicU64) {
            WOKEN.with(|woken| woken.set(woken.get() + 1));
        }

        unsafe fn clear(_: *mut u8, _: usize) -> bool {
            CLEARS.with(|clears| clears.set(clears.get() + 1));
            false
        }

        fn now_ns() -> u64 {
            NOW.get()
        }
    }

    /// Sets this thread's clock, which stands still.
    pub(crate) fn show_time(now_ns: u64) {
        NOW.set(now_ns);
    }

    /// How often this thread was asked to clear memory.
    pub(crate) fn clears() -> u32 {
        CLEARS.get()
    }

    /// Runs `f`. Whenever it waits, `others` has a turn and gets the number of the turn. Returns the result of `f`, how
    /// many times it waited, and how many times it woke a CPU.
    pub(crate) fn with_others<R>(others: impl FnMut(u32) + 'static, f: impl FnOnce() -> R) -> (R, u32, u32) {
        OTHERS.set(Some(Box::new(others)));
        WAITS.set(0);
        WOKEN.set(0);
        let result = f();
        OTHERS.set(None);
        (result, WAITS.get(), WOKEN.get())
    }
}
