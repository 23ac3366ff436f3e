//! The lab's own comparison: a ratio to the baseline with an interval, and what it lets one say.
//!
//! | samples | ratio | interval |
//! |---|---|---|
//! | measured in the same rounds | ratio of the medians | sign test of the ratios of each round (`Ratio::of_pairs`) |
//! | simulated on the same models | ratio of the medians | lowest to highest ratio on a model (`Ratio::of_models`) |
//! | of separate runs | ratio of the medians | bootstrap ([`Ratio::of`]) |
//!
//! The ratio is always that of the medians that a table shows beside it. An interval that would not hold it is widened
//! until it does.

use framewright_trace::random::Rng;

use super::median;
use crate::result::{Better, Kind, Metric, Part};

/// Confidence of the interval, in percent.
pub const CONFIDENCE_PERCENT: u32 = 95;
/// Times that samples are drawn again for an interval.
const RESAMPLES: usize = 2000;
/// Below this many samples a table warns: resampling so few cannot show how far they might spread.
pub const FEW_SAMPLES: usize = 5;
/// Below this many samples nothing is said about a change at all.
const TOO_FEW_TO_JUDGE: usize = 3;
/// Like [`FEW_SAMPLES`], for measured pairs: of fewer, not even all on one side are 95 % sure.
pub const FEW_PAIRS: usize = 6;

/// A new figure as a multiple of the baseline's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The ratio.
    pub ratio: f64,
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

/// Verdict about a change, by its interval.
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
    /// The ratio of a variant to the baseline of its part, in the way that the samples allow.
    ///
    /// `None` where there is no ratio: samples are missing, or the baseline is 0 or negative. The same seed gives the
    /// same interval.
    #[must_use]
    pub fn between(part: &Part, metric: &Metric, variant: &str, seed: u64) -> Option<Self> {
        let (base, new) = (metric.of(&part.baseline), metric.of(variant));
        if base.iter().chain(new).any(|sample| *sample < 0.0) {
            return None;
        }
        let of_each = match ratios(part, base, new) {
            Some(ratios) if part.kind == Kind::Simulated => Self::of_models(&ratios),
            Some(ratios) => Self::of_pairs(&ratios),
            None => {
                // A part of very many rows takes fewer for each.
                let resamples = (20_000_000 / part.metrics.len().max(1)).clamp(200, RESAMPLES);
                return Self::resampled(base, new, seed_for(seed, &metric.name, variant), resamples);
            }
        };
        let ratio = median(new) / median(base);
        Some(Self { ratio, low: of_each.low.min(ratio), high: of_each.high.max(ratio) })
    }

    /// The median of ratios, and the interval between two of them that holds the true median with at least
    /// [`CONFIDENCE_PERCENT`], whatever their distribution: that of the sign test (David and Nagaraja, "Order
    /// Statistics", 2003, section 7.1). Below [`FEW_PAIRS`] it is all of them, and less sure than that.
    fn of_pairs(ratios: &[f64]) -> Self {
        let n = ratios.len();
        // The chance that at most `k` of n fair coins show heads, times two for both sides.
        let (mut below, mut chance, mut outside) = (0, 0.5_f64.powi(n.min(1000) as i32), 0.0);
        loop {
            outside += 2.0 * chance;
            if outside > 1.0 - f64::from(CONFIDENCE_PERCENT) / 100.0 || 2 * (below + 1) >= n {
                break;
            }
            chance *= (n - below) as f64 / (below + 1) as f64;
            below += 1;
        }
        let below = below.saturating_sub(1);
        Self {
            ratio: super::quantile_of_sorted(ratios, 0.5),
            low: ratios[below],
            high: ratios[n - 1 - below],
        }
    }

    /// The median of ratios, from the lowest to the highest: models are not drawn from what is true, so that all they
    /// say is what range the unknown parameters leave.
    fn of_models(ratios: &[f64]) -> Self {
        Self { ratio: super::quantile_of_sorted(ratios, 0.5), low: ratios[0], high: ratios[ratios.len() - 1] }
    }

    /// The ratio of medians and its percentile-bootstrap interval: both sides are resampled with
    /// replacement, the ratio is taken each time, and the middle [`CONFIDENCE_PERCENT`] of the ratios remain
    /// (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 13.3).
    ///
    /// `None` where there is no ratio: one side has no samples, or the baseline's median is 0. The same seed
    /// gives the same interval. O(samples · log samples + resamples).
    #[must_use]
    pub fn of(base: &[f64], new: &[f64], seed: u64) -> Option<Self> {
        Self::resampled(base, new, seed, RESAMPLES)
    }

    fn resampled(base: &[f64], new: &[f64], seed: u64, resamples: usize) -> Option<Self> {
        let [base, new] = [base, new].map(super::sorted);
        let centre = super::quantile_of_sorted(&base, 0.5);
        if base.is_empty() || new.is_empty() || centre == 0.0 {
            return None;
        }
        let ratio = super::quantile_of_sorted(&new, 0.5) / centre;
        if [&base, &new].iter().all(|side| side[0] == side[side.len() - 1]) {
            return Some(Self { ratio, low: ratio, high: ratio });
        }
        let mut random = Rng::new(seed);
        let mut ratios = Vec::with_capacity(resamples);
        for _ in 0..resamples {
            let base = resampled_median(&base, &mut random);
            let new = resampled_median(&new, &mut random);
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
}

/// New over base for each pair, sorted, if the samples of the part are pairs and every base is above 0.
fn ratios(part: &Part, base: &[f64], new: &[f64]) -> Option<Vec<f64>> {
    let pairs = part.paired && !base.is_empty() && base.len() == new.len();
    if !pairs || base.iter().any(|base| *base <= 0.0) {
        return None;
    }
    let mut ratios: Vec<f64> = base.iter().zip(new).map(|(base, new)| new / base).collect();
    ratios.sort_unstable_by(f64::total_cmp);
    Some(ratios)
}

/// A change of samples that is smaller than this is printed as `1.000×`, and is called none, however sure it is.
const LEAST_SHOWN: f64 = 0.0005;

/// Verdict about the change from the baseline to a variant. Derived figures have no spread: any difference
/// counts.
#[must_use]
pub fn verdict(part: &Part, metric: &Metric, variant: &str, ratio: Option<Ratio>) -> Verdict {
    let (base, new) = (metric.of(&part.baseline), metric.of(variant));
    let enough = match part.kind {
        _ if metric.is_exact => 1,
        Kind::Measured if base.len() != new.len() => TOO_FEW_TO_JUDGE,
        _ => needed(part),
    };
    let few = base.len().min(new.len()) < enough;
    let shown = if part.kind == Kind::Derived || metric.is_exact { 0.0 } else { LEAST_SHOWN };
    let (below, above) = match ratio {
        Some(ratio) => (ratio.high < 1.0 - shown, ratio.low > 1.0 + shown),
        // All samples must lie on one side.
        None => (super::max(new) < super::min(base), super::min(new) > super::max(base)),
    };
    match (below, above, metric.better) {
        // Counts that never differ need no statistics.
        _ if few && base.iter().chain(new).any(|sample| *sample != base[0]) => Verdict::TooFew,
        (false, false, _) => Verdict::Unclear,
        (_, _, Better::None) => Verdict::Changed,
        (true, _, Better::Lower) | (_, true, Better::Higher) => Verdict::Better,
        _ => Verdict::Worse,
    }
}

/// Samples of each variant below which nothing is said about a change.
#[must_use]
pub const fn needed(part: &Part) -> usize {
    match part.kind {
        Kind::Derived => 1,
        Kind::Measured if part.paired => FEW_PAIRS,
        Kind::Measured | Kind::Simulated => TOO_FEW_TO_JUDGE,
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

/// The median of `n` samples drawn with replacement from `n` sorted ones, in a number of steps that does not grow with
/// `n`.
///
/// Drawing an index is drawing a uniform number. The middle one of 2h + 1 uniform numbers has the distribution
/// Beta(h + 1, h + 1); its neighbour is the nearest of h numbers that are uniform on its side.
fn resampled_median(sorted: &[f64], random: &mut Rng) -> f64 {
    let n = sorted.len();
    let at = |place: f64| sorted[((place * n as f64) as usize).min(n - 1)];
    let half = (n - 1) / 2;
    let middle = symmetric_beta((half + 1) as f64, random);
    if n % 2 == 1 {
        return at(middle);
    }
    // One more number makes the count even: the second of the middle two is this one or that neighbour.
    let last = random.unit();
    let side = if last < middle { middle } else { 1.0 - middle };
    let neighbour = side * (1.0 - random.unit().powf(1.0 / half as f64));
    let distance = neighbour.min((last - middle).abs());
    f64::midpoint(at(middle), at(middle + distance.copysign(last - middle)))
}

/// A number from the distribution Beta(a, a), by Ulrich's polar method (Devroye, "Non-Uniform Random Variate
/// Generation", 1986, section IX.4.3).
fn symmetric_beta(a: f64, random: &mut Rng) -> f64 {
    loop {
        let (u, v) = (random.unit(), 2.0 * random.unit() - 1.0);
        let square = u * u + v * v;
        if square > 0.0 && square <= 1.0 {
            return 0.5 + u * v / square * (1.0 - square.powf(2.0 / (2.0 * a - 1.0))).sqrt();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut random = Rng::new(9);
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
        assert_eq!(Ratio::of(&[0.0], &[2.0], 1), None);
        assert_eq!(Ratio::of(&[1.0], &[], 1), None);
    }

    /// A part with one metric.
    fn part(base: &[f64], new: &[f64], better: Better, kind: Kind) -> Part {
        let mut part = Part::new("s", "p", kind, "host").baseline("base");
        part.metric("m", "1", better)
            .samples("base", base.iter().copied())
            .samples("new", new.iter().copied());
        part
    }

    fn judge(part: &Part) -> (Option<Ratio>, Verdict) {
        let ratio = Ratio::between(part, &part.metrics[0], "new", 1);
        (ratio, verdict(part, &part.metrics[0], "new", ratio))
    }

    #[test]
    fn a_verdict_needs_samples_and_a_clear_interval() {
        let judge = |base: &[f64], new: &[f64], better, kind| judge(&part(base, new, better, kind)).1;
        let (low, high) = ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2]);
        let measured = Kind::Measured;
        assert_eq!(judge(&low, &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&low, &high, Better::Higher, measured), Verdict::Better);
        assert_eq!(judge(&low, &high, Better::None, measured), Verdict::Changed);
        assert_eq!(judge(&low, &low, Better::Lower, measured), Verdict::Unclear);
        assert_eq!(judge(&low[..2], &high, Better::Lower, measured), Verdict::TooFew);
        assert_eq!(judge(&[1.0], &[2.0], Better::Lower, Kind::Derived), Verdict::Worse);
        // From zero there is no ratio, but a side; likewise from a negative number.
        assert_eq!(judge(&[0.0; 3], &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&[-3.0, -2.0, -2.5], &low, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&[0.0; 3], &[0.0; 3], Better::Lower, measured), Verdict::Unclear);
        assert_eq!(judge(&[4.0; 2], &[4.0; 2], Better::Lower, measured), Verdict::Unclear);
    }

    /// Rounds, or models, that differ far more from one another than the variants do within each.
    #[test]
    fn pairs_show_what_separate_samples_hide() {
        let base: Vec<f64> = (0..20).map(|n| 100.0 + 10.0 * f64::from(n)).collect();
        let new: Vec<f64> =
            base.iter().zip(0..).map(|(base, n)| base * (0.99 + 0.0002 * f64::from(n))).collect();
        let mut part = part(&base, &new, Better::Lower, Kind::Simulated);
        assert_eq!(judge(&part).1, Verdict::Unclear);
        part.paired = true;
        let (ratio, verdict) = judge(&part);
        let ratio = ratio.expect("a ratio of pairs");
        assert!((ratio.low - 0.99).abs() < 1e-12 && (ratio.high - 0.9938).abs() < 1e-12, "{ratio:?}");
        assert_eq!(verdict, Verdict::Better);
        part.kind = Kind::Measured;
        let (inner, verdict) = judge(&part);
        assert!(inner.is_some_and(|inner| inner.low > ratio.low && inner.high < ratio.high), "{inner:?}");
        assert_eq!(verdict, Verdict::Better);
        // Of five, all on one side come about by chance once in sixteen.
        for samples in part.metrics[0].samples.values_mut() {
            samples.truncate(5);
        }
        assert_eq!(judge(&part).1, Verdict::TooFew);
        part.metrics[0].samples.get_mut("new").expect("there").pop();
        assert_eq!(judge(&part).1, Verdict::Unclear, "without partners they are separate samples");
    }

    /// "476 → 441 ns, 1.175×" would look like a mistake: the ratio beside two medians is theirs.
    #[test]
    fn the_ratio_is_that_of_the_medians_beside_it() {
        let (base, new) = (
            [100.0, 200.0, 400.0, 476.0, 500.0, 600.0, 700.0],
            [150.0, 300.0, 441.0, 441.0, 441.0, 700.0, 800.0],
        );
        let mut part = part(&base, &new, Better::Lower, Kind::Measured);
        part.paired = true;
        for kind in [Kind::Measured, Kind::Simulated] {
            part.kind = kind;
            let (ratio, verdict) = judge(&part);
            let ratio = ratio.expect("a ratio");
            assert!((ratio.ratio - 441.0 / 476.0).abs() < 1e-12, "{ratio:?}");
            assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high, "{ratio:?}");
            assert_eq!(verdict, Verdict::Unclear);
        }
    }

    #[test]
    fn what_repeats_exactly_needs_one_sample() {
        let mut part = part(&[2.0], &[1.0], Better::Lower, Kind::Measured);
        part.paired = true;
        assert_eq!(judge(&part).1, Verdict::TooFew);
        part.metrics[0].is_exact = true;
        assert_eq!(judge(&part).1, Verdict::Better);
    }

    #[test]
    fn the_interval_of_pairs_is_that_of_the_sign_test() {
        // Ranks of the 95 % interval for a median, from tables of the binomial distribution.
        for (n, rank) in
            [(1, 1), (5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (12, 3), (20, 6), (30, 10), (100, 40)]
        {
            let ratios: Vec<f64> = (1..=n).map(f64::from).collect();
            let Ratio { low, high, .. } = Ratio::of_pairs(&ratios);
            assert_eq!((low, high), (f64::from(rank), f64::from(n + 1 - rank)), "{n} pairs");
        }
    }

    /// The share of resampled medians at or below each value, beside that of medians of samples drawn one by one.
    #[test]
    fn resampled_medians_are_distributed_as_medians_of_drawn_samples() {
        const DRAWS: usize = 20_000;
        for n in [1, 2, 3, 4, 5, 10, 101] {
            let samples: Vec<f64> = (0..n).map(|value| f64::from(value * value)).collect();
            let (mut direct, mut random) = (Rng::new(7), Rng::new(8));
            let mut drawn =
                || -> Vec<f64> { samples.iter().map(|_| samples[direct.index(samples.len())]).collect() };
            let mut expected: Vec<f64> = (0..DRAWS).map(|_| median(&drawn())).collect();
            let mut actual: Vec<f64> = (0..DRAWS).map(|_| resampled_median(&samples, &mut random)).collect();
            expected.sort_unstable_by(f64::total_cmp);
            actual.sort_unstable_by(f64::total_cmp);
            for value in &expected {
                let below = |all: &[f64]| all.partition_point(|median| median <= value) as f64 / DRAWS as f64;
                let distance = (below(&expected) - below(&actual)).abs();
                // Two samples of this size from one distribution are further apart once in a thousand times.
                assert!(distance < 0.0195, "{n} samples, up to {value}: {distance}");
            }
        }
    }

    /// An interval costs as many draws for a hundred thousand samples as for ten: its generator ends in the same state.
    #[test]
    fn an_interval_of_long_samples_takes_no_more_draws() {
        let draws = |n: usize| {
            let samples: Vec<f64> = (0..n).map(|value| value as f64).collect();
            let (mut used, mut random) = (0, Rng::new(5));
            for _ in 0..100 {
                resampled_median(&samples, &mut random);
            }
            let mut count = Rng::new(5);
            while count != random {
                count.next();
                used += 1;
                assert!(used < 100_000, "{n} samples");
            }
            used
        };
        let (few, many) = (draws(10), draws(100_000));
        assert!(few < 1000 && many < 1000, "{few} and {many} draws for 100 medians");
    }
}
