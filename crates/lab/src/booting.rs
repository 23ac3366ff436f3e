//! Boot for real, with threads as the CPUs that initialise: of a machine that is described, or of a map that was
//! read. Its frames are described only; zones, descriptors and free lists are real.

pub mod report;

use core::ops::Range;

use framewright::boot::early::{Early, EarlyError, EarlyRequest, Side};
use framewright::boot::map::{Home, Kind};
use framewright::boot::zones::Rules;
use framewright::policy::init;
use framewright::units::SECTION_PAGES;
use framewright::{NodeId, Pfn};
use framewright_host::firmware::{Claimed, Firmware};
use framewright_host::{BootMap, FirmwareMap};
use framewright_report::error::{Error, Result};

use crate::machine::{Machine, Zone};

/// Frames have 4 KiB.
pub const PAGE_SHIFT: u32 = 12;

/// Input of a boot.
#[derive(Clone, Debug)]
pub struct Bootable {
    /// As firmware would describe it.
    pub firmware: Firmware,
    /// Rules by which memory is divided.
    pub rules: Rules,
    /// Memory that early allocation takes, beyond what is claimed from the beginning.
    pub wants: Vec<Want>,
}

/// An early allocation.
#[derive(Clone, Debug)]
pub struct Want {
    /// Request to the early allocator.
    pub request: EarlyRequest,
    /// Purpose of the memory.
    pub what: String,
}

/// An early allocation or reservation that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Frames that were taken.
    pub range: Range<Pfn>,
    /// Purpose of the memory.
    pub what: String,
}

impl Bootable {
    /// The memory of a described machine: a range for each zone, of which early allocation takes what the zone does
    /// not manage in the end.
    ///
    /// # Errors
    /// The machine has pages of another size than 4 KiB.
    pub fn of_machine(machine: &Machine) -> Result<Self> {
        if machine.page_kib != 4 {
            let (name, page) = (&machine.name, machine.page_kib);
            return Err(Error::failed(format_args!(
                "{name} has pages of {page} KiB; only machines with pages of 4 KiB can be booted"
            )));
        }
        let mut map = FirmwareMap::default();
        for zone in &machine.zones {
            let (start, bytes) = (zone.start_pfn << PAGE_SHIFT, zone.present_pages << PAGE_SHIFT);
            map.ranges.push((start, bytes, Kind::Usable));
            map.nodes.push((start, bytes, Home { node: NodeId(zone.node as u16), hot_pluggable: false }));
        }
        let per_node = machine.cores_per_node * machine.threads_per_core;
        let cpu_nodes = (0..machine.nodes).flat_map(|node| (0..per_node).map(move |_| NodeId(node as u16)));
        let defer = machine.zones.iter().any(|zone| zone.early_managed_pages < zone.managed_pages);
        Ok(Self {
            firmware: Firmware { map, cpu_nodes: cpu_nodes.collect(), claimed: Vec::new() },
            rules: Rules { defer, ..Rules::default() },
            wants: machine.zones.iter().flat_map(wants).collect(),
        })
    }

    /// A map that was read. Early allocation takes what its frame descriptors need, `descriptor_bytes` each, on the
    /// node that they describe. CPUs that nothing is said of are spread over the nodes.
    pub fn of_firmware(mut firmware: Firmware, descriptor_bytes: u64, cpus: usize) -> Self {
        if firmware.cpu_nodes.is_empty() {
            let mut nodes: Vec<NodeId> = firmware.map.nodes.iter().map(|(_, _, home)| home.node).collect();
            nodes.sort_unstable();
            nodes.dedup();
            let nodes = if nodes.is_empty() { vec![NodeId(0)] } else { nodes };
            firmware.cpu_nodes = (0..cpus.max(1)).map(|cpu| nodes[cpu % nodes.len()]).collect();
        }
        let mut wants = Vec::new();
        if let Ok(map) = firmware.map.divide(Rules::default(), |_| Ok(())) {
            for node in &map.nodes {
                let pages = (node.present * descriptor_bytes).div_ceil(1 << PAGE_SHIFT);
                let request = EarlyRequest { near: Some(node.node), ..EarlyRequest::new(pages.max(1)) };
                wants.push(Want { request, what: format!("descriptors of {:?}", node.node) });
            }
        }
        Self { firmware, rules: Rules::default(), wants }
    }

    /// Brings the map into order, allocates early, and divides what there is.
    ///
    /// # Errors
    /// A range or an early allocation that is refused.
    pub fn divide(&self) -> Result<(BootMap, Vec<Taken>)> {
        let mut taken = Vec::new();
        let map = self.firmware.map.divide(self.rules, |early| self.allocate(early, &mut taken));
        Ok((map.map_err(Error::failed)?, taken))
    }

    fn allocate(
        &self,
        early: &mut Early<'_>,
        taken: &mut Vec<Taken>,
    ) -> core::result::Result<(), EarlyError> {
        for Claimed { start, bytes, what } in &self.firmware.claimed {
            let range = early.map().touched(*start, *bytes);
            early.reserve(range.clone())?;
            taken.push(Taken { range, what: what.clone() });
        }
        for Want { request, what } in &self.wants {
            let first = early.alloc(request)?;
            taken.push(Taken { range: first..first.add(request.pages), what: what.clone() });
        }
        Ok(())
    }
}

/// Requests for the frames that a zone does not manage: at the bottom of the part that is initialised early, at the top
/// of the rest.
fn wants(zone: &Zone) -> Vec<Want> {
    let (start, end) = (Pfn(zone.start_pfn), Pfn(zone.start_pfn + zone.present_pages));
    let defers = zone.early_managed_pages < zone.managed_pages;
    let first_deferred = init::first_deferred([start..end], SECTION_PAGES).filter(|_| defers).unwrap_or(end);
    let early = (first_deferred.0 - start.0).saturating_sub(zone.early_managed_pages);
    let all = zone.present_pages - zone.managed_pages;
    let early = early.min(all);
    let want = |pages: u64, within: Range<Pfn>, from: Side| Want {
        request: EarlyRequest { within, from, hot_pluggable: true, ..EarlyRequest::new(pages) },
        what: format!("descriptors, kernel of node {} {}", zone.node, zone.kind),
    };
    let mut wants = Vec::new();
    // Without a deferred part, everything comes from the top.
    if first_deferred == end {
        wants.push(want(all, start..end, Side::Top));
    } else {
        wants.push(want(early, start..first_deferred, Side::Bottom));
        wants.push(want(all - early, first_deferred..end, Side::Top));
    }
    wants.retain(|want| want.request.pages > 0);
    wants
}

#[cfg(test)]
mod tests {
    use framewright::policy::init::Split;
    use framewright_host::{BootOptions, Config, Descriptors};
    use framewright_subject::{Descriptor, Subject};

    use super::*;

    #[test]
    fn every_machine_boots_to_the_zones_of_its_description() {
        for machine in Machine::all().expect("all are valid") {
            let bootable = Bootable::of_machine(&machine).expect("pages of 4 KiB");
            assert_eq!(bootable.firmware.cpu_nodes.len(), machine.cpus() as usize);
            let (map, _) = bootable.divide().expect("it is sound");
            let options = BootOptions {
                cpu_nodes: bootable.firmware.cpu_nodes,
                config: Config::default(),
                split: Split::default(),
                workers: 4,
                descriptors: Descriptors::AsTheyAre,
            };
            let subject = Subject::of_map(&map, &options, Descriptor::Compact).expect("it is sound");
            let booting = subject.begin().expect("it is the first time");
            let early = subject.managed_pages();
            let nodes: Vec<_> = map.nodes.iter().map(|part| part.node).collect();
            let times = booting.initialise(&nodes, Split::OneThread, 2).expect("there are slots");
            assert_eq!(times.len(), nodes.len());
            booting.finish().expect("nothing is left");
            let (present, managed) = (subject.present_pages(), subject.managed_pages());
            assert_eq!(present.len(), machine.zones.len(), "{}", machine.name);
            for (n, zone) in machine.zones.iter().enumerate() {
                let found = (present[n], early[n], managed[n]);
                let said = (zone.present_pages, zone.early_managed_pages, zone.managed_pages);
                assert_eq!(found, said, "zone {n} of {}", machine.name);
            }
        }
    }

    #[test]
    fn cpus_that_no_table_names_are_spread_over_the_nodes() {
        let mut firmware = Firmware::default();
        firmware.map.ranges.push((0, 8 << 30, Kind::Usable));
        for node in [0, 2] {
            let home = Home { node: NodeId(node), hot_pluggable: false };
            firmware.map.nodes.push((u64::from(node) << 31, 1 << 31, home));
        }
        let bootable = Bootable::of_firmware(firmware, 64, 3);
        assert_eq!(bootable.firmware.cpu_nodes, [0, 2, 0].map(NodeId));
        let (map, taken) = bootable.divide().expect("it is sound");
        assert_eq!(
            map.reserved_pages,
            taken.iter().map(|block| block.range.end.0 - block.range.start.0).sum::<u64>()
        );
        assert_eq!(map.reserved_pages, (8 << 18) / 64);
    }
}
