//! Which test notices which mutant: each test is run once to see which mutants it reaches and how long it takes, then
//! each mutant under the tests that reach it until one fails.
//!
//! Tests run in groups, each group in one process, which ends at the first failure. The first group takes some
//! milliseconds, each further one three times as long as the one before: most mutants never meet a slow test.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::tree::{read_json, write_json};
use crate::{Result, on_threads};

/// A test by its program and name.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Test {
    program: PathBuf,
    pub(crate) name: String,
    /// Seconds of the processor without a mutant.
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
    /// The tests that reach it passed.
    Survived,
    /// No test reaches it.
    Unreached,
}

impl Fate {
    pub(crate) const fn is_caught(&self) -> bool {
        matches!(self, Self::Caught { .. } | Self::Endless { .. })
    }
}

/// How a process ended.
enum End {
    Passed,
    Failed,
    Endless,
}

/// Seconds of the processor that the first group of tests takes.
const FIRST_GROUP: f64 = 0.03;
/// How much longer each further group is.
const GROWTH: f64 = 3.0;
/// A test with a mutant is endless when it has taken so many times as long as without, and [`SLACK`] seconds.
const ENDLESS: f64 = 5.0;
const SLACK: f64 = 0.15;
/// Seconds until a process is ended that uses no processor: threads that wait for each other.
const BLOCKED: u64 = 60;

/// What a survey found: the tests, and the names of those that take too long.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct Survey {
    pub(crate) tests: Vec<Test>,
    pub(crate) long: Vec<String>,
}

/// What is known of one program, as long as it is the same.
#[derive(Debug, Deserialize, Serialize)]
struct Known {
    key: String,
    survey: Survey,
}

/// All tests of the programs with what they reach, without those that take longer than `longest` seconds. What was
/// found the last time holds for a program that is the same.
pub(crate) fn survey(programs: &[PathBuf], scratch: &Path, longest: f64, jobs: usize) -> Result<Survey> {
    let mut all = Survey::default();
    for program in programs {
        let stem = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = scratch.join(format!("survey-{stem}.json"));
        let built = fs::metadata(program).and_then(|data| data.modified());
        let key = format!("{built:?} {longest}");
        let survey = match read_json::<Known>(&path) {
            Some(known) if known.key == key => known.survey,
            _ => {
                let survey = survey_program(program, scratch, longest, jobs)?;
                let known = Known { key, survey };
                write_json(&path, &known)?;
                known.survey
            }
        };
        all.tests.extend(survey.tests);
        all.long.extend(survey.long);
    }
    all.tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then_with(|| a.name.cmp(&b.name)));
    Ok(all)
}

/// The names of a program's tests, without those that are run on request only.
fn names(program: &Path) -> Result<BTreeSet<String>> {
    let listed = |more: &[&str]| -> Result<BTreeSet<String>> {
        let output = Command::new(program).args(["--list", "--format", "terse"]).args(more).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
    };
    let ignored = listed(&["--ignored"])?;
    Ok(listed(&[])?.into_iter().filter(|name| !ignored.contains(name)).collect())
}

fn survey_program(program: &Path, scratch: &Path, longest: f64, jobs: usize) -> Result<Survey> {
    let names = names(program)?;
    let (found, failed) = (Mutex::new(Survey::default()), Mutex::new(Vec::new()));
    on_threads(jobs, names.iter(), |job, name| {
        let reached = scratch.join(format!("reached-{job}"));
        let _ = fs::remove_file(&reached);
        let words = [("FRAMEWRIGHT_MUTANT", "reach"), ("FRAMEWRIGHT_REACHED", &*reached.to_string_lossy())];
        let process = Process {
            program,
            names: &[name],
            variables: &words,
            limit: 2.0 * longest + SLACK,
            output: &scratch.join(format!("output-{job}")),
        };
        let end = process.run();
        let text = fs::read_to_string(&reached).unwrap_or_default();
        let mut lines = text.lines();
        let ms: u64 = lines.next().and_then(|line| line.parse().ok()).unwrap_or_default();
        let seconds = ms as f64 / 1000.0;
        match end {
            End::Passed if seconds <= longest => {
                let reaches = lines.filter_map(|line| line.parse().ok()).collect();
                let program = program.to_owned();
                let test = Test { program, name: name.clone(), seconds, reaches };
                found.lock().expect("no panic").tests.push(test);
            }
            End::Passed | End::Endless => {
                found.lock().expect("no panic").long.push(name.clone());
            }
            End::Failed => failed.lock().expect("no panic").push(name.clone()),
        }
    });
    let failed = failed.into_inner().expect("no panic");
    if !failed.is_empty() {
        return Err(format!("without a mutant these tests fail: {}", failed.join(", ")));
    }
    Ok(found.into_inner().expect("no panic"))
}

/// How often each test has been run with a mutant, and how often it has noticed.
#[derive(Debug, Default)]
pub(crate) struct Record {
    counts: Vec<(f64, f64)>,
}

/// Runs the tests that reach a mutant until one fails, or `most` seconds of the processor have been spent: first those
/// that promise most for their time.
pub(crate) fn judge(id: u32, tests: &[Test], most: f64, record: &Mutex<Record>, output: &Path) -> Fate {
    let mut order: Vec<usize> = (0..tests.len()).filter(|&n| tests[n].reaches.contains(&id)).collect();
    if order.is_empty() {
        return Fate::Unreached;
    }
    {
        let mut record = record.lock().expect("no panic");
        record.counts.resize(tests.len(), (1.0, 2.0));
        let worth = |n: usize| record.counts[n].0 / record.counts[n].1 / (tests[n].seconds + 0.004);
        order.sort_by(|&a, &b| worth(b).total_cmp(&worth(a)));
    }
    let (mut budget, mut spent) = (FIRST_GROUP, 0.0);
    while !order.is_empty() && spent < most {
        let mut seconds = 0.0;
        let mut fits = |&n: &usize| {
            seconds += tests[n].seconds;
            seconds <= budget
        };
        let len = order.iter().position(|n| !fits(n)).unwrap_or(order.len()).max(1);
        let group: Vec<usize> = order.drain(..len).collect();
        spent += group.iter().map(|&n| tests[n].seconds).sum::<f64>();
        if let Some(fate) = judge_by(id, tests, &group, record, output) {
            return fate;
        }
        budget *= GROWTH;
    }
    Fate::Survived
}

/// Runs a group of tests, those of a program in one process.
fn judge_by(id: u32, tests: &[Test], group: &[usize], record: &Mutex<Record>, output: &Path) -> Option<Fate> {
    let programs: BTreeSet<&Path> = group.iter().map(|&n| &*tests[n].program).collect();
    for program in programs {
        let of_program: Vec<usize> = group.iter().copied().filter(|&n| tests[n].program == program).collect();
        let seconds: f64 = of_program.iter().map(|&n| tests[n].seconds).sum();
        let names: Vec<&str> = of_program.iter().map(|&n| &*tests[n].name).collect();
        let process = Process {
            program,
            names: &names,
            variables: &[("FRAMEWRIGHT_MUTANT", &id.to_string())],
            limit: ENDLESS * seconds + SLACK,
            output,
        };
        let end = process.run();
        let text = fs::read_to_string(output).unwrap_or_default();
        let last = if matches!(end, End::Passed) { None } else { noticed(&text) };
        let mut record = record.lock().expect("no panic");
        for &n in &of_program {
            let is_last = last.as_deref() == Some(&*tests[n].name);
            // A program runs its tests by name.
            if last.as_deref().is_none_or(|last| *tests[n].name <= *last) {
                record.counts[n].0 += f64::from(u8::from(is_last));
                record.counts[n].1 += 1.0;
            }
        }
        let by = last.unwrap_or_default();
        match end {
            End::Passed => {}
            End::Failed => return Some(Fate::Caught { by }),
            End::Endless => return Some(Fate::Endless { by }),
        }
    }
    None
}

/// The test that failed, or was running at the end, by what the program has written.
fn noticed(text: &str) -> Option<String> {
    let name = |line: &str| {
        let (name, result) = line.strip_prefix("test ")?.split_once(" ...")?;
        Some((name.trim_end_matches(" - should panic").to_owned(), result.trim() != "ok"))
    };
    text.lines().filter_map(name).find(|(_, failed)| *failed).map(|(name, _)| name)
}

/// Some tests of a program.
struct Process<'a, N> {
    program: &'a Path,
    names: &'a [N],
    variables: &'a [(&'a str, &'a str)],
    /// Seconds of the processor that it may take: a busy machine does not count.
    limit: f64,
    /// What it prints goes there.
    output: &'a Path,
}

impl<N: AsRef<str>> Process<'_, N> {
    fn run(&self) -> End {
        let limit = format!("{:.0}", 1000.0 * self.limit);
        // What cannot be run would count as a failure of the test.
        let output = File::create(self.output).expect("what a test prints can be written");
        let mut child = Command::new("sh")
            .args(["-c", "ulimit -v 8388608; exec \"$0\" \"$@\""])
            .arg(self.program)
            .args(["--test-threads=1", "-Zunstable-options", "--fail-fast", "--exact"])
            .args(self.names.iter().map(AsRef::as_ref))
            .envs(self.variables.iter().copied())
            .env("FRAMEWRIGHT_LIMIT_MS", limit)
            .env("RUST_BACKTRACE", "0")
            // Ending at the first failure is an unstable option.
            .env("RUSTC_BOOTSTRAP", "1")
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(Stdio::null())
            .spawn()
            .expect("sh can be started");
        let begin = Instant::now();
        let wall = Duration::from_secs_f64(BLOCKED as f64 + 30.0 * self.limit);
        let mut pause = Duration::from_millis(1);
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
            pause = (pause * 2).min(Duration::from_millis(8));
        };
        use std::os::unix::process::ExitStatusExt;
        /// What `setitimer` sends.
        const SIGPROF: i32 = 27;
        match (status.success(), status.signal()) {
            (true, _) => End::Passed,
            (false, Some(SIGPROF)) => End::Endless,
            _ => End::Failed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_that_failed_or_was_running_noticed() {
        let text = "\nrunning 3 tests\ntest a::b ... ok\ntest a::c - should panic ... FAILED\n\nfailures:\n";
        assert_eq!(noticed(text).as_deref(), Some("a::c"));
        assert_eq!(noticed("running 2 tests\ntest a ... ok\ntest b ... ").as_deref(), Some("b"));
        assert_eq!(noticed("running 1 test\ntest a ... ok\n"), None);
    }
}
