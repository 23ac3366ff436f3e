//! e820 maps as text: a kernel's log, or a table that people write.
//!
//! ```text
//! BIOS-e820: [mem 0x0000000000000000-0x000000000009fbff] usable
//! ACPI: SRAT: Node 1 PXM 1 [mem 0x100000000-0x23fffffff] hotplug
//! ```
//! In a log all other lines are passed over. A table has no others, but comments (`#`):
//! ```text
//! 0x0-0x9fbff         usable
//! 0x100000000 +64G    usable
//! node 1 0x100000000-0x23fffffff hotplug
//! cpus 0-3 node 0
//! ```

use std::collections::BTreeMap;

use framewright::NodeId;
use framewright::boot::map::Home;

use super::{Firmware, FirmwareError, add_home, hexadecimal, inclusive, kind, list};

/// Beginning of a line of an e820 dump.
const MARK: &str = "BIOS-e820:";
const AFFINITY: &str = "SRAT: Node ";

/// Reads a kernel's log, or a table. `place` is what the text is called. O(lines²) at worst.
///
/// # Errors
/// The first line that cannot be understood; or a text in which no range stands.
pub fn read(place: &str, text: &str) -> Result<Firmware, FirmwareError> {
    let is_log = text.contains(MARK);
    let mut firmware = Firmware::default();
    let mut cpus = BTreeMap::new();
    for (n, line) in text.lines().enumerate() {
        let read = if is_log {
            log_line(&mut firmware, line)
        } else {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() { Ok(()) } else { table_line(&mut firmware, &mut cpus, line) }
        };
        read.map_err(|what| FirmwareError::line(place, n, what, line))?;
    }
    if firmware.map.ranges.is_empty() {
        let what = "no memory range: expected a kernel log with `BIOS-e820:` lines, or lines such as `0x0-0x9fbff usable`";
        return Err(FirmwareError::whole(place, what));
    }
    firmware.cpu_nodes = cpus.into_values().collect();
    Ok(firmware)
}

fn log_line(firmware: &mut Firmware, line: &str) -> Result<(), String> {
    if let Some((_, range)) = line.split_once(MARK) {
        let (start, bytes, rest) = log_range(range)?;
        let word = rest.trim().trim_start_matches('(').trim_end_matches(')');
        let kind = kind(word).or_else(|| kind(rest)).ok_or("no known kind of memory")?;
        firmware.map.ranges.push((start, bytes, kind));
    } else if let Some((_, affinity)) = line.split_once(AFFINITY) {
        let (node, rest) = affinity.split_once(' ').ok_or("expected a node and a range")?;
        let node = node_number(node)?;
        let range = rest.find('[').map(|at| &rest[at..]).ok_or("expected a range in brackets")?;
        let (start, bytes, rest) = log_range(range)?;
        let home = Home { node, hot_pluggable: rest.contains("hotplug") };
        add(firmware, start, bytes, home)?;
    }
    Ok(())
}

/// `[mem FIRST-LAST] rest`, or as old kernels had it `FIRST - END (kind)`.
fn log_range(text: &str) -> Result<(u64, u64, &str), String> {
    let wrong = || "expected `[mem 0xFIRST-0xLAST]`".to_owned();
    let text = text.trim_start();
    if let Some(range) = text.strip_prefix("[mem ") {
        let (range, rest) = range.split_once(']').ok_or_else(wrong)?;
        let (first, last) = range.split_once('-').ok_or_else(wrong)?;
        let first = hexadecimal(first.trim(), false).ok_or_else(wrong)?;
        let last = hexadecimal(last.trim(), false).ok_or_else(wrong)?;
        let (start, bytes) = inclusive(first, last)?;
        return Ok((start, bytes, rest));
    }
    let (first, rest) = text.split_once(" - ").ok_or_else(wrong)?;
    let (end, rest) = rest.split_once(' ').ok_or_else(wrong)?;
    let first = hexadecimal(first.trim(), true).ok_or_else(wrong)?;
    let end = hexadecimal(end.trim(), true).ok_or_else(wrong)?;
    let bytes = end.checked_sub(first).ok_or("the range ends before it begins")?;
    Ok((first, bytes, rest))
}

fn table_line(firmware: &mut Firmware, cpus: &mut BTreeMap<u32, NodeId>, line: &str) -> Result<(), String> {
    if let Some(rest) = line.strip_prefix("node ") {
        let (node, rest) = rest.trim_start().split_once(' ').ok_or("expected `node N RANGE`")?;
        let node = node_number(node)?;
        let (start, bytes, rest) = table_range(rest)?;
        let hot_pluggable = match rest.trim() {
            "" => false,
            "hotplug" => true,
            _ => return Err("expected nothing or `hotplug` behind a node's range".to_owned()),
        };
        return add(firmware, start, bytes, Home { node, hot_pluggable });
    }
    if let Some(rest) = line.strip_prefix("cpus ") {
        let (numbers, node) = rest.split_once(" node ").ok_or("expected `cpus LIST node N`")?;
        let (numbers, node) =
            (list(numbers).ok_or("expected CPUs such as 0-3,8")?, node_number(node.trim())?);
        return match numbers.into_iter().find(|&number| cpus.insert(number, node).is_some()) {
            Some(twice) => Err(format!("CPU {twice} has a node already")),
            None => Ok(()),
        };
    }
    let (start, bytes, rest) = table_range(line)?;
    let kind = kind(rest).ok_or(
        "expected a kind behind the range: usable, reserved, ACPI data, ACPI NVS, unusable, persistent",
    )?;
    firmware.map.ranges.push((start, bytes, kind));
    Ok(())
}

/// `FIRST-LAST rest` or `FIRST +SIZE rest`.
fn table_range(text: &str) -> Result<(u64, u64, &str), String> {
    let wrong = || "expected `0xFIRST-0xLAST` or `0xFIRST +SIZE`".to_owned();
    let text = text.trim_start();
    let (range, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    if let Some((first, last)) = range.split_once('-') {
        let first = hexadecimal(first, false).ok_or_else(wrong)?;
        let (start, bytes) = inclusive(first, hexadecimal(last, false).ok_or_else(wrong)?)?;
        return Ok((start, bytes, rest));
    }
    let start = hexadecimal(range, false).ok_or_else(wrong)?;
    let rest = rest.trim_start().strip_prefix('+').ok_or_else(wrong)?;
    let (size, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
    Ok((start, size_of(size).ok_or_else(wrong)?, rest))
}

/// `640K`, `64G`, `4096`, `0x1000`.
fn size_of(text: &str) -> Option<u64> {
    let (digits, shift) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 10),
        (at, 'M') => (&text[..at], 20),
        (at, 'G') => (&text[..at], 30),
        (at, 'T') => (&text[..at], 40),
        _ => (text, 0),
    };
    let number = hexadecimal(digits, false).or_else(|| digits.parse().ok())?;
    number.checked_mul(1 << shift)
}

fn node_number(text: &str) -> Result<NodeId, String> {
    match text.parse::<u16>() {
        Ok(node) if node < 1024 => Ok(NodeId(node)),
        _ => Err("expected a node's number, 0 to 1023".to_owned()),
    }
}

fn add(firmware: &mut Firmware, start: u64, bytes: u64, home: Home) -> Result<(), String> {
    add_home(&mut firmware.map, start, bytes, home)
        .map_err(|owner| format!("a part of the range belongs to {owner:?} already"))
}
