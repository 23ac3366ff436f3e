//! Every workload, tiny, on an allocator that is known to be right, watched by the oracle.

use super::*;
use crate::conformance;
use crate::oracle::Oracle;
use crate::testing::{Buddy, Quirk};

fn build(frames: u64, _cpus: usize) -> Result<Oracle<Buddy>, String> {
    Ok(Buddy::new(frames).watched())
}

fn names(measurement: &Measurement) -> Vec<&str> {
    measurement.metrics.iter().map(|metric| metric.name.as_str()).collect()
}

#[test]
fn every_timed_workload_leaves_the_allocator_as_it_was() {
    let scale = Scale::tiny();
    for case in Case::all(&Workload::ALL, &[0, 3, 9], &[1, 2]) {
        if matches!(case.workload, Workload::Ready | Workload::Fragmentation) {
            continue;
        }
        let target = build(scale.frames, case.cpus).unwrap();
        let measurement = measure(&target, &case, &scale, 0);
        let findings = target.findings();
        assert_eq!(findings.violations, [""; 0], "{case}");
        assert_eq!(findings.live_frames, 0, "{case}");
        assert_eq!(measurement.failures, 0, "{case}");
        // All that was asked for, unless the machine was too slow for it.
        assert!(measurement.operations >= 1, "{case}: {measurement:?}");
        let times = || measurement.metrics.iter().filter(|metric| metric.unit == "ns");
        assert!(times().count() > 0 && times().all(|metric| metric.value > 0.0), "{case}: {measurement:?}");
        // What is timed was really done.
        let done = findings.allocations + findings.frees;
        assert!(done >= measurement.operations, "{case}: {done} done, {measurement:?}");
        assert!(findings.peak_frames <= scale.frames, "{case}");
    }
}

#[test]
fn metric_names_are_those_that_results_are_compared_by() {
    let scale = Scale::tiny();
    let target = Buddy::new(scale.frames).watched();
    let show = |workload, order, cpus| {
        let measurement = measure(&target, &Case { workload, order, cpus }, &scale, 0);
        names(&measurement).join(" ")
    };
    assert_eq!(show(Workload::HotPair, 0, 1), "hot_pair_ns[order=0,cpus=1]");
    assert_eq!(show(Workload::Bulk, 3, 1), "bulk_get_ns[order=3,cpus=1] bulk_put_ns[order=3,cpus=1]");
    assert_eq!(show(Workload::RandomPut, 9, 2), "random_put_ns[order=9,cpus=2]");
    assert_eq!(show(Workload::Churn, 0, 2), "churn_ns[order=0,cpus=2]");
    assert_eq!(show(Workload::Handoff, 0, 2), "handoff_ns[order=0,cpus=2] handoff_ring_ns[order=0,cpus=2]");
    assert_eq!(show(Workload::Mixed, 0, 1), "mixed_ns[cpus=1]");
    let names_at = |percent| {
        format!(
            "stress_{percent}_ns[cpus=2] stress_{percent}_huge_percent[cpus=2] stress_{percent}_refused_percent[cpus=2]"
        )
    };
    assert_eq!(show(Workload::Stress, 0, 2), [50, 75, 90].map(names_at).join(" "));
    assert_eq!(show(Workload::ExitStorm, 0, 1), "exit_storm_ns[cpus=1] exit_storm_put_ns[cpus=1]");
    let ready = ready(&mut build, &scale).unwrap();
    assert_eq!(names(&ready), ["ready_ms[gib=1]"]);
    let left = fragmentation(&mut build, &scale).unwrap();
    let runs = ["occupancy=50", "occupancy=50,swapped=10", "occupancy=80", "occupancy=80,victims=random"];
    let expected = runs.map(|run| [format!("huge_left_percent[{run}]"), format!("failed_percent[{run}]")]);
    assert_eq!(names(&left), expected.as_flattened());
}

#[test]
fn cases_are_those_that_make_sense() {
    let all = Case::all(&Workload::ALL, &[0, 3, 9], &[1, 2, 3]);
    let count = |workload| all.iter().filter(|case| case.workload == workload).count();
    assert_eq!(count(Workload::HotPair), 9);
    assert_eq!(count(Workload::Handoff), 3);
    assert_eq!(count(Workload::Mixed), 3);
    assert_eq!(count(Workload::Ready), 1);
    assert_eq!(count(Workload::Fragmentation), 1);
    assert_eq!(Case::all(&[Workload::Fragmentation], &[0], &[4]).len(), 1, "it always runs on one");
    for workload in Workload::ALL {
        assert_eq!(workload.name().parse(), Ok(workload));
    }
    assert!("hot".parse::<Workload>().unwrap_err().contains("hot_pair, bulk"));
}

#[test]
fn an_allocator_that_runs_out_is_counted() {
    let scale = Scale::tiny();
    let target = Buddy::new(1024).watched();
    for case in Case::all(&Workload::ALL, &[0, 3], &[1, 2]) {
        // How much is on its way in a handoff is up to the scheduler.
        if matches!(case.workload, Workload::Handoff | Workload::Ready | Workload::Fragmentation) {
            continue;
        }
        let measurement = measure(&target, &case, &scale, 0);
        let lists = case.workload != Workload::HotPair;
        let refused = |metric: &Metric| metric.name.contains("refused") && metric.value > 0.0;
        let runs_out = measurement.failures > 0 || measurement.metrics.iter().any(refused);
        assert_eq!(runs_out, lists, "{case}: {measurement:?}");
        assert_eq!(target.free_blocks(10), Some(1), "{case}");
    }
}

#[test]
fn fragmentation_repeats_exactly_and_counts_what_is_there() {
    let scale = Scale::tiny();
    let first = fragmentation(&mut build, &scale).unwrap();
    assert_eq!(first, fragmentation(&mut build, &scale).unwrap());
    assert_ne!(first, fragmentation(&mut build, &Scale { seed: 2, ..scale }).unwrap());
    assert_eq!(first.metrics[1].value, 0.0, "single pages always fit");
    // Of 16 blocks that could be whole at half occupancy, random survivors leave none.
    assert_eq!(first.metrics[0].value, 0.0);
    assert!(first.metrics.iter().all(|metric| (0.0..=100.0).contains(&metric.value)));
    assert_eq!(
        (first.metrics[2].value, first.metrics[3].value),
        (0.0, 0.0),
        "nor do the survivors of tenths"
    );
    assert!(first.metrics[4].value > 0.0 && first.metrics[6].value < 100.0, "{first:?}");
}

#[test]
fn rounds_interleave_and_rotate() {
    let scale = Scale { operations: 50, ..Scale::tiny() };
    let runner = |name| -> Box<dyn Runner> { Box::new(Allocator::new(name, build)) };
    let mut runners: Vec<Box<dyn Runner>> = ["a", "b", "c"].map(runner).into();
    let cases = Case::all(&[Workload::Bulk, Workload::Fragmentation], &[0], &[1]);
    let mut order = String::new();
    let results = interleave(&mut runners, &cases, &scale, 3, |progress| {
        assert!(progress.done < progress.total);
        order.push_str(progress.allocator);
        true
    })
    .unwrap();
    assert_eq!(order, "abcbcacababc");
    assert_eq!(results.len(), 2);
    assert_eq!(results[0].series.len(), 2, "get and put");
    for (series, samples) in
        results.iter().flat_map(|r| r.series.iter().map(|s| (s, if r.case == cases[0] { 3 } else { 1 })))
    {
        let allocators: Vec<_> = series.samples.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(allocators, ["a", "b", "c"]);
        assert!(series.samples.iter().all(|(_, values)| values.len() == samples));
    }
}

/// Of a round that not all have done nothing is kept: each has as many samples as every other.
#[test]
fn rounds_that_all_have_done_are_kept_when_the_work_ends_early() {
    let scale = Scale { operations: 50, ..Scale::tiny() };
    let runner = |name| -> Box<dyn Runner> { Box::new(Allocator::new(name, build)) };
    let mut runners: Vec<Box<dyn Runner>> = ["a", "b"].map(runner).into();
    let cases = Case::all(&[Workload::Bulk, Workload::Churn], &[0], &[1]);
    for (most, kept) in [(0, 0), (3, 1), (4, 2)] {
        let results = interleave(&mut runners, &cases, &scale, 3, |now| now.done < most).unwrap();
        assert_eq!(results.len(), 1, "the second case has not begun");
        let samples = results[0].series.iter().flat_map(|series| &series.samples);
        let counts: Vec<_> = samples.map(|(_, values)| values.len()).collect();
        assert_eq!(counts, vec![kept; if kept > 0 { 4 } else { 0 }], "get and put, by two");
    }
}

/// Beside busy threads the same is done, and the threads are gone afterwards, also after a round that fails.
#[test]
fn rounds_beside_busy_threads_are_the_same_rounds() {
    let scale = Scale { operations: 50, ..Scale::tiny() };
    let build = |frames, cpus| if frames > 0 { build(frames, cpus) } else { Err("no memory".to_owned()) };
    let plain = || -> Box<dyn Runner> { Box::new(Allocator::new("a", build)) };
    let mut runners = vec![plain(), Box::new(Beside::new(plain(), 2))];
    let cases = Case::all(&[Workload::Mixed, Workload::Fragmentation], &[0], &[1]);
    let results = interleave(&mut runners, &cases, &scale, 2, |_| true).unwrap();
    for series in results.iter().flat_map(|result| &result.series) {
        let names: Vec<_> = series.samples.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a_busy"], "{}", series.name);
        let [plain, busy] = [0, 1].map(|n| &series.samples[n].1);
        assert!(plain.len() == busy.len() && (series.unit == "ns" || plain == busy), "{series:?}");
    }
    let none = Scale { frames: 0, ..scale };
    assert_eq!(
        interleave(&mut runners[1..], &cases[..1], &none, 1, |_| true).unwrap_err(),
        "a_busy: mixed[cpus=1]: no memory"
    );
}

#[test]
fn allocators_with_one_name_or_that_cannot_be_built_are_refused() {
    let build = |frames, cpus| if frames > 5 { Err("no memory".to_owned()) } else { build(frames, cpus) };
    let mut runners: Vec<Box<dyn Runner>> = vec![Box::new(Allocator::new("x", build))];
    let cases = Case::all(&[Workload::Churn], &[3], &[2]);
    let error = interleave(&mut runners, &cases, &Scale::tiny(), 1, |_| true).unwrap_err();
    assert_eq!(error, "x: churn[order=3,cpus=2]: no memory");
    runners.push(Box::new(Allocator::new("x", build)));
    assert!(interleave(&mut runners, &cases, &Scale::tiny(), 1, |_| true).unwrap_err().contains("called x"));
}

#[test]
fn the_test_allocator_conforms() {
    conformance::check(|frames, _| Buddy::new(frames).watched(), 1 << 13).unwrap();
    conformance::check(|frames, _| Buddy::new(frames).with_parts().watched(), 1 << 13).unwrap();
}

#[test]
fn conformance_finds_what_is_wrong() {
    let leaky = |frames, _| Buddy::new(frames).with(Quirk::Forgets).watched();
    let errors = conformance::check(leaky, 1 << 13).unwrap_err();
    assert!(errors.contains("order 0: 8192 blocks, then 8111"), "{errors}");
}

#[test]
#[should_panic(expected = "two have it")]
fn stress_sees_a_block_with_two_owners() {
    let scale = Scale::tiny();
    let careless = Buddy::new(scale.frames).with(Quirk::Repeats).watched();
    measure(&careless, &Case { workload: Workload::Stress, order: 0, cpus: 1 }, &scale, 0);
}

#[test]
fn an_allocator_that_hands_a_block_out_twice_is_named() {
    let careless = |frames, _| Ok(Buddy::new(frames).with(Quirk::Repeats));
    let case = Case { workload: Workload::Stress, order: 0, cpus: 1 };
    let mut runners: [Box<dyn Runner>; 1] = [Box::new(Allocator::new("careless", careless))];
    let refused =
        interleave(&mut runners, &[case], &Scale::tiny(), 1, |_| true).expect_err("two have a block");
    assert!(refused.starts_with("careless: stress") && refused.contains("failed a check"), "{refused}");
}
