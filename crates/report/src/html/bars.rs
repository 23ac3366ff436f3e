//! Bars: each as long as a median, with a whisker for its range and a dot for every sample; and stacked ones. Boxes
//! whose lengths are percentages, so that they fit any width and text keeps its size.

use maud::{Markup, html};

use crate::plot::{label, whiskers};
use crate::result::{Metric, Part};
use crate::stats::{max, median};
use crate::table;

/// More samples than this are drawn as whisker alone.
const MOST_DOTS: usize = 60;
/// Colours of series; after the last one the first comes again.
pub(super) const COLOURS: usize = 6;

/// A group of bars for each metric, a bar for each variant.
pub(super) fn bars(part: &Part, family: &[&Metric]) -> Markup {
    html! {
        div.bars {
            @for metric in family {
                @if family.len() > 1 { p.group { (parameters(metric)) } }
                @let most = longest(part, metric);
                @for (n, variant) in part.variants.iter().enumerate().filter(|(_, variant)| !metric.of(variant).is_empty()) {
                    (bar(part, metric, n, variant, most))
                }
            }
        }
    }
}

/// The value that fills a bar's track.
fn longest(part: &Part, metric: &Metric) -> f64 {
    let ends = part.variants.iter().filter(|variant| !metric.of(variant).is_empty());
    let most = ends
        .map(|variant| {
            let published = part.published(metric, variant).map_or(0.0, |figure| figure.mean);
            whiskers(metric, variant).1.max(max(metric.of(variant))).max(published)
        })
        .fold(0.0, f64::max);
    if most > 0.0 { most } else { 1.0 }
}

fn bar(part: &Part, metric: &Metric, n: usize, variant: &str, most: f64) -> Markup {
    let samples = metric.of(variant);
    let (low, high) = whiskers(metric, variant);
    let middle = median(samples);
    let range = high > low;
    let said = if range {
        format!("{variant}: {}, from {} to {}", label(middle), label(low), label(high))
    } else {
        format!("{variant}: {}", label(middle))
    };
    let beside = table::beside(part, metric, variant);
    let said = beside.as_ref().map_or(said.clone(), |beside| format!("{said}; {beside}"));
    html! {
        div.bar role="img" aria-label=(said) title=(said) {
            span.name { (variant) }
            span.track {
                span class={ "fill c" (n % COLOURS) } style={ "width:" (share(middle, most)) } {}
                @if range { span.whisker style={ "left:" (share(low, most)) ";width:" (share(high - low, most)) } {} }
                @if samples.len() > 1 && samples.len() <= MOST_DOTS {
                    @for sample in samples { span.dot style={ "left:" (share(*sample, most)) } {} }
                }
                @if let Some(published) = part.published(metric, variant) {
                    span.published style={ "left:" (share(published.mean, most)) } {}
                }
            }
            span.value { (label(middle)) }
            @if let Some(beside) = beside { span.beside { (beside) } }
        }
    }
}

/// `value` of `most` as a CSS length.
fn share(value: f64, most: f64) -> String {
    format!("{:.2}%", 100.0 * (value / most).clamp(0.0, 1.0))
}

/// The metric's parameters as a reader would say them.
fn parameters(metric: &Metric) -> String {
    let said: Vec<String> = metric.parameters().map(|(name, value)| format!("{name} {value}")).collect();
    if said.is_empty() { metric.name.clone() } else { said.join(", ") }
}

/// One bar a variant, cut into the metrics of the family.
pub(super) fn stacked(part: &Part, family: &[&Metric]) -> Markup {
    let value = |metric: &Metric, variant: &str| {
        let samples = metric.of(variant);
        if samples.is_empty() { 0.0 } else { median(samples).max(0.0) }
    };
    let total = |variant: &str| family.iter().map(|metric| value(metric, variant)).sum::<f64>();
    let most = part.variants.iter().map(|variant| total(variant)).fold(0.0, f64::max);
    let most = if most > 0.0 { most } else { 1.0 };
    html! {
        div.bars {
            @for variant in part.variants.iter().filter(|variant| total(variant) > 0.0) {
                @let pieces: Vec<(usize, f64)> = family.iter().map(|metric| value(metric, variant)).enumerate().filter(|(_, value)| *value > 0.0).collect();
                @let said: Vec<String> = pieces.iter().map(|(n, value)| format!("{} {}", parameters(family[*n]), label(*value))).collect();
                div.bar role="img" aria-label={ (variant) ": " (said.join("; ")) } {
                    span.name { (variant) }
                    span.track.stack {
                        @for ((n, value), said) in pieces.iter().zip(&said) {
                            span class={ "fill c" (n % COLOURS) } style={ "width:" (share(*value, most)) } title=(said) {
                                span { (label(*value)) }
                            }
                        }
                    }
                    span.value { (label(total(variant))) }
                }
            }
        }
        ul.legend {
            @for (n, metric) in family.iter().enumerate() { li { span class={ "key c" (n % COLOURS) } {} (parameters(metric)) } }
        }
    }
}
