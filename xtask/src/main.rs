//! What is done by hand in this repository, as commands. `cargo xtask` lists them.
#![deny(unsafe_code)]

mod ab;
#[cfg(test)]
mod features;
mod lines;
mod programs;
mod readme;
mod size;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// What went wrong, as a line for the terminal.
type Result<T> = core::result::Result<T, String>;

const USAGE: &str = "\
usage: cargo xtask TASK

  bench              measures against the rivals, as the README's table is made; saves target/bench.json
  ab REV1 REV2 [--rounds N] [--features LIST] [--fail-over PERCENT] -- COMMAND…
                     builds two git revisions and runs a command of framewright with each in turn [10 rounds]
  readme [FILE]      puts the figures of FILE [target/bench.json] into README.md and docs/performance.md
  readme --check     says how old these figures are; fails if they are older than 60 days
  lines              lines of all Rust files by crate: code, comments, blank, tests
  size               code of the allocator in four configurations without an operating system; needs target x86_64-unknown-none
  programs           replays the traces of ten programs and writes docs/validation/programs.md
  soak [CALLS]       random calls against the oracle under the default, with marks and checks, and under linux_v6_7
                     [1000000000 each]
  mutants [OPTION]…  mutation score of the allocator; --share 7/20 for one mutant in twenty. Needs cargo-mutants
  fuzz [SECONDS]     each fuzz target for so long [600]; needs nightly and cargo-fuzz
  crashes [SECONDS]  crashes of the page cache at every boundary of a write [1800]
  sanitize           host and page cache under AddressSanitizer and ThreadSanitizer; needs nightly and its rust-src
  portable           crates that do not need x86-64, checked for 64-bit Arm
  msrv               each published crate with the oldest Rust that its Cargo.toml promises
  advisories         known defects of dependencies and their licences; needs cargo-deny
  publish            packs each published crate and builds it from its package, as `cargo publish` would; uploads nothing
  release            everything that must hold before a release: age of figures, advisories, semver, msrv, publish
";

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["bench"] => bench(),
        ["ab", ref words @ ..] => ab::run(words, &root()),
        ["readme"] => readme::refresh(&target().join("bench.json")),
        ["readme", "--check"] => readme::check(),
        ["readme", file] if !file.starts_with('-') => readme::refresh(Path::new(file)),
        ["programs"] => programs::refresh(&root()),
        ["lines"] => lines::print(),
        ["size"] => size::print(),
        ["soak"] => soak(1_000_000_000),
        ["soak", calls] => number("soak", "CALLS", calls).and_then(soak),
        ["mutants", ref options @ ..] => mutants(options),
        ["fuzz"] => fuzz(600),
        ["fuzz", seconds] => number("fuzz", "SECONDS", seconds).and_then(fuzz),
        ["crashes"] => crashes(1800),
        ["crashes", seconds] => number("crashes", "SECONDS", seconds).and_then(crashes),
        ["sanitize"] => sanitize(),
        ["portable"] => portable(),
        ["msrv"] => msrv(),
        ["advisories"] => advisories(),
        ["publish"] => publish(),
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

/// The number that a task was given. libFuzzer would take a word for 0, and 0 seconds for no limit.
fn number(task: &str, name: &str, word: &str) -> Result<u64> {
    let parsed = word.parse().ok().filter(|number| *number > 0);
    parsed.ok_or_else(|| format!("{task}: {name} is a whole number from 1, not `{word}`"))
}

/// The repository's folder.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

/// The build's folder.
fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// Runs a program in the repository's folder; it inherits standard output and standard error.
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
    printed(Command::new(program).args(words).current_dir(root()))
}

/// Runs a command; returns its output.
fn printed(command: &mut Command) -> Result<String> {
    let program = command.get_program().display().to_string();
    let output = command.output().map_err(|error| format!("{program}: {error}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{program}: {}: {}", output.status, error.trim()));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("{program}: {error}"))
}

/// Runs git in the repository's folder; returns its output without the line's end.
fn git(words: &[&str]) -> Result<String> {
    ab::git(&root(), words)
}

/// Text of a file of the repository.
fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = root().join(path);
    fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))
}

/// Refuses where cargo lacks a command.
fn need(command: &str) -> Result<()> {
    let found = Command::new("cargo").args([command, "--version"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    Err(format!("cargo-{command} is missing: cargo install --locked cargo-{command}"))
}

/// The words of a command, none of which has a blank in it.
fn words(command: &str) -> Vec<&str> {
    command.split(' ').collect()
}

fn bench() -> Result<()> {
    let file = target().join("bench.json");
    let mut command = words("run --release --package framewright-versus --features jemalloc --");
    command.extend(words(readme::BENCH));
    command.extend(["-o", file.to_str().ok_or("the build's folder is no text")?]);
    run("cargo", &command)
}

fn soak(calls: u64) -> Result<()> {
    for preset in ["framewright", "promises", "linux_v6_7"] {
        let soak = format!("run --release --package framewright-check --example soak -- {preset} {calls}");
        run("cargo", &words(&soak))?;
    }
    Ok(())
}

fn mutants(options: &[&str]) -> Result<()> {
    need("mutants")?;
    let mut command = words("run --quiet --release --package framewright-mutants --");
    command.extend(options);
    run("cargo", &command)
}

fn fuzz(seconds: u64) -> Result<()> {
    need("fuzz")?;
    // As released: that build is there when ./test --full comes here.
    run("cargo", &words("run --quiet --release --package framewright-fuzz --all-features -- fuzz/corpus"))?;
    let limits = format!("-max_total_time={seconds} -timeout=60 -rss_limit_mb=4096");
    for name in ["trace", "import", "documents", "commands", "maps", "allocator"] {
        let fuzz = format!("+nightly fuzz run --all-features {name} -- {limits}");
        // The C of a dependency would get gcc's instrumentation, which raises false alarms in LLVM's runtime.
        run_with("cargo", &words(&fuzz), &[("CFLAGS", "-fno-sanitize=address")])?;
    }
    Ok(())
}

/// Tests of host and page cache with the instrumentation of LLVM. What it cannot run:
///
/// - tests that end a thread by a bare `exit` system call: the runtimes keep books of threads;
/// - `mlock`, which both runtimes turn into nothing;
/// - under ThreadSanitizer, mappings at addresses that its shadow memory occupies (arenas shared by processes, 20 TiB),
///   and children of `fork` that go on.
///
/// The standard library is instrumented, too, under ThreadSanitizer: it would miss the order that its locks make.
fn sanitize() -> Result<()> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let both = ["killed_thread", "memory_is_committed_and_guarded_where_wished"];
    let threads = [
        "processes::",
        "a_cache_in_an_arena_whose_frames",
        "a_child_is_refused",
        // Children of these have threads, mappings or faults that its runtime does not survive.
        "a_child_and_its_parents_handles",
        "is_a_taken_hole_in_a_child",
    ];
    let mut failed = Vec::new();
    for (name, build, skipped) in [("address", &[][..], &[][..]), ("thread", &["-Zbuild-std"], &threads)] {
        let flags = format!("-Zsanitizer={name}");
        let folder = target().join(name);
        let folder = folder.to_str().ok_or("the target folder's name is not UTF-8")?;
        let mut words =
            vec!["+nightly", "test", "--no-fail-fast", "--target", TARGET, "--target-dir", folder];
        words.extend(build);
        words.extend(["--package", "framewright-host", "--package", "framewright-pagecache"]);
        words.extend(["--lib", "--test", "all", "--test", "cache", "--"]);
        words.extend(both.iter().chain(skipped).flat_map(|test| ["--skip", test]));
        // Signals end a child of the tests as they do without a sanitizer.
        let variables =
            [("RUSTFLAGS", flags.as_str()), ("ASAN_OPTIONS", "handle_segv=0"), ("CARGO_INCREMENTAL", "0")];
        failed.extend(run_with("cargo", &words, &variables).err());
    }
    if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
}

/// 64-bit Arm, with and without an operating system.
const ARM: [&str; 2] = ["aarch64-unknown-linux-gnu", "aarch64-unknown-none"];

/// Checks for 64-bit Arm the crates that need neither an x86-64 instruction nor a C compiler for Arm (the simulator
/// links the Parquet library's zstd through `trace`); the allocator and its page cache also without an operating
/// system.
fn portable() -> Result<()> {
    let linux = ["framewright", "framewright-pagecache", "framewright-host", "framewright-capi"];
    // With the derives that the build of released tests has left.
    for (target, crates) in ARM.into_iter().zip([&linux[..], &linux[..2]]) {
        let mut words = vec!["check", "--quiet", "--release", "--target", target];
        words.extend(crates.iter().flat_map(|name| ["--package", name]));
        run_with("cargo", &words, &[("RUSTFLAGS", "-Dwarnings")])?;
    }
    Ok(())
}

fn crashes(seconds: u64) -> Result<()> {
    let crashes = words("test --package framewright-pagecache --test cache -- crashes");
    run_with("cargo", &crashes, &[("FRAMEWRIGHT_CRASH_SECONDS", &seconds.to_string())])
}

/// Crates that are published. The command is not: the traces that it carries are larger than a registry takes; it comes
/// as a static binary and as a Debian package (`packaging/make`), or with `cargo install --path`.
const PUBLISHED: [&str; 8] = [
    "framewright",
    "framewright-pagecache",
    "framewright-host",
    "framewright-trace",
    "framewright-report",
    "framewright-workload",
    "framewright-rivals",
    "framewright-sim",
];

/// Arguments that name them.
fn published<'a>() -> impl Iterator<Item = &'a str> {
    PUBLISHED.iter().flat_map(|name| ["--package", name])
}

/// Each published crate and all that it needs, with the compiler that its `rust-version`, or else the workspace's,
/// names.
fn msrv() -> Result<()> {
    let version = |manifest: &Path| -> Result<Option<String>> {
        let text = read(manifest)?;
        let mut words = text.lines().filter_map(|line| line.strip_prefix("rust-version = "));
        Ok(words.next().map(|version| version.trim_matches('"').to_owned()))
    };
    let workspace = version(Path::new("Cargo.toml"))?.ok_or("Cargo.toml has no rust-version")?;
    let installed = output("rustup", &["toolchain", "list"])?;
    for name in PUBLISHED {
        let folder = name.strip_prefix("framewright-").unwrap_or("core");
        let promised = version(&Path::new("crates").join(folder).join("Cargo.toml"))?;
        let version = promised.unwrap_or_else(|| workspace.clone());
        let toolchain = format!("{version}{}", if version.matches('.').count() == 1 { ".0" } else { "" });
        // One that is there stays as it is: its name may be a link to the toolchain that builds this.
        if !installed.lines().any(|line| line.starts_with(&format!("{toolchain}-"))) {
            let install = ["toolchain", "install", "--profile", "minimal", "--no-self-update"];
            run("rustup", &[&install[..], &[toolchain.as_str()]].concat())?;
        }
        run("cargo", &[&format!("+{toolchain}"), "check", "--locked", "--package", name])?;
        println!("{name}: Rust {version}");
    }
    Ok(())
}

/// Known defects, licences, sources and doubled versions of all dependencies, by deny.toml. Without a network,
/// cargo-deny takes the database of its last run; if there was none, known defects are not looked for, and this says
/// so.
fn advisories() -> Result<()> {
    need("deny")?;
    let check = ["deny", "--workspace", "check"];
    if run("cargo", &["deny", "fetch", "db"]).is_ok() || knows_advisories() {
        return run("cargo", &check);
    }
    eprintln!("skipped: known defects of dependencies: no network, and no database of an earlier run");
    run("cargo", &[&check[..], &["bans", "licenses", "sources"]].concat())
}

/// Whether cargo-deny has a database of an earlier run.
fn knows_advisories() -> bool {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    let folders = home.and_then(|home| fs::read_dir(home.join("advisory-dbs")).ok());
    folders.is_some_and(|mut folders| {
        folders.any(|entry| entry.is_ok_and(|entry| entry.path().join("crates").is_dir()))
    })
}

/// What changed in the published interfaces since the last release. Before the first there is nothing to compare with.
fn semver() -> Result<()> {
    let Ok(tag) = git(&["describe", "--tags", "--abbrev=0", "--match", "v*"]) else {
        eprintln!("skipped: no tag v* yet whose interfaces could be compared");
        return Ok(());
    };
    need("semver-checks")?;
    let mut words = vec!["semver-checks", "--baseline-rev", &tag];
    words.extend(published());
    run("cargo", &words)
}

/// Each published crate is packed, and built from its package with those before it in place of the registry's.
fn publish() -> Result<()> {
    let mut words = vec!["publish", "--dry-run", "--locked", "--quiet"];
    words.extend(published());
    run("cargo", &words)
}

fn release() -> Result<()> {
    readme::check()?;
    advisories()?;
    semver()?;
    msrv()?;
    publish()?;
    if !read("CHANGELOG.md")?.contains("## [Unreleased]") {
        return Err("CHANGELOG.md has no section `## [Unreleased]`; add one".into());
    }
    run("cargo", &["test", "--package", "xtask", "--test", "tidy"])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the targets are installed: `./test` says if they are not.
    #[test]
    fn what_is_portable_compiles_for_64_bit_arm() {
        if ARM.iter().all(|target| size::is_installed(target).expect("rustup runs")) {
            assert_eq!(portable(), Ok(()));
        }
    }

    #[test]
    fn a_word_is_no_number_of_seconds() {
        assert_eq!(number("fuzz", "SECONDS", "20"), Ok(20));
        for word in ["--help", "0", "-1", "1.5", "10s"] {
            let refused = number("fuzz", "SECONDS", word).expect_err("no number");
            assert!(refused.contains(word) && !refused.contains('\n'), "{refused}");
        }
    }
}
