//! Freed blocks joined to runs.

use crate::buddy::{Buddy, Placement, Run};
use crate::platform::Platform;
use crate::units::{Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// The bits of a frame's number that all blocks of a run of this order share: a run stays inside its pageblock, one of
/// huge blocks inside `most` frames.
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

/// Joins adjacent blocks of one order, in the order in which they come: each block that continues the run before it,
/// ascending or descending, as long as they share `most` frames. Reads one block ahead of the run that it returns.
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

/// Frees blocks one by one, if they are kept on lists; each when the next one has been read.
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
        /// Blocks, and their runs: first frame, and frames or pageblocks.
        type Case<'a> = (&'a [(Order, u64)], &'a [(u64, u64)]);
        let single = Order::ZERO;
        let double = Order::new(1).expect("an order");
        let cases: [Case<'_>; 7] = [
            (&[], &[]),
            (&[(single, 7)], &[(7, 1)]),
            (&[(single, 7), (single, 8), (single, 9)], &[(7, 3)]),
            (&[(single, 9), (single, 8), (single, 10)], &[(8, 3)]),
            (&[(single, 511), (single, 512)], &[(511, 1), (512, 1)]),
            (&[(single, 6), (double, 8), (double, 10), (single, 12)], &[(6, 1), (8, 2), (12, 1)]),
            (&[(PAGEBLOCK_ORDER, 512), (PAGEBLOCK_ORDER, 1024)], &[(512, 2)]),
        ];
        for (blocks, expected) in cases {
            let blocks = blocks.iter().map(|&(order, pfn)| (order, Pfn(pfn)));
            let runs = joined(blocks, 64 * PAGEBLOCK_PAGES).map(|run| (run.first.0, run.count));
            assert!(runs.eq(expected.iter().copied()), "{expected:?}");
        }
    }
}
