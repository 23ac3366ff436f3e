//! Laws that need no model, to hold predictions against: a prediction has skill by as much as it comes nearer than these.
//!
//! * a change: there is none;
//! * a curve over workers that share a bandwidth: `max(one / n, all)`, a roofline.

use crate::study::Plan;

/// `max(one / n, all)`.
pub(crate) fn roofline(one: f64, all: f64, workers: f64) -> f64 {
    (one / workers.max(1.0)).max(all)
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

    #[test]
    fn laws_go_through_what_is_open() {
        let plan = Plan::find("parallel-init").expect("it is built in");
        assert_eq!(workers(&plan, "skylake-8167m-2s", "all_cpus", 1), Some(1763.3));
        assert_eq!(workers(&plan, "skylake-8167m-2s", "all_cpus", 52), Some(144.3));
    }
}
