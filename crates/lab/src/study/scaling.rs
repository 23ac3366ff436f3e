//! Parts that run the same load on 1 to all CPUs of a machine: what an operation costs as CPUs are added, and where the
//! time goes when all run.
//!
//! What an operation costs on all CPUs is the allocator's doing and the machine's. So bulk and churn are run there again on the same
//! machine with memory that passes any amount at once, with siblings that do not slow each other down, and with both.

use framewright_host::Order;
use framewright_host::framewright::config::Bulk;
use framewright_sim::Model;
use framewright_sim::clock::mix;
use framewright_sim::scaling::{Caller, Case, Load, Outcome, run as simulate};
use framewright_sim::world::WorldError;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::result::{Better, Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::simulate::{doubled, in_parallel, sampled_models};
use crate::study::registry::entry::BuiltIn;
use crate::study::registry::quantities::{
    BANDWIDTH, LINE_WAIT, LOCK_HOLD, LOCK_WAIT, SIMULATED, TRANSFERS, key, metric as quantity,
};
use crate::study::run::{Configured, Run, close_simulated, configured, note_models, progress, result_part};
use crate::study::simulated::allocator;
use crate::study::tasks::add_moved;
use crate::study::workload::{Declaration, Need, Quantity, Role, Takes};
use crate::study::{Part, Plan};

/// Order-0 blocks of each CPU.
const BLOCKS: u64 = 1024;
/// The same for a first look.
const QUICK: u64 = 512;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: Declaration {
        name: "scaling",
        about: "Bulk, random, churn and hand-over on 1, 2, 4, … and all CPUs, each with as much work as one alone.",
        kinds: &[Kind::Simulated],
        keys: &[
            key("order", Takes::Whole(0, 9), Some("0"), "Order of the blocks."),
            key(
                "caller",
                Takes::Words(&["kernel", "library"]),
                Some("kernel"),
                "Descriptors of 64 bytes with a count of references, and a kernel's work for each call; or of 8 bytes, and one access.",
            ),
        ],
        metrics: &[
            time("bulk_get_ns", "Time of one allocation, where every CPU allocates many."),
            time(
                "bulk_put_ns",
                "Time of one free, where every CPU frees what it allocated, in the same order.",
            ),
            time("random_put_ns", "Time of one free of blocks that all CPUs allocated, in random order."),
            time("churn_ns", "Time of a pair: one block of many is freed, another allocated."),
            time("handoff_ns", "Time per block, where of two CPUs one allocates and the other frees."),
            Quantity { role: Role::Cause, ..LOCK_WAIT },
            Quantity { role: Role::Cause, ..LOCK_HOLD },
            quantity(
                "zone_lock_acquisitions",
                "1",
                Better::Lower,
                Role::Cause,
                "Acquisitions of zone locks per operation.",
            ),
            BANDWIDTH,
            TRANSFERS,
            LINE_WAIT,
        ],
        options: &SIMULATED,
        needs: &[Need::Model],
        is_bound: false,
    },
    runners: &[(Kind::Simulated, run)],
};

const fn time(name: &'static str, about: &'static str) -> Quantity {
    quantity(name, "ns", Better::Lower, Role::Main, about)
}

/// One run: load, number of CPUs, variant, model, seed.
struct Work<'a> {
    case: Case,
    variant: &'a Configured,
    model: &'a Model,
    seed: u64,
}

/// Runs every load on 1, 2, 4, … CPUs of the machine (quickly: 1, 16, 256, …) and on all.
///
/// # Errors
/// The machine cannot be simulated, or a setting that does not exist.
fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let order = part.workload.get("order").and_then(|order| order.to_string().parse().ok());
    let order = order.and_then(Order::new).unwrap_or(Order::ZERO);
    let models = sampled_models(run.machine, run.costly_models as usize, run.seed)?;
    let all = run.machine.cpus() as u16;
    let step = if run.quick { 4 } else { 1 };
    let counts: Vec<u16> = doubled(all).step_by(step).filter(|&n| n < all).chain([all]).collect();
    let caller = match part.workload.get("caller").map(ToString::to_string).as_deref() {
        Some("library") => Caller::Library,
        _ => Caller::Kernel,
    };
    let mut variants = configured(plan, &Settings::default())?;
    if caller == Caller::Library {
        // Nobody links Linux.
        variants.retain(|variant| variant.setup.config.bulk == Bulk::Runs);
    }
    let blocks = (if run.quick { QUICK } else { BLOCKS } >> order.get()).max(32);
    // A part of each node's memory: all of it takes minutes to be set up.
    let gib = run.machine.gib_per_node.div_ceil(if run.quick { 8 } else { 4 });
    let node_pages = (gib << 20) / u64::from(run.machine.page_kib);
    let mut work = Vec::new();
    for &cpus in &counts {
        for load in Load::ALL.into_iter().filter(|load| load.runs_on(cpus)) {
            let case = Case { load, order, cpus, blocks, node_pages, caller };
            for variant in &variants {
                let of = |(model, n)| Work { case, variant, model, seed: mix(run.seed ^ n << 32) };
                work.extend(models.iter().zip(1_u64..).map(of));
            }
        }
    }
    let progress = progress(plan, part, work.len());
    let outcomes = in_parallel(
        &work,
        |it| simulate(it.model, &allocator(run.machine, &it.variant.setup), &it.case, it.seed),
        || progress.step("simulated"),
    );
    let outcomes: Vec<Outcome> =
        outcomes.into_iter().collect::<core::result::Result<_, WorldError>>().map_err(Error::failed)?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    if caller == Caller::Library {
        result.variants = variants.iter().map(|variant| variant.variant.clone()).collect();
        result.baseline = result.variants.first().cloned().unwrap_or_default();
    }
    let mut hashes = Vec::new();
    for (Work { case, variant, .. }, outcome) in work.iter().zip(&outcomes) {
        hashes.push(outcome.events.hash);
        add(&mut result, part, case, &variant.variant, outcome, case.cpus == all);
    }
    // The times first, by load; then what they are made of.
    let place = |family: &str| part.metrics.iter().position(|known| known.name == family);
    result.metrics.sort_by_key(|metric| place(metric.family()).unwrap_or(usize::MAX));
    let shape = run.machine;
    result.note(format!(
        "Each CPU has {blocks} blocks of order {}. Up to {} CPUs each have a core; beyond that two share one, and then an \
         operation that waits for nothing takes longer, too.",
        order.get(),
        shape.nodes * shape.cores_per_node
    ));
    if let (Some(variant), Some(model)) = (variants.last(), models.first()) {
        let case = |load| Case { load, order, cpus: all, blocks, node_pages, caller };
        let seed = mix(run.seed ^ 1 << 32);
        let work = |load| Work { case: case(load), variant, model, seed };
        for load in [Load::Bulk, Load::Churn] {
            result.note(machines_part(run.machine, &work(load)).map_err(Error::failed)?);
        }
    }
    note_models(&mut result, models.len());
    close_simulated(&mut result, hashes);
    Ok(result)
}

/// What of the time is the machine's: the same run on it, with more memory bandwidth, and with siblings that do not slow each other down.
fn machines_part(machine: &Machine, work: &Work<'_>) -> core::result::Result<String, WorldError> {
    let Work { case, variant, model, seed } = work;
    let apart = |model: &Model| Model { smt_yield: 2.0, ..model.clone() };
    let models = [
        (*model).clone(),
        model.with_infinite_bandwidth(),
        apart(model),
        apart(&model.with_infinite_bandwidth()),
    ];
    let setup = allocator(machine, &variant.setup);
    let outcomes = in_parallel(&models, |model| simulate(model, &setup, case, *seed), || {});
    let mut times: Vec<(&str, Vec<String>)> = Vec::new();
    for outcome in outcomes {
        for (n, (name, ns)) in outcome?.times.into_iter().enumerate() {
            if times.len() <= n {
                times.push((name, Vec::new()));
            }
            times[n].1.push(format!("{ns:.1}"));
        }
    }
    let each = times.iter().map(|(name, ns)| format!("{name} {}", ns.join(" / ")));
    Ok(format!(
        "{} on {} CPUs of the first model: {}. First as it is; then with memory that passes any amount at once, with siblings that do \
         not slow each other down, and with both: what is left then is the allocator's.",
        variant.variant,
        case.cpus,
        each.collect::<Vec<_>>().join(", ")
    ))
}

/// Adds one run: its times, and of the one on all CPUs where they go.
fn add(result: &mut ResultPart, part: &Part, case: &Case, variant: &str, outcome: &Outcome, last: bool) {
    let of = format!("cpus={}", case.cpus);
    let named = |name: &str| part.metrics.iter().any(|metric| metric.name == name);
    for (name, ns) in outcome.times.iter().filter(|(name, _)| named(name)) {
        result.metric(format!("{name}[{of}]"), "ns", Better::Lower).sample(variant, *ns);
    }
    if !last || !outcome.times.iter().any(|(name, _)| named(name)) {
        return;
    }
    let parameters = |own: String| {
        let load = format!("load={},{of}", case.load.name());
        if own.is_empty() { load } else { format!("{own},{load}") }
    };
    let [locks, wait, hold] = outcome.lock.map(|count| count as f64);
    let operations = outcome.operations.max(1) as f64;
    let each = locks.max(1.0);
    for (family, unit, value) in [
        ("zone_lock_acquisitions", "1", locks / operations),
        ("zone_lock_wait_ns", "ns", wait / each),
        ("zone_lock_hold_ns", "ns", hold / each),
    ] {
        let name = format!("{family}[{}]", parameters(String::new()));
        result.metric(name, unit, Better::Lower).sample(variant, value);
    }
    add_moved(result, &parameters, variant, &outcome.moved, operations);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shipped;

    #[test]
    fn the_study_reports_every_load_on_one_and_on_all_cpus_and_where_the_time_goes() {
        let plan = Plan::find("scaling").expect("it is built in");
        let mut machine = Machine::find("epyc-7742-2s").expect("it is built in");
        machine.cores_per_node = 8;
        let trace = shipped::trace().expect("it is built in");
        let part = &plan.parts()[0];
        let result = run(&plan, part, &Run::shortest(&machine, &trace)).expect("simulated");
        assert_eq!(result.variants, ["linux_v6_7", "lists", "framewright"]);
        for name in ["bulk_get_ns", "bulk_put_ns", "random_put_ns", "churn_ns"] {
            for cpus in [1, 16, 32] {
                let name = format!("{name}[cpus={cpus}]");
                let metric = result.find(&name).unwrap_or_else(|| panic!("{name}"));
                assert!(result.variants.iter().all(|variant| metric.of(variant)[0] > 0.0), "{name}");
            }
        }
        assert!(result.find("handoff_ns[cpus=1]").is_none() && result.find("handoff_ns[cpus=32]").is_some());
        let lock = result.find("zone_lock_acquisitions[load=bulk,cpus=32]").expect("where the time goes");
        assert!(lock.of("linux_v6_7")[0] > 0.0);
        let line = |metric: &crate::result::Metric| metric.family() == "line_wait_ns";
        assert!(result.metrics.iter().any(line));
        assert!(result.notes.iter().any(|note| note.contains("bulk_put_ns")), "{:?}", result.notes);
        let own = run(&plan, &plan.parts()[1], &Run::shortest(&machine, &trace)).expect("simulated");
        assert_eq!(own.variants, ["lists", "framewright"]);
        let churn =
            |result: &ResultPart| result.find("churn_ns[cpus=1]").expect("one CPU").of("framewright")[0];
        assert!(churn(&own) < churn(&result) / 2.0, "a library's call is the allocator's work alone");
    }
}
