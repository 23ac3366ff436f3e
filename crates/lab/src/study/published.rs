//! Parts that nobody has run here: what others printed for the baseline, and that the rest is not known yet.

use crate::machine::Machine;
use crate::result::{Kind, Part as ResultPart};
use crate::study::run::{Run, result_part};
use crate::study::{Part, Plan};

use crate::error::Result;

/// The published figures of a part whose metrics name a machine each, and no samples.
///
/// # Errors
/// A metric names a machine that does not exist.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let mut result = result_part(plan, part, Kind::Simulated, "all", run.seed);
    for metric in &part.metrics {
        let entry = result.metric(&metric.name, &metric.unit, metric.better);
        if let Some(published) = metric.published {
            entry.published(published);
        }
    }
    let named: Vec<String> = result
        .metrics
        .iter()
        .flat_map(|metric| metric.parameters())
        .filter(|(name, _)| *name == "machine")
        .map(|(_, machine)| machine.to_owned())
        .collect();
    for machine in &named {
        Machine::find(machine)?;
    }
    result.note("Published: mean and standard deviation of the baseline on the machine itself.");
    result
        .note("This version has no simulator yet, and none of these machines to measure: the rest is empty.");
    Ok(result)
}
