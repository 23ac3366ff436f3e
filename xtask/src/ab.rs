//! Comparison of two git revisions of this project: both are built, and a command runs with each in turn.

use core::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{Result, printed};

/// Form of the arguments.
pub(crate) const USAGE: &str =
    "cargo xtask ab REV1 REV2 [--rounds N] [--features LIST] [--fail-over PERCENT] -- COMMAND…";

/// The arguments: two revisions, options, and the command after `--`.
struct Args<'a> {
    revisions: [&'a str; 2],
    rounds: usize,
    features: &'a str,
    fail_over: Option<&'a str>,
    command: &'a [&'a str],
}

impl<'a> Args<'a> {
    fn parse(words: &'a [&'a str]) -> Option<Self> {
        let split = words.iter().position(|word| *word == "--")?;
        let (options, command) = (&words[..split], &words[split + 1..]);
        let (revisions, options) = options.split_first_chunk::<2>()?;
        let mut args = Self { revisions: *revisions, rounds: 10, features: "", fail_over: None, command };
        let (pairs, rest) = options.as_chunks::<2>();
        for [option, value] in pairs {
            match *option {
                "--rounds" => args.rounds = value.parse().ok().filter(|rounds| *rounds > 0)?,
                "--features" => args.features = value,
                "--fail-over" => args.fail_over = Some(value),
                _ => return None,
            }
        }
        (rest.is_empty() && !command.is_empty() && !command.iter().any(|word| word.starts_with("--format")))
            .then_some(args)
    }
}

/// Builds both revisions in worktrees below `target/ab`, runs the command with each in turn, and has this tree's
/// `compare` show the change. Samples of one round are pairs: they are compared with each other.
pub(crate) fn run(words: &[&str], root: &Path) -> Result<()> {
    let args = Args::parse(words).ok_or_else(|| format!("usage: {USAGE}"))?;
    let programs = build(&args, root)?;
    let found = measure(&programs, &args)?;
    let folder = root.join("target/ab");
    let mut files = Vec::new();
    for (name, document) in args.revisions.iter().zip(found) {
        let file = folder.join(format!("{}.json", name.replace('/', "-")));
        fs::write(&file, document.to_string()).map_err(|cause| format!("{}: {cause}", file.display()))?;
        files.push(file.display().to_string());
    }
    // `compare` takes samples of two files for unrelated ones; here a round made each pair.
    let mut compare = framewright(&["compare", &files[0], &files[1], "--format", "json"]);
    let merged = crate::output(compare[0], &compare[1..])?;
    let mut merged: Value = serde_json::from_str(&merged).map_err(|cause| format!("compare: {cause}"))?;
    for part in merged["results"].as_array_mut().into_iter().flatten() {
        part["paired"] = true.into();
    }
    let file = folder.join("ab.json").display().to_string();
    fs::write(&file, merged.to_string()).map_err(|cause| format!("{file}: {cause}"))?;
    compare = framewright(&["compare", &file]);
    compare.extend(args.fail_over.iter().flat_map(|percent| ["--fail-over", percent]));
    crate::run(compare[0], &compare[1..])
}

/// A command line of this tree's `framewright`.
fn framewright<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let cargo = ["cargo", "run", "--release", "--quiet", "--package", "framewright-lab", "--"];
    [&cargo, words].concat()
}

/// The programs of both revisions, built unless they are there.
fn build(args: &Args<'_>, root: &Path) -> Result<[PathBuf; 2]> {
    let mut commits = Vec::new();
    for revision in args.revisions {
        let commit = git(root, &["rev-parse", "--verify", "--quiet", &format!("{revision}^{{commit}}")]);
        commits.push(commit.map_err(|_| format!("there is no revision `{revision}`"))?);
    }
    let [base, new] = args.revisions;
    if commits[0] == commits[1] {
        return Err(format!("{base} and {new} are the same commit"));
    }
    Ok([program(root, base, &commits[0], args.features)?, program(root, new, &commits[1], args.features)?])
}

/// The program of a commit.
fn program(root: &Path, revision: &str, commit: &str, features: &str) -> Result<PathBuf> {
    let folder = root.join("target/ab");
    let program = folder.join(format!("framewright-{commit}+{}", features.replace('/', ".")));
    let failed = |cause: std::io::Error| format!("{}: {cause}", program.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    // Another `ab` in this repository builds in the same place: it ends first.
    let lock = File::create(folder.join("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    if program.exists() {
        return Ok(program);
    }
    let source = folder.join(format!("source-{commit}"));
    let source = source.to_str().ok_or("the repository's path is not UTF-8")?;
    // An interrupted run may have left a worktree there.
    let _ = git(root, &["worktree", "remove", "--force", source]);
    git(root, &["worktree", "add", "--quiet", "--force", "--detach", source, commit])?;
    eprintln!("building {revision} ({})", &commit[..12]);
    let status = Command::new("cargo")
        .args(["build", "--release", "--quiet", "--features", features])
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .current_dir(source)
        .status();
    git(root, &["worktree", "remove", "--force", source])?;
    if !status.map_err(|cause| format!("cargo: {cause}"))?.success() {
        return Err(format!("{revision} cannot be built"));
    }
    // Whole or not at all: a copy that was cut short must not pass for the program.
    let part = program.with_extension("part");
    fs::copy(folder.join("target/release/framewright"), &part).map_err(failed)?;
    fs::rename(&part, &program).map_err(failed)?;
    Ok(program)
}

/// Results of each program: the samples of all rounds in one document.
fn measure(programs: &[PathBuf; 2], args: &Args<'_>) -> Result<[Value; 2]> {
    let mut found = [Value::Null, Value::Null];
    for round in 0..args.rounds {
        for turn in 0..2 {
            // The first one of a round alternates.
            let side = (round + turn) % 2;
            let document = once(&programs[side], args.command)?;
            if found[side].is_null() { found[side] = document } else { append(&mut found[side], &document) }
        }
    }
    Ok(found)
}

/// Results of one run. Without `--samples` it takes one.
fn once(program: &Path, command: &[&str]) -> Result<Value> {
    let mut run = Command::new(program);
    run.args(command).args(["--format", "json"]).stdin(Stdio::null());
    if !command.iter().any(|word| word.starts_with("--samples")) {
        run.args(["--samples", "1"]);
    }
    let failed = |cause: &dyn Display| format!("`{}` printed no results: {cause}", command.join(" "));
    let printed = printed(&mut run).map_err(|cause| failed(&cause))?;
    serde_json::from_str(&printed).map_err(|cause| failed(&cause))
}

/// Adds the samples of another run of the same command: the same parts and metrics in the same order.
fn append(all: &mut Value, more: &Value) {
    let parts = all["results"].as_array_mut().into_iter().flatten();
    for (part, more) in parts.zip(more["results"].as_array().into_iter().flatten()) {
        let metrics = part["metrics"].as_array_mut().into_iter().flatten();
        for (metric, more) in metrics.zip(more["metrics"].as_array().into_iter().flatten()) {
            // An interval is of one run; here there are several.
            metric.as_object_mut().map(|metric| metric.remove("interval"));
            for (variant, samples) in metric["samples"].as_object_mut().into_iter().flatten() {
                let more = more["samples"][variant].as_array().into_iter().flatten();
                samples.as_array_mut().into_iter().for_each(|samples| samples.extend(more.clone().cloned()));
            }
        }
    }
}

/// Runs git in a folder; returns its output without the line's end.
pub(crate) fn git(folder: &Path, words: &[&str]) -> Result<String> {
    let printed = printed(Command::new("git").args(words).current_dir(folder))?;
    Ok(printed.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with the tags `one` and `two`. Their program prints results, 10 ns and 12 ns, and adds its tag to
    /// the file `log`.
    fn repository(folder: &Path) {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("src")).expect("made");
        let manifest =
            "[package]\nname = \"framewright\"\nversion = \"1.0.0\"\nedition = \"2024\"\n[workspace]\n";
        fs::write(folder.join("Cargo.toml"), manifest).expect("written");
        fs::write(folder.join(".gitignore"), "target\nCargo.lock\nlog\n").expect("written");
        let user = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"];
        git(folder, &["init", "--quiet"]).expect("a repository");
        let log = folder.join("log");
        for (tag, ns) in [("one", 10), ("two", 12)] {
            let json = format!(
                r#"{{"results":[{{"metrics":[{{"name":"ns","samples":{{"v":[{ns}]}},"interval":{{}}}}]}}]}}"#
            );
            let program = format!(
                "fn main() {{\n    let old = std::fs::read_to_string({log:?}).unwrap_or_default();\n    \
                 std::fs::write({log:?}, old + \"{tag} \").unwrap();\n    print!(\"{{}}\", r#\"{json}\"#);\n}}\n"
            );
            fs::write(folder.join("src/main.rs"), program).expect("written");
            git(folder, &["add", "."]).expect("added");
            git(folder, &[&user[..], &["commit", "--quiet", "-m", tag]].concat()).expect("a commit");
            git(folder, &["tag", tag]).expect("a tag");
        }
    }

    #[test]
    fn two_revisions_are_built_once_and_run_in_turns() {
        let folder = std::env::temp_dir().join(format!("framewright-ab-{}", std::process::id()));
        repository(&folder);
        let words = ["one", "two", "--rounds", "3", "--", "bench"];
        let args = Args::parse(&words).expect("right arguments");
        let programs = build(&args, &folder).expect("both are built");
        let written =
            |program: &PathBuf| fs::metadata(program).and_then(|file| file.modified()).expect("built");
        let before = programs.each_ref().map(written);
        assert_eq!(build(&args, &folder).expect("both are there").each_ref().map(written), before);
        let [first, second] = measure(&programs, &args).expect("both run");
        let samples = |document: &Value| document["results"][0]["metrics"][0].to_string();
        assert_eq!(samples(&first), r#"{"name":"ns","samples":{"v":[10,10,10]}}"#);
        assert_eq!(samples(&second), r#"{"name":"ns","samples":{"v":[12,12,12]}}"#);
        assert_eq!(fs::read_to_string(folder.join("log")).expect("it ran"), "one two two one one two ");
        assert_eq!(git(&folder, &["worktree", "list"]).expect("worktrees").lines().count(), 1);
        for (words, refusal) in [
            (["one", "three", "--", "bench"], "there is no revision `three`"),
            (["two", "HEAD", "--", "bench"], "two and HEAD are the same commit"),
            (["one", "two", "--", "--format"], "usage: "),
            (["one", "two", "--rounds", "bench"], "usage: "),
        ] {
            let error = run(&words, &folder).expect_err("wrong arguments");
            assert!(error.starts_with(refusal), "{error}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
