//! The scoreboard, `docs/validation/scoreboard.md`: published figures beside what was predicted of them before they
//! were opened. All of it comes from saved files; nothing is simulated.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Result, here};

const PAGE: &str = "docs/validation/scoreboard.md";

const LEDGER: &str = "docs/validation/ledger.md";

const LEDGER_HEAD: &str = "\
# Ledger of predictions

Written by `cargo xtask scores` from the saved files of this folder: every prediction of a published figure that was committed before the
figure was opened. *Width* is the factor from the middle of the range to its ends, *error* the factor between prediction and truth; so are the errors
of the naive laws. Those of `bench` on this host and on 16 CPUs, which were measured afterwards, are in [scoreboard.md](scoreboard.md).

| round | inside | median width | median error | median error of the nearest naive law |
|---|--:|--:|--:|--:|
";

const HEAD: &str = "\
# Scoreboard

Written by `cargo xtask scores` from the files of this folder and the published figures in `studies/`. Predictions were committed before
the figures were opened; [model.md](../model.md) describes the rounds. *in*: the interval of the prediction holds the figure. Errors are
medians of their sizes. *Skill* is 1 − error / error of a naive law: below 0 the law is nearer. Naive laws: of a change, none; of
locks, `max(T1, S n)` from two open rows, or an exchange between two cores; of workers, `max(one / n, all)`; of `bench` on more CPUs
than one, as measured on one. Runs that are scaled down are compared by their changes alone.
";

/// Rounds that predicted changes of studies: name and file.
const ROUNDS: [(&str, &str); 3] =
    [("first_blind", "studies"), ("second_blind", "second"), ("third_blind", "third")];

/// Rounds that predicted `bench` of one machine: name, prediction and measurement.
const HOSTS: [(&str, &str, &str); 2] =
    [("host_blind", "host", "host-measured"), ("sixteen_blind", "sixteen", "sixteen-measured")];

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

/// A prediction: its median, and those of the models of the variant and of the baseline.
struct Predicted {
    value: f64,
    interval: [f64; 2],
    samples: Vec<f64>,
    base: Vec<f64>,
}

impl Predicted {
    fn covers(&self, figure: f64) -> bool {
        (self.interval[0]..=self.interval[1]).contains(&figure)
    }
}

/// Quality of a round's predictions.
#[derive(Default)]
struct Score {
    errors: Vec<f64>,
    covered: usize,
    /// Errors of predicted changes and of the law that nothing changes, in points.
    changes: Vec<[f64; 2]>,
    changes_covered: usize,
}

impl Score {
    fn add(&mut self, published: f64, base: Option<f64>, predicted: &Predicted) {
        if published != 0.0 {
            self.errors.push((predicted.value / published - 1.0).abs());
        }
        self.covered += usize::from(predicted.covers(published));
        let (Some(base), Some(predicted_base)) = (base, median(&predicted.base)) else { return };
        if base == 0.0 || predicted_base == 0.0 {
            return;
        }
        let change = published / base - 1.0;
        let off = [predicted.value / predicted_base - 1.0 - change, change];
        self.changes.push(off.map(|points| 100.0 * points.abs()));
        if predicted.samples.len() != predicted.base.len() || predicted.base.contains(&0.0) {
            return;
        }
        let pairs = predicted.samples.iter().zip(&predicted.base);
        let (low, high) = pairs
            .map(|(new, old)| new / old - 1.0)
            .fold((f64::MAX, f64::MIN), |(low, high), ratio| (low.min(ratio), high.max(ratio)));
        self.changes_covered += usize::from((low..=high).contains(&change));
    }

    fn row(&self, name: &str) -> String {
        let error = 100.0 * median(&self.errors).unwrap_or(0.0);
        let column = |n: usize| median(&self.changes.iter().map(|change| change[n]).collect::<Vec<_>>());
        let changes = match (column(0), column(1)) {
            (Some(off), Some(none)) => {
                let skill = 1.0 - off / none;
                format!(
                    "{} | {off:.1} | {none:.1} | {skill:.2} | {}",
                    self.changes.len(),
                    self.changes_covered
                )
            }
            _ => " | | | |".to_owned(),
        };
        format!("| {name} | {} | {error:.1} | {} | {changes} |\n", self.errors.len(), self.covered)
    }
}

/// Writes the pages.
pub(crate) fn refresh(root: &Path) -> Result<()> {
    for (path, text) in [(PAGE, page(root)?), (LEDGER, ledger(root)?), (here::PAGE, here::page(root)?)] {
        fs::write(root.join(path), text).map_err(|cause| format!("{path}: {cause}"))?;
    }
    Ok(())
}

/// Every prediction of a published figure that was committed before the figure was opened, a line each.
fn ledger(root: &Path) -> Result<String> {
    let mut lines = String::new();
    let mut covers: BTreeMap<&str, Covered> = BTreeMap::new();
    let studies = json(root, ROUNDS[0].1)?;
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
            let predicted = Predicted { value, interval, samples: Vec::new(), base: Vec::new() };
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

fn page(root: &Path) -> Result<String> {
    let opened = json(root, "second-scores")?;
    let mut page = HEAD.to_owned();
    let mut scores = String::from(
        "\n## Rounds\n\n| round | figures | error, % | in | changes | points off | no change | skill | in |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    changes(root, &opened, &mut page, &mut scores)?;
    let mut hosts = String::new();
    for host in HOSTS {
        bench(root, host, &mut hosts, &mut scores)?;
    }
    page += &scores;
    curves(root, &opened, &mut page)?;
    Ok(page + &hosts)
}

/// A table of the published changes, and the score of each round.
fn changes(root: &Path, opened: &Value, page: &mut String, scores: &mut String) -> Result<()> {
    let mut figures: Vec<Figure> = rows(opened).filter_map(figure_of).collect();
    for figure in published(root)? {
        if !figures.iter().any(|known| known.is_of(&figure)) {
            figures.push(figure);
        }
    }
    *page += "\n## Changes\n\n| figure | variant | published | baseline | first blind | in | second blind | in | third blind | in |\n|---|---|--:|--:|--:|---|--:|---|--:|---|\n";
    let rounds = ROUNDS.iter().map(|(_, file)| json(root, file)).collect::<Result<Vec<Value>>>()?;
    let mut found = ROUNDS.map(|_| Score::default());
    for figure in &figures {
        let mut cells = String::new();
        for (round, score) in rounds.iter().zip(&mut found) {
            let predicted = figure.predicted(round);
            if let Some(predicted) = &predicted {
                score.add(figure.published, figure.base, predicted);
            }
            cells += &prediction(predicted.as_ref(), figure.published);
        }
        let Figure { part, metric, variant, published, base, .. } = figure;
        let base = base.map_or_else(String::new, short);
        let _ = writeln!(page, "| {part} `{metric}` | {variant} | {} | {base} |{cells}", short(*published));
    }
    for ((name, _), score) in ROUNDS.iter().zip(&found) {
        *scores += &score.row(name);
    }
    Ok(())
}

/// Two cells: a prediction, and whether its interval holds the figure.
fn prediction(predicted: Option<&Predicted>, figure: f64) -> String {
    predicted.map_or_else(
        || " | |".to_owned(),
        |predicted| {
            format!(" {} | {} |", short(predicted.value), if predicted.covers(figure) { "yes" } else { "no" })
        },
    )
}

impl Figure {
    /// Whether both are of one metric. Where settings vary, the published figure is of the first.
    fn is_of(&self, figure: &Self) -> bool {
        let is_metric = self.metric == figure.metric || self.metric.split('[').next() == Some(&figure.metric);
        is_metric && (&self.part, &self.variant) == (&figure.part, &figure.variant)
    }

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
        predicted(exact.or_else(|| metrics.iter().find(family))?, &self.variant, &self.baseline)
    }
}

/// A saved metric as a prediction.
fn predicted(metric: &Value, variant: &str, baseline: &str) -> Option<Predicted> {
    let samples = numbers(&metric["samples"][variant]);
    let value = median(&samples)?;
    let interval = numbers(&metric["interval"][variant]).try_into().unwrap_or([value; 2]);
    let interval = [interval[0].min(value), interval[1].max(value)];
    Some(Predicted { value, interval, samples, base: numbers(&metric["samples"][baseline]) })
}

/// Figures that studies name as published, of all variants but the baseline.
fn published(root: &Path) -> Result<Vec<Figure>> {
    let mut files: Vec<_> = fs::read_dir(root.join("studies"))
        .and_then(|files| files.map(|file| Ok(file?.path())).collect::<std::io::Result<_>>())
        .map_err(|cause| format!("studies: {cause}"))?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    let mut figures = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|cause| format!("{}: {cause}", file.display()))?;
        let study: toml::Table = text.parse().map_err(|cause| format!("{}: {cause}", file.display()))?;
        let text = |value: &toml::Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
        for part in study["part"].as_array().into_iter().flatten() {
            for metric in part.get("metric").and_then(toml::Value::as_array).into_iter().flatten() {
                let mean = |value: &toml::Value| {
                    value["mean"].as_float().or(value["mean"].as_integer().map(|n| n as f64))
                };
                for (variant, changed) in
                    metric.get("changed").and_then(toml::Value::as_table).into_iter().flatten()
                {
                    figures.push(Figure {
                        study: study["name"].as_str().unwrap_or_default().to_owned(),
                        part: text(part, "name"),
                        metric: text(metric, "name"),
                        variant: variant.clone(),
                        baseline: part["workload"]
                            .get("baseline")
                            .unwrap_or(&study["baseline"])
                            .as_str()
                            .unwrap_or_default()
                            .to_owned(),
                        published: mean(changed).ok_or("a published figure without a mean")?,
                        base: metric.get("published").and_then(mean),
                    });
                }
            }
        }
    }
    Ok(figures)
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

/// Sets of which every row is a point of a curve: errors of the prediction and of the naive law by curve.
fn curves(root: &Path, opened: &Value, page: &mut String) -> Result<()> {
    let law = Law::read(root)?;
    let mut curves: BTreeMap<String, [Vec<f64>; 3]> = BTreeMap::new();
    for row in rows(opened).filter(|row| row["baseline"].is_null()) {
        let (part, variant) = (row["part"].as_str().unwrap_or(""), row["variant"].as_str().unwrap_or(""));
        let metric = row["metric"].as_str().unwrap_or("");
        let family = metric.split('[').next().unwrap_or("");
        let number = |name| parameter(metric, name).and_then(|number| number.parse::<f64>().ok());
        let (name, naive) = match (parameter(metric, "machine"), number("threads"), number("cores")) {
            (Some(machine), Some(workers), _) => {
                (format!("{part} {machine}"), law.workers(machine, variant, workers))
            }
            (_, _, Some(cores)) => (format!("{part} {variant} `{family}`"), law.list(variant, family, cores)),
            _ => continue,
        };
        let published = row["published"].as_f64().ok_or("a row that was not published")?;
        let error = |value: f64| 100.0 * (value / published - 1.0).abs();
        let curve = curves.entry(name).or_default();
        curve[0].extend(row["predicted"].as_f64().map(error));
        curve[1].extend(naive.map(error));
        curve[2].push(f64::from(u8::from(row["covered"] == true)));
    }
    *page += "\n## Curves of the second round\n\n| curve | entries | error, % | naive law, % | skill | in |\n|---|--:|--:|--:|--:|--:|\n";
    for (name, [errors, naive, covered]) in &curves {
        let error = median(errors).unwrap_or(0.0);
        let naive = median(naive)
            .map_or_else(|| " | ".to_owned(), |naive| format!("{naive:.1} | {:.2}", 1.0 - error / naive));
        let covered: f64 = covered.iter().sum();
        let _ = writeln!(page, "| {name} | {} | {error:.1} | {naive} | {covered} |", errors.len());
    }
    Ok(())
}

/// The parameter of a metric's name.
fn parameter<'a>(metric: &'a str, name: &str) -> Option<&'a str> {
    let inside = metric.split_once('[')?.1.strip_suffix(']')?;
    inside.split(',').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Sources of the naive laws.
struct Law {
    published: Vec<Figure>,
    /// Rows of the calibration about lists: benchmark, cores, get and put.
    lists: Vec<(String, f64, [Option<f64>; 2])>,
    /// Nanoseconds of a compare-and-swap that two cores contend for.
    exchange: f64,
}

impl Law {
    fn read(root: &Path) -> Result<Self> {
        let read =
            |name: &str| fs::read_to_string(root.join(name)).map_err(|cause| format!("{name}: {cause}"));
        let list = |line: &str| {
            let cells: Vec<&str> = line.split(',').collect();
            let [_, bench, _, cores, _, get, put] = cells[..] else { return None };
            Some((bench.to_owned(), cores.parse().ok()?, [get, put].map(|cell| cell.parse().ok())))
        };
        let calibration = read("machines/calibration/xeon-gold-5320.csv")?;
        let machine: toml::Table = read("machines/xeon-gold-5320.toml")?
            .parse()
            .map_err(|cause| format!("xeon-gold-5320: {cause}"))?;
        let exchange = &machine["latency_ns"]["contended_cas_2_cores"]["value"];
        Ok(Self {
            published: published(root)?,
            lists: calibration.lines().filter(|line| line.starts_with("list,")).filter_map(list).collect(),
            exchange: exchange.as_float().or(exchange.as_integer().map(|n| n as f64)).ok_or("no exchange")?,
        })
    }

    /// Deferred initialisation by a number of workers: `max(one / n, all)` of the published ends.
    fn workers(&self, machine: &str, variant: &str, workers: f64) -> Option<f64> {
        let name = format!("deferred_init_ms[machine={machine}]");
        let ends = self.published.iter().find(|figure| figure.metric == name && figure.variant == variant)?;
        Some((ends.base? / workers.max(1.0)).max(ends.published))
    }

    /// A plain list in user space: `max(T1, S n)` of what was open of its kind.
    fn list(&self, list: &str, family: &str, cores: f64) -> Option<f64> {
        let (bench, column) = match family {
            "bulk_get_ns" => ("bulk", 0),
            "bulk_put_ns" => ("bulk", 1),
            "rand_put_ns" => ("rand", 1),
            _ => ("repeat", 0),
        };
        if list == "list_cas" {
            let each = self.exchange / if bench == "repeat" { 1.0 } else { 2.0 };
            return Some(each * cores.max(1.0));
        }
        let at_cores = |cores: f64| {
            let row = self.lists.iter().find(|row| row.0 == bench && row.1 == cores)?;
            row.2[column]
        };
        if list == "list_locked" { Some(at_cores(2.0)?.max(at_cores(8.0)? / 8.0 * cores)) } else { None }
    }
}

/// One machine's `bench`: every figure beside the measured one, and the scores of all and by the number of CPUs.
/// Changes are from one CPU to more.
fn bench(root: &Path, host: (&str, &str, &str), page: &mut String, scores: &mut String) -> Result<()> {
    let (round, predictions, measurements) = host;
    let [predictions, measurements] = [json(root, predictions)?, json(root, measurements)?];
    let part = |document: &Value| -> Option<(BTreeMap<String, Value>, String)> {
        let part = document["results"].as_array()?.iter().find(|part| part["part"] == "host")?.clone();
        let metrics = part["metrics"].as_array()?.iter();
        let named = metrics.map(|metric| Some((metric["name"].as_str()?.to_owned(), metric.clone())));
        Some((named.collect::<Option<_>>()?, part["baseline"].as_str()?.to_owned()))
    };
    let (predictions, variant) = part(&predictions).ok_or("a prediction has no part host")?;
    let (measurements, _) = part(&measurements).ok_or("a measurement has no part host")?;
    let measured = |name: &str| median(&numbers(&measurements.get(name)?["samples"][&variant]));
    let _ = write!(
        page,
        "\n## `bench`: {round}\n\n| ns | measured | on one CPU | predicted | in |\n|---|--:|--:|--:|---|\n"
    );
    let mut by_cpus: BTreeMap<u32, Score> = BTreeMap::new();
    let mut all = Score::default();
    for (name, metric) in &predictions {
        let (Some(mut predicted), Some(before)) = (predicted(metric, &variant, ""), measured(name)) else {
            continue;
        };
        let cpus = parameter(name, "cpus").and_then(|cpus| cpus.parse().ok()).unwrap_or(1);
        let alone = name.replace(&format!("cpus={cpus}]"), "cpus=1]");
        let base = if cpus > 1 { measured(&alone) } else { None };
        predicted.base =
            predictions.get(&alone).map_or_else(Vec::new, |alone| numbers(&alone["samples"][&variant]));
        for score in [&mut all, by_cpus.entry(cpus).or_default()] {
            score.add(before, base, &predicted);
        }
        let base = base.map_or_else(String::new, short);
        let _ = writeln!(
            page,
            "| `{name}` | {} | {base} |{}",
            short(before),
            prediction(Some(&predicted), before)
        );
    }
    *scores += &all.row(round);
    for (cpus, score) in &by_cpus {
        *scores += &score.row(&format!("{round}, cpus={cpus}"));
    }
    Ok(())
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
    fn the_page_is_what_the_files_give() {
        let root = crate::root();
        let page = page(&root).expect("all files are there");
        assert_eq!(fs::read_to_string(root.join(PAGE)).expect("the page"), page, "run `cargo xtask scores`");
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
        // Four machines by every number of workers; three lists by four metrics.
        let curves = page.split("## ").find(|section| section.starts_with("Curves")).expect("a section");
        assert_eq!(curves.lines().filter(|line| line.starts_with("| ")).count(), 1 + 4 + 12);
        for (round, figures) in [("host_blind", 42), ("sixteen_blind", 114)] {
            assert!(page.contains(&format!("\n| {round} | {figures} | ")), "{round}");
        }
    }

    #[test]
    fn a_change_is_scored_against_none_at_all() {
        let predicted = Predicted {
            value: 43.0,
            interval: [42.0, 44.0],
            samples: vec![42.0, 44.0],
            base: vec![50.0, 52.0],
        };
        let mut score = Score::default();
        score.add(80.0, Some(100.0), &predicted);
        assert_eq!(score.row("r"), "| r | 1 | 46.2 | 0 | 1 | 4.3 | 20.0 | 0.78 | 0 |\n");
        assert_eq!(
            [14_840.0, 0.644, 52_810_000.0, 164_280.0].map(short),
            ["14840", "0.6440", "52.81M", "164.3k"]
        );
        assert_eq!((median(&[3.0, 1.0]), median(&[])), (Some(2.0), None));
    }
}
