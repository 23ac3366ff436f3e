//! Ctrl-C during long work: the first one ends it in order, so that what there is can be shown and saved; the second
//! ends the process.

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};

/// Flag that is raised by SIGINT and SIGTERM.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Watches for the first signal from now on.
    pub fn watched() -> Self {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: a signal that finds the flag raised ends the process. Without handlers, the first one
            // does.
            let _ =
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&raised));
            let _ = signal_hook::flag::register(signal, Arc::clone(&raised));
        }
        Self(raised)
    }

    /// True after an interrupt.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
