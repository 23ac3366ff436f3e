//! Standard atomics and unchecked cells: the host's semantics without the host's runtime.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::AtomicU64;

use framewright::platform::Platform;

use super::pin::OwnedPin;

/// Runs on the machine as it is. A thread that waits offers one of sixty-four pauses to the operating
/// system, as tests have more threads than CPUs.
#[derive(Debug)]
pub struct Plain;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Plain {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = OwnedPin;

    fn relax() {
        let pauses = PAUSES.get().wrapping_add(1);
        PAUSES.set(pauses);
        if pauses.is_multiple_of(PAUSES_PER_YIELD) {
            std::thread::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }

    fn now_ns() -> u64 {
        next_tick()
    }
}

/// Pauses before a waiter yields. Linux (6.18) lets a thread that yields wait until the others have had a time slice,
/// so that a wait of a thousand yields beside eight busy loops takes half a minute.
const PAUSES_PER_YIELD: u32 = 64;

std::thread_local! {
    static PAUSES: Cell<u32> = const { Cell::new(0) };
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
