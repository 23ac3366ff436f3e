//! Tells a person at a terminal how far long work is; says nothing of it in a pipe. What else is said on standard error
//! goes through [`say`].

use std::io::Write as _;
use std::sync::{LazyLock, OnceLock};

use framewright_report::error::{Error, Result};
use framewright_report::terminal::without_commands;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::interrupt::Interrupt;

static SILENT: OnceLock<()> = OnceLock::new();
/// Lines that are drawn now, one below the other. They go to standard error, and to nothing at all if that is not a
/// terminal.
static LINES: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Lets nothing be said of progress from now on.
pub fn silence() {
    SILENT.get_or_init(|| ());
}

/// True if no progress is shown.
pub fn is_silent() -> bool {
    SILENT.get().is_some()
}

/// Writes a line to standard error. Where its reader has gone, as in `2>&1 | head`, the line is lost and the work goes
/// on: a recording is not thrown away for it.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", without_commands(text, &[]));
}

/// Says on standard error what happens, for those who wait.
pub fn notice(text: &str) {
    if !is_silent() {
        say(text);
    }
}

/// Does what prints while lines of progress may be drawn: they make room for it.
pub fn aside<R>(print: impl FnOnce() -> R) -> R {
    LINES.suspend(print)
}

/// A line on standard error that shows how far the work is, and vanishes when it ends.
///
/// Nothing is drawn unless standard error is a terminal. Cheap enough to step for each sample, not for
/// each operation: a step takes a lock and, ten times a second, redraws.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    stop: Option<Interrupt>,
}

impl Progress {
    /// Work of `steps` steps.
    pub fn new(what: &str, steps: u64) -> Self {
        let bar = if is_silent() { ProgressBar::hidden() } else { LINES.add(ProgressBar::new(steps)) };
        Self::on(bar, what)
    }

    /// Like [`new`](Self::new), but the first Ctrl-C from now on only means that no further step is to begin.
    pub fn interruptible(what: &str, steps: u64) -> Self {
        Self::until(&Interrupt::watched(), what, steps)
    }

    /// Like [`new`](Self::new), but no further step is to begin when `stop` is raised.
    #[must_use]
    pub fn until(stop: &Interrupt, what: &str, steps: u64) -> Self {
        let mut progress = Self::new(what, steps);
        progress.stop = Some(stop.clone());
        progress
    }

    /// True after an interrupt: no further step begins.
    pub fn is_interrupted(&self) -> bool {
        self.stop.as_ref().is_some_and(Interrupt::is_raised)
    }

    /// Nothing, if the work was done.
    ///
    /// # Errors
    /// Ctrl-C ended it before; the line states how much was done.
    pub fn ended(&self, done: usize, all: usize, what: &str) -> Result<()> {
        if self.is_interrupted() {
            return Err(Error::failed(format_args!("interrupted: {done} of {all} {what} were done")));
        }
        Ok(())
    }

    fn on(bar: ProgressBar, what: &str) -> Self {
        let template = "{prefix} {bar:24} {pos}/{len} {elapsed}, {eta} left  {wide_msg}";
        let style = ProgressStyle::with_template(template).expect("the template is fixed and tested");
        bar.set_style(style.progress_chars("=> "));
        bar.set_prefix(without_commands(what, &[]));
        Self { bar, stop: None }
    }

    /// Counts a step as done; `doing` names the next.
    pub fn step(&self, doing: &str) {
        self.doing(doing);
        self.bar.inc(1);
    }

    /// Shows the current activity without counting a step.
    pub fn doing(&self, doing: &str) {
        self.bar.set_message(without_commands(doing, &[]));
    }

    /// Steps done.
    pub fn position(&self) -> u64 {
        self.bar.position()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        LINES.remove(&self.bar);
    }
}

#[cfg(test)]
mod tests {
    use indicatif::ProgressDrawTarget;

    use super::*;

    #[test]
    fn the_template_is_valid_and_steps_are_counted() {
        let bar = ProgressBar::new(3);
        bar.set_draw_target(ProgressDrawTarget::hidden());
        let progress = Progress::on(bar, "replay");
        progress.doing("first");
        progress.step("second");
        progress.step("third");
        assert_eq!(progress.position(), 2);
    }

    /// Names come from a study that another may have written.
    #[test]
    fn names_do_not_command_the_terminal() {
        let bar = ProgressBar::hidden();
        let progress = Progress::on(bar.clone(), "\u{1b}[31mmine");
        progress.doing("\u{1b}]0;title\u{7}");
        assert_eq!((&*bar.prefix(), &*bar.message()), ("?[31mmine", "?]0;title?"));
        progress.step("\u{9b}2J");
        assert_eq!(bar.message(), "?2J");
    }
}
