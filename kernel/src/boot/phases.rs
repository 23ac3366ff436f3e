//! Duration of each step of boot.

use core::fmt;

use crate::machine::List;
use crate::{clock, log};

/// Steps with the ticks they took.
pub(crate) struct Phases {
    since: u64,
    steps: List<(&'static str, u64), 16>,
}

impl Phases {
    /// Starts the clock of the first step.
    pub(crate) fn new() -> Self {
        Self { since: clock::ticks(), steps: List::new(("", 0)) }
    }

    /// Ends a step and starts the next one's clock.
    pub(crate) fn end(&mut self, name: &'static str) {
        let now = clock::ticks();
        self.steps.push((name, now - self.since));
        self.since = now;
    }

    /// Prints all steps.
    pub(crate) fn print(&self) {
        log!("Boot phases:");
        for (name, ticks) in self.steps.iter() {
            log!("  {name:<12} {} ms, {ticks} ticks", Ms(*ticks));
        }
    }
}

/// Ticks, printed as milliseconds.
pub(crate) struct Ms(pub(crate) u64);

impl fmt::Display for Ms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = (u128::from(self.0) * 1000 / u128::from(clock::ticks_per_ms())) as u64;
        write!(f, "{}.{:03}", us / 1000, us % 1000)
    }
}
