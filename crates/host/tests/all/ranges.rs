//! Given blocks, many together, bad frames and failures on purpose, with real threads.

use core::alloc::Layout;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use framewright_host::{
    AllocFailure, Arena, Backing, Config, Cpu, FaultRule, FreeFailure, Migratetype, Order, Pfn, PlaceFailure,
    SharedArena,
};

use crate::common::{Oracle, assert_all_free, free, order};

const MOVABLE: Migratetype = Migratetype::Movable;

fn described(pages: u64, cpus: usize) -> Arena {
    Arena::builder().pages(pages).cpus(cpus).backing(Backing::Described).build().unwrap()
}

#[test]
fn an_empty_range_is_no_range() {
    let arena = described(4096, 1);
    let cpu = arena.attach().unwrap();
    for (start, end) in [(20, 10), (20, 20), (5000, 5000), (u64::MAX, 0), (u64::MAX, u64::MAX)] {
        let range = Pfn(start)..Pfn(end);
        assert!(cpu.alloc_contig_range(range.clone()).is_err());
        // SAFETY: there is nothing in it.
        assert!(unsafe { cpu.free_contig_range(range.clone()) }.is_err());
        // SAFETY: as above.
        assert_eq!(unsafe { cpu.free_range(range) }, Ok(()));
    }
    assert_eq!(arena.counts().allocated, 0);
}

/// What an ended thread has left on its lists counts as memory that is there.
#[test]
fn runs_and_layouts_take_what_an_ended_thread_has_left() {
    let layout = Layout::from_size_align(1024 * 4096, 4096).unwrap();
    for by_layout in [false, true] {
        let arena = described(1024, 2);
        let leaves = || {
            let cpu = arena.attach_to(1).unwrap();
            let pfn = cpu.alloc(order(0), MOVABLE).unwrap();
            free(&cpu, pfn, order(0));
            core::mem::forget(cpu);
        };
        thread::scope(|scope| scope.spawn(leaves).join().unwrap());
        assert!(arena.allocator().pcp_pages() > 0, "it has left a frame");
        let cpu = arena.attach_to(0).unwrap();
        let mut out = [const { Pfn(0)..Pfn(0) }; 64];
        let all = if by_layout {
            vec![cpu.alloc_layout(layout, MOVABLE).unwrap()]
        } else {
            cpu.alloc_runs(1024, MOVABLE, &mut out).to_vec()
        };
        assert_eq!(all.iter().map(|run| run.end.0 - run.start.0).sum::<u64>(), 1024);
        assert!(cpu.alloc_runs(1, MOVABLE, &mut out).is_empty());
        for run in all {
            // SAFETY: it is ours, and not used.
            unsafe { cpu.free_range(run) }.unwrap();
        }
        drop(cpu);
        assert_all_free(&arena);
    }
}

#[test]
fn a_range_is_freed_in_any_parts_and_a_free_frame_in_it_is_refused() {
    let arena = described(4096, 1);
    let cpu = arena.attach().unwrap();
    let layout = Layout::from_size_align(600 * 4096, 4096).unwrap();
    let Range { start, end } = cpu.alloc_layout(layout, MOVABLE).unwrap();
    assert_eq!(end.0 - start.0, 600);
    // SAFETY: the range is ours, and not used; what is free of it is refused.
    unsafe {
        cpu.free_range(start.add(100)..start.add(300)).unwrap();
        let refused = cpu.free_range(start..end).unwrap_err();
        assert_eq!((refused.why, refused.pfn), (FreeFailure::NotAllocated, start.add(100)));
        assert_eq!(arena.counts().allocated, 300);
        cpu.free_range(start.add(300)..end).unwrap();
        assert_eq!(cpu.free_range(Pfn(1 << 40)..Pfn(2 << 40)).unwrap_err().why, FreeFailure::Foreign);
    }
    drop(cpu);
    assert_all_free(&arena);
}

#[test]
fn a_block_on_the_list_of_an_ended_thread_is_had() {
    let arena = described(4096, 2);
    let pfn = thread::scope(|scope| {
        let left = || {
            let cpu = arena.attach_to(1).unwrap();
            let pfn = cpu.alloc(order(0), MOVABLE).unwrap();
            free(&cpu, pfn, order(0));
            core::mem::forget(cpu);
            pfn
        };
        scope.spawn(left).join().unwrap()
    });
    let cpu = arena.attach_to(0).unwrap();
    cpu.alloc_at(pfn, order(0)).unwrap();
    free(&cpu, pfn, order(0));
    drop(cpu);
    assert_all_free(&arena);
}

/// A thread that waits lends its lists: others get at what is on them, but not at its slot.
#[test]
fn an_idle_thread_lends_its_lists() {
    let arena = described(4096, 2);
    let (idle, done) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut cpu = arena.attach_to(1).unwrap();
            let kept = cpu.alloc(order(0), MOVABLE).unwrap();
            let listed = cpu.alloc(order(0), MOVABLE).unwrap();
            free(&cpu, listed, order(0));
            cpu.idle(|| {
                idle.wait();
                done.wait();
            });
            assert_eq!(arena.allocator().pcp_pages(), 0, "it was drained");
            // As before: it allocates and frees.
            free(&cpu, kept, order(0));
            let again = cpu.alloc(order(0), MOVABLE).unwrap();
            free(&cpu, again, order(0));
        });
        idle.wait();
        let error = arena.attach_to(1).unwrap_err();
        assert!(error.to_string().contains('1'), "{error}");
        let cpu = arena.attach_to(0).unwrap();
        assert!(arena.attach().is_err(), "both slots are somebody's");
        assert!(arena.allocator().pcp_pages() > 0);
        // All but the page that it holds, its lists included.
        let mut all: Vec<Pfn> = core::iter::from_fn(|| cpu.alloc(order(0), MOVABLE).ok()).collect();
        assert_eq!(all.len(), 4095);
        all.drain(..).for_each(|pfn| free(&cpu, pfn, order(0)));
        cpu.drain();
        done.wait();
        waits.join().unwrap();
    });
    assert_all_free(&arena);
}

/// A panic within does not lose the slot.
#[test]
fn an_idle_thread_that_panics_has_its_slot_back() {
    let arena = described(4096, 1);
    let mut cpu = arena.attach().unwrap();
    let within = core::panic::AssertUnwindSafe(|| cpu.idle(|| panic!("on purpose")));
    assert!(std::panic::catch_unwind(within).is_err());
    assert!(arena.attach().is_err(), "the slot is its holder's");
    let pfn = cpu.alloc(order(0), MOVABLE).unwrap();
    free(&cpu, pfn, order(0));
    drop(cpu);
    drop(arena.attach().unwrap());
    assert_all_free(&arena);
}

/// Threads that allocate singly, in bulk and by place, while one of them finds frames bad: no frame has two owners,
/// and no bad frame comes back.
#[test]
fn threads_get_every_frame_once() {
    const PAGES: u64 = 16 << 10;
    let arena = described(PAGES, 4);
    let oracle = Oracle::new(PAGES);
    let done = AtomicBool::new(false);
    let mut rng = fastrand::Rng::with_seed(0);
    let mut bad = BTreeSet::new();
    thread::scope(|scope| {
        for owner in 1..=3_u8 {
            let (arena, oracle, done) = (&arena, &oracle, &done);
            scope.spawn(move || {
                let cpu = arena.attach().unwrap();
                let mut rng = fastrand::Rng::with_seed(owner.into());
                while !done.load(Ordering::Relaxed) {
                    one_round(&cpu, oracle, owner, &mut rng);
                }
            });
        }
        let cpu = arena.attach().unwrap();
        for _ in 0..200 {
            let pfn = Pfn(rng.u64(..PAGES));
            if cpu.hwpoison(pfn).is_ok() {
                bad.insert(pfn);
            }
            thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(oracle.taken(), 0);
    let cpu = arena.attach().unwrap();
    // A thread that did not run, and was in the middle of freeing the very frame, may have brought it back.
    let back = bad.iter().filter(|&&pfn| cpu.hwpoison(pfn).is_ok()).count();
    assert!(back <= 2, "{back} of {} bad frames came back", bad.len());
    cpu.drain();
    let account = arena.allocator().verify().unwrap();
    assert_eq!((account.free, account.quarantined), (PAGES - bad.len() as u64, bad.len() as u64));
    for &pfn in &bad {
        assert!(cpu.alloc_at(pfn, order(0)).is_err());
        cpu.unpoison(pfn).unwrap();
    }
    drop(cpu);
    assert_all_free(&arena);
}

/// Some blocks, taken and given back in one of several ways.
fn one_round(cpu: &Cpu<'_>, oracle: &Oracle, owner: u8, rng: &mut fastrand::Rng) {
    let size = order([0, 0, 1, 3][rng.usize(..4)]);
    let mut got = vec![Pfn(0); rng.usize(..200)];
    let count = match rng.u32(..3) {
        0 => cpu.alloc_bulk(size, MOVABLE, &mut got),
        1 => {
            let wanted = got.len();
            got.clear();
            got.extend((0..wanted).map_while(|_| cpu.alloc(size, MOVABLE).ok()));
            got.len()
        }
        _ => {
            let place = |n: u64| Pfn(n >> size.get() << size.get());
            let places: BTreeSet<_> = got.iter().map(|_| place(rng.u64(..16 << 10))).collect();
            got = places.into_iter().filter(|&pfn| cpu.alloc_at(pfn, size).is_ok()).collect();
            got.len()
        }
    };
    got.truncate(count);
    got.iter().for_each(|&pfn| oracle.handed_out(pfn, size, owner));
    got.iter().for_each(|&pfn| oracle.given_back(pfn, size));
    if rng.bool() {
        // SAFETY: they are this thread's, and have no memory.
        unsafe { cpu.free_bulk(size, &got) }.unwrap();
    } else {
        got.iter().for_each(|&pfn| free(cpu, pfn, size));
    }
}

#[test]
fn failures_on_purpose_reach_every_kind_of_caller() {
    let config = Config { fault_injection: true, ..Config::default() };
    let arena: SharedArena = Arena::builder().bytes(16 << 20).cpus(2).config(config).build_shared().unwrap();
    let rule = FaultRule::share(100, 0);
    assert!(arena.allocator().inject(Some(&rule)));
    assert_eq!(arena.alloc_block(Order::ZERO, MOVABLE).unwrap_err().why, AllocFailure::Injected);
    assert_eq!(arena.alloc_block_zeroed(Order::ZERO, MOVABLE).unwrap_err().why, AllocFailure::Injected);
    arena
        .with_cpu(|cpu| {
            assert_eq!(cpu.alloc(Order::ZERO, MOVABLE).unwrap_err().why, AllocFailure::Injected);
            assert_eq!(cpu.alloc_block_at(Pfn(7), Order::ZERO).unwrap_err().why, PlaceFailure::Injected);
        })
        .unwrap();
    let counts = arena.allocator().fault_counts();
    assert_eq!((counts.seen, counts.failed), (4, 4), "each is asked once");
    assert!(arena.allocator().inject(None));
    arena.alloc_block(Order::ZERO, MOVABLE).unwrap();
}
