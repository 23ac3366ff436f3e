//! A free list with a head word that a stray write changed: the list is given up, and no frame is handed out twice.

use std::collections::HashSet;

use framewright_check::prelude::*;
use heads::{BODY, free, taken};

const PAGES: u64 = 2 * PAGEBLOCK_PAGES;

/// Two pageblocks in which every other frame of the first 32 is allocated, so that the order-0 list has 16 blocks.
fn world() -> (World<Plain>, Vec<Pfn>) {
    let config = Config::linux_v6_7().bare();
    let world = Spec::one_zone(PAGES, 1).config(config).plain();
    let held = world.on(0, |cpu| {
        let all: Vec<_> = (0..32).map(|_| cpu.must_alloc(0)).collect();
        assert_eq!(all.last(), Some(&BASE.add(31)));
        let (odd, even): (Vec<_>, Vec<_>) = all.into_iter().partition(|pfn| pfn.0 % 2 == 1);
        even.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
        odd
    });
    world.settled();
    (world, held)
}

/// Allocates all that is left and frees it again, twice; no CPU may get a frame that a caller holds.
fn use_it(world: &World<Plain>, held: &[Pfn], damage: &str) {
    world.on(0, |cpu| {
        for _ in 0..2 {
            let mut seen: HashSet<_> = held.iter().copied().collect();
            let mut got = Vec::new();
            while let Ok(pfn) = cpu.alloc(Order::ZERO, M) {
                assert!(seen.insert(pfn), "{damage}: {pfn} was handed out twice");
                got.push(pfn);
            }
            assert!(got.len() > 900, "{damage}: only {} pages were left", got.len());
            got.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
        }
    });
    let (allocator, zone) = (world.allocator(), world.zone());
    let lost = allocator.zone_snapshot(zone).counts.damaged_pages;
    assert!((1..=16).contains(&lost), "{damage}: {lost} pages are out of use");
    assert!(zone.free_pages() <= PAGES - held.len() as u64 - lost, "{damage}");
}

#[test]
fn no_frame_is_handed_out_twice_whatever_a_head_word_says() {
    let at = |n: u64| BASE.add(2 * n);
    // The first block of the list, one between two others, the last, in this order: the first freed is the last.
    for (where_, pfn) in [("first", at(15)), ("middle", at(7)), ("last", at(0))] {
        for (what, value) in [
            ("taken", taken(0)),
            ("body", BODY),
            ("of another order", free(3, M, 0, 0)),
            ("alone", free(0, M, pfn.0 - BASE.0, pfn.0 - BASE.0)),
            ("linked to a held frame", free(0, M, 1, 3)),
            ("linked beyond the zone", free(0, M, (1 << 28) - 1, (1 << 28) - 1)),
        ] {
            let (world, held) = world();
            world.corrupt(Spot::Head(pfn), value);
            use_it(&world, &held, &format!("{where_} {what}"));
        }
    }
}

#[test]
fn no_frame_is_handed_out_twice_whatever_the_ends_of_a_list_say() {
    for end in [Spot::First(Order::ZERO, M), Spot::Last(Order::ZERO, M)] {
        for value in [1, 2, PAGES + 4096] {
            let (world, held) = world();
            world.corrupt(end, value);
            use_it(&world, &held, &format!("{end:?} is {value}"));
        }
    }
}

#[test]
fn a_damaged_list_of_another_type_is_not_stolen_from_for_ever() {
    let (world, _held) = world();
    let whole = world.on(0, |cpu| cpu.alloc(MAX_ORDER, Migratetype::Unmovable));
    assert!(whole.is_err(), "no block is so large");
    world.corrupt(Spot::First(Order::ZERO, M), 1);
    let got = world.on(0, |cpu| {
        let mut seen = HashSet::new();
        while let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Unmovable) {
            assert!(seen.insert(pfn), "{pfn} was handed out twice");
        }
        seen.len()
    });
    assert!(got > 900, "{got}");
}
