//! Boot on a simulated machine: all memory comes, bandwidth bounds it, and described memory takes none of the host's.

use core::ops::Range;

use framewright::boot::zones::Part;
use framewright::policy::init::Split;
use framewright::{Config, NodeId, Pfn, ZoneSpec, ZoneType};
use framewright_sim::Model;
use framewright_sim::boot::{Outcome, boot};
use framewright_sim::world::BootMemory;

use crate::machine::socket;

const SECTION: u64 = 32 << 10;
const GIB: u64 = 1 << 18;

/// One range of `gib` GiB on the only node, of which boot initialises a section.
fn boot_gib(model: &Model, gib: u64, split: Split, workers: u16, seed: u64) -> Outcome {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: gib * GIB };
    let part = Part { present: zone.pages, deferred_from: Pfn(SECTION) };
    let free: [Range<Pfn>; 1] = [Pfn(0)..zone.end()];
    let memory = BootMemory { zones: &[zone], parts: &[part], free: &free, section: SECTION, split, workers };
    boot(model, &memory, Config::linux_v5_4(), seed, 0).expect("a world")
}

/// Bytes of descriptors in GB for each ms.
fn gbps(outcome: &Outcome) -> f64 {
    outcome.pages as f64 * 64.0 / (outcome.ms * 1e6)
}

#[test]
fn one_worker_has_a_cores_bandwidth_and_all_have_the_nodes() {
    let model = socket(32);
    let small = boot_gib(&model, 8, Split::OneThread, 1, 1);
    assert_eq!(small.pages, 8 * GIB - SECTION);
    // Each line is read and written: half of 13 GB/s, less what the free lists take.
    assert!((6.0..6.5).contains(&gbps(&small)), "{}", gbps(&small));
    let all = boot_gib(&model, 8, Split::AllCpusBySection, 32, 1);
    assert!((50.0..65.0).contains(&gbps(&all)), "of 65 that 130 GB/s allow: {}", gbps(&all));
    let unbounded =
        [1, 32].map(|n| gbps(&boot_gib(&model.with_infinite_bandwidth(), 8, Split::AllCpusBySection, n, 1)));
    assert!(unbounded[0] > 2.0 * gbps(&small), "only claims and lists are left: {unbounded:?}");
}

#[test]
fn a_boot_repeats_and_follows_its_seed() {
    let hash = |seed| boot_gib(&socket(4), 2, Split::AllCpus, 4, seed).events.hash;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
}

#[test]
fn described_memory_takes_little_of_the_host() {
    let before = resident_mib();
    let outcome = boot_gib(&socket(16), 256, Split::AllCpusBySection, 16, 1);
    assert_eq!(outcome.pages, 256 * GIB - SECTION);
    let used = resident_mib() - before;
    // 4 GiB of descriptors.
    assert!(used < 128, "{used} MiB");
}

/// Most MiB that this process has had in memory.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("it is there");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
}
