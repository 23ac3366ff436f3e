//! The page itself: every promise has a number and names a test, and every test that it names exists.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/check is two levels down").into()
}

/// Names of tests in a page: in backquotes, with the folder before them, as `crates/check/tests/all/promises/marks.rs:
/// name`.
fn named(page: &str) -> Vec<(usize, &str, &str)> {
    let spans = page
        .lines()
        .zip(1..)
        .flat_map(|(line, number)| line.split('`').skip(1).step_by(2).map(move |span| (number, span)));
    spans
        .filter_map(|(number, span)| span.split_once(": ").map(|(file, test)| (number, file, test)))
        .collect()
}

#[test]
fn every_test_that_the_page_names_exists() {
    let page = std::fs::read_to_string(root().join("docs/promises.md")).expect("the page of promises");
    let tests = named(&page);
    for (line, file, test) in &tests {
        let text = std::fs::read_to_string(root().join(file))
            .unwrap_or_else(|error| panic!("docs/promises.md:{line}: {file}: {error}; name a file of tests"));
        let is_there = text.contains(&format!("fn {test}(")) || text.contains(&format!("{test}() {{"));
        assert!(is_there, "docs/promises.md:{line}: {file} has no test {test}");
    }
    let promises = page.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
    let numbers: Vec<usize> =
        promises.map(|line| line.split('.').next().and_then(|n| n.parse().ok()).expect("a number")).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "promises are numbered one after another");
    assert!(tests.len() >= numbers.len(), "each promise names a test");
}
