//! Runs of free frames of any length, for requests that need few runs instead of blocks of one order.

use core::ops::{Range, RangeInclusive};

use super::{AT_LEAST, Buddy, CLASSES};
use crate::frame::{Bits, OpenHead, range_in_word};
use crate::platform::Platform;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Most pageblocks taken from in one hold of the zone lock.
const MOST: usize = 8;

/// The largest order of a free block that the pageblocks of some bins have.
fn largest_in(bins: u64) -> Option<Order> {
    bins.checked_ilog2().map(|bin| Order::from_bits(u64::from(bin) / CLASSES as u64))
}

/// Frames taken from open pageblocks in one hold of the zone lock.
pub(crate) struct Picked {
    /// The first `len` are valid: the pageblocks, ascending, and their frames.
    pageblocks: [(Pfn, Bits); MOST],
    len: usize,
}

impl Picked {
    pub(crate) const fn new() -> Self {
        Self { pageblocks: [(Pfn(0), Bits::NONE); MOST], len: 0 }
    }

    fn add(&mut self, start: Pfn, bits: Bits) {
        let mut at = self.len;
        while at > 0 && self.pageblocks[at - 1].0 > start {
            at -= 1;
        }
        if at > 0 && self.pageblocks[at - 1].0 == start {
            let before = &mut self.pageblocks[at - 1].1;
            return before.0.iter_mut().zip(bits.0).for_each(|(word, more)| *word |= more);
        }
        self.pageblocks.copy_within(at..self.len, at + 1);
        self.pageblocks[at] = (start, bits);
        self.len += 1;
    }

    /// Writes the runs to `out`, ascending and apart. Returns their number.
    pub(crate) fn write(&self, out: &mut [Range<Pfn>]) -> usize {
        let mut len = 0;
        for (start, bits) in &self.pageblocks[..self.len] {
            // Whether the last run reaches up to this word: of this pageblock, or of the one after it.
            let mut goes_on = len > 0 && out[len - 1].end == *start;
            for (n, &word) in bits.0.iter().enumerate() {
                let first = start.add(n as u64 * 64);
                let (mut firsts, mut lasts) = (word & !(word << 1), word & !(word >> 1));
                if goes_on && word & 1 != 0 {
                    out[len - 1].end = first.add(u64::from(lasts.trailing_zeros()) + 1);
                    (firsts, lasts) = (firsts & (firsts - 1), lasts & (lasts - 1));
                }
                while firsts != 0 {
                    let end = first.add(u64::from(lasts.trailing_zeros()) + 1);
                    out[len] = first.add(u64::from(firsts.trailing_zeros()))..end;
                    (firsts, lasts) = (firsts & (firsts - 1), lasts & lasts.wrapping_sub(1));
                    len += 1;
                }
                goes_on = word >> 63 != 0;
            }
        }
        len
    }
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Takes runs of free frames from open pageblocks of type `list`, or from whole ones if none has a block of the
    /// largest of `orders`, which are below the pageblock order: at most `most` frames in at most `room` runs.
    /// Pageblocks with larger blocks come first. Returns the number of frames; 0 only if there is no block of these
    /// orders, or the bins were damaged. Only with maps.
    pub(crate) fn take_runs(
        &mut self,
        orders: RangeInclusive<Order>,
        list: Migratetype,
        (most, room): (u64, usize),
        picked: &mut Picked,
    ) -> u64 {
        let mut left = (most, room as u64);
        while picked.len < MOST
            && left.0 > 0
            && left.1 > 0
            && let Some(now) = self.take_runs_of_one(orders.clone(), list, left, picked)
        {
            left = now;
        }
        self.pending.touched = true;
        most - left.0
    }

    /// Takes from one pageblock, of those with a block as large as suffices the fullest: the runs that are as long, or,
    /// where many more are needed than it has of these, half as long: a second pageblock costs more than a few runs.
    /// Returns the frames still to find, and the runs for which there is room at least.
    fn take_runs_of_one(
        &mut self,
        orders: RangeInclusive<Order>,
        list: Migratetype,
        (most, room): (u64, u64),
        picked: &mut Picked,
    ) -> Option<(u64, u64)> {
        let (least, mut order) = orders.into_inner();
        let occupied = self.occupied(list);
        let is_none_open = occupied & AT_LEAST[order.index()] == 0;
        let (start, old, before) = if is_none_open && let Some(start) = self.unlink_closed(list) {
            (start, None, Bits::ALL)
        } else {
            order = order.min(largest_in(occupied)?);
            let fit = (occupied & AT_LEAST[order.index()]).trailing_zeros() as usize;
            let start = self.pageblock_of(self.cold.bins.ends[list as usize][fit].get().first);
            let old = self.frames.open_head(start);
            let bits = if old.is_some() { self.map(start).bits() } else { Bits::NONE };
            (start, old, bits)
        };
        if order < least {
            return None;
        }
        let shortest = match order.down() {
            Some(half) if most >= 4 * order.pages() && room >= most >> half.get() => half,
            _ => order,
        };
        let long = before.in_runs_of(shortest);
        let (mut taken, mut count) = (long, long.count());
        // Order of the largest block that can be left.
        let mut largest = shortest.get().saturating_sub(1);
        if count > most || count >> shortest.get() > room {
            taken = long.first_runs(count, most, room);
            count = taken.count();
            largest = old.map_or(PAGEBLOCK_ORDER.get(), OpenHead::largest);
        }
        if count == 0 {
            // Its bin was wrong.
            self.rebuild();
            return None;
        }
        let mut left = before;
        // Of a pageblock that was free as a whole no word is set.
        let map = self.map(start);
        for (n, word) in left.0.iter_mut().enumerate() {
            if old.is_none() || taken.0[n] != 0 {
                *word &= !taken.0[n];
                map.set_word(n, *word);
            }
        }
        self.account(list, -(count as i64));
        let free = old.map_or(PAGEBLOCK_PAGES as u32, OpenHead::free).saturating_sub(count as u32);
        self.refile(start, list, old, (free, left.largest_upto(largest).unwrap_or(0)), false);
        picked.add(start, taken);
        Some((most - count, room.saturating_sub(count >> shortest.get())))
    }

    /// Takes whole pageblocks, or pairs of them, of one word of their map, for at most `most` frames; if a block is
    /// larger than that, the first frames of one. Writes the runs to `out`, ascending and apart, as far as there is
    /// room. Returns their number, and that of the frames; 0 only if there is no such pageblock. Only with maps.
    pub(crate) fn take_wholes_as_runs(
        &mut self,
        order: Order,
        list: Migratetype,
        most: u64,
        out: &mut [Range<Pfn>],
    ) -> (usize, u64) {
        let blocks = (most >> order.get()).min(out.len() as u64);
        let Some(wholes) = self.take_wholes(order, list, blocks.max(1)) else { return (0, 0) };
        let taken = (wholes.blocks(order) << order.get()).min(most);
        self.account(list, -(taken as i64));
        let mut len = 0;
        wholes.each(order, |pfn| {
            if len == 0 || out[len - 1].end != pfn {
                out[len].start = pfn;
                len += 1;
            }
            out[len - 1].end = pfn.add(order.pages());
        });
        if blocks == 0 {
            // One block, larger than the rest of the request.
            let start = out[0].start;
            for n in 0..order.pages() / PAGEBLOCK_PAGES {
                let used = most.saturating_sub(n * PAGEBLOCK_PAGES).min(PAGEBLOCK_PAGES);
                if used < PAGEBLOCK_PAGES {
                    let left = Bits(core::array::from_fn(|n| !range_in_word(n, 0, used)));
                    self.set_bits(start.add(n * PAGEBLOCK_PAGES), list, None, left);
                }
            }
            out[0].end = start.add(most);
        }
        (len, taken)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::policy::testing::Xorshift;

    /// The runs of frames, one by one.
    fn runs_of(mut frames: Vec<u64>) -> Vec<Range<Pfn>> {
        frames.sort_unstable();
        let mut runs: Vec<Range<Pfn>> = Vec::new();
        for frame in frames {
            match runs.last_mut() {
                Some(run) if run.end == Pfn(frame) => run.end = Pfn(frame + 1),
                _ => runs.push(Pfn(frame)..Pfn(frame + 1)),
            }
        }
        runs
    }

    /// Pageblocks in any order, some of them in two parts, sparse, full at their ends or as a whole.
    #[test]
    fn what_was_picked_is_written_as_ascending_runs() {
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for _ in 0..2000 {
            let (mut picked, mut frames) = (Picked::new(), Vec::new());
            while picked.len < 4 {
                let start = random.below(6) * PAGEBLOCK_PAGES;
                let ends = random.below(2) == 1;
                let word = |n: usize, random: u64| match random % 4 {
                    0 => u64::MAX,
                    1 => 0,
                    2 if ends => 3 | 3 << 62,
                    _ => random.rotate_left(n as u32),
                };
                let bits: [u64; 8] = core::array::from_fn(|n| word(n, random.next()));
                let is_new = |frame: &u64| !frames.contains(frame);
                let new: Vec<u64> = (0..PAGEBLOCK_PAGES)
                    .filter(|frame| bits[(frame / 64) as usize] >> (frame % 64) & 1 != 0)
                    .map(|frame| start + frame)
                    .filter(is_new)
                    .collect();
                let mut part = Bits::NONE;
                new.iter()
                    .for_each(|frame| part.0[(frame % PAGEBLOCK_PAGES / 64) as usize] |= 1 << (frame % 64));
                picked.add(Pfn(start), part);
                frames.extend(new);
            }
            let expected = runs_of(frames);
            let mut out = [const { Pfn(0)..Pfn(0) }; 4 * 256];
            let len = picked.write(&mut out);
            assert_eq!(out[..len], expected);
        }
    }
}
