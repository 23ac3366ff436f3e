//! The page cache's [programs](framewright_pagecache::program) on real files: each task a thread, all of them on
//! CPUs of node 0, the files in a folder.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use framewright::NodeId;
use framewright::platform::Platform;
use framewright_pagecache::program::{Failure, Files, Program, Stretch};
use framewright_pagecache::{CacheError, FileId, PageSlot};

use crate::arena::{Arena, PAGE_BYTES};
use crate::cpu::Attached;
use crate::files::FileCache;
use crate::os::cpu_times_ns;
use crate::platform::Host;

/// Threads that write pages out.
const WRITERS: usize = 2;
/// Folders over which files are spread.
const SUBFOLDERS: u32 = 100;

/// How names of folders begin.
const PREFIX: &str = "framewright-";
/// A file in a folder that is locked for as long as somebody works there.
const LOCK: &str = "lock";

/// A folder that a program works in, beneath another one. What it leaves there goes with it; if the process is killed,
/// when the next folder is made beside it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    direct: AtomicBool,
    _lock: File,
}

/// Removes folders that nobody works in any more.
fn sweep(within: &Path) {
    let all = fs::read_dir(within).into_iter().flatten().flatten();
    for folder in all.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX)) {
        if let Ok(lock) = File::open(folder.path().join(LOCK))
            && lock.try_lock().is_ok()
        {
            // Best effort: it may be somebody else's.
            let _ = fs::remove_dir_all(folder.path());
        }
    }
}

impl Folder {
    /// Makes the folder `framewright-name` in `within`, where there must be none.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(within: &Path, name: &str) -> io::Result<Self> {
        sweep(within);
        let path = within.join(format!("{PREFIX}{name}"));
        fs::create_dir(&path)?;
        let lock = File::create_new(path.join(LOCK))?;
        lock.try_lock()?;
        let folder = Self { path, direct: AtomicBool::new(true), _lock: lock };
        (0..SUBFOLDERS).try_for_each(|n| fs::create_dir(folder.path.join(n.to_string())))?;
        Ok(folder)
    }

    /// Whether the files of all programs so far passed the system's cache by.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.load(Relaxed)
    }

    fn file(&self, name: u32) -> PathBuf {
        self.path.join((name % SUBFOLDERS).to_string()).join(name.to_string())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// What the tasks of a program share.
struct Work<'a> {
    cache: &'a FileCache<'a>,
    folder: &'a Folder,
    names: Mutex<BTreeMap<FileId, u32>>,
    barrier: Barrier,
}

/// One task.
struct Task<'a> {
    work: &'a Work<'a>,
    cpu: Attached<'a, PageSlot>,
}

impl Work<'_> {
    fn path(&self, file: FileId) -> Result<PathBuf, CacheError> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        names.get(&file).map(|&name| self.folder.file(name)).ok_or(CacheError::Io)
    }
}

impl Files for Task<'_> {
    fn create(&self, name: u32) -> Result<FileId, CacheError> {
        let Work { cache, folder, names, .. } = self.work;
        let file = cache.open(&folder.file(name)).map_err(|_| CacheError::Io)?;
        if !cache.is_direct(file) {
            folder.direct.store(false, Relaxed);
        }
        names.lock().unwrap_or_else(PoisonError::into_inner).insert(file, name);
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
        let file = File::open(self.work.path(file)?).map_err(|_| CacheError::Io)?;
        let mut done = 0;
        while done < bytes.len() {
            match file.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Err(CacheError::Io),
            }
        }
        bytes[done..].fill(0);
        Ok(())
    }

    fn remove(&self, file: FileId) -> Result<(), CacheError> {
        let path = self.work.path(file)?;
        self.work.cache.forget(&self.cpu, file);
        self.work.names.lock().unwrap_or_else(PoisonError::into_inner).remove(&file);
        fs::remove_file(path).map_err(|_| CacheError::Io)
    }

    fn meet(&self) {
        self.work.barrier.wait();
    }

    fn now_ns(&self) -> u64 {
        Host::now_ns()
    }

    fn page_bytes(&self) -> u64 {
        PAGE_BYTES as u64
    }
}

/// What came of a program.
#[derive(Clone, Debug)]
pub struct Done {
    /// By task: when its time was spent on what.
    pub stretches: Vec<Vec<Stretch>>,
    /// From the first task's beginning to the last one's end.
    pub elapsed_ns: u64,
    /// CPU time of this process meanwhile, outside the system.
    pub user_ns: u64,
    /// And in it.
    pub system_ns: u64,
}

/// Runs a program on a cache's files, with a background thread for each node of its arena and threads that write.
/// The cache's last program: they have ended for good then.
///
/// # Errors
/// What a task ran into.
///
/// # Panics
/// If the arena was not built with [`background`](crate::ArenaBuilder::background), if its node 0 has fewer free
/// CPU slots than the program has tasks, or with a task.
pub fn run(
    program: &Program,
    cache: &FileCache<'_>,
    arena: &Arena<PageSlot>,
    folder: &Folder,
) -> Result<Done, Failure> {
    let nodes = arena.allocator().nodes().len();
    let tasks = program.tasks() as usize;
    assert!((tasks - 1) * nodes < arena.slots(), "node 0 has a CPU slot for each task");
    let work = Work { cache, folder, names: Mutex::default(), barrier: Barrier::new(tasks) };
    let (begun, (user, system)) = (Host::now_ns(), cpu_times_ns());
    let stretches = thread::scope(|scope| {
        let keepers: Vec<_> =
            (0..nodes as u16).map(|n| scope.spawn(move || cache.run_background(NodeId(n)))).collect();
        (0..WRITERS).for_each(|_| drop(scope.spawn(|| cache.run_writing())));
        let threads: Vec<_> = (0..tasks)
            .map(|n| {
                let work = &work;
                scope.spawn(move || {
                    // Every slot of node 0, as the tests of the study were bound to its CPUs.
                    let cpu = arena.attach_slot(n * nodes).expect("a slot that nobody else uses");
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
    fn what_a_killed_process_left_goes_and_what_is_in_use_stays() {
        let within = std::env::temp_dir().join(format!("folders-{}", std::process::id()));
        fs::create_dir(&within).expect("the temporary directory can be written");
        let used = Folder::new(&within, "used").expect("a folder");
        // As if it had been killed: no destructor runs, its lock is gone.
        let mut left = core::mem::ManuallyDrop::new(Folder::new(&within, "left").expect("a folder"));
        left._lock = File::open("/dev/null").expect("a file");
        fs::create_dir(within.join("framewright-strange")).expect("a folder that is not ours");
        let next = Folder::new(&within, "next").expect("a folder");
        let mut names: Vec<_> = fs::read_dir(&within)
            .expect("it is there")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        assert_eq!(names, ["framewright-next", "framewright-strange", "framewright-used"]);
        assert!(Folder::new(&within, "used").is_err(), "the name is taken");
        drop((used, next));
        fs::remove_dir_all(within).expect("ours");
    }
}
