//! Samples of simulated parts: the traffic of lines, intervals, and where they come from.

use framewright_report::result::Part;
use framewright_report::stats::quantile_of_sorted;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::engine::Moved;

/// Adds the traffic of the lines that any run so far has moved, divided by `each`, and the use of memory bandwidth.
pub(crate) fn add_moved(
    result: &mut Part,
    parameter: &impl Fn(String) -> String,
    variant: &str,
    moved: &Moved,
    each: f64,
) {
    let samples_of =
        |result: &Part, name: &str| result.find(name).map_or(0, |figure| figure.of(variant).len());
    let mut runs = 0;
    for (node, share) in moved.bandwidth.iter().enumerate() {
        let name = format!("memory_bandwidth[{}]", parameter(format!("node={node}")));
        result.figure(&*name).sample(variant, 100.0 * share);
        runs = samples_of(result, &name);
    }
    for traffic in &moved.lines {
        let is_idle = traffic.transfers + traffic.fetches == 0 && traffic.waited == Ps(0);
        let parameters = parameter(format!("line={}", traffic.name.replace([' ', '-'], "_")));
        let mut add = |family: &str, value: f64| {
            let name = format!("{family}[{parameters}]");
            let before = samples_of(result, &name);
            if is_idle && before == 0 {
                return;
            }
            // Runs before this one did not move it. Each run has a sample, so that those of two variants are pairs.
            let idle = core::iter::repeat_n(0.0, runs.saturating_sub(before + 1));
            result.figure(name).samples(variant, idle.chain([value / each]));
        };
        add("line_transfers", traffic.transfers as f64);
        add("line_wait_ns", traffic.waited.as_ns());
    }
}

/// Interval of a metric, by its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interval {
    LowestToHighest,
    FourFifths,
}

impl Interval {
    fn ends(self, samples: &[f64]) -> [f64; 2] {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        match self {
            Self::LowestToHighest => [sorted[0], sorted[sorted.len() - 1]],
            Self::FourFifths => [0.1, 0.9].map(|share| quantile_of_sorted(&sorted, share)),
        }
    }
}

/// Ends a simulated part: every metric gets an interval, and the part the hash of all events of its runs, in their
/// order.
pub(crate) fn close_simulated(result: &mut Part, hashes: impl IntoIterator<Item = u64>, interval: Interval) {
    for metric in &mut result.metrics {
        for (variant, samples) in metric.samples.iter().filter(|(_, samples)| !samples.is_empty()) {
            metric.interval.insert(variant.clone(), interval.ends(samples));
        }
    }
    let hash = hashes.into_iter().fold(0, |hash, events| mix(hash ^ events));
    result.event_log_hash = Some(format!("{hash:016x}"));
}

/// Like [`close_simulated`], with a note on the `models` that the samples come from.
pub(crate) fn close_models(
    result: &mut Part,
    models: usize,
    hashes: impl IntoIterator<Item = u64>,
    interval: Interval,
) {
    note_models(result, models, interval);
    close_simulated(result, hashes, interval);
}

/// Says where the samples of a simulated part come from.
pub(crate) fn note_models(result: &mut Part, models: usize, interval: Interval) {
    if models == 1 {
        result.note("One model of the machine, its estimated parameters drawn at random.");
        return;
    }
    let intervals = match interval {
        Interval::LowestToHighest => "from the lowest to the highest",
        Interval::FourFifths => "the middle four fifths",
    };
    result.note(format!(
        "Each of {models} samples is a model of its own from a Latin hypercube over the estimated parameters, with its \
         own seed; intervals are {intervals}."
    ));
}

#[cfg(test)]
mod tests {
    use framewright_report::result::Kind;
    use framewright_sim::engine::Traffic;

    use super::*;

    #[test]
    fn a_line_that_some_runs_move_has_a_sample_of_each_run() {
        let run = |transfers| Moved {
            lines: vec![Traffic { name: "a line".to_owned(), transfers, fetches: 0, waited: Ps(0) }],
            bandwidth: vec![0.5, 0.25],
        };
        let mut part = Part::new("replay", "trace", Kind::Simulated, "here");
        for transfers in [0, 0, 6, 0] {
            add_moved(&mut part, &|name| name, "a", &run(transfers), 2.0);
        }
        add_moved(&mut part, &|name| name, "b", &run(0), 2.0);
        let line = part.find("line_transfers[line=a_line]").expect("one run moved it");
        assert_eq!((line.of("a"), line.of("b")), (&[0.0, 0.0, 3.0, 0.0][..], &[][..]));
        // A CPU has waited for its own caches.
        let mut waited = run(0);
        waited.lines[0].waited = Ps::from_ns(7.0);
        add_moved(&mut part, &|name| name, "c", &waited, 2.0);
        let wait = part.find("line_wait_ns[line=a_line]").expect("one run moved it");
        assert_eq!(wait.of("c"), &[3.5][..]);
    }
}
