//! One list: a stack in a ring, whose bottom can be cut off.
#![expect(unsafe_code, reason = "a slot's number is masked, so that a hit need not compare it")]

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::frame::PlaceTag;
use crate::platform::{Platform, Word};
use crate::units::Pfn;

/// The floor of a list from which no allocation may hit: nothing lies above it.
const NO_HITS: u64 = u64::MAX;
/// Set in the floor of a list whose hits count: no place lies above it, so that a plain hit misses.
const COUNTED: u64 = 1 << 63;
/// Positions count up to here. Only a drain and a full list look at it: once in as many drained blocks, the list is
/// emptied, and counts from 0 again.
const LAST: u32 = 1 << 31;

/// What a hit does besides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hits {
    /// Nothing.
    Plain,
    /// It counts.
    Counted,
    /// No allocation hits.
    None,
}

/// Where a list's head and its floor were when an allocation took nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    top: u64,
    floor: u64,
}

/// Whether a block has left a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// It sits there still.
    No,
    /// It last sat elsewhere, or on no list.
    Elsewhere,
    /// It has.
    Here {
        /// Whether the block is the one that was allocated last.
        is_last: bool,
    },
}

/// What a hit of a list reads and writes.
pub(crate) struct ListWords<'m, P: Platform> {
    pub(crate) top: *const P::Word,
    pub(crate) floor: *const P::Word,
    pub(crate) ceiling: *const P::Word,
    pub(crate) slots: &'m [P::Word],
}

/// A list of block addresses: a stack whose bottom can be cut off.
///
/// Blocks lie at positions `bottom..top`, the head of the list at the top; position `p` is in slot `p` modulo the
/// number of slots, a power of two. A place is written as the head word of a block that sits there: so *one*
/// comparison tells whether a block that is freed left the list from where it would now be put.
///
/// `floor` and `ceiling` are what a hit looks at: an allocation at the first, which is `bottom`; a free at the second,
/// which is where the storage ends or a drain falls due, or 0 while another CPU asks this list's owner for something.
#[repr(C, align(64))]
pub(crate) struct List<'m, P: Platform> {
    /// The place behind the head. Written by the owner.
    top: P::Word,
    /// `bottom`, with [`COUNTED`] where hits count, or [`NO_HITS`]. Opened by the owner, shut by a remote drain.
    floor: P::Word,
    /// The place that no hit reaches, or [`List::SHUT`]. Written by any CPU.
    ceiling: P::Word,
    /// The place of the coldest block. Written by the owner, and by a remote drain.
    bottom: P::Word,
    /// A power of two. One that nobody uses, if the order has no lists under this configuration.
    slots: &'m [P::Word],
    /// `slots.len() - 1`.
    mask: u64,
    /// Bits of an open floor besides `bottom`: none, [`COUNTED`], or all of [`NO_HITS`]. Never changes.
    hits: u64,
}

impl<'m, P: Platform> List<'m, P> {
    /// The ceiling of a list that is shut: nothing lies below it.
    pub(super) const SHUT: u64 = 0;

    /// An empty list, for blocks with this tag; shut.
    pub(super) fn new(tag: PlaceTag, slots: &'m [P::Word], hits: Hits) -> Self {
        assert!(slots.len().is_power_of_two(), "a list's storage is a ring");
        let hits = match hits {
            Hits::Plain => 0,
            Hits::Counted => COUNTED,
            Hits::None => NO_HITS,
        };
        Self {
            top: P::Word::new(tag.at(0)),
            floor: P::Word::new(tag.at(0) | hits),
            ceiling: P::Word::new(Self::SHUT),
            bottom: P::Word::new(tag.at(0)),
            slots,
            mask: slots.len() as u64 - 1,
            hits,
        }
    }

    /// Blocks that may sit here; 0 if the order has no lists.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        if self.slots.len() == 1 { 0 } else { self.slots.len() as u32 }
    }

    /// What a hit reads and writes.
    pub(super) fn words(&self) -> ListWords<'m, P> {
        let Self { top, floor, ceiling, slots, .. } = self;
        ListWords { top, floor, ceiling, slots }
    }

    /// Blocks that sit here. Another CPU than the owner may read one end before the owner moves it, and the other end after:
    /// it then gets a wrong number, but never less than 0 nor more than the list has room for.
    pub(super) fn len(&self) -> u32 {
        let (top, bottom) = (self.top.load(Relaxed), self.bottom.load(Relaxed));
        top.saturating_sub(bottom).min(self.slots.len() as u64) as u32
    }

    /// The slot of a place, or of a position.
    #[inline(always)]
    fn slot(&self, place: u64) -> &'m P::Word {
        // SAFETY: `new` has seen to it that the mask is one less than the number of slots.
        unsafe { self.slots.get_unchecked((place & self.mask) as usize) }
    }

    // ---- the owner's hits ------------------------------------------------------------------------------

    /// Takes the block at the head of a list whose hits do not count.
    #[inline(always)]
    pub(super) fn take(&self) -> Result<Pfn, Missed> {
        let top = self.top.load(Relaxed);
        let floor = self.floor.load(Relaxed);
        if top <= floor {
            return Err(Missed { top, floor });
        }
        let head = top.wrapping_sub(1);
        // Release: a CPU that sees this top sees the slots of the refill before it. The slot is read after it, which saves
        // an instruction: until the owner's next call nobody writes it.
        self.top.store(head, Release);
        Ok(self.at(head))
    }

    /// Where the head and the floor are.
    #[inline]
    pub(super) fn seen(&self) -> Option<Missed> {
        Some(Missed { top: self.top.load(Relaxed), floor: self.floor.load(Relaxed) })
    }

    /// The same where hits count, for one that has looked already.
    pub(super) fn take_counted(&self, Missed { top, floor }: Missed) -> Option<Pfn> {
        let counted = floor & COUNTED != 0 && floor != NO_HITS;
        (counted && top > floor & !COUNTED).then(|| self.pop_from(top))
    }

    #[inline(always)]
    fn pop_from(&self, top: u64) -> Pfn {
        let head = top.wrapping_sub(1);
        let pfn = self.slot(head).load(Relaxed);
        // Release: a CPU that sees this top sees the slots of the refill before it.
        self.top.store(head, Release);
        Pfn(pfn)
    }

    /// The place above the uppermost block. For its owner.
    #[inline(always)]
    pub(crate) fn top(&self) -> u64 {
        self.top.load(Relaxed)
    }

    /// Puts back the block that was allocated last, where the list's top is `top`: its head word says so, and is right as it is. `false`,
    /// and nothing has happened, if the list is full, or shut.
    #[inline(always)]
    pub(super) fn put_last(&self, top: u64, pfn: Pfn) -> bool {
        let is_hit = self.is_hit(top);
        if is_hit {
            self.push_at(top, pfn);
        }
        is_hit
    }

    /// Where hits count: puts a block back to the head whose head word says that it last sat here, and notes there where it
    /// sits now. `false`, and nothing has happened, if it last sat elsewhere, or sits here still; or if the list is
    /// full, or shut; or if it did not leave from the head, and its pageblock is sparsely used.
    #[inline(always)]
    pub(crate) fn put_back(&self, head: &P::Word, pfn: Pfn, is_sparse: impl FnOnce() -> bool) -> bool {
        let top = self.top.load(Relaxed);
        if top >= self.ceiling.load(Relaxed) {
            return false;
        }
        let list_place = head.load(Relaxed);
        // Mostly it is the block that was allocated last, and its head word is right as it is.
        if list_place == top {
            self.push_at(top, pfn);
            return true;
        }
        if !PlaceTag::same_list(list_place, top)
            || (list_place < top && self.sits(list_place, pfn))
            || is_sparse()
        {
            return false;
        }
        self.put_at(top, head, pfn);
        true
    }

    /// Whether a block has left this list, as its head word says, and sits here no longer.
    #[inline(always)]
    pub(crate) fn left(&self, head: &P::Word, pfn: Pfn) -> Left {
        let top = self.top.load(Relaxed);
        let list_place = head.load(Relaxed);
        if !PlaceTag::same_list(list_place, top) {
            return Left::Elsewhere;
        }
        if list_place < top && self.sits(list_place, pfn) {
            return Left::No;
        }
        Left::Here { is_last: list_place == top }
    }

    /// Whether the block that was taken from the head last is `pfn`: its slot has not been written since. What a refill or a
    /// drain has left there may be meant instead.
    pub(super) fn took_last(&self, pfn: Pfn) -> bool {
        self.at(self.top.load(Relaxed)) == pfn
    }

    /// Whether a free that puts a block at `top` is a hit.
    #[inline(always)]
    fn is_hit(&self, top: u64) -> bool {
        top < self.ceiling.load(Relaxed)
    }

    /// Whether a free that puts a block at the head is a hit.
    #[inline(always)]
    pub(crate) fn is_below_ceiling(&self) -> bool {
        self.is_hit(self.top.load(Relaxed))
    }

    /// Puts a block that is freed at the head, and notes in its head word where it sits now.
    #[inline(always)]
    fn put_at(&self, top: u64, head: &P::Word, pfn: Pfn) {
        self.push_at(top, pfn);
        // Release, and behind the push: a CPU that sees the list place sees the block on the list.
        head.store(top, Release);
    }

    #[inline(always)]
    pub(super) fn push_at(&self, top: u64, pfn: Pfn) {
        self.slot(top).store(pfn.0, Relaxed);
        // Release: a CPU that sees the new top sees the slot (see `holds`).
        self.top.store(top + 1, Release);
    }

    /// Whether a block sits at a place below the top.
    #[inline(always)]
    fn sits(&self, place: u64, pfn: Pfn) -> bool {
        place >= self.bottom.load(Relaxed) && self.slot(place).load(Relaxed) == pfn.0
    }

    // ---- the slow way, past floor and ceiling ----------------------------------------------------------

    /// Takes the block at the head, also where allocations may not hit.
    pub(super) fn pop(&self) -> Option<Pfn> {
        let top = self.top.load(Relaxed);
        (top != self.bottom.load(Relaxed)).then(|| self.pop_from(top))
    }

    /// Puts a block at the head, also if the list is shut. Returns the head word of a block that sits there;
    /// `None` if there is no room.
    pub(super) fn push(&self, pfn: Pfn) -> Option<u64> {
        let top = self.top.load(Relaxed);
        if top >= self.end() {
            return None;
        }
        self.push_at(top, pfn);
        Some(top)
    }

    /// Moves the bottom, and the floor unless it is shut.
    fn set_bottom(&self, bottom: u64) {
        self.bottom.store(bottom, Release);
        if self.floor.load(Relaxed) != NO_HITS {
            self.floor.store(bottom | self.hits, Relaxed);
        }
    }

    /// Lets allocations hit again after a remote drain. By the owner.
    pub(super) fn open_floor(&self) {
        let floor = self.bottom.load(Relaxed) | self.hits;
        if self.floor.load(Relaxed) != floor {
            self.floor.store(floor, Relaxed);
        }
    }

    /// Lets no allocation and no free hit. Callable from any CPU.
    pub(super) fn shut_both_ends(&self) {
        self.floor.store(NO_HITS, Relaxed);
        self.shut();
    }

    /// Puts a block at the head whatever the ceiling is, and notes in its head word where it sits now. There is room.
    #[inline(always)]
    pub(crate) fn put_anyway(&self, head: &P::Word, pfn: Pfn) {
        self.put_at(self.top.load(Relaxed), head, pfn);
    }

    /// The place that no block reaches, as things are.
    pub(super) fn end(&self) -> u64 {
        let bottom = self.bottom.load(Relaxed);
        bottom + u64::from(self.capacity().min(LAST.saturating_sub(bottom as u32)))
    }

    /// Whether nothing more can be put here before the list was empty.
    pub(super) fn is_worn(&self) -> bool {
        self.top.load(Relaxed) as u32 >= LAST
    }

    /// Makes an empty list count from 0 again.
    pub(super) fn restart(&self) {
        let first = self.first_place();
        self.set_bottom(first);
        self.top.store(first, Release);
    }

    /// Makes the blocks that were set at positions `from..to` those of the list, which was empty: they move down to
    /// position 0. So every position from the bottom to the top has been written since the last block left it (see `holds`).
    pub(super) fn fill(&self, Range { start: from, end: to }: Range<u64>) {
        if from > 0 {
            (from..to).for_each(|position| self.set(position - from, self.at(position)));
        }
        let first = self.first_place();
        self.set_bottom(first);
        self.top.store(first + (to - from), Release);
    }

    /// The place at position 0.
    fn first_place(&self) -> u64 {
        self.top.load(Relaxed) >> 32 << 32
    }

    /// The places from the coldest block to behind the head.
    pub(super) fn places(&self) -> Range<u64> {
        let top = self.top.load(Acquire);
        self.bottom.load(Relaxed)..top
    }

    pub(super) fn at(&self, place: u64) -> Pfn {
        Pfn(self.slot(place).load(Relaxed))
    }

    pub(super) fn set(&self, place: u64, pfn: Pfn) {
        self.slot(place).store(pfn.0, Relaxed);
    }

    /// The `n`-th block from the tail, the coldest being number 0.
    pub(super) fn peek_tail(&self, n: u32) -> Option<Pfn> {
        (n < self.len()).then(|| self.at(self.bottom.load(Relaxed) + u64::from(n)))
    }

    /// The `n` blocks at the tail, the coldest first. The list's ends are looked at before each of them: the simulator sees each
    /// access, and the presets' figures were taken so.
    pub(super) fn tail(&self, n: u32) -> impl Iterator<Item = Pfn> {
        (0..n).map_while(move |n| self.peek_tail(n))
    }

    /// Removes `n` blocks at the tail.
    pub(super) fn drop_tail(&self, n: u32) {
        self.set_bottom(self.bottom.load(Relaxed) + u64::from(n));
    }

    // ---- the ceiling -----------------------------------------------------------------------------------

    /// Makes the owner's next free take the slow way. Callable from any CPU.
    pub(super) fn shut(&self) {
        // Release: an owner that replaces this value sees what was asked before it was written (see `open`).
        self.ceiling.store(Self::SHUT, Release);
    }

    /// Lets the owner's frees hit again up to a place at most where the storage ends, unless they do already. Returns
    /// whether anything had to be changed; then the owner must look once more whether another CPU asks for something.
    ///
    /// A ceiling that is as it should be is left alone. One that is not is exchanged, so that the owner sees what was
    /// asked by a CPU whose shutting it undoes. A CPU that shuts the list after that finds its value kept.
    pub(super) fn open(&self, ceiling: u64) -> bool {
        if self.ceiling.load(Relaxed) == ceiling {
            return false;
        }
        self.open_anyway(ceiling);
        true
    }

    /// The same up to the end of the storage, where hits count. What is looked at twice is so on purpose: the simulator sees
    /// each access, and the presets' figures were taken with this one.
    pub(super) fn open_to_end(&self) -> bool {
        let end = self.end();
        if self.ceiling.load(Relaxed) == end {
            return false;
        }
        self.open_anyway(self.end());
        true
    }

    /// The same, whatever the ceiling is.
    pub(super) fn open_anyway(&self, ceiling: u64) {
        self.ceiling.swap(ceiling, AcqRel);
    }

    /// Whether the next free would find the ceiling.
    pub(super) fn is_at_ceiling(&self) -> bool {
        self.top.load(Relaxed) >= self.ceiling.load(Relaxed)
    }

    /// The place from which on a free is no hit, if the list may grow by `blocks` from here.
    pub(super) fn ceiling_for(&self, blocks: u64) -> u64 {
        (self.top.load(Relaxed) + blocks).min(self.end())
    }

    // ---- any CPU ---------------------------------------------------------------------------------------

    /// Whether the list holds `pfn` at `position`. Called by any CPU.
    ///
    /// A yes is certain: a caller that owns the block never gets one. It was handed the block after the pop that
    /// made `position` the top, or a lower one. Wherever the top rises above a position from there, by a push or
    /// a refill, that position's slot has been written before; so a CPU that sees such a top sees another block in
    /// the slot. A no can be wrong for a block that its owner's hit is putting here at this instant; and it is out of
    /// date when a refill or a drain of the owner has come between, which has changed the block's head word then: see
    /// [`Cpu::claim`](crate::cpu::Cpu).
    #[inline]
    pub(super) fn holds(&self, position: u32, pfn: Pfn) -> bool {
        let (top, bottom) = (self.top.load(Acquire) as u32, self.bottom.load(Acquire) as u32);
        (bottom..top).contains(&position) && self.slot(u64::from(position)).load(Acquire) == pfn.0
    }
}
