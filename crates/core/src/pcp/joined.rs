//! Freed blocks joined to runs.

use crate::buddy::Run;
use crate::config::Bulk;
use crate::units::{MAX_ORDER, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Joins neighbouring blocks, ascending or descending, within one pageblock; huge blocks within one block of
/// the largest order, with maps within so many pageblocks as a word has bits.
pub(super) struct PendingRun {
    order: Order,
    /// The bits of a frame's number that all blocks of a run share: with nothing joined, all.
    within: u64,
    run: Run,
}

impl PendingRun {
    pub(super) fn new(order: Order, bulk: Bulk, maps: bool) -> Self {
        let within = match bulk {
            Bulk::OneByOne => 1,
            Bulk::Runs if order < PAGEBLOCK_ORDER => PAGEBLOCK_PAGES,
            Bulk::Runs if maps => 64 * PAGEBLOCK_PAGES,
            Bulk::Runs => MAX_ORDER.pages(),
        };
        Self { order, within: !(within - 1), run: Run { first: Pfn(0), order, count: 0 } }
    }

    /// Adds a block. Returns the run before it, if the block does not continue it.
    #[inline]
    pub(super) fn extend(&mut self, pfn: Pfn) -> Option<Run> {
        let Run { first, count, .. } = self.run;
        if count > 0 && (pfn.0 ^ first.0) & self.within == 0 {
            if pfn.0 == first.0 + (count << self.order.get()) {
                self.run.count += 1;
                return None;
            }
            if pfn.add(self.order.pages()) == first {
                self.run = Run { first: pfn, count: count + 1, ..self.run };
                return None;
            }
        }
        let before = self.finish();
        (self.run.first, self.run.count) = (pfn, 1);
        before
    }

    /// Whether nothing has been joined to the block added last.
    #[inline]
    pub(super) const fn is_new(&self) -> bool {
        self.run.count == 1
    }

    #[inline]
    pub(super) fn finish(&mut self) -> Option<Run> {
        let run = (self.run.count > 0).then_some(self.run);
        self.run.count = 0;
        run
    }
}
