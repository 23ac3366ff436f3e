//! Boot: firmware maps of all shapes, early allocation, zones, and memory that is initialised by workers, by allocations, or not
//! at all.

use core::mem::MaybeUninit;
use core::ops::Range;
use framewright::boot::deferred::UnitStep;

use framewright::Config;
use framewright::boot::early::{Early, EarlyRequest, Side, Where};
use framewright::boot::late;
use framewright::boot::map::{Home, Kind, MemoryMap};
use framewright::boot::spans::Span;
use framewright::boot::srat::affinities;
use framewright::boot::zones::{Buffers, Division, HandOver, Movable, NodePart, Part, Rules};
use framewright::defer::{DeferredMemory, How};
use framewright::platform::Word;
use framewright::policy::init::Split;
use framewright::units::{CpuId, Migratetype, NodeId, Order, Pfn, ZoneId, ZoneType};
use framewright::zone::ZoneSpec;
use framewright_check::corrupt::Spot;
use framewright_check::fixture::{RestSpec, Spec};
use framewright_check::platform::checked::{Checked, CheckedWord};

use crate::record::Trail;
use crate::world::{look, look_at_first};

/// Frames that maps speak of, and a little more.
const FRAMES: u64 = 6144;
const KIB: u64 = FRAMES * 4;

const KINDS: [Kind; 6] =
    [Kind::Usable, Kind::AcpiTables, Kind::Persistent, Kind::AcpiStorage, Kind::Reserved, Kind::Unusable];

fn rules(random: &mut fastrand::Rng) -> Rules {
    let (dma, dma32) = (random.u64(0..3), random.u64(0..3));
    Rules {
        dma_end: Pfn(dma * 1024),
        dma32_end: Pfn((dma + dma32) * 1024),
        movable: match random.u32(0..4) {
            0 => Movable::HotPluggable,
            1 => Movable::KernelCore(random.u64(0..FRAMES)),
            _ => Movable::None,
        },
        section: random.u64(1..3) * 1024,
        defer: random.u32(0..4) > 0,
    }
}

/// A map with overlaps, its nodes, what is reserved early, and the zones that come of it; then such a machine boots.
pub(crate) fn maps(seed: u64, trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..12 {
        let room = random.usize(3..16);
        let (mut kinds, mut homes) = (vec![Span::default(); room], vec![Span::default(); 9]);
        let mut map = MemoryMap::new(&mut kinds, &mut homes).page_shift(12);
        for _ in 0..random.u32(1..10) {
            let (start, len) = (random.u64(0..KIB << 10), random.u64(0..KIB << 9));
            // Half of them end where zones and sections do.
            let aligned = random.bool();
            let (start, len) =
                if aligned { (start >> 22 << 22, ((len >> 22) + 1) << 22) } else { (start, len) };
            let kind = KINDS[if random.bool() { 0 } else { random.usize(0..6) }];
            let (start, len) = if random.u32(0..20) == 0 { (u64::MAX - start, len) } else { (start, len) };
            let _ = trail.call(|| map.add(start, len, kind));
        }
        let mut at = 0;
        for node in 0..random.u16(0..5) {
            let len = random.u64(0..KIB << 9);
            let home = Home { node: NodeId(node % 3), hot_pluggable: random.bool() };
            let gap = random.u64(0..1 << 20);
            let _ = trail.call(|| map.add_node(at + gap, len, home));
            if random.u32(0..3) == 0 {
                // Said twice, and not the same.
                let home = Home { hot_pluggable: random.bool(), ..home };
                let _ = trail.call(|| map.add_node(at + gap + len / 3, len / 3, home));
            }
            at += if random.u32(0..6) == 0 { len / 2 } else { gap + len };
        }
        trail.note(&(map.kinds(), map.homes(), map.counts(), map.shift()));
        trail.note(&(
            map.memory().collect::<Vec<_>>(),
            map.pages(),
            map.trimmed_bytes(),
            map.unclaimed_pages(),
        ));
        trail.note(&map.touched(random.u64(0..KIB << 10), random.u64(0..KIB << 9)));
        divide(map, &mut random, trail);
    }
}

fn divide(map: MemoryMap<'_>, random: &mut fastrand::Rng, trail: &mut Trail) {
    let none = ZoneSpec { node: NodeId(0), kind: ZoneType::Dma, start: Pfn(0), pages: 0 };
    let many = if random.u32(0..6) == 0 { 2 } else { 32 };
    let (mut specs, mut parts, mut nodes) =
        (vec![none; many], vec![Part::default(); many], [NodePart::default(); 4]);
    let room = Buffers { specs: &mut specs, parts: &mut parts, nodes: &mut nodes };
    let division = trail.call(|| Division::new(&map, rules(random), room));
    let mut reserved = vec![Span::default(); 12];
    let mut early = Early::new(map, &mut reserved);
    for _ in 0..random.u32(0..9) {
        let (start, len) = (random.u64(0..FRAMES), random.u64(0..300));
        let range = Pfn(start)..Pfn(start + len);
        let _ = trail.call(|| early.reserve(range));
    }
    for _ in 0..random.u32(0..12) {
        early_call(&mut early, random, trail);
    }
    trail.note(&(early.reserved(), early.reserved_pages(), early.free().collect::<Vec<_>>()));
    let Ok(division) = division else { return };
    let len = trail.call(|| HandOver::ranges(&early, &division));
    trail.note(&division.present());
    let mut free = vec![Pfn(0)..Pfn(0); len];
    let Ok(hand_over) = trail.call(|| HandOver::new(early, &division, &mut free)) else {
        return;
    };
    trail.note(&(hand_over.free(), hand_over.pages(), hand_over.early().reserved_pages()));
    let rests = RestSpec::of(&division, &hand_over, || 2);
    trail.note(&rests);
    as_deferred(&division, hand_over.free(), trail);
    let splits = [Split::OneThread, Split::AllCpus, Split::AllCpusBySection];
    let how = How { split: splits[random.usize(0..3)], section: division.rules.section };
    boot(&Spec::deferred(how, rests, random.usize(0..4), 2), false, random, trail);
}

/// The same as the kernel's boot makes of it.
fn as_deferred(division: &Division<'_>, free: &[Range<Pfn>], trail: &mut Trail) {
    let mut zones: Vec<_> = division.specs.iter().map(|_| MaybeUninit::uninit()).collect();
    let slots = [CheckedWord::new(0)];
    let memory = DeferredMemory { zones: &mut zones, slots: &slots };
    let nodes = [NodeId(0), NodeId(1), NodeId(0)];
    let deferred = late::deferred::<Checked>(division, free, &nodes, Split::AllCpus, memory);
    for zone in deferred.zones() {
        trail.note(&(zone.rest(), zone.left(), zone.first_unclaimed()));
    }
    trail.note(&(deferred.how(), deferred.left()));
}

fn early_call(early: &mut Early<'_>, random: &mut fastrand::Rng, trail: &mut Trail) {
    if random.u32(0..5) == 0 {
        let (start, len) = (random.u64(0..FRAMES), random.u64(0..60));
        let _ = trail.call(|| early.free_range(Pfn(start)..Pfn(start + len)));
        return;
    }
    let start = random.u64(0..FRAMES);
    let request = EarlyRequest {
        align: [1, 1, 2, 16, 512, 3][random.usize(0..6)],
        within: Pfn(start)..Pfn(start + random.u64(0..FRAMES)),
        from: if random.bool() { Side::Top } else { Side::Bottom },
        hot_pluggable: random.bool(),
        place: match random.u32(0..3) {
            0 => Where::On(NodeId(random.u16(0..3))),
            1 => Where::Preferably(NodeId(random.u16(0..3))),
            _ => Where::Anywhere,
        },
        ..EarlyRequest::new(random.u64(0..200))
    };
    if let Ok(pfn) = trail.call(|| early.alloc(&request)) {
        // Some of it is not needed after all.
        if random.bool() {
            let _ = trail.call(|| early.free_range(pfn..pfn.add(request.pages / 2)));
        }
    }
}

/// Boots a machine in one way or another, with allocations in between.
fn boot(spec: &Spec, clear: bool, random: &mut fastrand::Rng, trail: &mut Trail) {
    let world = if clear { spec.build_to_clear::<Checked, ()>(|_| ()) } else { spec.build::<Checked>() };
    let allocator = world.allocator();
    if clear {
        for zone in allocator.zones() {
            let zone = zone.spec();
            for pfn in zone.start.0..zone.end().0.next_multiple_of(1024) {
                world.corrupt(Spot::Head(Pfn(pfn)), pfn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            }
        }
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
                let start = Pfn(random.u64(0..FRAMES)).block_start(Order::new(9).expect("an order"));
                let _ = trail.call(|| world.on(0, |cpu| cpu.offline(start..start.add(512))));
            }
            (4, _) => {
                let (zone, order) = (ZoneId(0), Order::new(random.u8(0..11)).expect("an order"));
                trail.call(|| allocator.grow(zone, order, Some(CpuId(0))));
            }
            _ => {
                let order = Order::new([0, 0, 3, 9, 10][random.usize(0..5)]).expect("an order");
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
        trail.note(&booting.stay_lazy().growth());
        while let Ok(pfn) = trail
            .call(|| world.on(0, |cpu| cpu.alloc(Order::new(9).expect("an order"), Migratetype::Unmovable)))
        {
            live.push((pfn, Order::new(9).expect("an order")));
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
        Ok(booted) => {
            trail.note(&booted.growth());
            trail.note(&booted.give_back(Pfn(0x1ff0)..Pfn(0x1ffa)));
            trail.note(&booted.give_back(Pfn(100)..Pfn(103)));
            trail.note(&booted.give_back(Pfn(100)..Pfn(103)));
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
        let spec = ZoneSpec {
            node: NodeId(node as u16),
            kind: ZoneType::Normal,
            start: Pfn(start),
            pages: end - start,
        };
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
                    let order = Order::new(random.u8(0..11)).expect("an order");
                    trail.call(|| allocator.grow(ZoneId(node.0 as u8), order, Some(CpuId(node.0))));
                }
                _ => {
                    let order = Order::new([9, 10][random.usize(0..2)]).expect("an order");
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
        trail
            .note(&(pages, booting.finish().map(|booted| booted.growth()).map_err(|booting| booting.left())));
        trail.note(&allocator.deferred().map(|deferred| (deferred.may_grow(), deferred.is_lazy())));
        look(&world, trail);
    }
}

/// Tables of affinities, whole and damaged.
pub(crate) fn tables(seed: u64, trail: &mut Trail) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..400 {
        let mut table = b"SRAT\0\0\0\0".to_vec();
        table.resize(48, 0);
        table[8] = random.u8(0..4);
        for _ in 0..random.u32(0..6) {
            let kind = random.u8(0..6);
            let len = [16, 40, 24, 18, 2, 12][usize::from(kind)]
                + if random.u32(0..9) == 0 { random.u8(0..3) } else { 0 };
            let mut record = vec![0; usize::from(len).max(2)];
            random.fill(&mut record);
            (record[0], record[1]) = (kind, len.saturating_sub(u8::from(random.u32(0..30) == 0)));
            if random.bool() {
                record.iter_mut().skip(2).for_each(|byte| *byte &= 0x81);
            }
            if kind == 1 && len == 40 && random.bool() {
                // No byte, or the last ones that there are.
                let bytes = random.u64(0..3) << random.u32(0..40);
                let start = random.u64(0..2).wrapping_sub(bytes);
                record[8..16].copy_from_slice(&start.to_le_bytes());
                record[16..24].copy_from_slice(&bytes.to_le_bytes());
            }
            table.extend(record);
        }
        let len = table.len() as u32 + if random.u32(0..12) == 0 { random.u32(0..3) } else { 0 };
        table[4..8].copy_from_slice(&len.to_le_bytes());
        let sum = table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte));
        table[9] = table[9].wrapping_sub(sum).wrapping_add(u8::from(random.u32(0..12) == 0));
        if random.u32(0..12) == 0 {
            table.truncate(random.usize(0..table.len()));
        }
        if random.u32(0..6) == 0 {
            table.extend([1, 2, 3]);
        }
        match affinities(&table) {
            Ok(all) => all.for_each(|affinity| trail.note(&affinity)),
            Err(damage) => trail.note(&damage),
        }
    }
}
