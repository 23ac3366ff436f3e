//! Threads of this machine as a stage.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use super::stage::{Done, SharedWord, Stage};
use super::team::{Gate, on_cpus};
use crate::target::Target;

/// Threads of this machine, on a target.
#[derive(Debug)]
pub struct Threads<'t, T>(pub &'t T);

impl<T: Target> Stage for Threads<'_, T> {
    type Cpu<'s>
        = T::Cpu<'s>
    where
        Self: 's;
    type Meeting = Gate;
    type Word = AtomicU64;
    type Placed<'s, V: Sync + 's>
        = Box<V>
    where
        Self: 's;
    type Moment = Instant;

    #[inline]
    fn now() -> Instant {
        Instant::now()
    }

    #[inline]
    fn since(moment: Instant) -> Duration {
        moment.elapsed()
    }

    fn place<'s, V: Sync + 's>(&'s self, value: V) -> Box<V> {
        Box::new(value)
    }

    fn on_cpus<'s, R: Send>(
        &'s self,
        cpus: usize,
        work: impl Fn(usize, &Gate, &mut T::Cpu<'s>) -> R + Sync,
    ) -> Done<R> {
        on_cpus(self.0, cpus, work)
    }
}

impl SharedWord for AtomicU64 {
    fn new(value: u64) -> Self {
        Self::new(value)
    }

    #[inline]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}
