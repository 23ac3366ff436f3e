//! Programs on real files end whatever storage does, and find out what it has lost.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::time::Duration;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::thread;

use framewright::config::{Experiment, ZoneReclaimMode, ZonelistCache};
use framewright_host::{Arena, Config, FileCache, PAGE_BYTES, PageSlot};
use framewright_subject::programs::{
    Comes, Failure, Folder, Meeting, Program, Task, Work, check, content, run,
};

const PAGE: u64 = PAGE_BYTES as u64;
/// Bytes of a file that is compared.
const BUFFER: usize = 16 << 10;

/// A folder on the disk that the build is on, removed at the end.
struct Parent(PathBuf);

impl Parent {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("program-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let path = std::env::current_exe().expect("this test").with_file_name(name);
        std::fs::create_dir_all(&path).expect("the build's folder can be written");
        Self(path)
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Faults of storage and of threads.
#[derive(Clone, Copy, Debug, Default)]
struct Trouble {
    /// Number of a thousand reads and writes that fail.
    faults: u64,
    /// Number of a thousand that take 2 ms.
    delayed: u64,
    /// Time for which a background thread does nothing when it is first asked to.
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
    let parent = Parent::new();
    let folder = Folder::new(&parent.0);
    let done = run(&program, &files, &arena, &folder).unwrap();
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

/// A program over some tenths of the memory, under each trouble and each setting of the zonelist cache.
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
        Program::mapped_writer(TWO_NODES * PAGE, 4, 20),
    ] {
        let builder = Arena::builder().pages(TWO_NODES).cpus(8).nodes(2).config(config).background();
        let arena: Arena<PageSlot> = builder.build().unwrap();
        let files = FileCache::new(&arena);
        files.inject_full(2 * PAGE);
        // Slow enough that something is always on its way to it.
        files.limit_storage(8 << 20);
        let parent = Parent::new();
        let folder = Folder::new(&parent.0);
        let failed = run(&program, &files, &arena, &folder).unwrap_err();
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
    ends_whatever_happens(|tenths| Program::mapped_writer(TWO_NODES * PAGE, 4, tenths));
}

/// Storage that lost a bit is found out.
#[test]
fn a_lost_bit_is_found() {
    let arena: Arena<PageSlot> = Arena::builder().pages(512).cpus(1).background().build().unwrap();
    let (cache, parent) = (FileCache::new(&arena), Parent::new());
    let folder = Folder::new(&parent.0);
    let work = Work::new(&cache, &folder, 1);
    let task = Task { number: 0, work: &work, cpu: arena.attach().unwrap() };
    let file = task.create().unwrap();
    let mut bytes = [0; BUFFER];
    content(0, 0, &mut bytes);
    task.write(file, 0, &bytes).unwrap();
    cache.write_back().unwrap();
    let expected = |offset: u64, bytes: &mut [u8]| content(0, offset, bytes);
    check(&task, file, 0, BUFFER as u64, expected).unwrap();
    // The file has no name, and the cache opens it for reading only.
    let opened = cache.reopen(file).unwrap();
    let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let written = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    written.write_all_at(&[bytes[4097] ^ 0x40], 4097).unwrap();
    let found = check(&task, file, 0, BUFFER as u64, expected).unwrap_err();
    assert!(matches!(found, Failure::Content { name: 0, offset: 4097 }), "{found}");
}

#[test]
fn no_task_waits_for_one_that_has_panicked() {
    let meeting = Meeting::new(3);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..2).map(|_| scope.spawn(|| meeting.wait())).collect();
        let third = scope.spawn(|| {
            let _comes = Comes(&meeting);
            panic!("on purpose");
        });
        assert!(third.join().is_err());
        waiting.into_iter().for_each(|task| task.join().expect("it goes on"));
    });
}
