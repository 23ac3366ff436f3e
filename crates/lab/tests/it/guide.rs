//! The guide: every command that its pages show as a shell's is run, in the order of the page.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::{Scratch, framewright, short_traces};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide");

/// The blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("```{language}\n");
    page.split(&begin).skip(1).filter_map(|rest| rest.split("```").next()).collect()
}

/// Runs the commands of a page; returns how many.
fn run(page: &Path) -> usize {
    let text = fs::read_to_string(page).expect("a page");
    let name = page.file_stem().expect("it has a name").to_string_lossy().into_owned();
    let scratch = Scratch::new(&format!("guide-{name}"));
    fs::copy(short_traces()[0], scratch.0.join("compile.parquet")).expect("copied");
    if let Some(study) = blocks(&text, "toml").first() {
        fs::write(scratch.0.join("mine.toml"), study).expect("written");
    }
    let mut commands = 0;
    for line in blocks(&text, "sh").iter().flat_map(|block| block.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Some((program, arguments)) = words.split_first() else { continue };
        assert_eq!(*program, "framewright", "{name}: {line}");
        let output = framewright(arguments).current_dir(&scratch.0).output().expect("the binary was built");
        assert!(output.status.success(), "{name}: {line}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{name}: {line}");
        commands += 1;
    }
    commands
}

#[test]
fn every_command_of_the_guide_works() {
    let pages = fs::read_dir(GUIDE).expect("the guide").map(|entry| entry.expect("listed").path());
    let commands: usize = pages.map(|page| run(&page)).sum();
    assert!(commands > 20, "{commands} commands");
}

#[test]
fn ten_questions_have_a_command_each() {
    let text = fs::read_to_string(Path::new(GUIDE).join("questions.md")).expect("the page");
    for number in 1..=10 {
        let question = text.split(&format!("**{number}. ")).nth(1).expect("a question");
        let answer = question.split("\n**").next().unwrap_or_default();
        assert!(!blocks(answer, "sh").is_empty(), "question {number}");
    }
}

#[test]
fn the_table_of_a_studys_keys_has_all_of_them() {
    let text = fs::read_to_string(Path::new(GUIDE).join("study.md")).expect("the page");
    let output = framewright(&["schema", "study"]).output().expect("the binary was built");
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for (begins, table) in [
        ("| `", &schema),
        ("| `[[variant]]`", &schema["$defs"]["Variant"]),
        ("| `[[part]]`", &schema["$defs"]["part"]),
        ("| `[[part.metric]]`", &schema["$defs"]["metric"]),
    ] {
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with(begins)).collect();
        for key in table["properties"].as_object().expect("keys").keys() {
            let is_named =
                |line: &&str| line.contains(&format!("`{key}`")) || line.contains(&format!("`[[{key}]]`"));
            assert!(
                rows.iter().any(is_named) || key == "metric",
                "study.md has no row of `{key}` ({begins})"
            );
        }
    }
}

/// The program and the study of "Write a workload".
#[test]
fn a_workload_of_ones_own_needs_no_change_here() {
    let text = fs::read_to_string(Path::new(GUIDE).join("study.md")).expect("the page");
    let section = text.split("# Write a workload").nth(1).expect("the section");
    let scratch =
        Scratch(std::env::temp_dir().join(format!("framewright-own-workload-{}", std::process::id())));
    fs::create_dir_all(&scratch.0).expect("the temporary directory can be written");
    let [study, ..] = blocks(section, "text")[..] else { panic!("no study") };
    // Examples lie beside the command.
    let command = Path::new(env!("CARGO_BIN_EXE_framewright"));
    let example = command.with_file_name("examples").join("own_workload");
    let run = |study: &str| {
        fs::write(scratch.0.join("swap.toml"), study).expect("written");
        let output = Command::new(&example)
            .args(["study", "./swap.toml", "--samples", "3", "--format", "csv"])
            .current_dir(&scratch.0)
            .output()
            .expect("cargo test builds it; before a test chosen by --test, cargo build --release --example own_workload");
        (
            output.status.code(),
            String::from_utf8(output.stdout).expect("text") + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (code, shown) = run(study);
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains("swap_ns") && shown.contains("maps") && shown.contains("lists"), "{shown}");
    let (code, shown) = run(&study.replace("order = 3", "order = 11"));
    assert!(code == Some(2) || code == Some(1), "{shown}");
    assert!(shown.contains("line 10") || shown.contains(":10"), "{shown}");
    // The command itself does not know it.
    let plain = Command::new(command).args(["workloads", "swap"]).output().expect("it runs");
    assert!(!plain.status.success());
}
