//! Tasks, and what CPUs share.

use framewright::{Config, Migratetype, NodeId, Pfn, ZoneSpec, ZoneType};
use framewright_sim::lru::LockUse;
use framewright_sim::task::{OnCpu, Placed, Step, Task, Usage, lines, run};
use framewright_sim::world::StructPage;
use framewright_sim::{Model, Ps, World};

use crate::machine::with_tasks as model;

const MS: Ps = Ps(1_000_000_000);
const FRAMES: u64 = 1 << 14;

/// A machine of one node.
fn world(model: &Model) -> World<StructPage> {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: FRAMES };
    World::with_lines(model, &[zone], Config::linux_v6_1(), None, 1, lines(model)).expect("a world")
}

fn simulate(model: &Model, tasks: Vec<Placed>, limit: Option<Ps>) -> (Usage, u64) {
    let (mut world, cpus) = (world(model), model.shape.cpus());
    let usage = run(&mut world, cpus, FRAMES, tasks, limit);
    (usage, world.simulator().events().hash)
}

/// Works for so long in steps of 0.1 ms, each with a page: only what CPUs share lets one of them go on after another.
struct Works(u32);

impl Task for Works {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.0 == 0 {
            return Step::Exit;
        }
        self.0 -= 1;
        on.user(Ps(MS.0 / 10));
        on.unmap([on.fault(Migratetype::Movable)]);
        Step::Continue
    }
}

fn works(ms: u32) -> Box<dyn Task> {
    Box::new(Works(ms * 10))
}

#[test]
fn a_sibling_slows_the_work_and_a_limit_ends_the_run() {
    let (both, _) = simulate(&model(1, 2), vec![(0, works(10)), (1, works(10))], None);
    assert_eq!(both.work, Ps(20 * MS.0));
    // Two siblings do 1.25 times the work of one.
    assert!((1.5..1.61).contains(&(both.user.as_ns() / both.work.as_ns())), "{both:?}");
    let (alone, _) = simulate(&model(1, 2), vec![(0, works(10))], None);
    assert_eq!(alone.user, alone.work, "no sibling works");
    let (cut, _) = simulate(&model(2, 1), vec![(0, works(50)), (1, works(1))], Some(Ps(3 * MS.0)));
    assert!((3.7..4.3).contains(&(cut.user.as_ns() / 1e6)), "{cut:?}");
}

/// Faults pages in and gives them back.
struct Faults(Vec<Pfn>, u32);

impl Task for Faults {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if self.0.len() < 64 && self.1 > 0 {
            self.1 -= 1;
            self.0.push(on.fault(Migratetype::Movable));
            return Step::Continue;
        }
        on.unmap(self.0.drain(..));
        if self.1 == 0 { Step::Exit } else { Step::Continue }
    }
}

#[test]
fn faults_are_no_user_time_and_the_seed_decides_everything() {
    let faults = || -> Vec<Placed> {
        vec![(0, Box::new(Faults(Vec::new(), 1000))), (1, Box::new(Faults(Vec::new(), 1000)))]
    };
    let (usage, hash) = simulate(&model(2, 1), faults(), None);
    assert_eq!((usage.pages, usage.user), (2000, Ps(0)));
    assert_eq!(hash, simulate(&model(2, 1), faults(), None).1);
}

/// Use of the lock of the lists of pages in use, and cost of its line, if `cpus` CPUs fault and free.
fn lru_of(cpus: u16, link: usize) -> (LockUse, Option<u64>) {
    let mut model = model(cpus, 1);
    if let Some(kernel) = &mut model.kernel {
        kernel.lru.link = link;
    }
    let mut world = world(&model);
    let tasks = (0..cpus).map(|cpu| -> Placed { (cpu, Box::new(Faults(Vec::new(), 640))) }).collect();
    let usage = run(&mut world, cpus, FRAMES, tasks, None);
    let line = world.simulator().moved().lines.into_iter().find(|line| line.name == "lru lock node 0");
    (usage.lru, line.map(|line| line.transfers).filter(|&transfers| transfers > 0))
}

#[test]
fn without_batches_cpus_wait_for_the_lock_of_the_lists_of_pages() {
    let [(none, no_line), (single, one_line), (many, many_line)] = [0, 1, 15].map(|link| lru_of(16, link));
    assert_eq!((none, no_line), (LockUse::default(), None), "no lists, no lock");
    assert!(one_line > many_line && many_line.is_some(), "{one_line:?} {many_line:?}");
    // 64 faults fill four batches; then four pages are linked, and two times 32 freed.
    assert_eq!((many.locks, single.locks), (16 * 10 * 7, 16 * 10 * 66));
    let wait = |used: LockUse| used.wait.as_ns() / f64::from(16 * 640);
    assert!(wait(single) > 10.0 * wait(many), "{} and {} ns a page", wait(single), wait(many));
}
