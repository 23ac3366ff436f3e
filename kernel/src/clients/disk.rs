//! `virtio-drivers` on the kernel's frames: what a device reads and writes by itself are blocks of the allocator.
#![expect(unsafe_code, reason = "devices reach memory by its physical address")]

use core::ptr::NonNull;

use framewright::{Migratetype, Order, Pfn};
use virtio_drivers::{BufferDirection, Hal, PhysAddr};

use crate::arch;
use crate::kernel::{memory, the};
use crate::paging::{DIRECT_END, PAGE, direct};

/// The kernel, as `virtio-drivers` asks for it.
pub(crate) struct Frames;

// SAFETY: blocks are new, zeroed and contiguous; all memory is mapped one to one, so a buffer's address is its
// physical one.
unsafe impl Hal for Frames {
    fn dma_alloc(pages: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let order = Order::for_pages(pages as u64);
        let block = order.and_then(|order| Some((the().alloc(order, Migratetype::Unmovable).ok()?, order)));
        let Some((pfn, order)) = block else { return (0, NonNull::dangling()) };
        // SAFETY: allocated just now, whole pages.
        unsafe { arch::zero(memory(pfn), (PAGE << order.get()) as usize) };
        (pfn.0 * PAGE, NonNull::new(memory(pfn)).expect("page 0 is nobody's"))
    }

    unsafe fn dma_dealloc(at: PhysAddr, _: NonNull<u8>, pages: usize) -> i32 {
        let order = Order::for_pages(pages as u64).expect("it was allocated");
        the().free(Pfn(at / PAGE), order).map_or(-1, |()| 0)
    }

    unsafe fn mmio_phys_to_virt(at: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(direct(at)).expect("a device is not at 0")
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        let at = buffer.cast::<u8>().as_ptr().expose_provenance() as u64;
        assert!(at < DIRECT_END, "a buffer at {at:#x} is not mapped one to one");
        at
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}
