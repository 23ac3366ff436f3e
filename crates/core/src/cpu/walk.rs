//! One walk over a zonelist: the zones it tries, the zones it skips, and what it does about a zone below its mark.
//!
//! # Differences from Linux
//! Marks are checked only when the zone lock is about to be taken. A page on this CPU's list is handed out without a
//! check of the zone's marks: it left the zone's count of free pages earlier.

use super::Cpu;
use super::passes::Path;
use crate::events::{NodeWords, count};
use crate::frame::FrameUser;
use crate::pcp::{Local, REQUEST_RESIZE};
use crate::platform::Platform;
use crate::policy::Generation;
use crate::policy::passes::{Mark, Walk};
use crate::policy::watermark::{self, FreePages};
use crate::policy::zlc::{self, Seen};
use crate::reclaim::BackgroundRequest;
use crate::request::Request;
use crate::units::{Migratetype, NodeMask, Order, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::{Zone, ZoneSpec};
use crate::zonelist::Hints;

/// Notes that one walk uses.
struct Notes<'a, P: Platform> {
    walk: zlc::ZlcWalk,
    /// The nodes that the walk may use.
    usable: NodeMask,
    /// Those at the last set-up.
    believed: NodeMask,
    hints: Option<&'a Hints<P>>,
    events: &'a NodeWords<P>,
}

impl<P: Platform> Notes<'_, P> {
    /// Whether the walk skips a zone, which is counted.
    fn skips(&self, position: usize, spec: &ZoneSpec) -> bool {
        let full = self.hints.is_some_and(|hints| hints.is_full(position));
        let skips = self.walk.skips(self.believed.has(spec.node) && !full);
        count(&self.events.zlc_skipped, u64::from(skips));
        skips
    }

    /// Notes in the zonelist cache what the walk saw of the zone at a position, and sets the cache up if it is time.
    fn saw(&mut self, position: usize, seen: Seen) {
        let note = self.walk.saw(seen);
        if let (true, Some(hints)) = (note.mark, self.hints) {
            hints.mark(position);
        }
        if note.set_up {
            self.believed = self.usable;
            count(&self.events.zlc_set_up, 1);
            let zapped = self.hints.is_some_and(|hints| hints.set_up(P::now_ns()));
            count(&self.events.zlc_zapped, u64::from(zapped));
        }
    }
}

/// The counts of a zone that are compared with marks. Racy reads.
pub(super) fn free_of<P: Platform>(zone: &Zone<P>) -> FreePages {
    FreePages { all: zone.free_pages(), highatomic: zone.pressure.highatomic(), cma: zone.free_cma_pages() }
}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// The first block that a zone of the request gives. O(zones), plus the time of reclaim.
    ///
    /// The first walk of a request may avoid mixing types within pageblocks (see
    /// [`Config::avoid_fragmentation`](crate::config::Experiment::avoid_fragmentation)): it ends at the first zone of
    /// another node. If it has found nothing, the zones are walked once more without this rule.
    pub(super) fn walk(&self, path: &Path<'_, 'm>, pass: &Walk) -> Option<Pfn> {
        let avoids = self.allocator.config.experiment.avoid_fragmentation
            && pass.mark == Mark::Low
            && self.zones_of(path).next().is_some_and(|first| self.avoids_fragmentation(first));
        if avoids && let Some(pfn) = self.walk_zones(&Path { avoid_fragmentation: true, ..*path }, pass) {
            return Some(pfn);
        }
        self.walk_zones(path, pass)
    }

    fn walk_zones(&self, path: &Path<'_, 'm>, pass: &Walk) -> Option<Pfn> {
        let (nodes, start) = (self.allocator.nodes(), self.allocator.node(path.choice.start));
        let mut notes = Notes {
            walk: zlc::ZlcWalk::new(self.allocator.config.experiment.zonelist_cache, nodes.len() > 1),
            usable: if pass.allowed_only { path.request.allowed } else { NodeMask::ALL },
            believed: NodeMask::ALL,
            hints: path.choice.cached.then_some(&start.hints),
            events: &start.events,
        };
        let only = path
            .avoid_fragmentation
            .then(|| self.zones_of(path).next().map(|zone| zone.spec().node))
            .flatten();
        loop {
            for (position, id) in path.list.iter().enumerate() {
                let zone = &self.allocator.zones[id.index()];
                if !path.covers(zone.spec()) {
                    continue;
                }
                if only.is_some_and(|node| node != zone.spec().node) {
                    return None;
                }
                if notes.skips(position, zone.spec()) {
                    continue;
                }
                if let Some(pfn) = self.try_zone(path, pass, &mut notes, position, zone) {
                    return Some(pfn);
                }
            }
            if !notes.walk.again() {
                return None;
            }
        }
    }

    fn try_zone(
        &self,
        path: &Path<'_, 'm>,
        pass: &Walk,
        notes: &mut Notes<'_, P>,
        position: usize,
        zone: &Zone<P>,
    ) -> Option<Pfn> {
        if !notes.usable.has(zone.spec().node) {
            notes.saw(position, Seen::Forbidden);
            return None;
        }
        let config = &self.allocator.config;
        let Request { order, migratetype, .. } = *path.request;
        let listed = self.local(zone.id()).take_listed(order, migratetype);
        if listed.is_some() {
            return listed;
        }
        self.note_free_pages(zone);
        if config.keep_marks && pass.mark != Mark::None {
            let met = || self.meets(zone, path.request, pass).then_some(());
            if met().or_else(|| self.grow_and_try(zone.id(), order, met)).is_none() {
                notes.saw(position, Seen::BelowMark);
                let is_on = config.zone_reclaim.is_on() && path.helpers.reclaim.is_some();
                if is_on && notes.walk.looks_twice() && notes.skips(position, zone.spec()) {
                    return None;
                }
                let scanned = if is_on { self.zone_reclaim(path, zone) } else { Err(Seen::ReclaimOff) };
                let seen = scanned.err().or_else(|| met().is_none().then_some(Seen::StillBelow));
                if let Some(seen) = seen {
                    notes.saw(position, seen);
                    return None;
                }
                // The reclaimer frees onto this CPU's lists, and a refill needs an empty one.
                let listed = self.local(zone.id()).take_listed(order, migratetype);
                if listed.is_some() {
                    return listed;
                }
            }
        }
        let take = || self.take(path, pass, zone);
        let taken = take().or_else(|| self.grow_and_try(zone.id(), order, take));
        if taken.is_none() {
            notes.saw(position, Seen::NothingTaken);
        }
        taken
    }

    /// Records when the free pages of a zone cross its high mark, for lists that follow the v6.7 rule.
    pub(super) fn note_free_pages(&self, zone: &Zone<P>) {
        let config = &self.allocator.config;
        let cares = config.keep_marks && config.experiment.pcp_rule.moves_high();
        if cares && zone.pressure.note_free_pages(zone.free_pages()) {
            self.tell_pressure(zone);
        }
    }

    /// Writes a change of a zone's pressure to the lists of all CPUs, if each free compares a count with the lists'
    /// limit. If hits do not count, a CPU reads the zone's pressure in its next slow call, and nothing is written.
    pub(super) fn tell_pressure(&self, zone: &Zone<P>) {
        if self.allocator.config.counts_each_call() {
            self.allocator.pcps_of(zone.id()).iter().for_each(|pcp| pcp.set_request(REQUEST_RESIZE));
        }
    }

    /// Tries `attempt`; while it fails and boot has left memory of the zone for later, initialises more and tries
    /// again.
    fn grow_and_try<T>(&self, zone: ZoneId, order: Order, attempt: impl Fn() -> Option<T>) -> Option<T> {
        while self.allocator.grow(zone, order.pages(), Some(self.cpu)) {
            if let Some(found) = attempt() {
                return Some(found);
            }
        }
        None
    }

    /// Takes a block from a zone that may give one.
    fn take(&self, path: &Path<'_, 'm>, pass: &Walk, zone: &Zone<P>) -> Option<Pfn> {
        let Request { order, migratetype, .. } = *path.request;
        let local = self.local(zone.id());
        let local = Local {
            avoid_fragmentation: path.avoid_fragmentation,
            boosts: local.boosts || path.helpers.background.is_some(),
            beyond: self.beyond(zone, path.request, pass),
            ..local
        };
        let before = local.pcp.pages_taken();
        let may_use_reserve = pass.access.highatomic;
        let has_reserve = may_use_reserve && zone.pressure.highatomic() > 0;
        let from_reserve = || {
            has_reserve.then(|| local.take_directly(order, Migratetype::HighAtomic, migratetype)).flatten()
        };
        // Above order 0 the blocks reserved for such requests come first; for order 0 they are the last resort.
        let reserve_first = may_use_reserve && order > Order::ZERO;
        let reserved = if reserve_first { from_reserve() } else { None };
        let taken = reserved.or_else(|| local.take_new(order, migratetype));
        let taken = taken.or_else(|| if reserve_first { None } else { from_reserve() })?;
        if let Some(wanted) = self.zones_of(path).next() {
            self.count_numa(wanted.id(), &local, (local.pcp.pages_taken() - before) >> order.get());
        }
        if reserve_first && reserved.is_none() {
            self.reserve_highatomic(zone, taken, order);
        }
        if zone.pressure.take_boosted() {
            self.wake_zone(path, zone);
        }
        Some(taken)
    }

    /// Counts blocks that left the zone `from` when `wanted` was the first choice, as Linux counts blocks that are
    /// handed out. The counts are in this CPU's own lists of the two zones, so that no cache line is shared.
    pub(super) fn count_numa(&self, wanted: ZoneId, from: &Local<'_, 'm, P, M>, blocks: u64) {
        let is_far = self.allocator.zones[wanted.index()].spec().node != from.zone.spec().node;
        let there = if is_far { Some(self.allocator.pcp(wanted, self.cpu)) } else { None };
        from.pcp.count_numa(blocks, there);
    }

    /// Reserves the pageblock of a block for high-order requests that cannot wait, after such a request took the block
    /// from the ordinary lists, until the reserve has 1 % of the zone and a pageblock (v6.1, with marks).
    fn reserve_highatomic(&self, zone: &Zone<P>, pfn: Pfn, order: Order) {
        let most = zone.managed_pages() / 100 + PAGEBLOCK_PAGES;
        let has_room = || zone.pressure.highatomic() < most;
        let ordinary = self.allocator.frames.info(pfn).migratetype().is_ordinary();
        let config = &self.allocator.config;
        if config.keep_marks
            && config.experiment.marks == Generation::V6_1
            && order.pages() < PAGEBLOCK_PAGES
            && ordinary
            && has_room()
        {
            self.allocator.in_section_of(zone, pfn, Some(self.cpu), |buddy| {
                // Checked again with the lock held: another CPU may have reserved the last allowed pageblock, or this
                // one.
                let from = self.allocator.frames.info(pfn).migratetype();
                if from.is_ordinary() && has_room() {
                    buddy.set_pageblock_type(pfn, Some(from), Migratetype::HighAtomic);
                }
            });
        }
    }

    /// Whether a zone meets a mark for a request.
    pub(super) fn meets(&self, zone: &Zone<P>, request: &Request<'_>, pass: &Walk) -> bool {
        pass.mark == Mark::None || self.has_above(zone, &self.check_of(zone, request, pass))
    }

    /// The check of a zone that a walk makes for a request.
    fn check_of(&self, zone: &Zone<P>, request: &Request<'_>, pass: &Walk) -> watermark::Check {
        let marks = zone.marks();
        // v5.9 and later: a single page for a request that cannot wait may come out of the boost.
        let may_use_boost = self.allocator.config.experiment.marks == Generation::V6_1
            && request.order == Order::ZERO
            && pass.access.high
            && pass.access.harder;
        let mark = match pass.mark {
            Mark::None => 0,
            Mark::Min if may_use_boost => zone.pressure.marks().min,
            Mark::Min => marks.min,
            Mark::Low => marks.low,
            Mark::High => marks.high,
        };
        let reserve = zone.reserve(request.highest_usable());
        watermark::Check { order: request.order, mark, reserve, access: pass.access }
    }

    /// Base pages that may leave a zone at a mark, for a request without flags. All free pages, if zones keep no marks.
    pub(super) fn may_leave(&self, zone: &Zone<P>, request: &Request<'_>, mark: Mark) -> u64 {
        let config = &self.allocator.config;
        if !config.keep_marks {
            return u64::MAX;
        }
        let pass = Walk::plain(mark, request.migratetype == Migratetype::Movable);
        watermark::may_leave(config.experiment.marks, &self.check_of(zone, request, &pass), free_of(zone))
    }

    /// Base pages that a refill for a request may take besides the requested block: those that may leave the zone for
    /// any request, so that no page of a reserve gets onto a list. Linux checks one block only.
    fn beyond(&self, zone: &Zone<P>, request: &Request<'_>, pass: &Walk) -> u64 {
        if !self.allocator.config.engine.has_maps() {
            return u64::MAX;
        }
        let mark = if pass.mark == Mark::None { Mark::Min } else { pass.mark };
        self.may_leave(zone, request, mark).saturating_sub(request.order.pages())
    }

    /// Whether a zone meets a check. Order 0 reads counters. Above order 0 it also reads the free areas: without the
    /// lock, as Linux does, if the zone publishes them; else with the lock.
    pub(super) fn has_above(&self, zone: &Zone<P>, wanted: &watermark::Check) -> bool {
        let is_v3_0 = self.allocator.config.experiment.marks == Generation::V3_0;
        let check =
            |has_block: &dyn Fn(Order, Migratetype) -> bool, nr_free: &dyn Fn(Order) -> u64| match is_v3_0 {
                true => watermark::check_v3_0(wanted, zone.free_pages(), nr_free),
                false => watermark::check_v6_1(wanted, free_of(zone), has_block),
            };
        // A check that fails by the counts alone needs no lock.
        let may_hold = check(&|_, _| true, &|_| 0);
        let areas = zone.counters();
        if !may_hold || wanted.order == Order::ZERO {
            return may_hold;
        } else if areas.are_areas_shown() {
            return check(&|order, list| areas.has(order, list), &|order| areas.nr_free(order));
        } else if is_v3_0 {
            let nr_free = self.allocator.zone_snapshot(zone).nr_free;
            return check(&|_, _| true, &|order| nr_free[order.index()]);
        }
        self.with_free_blocks(zone, |has_block| check(has_block, &|_| 0))
    }

    /// Runs `f` with a function that answers whether a type has a free block of an order: with the zone lock; without
    /// it if the zone has several sections.
    pub(super) fn with_free_blocks<R>(
        &self,
        zone: &Zone<P>,
        f: impl FnOnce(&dyn Fn(Order, Migratetype) -> bool) -> R,
    ) -> R {
        if let Some(shown) = zone.shown() {
            return f(&|order, list| shown.has(order, list));
        }
        self.allocator.in_section_of(zone, zone.spec().start, Some(self.cpu), |buddy| {
            f(&|order, list| buddy.has(order, list))
        })
    }

    /// Wakes background reclaim for every zone of the request that is below its low mark.
    pub(super) fn wake(&self, path: &Path<'_, 'm>) {
        if path.helpers.background.is_none() {
            return;
        }
        let low = Walk::plain(Mark::Low, false);
        for id in path.list {
            let zone = &self.allocator.zones[id.index()];
            if path.covers(zone.spec()) && !self.meets(zone, path.request, &low) {
                self.wake_zone(path, zone);
            }
        }
    }

    fn wake_zone(&self, path: &Path<'_, 'm>, zone: &Zone<P>) {
        let Some(background) = path.helpers.background else { return };
        let node = self.allocator.node(zone.spec().node);
        if node.failures() >= crate::policy::reclaim::MAX_FAILURES {
            return;
        }
        let asked = BackgroundRequest { order: path.request.order, highest: path.request.highest_usable() };
        if node.wakeup.request(asked) {
            background.wake(zone.spec().node);
        }
    }
}
