//! Files that the rules read, and findings.

use core::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{code, without_tests};

/// Something untidy: where, what, and how to mend it.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    pub(crate) what: String,
    pub(crate) fix: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}; {}", self.path, self.line.max(1), self.what, self.fix)
    }
}

/// A file, by its path from the root.
pub(crate) struct File {
    pub(crate) path: String,
    pub(crate) bytes: u64,
    /// Empty if it is no text.
    pub(crate) text: String,
    /// Rust source with comments and string contents blanked, lines and columns as in `text`; else empty.
    pub(crate) code: String,
    /// `code` with test modules blanked, too; empty if the whole file is for tests.
    pub(crate) shipped: String,
}

impl File {
    pub(crate) fn new(path: String, content: Vec<u8>) -> Self {
        let bytes = content.len() as u64;
        let text = String::from_utf8(content).unwrap_or_default();
        let code = if path.ends_with(".rs") { code(&text) } else { String::new() };
        let is_test = path.split('/').any(|part| {
            matches!(part, "tests" | "benches" | "examples" | "fuzz" | "tests.rs" | "testing.rs")
        });
        let shipped = if is_test { String::new() } else { without_tests(&code) };
        Self { path, bytes, text, code, shipped }
    }

    pub(crate) fn finding(&self, line: usize, what: impl Into<String>, fix: &'static str) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into(), fix }
    }
}

/// Every file of the project.
pub(crate) struct Repo {
    pub(crate) files: Vec<File>,
}

impl Repo {
    pub(crate) fn read(root: &Path) -> Self {
        let mut files = Vec::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(root.join(&folder)).expect("the checkout can be listed") {
                let entry = entry.expect("the checkout can be listed");
                let name = entry.file_name().into_string().expect("names are text");
                let path = folder.join(&name);
                let kind = entry.file_type().expect("it was listed");
                // Not part of the project: what git ignores, and what it keeps for itself.
                let ignored = (name.starts_with('.') && !matches!(&*name, ".ci" | ".gitignore"))
                    || matches!(&*name, "target" | "corpus" | "artifacts" | "coverage");
                if kind.is_dir() && !ignored {
                    folders.push(path);
                } else if kind.is_file() && !ignored {
                    // Others may be writing: a file that has just gone is none.
                    let Ok(content) = fs::read(root.join(&path)) else { continue };
                    files.push(File::new(path.to_str().expect("names are text").into(), content));
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Self { files }
    }

    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    pub(crate) fn ending<'a>(&'a self, end: &'a str) -> impl Iterator<Item = &'a File> {
        self.files.iter().filter(move |file| file.path.ends_with(end))
    }

    /// Manifests of crates: all but the workspace's own.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &File> {
        self.ending("/Cargo.toml")
    }
}

pub(crate) fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// `path`, taken from `folder` on, without `.` and `..`.
pub(crate) fn join(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Findings of a rule in a repository of these files, as `path:line: what`.
pub(crate) fn judge(rule: fn(&Repo) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    let files = files.iter().map(|(path, text)| File::new((*path).into(), (*text).into())).collect();
    let findings = rule(&Repo { files });
    findings.iter().map(|f| format!("{}:{}: {}", f.path, f.line, f.what)).collect()
}
