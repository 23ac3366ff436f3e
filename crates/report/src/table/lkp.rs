//! Linux kernel performance reports: parameters above, the metric at the right, raw change between means.

use super::number::plain;
use super::{Block, Cell, DURATION_ELAPSED, DURATION_SYSTEM, DURATION_USER, Row, Side, Table};
use crate::result::{Better, Metric, Part};
use crate::stats::amean;
use crate::stats::change::{lies_apart, percent_raw};
use crate::stats::stddev_population;
use crate::terminal::Tone;

/// Columns of a mean and of its deviation.
const VALUE: usize = 10;
const DEVIATION: usize = 6;
/// Columns of a change, with its percent sign and the blank behind it.
const CHANGE: usize = 11;

pub(super) fn table(part: &Part) -> Table {
    let (listed, left_out): (Vec<&Metric>, Vec<&Metric>) =
        part.metrics.iter().partition(|metric| is_listed(part, metric));
    let rows = listed.iter().map(|metric| row(part, metric)).collect();
    let block = Block { caption: None, stubs: Side::Right, gap: 1, heads: heads(part), rows };
    let mut table = Table::new(part, parameters(part), vec![block]);
    if !left_out.is_empty() {
        let names: Vec<&str> = left_out.iter().map(|metric| metric.name.as_str()).collect();
        table.notes.push(format!("Not listed, sample ranges overlap: {}.", names.join(", ")));
    }
    table
}

fn parameters(part: &Part) -> Vec<String> {
    let rule = "=".repeat(79);
    vec![
        rule,
        "study/part/kind/machine/seed:".to_owned(),
        format!("  {}/{}/{}/{}/{}", part.study, part.part, part.kind, part.machine, part.seed),
        String::new(),
        "variant:".to_owned(),
    ]
    .into_iter()
    .chain(part.variants.iter().map(|variant| format!("  {variant}")))
    .collect()
}

fn heads(part: &Part) -> Vec<Vec<String>> {
    let base = VALUE + DEVIATION;
    let new = CHANGE + base;
    let head = |index: usize, variant: &String| {
        let width = if index == 0 { base } else { new };
        let name: String = variant.chars().take(width).collect();
        let (titles, pointers) = if index == 0 {
            ("%stddev".to_owned(), format!("{:<3}", "\\"))
        } else {
            (format!("{:>11}{:>16}", "%change", "%stddev"), format!("{:<17}{:<3}", "|", "\\"))
        };
        vec![name, "-".repeat(width), titles, pointers]
    };
    part.variants.iter().enumerate().map(|(index, variant)| head(index, variant)).collect()
}

fn is_listed(part: &Part, metric: &Metric) -> bool {
    let base = metric.of(&part.baseline);
    !base.is_empty() && part.others().any(|new| lies_apart(base, metric.of(new)))
}

fn row(part: &Part, metric: &Metric) -> Row {
    // LKP reports the durations of a test under these names.
    let name = match metric.name.as_str() {
        DURATION_ELAPSED => "elapsed_time",
        DURATION_SYSTEM => "system_time",
        DURATION_USER => "user_time",
        name => name,
    };
    Row::new(part, name.to_owned(), |variant| cell(part, metric, variant, name))
}

fn cell(part: &Part, metric: &Metric, variant: &str, name: &str) -> Cell {
    let samples = metric.of(variant);
    if samples.is_empty() {
        return Cell::line(String::new());
    }
    let mean = amean(samples);
    // In percent of the mean; a mean of 0 has none, and one sample does not spread.
    let deviation = (samples.len() > 1 && mean != 0.0)
        .then(|| 100.0 * stddev_population(samples) / mean.abs())
        .filter(|deviation| deviation.is_finite());
    let spread = deviation.map_or_else(|| " ".repeat(DEVIATION), |percent| format!(" ±{percent:>3.0}%"));
    let mut text = format!("{}{spread}", value(mean));
    let mut tone = Tone::Plain;
    let mut fields =
        vec![("mean", plain(mean)), ("stddev_percent", deviation.map_or_else(String::new, plain))];
    if variant != part.baseline {
        let base = metric.of(&part.baseline);
        let is_percent = metric.unit == "%" || metric.unit == "percent";
        let before = amean(base);
        let change = if is_percent { mean - before } else { percent_raw(before, mean) };
        let sign = if is_percent { ' ' } else { '%' };
        text = format!("{:>CHANGE$}{text}", format!("{change:+.1}{sign} "));
        tone = match (lies_apart(base, samples), change > 0.0, metric.better) {
            (false, ..) | (.., Better::None) => Tone::Plain,
            (true, true, Better::Higher) | (true, false, Better::Lower) => Tone::Better,
            _ => Tone::Worse,
        };
        fields.push((if is_percent { "change_absolute" } else { "change_percent" }, plain(change)));
    }
    Cell::with(text, tone, ["mean", name, &metric.unit, variant], fields)
}

/// Two decimals below 1000, whole numbers above, four digits where even those are too long.
fn value(mean: f64) -> String {
    let size = mean.abs();
    if size < 1000.0 {
        format!("{mean:>VALUE$.2}")
    } else if size > 1e8 {
        format!("{:>VALUE$}", format!("{mean:.3e}"))
    } else {
        format!("{:>VALUE$.0}", mean.trunc())
    }
}
