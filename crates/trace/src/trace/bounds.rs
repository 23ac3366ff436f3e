//! What a trace file may cost: bounds on its own claims, checked before the decoder believes them.
//!
//! The decoder (parquet 60) allocates what a page's header says that the page has when it is decompressed, and
//! builds a table for each column and row group that the metadata list. A crafted file of some kilobytes can
//! claim gigabytes of both. Reading a file costs at most 64 times its size plus 64 MiB.
//!
//! The headers are in Thrift's compact protocol (`thrift-compact-protocol.md` of Apache Thrift), as
//! `parquet.thrift` of Apache Parquet lays them out. Whatever cannot be read here is left to the decoder, which
//! reads the same bytes and says what is wrong.

use super::EventKind;

/// Rows that a file may hold whatever its size: 20 MiB of events.
const FREE_ROWS: u64 = 1 << 19;
/// Rows for each byte of a file. The shipped traces have about 0.3.
const ROWS_PER_BYTE: u64 = 1;
/// Different names that a file may hold whatever its size, and bytes of a file for each more.
const FREE_NAMES: u64 = 1 << 14;
const BYTES_PER_NAME: u64 = 64;
/// Longest name in bytes: the kernel's have 15.
pub(super) const LONGEST_NAME: usize = 64;
/// Longest text of a note in bytes.
pub(super) const LONGEST_TEXT: usize = 4 << 20;
/// What notes may cost in memory whatever a file's size, for each byte of it, and each beside its text.
const FREE_NOTES: u64 = 8 << 20;
const NOTE_BYTES_PER_BYTE: u64 = 14;
const NOTE_BYTES: u64 = 160;
/// Length in bytes of the metadata: what any file may have, and one more for each [`BYTES_PER_METADATA_BYTE`] bytes of
/// the file.
const FREE_METADATA: u64 = 1 << 18;
const BYTES_PER_METADATA_BYTE: u64 = 16;
/// Length in bytes of any metadata: that of two thousand groups of rows.
const MOST_METADATA: u64 = 4 << 20;
/// Columns, and groups of columns, that a table may have.
const MOST_COLUMNS: u64 = 256;
/// Longest page in bytes, decompressed. Writers make pages of about 1 MiB.
const LONGEST_PAGE: u64 = 8 << 20;
/// Longest head of a page in bytes: lengths, and the smallest and the largest value.
const LONGEST_HEAD: u64 = 64 << 10;
/// How deeply Thrift's structures may be nested.
const DEPTH: u32 = 16;

/// Whether a file of `size` bytes may hold `rows` rows.
pub(super) const fn may_hold_rows(size: u64, rows: u64) -> bool {
    rows <= FREE_ROWS.saturating_add(size.saturating_mul(ROWS_PER_BYTE))
}

/// Whether a file of `size` bytes may hold `names` different names.
pub(super) const fn may_hold_names(size: u64, names: u64) -> bool {
    names <= FREE_NAMES + size / BYTES_PER_NAME
}

/// Whether a file of `size` bytes may hold `notes` notes, with `bytes` bytes of text in all.
pub(super) const fn may_hold_notes(size: u64, notes: u64, text: u64) -> bool {
    let cost = notes.saturating_mul(NOTE_BYTES).saturating_add(text);
    cost <= FREE_NOTES.saturating_add(size.saturating_mul(NOTE_BYTES_PER_BYTE))
}

/// Whether a note may have that name.
pub(super) fn is_name(name: &str) -> bool {
    (1..=LONGEST_NAME).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_graphic())
        && EventKind::from_name(name).is_none()
}

/// What is wrong with the length of the metadata of a file of `size` bytes, if anything.
pub(super) fn metadata_length_fault(length: u64, size: u64) -> Option<String> {
    let most = (FREE_METADATA + size / BYTES_PER_METADATA_BYTE).min(MOST_METADATA);
    (length > most).then(|| format!("metadata of {length} bytes for a file of {size} bytes"))
}

/// What is wrong with metadata, if anything.
pub(super) fn metadata_fault(metadata: &[u8]) -> Option<String> {
    const SCHEMA: u64 = 2;
    let mut columns = 0;
    // Also if the bytes end early: what was seen until then is what the decoder has believed.
    let _ = Thrift { bytes: metadata }.fields(|field, kind, thrift| {
        if field == SCHEMA && matches!(kind, Kind::LIST | Kind::SET) {
            columns = columns.max(Thrift { bytes: thrift.bytes }.list()?.1);
        }
        thrift.skip(kind, DEPTH)
    });
    (columns > MOST_COLUMNS).then(|| format!("a table of {columns} columns"))
}

/// What is wrong with the pages of a column of `length` bytes, if anything. O(pages): `read` gives the bytes from a
/// place in the column on, and only heads of pages are asked for.
pub(super) fn pages_fault<B: AsRef<[u8]>>(
    length: u64,
    read: impl Fn(u64, usize) -> Option<B>,
) -> Option<String> {
    const DECOMPRESSED: u64 = 2;
    const COMPRESSED: u64 = 3;
    let mut at = 0;
    while at < length {
        let bytes = read(at, (length - at).min(LONGEST_HEAD) as usize)?;
        let mut head = Thrift { bytes: bytes.as_ref() };
        let (mut decompressed, mut compressed) = (0, None);
        let whole = head.fields(|field, kind, thrift| {
            if kind == Kind::INTEGER_32 && field == DECOMPRESSED {
                decompressed = decompressed.max(thrift.integer()?);
                return Some(());
            }
            if kind == Kind::INTEGER_32 && field == COMPRESSED {
                compressed = Some(thrift.integer()?);
                return Some(());
            }
            thrift.skip(kind, DEPTH)
        });
        let longest = decompressed.max(compressed.unwrap_or(0));
        if longest > LONGEST_PAGE {
            return Some(format!("a page of {longest} bytes, above {LONGEST_PAGE}"));
        }
        let (Some(()), Some(compressed)) = (whole, compressed) else {
            return Some(format!("no page at byte {at}"));
        };
        at += (bytes.as_ref().len() - head.bytes.len()) as u64 + compressed;
    }
    None
}

/// Bytes in Thrift's compact protocol. Every method returns `None` where they end too early.
struct Thrift<'a> {
    bytes: &'a [u8],
}

/// Type of a value, as the protocol numbers them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind(u8);

impl Kind {
    const TRUE: Self = Self(1);
    const FALSE: Self = Self(2);
    const BYTE: Self = Self(3);
    const INTEGER_32: Self = Self(5);
    const DOUBLE: Self = Self(7);
    const BINARY: Self = Self(8);
    const LIST: Self = Self(9);
    const SET: Self = Self(10);
    const MAP: Self = Self(11);
    const STRUCT: Self = Self(12);
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (&first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(first)
    }

    fn pass(&mut self, length: u64) -> Option<()> {
        self.bytes = self.bytes.get(usize::try_from(length).ok()?..)?;
        Some(())
    }

    /// A number of 7 bits a byte, lowest first.
    fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// A signed number, the sign in its lowest bit; negative ones, which no length is, count as the largest.
    fn integer(&mut self) -> Option<u64> {
        let number = self.varint()?;
        Some(if number & 1 == 0 { number >> 1 } else { u64::MAX })
    }

    /// Type and number of the elements of a list or set.
    fn list(&mut self) -> Option<(Kind, u64)> {
        let head = self.byte()?;
        let short = u64::from(head >> 4);
        Some((Kind(head & 15), if short == 15 { self.varint()? } else { short }))
    }

    /// Calls `each` with number and type of every field of a structure. It passes over the field's value.
    fn fields(&mut self, mut each: impl FnMut(u64, Kind, &mut Self) -> Option<()>) -> Option<()> {
        let mut number = 0;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            number = match u64::from(head >> 4) {
                0 => self.integer()?,
                difference => number.checked_add(difference)?,
            };
            each(number, Kind(head & 15), self)?;
        }
    }

    fn skip(&mut self, kind: Kind, depth: u32) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        match kind {
            // As fields: their type is their value.
            Kind::TRUE | Kind::FALSE => Some(()),
            Kind::BYTE => self.pass(1),
            Kind(4..=6) => self.varint().map(|_| ()),
            Kind::DOUBLE => self.pass(8),
            Kind::BINARY => {
                let length = self.varint()?;
                self.pass(length)
            }
            Kind::LIST | Kind::SET => {
                let (element, length) = self.list()?;
                self.elements(length, &[element], depth)
            }
            Kind::MAP => match self.varint()? {
                0 => Some(()),
                length => {
                    let kinds = self.byte()?;
                    self.elements(length, &[Kind(kinds >> 4), Kind(kinds & 15)], depth)
                }
            },
            Kind::STRUCT => self.fields(|_, kind, thrift| thrift.skip(kind, depth)),
            _ => None,
        }
    }

    /// Passes over `length` rounds of values of these types. Each takes at least a byte, so a false length
    /// costs no more than the bytes that there are.
    fn elements(&mut self, length: u64, kinds: &[Kind], depth: u32) -> Option<()> {
        for _ in 0..length {
            for &kind in kinds {
                // As elements, truth values have a byte of their own.
                let kind = if matches!(kind, Kind::TRUE | Kind::FALSE) { Kind::BYTE } else { kind };
                self.skip(kind, depth)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{LONGEST_PAGE, Thrift, metadata_fault, metadata_length_fault, pages_fault};

    /// A page header with these lengths, and its page.
    fn page(decompressed: u64, compressed: usize) -> Vec<u8> {
        let varint = |mut number: u64| {
            let mut bytes = Vec::new();
            while number > 0x7f {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
            bytes
        };
        // Type 0; the lengths; a structure with a list of two truth values, a map and a text; the end.
        let inner = b"\x19\x21\x01\x02\x1b\x01\x88\x01a\x01b\x18\x02ab\x00";
        let head = [b"\x15\x00\x15".to_vec(), varint(2 * decompressed), b"\x15".to_vec()].concat();
        let tail = [varint(2 * compressed as u64), b"\x2c".to_vec(), inner.to_vec(), vec![0]].concat();
        [head, tail, vec![7; compressed]].concat()
    }

    /// A field's number is given as its distance from the last one's: after a negative one, which counts as the
    /// largest, there is none.
    #[test]
    fn field_numbers_end_at_the_largest() {
        let mut thrift = Thrift { bytes: b"\x05\x01\x02\x15\x02\x00" };
        let mut seen = Vec::new();
        let whole = thrift.fields(|number, kind, thrift| {
            seen.push(number);
            thrift.skip(kind, 1)
        });
        assert_eq!((whole, seen), (None, vec![u64::MAX]));
    }

    #[test]
    fn long_pages_are_found_behind_others() {
        let fine = [page(LONGEST_PAGE, 10), page(5, 0)].concat();
        let fault = |bytes: &[u8]| {
            pages_fault(bytes.len() as u64, |at, length| Some(bytes[at as usize..][..length].to_vec()))
        };
        assert_eq!(fault(&fine), None);
        let long = [fine, page(LONGEST_PAGE + 1, 3)].concat();
        assert_eq!(fault(&long).unwrap(), "a page of 8388609 bytes, above 8388608");
        assert_eq!(fault(&[0; 9]).unwrap(), "no page at byte 0");
        for length in 0..long.len() {
            // Cut off within a page's bytes: the decoder will say so. Nothing here panics.
            let _ = fault(&long[..length]);
        }
    }

    #[test]
    fn wide_tables_are_found() {
        // Version 1, then a list of 300 structures without fields.
        let wide = [b"\x15\x02\x19\xfc\xac\x02".to_vec(), vec![0; 300], vec![0]].concat();
        assert_eq!(metadata_fault(&wide).unwrap(), "a table of 300 columns");
        assert_eq!(metadata_fault(&wide[..20]).unwrap(), "a table of 300 columns");
        assert_eq!(metadata_fault(b"\x15\x02\x19\x2c\x00\x00\x00"), None);
        assert!(metadata_length_fault(1 << 20, 1 << 20).is_some());
    }
}
