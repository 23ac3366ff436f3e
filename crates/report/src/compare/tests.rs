//! What becomes of saved results that are compared.

use super::*;
use crate::host::Host;

fn saved(label: &str, variants: &[&str], value: f64) -> Saved {
    let mut part = Part::new("pcp-reset", "replay", Kind::Measured, "host").baseline(variants[0]);
    for (index, variant) in variants.iter().enumerate() {
        let centre = value + index as f64;
        part.metric("ns_per_operation", "ns", Better::Lower)
            .samples(variant, [centre, centre + 0.1, centre + 0.2]);
    }
    Saved { label: label.to_owned(), document: Document::new("test", Host::default()).with(part) }
}

#[test]
fn shared_variants_are_compared_across_files() {
    let merged =
        merge(&[saved("old", &["vanilla", "reset"], 10.0), saved("new", &["vanilla", "reset"], 20.0)])
            .expect("they share a part");
    let names: Vec<_> = merged.results.iter().map(|part| part.part.as_str()).collect();
    assert_eq!(names, ["replay[variant=vanilla]", "replay[variant=reset]"]);
    assert_eq!(merged.results[1].variants, ["old", "new"]);
    assert_eq!(merged.results[1].baseline, "old");
    assert_eq!(merged.results[1].metrics[0].of("new"), [21.0, 21.1, 21.2]);
    merged.validate().expect("a merged document is a document");
}

#[test]
fn files_with_different_variants_stand_side_by_side() {
    let merged =
        merge(&[saved("a", &["vanilla"], 10.0), saved("b", &["reset"], 20.0)]).expect("they share a part");
    assert_eq!(merged.results[0].part, "replay");
    assert_eq!(merged.results[0].variants, ["vanilla", "reset"]);
}

/// Two runs of one variant were one column, of the samples of both.
#[test]
fn a_variant_of_some_files_only_has_a_column_for_each() {
    let files = [saved("a", &["v"], 10.0), saved("b", &["v"], 20.0), saved("c", &["w"], 30.0)];
    for (order, expected) in [([0, 1, 2], ["v (a)", "v (b)", "w"]), ([2, 1, 0], ["w", "v (b)", "v (a)"])] {
        let merged = merge(&order.map(|n| files[n].clone())).expect("they share a part");
        let part = &merged.results[0];
        assert_eq!((&*part.variants, &*part.baseline), (&expected.map(str::to_owned)[..], expected[0]));
        let medians = expected.map(|name| median(part.metrics[0].of(name)));
        assert_eq!(medians, order.map(|n| [10.1, 20.1, 30.1][n]));
        merged.validate().expect("a merged document is a document");
    }
}

#[test]
fn one_variant_needs_no_name() {
    let merged = merge(&[saved("a", &["v"], 1.0), saved("b", &["v"], 2.0)]).expect("they share a part");
    assert_eq!((merged.results[0].part.as_str(), merged.results[0].variants.len()), ("replay", 2));
}

#[test]
fn merged_metrics_keep_their_words_and_their_role() {
    let [mut first, mut second] = ["a", "b"].map(|label| saved(label, &["v"], 1.0));
    for file in [&mut first, &mut second] {
        let metric = &mut file.document.results[0].metrics[0];
        (metric.name, metric.title, metric.is_cause) = ("steals".to_owned(), "Pages taken".to_owned(), true);
    }
    let merged = merge(&[first, second]).expect("they share a part");
    let metric = &merged.results[0].metrics[0];
    assert_eq!((metric.words().as_str(), metric.is_cause), ("Pages taken", true));
}

#[test]
fn what_cannot_be_compared_is_noted() {
    let mut second = saved("b", &["v"], 1.0);
    second.document.host.cpu = "another".to_owned();
    let part = &mut second.document.results[0];
    part.metric("only_here", "1", Better::None).sample("v", 1.0);
    part.note("A surrogate.");
    let merged = merge(&[saved("a", &["v"], 1.0), second]).expect("they share a part");
    assert_eq!(merged.results[0].metrics.len(), 1);
    let notes = merged.results[0].notes.join(" ");
    assert!(notes.contains("Not compared, as only one file has it: only here."), "{notes}");
    assert!(
        notes.contains("A surrogate.") && notes.contains("b ran on another host than a: another"),
        "{notes}"
    );
}

#[test]
fn nothing_in_common_is_an_error_that_lists_both() {
    let mut second = saved("b", &["v"], 1.0);
    second.document.results[0].part = "structure".to_owned();
    let error = merge(&[saved("a", &["v"], 1.0), second]).expect_err("nothing in common");
    assert_eq!(
        error.to_string(),
        "the files have no part in common: a has pcp-reset replay (measured on host); \
         b has pcp-reset structure (measured on host)"
    );
}

#[test]
fn other_units_are_not_compared() {
    for variants in [&["v"][..], &["v", "w"]] {
        let mut second = saved("b", variants, 1.0);
        second.document.results[0].metrics[0].unit = "us".to_owned();
        let first = saved("a", variants, 1.0);
        let error = merge(&[first.clone(), second.clone()]).expect_err("nothing is compared").to_string();
        let alone =
            "Not compared, as only one file has it: time of an operation, ns; time of an operation, us.";
        assert_eq!(error, format!("the files have no metric in common. {alone}"));
        let merged = merge(&[first, saved("c", variants, 1.0), second]);
        assert_eq!(merged.expect("two have the unit").results[0].metrics[0].samples.len(), 2);
    }
}

/// What a run counts is exact for one seed only.
#[test]
fn other_seeds_are_named_and_make_no_count_exact() {
    let run = |label, seed, count| {
        let mut part = Part::new("replay", "trace", Kind::Measured, "host").baseline("v").seed(seed);
        part.metric("refills", "1", Better::Lower).sample("v", count).exact();
        Saved { label: str::to_owned(label), document: Document::new("test", Host::default()).with(part) }
    };
    for (seed, expected) in [(1, Verdict::Worse), (2, Verdict::TooFew)] {
        let merged = merge(&[run("a", 1, 10.0), run("b", seed, 11.0)]).expect("they share a part");
        let part = &merged.results[0];
        let ratio = Ratio::between(part, &part.metrics[0], "b");
        assert_eq!(verdict(part, &part.metrics[0], "b", ratio), expected);
        assert_eq!(part.notes.iter().any(|note| note == "Warning: other seeds: a 1, b 2."), seed == 2);
    }
}

#[test]
fn what_changed_is_kept_sorted_and_summed_up() {
    let mut part = Part::new("s", "p[variant=v]", Kind::Measured, "host").baseline("a");
    let around = |centre: f64| (0..9).map(move |n| centre + 0.01 * f64::from(n));
    for (name, a, b) in [("same", 5.0, 5.0), ("x[half]", 4.0, 2.0), ("x[ninth]", 9.0, 1.0)] {
        part.metric(name, "ns", Better::Lower).samples("a", around(a)).samples("b", around(b));
    }
    let mut document = Document::new("test", Host::default()).with(part);
    keep_part(&mut document, "p").expect("it is there");
    assert!(keep_part(&mut document.clone(), "q").expect_err("none").to_string().contains("there are p"));
    sort_metrics(&mut document, Sort::Change);
    let names = |document: &Document| -> Vec<String> {
        document.results[0].metrics.iter().map(|metric| metric.name.clone()).collect()
    };
    assert_eq!(names(&document), ["x[ninth]", "x[half]", "same"]);
    sort_metrics(&mut document, Sort::Name);
    assert_eq!(names(&document), ["same", "x[half]", "x[ninth]"]);
    // Only some variants have what no other can have.
    document.results[0].metric("new_alone", "ns", Better::Lower).samples("b", around(3.0));
    keep_changed(&mut document);
    assert_eq!(names(&document), ["x[half]", "x[ninth]"]);
    document.results[0].metric("count", "1", Better::Lower).samples("a", [1.0]).samples("b", [9.0]);
    add_means(&mut document);
    let notes = &document.results[0].notes;
    assert_eq!(notes[0], "2 rows hidden: no clear change.");
    // The square root of 1/2 times 1/9, a little more for the spread; nothing of another family.
    assert!(notes[1].starts_with("Geometric means of the ratios: x, 2 rows: 0.24"), "{notes:?}");
}

/// CPU time of this thread, in nanoseconds.
fn cpu_time() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux has it");
    text.split(' ').next().and_then(|time| time.parse().ok()).expect("the first number is the time on a CPU")
}

/// Metrics of a family each, notes that all differ, and every second metric in another unit.
fn large(label: &str, metrics: usize) -> Saved {
    let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("v");
    for n in 0..metrics {
        let unit = if n % 2 == 0 { "ns" } else { label };
        let samples = BTreeMap::from([("v".to_owned(), vec![1.0 + n as f64])]);
        part.metrics.push(Metric { samples, ..Metric::new(format!("family_{n}[a=1]"), unit, Better::Lower) });
        part.notes.push(format!("note {n} of {label}"));
    }
    Saved { label: label.to_owned(), document: Document::new("test", Host::default()).with(part) }
}

#[test]
fn comparing_ten_times_as_many_metrics_takes_no_hundred_times_as_long() {
    let time = |metrics: usize| {
        let files = [large("a", metrics), large("b", metrics)];
        let compare = || {
            let before = cpu_time();
            let mut merged = merge(&files).expect("they share a part");
            sort_metrics(&mut merged, Sort::Name);
            add_means(&mut merged);
            merged.validate().expect("a merged document is a document");
            assert_eq!(merged.results[0].metrics.len(), metrics / 2);
            cpu_time() - before
        };
        (0..3).map(|_| compare()).fold(f64::INFINITY, f64::min)
    };
    let (few, many) = (time(3000), time(30_000));
    assert!(many < 40.0 * few, "{few} ns and {many} ns");
}

#[test]
fn a_pattern_that_matches_nothing_lists_what_there_is() {
    let mut document = saved("a", &["v"], 1.0).document;
    document.results[0].metric("wait_ns[cores=2]", "ns", Better::Lower).sample("v", 1.0);
    // A bracket is a character like any other, and ? any one.
    keep_metrics(&mut document.clone(), "wait_ns[cores=?]").expect("it matches");
    keep_metrics(&mut document, "ns*").expect("it matches");
    let error = keep_metrics(&mut document, "bytes").expect_err("it matches nothing");
    assert_eq!(error.to_string(), "no metric matches `bytes`; there are ns_per_operation");
}

#[test]
fn only_a_clear_and_large_enough_change_for_the_worse_is_a_regression() {
    let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("a");
    let low = [10.0, 10.1, 10.2, 10.1, 10.0, 10.2];
    let high = [12.0, 12.1, 12.2, 12.1, 12.0, 12.2];
    let wide = [5.0, 30.0, 9.0, 18.0, 5.0, 30.0];
    part.metric("slower", "ns", Better::Lower).samples("a", low).samples("b", high);
    part.metric("faster", "ns", Better::Lower).samples("a", high).samples("b", low);
    part.metric("less", "1", Better::Higher).samples("a", high).samples("b", low);
    part.metric("noise", "ns", Better::Lower).samples("a", low).samples("b", wide);
    part.metric("neither", "1", Better::None).samples("a", low).samples("b", high);
    part.metric("from_zero", "1", Better::Lower).samples("a", [0.0; 6]).samples("b", low);
    part.metric("single", "ns", Better::Lower).sample("a", 10.0).sample("b", 11.5);
    let document = Document::new("test", Host::default()).with(part);
    let names = |percent| -> Vec<String> {
        regressions(&document, percent).into_iter().map(|regression| regression.metric).collect()
    };
    assert_eq!(names(5.0), ["from_zero", "slower", "less", "single"]);
    assert_eq!(names(18.0), ["from_zero", "slower"]);
}

/// 7.0 to 7.7 comes out a little above 10 %, and 0.1 to 0.105 a little below 5 %.
#[test]
fn a_change_of_just_the_limit_is_no_regression() {
    for (percent, pairs) in [
        (5.0, [(0.1, 0.105), (0.3, 0.315), (1.9, 1.995), (300.0, 315.0)]),
        (10.0, [(7.0, 7.7), (0.3, 0.33), (1e-9, 1.1e-9), (100.0, 110.0)]),
    ] {
        for (before, after) in pairs {
            let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("a");
            part.metric("m", "ns", Better::Lower).sample("a", before).sample("b", after);
            let document = Document::new("test", Host::default()).with(part);
            assert_eq!(regressions(&document, percent), [], "{before} to {after}");
            assert_eq!(regressions(&document, percent - 0.001).len(), 1, "{before} to {after}");
        }
    }
}
