//! Pageblocks that go offline and come back, or stay because a caller holds a part of them.

use framewright::hotplug::{Holder, OfflineFailure};
use framewright_check::prelude::*;

const START: u64 = 0x1000;
const PAGES: u64 = 8 * 512 + 100;

fn world() -> World<Plain> {
    spec().build()
}

fn spec() -> Spec {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(START), pages: PAGES };
    // One thread: no CPU would answer while it waits, and each turn of that gives the processor to other programs.
    Spec::zones([zone], 2).spins(0)
}

fn block(n: u64) -> Pfn {
    Pfn(START + n * 512)
}

#[test]
fn a_free_section_goes_and_comes_back() {
    goes_and_comes_back(&world());
}

/// Whether its memory was initialised before, when it went, or not at all.
#[test]
fn a_section_that_was_never_needed_goes_and_comes_back() {
    for engine in [Engine::Framewright, Engine::Compact] {
        goes_and_comes_back(&spec().engine(engine).but(|config| config.lazy_pageblocks = true).build());
    }
}

fn goes_and_comes_back(world: &World<Plain>) {
    let zone = world.zone();
    let (marks, sizing) = (world.allocator().watermarks(ZoneId(0)), zone_sizing(world));
    for (from, to, pages) in [(0, 4, 2048), (1, 2, 512), (3, 8, 2560)] {
        assert_eq!(world.on(0, |cpu| cpu.offline(block(from)..block(to))), Ok(pages));
        let account = world.settled();
        assert_eq!(
            (account.free, zone.managed_pages(), zone.present_pages()),
            (PAGES - pages, PAGES - pages, PAGES - pages)
        );
        assert!(world.allocator().watermarks(ZoneId(0)).low < marks.low);
        for n in from..to {
            assert!(world.on(0, |cpu| cpu.free(block(n), Order::ZERO)).is_err(), "it is foreign now");
            assert!(world.allocator().isolate_pageblock(block(n)).is_none());
        }
        let again = world.on(0, |cpu| cpu.offline(block(from)..block(to)));
        assert_eq!(again.expect_err("it is gone").why, OfflineFailure::NotPageblocks);
        world.allocator().online(block(from), pages).expect("it was there before");
        assert_eq!((world.settled().free, zone.present_pages()), (PAGES, PAGES));
        assert_eq!((world.allocator().watermarks(ZoneId(0)), zone_sizing(world)), (marks, sizing));
    }
    // The last one ends with the zone.
    for (from, pages) in [(5, 1636), (8, 100)] {
        assert_eq!(world.on(0, |cpu| cpu.offline(block(from)..Pfn(START + PAGES))), Ok(pages));
        world.settled();
        world.allocator().online(block(from), pages).expect("it was there before");
        assert_eq!(world.settled().free, PAGES);
    }
}

fn zone_sizing(world: &World<Plain>) -> framewright::policy::pcp::Sizing {
    world.on(0, |cpu| {
        cpu.answer();
        cpu.allocator().pcp(ZoneId(0), cpu.id()).sizing()
    })
}

#[test]
fn offlining_names_the_holders() {
    let world = world();
    let all = Pfn(START)..Pfn(START + PAGES);
    let held = world.must_alloc(0, MAX_ORDER);
    let small = world.must_alloc_of(0, 0, Migratetype::Unmovable);
    let error = world.on(0, |cpu| cpu.offline(all.clone())).expect_err("two blocks are held");
    assert_eq!(error.why, OfflineFailure::InUse(2));
    let mut expected = [held, small];
    expected.sort_unstable();
    let found: Vec<_> = error.holders.iter().flatten().map(|holder| holder.pfn).collect();
    assert_eq!(found, expected);
    assert!(matches!(error.holders[0], Some(Holder { state: State::Taken { .. }, .. })));
    println!("{error}");
    assert_eq!(world.settled().free, PAGES - 1025, "nothing has changed");
    assert_eq!(world.allocator().zone_snapshot(world.zone()).isolated_pageblocks, 0);
    // The second half of the large block is held, too.
    let error = world.on(1, |cpu| cpu.offline(held.add(512)..held.add(1024))).expect_err("it is held");
    assert_eq!(error.why, OfflineFailure::InUse(1));
    // Lists of the CPU that takes memory offline are drained. Another CPU drains its own at its next slow call: here
    // none.
    world.on(0, |cpu| cpu.answer());
    world.must_free(0, held, MAX_ORDER);
    world.must_free(0, small, 0);
    assert!(world.on(1, |cpu| cpu.offline(all.clone())).is_err(), "CPU 0 has it on a list");
    world.on(0, |cpu| cpu.answer());
    assert_eq!(world.on(1, |cpu| cpu.offline(all)), Ok(PAGES));
    assert!(world.on(0, |cpu| cpu.alloc(Order::ZERO, M)).is_err());
}

#[test]
fn ranges_that_are_no_pageblocks_are_refused() {
    let world = world();
    for (start, end) in [
        (START + 1, START + 512),
        (START, START + 511),
        (START, START),
        (START - 512, START),
        (START, START + 9 * 512),
    ] {
        let error = world.on(0, |cpu| cpu.offline(Pfn(start)..Pfn(end))).expect_err("no pageblocks");
        assert_eq!(error.why, OfflineFailure::NotPageblocks, "{start:#x}..{end:#x}");
    }
    world.allocator().isolate_pageblock(block(2)).expect("it exists");
    let error = world.on(0, |cpu| cpu.offline(block(0)..block(4))).expect_err("one is isolated");
    assert_eq!(error.why, OfflineFailure::Isolated(block(2)));
    assert!(world.allocator().unisolate_pageblock(block(0)).is_none(), "it was undone");
    // A neighbour that is isolated has merged with what goes.
    assert_eq!(world.on(0, |cpu| cpu.offline(block(3)..block(4))), Ok(512));
    world.allocator().unisolate_pageblock(block(2)).expect("it is isolated");
    assert_eq!(world.settled().free, PAGES - 512);
}
