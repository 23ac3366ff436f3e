//! Parts that run this project's allocator as a library, measured on this machine's threads and simulated on a modelled
//! one, by the same code: every CPU allocates and frees in bulk, or replays a copy of a trace as fast as it can.

use framewright_subject::load::{Load, Pair, Sample};
use framewright_subject::modelled::modelled;
use framewright_workload::probe;
use framewright_workload::replay::Recorded;

use crate::study::declare::*;
use crate::study::replay::trace;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "library",
        about: "The allocator as a library, on 1, 2, 4, … CPUs: every CPU allocates and frees in bulk, or replays a copy of a trace.",
        kinds: &[Kind::Measured, Kind::Simulated],
        keys: &[
            key("load", Takes::Words(&["bulk", "copies"]), Some("bulk"), "What the CPUs do."),
            CPUS,
            key("trace", Takes::FileOr("compile"), Some("compile"), "The trace of which copies run."),
        ],
        metrics: joined!(Quantity;
            &TIMES,
            &quantities! {
                copied_ns "ns" Lower Main "Time of one operation of a trace that every CPU has a copy of."
            },
            &ZONE_LOCK,
            &quantities! {
                transfer_ns "ns" None Cause "A line's way from one CPU to another, measured before and after each sample."
                wide_ns "ns" None Cause "A step of code that fills a core, before and after each sample: more where another guest works on it."
                zone_lock_acquisitions_per_operation "1" Lower Main "Acquisitions of zone locks, those of a warm-up included, per timed operation."
            },
        ),
        options: joined!((Opt, Kind); &MEASURED, &SIMULATED),
        needs: &[Need::Model],
        varies: usize::MAX,
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, measured), (Kind::Simulated, simulated)],
};

/// Events of a trace that each CPU replays; for a first look.
const EVENTS: [usize; 2] = [40_000, 10_000];
/// Factor by which times of this allocator as a library, predicted blind for two machines, were off
/// (of bulk, four of five; docs/validation/own-bench.md).
const OFF: f64 = 1.7;
/// Time that the clock adds to a hold that a host times, in ns: one look by the vDSO.
const CLOCK_NS: [f64; 2] = [15.0, 40.0];
/// The factor of counts, which repeat but for where a pass begins.
const COUNTS_OFF: f64 = 1.05;

const TRANSFER: &str = "transfer_ns";
const WIDE: &str = "wide_ns";
const COUNTS: &str = "zone_lock_acquisitions_per_operation";

/// Adds the figures of a sample, times by a factor, and holds with what the clock adds to them.
pub(crate) fn add(
    sample: &Sample,
    result: &mut ResultPart,
    variant: &str,
    parameters: &str,
    [factor, clock]: [f64; 2],
) {
    let [locks, wait, hold] = sample.lock;
    let times = sample.measurement.metrics.iter().map(|metric| {
        let name = metric.name.split('[').next().unwrap_or_default();
        let name = match name {
            "bulk_get_ns" => "alloc_ns",
            "bulk_put_ns" => "free_ns",
            name => name,
        };
        (name, factor * metric.value)
    });
    let locks =
        [("zone_lock_wait_ns", factor * wait), ("zone_lock_hold_ns", factor * hold + clock), (COUNTS, locks)];
    for (family, value) in times.chain(locks) {
        result.figure(format!("{family}[{parameters}]")).sample(variant, value);
    }
    if sample.measurement.failures > 0 {
        result.note(format!(
            "{} allocations failed: {parameters} does not compare.",
            sample.measurement.failures
        ));
    }
}

/// Two arenas of this setup for a load.
///
/// # Errors
/// The configuration is refused.
pub(crate) fn pair(setup: &Setup, load: &Load<'_>) -> Result<Pair> {
    Pair::new(setup.config, setup.descriptor, load).map_err(Error::failed)
}

/// What is in the brackets of a metric's name.
pub(crate) fn parameters(varied: &Settings, cores: usize) -> String {
    let mut all: Vec<String> =
        varied.iter().map(|(key, value)| format!("{}={value}", key.trim_start_matches("lock_"))).collect();
    all.push(format!("cores={cores}"));
    all.join(",")
}

/// Loads of a part on 1, 2, 4, … CPUs.
fn loads<'a>(part: &Part, recorded: &'a Recorded, cpus: usize) -> Vec<Load<'a>> {
    let most: usize = WORKLOAD.value(part, "cpus");
    let counts = (0..).map(|n| 1 << n).take_while(|&count| count <= cpus.min(most));
    let is_bulk = WORKLOAD.text(part, "load") == "bulk";
    counts.map(|cpus| if is_bulk { Load::bulk(cpus) } else { Load::Copies(recorded, cpus) }).collect()
}

/// The part of its trace that each CPU replays; nothing for a load that has none.
fn recorded(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<Recorded> {
    if WORKLOAD.text(part, "load") == "bulk" {
        return Ok(Recorded::default());
    }
    let (trace, _) = trace(plan, part)?;
    Ok(Recorded::new(&trace, EVENTS[usize::from(run.quick)]))
}

/// Runs the part on this machine's threads.
///
/// # Errors
/// A setting or a trace that does not exist, or no memory.
fn measured(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let recorded = recorded(plan, part, run)?;
    let loads = loads(part, &recorded, cpus_here());
    let combinations = part.combinations();
    let mut result = result_part(plan, part, Kind::Measured, "host", run.seed);
    let steps = combinations.len() * loads.len() * plan.variants().count() * run.samples as usize;
    let progress = progress(plan, part, steps);
    // All are interleaved: what else the machine does falls on all alike.
    let mut all = Vec::new();
    for varied in &combinations {
        for load in &loads {
            for variant in configured(plan, varied)? {
                let pair = pair(&variant.setup.compact(), load)?;
                all.push((variant.variant, parameters(varied, load.cpus()), pair, load));
            }
        }
    }
    let cpus = probe::allowed_cpus();
    for (round, (variant, parameters, pair, load)) in in_turn(run.samples, &all) {
        let used = &cpus[..load.cpus().min(cpus.len())];
        let before = placed(used, parameters);
        add(&pair.sample(load, round), &mut result, variant, parameters, [1.0, 0.0]);
        let after = placed(used, parameters);
        for (name, before) in before {
            if let Some((_, after)) = after.iter().find(|(known, _)| *known == name) {
                result.figure(name).sample(variant, f64::midpoint(before, *after));
            }
        }
        progress.step(variant);
    }
    keep_declared(part, &mut result, &[TRANSFER, WIDE]);
    Ok(result)
}

/// Where a hypervisor has its guest's CPUs now: what contention costs is counts times the transfer, and what a CPU does
/// for itself takes longer on a core that another guest has a part of. Both change within seconds.
fn placed(cpus: &[usize], parameters: &str) -> Vec<(String, f64)> {
    let transfer = match *cpus {
        [first, second, ..] => probe::ping_pong(first, second),
        _ => None,
    };
    let transfer = transfer.map(|transfer| (format!("{TRANSFER}[{parameters}]"), transfer.value));
    transfer.into_iter().chain(by_cpu(probe::wide_on(cpus), parameters)).collect()
}

/// Names of the times on each CPU. One whose probe did not end in time has none.
fn by_cpu(wide: Vec<Option<f64>>, parameters: &str) -> impl Iterator<Item = (String, f64)> {
    let wide = wide.into_iter().enumerate().filter_map(|(n, ns)| Some((n, ns?)));
    wide.map(move |(n, ns)| (format!("{WIDE}[{parameters},cpu={n}]"), ns))
}

/// Runs the part on models of the machine.
///
/// # Errors
/// The machine cannot be simulated, or a setting or a trace that does not exist.
fn simulated(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let recorded = recorded(plan, part, run)?;
    let loads = loads(part, &recorded, run.machine.cpus() as usize);
    let count = run.models as usize;
    let models = sampled_models(run.machine, count, run.seed)?;
    let errors = strata(-OFF.ln(), OFF.ln(), count, &mut Rng::new(mix(run.seed ^ 0x0ff)));
    let clocks = strata(CLOCK_NS[0], CLOCK_NS[1], count, &mut Rng::new(mix(run.seed ^ 0xc10c)));
    let mut work = Vec::new();
    for varied in &part.combinations() {
        for load in &loads {
            for variant in configured(plan, varied)? {
                work.push((variant, parameters(varied, load.cpus()), *load));
            }
        }
    }
    let samples = on_models(
        (plan, part, "simulated"),
        &work,
        &models,
        run.seed,
        |(variant, _, load), (model, _), seed| {
            let mut config = variant.setup.config;
            config.experiment.lock_timing = true;
            modelled(model, config, load, seed)
        },
    )?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    for ((variant, parameters, _), n, sample) in samples {
        add(&sample, &mut result, &variant.variant, parameters, [errors[n].exp(), clocks[n]]);
    }
    keep_declared(part, &mut result, &[TRANSFER, WIDE]);
    close_models(&mut result, count, [], Interval::FourFifths);
    for metric in result.metrics.iter_mut().filter(|metric| metric.family() == COUNTS) {
        for [low, high] in metric.interval.values_mut() {
            (*low, *high) = (*low / COUNTS_OFF, *high * COUNTS_OFF);
        }
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of the second CPU was that of the first, where the first had none.
    #[test]
    fn a_cpu_without_a_time_leaves_the_others_their_names() {
        let named: Vec<_> = by_cpu(vec![None, Some(2.0)], "cores=2").collect();
        assert_eq!(named, [("wide_ns[cores=2,cpu=1]".to_owned(), 2.0)]);
    }
}
