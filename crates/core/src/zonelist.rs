//! Zonelists: the order in which each node tries the zones, and notes about zones that had nothing.
//!
//! The order is policy ([`policy::zonelist`](crate::policy::zonelist)), fixed when the allocator is made. The notes are
//! those of the zonelist cache ([`policy::zlc`](crate::policy::zlc)): one set per node, shared by its CPUs, hints
//! without a lock. A lost or stale note costs one try, never a page.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::ListOrder;
use crate::error::SetupError;
use crate::platform::{Platform, Word, update};
use crate::policy::watermark::ZONES;
use crate::policy::zlc;
use crate::policy::zonelist::{Topology, is_by_zone_in_v3_0, node_order, zonelist};
use crate::units::{MAX_NODES, NodeId, ZoneId};
use crate::zone::ZoneSpec;

/// Distance of a node from itself.
const LOCAL: u8 = 10;
/// Distance between nodes where none is given.
const REMOTE: u8 = 20;

/// Fills `out`, a row per node, with the zones of `specs` in the order in which that node tries them. `distance` is the
/// table of node distances, row by row; without it all remote nodes are equally far. O(nodes³ + zones²).
pub(crate) fn build(
    specs: &[ZoneSpec],
    cpu_nodes: &[NodeId],
    distance: Option<&[u8]>,
    by: ListOrder,
    out: &mut [ZoneId],
) -> Result<(), SetupError> {
    // The zones of a node and type are ordered by address. There are several if one would be larger than 1 TiB.
    let fill = |row: &mut [ZoneId], by_zone, nodes: &[NodeId]| {
        let mut places = row.iter_mut();
        zonelist(by_zone, nodes, |node, kind| {
            let found = specs.iter().zip(0..).filter(|(zone, _)| zone.node == node && zone.kind == kind);
            found.zip(&mut places).for_each(|((_, n), place)| *place = ZoneId(n));
        });
    };
    if !cfg!(feature = "smp") {
        fill(out, false, &[NodeId(0)]);
        return Ok(());
    }
    // At most `MAX_NODES`: a plan has no more.
    let nodes = out.len() / specs.len().max(1);
    let mut equal = [REMOTE; MAX_NODES * MAX_NODES];
    (0..nodes).for_each(|node| equal[node * nodes + node] = LOCAL);
    let distance = distance.unwrap_or(&equal[..nodes * nodes]);
    let mut has_cpus = [false; MAX_NODES];
    cpu_nodes.iter().for_each(|node| has_cpus[usize::from(node.0)] = true);
    let mut pages = [[0; ZONES]; MAX_NODES];
    specs.iter().for_each(|zone| pages[usize::from(zone.node.0)][zone.kind as usize] += zone.pages);
    if !is_table(distance, nodes) {
        return Err(SetupError::Distances { nodes, entries: distance.len() });
    }
    let topology = Topology { distance, has_cpus: &has_cpus[..nodes], pages: &pages[..nodes] };
    let by_zone = match by {
        ListOrder::Node => false,
        ListOrder::Zone => true,
        ListOrder::AsV3_0 => is_by_zone_in_v3_0(&topology),
    };
    let mut load = [0; MAX_NODES];
    for (local, row) in out.chunks_exact_mut(specs.len()).enumerate() {
        let mut near = [NodeId(0); MAX_NODES];
        let len = node_order(&topology, NodeId(local as u16), &mut load, &mut near);
        fill(row, by_zone, &near[..len]);
    }
    Ok(())
}

/// Whether there is a distance for each pair of nodes, and every node is at distance 10 from itself and no nearer to
/// any other.
fn is_table(distance: &[u8], nodes: usize) -> bool {
    let is_sound =
        |(n, &distance)| if n / nodes == n % nodes { distance == LOCAL } else { distance >= LOCAL };
    distance.len() == nodes * nodes && distance.iter().enumerate().all(is_sound)
}

/// Words for a bit per zone of a zonelist: there are at most 255 zones.
const WORDS: usize = 4;

/// Notes about one node's zonelist. Any CPU reads and writes them, without a lock.
#[repr(C)]
pub(crate) struct Hints<P: Platform> {
    /// One bit per position in the zonelist: the zone there had nothing.
    full: [P::Word; WORDS],
    /// Time at which a set-up last wiped the notes, in nanoseconds.
    last_zap_ns: P::Word,
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
        let bit = 1 << (position % 64);
        update(&self.full[position / 64 % WORDS], Relaxed, |old| (old & bit == 0).then_some(old | bit));
    }

    /// Wipes all notes.
    pub(crate) fn clear(&self) {
        self.full.iter().for_each(|word| word.store(0, Relaxed));
    }

    /// Wipes the notes if they are too old. Returns whether it did.
    pub(crate) fn set_up(&self, now_ns: u64) -> bool {
        let wipes = zlc::zaps(now_ns, self.last_zap_ns.load(Relaxed));
        if wipes {
            self.clear();
            self.last_zap_ns.store(now_ns, Relaxed);
        }
        wipes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::machine::Machine;

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
}
