//! Threads that work on one target and meet between phases.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::sync::Mutex;
use std::thread;

use super::stage::{Backoff, Done, Meeting, Stage};
use crate::probe::{allowed_cpus, pin_to};
use crate::target::Target;

/// A thread times no more than about this in one stretch: an allocator that goes to the operating system at each
/// call does fewer operations, not a thousand times the time.
const LONGEST: Duration = Duration::from_millis(50);

/// Operations of a warm-up between two looks at the clock.
const STEP: u64 = 256;

/// A barrier that spins, because threads that wake through the kernel start tens of microseconds apart.
#[derive(Debug)]
pub struct Gate {
    threads: usize,
    arrived: AtomicUsize,
    passed: AtomicUsize,
    /// A thread died: no thread may wait for it.
    broken: AtomicBool,
}

impl Gate {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            arrived: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
        }
    }
}

impl Meeting for Gate {
    /// Returns when all threads have called it as often. What they wrote before is visible after.
    fn wait(&self) {
        let round = self.passed.load(Ordering::Acquire);
        if self.arrived.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.arrived.store(0, Ordering::Relaxed);
            self.passed.store(round + 1, Ordering::Release);
            return;
        }
        let mut backoff = Backoff::default();
        while self.passed.load(Ordering::Acquire) == round {
            self.check();
            backoff.wait();
        }
    }

    /// Ends this thread if another has died.
    fn check(&self) {
        assert!(!self.broken.load(Ordering::Relaxed), "another thread of the team panicked");
    }

    #[inline]
    fn pause(&self, tried: &mut Backoff) {
        tried.wait();
    }
}

/// A count that all threads of a team share: the smallest that one of them proposed.
pub(crate) struct Agreed(AtomicU64);

impl Agreed {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// Meets the others and returns what all agree on. For one use.
    pub(crate) fn on(&self, gate: &impl Meeting, proposal: u64) -> u64 {
        self.0.fetch_min(proposal, Ordering::Relaxed);
        gate.wait();
        self.0.load(Ordering::Relaxed)
    }

    /// Warms up with `run(operations)`, for an eighth of `wanted` and of the longest stretch at most; meets the
    /// others; returns how many operations each shall time: `wanted`, or what the longest stretch has room for.
    pub(crate) fn warm_up<S: Stage>(&self, gate: &S::Meeting, wanted: u64, mut run: impl FnMut(u64)) -> u64 {
        let start = S::now();
        let mut done = 0;
        while done < wanted.div_ceil(8) && S::since(start) < LONGEST / 8 {
            run(STEP);
            done += STEP;
        }
        self.on(gate, wanted.min(fitting(done, S::since(start))))
    }
}

/// How often in the longest stretch there is room for what took `elapsed` `done` times; at least once.
pub(crate) fn fitting(done: u64, elapsed: Duration) -> u64 {
    let room = LONGEST.as_nanos() * u128::from(done) / elapsed.as_nanos().max(1);
    u64::try_from(room).unwrap_or(u64::MAX).max(1)
}

/// Marks the gate broken when its thread unwinds.
struct BreakOnPanic<'a>(&'a Gate);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Pins the calling thread to the `index`-th CPU that it may run on, counted round and round. Says whether it did.
pub(crate) fn pin(index: usize) -> bool {
    let cpus = allowed_cpus();
    !cpus.is_empty() && pin_to(cpus[index % cpus.len()])
}

/// Runs `work(index, gate, cpu)` on `cpus` threads, attached to `target` as CPUs 0 to `cpus - 1`.
pub(crate) fn on_cpus<'t, T, R>(
    target: &'t T,
    cpus: usize,
    work: impl Fn(usize, &Gate, &mut T::Cpu<'t>) -> R + Sync,
) -> Done<R>
where
    T: Target,
    R: Send,
{
    let (gate, pinned) = (Gate::new(cpus), AtomicBool::new(true));
    let results: Vec<Mutex<Option<R>>> = (0..cpus).map(|_| Mutex::new(None)).collect();
    on_threads(cpus, &gate, &|index| {
        let _break = BreakOnPanic(&gate);
        pinned.fetch_and(pin(index), Ordering::Relaxed);
        let mut cpu = target.attach(index);
        gate.wait();
        let result = work(index, &gate, &mut cpu);
        // No thread leaves, and gives memory back, while another may still be measuring.
        gate.wait();
        drop(cpu);
        *results[index].lock().expect("one thread has it") = Some(result);
    });
    let result = |slot: Mutex<Option<R>>| slot.into_inner().ok()?;
    Done { results: results.into_iter().filter_map(result).collect(), pinned: pinned.into_inner() }
}

/// Calls `work` with each number below `count` on a thread of its own, which all meet at `gate`. Not generic: threads
/// would be compiled anew for each workload and target.
fn on_threads(count: usize, gate: &Gate, work: &(dyn Fn(usize) + Sync)) {
    thread::scope(|scope| {
        // Where the system refuses a thread, those before it do not wait for it.
        let _break = BreakOnPanic(gate);
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Buddy;

    #[test]
    fn every_thread_is_attached_once_and_meets_the_others() {
        let met = AtomicUsize::new(0);
        let done = on_cpus(&Buddy::new(16), 3, |index, gate, _| {
            met.fetch_add(1, Ordering::Relaxed);
            gate.wait();
            (index, met.load(Ordering::Relaxed))
        });
        assert_eq!(done.results, [(0, 3), (1, 3), (2, 3)]);
    }

    #[test]
    #[should_panic(expected = "another thread of the team")]
    fn nobody_waits_for_a_thread_that_died() {
        on_cpus(&Buddy::new(16), 2, |index, gate, _| {
            assert!(index == 0, "thread 1 dies");
            gate.wait();
        });
    }

    #[test]
    fn teams_agree_on_the_least() {
        let agreed = Agreed::new();
        let done = on_cpus(&Buddy::new(16), 3, |index, gate, _| agreed.on(gate, 40 + index as u64));
        assert_eq!(done.results, [40, 40, 40]);
    }

    #[test]
    fn what_fits_is_in_proportion() {
        assert_eq!(fitting(1000, LONGEST / 10), 10_000);
        assert_eq!(fitting(1, LONGEST * 5), 1);
        assert_eq!(fitting(0, Duration::ZERO), 1);
    }
}
