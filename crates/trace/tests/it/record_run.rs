//! Recordings of real runs. They take root and a kernel with tracefs; elsewhere each says why it was skipped.

use core::time::Duration;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright_trace::error::Error;
use framewright_trace::kernel_time::{Doing, Samples};
use framewright_trace::record::{Options, Recording, Scope, User, keep_private, record};
use framewright_trace::trace::{EventKind, Trace};

use crate::common::{Folder, named, named_notes};

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
    let root =
        fs::metadata("/proc/self").is_ok_and(|process| std::os::unix::fs::MetadataExt::uid(&process) == 0);
    // A mount point is there also while nothing is mounted on it.
    root && fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("\ttracefs\n"))
        && Path::new("/sys/kernel/tracing").is_dir()
}

/// One recording at a time runs in this process. Tests that look at what a recording leaves behind hold this lock, too.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// As [`turn`]; `None`, said on standard error, where this machine cannot record.
fn turn_to_record() -> Option<MutexGuard<'static, ()>> {
    if !can_record() {
        eprintln!("skipped: this machine cannot record");
        return None;
    }
    Some(turn())
}

/// Our instances in the kernel. One that is on its way out, as the kernel keeps it for a reader, is given a minute.
fn instances() -> Vec<OsString> {
    let instance = format!("framewright-{}", std::process::id());
    let now = || -> Vec<OsString> {
        let entries = fs::read_dir("/sys/kernel/tracing/instances").into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).filter(|name| *name == *instance).collect()
    };
    let begun = std::time::Instant::now();
    while !now().is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(50));
    }
    now()
}

/// A loop that does nothing but fault pages in and give them back spends much of its time on page allocation, and the
/// samples say where.
#[test]
fn a_run_is_sampled_and_the_share_of_page_allocation_is_known() {
    let _turn = turn();
    let script = "for n in 1 2 3 4 5 6; do head -c 100m /dev/zero | tail -c 100m >/dev/null; done";
    let Some(recording) = run(script, &Options::default()) else { return };
    if let Some(why) = recording.unsampled {
        eprintln!("skipped: {why}");
        return;
    }
    let samples = Samples::of(&recording.trace).expect("it was sampled");
    let written = Trace::read_bytes(&recording.trace.to_bytes().unwrap(), "t").unwrap();
    assert_eq!(Samples::of(&written).as_ref(), Some(&samples), "they are kept");
    let allocating = samples.share_of(&[Doing::Allocating]);
    assert!(samples.count() > 50 && allocating.percent > 0.3, "{allocating:?} {samples:?}");
    assert!(allocating.low <= allocating.percent && allocating.percent <= allocating.high);
    assert!(samples.share_of(&Doing::PARTS).percent < 100.0);
    assert!(samples.call_sites().next().is_some(), "{samples:?}");
}

#[test]
fn a_run_is_recorded_with_its_children_and_their_memory() {
    let _turn = turn();
    // 32 MiB of page cache, in a child that is named by exec; a status of its own.
    let script = "f=$(mktemp -p \"$TMPDIR\"); head -c 32M /dev/zero >\"$f\"; rm \"$f\"; (exit 7)";
    let Some(recording) = run(script, &Options::default()) else { return };
    let Recording { trace, status, system_events, threads, .. } = recording;
    assert_eq!(status.unwrap().code(), Some(7));
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
    // The trace is valid, and no frame is allocated twice without a free between.
    let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
    assert!(named(&read) == named(&trace), "the events differ");
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

/// Whether a process still runs.
fn lives(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn what_a_limited_run_has_started_ends_with_it() {
    let _turn = turn();
    let dir = Folder::new("record-tree");
    let pid = dir.path().join("pid");
    // A grandchild in a session of its own, which no signal to a group would reach.
    let script = format!(
        "(setsid sh -c 'echo $$ >{0}; sleep 600; true' & exec sleep 600) & sleep 601; true",
        pid.display()
    );
    let options = Options { limit: Some(Duration::from_millis(500)), ..Options::default() };
    let Some(recording) = run(&script, &options) else { return };
    assert_eq!(recording.status.unwrap().signal(), Some(15));
    assert!(!recording.trace.events.is_empty());
    let pid: u32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    assert!(!lives(pid), "process {pid} of the command's tree runs on");
}

#[test]
fn a_command_can_run_as_somebody_else() {
    let _turn = turn();
    let Some(nobody) = User::find("nobody").ok().filter(|_| can_record()) else {
        eprintln!("skipped: a_command_can_run_as_somebody_else: no root, or no user nobody");
        return;
    };
    let dir = Folder::new("record-user");
    // Folders of tests are root's; what the command writes must still belong to that user.
    let out = dir.path().join("out");
    fs::write(&out, "").unwrap();
    std::os::unix::fs::chown(&out, Some(nobody.uid()), Some(nobody.gid())).unwrap();
    let script = "id -u; id -g; id -G; echo $HOME:$USER; test ! -w /etc/passwd && echo powerless";
    let options = Options { user: Some(nobody.clone()), ..Options::default() };
    let command = format!("({script}) >{}", out.display());
    let Some(recording) = run(&command, &options) else { return };
    assert_eq!(recording.status.unwrap().code(), Some(0), "{:?}", fs::read_to_string(&out));
    let text = fs::read_to_string(&out).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], nobody.uid().to_string());
    assert_eq!(lines[1], nobody.gid().to_string());
    assert!(!lines[2].split(' ').any(|group| group == "0"), "root's group: {text}");
    assert!(lines[3].ends_with(":nobody") && lines[4] == "powerless", "{text}");
    // This process is still root's.
    assert!(rustix::process::geteuid().is_root());

    let trace = dir.path().join("t.parquet");
    recording.trace.write(&trace).unwrap();
    keep_private(&trace, Some(&nobody)).unwrap();
    let metadata = fs::metadata(&trace).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!(
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o777),
        (nobody.uid(), nobody.gid(), 0o600)
    );
    // Who owns a link's target is not checked.
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&out, &link).unwrap();
    fs::write(dir.path().join("kept"), "").unwrap();
    keep_private(&link, Some(&nobody)).unwrap();
    assert_eq!(fs::metadata(&out).unwrap().mode() & 0o777, 0o644);
}

#[test]
fn a_recording_has_a_limit_and_the_command_goes_on() {
    let _turn = turn();
    let dir = Folder::new("record-limit");
    let done = dir.path().join("done");
    let options = Options {
        most_bytes: 1 << 18,
        spool: dir.path().to_owned(),
        scope: Scope::System,
        ..Options::default()
    };
    // 200 MiB of page faults are some megabytes of events; the pause lets a reader look meanwhile.
    let script = format!(
        "for n in 1 2 3 4; do head -c 50M /dev/zero | tail -c 40M >/dev/null; sleep 0.1; done; touch {}",
        done.display()
    );
    let Some(recording) = run(&script, &options) else { return };
    assert!(recording.cut && recording.trace.meta.cut && done.exists());
    assert!(recording.cost.bytes >= 1 << 18 && recording.cost.reading > Duration::ZERO);
    // Of either kind: another process that ends meanwhile frees all that it had.
    // In huge pages, 200 MiB are a hundred faults, and the limit may come before the last of them.
    let events = recording.trace.events.len();
    assert!(events > 10, "{events} events");
    // Nothing is left on disk.
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["done"]);
}

#[test]
fn the_allocators_inside_is_kept_beside_the_blocks() {
    let _turn = turn();
    let options = Options {
        scope: Scope::System,
        events: ["fallbacks", "compaction", "reclaim", "kmem/mm_page_alloc_extfrag"]
            .map(str::to_owned)
            .into(),
        ..Options::default()
    };
    let Some(recording) = run("echo 1 >/proc/sys/vm/compact_memory; true", &options) else { return };
    let trace = recording.trace;
    assert_eq!(trace.meta.attribution, "whole system");
    assert!(trace.events.len() >= recording.system_events, "all is kept");
    for name in ["/proc/zoneinfo", "/proc/buddyinfo", "/proc/vmstat"] {
        let states: Vec<_> = trace.notes.iter().filter(|note| note.name == name).collect();
        assert_eq!(states.len(), 2, "{name} at the start and at the end");
        assert!(states[0].time_ns < states[1].time_ns && !states[0].text.is_empty());
    }
    if Path::new("/sys/kernel/tracing/events/compaction").exists() || trace.notes.len() > 8 {
        let begun = trace.notes.iter().find(|note| note.name == "mm_compaction_begin");
        assert!(begun.is_some_and(|note| note.text.contains("zone_start=") && note.text.contains(" sync=")));
    }
    let read = Trace::read_bytes(&trace.to_bytes().unwrap(), "t").unwrap();
    assert!(named_notes(&read) == named_notes(&trace), "the notes differ");
    assert!(named(&read) == named(&trace), "the events differ");

    let wrong = Options { events: vec!["../kmem".to_owned()], ..Options::default() };
    let error = record(&["true".into()], &wrong).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot record: this kernel has no events \"../kmem\"; \
         name a set (fallbacks, compaction, reclaim, locks, faults, ticks), GROUP/ or GROUP/NAME"
    );
}

#[test]
fn a_running_process_is_recorded_with_what_it_starts() {
    let Some(_turn) = turn_to_record() else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", "read go; head -c 8M /dev/zero | tail -c 7M >/dev/null; true"]);
    let mut child = shell.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let options = Options { scope: Scope::Process(child.id()), ..Options::default() };
    let mut input = child.stdin.take().unwrap();
    let recording = std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(std::io::Write::write_all(&mut input, b"go\n"));
            child.wait().unwrap();
        });
        record(&[], &options).unwrap()
    });
    assert_eq!(recording.status, None);
    for name in ["sh", "head", "tail"] {
        assert!(recording.trace.comms.names().iter().any(|comm| comm == name), "{:?}", recording.trace.comms);
    }
    for none in [0, 0x3fff_ffff] {
        let options = Options { scope: Scope::Process(none), ..Options::default() };
        let error = record(&[], &options).unwrap_err();
        assert_eq!(error.to_string(), format!("cannot record: there is no process {none}; check its number"));
    }
}

/// The recorder is among the descendants of the shell that has started it.
#[test]
fn a_process_is_recorded_without_its_recorder() {
    let Some(_turn) = turn_to_record() else { return };
    let parent = rustix::process::getppid().expect("a parent").as_raw_nonzero().get().cast_unsigned();
    let limit = Some(Duration::from_millis(300));
    let scopes = [parent, std::process::id()].map(Scope::Process);
    let [of_parent, of_itself] = scopes.map(|scope| {
        let recording = record(&[], &Options { scope, limit, ..Options::default() }).unwrap();
        let threads = fs::read_dir("/proc/self/task").unwrap().flatten();
        let threads: Vec<u32> =
            threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // A frame of the parent's may be freed while one of these threads runs, as by an interrupt.
        let allocations = recording.trace.events.iter().filter(|event| event.kind == EventKind::PageAlloc);
        allocations.filter(|event| threads.contains(&event.pid)).count()
    });
    assert!(of_parent == 0 && of_itself > 0, "{of_parent} {of_itself}");
}

#[test]
fn a_signal_ends_the_command_but_not_the_recording() {
    let Some(_turn) = turn_to_record() else { return };
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
    assert_eq!(recording.status.unwrap().signal(), Some(15));
    assert!(recording.trace.comms.names().iter().any(|comm| comm == "touch"));
    assert_eq!(instances(), Vec::<OsString>::new());
}

#[test]
fn a_command_that_is_not_there_is_told_and_leaves_nothing() {
    let Some(_turn) = turn_to_record() else { return };
    let error = record(&["/nowhere/cc".into()], &Options::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "cannot run /nowhere/cc: No such file or directory (os error 2); check its name and PATH"
    );
    assert_eq!(instances(), Vec::<OsString>::new());
}

/// Set where a test runs itself again as another user.
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
