//! Code of the allocator in a program without an operating system: four configurations, as `kernel/size` builds them.

use std::fs;

use crate::{Result, output, root, run};

const TARGET: &str = "x86_64-unknown-none";

/// Feature of `kernel/size`, what it holds, and the most bytes of code that it may have.
type Configuration = (&'static str, &'static str, u64);
const CONFIGURATIONS: [Configuration; 4] = [
    ("smallest", "one CPU, one zone, no per-CPU lists", 24 << 10),
    ("one", "one CPU, one zone", 36 << 10),
    ("smp", "any number of CPUs, zones and nodes", 96 << 10),
    ("all", "also marks, reclaim, compaction, ranges, hotplug", 250 << 10),
];

/// Whether a target is installed.
pub(crate) fn is_installed(target: &str) -> Result<bool> {
    Ok(output("rustup", &["target", "list", "--installed"])?.lines().any(|line| line == target))
}

/// Bytes of `.text` by configuration.
fn measure(configurations: &[Configuration]) -> Result<Vec<u64>> {
    if !is_installed(TARGET)? {
        return Err(format!("needs target {TARGET}: rustup target add {TARGET}"));
    }
    let folder = root().join("kernel/size");
    let manifest = folder.join("Cargo.toml").display().to_string();
    let target_dir = folder.join("target").display().to_string();
    configurations
        .iter()
        .map(|(feature, ..)| {
            let build = ["build", "--quiet", "--locked", "--release", "--manifest-path", &manifest];
            let into = ["--target-dir", &target_dir, "--target", TARGET, "--features", feature];
            run("cargo", &[&build[..], &into[..]].concat())?;
            let elf = folder.join(format!("target/{TARGET}/release/size"));
            let bytes = fs::read(&elf).map_err(|error| format!("{}: {error}", elf.display()))?;
            text(&bytes).ok_or_else(|| format!("{}: no section .text", elf.display()))
        })
        .collect()
}

/// Bytes of the section `.text` of a 64-bit little-endian ELF file.
fn text(elf: &[u8]) -> Option<u64> {
    let number = |at: usize, bytes: usize| {
        let field = elf.get(at..at + bytes)?;
        Some(field.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    };
    // The offset of section headers, and the size, the number and the index of names among them.
    let (table, size) = (number(0x28, 8)?, number(0x3a, 2)?);
    let header = |n: u64| (table + n * size) as usize;
    let names = number(header(number(0x3e, 2)?) + 0x18, 8)?;
    let is_text = |n: &u64| {
        let name = number(header(*n), 4).map(|name| (names + name) as usize);
        name.and_then(|at| elf.get(at..at + 6)) == Some(b".text\0")
    };
    number(header((0..number(0x3c, 2)?).find(is_text)?) + 0x20, 8)
}

pub(crate) fn print() -> Result<()> {
    let sizes = measure(&CONFIGURATIONS)?;
    println!("{:<50} {:>8} {:>9}", "", ".text", "at most");
    for ((_, what, most), size) in CONFIGURATIONS.iter().zip(sizes) {
        println!("{what:<50} {size:>8} {most:>9}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The two smallest, and with `--full` all, where the target is installed: `./test` says if it is not.
    #[test]
    fn no_configuration_has_more_code_than_it_may() {
        if !is_installed(TARGET).expect("rustup runs") {
            return;
        }
        let full = std::env::var_os("FRAMEWRIGHT_FULL").is_some();
        let measured = &CONFIGURATIONS[..if full { 4 } else { 2 }];
        let sizes = measure(measured).expect("it builds");
        for ((feature, _, most), size) in measured.iter().zip(&sizes) {
            assert!(size <= most, "{feature}: {size} bytes of code, {most} at most");
        }
        assert!(sizes.is_sorted(), "{sizes:?}: each has what the one before has");
    }

    #[test]
    fn a_file_that_is_no_program_has_no_text() {
        assert_eq!(text(b"\x7fELF"), None);
        assert_eq!(text(&[0; 200]), None);
    }
}
