//! The answer before the figures: a verdict, time, locks, huge pages, whether it can be deployed; then at most ten rows
//! with titles in words. Of other results than replays and tries: the verdict, what was published, and the rows.

mod deployment;

use framewright_report::result::{Kind, Metric, Part};
use framewright_report::stats::ratio::{CONFIDENCE_PERCENT, Ratio, Verdict, needed, rounds, verdict};
use framewright_report::stats::{median, quartile_spread_percent};
use framewright_report::summary::Headline;
use framewright_report::table::{significant, wrapped};
use framewright_report::terminal::{Terminal, Tone};

use deployment::deployment;

/// Condition of a part: the share of the recorded run's CPU time that the kernel spent on page allocation, in percent.
pub const SHARE: &str = "page_allocation_percent_of_run";
/// Condition of a part: the 95 % interval of that share, as `0.05 to 1.73`.
pub const SHARE_RANGE: &str = "page_allocation_percent_range";
/// Condition of a part: the machine had other work while it was measured.
pub const BUSY: &str = "busy";
/// Condition of a part: what a replay predicts for the change that was tried.
pub const PREDICTED: &str = "predicted";

/// Rows that are shown, and lines that all of it takes at most; rows give way, down to the fewest.
const ROWS: usize = 10;
const LINES: usize = 24;
const FEWEST: usize = 5;
/// Rounds of the baseline that differ by more than this many percent are named.
const SPREAD: f64 = 10.0;
/// An interval of a ratio that is wider than this says nothing about time.
const WIDE: f64 = 0.2;
/// More samples than these are not advised: their sum takes hours.
const MOST_SAMPLES: f64 = 200.0;
/// Columns of a line's label.
const LABEL: usize = 11;
/// Columns of a row's title and of a figure.
const TITLE: usize = 35;
const FIGURE: usize = 9;

/// Metrics of replays and tries, in the order in which they are shown.
const ORDER: &[&str] = &[
    "elapsed_ms",
    "cpu_time_ms",
    "user_ms",
    "system_ms",
    "page_faults",
    "major_faults",
    "memory_wait_ms",
    "huge_page_faults",
    "huge_page_fallbacks",
    "allocation_stalls",
    "compaction_stalls",
    "pages_moved",
    "pages_allocated",
    "in_allocator_percent",
    "cpu_ns_per_operation",
    "alloc_ns[quantile=0.99]",
    "free_ns[quantile=0.99]",
    "alloc_ns",
    "free_ns",
    "zone_lock_acquisitions_per_page",
    "zone_lock_waits",
    "zone_lock_wait_ns",
    "zone_lock_hold_ns",
    "refills",
    "drains",
    "pages_moved_per_page",
    "huge_available_percent",
    "huge_available_percent[repeat=15]",
    "compaction_moved_per_allocated",
];

/// True for the parts that this module answers: those that compare. Arithmetic, and allocators side by side, stay
/// tables.
pub fn is_answered(part: &Part) -> bool {
    let compares = |variant: &String| {
        let has_both =
            |metric: &Metric| !metric.of(variant).is_empty() && !metric.of(&part.baseline).is_empty();
        part.metrics.iter().any(has_both)
    };
    part.kind != Kind::Derived && !part.is_table && part.others().any(compares)
}

fn time_of(part: &Part) -> Option<&Metric> {
    if part.study == "try" {
        return part.find("elapsed_ms");
    }
    let name = if part.kind == Kind::Simulated { "in_allocator_percent" } else { "cpu_ns_per_operation" };
    part.find(name)
}

/// The metrics of a part, the most important first: of replays and tries those of `ORDER`, of others the headline's,
/// then in the part's order those that explain nothing else.
fn ordered(part: &Part) -> Vec<&Metric> {
    if time_of(part).is_some() {
        return ORDER.iter().filter_map(|name| part.find(name)).collect();
    }
    let mut metrics: Vec<&Metric> = part.metrics.iter().collect();
    metrics.sort_by_key(|metric| (!part.is_headline(metric), metric.is_cause));
    metrics
}

/// A metric in both columns, its medians, their ratio and what that allows to say.
struct Change<'a> {
    metric: &'a Metric,
    base: f64,
    new: f64,
    ratio: Option<Ratio>,
    verdict: Verdict,
}

impl<'a> Change<'a> {
    fn of(part: &'a Part, metric: &'a Metric, variant: &str) -> Option<Self> {
        let (base, new) = (metric.of(&part.baseline), metric.of(variant));
        if base.is_empty() || new.is_empty() {
            return None;
        }
        let ratio = Ratio::between(part, metric, variant);
        let verdict = verdict(part, metric, variant, ratio);
        Some(Self { metric, base: median(base), new: median(new), ratio, verdict })
    }

    fn named(part: &'a Part, name: &str, variant: &str) -> Option<Self> {
        Self::of(part, part.find(name)?, variant)
    }

    /// `0.0012 → 0.0075`.
    fn figures(&self) -> String {
        format!("{} → {}", significant(self.base, 3), significant(self.new, 3))
    }

    /// `-26 % [-29, -21]`, or of several times as much `6.43×`.
    fn in_words(&self) -> String {
        let percent = |ratio: f64| format!("{:+.0}", (100.0 * (ratio - 1.0)).round() + 0.0);
        match self.ratio {
            None if self.base == self.new => "unchanged".to_owned(),
            None => format!("from {}", significant(self.base, 3)),
            Some(Ratio { ratio, .. }) if ratio >= 2.0 => format!("{}×", significant(ratio, 3)),
            Some(Ratio { ratio, low, high }) if high > low => {
                format!("{} % [{}, {}]", percent(ratio), percent(low), percent(high))
            }
            Some(Ratio { ratio, .. }) => format!("{} %", percent(ratio)),
        }
    }

    const fn mark(&self) -> char {
        match self.verdict {
            Verdict::Better => '+',
            Verdict::Worse => '-',
            Verdict::Changed => ' ',
            Verdict::Unclear => '~',
            Verdict::TooFew => '?',
        }
    }

    /// `0.735× [0.690, 0.787]`.
    fn ratio_text(&self) -> String {
        self.ratio.map_or_else(String::new, |Ratio { ratio, low, high }| {
            // No wider than its column.
            let interval = if high <= low {
                String::new()
            } else if high < 10.0 {
                format!(" [{low:.3}, {high:.3}]")
            } else {
                format!(" [{low:.2}, {}]", significant(high, 3))
            };
            if ratio >= 10.0 {
                format!("{}×", significant(ratio, 3))
            } else {
                format!("{ratio:.3}×{interval}")
            }
        })
    }

    /// One row: title, both figures, the ratio and its interval.
    fn row(&self, title: &str) -> String {
        let [base, new] = [self.base, self.new].map(|value| significant(value, 3));
        let ratio = self.ratio_text();
        format!("{title:<TITLE$} {base:>FIGURE$} {new:>FIGURE$}  {ratio:<21} {}", self.mark())
    }
}

/// The answer for one variant, and its most important rows: `whole` has those, too, that say little and are not in
/// `part`.
pub fn text(part: &Part, whole: &Part, variant: &str, terminal: &Terminal) -> String {
    let mut out = String::new();
    let mut push = |text: &str, tone: Tone| {
        out += &format!("{}\n", terminal.paint(terminal.spell(text).trim_end(), tone));
    };
    let width = terminal.columns();
    let heading = wrapped(&heading(part, variant), Some(width), "  ");
    heading.iter().for_each(|line| push(line, Tone::Heading));
    let mut used = heading.len();
    let lines = [
        ("Noise", noise(part)),
        ("Verdict", Some(judged(part, variant))),
        ("Published", published(part, variant)),
        ("Time", time(part, variant)),
        ("Locks", locks(part, variant)),
        ("Huge pages", huge_pages(part, variant)),
        ("Failures", failures(whole, variant)),
        ("To deploy", deployment(part, variant)),
        ("Predicted", part.conditions.get(PREDICTED).cloned()),
    ];
    for (name, line) in lines {
        if let Some(line) = line {
            let tone = match name {
                "Verdict" => Tone::Heading,
                "Noise" => Tone::Worse,
                _ => Tone::Plain,
            };
            for (n, line) in wrapped(&line, Some(width.saturating_sub(LABEL)), "").iter().enumerate() {
                push(&format!("{:<LABEL$}{line}", if n == 0 { name } else { "" }), tone);
                used += 1;
            }
        }
    }
    for note in part.notes.iter().filter(|note| note.starts_with("Warning")) {
        for line in wrapped(note, Some(width), "  ") {
            push(&line, Tone::Worse);
            used += 1;
        }
    }
    // Narrow terminals have the figures on lines of their own.
    let narrow = width < TITLE + 2 * FIGURE + 27;
    push("", Tone::Plain);
    if !narrow {
        push(&format!("{:TITLE$} {:>FIGURE$} {:>FIGURE$}  ratio", "", "base", "new"), Tone::Heading);
    }
    let (mut shown, mut room) = (0, LINES.saturating_sub(used + 3));
    for metric in ordered(part) {
        let Some(change) = Change::of(part, metric, variant) else { continue };
        let mut lines = wrapped(&metric.words_and_unit(), Some(if narrow { width } else { TITLE }), " ");
        if narrow {
            let figures = format!("  {}, {} {}", change.figures(), change.ratio_text(), change.mark());
            lines.extend(wrapped(&figures, Some(width), "  "));
        } else if let Some(last) = lines.last_mut() {
            *last = change.row(last);
        }
        if shown == ROWS || (lines.len() > room && shown >= FEWEST) {
            break;
        }
        lines.iter().for_each(|line| push(line, change.verdict.tone()));
        shown += 1;
        room = room.saturating_sub(lines.len());
    }
    let hidden = whole.metrics.len().saturating_sub(shown);
    let more = match hidden {
        0 => "Notes: --all. ".to_owned(),
        1 => "1 more row, and notes: --all. ".to_owned(),
        _ => format!("{hidden} more rows, and notes: --all. "),
    };
    for line in wrapped(&format!("{more}+ better, - worse, ~ unclear, ? too few"), Some(width), "") {
        push(&line, Tone::Dim);
    }
    out
}

/// Reasons why the times of a part vary, if they do: other work, and rounds that differ.
fn noise(part: &Part) -> Option<String> {
    let is_time = |metric: &&Metric| matches!(&*metric.unit, "ns" | "us" | "ms" | "s") && !metric.is_cause;
    let times = match time_of(part) {
        _ if part.kind != Kind::Measured => Vec::new(),
        Some(time) => vec![time],
        None => part.metrics.iter().filter(is_time).collect(),
    };
    let spreads = times.iter().map(|time| quartile_spread_percent(time.of(&part.baseline)));
    let spread = spreads.fold(0.0, f64::max);
    let rounds = (spread > SPREAD).then(|| format!("rounds of the baseline differ by ±{spread:.0} %"));
    let said: Vec<String> = part.conditions.get(BUSY).cloned().into_iter().chain(rounds).collect();
    (!said.is_empty()).then(|| format!("{}: quiet the machine before you trust times", said.join("; ")))
}

/// The effect on the run, and on huge pages, in a sentence.
pub fn in_a_sentence(part: &Part, variant: &str) -> String {
    let said = [time(part, variant), huge_pages(part, variant)];
    said.into_iter().flatten().collect::<Vec<_>>().join("; huge pages ")
}

/// Names of both columns, and the kind of the figures.
fn heading(part: &Part, variant: &str) -> String {
    let samples = part.metrics.iter().map(|metric| rounds(metric, variant).len()).max().unwrap_or(0);
    // Files that share several variants have a part for each.
    let (name, both) = match part.part.split_once("[variant=") {
        Some((name, variant)) => (name, format!("{}, ", variant.strip_suffix(']').unwrap_or(variant))),
        None => (&*part.part, String::new()),
    };
    let on = match (part.study.as_str(), part.kind) {
        ("try", _) => part.conditions.get("command").map_or("?", String::as_str).to_owned(),
        ("replay", Kind::Simulated) => format!("{}, models", part.machine),
        ("replay", _) => format!("{} MiB", part.conditions.get("memory_mib").map_or("?", String::as_str)),
        (_, Kind::Simulated) => format!("{} {name}, {} for {}", part.study, part.kind, part.machine),
        _ => format!("{} {name}, {}", part.study, part.kind),
    };
    let s = if samples == 1 { "" } else { "s" };
    format!("{} → {variant} ({both}{on}, {samples} sample{s})", part.baseline)
}

/// The figure that was published, here and there.
fn published(part: &Part, variant: &str) -> Option<String> {
    let headline = Headline::of(part).filter(|headline| headline.variant == variant)?;
    let change = headline.published_change()?;
    Some(format!("{} {}; {change}", headline.metric.words(), headline.percent()))
}

fn time(part: &Part, variant: &str) -> Option<String> {
    let change = Change::of(part, time_of(part)?, variant)?;
    if part.study == "try" {
        let in_kernel = Change::named(part, "system_ms", variant).map_or_else(String::new, |kernel| {
            format!("; in the kernel {} ms, {}", kernel.figures(), kernel.in_words())
        });
        return Some(format!("{} ms, {}{in_kernel}", change.figures(), change.in_words()));
    }
    let figures = change.figures();
    let effect = match part.conditions.get(SHARE).and_then(|share| share.parse::<f64>().ok()) {
        Some(_) if change.base == 0.0 && change.new != 0.0 => {
            "how much of the run that is cannot be said, as the baseline's is 0".to_owned()
        }
        Some(share) => {
            let of_run = |share: f64, ratio: f64| share * (ratio - 1.0) + 0.0;
            let known = share_range(part);
            let range =
                change.ratio.filter(|ratio| ratio.high > ratio.low).map_or_else(String::new, |ratio| {
                    // The share is an estimate, too: few samples leave both open.
                    let shares = known.unwrap_or([share; 2]);
                    let low =
                        shares.map(|share| of_run(share, ratio.low)).into_iter().fold(f64::MAX, f64::min);
                    let high =
                        shares.map(|share| of_run(share, ratio.high)).into_iter().fold(f64::MIN, f64::max);
                    format!(" [{low:+.2}, {high:+.2}]")
                });
            let known = known.map_or_else(String::new, |[low, high]| format!(" [{low:.2}, {high:.2}]"));
            format!(
                "{:+.2} %{range} of the run's CPU time, if its page allocation ({share:.2} %{known}) changes alike",
                of_run(share, if change.new == change.base { 1.0 } else { change.new / change.base })
            )
        }
        None => "the allocator's share of the run is not known (no samples in the trace)".to_owned(),
    };
    let words = change.in_words();
    Some(match part.kind {
        Kind::Simulated => format!("in the modelled allocator {figures} % of the time, {words}; {effect}"),
        _ => format!("an operation {figures} ns, {words}; {effect}"),
    })
}

/// The interval of the allocator's share of the run, if the part has it.
fn share_range(part: &Part) -> Option<[f64; 2]> {
    let (low, high) = part.conditions.get(SHARE_RANGE)?.split_once(" to ")?;
    Some([low.parse().ok()?, high.parse().ok()?])
}

fn locks(part: &Part, variant: &str) -> Option<String> {
    time_of(part)?;
    let taken = Change::named(part, "zone_lock_acquisitions_per_page", variant)?;
    let text = format!("{} zone-lock acquisitions ({} per page)", taken.in_words(), taken.figures());
    let waits = Change::named(part, "zone_lock_waits", variant)
        .map(|waits| format!(", waited {} times", waits.figures()));
    let wait = Change::named(part, "zone_lock_wait_ns", variant)
        .map(|wait| format!(", each waited {} ns", wait.figures()));
    Some(text + &waits.or(wait).unwrap_or_default())
}

fn huge_pages(part: &Part, variant: &str) -> Option<String> {
    time_of(part)?;
    let had = Change::named(part, "huge_available_percent", variant)?;
    let moved = Change::named(part, "compaction_moved_per_allocated", variant);
    let price = moved.map_or_else(String::new, |moved| {
        let [base, new] = [moved.base, moved.new].map(|moved| significant(100.0 * moved, 2));
        format!("; price: {base} → {new} pages moved per 100 allocated")
    });
    let had = had.figures();
    if part.study == "try" {
        let faults = Change::named(part, "huge_page_faults", variant)
            .map_or_else(String::new, |faults| format!("; {} faults got one", faults.figures()));
        return Some(format!("{had} % of the free memory after the run{faults}"));
    }
    Some(format!("{had} % of the free memory, in {}{price}", tight(part)))
}

/// The memory of the runs for huge pages: what `--memory` gives all runs, or little.
fn tight(part: &Part) -> String {
    let given =
        part.conditions.get("huge_pages_mib").filter(|mib| part.conditions.get("memory_mib") == Some(mib));
    given.map_or_else(|| "memory that the run nearly fills".to_owned(), |mib| format!("{mib} MiB"))
}

/// Allocations that found no block, if any did: figures of a replay that ran out of memory are of less than the run.
fn failures(whole: &Part, variant: &str) -> Option<String> {
    time_of(whole)?;
    let failed = |name: &str, place: &str| {
        let failed = Change::named(whole, name, variant)?;
        let figures = failed.figures();
        (failed.base > 0.0 || failed.new > 0.0)
            .then(|| format!("{figures} allocations found no block{place}"))
    };
    let timed = failed("failed_allocations", "");
    let tight = failed("failed_allocations[memory=tight]", &format!(" in all runs in {}", tight(whole)));
    let said: Vec<String> = [timed, tight].into_iter().flatten().collect();
    let advice = if whole.study == "replay" { ": `replay --memory` gives them more" } else { "" };
    (!said.is_empty()).then(|| said.join("; ") + advice)
}

/// The verdict in one sentence: what is better, worse or otherwise changed, and of time, or of the part's first metric,
/// why that cannot be said.
fn judged(part: &Part, variant: &str) -> String {
    let time_name = if part.study == "try" { "elapsed time" } else { "time" };
    let main: Vec<(Change<'_>, String)> = match time_of(part) {
        None => {
            let metrics = ordered(part).into_iter().filter(|metric| !metric.is_cause);
            let change = |metric| Some((Change::of(part, metric, variant)?, metric.words_and_unit()));
            metrics.filter_map(change).collect()
        }
        Some(time) => [
            (&*time.name, time_name),
            ("zone_lock_acquisitions_per_page", "zone-lock acquisitions"),
            ("cpu_time_ms", "CPU time"),
            ("page_faults", "page faults"),
            ("huge_available_percent", "huge pages"),
        ]
        .iter()
        .filter_map(|(name, words)| Some((Change::named(part, name, variant)?, (*words).to_owned())))
        .collect(),
    };
    let mut said = Vec::new();
    let by_chance = main.len() * (100 - CONFIDENCE_PERCENT as usize) / 100;
    let is_marked = main.iter().any(|(change, _)| change.verdict.is_change());
    for (word, wanted) in
        [("better", Verdict::Better), ("worse", Verdict::Worse), ("changed", Verdict::Changed)]
    {
        let those: Vec<&str> = main
            .iter()
            .filter(|(change, _)| change.verdict == wanted)
            .map(|(_, what)| what.as_str())
            .collect();
        match &those[..] {
            [] => {}
            [first, _, _, ..] if time_of(part).is_none() => {
                said.push(format!("{word}: {} of {} rows, such as {first}", those.len(), main.len()));
            }
            _ => said.push(format!("{word}: {}", those.join(", "))),
        }
    }
    if by_chance > 0 && is_marked && part.kind == Kind::Measured {
        said.push(format!("by chance alone up to {by_chance}"));
    }
    if let Some((first, what)) = main.first() {
        said.extend(why_not(part, first, variant, what));
    }
    if said.is_empty() { "no measurable change".to_owned() } else { said.join("; ") }
}

/// The reason why nothing is said of a change, if nothing is.
fn why_not(part: &Part, change: &Change<'_>, variant: &str, what: &str) -> Option<String> {
    let width = change.ratio.map_or(0.0, |ratio| ratio.high - ratio.low);
    let option = if part.study == "try" { "--rounds" } else { "--samples" };
    match change.verdict {
        Verdict::TooFew => {
            Some(format!("too few samples to judge {what}: {option} {} or more", needed(part)))
        }
        Verdict::Unclear if width > WIDE && part.kind == Kind::Simulated => {
            Some(format!("the models do not agree on {what}"))
        }
        Verdict::Unclear if width > WIDE => {
            // The width of an interval goes with the root of the samples.
            let samples = rounds(change.metric, variant).len() as f64;
            let samples = (samples * (width / WIDE).powi(2)).ceil();
            let more =
                if samples > MOST_SAMPLES { String::new() } else { format!(", or {option} {samples}") };
            Some(format!("too noisy to judge {what}: quiet the machine{more}"))
        }
        Verdict::Unclear => Some(format!("no measurable change in {what}")),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
