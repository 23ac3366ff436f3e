//! How reading, recording and importing fail: every message is one line that names the place and the way out.

use core::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a trace could not be read, written, recorded or imported.
///
/// `Display` is a single line. Causes are part of that line, so no `source` repeats them.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused to read or write a file.
    #[error("cannot {action} {path}: {cause}{hint}", path = .path.display(), hint = io_hint(.path, .cause))]
    Io {
        /// What was tried, as a verb: `read`, `write`, …
        action: &'static str,
        /// The file it was tried on.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },

    /// A file is truncated, damaged, or not of the format it should be. Nothing of it was taken.
    #[error("{file}: {at}{what}; {fix}")]
    Refused {
        /// Name of the file.
        file: String,
        /// Where in the file.
        at: Place,
        /// What is wrong there.
        what: String,
        /// What to do about it.
        fix: &'static str,
    },

    /// A trace in memory breaks a rule of [`Trace`](crate::trace::Trace) and was not written.
    #[error("trace not written: event {row}: {what}")]
    Invalid {
        /// Index of the first event that breaks a rule.
        row: usize,
        /// Which rule.
        what: String,
    },

    /// The same of a note.
    #[error("trace not written: note {note}: {what}")]
    InvalidNote {
        /// Index of the first note that breaks a rule.
        note: usize,
        /// Which rule.
        what: String,
    },

    /// This machine cannot record: a right, a file system or a tracepoint is missing.
    #[error("cannot record: {what}; {fix}")]
    CannotRecord {
        /// What is missing.
        what: String,
        /// What to do about it.
        fix: &'static str,
    },

    /// The command to record could not be started.
    #[error("cannot run {command}: {cause}; check its name and PATH")]
    Command {
        /// Name of the command.
        command: String,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// A place in a file, as exact as it is known. `Display` ends in `": "` unless it is `Unknown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file as a whole.
    Unknown,
    /// Offset in bytes from the start of the file.
    Byte(u64),
    /// Row of a table, counted from 1.
    Row(u64),
    /// Line of a text, counted from 1, and the offset of its first byte.
    Line {
        /// Line number, counted from 1.
        line: u64,
        /// Offset in bytes of the line's first byte.
        byte: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => Ok(()),
            Self::Byte(byte) => write!(f, "at byte {byte}: "),
            Self::Row(row) => write!(f, "row {row}: "),
            Self::Line { line, byte } => write!(f, "line {line} (byte {byte}): "),
        }
    }
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: io::Error) -> Self {
        Self::Io { action, path: path.to_path_buf(), cause }
    }

    pub(crate) fn refused(file: &str, at: Place, what: impl Into<String>, fix: &'static str) -> Self {
        Self::Refused { file: file.to_owned(), at, what: one_line(&what.into()), fix }
    }
}

/// Messages of libraries may span lines; ours never do.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn io_hint(path: &Path, cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::NotFound if path == Path::new("-") => "; standard input is /dev/stdin",
        io::ErrorKind::NotFound => "; check the path",
        io::ErrorKind::PermissionDenied => "; check its permissions, or run as root",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; free some space or choose another place"
        }
        io::ErrorKind::FileTooLarge => {
            "; allow larger files (`ulimit -f unlimited`) or choose another file system"
        }
        io::ErrorKind::IsADirectory => "; name a file, not a directory",
        _ => "",
    }
}
