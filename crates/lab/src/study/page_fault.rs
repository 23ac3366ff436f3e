//! Part `page_fault1` of `pcp-batch`, simulated: will-it-scale's page_fault1 on all CPUs of each machine of the study.
//!
//! What is not known has priors (`studies/priors/page_fault1.toml`); models are weighed by how near they come to what was published of
//! the baseline: faults per second, and the shares of time in which CPUs wait for the zones' and for the LRU locks.

use framewright_sim::Model;
use framewright_sim::clock::{Ps, mix};
use framewright_sim::kernbench::{Outcome, Pace};
use framewright_sim::page_fault::{self, Load};

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::result::{Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::sampled_models;
use crate::study::declare::*;
use crate::study::identify::{self, Draw, MISFIT, Priors};
use crate::study::kernbench::WORK_ERROR;
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::{add_causes, amount, described};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "page_fault1",
        about: "will-it-scale's page_fault1, a process on each CPU, on the machines that the metrics name or on --machine.",
        kinds: &[Kind::Simulated],
        keys: &[key("simulated_mib", Takes::Whole(1, 128), None, "What a process maps.")],
        metrics: joined!(Quantity;
            &quantities! {
                faults_per_second "1/s" Higher Main "Faults of all CPUs together."
                zone_lock_percent "%" Lower Main "Share of CPU time spent waiting for the zones' locks."
                lru_lock_percent "%" Lower Main "Share of CPU time spent waiting for the LRU locks."
            },
            TASK_CAUSES,
        ),
        options: &SIMULATED,
        needs: &[Need::Model, Need::Kernel],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// How long a slice is: some fifteen holds of a contended lock for each CPU.
const SLICE: Ps = Ps(3_000_000_000);
/// The same to see how long things take, and for a first look.
const QUICK: Ps = Ps(1_500_000_000);
/// What a share of time may be off by, in points: as the model's errors, of a share of a half.
const POINTS: f64 = 5.0;

fn priors() -> Result<Priors> {
    Priors::parse("page_fault1.toml", include_str!("../../../../studies/priors/page_fault1.toml"))
}

/// What is reported of a machine.
#[derive(Clone, Copy, Debug)]
struct Figures {
    faults_per_second: f64,
    zone_lock_percent: f64,
    lru_lock_percent: f64,
}

impl Figures {
    const NAMES: [&'static str; 3] = ["faults_per_second", "zone_lock_percent", "lru_lock_percent"];

    fn of(outcome: &Outcome, load: &Load, cpus: f64) -> Self {
        let pace = outcome.paid.pace(&outcome.usage, load.pace);
        let round_ns = load.user_ns * pace.user + pace.fault_ns + pace.free_ns;
        let time = cpus * outcome.usage.elapsed.as_ns();
        let zones: u64 = outcome.locks.iter().map(|[_, wait, _]| wait).sum();
        Self {
            faults_per_second: cpus * 1e9 / round_ns,
            zone_lock_percent: 100.0 * zones as f64 / time,
            lru_lock_percent: 100.0 * outcome.usage.lru.wait.as_ns() / time,
        }
    }

    /// The same if work takes so many times as long: what it takes longer behind a lock is not waited for any more, and a hold takes
    /// longer, too.
    fn with_error(self, error: f64) -> Self {
        let waits = self.zone_lock_percent + self.lru_lock_percent;
        let left = (waits - (error - 1.0) * (100.0 - waits)).clamp(0.0, 100.0) / waits.max(1e-9);
        Self {
            faults_per_second: self.faults_per_second / error,
            zone_lock_percent: self.zone_lock_percent * left,
            lru_lock_percent: self.lru_lock_percent * left,
        }
    }

    fn values(self) -> [f64; 3] {
        [self.faults_per_second, self.zone_lock_percent, self.lru_lock_percent]
    }

    /// How much less likely than the best it is that these are the published ones, as a logarithm.
    fn log_weight(self, published: [f64; 3]) -> f64 {
        let [faults, zones, lru] = self.values();
        let off = [
            (faults / published[0]).ln() / MISFIT,
            (zones - published[1]) / POINTS,
            (lru - published[2]) / POINTS,
        ];
        -0.5 * off.iter().map(|off| off * off).sum::<f64>()
    }
}

/// A machine with one draw of what is not known of it.
struct Sample {
    model: Model,
    draw: Draw,
    seed: u64,
}

impl Sample {
    fn load(&self, pages: u32, pace: Pace, slice: Ps) -> Result<Load> {
        // A store, and the loop around it.
        const USER_NS: f64 = 5.0;
        Ok(Load { pages, user_ns: USER_NS, slice, pace, cached: self.draw.get("cached")? })
    }
}

struct Rig {
    machine: Machine,
    published: [f64; 3],
    samples: Vec<Sample>,
}

impl Rig {
    /// The machine with so many models, half as many again as are to be kept.
    fn new(machine: Machine, part: &Part, run: &Run<'_>) -> Result<Self> {
        described(&machine)?;
        let published = published(part, &machine.name)?;
        let count = identify::drawn(run.models, run.quick);
        let draws = priors()?.draws(count, run.seed);
        let models = draws.iter().enumerate().map(|(n, draw)| {
            let cores = f64::from(machine.cores_per_node) * draw.get("cores")?;
            let varied = Machine { cores_per_node: cores.round().max(1.0) as u32, ..machine.clone() };
            let mut model =
                identify::with_errors(sampled_models(&varied, count, run.seed)?.swap_remove(n), draw)?;
            if let Some(kernel) = &mut model.kernel {
                kernel.page_fault = draw.get("fault_ns")?;
                kernel.page_free = draw.get("free_ns")?;
            }
            Ok(model)
        });
        let models: Vec<Model> = models.collect::<Result<_>>()?;
        let samples = models.into_iter().zip(draws).zip(1_u64..);
        let samples = samples.map(|((model, draw), n)| Sample { model, draw, seed: mix(run.seed ^ n << 32) });
        Ok(Self { machine, published, samples: samples.collect() })
    }

    /// How long things take under a variant: seen in a short slice of one model.
    fn pace(&self, variant: &Configured, pages: u32) -> Result<Pace> {
        // Half of a round's time goes into waiting for locks, or more: that many CPUs begin there.
        const BEGIN: Pace = Pace { user: 1.0, fault_ns: 6000.0, free_ns: 4000.0 };
        let Some(sample) = self.samples.first() else { return Ok(BEGIN) };
        let load = sample.load(pages, BEGIN, QUICK)?;
        let looked = self.run(variant, sample, &load)?;
        Ok(looked.paid.pace(&looked.usage, BEGIN))
    }

    fn run(&self, variant: &Configured, sample: &Sample, load: &Load) -> Result<Outcome> {
        let allocator = allocator(&self.machine, &variant.setup);
        page_fault::run(&sample.model, &allocator, load, sample.seed).map_err(Error::failed)
    }

    fn slice(
        &self,
        (variant, pace): &(&Configured, Pace),
        sample: &Sample,
        pages: u32,
        quick: bool,
    ) -> Result<Slice> {
        let load = sample.load(pages, *pace, if quick { QUICK } else { SLICE })?;
        let outcome = self.run(variant, sample, &load)?;
        let figures = Figures::of(&outcome, &load, f64::from(sample.model.shape.cpus()));
        Ok(Slice { figures, outcome })
    }
}

struct Slice {
    figures: Figures,
    outcome: Outcome,
}

/// What was published of the baseline on a machine.
fn published(part: &Part, machine: &str) -> Result<[f64; 3]> {
    let mut values = [0.0; 3];
    for (value, family) in values.iter_mut().zip(Figures::NAMES) {
        let name = format!("{family}[machine={machine}]");
        let found =
            part.metrics.iter().find(|metric| metric.name == name).and_then(|metric| metric.published);
        *value = found
            .map(|it| it.mean)
            .ok_or_else(|| Error::failed(format_args!("nothing published of {name}")))?;
    }
    Ok(values)
}

/// The machines that the part's metrics name, each once.
fn machines(part: &Part) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for metric in &part.metrics {
        let name = metric.name.split_once("[machine=").and_then(|(_, rest)| rest.strip_suffix(']'));
        names.extend(name.filter(|name| !names.contains(name)));
    }
    names
}

/// Runs the part: the machine that was asked for, or all that the part's metrics name.
///
/// # Errors
/// A machine cannot be simulated, or nothing is published of it.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let machines = if run.asked { vec![run.machine.name.as_str()] } else { machines(part) };
    let rigs: Vec<Rig> = machines
        .iter()
        .map(|name| {
            let machine = if *name == run.machine.name { run.machine.clone() } else { Machine::find(name)? };
            Rig::new(machine, part, run)
        })
        .collect::<Result<_>>()?;
    let variants = configured(plan, &Settings::default())?;
    let pages = (amount(part, "simulated_mib")? * 256.0) as u32;
    let kept = run.models.max(1) as usize;
    let steps = rigs.iter().map(|rig| rig.samples.len() + kept).sum();
    let progress = progress(plan, part, steps);
    let about = if let [rig] = &rigs[..] { rig.machine.name.as_str() } else { "all" };
    let mut result = result_part(plan, part, Kind::Simulated, about, run.seed);
    let mut hashes = Vec::new();
    for rig in &rigs {
        let paced: Vec<(&Configured, Pace)> =
            variants.iter().map(|variant| Ok((variant, rig.pace(variant, pages)?))).collect::<Result<_>>()?;
        let slice = |paced, sample: &Sample| rig.slice(paced, sample, pages, run.quick);
        let posterior = identify::condition(
            &rig.samples,
            run.models,
            run.seed,
            &progress,
            |sample| slice(&paced[0], sample),
            |base| base.figures.log_weight(rig.published),
            |sample, _| paced[1..].iter().map(|paced| slice(paced, sample)).collect::<Result<Vec<_>>>(),
        )?;
        let base = &posterior.baselines;
        let name = &rig.machine.name;
        for one in &posterior.kept {
            let slices = core::iter::once(&base[one.model]).chain(&one.change);
            for (variant, slice) in variants.iter().zip(slices) {
                for ((family, value), published) in Figures::NAMES
                    .into_iter()
                    .zip(slice.figures.with_error(one.work).values())
                    .zip(rig.published)
                {
                    result
                        .figure(format!("{family}[machine={name}]"))
                        .published(crate::result::Published { mean: published, stddev: None })
                        .sample(&variant.variant, value);
                }
                add_causes(&mut result, &format!("machine={name}"), &variant.variant, &slice.outcome);
                hashes.push(slice.outcome.events.hash);
            }
        }
        let off = |which: usize| {
            let of = |one: &identify::One<_>| base[one.model].figures.values()[which];
            identify::median(posterior.kept.iter().map(of).collect())
        };
        let misfit = (off(0) / rig.published[0]).ln().abs();
        let explained = misfit < 0.2 && (off(1) - rig.published[1]).abs() < 2.0 * POINTS;
        result.note(format!(
            "{name}: {} models were drawn from studies/priors/page_fault1.toml; those kept by the published baseline count as {:.1} equally good \
             ones and have {:.3} million faults a second, {:.0} % and {:.0} % of time at the zones' and LRU locks (medians). {}",
            rig.samples.len(),
            posterior.effective,
            off(0) / 1e6,
            off(1),
            off(2),
            if explained { "The baseline is explained." } else { "Baseline not explained: no figure of a change is a prediction." },
        ));
    }
    result.note(format!(
        "A slice of {:.0} ms of all CPUs, begun with every process somewhere in its round; mappings of {} instead of 128 MiB, of which \
         caches hold as little.",
        (if run.quick { QUICK } else { SLICE }).as_ns() / 1e6,
        pages / 256,
    ));
    result.note(WORK_ERROR);
    note_models(&mut result, kept);
    close_simulated(&mut result, hashes);
    Ok(result)
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;

    #[test]
    fn every_figure_of_each_machine_is_there() {
        let plan = Plan::find("pcp-batch").expect("it is built in");
        let part = &plan.parts()[0];
        assert_eq!(machines(part), ["skylake-4s", "broadwell-4s", "skylake-2s"]);
        let mut machine = Machine::find("skylake-2s").expect("it is built in");
        machine.cores_per_node = 4;
        let trace = Trace::default();
        let shortest = Run { asked: true, ..Run::shortest(&machine, &trace) };
        let result = run(&plan, part, &shortest).expect("simulated");
        let of = |name: &str, variant: &str| {
            let metric = result.find(&format!("{name}[machine=skylake-2s]")).expect(name);
            assert!(metric.published.is_some() && metric.interval.contains_key(variant), "{name}");
            metric.of(variant)[0]
        };
        for variant in ["batch_31", "batch_63"] {
            assert!(of("faults_per_second", variant) > 1e6, "{variant}");
            assert!((0.0..50.0).contains(&of("zone_lock_percent", variant)), "{variant}");
            assert!((0.0..50.0).contains(&of("lru_lock_percent", variant)), "{variant}");
        }
        assert!(result.notes.iter().any(|note| note.contains("not explained")), "eight cores are not 56");
    }

    #[test]
    fn models_near_the_baseline_weigh_more() {
        let at = |faults_per_second, zone_lock_percent| Figures {
            faults_per_second,
            zone_lock_percent,
            lru_lock_percent: 5.0,
        };
        let weight = |figures: Figures| figures.log_weight([1e7, 60.0, 5.0]);
        assert_eq!(weight(at(1e7, 60.0)), 0.0);
        assert!(weight(at(0.8e7, 60.0)) < weight(at(0.9e7, 60.0)));
        assert!(weight(at(1e7, 40.0)) < weight(at(1e7, 50.0)));
    }
}
