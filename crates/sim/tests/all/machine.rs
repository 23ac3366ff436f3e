//! A machine to test with: one socket of so many cores, with costs like a real one's.

use framewright::config::{LockKind, LockPlace};
use framewright::policy::pcp::Sizing;
use framewright::{Config, Order};
use framewright_sim::bench::{Bench, Case, Linux, Outcome, linux, linux_6_0};
use framewright_sim::model::{Bandwidth, Caches, Fitted, Latency, Model, Shape};

/// One socket of `cores`.
pub(crate) fn socket(cores: u16) -> Model {
    Model {
        shape: Shape {
            sockets: 1,
            nodes: 1,
            cores_per_node: cores,
            cores_per_l3: cores,
            threads_per_core: 1,
        },
        latency: Latency {
            l2: 6.0,
            l3: 30.0,
            sibling: 8.0,
            same_l3: [50.0, 60.0],
            other_l3: [60.0; 2],
            other_die: 60.0,
            other_socket: [110.0, 130.0],
            dram: [90.0, 140.0],
        },
        bandwidth: Bandwidth { node_read: 160.0, node_mixed: 130.0, core: 13.0 },
        caches: Caches { l1: 768, l2: 20_480, l3: 640_000 },
        pause_ns: 60.0,
        smt_yield: 1.25,
        fitted: Fitted {
            alloc_ns: 50.0,
            free_ns: 25.0,
            access_ns: 1.5,
            memory_exposed: 0.5,
            transfer_exposed: 0.4,
            transfer_factor: 0.9,
        },
        kernel: None,
    }
}

/// Linux 6.0 with a lock of this kind and place, and lists of this size.
pub(crate) fn locked(lock_kind: LockKind, lock_place: LockPlace, batch: u32, high: u32) -> Linux {
    let config = Config { lock_kind, lock_place, ..linux_6_0() };
    Linux { config, sizing: Sizing { batch, high_min: high, high_max: high } }
}

/// Every core allocates and frees so many pages in bulk.
pub(crate) fn bulk(model: &Model, allocator: &Linux, cores: u16, blocks: u64, seed: u64) -> Outcome {
    let case = Case { bench: Bench::Bulk, order: Order::ZERO, cores, blocks, stands_for: blocks };
    linux(model, allocator, &case, seed).expect("a world")
}

/// Mean ns of an allocation and a free.
pub(crate) fn pair_ns(outcome: &Outcome) -> f64 {
    outcome.get_ns.expect("timed") + outcome.put_ns.expect("timed")
}
