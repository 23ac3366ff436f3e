//! Frees of whole pageblocks, in the most common case.
//!
//! Their head words lie in the pageblocks' descriptors, side by side, and so do those of the blocks on the lists of these orders: a
//! link is followed without looking where the head word of its block may be.

use super::{Buddy, Ends, NONE, Run};
use crate::frame::{FreeHead, Pageblock};
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<'m, P: Platform, M> Buddy<'_, 'm, P, M> {
    /// The pageblock whose first frame is at `link`.
    #[inline(always)]
    fn at_link(&self, link: u64) -> Option<&'m Pageblock<P>> {
        self.pageblocks.get((link / PAGEBLOCK_PAGES) as usize)
    }

    /// Puts a free block of `order`, the pageblock order or the largest, at the head of a list, as [`insert`](Self::insert) does.
    #[inline(always)]
    fn push_large(&mut self, pfn: Pfn, order: Order, list: Migratetype) {
        let me = self.link_of(pfn);
        let area = &mut self.areas.areas[order.index()];
        let Ends { first, last } = area.lists[list.index()].get();
        let ends = match first {
            NONE => Ends { first: me.into(), last: me.into() },
            _ => Ends { first: me.into(), last },
        };
        let mut next = me;
        if first != NONE {
            next = first as u32;
            let mine = FreeHead::new(order, list, next, me);
            let Some(pageblock) = self.at_link(first) else { return self.insert(pfn, order, list, false) };
            let Some(head) = mine.behind(next, pageblock.head_word()) else {
                // The list is damaged.
                return self.insert(pfn, order, list, false);
            };
            pageblock.set_head_word(head.with_prev(me).word());
        }
        if let Some(pageblock) = self.at_link(me.into()) {
            pageblock.set_head_word(FreeHead::new(order, list, next, me).word());
        }
        let area = &mut self.areas.areas[order.index()];
        area.lists[list.index()].set(ends);
        area.nr_free.set(area.nr_free.get().wrapping_add(1));
    }

    /// Takes a free block of the pageblock order off its list, as [`unlink`](Self::unlink) does.
    #[inline(always)]
    fn unlink_pageblock(&mut self, pfn: Pfn, head: FreeHead) -> bool {
        let me = self.link_of(pfn);
        let (next, prev) = (head.next(), head.prev());
        if next != me
            && prev != me
            && let (Some(before), Some(behind)) = (self.at_link(prev.into()), self.at_link(next.into()))
            && let Some(of_before) = head.before(me, before.head_word())
            && let Some(of_behind) = head.behind(me, behind.head_word())
            && let Some(pageblock) = self.at_link(me.into())
        {
            before.set_head_word(of_before.with_next(next).word());
            behind.set_head_word(of_behind.with_prev(prev).word());
            pageblock.set_head_word(0);
            let nr_free = &mut self.areas.areas[PAGEBLOCK_ORDER.index()].nr_free;
            nr_free.set(nr_free.get().wrapping_sub(1));
            return true;
        }
        self.unlink(pfn, PAGEBLOCK_ORDER, head)
    }

    /// Frees a block of the pageblock order, as [`put`](Self::put) does, in the most common case: with maps, where its pageblock
    /// is of an ordinary type, has no bad frame, and is as its buddy's pageblock is. `false`, and nothing has happened, in
    /// every other case. The caller notes that a block came back.
    #[inline(never)]
    pub(super) fn put_pageblock(&mut self, pfn: Pfn) -> bool {
        let buddy = pfn.buddy(PAGEBLOCK_ORDER);
        let at = |pfn: Pfn| self.at_link(u64::from(self.link_of(pfn)));
        let (Some(pageblock), Some(other)) = (at(pfn), at(buddy)) else { return false };
        let info = pageblock.info();
        if info != other.info() || !info.is_plain() {
            return false;
        }
        let list = info.migratetype();
        if let Some(head) = FreeHead::of_order(other.head_word(), PAGEBLOCK_ORDER) {
            pageblock.set_head_word(0);
            if self.unlink_pageblock(buddy, head) {
                self.push_large(pfn.min(buddy), MAX_ORDER, list);
            } else {
                self.push_large(pfn, PAGEBLOCK_ORDER, list);
            }
        } else {
            self.push_large(pfn, PAGEBLOCK_ORDER, list);
        }
        self.account_put(PAGEBLOCK_PAGES as i64);
        true
    }

    /// The same for a run of several blocks, if they are whole pageblocks.
    #[inline(never)]
    pub(super) fn put_run(&mut self, run: Run) -> bool {
        if run.order == PAGEBLOCK_ORDER && run.count == 2 {
            return self.put_pair(run.first);
        }
        // If nothing of it is free, its map need not be looked at.
        run.is_pageblock() && self.frames.open_head(run.first).is_none() && self.put_pageblock(run.first)
    }

    /// The same for a run of two blocks of that order, which make one of the next.
    fn put_pair(&mut self, pfn: Pfn) -> bool {
        let at = |pfn: Pfn| self.at_link(u64::from(self.link_of(pfn)));
        let (Some(lower), Some(upper)) = (at(pfn), at(pfn.add(PAGEBLOCK_PAGES))) else { return false };
        let info = lower.info();
        if info != upper.info() || !info.is_plain() {
            return false;
        }
        upper.set_head_word(0);
        self.push_large(pfn, MAX_ORDER, info.migratetype());
        self.account_put(MAX_ORDER.pages() as i64);
        true
    }
}
