//! A stack of frames per thread: the practical limit of what an allocator can do per operation.

use std::sync::{Mutex, PoisonError};

use framewright_workload::target::{Mobility, Target, TargetCpu};

use crate::stacks::{Stacks, shares};

/// Frames split evenly among the CPUs, each with its own stacks: no atomics, no sharing, no coalescing. A CPU that
/// frees what others allocated keeps it, so one that only allocates runs out.
#[derive(Debug)]
pub struct VecPerThread {
    frames: u64,
    /// By CPU; `None` while it is attached.
    parked: Vec<Mutex<Option<Stacks>>>,
}

impl VecPerThread {
    /// All frames free, for CPUs 0 to `cpus - 1`.
    ///
    /// # Errors
    /// More than 2^32 - 1 frames.
    pub fn new(frames: u64, cpus: usize) -> Result<Self, String> {
        let shares = shares(frames, cpus)?;
        Ok(Self {
            frames,
            parked: shares.into_iter().map(|share| Mutex::new(Some(Stacks::new(share)))).collect(),
        })
    }
}

impl Target for VecPerThread {
    type Cpu<'a> = OwnStacks<'a>;

    fn attach(&self, cpu: usize) -> OwnStacks<'_> {
        let place = &self.parked[cpu];
        let stacks = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        OwnStacks { place, stacks: stacks.expect("a CPU is attached by one thread at a time") }
    }

    fn frames(&self) -> Option<u64> {
        Some(self.frames)
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        let parked = self.parked.iter().map(|place| place.lock().unwrap_or_else(PoisonError::into_inner));
        Some(parked.filter_map(|place| place.as_ref().map(|stacks| stacks.available(order))).sum())
    }
}

/// The stacks of one thread.
#[derive(Debug)]
pub struct OwnStacks<'a> {
    place: &'a Mutex<Option<Stacks>>,
    stacks: Stacks,
}

impl TargetCpu for OwnStacks<'_> {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        self.stacks.pop(order)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        self.stacks.push(frame, order);
    }

    fn free_part(&mut self, frame: u64, part: u8, _whole: u8) -> bool {
        self.stacks.push(frame, part);
        true
    }
}

impl Drop for OwnStacks<'_> {
    fn drop(&mut self) {
        let stacks = core::mem::replace(&mut self.stacks, Stacks::new(0..0));
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(stacks);
    }
}
