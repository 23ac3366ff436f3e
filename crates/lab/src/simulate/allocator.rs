//! The allocator of a modelled machine, with per-CPU lists of the size that its memory gives them.

use framewright::Config;
use framewright::config::{Experiment, PcpFixed, PcpRule};
use framewright::policy::pcp::{BATCH_CAP, BATCH_CAP_V3_0, Sizing, sharing_cpus, size};
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
    let config = &setup.config;
    let (experiment, page_kib) = (&config.experiment, u64::from(machine.page_kib));
    let managed = |zone: &Zone| if after { zone.managed_pages } else { zone.early_managed_pages };
    let lowmem: u64 = machine.zones.iter().map(managed).sum();
    let min_kib = match config.min_free_kib {
        0 => watermark::min_free_kib(experiment.marks, lowmem * page_kib),
        chosen => chosen,
    };
    let share = watermark::share(watermark::pages_min(min_kib, page_kib), managed(zone), lowmem);
    // Before the first computation of watermarks, which follows deferred initialisation, they are 0.
    let low = if after {
        watermark::Marks::new(experiment.marks, managed(zone), share, config.watermark_scale, false).low
    } else {
        0
    };
    let cpus = sharing_cpus(machine.cpus() / machine.nodes.max(1), machine.cpus());
    let of_4_kib = match (experiment.marks, experiment.pcp_rule) {
        (Generation::V3_0, PcpRule::V5_4) => BATCH_CAP_V3_0,
        _ => BATCH_CAP,
    };
    let cap = of_4_kib * 4 / page_kib;
    size(experiment.pcp_rule, managed(zone), low, cpus, experiment.pcp_fraction, cap)
}

/// The machine's largest zone: the one whose lists a workload mostly uses.
pub(crate) fn main_zone(machine: &Machine) -> Option<&Zone> {
    machine.zones.iter().filter(|zone| zone.kind == ZoneKind::Normal).max_by_key(|zone| zone.managed_pages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    #[test]
    fn lists_are_sized_by_the_settings_the_release_and_the_size_of_a_page() {
        let sizing = |pairs: &str, page_kib: u32| {
            let machine = Machine { page_kib, ..Machine::find("epyc-7742-2s").expect("it is built in") };
            let settings = Settings::from_pairs(pairs).expect("pairs");
            allocator(&machine, &Setup::default().with(&settings).expect("settings")).sizing
        };
        // Linux doubled its batch in v4.19.
        assert_eq!(sizing("preset=linux_v3_0", 4), Sizing { batch: 31, high_min: 186, high_max: 186 });
        assert_eq!(sizing("preset=linux_v5_4", 4), Sizing { batch: 63, high_min: 378, high_max: 378 });
        // At most 1 MiB, of which a quarter is a batch.
        assert_eq!(sizing("preset=linux_v5_4", 64), Sizing { batch: 3, high_min: 18, high_max: 18 });
        // From v5.14 on `high` follows the low watermark.
        let usual = sizing("preset=linux_v6_1", 4).high_min;
        for (setting, times) in [("watermark_scale=1000", 40), ("min_free_kib=67108864", 100)] {
            let high = sizing(&format!("preset=linux_v6_1,{setting}"), 4).high_min;
            assert!(high > times * usual, "{setting}: {high} {usual}");
        }
    }
}
