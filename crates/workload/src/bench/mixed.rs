//! Random allocations and frees of orders 0 to 4.

use crate::random::Rng;

use super::lists::summary;
use super::stage::{Meeting as _, Stage};
use super::{Case, Measurement, Scale, Tally, opaque};
use crate::target::{Mobility, TargetCpu};

/// Orders are drawn alike, from 0 to this one.
const MAX_ORDER: u8 = 4;

/// Frames of a block in the mean: (1 + 2 + 4 + 8 + 16) / 5, rounded up.
const MEAN_FRAMES: u64 = 7;

/// See [`Workload::Mixed`](super::Workload::Mixed).
pub(super) fn mixed<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    let share = scale.frames / 4 / MEAN_FRAMES / case.cpus as u64;
    let middle = usize::try_from(share).unwrap_or(usize::MAX).max(16);
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut held = Held::new(middle, Rng::of_thread(scale.seed, round, index));
        while held.blocks.len() < middle && held.failures == 0 {
            held.allocate(cpu);
        }
        held.steps(cpu, scale.operations / 4);
        held.failures = 0;
        let mut tally = Tally::default();
        gate.wait();
        tally.time::<S>(scale.operations, || {
            held.steps(cpu, scale.operations);
            held.failures
        });
        gate.wait();
        while !held.blocks.is_empty() {
            held.free(cpu);
        }
        [tally]
    });
    summary(case, done, ["mixed_ns"])
}

/// The blocks that one thread holds: about `middle`, between an eighth less and an eighth more.
struct Held {
    /// First frame and order, packed: a list element stays one word.
    blocks: Vec<u64>,
    least: usize,
    most: usize,
    rng: Rng,
    failures: u64,
}

impl Held {
    fn new(middle: usize, rng: Rng) -> Self {
        let (least, most) = (middle - middle / 8, middle + middle / 8);
        Self { blocks: Vec::with_capacity(most), least, most, rng, failures: 0 }
    }

    /// One operation each: by a coin, but within the bounds.
    fn steps<C: TargetCpu>(&mut self, cpu: &mut C, count: u64) {
        for _ in 0..count {
            let coin = self.rng.next() & 1 == 0;
            let held = self.blocks.len();
            if held < self.most && (coin || held <= self.least) {
                self.allocate(cpu);
            } else {
                self.free(cpu);
            }
        }
    }

    fn allocate<C: TargetCpu>(&mut self, cpu: &mut C) {
        let order = self.rng.index(usize::from(MAX_ORDER) + 1) as u8;
        match cpu.alloc(order, Mobility::Movable) {
            Some(block) => self.blocks.push(block << 8 | u64::from(order)),
            None => self.failures += 1,
        }
        opaque(cpu);
    }

    fn free<C: TargetCpu>(&mut self, cpu: &mut C) {
        let held = self.blocks.len();
        if held == 0 {
            return;
        }
        let packed = self.blocks.swap_remove(self.rng.index(held));
        cpu.free(packed >> 8, packed as u8);
        opaque(cpu);
    }
}
