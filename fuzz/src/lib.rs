//! Fuzz targets.
//!
//! | target | what it is given | what must hold |
//! |---|---|---|
//! | [`trace`] | bytes of a trace file | a valid trace that survives writing and reading, or an error of one line |
//! | [`import`] | text of `perf script` | the same |
//! | [`documents`] | settings, results, machines, studies as text | a value that can be used and shown, or an error of one line |
//! | [`commands`] | arguments of the command | the same twice, or an error with exit code 2; nothing is run |
//! | [`allocator`] | a configuration, memory, and a history of calls | the oracle agrees, `verify` is clean, no page is lost |
//! | [`maps`] | a firmware memory map, early allocations, and workers' turns | boot ends, and every page of the map is in one zone |
//!
//! Every target runs in three ways:
//! - under libFuzzer: `cargo +nightly fuzz run --all-features TARGET` (`./test --full` does so for each);
//! - in `cargo test`, on a stable toolchain: its seeds, what was found before, and a fixed number of mutations of both;
//! - on given files: `cargo run -p framewright-fuzz --all-features --bin TARGET -- FILE…`, to see a finding again.
//!
//! The first four have the feature `readers`, the others the feature `allocator`.
//!
//! An input that broke something is kept in `regressions/TARGET/` once it is mended.
#![deny(unsafe_code)]

#[cfg(feature = "allocator")]
pub mod allocator;
#[cfg(feature = "readers")]
pub mod commands;
#[cfg(feature = "readers")]
pub mod documents;
#[cfg(feature = "readers")]
pub mod import;
#[cfg(feature = "allocator")]
pub mod maps;
#[cfg(feature = "readers")]
pub mod trace;

use core::cell::RefCell;
use std::panic;
use std::path::PathBuf;

/// A fuzz target: its name, what it does with an input, and where inputs start from.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As in `cargo fuzz run NAME`.
    pub name: &'static str,
    /// Runs the target on an input. Returns whether it was accepted. Panics if something does not hold.
    pub run: fn(&[u8]) -> bool,
    /// Seeds: valid inputs to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Those of the features that are on.
pub const TARGETS: &[Target] = &[
    #[cfg(feature = "readers")]
    Target { name: "trace", run: trace::run, seeds: trace::seeds },
    #[cfg(feature = "readers")]
    Target { name: "import", run: import::run, seeds: import::seeds },
    #[cfg(feature = "readers")]
    Target { name: "documents", run: documents::run, seeds: documents::seeds },
    #[cfg(feature = "readers")]
    Target { name: "commands", run: commands::run, seeds: commands::seeds },
    #[cfg(feature = "allocator")]
    Target { name: "allocator", run: allocator::run, seeds: allocator::seeds },
    #[cfg(feature = "allocator")]
    Target { name: "maps", run: maps::run, seeds: maps::seeds },
];

/// Asserts what every refusal must be: one line, with words in it.
///
/// # Panics
/// It is not.
pub fn check_refusal(message: &str) {
    assert!(message.len() > 8 && !message.contains(['\n', '\r']), "no single line of words: {message:?}");
}

/// Inputs of `target` that broke something once.
///
/// # Panics
/// A file of the checkout cannot be read.
pub fn regressions(target: &Target) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("regressions").join(target.name);
    let Ok(files) = folder.read_dir() else { return Vec::new() };
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("it is listed").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("it is listed")).collect()
}

thread_local! {
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps messages of panics instead of printing them. A panic that the code under test catches itself (in a decoder) is
/// not a finding, but libFuzzer's hook would end the process.
pub fn keep_panics_quiet() {
    panic::set_hook(Box::new(|panic| LAST_PANIC.set(panic.to_string())));
}

/// Runs a target; a panic that gets out of it ends the process, which is what a fuzzer calls a finding.
pub fn run_or_abort(run: fn(&[u8]) -> bool, input: &[u8]) {
    if panic::catch_unwind(|| run(input)).is_err() {
        eprintln!("{}", LAST_PANIC.take());
        std::process::abort();
    }
}

/// The program of a target.
#[macro_export]
macro_rules! target {
    ($name:ident) => {
        #[cfg(fuzzing)]
        libfuzzer_sys::fuzz_target!(init: $crate::keep_panics_quiet(), |input: &[u8]| {
            $crate::run_or_abort($crate::$name::run, input);
        });

        #[cfg(not(fuzzing))]
        fn main() {
            let files: Vec<String> = std::env::args().skip(1).collect();
            assert!(!files.is_empty(), "name the files to run; to fuzz: cargo +nightly fuzz run {}", stringify!($name));
            for file in files {
                eprintln!("{file}");
                let input = std::fs::read(&file).unwrap_or_else(|error| panic!("{file}: {error}"));
                eprintln!("{}", if $crate::$name::run(&input) { "taken" } else { "refused" });
            }
        }
    };
}
