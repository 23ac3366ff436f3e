//! The allocator as kernel code uses it, and what the kernel keeps of each page frame.
#![expect(unsafe_code, reason = "a block's memory is reached by its address")]

use core::mem::size_of;

use framewright::frame::FrameUser;
use framewright::{AllocError, Allocator, Cpu, Frame, FreeError, Migratetype, NodeId, Order, Pfn};

use crate::machine::Machine;
use crate::metal::{Metal, Pin};
use crate::paging::{PAGE, direct};
use crate::{arch, smp};

/// What the kernel keeps of a page frame, beside the allocator's own word: as large as Linux' `struct page`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// What is known of the frame: [`Page::BAD`].
    pub(crate) flags: u64,
    /// The object cache: address of the first free object of a slab.
    pub(crate) free: u64,
    /// The object cache: objects in use of a slab.
    pub(crate) used: u64,
    /// The object cache: the next slab with room.
    pub(crate) next: u64,
    /// A scenario's own mark.
    pub(crate) mark: u64,
    unused: [u64; 2],
}

impl Page {
    /// The memory of the frame is broken.
    pub(crate) const BAD: u64 = 1;
}

impl FrameUser for Page {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        (self.flags & Self::BAD != 0).then_some("the frame is marked bad")
    }
}

const _: () = assert!(size_of::<Frame<Metal, Page>>() == 64);

/// The page allocator.
pub(crate) type Pages = Allocator<'static, Metal, Page>;

/// What boot has made.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The machine.
    pub(crate) machine: &'static Machine,
    /// The page allocator.
    pub(crate) pages: Pages,
    /// The node of each CPU.
    pub(crate) cpu_nodes: &'static [NodeId],
}

// Safe to share: the allocator is, and the rest is only read.

impl Kernel {
    /// Runs `f` with this CPU's view of the allocator, interrupts off.
    #[inline]
    pub(crate) fn with_cpu<R>(&self, f: impl FnOnce(&Cpu<'_, 'static, Metal, Page>) -> R) -> R {
        let pin = Pin::take();
        f(&self.pages.cpu(&pin))
    }

    /// Allocates a block. If that fails, CPUs that sleep are woken to give back what their lists hold, and it is
    /// tried once more.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(crate) fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        self.with_cpu(|cpu| cpu.alloc(order, migratetype)).or_else(|_| self.alloc_again(order, migratetype))
    }

    #[cold]
    #[inline(never)]
    fn alloc_again(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        smp::have_all_answer();
        self.with_cpu(|cpu| cpu.alloc(order, migratetype))
    }

    /// Frees a block.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub(crate) fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.with_cpu(|cpu| cpu.free(pfn, order))
    }

    /// A page table's page: unmovable, and zeroed.
    ///
    /// # Panics
    /// There is no memory.
    pub(crate) fn page_table(&self) -> Pfn {
        let pfn = self.alloc(Order::ZERO, Migratetype::Unmovable).expect("memory for a page table");
        // SAFETY: allocated just now; a whole page.
        unsafe { arch::zero(memory(pfn), PAGE as usize) };
        pfn
    }
}

/// The memory of a frame.
pub(crate) const fn memory(pfn: Pfn) -> *mut u8 {
    direct(pfn.0 * PAGE)
}
