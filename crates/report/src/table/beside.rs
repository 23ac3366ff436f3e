//! What a table shows beside a predicted figure: the published one, and what a law predicts without a model.

use super::significant;
use crate::result::{Kind, Metric, Part};

/// `published 24, not covered; naive law 20`: each part if there is such a figure, `None` if there is neither.
pub(crate) fn beside(part: &Part, metric: &Metric, variant: &str) -> Option<String> {
    let published = part.published(metric, variant).filter(|_| !metric.of(variant).is_empty());
    let published = published.map(|figure| {
        let verdict = match part.covers(metric, variant) {
            Some(true) => ", covered",
            Some(false) => ", not covered",
            None => "",
        };
        format!("published {}{verdict}", significant(figure.mean, 4))
    });
    let naive = metric.naive.get(variant).map(|naive| format!("naive law {}", significant(*naive, 4)));
    let texts: Vec<String> = published.into_iter().chain(naive).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

/// [`beside`] for all figures of a part in one note, for styles whose cells have no place for it.
pub(super) fn note(part: &Part) -> Option<String> {
    let naive_of = |metric: &Metric| -> Vec<String> {
        let texts =
            part.variants.iter().filter_map(|variant| Some((variant, beside(part, metric, variant)?)));
        texts.map(|(variant, text)| format!("{} {variant}: {text}", metric.name)).collect()
    };
    let all: Vec<String> = part.metrics.iter().flat_map(naive_of).collect();
    let found = part.kind == Kind::Simulated && !all.is_empty();
    found.then(|| format!("Beside the simulated figures: {}.", all.join(". ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{Better, Published};

    #[test]
    fn a_prediction_stands_beside_what_was_printed() {
        let mut part = Part::new("s", "p", Kind::Simulated, "m").baseline("old").variant("new");
        part.metric("a", "s", Better::Lower)
            .samples("old", [1.0, 3.0])
            .samples("new", [1.0, 2.0])
            .published(Published { mean: 2.5, stddev: None })
            .changed("new", Published { mean: 2.5, stddev: None })
            .naive("new", 2.0);
        let text_of = |part: &Part, variant: &str| beside(part, &part.metrics[0], variant);
        assert_eq!(text_of(&part, "old").as_deref(), Some("published 2.500, covered"));
        assert_eq!(text_of(&part, "new").as_deref(), Some("published 2.500, not covered; naive law 2"));
        part.metric("a", "s", Better::Lower).interval("new", 1.0, 2.6);
        assert_eq!(part.covers(&part.metrics[0], "new"), Some(true), "an interval is more than its samples");
        part.kind = Kind::Measured;
        assert_eq!(text_of(&part, "old"), None, "the published machine is not this one");
        assert_eq!(text_of(&part, "other"), None);
    }
}
