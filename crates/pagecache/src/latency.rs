//! A histogram of durations, whose buckets are a sixteenth of a power of two wide.

/// Buckets in each power of two.
const FINE: u32 = 16;
const FINE_BITS: u32 = FINE.trailing_zeros();
/// One bucket for each number below `FINE`, and `FINE` buckets for each power of two above.
const BUCKETS: usize = ((64 - FINE_BITS + 1) * FINE) as usize;

/// Durations in nanoseconds, counted. A percentile is at most 1/16 too large; the maximum is exact.
///
/// ```
/// use framewright_pagecache::latency::Histogram;
///
/// let mut times = Histogram::default();
/// (1..=1000).for_each(|ns| times.add(ns));
/// assert_eq!((times.count(), times.max()), (1000, 1000));
/// assert!((500..=532).contains(&times.per_mille(500)));
/// ```
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], count: 0, max: 0 }
    }
}

const fn bucket(ns: u64) -> usize {
    if ns < FINE as u64 {
        return ns as usize;
    }
    let power = 63 - ns.leading_zeros();
    let fine = (ns >> (power - FINE_BITS)) & (FINE as u64 - 1);
    ((power - FINE_BITS + 1) * FINE) as usize + fine as usize
}

/// The largest number in a bucket.
const fn end(bucket: usize) -> u64 {
    let (power, fine) = (bucket as u32 / FINE, bucket as u64 % FINE as u64);
    if power == 0 {
        return fine;
    }
    // Written so that the last bucket's end does not overflow.
    ((FINE as u64 + fine) << (power - 1)) + ((1 << (power - 1)) - 1)
}

impl Histogram {
    /// Counts one duration. O(1).
    pub const fn add(&mut self, ns: u64) {
        self.counts[bucket(ns)] += 1;
        self.count += 1;
        if ns > self.max {
            self.max = ns;
        }
    }

    /// How many durations were counted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The longest duration; 0 if none was counted.
    #[must_use]
    pub const fn max(&self) -> u64 {
        self.max
    }

    /// A duration that `wanted` of 1,000 did not exceed: the end of the bucket with that rank, and never more than the
    /// longest duration. 0 if none was counted. O(buckets).
    #[must_use]
    pub fn per_mille(&self, wanted: u64) -> u64 {
        let rank = (u128::from(self.count) * u128::from(wanted)).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank {
                return end(bucket).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_a_sixteenth_wide() {
        for ns in (0..5000).chain((13..64).flat_map(|power| [(1 << power) - 1, 1 << power, (3 << power) / 2]))
        {
            let at = bucket(ns);
            assert!(end(at) >= ns && end(at) - ns <= ns / 16, "{ns}");
            assert!(at == 0 || end(at - 1) < ns, "{ns}");
        }
        assert_eq!((bucket(u64::MAX), end(BUCKETS - 1)), (BUCKETS - 1, u64::MAX));
    }

    #[test]
    fn percentiles_are_those_of_the_sorted_durations() {
        let mut times = Histogram::default();
        assert_eq!((times.per_mille(500), times.max()), (0, 0));
        let all: [u64; 2000] = core::array::from_fn(|n| (n as u64 * 7919 % 2000).pow(2));
        all.iter().for_each(|&ns| times.add(ns));
        let mut sorted = all;
        sorted.sort_unstable();
        for per_mille in [1, 500, 990, 999] {
            let exact = sorted[2 * per_mille - 1];
            let found = times.per_mille(per_mille as u64);
            assert!(found >= exact && found <= exact + exact / 16, "{per_mille}: {found} for {exact}");
        }
        assert_eq!((times.per_mille(1000), times.max()), (1999 * 1999, 1999 * 1999));
    }
}
