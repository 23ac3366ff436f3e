//! How long each step of boot took.

use crate::machine::List;
use crate::{clock, log};

/// Steps with the ticks they took.
#[derive(Debug)]
pub(crate) struct Phases {
    since: u64,
    steps: List<(&'static str, u64), 16>,
}

impl Phases {
    /// The first step begins now.
    pub(crate) fn new() -> Self {
        Self { since: clock::ticks(), steps: List::new(("", 0)) }
    }

    /// A step has ended; the next one begins.
    pub(crate) fn end(&mut self, name: &'static str) {
        let now = clock::ticks();
        self.steps.push((name, now - self.since));
        self.since = now;
    }

    /// Prints them.
    pub(crate) fn print(&self) {
        log!("Boot phases:");
        for (name, ticks) in self.steps.iter() {
            log!("  {name:<24} {ticks:>14} ticks");
        }
    }

    /// The steps.
    pub(crate) fn steps(&self) -> &[(&'static str, u64)] {
        &self.steps
    }
}
