//! The lab's own comparison: a ratio to the baseline with an interval, and what it lets one say.
//!
//! | samples | ratio | interval |
//! |---|---|---|
//! | measured in the same rounds | ratio of the medians | sign test of the ratios of each round (`Ratio::of_pairs`) |
//! | simulated on the same models | ratio of the medians | lowest to highest ratio on a model (`Ratio::of_models`) |
//! | of separate runs | ratio of the medians | from the sign test of each median ([`Ratio::of`]) |
//!
//! The ratio is always that of the medians that a table shows beside it. An interval that would not hold it is widened
//! until it does.

use statrs::distribution::{ContinuousCDF as _, Normal};

use super::median;
use crate::result::{Better, Kind, Metric, Part};
use crate::terminal::Tone;

/// Confidence of the interval, in percent.
pub const CONFIDENCE_PERCENT: u32 = 95;
/// From this many samples on, the binomial distribution is taken for a normal one.
const MANY: usize = 1000;
/// Below this many models nothing is said about a change at all.
const FEW_MODELS: usize = 3;
/// Below this many measured samples of a variant nothing is said either: of fewer, not even the lowest and the highest
/// are 95 % sure to have the median between them.
pub const FEW_MEASURED: usize = 6;

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

impl Verdict {
    /// Colour that it is shown in.
    #[must_use]
    pub const fn tone(self) -> Tone {
        match self {
            Self::Better => Tone::Better,
            Self::Worse => Tone::Worse,
            Self::Changed | Self::Unclear | Self::TooFew => Tone::Plain,
        }
    }

    /// Whether it is clear that something changed.
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Changed)
    }
}

impl Ratio {
    /// The ratio of a variant to the baseline of its part, in the way that the samples allow.
    ///
    /// `None` where there is no ratio: samples are missing, or the baseline is 0 or negative.
    #[must_use]
    pub fn between(part: &Part, metric: &Metric, variant: &str) -> Option<Self> {
        let (base, new) = (metric.of(&part.baseline), metric.of(variant));
        if base.iter().chain(new).any(|sample| *sample < 0.0) {
            return None;
        }
        let (base_rounds, new_rounds) = (rounds(metric, &part.baseline), rounds(metric, variant));
        let of_each = match ratios(part, &base_rounds, &new_rounds) {
            Some(ratios) if part.kind == Kind::Simulated => Self::of_models(&ratios),
            Some(ratios) => Self::of_pairs(&ratios),
            None => Self::of(&base_rounds, &new_rounds)?,
        };
        let ratio = Some(median(new) / median(base)).filter(|ratio| ratio.is_finite())?;
        Some(Self { ratio, low: of_each.low.min(ratio), high: of_each.high.max(ratio) })
    }

    /// The median of ratios, and the interval that holds the true one. Below [`FEW_MEASURED`] that is all of them, and
    /// less sure than [`CONFIDENCE_PERCENT`].
    fn of_pairs(ratios: &[f64]) -> Self {
        let [low, high] = bounds(ratios);
        Self { ratio: super::quantile_of_sorted(ratios, 0.5), low, high }
    }

    /// The median of ratios, from the lowest to the highest: models are not drawn from what is true, so that all they
    /// say is what range the unknown parameters leave.
    fn of_models(ratios: &[f64]) -> Self {
        Self { ratio: super::quantile_of_sorted(ratios, 0.5), low: ratios[0], high: ratios[ratios.len() - 1] }
    }

    /// The ratio of the medians of separate runs. Each median has an interval of its own; the distances of their ends,
    /// in logarithms, add up as the legs of a right triangle (Zou and Donner, "Construction of confidence limits about
    /// effect measures: a general approach", Statistics in Medicine 27, 2008). So it holds also where one side varies
    /// far more than the other, or has far more samples.
    ///
    /// `None` where there is no ratio: one side has no samples, or the baseline's median is 0.
    /// O(samples · log samples).
    #[must_use]
    pub fn of(base: &[f64], new: &[f64]) -> Option<Self> {
        let [base, new] = [base, new].map(super::sorted);
        let centre = super::quantile_of_sorted(&base, 0.5);
        if base.is_empty() || new.is_empty() || centre == 0.0 {
            return None;
        }
        let middle = super::quantile_of_sorted(&new, 0.5);
        let ratio = middle / centre;
        let [[lowest, highest], [low, high]] = [&base, &new].map(|side| bounds(side));
        // A baseline of 0 has no ratio; it is left out, which widens nothing.
        let lowest = base.iter().copied().find(|sample| *sample >= lowest && *sample > 0.0).unwrap_or(centre);
        let both = |of_new: f64, of_base: f64| of_new.ln().hypot(of_base.ln()).exp();
        if middle == 0.0 {
            return Some(Self { ratio, low: ratio, high: high / lowest });
        }
        let (below, above) = (both(middle / low, highest / centre), both(high / middle, centre / lowest));
        Some(Self { ratio, low: ratio / below, high: ratio * above })
    }
}

/// The two of some sorted samples between which the true median is with [`CONFIDENCE_PERCENT`] at least, whatever their
/// distribution: the interval of the sign test (David and Nagaraja, "Order Statistics", 2003, section 7.1). Of few
/// samples it is the lowest and the highest, and less sure than that.
fn bounds(sorted: &[f64]) -> [f64; 2] {
    let (n, wanted) = (sorted.len(), 1.0 - f64::from(CONFIDENCE_PERCENT) / 100.0);
    let below = if n < MANY {
        // The chance that at most `k` of n fair coins show heads, times two for both sides.
        let (mut below, mut chance, mut outside) = (0, 0.5_f64.powi(n as i32), 0.0);
        loop {
            outside += 2.0 * chance;
            if outside > wanted || 2 * (below + 1) >= n {
                break;
            }
            chance *= (n - below) as f64 / (below + 1) as f64;
            below += 1;
        }
        below.saturating_sub(1)
    } else {
        let width = Normal::standard().inverse_cdf(1.0 - wanted / 2.0) * (n as f64).sqrt();
        ((n as f64 - 1.0 - width) / 2.0) as usize
    };
    [sorted[below], sorted[n - 1 - below]]
}

/// A sample of each round: where it has several, such as loops, their median. What the machine did in a round is in all
/// of them.
#[must_use]
pub fn rounds(metric: &Metric, variant: &str) -> Vec<f64> {
    metric.of(variant).chunks(metric.per_round.max(1)).map(median).collect()
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

/// A change of samples or counts that is smaller than this is printed as `1.000×`, and is called none, however sure it
/// is.
const LEAST_SHOWN: f64 = 0.0005;

/// Verdict about the change from the baseline to a variant. Derived figures have no spread: any difference
/// counts.
#[must_use]
pub fn verdict(part: &Part, metric: &Metric, variant: &str, ratio: Option<Ratio>) -> Verdict {
    let (base, new) = (metric.of(&part.baseline), metric.of(variant));
    let few = !metric.is_exact && base.len().min(new.len()).div_ceil(metric.per_round.max(1)) < needed(part);
    let shown = if part.kind == Kind::Derived { 0.0 } else { LEAST_SHOWN };
    let (below, above) = match ratio {
        Some(ratio) => (ratio.high < 1.0 - shown, ratio.low > 1.0 + shown),
        // All samples must lie on one side.
        None => (super::max(new) < super::min(base), super::min(new) > super::max(base)),
    };
    match (below, above, metric.better) {
        _ if base.is_empty() || new.is_empty() => Verdict::TooFew,
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
        Kind::Measured => FEW_MEASURED,
        Kind::Simulated => FEW_MODELS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_of_separate_runs_holds_the_ratio() {
        let base: Vec<f64> = (0..40).map(|index| 100.0 + f64::from(index % 7)).collect();
        let new: Vec<f64> = base.iter().map(|sample| sample * 0.5 + 1.0).collect();
        let ratio = Ratio::of(&base, &new).expect("the baseline is not 0");
        assert!(ratio.low <= ratio.ratio && ratio.ratio <= ratio.high, "{ratio:?}");
        assert!(ratio.low < ratio.high && ratio.high < 0.6, "{ratio:?}");
        // Zeros of the baseline have no ratio.
        let ratio = Ratio::of(&[0.0, 1.0, 2.0], &[4.0; 3]).expect("the median is 1");
        assert_eq!(ratio, Ratio { ratio: 4.0, low: 2.0, high: 4.0 });
        // Most of the new ones are 0, and not all.
        let ratio = Ratio::of(&[1.0, 2.0, 4.0], &[0.0, 0.0, 3.0]).expect("the median is 2");
        assert_eq!(ratio, Ratio { ratio: 0.0, low: 0.0, high: 3.0 });
        let Ratio { low, high, .. } = Ratio::of(&[2.0; 3], &[0.0, 1.0, 3.0]).expect("the median is 2");
        assert!(low == 0.0 && (high - 1.5).abs() < 1e-9, "{low} {high}");
    }

    #[test]
    fn the_interval_covers_the_truth_about_as_often_as_it_says() {
        // 1000 pairs of samples from uniform distributions with one median: the true ratio is 1. One side may have far
        // fewer, and vary a thousand times as much.
        let mut state = 9_u64;
        let mut draw = |n: usize, wide: f64| -> Vec<f64> {
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                100.0 + wide * ((state >> 40) as f64 / f64::from(1 << 24) - 0.5)
            };
            (0..n).map(|_| next()).collect()
        };
        for (few, many, wide) in [
            (8, 8, 8.0),
            (20, 20, 8.0),
            (1500, 1500, 8.0),
            (6, 6, 0.008),
            (7, 7, 0.008),
            (20, 20, 0.008),
            (1500, 1500, 0.008),
            (6, 1500, 8.0),
        ] {
            let covered = (0..1000)
                .filter(|_| {
                    let (base, new) = (draw(few, 8.0), draw(many, wide));
                    let ratio = Ratio::of(&base, &new).expect("the baseline is not 0");
                    ratio.low <= 1.0 && 1.0 <= ratio.high
                })
                .count();
            assert!(covered >= 930, "{covered} of 1000 with {few} and {many} samples, {wide} wide");
        }
    }

    #[test]
    fn one_sample_has_itself_for_an_interval() {
        let ratio = Ratio::of(&[4.0], &[2.0]).expect("the baseline is not 0");
        assert_eq!(ratio, Ratio { ratio: 0.5, low: 0.5, high: 0.5 });
        assert_eq!(Ratio::of(&[0.0], &[2.0]), None);
        assert_eq!(Ratio::of(&[1.0], &[]), None);
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
        let ratio = Ratio::between(part, &part.metrics[0], "new");
        (ratio, verdict(part, &part.metrics[0], "new", ratio))
    }

    #[test]
    fn a_verdict_needs_samples_and_a_clear_interval() {
        let judge = |base: &[f64], new: &[f64], better, kind| judge(&part(base, new, better, kind)).1;
        let (low, high) = ([1.0, 1.1, 1.2, 1.3, 1.4, 1.5], [2.0, 2.1, 2.2, 2.3, 2.4, 2.5]);
        let measured = Kind::Measured;
        assert_eq!(judge(&low, &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(judge(&low, &high, Better::Higher, measured), Verdict::Better);
        assert_eq!(judge(&low, &high, Better::None, measured), Verdict::Changed);
        assert_eq!(judge(&low, &low, Better::Lower, measured), Verdict::Unclear);
        assert_eq!(judge(&low[..5], &high, Better::Lower, measured), Verdict::TooFew);
        assert_eq!(judge(&low[..3], &high[..3], Better::Lower, Kind::Simulated), Verdict::Worse);
        assert_eq!(judge(&[1.0], &[2.0], Better::Lower, Kind::Derived), Verdict::Worse);
        // From zero there is no ratio, but a side; likewise from a negative number.
        assert_eq!(judge(&[0.0; 6], &high, Better::Lower, measured), Verdict::Worse);
        assert_eq!(
            judge(&[-3.0, -2.0, -2.5, -2.2, -2.1, -2.9], &low, Better::Lower, measured),
            Verdict::Worse
        );
        assert_eq!(judge(&[0.0; 6], &[0.0; 6], Better::Lower, measured), Verdict::Unclear);
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
        part.metrics[0].samples.get_mut("new").expect("there").pop();
        assert_eq!(judge(&part).1, Verdict::Unclear, "without partners they are separate samples");
        // Of five, all on one side come about by chance once in sixteen.
        for samples in part.metrics[0].samples.values_mut() {
            samples.truncate(5);
        }
        assert_eq!(judge(&part).1, Verdict::TooFew);
    }

    /// Loops of a round share what the machine did in it: 60 of them in six rounds are six samples.
    #[test]
    fn loops_of_a_round_are_no_rounds() {
        let base: Vec<f64> = (0..60).map(|n| 100.0 + f64::from(n % 7)).collect();
        let of_round = [0.6, 1.4, 1.8, 1.1, 1.6, 1.3];
        let new: Vec<f64> = base.iter().enumerate().map(|(n, base)| base * of_round[n / 10]).collect();
        for paired in [true, false] {
            let mut part = part(&base, &new, Better::Lower, Kind::Measured);
            part.paired = paired;
            assert_eq!(judge(&part).1, Verdict::Worse, "as if each were a round");
            part.metrics[0].per_round = 10;
            let (ratio, verdict) = judge(&part);
            let ratio = ratio.expect("a ratio");
            assert!(ratio.low < 0.65 && ratio.high > 1.75, "{ratio:?}");
            assert_eq!(verdict, Verdict::Unclear);
            part.metrics[0].samples.values_mut().for_each(|samples| samples.truncate(50));
            assert_eq!(judge(&part).1, Verdict::TooFew);
        }
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
        // Both are printed as 1.000×; what follows from formulas alone differs however little it does.
        for (new, verdict) in [(1.9991, Verdict::Unclear), (1.9989, Verdict::Better)] {
            part.metrics[0].samples.insert("new".to_owned(), vec![new]);
            assert_eq!(judge(&part).1, verdict, "{new}");
        }
        part.metrics[0].samples.insert("new".to_owned(), vec![1.9991]);
        part.kind = Kind::Derived;
        assert_eq!(judge(&part).1, Verdict::Better);
    }

    #[test]
    fn the_interval_of_pairs_is_that_of_the_sign_test() {
        // Ranks of the 95 % interval for a median, from tables of the binomial distribution.
        for (n, rank) in [
            (1, 1),
            (5, 1),
            (6, 1),
            (8, 1),
            (9, 2),
            (10, 2),
            (12, 3),
            (20, 6),
            (30, 10),
            (100, 40),
            (2500, 1201),
        ] {
            let ratios: Vec<f64> = (1..=n).map(f64::from).collect();
            let Ratio { low, high, .. } = Ratio::of_pairs(&ratios);
            assert_eq!((low, high), (f64::from(rank), f64::from(n + 1 - rank)), "{n} pairs");
        }
    }
}
