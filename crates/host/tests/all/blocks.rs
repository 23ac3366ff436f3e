//! Blocks that free themselves, shared arenas, and poison.

use core::cell::RefCell;
use std::sync::Barrier;
use std::sync::mpsc;
use std::thread;

use crate::common::{MIB, account, assert_all_free, described, order, run_and_kill};
use framewright::config::Engine;
use framewright_host::framewright::frame::POISON;
use framewright_host::{Arena, Block, Config, Flags, Migratetype, Order, Request, SharedArena, SharedBlock};

const MOVABLE: Migratetype = Migratetype::Movable;

fn small() -> Arena {
    described(4 * MIB, Config::default()).build().unwrap()
}

#[test]
fn a_block_frees_itself_once() {
    let arena = small();
    let cpu = arena.attach().unwrap();
    for order in Order::all() {
        let block = cpu.alloc_block(order, MOVABLE).unwrap();
        assert_eq!((account(&arena).allocated, block.order()), (order.pages(), order));
        drop(block);
        assert_eq!(account(&arena).allocated, 0);
    }
}

#[test]
fn a_raw_block_is_not_freed_until_it_is_taken_charge_of() {
    let arena = small();
    let cpu = arena.attach().unwrap();
    let (pfn, size) = cpu.alloc_block(order(2), MOVABLE).unwrap().into_raw();
    assert_eq!(account(&arena).allocated, 4);
    // SAFETY: given up just above.
    drop(unsafe { Block::from_raw(&cpu, pfn, size) });
    assert_eq!(account(&arena).allocated, 0);
}

#[test]
fn a_block_splits_into_blocks() {
    let arena = small();
    let cpu = arena.attach().unwrap();
    let whole = cpu.alloc_block(order(3), MOVABLE).unwrap();
    let start = whole.pfn();
    let mut parts = whole.split(order(1));
    assert_eq!(parts.len(), 4);
    let first = parts.next().unwrap();
    assert_eq!((first.pfn(), first.order()), (start, order(1)));
    assert_eq!(parts.next().unwrap().pfn(), start.add(2));
    assert_eq!(account(&arena).allocated, 6, "the second part is free, first, third and fourth are not");
    drop(parts);
    assert_eq!(account(&arena).allocated, 2, "parts not asked for are freed");
    drop(first);
    drop(cpu);
    assert_all_free(&arena);
}

#[test]
#[should_panic(expected = "order 1 does not divide into blocks of order 2")]
fn a_block_does_not_split_upwards() {
    let arena = small();
    let cpu = arena.attach().unwrap();
    let _ = cpu.alloc_block(order(1), MOVABLE).unwrap().split(order(2));
}

#[test]
fn frames_without_memory_have_no_bytes() {
    let arena = small();
    let cpu = arena.attach().unwrap();
    let block = cpu.alloc_block(order(1), MOVABLE).unwrap();
    assert_eq!(block.as_ptr(), None);
    let bytes = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| block.bytes().len()));
    assert!(bytes.is_err());
}

/// Runs `f` on `threads` threads and waits until they have ended, thread-locals and all: the end of a scope alone
/// waits for the closures only.
fn on_threads(threads: usize, f: impl Fn() + Sync) {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(&f)).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

// ---- shared arenas ---------------------------------------------------------------------------------------

#[test]
fn shared_blocks_are_freed_where_they_are_dropped() {
    let arena: SharedArena = Arena::builder().bytes(16 << 20).cpus(3).build_shared().unwrap();
    let (sender, receiver) = mpsc::sync_channel::<SharedBlock>(64);
    let consumer = thread::spawn(move || {
        let mut sum = 0_u64;
        for block in receiver {
            assert!(block.bytes().iter().all(|&byte| byte == block.bytes()[0]));
            sum += u64::from(block.bytes()[0]);
        }
        sum
    });
    let mut sum = 0;
    for n in 0..20_000_u64 {
        let mut block = arena.alloc_block(order((n % 3) as u8), MOVABLE).unwrap();
        block.bytes_mut().fill(n as u8);
        sum += n % 256;
        sender.send(block).unwrap();
    }
    drop(sender);
    assert_eq!(consumer.join().unwrap(), sum);
    arena.detach();
    assert_all_free(&arena);
}

#[test]
fn more_threads_than_slots_take_turns() {
    let arena: SharedArena = described(16 * MIB, Config::default()).cpus(2).build_shared().unwrap();
    assert_eq!(arena.cpus(), 2);
    let all_at_work = Barrier::new(8);
    on_threads(8, || {
        drop(arena.alloc_block(Order::ZERO, MOVABLE).unwrap());
        all_at_work.wait();
        let mut held = Vec::new();
        for n in 0..3000_u64 {
            held.push(arena.alloc_block(order((n % 4) as u8), MOVABLE).unwrap());
            if n % 3 != 0 {
                held.swap_remove((n * 7) as usize % held.len());
            }
            held.truncate(50);
        }
    });
    // Slots are given up by threads that end; what the spare slot kept is reaped.
    assert_eq!(arena.reap().cpus, 0);
    assert_all_free(&arena);
}

#[test]
fn what_the_spare_slot_keeps_is_found_before_an_allocation_fails() {
    let arena: SharedArena = described(4 * MIB, Config::default()).cpus(1).build_shared().unwrap();
    let cpu = arena.attach().unwrap();
    let through_spare = arena.alloc_block(Order::ZERO, MOVABLE).unwrap();
    drop(through_spare);
    assert!(account(&arena).on_pcp > 0);
    let blocks: Vec<_> = core::iter::from_fn(|| cpu.alloc_block(order(10), MOVABLE).ok()).collect();
    assert_eq!(blocks.len(), 1, "4 MiB are one block of order 10");
    let error = arena.alloc_block(Order::ZERO, MOVABLE).unwrap_err();
    assert!(error.to_string().contains("0 pages free"), "{error}");
}

/// A request that may not fail waits without the spare slot's lock: the memory that it waits for comes back through
/// that.
#[test]
fn a_request_that_may_not_fail_leaves_the_spare_slot_to_others() {
    let arena: SharedArena = described(4 * MIB, Config::default()).cpus(1).build_shared().unwrap();
    let _only_slot = arena.attach().unwrap();
    let mut blocks: Vec<_> = core::iter::from_fn(|| arena.alloc_block(order(10), MOVABLE).ok()).collect();
    assert_eq!(blocks.len(), 1, "all memory");
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            arena.alloc_with(&Request { flags: Flags::NO_FAIL, ..Request::new(Order::ZERO, MOVABLE) })
        });
        thread::sleep(core::time::Duration::from_millis(20));
        drop(blocks.pop());
        let pfn = waits.join().unwrap().unwrap();
        // SAFETY: it was just handed out, and has no memory.
        unsafe { arena.free(pfn, Order::ZERO) }.unwrap();
    });
}

#[test]
fn a_killed_threads_slot_in_a_shared_arena_is_reaped() {
    let arena: SharedArena = described(4 * MIB, Config::default()).cpus(2).build_shared().unwrap();
    for _ in 0..20 {
        run_and_kill(|| drop(arena.alloc_block(Order::ZERO, MOVABLE).unwrap()));
        assert_eq!(arena.reap().cpus, 1);
        assert_all_free(&arena);
    }
}

#[test]
fn raw_frames_of_a_shared_arena_can_be_taken_charge_of() {
    let arena: SharedArena = described(4 * MIB, Config::default()).build_shared().unwrap();
    let (pfn, size) = arena.alloc_block(order(1), MOVABLE).unwrap().into_raw();
    assert_eq!(account(&arena).allocated, 2);
    // SAFETY: given up just above.
    drop(unsafe { SharedBlock::from_raw(arena.clone(), pfn, size) });
    // SAFETY: freed just above; refused.
    assert!(unsafe { arena.free(pfn, size) }.is_err());
    arena.detach();
    assert_all_free(&arena);
}

#[test]
fn a_thread_uses_several_shared_arenas() {
    let arenas: Vec<SharedArena> =
        (0..5).map(|_| described(4 * MIB, Config::default()).build_shared().unwrap()).collect();
    on_threads(2, || {
        for n in 0..1000 {
            drop(arenas[n % 5].alloc_block(Order::ZERO, MOVABLE).unwrap());
        }
    });
    for arena in &arenas {
        assert_all_free(arena);
    }
}

#[test]
fn blocks_dropped_by_thread_locals_at_a_threads_end_are_freed() {
    thread_local!(static KEPT: RefCell<Vec<SharedBlock>> = const { RefCell::new(Vec::new()) });
    let arena: SharedArena = described(4 * MIB, Config::default()).build_shared().unwrap();
    on_threads(1, || {
        // Registered before the attachment, and so dropped after it.
        KEPT.with_borrow_mut(|kept| kept.reserve(1));
        let block = arena.alloc_block(Order::ZERO, MOVABLE).unwrap();
        KEPT.with_borrow_mut(|kept| kept.push(block));
    });
    arena.reap();
    assert_all_free(&arena);
}

// ---- poison -----------------------------------------------------------------------------------------------

fn poisoned() -> Arena {
    // Lists, so that what was freed last is handed out next, also if its pageblock is mostly free.
    let config = Config { poison: true, engine: Engine::Linux, ..Config::default() };
    Arena::builder().bytes(4 << 20).config(config).build().unwrap()
}

#[test]
fn freed_memory_is_poisoned() {
    let arena = poisoned();
    let cpu = arena.attach().unwrap();
    let mut block = cpu.alloc_block(order(2), MOVABLE).unwrap();
    block.bytes_mut().fill(1);
    let pfn = block.pfn();
    drop(block);
    let again = cpu.alloc_block(order(2), MOVABLE).unwrap();
    assert_eq!(again.pfn(), pfn);
    assert!(again.bytes().iter().all(|&byte| byte == POISON));
}

#[test]
fn a_write_after_the_free_is_caught_and_the_block_put_aside() {
    for offset in [0, 1, 5000, 4 * 4096 - 1] {
        let arena = poisoned();
        let cpu = arena.attach().unwrap();
        let block = cpu.alloc_block(order(2), MOVABLE).unwrap();
        let (pfn, stale) = (block.pfn(), block.as_ptr().unwrap().cast::<u8>());
        drop(block);
        // SAFETY: the mapping is still there. It is the very mistake that poison is to catch.
        unsafe { stale.add(offset).write(0) };
        let next = cpu.alloc_block(order(2), MOVABLE).unwrap();
        assert_ne!(next.pfn(), pfn);
        let totals = arena.allocator().totals();
        assert_eq!((totals.pcp.poison_overwrites, totals.pcp.bad_pages), (1, 4));
        assert_eq!(account(&arena).quarantined, 4);
        // SAFETY: refused, so nothing happens.
        let error = unsafe { cpu.free(pfn, order(2)) }.unwrap_err();
        assert!(error.to_string().contains("found bad"), "{error}");
    }
}
