use std::sync::{Barrier, Weak};
use std::thread;

use super::*;

fn arena() -> (SharedArena, Weak<Shared<()>>) {
    let arena = Arena::builder().bytes(4 << 20).build_shared().unwrap();
    let weak = Arc::downgrade(&arena.0);
    (arena, weak)
}

fn block(arena: &SharedArena) -> crate::SharedBlock {
    arena.alloc_block(Order::ZERO, Migratetype::Movable).unwrap()
}

#[test]
fn the_last_handle_takes_the_arena_with_it() {
    let (arena, weak) = arena();
    drop(block(&arena));
    let second = arena.clone();
    drop(arena);
    assert!(weak.upgrade().is_some());
    drop(second);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_block_keeps_its_arena() {
    let (arena, weak) = arena();
    let block = block(&arena);
    drop(arena);
    assert!(weak.upgrade().is_some());
    assert!(block.bytes().iter().all(|&byte| byte == 0));
    drop(block);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_block_given_up_gives_up_its_handle() {
    let (arena, weak) = arena();
    let _ = block(&arena).into_raw();
    drop(arena);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_thread_that_goes_on_keeps_the_arena_until_it_uses_another() {
    let (arena, weak) = arena();
    let (used, dropped) = (Barrier::new(2), Barrier::new(2));
    let mine = arena.clone();
    thread::scope(|scope| {
        let (used, dropped, weak) = (&used, &dropped, &weak);
        scope.spawn(move || {
            drop(block(&mine));
            drop(mine);
            used.wait();
            dropped.wait();
            assert!(weak.upgrade().is_some(), "this thread's slot is still attached");
            let (second, _) = super::tests::arena();
            drop(block(&second));
            assert!(weak.upgrade().is_none());
        });
        used.wait();
        drop(arena);
        dropped.wait();
    });
}

#[test]
fn each_thread_finds_its_cpu_in_each_arena() {
    const CPUS: usize = 3;
    let arenas: Vec<SharedArena> =
        (0..9).map(|_| Arena::builder().bytes(4 << 20).cpus(CPUS).build_shared().unwrap()).collect();
    let taken: Vec<[AtomicUsize; CPUS]> = arenas.iter().map(|_| Default::default()).collect();
    let (arenas, taken) = (&arenas, &taken);
    thread::scope(|scope| {
        for thread in 1..=CPUS {
            scope.spawn(move || {
                let mut had: Vec<Option<usize>> = vec![None; arenas.len()];
                for step in 0..3000 {
                    let number = (step * 7 + step / 9 * thread) % arenas.len();
                    let (arena, taken) = (&arenas[number], &taken[number]);
                    if step % (10 + thread) == 0 {
                        if let Some(cpu) = had[number].take() {
                            taken[cpu].store(0, Ordering::Relaxed);
                        }
                        arena.detach();
                        continue;
                    }
                    let cpu = arena.with_cpu(|cpu| cpu.id().index()).unwrap();
                    let before = taken[cpu].swap(thread, Ordering::Relaxed);
                    let expected = if had[number].is_some() { thread } else { 0 };
                    assert_eq!((before, had[number].unwrap_or(cpu)), (expected, cpu), "arena {number}");
                    had[number] = Some(cpu);
                }
                // The end of the thread gives up what it has left.
                for (number, cpu) in had.into_iter().enumerate().filter_map(|(n, cpu)| Some((n, cpu?))) {
                    taken[number][cpu].store(0, Ordering::Relaxed);
                }
            });
        }
    });
}

/// Another thread of the parent may hold the spare CPU, and does not exist in a child.
#[test]
fn a_child_does_not_wait_for_the_spare_cpu() {
    let (arena, _) = arena();
    let (held, forked) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            arena.with_spare(|_| {
                held.wait();
                forked.wait();
            });
        });
        held.wait();
        // SAFETY: the child makes calls of this arena, allocates nothing, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: one that waits permanently is ended by the signal.
            let code = unsafe {
                libc::alarm(10);
                let freed = arena.free_bulk(Order::ZERO, &[Pfn(0)]).is_ok();
                let none = arena.alloc_bulk(Order::ZERO, Migratetype::Movable, &mut [Pfn(0)]) == 0;
                i32::from(!(freed && none && arena.trim(Order::ZERO) == Trimmed::default()))
            };
            // SAFETY: nothing else of the program runs here.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: a valid place for the answer.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        forked.wait();
        assert_eq!(status, 0);
    });
}

#[test]
fn a_thread_that_ends_lets_go() {
    let (arena, weak) = arena();
    thread::scope(|scope| {
        let arena = &arena;
        scope.spawn(move || drop(block(arena))).join().unwrap();
    });
    drop(arena);
    assert!(weak.upgrade().is_none());
}
