//! A trace with the allocator's inside recorded, and the same trace through a preset.
//!
//! The kernel's side is counted from its tracepoints: blocks that left the zone for a list of a CPU
//! (`mm_page_alloc_zone_locked` of an order that has lists), blocks that went back (`mm_page_pcpu_drain`), and
//! fallbacks (`mm_page_alloc_extfrag`). A run of the first without an allocation between them is one refill, a run
//! of the second without a free between them one drain.
//!
//! For the replay, `/proc/zoneinfo` as it was at the start of the recording gives the zone's size, and the lists' size,
//! `high` and number of pages; [`History`] says on which lists these are, and what no event tells. Once a second the
//! lists may shrink, as the kernel's do.

use core::fmt;
use std::collections::HashMap;

use framewright::policy::pcp::Sizing;
use framewright::{CpuId, ZoneId};
use framewright_host::{Arena, Backing};
use framewright_report::error::{Error, Result};
use framewright_report::quantity::{Quantity, describe, quantities};
use framewright_report::result::Part;
use framewright_trace::trace::{EventKind, Trace};
use framewright_workload::target::{Mobility, Target as _, TargetCpu as _};

use super::history::{History, SECOND, Step, What, kind_of, list_of, mobility};
use super::zone::Zone;
use framewright_lab::configure::Setup;
use framewright_lab::subject::{Bare, Slot};

/// Operations of one CPU's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Pages that the CPU allocated.
    pub allocated_pages: u64,
    /// Refills.
    pub refills: u64,
    /// Pages that they brought.
    pub refilled_pages: u64,
    /// Drains.
    pub drains: u64,
    /// Pages that they took back.
    pub drained_pages: u64,
    /// Blocks taken from another migratetype's pageblocks.
    pub fallbacks: u64,
}

impl Counts {
    /// Pages moved between the zone and the lists for each page allocated.
    #[must_use]
    pub(crate) fn moved_pages_per_page(&self) -> f64 {
        (self.refilled_pages + self.drained_pages) as f64 / self.allocated_pages.max(1) as f64
    }

    /// The counts by the names that results have.
    #[must_use]
    pub(crate) fn named(&self) -> [(&'static str, f64); 6] {
        [
            ("refills", self.refills as f64),
            ("refilled_pages", self.refilled_pages as f64),
            ("drains", self.drains as f64),
            ("drained_pages", self.drained_pages as f64),
            ("fallbacks", self.fallbacks as f64),
            ("moved_pages_per_page", self.moved_pages_per_page()),
        ]
    }
}

impl core::ops::AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.allocated_pages += more.allocated_pages;
        self.refills += more.refills;
        self.refilled_pages += more.refilled_pages;
        self.drains += more.drains;
        self.drained_pages += more.drained_pages;
        self.fallbacks += more.fallbacks;
    }
}

/// A refill or a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// Time on the recording's clock.
    pub time_ns: u64,
    /// The list that was refilled, by its number (see [`kind_of`]); `None` for a drain.
    pub refills: Option<usize>,
    /// Pages moved.
    pub pages: u64,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.refills.map(kind_of) {
            Some((order, mobility)) => {
                let mobility = match mobility {
                    Mobility::Unmovable => "unmovable",
                    Mobility::Movable => "movable",
                    Mobility::Reclaimable => "reclaimable",
                };
                write!(f, "refilled {} pages, {mobility} blocks of order {order}", self.pages)
            }
            None => write!(f, "drained {} pages", self.pages),
        }
    }
}

/// Operations of one CPU: sums, and each refill and drain in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Sums.
    pub counts: Counts,
    /// Refills and drains.
    pub runs: Vec<Run>,
}

impl Moved {
    /// Sums over the runs, with what the runs do not tell.
    #[must_use]
    pub(crate) fn new(allocated_pages: u64, fallbacks: u64, runs: Vec<Run>) -> Self {
        let mut counts = Counts { allocated_pages, fallbacks, ..Counts::default() };
        for run in &runs {
            let (times, pages) = match run.refills {
                Some(_) => (&mut counts.refills, &mut counts.refilled_pages),
                None => (&mut counts.drains, &mut counts.drained_pages),
            };
            *times += 1;
            *pages += run.pages;
        }
        Self { counts, runs }
    }
}

/// What is counted on either side.
pub(crate) const QUANTITIES: &[Quantity] = &quantities! {
    refills "1" None Main "Refills of per-CPU lists."
    refilled_pages "pages" None Main "Pages that they brought."
    drains "1" None Main "Drains of per-CPU lists."
    drained_pages "pages" None Main "Pages that they gave back."
    fallbacks "1" None Main "Allocations served from pageblocks of another migratetype."
    moved_pages_per_page "1" None Main "Pages that refills and drains moved, per allocated page."
    pages_per_refill "pages" None Main "Pages of each refill."
    pages_per_drain "pages" None Main "Pages of each drain."
};

/// Adds what the CPUs of one side did: sums, sums by CPU, and one sample for each refill and drain.
pub(crate) fn add_metrics(part: &mut Part, variant: &str, moved: &[Moved]) {
    let mut all = Counts::default();
    moved.iter().for_each(|moved| all += moved.counts);
    for (name, value) in all.named() {
        part.figure(name).sample(variant, value);
    }
    for (cpu, moved) in moved.iter().enumerate() {
        for (name, value) in moved.counts.named() {
            part.figure(format!("{name}[cpu={cpu}]")).sample(variant, value);
        }
    }
    for (name, refills) in [("pages_per_refill", true), ("pages_per_drain", false)] {
        let runs = moved.iter().flat_map(|moved| &moved.runs);
        let pages: Vec<f64> =
            runs.filter(|run| run.refills.is_some() == refills).map(|run| run.pages as f64).collect();
        if !pages.is_empty() {
            part.figure(name).samples(variant, pages);
        }
    }
    describe(part, QUANTITIES);
}

/// The first refill or drain of a CPU that is not the same on both sides, in words; `None` if all are. When they come
/// is not compared, in what order they come is.
#[must_use]
pub(crate) fn first_difference(start: u64, kernel: &[Moved], replayed: &[Moved]) -> Option<String> {
    let told = |run: Option<&Run>| {
        run.map_or_else(
            || "nothing more".to_owned(),
            |run| format!("{run} at {:.3} s", run.time_ns.saturating_sub(start) as f64 / 1e9),
        )
    };
    kernel.iter().zip(replayed).enumerate().find_map(|(cpu, (kernel, replayed))| {
        let (kernel, replayed) = (&kernel.runs, &replayed.runs);
        let same = |(a, b): (&Run, &Run)| (a.refills, a.pages) == (b.refills, b.pages);
        let place = kernel.iter().zip(replayed).take_while(|&pair| same(pair)).count();
        (place < kernel.len().max(replayed.len())).then(|| {
            let [kernel, replayed] = [kernel, replayed].map(|runs| told(runs.get(place)));
            format!("CPU {cpu}, after {place} refills and drains: kernel {kernel}; replayed {replayed}")
        })
    })
}

/// A recording of a whole machine: its largest zone at the start, when that was, and at the end.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    /// At the start.
    pub zone: Zone,
    /// Time on the recording's clock.
    pub start: u64,
    /// At the end, if the recording has it.
    pub end: Option<Zone>,
}

/// The states that a trace begins and ends with.
///
/// # Errors
/// The trace has none, or is not of a whole machine.
pub(crate) fn recorded(trace: &Trace) -> Result<Recorded> {
    const AGAIN: &str = "record it with `framewright record -a`";
    if trace.meta.attribution != "whole system" {
        return Err(Error::failed(format_args!(
            "this trace holds one command only, and fidelity needs every allocation of its CPUs; {AGAIN}"
        )));
    }
    let mut notes = trace.notes.iter().filter(|note| note.name == "/proc/zoneinfo");
    let note = notes
        .next()
        .ok_or_else(|| Error::failed(format_args!("the trace has no /proc/zoneinfo; {AGAIN}")))?;
    let mut zone =
        Zone::largest(&note.text).map_err(|what| Error::failed(format_args!("{what}; {AGAIN}")))?;
    if let Some(types) = trace.notes.iter().find(|note| note.name == "/proc/pagetypeinfo") {
        zone.read_pageblocks(&types.text);
    }
    let end = notes.next_back().and_then(|note| Zone::largest(&note.text).ok());
    Ok(Recorded { start: note.time_ns, end: end.filter(|end| end.name == zone.name), zone })
}

/// Operations of the kernel's lists, by CPU. O(n).
#[must_use]
pub(crate) fn kernel(trace: &Trace, recorded: &Recorded) -> Vec<Moved> {
    let Recorded { zone, start, .. } = recorded;
    let cpus = zone.lists.len();
    let mut allocated = vec![0; cpus];
    let mut runs: Vec<Vec<Run>> = vec![Vec::new(); cpus];
    // The refill or drain that goes on, if one does.
    let mut last: Vec<Option<Option<usize>>> = vec![None; cpus];
    for event in trace.events.iter().filter(|event| event.time_ns >= *start && zone.holds(event)) {
        let cpu = usize::from(event.cpu);
        let Some(runs) = runs.get_mut(cpu) else { continue };
        let pages = 1_u64 << event.order;
        let moves = match event.kind {
            EventKind::PageAllocZoneLocked => list_of(event.order, mobility(event.migratetype)).map(Some),
            EventKind::PagePcpuDrain => Some(None),
            EventKind::PageAlloc => {
                allocated[cpu] += pages;
                None
            }
            EventKind::PageFree | EventKind::PageFreeBatched => None,
        };
        if let Some(refills) = moves {
            match runs.last_mut() {
                Some(run) if last[cpu] == moves => run.pages += pages,
                _ => runs.push(Run { time_ns: event.time_ns, refills, pages }),
            }
        }
        last[cpu] = moves;
    }
    let mut fallbacks = vec![0; cpus];
    for note in &trace.notes {
        if note.time_ns >= *start
            && note.name == "mm_page_alloc_extfrag"
            && let Some(fallbacks) = fallbacks.get_mut(usize::from(note.cpu))
        {
            *fallbacks += 1;
        }
    }
    let sums = allocated.into_iter().zip(fallbacks).zip(runs);
    sums.map(|((allocated, fallbacks), runs)| Moved::new(allocated, fallbacks, runs)).collect()
}

/// A preset that repeats a recording.
struct Replay<'a> {
    arena: &'a Arena,
    /// Those of the machine, and one more, which stands for all that is not looked at: it has the blocks that were
    /// allocated before, and those that no event tells.
    slots: Vec<Slot<'a, ()>>,
    /// By first frame in the trace: frame here, order.
    live: HashMap<u64, (u64, u8)>,
    allocated: Vec<u64>,
    fallbacks: Vec<u64>,
    /// Fallbacks that are counted already, or the helper's.
    seen: u64,
    runs: Vec<Vec<Run>>,
}

/// Operations of the lists under `setup` with the same allocations and frees, by CPU.
///
/// # Errors
/// A configuration that the allocator refuses, or more blocks than the zone has.
pub(crate) fn replayed(history: &History, recorded: &Recorded, setup: &Setup) -> Result<Vec<Moved>> {
    let Recorded { zone, start, .. } = recorded;
    let cpus = zone.lists.len();
    let mut setup = *setup;
    setup.config.experiment.pcp_slots = setup.config.experiment.pcp_slots.max(1 << 18);
    let arena = Arena::builder().pages(zone.managed).cpus(cpus + 1).backing(Backing::Described);
    let arena: Arena = arena.config(setup.config).build().map_err(Error::failed)?;
    let target = Bare(&arena);
    let mut replay = Replay {
        arena: &arena,
        slots: (0..=cpus).map(|cpu| target.attach(cpu)).collect(),
        live: HashMap::new(),
        allocated: vec![0; cpus],
        fallbacks: vec![0; cpus],
        seen: 0,
        runs: vec![Vec::new(); cpus],
    };
    replay.set_up(zone, history)?;
    let mut tick = history.first_tick.map(|first| start + first);
    let mut ticks =
        history.ticks.iter().filter(|&&(time, cpu)| time >= *start && usize::from(cpu) < cpus).peekable();
    for step in &history.steps {
        while let Some(&(time, cpu)) = ticks.next_if(|&&(time, _)| time <= step.time_ns) {
            replay.tick(usize::from(cpu), time)?;
        }
        while let Some(due) = tick.filter(|&due| step.time_ns >= due) {
            for cpu in 0..cpus {
                replay.tick(cpu, due)?;
            }
            tick = Some(due + SECOND);
        }
        let cpu = usize::from(step.cpu);
        let list = list_of(step.order, step.mobility);
        replay.watched(cpu, step.time_ns, list, |replay| replay.step(cpu, step))?;
    }
    let Replay { allocated, fallbacks, runs, .. } = replay;
    let sums = allocated.into_iter().zip(fallbacks).zip(runs);
    Ok(sums.map(|((allocated, fallbacks), runs)| Moved::new(allocated, fallbacks, runs)).collect())
}

/// Halvings after which nothing is left of what was freed in a row.
const FORGET: u32 = 32;

impl Replay<'_> {
    fn alloc(&mut self, slot: usize, order: u8, mobility: Mobility) -> Result<u64> {
        let full = || Error::failed("the trace needs more memory than its zone has");
        let block = self.slots[slot].alloc(order, mobility).ok_or_else(full)?;
        if slot + 1 == self.slots.len() {
            self.seen = self.all_fallbacks();
        }
        Ok(block)
    }

    fn tick(&mut self, cpu: usize, time_ns: u64) -> Result<()> {
        self.watched(cpu, time_ns, None, |replay| {
            replay.slots[cpu].tick();
            Ok(())
        })
    }

    fn all_fallbacks(&self) -> u64 {
        self.arena.allocator().totals().fallbacks
    }

    /// Pageblocks of each type as there were, and lists with as many pages and the `high` that they had.
    fn set_up(&mut self, zone: &Zone, history: &History) -> Result<()> {
        let helper = zone.lists.len();
        let [unmovable, _, reclaimable] = zone.pageblocks;
        for (blocks, mobility) in [(unmovable, Mobility::Unmovable), (reclaimable, Mobility::Reclaimable)] {
            let blocks: Vec<_> =
                (0..blocks).map(|_| self.alloc(helper, 9, mobility)).collect::<Result<_>>()?;
            blocks.into_iter().for_each(|block| self.slots[helper].free(block, 9));
        }
        self.slots[helper].drain();
        let allocator = self.arena.allocator();
        for (cpu, (recorded, lists)) in zone.lists.iter().zip(&history.start).enumerate() {
            // With `high` held where it was, and no batch ever freed in a row, the lists are filled as far as they
            // were; then it may move again.
            let held = recorded.high.max(recorded.count.saturating_add(1));
            allocator.resize_pcps_of(ZoneId(0), Sizing { batch: held, high_min: held, high_max: held });
            for (list, &blocks) in lists.iter().enumerate() {
                let (order, mobility) = kind_of(list);
                let blocks: Vec<_> =
                    (0..blocks).map(|_| self.alloc(helper, order, mobility)).collect::<Result<_>>()?;
                blocks.into_iter().for_each(|block| self.slots[cpu].free(block, order));
            }
            // Nothing of that counts as freed in a row.
            if let Some(list) = (0..3).find(|&list| lists[list] > 0) {
                let (order, mobility) = kind_of(list);
                for _ in 0..FORGET {
                    let block = self.alloc(cpu, order, mobility)?;
                    self.slots[cpu].free(block, order);
                }
            }
        }
        if let Some(first) = zone.lists.first() {
            allocator.resize_pcps_of(ZoneId(0), first.size);
        }
        Ok(())
    }

    /// Does something on a CPU and notes what its lists did.
    fn watched(
        &mut self,
        cpu: usize,
        time_ns: u64,
        list: Option<usize>,
        does: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let allocator = self.arena.allocator();
        let lists = allocator.pcp(ZoneId(0), CpuId(cpu as u16));
        let before = lists.events();
        does(self)?;
        let after = lists.events();
        let refilled = after.refilled_pages - before.refilled_pages;
        if refilled > 0 {
            self.runs[cpu].push(Run { time_ns, refills: list, pages: refilled });
        }
        let drained = after.drained_pages - before.drained_pages;
        if drained > 0 {
            self.runs[cpu].push(Run { time_ns, refills: None, pages: drained });
        }
        if after.lock_acquisitions != before.lock_acquisitions {
            let all = self.all_fallbacks();
            self.fallbacks[cpu] += all - self.seen;
            self.seen = all;
        }
        Ok(())
    }

    fn step(&mut self, cpu: usize, step: &Step) -> Result<()> {
        let Step { order, mobility, pfn, .. } = *step;
        let helper = self.slots.len() - 1;
        match step.what {
            What::Alloc => {
                let frame = self.alloc(cpu, order, mobility)?;
                self.allocated[cpu] += 1_u64 << order;
                // What was there must have been freed in a way that no event tells.
                if let Some((frame, order)) = self.live.insert(pfn, (frame, order)) {
                    self.slots[helper].free(frame, order);
                }
            }
            What::Free => {
                let frame = match self.live.remove(&pfn) {
                    Some((frame, known)) if known == order => frame,
                    known => {
                        // A part of a block, or a block of before: another of its kind is freed in its stead.
                        if let Some(whole) = known {
                            self.live.insert(pfn, whole);
                        }
                        self.alloc(helper, order, mobility)?
                    }
                };
                self.slots[cpu].free(frame, order);
            }
            What::Took(blocks) => {
                for _ in 0..blocks {
                    self.alloc(cpu, order, mobility)?;
                }
            }
            What::Put => {
                let frame = self.alloc(helper, order, mobility)?;
                self.slots[cpu].free(frame, order);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use framewright_trace::trace::Event;

    use super::*;
    use crate::zone::tests::ZONEINFO;
    use EventKind::{PageAlloc, PageAllocZoneLocked as Refill, PageFree, PagePcpuDrain as Drain};
    use framewright_lab::settings::Settings;

    fn event(time_ns: u64, kind: EventKind, pfn: u64, order: u8, cpu: u16) -> Event {
        let migratetype = (kind != PageFree).then_some(1);
        Event { time_ns, pfn: 2_000_000 + pfn, gfp: 0, pid: 1, comm: 0, cpu, order, migratetype, kind }
    }

    fn recorded() -> Recorded {
        Recorded { zone: Zone::largest(ZONEINFO).unwrap(), start: 2, end: None }
    }

    #[test]
    fn runs_are_refills_and_drains() {
        let events = [
            (1, Refill, 0, 0),
            (2, Refill, 0, 0),
            (2, Refill, 0, 1),
            (3, Refill, 0, 0),
            (4, PageAlloc, 0, 0),
            (5, Refill, 3, 0),
            (6, Refill, 4, 0),
            (7, PageAlloc, 4, 0),
            (8, PageFree, 0, 0),
            (9, Drain, 0, 0),
            (9, Drain, 1, 0),
            (10, PageFree, 0, 0),
            (11, Drain, 0, 0),
        ];
        let events = events.map(|(time, kind, order, cpu)| event(time, kind, 0, order, cpu)).to_vec();
        let moved = kernel(&Trace { events, ..Trace::default() }, &recorded());
        let expected = Counts {
            allocated_pages: 17,
            refills: 2,
            refilled_pages: 10,
            drains: 2,
            drained_pages: 4,
            fallbacks: 0,
        };
        assert_eq!(moved[0].counts, expected);
        assert_eq!((moved[1].counts.refills, moved[1].counts.refilled_pages), (1, 1));
        assert_eq!(expected.moved_pages_per_page(), 14.0 / 17.0);
        let run = |time_ns, refills, pages| Run { time_ns, refills, pages };
        assert_eq!(
            moved[0].runs,
            [run(2, Some(1), 2), run(5, Some(10), 8), run(9, None, 3), run(11, None, 1)]
        );
    }

    /// The lists of a machine whose kernel does what the preset does: 100 pages come off a list, a refill follows.
    #[test]
    fn lists_start_with_what_they_held() {
        let mut events: Vec<_> = (0..100).map(|n| event(10 + n, PageAlloc, n, 0, 1)).collect();
        events.extend((100..163).map(|n| event(110, Refill, n, 0, 1)));
        events.push(event(111, PageAlloc, 100, 0, 1));
        let trace = Trace { events, ..Trace::default() };
        let recorded = recorded();
        let history = History::of(&trace, &recorded.zone, 2, None);
        let setup = Setup::from_settings(&Settings::from_pairs("preset=linux_v6_16").unwrap()).unwrap();
        let ours = replayed(&history, &recorded, &setup).unwrap();
        let kernel = kernel(&trace, &recorded);
        assert_eq!(ours[1].runs, [Run { time_ns: 111, refills: Some(1), pages: 63 }]);
        assert_eq!(first_difference(2, &kernel, &ours), None);
        let mut changed = ours;
        changed[1].runs[0].pages = 64;
        assert_eq!(
            first_difference(2, &kernel, &changed).unwrap(),
            "CPU 1, after 0 refills and drains: kernel refilled 63 pages, movable blocks of order 0 at 0.000 s; \
             replayed refilled 64 pages, movable blocks of order 0 at 0.000 s"
        );
    }
}
