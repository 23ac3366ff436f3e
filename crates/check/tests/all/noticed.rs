//! What no other test noticed when a mutant changed it (`cargo xtask mutants`): settings of presets, reasons of refusals,
//! counters of refills.

mod damage;
mod races;

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::Mutex;

use framewright::config::{
    Config, Engine, Experiment, Generation, LockKind, LockPlace, PcpFixed, PcpOrders, PcpRule, RefillCheck,
    ZoneReclaimMode, ZonelistCache,
};
use framewright::cpu::{HwpoisonError, Hwpoisoned, PlaceFailure};
use framewright::defer::How;
use framewright::error::{FreeFailure, SetupError};
use framewright::frame::{FrameUser, State};
use framewright::policy::init::Split;
use framewright::policy::nodes::NodePolicy;
use framewright::policy::pcp::Sizing;
use framewright::policy::reclaim::{FIRST_PRIORITY, SCANNED_BEFORE_WRITING};
use framewright::reclaim::{By, Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release};
use framewright::units::{
    CpuId, MAX_NODES, MAX_ORDER, MAX_ZONE_PAGES, Migratetype, NodeId, NodeMask, Order, PAGEBLOCK_ORDER,
    PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType,
};
use framewright::zone::ZoneSpec;
use framewright::{Helpers, Plan, Request};
use framewright_check::fixture::{BASE, RestSpec, Spec, World};
use framewright_check::platform::plain::Plain;

fn order(order: u8) -> Order {
    Order::new(order).expect("a valid order")
}

/// What each preset says itself, and what it takes over from the one before.
#[test]
fn presets_are_what_each_release_did() {
    let rule = |config: &Config| {
        (
            config.experiment.pcp_rule,
            config.experiment.pcp_orders,
            config.engine,
            config.experiment.refill_check,
        )
    };
    let place = |config: &Config| (config.experiment.lock_place, config.experiment.lock_kind);
    let pressure =
        |config: &Config| (config.keep_marks, config.experiment.passes, config.experiment.zonelist_cache);
    let (v3, v5, v61, v67) =
        (Config::linux_v3_0(), Config::linux_v5_4(), Config::linux_v6_1(), Config::linux_v6_7());
    let v5_rule = (PcpRule::V5_4, PcpOrders::Zero, Engine::Linux, RefillCheck::UnderZoneLock);
    assert_eq!((rule(&v3), rule(&v5)), (v5_rule, v5_rule));
    let costly = PcpOrders::UpToCostlyAndHuge;
    assert_eq!(rule(&v61), (PcpRule::V6_1, costly, Engine::Linux, RefillCheck::UnderZoneLock));
    assert_eq!(rule(&v67), (PcpRule::V6_7, costly, Engine::Linux, RefillCheck::Off));
    let v616 = Config::linux_v6_16();
    assert_eq!(rule(&v616), (PcpRule::V6_16, costly, Engine::Linux, RefillCheck::Off));
    for (config, lock) in
        [(&v3, LockKind::Ticket), (&v5, LockKind::Queued), (&v61, LockKind::Queued), (&v67, LockKind::Queued)]
    {
        assert_eq!(place(config), (LockPlace::OtherEnd, lock));
        assert_eq!(config.experiment.pcp_min_refill, 2);
    }
    let cached = ZonelistCache::AfterFirstZone;
    assert_eq!(pressure(&v3), (true, Generation::V3_0, cached));
    let plain = (false, Generation::V6_1, ZonelistCache::Off);
    assert_eq!((pressure(&v5), pressure(&v61), pressure(&v67)), (plain, plain, plain));
    let own = Config::framewright();
    assert_eq!(own.experiment.pcp_orders, PcpOrders::UpToHuge);
    assert_eq!((own.engine, own.keep_marks), (Engine::Framewright, false));
}

/// Every reason there is, in every free store, with the frames that it names.
#[test]
fn a_wrong_free_says_why() {
    for config in [Config::default(), Config::linux_v5_4(), Config::linux_v6_1()] {
        // Half of the last pageblock but one has memory, and nothing of the last.
        let world: World<Plain> = Spec::one_zone(5 * PAGEBLOCK_PAGES, 2)
            .memory([(BASE, 3 * PAGEBLOCK_PAGES + PAGEBLOCK_PAGES / 2)])
            .config(config)
            .build();
        let blocks = world.on(0, |cpu| {
            [2, 0, 0].map(|n| cpu.alloc(order(n), Migratetype::Movable).expect("memory is left"))
        });
        let why = |pfn: Pfn, n: u8| {
            let error = world.on(0, |cpu| cpu.free(pfn, order(n))).expect_err("it is wrong");
            assert_eq!((error.pfn, error.order), (pfn, order(n)));
            error.why
        };
        let [large, first, second] = blocks;
        assert_eq!(why(large.add(1), 0), FreeFailure::Inside { order: order(2) });
        assert_eq!(why(large.add(2), 1), FreeFailure::Inside { order: order(2) });
        assert_eq!(why(large, 1), FreeFailure::WrongOrder { allocated: order(2) });
        assert_eq!(why(large, 0), FreeFailure::WrongOrder { allocated: order(2) });
        let odd = if first.is_aligned(order(1)) { second } else { first };
        assert!(!odd.is_aligned(order(1)), "two frames in a row were taken");
        assert_eq!(why(odd, 1), FreeFailure::Misaligned);
        assert_eq!(why(Pfn(BASE.0 - 1), 0), FreeFailure::Foreign);
        assert_eq!(why(BASE.add(4 * PAGEBLOCK_PAGES), 0), FreeFailure::Foreign);
        let end = BASE.add(3 * PAGEBLOCK_PAGES + PAGEBLOCK_PAGES / 2);
        assert_eq!(why(end, 0), FreeFailure::Reserved);
        for (block, n) in [(large, 2), (first, 0), (second, 0)] {
            world.on(1, |cpu| cpu.free(block, order(n))).expect("it was allocated");
            assert_eq!(why(block, n), FreeFailure::NotAllocated);
        }
        world.settled();
    }
}

/// What fills freed memory needs memory to fill.
#[test]
#[should_panic(expected = "PoisonNeedsDirectMap")]
fn poisoning_without_memory_is_refused() {
    let config = Config { poison: true, ..Config::default() };
    let _ = Spec::one_zone(PAGEBLOCK_PAGES, 1).config(config).without_pages().build::<Plain>();
}

#[test]
#[should_panic(expected = "PoisonNeedsDirectMap")]
fn zeroing_without_memory_is_refused() {
    let config = Config { init_on_free: true, ..Config::default() };
    let _ = Spec::one_zone(PAGEBLOCK_PAGES, 1).config(config).without_pages().build::<Plain>();
}

/// A table of distances says 10 of each node and itself, and no less of any two.
#[test]
fn tables_of_distances_are_checked() {
    let zone = |node: u16| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start: BASE.add(4 * PAGEBLOCK_PAGES * u64::from(node)),
        pages: 2 * PAGEBLOCK_PAGES,
    };
    let makes = |distances: [u8; 9]| {
        let spec = Spec::zones([zone(0), zone(1), zone(2)], 1).distances(distances);
        catch_unwind(AssertUnwindSafe(|| spec.build::<Plain>().settled().free)).is_ok()
    };
    assert!(makes([10, 20, 20, 20, 10, 20, 20, 20, 10]) && makes([10, 10, 10, 10, 10, 10, 10, 10, 10]));
    for wrong in 0..9 {
        let mut table = [10, 20, 20, 20, 10, 20, 20, 20, 10];
        table[wrong] = if wrong % 4 == 0 { 11 } else { 9 };
        assert!(!makes(table), "{table:?}");
    }
}

/// A refill counts each block that it brings once, whatever its order, and where it came from.
#[test]
fn refills_count_blocks_for_their_node() {
    for n in [0, 3] {
        let world: World<Plain> = Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).build();
        world.on(0, |cpu| cpu.alloc(order(n), Migratetype::Movable)).expect("memory is left");
        let waits = world.allocator().pcp(framewright::ZoneId(0), framewright::CpuId(0)).count();
        let moved = 1 + (u64::from(waits) >> n);
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!([events.numa_hit, events.numa_local, events.numa_miss], [moved, moved, 0], "order {n}");
    }
}

const M: Migratetype = Migratetype::Movable;

fn zone(node: u16, kind: ZoneType, start: Pfn, pages: u64) -> ZoneSpec {
    ZoneSpec { node: NodeId(node), kind, start, pages }
}

fn normal(start: Pfn, pages: u64) -> ZoneSpec {
    zone(0, ZoneType::Normal, start, pages)
}

/// Without lists of CPUs.
fn bare(config: Config) -> Config {
    Config { experiment: Experiment { pcp_orders: PcpOrders::None, ..config.experiment }, ..config }
}

#[test]
fn zones_are_checked_one_by_one_and_against_each_other() {
    let config = Config::default();
    let plan = |zones: &[ZoneSpec]| Plan::new(zones, &[NodeId(0)], &config).map(|plan| plan.zones);
    let (low, high) = (normal(BASE, 1024), normal(BASE.add(1024), 1));
    assert_eq!((plan(&[low, high]), plan(&[high, low])), (Ok(2), Ok(2)), "neighbours");
    let long = normal(BASE, 1025);
    for zones in [[long, high], [high, long]] {
        assert_eq!(plan(&zones), Err(SetupError::ZonesOverlap(ZoneId(0), ZoneId(1))));
    }
    let end = Pfn(1 << 52);
    for zone in [normal(BASE, 0), normal(BASE, MAX_ZONE_PAGES + 1), normal(end, 1), normal(BASE.add(1), 1)] {
        assert_eq!(plan(&[zone]), Err(SetupError::BadZone(ZoneId(0))), "{zone:?}");
    }
    assert_eq!(plan(&[normal(BASE, MAX_ZONE_PAGES)]), Ok(1));
    assert_eq!(plan(&[normal(Pfn(end.0 - 1024), 1)]), Ok(1));
    let many: Vec<_> = (0..256).map(|n| normal(BASE.add(1024 * n), 1)).collect();
    assert_eq!((plan(&many[..255]), plan(&many)), (Ok(255), Err(SetupError::ZoneCount(256))));
    assert_eq!(plan(&[]), Err(SetupError::ZoneCount(0)));
}

#[test]
fn there_may_be_as_many_nodes_as_a_mask_has() {
    let last = NodeId(MAX_NODES as u16 - 1);
    let world: World<Plain> = Spec::one_zone(1024, 1).cpu_nodes([last]).build();
    assert_eq!((world.allocator().nodes().len(), world.settled().free), (MAX_NODES, 1024));
    let plan = Plan::new(&[normal(BASE, 1024)], &[NodeId(last.0 + 1)], &Config::default());
    assert_eq!(plan, Err(SetupError::NodeCount(MAX_NODES + 1)));
}

#[test]
fn memory_that_is_added_lies_in_one_zone() {
    let zones = [normal(BASE, 1024), normal(BASE.add(1024), 1024)];
    let world: World<Plain> = Spec::zones(zones, 1).memory([]).build();
    let add = |start: Pfn, pages| world.allocator().add_memory(start, pages);
    for (start, pages) in [(BASE, 0), (BASE, 1025), (BASE.add(1023), 2), (BASE.add(2048), 1), (Pfn(0), 1)] {
        assert_eq!(add(start, pages), Err(SetupError::RangeOutsideZones(start)), "{pages} from {start:?}");
    }
    assert_eq!((add(BASE, 1024), add(BASE.add(1024), 1)), (Ok(()), Ok(())));
    assert_eq!(world.settled().free, 1025);
}

/// Boot's account of memory must be of the allocator's zones.
#[test]
#[should_panic(expected = "describes other zones")]
fn memory_that_is_left_for_later_is_of_the_same_zones() {
    let spec = normal(BASE, 2048);
    let rest =
        RestSpec { spec, present: 2048, free: vec![BASE..BASE.add(2048)], deferred_from: BASE, cpus: 1 };
    let how = How { split: Split::OneThread, section: 1024 };
    let _ = Spec::deferred(how, [rest], 1, 1).over([normal(BASE, 1024)]).build::<Plain>();
}

/// A zone at this distance is reclaimed before the next one is tried, and none further away.
#[test]
fn zone_reclaim_goes_as_far_as_thirty() {
    struct Asked(Mutex<Vec<(By, ZoneId)>>);
    impl Reclaim for Asked {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            self.0.lock().expect("nobody panicked").push((ask.by, ask.zone));
            Reclaimed { scanned: 1, freed: 0 }
        }
        fn reclaimable(&self, _: ZoneId) -> Reclaimable {
            Reclaimable { file_lru: 4096, file: 4096, ..Reclaimable::default() }
        }
    }
    for (distance, is_near) in [(29, true), (30, true), (31, false)] {
        let config = Config { zone_reclaim: ZoneReclaimMode::ON, ..bare(Config::linux_v6_1()).with_marks() };
        let zones = [0, 1].map(|n| zone(n, ZoneType::Normal, BASE.add(u64::from(n) * 4096), 4096));
        let world: World<Plain> =
            Spec::zones(zones, 1).config(config).distances([10, distance, distance, 10]).build();
        let asked = Asked(Mutex::default());
        let request = Request::new(Order::ZERO, M);
        world.on(0, |cpu| {
            while cpu.alloc_with(&request, &Helpers::NONE).is_ok() {}
            let helpers = Helpers::NONE.with_reclaim(&asked);
            assert!(cpu.alloc_with(&request, &helpers).is_err(), "nothing gives memory back");
        });
        let asked = asked.0.into_inner().expect("nobody panicked");
        assert!(asked.contains(&(By::Zone, ZoneId(0))), "its own, at {distance}");
        assert_eq!(asked.contains(&(By::Zone, ZoneId(1))), is_near, "at {distance}");
    }
}

/// A node without memory takes no turn.
#[test]
fn memory_is_interleaved_over_nodes_that_have_some() {
    let zones = [0, 1, 2].map(|n| zone(n, ZoneType::Normal, BASE.add(u64::from(n) * 1024), 1024));
    let world: World<Plain> = Spec::zones(zones, 1)
        .memory([(BASE, 1024), (BASE.add(2048), 1024)])
        .config(bare(Config::default()))
        .build();
    world.on(0, |cpu| {
        // Whichever of them is nearer to the node that has none.
        for (of, turn) in [0, 2].into_iter().flat_map(|of| (0..4).map(move |turn| (of, turn))) {
            let nodes = [NodeId(1), NodeId(of)].into_iter().collect::<NodeMask>();
            let request =
                Request { nodes: NodePolicy::Interleave { nodes, turn }, ..Request::new(Order::ZERO, M) };
            let pfn = cpu.alloc_with(&request, &Helpers::NONE).expect("memory is left");
            assert_eq!(
                pfn.0 / 1024,
                BASE.0 / 1024 + u64::from(of),
                "turn {turn}: {pfn:?} is not of node {of}"
            );
        }
    });
}

/// A block whose second half is a hole cannot be had, and the hole is named.
#[test]
fn a_block_that_reaches_into_a_hole_is_not_given() {
    for engine in [Engine::Linux, Engine::Framewright] {
        let config = Config { engine, ..bare(Config::default()) };
        let world: World<Plain> =
            Spec::one_zone(1024, 1).memory([(BASE, PAGEBLOCK_PAGES)]).config(config).build();
        let error = world.on(0, |cpu| cpu.alloc_at(BASE, MAX_ORDER)).expect_err("half of it is a hole");
        let pfn = BASE.add(PAGEBLOCK_PAGES);
        assert_eq!(error.why, PlaceFailure::InUse { pfn, state: State::Reserved });
        assert_eq!(world.settled().free, PAGEBLOCK_PAGES);
    }
}

/// A block that waits on the calling CPU's own list is brought back from there, on a machine of one CPU, too.
#[test]
fn a_block_on_the_own_list_can_be_had_by_its_place() {
    let world: World<Plain> = Spec::one_zone(4096, 1).build();
    world.on(0, |cpu| {
        let pfn = cpu.alloc(Order::ZERO, M).expect("memory is left");
        cpu.free(pfn, Order::ZERO).expect("it is allocated");
        assert_eq!(cpu.alloc_at(pfn, Order::ZERO), Ok(()));
    });
    assert_eq!(world.settled().allocated, 1);
}

/// Two huge neighbours that are given back together merge, and count, as their pageblocks' types say.
#[test]
fn huge_neighbours_go_back_as_their_pageblocks_are() {
    let types = [M, Migratetype::Unmovable, Migratetype::Cma];
    for (a, b) in types.iter().flat_map(|&a| types.map(|b| (a, b))) {
        let world: World<Plain> = Spec::one_zone(8 * 1024, 1).build();
        let huge =
            world.on(0, |cpu| [(); 2].map(|()| cpu.alloc(PAGEBLOCK_ORDER, M).expect("memory is left")));
        let [low, high] = [huge[0].min(huge[1]), huge[0].max(huge[1])];
        assert_eq!((low.buddy(PAGEBLOCK_ORDER), high.block_start(MAX_ORDER)), (high, low));
        for (pfn, of) in [(low, a), (high, b)] {
            world.allocator().set_pageblock_type(pfn, of);
        }
        world.on(0, |cpu| {
            for pfn in [low, high] {
                cpu.free(pfn, PAGEBLOCK_ORDER).expect("it is allocated");
            }
            cpu.drain();
        });
        let cma = [a, b].iter().filter(|&&of| of == Migratetype::Cma).count() as u64;
        assert_eq!(world.allocator().zones()[0].free_cma_pages(), cma * PAGEBLOCK_PAGES, "{a} and {b}");
        assert_eq!((world.settled().free, world.settled().on_pcp), (8 * 1024, 0), "{a} and {b}");
    }
}

/// Two huge neighbours with a bad frame each are given back without them.
#[test]
fn huge_neighbours_go_back_without_their_bad_frames() {
    for (bad, at) in [(&[0_u64][..], 7), (&[1], 7), (&[0, 1], 7), (&[0], 0), (&[0, 1], 0)] {
        let world: World<Plain> = Spec::one_zone(8 * 1024, 1).build();
        let huge =
            world.on(0, |cpu| [(); 2].map(|()| cpu.alloc(PAGEBLOCK_ORDER, M).expect("memory is left")));
        world.on(0, |cpu| {
            for &n in bad {
                cpu.hwpoison(huge[n as usize].add(at)).expect("it is in use");
            }
            huge.iter().for_each(|&pfn| cpu.free(pfn, PAGEBLOCK_ORDER).expect("it is allocated"));
            cpu.drain();
        });
        let account = world.settled();
        assert_eq!((account.free, account.quarantined), (8 * 1024 - bad.len() as u64, bad.len() as u64));
    }
}

/// Without words: a frame on a list is not reserved because its neighbour is.
#[test]
fn a_reserved_neighbour_says_nothing_of_a_listed_frame() {
    let config = Config { engine: Engine::Compact, ..Config::default() };
    let world: World<Plain> = Spec::one_zone(4096, 1).memory([(BASE.add(1), 4095)]).config(config).build();
    world.on(0, |cpu| {
        cpu.alloc_at(BASE.add(1), Order::ZERO).expect("it is free");
        cpu.free(BASE.add(1), Order::ZERO).expect("it is allocated");
        let why = |pfn| cpu.free(pfn, Order::ZERO).expect_err("it is not allocated").why;
        assert_eq!((why(BASE.add(1)), why(BASE)), (FreeFailure::NotAllocated, FreeFailure::Reserved));
    });
}

/// Memory without a slot for its user is never found bad.
#[test]
fn frames_without_a_slot_are_good() {
    assert!(<() as FrameUser>::check(&()).is_none());
}

/// A panic under the zone lock, here of a check in a refill, leaves the counters as the lists are.
#[test]
fn a_panic_under_the_lock_leaves_the_counters_right() {
    struct Fragile(Pfn);
    impl FrameUser for Fragile {
        const CHECKED: bool = true;
        fn check(&self) -> Option<&'static str> {
            assert_ne!(self.0, BASE.add(1), "the second frame");
            None
        }
    }
    for engine in [Engine::Linux, Engine::Framewright] {
        let config = Config {
            engine,
            experiment: Experiment { refill_check: RefillCheck::UnderZoneLock, ..Experiment::default() },
            ..Config::default()
        };
        let world = Spec::one_zone(4096, 1).config(config).build_with::<Plain, _>(Fragile);
        let pin = world.pin(0);
        let alloc = || world.cpu(&pin).alloc(order(3), M);
        catch_unwind(AssertUnwindSafe(alloc)).expect_err("the check panics");
        // The blocks of that refill are lost: `verify` says so.
        world.note_damage();
        let zone = world.allocator().zone_snapshot(&world.allocator().zones()[0]);
        let listed: u64 = zone.nr_free.iter().enumerate().map(|(order, blocks)| blocks << order).sum();
        assert!(listed < 4096);
        assert_eq!(zone.free, listed, "{engine:?}");
    }
}

/// Orders that Linux has no lists for break few pageblocks: a refill brings two at least, and no more than one has. Huge blocks
/// come as many as of other orders.
#[test]
fn refills_of_large_orders_bring_some() {
    let config = Config::default();
    for (n, blocks) in [(8, 2), (7, 4), (9, 4 * u64::from(config.experiment.pcp_min_refill))] {
        let world: World<Plain> = Spec::one_zone(64 * 1024, 1).config(config).build();
        world
            .allocator()
            .resize_pcps_of(ZoneId(0), Sizing { batch: 8, high_min: 64 << 10, high_max: 64 << 10 });
        let taken = world.on(0, |cpu| {
            cpu.answer();
            cpu.alloc(order(n), M).expect("memory is left");
            cpu.allocator().pcp(ZoneId(0), CpuId(0)).events()
        });
        assert_eq!((taken.refills, taken.refilled_pages >> n), (1, blocks), "order {n}");
    }
}

/// An isolated pageblock keeps the type that it will have.
#[test]
fn an_isolated_pageblock_takes_no_type() {
    for engine in [Engine::Linux, Engine::Framewright] {
        let world: World<Plain> =
            Spec::one_zone(1024, 1).config(Config { engine, ..bare(Config::default()) }).build();
        let allocator = world.allocator();
        assert_eq!(allocator.isolate_pageblock(BASE), Some(PAGEBLOCK_PAGES));
        assert_eq!(allocator.set_pageblock_type(BASE, Migratetype::Cma), None);
        assert_eq!(allocator.unisolate_pageblock(BASE), Some(PAGEBLOCK_PAGES));
        assert_eq!(allocator.frames().info(BASE).migratetype(), M);
        assert_eq!(world.settled().free, 1024);
    }
}

#[test]
fn a_frame_is_found_bad_once() {
    let world: World<Plain> = Spec::one_zone(1024, 1).build();
    world.on(0, |cpu| {
        for n in [0, 9] {
            let pfn = cpu.alloc(order(n), M).expect("memory is left");
            assert_eq!(cpu.hwpoison(pfn), Ok(Hwpoisoned::InUse { pfn, order: order(n) }));
            assert_eq!(cpu.hwpoison(pfn), Err(HwpoisonError::Already));
            cpu.free(pfn, order(n)).expect("it is allocated");
            cpu.drain();
            assert_eq!(cpu.hwpoison(pfn), Err(HwpoisonError::Already), "it is out of use");
        }
    });
    assert_eq!((world.allocator().hwpoisoned_pages(), world.settled().quarantined), (2, 2));
}

/// Memory behind what nobody has touched is added, and used, and what lies before it stays as it is.
#[test]
fn untouched_memory_ends_where_the_next_begins() {
    let config = Config { engine: Engine::Framewright, lazy_pageblocks: true, ..bare(Config::default()) };
    let half = 8 * PAGEBLOCK_PAGES;
    let world: World<Plain> =
        Spec::one_zone(2 * half, 1).memory([(BASE, half), (BASE.add(half), half)]).config(config).build();
    assert_eq!(world.settled().free, 2 * half);
    let last = BASE.add(half - PAGEBLOCK_PAGES);
    assert!(!world.allocator().frames().contains(last), "nobody has touched it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(BASE.add(half), PAGEBLOCK_ORDER)), Ok(()));
    assert!(!world.allocator().frames().contains(last), "nobody has asked for it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(last, PAGEBLOCK_ORDER)), Ok(()));
    assert_eq!(world.settled().free, 2 * half - 2 * PAGEBLOCK_PAGES);
}

/// Frames whose slot says that they are bad.
struct Marked(bool);

impl FrameUser for Marked {
    const CHECKED: bool = true;
    fn check(&self) -> Option<&'static str> {
        self.0.then_some("marked")
    }
}

/// A refill that brings fewer blocks than there is room for, one of them bad: the others are on the list.
#[test]
fn a_short_refill_drops_what_is_bad() {
    for bad in 508..512 {
        let config = Config {
            experiment: Experiment {
                refill_check: RefillCheck::AfterUnlock,
                pcp_fixed: Some(PcpFixed { batch: 16, high: 32 }),
                ..Experiment::default()
            },
            ..Config::default()
        };
        let world = Spec::one_zone(PAGEBLOCK_PAGES, 1)
            .config(config)
            .build_with::<Plain, _>(|pfn| Marked(pfn == BASE.add(bad)));
        world.on(0, |cpu| {
            for n in 0..508 {
                cpu.alloc_at(BASE.add(n), Order::ZERO).expect("it is free");
            }
            for _ in 0..3 {
                assert_ne!(cpu.alloc(Order::ZERO, M), Ok(BASE.add(bad)));
            }
            assert!(cpu.alloc(Order::ZERO, M).is_err());
        });
        let account = world.settled();
        assert_eq!((account.allocated, account.quarantined, account.free), (511, 1, 0));
    }
}

/// A given range with a bad frame is not given, and what is good of it is free.
#[test]
fn a_given_range_with_a_bad_frame_goes_back() {
    let config = Config {
        experiment: Experiment {
            refill_check: RefillCheck::AfterUnlock,
            ..bare(Config::default()).experiment
        },
        ..bare(Config::default())
    };
    for bad in [0, 5, 99] {
        let world =
            Spec::one_zone(1024, 1).config(config).build_with::<Plain, _>(|pfn| Marked(pfn == BASE.add(bad)));
        let error = world.on(0, |cpu| cpu.alloc_contig_range(BASE..BASE.add(100), &Helpers::NONE));
        assert_eq!(error.expect_err("one is bad").place.why, PlaceFailure::Bad);
        let account = world.settled();
        assert_eq!(account.allocated, 0);
        assert!(account.quarantined > 0 && account.free + account.quarantined == 1024);
    }
}

/// A range takes no pageblock behind its end: up to the end of the zone it can be had.
#[test]
fn a_whole_zone_can_be_had_as_a_range() {
    for engine in [Engine::Linux, Engine::Framewright] {
        let world: World<Plain> =
            Spec::one_zone(1024, 1).config(Config { engine, ..bare(Config::default()) }).build();
        let all = BASE..BASE.add(1024);
        assert_eq!(world.on(0, |cpu| cpu.alloc_contig_range(all.clone(), &Helpers::NONE)), Ok(()));
        world.on(0, |cpu| cpu.free_contig_range(all)).expect("it is allocated");
        assert_eq!(world.settled().free, 1024);
    }
}

/// What a reclaimer gives back by another CPU than the one that asks counts as far as the zone has grown.
#[test]
fn memory_that_comes_back_elsewhere_counts() {
    struct Elsewhere<'a>(&'a World<Plain>, Mutex<Vec<Pfn>>);
    impl Reclaim for Elsewhere<'_> {
        fn reclaim(&self, _: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            let Some(pfn) = self.1.lock().expect("nobody panicked").pop() else {
                return Reclaimed::default();
            };
            self.0.on(1, |cpu| cpu.free(pfn, Order::ZERO)).expect("it is allocated");
            Reclaimed { scanned: 1, freed: 7 }
        }
    }
    let world: World<Plain> = Spec::one_zone(4096, 2).config(bare(Config::linux_v6_1()).with_marks()).build();
    let request = Request::new(Order::ZERO, M);
    let all: Vec<_> =
        world.on(0, |cpu| core::iter::from_fn(|| cpu.alloc_with(&request, &Helpers::NONE).ok()).collect());
    let reclaim = Elsewhere(&world, Mutex::new(all));
    let helpers = Helpers::NONE.with_reclaim(&reclaim);
    world.on(0, |cpu| cpu.alloc_with(&request, &helpers)).expect("memory comes back");
    let events = world.allocator().zones()[0].events();
    assert!(events.pgsteal_direct > 0);
    assert_eq!(events.pgsteal_direct, events.pgscan_direct, "one for each that was looked at");
}

/// A refill takes from so many pageblocks in one hold of the lock, and leaves the others for the next one.
#[test]
fn a_refill_takes_from_sixteen_pageblocks() {
    let config = Config {
        experiment: Experiment { pcp_fixed: Some(PcpFixed { batch: 64, high: 64 }), ..Experiment::default() },
        ..Config::default()
    };
    let world: World<Plain> = Spec::one_zone(40 * PAGEBLOCK_PAGES, 1).config(config).build();
    world.on(0, |cpu| {
        for (start, n) in (0..40).flat_map(|n| (0..9).map(move |of| (BASE.add(n * PAGEBLOCK_PAGES), of))) {
            cpu.alloc_at(start.add(1 << n), order(n)).expect("it is free");
        }
        for left in [15, 15, 7] {
            cpu.alloc(Order::ZERO, M).expect("a frame of each pageblock is left");
            assert_eq!(cpu.allocator().pcp_pages(), left);
            for _ in 0..left {
                cpu.alloc(Order::ZERO, M).expect("it is on the list");
            }
        }
        assert!(cpu.alloc(Order::ZERO, M).is_err());
    });
    world.settled();
}

/// Code without calls makes hits of the ordinary types only.
#[test]
fn only_ordinary_types_have_words_to_hit() {
    let world: World<Plain> = Spec::one_zone(1024, 1).build();
    for of in Migratetype::ALL {
        assert_eq!(world.on(0, |cpu| cpu.hit_words(of)).is_some(), of.is_ordinary(), "{of}");
    }
}

/// Writing is woken when more pages were looked at in vain than that, not when as many were.
#[test]
fn flushers_are_woken_when_much_was_looked_at() {
    struct Looks(u64, Mutex<Vec<u64>>);
    impl Reclaim for Looks {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            Reclaimed { scanned: if ask.priority == FIRST_PRIORITY { self.0 } else { 0 }, freed: 0 }
        }
        fn wake_flushers(&self, pages: u64) {
            self.1.lock().expect("nobody panicked").push(pages);
        }
    }
    for (scanned, wakes) in [(SCANNED_BEFORE_WRITING, false), (SCANNED_BEFORE_WRITING + 1, true)] {
        let world: World<Plain> =
            Spec::one_zone(4096, 1).config(bare(Config::linux_v6_1()).with_marks()).build();
        let request = Request::new(Order::ZERO, M);
        let looks = Looks(scanned, Mutex::default());
        world.on(0, |cpu| {
            while cpu.alloc_with(&request, &Helpers::NONE).is_ok() {}
            let helpers = Helpers::NONE.with_reclaim(&looks);
            assert!(cpu.alloc_with(&request, &helpers).is_err(), "nothing comes back");
        });
        let woken = looks.1.into_inner().expect("nobody panicked");
        assert_eq!(woken.first().copied(), wakes.then_some(scanned));
    }
}
