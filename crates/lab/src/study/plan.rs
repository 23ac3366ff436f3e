//! A study as its TOML describes it: question, machine, baseline and variants, parts with their workload and
//! metrics.
//!
//! The descriptions in `studies/` are part of the binary. A user's own file may stand wherever a name may.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::embedded::STUDIES;
use crate::error::{Error, Result, did_you_mean};
use crate::result::{Better, Kind, Published};
use crate::settings::{Settings, Value};
use crate::table::Style;
use crate::toml_file::{TomlFile, is_path};

/// A study.
#[derive(Clone, Debug)]
pub struct Plan {
    file: TomlFile,
    content: Content,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    name: String,
    year: u32,
    question: String,
    machine: String,
    baseline: String,
    #[serde(default)]
    style: Style,
    #[serde(default)]
    config: Settings,
    #[serde(rename = "variant")]
    variants: Vec<Variant>,
    #[serde(rename = "part")]
    parts: Vec<Part>,
}

/// One configuration that is compared.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Name of its column.
    pub name: String,
    /// What it does, in a sentence.
    pub about: String,
    /// What it sets beyond the study's common settings.
    #[serde(default)]
    config: Settings,
}

/// One way to answer the question.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Name of its table.
    pub name: String,
    /// What it does, in a sentence.
    pub about: String,
    /// Ways in which it can be run.
    pub kinds: Vec<Kind>,
    /// What it runs: `name` and its parameters.
    #[serde(default)]
    pub workload: Settings,
    /// Settings that it runs with each of several values, besides the variants.
    #[serde(default)]
    vary: BTreeMap<String, Vec<Value>>,
    /// What it reports. A metric with parameters is named without them, unless each has its own published figure.
    #[serde(default, rename = "metric")]
    pub metrics: Vec<Metric>,
}

/// A quantity that a part reports.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Name without parameters.
    pub name: String,
    /// Unit; `1` for counts and ratios.
    pub unit: String,
    /// Which way is better.
    pub better: Better,
    /// What the study's authors printed for their baseline.
    pub published: Option<Published>,
}

impl Plan {
    /// All built-in studies, in the order of their year.
    ///
    /// # Errors
    /// A description is wrong; the tests of this crate refuse to let that happen.
    pub fn all() -> Result<Vec<Self>> {
        let parse = |(file, text): &(&str, &str)| Self::parse(TomlFile::embedded("studies", file, text));
        let mut plans = STUDIES.iter().map(parse).collect::<Result<Vec<Self>>>()?;
        plans.sort_by_key(Self::year);
        Ok(plans)
    }

    /// The study of a name, or of a TOML file.
    ///
    /// # Errors
    /// There is none of the name; the message suggests one or lists them. Or the file cannot be read, or
    /// contradicts itself.
    pub fn find(argument: &str) -> Result<Self> {
        if is_path(argument) {
            return Self::parse(TomlFile::read(Path::new(argument))?);
        }
        let mut all = Self::all()?;
        match all.iter().position(|plan| plan.name() == argument) {
            Some(index) => Ok(all.swap_remove(index)),
            None => {
                let names: Vec<&str> = all.iter().map(Self::name).collect();
                let hint = did_you_mean(argument, names.iter().copied());
                let list = if hint.is_empty() { format!("; there are {}", names.join(", ")) } else { hint };
                Err(Error::failed(format_args!("no study `{argument}`{list}")))
            }
        }
    }

    /// The name it is chosen by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.content.name
    }

    /// When the change that it is about was published.
    #[must_use]
    pub const fn year(&self) -> u32 {
        self.content.year
    }

    /// What it asks.
    #[must_use]
    pub fn question(&self) -> &str {
        &self.content.question
    }

    /// Name of the machine that its published figures come from.
    #[must_use]
    pub fn machine(&self) -> &str {
        &self.content.machine
    }

    /// The table style of its published figures.
    #[must_use]
    pub const fn style(&self) -> Style {
        self.content.style
    }

    /// Whether every part can be measured here.
    #[must_use]
    pub fn is_measurable(&self) -> bool {
        self.parts().iter().all(|part| part.kinds.contains(&Kind::Measured))
    }

    /// Name of the variant that the others are compared with.
    #[must_use]
    pub fn baseline(&self) -> &str {
        &self.content.baseline
    }

    /// All variants, the baseline first.
    pub fn variants(&self) -> impl Iterator<Item = &Variant> {
        let (base, others): (Vec<&Variant>, Vec<&Variant>) =
            self.content.variants.iter().partition(|variant| variant.name == self.content.baseline);
        base.into_iter().chain(others)
    }

    /// All parts, in the order they are told.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.content.parts
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
        self.content.config.with(&variant.config).with(varied).apply(Some(&self.file), apply)
    }

    fn parse(file: TomlFile) -> Result<Self> {
        let content: Content = file.parse()?;
        content.check().map_err(|what| file.error(None, what))?;
        Ok(Self { file, content })
    }
}

impl Part {
    /// Every combination of the values of varied settings; one empty combination if none varies.
    #[must_use]
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

impl Content {
    /// What the format cannot say.
    fn check(&self) -> core::result::Result<(), String> {
        let names = |what: &str, names: Vec<&str>| match names
            .iter()
            .enumerate()
            .find(|(index, name)| name.is_empty() || names[..*index].contains(name))
        {
            Some((_, name)) => Err(format!("{what} `{name}` is empty or occurs twice")),
            None if names.is_empty() => Err(format!("no {what}")),
            None => Ok(()),
        };
        names("variant", self.variants.iter().map(|variant| variant.name.as_str()).collect())?;
        names("part", self.parts.iter().map(|part| part.name.as_str()).collect())?;
        if !self.variants.iter().any(|variant| variant.name == self.baseline) {
            let hint =
                did_you_mean(&self.baseline, self.variants.iter().map(|variant| variant.name.as_str()));
            return Err(format!("baseline `{}` is not among the variants{hint}", self.baseline));
        }
        for part in &self.parts {
            names(
                &format!("metric of part {}", part.name),
                part.metrics.iter().map(|metric| metric.name.as_str()).collect(),
            )?;
            if part.kinds.is_empty() {
                return Err(format!("part {} has no kinds", part.name));
            }
            if let Some((key, _)) = part.vary.iter().find(|(_, values)| values.is_empty()) {
                return Err(format!("part {} varies {key} over no value", part.name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = r#"
name = "small"
year = 2020
question = "Which?"
machine = "host"
baseline = "old"
config = { preset = "linux_v5_4", a = 1 }

[[variant]]
name = "new"
about = "As it is now."
config = { a = 2 }

[[variant]]
name = "old"
about = "As it was."

[[part]]
name = "bulk"
about = "Allocates in bulk."
kinds = ["measured"]
workload = { name = "bulk", order = 9 }
vary = { lock_kind = ["ticket", "queued"], n = [1, 2] }

[[part.metric]]
name = "alloc_ns"
unit = "ns"
better = "lower"
published = { mean = 1.5 }
"#;

    fn parse(text: &str) -> Result<Plan> {
        Plan::parse(TomlFile::embedded("studies", "small.toml", text))
    }

    fn refusal(from: &str, to: &str) -> String {
        assert!(SMALL.contains(from), "{from}");
        parse(&SMALL.replace(from, to)).expect_err("refused").to_string()
    }

    #[test]
    fn a_plan_gives_each_variant_its_settings() {
        let plan = parse(SMALL).expect("a plan");
        let names: Vec<&str> = plan.variants().map(|variant| variant.name.as_str()).collect();
        assert_eq!(names, ["old", "new"], "the baseline is first");
        let part = &plan.parts()[0];
        let combinations: Vec<String> = part.combinations().iter().map(Settings::to_string).collect();
        assert_eq!(
            combinations,
            ["lock_kind=ticket,n=1", "lock_kind=ticket,n=2", "lock_kind=queued,n=1", "lock_kind=queued,n=2"]
        );
        let new = plan.variants().nth(1).expect("two variants");
        let mut seen = Settings::default();
        plan.configure(new, &part.combinations()[3], |key, value| {
            seen.set(key, value.clone());
            Ok(())
        })
        .expect("all taken");
        assert_eq!(seen.to_string(), "preset=linux_v5_4,a=2,lock_kind=queued,n=2");
        assert_eq!(part.workload.get("order"), Some(&Value::Integer(9)));
        assert_eq!(part.metrics[0].published, Some(Published { mean: 1.5, stddev: None }));
    }

    #[test]
    fn a_refused_setting_is_named_with_its_line() {
        let plan = parse(SMALL).expect("a plan");
        let new = plan.variants().nth(1).expect("two variants").clone();
        let error = plan
            .configure(&new, &Settings::default(), |_, value| {
                if *value == Value::Integer(2) { Err("too large".to_owned()) } else { Ok(()) }
            })
            .expect_err("refused");
        assert_eq!(error.to_string(), "studies/small.toml:12: a = 2: too large");
    }

    #[test]
    fn contradictions_are_refused() {
        let file = "studies/small.toml: ";
        assert_eq!(
            refusal("baseline = \"old\"", "baseline = \"olds\""),
            format!("{file}baseline `olds` is not among the variants; did you mean `old`?")
        );
        assert_eq!(
            refusal("name = \"new\"", "name = \"old\""),
            format!("{file}variant `old` is empty or occurs twice")
        );
        assert_eq!(refusal("[\"measured\"]", "[]"), format!("{file}part bulk has no kinds"));
        assert_eq!(refusal("[1, 2]", "[]"), format!("{file}part bulk varies n over no value"));
        let error = refusal("question", "qestion");
        assert!(error.starts_with("studies/small.toml:4: unknown field `qestion`"), "{error}");
        let error = refusal("\"lower\"", "\"less\"");
        assert!(
            error.starts_with("studies/small.toml:28: unknown variant `less`, expected one of"),
            "{error}"
        );
    }

    #[test]
    fn an_unknown_study_lists_the_known() {
        let error = Plan::find("zebra").expect_err("no such study").to_string();
        assert!(error.starts_with("no study `zebra`; there are "), "{error}");
        let error = Plan::find("pcp-rest").expect_err("no such study").to_string();
        assert_eq!(error, "no study `pcp-rest`; did you mean `pcp-reset`?");
        let error = Plan::find("./none.toml").expect_err("no such file").to_string();
        assert_eq!(error, "cannot read ./none.toml: No such file or directory (os error 2)");
    }

    #[test]
    fn every_built_in_study_names_a_built_in_machine_and_the_right_file() {
        let plans = Plan::all().expect("all are valid");
        assert!(plans.len() >= 3);
        for plan in plans {
            assert_eq!(plan.file.name, format!("studies/{}.toml", plan.name()));
            let machine = crate::machine::Machine::find(plan.machine()).expect("it exists");
            assert!(machine.studies.iter().any(|study| study == plan.name()), "{}", plan.name());
        }
    }
}
