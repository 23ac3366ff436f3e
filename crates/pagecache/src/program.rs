//! The programs of the study `zone-reclaim`: what each does to files, generic over whose files they are. They run on
//! a host's files and in tests.
//!
//! Every file is checked at the end: what storage holds is read past the cache and compared, byte for byte.

mod content;

use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;

use crate::cache::CacheError;
use crate::slot::FileId;
use content::content;

/// Files as one task of a program sees them: through a page cache, on a CPU.
pub trait Files {
    /// Makes an empty file. Names are unique among the tasks of a program.
    ///
    /// # Errors
    /// It cannot be made.
    fn create(&self, name: u32) -> Result<FileId, CacheError>;

    /// Writes through the cache.
    ///
    /// # Errors
    /// As [`Cache::write`](crate::Cache::write).
    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError>;

    /// Stores through a mapping.
    ///
    /// # Errors
    /// As [`Cache::store_mapped`](crate::Cache::store_mapped).
    fn store(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError>;

    /// Reads through the cache.
    ///
    /// # Errors
    /// As [`Cache::read`](crate::Cache::read), or the file is shorter.
    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError>;

    /// Has storage hold what was written to any file before.
    ///
    /// # Errors
    /// Some of it could not be written. It stays in the cache, and another call may succeed.
    fn settle(&self) -> Result<(), CacheError>;

    /// Reads what storage holds, past the cache; zeroes where the file has ended.
    ///
    /// # Errors
    /// It cannot be read.
    fn stored(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError>;

    /// Deletes a file: its pages are free immediately.
    ///
    /// # Errors
    /// It cannot be deleted.
    fn remove(&self, file: FileId) -> Result<(), CacheError>;

    /// Waits until all tasks of the program have come here.
    fn meet(&self);

    /// Time in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Bytes of a page.
    fn page_bytes(&self) -> u64;

    /// The task has filled `bytes` bytes of a buffer. Where time is modelled, that takes some.
    fn compute(&self, bytes: u64) {
        let _ = bytes;
    }
}

/// Why a program ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The cache refused, and again when it was asked again.
    Cache(CacheError),
    /// Storage does not hold what was written.
    Content {
        /// The file, by its name.
        name: u32,
        /// The byte.
        offset: u64,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cache(error) => error.fmt(f),
            Self::Content { name, offset } => {
                write!(f, "file {name} does not hold at byte {offset} what was written")
            }
        }
    }
}

impl core::error::Error for Failure {}

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        Self::Cache(error)
    }
}

/// A stretch of a task's time that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stretch {
    /// The activity.
    pub step: &'static str,
    /// The how-manieth time.
    pub turn: u32,
    /// Its beginning.
    pub begun_ns: u64,
    /// Its end.
    pub ended_ns: u64,
    /// How much of it was spent in calls on files.
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
        /// Copies.
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

/// The most bytes in one call.
const BUFFER: usize = 16 << 10;
/// How often a call is made again that an unreliable device has failed.
const TRIES: u32 = 1000;

impl Program {
    /// FS-Mark over `memory` bytes: 16 KiB a write, files of 1/128 of the memory (512 KiB at most), and as many
    /// files that one loop writes 5/24 of the memory: 2.5 of 12 GiB on the study's machine.
    #[must_use]
    pub fn fs_mark(memory: u64, tasks: u32, loops: u32) -> Self {
        let write_bytes = BUFFER as u64;
        let file_bytes = (memory / 128).clamp(write_bytes, 512 << 10) / write_bytes * write_bytes;
        let all = file_bytes * u64::from(tasks);
        let files = ((memory / 24 * 5 + all / 2) / all).max(1) as u32;
        Self::FsMark { tasks, loops, files, file_bytes, write_bytes }
    }

    /// Large DD over `memory` bytes: a file of 1/32 of it, copied in blocks of 512 bytes until twice the memory
    /// is written.
    #[must_use]
    pub const fn large_dd(memory: u64) -> Self {
        Self::LargeDd { bytes: memory / 32 / 4096 * 4096, copies: 63, block_bytes: 512 }
    }

    /// Streaming Mapped Writer over `memory` bytes: files of ten times the memory together, `tenths` being 100.
    #[must_use]
    pub fn mapped_writer(memory: u64, page_bytes: u64, tasks: u32, tenths: u64) -> Self {
        Self::MappedWriter { tasks, pages: memory * tenths / 10 / page_bytes / u64::from(tasks) }
    }

    /// Streaming Mapped Writer at half the rate: loops, copies, pages.
    #[must_use]
    pub const fn halved(self) -> Self {
        match self {
            Self::FsMark { tasks, loops, files, file_bytes, write_bytes } => {
                Self::FsMark { tasks, loops: loops.div_ceil(2), files, file_bytes, write_bytes }
            }
            Self::LargeDd { bytes, copies, block_bytes } => {
                Self::LargeDd { bytes, copies: copies.div_ceil(2), block_bytes }
            }
            Self::MappedWriter { tasks, pages } => Self::MappedWriter { tasks, pages: pages.div_ceil(2) },
        }
    }

    /// How many tasks it has.
    #[must_use]
    pub const fn tasks(&self) -> u32 {
        match *self {
            Self::FsMark { tasks, .. } | Self::MappedWriter { tasks, .. } => tasks,
            Self::LargeDd { .. } => 1,
        }
    }

    /// Runs task number `task`, from 0 on; all of them have to run at the same time. Returns when its time was
    /// spent on what.
    ///
    /// # Errors
    /// The first failure. The other tasks are not kept waiting.
    pub fn run(&self, task: u32, files: &impl Files) -> Result<Vec<Stretch>, Failure> {
        let mut run = Run { task, files, stretches: Vec::new(), so_far: Ok(()) };
        match *self {
            Self::FsMark { loops, .. } => {
                for turn in 0..loops {
                    self.fs_mark_loop(&mut run, turn);
                }
            }
            Self::LargeDd { bytes, copies, block_bytes } => dd(&mut run, bytes, copies, block_bytes),
            Self::MappedWriter { pages, .. } => mapped(&mut run, pages),
        }
        run.so_far.map(|()| run.stretches)
    }

    fn fs_mark_loop<F: Files>(&self, run: &mut Run<'_, F>, turn: u32) {
        let Self::FsMark { tasks, files, file_bytes, write_bytes, .. } = *self else { return };
        let name = |n: u32| (turn * tasks + run.task) * files + n;
        let names: Vec<u32> = (0..files).map(name).collect();
        let made = run.stretch("loop", turn, files, |device, called| {
            let mut made = Vec::new();
            let timed = |call: &mut dyn FnMut() -> Result<(), CacheError>| {
                let begun = device.now_ns();
                let result = insist(call);
                called.set(called.get() + (device.now_ns() - begun));
                result
            };
            let mut buffer = [0; BUFFER];
            for &name in &names {
                let mut file = FileId(0);
                timed(&mut || device.create(name).map(|made| file = made))?;
                for offset in (0..file_bytes).step_by(write_bytes as usize) {
                    let bytes = &mut buffer[..write_bytes.min(file_bytes - offset) as usize];
                    content(name, offset, bytes);
                    device.compute(bytes.len() as u64);
                    timed(&mut || device.write(file, offset, bytes))?;
                }
                made.push(file);
            }
            Ok(made)
        });
        run.settle();
        run.then(|device| {
            for (&file, &name) in made.iter().flatten().zip(&names) {
                check(device, file, name, file_bytes, |offset, bytes| content(name, offset, bytes))?;
            }
            Ok(())
        });
        run.then(|device| made.iter().flatten().try_for_each(|&file| remove(device, file)));
    }
}

fn dd<F: Files>(run: &mut Run<'_, F>, bytes: u64, copies: u32, block_bytes: u64) {
    let mut buffer = [0; BUFFER];
    let tar = run.stretch("download", 0, 1, |device, _| {
        let tar = insist(|| device.create(0))?;
        for offset in (0..bytes).step_by(BUFFER) {
            let part = &mut buffer[..(bytes - offset).min(BUFFER as u64) as usize];
            content(0, offset, part);
            device.compute(part.len() as u64);
            insist(|| device.write(tar, offset, part))?;
        }
        Ok(tar)
    });
    let copied = run.stretch("dd", 0, copies, |device, _| {
        let mut copied = Vec::new();
        for (name, from) in (1..=copies).zip(tar.iter().cycle()) {
            let to = insist(|| device.create(name))?;
            for offset in (0..bytes).step_by(block_bytes as usize) {
                let block = &mut buffer[..block_bytes.min(bytes - offset) as usize];
                insist(|| device.read(*from, offset, block))?;
                insist(|| device.write(to, offset, block))?;
            }
            copied.push(to);
        }
        Ok(copied)
    });
    run.settle();
    let files = || tar.iter().chain(copied.iter().flatten());
    run.then(|device| {
        files().zip(0..).try_for_each(|(&file, name)| {
            check(device, file, name, bytes, |offset, bytes| content(0, offset, bytes))
        })
    });
    run.stretch("delete", 0, 0, |device, _| files().try_for_each(|&file| remove(device, file)));
}

fn mapped<F: Files>(run: &mut Run<'_, F>, pages: u64) {
    let name = run.task;
    let page = run.files.page_bytes();
    let file = run.stretch("store", 0, 1, |device, _| {
        let file = insist(|| device.create(name))?;
        for index in 0..pages {
            let mut word = [0; 8];
            content(name, index * page, &mut word);
            insist(|| device.store(file, index * page, &word))?;
        }
        Ok(file)
    });
    run.settle();
    run.then(|device| {
        file.iter().try_for_each(|&file| {
            check(device, file, name, pages * page, |offset, bytes| {
                bytes.fill(0);
                let first = offset.next_multiple_of(page);
                for at in (first..offset + bytes.len() as u64).step_by(page as usize) {
                    content(name, at, &mut bytes[(at - offset) as usize..][..8]);
                }
            })
        })
    });
    run.then(|device| file.iter().try_for_each(|&file| remove(device, file)));
}

/// One task's way through its program. Once something has gone wrong, it only keeps the others company.
struct Run<'f, F> {
    task: u32,
    files: &'f F,
    stretches: Vec<Stretch>,
    so_far: Result<(), Failure>,
}

impl<F: Files> Run<'_, F> {
    /// Does what does not count. `None` if that went wrong, or something before.
    fn then<R>(&mut self, does: impl FnOnce(&F) -> Result<R, Failure>) -> Option<R> {
        self.so_far.ok()?;
        does(self.files).map_err(|failure| self.so_far = Err(failure)).ok()
    }

    /// Does what counts, when all tasks are here. Its second argument counts the time in calls.
    fn stretch<R>(
        &mut self,
        step: &'static str,
        turn: u32,
        files: u32,
        does: impl FnOnce(&F, &Cell<u64>) -> Result<R, Failure>,
    ) -> Option<R> {
        self.files.meet();
        let called = Cell::new(0);
        let begun_ns = self.files.now_ns();
        let result = self.then(|device| does(device, &called));
        let ended_ns = self.files.now_ns();
        self.stretches.push(Stretch { step, turn, begun_ns, ended_ns, called_ns: called.get(), files });
        result
    }

    /// Has everything on storage that all tasks have written: one of them writes it out.
    fn settle(&mut self) {
        self.files.meet();
        if self.task == 0 {
            self.then(|device| insist(|| device.settle()));
        }
        self.files.meet();
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

fn remove(device: &impl Files, file: FileId) -> Result<(), Failure> {
    insist(|| device.remove(file))
}

/// Compares what storage holds of a file with what `expected` says it should.
fn check(
    device: &impl Files,
    file: FileId,
    name: u32,
    len: u64,
    expected: impl Fn(u64, &mut [u8]),
) -> Result<(), Failure> {
    let (mut found, mut wanted) = ([0; BUFFER], [0; BUFFER]);
    for offset in (0..len).step_by(BUFFER) {
        let part = (len - offset).min(BUFFER as u64) as usize;
        let (found, wanted) = (&mut found[..part], &mut wanted[..part]);
        insist(|| device.stored(file, offset, found))?;
        expected(offset, wanted);
        if let Some(at) = found.iter().zip(&*wanted).position(|(found, wanted)| found != wanted) {
            return Err(Failure::Content { name, offset: offset + at as u64 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
