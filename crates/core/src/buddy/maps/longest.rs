//! Runs of free frames of any length, for requests that need few runs instead of blocks of one order.

use core::ops::Range;

use super::{AT_LEAST, Buddy};
use crate::frame::{Bits, WORDS, range_in_word, starts};
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Most pageblocks taken from in one hold of the zone lock.
const MOST: usize = 16;

impl Bits {
    /// The first free block of an order below the pageblock order, in word `from` or later, with the free frames around
    /// it: number of the first frame, and their count. Sets `from` to the block's word: none is before it.
    fn run_around(&self, order: Order, from: &mut usize) -> Option<(u64, u64)> {
        let words = 1 << order.get().saturating_sub(6);
        let block = if words == 1 {
            let found = |n: usize| starts(self.0[n], order.get());
            (*from..WORDS)
                .find_map(|n| Some((n, found(n))).filter(|&(_, found)| found != 0))
                .map(|(n, found)| n as u64 * 64 + u64::from(found.trailing_zeros()))
        } else {
            let mut at = (*from & !(words - 1)..WORDS).step_by(words);
            at.find(|&n| self.0[n..n + words].iter().all(|&word| word == u64::MAX)).map(|n| n as u64 * 64)
        };
        let (mut first, mut end) = (block?, block? + order.pages());
        *from = first as usize / 64;
        while first > 0 {
            let before = (first - 1) % 64 + 1;
            let free = u64::from((self.0[(first as usize - 1) / 64] << (64 - before)).leading_ones());
            first -= free;
            if free < before {
                break;
            }
        }
        while end < PAGEBLOCK_PAGES {
            let after = 64 - end % 64;
            let free = u64::from((self.0[end as usize / 64] >> (end % 64)).trailing_ones());
            end += free;
            if free < after {
                break;
            }
        }
        Some((first, end - first))
    }
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Takes runs of free frames from pageblocks of type `list` that have a free block of `order`: at most `most`
    /// frames in at most `room` runs, each but the last at least as long as the block. Calls `keep` for each. Returns
    /// the number of frames; 0 only if there is no such pageblock. Only with maps.
    pub(crate) fn take_runs(
        &mut self,
        order: Order,
        list: Migratetype,
        most: u64,
        room: usize,
        mut keep: impl FnMut(Range<Pfn>),
    ) -> u64 {
        let mut now = (most, room);
        let (mut left, mut room) = now;
        let mut keep = |run: Range<Pfn>| {
            left -= run.end.0 - run.start.0;
            room -= 1;
            keep(run);
            (left, room)
        };
        for _ in 0..MOST {
            let next = match now {
                (0, _) | (_, 0) => None,
                _ if order >= PAGEBLOCK_ORDER => self.take_wholes_as_runs(order, list, now, &mut keep),
                _ => self.take_runs_of_one(order, list, now, &mut keep),
            };
            let Some(next) = next else { break };
            now = next;
        }
        self.pending.touched = true;
        most - now.0
    }

    /// Takes from one pageblock, of those with such a block the fullest. Returns the result of `keep`: frames and runs
    /// still to find.
    fn take_runs_of_one(
        &mut self,
        order: Order,
        list: Migratetype,
        mut now: (u64, usize),
        keep: &mut impl FnMut(Range<Pfn>) -> (u64, usize),
    ) -> Option<(u64, usize)> {
        let fit = self.cold.bins.occupied[list as usize].get() & AT_LEAST[order.index()];
        let (start, old, before) = if fit == 0 {
            (self.unlink_closed(list)?, None, Bits::ALL)
        } else {
            let first = self.cold.bins.ends[list as usize][fit.trailing_zeros() as usize].get().first;
            let start = self.pageblock_of(first);
            let old = self.frames.open_head(start);
            let bits = if old.is_some() { self.map(start).bits() } else { Bits::NONE };
            (start, old, bits)
        };
        let (mut left, mut word) = (before, 0);
        while now.0 > 0
            && now.1 > 0
            && let Some((first, free)) = left.run_around(order, &mut word)
        {
            let pages = free.min(now.0);
            // From the end with the better alignment: the run has fewer blocks then.
            let at_end = (first + free).trailing_zeros() > first.trailing_zeros();
            let from = if at_end { first + free - pages } else { first };
            for n in from as usize / 64..(from + pages).div_ceil(64) as usize {
                left.0[n] &= !range_in_word(n, from, pages);
            }
            now = keep(start.add(from)..start.add(from + pages));
        }
        if left == before {
            // Its bin was wrong.
            self.rebuild();
            return None;
        }
        self.account(list, left.count() as i64 - before.count() as i64);
        self.set_bits(start, list, old, left);
        Some(now)
    }

    /// Takes whole pageblocks, or pairs of them, adjacent ones as one run; of the last one only the frames needed.
    fn take_wholes_as_runs(
        &mut self,
        order: Order,
        list: Migratetype,
        (most, room): (u64, usize),
        keep: &mut impl FnMut(Range<Pfn>) -> (u64, usize),
    ) -> Option<(u64, usize)> {
        let blocks = (most >> order.get()).min(room as u64);
        let wholes = self.take_wholes(order, list, blocks.max(1))?;
        let mut run: Option<Range<Pfn>> = None;
        wholes.each(order, |pfn| {
            let end = pfn.add(order.pages());
            if let Some(run) = run.as_mut().filter(|run| run.end == pfn) {
                run.end = end;
            } else if let Some(before) = run.replace(pfn..end) {
                keep(before);
            }
        });
        let last = run?;
        let taken = wholes.blocks(order) << order.get();
        if blocks > 0 {
            self.account(list, -(taken as i64));
            return Some(keep(last));
        }
        // One block, larger than the rest of the request.
        debug_assert!(order <= MAX_ORDER && taken == order.pages(), "one block");
        let end = last.start.add(most);
        let mut start = last.start;
        while start < last.end {
            let used = end.0.saturating_sub(start.0).min(PAGEBLOCK_PAGES);
            if used < PAGEBLOCK_PAGES {
                let left = Bits(core::array::from_fn(|n| !range_in_word(n, 0, used)));
                self.set_bits(start, list, None, left);
            }
            start = start.add(PAGEBLOCK_PAGES);
        }
        self.account(list, -(most as i64));
        Some(keep(last.start..end))
    }
}
