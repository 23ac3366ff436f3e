//! Operations on a whole pageblock: isolation and its end, another type, offlining.

use super::{Buddy, Placement};
use crate::frame::{BlockInfo, State};
use crate::platform::Platform;
use crate::units::{CpuId, MAX_ORDER, Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Isolates a pageblock: its free blocks leave the ordinary lists, and blocks freed into it join them. Returns the
    /// free pages that left; `None` if the pageblock was isolated already. `holder`: the CPU of a call that ends the
    /// isolation itself.
    pub(crate) fn isolate(&mut self, pfn: Pfn, holder: Option<CpuId>) -> Option<u64> {
        let info = self.frames.info(pfn);
        if info.migratetype() == Migratetype::Isolate || !cfg!(feature = "mobility") {
            return None;
        }
        self.split_across(pfn);
        self.set_info(pfn, info, info.isolated_by(holder));
        let gone = self.move_free(pfn, info.migratetype(), Migratetype::Isolate);
        self.merge_across(pfn);
        Some(gone)
    }

    /// Ends isolation: the pageblock has its earlier type and lists again. Returns the free pages that are available
    /// again; `None` if the pageblock was not isolated, or not by this `holder`.
    pub(crate) fn unisolate(&mut self, pfn: Pfn, holder: Option<CpuId>) -> Option<u64> {
        let info = self.frames.info(pfn);
        if info.migratetype() != Migratetype::Isolate || info.holder() != holder {
            return None;
        }
        let to = info.before_isolation();
        self.split_across(pfn);
        self.set_info(pfn, info, info.with_migratetype(to));
        let back = self.move_free(pfn, Migratetype::Isolate, to);
        self.merge_across(pfn);
        Some(back)
    }

    /// Changes the type of a pageblock and moves its free blocks to that type's lists. Returns the free pages; `None`
    /// if it is isolated, or not of type `from`.
    pub(crate) fn set_pageblock_type(
        &mut self,
        pfn: Pfn,
        from: Option<Migratetype>,
        to: Migratetype,
    ) -> Option<u64> {
        let current = self.frames.info(pfn).migratetype();
        if !cfg!(feature = "mobility")
            || current == Migratetype::Isolate
            || from.is_some_and(|from| from != current)
        {
            return None;
        }
        self.split_across(pfn);
        self.retype(pfn, to);
        let free = self.move_free(pfn, current, to);
        self.merge_across(pfn);
        Some(free)
    }

    /// Takes an isolated pageblock, whose blocks are all free or bad, out of the zone. Returns the number of its frames
    /// whose memory has failed: each keeps its mark, and the pageblock records it, so that none of them is handed out
    /// when the pageblock comes back. If blocks move one by one the marks are cleared, as in Linux before v6.2. O(512);
    /// with maps O(1), if all of it is free.
    pub(crate) fn take_offline(&mut self, pfn: Pfn) -> u64 {
        self.split_across(pfn);
        let info = self.frames.info(pfn);
        self.forget_bits(pfn, info);
        let whole = self.frames.has_maps() && self.take_whole_at(pfn).is_some();
        let failed = if whole { 0 } else { self.forget_blocks(pfn) };
        self.set_info(pfn, info, BlockInfo::ABSENT.poisoned(failed != 0 && self.frames.has_maps()));
        failed
    }

    /// Removes the free and bad blocks of a pageblock: the head word of each becomes [`State::Body`]. Returns the
    /// number of frames whose memory has failed, which stay marked with maps.
    fn forget_blocks(&mut self, pfn: Pfn) -> u64 {
        let mut failed = 0;
        for (head, state) in self.frames.blocks_of(pfn) {
            match state {
                State::Free { order, .. } | State::Quarantined { order } => {
                    let is_bad = matches!(state, State::Quarantined { .. });
                    let has_failed = is_bad && self.frames.is_withdrawn(head);
                    failed += u64::from(has_failed);
                    if has_failed && self.frames.has_maps() {
                        self.frames.set_state_of_marked(head, order, State::Body);
                    } else if self.unlink_at(head, order).is_none() {
                        self.frames.set_state(head, order, State::Body);
                    }
                }
                // Its bit was cleared before. Without maps every frame is in a block.
                State::Body => {}
                _ => break,
            }
        }
        failed
    }

    /// Moves the free memory of a pageblock, whose type has just changed, to the store of its new type. Returns the
    /// pages.
    fn move_free(&mut self, pfn: Pfn, from: Migratetype, to: Migratetype) -> u64 {
        if !self.frames.has_maps() {
            return self.move_free_blocks(pfn, to).free;
        }
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        if let Some(pages) = self.move_bits(start, from, to) {
            return pages;
        }
        let Some(from) = self.take_whole_at(start) else { return 0 };
        self.account(from, -(PAGEBLOCK_PAGES as i64));
        self.account(to, PAGEBLOCK_PAGES as i64);
        self.set_whole(start, to);
        PAGEBLOCK_PAGES
    }

    /// After a pageblock has changed its type: blocks may merge now across its border. With maps nothing merges.
    fn merge_across(&mut self, pfn: Pfn) {
        if self.frames.has_maps() {
            return;
        }
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        if self.unlink_at(start, PAGEBLOCK_ORDER).is_some() {
            self.put(start, PAGEBLOCK_ORDER, Placement::Tail, false);
        }
    }

    /// Halves a free order-10 block that spans the pageblock of `pfn` and its neighbour.
    fn split_across(&mut self, pfn: Pfn) {
        if self.frames.has_maps() {
            return;
        }
        let start = pfn.block_start(MAX_ORDER);
        if let Some(list) = self.unlink_at(start, MAX_ORDER) {
            self.insert(start.add(PAGEBLOCK_PAGES), PAGEBLOCK_ORDER, list, true);
            self.insert(start, PAGEBLOCK_ORDER, list, true);
        }
    }
}
