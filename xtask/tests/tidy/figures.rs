//! Published figures stand in `studies/` and nowhere else: code that knew one could predict it.

use crate::repo::{Finding, Repo};

/// Fewer digits than these are found anywhere by chance.
const DIGITS: usize = 4;

/// No code but tests has a number that a study gives as published.
pub(crate) fn published_figures(repo: &Repo) -> Vec<Finding> {
    let studies = repo.ending(".toml").filter(|file| file.path.starts_with("studies/"));
    let figures: Vec<f64> = studies.flat_map(|file| published(&file.text)).collect();
    let mut findings = Vec::new();
    for file in repo.ending(".rs") {
        for (line, text) in file.shipped.lines().enumerate() {
            for (number, value) in numbers(text) {
                if significant(value) >= DIGITS && figures.contains(&value) {
                    findings.push(file.finding(
                        line + 1,
                        format!("{number} is a published figure"),
                        "read it from the study's file",
                    ));
                }
            }
        }
    }
    findings
}

/// Figures of the lines that say `published` or `changed`.
fn published(study: &str) -> impl Iterator<Item = f64> {
    let lines = study.lines().filter(|line| line.starts_with("published") || line.starts_with("changed"));
    lines.flat_map(numbers).map(|(_, value)| value)
}

/// The numbers of a line, as they are written and as they are.
fn numbers(line: &str) -> impl Iterator<Item = (&str, f64)> {
    let is_number = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    line.split(move |c| !is_number(c)).filter_map(|word| {
        let plain = word.replace('_', "");
        plain
            .parse()
            .ok()
            .filter(|_| plain.starts_with(|c: char| c.is_ascii_digit()))
            .map(|value| (word, value))
    })
}

/// Digits of a number without the zeroes around them.
fn significant(value: f64) -> usize {
    let digits: String = format!("{value}").chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').len()
}

#[test]
fn a_published_figure_in_code_is_seen() {
    let study = (
        "studies/a.toml",
        "published = { mean = 13249.50, stddev = 2.0 }\nchanged = { b = { mean = 1763.3 } }\n",
    );
    let found = crate::repo::judge(
        published_figures,
        &[
            study,
            ("crates/a/src/b.rs", "// 13249.5\nconst A: f64 = 13_249.5;\nconst B: f64 = 2.0;\n"),
            (
                "crates/a/src/c.rs",
                "#[cfg(test)]\nmod tests { const A: f64 = 1763.3; }\nconst B: f64 = 1763.30;\n",
            ),
            ("crates/a/tests/d.rs", "const A: f64 = 1763.3;\n"),
        ],
    );
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("crates/a/src/b.rs:2: 13_249.5"), "{found:?}");
    assert!(found[1].starts_with("crates/a/src/c.rs:3: 1763.30"), "{found:?}");
}
