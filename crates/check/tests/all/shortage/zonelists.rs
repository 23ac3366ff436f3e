//! From where blocks come: distances, policies, allowed sets, zone types, on machines of up to four nodes.

use core::cell::RefCell;
use framewright::config::Experiment;

use framewright_check::prelude::*;

const ZONE_PAGES: u64 = 1024;

/// No per-CPU lists: each block comes from the zone that the walk finds.
const CONFIG: Config = Config {
    experiment: Experiment { pcp_orders: PcpOrders::None, ..Experiment::framewright() },
    ..Config::framewright()
};

/// Two sockets of two nodes.
#[rustfmt::skip]
const SOCKETS: [u8; 16] = [
    10, 16, 32, 32,
    16, 10, 32, 32,
    32, 32, 10, 16,
    32, 32, 16, 10,
];

/// Four nodes, CPU n on node n; each with the zone types of its set of bits.
fn machine(types: [u8; 4], order: ListOrder) -> World<Plain> {
    let mut zones = Vec::new();
    for (node, types) in types.into_iter().enumerate() {
        for kind in ZoneType::ALL.into_iter().filter(|&kind| types >> kind as u8 & 1 == 1) {
            let start = Pfn(0x10_0000 + zones.len() as u64 * ZONE_PAGES);
            zones.push(ZoneSpec { node: NodeId(node as u16), kind, start, pages: ZONE_PAGES });
        }
    }
    let nodes: Vec<NodeId> = (0..4).map(NodeId).collect();
    let config = CONFIG.but(|config| config.experiment.zonelist_order = order);
    Spec::zones(zones, 4).cpu_nodes(nodes).distances(SOCKETS).config(config).build()
}

/// Takes everything the request can have, one largest block per zone, and says whence each came.
fn drawn(world: &World<Plain>, cpu: usize, request: &Request<'_>) -> Vec<(u16, ZoneType)> {
    let mut from = Vec::new();
    let mut blocks = Vec::new();
    world.on(cpu, |cpu| {
        while let Ok(pfn) = cpu.request(request) {
            let info = world.allocator().frames().info(pfn);
            let spec = world.allocator().zones()[info.zone().index()].spec();
            from.push((spec.node.0, spec.kind));
            blocks.push(pfn);
        }
        for pfn in blocks {
            cpu.must_free(pfn, request.order);
        }
    });
    from
}

fn whole_zone() -> Request<'static> {
    Request::new(order(10), M)
}

#[test]
fn nodes_are_tried_by_distance_and_zones_from_the_top() {
    use ZoneType::{Dma32, Normal};
    let world = machine([0b110, 0b100, 0b100, 0b100], ListOrder::Node);
    let nodes = |cpu, request: &Request<'_>| drawn(&world, cpu, request);
    assert_eq!(nodes(0, &whole_zone()), [(0, Normal), (0, Dma32), (1, Normal), (2, Normal), (3, Normal)]);
    assert_eq!(nodes(3, &whole_zone()), [(3, Normal), (2, Normal), (1, Normal), (0, Normal), (0, Dma32)]);
    assert_eq!(nodes(3, &whole_zone().up_to(Dma32)), [(0, Dma32)]);
    assert_eq!(nodes(1, &whole_zone().with(Flags::THIS_NODE)), [(1, Normal)]);
    let by_zone = machine([0b110, 0b100, 0b100, 0b100], ListOrder::Zone);
    assert_eq!(drawn(&by_zone, 0, &whole_zone()).last(), Some(&(0, Dma32)), "low memory last");
}

/// Zones that a policy allows, written from the definitions: the order of zones, as (node, type).
fn expected(
    lists: &[Vec<(u16, ZoneType)>; 4],
    cpu: usize,
    policy: NodePolicy<'_>,
    allowed: NodeMask,
    this_node: bool,
) -> Vec<(u16, ZoneType)> {
    let fits = |mask: NodeMask| {
        move |&(node, _): &(u16, ZoneType)| mask.has(NodeId(node)) && allowed.has(NodeId(node))
    };
    let populated: NodeMask = lists[0].iter().map(|&(node, _)| NodeId(node)).collect();
    let turn_of = |nodes: NodeMask, turn: u64| {
        let nodes: Vec<NodeId> = nodes.and(allowed).and(populated).iter().collect();
        if nodes.is_empty() { cpu } else { usize::from(nodes[turn as usize % nodes.len()].0) }
    };
    let (start, only) = match policy {
        NodePolicy::Local | NodePolicy::PreferredMany(_) => (cpu, NodeMask::ALL),
        NodePolicy::Preferred(node) => (usize::from(node.0), NodeMask::ALL),
        NodePolicy::Bind(nodes) => (cpu, nodes),
        NodePolicy::Interleave { nodes, turn } | NodePolicy::Weighted { nodes, turn, .. } => {
            (turn_of(nodes, turn), NodeMask::ALL)
        }
    };
    let only = if this_node { only.and(NodeMask::of(NodeId(start as u16))) } else { only };
    let all: Vec<_> = lists[start].iter().copied().filter(fits(only)).collect();
    match policy {
        NodePolicy::PreferredMany(nodes) if !this_node => {
            let first = |yes: bool| move |&(node, _): &(u16, ZoneType)| nodes.has(NodeId(node)) == yes;
            let (a, b) = (all.iter().copied().filter(first(true)), all.iter().copied().filter(first(false)));
            a.chain(b).collect()
        }
        _ => all,
    }
}

/// Every policy, set of nodes and allowed set, on machines with every kind of uneven node.
#[test]
fn every_policy_on_small_machines() {
    for types in [[0b100; 4], [0b110, 0b100, 0b1000, 0b100], [0b111, 0, 0b1100, 0b100], [0b1111; 4]] {
        let world = machine(types, ListOrder::Node);
        let lists: [Vec<(u16, ZoneType)>; 4] = core::array::from_fn(|cpu| drawn(&world, cpu, &whole_zone()));
        for cpu in 0..4 {
            for allowed in [0b1111, 0b0101, 0b1000, 0] {
                let allowed = NodeMask(allowed);
                for set in 0..16 {
                    let nodes = NodeMask(set);
                    let node = NodeId((set % 4) as u16);
                    for policy in [
                        NodePolicy::Local,
                        NodePolicy::Preferred(node),
                        NodePolicy::PreferredMany(nodes),
                        NodePolicy::Bind(nodes),
                        NodePolicy::Interleave { nodes, turn: set + 1 },
                        NodePolicy::Weighted { nodes, weights: &[], turn: set + 3 },
                    ] {
                        for this_node in [false, true] {
                            let flags = if this_node { Flags::THIS_NODE } else { Flags::NONE };
                            let request = whole_zone().on(policy).allowed(allowed).with(flags);
                            let expected = expected(&lists, cpu, policy, allowed, this_node);
                            let case = format!("{types:?} cpu {cpu} {policy:?} {allowed:?} {this_node}");
                            assert_eq!(drawn(&world, cpu, &request), expected, "{case}");
                        }
                    }
                }
            }
        }
        assert_eq!(world.settled().allocated, 0);
    }
}

#[test]
fn unmovable_blocks_stay_out_of_movable_zones() {
    let world = machine([0b1100; 4], ListOrder::Node);
    let unmovable = Request::new(order(10), Migratetype::Unmovable);
    assert!(drawn(&world, 0, &unmovable).iter().all(|&(_, kind)| kind == ZoneType::Normal));
    assert_eq!(drawn(&world, 0, &whole_zone())[0], (0, ZoneType::Movable));
    let mut out = vec![Pfn(0); 8 * ZONE_PAGES as usize];
    let got = world.on(0, |cpu| cpu.alloc_bulk(Order::ZERO, Migratetype::Unmovable, &mut out));
    let kind = |pfn: &Pfn| {
        world.allocator().zones()[world.allocator().frames().info(*pfn).zone().index()].spec().kind
    };
    assert!(out[..got].iter().all(|pfn| kind(pfn) == ZoneType::Normal), "in bulk");
    assert_eq!(got as u64, 4 * ZONE_PAGES);
}

#[test]
fn a_policy_that_names_no_node_is_explained() {
    let world = machine([0b100; 4], ListOrder::Node);
    let request = whole_zone().on(NodePolicy::Bind(NodeMask(1 << 9)));
    let error = world.on(0, |cpu| cpu.request(&request)).expect_err("no such node");
    assert_eq!(error.why, AllocFailure::NoSuchZone);
    let far = whole_zone().on(NodePolicy::Preferred(NodeId(40)));
    assert_eq!(drawn(&world, 1, &far), drawn(&world, 1, &whole_zone()), "a node that is not there");
}

#[test]
fn counters_tell_hits_from_misses() {
    let world = machine([0b100; 4], ListOrder::Node);
    let blocks: Vec<Pfn> =
        world.on(0, |cpu| (0..2).map(|_| cpu.request(&whole_zone()).expect("free")).collect());
    let events = |node: usize| world.allocator().node_events(NodeId(node as u16));
    assert_eq!((events(0).numa_hit, events(0).numa_foreign, events(0).numa_local), (1, 1, 1));
    assert_eq!((events(1).numa_miss, events(1).numa_other, events(1).numa_hit), (1, 1, 0));
    assert_eq!(world.allocator().frames().info(blocks[1]).zone(), ZoneId(1));
}

/// A zone at this distance is reclaimed before the next one is tried, and none further away.
#[test]
fn zone_reclaim_goes_as_far_as_thirty() {
    for (distance, is_near) in [(29, true), (30, true), (31, false)] {
        let config =
            Config::linux_v6_1().bare().with_marks().but(|config| config.zone_reclaim = ZoneReclaimMode::ON);
        let zones = [0, 1].map(|n| normal(n, BASE.0 + u64::from(n) * 4096, 4096));
        let world = Spec::zones(zones, 1).config(config).distances([10, distance, distance, 10]).plain();
        let asked = RefCell::new(Vec::new());
        let reclaimer = reclaimer(4096, |ask, _| {
            asked.borrow_mut().push((ask.by, ask.zone));
            Reclaimed { scanned: 1, freed: 0 }
        });
        let request = page();
        world.on(0, |cpu| {
            while cpu.request(&request).is_ok() {}
            let helpers = Helpers::NONE.with_reclaim(&reclaimer);
            assert!(cpu.alloc_with(&request, &helpers).is_err(), "nothing gives memory back");
        });
        let asked = asked.take();
        assert!(asked.contains(&(By::Zone, ZoneId(0))), "its own, at {distance}");
        assert_eq!(asked.contains(&(By::Zone, ZoneId(1))), is_near, "at {distance}");
    }
}

/// A node without memory takes no turn.
#[test]
fn memory_is_interleaved_over_nodes_that_have_some() {
    let zones = [0, 1, 2].map(|n| normal(n, BASE.0 + u64::from(n) * 1024, 1024));
    let world = Spec::zones(zones, 1).memory([(BASE, 1024), (BASE.add(2048), 1024)]).bare().plain();
    world.on(0, |cpu| {
        // Whichever of them is nearer to the node that has none.
        for (node, turn) in [0, 2].into_iter().flat_map(|node| (0..4).map(move |turn| (node, turn))) {
            let nodes = [NodeId(1), NodeId(node)].into_iter().collect::<NodeMask>();
            let request = Request { nodes: NodePolicy::Interleave { nodes, turn }, ..page() };
            let pfn = cpu.request(&request).expect("memory is left");
            assert_eq!(
                pfn.0 / 1024,
                BASE.0 / 1024 + u64::from(node),
                "turn {turn}: {pfn:?} is not of node {node}"
            );
        }
    });
}
