//! Page-allocator events of a real run, from the kernel's trace file system.
//!
//! | room | what lives there |
//! |---|---|
//! | `tracefs` | finding and mounting it; a trace instance that vanishes at the end |
//! | `ring` | the pages of the kernel's ring buffer |
//! | `drain` | a thread per CPU that empties its buffer and decodes the events |
//! | `attribute` | which events are the command's |
//! | `command` | running the command to its end, whatever signals come |
//! | `machine` | what the trace says about where it was made |
//!
//! The whole machine is traced while the command runs, and then what belongs to the command is picked: frames
//! are freed by whoever comes to it, so what the command's own threads report is not enough.

mod attribute;
mod command;
mod drain;
mod machine;
mod ring;
mod tracefs;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::ffi::OsString;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::thread;

pub(crate) use machine::quote;

use crate::error::Error;
use crate::kmem::report::{Report, merged};
use crate::trace::{Meta, Trace};
use attribute::attribute;
use command::Signals;
use drain::{Decoder, drain};
use tracefs::Instance;

/// How to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of the kernel's buffer for each CPU, in KiB. It bridges the time until a reader thread runs
    /// again.
    pub buffer_kib: u32,
    /// How long to go on after the command has ended: memory that is freed after a grace period, or by
    /// worker threads, is freed a little later.
    pub settle: Duration,
    /// Terminate the command after this time, if it has not ended by then.
    pub limit: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { buffer_kib: 16 << 10, settle: Duration::from_millis(200), limit: None }
    }
}

/// A recorded run.
#[derive(Debug)]
pub struct Recording {
    /// The events that belong to the command. `trace.meta.lost_events` says how many events of the whole
    /// machine the kernel had no room for: what is missing here is among them.
    pub trace: Trace,
    /// How the command ended.
    pub status: ExitStatus,
    /// Page-allocator events of the whole machine while it ran.
    pub system_events: usize,
    /// Threads of the command's process tree, over its whole life.
    pub threads: usize,
}

/// Clock of the events: the one that other tools can be asked to use too, with the same time on all CPUs.
const CLOCK: &str = "mono";

/// A process has one trace instance.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs `command`, a program and its arguments, and records the page-allocator events of its process tree.
///
/// An event belongs to the tree if it happened in one of its threads, or if it frees frames that the tree
/// allocated.
///
/// The command shares this process's terminal, directory and environment. An interrupt from the terminal
/// reaches both: the command ends, and what was recorded until then is returned. `SIGTERM` and `SIGHUP` are
/// passed on to it. One recording runs at a time; a second call in the same process waits. Memory: 48 bytes
/// for each event of the machine, and the same again while a list of them grows.
///
/// # Errors
/// Root, the trace file system or a tracepoint is missing; the command cannot be started; the kernel's
/// buffers cannot be read. Nothing is left behind in the kernel.
///
/// # Panics
/// If `command` is empty.
pub fn record(command: &[OsString], options: &Options) -> Result<Recording, Error> {
    assert!(!command.is_empty(), "a command to record");
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = tracefs::find()?;
    // From here on, signals do not end this process before the instance is removed.
    let signals = Signals::catch();
    let instance = Instance::create(&root)?;
    instance.set("trace_clock", CLOCK)?;
    instance.set("options/overwrite", "0")?;
    instance.set("buffer_size_kb", &options.buffer_kib.max(1).to_string())?;
    let decoder = Decoder::new(&instance)?;
    for event in drain::events() {
        instance.set(&format!("events/{event}/enable"), "1")?;
    }

    let meta = Meta {
        source: "tracefs".into(),
        command: quote(command),
        clock: CLOCK.into(),
        attribution: "the command's process tree: what its threads did, and frees of what they allocated"
            .into(),
        ..machine::describe()
    };
    let Run { status, root, names, reports, lost } = run(command, &instance, &decoder, options, &signals)?;
    drop(instance);

    let out = attribute(merged(&reports), root, &names);
    if !out.saw_root && lost == 0 {
        return Err(Error::CannotRecord {
            what: "the kernel knows the command by another process number than this process does".into(),
            fix: "record outside of the container, or in one that shares the host's PID namespace",
        });
    }
    let meta = Meta { lost_events: Some(lost), failed_allocations: out.failed_allocations, ..meta };
    Ok(Recording {
        trace: Trace { meta, comms: out.comms, events: out.events },
        status,
        system_events: reports.iter().flatten().filter(|report| report.is_page()).count(),
        threads: out.threads,
    })
}

/// A run of the command and all that the machine reported meanwhile.
struct Run {
    status: ExitStatus,
    root: u32,
    names: HashMap<u32, String>,
    /// Of each CPU, in order of time.
    reports: Vec<Vec<Report>>,
    lost: u64,
}

fn run(
    command: &[OsString],
    instance: &Instance,
    decoder: &Decoder,
    options: &Options,
    signals: &Signals,
) -> Result<Run, Error> {
    let cpus = instance.cpus()?;
    let mut buffers = Vec::new();
    for &cpu in &cpus {
        buffers.push((cpu, instance.open_pages(cpu)?));
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = buffers
            .into_iter()
            .map(|(cpu, pages)| {
                scope.spawn({
                    let stop = &stop;
                    move || drain(cpu, pages, decoder, stop)
                })
            })
            .collect();

        let traced = traced(command, instance, options, signals);
        stop.store(true, Ordering::Release);

        let (mut reports, mut missed) = (Vec::new(), 0);
        for reader in readers {
            let (cpu_reports, cpu_missed) = reader.join().expect("a reader does not panic")?;
            reports.push(cpu_reports);
            missed += cpu_missed;
        }
        let (root, names, status) = traced?;
        let mut counted = 0;
        for &cpu in &cpus {
            counted += instance.lost(cpu)?;
        }
        // Both tell of the same events: the pages where they are missing, the statistics how many they are.
        Ok(Run { status, root, names, reports, lost: counted.max(missed) })
    })
}

/// Runs the command with tracing on: its process number, the names of the threads that existed before, and
/// its end.
fn traced(
    command: &[OsString],
    instance: &Instance,
    options: &Options,
    signals: &Signals,
) -> Result<(u32, HashMap<u32, String>, ExitStatus), Error> {
    instance.set("tracing_on", "1")?;
    // Later than the start, so that no thread is in neither.
    let names = machine::thread_names();
    let (root, status) = command::run(command, options.limit, signals)?;
    thread::sleep(options.settle);
    instance.set("tracing_on", "0")?;
    Ok((root, names, status))
}
