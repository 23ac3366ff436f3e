//! What each command does: its arguments, and the way from them to what is printed.

pub mod about;
pub mod bench;
pub mod boot;
pub mod compare;
pub mod doctor;
pub mod export;
pub mod fidelity;
pub mod import;
pub mod record;
pub mod replay;
pub mod study;
pub mod trace;

use crate::error::{Error, Result};

/// More threads than this for each CPU measure nothing but the scheduler.
const MOST_THREADS_PER_CPU: usize = 16;

/// CPUs that this process may run on.
fn cpus_here() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

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
        eprintln!("framewright: {}", crowded(threads));
    }
    Ok(())
}

/// What more threads than CPUs mean.
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
    let of = match suffix.trim().to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" if suffix.is_empty() => Some(shift),
        "m" => Some(20),
        "g" => Some(30),
        "t" => Some(40),
        _ => None,
    };
    let bytes = of.and_then(|of| number.parse::<u64>().ok()?.checked_mul(1 << of));
    bytes
        .map(|bytes| bytes >> shift)
        .filter(|amount| (least..=most).contains(amount))
        .ok_or_else(|| format!("expected {least} to {most} {unit}, as a number or with a unit, such as 4G"))
}

/// A count of at least 1.
fn count(text: &str) -> core::result::Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("expected a whole number from 1 to {}", u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

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
