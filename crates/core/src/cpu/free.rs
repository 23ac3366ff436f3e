//! A free that is no hit: facts about the block, a table that maps them to one of five ways, and the ways.

use super::Cpu;
use super::claim::Claim;
use crate::error::{FreeError, FreeFailure};
use crate::frame::{BlockInfo, FrameUser, Pageblock, State, TakenHead};
use crate::pcp::{Left, List, Local, Pcp};
use crate::platform::Platform;
use crate::units::{Migratetype, Order, Pfn, ZoneId};

/// Facts that decide the way of a freed block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Facts {
    /// Place where the block last was, from its head word.
    left: Left,
    /// Whether its pageblock is sparser than the one from which the CPU allocates, and should become whole.
    is_sparse: bool,
    /// Whether this CPU's list has room below its ceiling.
    fits: bool,
}

/// Way of a block of a plain pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// Onto this CPU's list.
    Put,
    /// Onto the list, which then drains.
    PutAndDrain,
    /// Back to the zone together with others: no list hands it out before that (see `pcp/outgoing.rs`).
    Return,
    /// This CPU claims the block first, because it last was on another CPU's list, or on none. Then one of the three
    /// ways above.
    Claim,
    /// All checks: the block is on this CPU's list.
    Check,
}

/// Way of a freed block.
#[inline(always)]
const fn route(Facts { left, is_sparse, fits }: Facts) -> Way {
    match left {
        Left::No => Way::Check,
        Left::Elsewhere => Way::Claim,
        // A block that was allocated last is handed out next, whatever its pageblock.
        Left::Here { is_last: false } if is_sparse => Way::Return,
        Left::Here { .. } if fits => Way::Put,
        Left::Here { .. } => Way::PutAndDrain,
    }
}

/// Words of a block of an ordinary pageblock without bad frames that is not isolated.
struct PlainBlock<'a, 'm, P: Platform> {
    /// The block's head word.
    head: &'m P::Word,
    /// This CPU's lists of its zone.
    pcp: &'a Pcp<'m, P>,
    /// The one of its order and its pageblock's type.
    list: &'a List<'m, P>,
    pageblock: &'m Pageblock<P>,
}

impl<P: Platform> PlainBlock<'_, '_, P> {
    fn zone(&self) -> ZoneId {
        self.pageblock.info().zone()
    }

    /// Way of the block, which last was at `left`.
    #[inline(always)]
    fn way(&self, left: Left) -> Way {
        route(Facts {
            left,
            is_sparse: self.pcp.is_sparse(self.pageblock),
            fits: self.list.is_below_ceiling(),
        })
    }
}

impl<'a, 'm, P: Platform, M: FrameUser> Cpu<'a, 'm, P, M> {
    // One call, so that a hit needs no stack frame. The error is not its result, so that the arguments are where the
    // caller has them, and a hit need not move them. All calls here are tail calls, so that the common free of a block
    // that was not allocated last needs no stack frame, either.
    #[inline(never)]
    pub(super) fn free_missed(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>) {
        let Some(block) = self.plain_block(pfn, order) else { return self.free_checked(pfn, order, error) };
        if self.pcp.counts() {
            return self.free_counted(pfn, order, error, block);
        }
        let way = block.way(block.list.left(block.head, pfn));
        match way {
            // No other CPU can free it at the same time.
            Way::Claim if !cfg!(feature = "smp") => self.free_checked(pfn, order, error),
            Way::Claim => self.free_claiming(pfn, order, error, block),
            Way::Check => self.free_checked(pfn, order, error),
            Way::Put | Way::PutAndDrain | Way::Return => {
                if !self.goes_its_way(pfn, order, &block, way) {
                    self.free_in_turn(pfn, order, error, block, way);
                }
            }
        }
    }

    #[inline(always)]
    fn plain_block(&self, pfn: Pfn, order: Order) -> Option<PlainBlock<'a, 'm, P>> {
        let located = self.frames.locate(pfn)?;
        let pageblock = located.pageblock();
        let info = pageblock.info();
        let (pcp, migratetype) = match info.ordinary_as(self.home) {
            Some(migratetype) => (self.pcp, migratetype),
            None if self.home == BlockInfo::NOWHERE || self.pcp.counts() || !info.is_present() => {
                return None;
            }
            None => (self.allocator.pcp(info.zone(), self.cpu), info.plain_type()?),
        };
        let head = located.head(pfn, order)?;
        let list = pcp.hit_list(order, migratetype)?;
        Some(PlainBlock { head, pcp, list, pageblock })
    }

    /// Puts a block that only this CPU has onto its list, or sets it aside, without the lists' `turn`. On `false` the
    /// state is unchanged: there is no room, or a remote drain has shut the gate.
    #[inline(always)]
    fn goes_its_way(&self, pfn: Pfn, order: Order, block: &PlainBlock<'a, 'm, P>, way: Way) -> bool {
        if way != Way::Return {
            return block.pcp.put_hit(block.list, block.head, pfn);
        }
        // A block of an order without lists is not set aside.
        let is_aside = block.list.capacity() > 0 && block.pcp.set_aside(Some(block.head), pfn, order);
        // Every free looks for requests of other CPUs; blocks set aside return to the zone then, too.
        if is_aside && block.pcp.is_asked() {
            self.answer_asked(block.zone());
        }
        is_aside
    }

    #[cold]
    #[inline(never)]
    fn answer_asked(&self, zone: ZoneId) {
        self.local(zone).answer();
    }

    /// Frees a block where hits count.
    #[inline(never)]
    fn free_counted(
        &self,
        pfn: Pfn,
        order: Order,
        error: &mut Option<FreeError>,
        block: PlainBlock<'a, 'm, P>,
    ) {
        // Without maps no pageblock is open, so none is read.
        let is_sparse = || self.frames.has_maps() && block.pcp.is_sparse(block.pageblock);
        if !block.list.put_back(block.head, pfn, is_sparse) {
            self.free_checked(pfn, order, error);
        } else if self.pcp.count_freed(order) {
            let migratetype = self.allocator.frames.info(pfn).migratetype();
            let local = self.local(self.zone);
            local.after_counted_free(order, local.pcp.list_of(order, migratetype).unwrap_or(0));
        }
    }

    /// Frees a block that has left this CPU's list, when a gate is shut or there is no room.
    #[inline(never)]
    fn free_in_turn(
        &self,
        pfn: Pfn,
        order: Order,
        error: &mut Option<FreeError>,
        block: PlainBlock<'a, 'm, P>,
        way: Way,
    ) {
        let local = self.local(block.zone());
        // Checked again while holding the turn: a remote drain may have taken a block that the caller frees twice.
        match block.list.left(block.head, pfn) {
            Left::Here { .. } => self.put_in_turn(&local, pfn, order, way),
            _ => self.free_checked(pfn, order, error),
        }
    }

    /// Puts a block that only this CPU has where its way leads.
    fn put_in_turn(&self, local: &Local<'a, 'm, P, M>, pfn: Pfn, order: Order, way: Way) {
        // Read in this turn: while the way was chosen, the pageblock may have become special, and all lists drained.
        let info = self.allocator.frames.info(pfn);
        if self.goes_past_lists(local, pfn, order, info) {
            return;
        }
        if way != Way::Return || !local.set_aside(pfn, order) {
            local.put(pfn, order, info.migratetype());
        }
    }

    /// Frees a block to the zone if no list may have it: its pageblock is isolated, or has bad frames in use.
    fn goes_past_lists(&self, local: &Local<'a, 'm, P, M>, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        if info.migratetype() != Migratetype::Isolate && !info.is_poisoned() {
            return false;
        }
        local.free_direct(pfn, order);
        if info.is_poisoned() && !self.allocator.frames.info(pfn).is_poisoned() {
            // It was the last bad frame in use in its pageblock. The hold notices every other way out of use
            // (`Local::record`).
            local.in_section(0, |buddy| self.allocator.shut_or_open_lists(buddy));
        }
        true
    }

    /// Frees a block that last was on another CPU's list, or on none.
    #[inline(never)]
    fn free_claiming(
        &self,
        pfn: Pfn,
        order: Order,
        error: &mut Option<FreeError>,
        block: PlainBlock<'a, 'm, P>,
    ) {
        let claim = match TakenHead::read(block.head, order) {
            Some(seen) => self.claim_seen(|| block.head, seen, || self.waits(pfn, order, seen, block.zone())),
            None => Claim::Again,
        };
        match claim {
            Claim::Got => {
                let way = block.way(Left::Here { is_last: false });
                if !self.goes_its_way(pfn, order, &block, way) {
                    self.put_in_turn(&self.local(block.zone()), pfn, order, way);
                }
            }
            Claim::Refused => *error = Some(self.refuse(pfn, order)),
            Claim::Again => self.free_checked(pfn, order, error),
        }
    }

    /// Frees a block with all checks: of a reserve, with poisoning, with compact metadata; and refuses wrong frees.
    #[inline(never)]
    fn free_checked(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>) {
        let frames = &self.allocator.frames;
        let info = if frames.contains(pfn) { frames.info(pfn) } else { BlockInfo::ABSENT };
        if !info.is_present() || !self.claim(pfn, order, info) {
            *error = Some(self.refuse(pfn, order));
            return;
        }
        let local = self.local(info.zone());
        self.fill_freed(pfn, order);
        // As in `put_in_turn`. Where no CPU drains remotely, the loads stay as when the presets' figures were taken.
        let info = if P::DRAINS_REMOTELY { frames.info(pfn) } else { info };
        if self.goes_past_lists(&local, pfn, order, info) {
            return;
        }
        let list = info.migratetype();
        let is_sparse = || frames.pageblock(pfn).is_some_and(|pageblock| local.pcp.is_sparse(pageblock));
        // With head words, the free of a block that was allocated last is a hit, and does not come here.
        let is_last = || frames.is_compact() && local.pcp.took_last(order, list, pfn);
        if frames.has_maps() && is_sparse() && !is_last() && local.set_aside(pfn, order) {
            return;
        }
        local.put(pfn, order, list);
    }

    /// The reason why a block cannot be freed.
    #[cold]
    pub(super) fn refuse(&self, pfn: Pfn, order: Order) -> FreeError {
        let frames = &self.allocator.frames;
        let is_untouched = || {
            self.allocator.zones.iter().any(|zone| {
                zone.untouched(pfn..Pfn(pfn.0.saturating_add(1))).any(|range| range.contains(&pfn))
            })
        };
        if !frames.contains(pfn) {
            let why = if is_untouched() { FreeFailure::NotAllocated } else { FreeFailure::Foreign };
            return FreeError { why, pfn, order };
        }
        let (start, state) = frames.find(pfn);
        let why = match state {
            State::Free { .. } => FreeFailure::NotAllocated,
            State::Quarantined { .. } => FreeFailure::Quarantined,
            State::Body
                if frames.is_compact() && self.allocator.listed_blocks(pfn..pfn.add(1)).next().is_some() =>
            {
                FreeFailure::NotAllocated
            }
            State::Body | State::Reserved => FreeFailure::Reserved,
            State::Taken { order: taken, asked, list_place } => {
                let waits = list_place.is_some_and(|list_place| {
                    let zone = frames.info(pfn).zone();
                    self.allocator.pcp(zone, list_place.cpu).holds(taken, asked, list_place.position, start)
                });
                match () {
                    () if waits => FreeFailure::NotAllocated,
                    () if start != pfn => FreeFailure::Inside { order: taken },
                    () if !pfn.is_aligned(order) => FreeFailure::Misaligned,
                    () => FreeFailure::WrongOrder { allocated: taken },
                }
            }
        };
        FreeError { why, pfn, order }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way, and the facts that lead to it. `None` is a fact that does not matter.
    #[test]
    fn a_table_says_which_way_a_block_goes() {
        let (here, last) = (Left::Here { is_last: false }, Left::Here { is_last: true });
        let table = [
            (Left::No, None, None, Way::Check),
            (Left::Elsewhere, None, None, Way::Claim),
            (here, Some(true), None, Way::Return),
            (here, Some(false), Some(true), Way::Put),
            (here, Some(false), Some(false), Way::PutAndDrain),
            (last, None, Some(true), Way::Put),
            (last, None, Some(false), Way::PutAndDrain),
        ];
        for (left, is_sparse, fits) in [Left::No, Left::Elsewhere, here, last]
            .into_iter()
            .flat_map(|left| [0, 1, 2, 3].map(|n| (left, n & 1 != 0, n & 2 != 0)))
        {
            let fits_row = |fact: Option<bool>, value| fact.is_none_or(|fact| fact == value);
            let mut rows = table
                .iter()
                .filter(|row| row.0 == left && fits_row(row.1, is_sparse) && fits_row(row.2, fits));
            let facts = Facts { left, is_sparse, fits };
            assert_eq!(rows.next().map(|row| row.3), Some(route(facts)), "{facts:?}");
            assert_eq!(rows.next(), None, "{facts:?}: one row");
        }
    }
}
