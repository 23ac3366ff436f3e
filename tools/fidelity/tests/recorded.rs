//! A recorded kernel beside the preset of its version.

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fidelity")).args(arguments).output().expect("it was built")
}

#[test]
fn a_recorded_kernel_does_what_the_preset_does() {
    let inside = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/inside.parquet");
    let same = run(&[inside, "--within", "2", "--format", "json"]);
    assert!(same.status.success(), "{same:?}");
    let document: serde_json::Value = serde_json::from_slice(&same.stdout).expect("JSON");
    let metrics = document["results"][0]["metrics"].as_array().expect("metrics");
    let samples = |name: &str, variant: &str| {
        let metric = metrics.iter().find(|metric| metric["name"] == name);
        metric.unwrap_or_else(|| panic!("no metric {name}"))["samples"][variant].clone()
    };
    for name in [
        "refills[cpu=0]",
        "refills[cpu=1]",
        "refilled_pages[cpu=0]",
        "refilled_pages[cpu=1]",
        "pages_per_refill",
    ] {
        let kernel = samples(name, "kernel");
        assert!(kernel[0].as_f64().is_some_and(|value| value > 0.0), "{name}: {kernel}");
        assert_eq!(kernel, samples(name, "replayed"), "{name}");
    }
    let older = run(&[inside, "--within", "2", "--preset", "linux_v5_4"]);
    assert!(!older.status.success(), "rules of another kernel move other pages");
}
