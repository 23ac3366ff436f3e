//! Allocation requests: order, type, zones, nodes and flags.

use crate::policy::nodes::NodePolicy;
use crate::policy::passes::Facts;
use crate::units::{Migratetype, NodeMask, Order, ZoneType};

/// Flags of a request: how far it goes, and which reserves it may use. The names are those of Linux' `__GFP_…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Flags(u32);

impl Flags {
    /// Waits, retries small orders, and may have pages written back, like most requests (`GFP_KERNEL`).
    pub const NONE: Self = Self(0);
    /// Important: may use half of the min mark (`__GFP_HIGH`).
    pub const HIGH: Self = Self(1);
    /// Cannot wait: does not reclaim, compact or drain, and may go further below the mark.
    pub const NO_WAIT: Self = Self(1 << 1);
    /// Urgent, and from a context that must not wait (`GFP_ATOMIC`).
    pub const ATOMIC: Self = Self(Self::HIGH.0 | Self::NO_WAIT.0);
    /// Fails rather than retries (`__GFP_NORETRY`).
    pub const NO_RETRY: Self = Self(1 << 2);
    /// Retries costly orders, too (`__GFP_REPEAT`, later `__GFP_RETRY_MAYFAIL`).
    pub const REPEAT: Self = Self(1 << 3);
    /// Never fails, and waits without a bound if it must (`__GFP_NOFAIL`).
    pub const NO_FAIL: Self = Self(1 << 4);
    /// Takes from the first node's own zones only (`__GFP_THISNODE`).
    pub const THIS_NODE: Self = Self(1 << 5);
    /// Must not cause write-back: the caller holds locks that write-back needs (no `__GFP_FS`).
    pub const NO_WRITE: Self = Self(1 << 6);
    /// Must not use the reserves, even if the caller otherwise could (`__GFP_NOMEMALLOC`).
    pub const NO_RESERVES: Self = Self(1 << 7);
    /// The caller frees memory soon, and needs a little for this (`TIF_MEMDIE`, `PF_MEMALLOC`).
    pub const VICTIM: Self = Self(1 << 8);
    /// Does not wake background reclaim (no `__GFP_KSWAPD_RECLAIM`).
    pub const NO_WAKE: Self = Self(1 << 9);
    /// The block must hold zeroes (`__GFP_ZERO`). Needs a direct map.
    pub const ZERO: Self = Self(1 << 10);

    /// The flags of both sets.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The flags of this set that are not in `flags`.
    #[must_use]
    pub const fn without(self, flags: Self) -> Self {
        Self(self.0 & !flags.0)
    }

    /// Whether all of `flags` are set.
    #[must_use]
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

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
        flags.0 == 0
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

    /// The properties of the request that the passes depend on.
    #[must_use]
    pub fn facts(&self, reclaiming: bool) -> Facts {
        let flagged = |flag| self.flags.has(flag);
        Facts {
            order: self.order,
            movable: self.migratetype == Migratetype::Movable,
            can_wait: !flagged(Flags::NO_WAIT),
            high: flagged(Flags::HIGH),
            no_retry: flagged(Flags::NO_RETRY),
            repeat: flagged(Flags::REPEAT),
            no_fail: flagged(Flags::NO_FAIL),
            may_write: !flagged(Flags::NO_WRITE),
            no_reserves: flagged(Flags::NO_RESERVES),
            reclaiming,
            victim: flagged(Flags::VICTIM),
        }
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
