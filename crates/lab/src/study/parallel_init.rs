//! Parts `machines` and `threads` of `parallel-init`: the deferred initialisation of the memory map, simulated on each
//! machine of the study by the allocator's own boot.

use framewright::policy::init::Split;
use framewright_host::BootMap;
use framewright_sim::boot::{Outcome, boot};
use framewright_sim::model::Bandwidth;
use framewright_sim::world::{BootMemory, WorldError};
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::booting::Bootable;
use crate::study::declare::*;
use crate::study::identify::keep;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "boot",
        about: "Deferred initialisation of the memory map, on the machines that the metrics name, or on --machine.",
        kinds: &[Kind::Simulated],
        keys: &[key(
            "threads",
            Takes::Flag,
            Some("false"),
            "Whether every number of CPUs of each node takes part in turn, or all.",
        )],
        metrics: &quantities! {
            deferred_init_ms "ms" Lower Main "The deferred part of initialising the memory map."
            boot_ms "ms" Lower Main "The published boot with its deferred part replaced."
        },
        options: &[SIMULATED[0], SIMULATED[1], SIMULATED[2], (Opt::Trace, Kind::Simulated)],
        needs: &[Need::Model, Need::Late],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// A machine and what is booted there.
struct Rig {
    machine: Machine,
    map: BootMap,
    models: Vec<Model>,
    /// Of each model: ms that it takes besides, and the model's own error as a factor. None without a condition.
    besides: Vec<[f64; 2]>,
    /// How many times longer the whole machine takes than what is booted.
    times: f64,
}

/// GiB of each node that a curve boots; times are those of all.
const SLICE_GIB: u64 = 8;
/// Models that are drawn for each two that are wanted.
const DRAWN: usize = 3;
/// The variant whose curve is asked for, and which is open with all CPUs.
const CURVE: &str = "all_cpus";
/// How far a core's bandwidth may be from its description, as a standard deviation of the logarithm.
const CORE_SPREAD: f64 = 0.1;
/// The model's own error between the two ends of a curve that are known, as a standard deviation of the logarithm: half
/// of what orders that were left out of the fit are off by.
const BETWEEN: f64 = 0.08;

/// One run.
struct Work<'a> {
    rig: &'a Rig,
    model: &'a Model,
    variant: &'a Configured,
    /// Workers of a node.
    workers: u16,
    seed: u64,
}

impl Rig {
    fn new(machine: Machine, models: impl FnOnce(&Machine) -> Result<Vec<Model>>) -> Result<Self> {
        let (map, _) = Bootable::of_machine(&machine)?.divide()?;
        Ok(Self { map, models: models(&machine)?, machine, besides: Vec::new(), times: 1.0 })
    }

    /// The same of [`SLICE_GIB`] of each node, without models.
    fn sliced(machine: Machine) -> Result<Self> {
        let deferred = |machine: &Machine| -> u64 {
            machine.zones.iter().map(|zone| zone.managed_pages - zone.early_managed_pages).sum()
        };
        let mut slice = machine.clone();
        let share = slice.gib_per_node.div_ceil(SLICE_GIB).max(1);
        for zone in slice.zones.iter_mut().filter(|zone| zone.early_managed_pages < zone.managed_pages) {
            let section = 1 << 15;
            let reserved = zone.present_pages - zone.managed_pages;
            zone.present_pages = (zone.present_pages / share).next_multiple_of(section).max(4 * section);
            zone.managed_pages = zone.present_pages - reserved / share;
        }
        let (map, _) = Bootable::of_machine(&slice)?.divide()?;
        let times = deferred(&machine) as f64 / deferred(&slice).max(1) as f64;
        Ok(Self { machine, map, models: Vec::new(), besides: Vec::new(), times })
    }

    /// Models that agree with what was published of one thread and of all CPUs. The latter was predicted once and is
    /// learned from now.
    fn conditioned(mut self, plan: &Plan, variants: &[Configured], count: usize, seed: u64) -> Result<Self> {
        let metric = declared(plan, "deferred_init_ms", &self.machine.name);
        let open = metric.and_then(|metric| Some([metric.published?.mean, metric.changed.get(CURVE)?.mean]));
        let Some([by_one_ms, all]) = open else {
            self.models = sampled_models(&self.machine, count, seed)?;
            self.besides = vec![[0.0, 1.0]; self.models.len()];
            return Ok(self);
        };
        let variant_of = |name: &str| variants.iter().find(|known| known.variant == name);
        let missing = || Error::failed("the study's variants have other names");
        let (by_one, by_all) =
            (variant_of(&plan.baseline).ok_or_else(missing)?, variant_of(CURVE).ok_or_else(missing)?);
        let priors = Priors::parse("boot.toml", include_str!("../../../../studies/priors/boot.toml"))?;
        let drawn = (count * DRAWN).div_ceil(2);
        let models = sampled_models(&self.machine, drawn, seed)?;
        let draws = priors.draws(drawn, seed);
        let items: Vec<(Model, &Draw)> = models.into_iter().zip(&draws).collect();
        let condition = |(model, draw): &(Model, &Draw)| -> Result<(Model, f64, f64)> {
            let start = draw.get("start_ms")?;
            let mut model = model.clone();
            model.bandwidth.saturated = draw.get("saturated")?;
            if self.machine.threads_per_core > 1 {
                model.smt_yield = draw.get("smt_yield")?;
            }
            let ms = |model: &Model, variant: &Configured, workers: u16| -> Result<f64> {
                let work = Work { rig: &self, model, variant, workers, seed: mix(seed) };
                Ok(work.run().map_err(Error::failed)?.ms * self.times + start)
            };
            let core = (ms(&model, by_one, 1)? - start) / (by_one_ms - start).max(by_one_ms / 2.0);
            model.bandwidth.core *= core;
            let Bandwidth { node_read, node_mixed, .. } = model.bandwidth;
            let (solved, log_weight) = priors.solve("node_time", 4, |times| {
                let mut model = model.clone();
                model.bandwidth.node_read = node_read / times;
                model.bandwidth.node_mixed = node_mixed / times;
                Ok(((ms(&model, by_all, self.cpus_per_node())? / all).ln(), model))
            })?;
            let core = (core.ln() / CORE_SPREAD).powi(2);
            Ok((solved, start, log_weight - 0.5 * core))
        };
        let found = in_parallel(&items, condition, || ()).into_iter().collect::<Result<Vec<_>>>()?;
        let weights: Vec<f64> = found.iter().map(|(.., weight)| *weight).collect();
        let kept = keep(&weights, count, seed);
        let mut rng = Rng::new(mix(seed ^ 0x6f77_6e00));
        let errors = strata(0.0, 1.0, count, &mut rng);
        let normal = Normal::standard();
        self.models = kept.models.iter().map(|&n| found[n].0.clone()).collect();
        self.besides = kept
            .models
            .iter()
            .zip(errors)
            .map(|(&n, errors)| [found[n].1, (BETWEEN * normal.inverse_cdf(errors)).exp()])
            .collect();
        Ok(self)
    }

    fn cpus_per_node(&self) -> u16 {
        (self.machine.cores_per_node * self.machine.threads_per_core) as u16
    }

    /// A run of each model.
    fn work<'a>(
        &'a self,
        variant: &'a Configured,
        workers: u16,
        seed: u64,
    ) -> impl Iterator<Item = Work<'a>> {
        let workers = if variant.setup.split == Split::OneThread { 1 } else { workers };
        let models = self.models.iter().zip(1..);
        models.map(move |(model, n)| Work { rig: self, model, variant, workers, seed: mix(seed ^ n << 32) })
    }

    /// What the whole machine takes where what was booted took so many ms, by a model's number.
    fn whole(&self, ms: f64, model: usize) -> f64 {
        let [start, error] = self.besides.get(model).copied().unwrap_or([0.0, 1.0]);
        (ms * self.times + start) * error
    }
}

/// A map as the simulator boots it.
pub(crate) fn memory(map: &BootMap, split: Split, workers: u16) -> BootMemory<'_> {
    let BootMap { zones, parts, free, rules, .. } = map;
    BootMemory { zones, parts, free, section: rules.section, split, workers }
}

impl Work<'_> {
    fn run(&self) -> core::result::Result<Outcome, WorldError> {
        let memory = memory(&self.rig.map, self.variant.setup.split, self.workers);
        boot(self.model, &memory, self.variant.setup.config, self.seed, 0)
    }
}

/// Runs the part: the machine that was asked for, or all that the study's metrics name, under every variant.
///
/// # Errors
/// A metric names a machine that does not exist, or that cannot be simulated.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let curve = WORKLOAD.value(part, "threads");
    let count = run.models as usize;
    let machines = machines(plan.parts.iter().flat_map(|part| &part.metrics), run)?;
    let variants = configured(plan, &Settings::default())?;
    let rig = |machine: Machine| match curve {
        true => Rig::sliced(machine)?.conditioned(plan, &variants, count, run.seed),
        false => Rig::new(machine, |machine| sampled_models(machine, count, run.seed)),
    };
    let rigs: Vec<Rig> = machines.into_iter().map(rig).collect::<Result<_>>()?;
    let mut work = Vec::new();
    for rig in &rigs {
        for variant in &variants {
            for workers in worker_counts(rig.cpus_per_node(), curve, variant.setup.split, run.quick) {
                work.extend(rig.work(variant, workers, run.seed));
            }
        }
    }
    let progress = progress(plan, part, work.len());
    let outcomes = in_parallel(&work, Work::run, || progress.step("simulated"));
    let about = if rigs.len() == 1 { rigs[0].machine.name.as_str() } else { "all" };
    let mut result = result_part(plan, part, Kind::Simulated, about, run.seed);
    let mut hashes = Vec::new();
    // A machine's models follow one another, for each variant and number of workers.
    for (n, (work, outcome)) in work.iter().zip(outcomes).enumerate() {
        let outcome = outcome.map_err(Error::failed)?;
        hashes.push(outcome.events.hash);
        let (machine, variant) = (&work.rig.machine.name, &work.variant.variant);
        if curve {
            let ms = work.rig.whole(outcome.ms, n % work.rig.models.len());
            // One thread takes as long, however many might work: the baseline of every row.
            let rows = match work.variant.setup.split {
                Split::OneThread => 1..=work.rig.cpus_per_node(),
                _ => work.workers..=work.workers,
            };
            for workers in rows {
                let name = format!("deferred_init_ms[machine={machine},threads={workers}]");
                let entry = result.figure(name).sample(variant, ms);
                if let Some(law) = roofline(plan, machine, variant, workers) {
                    entry.naive(variant, law);
                }
            }
        } else {
            add(&mut result, plan, machine, variant, outcome.ms);
        }
    }
    let interval = if curve { Interval::FourFifths } else { Interval::LowestToHighest };
    close_simulated(&mut result, hashes, interval);
    explain(&mut result, curve, run.models as usize);
    Ok(result)
}

/// All CPUs of the node; for a curve every number before, by section and for a first look 1, 2, 4, ….
fn worker_counts(all: u16, curve: bool, split: Split, quick: bool) -> Vec<u16> {
    match (curve, split) {
        (false, _) => vec![all],
        (true, Split::OneThread) => vec![1],
        (true, Split::AllCpus) if !quick => (1..=all).collect(),
        (true, _) => doubled(all).collect(),
    }
}

fn declared<'a>(plan: &'a Plan, family: &str, machine: &str) -> Option<&'a Metric> {
    let name = format!("{family}[machine={machine}]");
    plan.parts.iter().flat_map(|part| &part.metrics).find(|metric| metric.name == name)
}

/// A law that needs no model, to hold predictions against: workers that share a bandwidth take `max(one / n, all)` of
/// the published figures of one and of all.
fn roofline(plan: &Plan, machine: &str, variant: &str, workers: u16) -> Option<f64> {
    let metric = declared(plan, "deferred_init_ms", machine)?;
    Some((metric.published?.mean / f64::from(workers.max(1))).max(metric.changed.get(variant)?.mean))
}

/// A boot is the published one of the baseline with its deferred part replaced.
fn add(result: &mut ResultPart, plan: &Plan, machine: &str, variant: &str, ms: f64) {
    let published = |family| declared(plan, family, machine).and_then(|metric| metric.published);
    let deferred = published("deferred_init_ms");
    if let Some(boot) = published("boot_ms") {
        let rest = boot.mean - deferred.map_or(0.0, |deferred| deferred.mean);
        result.figure(format!("boot_ms[machine={machine}]")).published(boot).sample(variant, rest + ms);
    }
    let entry = result.figure(format!("deferred_init_ms[machine={machine}]")).sample(variant, ms);
    if let Some(published) = deferred {
        entry.published(published);
    }
}

/// Says what the figures are, and what they are not.
fn explain(result: &mut ResultPart, curve: bool, models: usize) {
    if curve {
        result.note(format!(
            "Simulated: workers of each node, cores before their siblings; {SLICE_GIB} GiB of each node, times those of all. Each of \
             {models} samples is a model that agrees with the published figures of one thread and of all CPUs, where there are any: \
             what it says of these is learned, what is between them is predicted. Intervals are the middle four fifths.",
        ));
        return;
    }
    result.note("Simulated: the allocator's own boot with all CPUs of all nodes at once.");
    note_models(result, models, Interval::LowestToHighest);
    let signed = |metric: &framewright_report::result::Metric| {
        let published = metric.published?;
        let samples = metric.of(&result.baseline);
        let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
        let machine = metric.parameters().find(|(name, _)| *name == "machine")?.1.to_owned();
        let error = 100.0 * (mean / published.mean - 1.0);
        Some(format!("{machine} {error:+.1} %"))
    };
    let errors: Vec<String> = result
        .metrics
        .iter()
        .filter(|metric| metric.family() == "deferred_init_ms")
        .filter_map(signed)
        .collect();
    if !errors.is_empty() {
        result.note(format!(
        "The baseline's deferred part against the published one: {}. It is no prediction: a core's bandwidth while it \
         initialises descriptors is a parameter of these machines.",
        errors.join(", ")
    ));
    }
    result.note(
        "boot_ms: the published boot of the baseline less its deferred part, plus the simulated one. Threads start at \
         once; a guest's host, its page faults and its steal time are not modelled.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_roofline_goes_through_what_is_published() {
        let plan = Plan::find("parallel-init").expect("it is built in");
        let limit = |workers| roofline(&plan, "skylake-8167m-2s", "all_cpus", workers);
        assert_eq!([limit(1), limit(52)], [Some(1763.3), Some(144.3)]);
    }

    #[test]
    fn the_smallest_machine_boots_under_every_variant() {
        let plan = Plan::find("parallel-init").expect("it is built in");
        let variants = configured(&plan, &Settings::default()).expect("they are valid");
        let machine = Machine::find("haswell-2699v3-vm4").expect("it is built in");
        let run = Run::shortest(&machine);
        let all =
            machines(plan.parts.iter().flat_map(|part| &part.metrics), &run).expect("they are built in");
        assert_eq!(all.len(), 6);
        let rig = Rig::new(machine, |machine| sampled_models(machine, 2, 1)).expect("a rig");
        let mut result = ResultPart::new("parallel-init", "machines", Kind::Simulated, "all");
        for variant in &variants {
            for work in rig.work(variant, rig.cpus_per_node(), 1) {
                let outcome = work.run().expect("simulated");
                add(&mut result, &plan, "haswell-2699v3-vm4", &variant.variant, outcome.ms);
            }
        }
        let deferred = result.find("deferred_init_ms[machine=haswell-2699v3-vm4]").expect("simulated");
        let value = |variant: &str| deferred.of(variant)[0];
        // What one thread takes is known: its bandwidth is described.
        assert!((value("one_thread_per_node") / 57.3 - 1.0).abs() < 0.25, "{}", value("one_thread_per_node"));
        assert!(value("all_cpus") < value("one_thread_per_node") / 1.5);
        let boot = result.find("boot_ms[machine=haswell-2699v3-vm4]").expect("simulated");
        assert!((boot.of("all_cpus")[0] - value("all_cpus") - (656.3 - 57.3)).abs() < 1e-6);
    }

    #[test]
    fn a_curve_goes_through_what_is_open_and_falls_between() {
        let plan = Plan::find("parallel-init").expect("it is built in");
        let variants = configured(&plan, &Settings::default()).expect("they are valid");
        let machine = Machine::find("naples-7551-vm16").expect("it is built in");
        let name = "deferred_init_ms[machine=naples-7551-vm16]";
        let metrics = plan.parts.iter().flat_map(|part| &part.metrics);
        let metric = metrics.into_iter().find(|metric| metric.name == name).expect("a metric");
        let open = [metric.published.expect("published").mean, metric.changed[CURVE].mean];
        let rig = Rig::sliced(machine).expect("a slice").conditioned(&plan, &variants, 2, 1).expect("models");
        let all_cpus = variants.iter().find(|variant| variant.variant == CURVE).expect("a variant");
        let times = |workers: u16| -> Vec<f64> {
            let ms = rig.work(all_cpus, workers, 1).map(|work| work.run().expect("simulated").ms);
            ms.enumerate().map(|(n, ms)| rig.whole(ms, n) / rig.besides[n][1]).collect()
        };
        let (alone, few, all) = (times(1), times(6), times(16));
        for n in 0..2 {
            assert!((alone[n] / open[0] - 1.0).abs() < 0.03, "{alone:?} {open:?}");
            assert!((all[n] / open[1] - 1.0).abs() < 0.1, "{all:?} {open:?}");
            // Six workers nearly fill the node's bandwidth: more of them gain or lose a little.
            assert!(all[n] < few[n] * 1.05 && few[n] < alone[n] / 2.0, "{alone:?} {few:?} {all:?}");
        }
    }

    #[test]
    fn a_curve_ends_with_all_cpus() {
        let counts = |curve, split| worker_counts(36, curve, split, false);
        assert_eq!(counts(true, Split::AllCpusBySection), [1, 2, 4, 8, 16, 32, 36]);
        assert_eq!(counts(true, Split::OneThread), [1]);
        assert_eq!(counts(true, Split::AllCpus), (1..=36).collect::<Vec<_>>());
        assert_eq!(counts(false, Split::AllCpus), [36]);
        assert_eq!(worker_counts(36, true, Split::AllCpus, true), [1, 2, 4, 8, 16, 32, 36]);
    }
}
