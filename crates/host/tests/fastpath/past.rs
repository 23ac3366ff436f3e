//! Cost of a pair past the lists: an allocation of order 4 and its free, where only single frames have lists and three
//! quarters of the memory are held in blocks of orders 0 to 6. And of a pair in another node's memory, or in another
//! arena.

use core::hint::black_box;

use framewright_host::framewright::config::PcpOrders;
use framewright_host::framewright::platform::{Metal, PinnedTo};
use framewright_host::framewright::{Config, Cpu, CpuId, Migratetype, Order, Pfn};
use framewright_host::{Arena, Backing, SharedArena};

use crate::runs::{FRAMES, allocator};

pub(crate) const PAIRS: u64 = 1000;

#[unsafe(no_mangle)]
#[inline(never)]
fn pair_past_the_lists(cpu: &Cpu<'_, '_, Metal>, order: Order) -> bool {
    cpu.alloc(order, Migratetype::Movable).is_ok_and(|pfn| cpu.free(pfn, order).is_ok())
}

/// Makes [`PAIRS`] pairs in a zone of so many sections; between them, another block of the order moves.
pub(crate) fn pairs(sections: u64) {
    let mut config = Config::default();
    config.experiment.pcp_orders = PcpOrders::Zero;
    config.experiment.section_pages = FRAMES / sections;
    let allocator = allocator(config);
    assert_eq!(allocator.zones()[0].sections() as u64, sections);
    // SAFETY: this thread alone has the allocator.
    let pin = unsafe { PinnedTo::new(CpuId(0)) };
    let cpu = allocator.cpu(&pin);
    let mut random = fastrand::Rng::with_seed(31);
    let mut held: Vec<(Pfn, Order)> = Vec::new();
    let mut pages = 0;
    for _ in 0..60_000 {
        if pages > FRAMES * 3 / 4 {
            let (pfn, order) = held.swap_remove(random.usize(..held.len()));
            cpu.free(pfn, order).unwrap();
            pages -= order.pages();
        } else {
            let order = Order::new(random.u8(..7)).unwrap();
            held.push((cpu.alloc(order, Migratetype::Movable).unwrap(), order));
            pages += order.pages();
        }
    }
    cpu.drain();
    let order = Order::new(4).unwrap();
    let mut held: Vec<Pfn> =
        held.into_iter().filter_map(|(pfn, its)| (its == order).then_some(pfn)).collect();
    for _ in 0..PAIRS {
        let at = random.usize(..held.len());
        cpu.free(held[at], order).unwrap();
        held[at] = cpu.alloc(order, Migratetype::Movable).unwrap();
        assert!(pair_past_the_lists(black_box(&cpu), black_box(order)));
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
fn pair_elsewhere(cpu: &framewright_host::Cpu<'_>) -> bool {
    let pair = cpu.alloc(Order::ZERO, Migratetype::Movable);
    // SAFETY: frames without memory.
    pair.is_ok_and(|pfn| unsafe { cpu.free(pfn, Order::ZERO) }.is_ok())
}

/// Makes [`PAIRS`] pairs on a CPU that has used up its own node and `nodes - 2` others.
pub(crate) fn pairs_elsewhere(nodes: usize) {
    let arena = Arena::<()>::builder().pages(FRAMES).backing(Backing::Described).cpus(1).nodes(nodes);
    let arena = arena.build().unwrap();
    let cpu = arena.attach().unwrap();
    let used_up = (nodes as u64 - 1) * (FRAMES / nodes as u64);
    for _ in 0..used_up {
        cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    }
    let first = cpu.alloc(Order::ZERO, Migratetype::Movable).unwrap();
    // SAFETY: frames without memory.
    unsafe { cpu.free(first, Order::ZERO) }.unwrap();
    (0..PAIRS).for_each(|_| assert!(pair_elsewhere(black_box(&cpu))));
}

/// Arenas that one thread uses in turn: as many as a hypervisor has guests.
const ARENAS: usize = 256;

#[unsafe(no_mangle)]
#[inline(never)]
fn pair_in_turn(arena: &SharedArena) -> bool {
    let pair = arena.alloc(Order::ZERO, Migratetype::Movable);
    // SAFETY: frames without memory.
    pair.is_ok_and(|pfn| unsafe { arena.free(pfn, Order::ZERO) }.is_ok())
}

/// Makes [`PAIRS`] pairs, each in another arena than the one before.
pub(crate) fn pairs_in_turn() {
    let builder = || Arena::<()>::builder().pages(512).backing(Backing::Described).cpus(2);
    let arenas: Vec<SharedArena> = (0..ARENAS).map(|_| builder().build_shared().unwrap()).collect();
    for arena in &arenas {
        let first = arena.alloc(Order::ZERO, Migratetype::Movable).unwrap();
        // SAFETY: frames without memory.
        unsafe { arena.free(first, Order::ZERO) }.unwrap();
    }
    for n in 0..PAIRS as usize {
        assert!(pair_in_turn(black_box(&arenas[n % ARENAS])));
    }
}
