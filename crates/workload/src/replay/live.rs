//! The traced blocks in use, found by any of their frames.

use std::collections::BTreeMap;

/// The lifetime that a block of the trace is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// First frame of the block as it was allocated.
    pub start: u64,
    /// Its order then.
    pub order: u8,
    /// Its lifetime.
    pub slot: u32,
}

/// Frames that [`Live::release`] took off the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// A block as it was allocated.
    Whole(Owner),
    /// A smaller block within one, at this frame and of this order.
    Part(Owner, u64, u8),
    /// Frames that were not in use.
    Unknown(u64, u8),
}

/// A block, or what is left of one: once a part is freed, the rest lies in several.
#[derive(Clone, Copy, Debug)]
struct Piece {
    order: u8,
    owner: Owner,
}

/// Blocks in use, or what is left of them. Pieces by their first frame: they do not overlap, and each is aligned to its
/// size.
#[derive(Debug, Default)]
pub struct Live {
    pieces: BTreeMap<u64, Piece>,
    frames: u64,
}

impl Live {
    /// Frames in use.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        self.frames
    }

    /// Adds a block, aligned to its size, over frames that are not in use.
    pub fn insert(&mut self, start: u64, order: u8, slot: u32) {
        debug_assert!(!self.any(start, order), "frames in use are released first");
        self.pieces.insert(start, Piece { order, owner: Owner { start, order, slot } });
        self.frames += 1 << order;
    }

    /// Whether a frame of the aligned range is in use.
    #[must_use]
    pub fn any(&self, pfn: u64, order: u8) -> bool {
        self.covering(pfn).is_some() || self.pieces.range(pfn..pfn + (1 << order)).next().is_some()
    }

    /// Takes an aligned range off the books: one item for each block in it, each part of a larger one, and each
    /// range that is not in use, in order of address.
    #[must_use]
    pub fn release(&mut self, pfn: u64, order: u8) -> Vec<Released> {
        let mut released = Vec::with_capacity(1);
        self.release_range(pfn, order, &mut released);
        released
    }

    /// Takes everything off the books, in order of address.
    #[must_use]
    pub fn release_all(&mut self) -> Vec<Released> {
        self.frames = 0;
        let pieces = core::mem::take(&mut self.pieces).into_iter();
        pieces.map(|(start, piece)| piece.released(start, piece.order)).collect()
    }

    fn release_range(&mut self, pfn: u64, order: u8, into: &mut Vec<Released>) {
        match self.covering(pfn) {
            // Both are aligned, so the piece holds the whole range.
            Some((start, piece)) if piece.order >= order => {
                self.pieces.remove(&start);
                self.split(start, piece, pfn, order);
                self.frames -= 1 << order;
                into.push(piece.released(pfn, order));
            }
            None if !self.any(pfn, order) => into.push(Released::Unknown(pfn, order)),
            _ => {
                self.release_range(pfn, order - 1, into);
                self.release_range(pfn + (1 << (order - 1)), order - 1, into);
            }
        }
    }

    /// The piece that the frame belongs to, and its start.
    fn covering(&self, pfn: u64) -> Option<(u64, Piece)> {
        let (&start, &piece) = self.pieces.range(..=pfn).next_back()?;
        (pfn < start + (1 << piece.order)).then_some((start, piece))
    }

    /// Puts back all of a removed piece but the range.
    fn split(&mut self, start: u64, piece: Piece, pfn: u64, order: u8) {
        for half in order..piece.order {
            // The half that does not hold the range, at each order on the way up to the piece.
            let buddy = (pfn >> half ^ 1) << half;
            debug_assert!(buddy >= start, "halves of the piece");
            self.pieces.insert(buddy, Piece { order: half, ..piece });
        }
    }
}

impl Piece {
    fn released(self, pfn: u64, order: u8) -> Released {
        if order == self.owner.order {
            Released::Whole(self.owner)
        } else {
            Released::Part(self.owner, pfn, order)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Released::{Part, Unknown, Whole};

    #[test]
    fn whole_blocks() {
        let mut live = Live::default();
        live.insert(8, 3, 0);
        live.insert(16, 0, 1);
        assert_eq!(live.frames(), 9);
        assert_eq!(live.release(8, 3), [Whole(Owner { start: 8, order: 3, slot: 0 })]);
        assert_eq!(live.release(8, 3), [Unknown(8, 3)]);
        assert_eq!(live.release_all(), [Whole(Owner { start: 16, order: 0, slot: 1 })]);
        assert_eq!(live.frames(), 0);
    }

    #[test]
    fn parts_until_nothing_is_left() {
        let mut live = Live::default();
        let owner = Owner { start: 16, order: 2, slot: 7 };
        live.insert(16, 2, 7);
        assert_eq!(live.release(18, 0), [Part(owner, 18, 0)]);
        assert_eq!(live.release(18, 0), [Unknown(18, 0)]);
        // The freed frame is in another block by now; then the whole is freed.
        live.insert(18, 0, 8);
        let second = Owner { start: 18, order: 0, slot: 8 };
        assert_eq!(live.release(16, 2), [Part(owner, 16, 1), Whole(second), Part(owner, 19, 0)]);
        assert_eq!((live.frames(), live.any(16, 2)), (0, false));
    }

    #[test]
    fn a_free_larger_than_what_is_known() {
        let mut live = Live::default();
        live.insert(32, 0, 0);
        live.insert(34, 1, 1);
        assert_eq!(
            live.release(32, 3),
            [
                Whole(Owner { start: 32, order: 0, slot: 0 }),
                Unknown(33, 0),
                Whole(Owner { start: 34, order: 1, slot: 1 }),
                Unknown(36, 2)
            ]
        );
        assert_eq!(live.frames(), 0);
    }

    #[test]
    fn the_rest_of_parts_is_released_at_the_end() {
        let mut live = Live::default();
        live.insert(1024, 9, 3);
        _ = live.release(1024 + 511, 0);
        let owner = Owner { start: 1024, order: 9, slot: 3 };
        let rest = live.release_all();
        assert_eq!(rest[0], Part(owner, 1024, 8));
        assert_eq!(rest.len(), 9);
        assert_eq!(live.frames(), 0);
    }
}
