//! A made-up socket, to run the simulator without a description of a machine.

use framewright_sim::model::{Bandwidth, Fitted, Latency, Model};

use crate::testing::round;

/// One socket of `cores`, SMT off, with costs like a real one's.
pub(crate) fn socket(cores: u16) -> Model {
    let round = round(cores);
    Model {
        latency: Latency { dram: [90.0, 140.0], ..round.latency },
        bandwidth: Bandwidth { core: 13.0, ..round.bandwidth },
        pause_ns: 60.0,
        mispredict_ns: 7.0,
        guesses: false,
        exchange_ns: 8.0,
        fitted: Fitted {
            alloc_ns: 50.0,
            free_ns: 25.0,
            access_ns: 1.5,
            walk_ns: 30.0,
            dependent: 0.4,
            page_ns: 0.5,
        },
        ..round
    }
}
