//! Free whole pageblocks: a bit for each, by type.
//!
//! The head word of a free pageblock records that it is free, and its type; its bit in the bitmap of that type records
//! the same, for searches. A block of the largest order is a *pair*: two such pageblocks of one type, the first at an
//! even number. It is never merged or split: both bits are in the same word. A *single* is a free pageblock whose buddy
//! is not free, or of another type.
//!
//! # Invariants
//! 1. A bit of a type is set if and only if the pageblock is of the type and its head word is [`FreeHead::whole`] of
//!    it.
//! 2. Above the words of a type are two *roots* of 128 bits, of singles and of pairs. A bit is set if one of the words
//!    that it stands for has one: a single word in a section of up to 16 GiB, 64 words in one of a TiB, the most.
//!
//! # Which pageblock
//! Singles first, so that pairs survive; of these the one with the lowest number.
//!
//! # Damage
//! If head word and bit of a pageblock disagree, the next CPU that tries to take it notices, and the pageblock is out
//! of use. If a root promises what its words do not have, it is rebuilt from them.

use core::ops::{BitOr, Range};

use super::super::Buddy;
use super::TYPES;
use crate::frame::{FrameMap, FreeHead, PageMap, Pageblock, State};
use crate::platform::Platform;
use crate::sync::Slot;
use crate::units::{MAX_ORDER, Migratetype, Ones, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Pageblocks in a word.
const GROUP: usize = 64;
/// Words of a map.
const WORDS: usize = 8;
/// Bits of a root.
const ROOT: usize = u128::BITS as usize;
/// The lower pageblocks of pairs.
const LOWER: u64 = 0x5555_5555_5555_5555;

/// Kind of a root.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Singles,
    Pairs,
}

const KINDS: [Kind; 2] = [Kind::Singles, Kind::Pairs];

/// The lower pageblocks of the pairs in a word.
#[inline(always)]
const fn pairs(word: u64) -> u64 {
    word & word >> 1 & LOWER
}

/// The pageblocks in a word that are in no pair.
#[inline(always)]
const fn singles(word: u64) -> u64 {
    word & !(pairs(word) * 3)
}

impl Kind {
    /// The pageblocks of this kind in a word.
    #[inline(always)]
    const fn of(self, word: u64) -> u64 {
        match self {
            Self::Singles => singles(word),
            Self::Pairs => pairs(word) * 3,
        }
    }
}

/// Words of the bitmap of one type, in a section of `pages` pages.
const fn words_of(pages: u64) -> usize {
    (pages.div_ceil(PAGEBLOCK_PAGES) as usize).div_ceil(GROUP)
}

/// Maps for the bitmaps of all types of a section of `pages` pages.
pub(crate) const fn maps_of_bitmaps(pages: u64) -> usize {
    TYPES * words_of(pages).div_ceil(WORDS)
}

/// Where a section's bitmaps are. Never changes.
pub(crate) struct Bitmaps {
    /// The first map of the first type.
    first: usize,
    /// Maps of each type.
    maps: usize,
    /// A bit of a root stands for 2^`shift` words.
    shift: u32,
}

impl Bitmaps {
    /// For a section of `pages` pages, whose maps begin at number `first`.
    pub(crate) fn new(first: usize, pages: u64) -> Self {
        let words = words_of(pages);
        let shift = words.div_ceil(ROOT).next_power_of_two().ilog2();
        Self { first, maps: words.div_ceil(WORDS), shift }
    }

    /// The number of a type's first map.
    #[inline(always)]
    const fn first(&self, list: Migratetype) -> usize {
        self.first + list as usize * self.maps
    }

    /// Free pageblocks but isolated ones. A racy read without the lock. O(pageblocks / 64).
    pub(crate) fn free_pageblocks<P: Platform, M>(&self, frames: &FrameMap<'_, P, M>) -> u64 {
        let types = Migratetype::ALL.into_iter().filter(|&list| list != Migratetype::Isolate);
        let maps = types.flat_map(|list| &frames.whole_maps()[self.first(list)..][..self.maps]);
        maps.map(|map| map.bits().count()).sum()
    }
}

/// The roots of a section's bitmaps, by type and kind.
pub(in crate::buddy) struct Whole<P: Platform> {
    roots: [[Slot<P, u128>; 2]; TYPES],
}

impl<P: Platform> Whole<P> {
    pub(in crate::buddy) fn new() -> Self {
        Self { roots: core::array::from_fn(|_| core::array::from_fn(|_| Slot::new(0))) }
    }
}

/// Pageblocks taken from one word of a bitmap.
#[derive(Clone, Copy, Debug)]
pub(in crate::buddy) struct Wholes {
    /// First frame of the word's first pageblock.
    pub(in crate::buddy) start: Pfn,
    /// The pageblocks.
    bits: u64,
}

impl Wholes {
    /// The first pageblock of every block of the order that they were taken as.
    #[inline]
    pub(in crate::buddy) const fn starts(&self, order: Order) -> u64 {
        if order.get() == MAX_ORDER.get() { self.bits & LOWER } else { self.bits }
    }

    /// Calls `each` with the first frame of every block of that order, ascending.
    #[inline]
    pub(in crate::buddy) fn each(&self, order: Order, mut each: impl FnMut(Pfn)) {
        for n in Ones(self.starts(order)) {
            each(self.start.add(n as u64 * PAGEBLOCK_PAGES));
        }
    }

    /// Number of blocks of an order.
    pub(in crate::buddy) fn blocks(&self, order: Order) -> u64 {
        u64::from(self.bits.count_ones()) >> (order.get() - PAGEBLOCK_ORDER.get())
    }

    /// The first frame.
    fn first(&self) -> Pfn {
        self.start.add(u64::from(self.bits.trailing_zeros()) * PAGEBLOCK_PAGES)
    }
}

impl<'m, P: Platform, M> Buddy<'_, 'm, P, M> {
    // ---- words ---------------------------------------------------------------------------------------------

    /// Word `group` of a type's bitmap: the map, and the number of the word in it.
    #[inline(always)]
    fn group_at(&self, list: Migratetype, group: usize) -> (&'m PageMap<P>, usize) {
        let first = self.extent.bitmaps.first(list);
        (&self.frames.whole_maps()[first + group / WORDS], group % WORDS)
    }

    fn group(&self, list: Migratetype, group: usize) -> u64 {
        let (map, n) = self.group_at(list, group);
        map.word(n)
    }

    /// Pageblocks that the section spans.
    fn pageblocks_spanned(&self) -> usize {
        (self.extent.range.end.0 - self.extent.range.start.0).div_ceil(PAGEBLOCK_PAGES) as usize
    }

    /// Words of a type's bitmap.
    fn groups(&self) -> usize {
        self.pageblocks_spanned().div_ceil(GROUP)
    }

    fn start_of(&self, group: usize) -> Pfn {
        self.extent.range.start.add((group * GROUP) as u64 * PAGEBLOCK_PAGES)
    }

    /// Word and bit of a pageblock.
    #[inline(always)]
    fn bit_of(&self, pfn: Pfn) -> (usize, u64) {
        let number = self.number_of(pfn) as usize;
        (number / GROUP, 1 << (number % GROUP))
    }

    #[inline(always)]
    fn root(&self, list: Migratetype, kind: Kind) -> u128 {
        self.cold.whole.roots[list as usize][kind as usize].get()
    }

    /// The words that a bit of a root stands for.
    fn span(&self, bit: usize) -> Range<usize> {
        let (shift, groups) = (self.extent.bitmaps.shift, self.groups());
        (bit << shift).min(groups)..((bit + 1) << shift).min(groups)
    }

    /// After word `group` of a bitmap has changed: brings the roots up to date, and records whether what the section
    /// publishes may have changed.
    #[inline(always)]
    fn has_changed(&mut self, list: Migratetype, group: usize, old: u64, now: u64) {
        let differ = |kind: fn(u64) -> u64| (kind(old) == 0) != (kind(now) == 0);
        if differ(singles) || differ(pairs) {
            self.note_wholes_changed(list);
            self.set_roots(list, group, now);
        } else if self.is_of_several() && self.near_singles() != 0 {
            self.note_wholes_changed(list);
        }
    }

    /// Bits of roots of which two ordinary types have singles: there may be buddies among them.
    #[inline]
    fn near_singles(&self) -> u128 {
        let (_, near) = Migratetype::ORDINARY.into_iter().fold((0, 0), |(any, both), list| {
            let root = self.root(list, Kind::Singles);
            (any | root, both | any & root)
        });
        near
    }

    /// After word `group` of a bitmap has become `now`: sets or clears its bit of both roots.
    #[inline(never)]
    fn set_roots(&mut self, list: Migratetype, group: usize, now: u64) {
        let bit = group >> self.extent.bitmaps.shift;
        for kind in KINDS {
            let has_one =
                kind.of(now) != 0 || self.span(bit).any(|group| kind.of(self.group(list, group)) != 0);
            let root = &mut self.cold.whole.roots[list as usize][kind as usize];
            root.set(root.get() & !(1 << bit) | u128::from(has_one) << bit);
        }
        if self.common.is_lazy() {
            self.touch_more();
        }
    }

    /// A root, computed from its words.
    fn root_of(&self, list: Migratetype, kind: Kind) -> u128 {
        let has_one = |group: usize| u128::from(kind.of(self.group(list, group)) != 0);
        (0..self.groups())
            .fold(0, |root, group| root | has_one(group) << (group >> self.extent.bitmaps.shift))
    }

    /// The first word of a bitmap that has a pageblock of a kind, by the root, and its number; a word without one if
    /// that is damaged. `root` is the kind's, and not 0.
    fn first_group(&self, list: Migratetype, kind: Kind, root: u128) -> (usize, u64) {
        let mut words =
            self.span(root.trailing_zeros() as usize).map(|group| (group, self.group(list, group)));
        words.find(|&(_, word)| kind.of(word) != 0).unwrap_or((0, 0))
    }

    /// Rebuilds the roots of a type, and counts this. O(pageblocks / 64).
    #[cold]
    #[inline(never)]
    fn mend(&mut self, list: Migratetype) {
        self.must_mend();
        self.note_wholes_changed(list);
        self.count_in(|counts| counts.rebuilt_bins += 1);
        for kind in KINDS {
            self.cold.whole.roots[list as usize][kind as usize].set(self.root_of(list, kind));
        }
        self.touch_more();
    }

    // ---- what there is -------------------------------------------------------------------------------------

    /// Whether a type has a single (order 9) or a pair (order 10).
    pub(in crate::buddy) fn has_whole(&self, order: Order, list: Migratetype) -> bool {
        self.root(list, if order == MAX_ORDER { Kind::Pairs } else { Kind::Singles }) != 0
    }

    /// A word of a type's bitmap, and one with all pageblocks that may be buddies of the type's: of all ordinary types
    /// together.
    fn group_of_all(&self, list: Migratetype, group: usize) -> (u64, u64) {
        let typed = self.group(list, group);
        let all = if list.is_ordinary() {
            Migratetype::ORDINARY.map(|list| self.group(list, group)).into_iter().fold(0, u64::bitor)
        } else {
            typed
        };
        (typed, all)
    }

    /// Free blocks of order 9 and 10 of a type: two buddies of different ordinary types are one block, of the lower
    /// one's type. O(pageblocks / 64).
    pub(in crate::buddy) fn nr_whole(&self, list: Migratetype) -> [u64; 2] {
        if KINDS.into_iter().all(|kind| self.root(list, kind) == 0) {
            return [0; 2];
        }
        let add = |[single, pair]: [u64; 2], (typed, all): (u64, u64)| {
            let (lower, alone) = (pairs(all) & typed, singles(all) & typed);
            [single + u64::from(alone.count_ones()), pair + u64::from(lower.count_ones())]
        };
        (0..self.groups()).map(|group| self.group_of_all(list, group)).fold([0; 2], add)
    }

    /// A free pageblock of a type, if there is one: a single rather than one of a pair. O(1).
    pub(in crate::buddy) fn first_whole(&self, list: Migratetype) -> Option<Pfn> {
        let mut roots = KINDS.into_iter().map(|kind| (kind, self.root(list, kind)));
        let (kind, root) = roots.find(|&(_, root)| root != 0)?;
        let (group, word) = self.first_group(list, kind, root);
        let found = kind.of(word);
        // `None` if the words are damaged.
        (found != 0).then(|| self.start_of(group).add(u64::from(found.trailing_zeros()) * PAGEBLOCK_PAGES))
    }

    /// The lower of two free buddy pageblocks of different ordinary types; of type `lower`, if one is named.
    /// O(pageblocks / 64), if two types have singles near each other.
    pub(in crate::buddy) fn mixed_pair(&self, lower: Option<Migratetype>) -> Option<Pfn> {
        let ordinary = Migratetype::ORDINARY;
        let mut near = self.near_singles();
        while near != 0 {
            for group in self.span(near.trailing_zeros() as usize) {
                let all = ordinary.into_iter().fold(0, |all, list| all | singles(self.group(list, group)));
                let from = lower.map_or(u64::MAX, |list| singles(self.group(list, group)));
                let found = pairs(all) & from;
                if found != 0 {
                    let n = u64::from(found.trailing_zeros());
                    return Some(self.start_of(group).add(n * PAGEBLOCK_PAGES));
                }
            }
            near &= near - 1;
        }
        None
    }

    // ---- taking --------------------------------------------------------------------------------------------

    /// Takes up to `most` blocks of an order from the pageblock order on from one word of a type's bitmap. Their head
    /// words are [`State::Body`] then. The caller counts them.
    pub(in crate::buddy) fn take_wholes(
        &mut self,
        order: Order,
        list: Migratetype,
        most: u64,
    ) -> Option<Wholes> {
        let head = FreeHead::whole(list).word();
        loop {
            let of_singles = if order == MAX_ORDER { 0 } else { self.root(list, Kind::Singles) };
            let (kind, root) = match of_singles {
                0 => (Kind::Pairs, self.root(list, Kind::Pairs)),
                _ => (Kind::Singles, of_singles),
            };
            if root == 0 {
                return None;
            }
            let (group, old) = self.first_group(list, kind, root);
            let found = kind.of(old);
            if found == 0 {
                self.mend(list);
                continue;
            }
            // A bit after the section's end is damage.
            let pageblocks = self.pageblocks.get(..self.pageblocks_spanned()).unwrap_or(&[]);
            // The lowest ones.
            let start = self.start_of(group);
            let first = group * GROUP;
            let (mut left, mut bad) = (found, 0);
            let mut most = most << (order.get() - PAGEBLOCK_ORDER.get());
            while left != 0 && most != 0 {
                let n = left.trailing_zeros();
                match pageblocks.get(first + n as usize) {
                    Some(pageblock) if pageblock.head_word() == head => pageblock.set_head_word(0),
                    _ => bad |= 1 << n,
                }
                left &= left - 1;
                most -= 1;
            }
            let mut bits = found & !left;
            let (map, at) = self.group_at(list, group);
            map.set_word(at, old & !bits);
            self.has_changed(list, group, old, old & !bits);
            if bad != 0 {
                bits = self.without_damaged(start, order, list, bits, bad);
                if bits == 0 {
                    continue;
                }
            }
            if self.common.reports() {
                Wholes { start, bits }
                    .each(PAGEBLOCK_ORDER, |pfn| self.forget_reports(pfn, pfn.add(PAGEBLOCK_PAGES)));
            }
            return Some(Wholes { start, bits });
        }
    }

    /// Counts pageblocks with a bit but without the head word of a free one. Returns the others of `bits`. If one of a
    /// pair is damaged, the other one is free again and not returned.
    #[cold]
    #[inline(never)]
    fn without_damaged(&mut self, start: Pfn, order: Order, list: Migratetype, bits: u64, bad: u64) -> u64 {
        self.must_mend();
        Wholes { start, bits: bad }.each(PAGEBLOCK_ORDER, |start| self.count_damaged(start, list));
        if order != MAX_ORDER {
            return bits & !bad;
        }
        let lower = (bad | bad >> 1) & LOWER;
        Wholes { start, bits: (lower * 3) & bits & !bad }
            .each(PAGEBLOCK_ORDER, |pfn| self.set_whole(pfn, list));
        bits & !(lower * 3)
    }

    /// Counts a pageblock with a bit but without the head word of a free one as out of use; not if some of its frames
    /// are allocated, because then it never was free.
    fn count_damaged(&mut self, start: Pfn, list: Migratetype) {
        if start >= self.extent.range.end {
            return;
        }
        let is_taken = match self.frames.state(start, PAGEBLOCK_ORDER) {
            State::Taken { order, .. } | State::Quarantined { order } => order >= PAGEBLOCK_ORDER,
            _ => self.frames.open_head(start).is_some(),
        };
        if !is_taken {
            self.lose(list, PAGEBLOCK_PAGES);
        }
    }

    /// Counts free pages as out of use.
    fn lose(&mut self, list: Migratetype, pages: u64) {
        self.account(list, -(pages as i64));
        self.count_in(|counts| counts.damaged_pages += pages);
    }

    /// Takes a free whole pageblock of a type: a single, or the lower half of a pair. Does not count it.
    pub(super) fn unlink_closed(&mut self, list: Migratetype) -> Option<Pfn> {
        Some(self.take_wholes(PAGEBLOCK_ORDER, list, 1)?.first())
    }

    /// Gives the free pageblock at `start`, of another ordinary type, this type.
    pub(super) fn take_over(&mut self, start: Pfn, to: Migratetype) {
        let (group, bit) = self.bit_of(start);
        let has_bit = |&from: &Migratetype| from.is_ordinary() && self.group(from, group) & bit != 0;
        let Some(from) = Migratetype::ALL.into_iter().find(has_bit).filter(|&from| from != to) else {
            return;
        };
        let (map, n) = self.group_at(from, group);
        let old = map.word(n);
        map.set_word(n, old & !bit);
        self.has_changed(from, group, old, old & !bit);
        if self.frames.free_whole(start) != Some(from) {
            return self.count_damaged(start, from);
        }
        self.count_in(|counts| counts.retyped += 1);
        self.give_whole(start, from, to);
    }

    /// Gives a pageblock that was taken from one type, and not counted, to another type as free.
    pub(super) fn give_whole(&mut self, start: Pfn, from: Migratetype, to: Migratetype) {
        self.account(from, -(PAGEBLOCK_PAGES as i64));
        self.retype(start, to);
        self.account(to, PAGEBLOCK_PAGES as i64);
        self.set_whole(start, to);
    }

    /// Takes the pageblock at `start`, if it is free as a whole. Returns the type of its bit. `None` also if its bit is
    /// missing: then it is out of use. Does not count it.
    pub(in crate::buddy) fn take_whole_at(&mut self, start: Pfn) -> Option<Migratetype> {
        let list = self.frames.free_whole(start)?;
        let (group, bit) = self.bit_of(start);
        let (map, n) = self.group_at(list, group);
        let old = map.word(n);
        if old & bit == 0 {
            self.frames.set_state(start, PAGEBLOCK_ORDER, State::Quarantined { order: PAGEBLOCK_ORDER });
            self.lose(list, PAGEBLOCK_PAGES);
            return None;
        }
        map.set_word(n, old & !bit);
        self.frames.set_state(start, PAGEBLOCK_ORDER, State::Body);
        self.has_changed(list, group, old, old & !bit);
        Some(list)
    }

    /// Like [`take_whole_at`](Self::take_whole_at), for all pageblocks of a block of the pageblock order or the
    /// largest. If one is damaged, the other is free again.
    pub(in crate::buddy) fn take_large_at(&mut self, start: Pfn, order: Order) -> Option<Migratetype> {
        let list = self.take_whole_at(start)?;
        if order == MAX_ORDER && self.take_whole_at(start.add(PAGEBLOCK_PAGES)).is_none() {
            self.set_whole(start, list);
            return None;
        }
        Some(list)
    }

    // ---- freeing -------------------------------------------------------------------------------------------

    /// Makes a pageblock without an owner, whose map is zero, a free one of type `list`. Does not count it.
    pub(in crate::buddy) fn set_whole(&mut self, start: Pfn, list: Migratetype) {
        let number = self.number_of(start) as usize;
        if let Some(pageblock) = self.pageblocks.get(number..=number) {
            self.set_wholes(number, pageblock, list);
        }
    }

    /// Like [`set_whole`](Self::set_whole), for two pageblocks that are a pair then. The lower one is a single at no
    /// time.
    pub(in crate::buddy) fn set_pair(&mut self, start: Pfn, list: Migratetype) {
        let number = self.number_of(start) as usize;
        if let Some(pair) = self.pageblocks.get(number..number + 2) {
            self.set_wholes(number, pair, list);
        }
    }

    /// Like [`set_whole`](Self::set_whole), for `pageblocks` of one word, from a pageblock's number on.
    #[inline(always)]
    fn set_wholes(&mut self, number: usize, pageblocks: &[Pageblock<P>], list: Migratetype) {
        let head = FreeHead::whole(list).word();
        pageblocks.iter().for_each(|pageblock| pageblock.set_head_word(head));
        let (group, at) = (number / GROUP, number % GROUP);
        let (map, n) = self.group_at(list, group);
        let old = map.word(n);
        let now = old | u64::MAX >> (GROUP - pageblocks.len()) << at;
        map.set_word(n, now);
        self.has_changed(list, group, old, now);
    }

    /// Pageblocks from `pfn` on whose bits are in one word.
    pub(in crate::buddy) fn left_in_word(&self, pfn: Pfn) -> u64 {
        (GROUP - self.number_of(pfn) as usize % GROUP) as u64
    }

    /// Frees adjacent pageblocks in the most common case: all are of one word and one ordinary type, without bad
    /// frames, and none is free already. On `false` the state is unchanged. The caller records that a block was freed.
    pub(in crate::buddy) fn put_pageblocks(&mut self, pfn: Pfn, count: u64) -> bool {
        let number = self.number_of(pfn) as usize;
        if number % GROUP + count as usize > GROUP {
            return false;
        }
        let Some(all) = self.pageblocks.get(number..number + count as usize) else { return false };
        let Some(info) = all.first().map(Pageblock::info) else { return false };
        let Some(list) = info.plain_type() else { return false };
        for pageblock in all {
            if !pageblock.is_taken() || pageblock.info() != info {
                return false;
            }
        }
        self.set_wholes(number, all, list);
        self.account_put((count * PAGEBLOCK_PAGES) as i64);
        true
    }

    /// Frees a block of the pageblock order or the largest, in any case. Each pageblock is checked, counted and given
    /// to its own type: it may have been isolated or retyped while it was allocated.
    pub(in crate::buddy) fn put_large(&mut self, pfn: Pfn, order: Order, placement: super::Placement) {
        let starts = || (0..order.pages() / PAGEBLOCK_PAGES).map(|n| pfn.add(n * PAGEBLOCK_PAGES));
        if !starts().all(|start| self.frames.pageblock(start).is_some_and(Pageblock::is_taken)) {
            return self.count_refused(order.pages());
        }
        if self.frames.info(pfn).is_poisoned() && self.free_around_marks(pfn, order, placement) {
            return;
        }
        self.frames.set_state(pfn, order, State::Body);
        for start in starts() {
            let info = self.frames.info(start);
            self.account_freed(info.migratetype(), PAGEBLOCK_PAGES as i64);
            self.set_whole(start, info.migratetype());
        }
    }

    // ---- checks --------------------------------------------------------------------------------------------

    /// Checks the bitmap of a type. Returns its blocks of order 9 and 10.
    ///
    /// # Errors
    /// The broken invariant, and the pageblock, if there is one.
    pub(crate) fn check_whole(&self, list: Migratetype) -> Result<[u64; 2], (&'static str, Option<Pfn>)> {
        for group in 0..self.groups() {
            let word = self.group(list, group);
            for n in Ones(word) {
                let start = self.start_of(group).add(n as u64 * PAGEBLOCK_PAGES);
                if start >= self.extent.range.end || !self.is_of_type(start, list) {
                    return Err(("a free pageblock is of another type or zone than its bit", Some(start)));
                }
                if self.frames.free_whole(start) != Some(list) {
                    return Err((
                        "a pageblock's bit says that it is free, and its head word does not",
                        Some(start),
                    ));
                }
            }
        }
        for kind in KINDS {
            if self.root(list, kind) != self.root_of(list, kind) {
                return Err(("the root of free pageblocks is not what its words have", None));
            }
        }
        Ok(self.nr_whole(list))
    }
}

#[cfg(test)]
mod tests;
