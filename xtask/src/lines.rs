//! Lines of all Rust of the repository, by crate. Each line is counted once.

use std::collections::BTreeMap;
use std::fs;

use crate::{Result, output, root};

/// Lines of code, of comments with documentation, blank lines, and lines of tests: in files below `tests/`, and
/// in modules under `#[cfg(test)]`, whatever these lines hold. Benches and examples are code of their crate.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
struct Counts([usize; 4]);

impl Counts {
    const CODE: usize = 0;
    const COMMENTS: usize = 1;
    const BLANK: usize = 2;
    const TESTS: usize = 3;

    fn add(&mut self, more: Self) {
        self.0.iter_mut().zip(more.0).for_each(|(sum, lines)| *sum += lines);
    }

    fn row(self, name: &str) -> String {
        let [code, comments, blank, tests] = self.0;
        format!(
            "{name:<10} {code:>7} {comments:>9} {blank:>7} {tests:>7} {:>8}",
            self.0.iter().sum::<usize>()
        )
    }
}

pub(crate) fn print() -> Result<()> {
    let names = output("git", &["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"])?;
    let read = |path: &str| fs::read_to_string(root().join(path)).ok().map(|text| (path.to_owned(), text));
    let files: BTreeMap<String, String> = names.lines().filter_map(read).collect();
    let counted: Vec<_> = files.iter().map(|(path, text)| (path, count(path, text))).collect();
    let test_modules: Vec<&str> =
        counted.iter().flat_map(|(_, (_, modules))| modules).map(|m| &**m).collect();
    let is_test = |path: &str| {
        let inside =
            |module: &&str| path.strip_prefix(*module).is_some_and(|rest| rest.starts_with(['.', '/']));
        path.contains("/tests/") || test_modules.iter().any(inside)
    };
    let (mut crates, mut all) = (BTreeMap::<&str, Counts>::new(), Counts::default());
    for (path, (counts, _)) in &counted {
        let mut counts = *counts;
        if is_test(path) {
            counts = Counts([0, 0, 0, counts.0.iter().sum()]);
        }
        let mut folders = path.strip_prefix("crates/").unwrap_or(path).split('/');
        crates.entry(folders.next().unwrap_or_default()).or_default().add(counts);
        all.add(counts);
    }
    println!("{:<10} {:>7} {:>9} {:>7} {:>7} {:>8}", "", "code", "comments", "blank", "tests", "sum");
    crates.iter().for_each(|(name, counts)| println!("{}", counts.row(name)));
    println!("{}", all.row("all"));
    Ok(())
}

/// Lines of a file that is not below `tests/`, and the modules under `#[cfg(test)]` that are files: their paths without
/// `.rs`.
fn count(path: &str, text: &str) -> (Counts, Vec<String>) {
    let (mut counts, mut modules) = (Counts::default(), Vec::new());
    let stem = path.trim_end_matches(".rs");
    let folder = ["/main", "/lib", "/mod"].iter().find_map(|root| stem.strip_suffix(root)).unwrap_or(stem);
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let kind = match line.trim_start() {
            "" => Counts::BLANK,
            line if line.starts_with("//") => Counts::COMMENTS,
            "#[cfg(test)]" => {
                let item = lines.peek().map_or("", |line| line.trim());
                let module = item.split_once("mod ").map_or("", |(_, module)| module);
                if let Some(name) = module.strip_suffix(';') {
                    modules.push(format!("{folder}/{name}"));
                    counts.0[Counts::TESTS] += lines.by_ref().take(1).count();
                } else if module.ends_with('{') {
                    let end = line.replace("#[cfg(test)]", "}");
                    counts.0[Counts::TESTS] += 1 + lines.by_ref().take_while(|line| *line != end).count();
                }
                if module.is_empty() { Counts::CODE } else { Counts::TESTS }
            }
            _ => Counts::CODE,
        };
        counts.0[kind] += 1;
    }
    (counts, modules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_is_counted_once() {
        let text = "//! A.\n\nfn f() {} // f\n#[cfg(test)]\nfn g() {}\n#[cfg(test)]\nmod t;\n#[cfg(test)]\nmod u {\n\n}\nx\n";
        let expected = (Counts([4, 1, 1, 6]), vec!["a/b/t".to_owned()]);
        assert_eq!(count("a/b.rs", text), expected);
        assert_eq!(count("a/b/lib.rs", text), expected);
    }
}
