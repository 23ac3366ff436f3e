//! How samples are distributed: a line for each range of values.

use core::fmt::Write as _;
use core::iter;

use super::{label, title_lines};
use crate::stats::{max, min};
use crate::terminal::Terminal;

/// A histogram under a title, as wide as the terminal. As many ranges as Sturges' rule gives,
/// ⌈log₂ n⌉ + 1 (Journal of the American Statistical Association 21, 1926).
#[must_use]
pub fn histogram(title: &str, samples: &[f64], terminal: &Terminal) -> String {
    let (low, high) = (min(samples), max(samples));
    if high <= low || samples.is_empty() {
        return title_lines(title, terminal) + &format!("  {} samples, all {}\n", samples.len(), label(low));
    }
    let ranges = (samples.len() as f64).log2().ceil() as usize + 1;
    let step = (high - low) / ranges as f64;
    let mut counts = vec![0_usize; ranges];
    for sample in samples {
        counts[(((sample - low) / step) as usize).min(ranges - 1)] += 1;
    }
    let edge = |index: usize| label(low + step * index as f64);
    let edges = (0..=ranges).map(|index| edge(index).chars().count()).max().unwrap_or(0);
    let most = counts.iter().copied().max().unwrap_or(1);
    let digits = most.to_string().len();
    let width = terminal.columns().saturating_sub(2 * edges + digits + 8).max(8);

    let mut out = title_lines(&format!("{title}, n = {}", samples.len()), terminal);
    for (index, &count) in counts.iter().enumerate() {
        // Every range that has a sample shows at least one mark.
        let length = (count * width).div_ceil(most);
        let bar: String = iter::repeat_n('█', length).collect();
        let _ =
            writeln!(out, "  {:>edges$} - {:>edges$} {count:>digits$} {bar}", edge(index), edge(index + 1));
    }
    terminal.spell(&out)
}
