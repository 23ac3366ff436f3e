//! The scoreboard: what was published beside what was predicted of it, a round in two columns, the second of which says covered or not.
//! Eighty columns are enough.

use super::number::{plain, significant};
use super::{Block, Cell, Data, Row, Side, Table, origin};
use crate::result::{Kind, Metric, Part};
use crate::terminal::Tone;

/// The column that such a part has and no other.
const PUBLISHED: &str = "published";
/// The family of figures, and that of errors of curves.
const FIGURE: &str = "figure";

/// Whether a part is a scoreboard.
pub(super) fn shows(part: &Part) -> bool {
    part.kind == Kind::Derived && part.baseline == PUBLISHED
}

pub(super) fn table(part: &Part) -> Table {
    let mut blocks: Vec<Block> = Vec::new();
    for metric in &part.metrics {
        let is_figure = metric.family() == FIGURE;
        let (group, mut stub) = place(metric);
        let columns = columns(part, is_figure, group);
        let common = variant(part, group).filter(|_| is_figure);
        let caption = match common {
            Some(variant) => format!("{group}, {variant}"),
            None if is_figure => group.to_owned(),
            None => format!("{group}, errors of curves"),
        };
        if let Some(variant) = common {
            stub.truncate(stub.len() - variant.len() - 1);
        }
        let last = blocks.last().and_then(|block| block.caption.as_ref());
        if last != Some(&caption) {
            let heads = columns.iter().flat_map(|column| heads(part, column, is_figure)).collect();
            blocks.push(Block { caption: Some(caption), stubs: Side::Left, gap: 2, heads, rows: Vec::new() });
        }
        let cells = columns.iter().flat_map(|column| cells(part, metric, column)).collect();
        if let Some(block) = blocks.last_mut() {
            block.rows.push(Row { stub, detail: None, cells });
        }
    }
    Table {
        title: part.title(),
        about: Vec::new(),
        blocks,
        notes: part.notes.clone(),
        legend: vec![
            "in: whether the prediction's interval holds what was published. Errors are medians of sizes."
                .to_owned(),
        ],
        origin: origin(part),
    }
}

/// The group of a row, and what it is called there: of `kernbench/user_seconds/reset` the first word, and the rest.
fn place(metric: &Metric) -> (&str, String) {
    let of = metric.parameters().find(|(name, _)| *name == "of").map_or(metric.name.as_str(), |(_, of)| of);
    let (group, rest) = of.split_once('/').unwrap_or(("", of));
    // Names of machines say enough without the word.
    (group, rest.replace("machine=", "").replace('/', " "))
}

/// The variant that all figures of a group are of, if there is only one: the last word of their names.
fn variant<'a>(part: &'a Part, group: &str) -> Option<&'a str> {
    let of = |metric: &'a Metric| {
        let of = metric.parameters().find(|(name, _)| *name == "of")?.1;
        (of.split_once('/')?.0 == group && metric.family() == FIGURE).then(|| of.rsplit_once('/'))?
    };
    let mut variants = part.metrics.iter().filter_map(of).map(|(_, variant)| variant);
    let first = variants.next()?;
    variants.all(|variant| variant == first).then_some(first)
}

/// The variants that are columns for a group's figures, or for its curves.
fn columns<'a>(part: &'a Part, is_figure: bool, group: &str) -> Vec<&'a str> {
    let has = |variant: &str| {
        let mut metrics = part.metrics.iter().filter(|metric| (metric.family() == FIGURE) == is_figure);
        metrics.any(|metric| place(metric).0 == group && !metric.of(variant).is_empty())
    };
    part.variants.iter().map(String::as_str).filter(|variant| has(variant)).collect()
}

/// Whether a column is of predictions, and so has one beside it that says covered or not.
fn is_round(part: &Part, column: &str) -> bool {
    part.metrics.iter().any(|metric| metric.interval.contains_key(column))
}

fn heads(part: &Part, column: &str, is_figure: bool) -> Vec<Vec<String>> {
    let lines: Vec<String> = column.split('_').map(str::to_owned).collect();
    if is_figure && is_round(part, column) { vec![lines, vec!["in".to_owned()]] } else { vec![lines] }
}

fn cells(part: &Part, metric: &Metric, column: &str) -> Vec<Cell> {
    let value = metric.of(column).first().copied();
    let mut fields = Vec::new();
    let mut cell = Cell::line(value.map_or_else(|| "\u{2014}".to_owned(), short));
    if let Some(value) = value {
        fields.push(("value", plain(value)));
    }
    let interval = metric.interval.get(column);
    let published = metric.of(PUBLISHED).first();
    let covered = interval.zip(published).map(|([low, high], it)| (low..=high).contains(&it));
    if let Some([low, high]) = interval {
        fields.push(("interval_low", plain(*low)));
        fields.push(("interval_high", plain(*high)));
    }
    if let Some(covered) = covered {
        fields.push(("covered", covered.to_string()));
    }
    cell.data = Some(Data {
        statistic: "score".to_owned(),
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        variant: column.to_owned(),
        fields,
    });
    if metric.family() != FIGURE || !is_round(part, column) {
        return vec![cell];
    }
    let (text, tone) = match covered {
        Some(true) => ("yes", Tone::Better),
        Some(false) => ("no", Tone::Worse),
        None => ("", Tone::Plain),
    };
    vec![cell, Cell { lines: vec![(text.to_owned(), tone)], data: None }]
}

/// A figure in few columns: `14.84k`, `0.644`.
fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    format!("{}{suffix}", significant(scaled, 4))
}
