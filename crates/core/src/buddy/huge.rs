//! Frees of whole pageblocks, in the most common case.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, Run};
use crate::frame::{FreeHead, State};
use crate::platform::{Platform, Word};
use crate::units::{MAX_ORDER, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Frees a block of the pageblock order, as [`put`](Self::put) does, in the most common case: with maps, where its pageblock
    /// is of an ordinary type, has no bad frame, and is as its buddy's pageblock is. `false`, and nothing has happened, in
    /// every other case.
    #[inline(never)]
    pub(super) fn put_pageblock(&mut self, pfn: Pfn) -> bool {
        let buddy = pfn.buddy(PAGEBLOCK_ORDER);
        let (Some((info, _)), Some((other, head))) = (self.frames.large(pfn), self.frames.large(buddy))
        else {
            return false;
        };
        if info != other || info.is_poisoned() || !info.is_ordinary() {
            return false;
        }
        let list = info.migratetype();
        if let Some(head) = FreeHead::of_order(head.load(Relaxed), PAGEBLOCK_ORDER) {
            self.frames.set_state(pfn, PAGEBLOCK_ORDER, State::Body);
            if self.unlink(buddy, PAGEBLOCK_ORDER, head) {
                self.insert(pfn.min(buddy), MAX_ORDER, list, false);
            } else {
                self.insert(pfn, PAGEBLOCK_ORDER, list, false);
            }
        } else {
            self.insert_on(pfn, PAGEBLOCK_ORDER, list, false);
        }
        self.account_as(PAGEBLOCK_PAGES as i64, 0);
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
        let upper = pfn.add(PAGEBLOCK_PAGES);
        let (Some((info, _)), Some((other, _))) = (self.frames.large(pfn), self.frames.large(upper)) else {
            return false;
        };
        if info != other || info.is_poisoned() || !info.is_ordinary() {
            return false;
        }
        self.frames.set_state(upper, PAGEBLOCK_ORDER, State::Body);
        self.insert_on(pfn, MAX_ORDER, info.migratetype(), false);
        self.account_as(MAX_ORDER.pages() as i64, 0);
        true
    }
}
