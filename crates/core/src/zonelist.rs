//! Zonelists: in which order each node tries the zones, and what is noted about zones that had nothing.
//!
//! The order is policy ([`policy::zonelist`](crate::policy::zonelist)), fixed when the allocator is made. The
//! notes are the zonelist cache's ([`policy::zlc`](crate::policy::zlc)): one set per node, shared by its CPUs,
//! unlocked hints. A note that is lost or stale costs a try, never a page.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::config::{Config, ListOrder, ZonelistCache};
use crate::error::SetupError;
use crate::platform::{Platform, Word};
use crate::policy::watermark::ZONES;
use crate::policy::zlc;
use crate::policy::zonelist::{self as order, Entry, Topology, ZonelistOrder};
use crate::units::{MAX_NODES, NodeId, ZoneId, ZoneType};
use crate::zone::ZoneSpec;

/// Distance of a node from itself.
const LOCAL: u8 = 10;
/// Distance between nodes where none is given.
const REMOTE: u8 = 20;

/// Fills `out`, a row per node, with the zones of `specs` in the order in which that node tries them.
/// `distance` is the table of node distances, row by row, or all remote ones are equal. O(nodes³ + zones²).
pub(crate) fn build(
    specs: &[ZoneSpec],
    cpu_nodes: &[NodeId],
    distance: Option<&[u8]>,
    by: ListOrder,
    out: &mut [ZoneId],
) -> Result<(), SetupError> {
    // At most `MAX_NODES`: a plan has no more.
    let nodes = out.len() / specs.len().max(1);
    let mut equal = [REMOTE; MAX_NODES * MAX_NODES];
    (0..nodes).for_each(|node| equal[node * nodes + node] = LOCAL);
    let distance = distance.unwrap_or(&equal[..nodes * nodes]);
    let mut has_cpus = [false; MAX_NODES];
    cpu_nodes.iter().for_each(|node| has_cpus[usize::from(node.0)] = true);
    let mut pages = [[0; ZONES]; MAX_NODES];
    specs.iter().for_each(|zone| pages[usize::from(zone.node.0)][zone.kind as usize] += zone.pages);
    let topology = Topology::new(distance, &has_cpus[..nodes], &pages[..nodes])
        .filter(|_| is_table(distance, nodes))
        .ok_or(SetupError::Distances { nodes, entries: distance.len() })?;
    let by = match by {
        ListOrder::Node => ZonelistOrder::Node,
        ListOrder::Zone => ZonelistOrder::Zone,
        ListOrder::AsV3_0 => order::default_order_v3_0(&topology),
    };
    let mut load = [0; MAX_NODES];
    for (local, row) in out.chunks_exact_mut(specs.len()).enumerate() {
        let mut near = [NodeId(0); MAX_NODES];
        let len = order::node_order(&topology, NodeId(local as u16), &mut load, &mut near);
        let mut entries = [Entry { node: NodeId(0), zone: ZoneType::Dma }; MAX_NODES * ZONES];
        let len = order::zonelist(by, &topology, &near[..len], &mut entries);
        let ids = entries[..len].iter().flat_map(|entry| zones_of(specs, *entry));
        row.iter_mut().zip(ids).for_each(|(place, id)| *place = id);
    }
    Ok(())
}

/// Whether CPUs have zonelists of their own: they are to, and there are zones that they can begin at.
pub(crate) fn is_spread(specs: &[ZoneSpec], config: &Config) -> bool {
    config.spread_zones
        && config.experiment.zonelist_cache == ZonelistCache::Off
        && specs.iter().any(|zone| spread_over(specs, zone).is_some())
}

/// How many zones of a zone's node and type CPUs begin at; `None` if it is not one of them. O(zones).
pub(crate) fn spread_over(specs: &[ZoneSpec], of: &ZoneSpec) -> Option<usize> {
    let alike = || specs.iter().filter(|zone| zone.node == of.node && zone.kind == of.kind);
    let largest = alike().map(|zone| zone.pages).max().unwrap_or(0);
    let zones = alike().filter(|zone| begins(zone, largest)).count();
    (zones > 1 && begins(of, largest)).then_some(zones)
}

/// Whether CPUs begin at a zone, of which the largest of its node and type has so many pages: not where one is soon at its end.
fn begins(zone: &ZoneSpec, largest: u64) -> bool {
    zone.pages >= largest / 4
}

/// Fills `out`, a row per CPU, from the rows of the nodes: of zones of a node and type, each CPU begins at the one that its
/// number among the CPUs of its node says, and goes round. Neighbours begin at different ones.
/// O(CPUs × (CPUs + zones²)).
pub(crate) fn spread(specs: &[ZoneSpec], cpu_nodes: &[NodeId], rows: &[ZoneId], out: &mut [ZoneId]) {
    let alike = |a: &ZoneId, b: &ZoneId| {
        let [a, b] = [a, b].map(|zone| &specs[zone.index()]);
        a.node == b.node && a.kind == b.kind
    };
    for (cpu, row) in out.chunks_exact_mut(specs.len()).enumerate() {
        let node = cpu_nodes[cpu];
        let on_node = |cpus: &[NodeId]| cpus.iter().filter(|&&other| other == node).count();
        let rank = on_node(&cpu_nodes[..cpu]);
        row.copy_from_slice(&rows[usize::from(node.0) * specs.len()..][..specs.len()]);
        for group in row.chunk_by_mut(alike) {
            let largest = group.iter().map(|zone| specs[zone.index()].pages).max().unwrap_or(0);
            let starts = || (0..group.len()).filter(|&n| begins(&specs[group[n].index()], largest));
            let count = starts().count();
            let first = starts().nth(rank % count.max(1));
            group.rotate_left(first.unwrap_or(0));
        }
    }
}

/// Whether every node is at distance 10 from itself and no nearer to any other.
fn is_table(distance: &[u8], nodes: usize) -> bool {
    distance
        .iter()
        .enumerate()
        .all(|(n, &distance)| if n / nodes == n % nodes { distance == LOCAL } else { distance >= LOCAL })
}

/// The zones of a node and type, by address. There are several where one would be larger than 1 TiB.
fn zones_of(specs: &[ZoneSpec], entry: Entry) -> impl Iterator<Item = ZoneId> {
    let ours = move |&(_, zone): &(usize, &ZoneSpec)| zone.node == entry.node && zone.kind == entry.zone;
    specs.iter().enumerate().filter(ours).map(|(n, _)| ZoneId(n as u8))
}

/// Words of the bits of one zonelist: there are at most 255 zones.
const WORDS: usize = 4;

/// The notes about one node's zonelist. Anyone reads and writes, without a lock.
#[repr(C)]
pub(crate) struct Hints<P: Platform> {
    /// A bit per position: this zone had nothing.
    full: [P::Word; WORDS],
    /// Time at which a set-up last wiped them, in nanoseconds.
    last_zap_ns: P::Word,
}

impl<P: Platform> fmt::Debug for Hints<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.full.iter().map(|word| word.load(Relaxed))).finish()
    }
}

impl<P: Platform> Hints<P> {
    pub(crate) fn new() -> Self {
        Self { full: core::array::from_fn(|_| P::Word::new(0)), last_zap_ns: P::Word::new(0) }
    }

    /// Whether the zone at a position is noted as full.
    pub(crate) fn is_full(&self, position: usize) -> bool {
        self.full[position / 64 % WORDS].load(Relaxed) >> (position % 64) & 1 == 1
    }

    /// Notes the zone at a position as full.
    pub(crate) fn mark(&self, position: usize) {
        let word = &self.full[position / 64 % WORDS];
        let mut old = word.load(Relaxed);
        while old >> (position % 64) & 1 == 0 {
            match word.compare_exchange(old, old | 1 << (position % 64), Relaxed, Relaxed) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Wipes all notes.
    pub(crate) fn clear(&self) {
        self.full.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Wipes all notes that are too old. Returns whether they were.
    pub(crate) fn set_up(&self, now_ns: u64) -> bool {
        let old = zlc::zaps(now_ns, self.last_zap_ns.load(Relaxed));
        if old {
            self.clear();
            self.last_zap_ns.store(now_ns, Relaxed);
        }
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Experiment;
    use crate::platform::machine::Machine;
    use crate::units::Pfn;

    #[test]
    fn each_position_has_its_note() {
        let hints = Hints::<Machine>::new();
        for marked in 0..64 * WORDS {
            hints.clear();
            hints.mark(marked);
            hints.mark(marked);
            assert!((0..64 * WORDS).all(|position| hints.is_full(position) == (position == marked)));
        }
        hints.mark(0);
        assert!(hints.is_full(0) && hints.is_full(64 * WORDS - 1), "one note leaves the others");
    }

    #[test]
    fn cpus_begin_at_different_large_zones_of_their_node_and_go_round() {
        let zone = |node, kind, start: u64, pages| ZoneSpec {
            node: NodeId(node),
            kind,
            start: Pfn(start << 15),
            pages,
        };
        let large = 1 << 15;
        let specs = [
            zone(0, ZoneType::Dma32, 0, large),
            zone(0, ZoneType::Normal, 1, large),
            zone(0, ZoneType::Normal, 2, 7 << 10),
            zone(0, ZoneType::Normal, 3, large),
            zone(1, ZoneType::Normal, 4, large),
            zone(1, ZoneType::Normal, 5, 2 * large),
        ];
        let over = specs.each_ref().map(|spec| spread_over(&specs, spec));
        assert_eq!(over, [None, Some(2), None, Some(2), Some(2), Some(2)]);
        let cpus = [0, 1, 0, 0, 1].map(NodeId);
        let rows = [1, 2, 3, 0, 4, 5, 4, 5, 1, 2, 3, 0].map(ZoneId);
        let mut out = [ZoneId(0); 5 * 6];
        spread(&specs, &cpus, &rows, &mut out);
        let of = |cpu: usize| &out[cpu * specs.len()..][..specs.len()];
        assert_eq!(of(0), [1, 2, 3, 0, 4, 5].map(ZoneId));
        assert_eq!(of(1), [4, 5, 1, 2, 3, 0].map(ZoneId));
        assert_eq!(of(2), [3, 1, 2, 0, 5, 4].map(ZoneId), "the small one is nobody's first");
        assert_eq!(of(3), of(0), "two zones for three CPUs");
        assert_eq!(of(4), [5, 4, 3, 1, 2, 0].map(ZoneId));
    }

    #[test]
    fn only_a_configuration_that_says_so_spreads() {
        let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 4096 };
        let mut parts = spec.divided(4);
        let specs: [ZoneSpec; 4] = core::array::from_fn(|_| parts.next().expect("four"));
        assert!(parts.next().is_none() && specs[3].end() == spec.end());
        assert!(is_spread(&specs, &Config::framewright()));
        assert!(!is_spread(&[spec], &Config::framewright()), "one zone");
        for linux in [Config::linux_v3_0(), Config::linux_v5_4(), Config::linux_v6_1(), Config::linux_v6_7()]
        {
            assert!(!is_spread(&specs, &linux));
        }
        let noted = Config {
            experiment: Experiment { zonelist_cache: ZonelistCache::AfterFirstZone, ..Experiment::default() },
            ..Config::framewright()
        };
        assert!(!is_spread(&specs, &noted), "its notes are by place in the node's list");
    }
}
