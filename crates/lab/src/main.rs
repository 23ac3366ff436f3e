//! The `framewright` command.
#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    framewright_lab::cli::main(&[])
}
