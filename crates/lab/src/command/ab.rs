//! `framewright ab`: one command under two revisions of this project, interleaved.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{compare, count};
use crate::compare::{Saved, merge};
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::progress::{Progress, notice};
use crate::result::Document;
use crate::session::{ReportArgs, Session};
use crate::table::Style;

const EXAMPLES: &str = "\
Examples:
  framewright ab main HEAD -- bench --workload hot_pair --order 0
  framewright ab v0.1.0 HEAD --rounds 20 --fail-over 3 -- replay compile.parquet

Builds both revisions in worktrees of their own, below target/ab, then runs the
command behind -- with each in turn. Samples of the same round are compared with
each other. A command without --samples runs with --samples 1. A revision that
was built before is not built again.

Exit status: 0, 1 if something cannot be built or run, 2 for wrong usage, 3 if a
metric got worse by more than --fail-over.";

/// Compare two git revisions: builds both, interleaves runs of a command
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Revision of the baseline: a commit, a branch, a tag
    #[arg(value_name = "REV1")]
    base: String,

    /// Revision that is compared with it
    #[arg(value_name = "REV2")]
    new: String,

    /// Runs of the command with each revision
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count)]
    rounds: u32,

    /// The git repository [default: that of the current folder]
    #[arg(long, value_name = "DIR")]
    repo: Option<PathBuf>,

    /// Features to build with, as cargo takes them
    #[arg(long, value_name = "FEATURES")]
    features: Option<String>,

    /// Fail if the median of a metric is worse by more than this, and not by chance
    #[arg(long, value_name = "PERCENT", value_parser = compare::percent)]
    fail_over: Option<f64>,

    #[command(flatten)]
    report: ReportArgs,

    /// A command of framewright that measures, with its options
    #[arg(value_name = "COMMAND", required = true, last = true)]
    command: Vec<String>,
}

/// Builds two revisions, runs a command with each in turn, and compares what they found.
///
/// # Errors
/// A revision does not exist or cannot be built, a run fails or prints no results, or a metric regressed.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    if args.command.iter().any(|word| word == "--format" || word.starts_with("--format=")) {
        return Err(Error::usage("leave --format out of the command: its results are read as JSON"));
    }
    let reporter = session.begin(&args.report)?;
    let here = args.repo.clone().unwrap_or_else(|| PathBuf::from("."));
    let repository = Repository { root: PathBuf::from(git(&here, &["rev-parse", "--show-toplevel"])?) };
    let stop = Interrupt::watched();
    let mut sides = Vec::new();
    for revision in [&args.base, &args.new] {
        let commit =
            git(&repository.root, &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")])
                .map_err(|_| Error::usage(format_args!("there is no revision `{revision}`")))?;
        sides.push((revision, commit));
    }
    if sides[0].1 == sides[1].1 {
        return Err(Error::usage(format_args!("{} and {} are the same commit", args.base, args.new)));
    }
    let mut programs = Vec::new();
    for (revision, commit) in &sides {
        programs.push(repository.build(revision, commit, args.features.as_deref())?);
        check(&stop)?;
    }
    let mut found: [Option<Document>; 2] = [None, None];
    let progress = Progress::new("ab", 2 * u64::from(args.rounds));
    for round in 0..args.rounds as usize {
        for turn in 0..2 {
            // Whoever goes first changes with every round.
            let side = (round + turn) % 2;
            let document = measure(&programs[side], &args.command)?;
            match &mut found[side] {
                Some(all) => append(all, document),
                none => *none = Some(document),
            }
            progress.step(sides[side].0);
            check(&stop)?;
        }
    }
    drop(progress);
    let saved: Vec<Saved> = found
        .into_iter()
        .zip(&sides)
        .filter_map(|(document, (revision, commit))| {
            let short = &commit[..commit.len().min(12)];
            let label = if **revision == *commit { short.to_owned() } else { (*revision).clone() };
            Some(Saved { label, document: document? })
        })
        .collect();
    let mut merged = merge(&saved)?;
    for part in &mut merged.results {
        part.paired = true;
        part.seed = args.report.seed();
        part.note(format!(
            "{} runs of `{}` with each revision, interleaved.",
            args.rounds,
            args.command.join(" ")
        ));
    }
    let mut document = session.document(format!("ab {} {}", args.base, args.new));
    document.sources = merged.sources;
    document.results = merged.results;
    let shown = reporter.finish(&document, Style::Framewright);
    compare::judge(&document, args.fail_over, args.report.seed(), shown)
}

fn check(stop: &Interrupt) -> Result<()> {
    if stop.is_raised() { Err(Error::failed("interrupted")) } else { Ok(()) }
}

/// Runs git in a folder; what it prints.
fn git(folder: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .map_err(|cause| Error::failed(format_args!("git cannot be run: {cause}")))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let line = error.lines().next().unwrap_or("it does not say why").to_owned();
        return Err(Error::failed(format_args!("git {}: {line}", arguments.first().unwrap_or(&""))));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Where revisions are built.
struct Repository {
    root: PathBuf,
}

/// A checkout of one commit, removed when it is dropped.
struct Worktree<'a> {
    repository: &'a Repository,
    path: PathBuf,
}

impl Drop for Worktree<'_> {
    fn drop(&mut self) {
        let _ = git(&self.repository.root, &["worktree", "remove", "--force", &self.path.to_string_lossy()]);
    }
}

impl Repository {
    /// The program of a commit, built unless it is there.
    fn build(&self, revision: &str, commit: &str, features: Option<&str>) -> Result<PathBuf> {
        let folder = self.root.join("target/ab");
        let features = features.unwrap_or_default();
        let mut name = format!("framewright-{commit}");
        for feature in features.split([',', ' ']).filter(|feature| !feature.is_empty()) {
            name += &format!("+{}", feature.replace('/', "."));
        }
        let program = folder.join(name);
        fs::create_dir_all(&folder).map_err(|cause| Error::io("write", &folder, &cause))?;
        // Another `ab` in this repository builds in the same place: it ends first.
        let path = folder.join("lock");
        let lock = File::create(&path).map_err(|cause| Error::io("write", &path, &cause))?;
        lock.lock().map_err(|cause| Error::io("lock", &path, &cause))?;
        if program.exists() {
            return Ok(program);
        }
        let worktree = Worktree { repository: self, path: folder.join(format!("source-{commit}")) };
        // What an interrupted run has left.
        let _ = git(&self.root, &["worktree", "prune"]);
        let path = worktree.path.to_string_lossy().into_owned();
        git(&self.root, &["worktree", "add", "--quiet", "--force", "--detach", &path, commit])?;
        notice(&format!("framewright: building {revision} ({})", &commit[..commit.len().min(12)]));
        let target = folder.join("target");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--quiet"]).current_dir(&worktree.path).stdin(Stdio::null());
        cargo.env("CARGO_TARGET_DIR", &target).stdout(Stdio::null());
        if !features.is_empty() {
            cargo.args(["--features", features]);
        }
        let status =
            cargo.status().map_err(|cause| Error::failed(format_args!("cargo cannot be run: {cause}")))?;
        if !status.success() {
            return Err(Error::failed(format_args!("{revision} cannot be built: cargo says why above")));
        }
        let built = target.join("release/framewright");
        // Whole or not at all: a copy that was cut short must not pass for the program.
        let part = program.with_extension("part");
        fs::copy(&built, &part).map_err(|cause| Error::io("read", &built, &cause))?;
        fs::rename(&part, &program).map_err(|cause| Error::io("write", &program, &cause))?;
        Ok(program)
    }
}

/// One run; what it found.
fn measure(program: &Path, command: &[String]) -> Result<Document> {
    let mut run = Command::new(program);
    run.args(command).args(["--format", "json"]).stdin(Stdio::null()).stderr(Stdio::piped());
    let takes_samples = matches!(command.first().map(String::as_str), Some("bench" | "replay" | "study"));
    if takes_samples && !command.iter().any(|word| word == "--samples" || word.starts_with("--samples=")) {
        run.args(["--samples", "1"]);
    }
    let output = run.output().map_err(|cause| Error::io("run", program, &cause))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        let line = error.lines().last().unwrap_or("it does not say why").to_owned();
        return Err(Error::failed(format_args!("`{}` failed: {line}", command.join(" "))));
    }
    Document::parse(&String::from_utf8_lossy(&output.stdout))
        .map_err(|cause| Error::failed(format_args!("`{}` printed no results: {cause}", command.join(" "))))
}

/// Adds the samples of another run of the same command.
fn append(all: &mut Document, more: Document) {
    for part in more.results {
        let known = all.results.iter_mut().find(|known| {
            (&known.study, &known.part, known.kind, &known.machine)
                == (&part.study, &part.part, part.kind, &part.machine)
        });
        let Some(known) = known else {
            all.results.push(part);
            continue;
        };
        for metric in part.metrics {
            let Some(found) = known.metrics.iter_mut().find(|found| found.name == metric.name) else {
                known.metrics.push(metric);
                continue;
            };
            for (variant, samples) in metric.samples {
                found.samples.entry(variant).or_default().extend(samples);
            }
            // Of one run; here there are several.
            found.interval.clear();
        }
        for note in part.notes {
            known.note(note);
        }
    }
}
