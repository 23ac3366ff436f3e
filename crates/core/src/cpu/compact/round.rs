//! One round of background compaction: what Linux' kcompactd does for a node every 500 ms, whether or not a request
//! needs a huge page.
//!
//! ```text
//! loop {
//!     cpu.compact_proactively(node, &migrate);
//!     sleep for allocator.config().compaction_round_ms()
//! }
//! ```

use super::{Compacted, Cpu};
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::compact::{Marks, REST, fragmentation};
use crate::policy::pcp::Shortage;
use crate::reclaim::Migrate;
use crate::units::{NodeId, PAGEBLOCK_PAGES};
use crate::zone::Zone;

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// One round of background compaction of a node. Returns what was moved. The caller has a clock and calls every
    /// [`Config::compaction_round_ms`](crate::Config::compaction_round_ms) milliseconds. Blocks on other CPUs' lists
    /// are drained where the platform can; otherwise the round requests a drain and does not wait.
    ///
    /// The round does nothing if [`compaction_proactiveness`](crate::Config::compaction_proactiveness) is 0, if the
    /// free memory outside free huge pages is within its limit, or while background reclaim works on the node.
    ///
    /// With bits it empties pageblocks: those with the fewest pages in use first, up to fifteen sixteenths, into the
    /// fullest of the same type. A round considers
    /// [`ROUND_PAGEBLOCKS`](crate::policy::compact::ROUND_PAGEBLOCKS) of a zone. It ends when
    /// [`ROUND_PAGES`](crate::policy::compact::ROUND_PAGES) pages have moved or
    /// [`ROUND_LOOKS`](crate::policy::compact::ROUND_LOOKS) blocks were looked at. The next one continues there.
    /// [`Engine::Compact`](crate::config::Engine::Compact) does not record which blocks are movable, so the round does
    /// nothing.
    ///
    /// With [`Engine::Linux`](crate::config::Engine::Linux) it does what Linux does: the two scanners of
    /// [`compact`](Self::compact) start at the zone's ends and stop when few enough pages are outside huge pages. If
    /// that gained nothing, the next 63 rounds do nothing.
    ///
    /// O(pageblocks / 64) with maps, O(frames) with lists; plus the time of the hook.
    pub fn compact_proactively(&self, node: NodeId, migrate: &dyn Migrate) -> Compacted {
        let mut total = Compacted::default();
        let config = &self.allocator.config;
        let zones = || self.zones_of_node(node);
        let is_linux = !config.engine.has_maps();
        let marks = if is_linux { Marks::of_linux } else { Marks::one };
        let Some(marks) = marks(config.compaction_proactiveness) else { return total };
        let is_reclaiming = |zone: &Zone<P>| zone.pressure.on_lists() == Shortage::Reclaim;
        let Some(first) = zones().next() else { return total };
        if first.pressure.rests() || zones().any(is_reclaiming) {
            return total;
        }
        // With maps each zone is compared with its own mark.
        let before = if is_linux { self.node_fragmentation(node) } else { 0 };
        if is_linux && before <= marks.high {
            return total;
        }
        for zone in zones() {
            if self.zone_fragmentation(zone) <= marks.low {
                continue;
            }
            self.allocator.drain_others(None, core::iter::once(zone), None, false);
            total += match is_linux {
                true => {
                    let done = || self.zone_fragmentation(zone) <= marks.low;
                    self.compact_zone(zone, migrate, None, done)
                }
                false => self.empty_in_a_round(zone, migrate, marks.low),
            };
        }
        // With maps a round without gain costs little, and memory may have changed by the next round.
        if is_linux && self.node_fragmentation(node) >= before {
            first.pressure.rest(REST);
        }
        total
    }

    fn zones_of_node(&self, node: NodeId) -> impl Iterator<Item = &'m Zone<'m, P>> + use<'m, P, M> {
        self.allocator.zones.iter().filter(move |zone| zone.spec().node == node)
    }

    /// Percent of the zone's free pages that are not in free huge pages.
    fn zone_fragmentation(&self, zone: &Zone<P>) -> u64 {
        fragmentation(zone.free_pages(), self.allocator.free_pageblocks(zone) * PAGEBLOCK_PAGES)
    }

    /// Mean over the node's zones, weighted by present pages and rounded as Linux does (`fragmentation_score_node`).
    fn node_fragmentation(&self, node: NodeId) -> u64 {
        let present: u64 = self.zones_of_node(node).map(Zone::present_pages).sum();
        let weighted = |zone: &Zone<P>| self.zone_fragmentation(zone) * zone.present_pages() / (present + 1);
        self.zones_of_node(node).map(weighted).sum()
    }
}
