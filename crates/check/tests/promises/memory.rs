//! Memory: whose frames are whose, which frames are good, and what a wrong free does.

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use framewright::config::{Config, Engine, Experiment, RefillCheck};
use framewright::cpu::Hwpoisoned;
use framewright::frame::FrameUser;
use framewright::policy::pcp::Sizing;
use framewright::reclaim::Migrated;
use framewright::units::{CpuId, MAX_ORDER, Migratetype, Order, PAGEBLOCK_PAGES, Pfn, ZoneId};
use framewright::{Flags, Helpers, Request};
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::oracle::{Block, Oracle};
use framewright_check::platform::plain::Plain;
use framewright_check::platform::shuttle::{self, Shuttle};
use framewright_check::prelude::mover;

use crate::{order, specs};

const M: Migratetype = Migratetype::Movable;
const PAGEBLOCKS: u64 = 24;

/// A frame's slot: whether a check finds the frame bad.
struct Health(bool);

impl FrameUser for Health {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        self.0.then_some("bad")
    }
}

/// Random calls on three CPUs, each judged by the oracle. `bad`: frames that a check finds bad, which it must never see.
fn play<F: FrameUser>(world: &World<Plain, F>, mut oracle: Oracle, calls: u64, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut live: Vec<Block> = Vec::new();
    let migratetypes = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];
    for n in 0..calls {
        let (cpu, migratetype) = (random.usize(0..3), migratetypes[random.usize(0..3)]);
        let order = order(if random.bool() { random.u8(0..4) } else { random.u8(4..11) });
        let place = BASE.add(random.u64(0..PAGEBLOCKS * PAGEBLOCK_PAGES)).block_start(order);
        let block = |pfn| Block { pfn, order };
        let got: Vec<Block> = match random.u32(0..if n / 1500 % 2 == 0 { 100 } else { 140 }) {
            0..40 => world.on(cpu, |cpu| cpu.alloc(order, migratetype)).into_iter().map(block).collect(),
            40..46 => {
                let request = Request::new(order, migratetype).with(Flags::ATOMIC);
                world.on(cpu, |cpu| cpu.alloc_with(&request, &Helpers::NONE)).into_iter().map(block).collect()
            }
            46..48 => {
                let mut out = vec![Pfn(0); 700 >> order.get()];
                let got = world.on(cpu, |cpu| cpu.alloc_bulk(order, migratetype, &mut out));
                out[..got].iter().copied().map(block).collect()
            }
            48..52 => {
                world.on(cpu, |cpu| cpu.alloc_at(place, order)).map(|()| block(place)).into_iter().collect()
            }
            52 => {
                let range = place..place.add(order.pages());
                let got = world.on(cpu, |cpu| cpu.alloc_contig_range(range, &Helpers::NONE));
                got.map(|()| block(place)).into_iter().collect()
            }
            53 => {
                world.on(cpu, |cpu| cpu.drain());
                Vec::new()
            }
            54 => {
                world.allocator().request_drain();
                Vec::new()
            }
            55..58 => {
                if oracle.judge(block(place)).is_some() {
                    let refused = world.on(cpu, |cpu| cpu.free(place, order));
                    assert!(refused.is_err(), "a wrong free was accepted: {:?}", block(place));
                }
                Vec::new()
            }
            _ if live.is_empty() => Vec::new(),
            _ => {
                let block = live.swap_remove(random.usize(0..live.len()));
                world.on(cpu, |cpu| cpu.free(block.pfn, block.order)).expect("it is allocated");
                oracle.took_back(block).expect("it was owned");
                Vec::new()
            }
        };
        for block in got {
            oracle.handed_out(block).unwrap_or_else(|breach| panic!("call {n}: {breach:?}"));
            live.push(block);
        }
        if n % 512 == 0 {
            world.check(&oracle);
        }
    }
    for block in live {
        world.on(0, |cpu| cpu.free(block.pfn, block.order)).expect("it is allocated");
        oracle.took_back(block).expect("it was owned");
    }
    (0..3).for_each(|cpu| world.on(cpu, |cpu| cpu.drain()));
    world.check(&oracle);
}

#[test]
fn p01_no_frame_has_two_owners_and_none_is_lost() {
    for (name, spec) in specs(PAGEBLOCKS, 3, |config| config) {
        println!("{name}");
        let world: World<Plain> = spec.build();
        play(&world, world.spec().oracle(), 6000, 1);
    }
}

/// One frame in 200 is bad, and every way to get memory is tried with the check on: with the lock held, or after.
#[test]
fn p02_no_block_is_handed_out_that_a_check_has_not_seen() {
    for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock] {
        let on = |config: Config| Config {
            experiment: Experiment { refill_check: check, ..config.experiment },
            ..config
        };
        for (name, spec) in specs(PAGEBLOCKS, 3, on).filter(|(name, _)| *name != "compact") {
            println!("{name}, {check:?}");
            let is_bad = |pfn: Pfn| framewright_check::mix(pfn.0).is_multiple_of(200);
            let world: World<Plain, Health> = spec.build_with(|pfn| Health(is_bad(pfn)));
            let mut oracle = world.spec().oracle();
            let frames = (0..PAGEBLOCKS * PAGEBLOCK_PAGES).map(|n| BASE.add(n));
            frames.filter(|&pfn| is_bad(pfn)).for_each(|pfn| oracle.went_bad(pfn));
            play(&world, oracle, 6000, 2);
        }
    }
}

thread_local! {
    /// Whether frames that go bad have done so.
    static HAS_GONE_BAD: Cell<bool> = const { Cell::new(false) };
}

/// A frame's slot: whether it is one that goes bad in the end.
struct GoesBad(bool);

impl FrameUser for GoesBad {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        (self.0 && HAS_GONE_BAD.get()).then_some("bad")
    }
}

/// Compaction and the emptying of pageblocks move a program's pages to free places, which may be bad as well as any other.
#[test]
fn what_compaction_moves_is_not_moved_to_a_bad_frame() {
    for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock] {
        let on = |config: Config| Config {
            experiment: Experiment { refill_check: check, ..config.experiment },
            ..config
        };
        for (name, spec) in specs(PAGEBLOCKS, 1, on).filter(|(name, _)| *name != "compact") {
            let is_bad = |pfn: Pfn| framewright_check::mix(pfn.0).is_multiple_of(50);
            let world: World<Plain, GoesBad> = spec.build_with(|pfn| GoesBad(is_bad(pfn)));
            HAS_GONE_BAD.set(false);
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
                let mut all: Vec<_> = core::iter::from_fn(|| cpu.alloc(Order::ZERO, M).ok()).collect();
                random.shuffle(&mut all);
                let freed = all.split_off(all.len() / 4);
                freed.into_iter().for_each(|pfn| cpu.free(pfn, Order::ZERO).expect("it is allocated"));
                HAS_GONE_BAD.set(true);
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

/// The same with two CPUs at once, in many interleavings: what one brings for another's use is checked, too.
#[test]
fn what_one_cpu_brings_beside_another_is_checked() {
    shuttle::random(200, || {
        let config = Config {
            pcp_free_part: 2,
            experiment: Experiment { refill_check: RefillCheck::AfterUnlock, ..Experiment::default() },
            ..Config::default()
        };
        let is_bad = |pfn: Pfn| pfn.0 % PAGEBLOCK_PAGES == 100;
        let spec = Spec::one_zone(16 * PAGEBLOCK_PAGES, 2).config(config);
        let world: Arc<World<Shuttle, Health>> = Arc::new(spec.build_with(|pfn| Health(is_bad(pfn))));
        world.allocator().resize_pcps_of(ZoneId(0), Sizing { batch: 64, high_min: 64, high_max: 1 << 13 });
        let threads = [0, 1].map(|n| {
            let world = world.clone();
            ::shuttle::thread::spawn(move || {
                _ = world.on(n, |cpu| cpu.alloc(Order::ZERO, M)).expect("memory")
            })
        });
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
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
            let pfn = world.on(0, |cpu| cpu.alloc(k, M)).expect("all is free");
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
            world.on(1, |cpu| cpu.free(pfn, k)).expect("it is allocated");
            assert!(world.on(0, |cpu| cpu.free(pfn, k)).is_err(), "{name}: {k} freed twice");
        }
    }
}

/// Pages that CPU 0 can have, one by one; all are free again then.
fn everything(world: &World<Plain>) -> Vec<Pfn> {
    world.on(0, |cpu| {
        let all: Vec<_> = core::iter::from_fn(|| cpu.alloc(Order::ZERO, M).ok()).collect();
        all.iter().for_each(|&pfn| cpu.free(pfn, Order::ZERO).expect("it is allocated"));
        cpu.drain();
        all
    })
}

/// Frames fail while they are free; their memory goes offline and comes back, whole or in parts.
#[test]
fn p04_a_frame_whose_memory_failed_is_not_handed_out_again() {
    for (name, spec) in
        specs(8, 1, |config| config).filter(|(name, _)| matches!(*name, "default" | "four zones"))
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
                assert_eq!(counts(), (3, 3), "{name}");
                allocator.online(start.add(200), 312).expect("it went offline");
            }
            assert_eq!(counts(), (4, 4), "{name}");
            let all = everything(&world);
            assert_eq!(all.len() as u64, 8 * PAGEBLOCK_PAGES - 4, "{name}");
            assert!(bad.iter().all(|pfn| !all.contains(pfn)), "{name}");
        }
        bad.iter().for_each(|&pfn| world.on(0, |cpu| cpu.unpoison(pfn)).expect("it is bad"));
        assert_eq!((everything(&world).len() as u64, allocator.hwpoisoned_pages()), (8 * PAGEBLOCK_PAGES, 0));
    }
}

/// A bad frame goes out of use in one way or another. From then on frees hit as before, on every CPU.
#[test]
fn p04_frees_hit_again_when_the_last_bad_frame_is_out_of_use() {
    type Retire = fn(&World<Plain>);
    let ways: [(&str, Retire); 6] = [
        ("a free", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.alloc(Order::ZERO, M).expect("memory");
                cpu.hwpoison(pfn).expect("it is in use");
                cpu.free(pfn, Order::ZERO).expect("it is allocated");
            });
        }),
        ("on the own list", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.alloc(Order::ZERO, M).expect("memory");
                cpu.free(pfn, Order::ZERO).expect("it is allocated");
                assert_eq!(cpu.hwpoison(pfn), Ok(Hwpoisoned::Withdrawn));
            });
        }),
        ("on the list of a CPU that answers later", |world| {
            let pfn = world.on(1, |cpu| cpu.alloc(Order::ZERO, M)).expect("memory");
            world.on(1, |cpu| cpu.free(pfn, Order::ZERO)).expect("it is allocated");
            let found = world.on(0, |cpu| cpu.hwpoison(pfn)).expect("it is listed");
            assert!(matches!(found, Hwpoisoned::Listed(CpuId(1)) | Hwpoisoned::Withdrawn), "{found:?}");
            world.on(1, |cpu| cpu.answer());
        }),
        ("in bulk", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.alloc(Order::ZERO, M).expect("memory");
                cpu.hwpoison(pfn).expect("it is in use");
                cpu.free_bulk(Order::ZERO, &[pfn]).expect("it is allocated");
            });
        }),
        ("in the second half of a largest block", |world| {
            world.on(0, |cpu| {
                let pfn = cpu.alloc(MAX_ORDER, M).expect("memory");
                cpu.hwpoison(pfn.add(700)).expect("it is in use");
                cpu.free(pfn, MAX_ORDER).expect("it is allocated");
            });
        }),
        ("offline", |world| {
            let end = world.allocator().zones()[0].spec().end();
            let start = Pfn(end.0 - PAGEBLOCK_PAGES);
            world.on(0, |cpu| {
                cpu.hwpoison(start.add(9)).expect("it is free");
                cpu.offline(start..end).expect("all of it is free or bad");
            });
        }),
    ];
    for (what, retire) in ways {
        for (name, spec) in specs(16, 2, |config| config) {
            if !matches!(name, "default" | "four zones") {
                // Linux' frees count and look at their pageblock in any case; compact engine marks no frame.
                continue;
            }
            let world: World<Plain> = spec.build();
            retire(&world);
            for cpu in 0..2 {
                let hits = world.on(cpu, |cpu| {
                    for _ in 0..50 {
                        let pfn = cpu.alloc(Order::ZERO, M).expect("memory");
                        cpu.free(pfn, Order::ZERO).expect("it is allocated");
                    }
                    let pfn = cpu.alloc(Order::ZERO, M).expect("memory");
                    let hits = cpu.free_hit(pfn, Order::ZERO);
                    if !hits {
                        cpu.free(pfn, Order::ZERO).expect("it is allocated");
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
    let config = Config { engine: Engine::Linux, ..Config::default() };
    let world: World<Plain> = Spec::one_zone(64 * PAGEBLOCK_PAGES, 2).config(config).build();
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
                    let other = core::mem::take(&mut *passed[1 - n].lock().expect("no panic"));
                    other.into_iter().for_each(|pfn| {
                        world.on(n, |cpu| cpu.free(pfn, Order::ZERO)).expect("it is allocated");
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
    let ways = crate::WAYS.into_iter().filter(|&(name, _, zones)| zones == 1 && name != "linux_v6_7");
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
