//! A [`Target`] around any other that checks what the other hands out and what it is given back.
//!
//! It knows for each frame which live block it belongs to. A lock guards that knowledge, not the allocator:
//! calls into it still race with one another. An entry is made after an allocation and removed before a
//! free, so that a frame is never reported that was handed out again in between.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::target::{Counter, Mobility, Target, TargetCpu};

/// Violations that are kept as text; more are only counted.
const KEPT: usize = 20;

/// An allocator, checked. Wrong frees are reported and not passed on.
#[derive(Debug)]
pub struct Oracle<T> {
    target: T,
    state: Mutex<State>,
}

/// Findings of the oracle.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The first few calls that broke the rules.
    pub violations: Vec<String>,
    /// How often the rules were broken.
    pub violation_count: u64,
    /// Allocations that returned a block.
    pub allocations: u64,
    /// Allocations that returned none.
    pub failures: u64,
    /// Frees of whole blocks.
    pub frees: u64,
    /// Frees of parts that the allocator took.
    pub part_frees: u64,
    /// Frames in live blocks now.
    pub live_frames: u64,
    /// The most at any time.
    pub peak_frames: u64,
}

#[derive(Debug, Default)]
struct State {
    /// For each frame in use: first frame and order of the block it was allocated with.
    owner: HashMap<u64, (u64, u8)>,
    findings: Findings,
}

impl State {
    fn violation(&mut self, what: String) {
        self.findings.violation_count += 1;
        if self.findings.violations.len() < KEPT {
            self.findings.violations.push(what);
        }
    }

    fn allocated(&mut self, block: u64, order: u8, frames: Option<u64>) {
        self.findings.allocations += 1;
        let size = 1_u64 << order;
        if !block.is_multiple_of(size) {
            self.violation(format!("allocated frame {block}, not a multiple of its order {order}"));
        }
        if frames.is_some_and(|frames| block + size > frames) {
            self.violation(format!("allocated frame {block} order {order}, past the end"));
        }
        let mut overlaps = None;
        for frame in block..block + size {
            overlaps = self.owner.insert(frame, (block, order)).or(overlaps);
        }
        if let Some((start, live_order)) = overlaps {
            self.violation(format!(
                "allocated frame {block} order {order} over the live frame {start} order {live_order}"
            ));
        }
        self.findings.live_frames = self.owner.len() as u64;
        self.findings.peak_frames = self.findings.peak_frames.max(self.findings.live_frames);
    }

    /// Takes `part` of the block allocated with `whole` off the books if all of it is live; says whether it was.
    fn freed(&mut self, block: u64, part: u8, whole: u8) -> bool {
        let start = block & !((1 << whole) - 1);
        let live = (block..block + (1 << part)).all(|frame| self.owner.get(&frame) == Some(&(start, whole)));
        if !live {
            let owner = self.owner.get(&block);
            self.violation(format!("freed frame {block} order {part} of {whole}: it belongs to {owner:?}"));
            return false;
        }
        for frame in block..block + (1 << part) {
            self.owner.remove(&frame);
        }
        self.findings.live_frames = self.owner.len() as u64;
        true
    }

    fn restored(&mut self, block: u64, part: u8, whole: u8) {
        let start = block & !((1 << whole) - 1);
        self.owner.extend((block..block + (1 << part)).map(|frame| (frame, (start, whole))));
        self.findings.live_frames = self.owner.len() as u64;
    }
}

impl<T> Oracle<T> {
    /// Watches `target`, which no other code uses.
    pub fn new(target: T) -> Self {
        Self { target, state: Mutex::default() }
    }

    /// Findings until now.
    pub fn findings(&self) -> Findings {
        self.state().findings.clone()
    }

    /// The allocator itself.
    pub const fn inner(&self) -> &T {
        &self.target
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Target> Target for Oracle<T> {
    type Cpu<'a>
        = OracleCpu<'a, T>
    where
        Self: 'a;

    fn attach(&self, cpu: usize) -> Self::Cpu<'_> {
        OracleCpu { oracle: self, cpu: self.target.attach(cpu) }
    }

    fn frames(&self) -> Option<u64> {
        self.target.frames()
    }

    fn free_blocks(&self, order: u8) -> Option<u64> {
        self.target.free_blocks(order)
    }

    fn counters(&self) -> Vec<Counter> {
        self.target.counters()
    }
}

/// One thread's access to an [`Oracle`].
#[derive(Debug)]
pub struct OracleCpu<'a, T: Target + 'a> {
    oracle: &'a Oracle<T>,
    cpu: T::Cpu<'a>,
}

impl<T: Target> TargetCpu for OracleCpu<'_, T> {
    fn alloc(&mut self, order: u8, mobility: Mobility) -> Option<u64> {
        let block = self.cpu.alloc(order, mobility);
        let mut state = self.oracle.state();
        match block {
            Some(block) => state.allocated(block, order, self.oracle.target.frames()),
            None => state.findings.failures += 1,
        }
        block
    }

    fn free(&mut self, frame: u64, order: u8) {
        let mut state = self.oracle.state();
        if !state.freed(frame, order, order) {
            return;
        }
        state.findings.frees += 1;
        drop(state);
        self.cpu.free(frame, order);
    }

    fn free_part(&mut self, frame: u64, part: u8, whole: u8) -> bool {
        if !self.oracle.state().freed(frame, part, whole) {
            return true;
        }
        let taken = self.cpu.free_part(frame, part, whole);
        let mut state = self.oracle.state();
        if taken {
            state.findings.part_frees += 1;
        } else {
            // Not taken: it is still in use, by the contract of `free_part`.
            state.restored(frame, part, whole);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Buddy;

    #[test]
    fn clean_use_is_clean() {
        let oracle = Oracle::new(Buddy::new(64));
        let mut cpu = oracle.attach(0);
        let block = cpu.alloc(3, Mobility::Movable).unwrap();
        let page = cpu.alloc(0, Mobility::Movable).unwrap();
        cpu.free(block, 3);
        cpu.free(page, 0);
        let findings = oracle.findings();
        assert_eq!(findings.violations, [""; 0]);
        assert_eq!((findings.allocations, findings.frees, findings.live_frames), (2, 2, 0));
        assert_eq!(findings.peak_frames, 9);
    }

    #[test]
    fn wrong_frees_are_found_and_not_passed_on() {
        let oracle = Oracle::new(Buddy::new(64));
        let mut cpu = oracle.attach(0);
        let block = cpu.alloc(2, Mobility::Movable).unwrap();
        cpu.free(block, 1);
        cpu.free(block + 1, 0);
        cpu.free(block + 4, 2);
        cpu.free(block, 2);
        cpu.free(block, 2);
        let findings = oracle.findings();
        assert_eq!((findings.violation_count, findings.frees), (4, 1));
        assert_eq!(oracle.inner().frees(), 1);
    }

    #[test]
    fn overlapping_and_misaligned_blocks_are_found() {
        // A block that the allocator believes free again while the oracle knows it as live.
        let oracle = Oracle::new(Buddy::new(64));
        let mut cpu = oracle.attach(0);
        let block = cpu.alloc(1, Mobility::Movable).unwrap();
        cpu.cpu.free(block, 1);
        assert_eq!(cpu.alloc(1, Mobility::Movable), Some(block));
        let mut state = oracle.state();
        state.allocated(33, 2, Some(64));
        state.allocated(64, 0, Some(64));
        drop(state);
        let violations = oracle.findings().violations;
        assert!(violations[0].contains("over the live frame"), "{violations:?}");
        assert!(violations[1].contains("not a multiple"), "{violations:?}");
        assert!(violations[2].contains("past the end"), "{violations:?}");
    }

    #[test]
    fn parts_leave_the_rest_live() {
        let oracle = Oracle::new(Buddy::new(64));
        let mut cpu = oracle.attach(0);
        let block = cpu.alloc(3, Mobility::Movable).unwrap();
        assert!(!cpu.free_part(block, 1, 3), "this allocator takes no parts");
        assert_eq!(oracle.findings().live_frames, 8);
        cpu.free(block, 3);
        assert_eq!(oracle.findings().violation_count, 0);
    }
}
