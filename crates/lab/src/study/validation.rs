//! Study `validation`: what the simulator makes of the measurements it was fitted to, and curves that can be held
//! against measurements it never saw.

use framewright_host::Order;
use framewright_sim::bench::{Bench, Case, Linux, linux, linux_6_0};
use framewright_sim::calibration;

use crate::simulate;
use crate::simulate::allocator;
use crate::study::declare::*;

pub(crate) const CALIBRATION: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "calibration",
        about: "The model's figures beside the measurements that its parameters were fitted to.",
        kinds: &[Kind::Simulated],
        metrics: &quantities! {
            median_error "%" Lower Main "Median of the errors' sizes."
            linux_bulk_get_error "%" None Cause "Signed error of an allocation's time."
            linux_bulk_put_error "%" None Cause "Signed error of a free's time."
            linux_rand_put_error "%" None Cause "Signed error of a free's time, in random order."
            linux_repeat_pair_error "%" None Cause "Signed error of a pair's time."
            linux_repeat_get_error "%" None Cause "Signed error of a pair's time."
            list_bulk_get_error "%" None Cause "The same for a locked list."
            list_bulk_put_error "%" None Cause "The same for a locked list."
            list_rand_get_error "%" None Cause "The same for a locked list."
            list_rand_put_error "%" None Cause "The same for a locked list."
            list_repeat_pair_error "%" None Cause "The same for a locked list."
            list_repeat_get_error "%" None Cause "The same for a locked list."
        },
        options: &[(Opt::Machine, Kind::Simulated), (Opt::Quick, Kind::Simulated)],
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, calibration)],
};

pub(crate) const CURVES: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "curves",
        about: "Bulk, random and repeated allocation at every order and number of cores.",
        kinds: &[Kind::Simulated],
        metrics: &quantities! {
            bulk_get_ns "ns" Lower Main "Time of one allocation."
            bulk_put_ns "ns" Lower Main "Time of one free."
            rand_put_ns "ns" Lower Main "Time of one free in random order."
            repeat_pair_ns "ns" Lower Main "Time of an allocation and its free."
        },
        options: &SIMULATED,
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, curves)],
};

const VARIANT: &str = "linux";
/// The most cores of the measurements that a first look compares.
const QUICK_CORES: u16 = 8;

/// Part `calibration`: the signed error of each figure, and the median of their sizes.
///
/// # Errors
/// The machine cannot be simulated.
pub(crate) fn calibration(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let model = simulate::central_model(run.machine)?;
    let allocator = linux_6_0_on(run.machine);
    let mut set = calibration::parse(simulate::MEASURED).map_err(|line| {
        Error::failed(format_args!("machines/calibration/xeon-gold-5320.csv:{line}: not a measurement"))
    })?;
    if run.quick {
        set.retain(|row| row.case.cores <= QUICK_CORES);
    }
    let progress = progress(plan, part, set.len());
    let rows = in_parallel(
        &set,
        |row| calibration::compare(&model, &allocator, core::slice::from_ref(row), run.seed),
        || progress.step("calibration"),
    );
    let mut compared = Vec::new();
    for row in rows {
        compared.extend(row.map_err(Error::failed)?);
    }
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let median = calibration::median_error(&compared);
    result.figure("median_error").sample(VARIANT, 100.0 * median);
    for figure in &compared {
        result.figure(&figure.name).sample(VARIANT, 100.0 * figure.error());
    }
    result.note(
        "The parameters were fitted to these figures: an error here says how well the model can fit, not how \
                 well it predicts.",
    );
    Ok(result)
}

/// Part `curves`: every benchmark, order and number of cores, each under every sampled model.
///
/// # Errors
/// The machine cannot be simulated.
pub(crate) fn curves(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let models = simulate::sampled_models(run.machine, run.models as usize, run.seed)?;
    let allocator = linux_6_0_on(run.machine);
    let cores = (run.machine.cores_per_node * run.machine.nodes) as u16;
    let cases = cases(cores, run.quick);
    let runs = on_models((plan, part, "curves"), &cases, &models, run.seed, |case, (model, _), seed| {
        linux(model, &allocator, case, seed)
    })?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let hashes: Vec<u64> = runs.iter().map(|(.., outcome)| outcome.events.hash).collect();
    for (case, _, outcome) in runs {
        for (operation, time) in [("get", outcome.get_ns), ("put", outcome.put_ns)] {
            if let Some(time) = time {
                result.figure(case.metric(operation)).sample(VARIANT, time);
            }
        }
    }
    close_models(&mut result, models.len(), hashes, Interval::LowestToHighest);
    Ok(result)
}

/// Linux 6.0 with per-CPU lists sized for the machine's largest zone.
fn linux_6_0_on(machine: &Machine) -> Linux {
    allocator::allocator(machine, &Setup { config: linux_6_0(), ..Setup::default() })
}

/// Every benchmark and order on every number of cores; for a first look on 1, 2, 4, … and all.
fn cases(cores: u16, quick: bool) -> Vec<Case> {
    let counts: Vec<u16> = if quick { simulate::doubled(cores).collect() } else { (1..=cores).collect() };
    let kinds = [Bench::Bulk, Bench::Rand, Bench::Repeat]
        .into_iter()
        .flat_map(|bench| Order::all().map(move |order| (bench, order)));
    let on_all = |(bench, order)| counts.iter().map(move |&cores| Case::published(bench, order, cores));
    kinds.flat_map(on_all).collect()
}

#[cfg(test)]
mod tests {
    use framewright::policy::pcp::Sizing;

    use super::*;

    #[test]
    fn the_frozen_parameters_fit_what_they_were_fitted_to() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let model = simulate::central_model(&machine).expect("a model");
        let set = calibration::parse(simulate::MEASURED).expect("a set");
        assert_eq!(set.len(), 195);
        // One number of cores for each benchmark and order: what a test has time for.
        let few: Vec<_> = set.into_iter().filter(|row| row.case.cores == 8).collect();
        let rows = in_parallel(
            &few,
            |row| {
                calibration::compare(&model, &linux_6_0_on(&machine), core::slice::from_ref(row), 1)
                    .expect("runs")
            },
            || (),
        );
        let compared = rows.concat();
        assert_eq!(compared.len(), 57);
        let median = calibration::median_error(&compared);
        assert!(median <= 0.16, "{median}: {compared:#?}");
    }

    #[test]
    fn every_figure_of_the_protocol_is_predicted_once() {
        assert_eq!(cases(26, true).len(), 3 * 11 * 6);
        let cases = cases(26, false);
        assert_eq!(cases.len(), 3 * 11 * 26);
        let names: std::collections::BTreeSet<String> = cases.iter().map(|case| case.metric("put")).collect();
        assert_eq!(names.len(), cases.len());
        assert!(names.contains("bulk_put_ns[order=9,cores=13]"));
        assert!(names.contains("repeat_pair_ns[order=0,cores=26]"));
    }

    #[test]
    fn lists_have_the_size_that_linux_gives_them() {
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let Sizing { batch, high_min, high_max } = linux_6_0_on(&machine).sizing;
        // A 26th of the low watermark of 122 GiB.
        assert_eq!((batch, high_min == high_max), (63, true));
        assert!((1500..1900).contains(&high_max), "{high_max}");
    }

    #[test]
    fn the_saved_curves_have_every_entry_with_its_interval() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/validation/xeon-gold-5320.json");
        let document =
            framewright_report::result::Document::read(file.as_ref()).expect("compare reads it, too");
        let part = document.results.iter().find(|part| part.part == "curves").expect("the part");
        let mut expected = 0;
        for case in cases(26, false) {
            let operations: &[&str] = match case.bench {
                Bench::Bulk => &["get", "put"],
                Bench::Rand => &["put"],
                Bench::Repeat => &["get"],
            };
            for operation in operations {
                let name = case.metric(operation);
                let metric = part.find(&name).unwrap_or_else(|| panic!("{name} is missing"));
                let [low, high] = metric.interval[VARIANT];
                let samples = metric.of(VARIANT);
                assert!(low > 0.0 && samples.iter().all(|sample| (low..=high).contains(sample)), "{name}");
                assert_eq!(samples.len(), 20, "{name}");
                expected += 1;
            }
        }
        assert_eq!((part.metrics.len(), expected), (expected, 4 * 11 * 26));
    }
}
