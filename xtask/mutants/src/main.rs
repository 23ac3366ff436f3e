//! Mutation score of the allocator: how many small changes of `core` make a test fail.
//!
//! `cargo mutants --list` says which changes; all of them are woven into one copy of the sources, each behind a switch
//! ([`weave`]), so that the tests are compiled once and not some thousands of times. Each mutant then runs under the
//! tests that reach it, the quickest first, until one fails ([`judge`]). What the compiler evaluates itself (constants)
//! has no switch; those mutants are listed as left out and are for `cargo mutants` itself.
#![deny(unsafe_code)]

mod judge;
mod tree;
mod weave;

use core::ops::Range;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::judge::{Fate, Record};
use crate::tree::Tree;

/// What went wrong, as a line for the terminal.
type Result<T> = core::result::Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask mutants [--share K/N] [--jobs N] [--longest SECONDS] [--only TEXT]

  --share K/N        every Nth mutant, from the Kth [0/1: all]
  --jobs N           so many mutants at a time [one on each core]
  --longest SECONDS  leaves out tests that take longer [5]
  --only TEXT        mutants whose name has this text
";

/// A mutant as `cargo mutants --list --json` prints it.
#[derive(Debug, Deserialize)]
struct Listed {
    name: String,
    file: String,
    genre: String,
    replacement: String,
    span: Span,
    function: Option<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    return_type: Option<String>,
}

impl Listed {
    /// Whether the value of a function is replaced whose type only its body says.
    fn returns_some_type(&self) -> bool {
        let types = self.function.iter().filter_map(|function| function.return_type.as_deref());
        self.genre == "FnValue" && types.into_iter().any(|text| text.contains("impl "))
    }
}

#[derive(Debug, Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// Line and column, from 1, in characters.
#[derive(Debug, Deserialize)]
struct Place {
    line: usize,
    column: usize,
}

impl Span {
    /// The same in bytes of a text.
    fn bytes(&self, text: &str) -> Range<usize> {
        self.start.byte(text)..self.end.byte(text)
    }
}

impl Place {
    fn byte(&self, text: &str) -> usize {
        let line: usize = text.split_inclusive('\n').take(self.line - 1).map(str::len).sum();
        let rest = &text[line..];
        line + rest.char_indices().nth(self.column - 1).map_or(rest.len(), |(at, _)| at)
    }
}

/// A line of the file of outcomes.
#[derive(Debug, Deserialize, Serialize)]
struct Outcome {
    name: String,
    fate: Fate,
}

struct Options {
    share: (usize, usize),
    jobs: usize,
    longest: f64,
    only: String,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = options(&words) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match score(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("mutants: {what}");
            ExitCode::FAILURE
        }
    }
}

fn options(words: &[String]) -> Option<Options> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options = Options { share: (0, 1), jobs, longest: 5.0, only: String::new() };
    for pair in words.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--share" => {
                let (k, n) = value.split_once('/')?;
                options.share = (k.parse().ok()?, n.parse().ok().filter(|&n| n > 0)?);
            }
            "--jobs" => options.jobs = value.parse().ok().filter(|&jobs| jobs > 0)?,
            "--longest" => options.longest = value.parse().ok()?,
            "--only" => options.only.clone_from(value),
            _ => return None,
        }
    }
    Some(options)
}

fn list(root: &Path) -> Result<Vec<Listed>> {
    let mut command = Command::new("cargo");
    command
        .args(["mutants", "--list", "--json", "--workspace", "--file", "crates/core/src/**"])
        .current_dir(root);
    let output = command.output().map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo mutants --list: {}; cargo install --locked cargo-mutants", text.trim()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo mutants --list: {error}"))
}

fn score(options: &Options) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).ok_or("no repository around this")?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let target = target.join("mutants");
    fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    let listed = list(root)?;
    eprintln!("{} mutants", listed.len());
    let tree = Tree::grow(root, &target, &listed)?;
    let programs = tree.programs()?;
    eprintln!(
        "{} do not compile, {} are the compiler's to evaluate; running each test once",
        tree.unviable.len(),
        tree.left_out.len()
    );
    let (tests, long) = judge::survey_once(&programs, &target, options.longest, options.jobs)?;
    let total: f64 = tests.iter().map(|test| test.seconds).sum();
    eprintln!("{} tests, {total:.0} s; {} take too long: {}", tests.len(), long.len(), long.join(", "));

    let chosen: Vec<u32> = (0..listed.len() as u32)
        .filter(|&id| id as usize % options.share.1 == options.share.0)
        .filter(|id| !tree.unviable.contains(id) && !tree.left_out.contains(id))
        .filter(|&id| listed[id as usize].name.contains(&options.only))
        .collect();
    let fates = judge_all(&chosen, &listed, &tests, &target.join("outcomes.jsonl"), options.jobs)?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for fate in fates.values() {
        let kind = match fate {
            Fate::Caught { .. } => "caught",
            Fate::Endless { .. } => "caught: the test did not end",
            Fate::Survived => "survived",
            Fate::Unreached => "reached by no test",
        };
        *counts.entry(kind).or_default() += 1;
    }
    for (&id, fate) in fates.iter().filter(|(_, fate)| !fate.is_caught()) {
        let word = if matches!(fate, Fate::Unreached) { "unreached" } else { "survived" };
        println!("{word}: {}", listed[id as usize].name);
    }
    for (kind, count) in &counts {
        println!("{count:5} {kind}");
    }
    let caught = fates.values().filter(|fate| fate.is_caught()).count();
    println!(
        "score: {caught} of {} ({:.1} %)",
        fates.len(),
        100.0 * caught as f64 / fates.len().max(1) as f64
    );
    Ok(())
}

/// The fates of the chosen mutants; each is also written to a file as soon as it is known.
fn judge_all(
    chosen: &[u32],
    listed: &[Listed],
    tests: &[judge::Test],
    path: &Path,
    jobs: usize,
) -> Result<BTreeMap<u32, Fate>> {
    let file = fs::File::options().create(true).append(true).open(path);
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    let (file, fates, record) =
        (Mutex::new(file), Mutex::new(BTreeMap::new()), Mutex::new(Record::default()));
    let next = Mutex::new(chosen.iter());
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                loop {
                    let Some(&id) = next.lock().expect("no panic").next() else { return };
                    let fate = judge::judge(id, tests, &record);
                    let outcome = Outcome { name: listed[id as usize].name.clone(), fate: fate.clone() };
                    let line = serde_json::to_string(&outcome).expect("it has no maps");
                    // The figures are printed in any case.
                    let _ = writeln!(file.lock().expect("no panic"), "{line}");
                    let mut fates = fates.lock().expect("no panic");
                    fates.insert(id, fate);
                    if fates.len() % 100 == 0 {
                        let caught = fates.values().filter(|fate: &&Fate| fate.is_caught()).count();
                        eprintln!("{} of {}, {caught} caught", fates.len(), chosen.len());
                    }
                }
            });
        }
    });
    Ok(fates.into_inner().expect("no panic"))
}
