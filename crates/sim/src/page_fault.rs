//! will-it-scale's `page_fault1`, as processes: each maps some pages, touches every one, unmaps them all, and again.
//!
//! Each of the first CPUs has one process. A slice begins with each somewhere in its round, evenly over the time that a
//! round takes, and with memory that other rounds have used before.

use core::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use framewright::config::{Experiment, PcpFixed};
use framewright::policy::pcp::Sizing;
use framewright::units::MAX_ORDER;
use framewright::{Config, Migratetype, Order, Pfn};

use crate::bench::Linux;
use crate::clock::{Ps, Rng, mix};
use crate::model::Model;
use crate::outcome::{Outcome, Pace, Till, leave_little_cache, pay};
use crate::task::{self, OnCpu, Placed, Step, Task, Usage};
use crate::world::{StructPage, World, WorldError, zones};

/// Pages that are unmapped between two looks at the clock.
const UNMAPPED_AT_ONCE: usize = 32;
/// Pages that a process gets or gives back at a time before a slice.
const PIECE: usize = 31;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// Processes, each on a CPU of its own.
    pub processes: u16,
    /// Pages of a mapping.
    pub pages: u32,
    /// User work for each page, in ns.
    pub user_ns: f64,
    /// How long the slice is.
    pub slice: Ps,
    /// How long things take, as far as is known before the slice.
    pub pace: Pace,
    /// Share of the descriptors that caches keep, as a multiple of the share that cleared pages leave there.
    pub cached: f64,
}

/// Runs a slice.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the model has no costs of the kernel's work.
pub fn run(model: &Model, allocator: &Linux, load: &Load, seed: u64) -> Result<Outcome, WorldError> {
    let cpus = load.processes;
    let (mut world, frames) = world(model, allocator, load, seed)?;
    let mut rng = Rng::new(mix(seed ^ 0x6661_756c));
    let mut places: Vec<u16> = (0..cpus).collect();
    rng.shuffle(&mut places);
    let offset = rng.unit();
    let mut processes: Vec<Process> = places
        .into_iter()
        .map(|place| Process::at(load, (f64::from(place) + offset) / f64::from(cpus)))
        .collect();
    let goals: Vec<usize> = processes.iter().map(|process| process.starts_with).collect();
    // Rounds with memory mixed among CPUs. Free memory gets ever more out of order for some hundred of them; two whose
    // pages are freed in random order leave what those do (within 5 % in how long the lock is held).
    for _ in 0..2 {
        let random: Vec<usize> = goals.iter().map(|_| rng.below(u64::from(load.pages)) as usize).collect();
        fill(&mut world, &mut processes, &random, &mut rng);
        for process in &mut processes {
            rng.shuffle(process.pages.make_contiguous());
        }
    }
    // A CPU that faults has used its lists up, and one that unmaps has filled them.
    let extra = 2 * allocator.sizing.high_max as usize;
    let turn: Vec<usize> = processes
        .iter()
        .zip(&goals)
        .map(|(process, goal)| if process.unmaps { goal + extra } else { 0 })
        .collect();
    fill(&mut world, &mut processes, &turn, &mut rng);
    fill(&mut world, &mut processes, &goals, &mut rng);
    let before = Outcome::of(&world, Usage::default()).locks;
    let till = Till::default();
    let tasks = processes
        .into_iter()
        .zip(0..)
        .map(|(process, cpu)| -> Placed { (cpu, Box::new(Process { till: Rc::clone(&till), ..process })) })
        .collect();
    let usage = task::run(&mut world, cpus, frames, tasks, Some(load.slice));
    let paid = *till.borrow();
    Ok(Outcome { paid, ..Outcome::of(&world, usage).since(&before) })
}

/// A world with memory for the processes, and its frames on each node.
fn world(
    model: &Model,
    allocator: &Linux,
    load: &Load,
    seed: u64,
) -> Result<(World<StructPage>, u64), WorldError> {
    let (nodes, cpus) = (model.shape.nodes, load.processes);
    let lists = 4 * u64::from(allocator.sizing.high_max) + 1024;
    let per_node = u64::from(cpus.div_ceil(nodes)) * (u64::from(load.pages) + lists);
    let frames = (per_node + per_node / 4).next_multiple_of(MAX_ORDER.pages());
    let lines = task::lines(model);
    // Lists have room for what they may hold, however small the zone is.
    let Sizing { batch, high_max, .. } = allocator.sizing;
    let pcp_fixed = Some(PcpFixed { batch, high: high_max });
    let experiment = Experiment { pcp_fixed, ..allocator.config.experiment };
    let config = Config { experiment, ..allocator.config };
    let mut world =
        World::with_lines(model, &zones(nodes, frames), config, Some(allocator.sizing), seed, lines)?;
    world.answer_all(cpus);
    leave_little_cache(&mut world, model, load.cached);
    Ok((world, frames))
}

/// How long one process with the machine to itself holds the zone lock in the mean, in ns: for the refill of an
/// allocation, and for the drain of a free.
///
/// # Errors
/// As [`run`].
///
/// # Panics
/// As [`run`].
pub fn holds(model: &Model, allocator: &Linux, load: &Load, seed: u64) -> Result<[f64; 2], WorldError> {
    let load = Load { processes: 1, ..*load };
    let (mut world, frames) = world(model, allocator, &load, seed)?;
    let pages = Rc::new(RefCell::new(VecDeque::new()));
    // The first round is like those that came before it.
    let mut holds = [0.0; 2];
    for _ in 0..2 {
        for (unmaps, hold) in [false, true].into_iter().zip(&mut holds) {
            let before = Outcome::of(&world, Usage::default()).locks;
            let task: Placed = (0, Box::new(Once { load, pages: Rc::clone(&pages), unmaps }));
            task::run(&mut world, 1, frames, vec![task], None);
            let [locks, _, held] = Outcome::of(&world, Usage::default()).since(&before).locks[0];
            *hold = held as f64 / locks.max(1) as f64;
        }
    }
    Ok(holds)
}

/// One half of a round.
struct Once {
    load: Load,
    pages: Rc<RefCell<VecDeque<Pfn>>>,
    unmaps: bool,
}

impl Task for Once {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        let pages = &mut *self.pages.borrow_mut();
        if self.unmaps {
            let now = pages.len().min(UNMAPPED_AT_ONCE);
            on.unmap(pages.drain(..now));
        } else {
            on.user(Ps::from_ns(self.load.user_ns));
            pages.push_back(on.fault(Migratetype::Movable));
        }
        let goal = if self.unmaps { 0 } else { self.load.pages as usize };
        if pages.len() == goal { Step::Exit } else { Step::Continue }
    }
}

/// Gives each process `pages` pages, or takes as many away: a few at a time, all mixed.
fn fill(world: &mut World<StructPage>, processes: &mut [Process], goals: &[usize], rng: &mut Rng) {
    let mut unfinished: Vec<usize> = (0..processes.len()).collect();
    while !unfinished.is_empty() {
        let at = rng.below(unfinished.len() as u64) as usize;
        let n = unfinished[at];
        let held = &mut processes[n].pages;
        let (missing, over) = (goals[n].saturating_sub(held.len()), held.len().saturating_sub(goals[n]));
        if missing == 0 && over == 0 {
            unfinished.swap_remove(at);
            continue;
        }
        world.prepare(n as u16, |cpu| {
            held.extend((0..missing.min(PIECE)).map(|_| task::get(cpu, Migratetype::Movable)));
            held.drain(..over.min(PIECE)).for_each(|pfn| task::give(cpu, pfn, Order::ZERO));
        });
    }
}

/// A process in its round.
struct Process {
    load: Load,
    /// Pages that it has touched, in the order in which they will be unmapped.
    pages: VecDeque<Pfn>,
    unmaps: bool,
    /// Pages that it has when the slice begins.
    starts_with: usize,
    till: Till,
}

impl Process {
    /// The process at that share of its round's time.
    fn at(load: &Load, share: f64) -> Self {
        let fault_ns = load.user_ns * load.pace.user + load.pace.fault_ns;
        let round = fault_ns + load.pace.free_ns;
        let at = share * round;
        let unmaps = at >= fault_ns;
        let touched = if unmaps { (round - at) / load.pace.free_ns.max(1e-9) } else { at / fault_ns };
        let starts_with = (touched * f64::from(load.pages)) as usize;
        Self { load: *load, pages: VecDeque::new(), unmaps, starts_with, till: Till::default() }
    }
}

impl Task for Process {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.unmaps {
            let now = self.pages.len().min(UNMAPPED_AT_ONCE);
            let pages = &mut self.pages;
            pay(&self.till, |paid| &mut paid.frees, now as u64, || on.unmap(pages.drain(..now)));
            self.unmaps = !self.pages.is_empty();
        } else {
            on.user(Ps::from_ns(self.load.user_ns));
            let page = pay(&self.till, |paid| &mut paid.faults, 1, || on.fault(Migratetype::Movable));
            self.pages.push_back(page);
            self.unmaps = self.pages.len() >= self.load.pages as usize;
        }
        Step::Continue
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_begins_where_it_should() {
        let load = Load {
            processes: 8,
            pages: 4096,
            user_ns: 0.0,
            slice: Ps(3_000_000_000),
            pace: Pace { user: 1.0, fault_ns: 3.0, free_ns: 1.0 },
            cached: 1.0,
        };
        let at = |share| {
            let process = Process::at(&load, share);
            (process.unmaps, process.starts_with)
        };
        assert_eq!(
            [0.0, 0.375, 0.75, 0.875].map(at),
            [(false, 0), (false, 2048), (true, 4096), (true, 2048)]
        );
    }
}
