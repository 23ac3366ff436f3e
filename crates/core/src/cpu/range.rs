//! Ranges of frames instead of blocks: an allocation by layout, and frees of any part of an allocation.
#![expect(unsafe_code, reason = "the caller of a free must own the range")]

use core::alloc::Layout;
use core::ops::Range;

use super::Cpu;
use crate::error::{AllocError, AllocFailure, FreeError, FreeFailure};
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::reclaim::{Helpers, Migrate, Reclaiming};
use crate::request::Request;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::ZoneSpec;

/// Ranges of a zone that a search tries.
const TRIES: usize = 3;

impl<'a, P: Platform, M: FrameUser> Cpu<'a, '_, P, M> {
    /// Allocates the frames that `layout` needs, its size rounded up to whole frames: contiguous and with its
    /// alignment. They may be freed in any parts ([`free_range`](Self::free_range)). Only the rounding to frames wastes
    /// memory.
    ///
    /// Up to the largest block (order 10) and its alignment this is one [`alloc`](Self::alloc), plus O(log pages) to
    /// free the rest of the block if the size is no power of two. If no block is free, and any frame will do as the
    /// first, one search for a run ([`alloc_runs`](Self::alloc_runs)). Above it,
    /// [`alloc_contig_with`](Self::alloc_contig_with).
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); a layout of 0 bytes is [not allowed](AllocFailure::NotAllowed).
    pub fn alloc_layout(&self, layout: Layout, migratetype: Migratetype) -> Result<Range<Pfn>, AllocError> {
        let (pages, align) = self.frames_of(layout);
        self.alloc_pages(pages, align, migratetype)
    }

    /// Like [`alloc_layout`](Self::alloc_layout), but as single frames: each is freed on its own
    /// ([`free`](Self::free)), by any CPU, also at the same time. O(pages).
    ///
    /// # Errors
    /// As [`alloc_layout`](Self::alloc_layout).
    pub fn alloc_split(&self, layout: Layout, migratetype: Migratetype) -> Result<Range<Pfn>, AllocError> {
        let (pages, align) = self.frames_of(layout);
        let Some(order) = Order::for_pages(pages.max(align)).filter(|_| pages != 0) else {
            return self.alloc_pages(pages, align, migratetype).map(|range| self.make_frames(range));
        };
        let start = match self.alloc(order, migratetype) {
            Ok(start) => start,
            Err(error) => {
                let run = self.one_run(pages, align, migratetype).ok_or(error)?;
                return Ok(self.make_frames(run));
            }
        };
        if order != Order::ZERO {
            self.make_singles(start, order, migratetype);
        }
        (pages..order.pages()).for_each(|n| self.free_part(start.add(n)));
        Ok(start..start.add(pages))
    }

    /// Makes single frames of blocks that were allocated just now.
    #[cold]
    fn make_frames(&self, range: Range<Pfn>) -> Range<Pfn> {
        // SAFETY: no other code knows of the range.
        let split = unsafe { self.split_range(range.clone()) };
        debug_assert!(split.is_ok(), "{split:?}");
        range
    }

    /// Frees a frame that is this call's.
    #[inline(never)]
    fn free_part(&self, pfn: Pfn) {
        let freed = self.free(pfn, Order::ZERO);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    /// Frames and alignment, in frames, of a layout.
    fn frames_of(&self, layout: Layout) -> (u64, u64) {
        let page = self.allocator.config.page_kib as usize * 1024;
        (layout.size().div_ceil(page) as u64, (layout.align() / page).max(1) as u64)
    }

    /// [`alloc_layout`](Self::alloc_layout) in frames.
    pub(crate) fn alloc_pages(
        &self,
        pages: u64,
        align: u64,
        migratetype: Migratetype,
    ) -> Result<Range<Pfn>, AllocError> {
        let Some(order) = Order::for_pages(pages.max(align)) else {
            return self.alloc_contig_with(pages, align, migratetype, &Helpers::NONE);
        };
        if pages == 0 {
            return Err(AllocError::new(AllocFailure::NotAllowed, Order::ZERO, migratetype));
        }
        let start = match self.alloc(order, migratetype) {
            Ok(start) => start,
            Err(error) => return self.one_run(pages, align, migratetype).ok_or(error),
        };
        let (range, whole) = (start..start.add(pages), start.add(order.pages()));
        if range.end != whole {
            // SAFETY: the block was allocated just now, and no other code knows of it.
            let freed = unsafe { self.split_at(range.end).and_then(|()| self.free_range(range.end..whole)) };
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
        Ok(range)
    }

    /// A run of `pages` frames, where no block that could hold them is free.
    #[cold]
    fn one_run(&self, pages: u64, align: u64, migratetype: Migratetype) -> Option<Range<Pfn>> {
        if align > 1 || pages == 1 {
            return None;
        }
        let mut out = [Pfn(0)..Pfn(0)];
        let run = self.alloc_runs(pages, migratetype, &mut out).first()?.clone();
        if run.start.add(pages) == run.end {
            return Some(run);
        }
        // SAFETY: the run was allocated just now, and no other code knows of it.
        let freed = unsafe { self.free_range(run) };
        debug_assert!(freed.is_ok(), "{freed:?}");
        None
    }

    /// Allocates `pages` contiguous frames at a multiple of `align` frames, in the first zone that has such a range,
    /// also more than the largest block has: 2^18 frames are a gigantic page of 1 GiB. They count as unmovable, and may
    /// be freed in any parts. Only a movable request gets Movable zones and CMA pageblocks. If no range is ready, more
    /// of the memory that boot has left for later is initialised.
    ///
    /// Of all ranges from the start of a pageblock on it takes the one whose pageblocks have the fewest frames in use,
    /// the first of equals; without a mover, only free ranges. It skips reserved and absent frames, unmovable
    /// pageblocks in use, and blocks that their owner would not move ([`can_move`](crate::reclaim::Migrate::can_move)).
    /// If the range cannot be taken after all, because its blocks find no place or the mover leaves them, the next best
    /// is tried, three in each zone. With compact metadata no block moves, as no word records which are movable. For
    /// rare requests: O(pageblocks of the zone) to find a range, and with lists, or where every pageblock has a frame
    /// that stays, O(frames); if there is none, once more after all lists are drained.
    ///
    /// # Errors
    /// No such range is free or can be made free; 0 pages, or an alignment that is no power of two. The state is
    /// unchanged, but lists may have been drained, and blocks moved.
    pub fn alloc_contig_with(
        &self,
        pages: u64,
        align: u64,
        migratetype: Migratetype,
        helpers: &Helpers<'_>,
    ) -> Result<Range<Pfn>, AllocError> {
        if pages == 0 || !align.is_power_of_two() || !migratetype.is_ordinary() {
            return Err(AllocError::new(AllocFailure::NotAllowed, MAX_ORDER, migratetype));
        }
        for drained in [false, true] {
            if drained {
                self.drain();
                self.drain_others(self.allocator.zones.iter());
            }
            for &id in self.allocator.zonelist_of(self.cpu) {
                let zone = self.allocator.zones[id.index()].spec();
                if pages > zone.pages || !Request::new(MAX_ORDER, migratetype).may_use(zone.kind) {
                    continue;
                }
                self.allocator.touch(zone.start, zone.end());
                loop {
                    if let Some(start) = self.contig_of(zone, pages, align, migratetype, helpers) {
                        return Ok(start..start.add(pages));
                    }
                    if !self.allocator.grow(id, pages, Some(self.cpu)) {
                        break;
                    }
                }
            }
        }
        Err(AllocError::new(AllocFailure::NoMemory, MAX_ORDER, migratetype))
    }

    /// Allocates one of the best ranges of a zone. Returns its first frame.
    fn contig_of(
        &self,
        zone: &ZoneSpec,
        pages: u64,
        align: u64,
        asked: Migratetype,
        helpers: &Helpers<'_>,
    ) -> Option<Pfn> {
        let mut last = None;
        for _ in 0..TRIES {
            let best = {
                let mover = self.mover(helpers);
                let mover = mover.as_ref().map(|&(migrate, _)| migrate);
                self.best_start(zone, pages, align.max(PAGEBLOCK_PAGES), asked, mover, last)?
            };
            let (_, start) = best;
            if self.alloc_contig_range(start..start.add(pages), helpers).is_ok() {
                return Some(start);
            }
            last = Some(best);
        }
        None
    }

    /// The start of the range with fewest frames in use, and how many these are, of those that come after `last`. A
    /// racy look, without a lock.
    fn best_start(
        &self,
        zone: &ZoneSpec,
        pages: u64,
        align: u64,
        asked: Migratetype,
        mover: Option<&dyn Migrate>,
        last: Option<(u64, Pfn)>,
    ) -> Option<(u64, Pfn)> {
        let used_in = |pageblock, is_part| self.used_in(pageblock, asked, mover.is_some(), is_part);
        let mut best: Option<(u64, Pfn)> = None;
        let mut start = zone.start.0.checked_next_multiple_of(align)?;
        // The whole pageblocks from `start` to `at` have `used` frames in use. No block of those before `seen` stays.
        let (mut at, mut used, mut seen) = (start, 0, start);
        while start.checked_add(pages).is_some_and(|end| end <= zone.end().0) {
            let (mut obstacle, mut part) = (None, 0);
            while at < start + pages && obstacle.is_none() {
                // Of the last pageblock the range may have the first part only.
                let is_part = at + PAGEBLOCK_PAGES > start + pages;
                match used_in(Pfn(at), is_part) {
                    Some(frames) if is_part => {
                        part = frames;
                        break;
                    }
                    Some(frames) => used += frames,
                    None => obstacle = Some(Pfn(at)),
                }
                at += PAGEBLOCK_PAGES;
            }
            let this = (used + part, Pfn(start));
            let is_best = last.is_none_or(|last| last < this) && best.is_none_or(|best| this < best);
            if obstacle.is_none() && is_best {
                let unseen = self.frames.blocks_in(Pfn(seen.max(start))..Pfn(start + pages));
                let moves = |pfn, order, asked| self.would_move(mover, pfn, order, asked);
                let stays = self.first_that_stays(unseen, moves);
                obstacle = stays.map(|(head, _)| head.max(Pfn(start)));
                if obstacle.is_none() {
                    (best, seen) = (Some(this), start + pages);
                    if this.0 == 0 {
                        break;
                    }
                }
            }
            if let Some(obstacle) = obstacle {
                // The next range begins after this pageblock.
                let after = obstacle.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES);
                start = after.0.checked_next_multiple_of(align).unwrap_or(u64::MAX);
                (at, used) = (start, 0);
                continue;
            }
            let next = start.saturating_add(align);
            for passed in (start..next.min(at)).step_by(PAGEBLOCK_PAGES as usize) {
                used -= used_in(Pfn(passed), false).unwrap_or(0).min(used);
            }
            start = next;
            if start >= at {
                (at, used) = (start, 0);
            }
        }
        best
    }

    /// Frames in use of a pageblock that can be had for a type: it is free, or there is a mover, and it is not one of
    /// unmovable blocks; or the range has only the first part of it. `None` if not.
    fn used_in(&self, start: Pfn, asked: Migratetype, has_mover: bool, is_part: bool) -> Option<u64> {
        let frames = &self.allocator.frames;
        let info = frames.info(start);
        let list = info.migratetype();
        // A CMA pageblock is lent to movable blocks only.
        let is_lent = list == Migratetype::Cma && asked != Migratetype::Movable;
        if !info.is_present() || info.is_poisoned() || list == Migratetype::Isolate || is_lent {
            return None;
        }
        let free = match frames.find(start) {
            (_, State::Free { order, .. }) if order >= PAGEBLOCK_ORDER => PAGEBLOCK_PAGES,
            _ if frames.has_maps() => frames.open_head(start).map_or(0, |head| u64::from(head.free())),
            _ => {
                let is_free = |(_, state): &(Pfn, State)| matches!(state, State::Free { .. });
                frames.blocks_of(start).filter(is_free).map(|(_, state)| state.pages()).sum()
            }
        };
        let used = PAGEBLOCK_PAGES - free.min(PAGEBLOCK_PAGES);
        (used == 0 || is_part || has_mover && list != Migratetype::Unmovable).then_some(used)
    }

    /// The first of some blocks that is in use and does not move, or that is out of use. A racy look.
    pub(super) fn first_that_stays(
        &self,
        mut blocks: impl Iterator<Item = (Pfn, State)>,
        moves: impl Fn(Pfn, Order, Migratetype) -> bool,
    ) -> Option<(Pfn, State)> {
        blocks.find(|&(pfn, state)| match state {
            State::Taken { order, asked, .. } => {
                self.may_free(pfn, order, self.frames.info(pfn)) && !moves(pfn, order, asked)
            }
            State::Reserved | State::Quarantined { .. } => true,
            State::Free { .. } | State::Body => false,
        })
    }

    /// Whether blocks that were requested as `asked` move where their owner would: Linux moves no reclaimable ones.
    pub(super) fn may_move(&self, asked: Migratetype) -> bool {
        asked == Migratetype::Movable || asked == Migratetype::Reclaimable && self.frames.has_maps()
    }

    /// Whether the owner of a block, which was requested as `asked`, would move it now.
    pub(super) fn would_move(
        &self,
        mover: Option<&dyn Migrate>,
        pfn: Pfn,
        order: Order,
        asked: Migratetype,
    ) -> bool {
        self.may_move(asked) && mover.is_some_and(|mover| mover.can_move(pfn, order, asked))
    }

    /// The helpers' mover, and this CPU inside it: until the guard is dropped its requests move nothing. `None` inside
    /// a mover or a reclaimer.
    pub(super) fn mover<'h>(&self, helpers: &Helpers<'h>) -> Option<(&'h dyn Migrate, Reclaiming<'a, P>)> {
        let migrate = helpers.migrate?;
        Some((migrate, Reclaiming::enter(self.allocator.context(self.cpu))?))
    }

    /// Makes `at` the first frame of a block, by splitting the allocated block that holds it, so that the parts before
    /// and from `at` can be freed separately. The block becomes equal parts, as large as `at` allows. O(parts).
    ///
    /// # Safety
    /// As [`split`](Self::split), for the block that holds `at`.
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

    /// Splits every block of `range` into frames, which may be freed one by one, also on several CPUs at the same time.
    /// O(pages).
    ///
    /// # Safety
    /// As [`split`](Self::split), for each block that the range touches.
    ///
    /// # Errors
    /// A frame that is not allocated; blocks before it are split.
    pub unsafe fn split_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        let mut at = range.start;
        while at < range.end {
            let (head, order) = self.block_of(at)?;
            if order != Order::ZERO {
                // SAFETY: by the caller's promise.
                unsafe { self.split(head, order, Order::ZERO)? };
            }
            at = head.add(order.pages());
        }
        Ok(())
    }

    /// Frees the frames of `range`: whole blocks as they are; of a block that reaches beyond the range, the part inside
    /// it, after a split. So frames may be freed one by one, in any order, whatever block they were allocated in.
    /// O(blocks), and O(parts) of a split.
    ///
    /// # Safety
    /// The caller owns the blocks that the range holds or cuts; or, for a block that is cut, the owners of its other
    /// parts make no call at the same time. Frames that were not allocated need no promise: they are refused.
    ///
    /// # Errors
    /// A frame that is not allocated, or not the allocator's. [`FreeError::pfn`] is in the first block that is refused:
    /// all frames before it are free.
    #[inline]
    pub unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        // A frame that was allocated as a block of order 0 needs no search for its block.
        if range.end.0.wrapping_sub(range.start.0) == 1 && self.free(range.start, Order::ZERO).is_ok() {
            return Ok(());
        }
        // SAFETY: by the caller's promise.
        unsafe { self.free_blocks(range) }
    }

    /// [`free_range`](Self::free_range), block by block.
    ///
    /// # Safety
    /// As [`free_range`](Self::free_range).
    #[inline(never)]
    unsafe fn free_blocks(&self, range: Range<Pfn>) -> Result<(), FreeError> {
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
