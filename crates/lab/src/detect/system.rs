//! A machine's topology, caches and memory by zone, as its Linux shows them.

use std::collections::BTreeSet;
use std::path::Path;

use framewright_trace::proc::{Machine, ranges};

use crate::doctor::zoneinfo;
use crate::machine::{Zone, ZoneKind};

use super::cpuid;

/// Place of a CPU: the numbers of its core, caches, package and node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) cpu: usize,
    pub(super) core: usize,
    /// First CPU of its last-level cache.
    pub(super) l3: usize,
    pub(super) node: usize,
    pub(super) package: usize,
}

/// A cache's size in KiB, and where that was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cache {
    pub(super) kib: f64,
    pub(super) from: String,
}

/// Everything that was read, and a line for each file that could not be.
#[derive(Debug, Default)]
pub(super) struct System {
    pub(super) cpus: Vec<Place>,
    /// First, second and last level.
    pub(super) caches: [Option<Cache>; 3],
    /// From the first node to each.
    pub(super) distances: Vec<u32>,
    pub(super) zones: Vec<Zone>,
    pub(super) kernel: String,
    /// The clock that the system names, in MHz: the least of all CPUs'. Of a guest it is what its time stamps count.
    pub(super) nominal_mhz: Option<f64>,
    pub(super) available_bytes: Option<u64>,
    /// Source of the topology.
    pub(super) topology_from: &'static str,
    pub(super) zones_from: &'static str,
    pub(super) unread: Vec<String>,
}

impl System {
    /// Reads the system under `root`, of whose CPUs this process may use those in `allowed`.
    pub(super) fn read(root: &Path, allowed: &[usize], page_kib: u32) -> Self {
        let mut system = Self::default();
        let machine = Machine::below(root);
        let text = |path: &str| machine.read(path);
        system.kernel = machine.line("proc/sys/kernel/osrelease").unwrap_or_default();
        system.nominal_mhz = text("proc/cpuinfo").and_then(|cpus| least_mhz(&cpus));
        system.available_bytes = machine.memory("MemAvailable");
        system.read_caches(&text);
        system.distances = text("sys/devices/system/node/node0/distance")
            .map(|row| row.split_whitespace().filter_map(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        system.zones = text("proc/zoneinfo").map(|zones| zones_of(&zones)).unwrap_or_default();
        system.zones_from = "/proc/zoneinfo";
        let total = machine.memory("MemTotal").map_or(0, |bytes| (bytes >> 10) / u64::from(page_kib));
        if bring_deferred(&mut system.zones, total) {
            system.zones_from =
                "/proc/zoneinfo, with what deferred initialisation has still to bring by MemTotal";
        }
        if system.zones.is_empty() {
            system.unread.push("/proc/zoneinfo says nothing: one zone of all memory is assumed".to_owned());
            system.zones_from = "MemTotal of /proc/meminfo, as one zone from 4 GiB on";
            let pages = machine.memory("MemTotal").map_or(4 << 20, |bytes| bytes >> 10) / u64::from(page_kib);
            let start_pfn = (4 << 20) / u64::from(page_kib);
            system.zones.push(Zone {
                node: 0,
                kind: ZoneKind::Normal,
                start_pfn,
                present_pages: pages,
                managed_pages: pages,
                early_managed_pages: pages,
            });
        }
        system.read_topology(&text, allowed);
        system
    }

    fn read_topology(&mut self, text: &impl Fn(&str) -> Option<String>, allowed: &[usize]) {
        let online = text("sys/devices/system/cpu/online").map(|list| numbers(&list)).unwrap_or_default();
        let nodes: Vec<(usize, Vec<usize>)> = text("sys/devices/system/node/online")
            .map(|list| numbers(&list))
            .unwrap_or_default()
            .into_iter()
            .filter_map(|node| {
                let cpus = text(&format!("sys/devices/system/node/node{node}/cpulist"))?;
                let has_memory = self.zones.iter().any(|zone| zone.node as usize == node);
                Some((node, numbers(&cpus))).filter(|(_, cpus)| has_memory && !cpus.is_empty())
            })
            .collect();
        let place = |cpu: usize| -> Option<Place> {
            let folder = format!("sys/devices/system/cpu/cpu{cpu}");
            let first = |file: &str| numbers(&text(&format!("{folder}/{file}"))?).first().copied();
            Some(Place {
                cpu,
                core: first("topology/thread_siblings_list")?,
                l3: first("cache/index3/shared_cpu_list").unwrap_or(0),
                // Counted among those that have CPUs and memory.
                node: nodes.iter().position(|(_, cpus)| cpus.contains(&cpu)).unwrap_or(0),
                package: first("topology/physical_package_id").unwrap_or(0),
            })
        };
        self.cpus = online.into_iter().filter_map(place).collect();
        self.topology_from = "sysfs";
        if !self.cpus.is_empty() {
            self.count_nodes(&nodes.iter().map(|(node, _)| *node as u32).collect::<Vec<_>>());
            return;
        }
        self.count_nodes(&[]);
        let threads = cpuid::threads_per_core().unwrap_or(1);
        self.unread.push(format!(
            "sysfs has no topology: one node of the {} CPUs that this process may use, {threads} to a core by CPUID",
            allowed.len()
        ));
        self.topology_from = "CPUID";
        let all = if allowed.is_empty() { &[0][..] } else { allowed };
        self.cpus = all
            .iter()
            .map(|&cpu| Place { cpu, core: cpu / threads * threads, l3: all[0], node: 0, package: 0 })
            .collect();
    }

    /// Counts the nodes of zones from 0, as those of CPUs are, and leaves out the others. Without `nodes` there is one.
    fn count_nodes(&mut self, nodes: &[u32]) {
        self.zones.retain_mut(|zone| {
            let place = nodes.iter().position(|node| *node == zone.node);
            if place.is_none() && !nodes.is_empty() {
                let what = format!("node {} has memory and no CPUs: its zones are left out", zone.node);
                self.unread.extend(Some(what).filter(|what| !self.unread.contains(what)));
                return false;
            }
            zone.node = place.unwrap_or(0) as u32;
            true
        });
    }

    fn read_caches(&mut self, text: &impl Fn(&str) -> Option<String>) {
        for index in 0..8 {
            let folder = format!("sys/devices/system/cpu/cpu0/cache/index{index}");
            let word = |file: &str| text(&format!("{folder}/{file}")).map(|text| text.trim().to_owned());
            let (Some(level), Some(kind), Some(size)) = (word("level"), word("type"), word("size")) else {
                continue;
            };
            let (Ok(level @ 1..=3), Some(kib)) = (level.parse::<usize>(), kib_of_size(&size)) else {
                continue;
            };
            if kind != "Instruction" {
                self.caches[level - 1] = Some(Cache { kib, from: format!("sysfs, cpu0/cache/index{index}") });
            }
        }
        for (level, cache) in (1..).zip(&mut self.caches) {
            if cache.is_none() {
                *cache = cpuid::cache_kib(level)
                    .map(|kib| Cache { kib, from: "CPUID, the leaf of caches".to_owned() });
                if cache.is_none() {
                    self.unread
                        .push(format!("neither sysfs nor CPUID says how large cache level {level} is"));
                }
            }
        }
    }

    /// Number of different values of the CPUs.
    pub(super) fn count<K: Ord>(&self, value: impl Fn(&Place) -> K) -> usize {
        self.cpus.iter().map(value).collect::<BTreeSet<K>>().len()
    }
}

/// `0-3,8` as numbers.
fn numbers(list: &str) -> Vec<usize> {
    ranges(list).flatten().collect()
}

/// `48K`, `32M`, in KiB.
fn kib_of_size(size: &str) -> Option<f64> {
    let number = |unit: char| size.strip_suffix(unit)?.parse::<f64>().ok();
    number('K').or_else(|| number('M').map(|mib| mib * 1024.0))
}

/// The least clock that `/proc/cpuinfo` names.
pub(super) fn least_mhz(cpus: &str) -> Option<f64> {
    let lines = cpus.lines().filter(|line| line.starts_with("cpu MHz"));
    let named = lines.filter_map(|line| line.split_once(':')?.1.trim().parse().ok());
    named.reduce(f64::min).filter(|mhz| *mhz > 0.0)
}

/// Adds to the managed pages what the system counts as its own, `total`, and no zone has yet: to the zones that lack
/// most. Returns whether there was any.
fn bring_deferred(zones: &mut [Zone], total: u64) -> bool {
    let managed: u64 = zones.iter().map(|zone| zone.managed_pages).sum();
    let mut deferred = total.saturating_sub(managed);
    // Less is on its way from one count to the other.
    if deferred <= total / 100 {
        return false;
    }
    let lacks = |zone: &Zone| zone.present_pages.saturating_sub(zone.managed_pages);
    let mut lacking: Vec<&mut Zone> = zones.iter_mut().collect();
    lacking.sort_by_key(|zone| core::cmp::Reverse(lacks(zone)));
    for zone in lacking {
        let brought = lacks(zone).min(deferred);
        zone.managed_pages += brought;
        deferred -= brought;
    }
    true
}

/// The zones that have pages, in the order of their addresses. Memory of devices is not the allocator's: it has no
/// managed pages.
fn zones_of(text: &str) -> Vec<Zone> {
    let zones = zoneinfo(text).unwrap_or_default().into_iter().filter(|zone| zone.managed > 0);
    let zones = zones.map(|zone| Zone {
        node: zone.node,
        kind: match &*zone.name {
            "DMA" => ZoneKind::Dma,
            "DMA32" => ZoneKind::Dma32,
            _ => ZoneKind::Normal,
        },
        start_pfn: zone.start,
        present_pages: zone.present,
        managed_pages: zone.managed,
        early_managed_pages: zone.managed,
    });
    let mut zones: Vec<Zone> = zones.collect();
    zones.sort_by_key(|zone| zone.start_pfn);
    zones
}
