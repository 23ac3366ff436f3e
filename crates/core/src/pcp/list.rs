//! One list: a stack in a ring, from whose bottom blocks can be removed.
#![expect(unsafe_code, reason = "a slot's number is masked, so that a hit need not compare it")]

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::frame::PlaceTag;
use crate::platform::{Platform, Word};
use crate::units::Pfn;

/// Floor of a list from which no allocation may hit: `top` is never above it.
pub(super) const NO_HITS: u64 = u64::MAX;
/// Set in the floor of a list whose hits count: `top` is never above it, so that a plain hit misses.
pub(super) const COUNTED: u64 = 1 << 63;
/// Last position. Only a drain and a full list check it: once in this number of drained blocks, the list is emptied,
/// and counts from 0 again.
const LAST: u32 = 1 << 31;

/// Top and floor of a list when an allocation took nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Missed {
    top: u64,
    floor: u64,
}

impl Missed {
    /// Whether hits of the list count, and a remote drain has not shut it.
    pub(super) const fn may_count(self) -> bool {
        self.floor & COUNTED != 0 && self.floor != NO_HITS
    }
}

/// Place where a block last was, relative to a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// It still is on the list.
    No,
    /// It last was on another list, or on none.
    Elsewhere,
    /// It has left this list.
    Here {
        /// Whether the block is the one that was allocated last.
        is_last: bool,
    },
}

/// A list of block addresses: a stack from whose bottom blocks can be removed.
///
/// Blocks are at positions `bottom..top`, the head of the list at the top; position `p` is in slot `p` modulo the
/// number of slots, a power of two. A place is written as the head word of a block at that place, so *one* comparison
/// tells whether a freed block left the list from the place where it would now be put.
///
/// A hit compares with one of two gates. An allocation reads `floor`, which is `bottom`. A free reads `ceiling`: the
/// end of the storage, or the place at which a drain is due, or 0 while another CPU requests something of the owner.
/// Where no free may hit, because the pageblock of each block must be checked, it is the position of that place: lower
/// than every place, and still what a slow call needs.
#[repr(C, align(64))]
pub(crate) struct List<'m, P: Platform> {
    /// The place after the head. Written by the owner.
    pub(crate) top: P::Word,
    /// `bottom`, with [`COUNTED`] where hits count, or [`NO_HITS`]. Opened by the owner, shut by a remote drain.
    pub(crate) floor: P::Word,
    /// The first place that no hit may fill, or [`List::SHUT`]. Written by any CPU.
    pub(crate) ceiling: P::Word,
    /// The place of the coldest block. Written by the owner, and by a remote drain.
    bottom: P::Word,
    /// A power of two. One unused slot, if the order has no lists under this configuration.
    pub(crate) slots: &'m [P::Word],
    /// `slots.len() - 1`.
    pub(crate) mask: u64,
    /// Bits of an open floor besides `bottom`: none, [`COUNTED`], or all of [`NO_HITS`]. Never changes.
    hits: u64,
}

impl<'m, P: Platform> List<'m, P> {
    /// The ceiling of a list that is shut: no place is below it.
    pub(super) const SHUT: u64 = 0;

    /// An empty list for blocks with this tag, shut. `hits` is 0, or [`COUNTED`] if hits count or set bits, or
    /// [`NO_HITS`].
    pub(super) fn new(tag: PlaceTag, slots: &'m [P::Word], hits: u64) -> Self {
        assert!(slots.len().is_power_of_two(), "a list's storage is a ring");
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

    /// Most blocks on the list; 0 if the order has no lists.
    #[inline]
    pub(crate) fn capacity(&self) -> u32 {
        if self.slots.len() == 1 { 0 } else { self.slots.len() as u32 }
    }

    /// Blocks on the list. Another CPU may read one end before the owner moves it and the other end after; the result
    /// is wrong then, but never below 0 nor above the capacity.
    pub(super) fn len(&self) -> u32 {
        let (top, bottom) = (self.top.load(Relaxed), self.bottom.load(Relaxed));
        top.saturating_sub(bottom).min(self.slots.len() as u64) as u32
    }

    /// The slot of a place, or of a position.
    #[inline(always)]
    fn slot(&self, place: u64) -> &'m P::Word {
        // SAFETY: `new` makes the mask one less than the number of slots.
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
        // Release: a CPU that sees this top sees the slots of the refill before it. The slot is read after the store,
        // which saves an instruction: no CPU writes the slot until the owner's next call.
        self.top.store(head, Release);
        Ok(self.at(head))
    }

    /// Present top and floor.
    #[inline]
    pub(super) fn seen(&self) -> Missed {
        Missed { top: self.top.load(Relaxed), floor: self.floor.load(Relaxed) }
    }

    /// Like [`take`](Self::take), if hits count, for a caller that has read top and floor.
    pub(super) fn take_counted(&self, Missed { top, floor }: Missed) -> Option<Pfn> {
        let counts = Missed { top, floor }.may_count();
        (counts && top > floor & !COUNTED).then(|| self.pop_from(top))
    }

    #[inline(always)]
    fn pop_from(&self, top: u64) -> Pfn {
        let head = top.wrapping_sub(1);
        let pfn = self.slot(head).load(Relaxed);
        // Release: a CPU that sees this top sees the slots of the refill before it.
        self.top.store(head, Release);
        Pfn(pfn)
    }

    /// The place above the uppermost block. For the owner.
    #[inline(always)]
    pub(crate) fn top(&self) -> u64 {
        self.top.load(Relaxed)
    }

    /// Puts back the block that was allocated last, when `top` is the list's top: the block's head word names this
    /// place, and stays. On `false` the list is full, or shut, and the state is unchanged.
    #[inline(always)]
    pub(super) fn put_last(&self, top: u64, pfn: Pfn) -> bool {
        let is_hit = self.is_hit(top);
        if is_hit {
            self.push_at(top, pfn);
        }
        is_hit
    }

    /// If hits count: puts a block whose head word names this list back to the head, and writes its new place. On
    /// `false` the state is unchanged: the block last was elsewhere, or is still on the list; or the list is full, or
    /// shut; or the block did not leave from the head, and its pageblock is sparse.
    #[inline(always)]
    pub(crate) fn put_back(&self, head: &P::Word, pfn: Pfn, is_sparse: impl FnOnce() -> bool) -> bool {
        let top = self.top.load(Relaxed);
        if top >= self.ceiling.load(Relaxed) {
            return false;
        }
        let list_place = head.load(Relaxed);
        // Usually it is the block that was allocated last, and its head word stays.
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

    /// Whether a block has left this list, by its head word, and is no longer on it.
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

    /// Whether `pfn` was the last block taken from the head: its slot was not written since. The slot may instead hold
    /// a value that a refill or a drain has left.
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

    /// The ceiling at a place for slow calls alone: as low as a position, so that no place is below it.
    pub(super) const fn slow_ceiling(place: u64) -> u64 {
        place as u32 as u64
    }

    /// Whether the head is below the ceiling; if `is_slow`, below one for slow calls.
    pub(super) fn has_room(&self, is_slow: impl FnOnce() -> bool) -> bool {
        let (top, ceiling) = (self.top.load(Relaxed), self.ceiling.load(Relaxed));
        top < ceiling || (Self::slow_ceiling(top) < ceiling && is_slow())
    }

    /// Puts a freed block at the head, whose place is `top`, regardless of the ceiling, and writes the place into its
    /// head word. There must be room.
    #[inline(always)]
    pub(super) fn put_at(&self, top: u64, head: &P::Word, pfn: Pfn) {
        self.push_at(top, pfn);
        // Release, and after the push: a CPU that sees the list place sees the block on the list.
        head.store(top, Release);
    }

    #[inline(always)]
    pub(super) fn push_at(&self, top: u64, pfn: Pfn) {
        self.slot(top).store(pfn.0, Relaxed);
        // Release: a CPU that sees the new top sees the slot (see `holds`).
        self.top.store(top + 1, Release);
    }

    /// Whether a block is at a place below the top.
    #[inline(always)]
    fn sits(&self, place: u64, pfn: Pfn) -> bool {
        place >= self.bottom.load(Relaxed) && self.slot(place).load(Relaxed) == pfn.0
    }

    // ---- the slow way, past floor and ceiling ----------------------------------------------------------

    /// Takes the block at the head, also if allocations may not hit.
    pub(super) fn pop(&self) -> Option<Pfn> {
        let top = self.top.load(Relaxed);
        if top == self.bottom.load(Relaxed) { None } else { Some(self.pop_from(top)) }
    }

    /// Puts a block at the head, also if the list is shut. Returns the head word of a block at that place; `None` if
    /// there is no room.
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

    /// Lets allocations hit again after a remote drain. Called by the owner.
    pub(super) fn open_floor(&self) {
        let floor = self.bottom.load(Relaxed) | self.hits;
        if self.floor.load(Relaxed) != floor {
            self.floor.store(floor, Relaxed);
        }
    }

    /// Shuts the list for allocations and frees. Callable from any CPU.
    pub(super) fn shut_both_ends(&self) {
        self.floor.store(NO_HITS, Relaxed);
        self.shut();
    }

    /// The first place that the storage does not have at present.
    pub(super) fn end(&self) -> u64 {
        let bottom = self.bottom.load(Relaxed);
        bottom + u64::from(self.capacity().min(LAST.saturating_sub(bottom as u32)))
    }

    /// Whether the list must be empty before more can be put.
    pub(super) fn is_worn(&self) -> bool {
        self.top.load(Relaxed) as u32 >= LAST
    }

    /// Makes the blocks that were written at positions `from..to` those of the list, which was empty: they move down to
    /// position 0. So every position from the bottom to the top was written since the last block left it (see `holds`).
    pub(super) fn fill(&self, Range { start: from, end: to }: Range<u64>) {
        if from > 0 {
            (from..to).for_each(|position| self.set(position - from, self.at(position)));
        }
        // The place at position 0.
        let first = self.top.load(Relaxed) >> 32 << 32;
        self.set_bottom(first);
        self.top.store(first + (to - from), Release);
    }

    /// The places from the coldest block to the head.
    pub(super) fn places(&self) -> Range<u64> {
        let top = self.top.load(Acquire);
        self.bottom.load(Relaxed)..top
    }

    #[inline(always)]
    pub(super) fn at(&self, place: u64) -> Pfn {
        Pfn(self.slot(place).load(Relaxed))
    }

    #[inline(always)]
    pub(super) fn set(&self, place: u64, pfn: Pfn) {
        self.slot(place).store(pfn.0, Relaxed);
    }

    /// The `n` blocks at the tail, the coldest first. The list's ends are read before each of them: the simulator sees
    /// each access, and the presets' figures were taken this way.
    pub(super) fn tail(&self, n: u32) -> impl Iterator<Item = Pfn> {
        (0..n).map_while(move |n| (n < self.len()).then(|| self.at(self.bottom.load(Relaxed) + u64::from(n))))
    }

    /// Removes `n` blocks at the tail.
    pub(super) fn drop_tail(&self, n: u32) {
        self.set_bottom(self.bottom.load(Relaxed) + u64::from(n));
    }

    // ---- the ceiling -----------------------------------------------------------------------------------

    /// Sends the owner's next free to the slow path. Callable from any CPU.
    pub(super) fn shut(&self) {
        // Release: an owner that replaces this value sees the request that was written before it (see `open`).
        self.ceiling.store(Self::SHUT, Release);
    }

    /// Lets the owner's frees hit again up to a place, at most the end of the storage, unless they do already. Returns
    /// whether the ceiling was changed; then the owner must check once more for requests.
    ///
    /// A correct ceiling is not written. Another one is exchanged, so that the owner sees the request of a CPU whose
    /// shutting it undoes. If a CPU shuts the list after that, its value stays.
    pub(super) fn open(&self, ceiling: u64) -> bool {
        if self.ceiling.load(Relaxed) == ceiling {
            return false;
        }
        self.ceiling.swap(ceiling, AcqRel);
        true
    }

    /// Like [`open`](Self::open) up to the end of the storage, if hits count. The double reads are intended: the
    /// simulator sees each access, and the presets' figures were taken with this one.
    pub(super) fn open_to_end(&self) -> bool {
        let end = self.end();
        if self.ceiling.load(Relaxed) == end {
            return false;
        }
        self.ceiling.swap(self.end(), AcqRel);
        true
    }

    // ---- any CPU ---------------------------------------------------------------------------------------

    /// Whether the list holds `pfn` at `position`. Callable from any CPU.
    ///
    /// `true` is certain: a caller that owns the block never gets it. It was handed the block after the pop that made
    /// `position` the top, or a lower one. Before the top rises above a position again, by a push or a refill, the slot
    /// of that position is written; so a CPU that sees such a top sees another block in the slot. `false` can be wrong
    /// for a block that its owner's hit is putting here at this instant. It is out of date after a refill or a drain of
    /// the owner in between, which has then changed the block's head word: see [`Cpu::claim`](crate::cpu::Cpu).
    #[inline]
    pub(super) fn holds(&self, position: u32, pfn: Pfn) -> bool {
        let (top, bottom) = (self.top.load(Acquire) as u32, self.bottom.load(Acquire) as u32);
        (bottom..top).contains(&position) && self.slot(u64::from(position)).load(Acquire) == pfn.0
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::VecDeque;
    use std::vec::Vec;

    use super::*;
    use crate::platform::machine::Machine;
    use crate::policy::testing::Xorshift;
    use crate::units::{CpuId, Migratetype, Order};

    const SLOTS: usize = 8;

    fn tag(order: u8) -> PlaceTag {
        PlaceTag::new(CpuId(3)).on_list(Order::from_bits(order.into()), Migratetype::Movable)
    }

    /// Random calls against a queue of blocks, whose end is the head of the list.
    #[test]
    #[expect(clippy::too_many_lines, reason = "an arm for each call")]
    fn a_list_is_like_a_queue() {
        let slots: Vec<_> = (0..SLOTS).map(|_| Word::new(0)).collect();
        let list: List<'_, Machine> = List::new(tag(2), &slots, 0);
        let place = |position: u64| tag(2).at(position as u32);
        let mut random = Xorshift(7);
        let mut below = move |n: usize| random.below(n as u64);
        let mut queue: VecDeque<u64> = VecDeque::new();
        // Positions; whether allocations hit; and a block that is not on the list.
        let (mut bottom, mut ceiling, mut takes, mut fresh) = (0, 0, true, 1 << 20);
        for _ in 0..200_000 {
            let len = queue.len();
            let top = bottom + len as u64;
            let frees = place(top) < ceiling;
            assert_eq!((list.top(), list.places()), (place(top), place(bottom)..place(top)));
            assert_eq!((list.len(), list.is_below_ceiling()), (len as u32, frees));
            fresh += 1;
            match below(11) {
                0 | 1 => {
                    let has_room = len < SLOTS;
                    assert_eq!(list.push(Pfn(fresh)), has_room.then_some(place(top)));
                    queue.extend(has_room.then_some(fresh));
                }
                2 => {
                    let head = queue.pop_back();
                    assert_eq!(list.pop(), head.map(Pfn));
                    assert!(head.is_none_or(|head| list.took_last(Pfn(head)) && !list.took_last(Pfn(fresh))));
                }
                3 => {
                    let head = if takes { queue.pop_back() } else { None };
                    assert_eq!(list.take().ok(), head.map(Pfn));
                }
                4 => {
                    assert_eq!(list.put_last(list.top(), Pfn(fresh)), frees);
                    queue.extend(frees.then_some(fresh));
                }
                5 => {
                    let n = below(len + 1);
                    let coldest = queue.drain(..n as usize).map(Pfn);
                    assert!(list.tail(n as u32).eq(coldest));
                    list.drop_tail(n as u32);
                    bottom += n;
                }
                6 => {
                    let to_end = below(4) == 0;
                    let now =
                        place(if to_end { bottom + SLOTS as u64 } else { top + below(SLOTS - len + 1) });
                    assert_eq!(if to_end { list.open_to_end() } else { list.open(now) }, now != ceiling);
                    ceiling = now;
                }
                7 => {
                    (ceiling, takes) = (0, takes && below(2) == 0);
                    if takes { list.shut() } else { list.shut_both_ends() }
                }
                8 => {
                    list.open_floor();
                    takes = true;
                }
                9 if len == 0 => {
                    let (from, n) = (below(4), below(5));
                    (from..from + n).for_each(|at| list.set(at, Pfn(fresh + at)));
                    list.fill(from..from + n);
                    queue.extend((from..from + n).map(|at| fresh + at));
                    list.shut();
                    (bottom, ceiling) = (0, 0);
                    fresh += 16;
                }
                _ => {
                    // A block that last was near the top, and that is there, or is not.
                    let at = (top + below(4)).saturating_sub(2);
                    let listed = at.checked_sub(bottom).and_then(|n| queue.get(n as usize)).copied();
                    let (pfn, is_other) = (listed.filter(|_| below(2) == 0).unwrap_or(fresh), below(4) == 0);
                    let head: <Machine as Platform>::Word =
                        Word::new(tag(if is_other { 3 } else { 2 }).at(at as u32));
                    let is_on = listed == Some(pfn);
                    assert_eq!(list.holds(at as u32, Pfn(pfn)), is_on);
                    let left = match () {
                        () if is_other => Left::Elsewhere,
                        () if is_on => Left::No,
                        () => Left::Here { is_last: at == top },
                    };
                    assert_eq!(list.left(&head, Pfn(pfn)), left);
                    let is_sparse = below(4) == 0;
                    let goes_back = frees && matches!(left, Left::Here { is_last } if is_last || !is_sparse);
                    assert_eq!(list.put_back(&head, Pfn(pfn), || is_sparse), goes_back);
                    if goes_back {
                        queue.push_back(pfn);
                        assert_eq!(head.load(Relaxed), place(top));
                    }
                }
            }
        }
    }

    /// Where hits count, a plain hit misses and one that counts does not, unless a remote drain has shut the list.
    #[test]
    fn hits_that_count_are_of_their_own() {
        let slots: Vec<_> = (0..SLOTS).map(|_| Word::new(0)).collect();
        for (hits, counts, left) in [(0, false, 1), (COUNTED, true, 0), (NO_HITS, false, 2)] {
            let list: List<'_, Machine> = List::new(tag(0), &slots, hits);
            (1..=3).for_each(|n| assert!(list.push(Pfn(n)).is_some()));
            let next = || list.take_counted(list.seen()).map(|pfn| pfn.0);
            assert_eq!(list.seen().may_count(), counts);
            assert_eq!(next(), counts.then_some(3));
            assert_eq!(list.take().is_ok(), hits == 0);
            list.drop_tail(1);
            list.shut_both_ends();
            assert_eq!((next(), list.take().is_err()), (None, true), "shut");
            list.open_floor();
            assert_eq!(next(), counts.then_some(2));
            assert_eq!((next(), list.len()), (None, left));
        }
    }
}
