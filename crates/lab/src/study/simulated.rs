//! Bulk parts on the model of a machine: what the variants cost on so many cores, and where the time goes.

use framewright::units::COSTLY_ORDER;
use framewright_sim::bench::{Bench, Case, Outcome, linux};

use crate::study::declare::*;
use crate::study::library::parameters;

/// Runs a bulk part on 1, 2, 4, … cores of the machine (quickly: 1, 16, …) and on all.
///
/// # Errors
/// The machine cannot be simulated, or a setting that does not exist.
pub(crate) fn bulk(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let order = order(part);
    let models = sampled_models(run.machine, run.models as usize, run.seed)?;
    let all = (run.machine.cores_per_node * run.machine.nodes) as u16;
    let step = if run.quick { 4 } else { 1 };
    let cores: Vec<u16> = doubled(all).step_by(step).filter(|&n| n < all).chain([all]).collect();
    let mut result = result_part(plan, part, Kind::Simulated, &run.machine.name, run.seed);
    let mut hashes = Vec::new();
    for varied in &part.combinations() {
        let variants = configured(plan, varied)?;
        let work: Vec<(u16, &Configured)> =
            cores.iter().flat_map(|&cores| variants.iter().map(move |variant| (cores, variant))).collect();
        let runs = on_models(
            (plan, part, "simulated"),
            &work,
            &models,
            run.seed,
            |(cores, variant), (model, _), seed| {
                let case = brief(Case::published(Bench::Bulk, order, *cores));
                linux(model, &allocator(run.machine, &variant.setup), &case, seed)
            },
        )?;
        for ((cores, variant), _, outcome) in &runs {
            hashes.push(outcome.events.hash);
            let parameters = parameters(varied, usize::from(*cores));
            add(&mut result, part, &parameters, &variant.variant, outcome);
            if *cores == all {
                // For each hold of the zone lock.
                let name_of = |line| format!("{line},{parameters}");
                add_moved(
                    &mut result,
                    &name_of,
                    &variant.variant,
                    &outcome.moved,
                    outcome.lock[0].max(1) as f64,
                );
            }
        }
    }
    close_models(&mut result, models.len(), hashes, Interval::LowestToHighest);
    Ok(result)
}

/// Blocks of order 0 that each CPU of many takes: a drain or two of its lists.
const FEW: u64 = 2048;

/// A case with fewer blocks the more CPUs take them, where CPUs have lists. What is asked is how variants differ, not
/// how near a figure comes to a published one.
fn brief(case: Case) -> Case {
    if case.order > COSTLY_ORDER {
        return case;
    }
    let most = ((1 << 16) / u64::from(case.cores.max(1))).max(FEW) >> case.order.get();
    Case { blocks: case.blocks.min(most), ..case }
}

fn add(result: &mut ResultPart, part: &Part, parameters: &str, variant: &str, outcome: &Outcome) {
    let [locks, wait, hold] = outcome.lock.map(|count| count as f64);
    let values = [
        ("alloc_ns", outcome.get_ns),
        ("free_ns", outcome.put_ns),
        ("zone_lock_hold_ns", (locks > 0.0).then(|| hold / locks)),
        ("zone_lock_wait_ns", (locks > 0.0).then(|| wait / locks)),
    ];
    for (family, value) in values {
        if let (Some(_), Some(value)) = (metric(part, family), value) {
            result.figure(format!("{family}[{parameters}]")).sample(variant, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_lock_is_the_bound_its_line_matters_to_those_who_poll_it() {
        let (plan, part) = Plan::with_part("lock-line", "contend");
        let machine = Machine::with_cores("ivy-bridge-ex-4s", 4);
        let result = bulk(&plan, &part, &Run::shortest(&machine)).expect("simulated");
        let hold = |kind: &str, place: &str| {
            let name = format!("zone_lock_hold_ns[kind={kind},cores=16]");
            result.find(&name).unwrap_or_else(|| panic!("{name}")).of(place)[0]
        };
        // All waiters for a ticket read the holder's line again and again; of a queue the first one does.
        let gain = |kind: &str| hold(kind, "with_order0_lists") / hold(kind, "own_line");
        assert!(
            gain("queued") > 1.1 && gain("ticket") > gain("queued"),
            "{} {}",
            gain("ticket"),
            gain("queued")
        );
    }

    #[test]
    fn checking_behind_the_unlock_shortens_the_hold_and_the_wait() {
        let (plan, part) = Plan::with_part("refill-check", "huge");
        let machine = Machine::with_cores("xeon-gold-5320", 6);
        let run = Run { quick: false, ..Run::shortest(&machine) };
        let result = bulk(&plan, &part, &run).expect("simulated");
        let value = |name: &str, variant: &str| result.find(name).expect(name).of(variant)[0];
        let hold = |variant| value("zone_lock_hold_ns[cores=6]", variant);
        assert!(hold("after_unlock") < hold("under_zone_lock") / 4.0);
        let alloc = |variant| value("alloc_ns[cores=6]", variant);
        assert!(alloc("after_unlock") < alloc("under_zone_lock") / 2.0, "the lock is no longer the bound");
        // The heads of the blocks, in their frames' descriptors, are still cold under the lock.
        assert!(alloc("off") < 0.8 * alloc("after_unlock"), "nothing is walked");
        assert!(result.event_log_hash.is_some());
    }
}
