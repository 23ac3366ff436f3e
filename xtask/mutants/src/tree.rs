//! The copy of the allocator and its tests in which all mutants stand, and how it is built.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::weave::{Mutant, Woven, weave};
use crate::{Listed, Result, digest};

/// What is copied: the crates that are mutated, the crate whose tests are to notice, and a guide whose code is one of
/// these tests.
const COPIED: [&str; 4] = ["crates/core", "crates/check", "crates/pagecache", "docs/porting.md"];
const ROOT: &str = "crates/core/src/lib.rs";
/// The test programs that are run.
const PROGRAMS: [&str; 3] = ["--lib", "--test", "all"];

/// A copy with its mutants.
pub(crate) struct Tree {
    folder: PathBuf,
    target: PathBuf,
    files: Vec<File>,
    /// Mutants that do not compile.
    pub(crate) unviable: BTreeSet<u32>,
    /// Mutants that a switch cannot show: the compiler evaluates them, or `impl Trait` would be two types.
    pub(crate) left_out: BTreeSet<u32>,
    /// How many there are.
    count: usize,
}

struct File {
    path: String,
    text: String,
    mutants: Vec<Mutant>,
    woven: Woven,
}

/// A message of the compiler, as far as it says where something is wrong.
struct Complaint {
    text: String,
    places: Vec<(String, core::ops::Range<usize>)>,
}

impl Tree {
    /// Copies the sources and weaves the mutants in; leaves out what does not compile, until the rest does.
    pub(crate) fn grow(root: &Path, target: &Path, listed: &[Listed]) -> Result<Self> {
        let folder = target.join("tree");
        let mut by_file: BTreeMap<&str, Vec<Mutant>> = BTreeMap::new();
        let mut left_out = BTreeSet::new();
        for (id, listed) in (0..).zip(listed) {
            // An early return of another type than that of the end.
            if listed.returns_some_type() {
                left_out.insert(id);
                continue;
            }
            by_file.entry(&listed.file).or_default().push(Mutant {
                id,
                genre: listed.genre.clone(),
                replacement: listed.replacement.clone(),
                range: 0..0,
            });
        }
        let mut tree = Self {
            folder,
            target: target.join("build"),
            files: Vec::new(),
            unviable: BTreeSet::new(),
            left_out,
            count: listed.len(),
        };
        copy(root, &tree.folder, &by_file)?;
        let known: Known = read_json(&target.join("unviable.json")).unwrap_or_default();
        for (path, mut mutants) in by_file {
            if path == ROOT {
                // `lib.rs` has only modules; the switch's module is added to it below.
                tree.left_out.extend(mutants.iter().map(|mutant| mutant.id));
                continue;
            }
            let text = fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
            for mutant in &mut mutants {
                mutant.range = listed[mutant.id as usize].span.bytes(&text);
            }
            for mutant in &mutants {
                if known.has(path, &text, &listed[mutant.id as usize].name) {
                    tree.unviable.insert(mutant.id);
                }
            }
            let without = |id| tree.unviable.contains(&id);
            let woven =
                weave(&text, switch(path), &mutants, &without).map_err(|error| format!("{path}: {error}"))?;
            tree.left_out.extend(&woven.constant);
            tree.unviable.extend(&woven.unviable);
            tree.files.push(File { path: path.to_owned(), text, mutants, woven });
        }
        tree.write_all()?;
        tree.switch(root)?;
        // The library first: most errors are there, and it compiles in seconds.
        for words in [&["check", "--package", "framewright"][..], &["test", "--no-run"]] {
            while !tree.compiles(words)? {}
            tree.remember(target, listed)?;
        }
        Ok(tree)
    }

    /// Writes down what does not compile.
    fn remember(&self, target: &Path, listed: &[Listed]) -> Result<()> {
        let known = self.files.iter().map(|file| {
            let names = file.mutants.iter().filter(|mutant| self.unviable.contains(&mutant.id));
            (
                file.path.clone(),
                (
                    digest([&*file.text]),
                    names.map(|mutant| listed[mutant.id as usize].name.clone()).collect(),
                ),
            )
        });
        write_json(&target.join("unviable.json"), &Known(known.collect()))
    }

    /// The text of a mutated file.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.files.iter().find(|file| file.path == path).map_or("", |file| &file.text)
    }

    /// The test programs.
    pub(crate) fn programs(&self) -> Result<Vec<PathBuf>> {
        let messages = self.cargo(&["test", "--no-run"])?.0;
        let mut found = Vec::new();
        for message in &messages {
            if message["reason"] == "compiler-artifact" && message["profile"]["test"] == true {
                found.extend(message["executable"].as_str().map(PathBuf::from));
            }
        }
        Ok(found)
    }

    fn write_all(&self) -> Result<()> {
        for file in &self.files {
            let path = self.folder.join(&file.path);
            put(&path, &file.woven.text)?;
        }
        Ok(())
    }

    /// The module with the switch, and `lib.rs` that names it.
    fn switch(&self, root: &Path) -> Result<()> {
        let source = include_str!("switch.rs.txt").replace("MUTANTS]", &format!("{}]", self.count));
        let folder = self.folder.join("crates/core/src");
        put(&folder.join("mutant_switch.rs"), &source)?;
        let text = fs::read_to_string(root.join(ROOT)).map_err(|error| format!("{ROOT}: {error}"))?;
        put(&folder.join("lib.rs"), &root_file(&text)?)
    }

    /// Whether it compiles; if not, the mutants that are to blame are taken out.
    fn compiles(&mut self, words: &[&str]) -> Result<bool> {
        let (messages, success) = self.cargo(words)?;
        if success {
            return Ok(true);
        }
        let mut blamed: BTreeSet<u32> = BTreeSet::new();
        let mut last = String::new();
        for complaint in messages.iter().filter_map(complaint) {
            for (path, range) in &complaint.places {
                let Some(file) = self.files.iter().find(|file| path.ends_with(&file.path)) else { continue };
                if let Some(ids) = file.woven.blamed(range) {
                    blamed.extend(ids);
                    break;
                }
            }
            last = complaint.text;
        }
        if blamed.is_empty() {
            return Err(format!(
                "the copy with its mutants does not compile, and no mutant is to blame:\n{last}"
            ));
        }
        eprintln!("  {} mutants do not compile", blamed.len());
        self.unviable.extend(blamed);
        for file in &mut self.files {
            if file.mutants.iter().any(|mutant| self.unviable.contains(&mutant.id)) {
                let without = |id| self.unviable.contains(&id);
                file.woven = weave(&file.text, switch(&file.path), &file.mutants, &without)
                    .map_err(|error| error.to_string())?;
            }
        }
        self.write_all()?;
        Ok(false)
    }

    /// Runs cargo in the copy; returns its messages and whether it succeeded.
    fn cargo(&self, words: &[&str]) -> Result<(Vec<Value>, bool)> {
        eprintln!("+ cargo {} (in {})", words.join(" "), self.folder.display());
        let mut cargo = Command::new("cargo");
        cargo.args(words).arg("--message-format=json").current_dir(&self.folder);
        if words.contains(&"test") {
            cargo.args(PROGRAMS);
        }
        // Functions that the compiler may evaluate need an unstable intrinsic; warnings are about the switches.
        cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "--cap-lints=allow");
        cargo.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", "0");
        let output = cargo.stderr(Stdio::piped()).output().map_err(|error| format!("cargo: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if !output.status.success() && messages.iter().filter_map(complaint).next().is_none() {
            return Err(format!("cargo: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok((messages, output.status.success()))
    }
}

/// What did not compile last time, by file: the text's digest and the names.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Known(BTreeMap<String, (u64, BTreeSet<String>)>);

impl Known {
    fn has(&self, path: &str, text: &str, name: &str) -> bool {
        self.0.get(path).is_some_and(|(digested, names)| *digested == digest([text]) && names.contains(name))
    }
}

/// Reads a file of an earlier run, if there is one.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    put(path, &serde_json::to_string(value).expect("keys are strings"))
}

/// The path of the function that says which mutant is on, as a file names it.
fn switch(path: &str) -> &'static str {
    if path.starts_with("crates/core/") {
        "crate::mutant_switch::on"
    } else {
        "framewright::mutant_switch::on"
    }
}

/// `lib.rs` with the switch.
fn root_file(text: &str) -> Result<String> {
    let at = text.find("#![no_std]").ok_or("lib.rs does not begin as this expects: no #![no_std]")?;
    Ok(format!(
        "{}#![feature(core_intrinsics, const_eval_select)] #![allow(internal_features)] {}\nextern crate std;\n\
         #[doc(hidden)] pub mod mutant_switch;\n",
        &text[..at],
        text[at..].replace("#![deny(unsafe_code)]", "")
    ))
}

/// An error of the compiler: the places that it is about, the first one first.
fn complaint(message: &Value) -> Option<Complaint> {
    let message = message.get("message").filter(|_| message["reason"] == "compiler-message")?;
    if message["level"] != "error" {
        return None;
    }
    let mut places = Vec::new();
    for main in [true, false] {
        for span in message["spans"].as_array()?.iter().filter(|span| span["is_primary"] == main) {
            let start = span["byte_start"].as_u64()? as usize;
            places.push((span["file_name"].as_str()?.to_owned(), start..span["byte_end"].as_u64()? as usize));
        }
    }
    let text = message["rendered"].as_str()?.to_owned();
    Some(Complaint { text, places })
}

/// Writes a file, unless it is like that already: cargo builds anew what was written.
pub(crate) fn put(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Copies what is not mutated, and deletes what the repository no longer has.
fn copy(root: &Path, folder: &Path, mutated: &BTreeMap<&str, Vec<Mutant>>) -> Result<()> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard", "--"]).args(COPIED).current_dir(root);
    let listed = git.output().map_err(|error| format!("git: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let listed: BTreeSet<&str> = listed.lines().chain(["Cargo.lock", "Cargo.toml"]).collect();
    let mut folders = vec![folder.to_owned()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(at).into_iter().flatten().flatten() {
            let path = entry.path();
            let short = path.strip_prefix(folder).ok().and_then(Path::to_str).unwrap_or_default();
            if path.is_dir() {
                folders.push(path);
            } else if !listed.contains(short) && !short.ends_with("mutant_switch.rs") {
                fs::remove_file(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            }
        }
    }
    for path in listed {
        let to = folder.join(path);
        let parent = to.parent().expect("it lies in the copy");
        fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
        if mutated.contains_key(path) || path == ROOT || (path == "Cargo.lock" && to.exists()) {
            continue;
        }
        let text = fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"))?;
        put(&to, &if path == "Cargo.toml" { workspace(&text) } else { text })?;
    }
    Ok(())
}

/// The workspace of the copy: its members, and the tests' profile without notes for a debugger.
fn workspace(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let line = match line {
            _ if line.starts_with("members = ") => {
                "members = [\"crates/core\", \"crates/check\", \"crates/pagecache\"]"
            }
            _ if line.starts_with("exclude = ") || line.starts_with("default-members = ") => continue,
            _ if line.starts_with("debug = ") => "debug = \"none\"",
            _ => line,
        };
        out.push_str(line);
        out.push('\n');
    }
    out
}
