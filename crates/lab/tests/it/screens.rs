//! Screens that take no measurement, as a terminal of 80 columns shows them: of commands, and of saved results. That of
//! `trace summary` is in that command's tests, that of `study all` in `summary`'s, tables are in `table`'s.

use std::process::Command;

/// The screen of a command; `None` where `script`, which makes a terminal, is not there.
fn screen(arguments: &str) -> Option<String> {
    let binary = env!("CARGO_BIN_EXE_framewright");
    let line = format!("stty cols 80 rows 24; exec {binary} --color never {arguments}");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).env("LC_ALL", "C.UTF-8").env("TERM", "xterm");
    let Ok(output) = script.current_dir(env!("CARGO_MANIFEST_DIR")).output() else {
        eprintln!("skipped: `script` cannot be run");
        return None;
    };
    Some(String::from_utf8(output.stdout).expect("text").replace('\r', ""))
}

/// Compares screens with those that were read.
fn as_read(screens: &[(&str, &str)]) {
    for (name, arguments) in screens {
        let Some(screen) = screen(arguments) else { return };
        let wide: Vec<&str> = screen.lines().filter(|line| line.chars().count() > 80).collect();
        assert!(wide.is_empty(), "{arguments}: {wide:?}");
        insta::assert_snapshot!(*name, screen);
    }
}

#[test]
fn screens_are_as_they_were_read() {
    as_read(&[
        ("help", "--help"),
        ("help-doctor", "doctor --help"),
        ("help-record", "record --help"),
        ("help-trace-summary", "trace summary --help"),
        ("help-replay", "replay --help"),
        ("help-try", "try --help"),
        ("help-compare", "compare --help"),
        ("help-import", "import --help"),
        ("help-study", "study --help"),
        ("doctor-sized-early", "doctor --root tests/data/snapshots/linux-5.10-sized-early.tar.gz"),
        ("settings", "settings"),
        ("settings-preset", "settings preset"),
        ("settings-compaction", "settings compaction_proactiveness"),
        ("study", "study"),
        ("machines", "machines"),
        ("machines-epyc", "machines epyc-7742-2s"),
        ("workloads", "workloads"),
        ("workloads-page-fault", "workloads page_fault1"),
    ]);
}

/// Results that `replay` with no options and `try` saved, which show this screen when they end; and two of `bench`.
#[test]
fn saved_results_are_shown_as_they_were_read() {
    as_read(&[
        ("replay", "compare tests/data/results/replay.json"),
        ("try", "compare tests/data/results/try.json"),
        ("compare", "compare tests/data/results/before.json tests/data/results/after.json"),
    ]);
}
