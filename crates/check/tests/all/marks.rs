//! Watermarks in the slow path: who is served down to where, in both generations.

use framewright::config::{Config, Generation, PcpOrders};
use framewright::error::AllocFailure;
use framewright::reclaim::{Ask, Asked, Reclaim, Reclaimed, Release};
use framewright::units::{Migratetype, NodeId, Order, Pfn, ZoneType};
use framewright::zone::ZoneSpec;
use framewright::{Flags, Helpers, Request};
use framewright_check::fixture::{Spec, World};
use framewright_check::platform::plain::Plain;

const BOTH: [Generation; 2] = [Generation::V3_0, Generation::V6_1];

fn config(generation: Generation) -> Config {
    Config { generation, pcp_orders: PcpOrders::None, boost_factor: 0, ..Config::framewright() }.with_marks()
}

fn world(generation: Generation, pages: u64) -> World<Plain> {
    Spec::one_zone(pages, 1).config(config(generation)).build()
}

/// Allocates single pages until one is refused; what is left free then.
fn left(world: &World<Plain>, request: &Request<'_>) -> u64 {
    world.on(0, |cpu| while cpu.alloc_with(request, &Helpers::NONE).is_ok() {});
    world.allocator().free_pages()
}

fn page() -> Request<'static> {
    Request::new(Order::ZERO, Migratetype::Movable)
}

/// The lowest count at which a request is refused: free must exceed the mark, and in v3.0 two pages more.
#[test]
fn each_kind_of_request_has_its_floor() {
    for generation in BOTH {
        let slack = if generation == Generation::V3_0 { 2 } else { 0 };
        // 64 MiB: isqrt(16 · 65536 KiB) = 1024 KiB, 256 pages.
        let of = |flags| left(&world(generation, 16384), &page().with(flags));
        assert_eq!(world(generation, 16384).allocator().zones()[0].marks().min, 256);
        assert_eq!(of(Flags::NONE), 256 + slack, "{generation:?}");
        assert_eq!(of(Flags::HIGH), 128 + slack, "{generation:?}");
        assert_eq!(of(Flags::ATOMIC), 96 + slack, "{generation:?}");
        let no_wait = if generation == Generation::V3_0 { 192 + slack } else { 256 };
        assert_eq!(of(Flags::NO_WAIT), no_wait, "{generation:?}");
        assert_eq!(of(Flags::ATOMIC.and(Flags::NO_RESERVES)), 128 + slack, "{generation:?}");
        assert_eq!(of(Flags::VICTIM), 0, "{generation:?}");
    }
}

#[test]
fn a_refusal_at_the_mark_says_so() {
    for generation in BOTH {
        let world = world(generation, 16384);
        left(&world, &page());
        let error = world.on(0, |cpu| cpu.alloc_with(&page(), &Helpers::NONE)).expect_err("at the mark");
        assert_eq!(error.why, AllocFailure::BelowMark);
        let zone = error.zones[0].expect("one zone was tried");
        assert_eq!(zone.kept, 256);
        assert!(error.to_string().contains("256 pages kept"), "{error}");
        left(&world, &page().with(Flags::VICTIM));
        let error = world.on(0, |cpu| cpu.alloc_with(&page(), &Helpers::NONE)).expect_err("empty");
        assert_eq!(error.why, AllocFailure::NoMemory);
    }
}

#[test]
fn without_marks_the_last_page_is_handed_out() {
    let world: World<Plain> = Spec::one_zone(16384, 1).build();
    assert_eq!(world.allocator().zones()[0].marks().min, 0);
    assert_eq!(left(&world, &page()), 0);
}

/// A request that could be served from above must leave the low zone its reserve; one that cannot, need not.
#[test]
fn low_memory_is_kept_for_those_who_need_it() {
    let zone = |kind, start, pages| ZoneSpec { node: NodeId(0), kind, start: Pfn(start), pages };
    for generation in BOTH {
        let zones = [zone(ZoneType::Dma32, 0x1000, 8192), zone(ZoneType::Normal, 0x1000 + 8192, 262_144)];
        let world: World<Plain> = Spec::zones(zones, 1).config(config(generation)).build();
        let low = &world.allocator().zones()[0];
        assert_eq!((low.reserve(ZoneType::Normal), low.reserve(ZoneType::Dma32)), (1024, 0));
        left(&world, &page());
        let slack = if generation == Generation::V3_0 { 2 } else { 0 };
        assert_eq!(low.free_pages(), low.marks().min + 1024 + slack, "{generation:?}");
        left(&world, &page().up_to(ZoneType::Dma32));
        assert_eq!(low.free_pages(), low.marks().min + slack, "{generation:?}");
    }
}

/// v6.1 keeps a pageblock for high-order requests that cannot wait, and gives it back before it fails others.
#[test]
fn a_reserve_for_high_orders_that_cannot_wait() {
    let world = world(Generation::V6_1, 131_072);
    let order = Order::new(3).expect("an order");
    let atomic = Request::new(order, Migratetype::Unmovable).with(Flags::ATOMIC);
    left(&world, &page());
    let block = world.on(0, |cpu| cpu.alloc_with(&atomic, &Helpers::NONE)).expect("the reserve is for it");
    let info = world.allocator().frames().info(block);
    assert_eq!(info.migratetype(), Migratetype::HighAtomic);
    let next = world.on(0, |cpu| cpu.alloc_with(&atomic, &Helpers::NONE)).expect("from the same pageblock");
    assert_eq!(world.allocator().frames().info(next).migratetype(), Migratetype::HighAtomic);
    world.on(0, |cpu| cpu.free(next, order)).expect("it is allocated");
    let refused = world.on(0, |cpu| cpu.alloc_with(&page(), &Helpers::NONE)).is_err();
    assert!(refused, "an ordinary request does not get it by the way");
    assert_ne!(world.allocator().frames().info(block).migratetype(), Migratetype::HighAtomic, "given back");
    world.settled();
}

/// A steal that fragments raises the marks; the boost is bounded.
#[test]
fn a_fragmenting_steal_boosts_the_marks() {
    let config = Config { boost_factor: 15_000, ..config(Generation::V6_1) };
    let world: World<Plain> = Spec::one_zone(16384, 1).config(config).build();
    let before = world.allocator().zones()[0].marks();
    // All pageblocks are movable, and none is whole when the low mark is reached: an unmovable page steals
    // from a part.
    left(&world, &page());
    world
        .on(0, |cpu| {
            cpu.alloc_with(
                &Request::new(Order::ZERO, Migratetype::Unmovable).with(Flags::HIGH),
                &Helpers::NONE,
            )
        })
        .expect("above the mark");
    let after = world.allocator().zones()[0].marks();
    assert_eq!(world.allocator().zone_snapshot(&world.allocator().zones()[0]).counts.fallbacks, 1);
    assert_eq!(after.min - before.min, 512, "one pageblock, for 1.5 times the high mark is less");
    // Background reclaim works for it, and it is over.
    struct Nothing;
    impl Reclaim for Nothing {
        fn reclaim(&self, _: &Ask<'_>, _: &dyn Release) -> Reclaimed {
            Reclaimed::default()
        }
    }
    let asked = Asked { order: Order::ZERO, highest: ZoneType::Normal };
    let helpers = Helpers { reclaim: Some(&Nothing), ..Helpers::NONE };
    let rest = world.on(0, |cpu| cpu.background(NodeId(0), asked, &helpers));
    assert!(!rest.balanced);
    assert_eq!(world.allocator().zones()[0].marks(), before);
}
