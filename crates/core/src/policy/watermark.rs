//! Watermarks: how much free memory a zone keeps, and which requests may go below.
//!
//! A zone has three marks. Background reclaim wakes below `low` and rests above `high`; below `min` only requests with
//! special [`Access`] succeed. A zone into which requests of a higher zone may fall back (a Normal request into DMA32)
//! also keeps a lowmem reserve.

use super::Generation;
use crate::units::{Migratetype, Order, PAGEBLOCK_PAGES, ZoneType};

/// Number of zone types, the length of every per-node array here.
pub const ZONES: usize = ZoneType::ALL.len();
/// Default lowmem reserve ratio by zone type: a zone keeps 1/ratio of the memory above it.
pub const RESERVE_RATIOS: [u64; ZONES] = [256, 256, 32, 0];
/// Default distance between the marks, in 1/10,000 of the zone (v6.1).
pub const SCALE: u64 = 10;
/// Default limit of the boost, in 1/10,000 of the high mark (v6.1); 0 turns boosts off.
pub const BOOST_FACTOR: u64 = 15_000;

/// Memory that all zones together keep free, in KiB: `isqrt(16 · lowmem)`, limited to 128 and 65,536 (v3.0) or 262,144
/// (v6.1). `lowmem_kib` is all memory of the zones that the kernel maps. O(1).
#[must_use]
pub fn min_free_kib(generation: Generation, lowmem_kib: u64) -> u64 {
    let most = match generation {
        Generation::V3_0 => 65_536,
        Generation::V6_1 => 262_144,
    };
    lowmem_kib.saturating_mul(16).isqrt().clamp(128, most)
}

/// Memory kept free with transparent huge pages switched on, in base pages: two pageblocks for each zone, and nine more
/// (one for each pair of ordinary types), but at most a twentieth of `free_lowmem`.
///
/// `zones` counts the zones with memory, without ZONE_MOVABLE; `free_lowmem` is their managed pages, less their high
/// watermarks. Linux: `set_recommended_min_free_kbytes`, called by khugepaged; the larger of this and [`min_free_kib`]
/// applies. From v5.13 on the per-CPU lists are sized by the low watermark, so that they grow with it. O(1).
#[must_use]
pub const fn recommended_pages_min(zones: u64, free_lowmem: u64) -> u64 {
    const TYPES: u64 = 3;
    let wanted = PAGEBLOCK_PAGES.saturating_mul(zones).saturating_mul(2 + TYPES * TYPES);
    if wanted < free_lowmem / 20 { wanted } else { free_lowmem / 20 }
}

/// [`min_free_kib`] in base pages of `page_kib` KiB (0 counts as 1). O(1).
#[must_use]
pub fn pages_min(min_free_kib: u64, page_kib: u64) -> u64 {
    min_free_kib / page_kib.max(1)
}

/// A zone's share t of [`pages_min`]: `pages_min · zone / lowmem`, all in base pages. O(1).
#[must_use]
pub fn share(pages_min: u64, zone_pages: u64, lowmem_pages: u64) -> u64 {
    mul_div(pages_min, zone_pages, lowmem_pages)
}

/// Watermarks of a zone, in base pages.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks {
    /// Below it only requests with access to reserves succeed.
    pub min: u64,
    /// Below it background reclaim wakes.
    pub low: u64,
    /// Above it background reclaim rests.
    pub high: u64,
}

impl Marks {
    /// A zone's marks from its share t of [`pages_min`]. With m = t, or for a highmem zone
    /// `clamp(zone_pages / 1024, 32, 128)`:
    ///
    /// | rule | min | low | high |
    /// |---|---|---|---|
    /// | v3.0 | m | m + t/4 | m + t/2 |
    /// | v6.1 | m | m + step | m + 2 · step, step = max(t/4, `zone_pages` · `scale` / 10,000) |
    ///
    /// `zone_pages` are present (v3.0) or managed pages (v6.1); `scale` is [`SCALE`] by default. O(1).
    #[must_use]
    pub fn new(generation: Generation, zone_pages: u64, share: u64, scale: u64, highmem: bool) -> Self {
        let min = if highmem { (zone_pages / 1024).clamp(32, 128) } else { share };
        let (to_low, to_high) = match generation {
            Generation::V3_0 => (share / 4, share / 2),
            Generation::V6_1 => {
                let step = (share / 4).max(mul_div(zone_pages, scale, 10_000));
                (step, step.saturating_mul(2))
            }
        };
        Self { min, low: min.saturating_add(to_low), high: min.saturating_add(to_high) }
    }

    /// The marks during a boost: all three are `boost` higher (v6.1). O(1).
    #[must_use]
    pub fn boosted(self, boost: u64) -> Self {
        Self {
            min: self.min.saturating_add(boost),
            low: self.low.saturating_add(boost),
            high: self.high.saturating_add(boost),
        }
    }
}

/// The boost after a steal that fragments (v6.1): one pageblock more, at most `max(high · factor / 10,000, 512)`.
/// Unchanged if `factor` or the high mark is 0, or if the zone has fewer than four pageblocks. All in base pages;
/// `high` is the mark without boost. O(1).
#[must_use]
pub fn boost_after_steal(boost: u64, high: u64, managed: u64, factor: u64) -> u64 {
    let most = mul_div(high, factor, 10_000);
    if most == 0 || managed < 4 * PAGEBLOCK_PAGES {
        return boost;
    }
    boost.saturating_add(PAGEBLOCK_PAGES).min(most.max(PAGEBLOCK_PAGES))
}

/// The lowmem reserve of one node: a request that may use zones up to j must leave `table[i][j]` base pages in zone i.
///
/// For i < j it is the sum of zones i+1 to j divided by the ratio of i, else 0. v6.1: 0 also if the ratio is 0 or zone
/// i is empty; v3.0 takes a ratio of 0 as 1. `pages` are present (v3.0) or managed (v6.1), by zone type. O(zones²).
#[must_use]
pub fn lowmem_reserve(
    generation: Generation,
    pages: &[u64; ZONES],
    ratios: &[u64; ZONES],
) -> [[u64; ZONES]; ZONES] {
    let mut table = [[0; ZONES]; ZONES];
    for (i, row) in table.iter_mut().enumerate() {
        let ratio = match generation {
            Generation::V3_0 => ratios[i].max(1),
            Generation::V6_1 if ratios[i] == 0 || pages[i] == 0 => continue,
            Generation::V6_1 => ratios[i],
        };
        let mut above = 0_u64;
        for j in i + 1..ZONES {
            above = above.saturating_add(pages[j]);
            row[j] = above / ratio;
        }
    }
    table
}

/// Reserves that a request may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Access {
    /// Important request: may use half of the min mark.
    pub high: bool,
    /// Cannot wait (v3.0: or is a realtime task): may use a further quarter. v6.1: only together with `high`.
    pub harder: bool,
    /// Is an OOM victim that frees memory soon: the mark is halved again (v6.1).
    pub oom_victim: bool,
    /// May take blocks reserved for high-order atomic requests (v6.1).
    pub highatomic: bool,
    /// May take CMA blocks (v6.1).
    pub cma: bool,
}

impl Access {
    /// Whether the request may use blocks of this type (v6.1). O(1).
    #[must_use]
    pub const fn may_use(self, migratetype: Migratetype) -> bool {
        match migratetype {
            Migratetype::Unmovable | Migratetype::Movable | Migratetype::Reclaimable => true,
            Migratetype::HighAtomic => self.highatomic,
            Migratetype::Cma => self.cma,
            Migratetype::Isolate => false,
        }
    }

    /// The part of `mark` that the request must hold. O(1).
    #[must_use]
    pub const fn lowered(self, generation: Generation, mark: u64) -> u64 {
        let mut m = mark;
        if self.high {
            m -= m / 2;
        }
        let is_old = matches!(generation, Generation::V3_0);
        if self.harder && (self.high || is_old) {
            m -= m / 4;
        }
        if self.oom_victim && !is_old {
            m -= m / 2;
        }
        m
    }
}

/// Free pages of a zone, in base pages (v6.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FreePages {
    /// Free on all lists, CMA and high-atomic ones included.
    pub all: u64,
    /// In pageblocks reserved for high-order atomic requests, whether free or in use.
    pub highatomic: u64,
    /// Free in CMA pageblocks.
    pub cma: u64,
}

/// A watermark check of a zone for one request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Check {
    /// Order of the block wanted.
    pub order: Order,
    /// The mark to hold, in base pages, any boost included.
    pub mark: u64,
    /// The zone's lowmem reserve against this request ([`lowmem_reserve`]), in base pages.
    pub reserve: u64,
    /// Reserves that the request may use.
    pub access: Access,
}

/// Number of base pages that may leave a zone before a request no longer meets its mark. Every way to memory calls it:
/// one block, many together, a refill, a given range. A racy hint, like the counts: CPUs that call it at the same
/// instant get the same answer.
///
/// `free`, less the mark as [`Access::lowered`] leaves it, less the lowmem reserve, less the pages that the request may
/// not use. These are: in v6.1 high-atomic and CMA pages, unless it has access; in v3.0 two pages. O(1).
#[must_use]
pub fn may_leave(generation: Generation, request: &Check, free: FreePages) -> u64 {
    let Check { mark, reserve, access, .. } = *request;
    let barred = |entitled: bool, pages| if entitled { 0 } else { pages };
    let unusable = match generation {
        Generation::V3_0 => 2,
        Generation::V6_1 => {
            barred(access.highatomic, free.highatomic).saturating_add(barred(access.cma, free.cma))
        }
    };
    let kept = unusable.saturating_add(access.lowered(generation, mark)).saturating_add(reserve);
    free.all.saturating_sub(kept)
}

/// Whether a zone passes the watermark check of v3.0. `nr_free` gives the number of free blocks of an order; it is
/// called only for orders below the request's. A passed check is a hint: nothing is reserved.
///
/// With k = order, f = `free` - (2^k + 1) and m = [`Access::lowered`]: no if f ≤ m + reserve. Then for o = 0 … k-1: f
/// −= `nr_free(o)` · 2^o, m = m/2, and no if f ≤ m. O(k).
#[must_use]
pub fn check_v3_0(request: &Check, free: u64, mut nr_free: impl FnMut(Order) -> u64) -> bool {
    let order = request.order;
    if may_leave(Generation::V3_0, request, FreePages { all: free, ..FreePages::default() }) < order.pages() {
        return false;
    }
    let mut m = request.access.lowered(Generation::V3_0, request.mark);
    // Everything subtracted from f is added on the other side instead, where it cannot go negative.
    let mut gone = order.pages() + 1;
    Order::all().take(order.index()).all(|smaller| {
        gone = gone.saturating_add(nr_free(smaller).saturating_mul(smaller.pages()));
        m /= 2;
        free > gone.saturating_add(m)
    })
}

/// Whether a zone passes the watermark check of v6.1 and later. `has_free` answers whether a list of the zone holds a
/// block; it is called for orders from the request's up, and not at all for order 0. A passed check is a hint: nothing
/// is reserved.
///
/// No unless a block [may leave](may_leave) the zone. Order 0 then passes; for order k > 0 one block of order ≥ k on a
/// usable list suffices. O(1) for order 0, else O(orders · types).
#[must_use]
pub fn check_v6_1(
    request: &Check,
    free: FreePages,
    mut has_free: impl FnMut(Order, Migratetype) -> bool,
) -> bool {
    let Check { order, access, .. } = *request;
    let mut usable = |order| Migratetype::ALL.into_iter().any(|t| access.may_use(t) && has_free(order, t));
    may_leave(Generation::V6_1, request, free) >= order.pages()
        && (order == Order::ZERO || order.and_above().any(&mut usable))
}

/// `a · b / c` without overflow in between; 0 if c is 0, `u64::MAX` if the result does not fit.
fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    if c == 0 {
        return 0;
    }
    u64::try_from(u128::from(a) * u128::from(b) / u128::from(c)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    // The worked machine: node 0 has DMA, DMA32 and Normal, node 1 only Normal.
    const DMA: u64 = 3975;
    const DMA32: u64 = 450_000;
    const NORMAL_0: u64 = 16_252_928;
    const NORMAL_1: u64 = 16_777_216;
    const LOWMEM: u64 = DMA + DMA32 + NORMAL_0 + NORMAL_1;
    const BOTH: [Generation; 2] = [Generation::V3_0, Generation::V6_1];

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order of the test")
    }

    fn request(k: u8, mark: u64) -> Check {
        Check { order: order(k), mark, reserve: 0, access: Access::default() }
    }

    #[test]
    fn the_worked_machine() {
        for generation in BOTH {
            let kib = min_free_kib(generation, LOWMEM * 4);
            assert_eq!((kib, pages_min(kib, 4)), (46_292, 11_573));
        }
        let t = share(11_573, NORMAL_1, LOWMEM);
        assert_eq!(
            Marks::new(Generation::V3_0, NORMAL_1, t, SCALE, false),
            Marks { min: 5798, low: 7247, high: 8697 }
        );
        assert_eq!(
            Marks::new(Generation::V6_1, NORMAL_1, t, SCALE, false),
            Marks { min: 5798, low: 22_575, high: 39_352 }
        );
        for generation in BOTH {
            let table = lowmem_reserve(generation, &[DMA, DMA32, NORMAL_0, 0], &RESERVE_RATIOS);
            assert_eq!(table[1][2], 63_488, "DMA32 against Normal");
            assert_eq!(table[0], [0, DMA32 / 256, (DMA32 + NORMAL_0) / 256, (DMA32 + NORMAL_0) / 256]);
            assert_eq!(table[2], [0; ZONES], "nothing lies above Normal");
        }
    }

    #[test]
    fn min_free_is_clamped() {
        // 16 · 1024 = 128²: the lower clamp ends at 1 MiB.
        for (lowmem, kib) in [(0, 128), (1023, 128), (1024, 128), (1040, 128), (1041, 129)] {
            assert_eq!(min_free_kib(Generation::V3_0, lowmem), kib, "{lowmem} KiB");
        }
        for (generation, most) in [(Generation::V3_0, 65_536), (Generation::V6_1, 262_144)] {
            let first = most * most / 16;
            assert_eq!(min_free_kib(generation, first - 1), most - 1);
            assert_eq!(min_free_kib(generation, first), most);
            assert_eq!(min_free_kib(generation, first * 2), most);
            assert_eq!(min_free_kib(generation, u64::MAX), most);
        }
    }

    /// A machine of 16 GiB with three zones, with the values of its /proc/zoneinfo and /proc/sys/vm/min_free_kbytes.
    #[test]
    fn huge_pages_raise_what_is_kept_free() {
        let (dma, dma32, normal) = (3840, 772_915, 4_096_000);
        let lowmem = dma + dma32 + normal;
        let pages = recommended_pages_min(3, lowmem);
        assert_eq!(pages * 4, 67_584, "min_free_kbytes");
        assert!(min_free_kib(Generation::V6_1, lowmem * 4) < 67_584);
        let marks = Marks::new(Generation::V6_1, normal, share(pages, normal, lowmem), SCALE, false);
        assert_eq!((marks.min, marks.low), (14_202, 18_298));
        // A small machine keeps a twentieth.
        assert_eq!(recommended_pages_min(2, 100_000), 5_000);
        assert_eq!(recommended_pages_min(u64::MAX, u64::MAX), u64::MAX / 20);
    }

    #[test]
    fn larger_pages_are_fewer() {
        for (page_kib, pages) in [(4, 11_573), (16, 2893), (64, 723), (0, 46_292)] {
            assert_eq!(pages_min(46_292, page_kib), pages);
        }
    }

    #[test]
    fn shares_never_exceed_what_is_shared() {
        let zones = [DMA, DMA32, NORMAL_0, NORMAL_1];
        let sum: u64 = zones.iter().map(|&zone| share(11_573, zone, LOWMEM)).sum();
        assert!((11_573 - 4..=11_573).contains(&sum), "each share rounds down");
        assert_eq!(share(u64::MAX, 1 << 40, 1 << 40), u64::MAX);
        assert_eq!(share(1, 1, 0), 0, "no lowmem");
    }

    #[test]
    fn highmem_zones_have_a_small_min_and_the_common_distances() {
        for (pages, min) in [(0, 32), (33 * 1024 - 1, 32), (33 * 1024, 33), (128 * 1024, 128), (1 << 40, 128)]
        {
            assert_eq!(
                Marks::new(Generation::V3_0, pages, 400, SCALE, true),
                Marks { min, low: min + 100, high: min + 200 }
            );
        }
    }

    #[test]
    fn marks_rise_in_order_with_the_zone_and_its_scale() {
        for generation in BOTH {
            let mut last = Marks::default();
            for shift in 0..=40 {
                for scale in [0, 1, 10, 3000] {
                    let pages = 1_u64 << shift;
                    let marks = Marks::new(generation, pages, share(11_573, pages, 1 << 40), scale, false);
                    assert!(marks.min <= marks.low && marks.low <= marks.high, "{marks:?}");
                    if scale == 10 {
                        assert!(marks.min >= last.min && marks.low >= last.low && marks.high >= last.high);
                        last = marks;
                    }
                }
            }
        }
        assert_eq!(Marks::new(Generation::V6_1, u64::MAX, u64::MAX, u64::MAX, false).high, u64::MAX);
    }

    #[test]
    fn a_boost_grows_by_pageblocks_to_its_limit_and_goes_with_reclaim() {
        let high = 39_352;
        let mut boost = 0;
        for step in 1..=115 {
            boost = boost_after_steal(boost, high, NORMAL_1, BOOST_FACTOR);
            assert_eq!(boost, 512 * step);
        }
        boost = boost_after_steal(boost, high, NORMAL_1, BOOST_FACTOR);
        assert_eq!(boost, 59_028, "one and a half high marks");
        assert_eq!(boost_after_steal(boost, high, NORMAL_1, BOOST_FACTOR), 59_028);
        // A small mark still gets one pageblock; a mark of 0, a factor of 0 and a tiny zone get none.
        assert_eq!(boost_after_steal(0, 10, 2048, BOOST_FACTOR), 512);
        assert_eq!(boost_after_steal(0, 10, 2047, BOOST_FACTOR), 0);
        assert_eq!(boost_after_steal(0, 0, NORMAL_1, BOOST_FACTOR), 0);
        assert_eq!(boost_after_steal(7, high, NORMAL_1, 0), 7);
        assert_eq!(Marks { min: 1, low: 2, high: 3 }.boosted(10), Marks { min: 11, low: 12, high: 13 });
    }

    #[test]
    fn generations_differ_on_a_ratio_of_zero_and_on_empty_zones() {
        let pages = [0, 1000, 64_000, 0];
        let v3_0 = lowmem_reserve(Generation::V3_0, &pages, &[256, 0, 32, 0]);
        assert_eq!(v3_0, [[0, 3, 253, 253], [0, 0, 64_000, 64_000], [0; 4], [0; 4]]);
        let v6_1 = lowmem_reserve(Generation::V6_1, &pages, &[256, 0, 32, 0]);
        assert_eq!(v6_1, [[0; 4]; 4], "DMA is empty and DMA32 has no ratio");
        assert_eq!(lowmem_reserve(Generation::V6_1, &[1, 1, u64::MAX, u64::MAX], &[1; 4])[0][3], u64::MAX);
    }

    #[test]
    fn the_worked_check_of_v3_0() {
        let nr_free = |order: Order| [3000, 1000][order.index()];
        assert!(check_v3_0(&request(2, 4000), 10_000, nr_free));
        // 9995 > 4000, 6995 > 2000, 4995 > 1000: each comparison is strict.
        assert!(!check_v3_0(&request(2, 9995), 10_000, nr_free));
        assert!(check_v3_0(&request(2, 9994), 10_000, |_| 0));
        let with_order_0 = |blocks| move |order: Order| [blocks, 0][order.index()];
        assert!(check_v3_0(&request(2, 4000), 10_000, with_order_0(7994)));
        assert!(!check_v3_0(&request(2, 4000), 10_000, with_order_0(7995)));
        let with_order_1 = |blocks| move |order: Order| [0, blocks][order.index()];
        assert!(check_v3_0(&request(2, 4000), 10_000, with_order_1(4497)));
        assert!(!check_v3_0(&request(2, 4000), 10_000, with_order_1(4498)));
    }

    #[test]
    fn both_checks_count_the_reserve() {
        for (mark, reserve) in [(0, 0), (1000, 0), (1000, 63_488)] {
            let request = Check { reserve, ..request(0, mark) };
            // v3.0 asks for one page more than v6.1 does, and then one.
            let (old, new) = (mark + reserve + 2, mark + reserve);
            assert!(!check_v3_0(&request, old, |_| 0));
            assert!(check_v3_0(&request, old + 1, |_| 0));
            assert!(!check_v3_0(&request, 0, |_| 0));
            let free = |all| FreePages { all, ..FreePages::default() };
            assert!(!check_v6_1(&request, free(new), |_, _| false));
            assert!(check_v6_1(&request, free(new + 1), |_, _| false));
        }
        let endless = Check { reserve: u64::MAX, ..request(0, u64::MAX) };
        assert!(!check_v3_0(&endless, 1 << 40, |_| u64::MAX));
        assert!(!check_v6_1(&endless, FreePages { all: 1 << 40, ..FreePages::default() }, |_, _| true));
    }

    /// The blocks that pass a check one after another are as many as may leave.
    #[test]
    fn as_many_blocks_pass_as_may_leave() {
        for generation in BOTH {
            for k in [0, 2, 9] {
                for (all, mark, reserve, highatomic) in [
                    (0, 0, 0, 0),
                    (5000, 1000, 0, 0),
                    (5000, 1000, 700, 512),
                    (900, 1000, 0, 0),
                    (5000, 0, 0, 5000),
                ] {
                    let request = Check { reserve, ..request(k, mark) };
                    let free = |all| FreePages { all, highatomic, cma: 0 };
                    let met = |all| match generation {
                        Generation::V3_0 => check_v3_0(&request, all, |_| 0),
                        Generation::V6_1 => check_v6_1(&request, free(all), |_, _| true),
                    };
                    let mut left = all;
                    while met(left) {
                        left -= request.order.pages();
                    }
                    let pages = may_leave(generation, &request, free(all));
                    assert_eq!(pages >> k, (all - left) >> k, "{generation:?}, {request:?} of {all}");
                }
            }
        }
    }

    #[test]
    fn access_lowers_the_mark() {
        let access = |high, harder, oom_victim| Access { high, harder, oom_victim, ..Access::default() };
        for (high, harder, oom_victim, v3_0, v6_1) in [
            (false, false, false, 1001, 1001),
            (true, false, false, 501, 501),
            (false, true, false, 751, 1001),
            (true, true, false, 376, 376),
            (false, false, true, 1001, 501),
            (true, true, true, 376, 188),
        ] {
            let access = access(high, harder, oom_victim);
            assert_eq!(access.lowered(Generation::V3_0, 1001), v3_0, "{access:?}");
            assert_eq!(access.lowered(Generation::V6_1, 1001), v6_1, "{access:?}");
        }
        let relaxed = Check { access: access(true, false, false), ..request(0, 1000) };
        assert!(!check_v3_0(&relaxed, 502, |_| 0));
        assert!(check_v3_0(&relaxed, 503, |_| 0));
    }

    #[test]
    fn v6_1_counts_reserved_and_cma_pages_only_for_the_entitled() {
        let free = FreePages { all: 1000, highatomic: 300, cma: 200 };
        for (highatomic, cma, usable) in
            [(false, false, 500), (true, false, 800), (false, true, 700), (true, true, 1000)]
        {
            let access = Access { highatomic, cma, ..Access::default() };
            let at = |mark| check_v6_1(&Check { access, ..request(0, mark) }, free, |_, _| false);
            assert!(at(usable - 1));
            assert!(!at(usable));
        }
    }

    #[test]
    fn v6_1_wants_one_block_of_the_order_on_a_usable_list() {
        let free = FreePages { all: 100_000, ..FreePages::default() };
        for k in 1..=10 {
            for on in Order::all() {
                for list in Migratetype::ALL {
                    for (highatomic, cma) in [(false, false), (true, false), (false, true)] {
                        let access = Access { highatomic, cma, ..Access::default() };
                        let request = Check { access, ..request(k, 1000) };
                        let got = check_v6_1(&request, free, |o, t| (o, t) == (on, list));
                        let usable = list.is_ordinary()
                            || (list == Migratetype::HighAtomic && highatomic)
                            || (list == Migratetype::Cma && cma);
                        let passes = on.get() >= k && usable;
                        assert_eq!(got, passes);
                    }
                }
            }
        }
        // All but one page of the block count as taken already: with 1000 + 4 pages order 2 passes, with 1003 it does
        // not.
        let at = |all| check_v6_1(&request(2, 1000), FreePages { all, ..FreePages::default() }, |_, _| true);
        assert!(!at(1003) && at(1004));
    }
}
