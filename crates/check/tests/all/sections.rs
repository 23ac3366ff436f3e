//! Zones of several sections, small enough that all of it can be gone through: what one store would do, they do
//! together.

use std::sync::Arc;

use framewright_check::prelude::*;

/// Frames of a section: the fewest.
const SECTION: u64 = MAX_ORDER.pages();

fn spec(sections: u64, cpus: usize) -> Spec {
    Spec::one_zone(sections * SECTION, cpus).sections(SECTION)
}

fn without_lists(engine: Engine) -> Config {
    bare().engine(engine).sections(SECTION)
}

/// The last page of every section can be had, in every order, and goes back: by one CPU, and by another than freed it.
#[test]
fn every_order_can_have_all_of_it() {
    for engine in [Engine::Framewright, Engine::Compact] {
        for config in [with_engine(engine), without_lists(engine)] {
            let world = Spec::one_zone(4 * SECTION, 4).config(config).sections(SECTION).plain();
            for order in Order::all() {
                let blocks: Vec<Pfn> = world.on(1, |cpu| cpu.alloc_all(order));
                assert_eq!(blocks.len() as u64, (4 * SECTION) >> order.get(), "{order}");
                blocks.iter().enumerate().for_each(|(n, &pfn)| world.must_free(n % 4, pfn, order));
                (0..4).for_each(|cpu| world.on(cpu, |cpu| cpu.drain()));
            }
            assert_eq!(world.allocator().free_blocks(MAX_ORDER), 4, "{engine:?}");
            // Each run went back once.
            assert_eq!(world.counts().refused_pages, 0, "{engine:?}");
        }
    }
}

/// A CPU fills the pageblock that is fullest, whichever section it is in.
#[test]
fn the_fullest_pageblock_of_all_is_taken_from() {
    let world = spec(4, 2).config(without_lists(Engine::Framewright)).plain();
    // A nearly full pageblock in the last section; in that of the CPU one that is mostly free.
    let (last, first) = (BASE.add(3 * SECTION), BASE);
    for pfn in (0..500).map(|n| last.add(n)).chain((0..4).map(|n| first.add(n))) {
        world.on(0, |cpu| cpu.alloc_at(pfn, Order::ZERO)).expect("it is free");
    }
    for n in 500..512 {
        assert_eq!(world.must_alloc_of(0, Order::ZERO, M), last.add(n), "the fullest one");
    }
    assert_eq!(world.must_alloc_of(0, Order::ZERO, M).block_start(order(9)), first, "then the other");
}

/// A range that spans sections is had if it is free, moved out of if that can be, and left as it was if not.
#[test]
fn ranges_span_sections() {
    let world = spec(4, 2).plain();
    let range = BASE.add(SECTION / 2)..BASE.add(3 * SECTION + 700);
    let none = Helpers::NONE;
    for _ in 0..2 {
        world.on(0, |cpu| cpu.alloc_contig_range(range.clone(), &none)).expect("it is free");
        assert_eq!(world.settled().allocated, range.end.0 - range.start.0);
        world.on(1, |cpu| cpu.free_contig_range(range.clone())).expect("it is allocated");
        (0..2).for_each(|cpu| world.on(cpu, |cpu| cpu.drain()));
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), 4);
    }
    let in_the_way = BASE.add(2 * SECTION + 5);
    world.on(0, |cpu| cpu.alloc_at(in_the_way, Order::ZERO)).expect("it is free");
    let before = world.settled();
    world.on(0, |cpu| cpu.alloc_contig_range(range.clone(), &none)).expect_err("a page is in the way");
    assert_eq!(world.settled().free, before.free);
    let offline = BASE.add(SECTION)..BASE.add(3 * SECTION);
    world.on(0, |cpu| cpu.offline(offline.clone())).expect_err("a page is in the way");
    world.must_free(1, in_the_way, Order::ZERO);
    world.on(1, |cpu| cpu.drain());
    let gone = world.on(0, |cpu| cpu.offline(offline.clone())).expect("all of it is free");
    assert_eq!((gone, world.zone().managed_pages()), (2 * SECTION, 2 * SECTION));
    world.allocator().online(offline.start, 2 * SECTION).expect("it is offline");
    assert_eq!(world.on(1, |cpu| cpu.alloc_all(MAX_ORDER)).len(), 4);
}

/// Memory that stays untouched is a section's own, and comes in when it is needed.
#[test]
fn untouched_memory_of_every_section_comes_in() {
    let pages = 4 * 4 * SECTION;
    let world =
        Spec::one_zone(pages, 2).but(|config| config.lazy_pageblocks = true).sections(4 * SECTION).plain();
    assert_eq!((world.zone().sections(), world.zone().free_pages()), (4, pages));
    world.settled();
    let far = BASE.add(9 * SECTION);
    world.on(0, |cpu| cpu.alloc_at(far, MAX_ORDER)).expect("it is free");
    let rest = world.on(1, |cpu| cpu.alloc_all(9));
    assert_eq!(rest.len() as u64, (pages - SECTION) / 512);
    world.must_free(0, far, MAX_ORDER);
    // A range that ends behind the zone is refused, also where nothing is untouched any more.
    let (last, behind) = (BASE.add(pages - SECTION), BASE.add(pages + SECTION));
    let range = world.on(0, |cpu| cpu.alloc_contig_range(last..behind, &Helpers::NONE));
    assert_eq!(range.expect_err("no zone holds it").place.why, PlaceFailure::Foreign);
    world.on(0, |cpu| cpu.offline(last..behind)).expect_err("no zone holds it");
}

/// A section gets memory twice: what it got first stays untouched, and what comes later is initialised.
#[test]
fn only_the_first_memory_of_a_section_stays_untouched() {
    let half = 4 * PAGEBLOCK_PAGES;
    let world = Spec::one_zone(4 * half, 2)
        .memory([(BASE, half), (BASE.add(half), half), (BASE.add(2 * half), 2 * half)])
        .bare()
        .but(|config| config.lazy_pageblocks = true)
        .sections(2 * half)
        .plain();
    let is_touched = |n: u64| world.allocator().frames().contains(BASE.add(n * half - PAGEBLOCK_PAGES));
    assert_eq!([1, 2, 4].map(is_touched), [false, true, false]);
    let free = |nr_free: [u64; NR_ORDERS]| (0..).zip(nr_free).map(|(order, n)| n << order).sum::<u64>();
    assert_eq!(free(world.allocator().zone_snapshot(world.zone()).nr_free), 4 * half);
    assert_eq!(world.settled().free, 4 * half);
    assert_eq!(world.on(0, |cpu| cpu.alloc_all(PAGEBLOCK_ORDER)).len() as u64, 4 * half / PAGEBLOCK_PAGES);
}

/// Refills take what is left of full pageblocks in both sections before they open one that is free as a whole.
#[test]
fn a_refill_opens_no_pageblock_while_another_section_has_one_open() {
    let world = spec(2, 1).fixed(64, 512).plain();
    let left: Vec<Pfn> =
        [BASE, BASE.add(SECTION)].iter().flat_map(|at| (0..10).map(|n| at.add(50 * n))).collect();
    let all =
        [BASE, BASE.add(SECTION)].into_iter().flat_map(|at| (0..PAGEBLOCK_PAGES).map(move |n| at.add(n)));
    all.filter(|pfn| !left.contains(pfn)).for_each(|pfn| world.must_alloc_at(0, pfn, 0));
    assert_eq!(
        (world.zone().free_pages(), world.allocator().free_blocks(PAGEBLOCK_ORDER)),
        (2 * 512 + 20, 2)
    );
    let mut got: Vec<Pfn> = (0..20).map(|_| world.must_alloc(0, 0)).collect();
    got.sort_unstable();
    assert_eq!(got, left, "the single frames of both sections");
    world.on(0, |cpu| cpu.drain());
    assert_eq!(world.allocator().free_blocks(PAGEBLOCK_ORDER), 2);
}

/// A refill that falls back takes the smallest blocks of another type in all sections before it breaks a larger one.
#[test]
fn a_refill_of_another_type_breaks_no_block_while_another_section_has_a_smaller_one() {
    // Enough memory to group it by mobility.
    let world = spec(16, 1).fixed(64, 512).plain();
    let sections = [BASE, BASE.add(SECTION)];
    let left: Vec<Pfn> = sections.iter().flat_map(|at| (0..10).map(|n| at.add(50 * n + 1))).collect();
    // Eight frames each, in a pageblock whose largest block they are.
    let larger = sections.map(|at| at.add(PAGEBLOCK_PAGES + 64)..at.add(PAGEBLOCK_PAGES + 72));
    let is_left = |pfn: &&Pfn| left.contains(pfn) || larger.iter().any(|block| block.contains(pfn));
    world.on(0, |cpu| {
        cpu.alloc_all(0).iter().filter(is_left).for_each(|&pfn| cpu.must_free(pfn, 0));
        cpu.drain();
    });
    assert_eq!(world.zone().free_pages(), 20 + 16);
    let mut got: Vec<Pfn> =
        (0..20).map(|_| world.must_alloc_of(0, Order::ZERO, Migratetype::Unmovable)).collect();
    got.sort_unstable();
    assert_eq!(got, left, "the single frames of both sections");
}

/// Holes that random frees leave are filled before a pageblock that is free as a whole is opened, in however many
/// sections they are.
#[test]
fn what_random_frees_leave_is_filled_before_any_whole_pageblock() {
    for (engine, sections) in [Engine::Framewright, Engine::Compact].into_iter().zip([100, 40]) {
        for (order, held) in [(0_u8, 30), (0, 70), (2, 10), (5, 30)] {
            let pages = sections * SECTION;
            let world = spec(sections, 4).config(with_engine(engine)).sections(SECTION).plain();
            let blocks = (pages * held / 100) >> order;
            let mut random = fastrand::Rng::with_seed(u64::from(order));
            let mut all: Vec<Pfn> = (0..blocks).map(|_| world.must_alloc(0, order)).collect();
            for _ in 0..3 {
                for _ in 0..blocks / 2 {
                    let at = random.usize(..all.len());
                    world.must_free(0, all.swap_remove(at), order);
                }
                all.extend((0..blocks / 2).map(|_| world.must_alloc(0, order)));
            }
            world.on(0, |cpu| cpu.drain());
            let (whole, ideal) = (
                world.allocator().free_blocks(PAGEBLOCK_ORDER),
                (pages - (blocks << order)) / PAGEBLOCK_PAGES,
            );
            assert!(whole + 2 >= ideal, "order {order}, {held} % held: {whole} of {ideal} are whole");
        }
    }
}

/// A request for a pageblock takes one whose buddy is in use, in whichever section around it is, before one of a pair:
/// as many blocks of the largest order remain as in a zone of one section.
#[test]
fn pageblocks_whose_buddies_are_in_use_are_taken_before_pairs() {
    const PAGES: u64 = 512 * PAGEBLOCK_PAGES;
    for section in [0, PAGES / 16] {
        let without_lists = |config: &mut Config| config.experiment.pcp_orders = PcpOrders::None;
        let world = Spec::one_zone(PAGES, 4).sections(section).but(without_lists).plain();
        let mut random = fastrand::Rng::with_seed(5);
        let mut all: Vec<Pfn> = (0..512).map(|_| world.must_alloc(0, PAGEBLOCK_ORDER)).collect();
        random.shuffle(&mut all);
        all.drain(..200).for_each(|pfn| world.must_free(0, pfn, PAGEBLOCK_ORDER));
        let [free, pairs] = [PAGEBLOCK_ORDER, MAX_ORDER].map(|order| world.allocator().free_blocks(order));
        assert_eq!(free, 200);
        for left in (2 * pairs..free).rev() {
            world.must_alloc(random.usize(..4), PAGEBLOCK_ORDER);
            let still = world.allocator().free_blocks(MAX_ORDER);
            assert_eq!(still, pairs, "{left} are free, sections of {section} pages");
        }
    }
}

/// Lists are shut while a pageblock of any section is isolated, whichever is isolated or freed from isolation
/// meanwhile. shuttle.
#[test]
fn lists_stay_shut_while_any_section_has_an_isolated_pageblock() {
    let body = || {
        let world = Arc::new(spec(3, 3).build::<Shuttle>());
        let pageblock = |n: u64| BASE.add(n * SECTION);
        world.allocator().isolate_pageblock(pageblock(0)).expect("it is there");
        let pfn = world.must_alloc(2, Order::ZERO);
        let ((), ()) = shuttle_pair(
            &world,
            move |world| _ = world.allocator().unisolate_pageblock(pageblock(0)),
            move |world| _ = world.allocator().isolate_pageblock(pageblock(1)),
        );
        let is_hit = world.on(2, |cpu| cpu.free_hit(pfn, Order::ZERO));
        assert!(!is_hit, "a pageblock is isolated, and frees do not ask for it");
        world.must_free(2, pfn, Order::ZERO);
        world.allocator().unisolate_pageblock(pageblock(1)).expect("it is isolated");
        world.on(2, |cpu| cpu.drain());
        assert_eq!(world.settled().allocated, 0);
    };
    schedules(if full() { 20_000 } else { 100 }, body);
}

/// An isolated pageblock in one section and a bad frame in use in another: frees do not hit until both are gone.
#[test]
fn lists_stay_shut_for_an_isolated_pageblock_and_for_a_bad_frame() {
    let world = spec(3, 1).plain();
    let (bad, isolated) = (world.must_alloc(0, Order::ZERO), BASE.add(2 * SECTION));
    let hits = || {
        world.on(0, |cpu| {
            let pfn = cpu.must_alloc(Order::ZERO);
            let is_hit = cpu.free_hit(pfn, Order::ZERO);
            if !is_hit {
                cpu.must_free(pfn, Order::ZERO);
            }
            is_hit
        })
    };
    assert!(hits());
    world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is in use");
    assert!(!hits());
    world.allocator().isolate_pageblock(isolated).expect("it is there");
    assert!(!hits());
    world.on(0, |cpu| cpu.unpoison(bad)).expect("it is marked");
    assert!(!hits());
    world.allocator().unisolate_pageblock(isolated).expect("it is isolated");
    world.must_free(0, bad, Order::ZERO);
    world.on(0, |cpu| cpu.drain());
    assert!(hits() || hits(), "the lists are open again");
}

/// Blocks of more sections than a word has bits go back to their own.
#[test]
fn blocks_of_far_sections_go_back() {
    const SECTIONS: u64 = 70;
    let world = spec(SECTIONS, 1).plain();
    assert_eq!(world.zone().sections() as u64, SECTIONS);
    let far = (0..SECTIONS).map(|n| BASE.add(n * SECTION + 5));
    let blocks: Vec<Pfn> = far.inspect(|&pfn| world.must_alloc_at(0, pfn, Order::ZERO)).collect();
    world.on(0, |cpu| cpu.free_bulk(Order::ZERO, &blocks)).expect("all are allocated");
    assert_eq!(
        (world.settled().free, world.allocator().free_blocks(MAX_ORDER)),
        (SECTIONS * SECTION, SECTIONS)
    );
}

/// Adds of ranges that overlap, one after the other: the second is refused in every section, also in one that the first
/// did not touch.
#[test]
fn memory_that_overlaps_what_was_added_is_refused_whole() {
    for engine in [Engine::Framewright, Engine::Compact] {
        let world = spec(3, 1).engine(engine).memory([]).plain();
        let add = |from: u64, pages| world.allocator().add_memory(BASE.add(from), pages);
        let in_use = |from: u64| Err(SetupError::RangeInUse(BASE.add(from)));
        assert_eq!(add(SECTION + 100, SECTION), Ok(()));
        assert_eq!(add(0, 3 * SECTION), in_use(SECTION + 100));
        assert_eq!(add(0, SECTION + 101), in_use(SECTION + 100));
        assert_eq!(add(2 * SECTION + 99, 100), in_use(2 * SECTION + 99));
        assert_eq!((world.settled().free, world.zone().managed_pages()), (SECTION, SECTION), "{engine:?}");
        assert_eq!((add(0, SECTION + 100), add(2 * SECTION + 100, SECTION - 100)), (Ok(()), Ok(())));
        assert_eq!(world.settled().free, 3 * SECTION, "{engine:?}");
    }
}

/// Adds of ranges that overlap, on two CPUs at the same time: one of them adds its whole range, the other one nothing.
/// shuttle.
#[test]
fn of_two_adds_that_overlap_one_adds_all_and_the_other_nothing() {
    let body = || {
        let world = Arc::new(spec(3, 2).memory([]).build::<Shuttle>());
        let add =
            |world: &World<Shuttle>, from: u64| world.allocator().add_memory(BASE.add(from), 2 * SECTION);
        let (low, high) = shuttle_pair(&world, move |world| add(world, 0), move |world| add(world, SECTION));
        assert!(low.is_ok() != high.is_ok(), "{low:?} {high:?}");
        assert_eq!(low.err().or(high.err()), Some(SetupError::RangeInUse(BASE.add(SECTION))));
        assert_eq!((world.settled().free, world.zone().managed_pages()), (2 * SECTION, 2 * SECTION));
    };
    schedules(if full() { 20_000 } else { 100 }, body);
}

/// A range is added whose last pageblock has memory already, which another CPU allocates and frees: with compact
/// metadata such an add may be refused, and then nothing of the range is added. shuttle.
#[test]
fn an_add_that_is_refused_adds_nothing() {
    let body = || {
        let spec = spec(2, 2).engine(Engine::Compact).bare().memory([(BASE.add(SECTION + 300), 212)]);
        let world = Arc::new(spec.build::<Shuttle>());
        let (added, ()) = shuttle_pair(
            &world,
            |world| world.allocator().add_memory(BASE, SECTION + 300),
            |world| {
                for _ in 0..4 {
                    world.on(1, |cpu| {
                        let pfn = cpu.must_alloc(0);
                        cpu.must_free(pfn, 0);
                    });
                }
            },
        );
        let more = if added.is_ok() { SECTION + 300 } else { 0 };
        assert_eq!(
            (world.settled().free, world.zone().managed_pages()),
            (212 + more, 212 + more),
            "{added:?}"
        );
    };
    schedules(if full() { 20_000 } else { 100 }, body);
}

/// Sections of two sizes, so large that the bitmaps of their types have several maps each.
#[test]
fn the_bitmaps_of_large_sections_are_apart() {
    let (section, first) = (1 << 19, MAX_ORDER.pages());
    let zone = normal(0, section - first, first + 2 * section);
    let world = Spec::zones([zone], 1).bare().engine(Engine::Compact).sections(section).plain();
    assert_eq!(world.zone().sections(), 3);
    let types = ORDINARY.into_iter().cycle();
    let held: Vec<_> = types
        .map_while(|list| world.on(0, |cpu| cpu.alloc(PAGEBLOCK_ORDER, list)).ok())
        .inspect(|pfn| assert!(zone.spans(*pfn)))
        .collect();
    assert_eq!(held.len() as u64, zone.pages / PAGEBLOCK_PAGES);
    held.into_iter().for_each(|pfn| world.must_free(0, pfn, PAGEBLOCK_ORDER));
    assert_eq!(world.settled().free, zone.pages);
}

#[test]
fn a_snapshot_counts_what_all_sections_have() {
    let world = spec(3, 1).plain();
    for n in [0, 1, 2, 5] {
        world.allocator().isolate_pageblock(BASE.add(n * PAGEBLOCK_PAGES)).expect("it is there");
    }
    assert_eq!(world.allocator().zone_snapshot(world.zone()).isolated_pageblocks, 4);
}

/// CPUs begin at different sections, so that they need not wait for one another.
#[test]
fn each_cpu_begins_at_a_section_of_its_own() {
    let world = spec(4, 4).plain();
    for cpu in [2, 1, 3, 0] {
        assert_eq!(world.must_alloc(cpu, MAX_ORDER), BASE.add(cpu as u64 * SECTION), "CPU {cpu}");
    }
}

/// Two CPUs give blocks of the same sections back at the same time: a CPU that finds a lock held goes on with the next
/// section and comes back, so that no block is lost. shuttle.
#[test]
fn drains_of_the_same_sections_lose_no_block() {
    let body = || {
        let world = Arc::new(spec(2, 2).engine(Engine::Compact).fixed(8, 64).build::<Shuttle>());
        for cpu in 0..2 {
            let held: Vec<Pfn> = (0..4).map(|_| world.must_alloc(cpu, 0)).collect();
            held.into_iter().for_each(|pfn| world.must_free(cpu, pfn, 0));
        }
        assert!(world.pcp(0).count() > 0 && world.pcp(1).count() > 0);
        let drain = |cpu| move |world: &World<Shuttle>| world.on(cpu, |cpu| cpu.drain());
        let ((), ()) = shuttle_pair(&world, drain(0), drain(1));
        assert_eq!(world.settled().free, 2 * SECTION);
    };
    schedules(if full() { 20_000 } else { 100 }, body);
}
