//! Compaction: what it makes of fragmented zones, and what hooks cannot break.

use core::cell::Cell;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use framewright::policy::compact::{Defer, ROUND_PAGEBLOCKS};
use framewright_check::mix;
use framewright_check::prelude::*;

use super::rounds::Owner;

fn world(pages: u64, config: Config) -> World<Plain> {
    Spec::one_zone(pages, 1).config(config).build()
}

/// Half of a zone's blocks are free: at random and of order 0 it becomes 95 % of the huge pages that there could be.
/// Every other block, of each of six orders, moves whole, and it becomes all of them.
#[test]
fn a_half_empty_zone_becomes_huge_pages() {
    let presets = [Config::framewright(), Config::linux_v6_1(), Config::linux_v5_4()];
    let at_random = presets.map(|config| (config, Order::ZERO, 95));
    let larger = Order::all().take(6).map(|order| (Config::framewright(), order, 100));
    for (config, order, percent) in at_random.into_iter().chain(larger) {
        let world = world(64 * PAGEBLOCK_PAGES, config);
        let owner =
            Owner::fill(&world, order, |n, _| if percent < 100 { mix(n) >> 32 & 1 == 1 } else { n % 2 == 1 });
        let contents = owner.contents();
        let allocator = world.allocator();
        assert_eq!(allocator.free_blocks(PAGEBLOCK_ORDER), 0);
        let ideal = allocator.free_pages() / PAGEBLOCK_PAGES;
        let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &owner));
        let huge = allocator.free_blocks(PAGEBLOCK_ORDER);
        println!("{huge} of {ideal} huge pages, {done:?}");
        assert!(100 * huge >= percent * ideal, "{order:?}, {huge} of {ideal}: {}", allocator.buddyinfo());
        assert_eq!(owner.contents(), contents, "nothing was lost");
        world.settled();
        owner.free_all(&world);
    }
}

/// Unmovable blocks, and those that the hook will not move, stay where they are.
#[test]
fn what_cannot_move_stays() {
    let world = world(8 * PAGEBLOCK_PAGES, Config::framewright());
    let owner = Owner::fill(&world, Order::ZERO, |n, _| n % 2 == 1);
    let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &mover(|_, _, _| Migrated::Stays)));
    assert_eq!(done.moved, 0);
    assert!(done.stayed > 0);
    assert_eq!(world.settled().allocated, 4 * PAGEBLOCK_PAGES);
    assert_eq!(world.allocator().free_pages(), 4 * PAGEBLOCK_PAGES);
    owner.free_all(&world);
    let unmovable: Vec<Pfn> = world
        .on(0, |cpu| (0..100).map_while(|_| cpu.alloc(Order::ZERO, Migratetype::Unmovable).ok()).collect());
    let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &owner));
    assert_eq!((done.moved, done.stayed), (0, 0), "an unmovable block is not even asked for");
    world.on(0, |cpu| unmovable.into_iter().for_each(|pfn| cpu.must_free(pfn, 0)));
}

/// A hook that panics in the middle, then one that lies: the allocator's books stay right.
#[test]
fn hostile_hooks_corrupt_nothing() {
    let left = Cell::new(7);
    let panics = mover(|_, _, _| {
        left.set(left.get() - 1);
        assert!(left.get() > 0, "a hook's own mistake");
        Migrated::Stays
    });
    // It says that the block has moved, and leaves the new place unused.
    let lies = mover(|_, _, _| Migrated::Moved);
    let world = world(8 * PAGEBLOCK_PAGES, Config::framewright());
    let owner = Owner::fill(&world, Order::ZERO, |n, _| n % 2 == 1);
    let held = owner.contents().len() as u64;
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let pin = world.pin(0);
        world.cpu(&pin).compact(ZoneId(0), &panics);
    }));
    assert!(panicked.is_err());
    // The pin went with the panic; the one place that the hook had is all that is lost.
    assert_eq!(world.settled().allocated, held + 1);

    let world = self::world(8 * PAGEBLOCK_PAGES, Config::framewright());
    let owner = Owner::fill(&world, Order::ZERO, |n, _| n % 2 == 1);
    let held = owner.contents().len() as u64;
    world.on(0, |cpu| cpu.compact(ZoneId(0), &lies));
    assert_eq!(world.settled().allocated, held, "each new place is as allocated as the old one was");

    // One that frees the old place itself, and says that the allocator shall.
    let world = Spec::one_zone(8 * PAGEBLOCK_PAGES, 2).config(bare()).plain();
    let owner = Owner::fill(&world, Order::ZERO, |n, _| n % 2 == 1);
    let held = owner.contents().len() as u64;
    let frees = mover(|from, _, _| {
        world.must_free(1, from, 0);
        Migrated::Moved
    });
    let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &frees));
    assert_eq!((done.moved, world.settled().allocated), (0, held), "the allocator has moved nothing");
}

/// A huge page is had from a fragmented zone by a request that may wait, in both generations.
#[test]
fn a_request_compacts_for_itself() {
    for generation in GENERATIONS {
        let config = Config::framewright().policies(generation).orders(PcpOrders::Zero);
        let world = world(16 * PAGEBLOCK_PAGES, config.with_marks());
        let owner = Owner::fill(&world, Order::ZERO, |n, _| mix(n) >> 32 & 1 == 1);
        let request = Request::new(PAGEBLOCK_ORDER, M);
        let huge = world.on(0, |cpu| {
            cpu.request(&request).expect_err("it is fragmented");
            let helpers = Helpers::NONE.with_migrate(&owner);
            cpu.alloc_with(&request, &helpers).expect("compaction makes one")
        });
        assert!(huge >= BASE && huge.is_aligned(PAGEBLOCK_ORDER));
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!((events.compact_stall, events.compact_success), (1, 1), "{generation:?}");
        assert!(events.pgmigrate_success > 0 && events.pgmigrate_fail == 0);
        world.must_free(0, huge, PAGEBLOCK_ORDER);
        owner.free_all(&world);
    }
}

/// A request with a mover gets its block if there is a place for what is in the way, wherever that is, and moves no
/// more than the emptiest part of that size holds, to a sixteenth of it: of all parts whose owners let go of them.
#[test]
fn a_request_empties_the_emptiest_part() {
    // The last pageblock has no other to be a pair with.
    const PAGES: u64 = 17 * PAGEBLOCK_PAGES;
    let mut compacted = [0; NR_ORDERS];
    for seed in 0..if full() { 100 } else { 3 } {
        for order in Order::all().skip(1) {
            let random = |n: u64, stream: u64| mix(seed << 48 | stream << 40 | n) >> 32;
            let world = world(PAGES, bare());
            // The lower, the fuller; but one is full, and one is free where only a pair will do.
            let stays = |n: u64| match n / PAGEBLOCK_PAGES {
                12 => true,
                14 if order == MAX_ORDER => false,
                _ => random(n, 1) % PAGES < PAGES * 19 / 20 - n / 2,
            };
            let mut owner = Owner::fill(&world, Order::ZERO, |_, content| stays(content));
            owner.pinned = (0..PAGES).filter(|&n| random(n, 2) % 1800 == 0).collect();
            let request = Request::new(order, M);
            if world.on(0, |cpu| cpu.request(&request)).is_ok() {
                continue;
            }
            let parts = (0..PAGES).step_by(order.pages() as usize).map(|start| start..start + order.pages());
            let least = parts
                .filter(|part| {
                    part.end <= PAGES && !part.clone().any(|n| stays(n) && owner.pinned.contains(&n))
                })
                .map(|part| part.filter(|&n| stays(n)).count() as u64)
                .min();
            let got = world.on(0, |cpu| cpu.alloc_with(&request, &Helpers::NONE.with_migrate(&owner)));
            let moved = world.allocator().node_events(NodeId(0)).pgmigrate_success;
            assert_eq!(got.is_ok(), least.is_some(), "{order:?}, seed {seed}: {least:?}, {got:?}");
            let most = least.map_or(0, |least| least + order.pages() / 16);
            assert!(moved <= most, "{order:?}, seed {seed}: {moved} moved, at most {most}");
            compacted[order.index()] += 1;
        }
    }
    assert!(compacted[4..].iter().all(|&times| times > 0), "{compacted:?}");
}

/// What is in the way of a request moves into emptier pageblocks, too, if these cannot be emptied themselves.
#[test]
fn what_is_in_the_way_may_go_anywhere() {
    let world = world(6 * PAGEBLOCK_PAGES, bare());
    // The last is full; in each of four a block is pinned.
    let mut owner = Owner::fill(&world, Order::ZERO, |_, n| match n / PAGEBLOCK_PAGES {
        0..4 => n % 2 == 1,
        4 => n % 4 != 0,
        _ => true,
    });
    owner.pinned = (0..4).map(|pageblock| pageblock * PAGEBLOCK_PAGES + 1).collect();
    let request = Request::new(PAGEBLOCK_ORDER, M);
    let huge = world.on(0, |cpu| cpu.alloc_with(&request, &Helpers::NONE.with_migrate(&owner)));
    assert_eq!(huge, Ok(BASE.add(4 * PAGEBLOCK_PAGES)));
}

/// With maps a block of any order is won by moving pages where enough are free: none is reclaimed.
#[test]
fn a_request_moves_pages_before_it_reclaims_any() {
    for k in 1..=9 {
        let world = world(16 * PAGEBLOCK_PAGES, bare().with_marks());
        let owner = Owner::fill(&world, Order::ZERO, |_, n| n % 2 == 1);
        let asks = Cell::new(0);
        let reclaimer = reclaimer(0, |_, _| {
            asks.set(asks.get() + 1);
            Reclaimed::default()
        });
        let helpers = Helpers::NONE.with_migrate(&owner).with_reclaim(&reclaimer);
        let got = world.on(0, |cpu| cpu.alloc_with(&Request::new(order(k), M), &helpers));
        assert!(got.is_ok() && asks.get() == 0, "order {k}: {got:?}, asked {} times", asks.get());
    }
}

/// With maps a request needs hardly more free memory than its block: what is in the way moves to what is free.
#[test]
fn a_page_more_than_the_block_has_is_enough_free_memory() {
    for order in [PAGEBLOCK_ORDER, MAX_ORDER] {
        let world = world(8 * PAGEBLOCK_PAGES, bare());
        let step = 8 * PAGEBLOCK_PAGES / order.pages();
        let owner = Owner::fill(&world, Order::ZERO, |_, n| n % step != 0 && n != 1);
        assert_eq!(world.allocator().free_pages(), order.pages() + 1);
        let request = Request::new(order, M);
        let got = world.on(0, |cpu| cpu.alloc_with(&request, &Helpers::NONE.with_migrate(&owner)));
        assert!(got.is_ok(), "{order:?}: {got:?}");
    }
}

/// A request looks for what it can empty in all of a zone, also where a background round would end.
#[test]
fn a_request_looks_through_all_of_a_large_zone() {
    let last = ROUND_PAGEBLOCKS * PAGEBLOCK_PAGES;
    let world = world(last + 6 * PAGEBLOCK_PAGES, bare());
    let owner = Owner::default();
    world.on(0, |cpu| {
        let all = cpu.alloc_all(MAX_ORDER);
        for pfn in all.into_iter().filter(|pfn| pfn.0 - BASE.0 >= last) {
            cpu.must_free(pfn, MAX_ORDER);
        }
        for pfn in cpu.alloc_all(0) {
            let content = pfn.0 - BASE.0;
            if content.is_multiple_of(2) { owner.hold(pfn, content) } else { cpu.must_free(pfn, 0) }
        }
        let request = Request::new(PAGEBLOCK_ORDER, M);
        let huge = cpu.alloc_with(&request, &Helpers::NONE.with_migrate(&owner)).expect("it compacts");
        assert!(huge.0 - BASE.0 >= last);
    });
}

/// Requests that compact for themselves, one after the other, until nothing is left look at no more frames than one
/// compaction of the whole zone, and half as many again.
#[test]
fn requests_go_on_where_the_last_one_stopped() {
    const PAGEBLOCKS: u64 = 64;
    for config in [Config::framewright(), Config::linux_v6_1().but(|config| config.keep_marks = false)] {
        let looked_at = |by: &dyn Fn(&framewright::Cpu<'_, '_, Plain>, &Owner) -> u64| {
            let world = world(PAGEBLOCKS * PAGEBLOCK_PAGES, config);
            let owner = Owner::fill(&world, Order::ZERO, |n, _| mix(n) >> 32 & 1 == 1);
            let huge = world.on(0, |cpu| by(cpu, &owner));
            let events = world.allocator().node_events(NodeId(0));
            world.settled();
            (huge, events.pgmigrate_success, events.compact_migrate_scanned + events.compact_free_scanned)
        };
        let (all, moves, once) = looked_at(&|cpu, owner| {
            cpu.compact(ZoneId(0), owner);
            core::iter::from_fn(|| cpu.alloc(PAGEBLOCK_ORDER, M).ok()).count() as u64
        });
        let (huge, moved, looked) = looked_at(&|cpu, owner| {
            let request = Request::new(PAGEBLOCK_ORDER, M);
            let helpers = Helpers::NONE.with_migrate(owner);
            (0..all).map_while(|_| cpu.alloc_with(&request, &helpers).ok()).count() as u64
        });
        println!(
            "at once: {all} blocks, {moves} moves, {once} frames; by request: {huge}, {moved}, {looked}"
        );
        assert!(all > PAGEBLOCKS / 3 && huge + 2 >= all, "{huge} of {all} blocks");
        assert!(2 * looked <= 3 * once, "{looked} frames looked at, at once {once}");
    }
}

/// Blocks move into pageblocks lent from CMA, and into none that are kept for requests of high orders.
#[test]
fn cma_pageblocks_take_what_is_moved() {
    for engine in STORES {
        for (kind, takes) in [(Migratetype::Cma, true), (Migratetype::HighAtomic, false)] {
            let config = with_engine(engine).bare();
            let world = world(2 * PAGEBLOCK_PAGES, config);
            let upper = BASE.add(PAGEBLOCK_PAGES);
            let owner = Owner::fill(&world, Order::ZERO, |n, _| n % 512 < 4);
            world.allocator().set_pageblock_type(upper, kind).expect("it has memory");
            let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &owner));
            assert_eq!(done.moved, if takes { 4 } else { 0 }, "{engine:?}, {kind}");
            world.settled();
            owner.free_all(&world);
        }
    }
}

/// Blocks move out of pageblocks lent from CMA, and out of none that are isolated or kept for requests of high orders.
#[test]
fn cma_pageblocks_are_emptied() {
    for (kind, moved) in [(Migratetype::Cma, 4), (Migratetype::HighAtomic, 0), (Migratetype::Isolate, 0)] {
        let world = world(2 * PAGEBLOCK_PAGES, with_engine(Engine::Framewright).bare());
        let owner = Owner::fill(&world, Order::ZERO, |n, _| !(4..PAGEBLOCK_PAGES + 100).contains(&n));
        let set = match kind {
            Migratetype::Isolate => world.allocator().isolate_pageblock(BASE),
            _ => world.allocator().set_pageblock_type(BASE, kind),
        };
        set.expect("it has memory");
        let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &owner));
        assert_eq!(done.moved, moved, "{kind}");
        owner.free_all(&world);
    }
}

/// Whole pageblocks of CMA are nothing that an unmovable request could have: compaction goes on until there is another.
#[test]
fn compaction_is_done_when_the_request_can_be_served() {
    for generation in GENERATIONS {
        let config = Config::framewright().policies(generation).bare();
        let world = world(16 * PAGEBLOCK_PAGES, config.with_marks());
        let lent = 12 * PAGEBLOCK_PAGES;
        let mut owner = Owner::fill(&world, Order::ZERO, |n, _| n < lent && n % 2 == 1);
        for n in 12..16 {
            let start = BASE.add(n * PAGEBLOCK_PAGES);
            world.allocator().set_pageblock_type(start, Migratetype::Cma).expect("it has memory");
        }
        // A block in the pageblock that is gone through first stays, so that there is more to be done after it.
        owner.stubborn.insert(1);
        let request = Request::new(PAGEBLOCK_ORDER, Migratetype::Unmovable);
        let helpers = Helpers::NONE.with_migrate(&owner);
        let huge = world.on(0, |cpu| cpu.alloc_with(&request, &helpers));
        assert!(huge.is_ok(), "{generation:?}: {huge:?}");
        assert_eq!(world.allocator().node_events(NodeId(0)).compact_success, 1);
        world.settled();
    }
}

/// Free memory lent from CMA counts for a movable request: its compaction ends with the first huge page, though
/// ordinary memory alone would be below the mark.
#[test]
fn compaction_for_a_movable_request_counts_what_is_lent() {
    let config = Config::framewright().policies(Generation::V6_1).bare().with_marks();
    let world = world(16 * PAGEBLOCK_PAGES, config.but(|config| config.min_free_kib = 12_800));
    let lent = 12 * PAGEBLOCK_PAGES;
    let all = page().with(Flags::VICTIM);
    let owner = Owner::default();
    world.on(0, |cpu| {
        for pfn in cpu.request_all(&all) {
            let content = pfn.0 - BASE.0;
            let stays =
                if content < lent { content % 2 == 1 } else { content.is_multiple_of(PAGEBLOCK_PAGES) };
            match stays {
                true => owner.hold(pfn, content),
                false => cpu.must_free(pfn, 0),
            }
        }
    });
    for n in 12..16 {
        let start = BASE.add(n * PAGEBLOCK_PAGES);
        world.allocator().set_pageblock_type(start, Migratetype::Cma).expect("it has memory");
    }
    assert!(world.zone().free_pages() - world.zone().free_cma_pages() < world.zone().marks().min);
    let request = Request::new(PAGEBLOCK_ORDER, M);
    world.on(0, |cpu| cpu.alloc_with(&request, &Helpers::NONE.with_migrate(&owner))).expect("it compacts");
    let events = world.allocator().node_events(NodeId(0));
    assert_eq!((events.compact_success, events.pgmigrate_success), (1, 1));
}

/// What compaction counts, of blocks of several orders in the first of two pageblocks and one in the second: each frame
/// looked at, each page isolated at its old place and at its new one, and each page moved. Two scanners move what is in
/// the first pageblock; with maps the one with less in use is emptied.
#[test]
fn compaction_counts_what_it_does() {
    for (engine, order) in STORES.into_iter().flat_map(|engine| [0, 1, 3].map(|n| (engine, order(n)))) {
        let world = world(2 * PAGEBLOCK_PAGES, bare().engine(engine));
        // Blocks move into no pageblock that is free as a whole.
        let last = 2 * PAGEBLOCK_PAGES - order.pages();
        let owner = Owner::fill(&world, order, |_, content| content < 4 << order.get() || content == last);
        let moved = if engine == Engine::Linux { 4 << order.get() } else { order.pages() };
        let done = world.on(0, |cpu| cpu.compact(ZoneId(0), &owner));
        assert_eq!(done, Compacted { moved, stayed: 0 }, "{order:?}");
        let events = world.allocator().node_events(NodeId(0));
        assert_eq!((events.pgmigrate_success, events.pgmigrate_fail), (moved, 0), "{order:?}");
        if engine == Engine::Linux {
            assert_eq!(
                (events.compact_migrate_scanned, events.compact_free_scanned),
                (512, 512),
                "{order:?}"
            );
            assert_eq!(events.compact_isolated, 2 * moved, "{order:?}");
        }
        owner.free_all(&world);
    }
}

/// Compaction in vain is tried ever less often: as often as its deferral says, by each try's refused moves.
#[test]
fn compaction_in_vain_is_deferred() {
    let world = world(8 * PAGEBLOCK_PAGES, bare().policies(Generation::V6_1));
    let mut owner = Owner::fill(&world, Order::ZERO, |n, _| n % 2 == 1);
    owner.stubborn = owner.contents().into_iter().map(|(content, ..)| content).collect();
    let request = Request::new(PAGEBLOCK_ORDER, M);
    let helpers = Helpers::NONE.with_migrate(&owner);
    let events = || world.allocator().node_events(NodeId(0));
    let (mut defer, mut tries, mut stalls, mut each) = (Defer::default(), 0, 0, 0);
    for _ in 0..40 {
        world.on(0, |cpu| cpu.alloc_with(&request, &helpers)).expect_err("nothing moves");
        let now = events();
        for _ in stalls..now.compact_stall {
            if !defer.passes_over(PAGEBLOCK_ORDER) {
                defer = defer.failed(PAGEBLOCK_ORDER);
                tries += 1;
            }
        }
        if stalls == 0 {
            each = now.pgmigrate_fail / tries;
        }
        stalls = now.compact_stall;
        assert_eq!((now.pgmigrate_fail, now.compact_fail), (tries * each, stalls), "{defer:?}");
        assert_eq!((now.compact_success, now.pgmigrate_success), (0, 0));
    }
    assert!(each > 0 && tries > 4 && 4 * tries < stalls, "{tries} tries of {stalls}");
    // Smaller blocks are tried at once, and success ends the deferral.
    owner.stubborn.clear();
    let helpers = Helpers::NONE.with_migrate(&owner);
    let smaller = Request::new(order(4), M);
    world.on(0, |cpu| cpu.alloc_with(&smaller, &helpers)).expect("it compacts");
    assert_eq!(events().compact_success, 1);
}
