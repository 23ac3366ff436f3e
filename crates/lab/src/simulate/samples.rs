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

/// Ends a simulated part: every metric has the interval from its lowest sample to its highest, and the part the hash of
/// all events of its runs, in their order.
pub(crate) fn close_simulated(result: &mut Part, hashes: impl IntoIterator<Item = u64>) {
    for metric in &mut result.metrics {
        for (variant, samples) in &metric.samples {
            let low = samples.iter().copied().fold(f64::MAX, f64::min);
            let high = samples.iter().copied().fold(f64::MIN, f64::max);
            metric.interval.insert(variant.clone(), [low, high]);
        }
    }
    let hash = hashes.into_iter().fold(0, |hash, events| mix(hash ^ events));
    result.event_log_hash = Some(format!("{hash:016x}"));
}

/// Makes the interval of every metric the middle four fifths of its samples.
pub(crate) fn four_fifths(result: &mut Part) {
    for metric in &mut result.metrics {
        for (variant, samples) in &metric.samples {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            let ends = [0.1, 0.9].map(|share| quantile(&sorted, share));
            metric.interval.insert(variant.clone(), ends);
        }
    }
    for note in &mut result.notes {
        *note = note.replace(LOWEST_TO_HIGHEST, "intervals are the middle four fifths");
    }
}

/// What [`close_simulated`] makes intervals of.
const LOWEST_TO_HIGHEST: &str = "intervals are from the lowest to the highest";

/// Says where the samples of a simulated part come from.
pub(crate) fn note_models(result: &mut Part, models: usize) {
    if models == 1 {
        result.note("One model of the machine, its estimated parameters drawn at random.");
        return;
    }
    result.note(format!(
        "Each of {models} samples is a model of its own from a Latin hypercube over the estimated parameters, with its \
         own seed; {LOWEST_TO_HIGHEST}."
    ));
}
