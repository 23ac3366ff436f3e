//! `PhysicalAllocator`, `RegionInit` and `AllocatorStats` of frame-alloc on Framewright. A frame number is the address
//! divided by the size of a frame, so that blocks are aligned as addresses.

#[path = "world.rs"]
mod world;
pub use frame_alloc::*;
use framewright::Order;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use world::World;

pub struct Framewright {
    frame: usize,
    world: OnceLock<World>,
}

/// Each thread has a CPU.
fn cpu() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static CPU: usize = NEXT.fetch_add(1, Relaxed));
    CPU.with(|cpu| *cpu)
}

impl Framewright {
    pub fn new(frame: PageSize) -> Self {
        Self { frame: frame.bytes(), world: OnceLock::new() }
    }

    /// Frames of a range of bytes, if it has whole ones.
    fn frames(&self, base: usize, len: usize) -> Option<Range<u64>> {
        let is_whole = |bytes: usize| bytes % self.frame == 0;
        let end = base.checked_add(len)?;
        (len > 0 && is_whole(base) && is_whole(len))
            .then(|| (base / self.frame) as u64..(end / self.frame) as u64)
    }
}

// SAFETY: the adapter writes no memory.
unsafe impl RegionInit for Framewright {
    unsafe fn try_init(&self, base: usize, len: usize, usable: &[PhysRange]) -> Result<(), InitError> {
        if self.world.get().is_some() {
            return Err(InitError::AlreadyInitialized);
        }
        if base % self.frame != 0 {
            return Err(InitError::Misaligned { required: self.frame });
        }
        let span = self.frames(base, len).ok_or(InitError::InvalidSpan)?;
        let world = World::new(span.clone()).map_err(|_| InitError::InvalidSpan)?;
        let mut from = span.start;
        for (index, range) in usable.iter().enumerate() {
            let wrong = InitError::InvalidUsable { index };
            let frames = self.frames(range.base, range.len).ok_or(wrong)?;
            // Framewright takes ranges in any order; the trait wants them sorted.
            if frames.start < from || frames.end > span.end {
                return Err(wrong);
            }
            from = frames.start;
            world.add(frames).map_err(|_| wrong)?;
        }
        self.world.set(world).map_err(|_| InitError::AlreadyInitialized)
    }

    unsafe fn add_usable(&self, base: usize, len: usize) {
        let world = self.world.get().expect("initialised");
        world.add(self.frames(base, len).expect("whole frames")).expect("new memory of the span");
    }
}

// SAFETY: blocks are frames of `usable` that no other caller has.
unsafe impl PhysicalAllocator for Framewright {
    fn allocate_physical(&self, page: PageSize, count: NonZeroUsize) -> Result<usize, AllocError> {
        if page.bytes() < self.frame {
            return Err(AllocError::InvalidPageSize);
        }
        let each = page.bytes() / self.frame;
        let pages = count.get().checked_mul(each).ok_or(AllocError::RequestTooLarge)?;
        let world = self.world.get().ok_or(AllocError::OutOfMemory)?;
        let start = world.block(cpu(), pages as u64, each as u64).ok_or(AllocError::OutOfMemory)?;
        Ok(start as usize * self.frame)
    }

    unsafe fn deallocate_physical(&self, page: PageSize, count: NonZeroUsize, base: usize) {
        let pages = count.get() * (page.bytes() / self.frame);
        let world = self.world.get().expect("initialised");
        assert!(world.free(cpu(), (base / self.frame) as u64, pages as u64), "allocated with this size");
    }
}

impl AllocatorStats for Framewright {
    fn total_bytes(&self) -> usize {
        self.world.get().map_or(0, |world| world.frames() as usize * self.frame)
    }

    fn free_bytes(&self) -> usize {
        self.world.get().map_or(0, |world| world.free_frames() as usize * self.frame)
    }

    fn largest_free_bytes(&self) -> usize {
        let Some(world) = self.world.get() else { return 0 };
        let orders = (0..=10).rev().filter_map(Order::new);
        orders
            .map(|order| (world.free_blocks(order).min(1) << order.get()) as usize * self.frame)
            .max()
            .unwrap_or(0)
    }
}
