//! Traces that other tools recorded: the text of `perf script`, of ftrace and of `trace-cmd report`. A `perf.data` file
//! or a `trace.dat` is turned into that text by the tool that wrote it.
//!
//! A text is imported whole or refused with the place where it breaks. All its page-allocator events are
//! imported: unlike a recording, such a file does not name the processes that it is about.
//!
//! `linux-perf-data` 0.13, the crate that reads `perf.data`, was tried: it reserves the memory that a damaged file asks
//! for, which ends the process, and it reads samples with `PERF_SAMPLE_READ` of groups as those of single events, and
//! the reverse.

mod perf_script;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Place};
use crate::kmem::report::{Names, Report, What};
use crate::record;
use crate::trace::{Meta, Trace};

/// The number under which events of threads appear that had ended when they were recorded: perf says -1 there.
/// It is the kernel's own.
const ENDED_THREAD: u32 = 0;

const FIX: &str =
    "give a file of `perf record -a -e 'kmem:mm_page_*'`, or the text that `perf script` makes of it";

/// Imports a `perf.data` file, a `trace.dat` file or the text made of one, or the folder that a killed recorder left;
/// its content says which. Texts are read line by line, and binary files by the tool that wrote them: memory goes with
/// the events, not with the file. `name` is what errors call it.
///
/// # Errors
/// The file cannot be read, is none of these, is cut off or damaged, or holds no page-allocator events: one line
/// with the place. Or the tool that wrote a binary file is not installed here.
pub fn import(path: &Path, name: &str) -> Result<Trace, Error> {
    if path.is_dir() {
        return record::finish(path);
    }
    let failed = |cause| Error::io("read", path, cause);
    let mut file = File::open(path).map_err(failed)?;
    let mut first = Vec::new();
    file.by_ref().take(FIRST).read_to_end(&mut first).map_err(failed)?;
    if file.metadata().map_err(failed)?.is_file() {
        file.rewind().map_err(failed)?;
        from(&first, Source::File(file), name)
    } else {
        from(&first, Source::Stream(Box::new(Cursor::new(first.clone()).chain(file))), name)
    }
}

/// Imports the bytes of a file; `name` is what errors call it.
///
/// # Errors
/// As [`import`].
pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Trace, Error> {
    from(&bytes[..bytes.len().min(FIRST as usize)], Source::Stream(Box::new(bytes)), name)
}

/// Bytes that are looked at to see what a file is.
const FIRST: u64 = 4096;

/// All of an input, from its beginning.
enum Source<'a> {
    File(File),
    Stream(Box<dyn Read + 'a>),
}

/// Imports what begins with `first`.
fn from(first: &[u8], source: Source<'_>, name: &str) -> Result<Trace, Error> {
    let refuse = |what: &str, fix| Err(Error::refused(name, Place::Byte(0), what, fix));
    let trace = if first.is_empty() {
        return refuse("an empty file", FIX);
    } else if first.starts_with(b"PAR1") {
        return refuse("already a trace", "give it to `framewright replay` as it is");
    } else if first.starts_with(TRACE_DAT) {
        TRACE_CMD.trace(source, name)?
    } else if PERF_DATA.iter().any(|magic| first.starts_with(magic)) {
        let mut trace = PERF.trace(source, name)?;
        trace.meta.source = "perf.data".into();
        // The text names each loss; without one nothing was lost.
        trace.meta.lost_events.get_or_insert(0);
        trace
    } else if first.contains(&0) {
        return refuse("neither perf.data nor text", FIX);
    } else if WAITS.iter().any(|title| first.windows(title.len()).any(|words| words == *title)) {
        return refuse("a report of `perf lock` or `perf c2c`, which import does not read", FIX);
    } else {
        match source {
            Source::File(file) => text(BufReader::new(file), name)?,
            Source::Stream(stream) => text(BufReader::new(stream), name)?,
        }
    };
    if trace.events.is_empty() {
        return Err(Error::refused(name, Place::Unknown, "holds no page-allocator events", FIX));
    }
    Ok(trace)
}

fn text(text: impl BufRead, name: &str) -> Result<Trace, Error> {
    perf_script::parse(text).map_err(|fault| {
        let place = Place::Line { line: fault.line, byte: fault.byte };
        Error::refused(name, place, fault.what, FIX)
    })
}

/// Titles of perf's reports of waits for locks and for cache lines.
const WAITS: [&[u8]; 2] = [b"total wait     max wait", b"Shared Data Cache Line Table"];

/// First bytes of a file of `trace-cmd record`.
const TRACE_DAT: &[u8] = b"\x17\x08\x44tracing";

/// First bytes of a file of `perf record`, of machines of either byte order.
const PERF_DATA: [&[u8]; 2] = [b"PERFILE2", b"2ELIFREP"];

/// A command that prints its own binary files as text. Such a format has several versions and belongs to that command.
struct Printer {
    command: &'static str,
    /// They read the file from standard input.
    arguments: &'static [&'static str],
    /// Advice where it is not installed, or refuses the file.
    fix: &'static str,
}

const TRACE_CMD: Printer = Printer {
    command: "trace-cmd",
    arguments: &["report", "-t", "-i", "/dev/stdin"],
    fix: "give the text of `trace-cmd report`",
};

const PERF: Printer = Printer {
    command: "perf",
    arguments: &[
        "script",
        // The file has no name, and so no owner that perf would accept.
        "--force",
        "--input=/dev/stdin",
        "--header",
        "--show-lost-events",
        "--ns",
        "--fields=trace:comm,tid,cpu,time,event,trace",
        // Samples of a clock, with the functions that were called.
        "--fields=sw:comm,tid,cpu,time,period,event,ip,sym,dso",
    ],
    fix: "where perf can read it, run `perf script | framewright import - -o TRACE`",
};

impl Printer {
    /// The trace in a file of the command, by the text that the command prints of it.
    fn trace(&self, source: Source<'_>, name: &str) -> Result<Trace, Error> {
        let refused = |what: String| Error::refused(name, Place::Byte(0), what, self.fix);
        let command = self.command;
        // Without a name, so that it is gone with this process, however that ends.
        let temporary = || {
            tempfile::tempfile().map_err(|cause| refused(format!("no temporary file for {command}: {cause}")))
        };
        let file = match source {
            Source::File(file) => file,
            Source::Stream(mut stream) => {
                let mut file = temporary()?;
                let copied = io::copy(&mut stream, &mut file).and_then(|_| file.rewind());
                copied.map_err(|cause| refused(format!("no temporary file for {command}: {cause}")))?;
                file
            }
        };
        let mut mistakes = temporary()?;
        let errors = mistakes.try_clone().map_err(|cause| refused(cause.to_string()))?;
        let child = Command::new(command)
            .args(self.arguments)
            .stdin(file)
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn();
        let mut child = child.map_err(|cause| {
            refused(format!("a file of {command}, which cannot be started here ({cause})"))
        })?;
        let mut printed = BufReader::new(child.stdout.take().expect("it is piped"));
        let title = format!("{command} {} of {name}", self.arguments[0]);
        let is_empty = printed.fill_buf().is_ok_and(<[u8]>::is_empty);
        let trace = text(&mut printed, &title);
        // What was printed after a fault is not read.
        drop(printed);
        let status = child.wait().map_err(|cause| refused(cause.to_string()))?;
        if is_empty || (!status.success() && trace.is_ok()) {
            let mut said = Vec::new();
            let _ = mistakes.rewind().and_then(|()| mistakes.take(FIRST).read_to_end(&mut said));
            let said = String::from_utf8_lossy(&said);
            let first = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("without a reason");
            return Err(refused(format!("{command} refuses the file: {}", first.trim())));
        }
        trace
    }
}

/// A trace of all the pages among reports, in order of time.
fn whole(mut reports: Vec<Report>, meta: Meta) -> Trace {
    // Stable: reports of the same time keep the file's order.
    reports.sort_by_key(|report| report.time_ns);
    let mut trace = Trace { meta, ..Trace::default() };
    let mut names = Names::default();
    for report in &reports {
        names.note(report);
        match &report.what {
            What::Page(page) => {
                let comm = names.intern(report, &mut trace.comms);
                trace.events.push(report.event(page, comm));
            }
            What::NoPage => trace.meta.failed_allocations += 1,
            What::Fork { .. } | What::Rename { .. } | What::Other { .. } | What::Sample(_) => {}
        }
    }
    trace
}
