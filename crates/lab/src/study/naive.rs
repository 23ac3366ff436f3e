//! Laws that need no model, to hold predictions against: a prediction has skill by as much as it comes nearer than these.
//!
//! * a change: there is none;
//! * a curve over CPUs that share something: `max(T1, S n)`, what one takes alone, and what each of `n` adds that have to queue;
//! * a curve over workers that share a bandwidth: `max(one / n, all)`, a roofline.

use framewright_sim::bench::Bench;
use framewright_sim::calibration::{Measured, Target};

use crate::machine::Machine;
use crate::study::Plan;

/// `max(T1, S n)`.
pub(crate) fn queue(alone: f64, each: f64, cpus: f64) -> f64 {
    alone.max(each * cpus)
}

/// `max(one / n, all)`.
pub(crate) fn roofline(one: f64, all: f64, workers: f64) -> f64 {
    (one / workers.max(1.0)).max(all)
}

/// What the law says of a plain list in user space, where something of its kind was open: of the locked list two of its rows, of the
/// exchanged head what an exchange takes that two cores contend for.
pub(crate) fn list(
    open: &[Measured],
    machine: &Machine,
    list: &str,
    family: &str,
    cores: u16,
) -> Option<f64> {
    let n = f64::from(cores);
    if list == "list_cas" {
        let pair = if family == "repeat_pair_ns" { 2.0 } else { 1.0 };
        let each = pair * machine.latency_ns.contended_cas_2_cores?.value / 2.0;
        return Some(queue(each, each, n));
    }
    if list != "list_locked" {
        return None;
    }
    let (bench, put) = match family {
        "bulk_get_ns" => (Bench::Bulk, false),
        "bulk_put_ns" => (Bench::Bulk, true),
        "rand_put_ns" => (Bench::Rand, true),
        "repeat_pair_ns" => (Bench::Repeat, false),
        _ => return None,
    };
    let of = |cores: u16| {
        let mut rows = open.iter().filter(|row| row.target == Target::List && row.case.bench == bench);
        let row = rows.find(|row| row.case.cores == cores)?;
        if put { row.put_ns } else { row.get_ns }
    };
    let (few, many) = (2, 8);
    Some(queue(of(few)?, of(many)? / f64::from(many), n))
}

/// What the law says of deferred initialisation by so many workers of each node: from the published figures of one and of all.
pub(crate) fn workers(plan: &Plan, machine: &str, variant: &str, workers: u16) -> Option<f64> {
    let name = format!("deferred_init_ms[machine={machine}]");
    let metric = plan.parts().iter().flat_map(|part| &part.metrics).find(|metric| metric.name == name)?;
    Some(roofline(metric.published?.mean, metric.changed.get(variant)?.mean, f64::from(workers)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::MEASURED;

    #[test]
    fn laws_go_through_what_is_open() {
        let open = framewright_sim::calibration::parse(MEASURED).expect("a set");
        let machine = Machine::find("xeon-gold-5320").expect("it is built in");
        let of = |kind: &str, family: &str, cores: u16| list(&open, &machine, kind, family, cores);
        // 4005.5 ns on 8 cores.
        assert_eq!(of("list_locked", "bulk_get_ns", 8), Some(4005.5));
        assert_eq!(of("list_locked", "bulk_get_ns", 16), Some(8011.0));
        assert_eq!(of("list_cas", "bulk_get_ns", 2), Some(124.0));
        assert_eq!(of("list_local", "bulk_get_ns", 2), None);
        let plan = Plan::find("parallel-init").expect("it is built in");
        assert_eq!(workers(&plan, "skylake-8167m-2s", "all_cpus", 1), Some(1763.3));
        assert_eq!(workers(&plan, "skylake-8167m-2s", "all_cpus", 52), Some(144.3));
    }
}
