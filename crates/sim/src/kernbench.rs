//! A kernel compile on all CPUs: a slice out of its middle, with every process made from one of a recorded compile.
//!
//! As many jobs as CPUs run at any time. A job is what `make` starts for one object: the recorded processes of one run
//! of the compiler, one after another. Each is made, executes, faults its pages while it works, and frees them when it
//! ends, page by page as it was recorded. Before the next job a `make` may have to wait for what it depends on.
//!
//! A slice begins with every job somewhere in its middle, and with memory as fragmented as many jobs before leave it.

use core::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use framewright::units::MAX_ORDER;
use framewright::{Migratetype, NodeId, Order, Pfn, ZoneSpec, ZoneType};

use crate::bench::Linux;
use crate::clock::{Ps, Rng, mix};
use crate::engine::{self, Events, Moved};
use crate::model::Model;
use crate::sched::{self, OnCpu, Placed, Step, Task, Usage};
use crate::world::{StructPage, World, WorldError};

/// What a process does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Faults pages of its own.
    Fault,
    /// Has the kernel allocate pages that cannot move, such as page tables.
    Unmovable,
    /// Frees pages.
    Free,
}

/// So many pages in a row, and the work that was done between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// What is done.
    pub act: Act,
    /// With how many pages.
    pub pages: u32,
    /// Time that passed meanwhile, as recorded, in ns.
    pub work_ns: u64,
}

/// One process, from its start to its end.
pub type Process = Vec<Op>;

/// What was recorded: the processes of each job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Profile {
    /// Jobs; none is empty.
    pub jobs: Vec<Vec<Process>>,
}

impl Profile {
    /// The same with so many times fewer pages and as much less work: processes are shorter, but what they do for each page,
    /// and in which order, stays.
    #[must_use]
    pub fn shortened(&self, times: u32) -> Self {
        let times = times.max(1);
        let of_process = |process: &Process| -> Process {
            // By kind of act: pages that are too few for one so far.
            let mut rest = [0_u32; 3];
            let mut work = 0;
            let mut ops = Process::new();
            for op in process {
                let rest = &mut rest[op.act as usize];
                let pages = (op.pages + *rest) / times;
                *rest = (op.pages + *rest) % times;
                work += op.work_ns;
                if pages > 0 {
                    ops.push(Op {
                        act: op.act,
                        pages,
                        work_ns: core::mem::take(&mut work) / u64::from(times),
                    });
                }
            }
            ops
        };
        let of_job = |job: &Vec<Process>| -> Vec<Process> {
            job.iter().map(of_process).filter(|process| !process.is_empty()).collect()
        };
        Self { jobs: self.jobs.iter().map(of_job).filter(|job| !job.is_empty()).collect() }
    }

    /// Processes of a job, on average.
    #[must_use]
    pub fn processes_per_job(&self) -> f64 {
        self.jobs.iter().map(Vec::len).sum::<usize>() as f64 / self.jobs.len().max(1) as f64
    }

    fn ops(&self) -> impl Iterator<Item = &Op> {
        self.jobs.iter().flatten().flatten()
    }

    /// Pages that a job gets, on average.
    #[must_use]
    pub fn pages_per_job(&self) -> f64 {
        let pages: u64 = self.ops().filter(|op| op.act != Act::Free).map(|op| u64::from(op.pages)).sum();
        pages as f64 / self.jobs.len().max(1) as f64
    }

    /// Recorded work of a job, on average, in ns.
    #[must_use]
    pub fn work_per_job(&self) -> f64 {
        self.ops().map(|op| op.work_ns).sum::<u64>() as f64 / self.jobs.len().max(1) as f64
    }
}

/// How long things take, about: a slice begins with as many CPUs in the middle of something as that takes of the whole.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Pace {
    /// Time of user work for the time that it takes alone on a core.
    pub user: f64,
    /// A fault, lock and all, in ns.
    pub fault_ns: f64,
    /// A free, lock and all, in ns.
    pub free_ns: f64,
}

impl Default for Pace {
    /// Without contention.
    fn default() -> Self {
        Self { user: 1.0, fault_ns: 1500.0, free_ns: 500.0 }
    }
}

/// How much is done besides.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// User work for a nanosecond of recorded work, in ns.
    pub user_factor: f64,
    /// Other work of the kernel for each page that is allocated, in ns: what is not modelled.
    pub other_ns: f64,
    /// Mean wait before a job, as a multiple of how long a job takes.
    pub wait: f64,
    /// How long the slice is.
    pub slice: Ps,
    /// How long things take, as far as is known before the slice.
    pub pace: Pace,
    /// What caches keep of the descriptors, as a multiple of what cleared pages leave of them.
    pub cached: f64,
}

impl Load {
    /// Time that an operation takes, about, in ns.
    fn of_op(&self, op: &Op) -> f64 {
        let pages = f64::from(op.pages);
        let system = match op.act {
            Act::Free => pages * self.pace.free_ns,
            _ => pages * (self.pace.fault_ns + self.other_ns * self.pace.user),
        };
        op.work_ns as f64 * self.user_factor * self.pace.user + system
    }

    fn of_job(&self, job: &[Process]) -> f64 {
        job.iter().flatten().map(|op| self.of_op(op)).sum()
    }

    /// Mean wait before a job, in ns.
    fn wait_ns(&self, profile: &Profile) -> f64 {
        let all: f64 = profile.jobs.iter().map(|job| self.of_job(job)).sum();
        self.wait * all / profile.jobs.len().max(1) as f64
    }
}

/// Time that faults and frees took.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Paid {
    /// Faults, and their time.
    pub faults: (u64, Ps),
    /// Pages freed, and the time of that.
    pub frees: (u64, Ps),
}

impl Paid {
    /// Each, with what user work took; `before` where there was none.
    #[must_use]
    pub fn pace(&self, usage: &Usage, before: Pace) -> Pace {
        let each =
            |(count, time): (u64, Ps), before| if count == 0 { before } else { time.as_ns() / count as f64 };
        Pace {
            user: if usage.work > Ps(0) { usage.user.as_ns() / usage.work.as_ns() } else { before.user },
            fault_ns: each(self.faults, before.fault_ns),
            free_ns: each(self.frees, before.free_ns),
        }
    }
}

/// Where tasks, which live on one host thread, write down what they paid.
pub(crate) type Till = Rc<RefCell<Paid>>;

/// Does it, and writes down its time.
pub(crate) fn pay<T>(
    till: &Till,
    which: fn(&mut Paid) -> &mut (u64, Ps),
    pages: u64,
    work: impl FnOnce() -> T,
) -> T {
    let start = engine::now();
    let got = work();
    let paid = &mut *till.borrow_mut();
    let (count, time) = which(paid);
    *count += pages;
    *time += engine::now().since(start);
    got
}

/// What came out.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Where the time went.
    pub usage: Usage,
    /// By zone: acquisitions of the lock, ns waited for it, ns held.
    pub locks: Vec<[u64; 3]>,
    /// What memory and caches moved.
    pub moved: Moved,
    /// What happened.
    pub events: Events,
    /// What faults and frees took.
    pub paid: Paid,
}

impl Outcome {
    /// Time that all CPUs waited for locks of zones and of LRU lists.
    #[must_use]
    pub fn waits_ns(&self) -> f64 {
        let zones: u64 = self.locks.iter().map(|[_, wait, _]| wait).sum();
        zones as f64 + self.usage.lru.wait.as_ns()
    }

    /// Of a world after a run.
    pub(crate) fn of(world: &World<StructPage>, usage: Usage) -> Self {
        let allocator = world.allocator();
        let lock = |zone: &framewright::zone::Zone<_>| {
            let cpus = 0..allocator.cpus() as u16;
            cpus.map(|cpu| allocator.pcp(zone.id(), framewright::CpuId(cpu)).events()).fold(
                [0; 3],
                |[locks, wait, hold], of| {
                    [locks + of.lock_acquisitions, wait + of.lock_wait_ns, hold + of.lock_hold_ns]
                },
            )
        };
        Self {
            usage,
            locks: allocator.zones().iter().map(lock).collect(),
            moved: world.simulator().moved(),
            events: world.simulator().events(),
            paid: Paid::default(),
        }
    }

    /// The same without what the locks had gone through before.
    pub(crate) fn since(mut self, before: &[[u64; 3]]) -> Self {
        for (after, before) in self.locks.iter_mut().zip(before) {
            *after = [after[0] - before[0], after[1] - before[1], after[2] - before[2]];
        }
        self
    }
}

/// A zone of so many pages on each node.
pub(crate) fn zones(nodes: u16, pages: u64) -> Vec<ZoneSpec> {
    let zone = |node: u16| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start: Pfn(u64::from(node) * pages),
        pages,
    };
    (0..nodes).map(zone).collect()
}

/// Lets caches hold of the descriptors only what pages that are cleared and used leave them: a page's own 64 lines, and
/// in the second level as many again of the program's.
///
/// `share` is a factor on both: how much that is in truth is not known.
pub(crate) fn leave_little_cache(world: &mut World<StructPage>, model: &Model, share: f64) {
    let of = |lines: u32| (f64::from(lines) * share) as u32;
    let l2 = of(model.caches.l2 / 128);
    world.limit_frame_caches([l2, l2, of(model.caches.l3 / 64)]);
}

/// Runs a slice.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the profile has no jobs, or the model no costs of the kernel's work.
pub fn run(
    model: &Model,
    allocator: &Linux,
    profile: &Arc<Profile>,
    load: &Load,
    seed: u64,
) -> Result<Outcome, WorldError> {
    let shape = model.shape;
    let cpus = shape.cpus();
    let largest = profile.jobs.iter().map(|job| job.iter().map(held_at_most).max().unwrap_or(0)).max();
    let per_cpu = largest.unwrap_or(0) + 4 * u64::from(allocator.sizing.high_max) + 1024;
    let per_node = u64::from(cpus / shape.nodes) * per_cpu;
    let frames = (per_node + per_node / 2).next_multiple_of(MAX_ORDER.pages());
    let config = allocator.config;
    let mut world = World::<StructPage>::with_lines(
        model,
        &zones(shape.nodes, frames),
        config,
        Some(allocator.sizing),
        seed,
        sched::lines(model, cpus),
    )?;
    world.answer_all(cpus);
    leave_little_cache(&mut world, model, load.cached);
    let mut rng = Rng::new(mix(seed ^ 0x6e72_6562));
    // Evenly over all that is recorded, each CPU somewhere: a slice of the right length does everything once.
    let mut places: Vec<u16> = (0..cpus).collect();
    rng.shuffle(&mut places);
    let offset = rng.unit();
    let share = |place: u16| (f64::from(place) + offset) / f64::from(cpus);
    let starts: Vec<Start> = places.into_iter().map(|place| Start::at(profile, load, share(place))).collect();
    let held = age(&mut world, profile, &starts, &mut rng);
    let locked_before = Outcome::of(&world, Usage::default()).locks;
    let till = Till::default();
    let wait_ns = load.wait_ns(profile);
    let tasks: Vec<Placed> = starts
        .into_iter()
        .zip(held)
        .zip(0..)
        .map(|((start, pages), cpu)| -> Placed {
            let rng = Rng::new(mix(seed ^ u64::from(cpu) << 32 ^ 0x6d61_6b65));
            (cpu, Box::new(Make::new(Arc::clone(profile), *load, wait_ns, start, pages, rng, &till)))
        })
        .collect();
    let usage = sched::run(&mut world, cpus, frames, tasks, Some(load.slice));
    let paid = *till.borrow();
    Ok(Outcome { paid, ..Outcome::of(&world, usage).since(&locked_before) })
}

/// Pages that a process has after each of its operations, at most.
fn held_at_most(process: &Process) -> u64 {
    let mut held = 0;
    process
        .iter()
        .map(|op| {
            held = after(held, op);
            held
        })
        .max()
        .unwrap_or(0)
}

fn after(held: u64, op: &Op) -> u64 {
    match op.act {
        Act::Free => held.saturating_sub(u64::from(op.pages)),
        _ => held + u64::from(op.pages),
    }
}

/// Where in which job a CPU begins.
#[derive(Clone, Copy, Debug)]
struct Start {
    job: usize,
    process: usize,
    op: usize,
    /// Pages it has then.
    held: u64,
    /// Whether it waits for another job to end.
    waits: bool,
}

impl Start {
    /// The moment at which `share` of the time of all jobs has passed, if they ran one after another.
    fn at(profile: &Profile, load: &Load, share: f64) -> Self {
        let wait_ns = load.wait_ns(profile);
        let mut left = share * profile.jobs.iter().map(|job| wait_ns + load.of_job(job)).sum::<f64>();
        for (n, job) in profile.jobs.iter().enumerate() {
            let whole = wait_ns + load.of_job(job);
            if left >= whole {
                left -= whole;
                continue;
            }
            for (process, ops) in job.iter().enumerate() {
                let mut held = 0;
                for (op, it) in ops.iter().enumerate() {
                    left -= load.of_op(it);
                    if left < 0.0 {
                        return Self { job: n, process, op, held, waits: false };
                    }
                    held = after(held, it);
                }
            }
            return Self { job: n, process: job.len(), op: 0, held: 0, waits: true };
        }
        Self { job: 0, process: 0, op: 0, held: 0, waits: false }
    }
}

/// Pages allocated or freed in a row when memory is aged.
const PIECE: u64 = 31;
/// Of so many pages that a process has had, one stays behind: as page cache. As in the trace.
const STAYS: u64 = 113;

/// Lets jobs come and go at no cost, in pieces, all CPUs mixed: so that free memory is as fragmented as it would be. Returns
/// the pages that each CPU's process has at the start.
fn age(
    world: &mut World<StructPage>,
    profile: &Profile,
    starts: &[Start],
    rng: &mut Rng,
) -> Vec<VecDeque<Pfn>> {
    let sizes: Vec<u64> =
        profile.jobs.iter().flatten().map(held_at_most).filter(|&size| size > PIECE).collect();
    let mut held: Vec<VecDeque<Pfn>> = vec![VecDeque::new(); starts.len()];
    let size = |rng: &mut Rng| sizes.get(rng.below(sizes.len() as u64) as usize).copied().unwrap_or(0);
    // One job is in its middle on each CPU, then another one ends, then the one that the run begins with.
    let mut goals: Vec<VecDeque<u64>> =
        starts.iter().map(|start| [size(rng), size(rng), start.held].into()).collect();
    let mut unfinished: Vec<usize> = (0..starts.len()).collect();
    while !unfinished.is_empty() {
        let at = rng.below(unfinished.len() as u64) as usize;
        let n = unfinished[at];
        let pages = &mut held[n];
        let goal = goals[n].front().copied().unwrap_or(0);
        let missing = goal.saturating_sub(pages.len() as u64).min(PIECE);
        if missing > 0 {
            world.prepare(n as u16, |cpu| {
                pages.extend((0..missing).map(|_| sched::get(cpu, Migratetype::Movable)));
            });
        } else if goals[n].len() > 1 {
            goals[n].pop_front();
            // Many jobs have mixed free memory; two that free in random order leave it as mixed as hundreds do.
            rng.shuffle(pages.make_contiguous());
            let keep = rng.below(STAYS);
            world.prepare(n as u16, |cpu| {
                for (index, pfn) in pages.drain(..).enumerate() {
                    if index as u64 % STAYS != keep {
                        sched::give(cpu, pfn, Order::ZERO);
                    }
                }
            });
        } else {
            unfinished.swap_remove(at);
        }
    }
    held
}

/// What starts the processes of a job one after another, and job after job.
struct Make {
    profile: Arc<Profile>,
    load: Load,
    job: usize,
    /// The process to start next.
    process: usize,
    /// The process that is there at the start.
    first: Option<Compiler>,
    started: bool,
    waits: bool,
    wait_ns: f64,
    rng: Rng,
    till: Till,
}

impl Make {
    fn new(
        profile: Arc<Profile>,
        load: Load,
        wait_ns: f64,
        start: Start,
        pages: VecDeque<Pfn>,
        rng: Rng,
        till: &Till,
    ) -> Self {
        let first = (!start.waits).then(|| Compiler {
            profile: Arc::clone(&profile),
            load,
            job: start.job,
            process: start.process,
            op: start.op,
            done: 0,
            pages,
            executes: true,
            till: Rc::clone(till),
        });
        Self {
            profile,
            load,
            job: start.job,
            process: start.process,
            first,
            started: false,
            waits: start.waits,
            wait_ns,
            rng,
            till: Rc::clone(till),
        }
    }

    fn wait(&mut self) -> Step {
        // Uniform, up to twice the mean.
        Step::Sleep(Ps::from_ns(self.wait_ns * 2.0 * self.rng.unit()))
    }
}

impl Task for Make {
    fn step(&mut self, _: &OnCpu<'_, '_, '_>) -> Step {
        if core::mem::take(&mut self.started) {
            self.process += 1;
            return Step::Wait;
        }
        if let Some(first) = self.first.take() {
            self.started = true;
            return Step::Fork(Box::new(first));
        }
        if self.process >= self.profile.jobs[self.job].len() {
            self.job = self.rng.below(self.profile.jobs.len() as u64) as usize;
            self.process = 0;
            self.waits = true;
        }
        if core::mem::take(&mut self.waits) && self.wait_ns > 0.0 {
            return self.wait();
        }
        self.started = true;
        Step::Fork(Box::new(Compiler {
            profile: Arc::clone(&self.profile),
            load: self.load,
            job: self.job,
            process: self.process,
            op: 0,
            done: 0,
            pages: VecDeque::new(),
            executes: false,
            till: Rc::clone(&self.till),
        }))
    }
}

/// A process: a compiler, an assembler, a shell.
struct Compiler {
    profile: Arc<Profile>,
    load: Load,
    job: usize,
    process: usize,
    op: usize,
    /// Pages of the operation that are done.
    done: u32,
    pages: VecDeque<Pfn>,
    executes: bool,
    till: Till,
}

/// Pages that are freed between two looks at the clock.
const FREED_AT_ONCE: u32 = 32;
/// A free of more than this is an unmapping of what has been there for long, not of what came last.
const FEW: u32 = 16;

impl Task for Compiler {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if !core::mem::replace(&mut self.executes, true) {
            on.system(Ps::from_ns(on.kernel().exec));
            return Step::Continue;
        }
        let Some(&op) = self.profile.jobs[self.job][self.process].get(self.op) else { return self.end(on) };
        let pages = op.pages.max(1);
        match op.act {
            Act::Free => {
                if self.done == 0 {
                    on.user(Ps::from_ns(op.work_ns as f64 * self.load.user_factor));
                }
                let now = (pages - self.done).min(FREED_AT_ONCE);
                let held = &mut self.pages;
                pay(
                    &self.till,
                    |paid| &mut paid.frees,
                    u64::from(now),
                    || {
                        on.unmap(
                            (0..now).map_while(|_| {
                                if op.pages <= FEW { held.pop_back() } else { held.pop_front() }
                            }),
                        );
                    },
                );
                self.done += now;
            }
            Act::Fault | Act::Unmovable => {
                on.user(Ps::from_ns(op.work_ns as f64 * self.load.user_factor / f64::from(pages)));
                on.system(Ps::from_ns(self.load.other_ns));
                let unmovable = op.act == Act::Unmovable;
                let of = if unmovable { Migratetype::Unmovable } else { Migratetype::Movable };
                self.pages.push_back(pay(&self.till, |paid| &mut paid.faults, 1, || on.fault(of)));
                self.done += 1;
            }
        }
        if self.done >= pages {
            self.op += 1;
            self.done = 0;
        }
        Step::Continue
    }
}

impl Compiler {
    /// Frees what is left, and ends.
    fn end(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.pages.is_empty() {
            on.system(Ps::from_ns(on.kernel().exit));
            return Step::Exit;
        }
        let now = self.pages.len().min(FREED_AT_ONCE as usize);
        let pages = &mut self.pages;
        pay(&self.till, |paid| &mut paid.frees, now as u64, || on.unmap(pages.drain(..now)));
        Step::Continue
    }
}

#[cfg(test)]
mod tests {
    use framewright::Config;
    use framewright::policy::pcp::Sizing;

    use framewright::config::Experiment;

    use super::*;
    use crate::model::testing::with_tasks as model;

    fn profile() -> Arc<Profile> {
        let op = |act, pages, work_ns| Op { act, pages, work_ns };
        let shell = vec![op(Act::Fault, 60, 100_000), op(Act::Unmovable, 10, 20_000), op(Act::Free, 50, 0)];
        let compiler = vec![
            op(Act::Fault, 300, 600_000),
            op(Act::Free, 4, 0),
            op(Act::Fault, 700, 2_000_000),
            op(Act::Free, 990, 0),
        ];
        Arc::new(Profile { jobs: vec![vec![shell.clone(), compiler], vec![shell]] })
    }

    fn slice(batch: u32, high: u32, wait: f64, seed: u64) -> Outcome {
        let allocator = Linux {
            config: Config {
                experiment: Experiment { lock_timing: true, ..Config::linux_v5_4().experiment },
                ..Config::linux_v5_4()
            },
            sizing: Sizing { batch, high_min: high, high_max: high },
        };
        let pace = Pace::default();
        let load =
            Load { user_factor: 1.0, other_ns: 500.0, wait, slice: Ps(20_000_000_000), pace, cached: 1.0 };
        run(&model(8, 1), &allocator, &profile(), &load, seed).expect("a world")
    }

    #[test]
    fn a_profile_knows_its_means() {
        let profile = profile();
        assert_eq!((profile.pages_per_job(), profile.work_per_job()), (570.0, 1_420_000.0));
        assert_eq!(held_at_most(&profile.jobs[0][1]), 996);
    }

    #[test]
    fn small_lists_take_the_zone_lock_more_often() {
        let locks = |outcome: &Outcome| outcome.locks[0][0] as f64 / outcome.usage.pages as f64;
        let (small, large) = (slice(7, 42, 0.0, 1), slice(63, 378, 0.0, 1));
        assert!((0.2..0.35).contains(&locks(&small)), "a refill and a drain for 7 pages: {}", locks(&small));
        assert!(locks(&large) < locks(&small) / 4.0);
        let busy = small.usage.user + small.usage.system;
        assert!(busy > Ps(155_000_000_000), "eight CPUs for 20 ms: {:?}", small.usage);
        assert!(small.usage.user > small.usage.system, "{:?}", small.usage);
    }

    #[test]
    fn jobs_that_wait_leave_cpus_idle_and_the_seed_decides() {
        let waits = slice(63, 378, 0.3, 1);
        let idle = waits.usage.idle.as_ns() / 160e6;
        // A wait of three tenths of a job is about a quarter of the time.
        assert!((0.1..0.5).contains(&idle), "{idle}");
        assert_eq!(waits.events.hash, slice(63, 378, 0.3, 1).events.hash);
        assert_ne!(waits.events.hash, slice(63, 378, 0.3, 2).events.hash);
    }
}
