//! `framewright-versus` with LLFree in it, which is on no registry: `cargo run --release -- bench --rivals` in this
//! folder. Random loads: `cargo run --release --bin sweep`.
#![deny(unsafe_code)]

mod subject;

use std::process::ExitCode;

use framewright_workload::bench::{Allocator, Runner};

fn runners() -> Vec<Box<dyn Runner>> {
    let mut runners = framewright_rivals::runners();
    runners.push(Box::new(Allocator::new("llfree", subject::subject)));
    runners
}

fn main() -> ExitCode {
    framewright_lab::cli::main_with_rivals(&[], Some(runners))
}
