//! Part `host` of `validation`: this command's own `bench` on one CPU, two and more, measured here, and simulated on a
//! description of this machine (`machines --detect`). Both run the same code.

use framewright_sim::world::WorldError;
use framewright_subject::load::{Load, Sample};
use framewright_subject::modelled::modelled;
use framewright_subject::runner;
use framewright_workload::bench::{self, Case, Scale, Workload as Bench};
use framewright_workload::probe;

use crate::study::declare::*;

/// The column of the allocator as it is by default.
const VARIANT: &str = "framewright";
/// What is timed in `bench` with one thread and with several.
const TIMED: [Bench; 7] = [
    Bench::HotPair,
    Bench::Bulk,
    Bench::RandomPut,
    Bench::Churn,
    Bench::Handoff,
    Bench::Mixed,
    Bench::ExitStorm,
];
const ORDERS: [u8; 3] = [0, 3, 9];
/// Operations of a round for a first look, and frames if it is simulated.
const QUICK: [u64; 2] = [1 << 15, 1 << 11];
const QUICK_FRAMES: u64 = 1 << 15;
/// Frames for each CPU, at least: lists of large blocks are on CPUs that wait for others, and do not give them back.
const FRAMES_OF_A_CPU: u64 = 1 << 14;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "own_bench",
        about: "The workloads of `bench` on 1, 2, 4, … CPUs: measured here, or simulated by the same code.",
        kinds: &[Kind::Measured, Kind::Simulated],
        keys: &[CPUS],
        metrics: &quantities! {
            hot_pair_ns "ns" Lower Main "Time of an allocation and its free, again and again."
            bulk_get_ns "ns" Lower Main "Time of one allocation of many."
            bulk_put_ns "ns" Lower Main "Time of one free of many, in the order of allocation."
            random_put_ns "ns" Lower Main "Time of one free in random order of what all have allocated."
            churn_ns "ns" Lower Main "Time of a random free and an allocation."
            handoff_ns "ns" Lower Main "Wall time of a block that one CPU allocates and the other frees."
            handoff_ring_ns "ns" Lower Main "The same with numbers in place of blocks."
            mixed_ns "ns" Lower Main "Time of one operation of orders 0 to 4."
            exit_storm_ns "ns" Lower Main "Time of one operation of processes that come and go."
            exit_storm_put_ns "ns" Lower Main "Time of one of their frees."
            transfer_ns "ns" None Cause "A line's way from one CPU to another, measured before each sample on several."
        },
        options: joined!((Opt, Kind); &MEASURED, &SIMULATED),
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Measured, measured), (Kind::Simulated, simulated)],
};

/// What a part times on a machine with so many CPUs.
fn cases(part: &Part, cpus: usize) -> Vec<Case> {
    let most: u64 = WORKLOAD.value(part, "cpus");
    let counts = (0..).map(|n| 1 << n).take_while(|&count| count <= cpus && count as u64 <= most);
    Case::all(&TIMED, &ORDERS, &counts.collect::<Vec<usize>>())
}

/// How much is done: the same for all cases of a part.
fn scale(cases: &[Case], run: &Run<'_>, kind: Kind) -> Scale {
    let is_measured = kind == Kind::Measured;
    let all = Scale { seed: run.seed, ..Scale::default() };
    let operations = if run.quick { QUICK[usize::from(!is_measured)] } else { all.operations };
    let frames = if run.quick && !is_measured { QUICK_FRAMES } else { all.frames };
    let most = cases.iter().map(|case| case.cpus as u64).max().unwrap_or(1);
    Scale { operations, frames: frames.max(most * FRAMES_OF_A_CPU), ..all }
}

/// Says of which cases the figures do not compare.
fn tell_failures<'c>(result: &mut ResultPart, failures: impl IntoIterator<Item = (&'c Case, u64)>) {
    let mut cases: Vec<(&Case, u64)> = Vec::new();
    for (case, failures) in failures {
        match cases.last_mut() {
            Some((last, all)) if *last == case => *all += failures,
            _ => cases.push((case, failures)),
        }
    }
    for (case, failures) in cases.into_iter().filter(|(_, failures)| *failures > 0) {
        result.note(format!("{failures} allocations failed in {case}: its figures do not compare."));
    }
}

fn empty(plan: &Plan, part: &Part, kind: Kind, about: &str, seed: u64) -> ResultPart {
    ResultPart::new(&plan.name, &part.name, kind, about).seed(seed).variant(VARIANT).baseline(VARIANT)
}

/// Runs the part on this machine's threads.
///
/// # Errors
/// No memory.
pub(crate) fn measured(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let here = cpus_here();
    let cases = cases(part, here);
    let mut runners = vec![runner(VARIANT, Setup::default().config)];
    let scale = scale(&cases, run, Kind::Measured);
    let samples = run.samples as usize;
    let progress = progress(plan, part, cases.len() * samples);
    let mut result = empty(plan, part, Kind::Measured, "host", run.seed);
    let allowed = probe::allowed_cpus();
    let results = bench::interleave(&mut runners, &cases, &scale, samples, |now| {
        progress.step(&now.case.to_string());
        // A hypervisor may move its guest's CPUs at any time.
        if now.case.cpus > 1
            && let [first, second, ..] = allowed[..]
            && let Some(transfer) = probe::ping_pong(first, second)
        {
            result.figure(format!("transfer_ns[cpus={}]", now.case.cpus)).sample(VARIANT, transfer.value);
        }
        true
    })
    .map_err(Error::failed)?;
    for series in results.iter().flat_map(|result| &result.series) {
        let samples = series.samples.iter().flat_map(|(_, samples)| samples.iter().copied());
        result.figure(&series.name).samples(VARIANT, samples);
    }
    if results.iter().any(|result| !result.pinned) {
        result.note("Threads could not be pinned to CPUs.");
    }
    let failures = results
        .iter()
        .flat_map(|result| result.failures.iter().map(|(_, failures)| (&result.case, *failures)));
    tell_failures(&mut result, failures);
    Ok(result)
}

/// One simulated run.
fn simulate(
    case: &Case,
    model: &Model,
    scale: &Scale,
    seed: u64,
) -> core::result::Result<Sample, WorldError> {
    modelled(model, Setup::default().config, &Load::Bench(*case, *scale), seed)
}

/// Runs the part on models of the machine.
///
/// # Errors
/// The machine cannot be simulated.
pub(crate) fn simulated(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let count = run.models as usize;
    let models = sampled_models(run.machine, count, run.seed)?;
    // Each model's own error, as a factor.
    let errors = model_errors(count, run.seed)?;
    let cases = cases(part, run.machine.cpus() as usize);
    let scale = scale(&cases, run, Kind::Simulated);
    let runs = on_models((plan, part, "simulated"), &cases, &models, run.seed, |case, (model, _), seed| {
        simulate(case, model, &scale, seed)
    })?;
    let mut result = empty(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut failures = Vec::with_capacity(runs.len());
    for (case, n, sample) in runs {
        failures.push((case, sample.measurement.failures));
        for metric in sample.measurement.metrics {
            result.figure(&metric.name).sample(VARIANT, metric.value * errors[n]);
        }
    }
    close_simulated(&mut result, [], Interval::FourFifths);
    tell_failures(&mut result, failures);
    explain(&mut result, run.machine, count);
    Ok(result)
}

fn explain(result: &mut ResultPart, machine: &Machine, models: usize) {
    result.note(format!(
        "Simulated: {models} models of {}, each with the model's own error as orders left out of its fit have it. Intervals are the \
         middle four fifths. The harness costs one access for each call; its lists are in no simulated cache.",
        machine.name
    ));
    if machine.cycles.access.is_none() {
        result.note(
            "The machine has no cycles.access: work around an access is what was fitted to Linux, which does more than this code.",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_simulated_by_the_code_that_is_measured() {
        let (plan, part) = Plan::with_part("validation", "host");
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let run = Run { models: 2, ..Run::shortest(&machine) };
        let result = simulated(&plan, &part, &run).expect("simulated");
        // Four with an order, two figures of one of them and of one without, on one CPU and on two; a ring only on two.
        assert_eq!(result.metrics.len(), 2 * (5 * 3 + 3) + 2 * 3);
        assert!(result.metrics.iter().all(|metric| {
            let [low, high] = metric.interval[VARIANT];
            metric.of(VARIANT).len() == 2 && low > 0.0 && low <= high
        }));
        let value = |name: &str| result.find(name).unwrap_or_else(|| panic!("{name}")).of(VARIANT)[0];
        assert!(
            value("random_put_ns[order=0,cpus=2]") > value("random_put_ns[order=0,cpus=1]"),
            "others' blocks cost more"
        );
        assert!(value("handoff_ns[order=0,cpus=2]") > value("handoff_ring_ns[order=0,cpus=2]"));
        let pair = [1, 2].map(|cpus| value(&format!("hot_pair_ns[order=0,cpus={cpus}]")));
        assert!((pair[1] / pair[0] - 1.0).abs() < 0.1, "hits share nothing: {pair:?}");
        // Two loads of a word that has just been stored, with an addition each, take 12 cycles of 2.2 GHz; eleven
        // accesses in a row 18 ns.
        assert!(pair[0] < 10.0, "hits overlap: {pair:?}");
    }

    #[test]
    fn samples_on_several_cpus_come_with_the_distance_of_these() {
        let (plan, part) = Plan::with_part("validation", "host");
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let run = Run { samples: 1, ..Run::shortest(&machine) };
        let result = measured(&plan, &part, &run).expect("measured");
        let of_two: usize = cases(&part, cpus_here())
            .iter()
            .filter(|case| case.cpus == 2)
            .map(|case| case.workload.rounds(1))
            .sum();
        // A probe that other work delays has no figure.
        let transfers = result.find("transfer_ns[cpus=2]").map_or(0, |metric| metric.of(VARIANT).len());
        assert!((of_two.min(1)..=of_two).contains(&transfers), "{transfers} of {of_two}");
        assert!(result.find("transfer_ns[cpus=1]").is_none());
    }

    #[test]
    fn on_many_cpus_there_are_large_blocks_for_all_and_failures_are_named() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let model = &sampled_models(&machine, 1, 1).expect("a model")[0];
        let cases = Case::all(&[Bench::HotPair, Bench::Churn], &[9], &[16]);
        let quick = scale(&cases, &Run::shortest(&machine), Kind::Simulated);
        for case in cases {
            let failures = |scale: Scale| {
                simulate(&case, model, &scale, mix(1)).expect("simulated").measurement.failures
            };
            assert_eq!(failures(quick), 0, "{case}");
            let mut result = ResultPart::new("s", "p", Kind::Simulated, "all");
            tell_failures(&mut result, [(&case, 0), (&case, 3)]);
            assert!(
                matches!(&result.notes[..], [note] if note.contains(&case.to_string())),
                "{:?}",
                result.notes
            );
        }
    }
}
