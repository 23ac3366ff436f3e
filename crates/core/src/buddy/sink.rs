//! Receivers of the blocks of a take, called under the zone lock.

use crate::units::{Ones, Pfn};

/// Receiver of the blocks of a take.
pub(crate) trait Sink {
    /// Number of further calls of [`add`](Self::add) that have room.
    fn room(&self) -> usize {
        usize::MAX
    }

    /// Receives the blocks that start at frame `first` plus the set bits of `starts`, each of which stands for `step`
    /// frames. Returns the number of bad ones.
    fn add(&mut self, first: Pfn, starts: u64, step: u64) -> u64;
}

/// Calls a function with each block, which returns whether the block is good.
pub(crate) struct Each<F>(pub(crate) F);

impl<F: FnMut(Pfn) -> bool> Sink for Each<F> {
    #[inline]
    fn add(&mut self, first: Pfn, starts: u64, step: u64) -> u64 {
        let mut bad = 0;
        for n in Ones(starts) {
            bad += u64::from(!self.0(first.add(n as u64 * step)));
        }
        bad
    }
}

/// Blocks to put on a list after the lock is released: no other CPU has them.
pub(crate) struct Pieces<'p> {
    /// The first `len` are valid.
    pieces: &'p mut [(Pfn, u64)],
    len: usize,
}

impl<'p> Pieces<'p> {
    pub(crate) const fn new(pieces: &'p mut [(Pfn, u64)]) -> Self {
        Self { pieces, len: 0 }
    }

    /// The words, in the order in which they were taken: a frame, and bits of the blocks that start from there on.
    pub(crate) fn words(&self) -> &[(Pfn, u64)] {
        &self.pieces[..self.len]
    }
}

impl Sink for Pieces<'_> {
    fn room(&self) -> usize {
        self.pieces.len() - self.len
    }

    #[inline]
    fn add(&mut self, first: Pfn, starts: u64, _: u64) -> u64 {
        self.pieces[self.len] = (first, starts);
        self.len += 1;
        0
    }
}
