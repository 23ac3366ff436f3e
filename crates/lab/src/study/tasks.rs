//! What the simulated parts that run tasks have in common: the figures that they start from, and where the time goes.

use framewright_report::error::{Error, Result};
use framewright_report::result::Part as ResultPart;
use framewright_sim::Model;
use framewright_sim::outcome::Outcome;

use crate::machine::Machine;
use crate::simulate::central_model;
use crate::simulate::samples::add_moved;
use crate::study::Part;
use crate::study::run::metric;

/// The machine as it is described, to run tasks on.
///
/// # Errors
/// It cannot be simulated, or nothing is said of its kernel.
pub(crate) fn described(machine: &Machine) -> Result<Model> {
    let model = central_model(machine)?;
    if model.kernel.is_none() {
        return Err(Error::failed(format_args!("{}: no kernel_ns to simulate tasks with", machine.name)));
    }
    Ok(model)
}

/// The published figure of a baseline, which says how much is done.
///
/// # Errors
/// There is none.
pub(crate) fn published(part: &Part, family: &str) -> Result<f64> {
    let published = metric(part, family).and_then(|metric| metric.published);
    published.map(|published| published.mean).ok_or_else(|| {
        Error::failed(format_args!(
            "part {}: {family} has no published figure of the baseline to scale by",
            part.name
        ))
    })
}

/// Adds a sample of a metric that the part's plan declares. A published figure goes to the first metric of its family:
/// it is of the first of the settings that vary.
pub(crate) fn add(
    result: &mut ResultPart,
    part: &Part,
    family: &str,
    parameters: &str,
    variant: &str,
    value: f64,
) {
    let Some(metric) = metric(part, family) else { return };
    let name = if parameters.is_empty() { family.to_owned() } else { format!("{family}[{parameters}]") };
    let first = result.metrics.iter().all(|known| known.family() != family);
    let entry = result.figure(name).sample(variant, value);
    if let Some(published) = metric.published.filter(|_| first) {
        entry.published(published);
    }
}

/// Adds where the time goes, for each page that was allocated: the use of zone and LRU locks, and what
/// lines were moved and waited for by what they hold.
pub(crate) fn add_causes(result: &mut ResultPart, parameters: &str, variant: &str, outcome: &Outcome) {
    let pages = (outcome.usage.pages as f64).max(1.0);
    let parameter = |name: String| {
        if parameters.is_empty() { name } else { format!("{name},{parameters}") }
    };
    for (zone, [locks, wait, hold]) in outcome.locks.iter().enumerate() {
        let place = parameter(format!("zone={zone}"));
        let mut add = |family: &str, value: f64| {
            result.figure(format!("{family}[{place}]")).sample(variant, value);
        };
        let each = (*locks as f64).max(1.0);
        add("zone_lock_acquisitions_per_page", *locks as f64 / pages);
        add("zone_lock_wait_ns", *wait as f64 / each);
        add("zone_lock_hold_ns", *hold as f64 / each);
    }
    let lru = outcome.usage.lru;
    let each = (lru.locks as f64).max(1.0);
    for (family, value) in [
        ("lru_lock_acquisitions_per_page", lru.locks as f64 / pages),
        ("lru_lock_wait_ns", lru.wait.as_ns() / each),
        ("lru_lock_hold_ns", lru.hold.as_ns() / each),
    ] {
        let name = if parameters.is_empty() { family.to_owned() } else { format!("{family}[{parameters}]") };
        result.figure(name).sample(variant, value);
    }
    add_moved(result, &parameter, variant, &outcome.moved, pages);
}
