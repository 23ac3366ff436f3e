//! The blocks below an MMTests table: how long the whole test ran, and what reclaim did meanwhile.

use super::generation::{Generation, heads_2019};
use crate::result::Part;
use crate::stats::amean;
use crate::table::number::plain;
use crate::table::{Block, Cell, Row, Side};
use crate::terminal::Tone;

/// Metric: user CPU time of the whole test, in seconds.
pub const DURATION_USER: &str = "duration_user_seconds";
/// Metric: system CPU time of the whole test, in seconds.
pub const DURATION_SYSTEM: &str = "duration_system_seconds";
/// Metric: wall-clock time of the whole test, in seconds.
pub const DURATION_ELAPSED: &str = "duration_elapsed_seconds";

/// Metrics of the reclaim block and their rows. Each is the counter after the test minus before; efficiency,
/// velocity and the share of direct scans follow from them.
pub const COUNTERS: [(&str, &str); 12] = [
    ("page_ins_kib", "Page Ins"),
    ("page_outs_kib", "Page Outs"),
    ("swap_ins_pages", "Swap Ins"),
    ("swap_outs_pages", "Swap Outs"),
    (DIRECT_SCANNED, "Direct pages scanned"),
    (KSWAPD_SCANNED, "Kswapd pages scanned"),
    (KSWAPD_RECLAIMED, "Kswapd pages reclaimed"),
    (DIRECT_RECLAIMED, "Direct pages reclaimed"),
    ("page_writes_by_reclaim", "Page writes by reclaim"),
    ("slabs_scanned", "Slabs scanned"),
    ("direct_inode_steals", "Direct inode steals"),
    ("kswapd_inode_steals", "Kswapd inode steals"),
];

const DIRECT_SCANNED: &str = "direct_pages_scanned";
const KSWAPD_SCANNED: &str = "kswapd_pages_scanned";
const DIRECT_RECLAIMED: &str = "direct_pages_reclaimed";
const KSWAPD_RECLAIMED: &str = "kswapd_pages_reclaimed";

/// Whether a metric belongs to these blocks rather than into the table above them.
pub(super) fn is_reserved(metric: &str) -> bool {
    [DURATION_USER, DURATION_SYSTEM, DURATION_ELAPSED].contains(&metric)
        || COUNTERS.iter().any(|(name, _)| *name == metric)
}

/// Durations of the whole test; `None` if the part has none.
pub(super) fn durations(part: &Part, generation: Generation) -> Option<Block> {
    let seconds = |variant: &str, metrics: &[&str]| -> f64 {
        metrics.iter().map(|metric| mean_of(part, metric, variant)).sum()
    };
    let rows: &[(&str, &[&str])] = match generation {
        Generation::Of2011 => &[
            ("User/Sys Time Running Test (seconds)", &[DURATION_USER, DURATION_SYSTEM]),
            ("Total Elapsed Time (seconds)", &[DURATION_ELAPSED]),
        ],
        _ => &[
            ("Duration User", &[DURATION_USER]),
            ("Duration System", &[DURATION_SYSTEM]),
            ("Duration Elapsed", &[DURATION_ELAPSED]),
        ],
    };
    let rows: Vec<Row> = rows
        .iter()
        .filter_map(|(label, metrics)| {
            row(part, label, metrics[0], "s", generation, |variant| {
                let value = seconds(variant, metrics);
                (value, format!("{value:.2}"))
            })
        })
        .collect();
    finished(part, "MMTests Statistics: duration", rows, generation)
}

/// The reclaim block ("vmstat"); `None` if the part has none of its counters.
pub(super) fn counters(part: &Part, generation: Generation) -> Option<Block> {
    let mut rows = Vec::new();
    for (metric, label) in COUNTERS {
        rows.extend(row(part, label, metric, "1", generation, |variant| {
            let value = mean_of(part, metric, variant);
            (value, format!("{value:.0}"))
        }));
        if metric == DIRECT_RECLAIMED {
            rows.extend(derived(part, generation));
        }
    }
    finished(part, "MMTests Statistics: vmstat", rows, generation)
}

/// What follows from the counters.
fn derived(part: &Part, generation: Generation) -> Vec<Row> {
    let mean = |metric: &str, variant: &str| mean_of(part, metric, variant);
    // 2011 computed with whole numbers.
    let share = |value: f64| match generation {
        Generation::Of2011 => (value, format!("{:.0}%", value.trunc())),
        _ => (value, format!("{value:.2}%")),
    };
    let mut rows = Vec::new();
    for (who, scanned, reclaimed) in
        [("Kswapd", KSWAPD_SCANNED, KSWAPD_RECLAIMED), ("Direct", DIRECT_SCANNED, DIRECT_RECLAIMED)]
    {
        rows.extend(row(part, &format!("{who} efficiency"), scanned, "%", generation, |variant| {
            share(efficiency(mean(reclaimed, variant), mean(scanned, variant)))
        }));
        rows.extend(row(part, &format!("{who} velocity"), scanned, "pages/s", generation, |variant| {
            let value = mean(scanned, variant) / mean(DURATION_ELAPSED, variant);
            (value, format!("{value:.3}"))
        }));
    }
    rows.extend(row(part, "Percentage direct scans", DIRECT_SCANNED, "%", generation, |variant| {
        share(direct_share(mean(DIRECT_SCANNED, variant), mean(KSWAPD_SCANNED, variant)))
    }));
    rows
}

/// 100 · reclaimed / scanned; 100 if nothing was scanned.
fn efficiency(reclaimed: f64, scanned: f64) -> f64 {
    if scanned == 0.0 { 100.0 } else { 100.0 * reclaimed / scanned }
}

/// 100 · direct / (direct + kswapd); 0 if neither scanned.
fn direct_share(direct: f64, kswapd: f64) -> f64 {
    if direct + kswapd == 0.0 { 0.0 } else { 100.0 * direct / (direct + kswapd) }
}

/// Mean over the runs; NaN if there is no such metric.
fn mean_of(part: &Part, metric: &str, variant: &str) -> f64 {
    part.find(metric).map_or(f64::NAN, |metric| amean(metric.of(variant)))
}

/// A row of the value and text that `figure` gives for each variant; `None` if the metric it is drawn from is
/// missing, or no variant has a figure.
fn row(
    part: &Part,
    label: &str,
    metric: &str,
    unit: &str,
    generation: Generation,
    figure: impl Fn(&str) -> (f64, String),
) -> Option<Row> {
    part.find(metric)?;
    let figures: Vec<(f64, String)> = part.variants.iter().map(|variant| figure(variant)).collect();
    if figures.iter().all(|(value, _)| value.is_nan()) {
        return None;
    }
    let (stub_width, width) = if generation == Generation::Of2011 { (40, 10) } else { (26, 12) };
    let mut figures = figures.into_iter();
    Some(Row::new(part, format!("{label:<stub_width$}"), |variant| {
        let (value, text) = figures.next().expect("one for each variant");
        let fields = vec![("value", plain(value))];
        Cell::with(format!("{text:>width$}"), Tone::Plain, [label, metric, unit, variant], fields)
    }))
}

fn finished(part: &Part, caption: &str, rows: Vec<Row>, generation: Generation) -> Option<Block> {
    let heads = match generation {
        Generation::Of2011 => part.variants.iter().map(|variant| vec![format!(" {variant}")]).collect(),
        _ => heads_2019(part),
    };
    let caption = (generation == Generation::Of2011).then(|| caption.to_owned());
    (!rows.is_empty()).then_some(Block { caption, stubs: Side::Left, gap: 0, heads, rows })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_scanned_is_full_efficiency_and_no_share() {
        assert_eq!(efficiency(0.0, 0.0), 100.0);
        assert_eq!(efficiency(13_037_777.0, 13_091_697.0).trunc(), 99.0);
        assert_eq!(direct_share(0.0, 0.0), 0.0);
        assert_eq!(direct_share(3.0, 1.0), 75.0);
    }
}
