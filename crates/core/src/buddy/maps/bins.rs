//! Bins: lists of open pageblocks of equal type, fullness class and largest free block. They are an index: all their
//! content follows from maps and pageblock types.
//!
//! Most pageblocks are between two others. Such a pageblock enters and leaves with accesses to its neighbours' head
//! words only and, at the end where it enters, to the bin.

use super::{BINS, Buddy, TYPES, bin_of};
use crate::frame::{Bits, OpenHead, Pageblock, State};
use crate::platform::Platform;
use crate::sync::Slot;
use crate::units::{Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

pub(super) const NONE: u32 = u32::MAX;

/// First and last pageblock of a bin, as numbers from the zone's first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    pub(super) first: u32,
    pub(super) last: u32,
}

const EMPTY: Ends = Ends { first: NONE, last: NONE };

/// The bins of a zone, by type, fullness and largest free block.
#[repr(C)]
pub(in crate::buddy) struct Bins<P: Platform> {
    /// By type: a bit for each bin that has a pageblock. At the start: see `Cold::bins_offset`.
    pub(super) occupied: [Slot<P, u64>; TYPES],
    pub(super) ends: [[Slot<P, Ends>; BINS]; TYPES],
}

impl<P: Platform> Bins<P> {
    pub(in crate::buddy) fn new() -> Self {
        Self {
            occupied: core::array::from_fn(|_| Slot::new(0)),
            ends: core::array::from_fn(|_| core::array::from_fn(|_| Slot::new(EMPTY))),
        }
    }
}

impl<'m, P: Platform, M> Buddy<'_, 'm, P, M> {
    pub(super) fn number_of(&self, pfn: Pfn) -> u32 {
        ((pfn.0 - self.extent.range.start.0) / PAGEBLOCK_PAGES) as u32
    }

    pub(super) fn pageblock_of(&self, number: u32) -> Pfn {
        self.extent.range.start.add(u64::from(number) * PAGEBLOCK_PAGES)
    }

    /// The open pageblock with the number in a link, and its head word; `None` if there is no such pageblock.
    #[inline(always)]
    fn open_at(&self, number: u32) -> Option<(&'m Pageblock<P>, OpenHead)> {
        let pageblock = self.pageblocks.get(number as usize)?;
        Some((pageblock, OpenHead::of(pageblock.head_word())?))
    }

    /// Puts a pageblock into its bin: at the head, where the next allocation finds it, or at the tail.
    #[inline]
    pub(super) fn enter(&mut self, pfn: Pfn, list: Migratetype, free: u32, largest: u8, tail: bool) {
        let (me, bin) = (self.number_of(pfn), bin_of(free, largest));
        let Ends { first, last } = self.cold.bins.ends[list as usize][bin].get();
        let (mut next, mut prev, mut ends) = (me, me, Ends { first: me, last: me });
        if first == NONE {
            let occupied = &mut self.cold.bins.occupied[list as usize];
            occupied.set(occupied.get() | 1 << bin);
            self.note_changed(list);
        } else {
            let Some((neighbour, head)) = self.open_at(if tail { last } else { first }) else {
                return self.rebuild();
            };
            let linked = if tail { head.with_next(me) } else { head.with_prev(me) };
            neighbour.set_head_word(linked.word());
            if tail {
                (prev, ends.first) = (last, first);
            } else {
                (next, ends.last) = (first, last);
            }
        }
        self.cold.bins.ends[list as usize][bin].set(ends);
        self.set_head(me, OpenHead::new(free, largest, next, prev).word());
    }

    /// Writes the head word of a pageblock that is open, or no longer; 0 is [`State::Body`].
    pub(super) fn set_head(&self, number: u32, word: u64) {
        if let Some(pageblock) = self.pageblocks.get(number as usize) {
            pageblock.set_head_word(word);
        }
    }

    /// Takes a pageblock out of its bin. Its head word stays. `false` if a link was damaged: all bins were rebuilt
    /// then, and this pageblock is in its bin again, or no longer free.
    #[must_use]
    pub(super) fn leave(&mut self, pfn: Pfn, list: Migratetype, head: OpenHead) -> bool {
        let is_gone = self.unlink_open(self.number_of(pfn), list, head).is_some();
        if !is_gone {
            self.rebuild();
        }
        is_gone
    }

    /// Links the neighbours of a pageblock with each other. `None` if they, or the ends of its bin, do not lead to it;
    /// nothing has changed then.
    #[inline]
    fn unlink_open(&mut self, me: u32, list: Migratetype, head: OpenHead) -> Option<()> {
        let (next, prev) = (head.next(), head.prev());
        // `Some(None)`: there is none.
        let neighbour = |number: u32, back: fn(OpenHead) -> u32| {
            if number == me {
                return Some(None);
            }
            self.open_at(number).filter(|&(_, head)| back(head) == me).map(Some)
        };
        let (before, behind) = (neighbour(prev, OpenHead::next)?, neighbour(next, OpenHead::prev)?);
        if next == me || prev == me {
            // A largest free block of a pageblock or more is damage, too.
            let bin = bin_of(head.free(), head.largest());
            let slot = self.cold.bins.ends[list as usize].get_mut(bin)?;
            let Ends { first, last } = slot.get();
            if (prev == me && first != me) || (next == me && last != me) {
                return None;
            }
            let is_empty = next == prev;
            slot.set(match prev == me {
                _ if is_empty => EMPTY,
                true => Ends { first: next, last },
                false => Ends { first, last: prev },
            });
            if is_empty {
                let occupied = &mut self.cold.bins.occupied[list as usize];
                occupied.set(occupied.get() & !(1 << bin));
                self.note_changed(list);
            }
        }
        if let Some((pageblock, of_before)) = before {
            // The last one leads to itself.
            pageblock.set_head_word(of_before.with_next(if next == me { prev } else { next }).word());
        }
        if let Some((pageblock, of_behind)) = behind {
            pageblock.set_head_word(of_behind.with_prev(if prev == me { next } else { prev }).word());
        }
        Some(())
    }

    /// Rebuilds all bins from maps and pageblock types, and counts this. O(pageblocks).
    #[cold]
    #[inline(never)]
    pub(in crate::buddy) fn rebuild(&mut self) {
        self.must_mend();
        for list in 0..TYPES {
            self.cold.bins.occupied[list].set(0);
            self.cold.bins.ends[list].iter_mut().for_each(|ends| ends.set(EMPTY));
        }
        self.count_in(|counts| counts.rebuilt_bins += 1);
        Migratetype::ALL.into_iter().for_each(|list| self.note_changed(list));
        let mut at = self.extent.range.start;
        while at < self.extent.range.end {
            let info = self.frames.info(at);
            if info.is_present() {
                let bits = self.map(at).bits();
                match bits.largest() {
                    // The caller that set the last bit closes the pageblock next.
                    Some(_) if bits == Bits::ALL => {}
                    Some(largest) => self.enter(at, info.migratetype(), bits.count() as u32, largest, true),
                    None if self.frames.open_head(at).is_some() => {
                        self.frames.set_state(at, PAGEBLOCK_ORDER, State::Body);
                    }
                    None => {}
                }
            }
            at = at.add(PAGEBLOCK_PAGES);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddy::testing::Store;

    const LIST: usize = Migratetype::Movable as usize;

    /// Open pageblocks in one bin.
    fn store(pageblocks: u64) -> Store {
        let mut store = Store::new(pageblocks, true);
        (0..pageblocks).for_each(|n| store.free(n, [3, 7]));
        store
    }

    /// One end of a bin that names another pageblock is damage, whether the other end is right or not.
    #[test]
    fn a_bin_whose_end_names_another_pageblock_is_made_anew() {
        for (pageblocks, is_last, wrong) in [(3, false, 2), (3, true, 0), (1, false, 5), (1, true, 5)] {
            let mut store = store(pageblocks);
            store.with(|buddy| {
                let ends = buddy.cold.bins.ends[LIST][0].get();
                let number = if is_last { ends.last } else { ends.first };
                let damaged =
                    if is_last { Ends { last: wrong, ..ends } } else { Ends { first: wrong, ..ends } };
                assert_ne!(number, wrong);
                buddy.cold.bins.ends[LIST][0].set(damaged);
                let at = buddy.pageblock_of(number);
                let head = buddy.frames.open_head(at).expect("it is open");
                assert!(!buddy.leave(at, Migratetype::Movable, head));
                assert_eq!(buddy.counts().rebuilt_bins, 1);
            });
            assert_eq!(store.check(), 2 * pageblocks);
        }
    }

    #[test]
    fn the_bin_that_a_pageblock_enters_is_occupied() {
        let mut store = Store::new(1, true);
        store.with(|buddy| buddy.cold.bins.occupied[LIST].set(u64::MAX >> 1));
        store.free(0, [3, 7]);
        store.with(|buddy| assert_eq!(buddy.occupied(Migratetype::Movable), u64::MAX >> 1));
    }

    /// What is behind the store's end is another one's.
    #[test]
    fn bins_are_made_anew_up_to_the_end() {
        let mut store = store(3);
        store.extent.range.end = Store::pageblock(2);
        store.with(|buddy| buddy.rebuild());
        store.with(|buddy| {
            let open = buddy.open_pageblocks(Migratetype::Movable);
            assert!(open.eq([Store::pageblock(0), Store::pageblock(1)]));
        });
    }
}
