//! Standard atomics and unchecked cells: the host's semantics without the host's runtime.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{Cell, UnsafeCell};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use framewright::config::LockKind;
use framewright::platform::Platform;

use super::pin::OwnedPin;

/// Runs on the machine as it is. A thread that waits sleeps, as tests have more threads than CPUs: until it is woken if
/// the lock can do that, else for a short while.
#[derive(Debug)]
pub struct Plain;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Plain {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = OwnedPin;

    const LOCK: LockKind = LockKind::Parking;

    fn park(word: &AtomicU64, expected: u64) {
        let asleep = ASLEEP.lock().unwrap_or_else(PoisonError::into_inner);
        if word.load(Relaxed) == expected {
            drop(UNPARKED.wait(asleep));
        }
    }

    fn unpark(_: &AtomicU64) {
        // A thread that compares now will see the new word, or sleep before it is woken.
        drop(ASLEEP.lock());
        UNPARKED.notify_all();
    }

    fn relax() {
        let pauses = PAUSES.get().wrapping_add(1);
        PAUSES.set(pauses);
        if pauses.is_multiple_of(PAUSES_PER_SLEEP) {
            thread::sleep(Duration::from_micros(50));
        } else {
            core::hint::spin_loop();
        }
    }

    fn now_ns() -> u64 {
        next_tick()
    }
}

/// Pauses before a waiter sleeps. One that yields instead waits until every busy program has had a time slice (Linux
/// 6.18), while a lock that is handed over in order waits for exactly that thread.
const PAUSES_PER_SLEEP: u32 = 1024;

/// Guards the step from comparing to sleeping, of all parked threads.
static ASLEEP: Mutex<()> = Mutex::new(());
static UNPARKED: Condvar = Condvar::new();

thread_local! {
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
