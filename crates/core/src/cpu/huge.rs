//! Frees of whole pageblocks that were not allocated last.

use super::{Cpu, Left};
use crate::error::FreeError;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::units::{PAGEBLOCK_ORDER, Pfn};

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Frees a block of the pageblock order. Most go back to the list that they left: no such block is in an open pageblock, so what
    /// decides that of smaller ones need not be asked. As [`free_missed`](Self::free_missed) in every other case.
    #[inline(never)]
    pub(super) fn free_huge(&self, pfn: Pfn, error: &mut Option<FreeError>) {
        if !self.pcp.counts()
            && let Some((pageblock, head)) = self.near.whole(pfn)
            && let Some(migratetype) = pageblock.info().ordinary_as(self.home)
            && let Some(list) = self.pcp.hit_list(PAGEBLOCK_ORDER, migratetype)
            && let Left::Here { top, .. } = list.left(head, pfn)
            && list.is_hit(top)
        {
            return list.put_at(top, head, pfn);
        }
        self.free_missed(pfn, PAGEBLOCK_ORDER, error);
    }
}
