//! Horizontal bars from zero, with a whisker over the range of each.

use core::fmt::Write as _;

use super::{label, title_lines};
use crate::terminal::Terminal;

/// One bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Stands at its left.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// Lower end of the whisker.
    pub low: f64,
    /// Upper end of the whisker.
    pub high: f64,
    /// Published value.
    pub published: Option<f64>,
}

/// Bars under a title, as wide as the terminal, on a scale that holds at least the range `scale` and zero. Bars of
/// values below zero grow to the left.
#[must_use]
pub fn bars(title: &str, bars: &[Bar], scale: (f64, f64), terminal: &Terminal) -> String {
    let names = bars.iter().map(|bar| bar.name.chars().count()).max().unwrap_or(0).min(28);
    let labels: Vec<String> = bars.iter().map(text).collect();
    let label_width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let width = terminal.columns().saturating_sub(names + label_width + 5).max(8);
    let most = bars
        .iter()
        .map(|bar| bar.value.max(bar.high).max(bar.published.unwrap_or(bar.value)))
        .fold(scale.1.max(0.0), f64::max);
    let least = bars
        .iter()
        .map(|bar| bar.value.min(bar.low).min(bar.published.unwrap_or(bar.value)))
        .fold(scale.0.min(0.0), f64::min);
    let column = |value: f64| {
        let share = if most > least { (value - least) / (most - least) } else { 0.0 };
        (share.clamp(0.0, 1.0) * (width - 1) as f64).round() as usize
    };
    let zero = column(0.0);

    let mut out = title_lines(title, terminal);
    for (bar, label) in bars.iter().zip(&labels) {
        let mut line = vec![' '; width];
        let end = column(bar.value);
        if bar.value != 0.0 {
            line[zero.min(end)..=zero.max(end)].fill('█');
        }
        let (low, high) = (column(bar.low), column(bar.high));
        if high > low {
            line[low..=high].fill('─');
            line[low] = '├';
            line[high] = '┤';
            if low < end && end < high {
                line[end] = '┼';
            }
        }
        if let Some(published) = bar.published {
            line[column(published)] = '◆';
        }
        let name: String = bar.name.chars().take(names).collect();
        let line: String = line.into_iter().collect();
        let _ = writeln!(out, "  {name:<names$} {line} {label:>label_width$}");
    }
    if bars.iter().any(|bar| bar.published.is_some()) {
        out += "  ◆ published\n";
    }
    terminal.spell(&out)
}

/// The value, the range if it has one, and what others printed.
fn text(bar: &Bar) -> String {
    let range = if bar.high > bar.low {
        format!("{} [{}, {}]", label(bar.value), label(bar.low), label(bar.high))
    } else {
        label(bar.value)
    };
    bar.published.map_or(range.clone(), |published| format!("{range}, published {}", label(published)))
}
