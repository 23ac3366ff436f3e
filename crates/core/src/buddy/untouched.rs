//! Untouched memory of a zone: free memory that was not needed yet, whose descriptors are as new.
//!
//! New pageblock descriptors and maps are zeroes, so memory that reads as zeroes needs no writing. A zone that is given
//! a terabyte therefore only records its start and end
//! ([`Config::lazy_pageblocks`](crate::config::Config::lazy_pageblocks)), and writes descriptors for parts of it when
//! the blocks before them are used up.
//!
//! # Invariants
//! 1. All frames from `next` to `end`, multiples of the largest block, are free and movable. They count as free,
//!    managed and present; their pageblocks are not present, and no descriptor of them was written.
//! 2. While there are any, there is also a free movable block of the largest order. So a search for free memory finds
//!    the same as if all pageblocks were initialised, but less of it.
//!
//! A caller that looks for memory by its address has the pageblocks up to there initialised first (`Allocator::touch`).

use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Buddy;
use crate::frame::BlockInfo;
use crate::platform::{Platform, Word};
use crate::units::{MAX_ORDER, Migratetype, PAGEBLOCK_PAGES, Pfn};

/// Frames whose pageblocks are initialised together: a block of the largest order.
const CHUNK: u64 = MAX_ORDER.pages();

/// The untouched memory of a zone. Written under the zone lock, read by any CPU.
#[repr(C)]
pub(crate) struct Untouched<P: Platform> {
    next: P::Word,
    end: P::Word,
}

impl<P: Platform> Untouched<P> {
    pub(crate) fn new() -> Self {
        Self { next: P::Word::new(0), end: P::Word::new(0) }
    }

    /// The untouched frames. A racy read, unless the caller holds the zone lock.
    pub(crate) fn range(&self) -> Range<Pfn> {
        let next = self.next.load(Acquire);
        Pfn(next)..Pfn(self.end.load(Relaxed).max(next))
    }
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// The untouched frames.
    pub(crate) fn untouched(&self) -> Range<Pfn> {
        if self.common.is_lazy() { self.extent.untouched.range() } else { Pfn(0)..Pfn(0) }
    }

    /// The part of new memory that may stay untouched. Nothing if the section ever had memory, because then its
    /// descriptors were written, or if the new memory is small.
    pub(crate) fn to_leave(&self, start: Pfn, pages: u64) -> Range<Pfn> {
        let none = start..start;
        let whole = |pfn: u64| pfn / MAX_ORDER.pages() * MAX_ORDER.pages();
        let (first, end) = (whole(start.0 + MAX_ORDER.pages() - 1), whole(start.0 + pages));
        // With several sections, later memory of the zone may be the first of its section.
        let counted = !self.common.is_cut() && self.common.counters.managed.load(Relaxed) != 0;
        let is_new = !counted && !self.cold.has_memory.get();
        if self.common.is_lazy() && is_new && end > first + CHUNK { Pfn(first)..Pfn(end) } else { none }
    }

    /// Leaves new memory untouched, from [`to_leave`](Self::to_leave), and counts it as free.
    pub(crate) fn leave_untouched(&mut self, range: Range<Pfn>) {
        if !self.common.is_lazy() || range.is_empty() {
            return;
        }
        let untouched = &self.extent.untouched;
        untouched.end.store(range.end.0, Relaxed);
        untouched.next.store(range.start.0, Release);
        self.account(Migratetype::Movable, (range.end.0 - range.start.0) as i64);
        self.note_freed();
        self.touch_upto(range.start.add(1));
    }

    /// Initialises untouched pageblocks up to the frame before `end`.
    pub(crate) fn touch_upto(&mut self, end: Pfn) {
        if !self.common.is_lazy() {
            return;
        }
        let untouched = &self.extent.untouched;
        let range = untouched.range();
        let wanted = end.0.saturating_sub(range.start.0).next_multiple_of(CHUNK);
        let end = Pfn(range.start.0.saturating_add(wanted)).min(range.end);
        let mut at = range.start;
        while at < end {
            // First: a CPU that does not find the memory among the untouched any more finds it present.
            for start in [at, at.add(PAGEBLOCK_PAGES)] {
                self.frames.set_info(start, BlockInfo::new(self.common.zone, Migratetype::Movable));
            }
            // Before the block is free: a CPU that is stopped in between leaves it permanently in use, not free twice.
            untouched.next.store(at.add(MAX_ORDER.pages()).0, Release);
            self.set_pair(at, Migratetype::Movable);
            at = at.add(MAX_ORDER.pages());
        }
    }

    /// Called after a free movable block of the largest order was taken or split: keeps invariant 2.
    #[inline(never)]
    pub(super) fn touch_more(&mut self) {
        let Range { start, end } = self.untouched();
        if start < end && !self.has_whole(MAX_ORDER, Migratetype::Movable) {
            self.touch_upto(start.add(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddy::Placement;
    use crate::buddy::testing::{BASE, Store, wanted};
    use crate::buddy::{Each, PAGEBLOCK_ORDER};

    /// Whole blocks of the largest order, if there are two at least, and the section had no memory before.
    #[test]
    fn what_may_stay_untouched_is_whole_blocks() {
        for (from, pages, left) in [
            (0, 4096, 0..4096),
            (1, 4096, 1024..4096),
            (1023, 3073, 1024..4096),
            (0, 3071, 0..2048),
            (0, 2048, 0..2048),
            (0, 2047, 0..0),
            (1, 2047, 1..1),
            (5, 700, 5..5),
        ] {
            let mut store = Store::lazy(16);
            let found = |buddy: &mut Buddy<'_, '_, _, _>| {
                let range = buddy.to_leave(BASE.add(from), pages);
                range.start.0 - BASE.0..range.end.0 - BASE.0
            };
            assert_eq!(store.with(found), left, "{pages} pages from {from} on");
            store.with(|buddy| buddy.count_managed(pages as i64));
            assert!(store.with(found).is_empty());
        }
        assert!(Store::new(16, true).with(|buddy| buddy.to_leave(BASE, 4096)).is_empty());
    }

    /// Pageblocks that are initialised: the first ones.
    fn touched(store: &Store) -> u64 {
        let is_touched = |n: &u64| store.frames.contains(Store::pageblock(*n));
        let count = (0..16).take_while(is_touched).count() as u64;
        assert!(!(count..16).any(|n| is_touched(&n)));
        count
    }

    /// There is a free block of the largest order while memory is untouched; more comes in when that is taken, or when
    /// an address is named.
    #[test]
    fn memory_comes_in_when_it_is_needed() {
        let mut store = Store::lazy(16);
        let range = BASE..BASE.add(16 * PAGEBLOCK_PAGES);
        store.with(|buddy| buddy.leave_untouched(range.start..range.start));
        assert_eq!((touched(&store), store.check()), (0, 0));
        store.with(|buddy| buddy.leave_untouched(range));
        assert_eq!((touched(&store), store.check()), (2, 16 * PAGEBLOCK_PAGES));
        for (end, count) in [(1, 2), (1024, 2), (1025, 4), (2000, 4)] {
            store.with(|buddy| buddy.touch_upto(BASE.add(end)));
            assert_eq!((touched(&store), store.check()), (count, 16 * PAGEBLOCK_PAGES), "{end}");
        }
        let take = |store: &mut Store, order, count| {
            let mut first = u64::MAX;
            let mut sink = Each(|pfn: Pfn| {
                first = first.min(pfn.0 - BASE.0);
                true
            });
            assert_eq!(store.with(|buddy| buddy.take(wanted(order), count, None, &mut sink)), count);
            store.check();
            first
        };
        assert_eq!((take(&mut store, MAX_ORDER, 1), touched(&store)), (0, 4));
        assert_eq!((take(&mut store, MAX_ORDER, 1), touched(&store)), (1024, 6));
        // A smaller block breaks the last one.
        assert_eq!((take(&mut store, PAGEBLOCK_ORDER, 1), touched(&store)), (2048, 8));
        store.with(|buddy| buddy.free(BASE, MAX_ORDER, Placement::Likely));
        assert_eq!((take(&mut store, MAX_ORDER, 1), touched(&store)), (0, 8));
        store.with(|buddy| buddy.touch_upto(Pfn(u64::MAX)));
        assert_eq!((touched(&store), store.check()), (16, 16 * PAGEBLOCK_PAGES - 2048 - 512));
    }
}
