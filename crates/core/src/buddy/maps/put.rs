//! One block comes back to an open pageblock: the most common free.

use super::super::Buddy;
use super::{CLASS_AT, STEP};
use crate::frame::{Map, OpenHead, block_at_0};
use crate::platform::Platform;
use crate::units::{Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// By the order of a pageblock's largest free block: where in a word a larger block would start that holds a given bit, as a
/// mask of the bit's number, and the bits that it has from there. From order 5 on, a word that is full: there may be one.
const LARGER: [(u64, u64); 16] = {
    let mut table = [(0, u64::MAX); 16];
    let mut largest = 0;
    while let Some(ones) = block_at_0(largest + 1) {
        table[largest as usize] = (63 & u64::MAX << (largest + 1), ones);
        largest += 1;
    }
    table
};

/// Order of the free block that holds the block of `order` at bit `at` of a word which now says `now`: of the pageblock, if
/// the word is full.
#[inline(never)]
fn grown<P: Platform>(map: Map<'_, P>, now: u64, at: u64, order: u8) -> u8 {
    if now == u64::MAX {
        return map.bits().largest().unwrap_or(0);
    }
    let is_free =
        |order: u8| block_at_0(order).is_some_and(|ones| now >> (at >> order << order) & ones == ones);
    (order + 1..).take_while(|&larger| is_free(larger)).last().unwrap_or(order)
}

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Frees the block of `order` at `first`, whose head word says [`State::Body`](crate::frame::State::Body), in the most
    /// common case: it lies in one word of the map of an open pageblock of an ordinary type without bad frames, and is not
    /// free already. `false`, and nothing has happened, in every other case.
    #[inline(never)]
    pub(in crate::buddy) fn put_block(&mut self, first: Pfn, order: Order) -> bool {
        match self.frames.map(first) {
            // Twice, so that the more common form need not look which one it is at each step.
            Some(Map::Free(map)) => self.put_block_in(Map::Free(map), first, order),
            Some(map) => self.put_block_in(map, first, order),
            None => false,
        }
    }

    #[inline(always)]
    fn put_block_in(&mut self, map: Map<'_, P>, first: Pfn, order: Order) -> bool {
        let Some(ones) = block_at_0(order.get()) else { return false };
        let Some(pageblock) = self.frames.pageblock(first) else { return false };
        let (info, was) = (pageblock.info(), pageblock.head_word());
        let Some(OpenHead { free: was_free, largest, .. }) = OpenHead::unpack(was) else { return false };
        let at = first.0 % 64;
        let n = (first.0 % PAGEBLOCK_PAGES / 64) as usize;
        let before = map.word(n);
        if before & ones << at != 0 || !info.is_ordinary() || info.is_poisoned() {
            return false;
        }
        let now = before | ones << at;
        map.set_word(n, now);
        let pages = order.pages() as u32;
        self.account_as(i64::from(pages), 0);
        let free = was_free + pages;
        let class = |free: u32| CLASS_AT[(free / STEP) as usize];
        let (start, larger) = LARGER[usize::from(largest)];
        if (free / STEP != was_free / STEP
            && (u64::from(free) >= PAGEBLOCK_PAGES || class(free) != class(was_free)))
            || order.get() > largest
            || now >> (at & start) & larger == larger
        {
            self.refile_put(first, order, now);
        } else {
            pageblock.set_head_word(OpenHead::with_more(was, pages));
        }
        true
    }

    /// The end of [`put_block`](Self::put_block) where the pageblock may change its bin. The word of its map that holds the block
    /// says `now`.
    #[inline(never)]
    fn refile_put(&mut self, first: Pfn, order: Order, now: u64) {
        let start = first.block_start(PAGEBLOCK_ORDER);
        let Some(was) = self.frames.open_head(start) else { return };
        let largest = was.largest.max(grown(self.map(first), now, first.0 % 64, order.get()));
        let list = self.frames.info(start).migratetype();
        self.refile(start, list, Some(was), (was.free + order.pages() as u32, largest), true);
    }
}
