//! A made-up socket, to run the simulator without a description of a machine.

use framewright_sim::model::{Bandwidth, Caches, Fitted, Latency, Model, Shape};

/// One socket of `cores`, SMT off, with costs like a real one's.
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
        bandwidth: Bandwidth { node_read: 160.0, node_mixed: 130.0, core: 13.0, saturated: 1.8 },
        caches: Caches { l1: 768, l2: 20_480, l3: 640_000 },
        pause_ns: 60.0,
        mispredict_ns: 7.0,
        guesses: false,
        exchange_ns: 8.0,
        smt_yield: 1.25,
        store_exposed: 0.75,
        own_access_ns: None,
        own_hit_ns: 2.0,
        fitted: Fitted {
            alloc_ns: 50.0,
            free_ns: 25.0,
            access_ns: 1.5,
            walk_ns: 30.0,
            dependent: 0.4,
            page_ns: 0.5,
        },
        transfers: 1.0,
        drift_pages: 120,
        kernel: None,
    }
}
