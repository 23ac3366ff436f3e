//! Single bits of the allocator's structures, wrong one at a time: what `verify` says to each.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

use framewright::config::{Config, Engine, PcpOrders};
use framewright::units::{Migratetype, Order, PAGEBLOCK_PAGES};
use framewright_check::corrupt::Spot;
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::platform::checked::Checked;

use crate::record::Trail;

/// Pageblocks of the world.
const BLOCKS: u64 = 5;
/// Words that go bad, by configuration.
const WORDS: u32 = 420;
/// Words that go bad in allocators that are used afterwards.
const USED: u32 = 90;

fn order(order: u8) -> Order {
    Order::new(order).expect("an order")
}

/// A world that has some of everything.
fn world(config: Config) -> World<Checked> {
    let world: World<Checked> = Spec::one_zone(BLOCKS * PAGEBLOCK_PAGES, 2).config(config).build();
    let allocator = world.allocator();
    allocator.set_pageblock_type(BASE.add(4 * PAGEBLOCK_PAGES), Migratetype::Cma);
    let mut random = fastrand::Rng::with_seed(6);
    let kinds = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];
    for n in 0..90_usize {
        let order = order([0, 0, 0, 1, 2, 3, 5, 7][n % 8]);
        let got = world.on(n % 2, |cpu| cpu.alloc(order, kinds[n % 3]));
        if let Ok(pfn) = got
            && random.bool()
        {
            world.on(n / 2 % 2, |cpu| cpu.free(pfn, order)).expect("it was allocated");
        }
    }
    world.on(0, |cpu| {
        let pfn = cpu.alloc(Order::ZERO, Migratetype::Movable).expect("memory is left");
        let _ = cpu.hwpoison(pfn.add(2));
        let _ = cpu.alloc(order(9), Migratetype::Movable);
    });
    allocator.isolate_pageblock(BASE.add(3 * PAGEBLOCK_PAGES));
    world
}

/// What an allocator with one wrong word does when it is used.
pub(crate) fn used(config: Config, trail: &mut Trail) {
    let maps = config.engine != Engine::Linux;
    let mut random = fastrand::Rng::with_seed(10);
    for _ in 0..USED {
        let world = self::world(config);
        let spot = spot(&mut random, maps, 8);
        let before = world.corrupt(spot, 0);
        let damaged = match random.u32(0..3) {
            0 => before ^ 1 << random.u32(0..64),
            1 => before ^ 1 << random.u32(0..12),
            _ => random.u64(..) >> random.u32(0..64),
        };
        world.corrupt(spot, damaged);
        let calls = || use_it(&world, &mut random.fork());
        let seen = catch_unwind(AssertUnwindSafe(calls)).map_err(|_| "panic");
        trail.note(&(spot, &seen));
        if seen.is_ok() {
            let verdict = catch_unwind(AssertUnwindSafe(|| world.allocator().verify())).map_err(|_| "panic");
            trail.note(&(verdict, world.allocator().zoneinfo().to_string()));
        }
    }
}

/// Some of every call that looks for free memory.
fn use_it(world: &World<Checked>, random: &mut fastrand::Rng) -> Vec<String> {
    let mut seen = Vec::new();
    let mut live = Vec::new();
    for n in 0..40 {
        let order = order([0, 0, 0, 1, 3, 4, 8, 9][n % 8]);
        let pfn = BASE.add(random.u64(0..BLOCKS * PAGEBLOCK_PAGES)).block_start(order);
        seen.push(world.on(n % 2, |cpu| match n % 10 {
            0..5 => {
                let got = cpu.alloc(order, [Migratetype::Movable, Migratetype::Unmovable][n % 2]);
                live.extend(got.ok().map(|pfn| (pfn, order)));
                format!("{got:?}")
            }
            5 => {
                let got = cpu.alloc_at(pfn, order);
                live.extend(got.is_ok().then_some((pfn, order)));
                format!("{got:?}")
            }
            6 => {
                let mut out = [(pfn, order); 5];
                let got = cpu.take_free(pfn, order, &mut out);
                live.extend(&out[..got]);
                format!("{got} {out:?}")
            }
            7 => {
                let got = cpu.alloc_contig_range(pfn..pfn.add(700), &framewright::Helpers::NONE);
                format!("{got:?}")
            }
            8 => {
                let mut out = [pfn; 40];
                let got = cpu.alloc_bulk(order, Migratetype::Movable, &mut out);
                live.extend(out[..got].iter().map(|&pfn| (pfn, order)));
                format!("{got} {out:?}")
            }
            _ => {
                let freed = live.drain(live.len() / 2..).map(|(pfn, order)| cpu.free(pfn, order));
                format!("{:?}", freed.collect::<Vec<_>>())
            }
        }));
    }
    seen
}

fn spot(random: &mut fastrand::Rng, maps: bool, slots: usize) -> Spot {
    let pfn = BASE.add(random.u64(0..BLOCKS * PAGEBLOCK_PAGES));
    let (order, list) = (order(random.u8(0..11)), Migratetype::ALL[random.usize(0..5)]);
    match random.u32(0..20) {
        0..6 => Spot::Head(pfn),
        6 => Spot::Head(BASE.add(random.u64(0..BLOCKS) * PAGEBLOCK_PAGES)),
        7 => Spot::PageblockHead(pfn),
        8 => Spot::PageblockInfo(pfn),
        9 | 10 if maps => Spot::MapWord(pfn, random.usize(0..8)),
        9 | 10 => Spot::Head(pfn),
        11 => Spot::Slot(random.usize(0..slots)),
        12 => Spot::PcpCount,
        13 => Spot::ListWord(random.usize(0..4)),
        14 => Spot::FreePages,
        15 => Spot::FreeCmaPages,
        16 => Spot::NrFree(order),
        17 => Spot::First(order, list),
        _ => Spot::Last(order, list),
    }
}

pub(crate) fn run(config: Config, trail: &mut Trail) {
    let mut world = self::world(config);
    let maps = config.engine != Engine::Linux;
    let mut random = fastrand::Rng::with_seed(9);
    // Lists may be short.
    let slots = if config.experiment.pcp_orders == PcpOrders::None || config.experiment.pcp_slots < 64 {
        8
    } else {
        200
    };
    trail.note(&world.allocator().verify());
    for _ in 0..WORDS {
        let spot = spot(&mut random, maps, slots);
        let (before, flipped) = (world.corrupt(spot, 0), 1 << random.u32(0..64));
        let damaged = match random.u32(0..4) {
            0 => before.wrapping_add(1),
            1 => before.wrapping_sub(1),
            2 => before ^ flipped,
            _ => before ^ flipped >> random.u32(0..40),
        };
        world.corrupt(spot, damaged);
        // Some damage is found by an assertion.
        let found = catch_unwind(AssertUnwindSafe(|| world.allocator().verify())).map_err(|_| "panic");
        world.corrupt(spot, before);
        trail.note(&(spot, found));
        if found.is_err() {
            // A lock may still be held.
            world = self::world(config);
        }
    }
    // All of it is as it was.
    trail.note(&world.allocator().verify());
}
