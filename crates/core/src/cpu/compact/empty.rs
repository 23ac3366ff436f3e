//! A round of background compaction with maps: empties pageblocks one by one.
//!
//! Two scanners that meet move every page below the place where they meet. With maps the bins record which pageblocks
//! are nearly empty and which are nearly full, so a round moves the fewest pages for each huge page that it wins. A
//! page moves only into a pageblock that had no more free frames than the one that is emptied, so that it does not move
//! back later.

use super::{Batch, Compacted, Compaction, Cpu};
use crate::events::count;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::compact::{MOST_USED, ROUND_LOOKS, ROUND_PAGEBLOCKS, ROUND_PAGES, fragmentation};
use crate::reclaim::Migrate;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::Zone;

/// Frames in use between one level and the next.
const STEP: u64 = 32;
/// Levels of pageblocks, by frames in use: level 0 is emptied first.
const LEVELS: usize = (MOST_USED / STEP) as usize;

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Empties pageblocks of a zone until at most `most_outside` percent of its free pages are outside free huge pages,
    /// or until the round has moved, looked at or considered its most.
    pub(super) fn empty_pageblocks(
        &self,
        zone: &Zone<P>,
        migrate: &dyn Migrate,
        most_outside: u64,
    ) -> Compacted {
        let Some(mut round) = Compaction::begin(self, zone, migrate) else { return Compacted::default() };
        // Counted once; what the round wins is added.
        let mut whole = self.allocator.free_pageblocks(zone);
        let base = zone.spec().start.block_start(PAGEBLOCK_ORDER);
        let pageblocks = (zone.spec().end().0 - base.0).div_ceil(PAGEBLOCK_PAGES);
        let first = zone.pressure.next_round();
        let end = first + pageblocks.min(ROUND_PAGEBLOCKS);
        let numbers = || (first..end).map(|number| number % pageblocks);
        let start = |number: u64| base.add(number * PAGEBLOCK_PAGES);
        let mut filled = [false; LEVELS];
        numbers().filter_map(|number| self.level(start(number))).for_each(|level| filled[level] = true);
        for level in (0..LEVELS).filter(|&level| filled[level]) {
            for number in numbers() {
                if self.level(start(number)) != Some(level) {
                    continue;
                }
                if round.is_over() {
                    zone.pressure.set_next_round(number);
                    return round.total;
                }
                if round.empty(start(number)) {
                    whole += u64::from(self.frames.free_whole(start(number)).is_some());
                    if fragmentation(zone.free_pages(), whole * PAGEBLOCK_PAGES) <= most_outside {
                        return round.total;
                    }
                }
            }
        }
        zone.pressure.set_next_round(end % pageblocks);
        round.total
    }

    /// Level of an open pageblock that is worth emptying. A racy read.
    fn level(&self, start: Pfn) -> Option<usize> {
        let free = self.frames.open_head(start)?.free();
        let used = PAGEBLOCK_PAGES.checked_sub(u64::from(free))?;
        (1..=MOST_USED).contains(&used).then(|| ((used - 1) / STEP) as usize)
    }
}

impl<P: Platform, M: FrameUser> Compaction<'_, '_, '_, P, M> {
    const fn is_over(&self) -> bool {
        self.total.moved + self.total.stayed >= ROUND_PAGES || self.looks >= ROUND_LOOKS
    }

    /// Whether the owner of the block would move it.
    fn moves(&self, pfn: Pfn, order: Order, asked: Migratetype) -> bool {
        matches!(asked, Migratetype::Movable | Migratetype::Reclaimable)
            && order < PAGEBLOCK_ORDER
            && self.migrate.can_move(pfn, order, asked)
    }

    /// Whether all blocks in use in a pageblock can move. Blocks on a CPU's list are not in use; that CPU has been
    /// requested to drain.
    fn can_be_emptied(&mut self, start: Pfn) -> bool {
        let info = self.cpu.frames.info(start);
        let is_of_use = info.migratetype().is_ordinary() || info.migratetype() == Migratetype::Cma;
        if info.zone() != self.zone.id() || !is_of_use {
            return false;
        }
        for (head, state) in self.cpu.frames.blocks_of(start) {
            self.looks += 1;
            match state {
                State::Taken { order, asked, .. } => {
                    if self.cpu.may_free(head, order, info) && !self.moves(head, order, asked) {
                        return false;
                    }
                }
                State::Quarantined { .. } | State::Reserved => return false,
                State::Free { .. } | State::Body => {}
            }
        }
        true
    }

    /// Moves the blocks in use in a pageblock to other pageblocks that are at least as full, until there is no room or
    /// an owner refuses. Returns whether anything was moved.
    fn empty(&mut self, start: Pfn) -> bool {
        let Some(open) = self.cpu.frames.open_head(start) else { return false };
        if !self.can_be_emptied(start) {
            return false;
        }
        let before = self.total;
        let (mut at, end) = (start, start.add(PAGEBLOCK_PAGES));
        while at < end {
            let batch = self.next_batch(&mut at, end, |round, head, order, asked| {
                let info = round.cpu.frames.info(head);
                round.cpu.may_free(head, order, info) && round.moves(head, order, asked)
            });
            if !self.move_to_fuller(&batch, start, open.free()) {
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

    /// Moves a batch into other pageblocks with at most `free` free frames. `false` if some of its blocks did not move.
    fn move_to_fuller(&mut self, batch: &Batch, start: Pfn, free: u32) -> bool {
        let (order, asked) = (batch.order, batch.asked);
        let moved = self.move_batch(batch, |so_far, _, out| {
            if so_far.stayed != 0 {
                return 0;
            }
            let mut places = self.zone.fullest_first(order, asked, start).map(|n| {
                self.take_places(n, (order, asked), out, |buddy, out| {
                    buddy.take_from_fuller(start, free, asked, order, out)
                })
            });
            places.find(|&taken| taken > 0).unwrap_or(0)
        });
        self.total += moved;
        moved.moved == (batch.len as u64) << order.get()
    }
}
