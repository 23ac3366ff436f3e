//! Running the recorded command to its end, whatever signals come meanwhile.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::error::Error;

/// How often the command's end, and signals, are looked for.
const TICK: Duration = Duration::from_millis(5);
/// How long a command may take to end once told to.
const GRACE: Duration = Duration::from_secs(5);

/// While one exists, `SIGINT`, `SIGTERM` and `SIGHUP` are noted instead of ending the process.
#[derive(Debug)]
pub(super) struct Signals {
    handlers: &'static Handlers,
}

/// What the process's signal handlers share with the recorder.
#[derive(Debug)]
struct Handlers {
    /// Do what the signal does by default.
    default: Arc<AtomicBool>,
    interrupt: Arc<AtomicBool>,
    terminate: Arc<AtomicBool>,
    hang_up: Arc<AtomicBool>,
}

/// Installed once: a handler cannot be taken back without losing signals.
static HANDLERS: LazyLock<Handlers> = LazyLock::new(|| {
    let flag = |value| Arc::new(AtomicBool::new(value));
    let handlers = Handlers {
        default: flag(true),
        interrupt: flag(false),
        terminate: flag(false),
        hang_up: flag(false),
    };
    for (signal, noted) in
        [(SIGINT, &handlers.interrupt), (SIGTERM, &handlers.terminate), (SIGHUP, &handlers.hang_up)]
    {
        flag::register_conditional_default(signal, Arc::clone(&handlers.default))
            .and_then(|_| flag::register(signal, Arc::clone(noted)))
            .expect("these signals can be caught");
    }
    handlers
});

impl Signals {
    pub(super) fn catch() -> Self {
        let handlers = &*HANDLERS;
        for noted in [&handlers.interrupt, &handlers.terminate, &handlers.hang_up] {
            noted.store(false, Ordering::SeqCst);
        }
        handlers.default.store(false, Ordering::SeqCst);
        Self { handlers }
    }

    /// Whether one has come.
    fn any(&self) -> bool {
        let Handlers { interrupt, terminate, hang_up, .. } = self.handlers;
        [interrupt, terminate, hang_up].iter().any(|noted| noted.load(Ordering::SeqCst))
    }

    /// The signal to pass on, once. Not the interrupt: a terminal sends it to the command as well.
    fn to_pass_on(&self) -> Option<Signal> {
        if self.handlers.terminate.swap(false, Ordering::SeqCst) {
            Some(Signal::TERM)
        } else if self.handlers.hang_up.swap(false, Ordering::SeqCst) {
            Some(Signal::HUP)
        } else {
            None
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handlers.default.store(true, Ordering::SeqCst);
    }
}

/// Runs a command: its process number and how it ended.
pub(super) fn run(
    command: &[OsString],
    limit: Option<Duration>,
    signals: &Signals,
) -> Result<(u32, ExitStatus), Error> {
    let failed = |cause| Error::Command { command: command[0].to_string_lossy().into_owned(), cause };
    if signals.any() {
        return Err(failed(io::ErrorKind::Interrupted.into()));
    }
    let mut child = Command::new(&command[0]).args(&command[1..]).spawn().map_err(failed)?;
    Ok((child.id(), wait(&mut child, limit, signals).map_err(failed)?))
}

fn wait(child: &mut Child, limit: Option<Duration>, signals: &Signals) -> io::Result<ExitStatus> {
    let start = Instant::now();
    let mut told_to_end = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let over = limit.is_some_and(|limit| start.elapsed() >= limit);
        if told_to_end.is_none() && over {
            told_to_end = Some(Instant::now());
            kill_process(Pid::from_child(child), Signal::TERM)?;
        } else if told_to_end.is_some_and(|since| since.elapsed() >= GRACE) {
            child.kill()?;
        }
        if let Some(signal) = signals.to_pass_on() {
            kill_process(Pid::from_child(child), signal)?;
        }
        thread::sleep(TICK);
    }
}
