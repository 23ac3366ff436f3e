//! Pages of the kernel's buffers, kept on disk until the recording ends: nothing is decoded while the command
//! runs, and memory does not grow with the recording. Where the disk is full, recording stops, and what the kernel's
//! buffers still hold by then is kept in memory: a full disk loses nothing that was recorded.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::fs::File;
use std::io::{self, BufReader, Cursor, Read, Seek as _, Write as _};
use std::path::Path;

/// Bytes that are written together.
const CHUNK: usize = 256 << 10;

/// Bytes that may still be kept, for all CPUs together.
pub(super) struct Budget {
    left: AtomicU64,
    disk_full: AtomicBool,
}

impl Budget {
    pub(super) const fn new(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes), disk_full: AtomicBool::new(false) }
    }

    /// Nothing more may be kept, because the disk is full.
    pub(super) fn end_at_full_disk(&self) {
        self.disk_full.store(true, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    pub(super) fn disk_is_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Takes `bytes` off; whether there were as many. Once refused, all is.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| Some(left.saturating_sub(bytes));
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken);
        before.is_ok_and(|left| left >= bytes)
    }

    pub(super) fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

/// Whether a write was refused because there is no room: on the disk, or in what this process may write to a file.
pub(super) fn is_full(cause: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(cause.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The pages of one CPU, in the order in which they came: in a file, and the last of them in memory.
pub(super) struct Spool {
    file: File,
    /// Bytes in the file, in whole pages. Bytes after them are not read.
    filed: u64,
    /// Bytes after those in the file.
    tail: Vec<u8>,
    /// The file takes no more.
    full: bool,
}

impl Spool {
    /// An empty one, in a new file.
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self::over(File::options().read(true).write(true).create_new(true).open(path)?))
    }

    /// The pages that a recorder which was killed has written to a file.
    pub(super) fn left(path: &Path) -> io::Result<Pages> {
        let (file, filed) = (File::open(path)?, std::fs::metadata(path)?.len());
        Self { filed, ..Self::over(file) }.rewind()
    }

    fn over(file: File) -> Self {
        Self { file, filed: 0, tail: Vec::with_capacity(CHUNK), full: false }
    }

    /// Appends a page. Whether the disk has room for more: if not, the page is kept in memory, and the caller ends the
    /// recording.
    ///
    /// # Errors
    /// The disk fails otherwise than by being full.
    pub(super) fn push(&mut self, page: &[u8]) -> io::Result<bool> {
        let length = page.len() as u32;
        self.tail.extend_from_slice(&length.to_ne_bytes());
        self.tail.extend_from_slice(page);
        if self.tail.len() >= CHUNK { self.flush() } else { Ok(!self.full) }
    }

    /// Writes to the file what is in memory: a recorder that is killed loses no more than what came after.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub(super) fn flush(&mut self) -> io::Result<bool> {
        if !self.tail.is_empty() && !self.full {
            match self.file.write_all(&self.tail) {
                Ok(()) => {
                    self.filed += self.tail.len() as u64;
                    self.tail.clear();
                }
                Err(cause) if is_full(&cause) => self.full = true,
                Err(cause) => return Err(cause),
            }
        }
        Ok(!self.full)
    }

    /// Number of bytes that were kept.
    pub(super) const fn bytes(&self) -> u64 {
        self.filed + self.tail.len() as u64
    }

    /// To be read from the start.
    pub(super) fn rewind(mut self) -> io::Result<Pages> {
        self.file.rewind()?;
        let file = BufReader::with_capacity(CHUNK, self.file.take(self.filed));
        Ok(Pages { bytes: file.chain(Cursor::new(self.tail)) })
    }
}

/// The pages of a [`Spool`].
pub(super) struct Pages {
    bytes: io::Chain<BufReader<io::Take<File>>, Cursor<Vec<u8>>>,
}

impl Pages {
    /// The next page, in `page`; false at the end, and before a page that a killed recorder wrote in part.
    pub(super) fn next(&mut self, page: &mut Vec<u8>) -> io::Result<bool> {
        let mut length = [0; 4];
        let read = self.bytes.read_exact(&mut length).and_then(|()| {
            page.clear();
            let length = u64::from(u32::from_ne_bytes(length));
            let read = self.bytes.by_ref().take(length).read_to_end(page)? as u64;
            if read < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
        });
        match read {
            Ok(()) => Ok(true),
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(cause) => Err(cause),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::{Budget, CHUNK, Spool};

    /// Pages of all lengths, more than are written together.
    fn pages() -> Vec<Vec<u8>> {
        (0..400_usize).map(|n| vec![n as u8; n * 37 % 4097]).collect()
    }

    #[track_caller]
    fn come_back(spool: Spool, pages: &[Vec<u8>]) {
        let bytes = pages.iter().map(|page| 4 + page.len() as u64).sum::<u64>();
        assert!(bytes > 2 * CHUNK as u64);
        assert_eq!(spool.bytes(), bytes);
        let (mut back, mut page) = (spool.rewind().unwrap(), Vec::new());
        for expected in pages {
            assert!(back.next(&mut page).unwrap());
            assert_eq!(page, *expected);
        }
        assert!(!back.next(&mut page).unwrap());
    }

    #[test]
    fn pages_come_back_as_they_were() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        let mut spool = Spool::create(&path).unwrap();
        let pages = pages();
        pages.iter().for_each(|page| assert!(spool.push(page).unwrap()));
        assert!(spool.flush().unwrap());
        come_back(spool, &pages);
        // A killed recorder may have written a page in part.
        let whole = std::fs::metadata(&path).unwrap().len();
        for cut in 0..5000 {
            OpenOptions::new().write(true).open(&path).unwrap().set_len(whole - cut).unwrap();
            let (mut left, mut page) = (Spool::left(&path).unwrap(), Vec::new());
            let read = pages.iter().take_while(|_| left.next(&mut page).unwrap()).count();
            let kept = pages.iter().scan(0, |sum, page| {
                *sum += 4 + page.len() as u64;
                Some(*sum <= whole - cut)
            });
            assert_eq!(read, kept.take_while(|kept| *kept).count(), "{cut}");
        }
    }

    #[test]
    fn a_full_disk_loses_no_page() {
        let mut spool = Spool::over(OpenOptions::new().read(true).write(true).open("/dev/full").unwrap());
        let pages = pages();
        let kept = pages.iter().filter(|page| spool.push(page).unwrap()).count();
        assert!(kept < pages.len(), "that there is no more room is said");
        come_back(spool, &pages);
    }

    #[test]
    fn a_budget_is_spent_once() {
        let budget = Budget::new(10);
        assert!(budget.take(4) && budget.take(5) && !budget.is_spent());
        assert!(!budget.take(2) && budget.is_spent() && !budget.take(1));
        assert!(!budget.disk_is_full());
        let budget = Budget::new(10);
        budget.end_at_full_disk();
        assert!(!budget.take(1) && budget.is_spent() && budget.disk_is_full());
    }
}
