//! A surrogate of aim7's `page_test`: heaps that grow and shrink, page by page.
//!
//! A job is a process that grows its heap by 1 MiB, then 100 times shrinks it by 64 KiB and grows it again, writing to
//! each page. Every CPU has several users, each of whom runs job after job. A slice begins with all jobs in their middle,
//! evenly over their time.

use framewright::units::MAX_ORDER;
use framewright::{Migratetype, Pfn};

use crate::bench::Linux;
use crate::clock::{Ps, Rng, mix};
use crate::kernbench::{Outcome, leave_little_cache, zones};
use crate::model::Model;
use crate::sched::{self, OnCpu, Placed, Step, Task, Usage};
use crate::world::{StructPage, World, WorldError};

/// Pages of a heap.
const HEAP: u32 = 256;
/// Pages that it shrinks by.
const SHRINK: u32 = 16;
/// Times it does so.
const ROUNDS: u32 = 100;

/// Pages that a job faults.
pub const PAGES_PER_JOB: u32 = HEAP + ROUNDS * SHRINK;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// CPUs that are busy, the first ones.
    pub cpus: u16,
    /// Users of each CPU.
    pub users: u16,
    /// User work for each page, in ns.
    pub user_ns: f64,
    /// Other work of the kernel for each page, in ns: what is not modelled.
    pub other_ns: f64,
    /// How long the slice is.
    pub slice: Ps,
}

/// Runs a slice.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the model has no costs of the kernel's work, or fewer CPUs than are to be busy.
pub fn run(model: &Model, allocator: &Linux, load: &Load, seed: u64) -> Result<Outcome, WorldError> {
    let nodes = model.shape.nodes;
    let lists = 4 * u64::from(allocator.sizing.high_max) + 1024;
    let per_cpu = u64::from(load.users) * u64::from(HEAP) + lists;
    let frames = (2 * u64::from(load.cpus) * per_cpu / u64::from(nodes)).next_multiple_of(MAX_ORDER.pages());
    let lines = sched::lines(model, load.cpus);
    let zones = zones(nodes, frames);
    let sizing = Some(allocator.sizing);
    let mut world = World::with_lines(model, &zones, allocator.config, sizing, seed, lines)?;
    for cpu in 0..load.cpus {
        // The lists get their size at each CPU's next call.
        world.prepare(cpu, |cpu| cpu.answer());
    }
    leave_little_cache(&mut world, model);
    let mut rng = Rng::new(mix(seed ^ 0x7061_6765));
    let users = u64::from(load.cpus) * u64::from(load.users);
    let mut places: Vec<u64> = (0..users).collect();
    rng.shuffle(&mut places);
    let offset = rng.unit();
    let faults = |place: u64| ((place as f64 + offset) / users as f64 * f64::from(PAGES_PER_JOB)) as u32;
    let mut jobs: Vec<Job> = places.into_iter().map(|place| Job::after(faults(place), *load)).collect();
    fill(&mut world, &mut jobs, load.users, &mut rng);
    let before = Outcome::of(&world, Usage::default()).locks;
    let tasks = jobs
        .into_iter()
        .zip(0_u32..)
        .map(|(job, n)| -> Placed {
            let user = User { load: *load, first: Some(job), waits: false };
            ((n / u32::from(load.users)) as u16, Box::new(user))
        })
        .collect();
    let usage = sched::run(&mut world, load.cpus, frames, tasks, Some(load.slice));
    Ok(Outcome::of(&world, usage).since(&before))
}

/// Gives each job the pages that it has at the start: a few at a time, all mixed, as if many had come and gone.
fn fill(world: &mut World<StructPage>, jobs: &mut [Job], users: u16, rng: &mut Rng) {
    let mut unfinished: Vec<usize> = (0..jobs.len()).collect();
    while !unfinished.is_empty() {
        let at = rng.below(unfinished.len() as u64) as usize;
        let job = &mut jobs[unfinished[at]];
        let missing = (job.starts_with as usize - job.heap.len()).min(SHRINK as usize);
        if missing == 0 {
            unfinished.swap_remove(at);
            continue;
        }
        let cpu = (unfinished[at] / usize::from(users)) as u16;
        world.prepare(cpu, |cpu| {
            job.heap.extend((0..missing).map(|_| sched::get(cpu, Migratetype::Movable)));
        });
    }
}

/// Runs job after job, each as a process; the one that a slice begins with as its own.
struct User {
    load: Load,
    first: Option<Job>,
    waits: bool,
}

impl Task for User {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if let Some(first) = &mut self.first {
            if !matches!(first.step(on), Step::Exit) {
                return Step::Continue;
            }
            self.first = None;
        }
        self.waits = !self.waits;
        if self.waits { Step::Fork(Box::new(Job::after(0, self.load))) } else { Step::Wait }
    }
}

struct Job {
    load: Load,
    heap: Vec<Pfn>,
    /// Pages still to be faulted.
    left: u32,
    /// Pages that it has when the run begins.
    starts_with: u32,
}

impl Job {
    /// A job that has faulted so many pages.
    fn after(faults: u32, load: Load) -> Self {
        let starts_with = match faults.checked_sub(HEAP) {
            None => faults,
            Some(behind) if behind % SHRINK == 0 => HEAP,
            Some(behind) => HEAP - SHRINK + behind % SHRINK,
        };
        Self { load, heap: Vec::new(), left: PAGES_PER_JOB - faults, starts_with }
    }
}

impl Task for Job {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.left == 0 {
            // The end: everything goes, oldest first.
            on.unmap(self.heap.drain(..));
            on.system(Ps::from_ns(on.kernel().exit));
            return Step::Exit;
        }
        if self.heap.len() == HEAP as usize {
            let rest = self.heap.len() - SHRINK as usize;
            on.unmap(self.heap.drain(rest..));
        }
        on.user(Ps::from_ns(self.load.user_ns));
        on.system(Ps::from_ns(self.load.other_ns));
        self.heap.push(on.fault(Migratetype::Movable));
        self.left -= 1;
        Step::Continue
    }
}

#[cfg(test)]
mod tests {
    use framewright::Config;
    use framewright::policy::pcp::Sizing;

    use super::*;
    use crate::model::testing::with_tasks as model;

    #[test]
    fn a_job_begins_where_it_should() {
        let load = Load { cpus: 1, users: 1, user_ns: 0.0, other_ns: 0.0, slice: Ps(0) };
        let held = |faults| Job::after(faults, load).starts_with;
        assert_eq!([0, 255, 256, 257, 271, 272, 1855].map(held), [0, 255, 256, 241, 255, 256, 255]);
        assert_eq!(Job::after(0, load).left, 1856);
    }

    #[test]
    fn what_fits_into_the_lists_needs_no_lock() {
        let locks = |batch, high| {
            let allocator = Linux {
                config: Config { lock_timing: true, ..Config::linux_v5_4() },
                sizing: Sizing { batch, high_min: high, high_max: high },
            };
            let load = Load { cpus: 4, users: 3, user_ns: 500.0, other_ns: 500.0, slice: Ps(10_000_000_000) };
            let outcome = run(&model(4, 1), &allocator, &load, 1).expect("a world");
            let usage = outcome.usage;
            assert!(usage.involuntary > 0, "users take turns: {usage:?}");
            assert!(usage.voluntary < 60, "few jobs end: {usage:?}");
            assert!(usage.pages > 10_000, "{usage:?}");
            outcome.locks[0][0] as f64 / usage.pages as f64
        };
        let (large, small) = (locks(31, 186), locks(1, 4));
        assert!(large < 0.05, "sixteen pages go into the lists and come out again: {large}");
        assert!(small > 0.5, "four at most fit: {small}");
    }
}
