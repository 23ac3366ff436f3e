//! The counters of a zone while its pageblocks change: memory added to part of one, isolation, other types,
//! reserves that go offline.

use framewright_check::prelude::*;

const HALF: u64 = PAGEBLOCK_PAGES / 2;

/// Half of a pageblock that is isolated, or lent, has memory, and the other half is added.
#[test]
fn added_pages_are_what_their_pageblock_is() {
    let world = || Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).memory([(BASE, HALF)]).plain();
    let add = |world: &World<Plain>| {
        world.allocator().add_memory(BASE.add(HALF), HALF).expect("it was never added")
    };
    let isolated = world();
    assert_eq!(isolated.allocator().isolate_pageblock(BASE), Some(HALF));
    assert_eq!(isolated.allocator().free_pages(), 0);
    add(&isolated);
    assert_eq!((isolated.allocator().free_pages(), isolated.settled().free), (0, PAGEBLOCK_PAGES));
    assert_eq!(isolated.allocator().unisolate_pageblock(BASE), Some(PAGEBLOCK_PAGES));
    assert_eq!(isolated.allocator().free_pages(), PAGEBLOCK_PAGES);
    let lent = world();
    lent.allocator().set_pageblock_type(BASE, Migratetype::Cma).expect("it exists");
    assert_eq!(lent.zone().free_cma_pages(), HALF);
    add(&lent);
    assert_eq!(lent.zone().free_cma_pages(), PAGEBLOCK_PAGES);
}

/// A zone that background reclaim has given up gets memory: there is hope again, as when a page is freed.
#[test]
fn memory_that_comes_online_raises_hope() {
    let pinned = reclaimer(4096, |ask, _| Reclaimed { scanned: 4096 >> ask.priority, freed: 0 });
    let there = 8 * PAGEBLOCK_PAGES;
    let world = Spec::one_zone(2 * there, 1).memory([(BASE, there)]).config(marked(Generation::V3_0)).plain();
    let zone = world.zone();
    let helpers = Helpers::NONE.with_reclaim(&pinned);
    world.on(0, |cpu| {
        while cpu.request(&page()).is_ok() {}
        for _ in 0..16 {
            let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
            cpu.background(NodeId(0), asked, &helpers);
        }
    });
    assert!(zone.is_unreclaimable());
    world.allocator().online(BASE.add(there), there).expect("it was never there");
    assert!(
        !zone.is_unreclaimable(),
        "{} pages are free, of {}, and the zone counts as hopeless",
        zone.free_pages(),
        zone.managed_pages()
    );
}

/// The last pageblock.
fn last() -> Pfn {
    BASE.add(16384 - PAGEBLOCK_PAGES)
}

/// A reserve that went offline is kept for no request, nor when it came back; one that is isolated is subtracted once:
/// a page is refused at the min mark.
#[test]
fn a_reserve_that_is_not_there_is_not_kept() {
    for way in ["offline", "offline and online", "isolated"] {
        let world = Spec::one_zone(16384, 1).config(marked(Generation::V6_1)).plain();
        let allocator = world.allocator();
        allocator.set_pageblock_type(last(), Migratetype::HighAtomic).expect("it exists");
        if way == "isolated" {
            assert_eq!(allocator.isolate_pageblock(last()), Some(PAGEBLOCK_PAGES));
        } else {
            let gone = world.on(0, |cpu| cpu.offline(last()..last().add(PAGEBLOCK_PAGES)));
            assert_eq!(gone, Ok(PAGEBLOCK_PAGES));
        }
        if way == "offline and online" {
            allocator.online(last(), PAGEBLOCK_PAGES).expect("it was there before");
            assert_eq!(allocator.frames().info(last()).migratetype(), M);
        }
        world.on(0, |cpu| cpu.request_all(&page()));
        assert_eq!(world.zone().free_pages(), world.zone().marks().min, "{way}");
    }
}
