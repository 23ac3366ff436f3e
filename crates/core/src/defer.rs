//! Memory whose initialisation is left for later: what it is, and who has claimed which part of it.
//!
//! The unit of work is a max-order block of frames: 1024, from a multiple of 1024 on. Merging never looks past
//! it, so the worker that has a unit has all descriptors that initialising it touches. Every unit that holds free memory
//! is claimed by exactly one worker, in two steps. A zone's cursor hands out chunks. A worker keeps its chunk in a
//! *slot*: one word that says from which unit to which, and how many of the first the worker is initialising. The worker
//! moves the start on when units are done. A CPU that needs memory at once takes units off the end, down to those. A
//! worker that stops leaves its slot to the next one.
//!
//! Each step is one compare-and-swap, so any number of workers and allocating CPUs may take them at once. Between the
//! two steps of a claim, a chunk is in no slot. The worker says so in its slot before it moves the cursor, and a CPU that
//! needs memory waits for it: the worker is two instructions away from telling. Linux lets no zone grow once the workers
//! have started; here that is as safe as before.
//!
//! # Who writes
//! A cursor: whoever claims. A slot: its worker, whoever takes from its end, whoever adopts it. What is left of
//! a zone: whoever has initialised a unit, with the zone lock held.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::frame;
use crate::platform::{Platform, Word};
use crate::policy::init::{self, Job, Split};
use crate::units::{MAX_ORDER, NodeId, PAGEBLOCK_PAGES, Pfn, ZoneId};
use crate::zone::ZoneSpec;

const UNIT_PAGES: u64 = MAX_ORDER.pages();

/// How initialisation is split and what it has to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// How a node's memory is cut into chunks.
    pub split: Split,
    /// Base pages in a section; a multiple of 1024.
    pub section: u64,
}

/// The memory of one zone that is not initialised yet, as [`Deferred::new`] is told.
#[derive(Clone, Debug)]
pub struct DeferredZone<'m> {
    /// The zone.
    pub spec: ZoneSpec,
    /// Base pages of memory, reserved ones included.
    pub present: u64,
    /// Its free ranges, all of them: ascending, disjoint, inside the zone.
    pub free: &'m [Range<Pfn>],
    /// From here on they are left for later. The start of a unit, or the zone's end.
    pub deferred_from: Pfn,
    /// CPUs that will initialise it: those of its node. 0 counts as 1.
    pub cpus: u64,
}

/// A zone of a [`Deferred`].
#[repr(C)]
pub struct ZoneCursor<'m, P: Platform> {
    /// Free base pages that are not initialised.
    left: P::Word,
    /// The first unit that nobody has claimed.
    cursor: P::Word,
    rest: DeferredZone<'m>,
}

impl<P: Platform> fmt::Debug for ZoneCursor<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneCursor").field("spec", &self.rest.spec).field("left", &self.left()).finish()
    }
}

impl<'m, P: Platform> ZoneCursor<'m, P> {
    fn new(rest: DeferredZone<'m>) -> Self {
        let end = rest.spec.end();
        let deferred = init::clipped(rest.free, rest.deferred_from..end);
        let left = deferred.map(|range| range.end.0 - range.start.0).sum();
        let first = (rest.deferred_from.0.min(end.0) - rest.spec.start.0).div_ceil(UNIT_PAGES);
        Self { left: P::Word::new(left), cursor: P::Word::new(first), rest }
    }

    /// What was said of the zone.
    #[must_use]
    pub const fn rest(&self) -> &DeferredZone<'m> {
        &self.rest
    }

    /// Free base pages that are not initialised yet. A racy read.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Acquire)
    }

    /// Where the cursor stands: no unit from here on has been claimed. A racy read.
    #[must_use]
    pub fn first_unclaimed(&self) -> Pfn {
        self.unit_start(self.cursor.load(Relaxed)).min(self.rest.spec.end())
    }

    /// Notes that so many pages are initialised. With the zone lock held.
    pub(crate) fn done(&self, pages: u64) {
        self.left.fetch_add(pages.wrapping_neg(), Release);
    }

    const fn unit_start(&self, unit: u64) -> Pfn {
        self.rest.spec.start.add(unit * UNIT_PAGES)
    }

    const fn unit_of(&self, pfn: Pfn) -> u64 {
        (pfn.0 - self.rest.spec.start.0) / UNIT_PAGES
    }

    /// The first unit from `unit` on that holds free memory. O(log ranges).
    fn next_unit(&self, unit: u64) -> Option<u64> {
        let from = self.unit_start(unit);
        let first = init::clipped(self.rest.free, from..self.rest.spec.end()).next()?.start;
        Some(self.unit_of(first))
    }

    /// Claims units from the cursor on: from the first that holds free memory to where `end_of` says, given that
    /// memory's first frame; at least one.
    fn claim(&self, mut end_of: impl FnMut(Pfn) -> Pfn) -> Option<Range<u64>> {
        // Acquire: a CPU that sees the cursor moved sees what the worker that moved it said in its slot.
        let mut at = self.cursor.load(Acquire);
        loop {
            let first = self.next_unit(at)?;
            let from = self.unit_start(first);
            let from = init::clipped(self.rest.free, from..self.rest.spec.end()).next()?.start;
            let end = end_of(from).min(self.rest.spec.end()).max(from.add(1));
            let end = self.unit_of(Pfn(end.0 - 1)) + 1;
            match self.cursor.compare_exchange(at, end, AcqRel, Acquire) {
                Ok(_) => return Some(first..end),
                Err(now) => at = now,
            }
        }
    }
}

/// Units that a worker has claimed and not initialised yet: what a slot holds, in one word.
///
/// `from | to << 20 | zone << 40 | held << 48 | busy << 49`. A zone has at most 2^18 units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    from: u64,
    to: u64,
    zone: ZoneId,
    /// Whether a worker has the slot.
    held: bool,
    /// Units from `from` on that it is at work on: nobody takes those.
    busy: u64,
}

impl Claim {
    const UNITS: u64 = (1 << 20) - 1;

    const fn pack(self) -> u64 {
        self.from | self.to << 20 | (self.zone.0 as u64) << 40 | (self.held as u64) << 48 | self.busy << 49
    }

    const fn unpack(word: u64) -> Self {
        Self {
            from: word & Self::UNITS,
            to: word >> 20 & Self::UNITS,
            zone: ZoneId((word >> 40) as u8),
            held: word >> 48 & 1 != 0,
            busy: word >> 49,
        }
    }

    const fn is_empty(self) -> bool {
        self.from >= self.to
    }

    /// What a worker's slot says while it moves a zone's cursor: units may be the worker's that the slot does not show.
    const fn about_to_claim(zone: ZoneId) -> Self {
        Self { from: 0, to: 0, zone, held: true, busy: 1 }
    }

    const fn is_about_to_claim(self) -> bool {
        self.is_empty() && self.busy > 0
    }
}

/// The caller's memory for a [`Deferred`].
#[derive(Debug)]
pub struct DeferredMemory<'m, P: Platform> {
    /// Room for one per zone.
    pub zones: &'m mut [MaybeUninit<ZoneCursor<'m, P>>],
    /// One per worker that may be at work at a time, all 0.
    pub slots: &'m [P::Word],
}

/// Everything that is left for later, and who does it.
pub struct Deferred<'m, P: Platform> {
    zones: &'m [ZoneCursor<'m, P>],
    slots: &'m [P::Word],
    how: How,
    /// 1 while allocations that fail may initialise memory themselves.
    growth: P::Word,
    /// Times that happened, and base pages it brought.
    grown: P::Word,
    grown_pages: P::Word,
    /// How far boot is: see `boot::late`.
    stage: P::Word,
    /// 1 if the rest is not initialised until it is needed.
    lazy: P::Word,
}

impl<P: Platform> fmt::Debug for Deferred<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("how", &self.how).field("zones", &self.zones).finish_non_exhaustive()
    }
}

/// What on-demand growth has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// Times an allocation found too little and initialised memory itself.
    pub times: u64,
    /// Base pages that brought.
    pub pages: u64,
}

impl<'m, P: Platform> Deferred<'m, P> {
    /// What `rest_of` says of each zone, in the order of the allocator's zones. O(ranges).
    ///
    /// # Panics
    /// `memory` has no room for as many zones as there are, more than 255; or a section is no multiple of 1024
    /// pages.
    pub fn new(
        how: How,
        memory: DeferredMemory<'m, P>,
        mut rest_of: impl FnMut(ZoneId) -> DeferredZone<'m>,
    ) -> Self {
        assert!(memory.zones.len() <= 255, "an allocator has at most 255 zones");
        assert!(how.section > 0 && how.section.is_multiple_of(UNIT_PAGES), "sections hold whole units");
        Self {
            zones: frame::fill(memory.zones, |n| ZoneCursor::new(rest_of(ZoneId(n as u8)))),
            slots: memory.slots,
            how,
            growth: P::Word::new(1),
            grown: P::Word::new(0),
            grown_pages: P::Word::new(0),
            stage: P::Word::new(0),
            lazy: P::Word::new(0),
        }
    }

    /// The zones, as in the allocator.
    #[must_use]
    pub const fn zones(&self) -> &'m [ZoneCursor<'m, P>] {
        self.zones
    }

    /// How it is split.
    #[must_use]
    pub const fn how(&self) -> How {
        self.how
    }

    /// Free base pages that are not initialised yet, in all zones. A racy sum.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.zones.iter().map(ZoneCursor::left).sum()
    }

    /// What on-demand growth has done.
    #[must_use]
    pub fn growth(&self) -> Growth {
        Growth { times: self.grown.load(Relaxed), pages: self.grown_pages.load(Relaxed) }
    }

    /// Whether allocations that fail may initialise memory.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.growth.load(Relaxed) != 0
    }

    /// Whether what is left stays so until it is needed.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.lazy.load(Relaxed) != 0
    }

    pub(crate) fn stay_lazy(&self) {
        self.lazy.store(1, Relaxed);
    }

    pub(crate) fn end_growth(&self) {
        self.growth.store(0, Relaxed);
    }

    pub(crate) fn count_growth(&self, pages: u64) {
        self.grown.fetch_add(1, Relaxed);
        self.grown_pages.fetch_add(pages, Relaxed);
    }

    /// Whether the pageblock at `block` may hold memory that is left to be initialised: boot has handed over some of
    /// it, and its zone is not done. O(zones + log ranges).
    pub(crate) fn has_free(&self, block: Pfn) -> bool {
        let rest = self.zones.iter().find(|rest| rest.rest.spec.spans(block));
        let within = block..block.add(PAGEBLOCK_PAGES);
        rest.is_some_and(|rest| rest.left() > 0 && init::clipped(rest.rest.free, within).next().is_some())
    }

    /// Goes from one stage to the next; `false` if it is not at `from`.
    pub(crate) fn advance(&self, from: u64) -> bool {
        self.stage.compare_exchange(from, from + 1, AcqRel, Acquire).is_ok()
    }

    /// Claims about a section of a zone for whoever needs memory now: from the cursor, or else off the end of what
    /// a worker has claimed. `None` if every unit is done or being done. O(log ranges + slots).
    pub(crate) fn take(&self, zone: ZoneId) -> Option<Range<Pfn>> {
        let rest = &self.zones[zone.index()];
        let section = self.how.section;
        let units = rest
            .claim(|from| Pfn((from.0 + 1).next_multiple_of(section)))
            .or_else(|| self.take_from_workers(zone))?;
        Some(rest.unit_start(units.start)..rest.unit_start(units.end).min(rest.rest.spec.end()))
    }

    /// Takes units off the end of what some worker has claimed. Waits for workers that are claiming right now.
    fn take_from_workers(&self, zone: ZoneId) -> Option<Range<u64>> {
        loop {
            let mut claiming = false;
            for slot in self.slots {
                let claim = Claim::unpack(slot.load(Relaxed));
                claiming |= claim.zone == zone && claim.is_about_to_claim();
                if let Some(units) = self.take_from(slot, zone) {
                    return Some(units);
                }
            }
            if !claiming {
                return None;
            }
            P::relax();
        }
    }

    /// Takes up to a section off the end of a slot's claim, but nothing that its owner is at work on.
    fn take_from(&self, slot: &P::Word, zone: ZoneId) -> Option<Range<u64>> {
        let most = self.how.section / UNIT_PAGES;
        let mut word = slot.load(Relaxed);
        loop {
            let claim = Claim::unpack(word);
            let idle = claim.from + claim.busy;
            if claim.zone != zone || claim.to <= idle {
                return None;
            }
            let to = claim.to.saturating_sub(most).max(idle);
            // Acquire: a worker that panicked may have begun with these units.
            match slot.compare_exchange(word, Claim { to, ..claim }.pack(), Acquire, Relaxed) {
                Ok(_) => return Some(to..claim.to),
                Err(now) => word = now,
            }
        }
    }

    /// Takes a slot that no worker has, for a worker on `node`: one with work left there, or an empty one, or one with
    /// work left on another node, which is then done first. `None` if workers have all slots.
    pub(crate) fn hold(&'m self, node: NodeId) -> Option<Turn<'m, P>> {
        let any = |wanted: fn(Claim) -> bool| self.slots.iter().find_map(|slot| self.try_hold(slot, wanted));
        self.adopt(node).or_else(|| any(Claim::is_empty)).or_else(|| any(|_| true))
    }

    /// Takes a slot with work of `node` whose worker has stopped.
    fn adopt(&'m self, node: NodeId) -> Option<Turn<'m, P>> {
        let left_behind =
            |claim: Claim| !claim.is_empty() && self.zones[claim.zone.index()].rest.spec.node == node;
        self.slots.iter().find_map(|slot| self.try_hold(slot, left_behind))
    }

    fn try_hold(&'m self, slot: &'m P::Word, wanted: impl Fn(Claim) -> bool) -> Option<Turn<'m, P>> {
        let mut word = slot.load(Relaxed);
        loop {
            let claim = Claim::unpack(word);
            if claim.held || !wanted(claim) {
                return None;
            }
            // What its last worker did happens before what the next one does.
            match slot.compare_exchange(word, Claim { held: true, ..claim }.pack(), Acquire, Relaxed) {
                Ok(_) => return Some(Turn { deferred: self, slot, jobs: None }),
                Err(now) => word = now,
            }
        }
    }
}

/// A worker's hold of a slot. It goes from unit to unit; dropped, it leaves the rest to others.
pub(crate) struct Turn<'m, P: Platform> {
    deferred: &'m Deferred<'m, P>,
    slot: &'m P::Word,
    /// The zone whose jobs it walks, and the job that the cursor was last seen in.
    jobs: Option<(ZoneId, Job)>,
}

impl<P: Platform> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        self.change(|claim| Claim { held: false, busy: 0, ..claim });
    }
}

impl<'m, P: Platform> Turn<'m, P> {
    /// Changes the slot's claim, whatever others take off its end meanwhile.
    fn change(&self, to: impl Fn(Claim) -> Claim) -> Claim {
        let mut word = self.slot.load(Relaxed);
        loop {
            let claim = to(Claim::unpack(word));
            match self.slot.compare_exchange(word, claim.pack(), Release, Relaxed) {
                Ok(_) => return claim,
                Err(now) => word = now,
            }
        }
    }

    /// The next units of a node to be initialised, at most `most`, which stay this worker's until
    /// [`done`](Self::done): from its claim, from a zone's cursor, or from what a worker has left behind. `None` if
    /// there is nothing to claim. O(log ranges); O(slots + zones) between claims.
    pub(crate) fn next(&mut self, node: NodeId, most: u64) -> Option<(ZoneId, Range<Pfn>)> {
        loop {
            let claim = Claim::unpack(self.slot.load(Relaxed));
            if claim.is_empty() {
                self.refill(node)?;
                continue;
            }
            let rest = &self.deferred.zones[claim.zone.index()];
            // Units without free memory are passed over; what is left then may be nothing.
            let unit = rest.next_unit(claim.from).unwrap_or(claim.to);
            let claim = self.change(|claim| {
                let from = unit.min(claim.to);
                Claim { from, busy: most.min(claim.to - from), ..claim }
            });
            if !claim.is_empty() {
                let end = rest.unit_start(unit + claim.busy).min(rest.rest.spec.end());
                return Some((claim.zone, rest.unit_start(unit)..end));
            }
        }
    }

    /// The first so many of the units that [`next`](Self::next) returned are initialised.
    pub(crate) fn done(&self, units: u64) {
        self.change(|claim| Claim { from: claim.from + units, busy: claim.busy - units, ..claim });
    }

    /// Puts a chunk into the empty slot, or changes to another slot that has one.
    fn refill(&mut self, node: NodeId) -> Option<()> {
        let deferred = self.deferred;
        for (n, rest) in deferred.zones.iter().enumerate().filter(|(_, rest)| rest.rest.spec.node == node) {
            let zone = ZoneId(n as u8);
            // The slot is empty, so no CPU takes anything off it, and this worker alone writes it.
            self.slot.store(Claim::about_to_claim(zone).pack(), Release);
            let chunk = rest.claim(|from| self.chunk_end(zone, rest, from));
            let units = chunk.clone().unwrap_or(0..0);
            let claim = Claim { from: units.start, to: units.end, zone, held: true, busy: 0 };
            self.slot.store(claim.pack(), Release);
            if chunk.is_some() {
                return Some(());
            }
        }
        let other = deferred.adopt(node)?;
        // The old slot goes back as `other` is dropped in our place.
        let mut other = other;
        core::mem::swap(&mut self.slot, &mut other.slot);
        Some(())
    }

    /// Where the chunk ends that begins with the free frame `from`.
    fn chunk_end(&mut self, zone: ZoneId, rest: &ZoneCursor<'m, P>, from: Pfn) -> Pfn {
        let how = self.deferred.how;
        let jobs_from = |at| init::jobs(rest.rest.free, at, how.split, rest.rest.cpus, how.section).next();
        let mut job = match self.jobs.take() {
            // The cursor only goes up: it is in this job, or behind it.
            Some((of, job)) if of == zone => Some(job),
            _ => jobs_from(rest.rest.deferred_from),
        };
        while let Some(passed) = job.as_ref().filter(|job| job.range.end <= from) {
            job = jobs_from(passed.range.end);
        }
        let end = job.as_ref().and_then(|job| job.claim(from)).map_or(from.add(1), |chunk| chunk.end);
        self.jobs = job.map(|job| (zone, job));
        end
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use core::sync::atomic::AtomicU64;
    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::platform::machine::{Machine, with_others};
    use crate::units::ZoneType;

    const ZONES: [ZoneId; 2] = [ZoneId(0), ZoneId(1)];
    /// Two units.
    const SECTION: u64 = 2 * UNIT_PAGES;

    /// Two zones of eight units each, all free and left for later, and two slots.
    fn deferred() -> Deferred<'static, Machine> {
        of_units([8, 8], Split::OneThread)
    }

    /// Two zones of so many units, of one node each.
    fn of_units(units: [u64; 2], split: Split) -> Deferred<'static, Machine> {
        let specs: Vec<_> = [(0, 0, units[0]), (1, units[0], units[1])]
            .map(|(node, first, units)| ZoneSpec {
                node: NodeId(node),
                kind: ZoneType::Normal,
                start: Pfn(first * UNIT_PAGES),
                pages: units * UNIT_PAGES,
            })
            .into();
        let zones = Box::leak(Box::new([const { MaybeUninit::uninit() }; 2]));
        let slots: &'static [AtomicU64] = Box::leak(Box::new([AtomicU64::new(0), AtomicU64::new(0)]));
        let how = How { split, section: SECTION };
        Deferred::new(how, DeferredMemory { zones, slots }, |zone| {
            let spec = specs[zone.index()];
            let free = Box::leak(Box::new([spec.start..spec.end()]));
            DeferredZone { spec, present: spec.pages, free, deferred_from: spec.start, cpus: 4 }
        })
    }

    fn units(range: Range<u64>) -> Range<Pfn> {
        Pfn(range.start * UNIT_PAGES)..Pfn(range.end * UNIT_PAGES)
    }

    #[test]
    fn claims_are_packed_without_loss() {
        for (held, busy) in [(false, 0), (true, 3), (true, 0x7fff), (false, 1)] {
            let claim = Claim { from: 5, to: Claim::UNITS, zone: ZoneId(200), held, busy };
            assert_eq!(Claim::unpack(claim.pack()), claim);
            assert!(!claim.is_about_to_claim() && !claim.is_empty());
            let empty = Claim { to: 5, ..claim };
            assert!(empty.is_empty());
            assert_eq!(empty.is_about_to_claim(), busy > 0);
        }
        assert!(Claim::about_to_claim(ZONES[1]).is_about_to_claim());
    }

    /// A section off the end of a claim, but nothing that its worker is at work on.
    #[test]
    fn units_are_taken_off_the_end() {
        let deferred = deferred();
        let slot = &deferred.slots[0];
        let claim = Claim { from: 1, to: 8, zone: ZONES[0], held: true, busy: 2 };
        slot.store(claim.pack(), Relaxed);
        assert_eq!(deferred.take_from(slot, ZONES[1]), None, "another zone's");
        assert_eq!(deferred.take_from(slot, ZONES[0]), Some(6..8));
        assert_eq!(deferred.take_from(slot, ZONES[0]), Some(4..6));
        assert_eq!(deferred.take_from(slot, ZONES[0]), Some(3..4));
        assert_eq!(deferred.take_from(slot, ZONES[0]), None);
        assert_eq!(Claim::unpack(slot.load(Relaxed)), Claim { to: 3, ..claim });
    }

    /// A CPU that needs memory waits for a worker that has moved the cursor and not said where to; not for one that claims
    /// in another zone.
    #[test]
    fn a_worker_that_is_claiming_is_waited_for() {
        let deferred: &'static _ = Box::leak(Box::new(deferred()));
        let slot = &deferred.slots[0];
        slot.store(Claim::about_to_claim(ZONES[0]).pack(), Relaxed);
        let claim = Claim { from: 0, to: 3, zone: ZONES[0], held: true, busy: 0 };
        let says = move |n: u32| {
            if n == 2 {
                slot.store(claim.pack(), Release);
            }
        };
        let (taken, waits, _) = with_others(says, || deferred.take_from_workers(ZONES[0]));
        assert_eq!((taken, waits), (Some(1..3), 2));
        slot.store(Claim::about_to_claim(ZONES[0]).pack(), Relaxed);
        assert_eq!(deferred.take_from_workers(ZONES[1]), None);
    }

    /// What a worker leaves in the middle of its work is taken by whoever needs it.
    #[test]
    fn who_stops_is_at_work_on_nothing() {
        let deferred: &'static _ = Box::leak(Box::new(deferred()));
        let mut turn = deferred.hold(NodeId(0)).expect("there is a slot");
        assert_eq!(turn.next(NodeId(0), 8), Some((ZONES[0], units(0..8))));
        turn.done(1);
        assert_eq!(deferred.take_from_workers(ZONES[0]), None, "it is at work on them");
        drop(turn);
        assert_eq!(deferred.take_from_workers(ZONES[0]), Some(6..8));
        let mut next = deferred.hold(NodeId(0)).expect("the slot is free again");
        assert_eq!(next.next(NodeId(0), 2), Some((ZONES[0], units(1..3))));
    }

    /// A worker takes over what one of its node has left, not what another node's has, as long as there is an empty slot.
    #[test]
    fn work_is_taken_over_on_its_node() {
        let deferred: &'static _ = Box::leak(Box::new(deferred()));
        let mut first = deferred.hold(NodeId(0)).expect("there is a slot");
        assert_eq!(first.next(NodeId(0), 2), Some((ZONES[0], units(0..2))));
        drop(first);
        let mut other = deferred.hold(NodeId(1)).expect("there is an empty slot");
        assert_eq!(other.next(NodeId(1), 8), Some((ZONES[1], units(8..16))));
        let mut next = deferred.hold(NodeId(0)).expect("that slot is free again");
        assert_eq!(next.next(NodeId(0), 8), Some((ZONES[0], units(0..8))));
    }

    /// A worker's chunks of a zone are the same whatever it did before.
    #[test]
    fn chunks_follow_from_the_zone_alone() {
        for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
            for (units, first) in [([64, 16], 1), ([64, 16], 0), ([16, 64], 1), ([16, 64], 0)] {
                let chunks = |nodes: &[u16]| -> Vec<_> {
                    let deferred: &'static _ = Box::leak(Box::new(of_units(units, split)));
                    let mut turn = deferred.hold(NodeId(0)).expect("there is a slot");
                    let mut chunk = |&node: &u16| {
                        let (zone, units) = turn.next(NodeId(node), 1024)?;
                        turn.done((units.end.0 - units.start.0) / UNIT_PAGES);
                        Some((zone, units))
                    };
                    nodes.iter().filter_map(&mut chunk).collect()
                };
                let (node, other) = (first, 1 - first);
                let alone = [chunks(&[node; 3]), chunks(&[other; 3])];
                let both = chunks(&[node, other, node, other, node, other]);
                for (n, alone) in alone.iter().enumerate() {
                    let of_node: Vec<_> = both.iter().skip(n).step_by(2).cloned().collect();
                    let len = alone.len().min(of_node.len());
                    assert_eq!(of_node[..len], alone[..len], "{split:?}, {units:?}");
                }
            }
        }
    }

    /// Growth takes a section at a time from the cursor, and says whether a pageblock is still to come.
    #[test]
    fn growth_takes_sections() {
        let deferred = deferred();
        let block = deferred.zones[1].rest.spec.start;
        assert!(deferred.has_free(block) && !deferred.has_free(Pfn(16 * UNIT_PAGES)));
        for n in 0..4 {
            assert_eq!(deferred.take(ZONES[1]), Some(units(8 + 2 * n..10 + 2 * n)));
        }
        assert_eq!(deferred.take(ZONES[1]), None);
        deferred.zones[1].done(8 * UNIT_PAGES);
        assert!(!deferred.has_free(block), "all of its zone is initialised");
        assert!(deferred.has_free(Pfn(0)), "the other zone is as it was");
    }
}
