//! Quantities that several workloads report: of an allocator, a zone lock, and the memory of a modelled machine.

use framewright_report::quantity::{Quantity, Role, quantities};

/// Lists of one type in one.
macro_rules! joined {
    ($type:ty; $($list:expr),* $(,)?) => {{
        const LISTS: &[&[$type]] = &[$($list),*];
        const ALL: [$type; $crate::quantity::length(LISTS)] = $crate::quantity::in_one(LISTS);
        &ALL
    }};
}

pub(crate) use joined;

pub(crate) const fn length<T>(lists: &[&[T]]) -> usize {
    let (mut sum, mut list) = (0, 0);
    while list < lists.len() {
        sum += lists[list].len();
        list += 1;
    }
    sum
}

pub(crate) const fn in_one<T: Copy, const N: usize>(lists: &[&[T]]) -> [T; N] {
    let mut all = [lists[0][0]; N];
    let (mut next, mut list) = (0, 0);
    while list < lists.len() {
        let mut item = 0;
        while item < lists[list].len() {
            all[next] = lists[list][item];
            (next, item) = (next + 1, item + 1);
        }
        list += 1;
    }
    all
}

/// Times of an allocation and a free, and of the zone lock.
pub(crate) const TIMES: [Quantity; 2] = quantities! {
    alloc_ns "ns" Lower Main "Time of one allocation on its CPU."
    free_ns "ns" Lower Main "Time of one free on its CPU."
};
pub(crate) const ZONE_LOCK: [Quantity; 2] = quantities! {
    zone_lock_wait_ns "ns" Lower Main "Time waited for the zone lock, per acquisition."
    zone_lock_hold_ns "ns" Lower Main "Time the zone lock is held, per acquisition."
};
/// Times of the zone lock, where they explain others.
pub(crate) const ZONE_LOCK_CAUSES: [Quantity; 2] =
    [Quantity { role: Role::Cause, ..ZONE_LOCK[0] }, Quantity { role: Role::Cause, ..ZONE_LOCK[1] }];
/// Use of the memory's bandwidth, and traffic of cache lines.
pub(crate) const TRAFFIC: [Quantity; 3] = quantities! {
    memory_bandwidth "%" None Cause "Share of a node's memory bandwidth that is used."
    line_transfers "1" Lower Cause "Moves of a cache line between CPUs, per page, call or acquisition."
    line_wait_ns "ns" Lower Cause "Time that CPUs wait for a cache line, per page, call or acquisition."
};
/// Metrics of a closed queueing network.
pub(crate) const NETWORK: [Quantity; 3] = quantities! {
    saturated_at_cpus "1" Higher Cause "CPUs at which a lock is saturated: work and demands of an operation over the lock's demand."
    most_per_second "1/s" Higher Cause "Operations a second that a lock allows, whatever the number of CPUs."
    from_priors_per_second "1/s" None Cause "Operations a second of the baseline, without what was published of it."
};
