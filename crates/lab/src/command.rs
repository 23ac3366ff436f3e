//! The commands: arguments of each, and the way from them to what is printed. Their files import all that is here: what
//! several of them need.

pub mod about;
pub mod bench;
pub mod boot;
pub mod compare;
pub mod doctor;
pub mod export;
pub mod import;
pub mod record;
pub mod replay;
pub mod study;
pub mod trace;
pub mod trial;

use core::time::Duration;
use std::path::{Path, PathBuf};

use framewright_report::error::{Error, Result};
use framewright_report::result::{Document, Kind, Part};
use framewright_report::table::{Format, Listing, Style, paragraph, wrapped};
use framewright_report::terminal::{Terminal, Tone};
use framewright_trace::kernel_time::{Doing, Samples};
use framewright_trace::trace::Trace;

use crate::answer::BUSY;
use crate::configure::Setup;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::progress::{Progress, notice, say};
use crate::replaying::Replay;
use crate::session::{ReportArgs, Reporter, Seed, Session, open, open_beside, whole};
use crate::settings::Settings;
use crate::shipped;
use crate::simulate::cpus_here;
use crate::toml_file::is_path;

/// More threads than this for each CPU measure nothing but the scheduler.
const MOST_THREADS_PER_CPU: usize = 16;

/// Other work of the machine during a measurement.
struct Noise {
    load: f64,
    /// CPUs of the machine, whose load that is: this process may use fewer.
    cpus: usize,
    /// Ticks that were stolen, and all, of all CPUs since boot.
    ticks: [f64; 2],
}

impl Noise {
    fn before() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self::of(&read("/proc/loadavg"), &read("/proc/stat"))
    }

    fn of(loadavg: &str, stat: &str) -> Self {
        let load = loadavg.split_whitespace().next().and_then(|load| load.parse().ok());
        let lines = stat.lines().filter(|line| line.starts_with("cpu")).count();
        // user, nice, system, idle, iowait, irq, softirq, steal.
        let fields: Vec<f64> = stat
            .lines()
            .next()
            .map_or("", |line| line.trim_start_matches("cpu"))
            .split_whitespace()
            .take(8)
            .filter_map(|field| field.parse().ok())
            .collect();
        let stolen = fields.get(7).copied().unwrap_or(0.0);
        let cpus = lines.saturating_sub(1).max(1);
        Self { load: load.unwrap_or(0.0), cpus, ticks: [stolen, fields.iter().sum()] }
    }

    /// Adds a note to `part` if other work disturbed the measurement.
    fn after(&self, part: &mut Part) {
        if let Some(what) = self.disturbance(&Self::before()) {
            part.condition(BUSY, what);
        }
    }

    fn disturbance(&self, now: &Self) -> Option<String> {
        let [stolen, all] = [0, 1].map(|n| now.ticks[n] - self.ticks[n]);
        let share = 100.0 * stolen / all.max(1.0);
        let mut said = Vec::new();
        if self.load > 0.5 * self.cpus as f64 {
            said.push(format!("load {:.1} on {} CPUs before this began", self.load, self.cpus));
        }
        if share > MOST_STOLEN {
            said.push(format!("the host took {share:.0} % of the CPU time"));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }
}

/// Percent of CPU time that another virtual machine may take.
const MOST_STOLEN: f64 = 2.0;

/// Refuses more threads than make sense here.
fn check_threads(threads: usize) -> Result<()> {
    let most = MOST_THREADS_PER_CPU * cpus_here();
    if threads > most {
        return Err(Error::usage(format_args!(
            "{threads} threads on {} CPUs: at most {most} are run",
            cpus_here()
        )));
    }
    if threads > cpus_here() {
        say(&format!("framewright: {}", crowded(threads)));
    }
    Ok(())
}

/// Warning that there are more threads than CPUs.
fn crowded(threads: usize) -> String {
    format!("{threads} threads share {} CPUs: their figures show waiting, not the allocator.", cpus_here())
}

/// An amount of memory in MiB: a number, or one with a unit, such as `4G`, `512MiB`.
fn mib(text: &str, least: u64, most: u64) -> core::result::Result<u64, String> {
    amount(text, 20, least, most, "MiB")
}

/// An amount of memory in GiB: a number, or one with a unit, such as `16G`, `1T`.
fn gib(text: &str, least: u64, most: u64) -> core::result::Result<u64, String> {
    amount(text, 30, least, most, "GiB")
}

/// An amount in units of `1 << shift` bytes, which are meant where none are named.
fn amount(text: &str, shift: u32, least: u64, most: u64, unit: &str) -> core::result::Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit_shift = match suffix.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" if suffix.is_empty() => Some(shift),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        _ => None,
    };
    let bytes = unit_shift.and_then(|bits| number.parse::<u64>().ok()?.checked_mul(1 << bits));
    bytes
        .map(|bytes| bytes >> shift)
        .filter(|amount| (least..=most).contains(amount))
        .ok_or_else(|| format!("expected {least} to {most} {unit}, as a number or with a unit, such as 4G"))
}

/// A count of at least 1.
fn count(text: &str) -> core::result::Result<u32, String> {
    whole(text, 1, u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a container that may use two CPUs of 64: the load is that of all.
    #[test]
    fn a_load_is_judged_by_the_cpus_of_the_machine() {
        let stat = |ticks: u32| {
            let each: String = (0..64).map(|cpu| format!("cpu{cpu} 1 0 0 1 0 0 0 0 0 0\n")).collect();
            format!("cpu  {ticks} 0 0 100 0 0 0 5 0 0\n{each}intr 7\n")
        };
        let noise = |load: &str, later: u32| {
            let before = Noise::of(&format!("{load} 9.00 9.00 1/100 7\n"), &stat(0));
            before.disturbance(&Noise::of("", &stat(later)))
        };
        assert_eq!(noise("20.00", 10), None);
        assert_eq!(noise("40.00", 10).as_deref(), Some("load 40.0 on 64 CPUs before this began"));
        assert_eq!(
            Noise::of("1.00", "").disturbance(&Noise::of("", "")).as_deref(),
            Some("load 1.0 on 1 CPUs before this began")
        );
    }

    #[test]
    fn amounts_of_memory_have_units_or_mean_the_usual_one() {
        for (text, expected) in
            [("64", 64), ("4G", 4096), ("4GiB", 4096), ("512m", 512), ("1T", 1 << 20), ("2gb", 2048)]
        {
            assert_eq!(mib(text, 1, 1 << 24), Ok(expected), "{text}");
        }
        assert_eq!(gib("1T", 2, 1024), Ok(1024));
        for wrong in ["", "G", "0", "-1", "4X", "4 GiBs", "99999999999T", "1e3"] {
            let error = mib(wrong, 1, 1 << 24).expect_err(wrong);
            assert_eq!(error, "expected 1 to 16777216 MiB, as a number or with a unit, such as 4G");
        }
        assert_eq!(
            gib("512M", 2, 1024).expect_err("too little").split(',').next(),
            Some("expected 2 to 1024 GiB")
        );
        assert!(count("0").is_err() && count("-1").is_err() && count("7") == Ok(7));
    }
}
