//! What came of a run: the score, what survived and why that is accepted, and the page that keeps both.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::judge::Fate;
use crate::tree::{Tree, put};
use crate::{Listed, Result};

/// The share of mutants that tests must notice, in percent.
const ENOUGH: f64 = 95.0;
const ACCEPTED: &str = "xtask/mutants/survivors.toml";
/// How the reason of a mutant begins that is the same program as the source.
const EQUIVALENT: &str = "equivalent:";
const PAGE: &str = "docs/mutants.md";

/// The file of mutants that no test notices, each with a reason.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Accepted {
    #[serde(default)]
    mutant: Vec<Reason>,
}

/// Named by what it changes and the text of the line, so that it is found again when the file has grown.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    file: String,
    /// As `cargo mutants --list` says it, without the place.
    change: String,
    /// The source line without the spaces around it.
    line: String,
    /// Where a line has the same change more than once.
    column: Option<usize>,
    why: String,
}

/// The part of a mutant's name behind the place.
pub(crate) fn change(name: &str) -> &str {
    name.splitn(4, ':').nth(3).unwrap_or(name).trim_start()
}

/// A group of files: what has a line of its own on the page.
fn module(file: &str) -> String {
    let short = file.trim_start_matches("crates/").replace("/src/", " ");
    let short = short.trim_end_matches(".rs");
    short.split('/').next().unwrap_or(short).to_owned()
}

impl Accepted {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let path = root.join(ACCEPTED);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Whether a mutant is in it.
    pub(crate) fn has(&self, tree: &Tree, mutant: &Listed) -> bool {
        self.of(mutant, line_of(tree, mutant)).is_some()
    }

    fn of(&self, mutant: &Listed, line: &str) -> Option<&Reason> {
        self.mutant.iter().find(|reason| reason.names(mutant, line))
    }

    /// Those that name no mutant.
    fn stale(&self, tree: &Tree, listed: &[Listed]) -> impl Iterator<Item = &Reason> {
        let is_there =
            |reason: &Reason| listed.iter().any(|mutant| reason.names(mutant, line_of(tree, mutant)));
        self.mutant.iter().filter(move |reason| !is_there(reason))
    }
}

impl Reason {
    fn names(&self, mutant: &Listed, line: &str) -> bool {
        let at = self.column.is_none_or(|column| column == mutant.span.start.column);
        at && self.file == mutant.file && self.change == change(&mutant.name) && self.line == line
    }
}

/// What a run has found.
pub(crate) struct Report<'a> {
    pub(crate) root: &'a Path,
    /// Of which commit the sources were when it began.
    pub(crate) commit: &'a str,
    /// The sources that were run, whatever has become of them since.
    pub(crate) tree: &'a Tree,
    pub(crate) listed: &'a [Listed],
    pub(crate) fates: &'a BTreeMap<u32, Fate>,
    /// How many of those caught were so in an earlier run.
    pub(crate) taken_over: usize,
    pub(crate) unviable: usize,
    pub(crate) left_out: usize,
    pub(crate) tests: usize,
    /// The options of the run.
    pub(crate) words: &'a str,
}

fn line_of<'t>(tree: &'t Tree, mutant: &Listed) -> &'t str {
    tree.text(&mutant.file).lines().nth(mutant.span.start.line - 1).unwrap_or_default().trim()
}

/// What a program says.
fn say(root: &Path, program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).current_dir(root).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

/// The commit of the sources, and whether they have changed since.
pub(crate) fn commit(root: &Path) -> String {
    let commit = say(root, "git", &["rev-parse", "--short", "HEAD"]);
    let changed = say(root, "git", &["status", "--porcelain", "--", "crates"]);
    if changed.is_empty() { commit } else { format!("{commit} with changes") }
}

impl Report<'_> {
    fn caught(&self) -> usize {
        self.fates.values().filter(|fate| fate.is_caught()).count()
    }

    fn percent(&self) -> f64 {
        100.0 * self.caught() as f64 / self.fates.len().max(1) as f64
    }

    /// With and without the survivors that are no other program, as their reasons say.
    fn score(&self, accepted: &Accepted) -> String {
        let (caught, all) = (self.caught(), self.fates.len());
        let is_equivalent = |&(&id, fate): &(&u32, &Fate)| {
            let mutant = &self.listed[id as usize];
            let reason = accepted.of(mutant, line_of(self.tree, mutant));
            !fate.is_caught() && reason.is_some_and(|reason| reason.why.starts_with(EQUIVALENT))
        };
        let others = all - self.fates.iter().filter(is_equivalent).count();
        let of_others = 100.0 * caught as f64 / others.max(1) as f64;
        format!(
            "{caught} of {all} caught ({:.1} %; {of_others:.1} % without {} that are the same program)",
            self.percent(),
            all - others
        )
    }

    /// Prints what survived, and the score. Fails if a survivor has no reason, or too many survived.
    pub(crate) fn print(&self, accepted: &Accepted) -> Result<()> {
        let (mut unlisted, mut outdated) = (0, 0);
        for (&id, fate) in self.fates {
            let mutant = &self.listed[id as usize];
            let line = line_of(self.tree, mutant);
            match (fate.is_caught(), accepted.of(mutant, line)) {
                (false, None) => {
                    unlisted += 1;
                    let word = if matches!(fate, Fate::Unreached) { "unreached" } else { "survived" };
                    println!("{word}: {}\n    {line}", mutant.name);
                }
                (true, Some(_)) => {
                    outdated += 1;
                    println!("caught, but listed: {}", mutant.name);
                }
                _ => {}
            }
        }
        for Reason { file, change, line, .. } in accepted.stale(self.tree, self.listed) {
            outdated += 1;
            println!("listed, and there is no such mutant: {file}: {change}\n    {line}");
        }
        let endless = self.fates.values().filter(|fate| matches!(fate, Fate::Endless { .. })).count();
        let unreached = self.fates.values().filter(|fate| matches!(fate, Fate::Unreached)).count();
        println!("{endless} of those caught made a test endless; {unreached} are reached by no test");
        println!("score: {}", self.score(accepted));
        if unlisted > 0 || outdated > 0 {
            return Err(format!(
                "{ACCEPTED}: {unlisted} survivors are missing, {outdated} of its mutants are caught, or there are none such"
            ));
        }
        if self.percent() < ENOUGH {
            return Err(format!("less than {ENOUGH} % are caught"));
        }
        Ok(())
    }

    /// Writes the page.
    pub(crate) fn record(&self, accepted: &Accepted) -> Result<()> {
        put(&self.root.join(PAGE), &self.page(accepted))
    }

    fn page(&self, accepted: &Accepted) -> String {
        let mut out = String::from(HEAD);
        let (date, commit) = (say(self.root, "date", &["+%Y-%m-%d"]), self.commit);
        let _ = writeln!(
            out,
            "{date}, `cargo xtask mutants{}` on {commit}: **{}**, by {} tests. {} more do not compile; {} are evaluated by \
             the compiler or return an `impl Trait`, and are left out.",
            self.words,
            self.score(accepted),
            self.tests,
            self.unviable,
            self.left_out
        );
        if self.taken_over > 0 {
            let _ = writeln!(
                out,
                "{} of those caught were so in an earlier run, in functions that are still the same, and were not run again.",
                self.taken_over
            );
        }
        out.push('\n');
        let mut modules: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for (&id, fate) in self.fates {
            let counts = modules.entry(module(&self.listed[id as usize].file)).or_default();
            counts.0 += 1;
            counts.1 += usize::from(fate.is_caught());
        }
        out.push_str("| module | mutants | caught | % |\n|---|---:|---:|---:|\n");
        for (name, (all, caught)) in modules {
            let percent = 100.0 * caught as f64 / all as f64;
            let _ = writeln!(out, "| {name} | {all} | {caught} | {percent:.1} |");
        }
        let _ = writeln!(out, "\n## What survives, and why\n");
        let mut by_file: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (&id, _) in self.fates.iter().filter(|(_, fate)| !fate.is_caught()) {
            let mutant = &self.listed[id as usize];
            let line = line_of(self.tree, mutant);
            let why = accepted.of(mutant, line).map_or("no reason yet", |reason| &reason.why);
            let text = format!("- {}, line {}: {why}", change(&mutant.name), mutant.span.start.line);
            by_file.entry(&mutant.file).or_default().push(text);
        }
        for (file, lines) in by_file {
            let _ = writeln!(out, "`{file}`\n\n{}\n", lines.join("\n"));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }
}

const HEAD: &str = "\
# Mutation score

A mutant is a small change of the source: another operator, a condition turned round, a function that returns a constant.
`cargo-mutants` says which there are for `core` and for the page cache's policy. `cargo xtask mutants` runs each under the tests
that reach it, and a mutant that makes none of them fail shows what no test asks for. Written by `cargo xtask mutants --record`.

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let name = "crates/core/src/buddy/maps.rs:12:34: replace < with <= in <impl Drop for X<'_, P>>::drop";
        assert_eq!(change(name), "replace < with <= in <impl Drop for X<'_, P>>::drop");
        assert_eq!(module("crates/core/src/buddy/maps.rs"), "core buddy");
        assert_eq!(module("crates/core/src/buddy.rs"), "core buddy");
        assert_eq!(module("crates/pagecache/src/policy.rs"), "pagecache policy");
    }

    #[test]
    fn the_accepted_survivors_can_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the repository");
        let accepted = Accepted::read(root).expect("it is TOML");
        for reason in &accepted.mutant {
            assert!(reason.why.len() > 10, "{reason:?}");
            let text = fs::read_to_string(root.join(&reason.file)).unwrap_or_default();
            let found = text.lines().any(|line| line.trim() == reason.line);
            assert!(found, "{} no longer has this line; take the entry out: {}", reason.file, reason.line);
        }
    }
}
