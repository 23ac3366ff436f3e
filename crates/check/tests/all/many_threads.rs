//! The whole allocator under many threads. shuttle: nine threads on eight CPUs, random schedules and schedules
//! with few priority changes; all kinds of calls are made together.

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use ::shuttle::rand::{Rng, thread_rng};
use framewright_check::prelude::*;

/// CPUs whose threads have blocks. Another one takes memory offline.
const CPUS: usize = 8;

/// Pages at the start of each of the two pageblocks: few, so that the CPUs fight for them.
const FEW: u64 = 64;

/// Blocks that any thread frees, that compaction moves and that reclaim takes.
struct Pool {
    oracle: Arc<SharedOracle>,
    /// An ordinary mutex: it is never held where another thread may run.
    blocks: Mutex<BTreeMap<Pfn, Order>>,
}

impl Pool {
    fn put(&self, block: Block) {
        assert_eq!(self.blocks.lock().expect("no thread panicked").insert(block.pfn, block.order), None);
    }

    /// The first block that `wants` takes. It is its taker's to free.
    fn take(&self, wants: impl Fn(Pfn) -> bool) -> Option<Block> {
        let mut blocks = self.blocks.lock().expect("no thread panicked");
        let pfn = blocks.keys().copied().find(|&pfn| wants(pfn))?;
        let block = Block { pfn, order: blocks.remove(&pfn)? };
        self.oracle.giving_back(block);
        Some(block)
    }
}

#[expect(unsafe_code, reason = "a mover vouches for what it moves")]
// SAFETY: no memory is behind the frames of a world, so none is at stake.
unsafe impl Migrate for Pool {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let mut blocks = self.blocks.lock().expect("no thread panicked");
        if blocks.get(&from) != Some(&order) {
            return Migrated::Stays;
        }
        self.oracle.giving_back(Block { pfn: from, order });
        self.oracle.handed_out(Block { pfn: to, order });
        blocks.remove(&from);
        blocks.insert(to, order);
        Migrated::Moved
    }

    fn can_move(&self, from: Pfn, order: Order, _asked: Migratetype) -> bool {
        self.blocks.lock().expect("no thread panicked").get(&from) == Some(&order)
    }
}

impl Reclaim for Pool {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        let mut done = Reclaimed::default();
        while done.freed < ask.target.min(16)
            && let Some(block) = self.take(|pfn| ask.wants(pfn))
        {
            give(to, block.pfn, block.order).expect("the pool had it");
            done.scanned += block.order.pages();
            done.freed += block.order.pages();
        }
        done
    }
}

struct Shop {
    /// Frames from the first pageblock to the second: they are in different sections, if there are several.
    stride: u64,
    pageblocks: u64,
    /// Pages of memory at the start of each of them.
    pages: u64,
    world: World<Shuttle>,
    oracle: Arc<SharedOracle>,
    pool: Pool,
    /// Frames that a thread has marked as bad: no other one does.
    marked: Mutex<BTreeSet<Pfn>>,
}

/// What a thread has, and has marked.
#[derive(Default)]
struct Held {
    blocks: Vec<Block>,
    ranges: Vec<Range<Pfn>>,
    /// Frames in its blocks that are out of use when they are freed.
    doomed: Vec<Pfn>,
    /// Frames that are out of use.
    bad: Vec<Pfn>,
}

impl Held {
    /// Any block.
    fn choose(&self) -> Option<usize> {
        (!self.blocks.is_empty()).then(|| below(self.blocks.len() as u64) as usize)
    }

    /// Whether no frame of a block is bad.
    fn is_sound(&self, block: &Block) -> bool {
        let frames = block.pfn..block.pfn.add(block.order.pages());
        !self.doomed.iter().any(|bad| frames.contains(bad))
    }

    /// Takes out any block without bad frames.
    fn take_sound(&mut self) -> Option<Block> {
        let at = self.choose().filter(|&at| self.is_sound(&self.blocks[at]))?;
        Some(self.blocks.swap_remove(at))
    }
}

/// A CPU's calls.
struct Caller<'s> {
    shop: &'s Shop,
    cpu: &'s Cpu<'s, 's, Shuttle>,
    held: Held,
}

fn frames(range: &Range<Pfn>) -> impl Iterator<Item = Block> + use<> {
    (range.start.0..range.end.0).map(|pfn| Block { pfn: Pfn(pfn), order: Order::ZERO })
}

fn below(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}

impl Shop {
    /// All pageblocks in one zone; or each in one of its own, the last one for movable blocks, on nodes in turn, as
    /// CPUs are.
    fn new(config: Config, pageblocks: u64, pages: u64, nodes: u16) -> Self {
        let least = if nodes > 1 { MAX_ORDER.pages() } else { PAGEBLOCK_PAGES };
        let stride = config.experiment.section_pages.max(least);
        let starts = || (0..pageblocks).map(|n| BASE.add(n * stride));
        let last = BASE.add((pageblocks - 1) * stride);
        let zones = (0..).zip(starts()).map(|(n, start)| {
            let kind = if start == last { ZoneType::Movable } else { ZoneType::Normal };
            zone(n % nodes, kind, start.0, stride)
        });
        let spec = match nodes {
            1 => Spec::one_zone(pageblocks * stride, CPUS + 1),
            _ => Spec::zones(Vec::from_iter(zones), CPUS + 1),
        };
        let world: World<Shuttle> = spec
            .memory(Vec::from_iter(starts().map(|start| (start, pages))))
            .cpu_nodes(Vec::from_iter((0..=CPUS as u16).map(|n| NodeId(n % nodes))))
            .config(config)
            .build();
        assert_eq!(world.zone().sections() > 1, nodes == 1 && stride > PAGEBLOCK_PAGES);
        let oracle = Arc::new(SharedOracle::new(BASE, pageblocks * stride));
        let pool = Pool { oracle: oracle.clone(), blocks: Mutex::default() };
        Self { stride, pageblocks, pages, world, oracle, pool, marked: Mutex::default() }
    }

    /// Any frame of the first `pageblocks`.
    fn frame(&self, pageblocks: u64) -> Pfn {
        BASE.add(below(pageblocks) * self.stride + below(self.pages))
    }

    fn zone(&self) -> ZoneId {
        ZoneId(below(self.world.allocator().zones().len() as u64) as u8)
    }

    fn node(&self) -> NodeId {
        NodeId(below(self.world.allocator().nodes().len() as u64) as u16)
    }

    /// Pages of a range: seldom more than a block of the largest order.
    fn some_pages(&self) -> u64 {
        let most = if self.pages < PAGEBLOCK_PAGES || below(4) > 0 { 70 } else { MAX_ORDER.pages() + 100 };
        1 + below(most)
    }

    /// Memory of the pageblock that goes offline and comes back. No frame of it is bad.
    fn movable(&self) -> Range<Pfn> {
        let start = BASE.add((self.pageblocks - 1) * self.stride);
        start..start.add(self.pages)
    }

    fn come_online(&self) {
        frames(&self.movable()).for_each(|frame| self.oracle.giving_back(frame));
        self.world.allocator().online(self.movable().start, self.pages).expect("it went offline");
    }

    fn helpers(&self) -> Helpers<'_> {
        Helpers::NONE.with_migrate(&self.pool).with_reclaim(&self.pool)
    }

    /// Everything one CPU does: `steps` random calls, then it gives its blocks back, and leaves, drained or not.
    fn work(&self, n: usize, steps: u32) {
        let pin = self.world.pin(n);
        let cpu = self.world.cpu(&pin);
        let mut caller = Caller { shop: self, cpu: &cpu, held: Held::default() };
        (0..steps).for_each(|_| caller.step());
        caller.leave();
        if thread_rng().gen_bool(0.5) {
            cpu.drain();
        }
        self.world.unpin(pin);
    }

    /// Calls of a thread that has no blocks during the work.
    fn disturb(&self, steps: u32) {
        let allocator = self.world.allocator();
        let mut is_offline = false;
        for _ in 0..steps {
            let pageblock = BASE.add(below(self.pageblocks) * self.stride);
            match below(9) {
                0 => {
                    let (batch, high) = (1 + below(7) as u32, below(32) as u32);
                    allocator.resize_pcps_of(self.zone(), Sizing { batch, high_min: high, high_max: high });
                }
                1 => allocator.request_drain(),
                2 => drop(allocator.isolate_pageblock(pageblock)),
                3 => drop(allocator.unisolate_pageblock(pageblock)),
                4 => self.world.on(CPUS, |cpu| {
                    cpu.report_free(PAGEBLOCK_ORDER, |blocks| {
                        for &(pfn, order) in blocks {
                            // No other thread has it while it is reported.
                            self.oracle.handed_out(Block { pfn, order });
                            self.oracle.giving_back(Block { pfn, order });
                        }
                        below(2) == 0
                    });
                }),
                5..8 if is_offline => {
                    self.come_online();
                    is_offline = false;
                }
                5..8 => {
                    let gone = self.world.on(CPUS, |cpu| cpu.offline(self.movable()));
                    is_offline = gone.is_ok();
                    if is_offline {
                        frames(&self.movable()).for_each(|frame| self.oracle.handed_out(frame));
                    }
                }
                _ => {
                    let to = [M, Migratetype::Unmovable, Migratetype::Cma];
                    _ = allocator.set_pageblock_type(pageblock, to[below(3) as usize]);
                }
            }
        }
        if is_offline {
            self.come_online();
        }
    }

    /// All threads have ended: every page is accounted for, first where it is, then all of them merged again.
    fn close(&self) {
        while let Some(block) = self.pool.take(|_| true) {
            self.world.must_free(0, block.pfn, block.order);
        }
        let account = self.world.settled();
        assert_eq!((account.allocated, self.oracle.pages_owned()), (0, 0), "{account:?}");
        assert_eq!(
            account.free + account.on_pcp + account.quarantined,
            self.pageblocks * self.pages,
            "{account:?}"
        );
        self.world.drain_all();
        for start in (0..self.pageblocks).map(|n| BASE.add(n * self.stride)) {
            self.world.allocator().unisolate_pageblock(start);
            for bad in frames(&(start..start.add(self.pages))) {
                let _ = self.world.on(0, |cpu| cpu.unpoison(bad.pfn));
            }
            self.world.allocator().set_pageblock_type(start, M);
        }
        let account = self.world.settled();
        assert_eq!(account.free, self.pageblocks * self.pages, "{account:?}");
        let whole = Order::all().find(|order| order.pages() == self.pages).expect("a power of two");
        let whole_blocks: u64 = self.world.allocator().free_blocks(whole);
        assert_eq!(whole_blocks, self.pageblocks, "{}", self.world.allocator().buddyinfo());
    }
}

impl Caller<'_> {
    fn got(&mut self, block: Block) {
        self.shop.oracle.handed_out(block);
        self.held.blocks.push(block);
    }

    fn got_range(&mut self, range: Range<Pfn>) {
        frames(&range).for_each(|frame| self.shop.oracle.handed_out(frame));
        self.held.ranges.push(range);
    }

    /// Frees a block that is not among the held ones any more.
    fn free(&mut self, block: Block) {
        self.shop.oracle.giving_back(block);
        let frames = block.pfn..block.pfn.add(block.order.pages());
        for pfn in self.held.doomed.extract_if(.., |pfn| frames.contains(pfn)) {
            self.shop.oracle.handed_out(Block { pfn, order: Order::ZERO });
            self.held.bad.push(pfn);
        }
        self.cpu.must_free(block.pfn, block.order);
    }

    /// Frees the front of a range, or all of it.
    fn free_some(&mut self) {
        let Some(Range { start, end }) = self.held.ranges.pop() else { return };
        let cut = Pfn(start.0 + 1 + below(end.0 - start.0));
        frames(&(start..cut)).for_each(|frame| self.shop.oracle.giving_back(frame));
        free_range(self.cpu, start..cut).expect("it is this thread's");
        self.held.ranges.extend((cut < end).then_some(cut..end));
    }

    fn repair(&self, pfn: Pfn) {
        self.shop.oracle.giving_back(Block { pfn, order: Order::ZERO });
        self.cpu.unpoison(pfn).expect("it was out of use");
        self.shop.marked.lock().expect("no thread panicked").remove(&pfn);
    }

    fn leave(mut self) {
        while let Some(block) = self.held.blocks.pop() {
            self.free(block);
        }
        while !self.held.ranges.is_empty() {
            self.free_some();
        }
        self.held.bad.iter().for_each(|&pfn| self.repair(pfn));
    }

    fn step(&mut self) {
        let Self { shop, cpu, .. } = *self;
        let large = if shop.pages < PAGEBLOCK_PAGES { [4, 6] } else { [9, 10] };
        let orders = [0, 0, 0, 0, 0, 1, 2, 3, 5, large[0], large[1]];
        let order = order(orders[below(orders.len() as u64) as usize]);
        let asked = ORDINARY[below(3) as usize];
        let mut got = None;
        match below(40) {
            0..10 => got = cpu.alloc(order, asked).ok(),
            10..16 => {
                if let Some(at) = self.held.choose() {
                    let block = self.held.blocks.swap_remove(at);
                    self.free(block);
                }
            }
            16 | 17 => self.held.take_sound().into_iter().for_each(|block| shop.pool.put(block)),
            18 | 19 => {
                let from = shop.frame(shop.pageblocks);
                let block = shop.pool.take(|pfn| pfn >= from);
                block.into_iter().for_each(|block| cpu.must_free(block.pfn, block.order));
            }
            20 => cpu.drain(),
            21 => cpu.answer(),
            22 => cpu.tick(),
            23..27 => self.many(order, asked),
            27..31 => self.of_a_place(order),
            31..34 => self.bad_frames(),
            34 => drop(cpu.compact_proactively(shop.node(), &shop.pool)),
            35 => drop(cpu.compact(shop.zone(), &shop.pool)),
            36 => {
                let flags = [Flags::NONE, Flags::HIGH, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM];
                let request = Request::new(order, asked).with(flags[below(5) as usize]);
                got = cpu.alloc_with(&request, &shop.helpers()).ok();
            }
            37 | 38 => {
                let near = CpuId(below(CPUS as u64) as u16);
                got = shop.world.allocator().try_alloc(near, order, asked);
            }
            _ => {
                if let Some(block) = self.held.take_sound() {
                    shop.oracle.giving_back(block);
                    if shop.world.allocator().try_free(block.pfn, block.order).is_err() {
                        self.got(block);
                    }
                }
            }
        }
        got.into_iter().for_each(|pfn| self.got(Block { pfn, order }));
    }

    /// Calls for many blocks, or frames.
    fn many(&mut self, order: Order, asked: Migratetype) {
        match below(4) {
            0 => {
                let mut out = [Pfn(0); 12];
                let count = 1 + below(12) as usize;
                let got = self.cpu.alloc_bulk(order, asked, &mut out[..count]);
                out[..got].iter().for_each(|&pfn| self.got(Block { pfn, order }));
            }
            1 => {
                let (freed, kept): (Vec<_>, _) = core::mem::take(&mut self.held.blocks)
                    .into_iter()
                    .partition(|block| block.order == order && self.held.is_sound(block));
                self.held.blocks = kept;
                freed.iter().for_each(|&block| self.shop.oracle.giving_back(block));
                let freed: Vec<_> = freed.iter().map(|block| block.pfn).collect();
                self.cpu.free_bulk(order, &freed).expect("all are this thread's");
            }
            2 => {
                let mut out = [const { Pfn(0)..Pfn(0) }; 6];
                let runs = self.cpu.alloc_runs(self.shop.some_pages(), asked, &mut out);
                runs.iter().for_each(|run| self.got_range(run.clone()));
            }
            _ => self.free_some(),
        }
    }

    /// Calls that name a place: a block, a range, a split, a free that is wrong.
    fn of_a_place(&mut self, order: Order) {
        let Self { shop, cpu, .. } = *self;
        let (pfn, chosen) = (shop.frame(shop.pageblocks), self.held.choose());
        match (below(4), chosen.map(|at| self.held.blocks[at])) {
            (0, _) => {
                let pfn = pfn.block_start(order);
                if cpu.alloc_at(pfn, order).is_ok() {
                    self.got(Block { pfn, order });
                }
            }
            (1, _) => {
                let range = pfn..pfn.add(shop.some_pages());
                if cpu.alloc_contig_range(range.clone(), &shop.helpers()).is_ok() {
                    self.got_range(range);
                }
            }
            (2, Some(whole)) => {
                let to = self::order(below(u64::from(whole.order.get()) + 1) as u8);
                let parts = whole.order.pages() >> to.get();
                if parts <= 64 {
                    self.held.blocks.retain(|block| *block != whole);
                    shop.oracle.giving_back(whole);
                    // SAFETY: the block is this thread's.
                    #[expect(unsafe_code, reason = "who splits a block vouches for owning it")]
                    unsafe { cpu.split(whole.pfn, whole.order, to) }.expect("it is this thread's");
                    let parts = (0..parts).map(|n| whole.pfn.add(n << to.get()));
                    parts.for_each(|pfn| self.got(Block { pfn, order: to }));
                }
            }
            (_, Some(whole)) if whole.order != order => {
                cpu.free(whole.pfn, order).expect_err("it has another order");
            }
            (_, Some(whole)) if whole.order > Order::ZERO => {
                let middle = whole.pfn.add(whole.order.pages() / 2);
                cpu.free(middle, order).expect_err("no block starts there");
            }
            _ => {}
        }
    }

    /// Frames go bad, in this thread's blocks or anywhere, and good again.
    fn bad_frames(&mut self) {
        let Self { shop, cpu, .. } = *self;
        let is_first = |pfn| {
            !shop.movable().contains(&pfn) && shop.marked.lock().expect("no thread panicked").insert(pfn)
        };
        let chosen = self.held.choose().map(|at| self.held.blocks[at]);
        match (below(3), chosen) {
            (0, Some(block)) => {
                let pfn = block.pfn.add(below(block.order.pages()));
                if is_first(pfn) {
                    match cpu.hwpoison(pfn) {
                        Ok(Hwpoisoned::InUse { .. }) => self.held.doomed.push(pfn),
                        Err(HwpoisonError::NoWords) => {}
                        unexpected => panic!("{pfn:?} of {block:?}: {unexpected:?}"),
                    }
                }
            }
            (1, _) => {
                let pfn = shop.frame(shop.pageblocks);
                if is_first(pfn) && cpu.hwpoison(pfn) == Ok(Hwpoisoned::Withdrawn) {
                    shop.oracle.handed_out(Block { pfn, order: Order::ZERO });
                    self.held.bad.push(pfn);
                }
            }
            _ => {
                let repaired = self.held.bad.pop();
                repaired.into_iter().for_each(|pfn| self.repair(pfn));
            }
        }
    }
}

/// Nine threads together, under random schedules and under schedules with few priority changes.
fn run(config: Config) {
    run_in(config, 3, FEW, 1);
}

fn run_in(config: Config, pageblocks: u64, pages: u64, nodes: u16) {
    let steps = if full() { 60 } else { 24 };
    schedules(if full() { 1000 } else { 8 }, move || all_at_once(config, pageblocks, pages, nodes, steps));
}

fn all_at_once(config: Config, pageblocks: u64, pages: u64, nodes: u16, steps: u32) {
    let shop = Arc::new(Shop::new(config, pageblocks, pages, nodes));
    let workers: Vec<_> = (0..CPUS)
        .map(|cpu| {
            let shop = shop.clone();
            ::shuttle::thread::spawn(move || shop.work(cpu, steps))
        })
        .collect();
    shop.disturb(steps / 2);
    for worker in workers {
        worker.join().expect("the thread did not panic");
    }
    shop.close();
}

fn small(config: Config) -> Config {
    config.slots(16).fixed(4, 12).spins(3)
}

#[test]
fn nine_threads_lose_nothing() {
    run(small(Config::framewright()));
}

#[test]
fn nine_threads_lose_nothing_without_words() {
    run(small(with_engine(Engine::Compact)));
}

#[test]
fn nine_threads_lose_nothing_as_linux_does_it() {
    run(small(Config::linux_v6_1().but(|config| config.experiment.lock_kind = LockKind::Ticket)));
}

#[test]
fn nine_threads_lose_nothing_block_by_block() {
    run(small(with_engine(Engine::Linux).but(|config| config.experiment.pcp_rule = PcpRule::V5_4)));
}

#[test]
fn nine_threads_lose_nothing_in_two_sections() {
    for engine in [Engine::Framewright, Engine::Compact] {
        let config = small(with_engine(engine));
        run(config.sections(1024));
    }
}

/// Whole pageblocks, and blocks of them, under watermarks.
#[test]
fn nine_threads_lose_nothing_in_whole_pageblocks() {
    for engine in STORES {
        let config = with_engine(engine).slots(16).spins(3).with_marks();
        run_in(config.but(|config| config.free_reporting = true), 6, PAGEBLOCK_PAGES, 1);
    }
}

/// Two nodes, each with less than its CPUs want: they live on each other's memory, of which the last goes offline.
#[test]
fn nine_threads_lose_nothing_on_two_nodes() {
    for config in [small(Config::framewright()), small(Config::framewright().with_marks())] {
        run_in(config, 3, FEW, 2);
    }
}
