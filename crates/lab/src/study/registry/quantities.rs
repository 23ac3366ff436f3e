//! Keys and quantities that several workloads have.

use crate::result::{Better, Kind};
use crate::study::workload::{Key, Opt, Quantity, Role, Takes};

use Better::{Lower, None as Neither};
use Kind::Simulated;
use Opt::{Machine, Quick, Samples};
use Role::{Cause, Main};

pub(super) const fn key(
    name: &'static str,
    takes: Takes,
    default: Option<&'static str>,
    about: &'static str,
) -> Key {
    Key { name, takes, default, about }
}

pub(super) const fn metric(
    name: &'static str,
    unit: &'static str,
    better: Better,
    role: Role,
    about: &'static str,
) -> Quantity {
    Quantity { name, unit, better, about, role }
}

pub(super) const ORDER: Key = key("order", Takes::Whole(0, 10), Some("0"), "Order of the blocks.");
pub(super) const HUGE_PAGES: Key =
    key("huge_pages", Takes::Whole(1, 1 << 20), None, "Order-9 blocks that each CPU allocates and clears.");

pub(super) const ALLOC_NS: Quantity =
    metric("alloc_ns", "ns", Lower, Main, "Time of one allocation on its CPU.");
pub(super) const FREE_NS: Quantity = metric("free_ns", "ns", Lower, Main, "Time of one free on its CPU.");
pub(super) const LOCK_WAIT: Quantity =
    metric("zone_lock_wait_ns", "ns", Lower, Main, "Time waited for the zone lock, per acquisition.");
pub(super) const LOCK_HOLD: Quantity =
    metric("zone_lock_hold_ns", "ns", Lower, Main, "Time the zone lock is held, per acquisition.");
pub(super) const HUGE_ALLOC: Quantity =
    metric("huge_alloc_ns", "ns", Lower, Main, "Time of one order-9 allocation.");
pub(super) const BANDWIDTH: Quantity =
    metric("memory_bandwidth", "%", Neither, Cause, "Share of a node's memory bandwidth that is used.");
pub(super) const TRANSFERS: Quantity = metric(
    "line_transfers",
    "1",
    Lower,
    Cause,
    "Moves of a cache line between CPUs, per page or acquisition.",
);
pub(super) const LINE_WAIT: Quantity = metric(
    "line_wait_ns",
    "ns",
    Lower,
    Cause,
    "Time that CPUs wait for a cache line that another CPU has, per page or acquisition.",
);
pub(super) const TASK_CAUSES: [Quantity; 10] = [
    metric(
        "zone_lock_acquisitions_per_page",
        "1",
        Lower,
        Cause,
        "Acquisitions of a zone's lock per allocated page.",
    ),
    Quantity { role: Cause, ..LOCK_WAIT },
    Quantity { role: Cause, ..LOCK_HOLD },
    metric("migrations_per_page", "1", Lower, Cause, "Tasks that moved to another CPU, per allocated page."),
    metric(
        "lru_lock_acquisitions_per_page",
        "1",
        Lower,
        Cause,
        "Acquisitions of the LRU lock per allocated page.",
    ),
    metric("lru_lock_wait_ns", "ns", Lower, Cause, "Time waited for the LRU lock, per acquisition."),
    metric("lru_lock_hold_ns", "ns", Lower, Cause, "Time the LRU lock is held, per acquisition."),
    BANDWIDTH,
    TRANSFERS,
    LINE_WAIT,
];

/// Options that every simulated part heeds.
pub(super) const SIMULATED: [(Opt, Kind); 3] =
    [(Machine, Simulated), (Samples, Simulated), (Quick, Simulated)];
