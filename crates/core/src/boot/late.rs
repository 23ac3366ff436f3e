//! The order of boot, as types: first the early part, then workers and allocations at the same time, then the end, at
//! which the per-CPU lists are sized for the whole memory.
//!
//! ```text
//! Allocator::new → defer → begin ─→ Booting ── worker, worker, … ─→ finish ─→ add_memory
//!                                      └──────── stay_lazy ────────────────────┘
//! ```
//!
//! As in Linux (v5.4 with *pcp-reset*): wait for all nodes, size the lists of populated zones again, end
//! on-demand growth, discard the memory that only boot needed. Watermarks are 0 until the end.

use core::fmt;
use core::ops::Range;

use crate::alloc::Allocator;
use crate::boot::deferred::Worker;
use crate::boot::zones::Division;
use crate::buddy::Buddy;
use crate::defer::{Deferred, DeferredMemory, DeferredZone, Growth, How, Stage};
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::init::Split;
use crate::units::{NodeId, Pfn};

/// The memory that `division` leaves for later, of the ranges that early allocation has left ([`Division::free`]),
/// divided between the CPUs of each node by `split`.
///
/// # Panics
/// If `memory` has no room for all zones.
pub fn deferred<'m, P: Platform>(
    division: &Division<'_>,
    free: &'m [Range<Pfn>],
    cpu_nodes: &[NodeId],
    split: Split,
    memory: DeferredMemory<'m, P>,
) -> Deferred<'m, P> {
    assert!(memory.zones.len() == division.specs.len(), "room for one per zone");
    Deferred::new(How { split, section: division.rules.section }, memory, |zone| {
        let (spec, part) = (division.specs[zone.index()], division.parts[zone.index()]);
        DeferredZone {
            spec,
            present: part.present,
            free,
            deferred_from: part.deferred_from,
            cpus: cpu_nodes.iter().filter(|&&node| node == spec.node).count() as u64,
        }
    })
}

/// Boot has initialised the early part; workers initialise the rest.
///
/// Shared by all workers. CPUs may allocate and free during this stage.
pub struct Booting<'a, 'm, P: Platform, M = ()> {
    allocator: &'a Allocator<'m, P, M>,
    deferred: &'m Deferred<'m, P>,
}

impl<P: Platform, M> fmt::Debug for Booting<'_, '_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Booting").field("left", &self.deferred.left()).finish()
    }
}

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Begins boot: the caller initialises the early part of every zone, from its first frame on, and sizes the per-CPU
    /// lists for it. `None` if nothing was [deferred](Self::defer), or boot has begun before.
    pub fn begin(&self) -> Option<Booting<'_, 'm, P, M>> {
        let later = self.later().filter(|later| later.deferred.advance(Stage::New, Stage::Begun))?;
        for (zone, rest) in self.zones.iter().zip(later.deferred.zones()) {
            let rest = rest.rest();
            let count = |buddy: &mut Buddy<'_, 'm, P, M>| buddy.count_present(rest.present as i64);
            self.in_section_of(zone, rest.spec.start, None, count);
            self.initialise(later, zone.id(), rest.spec.start..rest.deferred_from, None);
        }
        self.size_pcps_at_boot();
        Some(Booting { allocator: self, deferred: later.deferred })
    }
}

impl<'a, 'm, P: Platform, M: FrameUser> Booting<'a, 'm, P, M> {
    /// A worker for the memory of `node`; `None` if all slots are taken.
    #[must_use]
    pub fn worker(&self, node: NodeId) -> Option<Worker<'a, 'm, P, M>> {
        Worker::new(self.allocator, node)
    }

    /// Free base pages that are not initialised yet. A racy sum.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.deferred.left()
    }

    /// Initialises on the calling thread, zone after zone, all units that no worker has claimed. Returns their free
    /// base pages.
    pub fn run(&self) -> u64 {
        let mut pages = 0;
        for rest in self.deferred.zones() {
            if let Some(mut worker) = self.worker(rest.rest().spec.node) {
                pages += worker.run();
            }
        }
        pages
    }

    /// Ends boot: sizes the per-CPU lists again if [`Experiment::pcp_reset`](crate::config::Experiment::pcp_reset) is
    /// on, and ends on-demand growth. Returns the count of it.
    ///
    /// # Errors
    /// Memory is left, or a worker still works. The state is unchanged, and workers may continue.
    pub fn finish(self) -> Result<Growth, Self> {
        if self.deferred.left() != 0 || !self.deferred.advance(Stage::Begun, Stage::Finished) {
            return Err(self);
        }
        Ok(self.end())
    }

    /// Ends boot without initialising the rest: also later, each allocation that finds too little initialises another
    /// section. Per-CPU lists and watermarks are sized for the memory after that. Returns the count of such growth
    /// until now.
    ///
    /// If descriptors need no writing, any amount of memory is ready immediately.
    pub fn stay_lazy(self) -> Growth {
        self.deferred.advance(Stage::Begun, Stage::Lazy);
        self.end()
    }

    fn end(self) -> Growth {
        if self.allocator.config().experiment.pcp_reset {
            self.allocator.resize_pcps();
        }
        self.deferred.growth()
    }
}
