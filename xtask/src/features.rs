//! The core with one of its features left out: `crates/core/examples/features.rs`, compiled and run.

use crate::{Result, run, target};

/// Which features are left out, and which stay: a feature goes with those that need it. The first three leave each
/// feature out once; the others run with `--full`.
const LEFT_OUT: [(&str, &str); 7] = [
    ("settings, passes and boot", "lists,mobility,smp"),
    ("smp", "boot"),
    ("all", ""),
    ("passes and boot", "settings,smp"),
    ("boot", "passes,smp"),
    ("all but lists", "lists"),
    ("all but mobility and smp", "mobility,smp"),
];

fn run_with(features: &str) -> Result<()> {
    // A folder of their own: the other tests' dependencies stay compiled with all features. No debugger reads it.
    let folder = target().join("features").display().to_string();
    let words = ["run", "--quiet", "--locked", "--package", "framewright", "--example", "features"];
    let choice = [
        "--no-default-features",
        "--features",
        features,
        "--target-dir",
        &folder,
        "--config",
        "profile.dev.debug=false",
    ];
    run("cargo", &[&words[..], &choice[..]].concat())
}

#[test]
fn the_core_works_without_any_of_its_features() {
    let tried = if std::env::var_os("FRAMEWRIGHT_FULL").is_some() { &LEFT_OUT[..] } else { &LEFT_OUT[..3] };
    for (left_out, stay) in tried {
        run_with(stay).unwrap_or_else(|error| panic!("without {left_out}: {error}"));
    }
    let manifest =
        std::fs::read_to_string(crate::root().join("crates/core/Cargo.toml")).expect("it is there");
    let default =
        manifest.lines().find_map(|line| line.strip_prefix("default = ")).expect("default features");
    for feature in default.split('"').skip(1).step_by(2) {
        let is_left_out = tried.iter().any(|(_, stay)| !stay.contains(feature));
        assert!(is_left_out, "no combination here leaves {feature} out: add one");
    }
}
