use framewright::ZoneType;
use framewright::config::{Experiment, ZonelistCache};
use framewright::policy::reclaim::ZoneReclaimMode;

use super::*;
use crate::model::testing;

const MIB: u64 = 1 << 20;

/// Two nodes of one core each, and a disk of 100 MB/s.
fn model() -> Model {
    let (call, page, fault) = (400.0, 1000.0, 1200.0);
    let model = testing::round(1);
    Model {
        shape: Shape { sockets: 2, nodes: 2, ..model.shape },
        storage: Some(Storage { seek: 9e6, rotation: 4e6, mbps: 100.0, call, page, fault }),
        ..model
    }
}

/// Two zones of 4 MiB on node 0, and one of 4 or more on node 1.
fn zones(mib: u64) -> [ZoneSpec; 3] {
    let zone = |node, kind, start, pages| ZoneSpec { node: NodeId(node), kind, start: Pfn(start), pages };
    let last = mib * MIB / PAGE as u64 - 2048;
    [
        zone(0, ZoneType::Dma32, 0, 1024),
        zone(0, ZoneType::Normal, 1024, 1024),
        zone(1, ZoneType::Normal, 2048, last),
    ]
}

fn config(cache: ZonelistCache) -> Config {
    Config {
        zone_reclaim: ZoneReclaimMode::ON,
        experiment: Experiment { zonelist_cache: cache, ..Config::linux_v3_0().experiment },
        ..Config::linux_v3_0()
    }
}

fn outcome(model: &Model, cache: ZonelistCache, program: &Program, mib: u64, seed: u64) -> Outcome {
    let load = Load { program, zones: &zones(mib), distances: &[10, 20, 20, 10], share: 1.0 };
    run(model, config(cache), &load, seed).expect("it ends, and the disk holds what was written")
}

#[test]
fn every_program_ends_and_the_disk_holds_what_was_written() {
    let memory = 12 * MIB;
    let programs = [
        Program::fs_mark(memory, 3, 2),
        Program::large_dd(memory),
        Program::mapped_writer(memory, 4096, 2, 30),
    ];
    for program in programs {
        let out = outcome(&model(), ZonelistCache::AfterFirstZone, &program, 12, 1);
        assert_eq!(out.stretches.len(), program.tasks() as usize);
        assert!(out.user < out.elapsed && out.system.0 > 0, "{program:?}");
        let pages = match program {
            Program::FsMark { tasks, loops, files, file_bytes, .. } => {
                u64::from(tasks * loops * files) * file_bytes / 4096
            }
            Program::LargeDd { bytes, copies, .. } => bytes / 4096 * u64::from(copies + 1),
            Program::MappedWriter { tasks, pages } => u64::from(tasks) * pages,
        };
        assert!(out.cache.pgpgout >= pages, "{program:?}: {} of {pages} written", out.cache.pgpgout);
        // At 100 MB/s, whatever else happens.
        let least = Ps(pages * 40_960_000);
        assert!(out.elapsed >= least, "{program:?}: {:?} for {least:?}", out.elapsed);
        let freed: u64 = out.zones.iter().map(|zone| zone.pgsteal_direct + zone.pgsteal_kswapd).sum();
        assert_eq!(freed > 0, pages * 4096 > memory, "{program:?}: more than memory is written, or less");
    }
}

#[test]
fn a_seed_is_a_run() {
    let program = Program::fs_mark(12 * MIB, 4, 1);
    let hash = |seed| outcome(&model(), ZonelistCache::AfterFirstZone, &program, 12, seed).events;
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1).hash, hash(2).hash);
}

#[test]
fn a_hint_before_the_first_zone_saves_scans() {
    let program = Program::large_dd(24 * MIB);
    let scans = |cache| outcome(&model(), cache, &program, 24, 1).nodes.zone_reclaim_scans;
    let (after, before) = (scans(ZonelistCache::AfterFirstZone), scans(ZonelistCache::BeforeFirstZone));
    assert!(before * 3 < after * 2, "{before} for {after}");
}

#[test]
fn a_faster_disk_is_faster() {
    let program = Program::mapped_writer(12 * MIB, 4096, 2, 30);
    let elapsed = |change: fn(&mut Storage)| {
        let mut model = model();
        model.storage.iter_mut().for_each(change);
        // One short run is off by a third of itself.
        let runs = (1..=3).map(|seed| outcome(&model, ZonelistCache::AfterFirstZone, &program, 12, seed));
        runs.map(|outcome| outcome.elapsed.as_ns()).sum::<f64>()
    };
    let plain = elapsed(|_| ());
    assert!(elapsed(|storage| storage.mbps *= 4.0) < 0.7 * plain);
    assert!(elapsed(|storage| (storage.seek, storage.rotation) = (0.0, 0.0)) < 0.95 * plain);
    assert!(elapsed(|storage| storage.fault *= 2.0) < 1.1 * plain, "it waits for the disk, not for a CPU");
}

#[test]
fn a_page_holds_what_was_written_last() {
    let mut page = Content::default();
    let mut plain = [0_u8; 64];
    for (n, (offset, len)) in [(20, 10), (40, 8), (10, 15), (0, 1), (18, 30), (60, 4)].into_iter().enumerate()
    {
        let bytes = vec![n as u8 + 1; len];
        page.write(offset, &bytes);
        plain[offset..offset + len].copy_from_slice(&bytes);
        let mut found = [9; 64];
        page.read(0, &mut found);
        assert_eq!(found, plain);
        page.read(17, &mut found[..5]);
        assert_eq!(found[..5], plain[17..22]);
    }
}

#[test]
fn everybody_has_a_cpu_of_the_right_node() {
    let (model, roles) = cast(&model(), 5);
    assert_eq!(roles.len(), 5 + 2 + 1);
    for (&cpu, role) in &roles {
        assert_eq!(model.shape.node_of(cpu), u16::from(*role == Role::Background(1)), "{role:?}");
    }
}
