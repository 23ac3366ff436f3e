//! Free blocks taken by address, for work on unused memory, such as giving it back to a host.

use crate::cpu::Cpu;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, Pfn};

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Allocates the free blocks of at least order `least` that begin in the pageblock of `pfn`, each with its own
    /// order, until `out` is full. With maps, the largest come first. Returns the number of blocks. Blocks on CPUs'
    /// lists, in reserves and in isolated pageblocks are not taken; an absent pageblock has none. Each block is freed
    /// like any other.
    ///
    /// No mark is checked: the caller keeps the blocks for a moment only. O(512), under the lock of one zone.
    pub fn take_free(&self, pfn: Pfn, least: Order, out: &mut [(Pfn, Order)]) -> usize {
        let frames = &self.allocator.frames;
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        if !frames.contains(start) || !frames.info(start).is_present() {
            return 0;
        }
        let zone = &self.allocator.zones[frames.info(start).zone().index()];
        let waiter = self.allocator.waiter(Some(self.cpu));
        let take = |buddy: &mut crate::buddy::Buddy<'_, '_, P, M>| {
            let taken = buddy.take_whole(start, least, out);
            for &(pfn, order) in &out[..taken] {
                frames.set_tiles(pfn..pfn.add(order.pages()), Migratetype::Movable);
            }
            taken
        };
        zone.with_section(zone.cut.number_of(start), frames, waiter, take).0
    }
}
