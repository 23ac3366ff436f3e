//! A trace, driven through any [`Target`](crate::target::Target) on real threads.
//!
//! | module | what it holds |
//! |---|---|
//! | `live` | the traced blocks in use, found by any of their frames |
//! | `plan` | a trace compiled for a number of threads: what each does, in which order |
//! | `run` | the threads that do it |
//! | `latency` | how long sampled operations took |
//! | `copies` | a trace on one CPU, in several copies: on threads or on simulated CPUs |
//! | `contiguity` | huge pages that can be had while the trace runs, and runs again |
//!
//! # What is replayed
//! Each allocation of the trace begins a *lifetime*, which its free ends; the frame that the traced kernel handed out
//! only tells lifetimes apart. Thread `cpu % threads` does what the traced CPU did, in the same order, as fast
//! as it can. A free waits for its allocation, wherever that runs, and for nothing else; a frame that is allocated
//! again is another lifetime. So that threads do not drift apart, which would need more memory than the traced
//! machine had, none runs ahead of the slowest by more than [`Options::window`] events.
//!
//! - A block that is freed in parts goes back in parts if the target takes them, otherwise as a whole with its last
//!   part.
//! - A free of frames whose allocation is not in the trace happens too: the block is allocated before the start.
//! - An allocation of frames that are still in use shows that their free was lost: they are freed first.
//! - `mm_page_free_batched` accompanies the `mm_page_free` of the same frame: on Linux 6.18 each follows it on
//!   the same CPU, in older kernels it comes first. It is counted only, except in a trace without any
//!   `mm_page_free`, where it is the free.
//! - `mm_page_alloc_zone_locked` and `mm_page_pcpu_drain` are what the traced allocator did by itself: counted, for
//!   comparison with the target's own.
//! - Pages of files are asked for as the traced kernel did, or as reclaimable blocks: see [`PageCache`].
//! - Nothing is moved: background compaction runs in `contiguity` only.
//! - Blocks that the trace does not free are live at the end, and freed after everything was measured.

mod contiguity;
mod copies;
mod latency;
mod live;
mod plan;
mod run;

pub use contiguity::{Aged, Ageing, Look, age, age_while};
pub use copies::{Recorded, copies};
pub use latency::Latency;
pub use live::{Live, Owner, Released};
pub use plan::{Counts, PageCache, Plan};
pub use run::replay;

use crate::bench::Metric;
use crate::target::Counter;

/// Largest order that is replayed: that of an allocator with 11 orders.
pub const MAX_ORDER: u8 = 10;

/// How a replay is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Every so many operations of a thread, one is timed; 0: none.
    pub sample_every: u32,
    /// Events of the trace by which a thread may be ahead of the slowest, at least 1.
    pub window: u32,
}

impl Default for Options {
    /// Every 61st (no divisor of loop lengths that occur), 16,384 events.
    fn default() -> Self {
        Self { sample_every: 61, window: 1 << 14 }
    }
}

/// Counts and times of one replay. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Threads that replayed.
    pub threads: usize,
    /// Each of them was bound to a CPU.
    pub pinned: bool,
    /// Allocations that got a block.
    pub allocations: u64,
    /// Frames of those blocks.
    pub allocated_frames: u64,
    /// Allocations that got none.
    pub failures: u64,
    /// Blocks freed whole, those with their last part among them.
    pub frees: u64,
    /// Parts that the target took back.
    pub part_frees: u64,
    /// Frees and parts whose allocation had failed: not done.
    pub skipped_frees: u64,
    /// Parts of blocks that the target takes back whole only: counted, and done with the last of them.
    pub deferred_parts: u64,
    /// Blocks that had to be there before the start and could not be had.
    pub prepare_failures: u64,
    /// From the first thread's start to the last thread's end.
    pub wall_ns: u64,
    /// CPU time of all threads, waiting for one another included.
    pub cpu_ns: u64,
    /// CPU time that they spent waiting.
    pub waited_cpu_ns: u64,
    /// Time of all threads from start to end, without their waits.
    pub busy_ns: u64,
    /// Time for which threads waited for an allocation elsewhere or for a slower thread.
    pub waited_ns: u64,
    /// How often.
    pub waits: u64,
    /// Sampled allocations.
    pub alloc_latency: Latency,
    /// Sampled frees, of blocks and of parts.
    pub free_latency: Latency,
    /// Cost of reading the clock twice: already taken off each sample. Besides it adds this, divided by
    /// [`Options::sample_every`], to each operation's share of `busy_ns`.
    pub clock_ns: u64,
    /// The target's counters, from the start to the end of the timed part.
    pub counters: Vec<Counter>,
    /// Frames in use after the last event.
    pub live_frames: u64,
    /// Order-9 blocks that could be allocated then, with nothing attached; `None` if the target cannot tell.
    pub free_huge_blocks: Option<u64>,
}

impl Report {
    /// Operations that reached the target during the timed part.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.allocations + self.failures + self.frees + self.part_frees
    }

    /// Nanoseconds per operation on its thread, waits excluded: `busy_ns` ÷ operations. It holds what the replay
    /// itself costs, a few nanoseconds: the plan is read, the block's number handed over.
    #[must_use]
    pub fn ns_per_operation(&self) -> f64 {
        self.busy_ns as f64 / self.operations().max(1) as f64
    }

    /// CPU time per operation, waits for other threads excluded. Unlike [`ns_per_operation`](Self::ns_per_operation),
    /// it does not grow when something else takes the CPU, nor when a thread sleeps for a lock.
    #[must_use]
    pub fn cpu_ns_per_operation(&self) -> f64 {
        self.cpu_ns.saturating_sub(self.waited_cpu_ns) as f64 / self.operations().max(1) as f64
    }

    /// A counter of the target, by name.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|counter| counter.name == name).map(|counter| counter.value)
    }

    /// The figures that any target has, under stable names.
    #[must_use]
    pub fn metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Metric::lower("wall_ms", "ms", self.wall_ns as f64 / 1e6),
            Metric::lower("cpu_ms", "ms", self.cpu_ns as f64 / 1e6),
            Metric::lower("ns_per_operation", "ns", self.ns_per_operation()),
            Metric::lower("cpu_ns_per_operation", "ns", self.cpu_ns_per_operation()),
        ];
        for (name, latency) in [("alloc_ns", &self.alloc_latency), ("free_ns", &self.free_latency)] {
            // Each with the samples of which one is above it: of fewer it would be the largest.
            for (quantile, least) in [(0.5, 2), (0.9, 10), (0.99, 100), (0.999, 1000)] {
                if let Some(ns) = latency.quantile(quantile).filter(|_| latency.samples().len() >= least) {
                    metrics.push(Metric::lower(format!("{name}[quantile={quantile}]"), "ns", f64::from(ns)));
                }
            }
        }
        metrics.push(Metric::lower("failed_allocations", "1", self.failures as f64));
        if let Some(blocks) = self.free_huge_blocks {
            let blocks = Metric::lower("free_huge_blocks", "1", blocks as f64);
            metrics.push(Metric { higher_is_better: true, ..blocks });
        }
        metrics
    }
}

#[cfg(test)]
mod tests;
