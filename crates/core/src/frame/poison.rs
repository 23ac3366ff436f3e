//! Frames that were found bad while a caller uses them: a mark in the frame's own word.
//!
//! The word of a frame inside a block is [`State::Body`], and that of a block's first frame is its head word. The mark
//! is one bit of either that has no other use; code that unpacks such a word sees the same state with and without the
//! mark. The pageblock's [`BlockInfo`](super::BlockInfo) records that it has marked frames, so that no other pageblock
//! is searched; for both pageblocks of a block of the largest order, the first one's does. If frames have no words,
//! none is marked.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::state::{FREE, KIND, KIND_QUARANTINED, MARK};
use super::{FrameMap, State};
use crate::platform::{Platform, Word, update};
use crate::units::{Order, Pfn, index};

/// Bits that tell a marked frame from others: those of a free block have other uses.
const MARKED: u64 = FREE | MARK;

impl<'m, P: Platform, M> FrameMap<'m, P, M> {
    /// The frame's own word, which for a large block is not its head word. The frame must be in the map.
    fn own_word(&self, pfn: Pfn) -> &'m P::Word {
        &self.frames[(pfn.0 - self.base.0) as usize].word
    }

    /// Sets or clears the mark of a frame that is on no free list. Returns whether this changed it.
    pub(crate) fn set_mark(&self, pfn: Pfn, marked: bool) -> bool {
        if self.is_compact() {
            return false;
        }
        let changed = |old| {
            let new = if marked { old | MARK } else { old & !MARK };
            (old & FREE == 0 && old != new).then_some(new)
        };
        update(self.own_word(pfn), AcqRel, changed).is_some()
    }

    /// Whether a frame is marked.
    pub(crate) fn is_marked(&self, pfn: Pfn) -> bool {
        cfg!(feature = "mobility") && !self.is_compact() && self.own_word(pfn).load(Acquire) & MARKED == MARK
    }

    /// Whether a frame is marked and out of use as a single frame.
    pub(crate) fn is_withdrawn(&self, pfn: Pfn) -> bool {
        if self.is_compact() {
            return false;
        }
        let word = self.own_word(pfn).load(Acquire);
        self.is_marked(pfn) && word >> KIND & 7 == KIND_QUARANTINED
    }

    /// Takes a frame that is in no block out of use, and marks it. Under the zone lock.
    pub(crate) fn withdraw(&self, pfn: Pfn) {
        self.own_word(pfn).store(State::Quarantined { order: Order::ZERO }.pack() + MARK, Relaxed);
    }

    /// The first marked frame among `pages` from `first` on that is not out of use already. O(pages).
    pub(crate) fn first_mark(&self, first: Pfn, pages: u64) -> Option<Pfn> {
        let mut all = (first.0..first.0 + pages).map(Pfn);
        all.find(|&pfn| self.is_marked(pfn) && !self.is_withdrawn(pfn))
    }

    /// Writes the head word of a block, and keeps the mark of its first frame: in one step, since a free in the same
    /// pageblock that finds no mark there lets later ones look for none. The caller owns the block.
    pub(crate) fn set_state_of_marked(&self, pfn: Pfn, order: Order, state: State) {
        if self.is_marked(pfn) && core::ptr::eq(self.head(pfn, order), self.own_word(pfn)) {
            // Another CPU may find the frame good meanwhile.
            update(self.own_word(pfn), AcqRel, |old| Some(state.pack() + (old & MARK)));
        } else {
            self.set_state(pfn, order, state);
        }
    }

    /// Prepares a free, with maps and below the pageblock order: sets the block's head word to [`State::Body`], except
    /// for the mark of a bad frame. The caller owns the block.
    #[inline(always)]
    pub(crate) fn clear_head(&self, pfn: Pfn) {
        if let Some(frame) = self.frames.get(index(pfn.0.wrapping_sub(self.base.0))) {
            if frame.word.load(Relaxed) & MARK == 0 {
                frame.word.store(0, Relaxed);
            } else {
                self.clear_head_of_marked(pfn);
            }
        }
    }

    /// [`clear_head`](Self::clear_head) of a marked frame, which another CPU may find good at this moment.
    #[cold]
    fn clear_head_of_marked(&self, pfn: Pfn) {
        update(self.own_word(pfn), AcqRel, |old| Some(old & MARK));
    }
}
