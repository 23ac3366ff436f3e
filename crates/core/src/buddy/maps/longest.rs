//! Runs of free frames of any length, for requests that need few runs instead of blocks of one order.

use core::ops::{Range, RangeInclusive};

use super::{AT_LEAST, Buddy};
use crate::frame::{Bits, OpenHead, WORDS, range_in_word};
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Most pageblocks taken from in one hold of the zone lock.
const MOST: usize = 16;

/// A search for runs in a map, from its start on.
struct Search {
    order: Order,
    /// The next word to look at.
    next: usize,
    /// Starts of free blocks in the words before it, in the last ones that a block can fill.
    found: u64,
}

impl Search {
    /// The next free block of the order, which is below the pageblock order, with the free frames around it: numbers of
    /// the first frame and of the one after the last.
    #[inline]
    fn next(&mut self, bits: &Bits) -> Option<(u64, u64)> {
        let words = Bits::words_of(self.order);
        while self.found == 0 {
            if self.next == WORDS {
                return None;
            }
            self.found = bits.starts(self.next, self.order);
            self.next += words;
        }
        let n = self.next - words;
        let (word, bit) = (bits.0[n], self.found.trailing_zeros());
        let at = n as u64 * 64 + u64::from(bit);
        let below = (word << 1 << (63 - bit)).leading_ones();
        let mut first = at - u64::from(below);
        let mut before = if below == bit { n } else { 0 };
        while before > 0 {
            before -= 1;
            let free = bits.0[before].leading_ones();
            first -= u64::from(free);
            before = if free < 64 { 0 } else { before };
        }
        let above = (word >> bit).trailing_ones();
        let mut end = at + u64::from(above);
        if bit + above < 64 {
            self.found &= u64::MAX << (bit + above);
            return Some((first, end));
        }
        self.found = 0;
        for &word in &bits.0[n + 1..] {
            let free = word.trailing_ones();
            end += u64::from(free);
            if free < 64 {
                break;
            }
        }
        Some((first, end))
    }
}

impl Bits {
    /// Takes the frames from number `first` to before `end`.
    #[inline]
    fn clear(&mut self, first: u64, end: u64) {
        let (from, to) = (first as usize / 64, (end as usize - 1) / 64);
        let (low, high) = (u64::MAX << (first % 64), u64::MAX >> (63 - (end - 1) % 64));
        if from == to {
            self.0[from] &= !(low & high);
        } else {
            self.0[from] &= !low;
            self.0[from + 1..to].fill(0);
            self.0[to] &= !high;
        }
    }
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Takes runs of free frames from pageblocks of type `list`: at most `most` frames in at most `room` runs.
    /// Pageblocks with a free block of the largest of `orders` come first, then those of the next smaller one. Calls
    /// `keep` for each run. Returns the number of frames; 0 only if there is no such pageblock. Only with maps.
    pub(crate) fn take_runs(
        &mut self,
        orders: RangeInclusive<Order>,
        list: Migratetype,
        most: u64,
        room: usize,
        mut keep: impl FnMut(Range<Pfn>),
    ) -> u64 {
        let mut now = (most, room);
        let (least, mut order) = orders.into_inner();
        let mut pageblocks = 0;
        while pageblocks < MOST && now.0 > 0 && now.1 > 0 {
            let next = match order >= PAGEBLOCK_ORDER {
                true => self.take_wholes_as_runs(order, list, now, &mut keep),
                false => self.take_runs_of_one(order, list, now, &mut keep),
            };
            match (next, order.down()) {
                (Some(next), _) => (now, pageblocks) = (next, pageblocks + 1),
                (None, Some(smaller)) if order > least => order = smaller,
                (None, _) => break,
            }
        }
        self.pending.touched = true;
        most - now.0
    }

    /// Takes from one pageblock, of those with a block of `order` the fullest. Where many more runs are needed than it
    /// has of these, also the runs around blocks of half that size: a second pageblock costs more than a few runs.
    /// Returns the frames and runs still to find.
    fn take_runs_of_one(
        &mut self,
        order: Order,
        list: Migratetype,
        mut now: (u64, usize),
        keep: &mut impl FnMut(Range<Pfn>),
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
        let least = match order.down() {
            Some(half) if now.0 >= 4 * order.pages() && now.1 as u64 >= now.0 >> half.get() => half,
            _ => order,
        };
        let (wanted, mut left) = (now.0, before);
        let mut search = Search { order: least, next: 0, found: 0 };
        // Order of the largest block that can be left.
        let mut largest = old.map_or(PAGEBLOCK_ORDER.get(), OpenHead::largest);
        while now.0 > 0 && now.1 > 0 {
            let Some((mut first, mut end)) = search.next(&left) else {
                largest = least.get().saturating_sub(1);
                break;
            };
            if end - first > now.0 {
                // From the end with the better alignment: the run has fewer blocks then.
                match end.trailing_zeros() > first.trailing_zeros() {
                    true => first = end - now.0,
                    false => end = first + now.0,
                }
            }
            left.clear(first, end);
            keep(start.add(first)..start.add(end));
            now = (now.0 - (end - first), now.1 - 1);
        }
        let taken = wanted - now.0;
        if taken == 0 {
            // Its bin was wrong.
            self.rebuild();
            return None;
        }
        // Of a pageblock that was free as a whole no word is set.
        let map = self.map(start);
        for (n, &word) in left.0.iter().enumerate() {
            if old.is_none() || word != before.0[n] {
                map.set_word(n, word);
            }
        }
        self.account(list, -(taken as i64));
        let free = old.map_or(PAGEBLOCK_PAGES as u32, OpenHead::free).saturating_sub(taken as u32);
        self.refile(start, list, old, (free, left.largest_upto(largest).unwrap_or(0)), false);
        Some(now)
    }

    /// Takes whole pageblocks, or pairs of them, adjacent ones as one run; of the last one only the frames needed.
    fn take_wholes_as_runs(
        &mut self,
        order: Order,
        list: Migratetype,
        (most, mut room): (u64, usize),
        keep: &mut impl FnMut(Range<Pfn>),
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
                room -= 1;
            }
        });
        let last = run?;
        let taken = wholes.blocks(order) << order.get();
        if blocks > 0 {
            self.account(list, -(taken as i64));
            keep(last);
            return Some((most - taken, room - 1));
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
        keep(last.start..end);
        Some((0, room - 1))
    }
}
