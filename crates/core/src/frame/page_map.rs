//! Free frames of a pageblock as bits: one cache line for 512 frames.
//!
//! Bit `n` is set if frame `n` of the pageblock is free and on no free list of its own. A block of order `k` starts at
//! a multiple of `2^k`, so the free blocks of a pageblock are its aligned runs of set bits, each as large as it goes:
//! freeing neighbours merges them without further ado.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use super::{FrameMap, FreeHead};
use crate::platform::{Platform, Word};
use crate::policy::fallback::may_merge;
use crate::units::{Migratetype, NR_ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Words of a map.
pub(crate) const WORDS: usize = (PAGEBLOCK_PAGES / 64) as usize;
/// Order of the block that fills a word.
const WORD_ORDER: u8 = 6;

/// The free frames of one pageblock. All zero for a pageblock that is one free block, or has none.
#[repr(C, align(64))]
pub struct PageMap<P: Platform> {
    words: [P::Word; WORDS],
}

impl<P: Platform> PageMap<P> {
    /// The map of a pageblock without free frames. With 8-byte words it is all zeroes.
    #[must_use]
    pub fn new() -> Self {
        Self { words: core::array::from_fn(|_| P::Word::new(0)) }
    }

    /// The word at a place.
    #[inline]
    pub(super) fn at(&self, n: usize) -> &P::Word {
        &self.words[n]
    }

    /// A word. A racy read, unless the caller holds the zone lock.
    #[inline]
    pub(crate) fn word(&self, n: usize) -> u64 {
        self.words[n].load(Relaxed)
    }

    /// Sets a word. Under the zone lock.
    #[inline]
    pub(crate) fn set_word(&self, n: usize, bits: u64) {
        self.words[n].store(bits, Relaxed);
    }

    /// All words.
    #[inline]
    pub(crate) fn bits(&self) -> Bits {
        let mut bits = Bits::NONE;
        for (n, word) in bits.0.iter_mut().enumerate() {
            *word = self.word(n);
        }
        bits
    }
}

impl<P: Platform> Default for PageMap<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> fmt::Debug for PageMap<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free frames", self.bits().count())
    }
}

/// By order: the bits at which a block of that order may start in a word.
const STARTS: [u64; WORD_ORDER as usize + 1] = [
    u64::MAX,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The bits of a word at which a whole free block of order `order`, at most 6, starts.
#[inline]
pub(crate) const fn starts(word: u64, order: u8) -> u64 {
    let to_last = (1_u32 << order) - 1;
    let (taken, not_last) = (!word, !(STARTS[order as usize] << to_last));
    // If another bit of a block than its last one is taken, a carry reaches that; none leaves the block.
    let some_taken = ((taken & not_last) + not_last) | taken | not_last;
    !some_taken >> to_last
}

/// The lowest `most` of some bits; at least one.
#[inline]
pub(crate) const fn lowest(bits: u64, most: u64) -> u64 {
    if most == 1 {
        return bits & bits.wrapping_neg();
    }
    if most >= 64 || bits.count_ones() as u64 <= most {
        return bits;
    }
    let (mut rest, mut n) = (bits, 0);
    while n < most {
        rest &= rest - 1;
        n += 1;
    }
    bits & !rest
}

/// The bits that `len` frames from number `from` on have in word `n` of a map.
#[inline]
pub(crate) fn range_in_word(n: usize, from: u64, len: u64) -> u64 {
    let (start, end) = (n as u64 * 64, n as u64 * 64 + 64);
    let (first, last) = (from.max(start), end.min(from + len));
    if first >= last {
        return 0;
    }
    let ones = last - first;
    let run = if ones == 64 { u64::MAX } else { (1 << ones) - 1 };
    run << (first - start)
}

/// The bits that a block of `order` has which starts with the first bit of a word; `None` if it fills a word or more.
#[inline]
pub(crate) const fn block_at_0(order: u8) -> Option<u64> {
    const ONES: [u64; WORD_ORDER as usize] = [1, 3, 0xf, 0xff, 0xffff, 0xffff_ffff];
    if order < WORD_ORDER { Some(ONES[order as usize]) } else { None }
}

/// The words of a map, by value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bits(pub(crate) [u64; WORDS]);

impl Bits {
    pub(crate) const ALL: Self = Self([u64::MAX; WORDS]);
    pub(crate) const NONE: Self = Self([0; WORDS]);

    /// Free frames.
    #[inline]
    pub(crate) fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Free frames in the place of a block of `order`, whose first frame has number `from`.
    pub(crate) fn count_in(&self, from: u64, order: Order) -> u64 {
        let first = (from / 64) as usize;
        let words = self.0.iter().enumerate().skip(first).take(Self::words_of(order));
        words.map(|(n, word)| u64::from((word & range_in_word(n, from, order.pages())).count_ones())).sum()
    }

    /// Words that a block of `order` fills, or is in.
    #[inline]
    pub(crate) const fn words_of(order: Order) -> usize {
        1 << order.get().saturating_sub(WORD_ORDER)
    }

    /// The bits of word `n` at which whole free blocks of `order`, below the pageblock order, start; 1 if a block fills
    /// all its words from there on.
    #[inline]
    pub(crate) fn starts(&self, n: usize, order: Order) -> u64 {
        match Self::words_of(order) {
            1 => starts(self.0[n], order.get()),
            words => u64::from(self.0[n..][..words].iter().all(|&word| word == u64::MAX)),
        }
    }

    /// Takes the blocks of `order` that start at the bits `starts` of word `n`.
    #[inline]
    pub(crate) fn take(&mut self, n: usize, order: Order, starts: u64) {
        if order.get() < WORD_ORDER {
            self.0[n] &= !(starts << (1_u32 << order.get())).wrapping_sub(starts);
        } else {
            self.0[n..][..Self::words_of(order)].fill(0);
        }
    }

    /// The frames that are in runs of at least as many frames as a block of `order` has, below the pageblock order.
    #[inline]
    pub(crate) fn in_runs_of(mut self, order: Order) -> Self {
        let words = &mut self.0;
        let (small, all) = (order.get().min(WORD_ORDER), order.get());
        // First the frames with so many free ones after them, each step twice as many as the one before;
        for by in (0..small).map(|k| 1_u32 << k) {
            for n in 0..WORDS - 1 {
                words[n] &= (words[n] >> by) + (words[n + 1] << (64 - by));
            }
            words[WORDS - 1] &= words[WORDS - 1] >> by;
        }
        for by in (small..all).map(|k| 1_usize << (k - small)) {
            (0..WORDS).for_each(|n| words[n] &= words.get(n + by).copied().unwrap_or(0));
        }
        // then these with so many more after them.
        for by in (small..all).map(|k| 1_usize << (k - small)) {
            (by..WORDS).rev().for_each(|n| words[n] |= words[n - by]);
        }
        for by in (0..small).map(|k| 1_u32 << k) {
            for n in (1..WORDS).rev() {
                words[n] |= words[n] << by;
                words[n] |= words[n - 1] >> (64 - by);
            }
            words[0] |= words[0] << by;
        }
        self
    }

    /// The bits of word `n` with which a run starts.
    #[inline]
    fn firsts(&self, n: usize) -> u64 {
        let before = if n > 0 { self.0[n - 1] >> 63 } else { 0 };
        self.0[n] & !((self.0[n] << 1) + before)
    }

    /// The first runs: at most `most` of its `frames` in at most `room` runs.
    #[inline(never)]
    pub(crate) fn first_runs(mut self, mut frames: u64, most: u64, room: u64) -> Self {
        let count = |word: u64| u64::from(word.count_ones());
        let mut runs: u64 = (0..WORDS).map(|n| count(self.firsts(n))).sum();
        for n in (0..WORDS).rev() {
            let firsts = self.firsts(n);
            if frames - count(self.0[n]) >= most {
                (frames, runs) = (frames - count(self.0[n]), runs - count(firsts));
                self.0[n] = 0;
            }
            while self.0[n] != 0 && (frames > most || runs > room) {
                let last = 1 << self.0[n].ilog2();
                self.0[n] &= !last;
                (frames, runs) = (frames - 1, runs - u64::from(firsts & last != 0));
            }
            if frames <= most && runs <= room {
                break;
            }
        }
        self
    }

    /// Order of the largest free block; `None` if no frame is free. At most the pageblock order.
    pub(crate) fn largest(&self) -> Option<u8> {
        self.largest_upto(PAGEBLOCK_ORDER.get())
    }

    /// Like [`largest`](Self::largest) of a map that has no block larger than `most`.
    pub(crate) fn largest_upto(&self, most: u8) -> Option<u8> {
        if most >= WORD_ORDER {
            let full: u64 = self.0.iter().zip(0..).map(|(&word, n)| u64::from(word == u64::MAX) << n).sum();
            let (pairs, fours) = (full & full >> 1 & 0x55, full & full >> 1 & full >> 2 & full >> 3 & 0x11);
            for (order, starts) in [(9, u64::from(full == 0xff)), (8, fours), (7, pairs), (6, full)] {
                if starts != 0 {
                    return Some(order);
                }
            }
        }
        let most = most.min(WORD_ORDER - 1);
        let mut largest = None;
        for &word in &self.0 {
            if word == 0 {
                continue;
            }
            let (mut whole, mut order) = (word, 0);
            while order < most {
                whole &= whole >> (1_u32 << order) & STARTS[usize::from(order) + 1];
                if whole == 0 {
                    break;
                }
                order += 1;
            }
            largest = largest.max(Some(order));
            if order == most {
                break;
            }
        }
        largest
    }

    /// The largest free block that holds frame number `n`: its first frame's number and its order; `None` if the frame
    /// is not free.
    pub(crate) fn block_at(self, n: u64) -> Option<(u64, u8)> {
        let free = |from: u64, len: u64| {
            (0..WORDS).all(|word| {
                let range = range_in_word(word, from, len);
                self.0[word] & range == range
            })
        };
        let within = |order: u8| free(n >> order << order, 1 << order);
        let order = (0..=PAGEBLOCK_ORDER.get()).take_while(|&order| within(order)).last()?;
        Some((n >> order << order, order))
    }

    /// Adds its free blocks to `found` by order, each as large as it goes. O(words × orders).
    pub(crate) fn count_blocks(self, found: &mut [u64; NR_ORDERS]) {
        let mut larger = u64::from(self == Self::ALL);
        found[PAGEBLOCK_ORDER.index()] += larger;
        for order in (0..PAGEBLOCK_ORDER.get()).rev().filter_map(Order::new) {
            let starts = |n| u64::from(self.starts(n, order).count_ones());
            let whole = (0..WORDS).step_by(Self::words_of(order)).map(starts).sum();
            // Without the halves of larger ones.
            found[order.index()] += whole - 2 * larger;
            larger = whole;
        }
    }
}

impl<'m, P: Platform, M> FrameMap<'m, P, M> {
    /// The bitmaps of free pageblocks.
    #[inline(always)]
    pub(crate) const fn whole_maps(&self) -> &'m [PageMap<P>] {
        self.whole
    }

    /// The type of the bitmap that has the pageblock of `pfn`, if it is free as a whole. Only with maps.
    #[inline]
    pub(crate) fn free_whole(&self, pfn: Pfn) -> Option<Migratetype> {
        let word = self.pageblock(pfn)?.head_word();
        let list = FreeHead::of_order(word, PAGEBLOCK_ORDER)?.list();
        (word == FreeHead::whole(list).word()).then_some(list)
    }

    /// Whether the pageblock of `pfn` and its buddy are free as one block of the largest order. Only with maps.
    pub(crate) fn is_pair(&self, pfn: Pfn) -> bool {
        let buddy = pfn.block_start(PAGEBLOCK_ORDER).buddy(PAGEBLOCK_ORDER);
        let lists = self.free_whole(pfn).zip(self.free_whole(buddy));
        lists.is_some_and(|(list, buddy_list)| may_merge(PAGEBLOCK_ORDER, list, buddy_list))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::frame::Pageblock;
    use crate::platform::machine::Machine;

    /// A few thousand maps of every density, and the corners.
    fn maps() -> impl Iterator<Item = Bits> {
        let mut state = 1_u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32 ^ state << 32).rotate_left((state >> 59) as u32)
        };
        let corners = [Bits::NONE, Bits::ALL];
        let random = (0..3000).map(move |n| {
            Bits(core::array::from_fn(|_| match n % 6 {
                0 => next(),
                1 => next() & next() & next(),
                2 => next() | next() | next(),
                3 => {
                    if next() & 1 == 0 {
                        u64::MAX
                    } else {
                        next() | next() | next() | next()
                    }
                }
                4 => {
                    if next() & 3 == 0 {
                        0
                    } else {
                        u64::MAX
                    }
                }
                _ => u64::MAX << (next() % 64),
            }))
        });
        corners.into_iter().chain(random)
    }

    fn free(bits: Bits, n: u64) -> bool {
        bits.0[(n / 64) as usize] >> (n % 64) & 1 != 0
    }

    /// Said without shifts: whether a block of `order` is free at frame `n`.
    fn whole(bits: Bits, n: u64, order: u8) -> bool {
        n.is_multiple_of(1 << order) && (n..n + (1 << order)).all(|n| free(bits, n))
    }

    #[test]
    fn the_largest_block_is_the_largest_of_all() {
        for bits in maps() {
            let largest = (0..=9).filter(|&k| (0..512).any(|n| n % (1 << k) == 0 && whole(bits, n, k))).max();
            assert_eq!(bits.largest(), largest, "{bits:?}");
            let most = largest.unwrap_or(0);
            assert!((most..=9).all(|most| bits.largest_upto(most) == largest), "{bits:?}");
            assert_eq!(bits.count(), (0..512).filter(|&n| free(bits, n)).count() as u64);
        }
    }

    #[test]
    fn blocks_are_counted_where_no_larger_one_holds_them() {
        for bits in maps().take(600) {
            let (mut found, mut expected) = ([0; NR_ORDERS], [0; NR_ORDERS]);
            bits.count_blocks(&mut found);
            for (order, n) in (0..=9).flat_map(|order| (0..512).map(move |n| (order, n))) {
                let parent = n >> (order + 1) << (order + 1);
                let is_half = order < 9 && whole(bits, parent, order + 1);
                expected[usize::from(order)] += u64::from(whole(bits, n, order) && !is_half);
            }
            assert_eq!(found, expected, "{bits:?}");
        }
    }

    #[test]
    fn what_is_taken_was_free_and_is_no_longer() {
        for (bits, n) in maps().zip(0_u64..) {
            let order = Order::new((n % 9) as u8).expect("an order");
            let fit =
                (0..512).step_by(1 << order.get()).filter(|&n| whole(bits, n, order.get())).count() as u64;
            for most in [1, 2, 7, 63, 512] {
                let (mut left, mut blocks) = (bits, Vec::new());
                for n in (0..8).step_by(Bits::words_of(order)) {
                    let starts = lowest(left.starts(n, order), most - blocks.len() as u64);
                    if starts != 0 {
                        left.take(n, order, starts);
                    }
                    blocks
                        .extend((0..64).filter(|bit| starts >> bit & 1 != 0).map(|bit| n as u64 * 64 + bit));
                    if blocks.len() as u64 == most {
                        break;
                    }
                }
                let taken = blocks.len() as u64;
                assert_eq!(taken, fit.min(most), "{order} of {bits:?}");
                let gone = Bits(core::array::from_fn(|n| bits.0[n] & !left.0[n]));
                assert!(blocks.iter().all(|&n| whole(bits, n, order.get()) && whole(gone, n, order.get())));
                assert_eq!(left.count() + (taken << order.get()), bits.count());
                assert!((0..8).all(|n| left.0[n] & !bits.0[n] == 0));
            }
        }
    }

    /// The runs of a map: first frame, and the one after the last.
    fn runs(bits: Bits) -> Vec<(u64, u64)> {
        let starts = |n: &u64| free(bits, *n) && (*n == 0 || !free(bits, n - 1));
        let end = |first| (first..512).find(|&n| !free(bits, n)).unwrap_or(512);
        (0..512).filter(starts).map(|first| (first, end(first))).collect()
    }

    #[test]
    fn long_runs_are_whole_and_others_are_left() {
        for (bits, n) in maps().take(900).zip(0_u64..) {
            let order = Order::new((n % 9) as u8).expect("an order");
            let long: Vec<_> =
                runs(bits).into_iter().filter(|(first, end)| end - first >= order.pages()).collect();
            assert_eq!(runs(bits.in_runs_of(order)), long, "{order} of {bits:?}");
        }
    }

    #[test]
    fn the_first_runs_are_as_many_frames_as_fit() {
        for bits in maps().take(900) {
            for (most, room) in [(1, 1), (5, 600), (64, 3), (100, 600), (300, 20), (512, 1), (512, 600)] {
                let kept = bits.first_runs(bits.count(), most, room);
                let (mut left, mut expected) = (most, Vec::new());
                for (first, end) in runs(bits).into_iter().take(room as usize) {
                    let len = left.min(end - first);
                    expected.extend((len > 0).then_some((first, first + len)));
                    left -= len;
                }
                assert_eq!(runs(kept), expected, "{most} frames, {room} runs of {bits:?}");
            }
        }
    }

    #[test]
    fn a_block_is_as_many_ones() {
        for order in 0..=9 {
            let ones = range_in_word(0, 0, 1 << order);
            assert_eq!(block_at_0(order), (order < 6).then_some(ones), "{order}");
        }
    }

    #[test]
    fn a_range_lies_in_its_words() {
        for from in (0..512).step_by(7) {
            for len in [1, 2, 63, 64, 65, 128, 512 - from] {
                let len = len.min(512 - from);
                let bits = Bits(core::array::from_fn(|n| range_in_word(n, from, len)));
                assert!((0..512).all(|n| free(bits, n) == (from..from + len).contains(&n)), "{from}, {len}");
            }
        }
    }

    #[test]
    fn a_map_is_as_long_as_its_pageblocks() {
        let maps = [(); 3].map(|()| PageMap::<Machine>::new());
        let pageblocks = [Pageblock::new(), Pageblock::new()];
        let frames =
            |n: usize| FrameMap::<Machine, ()>::new(Pfn(0), &[], &pageblocks[..n], &maps[..2 * n + 1], true);
        assert_eq!((frames(0).len(), frames(0).is_empty()), (0, true));
        assert_eq!((frames(1).len(), frames(1).is_empty()), (512, false));
    }
}
