//! Reading and writing result files: written whole or not at all, checked on both ways.

use std::collections::BTreeSet;
use std::path::Path;

use framewright_trace::input;
use framewright_trace::output::Output;
use serde::Deserialize;

use super::{Document, Metric, Part, Published};
use crate::error::{Error, Result};

/// Longest result, in bytes: a metric with a single sample takes ten times its text in memory. `study all` writes some
/// 2 MiB, and 100 KiB more for each further sample.
const LONGEST: u64 = 16 << 20;

impl Document {
    /// Reads a result file.
    ///
    /// # Errors
    /// It cannot be read, is empty, is not JSON, is of a later version, or contradicts itself. The message
    /// begins with the path.
    pub fn read(path: &Path) -> Result<Self> {
        let text = input::text(path, LONGEST, "expected a JSON file saved with -o").map_err(Error::failed)?;
        Self::parse(&text).map_err(|error| Error::failed(format_args!("{}: {error}", path.display())))
    }

    /// Reads a result from JSON.
    ///
    /// # Errors
    /// As [`read`](Self::read), without the path.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim().is_empty() {
            return Err(Error::failed("empty file; expected a JSON file saved with -o"));
        }
        check_version(text)?;
        let document: Self = serde_json::from_str(text)
            .map_err(|cause| Error::failed(format_args!("not a framewright result: {cause}")))?;
        document.validate()?;
        Ok(document)
    }

    /// The document as JSON, with a line break at the end.
    ///
    /// # Errors
    /// It contradicts itself (see [`validate`](Self::validate)).
    pub fn to_json(&self) -> Result<String> {
        self.validate()?;
        let mut json = serde_json::to_string_pretty(self).map_err(Error::failed)?;
        json.push('\n');
        Ok(json)
    }

    /// Writes a result file. It appears whole or not at all: readers never see half of it.
    ///
    /// # Errors
    /// It cannot be written, or the document contradicts itself.
    pub fn write(&self, path: &Path) -> Result<()> {
        self.write_to(Output::open(path).map_err(Error::failed)?)
    }

    /// Writes a result to a place that was opened before the work began.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn write_to(&self, output: Output) -> Result<()> {
        output.finish(self.to_json()?.as_bytes()).map_err(Error::failed)
    }

    /// Checks what the format cannot say: the baseline is a variant, samples belong to variants and are
    /// finite, none is missing where another variant has some, names occur once.
    ///
    /// # Errors
    /// Names the part, the metric and the variant.
    pub fn validate(&self) -> Result<()> {
        for part in &self.results {
            check_part(part).map_err(|what| {
                Error::failed(format_args!("{} {} on {}: {what}", part.study, part.part, part.machine))
            })?;
        }
        Ok(())
    }
}

/// Refuses what a later, incompatible version wrote. The format only grows, so that older ones can be read.
fn check_version(text: &str) -> Result<()> {
    // Serde would read a list as the fields of the header, in their order.
    if text.trim_start().starts_with('[') {
        return Err(Error::failed(
            "not a framewright result: a JSON list; expected the JSON object that -o saves",
        ));
    }
    #[derive(Deserialize)]
    struct Header {
        framewright: Option<serde_json::Value>,
    }
    let header: Header = serde_json::from_str(text).map_err(|cause| {
        if cause.is_data() {
            Error::failed("not a framewright result: expected the JSON object that -o saves")
        } else {
            Error::failed(format_args!("not JSON: {cause}"))
        }
    })?;
    let Some(version) = header.framewright else {
        return Err(Error::failed("not a framewright result: it has no field `framewright`"));
    };
    let Some(theirs) = version.as_str().and_then(release) else {
        return Err(Error::failed(format_args!("field `framewright` is {version}, not a version")));
    };
    let ours = release(env!("CARGO_PKG_VERSION")).unwrap_or_default();
    if theirs > ours {
        return Err(Error::failed(format_args!(
            "written by framewright {}, this is {}; update framewright",
            version.as_str().unwrap_or_default(),
            env!("CARGO_PKG_VERSION")
        )));
    }
    Ok(())
}

/// What must agree between two versions: the major number, and below 1.0 the minor too.
fn release(version: &str) -> Option<(u64, u64)> {
    let mut numbers = version.split(['.', '-', '+']).map(str::parse);
    let (Some(Ok(major)), Some(Ok(minor))) = (numbers.next(), numbers.next()) else { return None };
    Some((major, if major == 0 { minor } else { 0 }))
}

fn check_part(part: &Part) -> core::result::Result<(), String> {
    if part.study.is_empty() || part.part.is_empty() {
        return Err("study and part must have a name".to_owned());
    }
    if let Some(twice) = first_repeated(part.variants.iter().map(String::as_str)) {
        return Err(format!("variant `{twice}` is listed twice"));
    }
    if !part.variants.contains(&part.baseline) {
        return Err(format!("baseline `{}` is not among the variants", part.baseline));
    }
    if let Some(twice) = first_repeated(part.metrics.iter().map(|metric| metric.name.as_str())) {
        return Err(format!("metric `{twice}` occurs twice"));
    }
    let variants: BTreeSet<&String> = part.variants.iter().collect();
    for metric in &part.metrics {
        check_metric(&variants, metric).map_err(|what| format!("metric `{}`: {what}", metric.name))?;
    }
    Ok(())
}

fn check_metric(variants: &BTreeSet<&String>, metric: &Metric) -> core::result::Result<(), String> {
    for (variant, samples) in &metric.samples {
        if !variants.contains(variant) {
            return Err(format!("samples of `{variant}`, which is not among the variants"));
        }
        if samples.is_empty() {
            return Err(format!("no samples of `{variant}`; leave out a variant that has none"));
        }
        if let Some(index) = samples.iter().position(|sample| !sample.is_finite()) {
            return Err(format!("sample {} of `{variant}` is not a finite number", index + 1));
        }
    }
    if metric.samples.is_empty() && metric.published.is_none() {
        return Err("no samples".to_owned());
    }
    let odd = |figure: &Published| {
        !figure.mean.is_finite() || figure.stddev.is_some_and(|figure| !figure.is_finite())
    };
    if metric.published.iter().chain(metric.changed.values()).any(odd) {
        return Err("the published figure is not a finite number".to_owned());
    }
    for (variant, [low, high]) in &metric.interval {
        if metric.of(variant).is_empty() {
            return Err(format!("an interval of `{variant}`, which has no samples"));
        }
        if !(low.is_finite() && high.is_finite() && low <= high) {
            return Err(format!("the interval of `{variant}` does not go from low to high"));
        }
    }
    Ok(())
}

fn first_repeated<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut seen = BTreeSet::new();
    names.into_iter().find(|name| !seen.insert(*name))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::host::Host;
    use crate::result::{Better, Kind};

    fn document() -> Document {
        let mut part = Part::new("pcp-reset", "replay", Kind::Measured, "host").seed(7).baseline("vanilla");
        part.metric("ns_per_operation", "ns", Better::Lower)
            .samples("vanilla", [3.2, 0.1 + 0.2])
            .sample("reset", 2.5e-17)
            .interval("reset", 0.0, 1.0);
        Document::new("study pcp-reset", Host::default()).with(part)
    }

    fn refusal(json: &str) -> String {
        Document::parse(json).expect_err("it must be refused").to_string()
    }

    /// The document as JSON with one text replaced, which must occur.
    fn changed(from: &str, to: &str) -> String {
        let json = document().to_json().expect("it is valid");
        assert!(json.contains(from), "{json}");
        json.replace(from, to)
    }

    #[test]
    fn every_bit_of_every_sample_survives() {
        let directory = std::env::temp_dir().join(format!("framewright-result-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("the temporary directory can be written");
        let path = directory.join("result.json");
        document().write(&path).expect("written");
        document().write(&path).expect("written again, over itself");
        assert_eq!(Document::read(&path).expect("read"), document());
        let left: Vec<_> = fs::read_dir(&directory).expect("listed").collect();
        assert_eq!(left.len(), 1, "no temporary file stays: {left:?}");
        fs::remove_dir_all(&directory).expect("removed");
    }

    #[test]
    fn the_design_documents_example_is_a_document() {
        let json = r#"{"framewright": "0.1.0", "command": "study pcp-reset",
             "host": {"cpu": "some", "cpus": 2, "kernel": "6.1"},
             "results": [
              {"study": "pcp-reset", "part": "replay", "kind": "measured", "machine": "host", "seed": 1,
               "baseline": "vanilla", "variants": ["vanilla", "reset"],
               "metrics": [
                {"name": "zone_lock_acquisitions_per_page", "unit": "1", "better": "lower",
                 "samples": {"vanilla": [0.0], "reset": [0.0]},
                 "interval": {"vanilla": [0.0, 0.0]}, "of_a_later_version": {}}]}]}"#;
        let document = Document::parse(json).expect("it is valid");
        assert_eq!(document.results[0].metrics[0].of("reset"), [0.0]);
    }

    #[test]
    fn what_is_no_result_is_refused_in_one_line() {
        assert_eq!(refusal(" \n"), "empty file; expected a JSON file saved with -o");
        assert_eq!(refusal("{"), "not JSON: EOF while parsing an object at line 1 column 1");
        for list in ["[]", r#"[{"score": {}, "rows": []}, {"score": {}, "rows": []}]"#] {
            let message = "not a framewright result: a JSON list; expected the JSON object that -o saves";
            assert_eq!(refusal(list), message);
        }
        assert_eq!(refusal("3"), "not a framewright result: expected the JSON object that -o saves");
        assert_eq!(refusal("{}"), "not a framewright result: it has no field `framewright`");
        assert_eq!(refusal(r#"{"framewright": 1}"#), "field `framewright` is 1, not a version");
        assert_eq!(
            refusal(r#"{"framewright": "0.1.0", "results": []}"#),
            "not a framewright result: missing field `command` at line 1 column 39"
        );
    }

    #[test]
    fn later_versions_are_refused_and_earlier_ones_read() {
        let refused = refusal(&changed(env!("CARGO_PKG_VERSION"), "99.0.0"));
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(refused, format!("written by framewright 99.0.0, this is {ours}; update framewright"));
        assert!(Document::parse(&changed(ours, "0.0.9")).is_ok());
        assert_eq!(release("1.9.3"), release("1.2.0"));
        assert_ne!(release("0.9.3"), release("0.2.0"));
    }

    #[test]
    fn contradictions_name_the_part_the_metric_and_the_variant() {
        type Change<'a> = (&'a dyn Fn(&mut Part), &'a str);
        let (reset, metric) = (|| "reset".to_owned(), "metric `ns_per_operation`");
        let cases: [Change<'_>; 8] = [
            (&|part| part.baseline = "none".to_owned(), "baseline `none` is not among the variants"),
            (&|part| part.variants.push("vanilla".to_owned()), "variant `vanilla` is listed twice"),
            (&|part| part.metrics.push(part.metrics[0].clone()), &format!("{metric} occurs twice")),
            (
                &|part| drop(part.metrics[0].samples.insert("rest".to_owned(), vec![1.0])),
                &format!("{metric}: samples of `rest`, which is not among the variants"),
            ),
            (
                &|part| drop(part.metrics[0].samples.insert(reset(), Vec::new())),
                &format!("{metric}: no samples of `reset`; leave out a variant that has none"),
            ),
            (
                &|part| drop(part.metrics[0].samples.remove("reset")),
                &format!("{metric}: an interval of `reset`, which has no samples"),
            ),
            (
                &|part| part.metrics[0].interval.extend([(reset(), [1.0, 0.0])]),
                &format!("{metric}: the interval of `reset` does not go from low to high"),
            ),
            (&|part| part.metrics[0].samples.clear(), &format!("{metric}: no samples")),
        ];
        for (change, expected) in cases {
            let mut document = document();
            change(&mut document.results[0]);
            let unchecked = serde_json::to_string(&document).expect("it has a JSON form");
            let message = refusal(&unchecked);
            assert_eq!(message, format!("pcp-reset replay on host: {expected}"));
            assert_eq!(document.to_json().expect_err("nor is it written").to_string(), message);
        }
    }

    #[test]
    fn what_json_cannot_say_is_never_written_and_never_read() {
        let mut document = document();
        document.results[0].metrics[0].samples.insert("reset".to_owned(), vec![1.0, f64::NAN]);
        let error = document.to_json().expect_err("NaN is no sample").to_string();
        assert!(error.ends_with("sample 2 of `reset` is not a finite number"), "{error}");
        assert!(refusal(&changed("2.5e-17", "null")).contains("invalid type: null, expected f64 at line"));
        assert!(refusal(&changed("2.5e-17", "1e999")).contains("number out of range"));
    }

    #[test]
    fn a_damaged_file_is_refused_and_never_a_panic() {
        let json = document().to_json().expect("it is valid");
        for length in 0..json.trim_end().len() {
            assert!(Document::parse(&json[..length]).is_err(), "cut to {length} bytes");
        }
        for at in 0..json.len() {
            for byte in [b'0', b'"', b'{', b',', b' '] {
                let mut damaged = json.clone().into_bytes();
                damaged[at] = byte;
                // Some damage is a document all the same, a digit for a digit; none may be a panic.
                if let Ok(document) = Document::parse(str::from_utf8(&damaged).expect("all ASCII")) {
                    document.validate().expect("what was read is valid");
                }
            }
        }
    }

    #[test]
    fn a_failed_write_names_the_path_and_leaves_nothing() {
        let error = document().write(Path::new("/nonexistent/x.json")).expect_err("no such directory");
        assert_eq!(
            error.to_string(),
            "cannot write /nonexistent/x.json: No such file or directory (os error 2); check the path"
        );
    }
}
