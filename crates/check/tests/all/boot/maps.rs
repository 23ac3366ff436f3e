//! A memory map gives the same allocator in each way of booting: each frame is what the map says.

use core::ops::Range;
use std::collections::BTreeSet;

use framewright::boot::deferred::UnitStep;
use framewright::boot::early::Early;
use framewright::boot::map::{Home, Kind, MemoryMap};
use framewright::boot::spans::Span;
use framewright::boot::zones::{Buffers, Division, NodePart, Part, Rules};
use framewright_check::free_lists::FreeLists;
use framewright_check::prelude::*;
use proptest::prelude::*;

/// Frames that maps speak of, and a little more.
const FRAMES: u64 = 6144;
const KIB: u64 = FRAMES * 4;

/// A map, and what is reserved of it, in KiB and frames.
#[derive(Clone, Debug)]
struct Machine {
    ranges: Vec<(u64, u64, Kind)>,
    nodes: Vec<(u64, u64, Home)>,
    reserved: Vec<(u64, u64)>,
    rules: Rules,
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        6 => Just(Kind::Usable),
        1 => Just(Kind::Reserved),
        1 => Just(Kind::AcpiTables),
        1 => Just(Kind::Unusable)
    ]
}

/// Beginnings of the memory of nodes, or of memory of no node.
fn nodes() -> impl Strategy<Value = Vec<(u64, u64, Home)>> {
    let owner = prop::option::weighted(0.9, (0..3_u16, any::<bool>()));
    prop::collection::btree_map(0..KIB, owner, 0..6).prop_map(|borders| {
        let borders: Vec<_> = borders.into_iter().collect();
        let ends = borders.iter().skip(1).map(|border| border.0).chain([KIB]);
        let ranges = borders.iter().zip(ends).filter_map(|(&(start, owner), end)| {
            let (node, hot_pluggable) = owner?;
            Some((start, end - start, Home { node: NodeId(node), hot_pluggable }))
        });
        ranges.collect()
    })
}

fn rules() -> impl Strategy<Value = Rules> {
    (0..3_u64, 0..3_u64, any::<bool>(), 1..3_u64).prop_map(|(dma, dma32, movable_node, section)| Rules {
        dma_end: Pfn(dma * 1024),
        dma32_end: Pfn((dma + dma32) * 1024),
        movable_node,
        section: section * 1024,
        defer: true,
    })
}

fn machine() -> impl Strategy<Value = Machine> {
    let ranges = prop::collection::vec((0..KIB, 0..KIB / 2, kind()), 1..10);
    let reserved = prop::collection::vec((0..FRAMES, 1..400_u64), 0..8);
    (ranges, nodes(), reserved, rules()).prop_map(|(ranges, nodes, reserved, rules)| Machine {
        ranges,
        nodes,
        reserved,
        rules,
    })
}

impl Machine {
    /// State of each frame of memory, one byte-range of 1 KiB after another: its node, and whether it is free.
    fn frames(&self) -> Vec<Option<(NodeId, bool)>> {
        let mut kinds = vec![None; 2 * KIB as usize];
        for &(start, len, kind) in &self.ranges {
            for place in &mut kinds[start as usize..(start + len) as usize] {
                *place = (*place).max(Some(kind));
            }
        }
        let frame = |(n, page): (usize, &[Option<Kind>])| {
            if page.iter().any(|&kind| kind != Some(Kind::Usable)) {
                return None;
            }
            let n = n as u64;
            let home = self.nodes.iter().find(|(start, len, _)| (start / 4..(start + len) / 4).contains(&n));
            let free = !self.reserved.iter().any(|&(start, len)| (start..start + len).contains(&n));
            Some((home.map_or(NodeId(0), |home| home.2.node), free))
        };
        kinds.chunks_exact(4).enumerate().map(frame).collect()
    }

    /// Zones and what boot hands over; `None` if there is no memory.
    fn divide(&self) -> Option<(Vec<RestSpec>, u64)> {
        let mut kinds = vec![Span::default(); 2 * self.ranges.len() + 1];
        let mut homes = vec![Span::default(); 2 * self.nodes.len() + 1];
        let mut map = MemoryMap::new(&mut kinds, &mut homes);
        for &(start, len, kind) in &self.ranges {
            map.add(start << 10, len << 10, kind).expect("there is room");
        }
        for &(start, len, home) in &self.nodes {
            map.add_node(start << 10, len << 10, home).expect("nodes do not overlap");
        }
        let none = ZoneSpec { node: NodeId(0), kind: ZoneType::Dma, start: Pfn(0), pages: 0 };
        let (mut specs, mut parts, mut nodes) = ([none; 32], [Part::default(); 32], [NodePart::default(); 4]);
        let room = Buffers { specs: &mut specs, parts: &mut parts, nodes: &mut nodes };
        let division = Division::new(&map, self.rules, room).ok()?;
        let mut reserved = vec![Span::default(); self.reserved.len()];
        let mut early = Early::new(map, &mut reserved);
        for &(start, len) in &self.reserved {
            early.reserve(Pfn(start)..Pfn(start + len)).expect("there is room");
        }
        let free: Vec<_> = division.free(&early).collect();
        Some((RestSpec::of(&division, &free, || 3), division.lost))
    }
}

/// All that must not depend on how a machine booted.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    lists: FreeLists,
    zones: Vec<(u64, u64, u64, [u64; 11])>,
}

fn outcome(world: &World<Plain>) -> Outcome {
    world.settled();
    let allocator = world.allocator();
    let zones = allocator.zones().iter().map(|zone| {
        let snapshot = allocator.zone_snapshot(zone);
        (snapshot.free, snapshot.managed, snapshot.present, snapshot.nr_free)
    });
    Outcome { zones: zones.collect(), lists: world.free_lists().in_any_order() }
}

/// Boots with `workers` workers, an even number of them with descriptors that boot has to clear. Each byte of
/// `schedule` is one worker's turn: it steps, or stops and another one takes its place; or an allocation asks for more.
fn boot(rests: &[RestSpec], split: Split, section: u64, workers: usize, schedule: &[u8]) -> World<Plain> {
    let spec = Spec::deferred(How { split, section }, rests, workers, 1);
    let world = if workers.is_multiple_of(2) {
        spec.spins(1).build_to_clear::<Plain, ()>(|_| ())
    } else {
        spec.plain()
    };
    if workers.is_multiple_of(2) {
        world.soil();
    }
    let booting = world.allocator().begin().expect("it is the first time");
    assert!(world.allocator().begin().is_none(), "it has begun");
    let node = |n: usize| rests[n % rests.len()].spec.node;
    let mut team: Vec<_> = (0..workers).map(|_| None).collect();
    for (n, &turn) in schedule.iter().enumerate() {
        let place = &mut team[usize::from(turn) % workers];
        match turn / 16 {
            0 => drop(place.take()),
            1 => drop(world.allocator().grow(ZoneId((n % rests.len()) as u8), 1, None)),
            _ => {
                let worker =
                    place.get_or_insert_with(|| booting.worker(node(n)).or_else(|| booting.worker(node(0))));
                if let Some(worker) = worker
                    && worker.step() == UnitStep::Idle
                {
                    worker.move_to(node(n));
                }
            }
        }
        if n % 8 == 0 {
            world.settled();
        }
    }
    drop(team);
    booting.run();
    booting.finish().expect("nothing is left");
    world
}

/// Every frame is what the map says.
fn check_frames(machine: &Machine, rests: &[RestSpec], lost: u64, world: &World<Plain>) {
    let zone_of = |pfn: Pfn| rests.iter().find(|rest| rest.spec.spans(pfn));
    let mut outside = 0;
    for (n, frame) in (0..).zip(machine.frames()) {
        let pfn = Pfn(n);
        let zone = zone_of(pfn).filter(|rest| frame.is_some_and(|(node, _)| rest.spec.node == node));
        let is_free = match (frame, zone) {
            (Some((_, free)), Some(_)) => free,
            (Some(_), None) => {
                outside += 1;
                let unit = pfn.block_start(MAX_ORDER)..pfn.block_start(MAX_ORDER).add(1024);
                let shares = |rest: &RestSpec| rest.spec.start < unit.end && unit.start < rest.spec.end();
                assert!(rests.iter().any(shares), "{pfn:?} is memory and in no zone, for no reason");
                false
            }
            _ => false,
        };
        let frames = world.allocator().frames();
        let found = match frames.contains(pfn).then(|| frames.find(pfn)) {
            Some((head, State::Free { order, .. })) => pfn.0 - head.0 < order.pages(),
            Some((_, State::Reserved)) | None => false,
            Some(state) => panic!("{pfn:?} is {state:?} after boot"),
        };
        assert_eq!(found, is_free, "{pfn:?} is {frame:?}");
    }
    assert_eq!(outside, lost);
    let present: u64 = rests.iter().map(|rest| rest.present).sum();
    assert_eq!(machine.frames().iter().flatten().count() as u64, present + lost);
}

fn run(machine: &Machine, schedule: &[u8]) {
    let Some((rests, lost)) = machine.divide() else {
        assert!(machine.frames().iter().flatten().next().is_none(), "there is memory and no zone");
        return;
    };
    let section = machine.rules.section;
    let reference = boot(&rests, Split::OneThread, section, 1, &[]);
    check_frames(machine, &rests, lost, &reference);
    let expected = outcome(&reference);
    for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
        for workers in 1..=4 {
            let world = boot(&rests, split, section, workers, schedule);
            assert_eq!(outcome(&world), expected, "{split:?} with {workers}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if full() { 1000 } else { 250 }, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn any_map_boots_in_any_way_to_the_same_allocator(
        machine in machine(),
        schedule in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        run(&machine, &schedule);
    }
}

/// The ranges of a zone ascend, and each is inside.
#[test]
fn ranges_handed_over_are_in_order() {
    let home = |node| Home { node: NodeId(node), hot_pluggable: false };
    let machine = Machine {
        ranges: vec![(0, KIB, Kind::Usable), (6001, 7, Kind::Reserved)],
        nodes: vec![(0, 4096 * 2, home(1)), (4096 * 2, 4096, home(0)), (4096 * 3, 4096 * 3, home(1))],
        reserved: vec![(10, 20), (30, 1), (4096, 100)],
        rules: Rules { section: 1024, ..Rules::default() },
    };
    let (rests, lost) = machine.divide().expect("there is memory");
    assert_eq!((rests.len(), lost), (4, 0));
    let mut seen = BTreeSet::new();
    for rest in &rests {
        for Range { start, end } in rest.free.clone() {
            assert!(rest.spec.spans(start) && end <= rest.spec.end());
            assert!(seen.iter().all(|&before| before < end) && seen.insert(end));
        }
    }
    run(&machine, &[0x35, 0x77, 0x12, 0x01, 0xf3, 0x20]);
}
