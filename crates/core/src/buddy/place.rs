//! Free memory taken by address: a given range, all of it or nothing.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, Placement};
use crate::frame::{Bits, State, range_in_word};
use crate::platform::{Platform, Word};
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// The first block or frame of `pages` frames from `first` on that is not free in this zone, and its state.
    /// O(blocks).
    pub(crate) fn first_used(&self, first: Pfn, pages: u64) -> Option<(Pfn, State)> {
        let end = first.add(pages);
        let mut at = first;
        while at < end {
            let info = self.frames.info(at);
            if !info.is_present() || info.zone() != self.common.zone {
                return Some((at, State::Reserved));
            }
            match self.frames.find(at) {
                (head, State::Free { order, .. }) => at = head.add(order.pages()),
                used => return Some(used),
            }
        }
        None
    }

    /// Takes `pages` frames from `first` on, if all of them are free; larger blocks are split around them. Their head
    /// words are [`State::Body`] then. Isolated frames are taken, too. O(blocks in the range × orders).
    ///
    /// # Errors
    /// The first block that is not free, and its state. The state of the zone is unchanged then.
    pub(crate) fn take_range(&mut self, first: Pfn, pages: u64) -> Result<(), (Pfn, State)> {
        if let Some(used) = self.first_used(first, pages) {
            return Err(used);
        }
        let end = first.add(pages);
        let mut at = first;
        while at < end {
            let Some(next) = self.take_next(at, end) else {
                // A damaged list: its blocks are out of use now. The blocks taken so far go back.
                Order::tiles(first..at).for_each(|(pfn, piece)| self.free(pfn, piece, Placement::Tail));
                return Err(self.frames.find(at));
            };
            at = next;
        }
        Ok(())
    }

    /// Takes the free frames from `at` on, up to `end` or to the end of the block or pageblock. Returns the end.
    fn take_next(&mut self, at: Pfn, end: Pfn) -> Option<Pfn> {
        let (head, State::Free { order, .. }) = self.frames.find(at) else { return None };
        if self.frames.has_maps() {
            let start = at.block_start(PAGEBLOCK_ORDER);
            let upto = end.min(start.add(PAGEBLOCK_PAGES));
            let pages = upto.0 - at.0;
            if order < PAGEBLOCK_ORDER {
                self.take_bits_at(at, pages);
                return Some(upto);
            }
            let list = self.take_whole_at(start)?;
            self.account(list, -(pages as i64));
            if pages < PAGEBLOCK_PAGES {
                let left = Bits(core::array::from_fn(|n| !range_in_word(n, at.0 - start.0, pages)));
                self.set_bits(start, self.frames.info(start).migratetype(), None, left);
            }
            self.forget_reports(at, upto);
            return Some(upto);
        }
        let list = self.unlink_at(head, order)?;
        let block_end = head.add(order.pages());
        let upto = end.min(block_end);
        self.account(list, -((upto.0 - at.0) as i64));
        for (from, to) in [(head, at), (upto, block_end)] {
            self.put_rest(from, to, list);
        }
        if order >= PAGEBLOCK_ORDER {
            self.forget_reports(at, upto);
        }
        Some(upto)
    }

    /// Puts the frames from `from` to `to`, parts of a block that was on `list`, back there.
    pub(super) fn put_rest(&mut self, from: Pfn, to: Pfn, list: Migratetype) {
        Order::tiles(from..to).for_each(|(pfn, piece)| self.insert(pfn, piece, list, false));
    }

    /// Takes the part of the free block at `head` that no hook was told of: all of it, or one of its two pageblocks;
    /// nothing if that is smaller than `least`, which is at least the pageblock order. Its head words are
    /// [`State::Body`].
    pub(crate) fn take_unreported(&mut self, head: Pfn, least: Order) -> Option<(Pfn, Order)> {
        let is_free = |order: &Order| match (self.frames.has_maps(), *order == MAX_ORDER) {
            (true, true) => head.is_aligned(MAX_ORDER) && self.frames.is_pair(head),
            (true, false) => self.frames.free_whole(head).is_some(),
            (false, _) => self.frames.free_head(head, *order).is_some(),
        };
        let order = [MAX_ORDER, PAGEBLOCK_ORDER].into_iter().find(is_free)?;
        if self.frames.info(head).migratetype() == Migratetype::Isolate {
            return None;
        }
        let is_new = |pfn: Pfn| !self.frames.info(pfn).is_reported();
        let upper = head.add(PAGEBLOCK_PAGES);
        let (pfn, order) = match (is_new(head), order == MAX_ORDER && is_new(upper)) {
            (true, true) => (head, MAX_ORDER),
            (true, false) => (head, PAGEBLOCK_ORDER),
            (false, true) => (upper, PAGEBLOCK_ORDER),
            (false, false) => return None,
        };
        (order >= least && self.take_range(pfn, order.pages()).is_ok()).then_some((pfn, order))
    }

    /// Clears the reported bit of the pageblocks from `from` to `to`, because memory there is handed out.
    pub(super) fn forget_reports(&mut self, from: Pfn, to: Pfn) {
        if !self.common.reports() {
            return;
        }
        let mut at = from.block_start(PAGEBLOCK_ORDER);
        while at < to {
            let info = self.frames.info(at);
            if info.is_reported() {
                self.frames.set_info(at, info.reported(false));
            }
            at = at.add(PAGEBLOCK_PAGES);
        }
    }

    /// Frees a block that was taken to be reported. `told`: whether the hook was told of it. A pageblock with a frame
    /// that has become bad since does not count as reported: it is not free as a whole.
    pub(crate) fn put_reported(&mut self, pfn: Pfn, order: Order, told: bool) {
        for at in Pfn::pageblocks(pfn..pfn.add(order.pages())) {
            let info = self.frames.info(at);
            let is_good = !info.is_poisoned() || self.frames.first_mark(at, PAGEBLOCK_PAGES).is_none();
            self.frames.set_info(at, info.reported(told && is_good));
        }
        self.free(pfn, order, Placement::Tail);
    }

    /// Frees a block in a pageblock that has marked frames: these go out of use, the rest is freed. On `false` no
    /// marked frame is in the block, and the state is unchanged. O(pages).
    #[cold]
    pub(super) fn free_around_marks(&mut self, pfn: Pfn, order: Order, placement: Placement) -> bool {
        let end = pfn.add(order.pages());
        if self.frames.first_mark(pfn, order.pages()).is_none() {
            return false;
        }
        self.frames.set_state_of_marked(pfn, order, State::Body);
        let mut at = pfn;
        while at < end {
            let bad = self.frames.first_mark(at, end.0 - at.0);
            let upto = bad.unwrap_or(end);
            if let Some(bad) = bad {
                self.frames.withdraw(bad);
            }
            Order::tiles(at..upto).for_each(|(pfn, piece)| self.free(pfn, piece, placement));
            at = upto.add(1).min(end);
        }
        self.forget_marks(pfn, order.pages());
        true
    }

    /// Clears the mark of the pageblocks of `pages` frames from `pfn` on, all of one block, that have no marked frame
    /// in use, nor has the rest of the block after them. Likewise of the pageblock before them that may have been
    /// marked for them, as the first one of a block of the largest order. O(1024).
    pub(crate) fn forget_marks(&mut self, pfn: Pfn, pages: u64) {
        let end = pfn.add(pages).0.next_multiple_of(PAGEBLOCK_PAGES);
        // The presets' loads stay as when their figures were taken.
        let first = if self.frames.has_maps() { pfn.block_start(MAX_ORDER) } else { pfn };
        for start in Pfn::pageblocks(first..Pfn(end)) {
            let info = self.frames.info(start);
            let is_marked = info.is_present() && info.is_poisoned();
            if is_marked && self.frames.first_mark(start, end - start.0).is_none() {
                self.set_info(start, info, info.poisoned(false));
            }
        }
    }

    /// Marks a pageblock, so that frees into it look for marked frames.
    pub(crate) fn expect_marks(&mut self, pfn: Pfn) {
        let info = self.frames.info(pfn);
        self.set_info(pfn, info, info.poisoned(true));
    }

    /// Whether a free to the zone must check its pageblock: a pageblock is isolated, or has a bad frame in use.
    pub(crate) fn has_special_pageblocks(&self) -> bool {
        if !cfg!(feature = "mobility") {
            return false;
        }
        if self.common.is_cut() {
            self.common.special.load(Relaxed) != 0
        } else {
            self.isolated_pageblocks() != 0 || self.cold.marked_pageblocks.get() != 0
        }
    }

    /// Clears the bits of `pages` free frames from `first` on, all in one pageblock.
    fn take_bits_at(&mut self, first: Pfn, pages: u64) {
        let start = first.block_start(PAGEBLOCK_ORDER);
        let list = self.frames.info(start).migratetype();
        if self.frames.open_head(start).is_none() {
            // It has bits, so its head word is damaged.
            self.rebuild();
        }
        let head = self.frames.open_head(start);
        let mut left = self.map(start).bits();
        for (n, word) in left.0.iter_mut().enumerate() {
            *word &= !range_in_word(n, first.0 - start.0, pages);
        }
        self.account(list, -(pages as i64));
        self.set_bits(start, list, head, left);
    }
}
