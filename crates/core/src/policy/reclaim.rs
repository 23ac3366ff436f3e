//! Zone reclaim, direct reclaim and background reclaim: when and where memory is reclaimed, how hard, and when to stop.
//! The owner of the pages decides which of them it frees.
//!
//! Rules are those of v3.0 unless a name states another release. Sizes are base pages.

use super::Generation;
use super::zlc::Seen;
use crate::units::Order;

/// First priority of direct and background reclaim: a scan looks at `pages >> priority`.
pub const FIRST_PRIORITY: u8 = 12;
/// First priority of zone reclaim.
pub const ZONE_RECLAIM_PRIORITY: u8 = 4;
/// Pages freed after which direct reclaim stops. Lists are scanned in slices of this size.
pub const CLUSTER: u64 = 32;
/// Scanned pages after which direct reclaim wakes the flushers and may write: one and a half clusters.
pub const SCANNED_BEFORE_WRITING: u64 = CLUSTER + CLUSTER / 2;
/// Priority from which direct reclaim, going down, waits for a congested device.
pub const WAIT_PRIORITY: u8 = FIRST_PRIORITY - 3;
/// Node distance above which a remote access costs more than zone reclaim.
pub const RECLAIM_DISTANCE: u8 = 30;
/// Rounds of background reclaim without a freed page, after which a node is left to direct reclaim (v4.12).
pub const MAX_FAILURES: u64 = 16;

/// Permissions of zone reclaim (`vm.zone_reclaim_mode`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct ZoneReclaimMode(pub u8);

impl ZoneReclaimMode {
    /// No zone reclaim: a zone below its mark is skipped.
    pub const OFF: Self = Self(0);
    /// Zone reclaim is on.
    pub const ON: Self = Self(1);
    /// Zone reclaim may write dirty pages.
    pub const WRITE: Self = Self(2);
    /// Zone reclaim may unmap and swap.
    pub const UNMAP: Self = Self(4);

    /// The permissions of both modes.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Whether the mode has all of `bits`.
    #[must_use]
    pub const fn has(self, bits: Self) -> bool {
        self.0 & bits.0 == bits.0
    }

    /// Whether zone reclaim is on: any bit is set.
    #[must_use]
    pub const fn is_on(self) -> bool {
        self.0 != 0
    }
}

/// Pages of a zone that could be reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Reclaimable {
    /// File pages on the LRU lists.
    pub file_lru: u64,
    /// File pages, on LRU lists or not.
    pub file: u64,
    /// File pages that are mapped.
    pub file_mapped: u64,
    /// File pages that are dirty.
    pub file_dirty: u64,
    /// Anonymous pages on the LRU lists; 0 without swap space.
    pub anon_lru: u64,
    /// Pages of caches of small objects.
    pub slab: u64,
}

impl Reclaimable {
    /// For owners that do not count: very many pages, all clean and unmapped.
    pub const UNKNOWN: Self = Self {
        file_lru: u64::MAX / 16,
        file: u64::MAX / 16,
        file_mapped: 0,
        file_dirty: 0,
        anon_lru: 0,
        slab: 0,
    };

    /// Pages on LRU lists that a scan could visit.
    #[must_use]
    pub const fn on_lists(&self) -> u64 {
        self.file_lru.saturating_add(self.anon_lru)
    }

    /// Page cache that zone reclaim with this mode could free.
    #[must_use]
    pub const fn page_cache(&self, mode: ZoneReclaimMode) -> u64 {
        let within_reach = if mode.has(ZoneReclaimMode::UNMAP) {
            self.file
        } else {
            self.file_lru.saturating_sub(self.file_mapped)
        };
        within_reach.saturating_sub(if mode.has(ZoneReclaimMode::WRITE) { 0 } else { self.file_dirty })
    }
}

/// Properties of a request for zone reclaim, and of the zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Caller {
    /// The caller cannot wait, or is in reclaim itself.
    pub must_not: bool,
    /// The zone is on another node, whose own CPUs can reclaim it.
    pub remote_with_cpus: bool,
    /// The zone is flagged unreclaimable.
    pub unreclaimable: bool,
}

/// Pages that zone reclaim frees.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ZoneReclaim {
    /// Page cache.
    pub page_cache: bool,
    /// Caches of small objects.
    pub slab: bool,
}

/// Decides whether a zone of `pages` pages is reclaimed before the next zone is tried: more than 1 % of it must be page
/// cache within reach, or more than 5 % slab. The caller must still take the zone's flag: one CPU at a time reclaims a
/// zone. O(1).
///
/// # Errors
/// [`Seen::Full`]: it would free too little. [`Seen::NotScanned`]: not by this caller, or not now.
pub const fn zone_reclaim(
    mode: ZoneReclaimMode,
    reclaimable: &Reclaimable,
    pages: u64,
    caller: Caller,
) -> Result<ZoneReclaim, Seen> {
    let page_cache = reclaimable.page_cache(mode) > pages / 100;
    let slab = reclaimable.slab > pages / 20;
    match caller {
        _ if !page_cache && !slab => Err(Seen::Full),
        Caller { unreclaimable: true, .. } => Err(Seen::Full),
        Caller { must_not: true, .. } | Caller { remote_with_cpus: true, .. } => Err(Seen::NotScanned),
        _ => Ok(ZoneReclaim { page_cache, slab }),
    }
}

/// Pages that one run of zone reclaim should free for a request of `order`.
#[must_use]
pub const fn zone_reclaim_target(order: Order) -> u64 {
    if order.pages() > CLUSTER { order.pages() } else { CLUSTER }
}

/// Whether a zone is flagged unreclaimable after background reclaim: slab gave nothing, and the pages scanned since the
/// zone last got a page back are at least six times those on its lists. O(1).
#[must_use]
pub const fn is_unreclaimable(scanned: u64, on_lists: u64, slab_freed: u64) -> bool {
    slab_freed == 0 && scanned >= on_lists.saturating_mul(6)
}

/// State of a zone for background reclaim.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Balance {
    /// Managed pages; 0 if the zone has no memory.
    pub pages: u64,
    /// Whether the zone meets its high mark for the order in question.
    pub meets_high: bool,
    /// Whether the zone is flagged unreclaimable.
    pub unreclaimable: bool,
}

/// Index of the highest zone that needs work at a priority; `None` if none does. `zones` is sorted lowest first. Zones
/// that are flagged unreclaimable count at the first priority only. O(zones).
#[must_use]
pub fn highest_unbalanced(zones: &[Balance], priority: u8) -> Option<usize> {
    zones.iter().rposition(|zone| {
        zone.pages > 0 && !zone.meets_high && (priority == FIRST_PRIORITY || !zone.unreclaimable)
    })
}

/// Whether background reclaim of a node is done for a request of `order`. `zones` is sorted lowest first. O(zones).
///
/// v3.0: every zone meets its high mark or is unreclaimable; above order 0, it suffices that such zones have more than
/// a quarter of the pages. v6.1: one zone that meets its high mark suffices.
#[must_use]
pub fn is_balanced(generation: Generation, order: Order, zones: &[Balance]) -> bool {
    let populated = || zones.iter().filter(|zone| zone.pages > 0);
    let fine = |zone: &&Balance| zone.meets_high || zone.unreclaimable;
    match generation {
        Generation::V3_0 if order == Order::ZERO => populated().all(|zone| fine(&zone)),
        Generation::V3_0 => {
            let all: u64 = populated().map(|zone| zone.pages).sum();
            let balanced: u64 = populated().filter(fine).map(|zone| zone.pages).sum();
            all == 0 || balanced > all >> 2
        }
        Generation::V6_1 => populated().next().is_none() || populated().any(|zone| zone.meets_high),
    }
}

/// Mark below which background reclaim shrinks a zone, of those up to the highest unbalanced one: a little above high,
/// so that allocations keep spreading over zones. O(1).
#[must_use]
pub const fn shrink_mark(high: u64, low: u64, pages: u64) -> u64 {
    let gap = pages.div_ceil(100);
    high.saturating_add(if low < gap { low } else { gap })
}

/// Whether a retry of direct reclaim can succeed: the free and the reclaimable pages together would meet the request's
/// mark `min` (v6.1 `should_reclaim_retry`). O(1).
#[must_use]
pub const fn could_help(free: u64, reclaimable: u64, min: u64, order: Order) -> bool {
    free.saturating_add(reclaimable) > min.saturating_add(order.pages() - 1)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;

    const ON: ZoneReclaimMode = ZoneReclaimMode::ON;

    fn has(file_lru: u64, file_mapped: u64, file_dirty: u64, slab: u64) -> Reclaimable {
        Reclaimable { file_lru, file: file_lru + 50, file_mapped, file_dirty, anon_lru: 0, slab }
    }

    #[test]
    fn page_cache_within_reach_of_each_mode() {
        let zone = has(1000, 300, 200, 0);
        for (mode, pages) in [
            (ON, 500),
            (ON.and(ZoneReclaimMode::WRITE), 700),
            (ON.and(ZoneReclaimMode::UNMAP), 850),
            (ZoneReclaimMode(7), 1050),
        ] {
            assert_eq!(zone.page_cache(mode), pages, "{mode:?}");
        }
        assert_eq!(has(100, 200, 0, 0).page_cache(ON), 0, "shared memory may be mapped and on no list");
        assert_eq!(has(100, 0, 200, 0).page_cache(ON), 0);
    }

    #[test]
    fn the_order_of_the_questions() {
        let zone = |file, slab| has(file, 0, 0, slab);
        let caller = Caller::default();
        let all = Caller { must_not: true, remote_with_cpus: true, unreclaimable: true };
        let ask = |zone: Reclaimable, caller| zone_reclaim(ON, &zone, 10_000, caller);
        assert_eq!(ask(zone(100, 500), caller), Err(Seen::Full), "at both thresholds");
        assert_eq!(ask(zone(100, 500), all), Err(Seen::Full));
        assert_eq!(ask(zone(101, 500), caller), Ok(ZoneReclaim { page_cache: true, slab: false }));
        assert_eq!(ask(zone(100, 501), caller), Ok(ZoneReclaim { page_cache: false, slab: true }));
        assert_eq!(ask(zone(101, 501), all), Err(Seen::Full), "unreclaimable comes before the caller");
        let not = Err(Seen::NotScanned);
        assert_eq!(ask(zone(101, 0), Caller { must_not: true, ..caller }), not);
        assert_eq!(ask(zone(101, 0), Caller { remote_with_cpus: true, ..caller }), not);
    }

    #[test]
    fn targets_and_marks() {
        let order = |n| Order::new(n).expect("an order");
        assert_eq!([0, 5, 6, 9].map(|n| zone_reclaim_target(order(n))), [32, 32, 64, 512]);
        assert_eq!(shrink_mark(1000, 50, 10_000), 1050);
        assert_eq!(shrink_mark(1000, 500, 10_001), 1101);
        assert!(is_unreclaimable(600, 100, 0));
        assert!(!is_unreclaimable(599, 100, 0) && !is_unreclaimable(600, 100, 1));
        assert!(is_unreclaimable(0, 0, 0), "nothing is on the lists");
        assert!(could_help(90, 11, 100, Order::ZERO) && !could_help(90, 10, 100, Order::ZERO));
        assert!(!could_help(90, 13, 100, order(2)) && could_help(90, 14, 100, order(2)));
    }

    /// Every node of up to four zones, each absent, fine, low, or low and unreclaimable.
    #[test]
    fn every_small_node() {
        let kinds = [
            Balance::default(),
            Balance { pages: 100, meets_high: true, unreclaimable: false },
            Balance { pages: 100, meets_high: false, unreclaimable: false },
            Balance { pages: 100, meets_high: false, unreclaimable: true },
        ];
        let huge = Order::new(9).expect("an order");
        for choice in 0..4_usize.pow(4) {
            let zones: [Balance; 4] = core::array::from_fn(|n| kinds[choice >> (2 * n) & 3]);
            let first = highest_unbalanced(&zones, FIRST_PRIORITY);
            let later = highest_unbalanced(&zones, FIRST_PRIORITY - 1);
            assert_eq!(first, (0..4).rev().find(|&n| zones[n].pages > 0 && !zones[n].meets_high));
            assert_eq!(later, (0..4).rev().find(|&n| zones[n] == kinds[2]));
            let done = |generation, order| is_balanced(generation, order, &zones);
            assert_eq!(done(Generation::V3_0, Order::ZERO), later.is_none(), "{zones:?}");
            let populated = zones.iter().filter(|zone| zone.pages > 0).count();
            let fine = zones.iter().filter(|&zone| *zone == kinds[1] || *zone == kinds[3]).count();
            assert_eq!(done(Generation::V3_0, huge), populated == 0 || 4 * fine > populated, "{zones:?}");
            let meets_high = zones.contains(&kinds[1]);
            assert_eq!(done(Generation::V6_1, Order::ZERO), populated == 0 || meets_high, "{zones:?}");
        }
    }

    /// The worked example: a million pages of which none can be freed.
    #[test]
    fn what_a_failing_zone_reclaim_scans() {
        let scanned: u64 = (0..=ZONE_RECLAIM_PRIORITY).map(|priority| 1_000_000 >> priority).sum();
        assert_eq!(scanned, 1_937_500);
    }
}
