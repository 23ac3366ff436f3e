//! The simplest allocator there is, to calibrate contention with: a list behind a test-and-set lock, lock and head in
//! lines of their own.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use framewright::Word;

use crate::platform::SimWord;

/// A word in two lines of its own.
#[derive(Debug)]
#[repr(C, align(128))]
struct Own(SimWord);

/// The list's head and its lock.
#[derive(Debug)]
#[repr(C)]
pub struct Head {
    lock: Own,
    /// First block + 1; 0 if there is none.
    first: Own,
}

/// A block's descriptor, a line: the next block + 1.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Block(SimWord);

/// A list of blocks, linked through their descriptors, in simulated memory.
#[derive(Clone, Copy, Debug)]
pub struct ListLocked<'a> {
    head: &'a Head,
    blocks: &'a [Block],
}

impl<'a> ListLocked<'a> {
    /// A list of all blocks, the first at the head.
    #[must_use]
    pub fn new(head: &'a Head, blocks: &'a [Block]) -> Self {
        for (block, next) in blocks.iter().zip(2..=blocks.len() as u64) {
            block.0.store(next, Relaxed);
        }
        head.first.0.store(u64::from(!blocks.is_empty()), Relaxed);
        Self { head, blocks }
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        // Without a pause between two attempts: with one the holder would take the lock several times in a row, and two
        // cores would need a third of what was measured.
        while self.head.lock.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {}
        let result = f();
        self.head.lock.0.store(0, Release);
        result
    }

    /// Takes the first block.
    #[must_use]
    pub fn alloc(&self) -> Option<u64> {
        self.locked(|| {
            let first = self.head.first.0.load(Relaxed).checked_sub(1)?;
            let next = self.blocks[first as usize].0.load(Relaxed);
            self.head.first.0.store(next, Relaxed);
            Some(first)
        })
    }

    /// Puts a block first.
    pub fn free(&self, block: u64) {
        self.locked(|| {
            let first = self.head.first.0.load(Relaxed);
            self.blocks[block as usize].0.store(first, Relaxed);
            self.head.first.0.store(block + 1, Relaxed);
        });
    }
}
