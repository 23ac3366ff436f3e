//! Plots for a terminal: bars with whiskers, curves, histograms. In Unicode, or in ASCII where the locale has
//! no more.

mod bars;
mod curve;
mod histogram;

use core::fmt::Write as _;

pub use bars::{Bar, bars};
pub use curve::{Point, Series, curve};
pub use histogram::histogram;

use crate::result::{Better, Document, Metric, Part};
use crate::stats::{median, quantile};
use crate::terminal::Terminal;

/// From this many values of a parameter on, a family of metrics is drawn as a curve over it.
const CURVE_POINTS: usize = 3;
/// From this many samples on, their distribution is worth a histogram.
const HISTOGRAM_SAMPLES: usize = 50;

/// The shapes that the marks of a plot take.
#[derive(Clone, Copy, Debug)]
struct Marks {
    bar: char,
    whisker: char,
    whisker_low: char,
    whisker_high: char,
    whisker_value: char,
    axis: char,
    vertical: char,
    corner: char,
    joint: char,
    /// One for each series, repeated when they run out.
    series: [char; 6],
}

impl Marks {
    const UNICODE: Self = Self {
        bar: '█',
        whisker: '─',
        whisker_low: '├',
        whisker_high: '┤',
        whisker_value: '┼',
        axis: '─',
        vertical: '│',
        corner: '└',
        joint: '·',
        series: ['●', '○', '▲', '△', '■', '□'],
    };
    const ASCII: Self = Self {
        bar: '#',
        whisker: '-',
        whisker_low: '|',
        whisker_high: '|',
        whisker_value: '+',
        axis: '-',
        vertical: '|',
        corner: '+',
        joint: '.',
        series: ['o', 'x', '^', 'v', '*', '%'],
    };

    const fn of(terminal: &Terminal) -> Self {
        if terminal.unicode { Self::UNICODE } else { Self::ASCII }
    }
}

/// Every part of a document as plots: a curve for a family of metrics over a numeric parameter, bars for any
/// other metric, and histograms where there are samples enough.
#[must_use]
pub fn document(document: &Document, terminal: &Terminal) -> String {
    let mut out = String::new();
    for part in document.results.iter().filter(|part| !families(part).is_empty()) {
        let _ = writeln!(out, "{}\n", part.title());
        for family in families(part) {
            out += &match parameter(&family) {
                Some(parameter) => family_curve(part, &family, &parameter, terminal),
                None => family.iter().map(|metric| metric_bars(part, metric, terminal)).collect(),
            };
        }
    }
    out
}

/// Metrics of one name that have samples, in the order in which the names appear.
pub(crate) fn families(part: &Part) -> Vec<Vec<&Metric>> {
    let mut families: Vec<Vec<&Metric>> = Vec::new();
    for metric in part.metrics.iter().filter(|metric| !metric.samples.is_empty()) {
        match families.iter_mut().find(|family| family[0].family() == metric.family()) {
            Some(family) => family.push(metric),
            None => families.push(vec![metric]),
        }
    }
    families
}

/// The one parameter that differs within a family, if it is a number and has values enough for a curve.
fn parameter(family: &[&Metric]) -> Option<String> {
    let mut varying = family[0].parameters().filter(|(name, first)| {
        family
            .iter()
            .any(|metric| metric.parameters().any(|(other, value)| other == *name && value != *first))
    });
    let (name, _) = varying.next().filter(|_| family.len() >= CURVE_POINTS)?;
    let numeric = family.iter().all(|metric| value_of(metric, name).is_some());
    (varying.next().is_none() && numeric).then(|| name.to_owned())
}

pub(crate) fn value_of(metric: &Metric, parameter: &str) -> Option<f64> {
    let (_, value) = metric.parameters().find(|(name, _)| *name == parameter)?;
    value.parse().ok().filter(|value: &f64| value.is_finite())
}

fn family_curve(part: &Part, family: &[&Metric], parameter: &str, terminal: &Terminal) -> String {
    let series: Vec<Series> = part
        .variants
        .iter()
        .map(|variant| Series {
            name: variant.clone(),
            points: family
                .iter()
                .filter(|metric| !metric.of(variant).is_empty())
                .filter_map(|metric| {
                    let (low, high) = whiskers(metric, variant);
                    let y = median(metric.of(variant));
                    Some(Point { x: value_of(metric, parameter)?, y, low, high })
                })
                .collect(),
        })
        .collect();
    curve(&heading(family[0].family(), family[0]), parameter, &series, terminal) + "\n"
}

fn metric_bars(part: &Part, metric: &Metric, terminal: &Terminal) -> String {
    let shown: Vec<&String> = part.variants.iter().filter(|variant| !metric.of(variant).is_empty()).collect();
    let rows: Vec<Bar> = shown
        .iter()
        .map(|variant| {
            let (low, high) = whiskers(metric, variant);
            Bar { name: (*variant).clone(), value: median(metric.of(variant)), low, high }
        })
        .collect();
    let mut out = bars(&heading(&metric.name, metric), &rows, terminal) + "\n";
    for variant in shown.iter().filter(|variant| metric.of(variant).len() >= HISTOGRAM_SAMPLES) {
        let title = format!("{}, {variant}", heading(&metric.name, metric));
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

fn heading(name: &str, metric: &Metric) -> String {
    let mut details = Vec::new();
    if metric.unit != "1" {
        details.push(metric.unit.as_str());
    }
    match metric.better {
        Better::Lower => details.push("lower is better"),
        Better::Higher => details.push("higher is better"),
        Better::None => {}
    }
    if details.is_empty() { name.to_owned() } else { format!("{name} ({})", details.join(", ")) }
}

/// `value` on a label: three significant digits, whole numbers whole, thousands as `k`, `M`, `G`.
pub(crate) fn label(value: f64) -> String {
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
