//! Page-allocator events of a real run, from the kernel's trace file system.
//!
//! | module | what it has |
//! |---|---|
//! | `tracefs` | finding and mounting it; a trace instance that vanishes at the end |
//! | `sets` | which events are recorded |
//! | `ring` | the pages of the kernel's ring buffer |
//! | `drain` | a thread per CPU that empties its buffer; decoding the events |
//! | `sampling` | what each CPU does, a thousand times a second |
//! | `cost` | CPU time that recording a block, and a sample, takes |
//! | `spool` | what the buffers gave, on disk until the recording ends |
//! | `folder` | spools and what it takes to read them, which a killed recorder leaves |
//! | `attribute` | which events are the command's |
//! | `command` | running the command to its end, also when signals come |
//! | `user` | running it as a user other than root |
//! | `processes` | processes and threads as `/proc` shows them |
//! | `output` | the file that the trace goes to |
//! | `machine` | what the trace says about where it was made |
//!
//! The whole machine is traced while the command runs, and then what belongs to the command is picked: frames
//! are freed by any thread of the machine, so what the command's own threads report is not enough.

mod attribute;
mod command;
mod cost;
mod drain;
mod folder;
mod machine;
mod output;
mod processes;
mod ring;
mod sampling;
mod sets;
mod spool;
mod tracefs;
mod user;

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

pub(crate) use folder::finish;
pub use folder::unfinished;
pub(crate) use machine::quote;
pub use output::{keep_private, write_elsewhere};
pub use sets::{SETS, Set};
pub use user::User;

use crate::error::Error;
use crate::kernel_time;
use crate::kmem::report::merged;
use crate::trace::{Meta, Note, Trace};
use attribute::{Attributed, Whose, attribute};
use command::Signals;
use drain::{Buffer, Decoder, Drained, Progress, Reports, drain};
use folder::Folder;
use processes::Process;
use sampling::{PERIOD_NS, Symbols};
use spool::{Budget, Pages};
use tracefs::{Instance, Root};

/// Options of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Size of the kernel's buffer for each CPU, in KiB. It bridges the time until a reader thread runs
    /// again.
    pub buffer_kib: u32,
    /// Time for which recording goes on after the command has ended: memory is freed later if it waits for a grace
    /// period or for a worker thread.
    pub settle: Duration,
    /// Terminate the command and its descendants after this time, if it has not ended by then. Without a
    /// command: how long to record.
    pub limit: Option<Duration>,
    /// Whom the command runs as; `None` for this process's own user.
    pub user: Option<User>,
    /// Gives the command nothing to read, and drops what it prints.
    pub is_silent: bool,
    /// Processes whose events are kept.
    pub scope: Scope,
    /// Events beside those of blocks: names of [`SETS`], `GROUP/NAME`, or `GROUP/`. They become
    /// [`Trace::notes`].
    pub events: Vec<String>,
    /// Keeps the files of `/proc` about the page allocator from the start and from the end, as notes.
    pub states: bool,
    /// Bytes after which recording stops, as the kernel lays events out (about 40 for each event),
    /// and the command goes on.
    pub most_bytes: u64,
    /// Folder for what is recorded, until it ends. If the recorder is killed, a folder `NAME.recording` stays there,
    /// and [`import`](crate::import::import) makes a trace of it.
    pub spool: PathBuf,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            buffer_kib: 16 << 10,
            settle: Duration::from_millis(200),
            limit: None,
            user: None,
            is_silent: false,
            scope: Scope::Tree,
            events: Vec::new(),
            states: true,
            most_bytes: 1 << 30,
            spool: std::env::temp_dir(),
        }
    }
}

/// Processes whose events a recording keeps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The command's process tree.
    Tree,
    /// All processes of the machine.
    System,
    /// A running process, its threads and all that they start.
    Process(u32),
    /// The threads in a control group, in those below it, and all that they start. The path is that of the
    /// group's folder. Who joins the group later does not count.
    Group(PathBuf),
}

/// A recorded run.
#[derive(Debug)]
pub struct Recording {
    /// The events that belong to the command. `trace.meta.lost_events` says how many events of the whole
    /// machine the kernel had no room for: the events that are missing here are among them.
    pub trace: Trace,
    /// Exit status of the command, if there was one.
    pub status: Option<ExitStatus>,
    /// The command was told to end, because [`Options::limit`] had passed.
    pub timed_out: bool,
    /// Page-allocator events of the whole machine while it ran.
    pub system_events: usize,
    /// Threads of the command's process tree, over its whole life; of the whole machine, those that had an event.
    pub threads: usize,
    /// Recording stopped early, because [`Options::most_bytes`] was reached or the disk was full.
    pub cut: bool,
    /// Recording stopped early because the disk of [`Options::spool`] was full.
    pub disk_full: bool,
    /// Cost of the recording.
    pub cost: Cost,
    /// Why the run was not sampled, if it was not.
    pub unsampled: Option<String>,
}

/// Cost of a recording, beside the time that the kernel needs to write events down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of the threads that emptied the kernel's buffers.
    pub reading: Duration,
    /// Bytes that they kept until the end.
    pub bytes: u64,
}

/// Clock of the events: the one that other tools can be asked to use too, with the same time on all CPUs.
const CLOCK: &str = "mono";

/// A process has one trace instance.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Records the page-allocator events of `options.scope` while `command`, a program and its arguments, runs.
///
/// An event belongs to a process tree if it happened in one of its threads, or if it frees frames that the tree
/// allocated.
///
/// Without a command, recording goes on until the limit, until a signal comes, or until the process of
/// [`Scope::Process`] ends.
///
/// The command shares this process's terminal, directory and environment. An interrupt from the terminal
/// reaches both: the command ends, and what was recorded until then is returned. `SIGTERM` and `SIGHUP` are
/// passed on to it. One recording runs at a time; a second call in the same process waits.
///
/// Disk: what the kernel wrote, in `options.spool`, until the end. Memory: 40 bytes for each event of the trace.
///
/// # Errors
/// Root, the trace file system or a tracepoint is missing; the command cannot be started; the kernel's
/// buffers cannot be read or kept. Nothing is left behind in the kernel.
///
/// # Panics
/// If `command` is empty and the scope is [`Scope::Tree`].
pub fn record(command: &[OsString], options: &Options) -> Result<Recording, Error> {
    assert!(!command.is_empty() || options.scope != Scope::Tree, "a command to record");
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = Root::find()?;
    // From here on, signals do not end this process before the instance is removed.
    let signals = Signals::catch();
    let instance = Instance::create(&root)?;
    instance.set("trace_clock", CLOCK)?;
    instance.set("options/overwrite", "0")?;
    instance.set("buffer_size_kb", &options.buffer_kib.max(1).to_string())?;
    let events = sets::resolve(&instance, &options.events)?;
    let tick = sets::tick(&options.events)?;
    sets::filter(&instance, tick.as_deref())?;
    let layouts = instance.layouts(&events)?;
    let decoder = Decoder::parse(&layouts)?;
    for event in &events {
        instance.set(&format!("events/{event}/enable"), "1")?;
    }

    let meta = Meta {
        source: "tracefs".into(),
        command: quote(command),
        clock: CLOCK.into(),
        attribution: attribution(&options.scope),
        ..machine::describe()
    };
    let folder = Folder::create(&options.spool)?;
    folder.save_head(&layouts, &meta)?;
    let begun = Instant::now();
    let Run { watched, drained, lost, states, unsampled } =
        run(command, &instance, &decoder, options, (&signals, &folder, tick.as_deref()))?;
    let cpus: Vec<u16> = drained.iter().map(|drained| drained.cpu).collect();
    let took = begun.elapsed();
    let event_cost = if unsampled.is_none() { cost::measured(&instance, &cpus, took) } else { None };
    drop((instance, root));

    let mut cost = Cost::default();
    let mut streams = Vec::new();
    for Drained { cpu, spool, samples, busy } in drained {
        cost.reading += busy;
        for (spool, is_samples) in [(Some(spool), false), (samples, true)] {
            let Some(spool) = spool else { continue };
            cost.bytes += spool.bytes();
            let pages = spool.rewind().map_err(|cause| Error::io("read", &options.spool, cause))?;
            streams.push(Stream { cpu, pages, is_samples });
        }
    }
    let raw = Raw {
        streams,
        whose: watched.whose,
        names: watched.names,
        states,
        meta: Meta {
            cut: watched.cut,
            reading_ns: u64::try_from(cost.reading.as_nanos()).unwrap_or(u64::MAX),
            ..meta
        },
        lost: Some(lost),
        recorder: std::process::id(),
        is_sampled: unsampled.is_none(),
        cost: event_cost,
    };
    let Made { trace, system_events, threads, saw_root } = match raw.made(&decoder) {
        Ok(made) => made,
        Err(error) => return Err(folder.kept(error)),
    };
    if !saw_root && trace.meta.lost_events == Some(0) && !watched.cut && options.scope == Scope::Tree {
        return Err(Error::CannotRecord {
            what: "the kernel knows the command by another process number than this process does".into(),
            fix: "record outside of the container, or in one that shares the host's PID namespace",
        });
    }
    Ok(Recording {
        trace,
        status: watched.ended.map(|(status, _)| status),
        timed_out: watched.ended.is_some_and(|(_, timed_out)| timed_out),
        system_events,
        threads,
        cut: watched.cut,
        disk_full: watched.disk_full,
        cost,
        unsampled,
    })
}

/// All that the kernel reported, not yet decoded, and what it takes to make a trace of it.
struct Raw {
    streams: Vec<Stream>,
    whose: Whose,
    /// Of the threads that existed before.
    names: HashMap<u32, String>,
    states: Vec<Note>,
    meta: Meta,
    /// Events that the kernel had no room for; `None` if unknown.
    lost: Option<u64>,
    /// The recorder's process.
    recorder: u32,
    /// The samples are of the kernel that runs now, whose functions are known.
    is_sampled: bool,
    /// Cost of an event and of a sample, if it was measured.
    cost: Option<kernel_time::Cost>,
}

/// Pages of one CPU: events, or samples.
struct Stream {
    cpu: u16,
    pages: Pages,
    is_samples: bool,
}

/// A trace, and what else was found in making it.
struct Made {
    trace: Trace,
    system_events: usize,
    threads: usize,
    saw_root: bool,
}

impl Raw {
    fn made(self, decoder: &Decoder) -> Result<Made, Error> {
        let progress = Progress::default();
        let reports = |Stream { cpu, pages, is_samples }| {
            Reports::new(cpu, pages, (!is_samples).then_some(decoder), self.recorder, &progress)
        };
        let reports = merged(self.streams.into_iter().map(reports).collect());
        let out = attribute(reports, &self.whose, &self.names);
        if let Some(fault) = progress.fault.take() {
            return Err(fault);
        }
        let meta = Meta {
            // Both tell of the same events: the pages where they are missing, the statistics how many they are.
            lost_events: self.lost.map(|lost| lost.max(progress.missed.get())),
            failed_allocations: out.failed_allocations,
            ..self.meta
        };
        let mut states = self.states;
        if self.is_sampled {
            let symbols = Symbols::of_kernel();
            let lost = progress.lost_samples.get();
            let stacks = kernel_time::named(&out.samples, |at| symbols.name(at));
            let text = kernel_time::text(PERIOD_NS, lost, self.cost, stacks);
            let time_ns = states.last().map_or(0, |state| state.time_ns);
            states.push(Note { time_ns, cpu: 0, pid: 0, comm: 0, name: kernel_time::NOTE.to_owned(), text });
        }
        let Attributed { system_events, threads, saw_root, .. } = out;
        Ok(Made { trace: trace(out, states, decoder, meta), system_events, threads, saw_root })
    }
}

/// Words for the processes whose events a recording of this scope keeps.
fn attribution(scope: &Scope) -> String {
    match scope {
        Scope::Tree => "the command's process tree: events of its threads, and frees of their blocks".into(),
        Scope::System => "whole system".into(),
        Scope::Process(pid) => format!("the process tree of {pid}, without children that had left it before"),
        Scope::Group(path) => format!("the control group {}", path.display()),
    }
}

/// The trace of what was picked and of the kernel's states.
fn trace(out: Attributed, states: Vec<Note>, decoder: &Decoder, meta: Meta) -> Trace {
    let Attributed { events, notes, mut comms, .. } = out;
    let named = notes.into_iter().map(|(id, note)| Note { name: decoder.name(id).to_owned(), ..note });
    let recorder = if states.is_empty() { 0 } else { comms.intern("framewright") };
    let states = states.into_iter().map(|note| Note { comm: recorder, ..note });
    let mut notes: Vec<Note> = named.chain(states).collect();
    notes.sort_by_key(|note| note.time_ns);
    Trace { meta, comms, events, notes }
}

/// All that the machine reported while it was watched.
struct Run {
    watched: Watched,
    drained: Vec<Drained>,
    lost: u64,
    states: Vec<Note>,
    unsampled: Option<String>,
}

/// The run, as it was watched.
struct Watched {
    whose: Whose,
    /// Of the threads that existed before.
    names: HashMap<u32, String>,
    /// Exit status of the command, and whether its time was up.
    ended: Option<(ExitStatus, bool)>,
    cut: bool,
    disk_full: bool,
}

/// Inputs of watching beside the options: signals that end it, the folder that keeps its beginning, the line of
/// `/proc/kallsyms` that names the address in events of work.
type Watch<'a> = (&'a Signals, &'a Folder, Option<&'a str>);

fn run(
    command: &[OsString],
    instance: &Instance,
    decoder: &Decoder,
    options: &Options,
    watch_with: Watch<'_>,
) -> Result<Run, Error> {
    let cpus = instance.cpus()?;
    // Of each CPU the buffer, the sampler and what is kept of both.
    command::allow_files(4 * cpus.len() as u64 + 64);
    let samplers = sampling::functions_are_shown().and_then(|()| sampling::start(&cpus, PERIOD_NS));
    let (samplers, unsampled) = match samplers {
        Ok(samplers) => (samplers, None),
        Err(why) => (Vec::new(), Some(why)),
    };
    let mut samplers = samplers.into_iter();
    let mut buffers = Vec::new();
    for &cpu in &cpus {
        let sampler = samplers.next().flatten();
        let (spool, samples) = watch_with.1.spools(cpu, sampler.is_some())?;
        let (pages, page_bytes) = (instance.open_pages(cpu)?, decoder.page_bytes());
        buffers.push(Buffer { cpu, pages, page_bytes, spool, sampling: sampler.zip(samples) });
    }
    let stop = AtomicBool::new(false);
    let budget = Budget::new(options.most_bytes.max(1));
    let mut states = Vec::new();
    thread::scope(|scope| {
        let readers: Vec<_> = buffers
            .into_iter()
            .map(|buffer| {
                let (stop, budget) = (&stop, &budget);
                let full = || instance.set("tracing_on", "0");
                scope.spawn(move || drain(buffer, budget, stop, full))
            })
            .collect();

        let watched = watch(command, instance, options, watch_with, &mut states);
        stop.store(true, Ordering::Release);

        let mut drained = Vec::new();
        for reader in readers {
            drained.push(reader.join().expect("a reader does not panic")?);
        }
        let watched = Watched { cut: budget.is_spent(), disk_full: budget.disk_is_full(), ..watched? };
        let mut lost = 0;
        for &cpu in &cpus {
            lost += instance.lost(cpu)?;
        }
        Ok(Run { watched, drained, lost, states, unsampled })
    })
}

/// Traces while the command runs, or what is there already.
fn watch(
    command: &[OsString],
    instance: &Instance,
    options: &Options,
    (signals, folder, tick): Watch<'_>,
    states: &mut Vec<Note>,
) -> Result<Watched, Error> {
    instance.set("tracing_on", "1")?;
    if options.states {
        states.extend(machine::states(0));
    }
    if let Some(tick) = tick {
        let time_ns = states.first().map_or(0, |state| state.time_ns);
        let (name, text) = ("/proc/kallsyms".to_owned(), tick.to_owned());
        states.insert(0, Note { time_ns, cpu: 0, pid: 0, comm: 0, name, text });
    }
    // Later than the start, so that no thread is in neither.
    let names = processes::thread_names();
    folder.save_start(&names, states)?;
    let mut whose = match &options.scope {
        Scope::System => Whose::All,
        scope => Whose::Trees(roots(scope)?),
    };
    folder.save_whose(&whose)?;
    let ended = if command.is_empty() {
        let watched = match options.scope {
            Scope::Process(pid) => Process::find(pid),
            _ => None,
        };
        command::linger(options.limit, signals, || watched.is_some_and(|process| !process.lives()));
        None
    } else {
        let started = |root| {
            if let (Whose::Trees(roots), Scope::Tree) = (&mut whose, &options.scope) {
                roots.insert(root);
            }
            folder.save_whose(&whose)
        };
        Some(command::run(command, options, signals, started)?)
    };
    thread::sleep(options.settle);
    if options.states {
        states.extend(machine::states(0));
    }
    instance.set("tracing_on", "0")?;
    Ok(Watched { whose, names, ended, cut: false, disk_full: false })
}

/// Threads that a scope begins with, beside the command's.
fn roots(scope: &Scope) -> Result<HashSet<u32>, Error> {
    match scope {
        Scope::Tree | Scope::System => Ok(HashSet::new()),
        Scope::Process(pid) => {
            let mut processes = processes::trees(&HashSet::from([*pid]));
            // Of a shell that has started this process, say: what the recorder does is not the shell's.
            let recorder = std::process::id();
            processes.retain(|process| process.pid != recorder || *pid == recorder);
            let threads: HashSet<u32> =
                processes.iter().flat_map(|process| processes::threads(process.pid)).collect();
            // The parent that /proc gives the first processes is none.
            if threads.is_empty() || *pid == 0 {
                let what = format!("there is no process {pid}");
                return Err(Error::CannotRecord { what, fix: "check its number" });
            }
            Ok(threads)
        }
        Scope::Group(path) => processes::group_threads(path)
            .map_err(|cause| Error::io("read", &path.join("cgroup.procs"), cause)),
    }
}
