use core::ffi::c_int;
use std::os::fd::AsRawFd;

use super::*;

fn arena(bytes: u64) -> ProcessArena {
    ProcessArena::create(&ProcessOptions::new(bytes)).unwrap()
}

/// Runs `f` in a forked child that attaches by the file, and returns the status it ended with.
fn in_child(parent: &ProcessArena, f: impl FnOnce(&ProcessArena)) -> c_int {
    // SAFETY: the child uses nothing of the parent's threads: it maps, locks and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = matches!(parent.alloc(Order::ZERO, Migratetype::Movable), Err(ProcessError::Forked));
        let attached = ProcessArena::attach(parent.file());
        let code = match &attached {
            Ok(arena) if refused => {
                f(arena);
                0
            }
            _ => 1,
        };
        // SAFETY: without running destructors: as if it had been killed.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    status
}

#[test]
fn blocks_are_owned_and_handed_over() {
    let arena = arena(16 << 20);
    let pfn = arena.alloc(Order::new(3).unwrap(), Migratetype::Movable).unwrap();
    let order = Order::new(3).unwrap();
    assert!(matches!(arena.free(pfn, Order::ZERO), Err(ProcessError::NoSuchBlock { .. })));
    assert!(matches!(arena.free(pfn.add(1), Order::ZERO), Err(ProcessError::NoSuchBlock { .. })));
    assert!(matches!(arena.adopt(pfn, order), Err(ProcessError::NotOwner { owner: Some(1), .. })));
    arena.disown(pfn, order).unwrap();
    assert!(matches!(arena.free(pfn, order), Err(ProcessError::NotOwner { owner: None, .. })));
    assert_eq!(arena.disowned().unwrap(), [(pfn, order)]);
    assert_eq!(arena.verify().unwrap().disowned, 8);
    arena.adopt(pfn, order).unwrap();
    arena.free(pfn, order).unwrap();
    assert!(matches!(arena.free(pfn, order), Err(ProcessError::NoSuchBlock { .. })));
    let account = arena.verify().unwrap();
    assert_eq!(account.free + account.on_lists, 4096);
}

#[test]
fn another_process_sees_the_same_memory_and_leaves_its_blocks_when_it_dies() {
    let arena = arena(16 << 20);
    let mine = arena.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    let at = arena.address(mine).unwrap();
    // SAFETY: the block is ours.
    unsafe { at.write(7) };
    let status = in_child(&arena, |child| {
        assert_eq!(child.address(mine), Some(at), "every process has it at one address");
        // SAFETY: the parent waits.
        unsafe { at.write(at.read() + 1) };
        assert_eq!(child.number(), 2);
        assert!(matches!(child.free(mine, Order::ZERO), Err(ProcessError::NotOwner { owner: Some(1), .. })));
        for _ in 0..100 {
            child.alloc(Order::ZERO, Migratetype::Movable).unwrap();
        }
        let left = child.alloc(Order::new(2).unwrap(), Migratetype::Movable).unwrap();
        child.disown(left, Order::new(2).unwrap()).unwrap();
    });
    assert_eq!(status, 0);
    // SAFETY: the block is ours, and the child is gone.
    assert_eq!(unsafe { at.read() }, 8);
    let account = arena.verify().unwrap();
    assert_eq!((account.mine, account.of_the_dead, account.disowned), (1, 100, 4));
    assert_eq!(arena.reap().unwrap(), ProcessReaped { processes: 1, pages: 100 });
    assert_eq!(arena.reap().unwrap(), ProcessReaped::default());
    let account = arena.verify().unwrap();
    assert_eq!((account.mine, account.of_the_dead, account.disowned), (1, 0, 4));
    assert_eq!(arena.history(), (0, 1, 100));
}

#[test]
fn a_process_that_dies_with_the_lock_held_is_mended_after() {
    let arena = arena(16 << 20);
    let held: Vec<Pfn> = (0..300).map(|_| arena.alloc(Order::ZERO, Migratetype::Movable).unwrap()).collect();
    let huge = arena.alloc(Order::new(9).unwrap(), Migratetype::Movable).unwrap();
    for round in 1..=3 {
        let status = in_child(&arena, |child| {
            for _ in 0..50 {
                child.alloc(Order::new(1).unwrap(), Migratetype::Unmovable).unwrap();
            }
            let guard = child.enter().unwrap();
            // Half of an allocation: a block that no list has any more, and that has no owner yet.
            guard.with_cpu(|cpu| cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap());
            core::mem::forget(guard);
        });
        assert_eq!(status, 0);
        let account = arena.verify().unwrap();
        assert_eq!((account.mine, account.of_the_dead, account.disowned), (812, 0, 0));
        assert_eq!(account.free + account.on_lists, 4096 - 812);
        assert_eq!(arena.history().0, round);
    }
    // What was allocated before the tables were made again can be freed, and becomes one again.
    for pfn in held {
        arena.free(pfn, Order::ZERO).unwrap();
    }
    arena.free(huge, Order::new(9).unwrap()).unwrap();
    assert_eq!(arena.verify().unwrap().mine, 0);
    for _ in 0..4 {
        arena.alloc(Order::new(10).unwrap(), Migratetype::Movable).unwrap();
    }
}

#[test]
fn memory_of_the_dead_comes_back_before_an_allocation_fails() {
    let arena = arena(8 << 20);
    let status = in_child(&arena, |child| while child.alloc(Order::ZERO, Migratetype::Movable).is_ok() {});
    assert_eq!(status, 0);
    assert!(arena.alloc(Order::new(9).unwrap(), Migratetype::Movable).is_ok());
    let rest = core::iter::from_fn(|| arena.alloc(Order::ZERO, Migratetype::Movable).ok()).count();
    assert_eq!(rest, 2048 - 512);
    assert!(matches!(arena.alloc(Order::ZERO, Migratetype::Movable), Err(ProcessError::Alloc(_))));
}

/// As if it had died after the newcomer's look for the dead.
#[test]
fn a_process_that_comes_is_not_given_the_place_of_one_that_has_just_died() {
    let arena = arena(4 << 20);
    let status = in_child(&arena, |child| {
        child.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    });
    assert_eq!(status, 0);
    let newcomer = Life::new(arena.file().as_raw_fd()).unwrap();
    assert_eq!(
        free_place(arena.header(), &newcomer),
        Some(2),
        "the first is this process, the second has a page"
    );
    assert_eq!(arena.reap().unwrap(), ProcessReaped { processes: 1, pages: 1 });
    assert_eq!(free_place(arena.header(), &newcomer), Some(1));
}

#[test]
fn what_is_no_arena_is_refused() {
    let file = File::open("/dev/null").unwrap();
    assert!(matches!(ProcessArena::attach(file.as_fd()), Err(ProcessError::NotAnArena)));
    let arena = arena(4 << 20);
    assert!(matches!(ProcessArena::attach(arena.file()), Err(ProcessError::AddressTaken(_))));
    let writer = File::from(arena.file().try_clone_to_owned().unwrap());
    assert!(writer.set_len(4096).is_err(), "no process can cut the file beneath the others");
    writer.write_all_at(&[1], offset_of!(Label, build) as u64).unwrap();
    assert!(matches!(ProcessArena::attach(arena.file()), Err(ProcessError::OtherBuild)));
    assert!(ProcessArena::create(&ProcessOptions::new(0)).is_err());
    assert!(ProcessArena::create(&ProcessOptions::new(2 << 40)).is_err());
    assert!(arena.file().as_raw_fd() > 2);
}

#[test]
fn pages_of_2_mib_are_had_or_refused() {
    let options = ProcessOptions { huge_pages: true, ..ProcessOptions::new(8 << 20) };
    match ProcessArena::create(&options) {
        Ok(arena) => {
            let pfn = arena.alloc(Order::new(9).unwrap(), Migratetype::Movable).unwrap();
            // SAFETY: the block is ours.
            unsafe { arena.address(pfn).unwrap().write(1) };
            arena.verify().unwrap();
        }
        Err(error) => assert!(matches!(error, ProcessError::System { .. }), "{error}"),
    }
}

/// The first words of a block's first and last page: its owner marks them.
fn marks(arena: &ProcessArena, (pfn, order): (Pfn, Order)) -> [*mut u64; 2] {
    [pfn, pfn.add(order.pages() - 1)].map(|page| arena.address(page).unwrap().cast().as_ptr())
}

/// Random calls of one process. Each block's mark says whose it is, and is looked at before the block goes: so a block
/// that two processes have shows.
fn live(arena: &ProcessArena, seed: u64, calls: u64, held: &mut Vec<(Pfn, Order)>) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mark = |(pfn, _): (Pfn, Order)| seed << 32 | pfn.0;
    // SAFETY: the block is this process's.
    let is_marked = |block| marks(arena, block).map(|at| unsafe { at.read() }) == [mark(block); 2];
    for _ in 0..calls {
        let at = (!held.is_empty()).then(|| rng.usize(..held.len()));
        match (rng.u32(..64), at) {
            (0, _) => drop(arena.reap().unwrap()),
            (1, Some(at)) => {
                let block = held.swap_remove(at);
                assert!(is_marked(block), "{block:?}");
                arena.disown(block.0, block.1).unwrap();
            }
            (2..5, _) => {
                let left = arena.disowned().unwrap();
                let Some(&(pfn, order)) = rng.choice(&left) else { continue };
                // Another process may have been faster.
                if arena.adopt(pfn, order).is_ok() {
                    arena.free(pfn, order).unwrap();
                }
            }
            (_, Some(at)) if rng.usize(..80) < held.len() => {
                let block = held.swap_remove(at);
                assert!(is_marked(block), "{block:?}");
                arena.free(block.0, block.1).unwrap();
            }
            _ => {
                let order = Order::new(if rng.bool() { 0 } else { rng.u8(..10) }).unwrap();
                let migratetype = [Migratetype::Movable, Migratetype::Unmovable][rng.usize(..2)];
                let block = match arena.alloc(order, migratetype) {
                    Ok(pfn) => (pfn, order),
                    Err(ProcessError::Alloc(_)) => continue,
                    Err(error) => panic!("{error}"),
                };
                // SAFETY: the block is this process's.
                marks(arena, block).into_iter().for_each(|at| unsafe { at.write(mark(block)) });
                held.push(block);
            }
        }
    }
}

#[test]
fn processes_killed_at_any_moment_leave_every_block_to_its_owner() {
    let arena = arena(32 << 20);
    let (mut held, mut rng) = (Vec::new(), fastrand::Rng::with_seed(31));
    let start = |seed| {
        // SAFETY: the child uses nothing of the parent's threads: it maps, locks and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let run = || live(&ProcessArena::attach(arena.file()).unwrap(), seed, u64::MAX, &mut Vec::new());
            let _ = std::panic::catch_unwind(run);
            // SAFETY: without running destructors.
            unsafe { libc::_exit(1) };
        }
        child
    };
    let kill = |child| {
        let mut status = 0;
        // SAFETY: a child of ours that has not been waited for, and a valid place for the answer.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }
        assert!(libc::WIFSIGNALED(status), "a process found another's mark in its block, or was refused");
    };
    let mut children = [1, 2, 3].map(start);
    for round in 0..100 {
        live(&arena, 1000, rng.u64(..200), &mut held);
        std::thread::sleep(core::time::Duration::from_micros(rng.u64(..5000)));
        let child = &mut children[rng.usize(..3)];
        kill(*child);
        *child = start(10 + round);
        arena.verify().unwrap();
    }
    children.into_iter().for_each(kill);
    arena.reap().unwrap();
    let (account, mine) = (arena.verify().unwrap(), held.iter().map(|(_, order)| order.pages()).sum());
    assert_eq!((account.mine, account.others, account.of_the_dead), (mine, 0, 0));
    assert!(arena.history().0 > 0, "no process was killed with the lock held");
}

/// Has a child make what `op` needs, and then run `op` one instruction at a time; kills it after so many. `false`: no
/// process can be traced here.
fn killed_after<S>(steps: u64, setup: impl FnOnce() -> S, op: impl FnOnce(S)) -> bool {
    // SAFETY: the child uses nothing of the parent's threads: it maps, locks and ends. All else is about the child.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let made = setup();
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 {
                libc::raise(libc::SIGSTOP);
                op(made);
            }
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        let is_traced = libc::WIFSTOPPED(status);
        for _ in 0..steps {
            if libc::WIFSTOPPED(status) {
                libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0);
                libc::waitpid(child, &raw mut status, 0);
            }
        }
        if libc::WIFSTOPPED(status) {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, &raw mut status, 0);
        }
        is_traced
    }
}

/// In the middle of attaching, of a call, of the end of an arena, and of mending what the one before has left.
#[test]
fn a_process_killed_after_any_instruction_leaves_every_block_to_its_owner() {
    type Held = (ProcessArena, Vec<Pfn>);
    let (arena, order) = (arena(2 << 20), Order::new(3).unwrap());
    assert!((0..20).all(|_| arena.alloc(order, Migratetype::Movable).is_ok()));
    let setup = || -> Held {
        let child = ProcessArena::attach(arena.file()).unwrap();
        let held = (0..20).map(|_| child.alloc(order, Migratetype::Unmovable).unwrap()).collect();
        // One that is dead, and not found yet.
        in_child(&child, |dead| (0..10).for_each(|_| drop(dead.alloc(order, Migratetype::Movable))));
        (child, held)
    };
    let calls: [fn(&Held); 6] = [
        |(child, _)| drop(child.alloc(Order::ZERO, Migratetype::Movable)),
        |(child, _)| drop(child.alloc(Order::new(9).unwrap(), Migratetype::Unmovable)),
        |(child, held)| held.iter().for_each(|&pfn| child.free(pfn, Order::new(3).unwrap()).unwrap()),
        |(child, held)| held.iter().for_each(|&pfn| child.disown(pfn, Order::new(3).unwrap()).unwrap()),
        |(child, _)| drop(child.reap()),
        |_| (),
    ];
    let mut rng = fastrand::Rng::with_seed(7);
    for round in 0..60 {
        let most = 1 << rng.u32(6..15);
        let (steps, call) = (rng.u64(..most), calls[rng.usize(..calls.len())]);
        let is_traced = match rng.u32(..5) {
            0 => killed_after(steps, || (), |()| core::mem::forget(ProcessArena::attach(arena.file()))),
            _ => killed_after(steps, setup, |held| call(&held)),
        };
        if !is_traced {
            println!("skipped: no process can be traced here");
            return;
        }
        // Else the next one finds what this one has left.
        if rng.bool() {
            arena.reap().unwrap();
            arena.disowned().unwrap().into_iter().for_each(|(pfn, order)| {
                arena.adopt(pfn, order).unwrap();
                arena.free(pfn, order).unwrap();
            });
            let account = arena.verify().unwrap();
            let left = (account.mine, account.free + account.on_lists);
            assert_eq!(left, (160, 512 - 160), "round {round}: {account:?}");
        }
    }
    assert!(arena.history().0 > 10, "{:?}", arena.history());
}
