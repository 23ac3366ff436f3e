//! Anonymous pages: memory, swap area and files under one roof.

use core::cell::Cell;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;

use framewright::config::Generation;
use framewright::error::FreeError;
use framewright::reclaim::{By, Reclaim, ReclaimRequest, Release};
use framewright::units::{CpuId, NodeId, Order, Pfn, ZoneId, ZoneType};
use framewright_check::fixture::BASE;
use framewright_check::mix;
use framewright_check::platform::plain::Plain;
use framewright_pagecache::{Cache, CacheError, FileId, SpaceId, Swap, SwapUse};

use crate::disk::{BYTES, Disk};
use crate::{Handle, Kept, PAGES, world};

const SWAP: FileId = FileId(1000);
type Swapping<'w> = Cache<'w, Plain, Disk>;

fn cache(world: &Kept, disk: Disk, slots: u64) -> Swapping<'_> {
    Cache::new(world.allocator(), disk).with_swap(Swap::new(SWAP, slots as u32))
}

/// Calls again what a failing disk has failed.
fn insist<T>(mut call: impl FnMut() -> Result<T, CacheError>) -> T {
    (0..1000)
        .find_map(|_| match call() {
            Ok(value) => Some(value),
            Err(CacheError::Io(_)) => None,
            Err(error) => panic!("{error}"),
        })
        .expect("one of a thousand calls succeeds")
}

fn load(cache: &Swapping<'_>, cpu: &Handle<'_>, space: SpaceId, index: u64) -> [u8; BYTES] {
    let mut bytes = [0xaa; BYTES];
    insist(|| cache.load_anon(cpu, &cache.helpers(), (space, index, 0), &mut bytes));
    bytes
}

/// Content of page `index` of a space after store number `version`.
fn content(space: SpaceId, index: u64, version: u64) -> [u8; BYTES] {
    let word = mix(u64::from(space.0) << 40 ^ index << 8 ^ version).to_le_bytes();
    core::array::from_fn(|n| word[n % 8])
}

fn store(cache: &Swapping<'_>, cpu: &Handle<'_>, space: SpaceId, index: u64, version: u64) {
    let bytes = content(space, index, version);
    insist(|| cache.store_anon(cpu, &cache.helpers(), (space, index, 0), &bytes));
}

/// The end of a test: lists, slots and frames add up, and without spaces and files nothing is left.
fn close(world: &Kept, cache: &Swapping<'_>, spaces: &[SpaceId], files: &[FileId]) {
    cache.verify().unwrap();
    assert_eq!(world.settled().allocated, cache.pages().0 + cache.anon_pages());
    world.on(0, |cpu| {
        spaces.iter().for_each(|&space| cache.drop_space(cpu, space));
        files.iter().for_each(|&file| cache.truncate(cpu, file, 0).unwrap());
    });
    let SwapUse { slots, free, cached } = cache.swap_use();
    assert_eq!((free, cached, cache.anon_pages()), (slots, 0, 0), "spaces end with all they have");
    cache.verify().unwrap();
    assert_eq!(world.settled().allocated, 0);
}

/// Random stores, loads and unmappings in spaces, and reads and writes of a file beside them.
fn work(cache: &Swapping<'_>, cpu: &Handle<'_>, spaces: &[SpaceId], file: FileId, pages: u64, steps: u64) {
    let helpers = cache.helpers();
    let mut model: HashMap<(SpaceId, u64), [u8; BYTES]> = HashMap::new();
    let mut written: HashMap<u64, u8> = HashMap::new();
    let mut seed = u64::from(spaces[0].0) << 32;
    let mut random = |below: u64| {
        seed += 1;
        mix(seed) % below
    };
    for &space in spaces {
        for index in 0..pages {
            store(cache, cpu, space, index, 0);
            model.insert((space, index), content(space, index, 0));
        }
    }
    for step in 0..steps {
        let space = spaces[random(spaces.len() as u64) as usize];
        let index = random(pages + 10);
        match random(1000) {
            0..450 => {
                let expected = model.get(&(space, index)).copied().unwrap_or_default();
                assert_eq!(load(cache, cpu, space, index), expected, "{space:?} page {index}");
            }
            450..700 => {
                store(cache, cpu, space, index, step);
                model.insert((space, index), content(space, index, step));
            }
            700..900 => {
                let (offset, byte) = (random(BYTES as u64) as usize, random(256) as u8);
                insist(|| cache.store_anon(cpu, &helpers, (space, index, offset), &[byte]));
                model.entry((space, index)).or_default()[offset] = byte;
            }
            900..950 => {
                let byte = random(256) as u8;
                insist(|| cache.write(cpu, &helpers, (file, index, 0), &[byte; BYTES]));
                written.insert(index, byte);
            }
            950..998 => {
                let mut bytes = [0; BYTES];
                insist(|| cache.read(cpu, &helpers, (file, index, 0), &mut bytes));
                assert_eq!(bytes, [written.get(&index).copied().unwrap_or_default(); BYTES]);
            }
            _ => {
                let end = index + random(16);
                cache.unmap_anon(cpu, space, index..end);
                model.retain(|&(in_space, at), _| in_space != space || !(index..end).contains(&at));
            }
        }
    }
    for (&(space, index), expected) in &model {
        assert_eq!(load(cache, cpu, space, index), *expected, "{space:?} page {index}");
    }
}

/// 1.5, 2 and 10 times the memory, with and without failures, on fast and slow disks, in both generations.
#[test]
fn every_byte_is_kept() {
    for generation in [Generation::V3_0, Generation::V6_1] {
        for tenths in [15, 20, 100] {
            for (fails, slow) in [(0, 0), (5, 0), (0, 3), (5, 3)] {
                let world = world(generation, 1);
                let pages = PAGES * tenths / 10;
                let cache = cache(&world, Disk::new(fails, slow), pages);
                let spaces = [SpaceId(1), SpaceId(2)];
                world.on(0, |cpu| work(&cache, cpu, &spaces, FileId(1), pages / 2, 8_000));
                let events = cache.events();
                println!("{generation:?} {tenths} tenths, {fails} % fail, slow {slow}: {events:?}");
                assert!(events.pswpin > 0 && events.pswpout > 0 && events.pgsteal_anon > 0);
                assert!(events.pswpin <= events.pgpgin && events.pswpout <= events.pgpgout);
                assert_eq!(events.io_errors > 0, fails > 0);
                close(&world, &cache, &spaces, &[FileId(1)]);
            }
        }
    }
}

/// Memory and swap hold what they can together, then stores fail; what was there is there still.
#[test]
fn a_full_swap_area_fails_cleanly() {
    let space = SpaceId(7);
    for (slots, slow) in [(0, 0), (1, 0), (300, 0), (300, 3), (2 * PAGES, 3)] {
        let world = world(Generation::V6_1, 1);
        let cache = cache(&world, Disk::new(0, slow), slots);
        world.on(0, |cpu| {
            let helpers = cache.helpers();
            let mut stored = 0;
            let error = loop {
                let bytes = content(space, stored, 0);
                match cache.store_anon(cpu, &helpers, (space, stored, 0), &bytes) {
                    Ok(()) => stored += 1,
                    Err(error) => break error,
                }
            };
            assert!(matches!(error, CacheError::NoMemory(_)), "{error}");
            println!("{slots} slots: {stored} of {} pages", PAGES + slots);
            assert!(stored > PAGES * 9 / 10 + slots, "{slots} slots and the memory hold only {stored}");
            assert_eq!(cache.swap_use(), SwapUse { slots, free: 0, cached: 0 });
            cache.verify().unwrap();
            let counts = cache.reclaimable(ZoneId(0));
            assert_eq!((counts.anon_lru, counts.on_lists()), (0, 0), "there is nowhere to swap to");
            let scanned = cache.events().pgscan_anon;
            assert!(cache.store_anon(cpu, &helpers, (space, stored, 0), &[1]).is_err());
            assert_eq!(cache.events().pgscan_anon, scanned, "nobody looks in vain");
            // A little room, and all of it can be had again.
            cache.unmap_anon(cpu, space, 0..64);
            for index in 64..stored {
                assert_eq!(load(&cache, cpu, space, index), content(space, index, 0), "page {index}");
            }
            assert_eq!(load(&cache, cpu, space, 3), [0; BYTES]);
        });
        close(&world, &cache, &[space], &[]);
    }
}

/// While a page is read from its slot, no other page is given the slot, however much it is wanted.
#[test]
fn a_slot_that_is_read_stays_the_page_s() {
    let world = world(Generation::V6_1, 2);
    let cache = cache(&world, Disk::new(0, 0), 200);
    let (first, right) = (SpaceId(1), SpaceId(2));
    let pages = PAGES + 50;
    world.on(0, |cpu| (0..pages).for_each(|index| store(&cache, cpu, first, index, 0)));
    cache.device().holds_reads.store(true, Relaxed);
    std::thread::scope(|scope| {
        let (world, cache) = (&world, &cache);
        let reader = scope.spawn(move || {
            let check = |cpu: &Handle<'_>, index| {
                assert_eq!(load(cache, cpu, first, index), content(first, index, 0), "page {index}");
            };
            world.on(1, |cpu| {
                (0..pages).find(|&index| {
                    check(cpu, index);
                    // One was read from its slot; the others come when there is room again.
                    cache.device().reads.load(Relaxed) > 0
                })
            })
        });
        while cache.device().reads.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        world.on(0, |cpu| {
            let mut stored = 0;
            while cache
                .store_anon(cpu, &cache.helpers(), (right, stored, 0), &content(right, stored, 0))
                .is_ok()
            {
                stored += 1;
            }
            assert_eq!(cache.swap_use(), SwapUse { slots: 200, free: 0, cached: 0 });
            cache.device().holds_reads.store(false, Relaxed);
            assert!(reader.join().unwrap().is_some());
            cache.unmap_anon(cpu, right, 0..stored);
            (0..pages).for_each(|index| assert_eq!(load(cache, cpu, first, index), content(first, index, 0)));
        });
    });
    close(&world, &cache, &[first, right], &[]);
}

/// A disk that fails every write, then every read: nothing is lost, and all is well when it works again.
#[test]
fn failures_lose_nothing() {
    let world = world(Generation::V6_1, 1);
    let cache = cache(&world, Disk::new(100, 0), 4 * PAGES);
    let space = SpaceId(1);
    world.on(0, |cpu| {
        let helpers = cache.helpers();
        let mut stored = 0;
        while cache.store_anon(cpu, &helpers, (space, stored, 0), &content(space, stored, 0)).is_ok() {
            stored += 1;
        }
        let events = cache.events();
        assert!(events.io_errors > 0 && events.pswpout == 0 && stored < PAGES, "{events:?}");
        assert_eq!(cache.swap_use().free, 4 * PAGES, "a slot that failed is nobody's");
        (0..stored).for_each(|index| assert_eq!(load(&cache, cpu, space, index), content(space, index, 0)));
        cache.device().fails.store(0, Relaxed);
        (stored..2 * PAGES).for_each(|index| store(&cache, cpu, space, index, 0));
        cache.device().fails.store(100, Relaxed);
        let (mut failed, mut bytes) = (0, [0; BYTES]);
        for index in 0..2 * PAGES {
            match cache.load_anon(cpu, &helpers, (space, index, 0), &mut bytes) {
                Ok(()) => assert_eq!(bytes, content(space, index, 0)),
                Err(CacheError::Io(_)) => failed += 1,
                Err(CacheError::NoMemory(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert!(failed > 0);
        cache.verify().unwrap();
        cache.device().fails.store(0, Relaxed);
        (0..2 * PAGES)
            .for_each(|index| assert_eq!(load(&cache, cpu, space, index), content(space, index, 0)));
    });
    close(&world, &cache, &[space], &[]);
}

/// A page that is only loaded is written once, however often it goes and comes.
#[test]
fn a_clean_page_is_not_written_again() {
    let world = world(Generation::V6_1, 1);
    let pages = 2 * PAGES;
    let cache = cache(&world, Disk::new(0, 0), 2 * pages);
    let space = SpaceId(1);
    world.on(0, |cpu| {
        (0..pages).for_each(|index| store(&cache, cpu, space, index, 0));
        for _ in 0..5 {
            (0..pages)
                .for_each(|index| assert_eq!(load(&cache, cpu, space, index), content(space, index, 0)));
        }
        let events = cache.events();
        assert!(events.pswpin > 2 * pages && events.pswpout <= pages, "{events:?}");
        assert!(cache.swap_use().cached > 0);
        // A store has it written again.
        (0..pages).for_each(|index| store(&cache, cpu, space, index, 1));
        (0..pages).for_each(|index| assert_eq!(load(&cache, cpu, space, index), content(space, index, 1)));
        assert!(cache.events().pswpout > pages);
    });
    close(&world, &cache, &[space], &[]);
}

#[test]
fn a_space_ends_at_once() {
    let world = world(Generation::V6_1, 1);
    let cache = cache(&world, Disk::new(0, 3), 4 * PAGES);
    let (left, right) = (SpaceId(1), SpaceId(2));
    world.on(0, |cpu| {
        let mut bytes = [9; BYTES];
        cache.load_anon(cpu, &cache.helpers(), (left, 5, 0), &mut bytes).unwrap();
        assert_eq!((bytes, cache.anon_pages()), ([0; BYTES], 0), "what was never stored to takes no memory");
        for index in 0..PAGES {
            store(&cache, cpu, left, index, 0);
            store(&cache, cpu, right, index, 0);
        }
        let before = cache.swap_use();
        assert!(before.free < before.slots);
        let counts = cache.zone_counts(ZoneId(0));
        assert_eq!(counts.nr_anon_pages, counts.nr_inactive_anon + counts.nr_active_anon);
        assert_eq!(counts.nr_anon_pages, cache.anon_pages());
        cache.unmap_anon(cpu, left, PAGES / 2..PAGES);
        assert_eq!(load(&cache, cpu, left, PAGES / 2), [0; BYTES]);
        assert_eq!(load(&cache, cpu, left, PAGES / 2 - 1), content(left, PAGES / 2 - 1, 0));
        cache.unmap_anon(cpu, left, 7..7);
        assert_eq!(load(&cache, cpu, left, 7), content(left, 7, 0));
        cache.drop_space(cpu, left);
        assert!((0..PAGES).all(|index| load(&cache, cpu, left, index) == [0; BYTES]));
        (0..PAGES).for_each(|index| assert_eq!(load(&cache, cpu, right, index), content(right, index, 0)));
        // The same space, as new.
        store(&cache, cpu, left, 3, 9);
        assert_eq!(load(&cache, cpu, left, 3), content(left, 3, 9));
    });
    close(&world, &cache, &[left, right], &[]);
}

#[test]
fn the_swap_file_is_not_for_others() {
    let world = world(Generation::V6_1, 1);
    let cache = cache(&world, Disk::new(0, 0), 10);
    world.on(0, |cpu| {
        let (helpers, mut byte) = (cache.helpers(), [0; 1]);
        assert_eq!(cache.write(cpu, &helpers, (SWAP, 0, 0), &byte), Err(CacheError::Range));
        assert_eq!(cache.store_mapped(cpu, &helpers, (SWAP, 0, 0), &byte), Err(CacheError::Range));
        assert_eq!(cache.read(cpu, &helpers, (SWAP, 0, 0), &mut byte), Err(CacheError::Range));
        assert_eq!(cache.load_mapped(cpu, &helpers, (SWAP, 0, 0), &mut byte), Err(CacheError::Range));
        assert_eq!(cache.truncate(cpu, SWAP, 0), Err(CacheError::Range));
        let too_long = [0; BYTES + 1];
        assert_eq!(cache.store_anon(cpu, &helpers, (SpaceId(1), 0, 0), &too_long), Err(CacheError::Range));
    });
}

struct Sink<'a, 'b>(&'a Handle<'b>, Cell<u64>);

impl Release for Sink<'_, '_> {
    unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.1.set(self.1.get() + 1);
        self.0.free(pfn, order)
    }

    fn allocator(&self) -> *const () {
        core::ptr::from_ref(self.0.allocator()).cast()
    }

    fn freed(&self) -> u64 {
        self.1.get()
    }

    fn cpu(&self) -> CpuId {
        CpuId(0)
    }
}

/// The mode of zone reclaim decides: anonymous pages are only written where both may be done.
#[test]
fn modes_are_kept() {
    let world = world(Generation::V3_0, 1);
    let cache = cache(&world, Disk::new(0, 0), PAGES);
    let space = SpaceId(1);
    world.on(0, |cpu| {
        let pages = PAGES / 2;
        (0..pages).for_each(|index| store(&cache, cpu, space, index, 0));
        let ask = |may_write, may_unmap, priority| {
            let ask = ReclaimRequest {
                by: By::Zone,
                zone: ZoneId(0),
                node: NodeId(0),
                kind: ZoneType::Normal,
                ranges: &[BASE..BASE.add(PAGES)],
                order: Order::ZERO,
                priority,
                target: 32,
                may_write,
                may_unmap,
                may_wait: true,
            };
            cache.reclaim(&ask, &Sink(cpu, Cell::new(0)))
        };
        assert_eq!(cache.zone_counts(ZoneId(0)).nr_active_anon, pages, "new pages are active");
        for (may_write, may_unmap) in [(false, false), (true, false), (false, true)] {
            let scanned: u64 = (0..4).map(|_| ask(may_write, may_unmap, 0).scanned).sum();
            assert!(scanned > 0, "in vain, but looked at");
            assert_eq!((cache.events().pswpout, cache.anon_pages()), (0, pages));
        }
        let freed: u64 = (0..4).map(|_| ask(true, true, 0).freed).sum();
        assert!(freed >= 32 && cache.events().pswpout >= freed && cache.anon_pages() == pages - freed);
        let counts = cache.reclaimable(ZoneId(0));
        assert_eq!((counts.anon_lru, counts.file_lru, counts.file_dirty), (pages - freed, 0, 0));
    });
    close(&world, &cache, &[space], &[]);

    // Without swap, they are nothing that could be reclaimed.
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        (0..100).for_each(|index| store(&cache, cpu, space, index, 0));
        assert_eq!(cache.reclaimable(ZoneId(0)).on_lists(), 0);
        cache.drop_space(cpu, space);
    });
}

/// Anonymous pages and pages of files that were freed while one kind, half of the memory, was used all the time
/// through mappings, and the other streamed by.
fn freed(anon_is_hot: bool, swappiness: u64) -> (u64, u64) {
    let (hot, stream) = (PAGES / 2, 10 * PAGES);
    let world = world(Generation::V6_1, 1);
    let swap = Swap { swappiness, ..Swap::new(SWAP, (stream + PAGES) as u32) };
    let cache = Cache::new(world.allocator(), Disk::new(0, 0)).with_swap(swap);
    let space = SpaceId(1);
    world.on(0, |cpu| {
        let (helpers, mut bytes) = (cache.helpers(), [0; BYTES]);
        let mut read = |index| cache.load_mapped(cpu, &helpers, (FileId(1), index, 0), &mut bytes).unwrap();
        if anon_is_hot {
            (0..hot).for_each(|index| store(&cache, cpu, space, index, 0));
        }
        for n in 0..stream {
            for step in 0..2 {
                let used = (2 * n + step) * 7 % hot;
                if anon_is_hot {
                    load(&cache, cpu, space, used);
                } else {
                    read(used);
                }
            }
            if anon_is_hot {
                // Not in sequence: no reading ahead.
                read(3 * n + 5);
            } else {
                store(&cache, cpu, space, n, 0);
            }
        }
    });
    let events = cache.events();
    println!("anonymous pages in use: {anon_is_hot}, swappiness {swappiness}: {events:?}");
    close(&world, &cache, &[space], &[FileId(1)]);
    (events.pgsteal_anon, events.pgsteal_file)
}

/// Reclaim frees pages without a user, as far as swappiness lets it: a new anonymous page counts as used until
/// it was looked at twice, so that files pay for a stream of them unless one says otherwise (v3.0).
#[test]
fn the_balance_goes_where_pages_are_not_used() {
    let (anon, file) = freed(true, 60);
    assert!(file > 20 * anon, "{anon} anonymous pages and {file} of files");
    let by_swappiness = [0, 60, 100, 200].map(|swappiness| freed(false, swappiness));
    assert!(
        by_swappiness.is_sorted_by_key(|&(_, file)| core::cmp::Reverse(file)),
        "files are spared more and more: {by_swappiness:?}"
    );
    assert!(by_swappiness.is_sorted_by_key(|&(anon, _)| anon), "{by_swappiness:?}");
    let (anon, file) = by_swappiness[3];
    assert!(anon > 20 * file, "{anon} anonymous pages and {file} of files");
}

/// A page that reclaim sends to a slow disk is counted when it is sent, and is the first to go when it is there.
#[test]
fn what_reclaim_sends_is_counted() {
    let world = world(Generation::V6_1, 1);
    let cache = cache(&world, Disk::new(0, 3), 4 * PAGES);
    world.on(0, |cpu| (0..2 * PAGES).for_each(|index| store(&cache, cpu, SpaceId(1), index, 0)));
    let events = cache.events();
    assert!(events.nr_vmscan_write >= events.pswpout && events.pswpout > PAGES, "{events:?}");
    assert!(events.pgrotated > events.pswpout / 2, "{events:?}");
    close(&world, &cache, &[SpaceId(1)], &[]);
}
