//! Parts that compare a recorded kernel's per-CPU lists with those of a preset.

use framewright_report::error::Result;
use framewright_report::result::{Kind, Part as ResultPart};

use crate::fidelity::history::History;
use crate::fidelity::whole;
use crate::settings::Settings;
use crate::study::declare::*;
use crate::study::replay::{keep_declared, trace};
use crate::study::run::{Run, configured, result_part};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "fidelity",
        about: "Counts what a recorded kernel's per-CPU lists did (the baseline) and what a preset's do with the same trace.",
        kinds: &[Kind::Measured],
        keys: &[key(
            "trace",
            Takes::FileOr("inside"),
            Some("inside"),
            "A trace of record -a; inside is the one that is built in.",
        )],
        metrics: whole::QUANTITIES,
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run)],
};

/// The baseline is the kernel, whatever its configuration says; each other variant replays the trace.
///
/// # Errors
/// A trace that does not exist or lacks the allocator's inside, or a setting that does not exist.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let (trace, id) = trace(plan, part, run)?;
    let recorded = whole::recorded(&trace)?;
    let history = History::of(&trace, &recorded.zone, recorded.start, recorded.end.as_ref());
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    result.trace = Some(id);
    let kernel = whole::kernel(&trace, &recorded);
    whole::add_metrics(&mut result, plan.baseline(), &kernel);
    for it in configured(plan, &Settings::default())?.into_iter().filter(|it| it.variant != plan.baseline()) {
        let replayed = whole::replayed(&history, &recorded, &it.setup)?;
        whole::add_metrics(&mut result, &it.variant, &replayed);
        result.note(match whole::first_difference(recorded.start, &kernel, &replayed) {
            None => format!("{}: every refill and drain is the kernel's.", it.variant),
            Some(difference) => format!("{}: the first difference is on {difference}.", it.variant),
        });
    }
    result.note(format!("The recorded kernel is {}.", trace.meta.kernel));
    keep_declared(part, &mut result);
    Ok(result)
}
