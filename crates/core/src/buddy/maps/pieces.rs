//! What was taken from pageblocks under the zone lock, to be laid out block by block.

use super::Wanted;
use crate::frame::{Bits, WORDS, starts_at};
use crate::units::{Migratetype, Order, PAGEBLOCK_PAGES, Pfn};

/// Blocks taken from one pageblock.
#[derive(Clone, Copy, Debug)]
pub(in crate::buddy) struct Piece {
    /// First frame of the pageblock.
    pub(super) start: Pfn,
    /// Its type.
    pub(in crate::buddy) list: Migratetype,
    /// How many blocks.
    pub(in crate::buddy) blocks: u64,
    /// Their frames.
    pub(super) bits: Bits,
}

impl Piece {
    /// Calls `each` with the first frame of every block, ascending.
    #[inline]
    pub(in crate::buddy) fn each(&self, order: Order, mut each: impl FnMut(Pfn)) {
        for (n, &bits) in self.bits.0.iter().enumerate() {
            let mut left = bits & starts_at(n, order);
            while left != 0 {
                each(self.start.add(n as u64 * 64 + u64::from(left.trailing_zeros())));
                left &= left - 1;
            }
        }
    }
}

/// Blocks taken from several pageblocks in one hold of the zone lock.
pub(crate) struct Pieces {
    /// The first `len` are there.
    pieces: [Piece; Self::ROOM],
    len: usize,
}

impl Pieces {
    /// Pageblocks: a few times as many as the largest refill takes from free ones.
    const ROOM: usize = 16;

    /// None.
    pub(crate) const fn new() -> Self {
        let none = Piece { start: Pfn(0), list: Migratetype::Movable, blocks: 0, bits: Bits([0; WORDS]) };
        Self { pieces: [none; Self::ROOM], len: 0 }
    }

    pub(in crate::buddy) const fn has_room(&self) -> bool {
        self.len < Self::ROOM
    }

    pub(in crate::buddy) fn push(&mut self, piece: Piece) {
        self.pieces[self.len] = piece;
        self.len += 1;
    }

    /// Adds so many whole pageblocks, one behind the other. There is room.
    pub(crate) fn push_run(&mut self, start: Pfn, count: u64, wanted: Wanted) {
        (0..count).for_each(|n| self.push_whole(start.add(n * PAGEBLOCK_PAGES), wanted));
    }

    /// Adds a whole pageblock. There is room.
    fn push_whole(&mut self, start: Pfn, wanted: Wanted) {
        let Wanted { order, migratetype: list, .. } = wanted;
        self.push(Piece { start, list, blocks: PAGEBLOCK_PAGES >> order.get(), bits: Bits::ALL });
    }

    /// Takes the last one back, a whole pageblock, and returns where it begins.
    pub(crate) fn pop(&mut self) -> Pfn {
        self.len -= 1;
        self.pieces[self.len].start
    }

    /// Calls `each` with the first frame of every block, in the order in which they were taken.
    #[inline]
    pub(crate) fn each(&self, order: Order, mut each: impl FnMut(Pfn)) {
        self.pieces[..self.len].iter().for_each(|piece| piece.each(order, &mut each));
    }
}
