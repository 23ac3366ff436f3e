//! The global allocator of a program: `rlsf`, whose pools are blocks of an arena.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::ptr::NonNull;
use std::alloc::System;
use std::sync::{Mutex, OnceLock, PoisonError};

use framewright_host::{Arena, Migratetype, PAGE_BYTES, SharedArena};
use rlsf::{FlexSource, FlexTlsf};

static ARENA: OnceLock<SharedArena> = OnceLock::new();
thread_local!(
    /// Whether this thread is inside the allocator: what it allocates then comes from the system.
    static INSIDE: Cell<bool> = const { Cell::new(false) }
);

/// Where the heap gets its pools.
#[derive(Debug)]
pub struct Pools;

// SAFETY: each block is new, does not move, and has the size that is returned.
unsafe impl FlexSource for Pools {
    unsafe fn alloc(&mut self, min_size: usize) -> Option<NonNull<[u8]>> {
        let arena = ARENA.get_or_init(|| {
            Arena::builder().bytes(256 << 20).silent().build_shared().expect("address space")
        });
        let order = arena.arena().order_for(min_size.max(1 << 20))?;
        let pfn = arena.alloc(order, Migratetype::Unmovable).ok()?;
        Some(NonNull::slice_from_raw_parts(arena.arena().address(pfn)?, PAGE_BYTES << order.get()))
    }

    fn min_align(&self) -> usize {
        PAGE_BYTES
    }
}

/// A heap for a program's `#[global_allocator]`.
#[derive(Debug)]
pub struct Global(Mutex<FlexTlsf<Pools, u32, u32, 28, 16>>);

impl Global {
    /// A heap without a pool.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self(Mutex::new(FlexTlsf::new(Pools)))
    }

    /// Base pages that the heap has taken from the arena.
    #[must_use]
    pub fn pages(&self) -> u64 {
        ARENA.get().map_or(0, |arena| arena.arena().frames().end.0 - arena.arena().allocator().free_pages())
    }
}

// SAFETY: the heap keeps the contract; what the system allocator has handed out goes back to it.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if INSIDE.replace(true) {
            // SAFETY: by the caller's promise.
            return unsafe { System.alloc(layout) };
        }
        let block = self.0.lock().unwrap_or_else(PoisonError::into_inner).allocate(layout);
        INSIDE.set(false);
        // Mostly more than the largest block: the system allocates it.
        // SAFETY: by the caller's promise.
        block.map_or_else(|| unsafe { System.alloc(layout) }, NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        match NonNull::new(start).filter(|_| ARENA.get().is_some_and(|a| a.arena().frame_at(start).is_some()))
        {
            // SAFETY: it lies in the arena, so this heap has handed it out, with this layout.
            Some(block) => unsafe {
                self.0.lock().unwrap_or_else(PoisonError::into_inner).deallocate(block, layout.align());
            },
            // SAFETY: it does not, so the system has.
            None => unsafe { System.dealloc(start, layout) },
        }
    }
}
