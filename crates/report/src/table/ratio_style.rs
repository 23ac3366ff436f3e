//! The lab's own style: medians with their spread, and below each the ratio to the baseline with its interval.

use super::number::{percent, plain, significant};
use super::{Block, Cell, Row, Side, Table, provenance, sample_counts};
use crate::result::{Better, Document, Kind, Metric, Part};
use crate::stats::ratio::{CONFIDENCE_PERCENT, Ratio, Verdict, needed, verdict};
use crate::stats::{max, median, min, quartile_spread_percent, stddev};
use crate::terminal::Tone;

pub(super) fn table(part: &Part, document: &Document) -> Table {
    let mut about = provenance(part, document);
    if part.metrics.is_empty() {
        about.push(format!("baseline {}", part.baseline));
    } else if part.kind != Kind::Derived {
        about.push(format!("{}, baseline {}", sample_counts(part), part.baseline));
    }
    let uneven =
        part.metrics.iter().any(|metric| counts(part, metric).windows(2).any(|two| two[0] != two[1]));
    let rows = part.metrics.iter().map(|metric| row(part, metric, uneven)).collect();
    let block = Block {
        caption: None,
        stubs: Side::Left,
        gap: 2,
        heads: part.variants.iter().map(|variant| vec![format!("{variant}  ")]).collect(),
        rows,
    };
    // The rows say what their figures rest on.
    Table { notes: part.notes.clone(), legend: legend(part), ..Table::new(part, about, vec![block]) }
}

fn counts(part: &Part, metric: &Metric) -> Vec<usize> {
    part.variants.iter().map(|variant| metric.of(variant).len()).filter(|count| *count > 0).collect()
}

fn row(part: &Part, metric: &Metric, uneven: bool) -> Row {
    let mut detail = vec![part.basis(metric).to_string()];
    detail.extend(metric.unit_and_direction().into_iter().map(str::to_owned));
    if uneven && part.kind != Kind::Derived {
        let counts: Vec<_> = counts(part, metric).iter().map(usize::to_string).collect();
        detail.push(format!("n {}", counts.join("/")));
    }
    let row = Row::new(part, metric.words(), |variant| cell(part, metric, variant));
    Row { detail: Some(detail.join(", ")), ..row }
}

/// The bare numbers of a cell.
fn statistics(samples: &[f64]) -> [(&'static str, String); 7] {
    [
        ("n", samples.len().to_string()),
        ("median", plain(median(samples))),
        ("quartile_spread_percent", plain(quartile_spread_percent(samples))),
        ("mean", plain(crate::stats::amean(samples))),
        ("stddev", if samples.len() > 1 { plain(stddev(samples)) } else { String::new() }),
        ("min", plain(min(samples))),
        ("max", plain(max(samples))),
    ]
}

fn cell(part: &Part, metric: &Metric, variant: &str) -> Cell {
    let samples = metric.of(variant);
    if samples.is_empty() {
        return Cell::line(missing(part, metric, variant));
    }
    let (middle, spread) = (median(samples), quartile_spread_percent(samples));
    let mut first = significant(middle, 4);
    if max(samples) > min(samples) {
        first += &format!(" ±{}", percent(spread));
    }
    let mut lines = vec![(format!("{first}  "), Tone::Plain)];
    let mut fields = vec![("basis", part.basis(metric).to_string())];
    fields.extend(statistics(samples));
    let base = metric.of(&part.baseline);
    if variant != part.baseline && !base.is_empty() {
        let ratio = Ratio::between(part, metric, variant);
        let verdict = verdict(part, metric, variant, ratio);
        let mark = match verdict {
            Verdict::Better => '+',
            Verdict::Worse => '-',
            Verdict::Unclear if metric.better != Better::None && part.kind != Kind::Derived => '~',
            Verdict::TooFew => '?',
            Verdict::Unclear | Verdict::Changed => ' ',
        };
        let text = match ratio {
            Some(ratio) if ratio.high > ratio.low => {
                let Ratio { ratio, low, high } = ratio;
                let [value, low, high] = [ratio, low, high].map(|value| ratio_digits(value, ratio));
                format!("{value}× [{low}, {high}] {mark}")
            }
            Some(ratio) => format!("{}× {mark}", ratio_digits(ratio.ratio, ratio.ratio)),
            None if middle == median(base) => format!("unchanged {mark}"),
            None if median(base) == 0.0 => format!("from 0 {mark}"),
            None => format!("{} {mark}", signed(middle - median(base))),
        };
        lines.push((text, verdict.tone()));
        if let Some(Ratio { ratio, low, high }) = ratio {
            let ends = [("ratio", ratio), ("ratio_low", low), ("ratio_high", high)];
            fields.extend(ends.map(|(name, value)| (name, plain(value))));
        }
        // Without a spread, equal figures leave nothing unclear.
        let same = base.iter().chain(metric.of(variant)).all(|sample| *sample == base[0]);
        let name = if same { "unchanged" } else { verdict_name(verdict) };
        fields.push(("verdict", name.to_owned()));
    }
    if let Some([low, high]) = metric.interval.get(variant) {
        // One model gives no range.
        if low < high {
            lines.push((format!("[{}, {}]  ", significant(*low, 3), significant(*high, 3)), Tone::Dim));
        }
        fields.push(("interval_low", plain(*low)));
        fields.push(("interval_high", plain(*high)));
    }
    if let Some(beside) = super::beside(part, metric, variant) {
        lines.extend(beside.split("; ").map(|text| (format!("{text}  "), Tone::Dim)));
    }
    if let Some(published) = part.published(metric, variant) {
        fields.push(("published", plain(published.mean)));
    }
    if let Some(covered) = part.covers(metric, variant) {
        fields.push(("covered", covered.to_string()));
    }
    if let Some(naive) = metric.naive.get(variant) {
        fields.push(("naive_law", plain(*naive)));
    }
    let labels = ["median", &metric.name, &metric.unit, variant];
    Cell { lines, ..Cell::with(String::new(), Tone::Plain, labels, fields) }
}

/// The text of a cell without samples: a published figure, or a dash.
fn missing(part: &Part, metric: &Metric, variant: &str) -> String {
    match metric.published {
        Some(published) if variant == part.baseline => format!("{published} published  "),
        Some(_) if part.kind == Kind::Simulated => "not simulated yet  ".to_owned(),
        _ => "—  ".to_owned(),
    }
}

/// A ratio, or the width of its interval, with the decimals that suit the ratio: `0.473`, `12.3`.
fn ratio_digits(value: f64, ratio: f64) -> String {
    match ratio.abs() {
        size if (0.1..10.0).contains(&size) => format!("{value:.3}"),
        size if (10.0..1000.0).contains(&size) => format!("{value:.1}"),
        _ => significant(value, 3),
    }
}

/// A difference, where a negative figure has no ratio.
fn signed(difference: f64) -> String {
    format!("{}{}", if difference > 0.0 { "+" } else { "" }, significant(difference, 3))
}

pub(super) const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Changed => "changed",
        Verdict::Unclear => "unclear",
        Verdict::TooFew => "too_few_samples",
    }
}

/// How to read the table; sentences that several tables share are printed once, below all.
fn legend(part: &Part) -> Vec<String> {
    let mut legend = Vec::new();
    let compared = part.variants.len() > 1 && part.metrics.iter().any(|metric| metric.samples.len() > 1);
    if part.kind == Kind::Derived {
        if compared {
            legend.push("Derived figures are arithmetic; × is the ratio to the baseline.".to_owned());
        }
        return legend;
    }
    if part.metrics.iter().any(|metric| !metric.samples.is_empty()) {
        legend.push("Figures are medians ± half the distance between the quartiles.".to_owned());
    }
    if compared {
        legend.push(match (part.kind, part.paired) {
            (Kind::Simulated, true) => {
                "Simulated: × is the ratio of the medians, [low, high] the lowest and the highest on one model."
                    .to_owned()
            }
            (_, true) => format!(
                "Measured: × is the ratio of the medians, [low, high] the {CONFIDENCE_PERCENT} % interval of the ratios of \
                 each round (sign test)."
            ),
            (_, false) => format!(
                "× [low, high] is the ratio of the medians to the baseline's, with its {CONFIDENCE_PERCENT} % interval (sign \
                 test of each median)."
            ),
        });
        if part.metrics.iter().any(|metric| metric.better != Better::None && metric.samples.len() > 1) {
            // What models differ in is not drawn by chance.
            let by_chance = match part.kind {
                Kind::Simulated | Kind::Derived => String::new(),
                Kind::Measured => {
                    format!(" By chance alone, up to {} in 100 rows are marked.", 100 - CONFIDENCE_PERCENT)
                }
            };
            legend.push(format!("+ better, - worse, ~ no clear change.{by_chance}"));
        }
    }
    if part
        .metrics
        .iter()
        .any(|metric| part.variants.iter().any(|variant| part.covers(metric, variant).is_some()))
    {
        legend.push("Covered: the range of the prediction holds what was published.".to_owned());
    }
    if part.metrics.iter().any(|metric| metric.interval.values().any(|[low, high]| low < high)) {
        legend.push(
            "[low, high] below a simulated figure is its range over the models: all, if no note says which."
                .to_owned(),
        );
    }
    if compared && part.metrics.iter().any(|metric| metric.per_round > 1) {
        legend.push(
            "Of several samples a round, such as loops, the median counts: rounds are compared.".to_owned(),
        );
    }
    // A deterministic result has one sample, and needs no more.
    let uncertain = part.metrics.iter().filter(|metric| !metric.is_exact);
    let rounds_of = |metric: &Metric| {
        counts(part, metric).into_iter().map(|count| count.div_ceil(metric.per_round.max(1))).min()
    };
    let fewest = uncertain.filter_map(rounds_of).min();
    let needed = needed(part);
    if fewest.is_some_and(|fewest| fewest < needed) {
        let less = if part.kind == Kind::Measured {
            format!("; the interval is less sure than {CONFIDENCE_PERCENT} %")
        } else {
            String::new()
        };
        legend.push(format!("? too few samples to judge: {needed} or more of each are needed{less}."));
    }
    legend
}
