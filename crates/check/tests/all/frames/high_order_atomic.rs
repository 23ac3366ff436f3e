//! A high-order request that cannot wait, and a reserve for it: the per-CPU lists are stocked.

use core::cell::RefCell;

use framewright_check::prelude::*;

const ORDER: Order = order(2);

/// A zone at its min mark, with a free pageblock in reserve and movable blocks of order 2 on the CPU's list; none
/// there is unmovable. Returns the block that an unmovable request that cannot wait gets, and the filling.
fn atomic_block(world: &World<Plain>) -> (Pfn, Vec<Pfn>) {
    let zone = world.zone();
    assert!(world.allocator().set_pageblock_type(BASE, Migratetype::HighAtomic).is_some(), "a reserve");
    world.on(0, |cpu| {
        let listed = cpu.must_alloc(ORDER);
        // Does not take the reserve.
        let page = page().with(Flags::NO_WAIT.and(Flags::NO_RESERVES));
        let filling: Vec<_> = cpu.request_all(&page);
        cpu.must_free(listed, ORDER);
        assert!(zone.free_pages() >= 512, "the reserve is whole");
        assert!(cpu.allocator().pcp(ZoneId(0), cpu.id()).count() >= 4, "the movable list is stocked");
        let atomic = Request::new(ORDER, Migratetype::Unmovable).with(Flags::ATOMIC);
        (cpu.request(&atomic).expect("the reserve is for it"), filling)
    })
}

fn world() -> World<Plain> {
    let config = Config::framewright()
        .policies(Generation::V6_1)
        .orders(PcpOrders::UpToCostlyAndHuge)
        .but(|config| config.boost_factor = 0);
    Spec::one_zone(131_072, 1).config(config.with_marks()).build()
}

#[test]
fn a_high_order_atomic_block_comes_from_the_reserve() {
    let world = world();
    let (block, _) = atomic_block(&world);
    let frames = world.allocator().frames();
    let list = frames.info(block).migratetype();
    let (_, State::Taken { asked, .. }) = frames.find(block) else { panic!("it is taken") };
    assert_eq!(
        (list, asked),
        (Migratetype::HighAtomic, Migratetype::Unmovable),
        "(its pageblock, what its head says was asked)"
    );
}

/// It is not offered to helpers that move movable blocks.
#[test]
fn a_high_order_atomic_block_is_not_moved_by_compaction() {
    let world = world();
    let (block, filling) = atomic_block(&world);
    let offered = RefCell::new(Vec::new());
    let hook = mover(|from, _, _| {
        offered.borrow_mut().push(from);
        Migrated::Stays
    });
    world.on(0, |cpu| {
        // One page of each pageblock stays: blocks are not moved into whole free ones.
        let most = filling.into_iter().filter(|pfn| pfn.0 % PAGEBLOCK_PAGES != 0);
        most.for_each(|pfn| cpu.must_free(pfn, 0));
        cpu.drain();
        cpu.compact(ZoneId(0), &hook);
    });
    let offered = offered.take();
    assert!(!offered.is_empty(), "compaction works");
    assert!(!offered.contains(&block), "{block:?}, unmovable, was offered to the migrate hook");
}

/// A single page for a request that cannot wait comes from the reserve when no other is left; two at once come from
/// there first.
#[test]
fn single_pages_come_from_the_reserve_at_last() {
    let config = marked(Generation::V6_1);
    let world = Spec::one_zone(8 * PAGEBLOCK_PAGES, 1).config(config).plain();
    let is_reserved =
        |pfn: Pfn| world.allocator().frames().info(pfn).migratetype() == Migratetype::HighAtomic;
    assert!(world.allocator().set_pageblock_type(BASE, Migratetype::HighAtomic).is_some());
    world.on(0, |cpu| {
        // Does not take the reserve.
        let ordinary = cpu.request_all(&page().with(Flags::NO_WAIT.and(Flags::NO_RESERVES)));
        assert!(!ordinary.into_iter().any(is_reserved));
        let two = cpu.request(&Request::new(order(1), M).with(Flags::ATOMIC)).expect("the reserve is for it");
        assert!(is_reserved(two));
        let pages: Vec<bool> =
            cpu.request_all(&page().with(Flags::ATOMIC)).into_iter().map(is_reserved).collect();
        assert!(pages.is_sorted() && pages.contains(&false) && pages.contains(&true), "{pages:?}");
    });
}
