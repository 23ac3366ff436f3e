//! Compaction. With lists as in Linux: a migration scanner takes movable blocks from below, a free scanner takes free
//! blocks from above, until the two meet. With maps the emptiest pageblocks, or parts of them, are emptied.
//!
//! The migration scanner reads without the zone lock, so words may change while it reads. A block that it takes is only
//! a candidate; the owner's hook decides (see [`Migrate`]). The free scanner takes blocks under the lock.

mod empty;
mod round;

use super::Cpu;
use super::passes::Path;
use super::walk::free_of;
use crate::buddy::Buddy;
use crate::events::{NodeWords, count};
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::compact::{CLUSTER, Resume, is_suitable};
use crate::policy::passes::{Mark, Walk};
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
    const EMPTY: Self =
        Self { order: Order::ZERO, asked: Migratetype::Movable, from: [Pfn(0); CLUSTER], len: 0 };
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
    /// Compacts a whole zone (Linux: `compact_memory`): with maps empties each pageblock that can be emptied, into
    /// others that are at least as full. Requests that other CPUs drain their lists, and does not wait for them.
    /// O(frames), plus the time of the hook. With compact metadata nothing moves: it does not record which blocks are
    /// movable.
    ///
    /// # Panics
    /// If there is no such zone.
    pub fn compact(&self, zone: ZoneId, migrate: &dyn Migrate) -> Compacted {
        self.allocator.request_drain();
        self.compact_zone(&self.allocator.zones[zone.index()], migrate, None, || false)
    }

    /// Compacts the zones of a request one after another until one can serve it.
    pub(super) fn compact_for(&self, path: &Path<'_, 'm>) {
        let Some(migrate) = path.helpers.migrate else { return };
        let request = path.request;
        let events = &self.allocator.node(self.allocator.node_of(self.cpu)).events;
        count(&events.compact_stall, 1);
        self.allocator.drain_others(None, self.zones_of(path), None, false);
        let pass = Walk::plain(Mark::Min, request.migratetype == Migratetype::Movable);
        let room = request.order.pages() << u32::from(!self.frames.has_maps());
        for zone in self.zones_of(path).filter(|zone| request.allowed.has(zone.spec().node)) {
            let mut defer = zone.pressure.defer();
            let passes_over = defer.passes_over(request.order);
            zone.pressure.set_defer(defer);
            let reserve = || zone.reserve(request.highest_usable());
            if passes_over || !is_suitable(room, zone.marks().low, reserve(), free_of(zone)) {
                continue;
            }
            let done = || self.meets(zone, request, &pass) && self.has_block(zone, request);
            self.compact_zone(zone, migrate, Some(request), done);
            if done() {
                count(&events.compact_success, 1);
                zone.pressure.set_defer(zone.pressure.defer().succeeded(request.order));
                return;
            }
            zone.pressure.set_defer(zone.pressure.defer().failed(request.order));
        }
        count(&events.compact_fail, 1);
    }

    /// Whether a list of an ordinary type has a block that is large enough; with maps also a CMA one, if the request
    /// may take that.
    fn has_block(&self, zone: &Zone<P>, request: &Request<'_>) -> bool {
        let takes_cma = self.frames.has_maps() && request.migratetype == Migratetype::Movable;
        let lists = || Migratetype::ORDINARY.into_iter().chain(takes_cma.then_some(Migratetype::Cma));
        self.with_free_blocks(zone, |has_block| {
            request.order.and_above().any(|order| lists().any(|list| has_block(order, list)))
        })
    }

    /// Compacts a zone until `done`; with maps by emptying parts of it. Two scanners go from end to end, but for a
    /// request, where kernels keep that, they first continue where the last compaction for one stopped.
    fn compact_zone(
        &self,
        zone: &Zone<P>,
        migrate: &dyn Migrate,
        request: Option<&Request<'_>>,
        done: impl Fn() -> bool,
    ) -> Compacted {
        let Some(mut run) = Compaction::begin(self, zone, migrate) else { return Compacted::default() };
        if self.frames.has_maps() {
            run.empty_until(request, done);
            return run.total;
        }
        let resumes = request.is_some() && Resume::is_kept(self.allocator.config.experiment.reclaim);
        let resume = if resumes { zone.pressure.resume() } else { None };
        let resumed = resume.map(|resume| Scanners::resumed(zone.spec(), resume));
        for mut scanners in resumed.into_iter().chain([Scanners::new(zone.spec())]) {
            if run.compact_between(&mut scanners, resumes, &done) {
                break;
            }
        }
        run.total
    }

    /// Asks the hook to move a block to an allocated place, and frees the block that is left over. Returns whether the
    /// block moved.
    pub(super) fn move_block(&self, migrate: &dyn Migrate, from: Pfn, to: Pfn, order: Order) -> bool {
        let moved = has_moved(migrate, from, to, order);
        // If the hook answered wrongly, the block is free already: this free is refused and changes nothing.
        self.free(if moved { from } else { to }, order).is_ok() && moved
    }
}

/// A compaction of one zone by one CPU, which enters neither compaction nor reclaim again from within.
struct Compaction<'r, 'a, 'm, P: Platform, M: FrameUser> {
    cpu: &'r Cpu<'a, 'm, P, M>,
    zone: &'r Zone<'m, P>,
    migrate: &'r dyn Migrate,
    events: &'r NodeWords<P>,
    /// Blocks looked at so far.
    looks: u64,
    total: Compacted,
    /// With maps, the type that a request asks for; `None` if none does.
    asked: Option<Migratetype>,
    _here: Reclaiming<'m, P>,
}

impl<'r, 'a, 'm, P: Platform, M: FrameUser> Compaction<'r, 'a, 'm, P, M> {
    /// Drains this CPU's lists of the zone. `None` from inside a mover or a reclaimer, and with compact metadata: two
    /// bits a frame do not record which blocks are movable.
    fn begin(cpu: &'r Cpu<'a, 'm, P, M>, zone: &'r Zone<'m, P>, migrate: &'r dyn Migrate) -> Option<Self> {
        let _here = Reclaiming::enter(cpu.allocator.context(cpu.cpu)).filter(|_| !cpu.frames.is_compact())?;
        let events = &cpu.allocator.node(zone.spec().node).events;
        cpu.local(zone.id()).drain_all();
        Some(Self { cpu, zone, migrate, events, looks: 0, total: Compacted::default(), asked: None, _here })
    }

    /// Compacts the range between the scanners until `done`. Returns whether `done` held; then, with `resumes`, stores
    /// the scanners' positions for the next compaction.
    fn compact_between(&mut self, scanners: &mut Scanners, resumes: bool, done: &impl Fn() -> bool) -> bool {
        let zone = self.zone;
        while !scanners.have_met() {
            let before = scanners.low.block_start(PAGEBLOCK_ORDER);
            let batch = self.gather(scanners);
            let moved = self.move_batch(&batch, |_, next, out| self.places(scanners, next, batch.order, out));
            count(&self.events.pgmigrate_success, moved.moved);
            count(&self.events.pgmigrate_fail, moved.stayed);
            self.total += moved;
            // After each pageblock: the blocks freed in it can merge.
            if scanners.low.block_start(PAGEBLOCK_ORDER) != before {
                self.cpu.local(zone.id()).drain_all();
                if done() {
                    if resumes {
                        zone.pressure.set_resume(Some(scanners.resume(zone.spec())));
                    }
                    return true;
                }
            }
        }
        self.cpu.local(zone.id()).drain_all();
        if resumes {
            zone.pressure.set_resume(None);
        }
        false
    }

    /// The next movable blocks of one order in one pageblock, which are with callers and smaller than a pageblock.
    fn gather(&mut self, scanners: &mut Scanners) -> Batch {
        let end = scanners.low.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES);
        let info = self.cpu.frames.info(scanners.low);
        if !info.is_present() || info.migratetype() == Migratetype::Isolate {
            count(&self.events.compact_migrate_scanned, end.0 - scanners.low.0);
            scanners.low = end;
            return Batch::EMPTY;
        }
        self.next_batch(&mut scanners.low, end, |run, pfn, order, asked| {
            let info = run.cpu.frames.info(pfn);
            asked == Migratetype::Movable
                && order < PAGEBLOCK_ORDER
                && info.zone() == run.zone.id()
                && run.cpu.may_free(pfn, order, info)
                && run.migrate.can_move(pfn, order, asked)
        })
    }

    /// The next blocks of one order and type from `at` to `end` that can move. `at` is the first frame after them then.
    fn next_batch(
        &mut self,
        at: &mut Pfn,
        end: Pfn,
        can_move: impl Fn(&Self, Pfn, Order, Migratetype) -> bool,
    ) -> Batch {
        let (start, mut batch) = (*at, Batch::EMPTY);
        while *at < end && batch.len < CLUSTER {
            self.looks += 1;
            let (head, state) = self.cpu.frames.find(*at);
            if let State::Taken { order, asked, .. } = state
                && head == *at
                && can_move(self, head, order, asked)
            {
                if batch.len > 0 && (order, asked) != (batch.order, batch.asked) {
                    break;
                }
                (batch.order, batch.asked) = (order, asked);
                batch.from[batch.len] = head;
                batch.len += 1;
            }
            *at = head.add(state.pages()).max(at.add(1));
        }
        count(&self.events.compact_migrate_scanned, at.0 - start.0);
        count(&self.events.compact_isolated, (batch.len as u64) << batch.order.get());
        batch
    }

    /// Moves the blocks of a batch to allocated places, as long as `places` gives any for the block that is next. It
    /// gets also what was moved so far.
    fn move_batch(
        &self,
        batch: &Batch,
        mut places: impl FnMut(&Compacted, Pfn, &mut [Pfn]) -> usize,
    ) -> Compacted {
        let (mut result, mut from) = (Compacted::default(), &batch.from[..batch.len]);
        while let Some(&next) = from.first() {
            let mut to = [Pfn(0); CLUSTER];
            let taken = places(&result, next, &mut to[..from.len()]);
            if taken == 0 {
                break;
            }
            count(&self.events.compact_isolated, (taken as u64) << batch.order.get());
            let mut places = Places { cpu: self.cpu, order: batch.order, left: &to[..taken] };
            while let [new, rest @ ..] = places.left {
                let [old, after @ ..] = from else { break };
                // If the hook panics, this place stays with the owner that the hook left it to; the others are freed.
                (places.left, from) = (rest, after);
                let moved = self.cpu.move_block(self.migrate, *old, *new, batch.order);
                *(if moved { &mut result.moved } else { &mut result.stayed }) += batch.order.pages();
            }
        }
        result
    }

    /// Lets `take` take free blocks under the lock of a section. They are allocated then, with the order and type in
    /// `kind`. Bad ones are quarantined and left out. Returns the number of blocks at the front of `out`.
    fn take_places(
        &self,
        section: usize,
        (order, asked): (Order, Migratetype),
        out: &mut [Pfn],
        take: impl FnOnce(&mut Buddy<'_, 'm, P, M>, &mut [Pfn]) -> usize,
    ) -> usize {
        let waiter = self.cpu.allocator.waiter(Some(self.cpu.cpu));
        let take = |buddy: &mut Buddy<'_, 'm, P, M>| {
            let taken = take(buddy, out);
            for &pfn in &out[..taken] {
                self.cpu.frames.set_tiles(pfn..pfn.add(order.pages()), asked);
            }
            taken
        };
        let taken = self.zone.with_section(section, &self.cpu.frames, waiter, take).0;
        let local = self.cpu.local(self.zone.id());
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
    fn places(&self, scanners: &mut Scanners, above: Pfn, order: Order, out: &mut [Pfn]) -> usize {
        while above.block_start(PAGEBLOCK_ORDER) < scanners.high {
            let info = self.cpu.frames.info(scanners.high);
            // A pageblock without memory has another type.
            if matches!(info.migratetype(), Migratetype::Movable | Migratetype::Cma) {
                let section = self.zone.cut.number_of(scanners.high);
                let taken = self.take_places(section, (order, Migratetype::Movable), out, |buddy, out| {
                    buddy.take_from_pageblock(scanners.high, order, out)
                });
                count(&self.events.compact_free_scanned, PAGEBLOCK_PAGES);
                if taken > 0 {
                    return taken;
                }
            }
            scanners.high = Pfn(scanners.high.0.saturating_sub(PAGEBLOCK_PAGES));
        }
        0
    }
}
