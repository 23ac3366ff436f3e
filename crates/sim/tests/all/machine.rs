//! A machine to test with: one socket of some cores, with costs like a real one's.

use framewright::config::{Experiment, LockKind, LockPlace};
use framewright::policy::pcp::Sizing;
use framewright::{Config, Order};
use framewright_sim::bench::{Bench, Case, Linux, Outcome, linux, linux_6_0};
use framewright_sim::model::{Batches, Kernel, Model, Shape};

pub(crate) use crate::socket::socket;
use crate::testing::round;

/// Linux 6.0 with a lock of this kind and place, and lists of this size.
pub(crate) fn locked(lock_kind: LockKind, lock_place: LockPlace, batch: u32, high: u32) -> Linux {
    let config =
        Config { experiment: Experiment { lock_kind, lock_place, ..linux_6_0().experiment }, ..linux_6_0() };
    Linux { config, sizing: Sizing { batch, high_min: high, high_max: high } }
}

/// Every core allocates and frees `pages` pages in bulk.
pub(crate) fn bulk(model: &Model, allocator: &Linux, cores: u16, blocks: u64, seed: u64) -> Outcome {
    let case = Case { bench: Bench::Bulk, order: Order::ZERO, cores, blocks, stands_for: blocks };
    linux(model, allocator, &case, seed).expect("a world")
}

/// Mean ns of an allocation and a free.
pub(crate) fn pair_ns(outcome: &Outcome) -> f64 {
    outcome.get_ns.expect("timed") + outcome.put_ns.expect("timed")
}

/// The machine with round numbers, for tasks: the kernel's own work takes round times, too.
pub(crate) fn with_tasks(cores: u16, threads: u16) -> Model {
    let model = round(cores);
    Model {
        shape: Shape { threads_per_core: threads, ..model.shape },
        kernel: Some(Kernel { page_fault: 500.0, page_free: 100.0, lru: Batches { link: 15, unlink: 32 } }),
        ..model
    }
}
