//! Configuration as data: allocator settings by name, from a study's TOML or from the command line.

use core::fmt;
use core::ops::Range;
use std::borrow::Cow;
use std::collections::BTreeMap;

use framewright_report::error::{Error, Result};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::toml_file::TomlFile;

/// The settings that `generation` sets together.
pub(crate) const OF_GENERATION: [&str; 4] = ["marks", "fallback", "passes", "reclaim"];

/// Settings by name, in the order they were written. A later one of the same name wins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    key: String,
    value: Value,
    /// Place of the key in its file.
    place: Option<Range<usize>>,
}

/// Value of a setting.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged, expecting = "a setting is true, false, a number or a string")]
pub enum Value {
    /// `true`, `false`.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// A number with a decimal point.
    Float(f64),
    /// A word, such as `v5_4`.
    Text(String),
}

/// Values of a setting or of a workload's key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    /// A whole number, from the first to the second.
    Whole(i64, i64),
    /// A number, from the first to the second.
    Number(f64, f64),
    /// `true` or `false`.
    Flag,
    /// One of these words.
    Words(&'static [&'static str]),
    /// A file, relative to the study's own, or this word.
    FileOr(&'static str),
    /// Text of this form.
    Form(&'static str),
}

impl Takes {
    /// True if a value is one of those.
    pub fn accepts(self, value: &Value) -> bool {
        match (self, value) {
            (Self::Whole(least, most), Value::Integer(number)) => (least..=most).contains(number),
            (Self::Number(least, most), Value::Integer(number)) => (least..=most).contains(&(*number as f64)),
            (Self::Number(least, most), Value::Float(number)) => (least..=most).contains(number),
            (Self::Flag, Value::Bool(_)) | (Self::FileOr(_), Value::Text(_)) => true,
            (Self::Words(words), value) => words.contains(&value.to_string().as_str()),
            (Self::Form(_), _) => true,
            _ => false,
        }
    }
}

impl fmt::Display for Takes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(least, most) if *most >= i64::from(u32::MAX) => {
                write!(f, "a whole number from {least}")
            }
            Self::Whole(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Number(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Flag => f.write_str("true or false"),
            Self::Words(words) => write!(f, "one of {}", words.join(", ")),
            Self::Form(form) => f.write_str(form),
            Self::FileOr(word) => write!(f, "a file, or \"{word}\""),
        }
    }
}

impl Settings {
    /// Settings from `key=value` pairs with commas between them, as on the command line: `true`, `false` and
    /// numbers are what they look like, everything else is a word.
    ///
    /// # Errors
    /// A pair without `=`, or without a name; a name that is given twice.
    pub fn from_pairs(pairs: &str) -> Result<Self> {
        let mut settings = Self::default();
        for pair in pairs.split(',').filter(|pair| !pair.trim().is_empty()) {
            let Some((key, value)) = pair.split_once('=').filter(|(key, _)| !key.trim().is_empty()) else {
                return Err(Error::usage(format_args!(
                    "`{}` sets nothing; write key=value, such as pcp_rule=v5_4",
                    pair.trim()
                )));
            };
            if let Some(earlier) = settings.get(key.trim()) {
                return Err(Error::usage(format_args!(
                    "`{}` is set twice, to {earlier} and to {}; leave one out",
                    key.trim(),
                    value.trim()
                )));
            }
            settings.set(key.trim(), Value::from_word(value.trim()));
        }
        settings.undone().map_or(Ok(settings), |what| Err(Error::usage(what)))
    }

    /// Says of a setting that a later one undoes which to write first.
    fn undone(&self) -> Option<String> {
        ["preset", "generation"].iter().find_map(|whole| {
            let at = self.entries.iter().position(|entry| entry.key == *whole)?;
            let is_part = |entry: &&Entry| match *whole {
                "generation" => OF_GENERATION.contains(&&*entry.key),
                // These two are not the allocator's.
                _ => !matches!(&*entry.key, "page_cache" | "descriptor_bytes"),
            };
            let undone = &self.entries[..at].iter().find(is_part)?.key;
            Some(format!("`{whole}` sets `{undone}` as well: write {whole}={} first", self.entries[at].value))
        })
    }

    /// Sets `key`.
    pub fn set(&mut self, key: &str, value: Value) {
        self.entries.push(Entry { key: key.to_owned(), value, place: None });
    }

    /// Value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.iter().rev().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// Keys and values, each key once with what it is set to in the end, in the order of first mention.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let known = self.entries[..index].iter().any(|earlier| earlier.key == entry.key);
            if known { None } else { Some((entry.key.as_str(), self.get(&entry.key)?)) }
        })
    }

    /// These settings, refined by `others`.
    pub fn with(&self, others: &Self) -> Self {
        Self { entries: self.entries.iter().chain(&others.entries).cloned().collect() }
    }

    /// Gives every key and value to `apply`, which returns the reason if it refuses one.
    ///
    /// # Errors
    /// The first that `apply` refuses, with the key and, if it was read from a file, its place.
    pub(crate) fn apply(
        &self,
        file: Option<&TomlFile>,
        mut apply: impl FnMut(&str, &Value) -> core::result::Result<(), String>,
    ) -> Result<()> {
        for entry in &self.entries {
            apply(&entry.key, &entry.value).map_err(|what| {
                let what = format!("{} = {}: {what}", entry.key, entry.value);
                match file {
                    Some(file) => file.error(entry.place.clone(), what),
                    None => Error::usage(what),
                }
            })?;
        }
        Ok(())
    }
}

impl Value {
    fn from_word(word: &str) -> Self {
        if let Ok(value) = word.parse() {
            Self::Bool(value)
        } else if let Ok(value) = word.parse() {
            Self::Integer(value)
        } else if let Some(value) = word.parse().ok().filter(|value: &f64| value.is_finite()) {
            Self::Float(value)
        } else {
            Self::Text(word.to_owned())
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            // With its point, so that it is read as what it is.
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl fmt::Display for Settings {
    /// `key=value` pairs, as [`Settings::from_pairs`] reads them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl JsonSchema for Settings {
    fn schema_name() -> Cow<'static, str> {
        "settings".into()
    }

    /// Which settings there are, `schema` adds.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }
}

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> core::result::Result<Self, D::Error> {
        let table = BTreeMap::<Spanned<String>, Value>::deserialize(deserializer)?;
        let mut entries: Vec<_> = table
            .into_iter()
            .map(|(key, value)| Entry { place: Some(key.span()), key: key.into_inner(), value })
            .collect();
        // The map is sorted by name; what was written first must be applied first.
        entries.sort_by_key(|entry| entry.place.as_ref().map(|place| place.start));
        let settings = Self { entries };
        settings.undone().map_or(Ok(settings), |what| Err(D::Error::custom(what)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_as_they_are_printed() {
        let settings =
            Settings::from_pairs("pcp_rule=v5_4, pcp_reset=true,pcp_fraction=8,x=0.5").expect("four pairs");
        assert_eq!(settings.get("pcp_rule"), Some(&Value::Text("v5_4".to_owned())));
        assert_eq!(settings.get("pcp_reset"), Some(&Value::Bool(true)));
        assert_eq!(settings.get("pcp_fraction"), Some(&Value::Integer(8)));
        assert_eq!(settings.get("missing"), None);
        assert_eq!(settings.to_string(), "pcp_rule=v5_4,pcp_reset=true,pcp_fraction=8,x=0.5");
        assert_eq!(Settings::from_pairs(&settings.to_string()).expect("as printed"), settings);
        assert_eq!(Settings::from_pairs("").expect("no settings"), Settings::default());
    }

    #[test]
    fn a_pair_without_a_value_is_refused() {
        for wrong in ["v5_4", "=v5_4", "a=1,b"] {
            let error = Settings::from_pairs(wrong).expect_err("no pair").to_string();
            assert!(error.ends_with("sets nothing; write key=value, such as pcp_rule=v5_4"), "{error}");
        }
        let error = Settings::from_pairs("batch=7,high=42,batch=8").expect_err("which of them?").to_string();
        assert_eq!(error, "`batch` is set twice, to 7 and to 8; leave one out");
    }

    /// `batch=63,preset=linux_v6_1` was called that in a result, and ran without the batch.
    #[test]
    fn a_setting_that_a_later_one_undoes_is_refused() {
        let refused = |pairs: &str| Settings::from_pairs(pairs).expect_err("undone").to_string();
        assert_eq!(
            refused("batch=63,preset=linux_v6_1"),
            "`preset` sets `batch` as well: write preset=linux_v6_1 first"
        );
        assert_eq!(
            refused("preset=linux_v6_1,batch=63,marks=v3_0,generation=v6_1"),
            "`generation` sets `marks` as well: write generation=v6_1 first"
        );
        assert!(Settings::from_pairs("preset=linux_v6_1,batch=63,generation=v6_1,marks=v3_0").is_ok());
        let file = TomlFile::embedded("studies", "x.toml", "batch = 63\npreset = \"linux_v6_1\"\n");
        let error = file.parse::<Settings>().expect_err("undone").to_string();
        assert!(
            error.starts_with("studies/x.toml:") && error.contains("write preset=linux_v6_1 first"),
            "{error}"
        );
    }

    #[test]
    fn the_later_of_two_wins() {
        let base = Settings::from_pairs("a=1,b=2").expect("pairs");
        let refined = base.with(&Settings::from_pairs("a=3,c=4").expect("pairs"));
        assert_eq!(refined.to_string(), "a=3,b=2,c=4");
        let floats = Settings::from_pairs("a=-.0,b=-0.5,c=1e3").expect("pairs");
        assert_eq!(floats.to_string(), "a=-0.0,b=-0.5,c=1000.0");
    }

    #[test]
    fn a_refused_setting_is_found_in_its_file() {
        #[derive(Deserialize)]
        struct Whole {
            config: Settings,
        }
        let file = TomlFile::embedded("studies", "x.toml", "[config]\ngood = 1\nbad = \"x\"\n");
        let settings = file.parse::<Whole>().expect("TOML").config;
        let refuse =
            |key: &str, _: &Value| if key == "bad" { Err("no such setting".to_owned()) } else { Ok(()) };
        let error = settings.apply(Some(&file), refuse).expect_err("one is bad");
        assert_eq!(error.to_string(), "studies/x.toml:3: bad = x: no such setting");
        let error = settings.apply(None, refuse).expect_err("one is bad");
        assert!(matches!(&error, Error::Usage(what) if what == "bad = x: no such setting"), "{error:?}");
        let wrong = TomlFile::embedded("studies", "x.toml", "[config]\nlist = [1]\n");
        let error = wrong.parse::<Whole>().err().expect("lists are no settings").to_string();
        assert!(
            error.starts_with("studies/x.toml:2: list: a setting is true, false, a number or a string"),
            "{error}"
        );
    }
}
