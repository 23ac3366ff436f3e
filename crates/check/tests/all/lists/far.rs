//! Frees of blocks of another zone than the one that the CPU begins at.

use framewright::config::Experiment;
use std::sync::Arc;

use ::shuttle::thread::spawn;
use framewright_check::prelude::*;

/// Two nodes, on which every other CPU is.
fn world<P: Platform<Pin = OwnedPin>>(pages: u64, cpus: usize, config: Config) -> World<P> {
    let zone = |node: u16| {
        let start = BASE.add(u64::from(node) * pages / 2);
        ZoneSpec { node: NodeId(node), kind: ZoneType::Normal, start, pages: pages / 2 }
    };
    let nodes: Vec<_> = (0..cpus as u16).map(|cpu| NodeId(cpu % 2)).collect();
    let world: World<P> = Spec::zones([zone(0), zone(1)], cpus).cpu_nodes(nodes).config(config).build();
    let first = |cpu| world.allocator().zonelist_of(CpuId(cpu))[0];
    assert_ne!(first(0), first(cpus as u16 - 1), "the CPUs begin at different zones");
    world
}

fn alloc<P: Platform<Pin = OwnedPin>>(world: &World<P>, cpu: usize, order: Order) -> Pfn {
    world.must_alloc(cpu, order)
}

fn free<P: Platform<Pin = OwnedPin>>(
    world: &World<P>,
    cpu: usize,
    pfn: Pfn,
    order: Order,
) -> Option<FreeFailure> {
    world.on(cpu, |cpu| cpu.free(pfn, order)).err().map(|error| error.why)
}

/// A CPU that begins at another zone may free what a CPU hands out, once; wrong frees are refused as in the own zone, whether the block
/// came to a list, was set aside, or went back to the zone.
#[test]
fn wrong_frees_of_another_zone_are_refused() {
    let world: World<Plain> = world(1 << 14, 2, Config::default());
    for (number, rounds) in [(0, 600), (3, 100), (4, 40), (9, 3)] {
        let order = order(number);
        for round in 0..rounds {
            let blocks: Vec<Pfn> = (0..3).map(|_| alloc(&world, 1, order)).collect();
            let other = if number == 0 { 1 } else { number - 1 };
            let wrong = free(&world, 0, blocks[0], self::order(other));
            assert!(wrong.is_some(), "order {number} in round {round}: freed as order {other}");
            for &pfn in &blocks {
                assert_eq!(
                    free(&world, 0, pfn, order),
                    None,
                    "order {number} in round {round}: a right free"
                );
                for cpu in [0, 1] {
                    let again = free(&world, cpu, pfn, order);
                    assert!(
                        matches!(again, Some(FreeFailure::NotAllocated | FreeFailure::Reserved)),
                        "order {number} in round {round}: freed twice on CPU {cpu}: {again:?}"
                    );
                }
            }
        }
        assert_eq!(world.settled().allocated, 0);
    }
    assert!(MAX_ORDER.pages() <= 1 << 13, "each zone has a block of the largest order");
}

/// What CPU 1 has not handed out yet is refused, before CPU 0 has looked at that CPU's list, and after.
#[test]
fn what_waits_on_a_list_of_another_zone_is_refused() {
    let world: World<Plain> = world(1 << 14, 2, Config::default());
    let mut handed_out = Vec::new();
    for round in 0..400 {
        let first = alloc(&world, 1, Order::ZERO);
        let waiting: Vec<Pfn> =
            (0..4).map(|n| first.add(n + 1)).filter(|pfn| !handed_out.contains(pfn)).collect();
        let accepted = waiting.iter().find(|&&pfn| free(&world, 0, pfn, Order::ZERO).is_none());
        assert_eq!(accepted, None, "round {round}: no CPU was handed it");
        handed_out.push(first);
        if round % 3 > 0 {
            assert_eq!(free(&world, 0, handed_out.remove(0), Order::ZERO), None, "round {round}");
        }
    }
    assert_eq!(world.settled().allocated, handed_out.len() as u64);
}

/// Of four CPUs the last begins at the other zone than the first and the third.
const AWAY: usize = 3;

/// Of two CPUs that free a block of a third one's zone at once, one is refused, and nothing is lost.
#[test]
fn one_of_two_frees_at_once_is_refused_in_another_zone() {
    let run = || {
        let pcp_fixed = Some(PcpFixed { batch: 4, high: 12 });
        let config = Config {
            experiment: Experiment {
                pcp_slots: 16,
                pcp_fixed,
                remote_drain_spins: 3,
                ..Experiment::default()
            },
            ..Config::default()
        };
        let world = Arc::new(world::<Shuttle>(1 << 11, AWAY + 1, config));
        for n in 0..12 {
            let pfn = alloc(&world, AWAY, Order::ZERO);
            assert_eq!(free(&world, n % 2 * 2, pfn, Order::ZERO), None);
        }
        let blocks: Vec<Pfn> = (0..6).map(|_| alloc(&world, AWAY, Order::ZERO)).collect();
        let freers: Vec<_> = [0, 2]
            .into_iter()
            .map(|cpu| {
                let (world, blocks) = (world.clone(), blocks.clone());
                spawn(move || {
                    blocks.iter().filter(|&&pfn| free(&world, cpu, pfn, Order::ZERO).is_none()).count()
                })
            })
            .collect();
        let more: Vec<Pfn> = (0..6).map(|_| alloc(&world, AWAY, Order::ZERO)).collect();
        let freed: usize = freers.into_iter().map(|freer| freer.join().expect("no panic")).sum();
        // One that was freed may have been handed out again meanwhile, and freed once more.
        assert!(freed >= blocks.len(), "{freed} of {} frees were accepted", blocks.len());
        let left = blocks.len() + more.len() - freed;
        assert_eq!(world.settled().allocated, left as u64);
    };
    schedules(200, run);
}
