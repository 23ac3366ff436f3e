//! Saved results side by side: which parts belong together, what got worse.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::error::{Error, Result};
use crate::result::{Better, Document, Kind, Metric, Part, Source};
use crate::stats::ratio::{Ratio, Verdict, verdict};
use crate::stats::{gmean, median};

/// A saved result and the name that its columns get.
#[derive(Clone, Debug)]
pub struct Saved {
    /// Short name, unique among the files that are compared.
    pub label: String,
    /// Content of the file.
    pub document: Document,
}

impl Saved {
    /// Reads result files. Each is named by its file name without extension, or by its whole path where that
    /// is not unique; a file that is given twice gets a number.
    ///
    /// # Errors
    /// The first file that cannot be read or is no result.
    pub fn read_all<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<Self>> {
        let stem = |path: &Path| {
            path.file_stem()
                .map_or_else(|| path.display().to_string(), |stem| stem.to_string_lossy().into_owned())
        };
        let stems: Vec<String> = paths.iter().map(|path| stem(path.as_ref())).collect();
        let mut labels: Vec<String> = Vec::new();
        for (path, stem) in paths.iter().zip(&stems) {
            let shared = stems.iter().filter(|candidate| *candidate == stem).count() > 1;
            let name = if shared { path.as_ref().display().to_string() } else { stem.clone() };
            let mut numbered = (2..).map(|n| format!("{name} ({n})"));
            let label =
                if labels.contains(&name) { numbered.find(|label| !labels.contains(label)) } else { None };
            labels.push(label.unwrap_or(name));
        }
        let read = |(path, label): (&P, String)| Ok(Self { label, document: Document::read(path.as_ref())? });
        paths.iter().zip(labels).map(read).collect()
    }
}

/// One document out of several, the first being the baseline. One file alone stays as it is.
///
/// Parts belong together if study, part, kind and machine agree. If the first file and another share
/// variants, each shared variant becomes a part of its own whose columns are the files; else the variants
/// stand side by side. What only some files have is named in a note.
///
/// # Errors
/// No file, or no part that the first file shares with all others.
pub fn merge(files: &[Saved]) -> Result<Document> {
    let Some((base, others)) = files.split_first() else {
        return Err(Error::usage("nothing to compare; name at least one result file"));
    };
    if others.is_empty() {
        return Ok(base.document.clone());
    }
    let names: Vec<&str> = files.iter().map(|file| file.label.as_str()).collect();
    let mut merged = Document::new(format!("compare {}", names.join(" ")), base.document.host.clone());
    merged.sources = files.iter().map(source).collect();
    for part in &base.document.results {
        let found: Option<Vec<(&Saved, &Part)>> = others
            .iter()
            .map(|file| Some((file, file.document.results.iter().find(|part_there| same(part, part_there))?)))
            .collect();
        if let Some(others) = found {
            merged.results.extend(merge_part((base, part), &others));
        }
    }
    if merged.results.is_empty() {
        return Err(Error::failed(format_args!("the files have no part in common: {}", listing(files))));
    }
    for file in others {
        if file.document.host != base.document.host {
            let note = format!(
                "{} ran on another host than {}: {}.",
                file.label,
                base.label,
                file.document.host.summary()
            );
            let measured = merged.results.iter_mut().filter(|part| part.kind == Kind::Measured);
            measured.for_each(|part| {
                part.note(note.clone());
            });
        }
    }
    Ok(merged)
}

fn source(file: &Saved) -> Source {
    let document = &file.document;
    Source {
        label: file.label.clone(),
        command: document.command_line(),
        date: document.date.clone(),
        version: document.version(),
        host: document.host.summary(),
    }
}

fn same(a: &Part, b: &Part) -> bool {
    (&a.study, &a.part, a.kind, &a.machine) == (&b.study, &b.part, b.kind, &b.machine)
}

/// What each file has, for the message that nothing is common.
fn listing(files: &[Saved]) -> String {
    let parts = |file: &Saved| {
        let parts: Vec<String> = file
            .document
            .results
            .iter()
            .map(|part| format!("{} {} ({} on {})", part.study, part.part, part.kind, part.machine))
            .collect();
        if parts.is_empty() { "nothing".to_owned() } else { parts.join(", ") }
    };
    files.iter().map(|file| format!("{} has {}", file.label, parts(file))).collect::<Vec<_>>().join("; ")
}

fn merge_part(base: (&Saved, &Part), others: &[(&Saved, &Part)]) -> Vec<Part> {
    let shared: Vec<&String> = base
        .1
        .variants
        .iter()
        .filter(|variant| others.iter().all(|(_, compared)| compared.variants.contains(variant)))
        .collect();
    if shared.is_empty() {
        return vec![side_by_side(base, others)];
    }
    let several = base.1.variants.len() > 1 || others.iter().any(|(_, compared)| compared.variants.len() > 1);
    shared.iter().map(|variant| one_variant(base, others, variant, several)).collect()
}

/// A variant of every file; the columns are the files.
fn one_variant(base: (&Saved, &Part), others: &[(&Saved, &Part)], variant: &str, named: bool) -> Part {
    let mut part = base.1.clone();
    if named {
        part.part = format!("{}[variant={variant}]", base.1.part);
    }
    part.baseline.clone_from(&base.0.label);
    part.variants = vec![base.0.label.clone()];
    part.variants.extend(others.iter().map(|(file, _)| file.label.clone()));
    clear(&mut part);
    let columns = || [base].into_iter().chain(others.iter().copied());
    for (file, compared) in columns() {
        if let Some(settings) = compared.settings.get(variant) {
            part.settings.insert(file.label.clone(), settings.clone());
        }
    }
    for metric in metrics_of(columns().map(|(_, part)| part)) {
        for (file, compared) in columns() {
            take(&mut part, &file.label, compared, variant, metric);
        }
    }
    for (file, compared) in others {
        note_differences(&mut part, base, (file, compared), Some(variant));
    }
    finish(part, columns().map(|(_, part)| part))
}

/// Files without a variant in common: the variants of each, in the order of the files.
fn side_by_side(base: (&Saved, &Part), others: &[(&Saved, &Part)]) -> Part {
    let mut part = base.1.clone();
    clear(&mut part);
    let columns = || [base].into_iter().chain(others.iter().copied());
    part.settings = columns().flat_map(|(_, part)| part.settings.clone()).collect();
    for (file, compared) in others {
        note_differences(&mut part, base, (file, compared), None);
    }
    for metric in metrics_of(columns().map(|(_, part)| part)) {
        for (_, compared) in columns() {
            for variant in &compared.variants {
                take(&mut part, variant, compared, variant, metric);
            }
        }
    }
    finish(part, columns().map(|(_, part)| part))
}

/// Removes what holds of one file only. Samples of separate runs are no pairs.
fn clear(part: &mut Part) {
    part.event_log_hash = None;
    part.paired = false;
    part.notes.clear();
    part.settings.clear();
    part.metrics.clear();
}

/// Notes what is not the same in two files, though it should be where one change is to be seen: the trace, what the
/// figures depend on, and the settings of the variant that both have.
fn note_differences(
    part: &mut Part,
    base: (&Saved, &Part),
    compared: (&Saved, &Part),
    variant: Option<&str>,
) {
    let (a, b) = (&base.0.label, &compared.0.label);
    let hash = |part: &Part| part.trace.as_ref().map(|trace| trace.sha256.clone());
    if hash(base.1) != hash(compared.1) {
        let name = |part: &Part| part.trace.as_ref().map_or("none", |trace| &trace.name).to_owned();
        let (ours, theirs) = (name(base.1), name(compared.1));
        part.note(format!("Warning: other traces were replayed: {a} {ours}, {b} {theirs}."));
    }
    let nothing = BTreeMap::new();
    let settings =
        |part: &'_ Part| variant.and_then(|variant| part.settings.get(variant)).unwrap_or(&nothing).clone();
    let pairs = [
        ("other settings", settings(base.1), settings(compared.1)),
        ("other conditions", base.1.conditions.clone(), compared.1.conditions.clone()),
    ];
    for (what, ours, theirs) in pairs {
        // Results of older versions do not say.
        if ours.is_empty() || theirs.is_empty() {
            continue;
        }
        let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let value = |settings: &BTreeMap<String, String>, name: &String| {
            settings.get(name).map_or("none", |value| value).to_owned()
        };
        let differing: Vec<String> = names
            .into_iter()
            .filter(|name| ours.get(*name) != theirs.get(*name))
            .map(|name| format!("{name} {a} {}, {b} {}", value(&ours, name), value(&theirs, name)))
            .collect();
        if !differing.is_empty() {
            part.note(format!("Warning: {what}: {}.", differing.join("; ")));
        }
    }
}

/// Every metric of any part, in the order of the first and then of the others.
fn metrics_of<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<&'a Metric> {
    let mut metrics: Vec<&Metric> = Vec::new();
    for metric in parts.flat_map(|part| &part.metrics) {
        if !metrics.iter().any(|known| known.name == metric.name) {
            metrics.push(metric);
        }
    }
    metrics
}

/// Copies what `from` has of a metric's variant into a column of `part`.
fn take(part: &mut Part, column: &str, from: &Part, variant: &str, metric: &Metric) {
    let Some(found) = from.find(&metric.name).filter(|found| !found.of(variant).is_empty()) else { return };
    // Nothing is compared across units.
    if found.unit != metric.unit {
        part.note(format!("{}: {} in one file, {} in another.", metric.name, metric.unit, found.unit));
        return;
    }
    let mut entry = part
        .metric(&metric.name, &metric.unit, metric.better)
        .samples(column, found.of(variant).iter().copied());
    if metric.is_share {
        entry = entry.share();
    }
    if metric.is_exact && found.is_exact {
        entry = entry.exact();
    }
    if let Some([low, high]) = found.interval.get(variant) {
        entry.interval(column, *low, *high);
    }
}

/// Leaves what can be compared, and notes the rest and what the files said themselves.
fn finish<'a>(mut part: Part, sources: impl Iterator<Item = &'a Part>) -> Part {
    let (comparable, alone): (Vec<Metric>, Vec<Metric>) = core::mem::take(&mut part.metrics)
        .into_iter()
        .partition(|metric| metric.samples.len() > 1 && !metric.of(&part.baseline).is_empty());
    part.metrics = comparable;
    if !alone.is_empty() {
        let names: Vec<&str> = alone.iter().map(|metric| metric.name.as_str()).collect();
        part.note(format!("Not in the baseline and another file: {}.", names.join(", ")));
    }
    for note in sources.flat_map(|source| &source.notes) {
        part.note(note.clone());
    }
    part
}

/// Leaves only the metrics that match a pattern of `*` and `?`.
///
/// # Errors
/// No metric matches.
pub fn keep_metrics(document: &mut Document, pattern: &str) -> Result<()> {
    let all: Vec<String> =
        document.results.iter().flat_map(|part| &part.metrics).map(|metric| metric.name.clone()).collect();
    for part in &mut document.results {
        part.metrics.retain(|metric| matches(pattern, &metric.name));
    }
    document.results.retain(|part| !part.metrics.is_empty());
    if document.results.is_empty() {
        let mut names: Vec<&str> = all.iter().map(String::as_str).collect();
        names.sort_unstable();
        names.dedup();
        let more = if names.len() > 8 { ", …" } else { "" };
        names.truncate(8);
        return Err(Error::usage(format_args!(
            "no metric matches `{pattern}`; there are {}{more}",
            names.join(", ")
        )));
    }
    Ok(())
}

/// Leaves only the parts of this name.
///
/// # Errors
/// There is none; the message lists those that there are.
pub fn keep_part(document: &mut Document, name: &str) -> Result<()> {
    // A variant in brackets was added where files share several.
    let plain = |part: &Part| part.part.split('[').next().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = document.results.iter().map(plain).collect();
    document.results.retain(|part| part.part == name || plain(part) == name);
    if document.results.is_empty() {
        let names: Vec<String> = names.into_iter().collect();
        return Err(Error::usage(format_args!("no part `{name}`; there are {}", names.join(", "))));
    }
    Ok(())
}

/// Leaves only metrics of which some column clearly differs from the baseline; each part says how many went.
pub fn keep_changed(document: &mut Document, seed: u64) {
    for part in &mut document.results {
        let whole = part.clone();
        let before = part.metrics.len();
        part.metrics.retain(|metric| {
            whole.variants.iter().filter(|variant| **variant != whole.baseline).any(|variant| {
                let ratio = Ratio::between(&whole, metric, variant, seed);
                let verdict = verdict(&whole, metric, variant, ratio);
                matches!(verdict, Verdict::Better | Verdict::Worse | Verdict::Changed)
            })
        });
        let hidden = before - part.metrics.len();
        if hidden > 0 {
            part.note(format!("{hidden} rows hidden: no clear change."));
        }
    }
}

/// An order of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Sort {
    /// By name
    Name,
    /// By the size of the change, largest first
    Change,
}

/// Sorts the metrics of each part.
pub fn sort_metrics(document: &mut Document, sort: Sort, seed: u64) {
    for part in &mut document.results {
        let whole = part.clone();
        match sort {
            Sort::Name => part.metrics.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Change => {
                // The same whether it is a third or three times as much.
                let change = |metric: &Metric| {
                    let others = whole.variants.iter().filter(|variant| **variant != whole.baseline);
                    let ratios = others
                        .filter_map(|variant| Some(Ratio::between(&whole, metric, variant, seed)?.ratio));
                    ratios.map(|ratio| ratio.ln().abs()).fold(0.0, f64::max)
                };
                part.metrics.sort_by(|a, b| change(b).total_cmp(&change(a)));
            }
        }
    }
}

/// Adds to each part a note with the geometric mean of each column's ratios, of each family that has several metrics:
/// figures of other families or units have no common mean.
pub fn add_means(document: &mut Document) {
    for part in &mut document.results {
        let mut families: Vec<(&str, &str)> = Vec::new();
        for metric in part.metrics.iter().filter(|metric| !metric.is_cause) {
            if !families.contains(&(metric.family(), &metric.unit)) {
                families.push((metric.family(), &metric.unit));
            }
        }
        let mut means = Vec::new();
        for (family, unit) in families {
            for variant in part.variants.iter().filter(|variant| **variant != part.baseline) {
                let ratios: Vec<f64> = part
                    .metrics
                    .iter()
                    .filter(|metric| (metric.family(), metric.unit.as_str()) == (family, unit))
                    .map(|metric| median(metric.of(variant)) / median(metric.of(&part.baseline)))
                    .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
                    .collect();
                if ratios.len() > 1 {
                    means.push(format!("{family} {variant} {:.3}× of {}", gmean(&ratios), ratios.len()));
                }
            }
        }
        if !means.is_empty() {
            part.note(format!("Geometric means of the ratios: {}.", means.join("; ")));
        }
    }
}

/// Whether `name` is what `pattern` says: `*` stands for any text, `?` for any character, all else for
/// itself. Brackets are part of metric names, so that they mean nothing special here.
///
/// O(pattern · name) in the worst case.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut read) = (0, 0);
    // Where to go on if the text that the last `*` stands for must grow.
    let mut retry: Option<(usize, usize)> = None;
    while read < name.len() {
        match pattern.get(at) {
            Some('*') => {
                retry = Some((at, read));
                at += 1;
            }
            Some(&wanted) if wanted == '?' || wanted == name[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                at = star + 1;
                read = from + 1;
            }
        }
    }
    pattern[at..].iter().all(|rest| *rest == '*')
}

/// A metric that got worse.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// Study and part.
    pub part: String,
    /// Name of the metric.
    pub metric: String,
    /// The column it got worse in.
    pub variant: String,
    /// By how many percent of the baseline's median; infinite from 0.
    pub percent: f64,
}

/// Metrics whose median is worse than the baseline's by more than `percent`, worst first.
///
/// Where both sides have samples enough to judge, noise is no regression: the bootstrap interval must
/// exclude that nothing changed. Metrics of which neither way is better cannot regress.
#[must_use]
pub fn regressions(document: &Document, percent: f64, seed: u64) -> Vec<Regression> {
    let mut found: Vec<Regression> = Vec::new();
    for part in &document.results {
        for metric in part.metrics.iter().filter(|metric| metric.better != Better::None) {
            for variant in part.variants.iter().filter(|variant| **variant != part.baseline) {
                let worse = percent_worse(part, metric, variant, seed);
                found.extend(worse.filter(|worse| *worse > percent).map(|percent| Regression {
                    part: format!("{} {}", part.study, part.part),
                    metric: metric.name.clone(),
                    variant: variant.clone(),
                    percent,
                }));
            }
        }
    }
    found.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    found
}

/// By how many percent a variant is worse, if that is more than noise.
fn percent_worse(part: &Part, metric: &Metric, variant: &str, seed: u64) -> Option<f64> {
    let (base, new) = (metric.of(&part.baseline), metric.of(variant));
    if base.is_empty() || new.is_empty() {
        return None;
    }
    let ratio = Ratio::between(part, metric, variant, seed);
    match verdict(part, metric, variant, ratio) {
        Verdict::Worse | Verdict::TooFew => {}
        Verdict::Better | Verdict::Changed | Verdict::Unclear => return None,
    }
    let (before, after) = (median(base), median(new));
    let rise = if before == 0.0 {
        if after == 0.0 { 0.0 } else { f64::INFINITY.copysign(after) }
    } else {
        100.0 * (after - before) / before.abs()
    };
    Some(if metric.better == Better::Higher { -rise } else { rise })
}

#[cfg(test)]
mod tests {
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
        let merged = merge(&[saved("a", &["vanilla"], 10.0), saved("b", &["reset"], 20.0)])
            .expect("they share a part");
        assert_eq!(merged.results[0].part, "replay");
        assert_eq!(merged.results[0].variants, ["vanilla", "reset"]);
    }

    #[test]
    fn one_variant_needs_no_name() {
        let merged = merge(&[saved("a", &["v"], 1.0), saved("b", &["v"], 2.0)]).expect("they share a part");
        assert_eq!((merged.results[0].part.as_str(), merged.results[0].variants.len()), ("replay", 2));
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
        assert!(notes.contains("Not in the baseline and another file: only_here."), "{notes}");
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
        let mut second = saved("b", &["v"], 1.0);
        second.document.results[0].metrics[0].unit = "us".to_owned();
        let merged = merge(&[saved("a", &["v"], 1.0), second]).expect("they share a part");
        assert!(merged.results[0].metrics.is_empty());
        assert!(merged.results[0].notes[0].contains("ns in one file, us in another"));
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
        sort_metrics(&mut document, Sort::Change, 1);
        let names = |document: &Document| -> Vec<String> {
            document.results[0].metrics.iter().map(|metric| metric.name.clone()).collect()
        };
        assert_eq!(names(&document), ["x[ninth]", "x[half]", "same"]);
        sort_metrics(&mut document, Sort::Name, 1);
        assert_eq!(names(&document), ["same", "x[half]", "x[ninth]"]);
        keep_changed(&mut document, 1);
        assert_eq!(names(&document), ["x[half]", "x[ninth]"]);
        document.results[0].metric("count", "1", Better::Lower).samples("a", [1.0]).samples("b", [9.0]);
        add_means(&mut document);
        let notes = &document.results[0].notes;
        assert_eq!(notes[0], "1 rows hidden: no clear change.");
        // The square root of 1/2 times 1/9, a little more for the spread; nothing of another family.
        assert!(notes[1].starts_with("Geometric means of the ratios: x b 0.24"), "{notes:?}");
    }

    #[test]
    fn patterns_take_brackets_as_they_are() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("alloc_ns[cores=2]", "alloc_ns[cores=2]", true),
            ("alloc_ns[*", "alloc_ns[cores=26]", true),
            ("*ns*", "zone_lock_wait_ns", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*b", "abab", true),
            ("*b", "aba", false),
            ("", "x", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn a_pattern_that_matches_nothing_lists_what_there_is() {
        let mut document = saved("a", &["v"], 1.0).document;
        keep_metrics(&mut document, "ns*").expect("it matches");
        let error = keep_metrics(&mut document, "bytes").expect_err("it matches nothing");
        assert_eq!(error.to_string(), "no metric matches `bytes`; there are ns_per_operation");
    }

    #[test]
    fn only_a_clear_and_large_enough_change_for_the_worse_is_a_regression() {
        let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("a");
        let low = [10.0, 10.1, 10.2, 10.1];
        let high = [12.0, 12.1, 12.2, 12.1];
        let wide = [5.0, 30.0, 9.0, 18.0];
        part.metric("slower", "ns", Better::Lower).samples("a", low).samples("b", high);
        part.metric("faster", "ns", Better::Lower).samples("a", high).samples("b", low);
        part.metric("less", "1", Better::Higher).samples("a", high).samples("b", low);
        part.metric("noise", "ns", Better::Lower).samples("a", low).samples("b", wide);
        part.metric("neither", "1", Better::None).samples("a", low).samples("b", high);
        part.metric("from_zero", "1", Better::Lower).samples("a", [0.0; 4]).samples("b", low);
        part.metric("single", "ns", Better::Lower).sample("a", 10.0).sample("b", 11.5);
        let document = Document::new("test", Host::default()).with(part);
        let names = |percent| -> Vec<String> {
            regressions(&document, percent, 1).into_iter().map(|regression| regression.metric).collect()
        };
        assert_eq!(names(5.0), ["from_zero", "slower", "less", "single"]);
        assert_eq!(names(18.0), ["from_zero", "slower"]);
    }
}
