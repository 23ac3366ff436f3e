//! The benchmarks `bulk`, `rand` and `repeat`, simulated: on the allocator as Linux 6.0 is, and on a locked list.
//!
//! * `bulk`: every CPU allocates `blocks` blocks (*get*); when all have, every CPU frees its own in the same order
//!   (*put*).
//! * `rand`: the blocks are allocated beforehand and shuffled over all CPUs; every CPU frees its share (*put*).
//! * `repeat`: every CPU allocates a block and frees it, again and again; get is the time of a pair.
//!
//! A run has fewer blocks than the one it stands for. What a CPU meets again in the long run only after its caches
//! have forgotten it would be in them still in the short one; therefore caches are emptied between the phases,
//! and `rand` lets them hold as much less of the descriptors as there are fewer blocks.
#![expect(unsafe_code, reason = "the driver splits blocks that it owns")]

use core::cell::{Cell, RefCell};
use core::fmt;

use framewright::config::{Experiment, RefillCheck};
use framewright::policy::pcp::Sizing;
use framewright::units::{COSTLY_ORDER, MAX_ORDER, PAGEBLOCK_ORDER};
use framewright::{AllocError, Config, Cpu, Migratetype, Order, Pfn};

use crate::clock::{Ps, Rng};
use crate::engine::{self, Access, Events, Moved, Report, Simulator};
use crate::list_locked::{Block, Head, ListLocked};
use crate::memory::{Mapping, Place, Room};
use crate::model::{LINE, Model};
use crate::platform::Sim;
use crate::trace::Recorded;
use crate::world::{LocklessReads, StructPage, World, WorldError, refer, zones};

/// CPUs start within this of one another.
const JITTER: Ps = Ps(2_000_000);
/// Lines of descriptors that a core brings into its first level between the free of an order-0 block and its drain,
/// some 1,700 frees of eight or nine each and a margin: these are in its second level in any run, because a drain
/// follows its frees at the same distance in a short run as in a long one.
const DRAIN_WINDOW: u32 = 16_384;
/// Like [`DRAIN_WINDOW`], between the touches of one free.
const NEAR_WINDOW: u32 = 64;

/// Benchmark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bench {
    /// Allocate all, then free all in the same order.
    Bulk,
    /// Free in random order what others allocated.
    Rand,
    /// Allocate and free one.
    Repeat,
}

impl fmt::Display for Bench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Bulk => "bulk",
            Self::Rand => "rand",
            Self::Repeat => "repeat",
        })
    }
}

/// One benchmark on a number of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    /// Benchmark.
    pub bench: Bench,
    /// Order of each block.
    pub order: Order,
    /// CPUs that do it.
    pub cores: u16,
    /// Blocks of each CPU.
    pub blocks: u64,
    /// Blocks of each CPU in the run that this one stands for.
    pub stands_for: u64,
}

impl Case {
    /// The case as published: every CPU has an equal share of 128 GiB on 26 CPUs, shortened.
    #[must_use]
    pub fn published(bench: Bench, order: Order, cores: u16) -> Self {
        let blocks = 1_290_555 >> order.get();
        Self { bench, order, cores, blocks, stands_for: blocks }.shortened()
    }

    /// This case with as few blocks as show what the long run shows: several drains of each CPU's lists, and for
    /// `rand` as many blocks as no CPU finds again in its caches by chance.
    #[must_use]
    pub fn shortened(&self) -> Self {
        let pages = |pages: u64| pages >> self.order.get();
        let cores = u64::from(self.cores);
        // More than eight CPUs together do as much in half the blocks: no figure moves by more than 2 %, but those of
        // order 0, which keep their length. In bulk they are five drains of a CPU's lists.
        let half = if self.cores > 8 { 2 } else { 1 };
        let least = match self.bench {
            Bench::Bulk if self.order == PAGEBLOCK_ORDER => 128,
            Bench::Bulk if has_list(self.order) => pages(8192),
            Bench::Bulk => pages(1 << 16).clamp(64, if self.cores > 8 { 128 } else { 768 }),
            Bench::Rand if self.order == Order::ZERO => ((1 << 18) / cores.max(1)).max(1 << 14),
            Bench::Rand => {
                (pages((1 << 17) / half) / cores.max(1)).max(pages((1 << 14) / half)).max(256 / half)
            }
            Bench::Repeat if has_list(self.order) => 1000,
            // Blocks go from CPU to CPU: many rounds pass until that is as it stays.
            Bench::Repeat => 1024 / half,
        };
        Self { blocks: self.blocks.min(least), ..*self }
    }

    /// Name of a figure: `bulk_get_ns[order=9,cores=8]`, `repeat_pair_ns[…]`.
    #[must_use]
    pub fn metric(&self, operation: &str) -> String {
        let operation = if self.bench == Bench::Repeat { "pair" } else { operation };
        format!("{}_{operation}_ns[order={},cores={}]", self.bench, self.order.get(), self.cores)
    }
}

/// How an allocator is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Linux {
    /// Its configuration.
    pub config: Config,
    /// Size of its per-CPU lists.
    pub sizing: Sizing,
}

/// Result of a run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Mean ns of an allocation; of a pair in `repeat`. `None` where none is timed.
    pub get_ns: Option<f64>,
    /// Mean ns of a free.
    pub put_ns: Option<f64>,
    /// Event counters.
    pub events: Events,
    /// Zone lock: acquisitions, ns waited, ns held.
    pub lock: [u64; 3],
    /// Traffic of memory and caches.
    pub moved: Moved,
    /// Spans of each CPU, if they were asked for.
    pub recorded: Option<Recorded>,
}

/// The configuration of Linux 6.0, as far as the benchmarks meet it.
#[must_use]
pub const fn linux_6_0() -> Config {
    Config {
        experiment: Experiment { lock_timing: true, ..Config::linux_v6_1().experiment },
        ..Config::linux_v6_1()
    }
}

/// Runs a case on the allocator with descriptors of 64 bytes, in one zone of the least size that does.
///
/// # Errors
/// No address space, or a configuration that is refused.
///
/// # Panics
/// If the allocator runs out of memory: it is given a quarter more than the case needs.
pub fn linux(model: &Model, linux: &Linux, case: &Case, seed: u64) -> Result<Outcome, WorldError> {
    linux_recorded(model, linux, case, seed, 0)
}

/// Like [`linux`], and records at most `spans` spans of the CPUs.
///
/// # Errors
/// As [`linux`].
///
/// # Panics
/// As [`linux`].
pub fn linux_recorded(
    model: &Model,
    linux: &Linux,
    case: &Case,
    seed: u64,
    spans: usize,
) -> Result<Outcome, WorldError> {
    let pages = (u64::from(case.cores) * case.blocks) << case.order.get();
    let spare = u64::from(case.cores) * (8 * u64::from(linux.sizing.high_max) + 2048);
    let zone = zones(1, (pages + pages / 4 + spare).next_multiple_of(MAX_ORDER.pages()));
    let mut config = linux.config;
    if config.experiment.refill_check == RefillCheck::UnderZoneLock && !has_list(case.order) {
        // From v5.14 on a block that is taken past the lists is checked when the zone lock was dropped.
        config.experiment.refill_check = RefillCheck::AfterUnlock;
    }
    let mut world = World::<StructPage>::new(model, &zone, config, Some(linux.sizing), seed)?;
    if spans > 0 {
        world.simulator_mut().record(spans);
    }
    world.answer_all(case.cores);
    let driver = Driver::of(&world, model, case.order);
    let (get, put) = match case.bench {
        Bench::Bulk => {
            let each = case.blocks + 2 * listed(case, &linux.sizing);
            let blocks = RefCell::new(vec![Vec::new(); usize::from(case.cores)]);
            let got = world.run(case.cores, JITTER, |n, cpu| {
                let allocated = (0..each).map(|_| driver.alloc(cpu)).collect();
                blocks.borrow_mut()[n] = allocated;
            });
            fill_lists(&mut world, &driver, case, &linux.sizing, seed);
            world.simulator_mut().forget_caches();
            let put = frees(&mut world, &driver, case, &linux.sizing, &blocks.into_inner());
            (Some(got.mean().as_ns() / each as f64), Some(put))
        }
        Bench::Rand => {
            shorten_caches(&mut world, model, case);
            let shares = shares(&mut world, &driver, case, &linux.sizing, seed);
            (None, Some(frees(&mut world, &driver, case, &linux.sizing, &shares)))
        }
        Bench::Repeat => {
            let pairs = |blocks: u64| {
                move |_: usize, cpu: &Cpu<'_, '_, Sim, StructPage>| {
                    for _ in 0..blocks {
                        let pfn = driver.alloc(cpu);
                        driver.free(cpu, pfn);
                    }
                }
            };
            // The first pair fills the lists: in a run as long as the one that was measured it does not count.
            world.run(case.cores, JITTER, pairs(16));
            let took = world.run(case.cores, JITTER, pairs(case.blocks)).mean();
            (Some(took.as_ns() / case.blocks as f64), None)
        }
    };
    let totals = world.allocator().totals().pcp;
    Ok(Outcome {
        get_ns: get,
        put_ns: put,
        events: world.simulator().events(),
        lock: [totals.lock_acquisitions, totals.lock_wait_ns, totals.lock_hold_ns],
        moved: world.simulator().moved(),
        recorded: world.simulator_mut().recorded(&format!("{} order {}", case.bench, case.order.get())),
    })
}

/// Lets caches and page tables hold as much less of the descriptors as `rand` frees fewer blocks.
fn shorten_caches(world: &mut World<StructPage>, model: &Model, case: &Case) {
    let shortened = |lines: u32| {
        let held = u64::from(lines) * case.blocks / case.stands_for.max(1);
        held.min(lines.into()) as u32
    };
    let window = if has_list(case.order) { DRAIN_WINDOW >> case.order.get() } else { 0 };
    // Blocks' first lines fall into few of the sets.
    let of_sets = |lines: u32| model.caches.l2.min(lines << case.order.get().min(6));
    let near = of_sets(window.max(NEAR_WINDOW));
    let others = near.min(of_sets(shortened(model.caches.l2).max(NEAR_WINDOW)));
    world.simulator_mut().limit_translations(case.blocks as f64 / case.stands_for.max(1) as f64);
    world.limit_frame_caches([near, others, shortened(model.caches.l3)]);
}

/// Lets each CPU free its share; returns the mean ns of each free that counts: as many as the case has, behind a full
/// list's.
///
/// CPUs that come to a lock find no queue at first, and the last ones to leave it have none after them: a run of ten
/// drains for each CPU would take a twentieth less than ten drains take in the middle of hundreds. So each CPU has
/// drained its lists once before its frees count, and goes on until all have freed what counts. By then what it freed
/// first has been drained.
fn frees(
    world: &mut World<StructPage>,
    driver: &Driver,
    case: &Case,
    sizing: &Sizing,
    shares: &[Vec<Pfn>],
) -> f64 {
    let (left, took) = (Cell::new(shares.len()), Cell::new(Ps(0)));
    world.run(case.cores, JITTER, |n, cpu| {
        let (before, rest) = shares[n].split_at(listed(case, sizing) as usize);
        let (counts, after) = rest.split_at(case.blocks as usize);
        before.iter().for_each(|&pfn| driver.free(cpu, pfn));
        let start = engine::now();
        counts.iter().for_each(|&pfn| driver.free(cpu, pfn));
        took.set(took.get() + engine::now().since(start));
        left.set(left.get() - 1);
        after.iter().take_while(|_| left.get() > 0).for_each(|&pfn| driver.free(cpu, pfn));
    });
    took.get().as_ns() / (shares.len() as u64 * case.blocks) as f64
}

/// Allocates what `rand` frees and fills the per-CPU lists; returns each CPU's share: its part of what is shuffled,
/// which is drained while frees count, and as many from elsewhere as then still are in the lists of a short run, where
/// they would keep others from merging.
fn shares(
    world: &mut World<StructPage>,
    driver: &Driver,
    case: &Case,
    sizing: &Sizing,
    seed: u64,
) -> Vec<Vec<Pfn>> {
    let mut rng = Rng::new(seed ^ 0x7a4d);
    let list = listed(case, sizing);
    let mut allocate = |world: &mut World<StructPage>, each: u64| {
        let mut blocks: Vec<Pfn> = Vec::new();
        for cpu in 0..case.cores {
            world.prepare(cpu, |cpu| blocks.extend((0..each).map(|_| driver.alloc(cpu))));
        }
        rng.shuffle(&mut blocks);
        blocks
    };
    let (shuffled, elsewhere) = (allocate(world, case.blocks), allocate(world, 5 * list));
    let mut elsewhere = elsewhere.into_iter();
    let share = |(cpu, blocks): (u16, &[Pfn])| {
        let filled: Vec<Pfn> = elsewhere.by_ref().take(fill(case, sizing, &mut rng) as usize).collect();
        world.prepare(cpu, |cpu| filled.into_iter().for_each(|pfn| driver.free(cpu, pfn)));
        blocks.iter().copied().chain(elsewhere.by_ref().take(2 * list as usize)).collect()
    };
    (0..case.cores).zip(shuffled.chunks(case.blocks as usize)).map(share).collect()
}

/// Blocks in a CPU's lists when they are full; 0 where there are none.
fn listed(case: &Case, sizing: &Sizing) -> u64 {
    if has_list(case.order) { u64::from(sizing.high_max) >> case.order.get() } else { 0 }
}

/// Blocks that a CPU frees before a row of frees, so that its lists are as they are at some moment of a long one: as
/// many as fill them, as many as drains need to grow to their full size, and some.
fn fill(case: &Case, sizing: &Sizing, rng: &mut Rng) -> u64 {
    let list = listed(case, sizing);
    2 * list + rng.below(list.max(1))
}

/// Fills the per-CPU lists with blocks that are allocated and freed in a row.
fn fill_lists(world: &mut World<StructPage>, driver: &Driver, case: &Case, sizing: &Sizing, seed: u64) {
    let mut rng = Rng::new(seed ^ 0xf111);
    for cpu in 0..case.cores {
        let blocks = fill(case, sizing, &mut rng);
        world.prepare(cpu, |cpu| {
            let blocks: Vec<Pfn> = (0..blocks).map(|_| driver.alloc(cpu)).collect();
            blocks.into_iter().for_each(|pfn| driver.free(cpu, pfn));
        });
    }
}

/// Whether Linux 6.0 has per-CPU lists for an order.
fn has_list(order: Order) -> bool {
    order <= COSTLY_ORDER || order == PAGEBLOCK_ORDER
}

/// Work around the allocator on each call: private work, and the count of references that a kernel keeps in the
/// first frame's descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Driver {
    /// Order of each block.
    pub order: Order,
    /// Private work of an allocation.
    pub get: Ps,
    /// Private work of a free.
    pub put: Ps,
    /// Host address of frame 0's descriptor.
    pub descriptors: usize,
    /// Private work of a free for each page but the first, in ns.
    pub page: f64,
    /// Words that are read before an allocation; none where the configuration is not Linux'.
    pub lockless_reads: Option<LocklessReads>,
}

impl Driver {
    /// Calls for blocks of `order`, with the private work that was fitted.
    #[must_use]
    pub fn of(world: &World<StructPage>, model: &Model, order: Order) -> Self {
        Self {
            order,
            get: Ps::from_ns(model.fitted.alloc_ns),
            put: Ps::from_ns(model.fitted.free_ns),
            descriptors: world.descriptor_address(0),
            page: model.fitted.page_ns,
            lockless_reads: world.lockless_reads(),
        }
    }

    /// Allocates a movable block.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn alloc(&self, cpu: &Cpu<'_, '_, Sim, StructPage>) -> Pfn {
        match self.alloc_as(cpu, Migratetype::Movable) {
            Ok(pfn) => pfn,
            Err(error) => panic!("a benchmark has run out of memory: {error}"),
        }
    }

    /// Allocates a block of this type.
    ///
    /// # Errors
    /// There is none.
    pub fn alloc_as(
        &self,
        cpu: &Cpu<'_, '_, Sim, StructPage>,
        migratetype: Migratetype,
    ) -> Result<Pfn, AllocError> {
        engine::spend_about(self.get);
        if let Some(reads) = &self.lockless_reads {
            reads.for_order(self.order);
        }
        let pfn = cpu.alloc(self.order, migratetype)?;
        if let Some(reads) = &self.lockless_reads {
            reads.at_flags();
        }
        refer(cpu, pfn, 1);
        Ok(pfn)
    }

    /// Frees a block that [`alloc`](Self::alloc) returned.
    ///
    /// # Panics
    /// If the allocator refuses it.
    pub fn free(&self, cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn) {
        engine::spend_about(self.put_of(self.order));
        // Dropping the last reference is an atomic access to the block's first descriptor.
        engine::touch(self.descriptor(pfn), size_of::<u64>(), Access::Exchange);
        refer(cpu, pfn, 0);
        if let Some(reads) = &self.lockless_reads
            && has_list(self.order)
        {
            reads.at_flags();
        }
        if let Err(error) = cpu.free(pfn, self.order) {
            panic!("a benchmark freed wrongly: {error}");
        }
    }

    /// Splits a block that [`alloc`](Self::alloc) returned into pages, each to be freed on its own.
    ///
    /// # Panics
    /// If the allocator refuses it.
    pub fn split(&self, cpu: &Cpu<'_, '_, Sim, StructPage>, pfn: Pfn) {
        // SAFETY: the caller has the block, and no other CPU uses it.
        if let Err(error) = unsafe { cpu.split(pfn, self.order, Order::ZERO) } {
            panic!("a benchmark split wrongly: {error}");
        }
        (0..self.order.pages()).for_each(|n| refer(cpu, pfn.add(n), 1));
    }

    /// Private work of a free of a block.
    pub(crate) fn put_of(&self, order: Order) -> Ps {
        self.put + Ps::from_ns(self.page * (order.pages() - 1) as f64)
    }

    fn descriptor(&self, pfn: Pfn) -> usize {
        self.descriptors + pfn.0 as usize * LINE
    }
}

/// Runs a case on a locked list. Its order is not used: a block is an entry.
///
/// # Errors
/// No address space.
///
/// # Panics
/// If the list runs out of blocks: it has as many as the case needs.
pub fn list_locked(model: &Model, case: &Case, seed: u64) -> std::io::Result<Outcome> {
    let cpus = usize::from(case.cores);
    let mut room = Room::default();
    let heads: Place<Head> = room.add(cpus);
    let blocks: Place<Block> = room.add(cpus * case.blocks as usize + cpus);
    let memory = Mapping::new(room.bytes())?;
    // SAFETY: room of their own in zeroed memory, and zeroes are what `new` makes of words. The mapping goes into the
    // simulator, which outlives the list.
    let list = unsafe { ListLocked::new(&heads.slice(&memory)[0], blocks.slice(&memory)) };
    let mut simulator = Simulator::new(model.clone(), memory, seed)?;
    let head = heads.offset();
    simulator.name(head, head + 64, "list lock");
    simulator.name(head + 128, head + 192, "list head");
    simulator.name(blocks.offset(), blocks.end(), "blocks");
    let owned = RefCell::new(vec![Vec::new(); cpus]);
    let take = || list.alloc().expect("as many blocks as are asked for");
    let (get, put) = match case.bench {
        Bench::Repeat => {
            let pairs = |_: usize| (0..case.blocks).for_each(|_| list.free(take()));
            (Some(simulator.run(on_each(cpus, &pairs), JITTER)), None)
        }
        Bench::Bulk | Bench::Rand => {
            let fill = |n: usize| {
                let taken: Vec<u64> = (0..case.blocks).map(|_| take()).collect();
                owned.borrow_mut()[n] = taken;
            };
            let got = simulator.run(on_each(cpus, &fill), JITTER);
            if case.bench == Bench::Rand {
                let mut all = owned.borrow_mut();
                let mut blocks = all.concat();
                Rng::new(seed ^ 0x7a4d).shuffle(&mut blocks);
                *all = blocks.chunks(case.blocks as usize).map(<[u64]>::to_vec).collect();
            }
            simulator.forget_caches();
            let free = |n: usize| {
                let taken = core::mem::take(&mut owned.borrow_mut()[n]);
                taken.into_iter().for_each(|block| list.free(block));
            };
            (Some(got), Some(simulator.run(on_each(cpus, &free), JITTER)))
        }
    };
    let per_block = |report: Report| report.mean().as_ns() / case.blocks as f64;
    Ok(Outcome {
        get_ns: get.map(per_block),
        put_ns: put.map(per_block),
        events: simulator.events(),
        lock: [0; 3],
        moved: simulator.moved(),
        recorded: None,
    })
}

/// One program for each of `cpus` CPUs, which is told its number.
fn on_each<'a>(cpus: usize, run: &'a dyn Fn(usize)) -> Vec<Box<dyn FnOnce() + 'a>> {
    (0..cpus).map(|n| -> Box<dyn FnOnce() + 'a> { Box::new(move || run(n)) }).collect()
}
