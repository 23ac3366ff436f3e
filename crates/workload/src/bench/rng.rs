//! Seeded random numbers: `SplitMix64` (Steele, Lea, Flood, OOPSLA 2014). The state advances by one addition, so a
//! timed loop does not wait for the number before.

/// A random sequence that its seed determines.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A sequence of its own for each (seed, round, thread).
    pub(crate) fn new(seed: u64, round: u64, thread: usize) -> Self {
        let mut rng = Self(seed);
        for part in [round, thread as u64] {
            rng.0 = rng.next() ^ part;
        }
        rng
    }

    /// 64 random bits.
    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, by multiplication (Lemire): biased by at most `bound` / 2^64.
    #[inline]
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// Each order of the elements equally likely (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last + 1));
        }
    }

    /// A waiting time with mean `mean`, exponentially distributed.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        // 53 random bits in (0, 1]: the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -mean * uniform.ln()
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn first_numbers_of_seed_zero() {
        // The published reference sequence of SplitMix64 with seed 0.
        let mut rng = Rng(0);
        assert_eq!(rng.next(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.next(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn below_reaches_everything_and_no_more() {
        let mut rng = Rng::new(1, 0, 0);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[rng.below(7)] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn shuffle_keeps_the_elements() {
        let mut list: Vec<u32> = (0..1000).collect();
        Rng::new(1, 2, 3).shuffle(&mut list);
        assert!(!list.is_sorted());
        list.sort_unstable();
        assert!(list.into_iter().eq(0..1000));
    }

    #[test]
    fn exponential_has_its_mean() {
        let mut rng = Rng::new(5, 0, 0);
        let mean = (0..100_000).map(|_| rng.exponential(40.0)).sum::<f64>() / 1e5;
        assert!((39.0..41.0).contains(&mean), "{mean}");
    }
}
