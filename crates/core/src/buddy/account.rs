//! The counters of a zone. The free lists own them: whoever moves a block counts it there, and no caller does.

use core::sync::atomic::Ordering::Relaxed;

use super::Buddy;
use crate::frame::BlockInfo;
use crate::platform::{Platform, Word};
use crate::units::{Migratetype, PAGEBLOCK_PAGES, Pfn};

/// Zone counters, in base pages. Written by the holder of the zone lock, read by anyone.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Counters<P: Platform> {
    /// Free pages on the buddy lists, isolated ones not counted.
    pub(crate) free: P::Word,
    /// Those of them in CMA pageblocks.
    pub(crate) free_cma: P::Word,
    /// Pages the zone was given.
    pub(crate) managed: P::Word,
    /// Pages of memory the zone has, whether given to it or reserved.
    pub(crate) present: P::Word,
}

impl<P: Platform> Counters<P> {
    pub(crate) fn new() -> Self {
        let zero = || P::Word::new(0);
        Self { free: zero(), free_cma: zero(), managed: zero(), present: zero() }
    }
}

/// Pages that became free, or (if negative) stopped being free, in one hold of the zone lock. The counters learn of
/// them when the hold ends: once, however many blocks moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pending {
    /// Base pages.
    free: i64,
    /// Those of them in CMA pageblocks.
    cma: i64,
    /// Whether blocks were taken or freed at all.
    touched: bool,
    /// Whether a block came back.
    freed: bool,
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Counts `pages` that came (or, if negative, went) on lists of type `list`. Isolated pages do not count.
    #[inline]
    pub(super) fn account(&mut self, list: Migratetype, pages: i64) {
        if list != Migratetype::Isolate {
            self.account_as(pages, if list == Migratetype::Cma { pages } else { 0 });
        }
    }

    #[inline]
    pub(super) fn account_as(&mut self, free: i64, cma: i64) {
        self.pending.free += free;
        self.pending.cma += cma;
        self.pending.touched = true;
    }

    /// Notes that a block came back: whoever gave the zone up may hope again.
    #[inline]
    pub(super) fn note_freed(&mut self) {
        self.pending.touched = true;
        self.pending.freed = true;
    }

    /// Brings the counters up to date, at the end of a hold. Returns whether a block came back.
    pub(crate) fn settle(&mut self) -> bool {
        let Pending { free, cma, touched, freed } = core::mem::take(&mut self.pending);
        if touched {
            add(&self.counters.free, free);
            if cma != 0 {
                add(&self.counters.free_cma, cma);
            }
        }
        freed
    }

    /// Counts pages that the zone was given.
    pub(crate) fn count_managed(&self, pages: i64) {
        add(&self.counters.managed, pages);
    }

    /// Counts pages of memory that the zone has.
    pub(crate) fn count_present(&self, pages: i64) {
        add(&self.counters.present, pages);
    }

    /// Changes what a pageblock is, and counts what depends on it: pageblocks that are isolated, and pages that are
    /// reserved for high orders, which isolated ones are not.
    pub(super) fn set_info(&mut self, pfn: Pfn, from: BlockInfo, to: BlockInfo) {
        self.frames.set_info(pfn, to);
        let change = |of: Migratetype| {
            let is = |info: BlockInfo| info.is_present() && info.migratetype() == of;
            i64::from(is(to)) - i64::from(is(from))
        };
        let isolated = change(Migratetype::Isolate);
        if isolated != 0 {
            let now = self.areas.isolated_pageblocks.get();
            self.areas.isolated_pageblocks.set(now.wrapping_add_signed(isolated));
        }
        let reserved = change(Migratetype::HighAtomic);
        if reserved != 0 {
            add(self.highatomic, reserved * PAGEBLOCK_PAGES as i64);
        }
    }
}

/// A panic under the lock leaves the counters right.
impl<P: Platform, M> Drop for Buddy<'_, '_, P, M> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
    }
}

/// Under the zone lock: a load and a store.
fn add(word: &impl Word, change: i64) {
    word.store(word.load(Relaxed).wrapping_add_signed(change), Relaxed);
}
