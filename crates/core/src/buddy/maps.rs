//! Free memory as bits ([`Engine::Framewright`](crate::config::Engine::Framewright)).
//!
//! A pageblock is in one of three states:
//! * It is part of a block of order 9 or 10, free or taken: its map is zero, its head word is that of the block, and a
//!   free one has a bit in the bitmap of its type (see `whole`).
//! * It is *open*: 1 to 511 of its frames are free and set in its map. Its head word is an [`OpenHead`], which links it
//!   into a *bin*: the list of open pageblocks of its type, fullness class and largest free block.
//! * No frame of it is free: its map and its head word are zero.
//!
//! # Invariants
//! 1. A frame whose bit is set is free, and its own head word is [`State::Body`].
//! 2. The head word of an open pageblock counts the bits of its map and names their largest block.
//! 3. A pageblock is in the bin that its type and its head word name, and a bin's bit is set if it has a pageblock.
//! 4. A pageblock all of whose frames are free is not open: it is free as a whole.
//!
//! The bins are an index: all their content follows from maps and pageblock types. If a link is damaged, they are
//! rebuilt.
//!
//! # Which pageblock
//! An allocation takes from a pageblock whose largest block is as small as suffices, and among those from the fullest.
//! So small blocks do not break larger ones that a later request needs, and pageblocks with few free frames fill up.
//! Pageblocks that are nearly free, whose largest block is large, stay alone until they are free: memory becomes
//! contiguous again by itself. A block of order 9 is opened only when no open pageblock of the type has what is needed.

mod bins;
mod longest;
mod looking;
mod put;
mod whole;

use super::{Buddy, BuddyCounts, Each, Placement, Sink, Taken, Wanted};
use crate::frame::{
    Bits, BlockInfo, FreeHead, Map, OpenHead, Pageblock, State, WORDS, lowest, range_in_word, starts,
};
use crate::platform::Platform;
use crate::policy::fallback::{self, Source, Steal};
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
pub(super) use bins::Bins;
pub(crate) use longest::Picked;
pub(super) use whole::Whole;
pub(crate) use whole::{Bitmaps, maps_of_bitmaps};

/// Classes of fullness.
pub(crate) const CLASSES: usize = 7;
/// Orders that a largest free block of an open pageblock can have.
const ORDERS: usize = PAGEBLOCK_ORDER.index();
/// Bins of one type: one bit of a word each.
const BINS: usize = CLASSES * ORDERS;
const _: () = assert!(BINS <= 64);
const TYPES: usize = Migratetype::ALL.len();

/// Least free frames of each class but the first.
const CLASS_BOUNDS: [u32; CLASSES - 1] = [16, 48, 112, 192, 288, 416];

/// Common divisor of all bounds.
const STEP: u32 = 16;

/// The class, by free frames in steps: as many as a head word can say, damaged or not.
const CLASS_AT: [u8; (1024 / STEP) as usize] = {
    let mut table = [0; (1024 / STEP) as usize];
    let mut class = 0;
    while class < CLASSES - 1 {
        assert!(CLASS_BOUNDS[class].is_multiple_of(STEP));
        let mut step = (CLASS_BOUNDS[class] / STEP) as usize;
        while step < table.len() {
            table[step] += 1;
            step += 1;
        }
        class += 1;
    }
    table
};

/// The bin of a pageblock. The smallest largest block comes first, of these the fullest class.
#[inline]
fn bin_of(free: u32, largest: u8) -> usize {
    usize::from(largest) * CLASSES + usize::from(CLASS_AT[(free / STEP) as usize])
}

/// Bins whose pageblocks have a free block of at least `order`.
pub(crate) const AT_LEAST: [u64; ORDERS] = {
    let mut table = [0; ORDERS];
    let mut bin = 0;
    while bin < BINS {
        let mut order = 0;
        while order <= bin / CLASSES {
            table[order] |= 1 << bin;
            order += 1;
        }
        bin += 1;
    }
    table
};

/// Bins whose pageblocks have a largest free block of exactly `order`.
pub(crate) const fn exactly(order: Order) -> u64 {
    let at = order.index();
    AT_LEAST[at] & !(if at + 1 < ORDERS { AT_LEAST[at + 1] } else { 0 })
}

/// Bins whose pageblocks may have half of their frames free, as [`fallback::retypes`] asks.
pub(crate) const CLAIMABLE: u64 = {
    let (mut table, mut bin) = (0, 0);
    while bin < BINS {
        let class = bin % CLASSES;
        if class == CLASSES - 1 || CLASS_BOUNDS[class] as u64 > PAGEBLOCK_PAGES / 2 {
            table |= 1 << bin;
        }
        bin += 1;
    }
    table
};

impl<'m, P: Platform, M> Buddy<'_, 'm, P, M> {
    /// The map of the pageblock of `pfn`. Only with maps, and in this zone.
    #[inline]
    pub(super) fn map(&self, pfn: Pfn) -> Map<'m, P> {
        self.frames.map(pfn).expect("every frame of a zone with maps has one")
    }

    /// Whether a pageblock has memory of this zone, and this type. For verification.
    fn is_of_type(&self, start: Pfn, list: Migratetype) -> bool {
        let info = self.frames.info(start);
        (info.is_present(), info.zone(), info.migratetype()) == (true, self.common.zone, list)
    }

    /// Called where damage is found.
    ///
    /// # Panics
    /// If the code that repairs it is left out.
    #[inline(always)]
    fn must_mend(&self) {
        if !cfg!(feature = "mobility") {
            panic!("the free store is damaged");
        }
    }

    /// Moves a pageblock whose free frames have changed to the right bin, and writes its head word. `old` is its head
    /// word before, if it was open; `tail`: whether it goes to the tail of another bin. Closes the pageblock if all of
    /// it is free.
    pub(super) fn refile(
        &mut self,
        start: Pfn,
        list: Migratetype,
        old: Option<OpenHead>,
        (free, largest): (u32, u8),
        tail: bool,
    ) {
        if let Some(head) = old {
            let is_open = (1..PAGEBLOCK_PAGES as u32).contains(&free);
            if is_open && bin_of(head.free(), head.largest()) == bin_of(free, largest) {
                // A bin has one order of largest blocks.
                return self.set_head(self.number_of(start), head.with_free(free).word());
            }
            let counts_too_many = u64::from(free) > PAGEBLOCK_PAGES;
            if counts_too_many {
                self.rebuild();
            }
            if counts_too_many || !self.leave(start, list, head) {
                // The bins were rebuilt, with this pageblock. One that is free as a whole is in no bin.
                if self.map(start).bits() == Bits::ALL {
                    self.close(start);
                }
                return;
            }
        }
        match free {
            0 => self.set_head(self.number_of(start), 0),
            // All of it is free by its map. The count in the head word may be damaged.
            _ if usize::from(largest) >= ORDERS => self.close(start),
            _ => self.enter(start, list, free, largest, tail),
        }
    }

    /// Sets all bits of a pageblock, of which frames were taken, and moves it to the right bin.
    pub(super) fn set_bits(&mut self, start: Pfn, list: Migratetype, old: Option<OpenHead>, left: Bits) {
        self.map(start).set_words(0..WORDS, &left);
        self.refile(start, list, old, (left.count() as u32, left.largest().unwrap_or(0)), false);
    }

    /// Makes a pageblock whose frames are all free, and which is in no bin, a free block.
    fn close(&mut self, start: Pfn) {
        self.map(start).set_words(0..WORDS, &Bits::NONE);
        self.set_whole(start, self.frames.info(start).migratetype());
    }

    // ---- taking --------------------------------------------------------------------------------------------

    /// Takes from the pageblock that the rule in the file's head selects for `order`, or opens one.
    pub(super) fn take_bits(
        &mut self,
        order: Order,
        list: Migratetype,
        most: u64,
        sink: &mut (impl Sink + ?Sized),
    ) -> Option<Taken> {
        loop {
            let fit = self.occupied(list) & AT_LEAST[order.index()];
            if fit == 0 {
                let start = self.unlink_closed(list)?;
                return Some(self.take_of(start, None, list, order, most, sink));
            }
            let start = self.first_in(list, fit.trailing_zeros());
            if let Some(taken) = self.take_open(start, list, order, most, sink) {
                return Some(taken);
            }
        }
    }

    /// Takes from an open pageblock. `None` if it has no such block: then its bin was wrong, and all bins are rebuilt.
    pub(super) fn take_open(
        &mut self,
        start: Pfn,
        list: Migratetype,
        order: Order,
        most: u64,
        sink: &mut (impl Sink + ?Sized),
    ) -> Option<Taken> {
        if let Some(head) = self.frames.open_head(start) {
            let taken = self.take_of(start, Some(head), list, order, most, sink);
            if taken.blocks != 0 {
                return Some(taken);
            }
        }
        self.rebuild();
        None
    }

    /// Takes blocks of the pageblock at `start`, whose head word is `old`; `None` if all of it is free, and it is in no
    /// bin. Nothing has changed if it has no such block.
    fn take_of(
        &mut self,
        start: Pfn,
        old: Option<OpenHead>,
        list: Migratetype,
        order: Order,
        most: u64,
        sink: &mut (impl Sink + ?Sized),
    ) -> Taken {
        let map = self.map(start);
        let (mut bits, free, largest) = match old {
            Some(head) => (map.bits(), head.free(), head.largest()),
            None => (Bits::ALL, PAGEBLOCK_PAGES as u32, PAGEBLOCK_ORDER.get()),
        };
        let (mut blocks, mut bad, mut room) = (0, 0, sink.room());
        let (mut found, mut end, mut left) = ([0; WORDS], 0, 0);
        let step = Bits::words_of(order);
        while end < WORDS && blocks < most && room != 0 {
            // Most words of a full pageblock are zero.
            let starts = if bits.0[end] == 0 { 0 } else { bits.starts(end, order) };
            if starts != 0 {
                let taken = lowest(starts, most - blocks);
                left = starts & !taken;
                blocks += if taken & (taken - 1) == 0 { 1 } else { u64::from(taken.count_ones()) };
                room -= 1;
                found[end] = taken;
                bits.take(end, order, taken);
                if old.is_some() {
                    map.set_words(end..end + step, &bits);
                }
            }
            end += step;
        }
        if blocks == 0 {
            return Taken { list, blocks, bad };
        }
        if old.is_none() {
            map.set_words(0..WORDS, &bits);
        }
        let free = free.saturating_sub((blocks << order.get()) as u32);
        let is_left = left != 0 && order.get() == largest;
        let largest = if is_left { Some(largest) } else { bits.largest_upto(largest) };
        self.refile(start, list, old, (free, largest.unwrap_or(0)), false);
        self.account(list, -((blocks << order.get()) as i64));
        for (n, &starts) in found[..end].iter().enumerate() {
            if starts != 0 {
                bad += sink.add(start.add(n as u64 * 64), starts, 1);
            }
        }
        Taken { list, blocks, bad }
    }

    /// Makes a block of at least `order` available to `wanted`: from two buddies of different types, or from another
    /// type. Returns the pageblock to take from and its type, if it keeps that type; `Some(None)` if the lists of
    /// `wanted` have blocks now.
    ///
    /// A pageblock is in bins of its own type only, so a fallback either gives the requester the pageblock with the
    /// largest block and all its free frames, or takes only the blocks requested, of the smallest ones that suffice
    /// (the rule of Linux since v6.15). Of a pair it gets both pageblocks: so those of types that do not move are
    /// neighbours, and the ranges between them are long. `kept` is the last pageblock that kept its type in this take:
    /// its free frames only become fewer, so it is not looked at again.
    #[expect(clippy::option_option, reason = "found nothing, made something available, take it there")]
    pub(super) fn fall_back(
        &mut self,
        wanted: Wanted,
        kept: &mut Option<Pfn>,
    ) -> Option<Option<(Pfn, Migratetype)>> {
        let Wanted { order, migratetype: wanted, generation, avoid_fragmentation, .. } = wanted;
        if order == MAX_ORDER
            && wanted.is_ordinary()
            && let Some(lower) = self.mixed_pair(None)
        {
            self.take_over(lower, wanted);
            self.take_over(lower.add(PAGEBLOCK_PAGES), wanted);
            return Some(None);
        }
        let Source { order: found, migratetype: from, steal } =
            fallback::choose(generation, order, wanted, self.grouping(), avoid_fragmentation, |at, list| {
                if at >= PAGEBLOCK_ORDER { self.has_whole(at, list) } else { self.has_bits(at, list) }
            })?;
        // A damaged list gives nothing, and nothing is counted.
        let count = |counts: &mut BuddyCounts, retyped: u64| {
            counts.fallbacks += 1;
            counts.fragmenting += u64::from(steal != Steal::Retype);
            counts.steals += u64::from(retyped != 0);
            counts.retyped += retyped;
        };
        if found >= PAGEBLOCK_ORDER {
            let Some(taken) = self.take_wholes(found, from, 1) else { return Some(None) };
            self.count_in(|counts| count(counts, found.pages() / PAGEBLOCK_PAGES));
            taken.each(PAGEBLOCK_ORDER, |start| self.give_whole(start, from, wanted));
            return Some(None);
        }
        if steal == Steal::Pageblock {
            // Of the pageblocks with such a block, the one with most free frames.
            let fit = self.cold.bins.occupied[from as usize].get() & exactly(found);
            let start = self.first_in(from, fit.checked_ilog2()?);
            let Some(head) = self.frames.open_head(start) else {
                self.rebuild();
                return Some(None);
            };
            let takes_all = *kept != Some(start) && {
                let free = u64::from(head.free());
                let certain = fallback::retypes(free, 0, self.grouping());
                let movable = if certain { 0 } else { self.movable_pages(start) };
                let compatible = fallback::compatible_pages(generation, wanted, from, free, movable);
                fallback::retypes(free, compatible, self.grouping())
            };
            if takes_all {
                self.count_in(|counts| count(counts, 1));
                self.retype(start, wanted);
                self.move_bits(start, from, wanted);
                return Some(None);
            }
            *kept = Some(start);
        }
        self.count_in(|counts| count(counts, 0));
        // Nothing else comes along, so no larger block is broken than must be.
        let (_, from) = self.smallest_fallback(order, wanted)?;
        let fit = self.cold.bins.occupied[from as usize].get() & AT_LEAST[order.index()];
        Some(Some((self.first_in(from, fit.trailing_zeros()), from)))
    }

    /// The first pageblock of a bin that has one.
    fn first_in(&self, list: Migratetype, bin: u32) -> Pfn {
        self.pageblock_of(self.cold.bins.ends[list as usize][bin as usize].get().first)
    }

    /// Changes the event counters.
    fn count_in(&mut self, change: impl FnOnce(&mut BuddyCounts)) {
        let mut counts = self.cold.counts.get();
        change(&mut counts);
        self.cold.counts.set(counts);
    }

    /// Base pages of an open pageblock that are allocated, and movable; counted until they are more than half: no rule
    /// asks for more. O(512).
    fn movable_pages(&self, start: Pfn) -> u64 {
        if self.frames.is_compact() {
            // It is not recorded for each block. In a movable pageblock all count as movable, in others none.
            let movable = self.frames.info(start).migratetype() == Migratetype::Movable;
            return if movable { PAGEBLOCK_PAGES } else { 0 };
        }
        self.frames.movable_in(start, PAGEBLOCK_PAGES / 2)
    }

    // ---- freeing -------------------------------------------------------------------------------------------

    /// Frees `pages` frames from `first` on, which are blocks of `order` in one pageblock. Their head words are
    /// [`State::Body`]. Frames that are free already stay free, and are counted as refused.
    #[inline(never)]
    pub(super) fn put_bits(&mut self, first: Pfn, pages: u64, order: Order) {
        let list = self.frames.info(first).migratetype();
        let start = first.block_start(PAGEBLOCK_ORDER);
        let map = self.map(first);
        let head = self.frames.pageblock(start).map_or(0, Pageblock::head_word);
        if FreeHead::of_order(head, PAGEBLOCK_ORDER).is_some() {
            return self.count_refused(pages);
        }
        let old = OpenHead::of(head);
        let from = first.0 % PAGEBLOCK_PAGES;
        let (mut largest, mut refused, mut full) =
            (old.map_or(0, OpenHead::largest).max(order.get()), 0, false);
        for n in (from / 64) as usize..=((from + pages - 1) / 64) as usize {
            let range = range_in_word(n, from, pages);
            let before = map.word(n);
            let now = before | range;
            map.set_word(n, now);
            if before & range != 0 {
                refused += u64::from((before & range).count_ones());
            }
            full |= now == u64::MAX;
            // Only blocks that hold a frame of the range have grown.
            while largest < 6 && starts(now, largest + 1) != 0 {
                largest += 1;
            }
        }
        self.count_refused(refused);
        if refused == pages {
            return;
        }
        if full {
            largest = map.bits().largest().unwrap_or(0);
        }
        let freed = pages - refused;
        self.account(list, freed as i64);
        self.refile(start, list, old, (old.map_or(0, OpenHead::free) + freed as u32, largest), true);
    }

    /// Counts frames that were free already when they were freed.
    pub(super) fn count_refused(&mut self, pages: u64) {
        if pages != 0 {
            self.count_in(|counts| counts.refused_pages += pages);
        }
    }

    // ---- whole pageblocks ----------------------------------------------------------------------------------

    /// Moves the free frames of an open pageblock, whose type has just changed, to the bins of its new type. Returns
    /// their number; `None` if it is not open.
    pub(super) fn move_bits(&mut self, start: Pfn, from: Migratetype, to: Migratetype) -> Option<u64> {
        let head = self.frames.open_head(start)?;
        // If its bin was damaged, all bins were rebuilt with the present types.
        if self.leave(start, from, head) {
            self.enter(start, to, head.free(), head.largest(), true);
        }
        let pages = u64::from(head.free());
        self.account(from, -(pages as i64));
        self.account(to, pages as i64);
        Some(pages)
    }

    /// Takes the free frames of an isolated pageblock out of the zone.
    pub(super) fn forget_bits(&mut self, start: Pfn, info: BlockInfo) {
        let Some(mut head) = self.frames.open_head(start) else { return };
        while !self.leave(start, info.migratetype(), head) {
            let Some(again) = self.frames.open_head(start) else { return };
            head = again;
        }
        self.map(start).set_words(0..WORDS, &Bits::NONE);
        self.frames.set_state(start, PAGEBLOCK_ORDER, State::Body);
    }

    /// Takes up to `most` free blocks of `order`, below the pageblock order, from an open pageblock, lowest first, and
    /// passes them to `keep`. Returns their number.
    pub(super) fn take_bits_of(
        &mut self,
        start: Pfn,
        order: Order,
        most: usize,
        mut keep: impl FnMut(Pfn),
    ) -> usize {
        let list = self.frames.info(start).migratetype();
        let usable = list.is_ordinary() || list == Migratetype::Cma;
        let Some(head) = self.frames.open_head(start).filter(|_| usable && most != 0) else { return 0 };
        let mut sink = Each(|pfn| {
            keep(pfn);
            true
        });
        self.take_of(start, Some(head), list, order, most as u64, &mut sink).blocks as usize
    }
}
