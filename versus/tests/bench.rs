//! The command as its users run it, with every rival.

use std::process::Command;

#[test]
fn every_rival_is_measured_beside_framewright() {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_framewright-versus"));
    bench.args(["bench", "--rivals", "--workload", "hot_pair", "--order", "0", "--cpus", "1"]);
    let output =
        bench.args(["--memory", "64", "--samples", "1", "--format", "csv"]).output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("text");
    for name in framewright_rivals::RIVALS.iter().map(|rival| rival.name).chain(["framewright"]) {
        assert!(text.lines().any(|line| line.contains(&format!(",{name},"))), "{name} is missing:\n{text}");
    }
}
