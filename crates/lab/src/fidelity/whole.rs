//! A trace with the allocator's inside recorded, and the same trace through a preset.
//!
//! The kernel's side is counted from its tracepoints: blocks that left the zone for a list of a CPU
//! (`mm_page_alloc_zone_locked` of an order that has lists), blocks that went back (`mm_page_pcpu_drain`), and
//! fallbacks (`mm_page_alloc_extfrag`). A run of the first without an allocation between them is one refill, a run
//! of the second without a free between them one drain.
//!
//! For the replay, `/proc/zoneinfo` as it was at the start of the recording gives the zone's size, size and content
//! of the lists. Their content is a number of pages; it is taken for single movable pages.

use std::collections::HashMap;

use framewright_host::framewright::policy::pcp::Sizing;
use framewright_host::framewright::{CpuId, ZoneId};
use framewright_host::{Arena, Backing};
use framewright_workload::target::{Mobility, Target as _, TargetCpu as _};
use framewright_workload::trace::{Event, EventKind, Trace};

use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::subject::Bare;

/// What the lists of one CPU did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
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
    pub fn moved_pages_per_page(&self) -> f64 {
        (self.refilled_pages + self.drained_pages) as f64 / self.allocated_pages.max(1) as f64
    }

    /// The counts by the names that results have.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 6] {
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
    fn add_assign(&mut self, other: Self) {
        self.allocated_pages += other.allocated_pages;
        self.refills += other.refills;
        self.refilled_pages += other.refilled_pages;
        self.drains += other.drains;
        self.drained_pages += other.drained_pages;
        self.fallbacks += other.fallbacks;
    }
}

/// The lists of one CPU, as `/proc/zoneinfo` shows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lists {
    /// Pages on them.
    pub count: u32,
    /// Pages at which they drain now.
    pub high: u32,
    /// Their size; before Linux 6.7 `high` has no bounds but itself.
    pub size: Sizing,
}

/// One zone at the start of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// First frame.
    pub start: u64,
    /// Frames from the first to the last.
    pub spanned: u64,
    /// Pages that it manages.
    pub managed: u64,
    /// Of each CPU.
    pub lists: Vec<Lists>,
}

impl Zone {
    /// The zone with the most pages in a `/proc/zoneinfo`. O(length).
    ///
    /// # Errors
    /// It has no zone with per-CPU lists: one line of words.
    pub fn largest(zoneinfo: &str) -> core::result::Result<Self, String> {
        let mut zones: Vec<Self> = Vec::new();
        for line in zoneinfo.lines() {
            if line.starts_with("Node ") {
                zones.push(Self::default());
            }
            let Some(zone) = zones.last_mut() else { continue };
            let mut words = line.split_whitespace();
            let (key, value) = (words.next().unwrap_or_default(), words.next());
            let Some(value) = value.and_then(|value| value.parse::<u64>().ok()) else { continue };
            let narrow = u32::try_from(value).unwrap_or(u32::MAX);
            match (key, zone.lists.last_mut()) {
                ("spanned", _) => zone.spanned = value,
                ("managed", _) => zone.managed = value,
                ("start_pfn:", _) => zone.start = value,
                ("cpu:", _) => zone.lists.push(Lists {
                    count: 0,
                    high: 0,
                    size: Sizing { batch: 1, high_min: 0, high_max: 0 },
                }),
                ("count:", Some(lists)) => lists.count = narrow,
                ("high:", Some(lists)) => {
                    lists.high = narrow;
                    (lists.size.high_min, lists.size.high_max) = (narrow, narrow);
                }
                ("batch:", Some(lists)) => lists.size.batch = narrow.max(1),
                ("high_min:", Some(lists)) => lists.size.high_min = narrow,
                ("high_max:", Some(lists)) => lists.size.high_max = narrow,
                _ => {}
            }
        }
        let largest = zones.into_iter().max_by_key(|zone| zone.managed);
        largest
            .filter(|zone| !zone.lists.is_empty() && zone.managed > 0)
            .ok_or_else(|| "its /proc/zoneinfo has no zone with per-CPU lists".to_owned())
    }

    fn holds(&self, event: &Event) -> bool {
        (self.start..self.start + self.spanned).contains(&event.pfn)
    }
}

/// The state that a trace begins with, and when.
///
/// # Errors
/// The trace has none, or is not of a whole machine.
pub fn start(trace: &Trace) -> Result<(Zone, u64)> {
    const AGAIN: &str = "record it with `framewright record -a`";
    if trace.meta.attribution != "whole system" {
        return Err(Error::failed(format_args!("the trace has not all that happened on its CPUs; {AGAIN}")));
    }
    let note = trace.notes.iter().find(|note| note.name == "/proc/zoneinfo");
    let note = note.ok_or_else(|| Error::failed(format_args!("the trace has no /proc/zoneinfo; {AGAIN}")))?;
    let zone = Zone::largest(&note.text).map_err(|what| Error::failed(format_args!("{what}; {AGAIN}")))?;
    Ok((zone, note.time_ns))
}

/// Whether blocks of an order wait on per-CPU lists, as of Linux 5.13 with huge pages.
const fn has_lists(order: u8) -> bool {
    order <= 3 || order == 9
}

/// What the kernel's lists of `zone` did from `start` on, by CPU. O(n).
#[must_use]
pub fn kernel(trace: &Trace, zone: &Zone, start: u64) -> Vec<Counts> {
    let mut counts = vec![Counts::default(); zone.lists.len()];
    // Kind and, for refills, order of the last event of each CPU that ends or goes on with a run.
    let mut last: Vec<Option<(EventKind, u8)>> = vec![None; counts.len()];
    for event in trace.events.iter().filter(|event| event.time_ns >= start && zone.holds(event)) {
        let cpu = usize::from(event.cpu);
        let (Some(counts), Some(last)) = (counts.get_mut(cpu), last.get_mut(cpu)) else { continue };
        let pages = 1_u64 << event.order;
        let run = Some((event.kind, event.order));
        match event.kind {
            EventKind::PageAlloc => counts.allocated_pages += pages,
            EventKind::PageAllocZoneLocked if has_lists(event.order) => {
                counts.refilled_pages += pages;
                counts.refills += u64::from(*last != run);
            }
            EventKind::PagePcpuDrain => {
                counts.drained_pages += pages;
                counts.drains += u64::from(!matches!(*last, Some((EventKind::PagePcpuDrain, _))));
            }
            _ => {}
        }
        *last = run;
    }
    for note in
        trace.notes.iter().filter(|note| note.time_ns >= start && note.name == "mm_page_alloc_extfrag")
    {
        if let Some(counts) = counts.get_mut(usize::from(note.cpu)) {
            counts.fallbacks += 1;
        }
    }
    counts
}

/// What the lists do under `setup` with the same allocations and frees, by CPU.
///
/// # Errors
/// A configuration that the allocator refuses, or more blocks than the zone has.
pub fn replayed(trace: &Trace, zone: &Zone, start: u64, setup: &Setup) -> Result<Vec<Counts>> {
    let cpus = zone.lists.len();
    // One CPU more, which stands for all that is not looked at: it has the pages that were allocated before.
    let helper = cpus;
    let mut setup = *setup;
    setup.config.pcp_slots = setup.config.pcp_slots.max(1 << 18);
    let arena = Arena::builder().pages(zone.managed).cpus(cpus + 1).backing(Backing::Described);
    let arena: Arena = arena.config(setup.config).build().map_err(Error::failed)?;
    let allocator = arena.allocator();
    let lists = |cpu: usize| allocator.pcp(ZoneId(0), CpuId(cpu as u16));
    let target = Bare(&arena);
    let mut slots: Vec<_> = (0..=cpus).map(|cpu| target.attach(cpu)).collect();
    let full = || Error::failed("the trace needs more memory than its zone has");

    // With `high` held where it was, the lists are filled as far as they were; then it may move again.
    for (cpu, recorded) in zone.lists.iter().enumerate() {
        let held = recorded.high.max(recorded.count.saturating_add(1));
        allocator.resize_pcps_of(ZoneId(0), Sizing { high_min: held, high_max: held, ..recorded.size });
        let mut pages = Vec::new();
        for _ in 0..recorded.count {
            pages.push(slots[helper].alloc(0, Mobility::Movable).ok_or_else(full)?);
        }
        pages.into_iter().for_each(|page| slots[cpu].free(page, 0));
    }
    if let Some(first) = zone.lists.first() {
        allocator.resize_pcps_of(ZoneId(0), first.size);
    }
    let before: Vec<_> = (0..cpus).map(|cpu| lists(cpu).events()).collect();

    let types = Types::of(trace);
    let mut allocated = vec![0; cpus];
    // By first frame in the trace: frame here, order.
    let mut live: HashMap<u64, (u64, u8)> = HashMap::new();
    for event in trace.events.iter().filter(|event| event.time_ns >= start && zone.holds(event)) {
        let cpu = usize::from(event.cpu);
        if cpu >= cpus {
            continue;
        }
        match event.kind {
            EventKind::PageAlloc => {
                let mobility = mobility(event.migratetype);
                let frame = slots[cpu].alloc(event.order, mobility).ok_or_else(full)?;
                allocated[cpu] += 1_u64 << event.order;
                // What was there must have been freed in a way that no event tells.
                if let Some((frame, order)) = live.insert(event.pfn, (frame, event.order)) {
                    slots[helper].free(frame, order);
                }
            }
            EventKind::PageFree => {
                let (frame, order) = match live.remove(&event.pfn) {
                    Some((frame, order)) if order == event.order => (frame, order),
                    known => {
                        // A part of a block, or a block of before: another of its kind is freed in its stead.
                        if let Some(whole) = known {
                            live.insert(event.pfn, whole);
                        }
                        let mobility = types.mobility(event.pfn);
                        (slots[helper].alloc(event.order, mobility).ok_or_else(full)?, event.order)
                    }
                };
                slots[cpu].free(frame, order);
            }
            _ => {}
        }
    }
    let counts = |cpu: usize| {
        let (before, after) = (&before[cpu], lists(cpu).events());
        Counts {
            allocated_pages: allocated[cpu],
            refills: after.refills - before.refills,
            refilled_pages: after.refilled_pages - before.refilled_pages,
            drains: after.drains - before.drains,
            drained_pages: after.drained_pages - before.drained_pages,
            fallbacks: 0,
        }
    };
    Ok((0..cpus).map(counts).collect())
}

/// Migratetypes of pageblocks, from the events that tell them: a free does not.
struct Types(HashMap<u64, Mobility>);

/// Frames of a pageblock.
const PAGEBLOCK: u64 = 512;

impl Types {
    fn of(trace: &Trace) -> Self {
        let mut types = HashMap::new();
        for event in &trace.events {
            if let Some(number) = event.migratetype {
                types.insert(event.pfn / PAGEBLOCK, mobility(Some(number)));
            }
        }
        Self(types)
    }

    fn mobility(&self, pfn: u64) -> Mobility {
        self.0.get(&(pfn / PAGEBLOCK)).copied().unwrap_or(Mobility::Movable)
    }
}

/// As the kernel numbers the first three migratetypes; what it has beside them waits on the movable lists.
const fn mobility(migratetype: Option<u8>) -> Mobility {
    match migratetype {
        Some(0) => Mobility::Unmovable,
        Some(2) => Mobility::Reclaimable,
        _ => Mobility::Movable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONEINFO: &str = "\
Node 0, zone      DMA
        managed  3840
  pagesets
    cpu: 0
              count:    0
              high:     0
              batch:    1
  start_pfn:           1
Node 0, zone   Normal
  pages free     2653626
        spanned  5505024
        managed  3211264
  pagesets
    cpu: 0
              count:    21036
              high:     29522
              batch:    63
              high_min: 8503
              high_max: 200704
  vm stats threshold: 32
    cpu: 1
              count:    34846
              high:     41289
              batch:    63
              high_min: 8503
              high_max: 200704
  node_unreclaimable:  0
  start_pfn:           1048576
Node 0, zone  Movable
        managed  0
";

    #[test]
    fn the_largest_zone_is_read() {
        let zone = Zone::largest(ZONEINFO).unwrap();
        assert_eq!((zone.start, zone.spanned, zone.managed), (1_048_576, 5_505_024, 3_211_264));
        let size = Sizing { batch: 63, high_min: 8503, high_max: 200_704 };
        assert_eq!(zone.lists[1], Lists { count: 34_846, high: 41_289, size });
        assert_eq!(zone.lists.len(), 2);
        assert!(Zone::largest("Node 0, zone DMA\n").is_err());
    }

    #[test]
    fn runs_are_refills_and_drains() {
        let zone = Zone::largest(ZONEINFO).unwrap();
        let event = |time_ns, kind, order, cpu| Event {
            time_ns,
            pfn: 2_000_000,
            gfp: 0,
            pid: 1,
            comm: 0,
            cpu,
            order,
            migratetype: Some(1),
            kind,
        };
        use EventKind::{PageAlloc, PageAllocZoneLocked as Refill, PageFree, PagePcpuDrain as Drain};
        let events = vec![
            event(1, Refill, 0, 0),
            event(2, Refill, 0, 0),
            event(2, Refill, 0, 1),
            event(3, Refill, 0, 0),
            event(4, PageAlloc, 0, 0),
            event(5, Refill, 3, 0),
            event(6, Refill, 4, 0),
            event(7, PageAlloc, 4, 0),
            event(8, PageFree, 0, 0),
            event(9, Drain, 0, 0),
            event(9, Drain, 1, 0),
            event(10, PageFree, 0, 0),
            event(11, Drain, 0, 0),
        ];
        let trace = Trace { events, ..Trace::default() };
        let counts = kernel(&trace, &zone, 2);
        let expected = Counts {
            allocated_pages: 17,
            refills: 2,
            refilled_pages: 10,
            drains: 2,
            drained_pages: 4,
            fallbacks: 0,
        };
        assert_eq!(counts[0], expected);
        assert_eq!((counts[1].refills, counts[1].refilled_pages), (1, 1));
        assert_eq!(expected.moved_pages_per_page(), 14.0 / 17.0);
    }
}
