//! Random small worlds in which calls name memory by its place: it comes and goes in parts, fails, is initialised late,
//! is reported, isolated and moved. A model of each frame foretells which of these calls succeed, and what is counted.

use core::cell::RefCell;
use core::ops::Range;
use std::collections::BTreeSet;

use framewright::boot::deferred::{UnitStep, Worker};
use framewright_check::prelude::*;

/// Frames that worlds span, from [`BASE`] on.
const SPAN: u64 = 8 * 1024;
const CPUS: usize = 3;

/// Where a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// In no zone, never added, or offline.
    Absent,
    /// Left for later by boot.
    Later,
    /// The allocator's.
    Online,
}

/// What is known of all frames. Also the owner of all blocks, which moves most of them when it is asked to.
struct Books {
    frames: Vec<At>,
    oracle: Oracle,
    live: Vec<Block>,
    random: fastrand::Rng,
}

impl Books {
    fn at(&self, pfn: u64) -> At {
        self.frames.get(pfn.wrapping_sub(BASE.0) as usize).copied().unwrap_or(At::Absent)
    }

    fn set(&mut self, range: &Range<u64>, at: At) {
        self.frames[(range.start - BASE.0) as usize..(range.end - BASE.0) as usize].fill(at);
    }

    fn count(&self, range: Range<u64>, at: At) -> u64 {
        range.filter(|&pfn| self.at(pfn) == at).count() as u64
    }

    fn own(&mut self, block: Block) {
        self.oracle.handed_out(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        self.live.push(block);
    }

    fn disown(&mut self, block: Block) {
        self.oracle.took_back(block).unwrap_or_else(|breach| panic!("{breach:?}"));
        let found = self.live.iter().position(|live| *live == block);
        self.live.swap_remove(found.expect("the oracle has it, too"));
    }

    fn choose(&mut self) -> Option<Block> {
        (!self.live.is_empty()).then(|| self.live[self.random.usize(0..self.live.len())])
    }
}

struct Owner(RefCell<Books>);

#[expect(unsafe_code, reason = "a mover vouches for what it moves")]
// SAFETY: no memory is behind the frames of a world.
unsafe impl Migrate for Owner {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let mut books = self.0.borrow_mut();
        if books.random.u32(0..8) == 0 {
            return Migrated::Stays;
        }
        books.disown(Block { pfn: from, order });
        books.own(Block { pfn: to, order });
        Migrated::Moved
    }
}

struct Drive<'w> {
    seed: u64,
    world: &'w World<Plain>,
    owner: Owner,
    worker: Option<Worker<'w, 'w, Plain>>,
    isolated: BTreeSet<u64>,
    random: fastrand::Rng,
    calls: Vec<String>,
}

impl Drop for Drive<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}: {:#?}", self.seed, self.world.spec());
            self.calls.iter().rev().take(60).rev().for_each(|call| eprintln!("{call}"));
        }
    }
}

const fn start_of(pfn: u64) -> u64 {
    pfn / PAGEBLOCK_PAGES * PAGEBLOCK_PAGES
}

fn pageblocks(range: Range<u64>) -> impl Iterator<Item = u64> {
    (start_of(range.start)..range.end).step_by(PAGEBLOCK_PAGES as usize)
}

impl<'w> Drive<'w> {
    /// A frame of any kind, at a border of a pageblock or a large block more often than not.
    fn frame(&mut self) -> u64 {
        let near = [1, 1, 8, 64, 512, 512, 1024][self.random.usize(0..7)];
        BASE.0 + self.random.u64(0..SPAN) / near * near
    }

    fn order(&mut self) -> Order {
        order([0, 0, 0, 1, 2, 3, 5, 8, 9, 9, 10][self.random.usize(0..11)])
    }

    fn zone_of(&self, pfn: u64) -> Option<ZoneSpec> {
        self.world.allocator().zones().iter().map(|zone| *zone.spec()).find(|zone| zone.spans(Pfn(pfn)))
    }

    fn step(&mut self) {
        let (cpu, world) = (self.random.usize(0..CPUS), self.world);
        match self.random.u32(0..34) {
            0..7 => {
                let (order, asked) = (self.order(), ORDINARY[self.random.usize(0..3)]);
                let got = world.on(cpu, |cpu| cpu.alloc(order, asked));
                self.own_if_got(got.ok().map(|pfn| Block { pfn, order }));
            }
            7..13 => {
                let Some(block) = self.owner.0.get_mut().choose() else { return };
                self.calls.push(format!("free {block:?} on {cpu}"));
                world.must_free(cpu, block.pfn, block.order);
                self.owner.0.get_mut().disown(block);
            }
            13 => self.split(cpu),
            14 => {
                let (order, pfn) = (self.order(), self.frame());
                let pfn = Pfn(pfn).block_start(order);
                let got = world.on(cpu, |cpu| cpu.alloc_at(pfn, order));
                self.own_if_got(got.ok().map(|()| Block { pfn, order }));
            }
            15..18 => self.contig(cpu),
            18..21 => self.offline(cpu),
            21..24 => self.add(),
            24..26 => self.hwpoison(cpu),
            26 => self.unpoison(cpu),
            27 => self.report(cpu),
            28 => self.boot(),
            29..33 => self.change_type(),
            _ => self.compact(cpu),
        }
    }

    #[expect(unsafe_code, reason = "the caller of split vouches for owning the block")]
    fn split(&mut self, cpu: usize) {
        let Some(Block { pfn, order: from }) = self.owner.0.get_mut().choose() else { return };
        let to = self.order().min(from);
        self.calls.push(format!("split {pfn:?} {from} to {to}"));
        // SAFETY: it is this test's, and no other thread is at work.
        self.world.on(cpu, |cpu| unsafe { cpu.split(pfn, from, to) }).expect("it is allocated");
        let books = self.owner.0.get_mut();
        books.disown(Block { pfn, order: from });
        let parts =
            (0..1 << (from.get() - to.get())).map(|n| Block { pfn: pfn.add(n << to.get()), order: to });
        books.oracle.kept(parts.clone());
        books.live.extend(parts);
    }

    fn report(&mut self, cpu: usize) {
        let (order, refuses) = (self.order(), self.random.u32(0..4) == 0);
        self.calls.push(format!("report {order}, refuses {refuses}"));
        let check = |blocks: &[(Pfn, Order)]| {
            let books = self.owner.0.borrow();
            for &(pfn, order) in blocks {
                assert_eq!(books.oracle.owner_within(Block { pfn, order }), None, "{pfn:?} is in use");
                let bad = books.oracle.bad().find(|bad| pfn <= *bad && *bad < pfn.add(order.pages()));
                assert_eq!(bad, None, "a bad frame is reported");
            }
            !refuses
        };
        self.world.on(cpu, |cpu| cpu.report_free(order, check));
    }

    fn change_type(&mut self) {
        let (allocator, at) = (self.world.allocator(), start_of(self.frame()));
        match self.random.u32(0..4) {
            0 => {
                let done = allocator.isolate_pageblock(Pfn(at));
                self.calls.push(format!("isolate {at:#x}: {done:?}"));
                if done.is_some() {
                    self.isolated.insert(at);
                }
            }
            1 => {
                let to = Migratetype::ALL[self.random.usize(0..Migratetype::ALL.len())];
                let done = allocator.set_pageblock_type(Pfn(at), to);
                self.calls.push(format!("retype {at:#x} {to}: {done:?}"));
            }
            _ => {
                let at = self.isolated.first().copied().unwrap_or(at);
                let done = allocator.unisolate_pageblock(Pfn(at));
                self.calls.push(format!("unisolate {at:#x}: {done:?}"));
                assert_eq!(done.is_some(), self.isolated.remove(&at));
            }
        }
    }

    fn compact(&mut self, cpu: usize) {
        let (world, way) = (self.world, self.random.u32(0..4));
        self.calls.push(format!("compaction or drain {way}"));
        match way {
            0 => drop(world.on(cpu, |cpu| cpu.compact_proactively(NodeId(0), &self.owner))),
            1 => drop(world.on(cpu, |cpu| cpu.compact(ZoneId(0), &self.owner))),
            2 => world.on(cpu, |cpu| cpu.drain()),
            _ => {
                let mut out = vec![(Pfn(0), Order::ZERO); 20];
                let (at, least) = (Pfn(self.frame()), self.order());
                let got = world.on(cpu, |cpu| cpu.take_free(at, least, &mut out));
                out[..got].iter().for_each(|&(pfn, order)| self.own_if_got(Some(Block { pfn, order })));
            }
        }
    }

    fn own_if_got(&mut self, got: Option<Block>) {
        if let Some(block) = got {
            self.calls.push(format!("got {block:?}"));
            self.owner.0.get_mut().own(block);
        }
    }

    fn contig(&mut self, cpu: usize) {
        let world = self.world;
        let most = [5, 600, 1600][self.random.usize(0..3)];
        let (start, pages) = (self.frame(), 1 + self.random.u64(0..most));
        let moves = self.random.bool();
        self.calls.push(format!("contig {start:#x} {pages}, moves {moves}"));
        let helpers = if moves { Helpers::NONE.with_migrate(&self.owner) } else { Helpers::NONE };
        let got = if self.random.u32(0..4) == 0 {
            let got = world.on(cpu, |cpu| cpu.alloc_contig_with(pages, 1, M, &helpers));
            got.map_err(|error| error.to_string())
        } else {
            let range = Pfn(start)..Pfn(start + pages);
            let got = world.on(cpu, |cpu| cpu.alloc_contig_range(range.clone(), &helpers));
            got.map(|()| range).map_err(|error| error.to_string())
        };
        let seen = format!("{got:?}");
        self.calls.push(seen);
        if let Ok(range) = got {
            Block::tiles(range).for_each(|block| self.own_if_got(Some(block)));
        }
    }

    fn offline(&mut self, cpu: usize) {
        let (world, start) = (self.world, start_of(self.frame()));
        let Some(zone) = self.zone_of(start) else { return };
        let end = (start + PAGEBLOCK_PAGES * self.random.u64(1..5)).min(zone.end().0);
        self.world.drain_all();
        // A range that is offline may have been initialised for that.
        let left = world.allocator().deferred().map_or(0, |deferred| {
            let n = world
                .allocator()
                .zones()
                .iter()
                .position(|listed| *listed.spec() == zone)
                .expect("it is one");
            deferred.zones()[n].left()
        });
        self.look_at_later();
        let books = self.owner.0.get_mut();
        let present = |books: &Books, at: u64| books.count(at..at + PAGEBLOCK_PAGES, At::Online) > 0;
        let all: Vec<_> = pageblocks(start..end).filter(|&at| present(books, at)).collect();
        let is_whole = |at: u64| {
            let end = (at + PAGEBLOCK_PAGES).min(end);
            books.count(at..end, At::Online) == end - at
                && (at..end).all(|pfn| books.oracle.owner_of(Pfn(pfn)).is_none())
                && !self.isolated.contains(&at)
        };
        let expected = left == 0 && !all.is_empty() && all.iter().all(|&at| is_whole(at));
        let gone = world.on(cpu, |cpu| cpu.offline(Pfn(start)..Pfn(end)));
        self.calls.push(format!("offline {start:#x}..{end:#x}: {gone:?}"));
        let books = self.owner.0.get_mut();
        match gone {
            Err(error) => assert!(!expected, "{error}"),
            Ok(pages) => {
                assert!(expected, "it is in use");
                let mut sum = 0;
                for at in all {
                    let range = at..(at + PAGEBLOCK_PAGES).min(end);
                    sum += range.end - range.start;
                    books.oracle.went_offline(Pfn(at), range.end - at).expect("it has no owner");
                    books.set(&range, At::Absent);
                    if world.spec().config.engine == Engine::Linux {
                        let gone: Vec<_> = books.oracle.bad().filter(|pfn| range.contains(&pfn.0)).collect();
                        gone.into_iter().for_each(|pfn| books.oracle.became_good(pfn));
                    }
                }
                assert_eq!(pages, sum);
            }
        }
    }

    fn add(&mut self) {
        let world = self.world;
        let books = self.owner.0.get_mut();
        let absent: Vec<_> = (BASE.0..BASE.0 + SPAN).filter(|&pfn| books.at(pfn) == At::Absent).collect();
        let (mut start, pages) =
            (self.frame(), [1, 3, 188, 512, 512, 700, 1024, 2048][self.random.usize(0..8)]);
        if !absent.is_empty() && self.random.u32(0..4) > 0 {
            start = absent[self.random.usize(0..absent.len())];
            start = if self.random.bool() { start_of(start) } else { start };
        }
        let pages = match (self.random.u32(0..3), self.zone_of(start)) {
            (0, Some(zone)) => (start_of(start) + PAGEBLOCK_PAGES).min(zone.end().0) - start,
            _ => pages,
        };
        self.look_at_later();
        let range = start..start + pages;
        let fits = self.zone_of(start).is_some_and(|zone| range.end <= zone.end().0);
        let books = self.owner.0.get_mut();
        let has_later = |at: u64| {
            let block = at..at + PAGEBLOCK_PAGES;
            books.count(block.clone(), At::Later) > 0 && books.count(block, At::Online) == 0
        };
        let expected = fits
            && books.count(range.clone(), At::Absent) == pages
            && !pageblocks(range.clone()).any(has_later);
        let onlines = self.random.bool();
        let added = match onlines {
            true => world.allocator().online(Pfn(start), pages),
            false => world.allocator().add_memory(Pfn(start), pages),
        };
        self.calls.push(format!("add {start:#x} {pages}: {added:?}"));
        assert_eq!(added.is_ok(), expected, "{added:?}");
        if added.is_ok() {
            books.set(&range, At::Online);
            books.oracle.came_online(Pfn(start), pages);
        }
    }

    fn hwpoison(&mut self, cpu: usize) {
        let (world, pfn) = (self.world, self.frame() + self.random.u64(0..3));
        if self.random.u32(0..3) > 0 {
            self.world.drain_all();
        }
        self.look_at_later();
        let found = world.on(cpu, |cpu| cpu.hwpoison(Pfn(pfn)));
        self.calls.push(format!("hwpoison {pfn:#x}: {found:?}"));
        if let Ok(Hwpoisoned::Listed(_)) = found {
            self.world.drain_all();
        }
        let books = self.owner.0.get_mut();
        let is_known = books.oracle.bad().any(|bad| bad.0 == pfn);
        let is_compact = world.spec().config.engine == Engine::Compact;
        let expected = match books.at(pfn) {
            // Of a frame in a pageblock that has others, only a word says that it was never added.
            _ if is_compact && found == Err(HwpoisonError::NoWords) => found.map(|_| None),
            At::Absent => Err(HwpoisonError::Foreign),
            At::Later => Err(HwpoisonError::NotReady),
            At::Online if is_known => Err(HwpoisonError::Already),
            At::Online => Ok(books.oracle.owner_of(Pfn(pfn)).map(|block| (block.pfn, block.order))),
        };
        let seen = found.map(|found| match found {
            Hwpoisoned::InUse { pfn, order } => Some((pfn, order)),
            Hwpoisoned::Withdrawn | Hwpoisoned::Listed(_) => None,
        });
        assert_eq!(seen, expected, "{pfn:#x}");
        if found.is_ok() {
            books.oracle.went_bad(Pfn(pfn));
        }
    }

    fn unpoison(&mut self, cpu: usize) {
        let world = self.world;
        let books = self.owner.0.get_mut();
        let bad: Vec<_> = books.oracle.bad().collect();
        if bad.is_empty() {
            return;
        }
        let pfn = bad[self.random.usize(0..bad.len())];
        let found = world.on(cpu, |cpu| cpu.unpoison(pfn));
        self.calls.push(format!("unpoison {pfn:?}: {found:?}"));
        let is_there = books.at(pfn.0) == At::Online;
        assert_eq!(found, if is_there { Ok(()) } else { Err(HwpoisonError::Foreign) });
        if is_there {
            books.oracle.became_good(pfn);
        }
    }

    fn boot(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        let step = worker.steps(1 + self.random.u64(0..2));
        self.calls.push(format!("{step:?}"));
        if let UnitStep::Idle = step {
            worker.move_to(NodeId(self.random.u16(0..2)));
        }
    }

    /// Memory that boot left for later may have been initialised by a request: a pageblock that has any is, all of it.
    fn look_at_later(&mut self) {
        let books = self.owner.0.get_mut();
        for pfn in BASE.0..BASE.0 + SPAN {
            if books.at(pfn) == At::Later && self.world.allocator().frames().contains(Pfn(pfn)) {
                books.set(&(pfn..pfn + 1), At::Online);
            }
        }
    }

    fn check(&mut self) {
        self.look_at_later();
        let (world, isolated) = (self.world, self.isolated.len() as u64);
        let account = world.settled();
        let allocator = world.allocator();
        let books = self.owner.0.get_mut();
        let online = |range: Range<u64>| books.count(range, At::Online);
        let all = BASE.0..BASE.0 + SPAN;
        assert_eq!(account.allocated, books.oracle.pages_owned(), "{account:?}");
        let rest = account.free + account.on_pcp + account.quarantined;
        assert_eq!(rest + account.allocated, online(all), "{account:?}");
        let bad: Vec<_> = books.oracle.bad().filter(|pfn| books.at(pfn.0) == At::Online).collect();
        assert_eq!(allocator.hwpoisoned_pages(), bad.len() as u64);
        let out = bad.iter().filter(|pfn| books.oracle.owner_of(**pfn).is_none()).count();
        assert_eq!(account.quarantined, out as u64);
        let mut seen = 0;
        for zone in allocator.zones() {
            let spec = zone.spec();
            assert_eq!(zone.managed_pages(), online(spec.start.0..spec.end().0), "{spec:?}");
            seen += allocator.zone_snapshot(zone).isolated_pageblocks;
        }
        assert_eq!(seen, isolated, "isolated pageblocks");
    }

    /// Everything goes back, and all that is good can be had.
    fn end(mut self) {
        let world = self.world;
        while let Some(&at) = self.isolated.first() {
            world.allocator().unisolate_pageblock(Pfn(at)).expect("it is isolated");
            self.isolated.remove(&at);
        }
        while let Some(&block) = self.owner.0.get_mut().live.last() {
            world.must_free(0, block.pfn, block.order);
            self.owner.0.get_mut().disown(block);
        }
        self.world.drain_all();
        self.check();
        for pfn in pageblocks(BASE.0..BASE.0 + SPAN) {
            world.allocator().set_pageblock_type(Pfn(pfn), M);
        }
        if let Some(mut worker) = self.worker.take() {
            for node in 0..2 {
                worker.move_to(NodeId(node));
                worker.run();
            }
        }
        self.check();
        let all: BTreeSet<_> = world.everything().into_iter().map(|pfn| pfn.0).collect();
        self.check();
        let books = self.owner.0.get_mut();
        assert_eq!(
            books.count(BASE.0..BASE.0 + SPAN, At::Later),
            0,
            "requests did not initialise all memory"
        );
        let bad: BTreeSet<_> = books.oracle.bad().map(|pfn| pfn.0).collect();
        let good = |pfn: &u64| books.at(*pfn) == At::Online && !bad.contains(pfn);
        assert!(all.into_iter().eq((BASE.0..BASE.0 + SPAN).filter(good)), "not all memory can be had");
    }
}

fn spec(random: &mut fastrand::Rng, engine: Engine) -> Spec {
    let mut config = with_engine(engine).spins(1);
    config.free_reporting = random.bool();
    config.lazy_pageblocks = random.bool();
    config.page_kib = [4, 16, 64][random.usize(0..3)];
    config.experiment.section_pages = [0, 1024, 2048][random.usize(0..3)];
    config.experiment.pcp_orders =
        [PcpOrders::None, PcpOrders::UpToCostlyAndHuge, PcpOrders::UpToHuge][random.usize(0..3)];
    config.experiment.heads_in_pageblocks = random.bool();
    if random.bool() {
        config = config.fixed(4, 12);
    }
    let kinds = [ZoneType::Dma32, ZoneType::Normal, ZoneType::Movable];
    let (mut zones, mut start) = (Vec::new(), 0);
    for n in 0..1 + random.u16(0..3) {
        let pages = 1 + random.u64(0..3500);
        let pages = if random.bool() { pages.next_multiple_of(512) } else { pages };
        if start + pages > SPAN {
            break;
        }
        zones.push(zone(n % 2, kinds[usize::from(n)], BASE.0 + start, pages));
        start = (start + pages + 1024 * random.u64(0..2)).next_multiple_of(1024);
    }
    let mut pieces = |zone: &ZoneSpec| {
        let (mut all, mut at) = (Vec::new(), zone.start.0);
        while at < zone.end().0 {
            let mut piece = |near: u64| (1 + random.u64(0..1500)).next_multiple_of(near);
            let near = if zone.pages.is_multiple_of(2) { 512 } else { 1 };
            let end = (at + 2 * piece(near)).min(zone.end().0);
            all.push((Pfn(at), end - at));
            at = end + if zone.pages.is_multiple_of(3) { 0 } else { piece(near) };
        }
        all
    };
    let nodes = [NodeId(0), NodeId(1), NodeId(0)];
    let memory: Vec<_> = zones.iter().map(&mut pieces).collect();
    if random.u32(0..3) > 0 {
        let memory: Vec<_> = memory.into_iter().flatten().collect();
        return Spec::zones(zones, CPUS).config(config).cpu_nodes(nodes).memory(memory);
    }
    let rests: Vec<_> = zones
        .iter()
        .zip(memory)
        .map(|(&spec, ranges)| {
            let from = (spec.start.0 + 1024 * random.u64(0..4)).min(spec.end().0);
            let free: Vec<_> = ranges.iter().map(|&(start, pages)| start..start.add(pages)).collect();
            RestSpec { spec, present: spec.pages, free, deferred_from: Pfn(from), cpus: 2 }
        })
        .collect();
    let how = How {
        split: [Split::OneThread, Split::AllCpus, Split::AllCpusBySection][random.usize(0..3)],
        section: 1024,
    };
    Spec::deferred(how, rests, 2, CPUS).cpu_nodes(nodes).config(config)
}

/// A world, as a model of each frame foretells it.
#[test]
fn what_comes_goes_fails_and_moves_is_accounted_for() {
    let seeds = match () {
        () if full() => 2000,
        () if quick() => 4,
        () => 25,
    };
    for seed in 0..seeds {
        for engine in [Engine::Framewright, Engine::Linux, Engine::Compact] {
            let mut random = fastrand::Rng::with_seed(seed);
            let spec = spec(&mut random, engine);
            let world = if random.bool() { spec.plain() } else { spec.build_to_clear(|_| ()) };
            play(seed, &world, random);
        }
    }
}

fn play(seed: u64, world: &World<Plain>, mut random: fastrand::Rng) {
    let spec = world.spec();
    let mut books = Books {
        frames: vec![At::Absent; SPAN as usize],
        oracle: spec.oracle(),
        live: Vec::new(),
        random: random.fork(),
    };
    let booting = world.allocator().begin();
    let at = if booting.is_some() { At::Later } else { At::Online };
    for &(start, pages) in &spec.memory {
        books.set(&(start.0..start.0 + pages), at);
    }
    // No worker at all, or one that may stop anywhere.
    let worker = booting.and_then(|booting| match random.bool() {
        true => {
            booting.stay_lazy();
            None
        }
        false => booting.worker(NodeId(0)),
    });
    let calls = Vec::new();
    let mut drive = Drive {
        seed,
        world,
        owner: Owner(RefCell::new(books)),
        worker,
        isolated: BTreeSet::new(),
        random,
        calls,
    };
    drive.check();
    for _ in 0..250 {
        drive.step();
        drive.check();
    }
    drive.end();
}
