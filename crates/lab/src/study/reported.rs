//! Figures that a report printed of a run that cannot be repeated: shown beside each other, neither measured nor simulated.

use crate::error::Result;
use crate::result::{Better, Kind, Part as ResultPart};
use crate::study::registry::entry::BuiltIn;
use crate::study::registry::quantities::metric;
use crate::study::run::{Run, result_part};
use crate::study::workload::{Declaration, Role};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: Declaration {
        name: "reported",
        about: "Figures of a report that does not say what ran: shown, neither measured nor simulated.",
        kinds: &[Kind::Derived],
        keys: &[],
        metrics: &[
            metric("jobs_per_minute", "jobs/min", Better::Higher, Role::Main, "Throughput."),
            metric("elapsed_time", "s", Better::Lower, Role::Main, "Wall time."),
            metric("system_time", "s", Better::Lower, Role::Main, "System CPU time."),
            metric("user_time", "s", Better::None, Role::Main, "User CPU time."),
            metric("voluntary_context_switches", "1", Better::None, Role::Main, "Tasks that slept."),
            metric(
                "involuntary_context_switches",
                "1",
                Better::None,
                Role::Main,
                "Tasks that lost their CPU.",
            ),
        ],
        options: &[],
        needs: &[],
        is_bound: false,
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
            result.metric(&metric.name, &metric.unit, metric.better).sample(variant, mean);
        }
    }
    result.note(format!("Published figures; nothing ran here. Source: {}.", part.source));
    Ok(result)
}
