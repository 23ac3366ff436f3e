//! Every option of every command changes something, or is refused. The options are clap's own list, so that a new one
//! without a check fails here.

use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use clap::CommandFactory as _;
use framewright_lab::cli::Cli;
use framewright_lab::result::Document;

use crate::{Scratch, run, short_traces};

/// How a check sees that an option acts.
enum Shows {
    /// What two command lines print, or whether they fail, differs.
    Text(&'static str, &'static str),
    /// The results of two command lines differ in more than their figures.
    Found(&'static str, &'static str),
    /// The file OUT is written.
    Writes(&'static str),
}
use Shows::{Found, Text, Writes};

const BOOT: &str = "study parallel-init --part machines --machine haswell-vm";
const BENCH: &str = "bench --workload hot_pair --order 0 --cpus 1 --memory 64 --samples 1";
const REPLAY: &str = "replay TRACE --samples 1 --threads 1";
const AB: &str = "ab one two --repo REPO --rounds 1";

/// A check of each option: command, option, and what shows that it acts. BOOT, BENCH and REPLAY stand for the lines above,
/// TRACE, INSIDE, A, B, MAP, SCRIPT and WAITS for files, OUT for a file to write.
const CHECKS: &[(&str, &str, Shows)] = &[
    ("study", "study", Text("study", "study nothing")),
    ("study", "part", Text("study pcp-reset --part structure", "study pcp-reset --part structur")),
    (
        "study",
        "kind",
        Text("study pcp-reset --part structure", "study pcp-reset --part structure --kind measured"),
    ),
    (
        "study",
        "machine",
        Found("study pcp-reset --part structure", "study pcp-reset --part structure --machine westmere"),
    ),
    ("study", "samples", Found("BOOT --samples 1", "BOOT --samples 2")),
    ("study", "quick", Text("study pcp-reset --part structure", "study pcp-reset --part structure --quick")),
    (
        "study",
        "memory",
        Found(
            "study parallel-init --part ready --samples 1 --memory 2",
            "study parallel-init --part ready --samples 1 --memory 4G",
        ),
    ),
    (
        "study",
        "scale",
        Found(
            "study zone-reclaim --part mapped_writer --quick --samples 1 --scale 1",
            "study zone-reclaim --part mapped_writer --quick --samples 1 --scale 2",
        ),
    ),
    (
        "study",
        "details",
        Text("study all --kind derived --html OUT", "study all --kind derived --details --html OUT"),
    ),
    ("study", "trace", Writes("BOOT --trace OUT")),
    (
        "study",
        "style",
        Text("study pcp-reset --part structure", "study pcp-reset --part structure --style mmtests-2011"),
    ),
    ("study", "seed", Found("BOOT --samples 1", "BOOT --samples 1 --seed 2")),
    ("study", "output", Writes("study pcp-reset --part structure -o OUT")),
    ("study", "html", Writes("study pcp-reset --part structure --html OUT")),
    ("study", "plot", Text("study pcp-reset --part structure", "study pcp-reset --part structure --plot")),
    (
        "study",
        "all_statistics",
        Text(
            "BOOT --samples 3 --style mmtests-2019",
            "BOOT --samples 3 --style mmtests-2019 --all-statistics",
        ),
    ),
    ("study", "format", Text("study", "study --format json")),
    ("record", "output", Writes("record -o OUT -- true")),
    ("record", "summary", Writes("record -o /dev/null --summary OUT -- true")),
    (
        "record",
        "duration",
        Text("record -o /dev/null --duration 0.1 -- sleep 5", "record -o /dev/null -- false"),
    ),
    (
        "record",
        "user",
        Text("record -o /dev/null -- true", "record -o /dev/null --user no-such-user -- true"),
    ),
    (
        "record",
        "events",
        Text("record -o /dev/null -- true", "record -o /dev/null --events none/such -- true"),
    ),
    ("record", "all", Writes("record -a -o OUT -- true")),
    (
        "record",
        "pid",
        Text("record -o /dev/null -- true", "record -o /dev/null --pid 4194301 --duration 0.1"),
    ),
    (
        "record",
        "cgroup",
        Text("record -o /dev/null -- true", "record -o /dev/null --cgroup /none --duration 0.1"),
    ),
    ("record", "max_size", Text("record -o /dev/null -- true", "record -o /dev/null --max-size 0 -- true")),
    ("record", "command", Text("record -o /dev/null -- true", "record -o /dev/null -- no-such-command")),
    ("record", "format", Writes("record -o /dev/null --summary OUT --format json -- true")),
    ("import", "file", Text("import SCRIPT -o OUT", "import nothing -o OUT")),
    ("import", "output", Writes("import SCRIPT -o OUT")),
    ("import", "beside", Text("import WAITS", "import WAITS --beside nothing")),
    ("import", "format", Text("import SCRIPT -o OUT", "import SCRIPT -o OUT --format json")),
    ("replay", "trace", Text("REPLAY", "replay nothing")),
    ("replay", "base", Found("REPLAY", "REPLAY --base preset=linux_v6_1")),
    ("replay", "new", Found("REPLAY", "REPLAY --new lock_place=own_line")),
    ("replay", "threads", Found("REPLAY", "replay TRACE --samples 1 --threads 2")),
    ("replay", "memory", Found("REPLAY", "REPLAY --memory 2G")),
    ("replay", "machine", Found("REPLAY", "replay TRACE --samples 1 --machine xeon-gold-5320")),
    (
        "replay",
        "copies",
        Found(
            "replay TRACE --samples 1 --machine xeon-gold-5320",
            "replay TRACE --samples 1 --machine xeon-gold-5320 --copies 2",
        ),
    ),
    ("replay", "samples", Found("REPLAY", "replay TRACE --samples 2 --threads 1")),
    ("replay", "style", Text("REPLAY --format csv", "REPLAY --format csv --style mmtests-2019")),
    ("replay", "seed", Found("REPLAY", "REPLAY --seed 2")),
    ("replay", "output", Writes("REPLAY -o OUT")),
    ("replay", "html", Writes("REPLAY --html OUT")),
    ("replay", "plot", Text("REPLAY --plot", "REPLAY --plot --format csv")),
    ("replay", "all_statistics", Text("REPLAY --all-statistics", "REPLAY --all-statistics --format json")),
    ("replay", "format", Text("REPLAY", "REPLAY --format markdown")),
    (
        "bench",
        "workload",
        Found("BENCH", "bench --workload churn --order 0 --cpus 1 --memory 64 --samples 1"),
    ),
    (
        "bench",
        "order",
        Found("BENCH", "bench --workload hot_pair --order 3 --cpus 1 --memory 64 --samples 1"),
    ),
    ("bench", "cpus", Found("BENCH", "bench --workload hot_pair --order 0 --cpus 2 --memory 64 --samples 1")),
    ("bench", "busy", Found("BENCH", "BENCH --busy 1")),
    ("bench", "rivals", Text("BENCH --format csv", "BENCH --format csv --rivals")),
    ("bench", "compact", Found("BENCH", "BENCH --compact")),
    (
        "bench",
        "samples",
        Found("BENCH", "bench --workload hot_pair --order 0 --cpus 1 --memory 64 --samples 2"),
    ),
    ("bench", "config", Found("BENCH", "BENCH --config preset=linux_v5_4")),
    (
        "bench",
        "memory",
        Found("BENCH", "bench --workload hot_pair --order 0 --cpus 1 --memory 128 --samples 1"),
    ),
    ("bench", "style", Text("BENCH --format csv", "BENCH --format csv --style mmtests-2019")),
    ("bench", "seed", Found("BENCH", "BENCH --seed 2")),
    ("bench", "output", Writes("BENCH -o OUT")),
    ("bench", "html", Writes("BENCH --html OUT")),
    ("bench", "plot", Text("BENCH --plot", "BENCH --plot --format csv")),
    ("bench", "all_statistics", Text("BENCH --all-statistics", "BENCH --all-statistics --format json")),
    ("bench", "format", Text("BENCH", "BENCH --format markdown")),
    ("fidelity", "trace", Text("fidelity INSIDE", "fidelity nothing")),
    (
        "fidelity",
        "preset",
        Text("fidelity INSIDE --format csv", "fidelity INSIDE --format csv --preset linux_v5_4"),
    ),
    ("fidelity", "ops", Writes("fidelity TRACE --ops OUT")),
    ("fidelity", "made_up", Writes("fidelity --made-up --ops OUT")),
    ("fidelity", "answer", Text("fidelity INSIDE", "fidelity INSIDE --answer nothing")),
    ("fidelity", "cpus", Text("fidelity INSIDE", "fidelity INSIDE --cpus 2")),
    ("fidelity", "operations", Text("fidelity INSIDE", "fidelity INSIDE --operations 10")),
    (
        "fidelity",
        "within",
        Text(
            "fidelity INSIDE --preset linux_v5_4 --within 1000000",
            "fidelity INSIDE --preset linux_v5_4 --within 0",
        ),
    ),
    ("fidelity", "style", Text("fidelity INSIDE", "fidelity INSIDE --style mmtests-2019")),
    ("fidelity", "seed", Text("fidelity INSIDE --format json", "fidelity INSIDE --format json --seed 2")),
    ("fidelity", "output", Writes("fidelity INSIDE -o OUT")),
    ("fidelity", "html", Writes("fidelity INSIDE --html OUT")),
    ("fidelity", "plot", Text("fidelity INSIDE", "fidelity INSIDE --plot")),
    (
        "fidelity",
        "all_statistics",
        Text("fidelity INSIDE --format json", "fidelity INSIDE --format json --all-statistics"),
    ),
    ("fidelity", "format", Text("fidelity INSIDE", "fidelity INSIDE --format csv")),
    ("compare", "files", Text("compare A", "compare B")),
    ("compare", "metric", Text("compare A B", "compare A B --metric alloc*")),
    ("compare", "part", Text("compare A", "compare A --part nothing")),
    ("compare", "changed", Text("compare A B", "compare A B --changed")),
    ("compare", "sort", Text("compare A B --format csv", "compare A B --format csv --sort name")),
    ("compare", "fail_over", Text("compare A B", "compare A B --fail-over 1")),
    ("compare", "style", Text("compare A B", "compare A B --style lkp")),
    ("compare", "seed", Text("compare A B --metric noisy", "compare A B --metric noisy --seed 5")),
    ("compare", "output", Writes("compare A B -o OUT")),
    ("compare", "html", Writes("compare A B --html OUT")),
    ("compare", "plot", Text("compare A B", "compare A B --plot")),
    ("compare", "all_statistics", Text("compare A B", "compare A B --all-statistics")),
    ("compare", "format", Text("compare A B", "compare A B --format csv")),
    ("boot", "machine", Found("boot --machine haswell-vm --lazy", "boot --machine westmere --lazy")),
    ("boot", "map", Found("boot --map MAP --lazy", "boot --machine westmere --lazy")),
    ("boot", "root", Text("boot --root /nonexistent --lazy", "boot --machine haswell-vm --lazy")),
    ("boot", "srat", Text("boot --map MAP --lazy", "boot --map MAP --srat MAP --lazy")),
    ("boot", "cpus", Found("boot --map MAP --lazy --cpus 1", "boot --map MAP --lazy --cpus 9")),
    (
        "boot",
        "config",
        Found(
            "boot --machine haswell-vm --lazy",
            "boot --machine haswell-vm --lazy --config preset=linux_v6_1",
        ),
    ),
    (
        "boot",
        "threads",
        Found("boot --machine haswell-vm --threads 1", "boot --machine haswell-vm --threads 2"),
    ),
    ("boot", "lazy", Found("boot --machine haswell-vm", "boot --machine haswell-vm --lazy")),
    (
        "boot",
        "style",
        Text(
            "boot --machine haswell-vm --lazy --format csv",
            "boot --machine haswell-vm --lazy --format csv --style mmtests-2019",
        ),
    ),
    ("boot", "seed", Text("boot --machine haswell-vm --lazy", "boot --machine haswell-vm --lazy --seed 2")),
    ("boot", "output", Writes("boot --machine haswell-vm --lazy -o OUT")),
    ("boot", "html", Writes("boot --machine haswell-vm --lazy --html OUT")),
    (
        "boot",
        "plot",
        Text(
            "boot --machine haswell-vm --lazy --format csv",
            "boot --machine haswell-vm --lazy --format csv --plot",
        ),
    ),
    (
        "boot",
        "all_statistics",
        Text(
            "boot --machine haswell-vm --lazy --format json",
            "boot --machine haswell-vm --lazy --format json --all-statistics",
        ),
    ),
    (
        "boot",
        "format",
        Text(
            "boot --machine haswell-vm --lazy --format csv",
            "boot --machine haswell-vm --lazy --format json",
        ),
    ),
    ("machines", "machine", Text("machines", "machines rome")),
    ("machines", "detect", Text("machines", "machines --detect")),
    ("machines", "output", Writes("machines --detect -o OUT")),
    ("machines", "format", Text("machines rome", "machines rome --format json")),
    ("doctor", "root", Text("doctor", "doctor --root /nonexistent")),
    ("doctor", "save", Writes("doctor --save OUT")),
    ("doctor", "watch", Text("doctor", "doctor --watch")),
    ("doctor", "format", Text("doctor", "doctor --format json")),
    ("trace summary", "trace", Text("trace summary TRACE", "trace summary nothing")),
    (
        "trace summary",
        "config",
        Text(
            "trace summary TRACE --format markdown",
            "trace summary TRACE --format markdown --config batch=7",
        ),
    ),
    (
        "trace summary",
        "top",
        Text("trace summary TRACE --format csv", "trace summary TRACE --format csv --top 1"),
    ),
    ("trace summary", "format", Text("trace summary TRACE", "trace summary TRACE --format json")),
    ("trace export", "trace", Text("trace export TRACE --to folded", "trace export nothing --to folded")),
    ("trace export", "to", Text("trace export TRACE --to folded", "trace export TRACE --to perfetto")),
    (
        "trace export",
        "weight",
        Text("trace export TRACE --to folded", "trace export TRACE --to folded --weight page-seconds"),
    ),
    ("trace export", "output", Writes("trace export TRACE --to perfetto -o OUT")),
    (
        "trace export",
        "format",
        Text("trace export TRACE --to folded", "trace export TRACE --to folded --format json"),
    ),
    ("schema", "what", Text("schema study", "schema machine")),
    ("schema", "format", Text("schema study", "schema study --format json")),
    ("ab", "base", Text("AB -- bench", "ab nothing two --repo REPO --rounds 1 -- bench")),
    ("ab", "new", Text("AB -- bench", "ab one nothing --repo REPO --rounds 1 -- bench")),
    ("ab", "rounds", Found("AB -- bench", "ab one two --repo REPO --rounds 2 -- bench")),
    ("ab", "repo", Text("AB -- bench", "ab one two --repo /nonexistent --rounds 1 -- bench")),
    ("ab", "features", Found("AB -- bench", "AB --features slow -- bench")),
    ("ab", "fail_over", Text("AB -- bench", "ab one two --repo REPO --rounds 6 --fail-over 5 -- bench")),
    ("ab", "style", Text("AB -- bench", "AB --style lkp -- bench")),
    ("ab", "seed", Found("AB -- bench", "AB --seed 2 -- bench")),
    ("ab", "output", Writes("AB -o OUT -- bench")),
    ("ab", "html", Writes("AB --html OUT -- bench")),
    ("ab", "plot", Text("AB -- bench", "AB --plot -- bench")),
    (
        "ab",
        "all_statistics",
        Text("AB --style mmtests-2019 -- bench", "AB --style mmtests-2019 --all-statistics -- bench"),
    ),
    ("ab", "command", Text("AB -- bench", "AB -- nothing")),
    ("ab", "format", Text("AB -- bench", "AB --format csv -- bench")),
    ("completions", "shell", Text("completions bash", "completions zsh")),
    ("completions", "format", Text("completions bash", "completions bash --format json")),
    ("man", "command", Text("man", "man study")),
    ("man", "format", Text("man", "man --format json")),
    ("settings", "name", Text("settings", "settings batch")),
    ("settings", "format", Text("settings", "settings --format json")),
    ("workloads", "name", Text("workloads", "workloads bulk")),
    ("workloads", "format", Text("workloads bulk", "workloads bulk --format json")),
];

/// Command lines that ask for something that would change nothing.
const REFUSED: &[&str] = &[
    "doctor --format toml",
    "doctor --watch",
    "doctor --save OUT --format json",
    "schema study --format json",
    "trace export TRACE --to perfetto --weight pages -o OUT",
    "trace export TRACE --to folded --format json -o OUT",
    "ab one two -- bench --format json",
    "replay TRACE --copies 2",
    "replay TRACE --machine rome --threads 2",
    "replay TRACE --machine haswell-vm --copies 64",
    "machines --format toml",
    "study --quick",
    "study -o OUT",
    "study pcp-reset --part structure --samples 3",
    "study pcp-reset --part structure --quick",
    "study pcp-reset --part structure --memory 4",
    "study pcp-reset --part structure --scale 2",
    "study refill-check --part bad_block --machine rome",
    "study lock-line --part contend --kind measured --machine rome",
    "study pcp-reset --part structure --format json --style lkp",
    "study pcp-reset --part structure --format csv --plot",
    "study pcp-reset --part structure -o OUT --html OUT",
    "BOOT --trace OUT --samples 2",
    "BOOT --trace OUT -o OUT",
    "BOOT --trace OUT --format json",
    "boot --machine haswell-vm --seed 2",
    "boot --machine haswell-vm --cpus 2",
    "boot --machine haswell-vm --lazy --threads 2",
    "bench --workload ready --order 3",
    "bench --workload fragmentation --cpus 2",
    "bench --workload ready --memory 64",
    "bench --cpus 4096",
    "replay TRACE --threads 4096",
    "replay TRACE --new  --samples 1",
    "compare A --format json --seed 2",
    "compare A B --format json --all-statistics",
];

/// Files that the lines name, and what each line gave: many stand in several checks.
struct Files {
    folder: Scratch,
    ran: Mutex<HashMap<String, Arc<OnceLock<Ran>>>>,
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
            let mut part = framewright_lab::result::Part::new(
                "study",
                "part",
                framewright_lab::result::Kind::Measured,
                "host",
            )
            .baseline("variant");
            for (metric, spread) in [("noisy", 0.3), ("alloc_ns", 0.01)] {
                let samples = (0..9).map(|n| 10.0 * factor + spread * f64::from((n * 7) % 9) * 10.0);
                part.metric(metric, "ns", framewright_lab::result::Better::Lower).samples("variant", samples);
            }
            part.metric("steals", "1", framewright_lab::result::Better::Lower).samples("variant", [3.0; 9]);
            Document::new("test", framewright_lab::host::Host::default())
                .with(part)
                .write(folder.path(name).as_ref())
                .expect("written");
        }
        folder.file("MAP", "0x100000000 +4G usable\n");
        let event = "cc1 7 [000] 1.000001: kmem:mm_page_alloc: page=0x1 pfn=0x10 order=0 migratetype=1 gfp_flags=GFP_KERNEL\n";
        folder.file("SCRIPT", event);
        if test == "act" {
            crate::ab::repository(&folder.0.join("REPO"));
        }
        let waits = " contended   total wait     max wait     avg wait         type   caller\n\n \
             4     40.00 us     20.00 us     10.00 us     spinlock   rmqueue_bulk+0x3c\n";
        folder.file("WAITS", waits);
        Self { folder, ran: Mutex::default() }
    }

    /// The words of a line, with files in place of their names.
    fn words(&self, line: &str, out: &str) -> Vec<String> {
        let line = line.replace("BOOT", BOOT).replace("BENCH", BENCH).replace("REPLAY", REPLAY);
        let line = if line.starts_with("AB ") { line.replacen("AB", AB, 1) } else { line };
        let [compile, inside] = short_traces();
        let word = |word: &str| match word {
            "TRACE" => compile.to_owned(),
            "INSIDE" => inside.to_owned(),
            "OUT" => out.to_owned(),
            "A" | "B" | "MAP" | "SCRIPT" | "WAITS" | "REPO" => self.folder.path(word),
            other => other.to_owned(),
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
            Some((before, command)) => format!("{before} --format json -- {command}"),
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
            let exact = part.kind == framewright_lab::result::Kind::Derived;
            for metric in part.metrics.iter_mut().filter(|_| !exact) {
                metric.interval.clear();
                metric.samples.values_mut().flatten().for_each(|sample| *sample = 0.0);
            }
        }
        Ok(format!("{document:?}"))
    }

    /// What is wrong with a check, if anything is.
    fn problem(&self, shows: &Shows) -> Option<String> {
        match shows {
            Text(a, b) => {
                let [first, second] = [a, b].map(|line| self.run(line));
                let (first, second) = (&first.wait().output, &second.wait().output);
                let same = (first.stdout == second.stdout) && first.status == second.status;
                same.then(|| format!("changes nothing: {a} / {b}\n{first:?}"))
            }
            Found(a, b) => match (self.found(a), self.found(b)) {
                (Ok(a), Ok(b)) if a != b => None,
                (Ok(_), Ok(_)) => Some(format!("changes nothing: {a} / {b}")),
                (a, b) => Some(format!("{:?} {:?}", a.err(), b.err())),
            },
            Writes(line) => {
                let ran = self.run(line);
                let Ran { output, out } = ran.wait();
                let written = fs::metadata(out).is_ok_and(|out| out.len() > 0);
                (!output.status.success() || !written).then(|| format!("{line} writes nothing: {output:?}"))
            }
        }
    }
}

/// Does `work` for each number below `count`, on as many threads as there are CPUs.
fn on_all_cpus(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= count {
                        break;
                    }
                    work(n);
                }
            });
        }
    });
}

#[test]
fn every_option_of_every_command_acts_or_is_refused() {
    let command = Cli::command();
    let global = ["format".to_owned()];
    let mut known = BTreeSet::new();
    let mut open: Vec<(String, &clap::Command)> =
        command.get_subcommands().map(|sub| (sub.get_name().to_owned(), sub)).collect();
    while let Some((name, sub)) = open.pop() {
        open.extend(sub.get_subcommands().map(|inner| (format!("{name} {}", inner.get_name()), inner)));
        if sub.has_subcommands() {
            continue;
        }
        let own = sub.get_arguments().map(|argument| argument.get_id().to_string());
        for option in own.chain(global.clone()) {
            let check = CHECKS.iter().any(|(known, id, _)| *known == name && **id == option);
            assert!(check, "{name} --{option} needs a check that it acts");
            known.insert((name.clone(), option));
        }
    }
    let files = Files::new("act");
    let probe = run(&["record", "-o", "/dev/null", "--", "true"]);
    if !probe.status.success() {
        eprintln!("skipped: record, which says {}", String::from_utf8_lossy(&probe.stderr).trim());
    }
    let problems = Mutex::new(Vec::new());
    on_all_cpus(CHECKS.len(), |n| {
        let (name, option, shows) = &CHECKS[n];
        assert!(known.contains(&((*name).to_owned(), (*option).to_owned())), "{name} has no option {option}");
        if *name == "record" && !probe.status.success() {
            return;
        }
        if let Some(problem) = files.problem(shows) {
            problems.lock().expect("no panic holds it").push(format!("{name} {option}: {problem}"));
        }
    });
    let problems = problems.into_inner().expect("no panic held it");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Every file that an option names is opened before the work: where it cannot be, one line says so.
#[test]
fn what_cannot_be_written_is_refused_before_the_work() {
    let files = Files::new("nowhere");
    let lines: Vec<&str> = CHECKS
        .iter()
        .filter_map(|(_, _, shows)| if let Writes(line) = shows { Some(*line) } else { None })
        .collect();
    assert!(lines.len() > 20, "{lines:?}");
    on_all_cpus(lines.len(), |n| {
        let words = files.words(lines[n], "/nonexistent/out");
        let output = run(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{}: {error}", lines[n]);
        let expected = "framewright: cannot write /nonexistent/out: No such file or directory (os error 2); check the path\n";
        assert_eq!((error.as_ref(), output.stdout.as_slice()), (expected, &b""[..]), "{}", lines[n]);
    });
}

#[test]
fn what_would_change_nothing_is_refused_and_leaves_nothing() {
    let files = Files::new("refused");
    on_all_cpus(REFUSED.len(), |n| {
        let line = REFUSED[n];
        let ran = files.run(line);
        let Ran { output, out } = ran.wait();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(output.stdout.is_empty(), "{line}");
        assert!(!out.exists(), "{line} wrote something");
    });
}
