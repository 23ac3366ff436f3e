//! Split and merge on free lists, or with maps, bits. Knows no lock: whoever can name a [`Buddy`] holds the zone's.
//!
//! # Invariants
//! 1. A free block of order `k` starts at a multiple of `2^k` and lies within one zone.
//! 2. Its head word says [`State::Free`] with its order, its list's type and its neighbours on that list; every
//!    other head word inside it says [`State::Body`].
//! 3. `nr_free` of an order counts the blocks on all its lists except the isolated one.
//! 4. Two free buddies of order `k < 10` exist only where merging is forbidden: across pageblocks whose types
//!    differ, if either type is not ordinary.
//!
//! With maps, 2 and 3 are those of `maps` and `maps::whole`; two free pageblocks that may merge are one block without being merged.
//!
//! Every operation keeps them; `verify` walks them all. Costs: taking and freeing one block is O(orders) list
//! operations; a steal may walk one pageblock.

mod account;
mod compact;
mod contents;
mod huge;
mod lists;
mod maps;
mod pageblock;
mod part;
mod place;
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
pub(crate) use maps::{AT_LEAST, CLASSES, Pieces, exactly, maps_of_zone};
use maps::{Bins, Whole};
pub(crate) use part::{MIXED, Part, WHOLE, WORDS};
pub(crate) use untouched::Untouched;

/// Types that have a list in every free area. Isolated blocks are kept elsewhere: their lists are cold, and
/// without them an area is as large as in a Linux built with CMA (88 bytes).
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

/// The free lists of a zone, laid out as Linux lays them out: order 0 first, 88 bytes an order.
#[repr(C)]
pub struct FreeAreas<P: Platform> {
    areas: [FreeArea<P>; NR_ORDERS],
    /// Pageblocks isolated now. Where Linux keeps the zone's flags.
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

/// What the buddy lists have been through. Blocks, unless named otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BuddyCounts {
    /// Times a request found its own lists empty and took from another type's.
    pub fallbacks: u64,
    /// Fallbacks that left a pageblock with blocks of two types: each may boost the watermarks.
    pub fragmenting: u64,
    /// Fallbacks that took a whole pageblock's free blocks.
    pub steals: u64,
    /// Pageblocks that changed their type because of a steal.
    pub retyped: u64,
    /// Base pages taken out of use because a free list was found damaged there.
    pub damaged_pages: u64,
    /// Times the bins of open pageblocks were found damaged, and made anew (with maps).
    pub rebuilt_bins: u64,
    /// Base pages of blocks that were free already when they were given back (with maps).
    pub refused_pages: u64,
}

impl core::ops::AddAssign for BuddyCounts {
    fn add_assign(&mut self, other: Self) {
        self.fallbacks += other.fallbacks;
        self.fragmenting += other.fragmenting;
        self.steals += other.steals;
        self.retyped += other.retyped;
        self.damaged_pages += other.damaged_pages;
        self.rebuilt_bins += other.rebuilt_bins;
        self.refused_pages += other.refused_pages;
    }
}

/// Guarded data off the hot lines.
pub struct Cold<P: Platform> {
    isolated: [Slot<P, Ends>; NR_ORDERS],
    /// Pageblocks that have a bad frame in use.
    marked_pageblocks: Slot<P, u64>,
    counts: Slot<P, BuddyCounts>,
    /// Whether it was given memory, in case the zone has several sections.
    has_memory: Slot<P, bool>,
    /// Only with maps.
    bins: Bins<P>,
    /// Only with maps.
    whole: Whole<P>,
}

impl<P: Platform> Cold<P> {
    /// For a zone of so many pages, whose maps of free pageblocks begin at number `whole`.
    pub(crate) fn new(whole: usize, pages: u64) -> Self {
        Self {
            isolated: core::array::from_fn(|_| Slot::new(EMPTY)),
            marked_pageblocks: Slot::new(0),
            counts: Slot::new(BuddyCounts::default()),
            has_memory: Slot::new(false),
            bins: Bins::new(),
            whole: Whole::new(whole, pages),
        }
    }

    /// Where the words lie that say which bins have a pageblock.
    pub(crate) const fn bins_offset() -> usize {
        core::mem::offset_of!(Self, bins) + Bins::<P>::words_offset()
    }
}

impl<P: Platform> fmt::Debug for Cold<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.counts.get().fmt(f)
    }
}

/// Adjacent blocks of one order, which lie in one pageblock; if they are as large as pageblocks, with lists in one block of the largest
/// order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// First frame of the first block.
    pub(crate) first: Pfn,
    /// Order of each.
    pub(crate) order: Order,
    /// Blocks.
    pub(crate) count: u64,
}

impl Run {
    /// Whether it is a whole pageblock, of smaller blocks.
    #[inline]
    pub(crate) const fn is_pageblock(&self) -> bool {
        self.count << self.order.get() == PAGEBLOCK_PAGES && self.order.get() < PAGEBLOCK_ORDER.get()
    }
}

/// Where a freed block goes on its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// To the head, unless its parent's buddy is free: then to the tail, where it may stay until it merges.
    Likely,
    /// To the tail: memory that was just added, or is put back.
    Tail,
}

/// What a request may take from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Order of each block.
    pub order: Order,
    /// The type asked for: one of the ordinary three, or a reserve that the caller is entitled to.
    pub migratetype: Migratetype,
    /// Whether CMA blocks may be lent to it: only to a movable request.
    pub may_use_cma: bool,
    /// Whether to take from other types if there is none of the type.
    pub may_fall_back: bool,
    /// Whose rules of stealing apply.
    pub generation: Generation,
    /// Whether to take whole pageblocks of other types only, rather than blocks of mixed ones.
    pub avoid_fragmentation: bool,
}

/// A zone's free memory, with the lock held.
pub struct Buddy<'a, 'm, P: Platform, M> {
    areas: &'a mut FreeAreas<P>,
    cold: &'a mut Cold<P>,
    counters: &'a Counters<P>,
    /// Pages in pageblocks reserved for high-order atomic requests.
    highatomic: &'a P::Word,
    pending: Pending,
    frames: FrameMap<'m, P, M>,
    /// The descriptors of pageblocks from the zone's first on: bins number them so.
    pageblocks: &'m [Pageblock<P>],
    zone: ZoneId,
    /// What links count from.
    base: Pfn,
    /// The first frame behind the zone.
    end: Pfn,
    /// Whether the zone is large enough to group by mobility; looked up when it is asked for, if there are maps.
    grouping: Option<bool>,
    /// Whether pageblocks say that a hook has been told that they are free.
    reports: bool,
    /// Memory whose descriptors are as new, if the zone leaves any so.
    untouched: Option<&'a Untouched<P>>,
    /// The section, if the zone has several.
    part: Option<Part<'a, P>>,
    /// Of which types bins or free pageblocks have come or gone.
    changed: u8,
    /// Whether the zone's last pageblock with a bad frame in use has become as others in this hold.
    pub(crate) is_unmarked: bool,
}

impl<P: Platform, M> fmt::Debug for Buddy<'_, '_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buddy").field("zone", &self.zone).field("areas", &self.areas).finish_non_exhaustive()
    }
}

impl<'a, 'm, P: Platform, M> Buddy<'a, 'm, P, M> {
    pub(crate) fn new(
        areas: &'a mut FreeAreas<P>,
        cold: &'a mut Cold<P>,
        counters: &'a Counters<P>,
        highatomic: &'a P::Word,
        frames: FrameMap<'m, P, M>,
        zone: ZoneId,
        Range { start: base, end }: Range<Pfn>,
    ) -> Self {
        let grouping = (!frames.has_maps()).then(|| counters.grouping());
        Self {
            areas,
            cold,
            counters,
            highatomic,
            pending: Pending::default(),
            frames,
            pageblocks: frames.pageblocks_from(base),
            zone,
            base,
            end,
            grouping,
            reports: false,
            untouched: None,
            part: None,
            changed: 0,
            is_unmarked: false,
        }
    }

    /// The same, where pageblocks note what hooks have been told.
    pub(crate) fn reporting(mut self, reports: bool) -> Self {
        self.reports = reports;
        self
    }

    /// The same, where new memory may stay untouched.
    pub(crate) fn leaving(mut self, untouched: Option<&'a Untouched<P>>) -> Self {
        self.untouched = untouched;
        self
    }

    /// The same, in a zone that has several sections.
    pub(crate) fn in_part(mut self, part: Option<Part<'a, P>>) -> Self {
        self.part = part;
        self
    }

    /// Whether the zone is large enough to group by mobility.
    fn grouping(&self) -> bool {
        self.grouping.unwrap_or_else(|| self.counters.grouping())
    }

    // ---- taking ------------------------------------------------------------------------------------

    /// Takes up to `count` blocks and passes them to `keep` in the order obtained. Returns how many.
    ///
    /// Each block is the one that a lone request would get: the first block of the smallest order that has one
    /// of the type; its lower part is handed out, its upper parts go to the heads of the lower lists. The head
    /// words of the blocks are left as [`State::Body`]; `keep` must give each its state, and says whether it is good.
    ///
    /// Free CMA pages are counted for good blocks only, so that they drift upwards with each bad one: what Linux did
    /// before the *refill-check* change.
    pub(crate) fn take(&mut self, wanted: Wanted, count: u64, mut keep: impl FnMut(Pfn) -> bool) -> u64 {
        let (free, free_cma) = (self.counters.free_pages(), self.counters.free_cma_pages());
        let pages = |blocks: u64| blocks << wanted.order.get();
        let (mut taken, mut taken_cma) = (0, 0);
        while taken < count {
            if taken > 0 && self.has_worse_than_others(wanted) {
                break;
            }
            let free_cma = free_cma.saturating_sub(pages(taken_cma));
            let cma_first = fallback::cma_first(wanted.migratetype, wanted.may_use_cma, free, free_cma);
            // Each block taken from CMA changes the balance; Linux takes one at a time.
            let most = if self.frames.has_maps() && !cma_first { count - taken } else { 1 };
            let mut good = 0;
            let mut keep = |pfn| good += u64::from(keep(pfn));
            let (list, blocks) = if self.has_bits_of(wanted.order) {
                let Some(piece) = self.take_piece(wanted, most, cma_first) else { break };
                self.account(piece.list, -(pages(piece.blocks) as i64));
                piece.each(wanted.order, keep);
                (piece.list, piece.blocks)
            } else if self.frames.has_maps() {
                let Some(wholes) = self.take_large(wanted, most, cma_first) else { break };
                let blocks = wholes.blocks(wanted.order);
                self.account(wholes.list, -(pages(blocks) as i64));
                wholes.each(wanted.order, keep);
                (wholes.list, blocks)
            } else {
                let Some((first, list)) = self.take_one(wanted, cma_first) else { break };
                self.account(list, -(pages(1) as i64));
                keep(first);
                (list, 1)
            };
            taken += blocks;
            if list == Migratetype::Cma {
                taken_cma += blocks;
                self.account_as(0, pages(blocks - good) as i64);
            }
        }
        self.account_as(0, 0);
        taken
    }

    /// Takes up to `count` blocks whose free ones are kept as bits, of as many pageblocks as `pieces` has room for. Returns how
    /// many. What is to be done with each block can be done when the lock is given back: nobody else has them.
    /// `free` and `free_cma` are the zone's, as of before the lock was taken.
    pub(crate) fn take_pieces(
        &mut self,
        wanted: Wanted,
        count: u64,
        (free, free_cma): (u64, u64),
        pieces: &mut Pieces,
    ) -> u64 {
        let pages = |blocks: u64| blocks << wanted.order.get();
        let (mut taken, mut taken_cma) = (0, 0);
        while taken < count && pieces.has_room() {
            if taken > 0 && self.has_worse_than_others(wanted) {
                break;
            }
            let free_cma = free_cma.saturating_sub(pages(taken_cma));
            let cma_first = fallback::cma_first(wanted.migratetype, wanted.may_use_cma, free, free_cma);
            // Each block taken from CMA changes the balance.
            let most = if cma_first { 1 } else { count - taken };
            let Some(piece) = self.take_piece(wanted, most, cma_first) else { break };
            self.account(piece.list, -(pages(piece.blocks) as i64));
            taken += piece.blocks;
            if piece.list == Migratetype::Cma {
                taken_cma += piece.blocks;
            }
            pieces.push(piece);
        }
        self.account_as(0, 0);
        taken
    }

    /// Whether free blocks of this order are kept as bits.
    #[inline]
    fn has_bits_of(&self, order: Order) -> bool {
        order < PAGEBLOCK_ORDER && self.frames.has_maps()
    }

    /// Takes a block from the lists. Returns it, and the type of its list.
    fn take_one(&mut self, wanted: Wanted, cma_first: bool) -> Option<(Pfn, Migratetype)> {
        let Wanted { order, migratetype, may_use_cma, .. } = wanted;
        if cma_first && let Some(taken) = self.carve(order, Migratetype::Cma) {
            return Some(taken);
        }
        loop {
            if let Some(taken) = self.carve(order, migratetype) {
                return Some(taken);
            }
            if may_use_cma && let Some(taken) = self.carve(order, Migratetype::Cma) {
                return Some(taken);
            }
            // After a steal the own lists have a block, so this ends in the second round.
            if !self.steal(wanted) {
                return None;
            }
        }
    }

    /// Takes the first block of the smallest sufficient order off `list`, cuts a block from its lower end and returns the upper halves
    /// to the heads of the lists.
    fn carve(&mut self, order: Order, list: Migratetype) -> Option<(Pfn, Migratetype)> {
        let (from, first) =
            order.and_above().find_map(|from| Some((from, self.unlink_first(from, list)?)))?;
        if from >= PAGEBLOCK_ORDER {
            self.forget_reports(first, first.add(order.pages()));
        }
        for half in order.and_above().take_while(|&half| half < from) {
            self.insert(first.add(half.pages()), half, list, false);
        }
        Some((first, list))
    }

    /// Makes a block of at least `order` available on the lists of `wanted` by taking from another type.
    ///
    /// Linux `__rmqueue_fallback`; v6.1: the largest block of the other types, to pollute few pageblocks; a
    /// movable request that may not have the whole pageblock takes the smallest instead.
    fn steal(&mut self, wanted: Wanted) -> bool {
        let Wanted { order, migratetype: wanted, generation, avoid_fragmentation, .. } = wanted;
        let has = |at: Order, list| self.has(at, list);
        let source = fallback::choose(generation, order, wanted, self.grouping(), avoid_fragmentation, has);
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
                counts.steals += u64::from(moved > 0);
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

    /// Moves all free blocks of a pageblock to the lists of `wanted`, and retypes it if enough of it then
    /// suits the type. Returns the pages moved.
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
        let end = start.add(PAGEBLOCK_PAGES);
        let mut found = PageblockUse::default();
        let mut at = start;
        while at < end {
            let (head, state) = self.frames.find(at);
            let pages = match state {
                State::Free { order, .. } => {
                    if head == at {
                        found.free += self.move_to(at, to);
                    }
                    order.pages()
                }
                State::Taken { order, asked, .. } => {
                    if asked == Migratetype::Movable {
                        found.movable += order.pages().min(PAGEBLOCK_PAGES);
                    }
                    order.pages()
                }
                State::Quarantined { order } => order.pages(),
                State::Body | State::Reserved => 1,
            };
            at = head.add(pages);
        }
        found
    }

    // ---- freeing -----------------------------------------------------------------------------------

    /// Frees the blocks of a run, with maps. Those below the pageblock order have head words that say [`State::Body`] already, but for
    /// marks (see [`FrameMap::prepare_free`]).
    #[inline(always)]
    pub(crate) fn free_run(&mut self, run: Run, placement: Placement) {
        let put = match (run.order, run.count) {
            (PAGEBLOCK_ORDER, 1) => self.put_pageblock(run.first),
            (order, 1) => self.put_block(run.first, order),
            _ => self.put_run(run),
        };
        if put {
            return self.note_freed();
        }
        self.free_blocks(run, placement);
    }

    #[inline(never)]
    fn free_blocks(&mut self, Run { first, order, count }: Run, placement: Placement) {
        if order < PAGEBLOCK_ORDER && count > 1 && !self.frames.info(first).is_poisoned() {
            self.put_bits(first, count << order.get());
            return self.note_freed();
        }
        (0..count).for_each(|n| self.free(first.add(n << order.get()), order, placement));
    }

    /// Frees one block: merges it with its free buddies and puts the result on the list of its type.
    pub(crate) fn free(&mut self, pfn: Pfn, order: Order, placement: Placement) {
        if self.has_bits_of(order) {
            if self.frames.info(pfn).is_poisoned() && self.free_around_marks(pfn, order, placement) {
                return;
            }
            self.frames.set_state(pfn, order, State::Body);
            self.put_bits(pfn, order.pages());
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
            if above.migratetype() != list || (count && above.is_poisoned()) {
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

    /// The head word of the block of exactly `order` at `pfn`, if it is free and may merge with a block whose
    /// pageblock is `with`.
    #[inline]
    fn free_block(&self, pfn: Pfn, order: Order, with: BlockInfo) -> Option<FreeHead> {
        if order >= PAGEBLOCK_ORDER {
            // Another pageblock: it may be absent, or of a type that keeps to itself. It is of this zone: zones begin at
            // multiples of the largest block.
            let info = self.frames.info(pfn);
            if !info.is_present() || !fallback::may_merge(order, with.migratetype(), info.migratetype()) {
                return None;
            }
        }
        self.frames.free_head(pfn, order)
    }

    /// Whether the block is likely to merge soon: its buddy is taken, and the buddy of the block they would
    /// make together is free (Linux `buddy_merge_likely`).
    fn parent_may_merge(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        let parent = order.up();
        self.free_block(pfn.block_start(parent).buddy(parent), parent, info).is_some()
    }

    /// What has happened so far.
    #[must_use]
    pub fn counts(&self) -> BuddyCounts {
        self.cold.counts.get()
    }

    /// The zone.
    pub(crate) const fn zone(&self) -> ZoneId {
        self.zone
    }

    /// Pageblocks isolated now.
    #[must_use]
    pub fn isolated_pageblocks(&self) -> u64 {
        self.areas.isolated_pageblocks.get()
    }
}

/// What a walk over a pageblock found, in base pages.
#[derive(Clone, Copy, Default)]
struct PageblockUse {
    free: u64,
    movable: u64,
}
