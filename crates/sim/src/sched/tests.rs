use std::rc::Rc;

use framewright::Config;

use super::*;
use crate::model::testing::with_tasks as model;
use crate::model::{Latency, Shape};
use crate::outcome::zones;

const MS: Ps = Ps(1_000_000_000);
const FRAMES: u64 = 1 << 14;

fn simulate(model: &Model, tasks: Vec<Placed>, limit: Option<Ps>) -> (Usage, u64) {
    let zones = zones(model.shape.nodes, FRAMES);
    let cpus = model.shape.cpus();
    let config = Config::linux_v6_1();
    let mut world =
        World::<StructPage>::with_lines(model, &zones, config, None, 1, lines(model, cpus)).expect("a world");
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
    assert_eq!((usage.involuntary, usage.voluntary, usage.migrations), (6, 2, 0));
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
        on.unmap(self.0.drain(..));
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

/// 2 packages of 4 cores, 2 cores to a cache, 2 threads.
fn spread() -> Model {
    let model = model(4, 2);
    Model {
        shape: Shape { sockets: 2, nodes: 2, cores_per_l3: 2, ..model.shape },
        latency: Latency { other_l3: [90.0; 2], ..model.latency },
        ..model
    }
}

/// When and where a task first ran, and when it ended.
#[derive(Default)]
struct Notes {
    first: Cell<Option<(Ps, u16)>>,
    end: Cell<Ps>,
}

/// Works for so long, and takes notes.
struct Noted(u32, Rc<Notes>);

impl Noted {
    fn new(ms: u32) -> (Self, Rc<Notes>) {
        let notes = Rc::<Notes>::default();
        (Self(ms * 10, Rc::clone(&notes)), notes)
    }
}

impl Task for Noted {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        let Self(left, notes) = self;
        notes.first.set(notes.first.get().or(Some((engine::now(), on.id().0))));
        if *left == 0 {
            notes.end.set(engine::now());
            return Step::Exit;
        }
        *left -= 1;
        on.user(Ps(MS.0 / 10));
        Step::Continue
    }
}

#[test]
fn no_cpu_idles_while_tasks_wait() {
    let tasks = |lengths: &[u32]| -> Vec<Placed> { lengths.iter().map(|&ms| (0, works(ms))).collect() };
    // All on one CPU of four: two rounds.
    let (usage, _) = simulate(&model(4, 1), tasks(&[5; 8]), None);
    assert_eq!(usage.work, Ps(40 * MS.0), "nothing is done twice, nothing is lost");
    assert!((10.0..10.3).contains(&(usage.elapsed.as_ns() / 1e6)), "{usage:?}");
    // Of unequal length: whoever is done takes what is left, so the last one ends soon after the others.
    let lengths = [9, 1, 7, 3, 12, 2, 5, 8, 4, 6, 10, 3];
    let (usage, _) = simulate(&model(4, 1), tasks(&lengths), None);
    let (sum, longest) = (lengths.iter().sum::<u32>(), 12);
    assert_eq!(usage.work, Ps(u64::from(sum) * MS.0));
    let bound = f64::from(sum) / 4.0 + f64::from(longest) * 0.75 + 0.3;
    assert!(usage.elapsed.as_ns() / 1e6 < bound, "{usage:?}");
}

#[test]
fn pulls_are_nearest_first_and_then_from_the_longest_queue() {
    // CPUs of `spread`: 8 is the sibling of 0, 1 has its cache, 2 and 3 its node, 4 to 7 are in the other package.
    let check = |near: &[(u16, u32)], from: u16| {
        let mut tasks: Vec<Placed> = Vec::new();
        let mut waiting = Vec::new();
        for cpu in 1..16 {
            tasks.push((cpu, works(20)));
            let extra = near.iter().find(|(of, _)| *of == cpu).map_or(0, |(_, extra)| *extra);
            for _ in 0..extra {
                let (noted, notes) = Noted::new(1);
                tasks.push((cpu, Box::new(noted)));
                waiting.push((cpu, notes));
            }
        }
        simulate(&spread(), tasks, None);
        let of_0 = waiting.iter().filter_map(|(of, notes)| {
            let (at, cpu) = notes.first.get().expect("all have run");
            (cpu == 0).then_some((at, *of))
        });
        assert_eq!(of_0.min().map(|(_, of)| of), Some(from), "{near:?}");
    };
    check(&[(8, 1), (1, 3)], 8);
    check(&[(9, 1), (2, 3)], 9);
    check(&[(3, 1), (4, 3)], 3);
    check(&[(5, 1), (6, 2)], 6);
    check(&[(5, 1), (6, 1)], 5);
}

/// Sleeps for 5 ms, then does what it is to do.
struct Later(bool, Noted);

impl Task for Later {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        if core::mem::take(&mut self.0) {
            return Step::Sleep(Ps(5 * MS.0));
        }
        self.1.step(on)
    }
}

#[test]
fn who_wakes_behind_a_task_goes_to_an_idle_cpu_nearby_at_once_and_farther_off_at_a_tick() {
    // The second CPU is idle from 4 ms on. At 5 ms one wakes on the first, where another is busy until 20 ms if alone.
    let elapsed = |cores_per_l3| {
        let model = model(2, 1);
        let model = Model { shape: Shape { cores_per_l3, ..model.shape }, ..model };
        let (noted, notes) = Noted::new(10);
        let tasks: Vec<Placed> = vec![(0, Box::new(Later(true, noted))), (0, works(20)), (1, works(4))];
        let (usage, _) = simulate(&model, tasks, None);
        assert_eq!(usage.work, Ps(34 * MS.0));
        (notes.first.get().expect("it ran").1, usage.elapsed.as_ns() / 1e6)
    };
    let (cpu, near) = elapsed(2);
    assert!(cpu == 1 && (20.0..20.2).contains(&near), "at once: CPU {cpu}, {near} ms");
    let (cpu, far) = elapsed(1);
    let tick = balance::TICK.as_ns() / 1e6;
    assert!(cpu == 0 && (20.5..20.2 + tick).contains(&far), "within a tick: CPU {cpu}, {far} ms");
}

/// Makes a task of 1 ms, waits for it, and goes on as another one.
struct Parent(Makes, Noted);

impl Task for Parent {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        match self.0.step(on) {
            Step::Exit => self.1.step(on),
            step => step,
        }
    }
}

#[test]
fn a_parent_whose_cpu_is_busy_goes_on_elsewhere() {
    let (noted, notes) = Noted::new(1);
    let parent = Parent(Makes { to_make: 1, to_wait_for: 1 }, noted);
    // Nobody is idle when the child is made; the second CPU is from 1 ms on, and has the child until 2 ms.
    let (usage, _) = simulate(&model(2, 1), vec![(0, Box::new(parent)), (0, works(20)), (1, works(1))], None);
    assert_eq!((usage.work, usage.migrations), (Ps(23 * MS.0), 1));
    let (at, cpu) = notes.first.get().expect("it ran");
    assert!(cpu == 1 && at > Ps(2 * MS.0) && at < Ps(2 * MS.0 + MS.0 / 3), "{at:?}");
    let end = notes.end.get();
    assert!(end < Ps(3 * MS.0 + MS.0 / 3), "{end:?}");
}

#[test]
fn moving_changes_no_total_and_the_seed_decides_who_moves() {
    let tasks = || -> Vec<Placed> {
        let mut tasks: Vec<Placed> = Vec::new();
        for n in 0..6 {
            tasks.push((n % 3, Box::new(Makes { to_make: 4, to_wait_for: 4 })));
            tasks.push((n, Box::new(Faults(Vec::new(), 500))));
            tasks.push((0, Box::new(Sleeps(true))));
            tasks.push((1, works(u32::from(n) + 1)));
        }
        tasks
    };
    let (usage, hash) = simulate(&spread(), tasks(), None);
    // 24 children of 1 ms, six sleepers, and 21 ms of workers.
    assert_eq!((usage.work, usage.pages), (Ps((24 + 6 + 21) * MS.0), 3000));
    assert_eq!((usage, hash), simulate(&spread(), tasks(), None));
}

/// How the lock of the lists of pages in use is used, and what its line cost, if `cpus` CPUs fault and free.
fn lru_of(cpus: u16, link: usize) -> (LockUse, Option<u64>) {
    let mut model = model(cpus, 1);
    if let Some(kernel) = &mut model.kernel {
        kernel.lru.link = link;
    }
    let mut world = World::<StructPage>::with_lines(
        &model,
        &zones(1, FRAMES),
        Config::linux_v6_1(),
        None,
        1,
        lines(&model, cpus),
    )
    .expect("a world");
    let tasks = (0..cpus).map(|cpu| -> Placed { (cpu, Box::new(Faults(Vec::new(), 640))) }).collect();
    let usage = run(&mut world, cpus, FRAMES, tasks, None);
    let line = world.simulator().moved().lines.into_iter().find(|line| line.name == "lru lock node 0");
    (usage.lru, line.map(|line| line.transfers).filter(|&transfers| transfers > 0))
}

#[test]
fn pages_come_to_the_lists_in_batches_or_everybody_waits_for_their_lock() {
    let [(none, no_line), (one, one_line), (many, many_line)] = [0, 1, 15].map(|link| lru_of(16, link));
    assert_eq!((none, no_line), (LockUse::default(), None), "no lists, no lock");
    assert!(one_line > many_line && many_line.is_some(), "{one_line:?} {many_line:?}");
    // 64 faults fill four batches; then four pages are linked, and two times 32 freed.
    assert_eq!((many.locks, one.locks), (16 * 10 * 7, 16 * 10 * 66));
    let wait = |used: LockUse| used.wait.as_ns() / f64::from(16 * 640);
    assert!(wait(one) > 10.0 * wait(many), "{} and {} ns a page", wait(one), wait(many));
}
