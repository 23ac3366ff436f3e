//! Part `structure` of `pcp-reset`: how many per-CPU lists have which batch and high on a machine.
//!
//! The machine's memory map is booted under each variant, with as many CPUs as it has, and the sizes are read off
//! the lists. What they are is arithmetic, wherever it runs.

use std::collections::BTreeMap;

use framewright_host::{Arena, BootOptions, Descriptors};
use framewright_report::error::{Error, Result};
use framewright_report::result::{Kind, Part as ResultPart};

use crate::booting::Bootable;
use crate::booting::report::sizes;
use crate::configure::Setup;
use crate::machine::Machine;
use crate::settings::Settings;
use crate::study::declare::*;
use crate::study::run::{Run, configured, result_part};
use crate::study::{Part, Plan};

pub(crate) const WORKLOAD: BuiltIn = BuiltIn {
    declaration: &Declaration {
        name: "lists",
        about: "Boots a machine's memory map and counts its per-CPU lists by size.",
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
/// A setting that does not exist, or a machine that cannot be booted.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let machine = run.machine;
    let variants = configured(plan, &Settings::default())?;
    let counted = variants
        .iter()
        .map(|variant| Ok((variant, breakdown(machine, &variant.setup)?)))
        .collect::<Result<Vec<_>>>()?;
    let mut result = result_part(plan, part, Kind::Derived, &machine.name, 0);
    // Every size that occurs anywhere, smallest first; a variant that has none of a size has 0.
    let sizes: BTreeMap<(u32, u32), ()> =
        counted.iter().flat_map(|(_, lists)| lists.keys().map(|&key| (key, ()))).collect();
    for &(batch, high) in sizes.keys() {
        let name = format!("lists[batch={batch},high={high}]");
        let mut metric = result.figure(name);
        for (variant, lists) in &counted {
            let lists = lists.get(&(batch, high)).copied().unwrap_or(0);
            metric = metric.sample(&variant.variant, f64::from(lists));
        }
    }
    result.note("Read off the lists after a boot of the machine's memory map; the same on every host.");
    Ok(result)
}

/// Lists by batch and high after a boot of the machine's memory. Descriptors are zero and stay so.
fn breakdown(machine: &Machine, setup: &Setup) -> Result<BTreeMap<(u32, u32), u32>> {
    let bootable = Bootable::of_machine(machine)?;
    let (map, _) = bootable.divide()?;
    let options = BootOptions {
        cpu_nodes: bootable.firmware.cpu_nodes,
        config: setup.config,
        split: setup.split,
        workers: 1,
        descriptors: Descriptors::AsTheyAre,
    };
    let arena: Arena = map.build(&options).map_err(Error::failed)?;
    let booting = arena.allocator().begin().ok_or_else(|| Error::failed("the arena has booted before"))?;
    booting.run();
    booting.finish().map_err(|rest| Error::failed(format_args!("{} pages stay behind", rest.left())))?;
    Ok(sizes(&arena))
}

#[cfg(test)]
mod tests {
    use framewright_host::Config;

    use framewright::config::Experiment;

    use super::*;
    use crate::simulate::allocator::zone_sizing;

    /// The formula for a zone, which replays use, against the boot.
    #[test]
    fn a_boot_sizes_the_lists_as_the_formulas_say() {
        for machine in Machine::all().expect("all are valid") {
            for reset in [false, true] {
                let config = Config {
                    experiment: Experiment { pcp_reset: reset, ..Config::linux_v5_4().experiment },
                    ..Config::linux_v5_4()
                };
                let setup = Setup { config, ..Setup::default() };
                let mut lists = BTreeMap::new();
                for zone in &machine.zones {
                    let size = zone_sizing(&machine, zone, &setup, reset);
                    *lists.entry((size.batch, size.high_min)).or_default() += machine.cpus();
                }
                assert_eq!(breakdown(&machine, &setup).expect("it boots"), lists, "{}", machine.name);
            }
        }
    }
}
