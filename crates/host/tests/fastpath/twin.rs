//! The hit path of the allocator written by hand, with plain atomics and without a single trait: what the
//! generic code is measured against.
//!
//! It does what the core does, no less: every check, every store, every counter, and failures that explain
//! themselves, whose size is felt on the hit path. When the core's hit path changes, this changes with it; see
//! `Cpu::alloc`, `Cpu::free` and `List` there, and `Attached`.

use core::hint::black_box;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// As large as what the core's errors say.
pub(crate) struct AllocError(#[expect(dead_code, reason = "takes its place")] framewright_host::AllocError);
pub(crate) struct FreeError(#[expect(dead_code, reason = "takes its place")] framewright_host::FreeError);

/// Head word of a block at position 0 of the order 0 movable list of CPU 0: taken, seated, movable.
const TAG: u64 = 1 << 55 | 1 << 54 | 1 << 52;
/// A movable pageblock of zone 0.
const MOVABLE: u64 = 1 << 3 | 1;
const PAGEBLOCK_PAGES: u64 = 512;
/// What a free adds to the room.
const ROOM: u32 = 30;

#[repr(C, align(64))]
struct List<'m> {
    top: AtomicU64,
    floor: AtomicU64,
    ceiling: AtomicU64,
    bottom: AtomicU64,
    slots: &'m [AtomicU64],
    mask: u64,
}

impl List<'_> {
    #[inline(always)]
    fn slot(&self, place: u64) -> &AtomicU64 {
        // SAFETY: the mask is one less than the number of slots.
        unsafe { self.slots.get_unchecked((place & self.mask) as usize) }
    }
}

/// Order 0 alone, for the three ordinary types.
#[repr(C, align(128))]
pub(crate) struct Pcp<'m> {
    level: AtomicU64,
    freed: AtomicU64,
    lists: [List<'m>; 3],
    /// Calls that left the hit path.
    misses: AtomicU64,
}

struct Pageblock {
    #[expect(dead_code, reason = "takes the place that it has in the core's descriptor")]
    head: AtomicU64,
    info: AtomicU64,
}

/// All memory of the twin.
pub(crate) struct Memory {
    slots: [Vec<AtomicU64>; 3],
    frames: Vec<AtomicU64>,
    pageblocks: Vec<Pageblock>,
}

#[derive(Clone, Copy)]
struct FrameMap<'m> {
    base: u64,
    frames: &'m [AtomicU64],
    pageblocks: &'m [Pageblock],
}

pub(crate) struct Allocator<'m> {
    frames: FrameMap<'m>,
}

pub(crate) struct Cpu<'a> {
    pcp: &'a Pcp<'a>,
    frames: FrameMap<'a>,
    home: [u64; 3],
}

impl Memory {
    /// `frames` frames, of which the first `listed` sit on the movable list.
    pub(crate) fn new(frames: u64, listed: u64) -> Self {
        let words = |n| (0..n).map(AtomicU64::new).collect::<Vec<_>>();
        let memory = Self {
            slots: [0, 1, 2].map(|_| words(2 * frames)),
            frames: words(frames),
            pageblocks: (0..frames.div_ceil(PAGEBLOCK_PAGES))
                .map(|_| Pageblock { head: AtomicU64::new(0), info: AtomicU64::new(MOVABLE) })
                .collect(),
        };
        for n in 0..listed {
            memory.frames[n as usize].store(TAG | n, Relaxed);
        }
        memory
    }

    pub(crate) fn allocator(&self) -> Allocator<'_> {
        Allocator { frames: FrameMap { base: 0, frames: &self.frames, pageblocks: &self.pageblocks } }
    }

    pub(crate) fn pcp(&self, listed: u64) -> Pcp<'_> {
        let list = |n: usize, top| {
            let (slots, tag) = (&self.slots[n], TAG & !(3 << 52) | (n as u64) << 52);
            List {
                top: AtomicU64::new(tag | top),
                floor: AtomicU64::new(tag),
                ceiling: AtomicU64::new(tag + slots.len() as u64),
                bottom: AtomicU64::new(tag),
                slots,
                mask: slots.len() as u64 - 1,
            }
        };
        Pcp {
            level: AtomicU64::new(u64::from(u32::MAX) << ROOM),
            freed: AtomicU64::new(0),
            lists: [list(0, 0), list(1, listed), list(2, 0)],
            misses: AtomicU64::new(0),
        }
    }
}

impl Pcp<'_> {
    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(allocator: &'a Allocator<'a>, pcp: &'a Pcp<'a>) -> Self {
        Self { pcp, frames: allocator.frames, home: [MOVABLE & !1, MOVABLE, MOVABLE + 1] }
    }

    #[inline]
    pub(crate) fn alloc(&self) -> Result<u64, AllocError> {
        match self.hit() {
            Some(pfn) => Ok(pfn),
            None => alloc_miss(self),
        }
    }

    #[inline]
    fn hit(&self) -> Option<u64> {
        let (pcp, list) = (self.pcp, &self.pcp.lists[1]);
        let top = list.top.load(Relaxed);
        if top <= list.floor.load(Relaxed) {
            return None;
        }
        let head = top.wrapping_sub(1);
        let pfn = list.slot(head).load(Relaxed);
        list.top.store(head, Release);
        pcp.level.store(pcp.level.load(Relaxed).wrapping_add(1 << ROOM), Relaxed);
        pcp.freed.store(pcp.freed.load(Relaxed) >> 1, Relaxed);
        Some(pfn)
    }

    #[inline]
    pub(crate) fn free(&self, pfn: u64) -> Result<(), FreeError> {
        if self.free_hit(pfn) { Ok(()) } else { free_slow(self, pfn) }
    }

    #[inline(always)]
    fn free_hit(&self, pfn: u64) -> bool {
        let of = &self.frames;
        let index = pfn.wrapping_sub(of.base) as usize;
        if index >= of.frames.len() {
            return false;
        }
        // SAFETY: there is such a frame, and every frame has its pageblock.
        let (word, pageblock) = unsafe {
            let pageblock = of.pageblocks.get_unchecked(index / PAGEBLOCK_PAGES as usize);
            (of.frames.get_unchecked(index), pageblock)
        };
        let info = pageblock.info.load(Acquire);
        if info == self.home[1] {
            self.free_on::<1>(word, pfn)
        } else if info == self.home[0] {
            self.free_on::<0>(word, pfn)
        } else if info == self.home[2] {
            self.free_on::<2>(word, pfn)
        } else {
            false
        }
    }

    #[inline(always)]
    fn free_on<const TYPE: usize>(&self, word: &AtomicU64, pfn: u64) -> bool {
        let (pcp, list) = (self.pcp, &self.pcp.lists[TYPE]);
        let top = list.top.load(Relaxed);
        if top >= list.ceiling.load(Relaxed) {
            return false;
        }
        let seat = word.load(Relaxed);
        if seat != top {
            let sits = || seat >= list.bottom.load(Relaxed) && list.slot(seat).load(Relaxed) == pfn;
            if (seat ^ top) >> 32 != 0 || (seat < top && sits()) {
                return false;
            }
            word.store(top, Relaxed);
        }
        list.slot(top).store(pfn, Relaxed);
        list.top.store(top + 1, Release);
        pcp.freed.store(pcp.freed.load(Relaxed).wrapping_add(1), Relaxed);
        let level = pcp.level.load(Relaxed).wrapping_sub(1 << ROOM);
        pcp.level.store(level, Relaxed);
        if (level as i64) < 0 {
            drain_due(self, pfn);
        }
        true
    }
}

// What lies off the hit path has to be there, and come back, so that the compiler keeps the way to it open. It
// is never reached, which `Pcp::misses` proves.

#[cold]
#[inline(never)]
fn alloc_miss(cpu: &Cpu<'_>) -> Result<u64, AllocError> {
    black_box(Ok(cpu.pcp.misses.fetch_add(1, Relaxed)))
}

#[cold]
#[inline(never)]
fn free_slow(cpu: &Cpu<'_>, _pfn: u64) -> Result<(), FreeError> {
    cpu.pcp.misses.fetch_add(1, Relaxed);
    black_box(Ok(()))
}

#[cold]
#[inline(never)]
fn drain_due(cpu: &Cpu<'_>, _pfn: u64) {
    cpu.pcp.misses.fetch_add(1, Relaxed);
}
