//! The most common free to the store: one block of an open pageblock.

use super::super::{Buddy, Placement, Run};
use super::{CLASS_AT, STEP};
use crate::frame::{Map, OpenHead, Pageblock, WORDS, block_at_0};
use crate::platform::Platform;
use crate::units::{Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};

/// By the order of a pageblock's largest free block: the start of a larger block that would hold a given bit of a word,
/// as a mask of the bit's number, and the bits of that block. From order 5 on, a full word: the pageblock may have a
/// larger block then.
const LARGER: [(u64, u64); 16] = {
    let mut table = [(0, u64::MAX); 16];
    let mut largest = 0;
    while let Some(ones) = block_at_0(largest + 1) {
        table[largest as usize] = (63 & u64::MAX << (largest + 1), ones);
        largest += 1;
    }
    table
};

/// Whether a pageblock with `free` free frames instead of `old` is in another class, or no longer open.
#[inline(always)]
fn changes_class(old: u32, free: u32) -> bool {
    let class = |free: u32| CLASS_AT[(free / STEP) as usize % CLASS_AT.len()];
    class(old) != class(free) || u64::from(free) >= PAGEBLOCK_PAGES
}

/// Order of the free block that holds the block of `order` at bit `at` of word `n` of a map; `now` is the word's value.
fn grown<P: Platform>(map: Map<'_, P>, n: usize, now: u64, at: u64, mut order: u8) -> u8 {
    if now != u64::MAX {
        while let Some(ones) = block_at_0(order + 1)
            && now >> (at >> (order + 1) << (order + 1)) & ones == ones
        {
            order += 1;
        }
        return order;
    }
    // Number of words of the free block so far.
    let mut words = 1;
    while words < WORDS {
        let buddy = (n & !(words - 1)) ^ words;
        for n in buddy..buddy + words {
            if map.word(n) != u64::MAX {
                return 6 + words.ilog2() as u8;
            }
        }
        words *= 2;
    }
    PAGEBLOCK_ORDER.get()
}

impl<'m, P: Platform, M> Buddy<'_, 'm, P, M> {
    /// Frees the blocks of a run. The head words of blocks below the pageblock order are
    /// [`State::Body`](crate::frame::State::Body) already, except for marks (see
    /// [`FrameMap::clear_head`](crate::frame::FrameMap)).
    #[inline(always)]
    pub(crate) fn free_run(&mut self, Run { first, count, order }: Run) {
        let is_put = if order < PAGEBLOCK_ORDER {
            count == 1 && self.put_block(first, order)
        } else {
            order == PAGEBLOCK_ORDER && self.put_pageblocks(first, u64::from(count))
        };
        if !is_put {
            self.free_any_run(first, u64::from(count), order);
        }
        self.note_freed();
    }

    /// Frees any other run. Out of line, so that the most common runs stay in registers.
    #[inline(never)]
    fn free_any_run(&mut self, first: Pfn, count: u64, order: Order) {
        let pages = count << order.get();
        // If no frame of it is free, its map need not be read.
        let is_pageblock =
            order < PAGEBLOCK_ORDER && pages == PAGEBLOCK_PAGES && self.frames.open_head(first).is_none();
        if is_pageblock && self.put_pageblocks(first, 1) {
            return;
        }
        if order == PAGEBLOCK_ORDER {
            self.free_pageblocks(first, count);
        } else if order < PAGEBLOCK_ORDER && !self.frames.info(first).is_poisoned() {
            self.put_bits(first, pages, order);
        } else {
            (0..count).for_each(|n| self.free(first.add(n << order.get()), order, Placement::Likely));
        }
    }

    /// Frees adjacent pageblocks: those of a word of bits together, if they are alike.
    fn free_pageblocks(&mut self, first: Pfn, count: u64) {
        let mut done = 0;
        while done < count {
            let at = first.add(done * PAGEBLOCK_PAGES);
            let together = self.left_in_word(at).min(count - done);
            if !self.put_pageblocks(at, together) {
                let each = (0..together).map(|n| at.add(n * PAGEBLOCK_PAGES));
                each.for_each(|start| self.free(start, PAGEBLOCK_ORDER, Placement::Likely));
            }
            done += together;
        }
    }

    /// Frees the block of `order` at `first`, whose head word is [`State::Body`](crate::frame::State::Body), in the
    /// most common case: it is in one word of the map of an open pageblock of an ordinary type without bad frames, and
    /// is not free already. On `false` the state is unchanged. The caller records that a block was freed.
    #[inline(always)]
    pub(in crate::buddy) fn put_block(&mut self, first: Pfn, order: Order) -> bool {
        let Some(ones) = block_at_0(order.get()) else { return false };
        let Some(pageblock) = self.pageblocks.get(self.number_of(first) as usize) else { return false };
        let Some(old) = OpenHead::of(pageblock.head_word()) else { return false };
        let map = self.map(first);
        let at = first.0 % 64;
        let n = (first.0 % PAGEBLOCK_PAGES / 64) as usize;
        let before = map.word(n);
        if before & ones << at != 0 || !pageblock.info().is_plain() {
            return false;
        }
        let now = before + (ones << at);
        map.set_word(n, now);
        let pages = order.pages();
        self.account_put(pages as i64);
        let (start, larger) = LARGER[usize::from(old.largest())];
        let has_larger = now >> (at & start) & larger == larger || order.get() > old.largest();
        let more = old.with_more(pages);
        if has_larger || (!more.is_in_step_with(old) && changes_class(old.free(), more.free())) {
            self.refile_put(pageblock, map, (first, order), now, has_larger);
        } else {
            pageblock.set_head_word(more.word());
        }
        true
    }

    /// The end of [`put_block`](Self::put_block) when the pageblock may change its bin. `now` is the word of its map
    /// that holds the block. `has_larger`: its largest free block may have changed.
    #[inline(never)]
    fn refile_put(
        &mut self,
        pageblock: &Pageblock<P>,
        map: Map<'_, P>,
        (first, order): (Pfn, Order),
        now: u64,
        has_larger: bool,
    ) {
        let Some(old) = OpenHead::of(pageblock.head_word()) else { return };
        let free = old.free() + order.pages() as u32;
        let mut largest = old.largest();
        if has_larger {
            let n = (first.0 % PAGEBLOCK_PAGES / 64) as usize;
            largest = largest.max(grown(map, n, now, first.0 % 64, order.get()));
        }
        let start = first.block_start(PAGEBLOCK_ORDER);
        self.refile(start, pageblock.info().migratetype(), Some(old), (free, largest), true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buddy::testing::Store;

    /// Frames that are free already are counted as refused, and stay free: some of a word of the map, all of it, and
    /// exactly those that are free in it.
    #[test]
    fn frames_that_are_free_already_are_refused() {
        for (free, again, refused) in [(6, 6, 64), (5, 6, 32), (6, 7, 64), (7, 6, 64), (3, 3, 8)] {
            let [free, again] = [free, again].map(|n| Order::new(n).expect("an order"));
            let mut store = Store::new(2, true);
            let at = Store::pageblock(1);
            store.with(|buddy| buddy.free(at, free, Placement::Likely));
            store.with(|buddy| buddy.free(at, again, Placement::Likely));
            assert_eq!(store.with(|buddy| buddy.counts().refused_pages), refused, "{free:?}, {again:?}");
            assert_eq!(store.check(), free.max(again).pages());
        }
    }
}
