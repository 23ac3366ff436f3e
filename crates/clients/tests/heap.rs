//! A program whose every allocation is on an arena: the test harness, its threads and what the tests allocate.
#![expect(unsafe_code, reason = "an allocator's functions are called directly, and a child is made")]

use core::alloc::{GlobalAlloc, Layout};
use std::collections::{BTreeMap, HashMap};
use std::sync::Barrier;
use std::thread;

use framewright_host::{Heap, Order};

const ARENA_BYTES: u64 = 256 << 20;

#[global_allocator]
static HEAP: Heap = Heap::new(ARENA_BYTES);

fn is_in_arena(start: *const u8) -> bool {
    HEAP.arena().expect("the first allocation has made it").frame_at(start).is_some()
}

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// Making the arena allocates: these allocations came back to the heap while its arena was not there yet.
#[test]
fn the_first_allocation_of_a_program_makes_the_arena() {
    let values: Vec<Box<u64>> = (0..1000).map(Box::new).collect();
    assert!(values.iter().all(|value| is_in_arena(core::ptr::from_ref(&**value).cast())));
    assert_eq!(HEAP.arena().unwrap().counts().managed, ARENA_BYTES / 4096);
}

#[test]
fn threads_share_strings_and_maps() {
    let work = |n: usize| {
        let (mut hashed, mut sorted) = (HashMap::new(), BTreeMap::new());
        for i in 0..5000_usize {
            let text = format!("{n} {i}").repeat(1 + i % 7);
            hashed.insert(i.wrapping_mul(7919) % 4096, text.clone());
            sorted.insert(text, i);
            if i % 3 == 0 {
                hashed.remove(&(i % 4096));
            }
        }
        (hashed, sorted)
    };
    let threads: Vec<_> = (0..24).map(|n| thread::spawn(move || work(n))).collect();
    for (n, thread) in threads.into_iter().enumerate() {
        // What a thread has allocated outlives it, and is freed here.
        let (hashed, sorted) = thread.join().unwrap();
        assert!(hashed.values().all(|text| text.starts_with(&format!("{n} "))));
        assert_eq!(sorted.len(), 5000);
        assert!(sorted.iter().all(|(text, i)| *text == format!("{n} {i}").repeat(1 + i % 7)));
    }
}

#[test]
fn memory_is_aligned_and_no_two_allocations_overlap() {
    let mut all = Vec::new();
    for shift in 0..=13 {
        for size in [1, 16, 17, 48, 100, 2048, 2049, 5000, 70_000] {
            let layout = layout(size, 1 << shift);
            // SAFETY: the layout has a size.
            let start = unsafe { HEAP.alloc(layout) };
            assert!(!start.is_null() && start.addr().is_multiple_of(layout.align()));
            // SAFETY: allocated just now, with this size.
            unsafe { start.write_bytes(all.len() as u8, size) };
            all.push((start, layout));
        }
    }
    for (n, (start, layout)) in all.into_iter().enumerate() {
        // SAFETY: allocated above, filled, and freed once.
        unsafe {
            assert!((0..layout.size()).all(|at| start.add(at).read() == n as u8), "{layout:?}");
            HEAP.dealloc(start, layout);
        }
    }
}

#[test]
fn a_buffer_that_grows_and_shrinks_keeps_its_content() {
    for align in [1, 64, 8192] {
        let mut size = 1;
        // SAFETY: the layout has a size; each reallocation is of the layout before, and the last one is freed.
        unsafe {
            let mut start = HEAP.alloc(layout(size, align));
            start.write(1);
            for next in [15, 16, 17, 900, 2048, 2049, 4096, 5000, 1 << 20, 6 << 20, 7 << 20, 3000, 40, 1] {
                start = HEAP.realloc(start, layout(size, align), next);
                assert!(start.addr().is_multiple_of(align));
                assert!((0..size.min(next).min(200)).all(|at| start.add(at).read() == at as u8 + 1));
                (0..next.min(200)).for_each(|at| start.add(at).write(at as u8 + 1));
                size = next;
            }
            HEAP.dealloc(start, layout(size, align));
        }
    }
}

#[test]
fn what_the_arena_has_no_room_for_is_the_systems() {
    let huge = vec![1_u8; 9 << 20];
    assert!(!is_in_arena(huge.as_ptr()), "more than the largest block");
    static SMALL: Heap = Heap::new(8 << 20);
    let mebibyte = layout(1 << 20, 1);
    // SAFETY: each is allocated, written and freed once with its layout.
    let all: Vec<*mut u8> = (0..20).map(|_| unsafe { SMALL.alloc(mebibyte) }).collect();
    let arena = SMALL.arena().expect("made");
    let inside = all.iter().filter(|start| arena.frame_at(start.cast_const()).is_some()).count();
    assert!((1..=8).contains(&inside), "{inside} of 8 MiB");
    for start in all {
        // SAFETY: as above.
        unsafe {
            start.write_bytes(7, mebibyte.size());
            SMALL.dealloc(start, mebibyte);
        }
    }
    assert_eq!(arena.counts().allocated, 0);
}

#[test]
fn large_blocks_go_back_to_the_arena() {
    static LARGE: Heap = Heap::new(16 << 20);
    let two = layout(2 << 20, 4096);
    for _ in 0..100 {
        // SAFETY: each is freed with its layout.
        let all: Vec<*mut u8> = (0..4).map(|_| unsafe { LARGE.alloc(two) }).collect();
        let arena = LARGE.arena().expect("made");
        assert!(all.iter().all(|start| arena.frame_at(start.cast_const()).is_some()));
        // SAFETY: as above.
        all.into_iter().for_each(|start| unsafe { LARGE.dealloc(start, two) });
    }
}

#[test]
fn threads_that_make_the_first_allocation_together_get_one_arena() {
    static FIRST: Heap = Heap::new(64 << 20);
    let start = Barrier::new(8);
    let word = layout(64, 64);
    thread::scope(|scope| {
        for n in 0..8_u8 {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                for _ in 0..2000 {
                    // SAFETY: allocated, written and freed once with its layout.
                    unsafe {
                        let object = FIRST.alloc(word);
                        object.write_bytes(n, 64);
                        assert!((0..64).all(|at| object.add(at).read() == n));
                        FIRST.dealloc(object, word);
                    }
                }
            });
        }
    });
    assert!(FIRST.arena().expect("made").counts().allocated > 0);
}

/// A call that needs memory of its own, from lists that are empty, waits for no lock that it holds itself.
#[test]
fn calls_of_the_heaps_arena_may_allocate() {
    const ALONE: &str = "FRAMEWRIGHT_HEAP_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "calls_of_the_heaps_arena_may_allocate"]).env(ALONE, "1");
        let ended = alone.output().unwrap();
        return assert!(ended.status.success(), "{ended:?}");
    }
    // SAFETY: a call that waits permanently is ended.
    unsafe { libc::alarm(20) };
    let arena = HEAP.arena().unwrap();
    arena.detach();
    let all: [_; 32] = core::array::from_fn(|_| arena.attach().ok());
    assert!(all.iter().any(Option::is_none), "all CPUs are taken");
    for size in [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048] {
        // SAFETY: the layout has a size.
        let is_first_of_chunk = || unsafe {
            let before = arena.counts().allocated;
            HEAP.alloc(layout(size, 16));
            arena.counts().allocated > before
        };
        while !is_first_of_chunk() {}
        (1..16384 / size).for_each(|_| assert!(!is_first_of_chunk()));
    }
    assert!(arena.verify().is_err());
    arena.trim(Order::ZERO);
}

/// A child has copies of all objects, frees none of the arena's, and allocates from the system; its parent goes on.
#[test]
fn a_forked_child_reads_what_it_inherited_and_allocates() {
    // Other threads allocate in the moment of the fork: the child may inherit their locks held.
    let stop = core::sync::atomic::AtomicBool::new(false);
    let mut inherited: Vec<String> = (0..1000).map(|n| format!("inherited {n}")).collect();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(core::sync::atomic::Ordering::Relaxed) {
                    drop((0..100).map(|n| vec![n as u8; 100 + n * 50]).collect::<Vec<_>>());
                }
            });
        }
        for _ in 0..20 {
            // SAFETY: the child allocates, frees and ends, without unwinding.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_whole =
                    inherited.iter().enumerate().all(|(n, text)| *text == format!("inherited {n}"));
                let mut grown = inherited.clone();
                grown.iter_mut().for_each(|text| text.push_str(" and grown"));
                let is_systems = HEAP.arena().is_none() && grown.iter().all(|text| text.ends_with("grown"));
                drop(core::mem::take(&mut inherited));
                // SAFETY: it ends the child alone.
                unsafe { libc::_exit(i32::from(!(is_whole && is_systems))) };
            }
            let mut status = -1;
            // SAFETY: a valid place for the answer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the child's exit code, or the signal that ended it");
        }
        stop.store(true, core::sync::atomic::Ordering::Relaxed);
    });
    assert!(inherited.iter().enumerate().all(|(n, text)| *text == format!("inherited {n}")));
}
