//! Parts that replay a recorded run.

use std::borrow::Cow;
use std::path::Path;

use framewright::config::PcpFixed;
use framewright_report::result::TraceId;
use framewright_trace::trace::Trace;
use framewright_workload::replay::Ageing;

use crate::replaying::{QUANTITIES, Replay};
use crate::shipped;
use crate::study::declare::*;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "replay",
        about: "Replays a recorded trace on this machine's threads.",
        kinds: &[Kind::Measured],
        keys: &[key(
            "trace",
            Takes::FileOr("compile"),
            Some("compile"),
            "The trace; compile is the one that is built in.",
        )],
        metrics: QUANTITIES,
        options: &[
            (Opt::Machine, Kind::Measured),
            (Opt::Samples, Kind::Measured),
            (Opt::Quick, Kind::Measured),
        ],
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, run)],
};

/// Metrics of runs after runs in memory that the trace nearly fills.
const AGED: [&str; 4] = [
    "huge_available_percent",
    "unusable_free_index",
    "unmovable_pageblocks",
    "compaction_moved_per_allocated",
];

/// Replays the part's trace under each variant. A variant that says nothing of the lists' sizes gets those that the
/// machine's largest zone has, before or after deferred initialisation as its `pcp_reset` says, if the study names a
/// machine or one is asked for.
///
/// # Errors
/// A setting or a trace that does not exist, or a machine without a Normal zone.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let threads = cpus_here();
    let (trace, id) = trace(plan, part)?;
    let replay = Replay::new(&trace, threads, None)?;
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    result.trace = Some(id);
    let mut setups = Vec::new();
    for variant in configured(plan, &Settings::default())? {
        let mut setup = variant.setup;
        if let Some(PcpFixed { batch, high }) = setup.config.experiment.pcp_fixed {
            result.note(format!("{}: batch {batch}, high {high}, as the study says.", variant.variant));
        } else if plan.machine.is_some() || run.asked {
            let zone = main_zone(run.machine)
                .ok_or_else(|| Error::failed(format_args!("{} has no Normal zone", run.machine.name)))?;
            let size = zone_sizing(run.machine, zone, &setup, setup.config.experiment.pcp_reset);
            setup.config.experiment.pcp_fixed = Some(PcpFixed { batch: size.batch, high: size.high_min });
            result.note(format!(
                "{}: batch {}, high {}, as in the Normal zone of {}.",
                variant.variant, size.batch, size.high_min, run.machine.name
            ));
        }
        setups.push((variant.variant, setup));
    }
    let progress = progress(plan, part, setups.len() * run.samples as usize);
    replay.measure(&setups, run.samples, &mut result, &progress)?;
    if part.metrics.iter().any(|metric| AGED.contains(&&*metric.name)) {
        let ageing = Ageing { seed: run.seed, ..Ageing::default() };
        replay.age(&setups, &ageing, &mut result, &progress)?;
    }
    keep_declared(part, &mut result, &[]);
    Ok(result)
}

/// The trace that a part names, relative to the study's file. `compile` is built in, and the default.
pub(crate) fn trace(plan: &Plan, part: &Part) -> Result<(Cow<'static, Trace>, TraceId)> {
    let named = part.workload.get("trace").map(ToString::to_string).filter(|name| name != "compile");
    let Some(name) = named else {
        let (trace, id) = shipped::compile()?;
        return Ok((Cow::Borrowed(trace), id.clone()));
    };
    let path = plan.folder().unwrap_or(Path::new("")).join(name);
    let (trace, id) = shipped::read(&path)?;
    Ok((Cow::Owned(trace), id))
}
