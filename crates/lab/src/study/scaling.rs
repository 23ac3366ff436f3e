//! Parts that run the same load on 1 to all CPUs of a machine: what an operation costs as CPUs are added, and where the
//! time goes when all run.
//!
//! They run the code of `bench` ([`framewright_workload::bench`]) on simulated CPUs. A CPU uses its own node's memory;
//! CPUs are used in the order of their numbers: cores first, socket after socket, then the cores' second threads.
//!
//! What an operation costs on all CPUs is the allocator's doing and the machine's. So bulk and churn also run on no
//! allocator at all ([`Floor`](framewright_sim::stage::Floor)), and of the last variant, on all CPUs, on the same
//! machine with memory that passes any amount at once, with siblings that do not slow each other down, and with both.

use framewright_report::result::Better;
use framewright_sim::world::WorldError;
use framewright_subject::scaling::{Case, Outcome};
use framewright_workload::bench::Workload as Bench;

use crate::study::declare::*;

/// Order-0 blocks of each CPU.
const BLOCKS: u64 = 1024;
/// The same for a first look.
const QUICK: u64 = 512;
/// The column of no allocator.
const FLOOR: &str = "floor";
/// Workloads that run on an allocator, in the order of their report.
const LOADS: [Bench; 4] = [Bench::Bulk, Bench::RandomPut, Bench::Churn, Bench::Handoff];
/// Workloads that run on no allocator, too. What is handed over goes round in an allocator, so that it stays in caches.
const ON_FLOOR: [Bench; 2] = [Bench::Bulk, Bench::Churn];

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "scaling",
        about: "Bulk, random, churn and hand-over on 1, 2, 4, … and all CPUs; the work of each CPU stays the same.",
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
        metrics: joined!(Quantity;
            &quantities! {
                bulk_get_ns "ns" Lower Main "Time of one allocation, where every CPU allocates many."
                bulk_put_ns "ns" Lower Main "Time of one free, where every CPU frees what it allocated, in the same order."
                random_put_ns "ns" Lower Main "Time of one free of blocks that all CPUs allocated, in random order."
                churn_ns "ns" Lower Main "Time of a pair: one block of many is freed, another allocated."
                handoff_ns "ns" Lower Main "Time per block, where of two CPUs one allocates and the other frees."
                over_floor "1" Lower Main "A time over what it is with no allocator: a stack of blocks for each CPU, nothing shared, merged or checked."
            },
            &ZONE_LOCK_CAUSES,
            &quantities! {
                zone_lock_acquisitions "1" Lower Cause "Acquisitions of zone locks per call."
            },
            &TRAFFIC,
        ),
        options: &SIMULATED,
        needs: &[Need::Model],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, run)],
};

/// The name of the workload in parameters.
fn load_name(case: &Case) -> &'static str {
    case.load.name().trim_end_matches("_put")
}

/// One run: a case, a variant (or none: the floor), a model, a seed.
struct Work<'a> {
    case: Case,
    variant: Option<&'a Configured>,
    model: &'a Model,
    seed: u64,
}

impl Work<'_> {
    fn run(&self, machine: &Machine) -> core::result::Result<Outcome, WorldError> {
        let allocator = self.variant.map(|variant| allocator(machine, &variant.setup));
        self.case.run(self.model, allocator.as_ref(), self.seed)
    }
}

/// A case and a variant; none is the floor.
type Varied<'v> = (Case, Option<&'v Configured>);

/// Runs every load on 1, 2, 4, … CPUs of the machine (a library: 1, 4, 16, …) and on all; quickly on one and on all.
///
/// # Errors
/// The machine cannot be simulated, or a setting that does not exist.
fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let order = order(part);
    let models = sampled_models(run.machine, run.costly_models as usize, run.seed)?;
    let all = run.machine.cpus() as u16;
    let library = WORKLOAD.text(part, "caller") == "library";
    // Between these counts a library's curves only rise.
    let step = if library { 2 } else { 1 };
    let counts = doubled(all).step_by(step).filter(|&n| n < all && (n == 1 || !run.quick)).chain([all]);
    let counts: Vec<u16> = counts.collect();
    let cores = run.machine.nodes * run.machine.cores_per_node;
    let mut variants = configured(plan, &Settings::default())?;
    if library {
        // No program links Linux.
        variants.retain(|variant| !variant.variant.starts_with("linux_"));
    }
    let blocks = (if run.quick { QUICK } else { BLOCKS } >> order.get()).max(32);
    // A part of each node's memory: all of it takes minutes to be set up.
    let gib = run.machine.gib_per_node.div_ceil(if run.quick { 8 } else { 4 });
    let node_pages = (gib << 20) / u64::from(run.machine.page_kib);
    let case = |load, cpus| Case { load, order, cpus, blocks, node_pages, library };
    let mut runs = Vec::new();
    for &cpus in &counts {
        let loads = LOADS.into_iter().filter(|load| load.runs_on(cpus.into()));
        for load in loads.filter(|load| !run.quick || ON_FLOOR.contains(load)) {
            let on_floor = ON_FLOOR.contains(&load) && [1, cores, u32::from(all)].contains(&u32::from(cpus));
            runs.extend(on_floor.then_some((case(load, cpus), None)));
            runs.extend(variants.iter().map(|variant| (case(load, cpus), Some(variant))));
        }
    }
    let outcomes = on_models(
        (plan, part, "simulated"),
        &runs,
        &models,
        run.seed,
        |&(case, variant), (model, _), seed| Work { case, variant, model, seed }.run(run.machine),
    )?;
    let outcomes: Vec<Outcome> = outcomes.into_iter().map(|(.., outcome)| outcome).collect();
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    result.variants = variants.iter().map(|variant| variant.variant.clone()).collect();
    result.baseline = result.variants.first().cloned().unwrap_or_default();
    result.settings = variants.iter().map(|item| (item.variant.clone(), item.setup.described())).collect();
    result.variants.insert(1.min(result.variants.len()), FLOOR.to_owned());
    let hashes = add_all(&mut result, part, all, &runs, outcomes.chunks(models.len().max(1)));
    // The times first, by load; then what they are made of.
    let place = |family: &str| part.metrics.iter().position(|known| known.name == family);
    result.metrics.sort_by_key(|metric| place(metric.family()).unwrap_or(usize::MAX));
    tell(&mut result, &case(Bench::Bulk, all), cores);
    if let (false, Some(variant)) = (run.quick, variants.last()) {
        for case in ON_FLOOR.map(|load| case(load, all)) {
            let is_it = |(known, found): &Varied<'_>| {
                *known == case && found.is_some_and(|found| found.variant == variant.variant)
            };
            let Some(at) = runs.iter().position(is_it).map(|at| at * models.len()) else { continue };
            let work =
                Work { case, variant: Some(variant), model: &models[0], seed: mix(run.seed ^ 1 << 32) };
            result.note(machines_part(run.machine, &work, &outcomes[at]).map_err(Error::failed)?);
        }
    }
    close_models(&mut result, models.len(), hashes, Interval::LowestToHighest);
    Ok(result)
}

/// Says what was run.
fn tell(result: &mut ResultPart, case: &Case, cores: u32) {
    result.note(format!(
        "Each CPU has {} blocks of order {}. Up to {cores} CPUs each have a core; beyond that two share one, and then an \
         operation that waits for nothing takes longer, too.",
        case.blocks,
        case.order.get(),
    ));
    result.note(format!(
        "`{FLOOR}` is no allocator: each CPU pops blocks from a stack of its own and pushes them back. Nothing is shared, merged or \
         checked{}. `over_floor` is a time over that one.",
        if case.library {
            ""
        } else {
            "; a descriptor is written where its block is allocated, and where the last reference is dropped"
        }
    ));
}

/// Adds all runs, of each case its floor first; the outcomes of one are those of all models. Returns the hashes of what
/// allocators did.
fn add_all<'o>(
    result: &mut ResultPart,
    part: &Part,
    all: u16,
    runs: &[Varied<'_>],
    outcomes: impl Iterator<Item = &'o [Outcome]>,
) -> Vec<u64> {
    let mut hashes = Vec::new();
    let mut least: Option<(&Case, &[Outcome])> = None;
    for ((case, variant), outcomes) in runs.iter().zip(outcomes) {
        let Some(variant) = variant else {
            least = Some((case, outcomes));
            outcomes.iter().for_each(|outcome| add_times(result, part, case, FLOOR, outcome));
            continue;
        };
        let least = least.filter(|(known, _)| *known == case).map_or(&[][..], |(_, least)| least);
        for (n, outcome) in outcomes.iter().enumerate() {
            hashes.push(outcome.events.hash);
            add_times(result, part, case, &variant.variant, outcome);
            if let Some(least) = least.get(n) {
                add_over_floor(result, case, &variant.variant, outcome, least);
            }
            if case.cpus == all {
                add_causes(result, part, case, &variant.variant, outcome);
            }
        }
    }
    hashes
}

/// What of the time is the machine's: what came out, and the same run with more memory bandwidth, and with siblings
/// that do not slow each other down.
fn machines_part(
    machine: &Machine,
    work: &Work<'_>,
    as_it_is: &Outcome,
) -> core::result::Result<String, WorldError> {
    let apart = |model: &Model| Model { smt_yield: 2.0, ..model.clone() };
    let unbound = work.model.with_infinite_bandwidth();
    let models = [unbound.clone(), apart(work.model), apart(&unbound)];
    let outcomes = in_parallel(&models, |model| Work { model, ..*work }.run(machine), || {});
    let mut times: Vec<(String, Vec<String>)> = Vec::new();
    for outcome in core::iter::once(Ok(as_it_is.clone())).chain(outcomes) {
        for (n, (name, ns)) in outcome?.times.into_iter().enumerate() {
            if times.len() <= n {
                times.push((name, Vec::new()));
            }
            times[n].1.push(format!("{ns:.1}"));
        }
    }
    let (case, variant) = (&work.case, work.variant.map_or(FLOOR, |variant| &variant.variant));
    let each = times.iter().map(|(name, ns)| format!("{name} {}", ns.join(" / ")));
    Ok(format!(
        "{} on {} CPUs of the first model: {}. First as it is; then with memory that passes any amount at once, with siblings that do \
         not slow each other down, and with both: what is left then is the allocator's.",
        variant,
        case.cpus,
        each.collect::<Vec<_>>().join(", ")
    ))
}

/// The times of a run that the part names.
fn named<'o>(part: &Part, outcome: &'o Outcome) -> impl Iterator<Item = &'o (String, f64)> {
    outcome.times.iter().filter(|(name, _)| part.metrics.iter().any(|metric| metric.name == *name))
}

/// Adds a run's times.
fn add_times(result: &mut ResultPart, part: &Part, case: &Case, variant: &str, outcome: &Outcome) {
    for (name, ns) in named(part, outcome) {
        result.metric(format!("{name}[cpus={}]", case.cpus), "ns", Better::Lower).sample(variant, *ns);
    }
}

/// Adds how many times as long as on no allocator a run takes.
fn add_over_floor(result: &mut ResultPart, case: &Case, variant: &str, outcome: &Outcome, least: &Outcome) {
    for ((name, ns), (_, least)) in outcome.times.iter().zip(&least.times) {
        let name = format!("over_floor[of={},cpus={}]", name.trim_end_matches("_ns"), case.cpus);
        result.metric(name, "1", Better::Lower).sample(variant, ns / least);
    }
}

/// Adds where the times of a run go.
fn add_causes(result: &mut ResultPart, part: &Part, case: &Case, variant: &str, outcome: &Outcome) {
    if named(part, outcome).next().is_none() {
        return;
    }
    let cpus = format!("cpus={}", case.cpus);
    let parameters = |name: String| {
        let load = format!("load={},{cpus}", load_name(case));
        if name.is_empty() { load } else { format!("{name},{load}") }
    };
    let [locks, wait, hold] = outcome.lock.map(|count| count as f64);
    let calls = outcome.calls.max(1) as f64;
    let each = locks.max(1.0);
    for (family, unit, value) in [
        ("zone_lock_acquisitions", "1", locks / calls),
        ("zone_lock_wait_ns", "ns", wait / each),
        ("zone_lock_hold_ns", "ns", hold / each),
    ] {
        let name = format!("{family}[{}]", parameters(String::new()));
        result.metric(name, unit, Better::Lower).sample(variant, value);
    }
    add_moved(result, &parameters, variant, &outcome.moved, calls);
}

#[cfg(test)]
mod tests {
    use framewright_host::Order;

    use super::*;

    #[test]
    fn the_study_reports_every_load_on_one_and_on_all_cpus_and_where_the_time_goes() {
        let plan = Plan::find("scaling").expect("it is built in");
        let mut machine = Machine::find("epyc-7742-2s").expect("it is built in");
        (machine.cores_per_node, machine.gib_per_node) = (8, 4);
        let part = &plan.parts[0];
        let whole = Run { quick: false, ..Run::shortest(&machine) };
        let result = run(&plan, part, &whole).expect("simulated");
        assert_eq!(result.variants, ["linux_v6_7", FLOOR, "lists", "framewright"]);
        let allocators = ["linux_v6_7", "lists", "framewright"];
        for name in ["bulk_get_ns", "bulk_put_ns", "random_put_ns", "churn_ns"] {
            for cpus in [1, 16, 32] {
                let name = format!("{name}[cpus={cpus}]");
                let metric = result.find(&name).unwrap_or_else(|| panic!("{name}"));
                assert!(allocators.iter().all(|variant| metric.of(variant)[0] > 0.0), "{name}");
            }
        }
        // Sixteen cores, of two threads.
        for load in ["bulk_get", "bulk_put", "churn"] {
            for cpus in [1, 16, 32] {
                let name = format!("over_floor[of={load},cpus={cpus}]");
                let over = result.find(&name).unwrap_or_else(|| panic!("{name}"));
                let ns = result.find(&format!("{load}_ns[cpus={cpus}]")).expect("its time");
                let ratio = ns.of("framewright")[0] / ns.of(FLOOR)[0];
                assert!(ratio > 0.9 && over.of("framewright") == [ratio], "{name}: {ratio}");
                assert!(over.of(FLOOR).is_empty());
            }
        }
        assert!(result.find("handoff_ns[cpus=1]").is_none() && result.find("handoff_ns[cpus=32]").is_some());
        let lock = result.find("zone_lock_acquisitions[load=bulk,cpus=32]").expect("where the time goes");
        assert!(lock.of("linux_v6_7")[0] > 0.0);
        let line = |metric: &framewright_report::result::Metric| metric.family() == "line_wait_ns";
        assert!(result.metrics.iter().any(line));
        assert_eq!(result.settings.len(), 3);
        let library = run(&plan, &plan.parts[1], &Run::shortest(&machine)).expect("simulated");
        assert_eq!(library.variants, ["lists", FLOOR, "framewright"]);
        let churn =
            |result: &ResultPart| result.find("churn_ns[cpus=1]").expect("one CPU").of("framewright")[0];
        assert!(churn(&library) < churn(&result) / 2.0, "a library's call is the allocator's work alone");
        assert!(
            library.find("random_put_ns[cpus=32]").is_none() && library.find("churn_ns[cpus=16]").is_none()
        );
    }

    #[test]
    fn what_of_a_time_is_the_machines_is_said_beside_what_came_out() {
        let plan = Plan::find("scaling").expect("it is built in");
        let mut machine = Machine::find("epyc-7742-2s").expect("it is built in");
        (machine.cores_per_node, machine.gib_per_node) = (2, 4);
        let whole = Run { quick: false, ..Run::shortest(&machine) };
        let result = run(&plan, &plan.parts[1], &whole).expect("simulated");
        let put = result.find("bulk_put_ns[cpus=8]").expect("on all CPUs").of("framewright")[0];
        let said = format!("bulk_put_ns {put:.1} / ");
        assert!(result.notes.iter().any(|note| note.contains(&said)), "{said}: {:?}", result.notes);
        assert!(result.find("random_put_ns[cpus=4]").is_some());
    }

    #[test]
    fn no_allocator_costs_less_than_none_and_lists_spare_the_lock_under_churn() {
        let machine = Machine::with_cores("epyc-7742-2s", 4);
        let model = crate::simulate::central_model(&machine).expect("a model");
        let ours = allocator(&machine, &crate::configure::Setup::default());
        let run = |load, cpus, library, allocator| {
            let case = Case { load, order: Order::ZERO, cpus, blocks: 512, node_pages: 0, library };
            let outcome = case.run(&model, allocator, 1).expect("it fits");
            assert_eq!(outcome, case.run(&model, allocator, 1).expect("it fits"), "{case:?}: a seed repeats");
            outcome
        };
        for library in [false, true] {
            for cpus in [2, 8] {
                let [bulk, churn] = ON_FLOOR.map(|load| {
                    let [ours, least] = [Some(&ours), None].map(|variant| run(load, cpus, library, variant));
                    for ((name, ours), (_, least)) in ours.times.iter().zip(&least.times) {
                        assert!(
                            *least > 1.0 && *least <= 1.05 * ours,
                            "{name} {library} {cpus}: {least} {ours}"
                        );
                    }
                    assert_eq!(least.lock, [0; 3]);
                    ours
                });
                let locks = |outcome: &Outcome| outcome.lock[0] as f64 / outcome.calls as f64;
                assert!(locks(&churn) < locks(&bulk), "{} {}", locks(&churn), locks(&bulk));
            }
        }
        // A library's blocks carry no count of references, so that each call touches a line less.
        let time = |library| -> f64 {
            run(Bench::Bulk, 4, library, Some(&ours)).times.iter().map(|(_, ns)| ns).sum()
        };
        assert!(2.0 * time(true) < time(false), "{} {}", time(true), time(false));
    }
}
