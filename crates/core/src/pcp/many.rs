//! Blocks that bypass the per-CPU lists: many together, or one at a given address.

use core::ops::Range;

use super::joined::{give_back, joined};
use super::*;
use crate::buddy::{Buddy, Each, Pending, Run, Wanted};
use crate::config::RefillCheck;
use crate::frame::{FrameUser, ListPlace, State};
use crate::units::PAGEBLOCK_PAGES;
use crate::zone::MOST_SECTIONS;

/// Most runs that are given back together: more than the blocks that are set aside, or freed in bulk.
const RUNS: usize = 256;
/// Most blocks taken in one hold of the zone lock: those of a pageblock.
const MOST_TAKEN: usize = PAGEBLOCK_PAGES as usize;

impl<'m, P: Platform, M: FrameUser> Local<'_, 'm, P, M> {
    /// Runs `f` with the lock of the section of `pfn`, and counts that this CPU took it.
    pub(crate) fn under_lock<R>(&self, pfn: Pfn, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        let (result, hold) =
            self.zone.with_section(self.zone.cut().number_of(pfn), self.frames, self.waiter, f);
        self.record(hold);
        result
    }

    /// Like [`under_lock`](Self::under_lock), with the lock of the zone's first section.
    pub(crate) fn in_first_section<R>(&self, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        self.under_lock(self.zone.spec().start, f)
    }

    /// With maps, gives back blocks, joined to at most [`RUNS`] runs, in one hold of the lock of each section that has
    /// any. Sections whose locks are held come last. Head words are prepared, and the words that the frees read are
    /// fetched, before. Returns the number of blocks given back.
    pub(super) fn free_by_section(&self, blocks: impl Iterator<Item = (Order, Pfn)>) -> u32 {
        const NONE: u16 = u16::MAX;
        let (cut, start) = (self.zone.cut(), self.zone.spec().start);
        // Of each section its last run, and of each run the one before it in its section.
        let (mut runs, mut befores, mut lasts) = ([0; RUNS], [NONE; RUNS], [NONE; MOST_SECTIONS]);
        let mut taken = 0;
        for (at, run) in joined(blocks, cut.most_of_run()).take(RUNS).enumerate() {
            if run.order < PAGEBLOCK_ORDER {
                (0..run.count).for_each(|n| self.frames.clear_head(run.first.add(n << run.order.get())));
                core::hint::black_box(self.frames.touch_map(run.first));
            }
            taken += run.count as u32;
            runs[at] = run.pack(start);
            befores[at] = core::mem::replace(&mut lasts[cut.number_of(run.first)], at as u16);
        }
        let mut pending = Pending::default();
        for waits in [false, true] {
            let mut left = false;
            for (section, last) in lasts[..cut.sections()].iter_mut().enumerate() {
                left |= *last != NONE;
                if *last == NONE || (!waits && self.zone.is_held(section)) {
                    continue;
                }
                let mut at = core::mem::replace(last, NONE);
                let here = core::iter::from_fn(|| {
                    let now = (at != NONE).then_some(usize::from(at))?;
                    at = befores[now];
                    Some(Run::unpack(runs[now], start))
                });
                let free = |buddy: &mut Buddy<'_, 'm, P, M>| buddy.free_runs(here);
                let ((), hold, freed) = self.zone.with_uncounted(section, self.frames, self.waiter, free);
                self.record(hold);
                pending += freed;
            }
            if !left {
                break;
            }
        }
        self.zone.counters().count(pending);
        taken
    }

    /// Checks a block that was taken past the lists, as a refill does. A bad one is quarantined. Returns whether it is
    /// good.
    pub(crate) fn accept(&self, pfn: Pfn, order: Order) -> bool {
        let is_good = self.is_good(pfn, order);
        if is_good {
            self.count_direct(1, order.pages());
        }
        is_good
    }

    /// Like [`accept`](Self::accept), for a block that compaction moves another block to: no caller requested it, so it
    /// is not counted.
    pub(crate) fn is_good(&self, pfn: Pfn, order: Order) -> bool {
        if self.config.experiment.refill_check != RefillCheck::Off
            && self.frames.find_bad(pfn, order).is_some()
        {
            self.quarantine(pfn, order);
            return false;
        }
        self.is_intact(pfn, order)
    }

    /// Counts blocks that were taken past the lists, and their pages.
    pub(crate) fn count_direct(&self, blocks: u64, pages: u64) {
        bump(&self.pcp.events.direct_allocs, blocks);
        bump(&self.pcp.events.direct_alloc_pages, pages);
    }

    /// Fills `out` with blocks of the zone, as many as it has. They are allocated then. Returns their number.
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
            let mut keep = Each(|pfn| {
                self.note_taken(pfn, order);
                if check == RefillCheck::UnderZoneLock && self.frames.find_bad(pfn, order).is_some() {
                    self.quarantine(pfn, order);
                    return false;
                }
                places[n] = pfn;
                n += 1;
                true
            });
            let taken = self.take_by(self.wanted(order, migratetype), most as u64, &mut keep);
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
            self.count_direct(kept as u64, (kept as u64) << order.get());
            got += kept;
        }
        got
    }

    /// Takes runs from the section that would miss them least, with blocks of `order`; if the zone has one section,
    /// also those with smaller ones: see [`Buddy::take_runs`].
    pub(crate) fn take_runs(
        &self,
        order: Order,
        list: Migratetype,
        most: u64,
        room: usize,
        mut keep: impl FnMut(Range<Pfn>),
    ) -> u64 {
        let wanted = Wanted { may_fall_back: false, may_use_cma: false, ..self.wanted(order, list) };
        let is_cut = self.zone.cut().is_cut();
        let least = if is_cut { order } else { Order::ZERO };
        let mut take = |n| {
            let take =
                |buddy: &mut Buddy<'_, 'm, P, M>| buddy.take_runs(least..=order, list, most, room, &mut keep);
            let (taken, hold) = self.zone.with_section(n, self.frames, self.waiter, take);
            self.record(hold);
            taken
        };
        if is_cut { self.in_best_section(&wanted, take) } else { take(0) }
    }

    /// Whether a block taken from the zone may be found bad.
    pub(crate) fn checks_blocks(&self) -> bool {
        M::CHECKED && self.config.experiment.refill_check != RefillCheck::Off
            || self.config.poison && self.direct_map.is_some()
    }

    /// Frees blocks of this zone past the lists, in one hold of its lock. The caller owns them, and their head words
    /// are [`State::Body`].
    pub(crate) fn free_many(&self, order: Order, blocks: &[Pfn]) {
        if self.frames.has_maps() {
            self.free_by_section(blocks.iter().map(|&pfn| (order, pfn)));
        } else {
            self.in_first_section(|buddy| give_back(buddy, order, blocks.iter().copied()));
        }
        let blocks = blocks.len() as u64;
        bump(&self.pcp.events.direct_frees, blocks);
        bump(&self.pcp.events.direct_free_pages, blocks << order.get());
    }
}
