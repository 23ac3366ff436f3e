//! Parts that touch memory for the first time, simulated: `warm_up` of `refill-check`, and its control.

use framewright_sim::first_touch::{self, Case, Warmed};

use crate::study::declare::*;
use crate::study::tasks::{self, add};

/// Quantities of both parts.
const TIMES_OF_BLOCKS: [Quantity; 5] = quantities! {
    first_touch_gbps "GB/s" Higher Main "Memory cleared per second, all CPUs together."
    huge_alloc_ns "ns" Lower Main "Time of one order-9 allocation."
    warm_ms "ms" Lower Main "Until every order-9 block is cleared."
    warming_alloc_ns "ns" Lower Main "Base-page allocation until then."
    steady_alloc_ns "ns" Lower Main "Base-page allocation afterwards."
};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "first_touch",
        about: "1, 2, 4, … and all CPUs allocate and clear order-9 blocks.",
        kinds: &[Kind::Simulated],
        keys: &[HUGE_PAGES],
        metrics: joined!(Quantity; &TIMES_OF_BLOCKS, &ZONE_LOCK),
        options: &SIMULATED,
        needs: &[Need::Model, Need::Kernel],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, control)],
};

pub(crate) const WARM_UP: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "warm_up",
        about: "Some CPUs allocate and clear order-9 blocks while the others fault base pages.",
        kinds: &[Kind::Simulated],
        keys: &[
            HUGE_PAGES,
            key("huge_cpus_percent", Takes::Number(0.0, 100.0), None, "CPUs that take order-9 blocks."),
        ],
        metrics: joined!(Quantity; &TIMES_OF_BLOCKS, &ZONE_LOCK, &TRAFFIC),
        options: &SIMULATED,
        needs: &[Need::Model, Need::Kernel],
        ..Declaration::NONE
    },
    runners: &[(Kind::Simulated, warm_up)],
};

/// How long base pages are faulted after all is warm.
const AFTERWARDS: Ps = Ps(10_000_000_000);
/// A first look takes so many of the pages.
const QUICK: f64 = 0.25;

/// Part `warm_up`: a share of the CPUs touch huge pages, the others base pages.
///
/// # Errors
/// The machine cannot be simulated, or a setting that does not exist.
pub(crate) fn warm_up(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let cpus = run.machine.cpus() as u16;
    let huge_cpus =
        (f64::from(cpus) * WARM_UP.value::<f64>(part, "huge_cpus_percent") / 100.0).round() as u16;
    let case = Case {
        huge_cpus,
        huge_pages: pages(part, run)?,
        base_cpus: cpus - huge_cpus,
        afterwards: AFTERWARDS,
    };
    simulate(plan, part, run, &[(String::new(), case)])
}

/// Part `first_touch`: 1, 2, 4, … CPUs, and all, touch huge pages.
///
/// # Errors
/// As [`warm_up`].
pub(crate) fn control(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let all = run.machine.cpus() as u16;
    let huge_pages = pages(part, run)?;
    let case = |huge_cpus| Case { huge_cpus, huge_pages, base_cpus: 0, afterwards: Ps(0) };
    let cases: Vec<(String, Case)> = doubled(all).map(|n| (format!("cores={n}"), case(n))).collect();
    simulate(plan, part, run, &cases)
}

fn pages(part: &Part, run: &Run<'_>) -> Result<u32> {
    let pages = WORKLOAD.value::<f64>(part, "huge_pages");
    Ok(if run.quick { (pages * QUICK).ceil() as u32 } else { pages as u32 })
}

/// Runs each case under each variant and model.
fn simulate(plan: &Plan, part: &Part, run: &Run<'_>, cases: &[(String, Case)]) -> Result<ResultPart> {
    tasks::check(run.machine)?;
    let models = sampled_models(run.machine, run.models as usize, run.seed)?;
    let variants = configured(plan, &Settings::default())?;
    let work: Vec<(&(String, Case), &Configured)> =
        cases.iter().flat_map(|case| variants.iter().map(move |variant| (case, variant))).collect();
    let runs = on_models(
        (plan, part, "first touches"),
        &work,
        &models,
        run.seed,
        |((_, case), variant), (model, _), seed| {
            first_touch::run(model, &allocator(run.machine, &variant.setup), case, seed)
        },
    )?;
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    for (((parameters, case), variant), _, outcome) in runs {
        hashes.push(outcome.events.hash);
        add_figures(&mut result, part, parameters, case, &variant.variant, &outcome);
    }
    close_models(&mut result, models.len(), hashes, Interval::LowestToHighest);
    Ok(result)
}

fn add_figures(
    result: &mut ResultPart,
    part: &Part,
    parameters: &str,
    case: &Case,
    variant: &str,
    outcome: &Warmed,
) {
    let [huge, meanwhile, afterwards] = outcome.alloc_ns;
    let [locks, wait, hold] = outcome.lock.map(|count| count as f64);
    for (family, value) in [
        ("warm_ms", outcome.warm.as_ns() / 1e6),
        ("first_touch_gbps", outcome.gbps),
        ("huge_alloc_ns", huge),
        ("warming_alloc_ns", meanwhile),
        ("steady_alloc_ns", afterwards),
        ("zone_lock_hold_ns", hold / locks.max(1.0)),
        ("zone_lock_wait_ns", wait / locks.max(1.0)),
    ] {
        add(result, part, family, parameters, variant, value);
    }
    if case.base_cpus > 0 {
        let name = |name: String| name;
        add_moved(result, &name, variant, &outcome.moved, locks.max(1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_blocks_are_checked_shows_while_memory_warms_and_not_in_what_clearing_takes() {
        let (plan, part) = Plan::with_part("refill-check", "warm_up");
        let machine = Machine::with_cores("xeon-gold-5320", 6);
        let run = Run::shortest(&machine);
        let warm = warm_up(&plan, &part, &run).expect("simulated");
        let value =
            |result: &ResultPart, name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        let hold = |variant| value(&warm, "zone_lock_hold_ns", variant);
        assert!(hold("under_zone_lock") > 1.2 * hold("off"), "{warm:?}");
        for metric in &part.metrics {
            assert_eq!(warm.find(&metric.name).expect("a figure").samples.len(), 3, "{}", metric.name);
        }
        let control =
            control(&plan, &Plan::with_part("refill-check", "first_touch").1, &run).expect("simulated");
        let gbps = |variant| value(&control, "first_touch_gbps[cores=6]", variant);
        let ratio = gbps("under_zone_lock") / gbps("off");
        assert!((0.9..1.02).contains(&ratio), "{ratio}");
    }
}
