extern crate std;

use core::mem::MaybeUninit;
use std::vec::Vec;

use super::*;
use crate::boot::early::{Early, EarlyRequest};
use crate::boot::late::deferred;
use crate::boot::map::{Home, Kind};
use crate::boot::spans::Span;
use crate::defer::DeferredMemory;
use crate::platform::machine::Machine;
use crate::policy::init::Split;

const GIB: u64 = 1 << 18;

struct Arrays {
    kinds: [Span<Kind>; 64],
    homes: [Span<Home>; 64],
    reserved: [Span<()>; 64],
    specs: [ZoneSpec; 32],
    parts: [Part; 32],
    nodes: [NodePart; 8],
}

impl Arrays {
    fn new() -> Self {
        let nothing = ZoneSpec { node: NodeId(0), kind: ZoneType::Dma, start: Pfn(0), pages: 0 };
        Self {
            kinds: [Span::default(); 64],
            homes: [Span::default(); 64],
            reserved: [Span::default(); 64],
            specs: [nothing; 32],
            parts: [Part::default(); 32],
            nodes: [NodePart::default(); 8],
        }
    }
}

/// Memory (first frame, end, node, hot-pluggable), divided by `rules`, with `reserved` frames taken out.
fn with_division(
    memory: &[(u64, u64, u16, bool)],
    rules: Rules,
    reserved: &[Range<u64>],
    check: impl FnOnce(Result<(Division<'_>, Early<'_>), ZonesError>),
) {
    let mut buffers = Arrays::new();
    let mut map = MemoryMap::new(&mut buffers.kinds, &mut buffers.homes);
    for &(start, end, node, hot_pluggable) in memory {
        map.add(start << 12, (end - start) << 12, Kind::Usable).expect("there is room");
        let home = Home { node: NodeId(node), hot_pluggable };
        map.add_node(start << 12, (end - start) << 12, home).expect("nodes do not overlap");
    }
    let room = Buffers { specs: &mut buffers.specs, parts: &mut buffers.parts, nodes: &mut buffers.nodes };
    let division = match Division::new(&map, rules, room) {
        Ok(division) => division,
        Err(error) => return check(Err(error)),
    };
    let mut early = Early::new(map, &mut buffers.reserved);
    for range in reserved {
        early.reserve(Pfn(range.start)..Pfn(range.end)).expect("there is room");
    }
    check(Ok((division, early)));
}

/// The ranges that are left to the zones, and their pages.
fn left(division: &Division<'_>, early: &Early<'_>) -> (Vec<Range<Pfn>>, u64) {
    let free: Vec<_> = division.free(early).collect();
    let pages = free.iter().map(|range| range.end.0 - range.start.0).sum();
    (free, pages)
}

/// Node, type, start, pages and present pages of every zone.
fn zones(division: &Division<'_>) -> Vec<(u16, ZoneType, u64, u64, u64)> {
    let zones = division.specs.iter().zip(division.parts);
    zones.map(|(spec, part)| (spec.node.0, spec.kind, spec.start.0, spec.pages, part.present)).collect()
}

#[test]
fn a_machine_of_two_nodes() {
    let memory = [
        (1, 0x9f, 0, false),
        (0x100, 0xb_fff0, 0, false),
        (4 * GIB, 384 * GIB, 0, false),
        (384 * GIB, 768 * GIB, 1, false),
    ];
    with_division(&memory, Rules::default(), &[0x200..0x1200, 5 * GIB..6 * GIB], |made| {
        let (division, early) = made.expect("it is sound");
        let (free, pages) = left(&division, &early);
        assert_eq!(
            zones(&division),
            [
                (0, ZoneType::Dma, 0, 0x1000, 0xf9e),
                (0, ZoneType::Dma32, 0x1000, 0xb_eff0, 0xb_eff0),
                (0, ZoneType::Normal, 4 * GIB, 380 * GIB, 380 * GIB),
                (1, ZoneType::Normal, 384 * GIB, 384 * GIB, 384 * GIB),
            ]
        );
        let deferred: Vec<_> = division.parts.iter().map(|part| part.deferred_from.0).collect();
        assert_eq!(deferred, [0x1000, 0xb_fff0, 1_081_344, 384 * GIB + SECTION_PAGES]);
        assert_eq!(division.nodes[1].first_deferred, Some(Pfn(384 * GIB + SECTION_PAGES)));
        assert_eq!(
            free,
            [
                Pfn(1)..Pfn(0x9f),
                Pfn(0x100)..Pfn(0x200),
                Pfn(0x1200)..Pfn(0xb_fff0),
                Pfn(4 * GIB)..Pfn(5 * GIB),
                Pfn(6 * GIB)..Pfn(384 * GIB),
                Pfn(384 * GIB)..Pfn(768 * GIB),
            ]
        );
        let present = division.parts.iter().map(|part| part.present).sum::<u64>();
        assert_eq!(pages + 0x1000 + GIB, present);
        assert_eq!((division.lost, early.reserved_pages()), (0, 0x1000 + GIB));
    });
}

#[test]
fn interleaved_nodes_have_several_zones() {
    let memory = [
        (0, 4 * GIB, 0, false),
        (4 * GIB, 5 * GIB, 1, false),
        (5 * GIB, 6 * GIB, 0, false),
        (6 * GIB, 7 * GIB + 5, 1, false),
    ];
    with_division(&memory, Rules { dma_end: Pfn(0), ..Rules::default() }, &[], |made| {
        let (division, _) = made.expect("it is sound");
        assert_eq!(
            zones(&division),
            [
                (0, ZoneType::Dma32, 0, 4 * GIB, 4 * GIB),
                (1, ZoneType::Normal, 4 * GIB, GIB, GIB),
                (0, ZoneType::Normal, 5 * GIB, GIB, GIB),
                (1, ZoneType::Normal, 6 * GIB, GIB + 5, GIB + 5),
            ]
        );
        // Node 1's two zones count as one: the second is left for later as a whole.
        let deferred: Vec<_> = division.parts.iter().map(|part| part.deferred_from.0).collect();
        assert_eq!(deferred, [4 * GIB, 4 * GIB + SECTION_PAGES, 5 * GIB + SECTION_PAGES, 6 * GIB]);
    });
}

/// Nodes in any order of their memory are listed by number, each with its pages.
#[test]
fn nodes_are_listed_by_number() {
    let nodes = [3, 0, 2, 1];
    let memory: Vec<_> =
        (0..).zip(nodes).map(|(n, node)| (n * GIB, (n + 1) * GIB - 100 * n, node, false)).collect();
    with_division(&memory, Rules::default(), &[], |made| {
        let (division, _) = made.expect("it is sound");
        let listed: Vec<_> = division.nodes.iter().map(|part| (part.node.0, part.present)).collect();
        assert_eq!(listed, [(0, GIB - 100), (1, GIB - 300), (2, GIB - 200), (3, GIB)]);
    });
}

#[test]
fn sixteen_tebibytes_are_cut() {
    let end = 16 << 28;
    with_division(&[(0, end, 0, false)], Rules::default(), &[], |made| {
        let (division, early) = made.expect("it is sound");
        assert_eq!(division.specs.len(), 2 + 16);
        assert_eq!(division.specs[17].end(), Pfn(end));
        assert!(division.specs.iter().all(|spec| spec.pages <= MAX_ZONE_PAGES));
        assert_eq!(division.parts[3].deferred_from, division.specs[3].start);
        let (free, pages) = left(&division, &early);
        assert_eq!(free.len(), 18, "a range ends where its zone ends");
        assert_eq!(pages, end);
    });
}

#[test]
fn what_shares_a_block_with_another_zone_is_lost() {
    let memory = [
        (0x10_0000, 0x10_0100, 0, false),
        (0x10_0100, 0x10_0300, 1, false),
        (0x10_0300, 0x10_0800, 2, false),
    ];
    with_division(&memory, Rules::default(), &[], |made| {
        let (division, early) = made.expect("it is sound");
        assert_eq!(
            zones(&division),
            [(0, ZoneType::Normal, 0x10_0000, 0x100, 0x100), (2, ZoneType::Normal, 0x10_0400, 0x400, 0x400)]
        );
        assert_eq!(division.lost, 0x300);
        assert_eq!(division.nodes.len(), 3);
        assert_eq!(left(&division, &early).1, 0x500);
    });
}

#[test]
fn movable_memory() {
    let memory = [(0, 8 * GIB, 0, false), (8 * GIB, 9 * GIB, 1, false), (9 * GIB, 16 * GIB, 2, true)];
    let starts = |movable_node, expected: &[(u16, u64)]| {
        with_division(&memory, Rules { movable_node, ..Rules::default() }, &[], |made| {
            let (division, _) = made.expect("it is sound");
            let movable = division.specs.iter().filter(|spec| spec.kind == ZoneType::Movable);
            let found: Vec<_> = movable.map(|spec| (spec.node.0, spec.start.0)).collect();
            assert_eq!(found, expected);
        });
    };
    starts(false, &[]);
    starts(true, &[(2, 9 * GIB)]);
}

/// Below 4 GiB nothing is Movable if the machine has more; a node is Movable from a border of largest blocks on.
#[test]
fn movable_memory_begins_in_the_highest_type_at_a_border() {
    for (start, from) in [(2 * GIB, 4 * GIB), (5 * GIB, 5 * GIB), (5 * GIB + 1, 5 * GIB + 1024)] {
        let memory = [(0, start, 0, false), (start, 8 * GIB, 0, true)];
        with_division(&memory, Rules { movable_node: true, ..Rules::default() }, &[], |made| {
            let (division, _) = made.expect("it is sound");
            assert_eq!(division.nodes[0].movable_from, Some(Pfn(from)));
            let last = division.specs.last().expect("there are zones");
            assert_eq!((last.kind, last.start.0), (ZoneType::Movable, from));
        });
    }
}

#[test]
fn refusals() {
    with_division(&[], Rules::default(), &[], |made| assert_eq!(made.err(), Some(ZonesError::NoMemory)));
    for rules in [
        Rules { section: 512, ..Rules::default() },
        Rules { dma_end: Pfn(5), ..Rules::default() },
        Rules { dma32_end: Pfn(0), ..Rules::default() },
    ] {
        with_division(&[(0, 4096, 0, false)], rules, &[], |made| {
            assert_eq!(made.err(), Some(ZonesError::BadRules))
        });
    }
    let many: Vec<_> =
        (0..9_u16).map(|n| (u64::from(n) * 1024, u64::from(n) * 1024 + 1024, n, false)).collect();
    with_division(&many, Rules::default(), &[], |made| {
        assert_eq!(made.err(), Some(ZonesError::Full("nodes", 8)))
    });
    let many: Vec<_> =
        (0..33_u16).map(|n| (u64::from(n) * 1024, u64::from(n) * 1024 + 1024, n % 2, false)).collect();
    with_division(&many, Rules::default(), &[], |made| {
        assert_eq!(made.err(), Some(ZonesError::Full("zones", 32)))
    });
}

#[test]
fn an_early_allocation_is_not_handed_over() {
    let mut buffers = Arrays::new();
    let mut map = MemoryMap::new(&mut buffers.kinds, &mut buffers.homes);
    map.add(0, 64 << 20, Kind::Usable).expect("there is room");
    let room = Buffers { specs: &mut buffers.specs, parts: &mut buffers.parts, nodes: &mut buffers.nodes };
    let division = Division::new(&map, Rules::default(), room).expect("it is sound");
    let mut early = Early::new(map, &mut buffers.reserved);
    let first = early.alloc(&EarlyRequest::new(100)).expect("it fits");
    assert_eq!(first, Pfn(0x4000 - 100));
    assert_eq!(left(&division, &early).0, [Pfn(0)..Pfn(0x1000), Pfn(0x1000)..first]);
}

/// The last frame decides the machine's highest type, not the frame after it.
#[test]
fn a_machine_that_ends_at_a_border_is_divided_below_it() {
    let rules = Rules { movable_node: true, ..Rules::default() };
    with_division(&[(0, GIB, 0, false), (GIB, 4 * GIB, 0, true)], rules, &[], |made| {
        let (division, _) = made.expect("it is sound");
        let last = division.specs.last().expect("there are zones");
        assert_eq!((last.kind, last.start, last.end()), (ZoneType::Movable, Pfn(GIB), Pfn(4 * GIB)));
    });
}

/// Memory below a zone's first frame that shares its block with another node is lost, also if it ends there.
#[test]
fn no_range_that_is_handed_over_is_empty() {
    let memory = [(0x10_0000, 0x10_0100, 0, false), (0x10_0100, 0x10_1000, 1, false)];
    for reserved in [0x10_0400..0x10_0500, 0x10_0300..0x10_0500, 0x10_0400..0x10_0401] {
        with_division(&memory, Rules::default(), core::slice::from_ref(&reserved), |made| {
            let (division, early) = made.expect("it is sound");
            assert_eq!(division.specs[1].start, Pfn(0x10_0400));
            assert_eq!(
                left(&division, &early).0,
                [Pfn(0x10_0000)..Pfn(0x10_0100), Pfn(reserved.end)..Pfn(0x10_1000)],
                "{reserved:x?}"
            );
        });
    }
}

#[test]
fn each_zone_is_initialised_by_the_cpus_of_its_node() {
    // Boot initialises all of the zone that ends inside a unit.
    let memory = [(0, 3 * GIB - 16, 0, false), (4 * GIB, 6 * GIB, 0, false), (6 * GIB, 8 * GIB, 1, false)];
    with_division(&memory, Rules::default(), &[], |made| {
        let (division, early) = made.expect("there is room");
        let (free, _) = left(&division, &early);
        let mut rests = [const { MaybeUninit::uninit() }; 4];
        let memory = DeferredMemory::<Machine> { zones: &mut rests[..division.specs.len()], slots: &[] };
        let nodes = [0, 1, 1, 1].map(NodeId);
        let deferred = deferred(&division, &free, &nodes, Split::AllCpus, memory);
        let cpus = deferred.zones().iter().map(|zone| (zone.rest().spec.node.0, zone.rest().cpus));
        assert!(
            cpus.clone().all(|(node, cpus)| cpus == [1, 3][usize::from(node)]),
            "{:?}",
            cpus.collect::<Vec<_>>()
        );
    });
}
