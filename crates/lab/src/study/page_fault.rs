//! Part `page_fault1`: will-it-scale's page_fault1 on modelled machines, by a closed queueing network.
//!
//! What a page takes of the two locks under each configuration is counted and timed in a slice of the real allocator on
//! one node of the machine. What the network's CPUs wait says how much of each lock the published *baseline* took; the
//! change alters that by the ratio that the slices have, and the network says what comes of it. Slices alone have too
//! little of everything, by much the same factors on each machine with a published baseline: for a machine without one
//! the slices are multiplied by those ([`IMPLIED`]), and the range is ×/÷ 2.5 wider. What is not known has priors
//! (`studies/priors/page_fault1.toml`).

use framewright_report::result::Published;
use framewright_sim::outcome::{Outcome, Pace};
use framewright_sim::page_fault::{self, Load};
use framewright_sim::queue::{Network, Station};

use crate::study::declare::*;
use crate::study::identify::{self, median};
use crate::study::tasks::{self, add_causes};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "page_fault1",
        about: "will-it-scale's page_fault1, with a process on each CPU or as many as the metrics name; on the machines that the metrics name, or on --machine.",
        kinds: &[Kind::Simulated],
        keys: &[
            key("simulated_mib", Takes::Whole(1, 128), None, "What a process maps."),
            key(
                "machine",
                Takes::Form("the name of a machine"),
                Some("the study's"),
                "The machine, where metrics name none.",
            ),
            key(
                "baseline",
                Takes::Form("the name of a variant"),
                Some("the study's"),
                "The part's own baseline.",
            ),
        ],
        metrics: joined!(Quantity;
            &quantities! {
                faults_per_second "1/s" Higher Main "Faults of all CPUs together."
                zone_lock_percent "%" Lower Main "Share of the processes' time spent waiting for the zones' locks."
                lru_lock_percent "%" Lower Main "Share of the processes' time spent waiting for the LRU locks."
            },
            &NETWORK,
            TASK_CAUSES,
        ),
        options: &SIMULATED,
        needs: &[Need::Model, Need::Kernel],
        varies: 1,
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// How long a slice is: some fifteen holds of a contended lock for each CPU.
const SLICE: Ps = Ps(3_000_000_000);
/// The same to see how long things take, and for a first look.
const QUICK: Ps = Ps(1_500_000_000);
/// How far times of a machine that was not measured have been off: a factor.
const UNKNOWN: f64 = 2.5;
/// By machine with a published baseline: what that implies a page takes of the zone lock, of the LRU lock and of a
/// core, over what slices and priors have. Learned; medians of eight models, printed by each run. The factors of a
/// machine are never used for that machine.
const IMPLIED: [(&str, [f64; 3]); 5] = [
    ("skylake-4s", [2.18, 4.46, 1.63]),
    ("broadwell-4s", [1.98, 4.10, 1.29]),
    ("skylake-2s", [1.77, 3.15, 1.76]),
    ("xeon-8358-2s", [1.72, 3.30, 1.55]),
    // 16 processes.
    ("xeon-8358-2s", [1.27, 2.79, 1.16]),
];
/// A store, and the loop around it, in ns.
const USER_NS: f64 = 5.0;
const LOCKS: [&str; 2] = ["zone", "lru"];
const NAMES: [&str; 3] = ["faults_per_second", "zone_lock_percent", "lru_lock_percent"];

/// So many processes on a machine.
struct Case {
    /// What its metrics have in brackets.
    parameters: String,
    machine: Machine,
    processes: u32,
    /// What was published of the baseline, in the order of [`NAMES`].
    published: Option<[f64; 3]>,
}

impl Case {
    /// The cases that a part's metrics name, each once; on the machine that was asked for, those of it, or its own with
    /// all CPUs.
    fn all(part: &Part, run: &Run<'_>) -> Result<Vec<Self>> {
        let named = part.workload.get("machine").map(ToString::to_string);
        let usual = || match &named {
            Some(name) if !run.asked => Machine::find(name),
            _ => Ok(run.machine.clone()),
        };
        let mut cases: Vec<Self> = Vec::new();
        for metric in &part.metrics {
            let inside =
                metric.name.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).unwrap_or_default();
            if cases.iter().any(|case| case.parameters == inside) {
                continue;
            }
            let value = |name: &str| {
                let all = inside.split(',').filter_map(|parameter| parameter.split_once('='));
                all.into_iter().find(|(known, _)| *known == name).map(|(_, value)| value)
            };
            let machine = match value("machine") {
                Some(name) if run.asked && name != run.machine.name => continue,
                Some(name) if !run.asked => Machine::find(name)?,
                _ => usual()?,
            };
            let asked = value("processes").and_then(|processes| processes.parse().ok());
            let processes = machine.cpus().min(asked.unwrap_or(u32::MAX));
            // What ran, where the machine has fewer CPUs than was asked for.
            let parameters = asked.map_or_else(
                || inside.to_owned(),
                |asked| inside.replace(&format!("processes={asked}"), &format!("processes={processes}")),
            );
            if parameters != inside && cases.iter().any(|case| case.parameters == parameters) {
                continue;
            }
            let is_own = parameters == inside
                && (!run.asked || value("machine").is_some() || named.as_ref() == Some(&machine.name));
            let mean = |family: &str| {
                let name = format!("{family}[{inside}]");
                let metric = part.metrics.iter().find(|metric| metric.name == name);
                metric.and_then(|metric| metric.published).filter(|_| is_own).map(|published| published.mean)
            };
            let published = match NAMES.map(mean) {
                [Some(faults), Some(zone), Some(lru)] => Some([faults, zone, lru]),
                _ => None,
            };
            cases.push(Self { parameters, machine, processes, published });
        }
        if cases.is_empty() {
            let machine = run.machine.clone();
            let parameters = format!("machine={}", machine.name);
            cases.push(Self { parameters, processes: machine.cpus(), machine, published: None });
        }
        cases.iter().try_for_each(|case| tasks::check(&case.machine))?;
        Ok(cases)
    }
}

/// A machine with one draw of what is not known of it: one node, and how many are like it.
struct Sample {
    model: Model,
    draw: Draw,
    seed: u64,
    /// Of another machine, see [`IMPLIED`].
    implied: [f64; 3],
    /// Nodes that processes run on.
    nodes: u32,
    processes: u16,
}

impl Sample {
    fn all(case: &Case, run: &Run<'_>) -> Result<Vec<Self>> {
        let machine = &case.machine;
        let count = run.models.max(1) as usize;
        let is_known = machine.cpu.chars().any(|letter| letter.is_ascii_digit());
        let draws = priors()?.draws(count, run.seed);
        let others: Vec<_> = IMPLIED.into_iter().filter(|(name, _)| *name != machine.name).collect();
        let sample = |(n, draw): (usize, Draw)| {
            let factor = if is_known { 1.0 } else { draw.get("cores")? };
            let cores = (f64::from(machine.cores_per_node) * factor).round().max(1.0) as u32;
            let node = Machine { cores_per_node: cores, nodes: 1, sockets: 1, ..machine.clone() };
            let model = identify::with_errors(sampled_models(&node, count, run.seed)?.swap_remove(n), &draw)?;
            let all = case.processes == machine.cpus();
            let is_alone = !all && case.processes <= cores && draw.get("spread_over_nodes")? < 0.5;
            let nodes = if is_alone { 1 } else { machine.nodes };
            let processes = if all { node.cpus() } else { case.processes.div_ceil(nodes) } as u16;
            let (_, implied) = others[n % others.len()];
            Ok(Self { model, draw, seed: mix(run.seed ^ (n as u64 + 1) << 32), implied, nodes, processes })
        };
        draws.into_iter().enumerate().map(sample).collect()
    }

    /// How much longer work takes while the sibling works, too.
    fn sibling(&self) -> f64 {
        let cores = self.model.shape.cores();
        if self.processes > cores { 2.0 / self.model.smt_yield - 1.0 } else { 0.0 }
    }

    fn load(&self, pages: u32, pace: Pace, slice: Ps) -> Result<Load> {
        let cached = self.draw.get("cached")?;
        Ok(Load { processes: self.processes, pages, user_ns: USER_NS, slice, pace, cached })
    }

    /// Work of a page that waits for no lock, alone on a core, as far as the priors say.
    fn think_ns(&self) -> Result<f64> {
        let clear = 4096.0 / self.model.bandwidth.core;
        let calls = self.model.fitted.alloc_ns + self.model.fitted.free_ns;
        Ok(self.draw.get("fault_ns")? + self.draw.get("free_ns")? + clear + calls + USER_NS)
    }

    fn figures(&self, network: &Network) -> [f64; 3] {
        let reached = network.reached(self.processes.into());
        let percent = |k: usize| 100.0 * reached.wait_ns[k] / reached.cycle_ns;
        [reached.per_ns * 1e9 * f64::from(self.nodes), percent(0), percent(1)]
    }
}

/// What a page takes of each lock in a slice: holds and hand-overs, in ns.
pub(crate) fn demands(model: &Model, draw: &Draw, outcome: &Outcome) -> Result<[f64; 2]> {
    let hand_over = draw.get("hand_over")? * model.latency.same_l3[0] * model.transfers;
    let pages = (outcome.paid.faults.0 + outcome.paid.frees.0).max(1) as f64 / 2.0;
    let [locks, _, held] = outcome.all_locks();
    let lru = outcome.usage.lru;
    Ok([
        (held as f64 + locks as f64 * hand_over) / pages,
        (lru.hold.as_ns() + lru.locks as f64 * hand_over) / pages,
    ])
}

fn priors() -> Result<Priors> {
    Priors::parse("page_fault1.toml", include_str!("../../../../studies/priors/page_fault1.toml"))
}

/// What a model makes of every variant.
struct Predicted {
    /// By variant: the figures, in the order of [`NAMES`].
    figures: Vec<[f64; 3]>,
    /// By variant: CPUs at which each lock saturates, and operations a second that it allows at most.
    bounds: Vec<[[f64; 2]; 2]>,
    /// The baseline by slices and the factors of other machines, without what was published of it.
    unscaled: [f64; 3],
    /// By lock: the demand as the slices have it, over what the published baseline implies; the work that waits for no
    /// lock too.
    over_implied: Option<[f64; 3]>,
    outcomes: Vec<Outcome>,
}

/// Times at which a mapping's round stands in a slice, for each variant.
type Paced<'a> = (&'a Configured, Pace);

fn predicted(case: &Case, sample: &Sample, paced: &[Paced<'_>], pages: u32, slice: Ps) -> Result<Predicted> {
    let outcomes: Vec<Outcome> = paced
        .iter()
        .map(|(variant, pace)| {
            let load = sample.load(pages, *pace, slice)?;
            let allocator = allocator(&case.machine, &variant.setup);
            page_fault::run(&sample.model, &allocator, &load, sample.seed).map_err(Error::failed)
        })
        .collect::<Result<_>>()?;
    let demands = outcomes
        .iter()
        .map(|outcome| demands(&sample.model, &sample.draw, outcome))
        .collect::<Result<Vec<_>>>()?;
    let variation = sample.draw.get("variation")?;
    let think_ns = sample.think_ns()?;
    let station =
        |k: usize| Station { name: LOCKS[k].to_owned(), demand_ns: sample.implied[k] * demands[0][k] };
    let stations = vec![station(0), station(1)];
    let unscaled =
        Network { think_ns: sample.implied[2] * think_ns, sibling: sample.sibling(), variation, stations };
    let processes = f64::from(sample.processes) * f64::from(sample.nodes);
    let base = case.published.map_or_else(
        || unscaled.clone(),
        |[faults, zone, lru]| {
            let cycle = processes * 1e9 / faults;
            let waits = [zone, lru].map(|percent| percent / 100.0 * cycle);
            let waits = [(LOCKS[0], waits[0]), (LOCKS[1], waits[1])];
            Network::implied(sample.processes.into(), cycle, &waits, unscaled.sibling, variation)
        },
    );
    // What a change alters: between as many ns as in the slices, and the same share.
    let implied = base.stations[0].demand_ns / demands[0][0].max(1e-9);
    let scale = implied.max(1e-9).powf(sample.draw.get("scales")?);
    let mut result = Predicted {
        figures: Vec::new(),
        bounds: Vec::new(),
        unscaled: sample.figures(&unscaled),
        over_implied: case.published.map(|_| {
            let lock = |k: usize| demands[0][k] / base.stations[k].demand_ns.max(1e-9);
            [lock(0), lock(1), think_ns / base.think_ns.max(1e-9)]
        }),
        outcomes,
    };
    for demand in &demands {
        let mut network = base.clone();
        // The LRU lock does not know of the change.
        let altered = network.stations[0].demand_ns + (demand[0] - demands[0][0]) * scale;
        network.stations[0].demand_ns = altered.max(0.0);
        result.figures.push(sample.figures(&network));
        let mut bounds = [[f64::INFINITY; 2]; 2];
        for bound in network.bounds() {
            let nodes = f64::from(sample.nodes);
            bounds[bound.station] = [bound.saturated_at * nodes, bound.per_ns * 1e9 * nodes];
        }
        result.bounds.push(bounds);
    }
    Ok(result)
}

/// Runs the part: the machine that was asked for, or all that the part's metrics name.
///
/// # Errors
/// A machine cannot be simulated.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let cases = Case::all(part, run)?;
    let settings = part.combinations().into_iter().next().unwrap_or_default();
    let mut variants = configured(plan, &settings)?;
    // The part may have a baseline of its own.
    let baseline = part.baseline(plan);
    variants.sort_by_key(|variant| variant.variant != baseline);
    let pages = (WORKLOAD.value::<f64>(part, "simulated_mib") * 256.0) as u32;
    let slice = if run.quick { QUICK } else { SLICE };
    let samples: Vec<Vec<Sample>> = cases.iter().map(|case| Sample::all(case, run)).collect::<Result<_>>()?;
    let progress = progress(plan, part, samples.iter().map(Vec::len).sum());
    let about = match &cases[..] {
        [case, rest @ ..] if rest.iter().all(|next| next.machine.name == case.machine.name) => {
            &case.machine.name
        }
        _ => "all",
    };
    let mut result = result_part(plan, part, Kind::Simulated, about, run.seed).baseline(&baseline);
    let mut hashes = Vec::new();
    for (case, samples) in cases.iter().zip(&samples) {
        let paced: Vec<Paced<'_>> = variants
            .iter()
            .map(|variant| Ok((variant, pace(case, samples, variant, pages)?)))
            .collect::<Result<_>>()?;
        let work = |sample: &Sample| predicted(case, sample, &paced, pages, slice);
        let all = in_parallel(samples, work, || progress.step("simulated"));
        let all: Vec<Predicted> = all.into_iter().collect::<Result<_>>()?;
        for predicted in &all {
            for (n, variant) in variants.iter().enumerate() {
                report(&mut result, case, &variant.variant, predicted, n);
                hashes.push(predicted.outcomes[n].events.hash);
            }
        }
        result.note(verdict(case, &all));
    }
    result.note(format!(
        "Counted and timed in slices of {:.0} ms of one node, mappings of {} instead of 128 MiB; throughput and waits are those of a closed \
         queueing network (mean value analysis), with priors from studies/priors/page_fault1.toml.",
        slice.as_ns() / 1e6,
        pages / 256,
    ));
    close_models(&mut result, run.models.max(1) as usize, hashes, Interval::FourFifths);
    for case in cases.iter().filter(|case| case.published.is_none()) {
        widen(&mut result, &case.parameters);
    }
    Ok(result)
}

/// How long things take under a variant: seen in a short slice of one model.
fn pace(case: &Case, samples: &[Sample], variant: &Configured, pages: u32) -> Result<Pace> {
    // Half of a round's time goes into waiting for locks, or more: that many CPUs begin there.
    const BEGIN: Pace = Pace { user: 1.0, fault_ns: 6000.0, free_ns: 4000.0 };
    let Some(sample) = samples.first() else { return Ok(BEGIN) };
    let allocator = allocator(&case.machine, &variant.setup);
    let load = sample.load(pages, BEGIN, QUICK)?;
    let looked = page_fault::run(&sample.model, &allocator, &load, sample.seed).map_err(Error::failed)?;
    Ok(looked.paid.pace(&looked.usage, BEGIN))
}

fn report(result: &mut ResultPart, case: &Case, variant: &str, predicted: &Predicted, n: usize) {
    let parameters = &case.parameters;
    for (k, family) in NAMES.into_iter().enumerate() {
        let entry = result.figure(format!("{family}[{parameters}]")).sample(variant, predicted.figures[n][k]);
        if let Some(published) = case.published {
            entry.published(Published { mean: published[k], stddev: None });
        }
    }
    for (lock, [cpus, faults]) in LOCKS.into_iter().zip(predicted.bounds[n]) {
        if cpus.is_finite() {
            result.figure(format!("saturated_at_cpus[lock={lock},{parameters}]")).sample(variant, cpus);
            result.figure(format!("most_per_second[lock={lock},{parameters}]")).sample(variant, faults);
        }
    }
    if n == 0 {
        result.figure(format!("from_priors_per_second[{parameters}]")).sample(variant, predicted.unscaled[0]);
    }
    add_causes(result, parameters, variant, &predicted.outcomes[n]);
}

/// Whether slices demand of a lock what the published baseline implies, up to a factor.
pub(crate) fn explained(ratio: f64, most: f64) -> &'static str {
    if ratio.ln().abs() < most.ln() {
        "The baseline is explained."
    } else {
        "Baseline not explained: no figure of a change is a prediction."
    }
}

/// The baseline without what was published of it, beside that.
fn verdict(case: &Case, all: &[Predicted]) -> String {
    let unscaled = |k: usize| median(all.iter().map(|predicted| predicted.unscaled[k]).collect());
    let says = format!(
        "{}: without what was published of it, and with the factors of the other machines, {:.3} million faults a second, {:.0} % and {:.0} % of time at the zones' and LRU locks (medians).",
        case.parameters,
        unscaled(0) / 1e6,
        unscaled(1),
        unscaled(2)
    );
    let Some(published) = case.published else {
        return format!("{says} Nothing is published of this machine: times are ×/÷ {UNKNOWN}.");
    };
    let over =
        |k: usize| median(all.iter().filter_map(|predicted| Some(predicted.over_implied?[k])).collect());
    let ratio = over(0);
    let explained = explained(ratio, UNKNOWN);
    format!(
        "{says} Published: {:.3} million, {:.0} % and {:.0} %. Slices alone have {ratio:.2} times as much of the zone lock for a page as that implies, {:.2} of the LRU lock, {:.2} of a core. {explained}",
        published[0] / 1e6,
        published[1],
        published[2],
        over(1),
        over(2),
    )
}

/// Times of a machine of which nothing was published or measured: as wide as past errors were.
fn widen(result: &mut ResultPart, parameters: &str) {
    let name = format!("faults_per_second[{parameters}]");
    for metric in result.metrics.iter_mut().filter(|metric| metric.name == name) {
        for [low, high] in metric.interval.values_mut() {
            (*low, *high) = (*low / UNKNOWN, *high * UNKNOWN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(machine: &str) -> ResultPart {
        let (plan, part) = Plan::with_part("pcp-batch", "page_fault1");
        let machine = Machine::with_cores(machine, 4);
        run(&plan, &part, &Run { asked: true, ..Run::shortest(&machine) }).expect("simulated")
    }

    #[test]
    fn every_figure_of_a_machine_is_there_and_the_baseline_is_as_published() {
        let result = small("skylake-2s");
        let value = |name: &str, variant: &str| {
            let metric = result.find(&format!("{name}[machine=skylake-2s]")).expect(name);
            assert!(metric.published.is_some() && metric.interval.contains_key(variant), "{name}");
            metric.of(variant)[0]
        };
        let base = NAMES.map(|name| value(name, "batch_31"));
        for (found, published) in base.into_iter().zip([9_554_867.0, 66.0, 3.0]) {
            assert!((found / published - 1.0).abs() < 0.05, "{base:?}");
        }
        assert!(value("faults_per_second", "batch_63") > base[0], "fewer holds for as many pages");
        assert!(value("zone_lock_percent", "batch_63") < base[1]);
        let bound = result.find("saturated_at_cpus[lock=zone,machine=skylake-2s]").expect("a bound");
        assert!(bound.of("batch_63")[0] > bound.of("batch_31")[0]);
    }

    #[test]
    fn a_machine_of_which_nothing_is_published_has_a_wide_range() {
        let result = small("xeon-gold-5320");
        let metric = result.find("faults_per_second[machine=xeon-gold-5320]").expect("a figure");
        let [low, high] = metric.interval["batch_63"];
        assert!(high / low > 6.0, "{low} {high}");
    }

    #[test]
    fn a_machine_with_fewer_cpus_says_how_many_processes_ran() {
        let (_, part) = Plan::with_part("lock-line", "page_fault1");
        for (name, expected) in [
            ("xeon-8358-2s", &["processes=128", "processes=16"][..]),
            ("xeon-gold-5320", &["processes=26", "processes=16"]),
            ("naples-7551-vm4", &["processes=4"]),
        ] {
            let mut machine = Machine::find(name).expect("it is built in");
            machine.kernel_ns = Machine::find("xeon-8358-2s").expect("it is built in").kernel_ns;
            let run_ = Run { asked: true, ..Run::shortest(&machine) };
            let cases = Case::all(&part, &run_).expect("cases");
            let all: Vec<_> = cases.iter().map(|case| case.parameters.as_str()).collect();
            assert_eq!(all, expected, "{name}");
            assert!(
                cases.iter().all(|case| case.parameters.ends_with(&case.processes.to_string())),
                "{name}"
            );
        }
    }

    #[test]
    fn the_factors_of_a_machine_are_not_used_for_that_machine() {
        let (_, part) = Plan::with_part("pcp-batch", "page_fault1");
        for name in ["skylake-4s", "xeon-8358-2s", "xeon-gold-5320"] {
            let machine = Machine::find(name).expect("it is built in");
            let run_ = Run { asked: true, models: 8, ..Run::shortest(&machine) };
            let case = Case::all(&part, &run_).expect("cases").remove(0);
            let used: Vec<_> =
                Sample::all(&case, &run_).expect("samples").iter().map(|sample| sample.implied).collect();
            for (machine, factors) in IMPLIED {
                assert_eq!(used.contains(&factors), machine != name, "{name}: factors of {machine}");
            }
        }
    }
}
