//! The allocator of a modelled machine, with per-CPU lists of the size that its memory gives them.

use framewright::Config;
use framewright::config::{Experiment, PcpFixed};
use framewright::policy::pcp::{BATCH_CAP, Sizing, sharing_cpus, size};
use framewright::policy::{Generation, watermark};
use framewright_sim::bench::Linux;

use crate::configure::Setup;
use crate::machine::{Machine, Zone, ZoneKind};

/// A variant with per-CPU lists sized for the machine's largest zone.
pub(crate) fn allocator(machine: &Machine, setup: &Setup) -> Linux {
    let sizing = main_zone(machine)
        .map_or(Sizing::BOOT, |zone| zone_sizing(machine, zone, setup, setup.config.experiment.pcp_reset));
    Linux {
        config: Config {
            experiment: Experiment { lock_timing: true, ..setup.config.experiment },
            ..setup.config
        },
        sizing,
    }
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
    let cpus = sharing_cpus(machine.cpus() / machine.nodes.max(1), machine.cpus());
    let experiment = &setup.config.experiment;
    size(experiment.pcp_rule, managed(zone), low, cpus, experiment.pcp_fraction, BATCH_CAP)
}

/// The machine's largest zone: the one whose lists a workload mostly uses.
pub(crate) fn main_zone(machine: &Machine) -> Option<&Zone> {
    machine.zones.iter().filter(|zone| zone.kind == ZoneKind::Normal).max_by_key(|zone| zone.managed_pages)
}
