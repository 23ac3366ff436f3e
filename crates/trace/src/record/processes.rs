//! Processes and threads as `/proc` shows them.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal, kill_process};

/// A process, and when it started: numbers are given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) pid: u32,
    start: u64,
}

impl Process {
    /// The process of that number, if there is one that has not ended.
    pub(super) fn find(pid: u32) -> Option<Self> {
        let (state, _, start) = stat(pid)?;
        (state != "Z" && state != "X").then_some(Self { pid, start })
    }

    pub(super) fn lives(self) -> bool {
        Self::find(self.pid) == Some(self)
    }

    /// Sends a signal, unless the process has ended.
    pub(super) fn signal(self, signal: Signal) {
        if self.lives()
            && let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw)
        {
            // It may have ended.
            let _ = kill_process(pid, signal);
        }
    }
}

/// State, parent and start of a process.
fn stat(pid: u32) -> Option<(String, u32, u64)> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text);
    // The name may hold anything, but no field after it holds a parenthesis.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some((fields.first()?.to_string(), fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// Entries of a folder whose names are numbers.
fn numbered(path: &Path) -> impl Iterator<Item = (u32, PathBuf)> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path())))
}

/// The processes of these numbers and all their descendants, each after its parent, those that have ended left out. A
/// process whose parent has ended is another's child.
pub(super) fn trees(roots: &HashSet<u32>) -> Vec<Process> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, _) in numbered(Path::new("/proc")) {
        if let Some((_, parent, _)) = stat(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut known = roots.clone();
    let mut found: Vec<u32> = roots.iter().copied().collect();
    let mut at = 0;
    while let Some(&pid) = found.get(at) {
        at += 1;
        found.extend(children.remove(&pid).into_iter().flatten().filter(|&child| known.insert(child)));
    }
    found.into_iter().filter_map(Process::find).collect()
}

pub(super) fn threads(process: u32) -> HashSet<u32> {
    numbered(Path::new(&format!("/proc/{process}/task"))).map(|(thread, _)| thread).collect()
}

/// Numbers of all threads in a control group and in those below it.
///
/// # Errors
/// It cannot be read.
pub(super) fn group_threads(group: &Path) -> std::io::Result<HashSet<u32>> {
    let mut found = HashSet::new();
    for number in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        found.extend(number.parse().map(threads).unwrap_or_default());
    }
    for entry in fs::read_dir(group)?.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // A group that was removed has no threads.
            found.extend(group_threads(&entry.path()).unwrap_or_default());
        }
    }
    Ok(found)
}

/// Names of all threads there are, by their number.
pub(super) fn thread_names() -> HashMap<u32, String> {
    let mut names = HashMap::new();
    for (_, process) in numbered(Path::new("/proc")) {
        for (pid, thread) in numbered(&process.join("task")) {
            // A thread may end while we look.
            if let Ok(name) = fs::read(thread.join("comm")) {
                let name = String::from_utf8_lossy(&name);
                names.insert(pid, kernel_name(name.trim_end_matches('\n')).to_owned());
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

#[cfg(test)]
mod tests {
    use super::{Process, kernel_name, stat, threads, trees};
    use std::process::Command;

    #[test]
    fn workers_are_named_as_the_kernel_names_them() {
        assert_eq!(kernel_name("kworker/u8:3-events_unbound"), "kworker/u8:3");
        assert_eq!(kernel_name("kworker/0:1H+kblockd"), "kworker/0:1H");
        assert_eq!(kernel_name("kworker/R-rcu_gp"), "kworker/R-rcu_gp");
        assert_eq!(kernel_name("rcu-torture"), "rcu-torture");
    }

    #[test]
    fn a_tree_is_found_and_an_ended_process_is_not_mistaken() {
        let test = std::process::id();
        assert!(stat(test).is_some_and(|(_, parent, start)| parent > 0 && start > 0));
        assert!(threads(test).contains(&test));
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let found = trees(&[test].into());
        let sleeping = Process::find(child.id()).unwrap();
        assert!(found.contains(&sleeping) && found.contains(&Process::find(test).unwrap()), "{found:?}");
        assert!(sleeping.lives());
        sleeping.signal(rustix::process::Signal::KILL);
        child.wait().unwrap();
        assert!(!sleeping.lives());
        let successor = Process { start: 1, ..Process::find(test).unwrap() };
        assert!(!successor.lives(), "another process of the same number");
    }
}
