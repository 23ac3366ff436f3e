//! What the simulated parts that run tasks have in common: the figures that they start from, and where the time goes.

use framewright_sim::outcome::Outcome;

use crate::simulate::central_model;
use crate::study::declare::*;

/// Refuses a machine that tasks cannot run on.
///
/// # Errors
/// It cannot be simulated, nothing is said of its kernel, or its pages are not of the size that a task's fault clears.
pub(crate) fn check(machine: &Machine) -> Result<()> {
    if machine.page_kib != 4 {
        return Err(Error::failed(format_args!(
            "{} has pages of {} KiB; tasks are simulated with pages of 4 KiB only",
            machine.name, machine.page_kib
        )));
    }
    if central_model(machine)?.kernel.is_none() {
        return Err(Error::failed(format_args!("{}: no kernel_ns to simulate tasks with", machine.name)));
    }
    Ok(())
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
    let first = result.metrics.iter().all(|known| known.family() != family);
    let entry = result.figure(named(family, parameters)).sample(variant, value);
    if let Some(published) = metric.published.filter(|_| first) {
        entry.published(published);
    }
}

fn named(family: &str, parameters: &str) -> String {
    if parameters.is_empty() { family.to_owned() } else { format!("{family}[{parameters}]") }
}

/// Adds where the time goes, for each page that was allocated: the use of zone and LRU locks, and what
/// lines were moved and waited for by what they hold.
pub(crate) fn add_causes(result: &mut ResultPart, parameters: &str, variant: &str, outcome: &Outcome) {
    let pages = (outcome.usage.pages as f64).max(1.0);
    let parameter = |name: String| {
        if parameters.is_empty() { name } else { format!("{name},{parameters}") }
    };
    let mut add = |lock: &str, place: &str, locks: u64, [wait, hold]: [f64; 2]| {
        let each = (locks as f64).max(1.0);
        let use_of = [
            ("acquisitions_per_page", locks as f64 / pages),
            ("wait_ns", wait / each),
            ("hold_ns", hold / each),
        ];
        for (what, value) in use_of {
            result.figure(named(&format!("{lock}_lock_{what}"), place)).sample(variant, value);
        }
    };
    for (zone, &[locks, wait, hold]) in outcome.locks.iter().enumerate() {
        add("zone", &parameter(format!("zone={zone}")), locks, [wait as f64, hold as f64]);
    }
    let lru = outcome.usage.lru;
    add("lru", parameters, lru.locks, [lru.wait.as_ns(), lru.hold.as_ns()]);
    add_moved(result, &parameter, variant, &outcome.moved, pages);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault clears a page of 4 KiB, whatever the machine's.
    #[test]
    fn tasks_run_on_pages_of_4_kib() {
        let machine = Machine::find("epyc-7742-2s").expect("it is built in");
        check(&machine).expect("it has costs of its kernel");
        let error = check(&Machine { page_kib: 64, ..machine }).expect_err("larger pages").to_string();
        assert!(error.contains("pages of 64 KiB"), "{error}");
    }
}
