//! The memory map: the memory ranges of the firmware, sorted and without overlap.
//!
//! Firmware lists are unsorted, overlap, and have borders inside a page. Here every byte gets one [`Kind`], the most
//! restrictive of all ranges that contain it, and every page of memory one node. A page is memory only if all its bytes
//! are [`Kind::Usable`]: usable ranges shrink to whole pages, all others grow.
//!
//! The caller provides the arrays. If one is full, the error names the range.

use core::fmt;
use core::ops::Range;

use crate::boot::spans::{Full, Span, Spans};
use crate::units::{NodeId, Pfn};

/// End of physical addresses, in bytes: 4 PiB. Ranges above are cut off, and counted.
pub const ADDRESS_END: u64 = 1 << 52;

/// Pages have 4 KiB.
const PAGE_SHIFT: u32 = 12;

/// Kind of a range of memory. Each kind is more restrictive than those before it: where two ranges overlap, the more
/// restrictive kind wins.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Kind {
    /// Memory.
    #[default]
    Usable,
    /// ACPI tables, usable once they have been read (type 3 of an e820 map).
    AcpiTables,
    /// Memory that keeps its content without power (type 7).
    Persistent,
    /// Memory that ACPI needs while the machine sleeps (type 4).
    AcpiStorage,
    /// Anything else that must not be touched (type 2).
    Reserved,
    /// Memory that is known to be bad (type 5).
    Unusable,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Usable => "usable",
            Self::AcpiTables => "ACPI data",
            Self::Persistent => "persistent",
            Self::AcpiStorage => "ACPI NVS",
            Self::Reserved => "reserved",
            Self::Unusable => "unusable",
        })
    }
}

/// Node of a range, and whether the range may be removed while the machine runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Home {
    /// The node.
    pub node: NodeId,
    /// Whether the memory is hot-pluggable, so that no unmovable block may be in it.
    pub hot_pluggable: bool,
}

/// A run of whole pages of memory with one home.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Piece {
    /// Frames of the piece.
    pub range: Range<Pfn>,
    /// Home of all its frames.
    pub home: Home,
}

impl Piece {
    /// Base pages.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.range.end.0 - self.range.start.0
    }
}

/// Counts of the ranges that were changed to make a map. Bytes, unless a field states another unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MapCounts {
    /// Ranges given, ranges of nodes included.
    pub ranges: u64,
    /// Ranges without a byte, dropped.
    pub empty: u64,
    /// Ranges that reach beyond [`ADDRESS_END`] and were cut there, or dropped.
    pub cut: u64,
    /// Bytes in more than one range.
    pub overlapped: u64,
}

/// Reason why a range cannot be part of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapFailure {
    /// The end of the range wraps around.
    Wraps,
    /// The caller's array, with this number of entries, is full.
    Full(usize),
    /// Two nodes claim the byte.
    TwoNodes {
        /// A byte of the range that another node claims.
        at: u64,
        /// The other node.
        claimed_by: NodeId,
    },
}

/// A range that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapError {
    /// Reason.
    pub why: MapFailure,
    /// First byte of the range.
    pub start: u64,
    /// Length of the range.
    pub bytes: u64,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x} bytes at {:#x}: ", self.bytes, self.start)?;
        match self.why {
            MapFailure::Wraps => f.write_str("the range wraps around the end of the address space"),
            MapFailure::Full(room) => write!(f, "the map has room for {room} ranges and is full"),
            MapFailure::TwoNodes { at, claimed_by } => write!(f, "{at:#x} belongs to {claimed_by:?} already"),
        }
    }
}

impl core::error::Error for MapError {}

/// A memory map. Ranges may be added in any order; the result does not depend on it.
#[derive(Debug)]
pub struct MemoryMap<'b> {
    kinds: Spans<'b, Kind>,
    homes: Spans<'b, Home>,
    counts: MapCounts,
}

impl<'b> MemoryMap<'b> {
    /// A map without memory, with pages of 4 KiB. `kinds` must have twice as many entries as ranges are
    /// [added](Self::add), plus one; `homes` likewise for [ranges of nodes](Self::add_node). `homes` may be empty if
    /// there is one node.
    #[must_use]
    pub fn new(kinds: &'b mut [Span<Kind>], homes: &'b mut [Span<Home>]) -> Self {
        Self { kinds: Spans::new(kinds), homes: Spans::new(homes), counts: MapCounts::default() }
    }

    /// Adds a range of `bytes` bytes from `start` on. Where it overlaps other ranges, the more restrictive kind wins.
    /// O(ranges) for each range that it overlaps; O(log ranges) if ranges come in order.
    ///
    /// # Errors
    /// A range that wraps around; a full array, and then a first part of the range may have been added.
    pub fn add(&mut self, start: u64, bytes: u64, kind: Kind) -> Result<(), MapError> {
        let Some(range) = self.checked(start, bytes)? else { return Ok(()) };
        let full = |Full(room)| MapError { why: MapFailure::Full(room), start, bytes };
        self.counts.overlapped += self.kinds.overlay(range, kind, Kind::max).map_err(full)?;
        Ok(())
    }

    /// Assigns `bytes` bytes from `start` on to a node. The same node may claim them twice; they are hot-pluggable if
    /// one of the two claims is. O(ranges) for each range that it overlaps.
    ///
    /// # Errors
    /// As [`add`](Self::add), and a range of which another node has a part. Nothing was added then.
    pub fn add_node(&mut self, start: u64, bytes: u64, home: Home) -> Result<(), MapError> {
        let Some(range) = self.checked(start, bytes)? else { return Ok(()) };
        let claimed = self.homes.overlapping(&range).iter().find(|span| span.tag.node != home.node);
        if let Some(claimed) = claimed {
            let why = MapFailure::TwoNodes { at: claimed.start.max(start), claimed_by: claimed.tag.node };
            return Err(MapError { why, start, bytes });
        }
        let either = |a: Home, b: Home| Home { hot_pluggable: a.hot_pluggable || b.hot_pluggable, ..a };
        let full = |Full(room)| MapError { why: MapFailure::Full(room), start, bytes };
        self.counts.overlapped += self.homes.overlay(range, home, either).map_err(full)?;
        Ok(())
    }

    /// The part of a range below [`ADDRESS_END`]; `None` if it is empty.
    fn checked(&mut self, start: u64, bytes: u64) -> Result<Option<Range<u64>>, MapError> {
        self.counts.ranges += 1;
        if bytes == 0 {
            self.counts.empty += 1;
            return Ok(None);
        }
        // The last byte of the address space may be the range's last.
        let Some(last) = start.checked_add(bytes - 1) else {
            return Err(MapError { why: MapFailure::Wraps, start, bytes });
        };
        self.counts.cut += u64::from(last >= ADDRESS_END);
        let range = start..last.saturating_add(1).min(ADDRESS_END);
        Ok((!range.is_empty()).then_some(range))
    }

    /// All ranges, in bytes: sorted, without overlap, adjacent ranges of one kind joined.
    #[must_use]
    pub fn kinds(&self) -> &[Span<Kind>] {
        self.kinds.as_slice()
    }

    /// The nodes' ranges, in bytes, likewise. They are addresses and may hold no memory.
    fn homes(&self) -> &[Span<Home>] {
        self.homes.as_slice()
    }

    /// Counts of the ranges that were changed.
    #[must_use]
    pub const fn counts(&self) -> &MapCounts {
        &self.counts
    }

    /// The frames that `bytes` bytes from `start` on touch, below [`ADDRESS_END`]: for memory to reserve.
    #[must_use]
    pub fn touched(&self, start: u64, bytes: u64) -> Range<Pfn> {
        let end = start.saturating_add(bytes).min(ADDRESS_END);
        let first = Pfn(start.min(end) >> PAGE_SHIFT);
        first..if bytes == 0 { first } else { Pfn(end.div_ceil(1 << PAGE_SHIFT)) }
    }

    /// The memory in whole pages, sorted, cut where the home changes. A page that two nodes share belongs to the later
    /// one. Memory that no node claims belongs to node 0.
    pub fn memory(&self) -> impl Iterator<Item = Piece> {
        let mut pieces = self.pieces().peekable();
        core::iter::from_fn(move || {
            let mut piece = pieces.next()?;
            let continues =
                |piece: &Piece, next: &Piece| next.range.start == piece.range.end && next.home == piece.home;
            while let Some(next) = pieces.next_if(|next| continues(&piece, next)) {
                piece.range.end = next.range.end;
            }
            Some(piece)
        })
    }

    /// Pieces of [`memory`](Self::memory), also cut where memory that no node claims meets memory of node 0.
    fn pieces(&self) -> impl Iterator<Item = Piece> {
        // The present kind and home; frames before `at` are done.
        let (mut kind, mut home, mut at) = (0, 0, 0);
        core::iter::from_fn(move || {
            loop {
                let span = self.kinds().get(kind)?;
                let (first, end) = (span.start.div_ceil(1 << PAGE_SHIFT).max(at), span.end >> PAGE_SHIFT);
                if span.tag != Kind::Usable || first >= end {
                    kind += 1;
                    continue;
                }
                // The home of the first frame; if it has none, the piece ends at the start of the next home.
                while self.homes().get(home).is_some_and(|span| span.end >> PAGE_SHIFT <= first) {
                    home += 1;
                }
                let (until, home) = match self.homes().get(home) {
                    Some(span) if span.start >> PAGE_SHIFT <= first => (span.end >> PAGE_SHIFT, span.tag),
                    Some(span) => (span.start >> PAGE_SHIFT, Home::default()),
                    None => (u64::MAX, Home::default()),
                };
                at = end.min(until);
                return Some(Piece { range: Pfn(first)..Pfn(at), home });
            }
        })
    }

    /// Base pages of memory. O(ranges).
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.memory().map(|piece| piece.pages()).sum()
    }

    /// Usable bytes that are not memory, because their pages are not usable as a whole. O(ranges).
    #[must_use]
    pub fn trimmed_bytes(&self) -> u64 {
        let usable = self.kinds().iter().filter(|span| span.tag == Kind::Usable);
        let bytes: u64 = usable.map(|span| span.end - span.start).sum();
        bytes - (self.pages() << PAGE_SHIFT)
    }

    /// Base pages of memory that no node claims; 0 if no node claims any. O(ranges × ranges of nodes).
    #[must_use]
    pub fn unclaimed_pages(&self) -> u64 {
        if self.homes().is_empty() {
            return 0;
        }
        let claimed = |piece: &Piece| {
            let within = |span: &Span<Home>| {
                let (from, to) = (span.start >> PAGE_SHIFT, span.end >> PAGE_SHIFT);
                to.min(piece.range.end.0).saturating_sub(from.max(piece.range.start.0))
            };
            self.homes().iter().map(within).sum::<u64>()
        };
        self.memory().map(|piece| piece.pages() - claimed(&piece)).sum()
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;
    use std::vec::Vec;

    use super::*;

    const K: u64 = 1 << 10;
    const NODE_1: Home = Home { node: NodeId(1), hot_pluggable: false };

    fn pieces(map: &MemoryMap<'_>) -> Vec<(u64, u64, u16)> {
        map.memory().map(|piece| (piece.range.start.0, piece.range.end.0, piece.home.node.0)).collect()
    }

    #[test]
    fn a_pc_of_the_usual_kind() {
        let (mut kinds, mut homes) = ([Span::default(); 16], [Span::default(); 4]);
        let mut map = MemoryMap::new(&mut kinds, &mut homes);
        for (start, end, kind) in [
            (0x10_0000, 0xbfff_0000, Kind::Usable),
            (0xffff_0000, 0x1_0000_0000, Kind::Reserved),
            (0x9_fc00, 0xa_0000, Kind::Reserved),
            (0, 0x9_fc00, Kind::Usable),
            (0xbfff_0000, 0xc000_0000, Kind::AcpiTables),
            (0x1_0000_0000, 0x2_4000_0000, Kind::Usable),
        ] {
            map.add(start, end - start, kind).expect("there is room");
        }
        assert_eq!(
            pieces(&map),
            [(0, 0x9f, 0), (0x100, 0xb_fff0, 0), (0x10_0000, 0x24_0000, 0)],
            "the page at 0x9f000 is partly reserved"
        );
        assert_eq!(map.trimmed_bytes(), 0xc00);
        assert_eq!(map.pages(), 0x9f + 0xb_fef0 + 0x14_0000);
        assert_eq!(map.kinds().len(), 6);
    }

    #[test]
    fn the_more_restrictive_wins_in_any_order() {
        let said = [
            (0, 100 * K, Kind::Usable),
            (40 * K, 20 * K, Kind::Reserved),
            (50 * K, 20 * K, Kind::AcpiTables),
            (56 * K, 2 * K, Kind::Unusable),
            (96 * K, 60 * K, Kind::Usable),
        ];
        for first in 0..said.len() {
            let mut kinds = [Span::default(); 11];
            let mut map = MemoryMap::new(&mut kinds, &mut []);
            for n in 0..said.len() {
                let (start, bytes, kind) = said[(first + n) % said.len()];
                map.add(start, bytes, kind).expect("there is room");
            }
            let ends: Vec<_> = map.kinds().iter().map(|span| (span.end / K, span.tag)).collect();
            assert_eq!(
                ends,
                [
                    (40, Kind::Usable),
                    (56, Kind::Reserved),
                    (58, Kind::Unusable),
                    (60, Kind::Reserved),
                    (70, Kind::AcpiTables),
                    (156, Kind::Usable)
                ]
            );
            assert_eq!(pieces(&map), [(0, 10, 0), (18, 39, 0)], "70 KiB lies inside a page");
            assert_eq!(map.counts().overlapped, 46 * K, "202 KiB were added, and 156 are there");
        }
    }

    #[test]
    fn nodes_cut_the_memory_and_may_alternate() {
        let (mut kinds, mut homes) = ([Span::default(); 4], [Span::default(); 8]);
        let mut map = MemoryMap::new(&mut kinds, &mut homes);
        map.add(0, 1024 * K, Kind::Usable).expect("there is room");
        for n in 0..3_u64 {
            let home = Home { node: NodeId(n as u16 % 2), hot_pluggable: n == 2 };
            map.add_node(n * 256 * K, 256 * K, home).expect("no other node has it");
        }
        assert_eq!(pieces(&map), [(0, 64, 0), (64, 128, 1), (128, 192, 0), (192, 256, 0)]);
        let hot: Vec<_> = map.memory().map(|piece| piece.home.hot_pluggable).collect();
        assert_eq!(hot, [false, false, true, false]);
        assert_eq!(map.unclaimed_pages(), 64);
        let error = map.add_node(200 * K, 100 * K, NODE_1).expect_err("node 0 has it");
        assert_eq!(error.why, MapFailure::TwoNodes { at: 200 * K, claimed_by: NodeId(0) });
        assert_eq!(error.to_string(), "0x19000 bytes at 0x32000: 0x32000 belongs to node 0 already");
    }

    #[test]
    fn memory_around_the_only_node_is_of_node_0() {
        let (mut kinds, mut homes) = ([Span::default(); 4], [Span::default(); 8]);
        let mut map = MemoryMap::new(&mut kinds, &mut homes);
        map.add(0, 1024 * K, Kind::Usable).expect("there is room");
        map.add_node(256 * K, 256 * K, NODE_1).expect("no other node has it");
        assert_eq!(pieces(&map), [(0, 64, 0), (64, 128, 1), (128, 256, 0)]);
        assert_eq!(map.unclaimed_pages(), 192);
    }

    /// Memory that no node claims is one piece with memory of node 0 beside it, unless that is hot-pluggable.
    #[test]
    fn memory_is_cut_where_the_home_changes_and_nowhere_else() {
        for (hot_pluggable, expected) in
            [(false, &[(0, 256, 0)][..]), (true, &[(0, 64, 0), (64, 128, 0), (128, 256, 0)])]
        {
            let (mut kinds, mut homes) = ([Span::default(); 4], [Span::default(); 8]);
            let mut map = MemoryMap::new(&mut kinds, &mut homes);
            map.add(0, 1024 * K, Kind::Usable).expect("there is room");
            map.add_node(256 * K, 256 * K, Home { hot_pluggable, ..Home::default() })
                .expect("no other node has it");
            assert_eq!(pieces(&map), expected);
            assert_eq!((map.unclaimed_pages(), map.pages()), (192, 256));
        }
    }

    #[test]
    fn absurd_ranges_are_refused_or_counted() {
        let mut kinds = [Span::default(); 4];
        let mut map = MemoryMap::new(&mut kinds, &mut []);
        assert_eq!(
            map.add(u64::MAX, 2, Kind::Usable),
            Err(MapError { why: MapFailure::Wraps, start: u64::MAX, bytes: 2 })
        );
        for (start, bytes) in [(5, 0), (u64::MAX, 1), (ADDRESS_END - 8192, u64::MAX - ADDRESS_END)] {
            map.add(start, bytes, Kind::Usable).expect("it is dropped or cut");
        }
        assert_eq!(*map.counts(), MapCounts { ranges: 4, empty: 1, cut: 2, overlapped: 0 });
        assert_eq!(map.pages(), 2);
        assert_eq!(map.touched(u64::MAX - 5, 100), Pfn(1 << 40)..Pfn(1 << 40));
        assert_eq!(map.touched(4095, 2), Pfn(0)..Pfn(2));
        assert_eq!([0, 4095, u64::MAX].map(|start| map.touched(start, 0).is_empty()), [true; 3]);
    }

    #[test]
    fn a_full_array_says_so() {
        let mut kinds = [Span::default(); 1];
        let mut map = MemoryMap::new(&mut kinds, &mut []);
        map.add(0, 4096, Kind::Usable).expect("there is room");
        map.add(4096, 4096, Kind::Usable).expect("it joins the first");
        let error = map.add(4096, 1, Kind::Reserved).expect_err("the first would be cut in two");
        assert_eq!(error.to_string(), "0x1 bytes at 0x1000: the map has room for 1 ranges and is full");
        assert_eq!(pieces(&map), [(0, 2, 0)]);
        let error = map.add_node(0, 1, NODE_1).expect_err("no room at all");
        assert_eq!(error.why, MapFailure::Full(0));
    }

    /// A node may claim its range twice. The range is hot-pluggable if one claim is, and the second claim is counted as
    /// overlap.
    #[test]
    fn a_node_may_repeat_itself() {
        for first in [false, true] {
            let (mut kinds, mut homes) = ([Span::default(); 1], [Span::default(); 4]);
            let mut map = MemoryMap::new(&mut kinds, &mut homes);
            let home = |hot_pluggable| Home { hot_pluggable, ..NODE_1 };
            let (all, part) = ((0, 100 * K), (40 * K, 20 * K));
            for (start, bytes) in [if first { part } else { all }, if first { all } else { part }] {
                map.add_node(start, bytes, home(bytes == part.1)).expect("it is the same node");
            }
            let homes: Vec<_> =
                map.homes().iter().map(|span| (span.end / K, span.tag.hot_pluggable)).collect();
            assert_eq!(homes, [(40, false), (60, true), (100, false)]);
            assert_eq!(map.counts().overlapped, 20 * K);
        }
    }
}
