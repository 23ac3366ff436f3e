//! Part `structure` of `pcp-reset`: how many per-CPU lists have which batch and high on a machine.
//!
//! That is arithmetic: the allocator's own rule for each zone. The tests boot every machine's memory map, and read the
//! same sizes off the lists.

use std::collections::{BTreeMap, BTreeSet};

use crate::study::declare::*;

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "lists",
        about: "Counts a machine's per-CPU lists by size.",
        kinds: &[Kind::Derived],
        metrics: &quantities! {
            lists "1" None Share "Per-CPU lists of all zones."
        },
        options: &[(Opt::Machine, Kind::Derived)],
        ..Declaration::NONE
    },
    runners: &[(Kind::Derived, run)],
};

/// Counts the lists of each size, for every variant of the study.
///
/// # Errors
/// A setting that does not exist.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let machine = run.machine;
    let variants = configured(plan, &Settings::default())?;
    let counted: Vec<_> =
        variants.iter().map(|variant| (variant, breakdown(machine, &variant.setup))).collect();
    let mut result = result_part(plan, part, Kind::Derived, &machine.name, 0);
    // Every size that occurs anywhere, smallest first; a variant that has none of a size has 0.
    let sizes: BTreeSet<(u32, u32)> = counted.iter().flat_map(|(_, lists)| lists.keys().copied()).collect();
    for (batch, high) in sizes {
        let name = format!("lists[batch={batch},high={high}]");
        let mut metric = result.figure(name);
        for (variant, lists) in &counted {
            let lists = lists.get(&(batch, high)).copied().unwrap_or(0);
            metric = metric.sample(&variant.variant, f64::from(lists));
        }
    }
    result.note("By the allocator's own rule, for each zone of the machine; the same on every host.");
    Ok(result)
}

/// Lists by batch and high, after deferred initialisation.
fn breakdown(machine: &Machine, setup: &Setup) -> BTreeMap<(u32, u32), u32> {
    let mut lists = BTreeMap::new();
    for zone in &machine.zones {
        let size = zone_sizing(machine, zone, setup, setup.config.experiment.pcp_reset);
        *lists.entry((size.batch, size.high_min)).or_default() += machine.cpus();
    }
    lists
}

#[cfg(test)]
mod tests {
    use framewright_host::{BootOptions, Config, Descriptors};
    use framewright_subject::{Descriptor, Subject};

    use framewright::config::Experiment;

    use super::*;
    use crate::booting::Bootable;

    /// Lists by batch and high after a boot of the machine's memory. Descriptors are zero and stay so.
    fn booted(machine: &Machine, setup: &Setup) -> BTreeMap<(u32, u32), u32> {
        let bootable = Bootable::of_machine(machine).expect("a machine's map");
        let (map, _) = bootable.divide().expect("it can be divided");
        let options = BootOptions {
            cpu_nodes: bootable.firmware.cpu_nodes,
            config: setup.config,
            split: setup.split,
            workers: map.nodes.len(),
            descriptors: Descriptors::AsTheyAre,
        };
        let subject = Subject::of_map(&map, &options, Descriptor::Compact).expect("there is memory");
        let booting = subject.begin().expect("it has not booted before");
        let nodes: Vec<_> = map.nodes.iter().map(|part| part.node).collect();
        let _ = booting.initialise(&nodes, setup.split, 1).expect("a worker");
        booting.finish().expect("no page stays behind");
        subject.lists()
    }

    /// The rule for a zone, which replays use as well, against the boot.
    #[test]
    fn a_boot_sizes_the_lists_as_the_rule_says() {
        for (n, machine) in Machine::all().expect("all are valid").into_iter().enumerate() {
            // The lists of 5.4 without their reset: on one machine, because a boot takes a second.
            for reset in [true, false].into_iter().take(if n == 0 { 2 } else { 1 }) {
                let config = Config {
                    experiment: Experiment { pcp_reset: reset, ..Config::linux_v5_4().experiment },
                    ..Config::linux_v5_4()
                };
                let setup = Setup { config, ..Setup::default() };
                assert_eq!(breakdown(&machine, &setup), booted(&machine, &setup), "{}", machine.name);
            }
        }
    }
}
