//! Boot with real threads: workers and allocations side by side, machines of many terabytes.
#![expect(unsafe_code, reason = "a user slot vouches for itself, and its owner reaches it")]

use core::sync::atomic::{AtomicU64, Ordering};
use framewright::config::Experiment;
use std::thread;
use std::time::Instant;

use framewright::boot::deferred::UnitStep;
use framewright::boot::map::{Home, Kind};
use framewright::boot::zones::Rules;
use framewright::policy::init::Split;
use framewright::units::{NodeId, SECTION_PAGES};
use framewright::{Config, CpuId, Migratetype, Order, Pfn};
use framewright_host::{
    Arena, BootMap, BootOptions, Descriptors, FirmwareMap, FrameUser, Zeroable, framewright,
};

/// 56 bytes, so that a descriptor is as large as Linux' `struct page`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Page([u64; 7]);

impl FrameUser for Page {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        (self.0 != [0; 7]).then_some("not as boot left it")
    }
}

// SAFETY: it is made of numbers.
unsafe impl Zeroable for Page {}

const GIB: u64 = 1 << 30;

/// Nodes of `gib` GiB each, one after another, in one range with a hole below 4 GiB.
fn machine(node_gib: &[u64]) -> FirmwareMap {
    let mut map = FirmwareMap::default();
    let total: u64 = node_gib.iter().sum::<u64>() * GIB;
    map.ranges.push((0, total, Kind::Usable));
    map.ranges.push((0x9_fc00, 0x10_0000 - 0x9_fc00, Kind::Reserved));
    map.ranges.push((3 * GIB, GIB, Kind::Reserved));
    let mut start = 0;
    for (node, gib) in (0..).zip(node_gib) {
        map.nodes.push((start, gib * GIB, Home { node: NodeId(node), hot_pluggable: false }));
        start += gib * GIB;
    }
    map
}

fn divide(map: &FirmwareMap) -> BootMap {
    map.divide(Rules::default(), |early| early.reserve(Pfn(0x100)..Pfn(0x5000))).expect("the map is sound")
}

fn options(cpu_nodes: &[u16], descriptors: Descriptors) -> BootOptions {
    BootOptions {
        cpu_nodes: cpu_nodes.iter().copied().map(NodeId).collect(),
        config: Config::default(),
        split: Split::default(),
        workers: 4,
        descriptors,
    }
}

fn free_pages(map: &BootMap) -> u64 {
    map.free.iter().map(|range| range.end.0 - range.start.0).sum()
}

#[test]
fn threads_initialise_all_of_two_nodes() {
    let map = divide(&machine(&[8, 8]));
    for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
        let options = BootOptions { split, ..options(&[0, 0, 1, 1], Descriptors::Cleared) };
        let arena: Arena = map.build(&options).expect("it is sound");
        let booting = arena.allocator().begin().expect("it is the first time");
        let early = arena.allocator().free_pages();
        thread::scope(|scope| {
            for node in [0, 0, 1, 1] {
                let mut worker = booting.worker(NodeId(node)).expect("there is a slot");
                scope.spawn(move || worker.run());
            }
        });
        booting.finish().expect("nothing is left");
        let account = arena.allocator().verify().expect("all is well");
        assert_eq!(account.free, free_pages(&map));
        assert!(early < 4 * GIB / 4096);
        for zone in arena.allocator().zones() {
            assert_eq!(zone.present_pages(), map.parts[zone.id().index()].present);
        }
    }
}

/// A frame that is in two free ranges would have two owners, and its slot two of them at the same time.
#[test]
fn a_map_whose_free_ranges_overlap_is_refused() {
    let sound = divide(&machine(&[1]));
    let (first, second) = (Pfn(0x6000)..Pfn(0x7000), Pfn(0x6fff)..Pfn(0x8000));
    for free in [
        vec![first.clone(), second.clone()],
        vec![second, first.clone()],
        vec![Pfn(0x7000)..Pfn(0x6000), first],
    ] {
        let map = BootMap { free, ..sound.clone() };
        for config in [Config::default(), Config::linux_v6_7()] {
            let options = BootOptions { config, ..options(&[0], Descriptors::AsTheyAre) };
            let refused = map.build::<Page>(&options).map(drop).expect_err("two owners");
            assert!(refused.to_string().contains("was added before"), "{refused}");
        }
    }
}

/// Two threads allocate and free while two others initialise, slowly enough to take until the end.
fn allocate_meanwhile(operations: u64) {
    let map = divide(&machine(&[6]));
    let arena: Arena<Page> = map.build(&options(&[0; 2], Descriptors::Cleared)).expect("it is sound");
    let booting = arena.allocator().begin().expect("it is the first time");
    let units = booting.left() / 1024;
    let done = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 0..2 {
            let mut worker = booting.worker(NodeId(0)).expect("there is a slot");
            let done = &done;
            scope.spawn(move || {
                let mut steps = n;
                while done.load(Ordering::Relaxed) < operations {
                    if done.load(Ordering::Relaxed) * units < steps * operations {
                        thread::yield_now();
                    } else if worker.step() == UnitStep::Idle {
                        break;
                    }
                    steps += 2;
                }
            });
            let arena = &arena;
            scope.spawn(move || churn(arena, n as usize, operations / 2, done));
        }
    });
    let growth = arena.allocator().deferred().expect("it is deferred").growth();
    assert!(growth.times > 0, "no allocation had to wait for memory");
    booting.run();
    booting.finish().expect("nothing is left");
    let account = arena.allocator().verify().expect("all is well");
    assert_eq!((account.free, account.allocated), (free_pages(&map), 0));
    println!("{growth:?}");
}

/// Holds more than boot has initialised from the first thousands of operations on.
fn churn(arena: &Arena<Page>, slot: usize, operations: u64, done: &AtomicU64) {
    let cpu = arena.attach_to(slot).expect("no owner has it");
    let frames = arena.allocator().frames();
    let tag = Page([slot as u64 + 1; 7]);
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let mut rng = fastrand::Rng::with_seed(slot as u64);
    for n in 0..operations {
        let keep = 4000 + 16 * (n % 512);
        if (held.len() as u64) < keep {
            let order = if n % 64 == 5 { 9 } else { [0, 0, 3, 4][rng.usize(..4)] };
            let order = Order::new(order).expect("it exists");
            let pfn = cpu.alloc(order, Migratetype::Movable);
            let Ok(pfn) = pfn else { continue };
            // SAFETY: the block was just handed out to us.
            unsafe { frames.with_user(pfn, |page| assert_eq!(core::mem::replace(page, tag), Page([0; 7]))) };
            held.push((pfn, order));
        } else {
            let (pfn, order) = held.swap_remove(rng.usize(..held.len()));
            // SAFETY: it is ours still.
            unsafe {
                frames.with_user(pfn, |page| assert_eq!(core::mem::replace(page, Page([0; 7])), tag));
                cpu.free(pfn, order).expect("it is allocated");
            }
        }
        if n % 64 == 0 {
            done.fetch_add(64, Ordering::Relaxed);
        }
    }
    done.fetch_add(64, Ordering::Relaxed);
    for (pfn, order) in held {
        // SAFETY: as above.
        unsafe {
            frames.with_user(pfn, |page| *page = Page([0; 7]));
            cpu.free(pfn, order).expect("it is allocated");
        }
    }
}

#[test]
fn allocations_go_on_while_workers_initialise() {
    allocate_meanwhile(100_000);
}

#[test]
#[ignore = "ten million operations: a minute"]
fn ten_million_operations_while_workers_initialise() {
    allocate_meanwhile(10_000_000);
}

#[test]
fn sixteen_tebibytes_are_ready_at_once() {
    let map = divide(&machine(&[16 << 10]));
    assert_eq!(map.zones.len(), 18);
    let start = Instant::now();
    let arena: Arena = map.build(&options(&[0; 2], Descriptors::AsTheyAre)).expect("it is sound");
    let booting = arena.allocator().begin().expect("it is the first time");
    booting.stay_lazy();
    let cpu = arena.attach().expect("there is a slot");
    let order = Order::new(10).expect("it exists");
    let first = cpu.alloc(order, Migratetype::Movable).expect("memory is left");
    println!("ready after {:?}", start.elapsed());
    let highest = arena.allocator().zones().last().expect("it has zones").id();
    assert!(arena.allocator().grow(highest, order.pages(), None), "any zone grows");
    assert_eq!(arena.allocator().zones()[highest.index()].free_pages(), SECTION_PAGES);
    // SAFETY: no thread uses it.
    unsafe { cpu.free(first, order) }.expect("it is allocated");
    drop(cpu);
    arena.allocator().verify().expect("all is well");
}

/// A machine of two nodes and 256 CPUs, as `machines/epyc-7742-2s.toml` has it: per-CPU lists get their batch and
/// high from the part that boot initialises, and again from all memory if `pcp_reset` is on.
#[test]
fn per_cpu_lists_of_256_cpus_follow_the_boot() {
    const NORMAL: u64 = 0x10_0000;
    let mut map = FirmwareMap::default();
    let zones = [(1, 3998, 3975, 0), (4096, 454_656, 450_000, 0), (NORMAL, 32_505_856, 31_997_952, 0)];
    let zones = [zones[0], zones[1], zones[2], (NORMAL + 32_505_856, 33_554_432, 33_030_144, 1)];
    for (start, present, _, node) in zones {
        map.ranges.push((start << 12, present << 12, Kind::Usable));
        map.nodes.push((start << 12, present << 12, Home { node: NodeId(node), hot_pluggable: false }));
    }
    let map = map.divide(Rules::default(), |early| {
        // What the kernel, and the descriptors of its memory, take: off the top.
        zones.iter().try_for_each(|&(start, present, managed, _)| {
            early.reserve(Pfn(start + managed)..Pfn(start + present))
        })
    });
    let map = map.expect("it is sound");
    let counted = |arena: &Arena| {
        let mut lists = std::collections::BTreeMap::new();
        for cpu in 0..256 {
            arena.attach_to(cpu).expect("no owner has it").answer();
            for zone in arena.allocator().zones() {
                let size = arena.allocator().pcp(zone.id(), CpuId(cpu as u16)).sizing();
                *lists.entry((size.batch, size.high_min)).or_insert(0) += 1;
            }
        }
        lists.into_iter().collect::<Vec<_>>()
    };
    for pcp_reset in [false, true] {
        let nodes: Vec<_> = (0..256).map(|cpu| cpu / 128).collect();
        let config = Config {
            experiment: Experiment { pcp_reset, ..Config::linux_v5_4().experiment },
            ..Config::linux_v5_4()
        };
        let options = BootOptions { config, ..options(&nodes, Descriptors::AsTheyAre) };
        let arena: Arena = map.build(&options).expect("it is sound");
        let booting = arena.allocator().begin().expect("it is the first time");
        let managed = |arena: &Arena| -> Vec<_> {
            arena.allocator().zones().iter().map(|zone| zone.managed_pages()).collect()
        };
        assert_eq!(managed(&arena), [3975, 450_000, 32_768, 32_768]);
        let before = [((1, 0), 256), ((7, 42), 512), ((63, 378), 256)];
        assert_eq!(counted(&arena), before);
        booting.run();
        booting.finish().expect("nothing is left");
        assert_eq!(managed(&arena), [3975, 450_000, 31_997_952, 33_030_144]);
        let after = [((1, 0), 256), ((63, 378), 768)];
        assert_eq!(counted(&arena), if pcp_reset { &after[..] } else { &before[..] });
    }
}
