//! Free lists: blocks linked through their head words.
//!
//! Code that follows a link checks that the block there is free, of this order and on this list. If it is not, a head
//! word was overwritten: by a second free of the block at the same instant, bad memory, a stray pointer. Then the list
//! is given up: every block that can still be reached on it becomes [`State::Quarantined`], and is counted. No frame is
//! handed out because of a damaged link.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, Ends, NONE};
use crate::frame::{FreeHead, State};
use crate::platform::{Platform, Word};
use crate::units::{Migratetype, Order, Pfn};

pub(super) const EMPTY: Ends = Ends { first: NONE, last: NONE };

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    pub(super) fn ends(&self, order: Order, list: Migratetype) -> Ends {
        match self.areas.areas[order.index()].lists.get(list.index()) {
            Some(slot) => slot.get(),
            None => self.cold.isolated[order.index()].get(),
        }
    }

    pub(super) fn set_ends(&mut self, order: Order, list: Migratetype, ends: Ends) {
        match self.areas.areas[order.index()].lists.get_mut(list.index()) {
            Some(slot) => slot.set(ends),
            None => self.cold.isolated[order.index()].set(ends),
        }
    }

    fn count(&mut self, order: Order, list: Migratetype, change: i64) {
        if list != Migratetype::Isolate {
            let nr_free = &mut self.areas.areas[order.index()].nr_free;
            let blocks = nr_free.get().wrapping_add_signed(change);
            nr_free.set(blocks);
            if self.common.counters.are_areas_shown() {
                self.common.counters.show(order, blocks, list, self.ends(order, list).first != NONE);
            }
        }
    }

    #[inline]
    pub(super) fn pfn_of(&self, link: u64) -> Pfn {
        self.extent.range.start.add(link)
    }

    #[inline]
    pub(super) fn link_of(&self, pfn: Pfn) -> u32 {
        (pfn.0 - self.extent.range.start.0) as u32
    }

    /// Changes the head word of the block at `link` with `change`, if the block is on this list and its link `back`
    /// leads to `me`. Returns whether it did.
    #[inline]
    fn relink(
        &self,
        link: u32,
        (order, list): (Order, Migratetype),
        (back, me): (impl Fn(FreeHead) -> u32, u32),
        change: impl FnOnce(FreeHead) -> FreeHead,
    ) -> bool {
        let Some(word) = self.frames.head_in_map(self.pfn_of(u64::from(link)), order) else { return false };
        let head = FreeHead::of_order(word.load(Relaxed), order);
        let Some(head) = head.filter(|&head| head.list() == list && back(head) == me) else { return false };
        word.store(change(head).word(), Relaxed);
        true
    }

    /// Puts a block on a list.
    #[inline]
    pub(super) fn insert(&mut self, pfn: Pfn, order: Order, list: Migratetype, tail: bool) {
        let me = self.link_of(pfn);
        let mut ends = self.ends(order, list);
        let kind = (order, list);
        if ends.first != NONE {
            // The first block's back link and the last block's forward link lead to themselves.
            let (first, last) = (ends.first as u32, ends.last as u32);
            let linked = if tail {
                self.relink(last, kind, (FreeHead::next, last), |head| head.with_next(me))
            } else {
                self.relink(first, kind, (FreeHead::prev, first), |head| head.with_prev(me))
            };
            if !linked {
                self.give_up(order, list);
                ends = EMPTY;
            }
        }
        let (next, prev);
        if ends.first == NONE {
            (next, prev) = (me, me);
            ends = Ends { first: u64::from(me), last: u64::from(me) };
        } else if tail {
            (next, prev) = (me, ends.last as u32);
            ends.last = u64::from(me);
        } else {
            (next, prev) = (ends.first as u32, me);
            ends.first = u64::from(me);
        }
        self.frames.head(pfn, order).store(FreeHead::new(order, list, next, prev).word(), Relaxed);
        self.set_ends(order, list, ends);
        self.count(order, list, 1);
    }

    /// Takes a block off its list and leaves its head word as [`State::Body`]. `false` if its neighbours, or the ends
    /// of the list, do not agree that it is there: then the list is given up, and the block with it.
    #[inline]
    #[must_use]
    pub(super) fn unlink(&mut self, pfn: Pfn, order: Order, head: FreeHead) -> bool {
        let me = self.link_of(pfn);
        let (next, prev, list) = (head.next(), head.prev(), head.list());
        let kind = (order, list);
        let is_between = next != me && prev != me;
        let mut ends = if is_between { EMPTY } else { self.ends(order, list) };
        let is_first = prev != me || ends.first == u64::from(me);
        let is_last = next != me || ends.last == u64::from(me);
        let (before, behind) = (if prev == me { next } else { prev }, if next == me { prev } else { next });
        let intact = is_first
            && is_last
            && (prev == me || self.relink(prev, kind, (FreeHead::next, me), |head| head.with_next(behind)))
            && (next == me || self.relink(next, kind, (FreeHead::prev, me), |head| head.with_prev(before)));
        if intact && !is_between {
            match (prev == me, next == me) {
                (true, true) => ends = EMPTY,
                (true, false) => ends.first = u64::from(next),
                _ => ends.last = u64::from(prev),
            }
            self.set_ends(order, list, ends);
        }
        if !intact {
            self.give_up(order, list);
            if self.frames.free_head(pfn, order).is_some() {
                self.quarantine(pfn, order, list);
            }
            return false;
        }
        self.frames.set_state(pfn, order, State::Body);
        self.count(order, list, -1);
        true
    }

    /// Takes the block of exactly `order` at `pfn` off its list, if there is one.
    pub(super) fn unlink_at(&mut self, pfn: Pfn, order: Order) -> Option<Migratetype> {
        let head = self.frames.free_head(pfn, order)?;
        self.unlink(pfn, order, head).then(|| head.list())
    }

    /// Takes the first block off a list.
    pub(super) fn unlink_first(&mut self, order: Order, list: Migratetype) -> Option<Pfn> {
        let first = self.ends(order, list).first;
        if first == NONE {
            return None;
        }
        let pfn = self.pfn_of(first);
        match self.frames.free_head(pfn, order).filter(|head| head.list() == list) {
            Some(head) => self.unlink(pfn, order, head).then_some(pfn),
            None => {
                self.give_up(order, list);
                None
            }
        }
    }

    /// Takes every block that can be reached on a damaged list out of use. O(blocks).
    #[cold]
    pub(super) fn give_up(&mut self, order: Order, list: Migratetype) {
        let Ends { first, last } = self.ends(order, list);
        self.set_ends(order, list, EMPTY);
        for (start, onward) in [(first, FreeHead::next as fn(FreeHead) -> u32), (last, FreeHead::prev)] {
            let mut at = start;
            // Each step leaves a block that is no longer free, so this ends.
            while at != NONE
                && let pfn = self.pfn_of(at)
                && let Some(head) = self.frames.free_head(pfn, order)
                && head.list() == list
            {
                self.quarantine(pfn, order, list);
                at = u64::from(onward(head));
            }
        }
    }

    /// Takes a free block that is no longer on a list out of use.
    fn quarantine(&mut self, pfn: Pfn, order: Order, list: Migratetype) {
        self.frames.set_state(pfn, order, State::Quarantined { order });
        self.count(order, list, -1);
        self.account(list, -(order.pages() as i64));
        let mut counts = self.cold.counts.get();
        counts.damaged_pages += order.pages();
        self.cold.counts.set(counts);
    }

    /// Moves the free block at `pfn` to the tail of another type's list. Returns its pages, 0 if it is not free. Counts
    /// the change if only one of the two lists counts as free.
    pub(super) fn move_to(&mut self, pfn: Pfn, to: Migratetype) -> u64 {
        let (_, State::Free { order, .. }) = self.frames.find(pfn) else { return 0 };
        let Some(from) = self.unlink_at(pfn, order) else { return 0 };
        self.insert(pfn, order, to, true);
        self.account(from, -(order.pages() as i64));
        self.account(to, order.pages() as i64);
        order.pages()
    }
}
