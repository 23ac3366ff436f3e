//! The PVH boot protocol: what the loader tells of the machine. Layouts are those of version 1.

use framewright::boot::map::Kind;

use crate::bytes;

/// First field of the start info.
pub const MAGIC: u32 = 0x336e_c578;
/// Bytes of the start info.
pub const START_INFO_BYTES: usize = 56;
/// Bytes of one entry of the memory map.
pub const ENTRY_BYTES: usize = 24;

/// Physical addresses of the loader's tables; 0 where there is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StartInfo {
    /// The command line, ended by a zero.
    pub command_line: u64,
    /// The ACPI root pointer.
    pub rsdp: u64,
    /// The memory map.
    pub memory_map: u64,
    /// Its entries.
    pub entries: u32,
}

impl StartInfo {
    /// Reads the start info; `None` if it is none, or has no memory map.
    pub fn read(info: &[u8]) -> Option<Self> {
        if bytes::u32(info, 0)? != MAGIC || bytes::u32(info, 4)? < 1 {
            return None;
        }
        Some(Self {
            command_line: bytes::u64(info, 24)?,
            rsdp: bytes::u64(info, 32)?,
            memory_map: bytes::u64(info, 40)?,
            entries: bytes::u32(info, 48)?,
        })
    }
}

/// One entry of the memory map, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// First byte.
    pub start: u64,
    /// Length.
    pub bytes: u64,
    /// Kind of the range.
    pub kind: Kind,
}

/// The entries of a memory map, as they come. Kinds have the firmware's numbers; 2, and every number unknown here, is
/// reserved.
pub fn ranges(map: &[u8]) -> impl Iterator<Item = Range> {
    map.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let kind = match bytes::u32(entry, 16)? {
            1 => Kind::Usable,
            3 => Kind::AcpiTables,
            4 => Kind::AcpiStorage,
            5 => Kind::Unusable,
            _ => Kind::Reserved,
        };
        Some(Range { start: bytes::u64(entry, 0)?, bytes: bytes::u64(entry, 8)?, kind })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(start: u64, bytes: u64, kind: u32) -> Vec<u8> {
        [&start.to_le_bytes()[..], &bytes.to_le_bytes(), &kind.to_le_bytes(), &[0; 4]].concat()
    }

    #[test]
    fn a_start_info_is_read_and_anything_else_is_not() {
        let mut info = [0; START_INFO_BYTES];
        info[0..4].copy_from_slice(&MAGIC.to_le_bytes());
        info[4] = 1;
        info[24..32].copy_from_slice(&0x1000_u64.to_le_bytes());
        info[32..40].copy_from_slice(&0xf_5ae0_u64.to_le_bytes());
        info[40..48].copy_from_slice(&0x40_u64.to_le_bytes());
        info[48] = 9;
        let read = StartInfo { command_line: 0x1000, rsdp: 0xf_5ae0, memory_map: 0x40, entries: 9 };
        assert_eq!(StartInfo::read(&info), Some(read));
        assert_eq!(StartInfo::read(&info[..51]), None, "cut");
        info[4] = 0;
        assert_eq!(StartInfo::read(&info), None, "version 0 has no memory map");
        info[0] ^= 1;
        assert_eq!(StartInfo::read(&info), None, "another magic");
    }

    #[test]
    fn every_kind_of_range_is_known_or_reserved() {
        let map: Vec<u8> = (0..7).flat_map(|kind| entry(u64::from(kind) << 20, 4096, kind)).collect();
        let kinds: Vec<Kind> = ranges(&map).map(|range| range.kind).collect();
        use Kind::{AcpiStorage, AcpiTables, Reserved, Unusable, Usable};
        assert_eq!(kinds, [Reserved, Usable, Reserved, AcpiTables, AcpiStorage, Unusable, Reserved]);
        assert_eq!(ranges(&map[..47]).count(), 1, "half an entry is none");
    }
}
