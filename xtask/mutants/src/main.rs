//! Mutation score of the allocator: how many small changes of `core` make a test fail.
//!
//! `cargo mutants --list` says which changes; all of them are woven into one copy of the sources, each behind a switch
//! ([`weave`]), so that the tests are compiled once and not some thousands of times. Each mutant then runs under the
//! tests that reach it, the quickest first, until one fails ([`judge`]). What the compiler evaluates itself (constants)
//! has no switch; those mutants are listed as left out and are for `cargo mutants` itself.
#![deny(unsafe_code)]

mod judge;
mod report;
mod tree;
mod weave;

use core::ops::Range;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::judge::{Fate, Record, Survey};
use crate::report::{Accepted, Report};
use crate::tree::Tree;

/// What went wrong, as a line for the terminal.
type Result<T> = core::result::Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask mutants [--share K/N] [--jobs N] [--longest SECONDS] [--budget SECONDS]
                           [--only TEXT] [--resume] [--record]

  --share K/N        every Nth mutant, from the Kth [0/1: all]
  --jobs N           so many mutants at a time [one on each core]
  --longest SECONDS  leaves out tests that take more of the processor [4]
  --budget SECONDS   tests of one mutant that nothing has noticed yet take together at most so long [8]
  --only TEXT        mutants whose name has this text
  --resume           takes over what earlier runs have caught in functions that are still the same
  --record           writes docs/mutants.md

It fails if a survivor has no reason in xtask/mutants/survivors.toml, or if fewer than 95 % are caught.
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
    span: Span,
}

impl Listed {
    /// Whether the value of a function is replaced whose type only its body says.
    fn returns_some_type(&self) -> bool {
        let types = self.function.iter().filter_map(|function| function.return_type.as_deref());
        self.genre == "FnValue" && types.into_iter().any(|text| text.contains("impl "))
    }

    /// Which mutant it is, and a digest of what it is part of: of its function, or else of its file. `text` is the
    /// file's.
    fn place(&self, text: &str) -> (String, u64) {
        let (first, last) = self
            .function
            .as_ref()
            .map_or((1, usize::MAX), |function| (function.span.start.line, function.span.end.line));
        let around = text.split_inclusive('\n').skip(first - 1).take(last - first + 1);
        let Place { line, column } = self.span.start;
        let name = format!("{}:+{}:{column}: {}", self.file, line - first, report::change(&self.name));
        (name, digest(around))
    }
}

/// 64-bit FNV-1a of a text in pieces.
fn digest<'a>(text: impl IntoIterator<Item = &'a str>) -> u64 {
    let with = |digest: u64, byte| (digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    text.into_iter().flat_map(str::bytes).fold(0xcbf2_9ce4_8422_2325, with)
}

#[derive(Debug, Deserialize)]
struct Span {
    start: Place,
    end: Place,
}

/// Line and column, from 1, in characters.
#[derive(Clone, Copy, Debug, Deserialize)]
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
    /// File, line counted from that of its function, column, change.
    name: String,
    /// Of the function that is mutated.
    digest: u64,
    fate: Fate,
}

/// Seconds of the processor for a mutant that is known to survive.
const KNOWN_BUDGET: f64 = 1.0;

struct Options {
    share: (usize, usize),
    jobs: usize,
    longest: f64,
    budget: f64,
    only: String,
    resume: bool,
    record: bool,
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
    let mut options = Options {
        share: (0, 1),
        jobs,
        longest: 4.0,
        budget: 8.0,
        only: String::new(),
        resume: false,
        record: false,
    };
    let mut words = words.iter();
    while let Some(name) = words.next() {
        let mut value = || words.next();
        match name.as_str() {
            "--share" => {
                let (k, n) = value()?.split_once('/')?;
                options.share = (k.parse().ok()?, n.parse().ok().filter(|&n| n > 0)?);
            }
            "--jobs" => options.jobs = value()?.parse().ok().filter(|&jobs| jobs > 0)?,
            "--longest" => options.longest = value()?.parse().ok()?,
            "--budget" => options.budget = value()?.parse().ok()?,
            "--only" => options.only.clone_from(value()?),
            "--resume" => options.resume = true,
            "--record" => options.record = true,
            _ => return None,
        }
    }
    Some(options)
}

fn list(root: &Path) -> Result<Vec<Listed>> {
    let mut command = Command::new("cargo");
    command.args(["mutants", "--list", "--json", "--workspace"]).current_dir(root);
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
    let commit = report::commit(root);
    let listed = list(root)?;
    eprintln!("{} mutants", listed.len());
    let tree = Tree::grow(root, &target, &listed)?;
    let programs = tree.programs()?;
    eprintln!(
        "{} do not compile, {} are the compiler's to evaluate; running each test once",
        tree.unviable.len(),
        tree.left_out.len()
    );
    let Survey { tests, long } = judge::survey(&programs, &target, options.longest, options.jobs)?;
    let total: f64 = tests.iter().map(|test| test.seconds).sum();
    eprintln!("{} tests, {total:.0} s; {} take too long: {}", tests.len(), long.len(), long.join(", "));

    let mut chosen: Vec<u32> = (0..listed.len() as u32)
        .filter(|&id| id as usize % options.share.1 == options.share.0)
        .filter(|id| !tree.unviable.contains(id) && !tree.left_out.contains(id))
        .filter(|&id| listed[id as usize].name.contains(&options.only))
        .collect();
    // In no order of the source, so that the score of the first thousand is about that of all.
    chosen.sort_by_key(|id| id.wrapping_mul(0x9e37_79b1));
    let accepted = Accepted::read(root)?;
    let known = |id: &u32| accepted.has(&tree, &listed[*id as usize]);
    let known: BTreeSet<u32> = chosen.iter().copied().filter(known).collect();
    let (fates, taken_over) = judge_all(&chosen, &known, &listed, &tests, &tree, &target, options)?;
    let words = std::env::args().skip(1).filter(|word| word != "--record" && word != "--resume");
    let report = Report {
        root,
        commit: &commit,
        tree: &tree,
        listed: &listed,
        fates: &fates,
        taken_over,
        unviable: tree.unviable.len(),
        left_out: tree.left_out.len(),
        tests: tests.len(),
        words: &words.map(|word| format!(" {word}")).collect::<String>(),
    };
    if options.record {
        report.record(&accepted)?;
    }
    report.print(&accepted)
}

/// The fates of the chosen mutants; each is also written to a file as soon as it is known. And how many were known
/// before.
fn judge_all(
    chosen: &[u32],
    known: &BTreeSet<u32>,
    listed: &[Listed],
    tests: &[judge::Test],
    tree: &Tree,
    target: &Path,
    options: &Options,
) -> Result<(BTreeMap<u32, Fate>, usize)> {
    let path = target.join("outcomes.jsonl");
    let place = |id: u32| listed[id as usize].place(tree.text(&listed[id as usize].file));
    let mut fates = BTreeMap::new();
    let text = fs::read_to_string(&path).unwrap_or_default();
    if options.resume {
        let outcomes = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let caught: BTreeMap<(String, u64), Fate> = outcomes
            .filter(|outcome: &Outcome| outcome.fate.is_caught())
            .map(|outcome| ((outcome.name, outcome.digest), outcome.fate))
            .collect();
        let before = |&id: &u32| Some((id, caught.get(&place(id))?.clone()));
        fates.extend(chosen.iter().filter_map(before));
    }
    let taken_over = fates.len();
    let left: Vec<u32> = chosen.iter().copied().filter(|id| !fates.contains_key(id)).collect();
    let file = fs::File::options().create(true).append(true).open(&path);
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    let (file, fates, record) = (Mutex::new(file), Mutex::new(fates), Mutex::new(Record::default()));
    on_threads(options.jobs, left.into_iter(), |job, id| {
        // That nothing notices it is known, and was found out with more time.
        let most = if known.contains(&id) { KNOWN_BUDGET } else { options.budget };
        let fate = judge::judge(id, tests, most, &record, &target.join(format!("output-{job}")));
        let (name, digest) = place(id);
        let outcome = Outcome { name, digest, fate: fate.clone() };
        let line = serde_json::to_string(&outcome).expect("it has no maps");
        // The figures are printed in any case.
        let _ = writeln!(file.lock().expect("no panic"), "{line}");
        let mut fates = fates.lock().expect("no panic");
        fates.insert(id, fate);
        if fates.len() % 100 == 0 {
            let caught = fates.values().filter(|fate: &&Fate| fate.is_caught()).count();
            eprintln!("{} of {}, {caught} caught", fates.len(), chosen.len());
        }
    });
    Ok((fates.into_inner().expect("no panic"), taken_over))
}

/// Does the work on each item: so many threads take the next one in turn. `work` is also told its thread's number.
fn on_threads<T>(jobs: usize, items: impl Iterator<Item = T> + Send, work: impl Fn(usize, T) + Sync) {
    let items = Mutex::new(items);
    let next = || items.lock().expect("no panic").next();
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (next, work) = (&next, &work);
            scope.spawn(move || {
                while let Some(item) = next() {
                    work(job, item);
                }
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(line: usize, function: (usize, usize)) -> Listed {
        let span =
            |line, last| Span { start: Place { line, column: 5 }, end: Place { line: last, column: 6 } };
        Listed {
            name: format!("a.rs:{line}:5: replace + with - in f"),
            file: "a.rs".into(),
            genre: "BinaryOperator".into(),
            replacement: "-".into(),
            span: span(line, line),
            function: Some(Function { return_type: None, span: span(function.0, function.1) }),
        }
    }

    /// A mutant is the same one where its function is, wherever that stands.
    #[test]
    fn a_mutant_is_known_by_its_function() {
        let (text, moved) =
            ("//\nfn f() {\n    1 + 2;\n}\n", "//\n//\n//\nfn f() {\n    1 + 2;\n}\n// end\n");
        let place = listed(3, (2, 4)).place(text);
        assert_eq!(place.0, "a.rs:+1:5: replace + with - in f");
        assert_eq!(listed(5, (4, 6)).place(moved), place);
        assert_ne!(listed(3, (2, 4)).place(&text.replace("2;", "3;")).1, place.1);
    }
}
