//! aim7's `page_test`, page by page and call by call.
//!
//! A job grows its heap by 1 MiB without touching it; then 100 times it shrinks it by 64 KiB and 16 times grows it by a page and
//! writes to that. So it has 16 pages at most, faults 1,600, and calls `brk` some 1,700 times. Users run job after job in one
//! process each. A slice begins with all jobs in their middle, evenly over their rounds.
//!
//! Each call changes the tree of anonymous memory that all users' heaps descend from, because aim7 makes its users by `fork`: see
//! [`SHRINK_LOCKS`] and [`GROW_LOCKS`]. The address space's own semaphore is a line of the task's own: nobody else wants it.

use std::rc::Rc;

use framewright::units::MAX_ORDER;
use framewright::{Migratetype, Pfn};

use crate::bench::Linux;
use crate::clock::{Ps, Rng, mix};
use crate::kernbench::{Outcome, Till, leave_little_cache, pay, zones};
use crate::model::Model;
use crate::sched::{self, OnCpu, Placed, Step, Task, Usage};
use crate::world::{StructPage, World, WorldError};

/// Times that a job's heap shrinks and grows again.
pub const ROUNDS: u32 = 100;
/// Times that shrinking takes the root's semaphore: the area is split, for which the other half is copied and both are adjusted,
/// and the other half is unlinked.
pub const SHRINK_LOCKS: u32 = 3;
/// Times that growing does: the area before is adjusted.
pub const GROW_LOCKS: u32 = 1;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Load {
    /// CPUs that are busy, the first ones.
    pub cpus: u16,
    /// Users of each CPU.
    pub users: u16,
    /// Pages that a heap shrinks by, and grows by one after another: 16.
    pub pages: u32,
    /// User work for each page, in ns.
    pub user_ns: f64,
    /// A call of `brk`, without what it does under the root's semaphore, in ns.
    pub call_ns: f64,
    /// What is done in one hold of that semaphore, in ns.
    pub tree_ns: f64,
    /// Users whose memory descends from one root: all for 1, none for 0. Of the others each has one for itself.
    pub shared: f64,
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
    let per_cpu = 4 * u64::from(load.users) * u64::from(load.pages) + lists;
    let frames = (2 * u64::from(load.cpus) * per_cpu / u64::from(nodes)).next_multiple_of(MAX_ORDER.pages());
    let lines = sched::lines(model, load.cpus);
    let zones = zones(nodes, frames);
    let sizing = Some(allocator.sizing);
    let mut world = World::with_lines(model, &zones, allocator.config, sizing, seed, lines)?;
    world.answer_all(load.cpus);
    leave_little_cache(&mut world, model, 1.0);
    let mut rng = Rng::new(mix(seed ^ 0x7061_6765));
    let till = Till::default();
    let mut users: Vec<User> = (0..u64::from(load.cpus) * u64::from(load.users))
        .map(|n| User {
            load: *load,
            shares: (n as f64 + 0.5) * load.shared % 1.0 + load.shared >= 1.0,
            pages: Vec::new(),
            starts_with: rng.below(u64::from(load.pages) + 1) as usize,
            left: rng.below(u64::from(ROUNDS) + 1) as u32,
            till: Rc::clone(&till),
        })
        .collect();
    fill(&mut world, &mut users, load.users, &mut rng);
    let before = Outcome::of(&world, Usage::default()).locks;
    let tasks = users
        .into_iter()
        .zip(0_u32..)
        .map(|(user, n)| -> Placed { ((n / u32::from(load.users)) as u16, Box::new(user)) })
        .collect();
    let usage = sched::run(&mut world, load.cpus, frames, tasks, Some(load.slice));
    let paid = *till.borrow();
    Ok(Outcome { paid, ..Outcome::of(&world, usage).since(&before) })
}

/// Gives each user the pages that it has at the start: one at a time, all mixed, as if many had come and gone.
fn fill(world: &mut World<StructPage>, users: &mut [User], per_cpu: u16, rng: &mut Rng) {
    let mut unfinished: Vec<usize> = (0..users.len()).collect();
    while !unfinished.is_empty() {
        let at = rng.below(unfinished.len() as u64) as usize;
        let n = unfinished[at];
        let user = &mut users[n];
        if user.pages.len() >= user.starts_with {
            unfinished.swap_remove(at);
            continue;
        }
        let cpu = (n / usize::from(per_cpu)) as u16;
        world.prepare(cpu, |cpu| user.pages.push(sched::get(cpu, Migratetype::Movable)));
    }
}

/// Runs job after job.
struct User {
    load: Load,
    /// Whether its heap descends from the root that others share.
    shares: bool,
    pages: Vec<Pfn>,
    /// Pages that it has when the run begins.
    starts_with: usize,
    /// Rounds until its job ends.
    left: u32,
    till: Till,
}

impl User {
    /// A call of `brk` that takes the root's semaphore so many times.
    fn call(&self, on: &OnCpu<'_, '_, '_>, locks: u32) {
        on.system(Ps::from_ns(self.load.call_ns));
        let work = Ps::from_ns(self.load.tree_ns);
        for _ in 0..locks {
            if self.shares {
                on.change_anon_vma(work);
            } else {
                on.system(work);
            }
        }
    }
}

impl Task for User {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.pages.len() < self.load.pages as usize {
            self.call(on, GROW_LOCKS);
            on.user(Ps::from_ns(self.load.user_ns));
            self.pages.push(pay(&self.till, |paid| &mut paid.faults, 1, || on.fault(Migratetype::Movable)));
            return Step::Continue;
        }
        if self.left == 0 {
            // The job's heap shrinks to nothing, and another one's grows by what it does not touch.
            self.left = ROUNDS;
            self.call(on, GROW_LOCKS);
        }
        self.left -= 1;
        self.call(on, SHRINK_LOCKS);
        let pages = &mut self.pages;
        pay(&self.till, |paid| &mut paid.frees, pages.len() as u64, || on.unmap(pages.drain(..)));
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

    fn slice(batch: u32, high: u32, shared: f64) -> Outcome {
        let allocator = Linux {
            config: Config {
                experiment: Experiment { lock_timing: true, ..Config::linux_v5_4().experiment },
                ..Config::linux_v5_4()
            },
            sizing: Sizing { batch, high_min: high, high_max: high },
        };
        let load = Load {
            cpus: 4,
            users: 3,
            pages: 16,
            user_ns: 100.0,
            call_ns: 300.0,
            tree_ns: 200.0,
            shared,
            slice: Ps(10_000_000_000),
        };
        run(&model(4, 1), &allocator, &load, 1).expect("a world")
    }

    #[test]
    fn what_fits_into_the_lists_needs_no_lock() {
        let locks = |outcome: &Outcome| outcome.locks[0][0] as f64 / outcome.usage.pages as f64;
        let (large, small) = (slice(31, 186, 1.0), slice(1, 4, 1.0));
        assert!(large.usage.involuntary > 0, "users take turns: {:?}", large.usage);
        assert!(
            locks(&large) < 0.05,
            "sixteen pages go into the lists and come out again: {}",
            locks(&large)
        );
        assert!(locks(&small) > 0.5, "four at most fit: {}", locks(&small));
    }

    #[test]
    fn all_change_one_tree_as_often_as_they_call() {
        let all = slice(31, 186, 1.0);
        let of = all.usage.root_anon_vma;
        let each = of.locks as f64 / all.usage.pages as f64;
        // 16 + 3 in a round of 16 pages, and one in 100 rounds.
        assert!((each - 19.0 / 16.0).abs() < 0.03, "{each}");
        assert!(of.wait > of.hold, "four want what one at a time can have: {of:?}");
        let none = slice(31, 186, 0.0);
        assert_eq!(none.usage.root_anon_vma.locks, 0);
        assert!(none.usage.pages > all.usage.pages, "nobody waits");
        let half = slice(31, 186, 0.5).usage;
        let share = half.root_anon_vma.locks as f64 / half.pages as f64;
        assert!((0.3..0.9).contains(&share), "{share}");
    }
}
