//! A study from its TOML. Whatever it names is looked up: settings, workloads with their keys and metrics.
//!
//! The descriptions in `studies/` are part of the binary. A user's own file may stand wherever a name may.

use std::collections::BTreeMap;
use std::path::Path;

use framewright_report::error::{Error, Result, did_you_mean, did_you_mean_or};
use framewright_report::result::Better;

use super::plan::{Metric, Part, Plan, WrittenMetric, WrittenPart};
use super::registry;
use super::workload::{Declaration, Quantity, Role};
use crate::configure::{Setup, set_twice};
use crate::embedded::STUDIES;
use crate::settings::Settings;
use crate::toml_file::{TomlFile, is_path};

impl Plan {
    /// All built-in studies, in the order of their year.
    ///
    /// # Errors
    /// A description is wrong; the tests of this crate refuse to let that happen.
    pub fn all() -> Result<Vec<Self>> {
        let parse = |(file, text): &(&str, &str)| Self::parse(TomlFile::embedded("studies", file, text));
        let mut plans = STUDIES.iter().map(parse).collect::<Result<Vec<Self>>>()?;
        // Those about a published change first, in the order of their year.
        plans.sort_by_key(|plan| (plan.year.is_none(), plan.year));
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
        match all.iter().position(|plan| plan.name == argument) {
            Some(index) => Ok(all.swap_remove(index)),
            None => {
                let list =
                    did_you_mean_or(argument, all.iter().map(|plan| plan.name.as_str()), "; there are");
                Err(Error::usage(format_args!("no study `{argument}`{list}")))
            }
        }
    }

    fn parse(file: TomlFile) -> Result<Self> {
        let mut plan: Self = file.parse()?;
        plan.complete(&file)?;
        Ok(Self { file, ..plan })
    }

    /// Looks up everything that it names, and fills in what was left out.
    fn complete(&mut self, file: &TomlFile) -> Result<()> {
        let known = |settings: &Settings| {
            let mut setup = Setup::default();
            settings.apply(Some(file), |key, value| setup.set(key, value))
        };
        known(&self.config)?;
        self.variants.iter().try_for_each(|variant| known(&variant.config))?;
        let written = core::mem::take(&mut self.written);
        self.parts = written.into_iter().map(|part| part.checked(file)).collect::<Result<_>>()?;
        if self.name.is_empty() {
            self.name = file.stem();
        }
        if let (true, Some(first)) = (self.baseline.is_empty(), self.variants.first()) {
            self.baseline.clone_from(&first.name);
        }
        self.check().map_err(|what| file.error(None, what))
    }

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
        let lists = self.variants.iter().map(|variant| &variant.config).chain([&self.config]);
        if let Some(what) = lists.filter_map(set_twice).next() {
            return Err(what);
        }
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
            let variants = || self.variants.iter().map(|variant| variant.name.as_str());
            let mut published = part.metrics.iter().flat_map(|metric| metric.changed.keys());
            if let Some(name) = published.find(|name| !variants().any(|variant| variant == **name)) {
                return Err(format!(
                    "part {}: figures are published of `{name}`, which is no variant{}",
                    part.name,
                    did_you_mean(name, variants())
                ));
            }
            if let Some((key, _)) = part.vary.iter().find(|(_, values)| values.is_empty()) {
                return Err(format!("part {} varies {key} over no value", part.name));
            }
        }
        Ok(())
    }
}

impl WrittenPart {
    fn checked(self, file: &TomlFile) -> Result<Part> {
        let settings = self.workload.unwrap_or_default();
        let chosen = settings.get("name").map(ToString::to_string).unwrap_or_default();
        let name = self.name.unwrap_or_else(|| chosen.clone());
        settings.apply(Some(file), |key, value| match key {
            "name" => registry::find(&value.to_string()).map(|_| ()),
            _ => Ok(()),
        })?;
        // Without a name, this says which there are.
        let workload =
            registry::find(&chosen).map_err(|what| file.error(None, format!("part {name}: {what}")))?;
        let declared = workload.declaration();
        settings.apply(Some(file), |key, value| declared.check_key(key, value))?;
        if let Some(key) = declared.missing(&settings) {
            let what = format!("part {name}: workload {chosen} needs `{}`: {}", key.name, key.about);
            return Err(file.error(None, what));
        }
        let kinds = self.kinds.unwrap_or_else(|| declared.kinds.to_vec());
        if let Some(kind) = kinds.iter().find(|kind| !declared.kinds.contains(kind)) {
            let can: Vec<String> = declared.kinds.iter().map(ToString::to_string).collect();
            let what = format!("part {name}: workload {chosen} cannot be {kind}, only {}", can.join(" or "));
            return Err(file.error(None, what));
        }
        let mut vary = BTreeMap::new();
        for (key, values) in self.vary {
            for value in &values {
                let set = Setup::default().set(key.get_ref(), value);
                set.map_err(|what| {
                    file.error(Some(key.span()), format!("{} = {value}: {what}", key.get_ref()))
                })?;
            }
            if values.len() > declared.varies {
                let what = match declared.varies {
                    0 => "varies no setting; write a [[variant]] for each value".to_owned(),
                    most => {
                        format!("takes {most} value of a setting, and {} has {}", key.get_ref(), values.len())
                    }
                };
                return Err(file.error(Some(key.span()), format!("part {name}: workload {chosen} {what}")));
            }
            vary.insert(key.into_inner(), values);
        }
        let written = self
            .metrics
            .into_iter()
            .map(|metric| metric.checked(declared, file))
            .collect::<Result<Vec<_>>>()?;
        let all = declared.metrics.iter().filter(|quantity| quantity.role != Role::Cause);
        let metrics = if written.is_empty() { all.map(Metric::of).collect() } else { written };
        let headline = match self.headline {
            Some(headline) => {
                declared
                    .quantity(headline.get_ref())
                    .map_err(|what| file.error(Some(headline.span()), what))?;
                Some(headline.into_inner())
            }
            None => metrics.first().map(|metric| metric.name.clone()),
        };
        Ok(Part {
            name,
            about: self.about,
            kinds,
            workload: settings,
            headline,
            vary,
            metrics,
            source: self.source,
        })
    }
}

impl WrittenMetric {
    /// Unit and direction belong to the workload; a file that says them must say the same.
    fn checked(self, workload: &Declaration, file: &TomlFile) -> Result<Metric> {
        let wrong = |place, what| file.error(Some(place), what);
        let quantity =
            workload.quantity(self.name.get_ref()).map_err(|what| wrong(self.name.span(), what))?;
        if let Some(unit) = self.unit.filter(|unit| unit.get_ref() != quantity.unit) {
            let what = format!("{} is in {}, not in {}", quantity.name, quantity.unit, unit.get_ref());
            return Err(wrong(unit.span(), what + "; leave the unit out, the workload knows it"));
        }
        if let Some(better) = self.better.filter(|better| *better.get_ref() != quantity.better) {
            let way = match quantity.better {
                Better::Lower => "lower is better",
                Better::Higher => "higher is better",
                Better::None => "neither way is better",
            };
            let what = format!("of {} {way}; leave `better` out, the workload knows it", quantity.name);
            return Err(wrong(better.span(), what));
        }
        let (published, changed) = (self.published, self.changed);
        for figure in published.iter().chain(changed.values()) {
            if !figure.mean.is_finite()
                || !figure.stddev.is_none_or(|spread| spread.is_finite() && spread >= 0.0)
            {
                let what =
                    format!("what was published of {} is no number, or has a spread below 0", quantity.name);
                return Err(wrong(self.name.span(), what));
            }
        }
        Ok(Metric { name: self.name.into_inner(), published, changed, ..Metric::of(quantity) })
    }
}

impl Metric {
    fn of(quantity: &Quantity) -> Self {
        Self {
            name: quantity.name.to_owned(),
            unit: quantity.unit.to_owned(),
            better: quantity.better,
            published: None,
            changed: BTreeMap::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use framewright_report::result::{Kind, Published};

    use super::*;
    use crate::settings::Value;

    const SMALL: &str = r#"
name = "small"
year = 2020
question = "Which?"
machine = "host"
baseline = "old"
config = { preset = "linux_v5_4", batch = 1 }

[[variant]]
name = "new"
about = "As it is now."
config = { batch = 2 }

[[variant]]
name = "old"
about = "As it was."

[[part]]
name = "bulk"
about = "Allocates in bulk."
kinds = ["measured"]
workload = { name = "bulk", order = 9 }
vary = { lock_kind = ["ticket", "queued"], pcp_min_refill = [1, 2] }

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
        let part = &plan.parts[0];
        let combinations: Vec<String> = part.combinations().iter().map(Settings::to_string).collect();
        assert_eq!(
            combinations,
            [
                "lock_kind=ticket,pcp_min_refill=1",
                "lock_kind=ticket,pcp_min_refill=2",
                "lock_kind=queued,pcp_min_refill=1",
                "lock_kind=queued,pcp_min_refill=2"
            ]
        );
        let new = plan.variants().nth(1).expect("two variants");
        let mut seen = Settings::default();
        plan.configure(new, &part.combinations()[3], |key, value| {
            seen.set(key, value.clone());
            Ok(())
        })
        .expect("all taken");
        assert_eq!(seen.to_string(), "preset=linux_v5_4,batch=2,lock_kind=queued,pcp_min_refill=2");
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
        assert_eq!(error.to_string(), "studies/small.toml:12: batch = 2: too large");
    }

    #[test]
    fn contradictions_and_what_nothing_knows_are_refused_with_their_lines() {
        let twice = "batch = 3, pcp_fraction = 8, \"vm.percpu_pagelist_high_fraction\" = 9 }";
        let both = " `pcp_fraction` and `vm.percpu_pagelist_high_fraction` are one setting, set to 8 and to 9; leave one out";
        for (from, to, expected) in [
            ("order = 9", "ordr = 9", "22: ordr = 9: workload bulk has no key `ordr`; did you mean `order`?"),
            ("order = 9", "order = 11", "22: order = 11: expected a whole number from 0 to 10"),
            ("order = 9", "order = true", "22: order = true: expected a whole number from 0 to 10"),
            (
                "name = \"bulk\", ",
                "name = \"bulks\", ",
                "22: name = bulks: no workload `bulks`; did you mean `bulk`?",
            ),
            (
                "name = \"alloc_ns\"",
                "name = \"alloc_nanos\"",
                "26: workload bulk has no metric `alloc_nanos`; did you mean `alloc_ns`?",
            ),
            (
                "unit = \"ns\"",
                "unit = \"furlongs\"",
                "27: alloc_ns is in ns, not in furlongs; leave the unit out, the workload knows it",
            ),
            (
                "\"lower\"",
                "\"higher\"",
                "28: of alloc_ns lower is better; leave `better` out, the workload knows it",
            ),
            ("batch = 2", "bach = 2", "12: bach = 2: no such setting; did you mean `batch`?"),
            ("batch = 1", "batch = 0", "7: batch = 0: expected a whole number from 1 to 1048576"),
            (
                "lock_kind = [\"ticket\", \"queued\"]",
                "lock_kind = [\"mcs\"]",
                "23: lock_kind = mcs: expected one of ticket, queued, parking, by_platform",
            ),
            (
                "{ name = \"bulk\", order = 9 }",
                "{ name = \"bad_block\" }",
                "23: part bulk: workload bad_block varies no setting; write a [[variant]] for each value",
            ),
            (
                "mean = 1.5",
                "mean = nan",
                "26: what was published of alloc_ns is no number, or has a spread below 0",
            ),
            (
                "baseline = \"old\"",
                "baseline = \"olds\"",
                " baseline `olds` is not among the variants; did you mean `old`?",
            ),
            ("name = \"new\"", "name = \"old\"", " variant `old` is empty or occurs twice"),
            ("batch = 1 }", twice, both),
            ("batch = 2 }", twice, both),
            ("[\"measured\"]", "[]", " part bulk has no kinds"),
            ("[1, 2]", "[]", " part bulk varies pcp_min_refill over no value"),
            ("question", "qestion", "4: unknown field `qestion`…"),
            ("\"lower\"", "\"less\"", "28: better: unknown variant `less`, expected one of…"),
            (
                "{ mean = 1.5 }",
                "{ mean = 1.5 }\nchanged = { olds = { mean = 1 } }",
                " part bulk: figures are published of `olds`, which is no variant; did you mean `old`?",
            ),
            (
                "[\"measured\"]",
                "[\"derived\"]",
                " part bulk: workload bulk cannot be derived, only measured or simulated",
            ),
            ("name = \"bulk\", order = 9", "order = 9", " part bulk: no workload ``; there are lists…"),
            (
                "name = \"bulk\", order = 9",
                "name = \"kernbench\"",
                " part bulk: workload kernbench needs `iterations`…",
            ),
        ] {
            let (error, expected) = (refusal(from, to), format!("studies/small.toml:{expected}"));
            match expected.strip_suffix('…') {
                Some(beginning) => assert!(error.starts_with(beginning), "{error}"),
                None => assert_eq!(error, expected),
            }
        }
    }

    #[test]
    fn a_study_of_ones_own_says_only_what_differs() {
        let text = "[[variant]]\nname = \"old\"\n[[variant]]\nname = \"new\"\nconfig = { batch = 7 }\n\
                    [[part]]\nworkload = { name = \"bulk\" }\n";
        let plan = Plan::parse(TomlFile::embedded("studies", "mine.toml", text)).expect("a plan");
        assert_eq!(
            (plan.name.as_str(), plan.baseline.as_str(), plan.machine()),
            ("mine", "old", "xeon-gold-5320")
        );
        let part = &plan.parts[0];
        let metrics: Vec<&str> = part.metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(metrics, ["alloc_ns", "free_ns", "zone_lock_wait_ns", "zone_lock_hold_ns"]);
        assert_eq!((part.name.as_str(), part.kinds.len()), ("bulk", 2));
    }

    #[test]
    fn an_unknown_study_lists_the_known() {
        let error = Plan::find("zebra").expect_err("no such study").to_string();
        assert!(error.starts_with("no study `zebra`; there are "), "{error}");
        let error = Plan::find("pcp-rest").expect_err("no such study").to_string();
        assert_eq!(error, "no study `pcp-rest`; did you mean `pcp-reset`?");
        let error = Plan::find("./none.toml").expect_err("no such file").to_string();
        assert_eq!(error, "cannot read ./none.toml: No such file or directory (os error 2); check the path");
    }

    #[test]
    fn every_built_in_study_names_a_built_in_machine_and_the_right_file() {
        let plans = Plan::all().expect("all are valid");
        assert!(plans.len() >= 3);
        for plan in plans {
            assert_eq!(plan.file.name, format!("studies/{}.toml", plan.name));
            if plan.parts.iter().all(|part| part.kinds == [Kind::Measured]) {
                // It is about the machine that it runs on.
                continue;
            }
            let machine = crate::machine::Machine::find(plan.machine()).expect("it exists");
            assert!(machine.studies.contains(&plan.name), "{}", plan.name);
        }
    }
}
