//! Running a study: each part by the workload that its plan names.

use framewright_sim::clock::mix;
use framewright_workload::trace::Trace;

use crate::configure::Setup;
use crate::error::{Error, Result, did_you_mean};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::study::{
    Part, Plan, Variant, bulk, disk, first_touch, initialise, kernbench, page_test, parallel_init, pressure,
    ready, replay, simulated, structure, validation,
};

/// How much of a study to run, and on what.
#[derive(Debug)]
pub struct Run<'a> {
    /// Only this part.
    pub part: Option<&'a str>,
    /// Only what came about in this way.
    pub kind: Option<Kind>,
    /// The machine that derived parts are about.
    pub machine: &'a Machine,
    /// Measurements of each variant, taken in turns.
    pub samples: u32,
    /// Models of the machine that are simulated, each with estimates and a seed of its own.
    pub models: u32,
    /// Whether simulated runs are shortened further, at the price of more spread.
    pub quick: bool,
    /// The same, where one takes seconds.
    pub costly_samples: u32,
    /// Models of the machine, where a run of one takes seconds.
    pub costly_models: u32,
    /// Size of what is written under memory pressure, and of that memory, in multiples of the part's own.
    pub scale: f64,
    /// Memory that is described where descriptors are initialised, in GiB.
    pub memory_gib: u64,
    /// Seed of everything random.
    pub seed: u64,
    /// The trace that replays run.
    pub trace: &'a Trace,
}

/// One variant under one combination of varied settings.
#[derive(Clone, Debug)]
pub(crate) struct Configured {
    pub(crate) variant: String,
    pub(crate) setup: Setup,
}

/// Runs a study, part by part. Parts that can only be simulated are named in the second result.
///
/// # Errors
/// No part of the name, a setting that does not exist, or what a part says.
pub fn run(plan: &Plan, run: &Run<'_>) -> Result<(Vec<ResultPart>, Vec<String>)> {
    if let Some(name) = run.part
        && !plan.parts().iter().any(|part| part.name == name)
    {
        let names: Vec<&str> = plan.parts().iter().map(|part| part.name.as_str()).collect();
        let hint = did_you_mean(name, names.iter().copied());
        let list = if hint.is_empty() { format!("; there are {}", names.join(", ")) } else { hint };
        return Err(Error::failed(format_args!("{} has no part `{name}`{list}", plan.name())));
    }
    let wanted = |part: &&Part| run.part.is_none_or(|name| part.name == name);
    let mut results = Vec::new();
    let mut left_out = Vec::new();
    for part in plan.parts().iter().filter(wanted) {
        let wants = |kind| part.kinds.contains(&kind) && run.kind.is_none_or(|wanted| wanted == kind);
        if wants(Kind::Derived) {
            results.push(structure::run(plan, part, run.machine)?);
        } else if wants(Kind::Measured) {
            results.push(measure(plan, part, run)?);
        }
        if wants(Kind::Simulated) {
            match simulate(plan, part, run)? {
                Some(result) => results.push(result),
                None => left_out.push(part.name.clone()),
            }
        }
    }
    Ok((results, left_out))
}

fn workload(part: &Part) -> String {
    part.workload.get("name").map(ToString::to_string).unwrap_or_default()
}

/// Runs a part on the model of its machine; `None` if its workload cannot be simulated yet.
fn simulate(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<Option<ResultPart>> {
    Ok(match workload(part).as_str() {
        "calibration" => Some(validation::calibration(plan, part, run)?),
        "boot" => Some(parallel_init::run(plan, part, run)?),
        "bulk" => Some(simulated::bulk(plan, part, run)?),
        "first_touch" => Some(first_touch::control(plan, part, run)?),
        "warm_up" => Some(first_touch::warm_up(plan, part, run)?),
        "page_test" => Some(page_test::run(plan, part, run)?),
        "kernbench" => Some(kernbench::run(plan, part, run)?),
        "files" => Some(disk::run(plan, part, run)?),
        "curves" => Some(validation::curves(plan, part, run)?),
        _ => None,
    })
}

fn measure(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let workload = workload(part);
    match workload.as_str() {
        "bulk" => bulk::run(plan, part, run),
        "bad_block" => bulk::bad_block(plan, part),
        "replay" => replay::run(plan, part, run),
        "initialise" => initialise::run(plan, part, run),
        "ready" => ready::run(plan, part, run),
        "files" => pressure::run(plan, part, run),
        _ => Err(Error::failed(format_args!(
            "{}, part {}: no workload `{workload}` can be measured; there are bulk, bad_block, replay, \
             initialise, ready, files",
            plan.name(),
            part.name
        ))),
    }
}

/// Every variant under one combination of varied settings, the baseline first.
pub(crate) fn configured(plan: &Plan, varied: &Settings) -> Result<Vec<Configured>> {
    let one = |variant: &Variant| {
        let mut setup = Setup::default();
        plan.configure(variant, varied, |key, value| setup.set(key, value))?;
        Ok(Configured { variant: variant.name.clone(), setup })
    };
    plan.variants().map(one).collect()
}

/// An empty part with the plan's variants as columns.
pub(crate) fn result_part(plan: &Plan, part: &Part, kind: Kind, machine: &str, seed: u64) -> ResultPart {
    let empty = ResultPart::new(plan.name(), &part.name, kind, machine).baseline(plan.baseline()).seed(seed);
    plan.variants().fold(empty, |result, variant| result.variant(&variant.name))
}

/// The metric of this family that a part's plan declares.
pub(crate) fn metric<'a>(part: &'a Part, family: &str) -> Option<&'a crate::study::Metric> {
    part.metrics.iter().find(|metric| metric.name == family)
}

/// Ends a simulated part: every metric has the interval from its lowest sample to its highest, and the part the hash of
/// all events of its runs, in their order.
pub(crate) fn close_simulated(result: &mut ResultPart, hashes: impl IntoIterator<Item = u64>) {
    for metric in &mut result.metrics {
        for (variant, samples) in &metric.samples {
            let low = samples.iter().copied().fold(f64::MAX, f64::min);
            let high = samples.iter().copied().fold(f64::MIN, f64::max);
            metric.interval.insert(variant.clone(), [low, high]);
        }
    }
    let hash = hashes.into_iter().fold(0, |hash, of| mix(hash ^ of));
    result.event_log_hash = Some(format!("{hash:016x}"));
}

/// Says where the samples of a simulated part come from.
pub(crate) fn note_models(result: &mut ResultPart, models: usize) {
    result.note(format!(
        "Each of {models} samples is a model of its own from a Latin hypercube over the estimated parameters, with its \
         own seed; intervals are from the lowest to the highest."
    ));
}

/// A line of progress for a part of so many steps.
pub(crate) fn progress(plan: &Plan, part: &Part, steps: usize) -> Progress {
    Progress::new(&format!("{} {}", plan.name(), part.name), steps as u64)
}

#[cfg(test)]
impl<'a> Run<'a> {
    /// One sample of everything, as short as there is.
    pub(crate) fn shortest(machine: &'a Machine, trace: &'a Trace) -> Self {
        Self {
            part: None,
            kind: None,
            machine,
            samples: 1,
            models: 1,
            quick: true,
            costly_samples: 1,
            costly_models: 1,
            scale: 1.0,
            memory_gib: 64,
            seed: 1,
            trace,
        }
    }
}
