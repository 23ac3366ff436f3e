//! The commands that the README and other pages show.

use std::collections::BTreeSet;

use crate::repo::{File, Finding, Repo, judge};
use crate::source::word;

const FIX: &str = "correct the page: what it says must work as it stands";

/// Checks what commands name: scripts, packages, features, tests, subcommands, studies, files.
pub(crate) fn commands(repo: &Repo) -> Vec<Finding> {
    let subcommands: BTreeSet<String> = repo.ending(".rs").flat_map(subcommands).collect();
    let xtask = repo.file("xtask/src/main.rs").map_or("", |file| &*file.text);
    let tasks: Vec<&str> =
        xtask.split("\n        [\"").skip(1).filter_map(|arm| arm.split('"').next()).collect();
    let mut findings = Vec::new();
    let mut shown = 0;
    for page in repo.ending(".md") {
        for (line, words) in commands_of(&page.text) {
            let mut wrong = |what: String| findings.push(page.finding(line, what, FIX));
            let after = |flag: &str| words.iter().skip_while(|word| **word != flag).nth(1).copied();
            if let Some(script) = words[0].strip_prefix("./").filter(|script| repo.file(script).is_none()) {
                wrong(format!("there is no ./{script}"));
            }
            let package = after("-p").or(after("--package"));
            let names = match words[0] {
                "framewright" => words.get(1).copied(),
                "cargo" if words.get(1) == Some(&"run") && package.is_none() => after("--"),
                _ => None,
            };
            // A word: not an option, and not a figure of a table that is shown.
            if let Some(name) = names.filter(|name| name.starts_with(char::is_alphabetic)) {
                shown += usize::from(page.path == "README.md");
                if !subcommands.contains(name) {
                    wrong(format!("framewright has no command {name}"));
                }
                let named =
                    |name: &&str| *name != "all" && !name.starts_with('-') && !name.ends_with(".toml");
                let study = after("study").filter(named);
                if let Some(name) = study.filter(|name| repo.file(&format!("studies/{name}.toml")).is_none())
                {
                    wrong(format!("there is no study {name}"));
                }
            }
            if let ["cargo", "xtask", task, ..] = words[..]
                && !tasks.contains(&task)
            {
                wrong(format!("xtask has no task {task}"));
            }
            if words[0] == "cargo" {
                let says = |text: String| repo.manifests().any(|manifest| manifest.text.contains(&text));
                if let Some(name) = package.filter(|name| !says(format!("name = \"{name}\""))) {
                    wrong(format!("there is no package {name}"));
                }
                if let Some(name) = after("--features").filter(|name| !says(format!("\n{name} = ["))) {
                    wrong(format!("there is no feature {name}"));
                }
                let is_test = |name: &str| {
                    repo.ending(&format!("/tests/{name}.rs")).count() > 0
                        || repo.ending(&format!("/tests/{name}/main.rs")).count() > 0
                };
                if let Some(name) = after("--test").filter(|name| !is_test(name)) {
                    wrong(format!("there is no test {name}"));
                }
            }
            let ours = ["machines/", "studies/", "traces/", "crates/"];
            for path in words.iter().filter(|word| ours.iter().any(|folder| word.starts_with(folder))) {
                let is_crate =
                    |path: &str| repo.manifests().any(|file| file.path == format!("{path}/Cargo.toml"));
                if repo.file(path).is_none() && !is_crate(path) {
                    wrong(format!("there is no {path}"));
                }
            }
        }
    }
    if shown < 2 {
        let (what, fix) = (format!("{shown} runs of the command"), "show what it does: two at least");
        findings.push(Finding { path: "README.md".into(), line: 0, what, fix });
    }
    findings
}

/// Checks that tests which pages name in backquotes exist, as in `crates/check/tests/all/runs.rs: NAME`, and that each
/// promise has its number and a test.
pub(crate) fn named_tests(repo: &Repo) -> Vec<Finding> {
    let (mut findings, mut promises, mut named) = (Vec::new(), 0, 0);
    for page in repo.ending(".md") {
        let is_promises = page.path == "docs/promises.md";
        for (line, number) in page.text.lines().zip(1..) {
            if is_promises && line.starts_with(|c: char| c.is_ascii_digit()) {
                promises += 1;
                if !line.starts_with(&format!("{promises}. ")) || named + 1 < promises {
                    let what = format!("promise {promises} has no number, or the one before it no test");
                    findings.push(page.finding(number, what, FIX));
                }
            }
            let spans = line.split('`').skip(1).step_by(2);
            for (path, test) in spans.filter_map(|span| span.split_once(".rs: ")) {
                let is_test = |file: &File| {
                    [format!("fn {test}("), format!("{test}() {{")]
                        .iter()
                        .any(|text| file.text.contains(text))
                };
                named += usize::from(is_promises);
                if !repo.file(&format!("{path}.rs")).is_some_and(is_test) {
                    findings.push(page.finding(number, format!("{path}.rs has no test {test}"), FIX));
                }
            }
        }
    }
    findings
}

/// Commands of this project in a page, with their lines: in blocks of code that are not of another language, and
/// in the text.
fn commands_of(page: &str) -> Vec<(usize, Vec<&str>)> {
    let (mut commands, mut is_block, mut is_shell) = (Vec::new(), false, false);
    for (line, number) in page.lines().zip(1..) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            is_block = !is_block;
            is_shell = matches!(language.trim(), "" | "sh" | "bash" | "console" | "shell");
            continue;
        }
        let (skip, step) = if is_block { (0, usize::MAX) } else { (1, 2) };
        let pieces: Vec<&str> = if is_block { vec![line] } else { line.split('`').collect() };
        for piece in pieces.into_iter().skip(skip).step_by(step).filter(|_| !is_block || is_shell) {
            let piece = piece.split(" #").next().unwrap_or_default().trim().trim_start_matches("$ ");
            let piece = piece.trim_start_matches("sudo ");
            let words: Vec<&str> = match piece.strip_prefix("$(which framewright)") {
                Some(rest) => ["framewright"].into_iter().chain(rest.split_whitespace()).collect(),
                None => piece.split_whitespace().collect(),
            };
            if words
                .first()
                .is_some_and(|first| matches!(*first, "cargo" | "framewright") || first.starts_with("./"))
            {
                commands.push((number, words));
            }
        }
    }
    commands
}

/// Variants of the enum that clap makes subcommands of, as a user writes them.
fn subcommands(file: &File) -> Vec<String> {
    let Some((_, rest)) = file.code.split_once("Subcommand)]") else { return Vec::new() };
    let body = rest.split_once('{').map_or("", |(_, body)| body);
    let body = &body[..body.find("\n}").unwrap_or(body.len())];
    let variants = body.lines().filter_map(|line| line.strip_prefix("    ").map(word));
    let kebab = |name: &str| {
        let mut kebab = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !kebab.is_empty() {
                kebab.push('-');
            }
            kebab.extend(c.to_lowercase());
        }
        kebab
    };
    variants.filter(|name| name.starts_with(char::is_uppercase)).map(kebab).collect()
}

#[test]
fn a_command_that_cannot_work_is_seen() {
    let cli = "#[derive(clap::Subcommand)]\npub enum Command {\n    /// x\n    Study(Study),\n    GrandTotal { a: u8 },\n}\n";
    let readme = "Run `framewright grand-total`, not `framewright grand`:\n```\n$ ./test\ncargo run --release -- study all   # x\n\
        sudo framewright grand-total traces/no.parquet\nframewright 5.1\nsudo $(which framewright) grund\n```\n\
        ```sh\ncargo run -- sudy all\nframewright study none\ncargo test -p nobody --features none --test none\n\
        cargo run -p lab -- anything\ncargo xtask there\ncargo xtask gone\n```\n```rust\nframewright not-checked\n```\n";
    let lab = ("crates/lab/Cargo.toml", "name = \"lab\"\n");
    let xtask = ("xtask/src/main.rs", "match words {\n        [\"there\"] => there(),\n");
    let files = [("README.md", readme), ("crates/lab/src/cli.rs", cli), lab, xtask];
    assert_eq!(
        judge(commands, &files),
        [
            "README.md:1: framewright has no command grand",
            "README.md:3: there is no ./test",
            "README.md:5: there is no traces/no.parquet",
            "README.md:7: framewright has no command grund",
            "README.md:10: framewright has no command sudy",
            "README.md:11: there is no study none",
            "README.md:12: there is no package nobody",
            "README.md:12: there is no feature none",
            "README.md:12: there is no test none",
            "README.md:15: xtask has no task gone",
        ]
    );
    assert_eq!(judge(commands, &files[1..]), ["README.md:0: 0 runs of the command"]);
}

#[test]
fn a_test_that_is_not_there_is_seen() {
    let page = "1. One.\n   `a/b.rs: there` `a/b.rs: gone`\n2. Two.\n3. Three: `c.rs: there`\n5. Five.\n";
    let files =
        [("docs/promises.md", page), ("a/b.rs", "fn there() {}"), ("x.md", "`a/b.rs: gone` `a/b.rs`")];
    assert_eq!(
        judge(named_tests, &files),
        [
            "docs/promises.md:2: a/b.rs has no test gone",
            "docs/promises.md:4: c.rs has no test there",
            "docs/promises.md:5: promise 4 has no number, or the one before it no test",
            "x.md:1: a/b.rs has no test gone",
        ]
    );
}
