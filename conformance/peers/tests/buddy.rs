//! `FrameAllocator` of buddy_system_allocator on Framewright: its tests say `crate::FrameAllocator`.

#[path = "world.rs"]
mod world;
pub use buddy_system_allocator::{Heap, LockedHeapWithRescue, linked_list};
use framewright::{Order, Pfn};
use std::alloc::Layout;
use std::ops::Range;
use world::World;

const SPAN: u64 = 1 << 16;

/// `ORDERS` bounds the largest block there; here blocks have 2^10 frames, and ranges any number.
pub struct FrameAllocator<const ORDERS: usize>(World);

impl<const ORDERS: usize> FrameAllocator<ORDERS> {
    pub fn new() -> Self {
        Self(World::new(0..SPAN).expect("a zone"))
    }

    pub fn add_frame(&mut self, start: usize, end: usize) {
        self.0.add(start as u64..end as u64).expect("new memory of the zone");
    }

    pub fn insert(&mut self, range: Range<usize>) {
        self.add_frame(range.start, range.end);
    }

    pub fn alloc(&mut self, count: usize) -> Option<usize> {
        let pages = count.next_power_of_two() as u64;
        self.0.block(0, pages, pages).map(|pfn| pfn as usize)
    }

    pub fn alloc_aligned(&mut self, layout: Layout) -> Option<usize> {
        let pages = layout.size().next_power_of_two().max(layout.align()) as u64;
        self.0.block(0, pages, pages).map(|pfn| pfn as usize)
    }

    pub fn alloc_at(&mut self, start: usize, count: usize) -> Option<usize> {
        let order = Order::new(count.next_power_of_two().trailing_zeros() as u8)?;
        self.0.get(0, |cpu| cpu.alloc_at(Pfn(start as u64), order)).ok().map(|()| start)
    }

    pub fn dealloc(&mut self, start: usize, count: usize) {
        assert!(self.0.free(0, start as u64, count.next_power_of_two() as u64));
    }
}

#[cfg(test)]
#[path = "../target/buddy/test.rs"]
mod test;
