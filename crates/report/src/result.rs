//! The one result format: what every command that measures, predicts or compares writes, and what the
//! tables, the plots and `compare` read.
//!
//! A [`Document`] holds [`Part`]s, a part holds [`Metric`]s, a metric holds every sample of every variant.
//! Names are stable: `snake_case`, parameters in brackets, such as `alloc_ns[cores=2]`. Fields that this
//! version does not know are ignored on reading. JSON has no NaN and no infinity, so a sample is always a
//! finite number: what could not be measured is left out, not invented.
//!
//! ```
//! use framewright_report::result::{Better, Kind, Part};
//!
//! let mut part = Part::new("pcp-reset", "replay", Kind::Measured, "host").baseline("vanilla").seed(1);
//! part.metric("ns_per_operation", "ns", Better::Lower).samples("vanilla", [3.2, 3.3]).sample("reset", 2.1);
//! assert_eq!(part.variants, ["vanilla", "reset"]);
//! ```

mod beside;
mod file;
pub(crate) mod short;

use core::fmt;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::host::Host;

/// One run of a command: what it found, and where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Document {
    /// Version of framewright that wrote this.
    pub framewright: String,
    /// Commit it was built from, if it was built from a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command in short, such as `study pcp-reset`.
    pub command: String,
    /// The command line as it was given, without the program's path.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// Start of the run, UTC: `2026-01-31T12:00:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// The machine the command ran on, whatever machine the results are about.
    #[serde(default)]
    pub host: Host,
    /// The files that were compared, if this is a comparison.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<Source>,
    /// Texts of the studies, so that a page needs nothing else.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub studies: Vec<StudyText>,
    /// Results.
    pub results: Vec<Part>,
}

/// Texts of a study.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyText {
    /// Its name.
    pub name: String,
    /// Its question, in a few words.
    #[serde(default)]
    pub short: String,
    /// Its question.
    #[serde(default)]
    pub question: String,
    /// Year in which the change was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub year: Option<u32>,
    /// Published figures that no part predicts, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unpredicted: Vec<String>,
    /// Its variants, each with what it does.
    #[serde(default)]
    pub variants: Vec<(String, String)>,
    /// Its parts, each with what it does.
    #[serde(default)]
    pub parts: Vec<(String, String)>,
}

/// One of several files that were compared: where its results come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// Name of its columns.
    pub label: String,
    /// Its command line.
    pub command: String,
    /// Start of that run, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub date: Option<String>,
    /// Version of framewright, and the commit if it is known.
    pub version: String,
    /// The machine that it ran on, in words.
    pub host: String,
}

/// A recorded trace that was replayed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceId {
    /// The file as it was named.
    pub name: String,
    /// SHA-256 of the file, hexadecimal.
    pub sha256: String,
}

/// Results that belong into one table: one machine, one baseline and its variants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Part {
    /// The study, or the command if it is none.
    pub study: String,
    /// The part of the study.
    pub part: String,
    /// How the samples came about.
    pub kind: Kind,
    /// The machine they are about: `host`, or the name of a machine description.
    pub machine: String,
    /// Seed of everything random.
    #[serde(default)]
    pub seed: u64,
    /// The variant that the others are compared with.
    pub baseline: String,
    /// All variants in the order of their columns, the baseline first.
    pub variants: Vec<String>,
    /// The metric that says most, in a word; its name may lack parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headline: Option<String>,
    /// Whether samples of the same position belong together: taken in the same round, or on the same model.
    #[serde(default, skip_serializing_if = "is_false")]
    pub paired: bool,
    /// Whether its variants stand side by side in a table, so that no pair of them is the question.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_table: bool,
    /// Every setting of each variant's allocator, by variant and name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// Other conditions of the figures: `threads`, `memory_mib`, `quick`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub conditions: BTreeMap<String, String>,
    /// The trace that was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceId>,
    /// Hash of all simulated events: equal seeds give equal hashes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_log_hash: Option<String>,
    /// Facts that a reader needs to judge the figures, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Results.
    pub metrics: Vec<Metric>,
}

/// One quantity, with every sample of every variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Stable name, parameters in brackets.
    pub name: String,
    /// Unit of the samples; `1` for counts and ratios, `%` for percentages.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// Title in words; empty where no table of quantities says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    /// Whether it explains other figures, and answers no question itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_cause: bool,
    /// Whether the metrics of this family are the parts of a whole, so that adding them up makes sense.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_share: bool,
    /// Whether it repeats exactly, so that one sample says all.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_exact: bool,
    /// Samples of one round, where they are several, such as loops; 0 for one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub per_round: usize,
    /// Basis of the figure; absent in results of before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub basis: Option<Basis>,
    /// Samples by variant, in the order they were taken. A variant may be missing: it has no such quantity.
    pub samples: BTreeMap<String, Vec<f64>>,
    /// Lower and upper end of a prediction, by variant.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub interval: BTreeMap<String, [f64; 2]>,
    /// Published figure of the baseline. A metric that has this may have no samples yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<Published>,
    /// Published figures of other variants.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub changed: BTreeMap<String, Published>,
    /// Figures of a law that needs no model, by variant: see `framewright study`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub naive: BTreeMap<String, f64>,
}

/// A published figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Mean, or the one figure there is.
    pub mean: f64,
    /// Standard deviation, if it was printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stddev: Option<f64>,
}

/// Which direction is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// Less is better: times, misses.
    Lower,
    /// More is better: throughput.
    Higher,
    /// Neither.
    #[default]
    None,
}

/// How samples came about. Every table and plot says it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Observed on the host.
    #[default]
    Measured,
    /// Predicted by the simulator.
    Simulated,
    /// Arithmetic: follows from formulas alone.
    Derived,
}

/// Basis of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// Exact: the real code on the given workload.
    Counted,
    /// Observed on the host.
    Measured,
    /// What no run can exceed.
    Bound,
    /// A range over what is not known.
    Predicted,
}

impl Basis {
    /// The basis of a metric in a part of this kind.
    #[must_use]
    pub fn of(kind: Kind, metric: &Metric) -> Self {
        const BOUNDS: [&str; 2] = ["saturated_at_cpus", "most_per_second"];
        let family = metric.family();
        match kind {
            Kind::Derived => Self::Counted,
            _ if BOUNDS.contains(&family) => Self::Bound,
            Kind::Measured if metric.is_exact => Self::Counted,
            Kind::Measured => Self::Measured,
            Kind::Simulated => Self::Predicted,
        }
    }
}

impl fmt::Display for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Counted => "counted",
            Self::Measured => "measured",
            Self::Bound => "bound",
            Self::Predicted => "predicted",
        })
    }
}

/// Whether a range of a ratio holds both no change and a doubling or halving.
pub(crate) fn says_nothing(low: f64, high: f64) -> bool {
    low <= 1.0 && high >= 1.0 && (high >= 2.0 || low <= 0.5)
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(value: &usize) -> bool {
    *value == 0
}

/// Items by a key, in the order in which the keys first appear. O(items · keys).
pub(crate) fn grouped<T, K: PartialEq>(
    items: impl IntoIterator<Item = T>,
    key: impl Fn(&T) -> K,
) -> Vec<(K, Vec<T>)> {
    let mut groups: Vec<(K, Vec<T>)> = Vec::new();
    for item in items {
        let key = key(&item);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    groups
}

impl Document {
    /// A document of this version, on this host, without results. The program that writes it knows its commit.
    pub fn new(command: impl Into<String>, host: Host) -> Self {
        Self {
            framewright: env!("CARGO_PKG_VERSION").to_owned(),
            command: command.into(),
            host,
            ..Self::default()
        }
    }

    /// The command line, or the command in short where it is not known.
    #[must_use]
    pub fn command_line(&self) -> String {
        if self.argv.is_empty() { self.command.clone() } else { self.argv.join(" ") }
    }

    /// Version, and the commit if it is known.
    #[must_use]
    pub fn version(&self) -> String {
        match &self.commit {
            Some(commit) => format!("{} ({commit})", self.framewright),
            None => self.framewright.clone(),
        }
    }

    /// Adds a part.
    pub fn with(mut self, part: Part) -> Self {
        self.results.push(part);
        self
    }
}

impl Part {
    /// A part without variants and metrics.
    pub fn new(
        study: impl Into<String>,
        part: impl Into<String>,
        kind: Kind,
        machine: impl Into<String>,
    ) -> Self {
        Self { study: study.into(), part: part.into(), kind, machine: machine.into(), ..Self::default() }
    }

    /// Names the baseline; it becomes the first column.
    pub fn baseline(mut self, variant: impl Into<String>) -> Self {
        self.baseline = variant.into();
        self.variants.retain(|known| *known != self.baseline);
        self.variants.insert(0, self.baseline.clone());
        self
    }

    /// Adds a column. Variants that samples name are added by themselves; this settles the order.
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.know(&variant.into());
        self
    }

    /// Sets the seed.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Says that samples of the same position belong together.
    pub const fn paired(mut self) -> Self {
        self.paired = true;
        self
    }

    /// The part, whose variants stand side by side in a table.
    pub const fn table(mut self) -> Self {
        self.is_table = true;
        self
    }

    /// Sets what else the figures depend on.
    pub fn condition(&mut self, name: &str, value: impl fmt::Display) -> &mut Self {
        self.conditions.insert(name.to_owned(), value.to_string());
        self
    }

    /// Sets the hash of all simulated events.
    pub fn event_log_hash(mut self, hash: impl Into<String>) -> Self {
        self.event_log_hash = Some(hash.into());
        self
    }

    /// Adds what a reader must know, as a sentence. The same sentence twice is said once.
    pub fn note(&mut self, sentence: impl Into<String>) -> &mut Self {
        let sentence = sentence.into();
        if !self.notes.contains(&sentence) {
            self.notes.push(sentence);
        }
        self
    }

    /// The metric of this name, made if there is none yet, to add samples to.
    pub fn metric(&mut self, name: impl Into<String>, unit: &str, better: Better) -> MetricEntry<'_> {
        let name = name.into();
        let index = self.metrics.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            self.metrics.push(Metric::new(name, unit, better));
            self.metrics.len() - 1
        });
        MetricEntry { part: self, index }
    }

    /// The metric of this name, whose unit and direction its [`Quantity`](crate::quantity::Quantity) gives.
    pub fn figure(&mut self, name: impl Into<String>) -> MetricEntry<'_> {
        self.metric(name, "", Better::None)
    }

    /// Heading of a table or a plot: `refill-check, part huge: measured on host`.
    #[must_use]
    pub fn title(&self) -> String {
        let preposition = if self.kind == Kind::Derived { "for" } else { "on" };
        format!("{}, part {}: {} {preposition} {}", self.study, self.part, self.kind, self.machine)
    }

    /// Basis of a metric of the part.
    #[must_use]
    pub fn basis(&self, metric: &Metric) -> Basis {
        metric.basis.unwrap_or_else(|| Basis::of(self.kind, metric))
    }

    /// Writes down what each metric rests on, and of which changes nothing is known: their range holds no change and a
    /// doubling.
    pub fn settle(&mut self) {
        for index in 0..self.metrics.len() {
            self.metrics[index].basis = Some(self.basis(&self.metrics[index]));
        }
        let headline = self.headline.clone();
        let unknown: Vec<String> = self
            .metrics
            .iter()
            .filter(|metric| {
                self.basis(metric) == Basis::Predicted && headline.as_deref() == Some(metric.family())
            })
            .flat_map(|metric| self.variants.iter().map(move |variant| (metric, variant)))
            .filter(|(metric, variant)| **variant != self.baseline && self.is_unknown(metric, variant))
            .map(|(metric, variant)| format!("{} under {variant}", metric.name))
            .collect();
        for name in unknown {
            self.note(format!(
                "Not known: {name}. Its range holds no change and a doubling. Two measurements would decide: the zone lock's hold and its \
                 acquisitions per operation under both configurations, on one CPU of that machine (`framewright machines --detect`, `study \
                 lock-line --part contend`)."
            ));
        }
    }

    /// Whether the change of a variant may be none and a doubling or halving, as far as its pairs show.
    fn is_unknown(&self, metric: &Metric, variant: &str) -> bool {
        let (new, old) = (metric.of(variant), metric.of(&self.baseline));
        if new.is_empty() || new.len() != old.len() || old.iter().any(|old| *old <= 0.0) {
            return false;
        }
        let ratios = || new.iter().zip(old).map(|(new, old)| new / old);
        let (low, high) = (ratios().fold(f64::MAX, f64::min), ratios().fold(f64::MIN, f64::max));
        says_nothing(low, high)
    }

    /// The variants that are compared with the baseline.
    pub fn others(&self) -> impl DoubleEndedIterator<Item = &String> + Clone {
        self.variants.iter().filter(|variant| **variant != self.baseline)
    }

    /// Whether a metric is the one that says most, or one of its family.
    #[must_use]
    pub fn is_headline(&self, metric: &Metric) -> bool {
        self.headline.as_deref().is_some_and(|name| metric.name == name || metric.family() == name)
    }

    /// The metric of this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    fn know(&mut self, variant: &str) {
        if !self.variants.iter().any(|known| known == variant) {
            self.variants.push(variant.to_owned());
        }
    }
}

/// Adds samples to one metric of a part.
#[derive(Debug)]
pub struct MetricEntry<'a> {
    part: &'a mut Part,
    index: usize,
}

#[expect(clippy::return_self_not_must_use, reason = "a chain may end with any of these")]
impl MetricEntry<'_> {
    /// Adds a sample of a variant.
    pub fn sample(self, variant: &str, sample: f64) -> Self {
        self.samples(variant, [sample])
    }

    /// Adds samples of a variant, in the order they were taken.
    pub fn samples(self, variant: &str, samples: impl IntoIterator<Item = f64>) -> Self {
        self.part.know(variant);
        self.part.metrics[self.index].samples.entry(variant.to_owned()).or_default().extend(samples);
        self
    }

    /// Says that the metrics of this family are the parts of a whole.
    pub fn share(self) -> Self {
        self.part.metrics[self.index].is_share = true;
        self
    }

    /// Says that it repeats exactly.
    pub fn exact(self) -> Self {
        self.part.metrics[self.index].is_exact = true;
        self
    }

    /// Says that each round has so many samples.
    pub fn per_round(self, samples: usize) -> Self {
        self.part.metrics[self.index].per_round = samples;
        self
    }

    /// Sets what others printed for the baseline.
    pub fn published(self, published: Published) -> Self {
        self.part.metrics[self.index].published = Some(published);
        self
    }

    /// Sets what others printed for another variant.
    pub fn changed(self, variant: &str, published: Published) -> Self {
        self.part.metrics[self.index].changed.insert(variant.to_owned(), published);
        self
    }

    /// Sets what a law says of a variant that needs no model.
    pub fn naive(self, variant: &str, value: f64) -> Self {
        self.part.metrics[self.index].naive.insert(variant.to_owned(), value);
        self
    }

    /// Sets the interval of a variant's prediction.
    pub fn interval(self, variant: &str, low: f64, high: f64) -> Self {
        self.part.metrics[self.index].interval.insert(variant.to_owned(), [low, high]);
        self
    }
}

impl Metric {
    /// A metric without samples.
    #[must_use]
    pub fn new(name: impl Into<String>, unit: &str, better: Better) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), better, ..Self::default() }
    }

    /// Samples of a variant; empty if it has no such quantity.
    #[must_use]
    pub fn of(&self, variant: &str) -> &[f64] {
        self.samples.get(variant).map_or(&[], Vec::as_slice)
    }

    /// The name without its parameters: `alloc_ns` of `alloc_ns[cores=2]`.
    #[must_use]
    pub fn family(&self) -> &str {
        self.name.split_once('[').map_or(&self.name, |(family, _)| family)
    }

    /// The parameters, in the order they are written: `("cores", "2")` of `alloc_ns[cores=2]`.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str)> {
        let inside = self.name.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']')).unwrap_or("");
        inside.split(',').filter_map(|parameter| parameter.split_once('='))
    }
}

impl fmt::Display for Published {
    /// `1763.3 (4.2)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mean)?;
        self.stddev.map_or(Ok(()), |stddev| write!(f, " ({stddev:.1})"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Simulated => "simulated",
            Self::Derived => "derived",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_is_the_first_column_whenever_it_is_named() {
        let part = Part::new("s", "p", Kind::Derived, "host").variant("b").variant("a").baseline("a");
        assert_eq!(part.variants, ["a", "b"]);
    }

    #[test]
    fn a_metric_is_made_once_and_keeps_the_order_of_samples() {
        let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("v");
        part.metric("m", "ns", Better::Lower).sample("v", 2.0);
        part.metric("m", "ns", Better::Lower).sample("v", 1.0).interval("v", 0.5, 2.5);
        assert_eq!(part.metrics.len(), 1);
        assert_eq!(part.metrics[0].of("v"), [2.0, 1.0]);
        assert_eq!(part.metrics[0].interval["v"], [0.5, 2.5]);
        assert_eq!(part.metrics[0].of("unknown"), [] as [f64; 0]);
    }

    #[test]
    fn a_figure_says_what_it_rests_on_and_a_range_that_holds_everything_is_not_known() {
        let mut part = Part::new("s", "p", Kind::Simulated, "m").baseline("a");
        part.headline = Some("alloc_ns".to_owned());
        part.metric("alloc_ns", "ns", Better::Lower).samples("a", [10.0, 10.0]).samples("b", [9.0, 21.0]);
        part.metric("alloc_ns[cpus=2]", "ns", Better::Lower)
            .samples("a", [10.0, 10.0])
            .samples("b", [9.0, 12.0]);
        // Models differ in when CPUs meet, and so in what they count.
        part.metric("zone_lock_acquisitions_per_page", "1", Better::Lower).samples("a", [0.1, 0.12]);
        part.metric("saturated_at_cpus[lock=zone]", "1", Better::Higher).sample("a", 40.0);
        // Depends on the sizes of caches and on when each CPU comes.
        part.metric("line_transfers[line=zone]", "1", Better::Lower).samples("a", [1.0, 2.0]);
        part.settle();
        let bases: Vec<_> = part.metrics.iter().filter_map(|metric| metric.basis).collect();
        let expected = [Basis::Predicted, Basis::Predicted, Basis::Predicted, Basis::Bound, Basis::Predicted];
        assert_eq!(bases, expected);
        assert_eq!(part.notes.len(), 1, "{:?}", part.notes);
        assert!(part.notes[0].starts_with("Not known: alloc_ns under b."));
        let mut measured = Part::new("s", "p", Kind::Measured, "host").baseline("a");
        measured.metric("alloc_ns", "ns", Better::Lower).sample("a", 1.0);
        assert_eq!(measured.basis(&measured.metrics[0]), Basis::Measured);
    }

    #[test]
    fn parameters_stand_in_brackets() {
        let mut part = Part::new("s", "p", Kind::Measured, "host");
        part.metric("hot_pair_ns[order=0,cpus=1]", "ns", Better::Lower);
        part.metric("plain", "1", Better::None);
        let parameters: Vec<_> = part.metrics[0].parameters().collect();
        assert_eq!(parameters, [("order", "0"), ("cpus", "1")]);
        assert_eq!(part.metrics[0].family(), "hot_pair_ns");
        assert_eq!((part.metrics[1].family(), part.metrics[1].parameters().count()), ("plain", 0));
    }
}
