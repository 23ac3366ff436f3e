//! `framewright try`: on a root of files, and as root on this kernel.

use core::time::Duration;
use std::fs;
use std::io::ErrorKind;
use std::process::{Child, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use framewright_report::result::Document;
use framewright_trace::proc::signals;

use crate::{Scratch, framewright, refusal, run, text};

const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
/// Where this kernel has the same file.
const OWN: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Only one `try` at a time changes this kernel's settings.
fn turn_on_this_kernel() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A root with a setting that costs nothing: files of its own.
fn root(scratch: &Scratch) -> String {
    fs::create_dir_all(scratch.path("run")).expect("made");
    scratch.file("proc/sys/vm/compaction_proactiveness", "20\n");
    scratch.file(ENABLED, "always [madvise] never\n");
    scratch.path("")
}

#[test]
fn a_command_runs_under_both_settings_in_turn_and_they_come_back() {
    let scratch = Scratch::new("try");
    let root = root(&scratch);
    let (setting, log) = (scratch.path("proc/sys/vm/compaction_proactiveness"), scratch.path("log"));
    let command = format!("cat {setting} >>{log}; echo >>{log}");
    let arguments = [
        "try",
        "--root",
        &root,
        "--no-prediction",
        "--set",
        "vm.compaction_proactiveness=98",
        "--rounds",
        "3",
    ];
    let (prepare, json) = (format!("echo p >>{log}"), scratch.path("x.json"));
    text(&[&arguments[..], &["--prepare", &prepare, "-o", &json, "--", "sh", "-c", &command]].concat());
    let document = Document::read(json.as_ref()).expect("a result");
    // Base and new, new and base, base and new, after a run that is not counted wherever the setting changes.
    let seen = fs::read_to_string(&log).expect("written");
    assert_eq!(
        seen.split_whitespace().collect::<Vec<_>>(),
        ["20", "20", "98", "98", "98", "20", "20", "20", "98", "98"].map(|value| ["p", value]).concat()
    );
    assert_eq!(fs::read_to_string(&setting).expect("there"), "20");
    assert!(!scratch.0.join("run/framewright-try.json").exists());
    let part = &document.results[0];
    assert_eq!(part.variants, ["vm.compaction_proactiveness=20", "vm.compaction_proactiveness=98"]);
    for name in ["elapsed_ms", "cpu_time_ms", "page_faults", "pages_allocated"] {
        let metric = part.find(name).unwrap_or_else(|| panic!("{name}"));
        assert!(part.variants.iter().all(|variant| metric.of(variant).len() == 3), "{name}");
    }
    // A command that fails changes nothing for good.
    let failed =
        [&arguments[..], &["--", "sh", "-c", "echo noise >&2; echo no such input >&2; exit 3"]].concat();
    let said = refusal(&failed, 1);
    assert!(said.trim_end().ends_with("cannot be compared: no such input"), "{said}");
    assert_eq!(fs::read_to_string(&setting).expect("there"), "20");
    let wrong = ["try", "--root", &root, "--set", "vm.nothing=1", "--", "true"];
    assert!(refusal(&wrong, 2).contains("no such setting"));
}

/// Runs the command until a setting has that value, however long that takes beside other programs.
fn started_until(arguments: &[&str], file: &str, value: &str) -> Child {
    let mut child =
        framewright(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    while !fs::read_to_string(file).expect("there").contains(value) {
        assert_eq!(child.try_wait().expect("ours"), None, "it has ended, and {file} was never {value}");
        thread::sleep(Duration::from_millis(2));
    }
    child
}

/// Runs the command until a setting has that value, then kills it with SIGKILL. Its parent does not ask for its end, so
/// that it stays in `/proc` as a zombie.
fn killed_while(arguments: &[&str], file: &str, value: &str) -> Child {
    let mut child = started_until(arguments, file, value);
    child.kill().expect("it runs");
    let stat = format!("/proc/{}/stat", child.id());
    while !fs::read_to_string(&stat).expect("a zombie").contains(") Z ") {
        thread::sleep(Duration::from_millis(2));
    }
    child
}

#[test]
fn what_a_killed_try_left_changed_the_next_start_brings_back() {
    let scratch = Scratch::new("try-killed");
    let root = root(&scratch);
    let setting = scratch.path("proc/sys/vm/compaction_proactiveness");
    let set = ["try", "--root", &root, "--no-prediction", "--set", "vm.compaction_proactiveness=98"];
    // Longer than it takes to kill it, however busy the machine is.
    let program = format!("! grep -q 98 {setting} || sleep 20");
    let mut killed = killed_while(&[&set[..], &["--", "sh", "-c", &program]].concat(), &setting, "98");
    assert_eq!(fs::read_to_string(&setting).expect("there"), "98");
    let next = [&set[..], &["--rounds", "1", "--", "true"]].concat();
    // The next one finds that it is 98, and must not take that for what it was.
    assert!(run(&next).status.success(), "{}", String::from_utf8_lossy(&run(&next).stderr));
    assert_eq!(fs::read_to_string(&setting).expect("there"), "20");
    killed.wait().expect("it has ended");
}

/// Also of the run that is recorded for the prediction: what it printed stood before the JSON.
#[test]
fn the_output_of_the_command_is_dropped() {
    let scratch = Scratch::new("try-output");
    let set = ["try", "--root", &root(&scratch), "--set", "vm.compaction_proactiveness=98", "--rounds", "1"];
    let command = ["--format", "json", "--", "sh", "-c", "echo noise; echo noise >&2"];
    let output = run(&[&set[..], &command].concat());
    let [shown, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).expect("text"));
    assert!(Document::parse(&shown).is_ok() && !said.contains("noise"), "{shown}{said}");
}

/// Whatever ends it: also after a prediction, whose recording has handlers of its own, and a second signal.
#[test]
fn a_try_that_a_signal_ends_restores_the_setting() {
    for (signal, prediction) in [("INT", &[][..]), ("TERM", &["--no-prediction"]), ("HUP", &[])] {
        // These tests may run under `nohup` themselves.
        if signal == "HUP" && signals("SigIgn") & 1 == 1 {
            continue;
        }
        let scratch = Scratch::new(&format!("try-{signal}"));
        let root = root(&scratch);
        let setting = scratch.path("proc/sys/vm/compaction_proactiveness");
        let set = ["try", "--root", &root, "--set", "vm.compaction_proactiveness=98", "--rounds", "1000"];
        let arguments = [&set[..], prediction, &["--", "sleep", "0.3"]].concat();
        let mut child = started_until(&arguments, &setting, "98");
        for _ in 0..2 {
            crate::signal(&child, signal);
            thread::sleep(Duration::from_millis(20));
        }
        let status = child.wait().expect("ours");
        assert_eq!(fs::read_to_string(&setting).expect("there"), "20", "SIG{signal}: {status}");
        assert!(status.code() == Some(1) && !scratch.0.join("run/framewright-try.json").exists(), "{status}");
    }
}

/// Linux makes `vm.dirty_ratio` 0 where `vm.dirty_bytes` is set, and refuses to set that to 0 again.
#[test]
fn a_setting_that_zeroes_another_comes_back_with_it() {
    let _turn = turn_on_this_kernel();
    let files = ["/proc/sys/vm/dirty_bytes", "/proc/sys/vm/dirty_ratio"];
    let read = || files.map(|file| fs::read_to_string(file).unwrap_or_default().trim().to_owned());
    let before = read();
    if before[0] != "0" || fs::write(files[1], &before[1]).is_err() {
        eprintln!("skipped: vm.dirty_ratio is not in use here, or cannot be set");
        return;
    }
    text(&["try", "--set", "vm.dirty_bytes=1073741824", "--rounds", "2", "--", "true"]);
    let after = read();
    let _ = fs::write(files[1], &before[1]);
    assert_eq!(after, before);
}

/// A refused value costs no run of the command.
#[test]
fn a_value_that_the_kernel_refuses_is_refused_before_the_command_runs() {
    let _turn = turn_on_this_kernel();
    if fs::write(OWN, "no such value").is_err_and(|cause| cause.kind() != ErrorKind::InvalidInput) {
        eprintln!("skipped: transparent huge pages cannot be set here");
        return;
    }
    let scratch = Scratch::new("try-refused");
    let log = scratch.path("log");
    let refused = ["try", "--set", "transparent_hugepage=no_such_value", "--", "touch", &log];
    assert!(refusal(&refused, 1).contains("cannot write no_such_value to"));
    assert!(!scratch.0.join("log").exists());
}

/// Sets this kernel's transparent huge pages until it is dropped.
struct HugePages(String);

impl HugePages {
    /// `None` where they cannot be set.
    fn set(value: &str) -> Option<Self> {
        let text = fs::read_to_string(OWN).ok()?;
        let previous = text.split_once('[')?.1.split_once(']')?.0.to_owned();
        fs::write(OWN, value).ok()?;
        Some(Self(previous))
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(OWN, &self.0);
    }
}

/// `never` against `always` for an array: a setting that matters, on this kernel.
#[test]
fn huge_pages_show_on_this_kernel_and_come_back_after_a_kill() {
    let _turn = turn_on_this_kernel();
    let Some(_restored) = HugePages::set("always") else {
        eprintln!("skipped: transparent huge pages cannot be set here");
        return;
    };
    // Writes 128 MiB that it allocates in one piece.
    let program = ["--", "dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=2"];
    let arguments = [&["try", "--set", "transparent_hugepage=never"][..], &program].concat();
    let shown = text(&arguments);
    assert!(shown.contains(&format!("echo never > {OWN}")) && shown.lines().count() <= 24, "{shown}");
    let row =
        shown.lines().find(|line| line.starts_with("page faults ")).unwrap_or_else(|| panic!("{shown}"));
    // Intervals apart: ten thousands of faults beside hundreds.
    assert!(row.ends_with('-'), "{shown}");
    let always = || fs::read_to_string(OWN).expect("there").contains("[always]");
    assert!(always());
    let mut killed = killed_while(&arguments, OWN, "[never]");
    text(&["settings", "batch"]);
    assert!(always(), "any command restores it");
    killed.wait().expect("it has ended");
}
