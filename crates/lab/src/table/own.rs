//! The lab's own style: medians with their spread, and below each the ratio to the baseline with half the
//! width of its bootstrap interval.

use super::number::{percent, plain, significant};
use super::{Block, Cell, Data, Row, Side, Table, origin, provenance, sample_counts};
use crate::result::{Better, Document, Kind, Metric, Part};
use crate::stats::ratio::{CONFIDENCE_PERCENT, FEW_SAMPLES, Ratio, Verdict, seed_for, verdict};
use crate::stats::{max, median, min, quartile_spread_percent, stddev};
use crate::terminal::Tone;

pub(super) fn table(part: &Part, document: &Document, seed: u64) -> Table {
    let mut about = provenance(part, document);
    if part.kind != Kind::Derived {
        about.push(format!("{}, baseline {}", sample_counts(part), part.baseline));
    }
    let uneven =
        part.metrics.iter().any(|metric| counts(part, metric).windows(2).any(|two| two[0] != two[1]));
    let rows = part.metrics.iter().map(|metric| row(part, metric, seed, uneven)).collect();
    let block = Block {
        caption: None,
        stubs: Side::Left,
        gap: 2,
        heads: part.variants.iter().map(|variant| vec![format!("{variant}  ")]).collect(),
        rows,
    };
    Table { title: part.title(), about, blocks: vec![block], notes: notes(part), origin: origin(part) }
}

fn counts(part: &Part, metric: &Metric) -> Vec<usize> {
    part.variants.iter().map(|variant| metric.of(variant).len()).filter(|count| *count > 0).collect()
}

fn row(part: &Part, metric: &Metric, seed: u64, uneven: bool) -> Row {
    let mut detail = Vec::new();
    if metric.unit != "1" && !metric.unit.is_empty() {
        detail.push(metric.unit.clone());
    }
    match metric.better {
        Better::Lower => detail.push("lower is better".to_owned()),
        Better::Higher => detail.push("higher is better".to_owned()),
        Better::None => {}
    }
    if uneven && part.kind != Kind::Derived {
        let counts: Vec<_> = counts(part, metric).iter().map(usize::to_string).collect();
        detail.push(format!("n {}", counts.join("/")));
    }
    let cells = part.variants.iter().map(|variant| cell(part, metric, variant, seed)).collect();
    let detail = (!detail.is_empty()).then(|| detail.join(", "));
    Row { stub: metric.name.clone(), detail, cells }
}

fn cell(part: &Part, metric: &Metric, variant: &str, seed: u64) -> Cell {
    let samples = metric.of(variant);
    if samples.is_empty() {
        return Cell::line(missing(part, metric, variant));
    }
    let middle = median(samples);
    let spread = quartile_spread_percent(samples);
    let mut first = significant(middle, 4);
    if max(samples) > min(samples) {
        first += &format!(" ±{}", percent(spread));
    }
    let mut cell = Cell::line(format!("{first}  "));
    let mut fields = vec![
        ("n", samples.len().to_string()),
        ("median", plain(middle)),
        ("quartile_spread_percent", plain(spread)),
        ("mean", plain(crate::stats::amean(samples))),
        ("stddev", if samples.len() > 1 { plain(stddev(samples)) } else { String::new() }),
        ("min", plain(min(samples))),
        ("max", plain(max(samples))),
    ];
    let base = metric.of(&part.baseline);
    if variant != part.baseline && !base.is_empty() {
        let ratio = Ratio::of(base, samples, seed_for(seed, &metric.name, variant));
        let verdict = verdict(base, samples, ratio, metric.better, part.kind);
        let (mark, tone) = match verdict {
            Verdict::Better => ('+', Tone::Better),
            Verdict::Worse => ('-', Tone::Worse),
            Verdict::Unclear if metric.better != Better::None => ('~', Tone::Plain),
            Verdict::Unclear | Verdict::Changed | Verdict::TooFew => (' ', Tone::Plain),
        };
        let text = match ratio {
            Some(ratio) if ratio.high > ratio.low => {
                let [value, width] =
                    [ratio.ratio, ratio.half_width()].map(|value| ratio_digits(value, ratio.ratio));
                format!("{value}× ±{width} {mark}")
            }
            Some(ratio) => format!("{}× {mark}", ratio_digits(ratio.ratio, ratio.ratio)),
            None if middle == 0.0 => format!("unchanged {mark}"),
            None => format!("from 0 {mark}"),
        };
        cell.lines.push((text, tone));
        if let Some(ratio) = ratio {
            fields.push(("ratio", plain(ratio.ratio)));
            fields.push(("ratio_low", plain(ratio.low)));
            fields.push(("ratio_high", plain(ratio.high)));
        }
        fields.push(("verdict", verdict_name(verdict).to_owned()));
    }
    if let Some([low, high]) = metric.interval.get(variant) {
        cell.lines.push((format!("[{}, {}]  ", significant(*low, 3), significant(*high, 3)), Tone::Dim));
        fields.push(("interval_low", plain(*low)));
        fields.push(("interval_high", plain(*high)));
    }
    cell.data = Some(Data {
        statistic: "median".to_owned(),
        metric: metric.name.clone(),
        unit: metric.unit.clone(),
        variant: variant.to_owned(),
        fields,
    });
    cell
}

/// What stands where there are no samples: what others printed, or that nothing is known.
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

const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Changed => "changed",
        Verdict::Unclear => "unclear",
        Verdict::TooFew => "too_few_samples",
    }
}

fn notes(part: &Part) -> Vec<String> {
    let mut notes = part.notes.clone();
    let several = part.variants.len() > 1;
    let derived = part.kind == Kind::Derived;
    if derived {
        notes.push("Derived figures are arithmetic and have no spread.".to_owned());
    } else if part.metrics.iter().any(|metric| !metric.samples.is_empty()) {
        notes.push("Median ± half the distance between the quartiles.".to_owned());
    }
    if several && derived {
        notes.push(format!("× is the ratio to {}.", part.baseline));
    } else if several && part.metrics.iter().any(|metric| metric.samples.len() > 1) {
        notes.push(format!(
            "× is the ratio of medians to {}, ± half of its {CONFIDENCE_PERCENT} % bootstrap interval.",
            part.baseline
        ));
    }
    if several && part.metrics.iter().any(|metric| metric.better != Better::None && metric.samples.len() > 1)
    {
        notes.push("+ better, - worse, ~ no clear change.".to_owned());
    }
    if part.metrics.iter().any(|metric| !metric.interval.is_empty()) {
        notes.push("[low, high] is the interval of a prediction.".to_owned());
    }
    let fewest = part.metrics.iter().flat_map(|metric| counts(part, metric)).min();
    if let Some(fewest) = fewest.filter(|fewest| *fewest < FEW_SAMPLES && !derived) {
        notes.push(format!(
            "Warning: n = {fewest} is too few to trust a spread or an interval; take at least {FEW_SAMPLES} samples."
        ));
    }
    notes
}
