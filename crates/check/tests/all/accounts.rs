//! The counters of a zone, whatever happens to its pageblocks: memory added to part of one, isolation, other types,
//! reserves that go offline.

use framewright::config::{Config, Experiment, Generation, PcpOrders};
use framewright::reclaim::{BackgroundRequest, Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release};
use framewright::units::{Migratetype, NodeId, Order, PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType};
use framewright::{Helpers, Request};
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::platform::plain::Plain;

const HALF: u64 = PAGEBLOCK_PAGES / 2;

/// Four pageblocks, of which half of the first has memory.
fn world() -> World<Plain> {
    Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).memory([(BASE, HALF)]).build()
}

#[test]
fn isolated_pages_that_are_added_are_not_free() {
    let world = world();
    assert_eq!(world.allocator().isolate_pageblock(BASE), Some(HALF));
    assert_eq!(world.allocator().free_pages(), 0);
    world.allocator().add_memory(BASE.add(HALF), HALF).expect("the other half was never added");
    let isolated = world.allocator().free_pages();
    assert_eq!(world.allocator().unisolate_pageblock(BASE), Some(PAGEBLOCK_PAGES));
    let back = world.allocator().free_pages();
    assert_eq!((isolated, back), (0, PAGEBLOCK_PAGES), "free pages while isolated, and after");
}

#[test]
fn the_invariants_hold_when_isolated_pages_are_added() {
    let world = world();
    world.allocator().isolate_pageblock(BASE).expect("it exists");
    world.allocator().add_memory(BASE.add(HALF), HALF).expect("the other half was never added");
    assert_eq!(world.settled().free, PAGEBLOCK_PAGES);
}

#[test]
fn cma_pages_that_are_added_are_free_cma_pages() {
    let world = world();
    world.allocator().set_pageblock_type(BASE, Migratetype::Cma).expect("it exists");
    assert_eq!(world.allocator().zones()[0].free_cma_pages(), HALF);
    world.allocator().add_memory(BASE.add(HALF), HALF).expect("the other half was never added");
    assert_eq!(world.allocator().zones()[0].free_cma_pages(), PAGEBLOCK_PAGES);
    world.settled();
}

/// A zone that background reclaim has given up gets memory: there is hope again, as when a page is freed.
#[test]
fn memory_that_comes_online_raises_hope() {
    struct Pinned;
    impl Reclaim for Pinned {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            Reclaimed { scanned: 4096 >> ask.priority, freed: 0 }
        }
        fn reclaimable(&self, _: ZoneId) -> Reclaimable {
            Reclaimable { file_lru: 4096, file: 4096, ..Reclaimable::default() }
        }
    }
    let config = Config {
        experiment: Experiment {
            marks: Generation::V3_0,
            fallback: Generation::V3_0,
            passes: Generation::V3_0,
            reclaim: Generation::V3_0,
            pcp_orders: PcpOrders::None,
            ..Experiment::default()
        },
        ..Config::framewright()
    };
    let there = 8 * PAGEBLOCK_PAGES;
    let world: World<Plain> =
        Spec::one_zone(2 * there, 1).memory([(BASE, there)]).config(config.with_marks()).build();
    let zone = &world.allocator().zones()[0];
    let helpers = Helpers::NONE.with_reclaim(&Pinned);
    world.on(0, |cpu| {
        while cpu.alloc_with(&Request::new(Order::ZERO, Migratetype::Movable), &Helpers::NONE).is_ok() {}
        for _ in 0..16 {
            cpu.background(
                NodeId(0),
                BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal },
                &helpers,
            );
        }
    });
    assert!(zone.is_unreclaimable());
    world.allocator().online(BASE.add(there), there).expect("it was never there");
    assert!(
        !zone.is_unreclaimable(),
        "{} pages are free, of {}, and the zone counts as hopeless",
        zone.free_pages(),
        zone.managed_pages()
    );
}

fn page() -> Request<'static> {
    Request::new(Order::ZERO, Migratetype::Movable)
}

fn marked() -> World<Plain> {
    let config = Config {
        boost_factor: 0,
        experiment: Experiment {
            marks: Generation::V6_1,
            fallback: Generation::V6_1,
            passes: Generation::V6_1,
            reclaim: Generation::V6_1,
            pcp_orders: PcpOrders::None,
            ..Experiment::default()
        },
        ..Config::framewright()
    };
    Spec::one_zone(16384, 1).config(config.with_marks()).build()
}

/// The last pageblock.
fn last() -> Pfn {
    BASE.add(16384 - PAGEBLOCK_PAGES)
}

/// Allocates single pages until one is refused: (free pages then, min mark).
fn left(world: &World<Plain>) -> (u64, u64) {
    world.on(0, |cpu| while cpu.alloc_with(&page(), &Helpers::NONE).is_ok() {});
    let zone = &world.allocator().zones()[0];
    (zone.free_pages(), zone.marks().min)
}

#[test]
fn a_reserved_pageblock_that_went_offline_is_not_kept_for_anybody() {
    let world = marked();
    world.allocator().set_pageblock_type(last(), Migratetype::HighAtomic).expect("it exists");
    assert_eq!(world.on(0, |cpu| cpu.offline(last()..last().add(PAGEBLOCK_PAGES))), Ok(PAGEBLOCK_PAGES));
    let (free, min) = left(&world);
    assert_eq!(free, min, "a page is refused with so many free, where so many are the min mark");
}

#[test]
fn not_even_when_it_comes_back() {
    let world = marked();
    world.allocator().set_pageblock_type(last(), Migratetype::HighAtomic).expect("it exists");
    assert_eq!(world.on(0, |cpu| cpu.offline(last()..last().add(PAGEBLOCK_PAGES))), Ok(PAGEBLOCK_PAGES));
    world.allocator().online(last(), PAGEBLOCK_PAGES).expect("it was there before");
    assert_eq!(world.allocator().frames().info(last()).migratetype(), Migratetype::Movable);
    let (free, min) = left(&world);
    assert_eq!(free, min, "a page is refused with so many free, where so many are the min mark");
}

#[test]
fn a_reserved_pageblock_that_is_isolated_is_subtracted_once() {
    let world = marked();
    world.allocator().set_pageblock_type(last(), Migratetype::HighAtomic).expect("it exists");
    assert_eq!(world.allocator().isolate_pageblock(last()), Some(PAGEBLOCK_PAGES));
    let (free, min) = left(&world);
    assert_eq!(free, min, "a page is refused with so many free, where so many are the min mark");
}
