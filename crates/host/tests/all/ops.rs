//! Calls of a host's arena besides allocations: memory given back, committed, locked, guarded and zeroed; threads
//! near their memory; waiting for others.

use core::alloc::Layout;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use core::time::Duration;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::thread;

use framewright_host::framewright::reclaim::{Reclaim, ReclaimRequest, Reclaimed, Release};
use framewright_host::{
    Arena, AttachError, Backing, Config, Engine, Flags, FreeAges, Migratetype, Order, PAGE_BYTES,
    PAGEBLOCK_ORDER, Pfn, Request, SharedArena, SharedBlock, TrimPolicy, VerifyError,
};

use crate::common::{described, free, order, sight};

const MOVABLE: Migratetype = Migratetype::Movable;

/// Pages of a range that are in memory.
fn resident(arena: &Arena) -> u64 {
    let (start, end) = (arena.frames().start, arena.frames().end);
    let address = arena.address(start).unwrap();
    let mut pages = vec![0_u8; (end.0 - start.0) as usize];
    // SAFETY: the arena's own mapping, and a byte for each of its pages.
    let failed =
        unsafe { libc::mincore(address.as_ptr().cast(), pages.len() * PAGE_BYTES, pages.as_mut_ptr()) };
    assert_eq!(failed, 0);
    pages.iter().filter(|&&page| page & 1 == 1).count() as u64
}

/// Allocates `pages` pages, writes to each, and frees all of them.
fn use_up(arena: &Arena, pages: u64) {
    let cpu = arena.attach().unwrap();
    let mut blocks: Vec<_> = (0..pages).map(|_| cpu.alloc_block(Order::ZERO, MOVABLE).unwrap()).collect();
    blocks.iter_mut().for_each(|block| block.bytes_mut()[0] = 1);
}

#[test]
fn free_memory_goes_back_and_what_is_used_stays() {
    let arena: Arena = Arena::builder().bytes(64 << 20).cpus(3).build().unwrap();
    use_up(&arena, 12_000);
    let cpu = arena.attach().unwrap();
    let mut kept: Vec<_> = (0..200).map(|_| cpu.alloc_block(Order::ZERO, MOVABLE).unwrap()).collect();
    for (block, n) in kept.iter_mut().zip(0_u8..) {
        block.bytes_mut().fill(n);
    }
    let before = resident(&arena);
    assert!(before >= 12_000, "{before}");
    let trimmed = cpu.trim(Order::ZERO);
    assert!(trimmed.pages >= 11_000, "{trimmed:?}");
    assert_eq!(resident(&arena), before - trimmed.pages);
    assert_eq!(cpu.trim(Order::ZERO).pages, 0, "it is gone already");
    assert!(kept.iter().zip(0_u8..).all(|(block, n)| block.bytes().iter().all(|&byte| byte == n)));
    drop(kept);
    drop(cpu);
    arena.verify().unwrap();
    // What comes back is zeroes.
    let cpu = arena.attach().unwrap();
    assert_eq!(cpu.trim(Order::ZERO).pages, 200);
    let large = cpu.alloc_block(order(10), MOVABLE).unwrap();
    assert!(large.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn pageblocks_go_back_when_they_have_been_free_for_long() {
    let arena: Arena = Arena::builder().bytes(32 << 20).cpus(2).build().unwrap();
    use_up(&arena, 4096);
    let cpu = arena.attach().unwrap();
    let (mut ages, hour) = (FreeAges::default(), Duration::from_secs(3600));
    assert_eq!(cpu.trim_aged(&mut ages, hour).pages, 0);
    let old = cpu.trim_aged(&mut ages, Duration::ZERO);
    assert!(old.pages >= 4000, "{old:?}");
}

/// Two free pageblocks may be one block: each goes back by its own age, also if the other is not in memory.
#[test]
fn each_half_of_a_block_of_two_pageblocks_goes_back() {
    for config in [Config::default(), Config::linux_v6_7()] {
        for (half, least) in [(0, 9), (512, 9), (0, 10), (512, 10)] {
            let arena: Arena = Arena::builder().pages(4096).cpus(1).config(config).build().unwrap();
            let cpu = arena.attach().unwrap();
            let touch = |at: u64| cpu.alloc_block_at(Pfn(at), Order::ZERO).unwrap().bytes_mut()[0] = 1;
            touch(1024 + half);
            assert_eq!((cpu.trim(order(least)).pages, resident(&arena)), (1, 0), "{half} of order {least}");
            let in_use = cpu.alloc_block_at(Pfn(512 - half), Order::ZERO).unwrap();
            touch(half);
            cpu.drain();
            let mut ages = FreeAges::default();
            cpu.trim_aged(&mut ages, Duration::from_secs(3600));
            thread::sleep(Duration::from_millis(1));
            drop(in_use);
            touch(512 - half);
            cpu.drain();
            let old = cpu.trim_aged(&mut ages, Duration::from_millis(1));
            assert_eq!(
                (old.pages, resident(&arena)),
                (1, 1),
                "{half}: the other was in use at the first look"
            );
        }
    }
}

/// A thread does the same, also with an interval that no clock has: that looks once.
#[test]
fn a_thread_gives_back_what_has_been_free_for_long() {
    for interval in [Duration::from_millis(1), Duration::MAX] {
        let arena: Arena = Arena::builder().bytes(32 << 20).cpus(2).build().unwrap();
        use_up(&arena, 4096);
        let policy = TrimPolicy { interval, age: Duration::ZERO, pressure: None };
        thread::scope(|scope| {
            let trimmer = scope.spawn(|| arena.run_trimming(&policy).unwrap());
            while resident(&arena) > 100 && !trimmer.is_finished() {
                thread::yield_now();
            }
            arena.stop_background();
            assert!(trimmer.join().unwrap().pages >= 4000);
        });
    }
}

#[test]
fn nothing_goes_back_that_cannot() {
    let locked = Arena::builder().bytes(4 << 20).cpus(1).lock_memory();
    let poisoned = Config { poison: true, ..Config::default() };
    for builder in [
        Arena::builder().pages(1024).backing(Backing::Described).cpus(1),
        Arena::builder().bytes(4 << 20).cpus(1).config(poisoned),
        locked,
    ] {
        // A limit on locked memory is a reason not to.
        let Ok(arena) = builder.build::<()>() else { continue };
        let cpu = arena.attach().unwrap();
        if arena.has_memory() {
            cpu.alloc_block(order(9), MOVABLE).unwrap().bytes_mut().fill(1);
        }
        cpu.drain();
        assert_eq!(cpu.trim(Order::ZERO).pages, 0);
    }
}

/// Threads use memory while another one gives back all that is free: no owner's bytes change.
#[test]
fn trimming_races_with_everything() {
    let arena: Arena = Arena::builder().bytes(16 << 20).cpus(4).build().unwrap();
    let stop = AtomicBool::new(false);
    let trimmed = thread::scope(|scope| {
        let trimmer = scope.spawn(|| {
            let (cpu, mut pages) = (arena.attach().unwrap(), 0);
            while !stop.load(Relaxed) {
                pages += cpu.trim(Order::ZERO).pages;
            }
            pages
        });
        let workers: Vec<_> = (0..2_u64)
            .map(|n| {
                let arena = &arena;
                scope.spawn(move || {
                    let (cpu, mut rng, mut held) =
                        (arena.attach().unwrap(), fastrand::Rng::with_seed(n), Vec::new());
                    for step in 0..6000_u64 {
                        let size = order(if rng.u32(..16) == 0 { rng.u8(..10) } else { 0 });
                        if let Ok(mut block) = cpu.alloc_block(size, MOVABLE) {
                            let word = (n << 32 | step).to_le_bytes();
                            block.bytes_mut().as_chunks_mut::<8>().0.fill(word);
                            held.push((block, word));
                        }
                        if held.len() > 300 {
                            let (block, word) = held.swap_remove(rng.usize(..300));
                            assert!(block.bytes().as_chunks::<8>().0.iter().all(|found| *found == word));
                        }
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        stop.store(true, Relaxed);
        trimmer.join().unwrap()
    });
    assert!(trimmed > 0);
    arena.verify().unwrap();
}

#[test]
fn memory_is_committed_and_guarded_where_wished() {
    let arena: Arena = Arena::builder().bytes(4 << 20).cpus(1).prefault().guard_pages().build().unwrap();
    assert_eq!(resident(&arena), 1024);
    let (first, last) = (arena.frames().start, Pfn(arena.frames().end.0 - 1));
    let before = arena.address(first).unwrap().as_ptr().wrapping_sub(1);
    let behind = arena.address(last).unwrap().as_ptr().wrapping_add(PAGE_BYTES);
    assert!(before.addr().wrapping_add(1).is_multiple_of(4 << 20), "blocks are aligned to their size");
    // What touching them would end this process for, the system says when it is asked to write there.
    for place in [before, behind] {
        let mut ends = [0; 2];
        // SAFETY: two valid places; the system checks the third address itself, and gives both ends back at the end.
        let read = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(libc::write(ends[1], [1_u8].as_ptr().cast(), 1), 1);
            let read = libc::read(ends[0], place.cast(), 1);
            for end in ends {
                libc::close(end);
            }
            read
        };
        assert_eq!(read, -1, "{place:?} can be written to");
    }
    match Arena::builder().bytes(1 << 20).cpus(1).lock_memory().build::<()>() {
        Ok(arena) => assert_eq!(resident(&arena), 256),
        Err(error) => assert!(error.to_string().contains("ulimit -l"), "{error}"),
    }
    // Pages of 1 GiB have to be set aside when the machine boots, as a rule.
    match Arena::builder().bytes(1 << 20).cpus(1).backing(Backing::GiantTlb).build::<()>() {
        Ok(arena) => assert!(arena.has_memory()),
        Err(error) => assert!(error.to_string().contains("hugepages-1048576kB"), "{error}"),
    }
}

#[test]
fn threads_attach_near_their_cpu() {
    let arena: Arena = Arena::builder().bytes(16 << 20).cpus(6).nodes(2).build().unwrap();
    let all: Vec<_> = (0..6).map(|_| arena.attach_near().unwrap()).collect();
    let mut slots: Vec<_> = all.iter().map(|cpu| cpu.id().index()).collect();
    // The node that this thread runs on, or at least one whole node, is filled first, if the thread stays where it is.
    slots.sort_unstable();
    assert_eq!(slots, [0, 1, 2, 3, 4, 5]);
    assert!(matches!(arena.attach_near(), Err(AttachError::AllTaken { cpus: 6 })));
    let bound: Arena = Arena::builder().bytes(16 << 20).cpus(2).machine_nodes().build().unwrap();
    bound.attach_near().unwrap();
}

#[test]
fn books_are_checked_when_nobody_is_at_work() {
    let arena: SharedArena = Arena::builder().bytes(8 << 20).cpus(3).build_shared().unwrap();
    let block = arena.alloc_block(order(1), MOVABLE).unwrap();
    assert!(matches!(Arena::verify(&arena), Err(VerifyError::Busy(_))), "this thread has a CPU");
    assert_eq!(arena.verify().unwrap().allocated, 2);
    let (sender, receiver) = mpsc::channel::<()>();
    let (ready, wait) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let receiver = receiver;
            let cpu = arena.attach().unwrap();
            drop(cpu.alloc_block(Order::ZERO, MOVABLE).unwrap());
            ready.send(cpu.id()).unwrap();
            receiver.recv().unwrap();
        });
        let busy = wait.recv().unwrap();
        let error = arena.verify().unwrap_err();
        assert_eq!(error, VerifyError::Busy(busy));
        assert!(error.to_string().contains("detach"), "{error}");
        // It makes no call, and need not.
        assert_eq!(arena.drain_all(Duration::MAX), []);
        sender.send(()).unwrap();
    });
    drop(block);
}

/// A request that may not fail keeps its other flags where the thread has no slot of its own.
#[test]
fn zeroes_without_a_slot_and_without_failing() {
    let arena: SharedArena = Arena::builder().bytes(4 << 20).cpus(1).build_shared().unwrap();
    let _only_slot = arena.attach().unwrap();
    arena.alloc_block(order(10), MOVABLE).unwrap().bytes_mut().fill(7);
    let flags = Flags::NO_FAIL.and(Flags::ZERO);
    let pfn = arena.alloc_with(&Request { flags, ..Request::new(order(10), MOVABLE) }).unwrap();
    // SAFETY: allocated just now, with this order, and owned by no other thread.
    let block = unsafe { SharedBlock::from_raw(arena.clone(), pfn, order(10)) };
    assert!(block.bytes().iter().all(|&byte| byte == 0));
}

#[test]
fn a_shared_arena_has_what_an_attachment_has() {
    let arena: SharedArena = Arena::builder().bytes(8 << 20).cpus(1).build_shared().unwrap();
    // Without a slot of this thread's own, too.
    for has_slot in [true, false] {
        let taken = if has_slot { None } else { Some(arena.attach().unwrap()) };
        let size = arena.order_for(30_000).unwrap();
        arena.alloc_block(size, MOVABLE).unwrap().bytes_mut().fill(0xaa);
        assert!(arena.alloc_block_zeroed(size, MOVABLE).unwrap().iter().all(|&byte| byte == 0));
        let mut whole = arena.alloc_block(size, MOVABLE).unwrap();
        whole.iter_mut().zip(0_u64..).for_each(|(byte, n)| *byte = (n / 4096) as u8);
        let mut parts = whole.split(Order::ZERO);
        let second = parts.nth(1).unwrap();
        assert!(parts.len() == 6 && second.len() == 4096 && second.iter().all(|&byte| byte == 1));
        drop(parts);
        let mut pages = [Pfn(0); 100];
        assert_eq!(arena.alloc_bulk(Order::ZERO, MOVABLE, &mut pages), 100);
        assert!(arena.alloc_at(second.pfn(), Order::ZERO).is_err());
        assert_eq!(arena.counts().allocated, 101);
        // SAFETY: they are ours, and not used.
        unsafe { arena.free_bulk(Order::ZERO, &pages) }.unwrap();
        let mut out = [const { Pfn(0)..Pfn(0) }; 4];
        let runs = arena.alloc_runs(700, MOVABLE, &mut out).to_vec();
        let layout = arena.alloc_layout(Layout::from_size_align(5 * 4096, 16384).unwrap(), MOVABLE).unwrap();
        assert!(layout.start.0.is_multiple_of(4));
        assert_eq!(arena.counts().allocated, 1 + 700 + 5);
        for range in runs.into_iter().chain([layout]) {
            // SAFETY: it is ours, and not used.
            unsafe { arena.free_range(range) }.unwrap();
        }
        drop((second, taken));
        arena.detach();
        assert_eq!((arena.counts().allocated, arena.trim(Order::ZERO).pages > 0), (0, true));
        arena.detach();
    }
    let block = arena.alloc_block(order(4), MOVABLE).unwrap();
    let (pfn, from) = block.into_raw();
    let split = arena.with_cpu(|cpu| {
        // SAFETY: the block has just been given up.
        unsafe { cpu.split(pfn, from, Order::ZERO) }.unwrap();
        (0..from.pages()).for_each(|n| crate::common::free(cpu, pfn.add(n), Order::ZERO));
        drop(arena.alloc_block(Order::ZERO, MOVABLE).unwrap());
        cpu.drain();
        cpu.trim(PAGEBLOCK_ORDER)
    });
    split.unwrap();
    let refused = thread::scope(|scope| scope.spawn(|| arena.with_cpu(|_| ())).join().unwrap());
    assert_eq!(refused, Err(AttachError::AllTaken { cpus: 1 }));
    assert_eq!(arena.verify().unwrap().allocated, 0);
}

/// A pool that keeps its arena alive and gives pages back to it: the arena does not keep the pool alive in turn.
#[test]
fn a_pool_that_helps_its_own_arena_is_freed() {
    struct Pool {
        arena: SharedArena,
        blocks: Mutex<Vec<SharedBlock>>,
    }
    impl Reclaim for Pool {
        fn reclaim(&self, _: &ReclaimRequest<'_>, _: &dyn Release) -> Reclaimed {
            let blocks = core::mem::take(&mut *self.blocks.lock().unwrap());
            Reclaimed { scanned: blocks.len() as u64, freed: blocks.len() as u64 }
        }
    }
    let arena: SharedArena = Arena::builder().bytes(4 << 20).build_shared().unwrap();
    let pool = Arc::new(Pool { arena: arena.clone(), blocks: Mutex::default() });
    let weak: Weak<dyn Reclaim + Send + Sync> = Arc::<Pool>::downgrade(&pool);
    assert!(arena.set_weak_reclaim(Weak::clone(&weak)));
    for _ in 0..3000 {
        let block = pool.arena.alloc_block(Order::ZERO, MOVABLE).expect("the pool gives way");
        pool.blocks.lock().unwrap().push(block);
    }
    drop(pool);
    assert_eq!(weak.strong_count(), 0);
    let all = core::iter::from_fn(|| arena.alloc_block(Order::ZERO, MOVABLE).ok());
    assert_eq!(all.take(2000).collect::<Vec<_>>().len(), 1024, "it is not asked any more");
}

#[test]
fn reset_frees_every_block_of_each_engine() {
    for engine in [Engine::Framewright, Engine::Compact, Engine::Linux] {
        let mut arena: Arena = Arena::builder().pages(8192).cpus(2).engine(engine).build().unwrap();
        let cpu = arena.attach().unwrap();
        for n in [0, 1, 3, 9, 10] {
            let _ = cpu.alloc_block(order(n), MOVABLE).unwrap().into_raw();
        }
        let mut bulk = [Pfn(0); 100];
        assert_eq!(cpu.alloc_bulk(Order::ZERO, MOVABLE, &mut bulk), 100);
        cpu.alloc_contig_range(Pfn(5000)..Pfn(5777)).unwrap();
        drop(cpu);
        let pages = 1 + 2 + 8 + 512 + 1024 + 100 + 777;
        assert_eq!(arena.counts().allocated, pages);
        // SAFETY: the frames that were allocated above are not used any more.
        assert_eq!(unsafe { arena.reset() }, Ok(pages), "{engine:?}");
        assert_eq!(arena.verify().unwrap().allocated, 0);
        // SAFETY: nothing is allocated.
        assert_eq!(unsafe { arena.reset() }, Ok(0));
    }
}

#[test]
fn splits_that_make_no_sense_change_nothing() {
    for config in [Config::default(), Config::linux_v5_4(), Config::linux_v6_7()] {
        let arena: Arena = described(4072, config).base(Pfn(1024)).build().unwrap();
        let cpu = arena.attach().unwrap();
        let pfn = cpu.alloc(order(4), MOVABLE).unwrap();
        let before = sight(&arena);
        for (at, from, to) in [(pfn, 3, 1), (pfn, 5, 1), (pfn.add(1), 4, 0), (pfn, 4, 5), (Pfn(0), 4, 0)] {
            // SAFETY: it is refused.
            unsafe { cpu.split(at, order(from), order(to)) }.unwrap_err();
            assert_eq!(sight(&arena), before);
        }
        // SAFETY: the block is this test's.
        unsafe { cpu.split(pfn, order(4), order(2)) }.unwrap();
        (0..4).for_each(|part| free(&cpu, pfn.add(4 * part), order(2)));
        // SAFETY: it is refused.
        unsafe { cpu.split(pfn, order(2), order(0)) }.unwrap_err();
    }
}
