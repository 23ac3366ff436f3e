//! Puts the machine descriptions, the studies and the commit into the binary, so that the command works
//! wherever it is copied to.

use core::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let crate_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let root = crate_dir.join("../..");

    let mut source = String::new();
    embed(&root.join("machines"), "MACHINES", &mut source);
    embed(&root.join("studies"), "STUDIES", &mut source);
    fs::write(out_dir.join("embedded.rs"), source).expect("cargo made the directory");

    println!("cargo::rerun-if-changed=build.rs");
    let mut version = env::var("CARGO_PKG_VERSION").expect("cargo sets it");
    if let Some(commit) = commit(&root) {
        println!("cargo::rustc-env=FRAMEWRIGHT_COMMIT={commit}");
        version += &format!(" ({commit})");
    }
    println!("cargo::rustc-env=FRAMEWRIGHT_VERSION={version}");
}

/// Appends a table of (file name, content) with every TOML file of `dir`, sorted by name.
fn embed(dir: &Path, table: &str, source: &mut String) {
    println!("cargo::rerun-if-changed={}", dir.display());
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", dir.display()))
        .map(|entry| entry.expect("a directory that could be opened can be read").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .collect();
    files.sort();
    writeln!(source, "pub(crate) const {table}: &[(&str, &str)] = &[").expect("a String takes it");
    for path in files {
        let name = path.file_name().expect("it has an extension").to_string_lossy().into_owned();
        let path = path.canonicalize().expect("it was listed");
        writeln!(source, "    ({name:?}, include_str!({path:?})),").expect("a String takes it");
    }
    source.push_str("];\n");
}

/// The commit this is built from; `None` outside this project's own git checkout, or without git.
fn commit(root: &Path) -> Option<String> {
    let git = |argument: &[&str]| -> Option<String> {
        let output = Command::new("git").arg("-C").arg(root).args(argument).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
    };
    // A copy of the sources inside another project's checkout must not report that project's commit.
    let top = PathBuf::from(git(&["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    let git_dir = root.join(git(&["rev-parse", "--git-dir"])?);
    for changed in ["HEAD", "logs/HEAD"] {
        let path = git_dir.join(changed);
        // A missing path would make cargo run this at every build.
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    git(&["rev-parse", "--short=12", "HEAD"])
}
