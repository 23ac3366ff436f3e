//! The allocator's platform, with a charge on every shared access.
//!
//! Outside a run, when an allocator is built or examined, nothing is charged.
#![expect(unsafe_code, reason = "a shared cell hands out pointers, and a pin is a promise")]

use core::cell::UnsafeCell;
use core::fmt;
use core::marker::PhantomData;
use core::ptr;
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::frame::Pageblock;
use framewright::pcp::Pcp;
use framewright::zone::Zone;
use framewright::{CpuId, Frame, PinnedCpu, Platform, SharedCell, Word};

use crate::engine::{self, Access};
use crate::memory;

/// Virtual CPUs of a [`Simulator`](crate::Simulator).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sim;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Sim {
    type Word = SimWord;
    type Cell<T> = SimCell<T>;
    type Pin = SimPin;

    fn relax() {
        engine::relax();
    }

    fn now_ns() -> u64 {
        engine::look_at_clock().0 / 1000
    }

    /// Takes as long as the modelled machine takes; of the host's memory nothing is touched but its edges.
    unsafe fn clear(start: *mut u8, bytes: usize) -> bool {
        engine::clear(start.addr(), bytes);
        // SAFETY: by the caller's promise; simulated memory is a private mapping, and words and cells are plain.
        unsafe { memory::clear(start, bytes) };
        true
    }
}

/// A word whose accesses are charged. All virtual CPUs are one host thread, so plain accesses do.
#[repr(transparent)]
pub struct SimWord(AtomicU64);

impl fmt::Debug for SimWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl SimWord {
    #[inline]
    fn charge(&self, access: Access) {
        engine::touch(ptr::from_ref(self).addr(), size_of::<Self>(), access);
    }

    #[inline]
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    #[inline]
    fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }
}

// SAFETY: each call is one call of an atomic word of the machine's, or of the model checker's.
unsafe impl Word for SimWord {
    fn new(value: u64) -> Self {
        Self(AtomicU64::new(value))
    }

    #[inline]
    fn load(&self, _: Ordering) -> u64 {
        self.charge(Access::Read);
        self.get()
    }

    #[inline]
    fn store(&self, value: u64, _: Ordering) {
        let change = value.wrapping_sub(self.get()) as i64;
        engine::store(ptr::from_ref(self).addr(), size_of::<Self>(), change);
        self.set(value);
    }

    fn compare_exchange(&self, current: u64, new: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        self.charge(Access::Exchange);
        let held = self.get();
        if held == current {
            self.set(new);
            Ok(held)
        } else {
            Err(held)
        }
    }

    fn swap(&self, value: u64, _: Ordering) -> u64 {
        self.charge(Access::Exchange);
        let held = self.get();
        self.set(value);
        held
    }

    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        self.charge(Access::Exchange);
        let held = self.get();
        self.set(held.wrapping_add(value));
        held
    }
}

/// A cell whose accesses are charged, by its first and last byte.
#[repr(transparent)]
pub struct SimCell<T>(UnsafeCell<T>);

impl<T> fmt::Debug for SimCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimCell").finish_non_exhaustive()
    }
}

// SAFETY: the closure is called once, with the address of the one value that the cell holds.
unsafe impl<T> SharedCell<T> for SimCell<T> {
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    #[inline]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        engine::touch(self.0.get().addr(), size_of::<T>(), Access::Read);
        f(self.0.get())
    }

    #[inline]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        engine::touch(self.0.get().addr(), size_of::<T>(), Access::Write);
        f(self.0.get())
    }
}

/// The right to use the lists of one CPU.
#[derive(Debug)]
pub struct SimPin {
    cpu: CpuId,
    /// A virtual CPU stays on its host thread.
    here: PhantomData<*const ()>,
}

impl SimPin {
    /// The pin of a CPU.
    ///
    /// # Safety
    /// Of all pins of the same CPU of the same allocator, one at a time is used.
    #[must_use]
    pub const unsafe fn new(cpu: CpuId) -> Self {
        Self { cpu, here: PhantomData }
    }
}

// SAFETY: `new` hands the contract to its caller. The number never changes.
unsafe impl PinnedCpu for SimPin {
    fn cpu(&self) -> CpuId {
        self.cpu
    }
}

// Costs are charged by cache line, so lines must hold what they hold on a host.
const _: () = {
    assert!(size_of::<SimWord>() == 8 && align_of::<SimWord>() == 8);
    assert!(size_of::<SimCell<[u8; 56]>>() == 56 && align_of::<SimCell<[u8; 56]>>() == 1);
    assert!(size_of::<Frame<Sim, ()>>() == 8);
    assert!(size_of::<Frame<Sim, [u64; 7]>>() == 64);
    assert!(size_of::<Pageblock<Sim>>() == 16);
    assert!(align_of::<Pcp<'_, Sim>>() == 128);
    assert!(align_of::<Zone<Sim>>() == 64);

    let zone = Zone::<Sim>::layout();
    let [with_order0_lists, other_end, own_line] = zone.locks;
    assert!(with_order0_lists == 0 && other_end == 992 && own_line == 1024);
    assert!(zone.order0_lists == 16 && zone.order0_count == 96);
    assert!(zone.order10_lists == 896 && zone.isolated_count == 984);
};
