//! Zeroes in memory that is handed out, or that is free.

use super::Cpu;
use crate::error::{AllocError, AllocFailure};
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::request::{Flags, Request};
use crate::units::{Migratetype, Order, Pfn};

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Refuses a request before any zone is tried, if fault injection lets it fail, or if it needs zeroes from an
    /// allocator that cannot reach its memory.
    pub(super) fn refuse_early(&self, request: &Request<'_>) -> Result<(), AllocError> {
        let why = if request.flags.has(Flags::ZERO) && self.allocator.direct_map.is_none() {
            AllocFailure::NoDirectMap
        } else if !request.flags.has(Flags::NO_FAIL) && self.allocator.strikes(request.order) {
            AllocFailure::Injected
        } else {
            return Ok(());
        };
        Err(AllocError::new(why, request.order, request.migratetype))
    }

    /// Allocates a block that holds zeroes, if this CPU's list has one: like [`alloc_hit`](Self::alloc_hit), then a
    /// fill. `None` also without a direct map; [`alloc_with`](Self::alloc_with) with [`Flags::ZERO`] has more to do
    /// then. O(bytes).
    #[inline]
    pub fn alloc_hit_zeroed(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        let map = self.allocator.direct_map?;
        let pfn = self.alloc_hit(order, migratetype)?;
        map.zero::<P>(pfn, order);
        Some(pfn)
    }

    /// Fills a freed block as configured. The block is this CPU's to free, and no other code can get it yet.
    pub(super) fn fill_freed(&self, pfn: Pfn, order: Order) {
        let config = &self.allocator.config;
        match self.allocator.direct_map {
            Some(map) if config.poison => map.poison(pfn, order),
            Some(map) if config.init_on_free => map.zero::<P>(pfn, order),
            _ => {}
        }
    }
}
