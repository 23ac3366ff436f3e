//! What a reader sees: files keep every row, tables and plots those that say something. Of where simulated time goes,
//! only cache lines that matter; of the rest, only what is not the same in every variant.

use std::collections::{BTreeMap, BTreeSet};

use crate::result::{Document, Kind, Metric, Part};

/// A line is shown if it has at least this share of the waiting of its run, in some variant.
const SHARE: f64 = 0.05;

impl Document {
    /// This document without rows that say little: cache lines that CPUs hardly wait for, and figures that no variant
    /// changes. Each part says how many rows that are.
    pub fn in_short(mut self) -> Self {
        self.results.iter_mut().for_each(Part::shorten);
        self
    }
}

impl Part {
    fn shorten(&mut self) {
        let mut whole: BTreeMap<(String, &str), f64> = BTreeMap::new();
        for (metric, (_, run)) in self.metrics.iter().filter_map(|metric| Some((metric, line(metric)?))) {
            for (variant, mean) in waits(metric) {
                *whole.entry((run.clone(), variant)).or_default() += mean;
            }
        }
        let matters = |metric: &Metric, run: &String| {
            waits(metric).any(|(variant, mean)| mean > 0.0 && mean >= SHARE * whole[&(run.clone(), variant)])
        };
        let shown: BTreeSet<(String, String)> = self
            .metrics
            .iter()
            .filter_map(|metric| line(metric).filter(|(_, run)| matters(metric, run)))
            .collect();
        let before = self.metrics.len();
        self.metrics.retain(|metric| line(metric).is_none_or(|line| shown.contains(&line)));
        let left_out = before - self.metrics.len();
        if left_out > 0 {
            self.note(format!(
                "{}: cache lines with under {:.0} % of the wait time (--all shows them).",
                rows_hidden(left_out),
                SHARE * 100.0
            ));
        }
        self.hide_unchanged();
    }

    /// Removes metrics whose samples are all the same number, unless that is all there is, or what the part is about.
    fn hide_unchanged(&mut self) {
        let changes = |metric: &Metric| {
            let mut samples = metric.samples.values().flatten();
            let first = samples.next();
            metric.samples.len() < 2 || samples.any(|sample| Some(sample) != first)
        };
        if self.kind == Kind::Derived || self.variants.len() < 2 || !self.metrics.iter().any(changes) {
            return;
        }
        let mut metrics = core::mem::take(&mut self.metrics);
        let before = metrics.len();
        metrics.retain(|metric| changes(metric) || self.is_headline(metric));
        let hidden = before - metrics.len();
        self.metrics = metrics;
        if hidden > 0 {
            self.note(format!("{}: the same in every variant (--all shows them).", rows_hidden(hidden)));
        }
    }
}

/// How a note about hidden rows begins.
pub(crate) fn rows_hidden(count: usize) -> String {
    if count == 1 { "1 row hidden".to_owned() } else { format!("{count} rows hidden") }
}

/// Which line a metric is about, and the other parameters: the run that it was seen in.
fn line(metric: &Metric) -> Option<(String, String)> {
    if !matches!(metric.family(), "line_wait_ns" | "line_transfers") {
        return None;
    }
    let (_, line) = metric.parameters().find(|(name, _)| *name == "line")?;
    let others: Vec<String> = metric
        .parameters()
        .filter(|(name, _)| *name != "line")
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    Some((line.to_owned(), others.join(",")))
}

/// Mean time waited, by variant; nothing if the metric is something else.
fn waits(metric: &Metric) -> impl Iterator<Item = (&str, f64)> {
    let samples = metric.samples.iter().filter(|_| metric.family() == "line_wait_ns");
    samples.map(|(variant, samples)| {
        (variant.as_str(), samples.iter().sum::<f64>() / samples.len().max(1) as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::result::Better;

    #[test]
    fn lines_that_matter_in_one_variant_of_one_run_are_kept() {
        let mut part = Part::new("s", "p", Kind::Simulated, "m").variant("a").variant("b").baseline("a");
        let mut add = |name: &str, a: f64, b: f64| {
            part.metric(name, "ns", Better::Lower).sample("a", a).sample("b", b);
        };
        add("alloc_ns[cores=2]", 0.0, 1.0);
        add("steals", 7.0, 7.0);
        for (line, a, b) in [("zone_lock", 90.0, 10.0), ("lists", 9.0, 0.1), ("slots", 1.0, 0.4)] {
            add(&format!("line_transfers[line={line},cores=2]"), 1.0, 1.0);
            add(&format!("line_wait_ns[line={line},cores=2]"), a, b);
            // In another run, no CPU waits.
            add(&format!("line_wait_ns[line={line},cores=1]"), 0.0, 0.0);
        }
        let short = Document::new("test", Host::probe()).with(part).in_short();
        let names: Vec<_> = short.results[0].metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(
            names,
            ["alloc_ns[cores=2]", "line_wait_ns[line=zone_lock,cores=2]", "line_wait_ns[line=lists,cores=2]",]
        );
        assert_eq!(
            short.results[0].notes,
            [
                "5 rows hidden: cache lines with under 5 % of the wait time (--all shows them).",
                "3 rows hidden: the same in every variant (--all shows them)."
            ]
        );
    }
}
