//! Parts that replay a recorded run.

use crate::error::{Error, Result};
use crate::replaying::Replay;
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::study::run::{Run, configured, progress, result_part};
use crate::study::structure::{main_zone, zone_sizing};
use crate::study::{Part, Plan};
use framewright_host::framewright::config::PcpFixed;

/// Replays the trace under each variant. Variants that differ in whether lists are resized after deferred
/// initialisation get the list sizes that the machine's largest zone had before, and after.
///
/// # Errors
/// A setting that does not exist, or a machine without a Normal zone.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let replay = Replay::new(run.trace, threads, None)?;
    let zone = main_zone(run.machine)
        .ok_or_else(|| Error::failed(format_args!("{} has no Normal zone", run.machine.name)))?;
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let mut setups = Vec::new();
    for it in configured(plan, &Settings::default())? {
        let mut setup = it.setup;
        let size = zone_sizing(run.machine, zone, &setup, setup.config.pcp_reset);
        setup.config.pcp_fixed = Some(PcpFixed { batch: size.batch, high: size.high_min });
        result.note(format!(
            "{}: batch {}, high {}, as in the Normal zone of {}.",
            it.variant, size.batch, size.high_min, run.machine.name
        ));
        setups.push((it.variant, setup));
    }
    let progress = progress(plan, part, setups.len() * run.samples as usize);
    replay.measure(&setups, run.samples, &mut result, &progress)?;
    keep_declared(part, &mut result);
    Ok(result)
}

/// Leaves the metrics that the part's plan declares, in its order.
fn keep_declared(part: &Part, result: &mut ResultPart) {
    let place = |family: &str| part.metrics.iter().position(|metric| metric.name == family);
    result.metrics.retain(|metric| place(metric.family()).is_some());
    result.metrics.sort_by_key(|metric| place(metric.family()));
}
