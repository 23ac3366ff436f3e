//! Refill of a list from the zone.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::counting::AGE;
use super::list::List;
use super::{KINDS, Local, bump};
use crate::buddy::{Each, Pieces};
use crate::config::RefillCheck;
use crate::frame::{FrameUser, OpenHead, State};
use crate::platform::{Platform, Word};
use crate::policy::pcp::{Shortage, Sizing, Tuning, moved_at_once};
use crate::units::{MAX_ORDER, Migratetype, Ones, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Words of maps that a refill has room for: of few blocks, and of any number. Single frames usually are in fewer.
const FEW: usize = 8;
const WORDS: usize = 32;

/// Limits of a list, if hits do not count.
pub(super) struct Room {
    pub(super) blocks: u32,
    /// Blocks that a refill brings, and a drain removes.
    pub(super) unit: u32,
}

impl<P: Platform, M: FrameUser> Local<'_, '_, P, M> {
    /// Fills an empty list, so that the block taken first from the zone is at its head. Returns the blocks taken, bad
    /// ones included.
    ///
    /// The head words of the blocks stay [`State::Body`] until the blocks are on the list: a wrong free of one of them
    /// is refused at every moment.
    pub(super) fn refill(&self, number: usize, migratetype: Migratetype) -> u64 {
        let (order, _) = KINDS[number];
        // Whatever its free lists hold. Read without the lock: earlier changes are seen, concurrent ones may not be.
        if self.zone.free_pages() < order.pages() {
            return 0;
        }
        let (tuned, wanted) = self.plan(number);
        let late =
            self.frames.has_maps() && self.config.experiment.refill_check != RefillCheck::UnderZoneLock;
        let (taken, places) = match (late, wanted <= FEW as u64) {
            (true, true) => self.take_late(number, migratetype, wanted, &mut [(Pfn(0), 0); FEW]),
            (true, false) => self.take_late(number, migratetype, wanted, &mut [(Pfn(0), 0); WORDS]),
            (false, _) => self.take_under_lock(number, migratetype, wanted),
        };
        if taken > 0 {
            if let Some((sizing, tuning)) = tuned {
                self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
            }
            bump(&self.pcp.events.refills, 1);
            bump(&self.pcp.events.refilled_pages, taken << order.get());
            let list = self.pcp.list(number);
            // On the list only after the check, which is the user's and may panic.
            let checks = self.config.experiment.refill_check == RefillCheck::AfterUnlock && M::CHECKED;
            list.fill(if checks { self.without_bad(list, order, places) } else { places });
            if tuned.is_none() {
                let source = self.frames.open_head(list.at(list.top().wrapping_sub(1)));
                self.pcp.sparse.store(source.map_or(OpenHead::SPARSE, OpenHead::sparser), Relaxed);
                self.raise_high(taken << order.get());
                // Lists that are used are not empty for so long.
                if self.pcp.events.refills.load(Relaxed).is_multiple_of(AGE) {
                    self.pcp.divide_anew(self.pcp.shares().pages);
                }
            }
            self.pcp.open(number);
            for place in list.places() {
                self.frames.list_place(list.at(place), order, place);
            }
            self.pcp.count_pages((u64::from(list.len()) << order.get()) as i64);
        }
        taken
    }

    /// Number of blocks that a refill of a list should bring: as many as the rule gives, as fit the list, and as may
    /// leave the zone. One if the zone is no larger than the largest block. If hits count, also the lists' size, and
    /// their rule's next state.
    fn plan(&self, number: usize) -> (Option<(Sizing, Tuning)>, u64) {
        let (order, _) = KINDS[number];
        let (tuned, blocks) = if self.pcp.counts() {
            let sizing = self.sizing();
            let rule = self.config.experiment.pcp_rule;
            let (tuning, blocks) = self.pcp.tuning().refill(rule, sizing, order, self.pressure());
            let fewest = if order == Order::ZERO { 0 } else { self.config.experiment.pcp_min_refill };
            (Some((sizing, tuning)), if blocks > 1 { blocks.max(fewest) } else { 1 })
        } else {
            self.take_share();
            (None, self.room(number).unit)
        };
        // Memory on lists would be missing when blocks of all orders fill the zone.
        let is_tiny = self.frames.has_maps()
            && self.config.experiment.pcp_fixed.is_none()
            && self.zone.managed_pages() <= MAX_ORDER.pages();
        let may_leave = if is_tiny { 1 } else { (self.beyond >> order.get()).saturating_add(1) };
        (tuned, u64::from(blocks.min(self.pcp.list(number).capacity())).min(may_leave))
    }

    /// If hits do not count: the present limits of a list, for the present free memory.
    pub(super) fn room(&self, number: usize) -> Room {
        let (order, _) = KINDS[number];
        self.set_high(self.pcp.high());
        let blocks = self.pcp.share_of(number, self.pcp.shares()).min(self.pcp.list(number).capacity());
        Room { blocks, unit: moved_at_once(order, blocks, self.pcp.sizing()) }
    }

    /// If hits do not count: raises `high` by the pages that a call has taken from the zone.
    pub(super) fn raise_high(&self, pages: u64) {
        self.set_high(self.pcp.high().saturating_add(pages as u32));
    }

    /// If hits do not count: sets `high`, within its bounds, and divides it among the lists if the present division is
    /// of more, or of less than seven eighths.
    pub(super) fn set_high(&self, high: u32) {
        let sizing = self.sizing();
        let high = sizing.clamp_high(high);
        if self.pcp.high() != high {
            self.pcp.high.store(u64::from(high), Relaxed);
        }
        let may_hold = match self.pressure() {
            Shortage::Reclaim => high.min(sizing.batch.saturating_mul(4)),
            Shortage::None | Shortage::BelowHigh => high,
        };
        if !(may_hold - may_hold / 8..=may_hold).contains(&self.pcp.shares().pages) {
            self.pcp.divide_anew(may_hold);
        }
    }

    /// Takes blocks with maps: the zone lock is held for the words of bits only, and the blocks are put on the list
    /// after it is released. Returns the number of blocks, and their positions.
    #[inline(never)]
    fn take_late(
        &self,
        number: usize,
        migratetype: Migratetype,
        wanted: u64,
        words: &mut [(Pfn, u64)],
    ) -> (u64, Range<u64>) {
        let (order, _) = KINDS[number];
        let list = self.pcp.list(number);
        let mut pieces = Pieces::new(words);
        let taken = self.take_by(self.wanted(order, migratetype), wanted, &mut pieces);
        let step = if order < PAGEBLOCK_ORDER { 1 } else { PAGEBLOCK_PAGES };
        // From the top down: the first block taken is the first one handed out.
        let mut index = taken;
        for &(first, starts) in pieces.words() {
            for n in Ones(starts) {
                index -= 1;
                list.set(index, first.add(n as u64 * step));
            }
        }
        (taken, 0..taken)
    }

    /// Takes blocks one after another with the zone lock held, and puts each on the list. Returns their number, and the
    /// positions of the good ones.
    fn take_under_lock(&self, number: usize, migratetype: Migratetype, wanted: u64) -> (u64, Range<u64>) {
        let (order, _) = KINDS[number];
        let list = self.pcp.list(number);
        // From the top down: the first block taken is the first one handed out.
        let mut index = wanted;
        let mut keep = |pfn| {
            index -= 1;
            list.set(index, pfn);
        };
        let taken = self.take_good(order, migratetype, wanted, &mut keep);
        (taken, index..wanted)
    }

    /// Takes up to `count` blocks in one hold of the zone lock. Those that a check under the lock finds bad are
    /// quarantined, the others go to `keep`. Returns the blocks taken, bad ones included.
    pub(super) fn take_good(
        &self,
        order: Order,
        from: Migratetype,
        count: u64,
        keep: &mut impl FnMut(Pfn),
    ) -> u64 {
        let checks = self.config.experiment.refill_check == RefillCheck::UnderZoneLock;
        let mut keep = Each(|pfn| {
            let is_bad = checks && self.frames.find_bad(pfn, order).is_some();
            if is_bad {
                self.quarantine(pfn, order);
            } else {
                // Linux links each page that it takes here, and so fetches its descriptor.
                if !self.frames.has_maps() {
                    self.frames.set_state(pfn, order, State::Body);
                }
                keep(pfn);
            }
            !is_bad
        });
        self.take_by(self.wanted(order, from), count, &mut keep)
    }

    /// Checks the blocks that a refill has written at some positions of an empty list, first block first, and drops bad
    /// ones; the others keep their order. Returns their positions.
    fn without_bad(&self, list: &List<'_, P>, order: Order, places: Range<u64>) -> Range<u64> {
        let mut kept = places.end;
        for index in places.clone().rev() {
            let pfn = list.at(index);
            if self.frames.find_bad(pfn, order).is_some() {
                self.quarantine(pfn, order);
                continue;
            }
            kept -= 1;
            if kept != index {
                list.set(kept, pfn);
            }
        }
        kept..places.end
    }
}
