//! Memory whose initialisation is left for later, and the claims of the CPUs that initialise it.
//!
//! The unit of work is a max-order block of frames: 1024, from a multiple of 1024 on. A merge never leaves the unit, so
//! the worker that has a unit has all descriptors that its initialisation touches. Exactly one CPU claims each unit
//! that holds free memory. A claim has two steps. A zone's cursor hands out chunks. A worker keeps its chunk in a
//! *slot*: one word with the chunk's first and last unit, and the number of units at its start that the worker is
//! initialising. The worker moves the start when units are done. A CPU that needs memory immediately takes units from
//! the end, but none that is being initialised. A worker that stops leaves its slot to the next one.
//!
//! Each step is one compare-and-swap, so any number of workers and allocating CPUs may make them at the same time.
//! Between the two steps of a claim, a chunk is in no slot. The worker therefore marks its slot before it moves the
//! cursor, and a CPU that needs memory waits for it; the worker writes its slot two instructions later. Linux lets no
//! zone grow once the workers have started; here a zone may grow at any time.
//!
//! # Who writes
//! A cursor: any CPU that claims. A slot: its worker, a CPU that takes from its end, and a worker that adopts it. The
//! count of pages left in a zone: the CPU that has initialised a unit, with the zone lock held.

use core::fmt;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::frame;
use crate::platform::{Platform, Word, update};
use crate::policy::init::{self, Job, Split};
use crate::units::{MAX_ORDER, NodeId, Pfn, ZoneId};
use crate::zone::ZoneSpec;

const UNIT_PAGES: u64 = MAX_ORDER.pages();

/// How initialisation is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct How {
    /// Division of a node's memory into chunks.
    pub split: Split,
    /// Base pages in a section; a multiple of 1024.
    pub section: u64,
}

/// The memory of one zone that is not initialised yet: input of [`Deferred::new`].
#[derive(Clone, Debug)]
pub struct DeferredZone<'m> {
    /// The zone.
    pub spec: ZoneSpec,
    /// Base pages of memory, reserved ones included.
    pub present: u64,
    /// All free ranges, sorted and disjoint, cut where the zone ends. Those of other zones may be among them.
    pub free: &'m [Range<Pfn>],
    /// First frame that is left for later. The start of a unit, or the zone's end.
    pub deferred_from: Pfn,
    /// CPUs that will initialise the zone: those of its node. 0 counts as 1.
    pub cpus: u64,
}

/// A zone of a [`Deferred`].
#[repr(C)]
pub struct ZoneCursor<'m, P: Platform> {
    /// Free base pages that are not initialised.
    left: P::Word,
    /// The first unit that no CPU has claimed.
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
        let (from, end) = (rest.deferred_from, rest.spec.end());
        // Else the unit would be boot's and no worker's.
        let is_border = from == end || rest.spec.spans(from) && from.is_aligned(MAX_ORDER);
        assert!(is_border, "memory is left for later from the start of a unit on: {:?}", rest.spec);
        let left = init::clipped(rest.free, from..end).map(|range| range.end.0 - range.start.0).sum();
        let first = (from.0 - rest.spec.start.0).div_ceil(UNIT_PAGES);
        Self { left: P::Word::new(left), cursor: P::Word::new(first), rest }
    }

    /// The zone's memory as given to [`Deferred::new`].
    #[must_use]
    pub const fn rest(&self) -> &DeferredZone<'m> {
        &self.rest
    }

    /// Free base pages that are not initialised yet. A racy read.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Acquire)
    }

    /// Position of the cursor: no unit from here on has been claimed. A racy read.
    #[must_use]
    pub fn first_unclaimed(&self) -> Pfn {
        self.unit_start(self.cursor.load(Relaxed)).min(self.rest.spec.end())
    }

    /// Records that `pages` more pages are initialised. With the zone lock held.
    pub(crate) fn done(&self, pages: u64) {
        self.left.fetch_add(pages.wrapping_neg(), Release);
    }

    const fn unit_start(&self, unit: u64) -> Pfn {
        self.rest.spec.start.add(unit * UNIT_PAGES)
    }

    const fn unit_of(&self, pfn: Pfn) -> u64 {
        (pfn.0 - self.rest.spec.start.0) / UNIT_PAGES
    }

    /// The first free frame from `unit` on. O(log ranges).
    fn next_free(&self, unit: u64) -> Option<Pfn> {
        Some(init::clipped(self.rest.free, self.unit_start(unit)..self.rest.spec.end()).next()?.start)
    }

    /// Claims units from the cursor on: from the first that holds free memory, at least one. `end_of` gets the first
    /// frame of that memory and returns the end of the chunk.
    fn claim(&self, mut end_of: impl FnMut(Pfn) -> Pfn) -> Option<Range<u64>> {
        // Acquire: a CPU that sees the cursor moved sees the mark that the worker put into its slot before.
        let mut at = self.cursor.load(Acquire);
        loop {
            let from = self.next_free(at)?;
            let end = end_of(from).min(self.rest.spec.end()).max(from.add(1));
            let end = self.unit_of(Pfn(end.0 - 1)) + 1;
            match self.cursor.compare_exchange(at, end, AcqRel, Acquire) {
                Ok(_) => return Some(self.unit_of(from)..end),
                Err(now) => at = now,
            }
        }
    }
}

/// Units that a worker has claimed and not initialised yet: the content of a slot, in one word.
///
/// `from | to << 20 | zone << 40 | held << 48 | busy << 49`. A zone has at most 2^18 units.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Claim {
    from: u64,
    to: u64,
    zone: ZoneId,
    /// Whether a worker has the slot.
    held: bool,
    /// Units from `from` on that the worker is initialising: no CPU takes these.
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

    /// Content of a worker's slot while it moves a zone's cursor: it may have units that the slot does not show yet.
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
    /// One word for each worker that may work at the same time, all 0.
    pub slots: &'m [P::Word],
}

/// All memory that is left for later, and the slots of its workers.
pub struct Deferred<'m, P: Platform> {
    zones: &'m [ZoneCursor<'m, P>],
    slots: &'m [P::Word],
    how: How,
    /// Number of initialisations by allocations that found too little, and their base pages.
    grown: P::Word,
    grown_pages: P::Word,
    /// The [`Stage`] of boot.
    stage: P::Word,
}

/// Stage of boot, in this order; one of the last two ends it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    New,
    Begun,
    /// All memory is initialised.
    Finished,
    /// The rest is not initialised until it is needed.
    Lazy,
}

impl<P: Platform> fmt::Debug for Deferred<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred").field("how", &self.how).field("zones", &self.zones).finish_non_exhaustive()
    }
}

/// Count of on-demand growth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Growth {
    /// Allocations that found too little and initialised memory themselves.
    pub times: u64,
    /// Base pages that they initialised.
    pub pages: u64,
}

impl<'m, P: Platform> Deferred<'m, P> {
    /// Makes the deferral. `rest_of` gives the deferred memory of each zone, in the order of the allocator's zones.
    /// O(ranges).
    ///
    /// # Panics
    /// If there are more than 255 zones, a section is no multiple of 1024 pages, or a zone's rest begins within a unit.
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
            grown: P::Word::new(0),
            grown_pages: P::Word::new(0),
            stage: P::Word::new(Stage::New as u64),
        }
    }

    /// The zones, as in the allocator.
    #[must_use]
    pub const fn zones(&self) -> &'m [ZoneCursor<'m, P>] {
        self.zones
    }

    /// The division of the work.
    #[must_use]
    pub const fn how(&self) -> How {
        self.how
    }

    /// Free base pages that are not initialised yet, in all zones. A racy sum.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.zones.iter().map(ZoneCursor::left).sum()
    }

    /// Count of on-demand growth until now.
    #[must_use]
    pub fn growth(&self) -> Growth {
        Growth { times: self.grown.load(Relaxed), pages: self.grown_pages.load(Relaxed) }
    }

    /// Whether allocations that fail may initialise memory.
    #[must_use]
    pub fn may_grow(&self) -> bool {
        self.stage.load(Relaxed) != Stage::Finished as u64
    }

    /// Whether the rest is initialised only when it is needed.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.stage.load(Relaxed) == Stage::Lazy as u64
    }

    pub(crate) fn count_growth(&self, pages: u64) {
        self.grown.fetch_add(1, Relaxed);
        self.grown_pages.fetch_add(pages, Relaxed);
    }

    /// Whether frames that are not present, all in one zone, may be left to be initialised: boot has handed over some
    /// of them, and their zone is not done. O(zones + log ranges).
    pub(crate) fn has_free(&self, within: Range<Pfn>) -> bool {
        let rest = self.zones.iter().find(|rest| rest.rest.spec.spans(within.start));
        rest.is_some_and(|rest| rest.left() > 0 && init::clipped(rest.rest.free, within).next().is_some())
    }

    /// Moves from one stage to another. `false` if the stage is not `from`.
    pub(crate) fn advance(&self, from: Stage, to: Stage) -> bool {
        self.stage.compare_exchange(from as u64, to as u64, AcqRel, Acquire).is_ok()
    }

    /// Claims about a section of a zone for a CPU that needs memory now: from the cursor, or else from the end of a
    /// worker's claim. `None` if every unit is done or being initialised. O(log ranges + slots).
    pub(crate) fn take(&self, zone: ZoneId) -> Option<Range<Pfn>> {
        let rest = &self.zones[zone.index()];
        let section = self.how.section;
        let units = rest
            .claim(|from| Pfn((from.0 + 1).next_multiple_of(section)))
            .or_else(|| self.take_from_workers(zone))?;
        Some(rest.unit_start(units.start)..rest.unit_start(units.end).min(rest.rest.spec.end()))
    }

    /// Takes units from the end of a worker's claim. Waits for workers that are moving the cursor.
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

    /// Takes up to a section from the end of a slot's claim, but no unit that its worker is initialising.
    fn take_from(&self, slot: &P::Word, zone: ZoneId) -> Option<Range<u64>> {
        let most = self.how.section / UNIT_PAGES;
        let left_to = |claim: Claim| claim.to.saturating_sub(most).max(claim.from + claim.busy);
        // Acquire: a worker that panicked may have started on these units.
        let word = update(slot, Acquire, |word| {
            let claim = Claim::unpack(word);
            let is_idle = claim.zone == zone && claim.to > claim.from + claim.busy;
            is_idle.then(|| Claim { to: left_to(claim), ..claim }.pack())
        });
        word.map(Claim::unpack).map(|claim| left_to(claim)..claim.to)
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
        // All actions of its last worker happen before those of the next one.
        update(slot, Acquire, |word| {
            let claim = Claim::unpack(word);
            (!claim.held && wanted(claim)).then(|| Claim { held: true, ..claim }.pack())
        })?;
        Some(Turn { deferred: self, slot, jobs: None })
    }
}

/// A worker's hold of a slot. The worker goes from unit to unit; a drop leaves the rest to other workers.
pub(crate) struct Turn<'m, P: Platform> {
    deferred: &'m Deferred<'m, P>,
    slot: &'m P::Word,
    /// The zone whose jobs the worker goes through, and the job in which the cursor was last.
    jobs: Option<(ZoneId, Job)>,
}

impl<P: Platform> Drop for Turn<'_, P> {
    fn drop(&mut self) {
        self.change(|claim| Claim { held: false, busy: 0, ..claim });
    }
}

impl<'m, P: Platform> Turn<'m, P> {
    /// Changes the slot's claim, also if CPUs take units from its end at the same time.
    fn change(&self, to: impl Fn(Claim) -> Claim) -> Claim {
        let word = update(self.slot, Release, |word| Some(to(Claim::unpack(word)).pack()));
        to(Claim::unpack(word.expect("every claim changes")))
    }

    /// The next units of a node to initialise, at most `most`, which stay this worker's until [`done`](Self::done):
    /// from its claim, from a zone's cursor, or from the claim of a worker that has stopped. `None` if there is nothing
    /// to claim. O(log ranges); O(slots + zones) between claims.
    pub(crate) fn next(&mut self, node: NodeId, most: u64) -> Option<(ZoneId, Range<Pfn>)> {
        loop {
            let claim = Claim::unpack(self.slot.load(Relaxed));
            if claim.is_empty() {
                self.refill(node)?;
                continue;
            }
            let rest = &self.deferred.zones[claim.zone.index()];
            // Units without free memory are skipped; then none may be left.
            let unit = rest.next_free(claim.from).map_or(claim.to, |free| rest.unit_of(free));
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

    /// The first `units` units that [`next`](Self::next) returned are initialised.
    pub(crate) fn done(&self, units: u64) {
        self.change(|claim| Claim { from: claim.from + units, busy: claim.busy - units, ..claim });
    }

    /// Puts a chunk into the empty slot, or takes another slot that has one.
    fn refill(&mut self, node: NodeId) -> Option<()> {
        let deferred = self.deferred;
        for (n, rest) in deferred.zones.iter().enumerate().filter(|(_, rest)| rest.rest.spec.node == node) {
            let zone = ZoneId(n as u8);
            // The slot is empty, so no CPU takes units from it, and only this worker writes it.
            self.slot.store(Claim::about_to_claim(zone).pack(), Release);
            let chunk = rest.claim(|from| self.chunk_end(zone, rest, from));
            let units = chunk.clone().unwrap_or(0..0);
            let claim = Claim { from: units.start, to: units.end, zone, held: true, busy: 0 };
            self.slot.store(claim.pack(), Release);
            if chunk.is_some() {
                return Some(());
            }
        }
        // The old slot is left when `adopted`, which holds it after the swap, is dropped.
        let mut adopted = deferred.adopt(node)?;
        core::mem::swap(&mut self.slot, &mut adopted.slot);
        Some(())
    }

    /// End of the chunk that begins with the free frame `from`.
    fn chunk_end(&mut self, zone: ZoneId, rest: &ZoneCursor<'m, P>, from: Pfn) -> Pfn {
        let how = self.deferred.how;
        let jobs_from = |at| init::jobs(rest.rest.free, at, how.split, rest.rest.cpus, how.section).next();
        let mut job = match self.jobs.take() {
            // The cursor only goes up: it is in this job, or after it.
            Some((walked, job)) if walked == zone => Some(job),
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

    /// Two zones with these numbers of units, of one node each, all free.
    fn of_units(units: [u64; 2], split: Split) -> Deferred<'static, Machine> {
        with_free(units, split, |spec| std::vec![spec.start..spec.end()])
    }

    /// Two zones with these numbers of units, of one node each, with free memory in places.
    fn with_free(
        units: [u64; 2],
        split: Split,
        free: impl Fn(&ZoneSpec) -> Vec<Range<Pfn>>,
    ) -> Deferred<'static, Machine> {
        let specs: Vec<_> = [(0, 0, units[0]), (1, units[0], units[1])]
            .map(|(node, first, units)| ZoneSpec {
                node: NodeId(node),
                kind: ZoneType::Normal,
                start: Pfn(first * UNIT_PAGES),
                pages: units * UNIT_PAGES,
            })
            .into();
        let zones = Box::leak(Box::new([const { MaybeUninit::uninit() }; 2]));
        let slots = Box::leak(Box::new([0, 0].map(<Machine as Platform>::Word::new)));
        let how = How { split, section: SECTION };
        Deferred::new(how, DeferredMemory { zones, slots }, |zone| {
            let spec = specs[zone.index()];
            let free = free(&spec).leak();
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

    /// A section from the end of a claim, but no unit that its worker is initialising.
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

    /// A CPU that needs memory waits for a worker that has moved the cursor and not yet written its slot; not for one
    /// that claims in another zone.
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

    /// Units without free memory are passed over, also in the middle of a claim: no unit comes twice.
    #[test]
    fn units_without_free_memory_are_left_out() {
        let free = |_: &ZoneSpec| [0..1, 3..5, 7..8].map(units).to_vec();
        let deferred: &'static _ = Box::leak(Box::new(with_free([8, 8], Split::OneThread, free)));
        let mut turn = deferred.hold(NodeId(0)).expect("there is a slot");
        let slot = &deferred.slots[0];
        slot.store(Claim { from: 0, to: 8, zone: ZONES[0], held: true, busy: 0 }.pack(), Relaxed);
        for unit in [0, 3, 4, 7] {
            assert_eq!(turn.next(NodeId(0), 1), Some((ZONES[0], units(unit..unit + 1))));
            let claim = Claim::unpack(slot.load(Relaxed));
            assert_eq!((claim.from, claim.busy), (unit, 1), "what it is at work on");
            turn.done(1);
        }
    }

    /// A CPU that needs units takes those that a worker left in the middle of its work.
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

    /// A worker takes over the slot of a worker of its own node, not that of another node, while there is an empty
    /// slot.
    #[test]
    fn work_is_taken_over_on_its_node() {
        let deferred: &'static _ = Box::leak(Box::new(deferred()));
        let mut first = deferred.hold(NodeId(0)).expect("there is a slot");
        assert_eq!(first.next(NodeId(0), 2), Some((ZONES[0], units(0..2))));
        drop(first);
        let mut second = deferred.hold(NodeId(1)).expect("there is an empty slot");
        assert_eq!(second.next(NodeId(1), 8), Some((ZONES[1], units(8..16))));
        let mut next = deferred.hold(NodeId(0)).expect("that slot is free again");
        assert_eq!(next.next(NodeId(0), 8), Some((ZONES[0], units(0..8))));
    }

    /// A worker's chunks of a zone do not depend on its earlier work.
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
                let (node, peer) = (first, 1 - first);
                let alone = [chunks(&[node; 3]), chunks(&[peer; 3])];
                let both = chunks(&[node, peer, node, peer, node, peer]);
                for (n, alone) in alone.iter().enumerate() {
                    let of_node: Vec<_> = both.iter().skip(n).step_by(2).cloned().collect();
                    let len = alone.len().min(of_node.len());
                    assert_eq!(of_node[..len], alone[..len], "{split:?}, {units:?}");
                }
            }
        }
    }

    /// Growth takes one section at a time from the cursor, and `has_free` tells whether a pageblock is still to come.
    #[test]
    fn growth_takes_sections() {
        let deferred = deferred();
        let has_free = |unit: u64| deferred.has_free(units(unit..unit + 1));
        assert!(has_free(8) && !has_free(16));
        for n in 0..4 {
            assert_eq!(deferred.take(ZONES[1]), Some(units(8 + 2 * n..10 + 2 * n)));
        }
        assert_eq!(deferred.take(ZONES[1]), None);
        deferred.zones[1].done(8 * UNIT_PAGES);
        assert!(!has_free(8), "all of its zone is initialised");
        assert!(has_free(0), "the other zone is as it was");
    }
}
