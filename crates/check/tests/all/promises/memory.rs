//! Memory: whose frames are whose, which frames are good, and what a wrong free does.

use core::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use framewright_check::history;
use framewright_check::platform::shuttle::{self, Shuttle};
use framewright_check::prelude::*;
use framewright_check::slot::go_bad;

use super::specs;

const PAGEBLOCKS: u64 = 24;

/// Calls of each history.
const CALLS: u64 = 6000;

/// Calls of every kind on three CPUs; the oracle judges each.
fn play(change: fn(Config) -> Config) {
    for (name, spec) in specs(PAGEBLOCKS, 3, change) {
        let mut random = fastrand::Rng::with_seed(1);
        let done = history::play_in(&spec, history::BAD, &mut || random.u8(..), 64, |_, made| made < CALLS);
        println!("{name}: {done:?}");
        assert!(done.allocated > 1000 && done.freed > 500 && done.refused > 100, "{name}: {done:?}");
    }
}

#[test]
fn p01_no_frame_has_two_owners_and_none_is_lost() {
    play(|config| config);
    play(Config::with_marks);
}

/// One frame in 128 is bad, and every way to get memory is tried with the check on.
#[test]
fn p02_no_block_is_handed_out_that_a_check_has_not_seen() {
    play(|config| config.check(RefillCheck::AfterUnlock));
}

/// Compaction and the emptying of pageblocks move a program's pages to free places, which may be bad as well as any
/// other.
#[test]
fn what_compaction_moves_is_not_moved_to_a_bad_frame() {
    for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock] {
        let on = |config: Config| config.check(check);
        for (name, spec) in specs(PAGEBLOCKS, 1, on).filter(|(name, _)| *name != "compact") {
            let is_bad = |pfn: Pfn| framewright_check::mix(pfn.0).is_multiple_of(50);
            let world: World<Plain, Slot> =
                spec.build_with(|pfn| if is_bad(pfn) { Slot::GOES_BAD } else { Slot::GOOD });
            go_bad(false);
            let held: RefCell<BTreeSet<Pfn>> = RefCell::default();
            let to_bad: RefCell<Vec<Pfn>> = RefCell::default();
            let hook = mover(|from, to, _| {
                if is_bad(to) {
                    to_bad.borrow_mut().push(to);
                }
                let mut held = held.borrow_mut();
                let is_held = held.remove(&from) && held.insert(to);
                if is_held { Migrated::Moved } else { Migrated::Stays }
            });
            let moved = world.on(0, |cpu| {
                let mut random = fastrand::Rng::with_seed(1);
                let mut all: Vec<_> = cpu.alloc_all(Order::ZERO);
                random.shuffle(&mut all);
                let freed = all.split_off(all.len() / 4);
                freed.into_iter().for_each(|pfn| cpu.must_free(pfn, Order::ZERO));
                go_bad(true);
                held.borrow_mut().extend(all);
                let zones = 0..world.allocator().zones().len() as u8;
                zones.map(|zone| cpu.compact(ZoneId(zone), &hook).moved).sum::<u64>()
            });
            println!("{name}, {check:?}: {moved} pages moved");
            assert!(moved > 500, "{name}: {moved} pages moved");
            assert_eq!(*to_bad.borrow(), [], "{name}, {check:?}");
        }
    }
}

/// Likewise with two CPUs together, in many interleavings: what one brings for another's use is checked, too.
#[test]
fn what_one_cpu_brings_beside_another_is_checked() {
    shuttle::random(200, || {
        let is_bad = |pfn: Pfn| pfn.0 % PAGEBLOCK_PAGES == 100;
        let spec = Spec::one_zone(16 * PAGEBLOCK_PAGES, 2)
            .check(RefillCheck::AfterUnlock)
            .but(|config| config.pcp_free_part = 2);
        let world: Arc<World<Shuttle, Slot>> = Arc::new(spec.build_with(|pfn| Slot::bad(is_bad(pfn))));
        world.allocator().resize_pcps_of(ZoneId(0), Sizing { batch: 64, high_min: 64, high_max: 1 << 13 });
        shuttle_team(&world, 2, |world, n| world.must_alloc(n, Order::ZERO));
        for (n, k) in (0..2).flat_map(|n| (0..10).map(move |k| (n, order(k)))) {
            if let Some(pfn) = world.on(n, |cpu| cpu.alloc_hit(k, M)) {
                let bad = (pfn.0..pfn.0 + k.pages()).map(Pfn).find(|&pfn| is_bad(pfn));
                assert_eq!(bad, None, "CPU {n} was handed {pfn:?}, {k}");
            }
        }
    });
}

/// Every free near a block that is not just that block's: refused, and nothing has changed.
#[test]
fn p03_a_wrong_free_is_refused_and_changes_nothing() {
    for (name, spec) in specs(8, 2, |config| config) {
        for k in Order::all() {
            let world: World<Plain> = spec.build();
            let pfn = world.must_alloc(0, k);
            let seen = || format!("{:?}{}", world.settled(), world.allocator().zoneinfo());
            let before = seen();
            let places = [0, 1, k.pages() / 2, k.pages() - 1, k.pages(), 1 << 40];
            let near = places.into_iter().flat_map(|n| [pfn.add(n), Pfn(pfn.0.wrapping_sub(n))]);
            let wrong = near.flat_map(|at| Order::all().map(move |order| (at, order)));
            for (at, order) in wrong.filter(|&wrong| wrong != (pfn, k)) {
                for cpu in 0..2 {
                    let refused = world.on(cpu, |cpu| cpu.free(at, order));
                    assert!(refused.is_err(), "{name}: {at:?}, {order} beside {pfn:?}, {k}");
                }
                assert_eq!(seen(), before, "{name}: {at:?}, {order}");
            }
            world.must_free(1, pfn, k);
            assert!(world.on(0, |cpu| cpu.free(pfn, k)).is_err(), "{name}: {k} freed twice");
        }
    }
}

/// Frames fail while they are free; their memory goes offline and comes back, whole or in parts.
#[test]
fn p04_a_frame_whose_memory_failed_is_not_handed_out_again() {
    for (name, spec) in
        specs(8, 1, |config| config).filter(|(name, _)| matches!(*name, "default" | "four sections"))
    {
        let world: World<Plain> = spec.build();
        let allocator = world.allocator();
        let start = BASE.add(PAGEBLOCK_PAGES);
        let bad = [start, start.add(188), start.add(511), start.add(512)];
        for pfn in bad {
            assert_eq!(world.on(0, |cpu| cpu.hwpoison(pfn)), Ok(Hwpoisoned::Withdrawn), "{name}");
        }
        assert_eq!((world.settled().quarantined, allocator.hwpoisoned_pages()), (4, 4), "{name}");
        for round in 0..2 {
            let gone = world.on(0, |cpu| cpu.offline(start..start.add(PAGEBLOCK_PAGES)));
            assert_eq!(gone, Ok(PAGEBLOCK_PAGES), "{name}");
            let counts = || (world.settled().quarantined, allocator.hwpoisoned_pages());
            assert_eq!(counts(), (1, 1), "{name}: the one in the next pageblock is left");
            assert!(world.on(0, |cpu| cpu.unpoison(start)).is_err(), "{name}: it is offline");
            if round == 0 {
                allocator.online(start, PAGEBLOCK_PAGES).expect("it went offline");
            } else {
                allocator.online(start, 200).expect("it went offline");
                let absent = world.on(0, |cpu| cpu.unpoison(start.add(511)));
                assert_eq!(absent, Err(HwpoisonError::Foreign), "{name}: it is offline");
                assert_eq!(counts(), (3, 3), "{name}");
                allocator.online(start.add(200), 312).expect("it went offline");
            }
            assert_eq!(counts(), (4, 4), "{name}");
            let all = world.everything();
            assert_eq!(all.len() as u64, 8 * PAGEBLOCK_PAGES - 4, "{name}");
            assert!(bad.iter().all(|pfn| !all.contains(pfn)), "{name}");
        }
        bad.iter().for_each(|&pfn| world.on(0, |cpu| cpu.unpoison(pfn)).expect("it is bad"));
        assert_eq!((world.everything().len() as u64, allocator.hwpoisoned_pages()), (8 * PAGEBLOCK_PAGES, 0));
    }
}

/// A pageblock that went offline with a bad frame comes back in two parts, and another one is isolated in between.
#[test]
fn p04_frees_hit_again_after_a_bad_frame_came_back_online() {
    let world = Spec::one_zone(8 * PAGEBLOCK_PAGES, 1).plain();
    let (allocator, start) = (world.allocator(), BASE.add(PAGEBLOCK_PAGES));
    world.on(0, |cpu| cpu.hwpoison(start.add(511))).expect("it is free");
    world.on(0, |cpu| cpu.offline(start..start.add(PAGEBLOCK_PAGES))).expect("it is free");
    allocator.online(start, 200).expect("it went offline");
    allocator.isolate_pageblock(BASE).expect("it is there");
    allocator.unisolate_pageblock(BASE).expect("it is isolated");
    allocator.online(start.add(200), 312).expect("it went offline");
    world.on(0, |cpu| {
        let pfn = cpu.must_alloc(0);
        cpu.must_free(pfn, 0);
        let pfn = cpu.must_alloc(0);
        assert!(cpu.free_hit(pfn, Order::ZERO));
    });
}

/// A bad frame goes out of use in one way or another. From then on frees hit as before, on every CPU.
#[test]
fn p04_frees_hit_again_when_the_last_bad_frame_is_out_of_use() {
    type Retire = fn(&World<Plain>);
    let ways: [(&str, Retire); 6] = [
        ("a free", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.must_alloc(Order::ZERO);
                cpu.hwpoison(pfn).expect("it is in use");
                cpu.must_free(pfn, Order::ZERO);
            });
        }),
        ("on the own list", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.must_alloc(Order::ZERO);
                cpu.must_free(pfn, Order::ZERO);
                assert_eq!(cpu.hwpoison(pfn), Ok(Hwpoisoned::Withdrawn));
            });
        }),
        ("on the list of a CPU that answers later", |world| {
            let pfn = world.must_alloc(1, Order::ZERO);
            world.must_free(1, pfn, Order::ZERO);
            let found = world.on(0, |cpu| cpu.hwpoison(pfn)).expect("it is listed");
            assert!(matches!(found, Hwpoisoned::Listed(CpuId(1)) | Hwpoisoned::Withdrawn), "{found:?}");
            world.on(1, |cpu| cpu.answer());
        }),
        ("in bulk", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.must_alloc(Order::ZERO);
                cpu.hwpoison(pfn).expect("it is in use");
                cpu.free_bulk(Order::ZERO, &[pfn]).expect("it is allocated");
            });
        }),
        ("in the second half of a largest block", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.must_alloc(MAX_ORDER);
                cpu.hwpoison(pfn.add(700)).expect("it is in use");
                cpu.must_free(pfn, MAX_ORDER);
            });
        }),
        ("offline", |world| {
            let end = world.zone().spec().end();
            let start = Pfn(end.0 - PAGEBLOCK_PAGES);
            world.on(0, |cpu| {
                cpu.hwpoison(start.add(9)).expect("it is free");
                cpu.offline(start..end).expect("all of it is free or bad");
            });
        }),
    ];
    for (what, retire) in ways {
        for (name, spec) in specs(16, 2, |config| config) {
            if !matches!(name, "default" | "four sections") {
                // Linux' frees count and look at their pageblock in any case; compact engine marks no frame.
                continue;
            }
            let world: World<Plain> = spec.build();
            retire(&world);
            for cpu in 0..2 {
                let hits = world.on(cpu, |cpu| {
                    for _ in 0..50 {
                        let pfn = cpu.must_alloc(Order::ZERO);
                        cpu.must_free(pfn, Order::ZERO);
                    }
                    let pfn = cpu.must_alloc(Order::ZERO);
                    let hits = cpu.free_hit(pfn, Order::ZERO);
                    if !hits {
                        cpu.must_free(pfn, Order::ZERO);
                    }
                    hits
                });
                assert!(hits, "{name}, {what}: no free of CPU {cpu} hits any more");
            }
        }
    }
}

/// Two threads that free each other's blocks, with every call counted: what lists hold is what their counts say.
#[test]
fn counts_of_lists_are_right_beside_another_cpu() {
    let world: World<Plain> = Spec::one_zone(64 * PAGEBLOCK_PAGES, 2).engine(Engine::Linux).build();
    let passed: [Mutex<Vec<Pfn>>; 2] = Default::default();
    std::thread::scope(|scope| {
        for n in 0..2 {
            let (world, passed) = (&world, &passed);
            scope.spawn(move || {
                for _ in 0..300 {
                    let got: Vec<_> = world.on(n, |cpu| {
                        core::iter::from_fn(|| cpu.alloc(Order::ZERO, M).ok()).take(600).collect()
                    });
                    passed[n].lock().expect("no panic").extend(got);
                    let theirs = core::mem::take(&mut *passed[1 - n].lock().expect("no panic"));
                    theirs.into_iter().for_each(|pfn| {
                        world.must_free(n, pfn, Order::ZERO);
                    });
                }
            });
        }
    });
    world.settled();
}

/// Blocks of 1, 1, 2, 4 … 2^(n-1) frames fill 2^n frames.
#[test]
fn blocks_that_add_up_to_the_memory_fill_it() {
    let ways = super::WAYS.into_iter().filter(|&(name, _, sections)| sections == 1 && name != "linux_v6_7");
    for (name, config, _) in ways {
        for n in 2..=10 {
            let world: World<Plain> = Spec::one_zone(1 << n, 1).config(config()).build();
            let orders = core::iter::once(0).chain(0..n);
            let refused: Vec<u8> =
                orders.filter(|&k| world.on(0, |cpu| cpu.alloc(order(k), M)).is_err()).collect();
            assert!(refused.is_empty(), "{name}: of 2^{n} frames, blocks of orders {refused:?} are refused");
        }
    }
}

/// Blocks of orders up to 3 in memory of which 97 % are held, first of one type, then of the next: a request that takes
/// from pageblocks of another type leaves the larger free blocks there whole for those that need them.
#[test]
fn types_that_take_turns_are_served_in_memory_that_is_nearly_full() {
    let (pages, types) = (512 * PAGEBLOCK_PAGES, Migratetype::ORDINARY);
    for (name, config, _) in
        super::WAYS.into_iter().filter(|&(name, _, sections)| sections == 1 && name != "linux_v6_7")
    {
        for cpus in [1, 16] {
            let world: World<Plain> = Spec::one_zone(pages, cpus).config(config()).build();
            let mut random = fastrand::Rng::with_seed(7);
            let (mut held, mut used, mut refused) = (Vec::new(), 0, 0);
            world.on(0, |cpu| {
                for n in 0..3 * pages as usize {
                    let order = order([0, 0, 0, 0, 1, 1, 2, 3][random.usize(..8)]);
                    match cpu.alloc(order, types[n / 20_000 % types.len()]) {
                        Ok(pfn) => {
                            held.push((pfn, order));
                            used += order.pages();
                        }
                        Err(_) => refused += 1,
                    }
                    while used > pages * 97 / 100 {
                        let (pfn, order) = held.swap_remove(random.usize(..held.len()));
                        cpu.must_free(pfn, order);
                        used -= order.pages();
                    }
                }
            });
            assert_eq!(refused, 0, "{name} with {cpus} CPUs");
        }
    }
}
