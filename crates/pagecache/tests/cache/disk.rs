//! A disk in memory that fails, stalls and looks over the cache's shoulder.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, OnceLock};
use std::thread::{self, ThreadId};

use framewright::units::Pfn;
use framewright_check::mix;
use framewright_pagecache::{Completion, Device, FileId, IoError, Progress};

/// Bytes of a page: enough to tell contents apart.
pub(crate) const BYTES: usize = 16;

/// What a thread sleeps while it waits for others.
const NAP: Duration = Duration::from_micros(1);

/// A page's memory, and who is at it.
#[derive(Default)]
struct Memory {
    bytes: [u8; BYTES],
    readers: u32,
    writer: bool,
}

/// A write that was begun: page of a file, where it is, what it holds.
type Begun = (FileId, u64, Pfn, [u8; BYTES]);

/// Storage, the pages' memory, and a judge of how the cache uses both.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) stored: Mutex<HashMap<(FileId, u64), [u8; BYTES]>>,
    memory: Mutex<HashMap<Pfn, Memory>>,
    /// Writes that were begun, with what they will write.
    begun: Mutex<VecDeque<Begun>>,
    /// Writes are begun, not done immediately, and one question in this many finds one done; 0 for never.
    slow: AtomicU64,
    /// Number of a hundred reads and writes that fail.
    pub(crate) fails: AtomicU64,
    /// Number of a file of which no page can be written; 0 for none.
    pub(crate) broken: AtomicU64,
    turns: AtomicU64,
    /// Reads wait here as long as this is set, before they have read anything; and how many have come.
    pub(crate) holds_reads: AtomicBool,
    pub(crate) reads: AtomicU64,
    /// Cuts likewise.
    pub(crate) holds_cuts: AtomicBool,
    pub(crate) cuts: AtomicU64,
    /// Pages that move; and how often a thread has waited for another.
    pub(crate) holds_copies: AtomicBool,
    pub(crate) copies: AtomicU64,
    pub(crate) waits: AtomicU64,
    /// The first thread that used it, and whether there was another one.
    first: OnceLock<ThreadId>,
    shared: AtomicBool,
}

impl Disk {
    /// A disk of which some calls of a hundred fail, and which is slow.
    pub(crate) fn new(fails: u64, slow: u64) -> Self {
        let disk = Self::default();
        disk.fails.store(fails, Relaxed);
        disk.slow.store(slow, Relaxed);
        disk
    }

    /// Lets other users of the disk run, if there are any. A yield would let busy processes run, a time slice each.
    fn let_others_run(&self) {
        let current = thread::current().id();
        if *self.first.get_or_init(|| current) != current {
            self.shared.store(true, Relaxed);
        }
        if self.shared.load(Relaxed) {
            thread::sleep(NAP);
        }
    }

    fn turn(&self) -> Result<(), IoError> {
        let n = mix(self.turns.fetch_add(1, Relaxed));
        if n.is_multiple_of(7) {
            self.let_others_run();
        }
        if n % 100 < self.fails.load(Relaxed) { Err(IoError::UNKNOWN) } else { Ok(()) }
    }

    fn finish(&self, file: FileId, index: u64, bytes: [u8; BYTES]) -> Result<(), IoError> {
        let is_broken = file.0 > 0 && u64::from(file.0) == self.broken.load(Relaxed);
        let failed = if is_broken { Err(IoError::UNKNOWN) } else { self.turn() };
        let mut stored = self.stored.lock().unwrap();
        // Torn, if it fails: the first half is new.
        let len = if failed.is_err() { BYTES / 2 } else { BYTES };
        stored.entry((file, index)).or_default()[..len].copy_from_slice(&bytes[..len]);
        failed
    }

    /// Reads memory over some time. No thread may write at the same time.
    fn load(&self, pfn: Pfn) -> [u8; BYTES] {
        let before = {
            let mut memory = self.memory.lock().unwrap();
            let page = memory.entry(pfn).or_default();
            assert!(!page.writer, "{pfn:?} is read while it is written");
            page.readers += 1;
            page.bytes
        };
        self.let_others_run();
        let mut memory = self.memory.lock().unwrap();
        let page = memory.get_mut(&pfn).unwrap();
        page.readers -= 1;
        assert_eq!(page.bytes, before, "{pfn:?} has changed under a reader");
        before
    }

    /// Changes memory over some time. No thread may be at it at the same time.
    fn store(&self, pfn: Pfn, change: impl FnOnce(&mut [u8; BYTES])) {
        {
            let mut memory = self.memory.lock().unwrap();
            let page = memory.entry(pfn).or_default();
            assert!(!page.writer && page.readers == 0, "{pfn:?} is written while others use it");
            page.writer = true;
        }
        self.let_others_run();
        let mut memory = self.memory.lock().unwrap();
        let page = memory.get_mut(&pfn).unwrap();
        change(&mut page.bytes);
        page.writer = false;
    }
}

impl Device for Disk {
    fn page_bytes(&self) -> usize {
        BYTES
    }

    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError> {
        self.reads.fetch_add(1, Relaxed);
        while self.holds_reads.load(Relaxed) {
            thread::sleep(NAP);
        }
        let failed = self.turn();
        let stored = self.stored.lock().unwrap().get(&(file, index)).copied().unwrap_or_default();
        self.store(pfn, |bytes| *bytes = if failed.is_err() { [0xee; BYTES] } else { stored });
        failed
    }

    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError> {
        let bytes = self.load(pfn);
        if self.slow.load(Relaxed) > 0 {
            self.begun.lock().unwrap().push_back((file, index, pfn, bytes));
            return Ok(Progress::Begun);
        }
        self.finish(file, index, bytes).map(|()| Progress::Done)
    }

    fn completed(&self) -> Option<Completion> {
        let slow = self.slow.load(Relaxed);
        if slow == 0 || !self.turns.fetch_add(1, Relaxed).is_multiple_of(slow) {
            return None;
        }
        let (file, index, pfn, bytes) = self.begun.lock().unwrap().pop_front()?;
        assert_eq!(self.load(pfn), bytes, "{pfn:?} has changed while it was written");
        Some(Completion { file, index, pfn, result: self.finish(file, index, bytes) })
    }

    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError> {
        self.cuts.fetch_add(1, Relaxed);
        while self.holds_cuts.load(Relaxed) {
            thread::sleep(NAP);
        }
        self.stored.lock().unwrap().retain(|&(in_file, at), _| in_file != file || at < index);
        Ok(())
    }

    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]) {
        self.store(pfn, |page| page[offset..offset + bytes.len()].copy_from_slice(bytes));
    }

    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.load(pfn)[offset..offset + bytes.len()]);
    }

    fn copy_page(&self, from: Pfn, to: Pfn) {
        self.copies.fetch_add(1, Relaxed);
        while self.holds_copies.load(Relaxed) {
            thread::sleep(NAP);
        }
        let bytes = self.load(from);
        self.store(to, |page| *page = bytes);
    }

    fn pass_time(&self, _: u32) {
        self.waits.fetch_add(1, Relaxed);
    }

    fn clear(&self, pfn: Pfn) {
        self.store(pfn, |page| *page = [0; BYTES]);
    }
}
