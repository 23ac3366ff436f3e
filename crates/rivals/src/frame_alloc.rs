//! The `frame-alloc` crate: a lock-free buddy of bitmaps, and the same behind per-CPU magazines.
//!
//! One bitmap per order, 2 bits a frame in all, and above each long one a summary of its non-empty words. Every
//! change is a compare-and-swap on the bitmap word, a locked add on the order's count of free blocks, and a
//! locked `and` or `or` on the summary when a word becomes empty or not; merging repeats this at each order. The
//! lowest block is found from the start. `DepotAllocator` keeps up to 128 single frames per CPU and 512
//! shared, each behind a spin lock; larger blocks go straight to the core. Both are used as its README shows.

use core::cell::Cell;
use core::num::NonZeroUsize;
use core::ptr::NonNull;

use frame_alloc::{
    CpuId, DepotAllocator, PageSize, PhysicalAllocator, Provenance, RegionInit, SummaryBuddyAllocator,
};
use framewright_workload::target::{Mobility, Target, TargetCpu};

use crate::MAX_ORDER;

/// Orders of the buddy: its README uses the same.
const ORDERS: usize = MAX_ORDER as usize + 1;

/// The base frame.
const FRAME: PageSize = PageSize::from_log2(12);

/// Magazines: CPUs that may ever be online.
const SLOTS: usize = 64;

type Core = SummaryBuddyAllocator<ORDERS, Mapped>;
type Depot = DepotAllocator<Core, AttachedCpu, SLOTS>;

/// The core alone.
pub type FrameAlloc = Rival<Core>;

/// The core behind magazines and a depot.
pub type FrameAllocDepot = Rival<Depot>;

thread_local! {
    /// The CPU that the thread attached as last.
    static CPU: Cell<usize> = const { Cell::new(0) };
}

/// Tells the allocator on which CPU it runs.
#[derive(Debug)]
pub struct AttachedCpu;

impl CpuId for AttachedCpu {
    #[inline]
    fn current_cpu() -> usize {
        CPU.get()
    }
}

/// Addresses are those of a mapping that is alive as long as the allocator.
#[derive(Debug)]
pub struct Mapped;

#[expect(
    unsafe_code,
    reason = "the trait is unsafe to implement: the allocator writes its bitmap through it"
)]
// SAFETY: `create` is called with addresses within a `Region`, whose provenance was exposed and covers all of it.
unsafe impl Provenance for Mapped {
    unsafe fn create(phys: usize) -> NonNull<u8> {
        let pointer = core::ptr::with_exposed_provenance_mut(phys);
        NonNull::new(pointer).expect("a mapping does not start at 0")
    }

    unsafe fn destroy<T>(pointer: NonNull<T>) -> usize {
        pointer.addr().get()
    }
}

/// The allocator and the memory that it manages, of which it only touches its bitmap.
pub struct Rival<A> {
    allocator: Box<A>,
    region: region::Region,
}

impl<A> core::fmt::Debug for Rival<A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Rival").field("region", &self.region).finish_non_exhaustive()
    }
}

impl Rival<Core> {
    /// All frames free, but for those that hold its bitmap.
    ///
    /// # Errors
    /// The address space cannot be reserved, or is too small for the bitmap.
    pub fn new(frames: u64) -> Result<Self, String> {
        Self::over(Box::new(Core::new(FRAME)), frames)
    }
}

impl Rival<Depot> {
    /// All frames free, but for those that hold its bitmap.
    ///
    /// # Errors
    /// More CPUs than magazines; the address space cannot be reserved, or is too small for the bitmap.
    pub fn new(frames: u64, cpus: usize) -> Result<Self, String> {
        if cpus > SLOTS {
            return Err(format!("built for {SLOTS} CPUs at most"));
        }
        Self::over(Box::new(Depot::new(FRAME, Core::new(FRAME))), frames)
    }
}

impl<A: RegionInit> Rival<A> {
    fn over(allocator: Box<A>, frames: u64) -> Result<Self, String> {
        let bytes = usize::try_from(frames).ok().and_then(|frames| frames.checked_mul(FRAME.bytes()));
        let bytes = bytes.ok_or_else(|| format!("{frames} frames are too many"))?;
        let region = region::Region::reserve(bytes, FRAME.bytes() << MAX_ORDER)?;
        #[expect(unsafe_code, reason = "the allocator must be told which memory is its own")]
        // SAFETY: the region is mapped, has no other owner, outlives the allocator, and can be reached through
        // `Mapped`; this is the only thread that knows the allocator.
        unsafe { allocator.try_init_region(region.start, bytes) }.map_err(|error| format!("{error}"))?;
        Ok(Self { allocator, region })
    }
}

impl<A: PhysicalAllocator + Sync> Target for Rival<A> {
    type Cpu<'a>
        = Access<'a, A>
    where
        Self: 'a;

    fn attach(&self, cpu: usize) -> Access<'_, A> {
        CPU.set(cpu);
        Access { allocator: &self.allocator, start: self.region.start }
    }

    fn frames(&self) -> Option<u64> {
        Some((self.region.bytes / FRAME.bytes()) as u64)
    }

    // No `free_blocks`: behind a feature that counts on the hot path as well.
}

/// One thread's access.
pub struct Access<'a, A> {
    allocator: &'a A,
    start: usize,
}

impl<A> core::fmt::Debug for Access<'_, A> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Access").field("start", &self.start).finish_non_exhaustive()
    }
}

/// `2^order` as a count of frames.
#[inline]
fn count(order: u8) -> NonZeroUsize {
    NonZeroUsize::MIN
        .checked_mul(const { NonZeroUsize::new(2).unwrap() }.saturating_pow(u32::from(order)))
        .unwrap_or(NonZeroUsize::MAX)
}

impl<A: PhysicalAllocator> TargetCpu for Access<'_, A> {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        let address = self.allocator.allocate_physical(FRAME, count(order)).ok()?;
        Some(((address - self.start) >> FRAME.log2()) as u64)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        let address = self.start + ((frame as usize) << FRAME.log2());
        #[expect(unsafe_code, reason = "the allocator cannot check what it is given back")]
        // SAFETY: by the contract of `TargetCpu`, `alloc` returned this block with this order and no thread uses it.
        unsafe {
            self.allocator.deallocate_physical(FRAME, count(order), address);
        }
    }
}

/// Reserved address space. Holds the unsafe that mapping needs.
mod region {
    #![expect(unsafe_code, reason = "mapping memory is unsafe")]

    use core::ffi::c_void;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    /// A private anonymous mapping, readable and writable, backed where it is touched.
    #[derive(Debug)]
    pub(super) struct Region {
        mapping: *mut c_void,
        mapped: usize,
        pub(super) start: usize,
        pub(super) bytes: usize,
    }

    // SAFETY: a region is only an address range; nothing here reads or writes through the pointer.
    unsafe impl Send for Region {}
    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Region {
        /// `bytes` from an address that is a multiple of `align`, a power of two.
        pub(super) fn reserve(bytes: usize, align: usize) -> Result<Self, String> {
            let mapped = bytes.checked_add(align).ok_or_else(|| format!("{bytes} bytes are too many"))?;
            let (access, flags) =
                (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
            // SAFETY: the kernel chooses the address, so no existing mapping is touched.
            let mapping = unsafe { mmap_anonymous(core::ptr::null_mut(), mapped, access, flags) }
                .map_err(|error| format!("cannot reserve {} MiB of addresses: {error}", mapped >> 20))?;
            let start = mapping.expose_provenance().next_multiple_of(align);
            Ok(Self { mapping, mapped, start, bytes })
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: this mapping is ours, and its only user goes with it. Failure leaves it mapped: harmless.
            _ = unsafe { munmap(self.mapping, self.mapped) };
        }
    }
}
