//! A study: question, machine, baseline and variants, parts with their workload and metrics. `reading` makes it of a
//! TOML file.

use std::collections::BTreeMap;
use std::path::Path;

use clap::ValueEnum as _;
use framewright_report::error::Result;
use framewright_report::result::{Better, Kind, Published, StudyText};
use framewright_report::table::Style;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use toml::Spanned;

use crate::settings::{Settings, Value};
use crate::toml_file::TomlFile;

/// A study as its file has it. What is left out follows from the rest.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "A study of framewright")]
pub struct Plan {
    /// The name it is chosen by; the file's name, if it is left out.
    #[serde(default)]
    pub name: String,
    /// When the change that it is about was published.
    pub(crate) year: Option<u32>,
    /// What it asks, in a few words.
    #[serde(default)]
    pub(crate) short: String,
    /// What it asks.
    #[serde(default)]
    pub(crate) question: String,
    /// Published figures that no part predicts, each with the reason.
    #[serde(default)]
    pub(super) unpredicted: Vec<String>,
    /// Machine of derived and simulated parts: a name that `framewright machines` lists.
    pub(super) machine: Option<String>,
    /// The variant that the others are compared with; the first, if it is left out.
    #[serde(default)]
    pub baseline: String,
    /// Whose tables its results are shown in.
    #[serde(default)]
    #[schemars(schema_with = "styles")]
    pub style: Style,
    /// Settings of all variants.
    #[serde(default)]
    pub(super) config: Settings,
    /// Configurations that are compared.
    #[serde(rename = "variant")]
    pub(super) variants: Vec<Variant>,
    /// Ways to answer the question.
    #[serde(rename = "part")]
    pub(super) written: Vec<WrittenPart>,
    /// These ways with everything looked up that they name, in the order they are told.
    #[serde(skip)]
    pub parts: Vec<Part>,
    #[serde(skip)]
    pub(super) file: TomlFile,
}

/// One configuration that is compared.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name of its column.
    pub name: String,
    /// Its description, in a sentence.
    #[serde(default)]
    pub about: String,
    /// What it sets beyond the study's common settings.
    #[serde(default)]
    pub(super) config: Settings,
}

/// One way to answer the question, as the study's file has it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "part")]
pub(crate) struct WrittenPart {
    /// Name of its table.
    pub(super) name: Option<String>,
    /// What it does, in a sentence.
    #[serde(default)]
    pub(super) about: String,
    /// Ways in which it is run; all that its workload has, if it is left out.
    #[schemars(schema_with = "kinds")]
    pub(super) kinds: Option<Vec<Kind>>,
    /// What it runs; `framewright workloads` explains each.
    pub(super) workload: Option<Settings>,
    /// The metric that a summary shows.
    #[schemars(with = "Option<String>")]
    pub(super) headline: Option<Spanned<String>>,
    /// Settings that it runs with each of several values.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, Vec<serde_json::Value>>")]
    pub(super) vary: BTreeMap<Spanned<String>, Vec<Value>>,
    /// Where its published figures come from.
    #[serde(default)]
    pub(super) source: String,
    /// What it reports: all that its workload reports, if nothing is named.
    #[serde(default, rename = "metric")]
    pub(super) metrics: Vec<WrittenMetric>,
}

/// A quantity that a part reports, as the study's file has it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "metric")]
pub(crate) struct WrittenMetric {
    /// Name without parameters.
    #[schemars(with = "String")]
    pub(super) name: Spanned<String>,
    /// As the workload declares it.
    #[schemars(with = "Option<String>")]
    pub(super) unit: Option<Spanned<String>>,
    /// As the workload declares it.
    #[schemars(schema_with = "directions")]
    pub(super) better: Option<Spanned<Better>>,
    /// What the study's authors printed for their baseline.
    #[schemars(schema_with = "figure")]
    pub(super) published: Option<Published>,
    /// What they printed for other variants, by name.
    #[serde(default)]
    #[schemars(schema_with = "figures")]
    pub(super) changed: BTreeMap<String, Published>,
}

fn styles(_: &mut SchemaGenerator) -> Schema {
    let names = Style::value_variants().iter().filter_map(clap::ValueEnum::to_possible_value);
    json_schema!({ "enum": names.map(|value| value.get_name().to_owned()).collect::<Vec<_>>() })
}

fn kinds(_: &mut SchemaGenerator) -> Schema {
    let names: Vec<String> = Kind::value_variants().iter().map(ToString::to_string).collect();
    json_schema!({ "type": "array", "items": { "enum": names } })
}

fn directions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "enum": [Better::Lower, Better::Higher, Better::None] })
}

fn figure(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "additionalProperties": false, "required": ["mean"],
        "properties": { "mean": { "type": "number" }, "stddev": { "type": "number" } },
    })
}

fn figures(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "additionalProperties": figure(generator) })
}

/// One way to answer the question.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name of its table.
    pub name: String,
    /// Description, in a sentence.
    pub about: String,
    /// Ways in which it can be run.
    pub kinds: Vec<Kind>,
    /// Workload: `name` and its parameters.
    pub workload: Settings,
    /// The metric that a summary shows.
    pub headline: Option<String>,
    /// Settings that it runs with each of several values, besides the variants.
    pub(super) vary: BTreeMap<String, Vec<Value>>,
    /// Metrics: all that its workload reports, if its file names nothing. A metric with parameters is named
    /// without them, unless each has its own published figure.
    pub metrics: Vec<Metric>,
    /// Source of its published figures; empty if it has none.
    pub source: String,
}

/// A quantity that a part reports.
#[derive(Clone, Debug)]
pub struct Metric {
    /// Name without parameters.
    pub name: String,
    /// Unit, as the workload declares it; `1` for counts and ratios.
    pub unit: String,
    /// Which way is better, as the workload declares it.
    pub better: Better,
    /// Published figure of the study's baseline.
    pub published: Option<Published>,
    /// Published figures of other variants, by name. Nothing that is simulated looks at it.
    pub changed: BTreeMap<String, Published>,
}

impl Metric {
    /// What the study's authors printed, by variant, the baseline's first.
    pub(crate) fn printed<'a>(&'a self, baseline: &'a str) -> impl Iterator<Item = (&'a str, Published)> {
        let base = self.published.map(|published| (baseline, published));
        base.into_iter().chain(self.changed.iter().map(|(variant, published)| (variant.as_str(), *published)))
    }
}

impl Plan {
    /// The folder that its file lies in; none if it is built in.
    pub fn folder(&self) -> Option<&Path> {
        self.file.folder()
    }

    /// Name of the machine that its published figures come from, or that is simulated where it names none.
    pub fn machine(&self) -> &str {
        self.machine.as_deref().unwrap_or(USUAL_MACHINE)
    }

    /// Whether every part can be measured here.
    pub fn is_measurable(&self) -> bool {
        self.parts.iter().all(|part| part.kinds.contains(&Kind::Measured))
    }

    /// All variants, the baseline first.
    pub fn variants(&self) -> impl Iterator<Item = &Variant> {
        let (base, others): (Vec<&Variant>, Vec<&Variant>) =
            self.variants.iter().partition(|variant| variant.name == self.baseline);
        base.into_iter().chain(others)
    }

    /// Its texts.
    pub fn text(&self) -> StudyText {
        StudyText {
            name: self.name.clone(),
            short: self.short.clone(),
            question: self.question.clone(),
            unpredicted: self.unpredicted.clone(),
            year: self.year,
            variants: self.variants().map(|item| (item.name.clone(), item.about.clone())).collect(),
            parts: self.parts.iter().map(|item| (item.name.clone(), item.about.clone())).collect(),
        }
    }

    /// Gives every setting of a variant to `apply`: the study's, then the variant's, then `varied`, one
    /// combination of [`Part::combinations`]. `apply` says what is wrong with a setting, if anything.
    ///
    /// # Errors
    /// The first that `apply` refuses, with its line in the study's file.
    pub fn configure(
        &self,
        variant: &Variant,
        varied: &Settings,
        apply: impl FnMut(&str, &Value) -> core::result::Result<(), String>,
    ) -> Result<()> {
        self.config.with(&variant.config).with(varied).apply(Some(&self.file), apply)
    }
}

/// What is simulated if a study names no machine: the one whose parameters are known best.
const USUAL_MACHINE: &str = "xeon-gold-5320";

impl Part {
    /// The variant that its others are compared with: its own, or the study's.
    pub fn baseline(&self, plan: &Plan) -> String {
        self.workload.get("baseline").map_or_else(|| plan.baseline.clone(), ToString::to_string)
    }

    /// The machine that its published figures come from, where they do not name one: its own, or the study's.
    pub fn machine(&self, plan: &Plan) -> String {
        self.workload.get("machine").map_or_else(|| plan.machine().to_owned(), ToString::to_string)
    }

    /// Every combination of the values of varied settings; one empty combination if none varies.
    pub fn combinations(&self) -> Vec<Settings> {
        let mut combinations = vec![Settings::default()];
        for (key, values) in &self.vary {
            combinations = combinations
                .iter()
                .flat_map(|settings| {
                    values.iter().map(|value| {
                        let mut settings = settings.clone();
                        settings.set(key, value.clone());
                        settings
                    })
                })
                .collect();
        }
        combinations
    }
}
