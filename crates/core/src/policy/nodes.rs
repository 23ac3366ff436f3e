//! Memory policies: the node at which a request starts, and the nodes that it may use.
//!
//! A policy is the caller's wish; the allowed set (Linux' cpuset) limits it. Interleaving policies take the turn from
//! the caller, who counts it up, so that this module keeps no state.

use crate::units::{NodeId, NodeMask};

/// Memory policy of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NodePolicy<'w> {
    /// The CPU's own node first, then the others by distance.
    #[default]
    Local,
    /// This node first, then the others by distance from it.
    Preferred(NodeId),
    /// These nodes first, in the CPU's order; any other node if they have nothing without reclaim.
    PreferredMany(NodeMask),
    /// These nodes only.
    Bind(NodeMask),
    /// The nodes in turn, page by page; any other node if the node whose turn it is has nothing.
    Interleave {
        /// Nodes that take turns.
        nodes: NodeMask,
        /// Number of the turn.
        turn: u64,
    },
    /// Like [`Interleave`](Self::Interleave), but node n gets `weights[n]` turns in a row (Linux v6.9). A node without
    /// a weight, or with 0, gets one.
    Weighted {
        /// Nodes that take turns.
        nodes: NodeMask,
        /// Turns in a row by node.
        weights: &'w [u8],
        /// Number of the turn.
        turn: u64,
    },
}

/// Result of a policy for one request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// Node whose zonelist is walked.
    pub start: NodeId,
    /// Only zones of these nodes are tried.
    pub only: NodeMask,
    /// Nodes that are tried alone first, without reclaim.
    pub first: Option<NodeMask>,
    /// Whether the list is an ordinary fallback list. Lists of one node and bound lists have no zonelist cache.
    pub cached: bool,
}

/// Applies `policy` to a request from a CPU on node `local`, where `usable` nodes have memory and are allowed. With
/// `this_node` only the starting node's own list is walked. O(nodes).
///
/// Nodes of a policy that are not usable take no turns. If none of its nodes is usable, [`NodePolicy::Bind`] keeps to
/// them, and finds nothing; the others act as [`NodePolicy::Local`].
#[must_use]
pub fn choose(policy: NodePolicy<'_>, local: NodeId, usable: NodeMask, this_node: bool) -> Choice {
    let anywhere = |start| Choice { start, only: NodeMask::ALL, first: None, cached: true };
    let in_turn = |nodes: NodeMask, weights, turn| {
        anywhere(weighted(nodes.and(usable), weights, turn).unwrap_or(local))
    };
    let choice = match policy {
        NodePolicy::Local => anywhere(local),
        NodePolicy::Preferred(node) => anywhere(node),
        NodePolicy::PreferredMany(nodes) => {
            let first = nodes.and(usable);
            Choice { first: (!first.is_empty()).then_some(first), ..anywhere(local) }
        }
        NodePolicy::Bind(nodes) => Choice { only: nodes, cached: false, ..anywhere(local) },
        NodePolicy::Interleave { nodes, turn } => in_turn(nodes, &[], turn),
        NodePolicy::Weighted { nodes, weights, turn } => in_turn(nodes, weights, turn),
    };
    if this_node {
        let start = NodeMask::of(choice.start);
        return Choice { only: choice.only.and(start), first: None, cached: false, ..choice };
    }
    choice
}

/// The node whose turn it is.
fn weighted(nodes: NodeMask, weights: &[u8], turn: u64) -> Option<NodeId> {
    let weight = |node: NodeId| weights.get(node.index()).map_or(1, |&weight| u64::from(weight.max(1)));
    let total: u64 = nodes.iter().map(weight).sum();
    let mut left = turn.checked_rem(total)?;
    nodes.iter().find(|&node| {
        let found = left < weight(node);
        left = left.saturating_sub(weight(node));
        found
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    const LOCAL: NodeId = NodeId(1);

    fn starts(policy: impl Fn(u64) -> NodePolicy<'static>, usable: u64, turns: u64) -> Vec<u16> {
        (0..turns).map(|turn| choose(policy(turn), LOCAL, NodeMask(usable), false).start.0).collect()
    }

    #[test]
    fn interleaving_takes_turns() {
        let policy = |turn| NodePolicy::Interleave { nodes: NodeMask(0b1101), turn };
        assert_eq!(starts(policy, 0b1111, 6), [0, 2, 3, 0, 2, 3]);
        assert_eq!(starts(policy, 0b1011, 4), [0, 3, 0, 3], "node 2 is not usable");
        assert_eq!(starts(policy, 0b0010, 2), [1, 1], "none is usable");
    }

    #[test]
    fn weights_are_turns_in_a_row() {
        let policy = |turn| NodePolicy::Weighted { nodes: NodeMask(0b111), weights: &[3, 0, 2], turn };
        assert_eq!(starts(policy, 0b111, 12), [0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 2, 2]);
        let short = |turn| NodePolicy::Weighted { nodes: NodeMask(0b110), weights: &[9], turn };
        assert_eq!(starts(short, 0b111, 4), [1, 2, 1, 2], "a node without a weight has one turn");
    }

    /// Every policy over every set of nodes, usable nodes and turn of a machine of four nodes.
    #[test]
    fn every_small_machine() {
        for set in 0..16_u64 {
            for usable in 0..16_u64 {
                let (nodes, usable) = (NodeMask(set), NodeMask(usable));
                let both = nodes.and(usable);
                for turn in 0..9 {
                    for local in (0..4).map(NodeId) {
                        for (policy, keeps) in [
                            (NodePolicy::Interleave { nodes, turn }, true),
                            (NodePolicy::Weighted { nodes, weights: &[1, 2, 3], turn }, true),
                            (NodePolicy::Local, false),
                            (NodePolicy::PreferredMany(nodes), false),
                            (NodePolicy::Bind(nodes), false),
                        ] {
                            let choice = choose(policy, local, usable, false);
                            let spread = keeps && !both.is_empty();
                            assert!(if spread { both.has(choice.start) } else { choice.start == local });
                            assert_eq!(choice.cached, !matches!(policy, NodePolicy::Bind(_)));
                            assert!(choice.first.is_none_or(|first| first == both && !first.is_empty()));
                            let alone = choose(policy, local, usable, true);
                            assert_eq!(alone.start, choice.start);
                            assert_eq!(alone.only, choice.only.and(NodeMask::of(choice.start)));
                            assert!(!alone.cached && alone.first.is_none());
                        }
                    }
                }
            }
        }
    }
}
