//! The global allocator of a program: `rlsf`, whose pools are blocks of an arena.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use std::alloc::System;
use std::sync::{Mutex, OnceLock, PoisonError};

use framewright_host::{Migratetype, SharedArena};
use rlsf::{FlexSource, FlexTlsf};

/// Once this is set, memory is the arena's, which is [`silent`](framewright_host::ArenaBuilder::silent); before, the system's.
pub static ARENA: OnceLock<SharedArena> = OnceLock::new();

/// Where the heap gets its pools.
#[derive(Debug)]
pub struct Pools;

// SAFETY: each block is new, does not move, and has the size that is returned.
unsafe impl FlexSource for Pools {
    unsafe fn alloc(&mut self, min_size: usize) -> Option<NonNull<[u8]>> {
        let arena = ARENA.get()?;
        let order = arena.arena().order_for(min_size.max(1 << 20))?;
        let pfn = arena.alloc(order, Migratetype::Unmovable).ok()?;
        Some(NonNull::slice_from_raw_parts(
            arena.arena().address(pfn)?,
            arena.arena().page_bytes() << order.get(),
        ))
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
}

// SAFETY: the heap keeps the contract; what the system allocator has handed out goes back to it.
unsafe impl GlobalAlloc for Global {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = self.0.lock().unwrap_or_else(PoisonError::into_inner).allocate(layout);
        // Mostly more than the largest block: the system allocates it.
        // SAFETY: by the caller's promise.
        block.map_or_else(|| unsafe { System.alloc(layout) }, NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let ours = ARENA.get().is_some_and(|arena| arena.arena().frame_at(start).is_some());
        let Some(block) = NonNull::new(start).filter(|_| ours) else {
            // SAFETY: it does not lie in the arena, so the system has given it.
            return unsafe { System.dealloc(start, layout) };
        };
        // SAFETY: it does, so this heap has handed it out, with this layout.
        unsafe { self.0.lock().unwrap_or_else(PoisonError::into_inner).deallocate(block, layout.align()) };
    }
}
