//! Counters of a kernel for each CPU, which it adds up now and then.

use framewright::frame::Zeroable;
use framewright::zone::Zone;

use super::{Line, World};
use crate::model::LINE;
use crate::platform::Sim;

impl<M: Zeroable> World<M> {
    /// Linux counts free pages and what requests of which node got for each CPU. Ours are one line of a zone's and of a
    /// node's; where the allocator is as Linux is, they cost what a CPU's own line costs. A CPU that has counted more
    /// free pages than it may keep to itself adds them to the zone's total and to that of all zones.
    pub(super) fn count_apart(&mut self, zones: usize) {
        let layout = Zone::<Sim>::layout();
        let drift = self.simulator.model().drift_pages;
        for n in 0..zones {
            let zone = self.places.zones.offset() + n * size_of::<Zone<Sim>>();
            let start = zone + layout.counters;
            self.simulator.keep_apart(start, start + LINE);
            self.simulator.sum_up(start, [self.total_at(n), self.total_at(zones)], drift);
        }
        self.simulator.keep_apart(self.places.nodes.offset(), self.places.nodes.end());
    }

    /// Word of the simulated memory in which the free pages of a zone are added up, or of all zones after the last one.
    pub(super) fn total_at(&self, zone: usize) -> usize {
        self.places.totals.offset() + zone * size_of::<Line>()
    }
}
