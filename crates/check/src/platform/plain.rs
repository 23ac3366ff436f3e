//! Standard atomics and unchecked cells: the host's semantics without the host's runtime.

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::platform::{Platform, SharedCell, Word};

use super::pin::OwnedPin;

/// Runs on the machine as it is; waiting yields to the operating system, as tests have more threads than
/// CPUs.
#[derive(Debug)]
pub struct Plain;

/// A machine word.
#[derive(Debug)]
#[repr(transparent)]
pub struct PlainWord(AtomicU64);

/// A cell that checks nothing.
#[derive(Debug)]
#[repr(transparent)]
pub struct PlainCell<T>(UnsafeCell<T>);

impl Platform for Plain {
    type Word = PlainWord;
    type Cell<T> = PlainCell<T>;
    type Pin = OwnedPin;

    fn relax() {
        std::thread::yield_now();
    }

    fn now_ns() -> u64 {
        next_tick()
    }
}

/// A virtual clock, so that no test depends on the time of day: each reading is one nanosecond later
/// than the thread's last.
pub(super) fn next_tick() -> u64 {
    std::thread_local! {
        static NOW: Cell<u64> = const { Cell::new(0) };
    }
    NOW.with(|now| {
        now.set(now.get() + 1);
        now.get()
    })
}

impl Word for PlainWord {
    #[inline]
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }
    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }
    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }
    #[inline]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }
    #[inline]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }
    #[inline]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
}

impl<T> SharedCell<T> for PlainCell<T> {
    #[inline]
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }
    #[inline]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }
    #[inline]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}
