//! Plots as snapshots, in both alphabets.

use super::*;
use crate::host::Host;
use crate::result::Kind;

/// A curve over cores, bars, and samples enough for a histogram.
fn sample() -> Document {
    let mut part = Part::new("lock-line", "scaling", Kind::Simulated, "ivy-bridge-ex-4s").baseline("ticket");
    for cores in [1, 2, 4, 8, 16, 26] {
        let n = f64::from(cores);
        part.metric(format!("alloc_ns[cores={cores}]"), "ns", Better::Lower)
            .samples("ticket", [100.0 + 3.0 * n * n])
            .samples("queued", [130.0 + 20.0 * n])
            .interval("ticket", 90.0 + 2.5 * n * n, 110.0 + 3.5 * n * n);
    }
    part.metric("jobs_per_minute", "jobs/min", Better::Higher)
        .samples("ticket", [84_000.0, 84_568.0, 86_000.0])
        .samples("queued", [120_000.0, 121_000.0, 140_000.0]);
    part.metric("lists[batch=7]", "1", Better::None).sample("ticket", 0.0);
    part.metric("wait_ns", "ns", Better::Lower)
        .samples("ticket", (0..60).map(|index| 50.0 + f64::from(index * index % 97)));
    Document::new("test", Host::default()).with(part)
}

#[test]
fn every_kind_of_plot_in_both_alphabets() {
    for (name, unicode) in [("plot-unicode", true), ("plot-ascii", false)] {
        let terminal = Terminal { width: Some(80), colour: false, unicode };
        let text = document(&sample(), &terminal);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "wider than the terminal: {line}");
        }
        assert!(unicode || text.is_ascii());
        insta::assert_snapshot!(name, text);
    }
}

#[test]
fn narrow_and_wide_terminals_are_filled() {
    for width in [40, 60, 120, 200] {
        let terminal = Terminal { width: Some(width), ..Terminal::plain() };
        let text = document(&sample(), &terminal);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(widest <= width.max(60) && widest + 8 > width, "{widest} of {width} columns");
    }
}

#[test]
fn degenerate_data_is_drawn() {
    let terminal = Terminal::plain();
    assert!(curve("none", "x", &[], 0.0, &terminal).contains("no points"));
    let alone =
        Series { name: "alone".to_owned(), points: vec![Point { x: 3.0, y: -2.0, low: -2.0, high: -2.0 }] };
    assert!(curve("one", "x", &[alone], 0.0, &terminal).contains('●'));
    assert!(histogram("equal", &[5.0; 4], &terminal).contains("4 samples, all 5"));
    let below = Bar { name: "below".to_owned(), value: -1.0, low: -1.0, high: -1.0, published: None };
    let above = Bar { name: "above".to_owned(), value: 1.0, low: 1.0, high: 1.0, published: None };
    let text = bars("negative", &[below, above], (0.0, 0.0), &terminal);
    let line = |name: &str| text.lines().find(|line| line.contains(name)).expect("a line").to_owned();
    let [below, above] = ["below", "above"].map(line);
    assert!(below.contains("-1") && below.contains('█') && above.contains('█'), "{text}");
    assert!(below.find('█') < above.find('█'), "they grow away from zero: {text}");
}

/// Bars of one family share a scale, a curve is drawn for each machine, and quantiles lie where their distance shows.
#[test]
fn what_is_compared_has_one_scale() {
    let mut part = Part::new("s", "p", Kind::Simulated, "m").baseline("v");
    for (machine, ms) in [("a", 856.0), ("b", 155.0)] {
        part.metric(format!("init_ms[machine={machine}]"), "ms", Better::Lower).sample("v", ms);
        for threads in [1, 52, 2, 4] {
            part.metric(format!("threads_ms[machine={machine},threads={threads}]"), "ms", Better::Lower)
                .sample("v", ms / f64::from(threads));
        }
    }
    for quantile in [0.5, 0.9, 0.99, 0.999] {
        part.metric(format!("alloc_ns[quantile={quantile}]"), "ns", Better::Lower).sample("v", 9.0);
    }
    let text = document(&Document::new("test", Host::default()).with(part), &Terminal::plain());
    let bar = |value: &str| {
        let line = text.lines().find(|line| line.starts_with("  v ") && line.ends_with(value));
        line.unwrap_or_else(|| panic!("{value} in {text}")).matches('█').count()
    };
    assert!(bar(" 155") * 5 < bar(" 856") && bar(" 155") * 6 > bar(" 856"), "{text}");
    for machine in ["a", "b"] {
        assert_eq!(text.matches(&format!("threads, {machine} (ms")).count(), 1, "a curve each: {text}");
    }
    // One axis for both machines, with the counts in order.
    let is_top = |line: &&str| line.trim_start().starts_with("856 │");
    assert_eq!(text.lines().filter(is_top).count(), 2, "{text}");
    let axis = text.lines().find(|line| line.trim_start().starts_with("1 ") && line.ends_with("52"));
    assert!(axis.is_some(), "{text}");
    let axis = text.lines().find(|line| line.contains("1000") && line.contains("100 ")).expect("quantiles");
    let at = |mark: &str| axis.find(mark).expect("a tick");
    assert!(at("2") < at("10") && at("10") < at("100") && at("100") < at("1000"), "{axis}");
}

#[test]
fn labels_are_short() {
    let cases = [
        (0.0, "0"),
        (0.0156, "0.0156"),
        (1.5, "1.50"),
        (15.25, "15.2"),
        (378.4, "378"),
        (9999.0, "9999"),
        (15_130.0, "15.1k"),
        (1_900_000.0, "1.90M"),
        (2e9, "2G"),
        (1e300, "1.00e300"),
        (-2e-12, "-2.00e-12"),
    ];
    for (value, expected) in cases {
        assert_eq!(label(value), expected, "{value}");
    }
}
