//! The lab's own comparison: the ratio of two medians with a bootstrap interval, and what it lets one say.

use super::median;
use crate::result::{Better, Kind};

/// Confidence of the interval, in percent.
pub const CONFIDENCE_PERCENT: u32 = 95;
/// Below this many samples a table warns: resampling so few cannot show how far they might spread.
pub const FEW_SAMPLES: usize = 5;
/// Below this many samples nothing is said about a change at all.
const TOO_FEW_TO_JUDGE: usize = 3;

/// A new median as a multiple of the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// median(new) / median(base).
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// What an interval lets one say about a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Better, and the interval leaves no room for the opposite.
    Better,
    /// Worse, and the interval leaves no room for the opposite.
    Worse,
    /// Different, in a quantity of which neither way is better.
    Changed,
    /// The interval includes no change.
    Unclear,
    /// Too few samples to say.
    TooFew,
}

impl Ratio {
    /// The ratio of medians and its percentile-bootstrap interval: both sides are resampled with
    /// replacement, the ratio is taken each time, and the middle [`CONFIDENCE_PERCENT`] of the ratios remain
    /// (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3).
    ///
    /// `None` where there is no ratio: one side has no samples, or the baseline's median is 0. The same seed
    /// gives the same interval. O(resamples · samples), bounded: fewer resamples for very long inputs.
    #[must_use]
    pub fn of(base: &[f64], new: &[f64], seed: u64) -> Option<Self> {
        let centre = median(base);
        if base.is_empty() || new.is_empty() || centre == 0.0 {
            return None;
        }
        let ratio = median(new) / centre;
        let resamples = (4_000_000 / (base.len() + new.len())).clamp(200, 2000);
        let mut random = SplitMix64(seed);
        let mut scratch = Vec::with_capacity(base.len().max(new.len()));
        let mut ratios = Vec::with_capacity(resamples);
        for _ in 0..resamples {
            let base = resampled_median(base, &mut scratch, &mut random);
            let new = resampled_median(new, &mut scratch, &mut random);
            // A resampled baseline of 0 has no ratio; it is left out, which widens nothing.
            if base != 0.0 {
                ratios.push(new / base);
            }
        }
        ratios.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - f64::from(CONFIDENCE_PERCENT) / 100.0) / 2.0;
        let end = |p: f64| {
            let end = super::quantile_of_sorted(&ratios, p);
            if end.is_nan() { ratio } else { end }
        };
        Some(Self { ratio, low: end(tail).min(ratio), high: end(1.0 - tail).max(ratio) })
    }

    /// Half the width of the interval.
    #[must_use]
    pub fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0
    }
}

/// What may be said about the change from `base` to `new`. Derived figures have no spread: any difference
/// counts.
#[must_use]
pub fn verdict(base: &[f64], new: &[f64], ratio: Option<Ratio>, better: Better, kind: Kind) -> Verdict {
    if kind != Kind::Derived && base.len().min(new.len()) < TOO_FEW_TO_JUDGE {
        return Verdict::TooFew;
    }
    let (below, above) = match ratio {
        Some(ratio) if median(base) > 0.0 => (ratio.high < 1.0, ratio.low > 1.0),
        // No ratio, or one whose sense a negative baseline turns round: all samples must lie on one side.
        _ => (super::max(new) < super::min(base), super::min(new) > super::max(base)),
    };
    match (below, above, better) {
        (false, false, _) => Verdict::Unclear,
        (_, _, Better::None) => Verdict::Changed,
        (true, _, Better::Lower) | (_, true, Better::Higher) => Verdict::Better,
        _ => Verdict::Worse,
    }
}

/// A seed for one comparison out of many, so that adding a metric changes no other's interval.
#[must_use]
pub fn seed_for(seed: u64, metric: &str, variant: &str) -> u64 {
    // FNV-1a, 64 bit (Fowler, Noll and Vo): small, and stable across versions unlike std's hasher.
    let bytes = metric.bytes().chain([0]).chain(variant.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The median of as many samples drawn with replacement.
fn resampled_median(samples: &[f64], scratch: &mut Vec<f64>, random: &mut SplitMix64) -> f64 {
    scratch.clear();
    scratch.extend((0..samples.len()).map(|_| samples[random.below(samples.len())]));
    let middle = scratch.len() / 2;
    let (lower, &mut upper_middle, _) = scratch.select_nth_unstable_by(middle, f64::total_cmp);
    if samples.len() % 2 == 1 { upper_middle } else { (super::max(lower) + upper_middle) / 2.0 }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): seeds well from any number, and is all a bootstrap needs.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound` by multiplication; the bias is below bound / 2⁶⁴.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_is_splitmix64() {
        // First outputs for seed 1234567, as the reference implementation gives them.
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn the_interval_repeats_and_holds_the_ratio() {
        let base: Vec<f64> = (0..40).map(|index| 100.0 + f64::from(index % 7)).collect();
        let new: Vec<f64> = base.iter().map(|sample| sample * 0.5 + 1.0).collect();
        let ratio = Ratio::of(&base, &new, 3).expect("the baseline is not 0");
        assert_eq!(Some(ratio), Ratio::of(&base, &new, 3));
        assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high, "{ratio:?}");
        assert!(ratio.low < ratio.high && ratio.high < 0.6, "{ratio:?}");
        assert_ne!(seed_for(1, "a", "bc"), seed_for(1, "ab", "c"));
        assert_ne!(seed_for(1, "a", "b"), seed_for(2, "a", "b"));
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        // 200 pairs of samples from one uniform distribution: the true ratio is 1.
        let mut random = SplitMix64(9);
        let mut draw =
            |n: usize| -> Vec<f64> { (0..n).map(|_| 100.0 + random.below(1000) as f64 / 100.0).collect() };
        let covered = (0..200)
            .filter(|seed| {
                let ratio = Ratio::of(&draw(20), &draw(20), *seed).expect("the baseline is not 0");
                ratio.low <= 1.0 && 1.0 <= ratio.high
            })
            .count();
        assert!((175..=200).contains(&covered), "{covered} of 200");
    }

    #[test]
    fn one_sample_has_itself_for_an_interval() {
        let ratio = Ratio::of(&[4.0], &[2.0], 1).expect("the baseline is not 0");
        assert_eq!(ratio, Ratio { ratio: 0.5, low: 0.5, high: 0.5 });
        assert_eq!(ratio.half_width(), 0.0);
        assert_eq!(Ratio::of(&[0.0], &[2.0], 1), None);
        assert_eq!(Ratio::of(&[1.0], &[], 1), None);
    }

    #[test]
    fn a_verdict_needs_samples_and_a_clear_interval() {
        let judge = |base: &[f64], new: &[f64], better, kind| {
            verdict(base, new, Ratio::of(base, new, 1), better, kind)
        };
        let (low, high) = ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]);
        let measured = Kind::Measured;
        assert_eq!(judge(&low, &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&low, &high, Better::Higher, measured), Verdict::Better);
        assert_eq!(judge(&low, &high, Better::None, measured), Verdict::Changed);
        assert_eq!(judge(&low, &low, Better::Lower, measured), Verdict::Unclear);
        assert_eq!(judge(&low[..2], &high, Better::Lower, measured), Verdict::TooFew);
        assert_eq!(judge(&[1.0], &[2.0], Better::Lower, Kind::Derived), Verdict::Worse);
        // From zero there is no ratio, but a side.
        assert_eq!(judge(&[0.0; 3], &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&[0.0; 3], &[0.0; 3], Better::Lower, measured), Verdict::Unclear);
    }

    #[test]
    fn medians_of_even_and_odd_resamples_agree_with_the_definition() {
        let mut scratch = Vec::new();
        for samples in [vec![5.0], vec![1.0, 3.0], vec![9.0, 1.0, 5.0], vec![2.0, 8.0, 4.0, 6.0]] {
            let actual = resampled_median(&samples, &mut scratch, &mut SplitMix64(7));
            assert_eq!(actual, median(&scratch), "{samples:?}");
        }
    }
}
