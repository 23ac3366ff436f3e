//! Ctrl-C during long work: the first one ends it in order, so that what there is can be shown and saved; one that
//! comes half a second later or more ends the process.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use framewright_trace::proc::signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Signals that follow the first one so soon are the same interrupt: `timeout` sends its signal twice.
const TOGETHER: Duration = Duration::from_millis(500);

/// Flag that is raised by SIGINT, SIGTERM and SIGHUP.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for the first signal from now on; the second ends the process.
    pub fn watched() -> Self {
        Self::watching(true)
    }

    /// Like [`watched`](Self::watched), but no later signal ends the process, which has to restore what it changed.
    pub fn ending_in_order() -> Self {
        Self::watching(false)
    }

    fn watching(second_ends: bool) -> Self {
        let raised = Arc::new(AtomicBool::new(false));
        // `nohup` has a process ignore this one.
        let is_ignored = |signal: i32| signal == SIGHUP && signals("SigIgn") >> (signal - 1) & 1 == 1;
        let watched = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal));
        for signal in watched.clone() {
            let _ = signal_hook::flag::register(signal, Arc::clone(&raised));
        }
        if second_ends && let Ok(mut signals) = Signals::new(watched) {
            let _ = thread::Builder::new().spawn(move || {
                let mut first = None;
                for signal in signals.forever() {
                    if first.get_or_insert_with(Instant::now).elapsed() > TOGETHER {
                        signal_hook::low_level::exit(128 + signal);
                    }
                }
            });
        }
        Self(raised)
    }

    /// One that is raised already.
    #[cfg(test)]
    pub fn raised() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    /// True after an interrupt.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
