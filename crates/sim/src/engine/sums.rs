//! Sums towards which each CPU counts on its own.
#![expect(unsafe_code, reason = "coroutines reach their engine through a pointer of the thread's own")]

use super::{Access, Engine, Simulator};
use crate::model::LINE;

/// A sum of which each CPU keeps what it has counted since it last added that to the sum.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    /// Word of the simulated memory that programs count in.
    pub(super) word: usize,
    /// Lines that a CPU's count is added to, one after the other.
    pub(super) totals: [usize; 2],
    /// Count of each CPU.
    pub(super) counts: Vec<i64>,
    /// A CPU that has counted more than this, or less than minus this, adds it to the sum.
    pub(super) drift: i64,
}

impl Simulator {
    /// Lets each CPU count on its own what is stored to the word at `word`, which is among lines that are [kept
    /// apart](Self::keep_apart): when it has counted more than `drift` in either direction it adds its count to two
    /// totals that all share, at `totals`, one after the other.
    pub fn sum_up(&mut self, word: usize, totals: [usize; 2], drift: u32) {
        let counts = vec![0; self.engine.cpus.len()];
        let totals = totals.map(|total| total / LINE);
        totals.iter().for_each(|&line| self.engine.lines.meet(line));
        self.engine.sums.push(Sum { word, totals, counts, drift: i64::from(drift) });
    }
}

impl Engine {
    /// Adds the running CPU's count to the totals, if it has become too much.
    ///
    /// # Safety
    /// As `touch`.
    #[inline]
    pub(super) unsafe fn add_up(this: *mut Self) {
        // SAFETY: by the caller's promise. No reference lives while the coroutine is left.
        let Some(sum) = unsafe { &mut *this }.due.take() else { return };
        // SAFETY: as above.
        for line in unsafe { &*this }.sums[sum].totals {
            // SAFETY: as above.
            while !unsafe { &mut *this }.step(line, Access::Add) {
                // SAFETY: as above.
                unsafe { Self::leave(this) };
            }
        }
    }

    /// Counts what the running CPU stores to a word of which it has its own.
    pub(super) fn count_own(&mut self) {
        let (word, change) = self.stored;
        if let Some(index) = self.sums.iter().position(|sum| sum.word == word) {
            let sum = &mut self.sums[index];
            let count = &mut sum.counts[usize::from(self.current)];
            *count += change;
            if count.abs() > sum.drift {
                *count = 0;
                self.additions += 1;
                self.due = Some(index);
            }
        }
    }
}
