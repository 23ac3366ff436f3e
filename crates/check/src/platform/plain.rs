//! Standard atomics and unchecked cells: the host's semantics without the host's runtime.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::AtomicU64;

use framewright::platform::Platform;

use super::pin::OwnedPin;

/// Runs on the machine as it is; waiting yields to the operating system, as tests have more threads than
/// CPUs.
#[derive(Debug)]
pub struct Plain;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Plain {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = OwnedPin;

    fn relax() {
        std::thread::yield_now();
    }

    fn now_ns() -> u64 {
        next_tick()
    }
}

std::thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// A virtual clock, so that no test depends on the time of day: each reading is one nanosecond later
/// than the thread's last.
pub(super) fn next_tick() -> u64 {
    NOW.with(|now| {
        now.set(now.get() + 1);
        now.get()
    })
}

/// Lets virtual time pass for this thread, in nanoseconds.
pub fn pass(ns: u64) {
    NOW.with(|now| now.set(now.get() + ns));
}
