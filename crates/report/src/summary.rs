//! A result in a few lines: of each study what was changed, and what that did here, on the published machine, and in
//! what was published, as changes in percent.

use crate::result::{Basis, Better, Document, Kind, Metric, Part, says_nothing};
use crate::stats::median;
use crate::stats::ratio::{Ratio, Verdict, needed, verdict};
use crate::table::{beside, columns, significant, wrapped};
use crate::terminal::{Terminal, Tone};

/// Verdict on a prediction beside the published change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The predicted range holds it.
    Reproduced,
    /// Right direction, at least half as far and at most twice, but outside the range.
    Near,
    /// Wrong direction or size.
    Missed,
    /// The range holds both no change and a doubling or halving: it predicts nothing.
    Unknown,
    /// Too few samples to judge.
    TooFew,
}

/// The most important figure of a part.
#[derive(Clone, Debug, PartialEq)]
pub struct Headline<'a> {
    /// Part that has the figure.
    pub part: &'a Part,
    /// Metric of the figure.
    pub metric: &'a Metric,
    /// The variant that is compared with the baseline: the last of the part.
    pub variant: &'a str,
    /// Medians of the baseline and of the variant.
    pub medians: [f64; 2],
    /// Ratio of the medians.
    pub ratio: Option<Ratio>,
    /// Verdict on the ratio.
    pub verdict: Verdict,
}

impl<'a> Headline<'a> {
    /// The headline of a part; `None` if it has nothing to compare. What was published comes before what the part
    /// names.
    #[must_use]
    pub fn of(part: &'a Part) -> Option<Self> {
        if let Some((metric, variant)) = was_published(part) {
            return Self::with(part, metric, variant);
        }
        let wanted = part.headline.as_deref()?;
        let variant = part.variants.last().filter(|last| **last != part.baseline)?;
        let comparable =
            |metric: &&Metric| !metric.of(&part.baseline).is_empty() && !metric.of(variant).is_empty();
        let exact = part.find(wanted).filter(comparable);
        // Of a curve the last point, the most CPUs; the same where another machine was asked for than the study names.
        let family = wanted.split_once('[').map_or(wanted, |(family, _)| family);
        let last = || part.metrics.iter().filter(|metric| metric.family() == family).rfind(comparable);
        Self::with(part, exact.or_else(last)?, variant)
    }

    fn with(part: &'a Part, metric: &'a Metric, variant: &'a str) -> Option<Self> {
        let ratio = Ratio::between(part, metric, variant);
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

    /// `0.105× [0.101, 0.109] better`; without a ratio only the word.
    #[must_use]
    pub fn judged(&self) -> String {
        let word = match self.verdict {
            Verdict::Better => " better",
            Verdict::Worse => " worse",
            Verdict::Changed => "",
            Verdict::Unclear if self.metric.better == Better::None => "",
            Verdict::Unclear => " no clear change",
            Verdict::TooFew => " (too few samples)",
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

    /// Published figures beside the simulated ones of baseline and variant, and whether the models' range holds it.
    #[must_use]
    pub fn published(&self) -> Option<String> {
        if self.part.kind != Kind::Simulated {
            return None;
        }
        let text_of =
            |name: &str, variant: &str| Some(format!("{name} {}", beside(self.part, self.metric, variant)?));
        let both = [text_of("baseline", &self.part.baseline), text_of(self.variant, self.variant)];
        let texts: Vec<String> = both.into_iter().flatten().collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// `-87 % [-91, -83]`; without a ratio both medians.
    #[must_use]
    pub fn percent(&self) -> String {
        match self.ratio {
            Some(ratio) => {
                let [change, low, high] = [ratio.ratio, ratio.low, ratio.high].map(percent);
                // A range that its digits do not show is left out.
                let is_wide = low != change || high != change;
                let range = if is_wide { format!(" [{low}, {high}]") } else { String::new() };
                let few = if self.verdict == Verdict::TooFew { ", too few" } else { "" };
                format!("{change} %{range}{few}")
            }
            None => self.change(),
        }
    }

    /// Basis of the figure.
    #[must_use]
    pub fn basis(&self) -> Basis {
        self.part.basis(self.metric)
    }

    /// The change that was published of this metric and variant, as a ratio.
    #[must_use]
    pub fn published_ratio(&self) -> Option<f64> {
        let mean_of =
            |variant: &str| self.part.published(self.metric, variant).map(|published| published.mean);
        let base = mean_of(&self.part.baseline).filter(|base| *base > 0.0)?;
        Some(mean_of(self.variant)? / base)
    }

    /// Compares the change that was found here with the published one; `None` if none was published.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        let published = self.published_ratio()?;
        Some(match (self.ratio, self.verdict) {
            (_, Verdict::TooFew) | (None, _) => Outcome::TooFew,
            (Some(ratio), _) if says_nothing(ratio.low, ratio.high) => Outcome::Unknown,
            (Some(ratio), _) if (ratio.low..=ratio.high).contains(&published) => Outcome::Reproduced,
            (Some(ratio), _) if (0.5..=2.0).contains(&(ratio.ratio.ln() / published.ln())) => Outcome::Near,
            (Some(_), _) => Outcome::Missed,
        })
    }

    fn published_percent(&self) -> Option<String> {
        Some(format!("published {} %", percent(self.published_ratio()?)))
    }

    /// `published -70 %, missed`: with the outcome of the prediction.
    #[must_use]
    pub fn published_change(&self) -> Option<String> {
        let word = match self.outcome()? {
            Outcome::TooFew => "",
            Outcome::Reproduced => ", reproduced",
            Outcome::Near => ", nearly",
            Outcome::Missed => ", missed",
            Outcome::Unknown => ", not predicted",
        };
        Some(self.published_percent()? + word)
    }

    /// The colour of a line that has the published change: none, as a better figure may still miss it.
    const fn tone_beside_published(&self) -> Tone {
        if self.metric.published.is_some() { Tone::Plain } else { self.verdict.tone() }
    }
}

/// The reason why such a range is no prediction, and the measurements that would narrow it.
const UNKNOWN: &str = "the range holds both no change and a doubling; hold time and acquisitions of its lock, measured on \
                       one CPU of that machine, would decide";

fn percent(ratio: f64) -> String {
    let change = 100.0 * (ratio - 1.0);
    if change.abs() < 9.95 || change < -89.95 {
        format!("{:+.1}", change + 0.0)
    } else {
        format!("{change:+.0}")
    }
}

/// Three decimals, or where that says nothing, two digits.
fn digits(ratio: f64) -> String {
    if (0.01..100.0).contains(&ratio) { format!("{ratio:.3}") } else { significant(ratio, 2) }
}

/// One line of a part that has ended; what follows does not fit on it goes below.
#[must_use]
pub fn part_line(part: &Part, terminal: &Terminal) -> String {
    let title = format!("{} {}, {}", part.study, part.part, part.kind);
    match Headline::of(part) {
        Some(headline) => {
            let text =
                format!("{title}: {} {}, {}", headline.metric.words(), headline.change(), headline.judged());
            lines(&text, terminal, headline.verdict.tone())
        }
        None => lines(
            &format!("{title}: {} metrics, no variants to compare", part.metrics.len()),
            terminal,
            Tone::Plain,
        ),
    }
}

/// A metric of a part that was published before and after the change, and the last variant of which it was; what the
/// part names comes first.
fn was_published(part: &Part) -> Option<(&Metric, &str)> {
    let both = |metric: &&Metric| metric.published.is_some() && !metric.of(&part.baseline).is_empty();
    let variant = |metric: &Metric| {
        let has_change =
            |variant: &&String| metric.changed.contains_key(*variant) && !metric.of(variant).is_empty();
        part.variants.iter().rfind(has_change)
    };
    let mut found: Vec<_> = part
        .metrics
        .iter()
        .filter(both)
        .filter_map(|metric| Some((metric, variant(metric)?.as_str())))
        .collect();
    found.sort_by_key(|(metric, _)| !part.is_headline(metric));
    found.first().copied()
}

/// Findings of a study: one figure of this machine and one of the published machine, and how many of its predictions
/// hold what was published.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Name of the study.
    pub study: &'a str,
    /// The change, in a few words.
    pub short: &'a str,
    /// Year of its publication.
    pub year: Option<u32>,
    /// Figure that was measured here.
    pub here: Option<Headline<'a>>,
    /// Prediction for the machine of the publication.
    pub there: Option<Headline<'a>>,
    /// Predictions by enough models whose range holds the published figure, and all that have one.
    pub held: [usize; 2],
    /// Published figures that no part predicts, each with the reason.
    pub unpredicted: &'a [String],
}

impl<'a> Row<'a> {
    /// The figure that answers the study's question: of what was published, if anything was.
    #[must_use]
    pub fn answer(&self) -> Option<&Headline<'a>> {
        let published = |headline: &&Headline<'_>| headline.published_ratio().is_some();
        let both = || self.there.iter().chain(&self.here);
        both().find(published).or_else(|| both().next())
    }

    /// The predictions that hold, in words.
    #[must_use]
    pub fn held_in_words(&self) -> Option<String> {
        let [held, all] = self.held;
        (all > 1).then(|| format!("{held} of {all} published figures within the predicted range"))
    }
}

/// A row for each study of a published change, in the order of the results. A study that asks about this allocator
/// alone has none.
#[must_use]
pub fn rows(document: &Document) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for part in &document.results {
        let text = document.studies.iter().find(|text| text.name == part.study);
        if !rows.iter().any(|row| row.study == part.study) {
            let (short, year) = text.map_or(("", None), |text| (text.short.as_str(), text.year));
            let unpredicted = text.map_or(&[][..], |text| &text.unpredicted);
            rows.push(Row {
                study: &part.study,
                short,
                year,
                here: None,
                there: None,
                held: [0; 2],
                unpredicted,
            });
        }
        let Some(row) = rows.iter_mut().find(|row| row.study == part.study) else { continue };
        for (metric, variant) in
            part.metrics.iter().flat_map(|metric| part.variants.iter().map(move |variant| (metric, variant)))
        {
            let is_known = metric.of(variant).len() >= needed(part);
            if let Some(held) = part.covers(metric, variant).filter(|_| is_known) {
                row.held[0] += usize::from(held);
                row.held[1] += 1;
            }
        }
        let place = match part.kind {
            Kind::Measured => &mut row.here,
            Kind::Simulated => &mut row.there,
            Kind::Derived => continue,
        };
        let found = Headline::of(part);
        // A published change says more than a published figure, and that more than none.
        let rank = |headline: &Headline<'_>| {
            let figure = headline.part.published(headline.metric, &headline.part.baseline);
            (headline.published_ratio().is_some(), figure.is_some())
        };
        let better = |found: &Headline<'_>| place.as_ref().is_none_or(|known| rank(found) > rank(known));
        if found.as_ref().is_some_and(better) {
            *place = found;
        }
    }
    let is_a_change = |row: &Row<'_>| {
        row.year.is_some()
            || row.there.iter().chain(&row.here).any(|headline| headline.published_ratio().is_some())
    };
    let any_known = rows.iter().any(is_a_change);
    rows.retain(|row| {
        (row.here.is_some() || row.there.is_some())
            && (!any_known || is_a_change(row))
            && row.study != "fidelity"
    });
    rows
}

/// The published changes in groups, by the outcome of their prediction: titles, and the changes of each, with the
/// reason for those that are not predicted.
#[must_use]
pub fn outcomes(rows: &[Row<'_>]) -> Vec<(&'static str, Vec<String>)> {
    let predicted = |outcome: Outcome| {
        let with = |row: &Row<'_>| {
            let answer = row.answer().filter(|answer| answer.outcome() == Some(outcome))?;
            Some(format!("{}: {}", row.study, answer.metric.words()))
        };
        rows.iter().filter_map(with).collect::<Vec<_>>()
    };
    let because = |(what, why): (&str, &str)| format!("{what} ({why})");
    let without = rows.iter().flat_map(|row| {
        let change = |text: &String| {
            let change = text.split_once(": ").map_or_else(|| text.clone(), because);
            format!("{}: {change}", row.study)
        };
        row.unpredicted.iter().map(change)
    });
    let too_wide = predicted(Outcome::Unknown).into_iter().map(|change| because((&change, UNKNOWN)));
    let groups = [
        ("Reproduced", predicted(Outcome::Reproduced)),
        ("Nearly", predicted(Outcome::Near)),
        ("Missed", predicted(Outcome::Missed)),
        ("Not judged", predicted(Outcome::TooFew)),
        ("Not predicted", too_wide.chain(without).collect()),
    ];
    groups.into_iter().filter(|(_, changes)| !changes.is_empty()).collect()
}

/// The summary: which published changes are reproduced; then for each study its change, the effect here, and the
/// published effect beside the predicted one. That of all studies fits a terminal of 80 columns and 24 lines.
#[must_use]
pub fn summary(document: &Document, terminal: &Terminal) -> String {
    let mut out = String::new();
    let rows = rows(document);
    for (title, changes) in outcomes(&rows) {
        let tone = if title == "Reproduced" { Tone::Better } else { Tone::Plain };
        out += &labelled(&format!("{title:<15}"), &changes.join("; "), terminal, tone);
    }
    for row in rows {
        let year = row.year.map_or_else(String::new, |year| format!(" ({year})"));
        let colon = if row.short.is_empty() { "" } else { ": " };
        out += &lines(&format!("{}{year}{colon}{}", row.study, row.short), terminal, Tone::Heading);
        for (place, headline) in [("here", &row.here), ("there", &row.there)] {
            let Some(headline) = headline else { continue };
            let published =
                headline.published_percent().map_or_else(String::new, |change| format!("; {change}"));
            let basis = headline.basis();
            let is_usual = basis == if place == "here" { Basis::Measured } else { Basis::Predicted };
            let basis = if is_usual { String::new() } else { format!(", {basis}") };
            let text = format!("{} {}{basis}{published}", headline.metric.words(), headline.percent());
            let tone = headline.tone_beside_published();
            out += &labelled(&format!("  {place:<7}"), &text, terminal, tone);
        }
    }
    out
}

/// The terminal's legend, in a line of 80 columns; `machine` is that of the predictions, where one was asked for.
#[must_use]
pub fn marks(machine: Option<&str>) -> String {
    let machine = machine.unwrap_or("the published machine");
    format!("here: measured; there: predicted for {machine}; nearly: 0.5 to 2×")
}

/// The page's legend.
pub const LEGEND: &str = "Changes of medians in percent [low, high]: measured 95 % interval, predicted range over all models. reproduced: that \
                          range holds the published change.";

fn lines(text: &str, terminal: &Terminal, tone: Tone) -> String {
    labelled("", text, terminal, tone)
}

/// A text that begins after a label, and goes on below itself.
fn labelled(label: &str, text: &str, terminal: &Terminal, tone: Tone) -> String {
    let text = terminal.spell(text);
    let room = terminal.width.map(|width| width.saturating_sub(columns(label)).max(20));
    let painted = wrapped(&text, room, "");
    let lines = painted.iter().enumerate().map(|(n, line)| {
        let before = match (n, label) {
            (0, label) => label.to_owned(),
            (_, "") => " ".repeat(LABEL),
            (_, label) => " ".repeat(columns(label)),
        };
        format!("{}\n", terminal.paint(&format!("{before}{line}"), tone))
    });
    lines.collect()
}

/// Columns of a line's label.
const LABEL: usize = 9;

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

    /// The end of `study all`, from a run on two CPUs whose headline metrics were saved.
    #[test]
    fn the_first_screen_of_all_studies_is_as_it_was_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/study-all.json");
        let document = Document::read(path.as_ref()).expect("a result");
        let terminal = Terminal { width: Some(80), ..Terminal::plain() };
        let screen = summary(&document, &terminal) + &marks(None);
        assert!(screen.lines().count() <= 24, "{screen}");
        assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
        insta::assert_snapshot!("study-all", screen);
    }

    #[test]
    fn a_study_has_a_heading_and_a_line_for_each_place() {
        let text = summary(&document(), &Terminal::plain());
        let expected = [
            "a (2019): the first question",
            "  here   allocation, cores 26 -50 %",
            "  there  allocation, cores 26 -50 %",
        ];
        assert_eq!(text.lines().collect::<Vec<_>>(), expected, "b asks nothing that was published");
        let narrow = Terminal { width: Some(80), ..Terminal::plain() };
        assert!(summary(&document(), &narrow).lines().all(|line| line.chars().count() <= 80));
        assert!(columns(&marks(None)) < 80);
        assert!(marks(Some("epyc-7742-2s")).contains("there: predicted for epyc-7742-2s;"));
    }

    #[test]
    fn a_range_of_no_change_and_a_doubling_predicts_nothing_and_says_what_would() {
        let mut document = document();
        let mut part =
            Part::new("a", "fault", Kind::Simulated, "skylake").baseline("old").variant("new").paired();
        for n in 0..8 {
            let metric = part.metric("faults_per_second", "1/s", Better::Higher);
            metric.sample("old", 100.0).sample("new", 95.0 + 16.0 * f64::from(n));
        }
        part.metric("faults_per_second", "1/s", Better::Higher)
            .published(crate::result::Published { mean: 100.0, stddev: None })
            .changed("new", crate::result::Published { mean: 120.0, stddev: None });
        document.results.push(part);
        let text = summary(&document, &Terminal::plain());
        let expected = format!("Not predicted  a: page faults a second ({UNKNOWN})\n");
        assert!(text.starts_with(&expected) && text.contains("; published +20 %"), "{text}");
    }

    /// The published metric comes before the one that the study names, and a miss is shown in the published metric.
    #[test]
    fn what_was_published_is_answered_in_its_own_metric() {
        use crate::result::Published;
        for (predicted, published, group, expected) in [
            (0.5, 3.0, "Missed", "  there  files a second -50 %; published +200 %"),
            (1.0, 1.35, "Missed", "  there  files a second +0.0 %; published +35 %"),
            (1.4, 1.35, "Nearly", "  there  files a second +40 %; published +35 %"),
            (1.35, 1.35, "Reproduced", "  there  files a second +35 %; published +35 %"),
        ] {
            let mut document = document();
            let mut part = Part::new("a", "fsmark", Kind::Simulated, "westmere")
                .baseline("old")
                .variant("new")
                .variant("newer")
                .paired();
            part.headline = Some("scans".to_owned());
            let add = |part: &mut Part, name: &str, ratio: f64| {
                for (variant, value) in [("old", 100.0), ("new", 100.0 * ratio), ("newer", 1.0)] {
                    part.metric(name, "1", Better::Higher).samples(variant, [value; 8]);
                }
            };
            add(&mut part, "scans", 9.0);
            add(&mut part, "files_per_second", predicted);
            part.metric("files_per_second", "1", Better::Higher)
                .published(Published { mean: 100.0, stddev: None })
                .changed("new", Published { mean: 100.0 * published, stddev: None });
            document.results.push(part);
            let lost = "jobs a minute of AIM7, +94 %: the report names no machine";
            document.studies[0].unpredicted = vec![lost.to_owned()];
            let text = summary(&document, &Terminal::plain());
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!(lines[0], format!("{group:<15}a: files a second"), "{text}");
            assert_eq!(
                lines[1],
                "Not predicted  a: jobs a minute of AIM7, +94 % (the report names no machine)"
            );
            assert_eq!(lines[4], expected, "{text}");
        }
    }

    #[test]
    fn a_part_without_a_change_says_so() {
        let part = Part::new("s", "p", Kind::Derived, "host").baseline("v");
        assert_eq!(part_line(&part, &Terminal::plain()), "s p, derived: 0 metrics, no variants to compare\n");
        let part = &document().results[0];
        assert!(
            part_line(part, &Terminal::plain()).starts_with("a p, measured: allocation, cores 26 2604 →")
        );
    }
}
