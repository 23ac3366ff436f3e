//! The command as its users run it, with rivals.

use std::process::{Command, Output};

/// A short run of `bench` with this option.
fn bench(rivals: &str) -> Output {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_framewright-versus"));
    bench.args(["bench", rivals, "--workload", "hot_pair", "--order", "0", "--cpus", "1"]);
    bench.args(["--memory", "64", "--samples", "1", "--format", "csv"]).output().expect("it runs")
}

/// Allocators of which the run has figures.
fn measured(rivals: &str) -> Vec<&'static str> {
    let output = bench(rivals);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    let known = framewright_rivals::RIVALS.iter().map(|rival| rival.name).chain(["framewright"]);
    known.filter(|name| text.lines().any(|line| line.contains(&format!(",{name},")))).collect()
}

#[test]
fn every_rival_is_measured_beside_framewright() {
    assert_eq!(measured("--rivals").len(), framewright_rivals::RIVALS.len() + 1);
}

#[test]
fn rivals_are_chosen_by_name() {
    assert_eq!(measured("--rivals=frame_alloc,vec_mutex"), ["vec_mutex", "frame_alloc", "framewright"]);
    let refused = bench("--rivals=vec_mutex,vec_mutexes");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!((refused.status.code(), error.lines().count()), (Some(2), 1), "{error}");
    assert!(
        error.contains("no rival \"vec_mutexes\": this program has vec_per_thread, vec_mutex, "),
        "{error}"
    );
}
