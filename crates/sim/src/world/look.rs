//! A kernel's looks at a zone without its lock.

use core::ptr::NonNull;

use framewright::Order;

use crate::engine::{self, Access};

/// Reads what a kernel reads of a zone without the zone lock: before an allocation how many pages and blocks are free, and the flags
/// when it has a block or frees one to a list.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Host address of the sum of free pages.
    pub(super) total: usize,
    pub(super) areas: NonNull<u8>,
    pub(super) area: usize,
    pub(super) count: usize,
}

impl Look {
    /// Reads as far as `zone_watermark_ok` of Linux does for a request of this order that the counts suffice for.
    pub fn for_order(&self, order: Order) {
        engine::touch(self.total, size_of::<u64>(), Access::Read);
        if order == Order::ZERO {
            return;
        }
        for order in order.and_above() {
            // SAFETY: free areas follow one another in the zone, in a mapping that outlives every run; words of it are
            // plain memory, and all virtual CPUs are one host thread.
            let free = unsafe {
                let at = self.areas.add(order.index() * self.area + self.count);
                engine::touch(at.addr().get(), size_of::<u64>(), Access::Read);
                at.cast::<u64>().read()
            };
            if free > 0 {
                // It has a block of some type: the first two types' lists are looked at.
                let lists = self.areas.addr().get() + order.index() * self.area;
                engine::touch(lists, size_of::<[u64; 4]>(), Access::Read);
                return;
            }
        }
    }
}
