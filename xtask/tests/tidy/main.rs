//! Rules of the design that no compiler checks, read off the files themselves. Each finding names its remedy.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | Rust text without its comments, strings and tests |
//! | `repo` | the files, and what a finding is |
//! | `crates` | which crate may use which |
//! | `circles` | imports between the files of a crate |
//! | `modules` | the order of modules, atomics, unsafe |
//! | `figures` | no published figure in code |
//! | `files` | nothing dead, unfinished or overgrown |
//! | `pages` | commands and tests that pages name |
//! | `words` | plain English |
//!
//! A rule is a function from the [`Repo`] to its findings, so that every rule has a test that shows it a bad
//! sample. To run it alone: `cargo test -p xtask --test tidy`.
#![deny(unsafe_code)]

mod circles;
mod crates;
mod figures;
mod files;
mod modules;
mod pages;
mod repo;
mod source;
mod words;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::repo::{Finding, Repo};

/// Every rule.
const RULES: [fn(&Repo) -> Vec<Finding>; 16] = [
    circles::imports,
    crates::directions,
    crates::core_has_no_dependency,
    crates::manifests_inherit_lints,
    modules::module_order,
    modules::raw_atomics,
    modules::unsafe_is_denied,
    figures::published_figures,
    files::dead_files,
    files::dead_data,
    files::dead_links,
    files::file_length,
    files::stray_text,
    files::traces_are_small,
    pages::named_tests,
    words::plain_words,
];

#[test]
fn the_repository_is_tidy() {
    let repo = Repo::read(&root());
    assert!(repo.files.len() > 50, "only {} files found below {}", repo.files.len(), root().display());
    report(RULES.iter().flat_map(|rule| rule(&repo)).collect());
}

#[test]
fn what_the_pages_say_can_be_done() {
    report(pages::commands(&Repo::read(&root())));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is one level down").into()
}

#[track_caller]
fn report(findings: Vec<Finding>) {
    let lines: BTreeSet<String> = findings.iter().map(ToString::to_string).collect();
    let text: Vec<String> = lines.into_iter().collect();
    assert!(text.is_empty(), "{} findings\n{}", text.len(), text.join("\n"));
}
