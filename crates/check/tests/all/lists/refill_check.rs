//! The check of refilled blocks in its three places: who pays for it, what a bad frame does, and what it does to
//! the counter of free CMA pages.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use framewright_check::prelude::*;
use framewright_check::slot::checks;

const PAGES: u64 = 16 * PAGEBLOCK_PAGES;

/// A zone of CMA pageblocks in which frame `bad` is bad, if there is such a frame.
fn world(refill_check: RefillCheck, order: Order, bad: Option<Pfn>) -> World<Checked, Slot> {
    let fixed = PcpFixed { batch: 4 << order.get(), high: 1 << 20 };
    let config = Config::linux_v6_1().check(refill_check).but(|config| {
        config.experiment.pcp_fixed = Some(fixed);
        config.experiment.pcp_min_refill = 0;
    });
    let world = Spec::one_zone(PAGES, 1).config(config).build_with(|pfn| Slot::bad(Some(pfn) == bad));
    for n in 0..PAGES / PAGEBLOCK_PAGES {
        world
            .allocator()
            .set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), Migratetype::Cma)
            .expect("memory");
    }
    world.settled();
    world
}

/// Orders with lists, and one (the last) without.
const ORDERS: [u8; 5] = [0, 1, 3, 9, 5];

#[test]
fn a_bad_frame_is_found_where_the_check_is() {
    for order in ORDERS.map(order) {
        let listed = order.get() != 5;
        // The last frame of the second block.
        let second = BASE.add(order.pages());
        let bad = second.add(order.pages() - 1);
        for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock, RefillCheck::Off] {
            let world = world(check, order, Some(bad));
            let before = checks();
            let blocks = world.on(0, |cpu| [(); 2].map(|()| cpu.must_alloc(order)));
            let zone = world.zone();
            let gone = PAGES - zone.free_pages();
            let drift = zone.free_cma_pages() as i64 - zone.free_pages() as i64;
            let events = world.pcp(0).events();
            let context = format!("order {order}, {check:?}: {blocks:?}, {events:?}");
            assert_eq!(blocks[0], BASE, "{context}");
            if check == RefillCheck::Off {
                assert_eq!(blocks[1], second, "{context}");
                assert_eq!((events.bad_pages, checks() - before, drift), (0, 0, 0), "{context}");
                assert_eq!(world.settled().quarantined, 0, "{context}");
                continue;
            }
            assert_eq!(blocks[1], second.add(order.pages()), "the bad block is passed over; {context}");
            assert_eq!(events.bad_pages, order.pages(), "{context}");
            // A refill brings four blocks; without lists, three are taken one by one.
            assert_eq!(gone, if listed { 4 } else { 3 } * order.pages(), "{context}");
            if check == RefillCheck::AfterUnlock {
                assert_eq!(drift, 0, "{context}");
                assert_eq!(world.settled().quarantined, order.pages(), "{context}");
            } else {
                assert_eq!(drift, order.pages() as i64, "{context}");
                let violation = world.allocator().verify().expect_err("the counter is wrong");
                assert_eq!(violation.what, "free CMA pages are not the sum of the CMA lists");
                world.note_damage();
            }
            // No CPU gets it again.
            world.on(0, |cpu| {
                while let Ok(pfn) = cpu.alloc(order, M) {
                    assert_ne!(pfn, second, "{context}");
                }
            });
        }
    }
}

/// The check visits every frame of a refill once, at the refill and at no other time; `off` visits none.
#[test]
fn the_check_costs_a_visit_per_refilled_frame() {
    for order in [0, 3, 9].map(order) {
        for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock, RefillCheck::Off] {
            let world = world(check, order, None);
            let before = checks();
            let visits = if check == RefillCheck::Off { 0 } else { 4 * order.pages() };
            world.on(0, |cpu| {
                let first = cpu.must_alloc(order);
                assert_eq!(checks() - before, visits, "order {order}, {check:?}");
                let blocks = [(); 3].map(|()| cpu.must_alloc(order));
                for block in blocks.into_iter().chain([first]) {
                    cpu.must_free(block, order);
                }
                cpu.drain();
            });
            assert_eq!(checks() - before, visits, "neither hits nor frees check; order {order}, {check:?}");
            world.settled();
        }
    }
}

fn poisoned() -> World<Checked> {
    Spec::one_zone(PAGEBLOCK_PAGES, 1).config(Config::default().but(|config| config.poison = true)).build()
}

/// A block that was written to after it had been freed is put out of use and counted, wherever it waits.
#[test]
fn poison_finds_a_write_after_the_free() {
    for drained in [false, true] {
        let world = poisoned();
        let frame = world.on(0, |cpu| {
            let frame = cpu.must_alloc(0);
            cpu.must_free(frame, 0);
            if drained {
                cpu.drain();
            }
            frame
        });
        world.scribble(frame);
        world.on(0, |cpu| assert!(!cpu.alloc_all(0).contains(&frame), "drained: {drained}"));
        let events = world.allocator().totals().pcp;
        assert_eq!((events.poison_overwrites, events.bad_pages), (1, 1), "drained: {drained}");
        assert_eq!(world.settled().quarantined, 1, "drained: {drained}");
    }
}

/// What is taken because it is free in a pageblock is checked, too: single frames, and whole pageblocks.
#[test]
fn what_is_free_in_a_pageblock_is_checked() {
    for (engine, held) in STORES.into_iter().flat_map(|engine| [false, true].map(|held| (engine, held))) {
        let spec = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).engine(engine).bare();
        let poisoned = spec.clone().but(|config| config.poison = true).plain();
        poisoned.scribble(BASE.add(5));
        let is_bad = |pfn| Slot::bad(pfn == BASE.add(5));
        let checked: World<Plain, Slot> = spec.check(RefillCheck::AfterUnlock).build_with(is_bad);
        let bad = [free_in_first(&poisoned, held), free_in_first(&checked, held)];
        assert_eq!(bad, [[false, true]; 2], "{engine:?}, {held}");
    }
}

/// Whether a block that is free in the first pageblock has its frame 5, which is bad; and whether that is out of use.
fn free_in_first<M: FrameUser>(world: &World<Plain, M>, is_held: bool) -> [bool; 2] {
    if is_held {
        world.on(0, |cpu| cpu.must_alloc_at(BASE.add(6), 0));
    }
    let mut out = [(Pfn(0), Order::ZERO); 64];
    let blocks = world.on(0, |cpu| cpu.take_free(BASE, Order::ZERO, &mut out));
    let holds = |&(pfn, order): &(Pfn, Order)| (pfn.0..pfn.0 + order.pages()).contains(&BASE.add(5).0);
    [out[..blocks].iter().any(holds), world.settled().quarantined != 0]
}

/// A panic under the zone lock, here of a check in a refill, leaves the counters as the lists are.
#[test]
fn a_panic_under_the_lock_leaves_the_counters_right() {
    for engine in STORES {
        let world = Spec::one_zone(4096, 1)
            .engine(engine)
            .check(RefillCheck::UnderZoneLock)
            .build_with::<Plain, _>(|pfn| if pfn == BASE.add(1) { Slot::PANICS } else { Slot::GOOD });
        let pin = world.pin(0);
        let alloc = || world.cpu(&pin).alloc(order(3), M);
        catch_unwind(AssertUnwindSafe(alloc)).expect_err("the check panics");
        // The blocks of that refill are lost: `verify` says so.
        world.note_damage();
        let zone = world.allocator().zone_snapshot(world.zone());
        let listed: u64 = zone.nr_free.iter().enumerate().map(|(order, blocks)| blocks << order).sum();
        assert!(listed < 4096);
        assert_eq!(zone.free, listed, "{engine:?}");
    }
}

/// A check that panics after the lock was released leaves its blocks on no list: what is handed out later was checked,
/// and its free is one of an allocated block.
#[test]
fn a_panic_after_the_lock_leaves_no_block_on_a_list() {
    for engine in STORES {
        let world = Spec::one_zone(4096, 1)
            .engine(engine)
            .check(RefillCheck::AfterUnlock)
            .build_with::<Plain, _>(|pfn| if pfn == BASE.add(1) { Slot::PANICS } else { Slot::GOOD });
        let pin = world.pin(0);
        let alloc = || world.cpu(&pin).alloc(Order::ZERO, M);
        let is_lost = (0..4096).any(|_| catch_unwind(AssertUnwindSafe(alloc)).is_err());
        assert!(is_lost, "{engine:?}: one of the checks panics");
        world.note_damage();
        let later: Vec<_> = (0..64).map(|_| world.cpu(&pin).must_alloc(Order::ZERO)).collect();
        assert!(!later.contains(&BASE.add(1)), "{engine:?}");
        later.into_iter().for_each(|pfn| world.cpu(&pin).must_free(pfn, Order::ZERO));
    }
}

/// A refill that brings fewer blocks than there is room for, one of them bad: the others are on the list.
#[test]
fn a_short_refill_drops_what_is_bad() {
    for bad in 508..512 {
        let world = Spec::one_zone(PAGEBLOCK_PAGES, 1)
            .check(RefillCheck::AfterUnlock)
            .fixed(16, 32)
            .build_with::<Plain, _>(|pfn| Slot::bad(pfn == BASE.add(bad)));
        world.on(0, |cpu| {
            for n in 0..508 {
                cpu.must_alloc_at(BASE.add(n), 0);
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
    for bad in [0, 5, 99] {
        let world = Spec::one_zone(1024, 1)
            .bare()
            .check(RefillCheck::AfterUnlock)
            .build_with::<Plain, _>(|pfn| Slot::bad(pfn == BASE.add(bad)));
        let error = world.on(0, |cpu| cpu.alloc_contig_range(BASE..BASE.add(100), &Helpers::NONE));
        assert_eq!(error.expect_err("one is bad").place.why, PlaceFailure::Bad);
        let account = world.settled();
        assert_eq!(account.allocated, 0);
        assert!(account.quarantined > 0 && account.free + account.quarantined == 1024);
    }
}
