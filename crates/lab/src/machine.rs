//! Machines we don't have: topology, memory, and what its parts cost, as TOML.
//!
//! The descriptions in `machines/` are part of the binary. A user's own file may stand wherever a name may.

use core::fmt;
use std::path::Path;

use framewright::units::MAX_NODES;
use framewright_report::error::{Error, Result, did_you_mean};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::embedded::MACHINES;
use crate::toml_file::{TomlFile, is_path};

/// A machine as it is described.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The name it is chosen by.
    pub name: String,
    /// Other names.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// Model of the CPU.
    pub cpu: String,
    /// Sources of the facts; which of them are assumptions.
    pub source: String,
    /// Studies that are about this machine.
    #[serde(default)]
    pub studies: Vec<String>,
    /// The hypervisor it is a guest of, if it is one.
    pub guest_of: Option<String>,
    /// CPU packages.
    pub sockets: u32,
    /// Memory nodes.
    pub nodes: u32,
    /// Cores of each node.
    pub cores_per_node: u32,
    /// Logical CPUs of each core.
    pub threads_per_core: u32,
    /// Cores that share a last-level cache; all of a socket if it is not said.
    pub cores_per_l3: Option<u32>,
    /// Core clock in MHz.
    pub frequency_mhz: Parameter,
    /// Base page in KiB.
    pub page_kib: u32,
    /// Memory that is plugged in, by node. Zones have less: firmware keeps the hole below 4 GiB.
    pub gib_per_node: u64,
    /// Distance of another node in the units of the firmware's table, in which the own node has 10. Absent
    /// with one node.
    pub remote_distance: Option<u32>,
    /// Kind of zone locks in the kernel of the study: `ticket` or `queued`.
    pub lock_kind: Option<String>,
    /// Memory by zone.
    #[serde(rename = "zone")]
    pub zones: Vec<Zone>,
    /// Times of moving a cache line and of reading memory, in ns.
    pub latency_ns: Latency,
    /// Bandwidth of memory, in GB/s (10⁹ bytes).
    pub bandwidth_gbps: Bandwidth,
    /// Costs in core cycles.
    pub cycles: Cycles,
    /// Sizes of caches; without them the machine cannot be simulated.
    pub cache_kib: Option<CacheSizes>,
    /// Throughput of two busy siblings together, as a multiple of one; absent without siblings.
    pub smt_yield: Option<Parameter>,
    /// Share of the time in which another guest's thread works on the same core, from 0 to 1; absent: 0. A guest is not
    /// told of the other hardware thread of its cores.
    pub core_shared: Option<Parameter>,
    /// Transfers that a CPU waits for when it stores to a line that another CPU polls; absent: 1.25 (0.5 to 2.5).
    pub store_exposed: Option<Parameter>,
    /// Costs of the kernel around the allocator; without it no tasks can be simulated.
    pub kernel_ns: Option<KernelCosts>,
    /// Other facts about the kernel of the study.
    pub kernel: Option<KernelSizes>,
}

/// A number and where it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a table such as { value = 5.0, source = \"nominal\" }")]
pub struct Parameter {
    /// The number to compute with.
    pub value: f64,
    /// Its source.
    pub source: Source,
    /// Lower end, where a range was measured.
    pub low: Option<f64>,
    /// Upper end, where a range was measured.
    pub high: Option<f64>,
}

/// Transfers that a CPU waits for when it stores to a line that another CPU polls, where the machine's description has
/// none: from the least that curves of a Xeon Gold 5320 bear to more than `contend` has shown on two guests
/// (docs/validation/third-round.md).
const STORE_EXPOSED: Parameter =
    Parameter { value: 1.25, source: Source::Estimate, low: Some(0.5), high: Some(2.5) };

/// Source of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// Read from published measurements, or computed from their raw data.
    Measured,
    /// From the maker's data sheet, such as a base clock, or from the kernel's source.
    Nominal,
    /// An estimate: a prediction varies it by ±25 %.
    Estimate,
}

/// A zone before and after the deferred part of its memory map is initialised.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Memory node.
    pub node: u32,
    /// `DMA`, `DMA32` or `Normal`.
    #[serde(rename = "type")]
    pub kind: ZoneKind,
    /// First page frame.
    pub start_pfn: u64,
    /// Pages that exist.
    pub present_pages: u64,
    /// Pages that the allocator manages in the end.
    pub managed_pages: u64,
    /// Pages that it manages before deferred initialisation.
    pub early_managed_pages: u64,
}

/// Which addresses a zone has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
pub enum ZoneKind {
    /// Below 16 MiB.
    #[serde(rename = "DMA")]
    Dma,
    /// Below 4 GiB.
    #[serde(rename = "DMA32")]
    Dma32,
    /// All else.
    Normal,
}

/// Time of moving a cache line from its place, or of reading memory, in ns. Core to core: one way, a
/// contended compare-and-swap.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// Between siblings of a core.
    pub smt_sibling: Option<Parameter>,
    /// Between cores that share a last-level cache, the line clean.
    pub same_l3: Parameter,
    /// As above, for a modified line.
    pub same_l3_dirty: Option<Parameter>,
    /// Within a socket, from another last-level cache, the line's home in that socket.
    pub other_l3: Option<Parameter>,
    /// As [`other_l3`](Self::other_l3), with the line's home in another socket or die.
    pub other_l3_home_remote: Option<Parameter>,
    /// From another die of the same package.
    pub cross_die: Option<Parameter>,
    /// From another socket.
    pub cross_socket: Option<Parameter>,
    /// As above, for a modified line.
    pub cross_socket_dirty: Option<Parameter>,
    /// From memory of the own node.
    pub dram_local: Parameter,
    /// From memory of another node.
    pub dram_remote: Option<Parameter>,
    /// From local memory when its bandwidth is nearly used up.
    pub dram_saturated: Option<Parameter>,
    /// A successful compare-and-swap on a list head that two cores contend for.
    pub contended_cas_2_cores: Option<Parameter>,
}

/// Bandwidth of memory, in GB/s.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bandwidth {
    /// Reading, all cores of a socket (of a node, where a package has several).
    pub socket_read: Parameter,
    /// Reads and writes one to one.
    pub socket_mixed: Option<Parameter>,
    /// One core alone.
    pub core: Parameter,
}

/// Costs in core cycles.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cycles {
    /// One pause instruction.
    pub pause: Parameter,
    /// Extra cycles of an atomic read-modify-write over a load, of a line in the first level. Absent: 18.
    pub exchange: Option<Parameter>,
    /// A branch that was guessed wrongly, from where what it depends on is known; 17 where it is not described.
    pub mispredict: Option<Parameter>,
    /// An access in code like an allocator's, compiled into its caller, with all of it in the first level. Where
    /// programs of one's own are simulated, it stands for what was fitted to Linux.
    pub access: Option<Parameter>,
    /// A load that hits the first-level cache.
    pub l1: Parameter,
    /// A load that hits the second level.
    pub l2: Parameter,
    /// A load that hits the last level.
    pub l3: Parameter,
}

/// Sizes of caches, in KiB.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CacheSizes {
    /// Each core's first level, for data.
    pub l1: Parameter,
    /// Each core's second level.
    pub l2: Parameter,
    /// Each last-level cache.
    pub l3: Parameter,
}

/// The kernel's own work around the allocator, alone on its core, in ns.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelCosts {
    /// A fault on an anonymous page, without its allocation and its clearing.
    pub page_fault: Parameter,
    /// Unmapping a page, without its free.
    pub page_free: Parameter,
}

/// Sizes of the batches of a kernel's work.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KernelSizes {
    /// Pages that a CPU collects before it takes the lock of the LRU lists; 0 lets the simulator keep no such lists.
    pub lru_batch: Parameter,
    /// Pages at most that are taken off the LRU lists in one hold of the lock.
    pub lru_free_batch: Parameter,
}

impl Parameter {
    /// The range to vary it in: as measured, ±25 % for an estimate, else the value alone.
    pub fn interval(&self) -> (f64, f64) {
        let margin = if self.source == Source::Estimate { 0.25 * self.value.abs() } else { 0.0 };
        (self.low.unwrap_or(self.value - margin), self.high.unwrap_or(self.value + margin))
    }
}

impl fmt::Display for Parameter {
    /// `89`, `118 (47 to 149)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value)?;
        if self.low.is_some() || self.high.is_some() {
            let (low, high) = self.interval();
            write!(f, " ({low} to {high})")?;
        }
        Ok(())
    }
}

impl fmt::Display for ZoneKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
        })
    }
}

/// Largest value of a parameter: a second in ns. What is above it is a slip, and no simulation with it would end.
const LARGEST: f64 = 1e9;
/// Core clocks in MHz, of any machine that has pages. What is outside is in another unit.
const MHZ: core::ops::RangeInclusive<f64> = 50.0..=20_000.0;
/// Most zones of an allocator.
const MOST_ZONES: usize = 255;
/// Pages of 4 KiB below the end of physical addresses.
const MOST_PAGES: u64 = 1 << 40;
/// Most memory of a node, in GiB: its bytes on all nodes are still a number.
const MOST_GIB: u64 = 1 << 20;

impl Machine {
    /// All built-in machines, by name.
    ///
    /// # Errors
    /// A description is wrong; the tests of this crate refuse to let that happen.
    pub fn all() -> Result<Vec<Self>> {
        MACHINES.iter().map(|(file, text)| Self::parse(&TomlFile::embedded("machines", file, text))).collect()
    }

    /// The machine of a name, an alias, or a TOML file.
    ///
    /// # Errors
    /// There is none of the name; the message suggests one. Or the file cannot be read, or contradicts itself.
    pub fn find(argument: &str) -> Result<Self> {
        Ok(Self::find_with_text(argument)?.0)
    }

    /// Like [`find`](Self::find), with the TOML that describes it.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_with_text(argument: &str) -> Result<(Self, String)> {
        if is_path(argument) {
            let file = TomlFile::read(Path::new(argument))?;
            return Ok((Self::parse(&file)?, file.text));
        }
        let mut all = Self::all()?;
        match all.iter().position(|machine| machine.names().any(|name| name == argument)) {
            Some(index) => Ok((all.swap_remove(index), MACHINES[index].1.to_owned())),
            None => {
                let hint = did_you_mean(argument, all.iter().flat_map(Self::names));
                let list = if hint.is_empty() { "; `framewright machines` lists them" } else { "" };
                Err(Error::usage(format_args!("no machine `{argument}`{hint}{list}")))
            }
        }
    }

    /// The machine that a text describes; what is wrong with it is said of a file of this name.
    ///
    /// # Errors
    /// It contradicts itself or the format.
    pub fn parse_text(name: &str, text: &str) -> Result<Self> {
        Self::parse(&TomlFile::embedded(".", name, text))
    }

    /// Its name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        core::iter::once(self.name.as_str()).chain(self.aliases.iter().map(String::as_str))
    }

    /// Logical CPUs.
    pub const fn cpus(&self) -> u32 {
        self.nodes * self.cores_per_node * self.threads_per_core
    }

    /// Memory that is plugged in, in GiB.
    pub fn memory_gib(&self) -> u64 {
        u64::from(self.nodes) * self.gib_per_node
    }

    fn parse(file: &TomlFile) -> Result<Self> {
        let machine: Self = file.parse()?;
        machine.check().map_err(|what| file.error(None, what))?;
        Ok(machine)
    }

    /// Checks what the format cannot express.
    fn check(&self) -> core::result::Result<(), String> {
        let counts = [
            ("cores_per_l3", self.cores_per_l3.unwrap_or(1)),
            ("sockets", self.sockets),
            ("nodes", self.nodes),
            ("cores_per_node", self.cores_per_node),
            ("threads_per_core", self.threads_per_core),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(format!("{name} must be at least 1"));
        }
        let cpus = counts[2..].iter().try_fold(1_u32, |product, (_, count)| product.checked_mul(*count));
        // Numbers of CPUs have 16 bits, also those of siblings before they are taken round.
        if cpus.is_none_or(|cpus| cpus > 1 << 15) {
            return Err("nodes × cores_per_node × threads_per_core must be at most 32768".to_owned());
        }
        if self.nodes > MAX_NODES as u32 || self.zones.len() > MOST_ZONES {
            return Err(format!("there may be at most {MAX_NODES} nodes and {MOST_ZONES} zones"));
        }
        if !self.nodes.is_multiple_of(self.sockets) && !self.sockets.is_multiple_of(self.nodes) {
            return Err(format!("{} nodes cannot be shared out to {} sockets", self.nodes, self.sockets));
        }
        if !(self.nodes * self.cores_per_node).is_multiple_of(self.sockets) {
            let cores = self.nodes * self.cores_per_node;
            return Err(format!("{cores} cores cannot be shared out to {} sockets", self.sockets));
        }
        let is_name = |name: &&str| !name.is_empty() && !name.contains(char::is_control);
        if let Some(name) = self.names().find(|name| !is_name(name)) {
            return Err(format!("{name:?} is no name: one has at least one character, all printable"));
        }
        if self.cpu.contains(char::is_control) {
            return Err(format!("cpu is {:?}; all of its characters must be printable", self.cpu));
        }
        if ![4, 16, 64].contains(&self.page_kib) {
            return Err(format!("page_kib is {}; base pages have 4, 16 or 64 KiB", self.page_kib));
        }
        if self.lock_kind.as_deref().is_some_and(|kind| !["ticket", "queued"].contains(&kind)) {
            return Err("lock_kind is neither `ticket` nor `queued`".to_owned());
        }
        // A byte of the firmware's table, of which 255 means that there is no way.
        if self.nodes > 1 && !(11..=254).contains(&self.remote_distance.unwrap_or(0)) {
            return Err("with several nodes, remote_distance must be 11 to 254".to_owned());
        }
        if self.gib_per_node > MOST_GIB {
            return Err(format!("gib_per_node is {}; it must be at most {MOST_GIB}", self.gib_per_node));
        }
        self.check_zones()?;
        let mhz = self.frequency_mhz.value;
        if !MHZ.contains(&mhz) {
            return Err(format!("frequency_mhz is {mhz}; expected MHz, {} to {}", MHZ.start(), MHZ.end()));
        }
        for (name, parameter) in self.parameters() {
            let (low, high) = parameter.interval();
            let positive = parameter.value > 0.0 && parameter.value.is_finite();
            let may_be_0 = ["kernel.lru_batch", "core_shared"].contains(&name);
            if !(positive || may_be_0 && parameter.value == 0.0) {
                return Err(format!("{name} is {}; it must be above 0", parameter.value));
            }
            if !(low > 0.0 || may_be_0 && low == 0.0) {
                return Err(format!("{name} goes down to {low}; it must be above 0"));
            }
            let most = if name == "core_shared" { 1.0 } else { LARGEST };
            if high > most {
                return Err(format!("{name} reaches {high:e}; it must be at most {most:e}"));
            }
            if !(low <= parameter.value && parameter.value <= high) {
                return Err(format!("{name}: {} is not between low {low} and high {high}", parameter.value));
            }
        }
        Ok(())
    }

    fn check_zones(&self) -> core::result::Result<(), String> {
        if let Some(Zone { node, kind, .. }) = self.zones.iter().find(|zone| zone.node >= self.nodes) {
            return Err(format!(
                "zone {kind} is of node {node}; there are {} nodes, counted from 0",
                self.nodes
            ));
        }
        for node in 0..self.nodes {
            let zones = self.zones.iter().filter(|zone| zone.node == node);
            let present = zones.fold(0_u64, |pages, zone| pages.saturating_add(zone.present_pages));
            if present == 0 {
                return Err(format!("node {node} has no pages"));
            }
            let kib = present.saturating_mul(u64::from(self.page_kib));
            if kib > self.gib_per_node << 20 {
                return Err(format!("the zones of node {node} have more pages than gib_per_node allows"));
            }
            // What firmware and the kernel take is less.
            if kib < self.gib_per_node << 19 {
                return Err(format!(
                    "the zones of node {node} have {:.1} of gib_per_node = {}; change both",
                    kib as f64 / f64::from(1 << 20),
                    self.gib_per_node
                ));
            }
        }
        let mut end = 0;
        for zone in &self.zones {
            let name = format!("zone {} of node {}", zone.kind, zone.node);
            if zone.start_pfn < end {
                return Err(format!("{name} begins before the zone above it ends, at page {end}"));
            }
            if zone.managed_pages > zone.present_pages || zone.early_managed_pages > zone.managed_pages {
                return Err(format!(
                    "{name}: expected early_managed_pages <= managed_pages <= present_pages"
                ));
            }
            // A zone may have holes: this is the least space that it takes.
            end = zone.start_pfn.saturating_add(zone.present_pages);
            if end > MOST_PAGES {
                return Err(format!("{name} ends at page {end}; physical addresses have 52 bits"));
            }
        }
        Ok(())
    }

    /// Every parameter with its name, such as `latency_ns.same_l3`, in the order of the description.
    pub fn parameters(&self) -> Vec<(&'static str, Parameter)> {
        let latency = &self.latency_ns;
        let cache = self.cache_kib.as_ref();
        let kernel = self.kernel_ns.as_ref();
        let sizes = self.kernel.as_ref();
        [
            ("frequency_mhz", Some(self.frequency_mhz)),
            ("latency_ns.smt_sibling", latency.smt_sibling),
            ("latency_ns.same_l3", Some(latency.same_l3)),
            ("latency_ns.same_l3_dirty", latency.same_l3_dirty),
            ("latency_ns.other_l3", latency.other_l3),
            ("latency_ns.other_l3_home_remote", latency.other_l3_home_remote),
            ("latency_ns.cross_die", latency.cross_die),
            ("latency_ns.cross_socket", latency.cross_socket),
            ("latency_ns.cross_socket_dirty", latency.cross_socket_dirty),
            ("latency_ns.dram_local", Some(latency.dram_local)),
            ("latency_ns.dram_remote", latency.dram_remote),
            ("latency_ns.dram_saturated", latency.dram_saturated),
            ("latency_ns.contended_cas_2_cores", latency.contended_cas_2_cores),
            ("bandwidth_gbps.socket_read", Some(self.bandwidth_gbps.socket_read)),
            ("bandwidth_gbps.socket_mixed", self.bandwidth_gbps.socket_mixed),
            ("bandwidth_gbps.core", Some(self.bandwidth_gbps.core)),
            ("cycles.pause", Some(self.cycles.pause)),
            ("cycles.exchange", self.cycles.exchange),
            ("cycles.mispredict", self.cycles.mispredict),
            ("cycles.access", self.cycles.access),
            ("cycles.l1", Some(self.cycles.l1)),
            ("cycles.l2", Some(self.cycles.l2)),
            ("cycles.l3", Some(self.cycles.l3)),
            ("cache_kib.l1", cache.map(|cache| cache.l1)),
            ("cache_kib.l2", cache.map(|cache| cache.l2)),
            ("cache_kib.l3", cache.map(|cache| cache.l3)),
            ("smt_yield", self.smt_yield),
            ("core_shared", self.core_shared),
            ("store_exposed", Some(self.store_exposed.unwrap_or(STORE_EXPOSED))),
            ("kernel_ns.page_fault", kernel.map(|kernel| kernel.page_fault)),
            ("kernel_ns.page_free", kernel.map(|kernel| kernel.page_free)),
            ("kernel.lru_batch", sizes.map(|sizes| sizes.lru_batch)),
            ("kernel.lru_free_batch", sizes.map(|sizes| sizes.lru_free_batch)),
        ]
        .into_iter()
        .filter_map(|(name, parameter)| Some((name, parameter?)))
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_built_in_machine_is_valid_and_has_names_of_its_own() {
        let machines = Machine::all().expect("all are valid");
        let mut names = BTreeSet::new();
        for (machine, (file, _)) in machines.iter().zip(MACHINES) {
            assert_eq!(format!("{}.toml", machine.name), *file);
            for name in machine.names() {
                assert!(names.insert(name.to_owned()), "{name} is used twice");
                assert_eq!(Machine::find(name).expect("by any name").name, machine.name);
            }
        }
    }

    #[test]
    fn the_machines_of_the_studies_have_their_published_size() {
        // Logical CPUs, nodes and GiB as the changes' own descriptions give them.
        for (name, cpus, nodes, gib) in [
            ("epyc-7742-2s", 256, 2, 256),
            ("ivy-bridge-ex-4s", 120, 4, 512),
            ("xeon-gold-5320", 26, 1, 128),
            ("skylake-8167m-2s", 104, 2, 768),
            ("broadwell-2699cv4-1s", 32, 1, 192),
            ("haswell-2699v3-2s", 72, 2, 256),
            ("naples-7551-vm16", 16, 1, 64),
            ("naples-7551-vm4", 4, 1, 16),
            ("haswell-2699v3-vm4", 4, 1, 14),
            ("westmere-2n-24t", 24, 2, 12),
        ] {
            let machine = Machine::find(name).expect("it is built in");
            assert_eq!((machine.cpus(), machine.nodes, machine.memory_gib()), (cpus, nodes, gib), "{name}");
        }
    }

    #[test]
    fn the_deferred_part_of_the_skylake_machine_is_that_of_the_worked_example() {
        // Node 0's Normal zone reaches from 4 to 384 GiB; all but one section is deferred.
        let machine = Machine::find("skylake").expect("it is built in");
        let normal = &machine.zones[2];
        assert_eq!(
            (normal.kind, normal.start_pfn, normal.early_managed_pages),
            (ZoneKind::Normal, 1 << 20, 32768)
        );
        assert_eq!(normal.start_pfn + normal.early_managed_pages, 1_081_344);
        assert_eq!(normal.present_pages - normal.early_managed_pages, 99_581_952);
    }

    #[test]
    fn estimates_are_varied_and_measurements_are_not() {
        let parameter = |source, low, high| Parameter { value: 100.0, source, low, high };
        assert_eq!(parameter(Source::Estimate, None, None).interval(), (75.0, 125.0));
        assert_eq!(parameter(Source::Estimate, None, Some(110.0)).interval(), (75.0, 110.0));
        assert_eq!(parameter(Source::Measured, None, None).interval(), (100.0, 100.0));
        assert_eq!(parameter(Source::Measured, Some(90.0), Some(120.0)).interval(), (90.0, 120.0));
        assert_eq!(parameter(Source::Measured, Some(90.0), None).to_string(), "100 (90 to 100)");
    }

    #[test]
    fn machines_that_cannot_be_are_refused() {
        let (_, rome) = MACHINES.iter().find(|(file, _)| file.starts_with("epyc")).expect("it is built in");
        let gib = "gib_per_node = 128";
        let shared = "core_shared = { value = 2.0, source = \"measured\" }\npage_kib = 4";
        let range = "latency_ns.other_l3 goes down to";
        for (from, to, what) in [
            ("nodes = 2", "nodes = 4", "node 2 has no pages"),
            ("\nnode = 1", "\nnode = 2", "zone Normal is of node 2; there are 2 nodes, counted from 0"),
            ("nodes = 2", "nodes = 66", "there may be at most 64 nodes and 255 zones"),
            ("sockets = 2", "sockets = 12", "128 cores cannot be shared out to 12 sockets"),
            (
                "remote_distance = 32",
                "remote_distance = 255",
                "with several nodes, remote_distance must be 11 to 254",
            ),
            (
                "name = \"epyc-7742-2s\"",
                "name = \"\"",
                "\"\" is no name: one has at least one character, all printable",
            ),
            (
                "name = \"epyc-7742-2s\"",
                "name = \"a\\u001b[31m\"",
                "\"a\\u{1b}[31m\" is no name: one has at least one character, all printable",
            ),
            (
                "start_pfn = 1048576",
                "start_pfn = 9223372036854775807",
                "zone Normal of node 0 ends at page 9223372036887281663; physical addresses have 52 bits",
            ),
            ("value = 2250.0", "value = 2.25", "frequency_mhz is 2.25; expected MHz, 50 to 20000"),
            ("value = 2250.0", "value = 2.25e9", "frequency_mhz is 2250000000; expected MHz, 50 to 20000"),
            (
                "start_pfn = 4096",
                "start_pfn = 1",
                "zone DMA32 of node 0 begins before the zone above it ends, at page 3999",
            ),
            (gib, "gib_per_node = 64", "the zones of node 0 have more pages than gib_per_node allows"),
            (gib, "gib_per_node = 256", "the zones of node 0 have 125.7 of gib_per_node = 256; change both"),
            (gib, "gib_per_node = 1048577", "gib_per_node is 1048577; it must be at most 1048576"),
            ("page_kib = 4", shared, "core_shared reaches 2e0; it must be at most 1e0"),
            ("cores_per_l3 = 4", "cores_per_l3 = 0", "cores_per_l3 must be at least 1"),
            (
                "cores_per_node = 64",
                "cores_per_node = 4000000000",
                "nodes × cores_per_node × threads_per_core must be at most 32768",
            ),
            // As many as have no number of 16 bits.
            (
                "cores_per_node = 64",
                "cores_per_node = 16384",
                "nodes × cores_per_node × threads_per_core must be at most 32768",
            ),
            ("nodes = 2", "nodes = 3", "3 nodes cannot be shared out to 2 sockets"),
            ("low = 114.0", "low = 130.0", "latency_ns.other_l3: 124.5 is not between low 130 and high 135"),
            ("nodes = 2", "nodes = 0", "nodes must be at least 1"),
            ("remote_distance = 32\n", "", "with several nodes, remote_distance must be 11 to 254"),
            ("page_kib = 4", "page_kib = 5", "page_kib is 5; base pages have 4, 16 or 64 KiB"),
            ("value = 25.3", "value = -25.3", "latency_ns.same_l3 is -25.3; it must be above 0"),
            ("value = 25.3", "value = 1e30", "latency_ns.same_l3 reaches 1e30; it must be at most 1e9"),
            (
                "early_managed_pages = 3975",
                "early_managed_pages = 3976",
                "zone DMA of node 0: expected early_managed_pages <= managed_pages <= present_pages",
            ),
            ("low = 114.0", "low = 0.0", &format!("{range} 0; it must be above 0")),
            ("low = 114.0", "low = -1.0", &format!("{range} -1; it must be above 0")),
        ] {
            assert!(rome.contains(from), "{from}");
            let file = TomlFile::embedded("machines", "x.toml", &rome.replacen(from, to, 1));
            let error = Machine::parse(&file).expect_err("refused").to_string();
            assert_eq!(error, format!("machines/x.toml: {what}"));
        }
    }
}
