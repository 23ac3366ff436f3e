//! `framewright replay`.

use std::path::PathBuf;

use framewright_workload::trace::Trace;

use crate::cli::{ReportArgs, Session};
use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::replaying::Replay;
use crate::result::{Kind, Part};
use crate::settings::Settings;
use crate::table::Style;

const EXAMPLES: &str = "\
Examples:
  framewright replay compile.parquet
  framewright replay compile.parquet --base preset=linux_v5_4 --new preset=linux_v6_7
  framewright replay compile.parquet --base pcp_rule=v5_4 \\
      --new pcp_rule=v6_1 --new pcp_rule=auto --threads 2 --samples 20 -o ab.json

A CONFIG is key=value pairs with commas between them.";

/// Run a trace on real threads under two or more configurations
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Configuration of the baseline
    #[arg(long, value_name = "CONFIG")]
    pub base: Option<String>,

    /// Configuration to compare with it; may be given again
    #[arg(long, value_name = "CONFIG")]
    pub new: Vec<String>,

    /// Threads to replay on; the traced CPUs are shared out to them [default: this machine's CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub threads: Option<u32>,

    /// Memory of each allocator [default: twice what the trace uses, at least 1024]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 24))]
    pub memory: Option<u64>,

    /// Measurements of each configuration, taken in turns
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub samples: u32,

    #[command(flatten)]
    #[expect(missing_docs, reason = "clap would show it as a heading")]
    pub report: ReportArgs,
}

/// Replays a trace under the baseline and every other configuration.
///
/// # Errors
/// The trace cannot be read or holds nothing, or a setting does not exist.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let base = args.base.as_deref().unwrap_or("preset=linux_v5_4");
    let new = if args.new.is_empty() { vec!["preset=framewright".to_owned()] } else { args.new.clone() };
    let mut setups = Vec::new();
    for config in core::iter::once(base).chain(new.iter().map(String::as_str)) {
        if setups.iter().any(|(name, _)| name == config) {
            return Err(Error::usage(format_args!("configuration `{config}` is given twice")));
        }
        setups.push((config.to_owned(), Setup::from_settings(&Settings::from_pairs(config)?)?));
    }
    let trace = Trace::read(&args.trace).map_err(Error::failed)?;
    let threads = args.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, usize::from),
        |threads| threads as usize,
    );
    let replay = Replay::new(&trace, threads, args.memory.map(|mib| mib << 8))?;
    let mut part = Part::new("replay", "trace", Kind::Measured, "host").baseline(base).seed(args.report.seed);
    for (name, _) in &setups {
        part = part.variant(name);
    }
    if let Some(lost) = trace.meta.lost_events.filter(|&lost| lost > 0) {
        part.note(format!("{lost} events were lost when this was recorded."));
    }
    let progress = Progress::new("replay", u64::from(args.samples) * setups.len() as u64);
    replay.measure(&setups, args.samples, &mut part, &progress)?;
    drop(progress);
    let document = session.document(format!("replay {}", args.trace.display())).with(part);
    session.report(&document, &args.report, Style::Framewright)
}
