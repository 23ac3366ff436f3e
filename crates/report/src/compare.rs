//! Saved results side by side: which parts belong together, what got worse.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use wildmatch::WildMatch;

use crate::error::{Error, Result};
use crate::result::short::rows_hidden;
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
/// Parts belong together if study, part, kind and machine agree. If all files share variants, each shared variant
/// becomes a part of its own whose columns are the files; else the variants stand side by side, with the file's name
/// where several files have one. What only some files have is named in a note.
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
    let parts: Vec<BTreeMap<_, &Part>> = others.iter().map(parts_by_key).collect();
    for part in &base.document.results {
        let found = others.iter().zip(&parts).map(|(file, parts)| Some((file, *parts.get(&key(part))?)));
        if let Some(others) = found.collect::<Option<Vec<_>>>() {
            merged.results.extend(merge_part((base, part), &others));
        }
    }
    if merged.results.is_empty() {
        return Err(Error::failed(format_args!("the files have no part in common: {}", listing(files))));
    }
    if merged.results.iter().all(|part| part.metrics.is_empty()) {
        let why = merged.results.iter().flat_map(|part| &part.notes).filter(|note| note.starts_with(ALONE));
        // Each variant that the files share has its part, and its note.
        let mut why: Vec<&str> = why.map(String::as_str).collect();
        why.dedup();
        return Err(Error::failed(format_args!("the files have no metric in common. {}", why.join(" "))));
    }
    for file in others {
        if file.document.host != base.document.host {
            let note = format!(
                "Warning: {} ran on another host than {}: {}.",
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

/// Beginning of the note about metrics that some files lack.
const ALONE: &str = "Not compared, as only one file has it";

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

/// The names that parts of several files must share to be compared.
fn key(part: &Part) -> (&str, &str, Kind, &str) {
    (&part.study, &part.part, part.kind, &part.machine)
}

/// The parts of a file by their key, the first of each.
fn parts_by_key(file: &Saved) -> BTreeMap<(&str, &str, Kind, &str), &Part> {
    file.document.results.iter().rev().map(|part| (key(part), part)).collect()
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
    let columns: Vec<(&Saved, &Part)> = [base].into_iter().chain(others.iter().copied()).collect();
    let metrics: Vec<BTreeMap<&str, Vec<&Metric>>> =
        columns.iter().map(|(_, part)| metrics_by_variant(part)).collect();
    let variants: Vec<BTreeSet<&String>> =
        others.iter().map(|(_, compared)| compared.variants.iter().collect()).collect();
    let in_all = |variant: &&String| variants.iter().all(|variants| variants.contains(variant));
    let shared: Vec<&String> = base.1.variants.iter().filter(in_all).collect();
    if shared.is_empty() {
        return vec![side_by_side(&columns, &metrics)];
    }
    let several = columns.iter().any(|(_, part)| part.variants.len() > 1);
    shared.iter().map(|variant| one_variant(&columns, &metrics, variant, several)).collect()
}

/// The metrics that have samples of each variant, in the order of the part.
fn metrics_by_variant(part: &Part) -> BTreeMap<&str, Vec<&Metric>> {
    let mut found: BTreeMap<&str, Vec<&Metric>> = BTreeMap::new();
    for metric in &part.metrics {
        for variant in metric.samples.keys() {
            found.entry(variant).or_default().push(metric);
        }
    }
    found
}

/// A variant of every file; the columns are the files.
fn one_variant(
    files: &[(&Saved, &Part)],
    metrics: &[BTreeMap<&str, Vec<&Metric>>],
    variant: &str,
    named: bool,
) -> Part {
    let base = files[0];
    // The files are the question, even if each is a table of allocators.
    let mut part = Part { is_table: false, ..without_results(base.1) };
    if named {
        part.part = format!("{}[variant={variant}]", base.1.part);
    }
    part.baseline.clone_from(&base.0.label);
    part.variants = files.iter().map(|(file, _)| file.label.clone()).collect();
    for (file, compared) in files {
        if let Some(settings) = compared.settings.get(variant) {
            part.settings.insert(file.label.clone(), settings.clone());
        }
    }
    let columns = files.iter().zip(metrics).filter_map(|((file, _), metrics)| {
        Some(Column { name: file.label.clone(), variant, metrics: metrics.get(variant)? })
    });
    fill(&mut part, columns);
    finish(part, files, Some(variant))
}

/// Files without a variant in common: the variants of each, in the order of the files.
fn side_by_side(files: &[(&Saved, &Part)], metrics: &[BTreeMap<&str, Vec<&Metric>>]) -> Part {
    let base = files[0];
    let mut part = without_results(base.1);
    let mut owners: BTreeMap<&String, u32> = BTreeMap::new();
    files
        .iter()
        .flat_map(|(_, part)| &part.variants)
        .for_each(|variant| *owners.entry(variant).or_default() += 1);
    let name = |file: &Saved, variant: &String| match owners.get(variant) {
        Some(2..) => format!("{variant} ({})", file.label),
        _ => variant.clone(),
    };
    part.baseline = name(base.0, &base.1.baseline);
    part.variants = base.1.variants.iter().map(|variant| name(base.0, variant)).collect();
    let settings = files.iter().flat_map(|(file, part)| {
        part.settings.iter().map(|(variant, settings)| (name(file, variant), settings.clone()))
    });
    part.settings = settings.collect();
    let columns = files.iter().zip(metrics).flat_map(|((file, compared), metrics)| {
        let with_metrics =
            compared.variants.iter().filter_map(|variant| Some((variant, metrics.get(&**variant)?)));
        with_metrics.map(|(variant, metrics)| Column { name: name(file, variant), variant, metrics })
    });
    fill(&mut part, columns);
    finish(part, files, None)
}

/// A part without what holds of one file only. Samples of separate runs are no pairs.
fn without_results(part: &Part) -> Part {
    Part {
        seed: part.seed,
        headline: part.headline.clone(),
        is_table: part.is_table,
        conditions: part.conditions.clone(),
        trace: part.trace.clone(),
        ..Part::new(&part.study, &part.part, part.kind, &part.machine)
    }
}

/// Notes what is not the same in two files, though it should be where one change is to be seen: the trace, the seed,
/// what the figures depend on, and the settings of the variant that both have.
fn note_differences(
    part: &mut Part,
    base: (&Saved, &Part),
    compared: (&Saved, &Part),
    variant: Option<&str>,
) {
    let (a, b) = (&base.0.label, &compared.0.label);
    if base.1.trace.as_ref().map(|trace| &trace.sha256)
        != compared.1.trace.as_ref().map(|trace| &trace.sha256)
    {
        let name = |part: &Part| part.trace.as_ref().map_or("none", |trace| &trace.name).to_owned();
        let (ours, theirs) = (name(base.1), name(compared.1));
        part.note(format!("Warning: other traces were replayed: {a} {ours}, {b} {theirs}."));
    }
    if base.1.seed != compared.1.seed {
        part.note(format!("Warning: other seeds: {a} {}, {b} {}.", base.1.seed, compared.1.seed));
        // What a run counts is exact for its seed.
        part.metrics.iter_mut().for_each(|metric| metric.is_exact = false);
    }
    let nothing = BTreeMap::new();
    let [our_settings, their_settings] = [base.1, compared.1]
        .map(|part| variant.and_then(|variant| part.settings.get(variant)).unwrap_or(&nothing));
    let pairs = [
        ("other settings", our_settings, their_settings),
        ("other conditions", &base.1.conditions, &compared.1.conditions),
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
            .map(|name| format!("{name} {a} {}, {b} {}", value(ours, name), value(theirs, name)))
            .collect();
        if !differing.is_empty() {
            part.note(format!("Warning: {what}: {}.", differing.join("; ")));
        }
    }
}

/// A column of a merged part: a variant of a file, under the name that it gets.
struct Column<'a> {
    name: String,
    variant: &'a str,
    metrics: &'a [&'a Metric],
}

/// Fills the columns. Metrics stand in the order of the first column, then of the others. Nothing is compared across
/// units: a metric of another unit is another one.
fn fill<'a>(part: &mut Part, columns: impl Iterator<Item = Column<'a>>) {
    let mut known_columns: BTreeSet<String> = part.variants.iter().cloned().collect();
    let mut rows: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for Column { name, variant, metrics } in columns {
        if known_columns.insert(name.clone()) {
            part.variants.push(name.clone());
        }
        for found in metrics {
            let row = *rows.entry((&found.name, &found.unit)).or_insert_with(|| {
                part.metrics.push(Metric {
                    title: found.title.clone(),
                    is_cause: found.is_cause,
                    is_share: found.is_share,
                    is_exact: found.is_exact,
                    per_round: found.per_round,
                    ..Metric::new(&found.name, &found.unit, found.better)
                });
                part.metrics.len() - 1
            });
            let metric = &mut part.metrics[row];
            metric.is_exact &= found.is_exact;
            metric.samples.entry(name.clone()).or_default().extend_from_slice(found.of(variant));
            if let Some(interval) = found.interval.get(variant) {
                metric.interval.insert(name.clone(), *interval);
            }
        }
    }
}

/// Leaves what can be compared, and notes the rest, what is not the same in the files and what these said themselves.
fn finish(mut part: Part, files: &[(&Saved, &Part)], variant: Option<&str>) -> Part {
    files[1..].iter().for_each(|second| note_differences(&mut part, files[0], *second, variant));
    let (comparable, alone): (Vec<Metric>, Vec<Metric>) = core::mem::take(&mut part.metrics)
        .into_iter()
        .partition(|metric| metric.samples.len() > 1 && !metric.of(&part.baseline).is_empty());
    part.metrics = comparable;
    if !alone.is_empty() {
        let names: Vec<String> = alone.iter().map(Metric::words_and_unit).collect();
        part.note(format!("{ALONE}: {}.", names.join("; ")));
    }
    let mut known: BTreeSet<String> = part.notes.iter().cloned().collect();
    let notes = files.iter().flat_map(|(_, source)| &source.notes);
    part.notes.extend(notes.filter(|note| known.insert((*note).clone())).cloned());
    part
}

/// Leaves only the metrics that match a pattern of `*` and `?`.
///
/// # Errors
/// No metric matches.
pub fn keep_metrics(document: &mut Document, pattern: &str) -> Result<()> {
    let all: Vec<String> =
        document.results.iter().flat_map(|part| &part.metrics).map(|metric| metric.name.clone()).collect();
    // Brackets are part of metric names, so that they mean nothing special here.
    let wanted = WildMatch::new(pattern);
    for part in &mut document.results {
        part.metrics.retain(|metric| wanted.matches(&metric.name));
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
pub fn keep_changed(document: &mut Document) {
    for part in &mut document.results {
        let mut metrics = core::mem::take(&mut part.metrics);
        let before = metrics.len();
        let changed = |metric: &Metric, variant: &String| {
            verdict(part, metric, variant, Ratio::between(part, metric, variant)).is_change()
        };
        metrics.retain(|metric| part.others().any(|variant| changed(metric, variant)));
        let hidden = before - metrics.len();
        part.metrics = metrics;
        if hidden > 0 {
            part.note(format!("{}: no clear change.", rows_hidden(hidden)));
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
pub fn sort_metrics(document: &mut Document, sort: Sort) {
    for part in &mut document.results {
        let mut metrics = core::mem::take(&mut part.metrics);
        match sort {
            Sort::Name => metrics.sort_by(|a, b| a.name.cmp(&b.name)),
            Sort::Change => {
                // A third and three times as much are changes of one size.
                let change = |metric: &Metric| {
                    let ratios = part
                        .others()
                        .filter_map(|variant| Some(Ratio::between(part, metric, variant)?.ratio));
                    ratios.map(|ratio| ratio.ln().abs()).fold(0.0, f64::max)
                };
                let mut sized: Vec<(f64, Metric)> =
                    metrics.into_iter().map(|metric| (change(&metric), metric)).collect();
                sized.sort_by(|a, b| b.0.total_cmp(&a.0));
                metrics = sized.into_iter().map(|(_, metric)| metric).collect();
            }
        }
        part.metrics = metrics;
    }
}

/// Adds to each part a note with the geometric mean of each column's ratios, of each family that has several metrics:
/// figures of other families or units have no common mean.
pub fn add_means(document: &mut Document) {
    for part in &mut document.results {
        let mut families: Vec<Vec<&Metric>> = Vec::new();
        let mut positions: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for metric in part.metrics.iter().filter(|metric| !metric.is_cause) {
            let position = *positions.entry((metric.family(), &metric.unit)).or_insert(families.len());
            families.resize_with(families.len().max(position + 1), Vec::new);
            families[position].push(metric);
        }
        let mut means = Vec::new();
        for family in families.iter().filter(|family| family.len() > 1) {
            for variant in part.others() {
                let ratios: Vec<f64> = family
                    .iter()
                    .map(|metric| median(metric.of(variant)) / median(metric.of(&part.baseline)))
                    .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
                    .collect();
                if ratios.len() > 1 {
                    let (mean, rows, title) = (gmean(&ratios), ratios.len(), family[0].family_words());
                    means.push(format!("{title}, {rows} rows: {mean:.3}× in {variant}"));
                }
            }
        }
        if !means.is_empty() {
            part.note(format!("Geometric means of the ratios: {}.", means.join("; ")));
        }
    }
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
/// Where both sides have samples enough to judge, noise is no regression: the interval must
/// exclude that nothing changed. Metrics of which neither way is better cannot regress.
#[must_use]
pub fn regressions(document: &Document, percent: f64) -> Vec<Regression> {
    // A change of just that much may come out a little larger, by rounding.
    let most = percent + 1e-9 * (1.0 + percent);
    let mut found: Vec<Regression> = Vec::new();
    for part in &document.results {
        for metric in part.metrics.iter().filter(|metric| metric.better != Better::None) {
            for variant in part.others() {
                let worse = percent_worse(part, metric, variant);
                found.extend(worse.filter(|worse| *worse > most).map(|percent| Regression {
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
fn percent_worse(part: &Part, metric: &Metric, variant: &str) -> Option<f64> {
    let (base, new) = (metric.of(&part.baseline), metric.of(variant));
    if base.is_empty() || new.is_empty() {
        return None;
    }
    let ratio = Ratio::between(part, metric, variant);
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
mod tests;
