//! The same four loads on 1 to all CPUs of a machine: what one operation costs, and where the time goes.
//!
//! * `bulk`: every CPU allocates so many blocks (*get*); when all have, every CPU frees its own in the same order (*put*).
//! * `random`: the blocks of all CPUs are shuffled together and dealt out again; every CPU frees its share.
//! * `churn`: every CPU holds blocks; a step frees one of them, chosen at random, and allocates another.
//! * `handoff`: of two neighbouring CPUs one allocates and the other frees; at most [`ON_THE_WAY`] blocks are on their way.
//!   The queue between them costs nothing: only the allocator is looked at.
//!
//! CPUs are used in the order of their numbers: cores first, socket after socket, then the cores' second threads. Every
//! node has memory, and a CPU allocates from its own.
//!
//! Whoever calls is a kernel or a program: see [`Caller`].
//!
//! The same loads run on no allocator at all: see [`floor`].

mod floor;

use core::cell::RefCell;
use std::collections::VecDeque;

use framewright::frame::Zeroable;
use framewright::policy::zonelist::zones_for;
use framewright::units::MAX_ORDER;
use framewright::{Config, Cpu, Migratetype, Order, Pfn, ZoneSpec};

use crate::bench::{Driver, Linux};
use crate::clock::{Ps, Rng};
use crate::engine::{self, Events, Moved, Report, Simulator};
use crate::kernbench::zones;
use crate::model::Model;
use crate::platform::Sim;
use crate::world::{StructPage, World, WorldError};

/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);
/// Blocks between the two CPUs of a pair, at most: as in the measured benchmark.
pub const ON_THE_WAY: usize = 256;
/// A CPU that waits for its partner looks again after this time.
const NAP: Ps = Ps(50_000);

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Load {
    /// Allocate all, then free all.
    Bulk,
    /// Free at random what all allocated.
    Random,
    /// Free one at random, allocate another.
    Churn,
    /// Allocate here, free there.
    Handoff,
}

impl Load {
    /// All loads, in the order in which they are reported.
    pub const ALL: [Self; 4] = [Self::Bulk, Self::Random, Self::Churn, Self::Handoff];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bulk => "bulk",
            Self::Random => "random",
            Self::Churn => "churn",
            Self::Handoff => "handoff",
        }
    }

    /// Whether so many CPUs can do it.
    #[must_use]
    pub const fn runs_on(self, cpus: u16) -> bool {
        match self {
            Self::Handoff => cpus >= 2 && cpus.is_multiple_of(2),
            _ => cpus >= 1,
        }
    }
}

/// Who calls the allocator, and so what a frame's descriptor is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Caller {
    /// A kernel like Linux: a descriptor has 64 bytes, the caller counts references in it, and each call has the private work that was
    /// fitted to Linux' ([`Fitted::alloc_ns`](crate::model::Fitted::alloc_ns), [`free_ns`](crate::model::Fitted::free_ns)).
    #[default]
    Kernel,
    /// A program that links the allocator: a descriptor is its head word of 8 bytes, and the caller's work is one access for each call, as
    /// of the measured benchmark's harness.
    Library,
}

/// One load on so many CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// What is done.
    pub load: Load,
    /// Order of each block.
    pub order: Order,
    /// CPUs that do it.
    pub cpus: u16,
    /// Blocks of each CPU: as many operations are timed.
    pub blocks: u64,
    /// Base pages of each node, at least: what lists may hold depends on how much is free.
    pub node_pages: u64,
    /// Who calls.
    pub caller: Caller,
}

/// What came out.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Name of a figure without parameters, and mean ns of an operation: of an allocation, a free, a step of churn, a block
    /// that was handed on.
    pub times: Vec<(&'static str, f64)>,
    /// Operations that were timed, on all CPUs.
    pub operations: u64,
    /// Zone locks during what was timed: acquisitions, ns waited, ns held.
    pub lock: [u64; 3],
    /// What memory and caches moved.
    pub moved: Moved,
    /// What happened.
    pub events: Events,
}

/// Something that hands out blocks, on a machine.
trait Rig {
    /// Runs `program` on each of the first `cpus` CPUs until all have ended.
    fn run(&mut self, cpus: u16, program: impl Fn(usize, &dyn Calls)) -> Report;
    /// Lets a CPU allocate so many blocks outside of virtual time.
    fn prepare(&mut self, cpu: u16, blocks: u64) -> Vec<Pfn>;
    /// Empties all caches.
    fn forget_caches(&mut self);
    /// Zone locks so far: acquisitions, ns waited, ns held.
    fn locks(&self) -> [u64; 3];
    fn simulator(&self) -> &Simulator;
}

/// What the CPU that runs can do.
trait Calls {
    fn alloc(&self) -> Pfn;
    fn free(&self, pfn: Pfn);
}

/// An allocator, and who calls it.
struct Called<M: Zeroable, D> {
    world: World<M>,
    driver: D,
}

impl<M: Zeroable, D: Drives<M>> Rig for Called<M, D> {
    fn run(&mut self, cpus: u16, program: impl Fn(usize, &dyn Calls)) -> Report {
        let driver = self.driver;
        self.world.run(cpus, JITTER, |n, cpu| program(n, &OnCpu { driver, cpu }))
    }

    fn prepare(&mut self, cpu: u16, blocks: u64) -> Vec<Pfn> {
        let driver = self.driver;
        self.world.prepare(cpu, |cpu| (0..blocks).map(|_| driver.alloc(cpu)).collect())
    }

    fn forget_caches(&mut self) {
        self.world.forget_caches();
    }

    fn locks(&self) -> [u64; 3] {
        let totals = self.world.allocator().totals().pcp;
        [totals.lock_acquisitions, totals.lock_wait_ns, totals.lock_hold_ns]
    }

    fn simulator(&self) -> &Simulator {
        self.world.simulator()
    }
}

/// A driver on one CPU.
struct OnCpu<'c, 'a, D, M: Zeroable> {
    driver: D,
    cpu: &'c Cpu<'a, 'a, Sim, M>,
}

impl<M: Zeroable, D: Drives<M>> Calls for OnCpu<'_, '_, D, M> {
    fn alloc(&self) -> Pfn {
        self.driver.alloc(self.cpu)
    }

    fn free(&self, pfn: Pfn) {
        self.driver.free(self.cpu, pfn);
    }
}

/// Allocates and frees on behalf of a caller with the user slots `M` in its descriptors.
trait Drives<M>: Copy {
    fn alloc(self, cpu: &Cpu<'_, '_, Sim, M>) -> Pfn;
    fn free(self, cpu: &Cpu<'_, '_, Sim, M>, pfn: Pfn);
}

impl Drives<StructPage> for Driver {
    fn alloc(self, cpu: &Cpu<'_, '_, Sim, StructPage>) -> Pfn {
        Self::alloc(&self, cpu)
    }

    fn free(self, cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn) {
        Self::free(&self, cpu, pfn);
    }
}

/// The calls of a [`Caller::Library`].
#[derive(Clone, Copy)]
struct Plain {
    order: Order,
    /// Private work of a call.
    work: Ps,
}

impl Drives<()> for Plain {
    fn alloc(self, cpu: &Cpu<'_, '_, Sim>) -> Pfn {
        engine::spend_about(self.work);
        match cpu.alloc(self.order, Migratetype::Movable) {
            Ok(pfn) => pfn,
            Err(error) => panic!("the load has run out of memory: {error}"),
        }
    }

    fn free(self, cpu: &Cpu<'_, '_, Sim>, pfn: Pfn) {
        engine::spend_about(self.work);
        if let Err(error) = cpu.free(pfn, self.order) {
            panic!("the load freed wrongly: {error}");
        }
    }
}

/// Runs a case.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the load cannot run on so many CPUs, or the machine has fewer.
pub fn run(model: &Model, linux: &Linux, case: &Case, seed: u64) -> Result<Outcome, WorldError> {
    assert!(case.load.runs_on(case.cpus), "{case:?}: not on so many CPUs");
    let nodes = u64::from(model.shape.nodes);
    let blocks = u64::from(case.cpus) * case.blocks;
    // Lists of all CPUs full, and the blocks of all CPUs on one node, as long as fewer CPUs run than it has.
    let lists = u64::from(case.cpus) * (u64::from(linux.sizing.high_max) + 2048);
    let pages = (blocks << case.order.get()) + lists;
    let per_node = (pages + pages / 4).max(case.node_pages).next_multiple_of(MAX_ORDER.pages());
    let sizing = Some(linux.sizing);
    let cpus_per_node = usize::from(model.shape.cores_per_node) * usize::from(model.shape.threads_per_core);
    let of_use = match linux.config {
        Config { spread_zones: false, .. } => 1,
        _ => zones_for(per_node, cpus_per_node),
    };
    let specs: Vec<ZoneSpec> =
        zones(nodes as u16, per_node).into_iter().flat_map(|zone| zone.divided(of_use)).collect();
    match case.caller {
        Caller::Kernel => {
            let mut world = World::<StructPage>::new(model, &specs, linux.config, sizing, seed)?;
            world.answer_all(case.cpus);
            let driver = Driver::of(&world, model, case.order);
            Ok(outcome(Called { world, driver }, case, seed))
        }
        Caller::Library => {
            let mut world = World::<()>::new(model, &specs, linux.config, sizing, seed)?;
            world.answer_all(case.cpus);
            let driver = Plain { order: case.order, work: Ps::from_ns(model.fitted.access_ns) };
            Ok(outcome(Called { world, driver }, case, seed))
        }
    }
}

/// Runs a case on no allocator: each CPU has a stack of its own blocks, from which it pops and to which it pushes. Nothing is shared, merged
/// or checked. A kernel's descriptors are written as its caller writes them: where an allocation returns, and where the last
/// reference is dropped. What a run takes here no allocator can spare it, but by touching its blocks in a better order.
///
/// # Errors
/// No address space.
///
/// # Panics
/// As [`run`].
pub fn floor(model: &Model, case: &Case, seed: u64) -> Result<Outcome, WorldError> {
    assert!(case.load.runs_on(case.cpus), "{case:?}: not on so many CPUs");
    let stacks = floor::Stacks::new(model, case, seed).map_err(WorldError::Memory)?;
    Ok(outcome(stacks, case, seed))
}

/// Runs a case on a machine that was made for it.
fn outcome(mut rig: impl Rig, case: &Case, seed: u64) -> Outcome {
    let blocks = u64::from(case.cpus) * case.blocks;
    let mut before = [0; 3];
    let load = Running { rig: &mut rig, case, seed, before: &mut before };
    let times = match case.load {
        Load::Bulk => load.bulk(),
        Load::Random => load.random(),
        Load::Churn => load.churn(),
        Load::Handoff => load.handoff(),
    };
    let lock = rig.locks();
    Outcome {
        operations: times.len() as u64 * blocks / if case.load == Load::Handoff { 2 } else { 1 },
        times,
        lock: [0, 1, 2].map(|n| lock[n] - before[n]),
        moved: rig.simulator().moved(),
        events: rig.simulator().events(),
    }
}

struct Running<'a, R> {
    rig: &'a mut R,
    case: &'a Case,
    seed: u64,
    /// The use of the zone locks before what is timed.
    before: &'a mut [u64; 3],
}

impl<R: Rig> Running<'_, R> {
    fn bulk(self) -> Vec<(&'static str, f64)> {
        let Self { rig, case, .. } = self;
        let own = RefCell::new(vec![Vec::new(); usize::from(case.cpus)]);
        let get = rig.run(case.cpus, |n, cpu| {
            let blocks: Vec<Pfn> = (0..case.blocks).map(|_| cpu.alloc()).collect();
            own.borrow_mut()[n] = blocks;
        });
        // A long run's descriptors are no longer in the caches when they are freed.
        rig.forget_caches();
        let own = own.into_inner();
        let put = rig.run(case.cpus, |n, cpu| {
            own[n].iter().for_each(|&pfn| cpu.free(pfn));
        });
        let each = |report: Report| report.mean().as_ns() / case.blocks as f64;
        vec![("bulk_get_ns", each(get)), ("bulk_put_ns", each(put))]
    }

    fn random(mut self) -> Vec<(&'static str, f64)> {
        let mut blocks: Vec<Pfn> = self.held().concat();
        let Self { rig, case, seed, before } = self;
        *before = rig.locks();
        Rng::new(seed ^ 0x7a4d).shuffle(&mut blocks);
        rig.forget_caches();
        let put = rig.run(case.cpus, |n, cpu| {
            let share = &blocks[n * case.blocks as usize..][..case.blocks as usize];
            share.iter().for_each(|&pfn| cpu.free(pfn));
        });
        vec![("random_put_ns", put.mean().as_ns() / case.blocks as f64)]
    }

    fn churn(mut self) -> Vec<(&'static str, f64)> {
        let held = RefCell::new(self.held());
        let Self { rig, case, seed, before } = self;
        let run = |rig: &mut R, steps: u64, salt: u64| {
            rig.run(case.cpus, |n, cpu| {
                let mut rng = Rng::new(seed ^ salt ^ (n as u64) << 32);
                let mut own = core::mem::take(&mut held.borrow_mut()[n]);
                for _ in 0..steps {
                    let at = rng.below(own.len() as u64) as usize;
                    cpu.free(own[at]);
                    own[at] = cpu.alloc();
                }
                held.borrow_mut()[n] = own;
            })
        };
        // Until the lists are as they stay.
        run(rig, case.blocks / 4, 0xc3);
        *before = rig.locks();
        let steps = run(rig, case.blocks, 0xc4);
        vec![("churn_ns", steps.mean().as_ns() / case.blocks as f64)]
    }

    fn handoff(self) -> Vec<(&'static str, f64)> {
        let Self { rig, case, .. } = self;
        let pairs: Vec<RefCell<VecDeque<(Ps, Pfn)>>> =
            (0..case.cpus / 2).map(|_| RefCell::default()).collect();
        let spans = rig.run(case.cpus, |n, cpu| {
            let queue = &pairs[n / 2];
            let wait = || engine::idle_until(engine::now() + NAP);
            for _ in 0..case.blocks {
                if n % 2 == 0 {
                    while queue.borrow().len() >= ON_THE_WAY {
                        wait();
                    }
                    let pfn = cpu.alloc();
                    queue.borrow_mut().push_back((engine::now(), pfn));
                    continue;
                }
                let pfn = loop {
                    let first = queue.borrow().front().copied();
                    match first {
                        // Not before it was sent: the sender may have run ahead.
                        Some((sent, pfn)) if sent <= engine::now() => break pfn,
                        Some((sent, _)) => engine::idle_until(sent),
                        None => wait(),
                    }
                };
                queue.borrow_mut().pop_front();
                cpu.free(pfn);
            }
        });
        vec![("handoff_ns", spans.mean().as_ns() / case.blocks as f64)]
    }

    /// Lets each CPU allocate its blocks outside of virtual time, one CPU after another.
    fn held(&mut self) -> Vec<Vec<Pfn>> {
        (0..self.case.cpus).map(|cpu| self.rig.prepare(cpu, self.case.blocks)).collect()
    }
}

#[cfg(test)]
mod tests {
    use framewright::policy::pcp::Sizing;

    use framewright::config::Experiment;

    use super::*;
    use crate::model::testing;

    fn linux(config: Config) -> Linux {
        let sizing = Sizing { batch: 63, high_min: 378, high_max: 378 };
        Linux {
            config: Config { experiment: Experiment { lock_timing: true, ..config.experiment }, ..config },
            sizing,
        }
    }

    #[test]
    fn every_load_runs_on_every_engine_repeats_itself_and_costs_more_with_company() {
        let model = testing::round(8);
        for config in [Config::framewright(), Config::linux_v6_7()] {
            for load in Load::ALL {
                let of = |cpus| {
                    let case = Case {
                        load,
                        order: Order::ZERO,
                        cpus,
                        blocks: 1500,
                        node_pages: 0,
                        caller: Caller::Kernel,
                    };
                    run(&model, &linux(config), &case, 1).expect("it fits")
                };
                let (few, many) = (of(2), of(8));
                assert_eq!(few, of(2), "{load:?}");
                assert_eq!(few.times.len(), if load == Load::Bulk { 2 } else { 1 });
                for ((name, few_ns), (_, many_ns)) in few.times.iter().zip(&many.times) {
                    assert!(*few_ns > 1.0 && many_ns > &(few_ns * 0.9), "{name}: {few_ns} {many_ns}");
                }
                let operations = 8 * 1500 * if load == Load::Bulk { 2 } else { 1 };
                assert_eq!(many.operations, if load == Load::Handoff { operations / 2 } else { operations });
            }
        }
    }

    #[test]
    fn lists_spare_the_zone_lock_under_churn_and_cannot_when_frees_outnumber_them() {
        let model = testing::round(4);
        let locks = |load| {
            let case = Case {
                load,
                order: Order::ZERO,
                cpus: 4,
                blocks: 2000,
                node_pages: 0,
                caller: Caller::Kernel,
            };
            let outcome = run(&model, &linux(Config::linux_v6_1()), &case, 1).expect("it fits");
            outcome.lock[0] as f64 / outcome.operations as f64
        };
        assert!(locks(Load::Churn) < locks(Load::Bulk) / 2.0, "{} {}", locks(Load::Churn), locks(Load::Bulk));
    }

    /// CPUs that want the zone lock at once are refilled by one of them, and whoever has waited keeps the huge blocks that it frees.
    /// Of the CPUs of a node each sixteen neighbours begin at a zone of their own.
    #[test]
    fn where_many_want_the_zone_lock_few_ask_for_it() {
        let sizing = Sizing { batch: 63, high_min: 378, high_max: 1 << 15 };
        let locks = |cpus, order, blocks| {
            let order = Order::new(order).expect("an order");
            let node_pages = 1 << 22;
            let case = Case { load: Load::Bulk, order, cpus, blocks, node_pages, caller: Caller::Kernel };
            let linux = Linux { sizing, ..linux(Config::framewright()) };
            run(&testing::round(cpus), &linux, &case, 1).expect("it fits").lock[0]
        };
        for cpus in [16, 32] {
            let small = locks(cpus, 0, 512);
            assert!(
                small < 3 * u64::from(cpus) / 4,
                "{small} holds for {cpus} CPUs that allocate and free a pageblock's pages each"
            );
        }
        let huge = locks(16, 9, 40);
        assert!(huge < 4 * 16, "{huge} holds for 16 CPUs that allocate and free 40 huge blocks each");
    }

    /// A library's blocks carry no count of references, and eight descriptors share a line.
    #[test]
    fn a_library_moves_fewer_lines_than_a_kernel() {
        let moved = |caller| {
            let case =
                Case { load: Load::Bulk, order: Order::ZERO, cpus: 4, blocks: 2000, node_pages: 0, caller };
            let outcome = run(&testing::round(4), &linux(Config::framewright()), &case, 1).expect("it fits");
            let lines = outcome.moved.lines.iter().filter(|line| line.name == "frame descriptors");
            lines.map(|line| line.fetches).sum::<u64>()
        };
        let [kernel, library] = [Caller::Kernel, Caller::Library].map(moved);
        assert!(library < kernel / 4, "{library} lines of descriptors, {kernel} of those of 64 bytes");
    }

    #[test]
    fn no_allocator_costs_less_than_none_and_the_descriptors_bandwidth_is_in_both() {
        let mut model = testing::round(8);
        model.fitted.alloc_ns = 50.0;
        for caller in [Caller::Kernel, Caller::Library] {
            // What is handed over goes round in an allocator, so that it stays in caches.
            for load in [Load::Bulk, Load::Random, Load::Churn] {
                for cpus in [2, 8] {
                    let case = Case { load, order: Order::ZERO, cpus, blocks: 1000, node_pages: 0, caller };
                    let least = floor(&model, &case, 1).expect("it fits");
                    let ours = run(&model, &linux(Config::framewright()), &case, 1).expect("it fits");
                    assert_eq!(least, floor(&model, &case, 1).expect("it fits"), "{load:?}");
                    for ((name, least), (_, ours)) in least.times.iter().zip(&ours.times) {
                        assert!(*least > 1.0 && least <= ours, "{caller:?} {name} {cpus}: {least} {ours}");
                    }
                    assert_eq!(least.lock, [0; 3]);
                }
            }
        }
    }
}
