//! A trace under several configurations, interleaved: what `replay` and the studies' replay parts share.

mod ageing;

use std::sync::OnceLock;

use framewright_report::error::{Error, Result};
use framewright_report::quantity::{Quantity, describe, quantities};
use framewright_report::result::Part;
use framewright_trace::trace::Trace;
use framewright_workload::replay::{Counts, PageCache, Plan, Report};

use crate::configure::Setup;
use crate::progress::Progress;
use crate::simulate::cpus_here;

/// Metrics of replays.
pub(crate) const QUANTITIES: &[Quantity] = &quantities! {
    zone_lock_acquisitions_per_page "1" Lower Main "Acquisitions of the zone lock per allocated page."
    pages_moved_per_page "1" Lower Main "Pages moved to or from the buddy lists per allocated page."
    zone_lock_waits "1" Lower Main "Acquisitions of the zone lock that had to wait."
    refills "1" Lower Main "Refills of per-CPU lists."
    drains "1" Lower Main "Drains of per-CPU lists."
    fallbacks "1" Lower Main "Times an allocation or a refill took from pageblocks of another migratetype."
    steals "1" Lower Main "Pageblocks taken over by another migratetype."
    wall_ms "ms" Lower Main "Wall time of the replay."
    cpu_ms "ms" Lower Main "CPU time of all threads."
    ns_per_operation "ns" Lower Main "Time of one allocation or free on its thread, waits excluded."
    cpu_ns_per_operation "ns" Lower Main "CPU time of one allocation or free."
    alloc_ns "ns" Lower Main "Quantile of the sampled allocations' times."
    free_ns "ns" Lower Main "Quantile of the sampled frees' times."
    failed_allocations "1" Lower Main "Allocations that found no block."
    free_huge_blocks "1" Higher Main "Order-9 blocks that are free after the last event."
    huge_available_percent "%" Higher Main "Share of the free frames that could be had as huge pages, in memory that the trace nearly fills."
    huge_possible_percent "%" None Main "The most that this share could be: free frames that are no whole huge page are none."
    unusable_free_index "1" Lower Main "Share of the free frames that a request of this order cannot use, there."
    unmovable_pageblocks "1" Lower Main "Pageblocks with an unmovable block, there."
    compaction_moved_per_allocated "1" Lower Main "Pages that background compaction moved for each page allocated, there."
};

/// Frames that an arena has at least: 1 GiB.
const LEAST_FRAMES: u64 = 1 << 18;
/// Wall time that a sample takes at least, in ns: a millisecond cannot be measured on a machine with anything else to
/// do.
const LEAST_SAMPLE_NS: f64 = 100e6;
/// Most replays of a short trace for one sample. Starting its threads takes a tenth of a millisecond each time.
const MOST_REPEATS: f64 = 500.0;

/// What is compiled of a trace for each [`PageCache`]. Hardly a configuration asks for reclaimable blocks: what they
/// need is made when the first does.
#[derive(Debug)]
pub(crate) struct Compiled<T> {
    pub(crate) as_traced: T,
    reclaimable: OnceLock<T>,
}

impl<T> Compiled<T> {
    pub(crate) const fn new(as_traced: T) -> Self {
        Self { as_traced, reclaimable: OnceLock::new() }
    }

    /// What the setup needs; `compile` makes it.
    pub(crate) fn of(&self, setup: &Setup, compile: impl FnOnce(PageCache) -> T) -> &T {
        match setup.page_cache {
            PageCache::AsTraced => &self.as_traced,
            PageCache::Reclaimable => self.reclaimable.get_or_init(|| compile(PageCache::Reclaimable)),
        }
    }
}

/// A trace, compiled for a number of threads, and the memory it is replayed in.
#[derive(Debug)]
pub struct Replay<'a> {
    trace: &'a Trace,
    plans: Compiled<Plan>,
    frames: u64,
    /// Frames of an arena that the trace nearly fills.
    tight: u64,
}

impl<'a> Replay<'a> {
    /// Compiles `trace`. Without `frames`, the arena has twice what the trace ever used, and at least 1 GiB.
    ///
    /// # Errors
    /// The trace has nothing to replay, or more than fits in `frames`.
    pub fn new(trace: &'a Trace, threads: usize, frames: Option<u64>) -> Result<Self> {
        let plan = Plan::compile(trace, threads).map_err(Error::failed)?;
        let peak = plan.counts().peak_frames;
        let is_given = frames.is_some();
        let frames = frames.unwrap_or_else(|| (2 * peak).next_power_of_two().max(LEAST_FRAMES));
        if frames < peak {
            return Err(Error::failed(format_args!(
                "the trace uses up to {} MiB at a time: give it more --memory than that",
                peak.div_ceil(256)
            )));
        }
        let tight = if is_given { frames } else { ageing::nearly_filled(peak) };
        Ok(Self { trace, plans: Compiled::new(plan), frames, tight })
    }

    /// Gives each timed replay at least `frames`; the memory in which huge pages are measured stays.
    pub fn enlarge(&mut self, frames: u64) {
        self.frames = self.frames.max(frames);
    }

    /// The trace's content.
    pub const fn counts(&self) -> &Counts {
        self.plans.as_traced.counts()
    }

    /// The plan that is replayed under this setup.
    fn plan(&self, setup: &Setup) -> &Plan {
        self.plans.of(setup, |page_cache| {
            Plan::compile_with(self.trace, self.threads(), page_cache).expect("as traced it was compiled")
        })
    }

    fn threads(&self) -> usize {
        self.plans.as_traced.threads()
    }

    /// Replays under each setup, interleaved, `samples` times or until `progress` is interrupted, and adds what was
    /// measured to `part`. A sample of a short trace is the mean of several replays.
    ///
    /// # Errors
    /// A configuration that the allocator refuses.
    pub fn measure(
        &self,
        setups: &[(String, Setup)],
        samples: u32,
        part: &mut Part,
        progress: &Progress,
    ) -> Result<()> {
        part.paired = true;
        part.settings = setups.iter().map(|(name, setup)| (name.clone(), setup.described())).collect();
        part.condition("threads", self.threads()).condition("memory_mib", self.frames >> 8);
        let go_on = || !progress.is_interrupted();
        let mut slowest = 1.0_f64;
        for (_, setup) in setups {
            let mut wall_ns = f64::MAX;
            let is_short = |report: &Report| {
                wall_ns = wall_ns.min(report.wall_ns as f64);
                wall_ns < LEAST_SAMPLE_NS && go_on()
            };
            // The second has what a later one has: descriptors that are in memory.
            if go_on() {
                self.in_turn(setup, 2, is_short)?;
                slowest = slowest.max(wall_ns);
            }
        }
        let repeats = (LEAST_SAMPLE_NS / slowest).ceil().clamp(1.0, MOST_REPEATS) as u32;
        self.rounds(setups, samples, repeats, part, progress)?;
        if repeats > 1 {
            part.note(format!("Each sample is the mean of {repeats} replays."));
        }
        describe(part, QUANTITIES);
        self.explain(part);
        part.notes.extend(page_cache(self.counts().page_cache_frames, setups));
        Ok(())
    }

    /// Rounds of `samples`, of which a sample is the mean of `repeats` replays, until `progress` is interrupted. Only
    /// whole rounds are added to `part`: their samples are pairs.
    fn rounds(
        &self,
        setups: &[(String, Setup)],
        samples: u32,
        repeats: u32,
        part: &mut Part,
        progress: &Progress,
    ) -> Result<()> {
        let go_on = || !progress.is_interrupted();
        'rounds: for round in 0..samples as usize {
            let mut means = Vec::new();
            for turn in 0..setups.len() {
                // Also where a sample is one replay, which no interrupt cuts short.
                if !go_on() {
                    break 'rounds;
                }
                let (name, setup) = &setups[(round + turn) % setups.len()];
                let mut mean = Mean::default();
                self.repeated(setup, repeats, |report| {
                    mean.add(report);
                    go_on()
                })?;
                if mean.replays < repeats {
                    break 'rounds;
                }
                means.push((name, mean));
                progress.step(name);
            }
            means.into_iter().for_each(|(name, mean)| mean.finish(part, name));
        }
        Ok(())
    }

    /// Replays `times` times in one arena, and calls `each` with each report until it says no. Of several replays one
    /// before them does not count: it brings the descriptors into memory, where a kernel has them since its boot. Page
    /// faults of first touches would be most of the time of a short trace.
    ///
    /// # Errors
    /// A configuration that the allocator refuses.
    pub fn repeated(&self, setup: &Setup, times: u32, mut each: impl FnMut(&Report) -> bool) -> Result<()> {
        let mut unseen = u32::from(times > 1);
        self.in_turn(setup, times + unseen, |report| match unseen {
            0 => each(report),
            _ => {
                unseen -= 1;
                true
            }
        })
    }

    fn in_turn(&self, setup: &Setup, times: u32, mut each: impl FnMut(&Report) -> bool) -> Result<()> {
        let subject = setup.subject(self.frames, self.threads())?;
        let plan = self.plan(setup);
        let _ = (0..times).all(|_| each(&subject.replay(plan)));
        Ok(())
    }

    fn explain(&self, part: &mut Part) {
        let counts = self.counts();
        part.note(format!(
            "{} allocations of {} pages and {} frees on {} threads in {} MiB; {} freed on another thread, {} freed in pieces, \
             {} of blocks allocated before the trace, {} still allocated at its end (pages).",
            counts.allocations,
            counts.allocated_frames,
            counts.frees + counts.part_frees,
            self.threads(),
            self.frames >> 8,
            counts.cross_thread_frees,
            counts.part_frees,
            counts.unknown_frees,
            counts.live_frames
        ));
        let available = cpus_here();
        if self.threads() > available {
            part.note(format!("{} threads shared {available} CPUs.", self.threads()));
        }
    }
}

/// Says which configurations were told what pages of files are, if there are any, and if one was.
pub(crate) fn page_cache(frames: u64, setups: &[(String, Setup)]) -> Option<String> {
    let plan_of = |page_cache| {
        let names: Vec<&str> = setups
            .iter()
            .filter(|(_, setup)| setup.page_cache == page_cache)
            .map(|(name, _)| name.as_str())
            .collect();
        if names.is_empty() { "no configuration".to_owned() } else { names.join(" and ") }
    };
    let is_told = setups.iter().any(|(_, setup)| setup.page_cache == PageCache::Reclaimable);
    (frames > 0 && is_told).then(|| {
        format!(
            "{frames} pages were page cache (by GFP flags), allocated as MIGRATE_MOVABLE, as Linux does, by {}; as \
             reclaimable by {}.",
            plan_of(PageCache::AsTraced),
            plan_of(PageCache::Reclaimable)
        )
    })
}

/// Means of the figures of several replays.
#[derive(Default)]
struct Mean {
    replays: u32,
    unpinned: bool,
    /// Names and sums.
    sums: Vec<(String, f64)>,
}

impl Mean {
    fn add(&mut self, report: &Report) {
        let counter = |name: &str| report.counter(name).unwrap_or(0) as f64;
        let pages = report.allocated_frames.max(1) as f64;
        let moved =
            ["refilled_pages", "drained_pages", "direct_alloc_pages", "direct_free_pages"].map(counter);
        let mut add = |name: String, value: f64| match self.sums.iter_mut().find(|(known, _)| *known == name)
        {
            Some((_, sum)) => *sum += value,
            None => self.sums.push((name, value)),
        };
        add("zone_lock_acquisitions_per_page".to_owned(), counter("zone_lock_acquisitions") / pages);
        add("pages_moved_per_page".to_owned(), moved.iter().sum::<f64>() / pages);
        for name in ["zone_lock_waits", "refills", "drains", "fallbacks", "steals"] {
            add(name.to_owned(), counter(name));
        }
        for metric in report.metrics() {
            add(metric.name, metric.value);
        }
        self.replays += 1;
        self.unpinned |= !report.pinned;
    }

    fn finish(self, part: &mut Part, variant: &str) {
        for (name, sum) in self.sums {
            part.figure(name).sample(variant, sum / f64::from(self.replays.max(1)));
        }
        if self.unpinned {
            part.note("Threads could not be pinned to CPUs.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interrupt::Interrupt;
    use crate::settings::Settings;
    use crate::shipped;

    /// A page at a time, as a program that waits most of the time: in place of the descriptors' first page fault, which
    /// took a hundred times as long as all of it.
    #[test]
    fn a_short_trace_is_replayed_in_memory_that_is_there() {
        use framewright_trace::trace::{Comms, Event, EventKind};
        let mut comms = Comms::default();
        comms.intern("prog");
        let event = |n: u64| Event {
            time_ns: n * 1000,
            pfn: 1000 + n / 2,
            migratetype: Some(1),
            kind: if n.is_multiple_of(2) { EventKind::PageAlloc } else { EventKind::PageFree },
            ..Event::default()
        };
        let trace = Trace { events: (0..200).map(event).collect(), comms, ..Trace::default() };
        let replay = Replay::new(&trace, 1, None).expect("it holds events");
        let setup = Setup::default();
        let (mut first, mut later) = (0, u64::MAX);
        let cold = |report: &Report| {
            first = report.cpu_ns;
            true
        };
        replay.in_turn(&setup, 1, cold).expect("replayed");
        let warm = |report: &Report| {
            later = later.min(report.cpu_ns);
            true
        };
        replay.repeated(&setup, 20, warm).expect("replayed");
        assert!(later < first, "{later} ns after {first}");
    }

    #[test]
    fn no_round_begins_after_an_interrupt() {
        let trace = &shipped::compile().expect("it is built in").0;
        let trace = Trace { events: trace.events[..5000].to_vec(), ..trace.clone() };
        let replay = Replay::new(&trace, 1, None).expect("it holds events");
        let setups = ["base", "new"].map(|name| (name.to_owned(), Setup::default()));
        let progress = Progress::until(&Interrupt::raised(), "replay", 2);
        for repeats in [1, 2] {
            let mut part = Part::default();
            replay.rounds(&setups, 3, repeats, &mut part, &progress).expect("replayed");
            assert_eq!((progress.position(), part.metrics.len()), (0, 0), "{repeats} replays a sample");
        }
    }

    #[test]
    fn what_reclaimable_blocks_need_is_compiled_for_the_configuration_that_asks_for_them() {
        let trace = &shipped::compile().expect("it is built in").0;
        let trace = Trace { events: trace.events[..5000].to_vec(), ..trace.clone() };
        let replay = Replay::new(&trace, 1, None).expect("it holds events");
        let run = |pairs: &str| {
            let settings = Settings::from_pairs(pairs).expect("pairs");
            let setup = Setup::default().with(&settings).expect("settings");
            replay.repeated(&setup, 1, |_| true).expect("replayed");
            replay.plans.reclaimable.get().is_some()
        };
        assert!(!run("") && !run("preset=linux_v6_7"));
        assert!(run("page_cache=reclaimable"));
    }
}
