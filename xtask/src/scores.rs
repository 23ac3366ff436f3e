//! The ledger, `docs/validation/ledger.md`: published figures beside what was predicted of them before they were
//! opened. All of it comes from saved files; nothing is simulated.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Result, here};

const LEDGER: &str = "docs/validation/ledger.md";

const LEDGER_HEAD: &str = "\
# Ledger of predictions

Written by `cargo xtask scores` from the saved files of this folder: every prediction of a published figure that was committed before the
figure was opened. *Width* is the factor from the middle of the range to its ends, *error* the factor between prediction and truth; so are the errors
of the naive laws. Those of `bench` on this host and on 16 CPUs, which were measured afterwards, are in [scoreboard.md](scoreboard.md).

| round | inside | median width | median error | median error of the nearest naive law |
|---|--:|--:|--:|--:|
";

/// A published figure of a variant, and the baseline's.
#[derive(Debug, PartialEq)]
struct Figure {
    study: String,
    part: String,
    metric: String,
    variant: String,
    baseline: String,
    published: f64,
    base: Option<f64>,
}

/// A prediction.
struct Predicted {
    value: f64,
    interval: [f64; 2],
}

impl Predicted {
    fn covers(&self, figure: f64) -> bool {
        (self.interval[0]..=self.interval[1]).contains(&figure)
    }
}

/// Writes the pages.
pub(crate) fn refresh(root: &Path) -> Result<()> {
    for (path, text) in [(LEDGER, ledger(root)?), (here::PAGE, here::page(root)?)] {
        fs::write(root.join(path), text).map_err(|cause| format!("{path}: {cause}"))?;
    }
    Ok(())
}

/// Every prediction of a published figure that was committed before the figure was opened, a line each.
fn ledger(root: &Path) -> Result<String> {
    let mut lines = String::new();
    let mut covers: BTreeMap<&str, Covered> = BTreeMap::new();
    let studies = json(root, "studies")?;
    let [second, third] = [json(root, "second-scores")?, json(root, "third-scores")?];
    let laws = json(root, "third")?;
    for figure in rows(&second).filter_map(figure_of) {
        if let Some(predicted) = figure.predicted(&studies) {
            let entry = Entry { figure: &figure, predicted: &predicted, laws: no_change(&figure) };
            lines += &entry.line("first", covers.entry("first").or_default());
        }
    }
    for (round, opened) in [("second", &second), ("third", &third)] {
        for row in rows(opened) {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            let figure = Figure {
                study: text("study"),
                part: text("part"),
                metric: text("metric"),
                variant: text("variant"),
                baseline: text("baseline"),
                published: row["published"].as_f64().ok_or("a row that was not published")?,
                base: row["published_baseline"].as_f64(),
            };
            let interval = numbers(&row["interval"]).try_into().map_err(|_| "a row without a range")?;
            let value = row["predicted"].as_f64().ok_or("a row without a prediction")?;
            let predicted = Predicted { value, interval };
            let mut known = no_change(&figure);
            known.extend(laws_of(&laws, &figure).filter(|_| round == "third"));
            let entry = Entry { figure: &figure, predicted: &predicted, laws: known };
            lines += &entry.line(round, covers.entry(round).or_default());
        }
    }
    let mut page = LEDGER_HEAD.to_owned();
    for (round, covered) in &covers {
        let Covered { inside, widths, errors, naive } = covered;
        let middle = |all: &[f64]| median(all).map_or_else(String::new, |value| format!("{value:.2}"));
        let _ = writeln!(
            page,
            "| {round} | {inside} of {} | {} | {} | {} |",
            widths.len(),
            middle(widths),
            middle(errors),
            middle(naive)
        );
    }
    page += "\n## Entries\n\n| round | figure | variant | predicted | range | truth | width | inside | error | error of naive laws |\n|---|---|---|--:|---|--:|--:|---|--:|---|\n";
    Ok(page + &lines)
}

/// How a round's ranges did.
#[derive(Default)]
struct Covered {
    inside: usize,
    widths: Vec<f64>,
    errors: Vec<f64>,
    /// Of the nearest naive law of each figure that has one.
    naive: Vec<f64>,
}

/// A line of the ledger.
struct Entry<'a> {
    figure: &'a Figure,
    predicted: &'a Predicted,
    laws: Vec<(String, f64)>,
}

impl Entry<'_> {
    fn line(&self, round: &str, covered: &mut Covered) -> String {
        let Figure { part, metric, variant, published, .. } = self.figure;
        let [low, high] = self.predicted.interval;
        // Errors are factors: as far above as below counts alike.
        let factor =
            |value: f64| (value > 0.0 && *published > 0.0).then(|| (value / published).ln().abs().exp());
        let width = if low > 0.0 { (high / low).sqrt() } else { f64::INFINITY };
        let inside = self.predicted.covers(*published);
        covered.inside += usize::from(inside);
        covered.widths.push(width);
        covered.errors.extend(factor(self.predicted.value));
        let naive: Vec<(&str, f64)> =
            self.laws.iter().filter_map(|(name, value)| Some((name.as_str(), factor(*value)?))).collect();
        covered.naive.extend(naive.iter().map(|(_, error)| *error).min_by(f64::total_cmp));
        let naive: Vec<String> = naive.iter().map(|(name, error)| format!("{name} {error:.2}")).collect();
        let error = factor(self.predicted.value).map_or_else(String::new, |error| format!("{error:.2}"));
        format!(
            "| {round} | {part} `{metric}` | {variant} | {} | {} to {} | {} | {} | {} | {error} | {} |\n",
            short(self.predicted.value),
            short(low),
            short(high),
            short(*published),
            if width.is_finite() { format!("{width:.2}") } else { "from 0".to_owned() },
            if inside { "yes" } else { "no" },
            naive.join(", ")
        )
    }
}

/// The law that nothing changes, where a baseline is known.
fn no_change(figure: &Figure) -> Vec<(String, f64)> {
    figure.base.map(|base| ("no change".to_owned(), base)).into_iter().collect()
}

/// The laws that were committed with a prediction, but the one above.
fn laws_of<'a>(document: &'a Value, figure: &'a Figure) -> impl Iterator<Item = (String, f64)> + 'a {
    let parts = document["results"].as_array().into_iter().flatten();
    let metrics = parts.flat_map(|part| part["metrics"].as_array().into_iter().flatten());
    let metric = metrics.filter(|metric| metric["name"] == *figure.metric);
    let laws = metric.flat_map(|metric| metric["laws"].as_object().into_iter().flatten());
    laws.filter(|(name, _)| *name != "no change")
        .filter_map(|(name, values)| Some((name.clone(), values[&figure.variant].as_f64()?)))
}

impl Figure {
    /// The prediction of a round.
    fn predicted(&self, round: &Value) -> Option<Predicted> {
        let parts = round["results"].as_array()?;
        let is_part = |part: &&Value| {
            part["study"] == *self.study && part["part"] == *self.part && part["kind"] == "simulated"
        };
        let metrics = parts.iter().find(is_part)?["metrics"].as_array()?;
        let family = |metric: &&Value| {
            metric["name"].as_str().and_then(|name| name.split('[').next()) == Some(&self.metric)
        };
        let exact = metrics.iter().find(|metric| metric["name"] == *self.metric);
        predicted(exact.or_else(|| metrics.iter().find(family))?, &self.variant)
    }
}

/// A saved metric as a prediction.
fn predicted(metric: &Value, variant: &str) -> Option<Predicted> {
    let samples = numbers(&metric["samples"][variant]);
    let value = median(&samples)?;
    let interval = numbers(&metric["interval"][variant]).try_into().unwrap_or([value; 2]);
    let interval = [interval[0].min(value), interval[1].max(value)];
    Some(Predicted { value, interval })
}

/// The rows of all opened sets.
fn rows(opened: &Value) -> impl Iterator<Item = &Value> {
    opened.as_array().into_iter().flatten().flat_map(|set| set["rows"].as_array().into_iter().flatten())
}

/// A row of an opened set that is a change of a variant.
fn figure_of(row: &Value) -> Option<Figure> {
    let text = |key: &str| Some(row[key].as_str()?.to_owned());
    Some(Figure {
        study: text("study")?,
        part: text("part")?,
        metric: text("metric")?,
        variant: text("variant")?,
        baseline: text("baseline")?,
        published: row["published"].as_f64()?,
        base: row["published_baseline"].as_f64(),
    })
}

/// A saved file of `docs/validation`.
pub(crate) fn json(root: &Path, name: &str) -> Result<Value> {
    let file = format!("docs/validation/{name}.json");
    let text = fs::read_to_string(root.join(&file)).map_err(|cause| format!("{file}: {cause}"))?;
    serde_json::from_str(&text).map_err(|cause| format!("{file}: {cause}"))
}

pub(crate) fn numbers(values: &Value) -> Vec<f64> {
    values.as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    let low = if sorted.len().is_multiple_of(2) {
        sorted.get(middle.checked_sub(1)?)?
    } else {
        sorted.get(middle)?
    };
    Some(f64::midpoint(*low, sorted[middle]))
}

/// Four significant digits, with a suffix for large figures.
pub(crate) fn short(value: f64) -> String {
    let (scaled, suffix) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e5 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (0..4).find(|digits| scaled.abs() >= 10_f64.powi(3 - digits)).unwrap_or(4);
    format!("{scaled:.*}{suffix}", usize::try_from(digits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_files_give() {
        let root = crate::root();
        let ledger = ledger(&root).expect("all files are there");
        assert_eq!(
            fs::read_to_string(root.join(LEDGER)).expect("the page"),
            ledger,
            "run `cargo xtask scores`"
        );
        let here = here::page(&root).expect("all files are there");
        assert_eq!(
            fs::read_to_string(root.join(here::PAGE)).expect("the page"),
            here,
            "run `cargo xtask scores`"
        );
        let lines =
            |round: &str| ledger.lines().filter(|line| line.starts_with(&format!("| {round} | "))).count();
        assert_eq!(
            ["first", "second", "third"].map(lines),
            [24, 361, 19],
            "a line of the summary each, and the entries"
        );
    }

    #[test]
    fn figures_have_four_digits() {
        assert_eq!(
            [14_840.0, 0.644, 52_810_000.0, 164_280.0].map(short),
            ["14840", "0.6440", "52.81M", "164.3k"]
        );
        assert_eq!((median(&[3.0, 1.0]), median(&[])), (Some(2.0), None));
    }
}
