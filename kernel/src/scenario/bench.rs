//! Cost of an allocation and a free, in ticks of the time stamp counter: under `--icount` instructions, exactly.
//!
//! Each call turns interrupts off and on again, as a kernel's must. CPUs meet, and start together, before what is
//! timed; a figure for several CPUs is ticks of all of them per operation.
#![expect(unsafe_code, reason = "lists of blocks lie in blocks")]

use core::hint::black_box;
use core::slice;
use core::sync::atomic::{AtomicU64, Ordering};

use framewright::{CpuId, Migratetype, Order, Pfn};

use super::support::Rng;
use crate::kernel::{Kernel, memory};
use crate::smp::Barrier;
use crate::{clock, log, percpu, smp};

/// Order of the block that holds the numbers of blocks: 1 MiB.
const LIST_ORDER: Order = order(8);
const BURST: usize = 512;
const ROUNDS: u64 = 64;
const RANDOM: usize = 4096;
const HANDED: u64 = 20_000;

const fn order(order: u8) -> Order {
    Order::new(order).expect("it is below 11")
}

pub(super) fn run(kernel: &'static Kernel) {
    hot_pair::<0>(kernel);
    hot_pair::<3>(kernel);
    hot_pair::<9>(kernel);
    burst::<0>(kernel);
    burst::<3>(kernel);
    burst::<9>(kernel);
    random(kernel);
    let cpus = kernel.online().count();
    if cpus > 1 {
        together::<0>(kernel, 2);
        together::<9>(kernel, 2);
        hand_off(kernel);
    }
}

/// Prints a figure. Programs read these lines: name, parameters, value, unit.
fn report(name: &str, order: Order, cpus: usize, ticks: u64, operations: u64, unit: &str) {
    let hundredths = ticks * 100 / operations;
    log!("bench: {name}[order={order},cpus={cpus}] {}.{:02} {unit}", hundredths / 100, hundredths % 100);
}

#[inline(always)]
fn must_alloc(kernel: &Kernel, order: Order) -> Pfn {
    kernel.alloc(order, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"))
}

#[inline(always)]
fn must_free(kernel: &Kernel, pfn: Pfn, order: Order) {
    kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
}

/// One block, allocated and freed, again and again: with interrupts turned off and on in each call, and with both
/// calls in one stretch without interrupts.
#[inline(never)]
fn hot_pair<const ORDER: u8>(kernel: &Kernel) {
    const COUNT: u64 = 10_000;
    let order = order(ORDER);
    for timed in [false, true] {
        let begin = clock::ticks();
        for _ in 0..COUNT {
            let pfn = must_alloc(kernel, order);
            must_free(kernel, black_box(pfn), order);
        }
        if timed {
            report("hot_pair", order, 1, clock::ticks() - begin, COUNT, "ticks/pair");
        }
    }
    let begin = clock::ticks();
    for _ in 0..COUNT {
        kernel.with_cpu(|cpu| {
            let pfn = cpu.alloc(order, Migratetype::Movable).expect("the page that has just been freed");
            cpu.free(black_box(pfn), order).unwrap_or_else(|error| panic!("{error}"));
        });
    }
    report("hot_pair_at_once", order, 1, clock::ticks() - begin, COUNT, "ticks/pair");
}

/// A list in a block of its own.
struct BlockList {
    block: Pfn,
}

impl BlockList {
    fn new(kernel: &Kernel) -> Self {
        Self { block: must_alloc(kernel, LIST_ORDER) }
    }

    fn as_slice(&mut self, len: usize) -> &mut [u64] {
        // SAFETY: the block is ours, and has room for 131,072 numbers.
        unsafe {
            memory(self.block).cast::<u64>().write_bytes(0, len);
            slice::from_raw_parts_mut(memory(self.block).cast(), len)
        }
    }

    fn free(self, kernel: &Kernel) {
        must_free(kernel, self.block, LIST_ORDER);
    }
}

/// Blocks in a burst: fewer where that would be more than half of the free memory.
fn burst_of(kernel: &Kernel, order: Order, cpus: usize) -> usize {
    let room = kernel.pages.free_blocks(order) / (2 * cpus as u64);
    BURST.min(room as usize)
}

/// Many blocks allocated, then freed in the same order. The first rounds, in which lists find their size, do not
/// count.
#[inline(never)]
fn burst<const ORDER: u8>(kernel: &Kernel) {
    let order = order(ORDER);
    let mut list = BlockList::new(kernel);
    let burst = burst_of(kernel, order, 1);
    let blocks = list.as_slice(burst);
    let (mut get, mut put) = (0, 0);
    for round in 0..ROUNDS + 8 {
        let begin = clock::ticks();
        blocks.iter_mut().for_each(|block| *block = must_alloc(kernel, order).0);
        let middle = clock::ticks();
        blocks.iter().for_each(|block| must_free(kernel, Pfn(*block), order));
        if round >= 8 {
            get += middle - begin;
            put += clock::ticks() - middle;
        }
    }
    let operations = ROUNDS * burst as u64;
    report("burst_get", order, 1, get, operations, "ticks");
    report("burst_put", order, 1, put, operations, "ticks");
    report("burst_pair", order, 1, get + put, operations, "ticks/pair");
    list.free(kernel);
}

/// Blocks freed in random order.
fn random(kernel: &Kernel) {
    let mut list = BlockList::new(kernel);
    let blocks = list.as_slice(RANDOM);
    let mut rng = Rng::new(1);
    let mut put = 0;
    for _ in 0..8 {
        blocks.iter_mut().for_each(|block| *block = must_alloc(kernel, Order::ZERO).0);
        for n in (1..RANDOM).rev() {
            blocks.swap(n, rng.below(n as u64 + 1) as usize);
        }
        let begin = clock::ticks();
        blocks.iter().for_each(|block| must_free(kernel, Pfn(*block), Order::ZERO));
        put += clock::ticks() - begin;
    }
    report("random_put", Order::ZERO, 1, put, 8 * RANDOM as u64, "ticks");
    list.free(kernel);
}

/// Bursts on several CPUs together.
fn together<const ORDER: u8>(kernel: &Kernel, cpus: usize) {
    let order = order(ORDER);
    let barrier = Barrier::new(cpus);
    let burst = burst_of(kernel, order, cpus);
    let (get, put) = (AtomicU64::new(0), AtomicU64::new(0));
    smp::everywhere(kernel, cpus, &|_| {
        let mut list = BlockList::new(kernel);
        let blocks = list.as_slice(burst);
        for _ in 0..ROUNDS {
            barrier.wait(kernel);
            let begin = clock::ticks();
            blocks.iter_mut().for_each(|block| *block = must_alloc(kernel, order).0);
            get.fetch_add(clock::ticks() - begin, Ordering::Relaxed);
            barrier.wait(kernel);
            let begin = clock::ticks();
            blocks.iter().for_each(|block| must_free(kernel, Pfn(*block), order));
            put.fetch_add(clock::ticks() - begin, Ordering::Relaxed);
        }
        list.free(kernel);
    });
    let operations = ROUNDS * burst as u64 * cpus as u64;
    report("together_get", order, cpus, get.into_inner(), operations, "ticks");
    report("together_put", order, cpus, put.into_inner(), operations, "ticks");
}

/// CPU 1 allocates and hands over; CPU 0 frees. What comes back is drained to the zone and refilled from it.
fn hand_off(kernel: &Kernel) {
    const PLACES: usize = 256;
    let ring = [const { AtomicU64::new(0) }; PLACES];
    let begin = clock::ticks();
    let produce = |cpu: CpuId| {
        debug_assert!(cpu == CpuId(1));
        for n in 0..HANDED {
            let place = &ring[n as usize % PLACES];
            let pfn = must_alloc(kernel, Order::ZERO);
            while place.load(Ordering::Acquire) != 0 {
                percpu::relax();
            }
            place.store(pfn.0, Ordering::Release);
        }
    };
    smp::beside(kernel, 2, &produce, || {
        for n in 0..HANDED {
            let place = &ring[n as usize % PLACES];
            let pfn = loop {
                match place.swap(0, Ordering::AcqRel) {
                    0 => percpu::relax(),
                    pfn => break Pfn(pfn),
                }
            };
            must_free(kernel, pfn, Order::ZERO);
        }
    });
    report("hand_off", Order::ZERO, 2, clock::ticks() - begin, HANDED, "ticks/block");
}
