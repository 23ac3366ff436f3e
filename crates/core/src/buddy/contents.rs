//! What the free lists and maps of a zone hold, for whoever looks.

use super::{Buddy, NONE};
use crate::frame::State;
use crate::platform::Platform;
use crate::units::{MAX_ORDER, Migratetype, NR_ORDERS, Order, Pfn};

impl<P: Platform, M> Buddy<'_, '_, P, M> {
    /// Free blocks of `order` on all lists except the isolated one.
    #[must_use]
    pub fn nr_free(&self, order: Order) -> u64 {
        if self.has_bits_of(order) {
            return self.nr_free_bits()[order.index()];
        }
        self.areas.areas[order.index()].nr_free.get() + self.untouched_blocks(order)
    }

    /// The same for every order. With maps O(open pageblocks).
    #[must_use]
    pub(crate) fn nr_free_by_order(&self) -> [u64; NR_ORDERS] {
        let bits = if self.frames.has_maps() { self.nr_free_bits() } else { [0; NR_ORDERS] };
        let mut all = core::array::from_fn(|order| bits[order] + self.areas.areas[order].nr_free.get());
        all[MAX_ORDER.index()] += self.untouched_blocks(MAX_ORDER);
        all
    }

    /// Whether `list` has a block of `order`.
    #[must_use]
    pub fn has(&self, order: Order, list: Migratetype) -> bool {
        if self.has_bits_of(order) {
            return self.has_bits(order, list);
        }
        self.ends(order, list).first != NONE
    }

    /// The free blocks of an order and a type: on a list, first to last; below the pageblock order, with maps, by
    /// pageblock.
    pub fn blocks(&self, order: Order, list: Migratetype) -> impl Iterator<Item = Pfn> {
        let open = self.has_bits_of(order).then(|| self.open_pageblocks(list));
        let bits = open.into_iter().flatten().flat_map(move |start| {
            let blocks = self.frames.map(start).map(|map| map.bits().blocks());
            let of_order = move |(first, is): (u64, u8)| (is == order.get()).then(|| start.add(first));
            blocks.into_iter().flatten().filter_map(of_order)
        });
        self.linked(order, list).chain(bits)
    }

    /// The blocks on a list, first to last.
    fn linked(&self, order: Order, list: Migratetype) -> impl Iterator<Item = Pfn> {
        let first = self.ends(order, list).first;
        let mut at = (first != NONE).then(|| self.pfn_of(first));
        core::iter::from_fn(move || {
            let pfn = at?;
            // A broken link may lead anywhere: whoever walks the list is told, not stopped.
            at = match self.frames.contains(pfn).then(|| self.frames.state(pfn, order)) {
                Some(State::Free { next, .. }) if self.pfn_of(u64::from(next)) != pfn => {
                    Some(self.pfn_of(u64::from(next)))
                }
                _ => None,
            };
            Some(pfn)
        })
    }

    /// The last block of a list.
    #[must_use]
    pub fn last(&self, order: Order, list: Migratetype) -> Option<Pfn> {
        let last = self.ends(order, list).last;
        (last != NONE).then(|| self.pfn_of(last))
    }
}
