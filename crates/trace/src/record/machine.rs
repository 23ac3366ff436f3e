//! Description of the machine that a trace was recorded on.

use std::ffi::OsStr;
use std::fs;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};
use rustix::time::{ClockId, clock_gettime};

use crate::proc::Machine;
use crate::trace::{Meta, Note};

/// Machine, kernel, CPUs and date; what cannot be found out stays unknown.
pub(super) fn describe() -> Meta {
    let machine = Machine::this();
    let cpus = machine.cpus();
    let model = cpus.model();
    Meta {
        machine: match machine.memory("MemTotal") {
            Some(bytes) => format!("{model}, {} MiB", bytes >> 20),
            None => model,
        },
        kernel: machine.kernel().1.unwrap_or_default(),
        cpus: u32::try_from(cpus.count()).unwrap_or(0),
        page_kib: u32::try_from(rustix::param::page_size() >> 10).unwrap_or(0),
        recorded_at: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true),
        ..Meta::default()
    }
}

/// Files with the state of a kernel's page allocator.
const STATES: [&str; 4] = ["/proc/zoneinfo", "/proc/buddyinfo", "/proc/pagetypeinfo", "/proc/vmstat"];

/// State of the kernel's page allocator now; each file has the time before it was read.
pub(super) fn states(comm: u32) -> Vec<Note> {
    let mut notes = Vec::new();
    for name in STATES {
        let now = clock_gettime(ClockId::Monotonic);
        let time_ns = now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs();
        // Some kernels lack one of them.
        if let Ok(text) = fs::read_to_string(name) {
            notes.push(Note { time_ns, cpu: 0, pid: std::process::id(), comm, name: name.to_owned(), text });
        }
    }
    notes
}

/// A command as a shell would take it.
pub(crate) fn quote(command: &[impl AsRef<OsStr>]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./:,@%^".contains(c);
    let words = command.iter().map(|word| {
        let word = word.as_ref().to_string_lossy();
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["cc", "-DX=1", "a b.c", "", "it's"];
        assert_eq!(quote(&words), r"cc -DX=1 'a b.c' '' 'it'\''s'");
    }
}
