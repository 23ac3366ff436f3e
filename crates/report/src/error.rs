//! How a command fails: one line that says what to do, and an exit code.

use core::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// A result whose failure ends the command.
pub type Result<T> = core::result::Result<T, Error>;

/// Why a command ends early. `Display` is always one line.
#[derive(Debug)]
pub enum Error {
    /// It could not be done. Exit code 1.
    Failed(String),
    /// It was asked for wrongly, in a way the argument parser cannot see: an unknown name, options that contradict one
    /// another. Exit code 2.
    Usage(String),
    /// A comparison found a regression that it was told to fail on. Exit code 3.
    Regressed(String),
    /// `doctor` found something that it was told to fail on. Exit code 4.
    Found(String),
    /// A command that was run failed. Its own exit code, or 128 and the number of the signal that ended it.
    Command(String, u8),
    /// The reader of the output is gone (`… | head`). Exit code 0, and no message.
    OutputClosed,
}

impl Error {
    /// A failure with this message. Line breaks in it become spaces.
    pub fn failed(message: impl fmt::Display) -> Self {
        Self::Failed(one_line(&message.to_string()))
    }

    /// A wrong request with this message. Line breaks in it become spaces.
    pub fn usage(message: impl fmt::Display) -> Self {
        Self::Usage(one_line(&message.to_string()))
    }

    /// A regression with this message. Line breaks in it become spaces.
    pub fn regressed(message: impl fmt::Display) -> Self {
        Self::Regressed(one_line(&message.to_string()))
    }

    /// A finding with this message.
    pub fn found(message: impl fmt::Display) -> Self {
        Self::Found(one_line(&message.to_string()))
    }

    /// The operating system refused to `action` (a verb) the file at `path`.
    #[must_use]
    pub fn io(action: &str, path: &Path, cause: &io::Error) -> Self {
        Self::failed(format_args!("cannot {action} {}: {cause}", path.display()))
    }

    /// Standard output could not be written. A reader that went away is not a failure.
    #[must_use]
    pub fn output(cause: &io::Error) -> Self {
        if cause.kind() == io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::failed(format_args!("cannot write to standard output: {cause}"))
        }
    }

    /// Exit code of the process.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(_) => ExitCode::from(1),
            Self::Usage(_) => ExitCode::from(2),
            Self::Regressed(_) => ExitCode::from(3),
            Self::Found(_) => ExitCode::from(4),
            Self::Command(_, code) => ExitCode::from(*code),
            Self::OutputClosed => ExitCode::SUCCESS,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(message)
            | Self::Usage(message)
            | Self::Regressed(message)
            | Self::Found(message)
            | Self::Command(message, _) => f.write_str(message),
            Self::OutputClosed => f.write_str("standard output was closed"),
        }
    }
}

impl core::error::Error for Error {}

/// Joins the lines of a message; parsers like to print several.
fn one_line(message: &str) -> String {
    message.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Like [`did_you_mean`], but where no candidate is close, all of them after `otherwise`, such as `; there are`.
pub fn did_you_mean_or<'a>(
    typed: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    otherwise: &str,
) -> String {
    let all: Vec<&str> = candidates.into_iter().collect();
    match did_you_mean(typed, all.iter().copied()) {
        hint if hint.is_empty() => format!("{otherwise} {}", all.join(", ")),
        hint => hint,
    }
}

/// ` (did you mean `x`?)` for the candidate closest to what was typed, or nothing if none is close.
pub fn did_you_mean<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    // Jaro-Winkler above 0.8 is what clap uses for its own suggestions: one typing habit everywhere.
    let closest = candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(typed, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.8)
        .max_by(|(a, _), (b, _)| a.total_cmp(b));
    closest.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_always_one_line() {
        assert_eq!(Error::failed("a\n  b\n").to_string(), "a b");
        assert_eq!(Error::usage("no\r\nbreak").to_string(), "no break");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(matches!(Error::output(&broken), Error::OutputClosed));
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Error::output(&full), Error::Failed(_)));
    }

    #[test]
    fn only_close_names_are_suggested() {
        let names = ["vanilla", "reset"];
        assert_eq!(did_you_mean("vanila", names), "; did you mean `vanilla`?");
        assert_eq!(did_you_mean("zebra", names), "");
    }
}
