//! Cost of a block where all of the memory is allocated, and freed again in order or at random: refills and drains, of
//! frames and of huge pages. And of a pageblock that is added.

use core::hint::black_box;

use framewright_host::framewright::platform::{Metal, PinnedTo};
use framewright_host::framewright::units::PAGEBLOCK_PAGES;
use framewright_host::framewright::{
    Allocator, Config, Cpu, CpuId, Migratetype, NodeId, Order, Pfn, ZoneSpec, ZoneType,
};

pub(crate) use super::runs::FRAMES;
use super::runs::{allocator, without_memory};

#[unsafe(no_mangle)]
#[inline(never)]
fn get_all_frames(cpu: &Cpu<'_, '_, Metal>, held: &mut Vec<Pfn>) {
    held.extend((0..FRAMES).map(|_| cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap()));
}

#[unsafe(no_mangle)]
#[inline(never)]
fn put_in_order(cpu: &Cpu<'_, '_, Metal>, held: &mut Vec<Pfn>) {
    held.drain(..).for_each(|pfn| cpu.free(pfn, Order::ZERO).unwrap());
}

#[unsafe(no_mangle)]
#[inline(never)]
fn put_at_random(cpu: &Cpu<'_, '_, Metal>, held: &mut Vec<Pfn>) {
    // Not as above: two functions that are equal may become one.
    while let Some(pfn) = held.pop() {
        cpu.free(pfn, Order::ZERO).unwrap();
    }
}

/// Allocates all frames and frees them in order, twice, the second time at random.
pub(crate) fn get_and_put_all() {
    let allocator = allocator(Config::default());
    // SAFETY: this thread alone has the allocator.
    let pin = unsafe { PinnedTo::new(CpuId(0)) };
    let cpu = allocator.cpu(&pin);
    let mut held = Vec::with_capacity(FRAMES as usize);
    get_all_frames(black_box(&cpu), &mut held);
    put_in_order(black_box(&cpu), &mut held);
    get_all_frames(black_box(&cpu), &mut held);
    fastrand::Rng::with_seed(34).shuffle(&mut held);
    put_at_random(black_box(&cpu), &mut held);
}

const ROUNDS: u64 = 50;
/// Huge pages that the memory has.
const EACH_ROUND: u64 = FRAMES / 512;
/// Huge pages of all rounds.
pub(crate) const HUGE_PAGES: u64 = ROUNDS * EACH_ROUND;

#[unsafe(no_mangle)]
#[inline(never)]
fn get_huge_pages(cpu: &Cpu<'_, '_, Metal>, held: &mut Vec<Pfn>) {
    let order = Order::new(9).unwrap();
    held.extend((0..EACH_ROUND).map(|_| cpu.alloc(order, Migratetype::Movable).unwrap()));
}

#[unsafe(no_mangle)]
#[inline(never)]
fn put_huge_pages_at_random(cpu: &Cpu<'_, '_, Metal>, held: &mut Vec<Pfn>) {
    let order = Order::new(9).unwrap();
    while let Some(pfn) = held.pop() {
        cpu.free(pfn, order).unwrap();
    }
}

/// Allocates all huge pages of eight sections and frees them at random, again and again.
pub(crate) fn get_and_put_huge_pages() {
    let mut config = Config::default();
    config.experiment.section_pages = FRAMES / 8;
    let allocator = allocator(config);
    // SAFETY: this thread alone has the allocator.
    let pin = unsafe { PinnedTo::new(CpuId(0)) };
    let cpu = allocator.cpu(&pin);
    let mut held = Vec::with_capacity(EACH_ROUND as usize);
    let mut random = fastrand::Rng::with_seed(34);
    for _ in 0..ROUNDS {
        get_huge_pages(black_box(&cpu), &mut held);
        random.shuffle(&mut held);
        put_huge_pages_at_random(black_box(&cpu), &mut held);
    }
}

/// Pageblocks of the memory that is added.
pub(crate) const ADDED: u64 = 8 << 10;

#[unsafe(no_mangle)]
#[inline(never)]
fn add_pageblocks(allocator: &Allocator<'_, Metal>, start: Pfn) {
    allocator.add_memory(start, ADDED * PAGEBLOCK_PAGES).unwrap();
}

/// Adds 16 GiB, as at boot.
pub(crate) fn add() {
    let pages = ADDED * PAGEBLOCK_PAGES;
    let zones = [ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(pages), pages }];
    let allocator = without_memory(&zones, Config::default());
    add_pageblocks(black_box(&allocator), zones[0].start);
    assert_eq!(allocator.zones()[0].free_pages(), pages);
}
