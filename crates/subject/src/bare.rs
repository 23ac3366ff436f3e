//! An arena without memory behind [`Target`].
#![expect(unsafe_code, reason = "raw frees go past the arena's blocks, as a driver's must")]

use core::cell::RefCell;
use core::ops::Deref;

use framewright::reclaim::{Migrate, Migrated};
use framewright::stat::Totals;
use framewright::{CpuId, NodeId};
use framewright_host::{Arena, Cpu, FrameUser, Migratetype, Order, PAGEBLOCK_ORDER, Pfn};
use framewright_sim::stage::migratetype;
use framewright_workload::target::{Compaction, Counter, Mobility, Move, Target, TargetCpu};

/// An arena as a target, without a choice of descriptor on the timed path.
#[derive(Debug)]
pub struct Bare<M: FrameUser = ()>(pub(crate) Box<Arena<M>>);

impl<M: FrameUser> Bare<M> {
    /// A target that has this arena to itself.
    pub fn new(arena: Arena<M>) -> Self {
        Self(Box::new(arena))
    }
}

impl<M: FrameUser> Deref for Bare<M> {
    type Target = Arena<M>;

    fn deref(&self) -> &Arena<M> {
        &self.0
    }
}

impl<M: FrameUser> Target for Bare<M> {
    type Cpu<'a>
        = Slot<'a, M>
    where
        Self: 'a;

    fn attach(&self, cpu: usize) -> Slot<'_, M> {
        Slot(self.0.attach_to(cpu).expect("a driver attaches each CPU once"))
    }

    fn frames(&self) -> Option<u64> {
        Some(self.0.frames().end.0 - self.0.frames().start.0)
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        let (allocator, order) = (self.0.allocator(), Order::new(order)?);
        let pcps = allocator
            .zones()
            .iter()
            .flat_map(|zone| (0..allocator.cpus()).map(|cpu| allocator.pcp(zone.id(), CpuId(cpu as u16))));
        // A huge page on a CPU's list can be had as one: by that CPU immediately, by others when it is drained.
        let listed = match order <= PAGEBLOCK_ORDER {
            true => pcps.map(|pcp| u64::from(pcp.huge_pages()) >> order.get()).sum(),
            false => 0,
        };
        Some(allocator.free_blocks(order) + listed)
    }

    fn metadata_bytes_per_frame(&self) -> Option<f64> {
        Some(self.0.metadata_bytes() as f64 / self.frames()? as f64)
    }

    fn compaction_round_ms(&self) -> Option<u32> {
        Some(self.0.allocator().config().compaction_round_ms())
    }

    fn counters(&self) -> Vec<Counter> {
        counters(&self.0.allocator().totals())
    }
}

/// The counters of a run, in the order they should be printed.
fn counters(totals: &Totals) -> Vec<Counter> {
    let Totals { pcp, fallbacks, steals, retyped } = totals;
    [
        ("zone_lock_acquisitions", pcp.lock_acquisitions),
        ("zone_lock_waits", pcp.lock_waits),
        ("refills", pcp.refills),
        ("refilled_pages", pcp.refilled_pages),
        ("drains", pcp.drains),
        ("drained_pages", pcp.drained_pages),
        ("direct_alloc_pages", pcp.direct_alloc_pages),
        ("direct_free_pages", pcp.direct_free_pages),
        ("fallbacks", *fallbacks),
        ("steals", *steals),
        ("retyped_pageblocks", *retyped),
    ]
    .map(|(name, value)| Counter { name, value })
    .to_vec()
}

/// A thread that is attached to an arena.
#[derive(Debug)]
pub struct Slot<'a, M: FrameUser>(Cpu<'a, M>);

/// A driver as the owner of all blocks.
struct Mover<'a>(RefCell<&'a mut dyn Move>);

// SAFETY: the arena has no memory. The driver has all blocks, and does nothing else during the call.
unsafe impl Migrate for Mover<'_> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        if self.0.borrow_mut().move_block(from.0, to.0, order.get()) {
            Migrated::Moved
        } else {
            Migrated::Stays
        }
    }

    fn can_move(&self, from: Pfn, order: Order, _: Migratetype) -> bool {
        self.0.borrow_mut().can_move(from.0, order.get())
    }
}

impl<M: FrameUser> TargetCpu for Slot<'_, M> {
    #[inline(always)]
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        // Callers know the order when they write the call, and the compiler then drops what other orders need.
        // A driver does not; the order of nearly every call is a constant here.
        let pfn = match order {
            0 => self.0.alloc(Order::ZERO, migratetype(mobility)),
            _ => self.0.alloc(Order::new(order)?, migratetype(mobility)),
        };
        pfn.ok().map(|pfn| pfn.0)
    }

    #[inline(always)]
    fn free(&mut self, frame: u64, order: u8) {
        let wrong = "a block's order is one";
        // SAFETY: the arena has no memory, so no `Block` owns memory behind the frame; user slots are only
        // touched by the test that plants a bad page, outside runs.
        let freed = unsafe {
            match order {
                0 => self.0.free(Pfn(frame), Order::ZERO),
                _ => self.0.free(Pfn(frame), Order::new(order).expect(wrong)),
            }
        };
        if let Err(error) = freed {
            panic!("the driver freed wrongly: {error}");
        }
    }

    fn tick(&mut self) {
        self.0.tick();
    }

    fn compact(&mut self, by: &mut dyn Move) -> Option<Compaction> {
        let done = self.0.compact_proactively_with(NodeId(0), &Mover(RefCell::new(by)));
        Some(Compaction { moved: done.moved, stayed: done.stayed })
    }

    fn free_part(&mut self, frame: u64, part: u8, whole: u8) -> bool {
        let (Some(part), Some(whole)) = (Order::new(part), Order::new(whole)) else { return false };
        // The first part to come finds the block whole. All parts are split to single frames then, because
        // the next may be of another order.
        // Later parts find it split, which `split` refuses; nothing else can be wrong with it.
        // SAFETY: the arena has no memory, and a driver frees the parts of a block from one thread.
        let _ = unsafe { self.0.split(Pfn(frame).block_start(whole), whole, Order::ZERO) };
        for n in 0..part.pages() {
            self.free(frame + n, 0);
        }
        true
    }
}
