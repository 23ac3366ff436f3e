//! Cost: no operation falls off a cliff as memory fills. A search over orders, operations, held shares, CPUs and
//! sections.

use framewright_check::platform::checked::tally;
use framewright_check::prelude::*;

/// Pageblocks of the zone.
const PAGEBLOCKS: u64 = 128;
/// Held shares of the zone, in sixteenths.
const HELD: [u64; 5] = [0, 2, 8, 12, 15];
/// CPUs, and sections that they share.
const MACHINES: [(usize, u64); 5] = [(1, 1), (4, 1), (4, 16), (16, 4), (16, 16)];

/// An operation: a number of blocks of an order, allocated and freed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Operation {
    /// An allocation and a free of the same block.
    Pair,
    /// One of many blocks is freed, at random, and another one allocated.
    Churn,
    /// Many blocks are freed in random order. Only the frees count.
    RandomPut,
    /// Many blocks are allocated, then freed in the same order.
    Bulk,
    /// Many blocks are allocated and freed by another CPU. Both count.
    HandOver,
}

const OPERATIONS: [Operation; 5] =
    [Operation::Pair, Operation::Churn, Operation::RandomPut, Operation::Bulk, Operation::HandOver];

/// Blocks of an order in use at the same time: half of what is free when most of the memory is held.
fn blocks(size: Order) -> u64 {
    ((PAGEBLOCKS * PAGEBLOCK_PAGES / 32) >> size.get()).clamp(1, 512)
}

fn accesses(f: impl FnOnce()) -> u64 {
    tally(f).1.accesses()
}

/// Numbers below a bound, the same each time.
fn random() -> impl FnMut(usize) -> usize {
    let mut seed = 1;
    move |below| {
        seed = u64::wrapping_mul(seed, 6_364_136_223_846_793_005).wrapping_add(1);
        ((seed >> 33) as usize) % below
    }
}

/// Accesses of one operation, in hundredths.
fn cost(world: &World<Checked>, operation: Operation, size: Order) -> u64 {
    let count = blocks(size);
    let mut index = random();
    let get = || (0..count).map(|_| world.must_alloc(0, size)).collect::<Vec<_>>();
    let put =
        |cpu: usize, all: &[Pfn]| world.on(cpu, |cpu| all.iter().for_each(|&pfn| cpu.must_free(pfn, size)));
    let mut round = || match operation {
        Operation::Pair => {
            accesses(|| (0..count).for_each(|_| world.must_free(0, world.must_alloc(0, size), size)))
        }
        Operation::Churn => {
            let mut all = get();
            let cost = accesses(|| {
                for _ in 0..count {
                    let n = index(all.len());
                    world.must_free(0, all[n], size);
                    all[n] = world.must_alloc(0, size);
                }
            });
            put(0, &all);
            cost
        }
        Operation::RandomPut => {
            let mut all = get();
            (1..all.len()).rev().for_each(|n| all.swap(n, index(n + 1)));
            accesses(|| put(0, &all))
        }
        Operation::Bulk => accesses(|| put(0, &get())),
        Operation::HandOver => accesses(|| put(1, &get())),
    };
    _ = round();
    let rounds = (256 / count).max(4);
    (0..rounds).map(|_| round()).sum::<u64>() * 100 / (count * rounds)
}

/// Measures all operations of some orders, and adds them to `cells`.
fn measure(
    world: &World<Checked>,
    sizes: impl Iterator<Item = Order>,
    mut add: impl FnMut(Operation, Order, u64),
) {
    let has_others = world.allocator().cpus() > 1;
    for size in sizes {
        for operation in OPERATIONS.into_iter().filter(|&all| all != Operation::HandOver || has_others) {
            world.drain_all();
            add(operation, size, cost(world, operation, size));
        }
    }
}

/// Where less memory is free, no operation costs more than half more if the free memory is adjacent; not more than
/// twice as much if it is anywhere, so that each pageblock has a few blocks only.
#[test]
fn p09_no_operation_falls_off_a_cliff_as_memory_fills() {
    let mut worst = Vec::new();
    for (cpus, sections) in MACHINES {
        let pages = PAGEBLOCKS * PAGEBLOCK_PAGES;
        let config = Config::default().spins(1).sections(if sections > 1 { pages / sections } else { 0 });
        let new = || -> World<Checked> { Spec::one_zone(pages, cpus).config(config).build() };
        let mut cells = Vec::new();
        // Held frames are adjacent.
        let world = new();
        for share in HELD {
            let more = share * pages / 16 - (pages - world.zone().free_pages());
            (0..more).for_each(|_| _ = world.must_alloc(0, Order::ZERO));
            measure(&world, Order::all(), |operation, size, cost| {
                cells.push((operation, size, cost, share, 6));
            });
            world.drain_all();
        }
        // Held blocks have the order of the operation, and are anywhere.
        for size in Order::all() {
            let world = new();
            let mut index = random();
            let mut held = world.alloc_all(0, size);
            for share in HELD.into_iter().rev() {
                while (held.len() as u64) << size.get() > share * pages / 16 {
                    let n = index(held.len());
                    world.must_free(0, held.swap_remove(n), size);
                }
                measure(&world, [size].into_iter(), |operation, size, cost| {
                    cells.push((operation, size, cost, share, 8));
                });
            }
        }
        for &(operation, size, cost, share, quarters) in &cells {
            let empty =
                cells.iter().find(|cell| (cell.0, cell.1) == (operation, size)).expect("nothing held");
            let how = if quarters == 6 { "adjacent" } else { "anywhere" };
            let cell = format!(
                "{operation:?}, {size}, {share}/16 held, {how}; {cpus} CPUs, {sections} sections: {cost} hundredths \
                 of an access, {} if nothing is held",
                empty.2
            );
            worst.push((cost * 400 / quarters / empty.2, cell));
        }
    }
    worst.sort();
    worst.iter().rev().take(40).for_each(|(percent, cell)| println!("{percent:3} % of the bound: {cell}"));
    let (percent, cell) = worst.last().expect("cells");
    assert!(*percent <= 100, "{percent} % of the bound: {cell}");
}

/// Movable frames are free one by one in all pageblocks, and requests of another type take them: each page costs less
/// than a look at half of a pageblock's head words, as a refill that takes several pages of a pageblock looks once.
#[test]
fn a_page_that_falls_back_costs_less_than_a_look_at_its_pageblock() {
    for (cpus, sections) in MACHINES {
        for share in HELD.into_iter().filter(|&share| share > 8) {
            let pages = PAGEBLOCKS * PAGEBLOCK_PAGES;
            let config = Config::default().spins(1).sections(if sections > 1 { pages / sections } else { 0 });
            let world: World<Checked> = Spec::one_zone(pages, cpus).config(config).build();
            let (mut index, mut held) = (random(), world.alloc_all(0, Order::ZERO));
            while held.len() as u64 > share * pages / 16 {
                world.must_free(0, held.swap_remove(index(held.len())), Order::ZERO);
            }
            world.drain_all();
            let count = (pages - held.len() as u64) / 2;
            let costs = [(); 3].map(|()| {
                let asked = || {
                    (0..count)
                        .map(|_| world.on(0, |cpu| cpu.must_alloc_of(Order::ZERO, Migratetype::Unmovable)))
                        .collect::<Vec<_>>()
                };
                let (all, touched) = tally(asked);
                all.into_iter().for_each(|pfn| world.must_free(0, pfn, Order::ZERO));
                touched.accesses() / count
            });
            println!("{cpus} CPUs, {sections} sections, {share}/16 held: {costs:?} accesses a page");
            let worst = costs.into_iter().max().expect("rounds");
            assert!(worst <= PAGEBLOCK_PAGES / 4, "{share}/16 held: {costs:?} accesses a page");
        }
    }
}

/// A churn among few blocks ends on the lists, however full the memory is: blocks that return to the zone only to be
/// taken again would need its lock for ever.
#[test]
fn a_churn_among_few_blocks_ends_on_the_lists() {
    let pages = 128 * PAGEBLOCK_PAGES;
    let (settle, operations) = (8_000, 8_000);
    let mut flows = Vec::new();
    for size in (0..=6).map(|order| Order::new(order).expect("an order")) {
        for seed in 0..20 {
            let world: World<Checked> = Spec::one_zone(pages, 2).build();
            let mut random = fastrand::Rng::with_seed(seed);
            let mut held = 0;
            for sixteenths in [8, 12, 15] {
                while held << size.get() < sixteenths * pages / 16 {
                    _ = world.must_alloc(held as usize % 2, size);
                    held += 1;
                }
                let count = (((pages / 16) >> size.get()) / 4).clamp(1, 128) as usize;
                let mut lists =
                    [0, 1].map(|cpu| (0..count).map(|_| world.must_alloc(cpu, size)).collect::<Vec<_>>());
                let mut churn = |operations| {
                    for n in 0..operations {
                        let (cpu, at) = (n % 2, random.usize(0..count));
                        world.must_free(cpu, lists[cpu][at], size);
                        lists[cpu][at] = world.must_alloc(cpu, size);
                    }
                };
                let locks = || (0..2).map(|cpu| world.pcp(cpu).events().lock_acquisitions).sum::<u64>();
                churn(settle);
                let before = locks();
                churn(operations);
                let taken = locks() - before;
                if taken > 0 {
                    flows.push(format!("{taken} locks: {size}, {sixteenths}/16 held, seed {seed}"));
                }
                (0..2).for_each(|cpu| lists[cpu].iter().for_each(|&pfn| world.must_free(cpu, pfn, size)));
            }
        }
    }
    println!("{} flows\n{}", flows.len(), flows.join("\n"));
    assert!(flows.is_empty());
}
