//! Part `structure` of `pcp-reset`: how many per-CPU lists have which batch and high on a machine.
//!
//! The machine's memory map is booted under each variant, with as many CPUs as it has, and the sizes are read off
//! the lists. What they are is arithmetic, wherever it runs.

use std::collections::BTreeMap;

use framewright::config::PcpFixed;
use framewright::policy::pcp::{Sizing, sharing_cpus, size};
use framewright::policy::{Generation, watermark};
use framewright_host::{Arena, BootOptions, CpuId, Descriptors, FrameUser};
use framewright_report::error::{Error, Result};
use framewright_report::result::{Kind, Part as ResultPart};

use crate::booting::Bootable;
use crate::configure::Setup;
use crate::machine::{Machine, Zone, ZoneKind};
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
    let counted =
        variants.iter().map(|it| Ok((it, breakdown(machine, &it.setup)?))).collect::<Result<Vec<_>>>()?;
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

/// How many per-CPU lists have which batch and high, over all zones and CPUs.
pub(crate) fn sizes<M: FrameUser>(arena: &Arena<M>) -> BTreeMap<(u32, u32), u32> {
    let allocator = arena.allocator();
    let mut lists = BTreeMap::new();
    for zone in allocator.zones() {
        for cpu in 0..allocator.cpus() {
            let size = allocator.pcp(zone.id(), CpuId(cpu as u16)).sizing();
            *lists.entry((size.batch, size.high_min)).or_default() += 1;
        }
    }
    lists
}

/// The size of a zone's lists, before or after deferred initialisation.
pub(crate) fn zone_sizing(machine: &Machine, zone: &Zone, setup: &Setup, after: bool) -> Sizing {
    if let Some(PcpFixed { batch, high }) = setup.config.experiment.pcp_fixed {
        return Sizing { batch, high_min: high, high_max: high };
    }
    let managed = |zone: &Zone| if after { zone.managed_pages } else { zone.early_managed_pages };
    let lowmem: u64 = machine.zones.iter().map(managed).sum();
    let min_kib = watermark::min_free_kib(Generation::V6_1, lowmem * u64::from(machine.page_kib));
    let pages_min = watermark::pages_min(min_kib, u64::from(machine.page_kib));
    let share = watermark::share(pages_min, managed(zone), lowmem);
    // Before the first computation of watermarks, which follows deferred initialisation, they are 0.
    let low = if after {
        watermark::Marks::new(Generation::V6_1, managed(zone), share, watermark::SCALE, false).low
    } else {
        0
    };
    let cpus = sharing_cpus(machine.cpus() / machine.nodes.max(1), false, machine.cpus());
    size(setup.config.experiment.pcp_rule, managed(zone), low, cpus, setup.config.experiment.pcp_fraction)
}

/// The machine's largest zone: the one whose lists a workload mostly uses.
pub(crate) fn main_zone(machine: &Machine) -> Option<&Zone> {
    machine.zones.iter().filter(|zone| zone.kind == ZoneKind::Normal).max_by_key(|zone| zone.managed_pages)
}

#[cfg(test)]
mod tests {
    use framewright_host::Config;

    use framewright::config::Experiment;

    use super::*;

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
