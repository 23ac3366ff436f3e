//! Findings in the files of real kernels: packaged ones of five versions, booted in an emulator as machines of
//! several shapes and with faults of their own. `kernel/snapshots` makes them, and describes the fault of each.

use std::path::PathBuf;

use framewright::policy::pcp::{BATCH_CAP, sharing_cpus, size};

use super::checks::rule;
use super::{Finding, Root, Severity, State, examine};
use Severity::{Error, Info, Warning};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots");

fn read(name: &str) -> (State, Vec<Finding>) {
    let path = PathBuf::from(FOLDER).join(format!("{name}.tar.gz"));
    let root = Root::open(&path).unwrap_or_else(|error| panic!("{error}"));
    examine(&root, None).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A finding by id, severity, zone, and some of what was read.
type Expected = (&'static str, Severity, &'static str, &'static str);

/// Every snapshot with a fault or a setting, and all that is to be found in it.
const FAULTS: [(&str, &[Expected]); 12] = [
    // Lists were sized while a balloon held nearly all memory, which then came back.
    (
        "linux-5.10-sized-early",
        &[
            ("pcp-undersized", Error, "node 0 DMA32", "batch 31, high 186 on CPU 0"),
            (
                "pcp-undersized",
                Error,
                "node 0 Normal",
                "batch 3, high 18 on CPU 0, and too small on 2 of 2 CPUs",
            ),
        ],
    ),
    (
        "linux-6.1-sized-early",
        &[
            ("pcp-undersized", Error, "node 0 DMA32", "batch 31, high 3921 on CPU 0"),
            ("pcp-undersized", Error, "node 0 Normal", "batch 3, high 6617 on CPU 0"),
        ],
    ),
    (
        "linux-7.3-sized-early",
        &[
            ("pcp-undersized", Error, "node 0 DMA32", "batch 31, high_min 3913, high_max 7730 on CPU 0"),
            ("pcp-undersized", Error, "node 0 Normal", "batch 3, high_min 6625, high_max 1498 on CPU 0"),
        ],
    ),
    // The balloon still holds the memory.
    (
        "linux-6.12-ballooned",
        &[
            ("zone-not-managed", Warning, "node 0 DMA32", "managed 614332 of 782304 present pages (79 %)"),
            ("zone-not-managed", Warning, "node 0 Normal", "(3 %)"),
            ("below-watermark", Info, "node 0 Normal", "free 9528 pages; min 8448, low 10560"),
        ],
    ),
    // Memory is kept for a kernel that would write a dump.
    (
        "linux-6.18-crash-kernel",
        &[
            ("zone-not-managed", Warning, "node 0 DMA32", "(88 %)"),
            ("zone-not-managed", Warning, "node 0 Normal", "managed 496010 of 786432 present pages (63 %)"),
        ],
    ),
    ("linux-5.10-fraction", &[("pcp-fraction-set", Info, "", "vm.percpu_pagelist_fraction = 8")]),
    ("linux-6.12-fraction", &[("pcp-fraction-set", Info, "", "vm.percpu_pagelist_high_fraction = 16")]),
    ("linux-5.10-reclaim", &[("zone-reclaim-on", Warning, "", "the farthest node is at distance 21")]),
    ("linux-6.18-reclaim-far", &[("zone-reclaim-on", Info, "", "the farthest node is at distance 40")]),
    // Every other page is free, and those between them cannot be moved; then a program wanted huge pages.
    (
        "linux-6.1-scattered",
        &[
            ("fragmented", Warning, "node 0 DMA32", "92 % of 823 MiB free are in blocks below order 9"),
            ("compaction-failing", Warning, "", "compact_fail 27311, compact_success 0 (100 % failed)"),
            ("allocation-stalls", Warning, "", "allocstall 9125"),
            ("huge-faults-fail", Warning, "", "(76 % fell back)"),
        ],
    ),
    // A program wanted twice the machine's memory.
    ("linux-6.12-killed", &[("oom-kills", Warning, "", "oom_kill 1 since boot")]),
    // A program of one node's CPU wanted more than the node has.
    (
        "linux-6.18-spilled",
        &[
            ("huge-faults-fail", Warning, "", "(40 % fell back)"),
            ("below-watermark", Info, "node 0 DMA32", "free 8176 pages; min 8119, low 10148"),
            ("remote-allocations", Info, "", "numa_miss 153190 of 162745 allocations (94 %)"),
        ],
    ),
];

/// Machines with nothing done to them.
const SOUND: [&str; 15] = [
    "linux-5.10-small",
    "linux-5.10-large",
    "linux-5.10-nodes",
    "linux-6.1-small",
    "linux-6.1-large",
    "linux-6.1-nodes",
    "linux-6.12-small",
    "linux-6.12-large",
    "linux-6.12-nodes",
    "linux-6.18-small",
    "linux-6.18-large",
    "linux-6.18-nodes",
    "linux-7.3-small",
    "linux-7.3-large",
    "linux-7.3-nodes",
];

#[test]
fn what_was_done_to_a_machine_is_found_and_nothing_else() {
    for (name, expected) in FAULTS {
        let (_, findings) = read(name);
        let found: Vec<_> = findings
            .iter()
            .map(|found| (found.id, found.severity, found.zone.as_deref().unwrap_or("")))
            .collect();
        let wanted: Vec<_> = expected.iter().map(|&(id, severity, zone, _)| (id, severity, zone)).collect();
        assert_eq!(found, wanted, "{name}: {findings:#?}");
        for (finding, (.., read)) in findings.iter().zip(expected) {
            assert!(finding.read.contains(read), "{name}: {finding:#?}");
        }
    }
}

#[test]
fn nothing_is_found_in_a_sound_machine() {
    for name in SOUND {
        let (_, findings) = read(name);
        assert!(findings.is_empty(), "{name}: {findings:#?}");
    }
}

#[test]
fn every_snapshot_is_looked_at() {
    let mut there: Vec<String> = std::fs::read_dir(FOLDER)
        .expect("the snapshots")
        .map(|entry| entry.expect("listed").file_name().to_string_lossy().replace(".tar.gz", ""))
        .collect();
    let mut known: Vec<String> =
        SOUND.iter().chain(FAULTS.iter().map(|(name, _)| name)).map(|&name| name.to_owned()).collect();
    there.sort();
    known.sort();
    assert_eq!(there, known);
}

/// The allocator's rules give exactly the batch and `high`, or its lower bound, that each kernel shows: of every zone,
/// for every CPU. The upper bound is as exact as what the kernel managed when it sized the lists.
#[test]
fn the_rules_give_what_real_kernels_have() {
    let mut compared = 0;
    for name in SOUND {
        let (state, _) = read(name);
        let kernel = state.kernel().expect("a release");
        let fraction = state.list_fraction().1;
        for zone in &state.zones {
            let cpus = sharing_cpus(state.node_cpus[&zone.node], state.online);
            let right = size(rule(kernel), zone.managed, zone.low, cpus, fraction, BATCH_CAP);
            for (cpu, set) in &zone.pagesets {
                let what = format!("{name}: {} on CPU {cpu}: {set:?}, {right:?}", zone.title());
                assert_eq!(set.batch, u64::from(right.batch), "{what}");
                let bounds = (u64::from(right.high_min), u64::from(right.high_max));
                match set.bounds {
                    Some((least, most)) => {
                        assert_eq!(least, bounds.0, "{what}");
                        // The kernel frees its first root file system, and more, after it has sized the lists.
                        assert!(most <= bounds.1 && most > bounds.1 - bounds.1 / 32, "{what}");
                    }
                    None if bounds.0 == bounds.1 => assert_eq!(set.high, bounds.1, "{what}"),
                    // 6.7 to 6.12 tune `high` and do not show its bounds; it begins at 0.
                    None => assert!(set.high <= bounds.1, "{what}"),
                }
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "{compared}");
}
