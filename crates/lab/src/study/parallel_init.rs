//! Parts `machines` and `threads` of `parallel-init`: the deferred initialisation of the memory map, simulated on each
//! machine of the study by the allocator's own boot.

use framewright_host::BootMap;
use framewright_host::framewright::policy::init::Split;
use framewright_sim::Model;
use framewright_sim::boot::{Outcome, boot};
use framewright_sim::clock::mix;
use framewright_sim::world::{BootMemory, WorldError};

use crate::booting::Bootable;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::result::{Better, Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::{central_model, doubled, in_parallel, sampled_models};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::{Part, Plan};

/// A machine and what is booted there.
struct Rig {
    machine: Machine,
    map: BootMap,
    models: Vec<Model>,
}

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
        Ok(Self { map, models: models(&machine)?, machine })
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
}

impl Work<'_> {
    fn run(&self) -> core::result::Result<Outcome, WorldError> {
        let map = &self.rig.map;
        let memory = BootMemory {
            zones: &map.zones,
            parts: &map.parts,
            free: &map.free,
            section: map.rules.section,
            split: self.variant.setup.split,
            workers: self.workers,
        };
        boot(self.model, &memory, self.variant.setup.config, self.seed, 0)
    }
}

/// Runs the part: the machine that was asked for, or all that the study's metrics name, under every variant.
///
/// # Errors
/// A metric names a machine that does not exist, or that cannot be simulated.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let curve = part.workload.get("threads").is_some_and(|value| value.to_string() == "true");
    let models = |machine: &Machine| match curve {
        true => Ok(vec![central_model(machine)?]),
        false => sampled_models(machine, run.models as usize, run.seed),
    };
    let machines = if run.asked || machines(plan).is_empty() {
        vec![run.machine.clone()]
    } else {
        machines(plan).iter().map(|name| Machine::find(name)).collect::<Result<_>>()?
    };
    let rigs: Vec<Rig> =
        machines.into_iter().map(|machine| Rig::new(machine, models)).collect::<Result<_>>()?;
    let variants = configured(plan, &Settings::default())?;
    let mut work = Vec::new();
    for rig in &rigs {
        for variant in &variants {
            for workers in worker_counts(rig.cpus_per_node(), curve, variant.setup.split) {
                work.extend(rig.work(variant, workers, run.seed));
            }
        }
    }
    let progress = progress(plan, part, work.len());
    let outcomes = in_parallel(&work, Work::run, || progress.step("simulated"));
    let about = if rigs.len() == 1 { rigs[0].machine.name.as_str() } else { "all" };
    let mut result = result_part(plan, part, Kind::Simulated, about, run.seed);
    let mut hashes = Vec::new();
    for (work, outcome) in work.iter().zip(outcomes) {
        let outcome = outcome.map_err(Error::failed)?;
        hashes.push(outcome.events.hash);
        let (machine, variant) = (&work.rig.machine.name, &work.variant.variant);
        if curve {
            let name = format!("deferred_init_ms[machine={machine},threads={}]", work.workers);
            result.metric(name, "ms", Better::Lower).sample(variant, outcome.ms);
        } else {
            add(&mut result, plan, machine, variant, outcome.ms);
        }
    }
    close_simulated(&mut result, hashes);
    explain(&mut result, curve, run.models as usize);
    Ok(result)
}

/// The machines that the study's metrics name, each once.
fn machines(plan: &Plan) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for metric in plan.parts().iter().flat_map(|part| &part.metrics) {
        let name = metric.name.split_once("[machine=").and_then(|(_, rest)| rest.strip_suffix(']'));
        if let Some(name) = name.filter(|name| !names.iter().any(|known| known == name)) {
            names.push(name.to_owned());
        }
    }
    names
}

/// All CPUs of the node; for a curve by section 1, 2, 4, … before.
fn worker_counts(all: u16, curve: bool, split: Split) -> Vec<u16> {
    match (curve, split) {
        (false, _) => vec![all],
        (true, Split::OneThread) => vec![1],
        (true, Split::AllCpus) => vec![all],
        (true, Split::AllCpusBySection) => doubled(all).collect(),
    }
}

/// A boot is the published one of the baseline with its deferred part replaced.
fn add(result: &mut ResultPart, plan: &Plan, machine: &str, variant: &str, ms: f64) {
    let declared = |family: &str| {
        let name = format!("{family}[machine={machine}]");
        plan.parts().iter().flat_map(|part| &part.metrics).find(|metric| metric.name == name)
    };
    let deferred = declared("deferred_init_ms").and_then(|metric| metric.published);
    if let Some((metric, published)) = declared("boot_ms").and_then(|it| Some((it, it.published?))) {
        let rest = published.mean - deferred.map_or(0.0, |deferred| deferred.mean);
        let entry = result.metric(&metric.name, &metric.unit, metric.better).published(published);
        entry.sample(variant, rest + ms);
    }
    let entry = result.metric(format!("deferred_init_ms[machine={machine}]"), "ms", Better::Lower);
    let entry = match deferred {
        Some(published) => entry.published(published),
        None => entry,
    };
    entry.sample(variant, ms);
}

/// Says what the figures are, and what they are not.
fn explain(result: &mut ResultPart, curve: bool, models: usize) {
    if curve {
        result.note(
            "Simulated: workers of each node, cores before their siblings; every parameter as described. \
             one_thread_per_node has one; all_cpus differs too little from all_cpus_by_section to be shown with fewer than all.",
        );
        return;
    }
    result.note("Simulated: the allocator's own boot with all CPUs of all nodes at once.");
    note_models(result, models);
    let signed = |metric: &crate::result::Metric| {
        let published = metric.published?;
        let samples = metric.of(&result.baseline);
        let mean = samples.iter().sum::<f64>() / samples.len().max(1) as f64;
        let machine = metric.parameters().find(|(name, _)| *name == "machine")?.1.to_owned();
        let error = 100.0 * (mean / published.mean - 1.0);
        Some(format!("{machine} {error:+.1} %"))
    };
    let errors: Vec<String> =
        result.metrics.iter().filter(|it| it.family() == "deferred_init_ms").filter_map(signed).collect();
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
    fn the_smallest_machine_boots_under_every_variant() {
        let plan = Plan::find("parallel-init").expect("it is built in");
        assert_eq!(machines(&plan).len(), 6);
        let variants = configured(&plan, &Settings::default()).expect("they are valid");
        let machine = Machine::find("haswell-2699v3-vm4").expect("it is built in");
        let rig = Rig::new(machine, |machine| sampled_models(machine, 2, 1)).expect("a rig");
        let mut result = ResultPart::new("parallel-init", "machines", Kind::Simulated, "all");
        for variant in &variants {
            for work in rig.work(variant, rig.cpus_per_node(), 1) {
                let outcome = work.run().expect("simulated");
                add(&mut result, &plan, "haswell-2699v3-vm4", &variant.variant, outcome.ms);
            }
        }
        let deferred = result.find("deferred_init_ms[machine=haswell-2699v3-vm4]").expect("simulated");
        let of = |variant: &str| deferred.of(variant)[0];
        // What one thread takes is known: its bandwidth is described.
        assert!((of("one_thread_per_node") / 57.3 - 1.0).abs() < 0.25, "{}", of("one_thread_per_node"));
        assert!(of("all_cpus") < of("one_thread_per_node") / 1.5);
        let boot = result.find("boot_ms[machine=haswell-2699v3-vm4]").expect("simulated");
        assert!((boot.of("all_cpus")[0] - of("all_cpus") - (656.3 - 57.3)).abs() < 1e-6);
    }

    #[test]
    fn a_curve_ends_with_all_cpus() {
        assert_eq!(worker_counts(36, true, Split::AllCpusBySection), [1, 2, 4, 8, 16, 32, 36]);
        assert_eq!(worker_counts(36, true, Split::OneThread), [1]);
        assert_eq!(worker_counts(36, false, Split::AllCpus), [36]);
    }
}
