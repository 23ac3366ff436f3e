//! A plain list behind a test-and-set lock, lock and list head on lines of their own: the simplest allocator there is,
//! to calibrate contention with.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use framewright::{Platform, Word};

use crate::platform::{Sim, SimWord};

/// The lock's word, in two lines of its own.
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

/// A list of blocks, linked through their descriptors. It lies in simulated memory.
#[derive(Clone, Copy, Debug)]
pub struct ListLocked<'a> {
    /// Lock and head.
    pub head: &'a Head,
    /// One word per block, a line apart: the next block + 1.
    pub blocks: &'a [Block],
}

/// A block's descriptor: a line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Block(SimWord);

impl ListLocked<'_> {
    /// Links all blocks, the first at the head.
    pub fn fill(&self) {
        for (n, block) in self.blocks.iter().enumerate() {
            let next = if n + 1 < self.blocks.len() { n as u64 + 2 } else { 0 };
            block.0.store(next, Relaxed);
        }
        self.head.first.0.store(1, Relaxed);
    }

    fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        while self.head.lock.0.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            Sim::relax();
        }
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
