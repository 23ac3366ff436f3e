//! How far the simulator is off from what was measured on a Xeon Gold 5320, and how far it would be off from each order
//! if it had been fitted to the others.
//!
//! `cargo run --release -p framewright-calibrate -- errors` prints each figure. `-- fit 2` goes two steps
//! from round values and prints the parameters of each: the last are frozen in `machines/calibration/fitted.toml`.
//! Without an argument each order is left out in turn: the fit begins at the frozen parameters, goes two steps without
//! that order, and the order is run. Every figure is the geometric mean of three seeds. The fit takes ten minutes of
//! one core, leaving orders out half an hour; two cores share it.
#![deny(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use framewright::policy::pcp::Sizing;
use framewright_lab::machine::Machine;
use framewright_lab::simulate::{MEASURED, central_model, fitted, in_parallel};
use framewright_sim::bench::{Bench, Linux, linux_6_0};
use framewright_sim::calibration::{self, Compared, Measured, PARAMETERS, Slopes, Target};
use framewright_sim::{Fitted, Model};

/// The machine that was measured.
fn machine() -> &'static Machine {
    static MACHINE: LazyLock<Machine> =
        LazyLock::new(|| Machine::find("xeon-gold-5320").expect("it is built in"));
    &MACHINE
}

fn model(fitted: Fitted) -> Model {
    Model { fitted, ..central_model(machine()).expect("it can be simulated") }
}

/// Cores of which the fit takes figures: what lies between them adds time and little else.
const CORES: [u16; 6] = [1, 2, 4, 8, 16, 26];

/// Figures to fit to: of Linux, each case once, and of flat curves their ends; of the locked list, all.
fn chosen(set: Vec<Measured>) -> Vec<Measured> {
    let mut seen = BTreeSet::new();
    let wanted = |row: &Measured| {
        let case = row.case;
        let flat = case.bench == Bench::Repeat && has_long_curve(case.order.get());
        row.target == Target::List
            || CORES.contains(&case.cores)
                && (!flat || [1, 8, 26].contains(&case.cores))
                && seen.insert((case.bench, case.order, case.cores))
    };
    set.into_iter().filter(wanted).collect()
}

/// Chaos moves some figures by a few percent from seed to seed.
const SEEDS: [u64; 3] = [1, 2, 3];

/// All figures with each of some sets of parameters: means of the logarithms over the seeds.
fn errors(set: &[Measured], at: &[Fitted]) -> Vec<Vec<Compared>> {
    let jobs: Vec<(usize, u64)> =
        (0..at.len()).flat_map(|n| SEEDS.into_iter().map(move |seed| (n, seed))).collect();
    let allocator = allocator();
    let run = |&(n, seed): &(usize, u64)| {
        calibration::compare(&model(at[n]), &allocator, set, seed).expect("worlds")
    };
    let runs = in_parallel(&jobs, run, || ());
    runs.chunks(SEEDS.len()).map(mean).collect()
}

/// Of the runs of all seeds.
fn mean(seeds: &[Vec<Compared>]) -> Vec<Compared> {
    let share = 1.0 / seeds.len() as f64;
    let mut all = seeds[0].clone();
    for (n, figure) in all.iter_mut().enumerate() {
        figure.simulated = seeds.iter().map(|figures| figures[n].simulated.ln() * share).sum::<f64>().exp();
    }
    all
}

fn ln(figure: &Compared) -> f64 {
    (figure.simulated / figure.measured).ln()
}

/// Stands for the locked list's rows, which are left out together.
const LISTS: u8 = 99;

/// Group of a row: its order, or [`LISTS`].
fn group_of(row: &Measured) -> u8 {
    match row.target {
        Target::Linux => row.case.order.get(),
        Target::List => LISTS,
    }
}

fn order_of(figure: &Compared) -> u8 {
    if figure.name.starts_with("list") {
        return LISTS;
    }
    let order = figure.name.split("order=").nth(1).and_then(|rest| rest.split(',').next());
    order.and_then(|order| order.parse().ok()).expect("a figure's name has its order")
}

/// Curves count by the root of their figures: one with many cores does not drown all that were measured on eight.
fn slopes(set: &[Measured], at: Fitted) -> Slopes {
    const APART: f64 = 1.1;
    let mut points = vec![at];
    points.extend((0..PARAMETERS).map(|k| {
        let mut values = at.values();
        values[k] *= APART;
        Fitted::from_values(values)
    }));
    let there = errors(set, &points);
    let here = &there[0];
    let curve = |figure: &Compared| figure.name.split(",cores").next().unwrap_or_default().to_owned();
    let mut sizes: BTreeMap<String, f64> = BTreeMap::new();
    here.iter().for_each(|figure| *sizes.entry(curve(figure)).or_default() += 1.0);
    let slope = |n: usize| core::array::from_fn(|k| (ln(&there[k + 1][n]) - ln(&here[n])) / APART.ln());
    Slopes {
        group: here.iter().map(order_of).collect(),
        weight: here.iter().map(|figure| 1.0 / sizes[&curve(figure)].sqrt()).collect(),
        error: here.iter().map(ln).collect(),
        slope: (0..here.len()).map(slope).collect(),
        from_round: from_round(at),
    }
}

fn from_round(at: Fitted) -> [f64; PARAMETERS] {
    let round = Fitted::ROUND.values();
    core::array::from_fn(|k| (at.values()[k] / round[k]).ln())
}

/// Median, 90th percentile and greatest size of errors, in %.
fn sizes(errors: &[f64]) -> String {
    let mut sizes: Vec<f64> = errors.iter().map(|error| 100.0 * (error.exp() - 1.0).abs()).collect();
    sizes.sort_by(f64::total_cmp);
    if sizes.is_empty() {
        return "none".to_owned();
    }
    let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share).round() as usize];
    format!("median {:.1} %, p90 {:.1} %, worst {:.1} %", at(0.5), at(0.9), at(1.0))
}

/// Where the fit gets to without each order: two steps from what is frozen, the second one from figures that were run
/// again, along the first one's slopes.
fn fits_without(set: &[Measured], fitted: Fitted) -> BTreeMap<u8, Fitted> {
    let slopes = slopes(set, fitted);
    let orders: BTreeSet<u8> = slopes.group.iter().copied().collect();
    let once: Vec<Fitted> = orders.iter().map(|&order| fitted.stepped(slopes.step_without(order))).collect();
    let runs = errors(set, &once);
    let second = orders.iter().zip(once).zip(runs).map(|((&order, at), run)| {
        let error = run.iter().map(ln).collect();
        let slopes = Slopes { error, from_round: from_round(at), ..slopes.clone() };
        (order, rounded(at.stepped(slopes.step_without(order))))
    });
    second.collect()
}

/// To four decimals, as the frozen ones are written down.
fn rounded(at: Fitted) -> Fitted {
    Fitted::from_values(at.values().map(|value| (value * 1e4).round() / 1e4))
}

/// One step from `at`, by half a parameter at most.
fn stepped(slopes: &Slopes, at: Fitted) -> Fitted {
    println!("{}", sizes(&slopes.error));
    let to = at.stepped(slopes.step().map(|step| step.clamp(-0.5, 0.5)));
    Fitted::NAMES.iter().zip(to.values()).for_each(|(name, value)| println!("{name} = {value:.4}"));
    to
}

/// How many of a group's errors an interval covers that is made of other groups' errors.
fn covered(errors: &[f64], group: u8, few: &BTreeMap<u8, Vec<f64>>) -> usize {
    let mut others: Vec<f64> =
        few.iter().filter(|(number, _)| **number != group).flat_map(|(_, errors)| errors.clone()).collect();
    others.sort_by(f64::total_cmp);
    let at = |share: f64| others[((others.len() - 1) as f64 * share).round() as usize];
    errors.iter().filter(|error| (at(0.1)..=at(0.9)).contains(*error)).count()
}

/// Intervals are those of predictions: of the errors of the rows that the fit takes, so that not one order with many
/// rows, all alike, makes the interval of all others.
fn summary(title: &str, groups: &BTreeMap<u8, Vec<f64>>, few: &BTreeMap<u8, Vec<f64>>) -> Vec<f64> {
    let mut inside = 0;
    for (&order, errors) in groups {
        let covered = covered(errors, order, few);
        inside += covered;
        let name = if order == LISTS { "lists".to_owned() } else { format!("order {order}") };
        println!("{name:>8} left out: {}; {covered} of {} covered", sizes(errors), errors.len());
    }
    let mut all: Vec<f64> = groups.values().flatten().copied().collect();
    all.sort_by(f64::total_cmp);
    println!(
        "{title}: {} figures, {}; 80 % intervals cover {:.0} %",
        all.len(),
        sizes(&all),
        100.0 * inside as f64 / all.len() as f64
    );
    all
}

/// A group's errors, each with whether the fit takes its row.
type LeftOut = BTreeMap<u8, Vec<(f64, bool)>>;

/// Runs each group's rows with the parameters of the fit without that group, and prints each figure.
fn run_without_each(set: &[Measured], fitted: Fitted) -> LeftOut {
    let few = chosen(set.to_vec());
    let mut jobs: Vec<(u8, Fitted, &Measured)> = Vec::new();
    for (group, at) in fits_without(&few, fitted) {
        println!("# without {group}: {:.4?}", at.values());
        jobs.extend(set.iter().filter(|row| group_of(row) == group).map(|row| (group, at, row)));
    }
    let run = |&(group, at, row): &(u8, Fitted, &Measured)| (group, few.contains(row), figures_of(row, at));
    let runs = in_parallel(&jobs, run, || ());
    let mut left_out = LeftOut::new();
    for (group, is_few, figures) in runs {
        for figure in &figures {
            println!("{}: {:+.1} %", figure.name, 100.0 * figure.error());
        }
        left_out.entry(group).or_default().extend(figures.iter().map(|figure| (ln(figure), is_few)));
    }
    left_out
}

/// One row's figures: the means of all seeds.
fn figures_of(row: &Measured, at: Fitted) -> Vec<Compared> {
    let run = |seed| calibration::compare(&model(at), &allocator(), core::slice::from_ref(row), seed);
    mean(&SEEDS.map(|seed| run(seed).expect("worlds")))
}

/// Linux 6.0, with per-CPU lists as that machine has them.
fn allocator() -> Linux {
    Linux { config: linux_6_0(), sizing: Sizing { batch: 63, high_min: 1700, high_max: 1700 } }
}

/// Prints how far each order is off under the fit to all others.
fn print_left_out(left_out: &LeftOut) {
    let errors = |only_few: bool| -> BTreeMap<u8, Vec<f64>> {
        let of_group = |all: &[(f64, bool)]| {
            all.iter().filter(|(_, is_few)| !only_few || *is_few).map(|(error, _)| *error).collect()
        };
        left_out.iter().map(|(&group, all)| (group, of_group(all))).collect()
    };
    let few = errors(true);
    summary("each order left out, every row", &errors(false), &few);
    let all = summary("each order left out, rows of the fit", &few, &few);
    // Predictions take these as the model's own error: machines/calibration/left-out.toml.
    let quantiles: Vec<String> = (0..20)
        .map(|n| {
            let at = (all.len() - 1) as f64 * (f64::from(n) + 0.5) / 20.0;
            let (below, share) = (all[at as usize], at.fract());
            format!("{:.4}", below + share * (all[at.ceil() as usize] - below))
        })
        .collect();
    println!("quantiles = [{}]", quantiles.join(", "));
}

/// Whether an order was measured on all numbers of cores; the others were on eight.
const fn has_long_curve(order: u8) -> bool {
    matches!(order, 0 | 9)
}

/// Every figure, and how large the errors are.
fn print_errors(set: &[Measured], fitted: Fitted) {
    let all = &errors(set, &[fitted])[0];
    for figure in all {
        let Compared { name, measured, simulated } = figure;
        println!(
            "{name}: {measured:.1} measured, {simulated:.1} simulated, {:+.1} %",
            100.0 * figure.error()
        );
    }
    let errors_of = |target: &str| -> Vec<f64> {
        all.iter().filter(|figure| figure.name.starts_with(target)).map(ln).collect()
    };
    println!("linux: {}\nlist: {}", sizes(&errors_of("linux")), sizes(&errors_of("list")));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let set = calibration::parse(MEASURED).expect("the calibration set");
    let fitted = fitted().expect("they are built in");
    match arguments.first().map(String::as_str) {
        Some("errors") => print_errors(&set, fitted),
        Some("fit") => {
            let times = arguments.get(1).and_then(|times| times.parse().ok()).unwrap_or(2);
            let set = chosen(set);
            let mut fitted = Fitted::ROUND;
            for _ in 0..times {
                let mut slopes = slopes(&set, fitted);
                fitted = stepped(&slopes, fitted);
                slopes.error = errors(&set, &[fitted])[0].iter().map(ln).collect();
                slopes.from_round = from_round(fitted);
                fitted = stepped(&slopes, fitted);
            }
        }
        None => print_left_out(&run_without_each(&set, fitted)),
        Some(unknown) => {
            panic!("there is no `{unknown}`: errors, fit [STEPS], or nothing to leave each order out")
        }
    }
}
