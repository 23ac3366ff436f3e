//! Ctrl-C during long work: the first one ends it in order, so that what there is can be shown and saved; the second
//! ends the process.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use framewright_trace::proc::signals;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

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
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&signal| !is_ignored(signal)) {
            // In this order: a signal that finds the flag raised ends the process. Without handlers, the first one
            // does.
            if second_ends {
                let _ = signal_hook::flag::register_conditional_shutdown(
                    signal,
                    128 + signal,
                    Arc::clone(&raised),
                );
            }
            let _ = signal_hook::flag::register(signal, Arc::clone(&raised));
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
