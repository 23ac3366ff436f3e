//! Every rival does what it promises, and every workload runs on it.

use std::path::Path;

use framewright_rivals::*;
use framewright_workload::bench::{Case, Scale, Workload, interleave};
use framewright_workload::conformance;

const FRAMES: u64 = 1 << 13;

#[test]
fn vec_per_thread_conforms() {
    conformance::check(|frames, cpus| vec_per_thread::VecPerThread::new(frames, cpus).unwrap(), FRAMES)
        .unwrap();
}

#[test]
fn vec_mutex_conforms() {
    conformance::check(|frames, _| vec_mutex::VecMutex::new(frames).unwrap(), FRAMES).unwrap();
}

#[test]
fn buddy_system_allocator_conforms() {
    conformance::check(|frames, _| buddy_system_allocator::BuddySystem::new(frames).unwrap(), FRAMES)
        .unwrap();
}

#[test]
fn frame_alloc_conforms() {
    conformance::check(|frames, _| frame_alloc::FrameAlloc::new(frames).unwrap(), FRAMES).unwrap();
}

#[test]
fn frame_alloc_depot_conforms() {
    conformance::check(|frames, cpus| frame_alloc::FrameAllocDepot::new(frames, cpus).unwrap(), FRAMES)
        .unwrap();
}

#[cfg(feature = "jemalloc")]
#[test]
fn jemalloc_conforms() {
    conformance::check(jemalloc::Jemalloc::new, FRAMES).unwrap();
}

#[cfg(feature = "mimalloc")]
#[test]
fn mimalloc_conforms() {
    conformance::check(mimalloc::Mimalloc::new, FRAMES).unwrap();
}

#[test]
fn frame_alloc_refuses_what_it_cannot_do() {
    assert!(frame_alloc::FrameAllocDepot::new(FRAMES, 65).unwrap_err().contains("64 CPUs"));
    assert!(frame_alloc::FrameAlloc::new(u64::MAX).unwrap_err().contains("too many"));
    assert!(frame_alloc::FrameAlloc::new(1 << 50).unwrap_err().contains("cannot reserve"));
}

#[test]
fn every_workload_runs_on_every_rival() {
    let scale = Scale::tiny();
    let cases = Case::all(&Workload::ALL, &[0, 3, 9], &[1, 2]);
    let results = interleave(&mut runners(), &cases, &scale, 2, |_| true).unwrap();
    assert_eq!(results.len(), cases.len());
    let bounded = |name: &str| !["jemalloc", "mimalloc"].contains(&name);
    for result in results {
        for (rival, (name, failures)) in RIVALS.iter().zip(&result.failures) {
            assert_eq!(rival.name, name, "runners and their descriptions are in one order");
            // The one that shares nothing runs out where memory moves from thread to thread, the two that do
            // not coalesce where orders mix.
            let may_fail = match result.case.workload {
                Workload::Handoff => name == "vec_per_thread",
                Workload::Mixed | Workload::Fragmentation => !rival.coalesces,
                // It fills fifteen sixteenths of the memory: what a thread's cache or tree keeps back is missing.
                Workload::Filled => !rival.coalesces || name.starts_with("frame_alloc"),
                _ => false,
            };
            assert!(*failures == 0 || may_fail, "{}: {name}: {failures} failures", result.case);
        }
        for series in &result.series {
            let measured: Vec<_> = series.samples.iter().map(|(name, _)| name.as_str()).collect();
            let without_range =
                matches!(result.case.workload, Workload::Ready | Workload::Fragmentation | Workload::Stress);
            let expected: Vec<_> =
                RIVALS.iter().map(|r| r.name).filter(|name| !without_range || bounded(name)).collect();
            assert_eq!(measured, expected, "{}", series.name);
        }
    }
}

#[test]
fn versions_are_those_that_are_built() {
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    let lock = std::fs::read_to_string(&lock).unwrap();
    for rival in RIVALS.iter().filter(|rival| !rival.version.is_empty()) {
        let (name, version) = rival.version.split_once(' ').unwrap();
        let entry = format!("name = \"{name}\"\nversion = \"{version}\"");
        assert!(lock.contains(&entry), "{}: not in Cargo.lock: {}", rival.name, rival.version);
    }
}
