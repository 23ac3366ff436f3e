//! Initialisation of memory, unit by unit: by boot, by workers, and by an allocation that cannot wait.
//!
//! A unit is initialised in two passes. First the CPU that has claimed the unit (see [`defer`](crate::defer)) makes its
//! descriptors, in whole pageblocks and without a lock: no other CPU reads the descriptors of a pageblock that is not
//! present. Then, under the zone lock, the pageblocks become present and the free ranges go to the buddy lists. So no
//! frame is handed out before its descriptor is ready, and none is initialised twice. A merge reads the buddy's
//! descriptor, which may be further up but is never outside the unit.

use core::fmt;
use core::ops::Range;

use crate::alloc::{Allocator, Later};
use crate::boot::spans::joined;
use crate::buddy::Placement;
use crate::config::Engine;
use crate::defer::{Deferred, Turn};
#[cfg(feature = "boot")]
use crate::frame::Zeroable;
use crate::frame::{BlockInfo, FrameUser, State};
use crate::platform::Platform;
use crate::policy::init;
use crate::units::{CpuId, MAX_ORDER, Migratetype, NodeId, Order, PAGEBLOCK_PAGES, Pfn, ZoneId};

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// Attaches memory that will be initialised unit by unit. The allocator has no memory yet. The frame descriptors
    /// are as their `new` makes them, or zeroes where that is equal: only descriptors that must differ are written.
    ///
    /// # Panics
    /// If `deferred` has other zones.
    #[cfg(feature = "boot")]
    pub fn defer(&mut self, deferred: &'m Deferred<'m, P>) {
        self.set_later(Later { deferred, clear: None });
    }

    /// Like [`defer`](Self::defer), but for descriptors in memory with any content: each is cleared before it is used.
    ///
    /// # Panics
    /// If `deferred` has other zones.
    #[cfg(feature = "boot")]
    pub fn defer_and_clear(&mut self, deferred: &'m Deferred<'m, P>)
    where
        M: Zeroable,
    {
        self.set_later(Later { deferred, clear: Some(|frames, start, end| frames.clear(start, end)) });
    }

    #[cfg(feature = "boot")]
    fn set_later(&mut self, later: Later<'m, P, M>) {
        let zones = later.deferred.zones();
        let same = zones.len() == self.zones.len()
            && zones.iter().zip(self.zones).all(|(rest, zone)| rest.rest().spec == *zone.spec());
        assert!(same, "what is deferred describes other zones than the allocator has");
        self.later = Some(later);
    }

    /// The memory that is left for later, if there is any.
    #[must_use]
    pub fn deferred(&self) -> Option<&'m Deferred<'m, P>> {
        self.later().map(|later| later.deferred)
    }

    /// Makes memory of a zone usable after a request for `wanted` contiguous pages found none: whole sections, at least
    /// as many pages, if the zone has them. Returns whether to look again. Any CPU may call this at any time, with or
    /// without workers.
    ///
    /// O(pages / 1024), and O(pages) where descriptors must be cleared.
    pub fn grow(&self, zone: ZoneId, wanted: u64, cpu: Option<CpuId>) -> bool {
        let Some(later) = self.later().filter(|later| later.deferred.may_grow()) else { return false };
        let target = wanted.next_multiple_of(later.deferred.how().section);
        let mut pages = 0;
        while pages < target
            && let Some(taken) = later.deferred.take(zone)
        {
            pages += self.initialise(later, zone, taken, cpu);
        }
        if pages != 0 {
            later.deferred.count_growth(pages);
        }
        pages != 0
    }

    /// Initialises the free memory of a zone in a range of units that the caller has claimed. Returns its free pages.
    pub(crate) fn initialise(
        &self,
        later: &Later<'m, P, M>,
        zone: ZoneId,
        range: Range<Pfn>,
        cpu: Option<CpuId>,
    ) -> u64 {
        let free = later.deferred.zones()[zone.index()].rest().free;
        let mut pages = 0;
        let mut at = range.start;
        while let Some(part) = init::clipped(free, at..range.end).next() {
            let start = part.start.block_start(MAX_ORDER).max(at);
            let batch = start..start.add(BATCH_UNITS * MAX_ORDER.pages()).min(range.end);
            self.make_descriptors(later, zone, batch.clone());
            pages += self.publish(later, zone, batch.clone(), cpu, |_| ());
            at = batch.end;
        }
        pages
    }

    /// The first pass over some units: makes the descriptors of whole pageblocks, and marks the frames that are not
    /// free as reserved.
    fn make_descriptors(&self, later: &Later<'m, P, M>, zone: ZoneId, range: Range<Pfn>) {
        let free = later.deferred.zones()[zone.index()].rest().free;
        if let Some(clear) = later.clear {
            joined(with_free(free, range.clone())).for_each(|run| clear(&self.frames, run.start, run.end));
        }
        for block in with_free(free, range.clone()) {
            let mut at = block.start;
            for part in init::clipped(free, block.clone()).chain([block.end..block.end]) {
                for pfn in at.0..part.start.0 {
                    self.frames.set_state(Pfn(pfn), Order::ZERO, State::Reserved);
                }
                at = at.max(part.end);
            }
        }
        if let (true, Some(map)) = (self.config.poison, self.direct_map) {
            for pfn in init::clipped(free, range).flat_map(|part| part.start.0..part.end.0) {
                map.poison(Pfn(pfn), Order::ZERO);
            }
        }
    }

    /// The second pass over the same units, some in each hold of the zone lock. After each hold `done` gets the number
    /// of units. Returns the free pages.
    fn publish(
        &self,
        later: &Later<'m, P, M>,
        zone: ZoneId,
        range: Range<Pfn>,
        cpu: Option<CpuId>,
        mut done: impl FnMut(u64),
    ) -> u64 {
        let rest = &later.deferred.zones()[zone.index()];
        let free = rest.rest().free;
        let zone = &self.zones[zone.index()];
        let one_by_one = self.config.engine == Engine::Linux;
        let (mut all, mut start) = (0, range.start);
        while start < range.end {
            // A hold stays within one section.
            let end = zone.cut.range(zone.cut.number_of(start)).end.min(range.end);
            let units = start..end_of_hold(free, start..end);
            let pages = self.in_section_of(zone, start, cpu, |buddy| {
                for block in with_free(free, units.clone()) {
                    let info = BlockInfo::new(zone.id(), Migratetype::Movable);
                    let there = || init::clipped(free, block.clone()).map(|part| part.end.0 - part.start.0);
                    let absent =
                        if self.frames.is_compact() { PAGEBLOCK_PAGES - there().sum::<u64>() } else { 0 };
                    self.frames.set_info(block.start, info.with_absent(absent));
                }
                let mut pages = 0;
                for part in init::clipped(free, units.clone()) {
                    let mut at = part.start;
                    while at < part.end {
                        let order = match one_by_one {
                            true => init::release_order(at, part.end),
                            false => Order::largest_at(at, part.end.0 - at.0),
                        };
                        buddy.free(at, order, Placement::Tail);
                        at = at.add(order.pages());
                    }
                    pages += part.end.0 - part.start.0;
                }
                buddy.count_managed(pages as i64);
                rest.done(if units.start < rest.rest().deferred_from { 0 } else { pages });
                pages
            });
            done((units.end.0 - units.start.0).div_ceil(MAX_ORDER.pages()));
            all += pages;
            start = units.end;
        }
        all
    }
}

/// Units that a worker claims, clears and publishes together. 16 units are 1 MiB of 64-byte descriptors, cleared
/// together and waited for once.
const BATCH_UNITS: u64 = 16;

/// Most free ranges that go to the buddy lists in one hold of the zone lock, unless one unit has more. It bounds the
/// wait of other CPUs.
const RANGES_PER_HOLD: usize = 64;

/// End of a hold of the zone lock that publishes units from the start of `range` on.
fn end_of_hold(free: &[Range<Pfn>], range: Range<Pfn>) -> Pfn {
    let next = init::clipped(free, range.clone()).nth(RANGES_PER_HOLD);
    let end = next.map_or(range.end, |part| part.start.block_start(MAX_ORDER));
    end.max(range.start.block_start(MAX_ORDER).add(MAX_ORDER.pages())).min(range.end)
}

/// The pageblocks that `range` touches and in which memory is free.
fn with_free(free: &[Range<Pfn>], range: Range<Pfn>) -> impl Iterator<Item = Range<Pfn>> {
    let blocks = Pfn::pageblocks(range).map(|start| start..start.add(PAGEBLOCK_PAGES));
    blocks.filter(|block| init::clipped(free, block.clone()).next().is_some())
}

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnitStep {
    /// Initialised a unit with this number of free base pages of this zone.
    Unit(ZoneId, u64),
    /// Found nothing left to claim on its node. Other workers may still be at work.
    Idle,
}

/// Initialises deferred memory. A thread of a host, a CPU of a kernel, or a task of a simulation has one. It works only
/// in its steps. It may be dropped at any time; other workers then do the rest.
pub struct Worker<'a, 'm, P: Platform, M = ()> {
    allocator: &'a Allocator<'m, P, M>,
    later: &'a Later<'m, P, M>,
    turn: Turn<'m, P>,
    node: NodeId,
}

impl<P: Platform, M> fmt::Debug for Worker<'_, '_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("node", &self.node).finish_non_exhaustive()
    }
}

impl<'a, 'm, P: Platform, M: FrameUser> Worker<'a, 'm, P, M> {
    /// A worker on `node`; `None` if nothing is deferred, or all slots are taken.
    #[must_use]
    pub fn new(allocator: &'a Allocator<'m, P, M>, node: NodeId) -> Option<Self> {
        let later = allocator.later()?;
        Some(Self { allocator, later, turn: later.deferred.hold(node)?, node })
    }

    /// Initialises at most one unit. O(1024) where descriptors are cleared, else O(1). Claims follow the deferral's
    /// [`Split`](crate::policy::init::Split).
    pub fn step(&mut self) -> UnitStep {
        self.steps(1)
    }

    /// Initialises up to `most` contiguous units, 1 to 1024, and returns their free pages together. This is faster than
    /// single steps. But no unit can be used before the descriptors of all are ready, and no allocation can take one of
    /// them in between. O(1024 × `most`).
    ///
    /// # Panics
    /// If `most` is out of range.
    pub fn steps(&mut self, most: u64) -> UnitStep {
        assert!((1..=1024).contains(&most), "{most} units at a time");
        let Some((zone, units)) = self.turn.next(self.node, most) else { return UnitStep::Idle };
        self.allocator.make_descriptors(self.later, zone, units.clone());
        let done = |units| self.turn.done(units);
        UnitStep::Unit(zone, self.allocator.publish(self.later, zone, units, None, done))
    }

    /// Initialises until nothing is left to claim on the node, several units at a time. Returns the free base pages.
    pub fn run(&mut self) -> u64 {
        let mut pages = 0;
        while let UnitStep::Unit(_, done) = self.steps(BATCH_UNITS) {
            pages += done;
        }
        pages
    }

    /// Continues on another node after this one's memory is claimed. Finishes its present claim first.
    pub fn move_to(&mut self, node: NodeId) {
        self.node = node;
    }
}
