//! Part `structure` of `pcp-reset`: how many per-CPU lists have which batch and high on a machine.
//!
//! Arithmetic alone. Every zone has one list set per CPU, sized by the rule of the variant's configuration:
//! from the pages that the zone manages before deferred initialisation, or, once lists are reset, after it.

use std::collections::BTreeMap;

use framewright_host::framewright::policy::pcp::{Sizing, sharing_cpus, size};
use framewright_host::framewright::policy::{Generation, watermark};

use crate::configure::Setup;
use crate::error::Result;
use crate::machine::{Machine, Zone, ZoneKind};
use crate::result::{Better, Kind, Part as ResultPart};
use crate::settings::Settings;
use crate::study::run::{configured, result_part};
use crate::study::{Part, Plan};

/// Counts the lists of each size, for every variant of the study.
///
/// # Errors
/// A setting that does not exist.
pub(crate) fn run(plan: &Plan, part: &Part, machine: &Machine) -> Result<ResultPart> {
    let variants = configured(plan, &Settings::default())?;
    let counted: Vec<_> = variants.iter().map(|it| (it, breakdown(machine, &it.setup))).collect();
    let mut result = result_part(plan, part, Kind::Derived, &machine.name, 0);
    // Every size that occurs anywhere, smallest first; a variant that has none of a size has 0.
    let sizes: BTreeMap<(u32, u32), ()> =
        counted.iter().flat_map(|(_, lists)| lists.keys().map(|&key| (key, ()))).collect();
    for &(batch, high) in sizes.keys() {
        let name = format!("lists[batch={batch},high={high}]");
        let mut metric = result.metric(name, "1", Better::None);
        for (variant, lists) in &counted {
            let lists = lists.get(&(batch, high)).copied().unwrap_or(0);
            metric = metric.sample(&variant.variant, f64::from(lists));
        }
    }
    result.note("Follows from the sizing formulas and the machine's zones; nothing was run.");
    Ok(result)
}

/// Lists by batch and high.
fn breakdown(machine: &Machine, setup: &Setup) -> BTreeMap<(u32, u32), u32> {
    let mut lists = BTreeMap::new();
    for zone in &machine.zones {
        let size = zone_sizing(machine, zone, setup, setup.pcp_reset);
        *lists.entry((size.batch, size.high_min)).or_default() += machine.cpus();
    }
    lists
}

/// The size of a zone's lists, before or after deferred initialisation.
pub(crate) fn zone_sizing(machine: &Machine, zone: &Zone, setup: &Setup, after: bool) -> Sizing {
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
    size(setup.config.pcp_rule, managed(zone), low, cpus, setup.config.pcp_fraction)
}

/// The machine's largest zone: the one whose lists a workload mostly uses.
pub(crate) fn main_zone(machine: &Machine) -> Option<&Zone> {
    machine.zones.iter().filter(|zone| zone.kind == ZoneKind::Normal).max_by_key(|zone| zone.managed_pages)
}
