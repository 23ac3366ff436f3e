//! Runs of a command under the kernel's settings as they are and as they are tried, in turn.

use core::time::Duration;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use framewright_report::error::{Error, Result};
use framewright_report::quantity::{Quantity, describe, quantities};
use framewright_report::result::Part;
use framewright_trace::record::User;
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

use super::knobs::Knobs;
use crate::doctor::{Root, State, Zone};
use crate::progress::Progress;

/// Metrics of a run of the command.
const QUANTITIES: &[Quantity] = &quantities! {
    elapsed_ms "ms" Lower Main "Elapsed time of the command."
    cpu_time_ms "ms" Lower Main "CPU time of the command."
    user_ms "ms" Lower Main "CPU time of the command outside the kernel."
    system_ms "ms" Lower Main "CPU time of the command in the kernel."
    page_faults "1" Lower Main "Page faults of the command."
    major_faults "1" Lower Main "Page faults of the command that read from disk."
    memory_wait_ms "ms" Lower Main "Time in which some task of the machine waited for memory (PSI)."
    huge_available_percent "%" Higher Main "Share of the machine's free memory in blocks of at least a huge page, after the run."
    pages_allocated "1" None Main "Pages that the machine allocated during the run."
    allocation_stalls "1" Lower Main "Allocations of the machine that reclaimed memory themselves."
    compaction_stalls "1" Lower Main "Allocations of the machine that compacted memory themselves."
    compaction_failures "1" Lower Main "Compactions of the machine that made no block."
    pages_moved "1" Lower Main "Pages that the machine moved, to compact memory and else."
    huge_page_faults "1" None Main "Faults of the machine that got a huge page."
    huge_page_fallbacks "1" Lower Main "Faults of the machine that wanted a huge page and got a small one."
    pages_scanned "1" Lower Main "Pages that the machine scanned to reclaim some."
};

/// Counters of `/proc/vmstat` by metric. `pgscan_anon` and `pgscan_file` count what the four of those that scan do.
const COUNTERS: [(&str, &[&str]); 8] = [
    ("pages_allocated", &["pgalloc"]),
    ("allocation_stalls", &["allocstall"]),
    ("compaction_stalls", &["compact_stall"]),
    ("compaction_failures", &["compact_fail"]),
    ("pages_moved", &["pgmigrate_success"]),
    ("huge_page_faults", &["thp_fault_alloc"]),
    ("huge_page_fallbacks", &["thp_fault_fallback"]),
    ("pages_scanned", &["pgscan_kswapd", "pgscan_direct", "pgscan_khugepaged", "pgscan_proactive"]),
];
/// Time between two looks for the command's end.
const TICK: Duration = Duration::from_millis(1);
/// Time that an interrupted command may take to end.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes of a failed command's messages that are looked at.
const SAID: u64 = 1024;

/// Input of the runs.
#[derive(Debug)]
pub struct Runs<'a> {
    /// The command and its arguments.
    pub command: &'a [OsString],
    /// A shell's line before each run, which is not measured.
    pub prepare: Option<&'a str>,
    /// User that the command runs as; none for this process's user.
    pub user: Option<User>,
    /// Rounds: in each, a run under both is counted.
    pub rounds: u32,
}

/// Counters of the machine, and of this process's children.
struct Counts {
    /// Minor and major faults, user and system time in ms of children that have ended.
    children: [f64; 4],
    memory_wait_us: Option<f64>,
    state: Option<State>,
}

impl Counts {
    fn now() -> Self {
        let ms = |time: TimeVal| time.tv_sec() as f64 * 1e3 + time.tv_usec() as f64 / 1e3;
        let children = getrusage(UsageWho::RUSAGE_CHILDREN).map_or([0.0; 4], |usage| {
            let faults = [usage.minor_page_faults(), usage.major_page_faults()].map(|faults| faults as f64);
            [faults[0], faults[1], ms(usage.user_time()), ms(usage.system_time())]
        });
        let root = Root::open("/".as_ref()).ok();
        Self {
            children,
            memory_wait_us: root.as_ref().and_then(Root::memory_wait_us),
            state: root.and_then(|root| State::read(&root).ok()),
        }
    }
}

/// Runs the command in turn under both columns of `part`, baseline and variant, and adds the metrics of each run.
///
/// A run gets the pages that the run before has freed, but after a change of settings it may need others. On a guest
/// whose host takes free huge pages back, an array under `transparent_hugepage=always` took ten times the CPU time in
/// its first run after `never`. So the first run after each change is not counted.
///
/// # Errors
/// The command cannot be started or fails, or the kernel refuses a setting.
pub fn run(runs: &Runs<'_>, knobs: &Knobs, part: &mut Part, progress: &Progress) -> Result<()> {
    let columns = [part.baseline.clone(), part.variants[1].clone()];
    let mut before = None;
    for round in 0..runs.rounds {
        let first = round % 2 == 1;
        let mut both = Vec::new();
        for tried in [first, !first] {
            if before.replace(tried) != Some(tried) && once(runs, knobs, tried, progress)?.is_none() {
                break;
            }
            let Some(figures) = once(runs, knobs, tried, progress)? else { break };
            both.push((&columns[usize::from(tried)], figures));
            progress.step(&columns[usize::from(tried)]);
        }
        // Only whole rounds, whose samples are pairs.
        if both.len() < 2 {
            break;
        }
        for (column, figures) in both {
            for (name, value) in figures {
                part.figure(name).sample(column, value);
            }
        }
    }
    describe(part, QUANTITIES);
    Ok(())
}

type Figures = Vec<(&'static str, f64)>;

/// Growth of the machine's counters.
fn counted(before: &State, after: &State) -> impl Iterator<Item = (&'static str, f64)> {
    let sum = |state: &State, names: &[&str]| names.iter().map(|name| state.counters(name)).sum::<u64>();
    COUNTERS
        .iter()
        .map(move |(metric, names)| (*metric, sum(after, names).saturating_sub(sum(before, names)) as f64))
}

/// The last line of text that a command wrote to this file before it failed.
fn last_line(mut said: File) -> String {
    let mut text = Vec::new();
    let end = said.seek(std::io::SeekFrom::End(0)).unwrap_or(0);
    let _ =
        said.seek(std::io::SeekFrom::Start(end.saturating_sub(SAID))).map(|_| said.read_to_end(&mut text));
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rfind(|line| !line.trim().is_empty())
        .map_or_else(String::new, |line| format!(": {}", line.trim()))
}

/// One run; nothing if it was interrupted.
fn once(runs: &Runs<'_>, knobs: &Knobs, tried: bool, progress: &Progress) -> Result<Option<Figures>> {
    knobs.set(tried)?;
    if let Some(line) = runs.prepare {
        let status = Command::new("/bin/sh").args(["-c", line]).stdout(Stdio::null()).status();
        match status {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(Error::failed(format_args!("--prepare failed: {status}"))),
            Err(cause) => return Err(Error::failed(format_args!("--prepare: {cause}"))),
        }
    }
    let name = runs.command[0].to_string_lossy();
    // Messages of every run would bury the answer; those of a run that fails say why.
    let messages = tempfile::tempfile().map_err(|cause| Error::io("write", &std::env::temp_dir(), &cause))?;
    let stderr = messages.try_clone().map_err(Error::failed)?;
    let before = Counts::now();
    let mut command = Command::new(&runs.command[0]);
    command.args(&runs.command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let begin = Instant::now();
    let child = match &runs.user {
        Some(user) => user.spawn(&mut command),
        None => command.spawn(),
    };
    let failed = |cause| Error::failed(format_args!("cannot run {name}: {cause}"));
    let mut child = child.map_err(failed)?;
    let mut interrupted = None;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            break status;
        }
        // A terminal sends Ctrl-C to the command as well, which may end in order.
        if progress.is_interrupted() && interrupted.get_or_insert_with(Instant::now).elapsed() > GRACE {
            let _ = child.kill();
        }
        thread::sleep(TICK);
    };
    let elapsed = begin.elapsed();
    if progress.is_interrupted() {
        return Ok(None);
    }
    if !status.success() {
        let why = last_line(messages);
        return Err(Error::failed(format_args!(
            "{name} failed ({status}), so its runs cannot be compared{why}"
        )));
    }
    let after = Counts::now();
    let [minor, major, user, system] = [0, 1, 2, 3].map(|n| after.children[n] - before.children[n]);
    let mut figures = vec![
        ("elapsed_ms", 1e3 * elapsed.as_secs_f64()),
        ("cpu_time_ms", user + system),
        ("user_ms", user),
        ("system_ms", system),
        ("page_faults", minor + major),
        ("major_faults", major),
    ];
    if let (Some(before), Some(after)) = (before.memory_wait_us, after.memory_wait_us) {
        figures.push(("memory_wait_ms", (after - before) / 1e3));
    }
    if let (Some(before), Some(after)) = (&before.state, &after.state) {
        let free = |pages: fn(&Zone) -> u64| after.zones.iter().map(pages).sum::<u64>() as f64;
        let share = free(Zone::free_huge) / free(Zone::free_in_blocks).max(1.0);
        figures.push(("huge_available_percent", 100.0 * share));
        figures.extend(counted(before, after));
    }
    Ok(Some(figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scanned_pages_are_those_of_all_that_scan_each_once() {
        let real = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/linux-6.18-vm2");
        let before = State::read(&Root::open(real.as_ref()).expect("a folder")).expect("it can be read");
        let mut after = before.clone();
        for (name, more) in [
            ("pgscan_kswapd", 1),
            ("pgscan_direct", 2),
            ("pgscan_khugepaged", 4),
            ("pgscan_proactive", 8),
            ("pgscan_anon", 5),
            ("pgscan_file", 10),
            ("pgalloc_normal", 100),
        ] {
            *after.vmstat.entry(name.to_owned()).or_default() += more;
        }
        let grown: Vec<_> = counted(&before, &after).filter(|(_, value)| *value > 0.0).collect();
        assert_eq!(grown, [("pages_allocated", 100.0), ("pages_scanned", 15.0)]);
    }
}
