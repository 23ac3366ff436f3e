//! Reads the state of a running Linux' page allocator, and reports what is wrong with it.
//!
//! | file | what lives there |
//! |---|---|
//! | `root` | where the files are: a folder, or an archive |
//! | `read` | `/proc/zoneinfo`, `buddyinfo`, `vmstat` and sysctls, below any root |
//! | `checks` | a function for each finding |
//! | `tests` | each check on changed copies of one real system's files |
//! | `snapshots` | all findings in the files of real kernels, sound ones and faulty ones |
//!
//! Every finding has what was read, what was expected and why, and a cure; many name the study that shows the effect.
//! The sizes of per-CPU lists are computed by the allocator's own rules for the kernel's generation.

mod checks;
mod read;
mod root;

use serde::Serialize;

use framewright_report::error::Result;

pub use checks::joined;
pub(crate) use read::zoneinfo;
pub use read::{Group, Kernel, Pageset, State, Zone};
pub use root::{FILES, Root};

/// A fault, a cost, or a fact worth knowing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its name, in kebab case: stable across versions.
    pub id: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// The zone it is about, such as `node 0 Normal`; none if it is about the whole system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The value that was read, and its file.
    pub read: String,
    /// Value that was expected.
    pub expected: String,
    /// Why it matters.
    pub why: String,
    /// Cure in words.
    #[serde(rename = "do")]
    pub advice: String,
    /// The line of a shell that does it, or that shows more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// The study that shows the effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub study: Option<&'static str>,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Information that is worth knowing.
    #[default]
    Info,
    /// Costs time or memory.
    Warning,
    /// A fault of the system.
    Error,
}

impl Severity {
    /// Name of the severity.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Reads the system at `root`: this one, or a copy of its `/proc` and `/sys`. A finding that depends on a counter uses
/// what it counted since `earlier`; one from the time before that is information only.
///
/// # Errors
/// `/proc/zoneinfo` is missing or cannot be understood; the rest may be missing.
pub fn examine(root: &Root, earlier: Option<&State>) -> Result<(State, Vec<Finding>)> {
    let state = State::read(root)?;
    let findings = checks::all(&state, earlier);
    Ok((state, findings))
}

#[cfg(test)]
mod snapshots;
#[cfg(test)]
mod tests;
