//! A heap that grows by blocks of an arena and gives them back: `dlmalloc`.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::ptr::NonNull;

use dlmalloc::Allocator;
use framewright_host::{Migratetype, PAGE_BYTES, SharedArena};

/// What the heap takes its segments from.
#[derive(Clone, Debug)]
pub struct Segments(pub SharedArena);

// SAFETY: each segment is a block that is the heap's until it frees it.
unsafe impl Allocator for Segments {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let arena = self.0.arena();
        let segment = arena.order_for(size).and_then(|order| {
            let pfn = self.0.alloc(order, Migratetype::Unmovable).ok()?;
            Some((arena.address(pfn)?.as_ptr(), PAGE_BYTES << order.get(), 0))
        });
        segment.unwrap_or((core::ptr::null_mut(), 0, 0))
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        let arena = self.0.arena();
        let block = NonNull::new(start).and_then(|_| Some((arena.frame_at(start)?, arena.order_for(size)?)));
        // SAFETY: the heap gives the segment up. Two that it has joined are refused, because no block has their size.
        block.is_some_and(|(pfn, order)| unsafe { self.0.free(pfn, order) }.is_ok())
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        PAGE_BYTES
    }
}
