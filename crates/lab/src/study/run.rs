//! What a workload is given beside its part, and what all workloads do alike.

use core::fmt;

use framewright_report::error::{Error, Result};
use framewright_report::result::{Kind, Part as ResultPart};
use framewright_sim::Model;
use framewright_sim::clock::mix;

use crate::configure::Setup;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::simulate::in_parallel;
use crate::study::{Metric, Part, Plan, Variant};

/// How much of a study to run, and on what.
#[derive(Debug)]
pub struct Run<'a> {
    /// The machine that derived and simulated parts are about.
    pub machine: &'a Machine,
    /// Whether it was asked for, in place of the study's.
    pub asked: bool,
    /// Measurements of each variant, interleaved.
    pub samples: u32,
    /// Models of the machine that are simulated, each with estimates and a seed of its own.
    pub models: u32,
    /// Whether simulated runs are shortened further, at the price of more spread.
    pub quick: bool,
    /// Measurements of each variant, where one takes seconds.
    pub costly_samples: u32,
    /// Models of the machine, where a run of one takes seconds.
    pub costly_models: u32,
    /// Size of what is written under memory pressure, and of that memory, in multiples of the part's own.
    pub scale: f64,
    /// Memory that is described where descriptors are initialised, in GiB.
    pub memory_gib: u64,
    /// Seed of everything random.
    pub seed: u64,
}

/// One variant under one combination of varied settings.
#[derive(Clone, Debug)]
pub struct Configured {
    /// Name of the variant.
    pub variant: String,
    /// All its settings.
    pub setup: Setup,
}

/// Every variant under one combination of varied settings, the baseline first.
///
/// # Errors
/// A setting that does not exist or contradicts another, with its line.
pub fn configured(plan: &Plan, varied: &Settings) -> Result<Vec<Configured>> {
    let with_setup = |variant: &Variant| {
        let mut setup = Setup::default();
        plan.configure(variant, varied, |key, value| setup.set(key, value))?;
        Ok(Configured { variant: variant.name.clone(), setup })
    };
    plan.variants().map(with_setup).collect()
}

/// An empty part with the plan's variants as columns.
pub fn result_part(plan: &Plan, part: &Part, kind: Kind, machine: &str, seed: u64) -> ResultPart {
    let empty = ResultPart::new(&plan.name, &part.name, kind, machine).baseline(&plan.baseline).seed(seed);
    plan.variants().fold(empty, |result, variant| result.variant(&variant.name))
}

/// The metric of this family that a part's plan declares.
pub(crate) fn metric<'a>(part: &'a Part, family: &str) -> Option<&'a Metric> {
    part.metrics.iter().find(|metric| metric.name == family)
}

/// The machines that metrics name as their only parameter, each once; or the one that was asked for, or where none is
/// named.
pub(crate) fn machines<'a>(
    metrics: impl IntoIterator<Item = &'a Metric>,
    run: &Run<'_>,
) -> Result<Vec<Machine>> {
    let mut names = Vec::new();
    for metric in metrics {
        let name = metric.name.split_once("[machine=").and_then(|(_, rest)| rest.strip_suffix(']'));
        names.extend(name.filter(|name| !names.contains(name)));
    }
    if run.asked || names.is_empty() {
        return Ok(vec![run.machine.clone()]);
    }
    names.into_iter().map(Machine::find).collect()
}

/// Leaves the metrics that the part's plan declares, in its order, and before them those of the families `besides`.
pub(crate) fn keep_declared(part: &Part, result: &mut ResultPart, besides: &[&str]) {
    let place = |family: &str| part.metrics.iter().position(|metric| metric.name == family);
    result.metrics.retain(|metric| besides.contains(&metric.family()) || place(metric.family()).is_some());
    result.metrics.sort_by_key(|metric| place(metric.family()));
}

/// Every item in each of `rounds` rounds, with the round's number. Each round begins with the next item, so that what
/// else the machine does falls on all alike.
pub(crate) fn in_turn<T>(rounds: u32, items: &[T]) -> impl Iterator<Item = (u64, &T)> {
    let round = move |round: usize| {
        (0..items.len()).map(move |turn| (round as u64, &items[(round + turn) % items.len()]))
    };
    (0..rounds as usize).flat_map(round)
}

/// A line of progress for a part of so many steps.
pub(crate) fn progress(plan: &Plan, part: &Part, steps: usize) -> Progress {
    Progress::new(&format!("{} {}", plan.name, part.name), steps as u64)
}

/// Simulates each item on each of the models, in parallel, with a line of progress. `simulate` is given an item, a
/// model with its number, and a seed, which is one model's for all items. The runs of an item follow one another, in
/// the order of the models.
///
/// # Errors
/// The first that a run ran into.
pub(crate) fn on_models<'a, T: Sync, R: Send, E: fmt::Display + Send>(
    (plan, part, doing): (&Plan, &Part, &str),
    items: &'a [T],
    models: &[Model],
    seed: u64,
    simulate: impl Fn(&'a T, (&Model, usize), u64) -> core::result::Result<R, E> + Sync,
) -> Result<Vec<(&'a T, usize, R)>> {
    let runs: Vec<(&T, usize)> =
        items.iter().flat_map(|item| (0..models.len()).map(move |n| (item, n))).collect();
    let progress = progress(plan, part, runs.len());
    let run =
        |(item, n): &(&'a T, usize)| simulate(item, (&models[*n], *n), mix(seed ^ (*n as u64 + 1) << 32));
    let outcomes = in_parallel(&runs, run, || progress.step(doing));
    let both = runs.iter().zip(outcomes);
    both.map(|(&(item, n), outcome)| Ok((item, n, outcome.map_err(Error::failed)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Plan {
        /// A study that ships, and its part of this name.
        pub(crate) fn with_part(study: &str, name: &str) -> (Self, Part) {
            let plan = Self::find(study).expect("it is built in");
            let part = plan.parts.iter().find(|part| part.name == name).expect("a part").clone();
            (plan, part)
        }
    }

    impl Machine {
        /// A machine that ships, with so many cores on each node.
        pub(crate) fn with_cores(name: &str, cores_per_node: u32) -> Self {
            Self { cores_per_node, ..Self::find(name).expect("it is built in") }
        }
    }

    impl<'a> Run<'a> {
        /// One sample of everything, as short as there is.
        pub(crate) fn shortest(machine: &'a Machine) -> Self {
            Self {
                machine,
                asked: false,
                samples: 1,
                models: 1,
                quick: true,
                costly_samples: 1,
                costly_models: 1,
                scale: 1.0,
                memory_gib: 64,
                seed: 1,
            }
        }
    }
}
