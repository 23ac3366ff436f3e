//! The allocator's platform on bare metal: words are atomics, cells are plain memory, and the pin is the fact
//! that this CPU takes no interrupts.
#![expect(unsafe_code, reason = "a shared cell hands out pointers, and a pin is a promise")]

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;

use framewright::{CpuId, PinnedCpu, Platform};

use crate::{arch, clock, percpu};

/// CPUs of this machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metal;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Metal {
    type Word = AtomicU64;
    type Cell<T> = UnsafeCell<T>;
    type Pin = Pin;

    const CLEARS_DESCRIPTORS: bool = true;

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
