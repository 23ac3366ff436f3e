//! Whether a preset does what the kernel of its name does: the same operations through both, one by one.
//!
//! | module | what it has |
//! |---|---|
//! | [`ops`] | a trace's allocations and frees as a list that a kernel module can replay |
//! | [`answer`] | the module's account of the kernel's per-CPU lists |
//! | [`layout`] | places of free blocks before the first operation |
//! | [`sequence`] | the list through a preset, and the first operation at which the two differ |
//!
//! `kernel/linux` boots a packaged Linux with the module, and runs this program before and afterwards. Kernel and
//! preset must agree operation by operation.
#![deny(unsafe_code)]

mod answer;
mod layout;
mod ops;
mod sequence;
mod step;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use framewright::Config;
use framewright_trace::input;
use framewright_trace::trace::Trace;

use crate::answer::Answer;
use crate::ops::Ops;
use crate::sequence::{Replayed, first_difference, first_other_frame};

/// Compare what a kernel's per-CPU lists did with what a preset does; kernel/linux runs it
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "fidelity", max_term_width = 80)]
struct Args {
    /// A trace
    #[arg(value_name = "TRACE", required_unless_present = "made_up")]
    trace: Option<PathBuf>,

    /// Instead of a trace's operations, some that are made up
    #[arg(long, conflicts_with = "trace")]
    made_up: bool,

    /// The preset
    #[arg(long, value_name = "NAME")]
    preset: String,

    /// Write the operations, for a kernel to replay
    #[arg(long, value_name = "FILE", conflicts_with = "answer", required_unless_present = "answer")]
    ops: Option<PathBuf>,

    /// Compare with what a kernel answered to these operations
    #[arg(long, value_name = "FILE")]
    answer: Option<PathBuf>,

    /// CPUs that the operations are shared out to
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(Ops::MOST_CPUS)))]
    cpus: u8,

    /// Operations to replay at most
    #[arg(long, value_name = "N", default_value_t = 120_000)]
    operations: usize,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fidelity: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes operations, or compares.
///
/// # Errors
/// A file cannot be read or written; the kernel's answer is incomplete; or kernel and preset differ.
fn run(args: &Args) -> Result<(), String> {
    let ops = match &args.trace {
        None => Ops::made_up(args.cpus, args.operations),
        Some(path) => {
            Ops::of_trace(&Trace::read(path).map_err(|error| error.to_string())?, args.cpus, args.operations)
        }
    };
    if let Some(path) = &args.ops {
        return fs::write(path, ops.to_bytes()).map_err(|error| format!("{}: {error}", path.display()));
    }
    let config = preset(&args.preset)?;
    let kernel = args.answer.as_ref().expect("clap demands --ops or --answer");
    let kernel = read_answer(kernel, &ops)?;
    let replayed = sequence::replay(&ops, &config, &kernel)?;
    println!("{}", sizes(&args.preset, &ops, &kernel, &replayed));
    let differences = differences(&kernel, &replayed);
    if !differences.is_empty() {
        return Err(format!("kernel and preset differ: {}", differences.join("; ")));
    }
    println!(
        "All {} refills and drains come at the same operations, with the same pages and the same high.\n\
         Every allocation up to the last of them got the same frame.\n\
         Free blocks by order at the end, on both sides: {:?}.",
        kernel.steps.len(),
        replayed.free_blocks
    );
    Ok(())
}

/// The configuration of a preset's name.
fn preset(name: &str) -> Result<Config, String> {
    Ok(match name {
        "linux_v3_0" => Config::linux_v3_0(),
        "linux_v5_4" => Config::linux_v5_4(),
        "linux_v6_1" => Config::linux_v6_1(),
        "linux_v6_7" => Config::linux_v6_7(),
        "linux_v6_16" => Config::linux_v6_16(),
        _ => return Err(format!("there is no preset {name}; linux_v6_7 is one")),
    })
}

/// The kernel's answer to all of `ops`.
fn read_answer(path: &Path, ops: &Ops) -> Result<Answer, String> {
    // A console may have lost some of it.
    let bytes = input::bytes(path, input::MOST, |_| Ok(())).map_err(|error| error.to_string())?;
    let answer = Answer::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|what| format!("{}: {what}", path.display()))?;
    if answer.ops != ops.list.len() as u64 || answer.failed > 0 {
        return Err(format!(
            "{}: the kernel ran {} of {} operations, and {} allocations failed",
            path.display(),
            answer.ops,
            ops.list.len(),
            answer.failed
        ));
    }
    Ok(answer)
}

/// The operations, the zone, and the lists' size on both sides.
fn sizes(preset: &str, ops: &Ops, kernel: &Answer, replayed: &Replayed) -> String {
    let (zone, rule) = (&kernel.states[0], &replayed.own_size);
    format!(
        "Preset {preset}; {} operations on {} CPUs in a zone of {} pages; batch {} and high {} to {}, by the preset's own \
         rule {} and {} to {}.",
        ops.list.len(),
        ops.cpus,
        zone.managed,
        zone.batch,
        zone.high_min,
        zone.high_max,
        rule.batch,
        rule.high_min,
        rule.high_max
    )
}

/// Differences between the kernel and the preset: in refills and drains, in frames, in free blocks at the end.
fn differences(kernel: &Answer, replayed: &Replayed) -> Vec<String> {
    let frames = first_other_frame(&kernel.steps, &replayed.steps).map(|(last, first)| {
        format!("allocations got the same frames up to operation {last}, and others before operation {first}")
    });
    let (theirs, ours) = (&kernel.states[1].free_blocks, &replayed.free_blocks);
    let at_end = (theirs != ours)
        .then(|| format!("free blocks by order at the end: kernel {theirs:?}, replayed {ours:?}"));
    first_difference(&kernel.steps, &replayed.steps).into_iter().chain(frames).chain(at_end).collect()
}
