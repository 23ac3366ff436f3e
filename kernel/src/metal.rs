//! The allocator's platform on bare metal: words are atomics, cells are plain memory, and the pin is the fact
//! that this CPU takes no interrupts.
#![expect(unsafe_code, reason = "a shared cell hands out pointers, and a pin is a promise")]

use core::cell::UnsafeCell;
use core::hint;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::{CpuId, PinnedCpu, Platform, SharedCell, Word};

use crate::percpu::PerCpu;
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
        hint::spin_loop();
    }

    #[inline]
    fn now_ns() -> u64 {
        clock::now_ns()
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

/// This CPU, with interrupts off for as long as the pin lives. Neither sent nor shared.
#[derive(Debug)]
pub(crate) struct Pin {
    cpu: CpuId,
    /// Whose flag to clear and whether to turn interrupts on again; nothing for a CPU that sleeps.
    running: Option<(&'static PerCpu, bool)>,
    stays: PhantomData<*const ()>,
}

impl Pin {
    /// Pins the running CPU.
    ///
    /// # Panics
    /// It is pinned already: two pins would use its lists at once.
    #[inline]
    pub(crate) fn take() -> Self {
        let were_on = arch::interrupts_off();
        let cpu = percpu::current();
        assert!(!cpu.pinned.replace(true), "{:?} is pinned twice", cpu.number());
        Self { cpu: cpu.number(), running: Some((cpu, were_on)), stays: PhantomData }
    }

    /// The pin of a CPU that does not run: whoever is about to start it, or has seen it stop, uses its lists.
    ///
    /// # Safety
    /// The CPU does not run while the pin lives, and nobody else has such a pin for it.
    pub(crate) const unsafe fn of_sleeping(cpu: CpuId) -> Self {
        Self { cpu, running: None, stays: PhantomData }
    }
}

impl Drop for Pin {
    #[inline]
    fn drop(&mut self) {
        if let Some((cpu, were_on)) = self.running {
            cpu.pinned.set(false);
            if were_on {
                arch::interrupts_on();
            }
        }
    }
}

// SAFETY: `take` allows one pin per running CPU, which nothing on that CPU interrupts, and `of_sleeping` has its
// caller promise the same. Starting and stopping a CPU is ordered by its state word. The number never changes.
unsafe impl PinnedCpu for Pin {
    #[inline(always)]
    fn cpu(&self) -> CpuId {
        self.cpu
    }
}
