//! Statistics. Pure functions over samples; each cites its formula.
//!
//! An undefined result is NaN, as in the published reporters: the mean of nothing, the spread of one sample,
//! a harmonic mean with a sample that is not positive.

pub mod change;
pub mod ratio;

use crate::result::Better;

/// Arithmetic mean, Σx / n.
#[must_use]
pub fn amean(samples: &[f64]) -> f64 {
    if samples.is_empty() { f64::NAN } else { samples.iter().sum::<f64>() / samples.len() as f64 }
}

/// Harmonic mean, n / Σ(1/x). NaN if any sample is not positive.
#[must_use]
pub fn hmean(samples: &[f64]) -> f64 {
    if samples.is_empty() || samples.iter().any(|sample| *sample <= 0.0) {
        return f64::NAN;
    }
    samples.len() as f64 / samples.iter().map(|sample| sample.recip()).sum::<f64>()
}

/// Geometric mean, (Πx)^(1/n), as exp(Σ ln x / n) so that long products do not overflow. NaN if any value is
/// not positive.
#[must_use]
pub fn gmean(values: &[f64]) -> f64 {
    if values.is_empty() || values.iter().any(|value| *value <= 0.0) {
        return f64::NAN;
    }
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

/// Standard deviation of a sample, √(Σ(x − mean)² / (n − 1)). NaN below two samples.
#[must_use]
pub fn stddev(samples: &[f64]) -> f64 {
    if samples.len() < 2 { f64::NAN } else { (squares(samples) / (samples.len() - 1) as f64).sqrt() }
}

/// Standard deviation of a population, √(Σ(x − mean)² / n).
#[must_use]
pub fn stddev_population(samples: &[f64]) -> f64 {
    if samples.is_empty() { f64::NAN } else { (squares(samples) / samples.len() as f64).sqrt() }
}

/// Σ(x − mean)².
fn squares(samples: &[f64]) -> f64 {
    let mean = amean(samples);
    samples.iter().map(|sample| (sample - mean).powi(2)).sum()
}

/// Spread that goes with a harmonic mean H, √(H⁴ · Σ(1/x − 1/H)² / n): the deviation of the reciprocals,
/// carried back to the unit of x by the slope of 1/x at H.
#[must_use]
pub fn hstddev(samples: &[f64]) -> f64 {
    let mean = hmean(samples);
    let reciprocals: f64 = samples.iter().map(|sample| (sample.recip() - mean.recip()).powi(2)).sum();
    (mean.powi(4) * reciprocals / samples.len() as f64).sqrt()
}

/// Coefficient of variation in percent, 100 · stddev / mean, with the sample's standard deviation and the
/// arithmetic mean. 0 if the mean is.
#[must_use]
pub fn coeff_var(samples: &[f64]) -> f64 {
    let mean = amean(samples);
    if mean == 0.0 { 0.0 } else { 100.0 * stddev(samples) / mean }
}

/// Mean of the best `percent` % of the samples: of the ⌊n · percent / 100⌋ lowest, or highest where higher is
/// better; of the one best sample if that rounds to none.
#[must_use]
pub fn bamean(samples: &[f64], percent: u32, better: Better) -> f64 {
    let mut sorted = sorted(samples);
    if better == Better::Higher {
        sorted.reverse();
    }
    let best = (sorted.len() * percent as usize / 100).max(1).min(sorted.len());
    amean(&sorted[..best])
}

/// Smallest sample.
#[must_use]
pub fn min(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::NAN, f64::min)
}

/// Largest sample.
#[must_use]
pub fn max(samples: &[f64]) -> f64 {
    samples.iter().copied().fold(f64::NAN, f64::max)
}

/// Quantile `p` (0 to 1) by linear interpolation between the samples around rank (n − 1)·p.
///
/// R's type 7: definition 7 of Hyndman and Fan, "Sample quantiles in statistical packages", The American
/// Statistician 50 (1996).
#[must_use]
pub fn quantile(samples: &[f64], p: f64) -> f64 {
    if samples.is_empty() {
        return f64::NAN;
    }
    let mut samples = samples.to_vec();
    let rank = (samples.len() - 1) as f64 * p.clamp(0.0, 1.0);
    let (lower, &mut above, _) = samples.select_nth_unstable_by(rank.ceil() as usize, f64::total_cmp);
    let largest = || lower.iter().copied().max_by(f64::total_cmp);
    let below = if rank.fract() == 0.0 { above } else { largest().unwrap_or(above) };
    below + (above - below) * rank.fract()
}

/// [`quantile`] of samples that are sorted already.
#[must_use]
pub fn quantile_of_sorted(sorted: &[f64], p: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (sorted.len() - 1) as f64 * p.clamp(0.0, 1.0);
    let below = rank.floor() as usize;
    let above = rank.ceil() as usize;
    sorted[below] + (sorted[above] - sorted[below]) * (rank - rank.floor())
}

/// Median: quantile 0.5. The mean of the middle two if n is even.
#[must_use]
pub fn median(samples: &[f64]) -> f64 {
    quantile(samples, 0.5)
}

/// Half the distance between the quartiles, in percent of the median. 0 if the median is.
#[must_use]
pub fn quartile_spread_percent(samples: &[f64]) -> f64 {
    let sorted = sorted(samples);
    let median = quantile_of_sorted(&sorted, 0.5);
    if median == 0.0 {
        return 0.0;
    }
    50.0 * (quantile_of_sorted(&sorted, 0.75) - quantile_of_sorted(&sorted, 0.25)) / median.abs()
}

fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(actual: f64, expected: f64) {
        assert!((actual - expected).abs() <= 1e-12 * expected.abs().max(1.0), "{actual} is not {expected}");
    }

    #[test]
    fn means() {
        close(amean(&[1.0, 2.0, 6.0]), 3.0);
        // 3 / (1 + 1/2 + 1/4)
        close(hmean(&[1.0, 2.0, 4.0]), 12.0 / 7.0);
        close(gmean(&[1.0, 2.0, 4.0]), 2.0);
        close(gmean(&[1e300, 1e300, 1e-300]), 1e100);
        for mean in [amean, hmean, gmean] {
            assert!(mean(&[]).is_nan());
        }
        assert!(hmean(&[1.0, 0.0]).is_nan());
        assert!(gmean(&[1.0, -1.0]).is_nan());
    }

    #[test]
    fn spreads() {
        // Squared distances from the mean 5 add up to 32.
        let samples = [2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0];
        close(stddev_population(&samples), 2.0);
        close(stddev(&samples), (32.0_f64 / 7.0).sqrt());
        close(coeff_var(&samples), 100.0 * (32.0_f64 / 7.0).sqrt() / 5.0);
        assert!(stddev(&[1.0]).is_nan());
        assert_eq!(stddev_population(&[1.0]), 0.0);
        assert_eq!(coeff_var(&[-1.0, 1.0]), 0.0);
    }

    #[test]
    fn spread_of_a_harmonic_mean() {
        // H = 8/3; (1/2 - 3/8)² + (1/4 - 3/8)² = 1/32; √((8/3)⁴ / 64)
        close(hmean(&[2.0, 4.0]), 8.0 / 3.0);
        close(hstddev(&[2.0, 4.0]), (8.0_f64 / 3.0).powi(2) / 8.0);
        close(hstddev(&[5.0, 5.0, 5.0]), 0.0);
        assert!(hstddev(&[0.0, 1.0]).is_nan());
    }

    #[test]
    fn best_means() {
        let samples = [4.0, 1.0, 3.0, 2.0];
        close(bamean(&samples, 50, Better::Lower), 1.5);
        close(bamean(&samples, 50, Better::Higher), 3.5);
        // 95 % of 4 is 3.8: three samples.
        close(bamean(&samples, 95, Better::Lower), 2.0);
        close(bamean(&[7.0], 50, Better::Lower), 7.0);
        assert!(bamean(&[], 50, Better::Lower).is_nan());
    }

    #[test]
    fn quantiles_are_those_of_r() {
        // quantile(c(1, 2, 4, 8), c(0.25, 0.5, 0.75, 0.9)) of R 4
        let samples = [8.0, 1.0, 4.0, 2.0];
        for (p, expected) in [(0.0, 1.0), (0.25, 1.75), (0.5, 3.0), (0.75, 5.0), (0.9, 6.8), (1.0, 8.0)] {
            close(quantile(&samples, p), expected);
        }
        close(median(&[3.0, 1.0, 2.0]), 2.0);
        close(quartile_spread_percent(&samples), 50.0 * (5.0 - 1.75) / 3.0);
        assert_eq!(quartile_spread_percent(&[0.0, 0.0]), 0.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn extremes_ignore_the_order() {
        assert_eq!((min(&[2.0, -1.0, 3.0]), max(&[2.0, -1.0, 3.0])), (-1.0, 3.0));
        assert!(min(&[]).is_nan() && max(&[]).is_nan());
    }
}
