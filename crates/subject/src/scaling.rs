//! Workloads of `bench` on CPUs of a modelled machine: on an allocator, or on none ([`Floor`]).

use framewright::ZoneSpec;
use framewright::frame::Zeroable;
use framewright::units::MAX_ORDER;
use framewright_host::{Config, Order};
use framewright_sim::bench::{Driver, Linux};
use framewright_sim::engine::{Events, Moved};
use framewright_sim::stage::{Around, Caller, Compiled, Floor, RING, Simulated};
use framewright_sim::world::{Meet, Programs, StructPage, WorldError, zones};
use framewright_sim::{Model, World};
use framewright_workload::bench::{self, Measurement, Metric, Scale, Workload};

/// One workload on a number of CPUs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Case {
    /// The workload, one of those that need no allocator of their own.
    pub load: Workload,
    /// Order of the blocks.
    pub order: Order,
    /// CPUs, in the order of their numbers.
    pub cpus: u16,
    /// Blocks of each CPU: as many operations are timed.
    pub blocks: u64,
    /// Base pages of each node, at least: what lists may hold depends on how much is free.
    pub node_pages: u64,
    /// Whether a program calls, with descriptors of 8 bytes; else a kernel like Linux, with descriptors of 64 bytes.
    pub library: bool,
}

/// Figures of one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Name of a figure without parameters, and mean ns of an operation.
    pub times: Vec<(String, f64)>,
    /// Allocations and frees of all CPUs.
    pub calls: u64,
    /// Zone locks: acquisitions, ns waited, ns held.
    pub lock: [u64; 3],
    /// Traffic between caches, and with memory.
    pub moved: Moved,
    /// Counts of the simulated machine, with a hash of all that happened.
    pub events: Events,
}

impl Case {
    /// Runs it on an allocator, or on none. A seed repeats.
    ///
    /// # Errors
    /// The configuration is refused.
    ///
    /// # Panics
    /// If an allocation fails: it has more memory than it needs.
    pub fn run(&self, model: &Model, allocator: Option<&Linux>, seed: u64) -> Result<Outcome, WorldError> {
        let specs = self.zones(model, allocator);
        let config = allocator.map_or_else(Config::framewright, |linux| linux.config);
        let sizing = allocator.map(|linux| linux.sizing);
        let lines = match (allocator, self.load) {
            (None, _) => Floor::LINES * usize::from(self.cpus),
            (_, Workload::Handoff) => RING * usize::from(self.cpus / 2),
            _ => 0,
        };
        let lines = lines + Meet::LINES;
        if self.library {
            let model = model.for_compiled();
            let mut world = World::<()>::with_lines(&model, &specs, config, sizing, seed, lines)?;
            let program = Compiled::on(&model);
            let done = match allocator {
                Some(_) => self.perform(&mut world, seed, |_| program),
                None => {
                    let around = Around::Program(program);
                    self.perform(&mut world, seed, |programs| self.floor(programs, &model, around))
                }
            };
            Ok(outcome(done, &world))
        } else {
            let mut world = World::<StructPage>::with_lines(model, &specs, config, sizing, seed, lines)?;
            let kernel = Driver::of(&world, model, self.order);
            let done = match allocator {
                Some(_) => self.perform(&mut world, seed, |_| kernel),
                None => {
                    let around = Around::Kernel(kernel);
                    self.perform(&mut world, seed, |programs| self.floor(programs, model, around))
                }
            };
            Ok(outcome(done, &world))
        }
    }

    /// No allocator, in a world whose zones are those of none.
    fn floor<'w, M: Zeroable>(&self, programs: &Programs<'w, M>, model: &Model, around: Around) -> Floor<'w> {
        let node_pages = self.zones(model, None)[0].pages;
        let counts = [usize::from(self.cpus), self.blocks as usize];
        Floor::new(programs, &model.shape, counts, self.order, node_pages, around)
    }

    /// Each node's zones: with room for full lists of all CPUs, and for the blocks of all CPUs, as long as fewer CPUs
    /// run than a node has.
    fn zones(&self, model: &Model, allocator: Option<&Linux>) -> Vec<ZoneSpec> {
        let cpus = u64::from(self.cpus);
        let lists = cpus * (u64::from(allocator.map_or(0, |linux| linux.sizing.high_max)) + 2048);
        let pages = ((cpus * self.blocks) << self.order.get()) + lists;
        let pages = (pages + pages / 4).max(self.node_pages).next_multiple_of(MAX_ORDER.pages());
        zones(model.shape.nodes, pages)
    }

    /// Runs the workload in a world that was made for it; returns what it showed, and how many calls there were.
    fn perform<'w, M: Zeroable, C: Caller<M>>(
        &self,
        world: &'w mut World<M>,
        seed: u64,
        caller: impl FnOnce(&Programs<'w, M>) -> C,
    ) -> (Measurement, u64) {
        world.answer_all(self.cpus);
        let programs = Programs::new(world);
        let caller = caller(&programs);
        let stage = Simulated::new(programs, caller);
        let (order, cpus) = (self.order.get(), usize::from(self.cpus));
        // Half of the frames are in the lists of blocks.
        let frames = 2 * ((u64::from(self.cpus) * self.blocks) << order);
        let scale = Scale { frames, operations: self.blocks, seed, ..Scale::default() };
        let case = bench::Case { workload: self.load, order, cpus };
        let measurement = bench::perform(&stage, &case, &scale, 0);
        assert_eq!(measurement.failures, 0, "{case} has run out of memory");
        (measurement, stage.calls())
    }
}

fn outcome<M: Zeroable>((measurement, calls): (Measurement, u64), world: &World<M>) -> Outcome {
    let totals = world.allocator().totals().pcp;
    let name = |metric: &Metric| metric.name.split('[').next().unwrap_or_default().to_owned();
    Outcome {
        times: measurement.metrics.iter().map(|metric| (name(metric), metric.value)).collect(),
        calls,
        lock: [totals.lock_acquisitions, totals.lock_wait_ns, totals.lock_hold_ns],
        moved: world.simulator().moved(),
        events: world.simulator().events(),
    }
}
