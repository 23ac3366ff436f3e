//! Anonymous pages on a real swap file: more of them than there is memory, and every byte is there.

use std::sync::Barrier;
use std::thread;

use framewright_host::{Arena, CacheError, FileCache, NodeId, PAGE_BYTES, PageSlot, SpaceId};

use super::files::{Folder, MEMORY, PAGE, arena, content};
use crate::common::insist;

fn store_and_load(
    arena: &Arena<PageSlot>,
    cache: &FileCache<'_>,
    space: SpaceId,
    pages: u64,
    all_stored: &Barrier,
) {
    let cpu = arena.attach().unwrap();
    let mut bytes = vec![0; PAGE_BYTES];
    for version in 0..3 {
        for index in (0..pages).filter(|index| index % 3 >= version) {
            insist(|| cache.store_anon(&cpu, space, index * PAGE, &content(space.0.into(), index, version)));
        }
    }
    // Or threads that run one after the other, on a busy machine, would never have more than the memory.
    all_stored.wait();
    for index in 0..pages {
        insist(|| cache.load_anon(&cpu, space, index * PAGE, &mut bytes));
        assert!(bytes == content(space.0.into(), index, index % 3), "{space:?} page {index}");
    }
    // Across a border, and where nothing was.
    let last = pages * PAGE - 2;
    insist(|| cache.store_anon(&cpu, space, last, b"over"));
    let mut around = [9; 8];
    insist(|| cache.load_anon(&cpu, space, last, &mut around));
    assert_eq!(&around, b"over\0\0\0\0");
}

/// Three threads with 1.5, 2 and 10 times the memory together, with and without threads that write, with and
/// without five in a hundred reads and writes failing.
#[test]
fn what_was_stored_is_there() {
    for (tenths, faults, writers) in [(15, 0, 0), (20, 50, 1), (100, 0, 2), (100, 50, 1)] {
        let (folder, arena) = (Folder::new(), arena(3));
        let slots = (MEMORY * tenths / 10) as u32;
        let cache = FileCache::with_swap(&arena, &folder.file(1), slots).unwrap();
        cache.inject_faults(faults);
        let spaces: Vec<SpaceId> = (0..3).map(|_| cache.make_space()).collect();
        let all_stored = Barrier::new(spaces.len());
        thread::scope(|scope| {
            let (arena, cache, all_stored) = (&arena, &cache, &all_stored);
            let keeper = scope.spawn(move || cache.run_background(NodeId(0)).unwrap());
            (0..writers).for_each(|_| drop(scope.spawn(|| cache.run_writing())));
            let pages = MEMORY * tenths / 30 - 1;
            let workers: Vec<_> = spaces
                .iter()
                .map(|&space| scope.spawn(move || store_and_load(arena, cache, space, pages, all_stored)))
                .collect();
            let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            arena.stop_background();
            cache.stop_writing();
            keeper.join().unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        });
        cache.write_back().unwrap();
        cache.verify().unwrap();
        assert_eq!(arena.allocator().verify().unwrap().allocated, cache.anon_pages());
        let events = cache.events();
        println!("{tenths} tenths, {faults} faults, {writers} writers: {events:?}");
        assert!(events.pswpin > 0 && events.pswpout > 0);
        assert_eq!(events.io_errors > 0, faults > 0);
        assert_eq!(std::fs::metadata(folder.file(1)).unwrap().len(), u64::from(slots) * PAGE);
        let cpu = arena.attach().unwrap();
        spaces.iter().for_each(|&space| cache.drop_space(&cpu, space));
        drop(cpu);
        assert_eq!((cache.anon_pages(), cache.swap_use().free), (0, u64::from(slots)));
        assert_eq!(arena.allocator().verify().unwrap().allocated, 0);
    }
}

/// Storage so slow that memory is full of pages on their way: that is no reason to refuse a request.
#[test]
fn a_slow_swap_file_is_waited_for() {
    for (tasks, background) in [(1, false), (3, true)] {
        let (folder, arena) = (Folder::new(), arena(3));
        let cache = FileCache::with_swap(&arena, &folder.file(1), 2 * MEMORY as u32).unwrap();
        cache.limit_storage(10_000_000);
        let spaces: Vec<SpaceId> = (0..tasks).map(|_| cache.make_space()).collect();
        let pages = 2 * MEMORY / tasks;
        let stored: Vec<Result<(), CacheError>> = thread::scope(|scope| {
            let (arena, cache) = (&arena, &cache);
            if background {
                scope.spawn(|| cache.run_background(NodeId(0)).unwrap());
            }
            scope.spawn(|| cache.run_writing());
            let fill = |&space| {
                scope.spawn(move || {
                    let cpu = arena.attach().unwrap();
                    (0..pages).try_for_each(|index| cache.store_anon(&cpu, space, index * PAGE, b"slow"))
                })
            };
            let threads: Vec<_> = spaces.iter().map(fill).collect();
            let stored = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            arena.stop_background();
            cache.stop_writing();
            stored
        });
        assert!(stored.iter().all(Result::is_ok), "{stored:?}");
        assert!(cache.events().pswpout >= MEMORY);
        cache.verify().unwrap();
    }
}

#[test]
fn a_swap_file_that_cannot_be_made_is_an_error() {
    let arena = arena(1);
    let nowhere = Folder::new().path().join("no such folder").join("swap");
    assert!(FileCache::with_swap(&arena, &nowhere, 100).is_err());
}
