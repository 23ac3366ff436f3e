//! Collections in an arena, by `allocator-api2`: each buffer is a block of its own.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::alloc::Layout;
use core::ptr::NonNull;

use allocator_api2::alloc::{AllocError, Allocator};
use framewright_host::{Migratetype, PAGE_BYTES, SharedArena};

use crate::order_for;

/// Memory for collections whose buffers are pages and more.
#[derive(Clone, Debug)]
pub struct Frames(pub SharedArena);

// SAFETY: a block is ours until it is freed, lies still, and clones free each other's: they are one arena, which lives as
// long as any of them. Blocks are aligned to their size, which is no less than the layout's alignment.
unsafe impl Allocator for Frames {
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        let order = order_for(layout.size().max(layout.align())).ok_or(AllocError)?;
        let pfn = self.0.alloc(order, Migratetype::Unmovable).map_err(|_| AllocError)?;
        let start = self.0.arena().address(pfn).ok_or(AllocError)?;
        Ok(NonNull::slice_from_raw_parts(start, PAGE_BYTES << order.get()))
    }

    unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
        let order = order_for(layout.size().max(layout.align())).expect("it was allocated");
        let pfn = self.0.arena().frame_at(start.as_ptr()).expect("it is of this arena");
        // SAFETY: allocated by `allocate`, and its owner gives it up.
        unsafe { self.0.free(pfn, order) }.expect("it is allocated");
    }
}
