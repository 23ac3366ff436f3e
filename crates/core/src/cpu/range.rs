//! Ranges of frames in place of blocks: an allocation by layout, and frees of any part of what was allocated.
#![expect(unsafe_code, reason = "the caller of a free vouches for owning the range")]

use core::alloc::Layout;
use core::ops::Range;

use super::Cpu;
use crate::error::{AllocError, AllocFailure, FreeError, FreeFailure};
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::reclaim::Helpers;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Allocates the frames that `layout` needs, its size rounded up to whole frames: contiguous, aligned as it says, and to be freed
    /// in any parts ([`free_range`](Self::free_range)). No frame is wasted but what rounding up to frames takes.
    ///
    /// Up to the largest block (order 10) and its alignment this is one [`alloc`](Self::alloc); where the size is no power of two,
    /// O(log pages) more for the frames that go back. Above it, [`alloc_contig`](Self::alloc_contig).
    ///
    /// # Errors
    /// As of [`alloc`](Self::alloc); a layout of no bytes is [not allowed](AllocFailure::NotAllowed).
    pub fn alloc_layout(&self, layout: Layout, migratetype: Migratetype) -> Result<Range<Pfn>, AllocError> {
        let page = self.allocator.config.page_kib as usize * 1024;
        self.alloc_pages(
            layout.size().div_ceil(page) as u64,
            (layout.align() / page).max(1) as u64,
            migratetype,
        )
    }

    /// [`alloc_layout`](Self::alloc_layout) in frames.
    pub(crate) fn alloc_pages(
        &self,
        pages: u64,
        align: u64,
        migratetype: Migratetype,
    ) -> Result<Range<Pfn>, AllocError> {
        if pages > MAX_ORDER.pages() || align > MAX_ORDER.pages() {
            return self.alloc_contig(pages, align, migratetype);
        }
        if pages == 0 {
            return Err(AllocError::new(AllocFailure::NotAllowed, Order::ZERO, migratetype));
        }
        let order = order_of(pages.max(align));
        let start = self.alloc(order, migratetype)?;
        let (range, whole) = (start..start.add(pages), start.add(order.pages()));
        if range.end != whole {
            // SAFETY: the block was allocated just now, and no other code knows of it.
            let freed = unsafe { self.split_at(range.end).and_then(|()| self.free_range(range.end..whole)) };
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
        Ok(range)
    }

    /// Allocates `pages` contiguous frames at a multiple of `align` frames, in any zone: runs above the largest block, up to gigantic pages.
    /// They count as unmovable, and are freed in any parts.
    ///
    /// Takes the first range whose pageblocks are all free. To be for rare requests: O(pageblocks of all zones) to find it, after this
    /// CPU's lists are drained if there is none.
    ///
    /// # Errors
    /// No such range is free, or it was taken meanwhile; no pages, or an alignment that is no power of two. The state is unchanged, but
    /// lists may have been drained.
    pub fn alloc_contig(
        &self,
        pages: u64,
        align: u64,
        migratetype: Migratetype,
    ) -> Result<Range<Pfn>, AllocError> {
        if pages == 0 || !align.is_power_of_two() || !migratetype.is_ordinary() {
            return Err(AllocError::new(AllocFailure::NotAllowed, MAX_ORDER, migratetype));
        }
        for drained in [false, true] {
            if drained {
                self.drain();
            }
            for zone in self.allocator.zonelist_of(self.cpu) {
                let zone = self.allocator.zones[zone.index()].spec();
                let (mut at, end) = (zone.start, Pfn(zone.start.0 + zone.pages));
                while let Some(range) = self.find_free(at..end, pages, align.max(PAGEBLOCK_PAGES)) {
                    if self.alloc_contig_range(range.clone(), &Helpers::NONE).is_ok() {
                        return Ok(range);
                    }
                    at = range.start.add(PAGEBLOCK_PAGES);
                }
            }
        }
        Err(AllocError::new(AllocFailure::NoMemory, MAX_ORDER, migratetype))
    }

    /// The first aligned range of so many free frames. A racy look at head words, without a lock.
    fn find_free(&self, within: Range<Pfn>, pages: u64, align: u64) -> Option<Range<Pfn>> {
        let frames = &self.allocator.frames;
        let aligned = |pfn: Pfn| pfn.0.checked_next_multiple_of(align).map(Pfn);
        let mut start = aligned(within.start)?;
        let mut at = start;
        loop {
            let end = Pfn(start.0.checked_add(pages)?);
            if end > within.end {
                return None;
            }
            if at >= end {
                return Some(start..end);
            }
            self.allocator.touch(at, at.add(PAGEBLOCK_PAGES));
            let found = if frames.contains(at) { frames.find(at) } else { (at, State::Reserved) };
            match found {
                (head, State::Free { order, .. })
                    if frames.info(at).migratetype() != Migratetype::Isolate =>
                {
                    at = head.add(order.pages());
                }
                _ => {
                    // A frame of this pageblock is in use: the next range begins after it.
                    start = aligned(at.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES))?;
                    at = start;
                }
            }
        }
    }

    /// Makes `at` the first frame of a block, by splitting the allocated block that it is inside of: what is before it and what is from
    /// it on may be freed apart. The block becomes equal parts as large as `at` lets them be. O(parts).
    ///
    /// # Safety
    /// As of [`split`](Self::split), for the block that `at` is inside of.
    ///
    /// # Errors
    /// No allocated block holds the frame.
    pub unsafe fn split_at(&self, at: Pfn) -> Result<(), FreeError> {
        let (head, order) = self.block_of(at)?;
        if head == at {
            return Ok(());
        }
        let part = Order::new((at.0 - head.0).trailing_zeros() as u8).unwrap_or(Order::ZERO);
        // SAFETY: by the caller's promise.
        unsafe { self.split(head, order, part) }
    }

    /// Splits every block of `range` into frames: they may be freed one by one, on several CPUs at a time. O(pages).
    ///
    /// # Safety
    /// As of [`split`](Self::split), for each block that the range touches.
    ///
    /// # Errors
    /// A frame that is not allocated; blocks before it are split.
    pub unsafe fn split_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        let mut at = range.start;
        while at < range.end {
            let (head, order) = self.block_of(at)?;
            if order > Order::ZERO {
                // SAFETY: by the caller's promise.
                unsafe { self.split(head, order, Order::ZERO)? };
            }
            at = head.add(order.pages());
        }
        Ok(())
    }

    /// Frees the frames of `range`: whole blocks as they are, and of a block that reaches beyond the range the part inside it, after
    /// splitting. Frames may so come back one by one, in any order, whatever they were allocated as. O(blocks), and O(parts) of a split.
    ///
    /// # Safety
    /// Blocks that the range holds or cuts are the caller's, or other owners of parts of a block that is cut make no call meanwhile. For
    /// frames that no allocation gave there is no promise to make: they are refused.
    ///
    /// # Errors
    /// A frame that is not allocated, or not the allocator's. [`FreeError::pfn`] is in the first block that is refused: what is before
    /// it is freed.
    pub unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        // A frame that was allocated as one needs no look at what block it is in.
        if range.start.add(1) == range.end && self.free(range.start, Order::ZERO).is_ok() {
            return Ok(());
        }
        let mut at = range.start;
        while at < range.end {
            let (head, order) = self.block_of(at)?;
            let end = head.add(order.pages());
            if head == at && end <= range.end {
                self.free(at, order)?;
                at = end;
                continue;
            }
            for border in [range.start, range.end] {
                if head < border && border < end {
                    // SAFETY: by the caller's promise.
                    unsafe { self.split_at(border)? };
                }
            }
        }
        Ok(())
    }

    /// The allocated block that holds a frame.
    fn block_of(&self, pfn: Pfn) -> Result<(Pfn, Order), FreeError> {
        let frames = &self.allocator.frames;
        if !frames.contains(pfn) {
            return Err(FreeError { why: FreeFailure::Foreign, pfn, order: Order::ZERO });
        }
        match frames.find(pfn) {
            (head, State::Taken { order, .. }) => Ok((head, order)),
            _ => Err(self.refuse(pfn, Order::ZERO)),
        }
    }
}

/// The smallest order with so many pages; at most the largest.
const fn order_of(pages: u64) -> Order {
    match Order::new(pages.next_power_of_two().trailing_zeros() as u8) {
        Some(order) => order,
        None => MAX_ORDER,
    }
}
