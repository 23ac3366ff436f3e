//! Samples of simulated parts: the traffic of lines, intervals, and where they come from.

use framewright_report::result::Part;
use framewright_sim::clock::mix;
use framewright_sim::engine::Moved;

use super::quantile;

/// Adds the traffic of lines, divided by `each`, and the use of memory bandwidth.
pub(crate) fn add_moved(
    result: &mut Part,
    parameter: &impl Fn(String) -> String,
    variant: &str,
    moved: &Moved,
    each: f64,
) {
    for (node, share) in moved.bandwidth.iter().enumerate() {
        let parameters = parameter(format!("node={node}"));
        result.figure(format!("memory_bandwidth[{parameters}]")).sample(variant, 100.0 * share);
    }
    for traffic in moved.lines.iter().filter(|traffic| traffic.transfers + traffic.fetches > 0) {
        let parameters = parameter(format!("line={}", traffic.name.replace([' ', '-'], "_")));
        let mut add = |family: &str, value: f64| {
            result.figure(format!("{family}[{parameters}]")).sample(variant, value / each);
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
            Self::FourFifths => [0.1, 0.9].map(|share| quantile(&sorted, share)),
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
