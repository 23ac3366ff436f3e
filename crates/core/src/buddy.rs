//! The free store of a zone or section: split and merge on free lists, or bits with maps. Code that has a [`Buddy`]
//! holds the lock.
//!
//! # Invariants
//! 1. A free block of order `k` starts at a multiple of `2^k` and is inside one zone.
//! 2. Its head word is [`State::Free`] with its order, its list's type and its neighbours on that list; every other
//!    head word inside it is [`State::Body`].
//! 3. `nr_free` of an order counts the blocks on all its lists except the isolated one.
//! 4. Two free buddies of order `k < 10` exist only where merging is forbidden: across pageblocks whose types
//!    differ, if either type is not ordinary.
//!
//! With maps, 2 and 3 take another form, which `maps` and `maps::whole` state. Two free pageblocks that may merge count
//! as one block there; nothing is written to merge them.
//!
//! Every operation keeps the invariants; `verify` checks them. Costs: to take or free one block is O(orders) list
//! operations; a steal may walk one pageblock.

mod account;
mod compact;
mod contents;
mod lists;
mod maps;
mod pageblock;
mod place;
mod shown;
mod sink;
#[cfg(test)]
pub(crate) mod testing;
mod untouched;

use core::fmt;
use core::ops::Range;

use crate::frame::{BlockInfo, FrameMap, FreeHead, Pageblock, State};
use crate::platform::Platform;
use crate::policy::Generation;
use crate::policy::fallback::{self, Steal};
use crate::sync::Slot;
use crate::units::{MAX_ORDER, Migratetype, NR_ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};
pub(crate) use account::{Counters, Pending};
use lists::EMPTY;
pub(crate) use maps::{AT_LEAST, Bitmaps, CLAIMABLE, CLASSES, Picked, exactly, maps_of_bitmaps};
use maps::{Bins, Whole};
pub(crate) use shown::{MIXED, WHOLE, WORDS};
pub(crate) use sink::{Each, Pieces, Sink};
pub(crate) use untouched::Untouched;

/// Types that have a list in every free area. Isolated blocks are elsewhere: their lists are cold, and without them an
/// area is as large as in a Linux built with CMA (88 bytes).
pub const LISTED_TYPES: usize = 5;

const NONE: u64 = u64::MAX;

/// First and last block of a list, as frame numbers relative to the link base; [`NONE`] if empty.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Ends {
    first: u64,
    last: u64,
}

/// The free blocks of one order.
#[repr(C)]
struct FreeArea<P: Platform> {
    lists: [Slot<P, Ends>; LISTED_TYPES],
    /// Blocks on these lists.
    nr_free: Slot<P, u64>,
}

/// The free lists of a zone, in Linux' layout: order 0 first, 88 bytes an order.
#[repr(C)]
pub struct FreeAreas<P: Platform> {
    areas: [FreeArea<P>; NR_ORDERS],
    /// Number of isolated pageblocks. At the address of the zone's flags in Linux.
    isolated_pageblocks: Slot<P, u64>,
}

impl<P: Platform> FreeAreas<P> {
    /// No free block at all.
    pub(crate) fn new() -> Self {
        Self {
            areas: core::array::from_fn(|_| FreeArea {
                lists: core::array::from_fn(|_| Slot::new(EMPTY)),
                nr_free: Slot::new(0),
            }),
            isolated_pageblocks: Slot::new(0),
        }
    }

    /// Byte offsets of the order-0 lists, of order 0's count, of the order-10 lists and of the flags word.
    #[must_use]
    pub const fn offsets() -> [usize; 4] {
        let area = size_of::<FreeArea<P>>();
        [
            core::mem::offset_of!(Self, areas),
            core::mem::offset_of!(FreeArea<P>, nr_free),
            core::mem::offset_of!(Self, areas) + MAX_ORDER.index() * area,
            core::mem::offset_of!(Self, isolated_pageblocks),
        ]
    }
}

impl<P: Platform> fmt::Debug for FreeAreas<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.areas.iter().map(|area| area.nr_free.get())).finish()
    }
}

/// Event counters of the free store. Blocks, unless a field states another unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BuddyCounts {
    /// Times a request found its own lists empty and took from those of another type.
    pub fallbacks: u64,
    /// Fallbacks that left a pageblock with blocks of two types: each may boost the watermarks.
    pub fragmenting: u64,
    /// Fallbacks that took all free blocks of a pageblock.
    pub steals: u64,
    /// Pageblocks that changed their type because of a steal.
    pub retyped: u64,
    /// Base pages taken out of use because a free list was damaged there.
    pub damaged_pages: u64,
    /// Times the bins of open pageblocks were damaged, and rebuilt (with maps).
    pub rebuilt_bins: u64,
    /// Base pages that were free already when they were given back (with maps).
    pub refused_pages: u64,
}

impl core::ops::AddAssign for BuddyCounts {
    fn add_assign(&mut self, more: Self) {
        self.fallbacks += more.fallbacks;
        self.fragmenting += more.fragmenting;
        self.steals += more.steals;
        self.retyped += more.retyped;
        self.damaged_pages += more.damaged_pages;
        self.rebuilt_bins += more.rebuilt_bins;
        self.refused_pages += more.refused_pages;
    }
}

/// Guarded data outside the hot cache lines.
pub struct Cold<P: Platform> {
    isolated: [Slot<P, Ends>; NR_ORDERS],
    /// Pageblocks with a bad frame in use.
    marked_pageblocks: Slot<P, u64>,
    counts: Slot<P, BuddyCounts>,
    /// Whether it was ever given memory, if memory may stay untouched.
    has_memory: Slot<P, bool>,
    /// Only with maps.
    bins: Bins<P>,
    /// Only with maps.
    whole: Whole<P>,
}

impl<P: Platform> Cold<P> {
    pub(crate) fn new() -> Self {
        Self {
            isolated: core::array::from_fn(|_| Slot::new(EMPTY)),
            marked_pageblocks: Slot::new(0),
            counts: Slot::new(BuddyCounts::default()),
            has_memory: Slot::new(false),
            bins: Bins::new(),
            whole: Whole::new(),
        }
    }

    /// Byte offset of the words that record which bins have a pageblock.
    pub(crate) const fn bins_offset() -> usize {
        core::mem::offset_of!(Self, bins)
    }
}

impl<P: Platform> fmt::Debug for Cold<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.get().fmt(f)
    }
}

/// Adjacent blocks of one order inside one pageblock. If they are as large as pageblocks: with lists inside one block
/// of the largest order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// First frame of the first block.
    pub(crate) first: Pfn,
    /// Number of blocks.
    pub(crate) count: u32,
    /// Order of each block.
    pub(crate) order: Order,
}

impl Run {
    /// Adds a block that continues the run upwards or downwards: inside its pageblock, one of huge blocks inside `most`
    /// frames. On `false` the run is unchanged.
    #[inline(always)]
    pub(crate) const fn extend(&mut self, pfn: Pfn, order: Order, most: u64) -> bool {
        let within = if order.get() < PAGEBLOCK_ORDER.get() { PAGEBLOCK_PAGES } else { most };
        if order.get() != self.order.get() || (pfn.0 ^ self.first.0) & !(within - 1) != 0 {
            return false;
        }
        let is_below = pfn.0 + order.pages() == self.first.0;
        if is_below {
            self.first = pfn;
        } else if pfn.0 != self.first.0 + ((self.count as u64) << order.get()) {
            return false;
        }
        self.count += 1;
        true
    }
}

/// Place of a freed block on its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// To the head, unless its parent's buddy is free: then to the tail, where it may stay until it merges.
    Likely,
    /// At the tail: memory that was just added, or is put back.
    Tail,
}

/// Request to the free store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Order of each block.
    pub order: Order,
    /// The type requested: one of the ordinary three, or a reserve that the caller may use.
    pub migratetype: Migratetype,
    /// Whether the request may take CMA blocks: only a movable one.
    pub may_use_cma: bool,
    /// Whether to take from other types if there is no block of the type.
    pub may_fall_back: bool,
    /// Release whose rules of stealing apply.
    pub generation: Generation,
    /// Whether to take whole pageblocks of other types only, rather than blocks of mixed ones.
    pub avoid_fragmentation: bool,
}

/// Result of one step of a take.
struct Taken {
    /// The type of the pageblock or list.
    list: Migratetype,
    /// Number of blocks.
    blocks: u64,
    /// Number of bad blocks.
    bad: u64,
}

/// What the sections of a zone share.
#[repr(C)]
pub(crate) struct Common<'m, P: Platform> {
    pub(crate) counters: Counters<P>,
    /// Words that the sections publish, if there are several: see `shown`.
    pub(crate) words: &'m [P::Word],
    /// Pageblocks that are isolated or have a bad frame in use, if there are several sections.
    pub(crate) special: P::Word,
    pub(crate) zone: ZoneId,
    /// Whether pageblocks record that hooks were told that they are free.
    pub(crate) reports: bool,
    /// Whether memory may stay untouched until it is needed.
    pub(crate) lazy: bool,
}

/// Constants where a feature is left out, so that the compiler drops what depends on them.
impl<P: Platform> Common<'_, P> {
    /// Whether the zone has several sections.
    #[inline(always)]
    const fn is_cut(&self) -> bool {
        cfg!(feature = "smp") && !self.words.is_empty()
    }

    #[inline(always)]
    pub(crate) const fn is_lazy(&self) -> bool {
        cfg!(feature = "settings") && self.lazy
    }

    #[inline(always)]
    const fn reports(&self) -> bool {
        cfg!(feature = "settings") && self.reports
    }
}

/// What a section has outside its lock.
#[repr(C)]
pub(crate) struct Extent<P: Platform> {
    pub(crate) untouched: Untouched<P>,
    /// Bitmaps of its free pageblocks, if it has maps.
    pub(crate) bitmaps: Bitmaps,
    /// The number of the section.
    pub(crate) n: usize,
    /// Its frames.
    pub(crate) range: Range<Pfn>,
}

/// A zone's free memory, with the lock held.
pub struct Buddy<'a, 'm, P: Platform, M> {
    areas: &'a mut FreeAreas<P>,
    cold: &'a mut Cold<P>,
    common: &'a Common<'a, P>,
    extent: &'a Extent<P>,
    /// Pages in pageblocks reserved for high-order atomic requests.
    highatomic: &'a P::Word,
    frames: &'a FrameMap<'m, P, M>,
    pending: Pending,
    /// The descriptors of pageblocks from the zone's first on, as bins number them.
    pageblocks: &'m [Pageblock<P>],
    /// Whether the zone is large enough to group by mobility; with maps computed when it is needed.
    grouping: Option<bool>,
    /// A bit for each type whose bins or free pageblocks have changed.
    changed: u8,
    /// Whether the zone's last bad frame in use went out of use in this hold.
    is_unmarked: bool,
}

impl<P: Platform, M> fmt::Debug for Buddy<'_, '_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buddy")
            .field("zone", &self.common.zone)
            .field("areas", &self.areas)
            .finish_non_exhaustive()
    }
}

impl<'a, 'm, P: Platform, M> Buddy<'a, 'm, P, M> {
    #[cfg_attr(not(feature = "settings"), inline(never))]
    pub(crate) fn new(
        areas: &'a mut FreeAreas<P>,
        cold: &'a mut Cold<P>,
        (common, extent, highatomic): (&'a Common<'a, P>, &'a Extent<P>, &'a P::Word),
        frames: &'a FrameMap<'m, P, M>,
    ) -> Self {
        let grouping = if frames.has_maps() { None } else { Some(common.counters.grouping()) };
        Self {
            areas,
            cold,
            common,
            extent,
            highatomic,
            frames,
            pending: Pending::default(),
            pageblocks: frames.pageblocks_from(extent.range.start),
            grouping,
            changed: 0,
            is_unmarked: false,
        }
    }

    /// Whether the zone is large enough to group by mobility.
    fn grouping(&self) -> bool {
        self.grouping.unwrap_or_else(|| self.common.counters.grouping())
    }

    // ---- taking ------------------------------------------------------------------------------------

    /// Takes up to `count` blocks and passes them to `sink` in the order obtained. Returns their number.
    ///
    /// With lists each block is the one that a single request would get: the first block of the smallest order that has
    /// one of the type; its lower part is handed out, its upper parts go to the heads of the lower lists. With maps as
    /// many blocks as possible come from one pageblock before the next one is searched. A section among several ends
    /// the take early where its next bin is worse than the first one: another section may have a better one. The head
    /// words of the blocks are [`State::Body`] then; the caller must give each its state.
    ///
    /// `balance` is the zone's free pages and free CMA pages, read before the lock was taken; with `None` they are read
    /// here. Free CMA pages are counted for good blocks only, so that they drift upwards with each bad one, as in Linux
    /// before the *refill-check* change.
    pub(crate) fn take(
        &mut self,
        wanted: Wanted,
        count: u64,
        balance: Option<(u64, u64)>,
        sink: &mut (impl Sink + ?Sized),
    ) -> u64 {
        let (free, free_cma) = match balance {
            Some(balance) => balance,
            None => (self.common.counters.free_pages(), self.common.counters.free_cma_pages()),
        };
        let is_one_of_several = self.common.is_cut() && self.has_bits_of(wanted.order);
        let bin = if is_one_of_several { self.next_bin(&wanted) } else { 0 };
        let (mut taken, mut taken_cma, mut kept) = (0, 0, None);
        while taken < count && sink.room() != 0 {
            let free_cma = free_cma.saturating_sub(taken_cma << wanted.order.get());
            let cma_first = cfg!(feature = "mobility")
                && fallback::cma_first(wanted.migratetype, wanted.may_use_cma, free, free_cma);
            // Each block taken from CMA changes the balance; Linux takes one at a time.
            let most = if self.frames.has_maps() && !cma_first { count - taken } else { 1 };
            let Some(Taken { list, blocks, bad }) = self.take_some(wanted, most, cma_first, &mut kept, sink)
            else {
                break;
            };
            taken += blocks;
            if list == Migratetype::Cma {
                taken_cma += blocks;
                self.pending.cma += (bad << wanted.order.get()) as i64;
            }
            if is_one_of_several && self.next_bin(&wanted) > bin {
                break;
            }
        }
        self.pending.touched = true;
        taken
    }

    /// Takes up to `most` blocks of one list, or of one pageblock; from another type if there is none. `kept`: see
    /// `fall_back`.
    fn take_some(
        &mut self,
        wanted: Wanted,
        most: u64,
        cma_first: bool,
        kept: &mut Option<Pfn>,
        sink: &mut (impl Sink + ?Sized),
    ) -> Option<Taken> {
        let Wanted { order, migratetype, may_use_cma, may_fall_back, .. } = wanted;
        if !cfg!(feature = "mobility") {
            return self.take_of_type(order, Migratetype::Movable, most, sink);
        }
        if cma_first && let Some(taken) = self.take_of_type(order, Migratetype::Cma, most, sink) {
            return Some(taken);
        }
        // After a steal the lists of the type have a block; only a damaged block needs a third round.
        loop {
            if let Some(taken) = self.take_of_type(order, migratetype, most, sink) {
                return Some(taken);
            }
            if may_use_cma && let Some(taken) = self.take_of_type(order, Migratetype::Cma, most, sink) {
                return Some(taken);
            }
            let source = if !may_fall_back {
                return None;
            } else if self.frames.has_maps() {
                self.fall_back(wanted, kept)?
            } else {
                self.steal(wanted).then_some(None)?
            };
            if let Some((start, list)) = source
                && let Some(taken) = self.take_open(start, list, order, most, sink)
            {
                return Some(taken);
            }
        }
    }

    /// Takes up to `most` blocks of a type and counts them, without lists all of one pageblock or of neighbouring ones.
    /// The sink gets them last: if it panics, they are taken.
    #[inline]
    fn take_of_type(
        &mut self,
        order: Order,
        list: Migratetype,
        most: u64,
        sink: &mut (impl Sink + ?Sized),
    ) -> Option<Taken> {
        if self.has_bits_of(order) {
            return self.take_bits(order, list, most, sink);
        }
        if self.frames.has_maps() {
            let wholes = self.take_wholes(order, list, most)?;
            let (blocks, starts) = (wholes.blocks(order), wholes.starts(order));
            self.account(list, -((blocks << order.get()) as i64));
            return Some(Taken { list, blocks, bad: sink.add(wholes.start, starts, PAGEBLOCK_PAGES) });
        }
        let first = self.carve(order, list)?;
        self.account(list, -(order.pages() as i64));
        Some(Taken { list, blocks: 1, bad: sink.add(first, 1, 1) })
    }

    /// Whether free blocks of this order are kept as bits.
    #[inline]
    fn has_bits_of(&self, order: Order) -> bool {
        order < PAGEBLOCK_ORDER && self.frames.has_maps()
    }

    /// Takes the first block of the smallest sufficient order off `list`, cuts a block from its lower end and puts the
    /// upper halves at the heads of the lists.
    fn carve(&mut self, order: Order, list: Migratetype) -> Option<Pfn> {
        let (from, first) =
            order.and_above().find_map(|from| Some((from, self.unlink_first(from, list)?)))?;
        if from >= PAGEBLOCK_ORDER {
            self.forget_reports(first, first.add(order.pages()));
        }
        for half in order.and_above().take_while(|&half| half < from) {
            self.insert(first.add(half.pages()), half, list, false);
        }
        Some(first)
    }

    /// Makes a block of at least `order` available on the lists of `wanted` by taking from another type.
    ///
    /// Linux `__rmqueue_fallback`; v6.1: the largest block of the other types, to mix few pageblocks; a movable request
    /// that may not have the whole pageblock takes the smallest instead.
    fn steal(&mut self, wanted: Wanted) -> bool {
        let Wanted { order, migratetype: wanted, generation, avoid_fragmentation, .. } = wanted;
        let has_block = |at: Order, list| self.has(at, list);
        let source =
            fallback::choose(generation, order, wanted, self.grouping(), avoid_fragmentation, has_block);
        let Some(source) = source else { return false };
        let first = self.ends(source.order, source.migratetype).first;
        let pfn = self.pfn_of(first);
        let mut counts = self.cold.counts.get();
        counts.fallbacks += 1;
        counts.fragmenting += u64::from(source.steal != Steal::Retype);
        let mut moved = 0;
        match source.steal {
            Steal::Retype => {
                for n in 0..source.order.pages() / PAGEBLOCK_PAGES {
                    self.retype(pfn.add(n * PAGEBLOCK_PAGES), wanted);
                    counts.retyped += 1;
                }
                counts.steals += 1;
                self.cold.counts.set(counts);
                moved = self.move_to(pfn, wanted);
            }
            Steal::Pageblock => {
                moved = self.claim_pageblock(pfn, wanted, generation, &mut counts);
                counts.steals += u64::from(moved != 0);
                self.cold.counts.set(counts);
            }
            Steal::Block => self.cold.counts.set(counts),
        }
        if moved == 0 {
            moved = self.move_to(pfn, wanted);
        }
        if moved == 0 {
            // No such block starts there: the list is damaged.
            self.give_up(source.order, source.migratetype);
        }
        true
    }

    /// Moves all free blocks of a pageblock to the lists of `wanted`, and retypes it if enough of it then suits the
    /// type. Returns the pages moved.
    fn claim_pageblock(
        &mut self,
        pfn: Pfn,
        wanted: Migratetype,
        generation: Generation,
        counts: &mut BuddyCounts,
    ) -> u64 {
        let before = self.frames.info(pfn).migratetype();
        let moved = self.move_free_blocks(pfn, wanted);
        if moved.free == 0 {
            return 0;
        }
        let compatible = fallback::compatible_pages(generation, wanted, before, moved.free, moved.movable);
        if fallback::retypes(moved.free, compatible, self.grouping()) {
            self.retype(pfn, wanted);
            counts.retyped += 1;
        }
        moved.free
    }

    fn retype(&mut self, pfn: Pfn, to: Migratetype) {
        let info = self.frames.info(pfn);
        self.set_info(pfn, info, info.with_migratetype(to));
    }

    /// Moves every free block that starts in the pageblock of `pfn` to the tail of the lists of `to`.
    fn move_free_blocks(&mut self, pfn: Pfn, to: Migratetype) -> PageblockUse {
        debug_assert!(!self.frames.has_maps(), "bits do not move");
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        let mut found = PageblockUse::default();
        for (head, state) in self.frames.blocks_of(start) {
            match state {
                State::Free { .. } => found.free += self.move_to(head, to),
                State::Taken { order, asked: Migratetype::Movable, .. } => {
                    found.movable += order.pages().min(PAGEBLOCK_PAGES);
                }
                _ => {}
            }
        }
        found
    }

    // ---- freeing -----------------------------------------------------------------------------------

    /// Frees one block: merges it with its free buddies and puts the result on the list of its type.
    pub(crate) fn free(&mut self, pfn: Pfn, order: Order, placement: Placement) {
        if self.has_bits_of(order) {
            if self.frames.info(pfn).is_poisoned() && self.free_around_marks(pfn, order, placement) {
                return;
            }
            self.frames.set_state(pfn, order, State::Body);
            if !self.put_block(pfn, order) {
                self.put_bits(pfn, order.pages(), order);
            }
        } else if self.frames.has_maps() {
            self.put_large(pfn, order, placement);
        } else {
            self.put(pfn, order, placement, true);
        }
        self.note_freed();
    }

    /// Puts a block onto the lists, merged with its free buddies. Counts it, if it was not counted as free before.
    pub(super) fn put(&mut self, pfn: Pfn, order: Order, placement: Placement, count: bool) {
        let (mut pfn, mut order) = (pfn, order);
        let info = self.frames.info(pfn);
        let list = info.migratetype();
        if count && info.is_poisoned() && self.free_around_marks(pfn, order, placement) {
            return;
        }
        self.frames.set_state(pfn, order, State::Body);
        if order > PAGEBLOCK_ORDER {
            // While it was allocated, one of its pageblocks may have been isolated or retyped.
            let upper = pfn.buddy(PAGEBLOCK_ORDER);
            let above = self.frames.info(upper);
            if above.migratetype() != list {
                self.put(pfn, PAGEBLOCK_ORDER, placement, count);
                self.put(upper, PAGEBLOCK_ORDER, placement, count);
                return;
            }
        }
        if count {
            self.account_freed(list, order.pages() as i64);
        }
        while order < MAX_ORDER {
            let buddy = pfn.buddy(order);
            let Some(head) = self.free_block(buddy, order, info) else { break };
            if !self.unlink(buddy, order, head) {
                break;
            }
            pfn = pfn.min(buddy);
            order = order.up();
        }
        let tail = fallback::to_tail(order, placement == Placement::Tail, || {
            self.parent_may_merge(pfn, order, info)
        });
        self.insert(pfn, order, list, tail);
    }

    /// The head word of the block of exactly `order` at `pfn`, if it is free and may merge with a block whose pageblock
    /// is `with`.
    #[inline]
    fn free_block(&self, pfn: Pfn, order: Order, with: BlockInfo) -> Option<FreeHead> {
        if order >= PAGEBLOCK_ORDER {
            // Another pageblock: it may be absent, or of a type that does not merge. It is in this zone: zones begin at
            // multiples of the largest block.
            let info = self.frames.info(pfn);
            if !info.is_present() || !fallback::may_merge(order, with.migratetype(), info.migratetype()) {
                return None;
            }
        }
        self.frames.free_head(pfn, order)
    }

    /// Whether the block is likely to merge soon: its buddy is taken, and the buddy of the block that they would form
    /// is free (Linux `buddy_merge_likely`).
    fn parent_may_merge(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        let parent = order.up();
        self.free_block(pfn.block_start(parent).buddy(parent), parent, info).is_some()
    }

    /// Event counters so far.
    #[must_use]
    pub fn counts(&self) -> BuddyCounts {
        self.cold.counts.get()
    }

    /// The zone.
    pub(crate) const fn zone(&self) -> ZoneId {
        self.common.zone
    }

    /// The frames of the section.
    pub(crate) fn range(&self) -> Range<Pfn> {
        self.extent.range.clone()
    }

    /// Number of pageblocks with a bad frame in use.
    pub(crate) fn marked_pageblocks(&self) -> u64 {
        self.cold.marked_pageblocks.get()
    }

    /// Number of isolated pageblocks.
    #[must_use]
    pub fn isolated_pageblocks(&self) -> u64 {
        self.areas.isolated_pageblocks.get()
    }
}

/// Use of a pageblock, in base pages.
#[derive(Clone, Copy, Default)]
struct PageblockUse {
    free: u64,
    movable: u64,
}

#[cfg(test)]
mod tests;
