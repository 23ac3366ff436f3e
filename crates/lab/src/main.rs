//! The `framewright` command.
#![deny(unsafe_code)]

use std::process::ExitCode;

#[cfg(not(feature = "rivals"))]
fn main() -> ExitCode {
    framewright_lab::cli::main(&[])
}

#[cfg(feature = "rivals")]
fn main() -> ExitCode {
    framewright_lab::cli::main_with_rivals(&[], framewright_rivals::runners)
}
