//! A recorded trace on virtual CPUs: each traced CPU is a virtual one, and several copies of the whole can run
//! together, as several instances of a program do.
//!
//! Between two operations of a CPU passes the time that was recorded. A block is freed by the CPU that freed it when it
//! was recorded; where virtual time brings a free before its allocation, the free waits until the CPU's next operation.

use core::cell::RefCell;

use framewright::units::MAX_ORDER;
use framewright::{Migratetype, Order, Pfn};

use crate::bench::{Driver, Linux};
use crate::clock::Ps;
use crate::engine::{self, Events, Moved};
use crate::model::Model;
use crate::outcome::zones;
use crate::world::{StructPage, World, WorldError};

/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);

/// Call with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Allocates it, with this type.
    Alloc(Migratetype),
    /// Frees it.
    Free,
}

/// One operation of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Time since the CPU's operation before it, or of its first one since the copy began.
    pub gap: Ps,
    /// The block: an index below [`Copy::slots`].
    pub slot: u32,
    /// Order of the block.
    pub order: Order,
    /// Call.
    pub act: Act,
}

/// One instance of what was recorded.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Copy {
    /// Operations by CPU.
    pub threads: Vec<Vec<Op>>,
    /// Blocks.
    pub slots: usize,
    /// Base pages in use at most.
    pub pages: u64,
}

/// Result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Mean time of an allocation.
    pub alloc_ns: f64,
    /// Mean time of a free.
    pub free_ns: f64,
    /// Time from the first CPU's start to the last one's end.
    pub elapsed: Ps,
    /// Share of that time of all CPUs that was spent in allocations and frees.
    pub share: f64,
    /// Base pages that were allocated.
    pub pages: u64,
    /// Zone locks: acquisitions, ns waited, ns held.
    pub lock: [u64; 3],
    /// Traffic of memory and caches.
    pub moved: Moved,
    /// Event counters.
    pub events: Events,
}

/// Operations of one kind: how many, and what they took.
#[derive(Clone, Copy, Default)]
struct Timed {
    count: u64,
    time: u64,
}

impl Timed {
    fn add(&mut self, since: Ps) {
        self.count += 1;
        self.time += engine::now().since(since).0;
    }

    fn mean_ns(self) -> f64 {
        Ps(self.time).as_ns() / self.count.max(1) as f64
    }
}

/// Sums of all CPUs.
#[derive(Default)]
struct Sums {
    allocs: Timed,
    frees: Timed,
    pages: u64,
}

/// Runs all copies together, each thread on a CPU of its own, in as much memory as they need.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If there are more threads than CPUs, or the allocator runs out of memory.
pub fn run(model: &Model, linux: &Linux, copies: &[Copy], seed: u64) -> Result<Outcome, WorldError> {
    let shape = model.shape;
    let cpus: usize = copies.iter().map(|copy| copy.threads.len()).sum();
    let pages: u64 = copies.iter().map(|copy| copy.pages).sum();
    let lists = cpus as u64 * (2 * u64::from(linux.sizing.high_max) + 1024);
    // Whichever node a program runs on, its memory fits there.
    let per_node = (2 * pages + lists).next_multiple_of(MAX_ORDER.pages()).max(16 * MAX_ORDER.pages());
    let mut world = World::<StructPage>::new(
        model,
        &zones(shape.nodes, per_node),
        linux.config,
        Some(linux.sizing),
        seed,
    )?;
    world.answer_all(cpus as u16);
    let driver = Driver::of(&world, model, Order::ZERO);
    let owners: Vec<(usize, &[Op])> = copies
        .iter()
        .enumerate()
        .flat_map(|(copy, recording)| recording.threads.iter().map(move |ops| (copy, ops.as_slice())))
        .collect();
    let blocks: Vec<RefCell<Vec<Option<Pfn>>>> =
        copies.iter().map(|copy| RefCell::new(vec![None; copy.slots])).collect();
    let sums = RefCell::new(Sums::default());
    let report = world.run(cpus as u16, JITTER, |n, cpu| {
        let (copy, ops) = owners[n];
        let slots = &blocks[copy];
        // Frees whose block was not there yet.
        let mut early: Vec<Op> = Vec::new();
        let free = |op: &Op| {
            let Some(pfn) = slots.borrow_mut()[op.slot as usize].take() else { return false };
            let since = engine::now();
            Driver { order: op.order, ..driver }.free(cpu, pfn);
            sums.borrow_mut().frees.add(since);
            true
        };
        for op in ops {
            engine::spend(op.gap);
            early.retain(|op| !free(op));
            match op.act {
                Act::Alloc(migratetype) => {
                    let since = engine::now();
                    let pfn = Driver { order: op.order, ..driver }.alloc_as(cpu, migratetype);
                    let mut sums = sums.borrow_mut();
                    sums.allocs.add(since);
                    sums.pages += op.order.pages();
                    slots.borrow_mut()[op.slot as usize] = Some(pfn);
                }
                Act::Free if free(op) => {}
                Act::Free => early.push(*op),
            }
        }
    });
    let Sums { allocs, frees, pages } = sums.into_inner();
    let elapsed = report.whole();
    let totals = world.allocator().totals().pcp;
    Ok(Outcome {
        alloc_ns: allocs.mean_ns(),
        free_ns: frees.mean_ns(),
        elapsed,
        share: (allocs.time + frees.time) as f64 / (elapsed.0 as f64 * cpus as f64).max(1.0),
        pages,
        lock: [totals.lock_acquisitions, totals.lock_wait_ns, totals.lock_hold_ns],
        moved: world.simulator().moved(),
        events: world.simulator().events(),
    })
}
