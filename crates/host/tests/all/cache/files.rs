//! The page cache on real files, under pressure: what was written and flushed is there, byte for byte.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use framewright_host::framewright::units::PAGEBLOCK_ORDER;
use framewright_host::{
    Arena, CacheError, Config, FileCache, FileId, Migratetype, NodeId, Order, PAGE_BYTES, PageSlot,
};
use tempfile::TempDir;

use crate::common::insist;

pub(crate) const PAGE: u64 = PAGE_BYTES as u64;
/// Pages of the arena.
pub(crate) const MEMORY: u64 = 512;

/// A folder of this test's own beside the build's other files, which are on a real file system.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, n: u64) -> PathBuf {
        self.path().join(format!("file-{n}"))
    }
}

pub(crate) fn arena(cpus: usize) -> Arena<PageSlot> {
    let config = Config::framewright().with_marks();
    Arena::builder().pages(MEMORY).cpus(cpus).config(config).background().build().unwrap()
}

/// Content of page `index` of a file after its `version`th write.
pub(crate) fn content(file: u64, index: u64, version: u64) -> Vec<u8> {
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

/// A small file takes its own pages, and none for what is behind its end.
#[test]
fn reading_ahead_ends_with_the_file() {
    let (folder, arena) = (Folder::new(), arena(1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    for pages in [1, 3] {
        std::fs::write(folder.file(pages), vec![1; pages as usize * PAGE_BYTES - 1]).unwrap();
        let file = files.open(&folder.file(pages)).unwrap();
        let mut bytes = [0; 4 * PAGE_BYTES];
        assert_eq!(files.read(&cpu, file, 0, &mut bytes), Ok(pages as usize * PAGE_BYTES - 1));
        assert_eq!(files.pages().0, pages);
        files.close(&cpu, file).unwrap();
    }
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

/// A cut that fails has dropped the pages: the file is as long as it was to be, and the next flush cuts it; or makes it
/// longer, if what lay behind its end on storage was never written.
#[test]
fn a_cut_that_failed_is_made_by_the_next_flush() {
    let (folder, arena) = (Folder::new(), arena(1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    for (n, (last, cut)) in [(4, 2), (9, 6)].into_iter().enumerate() {
        let path = folder.file(n as u64);
        let file = files.open(&path).unwrap();
        files.write(&cpu, file, 0, &[7; 4 * PAGE_BYTES]).unwrap();
        files.flush(file).unwrap();
        files.write(&cpu, file, last * PAGE, &[8; 100]).unwrap();
        files.inject_faults(1000);
        files.truncate(&cpu, file, cut).unwrap_err();
        files.inject_faults(0);
        assert_eq!((files.len(file), files.pages().0), (Ok(cut * PAGE), cut.min(4)));
        files.flush(file).unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().len(), cut * PAGE);
        files.close(&cpu, file).unwrap();
    }
}

/// Nor do bytes come back that it was to cut off, where the file grows again before a cut succeeds.
#[test]
fn what_a_cut_that_failed_has_left_on_storage_is_not_read() {
    let (folder, arena) = (Folder::new(), arena(1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let mut expected = vec![0; 5 * PAGE_BYTES];
    expected[..PAGE_BYTES].fill(7);
    expected[4 * PAGE_BYTES..].fill(8);
    for n in 0..2 {
        let path = folder.file(n);
        let file = files.open(&path).unwrap();
        files.write(&cpu, file, 0, &[7; 4 * PAGE_BYTES]).unwrap();
        files.flush(file).unwrap();
        files.inject_faults(1000);
        files.truncate(&cpu, file, 1).unwrap_err();
        files.inject_faults(0);
        files.write(&cpu, file, 4 * PAGE, &[8; PAGE_BYTES]).unwrap();
        if n == 1 {
            files.write_back().unwrap();
        }
        let mut bytes = vec![1; 5 * PAGE_BYTES];
        assert_eq!(files.read(&cpu, file, 0, &mut bytes), Ok(bytes.len()));
        assert!(bytes == expected, "file {n}");
        files.flush(file).unwrap();
        assert!(std::fs::read(path).unwrap() == expected, "file {n} on storage");
        files.close(&cpu, file).unwrap();
    }
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
