//! Compaction with maps: empties pageblocks, or parts of them.
//!
//! Two scanners that meet move every page below the place where they meet. With maps the bins and bits tell what is
//! nearly empty and what is nearly full, so that the fewest pages move for each block that is won: a background round
//! empties pageblocks, a request a part as large as the block that it wants. In a round a page moves only into a
//! pageblock that had no more free frames than the one that it leaves, so that it does not move back later.

use core::ops::Range;

use super::{Batch, Compacted, Compaction, Cpu};
use crate::events::count;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::compact::{MOST_USED, ROUND_LOOKS, ROUND_PAGEBLOCKS, ROUND_PAGES, fragmentation};
use crate::reclaim::Migrate;
use crate::request::Request;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::Zone;

/// Levels of parts, by frames in use: level 0 is emptied first.
const LEVELS: usize = 16;

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// A background round: empties pageblocks of a zone until at most `most_outside` percent of its free pages are
    /// outside free huge pages, or until it has moved, looked at or considered its most.
    pub(super) fn empty_in_a_round(
        &self,
        zone: &Zone<P>,
        migrate: &dyn Migrate,
        most_outside: u64,
    ) -> Compacted {
        let Some(mut round) = Compaction::begin(self, zone, migrate) else { return Compacted::default() };
        // Counted once; what the round wins is added.
        let mut whole = self.allocator.free_pageblocks(zone);
        round.empty_next(PAGEBLOCK_ORDER, true, |start| {
            whole += u64::from(self.frames.free_whole(start).is_some());
            fragmentation(zone.free_pages(), whole * PAGEBLOCK_PAGES) <= most_outside
        });
        round.total
    }

    /// The parts of a pageblock that are as large as a block of `order`, if the pageblock is open; or the pageblock
    /// itself, or the pair that begins with it. With the frames in use of each. A racy read.
    fn parts(&self, start: Pfn, order: Order) -> impl Iterator<Item = (u64, Pfn)> {
        let (pages, frames) = (order.pages(), self.frames);
        let open = frames.open_head(start).filter(|_| order < PAGEBLOCK_ORDER);
        let bits = open.and_then(|_| Some(frames.map(start)?.bits()));
        let small = bits.into_iter().flat_map(move |bits| {
            let numbers = (0..PAGEBLOCK_PAGES).step_by(pages as usize);
            numbers.map(move |from| (pages - bits.count_in(from, order), start.add(from)))
        });
        let used_in = move |start| match frames.open_head(start) {
            Some(open) => PAGEBLOCK_PAGES.saturating_sub(u64::from(open.free())),
            None if order > PAGEBLOCK_ORDER && frames.free_whole(start).is_some() => 0,
            None => PAGEBLOCK_PAGES,
        };
        let is_large = order >= PAGEBLOCK_ORDER && start.is_aligned(order);
        let large =
            is_large.then(|| (Pfn::pageblocks(start..start.add(pages)).map(used_in).sum::<u64>(), start));
        small.chain(large)
    }
}

/// Pageblocks that a zone spans.
fn pageblocks_of<P: Platform>(zone: &Zone<P>) -> u64 {
    let base = zone.spec().start.block_start(PAGEBLOCK_ORDER);
    (zone.spec().end().0 - base.0).div_ceil(PAGEBLOCK_PAGES)
}

impl<P: Platform, M: FrameUser> Compaction<'_, '_, '_, P, M> {
    /// Empties parts of the zone until `done`, or until it has tried all: parts as large as the block requested, or
    /// pageblocks if none is. For a request what moves may go anywhere, and CMA pageblocks are emptied only if it may
    /// take them.
    pub(super) fn empty_until(&mut self, request: Option<&Request<'_>>, done: impl Fn() -> bool) {
        self.asked = request.map(|request| request.migratetype);
        let order = request.map_or(PAGEBLOCK_ORDER, |request| request.order);
        let mut rounds = (0..pageblocks_of(self.zone)).step_by(ROUND_PAGEBLOCKS as usize);
        while rounds.next().is_some() && !self.empty_next(order, false, |_| done()) {}
    }

    /// Empties parts of the pageblocks that come next in the zone, the emptiest first, until `done` with the part just
    /// emptied. A background round also ends when it has moved or looked at its most, and leaves what is nearly full.
    /// Returns whether it is done.
    fn empty_next(&mut self, order: Order, is_round: bool, mut done: impl FnMut(Pfn) -> bool) -> bool {
        let (cpu, zone, pageblocks) = (self.cpu, self.zone, pageblocks_of(self.zone));
        let most = if is_round { MOST_USED } else { order.pages() - 1 };
        let first = zone.pressure.next_round();
        let end = first + pageblocks.min(ROUND_PAGEBLOCKS);
        let numbers = || (first..end).map(|number| number % pageblocks);
        let base = zone.spec().start.block_start(PAGEBLOCK_ORDER);
        let parts = |number| {
            let parts = cpu.parts(base.add(number * PAGEBLOCK_PAGES), order);
            let parts = parts.filter(|(used, _)| (1..=most).contains(used));
            parts.map(|(used, part)| (((used - 1) * LEVELS as u64 / order.pages()) as usize, part))
        };
        let mut filled = [false; LEVELS];
        numbers().flat_map(parts).for_each(|(level, _)| filled[level] = true);
        for wanted in (0..LEVELS).filter(|&level| filled[level]) {
            for number in numbers() {
                for (_, part) in parts(number).filter(|&(level, _)| level == wanted) {
                    let moved = self.total.moved + self.total.stayed;
                    if is_round && (moved >= ROUND_PAGES || self.looks >= ROUND_LOOKS) {
                        zone.pressure.set_next_round(number);
                        return false;
                    }
                    if self.empty(part..part.add(order.pages())) && done(part) {
                        return true;
                    }
                }
            }
        }
        zone.pressure.set_next_round(end % pageblocks);
        false
    }

    /// Whether the owner of the block, which is smaller than a pageblock, would move it.
    fn moves(&self, pfn: Pfn, order: Order, asked: Migratetype) -> bool {
        order < PAGEBLOCK_ORDER && self.cpu.would_move(Some(self.migrate), pfn, order, asked)
    }

    /// Whether all blocks in use in a range can move. Blocks on a CPU's list are not in use; that CPU has been
    /// requested to drain.
    fn can_be_emptied(&mut self, range: Range<Pfn>) -> bool {
        let frames = &self.cpu.frames;
        let with_cma = self.asked.is_none_or(|asked| asked == Migratetype::Movable);
        let is_of_use = |start| {
            let info = frames.info(start);
            let list = info.migratetype();
            info.is_present()
                && info.zone() == self.zone.id()
                && (list.is_ordinary() || with_cma && list == Migratetype::Cma)
        };
        if !Pfn::pageblocks(range.clone()).all(is_of_use) {
            return false;
        }
        let mut looks = 0;
        let blocks = frames.blocks_in(range).inspect(|_| looks += 1);
        let can_be_emptied =
            self.cpu.first_that_stays(blocks, |pfn, order, asked| self.moves(pfn, order, asked)).is_none();
        self.looks += looks;
        can_be_emptied
    }

    /// Moves the blocks in use in a range to other pageblocks, to such that are at least as full unless it is for a
    /// request, until there is no room or an owner refuses. Returns whether anything was moved.
    fn empty(&mut self, range: Range<Pfn>) -> bool {
        let free = match self.cpu.frames.open_head(range.start) {
            _ if self.asked.is_some() => PAGEBLOCK_PAGES as u32 - 1,
            Some(open) => open.free(),
            None => return false,
        };
        if !self.can_be_emptied(range.clone()) {
            return false;
        }
        let (before, mut at) = (self.total, range.start);
        while at < range.end {
            let batch = self.next_batch(&mut at, range.end, |round, head, order, asked| {
                let info = round.cpu.frames.info(head);
                round.cpu.may_free(head, order, info) && round.moves(head, order, asked)
            });
            if !self.move_out_of(&range, &batch, free) {
                break;
            }
        }
        // Lets the blocks freed here merge.
        self.cpu.local(self.zone.id()).drain_all();
        let moved = self.total.moved - before.moved;
        count(&self.events.pgmigrate_success, moved);
        count(&self.events.pgmigrate_fail, self.total.stayed - before.stayed);
        moved > 0
    }

    /// Moves a batch out of the pageblocks of a range into others with at most `free` free frames, the fullest first.
    /// `false` if some of its blocks did not move.
    fn move_out_of(&mut self, range: &Range<Pfn>, batch: &Batch, free: u32) -> bool {
        let (order, asked) = (batch.order, batch.asked);
        let but = range.start.block_start(PAGEBLOCK_ORDER)..range.end;
        let moved = self.move_batch(batch, |so_far, _, out| {
            if so_far.stayed != 0 {
                return 0;
            }
            let mut places = self.zone.fullest_first(order, asked, range.start).map(|n| {
                self.take_places(n, (order, asked), out, |buddy, out| {
                    buddy.take_from_fuller(&but, free, asked, order, out)
                })
            });
            places.find(|&taken| taken > 0).unwrap_or(0)
        });
        self.total += moved;
        moved.moved == (batch.len as u64) << order.get()
    }
}
