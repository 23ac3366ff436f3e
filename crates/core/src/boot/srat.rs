//! The ACPI System Resource Affinity Table (ACPI 6.5, section 5.2.16): proximity domains of memory and CPUs.
//!
//! 36 bytes of the header of all ACPI tables, 12 reserved, then records with a type and a length. The table comes from
//! firmware and may be damaged: [`affinities`] checks the header and the checksum once, and each record when the
//! iterator reaches it.

use core::fmt;

/// Content of one enabled record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Affinity {
    /// A CPU belongs to this domain.
    Cpu {
        /// Local APIC number on x86, ACPI processor UID on Arm. A machine has CPUs of one kind.
        id: u32,
        /// Proximity domain.
        domain: u32,
    },
    /// A range of memory belongs to this domain.
    Memory {
        /// Address of the first byte.
        start: u64,
        /// Length in bytes, which may be 0. `start + bytes` is at most 2^64.
        bytes: u64,
        /// Proximity domain.
        domain: u32,
        /// Whether it may be removed at run time.
        hot_pluggable: bool,
    },
}

/// Reason why a table cannot be read. Offsets are in bytes from its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Damage {
    /// The table is shorter than its header, or has another signature.
    NoSrat {
        /// The first four bytes, if there are four.
        begins: Option<[u8; 4]>,
    },
    /// The length in the header does not fit the table.
    Length {
        /// Length in the header.
        header: usize,
        /// Bytes of the table.
        table: usize,
    },
    /// The bytes of the table add up to this value, not to 0.
    Sum(u8),
    /// The record at this offset has length 0, or exceeds the table.
    Record(usize),
    /// The record at `at` is too short for its type.
    Short {
        /// Offset of the record.
        at: usize,
        /// Type of the record.
        kind: u8,
        /// Bytes of the record.
        bytes: usize,
        /// Bytes that its type needs.
        needed: usize,
    },
    /// The record at `at` describes memory that wraps around the end of the address space.
    Wraps {
        /// Offset of the record.
        at: usize,
        /// Address of the first byte.
        start: u64,
        /// Length in bytes.
        bytes: u64,
    },
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSrat { begins } => {
                write!(f, "no SRAT: expected that signature and {HEADER} bytes or more")?;
                begins.map_or(Ok(()), |name| write!(f, "; it begins with {name:02x?}"))
            }
            Self::Length { header, table } => {
                write!(f, "its header says {header} bytes, but there are {table}")
            }
            Self::Sum(sum) => write!(f, "the checksum is wrong by {sum:#04x}: the table is damaged"),
            Self::Record(at) => write!(f, "the record at byte {at} has no length or exceeds the table"),
            Self::Short { at, kind, bytes, needed } => {
                write!(f, "the record at byte {at} is of type {kind} and has {bytes} bytes, not {needed}")
            }
            Self::Wraps { at, start, bytes } => write!(
                f,
                "the record at byte {at} describes {bytes:#x} bytes at {start:#x}, which wrap around the end of the \
                 address space"
            ),
        }
    }
}

impl core::error::Error for Damage {}

const HEADER: usize = 48;
const ENABLED: u32 = 1;
const HOT_PLUGGABLE: u32 = 2;

/// Types of the records that matter here. Others are about interrupt services, initiators and ports.
const LOCAL_APIC: u8 = 0;
const MEMORY: u8 = 1;
const X2APIC: u8 = 2;
const GICC: u8 = 3;

/// The enabled affinities of a table, in its order. Bytes after the length in the header are ignored. O(length) in all.
///
/// # Errors
/// The header or the checksum is wrong. A damaged record is the iterator's last item.
pub fn affinities(table: &[u8]) -> Result<impl Iterator<Item = Result<Affinity, Damage>>, Damage> {
    if table.len() < HEADER || !table.starts_with(b"SRAT") {
        return Err(Damage::NoSrat { begins: table.first_chunk().copied() });
    }
    let says = u32_at(table, 4) as usize;
    if says < HEADER || says > table.len() {
        return Err(Damage::Length { header: says, table: table.len() });
    }
    let table = &table[..says];
    let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
    if sum != 0 {
        return Err(Damage::Sum(sum));
    }
    // The first revision has 8 bits of domain; the other bits are not defined.
    let mask = if table[8] < 2 { 0xff } else { u32::MAX };
    let mut next = HEADER;
    Ok(core::iter::from_fn(move || {
        while next < table.len() {
            let at = next;
            let length = table.get(at + 1).map_or(0, |&length| usize::from(length));
            let read = match table.get(at..at + length) {
                Some(record) if length >= 2 => read(record, at, mask),
                _ => Err(Damage::Record(at)),
            };
            // After a damaged record no other can be found.
            next = if read.is_ok() { at + length } else { table.len() };
            if let Some(affinity) = read.transpose() {
                return Some(affinity);
            }
        }
        None
    }))
}

/// The affinity in the record at offset `at`, if it is enabled and of a type that matters.
fn read(record: &[u8], at: usize, mask: u32) -> Result<Option<Affinity>, Damage> {
    let kind = record[0];
    let (needed, flags) = match kind {
        LOCAL_APIC => (16, 4),
        MEMORY => (40, 28),
        X2APIC => (24, 12),
        GICC => (18, 10),
        _ => return Ok(None),
    };
    if record.len() < needed {
        return Err(Damage::Short { at, kind, bytes: record.len(), needed });
    }
    let flags = u32_at(record, flags);
    if flags & ENABLED == 0 {
        return Ok(None);
    }
    let cpu = |id, domain| Ok(Some(Affinity::Cpu { id, domain: domain & mask }));
    match kind {
        // Its domain is in two places: bits 0 to 7, and the rest.
        LOCAL_APIC => {
            cpu(u32::from(record[3]), u32::from_le_bytes([record[2], record[9], record[10], record[11]]))
        }
        X2APIC => cpu(u32_at(record, 8), u32_at(record, 4)),
        GICC => cpu(u32_at(record, 6), u32_at(record, 2)),
        _ => {
            let (start, bytes) = (u64_at(record, 8), u64_at(record, 16));
            if bytes > 0 && start.checked_add(bytes - 1).is_none() {
                return Err(Damage::Wraps { at, start, bytes });
            }
            let hot_pluggable = flags & HOT_PLUGGABLE != 0;
            Ok(Some(Affinity::Memory { start, bytes, domain: u32_at(record, 2) & mask, hot_pluggable }))
        }
    }
}

/// # Panics
/// There are no four bytes: lengths have been checked.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(core::array::from_fn(|n| bytes[at + n]))
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    /// A table of `records`, with its length and sum.
    fn table(revision: u8, records: &[&[u8]]) -> Vec<u8> {
        let mut table = [0; HEADER].to_vec();
        table[..4].copy_from_slice(b"SRAT");
        table[8] = revision;
        table.extend(records.concat());
        let length = table.len() as u32;
        table[4..8].copy_from_slice(&length.to_le_bytes());
        table[9] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        table
    }

    fn all(table: &[u8]) -> Result<Vec<Affinity>, Damage> {
        affinities(table)?.collect()
    }

    #[test]
    fn cpus_of_three_kinds_and_memory_are_read() {
        let mut memory = [0_u8; 40];
        memory[..3].copy_from_slice(&[MEMORY, 40, 3]);
        memory[8..16].copy_from_slice(&(4_u64 << 30).to_le_bytes());
        memory[16..24].copy_from_slice(&(2_u64 << 30).to_le_bytes());
        memory[28] = 3;
        let mut off = memory;
        off[28] = 0;
        let records: [&[u8]; 6] = [
            &[LOCAL_APIC, 16, 2, 5, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0],
            &memory,
            &off,
            // An interrupt translation service.
            &[4, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[X2APIC, 24, 0, 0, 1, 0, 0, 0, 0x22, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[GICC, 18, 9, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
        ];
        let (start, bytes) = (4 << 30, 2 << 30);
        let mut expected = [
            Affinity::Cpu { id: 5, domain: 0x102 },
            Affinity::Memory { start, bytes, domain: 3, hot_pluggable: true },
            Affinity::Cpu { id: 0x122, domain: 1 },
            Affinity::Cpu { id: 7, domain: 9 },
        ];
        for revision in [2, 3] {
            assert_eq!(all(&table(revision, &records)).as_deref(), Ok(&expected[..]), "revision {revision}");
        }
        expected[0] = Affinity::Cpu { id: 5, domain: 2 };
        assert_eq!(all(&table(1, &records)).as_deref(), Ok(&expected[..]), "eight bits in revision 1");
    }

    #[test]
    fn a_table_has_its_signature_and_may_have_no_record() {
        assert_eq!(all(&table(3, &[])), Ok(Vec::new()));
        let mut slit = table(3, &[]);
        slit[..4].copy_from_slice(b"SLIT");
        assert_eq!(all(&slit), Err(Damage::NoSrat { begins: Some(*b"SLIT") }));
        assert_eq!(all(&table(3, &[])[..47]), Err(Damage::NoSrat { begins: Some(*b"SRAT") }));
    }

    #[test]
    fn a_table_is_as_long_as_its_header_says() {
        for header in [0, 47, 49, u32::MAX] {
            let mut wrong = table(3, &[]);
            wrong[4..8].copy_from_slice(&header.to_le_bytes());
            assert_eq!(all(&wrong), Err(Damage::Length { header: header as usize, table: HEADER }));
        }
        // What is behind it is ignored.
        assert_eq!(all(&[&table(3, &[])[..], &[1, 2, 3]].concat()), Ok(Vec::new()));
    }

    #[test]
    fn a_damaged_record_is_the_last_item() {
        let apic: &[u8] = &[LOCAL_APIC, 16, 2, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let bad = table(3, &[apic, &[X2APIC, 4, 0, 0], apic]);
        let mut read = affinities(&bad).expect("the header is sound");
        assert_eq!(read.next(), Some(Ok(Affinity::Cpu { id: 5, domain: 2 })));
        assert_eq!(read.next(), Some(Err(Damage::Short { at: 64, kind: X2APIC, bytes: 4, needed: 24 })));
        assert_eq!(read.next(), None);
        for record in [&[0, 0][..], &[0], &[9, 9]] {
            assert_eq!(all(&table(3, &[record])), Err(Damage::Record(48)), "{record:?}");
        }
    }

    #[test]
    fn memory_may_be_empty_and_end_where_addresses_end() {
        let memory = |start: u64, bytes: u64| {
            let mut record = [0_u8; 40];
            record[..3].copy_from_slice(&[MEMORY, 40, 3]);
            record[8..16].copy_from_slice(&start.to_le_bytes());
            record[16..24].copy_from_slice(&bytes.to_le_bytes());
            record[28] = 1;
            all(&table(3, &[&record]))
        };
        for (start, bytes) in [(0, 0), (u64::MAX, 0), (u64::MAX - 0xfff, 0x1000), (0, u64::MAX)] {
            let read = Affinity::Memory { start, bytes, domain: 3, hot_pluggable: false };
            assert_eq!(memory(start, bytes), Ok([read].to_vec()));
        }
        let (start, bytes) = (u64::MAX - 0xfff, 0x1001);
        assert_eq!(memory(start, bytes), Err(Damage::Wraps { at: 48, start, bytes }));
    }
}
