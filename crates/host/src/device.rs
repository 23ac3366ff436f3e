//! Real files as the page cache's storage device: past the system's own cache where the file system allows it
//! (`O_DIRECT`), so that an arena's pages are the only ones.
//!
//! # Lengths
//! Pages are written whole, so a file on storage may be longer than its content. `len` is the content's end; it is
//! raised before a page is dirty. `stored` is where storage may end; it is raised before a page is written. A sync cuts
//! the file to `len` if `stored` is beyond, under `cut` alone, with `len` read there; writes hold `cut` shared. So
//! all that a cut takes away was beyond the content's end, and of no page that was dirty by then. What a truncation was
//! to cut off, `cut` itself names until a cut has succeeded: it is not read, and no page behind is written before.
#![expect(unsafe_code, reason = "pages are read and written where they lie")]

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread;
use std::time::Instant;

use framewright::Pfn;
use framewright::platform::Platform;
use framewright_pagecache::{Completion, Device, FileId, IoError, PageSlot, Progress};

use crate::arena::{Arena, PAGE_BYTES};
use crate::forks::{self, Withheld};
use crate::os::{effective_user, set_direct, write_pieces};
use crate::platform::Host;
use crate::writing::{Queue, ToWrite};

/// How long a writer is held back first, and how often that doubles: 16 ms at most, as storage is faster than it was
/// when Linux chose 100.
const HELD_BACK: Duration = Duration::from_millis(1);
const MOST_DOUBLED: u32 = 4;
/// Looks at something that another thread is about to change, before the thread sleeps between two of them; and how
/// long at first and at most.
const LOOKS: u32 = 64;
const NAP: Duration = Duration::from_micros(10);
const NAPS_DOUBLED: u32 = 5;

/// The swap area's file. No other has this number: they are counted from 0 up.
pub(crate) const SWAP: FileId = FileId(u32::MAX);

/// The disk is full.
pub(crate) const NO_SPACE: IoError = IoError::from_code(libc::ENOSPC);

pub(crate) fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn shared<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn alone<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn io_error(error: &io::Error) -> IoError {
    error.raw_os_error().map_or(IoError::UNKNOWN, IoError::from_code)
}

// ---- open files ------------------------------------------------------------------------------------------

/// A file of the system's, open. However often a path is opened, there is one of these for a file.
pub(crate) struct Open {
    // Before the file, so that it is dropped first.
    _withheld: Option<Withheld>,
    pub(crate) file: File,
    /// Whether its pages pass the system's cache by.
    pub(crate) direct: bool,
    /// Whether it has a name: what has none is gone with this process.
    pub(crate) named: bool,
    /// Its device and inode.
    pub(crate) key: (u64, u64),
    /// Its length in bytes, as the cache's users see it.
    pub(crate) len: AtomicU64,
    /// End of the content that storage may hold.
    stored: AtomicU64,
    /// Bytes below `len` may never come to storage: there was no memory for them, or the pages that raised `len` were
    /// cut off.
    gap: AtomicBool,
    /// The last write of it found no room.
    pub(crate) full: AtomicBool,
    /// Held shared while a page is written, alone while the file is cut. What storage has from this byte on is to be
    /// cut off first: a truncation has failed to.
    cut: RwLock<u64>,
    /// The folders with its names, if it was made by this cache, and they may not last yet: one, unless the file was
    /// linked or moved since, and opened there, too.
    folders: Mutex<Vec<File>>,
    /// Held shared by each call about the file, alone by those that cut or close it. `true` once it is closed.
    pub(crate) gate: RwLock<bool>,
}

impl Open {
    fn new(file: File, direct: bool, folder: Option<File>) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
        }
        Ok(Self {
            _withheld: None,
            file,
            direct,
            named: true,
            key: (metadata.dev(), metadata.ino()),
            len: AtomicU64::new(metadata.len()),
            stored: AtomicU64::new(metadata.len()),
            gap: AtomicBool::new(false),
            full: AtomicBool::new(false),
            cut: RwLock::new(u64::MAX),
            folders: Mutex::new(folder.into_iter().collect()),
            gate: RwLock::new(false),
        })
    }

    /// Opens a file, and makes it if it is not there. Both go by the folder's descriptor, which stays the same folder
    /// when it is renamed, or the process goes elsewhere. `made` has the files whose names may not last yet.
    pub(crate) fn named(path: &Path, made: &Made) -> io::Result<Self> {
        let mut path = path.to_path_buf();
        for _ in 0..MOST_TRIES {
            match with_direct(|flags| options(flags).open(&path)) {
                Ok((file, direct)) => {
                    let mut open = Self::new(file, direct, None)?;
                    if held(made).contains(&open.key) {
                        open.folders = Mutex::new(vec![folder_of(&path)?]);
                    }
                    return Ok(open);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let folder = folder_of(&path)?;
            // `x/` and `x/.` are folders that are not there.
            let ends_so = |name: &&OsStr| path.as_os_str().as_bytes().ends_with(name.as_bytes());
            let name = path.file_name().filter(ends_so).ok_or(io::ErrorKind::IsADirectory)?;
            let within = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
            // Where direct access is refused, the file is made by then.
            let make = |flags| options(flags).create(true).create_new(flags != 0).mode(0o666).open(&within);
            // Who finds the file finds it among these.
            let mut made = held(made);
            match with_direct(make) {
                Ok((file, direct)) => {
                    let open = Self::new(file, direct, Some(folder))?;
                    made.insert(open.key);
                    return Ok(open);
                }
                // Another process was faster, or a symbolic link leads to where no file is yet.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    if let Ok(target) = std::fs::read_link(&path) {
                        path = path.parent().unwrap_or(Path::new("")).join(target);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from_raw_os_error(libc::ELOOP))
    }

    /// Makes a file without a name in a folder: it is gone when it is closed, however the process ends.
    pub(crate) fn unnamed(folder: &Path) -> io::Result<Self> {
        let made = options(libc::O_TMPFILE | libc::O_EXCL).mode(0o600).open(folder);
        let file = match made {
            Ok(file) => file,
            // The file system, or the kernel, has no such files.
            Err(error)
                if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)) =>
            {
                unlinked(folder)?
            }
            Err(error) => return Err(error),
        };
        let direct = set_direct(&file).is_ok();
        Ok(Self { named: false, ..Self::new(file, direct, None)? })
    }

    /// Opens a file that holds the memory of this process while it runs, and nothing that is needed afterwards: no
    /// process else reads it, and no other process uses it.
    pub(crate) fn private(path: &Path) -> io::Result<Self> {
        let refuse = |why| Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        let open = |flags| options(flags | libc::O_NOFOLLOW).create(true).mode(0o600).open(path);
        // No child may share the lock: it would keep it after this process has ended.
        let mut duties = forks::hold();
        let (file, direct) = with_direct(open)?;
        let withheld = Some(duties.withhold(&file));
        drop(duties);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return refuse("it is no regular file");
        }
        if metadata.uid() != effective_user() {
            return refuse("it belongs to another user");
        }
        if metadata.nlink() != 1 {
            return refuse("it has other names");
        }
        if file.try_lock().is_err() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another process swaps to it"));
        }
        file.set_permissions(PermissionsExt::from_mode(0o600))?;
        Ok(Self { _withheld: withheld, ..Self::new(file, direct, None)? })
    }

    /// Takes the file's length from the system: another process may have changed it since it was opened.
    pub(crate) fn measure(&self) {
        if let Ok(metadata) = self.file.metadata() {
            self.len.store(metadata.len(), Relaxed);
            self.stored.store(metadata.len(), Relaxed);
        }
    }

    /// This file, opened once more through the system's own cache.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
    }

    /// The file is longer than what was written to it, or is to be cut.
    pub(crate) fn note_gap(&self) {
        self.gap.store(true, Release);
    }

    /// Gives the file its length, if storage may hold more, or less.
    fn cut(&self) -> io::Result<()> {
        let mut first = alone(&self.cut);
        // Before `len` is read: a gap that comes later is for the next cut.
        let gap = self.gap.swap(false, Acquire);
        let len = self.len.load(Relaxed);
        if gap || self.stored.load(Relaxed) > len {
            let ends: &[u64] = if *first < len { &[*first, len] } else { &[len] };
            for &end in ends {
                self.file.set_len(end).inspect_err(|_| self.note_gap())?;
                self.stored.store(end, Relaxed);
                *first = u64::MAX;
            }
        }
        Ok(())
    }

    /// The folder that the next sync has to sync, too.
    pub(crate) fn take_folder(&self) -> Option<File> {
        held(&self.folders).pop()
    }

    /// Has the next sync also sync a folder.
    pub(crate) fn owe_folder(&self, folder: Option<File>) {
        let key = |folder: &File| folder.metadata().map(|found| (found.dev(), found.ino())).ok();
        let mut owed = held(&self.folders);
        if let Some(folder) = folder
            && owed.iter().all(|known| key(known) != key(&folder))
        {
            owed.push(folder);
        }
    }

    /// Makes the names of a file last that this cache has made.
    fn sync_folders(&self, made: &Made) -> io::Result<()> {
        let mut owed = held(&self.folders);
        owed.iter().try_for_each(File::sync_all)?;
        if !owed.is_empty() {
            held(made).remove(&self.key);
        }
        owed.clear();
        Ok(())
    }

    /// Fills a page: what is behind the file's end is zeroes.
    fn read_page(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = fill(bytes, offset, self.direct, |bytes, at| self.file.read_at(bytes, at))?;
        let at = offset + done as u64;
        if !done.is_multiple_of(BLOCK) && at < self.file.metadata()?.len() {
            // Not the file's end: the system's own cache has the rest.
            let file = self.reopen()?;
            done += fill(&mut bytes[done..], at, false, |bytes, at| file.read_at(bytes, at))?;
        }
        bytes[done..].fill(0);
        Ok(())
    }
}

/// Direct reads begin at multiples of this at most, on any device.
const BLOCK: usize = 512;

/// Reads until the bytes are filled, or there are no more; a direct read also until it ends inside a block, as it can
/// go on at the next one only. Returns the bytes read.
fn fill(
    bytes: &mut [u8],
    offset: u64,
    is_direct: bool,
    read: impl Fn(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut done = 0;
    while done < bytes.len() && (!is_direct || done.is_multiple_of(BLOCK)) {
        match read(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Device and inode of files that a cache has made, and whose folders have not been synced since.
pub(crate) type Made = Mutex<BTreeSet<(u64, u64)>>;

/// Tries to open a path that changes at the same time, and links that are followed to a file that is not there: as
/// Linux' limit.
const MOST_TRIES: u32 = 40;

/// The folder that a path's last name is in.
fn folder_of(path: &Path) -> io::Result<File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))
}

fn options(flags: i32) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(flags);
    options
}

/// Opens past the system's cache, or through it where the file system has no such access. Whether it is past.
fn with_direct(open: impl Fn(i32) -> io::Result<File>) -> io::Result<(File, bool)> {
    match open(libc::O_DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok((open(0)?, false)),
        Err(error) => Err(error),
    }
}

/// Makes a file and takes its name away immediately.
fn unlinked(folder: &Path) -> io::Result<File> {
    loop {
        let name = format!(".framewright-{}-{:x}", std::process::id(), Host::now_ns());
        let path = folder.join(name);
        match options(libc::O_NOFOLLOW).create_new(true).mode(0o600).open(&path) {
            Ok(file) => {
                std::fs::remove_file(path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

// ---- the device ------------------------------------------------------------------------------------------

/// Faults on purpose.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Number of a thousand reads and writes that fail.
    pub(crate) failing: AtomicU64,
    /// Number of a thousand syncs that fail.
    pub(crate) failing_syncs: AtomicU64,
    /// Bytes beyond which no file can be written, as if the disk were full; 0 for no limit.
    pub(crate) full_at: AtomicU64,
    /// Of the reads and writes that do not fail, how many of a thousand take `delay_ns` longer.
    pub(crate) delayed: AtomicU64,
    pub(crate) delay_ns: AtomicU64,
    /// How long a page takes at least, and until when those take that have been asked for; 0 for no limit.
    pub(crate) page_ns: AtomicU64,
    busy_until_ns: AtomicU64,
    turns: AtomicU64,
    sync_turns: AtomicU64,
}

impl Faults {
    /// Fails or dawdles, if it is time.
    fn turn(&self) -> Result<(), IoError> {
        let failing = self.failing.load(Relaxed);
        // Spread evenly: a step that shares no factor with 1000.
        let turn = self.turns.fetch_add(1, Relaxed).wrapping_mul(619) % 1000;
        if turn < failing {
            return Err(IoError::from_code(libc::EIO));
        }
        if turn - failing < self.delayed.load(Relaxed) {
            thread::sleep(Duration::from_nanos(self.delay_ns.load(Relaxed)));
        }
        Ok(())
    }

    fn sync_turn(&self) -> Result<(), IoError> {
        let turn = self.sync_turns.fetch_add(1, Relaxed).wrapping_mul(619) % 1000;
        if turn < self.failing_syncs.load(Relaxed) { Err(IoError::from_code(libc::EIO)) } else { Ok(()) }
    }

    fn write_turn(&self, end: u64) -> Result<(), IoError> {
        let full_at = self.full_at.load(Relaxed);
        if full_at > 0 && end > full_at { Err(NO_SPACE) } else { self.turn() }
    }

    /// Takes as long for `pages` pages as a disk of the wished bandwidth that serves one request at a time, reads
    /// before writes.
    fn pace(&self, pages: usize, is_read: bool) {
        let page_ns = self.page_ns.load(Relaxed);
        if page_ns == 0 {
            return;
        }
        let begun = Host::now_ns();
        let took = page_ns * pages as u64;
        let step = |busy_until: u64| Some(busy_until.max(begun) + took);
        let before = self.busy_until_ns.fetch_update(Relaxed, Relaxed, step).unwrap_or_else(|same| same);
        let queued = if is_read { 0 } else { before.saturating_sub(begun) };
        thread::sleep(Duration::from_nanos(queued + took));
    }
}

/// Files as a device, for a cache alone: any other caller could reach pages that are not its own.
pub(crate) struct FileDevice<'a> {
    arena: &'a Arena<PageSlot>,
    /// By the number that the cache has for each.
    pub(crate) files: RwLock<BTreeMap<FileId, Arc<Open>>>,
    pub(crate) made: Made,
    pub(crate) swap: Option<Arc<Open>>,
    pub(crate) queue: Queue,
    pub(crate) faults: Faults,
    /// The last write failed.
    pub(crate) failing: AtomicBool,
}

impl<'a> FileDevice<'a> {
    pub(crate) fn new(arena: &'a Arena<PageSlot>, swap: Option<Open>) -> Self {
        Self {
            arena,
            files: RwLock::default(),
            made: Made::default(),
            swap: swap.map(Arc::new),
            queue: Queue::default(),
            faults: Faults::default(),
            failing: AtomicBool::new(false),
        }
    }

    fn open(&self, file: FileId) -> Result<Arc<Open>, IoError> {
        if file == SWAP {
            return self.swap.clone().ok_or(IoError::UNKNOWN);
        }
        shared(&self.files).get(&file).cloned().ok_or(IoError::UNKNOWN)
    }

    /// Writes pages of a file, one after the other: all of them or, as far as a caller can tell, none.
    pub(crate) fn write_run(&self, run: &[ToWrite]) -> Result<(), IoError> {
        let Some(first) = run.first() else { return Ok(()) };
        let open = self.open(first.file)?;
        let written = self.try_write_run(&open, first.index, run);
        for (flag, state) in
            [(&open.full, written.is_err_and(IoError::is_full)), (&self.failing, written.is_err())]
        {
            if flag.load(Relaxed) != state {
                flag.store(state, Relaxed);
            }
        }
        written
    }

    fn try_write_run(&self, open: &Open, first: u64, run: &[ToWrite]) -> Result<(), IoError> {
        let start = first * PAGE_BYTES as u64;
        let end = start + (run.len() * PAGE_BYTES) as u64;
        let first_cut = *shared(&open.cut);
        if end > first_cut {
            open.cut().map_err(|error| io_error(&error))?;
        }
        // A truncation since then was of pages behind these: it waits for those that are being written.
        let _uncut = shared(&open.cut);
        open.stored.fetch_max(end, Relaxed);
        // SAFETY: while a page is written out, no thread changes it.
        let pages: Vec<&[u8]> = run.iter().map(|page| unsafe { self.page_shared(page.pfn) }).collect();
        // A disk takes its time also over what it then fails.
        self.faults.pace(run.len(), false);
        if let Err(error) = self.faults.write_turn(end) {
            // Torn: half of it is there, and half of a page.
            if !error.is_full() {
                let half = &pages[run.len() / 2][..PAGE_BYTES / 2];
                let _ = write_pieces(&open.file, &pages[..run.len() / 2], start);
                let _ = open.file.write_all_at(half, start + (run.len() / 2 * PAGE_BYTES) as u64);
            }
            return Err(error);
        }
        let written = write_pieces(&open.file, &pages, start).unwrap_or(0);
        // The rest, or what is wrong with it, page by page.
        for (page, at) in pages.iter().zip((start..).step_by(PAGE_BYTES)).skip(written / PAGE_BYTES) {
            open.file.write_all_at(page, at).map_err(|error| io_error(&error))?;
        }
        Ok(())
    }

    /// Writes pages that were taken from the queue, and reports how that ended; also where it panics.
    pub(crate) fn write_taken(&self, run: Vec<ToWrite>) {
        let mut taken = Taken { queue: &self.queue, run, result: Err(IoError::UNKNOWN) };
        taken.result = self.write_run(&taken.run);
    }

    /// Writes what the last thread that wrote has left, because it panicked.
    fn write_orphans(&self) {
        while let Some(page) = self.queue.orphan() {
            self.write_taken(vec![page]);
        }
    }

    /// The memory of a page.
    ///
    /// # Safety
    /// The cache keeps all others away from the page for as long as the slice is used.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise, not by this borrow")]
    unsafe fn page(&self, pfn: Pfn) -> &mut [u8] {
        let start = self.arena.address(pfn).expect("a cache's pages have memory");
        // SAFETY: a page of the arena's memory; exclusive by our caller's promise.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), PAGE_BYTES) }
    }

    /// The memory of a page, to read.
    ///
    /// # Safety
    /// The cache keeps those away that would change it, for as long as the slice is used.
    unsafe fn page_shared(&self, pfn: Pfn) -> &[u8] {
        let start = self.arena.address(pfn).expect("a cache's pages have memory");
        // SAFETY: a page of the arena's memory; no thread changes it by our caller's promise.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), PAGE_BYTES) }
    }
}

/// Pages taken from the queue. Dropping it reports how their write ended.
struct Taken<'q> {
    queue: &'q Queue,
    run: Vec<ToWrite>,
    result: Result<(), IoError>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let result = self.result;
        let completion = |ToWrite { file, index, pfn }| Completion { file, index, pfn, result };
        self.queue.finish(core::mem::take(&mut self.run).into_iter().map(completion));
    }
}

impl Device for FileDevice<'_> {
    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn may_hold(&self, file: FileId, index: u64) -> bool {
        let start = index.saturating_mul(PAGE_BYTES as u64);
        self.open(file).is_ok_and(|open| start < open.stored.load(Relaxed).min(*shared(&open.cut)))
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        let open = self.open(file)?;
        self.faults.turn()?;
        self.faults.pace(1, true);
        // SAFETY: while a page is filled, no other thread is given it.
        let page = unsafe { self.page(pfn) };
        open.read_page(page, index * PAGE_BYTES as u64).map_err(|error| io_error(&error))
    }

    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
        if self.queue.push(ToWrite { file, index, pfn }) {
            return Ok(Progress::Begun);
        }
        self.write_run(&[ToWrite { file, index, pfn }])?;
        Ok(Progress::Done)
    }

    fn completed(&self) -> Option<Completion> {
        self.queue.completed()
    }

    fn wait_for_completion(&self) {
        self.write_orphans();
        self.queue.wait();
    }

    fn hold_back(&self, turn: u32) {
        // Not until the next write is done: all who wait would get up for each.
        thread::sleep(HELD_BACK * (1 << turn.min(MOST_DOUBLED)));
    }

    fn pass_time(&self, turn: u32) {
        if let Some(nap) = turn.checked_sub(LOOKS) {
            self.write_orphans();
            thread::sleep(NAP * (1 << (nap / LOOKS).min(NAPS_DOUBLED)));
        }
    }

    fn is_congested(&self) -> bool {
        self.queue.is_congested()
    }

    fn wait_if_congested(&self, ms: u32) {
        let until = Instant::now() + Duration::from_millis(ms.into());
        while self.queue.is_congested() && Instant::now() < until {
            self.queue.wait();
        }
    }

    fn extend(&self, file: FileId, end: u64) {
        if let Ok(open) = self.open(file) {
            open.len.fetch_max(end, Relaxed);
        }
    }

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let open = self.open(file)?;
        let synced =
            open.cut().and_then(|()| open.file.sync_all()).and_then(|()| open.sync_folders(&self.made));
        synced.map_err(|error| io_error(&error))?;
        self.faults.sync_turn()
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        let (open, end) = (self.open(file)?, index.saturating_mul(PAGE_BYTES as u64));
        open.len.fetch_min(end, Relaxed);
        // The pages behind it are dropped already, and one of them may have raised `len` beyond what storage has.
        // If the system does not give the file its length now, the next write behind its end does, or the next sync.
        let mut first_cut = alone(&open.cut);
        *first_cut = end.min(*first_cut);
        drop(first_cut);
        open.note_gap();
        self.faults.turn()?;
        open.cut().map_err(|error| io_error(&error))
    }

    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        // SAFETY: while a page is copied into, no other thread is given it.
        let page = unsafe { self.page(pfn) };
        page[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
        // SAFETY: while a page is copied from, no thread changes it.
        let page = unsafe { self.page_shared(pfn) };
        bytes.copy_from_slice(&page[offset..offset + bytes.len()]);
    }

    fn copy_page(&self, from: Pfn, to: Pfn) {
        // SAFETY: while a page moves, no other thread is given either.
        let (from, to) = unsafe { (self.page_shared(from), self.page(to)) };
        to.copy_from_slice(from);
    }

    fn clear(&self, pfn: Pfn) {
        // SAFETY: while a page is copied into, no other thread is given it.
        let page = unsafe { self.page(pfn) };
        page.fill(0);
    }
}

#[cfg(test)]
mod tests;
