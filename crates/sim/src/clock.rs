//! Virtual time, and the generator behind everything random.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// A point in virtual time, or a span of it, in picoseconds. 2^64 of them are 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u64);

impl Ps {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// So many nanoseconds, to the nearest picosecond; 0 if negative.
    #[must_use]
    pub fn from_ns(ns: f64) -> Self {
        Self(round(ns * 1000.0))
    }

    /// In nanoseconds.
    #[must_use]
    pub fn as_ns(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The span from `earlier` to this, 0 if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// This span times `factor`. It is below 2^63 ps, 106 days.
    #[inline]
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self(round(self.0 as i64 as f64 * factor))
    }
}

/// To the nearest integer, halves away from zero, 0 if negative: `f64::round`, without the call that it is where the
/// instruction set has no instruction for it. Times are below 2^63, for which there is one instruction.
#[inline]
fn round(x: f64) -> u64 {
    let whole = x as i64;
    whole.saturating_add(i64::from(x - whole as f64 >= 0.5)).max(0) as u64
}

impl Add for Ps {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Ps {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Ps {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl fmt::Debug for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.as_ns())
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): small, fast, and the same everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    #[inline]
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `n`, or 0 if `n` is 0. The bias is below `n` / 2^64.
    #[inline]
    pub const fn below(&mut self, n: u64) -> u64 {
        ((self.next() as u128 * n as u128) >> 64) as u64
    }

    /// A number from 0 to below 1.
    #[inline]
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Puts `items` into random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for n in (1..items.len()).rev() {
            items.swap(n, self.below(n as u64 + 1) as usize);
        }
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
    use super::*;

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
    fn a_shuffle_keeps_every_item_and_follows_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<u32> = (0..100).collect();
            Rng::new(seed).shuffle(&mut items);
            items
        };
        assert_eq!(shuffled(1), shuffled(1));
        assert_ne!(shuffled(1), shuffled(2));
        let mut sorted = shuffled(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn times_are_exact_to_the_picosecond() {
        assert_eq!(Ps::from_ns(1.2345), Ps(1235));
        assert_eq!(Ps(1500).as_ns(), 1.5);
        assert_eq!(Ps(3).since(Ps(5)), Ps(0));
        assert_eq!(Ps(1000).scaled(1.25), Ps(1250));
    }

    #[test]
    fn rounding_is_that_of_the_standard_library() {
        let mut rng = Rng::new(1);
        let random = (0..10_000).map(|n| rng.unit() * 10_f64.powi(n % 18));
        let edges = [0.0, 0.5, 1.5, 0.499_999_999_999_999_94, -0.5, -7.0, 1e18 + 1.0, f64::NAN];
        for x in random.chain(edges) {
            assert_eq!(round(x), x.round() as u64, "{x}");
        }
    }
}
