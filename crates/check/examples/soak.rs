//! A history against the oracle, as long as asked: the run of 10⁹ calls of `./test --full`.
//!
//! ```text
//! cargo run --release -p framewright-check --example soak -- PRESET CALLS [SEED]
//! ```
//!
//! `PRESET` is a name of [`PRESETS`]. Three CPUs make calls of every kind in three zones on two nodes, most of them
//! allocations and frees; one free in ten is wrong. The oracle judges each (see [`history`]), and every 2²⁰ calls
//! `verify` reads the whole allocator. The same arguments make the same run.

use std::process::ExitCode;

use framewright_check::history;
use framewright_check::prelude::*;

/// Makes a configuration.
type Preset = fn() -> Config;

/// Configurations by name.
const PRESETS: [(&str, Preset); 6] = [
    ("framewright", Config::framewright),
    ("promises", || Config::framewright().check(RefillCheck::AfterUnlock).with_marks()),
    ("linux_v3_0", Config::linux_v3_0),
    ("linux_v5_4", Config::linux_v5_4),
    ("linux_v6_1", Config::linux_v6_1),
    ("linux_v6_7", Config::linux_v6_7),
];

/// Frames of each zone.
const PAGES: u64 = 8192;
/// One frame in this many is bad. With one in 128 nearly all memory is soon out of use, and most calls are refused.
const BAD: u64 = 4096;
/// Calls between two looks at the whole allocator.
const LOOK_EVERY: u64 = 1 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (preset, calls, seed) = match words[..] {
        [preset, calls] => (preset, calls.parse(), Ok(1)),
        [preset, calls, seed] => (preset, calls.parse(), seed.parse()),
        _ => ("", Ok(0), Ok(0)),
    };
    let preset = PRESETS.into_iter().find(|(name, _)| *name == preset);
    let (Some((name, config)), Ok(calls), Ok(seed)) = (preset, calls, seed) else {
        let presets: Vec<&str> = PRESETS.iter().map(|(name, _)| *name).collect();
        eprintln!("usage: soak PRESET CALLS [SEED]   (PRESET: {})", presets.join(", "));
        return ExitCode::from(2);
    };
    let zones = [(0, ZoneType::Dma32), (0, ZoneType::Normal), (1, ZoneType::Movable)];
    let zones: Vec<_> = (BASE.0..)
        .step_by(PAGES as usize)
        .zip(zones)
        .map(|(at, (node, kind))| zone(node, kind, at, PAGES))
        .collect();
    // One thread drives all CPUs: waiting for another's drain would only take time.
    let spec = Spec::zones(zones, 3).cpu_nodes([0, 0, 1].map(NodeId)).config(config().spins(1));
    let mut random = fastrand::Rng::with_seed(seed);
    let counts = history::play_in(&spec, BAD, &mut || random.u8(..), LOOK_EVERY, |_, made| {
        if made % (LOOK_EVERY << 6) == 0 {
            eprintln!("{name}: {made} of {calls} calls");
        }
        made < calls
    });
    println!("{name}, seed {seed}: {calls} calls, {counts:?}, 0 errors");
    ExitCode::SUCCESS
}
