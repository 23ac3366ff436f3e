//! Content of storage over time: flushes, appends, cuts, opens and closes that race; errors; crashes.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use framewright_host::pagecache::IoError;
use framewright_host::{Arena, CacheError, Config, FileCache, Migratetype, Order, PAGE_BYTES, PageSlot};

use crate::cache::files::Folder;

const PAGE: u64 = PAGE_BYTES as u64;
const BROKEN: CacheError = CacheError::Io(IoError::from_code(libc::EIO));
const FULL: CacheError = CacheError::Io(IoError::from_code(libc::ENOSPC));

fn arena(pages: u64, cpus: usize) -> Arena<PageSlot> {
    arena_of(Config::framewright(), pages, cpus)
}

fn arena_of(config: Config, pages: u64, cpus: usize) -> Arena<PageSlot> {
    Arena::builder().pages(pages).cpus(cpus).config(config.with_marks()).build().unwrap()
}

fn full() -> bool {
    std::env::var_os("FRAMEWRIGHT_FULL").is_some()
}

/// One thread appends and flushes, another only flushes: what either flush has called durable stays. The file is cut to
/// its length by each, and never below what another thread has just made durable.
#[test]
fn a_flush_beside_appends_cuts_nothing_off() {
    let (folder, arena) = (Folder::new(), arena(8192, 3));
    let files = FileCache::new(&arena);
    let path = folder.file(1);
    let file = files.open(&path).unwrap();
    let stop = AtomicBool::new(false);
    let (appends, part) = (if full() { 6000 } else { 1000 }, 3000_u64);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    files.flush(file).unwrap();
                }
            });
        }
        let cpu = arena.attach().unwrap();
        let stored = fs::File::open(&path).unwrap();
        for n in 0..appends {
            // Not a whole page: each flush has something to cut off.
            let bytes = [n as u8 | 1; 3000];
            assert_eq!(files.append(&cpu, file, &bytes), Ok(n * part));
            files.flush(file).unwrap();
            let mut found = [0; 3000];
            let there = stored.read_at(&mut found, n * part);
            assert!(matches!(there, Ok(3000)) && found == bytes, "append {n} is not there: {there:?}");
        }
        stop.store(true, Relaxed);
    });
    files.flush(file).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), appends * part, "to the byte");
    let bytes = fs::read(&path).unwrap();
    assert!(bytes.chunks(3000).zip(0_u64..).all(|(part, n)| part.iter().all(|&byte| byte == n as u8 | 1)));
}

/// A number that was forgotten is not another file's: neither its length, nor its pages, nor its errors.
#[test]
fn forgetting_a_file_beside_opening_another_leaves_that_alone() {
    let (folder, arena) = (Folder::new(), arena(2048, 2));
    let files = FileCache::new(&arena);
    let (old, precious) = (folder.file(1), folder.file(2));
    let cpu = arena.attach().unwrap();
    for round in 0..if full() { 5000 } else { 300 } {
        fs::write(&precious, [0x55; 2 * PAGE_BYTES]).unwrap();
        let first = files.open(&old).unwrap();
        (0..16).for_each(|n| files.write(&cpu, first, n * PAGE, &[1; PAGE_BYTES]).unwrap());
        let go = Barrier::new(2);
        let second = thread::scope(|scope| {
            let opener = scope.spawn(|| {
                go.wait();
                (0..round % 200).for_each(|_| core::hint::spin_loop());
                files.open(&precious).unwrap()
            });
            go.wait();
            files.forget(&cpu, first);
            opener.join().unwrap()
        });
        assert_ne!(first, second);
        assert_eq!(fs::metadata(&precious).unwrap().len(), 2 * PAGE, "round {round}");
        let mut byte = [0];
        assert_eq!((files.read(&cpu, second, PAGE, &mut byte), byte), (Ok(1), [0x55]));
        files.write(&cpu, second, 0, b"x").unwrap();
        files.close(&cpu, second).unwrap();
    }
    assert_eq!((files.verify(), files.pages()), (Ok(()), (0, 0)));
    // Errors of an opener that is forgotten are reported to no other.
    let first = files.open(&old).unwrap();
    files.write(&cpu, first, 0, b"x").unwrap();
    files.inject_faults(1000);
    assert_eq!(files.write_back(), Err(BROKEN));
    files.inject_faults(0);
    files.forget(&cpu, first);
    let next = files.open(&old).unwrap();
    files.write(&cpu, next, 0, b"y").unwrap();
    assert_eq!(files.flush(next), Ok(()));
}

/// Four threads open, append to, flush, cut, read, close and forget a few files. What a thread appended and flushed in
/// a file that no thread cuts or forgets is there in the end, once.
#[test]
fn all_calls_race() {
    let (folder, arena) = (Folder::new(), arena(2048, 5));
    let files = FileCache::new(&arena);
    let (kept, others) = (folder.file(0), [folder.file(1), folder.file(2)]);
    let steps = if full() { 4000 } else { 250 };
    let records: Vec<Vec<(u64, u64)>> = thread::scope(|scope| {
        scope.spawn(|| files.run_writing());
        let threads: Vec<_> = (0..4_u64)
            .map(|n| {
                let (files, arena, kept, others) = (&files, &arena, &kept, &others);
                scope.spawn(move || {
                    let (mut rng, mut done) = (fastrand::Rng::with_seed(n), Vec::new());
                    let cpu = arena.attach().unwrap();
                    for step in 0..steps {
                        let file = files.open(kept).unwrap();
                        let word = n << 32 | step | 1 << 63;
                        let at = files.append(&cpu, file, &word.to_le_bytes()).unwrap();
                        let flushed = files.close(&cpu, file);
                        assert_eq!(flushed, Ok(()));
                        done.push((at, word));
                        // And everything immediately with files that no thread relies on.
                        let unrelated = files.open(&others[rng.usize(..2)]).unwrap();
                        for _ in 0..4 {
                            let mut bytes = [0; 100];
                            let at = rng.u64(..20 * PAGE);
                            match rng.u64(..5) {
                                0 => files.write(&cpu, unrelated, at, &[7; 5000]).unwrap(),
                                1 => drop(files.read(&cpu, unrelated, at, &mut bytes).unwrap()),
                                2 => files.flush(unrelated).unwrap(),
                                3 => files.truncate(&cpu, unrelated, at / PAGE).unwrap(),
                                _ => drop(files.append(&cpu, unrelated, &bytes).unwrap()),
                            }
                            assert!(bytes.iter().all(|byte| [0, 7].contains(byte)), "bytes of another file");
                        }
                        if rng.u32(..2) == 0 {
                            files.forget(&cpu, unrelated)
                        } else {
                            files.close(&cpu, unrelated).unwrap()
                        }
                        assert_eq!(files.flush(unrelated), Err(CacheError::Closed));
                    }
                    done
                })
            })
            .collect();
        let records = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        files.stop_writing();
        records
    });
    assert_eq!((files.verify(), files.pages()), (Ok(()), (0, 0)));
    let stored = fs::read(&kept).unwrap();
    assert_eq!(stored.len() as u64, 4 * steps * 8, "each append has a place of its own");
    for (at, word) in records.into_iter().flatten() {
        assert_eq!(stored[at as usize..][..8], word.to_le_bytes(), "at {at}");
    }
}

#[test]
fn openers_of_a_file_share_it_and_hear_of_each_error_once() {
    let (folder, arena) = (Folder::new(), arena(1024, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let [first, second] = [0, 1].map(|_| files.open(&folder.file(1)).unwrap());
    files.write(&cpu, first, 10, b"shared").unwrap();
    let mut bytes = [0; 6];
    assert_eq!((files.read(&cpu, second, 10, &mut bytes), &bytes), (Ok(6), b"shared"));
    files.inject_faults(1000);
    assert_eq!(files.write_back(), Err(BROKEN));
    files.inject_faults(0);
    for opener in [first, second] {
        assert_eq!([files.flush(opener), files.flush(opener)], [Err(BROKEN), Ok(())]);
    }
    let late = files.open(&folder.file(1)).unwrap();
    assert_eq!(files.flush(late), Ok(()), "all errors were told");
    files.close(&cpu, first).unwrap();
    files.forget(&cpu, late);
    assert_eq!(files.read(&cpu, second, 10, &mut bytes), Ok(6), "it is open still");
    files.close(&cpu, second).unwrap();
    assert_eq!(fs::read(folder.file(1)).unwrap()[10..], *b"shared");
}

/// After a sync that failed, a flush succeeds only if everything was written again.
#[test]
fn a_sync_that_failed_is_not_forgotten() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let file = files.open(&folder.file(1)).unwrap();
    (0..10).for_each(|n| files.write(&cpu, file, n * PAGE, &[3; PAGE_BYTES]).unwrap());
    files.inject_sync_faults(1000);
    assert_eq!(files.flush(file), Err(BROKEN));
    files.inject_sync_faults(0);
    let before = files.events().pgpgout;
    assert_eq!((files.pages().1, files.flush(file)), (10, Ok(())));
    assert_eq!(files.events().pgpgout - before, 10, "all of it is written again");
    // Twice the memory: some has left it when the sync fails.
    (0..1024).for_each(|n| files.write(&cpu, file, n * PAGE, &[4; PAGE_BYTES]).unwrap());
    files.inject_sync_faults(1000);
    let lost = Err(CacheError::Lost(IoError::from_code(libc::EIO)));
    assert_eq!(files.flush(file), lost);
    files.inject_sync_faults(0);
    assert_eq!([files.flush(file), files.close(&cpu, file)], [lost; 2], "for good");
    files.forget(&cpu, file);
    let again = files.open(&folder.file(1)).unwrap();
    assert_eq!(files.close(&cpu, again), Ok(()));
    files.verify().unwrap();
}

#[test]
fn a_full_disk_says_so() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let file = files.open(&folder.file(1)).unwrap();
    files.inject_full(8 * PAGE);
    files.write(&cpu, file, 0, &[1; 8 * PAGE_BYTES]).unwrap();
    assert_eq!(files.flush(file), Ok(()));
    files.write(&cpu, file, 8 * PAGE, b"one more").unwrap();
    assert_eq!(files.flush(file), Err(FULL));
    assert_eq!(files.flush(file).unwrap_err().to_string(), "no space is left on the device");
    // Memory that fills with what cannot be written says the same, not that there is no memory.
    let error = (0..4096).find_map(|n| files.write(&cpu, file, n * PAGE, &[2; PAGE_BYTES]).err());
    assert_eq!(error, Some(CacheError::Io(IoError::from_code(libc::ENOSPC))));
    let len = files.len(file);
    assert_eq!((files.append(&cpu, file, b"more"), files.len(file)), (Err(FULL), len), "no gap");
    // A file on another disk, on which there is room.
    let roomy = files.open(&folder.file(2)).unwrap();
    files.write(&cpu, roomy, 0, b"fits").unwrap();
    assert_eq!((files.append(&cpu, roomy, b", too"), files.flush(roomy)), (Ok(4), Ok(())));
    files.inject_full(0);
    assert_eq!([files.flush(file), files.flush(file)], [Err(FULL), Ok(())], "nothing is lost");
    assert_eq!(files.len(file).unwrap(), fs::metadata(folder.file(1)).unwrap().len());
}

/// A program that neither flushes nor has a writer thread finds that a full disk has room again, also with pages of
/// another file in memory.
#[test]
fn a_disk_that_has_room_again_is_written_to() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let [small, file] = [1, 2].map(|n| files.open(&folder.file(n)).unwrap());
    files.write(&cpu, small, 0, &[1; 8 * PAGE_BYTES]).unwrap();
    files.inject_full(PAGE);
    let error = (0..4096).find_map(|n| files.write(&cpu, file, n * PAGE, &[2; PAGE_BYTES]).err());
    assert_eq!(error, Some(FULL));
    assert_eq!(files.append(&cpu, file, b"more"), Err(FULL));
    files.inject_full(0);
    let len = files.len(file).unwrap();
    assert_eq!((0..16).find_map(|_| files.append(&cpu, file, b"more").ok()), Some(len));
    assert_eq!([small, file].map(|file| files.flush(file)), [Err(FULL); 2], "each hears of it");
    assert_eq!([small, file].map(|file| files.flush(file)), [Ok(()); 2]);
    assert!(fs::read(folder.file(2)).unwrap().ends_with(b"more"));
}

/// What is lost is told on standard error. If that is on the full disk, too, the cache ends all the same.
#[test]
fn a_cache_ends_where_no_line_can_be_written() {
    const INSIDE: &str = "FRAMEWRIGHT_NO_LINE";
    if std::env::var_os(INSIDE).is_none() {
        let mut inside = Command::new(std::env::current_exe().unwrap());
        inside.args(["--exact", "durability::a_cache_ends_where_no_line_can_be_written", "--nocapture"]);
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        assert!(inside.env(INSIDE, "1").stderr(full).status().unwrap().success());
        return;
    }
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let cpu = arena.attach().unwrap();
    let files = FileCache::new(&arena);
    for n in 1..3 {
        let file = files.open(&folder.file(n)).unwrap();
        files.write(&cpu, file, 0, b"lost").unwrap();
    }
    files.inject_full(1);
    drop(files);
    assert_eq!(arena.counts().allocated, 0);
}

/// A disk of its own, in a file: ext4 keeps what it found room for when it cannot reserve all.
#[test]
fn a_swap_area_that_does_not_fit_leaves_the_disk_as_it_was() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let (image, disk) = (folder.file(1), folder.path().join("disk"));
    fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
    fs::create_dir(&disk).unwrap();
    let runs = |command: &str, arguments: &[&str], path: &Path| {
        let ended = Command::new(command).args(arguments).arg(path).stderr(Stdio::null()).status();
        ended.is_ok_and(|status| status.success())
    };
    let mounted = ["-o", "loop", image.to_str().unwrap()];
    if !runs("mkfs.ext4", &["-q"], &image) || !runs("mount", &mounted, &disk) {
        println!("skipped: a_swap_area_that_does_not_fit: no disk can be mounted here");
        return;
    }
    let swap = disk.join("swap");
    let failed = FileCache::with_swap(&arena, &swap, 4096).map(drop);
    let blocks = fs::metadata(&swap).map(|metadata| metadata.blocks());
    assert!(runs("umount", &[], &disk));
    assert_eq!(failed.unwrap_err().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(blocks.unwrap(), 0);
}

/// An offset near the end of the number range does not come round to the file's beginning.
#[test]
fn offsets_end_where_files_do() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let file = files.open(&folder.file(1)).unwrap();
    files.write(&cpu, file, 0, b"precious").unwrap();
    let space = files.make_space();
    files.store_anon(&cpu, space, 0, b"precious").unwrap();
    let last = i64::MAX as u64;
    for offset in [u64::MAX - 3, u64::MAX, last - 7, last - 100, last] {
        assert_eq!(files.write(&cpu, file, offset, &[b'X'; 8]), Err(CacheError::Range), "{offset}");
        assert_eq!(files.store_mapped(&cpu, file, offset, &[b'X'; 8]), Err(CacheError::Range));
        assert_eq!(files.read(&cpu, file, offset, &mut [0; 8]), Ok(0));
    }
    assert_eq!(files.store_anon(&cpu, space, u64::MAX - 3, &[b'X'; 8]), Err(CacheError::Range));
    assert_eq!(files.load_anon(&cpu, space, u64::MAX - 3, &mut [0; 8]), Err(CacheError::Range));
    let mut bytes = [0; 8];
    assert_eq!((files.read(&cpu, file, 0, &mut bytes), &bytes), (Ok(8), b"precious"));
    files.load_anon(&cpu, space, 0, &mut bytes).unwrap();
    assert_eq!((&bytes, files.len(file), files.flush(file)), (b"precious", Ok(8), Ok(())));
}

/// The cost of a flush does not depend on how much is cached, only on how much is dirty: counted in looks at the lock's
/// data by time, as a ratio in one run.
#[test]
fn a_flush_of_one_page_costs_the_same_however_many_are_cached() {
    let (folder, arena) = (Folder::new(), arena(40_000, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let [few, many] = [1, 2].map(|n| files.open(&folder.file(n)).unwrap());
    let page = [1; PAGE_BYTES];
    files.write(&cpu, few, 0, &page).unwrap();
    (0..20_000).for_each(|n| files.write(&cpu, many, n * PAGE, &page).unwrap());
    [few, many].iter().for_each(|&file| files.flush(file).unwrap());
    // The thread's own time: what storage takes, and others, does not count. The least of many is the quiet one.
    let mut least = [u64::MAX; 2];
    for _ in 0..50 {
        for (least, file) in least.iter_mut().zip([few, many]) {
            files.write(&cpu, file, 0, &page).unwrap();
            let begun = crate::common::thread_ns();
            files.flush(file).unwrap();
            *least = (*least).min(crate::common::thread_ns() - begun);
        }
    }
    // It was more than a hundred to one.
    assert!(least[1] < 8 * least[0], "{least:?} ns");
}

#[test]
fn a_cache_that_is_dropped_writes_what_is_dirty_and_gives_its_pages_back() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let mut slot = Some(arena.attach().unwrap());
    let files = FileCache::new(&arena);
    let file = files.open(&folder.file(1)).unwrap();
    files.write(slot.as_ref().unwrap(), file, 5, b"never flushed").unwrap();
    let space = files.make_space();
    files.store_anon(slot.as_ref().unwrap(), space, 0, b"gone").unwrap();
    slot = None;
    assert!(slot.is_none());
    drop(files);
    assert_eq!(fs::read(folder.file(1)).unwrap()[5..], *b"never flushed");
    assert_eq!(arena.allocator().verify().unwrap().allocated, 0);
    // Also where this thread has the only slot; and where another one has it, when that one is done with it.
    let cpu = arena.attach().unwrap();
    for n in 3..5 {
        let files = FileCache::new(&arena);
        let file = files.open(&folder.file(n)).unwrap();
        (0..100).for_each(|page| files.write(&cpu, file, page * PAGE, &[1; PAGE_BYTES]).unwrap());
        if n == 3 {
            drop(files);
        } else {
            thread::scope(|scope| scope.spawn(|| drop(files)).join().unwrap());
            assert_eq!(arena.counts().allocated, 100);
            let all = core::iter::from_fn(|| cpu.alloc_block(Order::ZERO, Migratetype::Movable).ok());
            assert!(all.collect::<Vec<_>>().len() > 450, "an allocation that would fail finds them");
        }
        assert_eq!(arena.counts().allocated, 0);
    }
    drop(cpu);
    // Or states what was lost.
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let file = files.open(&folder.file(2)).unwrap();
    files.write(&cpu, file, 0, b"lost").unwrap();
    files.inject_faults(1000);
    let lost = files.finish().unwrap_err();
    assert_eq!((lost.len(), &lost[0].path, lost[0].error), (1, &folder.file(2), BROKEN));
    assert!(lost[0].to_string().contains("file-2"), "{}", lost[0]);
}

/// A file is made in the folder that `open` found, and its name lasts there, wherever that folder is when it is
/// flushed.
#[test]
fn a_new_files_folder_may_move() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let (before, after) = (folder.path().join("before"), folder.path().join("after"));
    fs::create_dir(&before).unwrap();
    let file = files.open(&before.join("new")).unwrap();
    files.write(&cpu, file, 0, b"kept").unwrap();
    fs::rename(&before, &after).unwrap();
    assert_eq!(files.flush(file), Ok(()));
    assert_eq!(fs::read(after.join("new")).unwrap(), b"kept");
    // Through a link to where no file is yet; a circle of links is an error.
    for (link, target) in [("link", "behind"), ("first", "second"), ("second", "first")] {
        std::os::unix::fs::symlink(target, folder.path().join(link)).unwrap();
    }
    let linked = files.open(&folder.path().join("link")).unwrap();
    files.write(&cpu, linked, 0, b"linked").unwrap();
    files.close(&cpu, linked).unwrap();
    assert_eq!(fs::read(folder.path().join("behind")).unwrap(), b"linked");
    assert_eq!(files.open(&folder.path().join("first")).unwrap_err().raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn a_swap_file_is_nobody_elses() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let path = folder.file(1);
    fs::write(&path, b"was here").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let cache = FileCache::with_swap(&arena, &path, 64).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(FileCache::with_swap(&arena, &path, 64).is_err(), "it is locked");
    drop(cache);
    assert_eq!(fs::metadata(&path).unwrap().len(), 0, "memory does not stay on the disk");
    let link = folder.file(2);
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(FileCache::with_swap(&arena, &link, 64).is_err(), "a link is not followed");
    fs::hard_link(&path, folder.file(3)).unwrap();
    assert!(FileCache::with_swap(&arena, &path, 64).is_err(), "it has another name");
    assert!(FileCache::with_swap(&arena, folder.path(), 64).is_err(), "it is a folder");
    let before = fs::read_dir(folder.path()).unwrap().count();
    let cache = FileCache::with_unnamed_swap(&arena, folder.path(), 1024).unwrap();
    let (cpu, space) = (arena.attach().unwrap(), cache.make_space());
    (0..1024_u64).for_each(|n| cache.store_anon(&cpu, space, n * PAGE, &n.to_le_bytes()).unwrap());
    for n in 0..1024_u64 {
        let mut bytes = [0; 8];
        cache.load_anon(&cpu, space, n * PAGE, &mut bytes).unwrap();
        assert_eq!(bytes, n.to_le_bytes());
    }
    assert!(cache.events().pswpout > 0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), before);
}

/// A load beside the end of its space reads its own bytes, or zeroes, and never those of another space that has got the
/// slot in the meantime.
#[test]
fn a_load_beside_dropping_its_space_sees_no_other() {
    let (folder, arena) = (Folder::new(), arena(512, 4));
    let cache = FileCache::with_unnamed_swap(&arena, folder.path(), 3000).unwrap();
    let (stop, loads) = (AtomicBool::new(false), AtomicU64::new(0));
    let unrelated = cache.make_space();
    thread::scope(|scope| {
        scope.spawn(|| {
            let cpu = arena.attach().unwrap();
            for n in 0.. {
                if stop.load(Relaxed) {
                    return;
                }
                let _ = cache.store_anon(&cpu, unrelated, n % 750 * PAGE, &[b'B'; PAGE_BYTES]);
            }
        });
        let cpu = arena.attach().unwrap();
        for round in 0..if full() { 100 } else { 4 } {
            let space = cache.make_space();
            for n in 0..1500 {
                let _ = cache.store_anon(&cpu, space, n * PAGE, &[b'A'; PAGE_BYTES]);
            }
            let ended = AtomicBool::new(false);
            thread::scope(|inner| {
                inner.spawn(|| {
                    let (cpu, mut rng, mut bytes) =
                        (arena.attach().unwrap(), fastrand::Rng::with_seed(round), [0; PAGE_BYTES]);
                    while !ended.load(Relaxed) {
                        if cache.load_anon(&cpu, space, rng.u64(..1500) * PAGE, &mut bytes).is_ok() {
                            loads.fetch_add(1, Relaxed);
                            assert!(
                                bytes.iter().all(|byte| [0, b'A'].contains(byte)),
                                "bytes of another space"
                            );
                        }
                    }
                });
                let before = loads.load(Relaxed);
                while loads.load(Relaxed) < before + 10 {
                    thread::yield_now();
                }
                cache.drop_space(&cpu, space);
                ended.store(true, Relaxed);
            });
            cache.drop_space(&cpu, space);
        }
        stop.store(true, Relaxed);
    });
    cache.verify().unwrap();
}

const CHILD: &str = "FRAMEWRIGHT_CRASH_FILE";
const SEED: &str = "FRAMEWRIGHT_CRASH_SEED";

/// Records that are written between two flushes: some that are there, and some that are new.
fn changed(rng: &mut fastrand::Rng, version: u64) -> Vec<u64> {
    let end = 40 * version;
    let old = (0..8).map(|_| rng.u64(..end)).collect::<Vec<_>>();
    old.into_iter().chain(end - 40..end).collect()
}

/// Process that [`a_process_that_is_killed_keeps_what_it_flushed`] kills: writes records of a file, flushes, and
/// reports it.
#[test]
fn child_that_is_killed() {
    use std::io::Write;
    let Some(path) = std::env::var_os(CHILD) else { return };
    let seed: u64 = std::env::var(SEED).unwrap().parse().unwrap();
    // The promise holds in Linux' way, too.
    let arena =
        arena_of(if seed.is_multiple_of(2) { Config::framewright() } else { Config::linux_v6_7() }, 256, 2);
    let files = FileCache::new(&arena);
    thread::scope(|scope| {
        scope.spawn(|| files.run_writing());
        let cpu = arena.attach().unwrap();
        let file = files.open(path.as_ref()).unwrap();
        let mut rng = fastrand::Rng::with_seed(seed);
        for version in 1.. {
            for at in changed(&mut rng, version) {
                files.write(&cpu, file, at * RECORD, &record(at, version)).unwrap();
            }
            files.flush(file).unwrap();
            let mut out = std::io::stdout().lock();
            writeln!(out, "flushed {version}").unwrap();
            out.flush().unwrap();
        }
    });
}

/// Bytes of a record: pages hold several, and some are in two.
const RECORD: u64 = 1500;

fn record(at: u64, version: u64) -> Vec<u8> {
    [at, version].iter().cycle().flat_map(|word| word.to_le_bytes()).take(RECORD as usize).collect()
}

/// Killed at some moment, a process leaves at least what it has flushed: each byte is that of the last flush, or of
/// what was being written when it died. The file outgrows the memory.
#[test]
fn a_process_that_is_killed_keeps_what_it_flushed() {
    use std::io::{BufRead, BufReader};
    let folder = Folder::new();
    let mut rng = fastrand::Rng::with_seed(1);
    let mut records = 0;
    for round in 0..if full() { 1000 } else { 20 } {
        let path = folder.file(round);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "durability::child_that_is_killed", "--nocapture"])
            .env(CHILD, &path)
            .env(SEED, round.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut flushed = lines.filter_map(|line| {
            let line = line.unwrap();
            Some(line.split_once("flushed ")?.1.parse::<u64>().unwrap())
        });
        // After some flushes, and some time.
        let mut last = flushed.nth(rng.usize(..20)).unwrap();
        thread::sleep(core::time::Duration::from_micros(rng.u64(..3000)));
        child.kill().unwrap();
        child.wait().unwrap();
        if let Some(later) = flushed.last() {
            last = later;
        }
        // What the flushes up to the last one had to make durable; and what was being written when it died.
        let (mut rng, mut model) = (fastrand::Rng::with_seed(round), Vec::new());
        let mut versions = |version, model: &mut Vec<u64>| {
            for at in changed(&mut rng, version) {
                model.resize(model.len().max(at as usize + 1), 0);
                model[at as usize] = version;
            }
        };
        (1..=last).for_each(|version| versions(version, &mut model));
        let mut next = model.clone();
        versions(last + 1, &mut next);
        let stored = fs::read(&path).unwrap();
        let end = model.len() as u64;
        assert!(
            stored.len() as u64 >= end * RECORD,
            "round {round}: {} bytes of {end} records",
            stored.len()
        );
        for (at, (&old, &new)) in model.iter().zip(&next).enumerate() {
            let found = &stored[at * RECORD as usize..][..RECORD as usize];
            let (old_bytes, new_bytes) = (record(at as u64, old), record(at as u64, new));
            for (n, byte) in found.iter().enumerate() {
                assert!(
                    *byte == old_bytes[n] || *byte == new_bytes[n],
                    "round {round}, after flush {last}: byte {n} of record {at} is neither of version {old} nor {new}"
                );
            }
            records += 1;
        }
        fs::remove_file(path).unwrap();
    }
    assert!(records > 0);
}

/// A file that was just made keeps its name, too: the folder is synced by the first flush. And what is no file of ours
/// to make is refused.
#[test]
fn names() {
    let (folder, arena) = (Folder::new(), arena(512, 1));
    let files = FileCache::new(&arena);
    let cpu = arena.attach().unwrap();
    let made = files.open(&folder.file(1)).unwrap();
    files.write(&cpu, made, 0, b"x").unwrap();
    assert_eq!(files.flush(made), Ok(()));
    assert!(files.open(folder.path()).is_err() && files.open(&folder.path().join("none/file")).is_err());
    for name in ["none/", "none/."] {
        assert_eq!(
            files.open(&folder.path().join(name)).unwrap_err().kind(),
            std::io::ErrorKind::IsADirectory
        );
        assert!(!folder.path().join("none").exists());
    }
    assert_eq!(files.open("/dev/null".as_ref()).unwrap_err().to_string(), "it is no regular file");
    let unnamed = files.open_unnamed(folder.path()).unwrap();
    files.write(&cpu, unnamed, 0, b"seen by nobody else").unwrap();
    files.flush(unnamed).unwrap();
    let mut bytes = [0; 19];
    files.reopen(unnamed).unwrap().read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"seen by nobody else");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    // One that cannot be written to is no reason to make another.
    let locked = folder.file(2);
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o400).open(&locked).unwrap();
    if fs::OpenOptions::new().write(true).open(&locked).is_err() {
        assert!(files.open(&locked).is_err());
    }
}
