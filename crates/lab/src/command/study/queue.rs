//! In which order parts run, and which of them beside each other. What is measured has the machine to itself; what is
//! only simulated does not mind company, and one part's last runs leave CPUs to the next part's first.

use core::any::Any;
use core::panic::AssertUnwindSafe;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use crate::command::*;
use crate::study::{Job, Run};

/// A part that is to be run.
pub(super) type Task = (Job<'static>, Run<'static>);

/// Simulated parts that run beside each other at most: they take turns (see
/// [`in_parallel`](crate::simulate::in_parallel)), so that more would only take more memory.
const BESIDE: usize = 4;

/// Start or end of a part, by its place among the tasks.
pub(super) enum Event {
    Begins(usize),
    Ends(usize, Box<Result<Part>>),
}

/// The order of a run of everything: what is measured or derived, then what is simulated.
pub(super) fn order(kinds: impl IntoIterator<Item = Kind>, apart: bool) -> Vec<usize> {
    let mut order: Vec<(usize, Kind)> = kinds.into_iter().enumerate().collect();
    order.sort_by_key(|(_, kind)| apart && *kind == Kind::Simulated);
    order.into_iter().map(|(n, _)| n).collect()
}

/// Runs all tasks in this order, each on a thread of its own, and calls `tell` for each event. Returns whether an
/// interrupt ended it. An interrupt is heeded immediately; tasks that run then go on until the process ends.
///
/// # Errors
/// Errors of `tell`.
pub(super) fn run(
    tasks: Vec<Task>,
    order: &[usize],
    apart: bool,
    stop: &Interrupt,
    mut tell: impl FnMut(Event) -> Result<()>,
) -> Result<bool> {
    type Outcome = core::result::Result<Result<Part>, Box<dyn Any + Send>>;
    let (send, receive) = mpsc::channel::<(usize, Outcome)>();
    let cpus = cpus_here();
    let beside = |kind| if apart && kind == Kind::Simulated { cpus.min(BESIDE) } else { 1 };
    let mut tasks: Vec<Option<Task>> = tasks.into_iter().map(Some).collect();
    let mut waiting = order.iter().copied().peekable();
    let mut running = 0;
    loop {
        while let Some(n) =
            waiting.next_if(|&n| tasks[n].as_ref().is_some_and(|(job, _)| running < beside(job.kind)))
        {
            let Some((job, run)) = tasks[n].take() else { continue };
            tell(Event::Begins(n))?;
            running += 1;
            let send = send.clone();
            thread::spawn(move || {
                let outcome = catch_unwind(AssertUnwindSafe(|| job.run(&run)));
                // The receiver is gone after an interrupt.
                let _ = send.send((n, outcome));
            });
        }
        if running == 0 {
            return Ok(false);
        }
        match receive.recv_timeout(Duration::from_millis(50)) {
            Ok((n, outcome)) => {
                running -= 1;
                let result = outcome.unwrap_or_else(|panic| resume_unwind(panic));
                tell(Event::Ends(n, Box::new(result)))?;
            }
            Err(RecvTimeoutError::Timeout) if stop.is_raised() => return Ok(true),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("this function has a sender, too"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_measured_runs_first_and_the_rest_in_its_order() {
        use Kind::{Derived, Measured, Simulated};
        let kinds = [Measured, Simulated, Simulated, Derived, Measured];
        assert_eq!(order(kinds, true), [0, 3, 4, 1, 2]);
        assert_eq!(order(kinds, false), [0, 1, 2, 3, 4]);
    }
}
