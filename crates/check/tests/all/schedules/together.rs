//! Refills that one CPU makes for others of its group: nobody waits for ever, and nothing is given twice or lost.

use super::*;

/// Two groups: CPUs 0 to 15, and 16 and 17.
const ALL: usize = 18;
const AT_WORK: [usize; 4] = [0, 3, 15, 17];
const PAGEBLOCKS: u64 = 24;

/// A node without a CPU at work, and the one that all use, with so many pageblocks.
fn world(pageblocks: u64) -> World<Shuttle> {
    let zone = |node: u16, start: Pfn, pageblocks: u64| ZoneSpec {
        node: NodeId(node),
        kind: ZoneType::Normal,
        start,
        pages: pageblocks * PAGEBLOCK_PAGES,
    };
    let zones = [zone(0, BASE, 2), zone(1, BASE.add(2 * PAGEBLOCK_PAGES), pageblocks)];
    // So little that each CPU comes back for more, and lists of which one pageblock is a small part.
    let config = Config { pcp_slots: 1024, pcp_free_part: 1, remote_drain_spins: 3, ..Config::default() };
    let spec = Spec::zones(zones, ALL).cpu_nodes(vec![NodeId(1); ALL]);
    let world = spec.config(config).build::<Shuttle>();
    world.allocator().resize_pcps_of(ZoneId(1), Sizing { batch: 64, high_min: 64, high_max: 1 << 14 });
    world
}

/// Some CPUs at once take `blocks` of what `of` says for each, and give all back. Returns by CPU how often it refilled its lists
/// of the zone that all use, and how often it took that zone's lock.
fn take_and_give_back(
    world: &Arc<World<Shuttle>>,
    blocks: u64,
    of: fn(usize) -> (Order, Migratetype),
) -> Vec<(u64, u64)> {
    let oracle = Arc::new(SharedOracle::new(BASE, (2 + PAGEBLOCKS) * PAGEBLOCK_PAGES));
    let worker = |n: usize| {
        let (world, oracle) = (world.clone(), oracle.clone());
        ::shuttle::thread::spawn(move || {
            let (order, migratetype) = of(n);
            let block = |pfn| Block { pfn, order };
            let take = |_| {
                let pfn = world.on(n, |cpu| cpu.alloc(order, migratetype)).ok()?;
                oracle.handed_out(block(pfn));
                Some(pfn)
            };
            let own: Vec<Pfn> = (0..blocks).map_while(take).collect();
            let events = world.allocator().pcp(ZoneId(1), CpuId(n as u16)).events();
            for pfn in own {
                oracle.giving_back(block(pfn));
                world.on(n, |cpu| cpu.free(pfn, order)).expect("it is allocated");
            }
            (events.refills, events.lock_acquisitions)
        })
    };
    let workers = AT_WORK.map(worker);
    let done = workers.into_iter().map(|worker| worker.join().expect("the thread did not panic"));
    let counts = done.collect();
    assert_eq!(world.settled().allocated, 0);
    AT_WORK.into_iter().for_each(|n| world.on(n, |cpu| cpu.drain()));
    let account = world.settled();
    assert_eq!((account.allocated, account.on_pcp), (0, 0));
    counts
}

fn in_all_schedules(executions: usize, run: impl Fn() + Copy + Send + Sync + 'static) {
    let executions = if full() { 100 * executions } else { executions };
    shuttle::random(executions, run);
    shuttle::pct(3, executions, run);
}

/// Of CPUs that want memory at once, some get it by another's hold of the lock; those of another group do not wait for them.
#[test]
fn one_cpu_refills_for_others() {
    static GIVEN: AtomicU64 = AtomicU64::new(0);
    in_all_schedules(60, || {
        let world = Arc::new(world(PAGEBLOCKS));
        let counts = take_and_give_back(&world, 3, |_| (Order::ZERO, M));
        assert!(counts.iter().all(|&(refills, _)| refills == 1), "{counts:?}");
        assert_eq!(counts[3].1, 1, "nobody is there who could take for it");
        GIVEN.fetch_add(counts.iter().filter(|&&(_, locks)| locks == 0).count() as u64, Relaxed);
    });
    assert!(GIVEN.load(Relaxed) > 0, "no CPU was given anything in any schedule");
}

/// Each gets what it asked for, of its own order and type, also if there are no whole pageblocks of the type.
#[test]
fn orders_and_types_go_together() {
    in_all_schedules(60, || {
        let world = Arc::new(world(PAGEBLOCKS));
        take_and_give_back(&world, 3, |n| match n {
            0 => (Order::ZERO, Migratetype::Unmovable),
            3 => (Order::new(3).expect("an order"), M),
            15 => (Order::new(5).expect("an order"), Migratetype::Reclaimable),
            _ => (Order::ZERO, M),
        });
    });
}

/// Where there is not enough for all, whoever gets nothing goes on by itself: all memory is had, and no more.
#[test]
fn who_gets_nothing_goes_on_alone() {
    static LEFT: AtomicU64 = AtomicU64::new(0);
    in_all_schedules(15, || {
        let world = Arc::new(world(3));
        let counts = take_and_give_back(&world, 2 * PAGEBLOCK_PAGES, |_| (Order::ZERO, M));
        LEFT.fetch_add(counts.iter().map(|&(refills, _)| refills).sum(), Relaxed);
    });
    assert!(LEFT.load(Relaxed) > 0);
}
