//! Allocation of a given range of frames, from which movable blocks are moved away first (Linux: `alloc_contig_range`).

use core::fmt;
use core::ops::Range;

use super::place::{PlaceError, PlaceFailure};
use crate::cpu::Cpu;
use crate::error::FreeError;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::reclaim::Helpers;
use crate::request::{Flags, Request};
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::Zone;

/// Times that the range is searched for blocks to move. Linux: 5.
const ROUNDS: u32 = 5;

/// A range that could not be allocated. Its frames are allocated, free and isolated as before, but moved blocks stay at
/// their new places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ContigError {
    /// The obstacle.
    pub place: PlaceError,
    /// Base pages that were moved out of the range nevertheless.
    pub moved: u64,
}

impl fmt::Display for ContigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {} pages moved away in vain", self.place, self.moved)
    }
}

impl core::error::Error for ContigError {}

/// Pageblocks that this call has isolated. The isolation ends when this is dropped, also by a panic.
struct Isolated<'c, 'a, 'm, P: Platform, M: FrameUser> {
    cpu: &'c Cpu<'a, 'm, P, M>,
    pageblocks: Range<Pfn>,
}

impl<P: Platform, M: FrameUser> Drop for Isolated<'_, '_, '_, P, M> {
    fn drop(&mut self) {
        for start in Pfn::pageblocks(self.pageblocks.clone()) {
            self.cpu.allocator.let_pageblock_go(start, Some(self.cpu.cpu));
        }
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Allocates the frames of `range`, which is in one zone: isolates its pageblocks, drains the lists of all CPUs,
    /// lets `helpers.migrate` move blocks away, and takes the frames if they are all free then. Without a mover only a
    /// free range can be allocated.
    ///
    /// The range is allocated as blocks, each as large as its alignment and the rest of the range allow; they count as
    /// unmovable. [`free_contig_range`](Self::free_contig_range) frees them all; each may also be split, and freed on
    /// its own.
    ///
    /// Nothing is moved if a block of the range stays, except under the presets of Linux. A block that reaches beyond
    /// the range is moved as a whole. The memory that blocks move to is allocated like any other: with the help of
    /// `helpers`, but without their mover.
    ///
    /// O(pages), under the lock of one section after another; plus the time of the mover.
    ///
    /// # Errors
    /// The obstacle: reserved frames, blocks that do not move, a pageblock that is isolated already, a list that its
    /// CPU has not drained; or the zone's min mark, if it keeps marks: a range takes no more than a request for
    /// unmovable pages without flags may, or for movable ones where it begins in a CMA pageblock.
    pub fn alloc_contig_range(&self, range: Range<Pfn>, helpers: &Helpers<'_>) -> Result<(), ContigError> {
        let pages = range.end.0.saturating_sub(range.start.0);
        let mut moved = 0;
        let error = |why, moved| ContigError { place: PlaceError { why, pfn: range.start, pages }, moved };
        let zone = self.zone_of(range.start, pages).ok_or(error(PlaceFailure::Foreign, 0))?;
        if self.allocator.strikes(Order::ZERO) {
            return Err(error(PlaceFailure::Injected, 0));
        }
        let first = range.start.block_start(PAGEBLOCK_ORDER);
        if !self.may_leave_range(zone, first, pages) {
            return Err(error(PlaceFailure::BelowMark, 0));
        }
        let mut isolated = Isolated { cpu: self, pageblocks: first..first };
        while isolated.pageblocks.end < range.end {
            let start = isolated.pageblocks.end;
            if self.allocator.hold_pageblock(start, Some(self.cpu)).is_none() {
                let is_there = self.allocator.frames.info(start).is_present();
                let why = if is_there { PlaceFailure::Isolated(start) } else { PlaceFailure::Foreign };
                return Err(error(why, 0));
            }
            isolated.pageblocks.end = start.add(PAGEBLOCK_PAGES);
        }
        self.drain_all_of(zone);
        let stays = || {
            let mover = self.mover(helpers);
            let mover = mover.as_ref().map(|&(migrate, _)| migrate);
            let moves = |pfn, order, asked| self.would_move(mover, pfn, order, asked);
            self.first_that_stays(self.frames.blocks_in(range.clone()), moves)
        };
        // Nothing is moved in vain if a block stays. The presets move first.
        if self.frames.has_maps()
            && let Some((pfn, state)) = stays()
        {
            return Err(error(PlaceFailure::InUse { pfn, state }, 0));
        }
        for _ in 0..ROUNDS {
            let now = self.move_out(zone, &range, helpers);
            moved += now;
            if now == 0 {
                break;
            }
        }
        // Section by section: free frames of an isolated pageblock stay free.
        let take = || {
            for part in zone.cut.parts(range.clone()) {
                let local = self.local(zone.id());
                if let Err(why) = self.take_frames(&local, part.clone(), true) {
                    Order::tiles(range.start..part.start)
                        .for_each(|(pfn, order)| local.free_direct(pfn, order));
                    return Err(why);
                }
            }
            Ok(())
        };
        self.with_lists_drained(zone, take).map_err(|why| error(why, moved))?;
        drop(isolated);
        let local = self.local(zone.id());
        let mut bad = false;
        for (pfn, order) in Order::tiles(range.clone()) {
            bad |= !local.accept(pfn, order);
        }
        if bad {
            // Blocks that a check has found bad are out of use now; the others are freed.
            for (pfn, order) in Order::tiles(range.clone()) {
                let _ = self.free(pfn, order);
            }
            return Err(error(PlaceFailure::Bad, moved));
        }
        Ok(())
    }

    /// Frees a range that [`alloc_contig_range`](Self::alloc_contig_range) has allocated, if none of its blocks was
    /// split or freed.
    ///
    /// # Errors
    /// The reason why the first changed block cannot be freed. The state is unchanged then, unless another CPU frees
    /// one of the blocks during the call.
    pub fn free_contig_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        let frames = &self.allocator.frames;
        let is_allocated = |&(pfn, order): &(Pfn, Order)| {
            frames.contains(pfn) && self.may_free(pfn, order, frames.info(pfn))
        };
        if let Some((pfn, order)) = Order::tiles(range.clone()).find(|block| !is_allocated(block)) {
            return Err(self.refuse(pfn, order));
        }
        Order::tiles(range.clone()).try_for_each(|(pfn, order)| self.free(pfn, order))
    }

    /// Whether `pages` pages may leave the zone: those of the range, or those that its blocks move to. Pages on lists
    /// count.
    fn may_leave_range(&self, zone: &Zone<P>, first: Pfn, pages: u64) -> bool {
        // CMA pages are taken from no other request.
        let is_cma = self.allocator.frames.info(first).migratetype() == Migratetype::Cma;
        let migratetype = if is_cma { Migratetype::Movable } else { Migratetype::Unmovable };
        let request = Request::new(Order::ZERO, migratetype);
        let may_leave = || self.may_leave(zone, &request, Mark::Min) >= pages;
        // Linux checks no mark here.
        !self.allocator.config.engine.has_maps() || may_leave() || {
            self.drain_all_of(zone);
            may_leave()
        }
    }

    /// Moves the blocks that touch the range to other places, where their owner would. Returns the base pages moved.
    fn move_out(&self, zone: &Zone<P>, range: &Range<Pfn>, helpers: &Helpers<'_>) -> u64 {
        let Some((migrate, here)) = self.mover(helpers) else { return 0 };
        let frames = &self.allocator.frames;
        let mut moved = 0;
        for (head, state) in frames.blocks_in(range.clone()) {
            let State::Taken { order, asked, .. } = state else { continue };
            let is_with_caller = || self.may_free(head, order, frames.info(head));
            if !self.may_move(asked) || !is_with_caller() || !migrate.can_move(head, order, asked) {
                continue;
            }
            // The request does not wait, so that it neither reclaims nor compacts.
            let request = Request::new(order, asked).with(Flags::NO_WAIT.and(Flags::NO_RESERVES));
            let Ok(place) = self.alloc_with(&request, helpers) else { break };
            moved += if self.move_block(migrate, head, place, order) { order.pages() } else { 0 };
        }
        drop(here);
        // The blocks freed onto this CPU's list.
        self.local(zone.id()).drain_all();
        moved
    }
}
