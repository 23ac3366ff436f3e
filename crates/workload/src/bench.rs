//! Generated workloads, driven through any [`Target`] on real threads.
//!
//! | module | what it holds |
//! |---|---|
//! | [`stage`], `threads` | where a workload runs: simulated CPUs, or this machine's threads |
//! | `team` | threads that start together, each pinned to a CPU of its own where the system allows |
//! | `lists` | hot pair, bulk, random put, churn, filled: blocks of one order in preallocated lists |
//! | `ring`, `handoff` | one thread allocates, another frees |
//! | `mixed`, `storm` | mixed orders; processes that fault pages in and exit |
//! | `stress` | mixed orders up to huge pages in memory that is mostly held, and what is left of huge pages |
//! | `fragmentation` | large blocks left after churn; not timed |
//! | [`rounds`] | allocators side by side, interleaved round by round |
//!
//! # What a figure means
//! Times are nanoseconds per operation **on its thread**: the sum over the threads of the time that each took,
//! divided by the operations that all of them did. Two threads that do not disturb one another show the same
//! figure as one; the throughput of the run is threads ÷ figure. An operation is one allocation or one free,
//! except where a workload says *pair*.
//!
//! The harness reads and writes one list element per block, at most one random number per step, and nothing of
//! the blocks themselves. After each operation the compiler must assume that the allocator's state has changed,
//! as after a call that it cannot see through, so that it neither merges nor drops operations. What the
//! harness costs is what an allocator shows that only pops and pushes (`vec_per_thread` of the rivals).
//!
//! An allocation that fails is counted and skipped. Figures with failures are not comparable: less was done.

mod fragmentation;
mod handoff;
mod lists;
mod mixed;
mod ring;
pub mod rounds;
pub mod stage;
mod storm;
mod stress;
pub(crate) mod team;
mod threads;

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use std::time::Instant;

use crate::target::{Mobility, Target, TargetCpu};

pub use fragmentation::fragmentation;
pub use rounds::{Allocator, Beside, CaseResult, Progress, Runner, Series, interleave};
pub use stage::Stage;
pub use threads::Threads;

/// Bytes of a frame, for sizes given in GiB.
const FRAME_BYTES: u64 = 4096;

/// Work for an allocator: what `framewright bench` times. Workloads of studies are in the lab; `own_bench` among them
/// runs some of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Workload {
    /// Allocate one block, free it, again and again. `hot_pair_ns` is per pair. Each thread holds some blocks
    /// with gaps of one between them, as in memory that is in use: a buddy allocator need not split its
    /// largest block and merge it again for each pair.
    HotPair,
    /// Allocate a list of blocks, meet the other threads, free them in the same order. `bulk_get_ns` and
    /// `bulk_put_ns`.
    Bulk,
    /// Allocate as in bulk, shuffle the blocks of all threads together, deal them out again, free: only this is
    /// timed. `random_put_ns`.
    RandomPut,
    /// Hold a list of blocks; each step frees a random one and allocates another in its place. `churn_ns` is
    /// per step, a pair.
    Churn,
    /// Hot pair and churn of few blocks while each thread holds 0, 2, 8 and 15 sixteenths of its share of the memory:
    /// `filled_pair_0_ns` to `filled_churn_15_ns`. Flat, if nothing depends on how full memory is.
    Filled,
    /// One thread of two allocates and sends, the other receives and frees. `handoff_ns` is wall time per block;
    /// `handoff_ring_ns` is the same with numbers in place of blocks: what the ring between them costs.
    Handoff,
    /// Random allocations and frees of orders 0 to 4, around a steady occupancy. `mixed_ns` is per operation.
    Mixed,
    /// Random allocations and frees of orders 0 to 9 while 50, 75 and 90 % of the memory are held, an eighth of them
    /// freed by another thread, every block marked: `stress_50_ns` to `stress_90_ns` are per operation,
    /// `stress_50_huge_percent` to `stress_90_huge_percent` the order-9 blocks that one thread can have behind it, in
    /// percent of what the free frames could make, `stress_50_refused_percent` to `stress_90_refused_percent` the
    /// allocations that found no block (a figure, not failures). One operation in sixteen, which hands a block over,
    /// does not call the allocator.
    Stress,
    /// Short processes: some live at a time on each thread, each faults in thousands of order-0 pages in small
    /// bursts, then frees all in one burst and gives way to the next. `exit_storm_ns` is per operation over
    /// all, `exit_storm_put_ns` per free.
    ExitStorm,
    /// Create an allocator of [`Scale::ready_gib`], attach, allocate and free one page: `ready_ms`; and
    /// `metadata_bytes_per_frame` of those that tell.
    Ready,
    /// Order-9 blocks that can still be had, in percent of what the free frames could make: `huge_left_percent` at 50 %
    /// occupancy after a churn of 16 times the memory in use, and after 200 rounds that each replace a tenth of it; at
    /// 80 % after a churn of 16 times all memory, by lifetimes and with random victims. Of the allocations those that
    /// found no block: `failed_percent`. One thread, untimed, repeats exactly.
    Fragmentation,
}

impl Workload {
    /// All workloads, in the order they should run and print.
    pub const ALL: [Self; 11] = [
        Self::HotPair,
        Self::Bulk,
        Self::RandomPut,
        Self::Churn,
        Self::Filled,
        Self::Handoff,
        Self::Mixed,
        Self::Stress,
        Self::ExitStorm,
        Self::Ready,
        Self::Fragmentation,
    ];

    /// Name on the command line, `snake_case`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::HotPair => "hot_pair",
            Self::Bulk => "bulk",
            Self::RandomPut => "random_put",
            Self::Churn => "churn",
            Self::Filled => "filled",
            Self::Handoff => "handoff",
            Self::Mixed => "mixed",
            Self::Stress => "stress",
            Self::ExitStorm => "exit_storm",
            Self::Ready => "ready",
            Self::Fragmentation => "fragmentation",
        }
    }

    /// Whether it does something else for another order.
    #[must_use]
    pub const fn has_order(self) -> bool {
        matches!(
            self,
            Self::HotPair | Self::Bulk | Self::RandomPut | Self::Churn | Self::Filled | Self::Handoff
        )
    }

    /// Whether it can run on so many threads.
    #[must_use]
    pub const fn runs_on(self, cpus: usize) -> bool {
        match self {
            Self::Handoff => cpus >= 2 && cpus.is_multiple_of(2),
            Self::Ready | Self::Fragmentation => cpus == 1,
            _ => cpus >= 1,
        }
    }

    /// Rounds worth running when `wanted` are asked for: one if it repeats exactly.
    #[must_use]
    pub const fn rounds(self, wanted: usize) -> usize {
        match self {
            Self::Fragmentation => 1,
            _ => wanted,
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|workload| workload.name() == name).ok_or_else(|| {
            format!("no workload `{name}`: choose among {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

/// One workload with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// The work.
    pub workload: Workload,
    /// Order of the blocks, 0 to 10; 0 where the workload has no order.
    pub order: u8,
    /// Threads, each a CPU of the allocator.
    pub cpus: usize,
}

impl Case {
    /// Every workload with every order and thread count that it has, workload by workload.
    #[must_use]
    pub fn all(workloads: &[Workload], orders: &[u8], cpus: &[usize]) -> Vec<Self> {
        let mut cases = Vec::new();
        for &workload in workloads {
            for &order in if workload.has_order() { orders } else { &[0] } {
                if workload.runs_on(1) && !workload.runs_on(2) {
                    cases.push(Self { workload, order, cpus: 1 });
                    continue;
                }
                let fitting = cpus.iter().filter(|&&cpus| workload.runs_on(cpus));
                cases.extend(fitting.map(|&cpus| Self { workload, order, cpus }));
            }
        }
        cases
    }

    /// `name[order=3,cpus=2]`, the order only where the workload has one.
    fn key(&self, name: &str) -> String {
        if self.workload.has_order() {
            format!("{name}[order={},cpus={}]", self.order, self.cpus)
        } else {
            format!("{name}[cpus={}]", self.cpus)
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.workload {
            Workload::Ready | Workload::Fragmentation => f.pad(self.workload.name()),
            workload => f.pad(&self.key(workload.name())),
        }
    }
}

/// How much is done. The same for every allocator of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Frames that each allocator manages in the timed workloads. Lists of blocks hold half of them, all threads
    /// together, mixed orders a quarter.
    pub frames: u64,
    /// Operations, or pairs, that each thread times in one round, about; fewer where they would take longer than
    /// 50 ms, but for mixed orders and short processes.
    pub operations: u64,
    /// Memory of the allocator whose creation is timed, in GiB.
    pub ready_gib: u64,
    /// Frames of the allocator whose fragmentation is measured, at least 4096.
    pub fragmentation_frames: u64,
    /// Seed of every random choice. A round mixes its number in.
    pub seed: u64,
}

impl Default for Scale {
    /// 1 GiB, about a millisecond per figure and round: shorter than a time slice, so that on a busy machine some
    /// rounds are undisturbed; 1 TiB ready; 4 GiB for fragmentation.
    fn default() -> Self {
        Self { frames: 1 << 18, operations: 1 << 18, ready_gib: 1024, fragmentation_frames: 1 << 20, seed: 1 }
    }
}

impl Scale {
    /// So little that every workload ends within milliseconds: for tests.
    #[must_use]
    pub fn tiny() -> Self {
        Self { frames: 1 << 14, operations: 2000, ready_gib: 1, fragmentation_frames: 1 << 13, seed: 1 }
    }

    /// Blocks of `order` that each of `cpus` threads holds: together half of the frames, at least one.
    fn blocks(&self, order: u8, cpus: usize) -> usize {
        let blocks = ((self.frames / 2) >> order) / cpus as u64;
        usize::try_from(blocks).unwrap_or(usize::MAX).max(1)
    }
}

/// One figure of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Stable name with parameters: `hot_pair_ns[order=0,cpus=1]`, `ready_ms[gib=1024]`,
    /// `huge_left_percent[occupancy=50]`.
    pub name: String,
    /// Unit: `ns`, `ms`, `%`.
    pub unit: &'static str,
    /// Whether a higher figure is better; otherwise a lower one is.
    pub higher_is_better: bool,
    /// The figure.
    pub value: f64,
}

impl Metric {
    /// A figure of which less is better.
    pub(crate) fn lower(name: impl Into<String>, unit: &'static str, value: f64) -> Self {
        Self { name: name.into(), unit, higher_is_better: false, value }
    }

    /// A share of a whole.
    pub(crate) fn percent(name: String, higher_is_better: bool, part: u64, whole: u64) -> Self {
        Self { name, unit: "%", higher_is_better, value: 100.0 * part as f64 / whole.max(1) as f64 }
    }
}

/// Result of one round of one case on one allocator.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measurement {
    /// The figures; none if the workload means nothing for this allocator.
    pub metrics: Vec<Metric>,
    /// Operations that were timed, on all threads.
    pub operations: u64,
    /// Allocations that found no block. Figures with failures are not comparable.
    pub failures: u64,
    /// Allocations asked for, where their number is part of a figure.
    pub allocations: u64,
    /// No thread could move to another CPU during the round; also true where placement does not matter.
    pub pinned: bool,
}

/// Runs one round of a timed workload. [`Workload::Stress`] has no figures for an allocator without a bound: it takes
/// all there is.
///
/// # Panics
/// If the case is [`Workload::Ready`] or [`Workload::Fragmentation`], which create their allocator themselves,
/// or cannot run on that many CPUs.
pub fn measure<T: Target>(target: &T, case: &Case, scale: &Scale, round: u64) -> Measurement {
    if case.workload == Workload::Stress && target.frames().is_none() {
        return Measurement { pinned: true, ..Measurement::default() };
    }
    perform(&Threads(target), case, scale, round)
}

/// Like [`measure`], on any stage.
///
/// # Panics
/// As [`measure`].
pub fn perform<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    assert!(case.workload.runs_on(case.cpus), "{case}: not on {} CPUs", case.cpus);
    match case.workload {
        Workload::HotPair => lists::hot_pair(stage, case, scale),
        Workload::Bulk => lists::bulk(stage, case, scale),
        Workload::RandomPut => lists::random_put(stage, case, scale, round),
        Workload::Churn => lists::churn(stage, case, scale, round),
        Workload::Filled => lists::filled(stage, case, scale, round),
        Workload::Handoff => handoff::handoff(stage, case, scale),
        Workload::Mixed => mixed::mixed(stage, case, scale, round),
        Workload::Stress => stress::stress(stage, case, scale, round),
        Workload::ExitStorm => storm::exit_storm(stage, case, scale, round),
        Workload::Ready | Workload::Fragmentation => panic!("{case}: measured through a builder"),
    }
}

/// Times the creation of an allocator of `scale.ready_gib`, up to the end of its first allocation and free.
///
/// # Errors
/// What `build(frames, cpus)` says.
pub fn ready<T: Target>(
    build: &mut impl FnMut(u64, usize) -> Result<T, String>,
    scale: &Scale,
) -> Result<Measurement, String> {
    let frames = scale.ready_gib.saturating_mul((1 << 30) / FRAME_BYTES);
    let start = Instant::now();
    let target = build(frames, 1)?;
    let mut cpu = target.attach(0);
    let page = cpu.alloc(0, Mobility::Movable);
    if let Some(page) = page {
        cpu.free(page, 0);
    }
    let elapsed = start.elapsed();
    drop(cpu);
    let mut measurement = Measurement {
        operations: 1,
        failures: u64::from(page.is_none()),
        pinned: true,
        ..Measurement::default()
    };
    let gib = scale.ready_gib;
    if target.frames().is_some() {
        let ms = elapsed.as_secs_f64() * 1e3;
        measurement.metrics.push(Metric::lower(format!("ready_ms[gib={gib}]"), "ms", ms));
    }
    if let Some(bytes) = target.metadata_bytes_per_frame() {
        let name = format!("metadata_bytes_per_frame[gib={gib}]");
        measurement.metrics.push(Metric::lower(name, "bytes", bytes));
    }
    Ok(measurement)
}

/// Time and operations of one thread, or summed over threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    ns: u64,
    pub(crate) operations: u64,
    pub(crate) failures: u64,
}

impl Tally {
    /// Times work on so many operations, which returns how many of them failed.
    #[inline(always)]
    fn time<S: Stage>(&mut self, operations: u64, work: impl FnOnce() -> u64) -> u64 {
        let start = S::now();
        let failures = work();
        self.add(S::since(start), operations, failures);
        failures
    }

    /// Adds a stretch of work that took so long.
    pub(crate) fn add(&mut self, elapsed: Duration, operations: u64, failures: u64) {
        // 2^64 ns are 584 years.
        self.ns += elapsed.as_nanos() as u64;
        self.operations += operations;
        self.failures += failures;
    }

    pub(crate) fn sum(parts: impl IntoIterator<Item = Self>) -> Self {
        parts.into_iter().fold(Self::default(), |sum, part| Self {
            ns: sum.ns + part.ns,
            operations: sum.operations + part.operations,
            failures: sum.failures + part.failures,
        })
    }

    /// Nanoseconds per operation.
    pub(crate) fn metric(&self, name: String) -> Metric {
        let value = self.ns as f64 / self.operations.max(1) as f64;
        Metric::lower(name, "ns", value)
    }
}

/// In a list of blocks: not allocated, or the allocation failed.
pub(crate) const NONE: u64 = u64::MAX;

/// The compiler must assume that `cpu` was read and changed here. Costs no instruction; state that was kept in
/// registers goes back to memory, where that of a real allocator lies between two calls.
#[inline(always)]
fn opaque<C>(cpu: &mut C) {
    core::hint::black_box(cpu);
}

#[cfg(test)]
mod tests;
