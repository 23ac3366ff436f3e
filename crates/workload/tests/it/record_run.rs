//! Recordings of real runs. They take root and a kernel with tracefs; elsewhere each says why it was skipped.

use core::time::Duration;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright_workload::error::Error;
use framewright_workload::record::{Options, Recording, record};
use framewright_workload::trace::{EventKind, Trace};

use crate::common::Folder;

/// Records a shell's run of `script`; `None`, said on standard error, where this machine cannot.
fn run(script: &str, options: &Options) -> Option<Recording> {
    let command = ["sh", "-c", script].map(OsString::from);
    match record(&command, options) {
        Ok(recording) => Some(recording),
        Err(error @ Error::CannotRecord { .. }) if !can_record() => {
            eprintln!("skipped: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Whether this machine has what it takes, found out in another way than the recorder does.
fn can_record() -> bool {
    let root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    root && Path::new("/sys/kernel/tracing/events/kmem/mm_page_alloc/format").exists()
}

/// Recordings of this process take turns anyway; tests that look at what is left behind must as well.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Our instances in the kernel.
fn instances() -> Vec<OsString> {
    let own = format!("framewright-{}", std::process::id());
    let entries = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(|name| *name == *own).collect()
}

#[test]
fn a_run_is_recorded_with_its_children_and_their_memory() {
    let _turn = turn();
    // 32 MiB of page cache, in a child that is named by exec; a status of its own.
    let script = "f=$(mktemp -p \"$TMPDIR\"); head -c 32M /dev/zero >\"$f\"; rm \"$f\"; (exit 7)";
    let Some(recording) = run(script, &Options::default()) else { return };
    let Recording { trace, status, system_events, threads } = recording;
    assert_eq!(status.code(), Some(7));
    assert_eq!(instances(), Vec::<OsString>::new(), "the instance is gone");
    assert!(threads >= 5, "shell, mktemp, head, rm, subshell: {threads}");
    assert!(system_events >= trace.events.len());

    let pages = |kind: EventKind, comm: &str| -> u64 {
        let events = trace.events.iter().filter(|event| event.kind == kind && trace.comm(event) == comm);
        events.map(|event| 1 << event.order).sum()
    };
    if trace.meta.lost_events == Some(0) {
        // Frames of 4 KiB; larger ones if the machine has them.
        let written = (32 << 20) / rustix::param::page_size() as u64;
        assert!(pages(EventKind::PageAlloc, "head") >= written, "{}", pages(EventKind::PageAlloc, "head"));
        let freed: u64 = trace.comms.names().iter().map(|comm| pages(EventKind::PageFree, comm)).sum();
        assert!(freed >= written, "{freed}");
        for name in ["sh", "head", "rm", "mktemp"] {
            assert!(
                trace.comms.names().iter().any(|comm| comm == name),
                "{name} of {:?}",
                trace.comms.names()
            );
        }
    }
    assert!(trace.meta.command.starts_with("sh -c 'f=$(mktemp"), "{}", trace.meta.command);
    assert_eq!((trace.meta.source.as_str(), trace.meta.clock.as_str()), ("tracefs", "mono"));
    assert!(trace.meta.cpus > 0 && !trace.meta.kernel.is_empty() && trace.meta.recorded_at.ends_with('Z'));
    // It keeps the rules of a trace, and no frame is handed out twice.
    let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
    assert_eq!(read.events, trace.events);
    if trace.meta.lost_events == Some(0) {
        check_frames(&trace);
    }
}

/// Every frame is allocated at most once before it is freed: events of all CPUs are in their true order.
fn check_frames(trace: &Trace) {
    let mut held = std::collections::HashSet::new();
    for event in &trace.events {
        let frames = event.pfn..event.pfn + (1 << event.order);
        for frame in frames {
            match event.kind {
                EventKind::PageAlloc => assert!(held.insert(frame), "{event:?} of a frame that is not free"),
                EventKind::PageFree => drop(held.remove(&frame)),
                _ => {}
            }
        }
    }
}

#[test]
fn what_the_buffers_cannot_hold_is_counted() {
    let _turn = turn();
    // Too small for 400 MiB of page faults between two looks at it, however fast they are.
    let options = Options { buffer_kib: 1, ..Options::default() };
    let Some(recording) = run("head -c 400M /dev/zero | tail -c 200M >/dev/null", &options) else { return };
    assert!(recording.trace.meta.lost_events.is_some_and(|lost| lost > 0), "{:?}", recording.trace.meta);
}

#[test]
fn a_run_can_be_limited() {
    let _turn = turn();
    let options = Options { limit: Some(Duration::from_millis(100)), ..Options::default() };
    let Some(recording) = run("exec sleep 600", &options) else { return };
    assert_eq!(recording.status.signal(), Some(15));
    assert!(!recording.trace.events.is_empty());
}

#[test]
fn a_signal_ends_the_command_but_not_the_recording() {
    let _turn = turn();
    if !can_record() {
        eprintln!("skipped: this machine cannot record");
        return;
    }
    let dir = Folder::new("record-run");
    let started = dir.path().join("started");
    let script = format!("touch {}; exec sleep 600", started.display());
    let recording = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !started.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            // Caught, because the command runs.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        });
        run(&script, &Options::default()).expect("this machine can record")
    });
    assert_eq!(recording.status.signal(), Some(15));
    assert!(recording.trace.comms.names().iter().any(|comm| comm == "touch"));
    assert_eq!(instances(), Vec::<OsString>::new());
}

#[test]
fn a_command_that_is_not_there_is_told_and_leaves_nothing() {
    let _turn = turn();
    if !can_record() {
        eprintln!("skipped: this machine cannot record");
        return;
    }
    let error = record(&["/nowhere/cc".into()], &Options::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot run /nowhere/cc: No such file or directory (os error 2); check its name and PATH"
    );
    assert_eq!(instances(), Vec::<OsString>::new());
}

/// Set where a test runs itself again as somebody else.
const AS_NOBODY: &str = "FRAMEWRIGHT_TEST_AS_NOBODY";

#[test]
fn without_root_one_line_says_so() {
    let root = rustix::process::geteuid().is_root();
    if root && std::env::var_os(AS_NOBODY).is_none() {
        let mut again = Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "record_run::without_root_one_line_says_so"]);
        match again.env(AS_NOBODY, "1").uid(65534).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(error) => eprintln!("skipped: nobody cannot run this program: {error}"),
        }
        return;
    }
    assert!(!root);
    let error = record(&["true".into()], &Options::default()).unwrap_err().to_string();
    assert_eq!(error, "cannot record: tracing a whole system takes root; run as root, for example with sudo");
}
