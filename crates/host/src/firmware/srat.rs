//! The ACPI System Resource Affinity Table: which node memory and CPUs belong to.
//!
//! 36 bytes of header common to ACPI tables, 12 reserved, then records with a type and a length. Domains become
//! nodes in the order in which they first occur, as in Linux.

use framewright::NodeId;
use framewright::boot::map::Home;

use super::FirmwareError;

/// What an SRAT says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Affinity {
    /// First byte, bytes, and whose they are. Ranges that are not enabled or have no byte are left out.
    pub memory: Vec<(u64, u64, Home)>,
    /// Node of each enabled CPU, in the table's order.
    pub cpu_nodes: Vec<NodeId>,
    /// The proximity domain of each node.
    pub domains: Vec<u32>,
}

const HEADER: usize = 48;
const ENABLED: u32 = 1;
const HOT_PLUGGABLE: u32 = 2;
/// More than any machine has, and fewer than a node's number can say.
const MOST_DOMAINS: usize = 1024;

/// Reads a table. `place` is what it is called. O(records × domains).
///
/// # Errors
/// What is damaged, and at which byte.
pub fn read(place: &str, table: &[u8]) -> Result<Affinity, FirmwareError> {
    let refuse = |what: String| FirmwareError::whole(place, what);
    if table.len() < HEADER || &table[..4] != b"SRAT" {
        let is = table.get(..4).map_or_else(String::new, |name| format!("; it begins with {name:02x?}"));
        return Err(refuse(format!("no SRAT: expected that signature and {HEADER} bytes or more{is}")));
    }
    let length = u32_at(table, 4) as usize;
    if length < HEADER || length > table.len() {
        return Err(refuse(format!("its header says {length} bytes, but there are {}", table.len())));
    }
    let table = &table[..length];
    let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if sum != 0 {
        return Err(refuse(format!("the checksum is wrong by {sum:#04x}: the table is damaged")));
    }
    // The first revision has 8 bits of domain; what stands in the others is not defined.
    let mask = if table[8] < 2 { 0xff } else { u32::MAX };
    let mut affinity = Affinity::default();
    let mut at = HEADER;
    while at < length {
        let record = match table.get(at + 1) {
            Some(&bytes) if bytes >= 2 && at + usize::from(bytes) <= length => {
                &table[at..at + usize::from(bytes)]
            }
            _ => return Err(refuse(format!("the record at byte {at} has no length or exceeds the table"))),
        };
        affinity.add(record, mask).map_err(|what| refuse(format!("the record at byte {at} {what}")))?;
        at += record.len();
    }
    Ok(affinity)
}

impl Affinity {
    fn add(&mut self, record: &[u8], mask: u32) -> Result<(), String> {
        let (needed, domain_at, flags_at) = match record[0] {
            0 => (16, None, 4),
            1 => (40, Some(2), 28),
            2 => (24, Some(4), 12),
            3 => (18, Some(2), 10),
            // Interrupt services, initiators, ports: no memory and no CPU.
            _ => return Ok(()),
        };
        if record.len() < needed {
            return Err(format!("is of type {} and has {} bytes, not {needed}", record[0], record.len()));
        }
        if u32_at(record, flags_at) & ENABLED == 0 {
            return Ok(());
        }
        let split = u32::from_le_bytes([record[2], record[9], record[10], record[11]]);
        let domain = domain_at.map_or(split, |at| u32_at(record, at)) & mask;
        let node = self.node(domain)?;
        if record[0] != 1 {
            self.cpu_nodes.push(node);
            return Ok(());
        }
        let (start, bytes) = (u64_at(record, 8), u64_at(record, 16));
        if bytes > 0 {
            start.checked_add(bytes - 1).ok_or_else(|| {
                format!(
                    "describes {bytes:#x} bytes at {start:#x}, which wrap around the end of the address space"
                )
            })?;
            let hot_pluggable = u32_at(record, flags_at) & HOT_PLUGGABLE != 0;
            self.memory.push((start, bytes, Home { node, hot_pluggable }));
        }
        Ok(())
    }

    fn node(&mut self, domain: u32) -> Result<NodeId, String> {
        let known = self.domains.iter().position(|&known| known == domain);
        if known.is_none() && self.domains.len() == MOST_DOMAINS {
            return Err(format!("names domain {domain}: more than {MOST_DOMAINS} domains"));
        }
        let index = known.unwrap_or_else(|| {
            self.domains.push(domain);
            self.domains.len() - 1
        });
        Ok(NodeId(index as u16))
    }
}

/// # Panics
/// There are no four bytes: lengths have been checked.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
