//! A recorded trace on virtual CPUs: each traced CPU is a virtual one, and several copies of the whole can run
//! together, as several instances of a program do.
//!
//! Between two operations of a CPU passes the time that was recorded. A block is freed by the CPU that freed it when it
//! was recorded; where virtual time brings a free before its allocation, the free waits until the CPU's next operation.

use core::cell::{Cell, RefCell};

use framewright::units::MAX_ORDER;
use framewright::{Cpu, Migratetype, Order, Pfn};

use crate::bench::{Driver, Linux};
use crate::clock::Ps;
use crate::engine::{self, Events, Moved};
use crate::model::Model;
use crate::platform::Sim;
use crate::world::{StructPage, World, WorldError, zones};

/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);

/// Call with a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Allocates it, with this type.
    Alloc(Migratetype),
    /// Frees it.
    Free,
    /// Frees a part of it, from this page on. The first of its parts splits the block of order `whole` into pages, each
    /// of which is freed on its own.
    FreePart {
        /// Page of the block.
        offset: u32,
        /// Order of the block.
        whole: Order,
    },
}

/// One operation of a CPU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Op {
    /// Time since the CPU's operation before it, or of its first one since the copy began.
    pub gap: Ps,
    /// The block: an index below [`Copy::slots`].
    pub slot: u32,
    /// Order of the block, or of the part that is freed.
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

/// A block of a copy.
#[derive(Clone, Copy)]
enum Block {
    /// Not allocated yet, or freed.
    Nowhere,
    /// Allocated.
    Whole(Pfn),
    /// A CPU splits it: others wait.
    Splitting,
    /// Each of its pages is freed on its own.
    Pages(Pfn),
}

/// The blocks of a copy, by slot.
struct Blocks(RefCell<Vec<Block>>);

impl Blocks {
    fn set(&self, op: &Op, block: Block) -> Block {
        core::mem::replace(&mut self.0.borrow_mut()[op.slot as usize], block)
    }

    /// What an operation frees: the first frame, the order of a call, and the number of calls. `None` if that is not
    /// there yet.
    fn take(&self, op: &Op, driver: Driver, cpu: &Cpu<'_, '_, Sim, StructPage>) -> Option<(Pfn, Order, u64)> {
        let Act::FreePart { offset, whole } = op.act else {
            let Block::Whole(pfn) = self.set(op, Block::Nowhere) else { return None };
            return Some((pfn, op.order, 1));
        };
        let block = self.0.borrow()[op.slot as usize];
        let first = match block {
            Block::Nowhere | Block::Splitting => return None,
            Block::Pages(first) => first,
            Block::Whole(first) => {
                self.set(op, Block::Splitting);
                Driver { order: whole, ..driver }.split(cpu, first);
                self.set(op, Block::Pages(first));
                first
            }
        };
        Some((first.add(u64::from(offset)), Order::ZERO, op.order.pages()))
    }
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

/// Runs all copies together, each thread on a CPU of its own, in as much memory as they need: twice what they have in
/// use at most, or, if they fragment it, as many times that as it takes.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If there are more threads than CPUs.
pub fn run(model: &Model, linux: &Linux, copies: &[Copy], seed: u64) -> Result<Outcome, WorldError> {
    let mut times = 2;
    loop {
        if let Some(outcome) = run_in(model, linux, copies, seed, times)? {
            return Ok(outcome);
        }
        times *= 2;
    }
}

/// The result in so many times the memory that is in use at most; `None` if it runs out.
fn run_in(
    model: &Model,
    linux: &Linux,
    copies: &[Copy],
    seed: u64,
    times: u64,
) -> Result<Option<Outcome>, WorldError> {
    let shape = model.shape;
    let cpus: usize = copies.iter().map(|copy| copy.threads.len()).sum();
    let pages: u64 = copies.iter().map(|copy| copy.pages).sum();
    let lists = cpus as u64 * (2 * u64::from(linux.sizing.high_max) + 1024);
    // Whichever node a program runs on, its memory fits there.
    let per_node = (times * pages + lists).next_multiple_of(MAX_ORDER.pages()).max(16 * MAX_ORDER.pages());
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
    let blocks: Vec<Blocks> =
        copies.iter().map(|copy| Blocks(RefCell::new(vec![Block::Nowhere; copy.slots]))).collect();
    let sums = RefCell::new(Sums::default());
    let ran_out = Cell::new(false);
    let report = world.run(cpus as u16, JITTER, |n, cpu| {
        let (copy, ops) = owners[n];
        let blocks = &blocks[copy];
        // Frees whose block was not there yet.
        let mut early: Vec<Op> = Vec::new();
        let free = |op: &Op| {
            let Some((first, order, count)) = blocks.take(op, driver, cpu) else { return false };
            let since = engine::now();
            for n in 0..count {
                Driver { order, ..driver }.free(cpu, first.add(n));
            }
            sums.borrow_mut().frees.add(since);
            true
        };
        for op in ops {
            if ran_out.get() {
                return;
            }
            engine::spend(op.gap);
            early.retain(|op| !free(op));
            match op.act {
                Act::Alloc(migratetype) => {
                    let since = engine::now();
                    let Ok(pfn) = Driver { order: op.order, ..driver }.alloc_as(cpu, migratetype) else {
                        ran_out.set(true);
                        return;
                    };
                    let mut sums = sums.borrow_mut();
                    sums.allocs.add(since);
                    sums.pages += op.order.pages();
                    drop(sums);
                    blocks.set(op, Block::Whole(pfn));
                }
                Act::Free | Act::FreePart { .. } if free(op) => {}
                Act::Free | Act::FreePart { .. } => early.push(*op),
            }
        }
    });
    if ran_out.get() {
        return Ok(None);
    }
    let Sums { allocs, frees, pages } = sums.into_inner();
    let elapsed = report.whole();
    let totals = world.allocator().totals().pcp;
    Ok(Some(Outcome {
        alloc_ns: allocs.mean_ns(),
        free_ns: frees.mean_ns(),
        elapsed,
        share: (allocs.time + frees.time) as f64 / (elapsed.0 as f64 * cpus as f64).max(1.0),
        pages,
        lock: [totals.lock_acquisitions, totals.lock_wait_ns, totals.lock_hold_ns],
        moved: world.simulator().moved(),
        events: world.simulator().events(),
    }))
}
