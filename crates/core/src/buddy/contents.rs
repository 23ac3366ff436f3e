//! Content of the free lists and maps of a zone, for reading.

use super::{Buddy, NONE};
use crate::frame::State;
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, Order, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Free blocks of `order` on all lists except the isolated one. With maps no list has any.
    #[must_use]
    pub fn nr_free(&self, order: Order) -> u64 {
        self.areas.areas[order.index()].nr_free.get()
    }

    /// Whether `list` has a block of `order`.
    #[must_use]
    pub fn has(&self, order: Order, list: Migratetype) -> bool {
        if self.has_bits_of(order) {
            return self.has_bits(order, list);
        }
        if self.frames.has_maps() {
            let mixes = order == MAX_ORDER && list.is_ordinary();
            return self.has_whole(order, list) || (mixes && self.mixed_pair(Some(list)).is_some());
        }
        self.ends(order, list).first != NONE
    }

    /// The free blocks of an order and a type: on a list, first to last; with maps, by pageblock.
    pub fn blocks(&self, order: Order, list: Migratetype) -> impl Iterator<Item = Pfn> {
        let open = self.has_bits_of(order).then(|| self.open_pageblocks(list));
        let bits = open.into_iter().flatten().flat_map(move |start| {
            let blocks = self.frames.map(start).map(|map| map.bits().blocks());
            let of_order = move |(first, found): (u64, u8)| (found == order.get()).then(|| start.add(first));
            blocks.into_iter().flatten().filter_map(of_order)
        });
        self.linked(order, list).chain(bits).chain(self.whole_blocks(order, list))
    }

    /// The blocks on a list, first to last.
    fn linked(&self, order: Order, list: Migratetype) -> impl Iterator<Item = Pfn> {
        let first = self.ends(order, list).first;
        let mut at = (first != NONE).then(|| self.pfn_of(first));
        core::iter::from_fn(move || {
            let pfn = at?;
            // A damaged link may lead anywhere: the walk yields that frame, and ends there if it is no free block of
            // this order.
            at = match self.frames.contains(pfn).then(|| self.frames.state(pfn, order)) {
                Some(State::Free { next, .. }) if self.pfn_of(u64::from(next)) != pfn => {
                    Some(self.pfn_of(u64::from(next)))
                }
                _ => None,
            };
            Some(pfn)
        })
    }

    /// First frame of a block of a type: with maps one of the fullest open pageblock, else of the smallest block.
    /// O(orders).
    pub(crate) fn first_with(&self, list: Migratetype) -> Option<Pfn> {
        if !self.frames.has_maps() {
            return Order::all().find_map(|order| self.linked(order, list).next());
        }
        self.open_pageblocks(list).next().or_else(|| self.first_whole(list))
    }

    /// The last block of a list.
    #[must_use]
    pub fn last(&self, order: Order, list: Migratetype) -> Option<Pfn> {
        let last = self.ends(order, list).last;
        (last != NONE).then(|| self.pfn_of(last))
    }
}
