//! What is done by hand in this repository, as commands. `cargo xtask` lists them.
#![deny(unsafe_code)]

mod readme;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What went wrong, as a line for the terminal.
type Result<T> = core::result::Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask TASK

  bench              measures against the rivals, as the README's table is made; saves target/bench.json
  readme [FILE]      puts the figures of FILE [target/bench.json] and of a run of pcp-reset into README.md
  readme --check     says how old the README's figures are; fails if they are older than 60 days
  soak [CALLS]       random calls against the oracle under the default and under linux_v6_7 [1000000000 each]
  mutants [SHARD]    mutates the allocator, a share such as 7/60 of it; needs cargo-mutants
  fuzz [SECONDS]     each fuzz target for so long [600]; needs nightly and cargo-fuzz
  crashes [SECONDS]  crashes of the page cache at every boundary of a write [1800]
  release            everything that must hold before a release: licences, advisories, semver, packages
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["bench"] => bench(),
        ["readme"] => readme::refresh(&target().join("bench.json")),
        ["readme", "--check"] => readme::check(),
        ["readme", file] if !file.starts_with('-') => readme::refresh(Path::new(file)),
        ["soak"] => soak("1000000000"),
        ["soak", calls] => soak(calls),
        ["mutants"] => mutants(None),
        ["mutants", shard] => mutants(Some(shard)),
        ["fuzz"] => fuzz("600"),
        ["fuzz", seconds] => fuzz(seconds),
        ["crashes"] => crashes("1800"),
        ["crashes", seconds] => crashes(seconds),
        ["release"] => release(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("xtask: {what}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// The build's folder.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a program in the repository's folder, its output where ours goes.
fn run(program: &str, words: &[&str]) -> Result<()> {
    run_with(program, words, &[])
}

fn run_with(program: &str, words: &[&str], variables: &[(&str, &str)]) -> Result<()> {
    eprintln!("+ {program} {}", words.join(" "));
    let status =
        Command::new(program).args(words).envs(variables.iter().copied()).current_dir(root()).status();
    let status = status.map_err(|error| format!("{program}: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{program} {}: {status}", words.join(" "))) }
}

/// Runs a program in the repository's folder; returns what it prints.
fn output(program: &str, words: &[&str]) -> Result<String> {
    eprintln!("+ {program} {}", words.join(" "));
    let output = Command::new(program).args(words).current_dir(root()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "{program}: {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{program}: {error}"))
}

/// Whether cargo has a command.
fn has(command: &str) -> bool {
    Command::new("cargo").args([command, "--version"]).output().is_ok_and(|output| output.status.success())
}

fn bench() -> Result<()> {
    let file = target().join("bench.json");
    let mut words = vec!["run", "--release", "--features", "rivals", "--"];
    words.extend(
        readme::BENCH.split(' ').chain(["-o", file.to_str().ok_or("the build's folder is no text")?]),
    );
    run("cargo", &words)
}

fn soak(calls: &str) -> Result<()> {
    for preset in ["framewright", "linux_v6_7"] {
        let words =
            ["run", "--release", "--package", "framewright-check", "--example", "soak", "--", preset, calls];
        run("cargo", &words)?;
    }
    Ok(())
}

fn mutants(shard: Option<&str>) -> Result<()> {
    if !has("mutants") {
        return Err("cargo-mutants is missing: cargo install --locked cargo-mutants".into());
    }
    let mut words = vec!["mutants", "--workspace", "--file", "crates/core/src/**"];
    words.extend(["--test-package", "framewright", "--test-package", "framewright-check"]);
    words.extend(["--baseline", "skip", "--timeout", "300"]);
    if let Some(shard) = shard {
        words.extend(["--shard", shard, "--sharding", "round-robin"]);
    }
    run("cargo", &words)
}

fn fuzz(seconds: &str) -> Result<()> {
    if !has("fuzz") {
        return Err("cargo-fuzz is missing: cargo install --locked cargo-fuzz".into());
    }
    run("cargo", &["run", "--quiet", "--package", "framewright-fuzz", "--", "fuzz/corpus"])?;
    let time = format!("-max_total_time={seconds}");
    for name in ["trace", "import", "documents", "maps", "allocator"] {
        let words = ["+nightly", "fuzz", "run", name, "--", &time, "-timeout=60", "-rss_limit_mb=4096"];
        // The C of a dependency would get gcc's instrumentation, which raises false alarms in LLVM's runtime.
        run_with("cargo", &words, &[("CFLAGS", "-fno-sanitize=address")])?;
    }
    Ok(())
}

fn crashes(seconds: &str) -> Result<()> {
    let words = ["test", "--package", "framewright-pagecache", "--test", "cache", "--", "crashes"];
    run_with("cargo", &words, &[("FRAMEWRIGHT_CRASH_SECONDS", seconds)])
}

/// Crates that are published, in the order in which each finds those before it.
const PUBLISHED: [&str; 7] = [
    "framewright",
    "framewright-pagecache",
    "framewright-host",
    "framewright-workload",
    "framewright-rivals",
    "framewright-sim",
    "framewright-lab",
];

fn release() -> Result<()> {
    readme::check()?;
    for (command, words) in [
        ("deny", &["deny", "check"][..]),
        ("audit", &["audit"]),
        ("semver-checks", &["semver-checks", "--workspace"]),
    ] {
        if has(command) {
            run("cargo", words)?;
        } else {
            eprintln!("skipped: cargo {command} is missing (cargo install --locked cargo-{command})");
        }
    }
    // A crate finds those before it in the package of this call, not in the registry.
    let mut words = vec!["package", "--locked", "--no-verify"];
    words.extend(PUBLISHED.iter().flat_map(|name| ["--package", name]));
    run("cargo", &words)?;
    let changes =
        fs::read_to_string(root().join("CHANGELOG.md")).map_err(|error| format!("CHANGELOG.md: {error}"))?;
    if !changes.contains("## [Unreleased]") {
        return Err("CHANGELOG.md has no section `## [Unreleased]`; add one".into());
    }
    run("cargo", &["test", "--package", "framewright-check", "--test", "tidy"])
}
