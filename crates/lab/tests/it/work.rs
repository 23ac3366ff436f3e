//! The commands that do the work, on the real binary: studies, traces, replays, benchmarks.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use framewright_report::result::{Document, Kind, Metric, Part};

use crate::{Scratch, TRACE, document, refusal, run, short_traces, text};

/// The README's main command, short, as it writes its results: run once for the tests of what is in them.
fn everything() -> &'static (String, Document) {
    static RUN: OnceLock<(String, Document)> = OnceLock::new();
    RUN.get_or_init(|| {
        let file = concat!(env!("CARGO_TARGET_TMPDIR"), "/everything.json");
        // One sample of each, and with --full as many as users get.
        let short = ["--samples", "1"].into_iter().filter(|_| std::env::var_os("FRAMEWRIGHT_FULL").is_none());
        text(&["study", "all", "--quick", "-o", file].into_iter().chain(short).collect::<Vec<_>>());
        (file.to_owned(), Document::read(file.as_ref()).expect("a result"))
    })
}

/// One part of it.
fn part(study: &str, name: &str, kind: Kind) -> &'static Part {
    let mut parts = everything().1.results.iter();
    parts.find(|part| (&*part.study, &*part.part, part.kind) == (study, name, kind)).expect("it was run")
}

#[test]
fn every_study_runs_and_its_results_are_read_back() {
    let (file, document) = everything();
    let mut kinds = [Kind::Measured, Kind::Simulated, Kind::Derived].into_iter();
    assert!(
        document.results.len() >= 25
            && kinds.all(|kind| document.results.iter().any(|part| part.kind == kind))
    );
    for part in &document.results {
        let has_samples =
            |metric: &Metric| part.variants.iter().all(|variant| !metric.of(variant).is_empty());
        assert!(part.metrics.iter().any(has_samples), "{} {}: {:?}", part.study, part.part, part.kind);
    }
    assert!(text(&["compare", file]).contains("pcp-reset, part structure"));
    let beside_itself = text(&["compare", file, file]);
    assert!(beside_itself.contains("1.000×") && beside_itself.contains("unchanged"), "{beside_itself}");
}

#[test]
fn a_page_of_the_results_is_named() {
    let scratch = Scratch::new("work-page");
    let page = scratch.path("page.html");
    assert!(text(&["study", "pcp-reset", "--part", "structure", "--html", &page]).contains(&page));
    assert!(fs::read_to_string(page).expect("it was written").contains("track stack"));
}

#[test]
fn larger_lists_take_the_zone_lock_several_times_less_often() {
    let part = part("pcp-reset", "replay", Kind::Measured);
    let metric = part.find("zone_lock_acquisitions_per_page").expect("the part's main metric");
    for (vanilla, reset) in metric.of("vanilla").iter().zip(metric.of("reset")) {
        assert!(vanilla > &(3.0 * reset), "{vanilla} against {reset}");
    }
    assert!(!metric.of("vanilla").is_empty());
}

#[test]
fn the_free_cma_counter_drifts_only_where_the_check_is_under_the_lock() {
    let part = part("refill-check", "bad_block", Kind::Measured);
    let metric = part.find("free_cma_drift_pages").expect("the part's metric");
    assert_eq!(metric.of("under_zone_lock"), [1.0]);
    assert_eq!(metric.of("after_unlock"), [0.0]);
    assert_eq!(metric.of("off"), [0.0]);
    // It repeats exactly: one sample is judged, and no more are advised, which the part would refuse.
    let answer = text(&["study", "refill-check", "--part", "bad_block"]);
    assert!(
        answer.contains("Verdict    better: Error of the counter of free CMA")
            && !answer.contains("--samples"),
        "{answer}"
    );
}

/// FS-Mark on real files. How often a zone is scanned in vain depends on how fast they are written, so on what else
/// this machine does: which variant scans less is the study's result, not a test's.
#[test]
fn fs_mark_writes_all_that_it_allocates_for() {
    let part = part("zone-reclaim", "fsmark", Kind::Measured);
    assert_eq!(part.machine, "host");
    assert_eq!(part.variants, ["vanilla", "zlcfirst", "zlcreconsider"]);
    // Loops are no rounds.
    let by_loop = part.find("files_per_second").expect("by loop");
    assert!(by_loop.per_round > 1 && by_loop.of("vanilla").len().is_multiple_of(by_loop.per_round));
    assert_eq!(part.find("page_allocations").expect("by run").per_round, 0);
    for variant in &part.variants {
        let series =
            |name: &str| part.find(name).unwrap_or_else(|| panic!("{name}")).of(variant).iter().sum::<f64>();
        assert!(series("files_per_second") > 0.0 && series("allocation_us[at=p99.9]") > 0.0);
        assert_eq!(series("page_allocations") * 4.0, series("page_outs_kib"), "all is written");
    }
}

/// A study of a user's own: the trace that it names lies beside its file, and its variants' lists are as it says.
#[test]
fn a_users_study_replays_its_own_trace_with_its_own_lists() {
    const STUDY: &str = "[[variant]]\nname = \"small\"\nconfig = { preset = \"linux_v5_4\", batch = 7, high = 42 }\n\
        [[variant]]\nname = \"large\"\nconfig = { preset = \"linux_v5_4\", batch = 63, high = 378 }\n\
        [[part]]\nworkload = { name = \"replay\", trace = \"mine.parquet\" }\n";
    let scratch = Scratch::new("work-study");
    let short = short_traces()[0];
    let trace = scratch.file("mine.parquet", fs::read(short).expect("written"));
    let study = scratch.file("mine.toml", STUDY);
    let of_own_study = document(&["study", &study, "--samples", "1"]);
    let part = &of_own_study.results[0];
    let replayed = document(&["replay", short, "--samples", "1", "--threads", "1"]);
    let sha256 =
        |part: &framewright_report::result::Part| part.trace.as_ref().expect("it was one").sha256.clone();
    assert_eq!(sha256(part), sha256(&replayed.results[0]));
    assert_eq!(part.trace.as_ref().expect("it was one").name, trace);
    let size = |variant: &str| ["batch", "high"].map(|key| part.settings[variant][key].clone());
    assert_eq!((size("small"), size("large")), (["7", "42"].map(Into::into), ["63", "378"].map(Into::into)));
    let refills = part.find("refills").expect("counted");
    assert!(refills.of("small")[0] > 3.0 * refills.of("large")[0], "{refills:?}");
    let none = scratch.file("none.toml", STUDY.replace("mine.parquet", "none.parquet"));
    let output = run(&["study", &none, "--samples", "1", "-q"]);
    let error = String::from_utf8_lossy(&output.stderr);
    let expected = format!("framewright: cannot read {}: No such file", scratch.path("none.parquet"));
    assert!(output.status.code() == Some(1) && error.starts_with(&expected), "{error}");
}

/// A hypervisor moves its guest's CPUs within seconds: each sample comes with where they were.
#[test]
fn each_sample_of_the_library_says_where_its_cpus_were() {
    const STUDY: &str = "[[variant]]\nname = \"a\"\nconfig = { preset = \"linux_v5_4\", batch = 31, high = 186 }\n\
        [[part]]\nworkload = { name = \"library\", cpus = 2 }\n[[part.metric]]\nname = \"alloc_ns\"\n";
    let scratch = Scratch::new("work-library");
    let study = scratch.file("mine.toml", STUDY);
    let mut tries = 0;
    loop {
        tries += 1;
        let document = document(&["study", &study, "--kind", "measured", "--samples", "2"]);
        let part = &document.results[0];
        let samples = |name: &str| part.find(name).map_or(0, |metric| metric.of("a").len());
        let [first, second] = ["alloc_ns[cores=1]", "alloc_ns[cores=2]"].map(samples);
        assert_eq!(first, 2, "{:?}", part.metrics);
        let places = [
            ("wide_ns[cores=1,cpu=0]", first),
            ("wide_ns[cores=2,cpu=0]", second),
            ("wide_ns[cores=2,cpu=1]", second),
            ("transfer_ns[cores=2]", second),
        ];
        if places.iter().all(|&(name, wanted)| samples(name) == wanted) {
            break;
        }
        // A probe that other work keeps from its CPU says nothing.
        assert!(tries < 20, "{:?}", part.metrics);
    }
}

/// What `--new` does not name is as `--base` says: where the lock lies changes nothing that is counted, and small lists
/// are refilled more often.
#[test]
fn a_change_changes_what_it_names() {
    let line =
        "--base preset=linux_v5_4 --new lock_place=own_line --new batch=7,high=42 --samples 1 --threads 1";
    let document =
        document(&["replay", short_traces()[0]].into_iter().chain(line.split(' ')).collect::<Vec<_>>());
    let part = &document.results[0];
    assert_eq!(part.variants, ["preset=linux_v5_4", "base + lock_place=own_line", "base + batch=7,high=42"]);
    let [base, place, small] = [0, 1, 2].map(|n| {
        ["refills", "drains", "steals", "fallbacks"]
            .map(|name| part.find(name).expect(name).of(&part.variants[n])[0])
    });
    assert_eq!(base, place);
    assert!(small[0] > 3.0 * base[0] && small[1] > 3.0 * base[1], "{small:?} {base:?}");
}

/// A machine that was asked for is the one that is simulated; where the amount of work is another machine's, none is.
#[test]
fn a_machine_that_was_asked_for_is_simulated_or_refused() {
    let arguments =
        ["study", "parallel-init", "--part", "machines", "--samples", "1", "--machine", "haswell-vm"];
    let document = document(&arguments);
    let part = &document.results[0];
    let named =
        |metric: &framewright_report::result::Metric| metric.name.ends_with("[machine=haswell-2699v3-vm4]");
    assert!(part.metrics.len() == 2 && part.metrics.iter().all(named), "{:?}", part.metrics);
    // Of nothing it told that all CPUs take ten times as long: when they started.
    let error = refusal(&["study", "parallel-init", "--part", "machines", "--machine", "skylake-4s"], 1);
    assert!(
        error.contains("skylake-4s has no zone with fewer early_managed_pages than managed_pages"),
        "{error}"
    );
    let kernbench =
        ["study", "pcp-reset", "--part", "kernbench", "--kind", "simulated", "--machine", "xeon-gold-5320"];
    let error = refusal(&kernbench, 2);
    assert!(error.contains("--machine changes nothing of what is run"), "{error}");
}

#[test]
fn results_of_other_traces_are_not_compared_without_a_word() {
    let scratch = Scratch::new("work-traces");
    let [a, b] = [("a.json", 0), ("b.json", 1)].map(|(name, n)| {
        let file = scratch.path(name);
        text(&["replay", short_traces()[n], "--samples", "1", "--threads", "1", "-o", &file]);
        file
    });
    let compared = text(&["compare", &a, &b]);
    assert!(compared.contains("Warning: other traces were replayed: a"), "{compared}");
    assert!(compared.contains("Separate runs: "), "two runs of one binary differ, too: {compared}");
    let markdown = text(&["compare", &a, &b, "--format", "markdown"]);
    assert!(
        markdown.starts_with("a: framewright replay ") && markdown.contains("\nSeparate runs: "),
        "{markdown}"
    );
    let same = text(&["compare", &a, &a]);
    assert!(!same.contains("Warning") && !same.contains("Separate runs: "), "a run beside itself: {same}");
    assert!(!text(&["compare", &a]).contains("Separate runs: "), "its variants were measured in turn");
}

#[test]
fn wrong_requests_are_refused_in_one_line() {
    let scratch = Scratch::new("work-wrong");
    let out = scratch.path("out.parquet");
    assert!(refusal(&["replay", TRACE, "--new", "lock_knd=ticket"], 2).contains("did you mean"));
    assert!(refusal(&["replay", TRACE, "--memory", "4"], 1).contains("--memory"));
    assert!(refusal(&["import", TRACE, "-o", &out], 1).contains("replay"));
    assert!(!Path::new(&out).exists(), "nothing half-written");
    let nothing = refusal(&["study", "zone-reclaim", "--kind", "derived"], 1);
    assert!(nothing.contains("nothing of zone-reclaim is derived"), "{nothing}");
}

#[test]
fn the_text_of_perf_script_becomes_a_trace_that_replays() {
    let scratch = Scratch::new("work-import");
    let line = |n: u32| {
        let (pid, pfn) = (100 + n, 0x1000 + n);
        format!(
            "cc1 {pid} [001] 10.{n:06}: kmem:mm_page_alloc: page=0x1 pfn=0x{pfn:x} order=0 migratetype=1 gfp_flags=GFP_KERNEL\n\
             cc1 {pid} [000] 11.{n:06}: kmem:mm_page_free: page=0x1 pfn=0x{pfn:x} order=0\n"
        )
    };
    let script = scratch.file("script.txt", (0..100).map(line).collect::<String>());
    let trace = scratch.path("t.parquet");
    text(&["import", &script, "-o", &trace]);
    let document = document(&["replay", &trace, "--samples", "1", "--threads", "2"]);
    let failed = document.results[0].find("failed_allocations").expect("counted");
    assert!(failed.samples.values().all(|samples| samples == &[0.0]));
}

#[test]
fn bench_measures_every_workload_of_the_allocator() {
    let document =
        document(&["bench", "--samples", "1", "--memory", "64", "--order", "0,9", "--cpus", "1,2"]);
    let part = &document.results[0];
    for name in [
        "hot_pair_ns[order=0,cpus=1]",
        "bulk_get_ns[order=9,cpus=2]",
        "bulk_put_ns[order=0,cpus=2]",
        "random_put_ns[order=9,cpus=1]",
        "churn_ns[order=0,cpus=2]",
        "handoff_ns[order=0,cpus=2]",
        "ready_ms[gib=1024]",
    ] {
        assert!(part.find(name).unwrap_or_else(|| panic!("{name}")).of("framewright")[0] > 0.0);
    }
    assert!(part.metrics.iter().any(|metric| metric.family() == "huge_left_percent"));
    assert!(part.metrics.iter().any(|metric| metric.family() == "exit_storm_ns"));
    assert!(part.metrics.iter().any(|metric| metric.family() == "mixed_ns"));
}

/// Where root and tracefs are to be had; elsewhere it must say in one line what is missing.
#[test]
fn a_recording_works_or_says_what_is_missing() {
    let scratch = Scratch::new("work-record");
    let trace = scratch.path("true.parquet");
    let output = run(&["record", "--color", "always", "-o", &trace, "--", "true"]);
    if output.status.success() {
        // The colours are those of standard output; what goes elsewhere has none, nor what is left of them.
        let summary = String::from_utf8(output.stderr).expect("text");
        assert!(summary.contains(&format!("\nRecorded to {trace}\nname ")), "{summary}");
        let document = document(&["replay", &trace, "--samples", "1"]);
        assert!(document.results[0].find("wall_ms").is_some());
        // The command's own status is that of the recorder, as a shell has it; the trace is kept.
        for (command, status) in [("exit 3", 3), ("kill -KILL $$", 128 + 9)] {
            fs::remove_file(&trace).expect("ours");
            let output = run(&["record", "-o", &trace, "--", "sh", "-c", command]);
            assert_eq!(output.status.code(), Some(status), "{command}");
            assert!(fs::metadata(&trace).expect("kept").len() > 0, "{command}");
        }
        // A command that is told to end has not failed, whatever it says then.
        let script = "trap 'exit 3' TERM; sleep 600 & wait";
        let output = run(&["record", "--duration", "0.3", "-o", &trace, "--", "sh", "-c", script]);
        assert_eq!(output.status.code(), Some(0), "{output:?}");
    } else {
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(error.starts_with("framewright: cannot record"), "{error}");
    }
}
