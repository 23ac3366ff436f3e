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

/// `tag` of a block that sits on the order 0 movable list of CPU 0: taken, seated, movable.
const TAG: u64 = 1 << 1 | 1 << 11 | 1 << 9;
/// An unmovable pageblock of zone 0.
const HOME: u64 = 1 << 3;
const PAGEBLOCK_PAGES: u64 = 512;
/// Set in a list's base while its blocks are being moved.
const MOVING: u64 = 1 << 32;

struct List<'m> {
    slots: &'m [AtomicU64],
    top: AtomicU64,
    bottom: AtomicU64,
    base: AtomicU64,
}

/// Order 0 alone, for the three ordinary types.
pub(crate) struct Pcp<'m> {
    request: AtomicU64,
    count: AtomicU64,
    freed: AtomicU64,
    alloc_factor: AtomicU64,
    threshold: AtomicU64,
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

pub(crate) struct Allocator<'m> {
    base: u64,
    frames: &'m [AtomicU64],
    pageblocks: &'m [Pageblock],
}

pub(crate) struct Cpu<'a> {
    allocator: &'a Allocator<'a>,
    pcp: &'a Pcp<'a>,
    home: u64,
    tag: u64,
}

impl Memory {
    /// `frames` frames, of which the first `listed` sit on the movable list.
    pub(crate) fn new(frames: u64, listed: u64) -> Self {
        let words = |n| (0..n).map(AtomicU64::new).collect::<Vec<_>>();
        let memory = Self {
            slots: [0, 1, 2].map(|_| words(2 * frames)),
            frames: words(frames),
            pageblocks: (0..frames.div_ceil(PAGEBLOCK_PAGES))
                .map(|_| Pageblock { head: AtomicU64::new(0), info: AtomicU64::new(HOME | 1) })
                .collect(),
        };
        for n in 0..listed {
            memory.frames[n as usize].store(TAG | n << 32, Relaxed);
        }
        memory
    }

    pub(crate) fn allocator(&self) -> Allocator<'_> {
        Allocator { base: 0, frames: &self.frames, pageblocks: &self.pageblocks }
    }

    pub(crate) fn pcp(&self, listed: u64) -> Pcp<'_> {
        let list = |n: usize, top| List {
            slots: &self.slots[n],
            top: AtomicU64::new(top),
            bottom: AtomicU64::new(0),
            base: AtomicU64::new(0),
        };
        Pcp {
            request: AtomicU64::new(0),
            count: AtomicU64::new(listed),
            freed: AtomicU64::new(0),
            alloc_factor: AtomicU64::new(0),
            threshold: AtomicU64::new(u64::MAX),
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
        Self { allocator, pcp, home: HOME, tag: TAG & !(3 << 9) }
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
        let pcp = self.pcp;
        if pcp.request.load(Relaxed) != 0 {
            return None;
        }
        let list = &pcp.lists[1];
        let top = list.top.load(Relaxed);
        if top == list.bottom.load(Relaxed) {
            return None;
        }
        let pfn = list.slots.get(top.wrapping_sub(1) as usize)?.load(Relaxed);
        list.top.store(top.wrapping_sub(1), Release);
        pcp.count.store(pcp.count.load(Relaxed).wrapping_sub(1), Relaxed);
        pcp.freed.store(pcp.freed.load(Relaxed) >> 1, Relaxed);
        Some(pfn)
    }

    #[inline]
    pub(crate) fn free(&self, pfn: u64) -> Result<(), FreeError> {
        let of = self.allocator;
        let pageblock = of.pageblocks.get((pfn.wrapping_sub(of.base) / PAGEBLOCK_PAGES) as usize);
        let hit = match pageblock.map_or(0, |pageblock| pageblock.info.load(Relaxed)) ^ self.home {
            0 => self.free_on::<0>(pfn),
            1 => self.free_on::<1>(pfn),
            2 => self.free_on::<2>(pfn),
            _ => false,
        };
        if hit { Ok(()) } else { free_slow(self, pfn) }
    }

    #[inline(always)]
    fn free_on<const TYPE: usize>(&self, pfn: u64) -> bool {
        let (of, pcp) = (self.allocator, self.pcp);
        let tag = self.tag | (TYPE as u64) << 9;
        let Some(head) = of.frames.get(pfn.wrapping_sub(of.base) as usize) else { return false };
        let word = head.load(Relaxed);
        if word as u32 != tag as u32 {
            return false;
        }
        let list = &pcp.lists[TYPE];
        let (top, base) = (list.top.load(Relaxed), list.base.load(Relaxed));
        let index = u64::from(((word >> 32) as u32).wrapping_sub(base as u32));
        if index < top {
            let held = index >= list.bottom.load(Acquire)
                && list.slots.get(index as usize).is_some_and(|slot| slot.load(Acquire) == pfn);
            if held && base & MOVING == 0 && list.base.load(Acquire) == base {
                return false;
            }
        }
        let Some(slot) = list.slots.get(top as usize) else { return false };
        slot.store(pfn, Relaxed);
        list.top.store(top + 1, Release);
        let position = u64::from((base as u32).wrapping_add(top as u32));
        let count = pcp.count.load(Relaxed).wrapping_add(1);
        pcp.count.store(count, Relaxed);
        pcp.freed.store(pcp.freed.load(Relaxed).wrapping_add(1), Relaxed);
        pcp.alloc_factor.store(pcp.alloc_factor.load(Relaxed) >> 1, Relaxed);
        let due = count >= pcp.threshold.load(Relaxed) || pcp.request.load(Relaxed) != 0;
        head.store(tag | position << 32, Relaxed);
        if due {
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
