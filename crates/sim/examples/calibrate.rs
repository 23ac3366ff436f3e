//! How far the simulator is off from what was measured on a Xeon Gold 5320, and how far it would be off from each order if it
//! had been fitted to the others.
//!
//! `cargo run --release -p framewright-sim --example calibrate -- errors` prints each figure. `-- fit 3` goes three steps from
//! the parameters in `machines/calibration/fitted.toml` towards a better fit and prints where it got to; without an argument
//! one look at the slopes says what leaving out an order would do. Takes about a minute of one core for each step.

use std::collections::{BTreeMap, BTreeSet};

use framewright::policy::pcp::Sizing;
use framewright_sim::bench::{Bench, Linux, linux_6_0};
use framewright_sim::calibration::{self, Compared, Measured, PARAMETERS, Slopes, Target};
use framewright_sim::model::{Bandwidth, Caches, Latency, Shape, drift_pages};
use framewright_sim::{Fitted, Model};

const MACHINE: &str = include_str!("../../../machines/xeon-gold-5320.toml");
const FITTED: &str = include_str!("../../../machines/calibration/fitted.toml");
const MEASURED: &str = include_str!("../../../machines/calibration/xeon-gold-5320.csv");

/// The number behind `section.name` in one of the two files: `name = 1.0` or `name = { value = 1.0, … }`.
fn number(file: &str, section: &str, name: &str) -> f64 {
    let mut here = String::new();
    for line in file.lines() {
        if let Some(section) = line.strip_prefix('[') {
            here = section.trim_end_matches(']').to_owned();
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        if here == section && key.trim() == name {
            let value = value.trim().trim_start_matches("{ value = ");
            return value.split([',', ' ']).next().and_then(|value| value.parse().ok()).expect("a number");
        }
    }
    panic!("no {section}.{name}");
}

fn model(fitted: Fitted) -> Model {
    let get = |section: &str, name: &str| number(MACHINE, section, name);
    let cores = get("", "cores_per_node") as u16;
    let cycle = 1000.0 / get("", "frequency_mhz");
    let same_l3 = [get("latency_ns", "same_l3"), get("latency_ns", "same_l3_dirty")];
    let lines = |name: &str| (get("cache_kib", name) * 16.0) as u32;
    let across = [get("latency_ns", "cross_socket"), get("latency_ns", "cross_socket_dirty")];
    Model {
        shape: Shape {
            sockets: 1,
            nodes: 1,
            cores_per_node: cores,
            cores_per_l3: cores,
            threads_per_core: 1,
        },
        latency: Latency {
            l2: get("cycles", "l2") * cycle,
            l3: get("cycles", "l3") * cycle,
            sibling: same_l3[0],
            same_l3,
            other_l3: [same_l3[1]; 2],
            other_die: across[0],
            other_socket: across,
            dram: [get("latency_ns", "dram_local"), get("latency_ns", "dram_remote")],
        },
        bandwidth: Bandwidth {
            node_read: get("bandwidth_gbps", "socket_read"),
            node_mixed: get("bandwidth_gbps", "socket_mixed"),
            core: get("bandwidth_gbps", "core"),
            saturated: 166.0 / 92.0,
        },
        caches: Caches { l1: lines("l1"), l2: lines("l2"), l3: lines("l3") },
        pause_ns: get("cycles", "pause") * cycle,
        exchange_ns: get("cycles", "exchange") * cycle,
        smt_yield: 2.0,
        fitted,
        own_access_ns: None,
        transfers: 1.0,
        drift_pages: drift_pages(cores, get("", "gib_per_node")),
        kernel: None,
        storage: None,
    }
}

/// Cores of which the fit takes figures: what lies between them adds time and little else.
const CORES: [u16; 6] = [1, 2, 4, 8, 16, 26];

/// Figures to fit to: of Linux, each case once, and of flat curves their ends; of the locked list, all.
fn chosen(set: Vec<Measured>) -> Vec<Measured> {
    let mut seen = BTreeSet::new();
    let wanted = |row: &Measured| {
        let case = row.case;
        let flat = case.bench == Bench::Repeat && matches!(case.order.get(), 0 | 9);
        row.target == Target::List
            || CORES.contains(&case.cores)
                && (!flat || [1, 8, 26].contains(&case.cores))
                && seen.insert((case.bench, case.order, case.cores))
    };
    set.into_iter().filter(wanted).collect()
}

fn errors(set: &[Measured], fitted: Fitted) -> Vec<Compared> {
    let allocator =
        Linux { config: linux_6_0(), sizing: Sizing { batch: 63, high_min: 1700, high_max: 1700 } };
    calibration::compare(&model(fitted), &allocator, set, 1).expect("worlds")
}

/// The lists are left out together.
const LISTS: u8 = 99;

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
    let here = errors(set, at);
    let curve = |figure: &Compared| figure.name.split(",cores").next().unwrap_or_default().to_owned();
    let mut sizes: BTreeMap<String, f64> = BTreeMap::new();
    here.iter().for_each(|figure| *sizes.entry(curve(figure)).or_default() += 1.0);
    let ln = |figure: &Compared| (figure.simulated / figure.measured).ln();
    let mut slopes = Slopes {
        group: here.iter().map(order_of).collect(),
        weight: here.iter().map(|figure| 1.0 / sizes[&curve(figure)].sqrt()).collect(),
        error: here.iter().map(ln).collect(),
        slope: vec![[0.0; PARAMETERS]; here.len()],
    };
    for k in 0..PARAMETERS {
        let mut values = at.values();
        values[k] *= APART;
        for (n, there) in errors(set, Fitted::from_values(values)).iter().enumerate() {
            slopes.slope[n][k] = (ln(there) - slopes.error[n]) / APART.ln();
        }
    }
    slopes
}

/// Median, 90th percentile and greatest size of errors, in %.
fn sizes(errors: &[f64]) -> String {
    let mut sizes: Vec<f64> = errors.iter().map(|error| 100.0 * (error.exp() - 1.0).abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let at = |share: f64| sizes[((sizes.len() - 1) as f64 * share).round() as usize];
    format!("median {:.1} %, p90 {:.1} %, worst {:.1} %", at(0.5), at(0.9), at(1.0))
}

/// What a fit to the other orders says of each order, and how often an interval from the others' errors covers.
fn leave_one_out(slopes: &Slopes) {
    let left_out: BTreeMap<u8, Vec<f64>> = slopes
        .group
        .iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .map(|&order| (order, slopes.without(order)))
        .collect();
    let mut covered = 0;
    for (order, errors) in &left_out {
        let mut others: Vec<f64> = left_out
            .iter()
            .filter(|(other, _)| *other != order)
            .flat_map(|(_, errors)| errors.clone())
            .collect();
        others.sort_by(f64::total_cmp);
        let at = |share: f64| others[((others.len() - 1) as f64 * share).round() as usize];
        let inside = errors.iter().filter(|error| (at(0.1)..=at(0.9)).contains(*error)).count();
        covered += inside;
        let name = if *order == LISTS { "lists".to_owned() } else { format!("order {order}") };
        println!("{name:>8} left out: {}; {inside} of {} covered", sizes(errors), errors.len());
    }
    let mut all: Vec<f64> = left_out.into_values().flatten().collect();
    all.sort_by(f64::total_cmp);
    // What predictions take as the model's own error: machines/calibration/left-out.toml.
    let quantiles: Vec<String> = (0..20)
        .map(|n| {
            let at = (all.len() - 1) as f64 * (f64::from(n) + 0.5) / 20.0;
            let (below, share) = (all[at as usize], at.fract());
            format!("{:.4}", below + share * (all[at.ceil() as usize] - below))
        })
        .collect();
    println!("quantiles = [{}]", quantiles.join(", "));
    println!(
        "each order left out: {}; 80 % intervals cover {:.0} %",
        sizes(&all),
        100.0 * covered as f64 / all.len() as f64
    );
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let set = calibration::parse(MEASURED).expect("the calibration set");
    let mut fitted = Fitted::from_values(Fitted::NAMES.map(|name| number(FITTED, "", name)));
    match arguments.first().map(String::as_str) {
        Some("errors") => {
            let all = errors(&set, fitted);
            for figure in &all {
                let Compared { name, measured, simulated } = figure;
                println!(
                    "{name}: {measured:.1} measured, {simulated:.1} simulated, {:+.1} %",
                    100.0 * figure.error()
                );
            }
            let of = |target: &str| -> Vec<f64> {
                let figures = all.iter().filter(|figure| figure.name.starts_with(target));
                figures.map(|figure| (figure.simulated / figure.measured).ln()).collect()
            };
            println!("linux: {}\nlist: {}", sizes(&of("linux")), sizes(&of("list")));
        }
        Some("fit") => {
            let steps = arguments.get(1).and_then(|steps| steps.parse().ok()).unwrap_or(3);
            let set = chosen(set);
            for _ in 0..steps {
                let slopes = slopes(&set, fitted);
                println!("{}", sizes(&slopes.error));
                let step = slopes.step();
                let mut values = fitted.values();
                values.iter_mut().zip(step).for_each(|(value, step)| *value *= step.clamp(-0.3, 0.3).exp());
                fitted = Fitted::from_values(values);
                Fitted::NAMES.iter().zip(values).for_each(|(name, value)| println!("{name} = {value:.4}"));
            }
        }
        _ => leave_one_out(&slopes(&chosen(set), fitted)),
    }
}
