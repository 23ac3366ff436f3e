//! Page tables in use, by the crate `x86_64`: tables are the allocator's frames, and so is what they map.
#![expect(unsafe_code, reason = "page tables decide what addresses mean")]

use framewright::{Migratetype, Order, Pfn};
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, OffsetPageTable, PhysFrame, Size4KiB};
use x86_64::{PhysAddr, VirtAddr};

use crate::arch;
use crate::kernel::Kernel;
use crate::paging::{PAGE, direct};

/// Frames for tables.
pub(crate) struct Frames(pub(crate) &'static Kernel);

// SAFETY: a frame is new and zeroed, and no other code's until it is given back.
unsafe impl FrameAllocator<Size4KiB> for Frames {
    fn allocate_frame(&mut self) -> Option<PhysFrame> {
        let pfn = self.0.alloc(Order::ZERO, Migratetype::Unmovable).ok()?;
        // SAFETY: allocated just now; a whole page.
        unsafe { arch::zero(direct(pfn.0 * PAGE), PAGE as usize) };
        Some(PhysFrame::containing_address(PhysAddr::new(pfn.0 * PAGE)))
    }
}

impl FrameDeallocator<Size4KiB> for Frames {
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame) {
        let pfn = Pfn(frame.start_address().as_u64() / PAGE);
        self.0.free(pfn, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// The tables that this CPU uses.
///
/// # Safety
/// No other code changes them during the call, and there is no other value of this type.
pub(crate) unsafe fn in_use() -> OffsetPageTable<'static> {
    let root = direct(arch::page_tables()).cast();
    // SAFETY: the root is a table, exclusively ours by the caller's promise; all memory is mapped one to one.
    unsafe { OffsetPageTable::new(&mut *root, VirtAddr::zero()) }
}
