//! Split of an allocated block.
#![expect(unsafe_code, reason = "the caller must own the block that it splits")]

use super::Cpu;
use crate::error::{FreeError, FreeFailure};
use crate::frame::{BlockInfo, FrameUser, ListPlace, State};
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, Pfn};

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Splits an allocated block of order `from` into allocated blocks of order `to`, each to be freed on its own
    /// (Linux `split_page`). O(2^(from − to)).
    ///
    /// # Safety
    /// If the block is allocated, the caller owns it, and no other code frees or splits it during the call: the head
    /// words of its parts are written without a lock. If the block went to a free list during the call, the call would
    /// overwrite that list's head words.
    ///
    /// # Errors
    /// As [`free`](Self::free), if the block is not allocated with order `from`, or `to` is larger.
    pub unsafe fn split(&self, pfn: Pfn, from: Order, to: Order) -> Result<(), FreeError> {
        let frames = &self.allocator.frames;
        let info = frames.info(pfn);
        if !info.is_present() || !self.may_free(pfn, from, info) {
            return Err(self.refuse(pfn, from));
        }
        if to > from {
            return Err(FreeError { why: FreeFailure::WrongOrder { allocated: from }, pfn, order: to });
        }
        let State::Taken { asked, .. } = frames.state(pfn, from) else { return Err(self.refuse(pfn, from)) };
        if !self.claim(pfn, from, info) {
            return Err(self.refuse(pfn, from));
        }
        self.write_parts(pfn, to, info, |has_marks| {
            let set = |pfn, order, state| match has_marks {
                true => frames.set_state_of_marked(pfn, order, state),
                false => frames.set_state(pfn, order, state),
            };
            set(pfn, from, State::Body);
            let state = State::Taken { order: to, asked, list_place: None };
            (0..from.pages()).step_by(to.pages() as usize).for_each(|n| set(pfn.add(n), to, state));
        });
        Ok(())
    }

    /// Calls `write`, which writes the head words of the parts of order `to` of a block; it gets whether the block may
    /// have bad frames, whose marks it must keep then. A mark that another CPU sets after that may be overwritten: to
    /// that CPU this one is in a hit during the call, so that it waits for the end, and looks at the mark again.
    #[inline]
    fn write_parts(&self, pfn: Pfn, to: Order, info: BlockInfo, write: impl FnOnce(bool)) {
        let pcp = self.allocator.pcp(info.zone(), self.cpu);
        pcp.enter();
        // Where no CPU drains remotely, that CPU waits until this one answers. The presets' loads stay as when their
        // figures were taken.
        let info = if P::DRAINS_REMOTELY { self.frames.info(pfn) } else { info };
        write(info.is_poisoned());
        pcp.leave();
        if info.is_poisoned() && to < MAX_ORDER {
            // Of a block of the largest order the first pageblock is marked for both.
            self.local(info.zone()).under_lock(pfn, |buddy| buddy.forget_marks(pfn, 1));
        }
    }

    /// Makes a block, which was allocated just now and no other code knows of, single frames: as if they had come from
    /// this CPU's list, so that its frees need not claim them.
    #[inline]
    pub(super) fn make_singles(&self, pfn: Pfn, from: Order, asked: Migratetype) {
        let frames = &self.allocator.frames;
        let info = frames.info(pfn);
        let has_list = self.allocator.pcp(info.zone(), self.cpu).has_list(Order::ZERO, asked);
        let list_place = has_list.then_some(ListPlace { cpu: self.cpu, position: 0 });
        let state = State::Taken { order: Order::ZERO, asked, list_place };
        self.write_parts(pfn, Order::ZERO, info, |has_marks| {
            if has_marks {
                frames.set_state_of_marked(pfn, from, State::Body);
                let singles = (0..from.pages()).map(|n| pfn.add(n));
                singles.for_each(|frame| frames.set_state_of_marked(frame, Order::ZERO, state));
            } else {
                frames.set_singles(pfn, from, state);
            }
        });
    }
}
