//! A program's global allocator whose memory is an arena's, with the feature `global_allocator`.
//!
//! Up to 2 KiB, an allocation is an object of one of 14 sizes. Free objects are on lists, a set of lists for each of
//! [`SHARDS`] groups of threads, behind a lock each. An empty list gets 16 KiB of the arena, cut into objects. They
//! never go back to the arena. What is larger is a block of the arena, and goes back to it. What is larger than 4 MiB,
//! or finds the arena full, is the system allocator's.
#![expect(unsafe_code, reason = "an allocator vouches for its memory")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::alloc::System;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use framewright::{Migratetype, Order};

use crate::arena::Arena;
use crate::cpu::thread_number;
use crate::shared::SharedArena;

/// Sizes of small objects. An object is aligned to the largest power of two that divides its size.
const SIZES: [usize; 14] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048];
/// Groups of threads with lists of their own.
const SHARDS: usize = 16;
/// Order of the blocks that small objects are cut from.
const CHUNK: Order = Order::new(2).expect("an order");

/// By size in units of 16 bytes, rounded up: the first of [`SIZES`] that is large enough.
const SIZE_INDEX: [u8; 129] = {
    let (mut table, mut unit, mut index) = ([0; 129], 0, 0);
    while unit < table.len() {
        if unit * 16 > SIZES[index] {
            index += 1;
        }
        table[unit] = index as u8;
        unit += 1;
    }
    table
};

/// Index of the size of the small object that holds `layout`; `None` if it is not small.
fn size_index(layout: Layout) -> Option<usize> {
    let first = usize::from(*SIZE_INDEX.get(layout.size().div_ceil(16))?);
    (first..SIZES.len()).find(|&index| 1 << SIZES[index].trailing_zeros() >= layout.align())
}

/// A free object: the next one is named in its first word.
struct FreeObject {
    next: Option<NonNull<Self>>,
}

/// Lists of free objects, by size.
#[derive(Default)]
struct Lists([Option<NonNull<FreeObject>>; SIZES.len()]);

// SAFETY: the objects on the lists are no thread's; the lists are reached under their lock.
unsafe impl Send for Lists {}

/// On cache lines of its own.
#[repr(align(128))]
struct Shard(Mutex<Lists>);

impl Shard {
    const fn new() -> Self {
        Self(Mutex::new(Lists([None; SIZES.len()])))
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A global allocator over an arena of its own. The first allocation makes the arena; until it is made, memory is the
/// system allocator's.
///
/// ```
/// use framewright_host::Heap;
///
/// #[global_allocator]
/// static HEAP: Heap = Heap::new(1 << 30);
///
/// fn main() {
///     let numbers: Vec<u64> = (0..100_000).collect();
///     let arena = HEAP.arena().expect("an allocation has made it");
///     assert!(arena.frame_at(numbers.as_ptr().cast()).is_some());
/// }
/// ```
///
/// # Forks
/// A child's copies of objects hold what they held. The child frees none of them, and its new memory is the system
/// allocator's: a lock or a list that another thread was changing in the moment of the fork is not touched. So a child
/// may run as long as it likes.
///
/// # Helpers
/// A reclaimer that is set on [`arena`](Self::arena) runs in the middle of allocations of the program, with no lock of
/// the heap held. It must not take a lock of its own that a thread may hold while it allocates.
pub struct Heap {
    bytes: u64,
    /// Some thread makes the arena, or has.
    begun: AtomicBool,
    arena: OnceLock<SharedArena>,
    shards: [Shard; SHARDS],
}

impl core::fmt::Debug for Heap {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Heap")
            .field("bytes", &self.bytes)
            .field("arena", &self.arena.get())
            .finish_non_exhaustive()
    }
}

impl Heap {
    /// A heap with an arena of `bytes` bytes: address space, which the system commits when it is first touched.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self {
            bytes,
            begun: AtomicBool::new(false),
            arena: OnceLock::new(),
            shards: [const { Shard::new() }; SHARDS],
        }
    }

    /// The heap's arena, for its counts and helpers. `None` before the first allocation has made it, if it could not be
    /// made, and in a child of the process that made it.
    #[must_use]
    pub fn arena(&self) -> Option<&SharedArena> {
        self.arena.get().filter(|arena| !arena.is_forked())
    }

    /// The arena, made now if no thread has begun to. The arena's own allocations come back here and are the system's.
    fn ready(&self) -> Option<&SharedArena> {
        if self.arena.get().is_none() && !self.begun.swap(true, Relaxed) {
            let made = Arena::builder().bytes(self.bytes).silent().copied_by_fork().build_shared().ok();
            made.map(|arena| self.arena.set(arena));
        }
        self.arena()
    }

    /// The lists of this thread's group.
    fn shard(&self) -> &Shard {
        &self.shards[thread_number() % SHARDS]
    }

    /// An object of size `index`. No lock is held while the arena is asked.
    fn take(&self, arena: &SharedArena, index: usize) -> Option<NonNull<u8>> {
        let shard = self.shard();
        let mut lists = shard.lists();
        if let Some(first) = lists.0[index] {
            // SAFETY: an object on the list is the heap's, and its first word was written by `cut` or `put`.
            lists.0[index] = unsafe { first.as_ref() }.next;
            return Some(first.cast());
        }
        drop(lists);
        let pfn = arena.alloc(CHUNK, Migratetype::Unmovable).ok()?;
        let (start, size) = (arena.address(pfn)?, SIZES[index]);
        let count = (arena.page_bytes() << CHUNK.get()) / size;
        // The first object is the caller's, the others go onto the list.
        let mut lists = shard.lists();
        for n in (1..count).rev() {
            // SAFETY: inside the block, which was allocated just now.
            unsafe { Self::put(&mut lists, index, start.add(n * size)) };
        }
        Some(start)
    }

    /// # Safety
    /// An object of size `index` that no code uses any more.
    unsafe fn put(lists: &mut Lists, index: usize, object: NonNull<u8>) {
        let object = object.cast::<FreeObject>();
        // SAFETY: by the caller's promise; every size has room for a word, and is aligned to one.
        unsafe { object.write(FreeObject { next: lists.0[index] }) };
        lists.0[index] = Some(object);
    }
}

/// The order of the block that holds a large layout.
fn order_of(arena: &SharedArena, layout: Layout) -> Option<Order> {
    arena.order_for(layout.size().max(layout.align()))
}

// SAFETY: an object or a block is its user's until it is freed with the layout that it was allocated with, which says
// what it is; what is outside the arena is the system's.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let found = self.ready().and_then(|arena| match size_index(layout) {
            Some(index) => self.take(arena, index),
            None => arena.address(arena.alloc(order_of(arena, layout)?, Migratetype::Unmovable).ok()?),
        });
        // SAFETY: by the caller's promise.
        found.map_or_else(|| unsafe { System.alloc(layout) }, NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        let lies_in = self.arena.get().and_then(|arena| Some((arena, arena.frame_at(start)?)));
        let (Some((arena, pfn)), Some(object)) = (lies_in, NonNull::new(start)) else {
            // SAFETY: it is not in the arena, so the system has given it.
            return unsafe { System.dealloc(start, layout) };
        };
        // In a child, it is a copy of the parent's.
        if arena.is_forked() {
            return;
        }
        match size_index(layout) {
            // SAFETY: an object of this size, by the caller's promise.
            Some(index) => unsafe { Self::put(&mut self.shard().lists(), index, object) },
            None => {
                let order = order_of(arena, layout).expect("a block of the arena");
                // SAFETY: a block of this order, by the caller's promise.
                let freed = unsafe { arena.free(pfn, order) };
                debug_assert!(freed.is_ok(), "memory was freed that is not allocated: {freed:?}");
            }
        }
    }

    unsafe fn realloc(&self, start: *mut u8, old: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that does not overflow with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, old.align()) };
        let Some(arena) = self.arena.get().filter(|arena| arena.frame_at(start).is_some()) else {
            // SAFETY: it is not in the arena, so the system has given it.
            return unsafe { System.realloc(start, old, size) };
        };
        let stays = match (size_index(old), size_index(new)) {
            (None, None) => order_of(arena, old) == order_of(arena, new),
            (old, new) => old == new,
        };
        if stays {
            return start;
        }
        // SAFETY: by the caller's promise; both have room for what is copied.
        unsafe {
            let to = self.alloc(new);
            if !to.is_null() {
                ptr::copy_nonoverlapping(start, to, old.size().min(size));
                self.dealloc(start, old);
            }
            to
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_as_large_and_as_aligned_as_its_layout() {
        for size in 0..=4096 {
            for align in (0..=12).map(|shift| 1 << shift) {
                let layout = Layout::from_size_align(size, align).unwrap();
                match size_index(layout) {
                    Some(index) => {
                        assert!(SIZES[index] >= size && SIZES[index].is_multiple_of(align));
                        let fits = |&object: &usize| object >= size && object.is_multiple_of(align);
                        assert_eq!(SIZES.iter().position(fits), Some(index), "{size} {align}");
                    }
                    None => assert!(size > 2048 || align > 2048),
                }
            }
        }
    }
}
