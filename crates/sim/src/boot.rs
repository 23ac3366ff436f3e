//! Deferred initialisation, simulated: the allocator's own boot, with every virtual CPU of a node as a worker.
//!
//! Frame descriptors are cleared with ordinary stores, which bring each line in and take it back: a core's bandwidth
//! in the descriptions of the machines that this was published for is that of initialising descriptors, both
//! directions counted. What the host holds of a terabyte's descriptors is what the free lists write to.

use framewright::{Config, NodeId};

use crate::clock::Ps;
use crate::engine::{Events, Moved};
use crate::model::{Model, Shape};
use crate::trace::Recorded;
use crate::world::{BootMemory, StructPage, World, WorldError};

/// Workers start within this of one another.
const JITTER: Ps = Ps(2_000_000);

/// How a boot went.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Milliseconds from the first worker's start to the last one's end: of all nodes together.
    pub ms: f64,
    /// Free base pages that were left for later.
    pub pages: u64,
    /// Event counters.
    pub events: Events,
    /// Traffic of memory and caches.
    pub moved: Moved,
    /// Spans of each CPU, if they were asked for.
    pub recorded: Option<Recorded>,
}

/// Initialises what boot leaves for later, all nodes together, with as many workers on each as `memory` says: threads
/// of cores first, then their siblings. Boot's own part takes no time. Records at most `spans` spans of the CPUs; 0
/// records none.
///
/// # Errors
/// Memory that is described wrongly, or no address space.
///
/// # Panics
/// If memory is left behind, or there are more workers than CPUs.
pub fn boot(
    model: &Model,
    memory: &BootMemory<'_>,
    config: Config,
    seed: u64,
    spans: usize,
) -> Result<Outcome, WorldError> {
    let shape = model.shape;
    let most = shape.cores_per_node * shape.threads_per_core;
    assert!((1..=most).contains(&memory.workers), "{} workers on {most} CPUs", memory.workers);
    let mut world = World::<StructPage>::booting(model, memory, config, seed)?;
    if spans > 0 {
        world.simulator_mut().record(spans);
    }
    let free: u64 = memory.free.iter().map(|range| range.end.0 - range.start.0).sum();
    let (report, pages, left) = world.boot(JITTER, |booting, cpu| {
        if place_in_node(&shape, cpu) < memory.workers
            && let Some(mut worker) = booting.worker(NodeId(shape.node_of(cpu)))
        {
            worker.run();
        }
    });
    assert!(left == 0 && world.allocator().free_pages() == free, "{left} pages stay behind");
    let works = |n: usize| place_in_node(&shape, n as u16) < memory.workers;
    let selected = |times: &[Ps]| -> Vec<Ps> {
        times.iter().enumerate().filter(|(n, _)| works(*n)).map(|(_, time)| *time).collect()
    };
    let start = selected(&report.starts).into_iter().min().unwrap_or_default();
    let end = selected(&report.ends).into_iter().max().unwrap_or_default();
    Ok(Outcome {
        ms: end.since(start).as_ns() / 1e6,
        pages,
        events: world.simulator().events(),
        moved: world.simulator().moved(),
        recorded: world.simulator_mut().recorded("boot"),
    })
}

/// The number of a CPU in its node: first one of each core, then the siblings.
const fn place_in_node(shape: &Shape, cpu: u16) -> u16 {
    cpu / shape.cores() * shape.cores_per_node + shape.core_of(cpu) % shape.cores_per_node
}
