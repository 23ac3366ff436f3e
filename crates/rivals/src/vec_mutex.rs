//! One set of stacks behind a `std` mutex.

use std::sync::{Mutex, MutexGuard, PoisonError};

use framewright_workload::target::{Mobility, Target, TargetCpu};

use crate::stacks::{Stacks, shares};

/// All frames in one set of stacks, which every operation locks. No coalescing.
#[derive(Debug)]
pub struct VecMutex {
    frames: u64,
    stacks: Mutex<Stacks>,
}

impl VecMutex {
    /// All frames free.
    ///
    /// # Errors
    /// More than 2^32 - 1 frames.
    pub fn new(frames: u64) -> Result<Self, String> {
        let all = shares(frames, 1)?.remove(0);
        Ok(Self { frames, stacks: Mutex::new(Stacks::new(all)) })
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Stacks> {
        self.stacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for VecMutex {
    type Cpu<'a> = &'a Self;

    fn attach(&self, _cpu: usize) -> &Self {
        self
    }

    fn frames(&self) -> Option<u64> {
        Some(self.frames)
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        Some(self.lock().available(order))
    }
}

impl TargetCpu for &VecMutex {
    #[inline]
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        self.lock().pop(order)
    }

    #[inline]
    fn free(&mut self, frame: u64, order: u8) {
        self.lock().push(frame, order);
    }

    fn free_part(&mut self, frame: u64, part: u8, _whole: u8) -> bool {
        self.lock().push(frame, part);
        true
    }
}
