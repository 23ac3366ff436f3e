//! Every option of every command changes something, or is refused. The options are clap's own list, so that a new one
//! without a check fails here.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex, OnceLock};

use clap::CommandFactory as _;
use framewright_lab::cli::Cli;
use framewright_lab::simulate::in_parallel;
use framewright_report::host::Host;
use framewright_report::result::{Better, Document, Kind, Part};

use crate::{EVENT, Scratch, run, short_traces};

/// The checks, a line each.
const TABLE: &str = include_str!("options.txt");

const BOOT: &str = "study parallel-init --part machines --machine haswell-vm";
const BENCH: &str = "bench --workload hot_pair --order 0 --cpus 1 --memory 64 --samples 1";
const FAULTY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/linux-6.1-scattered.tar.gz");
const TRY: &str = "try --root SYSTEM --no-prediction --set vm.swappiness=10";
const REPLAY: &str = "replay TRACE --samples 1 --threads 1";

/// A check that an option acts.
struct Check {
    command: &'static str,
    option: &'static str,
    shows: &'static str,
    lines: &'static str,
}

/// The checks of the table.
fn checks() -> Vec<Check> {
    let check = |line: &'static str| {
        let mut words = line.splitn(4, ": ");
        Some(Check {
            command: words.next()?,
            option: words.next()?,
            shows: words.next()?,
            lines: words.next()?,
        })
    };
    let lines = TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with(['#']));
    lines.filter(|line| !line.starts_with("refused: ")).map(|line| check(line).expect(line)).collect()
}

/// Files that the lines name, and what each line gave: many stand in several checks.
struct Files {
    folder: Scratch,
    ran: Mutex<HashMap<String, Arc<OnceLock<Ran>>>>,
    roots: AtomicUsize,
}

/// A command's output, and the file that it wrote.
struct Ran {
    output: Output,
    out: PathBuf,
}

impl Files {
    fn new(test: &str) -> Self {
        let folder = Scratch::new(&format!("options-{test}"));
        for (name, factor) in [("A", 1.0), ("B", 2.0)] {
            let mut part = Part::new("study", "part", Kind::Measured, "host").baseline("variant");
            for (metric, spread) in [("noisy", 0.3), ("alloc_ns", 0.01)] {
                let samples = (0..9).map(|n| 10.0 * factor + spread * f64::from((n * 7) % 9) * 10.0);
                part.metric(metric, "ns", Better::Lower).samples("variant", samples);
            }
            part.metric("steals", "1", Better::Lower).samples("variant", [3.0; 9]);
            Document::new("test", Host::default())
                .with(part)
                .write(folder.path(name).as_ref())
                .expect("written");
        }
        folder.file("MAP", "0x100000000 +4G usable\n");
        folder.file("SCRIPT", EVENT);
        Self { folder, ran: Mutex::default(), roots: AtomicUsize::new(0) }
    }

    /// The words of a line, with files in place of their names.
    fn words(&self, line: &str, out: &str) -> Vec<String> {
        let line =
            line.replace("TRY", TRY).replace("BOOT", BOOT).replace("BENCH", BENCH).replace("REPLAY", REPLAY);
        let [compile, inside] = short_traces();
        let word = |word: &str| match word {
            "TRACE" => compile.to_owned(),
            "INSIDE" => inside.to_owned(),
            "OUT" => out.to_owned(),
            // A root of its own for each line: two cannot try settings of one.
            "SYSTEM" => {
                let root = self.folder.path(&format!("root-{}", self.roots.fetch_add(1, Ordering::Relaxed)));
                for folder in ["proc/sys/vm", "run"] {
                    fs::create_dir_all(format!("{root}/{folder}")).expect("made");
                }
                fs::write(format!("{root}/proc/sys/vm/swappiness"), "60\n").expect("written");
                root
            }
            "FAULTY" => FAULTY.to_owned(),
            "A" | "B" | "MAP" | "SCRIPT" => self.folder.path(word),
            plain => plain.to_owned(),
        };
        line.split(' ').map(word).collect()
    }

    /// Runs a line, unless it was run before. Each has a file OUT of its own.
    fn run(&self, line: &str) -> Arc<OnceLock<Ran>> {
        let (entry, number) = {
            let mut ran = self.ran.lock().expect("no panic holds it");
            let number = ran.len();
            (Arc::clone(ran.entry(line.to_owned()).or_default()), number)
        };
        entry.get_or_init(|| {
            let out = self.folder.path(&format!("out-{number}"));
            let words = self.words(line, &out);
            let mut output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
            for text in [&mut output.stdout, &mut output.stderr] {
                *text = String::from_utf8_lossy(text).replace(&out, "OUT").into_bytes();
            }
            Ran { output, out: out.into() }
        });
        entry
    }

    /// What was found, without the figures themselves.
    fn found(&self, line: &str) -> Result<String, String> {
        let line = match line.split_once(" -- ") {
            Some((options, command)) => format!("{options} --format json -- {command}"),
            None => format!("{line} --format json"),
        };
        let ran = self.run(&line);
        let output = &ran.wait().output;
        if !output.status.success() {
            return Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr)));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let mut document = Document::parse(&text).expect("a result");
        document.argv.clear();
        document.date = None;
        for part in &mut document.results {
            part.event_log_hash = None;
            part.notes.clear();
            part.conditions.remove("busy");
            let exact = part.kind == Kind::Derived;
            for metric in part.metrics.iter_mut().filter(|_| !exact) {
                metric.interval.clear();
                metric.samples.values_mut().flatten().for_each(|sample| *sample = 0.0);
            }
        }
        Ok(format!("{document:?}"))
    }

    /// Why a check fails, if it does.
    fn problem(&self, check: &Check) -> Option<String> {
        let both = check.lines.split_once(" | ");
        match (check.shows, both) {
            ("text", Some((a, b))) => {
                let [first, second] = [a, b].map(|line| self.run(line));
                let (first, second) = (&first.wait().output, &second.wait().output);
                let same = (first.stdout == second.stdout) && first.status == second.status;
                same.then(|| format!("changes nothing: {first:?}"))
            }
            ("found", Some((a, b))) => match (self.found(a), self.found(b)) {
                (Ok(a), Ok(b)) if a != b => None,
                (Ok(_), Ok(_)) => Some("changes nothing".to_owned()),
                (a, b) => Some(format!("{:?} {:?}", a.err(), b.err())),
            },
            ("writes", None) => {
                let ran = self.run(check.lines);
                let Ran { output, out } = ran.wait();
                let written = fs::metadata(out).is_ok_and(|out| out.len() > 0);
                (!output.status.success() || !written).then(|| format!("writes nothing: {output:?}"))
            }
            _ => Some("is no check".to_owned()),
        }
    }
}

#[test]
fn every_option_of_every_command_acts_or_is_refused() {
    let (command, checks) = (Cli::command(), checks());
    let global = ["format".to_owned()];
    let mut known = BTreeSet::new();
    let mut open: Vec<(String, &clap::Command)> =
        command.get_subcommands().map(|sub| (sub.get_name().to_owned(), sub)).collect();
    while let Some((name, sub)) = open.pop() {
        open.extend(sub.get_subcommands().map(|inner| (format!("{name} {}", inner.get_name()), inner)));
        if sub.has_subcommands() {
            continue;
        }
        let of_command = sub.get_arguments().map(|argument| argument.get_id().to_string());
        for option in of_command.chain(global.clone()) {
            let check = |check: &Check| check.command == name && check.option == option;
            assert!(checks.iter().any(check), "{name} --{option} needs a check that it acts");
            known.insert((name.clone(), option));
        }
    }
    let files = Files::new("act");
    let can_record = crate::can_record();
    let problem = |check: &Check| {
        let named = (check.command.to_owned(), check.option.to_owned());
        assert!(known.contains(&named), "{} has no option {}", named.0, named.1);
        if check.command == "record" && !can_record {
            return None;
        }
        let problem = files.problem(check)?;
        Some(format!("{} {}: {}: {problem}", named.0, named.1, check.lines))
    };
    let problems: Vec<String> = in_parallel(&checks, problem, || ()).into_iter().flatten().collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Every file that an option names is opened before the work: where it cannot be, one line says so.
#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let files = Files::new("nowhere");
    let checks = checks();
    let writing = checks.iter().filter(|check| check.shows == "writes");
    let lines: Vec<&str> = writing.map(|check| check.lines).collect();
    assert!(lines.len() >= 20, "{lines:?}");
    let refused = |line: &&str| {
        let words = files.words(line, "/nonexistent/out");
        let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}: {error}");
        let expected = "framewright: cannot write /nonexistent/out: No such file or directory (os error 2); check the path\n";
        assert_eq!((error.as_ref(), output.stdout.as_slice()), (expected, &b""[..]), "{line}");
    };
    in_parallel(&lines, refused, || ());
}

#[test]
fn what_would_change_nothing_is_refused_and_leaves_nothing() {
    let files = Files::new("refused");
    let lines: Vec<&str> = TABLE.lines().filter_map(|line| line.strip_prefix("refused: ")).collect();
    assert!(lines.len() > 20, "{lines:?}");
    let refused = |line: &&str| {
        let ran = files.run(line);
        let Ran { output, out } = ran.wait();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(!out.exists(), "{line} wrote something");
    };
    in_parallel(&lines, refused, || ());
}
