use alloc::collections::BTreeMap;
use core::cell::RefCell;

use super::*;

const BROKEN: CacheError = CacheError::Io(crate::IoError::UNKNOWN);

/// Files in memory, without a cache, for one task.
#[derive(Default)]
struct Memory {
    files: RefCell<BTreeMap<u32, Vec<u8>>>,
    made: Cell<u32>,
    /// Calls of which one fails; 0 for none.
    fails: u32,
    /// A byte of this file is lost.
    loses: Option<u32>,
    clock: Cell<u64>,
}

impl Memory {
    fn tick(&self) -> Result<(), CacheError> {
        let now = self.clock.get() + 1;
        self.clock.set(now);
        if self.fails > 0 && now.is_multiple_of(self.fails.into()) { Err(BROKEN) } else { Ok(()) }
    }
}

impl Files for Memory {
    fn create(&self, name: u32) -> Result<FileId, CacheError> {
        self.tick()?;
        let before = self.files.borrow_mut().insert(name, Vec::new());
        assert!(before.is_none(), "file {name} is made twice");
        self.made.set(self.made.get() + 1);
        Ok(FileId(name))
    }

    fn write(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.tick()?;
        let mut files = self.files.borrow_mut();
        let file = files.get_mut(&file.0).ok_or(CacheError::Range)?;
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        file.resize(file.len().max(end), 0);
        file[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn store(&self, file: FileId, offset: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.write(file, offset, bytes)
    }

    fn read(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        self.stored(file, offset, bytes)
    }

    fn settle(&self) -> Result<(), CacheError> {
        let mut files = self.files.borrow_mut();
        if let Some(byte) = self.loses.and_then(|name| files.get_mut(&name)?.get_mut(4097)) {
            *byte ^= 0x40;
        }
        self.tick()
    }

    fn stored(&self, file: FileId, offset: u64, bytes: &mut [u8]) -> Result<(), CacheError> {
        self.tick()?;
        let files = self.files.borrow();
        let held = files.get(&file.0).ok_or(CacheError::Range)?;
        bytes.fill(0);
        let held = held.get(offset as usize..).unwrap_or_default();
        bytes.iter_mut().zip(held).for_each(|(byte, held)| *byte = *held);
        Ok(())
    }

    fn remove(&self, file: FileId) -> Result<(), CacheError> {
        self.tick()?;
        self.files.borrow_mut().remove(&file.0).map(drop).ok_or(CacheError::Range)
    }

    fn meet(&self) {}

    fn now_ns(&self) -> u64 {
        self.clock.get()
    }

    fn page_bytes(&self) -> u64 {
        4096
    }
}

const MEMORY: u64 = 1 << 20;

fn all() -> [Program; 3] {
    let (fs_mark, large_dd) = (Program::fs_mark(MEMORY, 1, 3), Program::large_dd(MEMORY));
    [fs_mark, large_dd, Program::mapped_writer(MEMORY, 4096, 1, 100)]
}

#[test]
fn every_program_writes_what_it_says_and_leaves_nothing() {
    for (program, fails) in all().into_iter().zip([0, 7, 20]) {
        let files = Memory { fails, ..Memory::default() };
        let stretches = program.run(0, &files).unwrap();
        assert!(files.files.borrow().is_empty());
        assert_eq!(stretches.iter().map(|stretch| stretch.files).sum::<u32>(), files.made.get());
        assert!(stretches.iter().all(|stretch| stretch.called_ns <= stretch.ended_ns - stretch.begun_ns));
        let steps: Vec<&str> = stretches.iter().map(|stretch| stretch.step).collect();
        match program {
            Program::FsMark { loops, files, file_bytes, .. } => {
                assert_eq!((steps, loops), (alloc::vec!["loop"; 3], 3));
                assert_eq!(u64::from(files) * file_bytes, MEMORY / 24 * 5 / file_bytes * file_bytes);
            }
            Program::LargeDd { bytes, copies, .. } => {
                assert_eq!(steps, ["download", "dd", "delete"]);
                assert_eq!(u64::from(copies + 1) * bytes, 2 * MEMORY);
            }
            Program::MappedWriter { pages, .. } => {
                assert_eq!((steps, pages * 4096), (alloc::vec!["store"], 10 * MEMORY));
            }
        }
    }
}

#[test]
fn a_lost_byte_is_found() {
    for program in all() {
        let files = Memory { loses: Some(0), ..Memory::default() };
        assert_eq!(program.run(0, &files), Err(Failure::Content { name: 0, offset: 4097 }), "{program:?}");
    }
}

#[test]
fn what_always_fails_is_given_up() {
    let files = Memory { fails: 1, ..Memory::default() };
    for program in all() {
        assert_eq!(program.run(0, &files), Err(Failure::Cache(BROKEN)));
    }
}
