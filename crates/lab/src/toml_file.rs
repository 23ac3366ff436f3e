//! Reading TOML that people write: every refusal is one line with the file, the line and what to change.

use core::ops::Range;
use std::path::Path;

use framewright_trace::input;
use serde::de::DeserializeOwned;

use framewright_report::error::{Error, Result};

/// Longest file, in bytes. The longest that is shipped has 12 KiB; a parsed table takes many times its text.
const LONGEST: u64 = 1 << 20;

/// The text of a TOML file and where it comes from, to say where something is wrong.
#[derive(Clone, Debug, Default)]
pub(crate) struct TomlFile {
    /// As the reader of a message knows it.
    pub(crate) name: String,
    pub(crate) text: String,
    on_disk: bool,
}

impl TomlFile {
    pub(crate) fn embedded(folder: &str, name: &str, text: &str) -> Self {
        Self { name: format!("{folder}/{name}"), text: text.to_owned(), on_disk: false }
    }

    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = input::text(path, LONGEST, "expected TOML").map_err(Error::failed)?;
        Ok(Self { name: path.display().to_string(), text, on_disk: true })
    }

    /// Folder of the file; none if it is built in.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.on_disk.then(|| Path::new(&self.name).parent().unwrap_or(Path::new("")))
    }

    /// Its name without folder and ending.
    pub(crate) fn stem(&self) -> String {
        Path::new(&self.name).file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }

    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        if self.text.trim().is_empty() {
            return Err(Error::failed(format_args!("{}: empty file; expected TOML", self.name)));
        }
        toml::from_str(&self.text).map_err(|cause| {
            let place = cause.span();
            let key = place.clone().and_then(|place| self.key_before(place.start)).unwrap_or_default();
            let twice = place.clone().filter(|_| cause.message() == "duplicate key");
            let twice = twice.and_then(|place| self.text.get(place)).map(|key| format!(" `{key}`"));
            self.error(place, format_args!("{key}{}{}", in_words(cause.message()), twice.unwrap_or_default()))
        })
    }

    /// The key whose value begins at `place`, as an error names it: `batch: `, in an inline table `config.batch: `.
    fn key_before(&self, place: usize) -> Option<String> {
        let before = self.text.get(..place)?;
        let line = before.rsplit('\n').next()?.trim_end().strip_suffix('=')?;
        let last_word = |text: &str| {
            let text = text.trim_end();
            let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.\"".contains(c);
            text[text.trim_end_matches(is_key).len()..].to_owned()
        };
        let (first, last) = (last_word(line.split('=').next()?), last_word(line));
        Some(if first == last { format!("{first}: ") } else { format!("{first}.{last}: ") })
    }

    /// An error about a place in the file.
    pub(crate) fn error(&self, place: Option<Range<usize>>, what: impl core::fmt::Display) -> Error {
        match place {
            // An error about a whole table or file has the span of all of it: the beginning says little, but
            // is true.
            Some(place) => {
                let line = 1 + self.text[..place.start.min(self.text.len())].matches('\n').count();
                Error::failed(format_args!("{}:{line}: {what}", self.name))
            }
            None => Error::failed(format_args!("{}: {what}", self.name)),
        }
    }
}

/// The parser's message without the names of Rust's types.
fn in_words(message: &str) -> String {
    let Some((before, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let words = match expected {
        "u64" | "u32" => "a whole number from 0 on",
        "f64" => "a number",
        "a sequence" => "a list: [ … ]",
        "a map" => "a table: { … }",
        _ if expected.starts_with("struct ") => "a table: { … }",
        _ => return message.to_owned(),
    };
    format!("{before}, expected {words}")
}

/// True if an argument is a path, false if it is a built-in name.
pub(crate) fn is_path(argument: &str) -> bool {
    argument.contains('/') || argument.ends_with(".toml")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        #[expect(dead_code, reason = "only read by the parser")]
        sockets: u32,
    }

    fn refusal(text: &str) -> String {
        TomlFile::embedded("machines", "x.toml", text).parse::<Sample>().expect_err("refused").to_string()
    }

    #[test]
    fn refusals_name_the_file_the_line_and_the_key() {
        assert_eq!(refusal(" \n"), "machines/x.toml: empty file; expected TOML");
        assert_eq!(
            refusal("sockets = 1\n\nsokets = 2\n"),
            "machines/x.toml:3: unknown field `sokets`, expected `sockets`"
        );
        assert_eq!(
            refusal("# a\nsockets = \"1\"\n"),
            "machines/x.toml:2: sockets: invalid type: string \"1\", expected a whole number from 0 on"
        );
        assert_eq!(
            refusal("size = { l1 = 1.0, sockets = \"a = b\" }\nsockets = { n = -1 }"),
            "machines/x.toml:1: unknown field `size`, expected `sockets`"
        );
        let nested =
            TomlFile::embedded("machines", "x.toml", "a = 1\nlow = { \"x=y\" = \"=\", sockets = -1 }\n");
        assert_eq!(nested.key_before(nested.text.find("-1").unwrap()).as_deref(), Some("low.sockets: "));
        assert_eq!(nested.key_before(nested.text.find('{').unwrap()).as_deref(), Some("low: "));
        assert!(refusal("a\nsockets = ").starts_with("machines/x.toml:1: "), "{}", refusal("a\nsockets ="));
        assert_eq!(refusal("# nothing\n"), "machines/x.toml:1: missing field `sockets`");
    }

    #[test]
    fn names_and_paths_are_told_apart() {
        assert!(is_path("./rome") && is_path("rome.toml") && !is_path("rome"));
    }
}
