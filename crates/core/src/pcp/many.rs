//! Blocks that bypass the per-CPU lists: many together, or one at a given address.

use super::*;
use crate::buddy::{Buddy, Pending, Placement, Run};
use crate::config::RefillCheck;
use crate::frame::{FrameUser, ListPlace, State};
use crate::units::PAGEBLOCK_PAGES;
use crate::zone::MOST_SECTIONS;

/// Number of no run.
const NO_RUN: u8 = u8::MAX;
/// Most runs that are given back together: as many as a byte numbers. With 128, a long drain takes the locks of its
/// sections twice, and random frees on 256 simulated CPUs take a sixth longer.
const RUNS: usize = NO_RUN as usize;
/// Blocks of a short drain: half of the slots that a list of huge pages has where few CPUs use a zone.
const FEW: usize = 16;
/// Most blocks taken in one hold of the zone lock: those of a pageblock.
const MOST_TAKEN: usize = PAGEBLOCK_PAGES as usize;

/// A run that is given back, in 8 bytes: all of them are written at each call.
#[derive(Clone, Copy)]
struct Joined {
    /// The first frame, from the zone's first.
    first: u32,
    count: u16,
    order: Order,
    /// Number of the run before it in its section.
    before: u8,
}

impl Joined {
    const NONE: Self = Self { first: 0, count: 0, order: Order::ZERO, before: NO_RUN };
}

/// The run that begins with `next` and the blocks that continue it, as long as they share `most` frames; `next` is the
/// first block after it then.
#[inline(always)]
fn join(
    next: &mut Option<(Order, Pfn)>,
    blocks: &mut impl Iterator<Item = (Order, Pfn)>,
    most: u64,
) -> Option<Run> {
    let (order, first) = (*next)?;
    let mut run = Run { first, count: 1, order };
    loop {
        *next = blocks.next();
        if (*next).is_none_or(|(order, first)| !run.extend(first, order, most)) {
            return Some(run);
        }
    }
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
    pub(crate) fn in_section<R>(&self, n: usize, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        let (result, hold) = self.zone.with_section(n, self.frames, self.waiter, f);
        self.record(hold);
        result
    }

    /// Like [`in_section`](Self::in_section), with the lock of the section of `pfn`.
    pub(crate) fn under_lock<R>(&self, pfn: Pfn, f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R) -> R {
        self.in_section(self.zone.cut.number_of(pfn), f)
    }

    /// With maps, gives back blocks, joined to at most [`RUNS`] runs, in one hold of the lock of each section that has
    /// any. Sections whose locks are held come last. Head words are prepared, and the words that the frees read are
    /// fetched, before. Returns the number of blocks given back.
    pub(super) fn free_by_section(&self, blocks: impl ExactSizeIterator<Item = (Order, Pfn)>) -> u32 {
        // Most drains are short, and do not write room for many.
        match blocks.len() <= FEW {
            true => self.free_runs(blocks, &mut [Joined::NONE; FEW]),
            false => self.free_runs(blocks, &mut [Joined::NONE; RUNS]),
        }
    }

    #[inline(never)]
    fn free_runs(&self, mut blocks: impl Iterator<Item = (Order, Pfn)>, runs: &mut [Joined]) -> u32 {
        let (cut, start) = (self.zone.cut, self.zone.spec().start);
        // A copy stays in registers.
        let frames = *self.frames;
        // Of each section its last run, and a bit if it has one.
        let (mut lasts, mut sections) = ([NO_RUN; MOST_SECTIONS], [0_u64; MOST_SECTIONS / 64]);
        let (mut next, mut given_back, mut fetched) = (blocks.next(), 0, 0);
        for (at, place) in runs.iter_mut().enumerate() {
            let Some(Run { first, count, order }) = join(&mut next, &mut blocks, cut.most_of_run()) else {
                break;
            };
            if order < PAGEBLOCK_ORDER {
                // Most runs are one block.
                frames.clear_head(first);
                for n in 1..u64::from(count) {
                    frames.clear_head(first.add(n << order.get()));
                }
                fetched ^= frames.read_ahead(first);
            }
            let section = cut.number_of(first);
            let before = core::mem::replace(&mut lasts[section], at as u8);
            *place = Joined { first: (first.0 - start.0) as u32, count: count as u16, order, before };
            sections[section / 64] |= 1 << (section % 64);
            given_back += count;
        }
        core::hint::black_box(fetched);
        let mut pending = Pending::default();
        for waits in [false, true] {
            for (n, left) in sections.iter_mut().enumerate() {
                for bit in Ones(*left) {
                    let section = n * 64 + bit;
                    if !waits && self.zone.is_held(section) {
                        continue;
                    }
                    *left &= !(1 << bit);
                    let free = |buddy: &mut Buddy<'_, 'm, P, M>| {
                        let mut at = lasts[section];
                        while let Some(&Joined { first, count, order, before }) = runs.get(usize::from(at)) {
                            buddy.free_run(Run {
                                first: start.add(u64::from(first)),
                                count: u32::from(count),
                                order,
                            });
                            at = before;
                        }
                    };
                    let ((), hold, freed) = self.zone.with_uncounted(section, self.frames, self.waiter, free);
                    self.record(hold);
                    pending += freed;
                }
            }
        }
        self.zone.counters().count(pending);
        given_back
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

    /// Fills `out` with blocks of the zone's free store of type `from`, as blocks of type `asked`, as many as it has.
    /// They are allocated then. Returns their number.
    pub(crate) fn alloc_many(
        &self,
        order: Order,
        from: Migratetype,
        asked: Migratetype,
        out: &mut [Pfn],
    ) -> usize {
        let check = self.config.experiment.refill_check;
        // As if they had come from this CPU's list: then its frees are hits.
        let has_list = from == asked && self.pcp.has_list(order, asked);
        let list_place = self.waiter.cpu.filter(|_| has_list).map(|cpu| ListPlace { cpu, position: 0 });
        let mut got = 0;
        while got < out.len() && self.zone.free_pages() >= order.pages() {
            let most = (out.len() - got).min(MOST_TAKEN);
            let places = &mut out[got..][..most];
            let mut n = 0;
            let mut keep = |pfn| {
                places[n] = pfn;
                n += 1;
            };
            if self.take_good(order, from, most as u64, &mut keep) == 0 {
                break;
            }
            let mut kept = 0;
            for at in 0..n {
                let pfn = places[at];
                let bad = check == RefillCheck::AfterUnlock && self.frames.find_bad(pfn, order).is_some();
                if bad {
                    self.quarantine(pfn, order);
                } else if self.is_intact(pfn, order) {
                    self.frames.set_state(pfn, order, State::Taken { order, asked, list_place });
                    places[kept] = pfn;
                    kept += 1;
                }
            }
            if kept > 0 {
                self.count_direct(kept as u64, (kept as u64) << order.get());
            }
            got += kept;
        }
        got
    }

    /// Whether a block taken from the zone may be found bad.
    pub(crate) fn checks_blocks(&self) -> bool {
        M::CHECKED && self.config.experiment.refill_check != RefillCheck::Off || self.config.poison
    }

    /// Frees blocks of this zone past the lists, in one hold of its lock. The caller owns them, and their head words
    /// are [`State::Body`].
    pub(crate) fn free_many(&self, order: Order, blocks: &[Pfn]) {
        if self.frames.has_maps() {
            let mut left = blocks;
            while !left.is_empty() {
                left = &left[self.free_by_section(left.iter().map(|&pfn| (order, pfn))) as usize..];
            }
        } else {
            self.in_section(0, |buddy| free_each(buddy, order, blocks.iter().copied()));
        }
        let blocks = blocks.len() as u64;
        bump(&self.pcp.events.direct_frees, blocks);
        bump(&self.pcp.events.direct_free_pages, blocks << order.get());
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

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
            let mut blocks = blocks.iter().map(|&(order, pfn)| (order, Pfn(pfn)));
            let mut next = blocks.next();
            let runs = core::iter::from_fn(|| join(&mut next, &mut blocks, 64 * PAGEBLOCK_PAGES));
            let runs: Vec<_> = runs.map(|run| (run.first.0, run.count)).collect();
            assert_eq!(runs, expected);
        }
    }
}
