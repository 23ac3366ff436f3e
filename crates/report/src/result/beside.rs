//! What others printed beside what was found.

use super::{Kind, Metric, Part, Published};

impl Part {
    /// Published figure of a metric for this variant. Beside what was measured here there is none: it is of another
    /// machine.
    #[must_use]
    pub fn published<'a>(&self, metric: &'a Metric, variant: &str) -> Option<&'a Published> {
        if self.kind == Kind::Measured {
            return None;
        }
        if variant == self.baseline { metric.published.as_ref() } else { metric.changed.get(variant) }
    }

    /// Whether the range of a prediction holds what others printed; `None` where nothing was predicted or printed.
    #[must_use]
    pub fn covers(&self, metric: &Metric, variant: &str) -> Option<bool> {
        let samples = metric.of(variant);
        if self.kind != Kind::Simulated || samples.is_empty() {
            return None;
        }
        let published = self.published(metric, variant)?.mean;
        let [low, high] = metric.interval.get(variant).copied().unwrap_or_else(|| {
            samples
                .iter()
                .fold([f64::MAX, f64::MIN], |[low, high], sample| [low.min(*sample), high.max(*sample)])
        });
        Some((low..=high).contains(&published))
    }
}
