//! Allocators side by side: the same rounds, interleaved.
//!
//! Frequency, neighbours and temperature drift over seconds. So one round of each allocator follows the other
//! closely, and the allocator that goes first changes with every round: drift hits all alike.

use core::panic::AssertUnwindSafe;
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicBool, AtomicUsize};
use std::panic::catch_unwind;

use super::team::pin;
use super::{Case, Measurement, Scale, Workload, fragmentation, measure, ready};
use crate::target::Target;

/// One allocator in a comparison, whatever its type. [`Allocator`] makes one from any [`Target`].
pub trait Runner {
    /// Name in results: `framewright`, `vec_mutex`, …
    fn name(&self) -> &str;

    /// Runs one round. What it builds for a case it keeps for the case's later rounds.
    ///
    /// # Errors
    /// The allocator cannot be created at this scale: one line.
    fn round(&mut self, case: &Case, scale: &Scale, round: u64) -> Result<Measurement, String>;

    /// Lets go of what the last case needed.
    fn finish(&mut self);
}

/// A [`Runner`] of any [`Target`], from a function that builds one.
pub struct Allocator<T, F> {
    name: String,
    build: F,
    target: Option<T>,
}

impl<T, F> core::fmt::Debug for Allocator<T, F> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Allocator").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<T, F> Allocator<T, F>
where
    T: Target,
    F: FnMut(u64, usize) -> Result<T, String>,
{
    /// An allocator that `build(frames, cpus)` creates: all its frames free, for that many CPUs at a time.
    pub fn new(name: impl Into<String>, build: F) -> Self {
        Self { name: name.into(), build, target: None }
    }
}

impl<T, F> Runner for Allocator<T, F>
where
    T: Target,
    F: FnMut(u64, usize) -> Result<T, String>,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn round(&mut self, case: &Case, scale: &Scale, round: u64) -> Result<Measurement, String> {
        match case.workload {
            Workload::Ready => ready(&mut self.build, scale),
            Workload::Fragmentation => fragmentation(&mut self.build, scale),
            _ => {
                let target = match &mut self.target {
                    Some(target) => target,
                    none => none.insert((self.build)(scale.frames, case.cpus)?),
                };
                // An allocator that hands a block out twice ends a workload that checks its blocks.
                let measured = catch_unwind(AssertUnwindSafe(|| measure(target, case, scale, round)));
                measured.map_err(|_| {
                    "it failed a check of this workload; --rivals=NAMES can leave a rival out".to_owned()
                })
            }
        }
    }

    fn finish(&mut self) {
        self.target = None;
    }
}

/// A [`Runner`] whose rounds run beside threads that do nothing but use their processor: one after the other pinned to
/// the processors that this program may use, of the same priority. So its threads are preempted wherever they are, also
/// while they hold a lock.
pub struct Beside {
    name: String,
    runner: Box<dyn Runner>,
    loops: usize,
}

impl core::fmt::Debug for Beside {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Beside").field("name", &self.name).field("loops", &self.loops).finish_non_exhaustive()
    }
}

impl Beside {
    /// A runner beside so many busy threads. Its name is the runner's, and `_busy`.
    #[must_use]
    pub fn new(runner: Box<dyn Runner>, loops: usize) -> Self {
        Self { name: format!("{}_busy", runner.name()), runner, loops }
    }
}

/// Tells busy threads to end when it goes, also if a round panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Runner for Beside {
    fn name(&self) -> &str {
        &self.name
    }

    fn round(&mut self, case: &Case, scale: &Scale, round: u64) -> Result<Measurement, String> {
        let (stop, running) = (AtomicBool::new(false), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let _stop = Stop(&stop);
            for n in 0..self.loops {
                let (stop, running) = (&stop, &running);
                scope.spawn(move || {
                    pin(n);
                    running.fetch_add(1, Relaxed);
                    while !stop.load(Relaxed) {
                        core::hint::spin_loop();
                    }
                });
            }
            while running.load(Relaxed) < self.loops {
                std::thread::yield_now();
            }
            self.runner.round(case, scale, round)
        })
    }

    fn finish(&mut self) {
        self.runner.finish();
    }
}

/// All rounds of one case.
#[derive(Clone, Debug, PartialEq)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// One per metric, in the order of [`Measurement::metrics`].
    pub series: Vec<Series>,
    /// By allocator, in the order given: allocations that failed, over all rounds. Where it is not 0, that
    /// allocator's samples are not comparable.
    pub failures: Vec<(String, u64)>,
    /// Threads were pinned in every round.
    pub pinned: bool,
}

/// The samples of one metric.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// As [`Metric::name`](super::Metric::name).
    pub name: String,
    /// As [`Metric::unit`](super::Metric::unit).
    pub unit: &'static str,
    /// As [`Metric::higher_is_better`](super::Metric::higher_is_better).
    pub higher_is_better: bool,
    /// By allocator, in the order given: one sample per round. An allocator for which the metric means nothing
    /// is not there.
    pub samples: Vec<(String, Vec<f64>)>,
}

/// The round that is about to run.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The case.
    pub case: &'a Case,
    /// The allocator.
    pub allocator: &'a str,
    /// Rounds of all allocators and cases done so far.
    pub done: usize,
    /// Rounds of all allocators and cases.
    pub total: usize,
}

/// Runs every case on every allocator, `rounds` times, and calls `progress` before each round. Where that returns
/// `false`, the work ends, and the rounds that all allocators have done are the result.
///
/// # Errors
/// Two allocators have the same name, or one cannot be created: its name and its reason in one line.
pub fn interleave(
    runners: &mut [Box<dyn Runner + '_>],
    cases: &[Case],
    scale: &Scale,
    rounds: usize,
    mut progress: impl FnMut(&Progress<'_>) -> bool,
) -> Result<Vec<CaseResult>, String> {
    for (index, runner) in runners.iter().enumerate() {
        if runners[..index].iter().any(|earlier| earlier.name() == runner.name()) {
            return Err(format!("two allocators are called {}: give each a name of its own", runner.name()));
        }
    }
    let total = cases.iter().map(|case| case.workload.rounds(rounds) * runners.len()).sum();
    let mut done = 0;
    let mut results = Vec::with_capacity(cases.len());
    for case in cases {
        let mut by_runner: Vec<Vec<Measurement>> = vec![Vec::new(); runners.len()];
        let mut go_on = true;
        'rounds: for round in 0..case.workload.rounds(rounds) {
            for turn in 0..runners.len() {
                let index = (round + turn) % runners.len();
                let runner = &mut runners[index];
                go_on = progress(&Progress { case, allocator: runner.name(), done, total });
                if !go_on {
                    by_runner.iter_mut().for_each(|measurements| measurements.truncate(round));
                    break 'rounds;
                }
                let measurement = runner
                    .round(case, scale, round as u64)
                    .map_err(|reason| format!("{}: {case}: {reason}", runner.name()))?;
                by_runner[index].push(measurement);
                done += 1;
            }
        }
        runners.iter_mut().for_each(|runner| runner.finish());
        results.push(collect(case, runners, &by_runner));
        if !go_on {
            break;
        }
    }
    Ok(results)
}

fn collect(case: &Case, runners: &[Box<dyn Runner + '_>], by_runner: &[Vec<Measurement>]) -> CaseResult {
    let all = || by_runner.iter().flatten();
    let mut result =
        CaseResult { case: *case, series: Vec::new(), failures: Vec::new(), pinned: all().all(|m| m.pinned) };
    for (runner, measurements) in runners.iter().zip(by_runner) {
        result.failures.push((runner.name().to_owned(), measurements.iter().map(|m| m.failures).sum()));
        for metric in measurements.iter().flat_map(|m| &m.metrics) {
            let series = match result.series.iter_mut().position(|series| series.name == metric.name) {
                Some(index) => &mut result.series[index],
                None => {
                    result.series.push(Series {
                        name: metric.name.clone(),
                        unit: metric.unit,
                        higher_is_better: metric.higher_is_better,
                        samples: Vec::new(),
                    });
                    result.series.last_mut().expect("just pushed")
                }
            };
            match series.samples.last_mut().filter(|(name, _)| name == runner.name()) {
                Some((_, samples)) => samples.push(metric.value),
                None => series.samples.push((runner.name().to_owned(), vec![metric.value])),
            }
        }
    }
    result
}
