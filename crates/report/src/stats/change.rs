//! The change from a baseline to a new value as the published reporters print it, and when they call it
//! significant. The same samples give different figures under each; a table therefore names its style.

use statrs::function::beta::beta_reg;

use super::{amean, max, min, stddev};
use crate::result::Better;

/// MMTests of 2011: percent of the **new** value, 100·(new − base)/new where higher is better and its
/// negative where lower is. Positive is better. 0 if the values are equal or the new one is 0.
#[must_use]
pub fn percent_2011(base: f64, new: f64, better: Better) -> f64 {
    if base == new || new == 0.0 {
        return 0.0;
    }
    let change = 100.0 * (new - base) / new;
    if better == Better::Lower { -change } else { change }
}

/// MMTests of 2019 and 2024: percent of the baseline, 100 − 100·new/base where lower is better,
/// 100·new/base − 100 otherwise. Positive is better.
///
/// Edges, lower: equal is 0, new = 0 is 100, base = 0 is −99. Higher: equal or new = 0 is 0, base = 0 is 100.
#[must_use]
pub fn percent_2019(base: f64, new: f64, better: Better) -> f64 {
    match better {
        _ if base == new => 0.0,
        Better::Lower if new == 0.0 => 100.0,
        Better::Lower if base == 0.0 => -99.0,
        Better::Lower => 100.0 - 100.0 * new / base,
        Better::Higher | Better::None if new == 0.0 => 0.0,
        Better::Higher | Better::None if base == 0.0 => 100.0,
        Better::Higher | Better::None => 100.0 * new / base - 100.0,
    }
}

/// LKP: raw percent of the baseline, 100·(new − base)/base, whichever way is better. Infinite from 0.
#[must_use]
pub fn percent_raw(base: f64, new: f64) -> f64 {
    if base == new { 0.0 } else { 100.0 * (new - base) / base }
}

/// Speedup in percent of the baseline, 100·(base − new)/base, as in tables of boot times.
#[must_use]
pub fn speedup_percent(base: f64, new: f64) -> f64 {
    100.0 * (base - new) / base
}

/// Two-sided p-value that two means differ: t = |m₁ − m₂| / √(s₁²/n₁ + s₂²/n₂) against Student's
/// distribution with n₁ + n₂ − 2 degrees of freedom (MMTests of 2019; a Welch statistic with the pooled
/// test's degrees of freedom).
///
/// p = I_x(df/2, 1/2) with x = df / (df + t²), I the regularised incomplete beta function (DLMF 8.17;
/// Abramowitz and Stegun 26.7.1). One sample has no variance. If neither has, any difference is certain:
/// p is 0, or 1 if there is none.
#[must_use]
pub fn t_test(a: &[f64], b: &[f64]) -> f64 {
    let variance = |samples: &[f64]| if samples.len() < 2 { 0.0 } else { stddev(samples).powi(2) };
    let difference = (amean(a) - amean(b)).abs();
    let error = variance(a) / a.len() as f64 + variance(b) / b.len() as f64;
    if error == 0.0 {
        return if difference == 0.0 { 1.0 } else { 0.0 };
    }
    if !(difference.is_finite() && error.is_finite()) {
        return f64::NAN;
    }
    let degrees = (a.len() + b.len() - 2) as f64;
    let t_squared = difference * difference / error;
    beta_reg(degrees / 2.0, 0.5, degrees / (degrees + t_squared))
}

/// MMTests of 2019 stars a mean if [`t_test`] gives p < 0.10.
#[must_use]
pub fn significant_2019(a: &[f64], b: &[f64]) -> bool {
    t_test(a, b) < 0.10
}

/// MMTests of 2024 stars a mean if the means are further apart than 1.96·(s₁ + s₂), the spreads being those
/// that it prints. The spread of one sample is 0.
#[must_use]
pub fn significant_2024(means: (f64, f64), spreads: (f64, f64)) -> bool {
    let known = |spread: f64| if spread.is_nan() { 0.0 } else { spread };
    (means.0 - means.1).abs() > 1.96 * (known(spreads.0) + known(spreads.1))
}

/// LKP lists a metric only if the samples do not overlap: min(b) > mean(a) and mean(b) > max(a), or the mirror
/// image.
#[must_use]
pub fn lies_apart(a: &[f64], b: &[f64]) -> bool {
    let above = |low: &[f64], high: &[f64]| min(high) > amean(low) && amean(high) > max(low);
    above(a, b) || above(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Better::{Higher, Lower, None};

    #[test]
    fn four_hundred_to_two_hundred_and_fifty_seconds() {
        assert_eq!(percent_2011(400.0, 250.0, Lower), 60.0);
        assert_eq!(percent_2019(400.0, 250.0, Lower), 37.5);
        assert_eq!(percent_raw(400.0, 250.0), -37.5);
        assert_eq!(speedup_percent(400.0, 250.0), 37.5);
    }

    #[test]
    fn higher_is_better_is_positive_when_it_rises() {
        assert_eq!(percent_2011(250.0, 400.0, Higher), 37.5);
        assert_eq!(percent_2019(250.0, 400.0, Higher), 60.0);
        assert_eq!(percent_2019(250.0, 400.0, None), 60.0);
        assert_eq!(percent_raw(250.0, 400.0), 60.0);
    }

    #[test]
    fn the_edges_are_the_published_ones() {
        let cases = [
            (Lower, 5.0, 5.0, 0.0),
            (Lower, 0.0, 0.0, 0.0),
            (Lower, 5.0, 0.0, 100.0),
            (Lower, 0.0, 5.0, -99.0),
            (Higher, 5.0, 5.0, 0.0),
            (Higher, 5.0, 0.0, 0.0),
            (Higher, 0.0, 5.0, 100.0),
        ];
        for (better, base, new, expected) in cases {
            assert_eq!(percent_2019(base, new, better), expected, "{better:?} {base} {new}");
        }
        assert_eq!(percent_2011(5.0, 0.0, Lower), 0.0);
        assert_eq!(percent_raw(0.0, 0.0), 0.0);
        assert_eq!(percent_raw(0.0, 1.0), f64::INFINITY);
    }

    #[test]
    fn the_t_test_agrees_with_tables_of_student() {
        // Critical values of t for p = 0.10 and 0.05, two-sided (Abramowitz and Stegun, table 26.10).
        for (df, t, p) in [(4, 2.132, 0.10), (10, 1.812, 0.10), (10, 2.228, 0.05), (30, 2.042, 0.05)] {
            // Two samples of size n with variance 1: the error is √(2/n), so this distance gives t.
            let n = df / 2 + 1;
            let unit: Vec<f64> = spread_one(n);
            let distance = t * (2.0 / n as f64).sqrt();
            let shifted: Vec<f64> = unit.iter().map(|sample| sample + distance).collect();
            let actual = t_test(&unit, &shifted);
            assert!((actual - p).abs() < 2e-4, "df {df}, t {t}: {actual}, not {p}");
        }
    }

    /// `n` samples with mean 0 and variance 1.
    fn spread_one(n: usize) -> Vec<f64> {
        let raw: Vec<f64> = (0..n).map(|index| index as f64).collect();
        let (mean, deviation) = (amean(&raw), stddev(&raw));
        raw.iter().map(|sample| (sample - mean) / deviation).collect()
    }

    #[test]
    fn without_variance_any_difference_is_significant() {
        assert!(significant_2019(&[1.0, 1.0], &[2.0, 2.0]));
        assert!(significant_2019(&[1.0], &[1.1]));
        assert!(!significant_2019(&[1.0, 1.0], &[1.0, 1.0]));
        assert!(!significant_2019(&[1.0, 3.0], &[2.0, 4.0]));
        assert!(t_test(&[], &[1.0]).is_nan());
    }

    #[test]
    fn the_rule_of_2024_wants_the_spreads_apart() {
        assert!(significant_2024((10.0, 14.0), (1.0, 1.0)));
        assert!(!significant_2024((10.0, 13.9), (1.0, 1.0)));
        assert!(significant_2024((10.0, 10.1), (f64::NAN, f64::NAN)));
    }

    #[test]
    fn lkp_lists_only_what_lies_apart() {
        assert!(lies_apart(&[1.0, 2.0], &[3.0, 4.0]));
        assert!(lies_apart(&[3.0, 4.0], &[1.0, 2.0]));
        // The ranges overlap, but each extreme is past the other's mean.
        assert!(lies_apart(&[1.0, 3.0], &[2.5, 6.0]));
        assert!(!lies_apart(&[1.0, 4.0], &[2.0, 5.0]));
        assert!(!lies_apart(&[1.0], &[1.0]));
    }
}
