//! Priors, and what a published baseline leaves of them.
//!
//! What is not known of a workload has a prior: a distribution from sources that have nothing to do with the figures
//! that are to be explained (`studies/priors/`). Models are drawn from the priors and weighed by how well they
//! reproduce the published baseline; those that are kept predict the change. One unknown may be solved for instead: a
//! model then is weighed by how likely the solution is.

use std::collections::BTreeMap;

use framewright_report::error::{Error, Result};
use framewright_sim::Model;
use framewright_sim::clock::{Rng, mix};
use serde::Deserialize;
use statrs::distribution::{ContinuousCDF as _, Normal};

use crate::simulate::strata;
use crate::toml_file::TomlFile;

/// How far the logarithm of a model's figure may be from the published one's, as a standard deviation: the model's own
/// error, as single figures that were left out of the fit have it.
pub(crate) const MISFIT: f64 = 0.1;

/// A distribution of something that is not known.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Prior {
    /// Of its logarithm, a normal one.
    LogNormal { median: f64, spread: f64, unit: String, source: String },
    /// Any value between, alike.
    Uniform { low: f64, high: f64, unit: String, source: String },
}

/// The priors of a workload, by name.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Priors(BTreeMap<String, Prior>);

/// A value for each of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Draw(BTreeMap<String, f64>);

impl Draw {
    /// The value of a prior.
    ///
    /// # Errors
    /// There is none of the name.
    pub(crate) fn get(&self, name: &str) -> Result<f64> {
        self.0.get(name).copied().ok_or_else(|| Error::failed(format_args!("no prior says {name}")))
    }
}

impl Prior {
    /// The value below which it is with probability `share`.
    fn quantile(&self, share: f64) -> f64 {
        match self {
            Self::LogNormal { median, spread, .. } => {
                median * (spread * Normal::standard().inverse_cdf(share)).exp()
            }
            Self::Uniform { low, high, .. } => low + share * (high - low),
        }
    }
}

impl Priors {
    /// Of the file of a name, with its content.
    ///
    /// # Errors
    /// It is wrong; the tests of this crate refuse to let that happen.
    pub(crate) fn parse(name: &'static str, text: &'static str) -> Result<Self> {
        let file = TomlFile::embedded("studies/priors", name, text);
        let priors: Self = file.parse()?;
        for (name, prior) in &priors.0 {
            let (Prior::LogNormal { unit, source, .. } | Prior::Uniform { unit, source, .. }) = prior;
            let sound = match prior {
                Prior::LogNormal { median, spread, .. } => *median > 0.0 && *spread > 0.0,
                Prior::Uniform { low, high, .. } => low < high,
            };
            if !sound || unit.is_empty() || source.is_empty() {
                return Err(Error::failed(format_args!("prior {name} needs a width, a unit and a source")));
            }
        }
        Ok(priors)
    }

    /// So many draws: a Latin hypercube over all priors.
    pub(crate) fn draws(&self, count: usize, seed: u64) -> Vec<Draw> {
        let mut rng = Rng::new(mix(seed ^ 0x7072_696f));
        let mut draws = vec![Draw::default(); count];
        for (name, prior) in &self.0 {
            for (draw, share) in draws.iter_mut().zip(strata(0.0, 1.0, count, &mut rng)) {
                draw.0.insert(name.clone(), prior.quantile(share));
            }
        }
        draws
    }

    /// Looks for the value of an unknown at which `off` is 0: the logarithm of a figure over what was published, which
    /// grows with the unknown. At most `tries`. Returns what the last try brought along, and the logarithm of how
    /// likely the value is.
    ///
    /// # Errors
    /// What `off` runs into.
    pub(crate) fn solve<T>(
        &self,
        name: &str,
        tries: usize,
        mut off: impl FnMut(f64) -> Result<(f64, T)>,
    ) -> Result<(T, f64)> {
        let Some(Prior::LogNormal { median, spread, .. }) = self.0.get(name) else {
            return Err(Error::failed(format_args!("no prior with a median says {name}")));
        };
        // As multiples of the spread, from the median.
        let value = |at: f64| median * (at * spread).exp();
        let mut slope: f64 = 1.5 * spread;
        let mut at: f64 = 0.0;
        let mut tried: Vec<(f64, f64)> = Vec::new();
        let mut brought = None;
        for n in 0..tries.max(1) {
            if let [.., (x0, y0), (x1, y1)] = tried[..]
                && (x1 - x0).abs() > 0.05
            {
                slope = ((y1 - y0) / (x1 - x0)).clamp(0.3 * spread, 8.0 * spread);
            }
            if let Some((x, y)) = tried.last() {
                at = (x - y / slope).clamp(x - 2.0, x + 2.0).clamp(-3.5, 3.5);
            }
            let (y, with) = off(value(at))?;
            tried.push((at, y));
            brought = Some(with);
            if y.abs() < 0.03 && n >= 2 {
                break;
            }
        }
        let misfit = tried.last().map_or(f64::INFINITY, |(_, y)| *y);
        let log_weight = -0.5 * at * at - slope.ln() - 0.5 * (misfit / MISFIT).powi(2);
        let brought = brought.ok_or_else(|| Error::failed("nothing was tried"))?;
        Ok((brought, log_weight))
    }
}

/// Models that were drawn, and which of them are kept.
#[derive(Debug, PartialEq)]
pub(crate) struct Kept {
    /// Numbers of the kept ones, ascending; one that counts for more may be there more than once.
    pub(crate) models: Vec<usize>,
    /// As how many equally good ones they count.
    pub(crate) effective: f64,
}

/// Keeps `count` of the models with these logarithms of weights, each as often as it weighs (systematic resampling).
/// Where fewer than half as many would count, because none comes near, differences between weights are made smaller
/// until so many do.
pub(crate) fn keep(log_weights: &[f64], count: usize, seed: u64) -> Kept {
    let best = log_weights.iter().copied().fold(f64::MIN, f64::max);
    let at = |power: f64| -> Vec<f64> {
        log_weights.iter().map(|weight| ((weight - best) * power).exp()).collect()
    };
    let effective = |weights: &[f64]| {
        let sum: f64 = weights.iter().sum();
        sum * sum / weights.iter().map(|weight| weight * weight).sum::<f64>()
    };
    let wanted = count.min(log_weights.len()) as f64 / 2.0;
    let (mut power, mut step) = (1.0, 0.5);
    if effective(&at(power)) < wanted {
        for _ in 0..30 {
            power += if effective(&at(power)) < wanted { -step } else { step };
            step /= 2.0;
        }
    }
    let effective = effective(&at(1.0));
    let weights = at(power);
    let sum: f64 = weights.iter().sum();
    let offset = Rng::new(mix(seed ^ 0x6b65_6570)).unit();
    let mut models = Vec::with_capacity(count);
    let (mut passed, mut next) = (0.0, 0);
    for (n, weight) in weights.iter().enumerate() {
        passed += weight / sum;
        while next < count && (next as f64 + offset) / (count as f64) < passed {
            models.push(n);
            next += 1;
        }
    }
    models.resize(count, models.last().copied().unwrap_or(0));
    Kept { models, effective }
}

/// The model with the errors that a draw has for it: of transfers, and of work and the times of faults where there are
/// priors of those.
///
/// # Errors
/// No prior of transfers.
pub(crate) fn with_errors(mut model: Model, draw: &Draw) -> Result<Model> {
    model.transfers *= draw.get("transfers")?;
    let work = draw.get("work").unwrap_or(1.0);
    model.fitted.access_ns *= work;
    model.fitted.walk_ns *= work;
    if let (Some(kernel), Ok(fault), Ok(free)) =
        (&mut model.kernel, draw.get("fault_ns"), draw.get("free_ns"))
    {
        (kernel.page_fault, kernel.page_free) = (fault, free);
    }
    Ok(model)
}

/// The median of some figures; 0 without any.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "[a]\nmedian = 10.0\nspread = 0.5\nunit = \"1\"\nsource = \"none\"\n\
                        [b]\nlow = 1.0\nhigh = 3.0\nunit = \"1\"\nsource = \"none\"\n";

    #[test]
    fn draws_cover_the_priors() {
        let priors = Priors::parse("test.toml", TEXT).expect("priors");
        let draws = priors.draws(100, 1);
        let value =
            |name: &str| -> Vec<f64> { draws.iter().map(|draw| draw.get(name).expect("drawn")).collect() };
        assert!((median(value("a")) / 10.0 - 1.0).abs() < 0.05);
        let within = value("a").into_iter().filter(|a| (a / 10.0).ln().abs() < 0.5).count();
        assert!((66..=70).contains(&within), "{within}");
        assert!(value("b").iter().all(|b| (1.0..3.0).contains(b)));
        assert!((median(value("b")) - 2.0).abs() < 0.05);
        assert_ne!(draws, priors.draws(100, 2));
        assert!(draws[0].get("c").is_err());
    }

    #[test]
    fn a_prior_without_a_source_is_refused() {
        let text = "[a]\nmedian = 10.0\nspread = 0.5\nunit = \"1\"\nsource = \"\"\n";
        assert!(Priors::parse("test.toml", text).is_err());
    }

    #[test]
    fn an_unknown_is_solved_for_and_weighed() {
        let priors = Priors::parse("test.toml", TEXT).expect("priors");
        let solve = |goal: f64| priors.solve("a", 6, |a| Ok((2.5 * (a / goal).ln(), a))).expect("solved");
        let (near, far) = (solve(12.0), solve(40.0));
        assert!((near.0 / 12.0 - 1.0).abs() < 0.02, "{near:?}");
        assert!((far.0 / 40.0 - 1.0).abs() < 0.05, "{far:?}");
        assert!(near.1 > far.1 + 2.0, "{near:?} {far:?}");
    }

    #[test]
    fn models_are_kept_as_often_as_they_weigh() {
        let kept = keep(&[0.0, 0.0, -1e9, -1e9], 4, 1);
        assert_eq!(kept.models, [0, 0, 1, 1]);
        assert!((kept.effective - 2.0).abs() < 1e-9);
        let far = keep(&[0.0, -10.0, -20.0, -30.0, -40.0, -50.0, -60.0, -70.0], 8, 1);
        assert!(far.effective < 1.1, "one alone counts: {far:?}");
        let different: std::collections::BTreeSet<usize> = far.models.iter().copied().collect();
        assert!(far.models[0] == 0 && different.len() >= 4, "and yet others are kept: {far:?}");
        assert_eq!(keep(&[-1.0, -1.0, -1.0], 3, 7).models, [0, 1, 2]);
    }
}
