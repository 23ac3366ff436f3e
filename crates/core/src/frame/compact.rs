//! Metadata without a word per frame ([`Engine::Compact`](crate::config::Engine::Compact)): two bits a frame, 128 bytes
//! a pageblock, which record the free frames and the blocks that callers have.
//!
//! # The words
//! A word has 32 frames. Bit `n` of its lower half and bit `n` of its upper half belong to frame `n`:
//!
//! | upper | lower | |
//! |---|---|---|
//! | 0 | 0 | *none*: inside a block, on a CPU's list, between list and caller, reserved, or never added |
//! | 0 | 1 | free, in an open pageblock |
//! | 1 | 0 | *single*: a block of order 0 that a caller has; or part of the code below |
//! | 1 | 1 | *head*: the first frame of a larger block that a caller has; or part of the code below |
//!
//! A block of order 1 is a head and a none. A block of order 2 to 8 is a *code* in its first four frames: a head; then
//! `order − 2`, with its highest bit in the lower half of the second frame, whose upper bit is set, and the other two
//! bits in the upper bits of the third and the fourth. All its other frames are none. So four frames, which are a byte,
//! record which block starts at each of them; no bits outside are read.
//!
//! Blocks of order 9 and 10 have their head word in the pageblock's descriptor, as with words.
//!
//! # Who writes
//! The bits of free frames: the holder of the zone lock. The bits of a block between list and caller: the CPU that has
//! it. The bits of a block that a caller has: the CPU that frees it, which compares the code and clears it in one step.
//! So of two CPUs that free a block at the same instant one is refused, and so is every later free, while the block is
//! on a list and when it is free. Bits of all three share words: every write of a word is an atomic read-modify-write.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::page_map::{Bits, PageMap, WORDS};
use super::{FrameMap, State};
use crate::platform::{Platform, Word, update};
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Frames of a word.
const FRAMES: u64 = 32;
/// First bit of the upper half.
const UPPER: u32 = 32;

/// The free frames of a pageblock, in either form of metadata.
pub(crate) enum Map<'m, P: Platform> {
    /// A bit for each frame.
    Free(&'m PageMap<P>),
    /// Two bits for each frame: a map of the first half of the pageblock, and one of the second.
    #[cfg_attr(not(feature = "settings"), expect(dead_code, reason = "no value of it can be made"))]
    Compact(&'m [PageMap<P>; 2], Possible),
}

/// Without the feature `settings` there is no value of this type, and so no such map.
#[derive(Clone, Copy)]
pub(crate) enum Possible {
    #[cfg(feature = "settings")]
    Yes,
}

impl<'m, P: Platform> Map<'m, P> {
    /// The free frames among 64. A racy read, unless the caller holds the zone lock.
    #[inline]
    pub(crate) fn word(&self, n: usize) -> u64 {
        match self {
            Self::Free(map) => map.word(n),
            Self::Compact(halves, _) => {
                let [low, high] = words_of(halves, n);
                free(low.load(Relaxed)) + (free(high.load(Relaxed)) << FRAMES)
            }
        }
    }

    /// Sets the free frames among 64. Under the zone lock; the caller must have the frames that were not free before.
    #[inline]
    pub(crate) fn set_word(&self, n: usize, bits: u64) {
        match self {
            Self::Free(map) => map.set_word(n, bits),
            Self::Compact(halves, _) => {
                let [low, high] = words_of(halves, n);
                set_free(low, bits & u64::from(u32::MAX));
                set_free(high, bits >> FRAMES);
            }
        }
    }

    /// Sets the free frames of some words to those that `bits` has there.
    #[inline]
    pub(crate) fn set_words(&self, words: Range<usize>, bits: &Bits) {
        for n in words {
            self.set_word(n, bits.0[n]);
        }
    }

    /// All free frames.
    #[inline]
    pub(crate) fn bits(&self) -> Bits {
        match self {
            Self::Free(map) => map.bits(),
            Self::Compact(..) => Bits(core::array::from_fn(|n| self.word(n))),
        }
    }

    /// Whether the frame is free.
    #[inline]
    pub(crate) fn has(&self, pfn: Pfn) -> bool {
        let n = pfn.0 % PAGEBLOCK_PAGES;
        self.word((n / 64) as usize) >> (n % 64) & 1 != 0
    }
}

/// The two words of the `n`-th 64 frames of a pageblock.
#[inline]
fn words_of<P: Platform>(halves: &[PageMap<P>; 2], n: usize) -> [&P::Word; 2] {
    let half = &halves[n * 2 / WORDS];
    let at = n * 2 % WORDS;
    [half.at(at), half.at(at + 1)]
}

/// The free frames of a word.
#[inline]
const fn free(word: u64) -> u64 {
    word & !(word >> UPPER) & u32::MAX as u64
}

/// Changes which frames of a word are free. Bits of other frames may change at the same time.
#[inline]
fn set_free(word: &impl Word, bits: u64) {
    let old = free(word.load(Relaxed));
    let (add, remove) = (bits & !old, old & !bits);
    if add != remove {
        // Adds bits that are 0 and subtracts bits that are 1, so there is no carry.
        let old = word.fetch_add(add.wrapping_sub(remove), Relaxed);
        debug_assert!(old & (add | add << UPPER) == 0, "a frame that a caller has is freed");
    }
}

/// The bits of a block of `order` that a caller has, in the byte of four frames whose first the block starts at: the
/// lower bits, and from bit 4 on the upper bits.
const fn code(order: Order) -> u64 {
    match order.get() {
        0 => 0b0001_0000,
        1 => 0b0001_0001,
        large => {
            let n = large as u64 - 2;
            0b0011_0001 + ((n >> 2 & 1) << 1) + ((n >> 1 & 1) << 6) + ((n & 1) << 7)
        }
    }
}

/// Like [`code`], but within the word, for a block whose first frame has number `at`.
#[inline]
const fn code_in_word(order: Order, at: u64) -> u64 {
    let code = code(order);
    ((code & 0xf) << at) + ((code >> 4) << (UPPER as u64 + at))
}

/// Order of the block that a caller has and that starts with frame number `at` of a word; `None` if no block does.
#[inline]
fn starts(word: u64, at: u64) -> Option<Order> {
    let four = at & !3;
    let (lower, upper) = (word >> four & 0xf, word >> (u64::from(UPPER) + four) & 0xf);
    let heads = lower & upper;
    let n = at & 3;
    if heads & 1 != 0 && upper & 2 != 0 {
        let order = 2 + (lower >> 1 & 1) * 4 + (upper >> 2 & 1) * 2 + (upper >> 3 & 1);
        return (n == 0 && order < u64::from(PAGEBLOCK_ORDER.get())).then(|| Order::from_bits(order));
    }
    if heads >> (n & 2) & 1 != 0 {
        return (n & 1 == 0).then(|| Order::ZERO.up());
    }
    ((upper & !lower) >> n & 1 != 0).then_some(Order::ZERO)
}

/// The maps of an allocator with compact metadata, as records of the blocks that callers have. All frames must be in
/// the map.
impl<'m, P: Platform, M> FrameMap<'m, P, M> {
    /// Whether a block of this order has a head word. If not, bits record which blocks callers have.
    #[inline]
    pub(crate) fn has_word(&self, order: Order) -> bool {
        !self.is_compact() || order >= PAGEBLOCK_ORDER
    }

    /// The word of a frame, and the frame's number in it.
    #[inline]
    fn owner_word(&self, pfn: Pfn) -> (&'m P::Word, u64) {
        let frame = pfn.0 - self.base.0;
        let word = (frame / FRAMES) as usize;
        (self.maps[word / WORDS].at(word % WORDS), frame % FRAMES)
    }

    /// Order of the block that a caller has and that starts with a frame. A racy read.
    #[inline]
    fn handed_out(&self, pfn: Pfn) -> Option<Order> {
        let (word, at) = self.owner_word(pfn);
        starts(word.load(Acquire), at)
    }

    /// Whether a caller has the block of `order`, which has no head word. A racy read.
    pub(crate) fn is_handed_out(&self, pfn: Pfn, order: Order) -> bool {
        pfn.is_aligned(order) && self.handed_out(pfn) == Some(order)
    }

    /// Takes a block without a head word from its caller for the calling CPU. On `false` no caller has such a block,
    /// and the state is unchanged.
    #[inline]
    pub(crate) fn take_back(&self, pfn: Pfn, order: Order) -> bool {
        if !pfn.is_aligned(order) {
            return false;
        }
        let (word, at) = self.owner_word(pfn);
        let without = |old| (starts(old, at) == Some(order)).then(|| old & !code_in_word(order, at));
        update(word, AcqRel, without).is_some()
    }

    /// Called after a block has left a CPU's list for a caller: records this in bits if the block has no head word.
    /// Until then only the calling CPU has it, and its frames are none.
    #[inline]
    pub(crate) fn leave_list(&self, pfn: Pfn, order: Order) {
        if !self.has_word(order) {
            let (word, at) = self.owner_word(pfn);
            let code = code_in_word(order, at);
            // Adds bits that are 0, so there is no carry.
            let old = word.fetch_add(code, Release);
            debug_assert!(old & code == 0, "a block that is not whole is handed out");
        }
    }

    /// State of the block that starts at `pfn`, by its bits. They do not record the requested type: the block counts as
    /// unmovable, so that no block moves that must stay.
    pub(super) fn state_by_bits(&self, pfn: Pfn) -> State {
        self.handed_out(pfn).map_or(State::Body, |order| State::Taken {
            order,
            asked: Migratetype::Unmovable,
            list_place: None,
        })
    }

    /// Sets the bits of the block of `order` at `pfn`: a caller has it, or it is none.
    pub(super) fn set_state_by_bits(&self, pfn: Pfn, order: Order, state: State) {
        match state {
            State::Taken { order, .. } => self.leave_list(pfn, order),
            _ => {
                self.take_back(pfn, order);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// All states of four frames: the blocks that callers have there, `(first, order)`, and the free frames.
    fn fours() -> Vec<(Vec<(u64, u8)>, u64)> {
        let mut pairs = Vec::new();
        for a in 0..3 {
            for b in 0..3 {
                let single = |n: u64, kind: u8| (kind == 1).then_some((n, 0)).into_iter().collect::<Vec<_>>();
                let free = u64::from(a == 2) | u64::from(b == 2) << 1;
                pairs.push(([single(0, a), single(1, b)].concat(), free));
            }
        }
        pairs.push((std::vec![(0, 1)], 0));
        let mut fours: Vec<_> = (2..=8).map(|order| (std::vec![(0, order)], 0)).collect();
        for (low, low_free) in &pairs {
            for (high, high_free) in &pairs {
                let high = high.iter().map(|&(n, order)| (n + 2, order));
                fours.push((low.iter().copied().chain(high).collect(), low_free | high_free << 2));
            }
        }
        fours
    }

    fn order(n: u8) -> Order {
        Order::new(n).expect("an order")
    }

    /// All 107 states of four frames, at every position in a word: the words differ, and each reads as the state that
    /// was written.
    #[test]
    fn four_frames_say_what_starts_at_each_of_them() {
        let mut seen = std::collections::BTreeSet::new();
        for (blocks, free_frames) in fours() {
            for at in (0..32).step_by(4) {
                let codes = blocks.iter().map(|&(n, k)| code_in_word(order(k), at + n));
                let word = codes.fold(free_frames << at, |word, code| {
                    assert_eq!(word & code, 0, "codes overlap: {blocks:?}");
                    word | code
                });
                assert_eq!(free(word), free_frames << at, "{blocks:?}");
                for n in 0..4 {
                    let expected = blocks.iter().find(|block| block.0 == n).map(|&(_, k)| order(k));
                    assert_eq!(starts(word, at + n), expected, "frame {n} of {blocks:?}");
                }
                if at == 0 {
                    seen.insert(word);
                }
            }
        }
        assert_eq!(seen.len(), 107);
    }

    /// In every word, damaged or not, no block starts where a block of its order cannot, and a free clears only the
    /// block's own code.
    #[test]
    fn no_word_shows_a_block_out_of_place() {
        for byte in 0..=255_u64 {
            let word = byte & 0xf | (byte >> 4) << UPPER;
            for at in 0..4 {
                if let Some(found) = starts(word, at) {
                    assert!(found < PAGEBLOCK_ORDER, "{byte:#x}");
                    assert!(Pfn(at).is_aligned(if found > order(2) { order(2) } else { found }), "{byte:#x}");
                    assert_eq!(word & code_in_word(found, at), code_in_word(found, at), "{byte:#x}");
                    assert_eq!(starts(word & !code_in_word(found, at), at), None, "{byte:#x}");
                }
            }
        }
    }
}
