//! Refusals when an allocator is made, and when it is given memory.

use core::ops::Range;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use framewright::Allocator;
use framewright::platform::Metal;
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

#[test]
fn filling_freed_memory_needs_a_direct_map() {
    let (poison, init_on_free) = (
        Config::default().but(|config| config.poison = true),
        Config::default().but(|config| config.init_on_free = true),
    );
    for config in [poison, init_on_free] {
        must_fail("no direct map", &["PoisonNeedsDirectMap"], move || {
            let _ = Spec::one_zone(PAGEBLOCK_PAGES, 1).config(config).without_pages().plain();
        });
    }
}

/// Lists have room for their share of the zone, and no more: 1 GiB takes its descriptors and maps of 2.1 MiB, and
/// little for each CPU.
#[test]
fn own_structures_take_little() {
    let zones = [normal(0, BASE.0, 1 << 18)];
    for (cpus, most_kib) in [(1, 2600), (16, 2800), (64, 4200)] {
        let plan = Plan::new(&zones, &vec![NodeId(0); cpus], &Config::default()).expect("a plan");
        let kib = plan.layout::<Metal, ()>().expect("a layout").size() / 1024;
        println!("{cpus} CPUs: {kib} KiB, {} KiB of them lists", plan.slots / 128);
        assert!(kib <= most_kib, "{cpus} CPUs: {kib} KiB");
    }
}

/// A table of distances says 10 of each node and itself, and no less of any two.
#[test]
fn tables_of_distances_are_checked() {
    let zone = |n: u16| normal(n, BASE.0 + 4 * PAGEBLOCK_PAGES * u64::from(n), 2 * PAGEBLOCK_PAGES);
    let makes = |distances: [u8; 9]| {
        let spec = Spec::zones([zone(0), zone(1), zone(2)], 1).distances(distances);
        catch_unwind(AssertUnwindSafe(|| spec.plain().settled().free)).is_ok()
    };
    assert!(makes([10, 20, 20, 20, 10, 20, 20, 20, 10]) && makes([10, 10, 10, 10, 10, 10, 10, 10, 10]));
    for wrong in 0..9 {
        let mut table = [10, 20, 20, 20, 10, 20, 20, 20, 10];
        table[wrong] = if wrong % 4 == 0 { 11 } else { 9 };
        assert!(!makes(table), "{table:?}");
    }
}

#[test]
fn zones_are_checked_one_by_one_and_against_each_other() {
    let config = Config::default();
    let plan = |zones: &[ZoneSpec]| Plan::new(zones, &[NodeId(0)], &config).map(|plan| plan.zones);
    let (low, high) = (normal(0, BASE.0, 1024), normal(0, BASE.0 + 1024, 1));
    assert_eq!((plan(&[low, high]), plan(&[high, low])), (Ok(2), Ok(2)), "neighbours");
    let long = normal(0, BASE.0, 1025);
    for zones in [[long, high], [high, long]] {
        assert_eq!(plan(&zones), Err(SetupError::ZonesOverlap(ZoneId(0), ZoneId(1))));
    }
    let end = Pfn(1 << 52);
    for zone in [
        normal(0, BASE.0, 0),
        normal(0, BASE.0, MAX_ZONE_PAGES + 1),
        normal(0, end.0, 1),
        normal(0, BASE.0 + 1, 1),
    ] {
        assert_eq!(plan(&[zone]), Err(SetupError::BadZone(ZoneId(0))), "{zone:?}");
    }
    assert_eq!(plan(&[normal(0, BASE.0, MAX_ZONE_PAGES)]), Ok(1));
    assert_eq!(plan(&[normal(0, end.0 - 1024, 1)]), Ok(1));
    let many: Vec<_> = (0..256).map(|n| normal(0, BASE.0 + 1024 * n, 1)).collect();
    assert_eq!((plan(&many[..255]), plan(&many)), (Ok(255), Err(SetupError::ZoneCount(256))));
    assert_eq!(plan(&[]), Err(SetupError::ZoneCount(0)));
}

/// Each setting with values at the ends of its range, and values outside.
#[test]
fn settings_are_refused_outside_their_ranges() {
    type Set = fn(&mut Config, u32);
    let page_kib: Set = |config, value| config.page_kib = value;
    let slots: Set = |config, value| config.experiment.pcp_slots = value;
    let fraction: Set = |config, value| config.experiment.pcp_fraction = value;
    let batch: Set = |config, batch| config.experiment.pcp_fixed = Some(PcpFixed { batch, high: 9 });
    let part: Set = |config, value| config.pcp_free_part = value;
    let proactiveness: Set = |config, value| config.compaction_proactiveness = value as u8;
    let cases: [(&str, Set, &[u32], &[u32]); 6] = [
        ("page_kib", page_kib, &[4, 8, 32, 64], &[0, 2, 3, 12, 128]),
        ("pcp_slots", slots, &[2, 1 << 20], &[0, 1, 3, 1 << 21]),
        ("pcp_fraction", fraction, &[0, 8, 9], &[1, 7]),
        ("the batch of pcp_fixed", batch, &[1], &[0]),
        ("pcp_free_part", part, &[1, 8], &[0]),
        ("compaction_proactiveness", proactiveness, &[0, 100], &[101, 255]),
    ];
    for (expected, set, allowed, refused) in cases {
        let plan = |value| {
            let mut config = Config::default();
            set(&mut config, value);
            Plan::new(&[normal(0, BASE.0, 1024)], &[NodeId(0)], &config).map(|plan| plan.zones)
        };
        for &value in allowed {
            assert_eq!(plan(value), Ok(1), "{expected} {value}");
        }
        for &wrong in refused {
            let why = plan(wrong);
            let fits = matches!(why, Err(SetupError::Setting { name, value, .. }) if name == expected && value == wrong);
            assert!(fits, "{expected} {wrong}: {why:?}");
        }
    }
}

/// Each preset has its kernel's lock, its rule of stealing, its background compaction, and its place of the check of
/// blocks.
#[test]
fn presets_are_as_their_kernels() {
    let (ticket, queued) = (LockKind::Ticket, LockKind::Queued);
    let (old, new) = (Generation::V3_0, Generation::V6_1);
    let (under, off) = (RefillCheck::UnderZoneLock, RefillCheck::Off);
    for (preset, expected) in [
        (Config::linux_v3_0(), (ticket, old, 0, under)),
        (Config::linux_v5_4(), (queued, new, 0, under)),
        (Config::linux_v6_1(), (queued, new, 20, under)),
        (Config::linux_v6_7(), (queued, new, 20, off)),
        (Config::linux_v6_16(), (queued, new, 20, off)),
    ] {
        let Experiment { lock_kind, fallback, refill_check, .. } = preset.experiment;
        assert_eq!((lock_kind, fallback, preset.compaction_proactiveness, refill_check), expected);
    }
}

#[test]
fn there_may_be_as_many_nodes_as_a_mask_has() {
    let last = NodeId(MAX_NODES as u16 - 1);
    let world = Spec::one_zone(1024, 1).cpu_nodes([last]).plain();
    assert_eq!((world.allocator().nodes().len(), world.settled().free), (MAX_NODES, 1024));
    let plan = |node| Plan::new(&[normal(0, BASE.0, 1024)], &[NodeId(node)], &Config::default());
    assert_eq!(plan(last.0).map(|plan| (plan.nodes, plan.zonelist)), Ok((MAX_NODES, MAX_NODES)));
    assert_eq!(plan(last.0 + 1), Err(SetupError::NodeCount(MAX_NODES + 1)));
}

#[test]
fn memory_that_is_added_lies_in_one_zone() {
    let zones = [normal(0, BASE.0, 1024), normal(0, BASE.0 + 1024, 1024)];
    let world = Spec::zones(zones, 1).memory([]).plain();
    let add = |start: Pfn, pages| world.allocator().add_memory(start, pages);
    for (start, pages) in [(BASE, 0), (BASE, 1025), (BASE.add(1023), 2), (BASE.add(2048), 1), (Pfn(0), 1)] {
        assert_eq!(add(start, pages), Err(SetupError::RangeOutsideZones(start)), "{pages} from {start:?}");
    }
    assert_eq!((add(BASE, 1024), add(BASE.add(1024), 1)), (Ok(()), Ok(())));
    assert_eq!(world.settled().free, 1025);
}

/// Boot's account of memory must be of the allocator's zones.
#[test]
#[should_panic(expected = "describes other zones")]
fn memory_that_is_left_for_later_is_of_the_same_zones() {
    let spec = normal(0, BASE.0, 2048);
    let rest =
        RestSpec { spec, present: 2048, free: vec![BASE..BASE.add(2048)], deferred_from: BASE, cpus: 1 };
    let how = How { split: Split::OneThread, section: 1024 };
    let _ = Spec::deferred(how, [rest], 1, 1).over([normal(0, BASE.0, 1024)]).plain();
}

/// Memory that is left for later begins with a unit: the rest of a unit that boot has begun would be lost.
#[test]
#[should_panic(expected = "from the start of a unit on")]
fn memory_that_is_left_for_later_begins_with_a_unit() {
    let spec = normal(0, BASE.0, 2048);
    let (free, deferred_from) = (vec![BASE..BASE.add(2048)], BASE.add(100));
    let rest = RestSpec { spec, present: 2048, free, deferred_from, cpus: 1 };
    let world = Spec::deferred(How { split: Split::OneThread, section: 1024 }, [rest], 1, 1).plain();
    let booting = world.allocator().begin().expect("it is the first time");
    booting.run();
    assert_eq!(booting.left(), 0, "lost");
}

/// The short way from ranges to an allocator: its structures are in the first range that is mapped and large enough.
/// All other frames can be had, and frames between the ranges can be added later.
#[test]
#[expect(unsafe_code, reason = "memory for the allocator's own structures")]
fn ranges_become_an_allocator() {
    use core::ptr::NonNull;
    use framewright::platform::OneCpu;

    const PAGE: usize = 4096;
    let given = [BASE.add(3)..BASE.add(7), BASE.add(100)..BASE.add(400), BASE.add(2000)..BASE.add(3000)];
    let layout = core::alloc::Layout::from_size_align(1000 * PAGE, PAGE).expect("a layout");
    // SAFETY: the layout is not empty.
    let room = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("the host has memory");
    let over = |ranges: &mut [Range<Pfn>], mapped: &Range<Pfn>| {
        // SAFETY: only the third range is mapped, at `room`, which no other code uses: of the calls that get that far,
        // one allocator at a time is used.
        unsafe {
            Allocator::<OneCpu>::over(ranges, &[NodeId(0)], Config::default(), |range| {
                let is_in = mapped.start <= range.start && range.end <= mapped.end;
                is_in.then(|| room.add((range.start.0 - mapped.start.0) as usize * PAGE))
            })
        }
    };
    let mut ranges = given.clone();
    let allocator = over(&mut ranges, &given[2]).expect("the third range has room");
    let taken = ranges[2].start.0 - given[2].start.0;
    assert!((1..100).contains(&taken) && ranges[..2] == given[..2], "{ranges:?}");
    let cpu = allocator.cpu(&OneCpu);
    let mut all = Vec::new();
    while let Ok(pfn) = cpu.alloc(Order::ZERO, Migratetype::Movable) {
        assert!(ranges.iter().any(|range| range.contains(&pfn)), "{pfn:?}");
        all.push(pfn);
    }
    assert_eq!(all.len() as u64, 4 + 300 + 1000 - taken);
    allocator.add_memory(given[1].end, 100).expect("inside the zone");
    assert!(cpu.alloc(Order::ZERO, Migratetype::Movable).is_ok());
    // SAFETY: no memory is given.
    let none = |ranges: &mut [Range<Pfn>]| unsafe {
        Allocator::<OneCpu>::over(ranges, &[NodeId(0)], Config::default(), |_| None)
    };
    assert_eq!(none(&mut []).err(), Some(SetupError::ZoneCount(0)));
    assert_eq!(none(&mut given.clone()).err(), Some(SetupError::TooLarge));
    // Two ranges that overlap: the second is refused after the structures were made.
    let overlapping = [given[2].clone(), BASE.add(2900)..BASE.add(3100)];
    let mut ranges = overlapping.clone();
    let refused = over(&mut ranges, &given[2]).err();
    assert_eq!((refused, ranges), (Some(SetupError::RangeInUse(BASE.add(2900))), overlapping));
    // A range with frames that the structures are in, and with no others.
    let (first, last) = (given[2].start, given[2].start.add(taken - 1));
    for overlapping in [first..first.add(1), last..last.add(1)] {
        let overlapping = [overlapping, given[2].clone()];
        let mut ranges = overlapping.clone();
        let refused = over(&mut ranges, &given[2]).err();
        assert_eq!((refused, ranges), (Some(SetupError::RangeInUse(overlapping[0].start)), overlapping));
    }
    // One without a frame is in no one's way.
    assert!(over(&mut [first.add(1)..first.add(1), given[2].clone()], &given[2]).is_ok());
}
