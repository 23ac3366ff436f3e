//! The counters of a zone. Only the free store changes them: the code that moves a block counts it, callers do not.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, LISTED_TYPES};
use crate::frame::BlockInfo;
use crate::platform::{Platform, Word};
use crate::policy::fallback;
use crate::units::{Migratetype, NR_ORDERS, Order, PAGEBLOCK_PAGES, Pfn};

/// Bits of an area's word that name its non-empty lists.
const LISTS: u64 = (1 << LISTED_TYPES) - 1;

/// Zone counters, in base pages. Written by the holder of the zone lock, read by anyone.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Counters<P: Platform> {
    /// Free pages on the buddy lists, isolated ones not counted.
    pub(crate) free: P::Word,
    /// Free pages in CMA pageblocks.
    pub(crate) free_cma: P::Word,
    /// Managed pages: those that the zone was given.
    pub(crate) managed: P::Word,
    /// Present pages: all memory of the zone, managed or reserved.
    pub(crate) present: P::Word,
    /// Content of the free areas, for CPUs that read it without the lock: by order, `blocks << 5 | non-empty lists`.
    areas: [P::Word; NR_ORDERS],
    /// Whether `areas` is written. Never changes.
    shown: bool,
    /// Whether free pages are counted when the zone lock is released, so that no hold waits for this cache line. Never
    /// changes.
    late: bool,
}

impl<P: Platform> Counters<P> {
    /// `shown`: whether CPUs may read the free areas without the lock. `late`: whether free pages are counted when the
    /// lock is released.
    pub(crate) fn new(shown: bool, late: bool) -> Self {
        let zero = || P::Word::new(0);
        let areas = core::array::from_fn(|_| zero());
        Self { free: zero(), free_cma: zero(), managed: zero(), present: zero(), areas, shown, late }
    }

    #[inline(always)]
    const fn is_late(&self) -> bool {
        !cfg!(feature = "settings") || self.late
    }

    /// Free pages on the buddy lists. A racy read. With late counts, a CPU that takes pages that another CPU has just
    /// freed may count first: a negative sum reads as 0.
    #[inline]
    pub(crate) fn free_pages(&self) -> u64 {
        Self::pages(&self.free)
    }

    /// Free pages in CMA pageblocks.
    #[inline]
    pub(crate) fn free_cma_pages(&self) -> u64 {
        Self::pages(&self.free_cma)
    }

    #[inline]
    fn pages(word: &P::Word) -> u64 {
        word.load(Relaxed).cast_signed().max(0).cast_unsigned()
    }

    /// Whether the zone is large enough to group by mobility.
    pub(crate) fn grouping(&self) -> bool {
        fallback::grouping(self.managed.load(Relaxed), LISTED_TYPES as u64)
    }

    /// Adds the changes of one hold of the zone lock: under the lock, or after it.
    pub(crate) fn count(&self, Pending { free, cma, touched, .. }: Pending) {
        if self.is_late() {
            if free != 0 {
                self.free.fetch_add(free.cast_unsigned(), Relaxed);
            }
            if cma != 0 {
                self.free_cma.fetch_add(cma.cast_unsigned(), Relaxed);
            }
        } else if touched {
            add(&self.free, free);
            if cma != 0 {
                add(&self.free_cma, cma);
            }
        }
    }

    /// Publishes the content of an area: `blocks` on its lists, and whether `list` has one.
    pub(super) fn show(&self, order: Order, blocks: u64, list: Migratetype, has_block: bool) {
        if self.are_areas_shown() {
            let area = &self.areas[order.index()];
            let others = area.load(Relaxed) & LISTS & !(1 << list.index());
            let lists = others + (u64::from(has_block) << list.index());
            area.store((blocks << LISTED_TYPES) + lists, Relaxed);
        }
    }

    /// Whether CPUs may read the free areas without the lock.
    pub(crate) const fn are_areas_shown(&self) -> bool {
        cfg!(feature = "settings") && self.shown
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

/// Pages that became free, or (if negative) no longer are, in one hold of the zone lock. They are added to the counters
/// once, when the hold ends or has ended, however many blocks moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pending {
    /// Base pages.
    free: i64,
    /// Base pages in CMA pageblocks.
    pub(super) cma: i64,
    /// Whether blocks were taken or freed at all.
    pub(super) touched: bool,
    /// Whether a block was freed.
    pub(crate) freed: bool,
}

/// Adds the pages: what else a hold records concerns itself only.
impl core::ops::AddAssign for Pending {
    fn add_assign(&mut self, more: Self) {
        self.free += more.free;
        self.cma += more.cma;
    }
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Counts `pages` that came to lists of type `list`, or left them if negative. Isolated pages do not count.
    #[inline]
    pub(super) fn account(&mut self, list: Migratetype, pages: i64) {
        if list == Migratetype::Isolate {
            return;
        }
        self.pending.free += pages;
        if list == Migratetype::Cma {
            self.pending.cma += pages;
        }
        self.pending.touched = true;
    }

    /// Counts a freed block. If blocks move one by one, as in Linux, the counters are updated before the block merges.
    #[inline]
    pub(super) fn account_freed(&mut self, list: Migratetype, pages: i64) {
        self.account(list, pages);
        if !self.frames.has_maps() {
            self.pending.freed = self.settle();
        }
    }

    /// Counts pages of a freed block below the pageblock order, in a pageblock of an ordinary type. The caller also
    /// calls [`note_freed`](Self::note_freed).
    #[inline(always)]
    pub(super) fn account_put(&mut self, pages: i64) {
        self.pending.free += pages;
    }

    /// Records that a block was freed: a zone that background reclaim has given up may be reclaimable again.
    #[inline]
    pub(super) fn note_freed(&mut self) {
        self.pending.touched = true;
        self.pending.freed = true;
    }

    /// Adds the pending changes to the counters. Returns whether a block was freed.
    fn settle(&mut self) -> bool {
        let pending = core::mem::take(&mut self.pending);
        self.common.counters.count(pending);
        pending.freed
    }

    /// Ends a hold. Returns the changes to count when the lock is released, none without late counts; and whether the
    /// zone's last bad frame in use went out of use.
    #[inline(always)]
    pub(crate) fn end(mut self) -> (Pending, bool) {
        if !self.common.counters.is_late() {
            self.pending = Pending { freed: self.settle(), ..Pending::default() };
        }
        if self.changed != 0 {
            self.show_changed();
        }
        let ended = (self.pending, self.is_unmarked);
        // Nothing is left for the drop.
        core::mem::forget(self);
        ended
    }

    /// Counts pages that the zone was given.
    pub(crate) fn count_managed(&mut self, pages: i64) {
        if self.common.is_lazy() {
            self.cold.has_memory.set(true);
        }
        self.add(&self.common.counters.managed, pages);
    }

    /// Counts pages of memory that the zone has.
    pub(crate) fn count_present(&self, pages: i64) {
        self.add(&self.common.counters.present, pages);
    }

    /// Changes the properties of a pageblock, and counts what depends on them: isolated pageblocks, pageblocks with bad
    /// frames in use, and pages reserved for high orders; isolated pageblocks do not count as reserved.
    pub(super) fn set_info(&mut self, pfn: Pfn, from: BlockInfo, to: BlockInfo) {
        self.frames.set_info(pfn, to);
        let change = |list: Migratetype| {
            let counts = |info: BlockInfo| info.is_present() && info.migratetype() == list;
            i64::from(counts(to)) - i64::from(counts(from))
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
        let special = isolated + marked;
        if self.common.is_cut() && special != 0 {
            self.common.special.fetch_add(special.cast_unsigned(), Relaxed);
        }
    }

    /// Adds to a word of the zone: with a load and a store if the zone has one section.
    fn add(&self, word: &P::Word, change: i64) {
        if self.common.is_cut() {
            word.fetch_add(change.cast_unsigned(), Relaxed);
        } else {
            add(word, change);
        }
    }
}

/// Keeps the counters correct after a panic under the lock.
impl<P: Platform, M> Drop for Buddy<'_, '_, P, M> {
    #[inline]
    fn drop(&mut self) {
        self.settle();
        if self.changed != 0 {
            self.show_changed();
        }
    }
}

/// Adds to a word under the zone lock: a load and a store.
fn add(word: &impl Word, change: i64) {
    word.store(word.load(Relaxed).wrapping_add_signed(change), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::machine::Machine;
    use crate::units::MAX_ORDER;

    fn pages(free: i64, cma: i64) -> Pending {
        Pending { free, cma, ..Pending::default() }
    }

    #[test]
    fn an_area_says_how_many_blocks_it_has_and_on_which_lists() {
        for (shown, order) in [(true, Order::ZERO), (true, MAX_ORDER), (false, Order::ZERO)] {
            let counters = Counters::<Machine>::new(shown, false);
            let nonempty = || Migratetype::ALL[..LISTED_TYPES].iter().map(|&list| counters.has(order, list));
            let mut lists = [false; LISTED_TYPES];
            for (blocks, list, has_block) in
                [(7, 1, true), (9, 4, true), (11, 1, true), (13, 0, true), (6, 1, false), (0, 4, false)]
            {
                counters.show(order, blocks, Migratetype::ALL[list], has_block);
                lists[list] = has_block && shown;
                assert_eq!(counters.nr_free(order), if shown { blocks } else { 0 });
                assert!(nonempty().eq(lists), "{lists:?}");
            }
        }
    }

    /// A CPU that takes what another one has just freed may count first.
    #[test]
    fn fewer_than_no_pages_are_none() {
        let counters = Counters::<Machine>::new(false, true);
        let read = |now: Pending| {
            counters.count(now);
            [counters.free_pages(), counters.free_cma_pages()]
        };
        assert_eq!([pages(-5, -3), pages(7, 0), pages(0, 4)].map(read), [[0, 0], [2, 0], [2, 1]]);
    }

    #[test]
    fn the_pages_of_several_holds_add_up() {
        let mut sum = pages(5, -2);
        sum += Pending { touched: true, freed: true, ..pages(-7, 3) };
        assert_eq!(sum, pages(-2, 1));
    }
}
