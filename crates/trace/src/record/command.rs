//! Running the recorded command to its end, also when signals come.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::{Options, processes};
use crate::error::Error;
use crate::proc::signals;

/// Time between two looks for the command's end, and for signals.
const TICK: Duration = Duration::from_millis(5);
/// Time that a command may take to end after it was told to.
const GRACE: Duration = Duration::from_secs(5);

/// While one exists, `SIGINT`, `SIGTERM` and `SIGHUP` are noted instead of ending the process.
pub(super) struct Signals(&'static Handlers);

/// Signals that are noted, and how each is passed on. Not the interrupt: a terminal sends it to the command as well.
const NOTED: [(c_int, Option<Signal>); 3] =
    [(SIGINT, None), (SIGTERM, Some(Signal::TERM)), (SIGHUP, Some(Signal::HUP))];

/// State that the process's signal handlers share with the recorder.
struct Handlers {
    /// Do what the signal does by default.
    default: Arc<AtomicBool>,
    /// One for each of [`NOTED`]: it has come.
    noted: [Arc<AtomicBool>; NOTED.len()],
}

/// Installed once: a handler cannot be taken back without losing signals. A signal that this process had a handler for
/// before the first recording is left to that one when nothing is recorded; and a process that began by ignoring
/// `SIGHUP` (`nohup`) goes on doing so, as does its command.
static HANDLERS: LazyLock<Handlers> = LazyLock::new(|| {
    let handlers = Handlers { default: Arc::new(AtomicBool::new(true)), noted: Default::default() };
    let is_among = |signals: u64, signal: i32| signals >> (signal - 1) & 1 == 1;
    let (ignored, caught) = (signals("SigIgn"), signals("SigCgt"));
    for ((signal, _), noted) in NOTED.into_iter().zip(&handlers.noted) {
        if signal == SIGHUP && is_among(ignored, signal) {
            continue;
        }
        if !is_among(caught, signal) {
            flag::register_conditional_default(signal, Arc::clone(&handlers.default))
                .expect("these signals can be caught");
        }
        flag::register(signal, Arc::clone(noted)).expect("these signals can be caught");
    }
    handlers
});

/// Limit of open files with which this process began, and its command begins.
static FILES: LazyLock<Rlimit> = LazyLock::new(|| getrlimit(Resource::Nofile));

/// Lets this process have so many files open, or as many as it may be allowed.
pub(super) fn allow_files(number: u64) {
    let Rlimit { current, maximum } = *FILES;
    if current.is_some_and(|current| current < number) {
        let current = Some(maximum.map_or(number, |maximum| maximum.min(number)));
        // Where it fails, opening the files says so.
        let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
    }
}

/// Gives a command the limit of open files that this process began with.
#[expect(unsafe_code, reason = "only the new process can set its own limits before its program runs")]
fn limit_files(command: &mut Command) {
    let before = *FILES;
    if getrlimit(Resource::Nofile) != before {
        // SAFETY: a system call and nothing else, as in a signal handler.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, before)?)) };
    }
}

impl Signals {
    pub(super) fn catch() -> Self {
        let handlers = &*HANDLERS;
        handlers.noted.iter().for_each(|noted| noted.store(false, Ordering::SeqCst));
        handlers.default.store(false, Ordering::SeqCst);
        Self(handlers)
    }

    /// True after a signal has come.
    fn any(&self) -> bool {
        self.0.noted.iter().any(|noted| noted.load(Ordering::SeqCst))
    }

    /// The signal to pass on, once.
    fn to_pass_on(&self) -> Option<Signal> {
        let mut all = NOTED.into_iter().zip(&self.0.noted);
        all.find_map(|((_, signal), noted)| signal.filter(|_| noted.swap(false, Ordering::SeqCst)))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.0.default.store(true, Ordering::SeqCst);
    }
}

/// Runs a command, as the user of `options` if there is one; returns how it ended, and whether that was because its
/// time was up. `started` is called with its process number.
///
/// When its limit has passed, it and its descendants are told to end, and those that still live after a while are
/// killed. Also one that has left the command's session or lost its parent is found, if it was a descendant when
/// the time was up.
pub(super) fn run(
    command: &[OsString],
    options: &Options,
    signals: &Signals,
    started: impl FnOnce(u32) -> Result<(), Error>,
) -> Result<(ExitStatus, bool), Error> {
    let failed = |cause| Error::Command { command: command[0].to_string_lossy().into_owned(), cause };
    if signals.any() {
        return Err(failed(io::ErrorKind::Interrupted.into()));
    }
    let mut to_run = Command::new(&command[0]);
    to_run.args(&command[1..]);
    if options.is_silent {
        to_run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    limit_files(&mut to_run);
    let child = match &options.user {
        Some(user) => user.spawn(&mut to_run),
        None => to_run.spawn(),
    };
    let mut child = child.map_err(failed)?;
    let saved = started(child.id());
    let status = wait(&mut child, options.limit, signals).map_err(failed)?;
    saved.map(|()| status)
}

/// Waits until `limit` has passed, a signal has come, or `over` returns true.
pub(super) fn linger(limit: Option<Duration>, signals: &Signals, over: impl Fn() -> bool) {
    let start = Instant::now();
    while !signals.any() && !over() && limit.is_none_or(|limit| start.elapsed() < limit) {
        thread::sleep(TICK);
    }
}

fn wait(child: &mut Child, limit: Option<Duration>, signals: &Signals) -> io::Result<(ExitStatus, bool)> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, false));
        }
        if limit.is_some_and(|limit| start.elapsed() >= limit) {
            return end(child).map(|status| (status, true));
        }
        if let Some(signal) = signals.to_pass_on() {
            kill_process(Pid::from_child(child), signal)?;
        }
        thread::sleep(TICK);
    }
}

/// Ends a command and its descendants.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    let told = Instant::now();
    let root = HashSet::from([child.id()]);
    let mut processes = processes::trees(&root);
    // Parents first: a shell whose program ends goes on with the next.
    processes.iter().for_each(|process| process.signal(Signal::TERM));
    let mut status = None;
    loop {
        if status.is_none() {
            // Those that were started since, as long as a living parent leads to them.
            for process in processes::trees(&root) {
                if !processes.contains(&process) {
                    process.signal(Signal::TERM);
                    processes.push(process);
                }
            }
            status = child.try_wait()?;
        }
        processes.retain(|process| process.lives());
        // One that even a kill does not end is waiting within the kernel.
        let enough = processes.is_empty() || told.elapsed() >= 2 * GRACE;
        if let Some(status) = status.filter(|_| enough) {
            return Ok(status);
        }
        if told.elapsed() >= GRACE {
            processes.iter().for_each(|process| process.signal(Signal::KILL));
        }
        thread::sleep(TICK);
    }
}
