//! Plots for a terminal: bars with whiskers, curves, histograms. In Unicode, or in ASCII where the locale has
//! no more.

mod bars;
mod curve;
mod histogram;

use core::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

pub use bars::{Bar, bars};
pub(crate) use curve::{LOGARITHMIC, Scale};
pub use curve::{Point, Series, curve};
pub use histogram::histogram;

use crate::result::{Better, Document, Metric, Part, grouped};
use crate::stats::{median, quantile};
use crate::table::paragraph;
use crate::terminal::{Terminal, Tone};

/// From this many values of a parameter on, a family of metrics is drawn as a curve over it.
const CURVE_POINTS: usize = 3;
/// The parameter whose values are shares of all samples.
const QUANTILE: &str = "quantile";
/// From this many samples on, their distribution is worth a histogram.
const HISTOGRAM_SAMPLES: usize = 50;

/// Every part of a document as plots: a curve for a family of metrics over a numeric parameter, bars for any
/// other metric, and histograms where there are samples enough.
#[must_use]
pub fn document(document: &Document, terminal: &Terminal) -> String {
    let mut out = String::new();
    for part in document.results.iter().filter(|part| !families(part).is_empty()) {
        out += &(title_lines(&part.title(), terminal) + "\n");
        for mut family in families(part) {
            sort(&mut family);
            let scale = range(part, &family);
            out += &match axis(&family) {
                Some(axis) => groups(&family, &axis)
                    .iter()
                    .map(|group| {
                        let named = heading(&group[0].words_but(&axis), group[0]);
                        // Curves of a family share their top.
                        curve(&named, axis_name(&axis), &series(part, group, &axis), scale.1, terminal) + "\n"
                    })
                    .collect::<String>(),
                None => family.iter().map(|metric| metric_bars(part, metric, scale, terminal)).collect(),
            };
        }
    }
    out
}

/// Metrics of one name that have samples, in the order in which the names appear.
pub(crate) fn families(part: &Part) -> Vec<Vec<&Metric>> {
    let shown = part.metrics.iter().filter(|metric| !metric.samples.is_empty());
    grouped(shown, |metric| metric.family()).into_iter().map(|(_, family)| family).collect()
}

/// Orders the metrics of a family by their numeric parameters, as they are written: 1, 2, 4, 52.
fn sort(family: &mut [&Metric]) {
    let key = |metric: &Metric| -> Vec<Option<f64>> {
        metric.parameters().map(|(name, _)| value_of(metric, name)).collect()
    };
    family.sort_by(|a, b| key(a).partial_cmp(&key(b)).unwrap_or(Ordering::Equal));
}

/// The numeric parameter with the most values, if there are enough for a curve. A family without a better direction is
/// a breakdown, and has none.
pub(crate) fn axis(family: &[&Metric]) -> Option<String> {
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, value) in family.iter().flat_map(|metric| metric.parameters()) {
        values.entry(name).or_default().insert(value);
    }
    let is_course = family.iter().all(|metric| metric.better != Better::None);
    let is_numeric = |name: &str| family.iter().all(|metric| value_of(metric, name).is_some());
    let enough = values
        .into_iter()
        .filter(|(name, seen)| is_course && seen.len() >= CURVE_POINTS && is_numeric(name))
        .max_by_key(|(_, seen)| seen.len());
    enough.map(|(name, _)| name.to_owned())
}

/// The metrics of a family that differ in `axis` alone: a curve for each machine.
pub(crate) fn groups<'a>(family: &[&'a Metric], axis: &str) -> Vec<Vec<&'a Metric>> {
    let groups = grouped(family.iter().copied(), |metric| metric.words_but(axis));
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Curves of a group of metrics over `axis`, one for each variant.
pub(crate) fn series(part: &Part, group: &[&Metric], axis: &str) -> Vec<Series> {
    let point = |metric: &Metric, variant: &str| {
        let samples = metric.of(variant);
        let (low, high) = whiskers(metric, variant);
        Some(Point { x: place(axis, value_of(metric, axis)?), y: median(samples), low, high })
    };
    let of_variant = |variant: &String| {
        let metrics = group.iter().filter(|metric| !metric.of(variant).is_empty());
        let mut points: Vec<Point> = metrics.filter_map(|metric| point(metric, variant)).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        Series { name: variant.clone(), points }
    };
    part.variants.iter().map(of_variant).filter(|series| !series.points.is_empty()).collect()
}

/// The lowest and the highest value that bars of a family reach, with their whiskers: they share one scale.
fn range(part: &Part, family: &[&Metric]) -> (f64, f64) {
    let ends = family.iter().flat_map(|metric| {
        let shown = part.variants.iter().filter(|variant| !metric.of(variant).is_empty());
        shown.flat_map(|variant| {
            let (low, high) = whiskers(metric, variant);
            let middle = median(metric.of(variant));
            [low, high, middle, part.published(metric, variant).map_or(middle, |figure| figure.mean)]
        })
    });
    ends.fold((0.0, 0.0), |(low, high), value| (f64::min(low, value), f64::max(high, value)))
}

fn value_of(metric: &Metric, parameter: &str) -> Option<f64> {
    let (_, value) = metric.parameters().find(|(name, _)| *name == parameter)?;
    value.parse().ok().filter(|value: &f64| value.is_finite())
}

/// Where a value of a parameter stands on the axis: quantiles where the share that lies beyond them halves and halves
/// again, which a logarithmic axis shows evenly.
fn place(parameter: &str, value: f64) -> f64 {
    if parameter == QUANTILE && (0.0..1.0).contains(&value) {
        // Without what binary fractions lack: 0.999 is at 1000.
        (1e6 / (1.0 - value)).round() / 1e6
    } else {
        value
    }
}

/// What the axis of a parameter is called.
pub(crate) fn axis_name(parameter: &str) -> &str {
    if parameter == QUANTILE { "1 / (1 - quantile)" } else { parameter }
}

fn metric_bars(part: &Part, metric: &Metric, scale: (f64, f64), terminal: &Terminal) -> String {
    let shown: Vec<&String> = part.variants.iter().filter(|variant| !metric.of(variant).is_empty()).collect();
    let rows: Vec<Bar> = shown
        .iter()
        .map(|variant| {
            let (low, high) = whiskers(metric, variant);
            let published = part.published(metric, variant).map(|figure| figure.mean);
            Bar { name: (*variant).clone(), value: median(metric.of(variant)), low, high, published }
        })
        .collect();
    let mut out = bars(&heading(&metric.words(), metric), &rows, scale, terminal) + "\n";
    for variant in shown.iter().filter(|variant| metric.of(variant).len() >= HISTOGRAM_SAMPLES) {
        let title = format!("{}, {variant}", heading(&metric.words(), metric));
        out += &(histogram(&title, metric.of(variant), terminal) + "\n");
    }
    out
}

/// The interval of a prediction, else the middle nine tenths of the samples.
pub(crate) fn whiskers(metric: &Metric, variant: &str) -> (f64, f64) {
    metric.interval.get(variant).map_or_else(
        || (quantile(metric.of(variant), 0.05), quantile(metric.of(variant), 0.95)),
        |[low, high]| (*low, *high),
    )
}

/// A title on as many lines as it takes.
fn title_lines(title: &str, terminal: &Terminal) -> String {
    paragraph(title, terminal.width, "  ", Tone::Plain, terminal)
}

fn heading(title: &str, metric: &Metric) -> String {
    let details = metric.unit_and_direction();
    if details.is_empty() { title.to_owned() } else { format!("{title} ({})", details.join(", ")) }
}

/// `value` on a label: three significant digits, whole numbers whole, thousands as `k`, `M`, `G`.
pub fn label(value: f64) -> String {
    if value != 0.0 && !(1e-9..1e15).contains(&value.abs()) {
        return format!("{value:.2e}");
    }
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match scaled.abs() {
        0.0 => 0,
        size if size >= 100.0 || scaled == scaled.trunc() => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        size => (2 - size.log10().floor() as i32).clamp(0, 9) as usize,
    };
    format!("{scaled:.digits$}{suffix}")
}

#[cfg(test)]
mod tests;
