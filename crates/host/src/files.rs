//! A page cache on real files.

use core::fmt;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, RwLock};

use framewright_pagecache::latency::Histogram;
use framewright_pagecache::slab::Shrinker;
use framewright_pagecache::{Cache, CacheError, FileId, Opener, PageSlot, Swap};

use crate::arena::{Arena, PAGE_BYTES};
use crate::cpu::Cpu;
use crate::device::{FileDevice, NO_SPACE, Open, SWAP, alone, held, io_error, shared};
use crate::os::reserve;
use crate::platform::Host;
use crate::writing::Next;

/// Files, cached in an arena's pages, and anonymous pages beside them (see
/// [`with_swap`](Self::with_swap)). Shared by the threads that are attached to the arena.
///
/// `docs/durability.md` states what is durable when, and what survives a crash. In short: what was written before a
/// [`flush`](Self::flush) began that returned `Ok`. A cache that is dropped flushes what is dirty, and writes a line to
/// standard error for each file that it could not; [`finish`](Self::finish) returns that instead.
///
/// Opening, reading, writing, flushing, cutting, closing and forgetting files may race: each call about a file either
/// finds it open and has its whole effect, or says [`CacheError::Closed`].
///
/// In a child of the process that made the cache all files count as closed, and dropping the cache does nothing: what
/// was written is the parent's to flush.
///
/// ```
/// use framewright_host::{Arena, Config, FileCache, PageSlot};
///
/// let path = std::env::temp_dir().join(format!("framewright-doc-{}", std::process::id()));
/// let config = Config::framewright().with_marks();
/// let arena: Arena<PageSlot> = Arena::builder().bytes(4 << 20).config(config).build()?;
/// let files = FileCache::new(&arena);
/// let cpu = arena.attach()?;
/// let file = files.open(&path)?;
/// files.write(&cpu, file, 5000, b"hello")?;
/// files.flush(file)?;
/// let mut bytes = [0; 5];
/// assert_eq!(files.read(&cpu, file, 5000, &mut bytes)?, 5);
/// assert_eq!(&bytes, b"hello");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FileCache<'a> {
    pub(crate) cache: Cache<'a, Host, FileDevice<'a>>,
    pub(crate) arena: &'a Arena<PageSlot>,
    /// Files that `open` has handed out.
    openers: RwLock<BTreeMap<FileId, Arc<Handle>>>,
    /// By device and inode, what is open.
    inodes: Mutex<BTreeMap<(u64, u64), Inode>>,
    /// Some inode is closed, or is not after all.
    closed: Condvar,
    /// Numbers of openers so far. None is used twice. A file has that of its first one.
    numbers: AtomicU32,
    /// Spaces of anonymous pages made so far.
    pub(crate) spaces: AtomicU32,
    /// How long the next background thread that is woken does nothing.
    pub(crate) stall_ns: AtomicU64,
}

/// One opening of a file.
struct Handle {
    open: Arc<Open>,
    /// It names the cache's number of the file, which all openers of the file share.
    opener: Opener<Host>,
    /// How the user calls it, for messages.
    path: PathBuf,
}

/// A file that is open.
struct Inode {
    number: FileId,
    open: Arc<Open>,
    openers: usize,
    /// The last opener is closing it. A thread that wants to open it waits: its pages are not all on storage yet.
    closing: bool,
}

/// A file of which a cache could not make everything durable.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: not all that was written is on storage: {error}", path.display())]
pub struct Unflushed {
    /// The path it was opened with.
    pub path: PathBuf,
    /// Why not.
    pub error: CacheError,
}

impl fmt::Debug for FileCache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCache").field("arena", self.arena).finish_non_exhaustive()
    }
}

impl Drop for FileCache<'_> {
    fn drop(&mut self) {
        // In a child, files, pages and swap area are the parent's.
        if self.arena.is_forked() {
            return;
        }
        for lost in self.flush_all() {
            // Not `eprintln`, which panics where it cannot write: standard error may be on the same full disk.
            let _ = writeln!(io::stderr(), "framewright: {lost}");
        }
        self.arena.free_left(self.cache.take_pages());
        // It holds memory of this process.
        if let Some(swap) = &self.cache.device().swap {
            let _ = swap.file.set_len(0);
        }
    }
}

impl<'a> FileCache<'a> {
    /// An empty cache in an arena, without swap.
    ///
    /// # Panics
    /// If the arena has no memory, pages of another size than 4 KiB, or spans 16 TiB or more.
    #[must_use]
    pub fn new(arena: &'a Arena<PageSlot>) -> Self {
        Self::build(arena, None)
    }

    /// An empty cache in an arena that swaps to a file of `pages` pages when memory is short. The file is made if it
    /// is not there, for its owner alone to read; what it held is lost. It is locked as long as the cache lives, and
    /// emptied when it is dropped: it holds memory of this process. A process that is killed leaves that there; see
    /// [`with_unnamed_swap`](Self::with_unnamed_swap).
    ///
    /// ```
    /// use framewright_host::{Arena, Config, FileCache, PAGE_BYTES, PageSlot};
    ///
    /// let path = std::env::temp_dir().join(format!("framewright-swap-{}", std::process::id()));
    /// let config = Config::framewright().with_marks();
    /// let arena: Arena<PageSlot> = Arena::builder().bytes(4 << 20).config(config).build()?;
    /// let cache = FileCache::with_swap(&arena, &path, 4096)?;
    /// let cpu = arena.attach()?;
    /// let space = cache.make_space();
    /// // Three times the memory.
    /// for page in 0..3072 {
    ///     cache.store_anon(&cpu, space, page * PAGE_BYTES as u64, &page.to_le_bytes())?;
    /// }
    /// for page in 0..3072_u64 {
    ///     let mut bytes = [0; 8];
    ///     cache.load_anon(&cpu, space, page * PAGE_BYTES as u64, &mut bytes)?;
    ///     assert_eq!(u64::from_le_bytes(bytes), page);
    /// }
    /// assert!(cache.events().pswpin > 2000);
    /// cache.drop_space(&cpu, space);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The system's error: there is no room on the disk, say, and then it has as much as before. Or the path is a
    /// symbolic link, or names no regular file, or a file of another user, one with other names, or one that another
    /// process swaps to.
    ///
    /// # Panics
    /// If the arena has no memory, pages of another size than 4 KiB, or spans 16 TiB or more.
    pub fn with_swap(arena: &'a Arena<PageSlot>, path: &Path, pages: u32) -> io::Result<Self> {
        Self::swapping(arena, Open::private(path)?, pages)
    }

    /// Like [`with_swap`](Self::with_swap), with a file that has no name, in a folder: it is gone with the process,
    /// however that ends.
    ///
    /// # Errors
    /// As [`with_swap`](Self::with_swap).
    ///
    /// # Panics
    /// As [`with_swap`](Self::with_swap).
    pub fn with_unnamed_swap(arena: &'a Arena<PageSlot>, folder: &Path, pages: u32) -> io::Result<Self> {
        Self::swapping(arena, Open::unnamed(folder)?, pages)
    }

    fn swapping(arena: &'a Arena<PageSlot>, open: Open, pages: u32) -> io::Result<Self> {
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        // Where there is no room for all of it, some file systems keep what they found.
        reserve(&open.file, bytes).inspect_err(|_| drop(open.file.set_len(open.len.load(Relaxed))))?;
        open.len.store(bytes, Relaxed);
        Ok(Self::build(arena, Some((open, pages))))
    }

    /// Has caches of small objects shrunk whenever the cache is asked for pages. They are asked in the
    /// middle of calls of this cache, and must not call it themselves.
    #[must_use]
    pub fn with_shrinkers(mut self, all: &[&'a dyn Shrinker]) -> Self {
        self.cache.set_shrinkers(all);
        self
    }

    fn build(arena: &'a Arena<PageSlot>, swap: Option<(Open, u32)>) -> Self {
        assert!(arena.has_memory(), "pages of files need memory to lie in");
        assert_eq!(arena.page_bytes(), PAGE_BYTES, "a page cache has pages of 4 KiB");
        // The cache uses pages as they come from the allocator.
        arena.annotated.end();
        let (open, slots) = swap.unzip();
        let device = FileDevice::new(arena, open);
        let mut cache = Cache::new(arena.allocator(), device);
        if let Some(slots) = slots {
            cache = cache.with_swap(Swap::new(SWAP, slots));
        }
        Self {
            cache,
            arena,
            openers: RwLock::default(),
            inodes: Mutex::default(),
            closed: Condvar::new(),
            numbers: AtomicU32::new(0),
            spaces: AtomicU32::new(0),
            stall_ns: AtomicU64::new(0),
        }
    }

    // ---- opening and closing -----------------------------------------------------------------------------

    /// Opens a file to read and write, and makes it if it is not there. A file that is opened again shares its pages
    /// and its length with those who have it open; each opener closes its own, and hears of each error once.
    ///
    /// # Errors
    /// The system's error, or the path names no regular file.
    pub fn open(&self, path: &Path) -> io::Result<FileId> {
        self.enter(Open::named(path, &self.cache.device().made)?, path.into())
    }

    /// Makes a file without a name in a folder, which no other process can open: it is gone when it is closed, or with
    /// the process, however that ends.
    ///
    /// # Errors
    /// The system's error.
    pub fn open_unnamed(&self, folder: &Path) -> io::Result<FileId> {
        self.enter(Open::unnamed(folder)?, folder.join("(unnamed)"))
    }

    fn number(&self) -> io::Result<FileId> {
        let next = |made: u32| made.checked_add(1).filter(|&next| next < SWAP.0);
        let number = self.numbers.fetch_update(Relaxed, Relaxed, next);
        number
            .map(FileId)
            .map_err(|_| io::Error::other("a page cache opens fewer than 2^32 - 1 files in its life"))
    }

    fn enter(&self, open: Open, path: PathBuf) -> io::Result<FileId> {
        self.here().map_err(io::Error::other)?;
        let number = self.number()?;
        let mut inodes = held(&self.inodes);
        while inodes.get(&open.key).is_some_and(|inode| inode.closing) {
            inodes = self.closed.wait(inodes).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        let (key, folder) = (open.key, open.take_folder());
        let inode = inodes.entry(key).or_insert_with(|| {
            // While it was closed, others may have changed its length.
            let open = Arc::new(open);
            open.measure();
            alone(&self.cache.device().files).insert(number, Arc::clone(&open));
            Inode { number, open, openers: 0, closing: false }
        });
        // Also where another thread has opened the file between its making and here.
        inode.open.owe_folder(folder);
        inode.openers += 1;
        let opener = self.cache.opener(inode.number);
        let handle = Handle { open: Arc::clone(&inode.open), opener, path };
        alone(&self.openers).insert(number, Arc::new(handle));
        Ok(number)
    }

    /// Flushes a file and closes it. Its pages are dropped when no other opener has it open.
    ///
    /// # Errors
    /// It could not be flushed: it stays open, and a later call may succeed. [`forget`](Self::forget) closes it in any
    /// case.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn close(&self, cpu: &Cpu<'_, PageSlot>, file: FileId) -> Result<(), CacheError> {
        self.end(cpu, file, true)
    }

    /// Closes a file. If no other opener has it open, its pages are dropped, written or not: for files that are
    /// deleted. What storage holds stays as it is.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn forget(&self, cpu: &Cpu<'_, PageSlot>, file: FileId) {
        let _ = self.end(cpu, file, false);
    }

    /// Ends an opener; and the file with its last one, when all that is dirty is flushed, if it should be.
    fn end(&self, cpu: &Cpu<'_, PageSlot>, file: FileId, flush: bool) -> Result<(), CacheError> {
        self.check(cpu);
        self.here()?;
        // The thread that takes it out ends it: one only.
        let handle = alone(&self.openers).remove(&file).ok_or(CacheError::Closed)?;
        let result = self.end_handle(cpu, &handle, flush);
        if result.is_err() {
            alone(&self.openers).insert(file, handle);
        }
        result
    }

    fn end_handle(&self, cpu: &Cpu<'_, PageSlot>, handle: &Handle, flush: bool) -> Result<(), CacheError> {
        let (key, number) = (handle.open.key, handle.opener.file());
        let others = |inodes: &BTreeMap<_, Inode>| inodes.get(&key).is_some_and(|inode| inode.openers > 1);
        let mut inodes = held(&self.inodes);
        if flush && others(&inodes) {
            // This opener counts until it is flushed, so the file stays open.
            drop(inodes);
            let open = shared(&handle.open.gate);
            self.cache.flush_by(&handle.opener)?;
            drop(open);
            inodes = held(&self.inodes);
        }
        let is_last = !others(&inodes);
        let inode = inodes.get_mut(&key).expect("an opener's file is open");
        if !is_last {
            inode.openers -= 1;
            return Ok(());
        }
        inode.closing = true;
        drop(inodes);
        // Waits for every call about the file, and none comes after it.
        let mut closed = alone(&handle.open.gate);
        let result = if flush {
            let flushed = self.cache.flush_by(&handle.opener);
            flushed.and_then(|()| self.cache.drop_pages(cpu.core(), number))
        } else {
            Ok(())
        };
        if result.is_ok() {
            self.cache.forget(cpu.core(), number);
            *closed = true;
        }
        drop(closed);
        let mut inodes = held(&self.inodes);
        if result.is_ok() {
            inodes.remove(&key);
            alone(&self.cache.device().files).remove(&number);
        } else if let Some(inode) = inodes.get_mut(&key) {
            inode.closing = false;
        }
        drop(inodes);
        self.closed.notify_all();
        result
    }

    /// Makes everything durable that was written, and ends the cache.
    ///
    /// # Errors
    /// The files of which that could not be done.
    pub fn finish(self) -> Result<(), Vec<Unflushed>> {
        if self.here().is_err() {
            return Ok(());
        }
        let lost = self.flush_all();
        // What could not be flushed is reported here, and not once more by dropping.
        alone(&self.openers).clear();
        if lost.is_empty() { Ok(()) } else { Err(lost) }
    }

    /// Flushes all files. Those of which not everything is durable.
    fn flush_all(&self) -> Vec<Unflushed> {
        let named = |handle: &&Arc<Handle>| handle.open.named;
        let openers: Vec<_> = shared(&self.openers).values().filter(named).cloned().collect();
        let lost = |handle: Arc<Handle>| {
            let error = self.cache.flush_by(&handle.opener).err()?;
            // An error that is told late, and made good since, is no loss.
            let error = if matches!(error, CacheError::Lost(_)) {
                error
            } else {
                self.cache.flush_by(&handle.opener).err()?
            };
            Some(Unflushed { path: handle.path.clone(), error })
        };
        openers.into_iter().filter_map(lost).collect()
    }

    // ---- using files -------------------------------------------------------------------------------------

    /// A frame's number means something in its own arena only.
    #[track_caller]
    pub(crate) fn check(&self, cpu: &Cpu<'_, PageSlot>) {
        assert!(core::ptr::eq(cpu.arena(), self.arena), "the CPU is one of another arena than the cache's");
    }

    /// The cache; in a child of the process that made it, all is closed.
    pub(crate) fn here(&self) -> Result<&Cache<'a, Host, FileDevice<'a>>, CacheError> {
        if self.arena.is_forked() { Err(CacheError::Closed) } else { Ok(&self.cache) }
    }

    fn handle(&self, file: FileId) -> Result<Arc<Handle>, CacheError> {
        self.here()?;
        shared(&self.openers).get(&file).cloned().ok_or(CacheError::Closed)
    }

    /// Runs `f` on a file that stays open during that, with the cache's number of it.
    fn with<R>(
        &self,
        file: FileId,
        f: impl FnOnce(&Handle, FileId) -> Result<R, CacheError>,
    ) -> Result<R, CacheError> {
        let handle = self.handle(file)?;
        let closed = shared(&handle.open.gate);
        if *closed { Err(CacheError::Closed) } else { f(&handle, handle.opener.file()) }
    }

    /// Whether a file's pages pass the system's cache by.
    #[must_use]
    pub fn is_direct(&self, file: FileId) -> bool {
        self.handle(file).is_ok_and(|handle| handle.open.direct)
    }

    /// A file's length in bytes.
    ///
    /// # Errors
    /// There is no such file.
    pub fn len(&self, file: FileId) -> Result<u64, CacheError> {
        Ok(self.handle(file)?.open.len.load(Relaxed))
    }

    /// The file opened again, to be read through the system's own cache: what storage holds, flushed or not.
    ///
    /// # Errors
    /// There is no such file, or what the system says.
    pub fn reopen(&self, file: FileId) -> Result<File, CacheError> {
        let handle = self.handle(file)?;
        handle.open.reopen().map_err(|error| CacheError::Io(io_error(&error)))
    }

    /// Reads from `offset` on, as much as there is. Returns the bytes read.
    ///
    /// # Errors
    /// There is no such file, no memory, or the device failed.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn read(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, CacheError> {
        self.check(cpu);
        self.with(file, |handle, number| {
            let len = handle.open.len.load(Relaxed);
            let there = len.saturating_sub(offset).min(bytes.len() as u64) as usize;
            for (index, at, part) in by_page(offset, there) {
                self.cache.read(cpu.core(), &self.helpers(), (number, index, at), &mut bytes[part])?;
            }
            Ok(there)
        })
    }

    /// Writes at `offset`. It is on storage after [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`read`](Self::read); or the range ends beyond 2⁶³ − 1 bytes, less what is left of a page. Pages before the
    /// one that failed have been written.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn write(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.each_piece(cpu, file, offset, bytes, |at, part| {
            self.cache.write(cpu.core(), &self.helpers(), at, part)
        })
    }

    /// Writes behind the file's end, wherever that is: several threads that append to a file each write to a place of
    /// their own. Returns where. Where a page cannot be written, the file has a gap, which reads as zeroes.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn append(&self, cpu: &Cpu<'_, PageSlot>, file: FileId, bytes: &[u8]) -> Result<u64, CacheError> {
        self.check(cpu);
        self.with(file, |handle, number| {
            // Before the file grows: a caller that tries again and again leaves no gaps.
            self.refuse_if_full(handle)?;
            let end = |len: u64| len.checked_add(bytes.len() as u64).filter(|&end| end <= LARGEST_FILE);
            let begin = handle.open.len.fetch_update(Relaxed, Relaxed, end).map_err(|_| CacheError::Range)?;
            let written = self.pieces(number, begin, bytes, |at, part| {
                self.cache.write(cpu.core(), &self.helpers(), at, part)
            });
            if written.is_err() {
                handle.open.note_gap();
            }
            written.map(|()| begin)
        })
    }

    /// Stores at `offset` as through a mapping: the pages stay mapped until reclaim unmaps them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn store_mapped(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.each_piece(cpu, file, offset, bytes, |at, part| {
            self.cache.store_mapped(cpu.core(), &self.helpers(), at, part)
        })
    }

    fn each_piece(
        &self,
        cpu: &Cpu<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        write: impl FnMut((FileId, u64, usize), &[u8]) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        self.check(cpu);
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > LARGEST_FILE) {
            return Err(CacheError::Range);
        }
        self.with(file, |handle, number| {
            self.refuse_if_full(handle)?;
            self.pieces(number, offset, bytes, write)
        })
    }

    /// A disk that is full, and as much in memory as may wait for it: more would only fill memory that no request gets
    /// back.
    fn refuse_if_full(&self, handle: &Handle) -> Result<(), CacheError> {
        let is_full = || handle.open.full.load(Relaxed) && self.cache.is_over_dirty_limit();
        if is_full() {
            // There may be room again, and without a writer thread no other call looks.
            self.cache.write_back(1);
        }
        if is_full() { Err(CacheError::Io(NO_SPACE)) } else { Ok(()) }
    }

    /// Writes a range that is in the largest file.
    fn pieces(
        &self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        mut write: impl FnMut((FileId, u64, usize), &[u8]) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        by_page(offset, bytes.len()).try_for_each(|(index, at, part)| write((file, index, at), &bytes[part]))
    }

    /// Makes storage hold what was written to a file before, durably; its name, too, if it was made by
    /// [`open`](Self::open).
    ///
    /// # Errors
    /// The device failed, now or since this opener's last flush. The pages are dirty still, or again, and a later flush
    /// writes them; unless it is [`CacheError::Lost`], which stays until the file is closed.
    pub fn flush(&self, file: FileId) -> Result<(), CacheError> {
        self.with(file, |handle, _| self.cache.flush_by(&handle.opener))
    }

    /// Cuts a file off behind page `index`. Its memory is free immediately. Waits for other calls about the file.
    ///
    /// # Errors
    /// There is no such file, or the system failed.
    ///
    /// # Panics
    /// If the CPU is one of another arena.
    pub fn truncate(&self, cpu: &Cpu<'_, PageSlot>, file: FileId, index: u64) -> Result<(), CacheError> {
        self.check(cpu);
        let handle = self.handle(file)?;
        let closed = alone(&handle.open.gate);
        if *closed {
            return Err(CacheError::Closed);
        }
        self.cache.truncate(cpu.core(), handle.opener.file(), index)
    }

    /// Writes out what is dirty, of all files. Unlike [`flush`](Self::flush), it does not ask the system to make
    /// that durable.
    ///
    /// # Errors
    /// Some could not be written. It is dirty still.
    pub fn write_back(&self) -> Result<(), CacheError> {
        self.here()?.write_all()
    }

    /// Writes pages out on this thread, until [`stop_writing`](Self::stop_writing): those that others have begun
    /// to write, neighbours in one call; and when many are dirty, on its own account. Without such a thread,
    /// a thread that has a page to write waits for storage.
    pub fn run_writing(&self) {
        if self.here().is_err() {
            return;
        }
        let device = self.cache.device();
        let _entered = device.queue.enter();
        loop {
            match device.queue.next() {
                Next::Write(run) => {
                    device.write_taken(run);
                    self.cache.poll();
                }
                // What keeps failing is tried one page at a time, and ever more rarely: or something would be on its
                // way to a broken or full disk at every moment, and a thread that waits until nothing is would never
                // end.
                Next::LookAround if device.failing.load(Relaxed) => drop(self.cache.write_back(1)),
                Next::LookAround => {
                    if self.cache.write_in_background() > 0 {
                        device.queue.was_useful();
                    }
                }
                Next::End => break,
            }
        }
    }

    /// Ends [`run_writing`](Self::run_writing) of all threads, now and later, when all that was begun is written.
    pub fn stop_writing(&self) {
        if let Ok(cache) = self.here() {
            cache.device().queue.stop();
        }
    }

    /// Pages of files cached, and those of them that are dirty.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        self.here().map(Cache::pages).unwrap_or_default()
    }

    /// Counts of the cache's events.
    #[must_use]
    pub fn events(&self) -> framewright_pagecache::state::CacheEvents {
        self.here().map(Cache::events).unwrap_or_default()
    }

    /// How long allocations of the cache's pages took.
    #[must_use]
    pub fn allocation_times(&self) -> Histogram {
        self.here().map(Cache::allocation_times).unwrap_or_default()
    }

    /// Checks the cache's books. No thread may be at work.
    ///
    /// # Errors
    /// The fault.
    pub fn verify(&self) -> Result<(), &'static str> {
        self.here().map_err(|_| "the cache is a parent's")?.verify()
    }
}

/// Bytes that a file may have: all of the last page's are written.
const LARGEST_FILE: u64 = i64::MAX as u64 / PAGE_BYTES as u64 * PAGE_BYTES as u64;

/// The pages of a range: each page, where the range begins in it, and which of the range's bytes it has.
pub(crate) fn by_page(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    core::iter::from_fn(move || {
        let begin = offset + done as u64;
        let at = (begin % PAGE_BYTES as u64) as usize;
        let part = done..len.min(done + PAGE_BYTES - at);
        done = part.end;
        (!part.is_empty()).then_some((begin / PAGE_BYTES as u64, at, part))
    })
}
