//! Pageblocks that are isolated, lent out as CMA, or retyped, while their frames are free, allocated, or half
//! of a larger block.

use framewright::config::{Config, PcpCounting, PcpOrders};
use framewright::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::platform::checked::Checked;
use framewright_check::platform::plain::Plain;

/// Four blocks of the largest order, straight on the buddy lists.
fn world() -> World<Checked> {
    Spec::one_zone(4 * MAX_ORDER.pages(), 1)
        .config(Config { pcp_orders: PcpOrders::None, ..Config::default() })
        .build()
}

/// The second pageblock of the first largest block.
const UPPER: Pfn = BASE.add(PAGEBLOCK_PAGES);

#[test]
fn a_pageblock_that_becomes_ordinary_again_merges_again() {
    let world = world();
    for there in Migratetype::ALL.into_iter().filter(|&t| t != Migratetype::Isolate) {
        for back in Migratetype::ALL.into_iter().filter(|t| t.is_ordinary()) {
            world.allocator().set_pageblock_type(UPPER, there).expect("a pageblock with memory");
            world.settled();
            world.allocator().set_pageblock_type(UPPER, back).expect("a pageblock with memory");
            world.settled();
        }
    }
}

#[test]
fn isolation_and_its_end_leave_everything_as_it_was() {
    let world = world();
    let before = world.free_lists();
    assert_eq!(world.allocator().isolate_pageblock(UPPER), Some(PAGEBLOCK_PAGES));
    assert_eq!(world.allocator().isolate_pageblock(UPPER), None, "isolated already");
    assert_eq!(world.allocator().free_pages(), 7 * PAGEBLOCK_PAGES);
    world.settled();
    assert_eq!(world.allocator().unisolate_pageblock(UPPER), Some(PAGEBLOCK_PAGES));
    assert_eq!(world.allocator().unisolate_pageblock(UPPER), None, "isolated no longer");
    world.settled();
    assert_eq!(world.free_lists().pages(), before.pages());
    assert_eq!(world.allocator().free_blocks(MAX_ORDER), 4);
}

/// Nobody may get a frame of an isolated pageblock, whatever is asked for.
#[test]
fn isolated_frames_are_not_handed_out() {
    for asked in Migratetype::ALL {
        let world = world();
        world.allocator().isolate_pageblock(UPPER).expect("not isolated yet");
        world.on(0, |cpu| {
            while let Ok(pfn) = cpu.alloc(PAGEBLOCK_ORDER, asked) {
                assert_ne!(pfn, UPPER, "{asked} got it");
            }
        });
        world.settled();
    }
}

/// One half of a block is isolated while the whole is allocated: freed, that half stays out of use and the
/// other does not.
#[test]
fn half_of_an_allocated_block_is_isolated() {
    for isolated in [BASE, UPPER] {
        let world = world();
        world.on(0, |cpu| {
            while cpu.alloc(MAX_ORDER, Migratetype::Movable).is_ok() {}
            assert_eq!(world.allocator().isolate_pageblock(isolated), Some(0));
            cpu.free(BASE, MAX_ORDER).expect("it is allocated");
            world.settled();
            assert_eq!(world.allocator().free_pages(), PAGEBLOCK_PAGES, "the other half is free");
            let got = cpu.alloc(PAGEBLOCK_ORDER, Migratetype::Movable);
            assert_eq!(got.ok(), Some(isolated.buddy(PAGEBLOCK_ORDER)));
            assert!(cpu.alloc(Order::ZERO, Migratetype::Movable).is_err(), "nothing else is free");
        });
        assert_eq!(world.allocator().unisolate_pageblock(isolated), Some(PAGEBLOCK_PAGES));
        assert_eq!(world.settled().free, PAGEBLOCK_PAGES);
    }
}

/// One half of a block becomes CMA, or stops being it, while the whole is allocated: the counter of free CMA
/// pages follows what is on the CMA lists.
#[test]
fn half_of_an_allocated_block_changes_its_type() {
    for half in [BASE, UPPER] {
        let world = world();
        world.on(0, |cpu| {
            while cpu.alloc(MAX_ORDER, Migratetype::Movable).is_ok() {}
            world.allocator().set_pageblock_type(half, Migratetype::Cma).expect("a pageblock with memory");
            cpu.free(BASE, MAX_ORDER).expect("it is allocated");
            world.settled();
            assert_eq!(world.allocator().zones()[0].free_cma_pages(), PAGEBLOCK_PAGES);
            world
                .allocator()
                .set_pageblock_type(half, Migratetype::Movable)
                .expect("a pageblock with memory");
            world.settled();
            assert_eq!(world.allocator().zones()[0].free_cma_pages(), 0);
        });
    }
}

/// CMA pages are lent to movable requests only.
#[test]
fn cma_is_lent_to_movable_requests_only() {
    let world = world();
    for n in 0..8 {
        world
            .allocator()
            .set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), Migratetype::Cma)
            .expect("memory");
    }
    world.settled();
    world.on(0, |cpu| {
        for asked in [Migratetype::Unmovable, Migratetype::Reclaimable] {
            assert!(cpu.alloc(Order::ZERO, asked).is_err());
        }
        let pfn = cpu.alloc(Order::ZERO, Migratetype::Movable).expect("CMA is lent");
        assert_eq!(world.allocator().zones()[0].free_cma_pages(), 8 * PAGEBLOCK_PAGES - 1);
        cpu.free(pfn, Order::ZERO).expect("it is allocated");
    });
    world.settled();
}

/// Both halves of a largest block are isolated, while free or while allocated as one: each comes back on its own.
#[test]
fn two_isolated_neighbours_come_back_one_by_one() {
    for allocated in [false, true] {
        let world = world();
        world.on(0, |cpu| {
            if allocated {
                while cpu.alloc(MAX_ORDER, Migratetype::Movable).is_ok() {}
            }
            for half in [BASE, UPPER] {
                world.allocator().isolate_pageblock(half).expect("not isolated yet");
                world.settled();
            }
            if allocated {
                cpu.free(BASE, MAX_ORDER).expect("it is allocated");
                world.settled();
            }
        });
        let others = world.allocator().free_pages();
        assert_eq!(others, if allocated { 0 } else { 6 * PAGEBLOCK_PAGES });
        for (half, back) in [(BASE, 1), (UPPER, 2)] {
            assert_eq!(world.allocator().unisolate_pageblock(half), Some(PAGEBLOCK_PAGES));
            world.settled();
            assert_eq!(world.allocator().free_pages(), others + back * PAGEBLOCK_PAGES);
        }
    }
}

/// The block that was allocated last goes back to its list without a look at its pageblock, unless that is isolated: then it
/// joins the frames that are withdrawn. So also on a CPU that was not there when the pageblock was isolated.
#[test]
fn a_block_freed_into_an_isolated_pageblock_is_withdrawn() {
    for pcp_counting in [PcpCounting::EachCall, PcpCounting::SlowCalls] {
        let config = Config { pcp_counting, ..Config::default() };
        let world: World<Plain> = Spec::one_zone(64 * MAX_ORDER.pages(), 2).config(config).build();
        for order in [0, 3].map(|order| Order::new(order).expect("an order")) {
            world.on(0, |cpu| {
                let pair = || {
                    let pfn = cpu.alloc(order, Migratetype::Movable).expect("memory is left");
                    cpu.free(pfn, order).expect("it is allocated");
                };
                // Until lists have settled after their refill.
                (0..8).for_each(|_| pair());
                let hit = cpu.alloc(order, Migratetype::Movable).expect("memory is left");
                let listed = world.allocator().pcp_pages();
                world.allocator().isolate_pageblock(hit).expect("not isolated yet");
                cpu.free(hit, order).expect("it is allocated");
                assert!(world.allocator().pcp_pages() <= listed, "{pcp_counting:?}: it waits on a list");
                assert!(cpu.free(hit, order).is_err(), "freed twice");
                world.settled();
                world.allocator().unisolate_pageblock(hit).expect("isolated");
                (0..8).for_each(|_| pair());
                let before = world.allocator().totals().pcp;
                pair();
                assert_eq!(world.allocator().totals().pcp, before, "{pcp_counting:?}: hits again");
            });
        }
    }
}
