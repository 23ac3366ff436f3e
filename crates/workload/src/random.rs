//! Seeded random numbers: `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014), small, fast, and equal on every machine.
//! The state advances by one addition, so that a timed loop does not wait for the number before.

/// A random sequence that its seed determines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The sequence of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A sequence of its own for each (seed, round, thread).
    #[must_use]
    pub const fn of_thread(seed: u64, round: u64, thread: usize) -> Self {
        let mut rng = Self(seed);
        rng.0 = rng.next() ^ round;
        rng.0 = rng.next() ^ thread as u64;
        rng
    }

    /// 64 random bits.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, or 0 if `n` is 0, by multiplication (Lemire): the bias is below `n` / 2^64.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// Index of an element of a list of this length.
    #[inline]
    pub const fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// A number from 0 to below 1.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Each order of the elements equally likely (Fisher and Yates).
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.index(last + 1));
        }
    }

    /// A waiting time with mean `mean`, exponentially distributed.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        // 53 random bits in (0, 1]: the logarithm is finite.
        let uniform = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        -mean * uniform.ln()
    }
}

/// Spreads every bit of `x` over all bits of the result.
#[inline]
#[must_use]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_generator_is_the_published_one() {
        // First outputs of SplitMix64 with seed 1234567, as its reference implementation gives them.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(
            [rng.next(), rng.next(), rng.next()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn an_index_reaches_everything_and_no_more() {
        let mut rng = Rng::of_thread(1, 0, 0);
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[rng.index(7)] += 1);
        assert!(seen.iter().all(|&n| (800..1200).contains(&n)), "{seen:?}");
    }

    #[test]
    fn a_shuffle_keeps_every_element_and_follows_the_seed() {
        let shuffled = |seed| {
            let mut list: Vec<u32> = (0..1000).collect();
            Rng::new(seed).shuffle(&mut list);
            list
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(1);
        assert!(!sorted.is_sorted());
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..1000));
    }

    #[test]
    fn exponential_has_its_mean() {
        let mut rng = Rng::of_thread(5, 0, 0);
        let mean = (0..100_000).map(|_| rng.exponential(40.0)).sum::<f64>() / 1e5;
        assert!((39.0..41.0).contains(&mean), "{mean}");
    }
}
