//! A result in a few lines: of each study its question, and of each kind of result one figure with its verdict.

use crate::result::{Better, Document, Kind, Metric, Part};
use crate::stats::median;
use crate::stats::ratio::{Ratio, Verdict, verdict};
use crate::table::{beside, columns, significant, wrapped};
use crate::terminal::{Terminal, Tone, to_ascii};

/// The figure of a part that says most.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline<'a> {
    /// The part.
    pub part: &'a Part,
    /// The metric.
    pub metric: &'a Metric,
    /// The variant that is compared with the baseline: the last of the part.
    pub variant: &'a str,
    /// Medians of the baseline and of the variant.
    pub medians: [f64; 2],
    /// Their ratio.
    pub ratio: Option<Ratio>,
    /// What may be said of it.
    pub verdict: Verdict,
}

impl<'a> Headline<'a> {
    /// The headline of a part; `None` if it has nothing to compare.
    #[must_use]
    pub fn of(part: &'a Part, seed: u64) -> Option<Self> {
        let wanted = part.headline.as_deref()?;
        let variant = part.variants.last().filter(|last| **last != part.baseline)?;
        let comparable =
            |metric: &&Metric| !metric.of(&part.baseline).is_empty() && !metric.of(variant).is_empty();
        let exact = part.find(wanted).filter(comparable);
        // Of a curve the last point, the most CPUs; the same where another machine was asked for than the study names.
        let family = wanted.split_once('[').map_or(wanted, |(family, _)| family);
        let last = || part.metrics.iter().filter(|metric| metric.family() == family).rfind(comparable);
        let metric = exact.or_else(last)?;
        let ratio = Ratio::between(part, metric, variant, seed);
        Some(Self {
            part,
            metric,
            variant,
            medians: [median(metric.of(&part.baseline)), median(metric.of(variant))],
            ratio,
            verdict: verdict(part, metric, variant, ratio),
        })
    }

    /// `0.275 → 0.0289`, with the unit.
    #[must_use]
    pub fn change(&self) -> String {
        let [base, new] = self.medians.map(|value| significant(value, 3));
        let unit = if self.metric.unit == "1" { String::new() } else { format!(" {}", self.metric.unit) };
        format!("{base} → {new}{unit}")
    }

    /// `0.105× [0.101, 0.109] better`, or what else can be said.
    #[must_use]
    pub fn judged(&self) -> String {
        let word = match self.verdict {
            Verdict::Better => " better",
            Verdict::Worse => " worse",
            Verdict::Changed => "",
            Verdict::Unclear if self.metric.better == Better::None => "",
            Verdict::Unclear => " no clear change",
            Verdict::TooFew => " (first look)",
        };
        format!("{}{word}", self.ratio_text()).trim_start().to_owned()
    }

    /// `0.105× [0.101, 0.109]`; nothing without a ratio.
    fn ratio_text(&self) -> String {
        self.ratio.map_or_else(String::new, |ratio| {
            let [value, low, high] = [ratio.ratio, ratio.low, ratio.high].map(digits);
            if ratio.high > ratio.low { format!("{value}× [{low}, {high}]") } else { format!("{value}×") }
        })
    }

    /// What was published beside the simulated figures of baseline and variant, and whether the models' range holds it.
    #[must_use]
    pub fn published(&self) -> Option<String> {
        if self.part.kind != Kind::Simulated {
            return None;
        }
        let of =
            |name: &str, variant: &str| Some(format!("{name} {}", beside(self.part, self.metric, variant)?));
        let both = [of("baseline", &self.part.baseline), of(self.variant, self.variant)];
        let texts: Vec<String> = both.into_iter().flatten().collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// `s syst_seconds 15931 → 2218 s, -86 % [-86, -86] +; published -70 %, missed`: all that the summary says.
    fn row(&self, study: &str) -> String {
        let kind = match self.part.kind {
            Kind::Measured => 'm',
            Kind::Simulated => 's',
            Kind::Derived => 'd',
        };
        let mark = match self.verdict {
            Verdict::Better => " +",
            Verdict::Worse => " -",
            Verdict::Changed => "",
            Verdict::Unclear if self.metric.better == Better::None => "",
            Verdict::Unclear => " ~",
            Verdict::TooFew => " ?",
        };
        let percent = self.ratio.map_or_else(String::new, |ratio| {
            let [change, low, high] = [ratio.ratio, ratio.low, ratio.high].map(percent);
            let range = if ratio.high > ratio.low { format!(" [{low}, {high}]") } else { String::new() };
            format!(", {change} %{range}")
        });
        let published = self.published_change();
        format!("{kind} {} {}{percent}{mark}{published}", self.short_name(study), self.change())
    }

    /// `; published -70 %, missed`: the published change beside a simulated one, and whether the models' range holds it. Of
    /// what was published of one variant only, the figure.
    fn published_change(&self) -> String {
        if self.part.kind != Kind::Simulated {
            return String::new();
        }
        let of = |variant: &str| self.part.published(self.metric, variant).map(|published| published.mean);
        match (of(&self.part.baseline), of(self.variant)) {
            (Some(base), Some(new)) if base > 0.0 => {
                let published = new / base;
                let covered = self.ratio.is_some_and(|ratio| (ratio.low..=ratio.high).contains(&published));
                format!(
                    "; published {} %, {}",
                    percent(published),
                    if covered { "covered" } else { "missed" }
                )
            }
            (base, new) => {
                let variant = if base.is_some() { &self.part.baseline } else { self.variant };
                let word = match self.part.covers(self.metric, variant) {
                    Some(true) => " covered",
                    Some(false) => " missed",
                    None => "",
                };
                base.or(new)
                    .map_or_else(String::new, |mean| format!("; published {}{word}", significant(mean, 4)))
            }
        }
    }

    /// The metric's name without its study's and its machine's, which are known, and with the values of what is no number.
    fn short_name(&self, study: &str) -> String {
        let family = self.metric.family();
        let own = format!("{}_", study.replace('-', "_"));
        let family = family.strip_prefix(&own).unwrap_or(family);
        let parameters: Vec<String> = self
            .metric
            .parameters()
            .filter(|(key, _)| *key != "machine")
            .map(
                |(key, value)| {
                    if value.parse::<f64>().is_ok() { format!("{key}={value}") } else { value.to_owned() }
                },
            )
            .collect();
        if parameters.is_empty() { family.to_owned() } else { format!("{family}[{}]", parameters.join(",")) }
    }

    const fn tone(&self) -> Tone {
        match self.verdict {
            Verdict::Better => Tone::Better,
            Verdict::Worse => Tone::Worse,
            _ => Tone::Plain,
        }
    }
}

/// A ratio as a change in percent: `-87`, `+3.2`.
fn percent(ratio: f64) -> String {
    let change = 100.0 * (ratio - 1.0);
    if change.abs() < 9.95 { format!("{:+.1}", change + 0.0) } else { format!("{change:+.0}") }
}

/// Three decimals, or where that says nothing, two digits.
fn digits(ratio: f64) -> String {
    if (0.01..100.0).contains(&ratio) { format!("{ratio:.3}") } else { significant(ratio, 2) }
}

/// One line of a part that has ended; what follows does not fit on it goes below.
#[must_use]
pub fn part_line(part: &Part, seed: u64, terminal: &Terminal) -> String {
    let title = format!("{} {}, {}", part.study, part.part, part.kind);
    match Headline::of(part, seed) {
        Some(headline) => {
            let text =
                format!("{title}: {} {}, {}", headline.metric.name, headline.change(), headline.judged());
            lines(&text, terminal, headline.tone())
        }
        None => lines(
            &format!("{title}: {} metrics, no variants to compare", part.metrics.len()),
            terminal,
            Tone::Plain,
        ),
    }
}

/// The summary: a heading for each study, and below it a line for each kind of result that it has; all on one line where that fits.
/// That of all studies fits a terminal of 80 columns and 24 lines, so names say only what the heading does not.
#[must_use]
pub fn summary(document: &Document, seed: u64, terminal: &Terminal) -> String {
    let mut out = String::new();
    for (study, headlines) in by_study(document, seed) {
        let text = document.studies.iter().find(|text| text.name == study);
        let short = text.map_or("", |text| &text.short);
        let year = text.and_then(|text| text.year).map_or_else(String::new, |year| format!(" ({year})"));
        let colon = if short.is_empty() { "" } else { ": " };
        // On one line, if need be without the question.
        if let [headline] = &headlines[..]
            && !short.is_empty()
        {
            let row = headline.row(study);
            let mut both = [format!("{study}: {short}; {row}"), format!("{study}: {row}")].into_iter();
            if let Some(line) = both.find(|line| columns(line) <= terminal.columns()) {
                out += &lines(&line, terminal, headline.tone());
                continue;
            }
        }
        out += &lines(&format!("{study}{year}{colon}{short}"), terminal, Tone::Heading);
        for headline in headlines {
            out += &lines(&format!(" {}", headline.row(study)), terminal, headline.tone());
        }
    }
    out
}

/// Of each study, the first headline of each kind.
pub(crate) fn by_study(document: &Document, seed: u64) -> Vec<(&str, Vec<Headline<'_>>)> {
    let mut studies: Vec<(&str, Vec<Headline<'_>>)> = Vec::new();
    for part in &document.results {
        let position = studies.iter().position(|(study, _)| *study == part.study).unwrap_or_else(|| {
            studies.push((&part.study, Vec::new()));
            studies.len() - 1
        });
        let known = studies[position].1.iter().any(|headline| headline.part.kind == part.kind);
        if let (false, Some(headline)) = (known || part.kind == Kind::Derived, Headline::of(part, seed)) {
            studies[position].1.push(headline);
        }
    }
    studies
}

/// How to read the terminal's, in a line of 80 columns.
pub const MARKS: &str = "m measured, s simulated; change [low, high]; + better, - worse, ? too few";

/// How to read the page's.
pub const LEGEND: &str = "Medians, baseline → change, and their ratio [low, high]: measured 95 % interval, simulated range over all \
                          models. covered: that range holds the published figure.";

fn lines(text: &str, terminal: &Terminal, tone: Tone) -> String {
    let text = if terminal.unicode { text.to_owned() } else { to_ascii(text) };
    debug_assert!(columns(&text) > 0);
    let painted = wrapped(&text, terminal.width, "            ");
    painted.iter().map(|line| format!("{}\n", terminal.paint(line, tone))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::result::StudyText;

    fn document() -> Document {
        let mut document = Document::new("study all", Host::default());
        for (study, kind) in [("a", Kind::Measured), ("a", Kind::Simulated), ("b", Kind::Measured)] {
            let mut part =
                Part::new(study, "p", kind, "host").baseline("old").variant("mid").variant("new").paired();
            part.headline = Some("alloc_ns".to_owned());
            for cores in [1, 26] {
                let entry = part.metric(format!("alloc_ns[cores={cores}]"), "ns", Better::Lower);
                let entry = entry.samples("old", (0..8).map(|n| f64::from(100 * cores + n)));
                entry.samples("new", (0..8).map(|n| f64::from(50 * cores + n)));
            }
            if kind == Kind::Simulated {
                let entry = part.metric("alloc_ns[cores=26]", "ns", Better::Lower);
                entry
                    .interval("old", 2600.0, 2607.0)
                    .published(crate::result::Published { mean: 3000.0, stddev: None });
            }
            document.results.push(part);
        }
        let short = "the first question".to_owned();
        document.studies.push(StudyText {
            name: "a".to_owned(),
            short,
            year: Some(2019),
            ..StudyText::default()
        });
        document
    }

    #[test]
    fn a_study_has_a_heading_and_a_line_for_each_kind() {
        let text = summary(&document(), 1, &Terminal::plain());
        let expected = [
            "a (2019): the first question",
            " m alloc_ns[cores=26] 2604 → 1304 ns, -50 % [-50, -50] +",
            " s alloc_ns[cores=26] 2604 → 1304 ns, -50 % [-50, -50] +; published 3000 missed",
            "b",
            " m alloc_ns[cores=26] 2604 → 1304 ns, -50 % [-50, -50] +",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected);
        let narrow = Terminal { width: Some(80), ..Terminal::plain() };
        assert!(summary(&document(), 1, &narrow).lines().all(|line| line.chars().count() <= 80));
    }

    /// Names leave out what is known, and a study with one figure has one line.
    #[test]
    fn a_line_says_only_what_its_heading_does_not() {
        let mut document = Document::new("study all", Host::default());
        let mut part =
            Part::new("zone-reclaim", "p", Kind::Measured, "host").baseline("old").variant("new").paired();
        let name = "zone_reclaim_scans[machine=rome,kind=queued,cores=2]";
        part.headline = Some(name.to_owned());
        let entry = part.metric(name, "1", Better::Lower);
        entry
            .samples("old", (0..8).map(|n| f64::from(100 + n)))
            .samples("new", (0..8).map(|n| f64::from(50 + n)));
        document.results.push(part);
        document.studies.push(StudyText {
            name: "zone-reclaim".to_owned(),
            short: "why".to_owned(),
            year: Some(2011),
            ..StudyText::default()
        });
        let narrow = Terminal { width: Some(70), ..Terminal::plain() };
        let line = "zone-reclaim: why; m scans[queued,cores=2] 104 → 53.5, -48 % [-50, -47] +\n";
        assert_eq!(summary(&document, 1, &Terminal::plain()), line);
        let without = summary(&document, 1, &narrow);
        assert!(without.starts_with("zone-reclaim: m scans"), "the question is left out: {without}");
        assert_eq!(without.lines().count(), 1);
        let narrower = Terminal { width: Some(60), ..Terminal::plain() };
        assert_eq!(summary(&document, 1, &narrower).lines().count(), 2, "it does not fit one line");
        assert!(columns(MARKS) < 80);
    }

    #[test]
    fn a_part_without_a_change_says_so() {
        let part = Part::new("s", "p", Kind::Derived, "host").baseline("v");
        assert_eq!(
            part_line(&part, 1, &Terminal::plain()),
            "s p, derived: 0 metrics, no variants to compare\n"
        );
        let part = &document().results[0];
        assert!(
            part_line(part, 1, &Terminal::plain()).starts_with("a p, measured: alloc_ns[cores=26] 2604 →")
        );
    }
}
