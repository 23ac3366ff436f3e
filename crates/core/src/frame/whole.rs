//! Whole pageblocks: where their head words lie, and with maps, which are free. Their head words say so, and a bit for each says so again.

use super::{FrameMap, FreeHead, PageMap, Pageblock, ZoneFrames};
use crate::config::LargeHeads;
use crate::platform::Platform;
use crate::policy::fallback::may_merge;
use crate::units::{Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

impl<'m, P: Platform, M> FrameMap<'m, P, M> {
    /// The bitmaps of free pageblocks.
    #[inline(always)]
    pub(crate) const fn whole_maps(&self) -> &'m [PageMap<P>] {
        self.whole
    }

    /// The type of the bitmap that has the pageblock of `pfn`, if it is free as a whole. Only with maps.
    #[inline]
    pub(crate) fn free_whole(&self, pfn: Pfn) -> Option<Migratetype> {
        let word = self.pageblock(pfn)?.head_word();
        let list = FreeHead::of_order(word, PAGEBLOCK_ORDER)?.list();
        (word == FreeHead::whole(list).word()).then_some(list)
    }

    /// Whether the pageblock of `pfn` and its buddy are free as one block of the largest order. Only with maps.
    pub(crate) fn is_pair(&self, pfn: Pfn) -> bool {
        let buddy = pfn.block_start(PAGEBLOCK_ORDER).buddy(PAGEBLOCK_ORDER);
        let lists = self.free_whole(pfn).zip(self.free_whole(buddy));
        lists.is_some_and(|(list, other)| may_merge(PAGEBLOCK_ORDER, list, other))
    }
}

impl<'m, P: Platform, M> ZoneFrames<'m, P, M> {
    /// The pageblock that begins at `pfn`, and its head word, if that lies in its descriptor; `None` if the zone has none.
    #[inline(always)]
    pub(crate) fn whole(&self, pfn: Pfn) -> Option<(&'m Pageblock<P>, &'m P::Word)> {
        let index = pfn.0.wrapping_sub(self.start.0);
        let pageblock = self.pageblocks.get((index / PAGEBLOCK_PAGES) as usize)?;
        let begins = index.is_multiple_of(PAGEBLOCK_PAGES) && self.large_heads == LargeHeads::Pageblocks;
        begins.then_some((pageblock, &pageblock.head))
    }
}
