//! Parts that run this project's allocator as a library, measured on this machine's threads and simulated on a modelled
//! one, by the same code: every CPU allocates and frees in bulk, or replays a copy of a trace as fast as it can.

use framewright::config::LockKind;
use framewright::pcp::PcpEvents;
use framewright::{NodeId, ZoneSpec, ZoneType};
use framewright_host::{Config, Pfn};
use framewright_report::error::{Error, Result};
use framewright_report::result::{Kind, Part as ResultPart};
use framewright_sim::clock::{Rng, mix};
use framewright_sim::model::Shape;
use framewright_sim::stage::{Compiled, RING, Simulated};
use framewright_sim::world::{Meet, Programs};
use framewright_sim::{Model, World};
use framewright_trace::trace::Trace;
use framewright_workload::bench::{self, Case, Measurement, Scale, Stage, Threads, Workload as Bench};
use framewright_workload::probe;
use framewright_workload::replay::{Recorded, copies};

use crate::configure::Setup;
use crate::settings::Settings;
use crate::simulate::samples::{Interval, close_models};
use crate::simulate::{in_parallel, sampled_models, strata};
use crate::study::declare::*;
use crate::study::replay::trace;
use crate::study::run::{Run, configured, progress, result_part};
use crate::study::{Part, Plan};
use crate::subject::{Bare, Subject, with};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "library",
        about: "The allocator as a library, on 1, 2, 4, … CPUs: every CPU allocates and frees in bulk, or replays a copy of a trace.",
        kinds: &[Kind::Measured, Kind::Simulated],
        keys: &[
            key("load", Takes::Words(&["bulk", "copies"]), Some("bulk"), "What the CPUs do."),
            key(
                "cpus",
                Takes::Whole(1, 1024),
                Some("2"),
                "The most CPUs: 1, 2, 4, … up to it, as far as the machine has them.",
            ),
            key("trace", Takes::FileOr("compile"), Some("compile"), "The trace of which copies run."),
        ],
        metrics: joined!(Quantity;
            &TIMES,
            &quantities! {
                copied_ns "ns" Lower Main "Time of one operation of a trace that every CPU has a copy of."
            },
            &ZONE_LOCK,
            &quantities! {
                transfer_ns "ns" None Cause "A line's way from one CPU to another, measured before each round."
                zone_lock_acquisitions_per_operation "1" Lower Main "Acquisitions of zone locks, those of a warm-up included, per timed operation."
            },
        ),
        options: joined!((Opt, Kind); &MEASURED, &SIMULATED),
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, measured), (Kind::Simulated, simulated)],
};

/// Frames managed where CPUs allocate in bulk, and operations of each CPU in a sample. Descriptors are in a core's
/// second level.
const FRAMES: u64 = 1 << 16;
const OPERATIONS: u64 = 1 << 15;
/// Events of a trace that each CPU replays; for a first look.
const EVENTS: [usize; 2] = [40_000, 10_000];
/// Factor by which times of this allocator as a library, predicted blind for two machines, were off
/// (of bulk, four of five; docs/validation/own-bench.md).
const OFF: f64 = 1.7;
/// Time that the clock adds to a hold that a host times, in ns: one look by the vDSO.
const CLOCK_NS: [f64; 2] = [15.0, 40.0];
/// The factor of counts, which repeat but for where a pass begins.
const COUNTS_OFF: f64 = 1.05;
/// Rounds that are simulated, of which the last counts.
const ROUNDS: u64 = 2;

const TRANSFER: &str = "transfer_ns";
const COUNTS: &str = "zone_lock_acquisitions_per_operation";

/// A load on a number of CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load<'a> {
    Bench(Case, Scale),
    Copies(&'a Recorded, usize),
}

impl Load<'_> {
    /// Order-0 blocks in bulk.
    pub(crate) fn bulk(cpus: usize) -> Self {
        let scale = Scale { frames: FRAMES, operations: OPERATIONS, ..Scale::default() };
        Self::Bench(Case { workload: Bench::Bulk, order: 0, cpus }, scale)
    }

    fn cpus(&self) -> usize {
        match self {
            Self::Bench(case, _) => case.cpus,
            Self::Copies(_, cpus) => *cpus,
        }
    }

    fn frames(&self) -> u64 {
        match self {
            Self::Bench(_, scale) => scale.frames,
            // Room for what lists hold back.
            Self::Copies(recorded, cpus) => {
                ((recorded.frames() + FRAMES / 4) * *cpus as u64).next_multiple_of(1 << 10)
            }
        }
    }

    pub(crate) fn perform<S: Stage>(&self, stage: &S, round: u64) -> Measurement {
        match self {
            Self::Bench(case, scale) => bench::perform(stage, case, scale, round),
            Self::Copies(recorded, cpus) => copies(stage, recorded, *cpus),
        }
    }
}

/// Figures of one run: times, and the zone lock's acquisitions per timed operation, ns waited and ns held for each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    pub(crate) measurement: Measurement,
    pub(crate) lock: [f64; 3],
}

impl Sample {
    fn new(measurement: Measurement, before: &PcpEvents, after: &PcpEvents) -> Self {
        let locks = (after.lock_acquisitions - before.lock_acquisitions) as f64;
        let [wait, hold] =
            [after.lock_wait_ns - before.lock_wait_ns, after.lock_hold_ns - before.lock_hold_ns];
        let each = locks.max(1.0);
        let lock = [locks / measurement.operations.max(1) as f64, wait as f64 / each, hold as f64 / each];
        Self { measurement, lock }
    }

    /// Adds its figures, times by a factor, and holds with what the clock adds to them.
    pub(crate) fn add(
        &self,
        result: &mut ResultPart,
        variant: &str,
        parameters: &str,
        [factor, clock]: [f64; 2],
    ) {
        let [locks, wait, hold] = self.lock;
        let times = self.measurement.metrics.iter().map(|metric| {
            let name = metric.name.split('[').next().unwrap_or_default();
            let name = match name {
                "bulk_get_ns" => "alloc_ns",
                "bulk_put_ns" => "free_ns",
                name => name,
            };
            (name, factor * metric.value)
        });
        let locks = [
            ("zone_lock_wait_ns", factor * wait),
            ("zone_lock_hold_ns", factor * hold + clock),
            (COUNTS, locks),
        ];
        for (family, value) in times.chain(locks) {
            result.figure(format!("{family}[{parameters}]")).sample(variant, value);
        }
        if self.measurement.failures > 0 {
            result.note(format!(
                "{} allocations failed: {parameters} does not compare.",
                self.measurement.failures
            ));
        }
    }
}

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

/// Runs a load on the model of a machine, as the library runs it: the sample of the last of [`ROUNDS`] rounds.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn modelled(model: &Model, mut config: Config, load: &Load<'_>, seed: u64) -> Result<Sample> {
    let mut model = model.for_compiled();
    let cpus = load.cpus();
    model.shape = first_cpus(model.shape, cpus as u16);
    if config.experiment.lock_kind == LockKind::ByPlatform {
        // What a host's threads wait with.
        config.experiment.lock_kind = LockKind::Parking;
    }
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: load.frames() };
    // Beside the allocator's, for each round: a ring for every two CPUs, and where all meet.
    let lines = (RING * (cpus / 2) + Meet::LINES) * ROUNDS as usize;
    let mut world: World =
        World::with_lines(&model, &[zone], config, None, seed, lines).map_err(Error::failed)?;
    world.answer_all(cpus as u16);
    let stage = Simulated::new(Programs::new(&mut world), Compiled::on(&model));
    let rounds = (0..ROUNDS).map(|round| {
        let before = stage.allocator().totals().pcp;
        Sample::new(load.perform(&stage, round), &before, &stage.allocator().totals().pcp)
    });
    rounds.last().ok_or_else(|| Error::failed("no round"))
}

/// Two arenas of one configuration: one as it is, one that times its lock, because the clock slows what it times.
pub(crate) struct Pair {
    plain: Subject,
    timed: Subject,
}

impl Pair {
    /// Arenas for a load.
    ///
    /// # Errors
    /// The configuration is refused.
    pub(crate) fn new(setup: &Setup, load: &Load<'_>) -> Result<Self> {
        let mut timed = *setup;
        timed.config.experiment.lock_timing = true;
        let subject = |setup: &Setup| Subject::new(setup, load.frames(), load.cpus());
        Ok(Self { plain: subject(setup)?, timed: subject(&timed)? })
    }

    /// Mean hold of the zone lock, in ns, on the arena that times it.
    pub(crate) fn held_ns(&self, load: &Load<'_>, round: u64) -> f64 {
        self.timed(load, round, Measurement::default()).lock[2]
    }

    /// Runs the load on both.
    pub(crate) fn sample(&self, load: &Load<'_>, round: u64) -> Sample {
        let measurement = with!(&self.plain, arena => load.perform(&Threads(&Bare(arena)), round));
        self.timed(load, round, measurement)
    }

    fn timed(&self, load: &Load<'_>, round: u64, measurement: Measurement) -> Sample {
        let before = self.timed.totals().pcp;
        with!(&self.timed, arena => drop(load.perform(&Threads(&Bare(arena)), round)));
        Sample::new(measurement, &before, &self.timed.totals().pcp)
    }
}

/// What is in the brackets of a metric's name.
pub(crate) fn parameters(varied: &Settings, cores: usize) -> String {
    let mut all: Vec<String> =
        varied.iter().map(|(key, value)| format!("{}={value}", key.trim_start_matches("lock_"))).collect();
    all.push(format!("cores={cores}"));
    all.join(",")
}

/// Loads of a part on 1, 2, 4, … CPUs.
fn loads<'a>(part: &Part, recorded: &'a Recorded, cpus: usize) -> Vec<Load<'a>> {
    let most: usize = WORKLOAD.value(part, "cpus");
    let counts = (0..).map(|n| 1 << n).take_while(|&count| count <= cpus.min(most));
    let is_bulk = WORKLOAD.text(part, "load") == "bulk";
    counts.map(|cpus| if is_bulk { Load::bulk(cpus) } else { Load::Copies(recorded, cpus) }).collect()
}

/// The part of its trace that each CPU replays; nothing for a load that has none.
fn recorded(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<Recorded> {
    if WORKLOAD.text(part, "load") == "bulk" {
        return Ok(Recorded::default());
    }
    let (trace, _) = trace(plan, part, run)?;
    let trace: &Trace = &trace;
    Ok(Recorded::new(trace, EVENTS[usize::from(run.quick)]))
}

/// Runs the part on this machine's threads.
///
/// # Errors
/// A setting or a trace that does not exist, or no memory.
fn measured(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let recorded = recorded(plan, part, run)?;
    let loads = loads(part, &recorded, std::thread::available_parallelism().map_or(1, usize::from));
    let combinations = part.combinations();
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let steps = combinations.len() * loads.len() * plan.variants().count() * run.samples as usize;
    let progress = progress(plan, part, steps);
    // All are interleaved: what else the machine does falls on all alike.
    let mut all = Vec::new();
    for varied in &combinations {
        for load in &loads {
            for variant in configured(plan, varied)? {
                let pair = Pair::new(&variant.setup.compact(), load)?;
                all.push((variant.variant, parameters(varied, load.cpus()), pair, load));
            }
        }
    }
    let cpus = probe::allowed_cpus();
    for round in 0..u64::from(run.samples) {
        // What contention costs is counts times this; on a guest it changes as its CPUs are moved.
        if let [first, second, ..] = cpus[..]
            && let Some(transfer) = probe::ping_pong(first, second)
        {
            let all = result.variants.clone();
            let figure = result.figure(TRANSFER);
            all.iter().fold(figure, |figure, variant| figure.sample(variant, transfer.value));
        }
        for turn in 0..all.len() {
            let (variant, parameters, pair, load) = &all[(round as usize + turn) % all.len()];
            pair.sample(load, round).add(&mut result, variant, parameters, [1.0, 0.0]);
            progress.step(variant);
        }
    }
    settle(&mut result, part);
    Ok(result)
}

/// Leaves the metrics that the part names, in its order, and the transfer.
fn settle(result: &mut ResultPart, part: &Part) {
    let place = |family: &str| part.metrics.iter().position(|known| known.name == family);
    result.metrics.retain(|metric| metric.family() == TRANSFER || place(metric.family()).is_some());
    result.metrics.sort_by_key(|metric| place(metric.family()));
}

/// Runs the part on models of the machine.
///
/// # Errors
/// The machine cannot be simulated, or a setting or a trace that does not exist.
fn simulated(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let recorded = recorded(plan, part, run)?;
    let loads = loads(part, &recorded, run.machine.cpus() as usize);
    let count = run.models as usize;
    let models = sampled_models(run.machine, count, run.seed)?;
    let errors = strata(-OFF.ln(), OFF.ln(), count, &mut Rng::new(mix(run.seed ^ 0x0ff)));
    let clocks = strata(CLOCK_NS[0], CLOCK_NS[1], count, &mut Rng::new(mix(run.seed ^ 0xc10c)));
    let mut work = Vec::new();
    for varied in &part.combinations() {
        for load in &loads {
            for variant in configured(plan, varied)? {
                let parameters = parameters(varied, load.cpus());
                work.extend((0..count).map(|n| (n, variant.clone(), parameters.clone(), *load)));
            }
        }
    }
    let progress = progress(plan, part, work.len());
    let samples = in_parallel(
        &work,
        |(n, variant, _, load)| {
            let mut config = variant.setup.config;
            config.experiment.lock_timing = true;
            modelled(&models[*n], config, load, mix(run.seed ^ (*n as u64 + 1) << 32))
        },
        || progress.step("simulated"),
    );
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    for ((n, variant, parameters, _), sample) in work.iter().zip(samples) {
        sample?.add(&mut result, &variant.variant, parameters, [errors[*n].exp(), clocks[*n]]);
    }
    settle(&mut result, part);
    close_models(&mut result, count, [], Interval::FourFifths);
    for metric in result.metrics.iter_mut().filter(|metric| metric.family() == COUNTS) {
        for [low, high] in metric.interval.values_mut() {
            (*low, *high) = (*low / COUNTS_OFF, *high * COUNTS_OFF);
        }
    }
    Ok(result)
}
