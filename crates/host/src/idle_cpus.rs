//! CPUs whose threads are attached and idle ([`Cpu::idle`](crate::Cpu::idle)).

use core::sync::atomic::{AtomicBool, Ordering};

/// By CPU: whether its thread is idle, so that no other thread attaches to it while its lock is free.
pub(crate) struct IdleCpus(Box<[AtomicBool]>);

impl IdleCpus {
    pub(crate) fn new(cpus: usize) -> Self {
        Self((0..cpus).map(|_| AtomicBool::new(false)).collect())
    }

    /// Whether a CPU's thread is idle. Exact for the thread that holds its lock.
    pub(crate) fn contains(&self, cpu: usize) -> bool {
        self.0[cpu].load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, cpu: usize, is_idle: bool) {
        self.0[cpu].store(is_idle, Ordering::Release);
    }
}
