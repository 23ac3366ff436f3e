//! Compaction: a migration scanner takes movable blocks from below, a free scanner takes free blocks from above, until
//! the two meet.
//!
//! The migration scanner reads without the zone lock, so words may change while it reads. A block that it takes is only
//! a candidate; the owner's hook decides (see [`Migrate`]). The free scanner takes blocks under the lock.

mod empty;
mod round;

use super::Cpu;
use super::path::Path;
use crate::events::{NodeWords, count};
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::compact::{CLUSTER, Resume, is_suitable};
use crate::policy::passes::{Mark, Walk};
use crate::policy::watermark::{Access, FreePages};
use crate::reclaim::{Migrate, Reclaiming, has_moved};
use crate::request::Request;
use crate::units::{Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::{Zone, ZoneSpec};

/// Result of a compaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Base pages moved.
    pub moved: u64,
    /// Base pages that were to move and could not.
    pub stayed: u64,
}

impl core::ops::AddAssign for Compacted {
    fn add_assign(&mut self, more: Self) {
        self.moved += more.moved;
        self.stayed += more.stayed;
    }
}

/// Positions of the two scanners.
struct Scanners {
    /// The next frame of the migration scanner.
    low: Pfn,
    /// The pageblock of the free scanner. Everything above it is done.
    high: Pfn,
}

impl Scanners {
    fn new(spec: &ZoneSpec) -> Self {
        let last = Pfn(spec.end().0.saturating_sub(1)).block_start(PAGEBLOCK_ORDER);
        Self { low: spec.start, high: last }
    }

    /// Scanners that continue where the last compaction stopped.
    fn resumed(spec: &ZoneSpec, resume: Resume) -> Self {
        let first = spec.start.block_start(PAGEBLOCK_ORDER);
        let at = |number: u32| first.add(u64::from(number) * PAGEBLOCK_PAGES);
        Self { low: at(resume.low).max(spec.start), high: at(resume.high).min(Self::new(spec).high) }
    }

    /// Positions at which the next compaction may continue. It looks again at the pageblock that the migration scanner
    /// has not finished.
    fn resume(&self, spec: &ZoneSpec) -> Resume {
        let first = spec.start.block_start(PAGEBLOCK_ORDER).0;
        let number = |at: Pfn| (at.0.saturating_sub(first) / PAGEBLOCK_PAGES) as u32;
        Resume { low: number(self.low), high: number(self.high) }
    }

    /// Whether the migration scanner has reached the free scanner's pageblock.
    fn have_met(&self) -> bool {
        self.low >= self.high
    }
}

/// Blocks of one order and type that are to move.
struct Batch {
    order: Order,
    asked: Migratetype,
    from: [Pfn; CLUSTER],
    len: usize,
}

impl Batch {
    const fn new() -> Self {
        Self { order: Order::ZERO, asked: Migratetype::Movable, from: [Pfn(0); CLUSTER], len: 0 }
    }

    /// Adds a block. All blocks of a batch have the same order and type, and there are at most [`CLUSTER`].
    const fn push(&mut self, pfn: Pfn, order: Order, asked: Migratetype) {
        (self.order, self.asked) = (order, asked);
        self.from[self.len] = pfn;
        self.len += 1;
    }
}

/// Free blocks taken and not yet used. Freed when dropped, also by a panic.
struct Places<'s, 'a, 'm, P: Platform, M: FrameUser> {
    cpu: &'s Cpu<'a, 'm, P, M>,
    order: Order,
    left: &'s [Pfn],
}

impl<P: Platform, M: FrameUser> Drop for Places<'_, '_, '_, P, M> {
    fn drop(&mut self) {
        for &pfn in self.left {
            let freed = self.cpu.free(pfn, self.order);
            debug_assert!(freed.is_ok(), "an unused place could not be freed");
        }
    }
}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Compacts a zone from end to end (Linux: `compact_memory`). Requests that other CPUs drain their lists, and does
    /// not wait for them. O(frames), plus the time of the hook.
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn compact(&self, zone: ZoneId, migrate: &dyn Migrate) -> Compacted {
        self.allocator.request_drain();
        self.compact_zone(&self.allocator.zones[zone.index()], migrate, false, || false)
    }

    /// Compacts the zones of a request one after another until one can serve it.
    pub(super) fn compact_for(&self, path: &Path<'_, 'm>) {
        let Some(migrate) = path.helpers.migrate else { return };
        let request = path.request;
        let events = &self.allocator.nodes()[usize::from(self.allocator.node_of(self.cpu).0)].events;
        count(&events.compact_stall, 1);
        self.allocator.drain_others(None, self.zones_of(path), None, false);
        let access = Access { cma: request.migratetype == Migratetype::Movable, ..Access::default() };
        let pass = Walk { mark: Mark::Min, access, allowed_only: true };
        for zone in self.zones_of(path).filter(|zone| request.allowed.has(zone.spec().node)) {
            let mut defer = zone.pressure.defer();
            let passes_over = defer.passes_over(request.order);
            zone.pressure.set_defer(defer);
            if passes_over || !self.is_suitable(zone, request) {
                continue;
            }
            let done = || self.meets(zone, request, &pass).is_ok() && self.has_block(zone, request);
            self.compact_zone(zone, migrate, Resume::is_kept(self.allocator.config.experiment.reclaim), done);
            if done() {
                count(&events.compact_success, 1);
                zone.pressure.set_defer(zone.pressure.defer().succeeded(request.order));
                return;
            }
            zone.pressure.set_defer(zone.pressure.defer().failed(request.order));
        }
        count(&events.compact_fail, 1);
    }

    fn is_suitable(&self, zone: &Zone<P>, request: &Request<'_>) -> bool {
        let free = FreePages {
            all: zone.free_pages(),
            highatomic: zone.pressure.highatomic(),
            cma: zone.free_cma_pages(),
        };
        let reserve = zone.reserve(request.highest_usable());
        is_suitable(request.order, zone.marks().low, reserve, free).is_ok()
    }

    /// Whether a list of an ordinary type has a block that is large enough.
    fn has_block(&self, zone: &Zone<P>, request: &Request<'_>) -> bool {
        let ordinary = || Migratetype::ALL.into_iter().filter(|list| list.is_ordinary());
        self.with_free_blocks(zone, |has_block| {
            request.order.and_above().any(|order| ordinary().any(|list| has_block(order, list)))
        })
    }

    /// Compacts a zone until `done`. With `resumes` it first continues where the last compaction with `resumes`
    /// stopped, and if that does not suffice, starts again from end to end.
    fn compact_zone(
        &self,
        zone: &Zone<P>,
        migrate: &dyn Migrate,
        resumes: bool,
        done: impl Fn() -> bool,
    ) -> Compacted {
        let mut total = Compacted::default();
        let Some(_here) = Reclaiming::<P>::enter(self.allocator.context(self.cpu)) else { return total };
        let events = &self.allocator.nodes()[usize::from(zone.spec().node.0)].events;
        self.local(zone.id()).drain_all();
        let resume = if resumes { zone.pressure.resume() } else { None };
        if let Some(resume) = resume {
            let mut scanners = Scanners::resumed(zone.spec(), resume);
            if self.compact_between(zone, &mut scanners, migrate, resumes, &done, &mut total, events) {
                return total;
            }
        }
        let mut scanners = Scanners::new(zone.spec());
        self.compact_between(zone, &mut scanners, migrate, resumes, &done, &mut total, events);
        total
    }

    /// Compacts the range between the scanners until `done`. Returns whether `done` held; then, with `resumes`, stores
    /// the scanners' positions for the next compaction.
    #[expect(clippy::too_many_arguments, reason = "one body of two passes")]
    fn compact_between(
        &self,
        zone: &Zone<P>,
        scanners: &mut Scanners,
        migrate: &dyn Migrate,
        resumes: bool,
        done: &impl Fn() -> bool,
        total: &mut Compacted,
        events: &NodeWords<P>,
    ) -> bool {
        while !scanners.have_met() {
            let before = scanners.low.block_start(PAGEBLOCK_ORDER);
            let batch = self.gather(zone, scanners, migrate, events);
            if batch.len > 0 {
                *total += self.move_batch(zone, scanners, &batch, migrate, events);
            }
            // After each pageblock: the blocks freed in it can merge.
            if scanners.low.block_start(PAGEBLOCK_ORDER) != before {
                self.local(zone.id()).drain_all();
                if done() {
                    if resumes {
                        zone.pressure.set_resume(Some(scanners.resume(zone.spec())));
                    }
                    return true;
                }
            }
        }
        self.local(zone.id()).drain_all();
        if resumes {
            zone.pressure.set_resume(None);
        }
        false
    }

    /// The next movable blocks of one order in one pageblock.
    fn gather(
        &self,
        zone: &Zone<P>,
        scanners: &mut Scanners,
        migrate: &dyn Migrate,
        events: &NodeWords<P>,
    ) -> Batch {
        let mut batch = Batch::new();
        let start = scanners.low;
        let end = start.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES);
        let info = self.allocator.frames.info(start);
        let skip = !info.is_present() || info.migratetype() == Migratetype::Isolate;
        while !skip && scanners.low < end && batch.len < CLUSTER {
            let at = scanners.low;
            let (head, state) = self.allocator.frames.find(at);
            if let State::Taken { order, asked, .. } = state
                && head == at
                && self.can_move(zone, at, order, asked)
                && migrate.can_move(at, order, asked)
            {
                if batch.len > 0 && order != batch.order {
                    break;
                }
                batch.push(at, order, asked);
            }
            scanners.low = head.add(state.pages()).max(at.add(1));
        }
        if skip {
            scanners.low = end;
        }
        count(&events.compact_migrate_scanned, scanners.low.0 - start.0);
        count(&events.compact_isolated, (batch.len as u64) << batch.order.get());
        batch
    }

    /// Whether a block is with a caller, movable, and smaller than a pageblock.
    fn can_move(&self, zone: &Zone<P>, pfn: Pfn, order: Order, asked: Migratetype) -> bool {
        let info = self.allocator.frames.info(pfn);
        asked == Migratetype::Movable
            && order < PAGEBLOCK_ORDER
            && info.zone() == zone.id()
            && self.may_free(pfn, order, info)
    }

    /// Moves a batch while there are free places above it.
    fn move_batch(
        &self,
        zone: &Zone<P>,
        scanners: &mut Scanners,
        batch: &Batch,
        migrate: &dyn Migrate,
        events: &NodeWords<P>,
    ) -> Compacted {
        let mut result = Compacted::default();
        let mut from = &batch.from[..batch.len];
        // The migration scanner may have left the pageblock that the batch is from.
        while let Some(&next) = from.first()
            && next.block_start(PAGEBLOCK_ORDER) < scanners.high
        {
            let mut to = [Pfn(0); CLUSTER];
            let taken = self.places(zone, scanners, next, batch.order, &mut to[..from.len()], events);
            let places = Places { cpu: self, order: batch.order, left: &to[..taken] };
            result += self.migrate_all(&from[..taken], places, migrate);
            from = &from[taken..];
        }
        count(&events.pgmigrate_success, result.moved);
        count(&events.pgmigrate_fail, result.stayed);
        result
    }

    /// Asks the hook to move each block of `from` to one of `places`. There are as many places.
    fn migrate_all(
        &self,
        from: &[Pfn],
        mut places: Places<'_, '_, 'm, P, M>,
        migrate: &dyn Migrate,
    ) -> Compacted {
        let mut result = Compacted::default();
        let order = places.order;
        for &old in from {
            let [new, rest @ ..] = places.left else { break };
            // If the hook panics, this place stays with the owner that the hook left it to; the others are freed.
            places.left = rest;
            let moved = has_moved(migrate, old, *new, order);
            // If the hook answered wrongly, the block is free already: this free is refused and changes nothing.
            let freed = self.free(if moved { old } else { *new }, order).is_ok();
            if moved && freed { result.moved += order.pages() } else { result.stayed += order.pages() }
        }
        result
    }

    /// Lets `take` take free blocks under the lock of a section. They are allocated then, with the order and type in
    /// `kind`. Bad ones are quarantined and left out. Returns the number of blocks at the front of `out`.
    fn take_places(
        &self,
        (zone, section): (&Zone<P>, usize),
        kind: (Order, Migratetype),
        out: &mut [Pfn],
        take: impl FnOnce(&mut crate::buddy::Buddy<'_, 'm, P, M>, &mut [Pfn]) -> usize,
    ) -> usize {
        let waiter = self.allocator.waiter(Some(self.cpu));
        let (order, asked) = kind;
        let take = |buddy: &mut crate::buddy::Buddy<'_, 'm, P, M>| {
            let taken = take(buddy, out);
            for &pfn in &out[..taken] {
                self.allocator.frames.set_state(pfn, order, State::Taken { order, asked, list_place: None });
            }
            taken
        };
        let taken = zone.with_section(section, self.allocator.frames, waiter, take).0;
        let local = self.local(zone.id());
        let mut good = 0;
        for at in 0..taken {
            if local.is_good(out[at], order) {
                out[good] = out[at];
                good += 1;
            }
        }
        good
    }

    /// Takes free blocks from the free scanner's pageblocks, downwards, but none from the pageblock of `above` or below
    /// it. They are allocated then.
    fn places(
        &self,
        zone: &Zone<P>,
        scanners: &mut Scanners,
        above: Pfn,
        order: Order,
        out: &mut [Pfn],
        events: &NodeWords<P>,
    ) -> usize {
        while above.block_start(PAGEBLOCK_ORDER) < scanners.high {
            let info = self.allocator.frames.info(scanners.high);
            // A pageblock without memory has another type.
            if matches!(info.migratetype(), Migratetype::Movable | Migratetype::Cma) {
                let section = zone.cut.number_of(scanners.high);
                let kind = (order, Migratetype::Movable);
                let taken = self.take_places((zone, section), kind, out, |buddy, out| {
                    buddy.take_from_pageblock(scanners.high, order, out)
                });
                count(&events.compact_free_scanned, PAGEBLOCK_PAGES);
                count(&events.compact_isolated, (taken as u64) << order.get());
                if taken > 0 {
                    return taken;
                }
            }
            scanners.high = Pfn(scanners.high.0.saturating_sub(PAGEBLOCK_PAGES));
        }
        0
    }
}
