//! Frame descriptors: the allocator's record of every frame, and the user's typed slot beside it.
//!
//! This module holds the `unsafe` that the user slot and the direct map need.
//!
//! # Place of a block's state
//! Every block has one *head* word, which records the block's state. The head of a block below the pageblock order is
//! the descriptor of its first frame. The head of an order 9 or 10 block is the first word of its pageblock's
//! descriptor, so that large blocks touch a dense array (four pageblocks to a cache line) and never the frames inside
//! them; under [`Engine::Linux`](crate::config::Engine::Linux) it is the descriptor of its first frame, too. All other
//! words inside a block are [`State::Body`], which is zero (with maps, both pageblocks of a free block of order 10 are
//! heads). So memory that reads as zeroes is a valid frame map, and an untouched map costs nothing.
//!
//! With [`Engine::Compact`](crate::config::Engine::Compact) frames have no word: two bits a frame replace the head
//! words of blocks below the pageblock order (see `compact`).
//!
//! # Who writes
//! The head word of a free block: the holder of its section's lock. The head word of a taken block: its owner, which is
//! the caller it was handed to, or the CPU on whose list it is. Any CPU may *read* any word at any time, to explain a
//! wrong free; therefore all words are shared words.
#![expect(
    unsafe_code,
    reason = "only the owner of a block may access its user slots, which types here cannot express"
)]

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::{Platform, SharedCell, Word};
use crate::units::{MAX_ORDER, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, index};

mod claim;
mod compact;
mod direct;
mod page_map;
mod poison;
mod state;

pub(crate) use claim::TakenHead;
pub(crate) use compact::Map;
pub use direct::{DirectMap, POISON};
pub use page_map::PageMap;
pub(crate) use page_map::{Bits, WORDS, block_at_0, lowest, range_in_word, starts};
use state::LINK_BITS;
pub use state::{BlockInfo, ListPlace, State};
pub(crate) use state::{FreeHead, OpenHead, PlaceTag};

pub use crate::units::MAX_ZONE_PAGES;

const _: () = assert!(MAX_ZONE_PAGES == 1 << LINK_BITS);

/// The typed slot of the allocator's user in every frame descriptor.
///
/// `()` takes no space. A type of 56 bytes makes the descriptor 64 bytes, the size of Linux' `struct page`.
pub trait FrameUser: 'static + Send {
    /// Whether [`check`](FrameUser::check) may find anything. If not, no frame is visited for the check.
    const CHECKED: bool;

    /// The error in the slot of a frame that should be free; `None` if it is correct.
    ///
    /// A block with a bad frame is permanently taken out of use. Linux checks mapcount, mapping, refcount and flags
    /// here.
    ///
    /// With [`RefillCheck::UnderZoneLock`](crate::config::RefillCheck) the requesting CPU calls it while it holds the
    /// zone lock. If it panics, the lock is released, and the blocks of that refill are lost: no CPU gets them, and
    /// [`verify`](crate::verify) reports it.
    fn check(&self) -> Option<&'static str>;
}

/// A user's slot for which zero bytes are a valid value: runs of descriptors can be cleared together, or be memory that
/// was never touched.
///
/// # Safety
/// All bytes zero is a valid value of the type.
pub unsafe trait Zeroable: FrameUser {}

// SAFETY: the type has no bytes.
unsafe impl Zeroable for () {}

impl FrameUser for () {
    const CHECKED: bool = false;

    #[inline]
    fn check(&self) -> Option<&'static str> {
        None
    }
}

/// Descriptor of a frame: 8 bytes and the user's slot.
#[repr(C)]
pub struct Frame<P: Platform, M> {
    word: P::Word,
    user: P::Cell<M>,
}

impl<P: Platform, M> Frame<P, M> {
    /// The descriptor of a frame that is not the head of a block. With 8-byte words and `M = ()` it is all zeroes.
    pub fn new(user: M) -> Self {
        Self { word: P::Word::new(0), user: P::Cell::new(user) }
    }
}

impl<P: Platform, M> fmt::Debug for Frame<P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        State::unpack(self.word.load(Relaxed)).fmt(f)
    }
}

/// Descriptor of a pageblock: 16 bytes for 512 frames.
#[repr(C)]
pub struct Pageblock<P: Platform> {
    /// Head word of the order 9 or 10 block that starts here, else [`State::Body`].
    head: P::Word,
    /// [`BlockInfo`]. Written under the zone lock, read by any CPU.
    info: P::Word,
}

impl<P: Platform> Pageblock<P> {
    /// A pageblock without memory. With 8-byte words it is all zeroes.
    #[must_use]
    pub fn new() -> Self {
        Self { head: P::Word::new(0), info: P::Word::new(0) }
    }
}

impl<P: Platform> Default for Pageblock<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> fmt::Debug for Pageblock<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        BlockInfo(self.info.load(Relaxed)).fmt(f)
    }
}

/// Words of a frame of the map.
pub(crate) struct Located<'m, P: Platform> {
    word: &'m P::Word,
    pageblock: &'m Pageblock<P>,
    large_heads: bool,
}

impl<P: Platform> Pageblock<P> {
    /// Like [`FrameMap::info`].
    #[inline(always)]
    pub(crate) fn info(&self) -> BlockInfo {
        BlockInfo(self.info.load(Acquire))
    }

    /// The packed head word.
    #[inline(always)]
    pub(crate) fn head_word(&self) -> u64 {
        self.head.load(Relaxed)
    }

    /// Writes the head word. The caller holds the zone lock.
    #[inline(always)]
    pub(crate) fn set_head_word(&self, word: u64) {
        self.head.store(word, Relaxed);
    }

    /// Whether no frame of it is free, as its head word says: that of a taken block, or of none.
    #[inline(always)]
    pub(crate) fn is_taken(&self) -> bool {
        self.head_word() >> state::KIND <= state::KIND_TAKEN
    }
}

impl<'m, P: Platform> Located<'m, P> {
    /// The descriptor of the frame's pageblock.
    #[inline(always)]
    pub(crate) const fn pageblock(&self) -> &'m Pageblock<P> {
        self.pageblock
    }

    /// The head word of the block of `order` at `pfn`, which is the frame located; `None` if no such block can
    /// be there. To be read only if the pageblock is present.
    #[inline(always)]
    pub(crate) fn head(&self, pfn: Pfn, order: Order) -> Option<&'m P::Word> {
        if order < PAGEBLOCK_ORDER {
            return Some(self.word);
        }
        let apart = are_apart(self.large_heads);
        pfn.is_aligned(order).then_some(if apart { &self.pageblock.head } else { self.word })
    }
}

/// Whether heads of large blocks are in pageblock descriptors: always, with the default configuration.
#[inline(always)]
const fn are_apart(large_heads: bool) -> bool {
    !cfg!(feature = "settings") || large_heads
}

/// The descriptors of one zone, for a CPU that can trust a head word alone: a block whose head word names a list of
/// this CPU is in a present pageblock. This holds if descriptors are valid from the start; a map in memory with any
/// content has no such descriptors (see [`FrameMap::of_zone`]).
pub(crate) struct ZoneFrames<'m, P: Platform, M> {
    start: Pfn,
    frames: &'m [Frame<P, M>],
    pageblocks: &'m [Pageblock<P>],
    large_heads: bool,
}

impl<P: Platform, M> Clone for ZoneFrames<'_, P, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, M> Copy for ZoneFrames<'_, P, M> {}

impl<'m, P: Platform, M> ZoneFrames<'m, P, M> {
    /// The head word of the block of `order` at `pfn`, which must be in the map.
    #[inline(always)]
    pub(crate) fn head(&self, pfn: Pfn, order: Order) -> Option<&'m P::Word> {
        let index = index(pfn.0.wrapping_sub(self.start.0));
        let frame = self.frames.get(index)?;
        if order < PAGEBLOCK_ORDER {
            return Some(&frame.word);
        }
        let apart = are_apart(self.large_heads);
        let head =
            if apart { &self.pageblocks.get(index / PAGEBLOCK_PAGES as usize)?.head } else { &frame.word };
        pfn.is_aligned(order).then_some(head)
    }

    /// The head words of single frames: the first one, the distance between two in bytes, the first frame, and their
    /// number.
    pub(crate) fn words(&self) -> (*const P::Word, usize, Pfn, u64) {
        let first = self.frames.first().map_or(core::ptr::null(), |frame| &raw const frame.word);
        (first, size_of::<Frame<P, M>>(), self.start, self.frames.len() as u64)
    }
}

/// All frame and pageblock descriptors of an allocator. The memory is the caller's.
pub struct FrameMap<'m, P: Platform, M> {
    /// First frame of the map; a multiple of the largest block.
    base: Pfn,
    frames: &'m [Frame<P, M>],
    pageblocks: &'m [Pageblock<P>],
    /// One per pageblock if free memory is kept as bits, else none.
    maps: &'m [PageMap<P>],
    /// After those: the bitmaps of pageblocks that are free as a whole, zone by zone.
    whole: &'m [PageMap<P>],
    /// Whether the state of blocks from the pageblock order on is in the descriptor of their first pageblock.
    large_heads: bool,
    /// Frames have no descriptors, and each pageblock has two maps.
    compact: bool,
}

impl<P: Platform, M> Clone for FrameMap<'_, P, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform, M> Copy for FrameMap<'_, P, M> {}

impl<P: Platform, M> fmt::Debug for FrameMap<'_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameMap").field("base", &self.base).field("frames", &self.len()).finish()
    }
}

// SAFETY: words are shared words. A user slot is touched only by the owner of its block, or by a holder of
// the zone lock for a block that has none (see `user`), and `M: Send` lets ownership change threads.
unsafe impl<P: Platform, M: Send> Sync for Frame<P, M> {}
// SAFETY: as above.
unsafe impl<P: Platform, M: Send> Send for Frame<P, M> {}

impl<'m, P: Platform, M> FrameMap<'m, P, M> {
    /// A map whose first descriptor is that of frame `base`. `frames` and `pageblocks` must have the lengths of the
    /// [`Plan`](crate::alloc::Plan); pageblocks after them count as absent.
    pub(crate) fn new(
        base: Pfn,
        frames: &'m [Frame<P, M>],
        pageblocks: &'m [Pageblock<P>],
        maps: &'m [PageMap<P>],
        large_heads: bool,
    ) -> Self {
        debug_assert!(base.is_aligned(MAX_ORDER));
        let compact = frames.is_empty();
        assert!(compact || pageblocks.len() as u64 * PAGEBLOCK_PAGES == frames.len() as u64);
        let each = if compact { 2 } else { 1 };
        assert!(if maps.is_empty() { !compact } else { maps.len() > each * pageblocks.len() });
        let (maps, whole) = maps.split_at(maps.len().min(each * pageblocks.len()));
        // With maps, a pageblock's head word describes its bits, and shares the word with the state of large blocks.
        let large_heads = large_heads || !maps.is_empty();
        Self { base, frames, pageblocks, maps, whole, large_heads, compact }
    }

    /// Whether free memory below the pageblock order is kept as bits.
    #[inline]
    pub(crate) const fn has_maps(&self) -> bool {
        !cfg!(feature = "settings") || !self.maps.is_empty()
    }

    /// The free frames of the pageblock of `pfn`; `None` without maps.
    #[inline]
    pub(crate) fn map(&self, pfn: Pfn) -> Option<Map<'m, P>> {
        let n = index(pfn.0.wrapping_sub(self.base.0) / PAGEBLOCK_PAGES);
        #[cfg(feature = "settings")]
        if self.is_compact() {
            let halves = self.maps.get(2 * n..2 * n + 2)?.try_into().ok()?;
            return Some(Map::Compact(halves, compact::Possible::Yes));
        }
        self.maps.get(n).map(Map::Free)
    }

    /// The descriptors of the pageblocks from `start` on; none if the map ends before it.
    #[inline]
    pub(crate) fn pageblocks_from(&self, start: Pfn) -> &'m [Pageblock<P>] {
        self.pageblocks.get((start.0.wrapping_sub(self.base.0) / PAGEBLOCK_PAGES) as usize..).unwrap_or(&[])
    }

    /// Whether frames have no words: see `compact`.
    #[inline]
    pub(crate) const fn is_compact(&self) -> bool {
        cfg!(feature = "settings") && self.compact
    }

    /// The head word of an open pageblock; `None` if the pageblock is not open.
    #[inline]
    pub(crate) fn open_head(&self, pfn: Pfn) -> Option<OpenHead> {
        OpenHead::of(self.pageblock(pfn)?.head.load(Relaxed))
    }

    /// Reads the words that a free will read, before the zone lock is taken. The caller has to use the result, or the
    /// compiler reads nothing.
    #[inline(always)]
    pub(crate) fn read_ahead(&self, pfn: Pfn) -> u64 {
        let (Some(pageblock), Some(map)) = (self.pageblock(pfn), self.map(pfn)) else { return 0 };
        pageblock.head_word() ^ map.word((pfn.0 % PAGEBLOCK_PAGES / 64) as usize)
    }

    /// The descriptors of the zone that spans `pages` frames from `start` on, a multiple of the largest block; with
    /// `any` false, of no frame.
    pub(crate) fn of_zone(&self, start: Pfn, pages: u64, any: bool) -> ZoneFrames<'m, P, M> {
        let any = any && !self.is_compact();
        let first = if any { (start.0 - self.base.0) as usize } else { 0 };
        let pages = if any { pages as usize } else { 0 };
        let pageblocks = pages.div_ceil(PAGEBLOCK_PAGES as usize);
        ZoneFrames {
            start,
            frames: &self.frames[first..first + pages],
            pageblocks: &self.pageblocks[first / PAGEBLOCK_PAGES as usize..][..pageblocks],
            large_heads: self.large_heads,
        }
    }

    /// Number of frames described.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pageblocks.len() * PAGEBLOCK_PAGES as usize
    }

    /// Whether no frame is described.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pageblocks.is_empty()
    }

    /// The descriptor of the pageblock of `pfn`; `None` if the map does not hold it.
    #[inline]
    pub(crate) fn pageblock(&self, pfn: Pfn) -> Option<&'m Pageblock<P>> {
        self.pageblocks.get(index(pfn.0.wrapping_sub(self.base.0) / PAGEBLOCK_PAGES))
    }

    /// Properties of the pageblock of `pfn`; not present if the map ends before it.
    ///
    /// A CPU that sees it present sees its descriptors initialised, also for a frame number that it has guessed. The
    /// descriptors of other pageblocks may be cleared at this moment, by plain writes.
    #[inline]
    pub fn info(&self, pfn: Pfn) -> BlockInfo {
        match self.pageblock(pfn) {
            Some(pageblock) => pageblock.info(),
            None => BlockInfo::ABSENT,
        }
    }

    /// Sets the properties of the pageblock of `pfn`. The caller holds the lock of its zone, or is the only one that
    /// has the zone.
    pub(crate) fn set_info(&self, pfn: Pfn, info: BlockInfo) {
        if let Some(block) = self.pageblock(pfn) {
            block.info.store(info.0, Release);
        }
    }

    /// The head word of the block of `order` at `pfn`, which must be in the map.
    #[inline]
    pub(crate) fn head(&self, pfn: Pfn, order: Order) -> &'m P::Word {
        self.head_in_map(pfn, order).expect("a frame of the map")
    }

    /// Like [`head`](Self::head), for a frame number from a link, which may be damaged: `None` if the map ends before
    /// it; also if the block has no head word.
    #[inline]
    pub(crate) fn head_in_map(&self, pfn: Pfn, order: Order) -> Option<&'m P::Word> {
        let index = index(pfn.0.wrapping_sub(self.base.0));
        if order >= PAGEBLOCK_ORDER
            && let Some(head) = self.head_apart(self.pageblocks.get(index / PAGEBLOCK_PAGES as usize)?)
        {
            return Some(head);
        }
        Some(&self.frames.get(index)?.word)
    }

    /// The head of a large block, if it is not in a frame's descriptor. Another CPU may be clearing the descriptors of
    /// a pageblock that is not present: no block starts there, and its frames' words are not read.
    #[inline]
    fn head_apart(&self, block: &'m Pageblock<P>) -> Option<&'m P::Word> {
        let apart = are_apart(self.large_heads) || !BlockInfo(block.info.load(Acquire)).is_present();
        apart.then_some(&block.head)
    }

    /// State of the block of `order` at `pfn`, by its head word. The pageblock must be present.
    #[inline]
    pub(crate) fn state(&self, pfn: Pfn, order: Order) -> State {
        match self.head_in_map(pfn, order) {
            Some(head) => State::unpack(head.load(Relaxed)),
            None => self.state_by_bits(pfn),
        }
    }

    /// Writes the head word of the block of `order` at `pfn`. The caller owns the block, or holds the zone
    /// lock if it is free.
    #[inline]
    pub(crate) fn set_state(&self, pfn: Pfn, order: Order, state: State) {
        match self.head_in_map(pfn, order) {
            Some(head) => head.store(state.pack(), Relaxed),
            None => self.set_state_by_bits(pfn, order, state),
        }
    }

    /// Writes the head words of the blocks that tile a run of frames: taken, on no list. Returns their number. The
    /// caller owns the frames.
    pub(crate) fn set_tiles(&self, run: Range<Pfn>, asked: Migratetype) -> u64 {
        self.set_tiles_of(core::slice::from_ref(&run), asked)
    }

    /// Like [`set_tiles`](Self::set_tiles), for many runs.
    #[inline(never)]
    pub(crate) fn set_tiles_of(&self, runs: &[Range<Pfn>], asked: Migratetype) -> u64 {
        let taken = |order| State::Taken { order, asked, list_place: None };
        let (single, mut blocks) = (taken(Order::ZERO).pack(), 0);
        for run in runs {
            let (first, len) = (run.start.0 - self.base.0, run.end.0 - run.start.0);
            if len >= PAGEBLOCK_PAGES || self.is_compact() {
                let set = |(pfn, order)| self.set_state(pfn, order, taken(order));
                blocks += Order::tiles(run.clone()).map(set).count() as u64;
                continue;
            }
            let frames = &self.frames[first as usize..][..len as usize];
            let mut at = 0;
            while at < len {
                // Its lowest bit is the size of the largest block that starts here.
                let block = (first + at) | 1 << (len - at).ilog2();
                let order = u64::from(block.trailing_zeros());
                frames[at as usize].word.store(single + (order << state::ORDER), Relaxed);
                at += block & block.wrapping_neg();
                blocks += 1;
            }
        }
        blocks
    }

    /// Writes the head words of the frames of an allocated block, which become blocks of order 0. The caller owns the
    /// block, and no frame of its pageblocks is marked.
    #[inline]
    pub(crate) fn set_singles(&self, pfn: Pfn, from: Order, state: State) {
        if from >= PAGEBLOCK_ORDER || self.is_compact() {
            // Its head word is not that of its first frame, or none.
            self.set_state(pfn, from, State::Body);
        }
        let pages = from.pages();
        if self.is_compact() {
            return (0..pages).for_each(|n| self.set_state(pfn.add(n), Order::ZERO, state));
        }
        let first = (pfn.0 - self.base.0) as usize;
        let word = state.pack();
        self.frames[first..][..pages as usize].iter().for_each(|frame| frame.word.store(word, Relaxed));
    }

    /// The head word of the block at `pfn`, if it is free and of exactly this order.
    #[inline]
    pub(crate) fn free_head(&self, pfn: Pfn, order: Order) -> Option<FreeHead> {
        FreeHead::of_order(self.head_in_map(pfn, order)?.load(Relaxed), order)
    }

    /// Whether `pfn` is in a present pageblock of the map.
    #[inline]
    pub fn contains(&self, pfn: Pfn) -> bool {
        self.info(pfn).is_present()
    }

    /// Makes the descriptors of the whole pageblocks from `start` to `end` those of unused frames, whatever their
    /// memory holds. O(frames), in bulk where the platform can.
    ///
    /// Crate-private, for the CPU that has claimed these pageblocks: none of them is present, so no CPU reads their
    /// descriptors, and no other CPU initialises them.
    #[cfg(feature = "boot")]
    pub(crate) fn clear(&self, start: Pfn, end: Pfn)
    where
        M: Zeroable,
    {
        if self.is_compact() {
            return;
        }
        let first = (start.0 - self.base.0) as usize;
        let run = &self.frames[first..((end.0 - self.base.0) as usize).min(self.frames.len())];
        // No padding between the cells, so that every byte is in one.
        let packed = const { size_of::<Frame<P, M>>() == size_of::<P::Word>() + size_of::<P::Cell<M>>() };
        let memory = run.as_ptr().cast_mut().cast::<u8>();
        // SAFETY: the run is ours alone (see above), and its words and slots are cells that may be written
        // through a shared borrow. Zeroes are valid: for slots by `Zeroable`, for words by what the platform says.
        if packed && unsafe { P::clear(memory, size_of_val(run)) } {
            return;
        }
        for frame in run {
            frame.word.store(0, Relaxed);
            // SAFETY: as above.
            frame.user.with_mut(|user| unsafe { user.cast::<u8>().write_bytes(0, size_of::<M>()) });
        }
    }

    /// The block that holds frame `pfn`: its first frame and state. [`State::Body`] if the frame was never part of a
    /// block, or is not in the map. A racy read, for explanations and for walks under the zone lock.
    pub fn find(&self, pfn: Pfn) -> (Pfn, State) {
        if self.pageblock(pfn).is_none() {
            return (pfn, State::Body);
        }
        for order in [MAX_ORDER, PAGEBLOCK_ORDER] {
            let start = pfn.block_start(order);
            match self.state(start, order) {
                State::Free { .. } if self.has_maps() && self.is_pair(start) => {
                    let start = pfn.block_start(MAX_ORDER);
                    let list = self.info(start).migratetype();
                    return (start, State::Free { order: MAX_ORDER, list, next: 0, prev: 0 });
                }
                State::Free { order: found, .. }
                | State::Taken { order: found, .. }
                | State::Quarantined { order: found }
                    if found >= order =>
                {
                    return (start, self.state(start, order));
                }
                _ => {}
            }
        }
        if let Some(map) = self.map(pfn)
            && map.has(pfn)
            && let Some((first, order)) = map.bits().block_at(pfn.0 % PAGEBLOCK_PAGES)
        {
            let (order, list) = (Order::from_bits(u64::from(order)), self.info(pfn).migratetype());
            let start = pfn.block_start(PAGEBLOCK_ORDER).add(first);
            return (start, State::Free { order, list, next: 0, prev: 0 });
        }
        let mut order = Order::ZERO;
        while order < PAGEBLOCK_ORDER {
            let start = pfn.block_start(order);
            match self.state(start, order) {
                State::Body => {}
                State::Reserved if start != pfn => {}
                state @ State::Reserved => return (start, state),
                state @ (State::Free { order: found, .. }
                | State::Taken { order: found, .. }
                | State::Quarantined { order: found }) => {
                    // A head whose block does not reach `pfn` belongs to a smaller block.
                    if found >= order {
                        return (start, state);
                    }
                }
            }
            order = order.up();
        }
        (pfn, State::Body)
    }

    /// The blocks of a pageblock, as [`blocks_in`](Self::blocks_in) has them. O(512).
    pub(crate) fn blocks_of(self, start: Pfn) -> impl Iterator<Item = (Pfn, State)> {
        self.blocks_in(start..start.add(PAGEBLOCK_PAGES))
    }

    /// The blocks of a range, ascending: their first frames and states. The first one may begin before the range, the
    /// last one end after it. Each is read when it is asked for: the blocks before it may have changed since.
    /// O(frames).
    pub(crate) fn blocks_in(self, range: Range<Pfn>) -> impl Iterator<Item = (Pfn, State)> {
        let mut at = range.start;
        core::iter::from_fn(move || {
            let (head, state) = (at < range.end).then(|| self.find(at))?;
            at = head.add(state.pages()).max(at.add(1));
            Some((head, state))
        })
    }

    /// Base pages of movable blocks that are taken, in a pageblock whose blocks all have words of their own; counted
    /// until they are more than `most`. A load for each block, and for each frame that is in none, where
    /// [`blocks_of`](Self::blocks_of) searches for the block of each: presets' steals keep that, as their loads are
    /// counted. The caller holds the zone lock.
    pub(crate) fn movable_in(&self, start: Pfn, most: u64) -> u64 {
        let first = (start.0 - self.base.0) as usize;
        let frames = &self.frames[first..][..PAGEBLOCK_PAGES as usize];
        let (mut at, mut movable) = (0, 0);
        while movable <= most
            && let Some(frame) = frames.get(at as usize)
        {
            let state = State::unpack(frame.word.load(Relaxed));
            if matches!(state, State::Taken { asked: Migratetype::Movable, .. }) {
                movable += state.pages();
            }
            at += state.pages();
        }
        movable
    }

    /// The first frame of a block whose user slot is wrong for a free frame, and the error.
    ///
    /// Crate-private, for the owner of the block: a refill or a direct allocation that has just taken it off the free
    /// lists, so that no other code may access its slots. Visits every frame: O(pages).
    pub(crate) fn find_bad(&self, pfn: Pfn, order: Order) -> Option<(Pfn, &'static str)>
    where
        M: FrameUser,
    {
        if !M::CHECKED {
            return None;
        }
        let first = (pfn.0 - self.base.0) as usize;
        let block = self.frames[first..].iter().take(order.pages() as usize);
        block.zip(0..).find_map(|(frame, n)| {
            // SAFETY: the caller owns the block, and with it the right to its slots.
            let what = frame.user.with(|user| unsafe { (*user).check() })?;
            Some((pfn.add(n), what))
        })
    }

    /// The words of a frame; `None` if the map does not hold it, or frames have none. One comparison covers both words.
    #[inline(always)]
    pub(crate) fn locate(&self, pfn: Pfn) -> Option<Located<'m, P>> {
        let index = index(pfn.0.wrapping_sub(self.base.0));
        if index >= self.frames.len() {
            return None;
        }
        // SAFETY: the frame is one of the map's, and every frame has its pageblock (see `new`).
        let (frame, pageblock) = unsafe {
            let pageblock = index / PAGEBLOCK_PAGES as usize;
            (self.frames.get_unchecked(index), self.pageblocks.get_unchecked(pageblock))
        };
        Some(Located { word: &frame.word, pageblock, large_heads: self.large_heads })
    }

    /// Writes the list place of the block of `order` at `pfn`: its head word becomes `head`, from [`PlaceTag::at`]. The
    /// caller owns the block and has put it on the list: a CPU that sees the list place sees the block there. Without a
    /// head word nothing is written: no caller has the block.
    #[inline]
    pub(crate) fn list_place(&self, pfn: Pfn, order: Order, head: u64) {
        if let Some(word) = self.head_in_map(pfn, order) {
            word.store(head, Release);
        }
    }

    /// Runs `f` on the user slot of frame `pfn`. `None` if the map does not hold the frame, or frames have no
    /// descriptors.
    ///
    /// # Safety
    /// The caller owns the block of the frame: it was handed out and not freed since. `f` does not access the same slot
    /// again.
    pub unsafe fn with_user<R>(&self, pfn: Pfn, f: impl FnOnce(&mut M) -> R) -> Option<R> {
        let frame = self.frames.get(index(pfn.0.checked_sub(self.base.0)?))?;
        // SAFETY: ownership, promised by the caller, is exclusive.
        Some(frame.user.with_mut(|user| f(unsafe { &mut *user })))
    }
}

/// Makes the elements of an uninitialised slice one by one and returns it as initialised.
pub(crate) fn fill<T>(memory: &mut [MaybeUninit<T>], mut make: impl FnMut(usize) -> T) -> &mut [T] {
    for (n, place) in memory.iter_mut().enumerate() {
        place.write(make(n));
    }
    // SAFETY: every element was written just now.
    unsafe { filled(memory) }
}

/// An uninitialised slice as initialised: like `assume_init_mut` of the standard library, which the oldest supported
/// compiler lacks.
///
/// # Safety
/// Every element is initialised.
pub(crate) unsafe fn filled<T>(memory: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: an element has the layout of its `MaybeUninit`, and is initialised by the caller's promise.
    unsafe { core::slice::from_raw_parts_mut(memory.as_mut_ptr().cast(), memory.len()) }
}
