//! [`KernelAllocator`]: the allocator in a `static` of a kernel that names its free memory range by range.
#![expect(unsafe_code, reason = "the kernel vouches for its CPUs, its memory and the order of its boot")]

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::Range;
use core::ptr::NonNull;

use crate::alloc::Allocator;
use crate::config::Config;
use crate::cpu::Cpu;
use crate::error::SetupError;
use crate::platform::{Metal, Platform};
use crate::units::{CpuId, NodeId, Pfn};

/// A CPU's view of a [`KernelAllocator`], which stays.
pub type KernelCpu<P = Metal> = Cpu<'static, 'static, P>;

/// The mapping of a kernel that maps all memory in one piece, frame 0 at `base`, frames of `page` bytes. Frames from
/// `end` on are not mapped yet. For [`KernelAllocator::make`] and [`Allocator::over`].
pub fn linear(base: usize, page: usize, end: Pfn) -> impl Fn(&Range<Pfn>) -> Option<NonNull<u8>> {
    move |range| {
        let offset = usize::try_from(range.start.0).ok()?.checked_mul(page)?;
        let address = base.checked_add(offset).filter(|_| range.end <= end)?;
        NonNull::new(core::ptr::with_exposed_provenance_mut(address))
    }
}

/// The frames of `bytes` of memory from `address` on, frames of `page` bytes. Both are multiples of `page`, and the
/// memory ends before the last page of the address space.
#[inline]
#[must_use]
pub const fn frames_of(address: usize, bytes: usize, page: usize) -> Range<Pfn> {
    Pfn((address / page) as u64)..Pfn(((address + bytes) / page) as u64)
}

/// Ranges that are kept until the allocator is made.
const RANGES: usize = 64;

/// An allocator of one zone in a `static`. Boot [gives](Self::give) it ranges of free memory, and then
/// [makes](Self::make) it; afterwards each CPU has a [view](Self::cpu) of its own, which is made once.
///
/// It is `const` to make, and needs no lock: until boot has made it, one CPU alone calls it.
pub struct KernelAllocator<const CPUS: usize, P: Platform + 'static = Metal> {
    nodes: [NodeId; CPUS],
    given: UnsafeCell<([Range<Pfn>; RANGES], usize)>,
    allocator: UnsafeCell<Option<Allocator<'static, P>>>,
    /// Each is written by its CPU only.
    views: [UnsafeCell<Option<KernelCpu<P>>>; CPUS],
}

// SAFETY: by the promises of `give` and `make`, one CPU alone calls until the allocator is made; by that of `cpu`, a
// CPU uses its own view alone. The allocator's words are atomics, and its cells are behind its locks.
unsafe impl<const CPUS: usize, P: Platform> Sync for KernelAllocator<CPUS, P> {}

impl<const CPUS: usize, P: Platform> fmt::Debug for KernelAllocator<CPUS, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelAllocator").finish_non_exhaustive()
    }
}

impl<const CPUS: usize, P: Platform> Default for KernelAllocator<CPUS, P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const CPUS: usize, P: Platform> KernelAllocator<CPUS, P> {
    /// An allocator that is not made yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            nodes: [NodeId(0); CPUS],
            given: UnsafeCell::new(([const { Pfn(0)..Pfn(0) }; RANGES], 0)),
            allocator: UnsafeCell::new(None),
            views: [const { UnsafeCell::new(None) }; CPUS],
        }
    }

    /// The allocator; `None` before it is [made](Self::make).
    ///
    /// # Safety
    /// No [`make`](Self::make) runs during the call: the caller is the CPU that boots, or was started afterwards.
    pub unsafe fn get(&'static self) -> Option<&'static Allocator<'static, P>> {
        // SAFETY: it is written in `make` only.
        unsafe { (*self.allocator.get()).as_ref() }
    }

    /// Keeps a range of free memory for [`make`](Self::make).
    ///
    /// # Safety
    /// No other CPU makes a call during this one. No other code uses the memory from now on.
    ///
    /// # Errors
    /// The range, if it is not kept: the allocator is made already, or 64 ranges are kept.
    pub unsafe fn give(&'static self, range: Range<Pfn>) -> Result<(), Range<Pfn>> {
        // SAFETY: no other CPU makes a call.
        let (ranges, len) = unsafe { &mut *self.given.get() };
        // SAFETY: as above.
        match ranges.get_mut(*len).filter(|_| unsafe { self.get() }.is_none()) {
            Some(place) => *place = range,
            None => return Err(range),
        }
        *len += 1;
        Ok(())
    }

    /// Makes the allocator of the ranges that it was given, for the first `cpus` CPUs: see [`Allocator::over`], also
    /// for `address`. Does nothing if it is made already.
    ///
    /// # Safety
    /// No other CPU makes a call during the one that makes it. For `address` as [`Allocator::over`].
    ///
    /// # Errors
    /// As [`Allocator::over`]; more than `CPUS` CPUs.
    pub unsafe fn make(
        &'static self,
        cpus: usize,
        config: Config,
        address: impl Fn(&Range<Pfn>) -> Option<NonNull<u8>>,
    ) -> Result<(), SetupError> {
        // SAFETY: a made allocator is not written again.
        if unsafe { self.get() }.is_some() {
            return Ok(());
        }
        let nodes = self.nodes.get(..cpus).ok_or(SetupError::CpuCount(cpus))?;
        // SAFETY: no other CPU makes a call; the ranges were given away, and `address` is as promised.
        unsafe {
            let (ranges, len) = &mut *self.given.get();
            *self.allocator.get() = Some(Allocator::over(&mut ranges[..*len], nodes, config, address)?);
        }
        Ok(())
    }

    /// A CPU's view, which stays; `None` if the allocator is not [made](Self::make) or has no such CPU. A kernel keeps
    /// it where its code finds it soonest, in a variable of the CPU.
    ///
    /// # Safety
    /// As [`get`](Self::get). The caller runs on this CPU while it uses the view, and no interrupt handler or other
    /// task on it uses the view or makes this call at the same time.
    pub unsafe fn cpu(&'static self, cpu: CpuId) -> Option<&'static KernelCpu<P>> {
        // SAFETY: by the caller's promise.
        let allocator = unsafe { self.get()? };
        let place = self.views.get(cpu.index()).filter(|_| cpu.index() < allocator.cpus())?;
        // SAFETY: this CPU alone reaches its view. A reference given out earlier saw a view that is not written again.
        unsafe {
            if (*place.get()).is_none() {
                *place.get() = Some(Cpu::new(allocator, cpu));
            }
            (*place.get()).as_ref()
        }
    }
}

impl<P: Platform> Cpu<'_, '_, P> {
    /// Frees a range as [`free_range`](Self::free_range), or adds it, if the allocator never handed it out: frames that
    /// a kernel's early allocator had allocated, or memory that appears later.
    ///
    /// # Safety
    /// As [`free_range`](Self::free_range); frames that were not allocated are memory that no other code uses.
    ///
    /// # Errors
    /// As [`add_memory`](Allocator::add_memory), if a frame is not allocated: above all, it is free. Blocks before it
    /// are free then.
    #[inline]
    pub unsafe fn free_or_add(&self, range: Range<Pfn>) -> Result<(), SetupError> {
        // SAFETY: by the caller's promise.
        if unsafe { self.free_range(range.clone()) }.is_ok() { Ok(()) } else { self.add_range(range) }
    }

    /// [`add_memory`](Allocator::add_memory), out of the way of frees.
    #[cold]
    #[inline(never)]
    fn add_range(&self, range: Range<Pfn>) -> Result<(), SetupError> {
        self.allocator().add_memory(range.start, range.end.0.saturating_sub(range.start.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_the_frames_that_its_addresses_say() {
        assert_eq!(frames_of(0x3000, 0x5000, 0x1000), Pfn(3)..Pfn(8));
        assert_eq!(frames_of(0x30_0000, 0x1_0000, 0x1_0000), Pfn(0x30)..Pfn(0x31));
    }

    #[test]
    fn a_linear_mapping_has_the_frames_below_its_end() {
        let address = |range| linear(0x10_0000, 0x1000, Pfn(8))(&range).map(|start| start.addr().get());
        assert_eq!(address(Pfn(2)..Pfn(8)), Some(0x10_2000));
        assert_eq!(address(Pfn(2)..Pfn(9)), None);
        assert_eq!(address(Pfn(u64::MAX / 2)..Pfn(8)), None, "an address that there is none of");
    }
}
