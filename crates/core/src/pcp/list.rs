//! One list: a stack whose bottom can be cut off.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::platform::{Platform, Word};
use crate::units::Pfn;

/// Set in a list's `base` while its blocks are being moved.
const MOVING: u64 = 1 << 32;
/// Bit from which `base` counts how often they were moved.
const MOVES: u32 = 33;

/// A list of block addresses: a stack whose bottom can be cut off.
///
/// Blocks lie in `slots[bottom..top]`, the head of the list at the top. When the top reaches the end of the
/// storage, the blocks are moved down; the storage is twice what a list holds, so that this is rare.
#[repr(C)]
pub(super) struct List<'m, P: Platform> {
    /// Twice as many as blocks may sit here; none if the order has no lists under this configuration.
    pub(super) slots: &'m [P::Word],
    /// Index behind the head.
    pub(super) top: P::Word,
    /// Index of the coldest block.
    pub(super) bottom: P::Word,
    /// Position of slot 0, in the lower half; above it [`MOVING`], and the number of moves. A block's position,
    /// `base + index` modulo 2^32, stays when blocks are moved down.
    pub(super) base: P::Word,
}

impl<'m, P: Platform> List<'m, P> {
    pub(super) fn new(slots: &'m [P::Word]) -> Self {
        Self { slots, top: P::Word::new(0), bottom: P::Word::new(0), base: P::Word::new(0) }
    }

    pub(super) fn len(&self) -> u32 {
        self.top.load(Relaxed).wrapping_sub(self.bottom.load(Relaxed)) as u32
    }

    /// Blocks that may still be added.
    pub(super) fn room(&self) -> u32 {
        (self.slots.len() as u32 / 2).saturating_sub(self.len())
    }

    pub(super) fn position(&self, index: u64) -> u32 {
        (self.base.load(Relaxed) as u32).wrapping_add(index as u32)
    }

    /// Takes the block at the head.
    #[inline]
    pub(super) fn pop(&self) -> Option<Pfn> {
        let top = self.top.load(Relaxed);
        if top == self.bottom.load(Relaxed) {
            return None;
        }
        let pfn = self.slots.get(top.wrapping_sub(1) as usize)?.load(Relaxed);
        // Release: a CPU that sees this top sees the bottom and the slots of the refill before it.
        self.top.store(top.wrapping_sub(1), Release);
        Some(Pfn(pfn))
    }

    /// Puts a block at the head and returns its position; `None` if the storage ends here.
    #[inline]
    pub(super) fn push(&self, pfn: Pfn) -> Option<u32> {
        let top = self.top.load(Relaxed);
        self.slots.get(top as usize)?.store(pfn.0, Relaxed);
        // Release: a CPU that sees the new top sees the slot (see `holds`).
        self.top.store(top + 1, Release);
        Some(self.position(top))
    }

    /// Puts a block that last sat at `seat` of this list back to its head, and returns its position; `None` if
    /// it sits there still, or the storage ends here. The owner's way: no load is made twice.
    #[inline]
    pub(super) fn put_back(&self, seat: u32, pfn: Pfn) -> Option<u32> {
        let (top, base) = (self.top.load(Relaxed), self.base.load(Relaxed));
        let index = u64::from(seat.wrapping_sub(base as u32));
        if index < top && self.holds_at(base, index, pfn) {
            return None;
        }
        self.slots.get(top as usize)?.store(pfn.0, Relaxed);
        self.top.store(top + 1, Release);
        Some((base as u32).wrapping_add(top as u32))
    }

    /// Moves the blocks down to the start of the storage. O(blocks).
    pub(super) fn compact(&self) {
        let (top, bottom) = (self.top.load(Relaxed), self.bottom.load(Relaxed));
        if bottom == 0 {
            return;
        }
        let base = self.base.load(Relaxed);
        self.base.store(base | MOVING, Relaxed);
        for index in bottom..top {
            if let (Some(slot), Some(pfn)) = (self.slots.get((index - bottom) as usize), self.at(index)) {
                // Release, here and below: whoever sees this sees that blocks are being moved.
                slot.store(pfn.0, Release);
            }
        }
        self.top.store(top - bottom, Release);
        self.bottom.store(0, Release);
        let moves = (base >> MOVES).wrapping_add(1) << MOVES;
        self.base.store(moves | u64::from((base as u32).wrapping_add(bottom as u32)), Release);
    }

    pub(super) fn at(&self, index: u64) -> Option<Pfn> {
        Some(Pfn(self.slots.get(index as usize)?.load(Relaxed)))
    }

    pub(super) fn set(&self, index: u64, pfn: Pfn) {
        if let Some(slot) = self.slots.get(index as usize) {
            slot.store(pfn.0, Relaxed);
        }
    }

    /// The `n`-th block from the tail, the coldest being number 0.
    pub(super) fn peek_tail(&self, n: u32) -> Option<Pfn> {
        if n >= self.len() {
            return None;
        }
        self.at(self.bottom.load(Relaxed) + u64::from(n))
    }

    /// Removes `n` blocks at the tail.
    pub(super) fn drop_tail(&self, n: u32) {
        self.bottom.store(self.bottom.load(Relaxed) + u64::from(n), Release);
    }

    /// Whether the list holds `pfn` at `position`. Called by any CPU.
    ///
    /// A yes is certain: a caller that owns the block never gets one. While no block is moved, no slot below
    /// the top holds a block that was popped from there, because a push stores its slot before the top; and a
    /// caller that owns the block was handed it after the pop. Whether blocks were moved meanwhile is asked
    /// before a yes is said, so only that costs a second look. A no can be wrong only for a block that another
    /// CPU is putting here at this instant.
    #[inline]
    pub(super) fn holds(&self, position: u32, pfn: Pfn) -> bool {
        let base = self.base.load(Acquire);
        let index = position.wrapping_sub(base as u32);
        u64::from(index) < self.top.load(Acquire) && self.holds_at(base, u64::from(index), pfn)
    }

    fn holds_at(&self, base: u64, index: u64, pfn: Pfn) -> bool {
        let held = index >= self.bottom.load(Acquire)
            && self.slots.get(index as usize).is_some_and(|slot| slot.load(Acquire) == pfn.0);
        held && base & MOVING == 0 && self.base.load(Acquire) == base
    }
}
