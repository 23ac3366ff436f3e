//! Stage of a workload: threads of this machine, or simulated CPUs. The workload's code does not differ.

use core::fmt;
use core::hint;
use core::ops::Deref;
use core::sync::atomic::Ordering;
use core::time::Duration;
use std::thread;

use crate::target::TargetCpu;

/// Spins before a waiting thread lets others run.
const SPINS: u32 = 1 << 12;

/// CPUs that a workload runs on, with an allocator and a clock.
pub trait Stage {
    /// What one CPU allocates and frees through.
    type Cpu<'s>: TargetCpu
    where
        Self: 's;
    /// How the CPUs of a run meet.
    type Meeting: Meeting;
    /// A word that two CPUs share.
    type Word: SharedWord;
    /// Something that several CPUs share, where its accesses take the time that they take there.
    type Placed<'s, T: Sync + 's>: Deref<Target = T> + Sync
    where
        Self: 's;
    /// What the running CPU's clock shows.
    type Moment: Copy + fmt::Debug;

    /// Looks at the running CPU's clock.
    fn now() -> Self::Moment;

    /// What has passed on the running CPU since then.
    fn since(moment: Self::Moment) -> Duration;

    /// Puts something where all CPUs of the runs to come can share it.
    fn place<'s, T: Sync + 's>(&'s self, value: T) -> Self::Placed<'s, T>;

    /// Runs `work(index, meeting, cpu)` on so many CPUs, which start together.
    fn on_cpus<'s, R: Send>(
        &'s self,
        cpus: usize,
        work: impl Fn(usize, &Self::Meeting, &mut Self::Cpu<'s>) -> R + Sync,
    ) -> Done<R>;
}

/// How the CPUs of a run meet.
pub trait Meeting {
    /// Returns when all CPUs of the run have called it as often.
    fn wait(&self);

    /// Ends this CPU's work if that of another has died.
    fn check(&self);

    /// Lets some time pass between two looks at a word that another CPU is to change. `tried` counts the looks.
    fn pause(&self, tried: &mut Backoff);
}

/// A word that two CPUs share.
pub trait SharedWord: Sync {
    /// A word that holds this.
    fn new(value: u64) -> Self;

    /// What it holds.
    fn load(&self, order: Ordering) -> u64;

    /// Has it hold this.
    fn store(&self, value: u64, order: Ordering);
}

/// Results of all CPUs, by number, and whether each ran where it should.
#[derive(Debug)]
pub struct Done<R> {
    /// By number of the CPU.
    pub results: Vec<R>,
    /// No thread could move to another CPU.
    pub pinned: bool,
}

/// Looks so far at a word that another thread is to change: spins for a while, then yields at each call.
#[derive(Debug, Default)]
pub struct Backoff(u32);

impl Backoff {
    #[inline]
    pub(crate) fn wait(&mut self) {
        if self.0 < SPINS {
            self.0 += 1;
            hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }
}
