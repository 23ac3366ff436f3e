//! Figures that a report printed of a run that cannot be repeated: shown beside each other, neither measured nor simulated.

use crate::error::Result;
use crate::result::{Kind, Part as ResultPart};
use crate::study::declare::*;
use crate::study::run::{Run, result_part};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "reported",
        about: "Figures of a report that does not say what ran: shown, neither measured nor simulated.",
        kinds: &[Kind::Derived],
        metrics: &quantities! {
            jobs_per_minute "jobs/min" Higher Main "Throughput."
            elapsed_time "s" Lower Main "Wall time."
            system_time "s" Lower Main "System CPU time."
            user_time "s" None Main "User CPU time."
            voluntary_context_switches "1" None Main "Tasks that slept."
            involuntary_context_switches "1" None Main "Tasks that lost their CPU."
        },
        ..Declaration::NONE
    },
    runners: &[(Kind::Derived, run)],
};

/// Shows the part's published figures, of the baseline and of every variant that the report has.
fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let mut result = result_part(plan, part, Kind::Derived, &run.machine.name, 0);
    for metric in &part.metrics {
        let baseline = metric.published.map(|published| (plan.baseline(), published.mean));
        let changed = metric.changed.iter().map(|(variant, published)| (variant.as_str(), published.mean));
        for (variant, mean) in baseline.into_iter().chain(changed) {
            result.figure(&metric.name).sample(variant, mean);
        }
    }
    result.note(format!("Published figures; nothing ran here. Source: {}.", part.source));
    Ok(result)
}
