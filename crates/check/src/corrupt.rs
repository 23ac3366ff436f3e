//! Damage on purpose: what memory that goes bad, or a write through a stray pointer, does to the allocator's
//! structures. `verify` must find it.
#![expect(unsafe_code, reason = "the damage goes past the allocator, through raw pointers")]

use framewright::frame::{Frame, PageMap, Pageblock};
use framewright::platform::Platform;
use framewright::units::{CpuId, MAX_ORDER, Migratetype, Order, Pfn, ZoneId};
use framewright::zone::Zone;

use crate::fixture::World;
use crate::platform::pin::OwnedPin;

/// A word of the allocator's structures: of its first zone, and of its first CPU's lists there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// A frame's descriptor: the head word of a block below order 9.
    Head(Pfn),
    /// The head word of the order 9 or 10 block at a pageblock's first frame.
    PageblockHead(Pfn),
    /// Type and marks of a pageblock.
    PageblockInfo(Pfn),
    /// A word of the map of a pageblock. Only with maps.
    MapWord(Pfn, usize),
    /// A slot of the per-CPU lists' storage; the first are those of the unmovable order-0 list.
    Slot(usize),
    /// What other CPUs ask of the per-CPU lists, and whether frees check their pageblocks.
    PcpRequest,
    /// The page count of the per-CPU lists.
    PcpCount,
    /// Of the movable order-0 list: the place behind its head, floor, ceiling, and the place of its coldest block.
    ListWord(usize),
    /// The zone's free pages.
    FreePages,
    /// The zone's free CMA pages.
    FreeCmaPages,
    /// The first frame of the zone's untouched memory.
    UntouchedStart,
    /// The first frame after it.
    UntouchedEnd,
    /// The zone's free pages that are left to be initialised. Only of a world whose memory boot initialises.
    LeftForLater,
    /// The free blocks of an order.
    NrFree(Order),
    /// Which bins of a type have a pageblock. Only with maps.
    Bins(Migratetype),
    /// A word of the bitmap of a type's free pageblocks. Only with maps, in a world of one zone.
    Whole(Migratetype, usize),
    /// The first block of a free list, relative to the zone's start. Not of an isolated list.
    First(Order, Migratetype),
    /// The last block of a free list, likewise.
    Last(Order, Migratetype),
}

/// Head words as `frame` packs them.
pub mod heads {
    use framewright::units::Migratetype;

    /// Of a frame inside a block.
    pub const BODY: u64 = 0;

    /// Of a movable block with a caller or on a list.
    pub const fn taken(order: u64) -> u64 {
        1 << 55 | order << 48 | (Migratetype::Movable as u64) << 52
    }

    /// Of a free block of free lists.
    pub const fn free(order: u64, list: Migratetype, next: u64, prev: u64) -> u64 {
        1 << 63 | order << 59 | (list as u64) << 56 | prev << 28 | next
    }

    /// Of a pageblock that is in a bin of maps.
    pub const fn open(free: u64, largest: u64, prev: u64, next: u64) -> u64 {
        4 << 55 | free << 45 | largest << 38 | prev << 19 | next
    }
}

impl<P: Platform<Pin = OwnedPin>> World<P> {
    /// Garbage in every descriptor, as in memory that firmware has used: for worlds whose boot clears it.
    pub fn soil(&self) {
        for zone in self.allocator().zones().iter().map(Zone::spec) {
            for pfn in zone.start.0..zone.end().0.next_multiple_of(MAX_ORDER.pages()) {
                self.corrupt(Spot::Head(Pfn(pfn)), pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
    }

    /// Reads a word, under the same conditions.
    pub fn word(&self, spot: Spot) -> u64 {
        let value = self.corrupt(spot, 0);
        self.corrupt(spot, value);
        value
    }

    /// Writes `value` to a word, and returns what it held. No other thread may use the world during the call. The world
    /// counts as [damaged](World::note_damage) from then on.
    ///
    /// # Panics
    /// The world has no such word, or its platform's words are more than 64 bits.
    pub fn corrupt(&self, spot: Spot, value: u64) -> u64 {
        assert_eq!(size_of::<P::Word>(), 8, "a word is a word of the machine");
        self.note_damage();
        let (frames, pageblocks, slots) = (self.frames(), self.pageblocks(), self.slots());
        let frame = |pfn: Pfn| (pfn.0 - self.spec().base().0) as usize;
        let zone = &self.allocator().zones()[0];
        let layout = Zone::<P>::layout();
        let area = |order: Order| {
            layout.order0_lists + order.index() * ((layout.order10_lists - layout.order0_lists) / 10)
        };
        let in_zone = |offset: usize| {
            assert!(offset + 8 <= size_of::<Zone<P>>());
            // SAFETY: the offset is in the zone.
            unsafe { core::ptr::from_ref(zone).cast::<u8>().add(offset) }
        };
        let list = |order: Order, list: Migratetype| {
            assert!(list != Migratetype::Isolate, "isolated lists lie elsewhere");
            area(order) + list.index() * 16
        };
        let word = match spot {
            // The descriptors begin with their head words: they are `repr(C)`.
            Spot::Head(pfn) => core::ptr::from_ref::<Frame<P, ()>>(&frames[frame(pfn)]).cast(),
            Spot::PageblockHead(pfn) => {
                core::ptr::from_ref::<Pageblock<P>>(&pageblocks[frame(pfn) / 512]).cast()
            }
            Spot::PageblockInfo(pfn) => {
                let block = core::ptr::from_ref::<Pageblock<P>>(&pageblocks[frame(pfn) / 512]);
                // SAFETY: a pageblock's descriptor is two words.
                unsafe { block.cast::<u8>().add(8) }
            }
            Spot::MapWord(pfn, n) => {
                assert!(n < 8, "a map has eight words");
                let map = core::ptr::from_ref::<PageMap<P>>(&self.maps()[frame(pfn) / 512]);
                // SAFETY: a map is eight words.
                unsafe { map.cast::<u8>().add(8 * n) }
            }
            Spot::Whole(kind, n) => {
                let (maps, types) = (self.maps(), Migratetype::ALL.len());
                let of_type = (maps.len() - pageblocks.len()) / types;
                assert!(n < 8 * of_type, "the bitmap of a type has {of_type} maps");
                let first = maps.len() - of_type * (types - kind.index());
                let map = core::ptr::from_ref::<PageMap<P>>(&maps[first + n / 8]);
                // SAFETY: a map is eight words.
                unsafe { map.cast::<u8>().add(8 * (n % 8)) }
            }
            Spot::Slot(n) => core::ptr::from_ref(&slots[n]).cast(),
            Spot::PcpRequest | Spot::PcpCount => {
                let pcp = self.allocator().pcp(ZoneId(0), CpuId(0));
                let offset = if spot == Spot::PcpCount { 8 } else { 0 };
                // SAFETY: the requests are the first word of a list set, the count is the second.
                unsafe { core::ptr::from_ref(pcp).cast::<u8>().add(offset) }
            }
            Spot::ListWord(n) => {
                assert!(n < 4, "a list has four words");
                let pcp = self.allocator().pcp(ZoneId(0), CpuId(0));
                // SAFETY: a list set begins with a line of its own words, then its lists follow, each in a line.
                unsafe { core::ptr::from_ref(pcp).cast::<u8>().add(2 * 64 + 8 * n) }
            }
            Spot::FreePages => in_zone(layout.counters),
            Spot::FreeCmaPages => in_zone(layout.counters + 8),
            Spot::LeftForLater => {
                // The count is the first word: it is `repr(C)`.
                core::ptr::from_ref(&self.allocator().deferred().expect("memory is deferred").zones()[0])
                    .cast()
            }
            Spot::UntouchedStart => in_zone(layout.untouched),
            Spot::UntouchedEnd => in_zone(layout.untouched + 8),
            Spot::NrFree(order) => in_zone(area(order) + layout.order0_count - layout.order0_lists),
            Spot::Bins(kind) => in_zone(layout.bins + kind.index() * 8),
            Spot::First(order, kind) => in_zone(list(order, kind)),
            Spot::Last(order, kind) => in_zone(list(order, kind) + 8),
        };
        // SAFETY: the word is an atomic or is in a cell, so it may change behind a shared reference; every
        // bit pattern is a value of it; and no other thread is at work.
        unsafe { word.cast_mut().cast::<u64>().replace(value) }
    }
}
