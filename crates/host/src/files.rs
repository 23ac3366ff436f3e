//! A page cache on real files: past the system's own cache where the file system allows it (`O_DIRECT`), so
//! that an arena's pages are the only ones.
#![expect(unsafe_code, reason = "pages are read and written where they lie")]

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use framewright::platform::Platform;
use framewright::reclaim::Helpers;
use framewright::{NodeId, Pfn};
use framewright_pagecache::latency::Histogram;
use framewright_pagecache::slab::Shrinker;
use framewright_pagecache::{
    Cache, CacheError, Completion, Device, FileId, IoError, PageSlot, Progress, Swap,
};

use crate::arena::{Arena, PAGE_BYTES};
use crate::cpu::Attached;
use crate::error::AttachError;
use crate::os::{reserve, write_pieces};
use crate::platform::Host;
use crate::writing::{Next, Queue, ToWrite};

/// How long a writer is held back first, and how often that doubles: 16 ms at most, as storage is faster than it was when
/// Linux chose 100.
const HELD_BACK: Duration = Duration::from_millis(1);
const MOST_DOUBLED: u32 = 4;

/// The swap area's file. No other has this number: they are counted from 0 up.
const SWAP: FileId = FileId(u32::MAX);

/// Files as a device, for a cache alone: whoever else called it could reach pages that are not theirs.
pub(crate) struct FileDevice<'a> {
    arena: &'a Arena<PageSlot>,
    files: Mutex<BTreeMap<FileId, Arc<Open>>>,
    swap: Option<Arc<Open>>,
    queue: Queue,
    /// Of a thousand reads and writes, so many fail on purpose.
    faults: AtomicU64,
    /// Of those that do not, so many of a thousand take so much longer.
    delayed: AtomicU64,
    delay_ns: AtomicU64,
    /// How long a page takes at least, and until when those take that have been asked for; 0 for no limit.
    page_ns: AtomicU64,
    busy_until_ns: AtomicU64,
    turns: AtomicU64,
}

/// An open file.
struct Open {
    file: File,
    /// Its length in bytes, as the cache's users see it.
    len: AtomicU64,
    /// Where that ends which storage holds.
    stored: AtomicU64,
    direct: bool,
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileDevice<'_> {
    fn open(&self, file: FileId) -> Result<Arc<Open>, IoError> {
        if file == SWAP {
            return self.swap.clone().ok_or(IoError);
        }
        held(&self.files).get(&file).cloned().ok_or(IoError)
    }

    /// Fails or dawdles on purpose, if it is time.
    fn fault(&self) -> Result<(), IoError> {
        let faults = self.faults.load(Relaxed);
        // Spread evenly: a step that shares no factor with 1000.
        let turn = self.turns.fetch_add(1, Relaxed).wrapping_mul(619) % 1000;
        if turn < faults {
            return Err(IoError);
        }
        if turn - faults < self.delayed.load(Relaxed) {
            thread::sleep(Duration::from_nanos(self.delay_ns.load(Relaxed)));
        }
        Ok(())
    }

    /// Takes as long for so many pages as a disk of the wished bandwidth that serves one request at a time, reads
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

    /// Writes pages of a file, each behind the other: all of them or, as far as anybody can tell, none.
    fn write_run(&self, run: &[ToWrite]) -> Result<(), IoError> {
        let Some(first) = run.first() else { return Ok(()) };
        let open = self.open(first.file)?;
        self.fault()?;
        self.pace(run.len(), false);
        let end = (first.index + run.len() as u64) * PAGE_BYTES as u64;
        open.stored.fetch_max(end, Relaxed);
        // SAFETY: while a page is written out, nobody changes it.
        let pages: Vec<&[u8]> = run.iter().map(|it| unsafe { self.page_shared(it.pfn) }).collect();
        let start = first.index * PAGE_BYTES as u64;
        let written = write_pieces(&open.file, &pages, start).unwrap_or(0);
        // The rest, or what is wrong with it, page by page.
        for (page, at) in pages.iter().zip((start..).step_by(PAGE_BYTES)).skip(written / PAGE_BYTES) {
            open.file.write_all_at(page, at).map_err(|_| IoError)?;
        }
        Ok(())
    }

    /// The memory of a page.
    ///
    /// # Safety
    /// The cache keeps everybody else away from the page for as long as the slice is used.
    #[expect(clippy::mut_from_ref, reason = "exclusive by the caller's promise, not by this borrow")]
    unsafe fn page(&self, pfn: Pfn) -> &mut [u8] {
        let start = self.arena.address(pfn).expect("a cache's pages have memory");
        // SAFETY: a page of the arena's memory; exclusive by our caller's promise.
        unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), PAGE_BYTES) }
    }

    /// The memory of a page, to read.
    ///
    /// # Safety
    /// The cache keeps everybody away who would change it, for as long as the slice is used.
    unsafe fn page_shared(&self, pfn: Pfn) -> &[u8] {
        let start = self.arena.address(pfn).expect("a cache's pages have memory");
        // SAFETY: a page of the arena's memory; nobody changes it by our caller's promise.
        unsafe { core::slice::from_raw_parts(start.as_ptr(), PAGE_BYTES) }
    }
}

/// Opens a file, and makes it with these permissions if it is not there.
fn open_file(path: &Path, mode: u32) -> io::Result<Open> {
    let options = |flags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(mode).custom_flags(flags);
        options.open(path)
    };
    // Some file systems have no direct access.
    let (file, direct) = match options(libc::O_DIRECT) {
        Ok(file) => (file, true),
        Err(_) => (options(0)?, false),
    };
    let len = file.metadata()?.len();
    Ok(Open { file, len: AtomicU64::new(len), stored: AtomicU64::new(len), direct })
}

fn read_fully(file: &File, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.read_at(bytes, offset) {
            Ok(0) => break,
            Ok(n) => {
                bytes = &mut bytes[n..];
                offset += n as u64;
                // A direct read that ends inside a block has met the end of the file.
                if !n.is_multiple_of(512) {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.fill(0);
    Ok(())
}

impl Device for FileDevice<'_> {
    fn page_bytes(&self) -> usize {
        PAGE_BYTES
    }

    fn may_hold(&self, file: FileId, index: u64) -> bool {
        let start = index.saturating_mul(PAGE_BYTES as u64);
        self.open(file).is_ok_and(|open| start < open.stored.load(Relaxed))
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        let open = self.open(file)?;
        self.fault()?;
        self.pace(1, true);
        // SAFETY: while a page is filled, nobody else is given it.
        let page = unsafe { self.page(pfn) };
        read_fully(&open.file, page, index * PAGE_BYTES as u64).map_err(|_| IoError)
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
        self.queue.wait();
    }

    fn hold_back(&self, turn: u32) {
        // Not until the next write is done: all who wait would get up for each.
        thread::sleep(HELD_BACK * (1 << turn.min(MOST_DOUBLED)));
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

    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let open = self.open(file)?;
        // Whole pages were written: cut off what is beyond the end.
        open.file.set_len(open.len.load(Relaxed)).map_err(|_| IoError)?;
        open.file.sync_all().map_err(|_| IoError)
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        let open = self.open(file)?;
        let most = index.saturating_mul(PAGE_BYTES as u64);
        open.len.fetch_min(most, Relaxed);
        open.stored.fetch_min(most, Relaxed);
        open.file.set_len(open.len.load(Relaxed)).map_err(|_| IoError)
    }

    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        // SAFETY: while a page is copied into, nobody else is given it.
        let page = unsafe { self.page(pfn) };
        page[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
        // SAFETY: while a page is copied from, nobody changes it.
        let page = unsafe { self.page_shared(pfn) };
        bytes.copy_from_slice(&page[offset..offset + bytes.len()]);
    }

    fn clear(&self, pfn: Pfn) {
        // SAFETY: while a page is copied into, nobody else is given it.
        let page = unsafe { self.page(pfn) };
        page.fill(0);
    }
}

/// Files, cached in an arena's pages, and anonymous pages beside them (see
/// [`with_swap`](Self::with_swap)). Shared by the threads that are attached to the arena.
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
    arena: &'a Arena<PageSlot>,
    /// Spaces of anonymous pages made so far.
    pub(crate) spaces: AtomicU32,
    /// How long the next background thread that is woken does nothing.
    stall_ns: AtomicU64,
}

impl fmt::Debug for FileCache<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCache").field("arena", self.arena).finish_non_exhaustive()
    }
}

impl<'a> FileCache<'a> {
    /// An empty cache in an arena, without swap.
    ///
    /// # Panics
    /// If the arena has no memory, or spans 16 TiB or more.
    #[must_use]
    pub fn new(arena: &'a Arena<PageSlot>) -> Self {
        Self::build(arena, None)
    }

    /// An empty cache in an arena that swaps to a file of so many pages when memory is short. The file is made if it
    /// is not there, for nobody but its owner to read; what it held is lost, and what is left in it means nothing.
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
    /// What the system says: there is no room on the disk, say.
    ///
    /// # Panics
    /// If the arena has no memory, or spans 16 TiB or more.
    pub fn with_swap(arena: &'a Arena<PageSlot>, path: &Path, pages: u32) -> io::Result<Self> {
        let open = open_file(path, 0o600)?;
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        reserve(&open.file, bytes)?;
        open.len.store(bytes, Relaxed);
        Ok(Self::build(arena, Some((open, pages))))
    }

    /// The same cache, which has caches of small objects shrunk whenever it is asked for pages.
    #[must_use]
    pub fn with_shrinkers(self, all: &[&'a dyn Shrinker]) -> Self {
        Self { cache: self.cache.with_shrinkers(all), ..self }
    }

    fn build(arena: &'a Arena<PageSlot>, swap: Option<(Open, u32)>) -> Self {
        assert!(arena.has_memory(), "pages of files need memory to lie in");
        let (open, slots) = swap.unzip();
        let device = FileDevice {
            arena,
            files: Mutex::default(),
            swap: open.map(Arc::new),
            queue: Queue::default(),
            faults: AtomicU64::new(0),
            delayed: AtomicU64::new(0),
            delay_ns: AtomicU64::new(0),
            page_ns: AtomicU64::new(0),
            busy_until_ns: AtomicU64::new(0),
            turns: AtomicU64::new(0),
        };
        let cache = match slots {
            Some(slots) => Cache::with_swap(arena.allocator(), device, Swap::new(SWAP, slots)),
            None => Cache::new(arena.allocator(), device),
        };
        Self { cache, arena, spaces: AtomicU32::new(0), stall_ns: AtomicU64::new(0) }
    }

    /// Opens a file to read and write, and makes it if it is not there. Each call is another [`FileId`] with
    /// pages of its own: open a file once.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self, path: &Path) -> io::Result<FileId> {
        let open = open_file(path, 0o666)?;
        let mut files = held(&self.cache.device().files);
        let id = FileId(files.last_key_value().map_or(0, |(id, _)| id.0 + 1));
        files.insert(id, Arc::new(open));
        Ok(id)
    }

    /// Flushes a file, drops its pages and closes it.
    ///
    /// # Errors
    /// It could not be flushed: it stays open, and nothing is lost.
    pub fn close(&self, cpu: &Attached<'_, PageSlot>, file: FileId) -> Result<(), CacheError> {
        self.flush(file)?;
        self.cache.drop_pages(cpu.core(), file)?;
        held(&self.cache.device().files).remove(&file);
        Ok(())
    }

    /// Drops a file's pages, written or not, and closes it: for files that are deleted.
    pub fn forget(&self, cpu: &Attached<'_, PageSlot>, file: FileId) {
        // The device has nothing to keep: the file is as it is.
        let open = held(&self.cache.device().files).remove(&file);
        let _ = self.cache.truncate(cpu.core(), file, 0);
        drop(open);
    }

    /// Whether a file's pages pass the system's cache by.
    #[must_use]
    pub fn is_direct(&self, file: FileId) -> bool {
        self.cache.device().open(file).is_ok_and(|open| open.direct)
    }

    /// A file's length in bytes.
    ///
    /// # Errors
    /// There is no such file.
    pub fn len(&self, file: FileId) -> Result<u64, CacheError> {
        Ok(self.cache.device().open(file)?.len.load(Relaxed))
    }

    /// Reads from `offset` on, as much as there is. Returns the bytes read.
    ///
    /// # Errors
    /// There is no such file, no memory, or the device failed.
    pub fn read(
        &self,
        cpu: &Attached<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<usize, CacheError> {
        let there = self.len(file)?.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let bytes = &mut bytes[..there];
        let mut done = 0;
        while done < bytes.len() {
            let (index, at, part) = piece(offset + done as u64, bytes.len() - done);
            let part = &mut bytes[done..done + part];
            self.cache.read(cpu.core(), &self.helpers(), (file, index, at), part)?;
            done += part.len();
        }
        Ok(done)
    }

    /// Writes at `offset`. It is on storage after [`flush`](Self::flush).
    ///
    /// # Errors
    /// As [`read`](Self::read). Pages before the one that failed have been written.
    pub fn write(
        &self,
        cpu: &Attached<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.each_piece(file, offset, bytes, |at, part| {
            self.cache.write(cpu.core(), &self.helpers(), at, part)
        })
    }

    /// Stores at `offset` as through a mapping: the pages stay mapped until reclaim unmaps them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn store_mapped(
        &self,
        cpu: &Attached<'_, PageSlot>,
        file: FileId,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), CacheError> {
        self.each_piece(file, offset, bytes, |at, part| {
            self.cache.store_mapped(cpu.core(), &self.helpers(), at, part)
        })
    }

    fn each_piece(
        &self,
        file: FileId,
        offset: u64,
        bytes: &[u8],
        mut write: impl FnMut((FileId, u64, usize), &[u8]) -> Result<(), CacheError>,
    ) -> Result<(), CacheError> {
        let open = self.cache.device().open(file)?;
        let mut done = 0;
        while done < bytes.len() {
            let (index, at, part) = piece(offset + done as u64, bytes.len() - done);
            write((file, index, at), &bytes[done..done + part])?;
            done += part;
            open.len.fetch_max(offset + done as u64, Relaxed);
        }
        Ok(())
    }

    /// Makes storage hold what was written to a file before, durably.
    ///
    /// # Errors
    /// The device failed, now or since the last flush. Nothing is lost: the pages are dirty still.
    pub fn flush(&self, file: FileId) -> Result<(), CacheError> {
        self.cache.flush(file)
    }

    /// Cuts a file off behind page `index`. Its memory is free at once.
    ///
    /// # Errors
    /// The system failed.
    pub fn truncate(&self, cpu: &Attached<'_, PageSlot>, file: FileId, index: u64) -> Result<(), CacheError> {
        self.cache.truncate(cpu.core(), file, index)
    }

    /// Writes out what is dirty, of all files. Unlike [`flush`](Self::flush), it does not ask the system to make
    /// that durable.
    ///
    /// # Errors
    /// Some could not be written. It is dirty still.
    pub fn write_back(&self) -> Result<(), CacheError> {
        self.cache.write_all()
    }

    /// Helpers of which this cache is the reclaimer, for other allocations from the arena.
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        Helpers { reclaim: Some(&self.cache), ..self.arena.helpers() }
    }

    /// Reclaims this cache's pages for a node in the background, on this thread (see
    /// [`Arena::run_background`]).
    ///
    /// # Errors
    /// As [`Arena::run_background`].
    pub fn run_background(&self, node: NodeId) -> Result<(), AttachError> {
        self.arena.run_background_with(node, || {
            let stall = self.stall_ns.swap(0, Relaxed);
            if stall > 0 {
                thread::sleep(Duration::from_nanos(stall));
            }
            self.helpers()
        })
    }

    /// Writes pages out on this thread, until [`stop_writing`](Self::stop_writing): those that others have begun
    /// to write, neighbours in one call; and when many are dirty, on its own account. Without such a thread,
    /// whoever has a page to write waits for storage.
    pub fn run_writing(&self) {
        let device = self.cache.device();
        device.queue.enter();
        loop {
            match device.queue.next() {
                Next::Write(run) => {
                    let result = device.write_run(&run);
                    let completion = |ToWrite { file, index, pfn }| Completion { file, index, pfn, result };
                    device.queue.finish(run.into_iter().map(completion));
                    self.cache.poll();
                }
                Next::LookAround => drop(self.cache.write_in_background()),
                Next::End => break,
            }
        }
    }

    /// Ends [`run_writing`](Self::run_writing) of all threads, now and later, when all that was begun is written.
    pub fn stop_writing(&self) {
        self.cache.device().queue.stop();
    }

    /// Pages of files cached, and those of them that are dirty.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        self.cache.pages()
    }

    /// What the cache has been through.
    #[must_use]
    pub fn events(&self) -> framewright_pagecache::state::CacheEvents {
        self.cache.events()
    }

    /// How long allocations of the cache's pages took.
    #[must_use]
    pub fn allocation_times(&self) -> Histogram {
        self.cache.allocation_times()
    }

    /// Checks the cache's books. Nobody may be at work.
    ///
    /// # Errors
    /// What is wrong.
    pub fn verify(&self) -> Result<(), &'static str> {
        self.cache.verify()
    }

    /// Has so many of a thousand reads and writes fail: to see what becomes of a program then.
    pub fn inject_faults(&self, per_thousand: u64) {
        self.cache.device().faults.store(per_thousand, Relaxed);
    }

    /// Has so many of a thousand reads and writes take so much longer.
    pub fn inject_delays(&self, per_thousand: u64, delay: Duration) {
        self.cache.device().delay_ns.store(delay.as_nanos() as u64, Relaxed);
        self.cache.device().delayed.store(per_thousand, Relaxed);
    }

    /// Has storage read and write no more than so many bytes per second, all files together, as a slower disk
    /// would; 0 for no limit.
    pub fn limit_storage(&self, bytes_per_second: u64) {
        let page_ns = (PAGE_BYTES as u64 * 1_000_000_000).checked_div(bytes_per_second).unwrap_or(0);
        self.cache.device().page_ns.store(page_ns, Relaxed);
    }

    /// Has the next background thread that is woken sleep so long before it does anything.
    pub fn stall_background(&self, stall: Duration) {
        self.stall_ns.store(stall.as_nanos() as u64, Relaxed);
    }
}

/// The first page of a range, where the range begins in it, and how much of it lies there.
pub(crate) fn piece(offset: u64, len: usize) -> (u64, usize, usize) {
    let at = (offset % PAGE_BYTES as u64) as usize;
    (offset / PAGE_BYTES as u64, at, len.min(PAGE_BYTES - at))
}
