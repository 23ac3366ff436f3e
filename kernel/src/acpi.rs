//! The few firmware tables that say which CPUs there are and how far apart their memory is. The one that says whose
//! memory is whose, the SRAT, is read by [`framewright::boot::srat`].
//!
//! A reader is a function from a table's bytes. How a physical address becomes bytes is the caller's matter.

use crate::bytes;

const HEADER: usize = 36;

/// Whether all bytes add up to zero, as each table's must.
pub fn sums_to_zero(table: &[u8]) -> bool {
    table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)) == 0
}

/// The table of tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Root {
    /// Its physical address.
    pub address: u64,
    /// Bytes of one address in it: 4 or 8.
    pub width: usize,
}

impl Root {
    /// Reads the root pointer (36 bytes, of which version 1 uses 20).
    pub fn read(rsdp: &[u8]) -> Option<Self> {
        if bytes::array(rsdp, 0)? != *b"RSD PTR " || !sums_to_zero(rsdp.get(..20)?) {
            return None;
        }
        let long = bytes::u8(rsdp, 15)? >= 2 && bytes::u64(rsdp, 24)? != 0;
        if long && !sums_to_zero(rsdp.get(..36)?) {
            return None;
        }
        let narrow = u64::from(bytes::u32(rsdp, 16)?);
        Some(if long {
            Self { address: bytes::u64(rsdp, 24)?, width: 8 }
        } else {
            Self { address: narrow, width: 4 }
        })
    }

    /// The addresses in the table of tables. A place that firmware has left empty is none.
    pub fn tables<'t>(&self, table: &'t [u8]) -> impl Iterator<Item = u64> + use<'t> {
        let width = self.width;
        table
            .get(HEADER..)
            .unwrap_or_default()
            .chunks_exact(width)
            .map(move |address| address.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
            .filter(|&address| address != 0)
    }
}

/// A table's name and length, from its first eight bytes.
pub fn header(table: &[u8]) -> Option<([u8; 4], usize)> {
    Some((bytes::array(table, 0)?, bytes::u32(table, 4)? as usize))
}

/// The records of a table behind its first `skip` bytes: type, and all its bytes.
fn records(table: &[u8], skip: usize) -> impl Iterator<Item = (u8, &[u8])> {
    let mut rest = table.get(skip..).unwrap_or_default();
    core::iter::from_fn(move || {
        let length = usize::from(bytes::u8(rest, 1)?);
        // A record is no shorter than its own head: a zero would make this loop endless.
        let (record, behind) = rest.split_at_checked(length.max(2))?;
        rest = behind;
        Some((record[0], record))
    })
}

/// Local APIC numbers of the CPUs that the MADT says can be started.
pub fn cpus(madt: &[u8]) -> impl Iterator<Item = u32> {
    records(madt, HEADER + 8).filter_map(|(kind, record)| match kind {
        0 if bytes::u32(record, 4)? & 1 != 0 => Some(u32::from(bytes::u8(record, 3)?)),
        9 if bytes::u32(record, 8)? & 1 != 0 => bytes::u32(record, 4),
        _ => None,
    })
}

/// The distance from one domain to another in the SLIT; 10 is local.
pub fn distance(slit: &[u8], from: usize, to: usize) -> Option<u8> {
    let domains = bytes::u64(slit, HEADER)? as usize;
    if from >= domains || to >= domains {
        return None;
    }
    bytes::u8(slit, from.checked_mul(domains)?.checked_add(to)?.checked_add(HEADER + 8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table: its head and `skip` bytes after it, then the records.
    fn table(name: &[u8; 4], skip: usize, body: &[&[u8]]) -> Vec<u8> {
        let mut table = [&name[..], &[0; 32], &vec![0; skip]].concat();
        body.iter().for_each(|record| table.extend_from_slice(record));
        let length = table.len() as u32;
        table[4..8].copy_from_slice(&length.to_le_bytes());
        table
    }

    #[test]
    fn the_root_is_read_in_both_widths() {
        let mut rsdp = [0_u8; 36];
        rsdp[..8].copy_from_slice(b"RSD PTR ");
        rsdp[16..20].copy_from_slice(&0x1234_u32.to_le_bytes());
        let seal = |rsdp: &mut [u8; 36]| {
            rsdp[8] = 0;
            rsdp[8] = 0_u8.wrapping_sub(rsdp[..20].iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
        };
        seal(&mut rsdp);
        assert_eq!(Root::read(&rsdp), Some(Root { address: 0x1234, width: 4 }));
        rsdp[15] = 2;
        rsdp[24..32].copy_from_slice(&0x1_0000_5678_u64.to_le_bytes());
        seal(&mut rsdp);
        assert_eq!(Root::read(&rsdp), None, "a wrong sum of all 36 bytes");
        rsdp[32] = 0_u8.wrapping_sub(rsdp.iter().fold(0, |sum: u8, byte| sum.wrapping_add(*byte)));
        let root = Root::read(&rsdp).unwrap();
        assert_eq!(root, Root { address: 0x1_0000_5678, width: 8 });
        let addresses = [0x11, 0, 1_u64 << 40].map(u64::to_le_bytes);
        let tables = table(b"XSDT", 0, &[addresses.as_flattened(), &[1, 2]]);
        assert_eq!(root.tables(&tables).collect::<Vec<_>>(), [0x11, 1 << 40], "firmware leaves places empty");
        rsdp[8] ^= 1;
        assert_eq!(Root::read(&rsdp), None, "a wrong sum");
    }

    #[test]
    fn cpus_that_cannot_be_started_are_left_out() {
        let madt = table(
            b"APIC",
            8,
            &[
                &[0, 8, 0, 0, 1, 0, 0, 0],
                &[0, 8, 1, 7, 0, 0, 0, 0],
                &[1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[9, 16, 0, 0, 0x44, 1, 0, 0, 1, 0, 0, 0, 5, 0, 0, 0],
                &[0, 8, 2],
            ],
        );
        assert_eq!(cpus(&madt).collect::<Vec<_>>(), [0, 0x144]);
    }

    #[test]
    fn distances_are_read_by_row() {
        let slit = table(b"SLIT", 0, &[&2_u64.to_le_bytes(), &[10, 20, 21, 10]]);
        assert_eq!(
            [(0, 0), (0, 1), (1, 0)].map(|(from, to)| distance(&slit, from, to)),
            [Some(10), Some(20), Some(21)]
        );
        assert_eq!(distance(&slit, 0, 2), None);
        assert_eq!(distance(&slit[..46], 1, 1), None, "cut");
    }
}
