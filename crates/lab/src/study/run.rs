//! Running a study: each part by the workload that its plan names.

use framewright_sim::clock::mix;
use framewright_workload::trace::Trace;

use crate::configure::Setup;
use crate::error::{Error, Result, did_you_mean};
use crate::machine::Machine;
use crate::progress::Progress;
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::quantile;
use crate::study::workload::{Opt, Role, Workload};
use crate::study::{Part, Plan, Variant, registry};

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
    /// The recorded compile that comes with the command.
    pub trace: &'a Trace,
}

/// One variant under one combination of varied settings.
#[derive(Clone, Debug)]
pub(crate) struct Configured {
    pub(crate) variant: String,
    pub(crate) setup: Setup,
}

/// One part in one way.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// The study.
    pub plan: &'a Plan,
    /// Its part.
    pub part: &'a Part,
    /// How it is to be run.
    pub kind: Kind,
}

/// The parts of a study, or one of them, each in every way that is wanted.
///
/// # Errors
/// No part of the name.
pub fn jobs<'a>(plan: &'a Plan, part: Option<&str>, kind: Option<Kind>) -> Result<Vec<Job<'a>>> {
    if let Some(name) = part
        && !plan.parts().iter().any(|part| part.name == name)
    {
        let names: Vec<&str> = plan.parts().iter().map(|part| part.name.as_str()).collect();
        let hint = did_you_mean(name, names.iter().copied());
        let list = if hint.is_empty() { format!("; there are {}", names.join(", ")) } else { hint };
        return Err(Error::usage(format_args!("{} has no part `{name}`{list}", plan.name())));
    }
    let wanted = plan.parts().iter().filter(|it| part.is_none_or(|name| it.name == name));
    let of = |part: &'a Part| {
        let kinds = part.kinds.iter().filter(|it| kind.is_none_or(|wanted| wanted == **it));
        kinds.map(move |&kind| Job { plan, part, kind })
    };
    Ok(wanted.flat_map(of).collect())
}

impl Job<'_> {
    /// What the part runs.
    ///
    /// # Errors
    /// Never for a plan that was read: reading looks its workloads up.
    pub fn workload(&self) -> Result<&'static dyn Workload> {
        let name = self.part.workload.get("name").map(ToString::to_string).unwrap_or_default();
        registry::find(&name).map_err(Error::failed)
    }

    /// Why it cannot be run on this machine, if that is so.
    ///
    /// # Errors
    /// As [`workload`](Self::workload).
    pub fn hindrance(&self, machine: &Machine) -> Result<Option<String>> {
        if self.kind == Kind::Measured {
            return Ok(None);
        }
        let it = self.workload()?.declaration();
        if it.is_bound && machine.name != self.plan.machine() {
            return Ok(Some(format!(
                "how much {} does is scaled to figures published for {}, which say nothing of {}",
                it.name,
                self.plan.machine(),
                machine.name
            )));
        }
        let missing = it.needs.iter().find_map(|need| need.missing(machine));
        Ok(missing.map(|table| format!("the description of {} has no {table}", machine.name)))
    }

    /// Runs it. Units and directions of what comes back are those that the workload declares.
    ///
    /// # Errors
    /// A setting that does not exist, or what the workload ran into.
    pub fn run(&self, run: &Run<'_>) -> Result<ResultPart> {
        let workload = self.workload()?;
        let it = workload.declaration();
        let mut result = workload.run(self.kind, self.plan, self.part, run)?;
        for metric in &mut result.metrics {
            let quantity = it.quantity(&metric.name).map_err(Error::failed)?;
            quantity.unit.clone_into(&mut metric.unit);
            metric.better = quantity.better;
            metric.is_share = quantity.role == Role::Share;
        }
        result.headline.clone_from(&self.part.headline);
        result.paired = self.kind != Kind::Derived;
        let known = |name: &String| self.plan.variants().any(|variant| variant.name == *name);
        if result.settings.is_empty() && result.variants.iter().all(known) {
            for it in configured(self.plan, &Settings::default())? {
                result.settings.insert(it.variant, it.setup.described());
            }
        }
        let mut heed = |option: Opt, value: String| {
            if it.heeds(option, self.kind) {
                result.condition(option.flag().trim_start_matches('-'), value);
            }
        };
        heed(Opt::Quick, run.quick.to_string());
        heed(Opt::Scale, run.scale.to_string());
        heed(Opt::Memory, run.memory_gib.to_string());
        Ok(result)
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

/// Makes the interval of every metric the middle four fifths of its samples.
pub(crate) fn four_fifths(result: &mut ResultPart) {
    for metric in &mut result.metrics {
        for (variant, samples) in &metric.samples {
            let mut sorted = samples.clone();
            sorted.sort_by(f64::total_cmp);
            let ends = [0.1, 0.9].map(|share| quantile(&sorted, share));
            metric.interval.insert(variant.clone(), ends);
        }
    }
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
            trace,
        }
    }
}
