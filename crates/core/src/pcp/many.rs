//! Blocks that pass the per-CPU lists: many at once, or one of a given place.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::joined::give_back;
use super::*;
use crate::buddy::{Buddy, Wanted};
use crate::config::RefillCheck;
use crate::frame::{FrameUser, ListPlace, State};
use crate::units::PAGEBLOCK_PAGES;
use crate::zone::Sections;

/// Blocks that are taken in one hold of the zone lock: those of a pageblock.
const MOST_TAKEN: usize = PAGEBLOCK_PAGES as usize;

impl<'m, P: Platform, M: FrameUser> Local<'_, 'm, P, M> {
    /// Runs `f` with the lock of the section of `pfn`, and counts that this CPU took it.
    pub(crate) fn under_lock<R>(&self, pfn: Pfn, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        let (result, hold) = self.zone.with(pfn, self.frames, self.waiter, f);
        self.record(hold);
        result
    }

    /// Likewise with the lock of the zone's first section.
    pub(crate) fn in_first_section<R>(&self, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        self.under_lock(self.zone.spec().start, f)
    }

    /// Runs `f` with the lock of each section that has one of some frames, one after another. `f` also learns whether a frame is of
    /// the section.
    pub(crate) fn in_sections_of(
        &self,
        pfns: impl Iterator<Item = Pfn>,
        mut f: impl FnMut(&mut Buddy<'_, 'm, P, M>, &dyn Fn(Pfn) -> bool),
    ) {
        let cut = self.zone.cut();
        for section in cut.of(pfns).iter() {
            let is_here = |pfn: Pfn| cut.number_of(pfn) == section;
            let ((), hold) =
                self.zone.with_section(section, self.frames, self.waiter, |buddy| f(buddy, &is_here));
            self.record(hold);
        }
    }

    /// Looks at a block that was taken past the lists, as a refill does. A bad one is quarantined. Whether it is good.
    pub(crate) fn accept(&self, pfn: Pfn, order: Order) -> bool {
        let is_good = self.is_good(pfn, order);
        if is_good {
            self.count_allocated(1, order);
        }
        is_good
    }

    /// Like [`accept`](Self::accept), for a block that compaction moves another to: no caller has asked for it, so it is not counted.
    pub(crate) fn is_good(&self, pfn: Pfn, order: Order) -> bool {
        if self.config.experiment.refill_check != RefillCheck::Off
            && self.frames.find_bad(pfn, order).is_some()
        {
            self.quarantine(pfn, order);
            return false;
        }
        self.is_intact(pfn, order)
    }

    fn count_allocated(&self, blocks: u64, order: Order) {
        bump(&self.pcp.events.direct_allocs, blocks);
        bump(&self.pcp.events.direct_alloc_pages, blocks << order.get());
    }

    /// Fills `out` with blocks of the zone, as many as it has. They are allocated then. Returns how many.
    pub(crate) fn alloc_many(&self, order: Order, migratetype: Migratetype, out: &mut [Pfn]) -> usize {
        let check = self.config.experiment.refill_check;
        // As if they had come from this CPU's list: then its frees are hits.
        let has_list = self.pcp.hit_list(order, migratetype).is_some_and(|list| list.capacity() > 0);
        let list_place = self.waiter.cpu.filter(|_| has_list).map(|cpu| ListPlace { cpu, position: 0 });
        let mut got = 0;
        while got < out.len() && !self.has_less_than(order) {
            let most = (out.len() - got).min(MOST_TAKEN);
            let places = &mut out[got..][..most];
            let mut n = 0;
            let taken = self.take_from_zone(self.wanted(order, migratetype), most as u64, |pfn| {
                self.note_taken(pfn, order);
                if check == RefillCheck::UnderZoneLock && self.frames.find_bad(pfn, order).is_some() {
                    self.quarantine(pfn, order);
                    return false;
                }
                places[n] = pfn;
                n += 1;
                true
            });
            if taken == 0 {
                break;
            }
            let mut kept = 0;
            for at in 0..n {
                let pfn = places[at];
                let bad = check == RefillCheck::AfterUnlock && self.frames.find_bad(pfn, order).is_some();
                if bad {
                    self.quarantine(pfn, order);
                } else if self.is_intact(pfn, order) {
                    let state = State::Taken { order, asked: migratetype, list_place };
                    self.frames.set_state(pfn, order, state);
                    places[kept] = pfn;
                    kept += 1;
                }
            }
            self.count_allocated(kept as u64, order);
            got += kept;
        }
        got
    }

    /// Takes runs from the section that would miss them least: see [`Buddy::take_runs`].
    pub(crate) fn take_runs(
        &self,
        order: Order,
        list: Migratetype,
        most: u64,
        room: usize,
        mut keep: impl FnMut(Range<Pfn>),
    ) -> u64 {
        let wanted = Wanted { may_fall_back: false, may_use_cma: false, ..self.wanted(order, list) };
        let mut take = |n| self.take_in(n, |buddy| buddy.take_runs(order, list, most, room, &mut keep));
        if !self.zone.cut().is_cut() {
            return take(0);
        }
        let from = self.pcp.section.load(Relaxed) as usize;
        let mut tried = Sections::NONE;
        while let Some(n) = self.zone.section_for(&wanted, from, &tried) {
            let taken = take(n);
            if taken > 0 {
                return taken;
            }
            tried.add(n);
        }
        0
    }

    /// Frees blocks of this zone past the lists, in one hold of its lock. They are the caller's to free, and their head words
    /// say [`State::Body`].
    pub(crate) fn free_many(&self, order: Order, blocks: &[Pfn]) {
        let most = self.zone.cut().most_of_run();
        self.in_sections_of(blocks.iter().copied(), |buddy, is_here| {
            let here = blocks.iter().filter(|&&pfn| is_here(pfn)).map(|&pfn| (order, pfn));
            give_back(buddy, self.frames.has_maps().then_some(most), here);
        });
        let blocks = blocks.len() as u64;
        bump(&self.pcp.events.direct_frees, blocks);
        bump(&self.pcp.events.direct_free_pages, blocks << order.get());
    }
}
