//! A load on a modelled machine, as the library runs it there.

use framewright::config::LockKind;
use framewright_host::Config;
use framewright_sim::model::Shape;
use framewright_sim::stage::{Compiled, RING, Simulated};
use framewright_sim::world::{Meet, Programs, WorldError, zones};
use framewright_sim::{Model, World};

use crate::load::{Load, Sample};

/// Rounds that are simulated, of which the last counts.
const ROUNDS: u64 = 2;

/// The first CPUs of a machine, with a core each if there are as many: what threads that are pinned in turn get.
fn first_cpus(shape: Shape, cpus: u16) -> Shape {
    if cpus > shape.cores_per_node {
        return shape;
    }
    Shape {
        sockets: 1,
        nodes: 1,
        cores_per_node: cpus,
        cores_per_l3: shape.cores_per_l3.min(cpus),
        threads_per_core: 1,
    }
}

/// Runs a load on the model of a machine: a round that warms up, and one that is the sample.
///
/// # Errors
/// The configuration is refused.
pub fn modelled(model: &Model, mut config: Config, load: &Load<'_>, seed: u64) -> Result<Sample, WorldError> {
    let mut model = model.for_compiled();
    let cpus = load.cpus();
    model.shape = first_cpus(model.shape, cpus as u16);
    if config.experiment.lock_kind == LockKind::ByPlatform {
        // What a host's threads wait with.
        config.experiment.lock_kind = LockKind::Parking;
    }
    // Beside the allocator's, for each round: a ring for every two CPUs, and where all meet.
    let lines = (RING * (cpus / 2) + Meet::LINES) * ROUNDS as usize;
    let mut world: World = World::with_lines(&model, &zones(1, load.frames()), config, None, seed, lines)?;
    world.answer_all(cpus as u16);
    let stage = Simulated::new(Programs::new(&mut world), Compiled::on(&model));
    let mut sample = Sample::default();
    for round in 0..ROUNDS {
        let before = stage.allocator().totals().pcp;
        sample = Sample::new(load.perform(&stage, round), &before, &stage.allocator().totals().pcp);
    }
    Ok(sample)
}
