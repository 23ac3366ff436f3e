//! Layout of the file, and of its first page.

use core::any::TypeId;
use core::hash::{Hash, Hasher};
use core::mem::{MaybeUninit, offset_of, size_of};
use core::sync::atomic::{AtomicU32, AtomicU64};
use std::hash::DefaultHasher;

use framewright::{Allocator, Config, Plan};

use crate::arena::PAGE_BYTES;
use crate::platform::Host;
use crate::robust::RobustMutex;
use crate::store;

use super::ProcessError;

/// The allocator that is in the file. What it borrows is there, too: `'static` in name only.
pub(super) type Inner = Allocator<'static, Host, ()>;

/// Processes that can use an arena at the same time.
pub const MOST_PROCESSES: usize = 64;

/// `framewrt` as a number: the first word of an arena's file.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"framewrt");

const HUGE_PAGE: usize = 2 << 20;
const LARGEST_BLOCK: usize = PAGE_BYTES << framewright::units::MAX_ORDER.get();

/// The file's first bytes, read before it is mapped. Never changed once the file is handed on.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Label {
    pub(super) magic: u64,
    /// Which build's structures these are.
    pub(super) build: u64,
    /// Address at which every process maps the file: the structures in it point at each other.
    pub(super) address: u64,
    pub(super) pages: u64,
    /// 1: made of pages of 2 MiB.
    pub(super) huge: u64,
    pub(super) config: Config,
}

/// The file's beginning. Each field says who writes it.
#[repr(C)]
pub(super) struct Header {
    /// The process that made the file, before it is handed on.
    pub(super) label: Label,
    /// Guards the allocator, all tables and the fields below.
    pub(super) lock: RobustMutex,
    /// How often the tables have been made again, since a process was killed while it changed them. The lock's holder.
    pub(super) rebuilds: AtomicU64,
    /// Processes found dead. The lock's holder.
    pub(super) deaths: AtomicU64,
    /// Base pages taken back from them. The lock's holder.
    pub(super) taken_back: AtomicU64,
    /// By number, less one: the process's own number in the system, 0 if no process has the place. The lock's holder.
    pub(super) processes: [AtomicU32; MOST_PROCESSES],
    /// The lock's holder.
    pub(super) allocator: MaybeUninit<Inner>,
}

/// The build whose structures are in a file: another compiler, another version or other features lay them out in
/// another way.
pub(super) fn build() -> u64 {
    // Its keys are fixed; what it computes may change with the compiler, as the layouts may.
    let mut hasher = DefaultHasher::new();
    TypeId::of::<Inner>().hash(&mut hasher);
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    [size_of::<Header>(), size_of::<Config>(), offset_of!(Header, allocator)].hash(&mut hasher);
    hasher.finish()
}

/// Offsets in the file, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) owners: usize,
    pub(super) descriptors: usize,
    pub(super) tables: usize,
    /// The first frame: a multiple of 4 MiB.
    pub(super) pages: usize,
    /// The file's size.
    pub(super) bytes: usize,
}

impl Layout {
    /// Of an arena that `plan` describes.
    pub(super) fn new(plan: &Plan, pages: u64, huge: bool) -> Result<Self, ProcessError> {
        let (descriptors, tables) = store::sizes::<()>(plan, 1);
        // Descriptors and tables are cleared together: what is cleared starts and ends with a page of the file.
        let page = if huge { HUGE_PAGE } else { PAGE_BYTES };
        let mut end = 0_usize;
        let mut part = |bytes: usize, align: usize| {
            let start = end.checked_next_multiple_of(align)?;
            end = start.checked_add(bytes)?;
            Some(start)
        };
        let mut parts = || {
            let pages = usize::try_from(pages).ok()?;
            part(size_of::<Header>(), page)?;
            let owners = part(pages.checked_mul(size_of::<AtomicU32>())?, page)?;
            let descriptors = part(descriptors, page)?;
            let tables = part(tables, page)?;
            let first = part(pages.checked_mul(PAGE_BYTES)?, LARGEST_BLOCK)?;
            Some(Self { owners, descriptors, tables, pages: first, bytes: 0 })
        };
        let layout = parts().ok_or(ProcessError::TooLarge)?;
        let bytes = end.checked_next_multiple_of(page).ok_or(ProcessError::TooLarge)?;
        Ok(Self { bytes, ..layout })
    }
}
