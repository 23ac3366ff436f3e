//! `framewright record`.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use framewright_trace::output::Output;
use framewright_trace::record::{self, Options, Recording, Scope, User};
use framewright_trace::trace::EventKind;

use crate::command::*;
use crate::progress::is_silent;

const EXAMPLES: &str = "\
Examples:
  framewright record -- make -j2
  framewright record -o compile.parquet -- cargo build
  framewright record --duration 10 -o server.parquet -- ./server
  framewright record -a --events fallbacks,compaction -- make -j2
  framewright record -p 4242 --duration 10

Needs root and a kernel with kmem tracepoints: sudo $(which framewright) record
finds it wherever it was installed. The command then runs as the user who called
sudo, and the trace belongs to that user. The trace names the command with its
arguments, so only its owner may read it.

Sets of --events: fallbacks, compaction, reclaim, locks, faults, ticks. Their
events are rows with a text in the trace. /proc/zoneinfo, buddyinfo,
pagetypeinfo and vmstat at the start and at the end are rows, too.

Exit status: that of the command, 128 and its number if a signal ended it; 0 if
--duration did. 1 if the trace lacks events after a full disk or --max-size.

DuckDB, Polars and pandas can open the trace.";

/// Record the page allocations of a command and its children
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File of the trace, as Parquet
    #[arg(short, long, default_value = "trace.parquet", value_name = "TRACE")]
    output: PathBuf,

    /// End the command and its children after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    duration: Option<Duration>,

    /// Run the command as this user [default: the user who invoked sudo, else the current user]
    #[arg(long, value_name = "NAME", value_parser = User::find)]
    user: Option<User>,

    /// Other events to record: sets, GROUP/ or GROUP/NAME
    #[arg(long, value_name = "SETS", value_delimiter = ',', default_value = "fallbacks")]
    events: Vec<String>,

    /// Record the whole machine
    #[arg(short = 'a', long, conflicts_with_all = ["pid", "cgroup"])]
    all: bool,

    /// Record a running process and what it starts, instead of a command
    #[arg(short, long, value_name = "PID", value_parser = count, conflicts_with_all = ["cgroup", "command"])]
    pid: Option<u32>,

    /// Record the processes of a control group, such as /sys/fs/cgroup/system.slice
    #[arg(long, value_name = "FOLDER")]
    cgroup: Option<PathBuf>,

    /// Stop recording at this size; the command keeps running
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = |text: &str| whole(text, 1_u64, 1 << 24))]
    max_size: u64,

    /// File of the summary [default: standard error]
    #[arg(long, value_name = "FILE")]
    summary: Option<PathBuf>,

    /// The command to record, after --
    #[arg(last = true, num_args = 1.., value_name = "COMMAND", required_unless_present_any = ["all", "pid", "cgroup"])]
    command: Vec<OsString>,
}

pub(super) fn seconds(text: &str) -> core::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&seconds: &f64| seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| "expected a number of seconds above 0".to_owned())
}

/// Records a command and shows a summary.
///
/// # Errors
/// Root or a tracepoint is missing, the command cannot be started or failed, or the trace cannot be written, or not
/// whole. A trace is written even if the command failed or recording stopped early.
pub fn run(args: &Args, session: &Session) -> Result<()> {
    let user = match &args.user {
        None => User::behind_sudo().map_err(Error::failed)?,
        named => named.clone(),
    };
    let output = open(&args.output)?;
    let summary = args.summary.as_deref().map(open).transpose()?;
    if summary.as_ref().is_some_and(|summary| summary.is_also(&output)) {
        return Err(Error::usage("-o and --summary name the same file"));
    }
    let folder = args.output.parent().filter(|folder| !folder.as_os_str().is_empty());
    // The folder of a device is no place for files.
    let elsewhere = std::fs::metadata(&args.output).is_ok_and(|there| !there.is_file());
    let spool = if elsewhere { std::env::temp_dir() } else { folder.unwrap_or(Path::new(".")).to_owned() };
    let options = Options {
        limit: args.duration,
        user: user.clone(),
        scope: match (&args.cgroup, args.pid) {
            (Some(path), _) => Scope::Group(path.clone()),
            (None, Some(pid)) => Scope::Process(pid),
            (None, None) if args.all => Scope::System,
            (None, None) => Scope::Tree,
        },
        events: args.events.iter().filter(|name| !name.is_empty()).cloned().collect(),
        most_bytes: args.max_size << 20,
        spool,
        ..Options::default()
    };
    for left in record::unfinished(&options.spool) {
        let left = left.display();
        say(&format!(
            "framewright: a recording that was killed left {left}: make a trace of it with `framewright import {left} -o TRACE`, \
             then remove it"
        ));
    }
    let recording = record::record(&args.command, &options).map_err(Error::failed)?;
    notice("framewright: compressing and writing the trace");
    if let Err(why) = recording.trace.write_to(output) {
        // It cannot be recorded again.
        let kept = record::write_elsewhere(&recording.trace, user.as_ref());
        let kept = kept.map_err(|also| Error::failed(format_args!("{why}; nor elsewhere: {also}")))?;
        return Err(Error::failed(format_args!("{why}; the trace is kept: it is in {}", kept.display())));
    }
    record::keep_private(&args.output, user.as_ref()).map_err(Error::failed)?;
    summarise(args, session, &recording, summary)?;
    if recording.trace.meta.lost_events.is_some_and(|lost| lost > 0) {
        say("framewright: the kernel lost events: record a shorter run, or fewer --events");
    }
    if let Some(why) = &recording.unsampled {
        say(&format!(
            "framewright: the kernel could not be sampled ({why}), so the share of page allocation is not known"
        ));
    }
    let ended = recording.status.map_or(Ok(()), |status| succeeded(status, recording.timed_out));
    if !recording.cut {
        return ended;
    }
    let why = if recording.disk_full {
        format!(
            "recording stopped before the command ended: no space left in {}, or `ulimit -f` allows no more; the events until then are in {}",
            options.spool.display(),
            args.output.display()
        )
    } else {
        format!(
            "recording stopped at {} MiB, before the command ended; --max-size MIB allows more",
            args.max_size
        )
    };
    if ended.is_ok() {
        return Err(Error::failed(why));
    }
    say(&format!("framewright: {why}"));
    ended
}

/// Shows what was recorded, away from the command's own output.
fn summarise(args: &Args, session: &Session, recording: &Recording, summary: Option<Output>) -> Result<()> {
    if is_silent() && summary.is_none() {
        return Ok(());
    }
    let Recording { trace, cost, .. } = recording;
    let lost = trace.meta.lost_events;
    let count = |kind| trace.count(kind);
    let sampled = Samples::of(trace);
    let others = trace.events.len() - count(EventKind::PageAlloc) - count(EventKind::PageFree);
    let text = if session.format == Format::Json {
        let json = serde_json::json!({
            "trace": args.output, "events": trace.events.len(), "allocations": count(EventKind::PageAlloc),
            "frees": count(EventKind::PageFree), "other_events": trace.notes.len(),
            "system_events": recording.system_events, "threads": recording.threads, "lost_events": lost,
            "cut": recording.cut, "recorded_bytes": cost.bytes, "reading_seconds": cost.reading.as_secs_f64(),
            "recording_percent": sampled.as_ref().map(Samples::recording_percent),
            "exit_code": recording.status.and_then(|status| status.code()),
        });
        format!("{json:#}\n")
    } else {
        let mut listing = Listing::new(&format!("Recorded to {}", args.output.display()), &["name", "value"]);
        for (name, value) in [
            ("events in the trace", trace.events.len().to_string()),
            ("allocations", count(EventKind::PageAlloc).to_string()),
            ("frees", count(EventKind::PageFree).to_string()),
            ("refills, drains and frees in batches", others.to_string()),
            ("snapshots of /proc, other events", trace.notes.len().to_string()),
            ("events of the machine", recording.system_events.to_string()),
            ("threads", recording.threads.to_string()),
            (
                "lost events of the machine",
                lost.map_or_else(|| "unknown".to_owned(), |lost| lost.to_string()),
            ),
            ("recorded, MiB", format!("{:.1}", cost.bytes as f64 / f64::from(1 << 20))),
            (
                "CPU time that recording added to the run, %",
                sampled.map_or_else(
                    || "unknown".to_owned(),
                    |known| format!("{:.1}", known.recording_percent()),
                ),
            ),
            ("CPU time of the reader of the buffers, s", format!("{:.3}", cost.reading.as_secs_f64())),
        ] {
            listing.row([name.to_owned(), value]);
        }
        // Neither standard error nor a file has the colours of standard output.
        listing.render(session.format, &Terminal { colour: false, ..session.terminal })
    };
    match summary {
        Some(summary) => summary.finish(text.as_bytes()).map_err(Error::failed),
        None => {
            say(text.trim_end());
            Ok(())
        }
    }
}

/// A command that was ended because its time was up has not failed.
fn succeeded(status: ExitStatus, timed_out: bool) -> Result<()> {
    let (how, code) = match (status.code(), status.signal()) {
        _ if timed_out || status.success() => return Ok(()),
        (Some(code), _) => (format!("failed with exit status {code}"), code),
        (None, signal) => {
            let signal = signal.unwrap_or_default();
            (format!("was ended by signal {signal}"), 128 + signal)
        }
    };
    Err(Error::Command(format!("the command {how}; its trace is kept"), code as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_that_no_clock_has_are_refused() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["1e30", "-1", "0", "nan", "inf", "soon"] {
            assert_eq!(seconds(text), Err("expected a number of seconds above 0".to_owned()), "{text}");
        }
    }
}
