//! What a trace says about where it was made, and the names of the threads that were there before.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use chrono::{DateTime, SecondsFormat, Utc};

use crate::trace::Meta;

/// Machine, kernel, CPUs and date; what cannot be found out stays unknown.
pub(super) fn describe() -> Meta {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (cpus, memory) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
    let value = |text: &str, key: &str| -> Option<String> {
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.split_once(':')?.1.trim().to_owned()))
    };
    let model = value(&cpus, "model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let kib = value(&memory, "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let processors = cpus.lines().filter(|line| line.starts_with("processor")).count();
    Meta {
        machine: kib.map_or(model.clone(), |kib| format!("{model}, {} MiB", kib >> 10)),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        cpus: u32::try_from(processors).unwrap_or(0),
        recorded_at: DateTime::<Utc>::from(SystemTime::now()).to_rfc3339_opts(SecondsFormat::Secs, true),
        ..Meta::default()
    }
}

/// Names of all threads there are, by their number.
pub(super) fn thread_names() -> HashMap<u32, String> {
    let numbered = |path: &Path| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path())))
    };
    let mut names = HashMap::new();
    for (_, process) in numbered(Path::new("/proc")) {
        for (pid, thread) in numbered(&process.join("task")) {
            // A thread may end while we look.
            if let Ok(name) = fs::read(thread.join("comm")) {
                names.insert(
                    pid,
                    kernel_name(String::from_utf8_lossy(&name).trim_end_matches('\n')).to_owned(),
                );
            }
        }
    }
    names
}

/// The name that the kernel itself has for a thread: `/proc` adds to a worker's name what it works on.
fn kernel_name(name: &str) -> &str {
    match name.strip_prefix("kworker/") {
        Some(worker) if !worker.starts_with('R') => name.split(['-', '+']).next().unwrap_or(name),
        _ => name,
    }
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
    use super::{kernel_name, quote};

    #[test]
    fn commands_are_quoted_for_a_shell() {
        let words = ["cc", "-DX=1", "a b.c", "", "it's"];
        assert_eq!(quote(&words), r"cc -DX=1 'a b.c' '' 'it'\''s'");
    }

    #[test]
    fn workers_are_named_as_the_kernel_names_them() {
        assert_eq!(kernel_name("kworker/u8:3-events_unbound"), "kworker/u8:3");
        assert_eq!(kernel_name("kworker/0:1H+kblockd"), "kworker/0:1H");
        assert_eq!(kernel_name("kworker/R-rcu_gp"), "kworker/R-rcu_gp");
        assert_eq!(kernel_name("rcu-torture"), "rcu-torture");
    }
}
