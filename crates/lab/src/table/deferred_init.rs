//! Boot-time tables as the parallel initialisation of the memory map was posted with (2020): a row for each
//! variant, and for each metric its speedup, mean and deviation in whole milliseconds.

use super::number::plain;
use super::{Block, Cell, Data, Row, Side, Table, origin, provenance, sample_counts};
use crate::result::{Document, Kind, Metric, Part};
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
    let blocks = groups(part).into_iter().map(|(caption, metrics)| block(part, caption, &metrics)).collect();
    let mut notes = part.notes.clone();
    if part.metrics.iter().any(|metric| metric.published.is_some() && metric.of(&part.baseline).is_empty()) {
        notes.push("The baseline's figures are the published ones.".to_owned());
    }
    Table { title: part.title(), about, blocks, notes, legend: Vec::new(), origin: origin(part) }
}

/// Metrics with the same parameters belong to the same block; the parameters are its caption.
fn groups(part: &Part) -> Vec<(Option<String>, Vec<&Metric>)> {
    let mut groups: Vec<(Option<String>, Vec<&Metric>)> = Vec::new();
    for metric in &part.metrics {
        let parameters: Vec<String> =
            metric.parameters().map(|(name, value)| format!("{name} {value}")).collect();
        let caption = (!parameters.is_empty()).then(|| parameters.join(", "));
        match groups.iter_mut().find(|(known, _)| *known == caption) {
            Some((_, metrics)) => metrics.push(metric),
            None => groups.push((caption, vec![metric])),
        }
    }
    groups
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
    let rows = part
        .variants
        .iter()
        .map(|variant| Row {
            stub: variant.clone(),
            detail: None,
            cells: metrics.iter().map(|metric| cell(part, metric, variant)).collect(),
        })
        .collect();
    Block { caption, stubs: Side::Left, gap: 4, heads, rows }
}

fn cell(part: &Part, metric: &Metric, variant: &str) -> Cell {
    let mean = |variant: &str| amean(&whole(metric.of(variant)));
    let samples = whole(metric.of(variant));
    if samples.is_empty() {
        return Cell::line(match metric.published {
            Some(published) if variant == part.baseline => {
                let deviation = published.stddev.unwrap_or(0.0);
                format!("{:>7}  {:>8.1} ({deviation:>6.1})", "--", published.mean)
            }
            Some(_) if part.kind == Kind::Simulated => "not simulated yet".to_owned(),
            _ => "-".to_owned(),
        });
    }
    let time = amean(&samples);
    let deviation = if samples.len() > 1 { stddev(&samples) } else { 0.0 };
    let is_base = variant == part.baseline;
    let speedup = speedup_percent(mean(&part.baseline), time);
    let shown = if is_base || speedup.is_nan() { "--".to_owned() } else { format!("{speedup:.1}%") };
    let mut fields = vec![("mean", plain(time)), ("stddev", plain(deviation))];
    if !is_base {
        fields.push(("speedup_percent", plain(speedup)));
    }
    Cell {
        lines: vec![(format!("{shown:>7}  {time:>8.1} ({deviation:>6.1})"), Tone::Plain)],
        data: Some(Data {
            statistic: "mean".to_owned(),
            metric: metric.name.clone(),
            unit: metric.unit.clone(),
            variant: variant.to_owned(),
            fields,
        }),
    }
}

/// The kernel log these tables were made from has whole milliseconds.
fn whole(samples: &[f64]) -> Vec<f64> {
    samples.iter().map(|sample| sample.round()).collect()
}
