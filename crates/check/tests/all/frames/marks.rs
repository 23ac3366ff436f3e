//! Watermarks in the slow path: who is served down to where, in both generations.

use framewright_check::platform::checked;
use framewright_check::prelude::*;

fn world(generation: Generation, pages: u64) -> World<Plain> {
    Spec::one_zone(pages, 1).config(marked(generation)).build()
}

/// Allocates single pages until one is refused; what is left free then.
fn left(world: &World<Plain>, request: &Request<'_>) -> u64 {
    world.on(0, |cpu| while cpu.request(request).is_ok() {});
    world.allocator().free_pages()
}

/// The lowest count at which a request is refused: free must exceed the mark, and in v3.0 two pages more.
#[test]
fn each_kind_of_request_has_its_floor() {
    for generation in GENERATIONS {
        let slack = if generation == Generation::V3_0 { 2 } else { 0 };
        // 64 MiB: isqrt(16 · 65536 KiB) = 1024 KiB, 256 pages.
        let floor = |flags| left(&world(generation, 16384), &page().with(flags));
        assert_eq!(world(generation, 16384).allocator().zones()[0].marks().min, 256);
        assert_eq!(floor(Flags::NONE), 256 + slack, "{generation:?}");
        assert_eq!(floor(Flags::HIGH), 128 + slack, "{generation:?}");
        assert_eq!(floor(Flags::ATOMIC), 96 + slack, "{generation:?}");
        let no_wait = if generation == Generation::V3_0 { 192 + slack } else { 256 };
        assert_eq!(floor(Flags::NO_WAIT), no_wait, "{generation:?}");
        assert_eq!(floor(Flags::ATOMIC.and(Flags::NO_RESERVES)), 128 + slack, "{generation:?}");
        assert_eq!(floor(Flags::VICTIM), 0, "{generation:?}");
        let world = world(generation, 16384);
        left(&world, &page());
        let error = world.on(0, |cpu| cpu.request(&page())).expect_err("at the mark");
        assert_eq!((error.why, error.tried, error.kept), (AllocFailure::BelowMark, 1, 256));
        assert!(error.to_string().contains("256 pages kept"), "{error}");
        left(&world, &page().with(Flags::VICTIM));
        let error = world.on(0, |cpu| cpu.request(&page())).expect_err("empty");
        assert_eq!(error.why, AllocFailure::NoMemory);
    }
    let without_marks = Spec::one_zone(16384, 1).plain();
    assert_eq!((without_marks.zone().marks().min, left(&without_marks, &page())), (0, 0));
}

/// Marks beyond any memory: everything is kept, and no sum overflows, on the way to another zone either.
#[test]
fn marks_may_be_higher_than_all_memory() {
    for config in [Config::default(), Config::linux_v6_7()] {
        for (min_free_kib, watermark_scale) in [(u64::MAX, 10), (0, u64::MAX), (u64::MAX, u64::MAX)] {
            let config = config.with_marks().but(|config| {
                (config.min_free_kib, config.watermark_scale) = (min_free_kib, watermark_scale);
                (config.boost_factor, config.free_reporting) = (u64::MAX, true);
            });
            let zone = |kind, start| zone(0, kind, start, 1 << 14);
            let zones = [zone(ZoneType::Dma32, 1 << 14), zone(ZoneType::Normal, 2 << 14)];
            let world = Spec::zones(zones, 1).config(config).plain();
            let free = left(&world, &page());
            assert_eq!(free == 2 << 14, min_free_kib != 0, "{free} pages, {config:?}");
            world.on(0, |cpu| cpu.report_free(PAGEBLOCK_ORDER, |_| true));
        }
    }
}

/// The check of v3.0 does not count smaller blocks, and keeps two pages where the mark is 0, too.
#[test]
fn a_block_that_only_the_rule_keeps_is_kept() {
    let config = marked(Generation::V3_0).but(|config| config.min_free_kib = 3);
    let world: World<Plain> = Spec::one_zone(34, 1).config(config).build();
    assert_eq!(world.zone().marks().min, 0);
    let request = Request::new(order(5), M);
    let error = world.on(0, |cpu| cpu.request(&request)).expect_err("34 pages, less 33, less a block of two");
    assert_eq!((error.why, error.largest, error.kept), (AllocFailure::BelowMark, Some(order(5)), 0));
}

/// A request that could be served from above must leave the low zone its reserve; one that cannot, need not.
#[test]
fn low_memory_is_kept_for_those_who_need_it() {
    let zone = |kind, start, pages| ZoneSpec { node: NodeId(0), kind, start: Pfn(start), pages };
    for generation in GENERATIONS {
        let zones = [zone(ZoneType::Dma32, 0x1000, 8192), zone(ZoneType::Normal, 0x1000 + 8192, 262_144)];
        let world = Spec::zones(zones, 1).config(marked(generation)).plain();
        let low = world.zone();
        assert_eq!((low.reserve(ZoneType::Normal), low.reserve(ZoneType::Dma32)), (1024, 0));
        left(&world, &page());
        let slack = if generation == Generation::V3_0 { 2 } else { 0 };
        assert_eq!(low.free_pages(), low.marks().min + 1024 + slack, "{generation:?}");
        left(&world, &page().up_to(ZoneType::Dma32));
        assert_eq!(low.free_pages(), low.marks().min + slack, "{generation:?}");
    }
}

/// Zones of one type keep together what one zone of their size would: a node has several if its memory interleaves with
/// another node's, or is larger than a zone may be.
#[test]
fn zones_of_a_type_share_the_reserve_of_their_node() {
    for generation in GENERATIONS {
        for pieces in [1, 2, 8] {
            let low =
                (0..pieces).map(|n| zone(0, ZoneType::Normal, 0x1000 + n * 16_384 / pieces, 16_384 / pieces));
            let high = zone(0, ZoneType::Movable, 0x1000 + 16_384, 131_072);
            let world =
                Spec::zones([low.collect(), vec![high]].concat(), 1).config(marked(generation)).plain();
            let zones = || world.allocator().zones().iter().take(pieces as usize);
            let kept: u64 = zones().map(|zone| zone.reserve(ZoneType::Movable)).sum();
            assert_eq!(kept, 131_072 / 32, "{pieces} zones, {generation:?}");
            left(&world, &page());
            let slack = if generation == Generation::V3_0 { 2 * pieces } else { 0 };
            let (free, min) =
                zones().fold((0, 0), |(free, min), zone| (free + zone.free_pages(), min + zone.marks().min));
            assert_eq!(free, min + kept + slack, "{pieces} zones, {generation:?}");
        }
    }
}

/// v6.1 keeps a pageblock for high-order requests that cannot wait, and gives it back before it fails others.
#[test]
fn a_reserve_for_high_orders_that_cannot_wait() {
    let world = world(Generation::V6_1, 131_072);
    let order = order(3);
    let atomic = Request::new(order, Migratetype::Unmovable).with(Flags::ATOMIC);
    left(&world, &page());
    let block = world.on(0, |cpu| cpu.request(&atomic)).expect("the reserve is for it");
    let info = world.allocator().frames().info(block);
    assert_eq!(info.migratetype(), Migratetype::HighAtomic);
    let next = world.on(0, |cpu| cpu.request(&atomic)).expect("from the same pageblock");
    assert_eq!(world.allocator().frames().info(next).migratetype(), Migratetype::HighAtomic);
    world.must_free(0, next, order);
    let refused = world.on(0, |cpu| cpu.request(&page())).is_err();
    assert!(refused, "an ordinary request does not get it by the way");
    assert_ne!(world.allocator().frames().info(block).migratetype(), Migratetype::HighAtomic, "given back");
    world.settled();
}

/// The reserve grows until it has reached 1 % of the zone and a pageblock.
#[test]
fn the_reserve_is_bounded() {
    // The low mark is a tenth of the zone above the min mark: the reserve grows only below it.
    let config = marked(Generation::V6_1).but(|config| config.watermark_scale = 1000);
    let atomic = Request::new(order(3), Migratetype::Unmovable).with(Flags::ATOMIC);
    // 1310 + 512 pages are reached with the fourth pageblock, 512 + 512 with the second.
    for (pages, expected) in [(131_072, 4), (51_200, 2)] {
        let world = Spec::one_zone(pages, 1).config(config).plain();
        world.on(0, |cpu| {
            let zone = &cpu.allocator().zones()[0];
            while zone.free_pages() > zone.marks().low {
                cpu.request(&page()).expect("above the mark");
            }
            for _ in 0..pages / 131 {
                cpu.request(&atomic).expect("above the min mark");
            }
        });
        let reserved = (0..pages / 512)
            .filter(|n| {
                let info = world.allocator().frames().info(BASE.add(n * 512));
                info.migratetype() == Migratetype::HighAtomic
            })
            .count();
        assert_eq!(reserved, expected);
        world.settled();
    }
}

/// A block as large as a pageblock takes no reserve with it: nothing of its pageblock would be left for another.
#[test]
fn a_whole_pageblock_is_not_reserved() {
    let config = marked(Generation::V6_1).but(|config| config.watermark_scale = 1000);
    let world = Spec::one_zone(51_200, 1).config(config).plain();
    world.on(0, |cpu| {
        let zone = world.zone();
        while zone.free_pages() > zone.marks().low {
            cpu.request(&page()).expect("above the mark");
        }
        for (k, list) in [(9, M), (8, Migratetype::HighAtomic)] {
            let atomic = Request::new(order(k), M).with(Flags::ATOMIC);
            let pfn = cpu.request(&atomic).expect("above the min mark");
            assert_eq!(world.allocator().frames().info(pfn).migratetype(), list, "order {k}");
        }
    });
}

/// Background reclaim that a test calls itself.
struct Later;

impl Background for Later {
    fn wake(&self, _: NodeId) {}
}

/// An unmovable page that may go below the low mark, in a zone of movable pages. No pageblock is whole: it steals from
/// a part of one.
fn steal(world: &World<Plain>, helpers: &Helpers<'_>) {
    left(world, &page());
    let unmovable = Request::new(Order::ZERO, Migratetype::Unmovable).with(Flags::HIGH);
    world.on(0, |cpu| cpu.alloc_with(&unmovable, helpers)).expect("above the mark");
}

/// Without background reclaim a boost would stay for ever.
#[test]
fn a_steal_without_background_reclaim_boosts_nothing() {
    let config = marked(Generation::V6_1).but(|config| config.boost_factor = 15_000);
    let world = Spec::one_zone(16384, 1).config(config).plain();
    let before = world.zone().marks();
    steal(&world, &Helpers::NONE);
    assert_eq!((world.counts().fallbacks, world.zone().marks()), (1, before));
}

/// A steal that fragments raises the marks; the boost is bounded.
#[test]
fn a_fragmenting_steal_boosts_the_marks() {
    let config = marked(Generation::V6_1).but(|config| config.boost_factor = 15_000);
    let world = Spec::one_zone(16384, 1).config(config).plain();
    let before = world.zone().marks();
    steal(&world, &Helpers::NONE.with_background(&Later));
    let after = world.zone().marks();
    assert_eq!(world.counts().fallbacks, 1);
    assert_eq!(after.min - before.min, 512, "one pageblock, for 1.5 times the high mark is less");
    // A page for a request that cannot wait may come out of the boost.
    let atomic = page().with(Flags::ATOMIC);
    let ordinary = page().with(Flags::NO_WAIT);
    assert!(world.on(0, |cpu| cpu.request(&ordinary)).is_err());
    assert!(world.on(0, |cpu| cpu.request(&atomic)).is_ok());
    assert_eq!(left(&world, &atomic), 96, "as if there were no boost");
    // Background reclaim works for it, and it is over.
    let nothing = reclaimer(0, |_, _| Reclaimed::default());
    let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
    let helpers = Helpers::NONE.with_reclaim(&nothing);
    let rest = world.on(0, |cpu| cpu.background(NodeId(0), asked, &helpers));
    assert!(!rest.balanced);
    assert_eq!(world.zone().marks(), before);
}

/// A zone gets its first memory while background reclaim works on its node: the boost of another zone is over after it.
#[test]
fn memory_that_appears_beside_background_reclaim_keeps_no_boost_up() {
    let config = marked(Generation::V6_1).but(|config| config.boost_factor = 15_000);
    let zone = |kind, start, pages| ZoneSpec { node: NodeId(0), kind, start, pages };
    let normal = BASE.add(MAX_ORDER.pages());
    let zones = [zone(ZoneType::Dma32, BASE, MAX_ORDER.pages()), zone(ZoneType::Normal, normal, 16384)];
    let world = Spec::zones(zones, 1).memory([(normal, 16384)]).config(config).plain();
    steal(&world, &Helpers::NONE.with_background(&Later));
    let marks = || (world.allocator().zones()[1].marks(), world.allocator().watermarks(ZoneId(1)));
    assert_ne!(marks().0, marks().1, "the steal has boosted them");
    let brings = reclaimer(0, |_, _| {
        let _is_there = world.allocator().online(BASE, PAGEBLOCK_PAGES);
        Reclaimed::default()
    });
    let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
    world.on(0, |cpu| cpu.background(NodeId(0), asked, &Helpers::NONE.with_reclaim(&brings)));
    assert_eq!(world.allocator().zones()[0].managed_pages(), PAGEBLOCK_PAGES);
    assert_eq!(marks().0, marks().1);
}

/// An unmovable request that finds only small movable blocks takes its pageblock along in v6.1, and one block in v3.0.
#[test]
fn each_generation_steals_as_it_does() {
    for (generation, retyped) in [(Generation::V3_0, 0), (Generation::V6_1, 1)] {
        let world = world(generation, 16384);
        let all = page().with(Flags::VICTIM);
        world.on(0, |cpu| {
            let blocks: Vec<_> = cpu.request_all(&all);
            assert_eq!(blocks.len(), 16384);
            // Seven of eight pages of one pageblock, so that no block of order 3 comes together.
            let most = blocks.iter().filter(|pfn| pfn.block_start(PAGEBLOCK_ORDER) == BASE && pfn.0 % 8 > 0);
            most.for_each(|&pfn| cpu.must_free(pfn, 0));
            let unmovable = Request::new(Order::ZERO, Migratetype::Unmovable).with(Flags::VICTIM);
            cpu.request(&unmovable).expect("448 pages are free");
        });
        let counts = world.counts();
        assert_eq!((counts.fallbacks, counts.retyped), (1, retyped), "{generation:?}");
        world.settled();
    }
}

/// Linux reads the free areas without the lock to check a mark, and so do its presets: where the numbers alone would
/// do, and no block is large enough, an attempt to allocate one takes no lock.
#[test]
fn marks_are_checked_without_the_lock() {
    let order = order(3);
    for generation in GENERATIONS {
        for (engine, locks) in [(Engine::Linux, false), (Engine::Framewright, true)] {
            let config = marked(generation).engine(engine);
            let world: World<Checked> = Spec::one_zone(16384, 1).config(config).build();
            world.on(0, |cpu| {
                let all = page().with(Flags::VICTIM);
                let blocks: Vec<_> = cpu.request_all(&all);
                let most = blocks.iter().filter(|pfn| pfn.0 % 8 > 0);
                most.for_each(|&pfn| cpu.must_free(pfn, 0));
                // The lists learn that memory is not short any more.
                let pfn = cpu.must_alloc(0);
                cpu.must_free(pfn, 0);
                let zone = &cpu.allocator().zones()[0];
                assert_eq!(zone.free_pages(), 16384 / 8 * 7);
                let request = Request::new(order, M).with(Flags::NO_WAIT);
                let (error, tally) =
                    checked::tally(|| cpu.request(&request).expect_err("no block is so large"));
                // One lock at the end, to explain the failure.
                assert_eq!(tally.rmws > 2, locks, "{generation:?} {engine:?}: {tally:?}, {error}");
            });
            world.settled();
        }
    }
}
