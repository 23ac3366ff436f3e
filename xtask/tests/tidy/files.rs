//! Files of the repository: nothing dead, nothing unfinished, nothing overgrown.

use std::collections::BTreeSet;

use crate::repo::{File, Finding, Repo, folder, join, judge};
use crate::source::{is_word, occurrences, word, words};

/// Longest Rust file, in lines: one that is longer holds more than one module.
const MAX_LINES: usize = 700;

/// Largest shipped trace, in bytes.
const MAX_TRACE: u64 = 4_500_000;

pub(crate) fn dead_files(repo: &Repo) -> Vec<Finding> {
    let mut open: Vec<String> = Vec::new();
    for manifest in repo.manifests() {
        let home = folder(&manifest.path);
        open.extend(["src/lib.rs", "src/main.rs", "build.rs"].map(|root| join(home, root)));
        // Targets that cargo finds, and those that the manifest names.
        for place in ["src/bin", "tests", "benches", "examples"] {
            let place = join(home, place);
            let inner = |file: &&File| match file.path.strip_prefix(&*place).map(|path| path.split('/')) {
                Some(parts) => {
                    parts.clone().count() == 2 || (parts.count() == 3 && file.path.ends_with("/main.rs"))
                }
                None => false,
            };
            open.extend(repo.ending(".rs").filter(inner).map(|file| file.path.clone()));
        }
        let named = manifest.text.split('"').filter(|value| value.ends_with(".rs"));
        open.extend(named.map(|value| join(home, value)));
    }
    let mut is_root: BTreeSet<String> = open.iter().cloned().collect();
    let mut alive = BTreeSet::new();
    while let Some(path) = open.pop() {
        let Some(file) = repo.file(&path).filter(|_| alive.insert(path.clone())) else { continue };
        let home = folder(&path);
        let children = match path.strip_suffix(".rs") {
            Some(stem) if !is_root.contains(&path) && !path.ends_with("/mod.rs") => stem,
            _ => home,
        };
        for (_, rest) in occurrences(&file.code, "mod ") {
            let name = word(rest);
            if rest[name.len()..].trim_start().starts_with(';') {
                open.extend([format!("{children}/{name}.rs"), format!("{children}/{name}/mod.rs")]);
            }
        }
        for (_, rest) in occurrences(&file.text, "path = \"").chain(occurrences(&file.text, "include!(\"")) {
            let named = join(home, rest.split('"').next().unwrap_or_default());
            is_root.insert(named.clone());
            open.push(named);
        }
    }
    let dead = repo.ending(".rs").filter(|file| !alive.contains(&file.path));
    let fix = "declare it with `mod`, or delete it";
    dead.map(|file| file.finding(0, "no crate reaches this file", fix)).collect()
}

/// Machines and studies that nothing names: `framewright machines` would show them, and no page would say why.
pub(crate) fn dead_data(repo: &Repo) -> Vec<Finding> {
    let data = repo.ending(".toml").filter(|file| matches!(folder(&file.path), "machines" | "studies"));
    let is_named = |data: &&File| {
        let name =
            data.path.rsplit('/').next().and_then(|name| name.strip_suffix(".toml")).unwrap_or_default();
        let is_name = |rest: &str| !rest.starts_with(|c| is_word(c) || c == '-');
        let mut others = repo.files.iter().filter(|file| file.path != data.path);
        others.any(|file| occurrences(&file.text, name).any(|(_, rest)| is_name(rest)))
    };
    let fix = "name it in a study, a test or the README, or delete it";
    data.filter(|data| !is_named(data)).map(|data| data.finding(0, "nothing names this file", fix)).collect()
}

/// Links, and paths in the text that begin with one of our folders.
pub(crate) fn dead_links(repo: &Repo) -> Vec<Finding> {
    let folders: BTreeSet<&str> =
        repo.files.iter().filter_map(|file| file.path.split_once('/')).map(|(top, _)| top).collect();
    let exists = |path: &str| {
        repo.file(path).is_some() || repo.files.iter().any(|file| file.path.starts_with(&format!("{path}/")))
    };
    let mut findings = Vec::new();
    for page in repo.ending(".md") {
        for (line, number) in page.text.lines().zip(1..) {
            let links =
                line.split("](").skip(1).map(|link| link.split([')', '#', ' ']).next().unwrap_or_default());
            let links = links.filter(|link| !link.is_empty() && !link.contains(':'));
            let links = links.map(|link| join(folder(&page.path), link));
            let named = line.split('`').skip(1).step_by(2).filter(|text| {
                let is_path = text.split_once('/').is_some_and(|(top, _)| folders.contains(top));
                is_path && !text.contains(['*', ' ', '{', '…']) && !text.contains(char::is_uppercase)
            });
            for path in links.chain(named.map(|path| join("", path))).filter(|path| !exists(path)) {
                let fix = "correct it: links are relative to the page, names of files to the root";
                findings.push(page.finding(number, format!("there is no {path}"), fix));
            }
        }
    }
    findings
}

pub(crate) fn file_length(repo: &Repo) -> Vec<Finding> {
    let lengths = repo.ending(".rs").map(|file| (file, file.text.lines().count()));
    let long = lengths.filter(|&(_, lines)| lines > MAX_LINES);
    let fix = "split off a module, or move its tests into a file beside it";
    long.map(|(file, lines)| file.finding(0, format!("{lines} lines, more than {MAX_LINES}"), fix)).collect()
}

/// Markers of unfinished work, and of places that no clone has. Written in halves: this file is read, too.
pub(crate) fn stray_text(repo: &Repo) -> Vec<Finding> {
    let unfinished = "finish it, or file an issue and say in the comment what holds today";
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["HA", "CK"]].map(|halves| halves.concat());
    let calls = [["to", "do!"], ["unimpl", "emented!"], ["db", "g!"]].map(|halves| halves.concat());
    let places = [["../", "shared"], ["/wo", "rk/"], ["shar", "ed/"]].map(|halves| halves.concat());
    let mut findings = Vec::new();
    for file in &repo.files {
        for mark in &marks {
            findings.extend(words(&file.text, mark).map(|line| file.finding(line, mark, unfinished)));
        }
        for call in &calls {
            findings
                .extend(occurrences(&file.code, call).map(|(line, _)| file.finding(line, call, unfinished)));
        }
        for place in &places {
            for (line, _) in occurrences(&file.text, place) {
                let fix = "a fresh clone has no such place: say it here in your own words";
                findings.push(file.finding(line, format!("names {place}"), fix));
            }
        }
    }
    findings
}

pub(crate) fn traces_are_small(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for trace in repo.ending(".parquet") {
        if trace.bytes > MAX_TRACE {
            let what = format!("{} bytes, more than {MAX_TRACE}", trace.bytes);
            findings.push(trace.finding(
                0,
                what,
                "record a shorter run, or drop events that nothing replays",
            ));
        }
        let name = trace.path.rsplit('/').next().unwrap_or_default();
        let stem = name.trim_end_matches(".parquet");
        let notes =
            ["README.md".to_owned(), format!("{stem}.md")].map(|note| join(folder(&trace.path), &note));
        if !notes.iter().filter_map(|note| repo.file(note)).any(|note| note.text.contains(stem)) {
            let fix = "add the exact command and the machine in a .md file beside it";
            findings.push(trace.finding(0, "nothing beside it says how it was recorded", fix));
        }
    }
    findings
}

#[test]
fn a_dead_file_is_seen() {
    let files = [
        ("crates/c/Cargo.toml", "[[bin]]\npath = \"src/tool.rs\"\n"),
        ("crates/c/src/lib.rs", "mod a;\n// mod dead;\n"),
        ("crates/c/src/a.rs", "#[path = \"odd.rs\"]\nmod b;\npub mod c;\n"),
        ("crates/c/src/odd.rs", ""),
        ("crates/c/src/a/c.rs", ""),
        ("crates/c/src/tool.rs", ""),
        ("crates/c/src/dead.rs", ""),
        ("crates/c/tests/all/main.rs", "mod d;"),
        ("crates/c/tests/all/d.rs", ""),
        ("crates/c/tests/all/e.rs", ""),
        ("machines/used.toml", ""),
        ("machines/used-not.toml", ""),
        (
            "README.md",
            "the machine `used`: [here](machines/used.toml#a), [there](https://x), [nowhere](docs/x.md), `machines/x.toml`, `machines/*.toml`, `a/b`",
        ),
    ];
    let dead = |path| format!("{path}:0: no crate reaches this file");
    assert_eq!(judge(dead_files, &files), [dead("crates/c/src/dead.rs"), dead("crates/c/tests/all/e.rs")]);
    assert_eq!(judge(dead_data, &files), ["machines/used-not.toml:0: nothing names this file"]);
    assert_eq!(
        judge(dead_links, &files),
        ["README.md:1: there is no docs/x.md", "README.md:1: there is no machines/x.toml"]
    );
}

#[test]
fn stray_text_and_long_files_are_seen() {
    let text = [
        "// TO",
        "DO: x\nlet s = \"unimpl",
        "emented!\"; unimpl",
        "emented!();\n//! ../shar",
        "ed\n//! shar",
        "ed/x\nMASTO",
        "DON shar",
        "ed / work/\n",
    ];
    let long = "\n".repeat(MAX_LINES + 1);
    let text = text.concat();
    let files = [("src/a.rs", &*text), ("src/b.rs", &*long)];
    let lines: Vec<String> = judge(stray_text, &files).into_iter().map(|f| f[..10].to_owned()).collect();
    assert_eq!(lines, ["src/a.rs:1", "src/a.rs:2", "src/a.rs:3", "src/a.rs:4"]);
    assert_eq!(
        judge(file_length, &files),
        [format!("src/b.rs:0: {} lines, more than {MAX_LINES}", MAX_LINES + 1)]
    );
}

#[test]
fn a_large_or_unexplained_trace_is_seen() {
    let large = "x".repeat(usize::try_from(MAX_TRACE).unwrap() + 1);
    let files = [("traces/a.parquet", &*large), ("traces/a.md", "recorded a with"), ("traces/b.parquet", "")];
    let found = judge(traces_are_small, &files);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("a.parquet:0: 4500001 bytes") && found[1].contains("b.parquet"), "{found:?}");
}
