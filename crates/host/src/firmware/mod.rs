//! Reads a machine's description of its memory into a [`FirmwareMap`]: the lines of an e820 map, an ACPI SRAT, or
//! `/proc` and `/sys` of a running Linux.
//!
//! The input may be damaged. An error is one line that names the place and quotes the text there; no input makes
//! these functions panic.

mod e820;
mod linux;
mod srat;

use core::fmt;

use framewright::NodeId;
use framewright::boot::map::{Home, Kind};

use crate::boot::FirmwareMap;
use crate::os::list;

pub use e820::read as read_e820;
pub use linux::read as read_linux;
pub use srat::{Affinity, read as read_srat};

/// A machine's memory as its firmware and its system describe it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Firmware {
    /// Ranges, and whose they are.
    pub map: FirmwareMap,
    /// Node of each CPU; empty if nothing was said of CPUs.
    pub cpu_nodes: Vec<NodeId>,
    /// Memory that is in use from the beginning: the kernel's image, a crash kernel's room.
    pub claimed: Vec<Claimed>,
}

/// A part of memory that is in use when boot begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claimed {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// Name of the user, such as `kernel image`.
    pub what: String,
}

/// A line that cannot be understood, with its number.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{place}{}: {what}", line.map_or_else(String::new, |line| format!(":{line}")))]
pub struct FirmwareError {
    /// File or table.
    pub place: String,
    /// Line, counted from 1, in a text.
    pub line: Option<usize>,
    /// The fault, in one line.
    pub what: String,
}

impl FirmwareError {
    fn whole(place: &str, what: impl Into<String>) -> Self {
        Self { place: place.to_owned(), line: None, what: what.into() }
    }

    /// About line `index`, counted from 0, which is quoted.
    fn line(place: &str, index: usize, what: impl fmt::Display, text: &str) -> Self {
        let what = format!("{what}: `{}`", excerpt(text));
        Self { place: place.to_owned(), line: Some(index + 1), what }
    }
}

/// The beginning of a line, without what would disturb a terminal.
fn excerpt(text: &str) -> String {
    const MOST: usize = 80;
    let clean: String =
        text.trim().chars().map(|c| if c.is_control() { '?' } else { c }).take(MOST).collect();
    if text.trim().chars().nth(MOST).is_some() { format!("{clean}…") } else { clean }
}

/// `0x` and hexadecimal digits, or without the prefix if `bare`.
fn hexadecimal(text: &str, bare: bool) -> Option<u64> {
    let digits = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => digits,
        None if bare => text,
        None => return None,
    };
    let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u64::from_str_radix(digits, 16).ok())?
}

/// First byte and bytes of `FIRST-LAST`, in which the last byte belongs to the range.
fn inclusive(first: u64, last: u64) -> Result<(u64, u64), String> {
    if last < first {
        return Err(format!("the range ends at {last:#x}, before it begins at {first:#x}"));
    }
    let bytes = (last - first).checked_add(1).ok_or("the range is the whole address space")?;
    Ok((first, bytes))
}

/// Kinds as kernels print them.
fn kind(word: &str) -> Option<Kind> {
    Some(match word.trim() {
        "usable" | "System RAM" => Kind::Usable,
        "ACPI data" | "ACPI Tables" => Kind::AcpiTables,
        "ACPI NVS" | "ACPI Non-volatile Storage" => Kind::AcpiStorage,
        "unusable" | "Unusable memory" => Kind::Unusable,
        "reserved" | "Reserved" | "soft reserved" | "Soft Reserved" | "device reserved" => Kind::Reserved,
        found if found.starts_with("persistent") || found.starts_with("Persistent Memory") => {
            Kind::Persistent
        }
        // Kernels print a type without a name as its number.
        found if found.strip_prefix("type ").is_some_and(|n| n.parse::<u32>().is_ok()) => Kind::Reserved,
        _ => return None,
    })
}

/// Enters whose a range is, unless its bytes belong to another node already: `Err` is that node.
fn add_home(map: &mut FirmwareMap, start: u64, bytes: u64, home: Home) -> Result<(), NodeId> {
    let end = start.saturating_add(bytes);
    let found = map
        .nodes
        .iter()
        .find(|(at, len, found)| found.node != home.node && *at < end && start < at.saturating_add(*len));
    match found {
        Some((_, _, found)) => Err(found.node),
        None => {
            map.nodes.push((start, bytes, home));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
