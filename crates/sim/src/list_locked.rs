//! Plain lists, the simplest allocators there are, to calibrate contention with: one behind a test-and-set lock, lock and
//! list head on lines of their own; one whose head is exchanged by compare-and-swap; and one for each CPU.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use framewright::Word;

use crate::platform::SimWord;

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

/// Links the blocks from `first` to before `end` and puts the first at the head.
fn link(head: &SimWord, blocks: &[Block], first: usize, end: usize) {
    for (n, block) in (first..end).zip(&blocks[first..end]) {
        let next = if n + 1 < end { n as u64 + 2 } else { 0 };
        block.0.store(next, Relaxed);
    }
    head.store(if first < end { first as u64 + 1 } else { 0 }, Relaxed);
}

/// A list whose head is exchanged by compare-and-swap, without a lock.
#[derive(Clone, Copy, Debug)]
pub struct ListCas<'a> {
    /// First block + 1; the bits above `NUMBER` count exchanges, so that a compare-and-swap fails if the same block has left and
    /// come back (ABA).
    pub head: &'a Head,
    /// As of [`ListLocked`].
    pub blocks: &'a [Block],
}

/// Bits of a block's number in the head of a [`ListCas`].
const NUMBER: u32 = 32;
const NUMBERS: u64 = (1 << NUMBER) - 1;

impl ListCas<'_> {
    /// Links all blocks, the first at the head.
    pub fn fill(&self) {
        link(&self.head.first.0, self.blocks, 0, self.blocks.len());
    }

    /// Exchanges the head for what `next` makes of the first block + 1; `None` if that is `None`.
    fn exchange(&self, next: impl Fn(u64) -> Option<u64>) -> Option<u64> {
        let head = &self.head.first.0;
        let mut seen = head.load(Acquire);
        loop {
            let changed = (seen >> NUMBER).wrapping_add(1) << NUMBER | next(seen & NUMBERS)?;
            match head.compare_exchange(seen, changed, AcqRel, Acquire) {
                Ok(_) => return Some(seen & NUMBERS),
                Err(now) => seen = now,
            }
        }
    }

    /// Takes the first block.
    #[must_use]
    pub fn alloc(&self) -> Option<u64> {
        let taken =
            self.exchange(|first| Some(self.blocks[first.checked_sub(1)? as usize].0.load(Relaxed)))?;
        Some(taken - 1)
    }

    /// Puts a block first.
    pub fn free(&self, block: u64) {
        self.exchange(|first| {
            self.blocks[block as usize].0.store(first, Relaxed);
            Some(block + 1)
        });
    }
}

/// A list for each CPU: nobody waits for anybody. A block goes to the list of whoever frees it.
#[derive(Clone, Copy, Debug)]
pub struct ListLocal<'a> {
    /// One for each CPU.
    pub heads: &'a [Head],
    /// As of [`ListLocked`].
    pub blocks: &'a [Block],
}

impl ListLocal<'_> {
    /// Shares all blocks out evenly.
    pub fn fill(&self) {
        let cpus = self.heads.len();
        for (n, head) in self.heads.iter().enumerate() {
            let share = |n: usize| self.blocks.len() * n / cpus;
            link(&head.first.0, self.blocks, share(n), share(n + 1));
        }
    }

    /// Takes the first block of a CPU's list.
    #[must_use]
    pub fn alloc(&self, cpu: usize) -> Option<u64> {
        let head = &self.heads[cpu].first.0;
        let first = head.load(Relaxed).checked_sub(1)?;
        head.store(self.blocks[first as usize].0.load(Relaxed), Relaxed);
        Some(first)
    }

    /// Puts a block first on a CPU's list.
    pub fn free(&self, cpu: usize, block: u64) {
        let head = &self.heads[cpu].first.0;
        self.blocks[block as usize].0.store(head.load(Relaxed), Relaxed);
        head.store(block + 1, Relaxed);
    }
}

/// One of the three lists.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// [`ListLocked`].
    Locked,
    /// [`ListCas`].
    Cas,
    /// [`ListLocal`].
    Local,
}

/// A list of any kind.
#[derive(Clone, Copy, Debug)]
pub enum List<'a> {
    /// Behind a lock.
    Locked(ListLocked<'a>),
    /// Without one.
    Cas(ListCas<'a>),
    /// One for each CPU.
    Local(ListLocal<'a>),
}

impl<'a> List<'a> {
    /// A list of a kind, with `heads`, one for each CPU, of which those of one list for all use the first, and all blocks.
    ///
    /// # Panics
    /// Without a head.
    #[must_use]
    pub fn new(kind: Kind, heads: &'a [Head], blocks: &'a [Block]) -> Self {
        let head = &heads[0];
        match kind {
            Kind::Locked => {
                let list = ListLocked { head, blocks };
                list.fill();
                Self::Locked(list)
            }
            Kind::Cas => {
                let list = ListCas { head, blocks };
                list.fill();
                Self::Cas(list)
            }
            Kind::Local => {
                let list = ListLocal { heads, blocks };
                list.fill();
                Self::Local(list)
            }
        }
    }

    /// Takes a block, as a CPU.
    #[must_use]
    pub fn alloc(&self, cpu: usize) -> Option<u64> {
        match self {
            Self::Locked(list) => list.alloc(),
            Self::Cas(list) => list.alloc(),
            Self::Local(list) => list.alloc(cpu),
        }
    }

    /// Gives a block back, as a CPU.
    pub fn free(&self, cpu: usize, block: u64) {
        match self {
            Self::Locked(list) => list.free(block),
            Self::Cas(list) => list.free(block),
            Self::Local(list) => list.free(cpu, block),
        }
    }
}

impl ListLocked<'_> {
    /// Links all blocks, the first at the head.
    pub fn fill(&self) {
        link(&self.head.first.0, self.blocks, 0, self.blocks.len());
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
