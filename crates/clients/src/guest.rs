//! The memory of a virtual machine, for `vm-memory`: each region is a block of 2 MiB of an arena.
#![expect(unsafe_code, reason = "a region vouches for its memory")]

use core::fmt;
use std::sync::Arc;

use framewright_host::{AllocError, Migratetype, PAGEBLOCK_ORDER, SharedArena, SharedBlock};
use vm_memory::GuestAddress;
use vm_memory::mmap::{GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// A guest's memory. Its blocks are freed when it is dropped; but not those that a clone of [`memory`](Self::memory)
/// still shows.
pub struct Guest {
    memory: GuestMemoryMmap,
    regions: Vec<(Arc<GuestRegionMmap>, SharedBlock)>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest").field("regions", &self.regions.len()).finish_non_exhaustive()
    }
}

impl Guest {
    /// Takes `blocks` huge pages and shows them to a guest as its memory from `base` on.
    ///
    /// # Errors
    /// No memory.
    ///
    /// # Panics
    /// If the arena has no memory, or the guest's addresses wrap around.
    pub fn new(arena: &SharedArena, base: u64, blocks: u64) -> Result<Self, AllocError> {
        let bytes = arena.page_bytes() << PAGEBLOCK_ORDER.get();
        let regions = (0..blocks).map(|n| {
            let block = arena.alloc_block(PAGEBLOCK_ORDER, Migratetype::Movable)?;
            let start = block.as_ptr().expect("an arena with memory").cast::<u8>().as_ptr();
            // SAFETY: the block outlives the region, or is never freed (see `drop`). Readable and writable, private,
            // anonymous.
            let region = unsafe { MmapRegion::build_raw(start, bytes, 3, 0x22) }.expect("a region");
            let at = GuestAddress(base + n * bytes as u64);
            Ok((Arc::new(GuestRegionMmap::new(region, at).expect("guest addresses")), block))
        });
        let regions = regions.collect::<Result<Vec<_>, AllocError>>()?;
        let all = regions.iter().map(|(region, _)| Arc::clone(region)).collect();
        let memory = GuestMemoryMmap::from_arc_regions(all).expect("regions in ascending order");
        Ok(Self { memory, regions })
    }

    /// The memory, as `vm-memory` uses it.
    pub const fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.memory = GuestMemoryMmap::new();
        for (region, block) in self.regions.drain(..) {
            if Arc::into_inner(region).is_none() {
                // A clone of the memory is in use, and its end is not told to anyone here.
                core::mem::forget(block);
            }
        }
    }
}
