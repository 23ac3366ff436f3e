//! shuttle: random interleavings of many threads. Every ordering counts as sequentially consistent.
#![expect(unsafe_code, reason = "a platform vouches for its words and cells")]

use core::cell::{RefCell, UnsafeCell};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use ::shuttle::rand::Rng;
use ::shuttle::scheduler::{PctScheduler, RandomScheduler, Schedule, Scheduler, Task, TaskId};
use ::shuttle::sync::atomic::AtomicU64;
use ::shuttle::{Config, MaxSteps, Runner};
use framewright::platform::{Platform, SharedCell};

use super::pin::OwnedPin;

/// Runs under [`random`] or [`pct`].
#[derive(Debug)]
pub struct Shuttle;

/// A word at which another thread may be scheduled.
#[derive(Debug)]
pub struct ShuttleWord(AtomicU64);

/// A cell that panics when two accesses of which one writes overlap.
///
/// Another thread may be scheduled as an access begins and again before it ends, so that an overlap that
/// could happen does happen in some schedule.
#[derive(Debug)]
pub struct ShuttleCell<T> {
    /// [`FREE`], [`WRITER`], or how many readers are inside.
    users: AtomicU64,
    value: UnsafeCell<T>,
}

const FREE: u64 = 0;
const WRITER: u64 = u64::MAX;

// SAFETY: words, cells and pins keep their contracts (see each); `clear` zeroes the bytes named, or none.
unsafe impl Platform for Shuttle {
    type Word = ShuttleWord;
    type Cell<T> = ShuttleCell<T>;
    type Pin = OwnedPin;

    // Every access is a barrier here.
    const DRAINS_REMOTELY: bool = true;

    fn heavy_barrier() -> bool {
        ::shuttle::thread::yield_now();
        // Now and then there is none.
        !::shuttle::rand::thread_rng().gen_ratio(1, 16)
    }

    fn relax() {
        ::shuttle::thread::yield_now();
    }

    /// Sleeps endlessly if no thread calls `unpark`: then the execution never ends, and fails.
    fn park(word: &ShuttleWord, expected: u64) {
        let me = Sleeper { word: core::ptr::from_ref(word).addr(), woken: Arc::new(AtomicBool::new(false)) };
        // No other thread is scheduled between this load and the entry: what follows is no word of the platform.
        if word.0.load(Ordering::SeqCst) != expected {
            return;
        }
        SLEEPERS.with_borrow_mut(|sleepers| sleepers.push(me.clone()));
        while !me.woken.load(Ordering::Relaxed) {
            ::shuttle::thread::yield_now();
        }
    }

    fn unpark(word: &ShuttleWord) {
        let word = core::ptr::from_ref(word).addr();
        SLEEPERS.with_borrow_mut(|sleepers| {
            if let Some(first) = sleepers.iter().position(|sleeper| sleeper.word == word) {
                sleepers.remove(first).woken.store(true, Ordering::Relaxed);
            }
        });
    }

    /// Scheduling decisions of this execution so far, taken as nanoseconds: it grows, and is the same when
    /// the schedule is replayed.
    fn now_ns() -> u64 {
        ::shuttle::current::context_switches() as u64
    }
}

/// Threads that sleep, by word. Plain data: a schedule has no say in it.
#[derive(Clone, Debug)]
struct Sleeper {
    word: usize,
    woken: Arc<AtomicBool>,
}

thread_local! {
    // All threads of an execution run on one thread of the system.
    static SLEEPERS: RefCell<Vec<Sleeper>> = const { RefCell::new(Vec::new()) };
}

/// What runs under a schedule. Boxed, so that the checker is compiled here, once, and not for each test.
type Body = Box<dyn Fn() + Send + Sync>;

/// Uniform choice of the next thread, but the last one goes on for a random number of steps, whose mean each execution
/// draws. Uniform choice at each step hardly ever stops a thread for as long as another one's call takes.
struct Bursts {
    uniform: RandomScheduler,
    rng: fastrand::Rng,
    /// Mean number of steps.
    mean: u32,
}

/// Steps; with a mean of 1 each step's thread is chosen uniformly.
const MEANS: [u32; 5] = [1, 4, 16, 64, 256];

impl Scheduler for Bursts {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.mean = MEANS[self.rng.usize(..MEANS.len())];
        self.uniform.new_execution()
    }

    fn next_task(&mut self, runnable: &[&Task], last: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        let goes_on = !is_yielding && self.rng.u32(..self.mean) > 0;
        last.filter(|&last| goes_on && runnable.iter().any(|task| task.id() == last))
            .or_else(|| self.uniform.next_task(runnable, last, is_yielding))
    }

    fn next_u64(&mut self) -> u64 {
        self.uniform.next_u64()
    }
}

/// Runs `body` under `executions` random schedules, with bursts of one to some hundred steps.
pub fn random(executions: usize, body: impl Fn() + Send + Sync + 'static) {
    run_random(executions, Box::new(body));
}

fn run_random(executions: usize, body: Body) {
    let uniform = RandomScheduler::new(tenth_if_quick(executions));
    Runner::new(Bursts { uniform, rng: fastrand::Rng::new(), mean: 1 }, config()).run(body);
}

/// Runs `body` under `executions` schedules with at most `depth` priority changes, placed at random:
/// it finds bugs of that depth more surely than uniform choice does (Burckhardt et al., ASPLOS 2010).
pub fn pct(depth: usize, executions: usize, body: impl Fn() + Send + Sync + 'static) {
    run_pct(depth, executions, Box::new(body));
}

fn run_pct(depth: usize, executions: usize, body: Body) {
    Runner::new(PctScheduler::new(depth, tenth_if_quick(executions)), config()).run(body);
}

fn tenth_if_quick(executions: usize) -> usize {
    if super::loom::quick() { executions.div_ceil(10) } else { executions }
}

fn config() -> Config {
    let mut config = Config::new();
    // A whole call chain of the allocator, unoptimised, with its reports and the switches of `cargo xtask mutants`.
    config.stack_size = 1 << 20;
    config.max_steps = MaxSteps::FailAfter(5_000_000);
    config.silence_warnings = true;
    config
}

word_over!(AtomicU64, ShuttleWord, |_, _| ());

// SAFETY: the closure is called once, with the address of the one value that the cell holds.
unsafe impl<T> SharedCell<T> for ShuttleCell<T> {
    fn new(value: T) -> Self {
        Self { users: AtomicU64::new(FREE), value: UnsafeCell::new(value) }
    }

    #[track_caller]
    fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        let before = self.users.fetch_add(1, Ordering::SeqCst);
        assert!(before != WRITER, "data race: a cell is read while it is written");
        let result = f(self.value.get());
        self.users.fetch_sub(1, Ordering::SeqCst);
        result
    }

    #[track_caller]
    fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        let before = self.users.swap(WRITER, Ordering::SeqCst);
        assert!(before == FREE, "data race: a cell is written while it is {}", user(before));
        let result = f(self.value.get());
        self.users.store(FREE, Ordering::SeqCst);
        result
    }
}

fn user(users: u64) -> &'static str {
    if users == WRITER { "written" } else { "read" }
}
