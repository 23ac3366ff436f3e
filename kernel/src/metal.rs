//! The allocator's platform on bare metal: words are atomics, cells are plain memory, and the pin is the fact
//! that this CPU takes no interrupts.
#![expect(unsafe_code, reason = "a shared cell hands out pointers, and a pin is a promise")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::{CpuId, PinnedCpu, Platform, SharedCell, Word};

use crate::{arch, clock, percpu};

/// CPUs of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metal;

impl Platform for Metal {
    type Word = MetalWord;
    type Cell<T> = MetalCell<T>;
    type Pin = Pin;

    #[inline]
    fn relax() {
        percpu::relax();
    }

    #[inline]
    fn now_ns() -> u64 {
        clock::now_ns()
    }

    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        // SAFETY: valid for writes and the caller's alone, by its promise; descriptors are whole words.
        unsafe { arch::zero(start, bytes) };
        true
    }
}

/// An `AtomicU64`.
#[repr(transparent)]
pub(crate) struct MetalWord(AtomicU64);

impl Word for MetalWord {
    #[inline(always)]
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        self.0.store(value, order);
    }

    #[inline(always)]
    fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, success, failure)
    }

    #[inline(always)]
    fn swap(&self, value: u64, order: Ordering) -> u64 {
        self.0.swap(value, order)
    }

    #[inline(always)]
    fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        self.0.fetch_add(value, order)
    }
}

/// An `UnsafeCell`.
#[repr(transparent)]
pub(crate) struct MetalCell<T>(UnsafeCell<T>);

impl<T> SharedCell<T> for MetalCell<T> {
    #[inline(always)]
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline(always)]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// The right to use one CPU's lists. It is used by that CPU, with interrupts off; or, while that CPU does not run,
/// by the one that starts and stops it.
#[derive(Debug)]
pub(crate) struct Pin(CpuId);

impl Pin {
    /// The pin of a CPU.
    ///
    /// # Safety
    /// It is used as said above, and never from within a use of another one of the same CPU.
    pub(crate) const unsafe fn new(cpu: CpuId) -> Self {
        Self(cpu)
    }
}

// SAFETY: `new` has its caller promise that uses do not overlap: on one CPU nothing interrupts a use, and the state
// word of a CPU orders what it does and what is done for it (`smp`). The number never changes.
unsafe impl PinnedCpu for Pin {
    #[inline(always)]
    fn cpu(&self) -> CpuId {
        self.0
    }
}
