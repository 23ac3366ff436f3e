//! Requests of every kind when memory is short: marks, reserves, background and direct reclaim, zone reclaim,
//! compaction, drains, kills. Who holds the memory notes what it is asked for.

use framewright_check::platform::plain::pass;
use framewright_check::prelude::*;

use crate::behaviour::mixed::{Drive, any_order};
use crate::behaviour::owner::Owner;
use crate::behaviour::record::Trail;
use crate::behaviour::world::CPUS;

const CALLS: u32 = 160;
const WEIGHTS: [u8; 4] = [3, 0, 2, 1];

fn flags(random: &mut fastrand::Rng) -> Flags {
    let all = [
        Flags::NONE,
        Flags::NONE,
        Flags::HIGH,
        Flags::NO_WAIT,
        Flags::ATOMIC,
        Flags::NO_RETRY,
        Flags::REPEAT,
        Flags::THIS_NODE,
        Flags::NO_WRITE,
        Flags::NO_RESERVES,
        Flags::VICTIM,
        Flags::NO_WAKE,
        Flags::VICTIM.and(Flags::NO_RESERVES),
        Flags::ATOMIC.and(Flags::NO_RESERVES),
        Flags::ATOMIC.and(Flags::VICTIM),
        Flags::NO_RETRY.and(Flags::NO_WRITE),
    ];
    all[random.usize(0..all.len())]
}

fn nodes(random: &mut fastrand::Rng) -> NodePolicy<'static> {
    let (node, some) = (NodeId(random.u16(0..5)), NodeMask(random.u64(0..16)));
    match random.u32(0..10) {
        0 => NodePolicy::Preferred(node),
        1 => NodePolicy::PreferredMany(some),
        2 => NodePolicy::Bind(some),
        3 => NodePolicy::Interleave { nodes: some, turn: random.u64(0..9) },
        4 => NodePolicy::Weighted { nodes: some, weights: &WEIGHTS, turn: random.u64(0..9) },
        _ => NodePolicy::Local,
    }
}

fn request(random: &mut fastrand::Rng) -> Request<'static> {
    let kinds =
        [Migratetype::Movable, Migratetype::Movable, Migratetype::Unmovable, Migratetype::Reclaimable];
    let kind = kinds[random.usize(0..4)];
    let zones = [ZoneType::Dma, ZoneType::Dma32, ZoneType::Normal, ZoneType::Movable, ZoneType::Movable];
    let allowed = if random.u32(0..8) == 0 { NodeMask(random.u64(1..16)) } else { NodeMask::ALL };
    Request::new(any_order(random), kind)
        .up_to(zones[random.usize(0..5)])
        .with(flags(random))
        .on(nodes(random))
        .allowed(allowed)
}

/// Some of the helpers that there are.
fn helpers<'o>(owner: &'o Owner<'_, ()>, which: u32, helpless: bool) -> Helpers<'o> {
    let mut helpers = Helpers::NONE;
    if which > 1 && !(helpless && which < 5) {
        helpers = helpers.with_reclaim(owner);
    }
    if which.is_multiple_of(2) {
        helpers = helpers.with_migrate(owner);
    }
    if which % 4 < 3 {
        helpers = helpers.with_background(owner);
    }
    helpers
}

/// Fills most of the memory with pages, then asks for this and that.
pub(crate) fn run(spec: &Spec, seed: u64, trail: &mut Trail) {
    let world = spec.build::<Checked>();
    let mut drive = Drive::new(&world, seed, trail);
    let helpless = seed.is_multiple_of(2);
    for cpu in 0..CPUS {
        for n in 0.. {
            let kind = [Migratetype::Movable, Migratetype::Movable, Migratetype::Reclaimable][n % 3];
            let most = spec.pages() / 4;
            if n as u64 > most {
                break;
            }
            match drive.call(|| world.on(cpu, |cpu| cpu.alloc(Order::ZERO, kind))) {
                Ok(pfn) => drive.owner.keep(pfn, Order::ZERO, kind),
                Err(_) => break,
            }
        }
    }
    drive.look();
    for n in 0..CALLS {
        let cpu = drive.random.usize(0..CPUS);
        drive.owner.busy.set(cpu);
        match drive.random.u32(0..40) {
            0..26 => {
                let request = request(&mut drive.random);
                let which = drive.random.u32(0..8);
                let helpers = helpers(&drive.owner, which, helpless);
                match drive.call(|| world.on(cpu, |cpu| cpu.alloc_with(&request, &helpers))) {
                    Ok(pfn) => drive.owner.keep(pfn, request.order, request.migratetype),
                    Err(error) => {
                        let mut lacks = Vec::new();
                        let owner = &drive.owner;
                        let helpers = Helpers::NONE.with_reclaim(owner);
                        drive.call(|| {
                            world.on(cpu, |cpu| cpu.explain(&request, &helpers, |lack| lacks.push(*lack)))
                        });
                        drive.owner.trail.borrow_mut().note(&(error.is_out_of_memory(), lacks));
                    }
                }
            }
            26..30 => {
                for _ in 0..drive.random.u32(1..60) {
                    if let Some(held) = drive.take_live() {
                        drive.free(cpu, held);
                    }
                }
            }
            30..35 => background(&mut drive, cpu),
            35 => {
                let (order, highest) = (any_order(&mut drive.random), ZoneType::Normal);
                let node = NodeId(drive.random.u16(0..world.allocator().nodes().len() as u16));
                let _ = drive
                    .call(|| world.allocator().background_wake(node, BackgroundRequest { order, highest }));
            }
            36 => {
                let zone = ZoneId(drive.random.u8(0..world.allocator().zones().len() as u8));
                let owner = &drive.owner;
                drive.call(|| world.on(cpu, |cpu| cpu.compact(zone, owner)));
            }
            37 => {
                pass(600_000_000);
                drive.call(|| world.on(cpu, |cpu| cpu.tick()));
            }
            38 => drive.call(|| world.on(cpu, |cpu| cpu.drain())),
            _ => drive.call(|| world.on(cpu, |cpu| cpu.answer())),
        }
        if n % 16 == 0 {
            drive.look();
        }
    }
    while let Some(held) = drive.take_live() {
        drive.free(1, held);
    }
    drive.look();
}

/// Zones of which every second page is free, with CMA, isolated and reserved pageblocks among them, made contiguous.
pub(crate) fn compaction(spec: &Spec, seed: u64, trail: &mut Trail) {
    let world = spec.build::<Checked>();
    let allocator = world.allocator();
    let mut drive = Drive::new(&world, seed, trail);
    for round in 0..3_u64 {
        let orders = [[0, 0, 1], [0, 2, 3], [0, 0, 5]][round as usize];
        for n in 0..900_usize {
            let order = order(orders[n % 3]);
            let kind = if n % 13 == 0 { Migratetype::Unmovable } else { Migratetype::Movable };
            if let Ok(pfn) = drive.call(|| world.on(n % CPUS, |cpu| cpu.alloc(order, kind))) {
                drive.owner.keep(pfn, order, kind);
            }
        }
        let types = [Migratetype::Cma, Migratetype::HighAtomic, Migratetype::Reclaimable];
        for (n, kind) in types.into_iter().enumerate() {
            let at = BASE.add(PAGEBLOCK_PAGES * (2 * n as u64 + round));
            drive.call(|| allocator.set_pageblock_type(at, kind));
        }
        drive.call(|| allocator.isolate_pageblock(BASE.add(PAGEBLOCK_PAGES * (3 + round))));
        let half = drive.owner.live.borrow().len() / 2;
        for left in (half..2 * half).rev() {
            let n = drive.random.usize(0..=left);
            let held = drive.owner.live.borrow_mut().swap_remove(n);
            drive.free(0, held);
        }
        drive.look();
        for zone in 0..allocator.zones().len() {
            let owner = &drive.owner;
            drive.call(|| world.on(0, |cpu| cpu.compact(ZoneId(zone as u8), owner)));
            drive.look();
        }
        for order in [9, 10, 4, 9].map(order) {
            let request = Request::new(order, Migratetype::Movable);
            let owner = &drive.owner;
            let helpers = Helpers::NONE.with_migrate(owner);
            if let Ok(pfn) = drive.call(|| world.on(1, |cpu| cpu.alloc_with(&request, &helpers))) {
                drive.owner.keep(pfn, request.order, request.migratetype);
            }
        }
        drive.call(|| allocator.unisolate_pageblock(BASE.add(PAGEBLOCK_PAGES * (3 + round))));
    }
    drive.look();
}

/// Work of a background thread of each node: takes what it was asked for, reclaims, and dozes.
fn background(drive: &mut Drive<'_, ()>, cpu: usize) {
    let world = drive.owner.world;
    for node in (0..world.allocator().nodes().len()).map(|node| NodeId(node as u16)) {
        if let Some(asked) = drive.call(|| world.allocator().background_sleep(node)) {
            let owner = &drive.owner;
            let helpers = Helpers::NONE.with_reclaim(owner).with_migrate(owner).with_background(owner);
            drive.call(|| world.on(cpu, |cpu| cpu.background(node, asked, &helpers)));
        }
    }
}
