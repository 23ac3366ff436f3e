//! Compaction: pages of the cache move to other frames where the allocator wants large blocks, or these very frames.
#![expect(unsafe_code, reason = "the allocator takes the owner's word for it that a block has moved")]

use framewright::platform::Platform;
use framewright::reclaim::{Migrate, Migrated};
use framewright::{Migratetype, Order, Pfn};

use crate::cache::{Cache, Use};
use crate::device::Device;
use crate::slot::{ALONE, Marks};

// SAFETY: what it says has moved was a page of its index, allocated with order 0, which this call had alone: until its
// entry named `to`, no other thread used, dropped, freed or moved it, and from then on no thread finds `from`.
unsafe impl<P: Platform, D: Device> Migrate for Cache<'_, P, D> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let is_ours = || {
            self.locked(|state| {
                // One that is not up to date is about to be dropped by the thread that has failed to read it.
                state.owns(&self.slots, from)
                    && self.slots.get(from).marks.has(Marks::UPTODATE)
                    && self.try_use(from, Use::Alone)
            })
        };
        if order != Order::ZERO || !is_ours() {
            return Migrated::Stays;
        }
        self.device.copy_page(from, to);
        let zones = (self.zone_of(from), self.zone_of(to));
        self.locked(|state| {
            debug_assert_eq!(self.slots.get(from).users, ALONE);
            state.relocate(&self.slots, (zones.0, from), (zones.1, to));
            self.end_use_locked(to);
        });
        Migrated::Moved
    }

    /// Of pages that no thread uses now, and that are not being written.
    fn can_move(&self, from: Pfn, order: Order, _: Migratetype) -> bool {
        order == Order::ZERO
            && self.locked(|state| {
                state.owns(&self.slots, from) && {
                    let slot = self.slots.get(from);
                    slot.users == 0 && slot.marks.has(Marks::UPTODATE) && !slot.marks.has(Marks::WRITEBACK)
                }
            })
    }
}
