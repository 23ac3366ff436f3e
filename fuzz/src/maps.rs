//! Firmware memory maps: any ranges, nodes and reservations, then a boot, workers and all, if the memory is small
//! enough to be described.

use core::ops::Range;

use framewright::boot::deferred::UnitStep;
use framewright::boot::early::{Early, EarlyRequest, Side};
use framewright::boot::map::{Home, Kind, MemoryMap};
use framewright::boot::spans::Span;
use framewright::boot::zones::{Buffers, Division, NodePart, Part, Rules};
use framewright::defer::How;
use framewright::policy::init::Split;
use framewright::units::{NodeId, Pfn, ZoneId, ZoneType};
use framewright::{Config, Plan, ZoneSpec};
use framewright_check::fixture::{RestSpec, Spec};
use framewright_check::platform::plain::Plain;

use crate::check_refusal;
use framewright_check::history::{Bytes, Draw};

const KINDS: [Kind; 6] =
    [Kind::Usable, Kind::AcpiTables, Kind::Persistent, Kind::AcpiStorage, Kind::Reserved, Kind::Unusable];

/// Frames that a world is made of, at most.
const DESCRIBED: u64 = 1 << 15;

/// Mostly within some MiB, sometimes anything.
fn address(bytes: &mut Bytes<'_>) -> u64 {
    match bytes.byte() {
        255 => u64::from_le_bytes([(); 8].map(|()| bytes.byte())),
        254 => (bytes.below(65_536) as u64) << 30,
        small => (u64::from(small) << 19) + ((bytes.byte() as u64) << 9),
    }
}

fn rules(bytes: &mut Bytes<'_>) -> Rules {
    let dma = bytes.below(5) as u64 * 1024;
    let movable_node = match bytes.below(3) {
        0 => false,
        1 => true,
        // So that what comes after it keeps its meaning: there was a third rule, with a number.
        _ => address(bytes) & 1 == 1,
    };
    Rules {
        dma_end: Pfn(dma),
        dma32_end: Pfn(dma + bytes.below(5) as u64 * 1024),
        movable_node,
        section: 1024 << bytes.below(3),
        defer: !bytes.byte().is_multiple_of(8),
    }
}

/// Makes a map of `input`, allocates from it, divides it, and boots it.
///
/// # Panics
/// Something does that should not, or a number does not add up.
pub fn run(input: &[u8]) -> bool {
    let mut bytes = Bytes(input);
    let rules = rules(&mut bytes);
    // Room for a few is room for too few now and then.
    let (mut kinds, mut homes) = ([Span::default(); 24], [Span::default(); 12]);
    let mut map = MemoryMap::new(&mut kinds, &mut homes);
    for _ in 0..bytes.below(16) {
        let said = map.add(address(&mut bytes), address(&mut bytes), bytes.pick(&KINDS));
        said.err().into_iter().for_each(|error| check_refusal(&error.to_string()));
    }
    for _ in 0..bytes.below(8) {
        let home = Home { node: NodeId(bytes.below(4) as u16), hot_pluggable: bytes.byte() % 2 == 0 };
        let said = map.add_node(address(&mut bytes), address(&mut bytes), home);
        said.err().into_iter().for_each(|error| check_refusal(&error.to_string()));
    }
    check_map(&map);
    let none = ZoneSpec { node: NodeId(0), kind: ZoneType::Dma, start: Pfn(0), pages: 0 };
    let (mut specs, mut parts, mut nodes) = ([none; 255], [Part::default(); 255], [NodePart::default(); 5]);
    let room = Buffers { specs: &mut specs, parts: &mut parts, nodes: &mut nodes };
    let division = match Division::new(&map, rules, room) {
        Ok(division) => division,
        Err(error) => {
            check_refusal(&error.to_string());
            return false;
        }
    };
    assert_eq!(division.parts.iter().map(|part| part.present).sum::<u64>() + division.lost, map.pages());
    Plan::new(division.specs, &[NodeId(0)], &Config::default()).expect("zones that an allocator takes");
    let mut reserved = [Span::default(); 16];
    let mut early = Early::new(map, &mut reserved);
    allocate(&mut early, &mut bytes);
    let free: Vec<_> = division.free(&early).collect();
    let left = early.map().pages() - early.reserved_pages();
    assert!(pages(&free) <= left && left <= pages(&free) + division.lost);
    boot(&division, &free, &mut bytes);
    true
}

fn check_map(map: &MemoryMap<'_>) {
    let pieces: Vec<_> = map.memory().collect();
    assert!(pieces.iter().all(|piece| piece.range.start < piece.range.end));
    assert!(pieces.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start), "{pieces:?}");
    assert!(map.trimmed_bytes() <= 2 * 4096 * map.kinds().len() as u64);
    assert!(map.unclaimed_pages() <= map.pages());
}

fn allocate(early: &mut Early<'_>, bytes: &mut Bytes<'_>) {
    for _ in 0..bytes.below(24) {
        let before = early.reserved_pages();
        let start = Pfn(address(bytes) >> 12);
        let range = start..Pfn(start.0.saturating_add(bytes.below(4096) as u64));
        let result = match bytes.below(4) {
            0 | 1 => early.reserve(range),
            _ => {
                let node = NodeId(bytes.below(5) as u16);
                let request = EarlyRequest {
                    align: 1 << bytes.below(12),
                    near: bytes.pick(&[None, Some(node), Some(node)]),
                    from: bytes.pick(&[Side::Bottom, Side::Top]),
                    hot_pluggable: bytes.byte().is_multiple_of(2),
                    ..EarlyRequest::new(bytes.number().into())
                };
                early.alloc(&request).map(|first| {
                    assert_eq!(early.reserved_pages(), before + request.pages, "it was free memory");
                    assert!(first.0.is_multiple_of(request.align));
                })
            }
        };
        if let Err(error) = result {
            check_refusal(&error.to_string());
            assert_eq!(early.reserved_pages(), before, "nothing has changed");
        }
    }
}

fn pages(ranges: &[Range<Pfn>]) -> u64 {
    ranges.iter().map(|range| range.end.0 - range.start.0).sum()
}

fn boot(division: &Division<'_>, free: &[Range<Pfn>], bytes: &mut Bytes<'_>) {
    let (first, last) = (division.specs[0], division.specs[division.specs.len() - 1]);
    if last.end().0 - first.start.0 > DESCRIBED {
        return;
    }
    let rests = RestSpec::of(division, free, || 1 + bytes.below(8) as u64);
    let split = bytes.pick(&[Split::OneThread, Split::AllCpus, Split::AllCpusBySection]);
    let how = How { split, section: division.rules.section };
    let nodes: Vec<_> = rests.iter().map(|rest| rest.spec.node).collect();
    let zones = rests.len();
    let world = Spec::deferred(how, rests, 3, 1).build::<Plain>();
    let booting = world.allocator().begin().expect("it is the first time");
    let mut team = [None, None, None];
    for _ in 0..bytes.below(64) {
        let (place, node) = (&mut team[bytes.below(3)], nodes[bytes.below(zones)]);
        match bytes.below(8) {
            0 => *place = None,
            1 => drop(world.allocator().grow(ZoneId(bytes.below(zones) as u8), 1, None)),
            _ => {
                if place.is_none() {
                    *place = booting.worker(node);
                }
                if let Some(worker) = place
                    && worker.step() == UnitStep::Idle
                {
                    worker.move_to(node);
                }
            }
        }
    }
    world.settled();
    drop(team);
    booting.run();
    booting.finish().expect("nothing is left");
    assert_eq!(world.settled().free, pages(free));
}

/// A PC, nodes that interleave, and ranges that overlap.
pub fn seeds() -> Vec<Vec<u8>> {
    let seed = |rules: [u8; 5], ranges: &[[u8; 5]], nodes: &[[u8; 6]], rest: &[u8]| {
        let mut seed = rules.to_vec();
        seed.push(ranges.len() as u8);
        seed.extend(ranges.iter().flatten());
        seed.push(nodes.len() as u8);
        seed.extend(nodes.iter().flatten());
        seed.extend(rest);
        seed
    };
    let steps: Vec<u8> = (0..200).map(|n: u8| n.wrapping_mul(37)).collect();
    let pc = [[0, 0, 1, 60, 0], [1, 60, 0, 200, 4], [2, 0, 200, 0, 0], [150, 7, 20, 3, 4]];
    vec![
        seed([1, 0, 1, 0, 1], &pc[..2], &[], &[]),
        seed([2, 0, 2, 1, 1], &pc, &[[0, 1, 0, 0, 80, 0], [1, 1, 80, 0, 80, 0]], &steps),
        seed(
            [0, 1, 0, 0, 1],
            &[[0, 0, 220, 9, 0]],
            &[[0, 1, 0, 0, 60, 0], [1, 0, 60, 0, 60, 0], [0, 0, 120, 0, 50, 0]],
            &steps,
        ),
        seed([0, 0, 0, 2, 1], &[[3, 1, 90, 2, 0], [40, 3, 80, 5, 0], [90, 1, 4, 4, 2]], &[], &steps),
    ]
}
