//! Fault injection: allocations that fail on purpose, to test how callers handle a failure (Linux: `fail_page_alloc`).
//!
//! An allocator with [`Config::fault_injection`](crate::Config::fault_injection) asks a [`FaultRule`] before each
//! allocation. Its per-CPU lists give no hits, so each allocation takes the slow path and is counted there. Other
//! allocators pay nothing. [`Allocator::inject`](crate::Allocator::inject) sets, changes or removes the rule at any
//! time.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::platform::{Platform, Word, update};
use crate::units::Order;

/// Rule that selects the allocations that fail. Allocations of the orders in `orders` are counted. Every `interval`-th
/// of them is a candidate. Of the candidates `probability` percent fail, drawn by the seed and the count, until `times`
/// have failed.
///
/// ```
/// use framewright::fault::FaultRule;
///
/// let third_large_one = FaultRule { orders: u16::MAX << 4, ..FaultRule::nth(3) };
/// assert_eq!((third_large_one.interval, third_large_one.times), (3, Some(1)));
/// let one_in_ten = FaultRule::share(10, 42);
/// assert_eq!(one_in_ten.times, None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FaultRule {
    /// Bit `k`: whether allocations of order `k` are counted.
    pub orders: u16,
    /// Share of the candidates that fail, in percent.
    pub probability: u8,
    /// Every `interval`-th counted allocation is a candidate; 0 counts as 1.
    pub interval: u32,
    /// Failures after which the rule is spent; `None`: no limit.
    pub times: Option<u32>,
    /// Seed of the draw.
    pub seed: u64,
}

impl FaultRule {
    /// Lets the `n`-th allocation from now on fail, and no other.
    #[must_use]
    pub const fn nth(n: u32) -> Self {
        Self { orders: u16::MAX, probability: 100, interval: n, times: Some(1), seed: 0 }
    }

    /// Lets `percent` percent of all allocations fail; the seed decides which.
    #[must_use]
    pub const fn share(percent: u8, seed: u64) -> Self {
        Self { orders: u16::MAX, probability: percent, interval: 1, times: None, seed }
    }

    /// Whether the `n`-th counted allocation, from 1, fails. Does not look at `times`. Pure.
    #[must_use]
    pub const fn fails(&self, n: u64) -> bool {
        let interval = if self.interval == 0 { 1 } else { self.interval as u64 };
        n.is_multiple_of(interval) && scrambled(self.seed, n) % 100 < self.probability as u64
    }
}

/// A pseudorandom number from a seed and a count: the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
const fn scrambled(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Counts of a rule since it was set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultCounts {
    /// Allocations of the rule's orders.
    pub seen: u64,
    /// Allocations that the rule let fail.
    pub failed: u64,
}

/// The present rule and its counts. All CPUs read and write these words.
pub(crate) struct Faults<P: Platform> {
    /// `orders | probability << 16 | interval << 32`; 0: no rule.
    rule: P::Word,
    seed: P::Word,
    seen: P::Word,
    failed: P::Word,
    /// Failures left; `u64::MAX`: no limit.
    left: P::Word,
}

impl<P: Platform> Faults<P> {
    pub(crate) fn new() -> Self {
        let zero = || P::Word::new(0);
        Self { rule: zero(), seed: zero(), seen: zero(), failed: zero(), left: zero() }
    }

    /// Replaces the rule and resets the counts. An allocation on another CPU during the call sees the old rule, no
    /// rule, or the new one.
    pub(crate) fn set(&self, rule: Option<&FaultRule>) {
        self.rule.store(0, Release);
        self.seen.store(0, Relaxed);
        self.failed.store(0, Relaxed);
        let Some(rule) = rule else { return };
        self.seed.store(rule.seed, Relaxed);
        self.left.store(rule.times.map_or(u64::MAX, u64::from), Relaxed);
        let packed = u64::from(rule.orders)
            | u64::from(rule.probability) << 16
            | u64::from(rule.interval.max(1)) << 32;
        // Release: a CPU that sees the rule sees its seed and its counts.
        self.rule.store(packed, Release);
    }

    /// Counts an allocation. Returns whether it must fail.
    pub(crate) fn strikes(&self, order: Order) -> bool {
        let packed = self.rule.load(Acquire);
        if packed >> order.get() & 1 == 0 {
            return false;
        }
        let rule = FaultRule {
            orders: packed as u16,
            probability: (packed >> 16) as u8,
            interval: (packed >> 32) as u32,
            times: None,
            seed: self.seed.load(Relaxed),
        };
        let n = self.seen.fetch_add(1, Relaxed).wrapping_add(1);
        if !rule.fails(n) || !self.take_one() {
            return false;
        }
        self.failed.fetch_add(1, Relaxed);
        true
    }

    /// Takes one of the failures that are left. `false` if there is none.
    fn take_one(&self) -> bool {
        let mut is_unlimited = false;
        let taken = update(&self.left, AcqRel, |left| {
            is_unlimited = left == u64::MAX;
            left.checked_sub(1).filter(|_| !is_unlimited)
        });
        taken.is_some() || is_unlimited
    }

    pub(crate) fn counts(&self) -> FaultCounts {
        FaultCounts { seen: self.seen.load(Relaxed), failed: self.failed.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_nth_fails_and_no_other() {
        let rule = FaultRule::nth(7);
        let failing: Vec<_> = (1..=13).filter(|&n| rule.fails(n)).collect();
        assert_eq!(failing, [7]);
    }

    #[test]
    fn a_share_is_met_and_follows_from_the_seed() {
        for percent in [0, 1, 25, 50, 99, 100] {
            let fails = |seed| (1..=20_000).filter(|&n| FaultRule::share(percent, seed).fails(n)).count();
            // Five standard deviations of a draw of 20,000, and nothing to draw at the ends.
            let (mean, spread) =
                (200 * usize::from(percent), 14.2 * f64::from(percent).sqrt().min(10.0) * 5.0);
            assert!(fails(1).abs_diff(mean) as f64 <= spread, "{percent} %: {}", fails(1));
            assert_eq!(fails(3), fails(3));
        }
        let failing = |seed| (1..=100).map(move |n| FaultRule::share(50, seed).fails(n)).collect::<Vec<_>>();
        assert_ne!(failing(1), failing(2));
    }
}
