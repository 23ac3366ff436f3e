//! Freed blocks joined to runs.

use crate::buddy::Run;
use crate::config::Bulk;
use crate::units::{MAX_ORDER, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// The bits of a frame's number that all blocks of a run of this order share: a run ends at its pageblock; one of huge blocks at
/// the block of the largest order, with maps at as many pageblocks as a word has bits. With nothing joined, all bits.
fn shared_bits(order: Order, bulk: Bulk, maps: bool) -> u64 {
    let within = match bulk {
        Bulk::OneByOne => 1,
        Bulk::Runs if order < PAGEBLOCK_ORDER => PAGEBLOCK_PAGES,
        Bulk::Runs if maps => 64 * PAGEBLOCK_PAGES,
        Bulk::Runs => MAX_ORDER.pages(),
    };
    !(within - 1)
}

/// Adds a block to a run that it continues upwards or downwards. On `false` the run is unchanged.
#[inline(always)]
fn extend(run: &mut Run, pfn: Pfn, shared: u64) -> bool {
    let Run { first, order, count } = *run;
    if (pfn.0 ^ first.0) & shared != 0 {
        return false;
    }
    let is_above = pfn.0 == first.0 + (count << order.get());
    let is_below = pfn.add(order.pages()) == first;
    if is_below {
        run.first = pfn;
    }
    run.count += u64::from(is_above || is_below);
    is_above || is_below
}

/// Joins neighbouring blocks of one order, in the order in which they come: each that continues the run before it, ascending or
/// descending. One block is read ahead of the run that is returned.
#[inline(always)]
pub(super) fn joined(
    mut blocks: impl Iterator<Item = (Order, Pfn)>,
    bulk: Bulk,
    maps: bool,
) -> impl Iterator<Item = Run> {
    let alone = |(order, first)| Run { first, order, count: 1 };
    let mut next = blocks.next().map(alone);
    core::iter::from_fn(move || {
        let mut run = next.take()?;
        let shared = shared_bits(run.order, bulk, maps);
        for (order, pfn) in blocks.by_ref() {
            if order != run.order || !extend(&mut run, pfn, shared) {
                next = Some(alone((order, pfn)));
                break;
            }
        }
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_as_far_as_they_share_a_pageblock() {
        /// Blocks, the way of a drain, and the runs that come of them: first frame and frames or pageblocks.
        type Case<'a> = (&'a [(Order, u64)], Bulk, &'a [(u64, u64)]);
        let zero = Order::ZERO;
        let one = Order::new(1).expect("an order");
        let cases: [Case<'_>; 8] = [
            (&[], Bulk::Runs, &[]),
            (&[(zero, 7)], Bulk::Runs, &[(7, 1)]),
            (&[(zero, 7), (zero, 8), (zero, 9)], Bulk::Runs, &[(7, 3)]),
            (&[(zero, 9), (zero, 8), (zero, 10)], Bulk::Runs, &[(8, 3)]),
            (&[(zero, 7), (zero, 8)], Bulk::OneByOne, &[(7, 1), (8, 1)]),
            (&[(zero, 511), (zero, 512)], Bulk::Runs, &[(511, 1), (512, 1)]),
            (&[(zero, 6), (one, 8), (one, 10), (zero, 12)], Bulk::Runs, &[(6, 1), (8, 2), (12, 1)]),
            (&[(PAGEBLOCK_ORDER, 512), (PAGEBLOCK_ORDER, 1024)], Bulk::Runs, &[(512, 2)]),
        ];
        for (blocks, bulk, runs) in cases {
            let blocks = blocks.iter().map(|&(order, pfn)| (order, Pfn(pfn)));
            let is = joined(blocks, bulk, true).map(|run| (run.first.0, run.count));
            assert!(is.eq(runs.iter().copied()), "{runs:?}");
        }
        let pair = [512, 1024].map(|pfn| (PAGEBLOCK_ORDER, Pfn(pfn)));
        assert_eq!(
            joined(pair.into_iter(), Bulk::Runs, false).count(),
            2,
            "not one block of the largest order"
        );
    }
}
