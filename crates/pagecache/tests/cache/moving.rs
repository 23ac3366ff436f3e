//! Pages that move: what they hold, where they are on their lists, and which ones stay.

use core::sync::atomic::Ordering::Relaxed;

use framewright::Request;
use framewright::config::{Config, Generation};
use framewright::reclaim::{Migrate, Migrated};
use framewright::units::ZoneType;
use framewright::units::{
    MAX_ORDER, Migratetype, NodeId, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId,
};
use framewright::zone::ZoneSpec;
use framewright_check::fixture::{BASE, Spec};
use framewright_check::mix;
use framewright_check::platform::plain::Plain;
use framewright_pagecache::{Cache, FileId, PageSlot, SpaceId, Swap};

use crate::disk::{BYTES, Disk};
use crate::{Handle, Kept, Model, PAGES, close, work, world};

const KEPT: FileId = FileId(1);
const CUT: FileId = FileId(2);
const PAGEBLOCKS: u64 = 16;

fn large(cpus: usize) -> Kept {
    let config = Config::framewright().with_marks();
    let spec = Spec::one_zone(PAGEBLOCKS * PAGEBLOCK_PAGES, cpus).config(config);
    spec.build_with(|_| PageSlot::default())
}

fn content(index: u64) -> [u8; BYTES] {
    core::array::from_fn(|n| (index >> (8 * (n % 2))) as u8 ^ n as u8)
}

/// Writes `pages` pages of [`KEPT`] with seven of [`CUT`] behind each, which are dropped then.
fn scatter(cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>, pages: u64) {
    let write = |file, index| cache.write(cpu, &cache.helpers(), (file, index, 0), &content(index)).unwrap();
    for index in 0..pages {
        write(KEPT, index);
        (7 * index..7 * index + 7).for_each(|index| write(CUT, index));
    }
    cache.flush(KEPT).unwrap();
    cache.truncate(cpu, CUT, 0).unwrap();
    cpu.drain();
}

fn read(cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>, index: u64) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    // As through a mapping: a read would read ahead.
    cache.load_mapped(cpu, &cache.helpers(), (KEPT, index, 0), &mut bytes).unwrap();
    bytes
}

/// Has a page moved to a block that the test has.
fn migrate(cache: &Cache<'_, Plain, Disk>, from: Pfn, to: Pfn, order: Order) -> Migrated {
    // SAFETY: each test passes a block that it has allocated for this.
    unsafe { cache.migrate(from, to, order) }
}

/// Free memory in huge pages, in percent.
fn huge_percent(world: &Kept) -> u64 {
    let allocator = world.allocator();
    allocator.free_blocks(PAGEBLOCK_ORDER) * PAGEBLOCK_PAGES * 100 / allocator.free_pages()
}

/// Rounds of background compaction until one moves nothing. Returns the pages moved.
fn rounds(cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>) -> u64 {
    let round = || cpu.compact_proactively(NodeId(0), cache).moved;
    core::iter::from_fn(|| Some(round()).filter(|&moved| moved > 0)).sum()
}

#[test]
fn rounds_make_huge_pages_and_change_nothing() {
    let world = large(1);
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        scatter(&cache, cpu, 900);
        let before = huge_percent(&world);
        let moved = rounds(&cache, cpu);
        cache.verify().unwrap();
        assert!(moved > 300 && huge_percent(&world) >= 90.max(before + 30), "{before}, {moved} moved");
        assert_eq!(world.settled().allocated, 900);
        let misses = cache.events().cache_misses;
        (0..900).for_each(|index| assert_eq!(read(&cache, cpu, index), content(index)));
        assert_eq!(cache.events().cache_misses, misses, "each is where the cache looks for it");
        // The whole of it in one range, with the pages that are there moved away.
        assert!(cpu.alloc(MAX_ORDER, Migratetype::Movable).is_ok());
    });
}

/// A request for a large block has pages of the cache moved, and so has one for given frames.
#[test]
fn large_blocks_and_given_frames_are_made_of_the_caches() {
    let world = large(1);
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        scatter(&cache, cpu, 900);
        let helpers = cache.helpers();
        let ranges =
            (0..PAGEBLOCKS).map(|n| BASE.add(n * PAGEBLOCK_PAGES)..BASE.add((n + 1) * PAGEBLOCK_PAGES));
        let range = ranges.max_by_key(|range| movable(&cache, range.clone())).unwrap();
        assert!(movable(&cache, range.clone()) > 32, "the page cache is everywhere");
        cpu.alloc_contig_range(range, &helpers).unwrap();
        cache.verify().unwrap();
        let request = Request::new(MAX_ORDER, Migratetype::Movable);
        let largest = core::iter::from_fn(|| cpu.alloc_with(&request, &helpers).ok()).count();
        assert!(largest >= 5, "{largest} blocks of 1,024 pages, where 6,700 pages are free");
        cache.verify().unwrap();
        (0..900).for_each(|index| assert_eq!(read(&cache, cpu, index), content(index)));
    });
}

fn movable(cache: &Cache<'_, Plain, Disk>, range: core::ops::Range<Pfn>) -> usize {
    let can = |&n: &u64| cache.can_move(Pfn(n), Order::ZERO, Migratetype::Movable);
    (range.start.0..range.end.0).filter(can).count()
}

/// Reclaim frees the pages that were used longest ago, wherever they are.
#[test]
fn pages_keep_their_places_on_the_lists() {
    let world = large(1);
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        scatter(&cache, cpu, 900);
        assert!(rounds(&cache, cpu) > 300);
        let page = Request::new(Order::ZERO, Migratetype::Movable);
        let mut taken = Vec::new();
        while cache.pages().0 > 500 {
            taken.push(cpu.alloc_with(&page, &cache.helpers()).unwrap());
        }
        taken.into_iter().for_each(|pfn| cpu.free(pfn, Order::ZERO).unwrap());
        let left = cache.pages().0;
        let cached: Vec<bool> = (0..900)
            .map(|index| {
                let misses = cache.events().cache_misses;
                read(&cache, cpu, index);
                cache.events().cache_misses == misses
            })
            .collect();
        assert!(cached.is_sorted(), "the first that were written went first");
        assert_eq!(cached.iter().filter(|&&is_cached| is_cached).count() as u64, left);
    });
}

/// Another zone, with lists and counts of its own, has room for them.
#[test]
fn pages_move_to_another_zone() {
    let zone = |kind, n: u64| ZoneSpec { node: NodeId(0), kind, start: BASE.add(n * PAGES), pages: PAGES };
    let spec = Spec::zones([zone(ZoneType::Dma32, 0), zone(ZoneType::Normal, 1)], 1);
    let world: Kept = spec.build_with(|_| PageSlot::default());
    let swap = Swap::new(FileId(1000), 64);
    let cache = Cache::new(world.allocator(), Disk::default()).with_swap(swap);
    world.on(0, |cpu| {
        let helpers = cache.helpers();
        for index in 0..PAGES {
            let write = if index % 3 == 0 { Cache::store_mapped } else { Cache::write };
            if index % 2 == 0 {
                write(&cache, cpu, &helpers, (KEPT, index, 0), &content(index)).unwrap();
            } else {
                cache.store_anon(cpu, &helpers, (SpaceId(1), index, 0), &content(index)).unwrap();
            }
            if index == PAGES / 4 {
                cache.flush(KEPT).unwrap();
            }
        }
        cache.verify().unwrap();
        let counts = |zone| cache.zone_counts(ZoneId(zone));
        let pages = |zone| counts(zone).nr_file_pages + counts(zone).nr_anon_pages;
        let before = pages(1);
        assert!(before > PAGEBLOCK_PAGES && pages(0) < PAGEBLOCK_PAGES);
        let start = BASE.add(PAGES);
        let there = movable(&cache, start..start.add(PAGEBLOCK_PAGES)) as u64;
        assert!(there > PAGES - before, "there is no room for them in their zone");
        cpu.alloc_contig_range(start..start.add(PAGEBLOCK_PAGES), &helpers).unwrap();
        assert!(pages(1) < before && counts(0).nr_dirty > 0 && counts(0).nr_mapped > 0, "{:?}", counts(0));
        cache.verify().unwrap();
        let mut bytes = [0; BYTES];
        for index in 0..PAGES {
            if index % 2 == 0 {
                cache.read(cpu, &helpers, (KEPT, index, 0), &mut bytes).unwrap();
            } else {
                cache.load_anon(cpu, &helpers, (SpaceId(1), index, 0), &mut bytes).unwrap();
            }
            assert_eq!(bytes, content(index));
        }
    });
}

/// Random calls with rounds between them: what is read and what is stored is what was written. The cache's pages are
/// where blocks of others have left room, some of which stay for a while.
#[test]
fn contents_stay_through_random_calls_and_rounds() {
    for (fails, slow) in [(0, 0), (5, 3)] {
        let world = large(1);
        let cache = Cache::new(world.allocator(), Disk::new(fails, slow));
        let mut model = Model::default();
        let files: Vec<FileId> = (10..30).map(FileId).collect();
        let mut moved = 0;
        world.on(0, |cpu| {
            for (part, file) in files.chunks(1).enumerate() {
                let page = || cpu.alloc(Order::ZERO, Migratetype::Movable).ok();
                let others: Vec<Pfn> = core::iter::from_fn(page).take(4000).collect();
                let (stay, go): (Vec<Pfn>, Vec<Pfn>) =
                    others.into_iter().partition(|pfn| mix(pfn.0).is_multiple_of(4));
                go.into_iter().for_each(|pfn| cpu.free(pfn, Order::ZERO).unwrap());
                work(&cache, cpu, &mut model, file, 200, 700);
                if part % 2 == 0 {
                    moved += cpu.compact_proactively(NodeId(0), &cache).moved;
                }
                stay.into_iter().for_each(|pfn| cpu.free(pfn, Order::ZERO).unwrap());
                cpu.drain();
                moved += cpu.compact_proactively(NodeId(0), &cache).moved;
                if part % 5 == 4 {
                    moved += cpu.compact(ZoneId(0), &cache).moved;
                }
                cache.verify().unwrap();
            }
        });
        assert!(moved > 500, "{moved} pages moved");
        close(&world, &cache, &model, &files);
    }
}

#[test]
fn pages_in_use_or_being_written_stay_and_so_do_those_of_others() {
    let world = world(Generation::V6_1, 2);
    let disk = Disk::new(0, 1);
    disk.holds_reads.store(true, Relaxed);
    let cache = Cache::new(world.allocator(), disk);
    let all = || BASE.0..BASE.0 + PAGES;
    let none_moves = |cpu: &Handle<'_>| {
        let to = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
        let moves = |n: u64| {
            cache.can_move(Pfn(n), Order::ZERO, Migratetype::Movable)
                || migrate(&cache, Pfn(n), to, Order::ZERO) == Migrated::Moved
        };
        assert!(!all().any(moves));
        cpu.free(to, Order::ZERO).unwrap();
    };
    std::thread::scope(|scope| {
        let (world, cache) = (&world, &cache);
        // A page that is being read has a frame already.
        let reader = scope.spawn(move || world.on(1, |cpu| read(cache, cpu, 0)));
        while cache.device().reads.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        world.on(0, |cpu| none_moves(cpu));
        cache.device().holds_reads.store(false, Relaxed);
        assert_eq!(reader.join().unwrap(), [0; BYTES]);
    });
    world.on(0, |cpu| {
        assert_eq!(all().filter(|&n| cache.can_move(Pfn(n), Order::ZERO, Migratetype::Movable)).count(), 1);
        cache.write(cpu, &cache.helpers(), (KEPT, 0, 0), &content(0)).unwrap();
        assert_eq!(cache.write_back(1), 1);
        none_moves(cpu);
        while cache.pages_in_writeback() > 0 {
            cache.poll();
        }
        let page =
            all().map(Pfn).find(|&pfn| cache.can_move(pfn, Order::ZERO, Migratetype::Movable)).unwrap();
        // A block of another size, even where the first frame is the cache's.
        let two = cpu.alloc(Order::new(1).unwrap(), Migratetype::Movable).unwrap();
        assert!(!cache.can_move(page, Order::new(1).unwrap(), Migratetype::Movable));
        assert_eq!(migrate(&cache, page, two, Order::new(1).unwrap()), Migrated::Stays);
        assert_eq!(migrate(&cache, Pfn(0), two, Order::ZERO), Migrated::Stays, "a frame before all memory");
        assert_eq!(migrate(&cache, Pfn(u64::MAX), two, Order::ZERO), Migrated::Stays);
        cache.truncate(cpu, KEPT, 0).unwrap();
        none_moves(cpu);
    });
}

/// A flush that comes upon a page that is just moving writes it from where it is then.
#[test]
fn a_flush_writes_a_page_that_moves_meanwhile() {
    let world = world(Generation::V6_1, 2);
    let cache = Cache::new(world.allocator(), Disk::default());
    let (page, to) = world.on(0, |cpu| {
        cache.write(cpu, &cache.helpers(), (KEPT, 0, 0), &content(7)).unwrap();
        let mut frames = (BASE.0..BASE.0 + PAGES).map(Pfn);
        let page = frames.find(|&pfn| cache.can_move(pfn, Order::ZERO, Migratetype::Movable)).unwrap();
        (page, cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap())
    });
    let disk = cache.device();
    disk.holds_copies.store(true, Relaxed);
    std::thread::scope(|scope| {
        let cache = &cache;
        let mover = scope.spawn(move || migrate(cache, page, to, Order::ZERO));
        while disk.copies.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        assert!(!cache.can_move(page, Order::ZERO, Migratetype::Movable), "it moves already");
        assert_eq!(migrate(cache, page, to, Order::ZERO), Migrated::Stays);
        let flusher = scope.spawn(move || cache.flush(KEPT));
        while disk.waits.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        disk.holds_copies.store(false, Relaxed);
        assert_eq!((mover.join().unwrap(), flusher.join().unwrap()), (Migrated::Moved, Ok(())));
    });
    assert_eq!(disk.stored.lock().unwrap()[&(KEPT, 0)], content(7), "what the flush has promised");
    world.on(0, |cpu| {
        cpu.free(page, Order::ZERO).unwrap();
        assert_eq!(read(&cache, cpu, 0), content(7));
    });
    cache.verify().unwrap();
}
