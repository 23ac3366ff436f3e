//! Allocation requests: order, type, zones, nodes and flags.

use crate::policy::nodes::NodePolicy;
pub use crate::policy::passes::Flags;
use crate::units::{Migratetype, NodeMask, Order, ZoneType};

/// A request for one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request<'w> {
    /// Order of the block.
    pub order: Order,
    /// Type of the block: unmovable, movable or reclaimable.
    pub migratetype: Migratetype,
    /// The highest zone type to take from.
    pub highest: ZoneType,
    /// How far the request goes.
    pub flags: Flags,
    /// Node policy.
    pub nodes: NodePolicy<'w>,
    /// The nodes that the caller may use at all (Linux: its cpuset). Requests that cannot wait, and reclaimers, may
    /// exceed it.
    pub allowed: NodeMask,
}

impl<'w> Request<'w> {
    /// A request without flags, from any zone, the CPU's own node first.
    #[must_use]
    pub const fn new(order: Order, migratetype: Migratetype) -> Self {
        Self {
            order,
            migratetype,
            highest: ZoneType::Movable,
            flags: Flags::NONE,
            nodes: NodePolicy::Local,
            allowed: NodeMask::ALL,
        }
    }

    /// Limits the request to zones up to type `highest`.
    #[must_use]
    pub const fn up_to(mut self, highest: ZoneType) -> Self {
        self.highest = highest;
        self
    }

    /// Adds flags.
    #[must_use]
    pub const fn with(mut self, flags: Flags) -> Self {
        self.flags = self.flags.and(flags);
        self
    }

    /// Sets the node policy.
    #[must_use]
    pub const fn on(mut self, nodes: NodePolicy<'w>) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets the allowed nodes.
    #[must_use]
    pub const fn allowed(mut self, nodes: NodeMask) -> Self {
        self.allowed = nodes;
        self
    }

    /// Whether the request asks for a block of an order and a type, and for nothing else.
    pub(crate) const fn is_plain(&self) -> bool {
        let Self { highest, flags, nodes, allowed, .. } = self;
        Flags::NONE.has(*flags)
            && matches!((highest, nodes), (ZoneType::Movable, NodePolicy::Local))
            && allowed.0 == NodeMask::ALL.0
    }

    /// Whether a zone of this type may serve the request: movable zones take movable blocks only.
    #[must_use]
    pub fn may_use(&self, kind: ZoneType) -> bool {
        kind <= self.highest && (kind != ZoneType::Movable || self.migratetype == Migratetype::Movable)
    }

    /// The highest zone type that may serve the request.
    #[must_use]
    pub fn highest_usable(&self) -> ZoneType {
        ZoneType::ALL.into_iter().rev().find(|&kind| self.may_use(kind)).unwrap_or(ZoneType::Dma)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_sets() {
        let both = Flags::ATOMIC.and(Flags::NO_WAIT).and(Flags::ZERO);
        assert!(both.has(Flags::HIGH) && both.has(Flags::NO_WAIT) && both.has(Flags::ZERO));
        assert!(!both.has(Flags::NO_FAIL) && !both.has(Flags::ZERO.and(Flags::NO_FAIL)));
        assert_eq!(both.without(Flags::ATOMIC).without(Flags::NO_FAIL), Flags::ZERO);
    }
}
