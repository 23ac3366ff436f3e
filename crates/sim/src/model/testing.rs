//! Machines to test on, with round numbers.

use crate::model::{Bandwidth, Caches, Fitted, Latency, Model, Shape};

/// One node of `cores` cores: a private access takes 1 ns, a clean line 50, a modified one 60, memory 100.
pub(crate) fn round(cores: u16) -> Model {
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
            other_l3: [50.0; 2],
            other_die: 50.0,
            other_socket: [100.0, 120.0],
            dram: [100.0, 150.0],
        },
        bandwidth: Bandwidth { node_read: 160.0, node_mixed: 130.0, core: 12.8, saturated: 1.8 },
        caches: Caches { l1: 768, l2: 20_480, l3: 640_000 },
        pause_ns: 50.0,
        mispredict_ns: 0.0,
        guesses: true,
        exchange_ns: 0.0,
        smt_yield: 1.25,
        store_exposed: 0.75,
        fitted: Fitted {
            alloc_ns: 0.0,
            free_ns: 0.0,
            access_ns: 1.0,
            walk_ns: 0.0,
            dependent: 1.0,
            page_ns: 0.0,
        },
        own_access_ns: None,
        own_hit_ns: 2.0,
        transfers: 1.0,
        drift_pages: 120,
        kernel: None,
    }
}
