//! A heap that grows by blocks of an arena and gives them back: `dlmalloc`.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use std::sync::{Mutex, PoisonError};

use dlmalloc::Allocator;
use framewright_host::{Migratetype, SharedArena, SharedBlock};

/// The segments of a heap. It frees none but those that it has handed out itself: `free` may be called by safe code.
#[derive(Debug)]
pub struct Segments {
    arena: SharedArena,
    blocks: Mutex<Vec<SharedBlock>>,
}

impl Segments {
    /// No segment yet, of this arena.
    pub fn new(arena: SharedArena) -> Self {
        Self { arena, blocks: Mutex::default() }
    }
}

// SAFETY: each segment is a block that is the heap's until it frees it; the heap has its `Segments` alone.
unsafe impl Allocator for Segments {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let order = self.arena.order_for(size);
        let block = order.and_then(|order| self.arena.alloc_block(order, Migratetype::Unmovable).ok());
        let Some((block, memory)) = block.and_then(|block| block.as_ptr().map(|memory| (block, memory)))
        else {
            return (core::ptr::null_mut(), 0, 0);
        };
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).push(block);
        (memory.cast().as_ptr(), memory.len(), 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        core::ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, start: *mut u8, size: usize) -> bool {
        // Two segments that the heap has joined are refused, because no block has their size.
        let is_it = |block: &SharedBlock| {
            block.as_ptr().is_some_and(|memory| memory.cast().as_ptr() == start && memory.len() == size)
        };
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let at = blocks.iter().position(is_it);
        at.map(|at| blocks.swap_remove(at)).is_some()
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        false
    }

    fn page_size(&self) -> usize {
        self.arena.page_bytes()
    }
}
