//! Every style in every format, as snapshots; and the check values that were published for the styles.

use super::*;
use crate::host::Host;
use crate::result::{Better, Document, Kind, Part};
use crate::terminal::Terminal;

fn host() -> Host {
    Host {
        cpu: "AMD EPYC 7742".to_owned(),
        cpus: 2,
        kernel: "Linux 6.1.0".to_owned(),
        memory_bytes: Some(24 << 30),
        governor: Some("performance".to_owned()),
        transparent_hugepage: Some("always".to_owned()),
        is_virtual: Some(true),
    }
}

/// Samples around a centre, spread by `step`, without randomness.
fn around(centre: f64, step: f64) -> impl Iterator<Item = f64> {
    (0..9).map(move |index| centre + step * f64::from((index * 5) % 9 - 4))
}

/// A measured part: better, worse, unclear, from zero, missing, neither way better.
fn refill() -> Document {
    let mut part =
        Part::new("refill-check", "huge", Kind::Measured, "host").seed(1).baseline("under_zone_lock");
    part.metric("alloc_ns[cores=2]", "ns", Better::Lower)
        .samples("under_zone_lock", around(15000.0, 100.0))
        .samples("after_unlock", around(8000.0, 60.0))
        .samples("off", around(3000.0, 20.0));
    part.metric("zone_lock_acquisitions_per_page", "1", Better::Lower)
        .samples("under_zone_lock", around(0.0156, 0.0001))
        .samples("after_unlock", around(0.0156, 0.0001))
        .samples("off", around(0.0161, 0.0001));
    part.metric("blocks_per_second", "1/s", Better::Higher)
        .samples("under_zone_lock", around(66_000.0, 300.0))
        .samples("after_unlock", around(124_000.0, 900.0))
        .samples("off", around(331_000.0, 900.0));
    part.metric("steals", "1", Better::None)
        .samples("under_zone_lock", [0.0; 9])
        .samples("after_unlock", [0.0; 9])
        .samples("off", [3.0; 9]);
    part.metric("idle", "%", Better::None)
        .samples("under_zone_lock", around(10.0, 0.1))
        .samples("after_unlock", around(15.0, 0.1));
    part.note("Descriptors of 64 bytes, cold when checked.");
    Document::new("study refill-check", host()).with(part)
}

/// A simulated part with durations and predicted intervals.
fn kernbench() -> Document {
    let (base, new) = ("5.3.0-vanilla", "5.3.0-variant-v1r1");
    let mut part =
        Part::new("pcp-reset", "kernbench", Kind::Simulated, "epyc-7742-2s").seed(7).baseline(base);
    part.metric("user_seconds", "s", Better::Lower)
        .samples(base, [13200.0, 13250.5, 13298.0])
        .samples(new, [13240.0, 13190.0, 13260.0])
        .interval(base, 12900.0, 13600.0)
        .interval(new, 12800.0, 13500.0);
    part.metric("elsp_seconds", "s", Better::Lower)
        .samples(base, [400.0, 401.0, 399.0])
        .samples(new, [250.0, 251.0, 249.0]);
    for (name, value) in [(DURATION_USER, 39766.24), (DURATION_SYSTEM, 44298.10), (DURATION_ELAPSED, 519.11)]
    {
        part.metric(name, "s", Better::Lower).sample(base, value).sample(new, value / 2.0);
    }
    Document::new("study pcp-reset", host()).with(part)
}

/// A part with the reclaim block. The baseline's duration and its direct reclaim are published figures.
fn fsmark() -> Document {
    let mut part = Part::new("zone-reclaim", "fsmark", Kind::Measured, "host").seed(1).baseline("vanilla");
    part.metric("files_per_second", "1/s", Better::Higher)
        .samples("vanilla", [54.9, 84.33, 361.1, 90.0])
        .samples("variant", [60.0, 100.0, 300.0, 110.0]);
    part.metric("step_seconds[step=dd]", "s", Better::Lower)
        .sample("vanilla", 400.0)
        .sample("variant", 250.0);
    for (name, vanilla, variant) in [
        (DURATION_USER, 301.49, 300.0),
        (DURATION_SYSTEM, 200.0, 190.0),
        (DURATION_ELAPSED, 2451.57, 2000.0),
        ("page_ins_kib", 40_000.0, 50_000.0),
        ("page_outs_kib", 80_000_000.0, 90_000_000.0),
        ("swap_ins_pages", 0.0, 0.0),
        ("swap_outs_pages", 0.0, 0.0),
        ("direct_pages_scanned", 13_091_697.0, 9_000_000.0),
        ("kswapd_pages_scanned", 0.0, 1_000_000.0),
        ("kswapd_pages_reclaimed", 0.0, 999_999.0),
        ("direct_pages_reclaimed", 13_037_777.0, 8_999_999.0),
        ("page_writes_by_reclaim", 0.0, 3.0),
        ("slabs_scanned", 600_000.0, 700_000.0),
        ("direct_inode_steals", 6_000_000.0, 7_000_000.0),
        ("kswapd_inode_steals", 0.0, 1.0),
    ] {
        part.metric(name, "1", Better::None).sample("vanilla", vanilla).sample("variant", variant);
    }
    Document::new("study zone-reclaim", host()).with(part)
}

/// Arithmetic, with a combination that occurs in one variant only.
fn structure() -> Document {
    let mut part = Part::new("pcp-reset", "structure", Kind::Derived, "epyc-7742-2s").baseline("vanilla");
    part.metric("lists[batch=1,high=0]", "1", Better::None).sample("vanilla", 256.0).sample("reset", 256.0);
    part.metric("lists[batch=7,high=42]", "1", Better::None).sample("vanilla", 512.0);
    part.metric("lists[batch=63,high=378]", "1", Better::None)
        .sample("vanilla", 256.0)
        .sample("reset", 768.0);
    Document::new("study pcp-reset", host()).with(part)
}

/// Two machines, two metrics each. The baseline's figures are published ones.
fn boot() -> Document {
    let (base, new) = ("one_thread_per_node", "all_cpus");
    let mut part = Part::new("parallel-init", "machines", Kind::Simulated, "all").seed(1).baseline(base);
    for (metric, before, after) in [
        ("boot_ms[machine=skylake-8167m-2s]", [4051.2, 4057.0, 4062.0], [2400.0, 2401.0, 2402.0]),
        ("deferred_init_ms[machine=skylake-8167m-2s]", [1759.0, 1763.4, 1767.6], [300.0, 301.0, 302.0]),
        ("boot_ms[machine=naples-7551-vm4]", [738.0, 763.0, 772.0], [700.0, 701.0, 702.0]),
        ("deferred_init_ms[machine=naples-7551-vm4]", [57.0; 3], [50.0, 50.0, 51.0]),
    ] {
        part.metric(metric, "ms", Better::Lower).samples(base, before).samples(new, after);
    }
    Document::new("study parallel-init", host()).with(part)
}

fn fits(text: &str, width: usize) {
    for line in text.lines() {
        assert!(line.chars().count() <= width, "wider than {width} columns: {line}");
    }
}

/// How a document looks for a reader, on the two kinds of paper and in the three notations.
fn all_formats(document: &Document, style: Style) -> String {
    let tables = tables(document, style, Options::default());
    let narrow = Terminal { width: Some(80), ..Terminal::plain() };
    let text = render(&tables, Format::Table, &narrow);
    fits(&text, 80);
    let ascii = render(&tables, Format::Table, &Terminal { unicode: false, ..Terminal::plain() });
    assert!(ascii.is_ascii(), "{ascii}");
    let markdown = render(&tables, Format::Markdown, &Terminal::plain());
    let csv = render(&tables, Format::Csv, &Terminal::plain());
    let commas = |line: &str| {
        // Commas inside of quotes are not separators.
        line.split('"').step_by(2).map(|outside| outside.matches(',').count()).sum::<usize>()
    };
    let expected = csv.lines().next().map(commas);
    for line in csv.lines() {
        assert_eq!(Some(commas(line)), expected, "as many fields as the head: {line}");
    }
    let wide = render(&tables, Format::Table, &Terminal::plain());
    format!("{wide}\n######## 80 columns\n{text}\n######## Markdown\n{markdown}\n######## CSV\n{csv}")
}

/// Titles of every length are broken for every width, the last line of one like the others.
#[test]
fn tables_and_plots_are_no_wider_than_the_terminal() {
    let mut part = Part::new("replay", "trace", Kind::Measured, "host").baseline("base").paired();
    for words in 1..30 {
        let name = "moves_of_a_line".split('_').cycle().take(words).collect::<Vec<_>>().join("_");
        part.metric(format!("{name}[repeat=15]"), "ns", Better::Lower)
            .samples("base", (0..6).map(|n| 100.0 + f64::from(n)))
            .samples("new", (0..6).map(|n| 50.0 + f64::from(n % 4)));
    }
    let document = Document::new("replay", host()).with(part);
    for width in 64..120 {
        let terminal = Terminal { width: Some(width), ..Terminal::plain() };
        let tables = tables(&document, Style::Framewright, Options::default());
        let text = render(&tables, Format::Table, &terminal) + &crate::plot::document(&document, &terminal);
        fits(&text, width);
    }
    // Bands of the baseline and a later column, which is wider than the second.
    let studies = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/validation/studies.json");
    let mut document = Document::read(studies.as_ref()).expect("a result");
    document.results.retain(|part| part.part == "threads");
    assert!(!document.results.is_empty());
    let terminal = Terminal { width: Some(80), ..Terminal::plain() };
    let text = render(&tables(&document, Style::Framewright, Options::default()), Format::Table, &terminal);
    fits(&text, 80);
    let terminal = Terminal { width: Some(40), ..Terminal::plain() };
    let text =
        render(&tables(&structure(), Style::Framewright, Options::default()), Format::Table, &terminal);
    assert!(text.starts_with("pcp-reset, part structure: derived for\n  epyc-7742-2s\n"), "{text}");
}

#[test]
fn every_style_is_as_it_was_read() {
    for (name, document, style) in [
        ("framewright-measured", refill(), Style::Framewright),
        ("framewright-simulated", kernbench(), Style::Framewright),
        ("framewright-derived", structure(), Style::Framewright),
        ("mmtests-2011", fsmark(), Style::Mmtests2011),
        ("mmtests-2019-kernbench", kernbench(), Style::Mmtests2019),
        ("mmtests-2019-refill", refill(), Style::Mmtests2019),
        ("mmtests-2019-reclaim", fsmark(), Style::Mmtests2019),
        ("mmtests-2024", refill(), Style::Mmtests2024),
        ("lkp", refill(), Style::Lkp),
        ("lkp-durations", kernbench(), Style::Lkp),
        ("deferred-init-2020", boot(), Style::DeferredInit2020),
    ] {
        insta::assert_snapshot!(name, all_formats(&document, style));
    }
    let tables = tables(&refill(), Style::Mmtests2024, Options { all_statistics: true });
    insta::assert_snapshot!("mmtests-2024-all", render(&tables, Format::Table, &Terminal::plain()));
}

/// A time that rounds to no millisecond has no speedup: that of 1 ms over it was `-inf%`.
#[test]
fn a_baseline_of_no_whole_millisecond_has_no_speedup() {
    let part = Part::new("parallel-init", "machines", Kind::Simulated, "all").baseline("one");
    let mut part = part.variant("every");
    part.metric("boot_ms", "ms", Better::Lower).samples("one", [0.3; 3]).samples("every", [1.2; 3]);
    let document = Document::new("study parallel-init", host()).with(part);
    assert_eq!(line(&document, Style::DeferredInit2020, "every"), "every         --       1.0 (   0.0)");
}

/// The row of a text table that begins, or for LKP ends, with a label.
fn line(document: &Document, style: Style, label: &str) -> String {
    let text = render(&tables(document, style, Options::default()), Format::Table, &Terminal::plain());
    let found = text.lines().find(|line| line.starts_with(label) || line.ends_with(label));
    found.unwrap_or_else(|| panic!("no row {label} in\n{text}")).to_owned()
}

#[test]
fn four_hundred_to_two_hundred_and_fifty_seconds_under_each_style() {
    let seconds = "step_seconds[step=dd]";
    let of_2011 = line(&fsmark(), Style::Mmtests2011, seconds);
    assert!(of_2011.ends_with("     400.00 ( 0.00%)       250.00 (60.00%)"), "{of_2011}");
    let of_2019 = line(&kernbench(), Style::Mmtests2019, "Amean  elsp_seconds");
    assert!(of_2019.ends_with("      400.00 (   0.00%)      250.00 *  37.50%*"), "{of_2019}");
    let of_lkp = line(&kernbench(), Style::Lkp, "elsp_seconds");
    assert!(of_lkp.contains("    400.00 ±  0%     -37.5%     250.00 ±  0%  elsp_seconds"), "{of_lkp}");
}

#[test]
fn the_published_velocity_and_efficiency() {
    let velocity = line(&fsmark(), Style::Mmtests2011, "Direct velocity");
    assert!(velocity.contains("  5340.128"), "{velocity}");
    // 99.588 % is truncated, not rounded, in 2011.
    let of_2011 = line(&fsmark(), Style::Mmtests2011, "Direct efficiency");
    assert!(of_2011.contains("   99% "), "{of_2011}");
    let of_2019 = line(&fsmark(), Style::Mmtests2019, "Direct efficiency");
    assert!(of_2019.contains("  99.59%"), "{of_2019}");
    let idle = line(&fsmark(), Style::Mmtests2011, "Kswapd efficiency");
    assert!(idle.contains("  100% "), "nothing scanned: {idle}");
}

#[test]
fn deviations_divide_as_their_year_did() {
    let row = |style, label| line(&fsmark(), style, label);
    // 54.9, 84.33, 361.1 and 90: the squared distances from their mean add up to 61496.
    assert!(row(Style::Mmtests2011, "files_per_second      stddev").contains(" 123.99 "));
    assert!(row(Style::Mmtests2019, "Stddev files_per_second").contains(" 143.17 "));
    // n / Σ(1/x), and √(H⁴ Σ(1/x - 1/H)² / n)
    assert!(row(Style::Mmtests2024, "Hmean   files_per_second").contains(" 91.01 "));
    assert!(row(Style::Mmtests2024, "HStddev files_per_second").contains(" 45.47 "));
}

#[test]
fn nothing_at_all_is_a_table_too() {
    let empty = Document::new("test", host()).with(Part::new("s", "p", Kind::Measured, "host").baseline("v"));
    for style in Style::value_variants() {
        for format in Format::value_variants() {
            let text = render(&tables(&empty, *style, Options::default()), *format, &Terminal::plain());
            assert!(!text.is_empty());
        }
    }
}

#[test]
fn listings_align_numbers_and_continue_prose() {
    let mut listing = Listing::new("Numbers", &["name", "n", "what"]);
    let prose = "a sentence that is so long that it has to go on below itself, ".repeat(2);
    listing.row(["a".to_owned(), "1".to_owned(), prose]);
    listing.row(["b, c".to_owned(), "200".to_owned(), "± short".to_owned()]);
    let ascii = Terminal { unicode: false, ..Terminal::plain() };
    let formats = [
        listing.render(Format::Table, &Terminal::plain()),
        listing.render(Format::Table, &ascii),
        listing.render(Format::Csv, &Terminal::plain()),
        listing.render(Format::Markdown, &Terminal::plain()),
    ];
    insta::assert_snapshot!("listing", formats.join("\n"));
}

#[test]
fn names_that_hold_anything_stay_in_their_row() {
    let mut listing = Listing::new("", &["thread", "n"]);
    listing.row(["a\nb\u{1b}[31m\t".to_owned(), "1".to_owned()]);
    for format in [Format::Table, Format::Csv, Format::Markdown] {
        let text = listing.render(format, &Terminal::plain());
        assert!(text.contains("a?b?[31m?"), "{text:?}");
    }
}

/// Values that break formulas: zeros, signs, extremes.
const AWKWARD: [f64; 12] =
    [0.0, -0.0, 1.0, -1.0, 1e-320, 1e308, -1e308, f64::EPSILON, 999.999_5, 1e8, 1e15, f64::MIN_POSITIVE];

#[test]
fn awkward_figures_give_a_table_and_a_plot_whatever_the_style() {
    // A linear congruence is enough to mix: each round takes other values, counts and directions.
    let mut state = 1_u64;
    let mut next = |bound: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % bound
    };
    for _ in 0..60 {
        let kind = [Kind::Measured, Kind::Simulated, Kind::Derived][next(3)];
        let mut part = Part::new("s", "p", kind, "host").baseline("base").variant("new").variant("other");
        for index in 0..6 {
            let better = [Better::Lower, Better::Higher, Better::None][next(3)];
            let name = [format!("m[n={index}]"), format!("x{index}"), "direct_pages_scanned".to_owned()];
            for variant in ["base", "new", "other"] {
                let samples: Vec<f64> = (0..next(5)).map(|_| AWKWARD[next(AWKWARD.len())]).collect();
                if !samples.is_empty() {
                    part.metric(&name[next(3)], ["1", "%", "ns"][next(3)], better).samples(variant, samples);
                }
            }
        }
        let document = Document::new("test", host()).with(part);
        document.validate().expect("awkward but valid");
        let narrow = Terminal { width: Some(60), ..Terminal::plain() };
        for style in Style::value_variants() {
            let options = Options { all_statistics: true };
            let tables = tables(&document, *style, options);
            for format in Format::value_variants() {
                assert!(!render(&tables, *format, &narrow).is_empty());
            }
        }
        assert!(!crate::plot::document(&document, &narrow).is_empty());
    }
}
