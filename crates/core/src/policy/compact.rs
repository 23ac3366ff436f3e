//! Compaction: whether it is worth trying, and how many tries are skipped after it failed.
//!
//! With lists two scanners go through a zone: one from below, for blocks that can be moved, one from above, for free
//! blocks to move them to. When they meet, everything below is free or cannot be moved. With maps a request empties the
//! part of a zone, as large as the block that it wants, with the fewest pages in use.
//!
//! Background compaction works in rounds, before a request needs a huge page (Linux from v5.9): see [`Marks`].

use super::Generation;
use super::watermark::{Access, Check, FreePages, check_v6_1};
use crate::units::{MAX_ZONE_PAGES, Order, PAGEBLOCK_PAGES};

/// Blocks that are moved together (Linux: `COMPACT_CLUSTER_MAX`).
pub const CLUSTER: usize = 32;
/// After repeated failures 1 try in `2^MAX_DEFER_SHIFT` is made (Linux: `COMPACT_MAX_DEFER_SHIFT`).
pub const MAX_DEFER_SHIFT: u8 = 6;

/// Whether compaction of a zone could make a block: `room` pages are free above the low mark. If not, reclaim must come
/// first. Linux demands twice the block (v3.0; v6.1 for costly orders). With maps the block is enough: it is won from a
/// part as large, whose frames move to what is free elsewhere. O(1).
#[must_use]
pub fn is_suitable(room: u64, low: u64, reserve: u64, free: FreePages) -> bool {
    let mark = low.saturating_add(room);
    let access = Access { cma: true, ..Access::default() };
    check_v6_1(&Check { order: Order::ZERO, mark, reserve, access }, free, |_, _| true)
}

/// Milliseconds between two rounds of background compaction that empty pageblocks. Such a round is bounded, and moves
/// little if it comes soon: a tenth of the time that Linux waits.
pub const ROUND_MS: u32 = 50;
/// Milliseconds between two rounds with two scanners (Linux: `HPAGE_FRAG_CHECK_INTERVAL_MSEC`).
pub const LINUX_ROUND_MS: u32 = 500;
/// Rounds that do nothing after a round without gain (Linux: the interval is shifted by `COMPACT_MAX_DEFER_SHIFT`).
pub const REST: u8 = (1 << MAX_DEFER_SHIFT) - 1;
/// Pages moved after which a round that empties pageblocks ends: 4 MiB, some milliseconds of copying, or 2 % of one
/// CPU.
pub const ROUND_PAGES: u64 = 1 << 10;
/// Blocks looked at after which such a round ends: some hundred microseconds.
pub const ROUND_LOOKS: u64 = 1 << 15;
/// Pageblocks that such a round considers, 8 GiB; the next one continues after them.
pub const ROUND_PAGEBLOCKS: u64 = 1 << 12;
/// Most frames in use of a pageblock that is emptied: fifteen sixteenths. Memory of which more is in use everywhere has
/// hardly a huge page to win.
pub const MOST_USED: u64 = PAGEBLOCK_PAGES * 15 / 16;

/// Marks between which background compaction works, in percent of the free pages that are outside free huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Marks {
    /// Compaction of a zone stops at this percentage.
    pub low: u64,
    /// Compaction of a node begins above this percentage.
    pub high: u64,
}

impl Marks {
    /// Marks of Linux for `vm.compaction_proactiveness`, at most 100; `None` for 0, which is no background compaction.
    /// `low` is 100 − proactiveness, but at least 5; `high` is 10 above it.
    #[must_use]
    pub const fn of_linux(proactiveness: u8) -> Option<Self> {
        let Some(Self { low, .. }) = Self::one(proactiveness) else { return None };
        let low = if low < 5 { 5 } else { low };
        Some(Self { low, high: if low > 90 { 100 } else { low + 10 } })
    }

    /// One mark for both, 100 − proactiveness, where pageblocks are emptied one by one: such a round can stop and
    /// continue at any time.
    #[must_use]
    pub const fn one(proactiveness: u8) -> Option<Self> {
        let mark = 100_u64.saturating_sub(proactiveness as u64);
        if proactiveness == 0 { None } else { Some(Self { low: mark, high: mark }) }
    }
}

/// Percent of `free` pages that are not among the `huge` ones, rounded down; 0 if none is free (Linux:
/// `extfrag_for_order`).
#[must_use]
pub const fn fragmentation(free: u64, huge: u64) -> u64 {
    match (free.saturating_sub(huge) as u128 * 100).checked_div(free as u128) {
        Some(percent) => percent as u64,
        None => 0,
    }
}

/// Deferral of compaction of a zone after failures.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Defer {
    /// Tries skipped since the last failure.
    pub considered: u8,
    /// 1 in `2^shift` tries is made.
    pub shift: u8,
    /// Smallest order that failed. Smaller orders are always tried.
    pub failed: u8,
}

impl Defer {
    /// Counts a try for `order`. Returns whether to skip it.
    pub const fn passes_over(&mut self, order: Order) -> bool {
        if self.shift == 0 || order.get() < self.failed {
            return false;
        }
        self.considered = self.considered.saturating_add(1);
        self.considered < 1 << self.shift
    }

    /// State after compaction for `order` has failed.
    #[must_use]
    pub const fn failed(self, order: Order) -> Self {
        let shift = if self.shift < MAX_DEFER_SHIFT { self.shift + 1 } else { MAX_DEFER_SHIFT };
        let first = self.shift == 0 || order.get() < self.failed;
        Self { considered: 0, shift, failed: if first { order.get() } else { self.failed } }
    }

    /// State after compaction has made a block of `order`.
    #[must_use]
    pub const fn succeeded(self, order: Order) -> Self {
        if order.get() >= self.failed {
            Self { considered: 0, shift: 0, failed: order.get() + 1 }
        } else {
            self
        }
    }

    /// The state in 24 bits, all zero at first.
    #[must_use]
    pub const fn pack(self) -> u64 {
        self.considered as u64 | (self.shift as u64) << 8 | (self.failed as u64) << 16
    }

    /// The reverse of [`pack`](Self::pack).
    #[must_use]
    pub const fn unpack(word: u64) -> Self {
        Self { considered: word as u8, shift: (word >> 8) as u8, failed: (word >> 16) as u8 }
    }
}

/// Positions of a zone's scanners when a compaction reached its goal, as pageblock numbers from the zone's first. The
/// next compaction continues there: memory outside these positions is compacted already (Linux from v3.7:
/// `compact_cached_migrate_pfn` and `compact_cached_free_pfn`). This is a hint: a compaction that reaches the end from
/// here begins again at the zone's ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Resume {
    /// The pageblock of the migration scanner.
    pub low: u32,
    /// The pageblock of the free scanner, above `low`.
    pub high: u32,
}

impl Resume {
    /// Bits of a pageblock's number within a zone.
    const BITS: u32 = (MAX_ZONE_PAGES / PAGEBLOCK_PAGES).ilog2();
    /// Bits of both numbers together.
    pub const PACKED_BITS: u32 = 2 * Self::BITS;

    /// Whether compaction for a request continues where the last one stopped. v3.0 began at the zone's ends.
    #[must_use]
    pub const fn is_kept(generation: Generation) -> bool {
        matches!(generation, Generation::V6_1)
    }

    /// The positions in [`PACKED_BITS`](Self::PACKED_BITS) bits; 0 for none.
    #[must_use]
    pub const fn pack(resume: Option<Self>) -> u64 {
        match resume {
            Some(Self { low, high }) => low as u64 | (high as u64) << Self::BITS,
            None => 0,
        }
    }

    /// The reverse of [`pack`](Self::pack).
    #[must_use]
    pub const fn unpack(word: u64) -> Option<Self> {
        let (low, high) = (word & ((1 << Self::BITS) - 1), word >> Self::BITS & ((1 << Self::BITS) - 1));
        if low < high { Some(Self { low: low as u32, high: high as u32 }) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order of the test")
    }

    #[test]
    fn only_later_kernels_continue_where_the_last_compaction_stopped() {
        assert!(Resume::is_kept(Generation::V6_1) && !Resume::is_kept(Generation::V3_0));
    }

    #[test]
    fn room_above_low() {
        let free = |all| FreePages { all, ..FreePages::default() };
        assert!(is_suitable(1024, 100, 0, free(1125)));
        assert!(!is_suitable(1024, 100, 0, free(1124)));
        assert!(!is_suitable(1024, 100, 10, free(1134)) && is_suitable(1024, 100, 10, free(1135)));
        let lent = FreePages { cma: 1000, ..free(1125) };
        assert!(is_suitable(1024, 100, 0, lent), "there is room in what is lent");
    }

    #[test]
    fn marks_are_those_of_linux_or_one() {
        let both = |marks: Option<Marks>| marks.map(|marks| (marks.low, marks.high));
        assert_eq!((Marks::of_linux(0), Marks::one(0)), (None, None));
        for (proactiveness, low, high) in
            [(1, 99, 100), (5, 95, 100), (10, 90, 100), (20, 80, 90), (95, 5, 15)]
        {
            assert_eq!(both(Marks::of_linux(proactiveness)), Some((low, high)), "{proactiveness}");
            assert_eq!(both(Marks::one(proactiveness)), Some((low, low)), "{proactiveness}");
        }
        assert_eq!(both(Marks::of_linux(100)), Some((5, 15)), "Linux leaves 5 % alone");
        assert_eq!(both(Marks::one(100)), Some((0, 0)));
    }

    #[test]
    fn fragmentation_is_what_is_outside_huge_pages() {
        for (free, huge, percent) in
            [(0, 0, 0), (512, 512, 0), (1000, 0, 100), (1000, 512, 48), (513, 512, 0)]
        {
            assert_eq!(fragmentation(free, huge), percent, "{huge} of {free}");
        }
        assert_eq!(fragmentation(u64::MAX, 1), 99);
        assert_eq!(fragmentation(5, 512), 0, "read while others allocate");
    }

    #[test]
    fn failures_are_followed_by_ever_longer_rests() {
        let mut defer = Defer::default();
        assert!(!defer.passes_over(order(9)));
        for expected in [2, 4, 8, 16, 32, 64, 64] {
            defer = Defer::unpack(defer.failed(order(9)).pack());
            let mut passed = 1;
            assert!(!{ defer }.passes_over(order(3)), "smaller orders are always tried");
            while defer.passes_over(order(9)) {
                passed += 1;
            }
            assert_eq!(passed, expected);
        }
        let lower = defer.failed(order(5));
        assert!((5..=9).all(|k| { lower }.passes_over(order(k))) && !{ lower }.passes_over(order(4)));
        assert_eq!(lower.failed(order(7)).failed, 5, "the smallest one counts");
        assert!(!defer.succeeded(order(9)).passes_over(order(9)));
        assert_eq!(defer.succeeded(order(9)).failed, 10, "only a larger one may fail again");
        assert_eq!(defer.succeeded(order(3)), defer, "a smaller block changes nothing");
    }

    #[test]
    fn places_of_scanners_fit_beside_the_rests() {
        const { assert!(24 + Resume::PACKED_BITS <= 64) };
        let last = (MAX_ZONE_PAGES / PAGEBLOCK_PAGES - 1) as u32;
        for resume in [(0, 1), (0, last), (last - 1, last)].map(|(low, high)| Resume { low, high }) {
            assert_eq!(Resume::unpack(Resume::pack(Some(resume))), Some(resume));
            assert!(Resume::pack(Some(resume)) < 1 << Resume::PACKED_BITS);
        }
        assert_eq!(Resume::unpack(Resume::pack(None)), None);
        assert_eq!(Resume::unpack(Resume::pack(Some(Resume { low: 7, high: 7 }))), None, "they have met");
    }
}
