//! Page tables of x86-64, by the crate `x86_64`: the tables are frames of an arena, reached at an offset as in a kernel
//! with a direct map.
#![expect(unsafe_code, reason = "an allocator of frames vouches for them")]

use framewright_host::{Cpu, Migratetype, Order, PAGE_BYTES, Pfn};
use x86_64::structures::paging::{
    FrameAllocator, FrameDeallocator, OffsetPageTable, PageTable, PhysFrame, Size4KiB,
};
use x86_64::{PhysAddr, VirtAddr};

/// Frames for tables and for what they map. The physical address of frame n is n × 4096.
#[derive(Debug)]
pub struct Frames<'c, 'a>(pub &'c Cpu<'a>);

// SAFETY: a frame is new, and no other owner's until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Frames<'_, '_> {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let pfn = self.0.alloc(Order::ZERO, Migratetype::Unmovable).ok()?;
        // Tables must be empty, and a frame holds what its last owner left.
        // SAFETY: ours since just now.
        unsafe { self.0.arena().address(pfn)?.write_bytes(0, PAGE_BYTES) };
        Some(PhysFrame::containing_address(PhysAddr::new(pfn.0 * PAGE_BYTES as u64)))
    }
}

impl FrameDeallocator<Size4KiB> for Frames<'_, '_> {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
        let pfn = Pfn(frame.start_address().as_u64() / PAGE_BYTES as u64);
        // SAFETY: by the caller's promise.
        unsafe { self.0.free(pfn, Order::ZERO) }.expect("it is allocated");
    }
}

impl<'a> Frames<'_, 'a> {
    /// An empty set of tables.
    ///
    /// # Panics
    /// If no frame is left, or the arena has no memory.
    pub fn tables(&mut self) -> OffsetPageTable<'a> {
        let root = self.allocate_frame().expect("a frame for the root");
        let arena = self.0.arena();
        let map = arena.address(arena.frames().start).expect("an arena with memory").as_ptr() as u64;
        let start =
            arena.address(Pfn(root.start_address().as_u64() / PAGE_BYTES as u64)).expect("a frame of ours");
        // SAFETY: a zeroed frame is an empty table, ours; all frames are at `map` in ascending order.
        unsafe { OffsetPageTable::new(start.cast::<PageTable>().as_mut(), VirtAddr::new(map)) }
    }
}
