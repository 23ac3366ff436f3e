//! `verify` can fail: each thing that it looks for is broken on purpose, and it must find that.

use framewright_check::prelude::*;
use heads::{BODY, free, open, taken};

/// An order-0 block that CPU 0 has set aside, as its first.
const ASIDE: u64 = 1 << 55 | 1 << 54 | 3 << 52;

/// Two pageblocks without per-CPU lists. Order-0 blocks are out at the first two frames; so one block each of
/// the orders 1 to 9 is free.
fn buddies() -> World<Plain> {
    buddies_in(Engine::Linux)
}

fn buddies_in(engine: Engine) -> World<Plain> {
    two_taken(Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).engine(engine).bare())
}

fn two_taken(spec: Spec) -> World<Plain> {
    let world = spec.plain();
    world.on(0, |cpu| {
        for pfn in [BASE, BASE.add(1)] {
            assert_eq!(cpu.alloc(Order::ZERO, M).ok(), Some(pfn));
        }
    });
    world
}

/// The storage of the movable order-0 list of [`lists`]: behind that of the unmovable one.
const SLOTS: [usize; 2] = [2, 3];

/// Like [`buddies`], but with per-CPU lists, on which the second frame waits. Their pages are counted at each call.
fn lists() -> World<Plain> {
    lists_in(Engine::Linux)
}

fn lists_in(engine: Engine) -> World<Plain> {
    let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1)
        .engine(engine)
        .orders(PcpOrders::Zero)
        .slots(2)
        .fixed(2, 100)
        .plain();
    world.on(0, |cpu| {
        let blocks: Vec<_> = (0..2).map(|_| cpu.must_alloc(0)).collect();
        cpu.drain();
        cpu.must_free(blocks[1], 0);
    });
    world
}

#[track_caller]
fn must_find(what: &str, world: &World<Plain>, damage: &[(Spot, u64)]) {
    world.settled();
    for &(spot, value) in damage {
        let before = world.corrupt(spot, value);
        assert_ne!(before, value, "{spot:?} was so before");
    }
    let violation = world.allocator().verify().expect_err("the damage was not seen");
    assert!(violation.what.contains(what), "{damage:?} shows as: {violation}");
}

#[test]
fn verify_finds_wrong_counters() {
    must_find("free pages are not the sum", &buddies(), &[(Spot::FreePages, 7)]);
    must_find("free CMA pages are not the sum", &buddies(), &[(Spot::FreeCmaPages, 7)]);
    must_find("nr_free is not the number", &buddies(), &[(Spot::NrFree(order(3)), 2)]);
    must_find("a per-CPU count is not the sum", &lists(), &[(Spot::PcpCount, 7)]);
}

#[test]
fn verify_finds_broken_free_lists() {
    must_find("misaligned or outside", &buddies(), &[(Spot::First(order(3), M), 9)]);
    must_find("misaligned or outside", &buddies(), &[(Spot::First(order(3), M), 4096)]);
    must_find("does not say so", &buddies(), &[(Spot::Head(BASE.add(8)), BODY)]);
    must_find("does not say so", &buddies(), &[(Spot::Head(BASE.add(8)), free(3, M, 8, 16))]);
    must_find("does not say so", &buddies(), &[(Spot::Head(BASE.add(8)), free(3, Migratetype::Cma, 8, 8))]);
    must_find("does not end at its last", &buddies(), &[(Spot::Last(order(3), M), 16)]);
    must_find("is on no list", &buddies(), &[(Spot::Head(BASE), free(0, M, 0, 0))]);
    // A list whose first block would reach beyond the zone.
    let world = Spec::one_zone(PAGEBLOCK_PAGES + 256, 1).engine(Engine::Linux).bare().plain();
    must_find("misaligned or outside", &world, &[(Spot::First(PAGEBLOCK_ORDER, M), PAGEBLOCK_PAGES)]);
}

#[test]
fn verify_finds_blocks_that_do_not_tile() {
    must_find("belongs to no block", &buddies(), &[(Spot::Head(BASE), BODY)]);
    must_find("says it starts one", &buddies(), &[(Spot::Head(BASE.add(9)), taken(0))]);
    let experiment =
        Experiment { pcp_orders: PcpOrders::None, heads_in_pageblocks: true, ..Experiment::default() };
    let config = Config { engine: Engine::Linux, experiment, ..Config::default() };
    let apart = two_taken(Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).config(config));
    must_find("says it starts one", &apart, &[(Spot::PageblockHead(BASE), taken(10))]);
    // The pageblock before is a hole, but says that it starts a block that reaches into this one.
    let second = BASE.add(PAGEBLOCK_PAGES);
    let half: World<Plain> =
        Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).memory([(second, PAGEBLOCK_PAGES)]).bare().build();
    must_find("overlap", &half, &[(Spot::PageblockHead(BASE), taken(10))]);
}

#[test]
fn verify_finds_buddies_that_have_not_merged() {
    let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).engine(Engine::Linux).bare().plain();
    let second = BASE.add(PAGEBLOCK_PAGES);
    // Freed as CMA it may not merge with the ordinary half.
    world.on(0, |cpu| {
        let blocks = [(); 2].map(|()| cpu.must_alloc(PAGEBLOCK_ORDER));
        world.allocator().set_pageblock_type(second, Migratetype::Cma).expect("a pageblock with memory");
        for block in blocks {
            cpu.must_free(block, PAGEBLOCK_ORDER);
        }
    });
    let ordinary = world.word(Spot::PageblockInfo(BASE));
    must_find("have not merged", &world, &[(Spot::PageblockInfo(second), ordinary)]);
}

#[test]
fn verify_finds_broken_bins_and_maps() {
    let head = Spot::PageblockHead(BASE);
    let bits = |n: usize| Spot::MapWord(BASE, n);
    let find = |what: &str, damage: &[(Spot, u64)]| must_find(what, &buddies_in(Engine::Framewright), damage);
    find("free pages are not the sum", &[(Spot::FreePages, 7)]);
    find("does not say what its map holds", &[(head, open(509, 8, 0, 0))]);
    find("does not say what its map holds", &[(head, open(510, 7, 0, 0))]);
    find("does not say what its map holds", &[(bits(3), 1)]);
    find("does not say so", &[(head, BODY)]);
    find("links do not agree", &[(head, open(510, 8, 1, 0))]);
    find("links do not agree", &[(head, open(510, 8, 0, 1))]);
    find("another type", &[(Spot::PageblockInfo(BASE), 1 << 3)]);
    // A bit of a frame that a caller holds, and of one that is inside a block.
    find("does not say what its map holds", &[(bits(0), u64::MAX << 1)]);
    find("a frame belongs to no block", &[(Spot::Head(BASE), BODY)]);
    find("says it starts one", &[(Spot::Head(BASE.add(70)), taken(0))]);
    // A pageblock with free frames that is in no bin; one that is a free block already.
    let second = BASE.add(PAGEBLOCK_PAGES);
    find("one block has bits", &[(Spot::MapWord(second, 2), 1)]);
    let world = buddies_in(Engine::Framewright);
    world.on(0, |cpu| while cpu.alloc(Order::ZERO, M).is_ok() {});
    must_find(
        "a free block is on no list",
        &world,
        &[(Spot::MapWord(second, 2), 1), (Spot::Head(second.add(128)), BODY)],
    );
    let whole = || Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).bare().plain();
    // Bits in the first and in the second pageblock of a free block of two.
    must_find("one block has bits", &whole(), &[(Spot::MapWord(BASE, 2), 1)]);
    must_find("one block has bits", &whole(), &[(Spot::MapWord(second, 2), 1)]);
    // Two pageblocks in one bin whose links lead to each other.
    let world = whole();
    [BASE, second].into_iter().for_each(|pfn| world.must_alloc_at(0, pfn, 0));
    let heads =
        [(BASE, 1), (second, 0)].map(|(pfn, link)| (Spot::PageblockHead(pfn), open(511, 8, link, link)));
    must_find("one is circular", &world, &heads);
}

#[test]
fn verify_finds_broken_bitmaps_of_pageblocks() {
    // A pair and a single.
    let build = || -> World<Plain> { Spec::one_zone(3 * PAGEBLOCK_PAGES, 1).bare().build() };
    let find = |what: &str, damage: &[(Spot, u64)]| must_find(what, &build(), damage);
    find("not what its words have", &[(Spot::Whole(M, 0), 0b011)]);
    find("of another type or zone", &[(Spot::Whole(M, 0), 0b1111)]);
    find("of another type or zone", &[(Spot::Whole(Migratetype::Cma, 0), 0b100)]);
    let last = BASE.add(2 * PAGEBLOCK_PAGES);
    for head in
        [BODY, taken(9), taken(10), free(9, M, 1, 0), free(9, Migratetype::Cma, 0, 0), free(10, M, 0, 0)]
    {
        find("its head word does not", &[(Spot::PageblockHead(last), head)]);
    }
}

/// Untouched memory is as new.
#[test]
fn verify_finds_untouched_memory_that_was_written() {
    let build = || {
        Spec::one_zone(8 * PAGEBLOCK_PAGES, 1)
            .engine(Engine::Framewright)
            .bare()
            .but(|config| config.lazy_pageblocks = true)
            .plain()
    };
    let last = BASE.add(7 * PAGEBLOCK_PAGES);
    must_find("not as new", &build(), &[(Spot::PageblockInfo(last), 1 << 3)]);
    must_find("not as new", &build(), &[(Spot::PageblockHead(last), taken(9))]);
    must_find("not as new", &build(), &[(Spot::MapWord(last, 3), 1)]);
    let zone = BASE.0..BASE.0 + 8 * PAGEBLOCK_PAGES;
    let (start, end) = (Spot::UntouchedStart, Spot::UntouchedEnd);
    for (spot, value) in [
        (start, zone.start + 1024 + PAGEBLOCK_PAGES),
        (start, zone.start - 1024),
        (end, zone.end - PAGEBLOCK_PAGES),
        (end, zone.end + 1024),
    ] {
        must_find("no run of the largest blocks", &build(), &[(spot, value)]);
    }
}

/// The count of frames left for later is that of the frames that are not there yet.
#[test]
fn verify_finds_memory_that_no_worker_will_initialise() {
    let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: BASE, pages: 4096 };
    let free = vec![BASE..BASE.add(2000), BASE.add(2010)..BASE.add(4096)];
    for left in [1, 3071, 3063, 3061, 4096] {
        let rest =
            RestSpec { spec, present: 4096, free: free.clone(), deferred_from: BASE.add(1024), cpus: 1 };
        let how = How { split: Split::OneThread, section: 1024 };
        let world = Spec::deferred(how, [rest], 1, 1).plain();
        let _booting = world.allocator().begin().expect("it is the first time");
        must_find("left to be initialised", &world, &[(Spot::LeftForLater, left)]);
    }
}

/// Three pageblocks in a bin, of which the middle one's map, and head word, say that it belongs into another.
#[test]
fn verify_finds_a_pageblock_in_the_wrong_bin() {
    let world = Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).engine(Engine::Framewright).bare().plain();
    let start = |n: u64| BASE.add(n * PAGEBLOCK_PAGES);
    world.on(0, |cpu| {
        for n in 0..3 {
            cpu.must_alloc_at(start(n), 0);
        }
        cpu.must_alloc_at(start(3), 8);
        cpu.must_alloc_at(start(3).add(256), 0);
    });
    let links = |n: u64| {
        let head = world.word(Spot::PageblockHead(start(n)));
        (head >> 19 & 0x7_ffff, head & 0x7_ffff)
    };
    let middle = (0..3).find(|&n| links(n).0 != n && links(n).1 != n).expect("there are three");
    let (prev, next) = links(middle);
    let mut damage = vec![(Spot::PageblockHead(start(middle)), open(255, 7, prev, next))];
    damage.extend((0..4).map(|n| (Spot::MapWord(start(middle), n), 0)));
    damage.push((Spot::MapWord(start(middle), 4), u64::MAX << 1));
    must_find("links do not agree", &world, &damage);
}

/// A bin that has a pageblock, and a word that says it has none: no allocation would look there.
#[test]
fn verify_finds_a_bin_that_counts_as_empty() {
    must_find("links do not agree", &buddies_in(Engine::Framewright), &[(Spot::Bins(M), 0)]);
}

/// With bits alone for the owners of blocks: one on a list that is free as well, and one that a caller has.
#[test]
fn verify_finds_listed_blocks_that_are_free_or_allocated() {
    for bit in [1 << 3, 1 << (32 + 3)] {
        let world =
            Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).engine(Engine::Compact).orders(PcpOrders::Zero).plain();
        world.on(0, |cpu| {
            cpu.must_alloc_at(BASE.add(3), 0);
            cpu.must_free(BASE.add(3), 0);
        });
        assert_eq!(world.allocator().pcp_pages(), 1);
        let word = world.word(Spot::MapWord(BASE, 0));
        must_find("is free, or a caller has it", &world, &[(Spot::MapWord(BASE, 0), word | bit)]);
    }
}

/// With bits alone for the owners of blocks, pageblocks record how many frames were never added.
#[test]
fn verify_finds_a_wrong_number_of_frames_that_were_never_added() {
    let world = || Spec::one_zone(700, 1).memory([(BASE, 300), (BASE.add(512), 188)]).engine(Engine::Compact);
    for (pageblock, absent) in [(0, 212), (1, 324)] {
        let (world, spot) = (world().plain(), Spot::PageblockInfo(BASE.add(pageblock * PAGEBLOCK_PAGES)));
        let info = world.word(spot);
        assert_eq!(info >> 17 & 511, absent);
        must_find("do not record how many", &world, &[(spot, info ^ 1 << 17)]);
    }
}

/// Pageblocks that callers have as a whole, so that nothing else about them depends on what they record.
#[test]
fn verify_finds_special_pageblocks_that_are_not_counted() {
    const BAD: u64 = 1 << 16;
    let build = || {
        let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).plain();
        world.must_alloc_at(0, BASE, 9);
        world
    };
    let spot = Spot::PageblockInfo(BASE);
    let info = build().word(spot);
    let typed = |kind: Migratetype| info - M as u64 + kind as u64;
    let find = |what: &str, spot: Spot, value: u64| must_find(what, &build(), &[(spot, value)]);
    find("isolated pageblocks are not counted", spot, typed(Migratetype::Isolate));
    find("bad frames are not counted", spot, info | BAD);
    find("reserved for high orders", spot, typed(Migratetype::HighAtomic));
    // A CPU whose frees check their pageblocks in vain, and one whose frees into an isolated one would hit.
    const CHECKS: u64 = 16;
    find("without reason", Spot::PcpRequest, CHECKS);
    let world = build();
    world.allocator().isolate_pageblock(BASE).expect("it is there");
    let request = world.word(Spot::PcpRequest);
    assert_eq!(request & CHECKS, CHECKS);
    must_find("without reason", &world, &[(Spot::PcpRequest, request - CHECKS)]);
}

#[test]
fn verify_finds_broken_per_cpu_lists() {
    let head = Spot::Head(BASE.add(1));
    must_find("not taken, or of another order", &lists(), &[(head, BODY)]);
    must_find("not taken, or of another order", &lists(), &[(head, taken(1))]);
    must_find("does not say where it sits", &lists(), &[(head, taken(0))]);
    let foreign = SLOTS.map(|slot| (Spot::Slot(slot), 7));
    must_find("holds a foreign frame", &lists(), &foreign);
    // Two say that they are set aside: one that is on a list, and one that is allocated.
    must_find("not taken, or of another order", &lists(), &[(head, ASIDE)]);
    must_find("says that it is set aside", &lists(), &[(Spot::Head(BASE), ASIDE)]);
    for cpu in [1, 7] {
        must_find("says that it is set aside", &lists(), &[(Spot::Head(BASE), ASIDE | cpu << 32)]);
    }
    // One that is set aside, and does not say so.
    for (what, head) in
        [("does not say where it sits", ASIDE | 1), ("not taken, or of another order", taken(0))]
    {
        let world = lists_in(Engine::Framewright);
        let aside = [(); 3].map(|()| world.must_alloc(0, 0))[1];
        world.fill_elsewhere(0, 8);
        world.must_free(0, aside, 0);
        world.on(0, |cpu| assert!(cpu.alloc_hit(Order::ZERO, M).is_none(), "it is set aside"));
        must_find(what, &world, &[(Spot::Head(aside), head)]);
    }
    // One block twice on the list, instead of two blocks.
    let world = lists();
    world.must_free(0, BASE, 0);
    let mut damage: Vec<_> = SLOTS.map(|slot| (Spot::Slot(slot), BASE.0 + 1)).to_vec();
    damage.retain(|&(spot, value)| world.word(spot) != value);
    must_find("does not say where it sits", &world, &damage);
}

#[test]
fn verify_finds_pageblocks_with_wrong_marks() {
    const REPORTED: u64 = 1 << 7;
    const MARK: u64 = 1 << 58;
    for store in STORES {
        let world = buddies_in(store);
        let info = world.word(Spot::PageblockInfo(BASE));
        must_find("told of is not free", &world, &[(Spot::PageblockInfo(BASE), info | REPORTED)]);
        // One that a caller has as a whole.
        let world = buddies_in(store);
        let whole = world.must_alloc(0, PAGEBLOCK_ORDER);
        must_find("told of is not free", &world, &[(Spot::PageblockInfo(whole), info | REPORTED)]);
        // A mark on a frame that is free, and on one in use whose pageblock does not know.
        must_find("marked as bad", &buddies_in(store), &[(Spot::Head(BASE.add(9)), MARK)]);
        must_find("marked as bad", &buddies_in(store), &[(Spot::Head(BASE), taken(0) | MARK)]);
        // The frames of a whole pageblock that says nothing of marks are left alone: they may be untouched.
        let world = buddies_in(store);
        world.corrupt(Spot::Head(BASE.add(PAGEBLOCK_PAGES + 9)), MARK);
        world.settled();
    }
}
