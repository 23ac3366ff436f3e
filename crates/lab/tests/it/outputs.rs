//! Where results go: every command that writes a file, with every kind of place that `-o` can name, as root in a mount
//! namespace of its own.
//!
//! The tests run themselves again inside `unshare -m`; where that is not permitted, they say `skipped:`.

use core::time::Duration;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Instant;

use framewright_report::result::{Basis, Document, Metric};
use framewright_trace::trace::Trace;

use crate::{EVENT, can_record, framewright, short_traces, signal, skipped, wait_for};

/// Set in the process that has mounts of its own.
const INSIDE: &str = "FRAMEWRIGHT_MOUNTS";

/// Runs this test again where it may mount; whether this is there.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let program = std::env::current_exe().expect("it runs");
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private"])
        .arg(program)
        .args(["--exact", &format!("outputs::{test}"), "--nocapture"])
        .env(INSIDE, "1")
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if String::from_utf8_lossy(&output.stderr).contains("unshare failed") => {
            eprintln!("skipped: no mount namespace of its own is permitted here");
        }
        Err(error) => eprintln!("skipped: unshare cannot be run: {error}"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            panic!("{text}{}", String::from_utf8_lossy(&output.stderr));
        }
    }
    false
}

/// A folder with places of every kind.
struct Places(PathBuf);

impl Places {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("framewright-places-{name}-{}", std::process::id()));
        for folder in ["plain", "full", "read-only", "folder"] {
            fs::create_dir_all(root.join(folder)).expect("the temporary directory can be written");
        }
        Self(root)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn mount(&self, name: &str, options: &str) {
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", options, "tmpfs", &self.path(name)])
            .status()
            .expect("mount can be run");
        assert!(status.success(), "{name}");
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.0.join(folder)).expect("it is there");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("listed").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        for mounted in ["full", "read-only"] {
            let _ = Command::new("umount").arg(self.0.join(mounted)).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Every command that writes a file, with `OUT` for its name. What each writes is known by how it begins.
fn writers(result: &str, script: &str) -> Vec<(Vec<String>, &'static [u8])> {
    let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<String>>();
    let mut all = vec![
        (words(&format!("compare {result} -o OUT")), &b"{\n"[..]),
        (words(&format!("compare {result} --html OUT")), b"<!DOCTYPE html>"),
        (words(&format!("import {script} -o OUT")), b"PAR1"),
        (words("boot --machine haswell-vm --lazy -o OUT"), b"{\n"),
        (words("boot --machine haswell-vm --lazy --html OUT"), b"<!DOCTYPE html>"),
        (words("study refill-check --part bad_block -o OUT"), b"{\n"),
        (words("study refill-check --part bad_block --html OUT"), b"<!DOCTYPE html>"),
        (words("bench --workload hot_pair --order 0 --cpus 1 --memory 64 --samples 1 -o OUT"), b"{\n"),
        (words(&format!("replay {} --samples 1 --threads 1 -o OUT", short_traces()[0])), b"{\n"),
    ];
    if can_record() {
        all.push((words("record -o OUT -- true"), b"PAR1"));
        all.push((words("record -o /dev/null --summary OUT -- true"), b"Recorded to /dev/null"));
    }
    all
}

fn run(arguments: &[String], out: &str) -> Output {
    let arguments: Vec<&str> = arguments.iter().map(|word| if word == "OUT" { out } else { word }).collect();
    framewright(&arguments).output().expect("it runs")
}

/// The one line that says why not.
fn refused(arguments: &[String], out: &str) -> String {
    let output = run(arguments, out);
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{arguments:?} {out}: {error}");
    let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("framewright: cannot")).collect();
    assert_eq!(lines.len(), 1, "{arguments:?} {out}: {error}");
    lines[0].to_owned()
}

#[test]
fn every_command_writes_where_it_can_and_says_at_once_where_it_cannot() {
    if !is_inside("every_command_writes_where_it_can_and_says_at_once_where_it_cannot") {
        return;
    }
    let places = Places::new("all");
    places.mount("full", "size=4k");
    places.mount("read-only", "ro");
    let (result, script) = inputs(&places);
    fs::write(places.path("full/old"), [7; 4096]).expect("it fits");
    for (arguments, begins) in writers(&result, &script) {
        let is_written = |path: &str| {
            let bytes = fs::read(path).unwrap_or_else(|error| panic!("{arguments:?} {path}: {error}"));
            assert!(bytes.starts_with(begins), "{arguments:?}: {:?}", &bytes[..20.min(bytes.len())]);
        };
        // A device stays one.
        let device = places.path("plain/null");
        let made = Command::new("mknod").args([&device, "c", "1", "3"]).status().expect("mknod can be run");
        assert!(made.success());
        assert!(run(&arguments, &device).status.success(), "{arguments:?}");
        assert!(fs::symlink_metadata(&device).expect("there").file_type().is_char_device(), "{arguments:?}");
        fs::remove_file(&device).expect("ours");

        // A FIFO is written through.
        let fifo = places.path("plain/fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo can be run").success());
        let reader = {
            let fifo = fifo.clone();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                fs::File::open(fifo).and_then(|mut file| file.read_to_end(&mut bytes)).map(|_| bytes)
            })
        };
        assert!(run(&arguments, &fifo).status.success(), "{arguments:?}");
        assert!(reader.join().expect("no panic").expect("read").starts_with(begins), "{arguments:?}");
        assert!(fs::symlink_metadata(&fifo).expect("there").file_type().is_fifo());
        fs::remove_file(&fifo).expect("ours");

        // A link stays, and what it names is written; a file keeps its rights.
        let (link, file) = (places.path("plain/latest"), places.path("folder/1"));
        symlink("../folder/1", &link).expect("made");
        fs::write(&file, "old").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("ours");
        assert!(run(&arguments, &link).status.success(), "{arguments:?}");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink(), "{arguments:?}");
        is_written(&file);
        assert_eq!(fs::metadata(&file).expect("there").permissions().mode() & 0o777, 0o640);
        fs::remove_file(&link).expect("ours");

        // What cannot be written is refused before anything is done.
        for (place, why) in [
            ("folder", "name a file, not a directory"),
            ("none/x", "No such file or directory"),
            ("read-only/x", "Read-only file system"),
            ("plain/file/x", "Not a directory"),
        ] {
            fs::write(places.path("plain/file"), "a file").expect("written");
            let error = refused(&arguments, &places.path(place));
            assert!(error.contains(why), "{arguments:?} {place}: {error}");
        }
        // Where there is no space, the old file stays.
        let error = refused(&arguments, &places.path("full/old"));
        assert!(error.contains("No space left on device"), "{arguments:?}: {error}");
        assert_eq!(fs::read(places.path("full/old")).expect("there"), [7; 4096], "{arguments:?}");
        assert_eq!(
            (places.names("plain"), places.names("folder")),
            (vec!["file".into()], vec!["1".to_owned()])
        );
        assert_eq!(places.names("full"), ["old"], "{arguments:?}");
    }
}

/// `ulimit -f`: the signal that the system sends of a file that may grow no more ended the command without a word.
#[test]
fn where_a_file_may_grow_no_more_one_line_says_so_and_the_old_file_stays() {
    let places = Places::new("grown");
    let (result, script) = inputs(&places);
    let (old, shown) = (places.path("folder/old"), places.path("plain/shown"));
    fs::write(&old, "old").expect("written");
    let limited = |arguments: &[String], shown: Stdio| {
        let mut shell = Command::new("sh");
        shell.args(["-c", "ulimit -f 0 && exec timeout 120 \"$@\"", "sh", env!("CARGO_BIN_EXE_framewright")]);
        shell.args(arguments.iter().map(|word| if word == "OUT" { &old } else { word }));
        let output = shell.stdout(shown).output().expect("it runs");
        let error = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {error} {:?}", output.status);
        error.lines().last().expect("a line").to_owned()
    };
    for (arguments, _) in writers(&result, &script) {
        // A recording that finds no room is kept elsewhere, and this process may write nowhere.
        if arguments[0] == "record" {
            continue;
        }
        let error = limited(&arguments, Stdio::null());
        let advice = "File too large (os error 27); allow larger files (`ulimit -f unlimited`)";
        assert!(
            error.starts_with("framewright: cannot write ") && error.contains(advice),
            "{arguments:?}: {error}"
        );
        assert_eq!(fs::read(&old).expect("there"), b"old", "{arguments:?}");
        assert_eq!(places.names("folder"), ["old"], "{arguments:?}");
    }
    // The page cache tried again for ever what can never be written.
    let study = "study zone-reclaim --part fsmark --kind measured --quick --samples 1";
    let error = limited(&study.split(' ').map(str::to_owned).collect::<Vec<_>>(), Stdio::null());
    assert!(error.contains("the file is larger than the file system or `ulimit -f` allows"), "{error}");
    let file = fs::File::create(shown).expect("made");
    let error = limited(&["machines".to_owned()], file.into());
    assert!(error.starts_with("framewright: cannot write to standard output: File too large"), "{error}");
}

/// A `/tmp` of 2 MiB, as containers have: programs that write more end with one line, and leave nothing.
#[test]
fn a_study_whose_temporary_files_find_no_room_ends_with_one_line() {
    if !is_inside("a_study_whose_temporary_files_find_no_room_ends_with_one_line") {
        return;
    }
    let places = Places::new("small");
    places.mount("full", "size=2m");
    let saved = places.path("plain/x.json");
    let arguments =
        ["study", "zone-reclaim", "--kind", "measured", "--part", "fsmark", "--quick", "-o", &saved];
    let mut child = framewright(&arguments)
        .env("TMPDIR", places.path("full"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    wait_for(&mut child, 300);
    let output = child.wait_with_output().expect("ours");
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "{error}");
    let lines: Vec<&str> = error.lines().filter(|line| line.starts_with("framewright: ")).collect();
    assert_eq!(lines.len(), 1, "{error}");
    assert!(lines[0].contains("no space is left on the device"), "{error}");
    assert!(lines[0].contains(&places.path("full")), "{error}");
    assert!(places.names("full").is_empty() && places.names("plain").is_empty(), "nothing is left");
}

/// A recording that finds no room ends early, and keeps what it has: of the whole machine, because what other processes
/// do may fill the room before the command begins.
#[test]
fn a_recording_beside_a_full_disk_keeps_what_it_has() {
    if !is_inside("a_recording_beside_a_full_disk_keeps_what_it_has") {
        return;
    }
    let places = Places::new("spool");
    places.mount("full", "size=2m");
    let trace = places.path("full/x.parquet");
    // 150 MiB through a pipe: some 80,000 pages that are allocated and freed, of 48 bytes and more an event.
    let command = "for n in 1 2 3; do head -c 50m /dev/zero | tail -c 50m >/dev/null; done";
    let output =
        framewright(&["record", "-a", "-o", &trace, "--", "sh", "-c", command]).output().expect("it runs");
    if kept_what_it_had(output, &trace) {
        assert_eq!(places.names("full"), ["x.parquet"]);
    }
}

/// A trace that cannot be written where it belongs is kept in the folder for temporary files: it cannot be recorded
/// again.
#[test]
fn a_recording_that_does_not_fit_is_kept_elsewhere() {
    let places = Places::new("kept");
    let mut record = framewright(&["record", "-o", "/dev/full", "--", "true"]);
    let output = record.env("TMPDIR", places.path("plain")).output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    if error.contains("cannot record") {
        return skipped(&output.stderr);
    }
    let kept = places.names("plain");
    assert_eq!((output.status.code(), kept.len()), (Some(1), 1), "{error}");
    let path = places.path(&format!("plain/{}", kept[0]));
    assert!(error.contains("No space left") && error.contains(&format!("it is in {path}\n")), "{error}");
    assert!(!Trace::read(path.as_ref()).expect("it is whole").events.is_empty());
    assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
}

/// Checks a recording that found no room. False where this machine cannot record.
fn kept_what_it_had(output: Output, trace: &str) -> bool {
    stopped_early(output, trace, "no space left in")
}

/// Checks a recording that stopped before its command ended: its status and one line say so, and the trace is kept.
/// False where this machine cannot record.
fn stopped_early(output: Output, trace: &str, why: &str) -> bool {
    let error = String::from_utf8(output.stderr).expect("text");
    if error.contains("cannot record") {
        skipped(error.as_bytes());
        return false;
    }
    assert_eq!(output.status.code(), Some(1), "{error}");
    let said = error.lines().filter(|line| line.contains(why)).count();
    assert_eq!(said, 1, "{error}");
    let trace = Trace::read(trace.as_ref()).expect("it is whole");
    assert!(trace.meta.cut && !trace.events.is_empty());
    true
}

/// So does one whose files may not grow.
#[test]
fn a_recording_under_a_limit_of_files_keeps_what_it_has() {
    let places = Places::new("limited");
    let trace = places.path("plain/x.parquet");
    let command = "for n in 1 2 3; do head -c 50m /dev/zero | tail -c 50m >/dev/null; done";
    let limited = "ulimit -f 1024 && exec \"$@\"";
    let mut shell = Command::new("sh");
    let recorder = framewright(&[]).get_program().to_owned();
    shell
        .args(["-c", limited, "sh"])
        .arg(recorder)
        .args(["record", "-a", "-o", &trace, "--", "sh", "-c", command]);
    let output = shell.current_dir(places.path("plain")).output().expect("it runs");
    if kept_what_it_had(output, &trace) {
        assert_eq!(places.names("plain"), ["x.parquet"]);
    }
}

/// As on a machine with 256 CPUs, whose buffers and spools are more files than the 1024 that most systems allow.
#[test]
fn a_recording_may_have_more_files_open_than_its_command() {
    if !can_record() {
        return;
    }
    let places = Places::new("files");
    let recorder = framewright(&[]).get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -Sn 12 && exec \"$@\"", "sh"]).arg(recorder);
    shell.args(["record", "-q", "-o", &places.path("plain/x.parquet"), "--", "sh", "-c", "ulimit -Sn"]);
    let output = shell.output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "12\n");
}

/// A script learns that the trace ends before the command did; the command goes on, and its own status comes first.
#[test]
fn a_recording_that_reaches_its_size_says_so_by_its_status() {
    let places = Places::new("size");
    let (trace, done) = (places.path("plain/x.parquet"), places.path("plain/done"));
    let command = format!(
        "for n in 1 2 3 4 5; do head -c 50m /dev/zero | tail -c 50m >/dev/null; sleep 0.1; done; touch {done}; exit "
    );
    let record = |status: u8| {
        let command = format!("{command}{status}");
        framewright(&["record", "-a", "--max-size", "1", "-o", &trace, "--", "sh", "-c", &command]).output()
    };
    if !stopped_early(record(0).expect("it runs"), &trace, "stopped at 1 MiB") {
        return;
    }
    assert_eq!(places.names("plain"), ["done", "x.parquet"]);
    let both = record(7).expect("it runs");
    let error = String::from_utf8(both.stderr).expect("text");
    assert_eq!(both.status.code(), Some(7), "{error}");
    assert!(error.contains("stopped at 1 MiB") && error.contains("exit status 7"), "{error}");
}

/// A saved result, and the text of perf script.
fn inputs(places: &Places) -> (String, String) {
    let (result, script) = (places.path("result.json"), places.path("script.txt"));
    let output = framewright(&["study", "refill-check", "--part", "bad_block", "-o", &result]).output();
    assert!(output.expect("it runs").status.success());
    fs::write(&script, EVENT).expect("written");
    (result, script)
}

#[test]
fn a_study_leaves_no_file_unasked_and_looks_at_its_folder_first() {
    if !is_inside("a_study_leaves_no_file_unasked_and_looks_at_its_folder_first") {
        return;
    }
    let places = Places::new("cwd");
    places.mount("read-only", "ro");
    let study = |folder: &str, more: &[&str]| {
        let mut command = framewright(&[&["study", "all", "--kind", "derived"], more].concat());
        let output = command.current_dir(places.path(folder)).output().expect("it runs");
        (
            output.status.success(),
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        )
    };
    let (succeeded, [text, error]) = study("read-only", &[]);
    assert!(succeeded && text.contains("pcp-reset structure, derived"), "{error}");
    for option in ["--html", "-o"] {
        let (succeeded, [text, error]) = study("read-only", &[option, "out"]);
        assert!(!succeeded && text.is_empty() && error.contains("cannot write out"), "{error}");
    }
    assert!(study("plain", &[]).0);
    assert!(places.names("plain").is_empty(), "{:?}", places.names("plain"));
}

/// Studies that take long: one that replays, and one whose programs write files.
const LONG: [&str; 2] =
    ["study pcp-reset --kind measured", "study zone-reclaim --kind measured --part fsmark"];

/// A long study, in a folder of its own for temporary files.
fn long(study: &str, places: &Places) -> Child {
    fs::create_dir_all(places.path("tmp")).expect("made");
    let mut command = framewright(&study.split(' ').collect::<Vec<_>>());
    command.args(["--samples", "10000", "-o"]);
    command.arg(places.path("plain/x.json")).env("TMPDIR", places.path("tmp"));
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs")
}

/// Whether a process has files of the programs of a study open, which have no names: several, where its result is one.
fn has_nameless(pid: &str) -> bool {
    let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let names = files.filter_map(|file| fs::read_link(file.path()).ok());
    names.filter(|name| name.to_string_lossy().ends_with(" (deleted)")).count() > 2
}

/// The file that an import gives to another command has no name.
#[test]
fn an_import_by_another_command_leaves_nothing() {
    let places = Places::new("trace-cmd");
    let (_, script) = inputs(&places);
    fs::create_dir_all(places.path("tmp")).expect("made");
    for (command, magic) in [("trace-cmd", &b"\x17\x08\x44tracing"[..]), ("perf", b"PERFILE2")] {
        let recorded = places.path("recorded");
        fs::write(&recorded, [magic, b" and the rest"].concat()).expect("written");
        // It lists the folder for temporary files, compares its input and answers.
        let text = format!(
            "#!/bin/sh\nls -A \"$TMPDIR\" >{0}/seen\ncmp /dev/stdin {recorded} && cat {script}\n",
            places.path("plain")
        );
        let program = places.path(&format!("folder/{command}"));
        fs::write(&program, text).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
        let path = format!("{}:{}", places.path("folder"), std::env::var("PATH").unwrap_or_default());
        let imported = places.path("plain/x.parquet");
        let mut import = framewright(&["import", &recorded, "-o", &imported]);
        let output = import.env("TMPDIR", places.path("tmp")).env("PATH", path).output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(Trace::read(imported.as_ref()).expect("it is whole").events.len(), 1);
        assert_eq!(fs::read_to_string(places.path("plain/seen")).expect("it ran"), "", "files with a name");
    }
}

#[test]
fn signals_leave_nothing_half_written() {
    let places = Places::new("signals");
    for (signal, study) in
        ["INT", "TERM", "KILL"].into_iter().flat_map(|signal| LONG.map(|study| (signal, study)))
    {
        let mut child = long(study, &places);
        // Until it is at work.
        let mut first = [0];
        child.stderr.as_mut().expect("piped").read_exact(&mut first).expect("it says what it does");
        let pid = child.id().to_string();
        if study == LONG[1] {
            while !has_nameless(&pid) {
                assert!(child.try_wait().expect("ours").is_none(), "its programs write files");
                thread::sleep(Duration::from_millis(10));
            }
        }
        crate::signal(&child, signal);
        wait_for(&mut child, 60);
        assert!(places.names("plain").is_empty(), "SIG{signal}, {study}: {:?}", places.names("plain"));
        assert!(places.names("tmp").is_empty(), "SIG{signal}, {study}: {:?}", places.names("tmp"));
    }
    assert!(Path::new(&places.path("plain")).is_dir());
}

#[test]
fn an_interrupt_shows_and_saves_the_parts_that_are_done() {
    let places = Places::new("interrupt");
    let saved = places.path("plain/x.json");
    let arguments = ["study", "pcp-reset", "--samples", "10000", "-o", &saved];
    let mut child =
        framewright(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    // The first part is arithmetic; the second takes hours.
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let second =
        lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("[2/3] pcp-reset replay")));
    assert!(second.is_some());
    // Two together are one, as `timeout` sends them.
    let both = format!("kill -INT {0}; kill -TERM {0}", child.id());
    assert!(Command::new("sh").args(["-c", &both]).status().expect("it runs").success());
    let output = child.wait_with_output().expect("ours");
    assert_eq!(output.status.code(), Some(1));
    let last = lines.last().expect("a line").expect("text");
    assert_eq!(last, "framewright: interrupted: 1 of 3 parts were done");
    assert!(String::from_utf8_lossy(&output.stdout).contains("batch 63, high 378"));
    let document = Document::read(saved.as_ref()).expect("saved");
    assert_eq!(document.results.len(), 1);
    assert!(document.argv.contains(&"pcp-reset".to_owned()) && document.date.is_some(), "{document:?}");
}

/// Whether a process catches SIGINT. One that has ended does, too: there is nothing to wait for.
fn catches_interrupts(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.is_none_or(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & 1 << 1 != 0))
        || status.contains("State:\tZ")
}

/// Ctrl-C shows and saves the rounds, models and fields that are there.
#[test]
fn what_is_interrupted_keeps_what_was_measured() {
    let places = Places::new("interrupted");
    let [trace, _] = crate::short_traces();
    let replay = format!("replay {trace} --samples 5000 --new batch=7");
    let bench = "bench --workload churn --order 0 --cpus 1 --compact --samples 5000";
    for (name, line, said) in [
        ("measured.json", replay.clone(), "samples were done"),
        ("modelled.json", format!("{replay} --machine xeon-gold-5320"), "samples were done"),
        ("bench.json", bench.to_owned(), "measurements were done"),
        ("here.toml", "machines --detect".to_owned(), "fields that were not measured are assumptions"),
    ] {
        let saved = places.path(&format!("plain/{name}"));
        let interrupted = |wait| {
            let mut command = framewright(&line.split(' ').chain(["-o", &saved]).collect::<Vec<_>>());
            let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
            let pid = child.id().to_string();
            // A busy machine takes long to begin.
            while !catches_interrupts(&pid) {
                thread::sleep(Duration::from_millis(20));
            }
            thread::sleep(Duration::from_secs(wait));
            signal(&child, "INT");
            child.wait_with_output().expect("ours")
        };
        let waits = if name == "here.toml" { &[1, 0][..] } else { &[4, 20, 80] };
        let outputs = waits.iter().map(|&wait| interrupted(wait));
        let began = |output: &Output| {
            let error = String::from_utf8_lossy(&output.stderr);
            output.status.code() == Some(1) && !error.contains("interrupted: 0 of ")
        };
        let output = outputs.into_iter().find(began).expect("it began");
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().last().unwrap_or_default();
        assert!(last.starts_with("framewright: interrupted: ") && last.contains(said), "{name}: {error}");
        if name == "here.toml" {
            assert!(framewright(&["machines", &saved]).output().expect("it runs").status.success());
            continue;
        }
        let document = Document::read(saved.as_ref()).expect("saved");
        // A configuration that never takes the lock has no bound by it, and moves no line of it.
        let may_lack_one =
            |metric: &Metric| metric.basis == Some(Basis::Bound) || metric.name.starts_with("line_");
        let second = &document.results[0].variants[1];
        let both = |metric: &Metric| metric.samples.len() == 2 && !metric.of(second).is_empty();
        let metrics = &document.results[0].metrics;
        let unpaired: Vec<&Metric> =
            metrics.iter().filter(|metric| !may_lack_one(metric) && !both(metric)).collect();
        assert!(unpaired.is_empty(), "{name}: {unpaired:#?}");
        let counts: BTreeSet<usize> = metrics
            .iter()
            .filter(|metric| metric.basis != Some(Basis::Bound))
            .flat_map(|metric| metric.samples.values().map(Vec::len))
            .collect();
        assert_eq!(counts.len(), 1, "{name}: each run has a sample of each figure: {counts:?}");
        assert!(!output.stdout.is_empty(), "{name}");
    }
}

/// A recorder that is killed leaves no tracing on, as its watchdog removes the instance; and `import` makes a trace of
/// the folder that it left.
#[test]
fn a_killed_recording_leaves_no_tracing_on_and_can_be_finished() {
    let places = Places::new("killed");
    let (trace, done) = (places.path("plain/x.parquet"), places.path("plain/done"));
    let script = format!("head -c 50m /dev/zero | tail -c 50m | wc -c; touch {done}; sleep 5");
    let mut child = framewright(&["record", "-o", &trace, "--", "sh", "-c", &script])
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let instance = format!("/sys/kernel/tracing/instances/framewright-{}", child.id());
    let until = |what: &dyn Fn() -> bool| {
        let since = Instant::now();
        while !what() && since.elapsed() < Duration::from_secs(90) {
            thread::sleep(Duration::from_millis(20));
        }
        what()
    };
    let tracing = || fs::read_to_string(format!("{instance}/tracing_on")).is_ok_and(|on| on.trim() == "1");
    if !until(&|| tracing()) {
        child.kill().expect("ours");
        return skipped(&child.wait_with_output().expect("ours").stderr);
    }
    // Made after tracing is on.
    let recording = || {
        let entries = fs::read_dir(places.path("plain")).expect("there").flatten().map(|entry| entry.path());
        let mut folders = entries.filter(|path| path.extension().is_some_and(|end| end == "recording"));
        folders.next().map(|path| path.display().to_string())
    };
    assert!(until(&|| recording().is_some()), "no folder of the recording");
    let folder = recording().expect("a folder of the recording");
    let rights = |path: &str| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!(rights(&folder), 0o700, "it names the command with its arguments");
    let import = |from: &str| framewright(&["import", from, "-o", &trace]).output().expect("it runs");
    let said = String::from_utf8(import(&folder).stderr).expect("text");
    assert!(said.contains("a recording that still runs; wait for its end"), "{said}");
    assert!(until(&|| Path::new(&done).exists()));
    // Until the threads that empty the buffers have looked again.
    thread::sleep(Duration::from_millis(500));
    child.kill().expect("ours");
    child.wait().expect("ours");
    assert!(until(&|| !Path::new(&instance).exists()), "{instance} is there still");

    let output = import(&folder);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rights(&trace), 0o600);
    let read = Trace::read(trace.as_ref()).expect("a trace");
    assert!(read.meta.cut && read.meta.command.starts_with("sh -c ") && read.meta.kernel.contains('.'));
    let pages = |comm: &str| read.events.iter().filter(|event| read.comm(event) == comm).count();
    // 50 MiB that `tail` keeps, in pages of at most 64 KiB.
    assert!(pages("tail") > 800 && pages("sh") > 0, "{} {}", pages("tail"), pages("sh"));
    let summary = framewright(&["trace", "summary", &trace]).output().expect("it runs");
    assert!(summary.status.success() && String::from_utf8_lossy(&summary.stdout).contains("CPU time"));

    let again = framewright(&["record", "-o", &trace, "--", "true"]).output().expect("it runs");
    let said = String::from_utf8(again.stderr).expect("text");
    assert!(said.contains(&format!("framewright import {folder} -o ")), "{said}");
}

/// `nohup` has a process ignore SIGHUP, and the command that it starts.
#[test]
fn a_recording_and_its_command_go_on_after_a_hangup_under_nohup() {
    let places = Places::new("nohup");
    let (trace, begun, done) = (places.path("x.parquet"), places.path("begun"), places.path("done"));
    let script = format!("touch {begun}; sleep 1; touch {done}");
    let mut child = Command::new("nohup")
        .args([env!("CARGO_BIN_EXE_framewright"), "record", "-o", &trace, "--", "sh", "-c", &script])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nohup can be run");
    while !Path::new(&begun).exists() {
        if child.try_wait().expect("ours").is_some() {
            return skipped(&child.wait_with_output().expect("ours").stderr);
        }
        thread::sleep(Duration::from_millis(10));
    }
    signal(&child, "HUP");
    let output = child.wait_with_output().expect("ours");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Path::new(&done).exists() && Trace::read(trace.as_ref()).is_ok());
}

#[test]
fn a_run_of_everything_begins_with_how_long_it_takes() {
    let places = Places::new("lasts");
    let mut child = framewright(&["study", "all", "--quick"])
        .current_dir(places.path("plain"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.contains(" parts, less than a minute; Ctrl-C"), "{first}");
    child.kill().expect("ours");
    child.wait().expect("ours");
}
