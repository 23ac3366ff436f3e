//! Which plot suits which metrics: curves over a numeric parameter, shares that make up a whole as stacked bars, bars
//! with all samples for the rest.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::{bars, curve};
use crate::plot::{self, Point, Series};
use crate::result::{Better, Kind, Metric, Part};
use crate::stats::median;

/// From this many values of a parameter on, a family of metrics is drawn as curves over it.
const CURVE_POINTS: usize = 3;

/// Every metric of a part, in plots.
pub(super) fn figures(part: &Part) -> Markup {
    html! {
        div.figures {
            @for family in plot::families(part) {
                @match axis(&family) {
                    Some(axis) => {
                        @for (fixed, metrics) in groups(&family, &axis) { (curves(part, &fixed, &metrics, &axis)) }
                    }
                    None if is_breakdown(&family) => (frame(part, &family, "", bars::stacked(part, &family))),
                    None => (frame(part, &family, "", bars::bars(part, &family))),
                }
            }
        }
    }
}

/// One metric as bars under a title in words: it needs no legend.
pub(super) fn bars_of(part: &Part, metric: &Metric, title: &str) -> Markup {
    let unit = if metric.unit == "1" { String::new() } else { format!(", {}", metric.unit) };
    html! {
        figure {
            figcaption { strong { (title) (unit) } " " span class={ "badge " (part.kind) } { (part.kind) } }
            (bars::bars(part, &[metric]))
        }
    }
}

/// The numeric parameter with the most values, if there are enough for a curve.
fn axis(family: &[&Metric]) -> Option<String> {
    let mut values: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in family.iter().flat_map(|metric| metric.parameters()) {
        let seen = values.entry(name).or_default();
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    // What all metrics of a family lack a better direction for is a breakdown, not a course.
    let ordered = family.iter().all(|metric| metric.better != Better::None);
    let numeric = |name: &&str| family.iter().all(|metric| plot::value_of(metric, name).is_some());
    let (name, _) = values
        .iter()
        .filter(|(name, seen)| ordered && seen.len() >= CURVE_POINTS && numeric(name))
        .max_by_key(|(_, seen)| seen.len())?;
    Some((*name).to_owned())
}

/// Parts of a whole, as whoever made them says: nothing else may be added up.
fn is_breakdown(family: &[&Metric]) -> bool {
    family.len() >= 2 && family.iter().all(|metric| metric.is_share)
}

/// The metrics of a family that differ in `axis` alone, under what the others of their parameters are.
fn groups<'a>(family: &[&'a Metric], axis: &str) -> Vec<(String, Vec<&'a Metric>)> {
    let mut groups: Vec<(String, Vec<&Metric>)> = Vec::new();
    for metric in family {
        let fixed = parameters_without(metric, axis);
        match groups.iter_mut().find(|(known, _)| *known == fixed) {
            Some((_, metrics)) => metrics.push(metric),
            None => groups.push((fixed, vec![metric])),
        }
    }
    groups
}

/// What a metric was measured with, except for one parameter: `order 0, kind queued`.
fn parameters_without(metric: &Metric, without: &str) -> String {
    let others = metric.parameters().filter(|(name, _)| *name != without);
    others.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn curves(part: &Part, fixed: &str, metrics: &[&Metric], axis: &str) -> Markup {
    let series: Vec<Series> = part
        .variants
        .iter()
        .map(|variant| Series { name: variant.clone(), points: points(metrics, variant, axis) })
        .filter(|series| !series.points.is_empty())
        .collect();
    let named = plot::axis_name(axis);
    frame(part, metrics, fixed, curve::curve(&title(metrics[0], fixed), named, &metrics[0].unit, &series))
}

fn points(metrics: &[&Metric], variant: &str, axis: &str) -> Vec<Point> {
    let mut points: Vec<Point> = metrics
        .iter()
        .filter(|metric| !metric.of(variant).is_empty())
        .filter_map(|metric| {
            let (low, high) = plot::whiskers(metric, variant);
            Some(Point {
                x: plot::place(axis, plot::value_of(metric, axis)?),
                y: median(metric.of(variant)),
                low,
                high,
            })
        })
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    points
}

fn title(metric: &Metric, fixed: &str) -> String {
    if fixed.is_empty() { metric.family().to_owned() } else { format!("{}, {fixed}", metric.family()) }
}

/// A plot with its caption, which says how the figures came about.
fn frame(part: &Part, metrics: &[&Metric], fixed: &str, plot: Markup) -> Markup {
    let direction = match metrics[0].better {
        Better::Lower => "lower is better",
        Better::Higher => "higher is better",
        Better::None => "",
    };
    let unit = if metrics[0].unit == "1" { "" } else { &metrics[0].unit };
    let details: Vec<&str> = [unit, direction].into_iter().filter(|text| !text.is_empty()).collect();
    html! {
        figure {
            figcaption {
                strong { (title(metrics[0], fixed)) }
                @if !details.is_empty() { " " span.dim { "(" (details.join(", ")) ")" } }
                " " span class={ "badge " (part.kind) } { (part.kind) }
            }
            (plot)
            @if part.kind != Kind::Derived && metrics.iter().any(|metric| !metric.interval.is_empty()) {
                p.dim { "Bands and whiskers: the interval of the prediction." }
            }
        }
    }
}
