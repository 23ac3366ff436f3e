//! Generations of MMTests reports, and how those of 2019 and later head their columns.

use crate::result::Part;

/// Whose tables to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::table) enum Generation {
    Of2011,
    Of2019,
    Of2024,
}

/// The header splits a run's name at its first `-`; a name without one stands next to the cells. The blank
/// keeps long names apart: the columns themselves have no gap.
pub(super) fn heads_2019(part: &Part) -> Vec<Vec<String>> {
    let split = |variant: &String| match variant.split_once('-') {
        Some((release, run)) => vec![format!(" {release}"), format!(" {run}")],
        None => vec![format!(" {variant}")],
    };
    part.variants.iter().map(split).collect()
}
