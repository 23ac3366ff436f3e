//! Virtual time, and the generator behind everything random (that of generated workloads).

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

pub use framewright_workload::random::{Rng, mix};

/// A point in virtual time, or a span of it, in picoseconds. 2^64 of them are 213 days.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ps(pub u64);

impl Ps {
    /// Later than everything.
    pub const NEVER: Self = Self(u64::MAX);

    /// `ns` nanoseconds, to the nearest picosecond; 0 if negative.
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
    fn add(self, more: Self) -> Self {
        Self(self.0 + more.0)
    }
}

impl AddAssign for Ps {
    #[inline]
    fn add_assign(&mut self, more: Self) {
        self.0 += more.0;
    }
}

impl Sub for Ps {
    type Output = Self;
    #[inline]
    fn sub(self, less: Self) -> Self {
        Self(self.0 - less.0)
    }
}

impl fmt::Debug for Ps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.as_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
