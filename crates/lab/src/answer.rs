//! The answer of a replay before its figures: time, locks, huge pages, whether it can be deployed, a verdict; then at most
//! ten rows with titles in words.

use crate::configure::Setting;
use crate::result::{Kind, Metric, Part};
use crate::stats::median;
use crate::stats::ratio::{FEW_PAIRS, Ratio, Verdict, verdict};
use crate::table::{significant, wrapped};
use crate::terminal::{Terminal, Tone, to_ascii};

/// Condition of a part: the share of the recorded run's CPU time that the kernel spent on page allocation, in percent.
pub const SHARE: &str = "page_allocation_percent_of_run";
/// Condition of a part: the machine had other work when the replay began.
pub const BUSY: &str = "busy";

/// Rows that are shown.
const ROWS: usize = 10;
/// An interval of a ratio that is wider than this says nothing about time.
const WIDE: f64 = 0.2;
/// Columns of a line's label.
const LABEL: usize = 11;
/// Columns of a row's title and of a figure.
const TITLE: usize = 35;
const FIGURE: usize = 9;

/// Metrics in words, in the order in which they are shown.
const TITLES: &[(&str, &str)] = &[
    ("elapsed_ms", "run, ms"),
    ("in_allocator_percent", "time in the allocator, %"),
    ("cpu_ns_per_operation", "CPU time of an operation, ns"),
    ("alloc_ns[quantile=0.99]", "allocation, 99th percentile, ns"),
    ("free_ns[quantile=0.99]", "free, 99th percentile, ns"),
    ("alloc_ns", "allocation, ns"),
    ("free_ns", "free, ns"),
    ("zone_lock_acquisitions_per_page", "zone-lock acquisitions per page"),
    ("zone_lock_waits", "waits for the zone lock"),
    ("zone_lock_wait_ns", "wait for the zone lock, ns"),
    ("zone_lock_hold_ns", "hold of the zone lock, ns"),
    ("refills", "refills of per-CPU lists"),
    ("drains", "drains of per-CPU lists"),
    ("pages_moved_per_page", "pages refilled and drained per page"),
    ("huge_available_percent", "free memory in huge pages, %"),
    ("huge_available_percent[repeat=15]", "the same in the 15th run, %"),
    ("compaction_moved_per_allocated", "pages moved per page allocated"),
];

/// Whether a part is one that this can answer.
#[must_use]
pub fn is_answered(part: &Part) -> bool {
    time_of(part).is_some()
        && part.find("zone_lock_acquisitions_per_page").is_some()
        && part.variants.len() > 1
}

fn time_of(part: &Part) -> Option<&Metric> {
    let name = if part.kind == Kind::Simulated { "in_allocator_percent" } else { "cpu_ns_per_operation" };
    part.find(name)
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
    fn of(part: &'a Part, metric: &'a Metric, variant: &str, seed: u64) -> Option<Self> {
        let (base, new) = (metric.of(&part.baseline), metric.of(variant));
        if base.is_empty() || new.is_empty() {
            return None;
        }
        let ratio = Ratio::between(part, metric, variant, seed);
        let verdict = verdict(part, metric, variant, ratio);
        Some(Self { metric, base: median(base), new: median(new), ratio, verdict })
    }

    fn named(part: &'a Part, name: &str, variant: &str, seed: u64) -> Option<Self> {
        Self::of(part, part.find(name)?, variant, seed)
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

    /// One row: title, both figures, the ratio and its interval.
    fn row(&self, title: &str) -> String {
        let ratio = self.ratio.map_or_else(String::new, |Ratio { ratio, low, high }| {
            let interval = if high > low { format!(" [{low:.3}, {high:.3}]") } else { String::new() };
            if ratio >= 10.0 { format!("{ratio:.1}×") } else { format!("{ratio:.3}×{interval}") }
        });
        let [base, new] = [self.base, self.new].map(|value| significant(value, 3));
        format!("{title:<TITLE$} {base:>FIGURE$} {new:>FIGURE$}  {ratio:<21} {}", self.mark())
    }
}

/// The answer for one variant, and its most important rows.
#[must_use]
pub fn text(part: &Part, variant: &str, seed: u64, terminal: &Terminal) -> String {
    let mut out = String::new();
    let mut push = |text: &str, tone: Tone| {
        let text = if terminal.unicode { text.to_owned() } else { to_ascii(text) };
        out += &format!("{}\n", terminal.paint(text.trim_end(), tone));
    };
    let on = match part.kind {
        Kind::Simulated => format!("{}, models", part.machine),
        _ => format!("{} MiB", part.conditions.get("memory_mib").map_or("?", String::as_str)),
    };
    let samples = part.metrics.iter().map(|metric| metric.of(variant).len()).max().unwrap_or(0);
    let title = format!("{} → {variant} ({on}, {samples} samples)", part.baseline);
    wrapped(&title, Some(terminal.columns()), "  ").iter().for_each(|line| push(line, Tone::Heading));
    let judged = judged(part, variant, seed);
    let lines = [
        ("Time", time(part, variant, seed)),
        ("Locks", locks(part, variant, seed)),
        ("Huge pages", huge_pages(part, variant, seed)),
        ("To deploy", deployment(part, variant)),
        ("Busy", part.conditions.get(BUSY).cloned()),
        ("Verdict", Some(judged)),
    ];
    for (name, line) in lines {
        if let Some(line) = line {
            let tone = if name == "Verdict" { Tone::Heading } else { Tone::Plain };
            let room = terminal.columns().saturating_sub(LABEL);
            for (n, line) in wrapped(&line, Some(room), "").iter().enumerate() {
                push(&format!("{:<LABEL$}{line}", if n == 0 { name } else { "" }), tone);
            }
        }
    }
    let known =
        |(name, title): &(&str, &'static str)| Some((Change::named(part, name, variant, seed)?, *title));
    let rows: Vec<_> = TITLES.iter().filter_map(known).take(ROWS).collect();
    push("", Tone::Plain);
    push(&format!("{:TITLE$} {:>FIGURE$} {:>FIGURE$}  ratio", "", "base", "new"), Tone::Heading);
    for (change, title) in &rows {
        let tone = match change.verdict {
            Verdict::Better => Tone::Better,
            Verdict::Worse => Tone::Worse,
            _ => Tone::Plain,
        };
        push(&change.row(title), tone);
    }
    let hidden = part.metrics.len().saturating_sub(rows.len());
    push(
        &format!("{hidden} more rows, and notes: --all. + better, - worse, ~ unclear, ? too few"),
        Tone::Dim,
    );
    out
}

fn time(part: &Part, variant: &str, seed: u64) -> Option<String> {
    let change = Change::of(part, time_of(part)?, variant, seed)?;
    let figures = change.figures();
    let effect = match part.conditions.get(SHARE).and_then(|share| share.parse::<f64>().ok()) {
        Some(share) => format!(
            "{:+.2} % of the run's CPU time, of which page allocation took {share:.2} %",
            share * (change.new / change.base - 1.0)
        ),
        None => "the allocator's share of the run is not known (no samples in the trace)".to_owned(),
    };
    let words = change.in_words();
    Some(match part.kind {
        Kind::Simulated => format!("in the modelled allocator {figures} % of the time, {words}; {effect}"),
        _ => format!("an operation {figures} ns, {words}; {effect}"),
    })
}

fn locks(part: &Part, variant: &str, seed: u64) -> Option<String> {
    let taken = Change::named(part, "zone_lock_acquisitions_per_page", variant, seed)?;
    let text = format!("{} zone-lock acquisitions ({} per page)", taken.in_words(), taken.figures());
    let waits = Change::named(part, "zone_lock_waits", variant, seed)
        .map(|waits| format!(", waited {} times", waits.figures()));
    let wait = Change::named(part, "zone_lock_wait_ns", variant, seed)
        .map(|wait| format!(", each waited {} ns", wait.figures()));
    Some(text + &waits.or(wait).unwrap_or_default())
}

fn huge_pages(part: &Part, variant: &str, seed: u64) -> Option<String> {
    let had = Change::named(part, "huge_available_percent", variant, seed)?;
    let moved = Change::named(part, "compaction_moved_per_allocated", variant, seed);
    let price = moved.map_or_else(String::new, |moved| {
        let [base, new] = [moved.base, moved.new].map(|moved| significant(100.0 * moved, 2));
        format!("; price: {base} → {new} pages moved per 100 allocated")
    });
    let [base, new] = [had.base, had.new].map(|value| format!("{value:.0}"));
    Some(format!("{base} → {new} % of the free memory, in memory that the run nearly fills{price}"))
}

/// How the change could be made on a real machine.
fn deployment(part: &Part, variant: &str) -> Option<String> {
    let (base, new) = (part.settings.get(&part.baseline)?, part.settings.get(variant)?);
    let version = |preset: &str| Some(format!("v{}", preset.strip_prefix("linux_v")?.replace('_', ".")));
    if let Some(version) = new.get("preset").and_then(|preset| version(preset)) {
        return Some(format!("a kernel with the rules of Linux {version}"));
    }
    let (mut sysctls, mut others) = (Vec::new(), Vec::new());
    for (name, value) in
        new.iter().filter(|(name, value)| *name != "preset" && base.get(*name) != Some(value))
    {
        match Setting::find(name).ok().and_then(Setting::sysctl) {
            Some(sysctl) => sysctls.push(format!("{sysctl}={value}")),
            None => others.push(name.as_str()),
        }
    }
    match (&sysctls[..], &others[..]) {
        ([], []) => None,
        (_, []) => Some(format!("sysctl {}", sysctls.join(" "))),
        (_, [one]) => Some(format!("not in Linux: {one} is a setting of this allocator")),
        (_, [first, second, rest @ ..]) => {
            let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
            Some(format!("not in Linux: {first}, {second}{more} are settings of this allocator"))
        }
    }
}

/// What may be said in one sentence.
fn judged(part: &Part, variant: &str, seed: u64) -> String {
    let change = |name| Change::named(part, name, variant, seed);
    let time = time_of(part).and_then(|metric| Change::of(part, metric, variant, seed));
    let is = |wanted: Verdict| {
        let all = [
            (&time, "time"),
            (&change("zone_lock_acquisitions_per_page"), "zone-lock acquisitions"),
            (&change("huge_available_percent"), "huge pages"),
        ];
        let those =
            all.into_iter().filter(|(change, _)| change.as_ref().is_some_and(|it| it.verdict == wanted));
        those.map(|(_, what)| what).collect::<Vec<_>>().join(", ")
    };
    let mut said = Vec::new();
    for (word, what) in [("better: ", is(Verdict::Better)), ("worse: ", is(Verdict::Worse))] {
        if !what.is_empty() {
            said.push(format!("{word}{what}"));
        }
    }
    if let Some(time) = time {
        let width = time.ratio.map_or(0.0, |ratio| ratio.high - ratio.low);
        let samples = time.metric.of(variant).len();
        match time.verdict {
            Verdict::TooFew => said.push(format!("too few samples to judge time: take {FEW_PAIRS} or more")),
            Verdict::Unclear if width > WIDE => {
                // The width of an interval goes with the root of the samples.
                let needed = (samples as f64 * (width / WIDE).powi(2)).ceil().min(1000.0);
                said.push(format!("too noisy to judge time: quiet the machine, or --samples {needed}"));
            }
            Verdict::Unclear => said.push("no measurable change in time".to_owned()),
            _ => {}
        }
    }
    if said.is_empty() { "no measurable change".to_owned() } else { said.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configure::Setup;
    use crate::result::Better;
    use crate::settings::Settings;

    /// A replay of ten rounds, of which `new` takes `time` times as long and is that noisy.
    fn part(new: &str, time: f64, noise: f64) -> Part {
        let mut part = Part::new("replay", "trace", Kind::Measured, "host")
            .baseline("preset=linux_v6_16")
            .variant(new)
            .paired();
        for name in [&part.baseline.clone(), new] {
            let setup = Setup::from_settings(&Settings::from_pairs(name).expect("pairs")).expect("settings");
            part.settings.insert(name.to_owned(), setup.described());
        }
        part.condition("memory_mib", 24_000).condition("threads", 2).condition(SHARE, 0.89);
        let mut add = |name: &str, base: f64, ratio: f64, noise: f64| {
            let metric =
                part.metric(name, "1", if name.contains("percent") { Better::Higher } else { Better::Lower });
            let sample = |n: i32| f64::from((n * 7) % 10 - 5) / 10.0;
            let metric =
                metric.samples("preset=linux_v6_16", (0..10).map(|n| base * (1.0 + 0.01 * f64::from(n % 3))));
            metric.samples(new, (0..10).map(|n| base * ratio * (1.0 + 2.0 * noise * sample(n))));
        };
        add("cpu_ns_per_operation", 30.0, time, noise);
        add("zone_lock_acquisitions_per_page", 0.0012, 6.4, 0.0);
        add("zone_lock_waits", 21.0, 2.4, 0.0);
        add("huge_available_percent", 78.0, 1.2, 0.0);
        add("compaction_moved_per_allocated", 0.01, 5.8, 0.0);
        for n in 0..30 {
            add(&format!("unusable_free_index[order={n}]"), 0.2, 0.5, 0.0);
        }
        part
    }

    fn shown(part: &Part) -> String {
        text(part, &part.variants[1], 1, &Terminal { width: Some(80), ..Terminal::plain() })
    }

    #[test]
    fn five_lines_come_first_and_all_fits_a_screen() {
        let expected = "\
preset=linux_v6_16 → preset=framewright (24000 MiB, 10 samples)
Time       an operation 30.3 → 22.3 ns, -26 % [-31, -21]; -0.24 % of the run's
           CPU time, of which page allocation took 0.89 %
Locks      6.34× zone-lock acquisitions (0.00121 → 0.00768 per page), waited
           21.2 → 50.4 times
Huge pages 79 → 94 % of the free memory, in memory that the run nearly fills;
           price: 1.0 → 5.8 pages moved per 100 allocated
To deploy  not in Linux: avoid_fragmentation, bulk and 10 more are settings of
           this allocator
Verdict    better: time, huge pages; worse: zone-lock acquisitions
";
        let text = shown(&part("preset=framewright", 0.75, 0.1));
        assert!(text.starts_with(expected), "{text}");
        assert!(text.lines().count() <= 24 && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(
            text.contains("CPU time of an operation, ns             30.3      22.3  0.735× [0.690, 0.787] +"),
            "{text}"
        );
        assert!(!text.contains("unusable") && text.contains("30 more rows, and notes: --all"), "{text}");
    }

    #[test]
    fn the_verdict_and_the_way_to_deploy_follow_from_the_figures() {
        for (new, time, noise, expected) in [
            ("preset=framewright", 1.01, 0.01, "no measurable change in time"),
            ("preset=framewright", 1.0, 0.9, "too noisy to judge time: quiet the machine, or --samples "),
            (
                "preset=linux_v6_16,watermark_scale=20",
                2.5,
                0.1,
                "To deploy sysctl vm.watermark_scale_factor=20 Verdict",
            ),
            ("preset=linux_v6_7", 1.0, 0.1, "To deploy a kernel with the rules of Linux v6.7 Verdict"),
            ("preset=linux_v6_16,lock_place=own_line", 1.0, 0.1, "not in Linux: lock_place is a setting"),
        ] {
            let text = shown(&part(new, time, noise)).split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(text.contains(expected), "{new}: {text}");
        }
        let mut part = part("preset=framewright", 1.0, 0.1);
        part.conditions.remove(SHARE);
        assert!(shown(&part).contains("is not known (no samples in the trace)"), "{}", shown(&part));
    }
}
