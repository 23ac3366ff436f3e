//! Collections whose buffers are blocks of an arena: the allocator interface that Rust's nightly library has, as the
//! crate `allocator-api2` has it for all others. Its versions 0.4 and 0.2 are different traits, and a crate speaks one
//! of them.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::alloc::Layout;
use core::num::NonZeroUsize;
use core::ptr::NonNull;

use framewright::frame::FrameUser;
use framewright::{AllocError, Flags, FreeError, Migratetype, Order, Pfn, Request};

use crate::arena::Arena;
use crate::cpu::Cpu;
use crate::shared::SharedArena;

/// A handle that allocates and frees raw blocks of an arena.
trait Blocks {
    type User: FrameUser;
    fn of(&self) -> &Arena<Self::User>;
    fn get(&self, request: &Request<'_>) -> Result<Pfn, AllocError>;
    /// # Safety
    /// As [`Cpu::free`].
    unsafe fn give(&self, pfn: Pfn, order: Order) -> Result<(), FreeError>;
    /// # Safety
    /// As [`Cpu::split`].
    unsafe fn halve(&self, pfn: Pfn, order: Order, half: Order) -> Result<(), FreeError>;
}

impl<M: FrameUser> Blocks for SharedArena<M> {
    type User = M;

    fn of(&self) -> &Arena<M> {
        self
    }

    fn get(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        self.alloc_with(request)
    }

    unsafe fn give(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        unsafe { self.free(pfn, order) }
    }

    unsafe fn halve(&self, pfn: Pfn, order: Order, half: Order) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        unsafe { self.split(pfn, order, half) }
    }
}

impl<M: FrameUser> Blocks for &Cpu<'_, M> {
    type User = M;

    fn of(&self) -> &Arena<M> {
        self.arena()
    }

    fn get(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        if request.flags == Flags::NONE {
            self.alloc(request.order, request.migratetype)
        } else {
            self.alloc_with(request)
        }
    }

    unsafe fn give(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        unsafe { self.free(pfn, order) }
    }

    unsafe fn halve(&self, pfn: Pfn, order: Order, half: Order) -> Result<(), FreeError> {
        // SAFETY: our caller's promise.
        unsafe { self.split(pfn, order, half) }
    }
}

/// The order of the block that holds such a layout: as large as its size and its alignment.
fn order_of<M: FrameUser>(arena: &Arena<M>, layout: Layout) -> Option<Order> {
    arena.order_for(layout.size().max(layout.align()))
}

/// A buffer of no bytes: an aligned address.
fn no_bytes(layout: Layout) -> NonNull<[u8]> {
    let aligned = NonZeroUsize::new(layout.align()).unwrap_or(NonZeroUsize::MIN);
    NonNull::slice_from_raw_parts(NonNull::without_provenance(aligned), 0)
}

fn allocate(blocks: &impl Blocks, layout: Layout, flags: Flags) -> Option<NonNull<[u8]>> {
    if layout.size() == 0 {
        return Some(no_bytes(layout));
    }
    let arena = blocks.of();
    let order = order_of(arena, layout).filter(|_| arena.has_memory() && !arena.is_forked())?;
    let pfn = blocks.get(&Request::new(order, Migratetype::Unmovable).with(flags)).ok()?;
    let start = arena.address(pfn)?;
    // Memory of the caller's may start anywhere.
    if !start.as_ptr().addr().is_multiple_of(layout.align()) {
        // SAFETY: allocated just now, and no other code knows of it.
        let _freed = unsafe { blocks.give(pfn, order) };
        return None;
    }
    Some(NonNull::slice_from_raw_parts(start, arena.page_bytes() << order.get()))
}

/// # Safety
/// `start` was allocated with `layout` by `blocks`, or another handle of its arena, and it is not used any more.
unsafe fn deallocate(blocks: &impl Blocks, start: NonNull<u8>, layout: Layout) {
    let arena = blocks.of();
    // In a child, blocks are the parent's.
    if layout.size() == 0 || arena.is_forked() {
        return;
    }
    let block = order_of(arena, layout).zip(arena.frame_at(start.as_ptr()));
    // SAFETY: by the caller's promise.
    let freed = block.map(|(order, pfn)| unsafe { blocks.give(pfn, order) });
    debug_assert!(matches!(freed, Some(Ok(()))), "a buffer was freed that is none: {freed:?}");
}

/// Gives a buffer another size where it is, if its block is large enough. What the block has too much is freed, half by
/// half.
///
/// # Safety
/// As of [`deallocate`] with `old`, for what is freed.
unsafe fn in_place(
    blocks: &impl Blocks,
    start: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Option<NonNull<[u8]>> {
    let arena = blocks.of();
    let mut order = order_of(arena, old).filter(|_| old.size() > 0 && new.size() > 0)?;
    let wanted = order_of(arena, new).filter(|&wanted| wanted <= order)?;
    if !start.as_ptr().addr().is_multiple_of(new.align()) {
        return None;
    }
    let pfn = arena.frame_at(start.as_ptr())?;
    // In a child, blocks are the parent's.
    while order > wanted && !arena.is_forked() {
        let half = Order::new(order.get() - 1)?;
        // SAFETY: by the caller's promise.
        let halved = unsafe { blocks.halve(pfn, order, half).is_ok() };
        if !halved {
            break;
        }
        // SAFETY: the second half is beyond what the buffer keeps.
        let freed = unsafe { blocks.give(pfn.add(half.pages()), half) };
        debug_assert!(freed.is_ok(), "a buffer's block was another one: {freed:?}");
        order = half;
    }
    Some(NonNull::slice_from_raw_parts(start, arena.page_bytes() << order.get()))
}

/// Gives a buffer another size, where it is or elsewhere; its first bytes stay. `None`: no memory, and nothing has
/// changed.
///
/// # Safety
/// As of [`deallocate`] with `old`, unless this returns `None`.
unsafe fn resize(
    blocks: &impl Blocks,
    start: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Option<NonNull<[u8]>> {
    // SAFETY: by the caller's promise.
    if let Some(same) = unsafe { in_place(blocks, start, old, new) } {
        return Some(same);
    }
    let to = allocate(blocks, new, Flags::NONE)?;
    // SAFETY: both are buffers of ours, of at least that size, and the old one is given up.
    unsafe {
        start.copy_to_nonoverlapping(to.cast(), old.size().min(new.size()));
        deallocate(blocks, start, old);
    }
    Some(to)
}

macro_rules! allocator {
    ($interface:ident, ($($generics:tt)*), $handle:ty) => {
        // SAFETY: a block is its buffer's until it is freed, and does not move. Clones of a handle, and moved ones,
        // free each other's blocks: they are one arena, which lives as long as any of them.
        unsafe impl<$($generics)*> $interface::alloc::Allocator for $handle {
            fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, $interface::alloc::AllocError> {
                allocate(self, layout, Flags::NONE).ok_or($interface::alloc::AllocError)
            }

            fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, $interface::alloc::AllocError> {
                allocate(self, layout, Flags::ZERO).ok_or($interface::alloc::AllocError)
            }

            unsafe fn deallocate(&self, start: NonNull<u8>, layout: Layout) {
                // SAFETY: by the caller's promise.
                unsafe { deallocate(self, start, layout) };
            }

            unsafe fn grow(
                &self,
                start: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $interface::alloc::AllocError> {
                // SAFETY: by the caller's promise.
                unsafe { resize(self, start, old, new) }.ok_or($interface::alloc::AllocError)
            }

            unsafe fn shrink(
                &self,
                start: NonNull<u8>,
                old: Layout,
                new: Layout,
            ) -> Result<NonNull<[u8]>, $interface::alloc::AllocError> {
                // SAFETY: by the caller's promise.
                unsafe { resize(self, start, old, new) }.ok_or($interface::alloc::AllocError)
            }
        }
    };
}

#[cfg(feature = "allocator_api2")]
allocator!(allocator_api2, (M: FrameUser), SharedArena<M>);
#[cfg(feature = "allocator_api2")]
allocator!(allocator_api2, (M: FrameUser), &Cpu<'_, M>);
#[cfg(feature = "allocator_api2_02")]
allocator!(allocator_api2_02, (M: FrameUser), SharedArena<M>);
#[cfg(feature = "allocator_api2_02")]
allocator!(allocator_api2_02, (M: FrameUser), &Cpu<'_, M>);
