//! Which test notices which mutant: each test is run once to see which mutants it reaches and how long it takes, then
//! each mutant under the tests that reach it until one fails.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Result;

/// A test by its program and name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Test {
    program: PathBuf,
    pub(crate) name: String,
    /// Seconds without a mutant.
    pub(crate) seconds: f64,
    pub(crate) reaches: BTreeSet<u32>,
}

/// What became of a mutant.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fate {
    /// A test failed.
    Caught { by: String },
    /// A test did not end.
    Endless { by: String },
    /// All tests that reach it passed.
    Survived,
    /// No test reaches it.
    Unreached,
}

impl Fate {
    pub(crate) const fn is_caught(&self) -> bool {
        matches!(self, Self::Caught { .. } | Self::Endless { .. })
    }
}

/// How a run of one test ended.
enum End {
    Passed,
    Failed,
    Endless,
}

/// [`survey`], or what it found the last time if the programs are the same.
pub(crate) fn survey_once(
    programs: &[PathBuf],
    scratch: &Path,
    longest: f64,
    jobs: usize,
) -> Result<(Vec<Test>, Vec<String>)> {
    let of = |program: &PathBuf| Some((program.clone(), fs::metadata(program).ok()?.modified().ok()?));
    let key = format!("{:?} {longest}", programs.iter().map(of).collect::<Vec<_>>());
    let path = scratch.join("survey.json");
    let known = fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    if let Some((_, found)) = known.filter(|(was, _): &(String, (Vec<Test>, Vec<String>))| *was == key) {
        return Ok(found);
    }
    let found = survey(programs, scratch, longest, jobs)?;
    let text = serde_json::to_string(&(key, &found)).expect("keys are strings");
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(found)
}

/// All tests of the programs with what they reach, without those that take longer than `longest` seconds. Those are
/// returned by name.
fn survey(
    programs: &[PathBuf],
    scratch: &Path,
    longest: f64,
    jobs: usize,
) -> Result<(Vec<Test>, Vec<String>)> {
    let mut names = Vec::new();
    for program in programs {
        let listed = |more: &[&str]| -> Result<BTreeSet<String>> {
            let output = Command::new(program).args(["--list", "--format", "terse"]).args(more).output();
            let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
        };
        let ignored = listed(&["--ignored"])?;
        names.extend(
            listed(&[])?.into_iter().filter(|name| !ignored.contains(name)).map(|name| (program, name)),
        );
    }
    let next = Mutex::new(names.iter());
    let tests = Mutex::new((Vec::new(), Vec::new()));
    let failed = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (next, tests, failed) = (&next, &tests, &failed);
            scope.spawn(move || {
                let reached = scratch.join(format!("reached-{job}"));
                loop {
                    let Some((program, name)) = next.lock().expect("no panic").next() else { return };
                    let _ = fs::remove_file(&reached);
                    let limit = Duration::from_secs_f64(longest.max(1.0) * 20.0);
                    let begin = Instant::now();
                    let words = [
                        ("FRAMEWRIGHT_MUTANT", "reach"),
                        ("FRAMEWRIGHT_REACHED", &reached.to_string_lossy()),
                    ];
                    let end = run(program, name, &words, longest, limit);
                    let seconds = begin.elapsed().as_secs_f64();
                    let text = fs::read_to_string(&reached).unwrap_or_default();
                    let reaches = text.lines().filter_map(|line| line.parse().ok()).collect();
                    match end {
                        End::Passed => {
                            let test =
                                Test { program: (*program).clone(), name: name.clone(), seconds, reaches };
                            tests.lock().expect("no panic").0.push(test);
                        }
                        End::Endless => tests.lock().expect("no panic").1.push(name.clone()),
                        End::Failed => failed.lock().expect("no panic").push(name.clone()),
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("no panic");
    if !failed.is_empty() {
        return Err(format!("without a mutant these tests fail: {}", failed.join(", ")));
    }
    let (mut tests, long) = tests.into_inner().expect("no panic");
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then_with(|| a.name.cmp(&b.name)));
    Ok((tests, long))
}

/// How often each test has been run with a mutant, and how often it has noticed.
#[derive(Debug, Default)]
pub(crate) struct Record {
    counts: Vec<(f64, f64)>,
}

/// Runs the tests that reach a mutant until one fails: first those that promise most for their time.
pub(crate) fn judge(id: u32, tests: &[Test], record: &Mutex<Record>) -> Fate {
    let mut order: Vec<usize> = (0..tests.len()).filter(|&n| tests[n].reaches.contains(&id)).collect();
    if order.is_empty() {
        return Fate::Unreached;
    }
    {
        let mut record = record.lock().expect("no panic");
        record.counts.resize(tests.len(), (1.0, 2.0));
        let worth = |n: usize| record.counts[n].0 / record.counts[n].1 / (tests[n].seconds + 0.02);
        order.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
    }
    for n in order {
        let test = &tests[n];
        let cpu = (10.0 * test.seconds).max(2.0);
        let end = run(
            &test.program,
            &test.name,
            &[("FRAMEWRIGHT_MUTANT", &id.to_string())],
            cpu,
            Duration::from_secs(60),
        );
        let mut record = record.lock().expect("no panic");
        record.counts[n].1 += 1.0;
        if !matches!(end, End::Passed) {
            record.counts[n].0 += 1.0;
        }
        match end {
            End::Passed => {}
            End::Failed => return Fate::Caught { by: test.name.clone() },
            End::Endless => return Fate::Endless { by: test.name.clone() },
        }
    }
    Fate::Survived
}

/// Runs one test. It ends at the latest when it has had `cpu` seconds of the processor (a busy machine does not count),
/// or `wall` has passed.
fn run(program: &Path, name: &str, variables: &[(&str, &str)], cpu: f64, wall: Duration) -> End {
    let limits = format!("ulimit -t {} -v 8388608; exec \"$0\" \"$@\"", cpu.ceil());
    let child = Command::new("sh")
        .args(["-c", &limits])
        .arg(program)
        .args(["--exact", name, "--test-threads=1", "--quiet"])
        .envs(variables.iter().copied())
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return End::Failed };
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    // What a test prints stays below a pipe's size but for a panic's text, and a panic is the end.
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() > wall => {
                let _ = child.kill();
                let _ = child.wait();
                return End::Endless;
            }
            _ => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let mut text = Vec::new();
    if let Some(mut out) = child.stdout.take() {
        let _ = out.read_to_end(&mut text);
    }
    use std::os::unix::process::ExitStatusExt;
    // SIGXCPU (24) and SIGKILL (9): the limit of `ulimit -t`.
    match (status.success(), status.signal()) {
        (true, _) => End::Passed,
        (false, Some(24 | 9)) => End::Endless,
        _ => End::Failed,
    }
}
