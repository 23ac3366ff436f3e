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
            && left.0 != 0
            && left.1 != 0
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
    use crate::buddy::Placement;
    use crate::buddy::testing::Store;
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
        for _ in 0..400 {
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

    const NONE: Range<Pfn> = Pfn(0)..Pfn(0);

    fn order(n: u8) -> Order {
        Order::new(n).expect("an order")
    }

    /// Frames of a run of pageblocks, as numbers from the store's first.
    fn numbers(runs: &[Range<Pfn>]) -> Vec<Range<u64>> {
        let number = |pfn: Pfn| pfn.0 - Store::pageblock(0).0;
        runs.iter().map(|run| number(run.start)..number(run.end)).collect()
    }

    /// A run of eight frames, one of four and one of two.
    fn store_of_three_runs() -> Store {
        let mut store = Store::new(2, true);
        store.free(1, (8..16).chain(20..24).chain(32..34));
        store
    }

    /// The longest runs, or also those that are half as long: where four times as much is wanted, and there is room for
    /// it in such runs.
    #[test]
    fn where_much_is_wanted_shorter_runs_are_taken_too() {
        for (most, room, left) in [
            (32, 8, Some((20, 5))),
            (31, 8, Some((23, 7))),
            (32, 7, Some((24, 6))),
            (8, 1, Some((0, 0))),
            (7, 1, Some((0, 1))),
            (5, 3, Some((0, 3))),
        ] {
            let (mut store, mut picked) = (store_of_three_runs(), Picked::new());
            let orders = Order::ZERO..=order(8);
            let found = store.with(|buddy| {
                buddy.take_runs_of_one(orders, Migratetype::Movable, (most, room), &mut picked)
            });
            assert_eq!(found, left, "{most} frames, room for {room}");
            assert_eq!(store.check(), 14 - (most - found.map_or(0, |(left, _)| left)));
            let mut out = [NONE; 4];
            let len = picked.write(&mut out);
            let expected = [520..528.min(520 + most), 532..536];
            assert_eq!(numbers(&out[..len]), expected[..if left == Some((20, 5)) { 2 } else { 1 }]);
        }
    }

    /// Of orders that no pageblock has, nothing; where the largest of them is wanted, a pageblock that is free as a
    /// whole.
    #[test]
    fn runs_have_at_least_the_least_order() {
        for (orders, first) in [
            (order(3)..=order(3), Some(8..16)),
            (order(4)..=order(8), None),
            (order(3)..=order(8), Some(8..16)),
            (order(0)..=order(1), Some(8..16)),
        ] {
            let mut store = Store::new(3, true);
            store.free(0, (8..16).chain(20..24));
            let most = 9;
            for has_whole in [false, true] {
                if has_whole {
                    let free = store.free_frames(0);
                    store.free(0, (8..16).chain(20..24).filter(|frame| !free.contains(frame)));
                    store.free(2, 0..PAGEBLOCK_PAGES);
                }
                let mut picked = Picked::new();
                let before = store.check();
                let took = store.with(|buddy| {
                    buddy.take_runs(orders.clone(), Migratetype::Movable, (most, 4), &mut picked)
                });
                let mut out = [NONE; 4];
                let len = picked.write(&mut out);
                let runs = numbers(&out[..len]);
                assert_eq!(runs.iter().map(|run| run.end - run.start).sum::<u64>(), took);
                assert_eq!(store.check(), before - took);
                let is_open = *orders.end() <= order(3);
                let expected = if has_whole && !is_open { Some(1024..1033) } else { first.clone() };
                assert_eq!(runs.first(), expected.as_ref(), "{orders:?}, {has_whole}");
                assert_eq!(store.with(|buddy| buddy.counts().rebuilt_bins), 0);
            }
        }
    }

    /// Any free frames in twelve pageblocks, any request. What comes was free and is no longer; no more comes than is
    /// wanted and has room, and nothing only if there is nothing.
    #[test]
    fn runs_of_any_free_frames_are_taken_once() {
        let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
        let most_picked = &mut 0;
        for round in 0..300 {
            let mut store = Store::new(12, true);
            let few = round % 3 == 0;
            for n in 0..12 {
                let (from, len) = (random.below(500), if few { 1 } else { 1 + random.below(40) });
                let mask = random.next() | if few { 1 } else { random.next() };
                let frames = from..(from + len).min(512);
                store.free(n, frames.filter(|frame| few || mask >> (frame % 64) & 1 != 0));
            }
            let before: Vec<Vec<u64>> = (0..12).map(|n| store.free_frames(n)).collect();
            let (least, up) = (random.below(3) as u8, random.below(6) as u8);
            let orders = order(least)..=order(least + up);
            let (most, room) = (1 + random.below(200), 1 + random.below(20) as usize);
            let has_block = store.with(|buddy| {
                Order::all().any(|order| {
                    order >= *orders.start()
                        && buddy.has_bits(order.min(Order::from_bits(8)), Migratetype::Movable)
                })
            });
            let mut picked = Picked::new();
            let took =
                store.with(|buddy| buddy.take_runs(orders, Migratetype::Movable, (most, room), &mut picked));
            assert_eq!(took == 0, !has_block, "{least}");
            *most_picked = picked.len.max(*most_picked);
            let mut out = [NONE; 64];
            let len = picked.write(&mut out);
            let runs = numbers(&out[..len]);
            assert!(took <= most && len <= room, "{took} of {most}, {len} of {room}");
            assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "{runs:?}");
            let frames: Vec<u64> = runs.into_iter().flatten().collect();
            assert_eq!(frames.len() as u64, took);
            for (n, before) in (0..12).zip(before) {
                let is_taken = |frame: &u64| frames.contains(&(n * PAGEBLOCK_PAGES + frame));
                let left: Vec<u64> = before.iter().copied().filter(|frame| !is_taken(frame)).collect();
                assert_eq!(store.free_frames(n), left);
            }
            store.check();
            assert_eq!(store.with(|buddy| buddy.counts().rebuilt_bins), 0);
        }
        assert_eq!(*most_picked, MOST, "one hold takes from no more");
    }

    /// Any of 64 pageblocks free as a whole, any request for runs of them.
    #[test]
    fn whole_pageblocks_are_taken_as_runs() {
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for _ in 0..400 {
            let mut store = Store::new(64, false);
            let free = random.next() & random.next() | random.next() & 0xff;
            let list = Migratetype::Movable;
            let is_free = |n: u64| free >> n & 1 != 0;
            store.with(|buddy| {
                let put = |n| buddy.free(Store::pageblock(n), PAGEBLOCK_ORDER, Placement::Likely);
                (0..64).filter(|&n| is_free(n)).for_each(put);
            });
            let order = [PAGEBLOCK_ORDER, Order::from_bits(10)][random.below(2) as usize];
            let any_single = (0..64).any(|n| is_free(n) && !is_free(n ^ 1));
            let of_pairs = order > PAGEBLOCK_ORDER || !any_single;
            let pages = order.pages() / PAGEBLOCK_PAGES;
            let starts: Vec<u64> =
                (0..64).filter(|&n| is_free(n) && is_free(n ^ 1) == of_pairs && n % pages == 0).collect();
            let (most, room) = (1 + random.below(6000), 1 + random.below(5) as usize);
            let mut out: Vec<_> = (0..room).map(|_| NONE).collect();
            let blocks = (most >> order.get()).min(room as u64);
            let count = (blocks.max(1) as usize).min(starts.len());
            let taken = (count as u64 * order.pages()).min(most);
            let frames = starts[..count]
                .iter()
                .flat_map(|n| (0..order.pages()).map(move |at| n * PAGEBLOCK_PAGES + at));
            let expected = runs_of(frames.take(taken as usize).map(|n| Store::pageblock(0).0 + n).collect());
            let before = store.check();
            let (len, got) = store.with(|buddy| buddy.take_wholes_as_runs(order, list, most, &mut out));
            assert_eq!(
                (&out[..len], got),
                (&expected[..], taken),
                "{most} of order {order} in {room} runs of {free:#b}"
            );
            assert_eq!(store.check(), before - taken);
        }
    }
}
