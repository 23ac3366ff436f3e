//! `framewright replay`.

use std::path::PathBuf;

use crate::cli::{ReportArgs, Session};
use crate::command::{check_threads, count, cpus_here, mib};
use crate::configure::Setup;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::replaying::Replay;
use crate::result::{Kind, Part};
use crate::settings::Settings;
use crate::shipped;
use crate::table::Style;

const EXAMPLES: &str = "\
Examples:
  framewright replay compile.parquet
  framewright replay compile.parquet --base preset=linux_v5_4 --new preset=linux_v6_7
  framewright replay compile.parquet --new batch=7,high=42 --samples 20 -o ab.json

A CONFIG is key=value pairs with commas between them, applied in order;
`framewright settings` lists the keys. --new changes the baseline's settings: with
--base preset=linux_v5_4, --new lock_place=own_line differs in the lock alone.
Presets: framewright, linux_v3_0, linux_v5_4, linux_v6_1, linux_v6_7.";

/// Run a trace on real threads under two or more configurations
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// A trace that was recorded or imported
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// Configuration of the baseline [default: preset=linux_v5_4]
    #[arg(long, value_name = "CONFIG")]
    pub base: Option<String>,

    /// What another configuration changes of the baseline's; may be given again [default: preset=framewright]
    #[arg(long, value_name = "CONFIG")]
    pub new: Vec<String>,

    /// Threads to replay on; the traced CPUs are shared out to them [default: this machine's CPUs]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<u32>,

    /// Memory of each allocator, in MiB or as 4G [default: twice what the trace uses, at least 1024]
    #[arg(long, value_name = "MIB", value_parser = |text: &str| mib(text, 1, 1 << 24))]
    pub memory: Option<u64>,

    /// Measurements of each configuration, interleaved
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = count)]
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
    let threads = args.threads.map_or_else(cpus_here, |threads| threads as usize);
    check_threads(threads)?;
    let (setups, settings) = setups(args)?;
    let reporter = session.begin(&args.report)?;
    let (trace, id) = shipped::read(&args.trace)?;
    let replay = Replay::new(&trace, threads, args.memory.map(|mib| mib << 8))?;
    let mut part =
        Part::new("replay", "trace", Kind::Measured, "host").baseline(&*setups[0].0).seed(args.report.seed());
    for ((name, setup), settings) in setups.iter().zip(&settings) {
        part = part.variant(name);
        for what in setup.without_effect(settings) {
            part.note(what);
        }
    }
    part.trace = Some(id);
    if let Some(lost) = trace.meta.lost_events.filter(|&lost| lost > 0) {
        part.note(format!("{lost} events were lost when this was recorded."));
    }
    let progress = Progress::new("replay", u64::from(args.samples) * setups.len() as u64);
    replay.measure(&setups, args.samples, &mut part, &progress)?;
    drop(progress);
    let document = session.document(format!("replay {}", args.trace.display())).with(part);
    reporter.finish(&document, Style::Framewright)
}

/// The baseline and what is compared with it, by the names of their columns; and what was set for each.
type Setups = (Vec<(String, Setup)>, Vec<Settings>);

/// # Errors
/// A setting that does not exist, or a configuration that is given twice or changes nothing.
fn setups(args: &Args) -> Result<Setups> {
    let base = args.base.as_deref().unwrap_or("preset=linux_v5_4");
    let common = Settings::from_pairs(base)?;
    let baseline = Setup::from_settings(&common)?;
    let mut setups = vec![(if base.is_empty() { "preset=framewright" } else { base }.to_owned(), baseline)];
    let mut all = vec![common];
    let default = ["preset=framewright".to_owned()];
    for config in if args.new.is_empty() { &default[..] } else { &args.new } {
        let changes = Settings::from_pairs(config)?;
        if changes.iter().next().is_none() {
            return Err(Error::usage("--new '' changes nothing of the baseline"));
        }
        // A preset replaces what the baseline set.
        let name = if changes.get("preset").is_some() { config.clone() } else { format!("base + {config}") };
        if setups.iter().any(|(known, _)| *known == name) {
            return Err(Error::usage(format_args!("configuration `{config}` is given twice")));
        }
        setups.push((name, baseline.with(&changes)?));
        all.push(changes);
    }
    Ok((setups, all))
}
