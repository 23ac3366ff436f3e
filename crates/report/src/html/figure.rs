//! Which plot suits which metrics: curves over a numeric parameter, shares that make up a whole as stacked bars, bars
//! with all samples for the rest.

use maud::{Markup, html};

use super::{bars, curve};
use crate::plot;
use crate::result::{Kind, Metric, Part};

/// Every metric of a part, in plots.
pub(super) fn figures(part: &Part) -> Markup {
    html! {
        div.figures {
            @for family in plot::families(part) {
                @match plot::axis(&family) {
                    Some(axis) => { @for group in plot::groups(&family, &axis) { (curves(part, &group, &axis)) } }
                    None if is_breakdown(&family) => (frame(part, &family, &all(&family), bars::stacked(part, &family))),
                    None => (frame(part, &family, &all(&family), bars::bars(part, &family))),
                }
            }
        }
    }
}

/// One metric as bars under a title in words: it needs no legend.
pub(super) fn bars_of(part: &Part, metric: &Metric, title: &str) -> Markup {
    html! {
        figure {
            figcaption { strong { (title) } " " span class={ "badge " (part.kind) } { (part.kind) } }
            (bars::bars(part, &[metric]))
        }
    }
}

/// Parts of a whole, as their workload declares: nothing else may be added up.
fn is_breakdown(family: &[&Metric]) -> bool {
    family.len() >= 2 && family.iter().all(|metric| metric.is_share)
}

fn curves(part: &Part, group: &[&Metric], axis: &str) -> Markup {
    let series = plot::series(part, group, axis);
    let title = group[0].words_but(axis);
    let drawn = curve::curve(&title, plot::axis_name(axis), &group[0].unit, &series);
    frame(part, group, &title, drawn)
}

/// The title of a whole family, whose parameters stand beside the bars.
fn all(family: &[&Metric]) -> String {
    let words = family[0].words();
    if family.len() > 1 { words.split(", ").next().unwrap_or_default().to_owned() } else { words }
}

/// A plot with its caption, which says how the figures came about.
fn frame(part: &Part, metrics: &[&Metric], title: &str, plot: Markup) -> Markup {
    let details = metrics[0].unit_and_direction();
    html! {
        figure {
            figcaption {
                strong { (title) }
                @if !details.is_empty() { " " span.dim { "(" (details.join(", ")) ")" } }
                " " span class={ "badge " (part.kind) } { (part.kind) }
            }
            (plot)
            @if part.kind != Kind::Derived && metrics.iter().any(|metric| !metric.interval.is_empty()) {
                p.dim { "Bands and whiskers: the interval of the prediction." }
            } @else if metrics.iter().flat_map(|metric| metric.samples.values()).any(|samples| samples.len() > 1) {
                p.dim { "Bands and whiskers: the middle nine tenths of the samples." }
            }
        }
    }
}
