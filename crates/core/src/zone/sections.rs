//! Sections: the division of a zone's free store, and the choice of a section for a request.
//!
//! If many CPUs refill and drain short lists, one lock for a zone is not enough. So with maps the store of a large zone
//! is cut into sections of equal size, aligned to it. A section has its own lock, bins, bitmaps of free pageblocks and
//! untouched memory. Marks, counters and the per-CPU lists are the zone's: a hit sees no section. No CPU holds two
//! section locks.
//!
//! # Which section
//! A CPU does not stay in a section only because that has memory: it compares bins, as a single store would. Each
//! section publishes, by type, which bins have a pageblock, in words that any CPU reads without a lock. A refill
//! compares [`AROUND`] sections, from the CPU's last one on, and goes to the one with the best bin. If none has an open
//! pageblock with such a block, it goes to the first after them that has one and whose lock is free, before it opens a
//! pageblock that is free as a whole. It stays with its last section while that has a largest block of the same order
//! and is at most [`CLOSE`] classes less full. If the lock of the chosen section is held, it takes an equally good one.
//! A request of the pageblock order goes to a section with a single before it breaks a pair in its own, unless that
//! lock is held. For a pageblock that a smaller request opens all sections are equally good.
//!
//! # The words
//! For each type one word a section, contiguous: bit `n` is set if bin `n` has a pageblock, bit [`WHOLE`] if a
//! pageblock is free as a whole. After them one word a section: two bits for each type, for singles and for pairs, then
//! [`MIXED`]. They are written at the end of a hold, before the lock is released: a request sees all earlier changes.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::{Zone, ZoneSpec};
use crate::buddy::{AT_LEAST, CLAIMABLE, CLASSES, MIXED, WHOLE, WORDS, Wanted, exactly};
use crate::config::Config;
use crate::platform::{Platform, Word};
use crate::policy::fallback::{self, Source, Steal};
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, Pfn};

const TYPES: usize = Migratetype::ALL.len();

/// Least frames of a section: 64 MiB in pages of 4 KiB. A smaller section has too few pageblocks for all bins.
const FEWEST: u64 = 1 << 14;
/// Most sections of a zone, for each of its CPUs and in all.
const EACH_CPU: u64 = 4;
const MOST: u64 = 256;
pub(crate) const MOST_SECTIONS: usize = MOST as usize;
/// A CPU stays with its section if that is at most so many classes less full than the best one.
const CLOSE: u32 = 1;
/// The rank of a section that shows no such block: worse than any bin.
const NONE: u32 = u64::BITS;
/// Equally good sections whose locks a request checks.
const LOOKS: usize = 3;
/// Most frames of a run, as a power of two: 64 pageblocks.
const MOST_OF_RUN: u32 = PAGEBLOCK_ORDER.get() as u32 + 6;
/// Sections among which a CPU chooses, from its own on, if one of them has an open pageblock with a block.
const AROUND: usize = 16;

/// Division of a zone's store into sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cut {
    start: Pfn,
    end: Pfn,
    /// A section has 2^`shift` frames; more than any zone if there is one section.
    shift: u32,
}

impl Cut {
    /// Division for a zone that `cpus` CPUs share. One section with lists, and for a single CPU.
    pub(crate) fn new(spec: &ZoneSpec, config: &Config, cpus: u32) -> Self {
        let whole = Self { start: spec.start, end: spec.end(), shift: u64::BITS - 1 };
        let (fewest, most) = match config.experiment.section_pages {
            0 if cpus < 2 => return whole,
            0 => (FEWEST, MOST.min(EACH_CPU * u64::from(cpus))),
            forced => (forced.max(MAX_ORDER.pages()), MOST),
        };
        if !cfg!(feature = "smp") || !config.engine.has_maps() {
            return whole;
        }
        let cuts = (fewest.next_power_of_two().ilog2()..).map(|shift| Self { shift, ..whole });
        cuts.take_while(|cut| cut.sections() > 1).find(|cut| cut.sections() as u64 <= most).unwrap_or(whole)
    }

    /// Number of sections.
    pub(crate) const fn sections(self) -> usize {
        if !self.is_cut() {
            return 1;
        }
        (((self.end.0 - 1) >> self.shift) - (self.start.0 >> self.shift)) as usize + 1
    }

    /// Whether there are several.
    #[inline(always)]
    pub(crate) const fn is_cut(self) -> bool {
        cfg!(feature = "smp") && self.shift < u64::BITS - 1
    }

    /// Number of the section of a frame.
    #[inline(always)]
    pub(crate) const fn number_of(self, pfn: Pfn) -> usize {
        ((pfn.0 >> self.shift) - (self.start.0 >> self.shift)) as usize
    }

    /// Frames of the zone in a section.
    pub(crate) fn range(self, n: usize) -> Range<Pfn> {
        if !self.is_cut() {
            return self.start..self.end;
        }
        let first = (self.start.0 >> self.shift) + n as u64;
        self.start.max(Pfn(first << self.shift))..self.end.min(Pfn((first + 1) << self.shift))
    }

    /// Parts of a range of the zone's frames, section by section.
    pub(crate) fn parts(self, range: Range<Pfn>) -> impl Iterator<Item = Range<Pfn>> + Clone {
        let mut at = range.start;
        core::iter::from_fn(move || {
            let part = at..self.range(self.number_of(at)).end.min(range.end);
            at = part.end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// Most frames of a run of free blocks that is given back together: it is inside one section.
    #[inline(always)]
    pub(crate) fn most_of_run(self) -> u64 {
        1 << self.shift.min(MOST_OF_RUN)
    }
}

/// Union of the words that some sections publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown([u64; WORDS]);

impl Shown {
    /// Whether there is a largest free block of exactly this order; for order 10 also one of two types.
    pub(crate) fn has(&self, order: Order, list: Migratetype) -> bool {
        let mixes = order == MAX_ORDER && list.is_ordinary() && self.0[TYPES] >> MIXED & 1 != 0;
        mixes || self.has_unmixed(order, list)
    }

    fn has_unmixed(&self, order: Order, list: Migratetype) -> bool {
        match order.get().checked_sub(PAGEBLOCK_ORDER.get()) {
            Some(kind) => self.0[TYPES] >> (2 * list.index() + usize::from(kind)) & 1 != 0,
            None => self.0[list.index()] & exactly(order) != 0,
        }
    }

    /// Whether there is one below the pageblock order in a pageblock that another type may claim: about half of it, or
    /// more, is free.
    fn has_claimable(&self, order: Order, list: Migratetype) -> bool {
        self.0[list.index()] & exactly(order) & CLAIMABLE != 0
    }
}

impl<P: Platform> Zone<'_, P> {
    fn word(&self, which: usize, n: usize) -> u64 {
        self.common.words[which * self.cut.sections() + n].load(Relaxed)
    }

    fn shown_by(&self, n: usize) -> Shown {
        Shown(core::array::from_fn(|which| self.word(which, n)))
    }

    /// Union of the words of all sections; `None` if there is one section. A racy read.
    pub(crate) fn shown(&self) -> Option<Shown> {
        let add = |Shown(all), n| Shown(core::array::from_fn(|which| all[which] | self.word(which, n)));
        self.cut.is_cut().then(|| (0..self.cut.sections()).fold(Shown([0; WORDS]), add))
    }

    /// The section for a CPU whose last section is `from`: see the head of this file. `None` if no section shows a
    /// block.
    fn best(&self, order: Order, list: Migratetype, from: usize) -> Option<usize> {
        let sections = self.cut.sections();
        let (which, fits) = match order.get().checked_sub(PAGEBLOCK_ORDER.get()) {
            None => (list.index(), AT_LEAST[order.index()] + (1 << WHOLE)),
            Some(0) => (TYPES, 3 << (2 * list.index())),
            Some(_) => (TYPES, 2 << (2 * list.index())),
        };
        let words = &self.common.words[which * sections..][..sections];
        // The best bin that has such a block, or [`NONE`].
        let rank = |n: usize| (words[n].load(Relaxed) & fits).trailing_zeros();
        let classes = CLASSES as u32;
        let is_close =
            |rank: u32, best: u32| rank != NONE && rank / classes == best / classes && rank <= best + CLOSE;
        let own_rank = rank(from);
        // A single elsewhere is better than one of a pair here.
        let stays = |best: u32| own_rank == best || order < PAGEBLOCK_ORDER && is_close(own_rank, best);
        // No other section has a better bin.
        let best_of_all = fits.trailing_zeros();
        if stays(best_of_all) && !self.is_held(from) {
            return Some(from);
        }
        let next = |n: usize| if n + 1 < sections { n + 1 } else { 0 };
        let (mut best, mut at, mut n) = (own_rank, from, next(from));
        for _ in 1..AROUND.min(sections) {
            let rank = rank(n);
            if rank < best {
                (best, at) = (rank, n);
                if best == best_of_all {
                    break;
                }
            }
            n = next(n);
        }
        // No open pageblock around: any other one, but a whole one nearby rather than a wait for a lock further on.
        for _ in AROUND..sections {
            if best < WHOLE {
                break;
            }
            let rank = rank(n);
            if rank < best && (best == NONE || !self.is_held(n)) {
                (best, at) = (rank, n);
            }
            n = next(n);
        }
        if best == NONE {
            return None;
        }
        if stays(best) {
            at = from;
        }
        // If its lock is held, one of the first that are as good.
        let (mut n, mut looks) = (from, 0);
        for _ in 0..AROUND.min(sections) {
            if looks == LOOKS || !self.is_held(at) {
                break;
            }
            if is_close(rank(n), best) {
                looks += 1;
                if !self.is_held(n) {
                    return Some(n);
                }
            }
            n = next(n);
        }
        Some(at)
    }

    /// Whether a CPU holds the lock of a section. A racy read.
    pub(crate) fn is_held(&self, n: usize) -> bool {
        self.section(n).lists.is_held()
    }

    /// The sections with an open pageblock of a type that has a block of an order, the fullest first; equal ones in
    /// order, from the section of a frame on.
    pub(crate) fn fullest_first(
        &self,
        order: Order,
        list: Migratetype,
        at: Pfn,
    ) -> impl Iterator<Item = usize> {
        let from = self.cut.number_of(at);
        let class_of = move |n: usize| {
            if !self.cut.is_cut() {
                return 0;
            }
            let fit = self.word(list.index(), n) & AT_LEAST[order.index()];
            let classes =
                (0..PAGEBLOCK_ORDER.index()).fold(0, |all, largest| all | fit >> (largest * CLASSES));
            (classes & ((1 << CLASSES) - 1)).trailing_zeros() as usize
        };
        let sections = move || (from..self.cut.sections()).chain(0..from);
        (0..CLASSES).flat_map(move |class| sections().filter(move |&n| class_of(n) == class))
    }

    /// The section from which a CPU, whose last section is `from`, takes `wanted`, and what it takes there: from a
    /// section that has the type; if none has, and the request may fall back, from the section of the block that a
    /// fallback takes.
    pub(crate) fn section_for(&self, wanted: &Wanted, from: usize) -> Option<(usize, Wanted)> {
        let Wanted { order, migratetype, .. } = *wanted;
        if !self.cut.is_cut() {
            return Some((0, *wanted));
        }
        let free_cma = if wanted.may_use_cma { self.free_cma_pages() } else { 0 };
        let cma_first = free_cma != 0 && fallback::cma_first(migratetype, true, self.free_pages(), free_cma);
        let [first, second] =
            if cma_first { [Migratetype::Cma, migratetype] } else { [migratetype, Migratetype::Cma] };
        let mut found = self.best(order, first, from);
        if found.is_none() && free_cma != 0 {
            found = self.best(order, second, from);
        }
        if let Some(n) = found {
            return Some((n, Wanted { may_fall_back: false, ..*wanted }));
        }
        if wanted.may_fall_back { Some((self.fallback_section(wanted, from)?, *wanted)) } else { None }
    }

    /// The section of the block that a fallback takes: the largest one, if it may be claimed with its pageblock; else
    /// the smallest that suffices.
    #[cold]
    #[inline(never)]
    fn fallback_section(&self, wanted: &Wanted, from: usize) -> Option<usize> {
        let Wanted { order, migratetype, generation, avoid_fragmentation, .. } = *wanted;
        let shown = self.shown()?;
        // No section has a block of the type, but one may have two buddies of different types.
        let (shows, found, list): (fn(&Shown, _, _) -> bool, _, _) = if shown.has(order, migratetype) {
            (Shown::has, order, migratetype)
        } else {
            let has_block = |order, list| shown.has_unmixed(order, list);
            let grouping = self.common.counters.grouping();
            let Source { order: largest, migratetype: list, steal } =
                fallback::choose(generation, order, migratetype, grouping, avoid_fragmentation, has_block)?;
            if steal != Steal::Pageblock {
                (Shown::has_unmixed, largest, list)
            } else if shown.has_claimable(largest, list) {
                (Shown::has_claimable, largest, list)
            } else {
                // Hardly any pageblock could be claimed: the smallest block is broken.
                let (smallest, list) = fallback::smallest(order, migratetype, has_block)?;
                (Shown::has_unmixed, smallest, list)
            }
        };
        (from..self.cut.sections()).chain(0..from).find(|&n| shows(&self.shown_by(n), found, list))
    }
}

#[cfg(test)]
mod tests;
