//! Free whole pageblocks: a bit for each, by type.
//!
//! The head word of a free pageblock says that it is free, and of which type; its bit in the bitmap of that type says so again, where
//! it is found. A block of the largest order is a *pair*: two such pageblocks of one type, the first at an even number. Nobody merges
//! or splits it. Whoever looks at the word sees it, and that a *single*, whose buddy is not free or of another type, is none.
//!
//! # Invariants
//! 1. A bit of a type is set if and only if the pageblock is of the type and its head word is [`FreeHead::whole`] of it.
//! 2. Above the words of a type are two *summaries*, of singles and of pairs: a bit is set if the word has one. Above each is a word
//!    of 128 bits, the *root*, which says the same of the summary's words. So 2^19 pageblocks, as many as a zone may have, are three
//!    steps away.
//!
//! # Which pageblock
//! Singles first, so that pairs survive; of these the one with the lowest number.
//!
//! # Damage
//! A pageblock whose head word does not say what its bit says, or the other way round, is found by whoever wants it, and is out of
//! use. A summary that promises what its word has not is made anew from the words.

use super::super::{Buddy, BuddyCounts, Wanted};
use super::TYPES;
use crate::frame::{FreeHead, PageMap, Pageblock, State};
use crate::platform::Platform;
use crate::policy::fallback::{self, Source};
use crate::sync::Slot;
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// Pageblocks of a word.
const GROUP: usize = 64;
/// Words of a map.
const WORDS: usize = 8;
/// The lower pageblocks of pairs.
const LOWER: u64 = 0x5555_5555_5555_5555;

/// What a summary is of.
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

/// The pageblocks in a word that are not of a pair.
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

/// Maps that the bitmaps of a zone of so many pages need: of each type those with a word for every 64 pageblocks, then two with a
/// bit for each of these words.
const fn maps_of_type(pages: u64) -> [usize; 2] {
    let words = pages.div_ceil(PAGEBLOCK_PAGES) as usize;
    let words = words.div_ceil(GROUP);
    [words.div_ceil(WORDS), words.div_ceil(GROUP * WORDS)]
}

/// All of them, for all types.
pub(crate) const fn maps_of_zone(pages: u64) -> usize {
    let [words, summary] = maps_of_type(pages);
    TYPES * (words + 2 * summary)
}

/// Where the bitmaps of a zone lie, and their roots.
pub(in crate::buddy) struct Whole<P: Platform> {
    /// The first map of each type.
    first: [usize; TYPES],
    /// Of each type: maps with bits, and of each summary.
    maps: [usize; 2],
    /// By type and kind: which words of the summary are not zero.
    roots: [[Slot<P, u128>; 2]; TYPES],
}

impl<P: Platform> Whole<P> {
    /// For a zone of so many pages, whose maps begin at number `first`.
    pub(in crate::buddy) fn new(first: usize, pages: u64) -> Self {
        let [words, summary] = maps_of_type(pages);
        Self {
            first: core::array::from_fn(|list| first + list * (words + 2 * summary)),
            maps: [words, summary],
            roots: core::array::from_fn(|_| core::array::from_fn(|_| Slot::new(0))),
        }
    }
}

/// Pageblocks taken out of one word of a bitmap.
#[derive(Clone, Copy, Debug)]
pub(in crate::buddy) struct Wholes {
    /// The first frame of what the word is of.
    start: Pfn,
    /// The pageblocks.
    bits: u64,
}

impl Wholes {
    /// Calls `each` with the first frame of every block of the order that they were taken as, ascending.
    #[inline]
    pub(in crate::buddy) fn each(&self, order: Order, mut each: impl FnMut(Pfn)) {
        let mut left = if order == MAX_ORDER { self.bits & LOWER } else { self.bits };
        while left != 0 {
            each(self.start.add(u64::from(left.trailing_zeros()) * PAGEBLOCK_PAGES));
            left &= left - 1;
        }
    }

    /// How many blocks of that order.
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

    /// Word `group` of a type's bitmap: the map, and which of its words.
    #[inline(always)]
    fn group_at(&self, list: Migratetype, group: usize) -> (&'m PageMap<P>, usize) {
        let first = self.cold.whole.first[list as usize];
        (&self.frames.whole_maps()[first + group / WORDS], group % WORDS)
    }

    /// Word `n` of a summary.
    fn summary_at(&self, list: Migratetype, kind: Kind, n: usize) -> (&'m PageMap<P>, usize) {
        let Whole { first, maps: [words, summary], .. } = &self.cold.whole;
        let first = first[list as usize] + words + kind as usize * summary;
        (&self.frames.whole_maps()[first + n / WORDS], n % WORDS)
    }

    fn group(&self, list: Migratetype, group: usize) -> u64 {
        let (map, n) = self.group_at(list, group);
        map.word(n)
    }

    /// Pageblocks that the zone spans.
    fn zone_pageblocks(&self) -> usize {
        (self.end.0 - self.base.0).div_ceil(PAGEBLOCK_PAGES) as usize
    }

    /// Words of a type's bitmap.
    fn groups(&self) -> usize {
        self.zone_pageblocks().div_ceil(GROUP)
    }

    fn start_of(&self, group: usize) -> Pfn {
        self.base.add((group * GROUP) as u64 * PAGEBLOCK_PAGES)
    }

    /// Which bit of which word is a pageblock's.
    #[inline(always)]
    fn bit_of(&self, pfn: Pfn) -> (usize, u64) {
        let number = self.number_of(pfn) as usize;
        (number / GROUP, 1 << (number % GROUP))
    }

    #[inline(always)]
    fn root(&self, list: Migratetype, kind: Kind) -> u128 {
        self.cold.whole.roots[list as usize][kind as usize].get()
    }

    /// After word `group` of a bitmap has changed: brings the summaries up to date.
    #[inline(always)]
    fn has_changed(&mut self, list: Migratetype, group: usize, was: u64, now: u64) {
        let differ = |of: fn(u64) -> u64| (of(was) == 0) != (of(now) == 0);
        self.note_wholes_changed(list);
        if differ(singles) || differ(pairs) {
            self.summarise(list, group, now);
        }
    }

    #[inline(never)]
    fn summarise(&mut self, list: Migratetype, group: usize, now: u64) {
        for kind in KINDS {
            let (map, n) = self.summary_at(list, kind, group / GROUP);
            let was = map.word(n);
            let bit = 1 << (group % GROUP);
            let word = if kind.of(now) == 0 { was & !bit } else { was | bit };
            if word == was {
                continue;
            }
            map.set_word(n, word);
            if (was == 0) != (word == 0) {
                let root = &mut self.cold.whole.roots[list as usize][kind as usize];
                let without = root.get() & !(1 << (group / GROUP));
                root.set(without | u128::from(word != 0) << (group / GROUP));
            }
        }
        if list == Migratetype::Movable && self.untouched.is_some() {
            self.touch_more();
        }
    }

    /// Makes the summaries of a type anew, and counts that it was necessary. O(pageblocks / 64).
    #[cold]
    #[inline(never)]
    fn mend(&mut self, list: Migratetype) {
        self.note_wholes_changed(list);
        self.count_in(|counts| counts.rebuilt_bins += 1);
        for kind in KINDS {
            let mut root = 0;
            for n in 0..self.groups().div_ceil(GROUP) {
                let groups = n * GROUP..self.groups().min((n + 1) * GROUP);
                let has = |group: usize| u64::from(kind.of(self.group(list, group)) != 0) << (group % GROUP);
                let word = groups.map(has).fold(0, |word, bit| word | bit);
                let (map, at) = self.summary_at(list, kind, n);
                map.set_word(at, word);
                root |= u128::from(word != 0) << n;
            }
            self.cold.whole.roots[list as usize][kind as usize].set(root);
        }
        if list == Migratetype::Movable {
            self.touch_more();
        }
    }

    // ---- what there is -------------------------------------------------------------------------------------

    /// Whether a type has a single (order 9) or a pair (order 10).
    pub(in crate::buddy) fn has_whole(&self, order: Order, list: Migratetype) -> bool {
        self.root(list, if order == MAX_ORDER { Kind::Pairs } else { Kind::Singles }) != 0
    }

    /// A word of a type's bitmap, and all of whose pageblocks those of the type may be buddies: of ordinary types together.
    fn group_of_all(&self, list: Migratetype, group: usize) -> (u64, u64) {
        let own = self.group(list, group);
        let ordinary = Migratetype::ALL.into_iter().filter(|all| all.is_ordinary());
        let all = if list.is_ordinary() {
            ordinary.fold(0, |all, list| all | self.group(list, group))
        } else {
            own
        };
        (own, all)
    }

    /// Free blocks of order 9 and 10 that a type has, as everybody sees them: two buddies of different ordinary types are one block, the
    /// lower's. O(pageblocks / 64).
    pub(in crate::buddy) fn nr_whole(&self, list: Migratetype) -> [u64; 2] {
        if KINDS.into_iter().all(|kind| self.root(list, kind) == 0) {
            return [0; 2];
        }
        let add = |[single, pair]: [u64; 2], (own, all): (u64, u64)| {
            let (lower, alone) = (pairs(all) & own, singles(all) & own);
            [single + u64::from(alone.count_ones()), pair + u64::from(lower.count_ones())]
        };
        (0..self.groups()).map(|group| self.group_of_all(list, group)).fold([0; 2], add)
    }

    /// A free pageblock of a type, if there is one: a single rather than one of a pair. O(1).
    pub(in crate::buddy) fn first_whole(&self, list: Migratetype) -> Option<Pfn> {
        let kind = KINDS.into_iter().find(|&kind| self.root(list, kind) != 0)?;
        let n = self.root(list, kind).trailing_zeros() as usize;
        let (summary, at) = self.summary_at(list, kind, n);
        let group = n * GROUP + (summary.word(at).trailing_zeros() as usize).min(GROUP - 1);
        let found = kind.of(self.group(list, group));
        // None where the words are damaged.
        (found != 0).then(|| self.start_of(group).add(u64::from(found.trailing_zeros()) * PAGEBLOCK_PAGES))
    }

    /// The first frames of these blocks of an order, ascending; none of an order below the pageblock order.
    pub(in crate::buddy) fn whole_blocks(
        &self,
        order: Order,
        list: Migratetype,
    ) -> impl Iterator<Item = Pfn> {
        let groups = if order < PAGEBLOCK_ORDER || !self.frames.has_maps() { 0 } else { self.groups() };
        (0..groups).flat_map(move |group| {
            let (own, all) = self.group_of_all(list, group);
            let mut left = own & if order == MAX_ORDER { pairs(all) } else { singles(all) };
            core::iter::from_fn(move || {
                let n = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(self.start_of(group).add(u64::from(n) * PAGEBLOCK_PAGES))
            })
        })
    }

    /// The lower of two free pageblocks of different ordinary types that are buddies; of type `lower`, if one is named. O(pageblocks /
    /// 64), where two types have singles near each other.
    pub(in crate::buddy) fn mixed_pair(&self, lower: Option<Migratetype>) -> Option<Pfn> {
        let ordinary = || Migratetype::ALL.into_iter().filter(|list| list.is_ordinary());
        if ordinary().filter(|&list| self.root(list, Kind::Singles) != 0).count() < 2 {
            return None;
        }
        let any = |word: &dyn Fn(Migratetype) -> u64| ordinary().fold(0, |all, list| all | word(list));
        for n in 0..self.groups().div_ceil(GROUP) {
            let mut left = any(&|list| {
                let (map, at) = self.summary_at(list, Kind::Singles, n);
                map.word(at)
            });
            while left != 0 {
                let group = n * GROUP + left.trailing_zeros() as usize;
                left &= left - 1;
                if group >= self.groups() {
                    break;
                }
                let all = any(&|list| singles(self.group(list, group)));
                let from = lower.map_or(u64::MAX, |list| singles(self.group(list, group)));
                let found = pairs(all) & from;
                if found != 0 {
                    return Some(
                        self.start_of(group).add(u64::from(found.trailing_zeros()) * PAGEBLOCK_PAGES),
                    );
                }
            }
        }
        None
    }

    // ---- taking --------------------------------------------------------------------------------------------

    /// Takes up to `most` blocks of an order from the pageblock order on out of one word of a type's bitmap. Their head words say
    /// [`State::Body`] then. The caller counts them.
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
            let (n, groups) = (root.trailing_zeros() as usize, self.groups());
            let mut group = n * GROUP;
            if group < groups {
                let (summary, at) = self.summary_at(list, kind, n);
                group += summary.word(at).trailing_zeros() as usize;
            }
            let was = if group < groups { self.group(list, group) } else { 0 };
            let found = kind.of(was);
            if found == 0 {
                self.mend(list);
                continue;
            }
            // A bit behind the zone's end is damage.
            let own = self.pageblocks.get(..self.zone_pageblocks()).unwrap_or(&[]);
            // The lowest so many.
            let start = self.start_of(group);
            let first = group * GROUP;
            let (mut left, mut bad) = (found, 0);
            let mut most = most << (order.get() - PAGEBLOCK_ORDER.get());
            while left != 0 && most > 0 {
                let n = left.trailing_zeros();
                match own.get(first + n as usize) {
                    Some(pageblock) if pageblock.head_word() == head => pageblock.set_head_word(0),
                    _ => bad |= 1 << n,
                }
                left &= left - 1;
                most -= 1;
            }
            let mut bits = found & !left;
            let (map, at) = self.group_at(list, group);
            map.set_word(at, was & !bits);
            self.has_changed(list, group, was, was & !bits);
            if bad != 0 {
                bits = self.without_damaged(start, order, list, bits, bad);
                if bits == 0 {
                    continue;
                }
            }
            if self.reports {
                Wholes { start, bits }
                    .each(PAGEBLOCK_ORDER, |pfn| self.forget_reports(pfn, pfn.add(PAGEBLOCK_PAGES)));
            }
            return Some(Wholes { start, bits });
        }
    }

    /// Counts pageblocks whose bits said that they were free, and whose head words do not. Returns the others of `bits`; of a pair none is
    /// left, and the other one is free again.
    #[cold]
    #[inline(never)]
    fn without_damaged(&mut self, start: Pfn, order: Order, list: Migratetype, bits: u64, bad: u64) -> u64 {
        Wholes { start, bits: bad }.each(PAGEBLOCK_ORDER, |start| self.count_damaged(start, list));
        if order != MAX_ORDER {
            return bits & !bad;
        }
        let lower = (bad | bad >> 1) & LOWER;
        Wholes { start, bits: (lower * 3) & bits & !bad }
            .each(PAGEBLOCK_ORDER, |pfn| self.set_whole(pfn, list));
        bits & !(lower * 3)
    }

    /// Counts a pageblock whose bit said that it was free, and whose head word does not, as out of use; not one of whose frames somebody has
    /// some, which was never free.
    fn count_damaged(&mut self, start: Pfn, list: Migratetype) {
        if start >= self.end {
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

    /// Counts pages that were free as out of use.
    fn lose(&mut self, list: Migratetype, pages: u64) {
        self.account(list, -(pages as i64));
        self.count_in(|counts| counts.damaged_pages += pages);
    }

    /// Takes a free whole pageblock of a type: a single, or the lower half of a pair. Not counted.
    pub(super) fn unlink_closed(&mut self, list: Migratetype) -> Option<Pfn> {
        Some(self.take_wholes(PAGEBLOCK_ORDER, list, 1)?.first())
    }

    /// Makes a block of at least the pageblock order available to `wanted`: of two pageblocks of different types, or of another type.
    pub(in crate::buddy) fn steal_large(&mut self, wanted: Wanted) -> bool {
        let Wanted { order, migratetype: to, generation, avoid_fragmentation, .. } = wanted;
        if order == MAX_ORDER
            && to.is_ordinary()
            && let Some(lower) = self.mixed_pair(None)
        {
            for start in [lower, lower.add(PAGEBLOCK_PAGES)] {
                self.take_over(start, to);
            }
            return true;
        }
        let has = |at: Order, list| self.has_whole(at, list);
        let Some(Source { order: found, migratetype: from, .. }) =
            fallback::choose(generation, order, to, self.grouping(), avoid_fragmentation, has)
        else {
            return false;
        };
        let Some(taken) = self.take_wholes(found, from, 1) else { return true };
        self.count_in(|counts: &mut BuddyCounts| {
            counts.fallbacks += 1;
            counts.steals += 1;
            counts.retyped += found.pages() / PAGEBLOCK_PAGES;
        });
        taken.each(PAGEBLOCK_ORDER, |start| self.give_whole(start, from, to));
        true
    }

    /// Makes the free pageblock at `start`, of another ordinary type, one of this type.
    fn take_over(&mut self, start: Pfn, to: Migratetype) {
        let (group, bit) = self.bit_of(start);
        let has = |&from: &Migratetype| from.is_ordinary() && self.group(from, group) & bit != 0;
        let Some(from) = Migratetype::ALL.into_iter().find(has).filter(|&from| from != to) else { return };
        let (map, n) = self.group_at(from, group);
        let was = map.word(n);
        map.set_word(n, was & !bit);
        self.has_changed(from, group, was, was & !bit);
        if self.frames.free_whole(start) != Some(from) {
            return self.count_damaged(start, from);
        }
        self.count_in(|counts| counts.retyped += 1);
        self.give_whole(start, from, to);
    }

    /// Makes a pageblock that was taken from one type, and not counted, a free one of another.
    pub(super) fn give_whole(&mut self, start: Pfn, from: Migratetype, to: Migratetype) {
        self.account(from, -(PAGEBLOCK_PAGES as i64));
        self.retype(start, to);
        self.account(to, PAGEBLOCK_PAGES as i64);
        self.set_whole(start, to);
    }

    /// Takes the pageblock at `start`, if it is free as a whole. Returns the type whose bit it had; `None` also if its bit does not say
    /// so: then it is out of use. Not counted.
    pub(in crate::buddy) fn take_whole_at(&mut self, start: Pfn) -> Option<Migratetype> {
        let list = self.frames.free_whole(start)?;
        let (group, bit) = self.bit_of(start);
        let (map, n) = self.group_at(list, group);
        let was = map.word(n);
        if was & bit == 0 {
            self.frames.set_state(start, PAGEBLOCK_ORDER, State::Quarantined { order: PAGEBLOCK_ORDER });
            self.lose(list, PAGEBLOCK_PAGES);
            return None;
        }
        map.set_word(n, was & !bit);
        self.frames.set_state(start, PAGEBLOCK_ORDER, State::Body);
        self.has_changed(list, group, was, was & !bit);
        Some(list)
    }

    /// The same for all pageblocks of a block of the pageblock order or the largest. If one is damaged, the other is free again.
    pub(in crate::buddy) fn take_large_at(&mut self, start: Pfn, order: Order) -> Option<Migratetype> {
        let list = self.take_whole_at(start)?;
        if order == MAX_ORDER && self.take_whole_at(start.add(PAGEBLOCK_PAGES)).is_none() {
            self.set_whole(start, list);
            return None;
        }
        Some(list)
    }

    // ---- freeing -------------------------------------------------------------------------------------------

    /// Makes a pageblock that nobody has, and whose map is zero, a free one of its type `list`. Not counted.
    #[inline(always)]
    pub(in crate::buddy) fn set_whole(&mut self, start: Pfn, list: Migratetype) {
        let number = self.number_of(start) as usize;
        if let Some(pageblock) = self.pageblocks.get(number) {
            self.set_wholes(number, 1, list, [pageblock].into_iter());
        }
    }

    /// The same for two that are a pair then. At no time is the lower one a single.
    pub(in crate::buddy) fn set_pair(&mut self, start: Pfn, list: Migratetype) {
        let number = self.number_of(start) as usize;
        if let Some(pair) = self.pageblocks.get(number..number + 2) {
            self.set_wholes(number, 3, list, pair.iter());
        }
    }

    /// The same for those of one word whose bits are given, from that of the pageblock of a number on. O(1).
    #[inline(always)]
    fn set_wholes<'p>(
        &mut self,
        number: usize,
        bits: u64,
        list: Migratetype,
        pageblocks: impl Iterator<Item = &'p Pageblock<P>>,
    ) {
        let head = FreeHead::whole(list).word();
        pageblocks.for_each(|pageblock| pageblock.set_head_word(head));
        let group = number / GROUP;
        let (map, n) = self.group_at(list, group);
        let was = map.word(n);
        let now = was | bits << (number % GROUP);
        map.set_word(n, now);
        self.has_changed(list, group, was, now);
    }

    /// Frees neighbouring pageblocks in the most common case: all are of one ordinary type, without bad frames, and none is free
    /// already. On `false` the state is unchanged. The caller notes that a block came back.
    pub(in crate::buddy) fn put_pageblocks(&mut self, pfn: Pfn, count: u64) -> bool {
        let first = self.number_of(pfn) as usize;
        let Some(all) = self.pageblocks.get(first..first + count as usize) else { return false };
        let Some(info) = all.first().map(Pageblock::info) else { return false };
        let Some(list) = info.plain_type() else { return false };
        let may = |pageblock: &Pageblock<P>| {
            pageblock.info() == info && FreeHead::of_order(pageblock.head_word(), PAGEBLOCK_ORDER).is_none()
        };
        if !all.iter().all(may) {
            return false;
        }
        // Word by word.
        let mut rest = all;
        while !rest.is_empty() {
            let number = first + all.len() - rest.len();
            let (these, behind) = rest.split_at(rest.len().min(GROUP - number % GROUP));
            self.set_wholes(number, u64::MAX >> (GROUP - these.len()), list, these.iter());
            rest = behind;
        }
        self.account_put((count * PAGEBLOCK_PAGES) as i64);
        true
    }

    /// Frees a block of the pageblock order or the largest, in any case. Each pageblock is checked, counted and goes to its own type:
    /// while it was allocated, one may have been isolated or retyped.
    pub(in crate::buddy) fn put_large(&mut self, pfn: Pfn, order: Order, placement: super::Placement) {
        let starts = || (0..order.pages() / PAGEBLOCK_PAGES).map(|n| pfn.add(n * PAGEBLOCK_PAGES));
        let free = starts().filter(|&start| self.frames.free_whole(start).is_some()).count() as u64;
        if free > 0 {
            return self.count_refused(order.pages());
        }
        self.frames.set_state(pfn, order, State::Body);
        for start in starts() {
            let info = self.frames.info(start);
            if info.is_poisoned() && self.free_around_marks(start, PAGEBLOCK_ORDER, placement) {
                continue;
            }
            self.account_freed(info.migratetype(), PAGEBLOCK_PAGES as i64);
            self.set_whole(start, info.migratetype());
        }
    }

    // ---- checks --------------------------------------------------------------------------------------------

    /// Checks all that the bitmap of a type says. Returns its blocks of order 9 and 10.
    ///
    /// # Errors
    /// What is wrong, and where, if at one pageblock.
    pub(crate) fn check_whole(&self, list: Migratetype) -> Result<[u64; 2], (&'static str, Option<Pfn>)> {
        let mut roots = [0_u128; 2];
        let mut summary = [0; 2];
        for group in 0..self.groups() {
            let word = self.group(list, group);
            let mut left = word;
            while left != 0 {
                let start = self.start_of(group).add(u64::from(left.trailing_zeros()) * PAGEBLOCK_PAGES);
                left &= left - 1;
                let info = self.frames.info(start);
                if start >= self.end
                    || !info.is_present()
                    || info.zone() != self.zone
                    || info.migratetype() != list
                {
                    return Err(("a free pageblock is of another type or zone than its bit", Some(start)));
                }
                if self.frames.free_whole(start) != Some(list) {
                    return Err((
                        "a pageblock's bit says that it is free, and its head word does not",
                        Some(start),
                    ));
                }
            }
            let is_last = (group + 1).is_multiple_of(GROUP) || group + 1 == self.groups();
            for kind in KINDS {
                let all = &mut summary[kind as usize];
                *all |= u64::from(kind.of(word) != 0) << (group % GROUP);
                if !is_last {
                    continue;
                }
                let (map, n) = self.summary_at(list, kind, group / GROUP);
                if map.word(n) != *all {
                    return Err(("a summary of free pageblocks is not what its words have", None));
                }
                roots[kind as usize] |= u128::from(*all != 0) << (group / GROUP);
                *all = 0;
            }
        }
        if KINDS.into_iter().any(|kind| self.root(list, kind) != roots[kind as usize]) {
            return Err(("the root of free pageblocks is not what their summary has", None));
        }
        Ok(self.nr_whole(list))
    }
}
