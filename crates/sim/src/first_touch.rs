//! Memory that is touched for the first time, with huge pages and with base pages.
//!
//! Some CPUs touch huge pages until each has its share. During that time the others fault base pages, and give them
//! back when they have a few. Afterwards the first work in their memory, and the others go on.

use core::cell::Cell;
use std::rc::Rc;

use framewright::units::{MAX_ORDER, PAGEBLOCK_PAGES};
use framewright::{Migratetype, Pfn};

use crate::bench::Linux;
use crate::clock::Ps;
use crate::engine::{self, Events, Moved};
use crate::model::Model;
use crate::outcome::{Outcome, leave_little_cache};
use crate::task::{self, OnCpu, Placed, Step, Task, Usage};
use crate::world::{World, WorldError, zones};

/// Base pages that a CPU faults before it gives them back.
const HELD: usize = 512;
/// User work that goes with a base page, in ns: it is written to and read.
const WORK_NS: f64 = 1000.0;

/// CPUs of each kind, and their work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// CPUs that touch huge pages.
    pub huge_cpus: u16,
    /// How many each touches.
    pub huge_pages: u32,
    /// CPUs that fault base pages during that time.
    pub base_cpus: u16,
    /// How long they go on afterwards.
    pub afterwards: Ps,
}

impl Case {
    /// Whether a CPU touches huge pages. The two kinds take turns.
    const fn is_huge(&self, cpu: u16) -> bool {
        let all = (self.huge_cpus + self.base_cpus) as u32;
        let before = cpu as u32 * self.huge_cpus as u32 / all;
        (cpu as u32 + 1) * self.huge_cpus as u32 / all > before
    }
}

/// Result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Warmed {
    /// From the start until the last huge page was touched.
    pub warm: Ps,
    /// GB/s at which huge pages were cleared.
    pub gbps: f64,
    /// Mean ns of an allocation: of a huge page, of a base page during that time, of a base page afterwards.
    pub alloc_ns: [f64; 3],
    /// Zone lock until warm: acquisitions, ns waited, ns held.
    pub lock: [u64; 3],
    /// Traffic of memory and caches until warm.
    pub moved: Moved,
    /// Event counters.
    pub events: Events,
}

/// Runs a case.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the model has no costs of the kernel's work, or fewer CPUs.
pub fn run(model: &Model, allocator: &Linux, case: &Case, seed: u64) -> Result<Warmed, WorldError> {
    let nodes = model.shape.nodes;
    let cpus = case.huge_cpus + case.base_cpus;
    let huge = u64::from(case.huge_cpus) * u64::from(case.huge_pages) * PAGEBLOCK_PAGES;
    let lists = 4 * u64::from(allocator.sizing.high_max) + 4 * PAGEBLOCK_PAGES;
    let pages = huge + huge / 4 + u64::from(cpus) * (HELD as u64 + lists);
    // Any node may be asked for all of it.
    let frames = pages.next_multiple_of(MAX_ORDER.pages());
    let zones = zones(nodes, frames);
    let sizing = Some(allocator.sizing);
    let lines = task::lines(model);
    let mut world = World::with_lines(model, &zones, allocator.config, sizing, seed, lines)?;
    world.answer_all(cpus);
    leave_little_cache(&mut world, model, 1.0);
    let shared = Rc::new(Shared {
        left: Cell::new(case.huge_cpus),
        last: Cell::new(Ps(0)),
        first: Cell::new(Ps::NEVER),
        huge: Times::default(),
        base: Times::default(),
    });
    let touches = (0..cpus)
        .map(|cpu| -> Placed {
            let shared = Rc::clone(&shared);
            if case.is_huge(cpu) {
                (cpu, Box::new(Huge { left: case.huge_pages, shared }))
            } else {
                (cpu, Box::new(Base { held: Vec::new(), shared, ends: true }))
            }
        })
        .collect();
    task::run(&mut world, cpus, frames, touches, None);
    let warmed = Outcome::of(&world, Usage::default());
    let warm = shared.last.get().since(shared.first.get());
    let meanwhile = shared.base.mean();
    shared.base.forget();
    let afterwards: Vec<Placed> = (0..cpus)
        .filter(|&cpu| !case.is_huge(cpu))
        .map(|cpu| -> Placed {
            (cpu, Box::new(Base { held: Vec::new(), shared: Rc::clone(&shared), ends: false }))
        })
        .collect();
    if case.afterwards > Ps(0) && !afterwards.is_empty() {
        task::run(&mut world, cpus, frames, afterwards, Some(case.afterwards));
    }
    let lock = warmed.all_locks();
    Ok(Warmed {
        warm,
        gbps: (huge * 4096) as f64 / warm.as_ns().max(1.0),
        alloc_ns: [shared.huge.mean(), meanwhile, shared.base.mean()],
        lock,
        moved: warmed.moved,
        events: world.simulator().events(),
    })
}

/// Time of allocations.
#[derive(Default)]
struct Times {
    spent: Cell<u64>,
    count: Cell<u64>,
}

impl Times {
    fn take(&self, on: &OnCpu<'_, '_, '_>, fault: impl FnOnce() -> Pfn) -> Pfn {
        let before = on.allocating();
        let pfn = fault();
        self.spent.set(self.spent.get() + on.allocating().since(before).0);
        self.count.set(self.count.get() + 1);
        pfn
    }

    fn mean(&self) -> f64 {
        Ps(self.spent.get()).as_ns() / (self.count.get().max(1)) as f64
    }

    fn forget(&self) {
        self.spent.set(0);
        self.count.set(0);
    }
}

struct Shared {
    /// CPUs that still touch huge pages.
    left: Cell<u16>,
    first: Cell<Ps>,
    last: Cell<Ps>,
    huge: Times,
    base: Times,
}

/// Touches huge pages, and keeps them.
struct Huge {
    left: u32,
    shared: Rc<Shared>,
}

impl Task for Huge {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        let shared = &self.shared;
        if self.left == 0 {
            shared.left.set(shared.left.get() - 1);
            shared.last.set(shared.last.get().max(engine::now()));
            return Step::Exit;
        }
        shared.first.set(shared.first.get().min(engine::now()));
        self.left -= 1;
        shared.huge.take(on, || on.fault_huge());
        Step::Continue
    }
}

/// Faults base pages and gives them back.
struct Base {
    held: Vec<Pfn>,
    shared: Rc<Shared>,
    /// Whether it ends when all huge pages are touched.
    ends: bool,
}

impl Task for Base {
    fn step(&mut self, on: &OnCpu<'_, '_, '_>) -> Step {
        let over = self.ends && self.shared.left.get() == 0;
        if self.held.len() == HELD || over {
            on.unmap(self.held.drain(..));
            return if over { Step::Exit } else { Step::Continue };
        }
        on.user(Ps::from_ns(WORK_NS));
        self.held.push(self.shared.base.take(on, || on.fault(Migratetype::Movable)));
        Step::Continue
    }
}
