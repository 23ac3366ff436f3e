//! `framewright record`.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;

use framewright_workload::record::{self, Options};
use framewright_workload::trace::EventKind;

use crate::cli::Session;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::table::{Format, Listing};

const EXAMPLES: &str = "\
Examples:
  framewright record -- make -j2
  framewright record -o compile.parquet -- cargo build
  framewright record --duration 10 -o server.parquet -- ./server

Needs root and a kernel with kmem tracepoints. DuckDB, Polars and pandas open the trace.";

/// Record the page allocations of a command and its children
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Where the trace goes, as Parquet
    #[arg(short, long, default_value = "trace.parquet", value_name = "TRACE")]
    pub output: PathBuf,

    /// End the command after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,

    /// The command to record, after --
    #[arg(last = true, required = true, num_args = 1.., value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

fn seconds(text: &str) -> core::result::Result<f64, String> {
    match text.parse() {
        Ok(seconds) if seconds > 0.0 && f64::is_finite(seconds) => Ok(seconds),
        _ => Err("expected a number of seconds above 0".to_owned()),
    }
}

/// Records a command and says what was recorded.
///
/// # Errors
/// Root or a tracepoint is missing, the command cannot be started or failed, or the trace cannot be written. A
/// trace is written even if the command failed.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let options = Options { limit: args.duration.map(Duration::from_secs_f64), ..Options::default() };
    let recording = {
        let _progress = Progress::unbounded("recording");
        record::record(&args.command, &options).map_err(Error::failed)?
    };
    recording.trace.write(&args.output).map_err(Error::failed)?;
    let events = &recording.trace.events;
    let count = |kind| events.iter().filter(|event| event.kind == kind).count();
    let lost = recording.trace.meta.lost_events;
    let mut listing = Listing::new(&format!("Recorded to {}", args.output.display()), &["", ""]);
    for (name, value) in [
        ("events of the command", events.len()),
        ("allocations", count(EventKind::PageAlloc)),
        ("frees", count(EventKind::PageFree)),
        ("events of the machine", recording.system_events),
        ("threads", recording.threads),
    ] {
        listing.row([name.to_owned(), value.to_string()]);
    }
    let lost_text = lost.map_or_else(|| "unknown".to_owned(), |lost| lost.to_string());
    listing.row(["lost events of the machine".to_owned(), lost_text]);
    if session.format == Format::Json {
        let json = serde_json::json!({
            "trace": args.output, "events": events.len(), "allocations": count(EventKind::PageAlloc),
            "frees": count(EventKind::PageFree), "system_events": recording.system_events,
            "threads": recording.threads, "lost_events": lost, "exit_code": recording.status.code(),
        });
        session.terminal.print_data(&format!("{json:#}\n"))?;
    } else {
        session.terminal.print(&listing.render(session.format, &session.terminal))?;
    }
    if lost.is_some_and(|lost| lost > 0) {
        eprintln!("framewright: the kernel lost events; record something shorter, or with less beside it");
    }
    succeeded(recording.status, args.duration.is_some())
}

/// A command that was ended because its time was up has not failed.
fn succeeded(status: ExitStatus, limited: bool) -> Result<()> {
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => {
            Err(Error::failed(format_args!("the command failed with exit code {code}; its trace is kept")))
        }
        None if limited => Ok(()),
        None => Err(Error::failed("the command was ended by a signal; its trace is kept")),
    }
}
