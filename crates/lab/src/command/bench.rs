//! `framewright bench`.

use framewright_workload::bench::{self, Allocator, Case, Runner, Scale, Workload};

use crate::cli::{ReportArgs, Session};
use crate::configure::{Descriptor, Setup};
use crate::error::{Error, Result, did_you_mean};
use crate::progress::Progress;
use crate::result::{Better, Kind, Part};
use crate::settings::Settings;
use crate::subject::ArenaTarget;
use crate::table::Style;

const EXAMPLES: &str = "\
Examples:
  framewright bench
  framewright bench --workload hot_pair --workload churn --order 0 --cpus 1,2
  framewright bench --rivals -o bench.json";

/// Measure the allocator with generated workloads, alone or against others
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only this workload; may be given again
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<String>,

    /// Block orders, with commas between them
    #[arg(long, value_delimiter = ',', default_value = "0,3,9", value_name = "ORDERS",
          value_parser = clap::value_parser!(u8).range(0..=10))]
    pub order: Vec<u8>,

    /// Numbers of threads, with commas between them
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_name = "COUNTS",
          value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Vec<u32>,

    /// Measure other allocators in the same run, in turns
    #[arg(long)]
    pub rivals: bool,

    /// Measurements of each allocator
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: u32,

    /// The allocator's configuration: key=value pairs with commas between them
    #[arg(long, value_name = "CONFIG")]
    pub config: Option<String>,

    /// Memory that each allocator manages in the timed workloads
    #[arg(long, default_value_t = 1024, value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(64..=1 << 20))]
    pub memory: u64,

    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as a heading")]
    pub report: ReportArgs,
}

/// Runs the workloads on this allocator, and on others if asked for, in turns.
///
/// # Errors
/// A workload or setting that does not exist, rivals that are not in this build, or no memory.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let workloads = if args.workload.is_empty() {
        Workload::ALL.to_vec()
    } else {
        args.workload
            .iter()
            .map(|name| {
                name.parse().map_err(|error: String| {
                    Error::usage(error + &did_you_mean(name, Workload::ALL.map(Workload::name)))
                })
            })
            .collect::<Result<_>>()?
    };
    let cpus: Vec<usize> = args.cpus.iter().map(|&cpus| cpus as usize).collect();
    let cases = Case::all(&workloads, &args.order, &cpus);
    if cases.is_empty() {
        return Err(Error::usage(
            "these workloads cannot run on so many threads; handoff needs an even number",
        ));
    }
    let setup = Setup::from_settings(&Settings::from_pairs(args.config.as_deref().unwrap_or(""))?)?;
    if setup.descriptor != Descriptor::Compact {
        return Err(Error::usage("bench measures compact descriptors; refill-check studies the others"));
    }
    let mut runners: Vec<Box<dyn Runner>> =
        vec![Box::new(Allocator::new("framewright", move |frames, cpus| {
            ArenaTarget::new(&setup, frames, cpus).map_err(|error| error.to_string())
        }))];
    if args.rivals {
        runners.extend(rivals()?);
    }
    let scale = Scale { frames: args.memory << 8, seed: args.report.seed, ..Scale::default() };
    let steps: usize =
        cases.iter().map(|case| case.workload.rounds(args.samples as usize) * runners.len()).sum();
    let progress = Progress::new("bench", steps as u64);
    let results = bench::interleave(&mut runners, &cases, &scale, args.samples as usize, |now| {
        progress.step(&format!("{} {}", now.allocator, now.case));
    })
    .map_err(Error::failed)?;
    drop(progress);

    let mut part =
        Part::new("bench", "workloads", Kind::Measured, "host").baseline("framewright").seed(scale.seed);
    for runner in &runners {
        part = part.variant(runner.name());
    }
    for result in &results {
        for series in &result.series {
            let better = match series.better {
                bench::Better::Lower => Better::Lower,
                bench::Better::Higher => Better::Higher,
            };
            let mut metric = part.metric(&series.name, series.unit, better);
            for (allocator, samples) in &series.samples {
                metric = metric.samples(allocator, samples.iter().copied());
            }
        }
        for (allocator, failures) in result.failures.iter().filter(|(_, failures)| *failures > 0) {
            part.note(format!(
                "{allocator} failed {failures} allocations in {}: its figures there do not compare.",
                result.case
            ));
        }
        if !result.pinned {
            part.note("Threads could not be pinned to CPUs.");
        }
    }
    let many = cpus.iter().copied().max().unwrap_or(1);
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    if many > available {
        part.note(format!(
            "{many} threads shared {available} CPUs: their figures show waiting, not the allocator."
        ));
    }
    session.report(&session.document("bench").with(part), &args.report, Style::Framewright)
}

#[cfg(feature = "rivals")]
fn rivals() -> Result<Vec<Box<dyn Runner>>> {
    Ok(framewright_rivals::runners())
}

#[cfg(not(feature = "rivals"))]
fn rivals() -> Result<Vec<Box<dyn Runner>>> {
    Err(Error::usage(
        "this build has no rivals; run `cargo run --release --features rivals -- bench --rivals` (needs a C compiler)",
    ))
}
