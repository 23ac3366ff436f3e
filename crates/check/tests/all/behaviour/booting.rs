//! Boot: memory that is initialised by workers, by allocations, or not at all.

use framewright::boot::deferred::UnitStep;
use framewright_check::prelude::*;

use crate::behaviour::record::Trail;
use crate::behaviour::world::{look, look_at_first};

/// Frames that maps speak of, and a little more.
const FRAMES: u64 = 6144;

/// Boots a machine in one way or another, with allocations in between.
fn boot(spec: &Spec, clear: bool, random: &mut fastrand::Rng, trail: &mut Trail) {
    let world = if clear { spec.build_to_clear::<Checked, ()>(|_| ()) } else { spec.build::<Checked>() };
    let allocator = world.allocator();
    if clear {
        world.soil();
    }
    let Some(booting) = trail.call(|| allocator.begin()) else { return };
    trail.note(&(booting.left(), allocator.begin().is_none()));
    look_at_first(&world, trail);
    let mut live = Vec::new();
    let mut worker = booting.worker(NodeId(0));
    for _ in 0..random.u32(0..24) {
        match (random.u32(0..6), &mut worker) {
            (0 | 1, Some(worker)) => drop(trail.call(|| worker.step())),
            (2, Some(worker)) => drop(trail.call(|| worker.steps(3))),
            (3, Some(worker)) => worker.move_to(NodeId(random.u16(0..3))),
            (4, _) if random.bool() => {
                let start = Pfn(random.u64(0..FRAMES)).block_start(order(9));
                let _ = trail.call(|| world.on(0, |cpu| cpu.offline(start..start.add(512))));
            }
            (4, _) => {
                let (zone, order) = (ZoneId(0), order(random.u8(0..11)));
                trail.call(|| allocator.grow(zone, order.pages(), Some(CpuId(0))));
            }
            _ => {
                let order = order([0, 0, 3, 9, 10][random.usize(0..5)]);
                let got = trail.call(|| world.on(1, |cpu| cpu.alloc(order, Migratetype::Movable)));
                live.extend(got.ok().map(|pfn| (pfn, order)));
            }
        }
        trail.note(&(booting.left(), allocator.deferred().map(|deferred| deferred.growth())));
        if let Some(deferred) = allocator.deferred() {
            trail.note(&(deferred.may_grow(), deferred.is_lazy(), deferred.left()));
            for zone in deferred.zones() {
                trail.note(&(zone.left(), zone.first_unclaimed()));
            }
        }
    }
    look(&world, trail);
    // Some of what is free, some of what is not there.
    for pfn in (0..FRAMES).step_by(1021) {
        trail.note(&world.on(0, |cpu| cpu.free(Pfn(pfn), Order::ZERO)).is_err());
    }
    for (pfn, order) in live.drain(..).step_by(2) {
        let _ = trail.call(|| world.on(0, |cpu| cpu.free(pfn, order)));
    }
    if random.u32(0..4) == 0 {
        drop(worker);
        trail.note(&booting.stay_lazy());
        while let Ok(pfn) = trail.call(|| world.on(0, |cpu| cpu.alloc(order(9), Migratetype::Unmovable))) {
            live.push((pfn, order(9)));
        }
        look(&world, trail);
        return;
    }
    let early = if let Some(worker) = &mut worker {
        while trail.call(|| worker.step()) != UnitStep::Idle {}
        trail.call(|| worker.run())
    } else {
        0
    };
    drop(worker);
    trail.note(&(early, booting.run()));
    match booting.finish() {
        Ok(growth) => {
            trail.note(&growth);
            for (pfn, pages) in [(0x1ff0, 10), (100, 3), (100, 3)] {
                trail.note(&world.allocator().add_memory(Pfn(pfn), pages).map(|()| pages));
            }
        }
        Err(booting) => trail.note(&booting.left()),
    }
    look(&world, trail);
}

/// One zone with holes, whose descriptors have to be cleared.
pub(crate) fn late(config: Config, split: Split, clear: bool, seed: u64, trail: &mut Trail) {
    let free = [(0x1000, 0x1f00), (0x1f01, 0x2300), (0x2305, 0x2800), (0x2900, 0x2901), (0x3123, 0x3fff)];
    let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0x1000), pages: 0x2fff };
    let free: Vec<_> = free.iter().map(|&(start, end)| Pfn(start)..Pfn(end)).collect();
    let rest = RestSpec { spec, present: 0x2fff, free, deferred_from: Pfn(0x1800), cpus: 4 };
    for n in 0..4 {
        let mut random = fastrand::Rng::with_seed(seed + n);
        let spec = Spec::deferred(How { split, section: 2048 }, [rest.clone()], 3, 2).config(config);
        boot(&spec, clear, &mut random, trail);
    }
}

/// Workers that come and go, allocations that take what they have claimed, and a node whose memory others have begun.
pub(crate) fn workers(split: Split, seed: u64, trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(seed);
    let zone = |node: u64| {
        let (start, end) = ((1 + node) << 14, (2 + node) << 14);
        let spec = normal(node as u16, start, end - start);
        let free = [(start, start + 5000), (start + 5003, start + 9000), (start + 9216, end - 1)];
        let free: Vec<_> = free.iter().map(|&(start, end)| Pfn(start)..Pfn(end)).collect();
        RestSpec { spec, present: end - start, free, deferred_from: Pfn(start + (1 - node) * 2048), cpus: 3 }
    };
    for slots in [1, 3, 4] {
        let spec = Spec::deferred(How { split, section: 4096 }, [zone(0), zone(1)], slots, 2);
        let world = spec.cpu_nodes([NodeId(0), NodeId(1)]).build::<Checked>();
        let allocator = world.allocator();
        let booting = allocator.begin().expect("it is the first time");
        let mut team = Vec::new();
        for _ in 0..90 {
            let node = NodeId(random.u16(0..2));
            match random.u32(0..12) {
                0..2 => team.extend(trail.call(|| booting.worker(node))),
                2 if !team.is_empty() => drop(team.swap_remove(random.usize(0..team.len()))),
                3..8 if !team.is_empty() => {
                    let n = random.usize(0..team.len());
                    let most = random.u64(1..4);
                    trail.call(|| team[n].steps(most));
                }
                8 if !team.is_empty() => {
                    let n = random.usize(0..team.len());
                    team[n].move_to(node);
                }
                9 | 10 => {
                    let order = order(random.u8(0..11));
                    trail.call(|| allocator.grow(ZoneId(node.0 as u8), order.pages(), Some(CpuId(node.0))));
                }
                _ => {
                    let order = order([9, 10][random.usize(0..2)]);
                    for _ in 0..random.u32(0..6) {
                        let _ = trail.call(|| world.on(1, |cpu| cpu.alloc(order, Migratetype::Movable)));
                    }
                }
            }
            let deferred = allocator.deferred().expect("it is deferred");
            let zones: Vec<_> =
                deferred.zones().iter().map(|zone| (zone.left(), zone.first_unclaimed())).collect();
            trail.note(&(booting.left(), deferred.growth(), deferred.may_grow(), zones, team.len()));
        }
        look(&world, trail);
        let late = random.bool();
        if late {
            drop(core::mem::take(&mut team));
        }
        trail.call(|| booting.run());
        for worker in &mut team {
            trail.call(|| worker.run());
        }
        drop(team);
        let pages = trail.call(|| booting.run());
        trail.note(&(pages, booting.finish().map_err(|booting| booting.left())));
        trail.note(&allocator.deferred().map(|deferred| (deferred.may_grow(), deferred.is_lazy())));
        look(&world, trail);
    }
}
