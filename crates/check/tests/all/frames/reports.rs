//! Free memory that a hook is told of: each block once, until a CPU has had some of it.

use core::cell::RefCell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use framewright_check::prelude::*;

fn worlds(pages: u64) -> [World<Plain>; 2] {
    STORES.map(|engine| {
        Spec::one_zone(pages, 1).engine(engine).bare().but(|config| config.free_reporting = true).build()
    })
}

/// Blocks that a hook is told of that wants all.
fn told(world: &World<Plain>, least: Order) -> Vec<(Pfn, Order)> {
    let all = RefCell::new(Vec::new());
    let reported = world.on(0, |cpu| {
        cpu.report_free(least, |blocks| {
            assert!(!blocks.is_empty() && blocks.len() <= REPORTED_AT_ONCE);
            // They are no other CPU's during the call.
            for &(pfn, order) in blocks {
                assert!(cpu.alloc_at(pfn, Order::ZERO).is_err() && order >= least);
            }
            all.borrow_mut().extend_from_slice(blocks);
            true
        })
    });
    let all = all.into_inner();
    assert_eq!(reported.blocks, all.len() as u64);
    assert_eq!(reported.pages, pages(&all));
    world.settled();
    all
}

fn pages(blocks: &[(Pfn, Order)]) -> u64 {
    blocks.iter().map(|(_, order)| order.pages()).sum()
}

#[test]
fn each_block_is_reported_once_until_it_is_allocated() {
    for world in worlds(96 * 1024) {
        assert_eq!(pages(&told(&world, PAGEBLOCK_ORDER)), 96 * 1024);
        let kept = told(&world, PAGEBLOCK_ORDER);
        assert!(kept.is_empty(), "told again: {kept:?}");
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), 96);
    }
}

/// A hook takes the memory of the blocks, which holds something else then: no check takes that for a write to free
/// memory.
#[test]
fn a_hook_may_write_to_what_it_is_told_of() {
    for engine in STORES {
        for wants in [Some(true), Some(false), None] {
            let spec = Spec::one_zone(4 * MAX_ORDER.pages(), 1).engine(engine).bare();
            let world = spec.but(|config| (config.poison, config.free_reporting) = (true, true)).plain();
            let pin = world.pin(0);
            let report = AssertUnwindSafe(|| {
                world.cpu(&pin).report_free(PAGEBLOCK_ORDER, |blocks| {
                    let pages = |&(pfn, order): &(Pfn, Order)| (0..order.pages()).map(move |n| pfn.add(n));
                    blocks.iter().flat_map(pages).for_each(|pfn| world.scribble(pfn));
                    wants.expect("a hook that fails")
                })
            });
            let reported = catch_unwind(report).ok();
            world.unpin(pin);
            let told = if wants == Some(true) { 4 } else { 0 };
            assert_eq!(reported.map(|reported| reported.blocks), wants.map(|_| told), "{engine:?}");
            assert_eq!(world.everything().len() as u64, 4 * MAX_ORDER.pages(), "{engine:?}, {wants:?}");
            assert_eq!(world.allocator().totals().pcp.poison_overwrites, 0, "{engine:?}, {wants:?}");
        }
    }
}

/// What is out of use may have been written to.
#[test]
fn a_frame_that_is_found_good_is_filled_again() {
    for engine in STORES {
        let spec = Spec::one_zone(MAX_ORDER.pages(), 1).engine(engine).bare();
        let world = spec.but(|config| config.poison = true).plain();
        let bad = BASE.add(77);
        world.on(0, |cpu| {
            assert_eq!(cpu.hwpoison(bad), Ok(Hwpoisoned::Withdrawn), "{engine:?}");
            world.scribble(bad);
            assert_eq!(cpu.unpoison(bad), Ok(()), "{engine:?}");
        });
        assert_eq!(world.everything().len() as u64, MAX_ORDER.pages(), "{engine:?}");
        assert_eq!(world.allocator().totals().pcp.poison_overwrites, 0, "{engine:?}");
    }
}

#[test]
fn what_was_allocated_is_reported_again() {
    for world in worlds(16 * 1024) {
        assert_eq!(pages(&told(&world, PAGEBLOCK_ORDER)), 16 * 1024);
        let at = BASE.add(3 * 1024 + 512);
        for (pfn, k) in [(at.add(7), 0), (at, 8), (at, 9), (BASE.add(4096), 10)] {
            // A given block, and any that an allocation gets.
            world.on(0, |cpu| {
                cpu.must_alloc_at(pfn, k);
                assert!(!world.allocator().frames().info(pfn).is_reported());
                cpu.must_free(pfn, k);
            });
            let again = told(&world, PAGEBLOCK_ORDER);
            assert_eq!(again, [(pfn.block_start(order(k.max(9))), order(k.max(9)))]);
            world.on(0, |cpu| {
                let pfn = cpu.must_alloc(k);
                assert!(!world.allocator().frames().info(pfn).is_reported(), "order {k}");
                cpu.must_free(pfn, k);
            });
            told(&world, PAGEBLOCK_ORDER);
        }
        // A half is smaller than what is asked for.
        world.on(0, |cpu| {
            cpu.must_alloc_at(at, 0);
            cpu.must_free(at, 0);
        });
        assert_eq!(told(&world, MAX_ORDER), []);
        assert_eq!(told(&world, order(0)), [(at, PAGEBLOCK_ORDER)], "nothing below a pageblock can be told");
    }
}

#[test]
fn who_refuses_or_panics_is_told_again() {
    for world in worlds(16 * 1024) {
        let free = world.settled().free;
        let refused = world.on(0, |cpu| cpu.report_free(PAGEBLOCK_ORDER, |_| false));
        assert_eq!(refused.blocks, 0);
        assert_eq!(world.settled().free, free);
        let pin = world.pin(0);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            world.cpu(&pin).report_free(PAGEBLOCK_ORDER, |_| panic!("a hook that fails"))
        }));
        world.unpin(pin);
        assert!(panicked.is_err());
        assert_eq!(world.settled().free, free);
        assert_eq!(pages(&told(&world, PAGEBLOCK_ORDER)), 16 * 1024);
    }
}

/// A frame may become bad while the hook has its pageblock. The other pageblock of the block is told.
#[test]
fn a_pageblock_with_a_frame_that_became_bad_meanwhile_does_not_count_as_told() {
    for world in worlds(4096) {
        let (bad, good) = (BASE.add(512 + 77), BASE);
        let found = RefCell::new(None);
        world.on(0, |cpu| {
            cpu.report_free(PAGEBLOCK_ORDER, |_| {
                found.borrow_mut().get_or_insert_with(|| cpu.hwpoison(bad));
                true
            })
        });
        assert_eq!(found.into_inner(), Some(Ok(Hwpoisoned::InUse { pfn: BASE, order: MAX_ORDER })));
        world.settled();
        let is_told = |pfn| world.allocator().frames().info(pfn).is_reported();
        assert_eq!([good, bad].map(is_told), [true, false]);
    }
}

/// Isolated memory, memory in use and an allocator without the key: nothing is told.
#[test]
fn what_is_not_free_is_not_reported() {
    for world in worlds(4096) {
        for n in 0..8 {
            world.allocator().isolate_pageblock(BASE.add(n * 512)).expect("a pageblock");
        }
        assert_eq!(told(&world, PAGEBLOCK_ORDER), []);
    }
    let world = Spec::one_zone(16 * 1024, 1).plain();
    assert_eq!(told(&world, PAGEBLOCK_ORDER), []);
}

/// Of a zone that keeps marks as many blocks are reported at once as it can miss: a largest block more than its low
/// mark stays free until the last one is taken.
#[test]
fn a_zone_near_its_low_mark_is_left_alone() {
    for engine in STORES {
        let config = bare().engine(engine).with_marks().but(|config| {
            config.free_reporting = true;
            config.min_free_kib = 16 << 10;
        });
        let world = Spec::one_zone(16 * 1024, 1).config(config).plain();
        let low = world.zone().marks().low;
        assert!(low > 4096);
        let last = BASE.add(16 * 1024);
        (1..=(16 * 1024 - low) % 1024).for_each(|n| world.must_alloc_at(0, Pfn(last.0 - n), 0));
        let spare = world.zone().free_pages() - low;
        assert_eq!((spare % 1024, pages(&told(&world, MAX_ORDER))), (0, spare), "{engine:?}");
    }
}
