//! A spin lock for the kernel's own structures. Interrupt handlers take none, so interrupts may stay on.
#![expect(unsafe_code, reason = "the lock is what makes access exclusive")]

use core::cell::UnsafeCell;
use core::hint;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

/// A value behind a lock.
pub(crate) struct SpinLock<T> {
    held: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one CPU at a time reach the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { held: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        while self.held.swap(true, Ordering::Acquire) {
            while self.held.load(Ordering::Relaxed) {
                hint::spin_loop();
            }
        }
        Guard(self)
    }

    /// The lock, or after many attempts the value all the same: for the last words of a CPU that may have
    /// failed while it held the lock.
    pub(crate) fn lock_or_break(&self) -> Guard<'_, T> {
        for _ in 0..1_000_000 {
            if !self.held.swap(true, Ordering::Acquire) {
                break;
            }
            hint::spin_loop();
        }
        Guard(self)
    }
}

/// The right to use the value.
pub(crate) struct Guard<'l, T>(&'l SpinLock<T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.held.store(false, Ordering::Release);
    }
}
