//! Every wrong free is refused with its reason, and changes nothing.

use crate::common::{MIB, TYPES, account, assert_all_free, described, free, order, sight};
use framewright_host::framewright::config::{Engine, Experiment, PcpOrders};
use framewright_host::framewright::error::FreeFailure;
use framewright_host::{Arena, Config, Cpu, FreeError, Migratetype, Order, Pfn};

const MOVABLE: Migratetype = Migratetype::Movable;

/// Configurations whose lists differ: the usual one, no lists at all, and Linux' of two generations.
fn configurations() -> [Config; 4] {
    [
        Config::default(),
        Config {
            engine: Engine::Linux,
            experiment: Experiment { pcp_orders: PcpOrders::None, ..Experiment::default() },
            ..Config::default()
        },
        Config::linux_v5_4(),
        Config::linux_v6_7(),
    ]
}

/// Runs `test` in every configuration, on two attached slots of an arena of frames 1024 to 5096; the last
/// pageblock is cut short.
fn in_every_configuration(test: impl Fn(&Cpu<'_>, &Cpu<'_>)) {
    for config in configurations() {
        let arena: Arena = described(4072, config).base(Pfn(1024)).build().unwrap();
        test(&arena.attach_to(0).unwrap(), &arena.attach_to(1).unwrap());
    }
}

/// Tries a free that must be refused, on both slots, and checks that nothing at all has changed.
#[track_caller]
fn refused(cpus: [&Cpu<'_>; 2], pfn: Pfn, order: Order) -> FreeFailure {
    let before = sight(cpus[0].arena());
    let [error, same] = cpus.map(|cpu| {
        // SAFETY: refused, so nothing happens.
        let error: FreeError = unsafe { cpu.free(pfn, order) }.expect_err("a wrong free");
        assert_eq!((error.pfn, error.order), (pfn, order));
        let message = error.to_string();
        assert!(message.starts_with(&format!("cannot free order {order} at ")) && !message.contains('\n'));
        error
    });
    assert_eq!(error, same);
    assert_eq!(sight(cpus[0].arena()), before);
    error.why
}

#[test]
fn freed_twice_on_the_same_cpu() {
    in_every_configuration(|a, b| {
        for size in Order::all() {
            for migratetype in TYPES {
                let pfn = a.alloc(size, migratetype).unwrap();
                free(a, pfn, size);
                assert_eq!(refused([a, b], pfn, size), FreeFailure::NotAllocated);
            }
        }
    });
}

#[test]
fn freed_twice_after_another_cpu_freed_it() {
    in_every_configuration(|a, b| {
        for size in Order::all() {
            let pfn = a.alloc(size, MOVABLE).unwrap();
            free(b, pfn, size);
            assert_eq!(refused([a, b], pfn, size), FreeFailure::NotAllocated);
        }
    });
}

#[test]
fn freed_twice_after_it_went_back_to_the_zone() {
    in_every_configuration(|a, b| {
        for size in Order::all() {
            let pfn = a.alloc(size, MOVABLE).unwrap();
            free(a, pfn, size);
            a.drain();
            assert_eq!(refused([a, b], pfn, size), FreeFailure::NotAllocated, "{size:?}, merged");
            // Its neighbour keeps it from merging.
            let (first, second) = (a.alloc(size, MOVABLE).unwrap(), a.alloc(size, MOVABLE).unwrap());
            free(b, second, size);
            b.drain();
            assert_eq!(refused([a, b], second, size), FreeFailure::NotAllocated, "{size:?}, alone");
            free(a, first, size);
            a.drain();
        }
    });
}

#[test]
fn freed_twice_after_it_moved_from_list_to_list() {
    in_every_configuration(|a, b| {
        for size in Order::all() {
            // Many generations of the same frame, over two CPUs' lists; each time one free too many.
            for n in 0..200 {
                let (from, to) = if n % 2 == 0 { (a, b) } else { (b, a) };
                let pfn = from.alloc(size, MOVABLE).unwrap();
                free(to, pfn, size);
                if n % 10 == 0 {
                    assert_eq!(refused([a, b], pfn, size), FreeFailure::NotAllocated);
                }
            }
        }
    });
}

#[test]
fn freed_again_by_its_old_owner_when_it_has_a_new_one_is_the_new_ones_block() {
    // No allocator can tell the owners apart; that the books stay right is what can be asked.
    in_every_configuration(|a, b| {
        let old = a.alloc(Order::ZERO, MOVABLE).unwrap();
        free(a, old, Order::ZERO);
        let new = a.alloc(Order::ZERO, MOVABLE).unwrap();
        free(b, old, Order::ZERO);
        if old == new {
            assert_eq!(refused([a, b], new, Order::ZERO), FreeFailure::NotAllocated);
        }
        account(a.arena());
    });
}

#[test]
fn freed_with_another_order() {
    in_every_configuration(|a, b| {
        for size in Order::all() {
            let pfn = a.alloc(size, MOVABLE).unwrap();
            for wrong in Order::all().filter(|&wrong| wrong != size) {
                let why = refused([a, b], pfn, wrong);
                if pfn.is_aligned(wrong) {
                    assert_eq!(why, FreeFailure::WrongOrder { allocated: size });
                } else {
                    assert_eq!(why, FreeFailure::Misaligned);
                }
            }
            free(b, pfn, size);
        }
    });
}

#[test]
fn freed_from_inside() {
    in_every_configuration(|a, b| {
        for size in Order::all().skip(1) {
            let start = a.alloc(size, MOVABLE).unwrap();
            for offset in [1, size.pages() / 2, size.pages() - 1] {
                for with in [Order::ZERO, order(size.get() - 1), size] {
                    let inside = start.add(offset);
                    let why = refused([a, b], inside, with);
                    assert_eq!(why, FreeFailure::Inside { order: size }, "{size:?} + {offset} as {with:?}");
                    let error = FreeError { why, pfn: inside, order: with };
                    assert_eq!(error.block_start(), Some(start));
                }
            }
            free(a, start, size);
        }
    });
}

#[test]
fn frames_that_are_not_the_arenas() {
    in_every_configuration(|a, b| {
        for pfn in [0, 1023, 5120, 5121, 6144, 1 << 28, 1 << 52, u64::MAX - 1024, u64::MAX] {
            for size in Order::all() {
                assert_eq!(refused([a, b], Pfn(pfn), size), FreeFailure::Foreign, "{pfn:#x} as {size:?}");
            }
        }
    });
}

#[test]
fn frames_behind_the_end_of_the_last_pageblock() {
    in_every_configuration(|a, b| {
        for pfn in [5096, 5100, 5119] {
            assert_eq!(refused([a, b], Pfn(pfn), Order::ZERO), FreeFailure::Reserved);
        }
        for size in Order::all() {
            refused([a, b], Pfn(5096), size);
            refused([a, b], Pfn(4608), size);
        }
    });
}

#[test]
fn frames_that_were_never_allocated() {
    in_every_configuration(|a, b| {
        for pfn in [1024, 1025, 1536, 2048, 5095] {
            for size in Order::all() {
                assert_eq!(
                    refused([a, b], Pfn(pfn), size),
                    FreeFailure::NotAllocated,
                    "{pfn:#x} as {size:?}"
                );
            }
        }
    });
}

#[test]
fn splits_that_make_no_sense() {
    in_every_configuration(|a, b| {
        let pfn = a.alloc(order(4), MOVABLE).unwrap();
        let before = sight(a.arena());
        for (at, from, to) in [(pfn, 3, 1), (pfn, 5, 1), (pfn.add(1), 4, 0), (pfn, 4, 5), (Pfn(0), 4, 0)] {
            // SAFETY: it is refused.
            unsafe { a.split(at, order(from), order(to)) }.unwrap_err();
            assert_eq!(sight(a.arena()), before);
        }
        // SAFETY: the block is this test's.
        unsafe { a.split(pfn, order(4), order(2)) }.unwrap();
        refused([a, b], pfn, order(4));
        refused([a, b], pfn.add(2), order(1));
        for part in 0..4 {
            free(b, pfn.add(4 * part), order(2));
        }
        // SAFETY: it is refused.
        unsafe { a.split(pfn, order(2), order(0)) }.unwrap_err();
    });
}

#[test]
fn wrong_frees_between_right_ones_do_no_harm() {
    for config in configurations() {
        let arena: Arena = described(4 * MIB, config).build().unwrap();
        let mut rng = fastrand::Rng::with_seed(7);
        let (a, b) = (arena.attach_to(0).unwrap(), arena.attach_to(1).unwrap());
        let mut held: Vec<(Pfn, Order)> = Vec::new();
        let mut refusals = 0;
        for _ in 0..20_000 {
            let cpu = if rng.u32(..2) == 0 { &a } else { &b };
            match rng.u64(..4) {
                0 => {
                    let size = order(rng.u8(..11));
                    held.extend(cpu.alloc(size, TYPES[rng.usize(..3)]).ok().map(|pfn| (pfn, size)));
                }
                1 if !held.is_empty() => {
                    let (pfn, size) = held.swap_remove(rng.usize(..held.len()));
                    free(cpu, pfn, size);
                }
                _ => {
                    // Any frame, any order; right only if it is exactly a block that is held.
                    let (pfn, size) = (Pfn(rng.u64(..5 * MIB)), order(rng.u8(..11)));
                    if !held.contains(&(pfn, size)) {
                        // SAFETY: not allocated as this block, so refused.
                        let freed = unsafe { cpu.free(pfn, size) };
                        assert!(freed.is_err(), "{pfn:?} as {size:?} was not allocated");
                        refusals += 1;
                    }
                }
            }
        }
        assert!(refusals > 5000);
        held.into_iter().for_each(|(pfn, size)| free(&a, pfn, size));
        drop((a, b));
        assert_all_free(&arena);
    }
}
