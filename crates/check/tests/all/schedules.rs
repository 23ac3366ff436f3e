//! One kind of race at a time, between eight CPUs. shuttle: random schedules, and schedules with few priority changes.
//! loom keeps one last access per word and thread, so it does not see every conflict of a load followed by an exchange:
//! what requests and zone flags do is checked here, too.

mod places;
mod races;

use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use ::shuttle::sync::Mutex;
use framewright_check::platform::shuttle;
use framewright_check::prelude::*;

const CPUS: usize = 8;

/// One zone, of the CPUs' node or of another one.
fn somewhere(pages: u64, cpus: usize) -> Spec {
    Spec::one_zone(pages, cpus).away(thread_rng().gen_bool(0.5))
}

fn config() -> Config {
    few_pages(16, 4, 12, 3)
}

fn config_of(engine: Engine) -> Config {
    config().engine(engine)
}

/// Runs `body(shared, n)` on threads `0..CPUS` together, then `after(shared)`; under both kinds of schedule.
fn at_once<T: Send + Sync + 'static>(
    executions: usize,
    begin: impl Fn() -> T + Copy + Send + Sync + 'static,
    body: impl Fn(&T, usize) + Copy + Send + Sync + 'static,
    after: impl Fn(&T) + Copy + Send + Sync + 'static,
) {
    let run = move || {
        let shared = Arc::new(begin());
        shuttle_team(&shared, CPUS, body);
        after(&shared);
    };
    let executions = if full() { 100 * executions } else { executions };
    schedules(executions, run);
}

fn alloc(world: &World<Shuttle>, cpu: usize) -> Option<Pfn> {
    world.on(cpu, |cpu| cpu.alloc(Order::ZERO, M)).ok()
}

fn free(world: &World<Shuttle>, cpu: usize, pfn: Pfn) -> bool {
    world.on(cpu, |cpu| cpu.free(pfn, Order::ZERO)).is_ok()
}

/// One CPU works on its lists while seven ask it for pages and for other sizes. What was asked last is done, and after
/// it every list that has blocks is hit again.
#[test]
fn what_is_asked_is_done_and_hits_go_on() {
    at_once(
        100,
        || Spec::one_zone(64, CPUS).config(config()).build::<Shuttle>(),
        |world, n| match n {
            0 => {
                for _ in 0..6 {
                    let pfn = alloc(world, 0).expect("memory is left");
                    assert!(free(world, 0, pfn));
                }
            }
            1..4 => world.allocator().request_drain(),
            _ => {
                let high = 10 + n as u32;
                world
                    .allocator()
                    .resize_pcps_of(ZoneId(0), Sizing { batch: 4, high_min: high, high_max: high });
            }
        },
        |world| {
            let pcp = world.pcp(0);
            // The first of these frees answers, and may drain what it frees.
            for _ in 0..2 {
                let pfn = alloc(world, 0).expect("memory is left");
                assert!(free(world, 0, pfn));
            }
            assert_eq!(pcp.high(), pcp.sizing().high_min, "a size was lost");
            let events = pcp.events();
            for _ in 0..3 {
                let hit = world.on(0, |cpu| cpu.alloc_hit(Order::ZERO, M));
                assert!(free(world, 0, hit.expect("the block that was just freed")));
            }
            assert_eq!(pcp.events(), events);
            world.settled();
        },
    );
}

/// The count of a CPU's lists is read by others while it moves their ends, in two looks. It is never less than nothing,
/// nor more than the lists have room for.
#[test]
fn others_count_what_lists_can_hold() {
    let run = || {
        let world = Arc::new(somewhere(64, 3).config(config()).build::<Shuttle>());
        // Each ends with its drain, so that a schedule with two changes lets one pass between the two looks.
        let owner = |n| {
            let world = world.clone();
            ::shuttle::thread::spawn(move || {
                let pages = [(); 4].map(|()| alloc(&world, n).expect("memory is left"));
                pages.into_iter().for_each(|pfn| assert!(free(&world, n, pfn)));
                world.on(n, |cpu| cpu.drain());
            })
        };
        let owners = [owner(0), owner(1)];
        let request = Request::new(order(6), M);
        for _ in 0..4 {
            for _ in 0..8 {
                for cpu in [CpuId(0), CpuId(1)] {
                    let count = world.allocator().pcp(ZoneId(0), cpu).count();
                    assert!(count <= 3 * 16, "{count} pages on three lists of 16");
                }
            }
            let check = |kind: &Shortfall| assert!(kind.on_other_cpus <= 2 * 3 * 16, "{kind:?}");
            world.on(2, |cpu| cpu.explain(&request, &Helpers::NONE, check));
        }
        owners.into_iter().for_each(|owner| owner.join().expect("the thread did not panic"));
        world.settled();
    };
    schedules(if full() { 20_000 } else { 300 }, run);
}

/// Two CPUs free each of some blocks, and neither is the one on whose list it last sat; others drain what they got.
/// Each block is freed once.
#[test]
fn of_two_frees_one_is_refused() {
    FORMS.into_iter().for_each(|form| two_frees(form, 64));
}

/// Likewise where a free sets the block aside: most of their pageblock is free.
#[test]
fn of_two_frees_one_sets_the_block_aside() {
    FORMS.into_iter().for_each(|form| two_frees(form, PAGEBLOCK_PAGES));
}

fn two_frees(form: Engine, pages: u64) {
    struct Shared {
        world: World<Shuttle>,
        blocks: Vec<Pfn>,
        freed: Vec<AtomicU64>,
    }
    const BLOCKS: usize = 6;
    at_once(
        100,
        move || {
            let world = somewhere(pages, CPUS).config(config_of(form)).build::<Shuttle>();
            let blocks: Vec<_> = (0..BLOCKS).map(|n| alloc(&world, n % 2).expect("memory is left")).collect();
            Shared { world, blocks, freed: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect() }
        },
        |Shared { world, blocks, freed }, n| match n {
            // The lists on which the blocks last sat.
            0 | 1 => (0..3).for_each(|_| world.on(n, |cpu| cpu.drain())),
            _ => {
                for (block, &pfn) in blocks.iter().enumerate().filter(|(block, _)| block % 3 == (n - 2) % 3) {
                    freed[block].fetch_add(u64::from(free(world, n, pfn)), Relaxed);
                    if thread_rng().gen_bool(0.3) {
                        world.on(n, |cpu| cpu.drain());
                    }
                }
            }
        },
        |Shared { world, freed, .. }| {
            let freed: Vec<_> = freed.iter().map(|n| n.load(Relaxed)).collect();
            assert_eq!(freed, [1; BLOCKS], "times that each block was taken back");
            assert_eq!(world.settled().allocated, 0);
        },
    );
}

/// One CPU gives back what it has set aside, asked for it or not; the others free these blocks. All are refused.
#[test]
fn blocks_set_aside_are_refused() {
    FORMS.into_iter().for_each(in_blocks);
}

fn in_blocks(form: Engine) {
    at_once(
        60,
        move || {
            let world = somewhere(2 * PAGEBLOCK_PAGES, CPUS).config(config_of(form)).build::<Shuttle>();
            let blocks: Vec<_> = (0..4).map(|_| alloc(&world, 0).expect("memory is left")).collect();
            world.fill_elsewhere(0, 8);
            let events = world.pcp(0).events();
            assert!(blocks[..3].iter().all(|&pfn| free(&world, 0, pfn)));
            let pcp = world.pcp(0);
            assert_eq!((pcp.count(), pcp.events()), (3, events), "three blocks wait");
            assert_eq!(world.on(0, |cpu| cpu.alloc_hit(Order::ZERO, M)), None, "not to be handed out");
            (world, blocks)
        },
        |(world, blocks), n| match n {
            0 => {
                world.on(0, |cpu| cpu.answer());
                world.on(0, |cpu| cpu.drain());
            }
            1 => world.allocator().request_drain(),
            _ => {
                for _ in 0..3 {
                    let pfn = blocks[n % 3];
                    assert!(!free(world, n, pfn), "{pfn:?} was handed to no CPU");
                }
            }
        },
        |(world, _)| {
            assert_eq!(world.settled().allocated, 9);
            assert_eq!(world.allocator().free_pages(), 2 * PAGEBLOCK_PAGES - 9);
        },
    );
}

/// One CPU makes rounds of background compaction; the others allocate and free, and each block is where its owner has
/// it.
#[test]
fn rounds_of_compaction_against_frees() {
    struct Shared {
        world: World<Shuttle>,
        oracle: SharedOracle,
        /// Place of each owner's block. The CPU that frees a block takes it out first.
        blocks: Mutex<Vec<(usize, Pfn)>>,
    }
    // SAFETY: nothing is behind these frames, and the lock is held while a block moves.
    #[expect(unsafe_code, reason = "see above")]
    unsafe impl Migrate for Shared {
        unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
            let mut blocks = self.blocks.lock().expect("no thread panicked");
            let Some(block) = blocks.iter_mut().find(|(_, pfn)| *pfn == from) else { return Migrated::Stays };
            block.1 = to;
            self.oracle.giving_back(Block { pfn: from, order });
            self.oracle.handed_out(Block { pfn: to, order });
            MOVED.fetch_add(1, Relaxed);
            Migrated::Moved
        }
    }
    static MOVED: AtomicU64 = AtomicU64::new(0);
    at_once(
        20,
        || {
            const PAGES: u64 = 3 * PAGEBLOCK_PAGES;
            let config = config().but(|config| config.compaction_proactiveness = 100);
            let world = somewhere(PAGES, CPUS).config(config).build();
            let oracle = SharedOracle::new(BASE, PAGES);
            let mut blocks = Vec::new();
            // One pageblock is nearly full, one nearly free.
            let all: Vec<Pfn> =
                (0..PAGEBLOCK_PAGES + 8).map(|_| alloc(&world, 0).expect("memory is left")).collect();
            for (n, pfn) in (0..).zip(all) {
                if n % 32 == 0 || n >= PAGEBLOCK_PAGES {
                    oracle.handed_out(Block { pfn, order: Order::ZERO });
                    blocks.push((1 + n as usize / 32 % 7, pfn));
                } else if n % 8 == 1 {
                    assert!(free(&world, 0, pfn));
                }
            }
            world.on(0, |cpu| cpu.drain());
            // The other pages of the first pageblock stay allocated.
            Shared { world, oracle, blocks: Mutex::new(blocks) }
        },
        |shared, n| {
            let Shared { world, oracle, blocks } = shared;
            for _ in 0..3 {
                if n == 0 {
                    world.on(n, |cpu| cpu.compact_proactively(NodeId(0), shared));
                    continue;
                }
                let mut all = blocks.lock().expect("no thread panicked");
                let block = all.iter().position(|&(owner, _)| owner == n).map(|at| all.swap_remove(at).1);
                drop(all);
                if let Some(pfn) = block {
                    oracle.giving_back(Block { pfn, order: Order::ZERO });
                    assert!(free(world, n, pfn), "a right free was refused");
                }
                if let Some(pfn) = alloc(world, n) {
                    oracle.handed_out(Block { pfn, order: Order::ZERO });
                    blocks.lock().expect("no thread panicked").push((n, pfn));
                }
            }
        },
        |Shared { world, oracle, blocks }| {
            let nobodys = PAGEBLOCK_PAGES - PAGEBLOCK_PAGES / 32 - PAGEBLOCK_PAGES / 8;
            assert_eq!(world.settled().allocated, oracle.pages_owned() + nobodys);
            assert_eq!(blocks.lock().expect("no thread panicked").len() as u64, oracle.pages_owned());
        },
    );
    assert!(MOVED.load(Relaxed) > 0, "no schedule moved anything");
}

/// One CPU takes a pageblock offline and online again and again; the others allocate and free. No frame of it has an
/// owner while it is offline.
#[test]
fn offline_against_frees() {
    FORMS.into_iter().for_each(in_offline);
}

fn in_offline(form: Engine) {
    struct Shared {
        world: World<Shuttle>,
        offline: AtomicBool,
    }
    static TIMES: AtomicU64 = AtomicU64::new(0);
    at_once(
        30,
        move || Shared {
            world: somewhere(2 * PAGEBLOCK_PAGES, CPUS).config(config_of(form)).build(),
            offline: AtomicBool::new(false),
        },
        |Shared { world, offline }, n| {
            let there = BASE..BASE.add(PAGEBLOCK_PAGES);
            if n > 0 {
                for _ in 0..4 {
                    let pfn = alloc(world, n).expect("a pageblock is left");
                    assert!(!there.contains(&pfn) || !offline.load(SeqCst), "{pfn:?} is offline");
                    assert!(free(world, n, pfn), "a right free was refused");
                }
                return;
            }
            for _ in 0..4 {
                if world.on(0, |cpu| cpu.offline(there.clone())) == Ok(PAGEBLOCK_PAGES) {
                    TIMES.fetch_add(1, Relaxed);
                    offline.store(true, SeqCst);
                    assert!(!free(world, 0, BASE), "it is offline");
                    offline.store(false, SeqCst);
                    world.allocator().online(BASE, PAGEBLOCK_PAGES).expect("it went offline");
                }
            }
        },
        |Shared { world, .. }| {
            let account = world.settled();
            assert_eq!((account.allocated, account.free + account.on_pcp), (0, 2 * PAGEBLOCK_PAGES));
        },
    );
    assert!(TIMES.load(Relaxed) > 0, "it never went offline");
}

/// One CPU adds frames that were added long ago, in a pageblock that is complete or not; the others allocate and free
/// them. With compact metadata no word tells a frame on its way between a list and a caller from one never added.
#[test]
fn what_was_added_is_not_added_again_while_it_is_in_use() {
    for (form, pages) in FORMS.into_iter().flat_map(|form| [(form, 6), (form, PAGEBLOCK_PAGES)]) {
        at_once(
            60,
            move || somewhere(PAGEBLOCK_PAGES, CPUS).config(config_of(form)).memory([(BASE, pages)]).build(),
            move |world: &World<Shuttle>, n| {
                for step in 0..6 {
                    if n > 0 {
                        let Some(pfn) = alloc(world, n) else { continue };
                        assert!(free(world, n, pfn), "a right free was refused");
                    } else {
                        let pfn = BASE.add(step % pages);
                        assert_eq!(world.allocator().add_memory(pfn, 1), Err(SetupError::RangeInUse(pfn)));
                    }
                }
            },
            move |world| {
                let account = world.settled();
                assert_eq!((account.allocated, account.free + account.on_pcp), (0, pages));
            },
        );
    }
}

/// Two CPUs, which want different types, find nothing but one pageblock that is reserved for high orders. One of them
/// gives it to its own type. The other one then has to fall back to it: it does not change the type behind the first
/// one's back.
#[test]
fn one_cpu_gives_a_reserve_to_its_type() {
    let config = config().policies(Generation::V6_1).bare();
    let order = order(3);
    // Two threads and few steps: a thread that stops between two given ones is met often enough.
    shuttle::pct(3, if full() { 20_000 } else { 2000 }, move || {
        let world: World<Shuttle> = somewhere(PAGEBLOCK_PAGES, 2).config(config.with_marks()).build();
        world.allocator().set_pageblock_type(BASE, Migratetype::HighAtomic).expect("it is there");
        let world = Arc::new(world);
        let types = [M, Migratetype::Unmovable];
        shuttle_team(&world, 2, move |world, n| world.must_alloc_of(n, order, types[n]));
        let counts = world.counts();
        assert!(
            counts.fallbacks > 0,
            "two types in one pageblock, and neither request fell back: {counts:?}"
        );
    });
}

/// Eight CPUs find their zone low: one at a time runs zone reclaim there.
#[test]
fn one_cpu_at_a_time_reclaims_a_zone() {
    struct Shared {
        world: World<Shuttle>,
        inside: AtomicU64,
    }
    impl Reclaim for Shared {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            if ask.by == By::Zone {
                assert_eq!(self.inside.fetch_add(1, SeqCst), 0, "two CPUs run zone reclaim in one zone");
                ::shuttle::thread::yield_now();
                self.inside.fetch_sub(1, SeqCst);
                RUNS.fetch_add(1, Relaxed);
            }
            Reclaimed { scanned: 1, freed: 0 }
        }

        fn reclaimable(&self, _: ZoneId) -> Reclaimable {
            Reclaimable { file_lru: 1000, file: 1000, ..Reclaimable::default() }
        }
    }
    static RUNS: AtomicU64 = AtomicU64::new(0);
    at_once(
        60,
        || {
            let config = config().bare().but(|config| config.zone_reclaim = ZoneReclaimMode::ON);
            let world: World<Shuttle> = Spec::one_zone(1024, CPUS).config(config.with_marks()).build();
            let page = page();
            let zone = world.zone();
            while zone.free_pages() > zone.marks().low {
                world.on(0, |cpu| cpu.request(&page)).expect("above the mark");
            }
            Shared { world, inside: AtomicU64::new(0) }
        },
        |shared, n| {
            let helpers = Helpers::NONE.with_reclaim(shared);
            let page = page();
            shared.world.on(n, |cpu| cpu.alloc_with(&page, &helpers)).expect("above the min mark");
        },
        |shared| {
            shared.world.settled();
        },
    );
    assert!(RUNS.load(Relaxed) > 0, "no CPU reclaimed");
}
