//! The cache over a disk in memory that fails, stalls and looks over the cache's shoulder.

mod anon;
mod crashes;
mod disk;
mod moving;
mod slab;

use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering::Relaxed;
use std::collections::HashMap;
use std::panic::catch_unwind;
use std::sync::Mutex;

use framewright::config::{Config, Experiment, Generation, ZoneReclaimMode, ZonelistCache};
use framewright::units::{Migratetype, NodeId, Order, Pfn, ZoneType};
use framewright::zone::ZoneSpec;
use framewright::{Cpu, Flags, Helpers, Request};
use framewright_check::fixture::{But, Spec, World};
use framewright_check::mix;
use framewright_check::platform::plain::Plain;
use framewright_pagecache::slot::Marks;
use framewright_pagecache::{Cache, CacheError, Completion, Device, FileId, IoError, PageSlot, Progress};

use crate::disk::{BYTES, Disk};

const PAGES: u64 = 1024;
const FILE: FileId = FileId(1);

type Kept = World<Plain, PageSlot>;
type Handle<'a> = Cpu<'a, 'a, Plain, PageSlot>;

fn world(generation: Generation, cpus: usize) -> Kept {
    world_of(Config::framewright().policies(generation), cpus)
}

fn world_of(config: Config, cpus: usize) -> Kept {
    Spec::one_zone(PAGES, cpus).config(config.with_marks()).build_with(|_| PageSlot::default())
}

/// Content that a file should have, kept apart.
#[derive(Default)]
struct Model(HashMap<(FileId, u64), [u8; BYTES]>);

impl Model {
    fn page(&mut self, file: FileId, index: u64) -> &mut [u8; BYTES] {
        self.0.entry((file, index)).or_default()
    }
}

/// Random calls on `files` files of `pages` pages each; what is read is what was written, always.
fn work(
    cache: &Cache<'_, Plain, Disk>,
    cpu: &Handle<'_>,
    model: &mut Model,
    files: &[FileId],
    pages: u64,
    steps: u64,
) {
    let helpers = cache.helpers();
    let mut seed = u64::from(files[0].0) << 32;
    let mut random = |below: u64| {
        seed += 1;
        mix(seed) % below
    };
    for _ in 0..steps {
        let file = files[random(files.len() as u64) as usize];
        let index = random(pages);
        let offset = random(BYTES as u64) as usize;
        let byte = random(256) as u8;
        match random(1000) {
            0..450 => {
                let mut bytes = [0; BYTES];
                let read = if byte.is_multiple_of(4) { Cache::load_mapped } else { Cache::read };
                match read(cache, cpu, &helpers, (file, index, 0), &mut bytes) {
                    Ok(()) => assert_eq!(bytes, *model.page(file, index), "page {index} of {file:?}"),
                    Err(error) => assert!(matches!(error, CacheError::Io(_)), "{error}"),
                }
            }
            450..700 => match cache.write(cpu, &helpers, (file, index, 0), &[byte; BYTES]) {
                Ok(()) => *model.page(file, index) = [byte; BYTES],
                Err(error) => assert!(matches!(error, CacheError::Io(_)), "{error}"),
            },
            700..900 => match cache.write(cpu, &helpers, (file, index, offset), &[byte]) {
                Ok(()) => model.page(file, index)[offset] = byte,
                Err(error) => assert!(matches!(error, CacheError::Io(_)), "{error}"),
            },
            900..997 => match cache.store_mapped(cpu, &helpers, (file, index, offset), &[byte]) {
                Ok(()) => model.page(file, index)[offset] = byte,
                Err(error) => assert!(matches!(error, CacheError::Io(_)), "{error}"),
            },
            997 => drop(cache.flush(file)),
            998 => cache.unmap(file),
            _ => {
                cache.truncate(cpu, file, pages / 2).unwrap();
                model.0.retain(|&(in_file, at), _| in_file != file || at < pages / 2);
            }
        }
    }
}

/// After a flush that succeeded, storage holds every byte.
fn close(world: &Kept, cache: &Cache<'_, Plain, Disk>, model: &Model, files: &[FileId]) {
    for &file in files {
        let flushed = (0..100).any(|_| cache.flush(file).is_ok());
        assert!(flushed, "a device that fails now and then writes it in the end");
    }
    let stored = cache.device().stored.lock().unwrap();
    for (&(file, index), bytes) in &model.0 {
        if files.contains(&file) {
            assert_eq!(stored.get(&(file, index)).copied().unwrap_or_default(), *bytes, "{file:?} {index}");
        }
    }
    drop(stored);
    cache.verify().unwrap();
    assert_eq!(world.settled().allocated, cache.pages().0, "each page is in the cache or free");
}

/// Files of 1.5, 2 and 10 times the memory, with and without failures, in both generations.
#[test]
fn nothing_is_lost_under_pressure() {
    for generation in [Generation::V3_0, Generation::V6_1] {
        for tenths in [15, 20, 100] {
            for (fails, slow) in [(0, 0), (5, 0), (0, 3), (5, 3)] {
                let world = world(generation, 1);
                let disk = Disk::new(fails, slow);
                let cache = Cache::new(world.allocator(), disk);
                let files = [FileId(1), FileId(2), FileId(3)];
                let mut model = Model::default();
                world.on(0, |cpu| work(&cache, cpu, &mut model, &files, PAGES * tenths / 30, 15_000));
                close(&world, &cache, &model, &files);
                let events = cache.events();
                assert!(events.pgpgout > 0 && world.allocator().zones()[0].events().pgsteal_direct > 0);
                assert_eq!(events.io_errors > 0, fails > 0);
            }
        }
    }
}

#[test]
fn truncate_frees_at_once() {
    let world = world(Generation::V6_1, 1);
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        for index in 0..200 {
            cache.write(cpu, &cache.helpers(), (FileId(7), index, 0), &[1; BYTES]).unwrap();
        }
        assert_eq!(cache.pages(), (200, 200));
        cache.truncate(cpu, FileId(7), 50).unwrap();
        assert_eq!(cache.pages(), (50, 50));
        let mut bytes = [9; BYTES];
        cache.read(cpu, &cache.helpers(), (FileId(7), 60, 0), &mut bytes).unwrap();
        assert_eq!(bytes, [0; BYTES], "what was cut off is gone");
    });
    cache.verify().unwrap();
}

/// What another thread reads during a cut is the old page or the new one. After it, it is the new one.
#[test]
fn what_is_read_during_a_cut_does_not_stay() {
    let world = world(Generation::V6_1, 2);
    let cache = Cache::new(world.allocator(), Disk::default());
    let file = FileId(7);
    let read = |cpu: &Handle<'_>| {
        let mut bytes = [9; BYTES];
        cache.read(cpu, &cache.helpers(), (file, 1, 0), &mut bytes).unwrap();
        bytes
    };
    world.on(0, |cpu| cache.write(cpu, &cache.helpers(), (file, 1, 0), &[1; BYTES]).unwrap());
    cache.flush(file).unwrap();
    cache.device().holds_cuts.store(true, Relaxed);
    std::thread::scope(|scope| {
        let (world, cache) = (&world, &cache);
        let cut = scope.spawn(move || world.on(1, |cpu| cache.truncate(cpu, file, 1)));
        while cache.device().cuts.load(Relaxed) == 0 {
            std::thread::yield_now();
        }
        world.on(0, |cpu| assert!([[0; BYTES], [1; BYTES]].contains(&read(cpu))));
        cache.device().holds_cuts.store(false, Relaxed);
        cut.join().unwrap().unwrap();
    });
    world.on(0, |cpu| assert_eq!(read(cpu), [0; BYTES]));
    cache.verify().unwrap();
}

/// Pages of a file that cannot be written keep no thread from writing those of others.
#[test]
fn each_dirty_page_has_its_turn() {
    let world = world(Generation::V6_1, 1);
    let disk = Disk::default();
    disk.broken.store(1, Relaxed);
    let cache = Cache::new(world.allocator(), disk);
    world.on(0, |cpu| {
        for (file, index) in [(1, 0), (1, 1), (2, 0), (3, 5)] {
            cache.write(cpu, &cache.helpers(), (FileId(file), index, 0), &[1; BYTES]).unwrap();
        }
    });
    assert_eq!([1, 1, 1, 1, 1].map(|pages| cache.write_back(pages)), [0, 0, 1, 1, 0]);
    assert_eq!((cache.pages(), cache.write_back(9)), ((4, 2), 0));
    cache.device().broken.store(0, Relaxed);
    assert_eq!((cache.write_back(9), cache.pages()), (2, (4, 0)));
}

/// Pages that are only dirty are no failure of the device, nor is that of another file one of theirs.
#[test]
fn dirty_pages_are_not_dropped() {
    let world = world(Generation::V6_1, 1);
    let disk = Disk::default();
    disk.broken.store(2, Relaxed);
    let cache = Cache::new(world.allocator(), disk);
    world.on(0, |cpu| {
        for file in [FileId(1), FileId(2)] {
            cache.write(cpu, &cache.helpers(), (file, 0, 0), &[1; BYTES]).unwrap();
            assert_eq!(cache.drop_pages(cpu, file), Err(CacheError::Dirty));
        }
        assert_eq!(cache.flush(FileId(2)), Err(CacheError::Io(IoError::UNKNOWN)));
        assert_eq!(cache.drop_pages(cpu, FileId(1)), Err(CacheError::Dirty));
        cache.flush(FileId(1)).unwrap();
        assert_eq!((cache.drop_pages(cpu, FileId(1)), cache.pages()), (Ok(()), (1, 1)));
    });
}

/// Memory that others have is no fault of a disk that once failed.
#[test]
fn an_error_of_pages_that_are_gone_explains_nothing() {
    let world = world(Generation::V6_1, 1);
    let disk = Disk::default();
    disk.broken.store(1, Relaxed);
    let cache = Cache::new(world.allocator(), disk);
    world.on(0, |cpu| {
        let write = |file| cache.write(cpu, &cache.helpers(), (FileId(file), 0, 0), &[1; BYTES]);
        let take_all = || while cpu.alloc(Order::ZERO, Migratetype::Movable).is_ok() {};
        write(1).unwrap();
        assert_eq!(cache.write_back(1), 0);
        take_all();
        assert_eq!(write(2), Err(CacheError::Io(IoError::UNKNOWN)), "a dirty page cannot go");
        cache.truncate(cpu, FileId(1), 0).unwrap();
        take_all();
        assert!(matches!(write(2), Err(CacheError::NoMemory(_))));
    });
}

/// The caller of a request that must not cause write-back holds locks that writing needs.
#[test]
fn a_request_that_must_not_write_writes_nothing() {
    for zone_reclaim in [ZoneReclaimMode::OFF, ZoneReclaimMode::ON.and(ZoneReclaimMode::WRITE)] {
        must_not_write(&world_of(Config { zone_reclaim, ..Config::framewright() }, 1));
    }
}

fn must_not_write(world: &Kept) {
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        let helpers = cache.helpers();
        for index in 0..100 {
            cache.write(cpu, &helpers, (FileId(1), index, 0), &[1; BYTES]).unwrap();
        }
        while cpu.alloc(Order::ZERO, Migratetype::Movable).is_ok() {}
        let request = Request::new(Order::ZERO, Migratetype::Movable);
        let block = cpu.alloc_with(&request.with(Flags::NO_WRITE), &helpers);
        assert_eq!((cache.events().pgpgout, cache.pages(), block.is_err()), (0, (100, 100), true));
        assert!(cache.write_in_background() > 0, "but who may write is asked to");
        cpu.alloc_with(&request, &helpers).unwrap();
    });
}

/// No byte makes no file longer, and takes no memory.
#[test]
fn nothing_written_changes_nothing() {
    let world = world(Generation::V6_1, 1);
    let cache = Cache::new(world.allocator(), Disk::default());
    for write in [Cache::write, Cache::store_mapped] {
        for (offset, written) in [(0, Ok(())), (BYTES, Ok(())), (BYTES + 1, Err(CacheError::Range))] {
            let at = (FileId(1), 9, offset);
            assert_eq!(world.on(0, |cpu| write(&cache, cpu, &cache.helpers(), at, &[])), written);
        }
    }
    assert_eq!(cache.pages(), (0, 0));
}

#[test]
fn reading_in_sequence_reads_ahead() {
    let world = world(Generation::V6_1, 1);
    let cache = Cache::new(world.allocator(), Disk::default());
    world.on(0, |cpu| {
        let mut bytes = [0; 1];
        for index in 0..256 {
            cache.read(cpu, &cache.helpers(), (FileId(1), index, 0), &mut bytes).unwrap();
        }
        let ahead = cache.events();
        assert!(ahead.read_ahead >= 255, "{ahead:?}");
        assert_eq!((ahead.cache_hits, ahead.cache_misses), (255, 1), "only the first was waited for");
        for n in 0..100 {
            cache.read(cpu, &cache.helpers(), (FileId(2), mix(n) % 1_000_000 + 1, 0), &mut bytes).unwrap();
        }
        assert_eq!(cache.events().read_ahead, ahead.read_ahead, "no guess at random");
    });
    let mut nothing = [0; BYTES + 1];
    let read = world.on(0, |cpu| cache.read(cpu, &cache.helpers(), (FileId(1), 0, 0), &mut nothing));
    assert_eq!(read, Err(CacheError::Range));
}

/// Pages in use survive a stream ten times the memory.
#[test]
fn a_stream_does_not_push_out_what_is_used() {
    let world = world(Generation::V6_1, 1);
    let cache = Cache::new(world.allocator(), Disk::default());
    let hot = PAGES / 8;
    world.on(0, |cpu| {
        let mut byte = [0; 1];
        let mut read = |file, index| {
            let before = cache.events().cache_misses;
            cache.read(cpu, &cache.helpers(), (FileId(file), index, 0), &mut byte).unwrap();
            cache.events().cache_misses - before
        };
        for n in 0..3 * hot {
            read(1, (n * 7) % hot);
        }
        let mut missed = 0;
        for n in 0..10 * PAGES {
            read(2, 3 * n + 5);
            if n.is_multiple_of(4) {
                missed += read(1, (n / 4 * 7) % hot);
            }
        }
        assert!(missed * 10 < 10 * PAGES / 4, "{missed} of {} were pushed out", 10 * PAGES / 4);
    });
    assert!(cache.events().pgactivate > 0);
    cache.verify().unwrap();
}

/// Two nodes 40 apart, all on node 0's CPU, zone reclaim on: the machine of the 2011 study, on which the zone that
/// requests prefer was a sixth of the memory, and could be all dirty before a thread had to wait.
fn two_nodes(rule: ZonelistCache) -> Kept {
    let zone = |node: u16| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start: Pfn(0x1000 + u64::from(node) * PAGES),
        pages: if node == 0 { PAGES } else { 5 * PAGES },
    };
    let config = Config {
        zone_reclaim: ZoneReclaimMode::ON,
        experiment: Experiment { zonelist_cache: rule, ..Config::linux_v3_0().experiment },
        ..Config::linux_v3_0()
    };
    Spec::zones([zone(0), zone(1)], 1)
        .distances([10, 40, 40, 10])
        .config(config)
        .build_with(|_| PageSlot::default())
}

/// A device that says what it likes of writes; and where the last page was that bytes were copied into.
#[derive(Default)]
struct Liar {
    says: Mutex<Option<Pfn>>,
    last: Mutex<Pfn>,
}

impl Device for Liar {
    fn page_bytes(&self) -> usize {
        BYTES
    }

    fn read(&self, _: FileId, _: u64, _: Pfn) -> Result<(), IoError> {
        Ok(())
    }

    fn write(&self, _: FileId, _: u64, _: Pfn) -> Result<Progress, IoError> {
        Ok(Progress::Begun)
    }

    fn completed(&self) -> Option<Completion> {
        let pfn = self.says.lock().unwrap().take()?;
        Some(Completion { file: FILE, index: 0, pfn, result: Ok(()) })
    }

    fn truncate(&self, _: FileId, _: u64) -> Result<(), IoError> {
        Ok(())
    }

    fn copy_in(&self, pfn: Pfn, _: usize, _: &[u8]) {
        *self.last.lock().unwrap() = pfn;
    }

    fn copy_out(&self, _: Pfn, _: usize, _: &mut [u8]) {}

    fn clear(&self, _: Pfn) {}
}

/// A device is safe code, and the slot of a frame that is not the cache's is its owner's.
#[test]
fn the_end_of_a_write_that_was_not_begun_is_refused() {
    const BEGUN: PageSlot =
        PageSlot { index: 0, number: FILE.0, next: 0, prev: 0, marks: Marks::WRITEBACK, users: 1 };
    let world = Spec::one_zone(PAGES, 1).build_with::<Plain, _>(|_| BEGUN);
    let (pin, allocator) = (world.pin(0), world.allocator());
    let (cpu, cache) = (world.cpu(&pin), Cache::new(allocator, Liar::default()));
    let foreign = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    cache.write(&cpu, &cache.helpers(), (FILE, 0, 0), &[1; BYTES]).unwrap();
    let page = *cache.device().last.lock().unwrap();
    let says = |pfn| {
        *cache.device().says.lock().unwrap() = Some(pfn);
        catch_unwind(AssertUnwindSafe(|| cache.poll())).is_ok()
    };
    assert_eq!([foreign, page, Pfn(1 << 40)].map(says), [false; 3]);
    // SAFETY: the block is this function's.
    assert_eq!(unsafe { allocator.frames().with_user(foreign, |slot| *slot) }, Some(BEGUN));
    assert_eq!(cache.write_back(1), 1);
    assert_eq!([says(page), says(page)], [true, false], "it ends once");
    cache.verify().unwrap();
}

/// Zone-reclaim scans per block taken, for a workload under a rule, on a disk that is slow to write: pages
/// being written are on the lists, not dirty any more, and cannot be freed.
fn scans(
    rule: ZonelistCache,
    slow: u64,
    work: impl Fn(&Cache<'_, Plain, Disk>, &Handle<'_>, &Helpers<'_>),
) -> f64 {
    let world = two_nodes(rule);
    let disk = Disk::new(0, slow);
    let cache = Cache::new(world.allocator(), disk);
    world.on(0, |cpu| work(&cache, cpu, &cache.helpers()));
    cache.verify().unwrap();
    let events = world.allocator().node_totals();
    let taken = events.numa_hit + events.numa_miss;
    println!(
        "{rule:?}: {} scans, {} failed, {taken} blocks, {} direct, {} skipped",
        events.zone_reclaim_scans, events.zone_reclaim_failed, events.allocstall, events.zlc_skipped
    );
    events.zone_reclaim_scans as f64 / taken as f64
}

/// The effect that the 2011 change was made for, on two workloads that overflow the local node while its pages
/// are being written: files that are deleted before long, and a copy that is written in one go.
#[test]
fn zlc_first_scans_less() {
    let write = |cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>, helpers: &Helpers<'_>, file, pages| {
        for index in 0..pages {
            cache.write(cpu, helpers, (FileId(file), index, 0), &[1; BYTES]).unwrap();
        }
    };
    let files = |cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>, helpers: &Helpers<'_>| {
        for round in 0..10 {
            for file in 0..14_u32 {
                write(cache, cpu, helpers, 100 * round + file, 128);
                cache.write_back(128);
            }
            (0..14).for_each(|file| cache.truncate(cpu, FileId(100 * round + file), 0).unwrap());
        }
    };
    let copy = |cache: &Cache<'_, Plain, Disk>, cpu: &Handle<'_>, helpers: &Helpers<'_>| {
        for piece in 0..60 {
            write(cache, cpu, helpers, piece, 32);
            cache.write_back(32);
        }
    };
    let before = ZonelistCache::AfterFirstZone;
    let after = ZonelistCache::BeforeFirstZone;
    for (name, before, after) in [
        ("files", scans(before, 50, files), scans(after, 50, files)),
        ("copy", scans(before, 50, copy), scans(after, 50, copy)),
    ] {
        println!("{name}: {before:.4} scans per block before, {after:.4} after");
        assert!(before > 2.0 * after, "{name}: {before} and {after}");
    }
}
