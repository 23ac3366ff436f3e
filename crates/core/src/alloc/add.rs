//! Memory that is added: its checks, its descriptors, and memory that stays untouched until it is named.

use core::ops::Range;

use super::Allocator;
use crate::buddy::{Buddy, Placement, Run};
use crate::error::SetupError;
use crate::frame::{Bits, BlockInfo, FrameUser, State, range_in_word};
use crate::platform::Platform;
use crate::sync::ExclusiveTurn;
use crate::units::{CpuId, MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::Zone;

/// Untouched frames that are initialised in one hold of a lock.
const TOUCHED_AT_ONCE: u64 = 8 * MAX_ORDER.pages();

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Gives the allocator `pages` frames from `start` on, as movable pageblocks, at the tail of the lists in ascending
    /// order. Other frames of the pageblocks at both ends count as reserved until they are added, too. O(pages / 1024);
    /// with poisoning O(pages), and all of the memory is written.
    ///
    /// # Errors
    /// The range is empty, is not inside one zone, was added before, or shares a pageblock with memory that boot has
    /// left for later and that is not initialised yet. With [compact](crate::config::Engine::Compact) metadata, which
    /// cannot tell this from memory that was added before, also if another frame of a pageblock at its ends is being
    /// allocated or freed: try again. The state is unchanged then.
    pub fn add_memory(&self, start: Pfn, pages: u64) -> Result<(), SetupError> {
        let _turn = self.begin_change();
        self.add(start, pages, |zone, _| zone.managed_pages().saturating_sub(zone.present_pages()))
    }

    /// Begins to change which memory can be had: to add it, to take it out of its zone, to find a frame bad or good.
    /// Until the result is dropped, no other CPU does. `None` under the presets, whose accesses stay as when their
    /// figures were taken: the one lock of a zone is enough for its counts, but sizes and marks may be those of an
    /// earlier count.
    pub(crate) fn begin_change(&self) -> Option<ExclusiveTurn<'_, P>> {
        self.frames.has_maps().then(|| self.changes.begin())
    }

    /// Adds memory, section by section. After each part, `appeared` gives its present pages that are new. The caller
    /// has the turn of [`begin_change`](Self::begin_change).
    pub(crate) fn add(
        &self,
        start: Pfn,
        pages: u64,
        appeared: impl Fn(&Zone<P>, u64) -> u64,
    ) -> Result<(), SetupError> {
        let outside = SetupError::RangeOutsideZones(start);
        let zone = self.zones.iter().find(|zone| zone.spec().spans(start)).ok_or(outside)?;
        if pages == 0 || pages > zone.spec().end().0 - start.0 {
            return Err(outside);
        }
        let end = start.add(pages);
        let parts = || zone.cut.parts(start..end);
        // All parts are checked before the first one is added; no other CPU adds memory in between.
        for part in parts().filter(|_| zone.cut.is_cut()) {
            self.in_section_of(zone, part.start, None, |buddy| {
                self.check_part(buddy, &part, &self.to_leave(buddy, &part))
            })?;
        }
        let mut failed = 0;
        for part in parts() {
            self.in_section_of(zone, part.start, None, |buddy| {
                let left = self.to_leave(buddy, &part);
                if !zone.cut.is_cut() {
                    self.check_part(buddy, &part, &left)?;
                }
                for range in around(&part, &left) {
                    let of_range = self.add_range(zone, buddy, range);
                    self.count_hwpoisoned(of_range as i64);
                    failed += of_range;
                }
                buddy.leave_untouched(left);
                let pages = part.end.0 - part.start.0;
                buddy.count_managed(pages as i64);
                buddy.count_present(appeared(zone, pages) as i64);
                Ok(())
            })?;
        }
        if failed != 0 {
            // They are out of use: their pageblocks may have been the last with bad frames.
            self.in_section_of(zone, zone.spec().start, None, |buddy| self.shut_or_open_lists(buddy));
        }
        Ok(())
    }

    /// The part of one section's new memory that may stay untouched. Under the lock.
    fn to_leave(&self, buddy: &Buddy<'_, 'm, P, M>, part: &Range<Pfn>) -> Range<Pfn> {
        match self.later() {
            None => buddy.to_leave(part.start, part.end.0 - part.start.0),
            Some(_) => part.start..part.start,
        }
    }

    /// Checks that memory of one section was never added; `left` is the part of it that may stay untouched. Under the
    /// lock.
    fn check_part(
        &self,
        buddy: &Buddy<'_, 'm, P, M>,
        part: &Range<Pfn>,
        left: &Range<Pfn>,
    ) -> Result<(), SetupError> {
        let untouched = buddy.untouched();
        if !untouched.is_empty() && untouched.start < part.end && part.start < untouched.end {
            return Err(SetupError::RangeInUse(part.start.max(untouched.start)));
        }
        for range in around(part, left) {
            let mut blocks = Pfn::pageblocks(range.clone());
            blocks.try_for_each(|block| self.check_unused(block, range.start.max(block), range.end))?;
        }
        Ok(())
    }

    /// Makes the pageblocks of a range present and frees its frames, except those whose memory failed before it went
    /// offline. Returns the number of these. Under the zone lock.
    fn add_range(
        &self,
        zone: &Zone<P>,
        buddy: &mut Buddy<'_, 'm, P, M>,
        Range { start, end }: Range<Pfn>,
    ) -> u64 {
        let mut failed = 0;
        for block in Pfn::pageblocks(start..end) {
            let had_failed = self.frames.info(block).is_poisoned();
            let (from, to) = (start.max(block), end.min(block.add(PAGEBLOCK_PAGES)));
            self.claim_pageblock(zone.id(), block, from, end);
            if had_failed {
                buddy.expect_marks(block);
                failed += (from.0..to.0).filter(|&pfn| self.frames.is_marked(Pfn(pfn))).count() as u64;
            }
        }
        // With maps pageblock by pageblock: each one that comes back with bad frames is marked, and not, as for a block
        // of the largest order, the one before it.
        let largest = if self.frames.has_maps() { PAGEBLOCK_ORDER } else { MAX_ORDER };
        let mut at = start;
        while at < end {
            let order = Order::largest_at(at, end.0 - at.0).min(largest);
            let pageblocks = (end.0 - at.0) / PAGEBLOCK_PAGES;
            if order == largest && pageblocks > 1 && self.frames.has_maps() && !self.config.poison {
                // The store sets a word of bits at a time.
                buddy.free_run(Run { first: at, count: pageblocks as u32, order: PAGEBLOCK_ORDER });
                at = at.add(pageblocks * PAGEBLOCK_PAGES);
                continue;
            }
            if let (true, Some(map)) = (self.config.poison, self.direct_map) {
                map.poison(at, order);
            }
            buddy.free(at, order, Placement::Tail);
            at = at.add(order.pages());
        }
        failed
    }

    /// Initialises the untouched pageblocks from `start` to `end`, and those before them (see
    /// [`Config::lazy_pageblocks`]). For callers that name memory by its address. O(zones + sections of the range),
    /// if there is nothing to do.
    pub(crate) fn touch(&self, start: Pfn, end: Pfn) {
        // What a section has touched ends where its range begins: that frame may be another section's, or no zone's.
        let holds = |range: &Range<Pfn>| !range.is_empty() && range.start < end && start < range.end;
        for zone in self.zones {
            for untouched in zone.untouched(start..end).filter(holds) {
                let mut upto = untouched.start;
                while upto < end.min(untouched.end) {
                    upto = upto.add(TOUCHED_AT_ONCE).min(end);
                    self.in_section_of(zone, untouched.start, None, |buddy| buddy.touch_upto(upto));
                }
            }
        }
    }

    /// Whether the frames from `from` to `end` of the pageblock at `block` were never added.
    fn check_unused(&self, block: Pfn, from: Pfn, end: Pfn) -> Result<(), SetupError> {
        if !self.frames.info(block).is_present() {
            // A worker may be making its descriptors at this moment.
            let left =
                self.later().is_some_and(|later| later.deferred.has_free(block..block.add(PAGEBLOCK_PAGES)));
            return if left { Err(SetupError::NotInitialised(block)) } else { Ok(()) };
        }
        let end = end.min(block.add(PAGEBLOCK_PAGES));
        if self.frames.is_compact() {
            return self.check_unused_by_number(block, from, end);
        }
        let used = (from.0..end.0).map(Pfn).find(|&pfn| !matches!(self.frames.find(pfn).1, State::Reserved));
        used.map_or(Ok(()), |pfn| Err(SetupError::RangeInUse(pfn)))
    }

    /// With compact metadata: whether the frames from `from` to `end` of the present pageblock at `block` were never
    /// added. No word records it, only their number. If the frames that are free, with a caller or on a list are as
    /// many as were added, all that were added are among them; otherwise one may be on its way between a list and a
    /// caller.
    fn check_unused_by_number(&self, block: Pfn, from: Pfn, end: Pfn) -> Result<(), SetupError> {
        let mut seen = Bits::NONE;
        let mut see = |first: Pfn, pages| {
            let words = seen.0.iter_mut().enumerate();
            words.for_each(|(n, word)| *word |= range_in_word(n, first.0 - block.0, pages));
        };
        for pfn in (block.0..block.0 + PAGEBLOCK_PAGES).map(Pfn) {
            if !matches!(self.frames.find(pfn).1, State::Body | State::Reserved) {
                see(pfn, 1);
            }
        }
        let listed = self.listed_blocks(block..block.add(PAGEBLOCK_PAGES));
        listed.for_each(|(pfn, order, _)| see(pfn, order.pages()));
        let is_seen = |pfn: &Pfn| seen.0[(pfn.0 - block.0) as usize / 64] >> (pfn.0 % 64) & 1 != 0;
        match (from.0..end.0).map(Pfn).find(is_seen) {
            Some(pfn) => Err(SetupError::RangeInUse(pfn)),
            None if seen.count() + self.frames.info(block).absent() < PAGEBLOCK_PAGES => {
                Err(SetupError::RangeInUse(from))
            }
            None => Ok(()),
        }
    }

    /// The blocks below the pageblock order on CPUs' lists that hold frames of a range of one pageblock: their first
    /// frames, orders and CPUs. O(pages on lists). For compact metadata, which does not record it. A racy read.
    pub(crate) fn listed_blocks(&self, range: Range<Pfn>) -> impl Iterator<Item = (Pfn, Order, CpuId)> {
        let zone = self.frames.info(range.start).zone();
        let listed = self
            .cpu_ids()
            .zip(self.pcps_of(zone))
            .flat_map(|(cpu, pcp)| pcp.blocks().map(move |(order, _, _, start)| (start, order, cpu)));
        listed.filter(move |(start, order, _)| *start < range.end && range.start < start.add(order.pages()))
    }

    /// Makes the pageblock at `block` present and its frames from `from` to `end` usable.
    fn claim_pageblock(&self, zone: ZoneId, block: Pfn, from: Pfn, end: Pfn) {
        let (first, last) = (block.0, block.add(PAGEBLOCK_PAGES).0);
        let whole = from.0 == first && end.0 >= last;
        let is_new = !self.frames.info(block).is_present();
        if is_new {
            // A pageblock that went offline with bad frames keeps their marks.
            let clear = self.later().and_then(|later| later.clear);
            if let Some(clear) = clear.filter(|_| !self.frames.info(block).is_poisoned()) {
                clear(&self.frames, block, block.add(PAGEBLOCK_PAGES));
            }
            if !whole {
                for pfn in first..last {
                    self.frames.set_state_of_marked(Pfn(pfn), Order::ZERO, State::Reserved);
                }
            }
            self.frames.set_info(block, BlockInfo::new(zone, Migratetype::Movable));
        }
        if !whole || matches!(self.frames.state(block, Order::ZERO), State::Reserved) {
            for pfn in from.0..end.0.min(last) {
                self.frames.set_state_of_marked(Pfn(pfn), Order::ZERO, State::Body);
            }
        }
        if !whole && self.frames.is_compact() {
            let info = self.frames.info(block);
            let before = if is_new { PAGEBLOCK_PAGES } else { info.absent() };
            self.frames.set_info(block, info.with_absent(before - (end.0.min(last) - from.0)));
        }
    }
}

/// The parts of `part` before and after a range in it.
fn around(part: &Range<Pfn>, left: &Range<Pfn>) -> impl Iterator<Item = Range<Pfn>> {
    [part.start..left.start, left.end..part.end].into_iter().filter(|range| range.start < range.end)
}
