//! Figures of README.md, between markers. A marker names the commit and the day of the figures.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::{Result, output, root, run};

/// The words of the run behind the table.
pub(crate) const BENCH: &str = "bench --rivals --samples 10";

/// Days after which figures are too old.
const OLD: i64 = 60;

/// The allocators of the table, as `bench` names them, and how the table does. The first is ours, the second the practical limit.
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

/// Puts new figures into README.md.
pub(crate) fn refresh(bench: &Path) -> Result<()> {
    let text = fs::read_to_string(bench)
        .map_err(|error| format!("{}: {error}; `cargo xtask bench` makes it", bench.display()))?;
    let document: Value =
        serde_json::from_str(&text).map_err(|error| format!("{}: {error}", bench.display()))?;
    let rows = rows(&document)?;
    let day = document["date"].as_str().and_then(|date| date.get(..10)).ok_or("the file says no date")?;
    let commit = document["commit"].as_str().unwrap_or("unknown");
    let path = root().join("README.md");
    let mut page = fs::read_to_string(&path).map_err(|error| format!("README.md: {error}"))?;
    put(&mut page, "bench", commit, day, &table(&rows)?)?;
    put(&mut page, "behind", commit, day, &behind(&rows)?)?;
    run("cargo", &["build", "--release"])?;
    let shown = output("target/release/framewright", &["study", "pcp-reset", "--part", "replay"])?;
    let begin = shown.find("pcp-reset, part replay").ok_or("`study pcp-reset` prints no part replay")?;
    let shown = shown[begin..].split("\n\n").take(2).collect::<Vec<_>>().join("\n\n");
    let (today, head) = (git(&["log", "-1", "--format=%cs"])?, git(&["rev-parse", "--short", "HEAD"])?);
    put(&mut page, "pcp-reset", &head, &today, &format!("```\n{shown}\n```"))?;
    fs::write(&path, page).map_err(|error| format!("README.md: {error}"))
}

/// Says how old the figures are.
pub(crate) fn check() -> Result<()> {
    let page = fs::read_to_string(root().join("README.md")).map_err(|error| format!("README.md: {error}"))?;
    let now = days(&git(&["log", "-1", "--format=%cs"])?).ok_or("git gives no date")?;
    let mut old = Vec::new();
    for name in ["pcp-reset", "bench", "behind"] {
        let (begin, _) = place(&page, name)?;
        let mark = page[..begin].lines().last().unwrap_or_default();
        let words: Vec<&str> = mark.split_whitespace().collect();
        let age = words.iter().find_map(|word| days(word)).map(|day| now - day);
        let age = age.ok_or(format!("README.md: the marker of {name} has no date"))?;
        println!("{name}: {age} days before HEAD, at {}", words.get(3).unwrap_or(&"?"));
        if age > OLD {
            old.push(name);
        }
    }
    if old.is_empty() {
        Ok(())
    } else {
        Err(format!("older than {OLD} days: {}; `cargo xtask bench && cargo xtask readme`", old.join(", ")))
    }
}

fn git(words: &[&str]) -> Result<String> {
    output("git", words).map(|text| text.trim().to_owned())
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
    let missing = || format!("README.md has no marker `{begin}… -->` with its `<!-- end {name} -->`");
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

/// In which rows of the whole run another allocator that coalesces, or an object allocator, is ahead, and by how much.
fn behind(rows: &[Row]) -> Result<String> {
    let (mut compared, mut found) = (0, Vec::new());
    for (name, medians) in rows {
        let own = medians.iter().find(|(variant, _)| variant == COLUMNS[0].0);
        let others = medians.iter().filter(|(variant, value)| {
            variant != COLUMNS[0].0 && !variant.starts_with("vec_") && *value > 0.0
        });
        let (Some((_, own)), Some((best, value))) = (own, others.min_by(|a, b| a.1.total_cmp(&b.1))) else {
            continue;
        };
        compared += 1;
        if own > value {
            let head =
                COLUMNS.iter().find(|(variant, _)| variant == best).map_or(best.as_str(), |(_, head)| head);
            found.push(format!("`{name}` {:.1} ({head})", own / value));
        }
    }
    if compared == 0 {
        return Err("the file compares nothing".into());
    }
    Ok(format!(
        "Behind in {} of {compared} rows of the same run, times the best: {}.",
        found.len(),
        found.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let row = |own, other| {
            ("x_ns".to_owned(), vec![("framewright".to_owned(), own), ("mimalloc".to_owned(), other)])
        };
        let text = behind(&[row(3.0, 2.0), row(1.0, 2.0)]).expect("two rows");
        assert_eq!(text, "Behind in 1 of 2 rows of the same run, times the best: `x_ns` 1.5 (mimalloc).");
    }
}
