//! How long sampled operations took.

use std::time::Instant;

/// Samples in nanoseconds, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    sorted: Vec<u32>,
}

impl Latency {
    /// All samples of all threads.
    pub(super) fn new(parts: impl IntoIterator<Item = Vec<u32>>) -> Self {
        let mut sorted: Vec<u32> = parts.into_iter().flatten().collect();
        sorted.sort_unstable();
        Self { sorted }
    }

    /// The samples, ascending.
    #[must_use]
    pub fn samples(&self) -> &[u32] {
        &self.sorted
    }

    /// The smallest sample that at least the share `q` of all samples do not exceed (nearest rank); `None` without
    /// samples.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u32> {
        let count = self.sorted.len();
        let rank = (q * count as f64).ceil() as usize;
        self.sorted.get(rank.clamp(1, count.max(1)) - 1).copied()
    }

    /// Mean; `None` without samples.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let sum: u64 = self.sorted.iter().map(|&ns| u64::from(ns)).sum();
        (!self.sorted.is_empty()).then(|| sum as f64 / self.sorted.len() as f64)
    }
}

/// What reading the clock at the start and at the end of nothing shows: the median of a thousand tries.
pub(super) fn clock_ns() -> u64 {
    let mut tries: Vec<u64> = (0..1000).map(|_| elapsed_ns(Instant::now())).collect();
    tries.sort_unstable();
    tries[tries.len() / 2]
}

/// Nanoseconds since `start`.
#[inline]
pub(super) fn elapsed_ns(start: Instant) -> u64 {
    // 2^64 ns are 584 years.
    start.elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let latency = Latency::new([vec![5, 1, 4], vec![2, 3]]);
        let quantiles = [0.0, 0.2, 0.21, 0.5, 0.99, 1.0].map(|q| latency.quantile(q).unwrap());
        assert_eq!(quantiles, [1, 1, 2, 3, 5, 5]);
        assert_eq!(latency.mean(), Some(3.0));
        assert_eq!((Latency::default().quantile(0.5), Latency::default().mean()), (None, None));
    }
}
