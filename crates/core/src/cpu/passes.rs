//! Steps of an allocation that the fast path could not serve. [`policy::passes`](crate::policy::passes) decides them.

use super::Cpu;
use crate::error::{AllocError, AllocFailure, Shortfall};
use crate::events::count;
use crate::frame::FrameUser;
use crate::platform::Platform;
use crate::policy::nodes::{self, Choice};
use crate::policy::passes::{self, Facts, Mark, Means, Outcome, Step, Walk};
use crate::policy::reclaim::could_help;
use crate::reclaim::{Helpers, Reclaiming};
use crate::request::{Flags, Request};
use crate::units::{Migratetype, NodeMask, Pfn, ZoneId};
use crate::zone::{Zone, ZoneSpec, largest_order};

/// Longest wait for a congested device before the next round.
const PAUSE_MS: u32 = 20;

/// A request, its zones and its helpers.
pub(super) struct Path<'p, 'm> {
    pub(super) request: &'p Request<'p>,
    pub(super) helpers: &'p Helpers<'p>,
    pub(super) choice: Choice,
    /// The zonelist of the node at which the request starts.
    pub(super) list: &'m [ZoneId],
    /// Whether this CPU is in reclaim.
    pub(super) reclaiming: bool,
    /// Whether other types give whole pageblocks only, and only zones of the first zone's node are tried.
    pub(super) avoid_fragmentation: bool,
}

impl Path<'_, '_> {
    /// Whether the request may use the zone.
    pub(super) fn covers(&self, spec: &ZoneSpec) -> bool {
        self.request.may_use(spec.kind) && self.choice.only.has(spec.node)
    }

    /// Pages that a zone keeps from the request.
    pub(super) fn kept_of<P: Platform>(&self, zone: &Zone<P>) -> u64 {
        zone.marks().min + zone.reserve(self.request.highest_usable())
    }

    /// Pages of a zone that the reclaimer could free, by its own count; 0 without one.
    pub(super) fn reclaimable_of<P: Platform>(&self, zone: &Zone<P>) -> u64 {
        let reclaimable = self.helpers.reclaim.map(|reclaimer| reclaimer.reclaimable(zone.id()));
        reclaimable.map_or(0, |pages| pages.on_lists().saturating_add(pages.slab))
    }
}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Allocates a block for `request`, with the help of `helpers`.
    ///
    /// Tried in turn: this CPU's list; every zone at its low mark; with background reclaim woken, at its min mark; with
    /// compaction and direct reclaim, as many times as [`Experiment::limits`](crate::config::Experiment::limits) and
    /// the request's flags allow; with all per-CPU lists drained. See [`policy::passes`](crate::policy::passes).
    ///
    /// # Errors
    /// The reason, and the lack of the zones. No block is held then. With [`Flags::NO_FAIL`] the call waits instead.
    pub fn alloc_with(&self, request: &Request<'_>, helpers: &Helpers<'_>) -> Result<Pfn, AllocError> {
        // A request that asks for nothing in particular needs no passes, as long as a zone has a block.
        if self.frames.has_maps() && request.is_plain() {
            let listed = self.take_hit(request.order, request.migratetype).ok();
            if let Some(pfn) = listed.or_else(|| self.take_at_once(request)) {
                return Ok(pfn);
            }
        }
        self.refuse_early(request)?;
        let pfn = self.find_block(request, helpers)?;
        if let (true, Some(map)) = (request.flags.has(Flags::ZERO), self.allocator.direct_map) {
            map.zero::<P>(pfn, request.order);
        }
        Ok(pfn)
    }

    fn find_block(&self, request: &Request<'_>, helpers: &Helpers<'_>) -> Result<Pfn, AllocError> {
        let Request { order, migratetype, .. } = *request;
        if !migratetype.is_ordinary() {
            return Err(AllocError::new(AllocFailure::NotAllowed, order, migratetype));
        }
        let movable = migratetype == Migratetype::Movable;
        let reclaiming = Reclaiming::<P>::is_in(self.allocator.context(self.cpu));
        let path = self.path(request, helpers, reclaiming);
        let config = &self.allocator.config;
        if let Some(first) = path.choice.first {
            let choice = Choice { only: first, ..path.choice };
            let pass = Walk::plain(Mark::Low, movable);
            if let Some(pfn) = self.walk(&Path { choice, ..path }, &pass) {
                return Ok(pfn);
            }
        }
        let facts = Facts { order, movable, flags: request.flags, reclaiming };
        let means = Means {
            marks: config.keep_marks,
            reclaim: helpers.reclaim.is_some(),
            compact: helpers.migrate.is_some(),
            as_linux: !config.engine.has_maps(),
        };
        let mut found = None;
        passes::run(config.experiment.passes, facts, means, config.experiment.limits, |step| {
            self.act(&path, step, &mut found)
        });
        found.ok_or_else(|| self.explain_path(&path, |_| {}))
    }

    fn path<'p>(&self, request: &'p Request<'p>, helpers: &'p Helpers<'p>, reclaiming: bool) -> Path<'p, 'm> {
        let usable: NodeMask = self
            .allocator
            .zones
            .iter()
            .filter(|zone| zone.managed_pages() > 0)
            .map(|zone| zone.spec().node)
            .collect();
        let local = self.allocator.node_of(self.cpu);
        let this_node = request.flags.has(Flags::THIS_NODE);
        let mut choice = nodes::choose(request.nodes, local, usable.and(request.allowed), this_node);
        if choice.start.index() >= self.allocator.nodes().len() {
            // A node that does not exist has no zonelist and no zone.
            choice.start = local;
        }
        let list = self.allocator.zonelist_of_node(choice.start);
        Path { request, helpers, choice, list, reclaiming, avoid_fragmentation: false }
    }

    /// Carries out a step. A walk writes the block that it finds to `found`.
    fn act(&self, path: &Path<'_, 'm>, step: Step, found: &mut Option<Pfn>) -> Outcome {
        let start = self.allocator.node(path.choice.start);
        match step {
            Step::Walk(pass) => {
                *found = self.walk(path, &pass);
                return found.is_some().into();
            }
            Step::Wake => {
                if !path.request.flags.has(Flags::NO_WAKE) {
                    self.wake(path);
                }
                if path.reclaiming && path.helpers.reclaim.is_some() {
                    count(&start.events.reclaim_refused, 1);
                }
            }
            Step::Compact => self.compact_for(path),
            Step::Reclaim => return self.reclaim_directly(path),
            Step::Drain => self.drain_everywhere(path),
            Step::Assess => return self.could_be_reclaimed(path).into(),
            Step::Pause => {
                if let (Some(reclaimer), Some(zone)) = (path.helpers.reclaim, path.list.first()) {
                    reclaimer.wait_if_congested(*zone, PAUSE_MS);
                }
                P::relax();
            }
            Step::Kill => {
                let killed = path.helpers.reclaim.is_some_and(|reclaimer| self.kill(reclaimer));
                count(&start.events.oom_kill, u64::from(killed));
                return killed.into();
            }
        }
        Outcome::No
    }

    /// The zones of a request.
    pub(super) fn zones_of<'p>(
        &self,
        path: &'p Path<'_, 'm>,
    ) -> impl Iterator<Item = &'m Zone<'m, P>> + Clone + 'p
    where
        'm: 'p,
    {
        let zones = self.allocator.zones;
        path.list.iter().map(move |id| &zones[id.index()]).filter(|zone| path.covers(zone.spec()))
    }

    /// Drains lists: the missing block may be on a list of another type or in smaller blocks. A request that cannot
    /// wait drains this CPU's lists only.
    fn drain_everywhere(&self, path: &Path<'_, 'm>) {
        self.drain();
        if path.request.flags.has(Flags::NO_WAIT) {
            return;
        }
        self.unreserve(path);
        self.drain_others(self.zones_of(path));
    }

    /// Gives one pageblock that is reserved for high-order atomic requests back to the others, in each zone (v6.1).
    fn unreserve(&self, path: &Path<'_, 'm>) {
        for zone in self.zones_of(path).filter(|zone| zone.pressure.highatomic() > 0) {
            let waiter = self.allocator.waiter(Some(self.cpu));
            self.allocator.unreserve(zone, path.request.migratetype, waiter);
        }
    }

    /// Whether any zone could serve the request if all reclaimable pages were free.
    fn could_be_reclaimed(&self, path: &Path<'_, 'm>) -> bool {
        path.helpers.reclaim.is_some()
            && self.zones_of(path).any(|zone| {
                let (kept, pages) = (path.kept_of(zone), path.reclaimable_of(zone));
                could_help(zone.free_pages(), pages, kept, path.request.order)
            })
    }

    /// The present lack of each zone that `request` may use, in the order in which an allocation tries them, and of all
    /// zones together as the error of an allocation. Allocates nothing and calls no helper but
    /// [`Reclaim::reclaimable`](crate::Reclaim::reclaimable).
    ///
    /// O(zones · CPUs); holds each zone's lock for a moment.
    pub fn explain(
        &self,
        request: &Request<'_>,
        helpers: &Helpers<'_>,
        each: impl FnMut(&Shortfall),
    ) -> AllocError {
        let reclaiming = Reclaiming::<P>::is_in(self.allocator.context(self.cpu));
        AllocError { asked_back: false, ..self.explain_path(&self.path(request, helpers, reclaiming), each) }
    }

    fn explain_path(&self, path: &Path<'_, 'm>, mut each: impl FnMut(&Shortfall)) -> AllocError {
        let Request { order, migratetype, flags, .. } = *path.request;
        let mut error = AllocError::new(AllocFailure::NoSuchZone, order, migratetype);
        error.asked_back = !flags.has(Flags::NO_WAIT);
        for zone in self.zones_of(path).filter(|zone| zone.managed_pages() > 0) {
            let shortfall = self.shortfall(path, zone);
            error.add(&shortfall, self.allocator.config.keep_marks);
            each(&shortfall);
        }
        error
    }

    fn shortfall(&self, path: &Path<'_, 'm>, zone: &Zone<P>) -> Shortfall {
        let largest = self.with_free_blocks(zone, |has_block| {
            largest_order(|order| Migratetype::ORDINARY.into_iter().any(|list| has_block(order, list)))
        });
        let pcps = self.allocator.cpu_ids().zip(self.allocator.pcps_of(zone.id()));
        let others = pcps.filter(|&(cpu, _)| cpu != self.cpu).map(|(_, pcp)| u64::from(pcp.count()));
        let pages = |pages: u64| pages.min(u64::from(u32::MAX)) as u32;
        Shortfall {
            zone: zone.id(),
            node: zone.spec().node,
            kind: zone.spec().kind,
            largest,
            free: pages(zone.free_pages()),
            // The counts are read at different moments, so a page may be counted twice.
            on_other_cpus: pages(others.sum()),
            kept: pages(path.kept_of(zone)),
            reclaimable: pages(path.reclaimable_of(zone).min(zone.managed_pages())),
        }
    }
}
