//! Part `scores` of `validation`: what was published, and what was predicted of it before anybody had looked.
//!
//! Published figures are those of the studies (`published` of the baseline, `changed` of the other variants). Predictions are the saved
//! ones in `docs/validation/`: nothing is simulated here. Beside each stands what a law says that needs no model (`naive`).

use std::collections::BTreeMap;

use framewright_sim::calibration;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::result::{Document, Kind, Metric, Part as ResultPart, Published};
use crate::simulate;
use crate::stats;
use crate::study::naive;
use crate::study::run::Run;
use crate::study::{Part, Plan};

/// The columns: what was published, what the naive law says, and of curves what share is covered and the naive law's error.
const PUBLISHED: &str = "published";
const NAIVE: &str = "naive_law";
const ENTRIES: &str = "entries";
const COVERED: &str = "covered";
const SKILL: &str = "skill";
const SECOND: &str = "second_blind";
/// Saved predictions: the round, the file, what is in it. A later file of a round adds to an earlier one.
const SAVED: [(&str, &str, &str); 2] = [
    ("first_blind", "studies.json", include_str!("../../../../docs/validation/studies.json")),
    ("second_blind", "second.json", include_str!("../../../../docs/validation/second.json")),
];
/// What was predicted of one machine's own `bench` from its description, and what was measured there afterwards.
struct Host {
    /// The round.
    round: &'static str,
    /// The first word of its figures' names.
    of: &'static str,
    /// File and text.
    predicted: (&'static str, &'static str),
    measured: (&'static str, &'static str),
}

const HOSTS: [Host; 2] = [
    Host {
        round: "host_blind",
        of: "host",
        predicted: ("host.json", include_str!("../../../../docs/validation/host.json")),
        measured: ("host-measured.json", include_str!("../../../../docs/validation/host-measured.json")),
    },
    Host {
        round: "sixteen_blind",
        of: "sixteen",
        predicted: ("sixteen.json", include_str!("../../../../docs/validation/sixteen.json")),
        measured: (
            "sixteen-measured.json",
            include_str!("../../../../docs/validation/sixteen-measured.json"),
        ),
    },
];
/// What was printed when the sets that had been held back were opened, after the second round's predictions had been saved.
const PRINTED: &str = include_str!("../../../../docs/validation/second-scores.json");

/// What was printed of one set.
#[derive(Debug, Deserialize)]
struct Opened {
    score: OpenedScore,
    rows: Vec<OpenedRow>,
}

/// One entry of a set.
#[derive(Debug, Deserialize)]
struct OpenedRow {
    study: String,
    part: String,
    metric: String,
    variant: String,
    published: f64,
    predicted: f64,
    covered: bool,
}

#[derive(Debug, Deserialize)]
struct OpenedScore {
    set: String,
    entries: usize,
    median_error: f64,
    max_error: f64,
    covered: usize,
    change_error_points: Option<f64>,
    no_change_error_points: Option<f64>,
    changes_covered: Option<usize>,
}

impl OpenedScore {
    fn describe(&self) -> String {
        let Self { set, entries, covered, .. } = self;
        let changes = match (self.change_error_points, self.no_change_error_points, self.changes_covered) {
            (Some(error), Some(naive), Some(covered)) => {
                format!(
                    "; changes {error:.1} points off (median), no change {naive:.1}; {covered} of them inside"
                )
            }
            _ => String::new(),
        };
        format!(
            "second_blind, set {set}, as opened: {entries} entries, median error {:.1} %, worst {:.0} %, {covered} inside their interval{changes}.",
            100.0 * self.median_error,
            100.0 * self.max_error,
        )
    }
}

/// What was published of one metric under one variant.
#[derive(Clone, Copy, Debug)]
struct Row<'a> {
    study: &'a str,
    part: &'a str,
    metric: &'a crate::study::Metric,
    variant: &'a str,
    baseline: &'a str,
    published: Published,
}

/// How good a round's predictions are.
#[derive(Debug, Default)]
struct Score {
    errors: Vec<f64>,
    covered: usize,
    /// Of each change: how far the predicted one is off, and how far none at all would be, in points.
    changes: Vec<[f64; 2]>,
    changes_covered: usize,
}

/// Runs the part.
///
/// # Errors
/// A saved file is none; the tests of this crate refuse to let that happen.
pub(crate) fn run(plan: &Plan, part: &Part, run: &Run<'_>) -> Result<ResultPart> {
    let plans = Plan::all()?;
    let rounds = rounds()?;
    let mut result =
        ResultPart::new(plan.name(), &part.name, Kind::Derived, "all").seed(run.seed).baseline(PUBLISHED);
    let mut scores: BTreeMap<&str, Score> = BTreeMap::new();
    let mut sources = Vec::new();
    for row in plans.iter().flat_map(rows) {
        let name = row.name();
        let entry =
            result.metric(&name, "1", crate::result::Better::None).sample(PUBLISHED, row.published.mean);
        if let Some(was) = row.metric.published {
            entry.sample(NAIVE, was.mean);
        }
        for (round, document) in &rounds {
            let Some((predicted, metric)) = find(document, &row) else { continue };
            let [low, high] = metric.interval.get(row.variant).copied().unwrap_or([predicted; 2]);
            result.metric(&name, "1", crate::result::Better::None).sample(round, predicted).interval(
                round,
                low.min(predicted),
                high.max(predicted),
            );
            scores.entry(round).or_default().add(&row, metric, predicted, [low, high]);
        }
    }
    curves(&mut result, &plans, &opened()?)?;
    let mut by_cpus = Vec::new();
    for one in &HOSTS {
        let (all, parts) = host(&mut result, one)?;
        scores.insert(one.round, all);
        by_cpus.extend(parts.into_iter().map(|(cpus, score)| (format!("{}, cpus={cpus}", one.round), score)));
    }
    for part in plans.iter().flat_map(Plan::parts).filter(|part| !part.source.is_empty()) {
        sources.push(format!("{}: {}", part.name, part.source));
    }
    for (round, score) in &scores {
        result.note(score.describe(round));
    }
    for (cpus, score) in &by_cpus {
        result.note(score.describe(cpus));
    }
    for opened in opened()? {
        result.note(opened.score.describe());
    }
    result.note(
        "Figures are medians of the models. Naive laws: of a change, none; of locks, max(T1, S n) from two open rows or an exchange between two \
         cores; of workers, max(one / n, all); of this command's bench on more CPUs than one, as measured on one. Skill is by how much nearer a prediction comes than these, 1 - error / naive error: below 0 \
         it is farther off. Runs that are scaled down are compared by their changes alone.",
    );
    if !sources.is_empty() {
        result.note(format!("Sources: {}.", sources.join("; ")));
    }
    Ok(result)
}

/// One machine's own `bench`: every figure beside what was measured, and how good the predictions are, of all and by the number of CPUs.
/// Changes are from one CPU to more.
fn host(result: &mut ResultPart, host: &Host) -> Result<(Score, BTreeMap<u64, Score>)> {
    let (predicted, measured) = (bench_of(host.predicted)?, bench_of(host.measured)?);
    let (mut all, mut by_cpus) = (Score::default(), BTreeMap::<u64, Score>::new());
    for metric in &predicted.metrics {
        let variant = predicted.baseline.as_str();
        let of = |part: &ResultPart, name: &str| middle(part.find(name)?.of(variant));
        let both = |name: &str| Some([of(&predicted, name)?, of(&measured, name)?]);
        let Some([is, was]) = both(&metric.name) else { continue };
        let cpus =
            metric.parameters().find(|(name, _)| *name == "cpus").and_then(|(_, cpus)| cpus.parse().ok());
        let cpus: u64 = cpus.unwrap_or(1);
        let [low, high] = metric.interval.get(variant).copied().unwrap_or([is; 2]);
        let name = metric.name.replace([',', '['], "/").replace(']', "");
        let name = format!("figure[of={}/{name}/ns]", host.of);
        let entry = result.metric(name, "1", crate::result::Better::None);
        let entry = entry.sample(PUBLISHED, was).sample(host.round, is);
        let entry = entry.interval(host.round, low.min(is), high.max(is));
        let mut score = Score { errors: vec![(is / was - 1.0).abs()], ..Score::default() };
        score.covered = usize::from((low..=high).contains(&was));
        let alone = (cpus > 1).then(|| metric.name.replace(&format!("cpus={cpus}]"), "cpus=1]"));
        if let Some((alone, [is_alone, was_alone])) =
            alone.and_then(|alone| Some((predicted.find(&alone)?, both(&alone)?)))
        {
            entry.sample(NAIVE, was_alone);
            let change = was / was_alone - 1.0;
            score.changes.push([is / is_alone - 1.0 - change, change].map(|points| 100.0 * points.abs()));
            let models = alone.of(variant).iter().zip(metric.of(variant));
            let [least, most] = models
                .map(|(alone, more)| more / alone - 1.0)
                .fold([f64::MAX, f64::MIN], |[least, most], ratio| [least.min(ratio), most.max(ratio)]);
            score.changes_covered = usize::from((least..=most).contains(&change));
        }
        by_cpus.entry(cpus).or_default().join(&score);
        all.join(&score);
    }
    Ok((all, by_cpus))
}

/// The part `host` of a saved document.
fn bench_of((name, text): (&str, &str)) -> Result<ResultPart> {
    let wrong = |cause: String| Error::failed(format_args!("docs/validation/{name}: {cause}"));
    let document: Document = serde_json::from_str(text).map_err(|cause| wrong(cause.to_string()))?;
    let part = document.results.into_iter().find(|part| part.part == "host");
    part.ok_or_else(|| wrong("no part host".to_owned()))
}

/// Errors of many entries that are alike: the prediction's and the naive law's, as shares.
#[derive(Debug, Default)]
struct Curve {
    errors: Vec<f64>,
    naive: Vec<f64>,
    covered: usize,
}

/// Sets of which every entry is a point of a curve: errors by curve.
fn curves(result: &mut ResultPart, plans: &[Plan], opened: &[Opened]) -> Result<()> {
    let open = calibration::parse(simulate::MEASURED).map_err(|line| {
        Error::failed(format_args!("machines/calibration/xeon-gold-5320.csv:{line}: not a measurement"))
    })?;
    let mut all: BTreeMap<String, Curve> = BTreeMap::new();
    for row in opened.iter().flat_map(|set| &set.rows) {
        let parameter = |wanted: &str| {
            let inside = row.metric.split_once('[')?.1.strip_suffix(']')?;
            inside.split(',').find_map(|one| one.strip_prefix(wanted)?.strip_prefix('='))
        };
        let plan = plans.iter().find(|plan| plan.name() == row.study);
        let number = |name: &str| parameter(name).and_then(|number| number.parse::<u16>().ok());
        let (name, naive) = if let (Some(machine), Some(workers)) = (parameter("machine"), number("threads"))
        {
            let naive = plan.and_then(|plan| naive::workers(plan, machine, &row.variant, workers));
            (format!("{}/{machine}", row.part), naive)
        } else if let (Some(cores), Some(plan)) = (number("cores"), plan) {
            let family = row.metric.split('[').next().unwrap_or_default();
            let machine = Machine::find(plan.machine())?;
            let naive = naive::list(&open, &machine, &row.variant, family, cores);
            (format!("{}/{}/{family}", row.part, row.variant), naive)
        } else {
            continue;
        };
        let curve = all.entry(name).or_default();
        let error = |value: f64| (value / row.published - 1.0).abs();
        curve.errors.push(error(row.predicted));
        curve.naive.extend(naive.map(error));
        curve.covered += usize::from(row.covered);
    }
    for (name, curve) in all {
        let error = 100.0 * middle(&curve.errors).unwrap_or(0.0);
        let entry = result.metric(format!("curve_error[of={name}]"), "%", crate::result::Better::Lower);
        let entry = entry
            .sample(ENTRIES, curve.errors.len() as f64)
            .sample(SECOND, error)
            .sample(COVERED, 100.0 * curve.covered as f64 / curve.errors.len() as f64);
        if let Some(naive) = middle(&curve.naive) {
            entry.sample(NAIVE, 100.0 * naive).sample(SKILL, naive::skill(error, 100.0 * naive));
        }
    }
    Ok(())
}

/// What was printed of each set.
fn opened() -> Result<Vec<Opened>> {
    serde_json::from_str(PRINTED)
        .map_err(|cause| Error::failed(format_args!("docs/validation/second-scores.json: {cause}")))
}

/// The saved rounds, in their order.
fn rounds() -> Result<Vec<(&'static str, Document)>> {
    let mut rounds: Vec<(&'static str, Document)> = Vec::new();
    for (round, name, text) in SAVED {
        let document: Document = serde_json::from_str(text)
            .map_err(|cause| Error::failed(format_args!("docs/validation/{name}: {cause}")))?;
        match rounds.iter_mut().find(|(known, _)| *known == round) {
            Some((_, whole)) => whole.results.extend(document.results),
            None => rounds.push((round, document)),
        }
    }
    Ok(rounds)
}

impl Row<'_> {
    /// `figure[of=part/metric/parameters/variant]`.
    fn name(&self) -> String {
        let metric = self.metric.name.replace([',', '['], "/").replace(']', "");
        format!("figure[of={}/{metric}/{}]", self.part, self.variant)
    }
}

/// All figures that were published of a study's variants but the baseline.
fn rows(plan: &Plan) -> impl Iterator<Item = Row<'_>> {
    plan.parts().iter().flat_map(move |part| {
        part.metrics.iter().flat_map(move |metric| {
            metric.changed.iter().map(move |(variant, published)| Row {
                study: plan.name(),
                part: &part.name,
                metric,
                variant,
                baseline: plan.baseline(),
                published: *published,
            })
        })
    })
}

/// What a round says of a figure, and all of its metric.
fn find<'d>(document: &'d Document, row: &Row<'_>) -> Option<(f64, &'d Metric)> {
    let is_part =
        |part: &&ResultPart| part.study == row.study && part.part == row.part && part.kind == Kind::Simulated;
    let part = document.results.iter().find(is_part)?;
    // Where settings vary, what was published is of the first.
    let metric = part
        .metrics
        .iter()
        .find(|metric| metric.name == row.metric.name)
        .or_else(|| part.metrics.iter().find(|metric| metric.family() == row.metric.name))?;
    Some((middle(metric.of(row.variant))?, metric))
}

/// The median, if there is any.
fn middle(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| stats::median(samples))
}

impl Score {
    fn add(&mut self, row: &Row<'_>, metric: &Metric, predicted: f64, [low, high]: [f64; 2]) {
        let published = row.published.mean;
        if published != 0.0 {
            self.errors.push((predicted / published - 1.0).abs());
        }
        self.covered += usize::from((low..=high).contains(&published));
        let (Some(was), samples) = (row.metric.published, metric.of(row.variant)) else { return };
        let bases = metric.of(row.baseline);
        let (true, Some(base)) = (was.mean != 0.0, middle(bases).filter(|base| *base != 0.0)) else { return };
        let change = published / was.mean - 1.0;
        self.changes.push([predicted / base - 1.0 - change, change].map(|points| 100.0 * points.abs()));
        if bases.len() == samples.len() && bases.iter().all(|base| *base != 0.0) {
            let mut paired: Vec<f64> = samples.iter().zip(bases).map(|(of, base)| of / base - 1.0).collect();
            paired.sort_by(f64::total_cmp);
            let covers = paired.first().is_some_and(|low| *low <= change)
                && paired.last().is_some_and(|high| *high >= change);
            self.changes_covered += usize::from(covers);
        }
    }

    /// Adds what another one counts.
    fn join(&mut self, other: &Self) {
        self.errors.extend(&other.errors);
        self.covered += other.covered;
        self.changes.extend(&other.changes);
        self.changes_covered += other.changes_covered;
    }

    fn describe(&self, round: &str) -> String {
        let all = self.errors.len();
        let error = 100.0 * middle(&self.errors).unwrap_or(0.0);
        let of = |which: usize| -> f64 {
            middle(&self.changes.iter().map(|change| change[which]).collect::<Vec<_>>()).unwrap_or(0.0)
        };
        let (predicted, naive) = (of(0), of(1));
        let figures = format!(
            "{round}: {all} figures, median error {error:.1} %, {} inside their interval",
            self.covered
        );
        if self.changes.is_empty() {
            return figures + ".";
        }
        let skill = naive::skill(predicted, naive);
        format!(
            "{figures}; {} changes, {predicted:.1} points off (median), no change would be {naive:.1} off: skill {skill:.2}; {} inside their \
             interval.",
            self.changes.len(),
            self.changes_covered,
        )
    }
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::Trace;

    use super::*;
    use crate::machine::Machine;

    #[test]
    fn every_saved_round_is_scored() {
        let plan = Plan::find("validation").expect("it is built in");
        let machine = Machine::find(plan.machine()).expect("it is built in");
        let trace = Trace::default();
        let part = plan.parts().iter().find(|part| part.name == "scores").expect("a part");
        let result = run(&plan, part, &Run::shortest(&machine, &trace)).expect("scored");
        assert!(result.notes.iter().any(|note| note.contains("set kernbench, as opened")));
        let all: usize = Plan::all().expect("plans").iter().map(|plan| rows(plan).count()).sum();
        let (figures, curves): (Vec<_>, Vec<_>) =
            result.metrics.iter().partition(|metric| metric.family() == "figure");
        let of_host =
            |metric: &&Metric| HOSTS.iter().any(|host| metric.name.contains(&format!("of={}/", host.of)));
        let (hosts, figures): (Vec<_>, Vec<_>) = figures.into_iter().partition(of_host);
        // Figures of a machine with two CPUs, and of one with sixteen; of these, those on more CPUs than one that were timed on one, too.
        for (host, rows, changes) in [(&HOSTS[0], 42, 18), (&HOSTS[1], 114, 4 * 18)] {
            let of = format!("of={}/", host.of);
            let rows_of: Vec<_> = hosts.iter().filter(|metric| metric.name.contains(&of)).collect();
            assert_eq!(rows_of.len(), rows);
            assert!(rows_of.iter().all(|metric| metric.interval.contains_key(host.round)));
            assert_eq!(rows_of.iter().filter(|metric| !metric.of(NAIVE).is_empty()).count(), changes);
            let note = format!("{}: {rows} figures", host.round);
            assert!(result.notes.iter().any(|it| it.starts_with(&note)), "{:?}", result.notes);
        }
        // Ten figures by order, of which two need a pair, and three without an order.
        for (cpus, rows) in [(1, 18), (2, 24), (4, 24), (8, 24), (16, 24)] {
            let note = format!("sixteen_blind, cpus={cpus}: {rows} figures, ");
            assert!(result.notes.iter().any(|it| it.starts_with(&note)), "{:?}", result.notes);
        }
        let alone = |cpus: u32| {
            let name = format!("figure[of=sixteen/bulk_get_ns/order=9/cpus={cpus}/ns]");
            let metric = result.find(&name).expect("a row");
            [metric.of(PUBLISHED).first().copied(), metric.of(NAIVE).first().copied()]
        };
        assert_eq!(alone(1)[1], None);
        for cpus in [2, 4, 8, 16] {
            assert_eq!(alone(cpus)[1], alone(1)[0], "the naive law of {cpus} CPUs is what one takes");
        }
        assert!(all > 0 && figures.len() == all, "{all} figures are published");
        for metric in figures {
            assert_eq!(metric.of(PUBLISHED).len(), 1, "{}", metric.name);
        }
        // Four machines by every number of workers; three lists by four metrics.
        let entries: f64 = curves.iter().map(|metric| metric.of(ENTRIES)[0]).sum();
        assert_eq!((curves.len(), entries), (4 + 12, 24.0 + 304.0));
        let of = |name: &str| curves.iter().find(|metric| metric.name.contains(name)).expect(name);
        assert!(of("locks/list_locked/rand_put_ns").of(SKILL)[0] > 0.0, "nearer than max(T1, S n)");
        assert!(of("locks/list_local/rand_put_ns").of(NAIVE).is_empty(), "nothing of it was open");
        let mut document = Document::new("test", crate::host::Host::default());
        document.results.push(result.clone());
        let tables = crate::table::tables(
            &document,
            crate::table::Style::Framewright,
            crate::table::Options::default(),
        );
        let text =
            crate::table::render(&tables, crate::table::Format::Table, &crate::terminal::Terminal::plain());
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        assert!(
            text.contains("kernbench, reset") && text.lines().any(|line| line.ends_with("  no   117.1  yes")),
            "{text}"
        );
        for (round, ..) in SAVED {
            assert!(result.notes.iter().any(|note| note.starts_with(round)), "{round}: {:?}", result.notes);
        }
    }

    #[test]
    fn the_second_round_has_every_entry_of_the_sets() {
        let rounds = rounds().expect("saved");
        let (_, document) = rounds.iter().find(|(round, _)| *round == "second_blind").expect("saved");
        let counted = |study: &str, part: &str, family: &str, variant: &str| {
            let parts = document.results.iter().filter(|it| it.study == study && it.part == part);
            let metrics = parts.flat_map(|part| &part.metrics).filter(|metric| metric.family() == family);
            metrics
                .filter(|metric| metric.of(variant).len() >= 20 && metric.interval.contains_key(variant))
                .count()
        };
        for family in ["user_seconds", "syst_seconds", "elsp_seconds"] {
            assert_eq!(counted("pcp-reset", "kernbench", family, "reset"), 1, "{family}");
        }
        for family in ["faults_per_second", "zone_lock_percent", "lru_lock_percent"] {
            assert_eq!(counted("pcp-batch", "page_fault1", family, "batch_63"), 3, "{family}");
        }
        for family in ["jobs_per_minute", "system_time", "elapsed_time", "user_time"] {
            assert_eq!(counted("lock-line", "aim7", family, "other_end"), 2, "{family}");
        }
        for (part, family) in [("fsmark", "files_per_second"), ("mapped_writer", "duration_elapsed_seconds")]
        {
            assert_eq!(counted("zone-reclaim", part, family, "zlcfirst"), 1, "{family}");
        }
        let opened = opened().expect("printed");
        assert!(opened.len() == 6 && opened.iter().all(|set| set.score.entries > 0), "{opened:?}");
    }

    #[test]
    fn a_change_is_scored_against_none_at_all() {
        let metric = crate::study::Metric {
            name: "m".to_owned(),
            unit: "s".to_owned(),
            better: crate::result::Better::Lower,
            published: Some(Published { mean: 100.0, stddev: None }),
            changed: BTreeMap::new(),
        };
        let published = Published { mean: 80.0, stddev: None };
        let row = Row { study: "s", part: "p", metric: &metric, variant: "new", baseline: "old", published };
        let mut part = ResultPart::new("s", "p", Kind::Simulated, "all").baseline("old");
        part.metric("m", "s", crate::result::Better::Lower)
            .samples("old", [50.0, 52.0])
            .samples("new", [42.0, 44.0]);
        let mut score = Score::default();
        score.add(&row, &part.metrics[0], 43.0, [42.0, 44.0]);
        assert_eq!((score.covered, score.changes_covered), (0, 0));
        let [[predicted, naive]] = score.changes[..] else { panic!("one change") };
        assert!((predicted - 4.3137).abs() < 1e-3 && (naive - 20.0).abs() < 1e-9, "{predicted} {naive}");
        assert!(score.describe("round").contains("skill 0.78"), "{}", score.describe("round"));
    }
}
