//! One thread, with every shared access counted and every cell guarded against being entered twice, and an interrupt
//! handler that runs before the n-th access.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, RefCell, UnsafeCell};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::platform::{Platform, SharedCell};

use super::Touch;
use super::pin::OwnedPin;
use super::plain::next_tick;

/// Runs on one thread. An access to a cell inside another access to it panics: in a release build that
/// would be two live references to one value.
#[derive(Debug)]
pub struct Checked;

/// Counts of what the code touched: the ground for claims such as "no atomic read-modify-write on this path".
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Words read.
    pub loads: u64,
    /// Words written.
    pub stores: u64,
    /// Atomic read-modify-writes: what costs a locked instruction on x86-64.
    pub rmws: u64,
    /// Cells entered to read.
    pub cell_reads: u64,
    /// Cells entered to write.
    pub cell_writes: u64,
    /// Turns of a spin loop.
    pub relaxes: u64,
}

impl Tally {
    /// Accesses to words and cells.
    pub const fn accesses(&self) -> u64 {
        self.loads + self.stores + self.rmws + self.cell_reads + self.cell_writes
    }
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} loads, {} stores, {} read-modify-writes, {} cell reads, {} cell writes, {} relaxes",
            self.loads, self.stores, self.rmws, self.cell_reads, self.cell_writes, self.relaxes
        )
    }
}

std::thread_local! {
    static TALLY: Cell<Tally> = const { Cell::new(Tally {
        loads: 0, stores: 0, rmws: 0, cell_reads: 0, cell_writes: 0, relaxes: 0,
    }) };
}

fn count(add: impl FnOnce(&mut Tally)) {
    TALLY.with(|cell| {
        let mut tally = cell.get();
        add(&mut tally);
        cell.set(tally);
    });
}

/// Runs `f` and counts its accesses on this thread. Nested calls count for the innermost only.
pub fn tally<R>(f: impl FnOnce() -> R) -> (R, Tally) {
    let outer = TALLY.replace(Tally::default());
    let result = f();
    (result, TALLY.replace(outer))
}

/// One access to a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// Address of the word.
    pub address: usize,
    /// Whether it was written. A read-modify-write is a write.
    pub write: bool,
}

std::thread_local! {
    static TRACE: RefCell<Option<Vec<Access>>> = const { RefCell::new(None) };
}

/// Runs `f` and says which words it touched on this thread, in order. Does not nest.
pub fn trace<R>(f: impl FnOnce() -> R) -> (R, Vec<Access>) {
    TRACE.set(Some(Vec::new()));
    let result = f();
    (result, TRACE.take().unwrap_or_default())
}

type Handler = Box<dyn FnOnce()>;

std::thread_local! {
    /// What runs in the middle of a call, and after how many accesses.
    static HANDLER: RefCell<Option<(u64, Handler)>> = const { RefCell::new(None) };
    static HANDLES: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`, and `handler` in the middle of it: after `accesses` of its accesses to words and cells. Returns what
/// `call` does, and whether `handler` has run: not if `call` ended before its turn came.
pub fn interrupt<R>(accesses: u64, handler: impl FnOnce() + 'static, call: impl FnOnce() -> R) -> (R, bool) {
    HANDLER.set(Some((accesses, Box::new(handler))));
    let result = call();
    (result, HANDLER.take().is_none())
}

/// A place where the handler may run.
fn point() {
    let due = HANDLER.with_borrow_mut(|handler| {
        let (left, _) = handler.as_mut()?;
        let Some(fewer) = left.checked_sub(1) else { return handler.take() };
        *left = fewer;
        None
    });
    if let Some((_, handler)) = due {
        HANDLES.set(true);
        handler();
        HANDLES.set(false);
    }
}

std::thread_local! {
    static READINGS: RefCell<Option<Vec<u64>>> = const { RefCell::new(None) };
}

/// Runs `f` and returns the accesses within the longest hold of a zone lock in it. For a world with `lock_timing`,
/// which reads the clock three times a hold: when the lock is asked for, when it is had, and when it is given back.
///
/// # Panics
/// The clock was read for another purpose, or never.
pub fn longest_hold<R>(f: impl FnOnce() -> R) -> (R, u64) {
    READINGS.set(Some(Vec::new()));
    let (result, _) = tally(f);
    let readings = READINGS.take().unwrap_or_default();
    assert!(
        !readings.is_empty() && readings.len().is_multiple_of(3),
        "{} readings of the clock",
        readings.len()
    );
    (result, readings.chunks(3).map(|hold| hold[2] - hold[1]).max().unwrap_or_default())
}

/// A counted word.
#[derive(Debug)]
pub struct CheckedWord(AtomicU64);

/// A counted and guarded cell.
#[derive(Debug)]
pub struct CheckedCell<T> {
    /// -1 while written, else how many readers are inside.
    users: Cell<i32>,
    value: UnsafeCell<T>,
}

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Checked {
    type Word = CheckedWord;
    type Cell<T> = CheckedCell<T>;
    type Pin = OwnedPin;

    fn relax() {
        assert!(!HANDLES.get(), "a handler waits");
        count(|t| t.relaxes += 1);
        // No other thread is there to end the wait.
        assert!(TALLY.get().relaxes < 1_000_000, "endless wait on one thread: a lock is taken twice");
    }

    fn now_ns() -> u64 {
        READINGS
            .with_borrow_mut(|readings| readings.iter_mut().for_each(|all| all.push(TALLY.get().accesses())));
        next_tick()
    }
}

word_over!(AtomicU64, CheckedWord, note);

/// Counts an access, and notes it where accesses are traced; before it a handler may run.
fn note(word: &CheckedWord, touch: Touch) {
    point();
    count(|tally| match touch {
        Touch::Load => tally.loads += 1,
        Touch::Store => tally.stores += 1,
        Touch::Exchange => tally.rmws += 1,
    });
    TRACE.with_borrow_mut(|trace| {
        if let Some(trace) = trace {
            trace.push(Access { address: core::ptr::from_ref(word).addr(), write: touch != Touch::Load });
        }
    });
}

// SAFETY: the closure is called once, with the address of the one value that the cell holds.
unsafe impl<T> SharedCell<T> for CheckedCell<T> {
    fn new(value: T) -> Self {
        Self { users: Cell::new(0), value: UnsafeCell::new(value) }
    }

    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        point();
        count(|t| t.cell_reads += 1);
        let users = self.users.get();
        assert!(users >= 0, "a cell is read while it is written");
        self.users.set(users + 1);
        let result = f(self.value.get());
        self.users.set(users);
        result
    }

    #[track_caller]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        point();
        count(|t| t.cell_writes += 1);
        assert!(self.users.get() == 0, "a cell is written while it is in use");
        self.users.set(-1);
        let result = f(self.value.get());
        self.users.set(0);
        result
    }
}
