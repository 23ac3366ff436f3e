//! Allocation before there are zones: memory for the kernel image, the initial file system and the allocator's own
//! structures. The rest is handed over to the zones, once.
//!
//! A list of reserved frames beside the memory map, as in Linux' memblock. Every call walks both: O(ranges). There are
//! few calls, and no set-up.

use core::fmt;
use core::ops::Range;

use crate::boot::map::{MemoryMap, Piece};
use crate::boot::spans::{Full, Span, Spans};
use crate::units::{NodeId, Pfn};

/// End of a range from which an early allocation takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Side {
    /// The lowest frames that fit.
    Bottom,
    /// The highest frames that fit: low memory is scarce.
    #[default]
    Top,
}

/// An early allocation: number of frames, and their place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EarlyRequest {
    /// Base pages, at least 1.
    pub pages: u64,
    /// Alignment of the first frame, in base pages: a power of two.
    pub align: u64,
    /// All frames are in this range.
    pub within: Range<Pfn>,
    /// The node of the frames, if it has room; else any.
    pub near: Option<NodeId>,
    /// End of the free range to take from.
    pub from: Side,
    /// Whether hot-pluggable memory may be taken. It cannot be removed then.
    pub hot_pluggable: bool,
}

impl EarlyRequest {
    /// `pages` frames from the top of the memory that is not hot-pluggable, aligned to one page.
    #[must_use]
    pub const fn new(pages: u64) -> Self {
        Self {
            pages,
            align: 1,
            within: Pfn(0)..Pfn(u64::MAX),
            near: None,
            from: Side::Top,
            hot_pluggable: false,
        }
    }
}

/// Reason why an early allocation or reservation was refused. The state is unchanged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EarlyError {
    /// 0 pages were requested, or the alignment is no power of two.
    BadRequest(EarlyRequest),
    /// No free range is large enough.
    NoMemory {
        /// The request.
        request: EarlyRequest,
        /// Base pages of the largest range that the request may use, alignment aside.
        largest: u64,
    },
    /// The caller's array of reserved ranges is full.
    Full {
        /// The range to reserve.
        range: Range<Pfn>,
        /// Entries of the array.
        room: usize,
    },
}

impl fmt::Display for EarlyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(request) => {
                let EarlyRequest { pages, align, .. } = request;
                write!(f, "{pages} pages aligned to {align}: at least one, and to a power of two")
            }
            Self::NoMemory { request, largest } => write!(
                f,
                "no {} free pages aligned to {} in {:#x}..{:#x}: the largest range has {largest}",
                request.pages, request.align, request.within.start.0, request.within.end.0
            ),
            Self::Full { range, room } => write!(
                f,
                "frames {:#x}..{:#x}: there is room for {room} reserved ranges, and no more",
                range.start.0, range.end.0
            ),
        }
    }
}

impl core::error::Error for EarlyError {}

/// The memory of a map, and its reserved frames.
#[derive(Debug)]
pub struct Early<'b> {
    map: MemoryMap<'b>,
    reserved: Spans<'b, ()>,
}

impl<'b> Early<'b> {
    /// All memory of `map`, nothing reserved. `reserved` holds the ranges that will be reserved.
    #[must_use]
    pub fn new(map: MemoryMap<'b>, reserved: &'b mut [Span<()>]) -> Self {
        Self { map, reserved: Spans::new(reserved) }
    }

    /// The memory map.
    #[must_use]
    pub const fn map(&self) -> &MemoryMap<'b> {
        &self.map
    }

    /// The reserved frames: sorted ranges, adjacent ones joined. They may reach beyond the memory.
    #[must_use]
    pub fn reserved(&self) -> &[Span<()>] {
        self.reserved.as_slice()
    }

    /// Base pages of memory that are reserved. O(ranges).
    #[must_use]
    pub fn reserved_pages(&self) -> u64 {
        self.map.pages() - self.free().map(|piece| piece.pages()).sum::<u64>()
    }

    /// Reserves frames, whether or not they are memory or reserved already. No later allocation gets them. O(ranges).
    ///
    /// # Errors
    /// The caller's array is full.
    pub fn reserve(&mut self, range: Range<Pfn>) -> Result<(), EarlyError> {
        if range.is_empty() {
            return Ok(());
        }
        let set = self.reserved.set(range.start.0..range.end.0, ());
        set.map_err(|Full(room)| EarlyError::Full { range, room })
    }

    /// Takes contiguous frames, and returns the first. O(ranges).
    ///
    /// # Errors
    /// No free range is large enough, or the array of reserved ranges is full.
    pub fn alloc(&mut self, request: &EarlyRequest) -> Result<Pfn, EarlyError> {
        if request.pages == 0 || !request.align.is_power_of_two() {
            return Err(EarlyError::BadRequest(request.clone()));
        }
        let found = self.find(request, request.near).or_else(|| self.find(request, None));
        let Some(first) = found else {
            let largest = self.candidates(request, None).map(|range| range.end.0 - range.start.0).max();
            return Err(EarlyError::NoMemory { request: request.clone(), largest: largest.unwrap_or(0) });
        };
        self.reserve(first..first.add(request.pages))?;
        Ok(first)
    }

    fn find(&self, request: &EarlyRequest, on: Option<NodeId>) -> Option<Pfn> {
        let mask = request.align - 1;
        let mut fits = self.candidates(request, on).filter_map(|range| match request.from {
            Side::Bottom => {
                let first = range.start.0.checked_add(mask)? & !mask;
                (range.end.0.checked_sub(first)? >= request.pages).then_some(Pfn(first))
            }
            Side::Top => {
                let first = range.end.0.checked_sub(request.pages)? & !mask;
                (first >= range.start.0).then_some(Pfn(first))
            }
        });
        match request.from {
            Side::Bottom => fits.next(),
            Side::Top => fits.last(),
        }
    }

    /// The parts of free ranges that a request may use.
    fn candidates<'a>(
        &'a self,
        request: &'a EarlyRequest,
        on: Option<NodeId>,
    ) -> impl Iterator<Item = Range<Pfn>> + 'a {
        let usable = move |piece: &Piece| {
            on.is_none_or(|node| node == piece.home.node)
                && (request.hot_pluggable || !piece.home.hot_pluggable)
        };
        let clip = |piece: Piece| {
            piece.range.start.max(request.within.start)..piece.range.end.min(request.within.end)
        };
        self.free().filter(usable).map(clip).filter(|range| !range.is_empty())
    }

    /// The memory that is not reserved, in order, cut where the home changes. A walk over it costs O(ranges).
    pub fn free(&self) -> impl Iterator<Item = Piece> {
        self.map.memory().flat_map(|piece| {
            let Range { start, end } = piece.range;
            let reserved = self.reserved.overlapping(&(start.0..end.0));
            let starts = [start.0].into_iter().chain(reserved.iter().map(|span| span.end));
            let ends = reserved.iter().map(|span| span.start).chain([end.0]);
            let gaps = starts.zip(ends).filter(|(start, end)| start < end);
            gaps.map(move |(start, end)| Piece { range: Pfn(start)..Pfn(end), home: piece.home })
        })
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;
    use std::vec::Vec;

    use super::*;
    use crate::boot::map::{Home, Kind};

    /// Frames 0..100 of node 0, 100..200 of node 1, a hole, and 300..400 of node 1, hot-pluggable.
    fn machine<'b>(
        buffers: &'b mut ([Span<Kind>; 8], [Span<Home>; 8]),
        reserved: &'b mut [Span<()>],
    ) -> Early<'b> {
        let mut map = MemoryMap::new(&mut buffers.0, &mut buffers.1);
        for (start, node, hot_pluggable) in [(0, 0, false), (100, 1, false), (300, 1, true)] {
            map.add(start << 12, 100 << 12, Kind::Usable).expect("there is room");
            map.add_node(start << 12, 100 << 12, Home { node: NodeId(node), hot_pluggable })
                .expect("likewise");
        }
        Early::new(map, reserved)
    }

    fn free(early: &Early<'_>) -> Vec<(u64, u64)> {
        early.free().map(|piece| (piece.range.start.0, piece.range.end.0)).collect()
    }

    #[test]
    fn from_either_end_aligned_and_on_nodes() {
        let (mut buffers, mut reserved) = (Default::default(), [Span::default(); 16]);
        let mut early = machine(&mut buffers, &mut reserved);
        let bottom = |pages| EarlyRequest { from: Side::Bottom, ..EarlyRequest::new(pages) };
        assert_eq!(early.alloc(&bottom(10)), Ok(Pfn(0)));
        assert_eq!(early.alloc(&EarlyRequest { align: 16, ..bottom(10) }), Ok(Pfn(16)));
        assert_eq!(early.alloc(&bottom(10)), Ok(Pfn(26)), "the gap of 6 is too small");
        assert_eq!(early.alloc(&bottom(6)), Ok(Pfn(10)));
        assert_eq!(early.alloc(&EarlyRequest::new(10)), Ok(Pfn(190)), "not the hot-pluggable part");
        assert_eq!(
            early.alloc(&EarlyRequest { hot_pluggable: true, align: 64, ..EarlyRequest::new(10) }),
            Ok(Pfn(384))
        );
        let near_0 = |pages| EarlyRequest { near: Some(NodeId(0)), ..EarlyRequest::new(pages) };
        assert_eq!(early.alloc(&near_0(65)), Ok(Pfn(125)), "node 0 has 64");
        assert_eq!(early.alloc(&near_0(5)), Ok(Pfn(95)));
        assert_eq!(early.alloc(&near_0(99)), Err(EarlyError::NoMemory { request: near_0(99), largest: 59 }));
        assert_eq!(
            early.alloc(&EarlyRequest { within: Pfn(40)..Pfn(60), ..EarlyRequest::new(20) }),
            Ok(Pfn(40))
        );
        assert_eq!(free(&early), [(36, 40), (60, 95), (100, 125), (300, 384), (394, 400)]);
        assert_eq!(early.reserved_pages(), 300 - 4 - 35 - 25 - 84 - 6);
    }

    #[test]
    fn no_range_crosses_a_node() {
        let (mut buffers, mut reserved) = (Default::default(), [Span::default(); 16]);
        let mut early = machine(&mut buffers, &mut reserved);
        let error = early.alloc(&EarlyRequest::new(101)).expect_err("each node has 100");
        assert_eq!(
            error.to_string(),
            "no 101 free pages aligned to 1 in 0x0..0xffffffffffffffff: the largest range has 100"
        );
    }

    #[test]
    fn reserving() {
        let (mut buffers, mut reserved) = (Default::default(), [Span::default(); 2]);
        let mut early = machine(&mut buffers, &mut reserved);
        early.reserve(Pfn(90)..Pfn(250)).expect("there is room");
        early.reserve(Pfn(95)..Pfn(100)).expect("it is reserved already");
        early.reserve(Pfn(7)..Pfn(7)).expect("nothing");
        assert_eq!(free(&early), [(0, 90), (300, 400)]);
        early.reserve(Pfn(350)..Pfn(360)).expect("there is room for two");
        let range = Pfn(10)..Pfn(11);
        assert_eq!(early.reserve(range.clone()), Err(EarlyError::Full { range, room: 2 }));
        assert!(matches!(
            early.alloc(&EarlyRequest { from: Side::Bottom, ..EarlyRequest::new(1) }),
            Err(EarlyError::Full { .. })
        ));
        assert_eq!(free(&early), [(0, 90), (300, 350), (360, 400)], "nothing has changed");
    }

    #[test]
    fn senseless_requests_are_refused() {
        let (mut buffers, mut reserved) = (Default::default(), [Span::default(); 2]);
        let mut early = machine(&mut buffers, &mut reserved);
        for request in [
            EarlyRequest::new(0),
            EarlyRequest { align: 3, ..EarlyRequest::new(1) },
            EarlyRequest { align: 0, ..EarlyRequest::new(1) },
        ] {
            assert!(matches!(early.alloc(&request), Err(EarlyError::BadRequest(_))), "{request:?}");
        }
        let far = EarlyRequest { align: 1 << 63, ..EarlyRequest::new(1 << 62) };
        assert!(matches!(early.alloc(&far), Err(EarlyError::NoMemory { .. })));
    }

    /// Every reservation of a small memory against an array of frames.
    #[test]
    fn the_first_fit_is_the_first_fit() {
        for mask in 0..1_u32 << 8 {
            let (mut kinds, mut reserved) = ([Span::default(); 1], [Span::default(); 8]);
            let mut map = MemoryMap::new(&mut kinds, &mut []);
            map.add(0, 8 << 12, Kind::Usable).expect("there is room");
            let mut early = Early::new(map, &mut reserved);
            for n in (0..8).filter(|n| mask & 1 << n != 0) {
                early.reserve(Pfn(n)..Pfn(n + 1)).expect("there is room");
            }
            for (pages, align) in [(1, 1), (2, 1), (2, 2), (3, 4), (4, 1), (8, 8)] {
                let fits = |first: &u64| {
                    first.is_multiple_of(align)
                        && first + pages <= 8
                        && (*first..first + pages).all(|n| mask & 1 << n == 0)
                };
                for (from, expected) in
                    [(Side::Bottom, (0..8).find(fits)), (Side::Top, (0..8).rev().find(fits))]
                {
                    let request = EarlyRequest { align, from, ..EarlyRequest::new(pages) };
                    assert_eq!(early.find(&request, None), expected.map(Pfn), "{mask:#b} {request:?}");
                }
            }
        }
    }

    #[test]
    fn no_free_range_is_empty() {
        let (mut buffers, mut reserved) = (Default::default(), [Span::default(); 4]);
        let mut early = machine(&mut buffers, &mut reserved);
        for range in [0..10, 90..100, 150..160, 390..400] {
            early.reserve(Pfn(range.start)..Pfn(range.end)).expect("there is room");
        }
        assert_eq!(free(&early), [(10, 90), (100, 150), (160, 200), (300, 390)]);
    }
}
