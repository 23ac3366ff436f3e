//! Storage, and the memory of pages, as the cache needs them.

use core::fmt;

use framewright::Pfn;

use crate::slot::FileId;

/// A device failed. The error keeps the system's error number, so that a full disk can be told from a broken one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IoError {
    /// An `errno` of Linux; 0 if there is none.
    code: i32,
}

const EIO: i32 = 5;
const EFBIG: i32 = 27;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;
const EDQUOT: i32 = 122;

impl IoError {
    /// An error without a number: the device does not say why it failed.
    pub const UNKNOWN: Self = Self { code: 0 };

    /// An error with the system's number (`errno`).
    #[must_use]
    pub const fn from_code(code: i32) -> Self {
        Self { code }
    }

    /// The system's error number, if there is one.
    #[must_use]
    pub const fn code(self) -> Option<i32> {
        if self.code == 0 { None } else { Some(self.code) }
    }

    /// Whether the device is full (`ENOSPC`), the user's quota is used up (`EDQUOT`), or the file may grow no more
    /// (`EFBIG`). Trying again is of no use then.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self.code, ENOSPC | EDQUOT | EFBIG)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str("the device failed"),
            EIO => f.write_str("the device failed: input/output error"),
            EFBIG => f.write_str("the file is larger than the file system or `ulimit -f` allows"),
            ENOSPC => f.write_str("no space is left on the device"),
            EROFS => f.write_str("the file system is read-only"),
            EDQUOT => f.write_str("the disk quota is exceeded"),
            code => write!(f, "the device failed: error {code}"),
        }
    }
}

impl core::error::Error for IoError {}

/// State of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// The page is written.
    Done,
    /// The device has begun. [`Device::completed`] reports the end; until then the cache keeps the page unchanged.
    Begun,
}

/// The end of a write that had been begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The file.
    pub file: FileId,
    /// The page of the file, from 0 on.
    pub index: u64,
    /// The frame that holds it.
    pub pfn: Pfn,
    /// Whether the page was written.
    pub result: Result<(), IoError>,
}

/// Storage for whole pages of files, and access to the memory that pages are in.
///
/// The cache holds no lock while it calls. While the device reads into a page, or bytes are copied into it, the cache
/// gives the page to no other thread. While a page is written out, or bytes are copied from it, no thread changes it,
/// and it does not move.
pub trait Device: Sync {
    /// Size of a page in bytes.
    fn page_bytes(&self) -> usize;

    /// Whether storage may hold anything of page `index`. If not, the cache clears memory instead of reading.
    fn may_hold(&self, file: FileId, index: u64) -> bool {
        let _ = (file, index);
        true
    }

    /// Reads page `index` of a file into frame `pfn`, with zeroes beyond the file's end. Returns when the page is
    /// there.
    ///
    /// # Errors
    /// The content of the frame is undefined.
    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError>;

    /// Writes frame `pfn` to page `index` of a file, or begins to.
    ///
    /// # Errors
    /// Storage holds the old page, the new one, or a mix.
    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError>;

    /// Announces that a file is about to grow to `end` bytes, at least. The caller has the page with the last of these
    /// bytes for itself, and the page is not dirty yet, so no write of it can have begun: a device that cuts files to
    /// their lengths never cuts off what the page will hold.
    fn extend(&self, file: FileId, end: u64) {
        let _ = (file, end);
    }

    /// Makes all writes of a file that have ended durable. The cache makes one such call at a time for each file.
    ///
    /// # Errors
    /// Some of these writes may be lost. A later call that succeeds does not cover them.
    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let _ = file;
        Ok(())
    }

    /// The next write that was begun and has ended; `None` if there is none. The cache asks whenever it waits, and when
    /// it reclaims.
    fn completed(&self) -> Option<Completion> {
        None
    }

    /// Waits a short time for a write to end. If it returns immediately, the cache polls
    /// [`completed`](Self::completed).
    fn wait_for_completion(&self) {}

    /// Slows down a writer that has dirtied too many pages. `turn` counts such calls in a row, from 0 on. Linux lets
    /// the writer sleep for 1, 2, 4, … at most 100 ms; a host need not sleep longer than until a write has ended.
    fn hold_back(&self, turn: u32) {
        let _ = turn;
        self.wait_for_completion();
    }

    /// Called while the cache polls something that another thread is about to change. `turn` counts the polls, from 0
    /// on. A modelled device lets time pass; a real one may sleep after some polls.
    fn pass_time(&self, turn: u32) {
        let _ = turn;
    }

    /// Removes the pages of a file from `index` on.
    ///
    /// # Errors
    /// Some of them may still be there.
    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError>;

    /// Whether more requests are waiting than the device can serve soon.
    fn is_congested(&self) -> bool {
        false
    }

    /// Waits until the device is no longer congested, `ms` milliseconds at most.
    fn wait_if_congested(&self, ms: u32) {
        let _ = ms;
    }

    /// Copies `bytes` into a page from `offset` on. The range is in the page.
    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]);

    /// Copies from a page, from `offset` on, to `bytes`. The range is in the page.
    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]);

    /// Copies a page's memory to another page. The cache gives both to no other thread during the call.
    fn copy_page(&self, from: Pfn, to: Pfn) {
        let mut bytes = [0; 512];
        let page = self.page_bytes();
        for offset in (0..page).step_by(bytes.len()) {
            let part = &mut bytes[..(page - offset).min(512)];
            self.copy_out(from, offset, part);
            self.copy_in(to, offset, part);
        }
    }

    /// Fills a page with zeroes.
    fn clear(&self, pfn: Pfn);
}
