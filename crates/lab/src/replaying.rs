//! A trace under several configurations, in turns: what `replay` and the studies' replay parts share.

use framewright_workload::replay::{self, Counts, Options, Plan, Report};
use framewright_workload::trace::Trace;

use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::result::{Better, Part};
use crate::subject::{Bare, Subject, with};

/// Frames that an arena has at least: 1 GiB.
const LEAST_FRAMES: u64 = 1 << 18;

/// A trace, compiled for a number of threads, and the memory it is replayed in.
#[derive(Debug)]
pub struct Replay {
    plan: Plan,
    frames: u64,
}

impl Replay {
    /// Compiles `trace`. Without `frames`, the arena has twice what the trace ever used, and at least 1 GiB.
    ///
    /// # Errors
    /// The trace has nothing to replay, or more than fits in `frames`.
    pub fn new(trace: &Trace, threads: usize, frames: Option<u64>) -> Result<Self> {
        let plan = Plan::compile(trace, threads).map_err(Error::failed)?;
        let peak = plan.counts().peak_frames;
        let frames = frames.unwrap_or_else(|| (2 * peak).next_power_of_two().max(LEAST_FRAMES));
        if frames < peak {
            return Err(Error::failed(format_args!(
                "the trace uses up to {} MiB at a time: give it more --memory than that",
                peak.div_ceil(256)
            )));
        }
        Ok(Self { plan, frames })
    }

    /// What the trace holds.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        self.plan.counts()
    }

    /// Replays under each setup in turns, `samples` times, and adds what was measured to `part`.
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
        let options = Options::default();
        for round in 0..samples as usize {
            for turn in 0..setups.len() {
                let (name, setup) = &setups[(round + turn) % setups.len()];
                let subject = Subject::new(setup, self.frames, self.plan.threads())?;
                let report = with!(&subject, arena => replay::replay(&self.plan, &Bare(arena), &options));
                add(part, name, &report);
                progress.step(name);
            }
        }
        self.explain(part);
        Ok(())
    }

    fn explain(&self, part: &mut Part) {
        let counts = self.counts();
        part.note(format!(
            "{} allocations of {} pages and {} frees on {} threads in {} MiB; {} freed on another thread, {} in parts, \
             {} of blocks allocated before the trace, {} still live at its end (pages).",
            counts.allocations,
            counts.allocated_frames,
            counts.frees + counts.part_frees,
            self.plan.threads(),
            self.frames >> 8,
            counts.cross_thread_frees,
            counts.part_frees,
            counts.unknown_frees,
            counts.live_frames
        ));
        let available = std::thread::available_parallelism().map_or(1, usize::from);
        if self.plan.threads() > available {
            part.note(format!("{} threads shared {available} CPUs.", self.plan.threads()));
        }
    }
}

fn add(part: &mut Part, variant: &str, report: &Report) {
    let counter = |name: &str| report.counter(name).unwrap_or(0) as f64;
    let pages = report.allocated_frames.max(1) as f64;
    let moved = ["refilled_pages", "drained_pages", "direct_alloc_pages", "direct_free_pages"].map(counter);
    let mut lower = |name: &str, unit: &str, value: f64| {
        part.metric(name, unit, Better::Lower).sample(variant, value);
    };
    lower("zone_lock_acquisitions_per_page", "1", counter("zone_lock_acquisitions") / pages);
    lower("pages_moved_per_page", "1", moved.iter().sum::<f64>() / pages);
    for name in ["zone_lock_waits", "refills", "drains", "fallbacks", "steals"] {
        lower(name, "1", counter(name));
    }
    for metric in report.metrics() {
        let better = match metric.better {
            framewright_workload::bench::Better::Lower => Better::Lower,
            framewright_workload::bench::Better::Higher => Better::Higher,
        };
        part.metric(metric.name, metric.unit, better).sample(variant, metric.value);
    }
    if !report.pinned {
        part.note("Threads could not be pinned to CPUs.");
    }
}
