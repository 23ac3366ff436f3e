//! The `framewright` command with rivals in it: `framewright-versus bench --rivals`.
//!
//! A program of its own, and not a feature of the command, so that the command and its tests are built once: a feature
//! would make a second build of everything between it and the rivals.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    framewright_lab::cli::main_with_rivals(&[], Some(framewright_rivals::runners))
}
