//! Free blocks taken by address, not by list: the destinations of compaction.

use core::ops::Range;

use super::Buddy;
use crate::frame::State;
use crate::platform::Platform;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Takes free blocks of `order` from the pageblock at `start` until `out` is full, lowest first; larger blocks are
    /// split. Whole free pageblocks stay: compaction makes these. Returns the number of blocks taken. Their head words
    /// are [`State::Body`]. O(512).
    pub(crate) fn take_from_pageblock(&mut self, start: Pfn, order: Order, out: &mut [Pfn]) -> usize {
        if self.frames.has_maps() {
            let (most, mut places) = (out.len(), out.iter_mut());
            let keep = |pfn| places.next().into_iter().for_each(|place| *place = pfn);
            return self.take_bits_of(start, order, most, keep);
        }
        let (mut taken, mut blocks) = (0, self.frames.blocks_of(start));
        while taken < out.len()
            && let Some((head, state)) = blocks.next()
        {
            if let State::Free { order: found, list, .. } = state
                && head >= start
                && (order..PAGEBLOCK_ORDER).contains(&found)
                && (list.is_ordinary() || list == Migratetype::Cma)
            {
                let blocks = (out.len() - taken).min(1 << (found.get() - order.get()));
                if self.take_part(head, found, order, blocks as u64) {
                    let places = out[taken..].iter_mut().take(blocks);
                    places.zip(0..).for_each(|(place, n)| *place = head.add(n << order.get()));
                    taken += blocks;
                    self.account(list, -((blocks << order.get()) as i64));
                }
            }
        }
        taken
    }

    /// Takes free blocks of `order`, below the pageblock order, from open pageblocks of type `list` with at most `free`
    /// free frames, the fullest first, until `out` is full; none from a pageblock that begins in `but`. Returns the
    /// number of blocks taken. Their head words are [`State::Body`]. Only with maps. O(blocks).
    pub(crate) fn take_from_fuller(
        &mut self,
        but: &Range<Pfn>,
        free: u32,
        list: Migratetype,
        order: Order,
        out: &mut [Pfn],
    ) -> usize {
        let mut taken = 0;
        while taken < out.len()
            && let Some(start) = self.fullest_with(order, list, free, but)
        {
            match self.take_from_pageblock(start, order, &mut out[taken..]) {
                // Its bin disagrees with its map. An allocation that finds this rebuilds the bins.
                0 => break,
                now => taken += now,
            }
        }
        taken
    }

    /// Takes the free blocks of at least `least` that begin in the pageblock at `start`, each whole, until `out` is
    /// full. Returns the number of blocks taken. Their head words are [`State::Body`]. O(512).
    pub(crate) fn take_whole(&mut self, start: Pfn, least: Order, out: &mut [(Pfn, Order)]) -> usize {
        if self.frames.open_head(start).is_some() {
            return self.take_whole_bits(start, least, out);
        }
        let (mut taken, mut blocks) = (0, self.frames.blocks_of(start));
        let has_maps = self.frames.has_maps();
        while taken < out.len()
            && let Some((head, state)) = blocks.next()
        {
            if let State::Free { order, list, .. } = state
                && head >= start
                && order >= least
                && (list.is_ordinary() || list == Migratetype::Cma)
                && (if has_maps { self.take_large_at(head, order) } else { self.unlink_at(head, order) })
                    .is_some()
            {
                self.account(list, -(order.pages() as i64));
                if order >= PAGEBLOCK_ORDER {
                    self.forget_reports(head, head.add(order.pages()));
                }
                out[taken] = (head, order);
                taken += 1;
            }
        }
        taken
    }

    /// Like [`take_whole`](Self::take_whole), of an open pageblock: the largest blocks first, so that each is whole.
    fn take_whole_bits(&mut self, start: Pfn, least: Order, out: &mut [(Pfn, Order)]) -> usize {
        let mut places = out.iter_mut();
        for order in Order::all().filter(|&order| least <= order && order < PAGEBLOCK_ORDER).rev() {
            let most = places.len();
            let keep = |pfn| places.next().into_iter().for_each(|place| *place = (pfn, order));
            self.take_bits_of(start, order, most, keep);
        }
        let left = places.len();
        out.len() - left
    }

    /// Takes the first `blocks` blocks of `order` from the free block of order `whole` at `pfn`, unless its list is
    /// damaged.
    fn take_part(&mut self, pfn: Pfn, whole: Order, order: Order, blocks: u64) -> bool {
        let Some(list) = self.unlink_at(pfn, whole) else { return false };
        self.put_rest(pfn.add(blocks << order.get()), pfn.add(whole.pages()), list);
        true
    }
}
