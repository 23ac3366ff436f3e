//! The allocator as something to measure: an arena without memory behind a [`Target`], in any configuration
//! and with either size of frame descriptor.
#![expect(unsafe_code, reason = "raw frees go past the arena's blocks, as a driver's must")]

use core::cell::RefCell;
use core::ops::Deref;

use framewright::reclaim::{Migrate, Migrated};
use framewright::stat::Totals;
use framewright::{CpuId, NodeId};
use framewright_host::{
    Arena, ArenaBuilder, Backing, Cpu, FrameUser, Migratetype, Order, PAGEBLOCK_ORDER, Pfn,
};
use framewright_report::error::{Error, Result};
use framewright_sim::world::StructPage;
use framewright_workload::target::{Compaction, Counter, Mobility, Move, Target, TargetCpu};

use crate::configure::{Descriptor, Setup};

/// An arena of either descriptor size.
#[derive(Debug)]
pub enum Subject {
    /// Descriptors of 8 bytes.
    Compact(Arena),
    /// Descriptors of 64 bytes.
    Struct64(Arena<StructPage>),
}

/// Runs the same expression on either arena.
macro_rules! with {
    ($subject:expr, $arena:ident => $body:expr) => {
        match $subject {
            Subject::Compact($arena) => $body,
            Subject::Struct64($arena) => $body,
        }
    };
}
pub(crate) use with;

impl Subject {
    /// An arena of `frames` described frames for `cpus` threads.
    ///
    /// # Errors
    /// The configuration is refused, or the system has no address space for the descriptors.
    pub fn new(setup: &Setup, frames: u64, cpus: usize) -> Result<Self> {
        let builder: ArenaBuilder =
            Arena::builder().pages(frames).cpus(cpus).backing(Backing::Described).config(setup.config);
        match setup.descriptor {
            Descriptor::Compact => builder.build().map(Self::Compact),
            Descriptor::Struct64 => builder.build_with(|_| StructPage::default()).map(Self::Struct64),
        }
        .map_err(Error::failed)
    }

    /// Counts of the allocator's operations since it was made.
    #[must_use]
    pub fn totals(&self) -> Totals {
        with!(self, arena => arena.allocator().totals())
    }
}

/// An arena as a target, without a choice of descriptor on the timed path.
#[derive(Debug)]
pub struct Bare<A>(pub A);

impl<A: Deref<Target = Arena<M>> + Sync, M: FrameUser> Target for Bare<A> {
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

    fn counters(&self) -> Vec<Counter> {
        counters(&self.0.allocator().totals())
    }
}

/// A target with an arena of its own: what `bench` builds.
pub type ArenaTarget = Bare<Box<Arena>>;

impl ArenaTarget {
    /// An arena of `frames` described frames for `cpus` threads.
    ///
    /// # Errors
    /// As [`Subject::new`].
    pub fn new(setup: &Setup, frames: u64, cpus: usize) -> Result<Self> {
        match Subject::new(&setup.compact(), frames, cpus)? {
            Subject::Compact(arena) => Ok(Self(Box::new(arena))),
            Subject::Struct64(_) => Err(Error::failed("compact descriptors were asked for")),
        }
    }
}

/// The counters of a run, in the order they should be printed.
#[must_use]
pub fn counters(totals: &Totals) -> Vec<Counter> {
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

#[inline(always)]
fn migratetype(mobility: Mobility) -> Migratetype {
    match mobility {
        Mobility::Unmovable => Migratetype::Unmovable,
        Mobility::Movable => Migratetype::Movable,
        Mobility::Reclaimable => Migratetype::Reclaimable,
    }
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
