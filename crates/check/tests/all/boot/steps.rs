//! Memory that is initialised bit by bit: by boot, by workers that stop anywhere, by allocations.

use core::ops::Range;

use framewright::boot::deferred::UnitStep;
use framewright::hotplug::OfflineFailure;
use framewright_check::platform::checked::{Checked, trace};
use framewright_check::prelude::*;

const SPLITS: [Split; 3] = [Split::OneThread, Split::AllCpus, Split::AllCpusBySection];
const SECTION: u64 = 4096;

fn ranges(ranges: &[(u64, u64)]) -> Vec<Range<Pfn>> {
    ranges.iter().map(|&(start, end)| Pfn(start)..Pfn(end)).collect()
}

/// One zone from `0x1000` on with these free ranges, of which the first 4096 frames are initialised by boot.
fn one_zone(split: Split, free: &[(u64, u64)], slots: usize) -> Spec {
    let end = free.last().expect("there is memory").1;
    let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0x1000), pages: end - 0x1000 };
    let free = ranges(free);
    let rest = RestSpec { spec, present: end - 0x1000, free, deferred_from: Pfn(0x2000), cpus: 4 };
    Spec::deferred(How { split, section: SECTION }, [rest], slots, 2)
}

const FREE: [(u64, u64); 5] =
    [(0x1000, 0x2100), (0x2101, 0x2300), (0x2305, 0x6000), (0x6100, 0x6101), (0x8123, 0xffff)];

fn pages(ranges: &[(u64, u64)]) -> u64 {
    ranges.iter().map(|(start, end)| end - start).sum()
}

#[test]
fn an_allocation_that_finds_nothing_initialises_more() {
    for (split, worker_first) in SPLITS.iter().flat_map(|&split| [(split, false), (split, true)]) {
        let world = one_zone(split, &FREE, 2).build_to_clear::<Plain, ()>(|_| ());
        world.soil();
        let booting = world.allocator().begin().expect("it is the first time");
        let mut worker = booting.worker(NodeId(0)).expect("there is a slot");
        if worker_first {
            // It claims a chunk and stops after one unit: the others are taken off its end.
            assert!(matches!(worker.step(), UnitStep::Unit(..)));
        }
        let mut blocks = vec![];
        while let Ok(block) = world.on(0, |cpu| cpu.alloc(Order::ZERO, M)) {
            blocks.push(block);
        }
        // A worker's next unit is its own.
        let left = booting.left();
        assert!(left <= if worker_first { 1024 } else { 0 }, "{split:?}: {left} left");
        let growth = world.allocator().deferred().expect("it is deferred").growth();
        assert!(growth.times > 0 && growth.pages + 0x1000 <= pages(&FREE));
        worker.run();
        drop(worker);
        booting.finish().expect("nothing is left");
        assert_eq!(world.settled().allocated as usize, blocks.len());
        for block in blocks {
            world.must_free(1, block, 0);
        }
        world.drain_all();
        assert_eq!(world.settled().free, pages(&FREE));
    }
}

#[test]
fn a_free_of_what_is_not_initialised_is_refused() {
    let world = one_zone(Split::default(), &FREE, 1).build_to_clear::<Plain, ()>(|_| ());
    world.soil();
    let booting = world.allocator().begin().expect("it is the first time");
    for pfn in 0..0x10_400 {
        assert!(world.on(0, |cpu| cpu.free(Pfn(pfn), Order::ZERO)).is_err(), "{pfn:#x}");
        assert!(
            world.on(0, |cpu| cpu.free(Pfn(pfn), Order::new(9).expect("it exists"))).is_err(),
            "{pfn:#x}"
        );
    }
    booting.run();
    booting.finish().expect("nothing is left");
    assert_eq!(world.settled().free, pages(&FREE));
}

#[test]
fn a_lazy_boot_initialises_what_is_used() {
    let world = one_zone(Split::default(), &FREE, 0).plain();
    let booting = world.allocator().begin().expect("it is the first time");
    assert!(booting.worker(NodeId(0)).is_none(), "no slots");
    booting.stay_lazy();
    let marks = world.allocator().watermarks(ZoneId(0));
    let order = Order::new(10).expect("it exists");
    let blocks: Vec<_> =
        core::iter::from_fn(|| world.on(0, |cpu| cpu.alloc(order, Migratetype::Unmovable)).ok()).collect();
    assert_eq!(blocks.len(), 4 + 14 + 31);
    assert_eq!(world.settled().allocated, blocks.len() as u64 * 1024);
    assert_eq!(world.allocator().watermarks(ZoneId(0)), marks, "computed from all there will be");
    assert_eq!(world.zone().managed_pages(), pages(&FREE));
}

/// A range is had that is nowhere in what is ready yet, also if it is larger than a section.
#[test]
fn a_lazy_boot_initialises_what_a_range_needs() {
    for config in ENGINES {
        let world = one_zone(Split::default(), &FREE, 0).config(config).plain();
        world.allocator().begin().expect("it is the first time").stay_lazy();
        world.on(0, |cpu| {
            for (start, pages) in [(0x2400, 0x1800), (0x8200, 0x7c00)] {
                let got = cpu.alloc_contig_with(pages, 1, M, &Helpers::NONE);
                assert_eq!(got, Ok(Pfn(start)..Pfn(start + pages)), "{:?}", config.engine);
            }
            for pages in [0x8000, u64::MAX] {
                assert!(cpu.alloc_contig_with(pages, 1, M, &Helpers::NONE).is_err(), "no range is so long");
            }
        });
    }
}

#[test]
fn what_boot_reserved_is_given_back_when_its_pageblock_is_ready() {
    let free = [(0x1000, 0x3000), (0x3800, 0x4001), (0x4003, 0x6000)];
    let spec = |engine| one_zone(Split::default(), &free, 1).engine(engine);
    let soiled = spec(Engine::Framewright).build_to_clear::<Plain, ()>(|_| ());
    soiled.soil();
    for world in [soiled, spec(Engine::Compact).plain()] {
        let booting = world.allocator().begin().expect("it is the first time");
        assert!(world.allocator().add_memory(Pfn(0x4001), 2).is_err(), "a worker may be initialising it");
        booting.run();
        booting.finish().expect("nothing is left");
        assert_eq!(world.allocator().add_memory(Pfn(0x4001), 2), Ok(()));
        assert_eq!(world.allocator().add_memory(Pfn(0x3000), 0x800), Ok(()));
        assert!(world.allocator().add_memory(Pfn(0x3000), 1).is_err(), "once");
        let account = world.settled();
        assert_eq!((account.free, account.reserved), (0x5000, 0));
        let zone = world.zone();
        assert_eq!((zone.present_pages(), zone.managed_pages()), (0x5000, 0x5000));
    }
}

/// A fuzzer found memory of the first node left uninitialised.
#[test]
fn slots_full_of_another_nodes_work_admit_a_worker() {
    let rest = |node: u64| {
        let (start, end) = ((1 + node) << 14, (2 + node) << 14);
        let spec = normal(node as u16, start, end - start);
        let free = ranges(&[(start, end)]);
        RestSpec { spec, present: end - start, free, deferred_from: Pfn(start), cpus: 4 }
    };
    let how = How { split: Split::OneThread, section: SECTION };
    let world = Spec::deferred(how, [rest(0), rest(1)], 1, 2).plain();
    let booting = world.allocator().begin().expect("it is the first time");
    let mut worker = booting.worker(NodeId(1)).expect("there is a slot");
    assert!(matches!(worker.step(), UnitStep::Unit(..)));
    assert!(booting.worker(NodeId(0)).is_none(), "the slot is taken");
    drop(worker);
    let booting = booting.finish().expect_err("memory is left");
    assert_eq!(booting.run(), (2 << 14) - 1024);
    assert!(booting.finish().is_ok());
}

/// Nothing of a zone goes offline before all of it is initialised.
#[test]
fn memory_goes_offline_when_its_zone_is_ready() {
    let world = one_zone(Split::OneThread, &[(0x1000, 0x6000)], 1).plain();
    let range = Pfn(0x1000)..Pfn(0x1000 + PAGEBLOCK_PAGES);
    let offline = || world.on(0, |cpu| cpu.offline(range.clone())).map_err(|error| error.why);
    assert_eq!(offline(), Err(OfflineFailure::NotReady));
    let hwpoison = |pfn| world.on(0, |cpu| cpu.hwpoison(Pfn(pfn)));
    assert_eq!(hwpoison(0x1000), Err(HwpoisonError::NotReady));
    assert_eq!(hwpoison(0x6000), Err(HwpoisonError::Foreign));
    let booting = world.allocator().begin().expect("it is the first time");
    booting.worker(NodeId(0)).expect("there is a slot").run();
    booting.finish().expect("nothing is left");
    assert_eq!(offline(), Ok(PAGEBLOCK_PAGES));
    assert_eq!(hwpoison(0x1000), Err(HwpoisonError::Foreign), "it is offline");
    assert_eq!(hwpoison(0x2000), Ok(Hwpoisoned::Withdrawn));
}

/// Boot makes descriptors of memory that held garbage. Memory that comes later gets descriptors as new, and memory that
/// comes back keeps what is known of its bad frames.
#[test]
fn descriptors_are_made_for_new_memory_and_kept_for_bad_frames() {
    let free = [(0x1000, 0x3000), (0x4000, 0x6000)];
    let world = one_zone(Split::OneThread, &free, 1).build_to_clear::<Plain, ()>(|_| ());
    world.soil();
    let booting = world.allocator().begin().expect("it is the first time");
    booting.run();
    booting.finish().expect("nothing is left");
    let (start, bad) = (Pfn(0x4000), Pfn(0x4007));
    world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is free");
    assert_eq!(world.on(0, |cpu| cpu.offline(start..start.add(PAGEBLOCK_PAGES))), Ok(PAGEBLOCK_PAGES));
    world.allocator().online(start, PAGEBLOCK_PAGES).expect("it is offline");
    world.allocator().online(Pfn(0x3000), 0x1000).expect("it was never there");
    world.on(0, |cpu| {
        for pfn in (0x3000..0x4000).map(Pfn) {
            assert!(cpu.free(pfn, Order::ZERO).is_err(), "{pfn:?} is free");
        }
    });
    let all = world.everything();
    assert!(all.len() == 0x5000 - 1 && !all.contains(&bad), "{} frames", all.len());
}

/// A call around a hole, with a frame inside it and a range that reaches over it.
type Call = fn(&Cpu<'_, '_, Checked>, Pfn, Range<Pfn>);

/// Descriptors of memory that is not there need no memory behind them: no call reads them, whatever it names.
#[test]
fn no_call_reads_a_descriptor_of_absent_memory() {
    let hole = Pfn(0x3000)..Pfn(0x4200);
    let (inside, around) = (Pfn(0x3210), Pfn(0x2e00)..Pfn(0x4400));
    let calls: [(&str, Call); 9] = [
        ("boot, and allocations", |cpu, _, _| {
            let booting = cpu.allocator().begin().expect("it is the first time");
            assert_ne!(booting.run(), 0);
            booting.finish().expect("nothing is left");
            for k in Order::all() {
                cpu.alloc_all(k).into_iter().for_each(|pfn| cpu.must_free(pfn, k));
            }
        }),
        ("a longer range than there is", |cpu, _, _| {
            assert!(cpu.alloc_contig_with(0x2001, 1, M, &Helpers::NONE).is_err());
        }),
        ("given blocks", |cpu, pfn, range| {
            assert!(cpu.alloc_at(pfn, Order::ZERO).is_err() && cpu.take_free(pfn, Order::ZERO, &mut []) == 0);
            assert!(cpu.alloc_contig_range(range, &Helpers::NONE).is_err());
        }),
        ("frees", |cpu, pfn, range| {
            assert!(Order::all().all(|k| cpu.free(pfn.block_start(k), k).is_err()));
            assert!(free_range(cpu, pfn..range.end).is_err() && cpu.free_contig_range(range).is_err());
            assert!(cpu.allocator().try_free(pfn, Order::ZERO).is_err());
        }),
        ("pageblocks", |cpu, pfn, _| {
            assert_eq!(cpu.allocator().isolate_pageblock(pfn), None);
            assert_eq!(cpu.allocator().unisolate_pageblock(pfn), None);
            assert_eq!(cpu.allocator().set_pageblock_type(pfn, M), None);
        }),
        ("bad frames", |cpu, pfn, _| {
            assert_eq!(cpu.hwpoison(pfn), Err(HwpoisonError::Foreign));
            assert_eq!(cpu.unpoison(pfn), Err(HwpoisonError::Foreign));
        }),
        ("hot-plug", |cpu, _, range| {
            let pages = cpu.offline(range.clone()).expect("it is free");
            assert_eq!(pages, 0x400);
            cpu.allocator().online(range.start, 0x200).expect("it was there");
            cpu.allocator().online(Pfn(range.end.0 - 0x200), 0x200).expect("it was there");
        }),
        ("compaction and reports", |cpu, _, _| {
            let stays = mover(|_, _, _| Migrated::Stays);
            cpu.compact(ZoneId(0), &stays);
            cpu.compact_proactively(NodeId(0), &stays);
            cpu.report_free(PAGEBLOCK_ORDER, |_| true);
        }),
        ("what there is", |cpu, _, _| {
            let allocator = cpu.allocator();
            allocator.verify().expect("sound");
            let _ =
                (allocator.buddyinfo().to_string(), allocator.free_blocks(Order::ZERO), allocator.totals());
            cpu.explain(&page(), &Helpers::NONE, |_| {});
        }),
    ];
    for engine in [Engine::Framewright, Engine::Linux] {
        let world = one_zone(Split::default(), &[(0x1000, 0x3000), (0x4200, 0x6000)], 1)
            .engine(engine)
            .but(|config| config.free_reporting = true)
            .build_to_clear::<Checked, ()>(|_| ());
        for (what, call) in &calls {
            let ((), accesses) = trace(|| world.on(0, |cpu| call(cpu, inside, around.clone())));
            let absent = accesses.iter().filter_map(|access| world.frame_of(access.address));
            let read: Vec<_> = absent.filter(|pfn| hole.contains(pfn)).collect();
            assert_eq!(read.first(), None, "{engine:?}, {what}: {} reads", read.len());
        }
    }
}
