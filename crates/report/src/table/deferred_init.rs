//! Boot-time tables as the parallel initialisation of the memory map was posted with (2020): a row for each
//! variant, and for each metric its speedup, mean and deviation in whole milliseconds.

use super::number::plain;
use super::{Block, Cell, Row, Side, Table, provenance, sample_counts};
use crate::result::{Document, Kind, Metric, Part, grouped};
use crate::stats::change::speedup_percent;
use crate::stats::{amean, stddev};
use crate::terminal::Tone;

pub(super) fn table(part: &Part, document: &Document) -> Table {
    let mut about = provenance(part, document);
    about.push(format!(
        "{}, baseline {}, speedup = (base - test) / base",
        sample_counts(part),
        part.baseline
    ));
    let mut blocks = Vec::new();
    for (caption, metrics) in groups(part) {
        blocks.extend(metrics.chunks(SIDE_BY_SIDE).map(|some| block(part, caption.clone(), some)));
    }
    let mut table = Table::new(part, about, blocks);
    let others = part.metrics.iter().filter(|metric| in_ms(metric).is_none()).count();
    if others > 0 {
        table.notes.push(format!("Not shown in this style, which has times only: {others} other metrics."));
    }
    if part.metrics.iter().any(|metric| metric.published.is_some() && metric.of(&part.baseline).is_empty()) {
        table.notes.push("The baseline's figures are the published ones.".to_owned());
    }
    table
}

/// Metrics beside one another, at most: two fit 80 columns.
const SIDE_BY_SIDE: usize = 2;

/// What a figure is multiplied with to be in ms; none if it is no time.
fn in_ms(metric: &Metric) -> Option<f64> {
    match metric.unit.as_str() {
        "ns" => Some(1e-6),
        "us" => Some(1e-3),
        "ms" => Some(1.0),
        "s" => Some(1e3),
        _ => None,
    }
}

/// Whether the style has anything to show of a part.
pub(super) fn shows(part: &Part) -> bool {
    part.metrics.iter().any(|metric| in_ms(metric).is_some())
}

/// Metrics with the same parameters belong to the same block; the parameters are its caption.
fn groups(part: &Part) -> Vec<(Option<String>, Vec<&Metric>)> {
    let times = part.metrics.iter().filter(|metric| in_ms(metric).is_some());
    grouped(times, |metric| {
        let parameters: Vec<String> =
            metric.parameters().map(|(name, value)| format!("{name} {value}")).collect();
        (!parameters.is_empty()).then(|| parameters.join(", "))
    })
}

fn block(part: &Part, caption: Option<String>, metrics: &[&Metric]) -> Block {
    let heads = metrics
        .iter()
        .map(|metric| {
            let titles = format!("speedup  {:>8} ( stdev)", "time_ms");
            let rule = "-".repeat(titles.len());
            let name = format!("{:<width$}", metric.family(), width = titles.len());
            vec![name, rule, titles]
        })
        .collect();
    let row = |variant: &String| Row {
        stub: variant.clone(),
        detail: None,
        cells: metrics.iter().map(|metric| cell(part, metric, variant)).collect(),
    };
    let rows = part.variants.iter().map(row).collect();
    Block { caption, stubs: Side::Left, gap: 4, heads, rows }
}

fn cell(part: &Part, metric: &Metric, variant: &str) -> Cell {
    let factor = in_ms(metric).unwrap_or(1.0);
    let mean = |variant: &str| amean(&whole(metric.of(variant), factor));
    let samples = whole(metric.of(variant), factor);
    if samples.is_empty() {
        return Cell::line(match metric.published {
            Some(published) if variant == part.baseline => {
                let deviation = factor * published.stddev.unwrap_or(0.0);
                format!("{:>7}  {:>8.1} ({deviation:>6.1})", "--", factor * published.mean)
            }
            Some(_) if part.kind == Kind::Simulated => "not simulated yet".to_owned(),
            _ => "-".to_owned(),
        });
    }
    let time = amean(&samples);
    let deviation = if samples.len() > 1 { stddev(&samples) } else { 0.0 };
    let is_base = variant == part.baseline;
    let speedup = speedup_percent(mean(&part.baseline), time);
    let shown = if is_base || !speedup.is_finite() { "--".to_owned() } else { format!("{speedup:.1}%") };
    let mut fields = vec![("mean", plain(time)), ("stddev", plain(deviation))];
    if !is_base {
        fields.push(("speedup_percent", plain(speedup)));
    }
    let text = format!("{shown:>7}  {} ({})", digits(time, 8), digits(deviation, 6));
    Cell::with(text, Tone::Plain, ["mean", &metric.name, "ms", variant], fields)
}

/// In ms. The kernel log these tables were made from has whole milliseconds: so have ours, but for what is measured in
/// shorter units.
fn whole(samples: &[f64], factor: f64) -> Vec<f64> {
    let round = |ms: f64| if factor < 1.0 { ms } else { ms.round() };
    samples.iter().map(|sample| round(sample * factor)).collect()
}

/// One decimal, or as many as fit where that says nothing.
fn digits(ms: f64, width: usize) -> String {
    if ms == 0.0 || ms.abs() >= 0.05 {
        format!("{ms:>width$.1}")
    } else {
        format!("{ms:>width$.*}", width - 2)
    }
}
