//! Reading the figures of zones that Linux shows.

use core::ops::RangeInclusive;
use std::collections::BTreeMap;

use framewright::config::Config;
use framewright_report::error::{Error, Result};
use framewright_trace::proc;

use super::root::Root;

/// Version of a kernel: major and minor number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kernel(pub u32, pub u32);

/// A system's page allocator, as its files show it.
#[derive(Clone, Debug)]
pub struct State {
    /// The kernel's release, such as `6.1.0-18-amd64`.
    pub release: String,
    /// Zones that have pages, in the order of the file.
    pub zones: Vec<Zone>,
    /// Counters of `/proc/vmstat`.
    pub vmstat: BTreeMap<String, u64>,
    /// Settings below `/proc/sys/vm`.
    pub sysctl: BTreeMap<String, i64>,
    /// Distances between nodes, a row each.
    pub distances: Vec<Vec<u32>>,
    /// CPUs of each node, by node.
    pub node_cpus: BTreeMap<u32, u32>,
    /// CPUs that are online.
    pub online: u32,
    /// Use of transparent huge pages: `always`, `madvise`, `never`.
    pub huge_pages: Option<String>,
    /// Condition under which a fault compacts memory for one.
    pub huge_defrag: Option<String>,
    /// Pages that the system says it has in all, `/proc/meminfo`.
    pub total: Option<u64>,
    /// KiB of a page.
    pub page_kib: u64,
    /// Control groups whose memory is limited.
    pub groups: Vec<Group>,
    /// Time since boot in seconds.
    pub uptime: Option<f64>,
    /// The time in which `vmstat` was counted, in words.
    pub period: String,
}

/// A control group whose memory is limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Path of the group.
    pub path: String,
    /// Bytes that it may use.
    pub limit: u64,
    /// Bytes that it uses.
    pub used: u64,
    /// Processes of it that were killed for want of memory.
    pub killed: u64,
}

/// Figures of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Number of its node.
    pub node: u32,
    /// `DMA`, `DMA32`, `Normal`, `Movable`.
    pub name: String,
    /// Number of free pages.
    pub free: u64,
    /// Pages by which watermarks are raised for a while.
    pub boost: u64,
    /// Watermarks, in pages, with the boost in them.
    pub min: u64,
    /// See `min`.
    pub low: u64,
    /// See `min`.
    pub high: u64,
    /// Pages that exist.
    pub present: u64,
    /// Pages that the allocator has.
    pub managed: u64,
    /// Number of its first page.
    pub start: u64,
    /// Per-CPU lists by CPU.
    pub pagesets: Vec<(u32, Pageset)>,
    /// Free blocks by order, from `/proc/buddyinfo`.
    pub blocks: Vec<u64>,
    /// Order of a huge page.
    pub huge_order: usize,
}

/// The lists of one CPU in one zone, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pageset {
    /// Pages on them.
    pub count: u64,
    /// A free that brings them to this many drains.
    pub high: u64,
    /// Pages that a refill or drain moves.
    pub batch: u64,
    /// Bounds between which Linux v6.7 and later move `high`.
    pub bounds: Option<(u64, u64)>,
}

impl Zone {
    /// `node 0 Normal`.
    pub fn title(&self) -> String {
        format!("node {} {}", self.node, self.name)
    }

    /// The low watermark without what raises it for a while: lists were sized by that one.
    pub const fn unboosted_low(&self) -> u64 {
        self.low.saturating_sub(self.boost)
    }

    /// Pages on the lists of all CPUs.
    pub fn on_lists(&self) -> u64 {
        self.pagesets.iter().map(|(_, set)| set.count).sum()
    }

    /// Free pages in blocks of any order.
    pub fn free_in_blocks(&self) -> u64 {
        self.free_from(0)
    }

    /// Free pages in blocks of which each has a huge page.
    pub fn free_huge(&self) -> u64 {
        self.free_from(self.huge_order)
    }

    fn free_from(&self, order: usize) -> u64 {
        self.blocks.iter().enumerate().skip(order).map(|(order, blocks)| blocks << order).sum()
    }
}

impl Kernel {
    /// The two numbers that a release begins with.
    pub(crate) fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// The preset whose rules are this kernel's, or the newest before it.
    pub(crate) const fn preset(self) -> (&'static str, Config) {
        match (self.0, self.1) {
            (7.., _) | (6, 16..) => ("linux_v6_16", Config::linux_v6_16()),
            (6, 7..) => ("linux_v6_7", Config::linux_v6_7()),
            // Lists sized by watermark came with v5.14.
            (6, _) | (5, 14..) => ("linux_v6_1", Config::linux_v6_1()),
            (4.., _) => ("linux_v5_4", Config::linux_v5_4()),
            _ => ("linux_v3_0", Config::linux_v3_0()),
        }
    }
}

impl State {
    /// Reads the system below `root`.
    ///
    /// # Errors
    /// `/proc/zoneinfo` is missing or cannot be understood.
    pub fn read(root: &Root) -> Result<Self> {
        let path = root.path.join("proc/zoneinfo");
        let text = root.read("proc/zoneinfo").map_err(|cause| Error::io("read", &path, &cause))?;
        let file = |name: &str| root.read(name).ok();
        let mut zones = zoneinfo(&text)
            .map_err(|(line, what)| Error::failed(format_args!("{}:{line}: {what}", path.display())))?;
        zones.retain(|zone| zone.present > 0);
        for (node, name, blocks) in
            file("proc/buddyinfo").iter().flat_map(|text| text.lines().filter_map(buddyinfo))
        {
            for zone in zones.iter_mut().filter(|zone| zone.node == node && zone.name == name) {
                zone.blocks.clone_from(&blocks);
            }
        }
        let pair = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        let vmstat = file("proc/vmstat").iter().flat_map(|text| text.lines().filter_map(pair)).collect();
        let setting =
            |name: &str| Some((name.to_owned(), file(&format!("proc/sys/vm/{name}"))?.trim().parse().ok()?));
        let nodes: Vec<u32> = zones.iter().map(|zone| zone.node).collect();
        let of_node = |node: u32, name: &str| file(&format!("sys/devices/system/node/node{node}/{name}"));
        let node_cpus =
            nodes.iter().filter_map(|&node| Some((node, cpus(&of_node(node, "cpulist")?)))).collect();
        let pagesets = zones.iter().map(|zone| zone.pagesets.len()).max().unwrap_or(0) as u32;
        let online = file("sys/devices/system/cpu/online").map_or(pagesets, |text| cpus(&text));
        let mut unique = nodes;
        unique.dedup();
        let numbers = |text: String| text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let of_huge_pages = |name: &str| file(&format!("sys/kernel/mm/transparent_hugepage/{name}"));
        let chosen = |name: &str| proc::chosen(&of_huge_pages(name)?).map(str::to_owned);
        let meminfo = file("proc/meminfo").unwrap_or_default();
        let kib = |name: &str| proc::memory(&meminfo, name).map(|bytes| bytes >> 10);
        let page_kib = page_kib(zones.iter().map(|zone| zone.free).sum(), kib("MemFree"));
        // Where it is not said: as many pages as a page of a page table has entries.
        let huge_bytes = of_huge_pages("hpage_pmd_size").and_then(|text| text.trim().parse::<u64>().ok());
        let huge_pages = huge_bytes.map_or(page_kib * 128, |bytes| (bytes >> 10) / page_kib);
        zones.iter_mut().for_each(|zone| zone.huge_order = huge_pages.max(1).ilog2() as usize);
        let release = file("proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        Ok(Self {
            release,
            zones,
            vmstat,
            sysctl: SETTINGS.iter().filter_map(|name| setting(name)).collect(),
            distances: unique.iter().filter_map(|&node| of_node(node, "distance").map(numbers)).collect(),
            node_cpus,
            online,
            huge_pages: chosen("enabled"),
            huge_defrag: chosen("defrag"),
            total: kib("MemTotal").map(|kib| kib / page_kib),
            page_kib,
            groups: root.limited_groups().iter().filter_map(|path| group(root, path)).collect(),
            uptime: file("proc/uptime").and_then(|text| text.split_whitespace().next()?.parse().ok()),
            period: "since boot".to_owned(),
        })
    }

    /// Whether its counters may be those that `later` has gone on from: of the same kernel, and not after it.
    pub fn may_precede(&self, later: &Self) -> bool {
        let in_turn = |(then, now)| then <= now;
        self.release == later.release && self.uptime.zip(later.uptime).is_none_or(in_turn)
    }

    /// This state with only what was counted since `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let moved = |(name, value): (&String, &u64)| {
            (name.clone(), value.saturating_sub(earlier.vmstat.get(name).copied().unwrap_or(0)))
        };
        let seconds = self.uptime.zip(earlier.uptime).map(|(now, then)| now - then);
        let period = match seconds {
            Some(seconds) if seconds >= 120.0 => format!("in the last {:.0} minutes", seconds / 60.0),
            Some(seconds) => format!("in the last {seconds:.0} s"),
            None => "since the earlier state".to_owned(),
        };
        Self { vmstat: self.vmstat.iter().map(moved).collect(), period, ..self.clone() }
    }

    /// Pages in MiB.
    pub const fn mib(&self, pages: u64) -> u64 {
        pages.saturating_mul(self.page_kib) >> 10
    }

    /// Version of the kernel, if its release says one.
    pub fn kernel(&self) -> Option<Kernel> {
        Kernel::parse(&self.release)
    }

    /// The setting that gives per-CPU lists a fraction of each zone, by this kernel's name for it, and its value: 0 for
    /// the kernel's own rule. Linux v5.14 renamed it.
    pub fn list_fraction(&self) -> (&'static str, u32) {
        let old = self.kernel().is_some_and(|kernel| kernel < Kernel(5, 14));
        let name = if old { "percpu_pagelist_fraction" } else { "percpu_pagelist_high_fraction" };
        (name, self.sysctl.get(name).map_or(0, |&value| value.max(0) as u32))
    }

    /// A counter of `/proc/vmstat`; 0 if this kernel has none.
    pub fn counter(&self, name: &str) -> u64 {
        self.vmstat.get(name).copied().unwrap_or(0)
    }

    /// The counter of this name, and those of zones under it: `pgalloc` is `pgalloc_normal` and others. What else
    /// begins so counts something else (`pgscan_direct_throttle`), or the same again (`thp_fault_fallback_charge`).
    pub fn counters(&self, name: &str) -> u64 {
        let is_of_zone = |rest: &str| rest.strip_prefix('_').is_some_and(|zone| ZONES.contains(&zone));
        let counts =
            |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.is_empty() || is_of_zone(rest));
        self.vmstat.iter().filter(|(known, _)| counts(known)).map(|(_, value)| value).sum()
    }
}

/// The size of a page, by the free memory in pages and in KiB, which are read one after the other; 4 where that is not
/// said.
fn page_kib(pages: u64, kib: Option<u64>) -> u64 {
    let is_of =
        |size: &u64| kib.is_some_and(|kib| (size * 3 / 4..size * 3 / 2).contains(&(kib / pages.max(1))));
    [16, 64].into_iter().find(is_of).unwrap_or(4)
}

/// Memory figures of a control group.
fn group(root: &Root, path: &str) -> Option<Group> {
    let (limit, [used, killed]) = root.memory_limit(path)?;
    let events = root.of_group(path, killed).unwrap_or_default();
    let killed = events.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Some(Group {
        path: path.to_owned(),
        limit,
        used: root.of_group(path, used).ok()?.trim().parse().ok()?,
        killed: killed.and_then(|count| count.trim().parse().ok()).unwrap_or(0),
    })
}

/// Zones in names of counters.
const ZONES: [&str; 6] = ["dma", "dma32", "normal", "high", "movable", "device"];

/// The settings that are looked at.
const SETTINGS: [&str; 6] = [
    "zone_reclaim_mode",
    "min_free_kbytes",
    "watermark_scale_factor",
    "watermark_boost_factor",
    "percpu_pagelist_high_fraction",
    "percpu_pagelist_fraction",
];

/// Number of CPUs in a list such as `0-3,8`.
fn cpus(text: &str) -> u32 {
    let length = |range: RangeInclusive<usize>| {
        range.end().checked_sub(*range.start())?.checked_add(1)?.try_into().ok()
    };
    proc::ranges(text).map(|range| length(range).unwrap_or(0)).fold(0, u32::saturating_add)
}

/// `Node 0, zone   Normal      1      0 …`.
fn buddyinfo(line: &str) -> Option<(u32, String, Vec<u64>)> {
    let (node, rest) = line.strip_prefix("Node ")?.split_once(", zone")?;
    let mut words = rest.split_whitespace();
    let name = words.next()?.to_owned();
    Some((node.trim().parse().ok()?, name, words.map(|word| word.parse().ok()).collect::<Option<_>>()?))
}

/// Zones of `/proc/zoneinfo`; or the line that cannot be understood, and why.
pub(crate) fn zoneinfo(text: &str) -> core::result::Result<Vec<Zone>, (usize, String)> {
    let mut zones: Vec<Zone> = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let refuse =
            |what: &str| (number, format!("{what}: `{}`", line.trim().chars().take(80).collect::<String>()));
        if let Some(rest) = line.strip_prefix("Node ") {
            let (node, zone) =
                rest.split_once(", zone").ok_or_else(|| refuse("expected `Node N, zone NAME`"))?;
            let node = node.trim().parse().map_err(|_| refuse("expected a node's number"))?;
            zones.push(Zone { node, name: zone.trim().to_owned(), ..Zone::default() });
            continue;
        }
        let Some(zone) = zones.last_mut() else { continue };
        let mut words = line.split_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        // `pages free 123`; every other figure has one word before it.
        let (name, value) =
            if first == "pages" { (second.unwrap_or_default(), words.next()) } else { (first, second) };
        let place = match name {
            "cpu:" => {
                let cpu = value
                    .and_then(|value| value.parse().ok())
                    .ok_or_else(|| refuse("expected a CPU's number"))?;
                zone.pagesets.push((cpu, Pageset::default()));
                continue;
            }
            "count:" | "high:" | "batch:" | "high_min:" | "high_max:" => {
                let Some((_, set)) = zone.pagesets.last_mut() else { continue };
                let bounds = set.bounds.get_or_insert_default();
                match name {
                    "count:" => &mut set.count,
                    "high:" => &mut set.high,
                    "batch:" => &mut set.batch,
                    "high_min:" => &mut bounds.0,
                    _ => &mut bounds.1,
                }
            }
            "free" => &mut zone.free,
            "boost" => &mut zone.boost,
            "min" => &mut zone.min,
            "low" => &mut zone.low,
            "high" => &mut zone.high,
            "present" => &mut zone.present,
            "managed" => &mut zone.managed,
            "start_pfn:" => &mut zone.start,
            _ => continue,
        };
        *place =
            value.and_then(|value| value.parse().ok()).ok_or_else(|| refuse("expected a whole number"))?;
    }
    if zones.is_empty() {
        return Err((1, "no line begins with `Node`; expected /proc/zoneinfo".to_owned()));
    }
    // Kernels like v3.0 do not tell the two apart.
    if !text.lines().any(|line| line.trim_start().starts_with("managed")) {
        zones.iter_mut().for_each(|zone| zone.managed = zone.present);
    }
    // Kernels before v6.7 have no bounds.
    for (_, set) in zones.iter_mut().flat_map(|zone| &mut zone.pagesets) {
        set.bounds = set.bounds.filter(|bounds| *bounds != (0, 0));
    }
    Ok(zones)
}
