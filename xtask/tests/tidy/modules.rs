//! Things that a module may use: other modules, atomics, unsafe.

use std::collections::BTreeSet;

use crate::circles::paths;
use crate::repo::{File, Finding, Repo, folder, judge};
use crate::source::{occurrences, word};

/// Modules in which raw atomics may be named: code that is a platform, or that is no part of the allocator. Tests may,
/// too.
const ATOMIC_MODULES: [&str; 10] = [
    "crates/core/src/platform",
    "crates/host/",
    "crates/capi/",
    "crates/rivals/",
    "crates/trace/",
    "crates/workload/",
    "crates/lab/src/interrupt.rs",
    "crates/check/",
    "crates/sim/src/platform",
    "kernel/",
];

/// Names in the first cells of the table of modules, from the top.
fn modules(lib: &File) -> Vec<(usize, String)> {
    let mut modules = Vec::new();
    let lines = lib.text.lines().zip(1..).skip_while(|(line, _)| !line.starts_with("//! | module |"));
    for (line, number) in lines.skip(1) {
        let Some(row) = line.strip_prefix("//! |") else { break };
        let cell = row.split('|').next().unwrap_or_default();
        let names = cell.split('`').skip(1).step_by(2);
        // A link may say that it means the module: mod@NAME.
        modules.extend(names.map(|name| (number, name.trim_start_matches("mod@").to_owned())));
    }
    modules
}

pub(crate) fn module_order(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for lib in repo.ending("/src/lib.rs").filter(|lib| lib.path.starts_with("crates/")) {
        let modules = modules(lib);
        let source = folder(&lib.path);
        for (line, module) in &modules {
            let (file, folder) = (format!("{source}/{module}.rs"), format!("{source}/{module}/mod.rs"));
            if repo.file(&file).is_none() && repo.file(&folder).is_none() {
                findings.push(lib.finding(
                    *line,
                    format!("there is no module `{module}`"),
                    "correct the table",
                ));
            }
        }
        // Only where the table promises an order.
        if !lib.text.lines().any(|line| line.starts_with("//!") && line.contains("above it")) {
            continue;
        }
        let place = |name: &str| modules.iter().position(|(_, module)| module == name);
        for file in &repo.files {
            let Some(inner) = file.path.strip_prefix(source).filter(|inner| inner.ends_with(".rs")) else {
                continue;
            };
            let inner = inner.trim_start_matches('/').trim_end_matches(".rs").trim_end_matches("/mod");
            let names: Vec<String> = inner.split('/').map(str::to_owned).collect();
            let module = &names[0];
            if matches!(inner, "lib" | "main") || file.code.is_empty() {
                continue;
            }
            let Some(row) = place(module) else {
                let fix = "give it a row in the table of modules in lib.rs";
                findings.push(file.finding(0, format!("`{module}` is no module of the table"), fix));
                continue;
            };
            let used =
                paths(&names, &file.shipped).into_iter().filter_map(|(path, _)| path.into_iter().next());
            for name in used.collect::<BTreeSet<_>>() {
                if name.starts_with(char::is_uppercase) {
                    let what = format!("crate::{name} hides the module it is from");
                    findings.push(file.finding(0, what, "name the module: crate::MODULE::…"));
                } else if place(&name).is_some_and(|theirs| theirs > row) {
                    let fix = "hand it down as an argument, or move the code to the lower module";
                    findings.push(file.finding(
                        0,
                        format!("`{module}` uses `{name}`, a module below it"),
                        fix,
                    ));
                }
            }
        }
    }
    findings
}

pub(crate) fn raw_atomics(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in
        repo.files.iter().filter(|file| !ATOMIC_MODULES.iter().any(|module| file.path.starts_with(module)))
    {
        for (line, rest) in occurrences(&file.shipped, "Atomic") {
            let kind = word(rest);
            if matches!(kind, "Bool" | "Ptr") || kind.starts_with(['U', 'I']) {
                let fix = "use Platform::Word, so that the simulator charges it and loom sees it";
                findings.push(file.finding(line, format!("raw Atomic{kind}"), fix));
            }
        }
    }
    findings
}

/// A crate that denies unsafe opens it module by module, each with its reason, or its compiler refuses it.
pub(crate) fn unsafe_is_denied(repo: &Repo) -> Vec<Finding> {
    let is_root = |file: &&File| ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end));
    repo.files
        .iter()
        .filter(is_root)
        .filter(|file| !file.code.contains("#![deny(unsafe_code)]"))
        .map(|file| {
            let fix = "put it at the top: unsafe is opened module by module";
            file.finding(0, "a crate without #![deny(unsafe_code)]", fix)
        })
        .collect()
}

#[test]
fn a_room_that_looks_down_is_seen() {
    let lib = "//! Rooms, each using only those above it\n//! | module | what |\n//! | [`a`] | x |\n//! | [`b`], [`gone`] | y |\n";
    let files = [
        ("crates/c/src/lib.rs", lib),
        (
            "crates/c/src/a.rs",
            "use crate::{a, x::{b}, b::B};\n// crate::b\nuse crate::Thing;\n#[cfg(test)]\nmod tests { use crate::b; }\n",
        ),
        ("crates/c/src/b.rs", "use crate::a::A;\nuse super::a;\n"),
        ("crates/c/src/a/leaf.rs", "use super::b;\nuse super::super::b;\n"),
        ("crates/c/src/d.rs", "fn d() {}\n"),
    ];
    assert_eq!(
        judge(module_order, &files),
        [
            "crates/c/src/lib.rs:4: there is no module `gone`",
            "crates/c/src/a.rs:0: crate::Thing hides the module it is from",
            "crates/c/src/a.rs:0: `a` uses `b`, a module below it",
            "crates/c/src/a/leaf.rs:0: `a` uses `b`, a module below it",
            "crates/c/src/d.rs:0: `d` is no module of the table",
        ]
    );
}

#[test]
fn raw_atomics_outside_their_rooms_and_a_crate_that_allows_unsafe_are_seen() {
    let atomics =
        "use core::sync::atomic::{AtomicU64, Ordering};\n#[cfg(test)]\nmod tests { use x::AtomicBool; }\n";
    let files = [
        ("crates/core/src/zone.rs", atomics),
        ("crates/host/src/zone.rs", atomics),
        ("crates/core/tests/zone.rs", atomics),
        ("crates/core/src/lib.rs", "#![deny(unsafe_code)]\n"),
        ("crates/sim/src/lib.rs", "//! #![deny(unsafe_code)]\n"),
    ];
    assert_eq!(judge(raw_atomics, &files), ["crates/core/src/zone.rs:1: raw AtomicU64"]);
    assert_eq!(
        judge(unsafe_is_denied, &files),
        ["crates/sim/src/lib.rs:0: a crate without #![deny(unsafe_code)]"]
    );
}
