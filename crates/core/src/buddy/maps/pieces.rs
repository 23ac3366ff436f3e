//! What was taken from pageblocks under the zone lock, to be laid out block by block.

use crate::frame::{Bits, WORDS, starts_at};
use crate::units::{Migratetype, Order, Pfn};

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

    /// Calls `each` with the first frame of every block, in the order in which they were taken.
    #[inline]
    pub(crate) fn each(&self, order: Order, mut each: impl FnMut(Pfn)) {
        self.pieces[..self.len].iter().for_each(|piece| piece.each(order, &mut each));
    }
}
