//! The programs of the study `zone-reclaim` on real files: each task a thread on a CPU of node 0, the files in a folder
//! and without names, through a page cache in an arena of two virtual nodes.
//!
//! Every file is checked at the end: the bytes in storage are read past the cache and compared.

use core::cell::Cell;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use framewright::NodeId;
use framewright::events::{NodeEvents, ZoneEvents};
use framewright::zone::Zone;
use framewright_host::pagecache::latency::Histogram;
use framewright_host::pagecache::state::CacheEvents;
use framewright_host::{Arena, ArenaError, CacheError, Config, Cpu, FileCache, FileId, PAGE_BYTES, PageSlot};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// Threads that write pages out.
const WRITERS: usize = 2;

/// Why a program ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no such arena.
    #[error("{0}")]
    Arena(ArenaError),
    /// An invariant of the cache does not hold at the end.
    #[error("{0}")]
    Damage(&'static str),
    /// The cache refused, and again when it was asked again.
    #[error("{0}")]
    Cache(#[from] CacheError),
    /// A file could not be made, or not be read past the cache.
    #[error("{0}")]
    File(#[from] io::Error),
    /// Storage does not hold what was written.
    #[error("file {name} does not hold at byte {offset} what was written")]
    Content {
        /// The file, by its name.
        name: u32,
        /// Byte of the file.
        offset: u64,
    },
}

/// A stretch of a task's time that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The activity.
    pub step: &'static str,
    /// Number of the round, from 0.
    pub turn: u32,
    /// Its beginning, from the program's.
    pub begun_ns: u64,
    /// Its end, likewise.
    pub ended_ns: u64,
    /// Time of it that was spent in calls on files.
    pub called_ns: u64,
    /// Files made.
    pub files: u32,
}

/// A program, with its sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Program {
    /// FS-Mark: each task writes new files, all of them together; then they are deleted; and again.
    FsMark {
        /// Tasks.
        tasks: u32,
        /// Times that all files are made.
        loops: u32,
        /// Files of each task, each time.
        files: u32,
        /// Bytes of a file.
        file_bytes: u64,
        /// Bytes of a write, at most 16 KiB.
        write_bytes: u64,
    },
    /// Large DD: one task writes a file, copies it in small blocks again and again, and deletes everything.
    LargeDd {
        /// Bytes of the file.
        bytes: u64,
        /// Times that it is copied.
        copies: u32,
        /// Bytes of a block that is copied, at most 16 KiB.
        block_bytes: u64,
    },
    /// Streaming Mapped Writer: each task maps a sparse file and stores once in each page.
    MappedWriter {
        /// Tasks.
        tasks: u32,
        /// Pages of each task's file.
        pages: u64,
    },
}

const PAGE: u64 = PAGE_BYTES as u64;
/// Most bytes in one call.
const BUFFER: usize = 16 << 10;
/// Most calls until a device that fails has done its work.
const TRIES: u32 = 1000;

impl Program {
    /// FS-Mark over `memory` bytes: 16 KiB a write, files of 1/128 of the memory (512 KiB at most). One loop writes
    /// 5/24 of the memory: 2.5 of 12 GiB on the study's machine.
    pub fn fs_mark(memory: u64, tasks: u32, loops: u32) -> Self {
        let write_bytes = BUFFER as u64;
        let file_bytes = (memory / 128).clamp(write_bytes, 512 << 10) / write_bytes * write_bytes;
        let all = file_bytes * u64::from(tasks);
        let files = ((memory / 24 * 5 + all / 2) / all).max(1) as u32;
        Self::FsMark { tasks, loops, files, file_bytes, write_bytes }
    }

    /// Large DD over `memory` bytes: a file of 1/32 of it, copied in blocks of 512 bytes until twice the memory
    /// is written.
    pub const fn large_dd(memory: u64) -> Self {
        Self::LargeDd { bytes: memory / 32 / 4096 * 4096, copies: 63, block_bytes: 512 }
    }

    /// Streaming Mapped Writer over `memory` bytes: files of ten times the memory together, `tenths` being 100.
    pub fn mapped_writer(memory: u64, tasks: u32, tenths: u64) -> Self {
        Self::MappedWriter { tasks, pages: memory * tenths / 10 / PAGE / u64::from(tasks) }
    }

    /// A quarter of its loops, copies or pages.
    pub const fn quartered(mut self) -> Self {
        match &mut self {
            Self::FsMark { loops, .. } => *loops = loops.div_ceil(4),
            Self::LargeDd { copies, .. } => *copies = copies.div_ceil(4),
            Self::MappedWriter { pages, .. } => *pages = pages.div_ceil(4),
        }
        self
    }

    /// Number of its tasks.
    pub const fn tasks(&self) -> u32 {
        match *self {
            Self::FsMark { tasks, .. } | Self::MappedWriter { tasks, .. } => tasks,
            Self::LargeDd { .. } => 1,
        }
    }

    fn run(&self, task: &Task<'_>) -> Result<Vec<Stretch>, Failure> {
        let mut run = Run { task, stretches: Vec::new(), failure: None };
        match *self {
            Self::FsMark { loops, .. } => (0..loops).for_each(|turn| self.fs_mark_loop(&mut run, turn)),
            Self::LargeDd { bytes, copies, block_bytes } => dd(&mut run, bytes, copies, block_bytes),
            Self::MappedWriter { pages, .. } => mapped(&mut run, pages),
        }
        run.failure.map_or(Ok(run.stretches), Err)
    }

    fn fs_mark_loop(&self, run: &mut Run<'_>, turn: u32) {
        let Self::FsMark { tasks, files, file_bytes, write_bytes, .. } = *self else { return };
        let first = (turn * tasks + run.task.number) * files;
        let made = run.stretch("loop", turn, files, |task, called| {
            let mut made = Vec::new();
            let mut buffer = [0; BUFFER];
            for name in first..first + files {
                let file = timed(called, || task.create())?;
                for offset in (0..file_bytes).step_by(write_bytes as usize) {
                    let bytes = &mut buffer[..write_bytes.min(file_bytes - offset) as usize];
                    content(name, offset, bytes);
                    timed(called, || task.write(file, offset, bytes))?;
                }
                made.push(file);
            }
            Ok(made)
        });
        run.settle();
        run.then(|task| {
            for (&file, name) in made.iter().flatten().zip(first..) {
                check(task, file, name, file_bytes, |offset, bytes| content(name, offset, bytes))?;
            }
            Ok(())
        });
        made.iter().flatten().for_each(|&file| run.task.remove(file));
    }
}

/// Adds the time of a call to `called`.
fn timed<R>(called: &Cell<u64>, call: impl FnOnce() -> R) -> R {
    let begun = Instant::now();
    let result = call();
    called.set(called.get() + begun.elapsed().as_nanos() as u64);
    result
}

/// Content of a file from `offset` on, which is a multiple of 8: numbers that look random.
pub fn content(name: u32, offset: u64, bytes: &mut [u8]) {
    for (word, n) in bytes.chunks_mut(8).zip(offset / 8..) {
        let n = (n ^ u64::from(name) << 40 ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word.copy_from_slice(&(n ^ n >> 31).to_le_bytes()[..word.len()]);
    }
}

fn dd(run: &mut Run<'_>, bytes: u64, copies: u32, block_bytes: u64) {
    let mut buffer = [0; BUFFER];
    let tar = run.stretch("download", 0, 1, |task, _| {
        let tar = task.create()?;
        for offset in (0..bytes).step_by(BUFFER) {
            let part = &mut buffer[..(bytes - offset).min(BUFFER as u64) as usize];
            content(0, offset, part);
            task.write(tar, offset, part)?;
        }
        Ok(tar)
    });
    let copied = run.stretch("dd", 0, copies, |task, _| {
        let mut copied = Vec::new();
        for from in tar.iter().cycle().take(copies as usize) {
            let to = task.create()?;
            for offset in (0..bytes).step_by(block_bytes as usize) {
                let block = &mut buffer[..block_bytes.min(bytes - offset) as usize];
                task.read(*from, offset, block)?;
                task.write(to, offset, block)?;
            }
            copied.push(to);
        }
        Ok(copied)
    });
    run.settle();
    let files = || tar.iter().chain(copied.iter().flatten());
    run.then(|task| {
        files().zip(0..).try_for_each(|(&file, name)| {
            check(task, file, name, bytes, |offset, bytes| content(0, offset, bytes))
        })
    });
    run.stretch("delete", 0, 0, |task, _| {
        files().for_each(|&file| task.remove(file));
        Ok(())
    });
}

fn mapped(run: &mut Run<'_>, pages: u64) {
    let name = run.task.number;
    let file = run.stretch("store", 0, 1, |task, _| {
        let file = task.create()?;
        for index in 0..pages {
            let mut word = [0; 8];
            content(name, index * PAGE, &mut word);
            task.store(file, index * PAGE, &word)?;
        }
        Ok(file)
    });
    run.settle();
    run.then(|task| {
        file.iter().try_for_each(|&file| {
            check(task, file, name, pages * PAGE, |offset, bytes| {
                bytes.fill(0);
                let first = offset.next_multiple_of(PAGE);
                for at in (first..offset + bytes.len() as u64).step_by(PAGE as usize) {
                    content(name, at, &mut bytes[(at - offset) as usize..][..8]);
                }
            })
        })
    });
    file.iter().for_each(|&file| run.task.remove(file));
}

/// Compares what storage holds of a file with what `expected` says it should.
///
/// # Errors
/// They differ, or storage cannot be read.
pub fn check(
    task: &Task<'_>,
    file: FileId,
    name: u32,
    len: u64,
    expected: impl Fn(u64, &mut [u8]),
) -> Result<(), Failure> {
    let (mut found, mut wanted) = ([0; BUFFER], [0; BUFFER]);
    for offset in (0..len).step_by(BUFFER) {
        let part = (len - offset).min(BUFFER as u64) as usize;
        let (found, wanted) = (&mut found[..part], &mut wanted[..part]);
        task.stored(file, offset, found)?;
        expected(offset, wanted);
        if let Some(at) = found.iter().zip(&*wanted).position(|(found, wanted)| found != wanted) {
            return Err(Failure::Content { name, offset: offset + at as u64 });
        }
    }
    Ok(())
}

/// A task's way through its program. After a failure it only comes to the meetings, so that no task waits for it.
struct Run<'t> {
    task: &'t Task<'t>,
    stretches: Vec<Stretch>,
    failure: Option<Failure>,
}

impl Run<'_> {
    /// Does what does not count. `None` after a failure, of this or of something before.
    fn then<R>(&mut self, does: impl FnOnce(&Task<'_>) -> Result<R, Failure>) -> Option<R> {
        if self.failure.is_some() {
            return None;
        }
        does(self.task).map_err(|failure| self.failure = Some(failure)).ok()
    }

    /// Does what counts, when all tasks are here. Its second argument counts the time in calls.
    fn stretch<R>(
        &mut self,
        step: &'static str,
        turn: u32,
        files: u32,
        does: impl FnOnce(&Task<'_>, &Cell<u64>) -> Result<R, Failure>,
    ) -> Option<R> {
        let work = self.task.work;
        work.meeting.wait();
        let called = Cell::new(0);
        let begun_ns = work.now_ns();
        let result = self.then(|task| does(task, &called));
        let ended_ns = work.now_ns();
        self.stretches.push(Stretch { step, turn, begun_ns, ended_ns, called_ns: called.get(), files });
        result
    }

    /// Has everything on storage that all tasks have written: one of them writes it out.
    fn settle(&mut self) {
        self.task.work.meeting.wait();
        if self.task.number == 0 {
            self.then(|task| insist(|| task.work.cache.write_back()));
        }
        self.task.work.meeting.wait();
    }
}

/// Calls again what a device has failed.
fn insist<R>(mut call: impl FnMut() -> Result<R, CacheError>) -> Result<R, Failure> {
    for _ in 1..TRIES {
        match call() {
            // A full disk does not become emptier.
            Err(CacheError::Io(error)) if !error.is_full() => {}
            result => return Ok(result?),
        }
    }
    Ok(call()?)
}

/// A folder that a program works in. Its files have no names: they are gone with the process, however that ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    direct: Mutex<bool>,
}

impl Folder {
    /// The folder with that path.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), direct: Mutex::new(true) }
    }

    /// Whether no file so far went through the system's cache.
    pub fn is_direct(&self) -> bool {
        *self.direct.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A point at which tasks wait for one another. A task that panics does not come, and no task waits for it.
#[derive(Debug)]
pub struct Meeting {
    tasks: usize,
    state: Mutex<Met>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Met {
    here: usize,
    meetings: u64,
    broken: bool,
}

impl Meeting {
    /// A point for that many tasks.
    pub fn new(tasks: usize) -> Self {
        Self { tasks, state: Mutex::default(), changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, Met> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all are here, or one has panicked.
    pub fn wait(&self) {
        let mut met = self.state();
        met.here += 1;
        if met.here == self.tasks {
            met.here = 0;
            met.meetings += 1;
            self.changed.notify_all();
            return;
        }
        let meeting = met.meetings;
        while met.meetings == meeting && !met.broken {
            met = self.changed.wait(met).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A task's promise to come to each meeting, broken if it panics.
#[derive(Debug)]
pub struct Comes<'a>(pub &'a Meeting);

impl Drop for Comes<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.state().broken = true;
            self.0.changed.notify_all();
        }
    }
}

/// State that the tasks of a program share.
#[derive(Debug)]
pub struct Work<'a> {
    cache: &'a FileCache<'a>,
    folder: &'a Folder,
    meeting: Meeting,
    begun: Instant,
}

impl<'a> Work<'a> {
    /// That of so many tasks, which begins now.
    pub fn new(cache: &'a FileCache<'a>, folder: &'a Folder, tasks: usize) -> Self {
        Self { cache, folder, meeting: Meeting::new(tasks), begun: Instant::now() }
    }

    fn now_ns(&self) -> u64 {
        self.begun.elapsed().as_nanos() as u64
    }
}

/// One thread of a program.
#[derive(Debug)]
pub struct Task<'a> {
    /// Its number, from 0.
    pub number: u32,
    /// State that it shares with the others.
    pub work: &'a Work<'a>,
    /// Its CPU.
    pub cpu: Cpu<'a, PageSlot>,
}

impl Task<'_> {
    /// Makes a file.
    ///
    /// # Errors
    /// The folder takes none.
    pub fn create(&self) -> Result<FileId, Failure> {
        let Work { cache, folder, .. } = self.work;
        let file = cache.open_unnamed(&folder.path)?;
        if !cache.is_direct(file) {
            *folder.direct.lock().unwrap_or_else(PoisonError::into_inner) = false;
        }
        Ok(file)
    }

    /// Writes to a file.
    ///
    /// # Errors
    /// The cache refuses, and again when it is asked again.
    pub fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        insist(|| self.work.cache.write(&self.cpu, file, offset, bytes))
    }

    /// Stores through a mapping.
    fn store(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        insist(|| self.work.cache.store_mapped(&self.cpu, file, offset, bytes))
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let read = insist(|| self.work.cache.read(&self.cpu, file, offset, bytes))?;
        if read == bytes.len() { Ok(()) } else { Err(CacheError::Range.into()) }
    }

    /// Reads what storage holds, past the cache; zeroes where the file has ended.
    fn stored(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let file = self.work.cache.reopen(file)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    fn remove(&self, file: FileId) {
        self.work.cache.forget(&self.cpu, file);
    }
}

/// Result of a program.
#[derive(Clone, Debug)]
pub struct Done {
    /// Stretches of each task.
    pub stretches: Vec<Vec<Stretch>>,
    /// From the first task's beginning to the last one's end.
    pub elapsed_ns: u64,
    /// CPU time of this process during the program, outside the kernel and in it.
    pub cpu_ns: [u64; 2],
}

/// CPU time of this process so far, outside the kernel and in it.
fn cpu_times_ns() -> [u64; 2] {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("the kernel knows its own processes");
    let ns = |time: TimeVal| time.tv_sec() as u64 * 1_000_000_000 + time.tv_usec() as u64 * 1000;
    [ns(usage.user_time()), ns(usage.system_time())]
}

/// Runs a program on a cache's files, with a background thread for each node of its arena and threads that write.
/// The cache's last program: those threads end with it.
///
/// # Errors
/// The first failure of a task.
///
/// # Panics
/// If the arena was not built with `background`, if its node 0 has fewer free CPUs than the program has tasks, or with
/// a task.
pub fn run(
    program: &Program,
    cache: &FileCache<'_>,
    arena: &Arena<PageSlot>,
    folder: &Folder,
) -> Result<Done, Failure> {
    let nodes = arena.allocator().nodes().len();
    let tasks = program.tasks() as usize;
    assert!((tasks - 1) * nodes < arena.cpus(), "node 0 has a CPU for each task");
    let before = cpu_times_ns();
    let work = Work::new(cache, folder, tasks);
    let stretches = thread::scope(|scope| {
        let keepers: Vec<_> =
            (0..nodes as u16).map(|n| scope.spawn(move || cache.run_background(NodeId(n)))).collect();
        (0..WRITERS).for_each(|_| drop(scope.spawn(|| cache.run_writing())));
        let threads: Vec<_> = (0..tasks)
            .map(|n| {
                let work = &work;
                scope.spawn(move || {
                    let _comes = Comes(&work.meeting);
                    // Every CPU of node 0, as the tests of the study were bound to its CPUs.
                    let cpu = arena.attach_to(n * nodes).expect("no other thread uses this CPU");
                    program.run(&Task { number: n as u32, work, cpu })
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        arena.stop_background();
        cache.stop_writing();
        for keeper in keepers {
            keeper.join().expect("a background thread ends").expect("a CPU for each background thread");
        }
        results.into_iter().map(|result| result.expect("a task ends")).collect::<Result<Vec<_>, _>>()
    })?;
    let elapsed_ns = work.now_ns();
    let after = cpu_times_ns();
    Ok(Done { stretches, elapsed_ns, cpu_ns: [0, 1].map(|n| after[n] - before[n]) })
}

/// Nodes of [`measure`]: the tasks' own, and another one with idle CPUs.
const NODES: usize = 2;
/// Their distances, as firmware gives them for two sockets.
const DISTANCES: [u8; NODES * NODES] = [10, 20, 20, 10];

/// Memory and storage that a program runs in.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Bytes of memory on both nodes.
    pub memory: u64,
    /// How often node 0's memory goes into node 1's.
    pub node1_share: u32,
    /// Bandwidth that storage is held to, in MB/s; 0 for what it can.
    pub storage_mbps: u32,
    /// The folder of its files.
    pub folder: &'a Path,
}

/// Facts of one run of a program.
#[derive(Debug)]
pub struct Facts {
    /// By task: when its time was spent on what.
    pub stretches: Vec<Vec<Stretch>>,
    /// User, system and elapsed time.
    pub durations_ns: [u64; 3],
    /// How long allocations of the cache's pages took.
    pub allocation_times: Histogram,
    /// The cache's counts.
    pub cache: CacheEvents,
    /// Counts of all nodes together.
    pub nodes: NodeEvents,
    /// Counts of each zone.
    pub zones: Vec<ZoneEvents>,
    /// Whether no file went through the system's cache.
    pub is_direct: bool,
}

/// Runs a program in an arena of its own, and says what happened.
///
/// # Errors
/// There is no such arena, or what the program ran into.
///
/// # Panics
/// As [`run`].
pub fn measure(program: &Program, place: &Place<'_>, config: Config) -> Result<Facts, Failure> {
    let arena: Arena<PageSlot> = Arena::builder()
        .bytes(place.memory)
        .cpus(program.tasks() as usize * NODES)
        .node_shares([1, place.node1_share.into()])
        .distances(DISTANCES)
        .config(config)
        .background()
        .build()
        .map_err(Failure::Arena)?;
    let folder = Folder::new(place.folder);
    let cache = FileCache::new(&arena);
    cache.limit_storage(u64::from(place.storage_mbps) * 1_000_000);
    let Done { stretches, elapsed_ns, cpu_ns: [user_ns, system_ns] } = run(program, &cache, &arena, &folder)?;
    cache.verify().map_err(Failure::Damage)?;
    Ok(Facts {
        stretches,
        durations_ns: [user_ns, system_ns, elapsed_ns],
        allocation_times: cache.allocation_times(),
        cache: cache.events(),
        nodes: arena.allocator().node_totals(),
        zones: arena.allocator().zones().iter().map(Zone::events).collect(),
        is_direct: folder.is_direct(),
    })
}
