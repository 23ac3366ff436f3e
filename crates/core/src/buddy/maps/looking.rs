//! Content of open pageblocks, and its check against their bins.

use core::ops::Range;

use super::bins::NONE;
use super::{AT_LEAST, Buddy, CLASS_AT, CLASSES, ORDERS, STEP, bin_of, exactly};
use crate::buddy::Wanted;
use crate::frame::{Bits, OpenHead};
use crate::platform::Platform;
use crate::policy::fallback;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Most pageblocks of one bin that compaction looks at for one with few enough free frames.
const LOOKS: u32 = 16;

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Whether an open pageblock of type `list` has a largest free block of exactly `order`.
    pub(in crate::buddy) fn has_bits(&self, order: Order, list: Migratetype) -> bool {
        self.cold.bins.occupied[list as usize].get() & exactly(order) != 0
    }

    /// Number of the bin from which a request takes its next block. If no open pageblock of its type has one, 64, and
    /// more by the order of the smallest block that it may take of another type. A larger number is a worse bin.
    #[inline(always)]
    pub(in crate::buddy) fn next_bin(
        &self,
        &Wanted { order, migratetype, may_fall_back, .. }: &Wanted,
    ) -> u32 {
        let bin = (self.occupied(migratetype) & AT_LEAST[order.index()]).trailing_zeros();
        if !may_fall_back || bin < u64::BITS {
            return bin;
        }
        let smallest = self.smallest_fallback(order, migratetype);
        bin + u32::from(smallest.map_or(MAX_ORDER, |(order, _)| order).get())
    }

    /// The smallest block below the pageblock order of another type that has at least `order`, and its type.
    #[cold]
    #[inline(never)]
    pub(super) fn smallest_fallback(
        &self,
        order: Order,
        requester: Migratetype,
    ) -> Option<(Order, Migratetype)> {
        fallback::smallest(order, requester, |at, list| at < PAGEBLOCK_ORDER && self.has_bits(at, list))
    }

    /// A bit for each bin of a type that has a pageblock.
    pub(in crate::buddy) fn occupied(&self, list: Migratetype) -> u64 {
        self.cold.bins.occupied[list as usize].get()
    }

    /// The open pageblocks of a type, bin by bin, fullest first.
    pub(crate) fn open_pageblocks(&self, list: Migratetype) -> impl Iterator<Item = Pfn> {
        let ends = &self.cold.bins.ends[list as usize];
        ends.iter().flat_map(move |ends| {
            let first = ends.get().first;
            let mut at = (first != NONE).then_some(first);
            core::iter::from_fn(move || {
                let number = at?;
                let start = self.pageblock_of(number);
                // A damaged link may lead anywhere: the walk yields that pageblock, and ends there if it is not open.
                at = self.frames.open_head(start).map(OpenHead::next).filter(|&next| next != number);
                Some(start)
            })
        })
    }

    /// The fullest open pageblock of type `list`, as far as its class tells, with a block of `order` and at most `free`
    /// free frames; none that begins in `but`. Of each bin only the first few are looked at. O(bins).
    pub(in crate::buddy) fn fullest_with(
        &self,
        order: Order,
        list: Migratetype,
        free: u32,
        but: &Range<Pfn>,
    ) -> Option<Pfn> {
        let occupied = self.cold.bins.occupied[list as usize].get() & AT_LEAST[order.index()];
        let last_class = usize::from(CLASS_AT[(free / STEP) as usize]);
        let bins =
            (0..=last_class).flat_map(|class| (0..ORDERS).map(move |largest| largest * CLASSES + class));
        for bin in bins.filter(|bin| occupied >> bin & 1 != 0) {
            let mut number = self.cold.bins.ends[list as usize][bin].get().first;
            for _ in 0..LOOKS {
                let start = self.pageblock_of(number);
                // A damaged link may lead to no open pageblock, or back to an earlier one.
                let Some(head) = self.frames.open_head(start) else { break };
                if !but.contains(&start) && head.free() <= free {
                    return Some(start);
                }
                if head.next() == number {
                    break;
                }
                number = head.next();
            }
        }
        None
    }

    /// Checks an open pageblock of type `list`. Returns the bits of its map, or what is wrong.
    pub(crate) fn check_open(&self, start: Pfn, list: Migratetype) -> Result<Bits, &'static str> {
        let bits = self.map(start).bits();
        if !self.is_of_type(start, list) {
            return Err("a bin has a pageblock of another type or zone");
        }
        let Some(head) = self.frames.open_head(start) else {
            return Err("a pageblock in a bin does not say so");
        };
        if u64::from(head.free()) != bits.count() || Some(head.largest()) != bits.largest() {
            return Err("a pageblock's head word does not say what its map holds");
        }
        if bits.count() == PAGEBLOCK_PAGES {
            return Err("a pageblock all of whose frames are free is open");
        }
        let (me, bin) = (self.number_of(start), bin_of(head.free(), head.largest()));
        let ends = self.cold.bins.ends[list as usize][bin].get();
        let linked = |number: u32, back: fn(OpenHead) -> u32, end: u32| match number == me {
            true => end == me,
            false => self
                .frames
                .open_head(self.pageblock_of(number))
                .is_some_and(|head| back(head) == me && bin_of(head.free(), head.largest()) == bin),
        };
        let occupied = self.cold.bins.occupied[list as usize].get() >> bin & 1 != 0;
        if !occupied
            || !linked(head.prev(), OpenHead::next, ends.first)
            || !linked(head.next(), OpenHead::prev, ends.last)
        {
            return Err("a bin's links do not agree");
        }
        Ok(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddy::testing::{Store, wanted};

    /// What a take in one of several sections compares: bins of the requester's type, then, where it may fall back, the
    /// smallest block of another type.
    #[test]
    fn the_next_bin_is_that_of_what_a_take_would_break() {
        let order = Order::new(2).expect("an order");
        let mut store = Store::section(4);
        store.set_type(1, Migratetype::Unmovable);
        store.set_type(2, Migratetype::Reclaimable);
        let next = |store: &mut Store| {
            let next = |may_fall_back| {
                store.with(|buddy| buddy.next_bin(&Wanted { may_fall_back, ..wanted(order) }))
            };
            [false, true].map(next)
        };
        assert_eq!(next(&mut store), [64, 64 + 10]);
        store.free(1, 0..8);
        assert_eq!(next(&mut store), [64, 64 + 3]);
        store.free(2, 8..12);
        assert_eq!(next(&mut store), [64, 64 + 2]);
        store.free(0, 0..4);
        assert_eq!(next(&mut store), [bin_of(4, 2) as u32; 2]);
    }
}
