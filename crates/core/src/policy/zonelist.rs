//! Order in which zones are tried.
//!
//! Every node has a list of all zones, best first, and a second one of its own zones only. The order of nodes comes
//! from their distances (`node_order`); the list's [`ListOrder`] is how zones and nodes interleave. Lists are
//! built once, when the allocator is made; not on any hot path.

use super::watermark::ZONES;
use crate::units::{NodeId, ZoneType};

/// Order of nodes and zone types in a zonelist.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ListOrder {
    /// Node by node, each from its highest zone down: local memory first. The only order from v4.19.
    #[default]
    Node,
    /// Zone type by zone type from the highest, each through all nodes: low zones last (v3.0).
    Zone,
    /// The order that v3.0 chooses for the machine.
    AsV3_0,
}

/// Nodes of a machine, as zonelists need them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology<'a> {
    /// The table of distances between nodes, row by row; 10 is local.
    pub(crate) distance: &'a [u8],
    /// By node.
    pub(crate) has_cpus: &'a [bool],
    /// Present base pages by node and zone type, 0 for an absent zone.
    pub(crate) pages: &'a [[u64; ZONES]],
}

impl Topology<'_> {
    fn distance(&self, from: NodeId, to: NodeId) -> u8 {
        self.distance[from.index() * self.pages.len() + to.index()]
    }

    /// The nodes with memory.
    fn with_memory(&self) -> impl Iterator<Item = NodeId> {
        let nodes = (0..self.pages.len()).map(|node| NodeId(node as u16));
        nodes.filter(|node| self.pages[node.index()].iter().any(|&pages| pages > 0))
    }
}

/// Writes the nodes with memory to `out` in the order in which `local` prefers them, itself first if it has memory.
/// Returns how many there are.
///
/// Next comes the node with the smallest `(distance + [id < local] + [has CPUs]) · scale + load`, the lowest id on a
/// tie; `scale` exceeds any load. The load of the first node of each new distance group rises by one, so that nodes at
/// equal distance do not all overflow into the same node. For that, call this for all nodes, lowest first, with the
/// same `load`: n entries that start at 0. O(n²).
///
/// The raise by one is the rule of v6.1. v3.0 sets the load to the number of nodes not yet placed; on a machine with
/// several distances this can order nodes at one distance differently.
///
/// # Panics
/// If `local` is not a node of the topology, or `load` or `out` has fewer than n entries.
pub(crate) fn node_order(
    topology: &Topology<'_>,
    local: NodeId,
    load: &mut [u32],
    out: &mut [NodeId],
) -> usize {
    let distance = |node| topology.distance(local, node);
    let mut placed = 0;
    let mut previous = local;
    loop {
        let done = &out[..placed];
        let score = |node: NodeId| {
            let id = node.index();
            let rank = u64::from(distance(node)) + u64::from(node < local) + u64::from(topology.has_cpus[id]);
            (node != local, rank, load[id])
        };
        let rest = topology.with_memory().filter(|node| !done.contains(node));
        let Some(next) = rest.min_by_key(|&node| score(node)) else { return placed };
        if distance(next) != distance(previous) {
            load[next.index()] += 1;
        }
        previous = next;
        out[placed] = next;
        placed += 1;
    }
}

/// Calls `put` with the zones of a node's zonelist in turn: every zone type of `nodes`, which are in the order of
/// [`node_order`]; `by_zone`: as in [`ListOrder::Zone`], else as in [`ListOrder::Node`]. A request for a lower zone
/// type skips the ones above it. O(nodes · zone types).
pub(crate) fn zonelist(by_zone: bool, nodes: &[NodeId], mut put: impl FnMut(NodeId, ZoneType)) {
    let zones = ZoneType::ALL.into_iter().rev();
    match by_zone {
        false => nodes.iter().for_each(|&node| zones.clone().for_each(|zone| put(node, zone))),
        true => zones.for_each(|zone| nodes.iter().for_each(|&node| put(node, zone))),
    }
}

/// Whether v3.0 chooses [`ListOrder::Zone`] itself. "Low" memory is DMA and DMA32; sizes are present pages.
///
/// Node order if some node has no Normal zone; if no memory is low, or more than half is; or if more than 70 % of a
/// node that is larger than total / (nodes with memory + 1) is low. Else zone order, which spares the low memory of
/// single nodes. O(n).
pub(crate) fn is_by_zone_in_v3_0(topology: &Topology<'_>) -> bool {
    let low =
        |node: &[u64; ZONES]| node[ZoneType::Dma as usize].saturating_add(node[ZoneType::Dma32 as usize]);
    let all = |node: &[u64; ZONES]| node.iter().copied().fold(0, u64::saturating_add);
    let sum =
        |size: &dyn Fn(&[u64; ZONES]) -> u64| topology.pages.iter().map(size).fold(0, u64::saturating_add);
    let (total_low, total) = (sum(&low), sum(&all));
    let lacks_normal = topology.pages.iter().any(|node| node[ZoneType::Normal as usize] == 0);
    let average = total / (topology.with_memory().count() as u64 + 1);
    let mostly_low = |node: &[u64; ZONES]| {
        let (low, all) = (low(node), all(node));
        all > average && u128::from(low) > u128::from(all) * 70 / 100
    };
    let is_by_node = lacks_normal || total_low == 0 || total_low > total / 2;
    !is_by_node && !topology.pages.iter().any(mostly_low)
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;
    use ZoneType::{Dma, Dma32, Normal};

    const NORMAL_ONLY: [u64; ZONES] = [0, 0, 1000, 0];
    const WITH_LOW: [u64; ZONES] = [10, 100, 1000, 0];

    /// Every node's order, as plain numbers.
    fn orders(distance: &[u8], has_cpus: &[bool], pages: &[[u64; ZONES]]) -> Vec<Vec<u16>> {
        let topology = Topology { distance, has_cpus, pages };
        let n = pages.len();
        let mut load = vec![0; n];
        let mut out = vec![NodeId(0); n];
        let order = |local| {
            let len = node_order(&topology, NodeId(local), &mut load, &mut out);
            out[..len].iter().map(|node| node.0).collect()
        };
        (0..n as u16).map(order).collect()
    }

    fn list(by_zone: bool, pages: &[[u64; ZONES]], nodes: &[u16]) -> Vec<(u16, ZoneType)> {
        let nodes: Vec<NodeId> = nodes.iter().map(|&node| NodeId(node)).collect();
        let mut list = Vec::new();
        zonelist(by_zone, &nodes, |node, zone| {
            let is_populated = pages[usize::from(node.0)][zone as usize] > 0;
            list.extend(is_populated.then_some((node.0, zone)));
        });
        list
    }

    #[test]
    fn equally_far_nodes_are_taken_round_robin() {
        #[rustfmt::skip]
        let distance = [
            10, 20, 20, 20,
            20, 10, 20, 20,
            20, 20, 10, 20,
            20, 20, 20, 10,
        ];
        let orders = orders(&distance, &[true; 4], &[NORMAL_ONLY; 4]);
        // Each begins with the next higher id, so that no node is the first choice of two others.
        assert_eq!(orders, [vec![0, 1, 2, 3], vec![1, 2, 3, 0], vec![2, 3, 0, 1], vec![3, 0, 1, 2]]);
    }

    #[test]
    fn near_nodes_come_before_far_ones() {
        // Two sockets of two nodes each.
        #[rustfmt::skip]
        let distance = [
            10, 16, 32, 32,
            16, 10, 32, 32,
            32, 32, 10, 16,
            32, 32, 16, 10,
        ];
        let orders = orders(&distance, &[true; 4], &[NORMAL_ONLY; 4]);
        // Node 0 overflows to node 2 first, so node 1 does to node 3; and likewise the other way.
        assert_eq!(orders, [vec![0, 1, 2, 3], vec![1, 0, 3, 2], vec![2, 3, 0, 1], vec![3, 2, 1, 0]]);
    }

    #[test]
    fn nodes_without_cpus_win_ties_and_nodes_without_memory_are_left_out() {
        let distance = [10, 20, 20, 20, 10, 20, 20, 20, 10];
        let without_cpus = orders(&distance, &[true, true, false], &[NORMAL_ONLY; 3]);
        assert_eq!(without_cpus[0], [0, 2, 1]);
        let pages = [NORMAL_ONLY, [0; ZONES], NORMAL_ONLY];
        let without_memory = orders(&distance, &[true; 3], &pages);
        assert_eq!(without_memory, [vec![0, 2], vec![2, 0], vec![2, 0]]);
    }

    #[test]
    fn not_even_a_node_at_no_distance_comes_before_the_local_one() {
        for has_cpus in [[true, false], [false, true]] {
            assert_eq!(orders(&[10; 4], &has_cpus, &[NORMAL_ONLY; 2]), [vec![0, 1], vec![1, 0]]);
        }
    }

    /// Every symmetric machine of up to four nodes with distances of 20, 21 or 40, every set of nodes
    /// with CPUs: each order is complete, starts locally, and ranks never fall.
    #[test]
    fn every_small_machine_has_complete_orders_by_rank() {
        for n in 1..=4_usize {
            let pairs = n * (n - 1) / 2;
            for choice in 0..3_usize.pow(pairs as u32) {
                let mut distance = vec![10; n * n];
                let mut left = choice;
                for a in 0..n {
                    for b in a + 1..n {
                        let far = [20, 21, 40][left % 3];
                        left /= 3;
                        (distance[a * n + b], distance[b * n + a]) = (far, far);
                    }
                }
                for cpus in 0..1 << n {
                    let has_cpus: Vec<bool> = (0..n).map(|node| cpus >> node & 1 == 1).collect();
                    for (local, order) in
                        orders(&distance, &has_cpus, &vec![NORMAL_ONLY; n]).iter().enumerate()
                    {
                        let mut sorted = order.clone();
                        sorted.sort_unstable();
                        assert!(sorted.iter().copied().eq(0..n as u16), "{order:?} is not complete");
                        assert_eq!(usize::from(order[0]), local);
                        let rank = |&node: &u16| {
                            let node = usize::from(node);
                            distance[local * n + node] + u8::from(node < local) + u8::from(has_cpus[node])
                        };
                        assert!(order[1..].is_sorted_by_key(rank), "{order:?} of node {local}");
                    }
                }
            }
        }
    }

    #[test]
    fn node_and_zone_order_of_the_worked_machine() {
        let pages = [WITH_LOW, NORMAL_ONLY];
        let by_node = |nodes: &[u16]| list(false, &pages, nodes);
        let by_zone = |nodes: &[u16]| list(true, &pages, nodes);
        assert_eq!(by_node(&[0, 1]), [(0, Normal), (0, Dma32), (0, Dma), (1, Normal)]);
        assert_eq!(by_node(&[1, 0]), [(1, Normal), (0, Normal), (0, Dma32), (0, Dma)]);
        assert_eq!(by_zone(&[0, 1]), [(0, Normal), (1, Normal), (0, Dma32), (0, Dma)]);
        assert_eq!(by_zone(&[1, 0]), [(1, Normal), (0, Normal), (0, Dma32), (0, Dma)]);
    }

    /// Four nodes with every set of zone types: both orders hold the same zones, each sorted its way.
    #[test]
    fn four_nodes_by_four_zone_types() {
        for set in 0_u32..1 << 16 {
            let pages: [[u64; ZONES]; 4] = core::array::from_fn(|node| {
                core::array::from_fn(|zone| u64::from(set >> (4 * node + zone) & 1))
            });
            let nodes = [2, 3, 0, 1];
            let place = |node: u16| nodes.iter().position(|&n| n == node);
            let by_node = list(false, &pages, &nodes);
            let by_zone = list(true, &pages, &nodes);
            assert_eq!(by_node.len(), set.count_ones() as usize);
            assert_eq!(by_zone.len(), by_node.len());
            let down = core::cmp::Reverse;
            assert!(by_node.is_sorted_by_key(|&(node, zone)| (place(node), down(zone))));
            assert!(by_zone.is_sorted_by_key(|&(node, zone)| (down(zone), place(node))));
            assert!(by_node.iter().all(|&(node, zone)| pages[usize::from(node)][zone as usize] > 0));
        }
    }

    #[test]
    fn v3_0_chooses_zone_order_only_where_low_memory_is_scarce() {
        let chosen = |pages: &[[u64; ZONES]]| {
            let n = pages.len();
            let (distance, has_cpus) = (vec![10; n * n], vec![true; n]);
            is_by_zone_in_v3_0(&Topology { distance: &distance, has_cpus: &has_cpus, pages })
        };
        assert!(chosen(&[WITH_LOW, NORMAL_ONLY]));
        assert!(!chosen(&[WITH_LOW, [0, 500, 0, 0]]), "a node without Normal");
        assert!(!chosen(&[NORMAL_ONLY, NORMAL_ONLY]), "no low memory");
        // Half of the total is still little; one page more is not.
        assert!(chosen(&[[0, 500, 500, 0]]));
        assert!(!chosen(&[[0, 501, 500, 0]]));
        // 1000 pages on node 0 against total / 3: 70 % low is accepted, more is not.
        assert!(chosen(&[[0, 700, 300, 0], NORMAL_ONLY]));
        assert!(!chosen(&[[0, 701, 299, 0], NORMAL_ONLY]));
        // The same node is too small to count beside one of 2000: 1000 is exactly the average.
        assert!(chosen(&[[0, 701, 299, 0], [0, 0, 2000, 0]]));
        assert!(!chosen(&[[0, 701, 299, 0], [0, 0, 1999, 0]]));
        assert!(!chosen(&[[u64::MAX; ZONES]; 2]), "sums saturate");
    }
}
