//! Where every free block lay before the first operation: in the kernel as its module tells, and in an arena that is
//! made to look the same.
#![expect(unsafe_code, reason = "frames without memory are freed and split")]

use std::collections::BTreeMap;

use framewright::policy::pcp::Sizing;
use framewright::{CpuId, ZoneId};
use framewright_host::{Arena, Cpu, Migratetype, Order, Pfn};

/// Frames of the largest block: what places are counted from is a multiple of it.
const LARGEST: u64 = 1 << LARGEST_ORDER;
const LARGEST_ORDER: u8 = 10;
const PAGEBLOCK: u64 = 512;

/// Per-CPU lists of Linux from 5.13 on: see [`kind_of`].
pub(crate) const LISTS: usize = 14;

/// Allocations after which the frees before them do not count as frees in a row.
const FORGET: u64 = 24;

/// The free blocks of a zone, each by its first frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Frames up to the zone's end.
    pub span: u64,
    /// On the zone's lists, first to last: order, migratetype, blocks.
    pub free: Vec<(u8, u8, Vec<u64>)>,
    /// On the lists of CPUs, head to tail: CPU, list, blocks.
    pub waiting: Vec<(u16, usize, Vec<u64>)>,
}

/// The kernel's lists before the first operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lists<'a> {
    /// Batch, and the bounds of `high`.
    pub size: Sizing,
    /// `high` of each CPU.
    pub high: &'a [u32],
    /// Pages on the lists of each CPU.
    pub counts: &'a [u32],
    /// Free blocks of the zone by order; none if they are not told.
    pub free_blocks: &'a [u64],
}

impl Layout {
    /// Pages that an arena needs to be [arranged](Self::arrange) like this.
    pub(crate) const fn pages(&self) -> u64 {
        self.span.next_multiple_of(LARGEST) + LARGEST
    }

    /// Makes an arena of [`pages`](Self::pages) look like this: what is free in the kernel is free there, on the same
    /// lists in the same order, and `high` of each CPU is as `kernel` says. All else is allocated for good. The last of
    /// `slots` is a CPU that takes no part.
    ///
    /// # Errors
    /// The blocks overlap, or are not where blocks can be.
    pub(crate) fn arrange(&self, arena: &Arena, slots: &[Cpu<'_>], kernel: &Lists<'_>) -> Result<(), String> {
        let bad = || "the free blocks that the kernel tells cannot be rebuilt".to_owned();
        let base = arena.frames().start.0;
        let helper = slots.len() - 1;
        // Single pages behind the zone, to be freed and allocated on each CPU so that what was before them is
        // forgotten.
        let behind = self.span.next_multiple_of(LARGEST);
        let mut wanted: BTreeMap<u64, u8> =
            (behind..behind + helper as u64 * FORGET).map(|page| (page, 0)).collect();
        let zone =
            self.free.iter().flat_map(|(order, _, blocks)| blocks.iter().map(|&block| (block, *order)));
        let lists = self
            .waiting
            .iter()
            .flat_map(|(_, list, blocks)| blocks.iter().map(|&block| (block, kind_of(*list).0)));
        for (block, order) in zone.chain(lists) {
            let fits = block.is_multiple_of(1 << order) && block + (1 << order) <= self.span;
            if !fits || wanted.insert(block, order).is_some() {
                return Err(bad());
            }
        }
        while slots[helper].alloc(order(LARGEST_ORDER), Migratetype::Movable).is_ok() {}
        for block in (0..self.pages()).step_by(LARGEST as usize) {
            cut(&slots[helper], base, (block, LARGEST_ORDER), &wanted);
        }
        let set_type = |block: u64, order: u8, kind: Migratetype| {
            for part in (0..1_u64 << order).step_by(PAGEBLOCK as usize) {
                let pfn = Pfn(base + block + part);
                if arena.allocator().frames().info(pfn).migratetype() != kind {
                    arena.allocator().set_pageblock_type(pfn, kind);
                }
            }
        };

        for (cpu, slot) in slots.iter().enumerate().take(helper) {
            let high = kernel.high.get(cpu).copied().unwrap_or(kernel.size.high_min);
            let count = kernel.counts.get(cpu).copied().unwrap_or(0);
            // Nothing drains meanwhile, and no batch is freed in a row.
            let held = high.max(count + FORGET as u32 + 1);
            resize(arena, slot, Sizing { batch: held, high_min: held, high_max: held });
            for (_, list, blocks) in self.waiting.iter().filter(|(kind, ..)| usize::from(*kind) == cpu) {
                let (order, kind) = kind_of(*list);
                for &block in blocks.iter().rev() {
                    set_type(block, order, kind);
                    free(slot, base + block, order);
                }
            }
            set_type(behind, 0, Migratetype::Reclaimable);
            for page in 0..FORGET {
                free(slot, base + behind + cpu as u64 * FORGET + page, 0);
            }
            for _ in 0..FORGET {
                slot.alloc(Order::ZERO, Migratetype::Reclaimable).map_err(|_| bad())?;
            }
            resize(arena, slot, Sizing { high_min: high, high_max: high, ..kernel.size });
            resize(arena, slot, kernel.size);
            if arena.allocator().pcp(ZoneId(0), CpuId(cpu as u16)).count() != count {
                return Err(bad());
            }
        }

        // A free block goes to its list's head unless a larger one beside it is free: so from the smallest on, last
        // ones first.
        let mut free: Vec<_> = self.free.iter().collect();
        free.sort_by_key(|(order, ..)| *order);
        for (number, kind, blocks) in free {
            for &block in blocks.iter().rev() {
                set_type(block, *number, migratetype(u64::from(*kind)));
                // SAFETY: allocated above, and cut to this size; no memory is behind it.
                unsafe { slots[helper].free_bulk(order(*number), &[Pfn(base + block)]) }
                    .expect("it is allocated");
            }
        }
        let nr_free = arena.allocator().zone_snapshot(&arena.allocator().zones()[0]).nr_free;
        if !kernel.free_blocks.is_empty() && nr_free[..] != *kernel.free_blocks {
            return Err(bad());
        }
        Ok(())
    }
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// Frees a block to the CPU's list.
fn free(cpu: &Cpu<'_>, frame: u64, size: u8) {
    // SAFETY: the caller has allocated it with this order; no memory is behind it.
    unsafe { cpu.free(Pfn(frame), order(size)) }.expect("it is allocated");
}

fn resize(arena: &Arena, slot: &Cpu<'_>, size: Sizing) {
    arena.allocator().resize_pcps_of(ZoneId(0), size);
    slot.answer();
}

/// Cuts an allocated block until each wanted block in it is one of its own.
fn cut(slot: &Cpu<'_>, base: u64, (block, size): (u64, u8), wanted: &BTreeMap<u64, u8>) {
    if wanted.get(&block) == Some(&size) || wanted.range(block..block + (1 << size)).next().is_none() {
        return;
    }
    let half = size - 1;
    // SAFETY: allocated with this order; no memory is behind it.
    unsafe { slot.split(Pfn(base + block), order(size), order(half)) }.expect("it is allocated");
    cut(slot, base, (block, half), wanted);
    cut(slot, base, (block + (1 << half), half), wanted);
}

/// Order and type of a list: unmovable, movable and reclaimable blocks of orders 0 to 3, then of order 9 a list for
/// movable blocks and one for all others. Linux has these from 5.13 on.
const fn kind_of(list: usize) -> (u8, Migratetype) {
    let kind = migratetype(list as u64 % 3);
    if list < 12 { ((list / 3) as u8, kind) } else { (9, kind) }
}

/// The kernel numbers the first three migratetypes so; blocks of others wait on the movable lists.
const fn migratetype(number: u64) -> Migratetype {
    match number {
        0 => Migratetype::Unmovable,
        2 => Migratetype::Reclaimable,
        _ => Migratetype::Movable,
    }
}
