//! Descriptor of a frame that holds a cached page. Has the `unsafe` that reaching a frame's slot needs.
#![expect(unsafe_code, reason = "a slot is reached by the owner of the frame: the cache, under its lock")]

use framewright::frame::{FrameUser, Zeroable};
use framewright::platform::Platform;
use framewright::reclaim::Release;
use framewright::{Allocator, Order, Pfn};

/// A file, by a number that the user of the cache chooses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct FileId(pub u32);

/// A space of anonymous pages, by a number that the user of the cache chooses: the memory of a program, say.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct SpaceId(pub u32);

/// Owner of a page. Files and spaces are numbered apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// A file's.
    File(FileId),
    /// Anonymous, in a space.
    Space(SpaceId),
}

impl From<FileId> for Owner {
    fn from(file: FileId) -> Self {
        Self::File(file)
    }
}

impl From<SpaceId> for Owner {
    fn from(space: SpaceId) -> Self {
        Self::Space(space)
    }
}

/// A page's state, as a set.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(transparent)]
pub struct Marks(u16);

impl Marks {
    /// On the active list.
    pub const ACTIVE: Self = Self(1);
    /// Marked as used.
    pub const REFERENCED: Self = Self(1 << 1);
    /// Holds what storage does not: an anonymous page, if no slot of the swap area is its own.
    pub const DIRTY: Self = Self(1 << 2);
    /// Being written.
    pub const WRITEBACK: Self = Self(1 << 3);
    /// In an address space.
    pub const MAPPED: Self = Self(1 << 4);
    /// Used through its mapping since last asked.
    pub const YOUNG: Self = Self(1 << 5);
    /// Holds what it should.
    pub const UPTODATE: Self = Self(1 << 6);
    /// Anonymous.
    pub const ANON: Self = Self(1 << 7);
    /// Being written because its memory is wanted.
    pub const RECLAIM: Self = Self(1 << 8);

    /// Whether all of `other` are set.
    #[must_use]
    pub const fn has(self, marks: Self) -> bool {
        self.0 & marks.0 == marks.0
    }

    /// With `other` set, or not.
    #[must_use]
    pub const fn with(self, marks: Self, on: bool) -> Self {
        Self(if on { self.0 | marks.0 } else { self.0 & !marks.0 })
    }
}

/// [`PageSlot::users`] of a page that one has alone.
pub const ALONE: u16 = u16::MAX;

/// A frame's slot. All zero is a valid one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PageSlot {
    /// Which page of the file, or of the space.
    pub index: u64,
    /// The number of the file, or of the space if the page is [`Marks::ANON`].
    pub number: u32,
    /// The page after it on its list, as a frame number relative to the map's first; [`NONE`] at the end.
    pub next: u32,
    /// The page before it.
    pub prev: u32,
    /// Its state.
    pub marks: Marks,
    /// Those who read its memory, or [`ALONE`].
    pub users: u16,
}

impl PageSlot {
    /// Owner of the page.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        if self.marks.has(Marks::ANON) {
            Owner::Space(SpaceId(self.number))
        } else {
            Owner::File(FileId(self.number))
        }
    }
}

/// No page.
pub const NONE: u32 = u32::MAX;

// SAFETY: numbers all of which may be zero.
unsafe impl Zeroable for PageSlot {}

impl FrameUser for PageSlot {
    const CHECKED: bool = false;

    fn check(&self) -> Option<&'static str> {
        None
    }
}

/// The slots of the frames that a cache owns.
pub(crate) struct Slots<'c, P: Platform> {
    allocator: &'c Allocator<'c, P, PageSlot>,
    base: Pfn,
    pub(crate) frames: u64,
}

impl<'c, P: Platform> Slots<'c, P> {
    pub(crate) fn new(allocator: &'c Allocator<'c, P, PageSlot>) -> Self {
        let specs = || allocator.zones().iter().map(framewright::zone::Zone::spec);
        let base = specs().map(|spec| spec.start).min().unwrap_or_default();
        let end = specs().map(|spec| spec.end()).max().unwrap_or_default();
        // A link is 32 bits, and one of its values means "none".
        let frames = end.0.saturating_sub(base.0);
        assert!(
            frames <= u64::from(NONE),
            "a page cache's links name 2^32 - 1 frames, and this allocator's range has {frames}: \
             give the cache an arena of its own below 16 TiB"
        );
        Self { allocator, base, frames }
    }

    /// The number of a frame, of any owner, among those that a link can name.
    pub(crate) fn number(&self, pfn: Pfn) -> Option<u64> {
        pfn.0.checked_sub(self.base.0).filter(|&n| n < self.frames)
    }

    pub(crate) fn link(&self, pfn: Pfn) -> u32 {
        (pfn.0 - self.base.0) as u32
    }

    pub(crate) fn pfn(&self, link: u32) -> Option<Pfn> {
        (link != NONE).then(|| self.base.add(u64::from(link)))
    }

    /// Runs `f` on the slot of a page.
    ///
    /// Crate-private, for the holder of the cache's lock, about a page that the cache owns: one in its index
    /// or on its lists, or one that was allocated for it just now and that no other code knows of.
    pub(crate) fn with<R>(&self, pfn: Pfn, f: impl FnOnce(&mut PageSlot) -> R) -> R {
        // SAFETY: the cache owns the frame, and its lock is held, so no other thread reaches the slot. `f` has no
        // way to reach it a second time.
        let result = unsafe { self.allocator.frames().with_user(pfn, f) };
        result.expect("a page of the cache is a frame of its allocator")
    }

    /// Frees a page that the cache owned until now: it is in no index and on no list any more, and no thread uses it.
    ///
    /// For the code in this crate that took it out.
    pub(crate) fn release(&self, pfn: Pfn, to: &dyn Release) {
        // SAFETY: the page was the cache's, of the allocator that `to` frees to (see `Cache::check_sink`), and no
        // thread else knows of it.
        let freed = unsafe { to.free(pfn, Order::ZERO) };
        debug_assert!(freed.is_ok(), "a page of the cache was freed by another owner");
    }

    pub(crate) fn get(&self, pfn: Pfn) -> PageSlot {
        self.with(pfn, |slot| *slot)
    }
}
