//! Promise 14: memory of the real binary while it reads large valid input.

use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::process::{Command, Stdio};
use std::thread;

use framewright_trace::trace::{Event, EventKind, Trace};

use crate::{Scratch, framewright};

const MIB: u64 = 1 << 20;
/// Memory that a command may use beside twice what is valid of its input, in bytes.
const FREE: u64 = 300 * MIB;
/// Bytes of an event of a trace when it is decoded: what is valid of a compressed file.
const EVENT: u64 = size_of::<Event>() as u64;

/// Runs a command to its end; the largest resident size that was seen of it, in bytes. It must end with `code`.
fn peak(arguments: &[&str], code: i32) -> u64 {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    let scratch = Scratch::new(&format!("memory-said-{}", CALLS.fetch_add(1, Ordering::Relaxed)));
    let said = File::create(scratch.path("stderr")).expect("made");
    let mut child = framewright(arguments).stdout(Stdio::null()).stderr(said).spawn().expect("it runs");
    let path = format!("/proc/{}/status", child.id());
    let mut most = 0;
    let status = loop {
        let status = fs::read_to_string(&path).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        most = most.max(1024 * kib.unwrap_or(0));
        match child.try_wait().expect("it is a child") {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(1)),
        }
    };
    let said = fs::read_to_string(scratch.path("stderr")).expect("written");
    assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
    most
}

/// Checks that a command which accepts input, of which `valid` bytes are valid, keeps the promise.
fn kept(arguments: &[&str], valid: u64) {
    let most = peak(arguments, 0);
    assert!(most > MIB, "{arguments:?}: its memory was never seen");
    eprintln!("{arguments:?}: {} MiB for {} MiB", most / MIB, valid / MIB);
    assert!(most <= FREE + 2 * valid, "{arguments:?}: {} MiB for {} MiB", most / MIB, valid / MIB);
}

/// Writes a file piece by piece until it is that long.
fn long(path: &str, begin: &str, end: &str, bytes: u64, piece: impl Fn(u64) -> String) {
    let mut file = BufWriter::new(File::create(path).expect("made"));
    let mut write = |text: &str| {
        file.write_all(text.as_bytes()).expect("written");
        text.len() as u64
    };
    let mut length = write(begin);
    for number in 0.. {
        if length >= bytes {
            break;
        }
        length += write(&piece(number));
    }
    write(end);
}

/// Blocks that are all allocated before the first is freed, in no order.
fn trace(events: u64) -> Trace {
    let mut trace = Trace::default();
    let comm = trace.comms.intern("cc1");
    let pfn = |n: u64| (n.wrapping_mul(0x9e37_79b9) % (events / 2)) << 4;
    let event = |n: u64| {
        let kind = if n < events / 2 { EventKind::PageAlloc } else { EventKind::PageFree };
        let migratetype = (kind == EventKind::PageAlloc).then_some(1);
        let (time_ns, pfn, cpu) = (1000 * n, pfn(n % (events / 2)), (n % 2) as u16);
        Event { time_ns, pfn, comm, cpu, migratetype, kind, ..Event::default() }
    };
    trace.events = (0..events).map(event).collect();
    trace
}

#[test]
fn commands_keep_to_the_memory_that_valid_input_allows() {
    const EVENTS: u64 = 1_000_000;
    let scratch = Scratch::new("memory");
    let path = scratch.path("long.parquet");
    trace(EVENTS).write(path.as_ref()).expect("written");
    kept(&["trace", "summary", &path], EVENTS * EVENT);
    for format in ["folded", "perfetto"] {
        kept(&["trace", "export", &path, "--to", format, "-o", "/dev/null"], EVENTS * EVENT);
    }
    kept(&["replay", &path, "--samples", "1", "-q"], EVENTS * EVENT);

    let path = scratch.path("script.txt");
    let bytes = 64 * MIB;
    long(&path, "", "", bytes, |n| format!("a 1 [0] {n}.0: kmem:mm_page_free: page=0x1 pfn={n} order=0\n"));
    kept(&["import", &path, "-o", "/dev/null"], bytes);
}

/// The descriptors of 16 TiB, twice: the system ended the command, and perhaps others.
#[test]
fn a_replay_is_refused_memory_whose_descriptors_do_not_fit() {
    let error = crate::refusal(&["replay", "none.parquet", "--memory", "16T"], 1);
    assert!(error.contains("MiB are available: choose a smaller --memory"), "{error}");
}

/// Under a limit of 8 GB, a machine whose descriptors are more.
#[test]
fn a_machine_that_finds_no_address_space_is_refused_with_what_allows_it() {
    let study = "study parallel-init --part machines --kind simulated --quick --samples 1";
    let limited = format!("ulimit -v 8000000; {} {study}", env!("CARGO_BIN_EXE_framewright"));
    let output = Command::new("sh").args(["-c", &limited]).output().expect("a shell");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("no address space") && error.contains("`ulimit -v unlimited`"), "{error}");
}

/// As in a container whose processes are limited. Of root they are not: the command runs as a user who has no others.
#[test]
fn a_bench_ends_where_the_system_refuses_a_thread() {
    let bench = "bench --workload hot_pair --order 0 --cpus 4 --samples 1 --memory 64";
    let user = "setpriv --reuid=54321 --regid=54321 --clear-groups prlimit --nproc=3";
    let limited = format!("timeout --signal=KILL 60 {user} {} {bench}", env!("CARGO_BIN_EXE_framewright"));
    let output = Command::new("sh").args(["-c", &limited]).output().expect("a shell");
    let error = String::from_utf8_lossy(&output.stderr);
    if !error.contains("framewright: 4 threads") {
        return eprintln!("skipped: no other user can run the command here: {error}");
    }
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("failed to spawn thread"), "{error}");
}

/// The shortest numbers take the most memory for their text.
#[test]
fn results_and_toml_keep_to_it() {
    let scratch = Scratch::new("memory-texts");
    let samples = |bytes: u64| "1,".repeat(bytes as usize / 2) + "1";
    let result = |bytes: u64| {
        let samples = samples(bytes / 2);
        format!(
            "{{\"framewright\":\"0.1.0\",\"command\":\"test\",\"host\":{{\"cpu\":\"x\",\"cpus\":2,\"kernel\":\"6\"}},\
             \"results\":[{{\"study\":\"s\",\"part\":\"p\",\"kind\":\"measured\",\"machine\":\"host\",\"seed\":1,\
             \"paired\":true,\"baseline\":\"a\",\"variants\":[\"a\",\"b\"],\"metrics\":[{{\"name\":\"m\",\"unit\":\"1\",\
             \"better\":\"lower\",\"samples\":{{\"a\":[{samples}],\"b\":[{samples}]}}}}]}}]}}"
        )
    };
    let longest = 16 * MIB - 8192;
    kept(&["compare", &scratch.file("longest.json", result(longest)), "-q"], longest);
    let too_long = scratch.file("longer.json", result(longest + 16384));
    assert!(peak(&["compare", &too_long], 1) < FREE);

    let machine = include_str!("../../../../machines/epyc-7742-2s.toml");
    let comment = "# A comment is valid, too.\n".repeat((MIB as usize - machine.len()) / 27);
    kept(&["machines", &scratch.file("long.toml", format!("{comment}{machine}"))], MIB);
    let too_long = scratch.file("longer.toml", format!("{comment}{comment}{machine}"));
    assert!(peak(&["machines", &too_long], 1) < FREE);
}
