//! The hit path of the allocator written by hand, with plain atomics and without a single trait: what the
//! generic code is measured against.
//!
//! It does what the core does, no less: every check, every store, every counter, and failures that explain
//! themselves, whose size is felt on the hit path. When the core's hit path changes, this changes with it; see
//! `Cpu::alloc`, `Cpu::free` and `List` there, and `Cpu`.

use core::hint::black_box;
use core::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU64, compiler_fence};

/// As large as what the core's errors say.
pub(crate) struct AllocError(#[expect(dead_code, reason = "takes its place")] framewright_host::AllocError);
pub(crate) struct FreeError(#[expect(dead_code, reason = "takes its place")] framewright_host::FreeError);

/// Head word of a block at position 0 of the order 0 movable list of CPU 0: taken, seated, movable.
const TAG: u64 = 1 << 55 | 1 << 54 | 1 << 52;
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
    lists: [List<'m>; 3],
    /// 1 in a hit.
    inside: AtomicU64,
    /// Calls that left the hit path.
    misses: AtomicU64,
}

/// All memory of the twin.
pub(crate) struct Memory {
    slots: [Vec<AtomicU64>; 3],
    frames: Vec<AtomicU64>,
}

#[derive(Clone, Copy)]
struct FrameMap<'m> {
    base: u64,
    frames: &'m [AtomicU64],
}

pub(crate) struct Allocator<'m> {
    frames: FrameMap<'m>,
}

pub(crate) struct Cpu<'a> {
    pcp: &'a Pcp<'a>,
    frames: FrameMap<'a>,
}

impl Memory {
    /// `frames` frames, of which the first `listed` sit on the movable list.
    pub(crate) fn new(frames: u64, listed: u64) -> Self {
        let words = |n| (0..n).map(AtomicU64::new).collect::<Vec<_>>();
        let memory = Self { slots: [0, 1, 2].map(|_| words(2 * frames)), frames: words(frames) };
        for n in 0..listed {
            memory.frames[n as usize].store(TAG | n, Relaxed);
        }
        memory
    }

    pub(crate) fn allocator(&self) -> Allocator<'_> {
        Allocator { frames: FrameMap { base: 0, frames: &self.frames } }
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
            lists: [list(0, 0), list(1, listed), list(2, 0)],
            inside: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }
}

impl Pcp<'_> {
    /// A hit, during which no other CPU drains the lists.
    #[inline(always)]
    fn inside<R>(&self, hit: impl FnOnce() -> R) -> R {
        self.inside.store(1, Relaxed);
        compiler_fence(SeqCst);
        let result = hit();
        self.inside.store(0, Release);
        result
    }

    pub(crate) fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }
}

impl<'a> Cpu<'a> {
    pub(crate) fn new(allocator: &'a Allocator<'a>, pcp: &'a Pcp<'a>) -> Self {
        Self { pcp, frames: allocator.frames }
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
        self.pcp.inside(|| {
            let list = &self.pcp.lists[1];
            let (top, floor) = (list.top.load(Relaxed), list.floor.load(Relaxed));
            if top <= floor {
                return None;
            }
            let head = top.wrapping_sub(1);
            list.top.store(head, Release);
            Some(list.slot(head).load(Relaxed))
        })
    }

    #[inline]
    pub(crate) fn free(&self, pfn: u64) -> Result<(), FreeError> {
        if self.free_hit(pfn) {
            return Ok(());
        }
        let mut error = None;
        free_missed(self, pfn, &mut error);
        error.map_or(Ok(()), Err)
    }

    #[inline(always)]
    fn free_hit(&self, pfn: u64) -> bool {
        let index = pfn.wrapping_sub(self.frames.base) as usize;
        let Some(word) = self.frames.frames.get(index) else { return false };
        let place = word.load(Relaxed);
        for list in [&self.pcp.lists[1], &self.pcp.lists[0], &self.pcp.lists[2]] {
            let top = list.top.load(Relaxed);
            if place == top {
                return self.pcp.inside(|| {
                    if top >= list.ceiling.load(Relaxed) {
                        return false;
                    }
                    list.slot(top).store(pfn, Relaxed);
                    list.top.store(top + 1, Release);
                    true
                });
            }
        }
        false
    }
}

// What is off the hit path has to be there, and come back, so that the compiler keeps the way to it open. It
// is never reached, which `Pcp::misses` proves.

#[cold]
#[inline(never)]
fn alloc_miss(cpu: &Cpu<'_>) -> Result<u64, AllocError> {
    black_box(Ok(cpu.pcp.misses.fetch_add(1, Relaxed)))
}

#[inline(never)]
fn free_missed(cpu: &Cpu<'_>, _pfn: u64, error: &mut Option<FreeError>) {
    cpu.pcp.misses.fetch_add(1, Relaxed);
    *error = black_box(None);
}
