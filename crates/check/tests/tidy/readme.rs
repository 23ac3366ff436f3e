//! The commands that the README shows.

use std::collections::BTreeSet;

use crate::repo::{File, Finding, Repo, judge};
use crate::source::word;

/// Lines of shell blocks of the README, without prompts: scripts, packages, subcommands, and files they name.
pub(crate) fn readme_commands(repo: &Repo) -> Vec<Finding> {
    const FIX: &str = "correct the README: what it says must work as it stands";
    let Some(readme) = repo.file("README.md") else {
        let what = "there is none".to_owned();
        return vec![Finding {
            path: "README.md".into(),
            line: 0,
            what,
            fix: "write it: its commands are checked",
        }];
    };
    let subcommands: BTreeSet<String> = repo.ending(".rs").flat_map(subcommands).collect();
    let packages: BTreeSet<&str> =
        repo.manifests().filter_map(|m| m.text.split("name = \"").nth(1)?.split('"').next()).collect();
    let mut findings = Vec::new();
    let mut shell = false;
    let (mut ran, mut fence) = (0, false);
    for (line, number) in readme.text.lines().zip(1..) {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            fence = !fence;
            shell = fence && matches!(language.trim(), "sh" | "bash" | "console" | "shell");
            continue;
        }
        if !shell {
            continue;
        }
        let words: Vec<&str> =
            line.trim_start_matches("$ ").split('#').next().unwrap_or_default().split_whitespace().collect();
        let after = |flag: &str| words.iter().position(|word| *word == flag).and_then(|at| words.get(at + 1));
        let mut wrong = |what| findings.push(readme.finding(number, what, FIX));
        let program = words.first().copied().unwrap_or_default();
        if program.starts_with("./") && repo.file(&program[2..]).is_none() {
            wrong(format!("there is no {program}"));
        }
        let subcommand = match program {
            "cargo" if words.get(1) == Some(&"run") => after("--"),
            "framewright" => words.get(1),
            _ => None,
        };
        if let Some(name) = subcommand.filter(|name| !name.starts_with('-')) {
            ran += 1;
            if !subcommands.contains(*name) {
                wrong(format!("framewright has no command {name}"));
            }
            let study = after("study").filter(|name| **name != "all" && !name.starts_with('-'));
            if let Some(study) = study.filter(|name| repo.file(&format!("studies/{name}.toml")).is_none()) {
                wrong(format!("there is no study {study}"));
            }
        }
        if let Some(package) = after("-p").filter(|name| program == "cargo" && !packages.contains(*name)) {
            wrong(format!("there is no package {package}"));
        }
        let ours = ["machines/", "studies/", "traces/", "crates/"];
        for path in words.iter().filter(|word| ours.iter().any(|folder| word.starts_with(folder))) {
            if repo.file(path).is_none() {
                wrong(format!("there is no {path}"));
            }
        }
    }
    if ran < 2 {
        findings.push(readme.finding(
            0,
            format!("{ran} runs of the command in its ```sh blocks"),
            "show at least two",
        ));
    }
    findings
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
fn a_readme_command_that_cannot_work_is_seen() {
    let cli = "#[derive(clap::Subcommand)]\npub enum Command {\n    /// x\n    Study(Study),\n    GrandTotal { a: u8 },\n}\n";
    let readme = "```sh\n$ ./test\ncargo run --release -- study all   # x\nframewright grand-total traces/no.parquet\n```\n\
        ```sh\ncargo run -- sudy all\nframewright study none\ncargo test -p nobody\n```\n```text\nframewright not-checked\n```\n";
    let files =
        [("README.md", readme), ("crates/lab/src/cli.rs", cli), ("crates/lab/Cargo.toml", "name = \"lab\"")];
    assert_eq!(
        judge(readme_commands, &files),
        [
            "README.md:2: there is no ./test",
            "README.md:4: there is no traces/no.parquet",
            "README.md:7: framewright has no command sudy",
            "README.md:8: there is no study none",
            "README.md:9: there is no package nobody",
        ]
    );
    assert_eq!(judge(readme_commands, &files[1..]).len(), 1);
}
