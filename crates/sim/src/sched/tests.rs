use framewright::{Config, NodeId, ZoneSpec, ZoneType};

use super::*;
use crate::model::testing::with_tasks as model;

const MS: Ps = Ps(1_000_000_000);
const FRAMES: u64 = 1 << 14;

fn simulate(model: &Model, tasks: Vec<Placed>, limit: Option<Ps>) -> (Usage, u64) {
    let zone =
        ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: framewright::Pfn(0), pages: FRAMES };
    let cpus = model.shape.cpus();
    let config = Config::linux_v6_1();
    let mut world =
        World::<StructPage>::with_lines(model, &[zone], config, None, 1, usize::from(cpus)).expect("a world");
    let usage = run(&mut world, cpus, FRAMES, tasks, limit);
    (usage, world.simulator().events().hash)
}

/// Works for so long in steps of 0.1 ms.
struct Works(u32);

impl Task for Works {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.0 == 0 {
            return Step::Exit;
        }
        self.0 -= 1;
        on.user(Ps(MS.0 / 10));
        Step::Continue
    }
}

fn works(ms: u32) -> Box<dyn Task> {
    Box::new(Works(ms * 10))
}

#[test]
fn two_tasks_on_a_cpu_take_turns() {
    let (usage, _) = simulate(&model(1, 1), vec![(0, works(9)), (0, works(9))], None);
    assert_eq!((usage.user, usage.work), (Ps(18 * MS.0), Ps(18 * MS.0)));
    // 9 ms each in slices of 3: each has its end yet to come when the last slice is over.
    assert_eq!((usage.involuntary, usage.voluntary), (6, 2));
    assert!(usage.elapsed > Ps(18 * MS.0) && usage.elapsed < Ps(18_100_000_000), "{usage:?}");
}

#[test]
fn a_sibling_slows_the_work_and_an_idle_one_does_not() {
    let (both, _) = simulate(&model(1, 2), vec![(0, works(10)), (1, works(10))], None);
    // Two siblings do 1.25 times the work of one.
    assert!((15.5..16.1).contains(&(both.elapsed.as_ns() / 1e6)), "{both:?}");
    assert_eq!(both.work, Ps(20 * MS.0));
    let (one, _) = simulate(&model(1, 2), vec![(0, works(10))], None);
    assert!(one.elapsed < Ps(10_100_000_000), "{one:?}");
    assert!(one.idle > Ps(9_900_000_000), "{one:?}");
}

/// Makes so many tasks of 1 ms, then waits for all.
struct Makes {
    to_make: u32,
    to_wait_for: u32,
}

impl Task for Makes {
    fn step(&mut self, _: &OnCpu<'_, '_, '_>) -> Step {
        if self.to_make > 0 {
            self.to_make -= 1;
            return Step::Fork(works(1));
        }
        if self.to_wait_for > 0 {
            self.to_wait_for -= 1;
            return Step::Wait;
        }
        Step::Exit
    }
}

#[test]
fn new_tasks_go_to_idle_cpus_and_their_ends_wake_the_parent() {
    let parent = |n| -> Box<dyn Task> { Box::new(Makes { to_make: n, to_wait_for: n }) };
    let (wide, _) = simulate(&model(4, 1), vec![(0, parent(3))], None);
    assert_eq!(wide.work, Ps(3 * MS.0));
    assert!(wide.elapsed < Ps(1_250_000_000), "side by side, three forks in a row: {wide:?}");
    let (narrow, _) = simulate(&model(1, 1), vec![(0, parent(3))], None);
    assert!(narrow.elapsed > Ps(3 * MS.0), "one after another: {narrow:?}");
}

/// Sleeps, then works.
struct Sleeps(bool);

impl Task for Sleeps {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if core::mem::take(&mut self.0) {
            return Step::Sleep(Ps(5 * MS.0));
        }
        on.user(MS);
        Step::Exit
    }
}

#[test]
fn a_sleeper_leaves_its_cpu_idle_and_a_limit_ends_the_run() {
    let (usage, _) = simulate(&model(2, 1), vec![(0, Box::new(Sleeps(true)))], None);
    assert!((6.0..6.1).contains(&(usage.elapsed.as_ns() / 1e6)), "{usage:?}");
    assert!((10.9..11.1).contains(&(usage.idle.as_ns() / 1e6)), "two CPUs but for 1 ms: {usage:?}");
    let (cut, _) =
        simulate(&model(2, 1), vec![(0, works(50)), (1, Box::new(Sleeps(true)))], Some(Ps(3 * MS.0)));
    assert!((3.0..3.2).contains(&(cut.elapsed.as_ns() / 1e6)), "{cut:?}");
}

/// Faults pages in and gives them back.
struct Faults(Vec<framewright::Pfn>, u32);

impl Task for Faults {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.0.len() < 64 && self.1 > 0 {
            self.1 -= 1;
            self.0.push(on.fault(Migratetype::Movable));
            return Step::Continue;
        }
        self.0.drain(..).for_each(|pfn| on.unmap(pfn, Order::ZERO));
        if self.1 == 0 { Step::Exit } else { Step::Continue }
    }
}

#[test]
fn faults_are_system_time_and_the_seed_decides_everything() {
    let faults = || -> Vec<Placed> {
        vec![(0, Box::new(Faults(Vec::new(), 1000))), (1, Box::new(Faults(Vec::new(), 1000)))]
    };
    let (usage, hash) = simulate(&model(2, 1), faults(), None);
    assert_eq!((usage.pages, usage.user), (2000, Ps(0)));
    // Half a microsecond of kernel, a third for the clearing, and the allocator.
    let per_page = usage.system.as_ns() / 2000.0;
    assert!((900.0..1500.0).contains(&per_page), "{per_page}");
    assert_eq!(hash, simulate(&model(2, 1), faults(), None).1);
}
