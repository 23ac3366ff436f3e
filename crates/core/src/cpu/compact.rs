//! Compaction: movable frames go up, free blocks come down, until the two scanners meet.
//!
//! The migration scanner looks without the zone lock, and so at words that may change under it: what it takes
//! for a movable block is only a candidate, and the owner's hook has the last word (see
//! [`Migrate`]). The free scanner takes blocks under the lock.

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

/// What compaction did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Compacted {
    /// Base pages moved.
    pub moved: u64,
    /// Base pages that could not be moved when it came to it.
    pub stayed: u64,
}

impl core::ops::AddAssign for Compacted {
    fn add_assign(&mut self, other: Self) {
        self.moved += other.moved;
        self.stayed += other.stayed;
    }
}

/// Where the scanners are.
struct Scanners {
    /// The next frame of the migration scanner.
    low: Pfn,
    /// The pageblock of the free scanner, and everything above it is done.
    high: Pfn,
}

impl Scanners {
    fn new(spec: &ZoneSpec) -> Self {
        let last = Pfn(spec.end().0.saturating_sub(1)).block_start(PAGEBLOCK_ORDER);
        Self { low: spec.start, high: last }
    }

    /// Scanners that go on where others have stopped.
    fn resumed(spec: &ZoneSpec, resume: Resume) -> Self {
        let first = spec.start.block_start(PAGEBLOCK_ORDER);
        let at = |number: u32| first.add(u64::from(number) * PAGEBLOCK_PAGES);
        Self { low: at(resume.low).max(spec.start), high: at(resume.high).min(Self::new(spec).high) }
    }

    /// Where others may go on. The pageblock that the migration scanner is in the middle of is looked at again.
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

    /// Adds a block. All have the same order and type, and there are at most [`CLUSTER`].
    const fn push(&mut self, pfn: Pfn, order: Order, asked: Migratetype) {
        (self.order, self.asked) = (order, asked);
        self.from[self.len] = pfn;
        self.len += 1;
    }
}

/// Free blocks taken and not yet used. Given back when dropped, also when a panic passes.
struct Places<'s, 'a, 'm, P: Platform, M: FrameUser> {
    cpu: &'s Cpu<'a, 'm, P, M>,
    order: Order,
    left: &'s [Pfn],
}

impl<P: Platform, M: FrameUser> Drop for Places<'_, '_, '_, P, M> {
    fn drop(&mut self) {
        for &pfn in self.left {
            let freed = self.cpu.free(pfn, self.order);
            debug_assert!(freed.is_ok(), "a place that nobody used was not free to give back");
        }
    }
}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Compacts a zone from end to end (Linux: `compact_memory`). Blocks on other CPUs' lists are asked back
    /// and not waited for. O(frames), and what the hook takes.
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn compact(&self, zone: ZoneId, migrate: &dyn Migrate) -> Compacted {
        self.allocator.request_drain();
        self.compact_zone(&self.allocator.zones[zone.index()], migrate, false, || false)
    }

    /// Compacts the zones on a request's way until one can serve it.
    pub(super) fn compact_for(&self, path: &Path<'_, 'm>) {
        let Some(migrate) = path.helpers.migrate else { return };
        let request = path.request;
        let own = &self.allocator.nodes()[usize::from(self.allocator.node_of(self.cpu).0)].events;
        count(&own.compact_stall, 1);
        self.allocator.drain_others(None, self.zones_of(path), None, false);
        let access = Access { cma: request.migratetype == Migratetype::Movable, ..Access::default() };
        let pass = Walk { mark: Mark::Min, access, allowed_only: true };
        for zone in self.zones_of(path).filter(|zone| request.allowed.has(zone.spec().node)) {
            let mut defer = zone.pressure().defer();
            let passes_over = defer.passes_over(request.order);
            zone.pressure().set_defer(defer);
            if passes_over || !self.is_suitable(zone, request) {
                continue;
            }
            let done = || self.meets(zone, request, &pass).is_ok() && self.has_block(zone, request);
            self.compact_zone(zone, migrate, Resume::is_kept(self.allocator.config.experiment.reclaim), done);
            if done() {
                count(&own.compact_success, 1);
                zone.pressure().set_defer(zone.pressure().defer().succeeded(request.order));
                return;
            }
            zone.pressure().set_defer(zone.pressure().defer().failed(request.order));
        }
        count(&own.compact_fail, 1);
    }

    fn is_suitable(&self, zone: &Zone<P>, request: &Request<'_>) -> bool {
        let free = FreePages {
            all: zone.free_pages(),
            highatomic: zone.pressure().highatomic(),
            cma: zone.free_cma_pages(),
        };
        let reserve = zone.reserve(request.highest_usable());
        is_suitable(request.order, zone.marks().low, reserve, free).is_ok()
    }

    /// Whether an ordinary list has a block that is large enough.
    fn has_block(&self, zone: &Zone<P>, request: &Request<'_>) -> bool {
        let ordinary = || Migratetype::ALL.into_iter().filter(|list| list.is_ordinary());
        self.with_free_blocks(zone, |has| {
            request.order.and_above().any(|order| ordinary().any(|list| has(order, list)))
        })
    }

    /// Compacts a zone until `done`. `resumes`: from where the last compaction that resumes has stopped; and if that was not
    /// enough, from end to end.
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
        let resume = if resumes { zone.pressure().resume() } else { None };
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

    /// Compacts what lies between the scanners until `done`. Returns whether it was; keeps the place for one that
    /// `resumes`.
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
            // After each pageblock: what was freed in it can merge.
            if scanners.low.block_start(PAGEBLOCK_ORDER) != before {
                self.local(zone.id()).drain_all();
                if done() {
                    if resumes {
                        zone.pressure().set_resume(Some(scanners.resume(zone.spec())));
                    }
                    return true;
                }
            }
        }
        self.local(zone.id()).drain_all();
        if resumes {
            zone.pressure().set_resume(None);
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
            let pages = match state {
                State::Taken { order, asked, .. }
                    if head == at
                        && self.can_move(zone, at, order, asked)
                        && migrate.can_move(at, order, asked) =>
                {
                    if batch.len > 0 && order != batch.order {
                        break;
                    }
                    batch.push(at, order, asked);
                    order.pages()
                }
                State::Free { order, .. } | State::Taken { order, .. } | State::Quarantined { order } => {
                    order.pages()
                }
                State::Body | State::Reserved => 1,
            };
            scanners.low = head.add(pages).max(at.add(1));
        }
        if skip {
            scanners.low = end;
        }
        count(&events.compact_migrate_scanned, scanners.low.0 - start.0);
        count(&events.compact_isolated, (batch.len as u64) << batch.order.get());
        batch
    }

    /// Whether a block is somebody's, movable, and smaller than what compaction makes.
    fn can_move(&self, zone: &Zone<P>, pfn: Pfn, order: Order, asked: Migratetype) -> bool {
        let info = self.allocator.frames.info(pfn);
        asked == Migratetype::Movable
            && order < PAGEBLOCK_ORDER
            && info.zone() == zone.id()
            && self.may_free(pfn, order, info)
    }

    /// Moves a batch as far as there are places above it.
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

    /// Has each of these blocks moved to a place. There are as many places.
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
            // If the hook panics, this place stays with whoever it left it to; the rest goes back.
            places.left = rest;
            let moved = has_moved(migrate, old, *new, order);
            // A hook that lied has freed it already: the free is refused and changes nothing.
            let freed = self.free(if moved { old } else { *new }, order).is_ok();
            if moved && freed { result.moved += order.pages() } else { result.stayed += order.pages() }
        }
        result
    }

    /// Takes free blocks as `take` says, with the lock of a section. They are allocated then, for what was asked for as `of` says; bad
    /// ones are left out and quarantined.
    fn take_places(
        &self,
        (zone, section): (&Zone<P>, usize),
        of: (Order, Migratetype),
        out: &mut [Pfn],
        take: impl FnOnce(&mut crate::buddy::Buddy<'_, 'm, P, M>, &mut [Pfn]) -> usize,
    ) -> usize {
        let waiter = self.allocator.waiter(Some(self.cpu));
        let (order, asked) = of;
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

    /// Takes free blocks from the free scanner's pageblocks, downwards, but none from the pageblock of `above`
    /// or below it. They are allocated then.
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
            // One without memory has another type.
            if matches!(info.migratetype(), Migratetype::Movable | Migratetype::Cma) {
                let section = zone.cut().number_of(scanners.high);
                let of = (order, Migratetype::Movable);
                let taken = self.take_places((zone, section), of, out, |buddy, out| {
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
