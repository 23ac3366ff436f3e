//! Text that people write or keep: settings, results, machines, studies. Every input goes to each of their parsers.

use std::process;

use framewright::Plan;
use framewright::units::{NodeId, Pfn, ZoneType};
use framewright::zone::ZoneSpec;
use framewright_lab::configure::Setup;
use framewright_lab::machine::Machine;
use framewright_lab::settings::Settings;
use framewright_lab::study::Plan as Study;
use framewright_report::compare::{self, Saved};
use framewright_report::result::Document;
use framewright_report::table::{self, Format, Options, Style};
use framewright_report::terminal::Terminal;

use crate::check_refusal;

/// Parses `input` as everything it could be, and uses what it is.
///
/// # Panics
/// What was accepted cannot be used, or a refusal is not one line.
pub fn run(input: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(input) else { return false };
    // Descriptions are only read from files.
    let path = std::env::temp_dir().join(format!("framewright-fuzz-{}.toml", process::id()));
    std::fs::write(&path, text).expect("a temporary file can be written");
    let path = path.to_str().expect("its name is text");
    let outcomes = [settings(text), result(text), machine(path), study(path)];
    std::fs::remove_file(path).expect("it was just written");
    outcomes.map(taken).contains(&true)
}

fn taken(outcome: framewright_report::error::Result<()>) -> bool {
    outcome.map_err(|error| check_refusal(&error.to_string())).is_ok()
}

/// As `--base` and `--new` of `framewright replay` do.
fn settings(text: &str) -> framewright_report::error::Result<()> {
    let settings = Settings::from_pairs(text)?;
    assert_eq!(Settings::from_pairs(&settings.to_string())?.to_string(), settings.to_string());
    configure(&Setup::default().with(&settings)?);
    Ok(())
}

/// What the command line accepts, an allocator must accept, or refuse in words.
fn configure(setup: &Setup) {
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 1 << 18 };
    if let Err(error) = Plan::new(&[zone], &[NodeId(0); 2], &setup.config) {
        check_refusal(&error.to_string());
    }
}

/// As `framewright compare` does, in every style and format.
fn result(text: &str) -> framewright_report::error::Result<()> {
    let document = Document::parse(text)?;
    assert_eq!(Document::parse(&document.to_json()?)?, document);
    let saved = |label: &str| Saved { label: label.into(), document: document.clone() };
    // Tables of many samples take long and show nothing new.
    let samples =
        document.results.iter().flat_map(|part| &part.metrics).flat_map(|metric| metric.samples.values());
    if samples.map(Vec::len).sum::<usize>() > 200 {
        return Ok(());
    }
    let both = compare::merge(&[saved("base"), saved("new")])?;
    for document in [&document, &both] {
        for style in [
            Style::Framewright,
            Style::Mmtests2011,
            Style::Mmtests2019,
            Style::Mmtests2024,
            Style::Lkp,
            Style::DeferredInit2020,
        ] {
            let tables = table::tables(document, style, Options { all_statistics: true });
            for format in [Format::Table, Format::Csv, Format::Markdown] {
                let _ = table::render(&tables, format, &Terminal::plain());
            }
        }
        let _ = compare::regressions(document, 5.0);
    }
    Ok(())
}

/// As `framewright machines FILE` does.
fn machine(path: &str) -> framewright_report::error::Result<()> {
    let machine = Machine::find(path)?;
    assert!(machine.cpus() > 0 && machine.memory_gib() > 0, "{machine:?}");
    for (name, parameter) in machine.parameters() {
        let (low, high) = parameter.interval();
        assert!(low <= high, "{name}: {parameter:?}");
    }
    Ok(())
}

/// As `framewright study FILE` does before it runs anything.
fn study(path: &str) -> framewright_report::error::Result<()> {
    let study = Study::find(path)?;
    assert!(study.variants().next().is_some_and(|first| first.name == study.baseline));
    for part in &study.parts {
        for varied in part.combinations() {
            for variant in study.variants() {
                let mut setup = Setup::default();
                study.configure(variant, &varied, |key, value| setup.set(key, value))?;
                configure(&setup);
            }
        }
    }
    Ok(())
}

/// The shipped machines and studies, a result, and settings.
///
/// # Panics
/// A file of the checkout cannot be read.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = vec![RESULT.into(), SETTINGS.into()];
    for folder in ["../machines", "../studies"] {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
        let files = folder.read_dir().expect("the checkout has it");
        let mut paths: Vec<_> = files.map(|file| file.expect("it is listed").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "toml"));
        paths.sort();
        seeds.extend(paths.into_iter().map(|path| std::fs::read(path).expect("it is listed")));
    }
    seeds
}

const SETTINGS: &str = "preset=linux_v5_4,pcp_rule=v6_1,pcp_fraction=8,batch=7,high=42,pcp_orders=zero,pcp_slots=64,\
lock_place=own_line,lock_kind=queued,lock_timing=true,refill_check=off,engine=linux,descriptor_bytes=64,\
pcp_free_part=16,page_cache=movable";

const RESULT: &str = r#"{"framewright": "0.1.0", "command": "study x", "host": {"cpu": "x", "cpus": 2, "kernel": "6.1"},
 "results": [{"study": "x", "part": "replay", "kind": "measured", "machine": "host", "seed": 1,
  "baseline": "vanilla", "variants": ["vanilla", "reset"], "notes": ["read it"], "metrics": [
   {"name": "ns_per_operation[cores=2]", "unit": "ns", "better": "lower",
    "samples": {"vanilla": [3.25, 3.5, 3e0], "reset": [2.5, 2.75, 2.625]}, "interval": {"vanilla": [3.0, 4.0]}},
   {"name": "files_per_second", "unit": "1/s", "better": "higher", "samples": {"vanilla": [0], "reset": [1e300, 7]}}]}]}"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_written_here_are_taken() {
        assert!(run(SETTINGS.as_bytes()) && run(RESULT.as_bytes()));
    }
}
