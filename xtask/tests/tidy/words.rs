//! Words: the actor is named, docs name their item, and no pronoun names a value.

use crate::repo::{File, Finding, Repo, judge};
use crate::source::{is_word, occurrences, words};

/// Columns of the longest comment.
const MAX_COLUMNS: usize = 120;

/// Actors without a name. Written in halves: this file is read, too.
const NAMELESS: [[&str; 2]; 5] =
    [["who", "ever"], ["no", "body"], ["some", "body"], ["every", "body"], ["any", "body"]];

/// Beginnings of a doc that say nothing where it stands alone.
const OPENINGS: [&str; 5] = ["The same", "What", "Where", "When", "Who"];

/// Pronouns and other words that name no value.
const PRONOUNS: [&str; 8] = ["of", "it", "is", "has", "was", "one", "other", "own"];

pub(crate) fn plain_words(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &repo.files {
        if file.path.ends_with(".rs") {
            rust(file, &mut findings);
        } else if file.path.ends_with(".md") {
            nameless(file, &file.text, &mut findings);
        }
    }
    findings
}

fn rust(file: &File, findings: &mut Vec<Finding>) {
    let comments: Vec<&str> =
        file.text.lines().map(|line| if line.trim_start().starts_with("//") { line } else { "" }).collect();
    nameless(file, &comments.join("\n"), findings);
    for (line, number) in comments.iter().zip(1..) {
        let columns = line.chars().count();
        // A row of a table is one line.
        if columns > MAX_COLUMNS && !line.contains("/// |") && !line.contains("//! |") {
            let what = format!("a comment of {columns} columns, more than {MAX_COLUMNS}");
            findings.push(file.finding(number, what, "break the line"));
        }
    }
    for (number, opening) in openings(file) {
        let what = format!("the doc of a public item opens with \"{opening}\"");
        findings.push(file.finding(
            number,
            what,
            "begin with the noun: \"Like [`x`], but …\", \"State of …\"",
        ));
    }
    for (number, name) in pronouns(&file.code) {
        findings.push(file.finding(number, format!("`{name}` names a value"), "take the noun"));
    }
}

fn nameless(file: &File, text: &str, findings: &mut Vec<Finding>) {
    let text = text.to_lowercase();
    for word in NAMELESS.map(|halves| halves.concat()) {
        for line in words(&text, &word) {
            let fix = "name the actor: no CPU, another CPU, the caller, the owner CPU";
            findings.push(file.finding(line, format!("says \"{word}\""), fix));
        }
    }
}

/// Docs of public items that begin with one of the [`OPENINGS`].
fn openings(file: &File) -> Vec<(usize, &'static str)> {
    let lines: Vec<&str> = file.text.lines().map(str::trim_start).collect();
    let is_doc = |line: &str| line.starts_with("///");
    let mut found = Vec::new();
    for (n, line) in lines.iter().enumerate().filter(|(_, line)| is_doc(line)) {
        let is_first = n == 0 || !is_doc(lines[n - 1]);
        let item = lines[n..].iter().find(|line| !is_doc(line) && !line.starts_with("#["));
        if is_first && item.is_some_and(|item| item.starts_with("pub ")) {
            let text = line.trim_start_matches("/// ");
            let opening = OPENINGS
                .into_iter()
                .find(|opening| text.strip_prefix(opening).is_some_and(|rest| !rest.starts_with(is_word)));
            found.extend(opening.map(|opening| (n + 1, opening)));
        }
    }
    found
}

/// Pronouns that are identifiers of values: not methods, functions, fields or macros.
fn pronouns(code: &str) -> Vec<(usize, &'static str)> {
    let mut found = Vec::new();
    for name in PRONOUNS {
        let mut before = 0;
        for (line, rest) in occurrences(code, name) {
            let ends = !rest.starts_with(|c| is_word(c) || matches!(c, '(' | '!')) && !rest.starts_with("::");
            let text = code.lines().nth(line - 1).unwrap_or_default();
            let start = text.len() - rest.len() - name.len();
            let is_path = text[..start].ends_with(['.', ':', '\'']) || text[..start].ends_with("fn ");
            if ends && !is_path && line != before {
                found.push((line, name));
                before = line;
            }
        }
    }
    found.sort_unstable();
    found
}

#[test]
fn words_without_an_actor_or_a_noun_are_seen() {
    let source = "/// Where a block is.\npub struct A;\n/// What nobody sees.\nstruct B;\n\
        fn f(of: u8) { let x = of.has(1); x.is(); map(|one| one + B::own()); }\n\
        /// The same for many.\n#[inline]\npub fn g() {}\n// ";
    let source = format!("{source}{}\n/// Whole blocks.\npub struct C;\n", "x".repeat(MAX_COLUMNS));
    let files = [("crates/check/src/a.rs", &*source), ("crates/check/a.md", "Everybody reads this.")];
    let found = judge(plain_words, &files);
    let at = |line: u8, what: &str| format!("crates/check/src/a.rs:{line}: {what}");
    let opens = |with: &str| format!("the doc of a public item opens with \"{with}\"");
    assert_eq!(
        found,
        [
            format!("crates/check/src/a.rs:3: says \"{}\"", NAMELESS[1].concat()),
            at(9, "a comment of 123 columns, more than 120"),
            at(1, &opens("Where")),
            at(6, &opens("The same")),
            at(5, "`of` names a value"),
            at(5, "`one` names a value"),
            format!("crates/check/a.md:1: says \"{}\"", NAMELESS[3].concat()),
        ]
    );
}
