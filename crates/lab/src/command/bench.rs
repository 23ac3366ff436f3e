//! `framewright bench`.

use clap::builder::PossibleValuesParser;
use framewright_host::{Config, Engine};
use framewright_report::result::Better;
use framewright_subject::runner;
use framewright_workload::bench::{self, Beside, Case, Runner, Scale, Workload};

use crate::command::*;
use crate::configure::{Descriptor, Measures};

const EXAMPLES: &str = "\
Examples:
  framewright bench
  framewright bench --workload hot_pair,churn --order 0 --cpus 1,2
  framewright bench --workload mixed --busy 2
  framewright bench --rivals -o bench.json";

/// Factor on the number of operations that are timed beside busy threads.
const OPERATIONS_BESIDE: u64 = 64;

/// Measure the allocator with generated workloads, alone or against others
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Only these workloads, with commas between them; may be given again
    #[arg(long, value_delimiter = ',', value_name = "NAMES", value_parser = names())]
    workload: Vec<String>,

    /// Block orders, with commas between them [default: 0,3,9]
    #[arg(long, value_delimiter = ',', value_name = "ORDERS", value_parser = |text: &str| whole(text, 0_u8, 10))]
    order: Vec<u8>,

    /// Numbers of threads, with commas between them [default: 1,2]
    #[arg(long, value_delimiter = ',', value_name = "COUNTS", value_parser = count)]
    cpus: Vec<u32>,

    /// Measure other allocators in the same run, interleaved: all, or these, with commas between them
    #[arg(long, num_args = 0..=1, require_equals = true, value_delimiter = ',', value_name = "NAMES")]
    rivals: Option<Vec<String>>,

    /// Measure each allocator also beside N threads that keep a processor busy, interleaved
    #[arg(long, value_name = "N", value_parser = count)]
    busy: Option<u32>,

    /// Measure compact metadata, too: two bits for each frame instead of a word
    #[arg(long)]
    compact: bool,

    /// Measurements of each allocator
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count)]
    samples: u32,

    /// The allocator's configuration: key=value pairs with commas between them
    #[arg(long, value_name = "CONFIG")]
    config: Option<String>,

    /// Memory that each allocator manages in the timed workloads, in MiB or as 4G [default: 1024]
    #[arg(long, value_name = "MIB", value_parser = |text: &str| mib(text, 64, 1 << 20))]
    memory: Option<u64>,

    #[command(flatten)]
    seed: Seed,

    #[command(flatten)]
    report: ReportArgs,
}

/// Runs the workloads on this allocator, and on others if asked for, interleaved.
///
/// # Errors
/// A workload or setting that does not exist, rivals that are not in this program, or no memory.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let workloads = if args.workload.is_empty() {
        Workload::ALL.to_vec()
    } else {
        let parse = |name: &String| name.parse().map_err(|error: String| Error::usage(error));
        args.workload.iter().map(parse).collect::<Result<_>>()?
    };
    let (cpus, orders) = (counts(args)?, once(if args.order.is_empty() { &[0, 3, 9] } else { &args.order }));
    if !args.order.is_empty() && !workloads.iter().any(|workload| workload.has_order()) {
        return Err(Error::usage("these workloads allocate no blocks of one order: --order changes nothing"));
    }
    let timed = |workload: &Workload| workload.runs_on(2);
    if (!args.cpus.is_empty() || args.memory.is_some() || args.busy.is_some()) && !workloads.iter().any(timed)
    {
        return Err(Error::usage(
            "these workloads have one thread and memory of their own: --cpus, --memory and --busy change nothing",
        ));
    }
    check_threads(args.busy.unwrap_or(0) as usize)?;
    let cases = Case::all(&workloads, &orders, &cpus);
    if cases.is_empty() {
        return Err(Error::usage("handoff needs an even number of threads, such as --cpus 2"));
    }
    let settings = Settings::from_pairs(args.config.as_deref().unwrap_or(""))?;
    let setup = Setup::default().with(&settings)?;
    if setup.descriptor != Descriptor::Compact {
        return Err(Error::usage(
            "bench has descriptors of 8 bytes only: `framewright study refill-check` has others",
        ));
    }
    let reporter = session.begin(&args.report, &[])?;
    let mut runners = runners(args, session, setup)?;
    let memory = args.memory.unwrap_or(1024);
    let mut scale = Scale { frames: memory << 8, seed: args.seed.seed, ..Scale::default() };
    if args.busy.is_some() {
        // Several time slices: a thread that is preempted is so within each figure.
        scale.operations *= OPERATIONS_BESIDE;
    }
    let steps: usize =
        cases.iter().map(|case| case.workload.rounds(args.samples as usize) * runners.len()).sum();
    let progress = Progress::interruptible("bench", steps as u64);
    let mut done = 0;
    let results = bench::interleave(&mut runners, &cases, &scale, args.samples as usize, |now| {
        done = now.done;
        progress.step(&format!("{} {}", now.allocator, now.case));
        !progress.is_interrupted()
    })
    .map_err(Error::failed)?;
    let ended = progress.ended(done, steps, "measurements");
    drop(progress);

    let mut part = described(
        Part::new("bench", "workloads", Kind::Measured, "host").seed(scale.seed),
        &results,
        &runners,
    );
    part.condition("memory_mib", memory);
    if let Some(busy) = args.busy {
        part.condition("busy_threads", u64::from(busy));
    }
    part.settings.insert("framewright".to_owned(), setup.described());
    for what in setup.without_effect(&settings, Measures::Workloads) {
        part.note(what);
    }
    let many = cpus.iter().copied().max().unwrap_or(1);
    if many > cpus_here() {
        part.note(crowded(many));
    }
    reporter.end(session.document("bench"), part, ended)
}

/// The allocators to measure; each twice, if also beside busy threads.
fn runners(args: &Args, session: &Session, setup: Setup) -> Result<Vec<Box<dyn Runner>>> {
    let all = || -> Result<Vec<Box<dyn Runner>>> {
        let mut runners = vec![runner("framewright", setup.config)];
        if args.compact {
            let config = Config { engine: Engine::Compact, lazy_pageblocks: true, ..setup.config };
            runners.push(runner("framewright_compact", config));
        }
        if let Some(names) = &args.rivals {
            let rivals = session.rivals.ok_or_else(|| {
                Error::usage(
                    "this command has no rivals; run `cargo run --release --package framewright-versus -- bench \
                     --rivals` (needs a C compiler)",
                )
            })?;
            runners.extend(chosen(rivals(), names)?);
        }
        Ok(runners)
    };
    let mut runners = all()?;
    if let Some(busy) = args.busy {
        let beside = |runner| -> Box<dyn Runner> { Box::new(Beside::new(runner, busy as usize)) };
        runners.extend(all()?.into_iter().map(beside));
    }
    Ok(runners)
}

/// The rivals with these names, in their own order; all of them where no name is given.
fn chosen(mut rivals: Vec<Box<dyn Runner>>, names: &[String]) -> Result<Vec<Box<dyn Runner>>> {
    let known: Vec<_> = rivals.iter().map(|rival| rival.name().to_owned()).collect();
    if let Some(unknown) = names.iter().find(|name| !known.contains(name)) {
        return Err(Error::usage(format!("no rival {unknown:?}: this program has {}", known.join(", "))));
    }
    rivals.retain(|rival| names.is_empty() || names.iter().any(|name| name == rival.name()));
    Ok(rivals)
}

/// The measurements as a part of the result.
fn described(mut part: Part, results: &[bench::CaseResult], runners: &[Box<dyn Runner>]) -> Part {
    part = part.baseline("framewright").paired().table();
    for runner in runners {
        part = part.variant(runner.name());
    }
    for result in results {
        for series in &result.series {
            let better = if series.higher_is_better { Better::Higher } else { Better::Lower };
            let mut metric = part.metric(&series.name, series.unit, better);
            for (allocator, samples) in &series.samples {
                metric = metric.samples(allocator, samples.iter().copied());
            }
            if result.case.workload.rounds(2) == 1 {
                metric.exact();
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
    part
}

/// Names of the workloads, for `--help` and suggestions.
fn names() -> PossibleValuesParser {
    PossibleValuesParser::new(Workload::ALL.map(Workload::name))
}

/// Numbers of threads, each once.
fn counts(args: &Args) -> Result<Vec<usize>> {
    let cpus: Vec<usize> = args.cpus.iter().map(|&cpus| cpus as usize).collect();
    let cpus = once(if cpus.is_empty() { &[1, 2] } else { &cpus });
    cpus.iter().copied().try_for_each(check_threads)?;
    Ok(cpus)
}

/// Each value once, in the order given: a number that is repeated would be measured twice and pooled.
fn once<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for &value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}
