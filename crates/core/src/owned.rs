//! Owners of frames: values that free their frames when they are dropped, so that safe code cannot free them twice.
//!
//! The type parameter [`GiveBack`] decides how they free. A borrowed [`Cpu`] is one, for blocks that live no longer
//! than one pinned call. A kernel writes its own, of no size, that pins the CPU and frees there. Such owners may be put
//! into any structure, and be dropped on any CPU.
//!
//! # Which raw frees are unsafe, and why
//! A raw frame is a number, and the type system does not record who owns it.
//! - [`Cpu::free`] and [`Cpu::free_bulk`] are safe in this crate: it never reaches the memory behind frames. A wrong
//!   free is refused. The free of a block that another owner holds is right for the allocator: the block is handed out
//!   again, and two owners have one number. No memory is at stake before one of them uses it as an address, and that
//!   step is unsafe in the code that makes it.
//! - [`Cpu::split`], [`Cpu::split_at`], [`Cpu::split_range`] and [`Cpu::free_range`] are unsafe here, too. They write
//!   the head words of a block's parts without a lock. If another CPU frees the block during the call, they overwrite
//!   the words of a free block: later frees and allocations follow these words, and no check finds the damage.
//! - Where frames stand for memory that the crate itself lends out, every raw free is unsafe: the next owner would get
//!   memory to which the last one still has a reference. So it is in `framewright-host`, and in
//!   [`Release::free`](crate::reclaim::Release::free), whose callers may be on either side.
//!
//! The owners below keep both promises for their caller: only they know their frames, and they give each back once.
#![expect(unsafe_code, reason = "an owner is the only one that frees its frames")]

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;

use crate::cpu::Cpu;
use crate::error::{AllocError, FreeError};
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::units::{Migratetype, Pfn};

/// How an owner gives its frames back.
///
/// # Safety
/// Both calls reach the allocator that the frames are from, as [`Cpu::free_range`] and [`Cpu::split_at`] do. A clone
/// reaches the same allocator, and [`reaches_same`](Self::reaches_same) is `true` only of a value that does.
pub unsafe trait GiveBack: Clone {
    /// Frees a range that begins and ends at ends of blocks.
    ///
    /// # Safety
    /// The caller owns the range, and does not use it afterwards.
    ///
    /// # Errors
    /// As [`Cpu::free_range`].
    unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError>;

    /// Splits a block so that the frame `at` is the first of one.
    ///
    /// # Safety
    /// The caller owns the block that holds `at`.
    ///
    /// # Errors
    /// As [`Cpu::split_at`].
    unsafe fn split_at(&self, at: Pfn) -> Result<(), FreeError>;

    /// Whether `peer` reaches the same allocator. Frames of two allocators have no common owner.
    fn reaches_same(&self, peer: &Self) -> bool;
}

// SAFETY: both are the allocator's own.
unsafe impl<P: Platform, M: FrameUser> GiveBack for &Cpu<'_, '_, P, M> {
    unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        // SAFETY: by the caller's promise.
        unsafe { Cpu::free_range(self, range) }
    }

    unsafe fn split_at(&self, at: Pfn) -> Result<(), FreeError> {
        // SAFETY: by the caller's promise.
        unsafe { Cpu::split_at(self, at) }
    }

    fn reaches_same(&self, peer: &Self) -> bool {
        core::ptr::eq(self.allocator(), peer.allocator())
    }
}

/// Owner of contiguous frames, any number of them. Dropping it frees them.
///
/// ```compile_fail
/// # fn f<G: framewright::owned::GiveBack>(frames: framewright::OwnedFrames<G>) {
/// drop(frames);
/// drop(frames); // A frame cannot be freed twice.
/// # }
/// ```
#[must_use = "dropping it frees the frames"]
pub struct OwnedFrames<G: GiveBack> {
    /// Both ends are ends of blocks, so that a free touches no frame of another owner.
    range: Range<Pfn>,
    home: G,
}

impl<G: GiveBack> OwnedFrames<G> {
    /// Makes an owner of frames that have none: just allocated, or from [`into_raw`](Self::into_raw).
    ///
    /// # Safety
    /// The frames are allocated, from the allocator that `home` reaches, and no other code frees or splits them. The
    /// range begins and ends at ends of blocks, like that of an allocation.
    pub const unsafe fn from_raw(range: Range<Pfn>, home: G) -> Self {
        Self { range, home }
    }

    /// Returns the frames. From now on only the caller frees them: by [`from_raw`](Self::from_raw), or
    /// [`Cpu::free_range`].
    #[must_use = "the frames have no owner now"]
    pub fn into_raw(self) -> (Range<Pfn>, G) {
        let this = ManuallyDrop::new(self);
        // SAFETY: `this` is not used or dropped afterwards.
        (this.range.clone(), unsafe { core::ptr::read(&raw const this.home) })
    }

    /// Returns the frames, which are never freed.
    pub fn leak(self) -> Range<Pfn> {
        self.into_raw().0
    }

    /// First frame and the frame after the last.
    #[must_use]
    pub const fn range(&self) -> &Range<Pfn> {
        &self.range
    }

    /// Number of frames.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.range.end.0 - self.range.start.0
    }

    /// Splits into two owners: of the first `pages` frames, and of the rest. O(blocks that the block at the border is
    /// split into).
    ///
    /// # Panics
    /// If one of the parts would be empty.
    pub fn split(self, pages: u64) -> (Self, Self) {
        assert!(
            0 < pages && pages < self.pages(),
            "{pages} of {} frames: both parts have at least one",
            self.pages()
        );
        let at = self.range.start.add(pages);
        // SAFETY: the block is inside the range, which is ours.
        let split = unsafe { self.home.split_at(at) };
        assert!(split.is_ok(), "an owned frame is allocated: {split:?}");
        let (range, home) = self.into_raw();
        (Self { range: range.start..at, home: home.clone() }, Self { range: at..range.end, home })
    }

    /// Merges with `next`, which must begin at the end of this range, and be of the same allocator. Blocks do not
    /// change.
    ///
    /// # Errors
    /// Both owners, if they are not adjacent, or not of one allocator.
    pub fn merge(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.range.end != next.range.start || !self.home.reaches_same(&next.home) {
            return Err((self, next));
        }
        let (second, _) = next.into_raw();
        let (first, home) = self.into_raw();
        Ok(Self { range: first.start..second.end, home })
    }
}

impl<G: GiveBack> Drop for OwnedFrames<G> {
    fn drop(&mut self) {
        // SAFETY: the frames are ours, and this is the last time that we name them.
        let freed = unsafe { self.home.free_range(self.range.clone()) };
        debug_assert!(freed.is_ok(), "an owned frame is allocated: {freed:?}");
    }
}

impl<G: GiveBack> fmt::Debug for OwnedFrames<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnedFrames").field(&self.range).finish()
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Allocates `pages` contiguous frames, like [`alloc_layout`](Self::alloc_layout) without an alignment, with an
    /// owner that frees them on drop.
    ///
    /// # Errors
    /// As [`alloc_layout`](Self::alloc_layout).
    pub fn alloc_frames(
        &self,
        pages: u64,
        migratetype: Migratetype,
    ) -> Result<OwnedFrames<&Self>, AllocError> {
        let range = self.alloc_pages(pages, 1, migratetype)?;
        // SAFETY: they were allocated just now, and no other code knows of them.
        Ok(unsafe { OwnedFrames::from_raw(range, self) })
    }
}
