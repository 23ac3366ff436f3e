//! The three generations of MMTests reports. Figures and rules: the reporters of 2011, 2019 and 2024, as the
//! kernel patches of those years print them.

pub(super) mod generation;
pub(super) mod reclaim;

use super::number::plain;
use super::{Block, Cell, Row, Side, Table, provenance, sample_counts};
use crate::result::{Better, Document, Kind, Metric, Part};
use crate::stats::change::{percent_2011, percent_2019, significant_2019, significant_2024};
use crate::stats::{amean, bamean, coeff_var, gmean, hmean, hstddev, max, min, stddev, stddev_population};
use crate::terminal::Tone;
use generation::{Generation, heads_2019};
use reclaim::is_reserved;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistic {
    Min,
    Mean,
    Stddev,
    CoeffVar,
    Max,
    BestMean(u32),
}

/// Width to which the names of metrics are padded in tables of 2011.
const NAME_WIDTH_2011: usize = 27;

pub(super) fn table(part: &Part, document: &Document, generation: Generation, all: bool) -> Table {
    let metrics: Vec<&Metric> = part.metrics.iter().filter(|metric| !is_reserved(&metric.name)).collect();
    let mut blocks = Vec::new();
    if !metrics.is_empty() {
        blocks.push(match generation {
            Generation::Of2011 => main_2011(part, &metrics),
            _ => main_2019(part, &metrics, generation, all),
        });
        blocks.extend(all.then(|| ratios(part, &metrics)).flatten());
    }
    blocks.extend(reclaim::durations(part, generation));
    blocks.extend(reclaim::counters(part, generation));

    let mut about = provenance(part, document);
    about.push(format!("{}, baseline {}", sample_counts(part), part.baseline));
    about.push(rule(generation).to_owned());
    let mut table = Table::new(part, about, blocks);
    if part.kind != Kind::Derived {
        table.notes.extend(significance(generation).map(str::to_owned));
    }
    table
}

const fn rule(generation: Generation) -> &'static str {
    match generation {
        Generation::Of2011 => "Style mmtests-2011: percent of the new value, + is better",
        Generation::Of2019 => "Style mmtests-2019: percent of the baseline, + is better",
        Generation::Of2024 => "Style mmtests-2024: percent of the baseline, + is better",
    }
}

const fn significance(generation: Generation) -> Option<&'static str> {
    match generation {
        Generation::Of2011 => None,
        Generation::Of2019 => Some("* on a mean: t-test, two-sided p < 0.10."),
        Generation::Of2024 => Some("* on a mean: further apart than 1.96 times the sum of both deviations."),
    }
}

/// Grouped by metric; value `%11.2f`, percentage `(%5.2f%%)`.
fn main_2011(part: &Part, metrics: &[&Metric]) -> Block {
    // Longer names stand out, so that the others fit beside two columns on a narrow terminal.
    let longest = metrics.iter().map(|metric| metric.name.chars().count()).max().unwrap_or(0);
    let name_width = longest.min(NAME_WIDTH_2011);
    let mut rows = Vec::new();
    for metric in metrics {
        let single = metric.samples.values().all(|samples| samples.len() == 1);
        let statistics: &[Statistic] = if single {
            &[Statistic::Mean]
        } else {
            &[Statistic::Min, Statistic::Mean, Statistic::Stddev, Statistic::Max]
        };
        for &statistic in statistics {
            let name = statistic.name(metric.better, Generation::Of2011);
            let stub =
                if single { metric.name.clone() } else { format!("{:<name_width$} {name:<6}", metric.name) };
            rows.push(row(part, metric, statistic, Generation::Of2011, stub));
        }
    }
    block(rows, 1, part.variants.iter().map(|variant| vec![variant.clone()]).collect())
}

/// Grouped by statistic; value `%12.2f`, percentage `(%7.2f%%)`.
fn main_2019(part: &Part, metrics: &[&Metric], generation: Generation, all: bool) -> Block {
    use Statistic::{BestMean, CoeffVar, Max, Mean, Min, Stddev};
    let statistics: &[Statistic] = if all {
        &[Min, Mean, Stddev, CoeffVar, Max, BestMean(50), BestMean(95), BestMean(99)]
    } else {
        &[Mean, Stddev]
    };
    let of_one = |metric: &Metric| metric.samples.values().all(|samples| samples.len() == 1);
    let shown: Vec<(Statistic, &Metric)> = statistics
        .iter()
        .flat_map(|&statistic| metrics.iter().map(move |&metric| (statistic, metric)))
        // One sample is its own mean; its spread does not exist, the rest repeats it.
        .filter(|(statistic, metric)| *statistic == Mean || !of_one(metric))
        .collect();
    let label = |statistic: Statistic, metric: &Metric| statistic.name(metric.better, generation);
    let width = shown.iter().map(|(statistic, metric)| label(*statistic, metric).len()).max().unwrap_or(0);
    let rows = shown
        .iter()
        .map(|&(statistic, metric)| {
            let stub = format!("{:<width$} {}", label(statistic, metric), metric.name);
            row(part, metric, statistic, generation, stub)
        })
        .collect();
    block(rows, 0, heads_2019(part))
}

fn block(rows: Vec<Row>, gap: usize, heads: Vec<Vec<String>>) -> Block {
    Block { caption: None, stubs: Side::Left, gap, heads, rows }
}

fn row(part: &Part, metric: &Metric, statistic: Statistic, generation: Generation, stub: String) -> Row {
    Row::new(part, stub, |variant| cell(part, metric, statistic, generation, variant))
}

fn cell(part: &Part, metric: &Metric, statistic: Statistic, generation: Generation, variant: &str) -> Cell {
    let samples = metric.of(variant);
    let base = metric.of(&part.baseline);
    let value = statistic.of(samples, metric.better, generation);
    let before = statistic.of(base, metric.better, generation);
    // 2011 turns the sign of a spread as it does the metric's; later a wider spread is always worse.
    let better = match (statistic, generation) {
        (Statistic::Stddev | Statistic::CoeffVar, Generation::Of2019 | Generation::Of2024) => Better::Lower,
        _ => metric.better,
    };
    let change = match generation {
        Generation::Of2011 => percent_2011(before, value, better),
        _ => percent_2019(before, value, better),
    };
    let starred = statistic == Statistic::Mean
        && variant != part.baseline
        && !base.is_empty()
        && is_significant(base, samples, metric.better, generation);

    let decimals = decimals(metric);
    let percentage = match generation {
        _ if change.is_nan() => String::new(),
        Generation::Of2011 => format!("({change:>5.2}%)"),
        _ if starred => format!("*{change:>7.2}%*"),
        _ => format!("({change:>7.2}%)"),
    };
    let text = match generation {
        Generation::Of2011 => format!("{value:>11.decimals$} {percentage:>8}"),
        _ => format!("{value:>12.decimals$} {percentage:>10}"),
    };
    let tone = match (starred, change > 0.0, metric.better) {
        (false, ..) | (.., Better::None) => Tone::Plain,
        (true, true, _) => Tone::Better,
        (true, false, _) => Tone::Worse,
    };
    let mut fields = vec![("value", plain(value)), ("change_percent", plain(change))];
    if statistic == Statistic::Mean && generation != Generation::Of2011 {
        fields.push(("significant", u8::from(starred).to_string()));
    }
    let name = statistic.name(metric.better, generation);
    Cell::with(text, tone, [&name, &metric.name, &metric.unit, variant], fields)
}

/// Two as published; four for a metric whose values two would round away.
fn decimals(metric: &Metric) -> usize {
    let largest =
        metric.samples.values().flatten().fold(0.0, |largest: f64, sample| largest.max(sample.abs()));
    if largest > 0.0 && largest < 1.0 { 4 } else { 2 }
}

fn is_significant(base: &[f64], new: &[f64], better: Better, generation: Generation) -> bool {
    let both = |statistic: Statistic| {
        (statistic.of(base, better, generation), statistic.of(new, better, generation))
    };
    match generation {
        Generation::Of2011 => false,
        Generation::Of2019 => significant_2019(base, new),
        Generation::Of2024 => significant_2024(both(Statistic::Mean), both(Statistic::Stddev)),
    }
}

impl Statistic {
    fn name(self, better: Better, generation: Generation) -> String {
        use Generation::{Of2011, Of2024};
        let harmonic = better == Better::Higher;
        let name = match (self, generation) {
            (Self::BestMean(percent), _) => return format!("BAmean-{percent}"),
            (Self::Min, Of2011) => "min",
            (Self::Min, _) => "Min",
            (Self::Max, Of2011) => "max",
            (Self::Max, _) => "Max",
            (Self::Mean, Of2011) => "mean",
            (Self::Mean, _) if harmonic => "Hmean",
            (Self::Mean, _) => "Amean",
            (Self::Stddev, Of2011) => "stddev",
            (Self::Stddev, Of2024) if harmonic => "HStddev",
            (Self::Stddev, _) => "Stddev",
            (Self::CoeffVar, _) => "CoeffVar",
        };
        name.to_owned()
    }

    fn of(self, samples: &[f64], better: Better, generation: Generation) -> f64 {
        let harmonic = better == Better::Higher && generation != Generation::Of2011;
        match self {
            Self::Min => min(samples),
            Self::Max => max(samples),
            Self::Mean if harmonic => hmean(samples),
            Self::Mean => amean(samples),
            Self::Stddev => match generation {
                Generation::Of2011 => stddev_population(samples),
                Generation::Of2024 if harmonic => hstddev(samples),
                _ => stddev(samples),
            },
            Self::CoeffVar => coeff_var(samples),
            Self::BestMean(percent) => bamean(samples, percent, better),
        }
    }
}

/// Ratios new/base of the means, and their geometric mean. A metric whose better way is not the first
/// metric's counts upside down, so that all ratios speak the same way.
fn ratios(part: &Part, metrics: &[&Metric]) -> Option<Block> {
    let judged: Vec<&&Metric> = metrics.iter().filter(|metric| metric.better != Better::None).collect();
    let preferred = judged.first()?.better;
    let mean = |metric: &Metric, variant: &str| {
        Statistic::Mean.of(metric.of(variant), metric.better, Generation::Of2019)
    };
    let ratio = |metric: &Metric, variant: &str| {
        let ratio = mean(metric, variant) / mean(metric, &part.baseline);
        if metric.better == preferred { ratio } else { ratio.recip() }
    };
    let row = |statistic: &str, metric: &str, value: &dyn Fn(&str) -> f64| {
        Row::new(part, format!("{statistic} {metric}"), |variant| {
            let (value, labels) = (value(variant), [statistic, metric, "1", variant]);
            Cell::with(
                format!("{value:>12.2} {:>10}", ""),
                Tone::Plain,
                labels,
                vec![("value", plain(value))],
            )
        })
    };
    let mut rows: Vec<Row> =
        judged.iter().map(|metric| row("Ratio", &metric.name, &|variant| ratio(metric, variant))).collect();
    let direction = if preferred == Better::Higher { "Higher" } else { "Lower" };
    rows.push(row("Gmean", direction, &|variant| {
        gmean(&judged.iter().map(|metric| ratio(metric, variant)).collect::<Vec<f64>>())
    }));
    Some(block(rows, 0, heads_2019(part)))
}
