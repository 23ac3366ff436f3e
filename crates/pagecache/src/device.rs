//! What the cache asks of storage, and of the memory of its pages.

use core::fmt;

use framewright::Pfn;

use crate::slot::FileId;

/// A device could not do what it was asked. It keeps the system's error number, so that a full disk can be told from a
/// broken one.
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
    /// The device does not say why.
    pub const UNKNOWN: Self = Self { code: 0 };

    /// With the system's error number (`errno`).
    #[must_use]
    pub const fn from_code(code: i32) -> Self {
        Self { code }
    }

    /// The system's error number, if there is one.
    #[must_use]
    pub const fn code(self) -> Option<i32> {
        if self.code == 0 { None } else { Some(self.code) }
    }

    /// Whether there is no room on the device (`ENOSPC`), or none within the user's quota (`EDQUOT`): trying again is of
    /// no use.
    #[must_use]
    pub const fn is_full(self) -> bool {
        matches!(self.code, ENOSPC | EDQUOT)
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            0 => f.write_str("the device failed"),
            EIO => f.write_str("the device failed: input/output error"),
            EFBIG => f.write_str("the file is larger than the file system allows"),
            ENOSPC => f.write_str("no space is left on the device"),
            EROFS => f.write_str("the file system is read-only"),
            EDQUOT => f.write_str("the disk quota is exceeded"),
            code => write!(f, "the device failed: error {code}"),
        }
    }
}

impl core::error::Error for IoError {}

/// How far a write is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Done.
    Done,
    /// Begun: [`Device::completed`] will tell. The page's memory does not change until then.
    Begun,
}

/// A write that had been begun is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The file.
    pub file: FileId,
    /// Which page.
    pub index: u64,
    /// Where it lies.
    pub pfn: Pfn,
    /// Whether it was written.
    pub result: Result<(), IoError>,
}

/// Storage for whole pages of files, and access to the memory that pages lie in.
///
/// The cache calls with no lock held, and keeps to this: while a page is read into, or copied into, nobody
/// else is given it; while it is written out, or copied from, nobody is who would change it.
pub trait Device: Sync {
    /// Bytes of a page.
    fn page_bytes(&self) -> usize;

    /// Whether storage may hold something of a page of a file. If not, the cache clears memory instead of reading.
    fn may_hold(&self, file: FileId, index: u64) -> bool {
        let _ = (file, index);
        true
    }

    /// Fills page `pfn` with page `index` of a file; zeroes where the file has none. Returns when that is done.
    ///
    /// # Errors
    /// The page's content is unknown then.
    fn read(&self, file: FileId, index: u64, pfn: Pfn) -> Result<(), IoError>;

    /// Makes page `index` of a file what page `pfn` holds, or begins to.
    ///
    /// # Errors
    /// What storage holds there is the old, the new, or a mix.
    fn write(&self, file: FileId, index: u64, pfn: Pfn) -> Result<Progress, IoError>;

    /// A file is about to hold bytes up to `end`, at least. Called while the caller has the page alone that will hold the
    /// last of them, and before it is dirty: so no write of it can have begun, and a device that cuts files to their
    /// lengths never cuts what the page will hold.
    fn extend(&self, file: FileId, end: u64) {
        let _ = (file, end);
    }

    /// Makes sure that what was written to a file, as far as that is done, will last. The cache has one such call at a
    /// time for a file.
    ///
    /// # Errors
    /// Some of it may not, and a later call that succeeds says nothing of it.
    fn sync(&self, file: FileId) -> Result<(), IoError> {
        let _ = file;
        Ok(())
    }

    /// The next of the writes that were begun and are done now; `None` if there is no news. The cache asks
    /// whenever it waits, and when it reclaims.
    fn completed(&self) -> Option<Completion> {
        None
    }

    /// Waits until a write that was begun is done, not for long. Where it returns at once, the cache asks
    /// [`completed`](Self::completed) again and again.
    fn wait_for_completion(&self) {}

    /// Holds a writer back that has made too much dirty, for the `turn`-th time in a row, from 0 on. Linux has it sleep for
    /// 1, 2, 4, … at most 100 ms; a host need not sleep longer than until a write is done.
    fn hold_back(&self, turn: u32) {
        let _ = turn;
        self.wait_for_completion();
    }

    /// Called between two looks at something that somebody else is about to change, for the `turn`-th time in a row, from
    /// 0 on. A modelled device lets time pass; a real one may sleep when it has looked often enough.
    fn pass_time(&self, turn: u32) {
        let _ = turn;
    }

    /// Forgets the pages of a file from `index` on.
    ///
    /// # Errors
    /// Some of them may still be there.
    fn truncate(&self, file: FileId, index: u64) -> Result<(), IoError>;

    /// Whether it has more to do than it can.
    fn is_congested(&self) -> bool {
        false
    }

    /// Waits until it is not congested, `ms` milliseconds at most.
    fn wait_if_congested(&self, ms: u32) {
        let _ = ms;
    }

    /// Copies `bytes` into a page from `offset` on. The range lies in the page.
    fn copy_in(&self, pfn: Pfn, offset: usize, bytes: &[u8]);

    /// Copies from a page, from `offset` on, to `bytes`. The range lies in the page.
    fn copy_out(&self, pfn: Pfn, offset: usize, bytes: &mut [u8]);

    /// Fills a page with zeroes.
    fn clear(&self, pfn: Pfn);
}
