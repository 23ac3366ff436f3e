//! Calls with which an arena tells memory checkers of its blocks: see `annotate`.
#![expect(unsafe_code, reason = "a block that was allocated just now is filled with zeroes")]

use std::sync::Arc;

use framewright::frame::{FrameUser, State};
use framewright::reclaim::Migrate;
use framewright::{Order, Pfn};

use crate::annotate::Annotated;
use crate::arena::Arena;

impl<M: FrameUser> Arena<M> {
    /// Begins to tell, if there is memory and a checker. None of it has an owner.
    pub(crate) fn annotate(&mut self) {
        let frames = self.frames();
        if let Some(start) = self.address(frames.start) {
            let bytes = (frames.end.0 - frames.start.0) as usize * self.page_bytes();
            self.annotated = Annotated::begin(start, bytes, frames.start, self.page_bytes());
        }
    }

    /// Whether a checker is told of this arena's blocks.
    #[inline(always)]
    pub(crate) fn is_annotated(&self) -> bool {
        self.annotated.is_on()
    }

    /// These frames have an owner from now on.
    #[inline(always)]
    pub(crate) fn annotate_owned(&self, pfn: Pfn, pages: u64) {
        self.annotated.open(pfn, pages);
    }

    /// These frames have no owner from now on: before they are freed, so that no other thread has them yet.
    pub(crate) fn annotate_range_freed(&self, pfn: Pfn, pages: u64) {
        self.annotated.close(pfn, pages);
    }

    /// Tells of a block, if there is one at that place: a free that is wrong will be refused, and has told nothing.
    #[inline(always)]
    pub(crate) fn annotate_freed(&self, pfn: Pfn, order: Order) {
        if self.is_annotated() && self.frames().contains(&pfn) {
            let (start, state) = self.allocator().frames().find(pfn);
            if start == pfn && matches!(state, State::Taken { order: allocated, .. } if allocated == order) {
                self.annotate_range_freed(pfn, order.pages());
            }
        }
    }

    /// Fills a block that was allocated just now with zeroes: what the allocator does itself where no checker is told.
    pub(crate) fn clear(&self, pfn: Pfn, order: Order) {
        if let Some(start) = self.address(pfn) {
            // SAFETY: the block was allocated just now, and its memory is this arena's.
            unsafe { start.write_bytes(0, self.page_bytes() << order.get()) };
        }
    }

    /// A mover of whose blocks a checker is told.
    pub(crate) fn annotating(
        &self,
        migrate: Arc<dyn Migrate + Send + Sync>,
    ) -> Arc<dyn Migrate + Send + Sync> {
        self.annotated.annotating(migrate)
    }
}
