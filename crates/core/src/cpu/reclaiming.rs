//! Zone reclaim, direct reclaim and the last resort: how a CPU asks a reclaimer for pages.
#![expect(unsafe_code, reason = "a reclaimer must own the frames that it frees")]

use core::cell::Cell;

use super::Cpu;
use super::passes::Path;
use crate::error::FreeError;
use crate::events::count;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::Generation;
use crate::policy::passes::Outcome;
use crate::policy::reclaim::{
    self as policy, CLUSTER, Caller, FIRST_PRIORITY, SCANNED_BEFORE_WRITING, WAIT_PRIORITY,
    ZONE_RECLAIM_PRIORITY, ZoneReclaim, ZoneReclaimMode,
};
use crate::policy::zlc::Seen;
use crate::reclaim::{By, Reclaim, ReclaimRequest, Reclaimed, Reclaiming, Release};
use crate::request::{Flags, Request};
use crate::units::{CpuId, Order, Pfn};
use crate::zone::{Zone, ZoneSpec};

/// Longest that direct reclaim waits for a congested device, once per priority.
const WAIT_MS: u32 = 100;
/// Most rounds in which slab caches are shrunk for one run of zone reclaim.
const SLAB_ROUNDS: u32 = 64;

/// Frees the pages that a reclaimer gives back, and counts them.
struct Sink<'s, 'a, 'm, P: Platform, M: 'static> {
    cpu: &'s Cpu<'a, 'm, P, M>,
    freed: Cell<u64>,
}

impl<P: Platform, M: FrameUser> Release for Sink<'_, '_, '_, P, M> {
    unsafe fn free(&self, pfn: Pfn, order: Order) -> Result<(), FreeError> {
        self.cpu.free(pfn, order)?;
        self.freed.update(|freed| freed + order.pages());
        Ok(())
    }

    fn allocator(&self) -> *const () {
        core::ptr::from_ref(self.cpu.allocator).cast()
    }

    fn freed(&self) -> u64 {
        self.freed.get()
    }

    fn cpu(&self) -> CpuId {
        self.cpu.cpu
    }
}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Asks the reclaimer for pages of a zone, or lets it shrink caches of small objects, and counts the pages that it
    /// freed: those that went through the sink or, if that is more, the growth of the zone and of this CPU's lists,
    /// limited to the reclaimer's own count. No lock is held.
    pub(super) fn reclaim_from(
        &self,
        reclaimer: &dyn Reclaim,
        zone: &Zone<P>,
        goal: ReclaimRequest<'_>,
        slab: bool,
    ) -> Reclaimed {
        let &ZoneSpec { node, kind, start, .. } = zone.spec();
        let ranges = &[start..zone.spec().end()];
        let ask = ReclaimRequest { zone: zone.id(), node, kind, ranges, ..goal };
        let sink = Sink { cpu: self, freed: Cell::new(0) };
        let pages = || zone.free_pages() + u64::from(self.allocator.pcp(zone.id(), self.cpu).count());
        let before = pages();
        let claimed = if slab { reclaimer.shrink(&ask, &sink) } else { reclaimer.reclaim(&ask, &sink) };
        let grown = pages().saturating_sub(before);
        let freed = sink.freed().max(claimed.freed.min(grown));
        let events = &zone.pressure.events;
        if slab {
            count(&self.allocator.node(node).events.slabs_scanned, claimed.scanned);
        } else {
            zone.pressure.count_scanned(claimed.scanned);
            let background = goal.by == By::Background;
            count(if background { &events.pgscan_kswapd } else { &events.pgscan_direct }, claimed.scanned);
            count(if background { &events.pgsteal_kswapd } else { &events.pgsteal_direct }, freed);
        }
        Reclaimed { scanned: claimed.scanned, freed }
    }

    /// Reclaims a zone before the request tries the next one, if `policy::zone_reclaim` decides so.
    ///
    /// # Errors
    /// It did not scan: not for this request, or not now, or because it would free too little.
    pub(super) fn zone_reclaim(&self, path: &Path<'_, 'm>, zone: &Zone<P>) -> Result<(), Seen> {
        let reclaimer = path.helpers.reclaim.ok_or(Seen::NotScanned)?;
        let config = &self.allocator.config;
        let (local, there) = (self.allocator.node_of(self.cpu), zone.spec().node);
        // Newer releases compare distances from the preferred zone's node; v3.0 looks whether the node has CPUs.
        if config.experiment.reclaim == Generation::V6_1
            && !self.allocator.node(path.choice.start).near.has(there)
        {
            return Err(Seen::NotScanned);
        }
        let caller = Caller {
            must_not: path.request.flags.has(Flags::NO_WAIT) || path.reclaiming,
            remote_with_cpus: there != local && self.allocator.node(there).has_cpus,
            unreclaimable: zone.is_unreclaimable(),
        };
        let reclaimable = reclaimer.reclaimable(zone.id());
        let ZoneReclaim { page_cache, slab } =
            policy::zone_reclaim(config.zone_reclaim, &reclaimable, zone.managed_pages(), caller)?;
        let _lock = zone.pressure.lock_reclaim().ok_or(Seen::NotScanned)?;
        let here = Reclaiming::<P>::enter(self.allocator.context(self.cpu));
        let _here = here.ok_or(Seen::NotScanned)?;
        let order = path.request.order;
        let freed = self.run_zone_reclaim(reclaimer, zone, path.request, page_cache, slab);
        let events = &self.allocator.node(there).events;
        count(&events.zone_reclaim_scans, 1);
        count(&events.zone_reclaim_failed, u64::from(freed < order.pages()));
        Ok(())
    }

    fn run_zone_reclaim(
        &self,
        reclaimer: &dyn Reclaim,
        zone: &Zone<P>,
        &Request { order, flags, .. }: &Request<'_>,
        page_cache: bool,
        slab: bool,
    ) -> u64 {
        let mode = self.allocator.config.zone_reclaim;
        let goal = |priority| ReclaimRequest {
            by: By::Zone,
            order,
            priority,
            target: policy::zone_reclaim_target(order),
            may_write: mode.has(ZoneReclaimMode::WRITE) && !flags.has(Flags::NO_WRITE),
            may_unmap: mode.has(ZoneReclaimMode::UNMAP),
            ..ReclaimRequest::ANY
        };
        let mut freed = 0;
        if page_cache {
            for priority in (0..=ZONE_RECLAIM_PRIORITY).rev() {
                freed += self.reclaim_from(reclaimer, zone, goal(priority), false).freed;
                if freed >= order.pages() {
                    break;
                }
            }
        }
        if slab {
            let before = reclaimer.reclaimable(zone.id()).slab;
            let fallen = || before.saturating_sub(reclaimer.reclaimable(zone.id()).slab);
            for _ in 0..SLAB_ROUNDS {
                let round = self.reclaim_from(reclaimer, zone, goal(ZONE_RECLAIM_PRIORITY), true);
                if round.freed == 0 || fallen() >= order.pages() {
                    break;
                }
            }
            freed += fallen();
        }
        freed
    }

    /// Reclaims for a request, over all its zones, with rising effort.
    pub(super) fn reclaim_directly(&self, path: &Path<'_, 'm>) -> Outcome {
        let Some(reclaimer) = path.helpers.reclaim else { return Outcome::No };
        let Some(_here) = Reclaiming::<P>::enter(self.allocator.context(self.cpu)) else {
            return Outcome::No;
        };
        count(&self.allocator.node(self.allocator.node_of(self.cpu)).events.allocstall, 1);
        let mut total = Reclaimed::default();
        let mut may_write = false;
        for priority in (0..=FIRST_PRIORITY).rev() {
            total += self.reclaim_zones(path, reclaimer, priority, may_write);
            if total.freed >= CLUSTER {
                break;
            }
            if total.scanned > SCANNED_BEFORE_WRITING {
                reclaimer.wake_flushers(total.scanned);
                may_write = !path.request.flags.has(Flags::NO_WRITE);
            }
            if priority <= WAIT_PRIORITY
                && total.scanned > 0
                && let Some(&zone) = path.list.first()
            {
                reclaimer.wait_if_congested(zone, WAIT_MS);
            }
        }
        let experiment = &self.allocator.config.experiment;
        if total.freed > 0 {
            // Background reclaim may succeed again.
            self.zones_of(path).for_each(|zone| self.allocator.node(zone.spec().node).set_failures(0));
        } else if experiment.reclaim != Generation::V3_0
            || !self.zones_of(path).any(|zone| self.has_hope(reclaimer, zone))
        {
            // In v3.0 a zone that may still have reclaimable pages counts as progress, too.
            return Outcome::No;
        }
        if experiment.zonelist_cache.clears_after_progress() {
            self.allocator.node(path.choice.start).hints.clear();
        }
        Outcome::Progress(total.freed)
    }

    fn has_hope(&self, reclaimer: &dyn Reclaim, zone: &Zone<P>) -> bool {
        let on_lists = reclaimer.reclaimable(zone.id()).on_lists();
        !policy::is_unreclaimable(zone.pressure.scanned(), on_lists, 0)
    }

    /// One priority of direct reclaim: each zone that the request may use, then small objects.
    fn reclaim_zones(
        &self,
        path: &Path<'_, 'm>,
        reclaimer: &dyn Reclaim,
        priority: u8,
        may_write: bool,
    ) -> Reclaimed {
        let Request { order, allowed, .. } = *path.request;
        let goal = ReclaimRequest { order, priority, target: CLUSTER, may_write, ..ReclaimRequest::ANY };
        let mut total = Reclaimed::default();
        let mut first = None;
        for zone in self.zones_of(path) {
            let usable = zone.managed_pages() > 0 && allowed.has(zone.spec().node);
            if !usable || (zone.is_unreclaimable() && priority != FIRST_PRIORITY) {
                continue;
            }
            first = first.or(Some(zone));
            total += self.reclaim_from(reclaimer, zone, goal, false);
        }
        if let Some(zone) = first {
            total.freed += self.reclaim_from(reclaimer, zone, goal, true).freed;
        }
        total
    }

    /// The last resort: an OOM kill. Returns whether a user of memory was ended.
    pub(super) fn kill(&self, reclaimer: &dyn Reclaim) -> bool {
        let Some(_here) = Reclaiming::<P>::enter(self.allocator.context(self.cpu)) else { return false };
        reclaimer.kill()
    }
}
