//! Threads as CPUs: slots, guards, threads that end without notice, threads that never attach.

use std::thread;

use crate::common::{MIB, account, assert_all_free, described, free, order, run_and_kill};
use framewright::config::Engine;
use framewright_host::framewright::hotplug::OfflineFailure;
use framewright_host::{Arena, AttachError, Config, CpuId, Migratetype, Order, Pfn, Reaped};

const MOVABLE: Migratetype = Migratetype::Movable;

fn four_slots() -> Arena {
    // Lists, so that what is freed waits on a per-CPU list, also if its pageblock is mostly free.
    let config = Config { engine: Engine::Linux, ..Config::default() };
    described(16 * MIB, config).build().unwrap()
}

#[test]
fn a_slot_has_one_owner_at_a_time() {
    let arena = four_slots();
    let held: Vec<_> = (0..4).map(|slot| arena.attach_to(slot).unwrap()).collect();
    assert_eq!(arena.attach_to(2).unwrap_err(), AttachError::Taken(CpuId(2)));
    assert_eq!(arena.attach().unwrap_err(), AttachError::AllTaken { cpus: 4 });
    thread::scope(|scope| {
        scope.spawn(|| assert!(arena.attach().is_err()));
    });
    drop(held);
    let ids: Vec<CpuId> = {
        let held: Vec<_> = (0..4).map(|_| arena.attach().unwrap()).collect();
        held.iter().map(|cpu| cpu.id()).collect()
    };
    let mut distinct = ids.clone();
    distinct.sort_unstable();
    assert_eq!(distinct, [CpuId(0), CpuId(1), CpuId(2), CpuId(3)]);
    assert_eq!(arena.attach_to(4).unwrap_err(), AttachError::NoSuchCpu { cpu: 4, cpus: 4 });
}

#[test]
fn attach_errors_are_one_line_that_says_what_to_do() {
    for (error, advice) in [
        (AttachError::AllTaken { cpus: 4 }, "more `cpus`, or detach"),
        (AttachError::Taken(CpuId(2)), "attach to any slot"),
        (AttachError::NoSuchCpu { cpu: 9, cpus: 4 }, "has 4, counted from 0"),
    ] {
        let message = error.to_string();
        assert!(message.contains(advice) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_thread_gets_the_slot_back_that_it_had_last() {
    let arena = four_slots();
    drop(arena.attach_to(3).unwrap());
    assert_eq!(arena.attach().unwrap().id(), CpuId(3));
    assert_eq!(arena.attach().unwrap().id(), CpuId(3));
}

/// Allocates and frees, so that pages are left on the slot's lists.
fn use_lists(arena: &Arena, slot: usize) {
    let cpu = arena.attach_to(slot).unwrap();
    let blocks: Vec<Pfn> = (0..100).map(|_| cpu.alloc(Order::ZERO, MOVABLE).unwrap()).collect();
    blocks.into_iter().for_each(|pfn| free(&cpu, pfn, Order::ZERO));
    core::mem::forget(cpu);
}

#[test]
fn a_killed_threads_pages_are_reaped() {
    let arena = four_slots();
    for round in 1..=50 {
        for slot in 0..4 {
            run_and_kill(|| use_lists(&arena, slot));
        }
        let left = account(&arena);
        // The lists of all slots keep a 64th of the free memory, which has 4,096 pages.
        assert!(left.on_pcp >= 64 && left.allocated == 0, "round {round}: {left:?}");
        assert_eq!(arena.reap(), Reaped { cpus: 4, pages: left.on_pcp });
        assert_eq!(arena.reap(), Reaped::default());
        assert_all_free(&arena);
    }
}

#[test]
fn a_killed_threads_slot_is_free_for_the_next() {
    let arena: Arena = described(MIB, Config::default()).cpus(1).build().unwrap();
    for _ in 0..50 {
        run_and_kill(|| use_lists(&arena, 0));
        drop(arena.attach().unwrap());
        assert_all_free(&arena);
        run_and_kill(|| use_lists(&arena, 0));
        drop(arena.attach_to(0).unwrap());
        assert_all_free(&arena);
    }
}

#[test]
fn an_allocation_finds_what_killed_threads_had() {
    let arena = four_slots();
    run_and_kill(|| use_lists(&arena, 1));
    run_and_kill(|| use_lists(&arena, 2));
    assert!(account(&arena).on_pcp > 0);
    let cpu = arena.attach_to(0).unwrap();
    let blocks = core::iter::from_fn(|| cpu.alloc(order(10), MOVABLE).ok()).count() as u64;
    assert_eq!(blocks, 16 * MIB / 1024, "the largest blocks form again, without being told");
}

#[test]
fn memory_goes_offline_although_a_killed_threads_lists_hold_some() {
    let arena = four_slots();
    run_and_kill(|| use_lists(&arena, 1));
    assert!(account(&arena).on_pcp >= 16);
    let zone = &arena.allocator().zones()[0];
    let half = zone.spec().start..zone.spec().start.add(2048);
    let cpu = arena.attach_to(0).unwrap();
    let held = cpu.alloc(order(9), MOVABLE).unwrap();
    let before = zone.managed_pages();
    let error = cpu.offline(held..held.add(512)).unwrap_err();
    assert_eq!((error.why, zone.managed_pages()), (OfflineFailure::InUse(1), before));
    free(&cpu, held, order(9));
    assert_eq!(cpu.offline(half.clone()), Ok(2048));
    assert_eq!(zone.managed_pages(), before - 2048);
    while let Ok(pfn) = cpu.alloc(order(9), MOVABLE) {
        assert!(!half.contains(&pfn), "{pfn:?} is offline");
    }
    arena.allocator().online(half.start, 2048).unwrap();
    assert_eq!(zone.managed_pages(), before);
    assert!(half.contains(&cpu.alloc(order(9), MOVABLE).unwrap()));
}

#[test]
fn a_guard_forgotten_by_a_living_thread_keeps_its_slot() {
    let arena = four_slots();
    core::mem::forget(arena.attach_to(1).unwrap());
    assert_eq!(arena.reap(), Reaped::default());
    assert_eq!(arena.attach_to(1).unwrap_err(), AttachError::Taken(CpuId(1)));
    // And the arena can still be dropped; the kernel will look at the lock when this thread ends.
    drop(arena);
}

#[test]
fn a_thread_that_panics_detaches() {
    let arena = four_slots();
    let result = thread::scope(|scope| {
        scope
            .spawn(|| {
                let cpu = arena.attach_to(0).unwrap();
                let _block = cpu.alloc_block(order(3), MOVABLE).unwrap();
                std::panic::resume_unwind(Box::new("on purpose"));
            })
            .join()
    });
    assert!(result.is_err());
    assert_all_free(&arena);
    drop(arena.attach_to(0).unwrap());
}
