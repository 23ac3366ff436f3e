//! The passes of one allocation, from the fast path to the explained failure; and of one free.

mod alloc_runs;
mod any_context;
mod background;
mod bulk;
mod claim;
mod compact;
mod free;
mod hit_words;
mod named;
mod passes;
mod range;
mod reclaiming;
mod split;
mod walk;
mod zero;

use core::fmt;
use core::marker::PhantomData;

use crate::alloc::Allocator;
use crate::error::{AllocError, AllocFailure, FreeError};
use crate::frame::{BlockInfo, FrameMap, FrameUser, ZoneFrames};
use crate::pcp::{Local, Missed, Pcp};
use crate::platform::{PinnedCpu, Platform};
use crate::reclaim::Helpers;
use crate::request::Request;
use crate::units::{CpuId, Migratetype, Order, Pfn, ZoneId, ZoneType};
use crate::zone::Zone;
pub use any_context::TryFreeError;
pub use background::BackgroundOutcome;
pub use bulk::BulkFreeError;
pub use compact::Compacted;
pub use hit_words::HitWords;
pub use named::{
    ContigError, HwpoisonError, Hwpoisoned, PlaceError, PlaceFailure, REPORTED_AT_ONCE, Reported,
};

impl<'m, P: Platform, M: FrameUser> Allocator<'m, P, M> {
    /// The allocator as the pinned CPU sees it.
    ///
    /// # Panics
    /// If the allocator has no such CPU.
    pub fn cpu<'a>(&'a self, pin: &'a P::Pin) -> Cpu<'a, 'm, P, M> {
        let cpu = pin.cpu();
        assert!(cpu.index() < self.cpus(), "{cpu:?} does not exist: the allocator has {} CPUs", self.cpus());
        Cpu::new(self, cpu)
    }
}

/// Result of a free that was refused. Out of line, so that the path of success does not carry the error.
#[cold]
#[inline(never)]
const fn refused(error: FreeError) -> Result<(), FreeError> {
    Err(error)
}

/// The allocator as one CPU sees it. Holding it proves that the CPU is pinned.
pub struct Cpu<'a, 'm, P: Platform, M: 'static = ()> {
    allocator: &'a Allocator<'m, P, M>,
    cpu: CpuId,
    /// The frame descriptors, also here, so that a free reaches them with one load.
    frames: FrameMap<'m, P, M>,
    /// The zone that this CPU tries first, whose lists serve its hits.
    zone: ZoneId,
    /// This CPU's lists of that zone.
    pcp: &'a Pcp<'m, P>,
    /// That zone's frames; empty if a head word alone cannot prove a free correct.
    near: ZoneFrames<'m, P, M>,
    /// Unmovable pageblocks of that zone; of no zone if no free may take the short path.
    home: BlockInfo,
    /// Borrowed so that the pin lives longer than this value, and neither `Send` nor `Sync`.
    _pin: PhantomData<(&'a P::Pin, *const ())>,
}

impl<P: Platform, M: 'static> fmt::Debug for Cpu<'_, '_, P, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cpu").field(&self.cpu).finish()
    }
}

impl<'a, 'm, P: Platform, M: FrameUser> Cpu<'a, 'm, P, M> {
    /// The caller has checked that the allocator has the CPU, and holds its pin for `'a`.
    pub(crate) fn new(allocator: &'a Allocator<'m, P, M>, cpu: CpuId) -> Self {
        let zone = allocator.zonelist_of(cpu)[0];
        let (config, frames) = (&allocator.config, allocator.frames);
        let short = !config.poison && !config.init_on_free && !frames.is_compact();
        let spec = allocator.zones[zone.index()].spec();
        // If boot clears descriptors, those of absent memory may hold anything, also later.
        let valid = allocator.later().is_none_or(|later| later.clear.is_none());
        let near = cfg!(feature = "lists")
            && short
            && (valid || P::CLEARS_DESCRIPTORS)
            && !config.counts_each_call();
        let home = if short { BlockInfo::new(zone, Migratetype::Unmovable) } else { BlockInfo::NOWHERE };
        let near = frames.of_zone(spec.start, spec.pages, near);
        Self { allocator, cpu, frames, zone, pcp: allocator.pcp(zone, cpu), near, home, _pin: PhantomData }
    }

    /// The CPU.
    #[must_use]
    pub const fn id(&self) -> CpuId {
        self.cpu
    }

    /// The allocator.
    #[must_use]
    pub const fn allocator(&self) -> &'a Allocator<'m, P, M> {
        self.allocator
    }

    /// Allocates a block of `order` from any zone. `migratetype` is one of the ordinary three.
    ///
    /// O(1) if this CPU's list has a block. Otherwise a refill: O(batch); it may steal from another type, which walks a
    /// pageblock. If all zones fail, this CPU's lists are drained, those of other CPUs are drained or requested, and
    /// every zone is tried once more. [`alloc_with`](Self::alloc_with) also calls helpers.
    ///
    /// # Errors
    /// The reason, and the lack of the zones. No block is held then.
    #[inline]
    pub fn alloc(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, AllocError> {
        match self.take_hit(order, migratetype) {
            Ok(pfn) => Ok(pfn),
            Err(missed) => self.alloc_missed(order, migratetype, missed),
        }
    }

    /// A hit that does not count.
    #[inline(always)]
    fn take_hit(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, Option<Missed>> {
        if migratetype.is_ordinary() { self.pcp.take(order, migratetype) } else { Err(None) }
    }

    // One call, so that a hit needs no stack frame.
    #[inline(never)]
    fn alloc_missed(
        &self,
        order: Order,
        migratetype: Migratetype,
        missed: Option<Missed>,
    ) -> Result<Pfn, AllocError> {
        match self.take_missed(order, migratetype, missed) {
            Some(pfn) => Ok(pfn),
            None => self.alloc_in(order, migratetype, ZoneType::Movable),
        }
    }

    /// Allocates a block from this CPU's lists, also if hits count, or from the first zone that has one, if zones keep
    /// no marks; for callers with a slow path of their own. Drains no other CPU's lists and calls no helper. `None`
    /// means only that [`alloc`](Self::alloc) or [`alloc_with`](Self::alloc_with) has more to do.
    #[inline(never)]
    pub fn alloc_unhelped(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        match self.take_hit(order, migratetype) {
            Ok(pfn) => Some(pfn),
            Err(missed) => self.take_missed(order, migratetype, missed),
        }
    }

    #[inline(always)]
    fn take_missed(&self, order: Order, migratetype: Migratetype, missed: Option<Missed>) -> Option<Pfn> {
        if let Some(missed) = missed
            && let Some(pfn) = self.take_counted(order, migratetype, missed)
        {
            return Some(pfn);
        }
        self.take_at_once(&Request::new(order, migratetype))
    }

    /// A hit that counts, or that sets the bits which record that a caller has the block.
    #[inline(always)]
    fn take_counted(&self, order: Order, migratetype: Migratetype, missed: Missed) -> Option<Pfn> {
        let pfn = self.pcp.take_counted(order, migratetype, missed)?;
        self.frames.leave_list(pfn, order);
        Some(pfn)
    }

    /// What an allocation that missed does without passes: a hit in another zone; and where zones keep no marks, what
    /// the first zone in this CPU's zonelist gives that has a block. Everything else is
    /// [`alloc_with`](Self::alloc_with)'s. The request is [plain](Request::is_plain).
    #[inline(always)]
    fn take_at_once(&self, request: &Request<'_>) -> Option<Pfn> {
        let config = &self.allocator.config;
        // While boot has left memory for later, a zone may grow before the next one is tried. The presets' loads stay
        // as when their figures were taken.
        let may_grow = || {
            let later = self.allocator.later();
            later.is_some_and(|later| !self.frames.has_maps() || later.deferred.may_grow())
        };
        if !config.tries_zones_plainly() || !request.migratetype.is_ordinary() || may_grow() {
            return None;
        }
        if self.allocator.zones.len() > 1
            && let Some(pfn) = self.take_elsewhere(request)
        {
            return Some(pfn);
        }
        if config.keep_marks { None } else { self.take_plainly(request) }
    }

    /// A hit in a zone that is not this CPU's first, if the zones before it have nothing to give: the CPU has used them
    /// up, or they are for other types. O(zones).
    // Out of line: where there is one zone, no register is saved for it.
    #[inline(never)]
    fn take_elsewhere(&self, request: &Request<'_>) -> Option<Pfn> {
        let allocator = self.allocator;
        // Zone reclaim comes before another node's memory.
        if self.pcp.counts() || allocator.config.zone_reclaim.is_on() {
            return None;
        }
        let Request { order, migratetype, .. } = *request;
        for &id in allocator.zonelist_of(self.cpu) {
            let zone = &allocator.zones[id.index()];
            if !request.may_use(zone.spec().kind) {
                continue;
            }
            let pcp = allocator.pcp(id, self.cpu);
            if id != self.zone
                && let Ok(pfn) = pcp.take(order, migratetype)
            {
                return Some(pfn);
            }
            let kept = match allocator.config.keep_marks {
                true => zone.marks().low + zone.reserve(request.highest_usable()),
                false => 0,
            };
            if zone.free_pages() >= kept + order.pages() || pcp.is_asked() || pcp.has_aside() {
                return None;
            }
        }
        None
    }

    /// A block of the first zone that has one: at first without mixing types within pageblocks, where that is to be
    /// avoided.
    fn take_plainly(&self, request: &Request<'_>) -> Option<Pfn> {
        if self.allocator.config.experiment.avoid_fragmentation {
            let mut zones =
                self.allocator.zonelist_of(self.cpu).iter().map(|id| &self.allocator.zones[id.index()]);
            let first = zones.find(|zone| request.may_use(zone.spec().kind));
            if first.is_some_and(|first| self.avoids_fragmentation(first))
                && let Some(pfn) = self.take_first(request, true)
            {
                return Some(pfn);
            }
        }
        self.take_first(request, false)
    }

    /// A block of the first zone that has one, from this CPU's list or through a refill.
    fn take_first(&self, request: &Request<'_>, avoid_fragmentation: bool) -> Option<Pfn> {
        let Request { order, migratetype, .. } = *request;
        let mut node = None;
        for &id in self.allocator.zonelist_of(self.cpu) {
            let zone = &self.allocator.zones[id.index()];
            let spec = zone.spec();
            if !request.may_use(spec.kind) {
                continue;
            }
            if avoid_fragmentation && *node.get_or_insert(spec.node) != spec.node {
                return None;
            }
            let mut local = self.allocator.local(id, self.cpu, Some(self.cpu));
            let pcp = local.pcp;
            // A zone that this CPU has used up costs no more than this.
            if !pcp.counts() && zone.free_pages() < order.pages() && pcp.count() == 0 && !pcp.is_asked() {
                continue;
            }
            local.turn = pcp.take_turn();
            local.avoid_fragmentation = avoid_fragmentation;
            if let Some(pfn) = local.take_listed(order, migratetype) {
                return Some(pfn);
            }
            let before = pcp.pages_taken();
            if let Some(pfn) = local.take_new(order, migratetype) {
                self.count_numa(self.zone, &local, (pcp.pages_taken() - before) >> order.get());
                return Some(pfn);
            }
        }
        None
    }

    /// Whether a request whose first zone is this one avoids mixing types within pageblocks, as long as another zone of
    /// the node may have what it needs (Linux `alloc_flags_nofragment`): from a Normal zone with a DMA32 zone below it.
    /// On a machine of one node Linux does not check for that zone.
    fn avoids_fragmentation(&self, first: &Zone<P>) -> bool {
        let spec = first.spec();
        let below = |zone: &Zone<P>| {
            let lower = zone.spec();
            lower.node == spec.node && lower.kind == ZoneType::Dma32 && zone.managed_pages() > 0
        };
        spec.kind == ZoneType::Normal
            && (self.allocator.nodes().len() == 1 || self.allocator.zones.iter().any(below))
    }

    /// Allocates a block if this CPU's list has one and hits do not count
    /// ([`Engine::Linux`](crate::config::Engine::Linux) counts). `None` means only that [`alloc`](Self::alloc) has more
    /// to do. O(1).
    #[inline]
    pub fn alloc_hit(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        self.take_hit(order, migratetype).ok()
    }

    /// Allocates a block if this CPU's list has one, also if hits count; for callers with a slow path of their own.
    /// `None` means only that [`alloc`](Self::alloc) has more to do. O(1).
    #[inline(never)]
    pub fn alloc_listed(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        match self.take_hit(order, migratetype) {
            Ok(pfn) => Some(pfn),
            Err(missed) => self.take_counted(order, migratetype, missed?),
        }
    }

    /// Allocates a block of `order` from zones up to type `highest`: `Dma32` for a device that reaches 4 GiB.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    #[cold]
    pub fn alloc_in(
        &self,
        order: Order,
        migratetype: Migratetype,
        highest: ZoneType,
    ) -> Result<Pfn, AllocError> {
        let request = Request::new(order, migratetype).up_to(highest);
        if !cfg!(feature = "passes") {
            return self.alloc_without_passes(&request);
        }
        self.alloc_with(&request, &Helpers::NONE)
    }

    /// This CPU's lists of a zone, for a slow call. Holds the lists' `turn` until the result is dropped.
    fn local(&self, zone: ZoneId) -> Local<'a, 'm, P, M> {
        let mut local = self.allocator.local(zone, self.cpu, Some(self.cpu));
        local.turn = local.pcp.take_turn();
        local
    }

    /// The zones in turn; then, once more, after lists are drained, this CPU's and others'.
    fn alloc_without_passes(&self, request: &Request<'_>) -> Result<Pfn, AllocError> {
        let Request { order, migratetype, .. } = *request;
        let mut found = None;
        if migratetype.is_ordinary() {
            found = self.take_first(request, false);
            if found.is_none() && cfg!(feature = "lists") {
                self.drain();
                self.drain_others(self.allocator.zones.iter());
                found = self.take_first(request, false);
            }
        }
        found.ok_or(AllocError::new(AllocFailure::NoMemory, order, migratetype))
    }

    /// Frees a block that any CPU allocated, with the order it was allocated with.
    ///
    /// O(1) unless the lists are full; then a drain: O(batch × orders). A wrong free is refused, and the state is
    /// unchanged. One mistake is not always found: two CPUs free the same block at the same instant, and one of them is
    /// the CPU on whose list the block last was.
    ///
    /// # Errors
    /// The reason, from the frame's descriptor.
    // Always inlined: the caller knows the order, and the code is a hit and a call.
    #[inline(always)]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        if self.free_hit(pfn, order) { Ok(()) } else { self.free_miss(pfn, order) }
    }

    /// [`free`](Self::free) of a block for which [`free_hit`](Self::free_hit) has returned `false`.
    ///
    /// # Errors
    /// As [`free`](Self::free).
    #[inline(always)]
    pub fn free_miss(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        let mut error = None;
        self.free_missed(pfn, order, &mut error);
        match error {
            None => Ok(()),
            Some(error) => refused(error),
        }
    }

    /// The most common free: of the block of the preferred zone that was allocated last from this CPU's list. It
    /// returns to that list. On `false` the state is unchanged, and [`free`](Self::free) has more to do. Always `false`
    /// if hits count ([`Engine::Linux`](crate::config::Engine::Linux)). O(1).
    //
    // The block's head word proves it: the block is taken, has this order, and left this CPU's list from the place
    // where it would now be put; so it is not on the list. The word does not name the zone: the block is in the
    // preferred zone. While a pageblock of the zone is isolated, the lists are shut (see `Pcp::set_closed`).
    #[inline(always)]
    pub fn free_hit(&self, pfn: Pfn, order: Order) -> bool {
        // No closures on this path: the compiler may leave one out of line.
        let Some(head) = self.near.head(pfn, order) else { return false };
        // The descriptor of absent memory may hold values of an earlier kernel's run.
        (!P::CLEARS_DESCRIPTORS || self.frames.info(pfn).is_present()) && self.pcp.put_last(order, head, pfn)
    }

    /// Drains this CPU's lists of every zone. O(pages).
    pub fn drain(&self) {
        for zone in self.allocator.zones {
            self.local(zone.id()).drain_all();
        }
    }

    /// Drains other CPUs' lists of some zones for a request that fails; not of zones where a drain has brought nothing
    /// just now.
    fn drain_others(&self, zones: impl Iterator<Item = &'m Zone<'m, P>> + Clone) {
        let now = if P::DRAINS_REMOTELY { P::now_ns() } else { 0 };
        let zones = zones.filter(move |zone| !P::DRAINS_REMOTELY || !zone.rests(now));
        if zones.clone().next().is_some() {
            self.allocator.drain_others_and_wait(Some(self.cpu), zones, None, false);
        }
    }

    /// Lets this CPU's lists shrink if they hold more than it uses, under the rules that [move
    /// `high`](crate::config::PcpRule::moves_high); does nothing under other rules. To be called about once a second
    /// (Linux: by the vmstat worker). O(pages).
    pub fn tick(&self) {
        for zone in self.allocator.zones {
            self.local(zone.id()).tick();
        }
    }

    /// Serves the requests of other CPUs. Every free does this, and every allocation that finds its list empty; a CPU
    /// that makes no call for a long time may call this instead.
    pub fn answer(&self) {
        for zone in self.allocator.zones {
            let local = self.local(zone.id());
            local.answer();
            local.pcp.open_all();
        }
    }
}
