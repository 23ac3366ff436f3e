//! `framewright import`.

use std::path::{Path, PathBuf};

use framewright_workload::import;
use framewright_workload::output::Output;

use crate::contention;
use crate::error::{Error, Result};
use crate::result::Document;
use crate::session::{Session, open};
use crate::table::{self, Format, Listing, Options, Style};

const EXAMPLES: &str = "\
Examples:
  framewright import perf.data -o compile.parquet
  perf script | framewright import - -o compile.parquet
  perf lock contention -i perf.data 2>&1 | framewright import -
  perf c2c report --stdio | framewright import - -o lines.json
  framewright import locks.txt --beside simulated.json

Events: kmem:mm_page_alloc, mm_page_free, mm_page_free_batched,
mm_page_alloc_zone_locked and mm_page_pcpu_drain. Reports of waits for locks
and cache lines become results: --beside puts what the simulator says there.";

/// Turn perf.data or the text of perf into a trace, or its reports of waits into results
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// perf.data, or the text of `perf script`, `perf lock contention` or `perf c2c report`; - is standard input
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Where the trace goes, as Parquet, or the results, as JSON
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// A simulated result, saved with -o, whose waits stand beside those of `perf lock contention`
    #[arg(long, value_name = "RESULT")]
    pub beside: Option<PathBuf>,
}

/// Imports a file whole, or says where it breaks and writes nothing.
///
/// # Errors
/// The file cannot be read, is none of these, or is cut off; or the trace or result cannot be written.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let output = args.output.as_deref().map(open).transpose()?;
    let is_stdin = args.file == Path::new("-");
    if let Some(output) = output.as_ref().filter(|output| !is_stdin && output.replaces(&args.file)) {
        let path = output.path().display();
        return Err(Error::usage(format_args!("{path} is the file to import; give the trace another name")));
    }
    let name = if is_stdin { "standard input".to_owned() } else { args.file.display().to_string() };
    let path = if is_stdin { Path::new("/dev/stdin") } else { &args.file };
    let bytes = import::read(path).map_err(Error::failed)?;
    if let Some(part) = str::from_utf8(&bytes).ok().and_then(contention::read) {
        let fault =
            |contention::Fault { line, what }| Error::failed(format_args!("{name}, line {line}: {what}"));
        let mut part = part.map_err(fault)?;
        if let Some(path) = &args.beside {
            let told = |what| Error::failed(format_args!("{}: {what}", path.display()));
            contention::beside(&mut part, &Document::read(path)?).map_err(told)?;
        }
        return show(&session.document(format!("import {name}")).with(part), output, session);
    }
    if args.beside.is_some() {
        return Err(Error::usage("--beside goes with a report of `perf lock contention`"));
    }
    let output = output.ok_or_else(|| Error::usage("say where the trace goes: -o TRACE"))?;
    let place = output.path().to_owned();
    let trace = import::from_bytes(&bytes, &name).map_err(Error::failed)?;
    trace.write_to(output).map_err(Error::failed)?;
    if trace.meta.lost_events.is_some_and(|lost| lost > 0) {
        eprintln!("framewright: events were lost when this was recorded; what depends on them is missing");
    }
    if !trace.meta.unknown_flags.is_empty() {
        eprintln!("framewright: unknown allocation flags count as 0: {}", trace.meta.unknown_flags);
    }
    if session.format == Format::Json {
        let json = serde_json::json!({
            "trace": place, "events": trace.events.len(), "lost_events": trace.meta.lost_events,
        });
        return session.terminal.print_data(&format!("{json:#}\n"));
    }
    let mut listing = Listing::new(&format!("Imported to {}", place.display()), &["name", "value"]);
    listing.row(["events".to_owned(), trace.events.len().to_string()]);
    let lost = trace.meta.lost_events.map_or_else(|| "unknown".to_owned(), |lost| lost.to_string());
    listing.row(["lost events".to_owned(), lost]);
    session.terminal.print(&listing.render(session.format, &session.terminal))
}

/// Prints a report's result, and saves it if that was asked for.
fn show(document: &Document, output: Option<Output>, session: &Session) -> Result<()> {
    output.map_or(Ok(()), |output| document.write_to(output))?;
    if session.format == Format::Json {
        return session.terminal.print_data(&document.to_json()?);
    }
    let tables = table::tables(document, Style::Framewright, Options::default());
    session.terminal.print(&table::render(&tables, session.format, &session.terminal))
}
