//! Callers that say with each call which CPU they are, that keep arena and attachment together, and whose memory has
//! holes.

use core::sync::atomic::{AtomicU8, Ordering};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;

use framewright_host::framewright::config::Engine;
use framewright_host::{
    Arena, AttachError, Backing, Config, Migratetype, Order, OwnedCpu, Pfn, PlaceFailure,
};

use crate::common::{free, order};

const MOVABLE: Migratetype = Migratetype::Movable;

fn described(pages: u64, cpus: usize) -> Arena {
    Arena::builder().pages(pages).cpus(cpus).backing(Backing::Described).build().unwrap()
}

#[test]
fn threads_act_as_any_cpu_and_no_page_is_had_twice() {
    let arena = described(4096, 2);
    let owned: Vec<AtomicU8> = (0..4096).map(|_| AtomicU8::new(0)).collect();
    thread::scope(|scope| {
        for id in 1..=4_u8 {
            let (arena, owned) = (&arena, &owned);
            scope.spawn(move || {
                let mut held = Vec::new();
                for n in 0..4000_usize {
                    let slot = (n * 7 + usize::from(id)) % 3 % 2;
                    if held.len() < 50 && n % 3 != 0 {
                        let pfn = arena.on_cpu(slot, |cpu| cpu.alloc(Order::ZERO, MOVABLE)).unwrap().unwrap();
                        assert_eq!(
                            owned[pfn.0 as usize].swap(id, Ordering::Relaxed),
                            0,
                            "{pfn:?} is had twice"
                        );
                        held.push(pfn);
                    } else if let Some(pfn) = held.pop() {
                        assert_eq!(owned[pfn.0 as usize].swap(0, Ordering::Relaxed), id);
                        arena.on_cpu(slot, |cpu| free(cpu, pfn, Order::ZERO)).unwrap();
                    }
                }
                for pfn in held {
                    owned[pfn.0 as usize].store(0, Ordering::Relaxed);
                    arena.on_cpu(0, |cpu| free(cpu, pfn, Order::ZERO)).unwrap();
                }
            });
        }
    });
    // What it has cost is on the lists, and within reach.
    assert!(arena.counts().on_lists > 0);
    let cpu = arena.attach_to(0).unwrap();
    let all: BTreeSet<Pfn> = (0..4096).map(|_| cpu.alloc(Order::ZERO, MOVABLE).unwrap()).collect();
    assert_eq!(all.len(), 4096);
    assert!(cpu.alloc(Order::ZERO, MOVABLE).unwrap_err().is_out_of_memory());
    all.into_iter().for_each(|pfn| free(&cpu, pfn, Order::ZERO));
    drop(cpu);
    assert_eq!(arena.verify().unwrap().free, 4096);
}

#[test]
fn a_panic_gives_the_cpu_back_and_a_slot_that_is_none_is_refused() {
    let arena = described(1024, 1);
    let failed = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
        arena.on_cpu(0, |cpu| {
            let _ = cpu.alloc(Order::ZERO, MOVABLE).unwrap();
            panic!("on purpose");
        })
    }));
    assert!(failed.is_err());
    assert_eq!(arena.on_cpu(0, |cpu| cpu.id().0).unwrap(), 0);
    assert_eq!(arena.on_cpu(1, |_| ()).unwrap_err(), AttachError::NoSuchCpu { cpu: 1, cpus: 1 });
    let cpu = arena.attach().unwrap();
    let again = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| arena.on_cpu(0, |_| ())));
    assert!(again.is_err(), "this thread holds the slot: it would wait for itself");
    drop(cpu);
    assert_eq!(arena.verify().unwrap().allocated, 1);
}

#[test]
fn an_owned_cpu_keeps_its_arena_and_lets_it_go() {
    struct Pool {
        cpu: OwnedCpu,
        held: Vec<Pfn>,
    }
    let arena = Arc::new(described(1024, 1));
    let alive = Arc::downgrade(&arena);
    let mut pool = Pool { cpu: OwnedCpu::attach(arena).unwrap(), held: Vec::new() };
    assert_eq!(OwnedCpu::attach(pool.cpu.arena().clone()).unwrap_err(), AttachError::AllTaken { cpus: 1 });
    pool.held.push(pool.cpu.get().alloc(order(3), MOVABLE).unwrap());
    for pfn in pool.held.drain(..) {
        free(pool.cpu.get(), pfn, order(3));
    }
    assert_eq!(pool.cpu.arena().counts().allocated, 0);
    drop(pool);
    assert!(alive.upgrade().is_none());
}

#[test]
fn nobody_is_handed_a_hole() {
    for engine in [Engine::Framewright, Engine::Linux] {
        let holes = [
            Pfn(5)..Pfn(9),
            Pfn(700)..Pfn(3000),
            Pfn(2900)..Pfn(3001),
            Pfn(4096)..Pfn(8192),
            Pfn(20)..Pfn(20),
        ];
        let arena: Arena = Arena::builder()
            .pages(10_000)
            .nodes(2)
            .cpus(1)
            .config(Config { engine, ..Config::default() })
            .backing(Backing::Described)
            .holes(holes.clone())
            .build()
            .unwrap();
        let is_hole = |pfn: u64| holes.iter().any(|hole| hole.contains(&Pfn(pfn)));
        let wanted: Vec<u64> = (0..10_000).filter(|&pfn| !is_hole(pfn)).collect();
        assert_eq!(arena.counts().managed, wanted.len() as u64);
        let cpu = arena.attach().unwrap();
        let mut got: Vec<u64> =
            core::iter::from_fn(|| cpu.alloc(Order::ZERO, MOVABLE).ok()).map(|pfn| pfn.0).collect();
        got.iter().for_each(|&pfn| free(&cpu, Pfn(pfn), Order::ZERO));
        got.sort_unstable();
        assert_eq!(got, wanted, "{engine:?}");
        let refused = cpu.alloc_at(Pfn(700), Order::ZERO).unwrap_err();
        assert!(matches!(refused.why, PlaceFailure::InUse { .. } | PlaceFailure::Foreign), "{refused}");
        cpu.alloc_at(Pfn(3001), Order::ZERO).unwrap();
        free(&cpu, Pfn(3001), Order::ZERO);
        drop(cpu);
        assert_eq!(arena.verify().unwrap().free, wanted.len() as u64);
    }
}
