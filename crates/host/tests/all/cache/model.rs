//! Random calls of all kinds on files and anonymous pages, against bytes that are kept apart, on a disk that fails and
//! runs full: what is read is what was written, and what was flushed is on storage to the byte.

use std::fs;
use std::path::PathBuf;
use std::thread;

use fastrand::Rng;
use framewright_host::{
    Arena, CacheError, Config, Cpu, FileCache, FileId, Migratetype, NodeId, Order, PageSlot, SpaceId,
};

use super::files::{Folder, PAGE};
use crate::common::free;

/// Pages of the space: more than the memory has, or as many as three.
const SPACE: u64 = 700;

/// A file, and the bytes that it should have.
struct Kept {
    path: PathBuf,
    bytes: Vec<u8>,
    openers: Vec<FileId>,
}

impl Kept {
    /// Storage has these bytes, and no others.
    fn check_stored(&self) {
        assert!(fs::read(&self.path).unwrap() == self.bytes, "{} on storage", self.path.display());
    }

    /// The last opener has gone without a flush.
    fn take_stored(&mut self) {
        self.bytes = fs::read(&self.path).unwrap();
    }
}

/// A cache in use by one thread, and the bytes that a space should have.
struct Calls<'a> {
    files: &'a FileCache<'a>,
    cpu: &'a Cpu<'a, PageSlot>,
    rng: Rng,
    /// Faults of a thousand, and the bytes of a file at which the disk is full.
    faults: (u64, u64),
    space: SpaceId,
    anon: Vec<u8>,
}

/// `bytes` with `len` times `byte` from `offset` on, and zeroes before it.
fn with(bytes: &[u8], offset: u64, len: usize, byte: u8) -> Vec<u8> {
    let (mut bytes, offset) = (bytes.to_vec(), offset as usize);
    if len > 0 {
        bytes.resize(bytes.len().max(offset + len), 0);
        bytes[offset..offset + len].fill(byte);
    }
    bytes
}

/// A write that failed has written some of its bytes, or has left a gap.
fn check_partly(error: CacheError, found: &[u8], before: &[u8], after: &[u8]) {
    assert!(matches!(error, CacheError::Io(_) | CacheError::NoMemory(_)), "{error}");
    assert!((before.len()..=after.len()).contains(&found.len()), "{} bytes", found.len());
    for (at, &byte) in found.iter().enumerate() {
        let old = before.get(at).copied().unwrap_or(0);
        assert!(byte == old || byte == after[at], "byte {at} is {byte}, and was {old}: {}", after[at]);
    }
}

impl Calls<'_> {
    /// Runs `f` on a disk without faults. A write that is on its way may fail still.
    fn calm<R>(&self, mut f: impl FnMut() -> Result<R, CacheError>) -> R {
        self.files.inject_faults(0);
        self.files.inject_full(0);
        let result = (0..10).find_map(|_| f().ok());
        self.files.inject_faults(self.faults.0);
        self.files.inject_full(self.faults.1);
        result.expect("there is no fault")
    }

    fn read_all(&self, file: FileId) -> Vec<u8> {
        let mut bytes = vec![0; self.files.len(file).unwrap() as usize];
        let read = self.calm(|| self.files.read(self.cpu, file, 0, &mut bytes));
        assert_eq!(read, bytes.len());
        bytes
    }

    fn size(&mut self) -> usize {
        match self.rng.usize(..9) {
            choice @ 0..6 => [0, 1, 4095, 4096, 4097, 8192][choice],
            6 => self.rng.usize(..20_000),
            _ => self.rng.usize(..300),
        }
    }

    fn offset(&mut self, len: u64) -> u64 {
        match self.rng.u32(..8) {
            0 => self.rng.u64(..100) * PAGE,
            1 => len,
            2 => len.saturating_sub(1),
            3 => self.rng.u64(..400_000),
            _ => self.rng.u64(..40_000),
        }
    }

    /// A call about a file.
    fn on_file(&mut self, kept: &mut Kept) {
        let (files, cpu) = (self.files, self.cpu);
        if kept.openers.is_empty() || kept.openers.len() < 3 && self.rng.u32(..20) == 0 {
            kept.openers.push(files.open(&kept.path).unwrap());
        }
        let opener = self.rng.usize(..kept.openers.len());
        let (file, size, byte) = (kept.openers[opener], self.size(), self.rng.u8(1..));
        let offset = self.offset(kept.bytes.len() as u64);
        assert_eq!(files.len(file), Ok(kept.bytes.len() as u64));
        match self.rng.u32(..26) {
            choice @ 0..13 => {
                let data = vec![byte; size];
                let at = if choice < 10 { offset } else { kept.bytes.len() as u64 };
                let after = with(&kept.bytes, at, size, byte);
                let written = match choice {
                    0..8 => files.write(cpu, file, at, &data),
                    8..10 => files.store_mapped(cpu, file, at, &data),
                    _ => files.append(cpu, file, &data).map(|begin| assert_eq!(begin, at)),
                };
                kept.bytes = match written {
                    Ok(()) => after,
                    Err(error) => {
                        let found = self.read_all(file);
                        check_partly(error, &found, &kept.bytes, &after);
                        found
                    }
                };
            }
            13..20 => {
                let mut bytes = vec![byte; size];
                if let Ok(read) = files.read(cpu, file, offset, &mut bytes) {
                    let there = &kept.bytes[kept.bytes.len().min(offset as usize)..];
                    assert_eq!(read, there.len().min(size));
                    assert!(bytes[..read] == there[..read], "{read} bytes at {offset}");
                    assert!(bytes[read..].iter().all(|&untouched| untouched == byte));
                }
            }
            20..23 => match files.flush(file) {
                Ok(()) => kept.check_stored(),
                Err(CacheError::Lost(_)) => {
                    kept.openers.drain(..).for_each(|opener| files.forget(cpu, opener));
                    kept.take_stored();
                }
                Err(error) => assert!(matches!(error, CacheError::Io(_)), "{error}"),
            },
            23 => {
                // What it fails to cut off, the next write of a page behind it does, or the next flush.
                let _ = files.truncate(cpu, file, offset / PAGE);
                kept.bytes.truncate((offset / PAGE * PAGE) as usize);
            }
            24 => match files.close(cpu, file) {
                Ok(()) => {
                    kept.openers.swap_remove(opener);
                    kept.check_stored();
                    assert_eq!(files.len(file), Err(CacheError::Closed));
                }
                Err(error) => assert!(matches!(error, CacheError::Io(_) | CacheError::Lost(_)), "{error}"),
            },
            _ => {
                files.forget(cpu, kept.openers.swap_remove(opener));
                if kept.openers.is_empty() {
                    kept.take_stored();
                }
            }
        }
    }

    /// A call about the space.
    fn on_space(&mut self) {
        let (files, cpu, space) = (self.files, self.cpu, self.space);
        let (size, byte) = (self.size(), self.rng.u8(..));
        let offset = self.rng.usize(..self.anon.len() - size);
        let place = offset..offset + size;
        let mut bytes = vec![byte; size];
        match self.rng.u32(..6) {
            0..3 => match files.store_anon(cpu, space, offset as u64, &bytes) {
                Ok(()) => self.anon[place].fill(byte),
                Err(error) => {
                    let mut found = vec![0; size];
                    self.calm(|| files.load_anon(cpu, space, offset as u64, &mut found));
                    check_partly(error, &found, &self.anon[place.clone()], &bytes);
                    self.anon[place].copy_from_slice(&found);
                }
            },
            3..5 => {
                if files.load_anon(cpu, space, offset as u64, &mut bytes).is_ok() {
                    assert!(bytes == self.anon[place], "{size} anonymous bytes at {offset}");
                }
            }
            _ => {
                let (start, end) = (self.rng.u64(..SPACE), self.rng.u64(..2 * SPACE));
                files.unmap_anon(cpu, space, start..end);
                let within = start.min(end) * PAGE..end.min(SPACE) * PAGE;
                self.anon[within.start as usize..within.end as usize].fill(0);
            }
        }
    }

    /// A call about all, or other faults from now on.
    fn on_all(&mut self) {
        match self.rng.u32(..5) {
            0 => drop(self.files.write_back()),
            1 => {
                let order = Order::new(self.rng.u8(1..7)).unwrap();
                if let Ok(block) = self.cpu.alloc(order, Migratetype::Movable) {
                    free(self.cpu, block, order);
                }
            }
            2 => drop(self.cpu.compact_proactively_with(NodeId(0), self.files)),
            _ => {
                self.files.inject_sync_faults([0, 0, 100, 1000][self.rng.usize(..4)]);
                let full_at = [0, 0, 0, 5, 30][self.rng.usize(..5)] * PAGE;
                self.faults = ([0, 0, 30, 300, 1000][self.rng.usize(..5)], full_at);
                self.calm(|| Ok(()));
            }
        }
    }
}

fn history(seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (folder, config) = (Folder::new(), Config::framewright().with_marks());
    let pages = rng.u64(200..600);
    let arena: Arena<PageSlot> =
        Arena::builder().pages(pages).cpus(2).config(config).background().build().unwrap();
    let files = match rng.u32(..2) {
        0 => FileCache::new(&arena),
        _ => FileCache::with_unnamed_swap(&arena, folder.path(), rng.u32(..600)).unwrap(),
    };
    let file = |n| Kept { path: folder.file(n), bytes: Vec::new(), openers: Vec::new() };
    let mut kept = [0, 1, 2].map(file);
    thread::scope(|scope| {
        let (arena, files) = (&arena, &files);
        let threads = rng.u32(..4);
        let _background = (threads & 1 > 0).then(|| scope.spawn(|| files.run_background(NodeId(0)).unwrap()));
        let _writer = (threads & 2 > 0).then(|| scope.spawn(|| files.run_writing()));
        let calls = thread::Builder::new().spawn_scoped(scope, || {
            let (cpu, space) = (&arena.attach().unwrap(), files.make_space());
            let anon = vec![0; (SPACE * PAGE) as usize];
            let steps = rng.u32(50..600);
            let mut calls = Calls { files, cpu, rng, faults: (0, 0), space, anon };
            for _ in 0..steps {
                match calls.rng.u32(..8) {
                    0 => calls.on_all(),
                    1 | 2 => calls.on_space(),
                    _ => {
                        let n = calls.rng.usize(..kept.len());
                        calls.on_file(&mut kept[n]);
                    }
                }
            }
            calls.faults = (0, 0);
            files.inject_sync_faults(0);
            calls.calm(|| files.write_back());
            for kept in &mut kept {
                for opener in kept.openers.drain(..) {
                    // A file that was lost is closed by nothing else.
                    match (0..3).find_map(|_| files.close(cpu, opener).ok()) {
                        Some(()) => assert!(fs::read(&kept.path).unwrap() == kept.bytes),
                        None => files.forget(cpu, opener),
                    }
                }
            }
            files.drop_space(cpu, space);
        });
        let result = calls.unwrap().join();
        arena.stop_background();
        files.stop_writing();
        assert!(result.is_ok(), "seed {seed}");
    });
    files.verify().unwrap();
    assert_eq!((files.pages(), files.anon_pages()), ((0, 0), 0));
    assert_eq!(files.swap_use().free, files.swap_use().slots);
    drop(files);
    arena.allocator().verify().unwrap();
}

/// `FRAMEWRIGHT_CACHE_HISTORIES=4000` is ten minutes.
#[test]
fn files_and_spaces_are_what_was_written_under_any_faults() {
    let histories = std::env::var("FRAMEWRIGHT_CACHE_HISTORIES").ok().and_then(|count| count.parse().ok());
    (0..histories.unwrap_or(40)).for_each(history);
}
