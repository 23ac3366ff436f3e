//! The real binary, as a user runs it: exit codes, what goes to which stream, and bad input.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use framewright_report::host::Host;
use framewright_report::result::{Better, Document, Kind, Part};
use framewright_trace::trace::Trace;

use crate::{EVENT, Scratch, TRACE, framewright, run, short_traces, text};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The one line on standard error, with nothing on standard output.
fn refusal(arguments: &[&str]) -> String {
    refused(arguments, 1)
}

fn refused(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}: {output:?}");
    one_line(&output)
}

fn one_line(output: &Output) -> String {
    let error = String::from_utf8(output.stderr.clone()).expect("text");
    let line = error.strip_suffix('\n').expect("a whole line");
    assert!(!line.contains('\n'), "one line only: {error}");
    line.strip_prefix("framewright: ").expect("it says who speaks").to_owned()
}

impl Scratch {
    /// A saved result: one variant, one metric, samples around `centre`.
    fn result(&self, name: &str, centre: f64) -> String {
        let mut part = Part::new("pcp-reset", "replay", Kind::Measured, "host").baseline("vanilla");
        part.metric("ns_per_operation", "ns", Better::Lower)
            .samples("vanilla", (0..8).map(|index| centre + 0.01 * f64::from(index)));
        part.metric("pages_per_second", "1/s", Better::Higher)
            .samples("vanilla", (0..8).map(|index| 1e6 + f64::from(index)));
        let path = self.path(name);
        let host = Host { cpu: "a CPU".to_owned(), cpus: 2, ..Host::default() };
        Document::new("test", host).with(part).write(path.as_ref()).expect("written");
        path
    }
}

#[test]
fn numbers_that_are_none_are_refused_with_what_is_expected() {
    for (arguments, expected) in [
        ("bench --cpus 2-1", "'--cpus <COUNTS>': expected a whole number from 1 to 4294967295"),
        ("bench --cpus 0", "'--cpus <COUNTS>': expected a whole number from 1 to 4294967295"),
        ("bench --order 11", "'--order <ORDERS>': expected a whole number from 0 to 10"),
        ("record --pid make", "'--pid <PID>': expected a whole number from 1 to 4294967295"),
        ("trace summary x --top many", "'--top <N>': expected a whole number from 0 to 4294967295"),
        ("study --seed -1", "'--seed <N>': expected a whole number from 0 to 18446744073709551615"),
    ] {
        let output = run(&arguments.split(' ').collect::<Vec<_>>());
        assert_eq!(output.status.code(), Some(2), "{arguments}");
        let error = String::from_utf8(output.stderr).expect("text");
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}

#[test]
fn help_shows_every_command_and_fits_the_screen() {
    let help = run(&["--help"]);
    assert!(help.status.success() && help.stderr.is_empty());
    let commands = "study record import replay bench compare boot machines settings workloads doctor trace schema completions man";
    for command in commands.split(' ') {
        assert!(stdout(&help).contains(&format!("\n  {command} ")), "{}", stdout(&help));
        let its_help = run(&[command, "--help"]);
        assert!(stdout(&its_help).contains(&format!("Examples:\n  framewright {command}")), "{its_help:?}");
        for line in stdout(&its_help).lines().chain(stdout(&help).lines()) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    let version = run(&["--version"]);
    assert!(stdout(&version).starts_with(concat!("framewright ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn wrong_usage_exits_with_2_and_suggests() {
    for (arguments, says) in [
        (&["compar"] as &[&str], "compare"),
        (&["compare"], "FILE.json"),
        (&["compare", "x.json", "--fail-ovr", "5"], "--fail-over"),
        (&["compare", "x.json", "--fail-over=-5"], "expected a percentage of 0 or more"),
        (&["compare", "x.json", "--style", "mmtest"], "mmtests-2019"),
        (&["machines", "--format", "yaml"], "markdown"),
        (&["study", "zone-reclaim", "--scale", "0"], "from 0.1 to 32"),
        (&["trace", "summary", "x.parquet", "--config", ""], "--config '' sets nothing"),
        (&["man", "studdy"], "there is no command `studdy`; did you mean `study`?"),
        (&["man", "trace", "sumary"], "there is no command `trace sumary`; did you mean `summary`?"),
        (&[], "Usage: framewright"),
    ] {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty());
    }
}

/// Of a trace without allocations there is nothing to say, and nothing is wrong.
#[test]
fn a_trace_of_nothing_has_a_summary_of_zeroes() {
    let scratch = Scratch::new("nothing");
    let path = scratch.file("nothing.parquet", Trace::default().to_bytes().expect("a trace"));
    let table = text(&["trace", "summary", &path]);
    assert!(table.contains("0 of 0 pages, 0 KiB"), "{table}");
    assert!(table.contains("nothing: the trace has no allocations and no frees"), "{table}");
    assert!(text(&["trace", "summary", &path, "--format", "csv"]).contains("replayed_cpu_ns,0\n"));
    let json = text(&["trace", "summary", &path, "--format", "json"]);
    assert!(json.contains("\"allocations\": 0,") && json.contains("\"replayed_cpu_ns\": 0.0,"), "{json}");
}

#[test]
fn machines_are_found_by_alias_and_printed_as_json() {
    assert!(stdout(&run(&["machines", "rome"])).starts_with("epyc-7742-2s\n"));
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&stdout(&run(arguments))).expect("JSON")
    };
    let zones = json(&["--format", "json", "machines", "rome"])["zone"].as_array().map(Vec::len);
    let all = json(&["machines", "--format", "json"]).as_array().map(Vec::len);
    let shipped = framewright_lab::machine::Machine::all().expect("all are valid").len();
    assert_eq!((zones, all), (Some(4), Some(shipped)));
}

#[test]
fn a_machine_that_is_not_there_is_suggested_or_located() {
    assert_eq!(
        refused(&["machines", "epyc-7742"], 2),
        "no machine `epyc-7742`; did you mean `epyc-7742-2s`?"
    );
    assert_eq!(refused(&["machines", "zzz"], 2), "no machine `zzz`; `framewright machines` lists them");
    assert_eq!(
        refused(&["study", "all", "--part", "structur"], 2),
        "no study has a part `structur`; did you mean `structure`?"
    );
    assert_eq!(
        refused(&["study", "all", "--part", "zzz"], 2),
        "no study has a part `zzz`; `framewright study` lists them"
    );
    assert_eq!(
        refusal(&["machines", "./none.toml"]),
        "cannot read ./none.toml: No such file or directory (os error 2); check the path"
    );
}

/// A fleet wants each zone with its free blocks, in every format.
#[test]
fn doctor_shows_zones_in_every_format() {
    let snapshot = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/linux-6.1-scattered.tar.gz");
    let doctor = |format: &str| stdout(&run(&["doctor", "--root", snapshot, "--format", format]));
    let json: serde_json::Value = serde_json::from_str(&doctor("json")).expect("JSON");
    let zones = json["zones"].as_array().expect("zones");
    assert!(zones.iter().any(|zone| zone["name"] == "DMA32" && zone["free_blocks"][0].as_u64() > Some(1000)));
    assert!(
        zones.iter().all(|zone| zone["huge_percent"].is_number() && zone["lists"][0]["batch"].is_number())
    );
    for (format, head) in
        [("csv", "zone,managed MiB,free MiB,huge blocks"), ("markdown", "| zone | managed MiB |")]
    {
        let text = doctor(format);
        assert!(text.contains(head) && text.contains("fragmented"), "{text}");
    }
}

/// For a fleet: lines by interval, and an exit code.
#[test]
fn doctor_follows_a_system_and_fails_on_what_it_is_told_to() {
    let csv = stdout(&run(&["doctor", "--interval", "0.05", "--count", "3", "--format", "csv"]));
    let zones = csv.lines().nth(1).map_or(0, |first| {
        let time = first.split(',').next().expect("a time");
        csv.lines().filter(|line| line.starts_with(time) || !line.starts_with("time")).count()
    });
    assert!(csv.starts_with("time,zone,free,huge_percent,on_lists,free_0,") && zones >= 3, "{csv}");
    let width = csv.lines().next().expect("heads").split(',').count();
    assert!(csv.lines().all(|line| line.split(',').count() == width), "{csv}");
    let lines = stdout(&run(&["doctor", "--interval", "0.05", "--count", "2", "--format", "json"]));
    assert_eq!(lines.lines().count(), 2);
    for line in lines.lines() {
        let json: serde_json::Value = serde_json::from_str(line).expect("JSON");
        assert!(
            json["zones"][0]["free_blocks"].is_array() && json["per_second"]["stalls"].is_number(),
            "{line}"
        );
    }
    let faulty = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/snapshots/linux-6.1-scattered.tar.gz");
    for (severity, code) in [("warning", 4), ("error", 0)] {
        let output = run(&["doctor", "--root", faulty, "--fail-on", severity]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(!output.stdout.is_empty());
    }
}

/// A wrong file is refused after its first bytes, whatever its length: within 300 MB, beside the 150 MB of address
/// space that the program and its threads' stacks take.
#[test]
fn a_wrong_file_is_not_read_to_its_end() {
    let scratch = Scratch::new("cli-wrong");
    let long = |name: &str, begin: &str, end: &str| {
        let path = scratch.file(name, begin);
        let file = fs::OpenOptions::new().write(true).open(&path).expect("there");
        file.set_len((3 << 30) - end.len() as u64).expect("sparse files can be made");
        fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("there")
            .write_all(end.as_bytes())
            .expect("made");
        path
    };
    let [zeros, framed, json] =
        [long("zeros", "", ""), long("framed", "PAR1", "PAR1"), long("json", "{\"framewright\":", "")];
    // A right head: events, and a header of `perf.data`.
    let [events, recorded] = [long("events", &EVENT.repeat(100), ""), long("recorded", "PERFILE2", "")];
    let parquet = "at byte 0: no Parquet file: does not begin with PAR1";
    let text = "not text (byte 0 is 0)";
    let no_tar = "not a tar archive";
    for (arguments, input, expected) in [
        ("trace summary", "/dev/zero", parquet),
        ("trace summary", &zeros, parquet),
        ("trace summary", &framed, "no PAR1 at its end|metadata cannot be decoded|columns"),
        ("replay", "/dev/zero", parquet),
        ("import -o /dev/null", "/dev/zero", "neither perf.data nor text"),
        ("import -o /dev/null", &zeros, "neither perf.data nor text"),
        ("import -o /dev/null", &events, "line 101: |a line of more than 16 MiB"),
        ("import -o /dev/null", &recorded, "perf refuses the file|cannot be started here"),
        ("compare", "/dev/zero", text),
        ("compare", &json, "not text (byte 15 is 0)"),
        ("study", "./../../../../../../../../dev/zero", text),
        ("machines", "/dev/zero", text),
        ("boot --map", "/dev/zero", text),
        ("boot --srat /dev/zero --map", TRACE, "not text"),
        ("doctor --root", TRACE, no_tar),
        ("doctor --root", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"), no_tar),
        ("doctor --root", &zeros, "no proc/zoneinfo in it"),
    ] {
        for pipe in [false, true] {
            if pipe && (!arguments.starts_with(['t', 'r', 'f', 'c']) || input.starts_with("/dev")) {
                continue;
            }
            let binary = env!("CARGO_BIN_EXE_framewright");
            let command = if pipe {
                format!("cat {input} | {binary} {arguments} /dev/stdin")
            } else {
                format!("{binary} {arguments} {input}")
            };
            let limited = format!("ulimit -v 450000; {command}");
            let output = Command::new("sh").args(["-c", &limited]).output().expect("a shell");
            let error = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{command}: {error}");
            let expected = if pipe && input == framed { "longer than 128 MiB" } else { expected };
            assert!(expected.split('|').any(|expected| error.contains(expected)), "{command}: {error}");
            assert_eq!(error.lines().count(), 1, "{command}: {error}");
        }
    }
}

#[test]
fn this_machine_is_described_and_simulated() {
    let scratch = Scratch::new("cli-detect");
    let here = scratch.file("here.toml", "");
    assert_eq!(stdout(&run(&["machines", "--detect", "-o", &here])), "");
    let described = fs::read_to_string(&here).expect("written");
    assert_eq!(crate::schema::checked(&framewright_lab::schema::machine(), &described), None, "{described}");
    let shown = stdout(&run(&["machines", &here]));
    // Boots, where memory is still to be initialised: on a guest that does it on demand, until all was in use once.
    let pages = |key: &str| {
        let values = described.lines().filter_map(|line| line.strip_prefix(key)?.split(' ').next());
        values.map(str::to_owned).collect::<Vec<_>>()
    };
    let (early, all) = (pages("early_managed_pages = "), pages("managed_pages = "));
    assert!(!all.is_empty() && early.len() == all.len(), "{described}");
    let simulates = if early == all { "bulk" } else { "boot bulk" };
    assert!(shown.contains(&format!("simulates         {simulates}\n")), "{shown}");
    let arguments =
        ["--part", "host", "--kind", "simulated", "--quick", "--samples", "1", "--machine", &here];
    let text = stdout(&run(&[&["study", "validation", "--format", "csv"], &arguments[..]].concat()));
    assert!(text.contains("hot_pair_ns[order=0,cpus=1]"), "{text}");
    let refused = refused(&["machines", "--detect", "--format", "json"], 2);
    assert_eq!(refused, "a detected machine is TOML; leave --format out");
}

#[test]
fn a_users_machine_is_read_and_its_mistakes_are_named() {
    let scratch = Scratch::new("cli-machine");
    let rome = include_str!("../../../../machines/epyc-7742-2s.toml");
    let mine = scratch.file("mine.toml", rome.replace("\"epyc-7742-2s\"", "\"mine\""));
    assert!(stdout(&run(&["machines", &mine])).starts_with("mine\n"));

    let at = 1 + rome.lines().position(|line| line.starts_with("cores_per_node")).expect("it is there");
    let wrong = scratch.file("wrong.toml", rome.replace("cores_per_node", "corse_per_node"));
    let expected = format!("{wrong}:{at}: unknown field `corse_per_node`, expected one of");
    assert!(refusal(&["machines", &wrong]).starts_with(&expected));
}

#[test]
fn results_are_compared_saved_and_read_back() {
    let scratch = Scratch::new("cli-compare");
    let (before, after) = (scratch.result("before.json", 10.0), scratch.result("after.json", 5.0));
    let saved = scratch.path("both.json");
    let output = run(&["compare", &before, &after, "--fail-over", "5", "-o", &saved]);
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let table = stdout(&output);
    assert!(table.starts_with("before: test\n  framewright"), "{table}");
    assert!(
        table.contains("\nbefore → after (pcp-reset replay, measured, 8 samples)\nVerdict    better: "),
        "{table}"
    );
    assert!(table.contains("0.502× [0.498, 0.506] +"), "{table}");
    let all = stdout(&run(&["compare", &before, &after, "--all"]));
    assert!(all.contains("\npcp-reset, part replay: measured on host\n"), "{all}");
    assert!(all.contains("n = 8, baseline before") && all.contains("0.502× [0.498, 0.506] +"), "{all}");
    assert!(!table.contains('\u{1b}'), "no colour in a pipe");

    // What was saved, and what --format json prints, is the same document; it gives the same table.
    let json = stdout(&run(&["compare", &before, &after, "--format", "json"]));
    let (printed, mut kept) =
        (Document::parse(&json).expect("a result"), Document::read(saved.as_ref()).expect("saved"));
    kept.date.clone_from(&printed.date);
    kept.argv.clone_from(&printed.argv);
    assert_eq!(printed, kept);
    assert_eq!(stdout(&run(&["compare", &saved])), table);
    assert_eq!(kept.results[0].metrics[0].of("after").len(), 8, "every sample is kept");

    // What has not changed leaves no table behind.
    let again = scratch.result("again.json", 10.0);
    let unchanged = stdout(&run(&["compare", &before, &again, "--changed"]));
    let (_, part) = unchanged.split_once("\npcp-reset, part replay: ").expect("the part's title");
    let expected = "measured on host\na CPU, 2 CPUs\nbaseline before\n\n2 rows hidden: no clear change.\n";
    assert_eq!(part, expected);

    let filtered = stdout(&run(&["compare", &before, &after, "--metric", "pages*", "--format", "csv"]));
    assert_eq!(filtered.lines().count(), 3, "{filtered}");
    let lkp = stdout(&run(&["compare", &before, &after, "--style", "lkp"]));
    assert!(lkp.contains("     -49.8%       5.04 ±  0%  ns_per_operation"), "{lkp}");
    let plot = stdout(&run(&["compare", &before, &after, "--plot"]));
    assert!(plot.contains("after  ████"), "{plot}");
}

#[test]
fn a_regression_fails_and_is_named() {
    let scratch = Scratch::new("cli-regression");
    let (before, after) = (scratch.result("before.json", 10.0), scratch.result("after.json", 11.0));
    let output = run(&["compare", &before, &after, "--fail-over", "5"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(!output.stdout.is_empty(), "the table is shown all the same");
    assert_eq!(
        one_line(&output),
        "regressed past 5 %: ns_per_operation 10.0 % worse (after, pcp-reset replay)"
    );
    assert!(run(&["compare", &before, &after, "--fail-over", "15%"]).status.success());
    assert!(run(&["compare", &before, &after]).status.success(), "no limit was asked for");
    assert!(refused(&["compare", &after, "--fail-over", "5"], 2).contains("name a second result"));
}

#[test]
fn what_is_no_result_is_refused_with_its_path() {
    let scratch = Scratch::new("cli-refused");
    let good = scratch.result("good.json", 10.0);
    let text = scratch.file("text.json", "hello");
    assert_eq!(
        refusal(&["compare", &good, &text]),
        format!("{text}: not JSON: expected value at line 1 column 1")
    );
    let none = scratch.path("none.json");
    let missing = "No such file or directory (os error 2); check the path";
    assert_eq!(refusal(&["compare", &none]), format!("cannot read {none}: {missing}"));
    assert_eq!(
        refused(&["compare", &good, "--metric", "bytes*"], 2),
        "no metric matches `bytes*`; there are ns_per_operation, pages_per_second"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let scratch = Scratch::new("cli-pipe");
    // More than a pipe holds, so that the writer meets the closed end.
    let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("v");
    for index in 0..5000 {
        part.metric(format!("metric_with_a_long_name[index={index}]"), "ns", Better::Lower).sample("v", 1.5);
    }
    let path = scratch.path("large.json");
    Document::new("test", Host::default()).with(part).write(path.as_ref()).expect("written");
    let mut child = framewright(&[])
        .args(["compare", &path, "--format", "csv"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    let mut first = String::new();
    let mut reader = BufReader::new(child.stdout.take().expect("piped"));
    reader.read_line(&mut first).expect("a line");
    drop(reader);
    let status = child.wait().expect("it ends");
    let mut error = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut error).expect("text");
    assert!(first.starts_with("study,part"), "{first}");
    assert_eq!((status.code(), error.as_str()), (Some(0), ""));
}

#[test]
fn help_that_cannot_be_written_is_an_error() {
    for line in ["--help", "replay --help", "help trace", "--version"] {
        let full = File::options().write(true).open("/dev/full").expect("Linux has it");
        let arguments: Vec<&str> = line.split(' ').collect();
        let output = framewright(&arguments).stdout(full).output().expect("it runs");
        assert!(one_line(&output).contains("cannot write to standard output"), "{line}");
        assert_eq!(output.status.code(), Some(1), "{line}");
    }
}

/// `2>&1 | head` leaves nothing that reads standard error. What is said there is lost; the work and its status are not.
#[test]
fn a_reader_of_messages_that_goes_away_ends_no_work() {
    let scratch = Scratch::new("cli-messages");
    let result = scratch.path("result.json");
    let small = "bench --workload hot_pair --order 0 --cpus 1 --memory 64 --samples 1";
    for (arguments, code) in [
        ("compare none.json".to_owned(), 1),
        ("doctor --root tests/data/snapshots/linux-5.10-sized-early.tar.gz --fail-on error".to_owned(), 4),
        ("study refill-check --part bad_block".to_owned(), 0),
        (format!("{small} -o {result}"), 0),
    ] {
        let (reader, closed) = std::io::pipe().expect("made");
        drop(reader);
        let output = framewright(&arguments.split(' ').collect::<Vec<_>>()).stderr(closed).output();
        assert_eq!(output.expect("the binary was built").status.code(), Some(code), "{arguments}");
    }
    assert!(Document::read(result.as_ref()).is_ok());
}

/// A state goes from one host to another through a pipe.
#[test]
fn a_state_is_saved_to_a_pipe_and_examined_from_one() {
    let snapshot = "tests/data/snapshots/linux-5.10-sized-early.tar.gz";
    let saved = run(&["doctor", "--root", snapshot, "--save", "/dev/stdout"]);
    // No path names it afterwards.
    assert_eq!(String::from_utf8_lossy(&saved.stderr), "");
    let scratch = Scratch::new("cli-saved");
    let file = scratch.path("state.tar");
    let named = run(&["doctor", "--root", snapshot, "--save", &file]);
    let said = String::from_utf8(named.stderr).expect("text");
    assert!(said.contains(&format!("`framewright doctor --root {file}` examines it")), "{said}");
    let mut command = framewright(&["doctor", "--root", "/dev/stdin"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("piped").write_all(&saved.stdout).expect("it reads");
    let output = child.wait_with_output().expect("ours");
    assert!(stdout(&output).contains("pcp-undersized"), "{output:?}");
    // A copy that broke off.
    for whole in [saved.stdout, fs::read(snapshot).expect("it is there")] {
        fs::write(&file, &whole[..whole.len() / 2]).expect("written");
        assert!(refusal(&["doctor", "--root", &file]).contains("the archive is cut off or damaged"));
    }
}

/// What a command needs is looked at before it begins: its traces, its user, its output.
#[test]
fn what_cannot_be_used_is_refused_at_once() {
    let scratch = Scratch::new("cli-at-once");
    let part = |name: &str| {
        format!("[[part]]\nname = \"{name}\"\nworkload = {{ name = \"replay\", trace = \"{name}\" }}\n")
    };
    let study = format!("[[variant]]\nname = \"a\"\n{}{}", part("compile"), part("none.parquet"));
    let study = scratch.file("mine.toml", study);
    let none = scratch.path("none.parquet");
    assert!(refusal(&["study", &study]).starts_with(&format!("cannot read {none}: ")));
    assert!(refusal(&["doctor", "--save", "-"]).contains("standard output is /dev/stdout"));
    assert!(refusal(&["trace", "summary", "-"]).ends_with("; standard input is /dev/stdin"));
    for (uid, gid) in [("abc", "1000"), ("1000", "")] {
        let mut command = framewright(&["record", "-o", "/dev/null", "--", "true"]);
        let output = command.env("SUDO_UID", uid).env("SUDO_GID", gid).output().expect("it runs");
        assert!(one_line(&output).starts_with("SUDO_UID and SUDO_GID are not the numbers"), "{output:?}");
    }
}

/// A recording that is named as output as well, or two outputs of one name however it is spelt: nothing is lost.
#[test]
fn no_output_replaces_an_input_or_another_output() {
    let scratch = Scratch::new("cli-inputs");
    let trace = scratch.path("mine.parquet");
    fs::copy(short_traces()[0], &trace).expect("copied");
    let study = "[[variant]]\nname = \"a\"\n[[part]]\nworkload = { name = \"bad_block\" }\n";
    let study = scratch.file("mine.toml", study);
    let replays =
        "[[variant]]\nname = \"a\"\n[[part]]\nworkload = { name = \"replay\", trace = \"mine.parquet\" }\n";
    let replays = scratch.file("replays.toml", replays);
    let result = scratch.result("mine.json", 10.0);
    let detour = scratch.path("none/../mine.new");
    fs::create_dir_all(scratch.path("none")).expect("made");
    let reads = "is a file that this command reads; give the output another name";
    for (arguments, expected) in [
        (format!("replay {trace} -o {trace}"), reads),
        (format!("replay {trace} --html {trace}"), reads),
        (format!("trace export {trace} --to folded -o {trace}"), reads),
        (format!("study {study} -o {study}"), reads),
        (format!("study {replays} -o {trace}"), reads),
        (format!("compare {result} -o {result}"), reads),
        (format!("import {study} -o {study}"), reads),
        (
            format!("compare {result} -o {detour} --html {}", scratch.path("mine.new")),
            "-o and --html name the same file",
        ),
        (
            format!("record -o {detour} --summary {} -- true", scratch.path("mine.new")),
            "-o and --summary name the same file",
        ),
    ] {
        let error = refused(&arguments.split(' ').collect::<Vec<_>>(), 2);
        assert!(error.contains(expected), "{arguments}: {error}");
    }
    assert!(Trace::read(trace.as_ref()).is_ok() && Document::read(result.as_ref()).is_ok());
    assert!(!Path::new(&scratch.path("mine.new")).exists());
}

#[test]
fn without_utf_8_everything_is_ascii() {
    let scratch = Scratch::new("cli-ascii");
    let (before, after) = (scratch.result("before.json", 10.0), scratch.result("after.json", 5.0));
    for style in ["framewright", "mmtests-2019", "lkp"] {
        let output = framewright(&[])
            .args(["compare", &before, &after, "--plot", "--style", style])
            .env("LC_ALL", "C")
            .output()
            .expect("the binary was built");
        assert!(output.stdout.is_ascii(), "{}", stdout(&output));
    }
}

#[test]
fn colour_and_notices_are_as_asked_for() {
    let scratch = Scratch::new("cli-colour");
    let (before, after) = (scratch.result("before.json", 10.0), scratch.result("after.json", 11.0));
    let coloured = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = framewright(arguments);
        for name in ["NO_COLOR", "CLICOLOR_FORCE", "CLICOLOR"] {
            command.env_remove(name);
        }
        let output = command.envs(variables.iter().copied()).output().expect("it runs");
        [output.stdout, output.stderr].map(|text| text.contains(&0x1b))
    };
    let compare = ["compare", &before, &after];
    let with = |more: &[&'static str]| [&compare[..], more].concat();
    assert_eq!(coloured(&compare, &[]), [false, false], "a pipe");
    assert_eq!(coloured(&with(&["--color", "always"]), &[]), [true, false]);
    assert_eq!(coloured(&compare, &[("CLICOLOR_FORCE", "1")]), [true, false]);
    assert_eq!(coloured(&compare, &[("CLICOLOR_FORCE", "0")]), [false, false]);
    assert_eq!(coloured(&compare, &[("CLICOLOR_FORCE", "1"), ("NO_COLOR", "1")]), [false, false]);
    assert_eq!(coloured(&with(&["--color=never"]), &[("CLICOLOR_FORCE", "1")]), [false, false]);
    // clap's own errors and help.
    assert_eq!(coloured(&["compar"], &[]), [false, false]);
    assert_eq!(coloured(&["compar", "--color=always"], &[]), [false, true]);
    assert_eq!(coloured(&["--color", "always", "compare", "--help"], &[]), [true, false]);
    let study = ["study", "pcp-reset", "--part", "structure"];
    assert_eq!(String::from_utf8_lossy(&run(&study).stderr), "[1/1] pcp-reset structure, derived\n");
    let quiet = run(&[&study[..], &["-q"]].concat());
    assert!(quiet.stderr.is_empty() && quiet.stdout == run(&study).stdout, "{quiet:?}");
}

#[test]
fn a_style_of_times_converts_them_and_refuses_the_rest() {
    let scratch = Scratch::new("cli-times");
    let result = scratch.result("times.json", 2_500_000.0);
    let text = stdout(&run(&["compare", &result, "--style", "deferred-init-2020"]));
    assert!(text.contains("2.5") && !text.contains("pages_per_second"), "{text}");
    assert!(text.contains("1 other metrics"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let counts = scratch.path("counts.json");
    let mut part = Part::new("s", "p", Kind::Measured, "host").baseline("v");
    part.metric("refills", "1", Better::Lower).sample("v", 1.0);
    Document::new("test", Host::default()).with(part).write(counts.as_ref()).expect("written");
    let error = refused(&["compare", &counts, "--style", "deferred-init-2020"], 2);
    assert_eq!(error, "--style deferred-init-2020 shows times, and nothing here is one");
}

#[test]
fn equal_figures_without_a_spread_are_unchanged() {
    let csv = stdout(&run(&["study", "pcp-reset", "--part", "structure", "--format", "csv"]));
    let line =
        csv.lines().find(|line| line.contains("batch=1,high=0") && line.contains("reset")).expect("a row");
    assert!(csv.contains("unchanged"), "{csv}");
    assert!(!csv.contains("unclear"), "{line}");
}

/// Names in a file that another has written, in tables, verdicts, plots and errors.
#[test]
fn no_name_commands_the_terminal() {
    let error = refused(&["machines", "x\u{1b}[2Jy"], 2);
    assert!(error.contains("x?[2Jy") && !error.contains('\u{1b}'), "{error:?}");
    let scratch = Scratch::new("cli-commands");
    let files = [("a", 1.0), ("b", 2.0)].map(|(name, centre)| {
        let file = scratch.result(&format!("{name}.json"), centre);
        let text = fs::read_to_string(&file).expect("it was saved");
        let changed = ["pcp-reset", "vanilla", "ns_per", "a CPU", "\"test"];
        let text = changed.iter().fold(text, |text, name| text.replace(name, &format!("{name}\\u001b[2J")));
        fs::write(&file, text).expect("a file");
        file
    });
    for options in [&[][..], &["--plot"], &["--all"], &["--style", "lkp"]] {
        let shown = run(&[&["compare", &files[0], &files[1]], options].concat());
        let text = String::from_utf8(shown.stdout).expect("text");
        assert!(shown.status.success() && text.contains("?[2J"), "{options:?}: {text:?}");
        assert!(!text.contains('\u{1b}'), "{options:?}: {text:?}");
    }
}
