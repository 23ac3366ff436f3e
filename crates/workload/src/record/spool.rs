//! What the kernel's buffers gave, kept on disk until the recording ends: nothing is decoded while the command
//! runs, and memory does not grow with the recording.

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Seek as _, Write as _};
use std::path::Path;

/// Bytes written at once.
const CHUNK: usize = 256 << 10;

/// How much may still be kept, for all CPUs together.
#[derive(Debug)]
pub(super) struct Budget(AtomicU64);

impl Budget {
    pub(super) const fn new(bytes: u64) -> Self {
        Self(AtomicU64::new(bytes))
    }

    /// Takes `bytes` off; whether there were as many. Once refused, all is.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| Some(left.saturating_sub(bytes));
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        before.is_ok_and(|left| left >= bytes)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }
}

/// The pages of one CPU, in the order in which they came, in a file without a name.
#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    bytes: u64,
}

impl Spool {
    /// An empty one in a folder.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        Ok(Self { file: BufWriter::with_capacity(CHUNK, file), bytes: 0 })
    }

    /// Appends a page.
    pub(super) fn push(&mut self, page: &[u8]) -> io::Result<()> {
        let length = page.len() as u32;
        self.file.write_all(&length.to_ne_bytes())?;
        self.file.write_all(page)?;
        self.bytes += 4 + page.len() as u64;
        Ok(())
    }

    /// Bytes kept.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// To be read from the start.
    pub(super) fn rewind(self) -> io::Result<Pages> {
        let mut file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(Pages { file: BufReader::with_capacity(CHUNK, file) })
    }
}

/// The pages of a [`Spool`].
#[derive(Debug)]
pub(super) struct Pages {
    file: BufReader<File>,
}

impl Pages {
    /// The next page, in `page`; false at the end.
    pub(super) fn next(&mut self, page: &mut Vec<u8>) -> io::Result<bool> {
        let mut length = [0; 4];
        match self.file.read_exact(&mut length) {
            Ok(()) => {}
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(cause) => return Err(cause),
        }
        page.resize(u32::from_ne_bytes(length) as usize, 0);
        self.file.read_exact(page)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Spool};

    #[test]
    fn pages_come_back_as_they_were() {
        let mut spool = Spool::create(&std::env::temp_dir()).unwrap();
        let pages: Vec<Vec<u8>> = (0..200_usize).map(|n| vec![n as u8; n * 37 % 4097]).collect();
        pages.iter().for_each(|page| spool.push(page).unwrap());
        assert_eq!(spool.bytes(), pages.iter().map(|page| 4 + page.len() as u64).sum());
        let (mut back, mut page) = (spool.rewind().unwrap(), Vec::new());
        for expected in &pages {
            assert!(back.next(&mut page).unwrap());
            assert_eq!(page, *expected);
        }
        assert!(!back.next(&mut page).unwrap());
    }

    #[test]
    fn a_budget_is_spent_once() {
        let budget = Budget::new(10);
        assert!(budget.take(4) && budget.take(5) && !budget.is_spent());
        assert!(!budget.take(2) && budget.is_spent() && !budget.take(1));
    }
}
