//! The direct map: access to the memory of frames, to fill and check it.
#![expect(unsafe_code, reason = "memory is reached by address; only the owner of a block may access it")]

use crate::platform::Platform;
use crate::units::{Order, Pfn};

/// Addresses at which frames can be read and written: frame `pfn` is at `start + (pfn - first) * page_size`.
#[derive(Clone, Copy, Debug)]
pub struct DirectMap {
    start: *mut u8,
    first: Pfn,
    page_size: usize,
}

// SAFETY: it is an address; only the owner of a block may access its memory.
unsafe impl Send for DirectMap {}
// SAFETY: as above.
unsafe impl Sync for DirectMap {}

/// The pattern freed memory is filled with. Linux fills with 0xaa.
pub const POISON: u8 = 0xaa;

impl DirectMap {
    /// Maps frames from `first` on at `start`.
    ///
    /// # Safety
    /// Every frame that the allocator manages can be read and written there as long as the allocator lives, and only
    /// the owner of a block accesses it.
    #[must_use]
    pub const unsafe fn new(start: *mut u8, first: Pfn, page_size: usize) -> Self {
        Self { start, first, page_size }
    }

    /// The memory of a block.
    ///
    /// # Safety
    /// The caller owns the block, and has only one such slice at a time.
    unsafe fn block<'a>(&self, pfn: Pfn, order: Order) -> &'a mut [u8] {
        let offset = (pfn.0 - self.first.0) as usize * self.page_size;
        // SAFETY: mapped, by the contract of `new`; exclusive, by the contract of this function.
        unsafe { core::slice::from_raw_parts_mut(self.start.add(offset), self.page_size << order.get()) }
    }

    /// Fills a block with the poison pattern. For the block's owner: a free that has checked that the block was
    /// allocated, before any other code can get it.
    pub(crate) fn poison(&self, pfn: Pfn, order: Order) {
        // SAFETY: the caller owns the block.
        unsafe { self.block(pfn, order) }.fill(POISON);
    }

    /// Fills a block with zeroes; a block larger than a CPU's caches with the platform's [`clear`](Platform::clear).
    /// For the block's owner: an allocation before it hands the block out, or a free before any other code can get it.
    pub(crate) fn zero<P: Platform>(&self, pfn: Pfn, order: Order) {
        /// A level-2 cache of a common server, and half of one of others.
        const LARGE: usize = 1 << 20;
        // SAFETY: the caller owns the block.
        let block = unsafe { self.block(pfn, order) };
        // SAFETY: exclusively borrowed, and any byte may be zero.
        if block.len() < LARGE || !unsafe { P::clear(block.as_mut_ptr(), block.len()) } {
            block.fill(0);
        }
    }

    /// Offset of the first byte of a block that is not poison. For the block's owner: an allocation, before it hands
    /// the block out.
    pub(crate) fn find_unpoisoned(&self, pfn: Pfn, order: Order) -> Option<usize> {
        // SAFETY: the caller owns the block.
        unsafe { self.block(pfn, order) }.iter().position(|&byte| byte != POISON)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;

    use super::*;
    use crate::platform::machine::{Machine, clears};

    /// If the platform cannot clear, large memory is filled like small memory, and no byte outside it.
    #[test]
    fn memory_of_any_size_is_cleared() {
        for (page_size, asked) in [(4096, 0), ((1 << 20) - 64, 0), (1 << 20, 1), (1 << 21, 1)] {
            let before = clears();
            let mut memory = vec![7_u8; 3 * page_size];
            // SAFETY: only the test accesses the memory, which lives as long as the map.
            let map = unsafe { DirectMap::new(memory.as_mut_ptr(), Pfn(5), page_size) };
            map.zero::<Machine>(Pfn(6), Order::ZERO);
            let sums =
                memory.chunks(page_size).map(|page| page.iter().map(|&byte| u64::from(byte)).sum::<u64>());
            assert!(sums.eq([7 * page_size as u64, 0, 7 * page_size as u64]), "{page_size} bytes");
            assert_eq!(
                clears() - before,
                asked,
                "large memory is the platform's to clear: {page_size} bytes"
            );
        }
    }
}
