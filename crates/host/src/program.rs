//! The page cache's [programs](framewright_pagecache::program) on real files: each task a thread, all of them on
//! CPUs of node 0, the files in a folder.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;

use framewright::NodeId;
use framewright::platform::Platform;
use framewright_pagecache::program::{Failure, Files, Program, Stretch};
use framewright_pagecache::{CacheError, FileId, PageSlot};

use crate::arena::{Arena, PAGE_BYTES};
use crate::cpu::Cpu;
use crate::device::{Open, held, io_error};
use crate::files::FileCache;
use crate::os::{cpu_times_ns, free_bytes};
use crate::platform::Host;

/// Threads that write pages out.
const WRITERS: usize = 2;
/// A folder that a program works in. Its files have no names: they are gone with the process, however that ends.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    direct: AtomicBool,
}

impl Folder {
    /// A folder that is there, in which files can be made.
    ///
    /// # Errors
    /// The system's error: it is not there, or cannot be written to.
    pub fn new(path: &Path) -> io::Result<Self> {
        Open::unnamed(path)?;
        Ok(Self { path: path.into(), direct: AtomicBool::new(true) })
    }

    /// Whether the files of all programs so far passed the system's cache by.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    /// Bytes that are free for files here.
    ///
    /// # Errors
    /// The system's error.
    pub fn free_bytes(&self) -> io::Result<u64> {
        free_bytes(&self.path)
    }
}

/// Place where tasks wait for one another. One that panics does not come, and is not waited for.
#[derive(Debug)]
struct Meeting {
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
    fn new(tasks: usize) -> Self {
        Self { tasks, state: Mutex::default(), changed: Condvar::new() }
    }

    fn wait(&self) {
        let mut met = held(&self.state);
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
struct Comes<'a>(&'a Meeting);

impl Drop for Comes<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            held(&self.0.state).broken = true;
            self.0.changed.notify_all();
        }
    }
}

/// State that the tasks of a program share.
struct Work<'a> {
    cache: &'a FileCache<'a>,
    folder: &'a Folder,
    meeting: Meeting,
}

/// One task.
struct Task<'a> {
    work: &'a Work<'a>,
    cpu: Cpu<'a, PageSlot>,
}

impl Files for Task<'_> {
    fn create(&self, _: u32) -> Result<FileId, CacheError> {
        let Work { cache, folder, .. } = self.work;
        let file = cache.open_unnamed(&folder.path).map_err(|error| CacheError::Io(io_error(&error)))?;
        if !cache.is_direct(file) {
            folder.direct.store(false, Relaxed);
        }
        Ok(file)
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.work.cache.write(&self.cpu, file, offset, bytes)
    }

    fn store(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.work.cache.store_mapped(&self.cpu, file, offset, bytes)
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        let read = self.work.cache.read(&self.cpu, file, offset, bytes)?;
        if read == bytes.len() { Ok(()) } else { Err(CacheError::Range) }
    }

    fn settle(&self) -> Result<(), CacheError> {
        self.work.cache.write_back()
    }

    fn stored(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        let file = self.work.cache.reopen(file)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(CacheError::Io(io_error(&error))),
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    fn remove(&self, file: FileId) -> Result<(), CacheError> {
        self.work.cache.forget(&self.cpu, file);
        Ok(())
    }

    fn meet(&self) {
        self.work.meeting.wait();
    }

    fn now_ns(&self) -> u64 {
        Host::now_ns()
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES as u64
    }
}

/// Result of a program.
#[derive(Clone, Debug)]
pub struct Done {
    /// By task: when its time was spent on what.
    pub stretches: Vec<Vec<Stretch>>,
    /// From the first task's beginning to the last one's end.
    pub elapsed_ns: u64,
    /// CPU time of this process in the meantime, outside the system.
    pub user_ns: u64,
    /// And in it.
    pub system_ns: u64,
}

/// Runs a program on a cache's files, with a background thread for each node of its arena and threads that write.
/// The cache's last program: they have ended for good then.
///
/// # Errors
/// Failure of a task.
///
/// # Panics
/// If the arena was not built with [`background`](crate::ArenaBuilder::background), if its node 0 has fewer free
/// CPUs than the program has tasks, or with a task.
pub fn run(
    program: &Program,
    cache: &FileCache<'_>,
    arena: &Arena<PageSlot>,
    folder: &Folder,
) -> Result<Done, Failure> {
    let nodes = arena.allocator().nodes().len();
    let tasks = program.tasks() as usize;
    assert!((tasks - 1) * nodes < arena.cpus(), "node 0 has a CPU for each task");
    let work = Work { cache, folder, meeting: Meeting::new(tasks) };
    let (begun, (user, system)) = (Host::now_ns(), cpu_times_ns());
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
                    let cpu = arena.attach_to(n * nodes).expect("a slot that nobody else uses");
                    program.run(n as u32, &Task { work, cpu })
                })
            })
            .collect();
        let results: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        arena.stop_background();
        cache.stop_writing();
        for keeper in keepers {
            keeper.join().expect("a background thread ends").expect("a slot for each background thread");
        }
        results.into_iter().map(|result| result.expect("a task ends")).collect::<Result<Vec<_>, _>>()
    })?;
    let (user_after, system_after) = cpu_times_ns();
    Ok(Done {
        stretches,
        elapsed_ns: Host::now_ns() - begun,
        user_ns: user_after - user,
        system_ns: system_after - system,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_one_that_files_can_be_made_in_and_nothing_is_left_there() {
        let within = std::env::temp_dir().join(format!("folder-{}", std::process::id()));
        assert!(Folder::new(&within).is_err(), "it is not there");
        std::fs::create_dir(&within).expect("the temporary directory can be written");
        let folder = Folder::new(&within).expect("a folder");
        assert!(folder.free_bytes().expect("it is known") > 0);
        std::fs::remove_dir(within).expect("it is empty");
    }

    #[test]
    fn nobody_waits_for_a_task_that_has_panicked() {
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
}
