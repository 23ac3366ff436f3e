//! The memory of a virtual machine, for `vm-memory`: each region is blocks of 2 MiB of an arena.
#![expect(unsafe_code, reason = "a region vouches for its memory")]

use framewright_host::{AllocError, Arena, Attached, Migratetype, Order, PAGE_BYTES};
use vm_memory::mmap::{GuestMemoryMmap, GuestRegionMmap, MmapRegion};
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryRegion, MemoryRegionAddress};

/// The order of the blocks: huge pages.
fn huge() -> Order {
    Order::new(9).expect("an order")
}

/// Takes `blocks` blocks of 2 MiB and shows them to a guest as its memory from `base` on.
///
/// # Errors
/// No memory.
///
/// # Panics
/// If the arena has no memory, or the guest's addresses wrap around.
pub fn memory(cpu: &Attached<'_>, base: u64, blocks: u64) -> Result<GuestMemoryMmap, AllocError> {
    let bytes = PAGE_BYTES << huge().get();
    let regions: Result<Vec<_>, AllocError> = (0..blocks)
        .map(|n| {
            let pfn = cpu.alloc(huge(), Migratetype::Movable)?;
            let start = cpu.arena().address(pfn).expect("an arena with memory").as_ptr();
            // SAFETY: the block is ours until `release`, inside the arena's mapping.
            let region = unsafe { MmapRegion::build_raw(start, bytes, 3, 0x22) }.expect("a region");
            Ok(GuestRegionMmap::new(region, GuestAddress(base + n * bytes as u64)).expect("guest addresses"))
        })
        .collect();
    Ok(GuestMemoryMmap::from_regions(regions?).expect("regions in ascending order"))
}

/// Ends the guest, and frees its memory.
///
/// # Panics
/// If the memory is not of this arena.
pub fn release(arena: &Arena, cpu: &Attached<'_>, guest: GuestMemoryMmap) {
    let starts: Vec<*mut u8> = guest
        .iter()
        .map(|region| region.get_host_address(MemoryRegionAddress(0)).expect("it has a first byte"))
        .collect();
    drop(guest);
    for start in starts {
        let pfn = arena.frame_at(start).expect("it is of this arena");
        // SAFETY: the guest was passed by value, so nobody uses its memory any more.
        unsafe { cpu.free(pfn, huge()) }.expect("it is allocated");
    }
}
