//! What no other test noticed when a mutant changed it (`cargo xtask mutants`): settings of presets, reasons of refusals,
//! counters of refills.

use framewright::config::{
    Bulk, Config, FreeStore, Generation, LargeHeads, LockKind, LockPlace, PcpCounting, PcpOrders, PcpRule,
    RefillCheck, ZonelistCache,
};
use framewright::error::FreeFailure;
use framewright::units::{Migratetype, NodeId, Order, PAGEBLOCK_PAGES, Pfn};
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::platform::plain::Plain;

fn order(order: u8) -> Order {
    Order::new(order).expect("a valid order")
}

/// What each preset says itself, and what it takes over from the one before.
#[test]
fn presets_are_what_each_release_did() {
    let rule =
        |config: &Config| (config.pcp_rule, config.pcp_orders, config.pcp_counting, config.refill_check);
    let place = |config: &Config| (config.lock_place, config.lock_kind, config.bulk, config.free_store);
    let pressure =
        |config: &Config| (config.keep_marks, config.generation, config.zonelist_cache, config.large_heads);
    let (v3, v5, v61, v67) =
        (Config::linux_v3_0(), Config::linux_v5_4(), Config::linux_v6_1(), Config::linux_v6_7());
    let v5_rule = (PcpRule::V5_4, PcpOrders::Zero, PcpCounting::EachCall, RefillCheck::UnderZoneLock);
    assert_eq!((rule(&v3), rule(&v5)), (v5_rule, v5_rule));
    let costly = PcpOrders::UpToCostlyAndHuge;
    assert_eq!(rule(&v61), (PcpRule::V6_1, costly, PcpCounting::EachCall, RefillCheck::UnderZoneLock));
    assert_eq!(rule(&v67), (PcpRule::V6_7, costly, PcpCounting::EachCall, RefillCheck::Off));
    let v616 = Config::linux_v6_16();
    assert_eq!(rule(&v616), (PcpRule::V6_16, costly, PcpCounting::EachCall, RefillCheck::Off));
    for (config, lock) in
        [(&v3, LockKind::Ticket), (&v5, LockKind::Queued), (&v61, LockKind::Queued), (&v67, LockKind::Queued)]
    {
        assert_eq!(place(config), (LockPlace::OtherEnd, lock, Bulk::OneByOne, FreeStore::Lists));
        assert_eq!(config.pcp_min_refill, 2);
    }
    let cached = ZonelistCache::AfterFirstZone;
    assert_eq!(pressure(&v3), (true, Generation::V3_0, cached, LargeHeads::Frames));
    let plain = (false, Generation::V6_1, ZonelistCache::Off, LargeHeads::Frames);
    assert_eq!((pressure(&v5), pressure(&v61), pressure(&v67)), (plain, plain, plain));
    let own = Config::framewright();
    assert_ne!(own.pcp_counting, PcpCounting::EachCall);
    assert_eq!(own.pcp_orders, PcpOrders::UpToHuge);
    assert_eq!((own.free_store, own.keep_marks), (FreeStore::Maps, false));
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
