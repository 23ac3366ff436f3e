//! `ab`, on a repository whose program is a stand-in: it prints results, and which revision ran when.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use framewright_lab::host::Host;
use framewright_lab::result::{Better, Document, Kind, Part};

use crate::{Scratch, framewright};

/// Runs git in a folder as somebody.
fn git(folder: &Path, arguments: &[&str]) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(folder)
        .args(["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"])
        .args(arguments)
        .output()
        .expect("git can be run");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A repository with the tags `one` and `two`: the second's program is a fifth slower, and with the feature `slow` it has
/// another metric. Without the word `bench` the program fails; it adds its tag to the file that `AB_LOG` names.
pub(crate) fn repository(folder: &Path) {
    fs::create_dir_all(folder.join("src")).expect("made");
    git(folder, &["init", "--quiet"]);
    let manifest =
        "[package]\nname = \"framewright\"\nversion = \"1.0.0\"\nedition = \"2024\"\n[features]\nslow = []\n";
    fs::write(folder.join("Cargo.toml"), manifest).expect("written");
    fs::write(folder.join(".gitignore"), "target\nCargo.lock\n").expect("written");
    for (tag, ns) in [("one", 10.0), ("two", 12.0)] {
        let document = |name: &str| {
            let mut part = Part::new("bench", "workloads", Kind::Measured, "host").baseline("framewright");
            part.metric(name, "ns", Better::Lower).sample("framewright", ns);
            Document::new("bench", Host::default()).with(part).to_json().expect("JSON")
        };
        let program = format!(
            "use std::io::Write;\nfn main() {{\n    let words: Vec<String> = std::env::args().collect();\n    \
             if !words.iter().any(|word| word == \"bench\") {{ eprintln!(\"no such command\"); std::process::exit(1) }}\n    \
             if let Ok(log) = std::env::var(\"AB_LOG\") {{\n        \
             let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).unwrap();\n        \
             writeln!(log, \"{tag}\").unwrap();\n    }}\n    \
             print!(\"{{}}\", if cfg!(feature = \"slow\") {{ r###\"{}\"### }} else {{ r###\"{}\"### }});\n}}\n",
            document("slow_ns"),
            document("alloc_ns")
        );
        fs::write(folder.join("src/main.rs"), program).expect("written");
        git(folder, &["add", "."]);
        git(folder, &["commit", "--quiet", "-m", tag]);
        git(folder, &["tag", tag]);
    }
}

#[test]
fn two_revisions_are_built_once_and_run_in_turns() {
    let scratch = Scratch::new("ab");
    let folder = scratch.0.join("repository");
    repository(&folder);
    let log = scratch.path("log");
    let run = |arguments: &[&str]| -> Output {
        framewright(arguments).current_dir(&folder).env("AB_LOG", &log).output().expect("it runs")
    };
    let saved = scratch.path("ab.json");
    let output = run(&["ab", "one", "two", "--rounds", "6", "-o", &saved, "--fail-over", "5", "--", "bench"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("alloc_ns 20.0 % worse (two, bench workloads)"), "{error}");
    assert_eq!(error.matches("building").count(), 2, "{error}");
    let turns = fs::read_to_string(&log).expect("it ran");
    assert_eq!(turns.split_whitespace().take(4).collect::<Vec<_>>(), ["one", "two", "two", "one"]);
    assert_eq!(turns.lines().count(), 12);
    let document = Document::read(saved.as_ref()).expect("saved");
    let part = &document.results[0];
    assert_eq!(
        (part.variants.as_slice(), part.paired),
        (["one".to_owned(), "two".to_owned()].as_slice(), true)
    );
    let metric = part.find("alloc_ns").expect("the metric");
    assert_eq!((metric.of("one"), metric.of("two")), ([10.0; 6].as_slice(), [12.0; 6].as_slice()));
    assert_eq!(git(&folder, &["worktree", "list"]).lines().count(), 1, "worktrees are removed");

    // What was built is there.
    let output = run(&["ab", "one", "two", "--rounds", "1", "--fail-over", "25", "--", "bench"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), error.contains("building")), (Some(0), false), "{error}");
    let refused = |arguments: &[&str], code: i32, says: &str| {
        let output = run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(says), "{arguments:?}: {error}");
    };
    refused(&["ab", "one", "three", "--", "bench"], 2, "there is no revision `three`");
    refused(&["ab", "two", "HEAD", "--", "bench"], 2, "the same commit");
    refused(&["ab", "one", "two", "--", "bench", "--format", "csv"], 2, "leave --format out");
    refused(&["ab", "one", "two", "--", "replay"], 1, "`replay` failed: no such command");
    fs::write(folder.join("src/main.rs"), "fn main() { nonsense }\n").expect("written");
    git(&folder, &["commit", "--quiet", "-am", "broken"]);
    refused(&["ab", "one", "HEAD", "--", "bench"], 1, "HEAD cannot be built");
    assert_eq!(git(&folder, &["worktree", "list"]).lines().count(), 1, "also after a failure");
}
