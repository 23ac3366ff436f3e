//! The `buddy_system_allocator` crate's frame allocator.
//!
//! One `BTreeSet` of free blocks per order; a free looks its buddy up in the set. Allocation takes the lowest
//! address. Nothing is concurrent: its `LockedFrameAllocator` puts a spin lock around all of it, used here as
//! documented, with orders 0 to 10.

use buddy_system_allocator::LockedFrameAllocator;
use framewright_workload::target::{Mobility, Target, TargetCpu};

use crate::MAX_ORDER;

/// Its parameter counts orders.
const ORDERS: usize = MAX_ORDER as usize + 1;

/// The allocator and its lock.
pub struct BuddySystem {
    frames: u64,
    allocator: LockedFrameAllocator<ORDERS>,
}

impl core::fmt::Debug for BuddySystem {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BuddySystem").field("frames", &self.frames).finish_non_exhaustive()
    }
}

impl BuddySystem {
    /// All frames free.
    ///
    /// # Errors
    /// More frames than the machine can number.
    pub fn new(frames: u64) -> Result<Self, String> {
        let end = usize::try_from(frames).map_err(|_| format!("{frames} frames are too many"))?;
        let allocator = LockedFrameAllocator::new();
        allocator.lock().add_frame(0, end);
        Ok(Self { frames, allocator })
    }
}

impl Target for BuddySystem {
    type Cpu<'a> = &'a Self;

    fn attach(&self, _cpu: usize) -> &Self {
        self
    }

    fn frames(&self) -> Option<u64> {
        Some(self.frames)
    }
}

impl TargetCpu for &BuddySystem {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        self.allocator.lock().alloc(1 << order).map(|frame| frame as u64)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        // It fits: it was handed out as a usize.
        self.allocator.lock().dealloc(frame as usize, 1 << order);
    }
}
