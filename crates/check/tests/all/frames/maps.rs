//! Free memory kept as bits: what stays contiguous, what lists set aside, damage.

use std::collections::BTreeSet;

use framewright_check::prelude::*;

fn world_in(engine: Engine, pages: u64) -> World<Plain> {
    Spec::one_zone(pages, 1).engine(engine).bare().build()
}

fn world(pages: u64) -> World<Plain> {
    world_in(Engine::Framewright, pages)
}

/// All frames are allocated and a random half is freed; then frames are freed and allocated again one by one, so that
/// emptier pageblocks give way to fuller ones. With lists it is LLFree's own fragmentation run, as published: 200 times
/// a tenth of the pages.
#[test]
fn pages_swapped_one_by_one_leave_whole_pageblocks() {
    for (config, blocks, swaps, percent) in [(bare(), 64, 20, 96), (Config::default(), 128, 20, 98)] {
        let world = Spec::one_zone(blocks * PAGEBLOCK_PAGES, 1).config(config).plain();
        let mut rng = fastrand::Rng::with_seed(5);
        let mut random = |below: usize| rng.usize(..below);
        let mut held = world.alloc_all(0, 0);
        assert_eq!(held.len() as u64, blocks * PAGEBLOCK_PAGES);
        world.on(0, |cpu| {
            for _ in 0..held.len() / 2 {
                cpu.must_free(held.swap_remove(random(held.len())), 0);
            }
            for _ in 0..swaps * held.len() {
                let n = random(held.len());
                cpu.must_free(held[n], 0);
                held[n] = cpu.must_alloc(0);
            }
        });
        let used: BTreeSet<_> = held.iter().map(|pfn| pfn.block_start(PAGEBLOCK_ORDER)).collect();
        let whole = blocks - used.len() as u64;
        assert!(
            whole * 100 >= blocks / 2 * percent,
            "{whole} of {} pageblocks have no page in use",
            blocks / 2
        );
        world.on(0, |cpu| cpu.drain());
        assert!(world.allocator().free_blocks(PAGEBLOCK_ORDER) >= whole);
    }
}

/// A small block does not break what a larger one will want, although the pageblock that has it is fuller.
#[test]
fn small_blocks_leave_large_ones_whole() {
    let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).bare().plain();
    world.on(0, |cpu| {
        let held = cpu.alloc_all(0);
        let start = held.iter().min().expect("there is memory").block_start(PAGEBLOCK_ORDER);
        let mut free = |n: u64| cpu.must_free(start.add(n), 0);
        (8..16).for_each(&mut free);
        // Twenty single frames in the other one.
        (0..20).for_each(|n| free(PAGEBLOCK_PAGES + 2 * n));
        for _ in 0..20 {
            let pfn = cpu.must_alloc(0);
            assert_eq!(pfn.block_start(PAGEBLOCK_ORDER), start.add(PAGEBLOCK_PAGES));
        }
        assert_eq!(cpu.alloc(order(3), M).ok(), Some(start.add(8)));
    });
}

/// A block that is set aside has no owner, counts as on the lists, and goes back when a CPU asks, when its CPU leaves,
/// from time to time, and where the lists shrink.
#[test]
fn blocks_set_aside_go_back() {
    let pages = 4 * PAGEBLOCK_PAGES;
    let give_back: [fn(&World<Plain>, Pfn); 4] = [
        |world, block| {
            world.allocator().request_drain();
            world.must_free(0, block, 0);
        },
        |world, _| world.on(0, |cpu| cpu.drain()),
        |world, _| world.on(0, |cpu| cpu.tick()),
        |world, _| {
            let small = Sizing { batch: 1, high_min: 0, high_max: 0 };
            world.allocator().resize_pcps_of(ZoneId(0), small);
            // Of another order, so that it is not what was set aside.
            let last = world.must_alloc(0, 1);
            world.must_free(0, last, 1);
        },
    ];
    for (give_back, engine) in give_back.into_iter().flat_map(|how| FORMS.map(|form| (how, form))) {
        let world = Spec::one_zone(pages, 2).engine(engine).fixed(8, 16).plain();
        let held: Vec<_> = world.on(0, |cpu| (0..8).map(|_| cpu.must_alloc(Order::ZERO)).collect());
        let pcp = world.pcp(0);
        world.fill_elsewhere(0, 16);
        assert_eq!(pcp.count(), 0);
        let (block, orders) = (held[0], [Order::ZERO, order(1)]);
        world.must_free(0, block, 0);
        assert_eq!((pcp.count(), world.settled().on_pcp), (1, 1));
        assert_eq!(world.allocator().free_pages(), pages - 24, "the zone does not have it yet");
        for (cpu, order) in [0, 1].into_iter().flat_map(|cpu| orders.map(|order| (cpu, order))) {
            let refused = world.on(cpu, |cpu| cpu.free(block, order)).expect_err("no CPU has it");
            assert_eq!(refused.why, FreeFailure::NotAllocated, "{refused}");
            assert!(!world.on(cpu, |cpu| cpu.free_hit(block, order)));
        }
        assert_eq!(world.on(0, |cpu| cpu.alloc_hit(Order::ZERO, M)), None);
        give_back(&world, held[1]);
        let account = world.settled();
        let frames = world.allocator().frames();
        assert!(matches!(frames.find(block).1, State::Free { .. }), "{account:?}");
        world.on(0, |cpu| cpu.free(block, Order::ZERO)).expect_err("it is free");
    }
}

#[test]
fn types_are_kept_apart() {
    let world = world(64 * PAGEBLOCK_PAGES);
    world.on(0, |cpu| {
        for n in 0..8 * PAGEBLOCK_PAGES {
            let asked = [M, Migratetype::Unmovable, Migratetype::Reclaimable][(n % 3) as usize];
            let pfn = cpu.must_alloc_of(0, asked);
            assert_eq!(world.allocator().frames().info(pfn).migratetype(), asked);
        }
    });
    assert!(world.allocator().free_blocks(PAGEBLOCK_ORDER) >= 64 - 10);
}

/// A stray write to a link or to a bin: the bins are made again, and nothing is lost.
#[test]
fn damaged_bins_are_made_anew() {
    for (block, engine) in (0..3_u64).flat_map(|block| FORMS.map(|form| (block, form))) {
        // Among them: a largest free block of orders 9 and 15, which an open pageblock cannot have.
        let wrong =
            [4 << 55 | 5 << 45 | 9 << 38, 4 << 55 | 5 << 45 | 15 << 38, 4 << 55 | 0x3ff << 45 | 8 << 38];
        let rest = [0, 4 << 55, 4 << 55 | 3 << 38, 4 << 55 | 1 << 38 | 0x7_ffff, 2 << 55 | 9 << 48];
        for value in rest.into_iter().chain(wrong) {
            let world = world_in(engine, 3 * PAGEBLOCK_PAGES);
            let held: Vec<_> = world.on(0, |cpu| {
                let all = cpu.alloc_all(0);
                assert_eq!(all.len() as u64, 3 * PAGEBLOCK_PAGES);
                let (back, held): (Vec<_>, Vec<_>) = all.into_iter().partition(|pfn| pfn.0 % 4 == 1);
                back.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
                held
            });
            world.corrupt(Spot::PageblockHead(BASE.add(block * PAGEBLOCK_PAGES)), value);
            let mut seen: BTreeSet<_> = held.iter().copied().collect();
            world.on(0, |cpu| {
                let got = cpu.alloc_all(0);
                assert!(got.iter().all(|&pfn| seen.insert(pfn)), "a frame was handed out twice");
                got.into_iter().chain(held).for_each(|pfn| cpu.must_free(pfn, 0));
            });
            let zone = world.zone();
            let counts = world.allocator().zone_snapshot(zone).counts;
            assert!(counts.rebuilt_bins > 0, "{block}, {value:#x}: {counts:?}");
        }
    }
}

/// Memory after untouched memory is added, and used, and what is before it stays as it is.
#[test]
fn untouched_memory_ends_where_the_next_begins() {
    let half = 8 * PAGEBLOCK_PAGES;
    let world = Spec::one_zone(2 * half, 1)
        .memory([(BASE, half), (BASE.add(half), half)])
        .bare()
        .engine(Engine::Framewright)
        .but(|config| config.lazy_pageblocks = true)
        .plain();
    assert_eq!(world.settled().free, 2 * half);
    let last = BASE.add(half - PAGEBLOCK_PAGES);
    assert!(!world.allocator().frames().contains(last), "no CPU has touched it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(BASE.add(half), PAGEBLOCK_ORDER)), Ok(()));
    assert!(!world.allocator().frames().contains(last), "no CPU has asked for it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(last, PAGEBLOCK_ORDER)), Ok(()));
    assert_eq!(world.settled().free, 2 * half - 2 * PAGEBLOCK_PAGES);
}

/// A refill takes from 32 pageblocks in one hold of the lock, and leaves the others for the next one.
#[test]
fn a_refill_takes_from_thirty_two_words() {
    let world = Spec::one_zone(40 * PAGEBLOCK_PAGES, 1).fixed(64, 64).plain();
    world.on(0, |cpu| {
        for (start, n) in
            (0..40).flat_map(|n| (0..9).map(move |order| (BASE.add(n * PAGEBLOCK_PAGES), order)))
        {
            cpu.must_alloc_at(start.add(1 << n), n);
        }
        for left in [31, 7] {
            cpu.must_alloc(0);
            assert_eq!(cpu.allocator().pcp_pages(), left);
            for _ in 0..left {
                cpu.must_alloc(0);
            }
        }
        assert!(cpu.alloc(Order::ZERO, M).is_err());
    });
    world.settled();
    // Whole pageblocks are in no word of a map.
    let world = Spec::one_zone(64 * PAGEBLOCK_PAGES, 1).fixed(40 << 9, 64 << 9).plain();
    world.must_alloc(0, PAGEBLOCK_ORDER);
    assert_eq!(world.allocator().pcp_pages(), 39 * PAGEBLOCK_PAGES);
}
