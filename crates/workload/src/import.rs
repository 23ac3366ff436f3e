//! Traces that other tools recorded: `perf.data` files, the text of `perf script` and of ftrace, and `trace.dat` files of
//! `trace-cmd`, which that command reads for us.
//!
//! | module | what it holds |
//! |---|---|
//! | `cursor` | reading numbers and strings off bytes, never past their end |
//! | `perf_data` | the binary file of `perf record` |
//! | `samples` | the layouts of its samples |
//! | `tracing_data` | the part of it that says how events are laid out |
//! | `perf_script` | the text |
//!
//! A file is imported whole or refused with the place where it breaks. All its page-allocator events are
//! taken, whoever caused them: unlike a recording, such a file does not say whose tree it is about.

mod cursor;
mod perf_data;
mod perf_script;
mod samples;
mod tracing_data;

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

/// Imports a `perf.data` file or the text of `perf script`; its content says which.
///
/// # Errors
/// The file cannot be read, is neither, is cut off or damaged, or holds no page-allocator events: one line
/// with the place.
pub fn import(path: &Path) -> Result<Trace, Error> {
    from_bytes(&read(path)?, &path.display().to_string())
}

/// The bytes of a file that may be imported; others are refused after the first of them.
///
/// # Errors
/// The file cannot be read, or is neither `perf.data` nor text.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    input::bytes(path, u64::MAX >> 1, |first| {
        let is_known =
            perf_data::has_magic(first) || first.starts_with(TRACE_DAT) || first.starts_with(b"PAR1");
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
    let trace = if perf_data::has_magic(bytes) {
        perf_data::parse(bytes).map_err(|fault| {
            Error::refused(name, Place::Byte(fault.at), fault.what, fault.fix.unwrap_or("record it again"))
        })?
    } else if bytes.is_empty() {
        return refuse("an empty file", FIX);
    } else if bytes.starts_with(b"PAR1") {
        return refuse("already a trace", "give it to `framewright replay` as it is");
    } else if bytes.starts_with(TRACE_DAT) {
        let text = trace_cmd_report(bytes).map_err(|what| {
            Error::refused(name, Place::Byte(0), what, "give the text of `trace-cmd report`")
        })?;
        return from_bytes(&text, &format!("trace-cmd report of {name}"));
    } else if bytes.contains(&0) {
        return refuse("neither perf.data nor text", FIX);
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

/// How a file of `trace-cmd record` begins.
const TRACE_DAT: &[u8] = b"\x17\x08\x44tracing";

/// What `trace-cmd report` prints of a file. The binary format is that command's own, in several versions.
fn trace_cmd_report(bytes: &[u8]) -> Result<Vec<u8>, String> {
    // Without a name, so that it is gone with this process, however that ends.
    let file = tempfile::tempfile().and_then(|mut file| {
        file.write_all(bytes)?;
        file.rewind().map(|()| file)
    });
    let file = file.map_err(|cause| format!("no temporary file for trace-cmd: {cause}"))?;
    let report = Command::new("trace-cmd").args(["report", "-t", "-i", "/dev/stdin"]).stdin(file).output();
    let report =
        report.map_err(|cause| format!("a file of trace-cmd, which cannot be started here ({cause})"))?;
    let mistakes = String::from_utf8_lossy(&report.stderr);
    let first = mistakes.lines().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing more");
    if !report.status.success() || report.stdout.is_empty() {
        return Err(format!("trace-cmd refuses the file: {}", first.trim()));
    }
    Ok(report.stdout)
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
