//! Traces that other tools recorded: the text of `perf script`, of ftrace and of `trace-cmd report`. A `perf.data` file or a
//! `trace.dat` is turned into that text by the tool that wrote it.
//!
//! A text is imported whole or refused with the place where it breaks. All its page-allocator events are
//! imported: unlike a recording, such a file does not name the processes that it is about.
//!
//! `linux-perf-data` 0.13, the crate that reads `perf.data`, was tried: it reserves the memory that a damaged file asks for, which
//! ends the process, and it reads samples with `PERF_SAMPLE_READ` of groups as those of single events, and the reverse.

mod perf_script;

use std::io::{Seek as _, Write as _};
use std::path::Path;
use std::process::Command;

use crate::error::{Error, Place};
use crate::input;
use crate::kmem::report::{Names, Report, What};
use crate::trace::{Meta, Trace};

/// The number under which events of threads appear that had ended when they were recorded: perf says -1 there.
/// It is the kernel's own.
const ENDED_THREAD: u32 = 0;

const FIX: &str =
    "give a file of `perf record -a -e 'kmem:mm_page_*'`, or the text that `perf script` makes of it";

/// Imports a `perf.data` file, a `trace.dat` file or the text made of one; its content says which.
///
/// # Errors
/// The file cannot be read, is none of these, is cut off or damaged, or holds no page-allocator events: one line
/// with the place. Or the tool that wrote a binary file is not installed here.
pub fn import(path: &Path) -> Result<Trace, Error> {
    from_bytes(&read(path)?, &path.display().to_string())
}

/// The bytes of a file that may be imported; others are refused after the first of them.
///
/// # Errors
/// The file cannot be read, or is neither `perf.data` nor text.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    input::bytes(path, u64::MAX >> 1, |first| {
        let magics = PERF_DATA.iter().copied().chain([TRACE_DAT, b"PAR1"]);
        let is_known = magics.into_iter().any(|magic| first.starts_with(magic));
        let is_text = !first.contains(&0);
        (is_known || is_text).then_some(()).ok_or_else(|| ("neither perf.data nor text".to_owned(), FIX))
    })
}

/// Imports the bytes of a file; `name` is what errors call it.
///
/// # Errors
/// As [`import`].
pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Trace, Error> {
    let refuse = |what: &str, fix| Err(Error::refused(name, Place::Byte(0), what, fix));
    let trace = if bytes.is_empty() {
        return refuse("an empty file", FIX);
    } else if bytes.starts_with(b"PAR1") {
        return refuse("already a trace", "give it to `framewright replay` as it is");
    } else if bytes.starts_with(TRACE_DAT) {
        TRACE_CMD.trace(bytes, name)?
    } else if PERF_DATA.iter().any(|magic| bytes.starts_with(magic)) {
        let mut trace = PERF.trace(bytes, name)?;
        trace.meta.source = "perf.data".into();
        // The text names each loss; without one nothing was lost.
        trace.meta.lost_events.get_or_insert(0);
        trace
    } else if bytes.contains(&0) {
        return refuse("neither perf.data nor text", FIX);
    } else if WAITS.iter().any(|title| bytes.windows(title.len()).any(|words| words == *title)) {
        return refuse("a report of `perf lock` or `perf c2c`, which import does not read", FIX);
    } else {
        perf_script::parse(bytes).map_err(|fault| {
            let place = Place::Line { line: fault.line, byte: fault.byte };
            Error::refused(name, place, fault.what, FIX)
        })?
    };
    if trace.events.is_empty() {
        return Err(Error::refused(name, Place::Unknown, "holds no page-allocator events", FIX));
    }
    Ok(trace)
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
    ],
    fix: "where perf can read it, run `perf script | framewright import - -o TRACE`",
};

impl Printer {
    /// The trace in a file of the command.
    fn trace(&self, bytes: &[u8], name: &str) -> Result<Trace, Error> {
        let refused = |what| Error::refused(name, Place::Byte(0), what, self.fix);
        let text = self.text(bytes).map_err(refused)?;
        from_bytes(&text, &format!("{} {} of {name}", self.command, self.arguments[0]))
    }

    /// The text that the command prints of a file.
    fn text(&self, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let command = self.command;
        // Without a name, so that it is gone with this process, however that ends.
        let file = tempfile::tempfile().and_then(|mut file| {
            file.write_all(bytes)?;
            file.rewind().map(|()| file)
        });
        let file = file.map_err(|cause| format!("no temporary file for {command}: {cause}"))?;
        let printed = Command::new(command).args(self.arguments).stdin(file).output();
        let printed = printed
            .map_err(|cause| format!("a file of {command}, which cannot be started here ({cause})"))?;
        let mistakes = String::from_utf8_lossy(&printed.stderr);
        let first = mistakes.lines().find(|line| !line.trim().is_empty()).unwrap_or("without a reason");
        if !printed.status.success() || printed.stdout.is_empty() {
            return Err(format!("{command} refuses the file: {}", first.trim()));
        }
        Ok(printed.stdout)
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
