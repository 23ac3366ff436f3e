//! The counters of a zone. The free lists own them: whoever moves a block counts it there, and no caller does.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, LISTED_TYPES};
use crate::frame::BlockInfo;
use crate::platform::{Platform, Word};
use crate::policy::fallback;
use crate::units::{Migratetype, NR_ORDERS, Order, PAGEBLOCK_PAGES, Pfn};

/// The bits of an area's word that name its lists.
const LISTS: u64 = (1 << LISTED_TYPES) - 1;

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
    /// What the free areas hold, for CPUs that look without the lock: by order, `blocks << 5 | non-empty lists`.
    areas: [P::Word; NR_ORDERS],
    /// Whether `areas` is kept. Never changes.
    shown: bool,
    /// Whether free pages are counted when the zone lock is given back, so that no hold waits for this line. Never changes.
    late: bool,
}

impl<P: Platform> Counters<P> {
    /// `shown`: whether CPUs may look at the free areas without the lock. `late`: whether free pages are counted when it is
    /// given back.
    pub(crate) fn new(shown: bool, late: bool) -> Self {
        let zero = || P::Word::new(0);
        let areas = core::array::from_fn(|_| zero());
        Self { free: zero(), free_cma: zero(), managed: zero(), present: zero(), areas, shown, late }
    }

    /// Free pages on the buddy lists. A racy read. Where they are counted late, whoever takes what another CPU has just freed
    /// may have counted it first: that is nothing then.
    #[inline]
    pub(crate) fn free_pages(&self) -> u64 {
        self.pages(&self.free)
    }

    /// Those of them in CMA pageblocks.
    #[inline]
    pub(crate) fn free_cma_pages(&self) -> u64 {
        self.pages(&self.free_cma)
    }

    #[inline]
    fn pages(&self, word: &P::Word) -> u64 {
        let pages = word.load(Relaxed);
        if self.late && pages.cast_signed() < 0 { 0 } else { pages }
    }

    /// Whether the zone is large enough to group by mobility.
    pub(crate) fn grouping(&self) -> bool {
        fallback::grouping(self.managed.load(Relaxed), LISTED_TYPES as u64)
    }

    /// Counts what has become of free pages in a hold of the zone lock: under it, or late.
    pub(crate) fn count(&self, Pending { free, cma, touched, .. }: Pending) {
        if self.late {
            for (word, change) in [(&self.free, free), (&self.free_cma, cma)] {
                if change != 0 {
                    word.fetch_add(change.cast_unsigned(), Relaxed);
                }
            }
        } else if touched {
            add(&self.free, free);
            if cma != 0 {
                add(&self.free_cma, cma);
            }
        }
    }

    /// Says what an area holds now: `blocks` on its lists, and whether there is one on `list`.
    pub(super) fn show(&self, order: Order, blocks: u64, list: Migratetype, has: bool) {
        if self.shown {
            let area = &self.areas[order.index()];
            let bit = 1 << list.index();
            let others = area.load(Relaxed) & (bit ^ LISTS);
            area.store(blocks << LISTED_TYPES | others | if has { bit } else { 0 }, Relaxed);
        }
    }

    /// Whether CPUs may look at the free areas without the lock.
    pub(crate) const fn are_areas_shown(&self) -> bool {
        self.shown
    }

    /// Free blocks of an order, isolated ones not counted. A racy read.
    pub(crate) fn nr_free(&self, order: Order) -> u64 {
        self.areas[order.index()].load(Relaxed) >> LISTED_TYPES
    }

    /// Whether a list that is not the isolated one has a block of an order. A racy read.
    pub(crate) fn has(&self, order: Order, list: Migratetype) -> bool {
        self.areas[order.index()].load(Relaxed) & LISTS & 1 << list.index() != 0
    }
}

/// Pages that became free, or (if negative) stopped being free, in one hold of the zone lock. The counters learn of
/// them once, when the hold ends or has ended, however many blocks moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pending {
    /// Base pages.
    free: i64,
    /// Those of them in CMA pageblocks.
    cma: i64,
    /// Whether blocks were taken or freed at all.
    touched: bool,
    /// Whether a block came back.
    pub(crate) freed: bool,
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Counts `pages` that came (or, if negative, went) on lists of type `list`. Isolated pages do not count.
    #[inline]
    pub(super) fn account(&mut self, list: Migratetype, pages: i64) {
        if list != Migratetype::Isolate {
            self.account_as(pages, if list == Migratetype::Cma { pages } else { 0 });
        }
    }

    /// Counts a block that came back. Block by block, as Linux does it, the counters learn of it before it is merged.
    #[inline]
    pub(super) fn account_freed(&mut self, list: Migratetype, pages: i64) {
        self.account(list, pages);
        if !self.frames.has_maps() {
            self.pending.freed = self.settle();
        }
    }

    #[inline]
    pub(super) fn account_as(&mut self, free: i64, cma: i64) {
        self.pending.free += free;
        self.pending.cma += cma;
        self.pending.touched = true;
    }

    /// Counts pages of a block that came back, below the pageblock order and to a pageblock of an ordinary type. The caller
    /// [notes](Self::note_freed) that it did.
    #[inline(always)]
    pub(super) fn account_put(&mut self, pages: i64) {
        self.pending.free += pages;
    }

    /// Notes that a block came back: whoever gave the zone up may hope again.
    #[inline]
    pub(super) fn note_freed(&mut self) {
        self.pending.touched = true;
        self.pending.freed = true;
    }

    /// Brings the counters up to date. Returns whether a block came back.
    fn settle(&mut self) -> bool {
        let pending = core::mem::take(&mut self.pending);
        self.counters.count(pending);
        pending.freed
    }

    /// At the end of a hold: what is to be counted when the lock is given back. All is counted by now, if not so late.
    pub(crate) fn end(&mut self) -> Pending {
        if self.counters.late {
            return core::mem::take(&mut self.pending);
        }
        Pending { freed: self.settle(), ..Pending::default() }
    }

    /// Counts pages that the zone was given.
    pub(crate) fn count_managed(&mut self, pages: i64) {
        if self.part.is_some() && pages > 0 {
            self.cold.has_memory.set(true);
        }
        self.add(&self.counters.managed, pages);
    }

    /// Counts pages of memory that the zone has.
    pub(crate) fn count_present(&self, pages: i64) {
        self.add(&self.counters.present, pages);
    }

    /// Changes what a pageblock is, and counts what depends on it: pageblocks that are isolated, those that have bad frames in
    /// use, and pages that are reserved for high orders, which isolated ones are not.
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
        let is_marked = |info: BlockInfo| i64::from(info.is_present() && info.is_poisoned());
        let marked = is_marked(to) - is_marked(from);
        if marked != 0 {
            let now = self.cold.marked_pageblocks.get().wrapping_add_signed(marked);
            self.cold.marked_pageblocks.set(now);
            self.is_unmarked = now == 0;
        }
        let reserved = change(Migratetype::HighAtomic);
        if reserved != 0 {
            self.add(self.highatomic, reserved * PAGEBLOCK_PAGES as i64);
        }
        if let Some(part) = self.part.as_ref().filter(|_| isolated + marked != 0) {
            part.special.fetch_add((isolated + marked).cast_unsigned(), Relaxed);
        }
    }

    /// Changes a word of the zone: with a load and a store if no other section has it.
    fn add(&self, word: &P::Word, change: i64) {
        match self.part {
            Some(_) => drop(word.fetch_add(change.cast_unsigned(), Relaxed)),
            None => add(word, change),
        }
    }
}

/// A panic under the lock leaves the counters right.
impl<P: Platform, M> Drop for Buddy<'_, '_, P, M> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
        self.show_changed();
    }
}

/// Under the zone lock: a load and a store.
fn add(word: &impl Word, change: i64) {
    word.store(word.load(Relaxed).wrapping_add_signed(change), Relaxed);
}
