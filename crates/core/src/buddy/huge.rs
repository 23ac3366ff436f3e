//! Runs of whole pageblocks that come back.

use super::{Buddy, Run};
use crate::platform::Platform;
use crate::units::PAGEBLOCK_ORDER;

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Frees the blocks of a run of several, if they are whole pageblocks in the most common case, as [`put_pageblock`](Self::put_pageblock) does.
    #[inline(never)]
    pub(super) fn put_run(&mut self, run: Run) -> bool {
        if run.order == PAGEBLOCK_ORDER {
            return self.put_pageblocks(run.first, run.count);
        }
        // If nothing of it is free, its map need not be looked at.
        run.is_pageblock() && self.frames.open_head(run.first).is_none() && self.put_pageblock(run.first)
    }
}
