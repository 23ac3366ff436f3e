//! Whether a preset does what the kernel of its name does: the same operations through both, side by side.
//!
//! | module | what it has |
//! |---|---|
//! | [`ops`] | a trace's allocations and frees as a list that a kernel module can replay |
//! | [`answer`] | the module's account of the kernel's per-CPU lists |
//! | [`layout`] | places of free blocks before the first operation |
//! | [`sequence`] | the list through a preset, and the first operation at which the two differ |
//! | [`zone`] | a zone's size and lists from `/proc` |
//! | [`history`] | content of the kernel's lists, reconstructed from a recording's events |
//! | [`whole`] | a trace with the allocator's inside recorded, and the trace through a preset |
//!
//! `kernel/linux` boots a packaged Linux with the module. There the kernel and the preset must agree operation by
//! operation. In a recorded trace of a running machine, the content of the lists at its start and allocations without
//! an event are reconstructed first; then counts and the order of refills and drains are compared.
#![deny(unsafe_code)]

mod answer;
mod history;
mod layout;
mod ops;
mod sequence;
mod step;
mod whole;
mod zone;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser as _;
use framewright_report::error::{Error, Result};
use framewright_report::result::{Kind, Part};
use framewright_report::table::{Format, Style};
use framewright_report::terminal::{Colour, Terminal};
use framewright_trace::input;
use framewright_trace::trace::Trace;

use crate::answer::Answer;
use crate::history::History;
use crate::ops::Ops;
use crate::sequence::{first_difference, first_other_frame};
use crate::step::Step;
use crate::whole::{Moved, Run};
use framewright_lab::configure::Setup;
use framewright_lab::session::{ReportArgs, Session, open};
use framewright_lab::settings::Settings;

const EXAMPLES: &str = "\
Examples:
  fidelity inside.parquet
  fidelity inside.parquet --preset linux_v6_16 --format json
  kernel/linux traces/compile.parquet

The first two take a trace of `framewright record -a`, which has what the
kernel's own lists did. The third boots a packaged Linux 6.1 in an emulator,
replays any trace on its allocator and compares operation by operation.";

/// Operations that a kernel replays unless told otherwise.
const OPERATIONS: usize = 120_000;

/// Compare what a kernel's per-CPU lists did with what a preset does
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "fidelity", after_help = EXAMPLES, max_term_width = 80)]
struct Args {
    /// A trace; without --ops and --answer, one of `record -a`
    #[arg(value_name = "TRACE", required_unless_present = "made_up")]
    trace: Option<PathBuf>,

    /// Instead of a trace's operations, some that are made up; with --ops or --answer
    #[arg(long, conflicts_with = "trace")]
    made_up: bool,

    /// The preset [default: that of the recorded kernel's version]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,

    /// Only write the trace's operations, for a kernel to replay
    #[arg(long, value_name = "FILE", conflicts_with = "answer")]
    ops: Option<PathBuf>,

    /// Compare with what a kernel answered to these operations
    #[arg(long, value_name = "FILE")]
    answer: Option<PathBuf>,

    /// CPUs that the operations are shared out to, with --ops or --answer [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(Ops::MOST_CPUS)))]
    cpus: Option<u8>,

    /// Operations to replay at most, with --ops or --answer [default: 120000]
    #[arg(long, value_name = "N")]
    operations: Option<usize>,

    /// Fail if a CPU's counts differ by more than this
    #[arg(long, value_name = "PERCENT")]
    within: Option<f64>,

    /// Output format: table, json, csv or markdown
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    format: Format,

    #[command(flatten)]
    report: ReportArgs,
}

impl Args {
    /// The operations for a kernel, or those that it has answered.
    fn operations_of(&self, trace: &Trace) -> Ops {
        let (cpus, most) = (self.cpus.unwrap_or(1), self.operations.unwrap_or(OPERATIONS));
        if self.made_up { Ops::made_up(cpus, most) } else { Ops::of_trace(trace, cpus, most) }
    }

    /// The trace; an empty one for operations that are made up.
    fn read(&self) -> Result<Trace> {
        self.trace
            .as_ref()
            .map_or_else(|| Ok(Trace::default()), |path| Trace::read(path).map_err(Error::failed))
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let session =
        Session { rivals: None, format: args.format, terminal: Terminal::of_stdout(Colour::default()) };
    match run(&args, &session) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, Error::OutputClosed) {
                eprintln!("fidelity: {error}");
            }
            error.exit_code()
        }
    }
}

/// Compares, or writes operations.
///
/// # Errors
/// The trace cannot be read or has not what is needed; the kernel's answer is incomplete; or kernel and preset differ
/// by more than allowed.
fn run(args: &Args, session: &Session) -> Result<()> {
    let chooses = args.cpus.is_some() || args.operations.is_some() || args.made_up;
    if args.ops.is_none() && args.answer.is_none() && chooses {
        return Err(Error::usage(
            "--cpus, --operations and --made-up go with --ops or --answer: a recorded machine has its own",
        ));
    }
    if let Some(path) = &args.ops {
        let output = open(path)?;
        let ops = args.operations_of(&args.read()?);
        return output.finish(&ops.to_bytes()).map_err(Error::failed);
    }
    let reporter = session.begin(&args.report)?;
    let trace = args.read()?;
    let kernel = if args.answer.is_some() { "6.1" } else { trace.meta.kernel.as_str() };
    let preset = args.preset.clone().map_or_else(|| preset_of(kernel), Ok)?;
    let setup = Setup::from_settings(&Settings::from_pairs(&format!("preset={preset}"))?)?;
    let mut part = Part::new("fidelity", "trace", Kind::Measured, "host").baseline("kernel");
    part = part.variant("kernel").variant("replayed");
    part.note(match args.made_up {
        true => format!("Preset {preset}; the operations are made up."),
        false => format!("Preset {preset}; the trace's kernel is {}.", trace.meta.kernel),
    });
    let (kernel, replayed, difference) = match &args.answer {
        Some(path) => answered(&trace, path, args, &setup, &mut part)?,
        None => {
            let recorded = whole::recorded(&trace)?;
            if let Some(lost) = trace.meta.lost_events.filter(|&lost| lost > 0) {
                part.note(format!("{lost} events were lost when this was recorded."));
            }
            whole_machine(&trace, &recorded, &setup, &mut part)?
        }
    };
    let worst = compare(&mut part, &kernel, &replayed);
    let what = args.trace.as_ref().map_or_else(|| "--made-up".into(), |path| path.to_string_lossy());
    let document = session.document(format!("fidelity {what}")).with(part);
    reporter.finish(&document, Style::Framewright)?;
    match difference {
        Some(difference) if args.within.is_none() => {
            Err(Error::failed(format_args!("kernel and preset differ: {difference}")))
        }
        _ => match args.within.filter(|&within| worst > within) {
            Some(within) => {
                Err(Error::failed(format_args!("counts differ by up to {worst:.2} %, above {within} %")))
            }
            None => Ok(()),
        },
    }
}

/// The preset for a kernel's release.
fn preset_of(release: &str) -> Result<String> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|word| word.parse::<u32>().ok());
    match (numbers.next(), numbers.next()) {
        (Some(major), Some(minor)) => Ok(match (major, minor) {
            (..=4, _) => "linux_v3_0",
            (5, ..=12) => "linux_v5_4",
            (5, _) | (6, ..=6) => "linux_v6_1",
            (6, ..=15) => "linux_v6_7",
            _ => "linux_v6_16",
        }
        .to_owned()),
        _ => Err(Error::usage("the trace does not name its kernel; give --preset NAME")),
    }
}

/// Both sides of a recorded machine.
fn whole_machine(
    trace: &Trace,
    recorded: &whole::Recorded,
    setup: &Setup,
    part: &mut Part,
) -> Result<(Vec<Moved>, Vec<Moved>, Option<String>)> {
    let history = History::of(trace, &recorded.zone, recorded.start, recorded.end.as_ref());
    let replayed = whole::replayed(&history, recorded, setup)?;
    let kernel = whole::kernel(trace, recorded);
    part.note(format!(
        "{} pages were allocated without an event. {} pages lay on lists that were never empty: on which is not known.",
        history.hidden_pages, history.idle_pages
    ));
    if !history.ticks.is_empty() {
        part.note(format!("Lists shrink when `vmstat_update` ran: {} times.", history.ticks.len()));
    }
    if let Some(first) = history.first_tick {
        part.note(format!("Lists shrink from {:.3} s on, once a second.", first as f64 / 1e9));
    }
    let runs: usize = kernel.iter().map(|moved| moved.runs.len()).sum();
    part.note(match whole::first_difference(recorded.start, &kernel, &replayed) {
        None => format!("All {runs} refills and drains move as many pages, in the same order."),
        Some(difference) => format!("The first difference: {difference}."),
    });
    // Sums are what is compared here: their difference fails the command only with --within.
    Ok((kernel, replayed, None))
}

/// Both sides of a kernel's answer, and the first operation at which they differ.
fn answered(
    trace: &Trace,
    path: &Path,
    args: &Args,
    setup: &Setup,
    part: &mut Part,
) -> Result<(Vec<Moved>, Vec<Moved>, Option<String>)> {
    let bytes = input::text(path, input::MOST, "expected what a kernel answered").map_err(Error::failed)?;
    let answer = Answer::parse(&String::from_utf8_lossy(&bytes))
        .map_err(|what| Error::failed(format_args!("{}: {what}", path.display())))?;
    let ops = args.operations_of(trace);
    if answer.ops != ops.list.len() as u64 || answer.failed > 0 {
        return Err(Error::failed(format_args!(
            "{}: the kernel ran {} of {} operations, and {} allocations failed",
            path.display(),
            answer.ops,
            ops.list.len(),
            answer.failed
        )));
    }
    let ours = sequence::replay(&ops, setup, &answer)?;
    let zone = &answer.states[0];
    part.note(format!(
        "{} operations on {} CPUs in a zone of {} pages; batch {} and high {} to {}, by the preset's own rule {} and {} to {}.",
        ops.list.len(),
        ops.cpus,
        zone.managed,
        zone.batch,
        zone.high_min,
        zone.high_max,
        ours.own_size.batch,
        ours.own_size.high_min,
        ours.own_size.high_max
    ));
    let free = (&answer.states[1].free_blocks, &ours.free_blocks);
    let others = first_other_frame(&answer.steps, &ours.steps);
    let difference = first_difference(&answer.steps, &ours.steps);
    part.note(match &difference {
        None => format!("All {} refills and drains come at the same operations.", answer.steps.len()),
        Some(difference) => format!("The first difference: {difference}."),
    });
    let others = others.map(|(last, first)| {
        format!("allocations got the same frames up to operation {last}, and others before operation {first}")
    });
    part.note(match &others {
        None => "Every allocation up to the last of them got the same frame.".to_owned(),
        Some(others) => format!("Allocations differ in their frames: {others}."),
    });
    let at_end = (free.0 != free.1)
        .then(|| format!("free blocks by order at the end: kernel {:?}, replayed {:?}", free.0, free.1));
    part.note(match &at_end {
        None => format!("Free blocks by order at the end, on both sides: {:?}.", free.0),
        Some(at_end) => format!("Not the same {at_end}."),
    });
    let difference = difference.or(others).or(at_end);
    let mut allocated = vec![0; usize::from(ops.cpus)];
    for op in ops.list.iter().filter(|op| !op.is_free) {
        allocated[usize::from(op.cpu)] += 1_u64 << op.order;
    }
    Ok((sum(&answer.steps, &allocated), sum(&ours.steps, &allocated), difference))
}

/// Refills and drains of each CPU's lists, from the steps of all.
fn sum(steps: &[Step], allocated: &[u64]) -> Vec<Moved> {
    let moved = |(cpu, &allocated): (usize, &u64)| {
        let steps = steps.iter().filter(|step| usize::from(step.cpu) == cpu);
        let runs = steps.flat_map(|step| {
            // Which list it was is not told, and not compared.
            let refill = Run { time_ns: step.op, refills: Some(0), pages: step.refilled };
            [refill, Run { refills: None, pages: step.drained, ..refill }]
        });
        Moved::new(allocated, 0, runs.filter(|run| run.pages > 0).collect())
    };
    allocated.iter().enumerate().map(moved).collect()
}

/// Adds both sides' counts, in all and by CPU. Returns the largest difference of a CPU's refills, drains and their
/// pages, in percent of the kernel's.
fn compare(part: &mut Part, kernel: &[Moved], replayed: &[Moved]) -> f64 {
    whole::add_metrics(part, "kernel", kernel);
    whole::add_metrics(part, "replayed", replayed);
    let mut worst: f64 = 0.0;
    for (kernel, replayed) in kernel.iter().zip(replayed) {
        let pairs = kernel.counts.named().into_iter().zip(replayed.counts.named());
        for ((_, kernel), (_, replayed)) in pairs.take(4) {
            worst = worst.max(100.0 * (replayed - kernel).abs() / kernel.max(1.0));
        }
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_by_release() {
        for (release, preset) in [
            ("3.0.101", "linux_v3_0"),
            ("5.4.0-42-generic", "linux_v5_4"),
            ("5.15.0", "linux_v6_1"),
            ("6.1.0-56-amd64", "linux_v6_1"),
            ("6.12.117+deb12-amd64", "linux_v6_7"),
            ("6.18.44-fc", "linux_v6_16"),
            ("7.0.0", "linux_v6_16"),
        ] {
            assert_eq!(preset_of(release).unwrap(), preset);
        }
        assert!(preset_of("").is_err());
    }
}
