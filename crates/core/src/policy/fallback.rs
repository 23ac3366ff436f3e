//! Fallback: which other type a request takes from when its own lists are empty, what is retyped, which blocks merge,
//! and at which end of a list a block goes.
//!
//! Mobility grouping gives each pageblock a type and keeps movable blocks together, so that whole pageblocks can be
//! emptied again. A request that finds nothing of its type takes from another; these rules limit the mixed pageblocks.

use super::Generation;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

/// Order from which a block is large enough to take its whole pageblock along: half of [`PAGEBLOCK_ORDER`].
const LARGE_ORDER: u8 = PAGEBLOCK_ORDER.get() / 2;

/// Types to take from for a request of type `requester`, best first. Empty for a type that is not ordinary.
///
/// v6.1. v3.0 tries the same two, then a reserve of at most two pageblocks per zone; this module has no such reserve.
/// O(1).
#[must_use]
pub const fn fallbacks(requester: Migratetype) -> &'static [Migratetype] {
    match requester {
        Migratetype::Unmovable => &[Migratetype::Reclaimable, Migratetype::Movable],
        Migratetype::Reclaimable => &[Migratetype::Unmovable, Migratetype::Movable],
        Migratetype::Movable => &[Migratetype::Reclaimable, Migratetype::Unmovable],
        Migratetype::HighAtomic | Migratetype::Cma | Migratetype::Isolate => &[],
    }
}

/// Whether zones group blocks by mobility: `usable_pages` suffice for one pageblock of each of `types` types. `types`
/// counts those in use (4 to 6). O(1).
#[must_use]
pub const fn grouping(usable_pages: u64, types: u64) -> bool {
    usable_pages >= PAGEBLOCK_PAGES.saturating_mul(types)
}

/// Effect of a steal besides handing out a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Steal {
    /// The block covers whole pageblocks: retype them and move it to the requester's list.
    Retype,
    /// Boost the watermarks (v6.1). Move all free blocks of the pageblock to the tails of the requester's lists, and
    /// retype it if [`retypes`] answers `true`. If no block could be moved, like [`Block`](Self::Block).
    Pageblock,
    /// Boost the watermarks (v6.1). Move this one block; the pageblock keeps its type.
    Block,
}

/// Whether a steal may take all free blocks of the pageblock, not only the one found.
///
/// v6.1: yes if the found order is at least 4, or the requester is unmovable or reclaimable, or grouping is off. v3.0:
/// likewise, except for unmovable requesters. O(1).
#[must_use]
pub const fn can_steal_whole(
    generation: Generation,
    found: Order,
    requester: Migratetype,
    grouping: bool,
) -> bool {
    let pollutes = match requester {
        Migratetype::Reclaimable => true,
        Migratetype::Unmovable => matches!(generation, Generation::V6_1),
        _ => false,
    };
    found.get() >= LARGE_ORDER || pollutes || !grouping
}

/// The effect of stealing a block of order `found`. O(1).
#[must_use]
pub const fn steal(generation: Generation, found: Order, requester: Migratetype, grouping: bool) -> Steal {
    if found.get() >= PAGEBLOCK_ORDER.get() {
        Steal::Retype
    } else if can_steal_whole(generation, found, requester, grouping) {
        Steal::Pageblock
    } else {
        Steal::Block
    }
}

/// Whether a steal takes the smallest block that suffices, given the order `largest` of the largest suitable one.
///
/// v6.1: yes for a movable request that cannot steal the whole pageblock: nothing else comes along, so large blocks are
/// spared. Otherwise, and in v3.0, it takes the largest: that brings most of a pageblock along, so that the next steal
/// comes late. O(1).
#[must_use]
pub const fn takes_smallest(
    generation: Generation,
    largest: Order,
    requester: Migratetype,
    grouping: bool,
) -> bool {
    matches!((generation, requester), (Generation::V6_1, Migratetype::Movable))
        && !can_steal_whole(generation, largest, requester, grouping)
}

/// The block that a steal takes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Source {
    /// Order of the block.
    pub order: Order,
    /// Type of the list that it is on.
    pub migratetype: Migratetype,
    /// Effect besides handing it out.
    pub steal: Steal,
}

/// Chooses the block to steal for a request of order `wanted`; `None` if no other list has one. `has_free` answers
/// whether a list holds a block.
///
/// Goes through the orders from [`MAX_ORDER`] down to `wanted`, at each through [`fallbacks`]; with
/// `avoid_fragmentation` only to the pageblock order (v6.1: the first pass over local zones). If [`takes_smallest`], it
/// goes up again from there. O(orders).
#[must_use]
pub fn choose(
    generation: Generation,
    wanted: Order,
    requester: Migratetype,
    grouping: bool,
    avoid_fragmentation: bool,
    mut has_free: impl FnMut(Order, Migratetype) -> bool,
) -> Option<Source> {
    let floor = if avoid_fragmentation { wanted.max(PAGEBLOCK_ORDER) } else { wanted };
    let mut found = floor.and_above().rev().find_map(|order| at(order, requester, &mut has_free))?;
    if takes_smallest(generation, found.0, requester, grouping) {
        found = smallest(floor, requester, &mut has_free)?;
    }
    let (order, migratetype) = found;
    Some(Source { order, migratetype, steal: steal(generation, order, requester, grouping) })
}

fn at(
    order: Order,
    requester: Migratetype,
    has_free: &mut impl FnMut(Order, Migratetype) -> bool,
) -> Option<(Order, Migratetype)> {
    fallbacks(requester).iter().map(|&list| (order, list)).find(|&(order, list)| has_free(order, list))
}

/// The smallest block of another type that has at least `wanted`, and its type. O(orders).
#[must_use]
pub fn smallest(
    wanted: Order,
    requester: Migratetype,
    mut has_free: impl FnMut(Order, Migratetype) -> bool,
) -> Option<(Order, Migratetype)> {
    wanted.and_above().find_map(|order| at(order, requester, &mut has_free))
}

/// Number of a pageblock's allocated pages that suit the requester and count towards retyping.
///
/// v6.1: for a movable request, the allocated movable pages; for another request that takes from a movable pageblock,
/// the allocated pages that are not movable; else 0. v3.0: always 0. `free` and `movable` are the base pages of the
/// pageblock that are free, and allocated and movable. O(1).
#[must_use]
pub const fn compatible_pages(
    generation: Generation,
    requester: Migratetype,
    pageblock: Migratetype,
    free: u64,
    movable: u64,
) -> u64 {
    match (generation, requester, pageblock) {
        (Generation::V6_1, Migratetype::Movable, _) => movable,
        (Generation::V6_1, _, Migratetype::Movable) => {
            PAGEBLOCK_PAGES.saturating_sub(free.saturating_add(movable))
        }
        _ => 0,
    }
}

/// Whether a pageblock takes the requester's type: at least half of its 512 pages were free and moved, or are
/// [compatible](compatible_pages); or grouping is off. O(1).
#[must_use]
pub const fn retypes(moved: u64, compatible: u64, grouping: bool) -> bool {
    moved.saturating_add(compatible) >= PAGEBLOCK_PAGES / 2 || !grouping
}

/// Whether a free block of order `order` may merge with its free buddy, given the types of their pageblocks.
///
/// v6.1: below the pageblock order both are in one pageblock and may merge. From the pageblock order on they may merge
/// if the types are equal or both are ordinary: high-atomic, CMA and isolated pageblocks keep their borders. No block
/// exceeds [`MAX_ORDER`]. O(1).
#[must_use]
#[inline]
pub const fn may_merge(order: Order, a: Migratetype, b: Migratetype) -> bool {
    if order.get() >= MAX_ORDER.get() {
        return false;
    }
    order.get() < PAGEBLOCK_ORDER.get() || a as u8 == b as u8 || (a.is_ordinary() && b.is_ordinary())
}

/// Whether a freed block that has merged up to `order` goes to the tail of its list, where it is taken last.
///
/// v6.1: if forced (memory coming online, boot, put-back); or if the buddy of the parent, of order `order + 1`, is
/// free, so that a larger merge is likely soon. `next_buddy_free` is called only where it matters: not forced, and
/// `order` ≤ 8. O(1).
#[must_use]
#[inline]
pub fn to_tail(order: Order, forced_tail: bool, next_buddy_free: impl FnOnce() -> bool) -> bool {
    forced_tail || (order.get() + 1 < MAX_ORDER.get() && next_buddy_free())
}

/// Whether a request takes from CMA before its own lists: it is movable, may use CMA, and more than half of the zone's
/// free pages are CMA (v6.1). Otherwise a request that may use CMA tries it when its own lists fail. O(1).
#[must_use]
pub const fn cma_first(requester: Migratetype, cma_allowed: bool, free: u64, free_cma: u64) -> bool {
    matches!(requester, Migratetype::Movable) && cma_allowed && free_cma > free / 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use Migratetype::{Cma, HighAtomic, Isolate, Movable, Reclaimable, Unmovable};

    fn order(order: u8) -> Order {
        Order::new(order).expect("an order of the test")
    }

    #[test]
    fn ordinary_types_fall_back_to_the_other_two() {
        assert_eq!(fallbacks(Unmovable), [Reclaimable, Movable]);
        assert_eq!(fallbacks(Reclaimable), [Unmovable, Movable]);
        assert_eq!(fallbacks(Movable), [Reclaimable, Unmovable]);
        for special in [HighAtomic, Cma, Isolate] {
            assert!(fallbacks(special).is_empty(), "{special}");
        }
    }

    #[test]
    fn grouping_needs_a_pageblock_for_each_type() {
        for (types, pages) in [(4, 2048), (5, 2560), (6, 3072)] {
            assert!(!grouping(pages - 1, types));
            assert!(grouping(pages, types));
            assert!(grouping(pages + 1, types));
        }
    }

    #[test]
    fn who_may_steal_whole_pageblocks() {
        for found in Order::all() {
            for requester in Migratetype::ORDINARY {
                let large = found.get() >= 4;
                let v6_1 = large || requester != Movable;
                let v3_0 = large || requester == Reclaimable;
                assert_eq!(can_steal_whole(Generation::V6_1, found, requester, true), v6_1);
                assert_eq!(can_steal_whole(Generation::V3_0, found, requester, true), v3_0);
                for generation in [Generation::V3_0, Generation::V6_1] {
                    assert!(can_steal_whole(generation, found, requester, false), "grouping is off");
                    let expected = match found.get() {
                        9.. => Steal::Retype,
                        _ if can_steal_whole(generation, found, requester, true) => Steal::Pageblock,
                        _ => Steal::Block,
                    };
                    assert_eq!(steal(generation, found, requester, true), expected);
                }
                assert!(!takes_smallest(Generation::V3_0, found, requester, true));
                let smallest = requester == Movable && !large;
                assert_eq!(takes_smallest(Generation::V6_1, found, requester, true), smallest);
            }
        }
    }

    #[test]
    fn a_movable_request_with_only_small_blocks_elsewhere_takes_the_smallest() {
        // The worked example: other types only have orders 2 and 3.
        let has_free = |o: Order, t| t == Unmovable && (o == order(2) || o == order(3));
        let at = |generation, requester| choose(generation, Order::ZERO, requester, true, false, has_free);
        assert_eq!(
            at(Generation::V6_1, Movable),
            Some(Source { order: order(2), migratetype: Unmovable, steal: Steal::Block })
        );
        assert_eq!(
            at(Generation::V3_0, Movable),
            Some(Source { order: order(3), migratetype: Unmovable, steal: Steal::Block })
        );
        assert_eq!(
            at(Generation::V6_1, Reclaimable),
            Some(Source { order: order(3), migratetype: Unmovable, steal: Steal::Pageblock })
        );
        assert_eq!(at(Generation::V6_1, Unmovable), None, "its own lists are not a fallback");
    }

    /// All sets of free lists of two types over a few orders, against a plain reading of the rule.
    #[test]
    fn choose_follows_the_rule_for_every_set_of_free_lists() {
        let orders = [0, 2, 4, 9, 10];
        for requester in Migratetype::ORDINARY {
            let [first, second] = *fallbacks(requester) else { panic!("two fallbacks") };
            for set in 0_u32..1 << 10 {
                let has_free = |o: Order, t: Migratetype| {
                    let Some(place) = orders.iter().position(|&k| k == o.get()) else { return false };
                    (t == first && set >> place & 1 == 1) || (t == second && set >> (place + 5) & 1 == 1)
                };
                for wanted in [0, 1, 3, 9, 10].map(order) {
                    for avoid in [false, true] {
                        let floor = if avoid { wanted.get().max(9) } else { wanted.get() };
                        let fit: [bool; 11] = core::array::from_fn(|k| {
                            k as u8 >= floor
                                && (has_free(order(k as u8), first) || has_free(order(k as u8), second))
                        });
                        let largest = fit.iter().rposition(|&fits| fits);
                        let smallest = fit.iter().position(|&fits| fits);
                        let picked = match largest {
                            Some(k) if requester == Movable && k < 4 => smallest,
                            _ => largest,
                        };
                        let got = choose(Generation::V6_1, wanted, requester, true, avoid, has_free);
                        assert_eq!(got.map(|source| source.order.index()), picked);
                        if let Some(source) = got {
                            let preferred = if has_free(source.order, first) { first } else { second };
                            assert_eq!(source.migratetype, preferred);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn half_a_pageblock_decides_the_type() {
        for (moved, compatible, retyped) in [
            (0, 0, false),
            (255, 0, false),
            (256, 0, true),
            (100, 155, false),
            (100, 156, true),
            (0, 512, true),
        ] {
            assert_eq!(retypes(moved, compatible, true), retyped);
            assert!(retypes(moved, compatible, false), "without grouping, always");
        }
        let at = |requester, pageblock| compatible_pages(Generation::V6_1, requester, pageblock, 100, 150);
        assert_eq!(at(Movable, Unmovable), 150);
        assert_eq!(at(Movable, Reclaimable), 150);
        assert_eq!(at(Unmovable, Movable), 512 - 250);
        assert_eq!(at(Reclaimable, Movable), 262);
        assert_eq!(at(Unmovable, Reclaimable), 0);
        assert_eq!(at(Reclaimable, Unmovable), 0);
        assert_eq!(compatible_pages(Generation::V3_0, Movable, Unmovable, 100, 150), 0);
        assert_eq!(
            compatible_pages(Generation::V6_1, Unmovable, Movable, 400, 200),
            0,
            "inconsistent counts"
        );
    }

    #[test]
    fn special_pageblocks_keep_their_borders() {
        for order in Order::all() {
            for a in Migratetype::ALL {
                for b in Migratetype::ALL {
                    let expected = match order.get() {
                        10 => false,
                        9 => {
                            a == b
                                || (Migratetype::ORDINARY.contains(&a) && Migratetype::ORDINARY.contains(&b))
                        }
                        _ => true,
                    };
                    assert_eq!(may_merge(order, a, b), expected, "{order}, {a} and {b}");
                    assert_eq!(may_merge(order, b, a), expected);
                }
            }
        }
    }

    #[test]
    fn a_block_about_to_merge_further_waits_at_the_tail() {
        for order in Order::all() {
            assert!(to_tail(order, true, || panic!("no need to look")));
            assert!(!to_tail(order, false, || false));
            if order.get() <= 8 {
                assert!(to_tail(order, false, || true));
            } else {
                assert!(!to_tail(order, false, || panic!("there is no larger merge")));
            }
        }
    }

    #[test]
    fn movable_requests_spare_ordinary_pages_while_cma_is_the_larger_half() {
        for (free, cma, first) in
            [(0, 0, false), (1000, 500, false), (1000, 501, true), (1001, 500, false), (1001, 501, true)]
        {
            assert_eq!(cma_first(Movable, true, free, cma), first, "{cma} of {free}");
            assert!(!cma_first(Movable, false, free, cma));
            assert!(!cma_first(Unmovable, true, free, cma));
            assert!(!cma_first(Reclaimable, true, free, cma));
        }
    }
}
