//! Cost of an allocation and a free, in ticks of the time stamp counter: under `--icount` instructions, exactly.
//!
//! Each call turns interrupts off and on again, as a kernel's must. What several CPUs cost together, `bench` of the
//! command measures.

use core::hint::black_box;

use framewright::{Migratetype, Order, Pfn};

use crate::kernel::Kernel;
use crate::{clock, log};

const BURST: usize = 512;
const ROUNDS: u64 = 64;

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
}

/// Prints a figure. Programs read these lines: name, parameters, value, unit.
fn report(name: &str, order: Order, ticks: u64, operations: u64, unit: &str) {
    let hundredths = ticks * 100 / operations;
    log!("bench: {name}[order={order},cpus=1] {}.{:02} {unit}", hundredths / 100, hundredths % 100);
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
            report("hot_pair", order, clock::ticks() - begin, COUNT, "ticks/pair");
        }
    }
    let begin = clock::ticks();
    for _ in 0..COUNT {
        kernel.with_cpu(|cpu| {
            let pfn = cpu.alloc(order, Migratetype::Movable).expect("the page that has just been freed");
            cpu.free(black_box(pfn), order).unwrap_or_else(|error| panic!("{error}"));
        });
    }
    report("hot_pair_at_once", order, clock::ticks() - begin, COUNT, "ticks/pair");
}

/// Many blocks allocated, then freed in the same order: at most half of what is free. The first rounds, in which lists
/// find their size, do not count.
#[inline(never)]
fn burst<const ORDER: u8>(kernel: &Kernel) {
    let order = order(ORDER);
    let mut list = [0; BURST];
    let burst = BURST.min(kernel.pages.free_blocks(order) as usize / 2);
    let blocks = &mut list[..burst];
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
    report("burst_get", order, get, operations, "ticks");
    report("burst_put", order, put, operations, "ticks");
    report("burst_pair", order, get + put, operations, "ticks/pair");
}
