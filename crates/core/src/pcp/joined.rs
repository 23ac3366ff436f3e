//! Freed blocks joined to runs.

use crate::buddy::{Buddy, Placement, Run};
use crate::platform::Platform;
use crate::units::{Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// The bits of a frame's number that all blocks of a run of this order share: a run ends at its pageblock, one of huge blocks at `most`
/// frames.
const fn shared_bits(order: Order, most: u64) -> u64 {
    let within = if order.get() < PAGEBLOCK_ORDER.get() { PAGEBLOCK_PAGES } else { most };
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
/// descending, as far as they share `most` frames. One block is read ahead of the run that is returned.
#[inline(always)]
pub(super) fn joined(mut blocks: impl Iterator<Item = (Order, Pfn)>, most: u64) -> impl Iterator<Item = Run> {
    let alone = |(order, first)| Run { first, order, count: 1 };
    let mut next = blocks.next().map(alone);
    core::iter::from_fn(move || {
        let mut run = next.take()?;
        let shared = shared_bits(run.order, most);
        for (order, pfn) in blocks.by_ref() {
            if order != run.order || !extend(&mut run, pfn, shared) {
                next = Some(alone((order, pfn)));
                break;
            }
        }
        Some(run)
    })
}

/// Frees blocks one by one, where they are on lists, each when the next has been read.
pub(super) fn give_back<P: Platform, M>(
    buddy: &mut Buddy<'_, '_, P, M>,
    order: Order,
    blocks: impl Iterator<Item = Pfn>,
) {
    let mut blocks = blocks.peekable();
    while let Some(pfn) = blocks.next() {
        blocks.peek();
        buddy.free(pfn, order, Placement::Likely);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_as_far_as_they_share_a_pageblock() {
        /// Blocks, and the runs that come of them: first frame and frames or pageblocks.
        type Case<'a> = (&'a [(Order, u64)], &'a [(u64, u64)]);
        let zero = Order::ZERO;
        let one = Order::new(1).expect("an order");
        let cases: [Case<'_>; 7] = [
            (&[], &[]),
            (&[(zero, 7)], &[(7, 1)]),
            (&[(zero, 7), (zero, 8), (zero, 9)], &[(7, 3)]),
            (&[(zero, 9), (zero, 8), (zero, 10)], &[(8, 3)]),
            (&[(zero, 511), (zero, 512)], &[(511, 1), (512, 1)]),
            (&[(zero, 6), (one, 8), (one, 10), (zero, 12)], &[(6, 1), (8, 2), (12, 1)]),
            (&[(PAGEBLOCK_ORDER, 512), (PAGEBLOCK_ORDER, 1024)], &[(512, 2)]),
        ];
        for (blocks, runs) in cases {
            let blocks = blocks.iter().map(|&(order, pfn)| (order, Pfn(pfn)));
            let is = joined(blocks, 64 * PAGEBLOCK_PAGES).map(|run| (run.first.0, run.count));
            assert!(is.eq(runs.iter().copied()), "{runs:?}");
        }
    }
}
