//! Memory as a running Linux shows it: `/proc/iomem`, and nodes in `/sys/devices/system/node`.
//!
//! Which memory a node has is told by its memory blocks; a kernel without memory hot-plug has none, and then the
//! firmware's SRAT is asked, which only root may read.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use framewright::NodeId;
use framewright::boot::map::{Home, Kind};

use super::{Claimed, Firmware, FirmwareError, add_home, hexadecimal, inclusive, kind, list, srat};

/// Reads the system below `root`, which is `/` or a copy of such files.
///
/// # Errors
/// A file that is missing or cannot be understood, with the line; or addresses that are hidden from this user.
pub fn read(root: &Path) -> Result<Firmware, FirmwareError> {
    let path = root.join("proc/iomem");
    let place = path.display().to_string();
    let mut firmware = iomem(&place, &text(&path)?)?;
    let nodes = nodes(root)?;
    let mut cpus = BTreeMap::new();
    for &node in &nodes {
        cpus.extend(cpus_of(root, node)?);
    }
    firmware.cpu_nodes = cpus.into_values().collect();
    if firmware.cpu_nodes.is_empty() {
        let online = text(&root.join("sys/devices/system/cpu/online")).ok();
        let count = online.and_then(|text| list(&text)).map_or(0, |cpus| cpus.len());
        firmware.cpu_nodes = vec![NodeId(0); count];
    }
    if nodes.len() > 1 {
        homes(root, &nodes, &mut firmware)?;
    }
    Ok(firmware)
}

/// `/proc/iomem`: top-level lines are ranges; the kernel's image is in lines below them.
pub(super) fn iomem(place: &str, text: &str) -> Result<Firmware, FirmwareError> {
    let mut firmware = Firmware::default();
    let mut hidden = false;
    for (n, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let refuse = |what: &str| FirmwareError::line(place, n, what, line);
        let (range, name) = line.split_once(" : ").ok_or_else(|| refuse("expected `FIRST-LAST : NAME`"))?;
        let (first, last) = range.split_once('-').ok_or_else(|| refuse("expected `FIRST-LAST : NAME`"))?;
        let number =
            |text: &str| hexadecimal(text.trim(), true).ok_or_else(|| refuse("expected hexadecimal"));
        let (first, last) = (number(first)?, number(last)?);
        let (start, bytes) = inclusive(first, last).map_err(|what| refuse(&what))?;
        hidden |= last == 0 && name.starts_with("System RAM");
        if !line.starts_with(' ') {
            // Anything else at the top is a device's.
            if let Some(kind) = kind(name) {
                firmware.map.ranges.push((start, bytes, kind));
            }
        } else if name.starts_with("Kernel ") || name.starts_with("Crash kernel") {
            firmware.claimed.push(Claimed { start, bytes, what: name.to_owned() });
        } else if name.starts_with("System RAM") {
            // Persistent or soft reserved memory that serves as memory.
            let around = |&(at, len, kind): &(u64, u64, Kind)| {
                kind != Kind::Usable && (at..at.saturating_add(len)).contains(&start)
            };
            firmware.map.ranges.retain(|range| !around(range));
            firmware.map.ranges.push((start, bytes, Kind::Usable));
        }
    }
    let usable = firmware.map.ranges.iter().any(|(_, _, kind)| *kind == Kind::Usable);
    match (usable, hidden) {
        (_, true) => Err(FirmwareError::whole(
            place,
            "the kernel shows its addresses as zeroes to you: run this as root, or give a kernel log with --map",
        )),
        (false, _) => Err(FirmwareError::whole(place, "no line says `System RAM`")),
        (true, false) => Ok(firmware),
    }
}

/// The nodes with a directory, ascending; node 0 alone where the kernel knows of none.
fn nodes(root: &Path) -> Result<Vec<NodeId>, FirmwareError> {
    let dir = root.join("sys/devices/system/node");
    let entries = match fs::read_dir(&dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![NodeId(0)]),
        Err(error) => return Err(unreadable(&dir, &error)),
    };
    let mut nodes: Vec<NodeId> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_prefix("node")?.parse().ok())
        .filter(|&node: &u16| node < 1024)
        .map(NodeId)
        .collect();
    nodes.sort_unstable();
    if nodes.is_empty() {
        nodes.push(NodeId(0));
    }
    Ok(nodes)
}

fn node_dir(root: &Path, node: NodeId) -> PathBuf {
    root.join(format!("sys/devices/system/node/node{}", node.0))
}

fn cpus_of(root: &Path, node: NodeId) -> Result<Vec<(u32, NodeId)>, FirmwareError> {
    let path = node_dir(root, node).join("cpulist");
    let Ok(text) = fs::read_to_string(&path) else { return Ok(Vec::new()) };
    let place = path.display().to_string();
    let cpus =
        list(&text).ok_or_else(|| FirmwareError::line(&place, 0, "expected CPUs such as 0-3,8", &text))?;
    Ok(cpus.into_iter().map(|cpu| (cpu, node)).collect())
}

/// Owner of the memory, of several nodes.
fn homes(root: &Path, nodes: &[NodeId], firmware: &mut Firmware) -> Result<(), FirmwareError> {
    let size = root.join("sys/devices/system/memory/block_size_bytes");
    if let Ok(text) = fs::read_to_string(&size) {
        let bytes = hexadecimal(text.trim(), true).filter(|bytes| bytes.is_power_of_two());
        let place = size.display().to_string();
        let bytes = bytes
            .ok_or_else(|| FirmwareError::line(&place, 0, "expected a power of two in hexadecimal", &text))?;
        for &node in nodes {
            blocks(root, node, bytes, firmware)?;
        }
    }
    if firmware.map.nodes.is_empty() {
        let path = root.join("sys/firmware/acpi/tables/SRAT");
        let place = path.display().to_string();
        let table = fs::read(&path).map_err(|error| {
            let what = format!(
                "{} nodes without memory blocks, and no SRAT ({error}): give one with --srat",
                nodes.len()
            );
            FirmwareError::whole(&place, what)
        })?;
        firmware.map.nodes = srat::read(&place, &table)?.memory;
    }
    Ok(())
}

/// The memory blocks of a node, neighbours joined.
fn blocks(root: &Path, node: NodeId, bytes: u64, firmware: &mut Firmware) -> Result<(), FirmwareError> {
    let dir = node_dir(root, node);
    let entries = fs::read_dir(&dir).map_err(|error| unreadable(&dir, &error))?;
    let mut numbers: Vec<u64> = entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok()?.strip_prefix("memory")?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let mut at = 0;
    while at < numbers.len() {
        let run =
            numbers[at..].iter().zip(numbers[at]..).take_while(|(number, next)| *number == next).count();
        let place = dir.display().to_string();
        let (start, length) =
            numbers[at].checked_mul(bytes).zip((run as u64).checked_mul(bytes)).ok_or_else(|| {
                FirmwareError::whole(&place, format!("memory{} lies beyond all addresses", numbers[at]))
            })?;
        add_home(&mut firmware.map, start, length, Home { node, hot_pluggable: false }).map_err(|node| {
            FirmwareError::whole(&place, format!("memory{} belongs to {node:?}, too", numbers[at]))
        })?;
        at += run;
    }
    Ok(())
}

fn text(path: &Path) -> Result<String, FirmwareError> {
    fs::read_to_string(path).map_err(|error| unreadable(path, &error))
}

fn unreadable(path: &Path, error: &io::Error) -> FirmwareError {
    FirmwareError::whole(&path.display().to_string(), format!("cannot be read: {error}"))
}
