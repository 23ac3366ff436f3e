//! Figures of README.md and docs/performance.md, between markers. A marker names the commit and the day of the figures.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Result, git, read, root};

/// The words of the run behind the table.
pub(crate) const BENCH: &str = "bench --rivals --samples 10";

/// Days after which figures are too old.
const OLD: i64 = 60;

/// The allocators of the table, as `bench` names them, and how the table does. The first is ours, the second the
/// practical limit.
const COLUMNS: [(&str, &str); 7] = [
    ("framewright", "framewright"),
    ("vec_per_thread", "`vec_per_thread`"),
    ("buddy_system_allocator", "buddy_system"),
    ("frame_alloc", "frame-alloc"),
    ("frame_alloc_depot", "+ depot"),
    ("jemalloc", "jemalloc"),
    ("mimalloc", "mimalloc"),
];

/// The rows of the table.
const ROWS: [&str; 12] = [
    "hot_pair_ns[order=0,cpus=1]",
    "hot_pair_ns[order=0,cpus=2]",
    "bulk_get_ns[order=0,cpus=1]",
    "bulk_put_ns[order=0,cpus=1]",
    "random_put_ns[order=0,cpus=1]",
    "random_put_ns[order=0,cpus=2]",
    "churn_ns[order=0,cpus=1]",
    "bulk_put_ns[order=9,cpus=1]",
    "random_put_ns[order=9,cpus=1]",
    "handoff_ns[order=0,cpus=2]",
    "mixed_ns[cpus=2]",
    "ready_ms[gib=1024]",
];

/// Pages with figures, and the names of their markers.
const PAGES: [(&str, &[&str]); 2] =
    [("README.md", &["studies", "bench"]), ("docs/performance.md", &["behind"])];

/// Figures that are written by hand from what `study all` prints: only their age is checked.
const BY_HAND: &str = "studies";

/// Puts new figures into the pages.
pub(crate) fn refresh(bench: &Path) -> Result<()> {
    let text = fs::read_to_string(bench)
        .map_err(|error| format!("{}: {error}; `cargo xtask bench` makes it", bench.display()))?;
    let document: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", bench.display()))?;
    let rows = rows(&document)?;
    let day = document["date"].as_str().and_then(|date| date.get(..10)).ok_or("the file says no date")?;
    let commit = document["commit"].as_str().unwrap_or("unknown");
    let (bench, behind) = (table(&rows)?, behind(&rows)?);
    let made = |name: &str| if name == "bench" { bench.as_str() } else { behind.as_str() };
    let mut pages = Vec::new();
    for (file, names) in PAGES {
        let mut page = read(file)?;
        for name in names.iter().filter(|name| **name != BY_HAND) {
            put(&mut page, name, commit, day, made(name)).map_err(|error| format!("{file}: {error}"))?;
        }
        pages.push((file, page));
    }
    // Only when all of them have been found.
    for (file, page) in pages {
        fs::write(root().join(file), page).map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Says how old the figures are.
pub(crate) fn check() -> Result<()> {
    let now = days(&git(&["log", "-1", "--format=%cs"])?).ok_or("git gives no date")?;
    let mut old = Vec::new();
    for (file, names) in PAGES {
        let page = read(file)?;
        for name in names {
            let (begin, _) = place(&page, name).map_err(|error| format!("{file}: {error}"))?;
            let mark = page[..begin].lines().last().unwrap_or_default();
            let words: Vec<&str> = mark.split_whitespace().collect();
            let age = words.iter().find_map(|word| days(word)).map(|day| now - day);
            let age = age.ok_or(format!("{file}: the marker of {name} has no date"))?;
            println!("{name}: {age} days before HEAD, at {}", words.get(3).unwrap_or(&"?"));
            if age > OLD {
                old.push(*name);
            }
        }
    }
    if old.is_empty() {
        Ok(())
    } else {
        Err(format!("older than {OLD} days: {}; `cargo xtask bench && cargo xtask readme`", old.join(", ")))
    }
}

/// Days since 1970 of a date such as 2026-01-31: days from civil, with years that begin in March.
fn days(date: &str) -> Option<i64> {
    let mut parts = date.trim_end_matches([',', ':']).split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// Where the text between the markers of a name begins and ends.
fn place(page: &str, name: &str) -> Result<(usize, usize)> {
    let begin = format!("<!-- figures {name} ");
    let missing = || format!("no marker `{begin}… -->` with its `<!-- end {name} -->`");
    let at = page.find(&begin).ok_or_else(missing)?;
    let from = at + page[at..].find('\n').ok_or_else(missing)? + 1;
    let to = from + page[from..].find(&format!("<!-- end {name} -->")).ok_or_else(missing)?;
    Ok((from, to))
}

fn put(page: &mut String, name: &str, commit: &str, day: &str, text: &str) -> Result<()> {
    let (from, to) = place(page, name)?;
    let line = page[..from - 1].rfind('\n').map_or(0, |at| at + 1);
    page.replace_range(line..to, &format!("<!-- figures {name} {commit} {day} -->\n{}\n", text.trim_end()));
    Ok(())
}

/// A row of the run: its name, and the median of each allocator.
type Row = (String, Vec<(String, f64)>);

fn rows(document: &Value) -> Result<Vec<Row>> {
    let metrics = document["results"].as_array().into_iter().flatten();
    let metrics = metrics.flat_map(|part| part["metrics"].as_array().into_iter().flatten());
    let rows: Vec<Row> = metrics
        .filter_map(|metric| {
            let samples = metric["samples"].as_object()?.iter();
            let median = |values: &Value| {
                let mut values: Vec<f64> = values.as_array()?.iter().filter_map(Value::as_f64).collect();
                values.sort_by(f64::total_cmp);
                let middle = values.len() / 2;
                Some(if values.len() % 2 == 1 {
                    values[middle]
                } else {
                    f64::midpoint(*values.get(middle.checked_sub(1)?)?, values[middle])
                })
            };
            let medians =
                samples.filter_map(|(variant, values)| Some((variant.clone(), median(values)?))).collect();
            (metric["better"].as_str() == Some("lower"))
                .then(|| Some((metric["name"].as_str()?.to_owned(), medians)))?
        })
        .collect();
    if rows.is_empty() { Err("the file has no metrics".into()) } else { Ok(rows) }
}

fn table(rows: &[Row]) -> Result<String> {
    let heads: Vec<&str> = COLUMNS.iter().map(|(_, head)| *head).collect();
    let mut lines = vec![
        format!("| median of 10 | {} |", heads.join(" | ")),
        format!("|---|{}", "--:|".repeat(heads.len())),
    ];
    for name in ROWS {
        let (_, medians) =
            rows.iter().find(|(known, _)| known == name).ok_or(format!("the file has no {name}"))?;
        let cell = |variant: &str| {
            let value = medians.iter().find(|(known, _)| known == variant).map(|(_, value)| *value);
            value.map_or("–".to_owned(), |value| format!("{value:.*}", usize::from(value < 99.95)))
        };
        let cells: Vec<String> = COLUMNS.iter().map(|(variant, _)| cell(variant)).collect();
        lines.push(format!("| `{name}` | {} |", cells.join(" | ")));
    }
    Ok(lines.join("\n"))
}

/// Allocators that hand out objects and merge no blocks.
const OF_OBJECTS: [&str; 2] = ["jemalloc", "mimalloc"];

/// In which rows of the whole run an allocator that coalesces is ahead, and by how much; and in which others one of
/// objects is. A ring alone has no allocator in it, and a stack that never coalesces is the limit, no rival.
fn behind(rows: &[Row]) -> Result<String> {
    let (mut compared, mut found, mut besides) = (0, Vec::new(), Vec::new());
    for (name, medians) in rows.iter().filter(|(name, _)| !name.starts_with("handoff_ring")) {
        let ours = medians.iter().find(|(variant, _)| variant == COLUMNS[0].0);
        let best = |of_objects: bool| {
            let others = medians.iter().filter(|(variant, value)| {
                variant != COLUMNS[0].0
                    && !variant.starts_with("vec_")
                    && *value > 0.0
                    && OF_OBJECTS.contains(&variant.as_str()) == of_objects
            });
            others.min_by(|a, b| a.1.total_cmp(&b.1))
        };
        let (Some((_, ours)), Some(rival)) = (ours, best(false)) else { continue };
        compared += 1;
        let ahead = |(variant, value): &(String, f64)| {
            let head =
                COLUMNS.iter().find(|(known, _)| known == variant).map_or(variant.as_str(), |(_, head)| head);
            format!("`{name}` {:.1} ({head})", ours / value)
        };
        match best(true) {
            _ if *ours > rival.1 => found.push(ahead(rival)),
            Some(second) if *ours > second.1 => besides.push(ahead(second)),
            _ => {}
        }
    }
    if compared == 0 {
        return Err("the file compares nothing".into());
    }
    let list =
        |rows: &[String]| if rows.is_empty() { String::new() } else { format!(": {}", rows.join(", ")) };
    Ok(format!(
        "Behind an allocator that coalesces in {} of {compared} rows of the same run, times the best of them{}.\n\nBehind one of \
         objects in {} more{}.",
        found.len(),
        list(&found),
        besides.len(),
        list(&besides)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures in the README are from a run of the last sixty days.
    #[test]
    fn figures_are_young() {
        assert_eq!(check(), Ok(()));
    }

    #[test]
    fn days_are_counted() {
        assert_eq!(
            (days("1970-01-01"), days("2000-03-01,"), days("2026-11-22")),
            (Some(0), Some(11_017), Some(20_779))
        );
        assert_eq!((days("soon"), days("2026-11")), (None, None));
    }

    #[test]
    fn figures_are_replaced_between_their_markers() {
        let mut page = "a\n<!-- figures bench 123 2026-01-01 -->\nold\n<!-- end bench -->\nb\n".to_owned();
        put(&mut page, "bench", "456", "2026-02-02", "new\n").expect("it has markers");
        assert_eq!(page, "a\n<!-- figures bench 456 2026-02-02 -->\nnew\n<!-- end bench -->\nb\n");
        assert!(put(&mut page, "other", "", "", "").is_err());
    }

    #[test]
    fn rows_behind_are_named() {
        let row = |name: &str, medians: &[(&str, f64)]| {
            (name.to_owned(), medians.iter().map(|&(allocator, ns)| (allocator.to_owned(), ns)).collect())
        };
        let ours = |ns| ("framewright", ns);
        let rows = [
            row("a_ns", &[ours(3.0), ("frame_alloc", 2.0), ("mimalloc", 1.0), ("vec_per_thread", 0.5)]),
            row("b_ns", &[ours(1.0), ("frame_alloc", 2.0), ("mimalloc", 2.0)]),
            row("c_ns", &[ours(3.0), ("frame_alloc", 4.0), ("mimalloc", 2.0)]),
            row("handoff_ring_ns", &[ours(3.0), ("frame_alloc", 2.0)]),
        ];
        assert_eq!(
            behind(&rows).expect("three rows"),
            "Behind an allocator that coalesces in 1 of 3 rows of the same run, times the best of them: `a_ns` 1.5 (frame-alloc).\n\n\
             Behind one of objects in 1 more: `c_ns` 1.5 (mimalloc)."
        );
        assert!(behind(&rows[3..]).is_err(), "nothing is compared");
    }
}
