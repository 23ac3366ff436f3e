//! The page cache on real files, under pressure: what was written and flushed is there, byte for byte.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use framewright_host::framewright::config::{Experiment, ZoneReclaimMode, ZonelistCache};
use framewright_host::framewright::units::PAGEBLOCK_ORDER;
use framewright_host::pagecache::program::Program;
use framewright_host::program;
use framewright_host::{
    Arena, CacheError, Config, FileCache, FileId, Migratetype, NodeId, Order, PAGE_BYTES, PageSlot,
};

use crate::common::insist;

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of the arena.
const MEMORY: u64 = 512;

/// A folder of this test's own beside the build's other files, which are on a real file system.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("files-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, n: u64) -> PathBuf {
        self.0.join(format!("file-{n}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn arena(cpus: usize) -> Arena<PageSlot> {
    let config = Config::framewright().with_marks();
    Arena::builder().pages(MEMORY).cpus(cpus).config(config).background().build().unwrap()
}

/// Content of page `index` of a file after its `version`th write.
fn content(file: u64, index: u64, version: u64) -> Vec<u8> {
    let seed = file << 40 ^ index << 8 ^ version;
    (0..PAGE).map(|n| (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 57)) as u8 ^ n as u8).collect()
}

/// Three threads write files of 1.5, 2 and 10 times the memory together, some of it twice, and read it back;
/// without faults, and with five in a hundred reads and writes failing. Then the files are read by other means.
#[test]
fn what_was_flushed_is_there() {
    for (tenths, faults) in [(15, 0), (20, 50), (100, 0), (100, 50)] {
        let (folder, arena) = (Folder::new(), arena(3));
        let files = FileCache::new(&arena);
        files.inject_faults(faults);
        let pages = MEMORY * tenths / 30;
        thread::scope(|scope| {
            let (arena, files, folder) = (&arena, &files, &folder);
            let keeper = scope.spawn(move || files.run_background(NodeId(0)).unwrap());
            let workers: Vec<_> =
                (0..3).map(|n| scope.spawn(move || write_and_read(arena, files, folder, n, pages))).collect();
            let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
            arena.stop_background();
            keeper.join().unwrap();
            results.into_iter().for_each(|result| result.unwrap());
        });
        files.verify().unwrap();
        assert_eq!(arena.allocator().verify().unwrap().allocated, files.pages().0);
        for n in 0..3 {
            let bytes = std::fs::read(folder.file(n)).unwrap();
            assert_eq!(bytes.len() as u64, pages * PAGE - 100, "the length is the file's, not the pages'");
            for (index, page) in bytes.chunks(PAGE_BYTES).enumerate() {
                let index = index as u64;
                let expected = content(n, index, index % 3);
                assert!(page == &expected[..page.len()], "file {n} page {index}");
            }
        }
        let events = files.events();
        println!("{tenths} tenths, {faults} faults: {events:?}");
        assert_eq!(events.io_errors > 0, faults > 0);
        assert!(
            events.pgpgout > 0 && arena.allocator().vmstat().to_string().contains("pgsteal_direct_normal")
        );
    }
}

/// Pages of files that are scattered over everything move together in the background, and hold what they held; also
/// while others read and write them.
#[test]
fn pages_of_files_move_in_the_background() {
    let folder = Folder::new();
    let arena: Arena<PageSlot> = Arena::builder().pages(16 << 9).cpus(3).background().build().unwrap();
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let [kept, cut] = [0, 1].map(|n| files.open(&folder.file(n)).unwrap());
    for index in 0..900 {
        files.write(&cpu, kept, index * PAGE, &content(0, index, 0)).unwrap();
        (7 * index..7 * index + 7).for_each(|index| files.write(&cpu, cut, index * PAGE, &[1]).unwrap());
    }
    files.write_back().unwrap();
    files.truncate(&cpu, cut, 0).unwrap();
    cpu.drain();
    let huge = || arena.allocator().free_blocks(PAGEBLOCK_ORDER);
    let before = huge();
    thread::scope(|scope| {
        let (arena, files) = (&arena, &files);
        let keeper = scope.spawn(move || files.run_background(NodeId(0)).unwrap());
        // 7,292 pages are free: 14 huge pages and a little.
        while huge() < 13 {
            thread::yield_now();
        }
        let workers: Vec<_> = (0..2)
            .map(|n| {
                scope.spawn(move || {
                    let cpu = arena.attach().unwrap();
                    let mut bytes = vec![0; PAGE_BYTES];
                    for version in 0..4 {
                        for index in (n..900).step_by(2) {
                            files.read(&cpu, kept, index * PAGE, &mut bytes).unwrap();
                            assert!(bytes == content(0, index, version), "page {index}");
                            files.write(&cpu, kept, index * PAGE, &content(0, index, version + 1)).unwrap();
                            // All of its pages, while others use them.
                            if index % 100 == n {
                                cpu.compact_proactively_with(NodeId(0), files);
                            }
                        }
                    }
                })
            })
            .collect();
        let results: Vec<_> = workers.into_iter().map(thread::ScopedJoinHandle::join).collect();
        arena.stop_background();
        keeper.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    assert!(before < 10 && arena.allocator().node_totals().pgmigrate_success > 300);
    files.flush(kept).unwrap();
    files.verify().unwrap();
    let stored = std::fs::read(folder.file(0)).unwrap();
    for (index, page) in (0..).zip(stored.chunks(PAGE_BYTES)) {
        assert!(page == content(0, index, 4), "page {index} is not what was written last");
    }
}

fn write_and_read(arena: &Arena<PageSlot>, files: &FileCache<'_>, folder: &Folder, n: u64, pages: u64) {
    let cpu = arena.attach().unwrap();
    let file: FileId = files.open(&folder.file(n)).unwrap();
    // The last page is not full.
    let part = |index| if index + 1 == pages { PAGE_BYTES - 100 } else { PAGE_BYTES };
    for version in 0..3 {
        // A third is written once, a third twice, a third three times, through mappings the last time.
        for index in (0..pages).filter(|index| index % 3 >= version) {
            let bytes = content(n, index, version);
            let bytes = &bytes[..part(index)];
            insist(|| match version {
                2 => files.store_mapped(&cpu, file, index * PAGE, bytes),
                _ => files.write(&cpu, file, index * PAGE, bytes),
            });
        }
    }
    let mut bytes = vec![0; PAGE_BYTES];
    for index in 0..pages {
        let len = insist(|| files.read(&cpu, file, index * PAGE, &mut bytes));
        assert_eq!(len, part(index));
        assert!(bytes[..len] == content(n, index, index % 3)[..len], "file {n} page {index}");
    }
    insist(|| files.flush(file));
}

#[test]
fn a_closed_file_has_no_pages() {
    let (folder, arena) = (Folder::new(), arena(1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let first = files.open(&folder.file(1)).unwrap();
    files.write(&cpu, first, 10, b"across").unwrap();
    files.write(&cpu, first, 2 * PAGE - 3, b"a border").unwrap();
    assert_eq!(files.len(first).unwrap(), 2 * PAGE + 5);
    files.close(&cpu, first).unwrap();
    assert_eq!(files.pages(), (0, 0));
    assert_eq!(files.read(&cpu, first, 0, &mut [0; 4]), Err(CacheError::Closed), "it is closed");
    let again = files.open(&folder.file(1)).unwrap();
    let mut bytes = [0; 8];
    assert_eq!(files.read(&cpu, again, 2 * PAGE - 3, &mut bytes), Ok(8));
    assert_eq!(&bytes, b"a border");
    assert_eq!(files.read(&cpu, again, 2 * PAGE + 1, &mut bytes), Ok(4), "up to the end");
    files.write(&cpu, again, 0, b"never flushed").unwrap();
    files.forget(&cpu, again);
    assert_eq!(files.pages(), (0, 0));
    drop(cpu);
    assert_eq!(arena.allocator().verify().unwrap().allocated, 0);
}

#[test]
fn truncate_cuts_the_file() {
    let (folder, arena) = (Folder::new(), arena(1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let file = files.open(&folder.file(1)).unwrap();
    files.write(&cpu, file, 0, &[7; 5 * PAGE_BYTES]).unwrap();
    files.truncate(&cpu, file, 2).unwrap();
    assert_eq!((files.len(file), files.pages().0), (Ok(2 * PAGE), 2));
    files.flush(file).unwrap();
    assert_eq!(std::fs::metadata(folder.file(1)).unwrap().len(), 2 * PAGE);
}

/// Storage's and the threads' bad days.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// Number of a thousand reads and writes that fail.
    faults: u64,
    /// How many take long.
    delayed: u64,
    /// A background thread does nothing for so long when it is first asked to.
    stall: Duration,
}

const NONE: Trouble = Trouble { faults: 0, delayed: 0, stall: Duration::ZERO };

/// Pages of memory for programs: each of two nodes has at least a largest block.
const TWO_NODES: u64 = 2048;

/// A program ends, every file holds what was written to it, and all pages are accounted for. It checks the files
/// itself: see `Program`.
fn ends(program: Program, rule: ZonelistCache, trouble: Trouble) {
    let config = Config {
        zone_reclaim: ZoneReclaimMode::ON,
        experiment: Experiment { zonelist_cache: rule, ..Config::linux_v3_0().experiment },
        ..Config::linux_v3_0()
    };
    let builder = Arena::builder().pages(TWO_NODES).cpus(8).nodes(2).config(config).background();
    let arena: Arena<PageSlot> = builder.build().unwrap();
    let files = FileCache::new(&arena);
    files.inject_faults(trouble.faults);
    files.inject_delays(trouble.delayed, Duration::from_millis(2));
    files.stall_background(trouble.stall);
    let parent = Folder::new();
    let folder = program::Folder::new(&parent.0).unwrap();
    let done = program::run(&program, &files, &arena, &folder).unwrap();
    assert_eq!(done.stretches.len() as u32, program.tasks());
    assert_eq!(std::fs::read_dir(&parent.0).unwrap().count(), 0, "its files have no names");
    files.verify().unwrap();
    assert_eq!(files.pages(), (0, 0), "all files are deleted");
    assert_eq!(arena.allocator().verify().unwrap().allocated, 0);
    let events = files.events();
    assert_eq!(events.io_errors > 0, trouble.faults > 0);
    let scanned: u64 = arena
        .allocator()
        .zones()
        .iter()
        .map(|zone| zone.events().pgscan_direct + zone.events().pgscan_kswapd)
        .sum();
    assert!(scanned > 0, "{program:?} was not under pressure");
    println!("{program:?} {rule:?} {trouble:?}: {} ms", done.elapsed_ns / 1_000_000);
}

/// A program of some tenths of the memory, under each trouble and each setting of the zonelist cache.
fn ends_whatever_happens(program: impl Fn(u64) -> Program) {
    use ZonelistCache::{AfterFirstZone, BeforeFirstZone, BeforeFirstZoneAndClear};
    ends(program(15), AfterFirstZone, Trouble { stall: Duration::from_secs(1), ..NONE });
    ends(program(20), BeforeFirstZone, Trouble { faults: 50, ..NONE });
    ends(program(20), BeforeFirstZoneAndClear, Trouble { delayed: 50, ..NONE });
    ends(program(100), AfterFirstZone, Trouble { faults: 50, ..NONE });
}

/// On a full disk each program ends with what the disk says, and leaves nothing there.
#[test]
fn programs_end_on_a_full_disk() {
    let config = Config { zone_reclaim: ZoneReclaimMode::ON, ..Config::linux_v3_0() };
    for program in [
        Program::fs_mark(TWO_NODES * PAGE, 4, 2),
        Program::large_dd(TWO_NODES * PAGE),
        Program::mapped_writer(TWO_NODES * PAGE, PAGE, 4, 20),
    ] {
        let builder = Arena::builder().pages(TWO_NODES).cpus(8).nodes(2).config(config).background();
        let arena: Arena<PageSlot> = builder.build().unwrap();
        let files = FileCache::new(&arena);
        files.inject_full(2 * PAGE);
        // Slow enough that something is always on its way to it.
        files.limit_storage(8 << 20);
        let parent = Folder::new();
        let folder = program::Folder::new(&parent.0).unwrap();
        let failed = program::run(&program, &files, &arena, &folder).unwrap_err();
        assert_eq!(failed.to_string(), "no space is left on the device", "{program:?}");
        assert_eq!(std::fs::read_dir(&parent.0).unwrap().count(), 0);
    }
}

#[test]
fn fs_mark_ends() {
    ends_whatever_happens(|tenths| {
        let file_bytes = 32 * PAGE;
        let files = (TWO_NODES * tenths / 10 / 32 / 4) as u32;
        Program::FsMark { tasks: 4, loops: 1, files, file_bytes, write_bytes: 4 * PAGE }
    });
}

#[test]
fn large_dd_ends() {
    ends_whatever_happens(|tenths| Program::LargeDd {
        bytes: TWO_NODES / 16 * PAGE,
        copies: (16 * tenths / 10) as u32 - 1,
        block_bytes: 512,
    });
}

#[test]
fn the_mapped_writer_ends() {
    ends_whatever_happens(|tenths| Program::mapped_writer(TWO_NODES * PAGE, PAGE, 4, tenths));
}

/// A frame's number means something in its own arena only: with a CPU of another one, the cache would write to, and
/// free, other people's blocks.
#[test]
fn a_cpu_of_another_arena_is_refused() {
    let (folder, mine, foreign_arena) = (Folder::new(), arena(1), arena(1));
    let files = FileCache::new(&mine);
    let file = files.open(&folder.file(1)).unwrap();
    let (cpu, foreign) = (mine.attach().unwrap(), foreign_arena.attach().unwrap());
    files.write(&cpu, file, 0, b"mine").unwrap();
    let space = files.make_space();
    let mut byte = [0];
    let calls: [&mut dyn FnMut(); 7] = [
        &mut || {
            let _ = files.write(&foreign, file, PAGE, b"x");
        },
        &mut || {
            let _ = files.read(&foreign, file, 0, &mut byte);
        },
        &mut || {
            let _ = files.store_mapped(&foreign, file, 0, b"x");
        },
        &mut || {
            let _ = files.truncate(&foreign, file, 0);
        },
        &mut || {
            let _ = files.store_anon(&foreign, space, 0, b"x");
        },
        &mut || files.drop_space(&foreign, space),
        &mut || files.forget(&foreign, file),
    ];
    for (n, call) in calls.into_iter().enumerate() {
        let refused = std::panic::catch_unwind(core::panic::AssertUnwindSafe(call));
        assert!(refused.is_err(), "call {n} took a CPU of another arena");
    }
    files.verify().unwrap();
    assert_eq!(files.pages().0, 1);
}

/// A reclaimer of one arena that is asked on behalf of another.
#[test]
fn a_cache_frees_to_its_own_arena_only() {
    use framewright_host::framewright::reclaim::{Reclaim, ReclaimRequest, Reclaimed, Release};
    struct Forwards(&'static FileCache<'static>);
    impl Reclaim for Forwards {
        fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
            self.0.helpers().reclaimer().unwrap().reclaim(ask, to)
        }
    }
    let (folder, mine) = (Folder::new(), Box::leak(Box::new(arena(1))));
    let files: &'static FileCache<'static> = Box::leak(Box::new(FileCache::new(mine)));
    // For a leak checker: it is reachable to the end.
    static KEPT: OnceLock<&FileCache<'static>> = OnceLock::new();
    KEPT.set(files).expect("set once");
    let cpu = mine.attach().unwrap();
    let file = files.open(&folder.file(1)).unwrap();
    (0..MEMORY / 2).for_each(|n| files.write(&cpu, file, n * PAGE, b"mine").unwrap());
    files.flush(file).unwrap();
    let foreign_arena = arena(1);
    assert!(foreign_arena.set_reclaim(std::sync::Arc::new(Forwards(files))));
    let foreign = foreign_arena.attach().unwrap();
    let fill = || while foreign.alloc(Order::ZERO, Migratetype::Movable).is_ok() {};
    assert!(std::panic::catch_unwind(core::panic::AssertUnwindSafe(fill)).is_err());
}

#[test]
#[should_panic(expected = "below 16 TiB")]
fn a_cache_in_an_arena_whose_frames_its_links_cannot_name_is_refused() {
    let arena: Arena<PageSlot> = Arena::builder().bytes(20 << 40).nodes(20).cpus(20).build().unwrap();
    let _ = FileCache::new(&arena);
}
