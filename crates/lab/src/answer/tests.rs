use framewright_report::result::Better;

use super::*;
use crate::configure::Setup;
use crate::settings::Settings;

/// A replay of ten rounds, of which `new` takes `time` times as long and is that noisy.
fn part(new: &str, time: f64, noise: f64) -> Part {
    let mut part = Part::new("replay", "trace", Kind::Measured, "host")
        .baseline("preset=linux_v6_16")
        .variant(new)
        .paired();
    for name in [&part.baseline.clone(), new] {
        let setup = Setup::default().with(&Settings::from_pairs(name).expect("pairs")).expect("settings");
        part.settings.insert(name.to_owned(), setup.described());
    }
    part.condition("memory_mib", 24_000).condition("threads", 2).condition(SHARE, 0.89);
    let mut add = |name: &str, base: f64, ratio: f64, noise: f64| {
        let (unit, better) = match name {
            _ if name.contains("percent") => ("%", Better::Higher),
            _ if name.contains("_ns_") => ("ns", Better::Lower),
            _ => ("1", Better::Lower),
        };
        let metric = part.metric(name, unit, better);
        let sample = |n: i32| f64::from((n * 7) % 10 - 5) / 10.0;
        let metric =
            metric.samples("preset=linux_v6_16", (0..10).map(|n| base * (1.0 + 0.01 * f64::from(n % 3))));
        metric.samples(new, (0..10).map(|n| base * ratio * (1.0 + 2.0 * noise * sample(n))));
    };
    add("cpu_ns_per_operation", 30.0, time, noise);
    add("zone_lock_acquisitions_per_page", 0.0012, 6.4, 0.0);
    add("zone_lock_waits", 21.0, 2.4, 0.0);
    add("huge_available_percent", 78.0, 1.2, 0.0);
    add("compaction_moved_per_allocated", 0.01, 5.8, 0.0);
    for n in 0..30 {
        add(&format!("unusable_free_index[order={n}]"), 0.2, 0.5, 0.0);
    }
    part
}

fn shown(part: &Part) -> String {
    text(part, part, &part.variants[1], &Terminal { width: Some(80), ..Terminal::plain() })
}

#[test]
fn five_lines_come_first_and_all_fits_a_screen() {
    let expected = "\
preset=linux_v6_16 → preset=framewright (24000 MiB, 10 samples)
Verdict    better: time, huge pages; worse: zone-lock acquisitions
Time       an operation 30.3 → 22.3 ns, -26 % [-31, -21]; -0.24 % [-0.28, -0.19]
           of the run's CPU time, if its page allocation (0.89 %) changes alike
Locks      6.34× zone-lock acquisitions (0.00121 → 0.00768 per page), waited
           21.2 → 50.4 times
Huge pages 78.8 → 93.6 % of the free memory, in memory that the run nearly
           fills; price: 1.0 → 5.8 pages moved per 100 allocated
To deploy  not in Linux: engine, lock_kind and 4 more are settings of this
           allocator
";
    let text = shown(&part("preset=framewright", 0.75, 0.1));
    assert!(text.starts_with(expected), "{text}");
    assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(
        text.contains("CPU time of an operation, ns             30.3      22.3  0.735× [0.690, 0.787] +"),
        "{text}"
    );
    assert!(!text.contains("unusable") && text.contains("30 more rows, and notes: --all"), "{text}");
}

/// `compare` has a part for each variant that its files share, without rows that are the same in all.
#[test]
fn what_files_share_is_named_and_answered_alike() {
    let mut part = part("preset=framewright", 0.75, 0.1);
    part.part = "trace[variant=batch=7]".to_owned();
    part.metrics.retain(|metric| metric.name != "zone_lock_acquisitions_per_page");
    let waits = part.metrics.iter_mut().find(|metric| metric.name == "zone_lock_waits").expect("a row");
    waits.samples.insert("preset=framewright".to_owned(), vec![2.1e70; 10]);
    let text = shown(&part);
    let expected = "preset=linux_v6_16 → preset=framewright (batch=7, 24000 MiB, 10 samples)\n";
    assert!(text.starts_with(expected) && text.contains("\nTime  "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn a_narrow_terminal_has_figures_below_titles() {
    let terminal = Terminal { width: Some(40), ..Terminal::plain() };
    let part = part("preset=framewright", 0.75, 0.1);
    // Rows that are the same in both columns were hidden before: they are among those of --all, too.
    let mut whole = part.clone();
    for n in 0..9 {
        let metric = whole.metric(format!("steals[n={n}]"), "1", Better::Lower);
        metric.sample("preset=linux_v6_16", 0.0).sample("preset=framewright", 0.0);
    }
    let text = text(&part, &whole, "preset=framewright", &terminal);
    assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
    assert!(
        text.contains("CPU time of an operation, ns\n  30.3 → 22.3, 0.735× [0.690, 0.787] +\n"),
        "{text}"
    );
    assert!(text.contains("39 more rows, and notes: --all."), "{text}");
}

/// The same in both columns, and so hidden among the rows.
#[test]
fn allocations_that_failed_are_named() {
    let part = part("preset=framewright", 0.75, 0.1);
    let mut whole = part.clone();
    let said = |whole: &Part| {
        let terminal = Terminal { width: Some(200), ..Terminal::plain() };
        let text = text(&part, whole, "preset=framewright", &terminal);
        text.lines().find(|line| line.starts_with("Failures")).map(str::to_owned)
    };
    let mut add = |name: &str, failed: f64| {
        let metric = whole.metric(name, "1", Better::Lower);
        metric.sample("preset=linux_v6_16", failed).sample("preset=framewright", failed);
        said(&whole)
    };
    assert_eq!(add("failed_allocations", 0.0), None);
    let tight = add("failed_allocations[memory=tight]", 8151.0);
    let expected = "Failures   8151 → 8151 allocations found no block in all runs in memory that the run nearly fills: \
                    `replay --memory` gives them more";
    assert_eq!(tight.as_deref(), Some(expected));
}

#[test]
fn a_try_shows_what_the_command_took_and_how_to_keep_the_setting() {
    let (base, new) = ("transparent_hugepage=madvise", "transparent_hugepage=always");
    let mut part = Part::new("try", "command", Kind::Measured, "host").baseline(base).variant(new).paired();
    part.condition("command", "./sum").condition(PREDICTED, "not: replay has no transparent_hugepage");
    part.condition(BUSY, "load 4.1 on 2 CPUs before this began");
    let mut add = |name: &str, better: Better, base_of: f64, new_of: f64| {
        let unit = if name.ends_with("_ms") { "ms" } else { "1" };
        let metric = part.metric(name, if name.ends_with("percent") { "%" } else { unit }, better);
        let metric = metric.samples(base, (0..6).map(|n| base_of * (1.0 + 0.01 * f64::from(n))));
        metric.samples(new, (0..6).map(|n| new_of * (1.0 + 0.01 * f64::from(n))));
    };
    add("elapsed_ms", Better::Lower, 1000.0, 800.0);
    add("cpu_time_ms", Better::Lower, 900.0, 700.0);
    add("user_ms", Better::Lower, 600.0, 500.0);
    add("system_ms", Better::Lower, 300.0, 200.0);
    add("page_faults", Better::Lower, 131_000.0, 800.0);
    add("huge_page_faults", Better::None, 0.0, 300.0);
    add("huge_available_percent", Better::Higher, 60.0, 60.0);
    let expected = "\
transparent_hugepage=madvise → transparent_hugepage=always (./sum, 6 samples)
Noise      load 4.1 on 2 CPUs before this began: quiet the machine before you
           trust times
Verdict    better: elapsed time, CPU time, page faults
Time       1025 → 820 ms, -20 %; in the kernel 308 → 205 ms, -33 %
Huge pages 61.5 → 61.5 % of the free memory after the run; 0 → 308 faults got
           one
To deploy  echo always > /sys/kernel/mm/transparent_hugepage/enabled
Predicted  not: replay has no transparent_hugepage

                                         base       new  ratio
elapsed time, ms                         1025       820  0.800×                +
CPU time, ms                              922       718  0.778×                +
CPU time outside the kernel, ms           615       512  0.833×                +
CPU time in the kernel, ms                308       205  0.667×                +
page faults                            134275       820  0.006×                +
faults that got a huge page                 0       308
free memory in huge pages, %             61.5      61.5  1.000×                ~
Notes: --all. + better, - worse, ~ unclear, ? too few
";
    assert_eq!(shown(&part), expected);
}

#[test]
fn a_try_of_a_setting_that_does_not_matter_says_so() {
    for (spread, expected) in [
        (0.004, "Verdict    no measurable change in elapsed time"),
        (0.4, "Verdict    too noisy to judge elapsed time: quiet the machine, or --rounds "),
    ] {
        let (base, new) = ("vm.swappiness=60", "vm.swappiness=61");
        let mut part =
            Part::new("try", "command", Kind::Measured, "host").baseline(base).variant(new).paired();
        for name in ["elapsed_ms", "cpu_time_ms", "page_faults"] {
            // The same times in both columns, in another order.
            let time = |n: usize| 1000.0 * (1.0 + spread * (n % 6) as f64);
            part.metric(name, "1", Better::Lower)
                .samples(base, (0..6).map(time))
                .samples(new, (0..6).map(|n| time(5 * n + 1)));
        }
        assert!(shown(&part).contains(expected), "{}", shown(&part));
    }
}

#[test]
fn a_setting_of_several_words_is_deployed_as_one() {
    let (base, new) = (
        "vm.lowmem_reserve_ratio=256 256 32 0 vm.swappiness=60",
        "vm.lowmem_reserve_ratio=128 64 32 0 vm.swappiness=1",
    );
    let mut part = Part::new("try", "command", Kind::Measured, "host").baseline(base).variant(new).paired();
    part.metric("elapsed_ms", "ms", Better::Lower).samples(base, [1.0; 6]).samples(new, [1.0; 6]);
    let text = text(&part, &part, new, &Terminal { width: Some(200), ..Terminal::plain() });
    let expected = "To deploy  sysctl -w 'vm.lowmem_reserve_ratio=128 64 32 0'; sysctl -w vm.swappiness=1\n";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn other_parts_have_a_verdict_and_ten_rows_in_words() {
    let mut part =
        Part::new("refill-check", "huge", Kind::Measured, "host").baseline("a").variant("b").paired();
    part.headline = Some("alloc_ns[cores=26]".to_owned());
    for cores in [1, 2, 4, 8, 13, 26] {
        for (name, ratio) in [("alloc_ns", 0.5), ("free_ns", 1.0)] {
            let metric = part.metric(format!("{name}[cores={cores}]"), "ns", Better::Lower);
            let metric = metric.samples("a", (0..8).map(|n| f64::from(100 * cores + n)));
            metric.samples("b", (0..8).map(|n| ratio * f64::from(100 * cores + n)));
        }
    }
    assert!(is_answered(&part));
    let text = text(&part, &part, "b", &Terminal { width: Some(80), ..Terminal::plain() });
    assert!(
        text.starts_with("a → b (refill-check huge, measured, 8 samples)\nVerdict    better: 6 of 12 rows"),
        "{text}"
    );
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.ends_with("ratio")).skip(1).collect();
    assert!(
        rows[0].starts_with("allocation, cores 26, ns ") && rows[1].starts_with("allocation, cores 1, ns "),
        "{text}"
    );
    assert!(text.lines().count() <= 24 && text.contains("more rows, and notes: --all"), "{text}");
    part.is_table = true;
    assert!(!is_answered(&part), "a table of allocators stays a table");
}

#[test]
fn the_verdict_and_the_way_to_deploy_follow_from_the_figures() {
    for (new, time, noise, expected) in [
        ("preset=framewright", 1.01, 0.01, "no measurable change in time"),
        ("preset=framewright", 1.0, 0.9, "too noisy to judge time: quiet the machine Time an operation"),
        (
            "preset=linux_v6_16,watermark_scale=20",
            2.5,
            0.1,
            "To deploy sysctl vm.watermark_scale_factor=20 base new",
        ),
        ("preset=linux_v6_7", 1.0, 0.1, "To deploy a kernel with the rules of Linux v6.7 base new"),
        (
            "preset=linux_v6_7,compaction_proactiveness=98",
            1.0,
            0.1,
            "a kernel with the rules of Linux v6.7 and sysctl vm.compaction_proactiveness=98 base new",
        ),
        ("preset=linux_v6_16,lock_place=own_line", 1.0, 0.1, "not in Linux: lock_place is a setting"),
        (
            "preset=linux_v6_16,batch=63,high=378",
            1.0,
            0.1,
            "another kernel: batch (pcp->batch), high (pcp->high)",
        ),
        ("preset=linux_v6_16,pcp_rule=v6_1", 1.0, 0.1, "by another kernel: pcp_rule (zone_batchsize and"),
        (
            "preset=linux_v6_16,batch=63,lock_place=own_line",
            1.0,
            0.1,
            "not in Linux: lock_place is a setting",
        ),
        ("preset=linux_v6_16,page_cache=reclaimable", 1.0, 0.1, "not in Linux: page_cache is a setting"),
    ] {
        let text = shown(&part(new, time, noise)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(expected), "{new}: {text}");
    }
    // Few samples: the share may be a tenth as much, or twice as much.
    let mut part = part("preset=framewright", 0.75, 0.1);
    part.condition(SHARE_RANGE, "0.10 to 2.00");
    let text = shown(&part).split_whitespace().collect::<Vec<_>>().join(" ");
    let expected = "-0.24 % [-0.62, -0.02] of the run's CPU time, if its page allocation (0.89 % [0.10, 2.00]) changes alike";
    assert!(text.contains(expected), "{text}");
    part.conditions.remove(SHARE);
    assert!(shown(&part).contains("is not known (no samples in the trace)"), "{}", shown(&part));
}

/// `--memory` gives the runs for huge pages what it gives the timed ones.
#[test]
fn memory_that_was_asked_for_is_not_said_to_be_nearly_filled() {
    let mut part = part("preset=framewright", 0.75, 0.1);
    let said = |part: &Part| super::huge_pages(part, "preset=framewright").expect("it has them");
    part.condition("huge_pages_mib", 280);
    assert!(said(&part).contains("% of the free memory, in memory that the run nearly fills; price"));
    part.condition("huge_pages_mib", 24_000);
    assert!(said(&part).contains("% of the free memory, in 24000 MiB; price"), "{}", said(&part));
}

/// Of 40 rows without any effect, two are marked.
#[test]
fn as_many_changes_as_chance_gives_are_told_beside_it() {
    let mut part = Part::new("bench", "workloads", Kind::Measured, "host").baseline("a").variant("b");
    for row in 0..40 {
        let metric = part.metric(format!("alloc_ns[order={row}]"), "ns", Better::Lower);
        let ratio = if row < 3 { 0.5 } else { 1.0 };
        let metric = metric.samples("a", (0..8).map(|n| f64::from(100 + n)));
        metric.samples("b", (0..8).map(|n| ratio * f64::from(100 + n)));
    }
    assert_eq!(
        judged(&part, "b"),
        "better: 3 of 40 rows, such as allocation, order 0, ns; by chance alone up to 2"
    );
    part.metrics.truncate(12);
    assert_eq!(judged(&part, "b"), "better: 3 of 12 rows, such as allocation, order 0, ns");
}

/// `+NaN %`, and `+inf %`.
#[test]
fn a_baseline_that_takes_no_time_has_no_share_that_is_no_number() {
    let effect = |new: f64| {
        let mut part = part("preset=framewright", 0.75, 0.1);
        let time = part.metrics.iter_mut().find(|metric| metric.name == "cpu_ns_per_operation");
        let samples = &mut time.expect("a row").samples;
        samples.insert("preset=linux_v6_16".to_owned(), vec![0.0; 10]);
        samples.insert("preset=framewright".to_owned(), vec![new; 10]);
        super::time(&part, "preset=framewright").expect("it has times")
    };
    assert_eq!(
        effect(0.0),
        "an operation 0 → 0 ns, unchanged; +0.00 % of the run's CPU time, if its page allocation (0.89 %) changes alike"
    );
    assert_eq!(
        effect(2.0),
        "an operation 0 → 2 ns, from 0; how much of the run that is cannot be said, as the baseline's is 0"
    );
}
