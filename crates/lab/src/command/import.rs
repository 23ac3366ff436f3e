//! `framewright import`.

use framewright_trace::{import, record};

use crate::command::*;

const EXAMPLES: &str = "\
Examples:
  framewright import perf.data -o compile.parquet
  perf script | framewright import - -o compile.parquet
  framewright import framewright-4f2a.recording -o compile.parquet

Events: kmem:mm_page_alloc, mm_page_free, mm_page_free_batched,
mm_page_alloc_zone_locked and mm_page_pcpu_drain; samples of cpu-clock with call
chains (-g) give the share of page allocation. The reports of `perf lock` and
`perf c2c` are not read. A folder NAME.recording is what `record` leaves where
the trace was to go, if it is killed.";

/// Turn perf.data, the text of perf script or a killed recording into a trace
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// perf.data, the text of `perf script`, or the folder of a killed recording; - is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// File of the trace, as Parquet
    #[arg(short, long, value_name = "TRACE")]
    output: PathBuf,
}

/// Imports a file whole, or says where it breaks and writes nothing.
///
/// # Errors
/// The file cannot be read, is neither, or is cut off; or the trace cannot be written.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let output = open_beside(&args.output, &[&args.file])?;
    let is_stdin = args.file == Path::new("-");
    let name = if is_stdin { "standard input".to_owned() } else { args.file.display().to_string() };
    let path = if is_stdin { Path::new("/dev/stdin") } else { &args.file };
    let place = output.path().to_owned();
    let trace = import::import(path, &name).map_err(Error::failed)?;
    trace.write_to(output).map_err(Error::failed)?;
    if !trace.meta.command.is_empty() {
        record::keep_private(&place, None).map_err(Error::failed)?;
    }
    if trace.meta.lost_events.is_some_and(|lost| lost > 0) {
        say("framewright: events were lost when this was recorded: frees of some blocks may be missing");
    }
    if !trace.meta.unknown_flags.is_empty() {
        say(&format!("framewright: unknown allocation flags count as 0: {}", trace.meta.unknown_flags));
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
