//! What no compiler checks and the design promises, read off the files themselves. Each finding says how to
//! mend it.
//!
//! | module | what it holds |
//! |---|---|
//! | `source` | Rust text without its comments, strings and tests |
//! | `repo` | the files, and what a finding is |
//! | `crates` | which crate may use which, what may be linked |
//! | `circles` | imports between the files of a crate |
//! | `modules` | the order of modules, atomics, unsafe |
//! | `figures` | no published figure in code |
//! | `files` | nothing dead, unfinished or overgrown |
//! | `pages` | commands that pages show |
//!
//! A rule is a function from the [`Repo`] to its findings, so that every rule has a test that shows it a bad
//! sample. To run it alone: `cargo test -p framewright-check --test tidy`.
#![deny(unsafe_code)]

mod circles;
mod crates;
mod figures;
mod files;
mod modules;
mod pages;
mod repo;
mod source;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repo::{Finding, Repo};

/// Every rule.
const RULES: [fn(&Repo) -> Vec<Finding>; 16] = [
    circles::imports,
    crates::directions,
    crates::core_has_no_dependency,
    crates::manifests_inherit_lints,
    crates::licences_agree,
    modules::module_order,
    modules::raw_atomics,
    modules::unsafe_modules,
    figures::published_figures,
    files::dead_files,
    files::dead_data,
    files::dead_links,
    files::file_length,
    files::full_folders,
    files::stray_text,
    files::traces_are_small,
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

#[test]
fn what_is_linked_may_be_linked() {
    let mut tree = Command::new(env!("CARGO"));
    tree.current_dir(root()).args(["tree", "--workspace", "--all-features", "--prefix", "none"]);
    let output = tree.args(["--format", "{p}|{l}|"]).output().expect("cargo runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let list = String::from_utf8(output.stdout).expect("cargo prints text");
    assert!(list.lines().any(|line| line.starts_with("parquet ")), "cargo tree lists too little:\n{list}");
    report(crates::linked(&list));
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/check is two levels down").into()
}

#[track_caller]
fn report(findings: Vec<Finding>) {
    let lines: BTreeSet<String> = findings.iter().map(ToString::to_string).collect();
    let text: Vec<String> = lines.into_iter().collect();
    assert!(text.is_empty(), "{} findings\n{}", text.len(), text.join("\n"));
}
