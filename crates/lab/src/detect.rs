//! This machine as a description in the format of `machines/*.toml`: what it says of itself, and what half a minute of
//! measurement says of its parts. Every field says where it comes from.

mod clock;
mod contend;
mod cpuid;
mod measure;
mod system;

use std::path::Path;
use std::time::Instant;

use framewright_report::error::{Error, Result};
use framewright_report::host::Host;
use framewright_workload::probe;

use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::progress::Progress;

use measure::{Field, Measured};
use system::System;

/// A description of this machine.
#[derive(Debug)]
pub struct Detected {
    /// The description as TOML.
    pub text: String,
    /// A line for each thing that could not be read or measured, or that makes what was measured doubtful.
    pub missing: Vec<String>,
}

/// Describes this machine, by its `/proc` and `/sys` below `root`. Takes half a minute; where other programs have the
/// CPUs it measures less, and takes less. Figures that are not yet measured when `stop` is raised are assumptions.
///
/// # Errors
/// The figures make no valid description of a machine; the error names the reason.
pub fn detect(root: &Path, stop: &Interrupt) -> Result<Detected> {
    let begin = Instant::now();
    let allowed = probe::allowed_cpus();
    let host = Host::probe();
    let system = System::read(root, &allowed, probe::page_kib());
    let progress = Progress::until(stop, "detect", 3);
    progress.doing("caches and memory");
    let mut measured = Measured::of(&system, &allowed, stop);
    let mut missing = system.unread.clone();
    missing.extend(measured.missing.clone());
    let text = |measured: &Measured, missing: &[String]| {
        let text = written(&host, &system, measured, begin.elapsed().as_secs_f64(), missing);
        let what = |error: Error| Error::failed(format_args!("this machine cannot be described: {error}"));
        Machine::parse_text("detected.toml", &text).map(|machine| (text, machine)).map_err(what)
    };
    // Where threads are preempted, a run of the allocator takes many times as long, and says nothing of the machine.
    if !measured.is_disturbed {
        let (_, machine) = text(&measured, &missing)?;
        progress.step("an allocator on one CPU");
        match contend::access(&machine, &mut measured, stop) {
            Ok(field) => measured.set_access(field),
            Err(error) => missing.push(format!("access: {error}: accesses of code like an allocator's")),
        }
        let (_, machine) = text(&measured, &missing)?;
        if allowed.len() > 1 && machine.cpus() > 1 {
            progress.step("a zone's lock on two CPUs");
            match contend::store_exposed(&machine, stop) {
                Ok(field) => measured.store_exposed = Some(field),
                Err(error) => missing.push(format!("store_exposed: {error}: an assumption")),
            }
        }
        measured.look(&allowed);
        // Where a core's threads are known, what they cost one another is `smt_yield`.
        if cpuid::hypervisor().is_some() && machine.threads_per_core == 1 {
            measured.set_core_shared();
        }
        missing.extend(measure::disturbance(&system, &allowed).filter(|_| !stop.is_raised()));
    }
    let (text, _) = text(&measured, &missing)?;
    Ok(Detected { text, missing })
}

/// The name of a machine with this processor: small letters, digits and dashes.
fn name_of(cpu: &str, cpus: usize) -> String {
    let mut name = String::new();
    for letter in cpu.chars() {
        if letter.is_ascii_alphanumeric() {
            name.push(letter.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    format!("{}-{cpus}cpu", name.trim_end_matches('-'))
}

fn written(host: &Host, system: &System, measured: &Measured, seconds: f64, missing: &[String]) -> String {
    let mut text = String::new();
    let cores = system.count(|place| place.core);
    let nodes = system.count(|place| place.node);
    let sockets = system.count(|place| place.package);
    let l3s = system.count(|place| (place.l3, place.node));
    let from = system.topology_from;
    // The format has as many nodes for each socket, or as many sockets for each node, and as many cores for each.
    let in_all = nodes * cores.div_ceil(nodes);
    let shared_out =
        (nodes.is_multiple_of(sockets) || sockets.is_multiple_of(nodes)) && in_all.is_multiple_of(sockets);
    let sockets = if shared_out { sockets } else { nodes };
    let present = |node: u32| -> u64 {
        system.zones.iter().filter(|zone| zone.node == node).map(|zone| zone.present_pages).sum()
    };
    let most = (0..nodes as u32).map(present).max().unwrap_or(0);
    let gib = (most * u64::from(probe::page_kib())).div_ceil(1 << 20).max(1);
    let mut line = |what: String| {
        text += &what;
        text.push('\n');
    };
    line("# This machine, as `framewright machines --detect` found it. Each field says where it comes from; low and high".to_owned());
    line(
        "# of what was measured are the shortest burst and the median, if nothing else is said.\n".to_owned(),
    );
    line(format!(
        "name = {:?} # the processor's name and the number of CPUs",
        name_of(&host.cpu, system.cpus.len())
    ));
    line(format!("cpu = {:?} # /proc/cpuinfo", host.cpu));
    let unread = if missing.is_empty() { String::new() } else { format!("; {}", missing.join("; ")) };
    let source = format!(
        "topology: {from}; zones: {}; transfers, latencies and bandwidth: measured in {seconds:.1} s under {}{unread}",
        system.zones_from, system.kernel
    );
    line(format!("source = {source:?}"));
    if let Some(hypervisor) = cpuid::hypervisor() {
        line(format!("guest_of = {hypervisor:?} # CPUID"));
    }
    line(format!("sockets = {sockets} # {from}"));
    line(format!("nodes = {nodes} # {from}: nodes with CPUs"));
    line(format!("cores_per_node = {} # {from}: {cores} cores, rounded up", cores.div_ceil(nodes)));
    let threads = system.cpus.len().div_ceil(cores);
    line(format!("threads_per_core = {threads} # {from}"));
    line(format!("cores_per_l3 = {} # {from}: {l3s} last-level caches", cores.div_ceil(l3s)));
    line(measured.cycle.line("frequency_mhz"));
    line(format!("page_kib = {} # the system's page size", probe::page_kib()));
    line(format!("gib_per_node = {gib} # the zones below, rounded up"));
    if nodes > 1 {
        let distance = system.distances.iter().copied().max().filter(|far| *far > 10);
        let how = if distance.is_some() {
            "sysfs: the farthest of node 0"
        } else {
            "an assumption: sysfs has none"
        };
        line(format!("remote_distance = {} # {how}", distance.unwrap_or(20)));
    }
    line("lock_kind = \"queued\" # Linux since v4.2 on x86, since v4.19 on Arm".to_owned());
    for (name, field) in [
        ("smt_yield", &measured.smt_yield),
        ("core_shared", &measured.core_shared),
        ("store_exposed", &measured.store_exposed),
    ] {
        if let Some(field) = field {
            line(field.line(name));
        }
    }
    for (table, fields) in [
        ("latency_ns", &measured.latency),
        ("bandwidth_gbps", &measured.bandwidth),
        ("cycles", &measured.cycles),
        ("cache_kib", &measured.caches),
    ] {
        line(format!("\n[{table}]"));
        fields.iter().for_each(|(name, field)| line(field.line(name)));
    }
    zones_written(system).into_iter().for_each(&mut line);
    text
}

/// A table for each zone.
fn zones_written(system: &System) -> Vec<String> {
    let tables = system.zones.iter().map(|zone| {
        format!(
            "\n[[zone]] # {}\nnode = {}\ntype = \"{}\"\nstart_pfn = {}\npresent_pages = {}\nmanaged_pages = {}\n\
             early_managed_pages = {}",
            system.zones_from,
            zone.node,
            zone.kind,
            zone.start_pfn,
            zone.present_pages,
            zone.managed_pages,
            zone.early_managed_pages
        )
    });
    tables.collect()
}

impl Field {
    /// `name = { value = 89.0, source = "measured", low = 88.0, high = 91.0 } # how`.
    fn line(&self, name: &str) -> String {
        let ends = match (self.low, self.high) {
            (Some(low), Some(high)) => format!(", low = {:?}, high = {:?}", rounded(low), rounded(high)),
            _ => String::new(),
        };
        // What was read is exact.
        let value = if self.low.is_some() { rounded(self.value) } else { self.value };
        format!("{name} = {{ value = {value:?}, source = \"{}\"{ends} }} # {}", self.source, self.how)
    }
}

/// To four digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::machine::ZoneKind;

    /// A machine of two nodes in two sockets, two cores of two threads each.
    fn fake(name: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("framewright-detect-{name}-{}", std::process::id()));
        let mut files = vec![
            ("proc/sys/kernel/osrelease".to_owned(), "6.1.0\n".to_owned()),
            ("proc/meminfo".to_owned(), "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n".to_owned()),
            (
                "proc/zoneinfo".to_owned(),
                "Node 1, zone   Normal\n        present  2097152\n        managed  2000000\n  start_pfn:           3145728\n\
                 Node 0, zone      DMA\n  pages free     3\n        present  3998\n        managed  3840\n  start_pfn:           1\n\
                 Node 0, zone  Movable\n        present  0\n        managed  0\n  start_pfn:           0\n\
                 Node 0, zone   Normal\n        present  2000000\n        managed  1900000\n  start_pfn:           1048576\n"
                    .to_owned(),
            ),
            ("sys/devices/system/cpu/online".to_owned(), "0-7\n".to_owned()),
            ("sys/devices/system/node/online".to_owned(), "0-1\n".to_owned()),
            ("sys/devices/system/node/node0/cpulist".to_owned(), "0-1,4-5\n".to_owned()),
            ("sys/devices/system/node/node1/cpulist".to_owned(), "2-3,6-7\n".to_owned()),
            ("sys/devices/system/node/node0/distance".to_owned(), "10 32\n".to_owned()),
        ];
        for cpu in 0..8 {
            let of_cpu = |file: &str| format!("sys/devices/system/cpu/cpu{cpu}/{file}");
            let (core, package) = (cpu % 4, cpu % 4 / 2);
            let shared =
                format!("{}-{},{}-{}", 2 * package, 2 * package + 1, 2 * package + 4, 2 * package + 5);
            files.push((of_cpu("topology/thread_siblings_list"), format!("{core},{}\n", core + 4)));
            files.push((of_cpu("topology/physical_package_id"), format!("{package}\n")));
            files.push((of_cpu("cache/index3/shared_cpu_list"), shared));
            for (index, level, kind, size) in [
                (0, 1, "Data", "48K"),
                (1, 1, "Instruction", "32K"),
                (2, 2, "Unified", "1024K"),
                (3, 3, "Unified", "32M"),
            ] {
                files.push((of_cpu(&format!("cache/index{index}/level")), format!("{level}\n")));
                files.push((of_cpu(&format!("cache/index{index}/type")), format!("{kind}\n")));
                files.push((of_cpu(&format!("cache/index{index}/size")), format!("{size}\n")));
            }
        }
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("made");
            fs::write(path, content).expect("written");
        }
        root
    }

    #[test]
    fn what_sysfs_says_becomes_a_machine() {
        let root = fake("whole");
        let system = System::read(&root, &[0], 4);
        fs::remove_dir_all(&root).expect("removed");
        assert_eq!(system.unread, [""; 0]);
        let text = written(&Host::default(), &system, &Measured::default(), 0.0, &[]);
        let machine =
            Machine::parse_text("detected.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(
            (machine.sockets, machine.nodes, machine.cores_per_node, machine.threads_per_core),
            (2, 2, 2, 2)
        );
        assert_eq!(
            (machine.cores_per_l3, machine.remote_distance, machine.gib_per_node),
            (Some(2), Some(32), 8)
        );
        let kinds: Vec<ZoneKind> = machine.zones.iter().map(|zone| zone.kind).collect();
        assert_eq!(
            kinds,
            [ZoneKind::Dma, ZoneKind::Normal, ZoneKind::Normal],
            "by address, without empty ones"
        );
        let caches = system.caches.map(|cache| cache.expect("a size").kib);
        assert_eq!(caches, [48.0, 1024.0, 32768.0]);
        for line in text.lines().filter(|line| line.contains("source = \"")) {
            assert!(
                line.starts_with("source") || line.contains(" # "),
                "it says where it comes from: {line}"
            );
        }
    }

    /// Memory without CPUs, as of an expander; CPUs without memory; numbers with gaps; a container without sysfs.
    #[test]
    fn nodes_are_those_with_cpus_and_memory_counted_from_0() {
        let root = fake("nodes");
        let node = |n: u32| format!("sys/devices/system/node/node{n}");
        let write = |path: &str, text: &str| fs::write(root.join(path), text).expect("written");
        let nodes = || {
            let system = System::read(&root, &[0], 4);
            let text = written(&Host::default(), &system, &Measured::default(), 0.0, &system.unread);
            let machine =
                Machine::parse_text("detected.toml", &text).unwrap_or_else(|error| panic!("{error}"));
            let zones = machine.zones.iter().map(|zone| zone.node).collect::<Vec<_>>();
            (machine.nodes, machine.cpus(), zones, system.unread)
        };
        let zones = fs::read_to_string(root.join("proc/zoneinfo")).expect("there");
        let second = "        present  2097152\n        managed  2000000\n  start_pfn:           3145728\n";
        fs::rename(root.join(node(1)), root.join(node(8))).expect("renamed");
        write("sys/devices/system/node/online", "0,8\n");
        write("proc/zoneinfo", &zones.replace("Node 1,", "Node 8,"));
        assert_eq!(nodes(), (2, 8, vec![0, 0, 1], Vec::new()));

        write("sys/devices/system/node/online", "0,2,8\n");
        fs::create_dir(root.join(node(2))).expect("made");
        write(&format!("{}/cpulist", node(2)), "\n");
        let expander = second.replace("3145728", "9437184");
        write(
            "proc/zoneinfo",
            &format!("{}Node 2, zone  Movable\n{expander}", zones.replace("Node 1,", "Node 8,")),
        );
        let unread = "node 2 has memory and no CPUs: its zones are left out".to_owned();
        assert_eq!(nodes(), (2, 8, vec![0, 0, 1], vec![unread]));

        write(
            "proc/zoneinfo",
            zones
                .split_once("Node 0")
                .map_or("", |(_, rest)| rest)
                .replacen(", zone", "Node 0, zone", 1)
                .as_str(),
        );
        assert_eq!(nodes(), (1, 8, vec![0, 0], Vec::new()));

        fs::remove_dir_all(root.join("sys")).expect("removed");
        write("proc/zoneinfo", &zones);
        let (count, cpus, zones, _) = nodes();
        assert_eq!((count, cpus, zones), (1, 1, vec![0, 0, 0]));
        fs::remove_dir_all(&root).expect("removed");
    }

    /// As on a guest that initialises its memory when it is needed: a quarter of the zone was there.
    #[test]
    fn memory_that_is_not_initialised_yet_counts_as_managed_later() {
        let root = fake("deferred");
        let zones = fs::read_to_string(root.join("proc/zoneinfo")).expect("there");
        let (here, later) = ("managed  2000000", "managed  500000");
        assert!(zones.contains(here));
        fs::write(root.join("proc/zoneinfo"), zones.replace(here, later)).expect("written");
        let managed = |total_pages: u64| {
            let text = format!("MemTotal: {} kB\n", 4 * total_pages);
            fs::write(root.join("proc/meminfo"), text).expect("written");
            let zones = System::read(&root, &[0], 4).zones;
            zones.iter().map(|zone| (zone.early_managed_pages, zone.managed_pages)).collect::<Vec<_>>()
        };
        let early = [3840, 1_900_000, 500_000];
        let brought =
            |more: u64| early.map(|pages| (pages, if pages == 500_000 { pages + more } else { pages }));
        assert_eq!(managed(early.iter().sum::<u64>() + 1_000_000), brought(1_000_000));
        assert_eq!(managed(early.iter().sum::<u64>() + 100), brought(0), "counts that differ by a moment");
        fs::remove_dir_all(&root).expect("removed");
    }

    #[test]
    fn without_sysfs_there_is_a_line_and_a_machine() {
        let root = std::env::temp_dir().join("framewright-detect-none");
        let system = System::read(&root, &[3, 5], 4);
        assert!(
            system.unread.iter().any(|line| line.starts_with("sysfs has no topology")),
            "{:?}",
            system.unread
        );
        assert!(system.unread.iter().any(|line| line.starts_with("/proc/zoneinfo")), "{:?}", system.unread);
        let text = written(&Host::default(), &system, &Measured::default(), 0.0, &system.unread);
        let machine =
            Machine::parse_text("detected.toml", &text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(machine.cpus(), 2);
        assert!(machine.source.contains("sysfs has no topology"));
    }

    #[test]
    fn lists_of_cpus_and_clocks_are_read() {
        let cpus = "processor\t: 0\ncpu MHz\t\t: 2100.125\ncache size\t: 48 KB\nprocessor\t: 1\ncpu MHz\t\t: 1900.5\n";
        assert_eq!(system::least_mhz(cpus), Some(1900.5));
        assert_eq!(system::least_mhz("processor\t: 0\nBogoMIPS\t: 243.75\n"), None, "as of Arm");
        assert_eq!(system::least_mhz("cpu MHz\t\t: 0.000\n"), None);
        assert_eq!(name_of("AMD EPYC (9B45)", 2), "amd-epyc-9b45-2cpu");
    }
}
