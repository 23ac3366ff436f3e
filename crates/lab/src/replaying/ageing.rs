//! Huge pages that can be had while a trace runs, and runs again, in memory that it nearly fills.

use framewright::units::MAX_ORDER;
use framewright_host::Order;
use framewright_report::error::Result;
use framewright_report::quantity::describe;
use framewright_report::result::Part;
use framewright_workload::replay::{Aged, Ageing};

use super::{QUANTITIES, Replay};
use crate::configure::Setup;
use crate::profile::size;
use crate::progress::Progress;
use crate::simulate::in_parallel;

/// Runs whose mean is reported, beside the first.
const RUNS: [usize; 6] = [1, 2, 3, 5, 10, 15];

/// Frames of an arena that a trace with this peak nearly fills: 1.3 times as many, in whole blocks of the largest
/// order. What is left over is as much as per-CPU lists and the leftovers of earlier runs may take.
pub(super) fn nearly_filled(peak: u64) -> u64 {
    (peak * 13 / 10).next_multiple_of(MAX_ORDER.pages()).max(4 * MAX_ORDER.pages())
}

/// Sentence about the pages that were moved. `moved` has for each configuration that moves pages its name, the rounds
/// of the first run, the pages that they moved, and those that were allocated.
fn compaction(moved: &[(&str, u64, u64, u64)]) -> Option<String> {
    let all: Vec<String> = moved
        .iter()
        .map(|(name, rounds, moved, allocated)| {
            format!("{name} moved {moved} pages in {rounds} rounds, {allocated} were allocated")
        })
        .collect();
    (!all.is_empty()).then(|| {
        format!(
            "Huge pages are reached by placement and by moving, in rounds of background compaction. In the first run {}. \
             compaction_proactiveness=0 is placement alone.",
            all.join("; ")
        )
    })
}

impl Replay<'_> {
    /// Runs the trace again and again under each setup, and adds to `part` how much of the free memory could be had as
    /// huge pages. It repeats exactly: each metric has one sample. Nothing is added if `progress` is interrupted.
    ///
    /// # Errors
    /// A configuration that the allocator refuses.
    pub fn age(
        &self,
        setups: &[(String, Setup)],
        ageing: &Ageing,
        part: &mut Part,
        progress: &Progress,
    ) -> Result<()> {
        let outcomes = in_parallel(
            setups,
            |(_, setup)| {
                let subject = setup.subject(self.tight, self.threads())?;
                Ok(subject.age(self.trace, self.plan(setup), ageing, &|| !progress.is_interrupted()))
            },
            || progress.step("huge pages"),
        );
        if progress.is_interrupted() {
            return Ok(());
        }
        part.condition("huge_pages_mib", self.tight >> 8);
        let mut moved = Vec::new();
        for ((name, setup), outcome) in setups.iter().zip(outcomes) {
            if let Some(runs) = outcome? {
                self.report(part, name, &runs);
                if let (Some(first), 1..) = (runs.first(), setup.config.compaction_proactiveness) {
                    moved.push((name.as_str(), first.rounds, first.compaction.moved, first.allocated));
                }
            }
        }
        part.note(format!(
            "Huge pages, fallbacks[memory=tight] and what follows them: {} runs of the trace, one after another, in {} MiB, \
             of which it uses {} at its peak. After each run {} of the leftover blocks are never freed, which ages the \
             memory. These rows are deterministic counts, not timings; from the second run on they depend on which blocks \
             stay, and another --seed shows how much.",
            ageing.runs,
            self.tight >> 8,
            size(self.counts().peak_frames << 12),
            match ageing.one_stays_in {
                0 => "none".to_owned(),
                n => format!("{} %", 100 / n),
            }
        ));
        part.notes.extend(compaction(&moved));
        describe(part, QUANTITIES);
        Ok(())
    }

    fn report(&self, part: &mut Part, variant: &str, runs: &[Aged]) {
        let Some(first) = runs.first() else { return };
        let mut percent = |name: &str, share: f64| {
            let name = format!("huge_available_percent{name}");
            part.figure(name).sample(variant, 100.0 * share).exact();
        };
        percent("", first.mean());
        for from in (0..100).step_by(10) {
            if let Some(mean) = first.in_band(from, self.tight) {
                percent(&format!("[free={from}-{}]", from + 10), mean);
            }
        }
        percent("[at=end]", first.end());
        for run in RUNS {
            if let Some(aged) = runs.get(run - 1) {
                percent(&format!("[repeat={run}]"), aged.mean());
            }
        }
        if let (Some(last), true) = (runs.last(), runs.len() > 1) {
            percent(&format!("[repeat={},at=end]", runs.len()), last.end());
        }
        for (run, aged) in [(1, runs.first()), (runs.len(), runs.last())] {
            let Some((mean, end)) = aged.map(Aged::possible) else { continue };
            let mut possible = |at: &str, share: f64| {
                let name = format!("huge_possible_percent[repeat={run}{at}]");
                part.figure(name).sample(variant, 100.0 * share).exact();
            };
            possible("", mean);
            possible(",at=end", end);
        }
        let mut count = |name: String, value: f64| {
            part.figure(name).sample(variant, value).exact();
        };
        count("compaction_moved_per_allocated".to_owned(), first.moved_per_allocated());
        if let (Some(last), true) = (runs.last(), runs.len() > 1) {
            let name = format!("compaction_moved_per_allocated[repeat={}]", runs.len());
            count(name, last.moved_per_allocated());
        }
        for (order, index) in Order::all().zip(first.unusable) {
            count(format!("unusable_free_index[order={}]", order.get()), index);
        }
        count("unmovable_pageblocks".to_owned(), first.unmovable_pageblocks());
        for name in ["fallbacks", "steals"] {
            let counted = |aged: &Aged| {
                aged.counters.iter().find(|counter| counter.name == name).map_or(0, |counter| counter.value)
            };
            count(format!("{name}[memory=tight]"), counted(first) as f64);
        }
        let failed: u64 = runs.iter().map(|aged| aged.failures).sum();
        count("failed_allocations[memory=tight]".to_owned(), failed as f64);
    }
}
