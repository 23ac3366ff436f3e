//! The real binary, as a user runs it. One program for all of it, because each is linked with everything that the lab
//! uses.

mod boot;
mod browser;
mod cli;
mod guide;
mod memory;
mod options;
mod outputs;
mod schema;
mod screens;
mod shells;
mod trial;
mod work;

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Instant;

use framewright_report::result::Document;
use framewright_trace::trace::Trace;

/// A recorded compile.
const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/compile.parquet");
/// A whole machine, recorded with what its kernel's own lists did.
const INSIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/inside.parquet");
/// An event as `perf script` prints it.
const EVENT: &str = "cc1 7 [000] 1.000001: kmem:mm_page_alloc: page=0x1 pfn=0x10 order=0 migratetype=1 gfp_flags=GFP_KERNEL\n";

/// The beginnings of [`TRACE`] and [`INSIDE`], for tests to which it does not matter what is in them: most of the time
/// that a replay takes is the decoding of its trace.
fn short_traces() -> [&'static str; 2] {
    static SHORT: OnceLock<[String; 2]> = OnceLock::new();
    let [compile, inside] = SHORT.get_or_init(|| {
        [(TRACE, 10_000), (INSIDE, 20_000)].map(|(path, events)| {
            let mut trace = Trace::read(path.as_ref()).expect("shipped");
            trace.events.truncate(events);
            let name = Path::new(path).file_name().expect("a file").to_string_lossy();
            let short = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("short-{name}"));
            trace.write(&short).expect("the target directory can be written");
            short.display().to_string()
        })
    });
    [compile, inside]
}

fn framewright(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_framewright"));
    command.env("LC_ALL", "C.UTF-8").env_remove("NO_COLOR").stdin(Stdio::null()).args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    framewright(arguments).output().expect("the binary was built")
}

/// What a command that succeeds prints.
fn text(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The results of a command that succeeds.
fn document(arguments: &[&str]) -> Document {
    Document::parse(&text(&[arguments, &["--format", "json"]].concat())).expect("a result")
}

/// The line that says why not; clap's own can be several.
fn refusal(arguments: &[&str], code: i32) -> String {
    let output = run(arguments);
    let error = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
    assert!(error.starts_with("error: ") || error.lines().count() == 1, "one line: {error}");
    error
}

/// Sends a child a signal.
fn signal(child: &Child, name: &str) {
    let kill = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(kill.expect("kill can be run").success());
}

/// Whether this machine can record, which needs tracepoints of the kernel. If not, standard error says why.
fn can_record() -> bool {
    let probe = run(&["record", "-o", "/dev/null", "--", "true"]);
    if !probe.status.success() {
        skipped(&probe.stderr);
    }
    probe.status.success()
}

/// Says why nothing was recorded: how `record` ended.
fn skipped(error: &[u8]) {
    eprintln!("skipped: record, which says {}", String::from_utf8_lossy(error).trim());
}

/// Waits for the end of a child.
fn wait_for(child: &mut Child, seconds: u64) {
    let since = Instant::now();
    while child.try_wait().expect("ours").is_none() {
        if since.elapsed() > Duration::from_secs(seconds) {
            child.kill().expect("ours");
            panic!("it does not end");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// A folder of a test, removed at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("framewright-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the temporary directory can be written");
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("below the scratch")).expect("made");
        fs::write(&path, content).expect("written");
        path.display().to_string()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
