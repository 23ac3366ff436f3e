//! Blocks that bypass the per-CPU lists: many together, or one at a given address.

use core::ops::Range;

use super::*;
use crate::buddy::{Buddy, Each, Pending, Placement, Run, Wanted};
use crate::config::RefillCheck;
use crate::frame::{FrameUser, ListPlace, State};
use crate::units::PAGEBLOCK_PAGES;
use crate::zone::MOST_SECTIONS;

/// Most runs that are given back together: as many as the blocks that are set aside, or freed in bulk.
const RUNS: usize = crate::policy::pcp::MOST_ASIDE as usize;
/// Most blocks taken in one hold of the zone lock: those of a pageblock.
const MOST_TAKEN: usize = PAGEBLOCK_PAGES as usize;

/// Joins adjacent blocks of one order, in the order in which they come: each block that continues the run before it, as
/// long as they share `most` frames. Returns the number of runs, and of blocks: fewer than come if `runs` is full.
#[inline(always)]
fn join(blocks: impl Iterator<Item = (Order, Pfn)>, most: u64, runs: &mut [Run]) -> (usize, u32) {
    let (mut len, mut joined) = (0, 0);
    for (order, first) in blocks {
        if len == 0 || !runs[len - 1].extend(first, order, most) {
            if len == runs.len() {
                break;
            }
            runs[len] = Run { first, count: 1, order };
            len += 1;
        }
        joined += 1;
    }
    (len, joined)
}

/// Frees blocks one by one, if they are kept on lists; each when the next one has been read.
pub(super) fn free_each<P: Platform, M>(
    buddy: &mut Buddy<'_, '_, P, M>,
    order: Order,
    blocks: impl Iterator<Item = Pfn>,
) {
    let mut blocks = blocks.peekable();
    while let Some(pfn) = blocks.next() {
        blocks.peek();
        buddy.free(pfn, order, Placement::Likely);
    }
}

impl<'m, P: Platform, M: FrameUser> Local<'_, 'm, P, M> {
    /// Runs `f` with the lock of a section, and counts that this CPU took it.
    pub(super) fn in_section<R>(&self, n: usize, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        let (result, hold) = self.zone.with_section(n, self.frames, self.waiter, f);
        self.record(hold);
        result
    }

    /// Like [`in_section`](Self::in_section), with the lock of the section of `pfn`.
    pub(crate) fn under_lock<R>(&self, pfn: Pfn, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        self.in_section(self.zone.cut.number_of(pfn), f)
    }

    /// Like [`under_lock`](Self::under_lock), with the lock of the zone's first section.
    pub(crate) fn in_first_section<R>(&self, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        self.in_section(0, f)
    }

    /// With maps, gives back blocks, joined to at most [`RUNS`] runs, in one hold of the lock of each section that has
    /// any. Sections whose locks are held come last. Head words are prepared, and the words that the frees read are
    /// fetched, before. Returns the number of blocks given back.
    pub(super) fn free_by_section(&self, blocks: impl Iterator<Item = (Order, Pfn)>) -> u32 {
        const NONE: u16 = u16::MAX;
        let cut = self.zone.cut;
        // Of each section its last run, and of each run the one before it in its section.
        let (mut runs, mut befores, mut lasts) = ([Run::NONE; RUNS], [NONE; RUNS], [NONE; MOST_SECTIONS]);
        let (len, joined) = join(blocks, cut.most_of_run(), &mut runs);
        for at in 0..len {
            let Run { first, count, order } = runs[at];
            if order.get() < PAGEBLOCK_ORDER.get() {
                for n in 0..u64::from(count) {
                    self.frames.clear_head(first.add(n << order.get()));
                }
                core::hint::black_box(self.frames.touch_map(first));
            }
            befores[at] = core::mem::replace(&mut lasts[cut.number_of(first)], at as u16);
        }
        let (mut pending, mut left) = (Pending::default(), 0);
        for waits in [false, true] {
            if waits && left == 0 {
                break;
            }
            for (section, last) in lasts[..cut.sections()].iter_mut().enumerate() {
                let mut at = *last;
                if at == NONE {
                    continue;
                }
                if !waits && self.zone.is_held(section) {
                    left += 1;
                    continue;
                }
                *last = NONE;
                let free = |buddy: &mut Buddy<'_, 'm, P, M>| {
                    while at != NONE {
                        buddy.free_run(runs[usize::from(at)]);
                        at = befores[usize::from(at)];
                    }
                };
                let ((), hold, freed) = self.zone.with_uncounted(section, self.frames, self.waiter, free);
                self.record(hold);
                pending += freed;
            }
        }
        self.zone.counters.count(pending);
        joined
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
        let least = if self.zone.cut.is_cut() { order } else { Order::ZERO };
        self.in_best_section(&wanted, |n, _| {
            let take =
                |buddy: &mut Buddy<'_, 'm, P, M>| buddy.take_runs(least..=order, list, most, room, &mut keep);
            self.in_section(n, take)
        })
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
            self.in_first_section(|buddy| free_each(buddy, order, blocks.iter().copied()));
        }
        let blocks = blocks.len() as u64;
        bump(&self.pcp.events.direct_frees, blocks);
        bump(&self.pcp.events.direct_free_pages, blocks << order.get());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_as_far_as_they_share_a_pageblock() {
        /// Blocks, and their runs: first frame, and frames or pageblocks.
        type Case<'a> = (&'a [(Order, u64)], &'a [(u64, u32)]);
        let single = Order::ZERO;
        let double = Order::new(1).expect("an order");
        let cases: [Case<'_>; 7] = [
            (&[], &[]),
            (&[(single, 7)], &[(7, 1)]),
            (&[(single, 7), (single, 8), (single, 9)], &[(7, 3)]),
            (&[(single, 9), (single, 8), (single, 10)], &[(8, 3)]),
            (&[(single, 511), (single, 512)], &[(511, 1), (512, 1)]),
            (&[(single, 6), (double, 8), (double, 10), (single, 12)], &[(6, 1), (8, 2), (12, 1)]),
            (&[(PAGEBLOCK_ORDER, 512), (PAGEBLOCK_ORDER, 1024)], &[(512, 2)]),
        ];
        for (blocks, expected) in cases {
            let blocks = blocks.iter().map(|&(order, pfn)| (order, Pfn(pfn)));
            let mut runs = [Run::NONE; 8];
            let (len, joined) = join(blocks, 64 * PAGEBLOCK_PAGES, &mut runs);
            let found = runs[..len].iter().map(|run| (run.first.0, run.count));
            assert!(found.eq(expected.iter().copied()), "{expected:?}");
            assert_eq!(joined, expected.iter().map(|run| run.1).sum::<u32>());
        }
    }
}
