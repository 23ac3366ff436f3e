//! All of the memory: every CPU allocates in a mix of orders until nothing is left, each block is written to and
//! belongs to one owner; then every CPU frees what another one allocated.
#![expect(unsafe_code, reason = "allocated blocks are written to")]

use core::sync::atomic::{AtomicU64, Ordering};

use framewright::{CpuId, Migratetype, Order, Pfn};

use super::support::{Books, Chain, Rng, node_of};
use crate::kernel::{Kernel, memory};
use crate::paging::PAGE;
use crate::percpu::MAX_CPUS;
use crate::smp::Barrier;
use crate::{log, smp};

/// Blocks of random orders, over all CPUs, before the rest is taken in the largest that there are. Bounds the memory
/// that is touched: the emulator has less than its machine.
const MIXED_BLOCKS: u64 = 20_000;
const TYPES: [Migratetype; 3] = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];
/// Frames that one block of the map of owned frames covers.
const FRAMES_PER_MAP: u64 = (PAGE << 10) * 8;
const MAPS: usize = 8;

/// A bit per frame, in blocks of the largest order.
struct Owned {
    maps: [Option<Pfn>; MAPS],
}

impl Owned {
    fn new(kernel: &Kernel) -> Self {
        let frames = kernel.pages.zones().iter().map(|zone| zone.spec().end().0).max().unwrap_or(0);
        let needed = frames.div_ceil(FRAMES_PER_MAP) as usize;
        assert!(needed <= MAPS, "memory beyond {MAPS} maps of owned frames");
        let mut maps = [None; MAPS];
        for map in &mut maps[..needed] {
            let block = kernel.alloc(framewright::units::MAX_ORDER, Migratetype::Unmovable);
            let block = block.unwrap_or_else(|error| panic!("map of owned frames: {error}"));
            // SAFETY: allocated just now.
            unsafe { crate::arch::zero(memory(block), (PAGE << 10) as usize) };
            *map = Some(block);
        }
        Self { maps }
    }

    fn word(&self, pfn: u64) -> &AtomicU64 {
        let map = self.maps[(pfn / FRAMES_PER_MAP) as usize].expect("a map for every frame");
        let word = memory(map).cast::<AtomicU64>();
        // SAFETY: the map's block is ours until `free`, and is used as words only.
        unsafe { &*word.add((pfn % FRAMES_PER_MAP / 64) as usize) }
    }

    /// Notes that the block is owned, or no longer; it was the other way round for every frame of it.
    fn set(&self, pfn: Pfn, order: Order, owned: bool) {
        let (mut at, end) = (pfn.0, pfn.0 + order.pages());
        while at < end {
            let bits = (end - at).min(64 - at % 64);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            let before = if owned {
                self.word(at).fetch_or(mask, Ordering::Relaxed)
            } else {
                self.word(at).fetch_and(!mask, Ordering::Relaxed)
            };
            let right = if owned { 0 } else { mask };
            assert!(before & mask == right, "frames at {pfn:?} ({order:?}) have two owners, or none");
            at += bits;
        }
    }

    fn free(self, kernel: &Kernel) {
        for map in self.maps.into_iter().flatten() {
            kernel.free(map, framewright::units::MAX_ORDER).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

pub(super) fn run(kernel: &'static Kernel) {
    let owned = Owned::new(kernel);
    let free = Books::read(kernel).0.free;
    let cpus = kernel.online().count();
    let chains = [const { Chain::new() }; MAX_CPUS];
    let taken = AtomicU64::new(0);
    let far = AtomicU64::new(0);
    let barrier = Barrier::new(cpus);
    smp::everywhere(kernel, usize::MAX, &|cpu| {
        let chain = &chains[cpu.index()];
        let got = take_all(kernel, cpu, chain, &owned, MIXED_BLOCKS / cpus as u64);
        taken.fetch_add(got.pages, Ordering::Relaxed);
        far.fetch_add(got.far, Ordering::Relaxed);
        barrier.wait(kernel);
        // While others allocate, pages are on their way; now no CPU has any left to give.
        let late = take_all(kernel, cpu, chain, &owned, 0);
        taken.fetch_add(late.pages, Ordering::Relaxed);
    });
    let blocks: u64 = chains.iter().map(|chain| chain.len()).sum();
    let (taken, far) = (taken.into_inner(), far.into_inner());
    log!(
        "selftest: {taken} of {free} pages in {blocks} blocks on {cpus} CPUs, {far} blocks from other nodes"
    );
    assert_eq!(taken, free, "some pages could not be allocated");
    for bad in kernel.bad.iter() {
        assert!(owned.word(bad.0).load(Ordering::Relaxed) & 1 << (bad.0 % 64) == 0, "{bad:?} is broken");
    }
    smp::everywhere(kernel, usize::MAX, &|cpu| {
        let chain = &chains[(cpu.index() + 1) % cpus];
        while let Some((pfn, order)) = chain.pop(kernel) {
            owned.set(pfn, order, false);
            kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
        }
    });
    owned.free(kernel);
}

struct Got {
    pages: u64,
    /// Blocks from another node.
    far: u64,
}

/// Takes `mixed` blocks of random orders, then the largest blocks until nothing is left.
fn take_all(kernel: &Kernel, cpu: CpuId, chain: &Chain, owned: &Owned, mixed: u64) -> Got {
    let mut rng = Rng::new(u64::from(cpu.0));
    let node = kernel.cpu_nodes[cpu.index()];
    let mut got = Got { pages: 0, far: 0 };
    let mut take = |order, migratetype| {
        let Ok(pfn) = kernel.alloc(order, migratetype) else { return false };
        owned.set(pfn, order, true);
        chain.push(kernel, pfn, order);
        got.pages += order.pages();
        got.far += u64::from(node_of(kernel, pfn) != node);
        true
    };
    for _ in 0..mixed {
        // Small orders more often: as many pages of each.
        let order = rng.next().trailing_zeros().min(10) as u8;
        take(Order::new(order).expect("at most 10"), TYPES[rng.below(3) as usize]);
    }
    for order in Order::all().rev() {
        while take(order, Migratetype::Movable) {}
    }
    got
}
