//! Tables: one skeleton for every style and format.
//!
//! A *style* decides what is computed and how a figure reads; it fills a [`Table`]. A *format* only adds
//! punctuation ([`render()`]). So a new style needs no format and a new format no style. The fourth format of the
//! command, JSON, is the result itself.
//!
//! | file | what lives there |
//! |---|---|
//! | `ratio_style`, `mmtests`, `lkp`, `deferred_init` | a style each, or several generations of one |
//! | `mmtests::generation` | which of MMTests' reports |
//! | `mmtests::reclaim` | the duration and reclaim blocks below MMTests tables |
//! | `listing` | plain lists, which are no results |
//! | `beside` | what others printed, and naive laws |
//! | `render`, `number` | formats, and how a figure is written |
//! | `html` | the same for the report |

mod beside;
mod deferred_init;
mod html;
mod listing;
mod lkp;
mod mmtests;
mod number;
mod ratio_style;
mod render;

use clap::ValueEnum;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::result::{Basis, Document, Kind, Metric, Part, grouped};
use crate::terminal::Tone;

pub(crate) use beside::beside;
pub use listing::Listing;
pub use mmtests::reclaim::{COUNTERS, DURATION_ELAPSED, DURATION_SYSTEM, DURATION_USER};
pub use number::significant;
pub use render::render;
pub use render::{bodies, columns, legend, legend_text, markdown_lines, paragraph, wrapped};

/// Whose reporter a table follows. The same samples print differently under each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// Medians, spread, ratio to the baseline with an interval
    #[default]
    Framewright,
    /// MMTests of 2011: change in percent of the new value
    #[value(name = "mmtests-2011")]
    #[serde(rename = "mmtests-2011")]
    Mmtests2011,
    /// MMTests of 2019: positive is better, * by t-test
    #[value(name = "mmtests-2019")]
    #[serde(rename = "mmtests-2019")]
    Mmtests2019,
    /// MMTests of 2024: as 2019, with harmonic spread and * by 1.96 (s1 + s2)
    #[value(name = "mmtests-2024")]
    #[serde(rename = "mmtests-2024")]
    Mmtests2024,
    /// Linux kernel performance reports: raw change, only metrics whose samples do not overlap
    Lkp,
    /// Boot-time tables of 2020: speedup, mean and stdev of whole milliseconds
    #[value(name = "deferred-init-2020")]
    #[serde(rename = "deferred-init-2020")]
    DeferredInit2020,
}

/// How output is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, ValueEnum)]
pub enum Format {
    /// Human-readable text
    #[default]
    Table,
    /// All data; of results, what -o saves
    Json,
    /// Comma-separated rows
    Csv,
    /// For a report or an issue
    Markdown,
    /// What a file of your own can begin with; of machines only
    Toml,
}

/// A table before any punctuation.
#[derive(Clone, Debug)]
pub struct Table {
    /// What it is about, and whether it was measured, simulated or derived.
    title: String,
    /// Lines below the title: where, how often, against what.
    about: Vec<String>,
    blocks: Vec<Block>,
    /// Sentences below the table: what to know of its figures.
    notes: Vec<String>,
    /// How to read it. What several tables share is printed once, below all.
    legend: Vec<String>,
    /// Study, part, kind and machine, for formats whose rows must stand alone.
    origin: [String; 4],
}

/// Rows under common heads.
#[derive(Clone, Debug)]
struct Block {
    caption: Option<String>,
    /// On which side of the cells the stubs stand.
    stubs: Side,
    /// Blanks between columns.
    gap: usize,
    /// Heads of each column, one line each, aligned as the cells are.
    heads: Vec<Vec<String>>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

/// A stub, which says what the row is, and a cell for each column.
#[derive(Clone, Debug)]
struct Row {
    stub: String,
    /// What else the stub says; on a line of its own where there is room for it.
    detail: Option<String>,
    cells: Vec<Cell>,
}

/// One figure, or several that belong together, right-aligned.
#[derive(Clone, Debug, Default)]
struct Cell {
    lines: Vec<(String, Tone)>,
    data: Option<Data>,
}

/// The same for a program: what the figures are of, and the bare numbers.
#[derive(Clone, Debug)]
struct Data {
    statistic: String,
    metric: String,
    unit: String,
    variant: String,
    fields: Vec<(&'static str, String)>,
}

impl Table {
    /// The table of a part, with the part's notes and no legend.
    fn new(part: &Part, about: Vec<String>, blocks: Vec<Block>) -> Self {
        let notes = part.notes.iter().cloned().chain(bases(part)).collect();
        let origin = [part.study.clone(), part.part.clone(), part.kind.to_string(), part.machine.clone()];
        Self { title: part.title(), about, blocks, notes, legend: Vec::new(), origin }
    }
}

impl Row {
    /// A row with a cell for each variant.
    fn new(part: &Part, stub: String, cell: impl FnMut(&String) -> Cell) -> Self {
        Self { stub, detail: None, cells: part.variants.iter().map(cell).collect() }
    }
}

impl Cell {
    fn line(text: String) -> Self {
        Self { lines: vec![(text, Tone::Plain)], data: None }
    }

    /// A line of text with its bare numbers. Labels are a statistic, a metric, its unit and a variant.
    fn with(text: String, tone: Tone, labels: [&str; 4], fields: Vec<(&'static str, String)>) -> Self {
        let [statistic, metric, unit, variant] = labels.map(str::to_owned);
        Self { lines: vec![(text, tone)], data: Some(Data { statistic, metric, unit, variant, fields }) }
    }
}

/// Options that a style leaves open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether MMTests styles print every statistic they know, not only those of the published tables.
    pub all_statistics: bool,
}

/// The tables of a document, one for each part.
#[must_use]
pub fn tables(document: &Document, style: Style, options: Options) -> Vec<Table> {
    let mmtests =
        |part: &Part, generation| mmtests::table(part, document, generation, options.all_statistics);
    let table = |part: &Part| match style {
        Style::Framewright => ratio_style::table(part, document),
        Style::Mmtests2011 => mmtests(part, mmtests::generation::Generation::Of2011),
        Style::Mmtests2019 => mmtests(part, mmtests::generation::Generation::Of2019),
        Style::Mmtests2024 => mmtests(part, mmtests::generation::Generation::Of2024),
        Style::Lkp => lkp::table(part),
        Style::DeferredInit2020 => deferred_init::table(part, document),
    };
    let noted = |part: &Part| {
        let mut table = table(part);
        if style != Style::Framewright {
            // First, as what compares adds its own.
            table.notes.splice(0..0, beside::note(part));
        }
        table
    };
    document.results.iter().map(noted).collect()
}

/// Refuses a style that can show nothing of a document.
///
/// # Errors
/// It is the style of boot-time tables, and nothing in the document is a time.
pub fn check(document: &Document, style: Style) -> Result<()> {
    if style == Style::DeferredInit2020 && !document.results.iter().any(deferred_init::shows) {
        return Err(Error::usage("--style deferred-init-2020 shows times, and nothing here is one"));
    }
    Ok(())
}

/// Where the samples come from: the host for what was measured on it, else the seed.
fn provenance(part: &Part, document: &Document) -> Vec<String> {
    match part.kind {
        Kind::Measured => vec![document.host.summary()],
        Kind::Simulated => vec![format!("seed {}", part.seed)],
        Kind::Derived => Vec::new(),
    }
}

/// How many samples each variant has: `n = 20`, `n = 5 to 20`.
fn sample_counts(part: &Part) -> String {
    let counts = part.metrics.iter().flat_map(|metric| metric.samples.values().map(Vec::len));
    match (counts.clone().min(), counts.max()) {
        (Some(least), Some(most)) if least == most => format!("n = {least}"),
        (Some(least), Some(most)) => format!("n = {least} to {most}"),
        _ => "n = 0".to_owned(),
    }
}

/// What the metrics rest on, for styles whose rows have no room for the word; nothing where all is as the title says.
fn bases(part: &Part) -> Option<String> {
    if part.kind == Kind::Measured {
        return None;
    }
    let of_basis = |(basis, metrics): (Basis, Vec<&Metric>)| {
        let families: Vec<&str> =
            grouped(metrics, |metric| metric.family()).into_iter().map(|(name, _)| name).collect();
        format!("{basis}: {}", families.join(", "))
    };
    let all: Vec<String> =
        grouped(&part.metrics, |metric| part.basis(metric)).into_iter().map(of_basis).collect();
    (!all.is_empty()).then(|| format!("Basis of the figures: {}.", all.join("; ")))
}

#[cfg(test)]
mod tests;
