//! A kernel's looks at a zone without its lock.

use core::ptr::NonNull;

use framewright::Order;
use framewright::config::Engine;
use framewright::frame::FrameUser;
use framewright::units::MAX_ORDER;
use framewright::zone::Zone;

use super::World;
use crate::engine::{self, Access};
use crate::platform::Sim;

impl<M: FrameUser> World<M> {
    /// Words of the first zone that a kernel reads without the lock. `None` where the zone keeps no lists of such
    /// blocks.
    pub fn lockless_reads(&self) -> Option<LocklessReads> {
        if self.allocator().config().engine != Engine::Linux {
            return None;
        }
        let layout = Zone::<Sim>::layout();
        let memory = self.simulator.memory().start();
        Some(LocklessReads {
            total: memory.addr().get() + self.places.totals.offset(),
            // SAFETY: the zones are in the mapping.
            areas: unsafe {
                self.simulator.memory().start().add(self.places.zones.offset() + layout.order0_lists)
            },
            area: (layout.order10_lists - layout.order0_lists) / MAX_ORDER.index(),
            count: layout.order0_count - layout.order0_lists,
            flags: memory.addr().get() + self.places.zones.offset() + layout.isolated_count,
        })
    }
}

/// Reads what a kernel reads of a zone without the zone lock: before an allocation how many pages and blocks are free,
/// and the flags when it has a block or frees one to a list.
#[derive(Clone, Copy, Debug)]
pub struct LocklessReads {
    /// Host address of the sum of free pages.
    pub(super) total: usize,
    pub(super) areas: NonNull<u8>,
    pub(super) area: usize,
    pub(super) count: usize,
    /// Host address of the zone's flags.
    pub(super) flags: usize,
}

impl LocklessReads {
    /// Reads the zone's flags: `rmqueue` of Linux looks whether the marks are raised when it has a block, and
    /// `nr_pcp_high` whether reclaim runs when a block goes to a list (v5.14 on). In Linux they are between the free
    /// areas and the lock, here where the count of isolated pageblocks is: in the line of a lock that is after the free
    /// areas.
    pub fn at_flags(&self) {
        engine::touch(self.flags, size_of::<u64>(), Access::Read);
    }

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

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    use framewright::{NodeId, Pfn, ZoneSpec, ZoneType};

    use crate::bench::linux_6_0;
    use crate::clock::Ps;
    use crate::engine::{now, spend};
    use crate::model::LINE;
    use crate::model::testing::round;
    use crate::world::StructPage;

    #[test]
    fn who_reads_the_flags_takes_the_line_of_the_lock() {
        let layout = Zone::<Sim>::layout();
        let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 4096 };
        let mut world = World::<StructPage>::new(&round(2), &[zone], linux_6_0(), None, 1).expect("a world");
        let reads = world.lockless_reads().expect("lists");
        let [_, behind, apart] = layout.locks.map(|lock| reads.flags - layout.isolated_count + lock);
        let took = Cell::new([0.0; 2]);
        world.run(2, Ps(0), |n, _| {
            // The other CPU stores to a lock; then this one reads the flags.
            for (round, lock) in [apart, behind].into_iter().enumerate() {
                reads.at_flags();
                spend(Ps::from_ns(1000.0));
                if n == 0 {
                    engine::touch(lock, size_of::<u64>(), Access::Write);
                }
                spend(Ps::from_ns(1000.0));
                let before = now();
                reads.at_flags();
                if n == 1 {
                    let mut times = took.get();
                    times[round] = now().since(before).as_ns();
                    took.set(times);
                }
                spend(Ps::from_ns(1000.0));
            }
        });
        let [apart, together] = took.get();
        assert!(apart < 5.0 && together > 20.0, "{apart} {together}");
        assert_eq!(reads.flags / LINE, behind / LINE);
    }
}
