//! CPUs that wait for the zone lock keep whole pageblocks: what other CPUs see of them meanwhile.

use super::*;

const WORKERS: usize = 2;
const PAGEBLOCKS: u64 = 16;

/// Times that a refill fetched more pageblocks than it laid out, and that one laid out what was kept.
struct Seen {
    fetched: AtomicU64,
    laid_out: AtomicU64,
}

impl Seen {
    const fn new() -> Self {
        Self { fetched: AtomicU64::new(0), laid_out: AtomicU64::new(0) }
    }
}

fn world() -> World<Shuttle> {
    let config = Config { pcp_slots: 1024, pcp_free_part: 2, remote_drain_spins: 3, ..Config::default() };
    let world = Spec::one_zone(PAGEBLOCKS * PAGEBLOCK_PAGES, WORKERS + 1).config(config).build::<Shuttle>();
    world.allocator().resize_pcps_of(ZoneId(0), Sizing { batch: 64, high_min: 64, high_max: 1 << 13 });
    world
}

/// Allocates a block more than three pageblocks have, and frees all in the same order.
fn come_and_go<const ORDER: u8>(world: &World<Shuttle>, n: usize, seen: &Seen) {
    let order = Order::new(ORDER).expect("an order");
    let events = || world.allocator().pcp(ZoneId(0), CpuId(n as u16)).events();
    let before = events();
    let alloc = || world.on(n, |cpu| cpu.alloc(order, M)).expect("memory is left");
    let blocks: Vec<_> = (0..=(3 * PAGEBLOCK_PAGES) >> ORDER).map(|_| alloc()).collect();
    let got = events();
    if before.refills == 0 {
        // A list has room for the blocks of one.
        let pages = (blocks.len() as u64) << ORDER;
        seen.fetched.fetch_add(u64::from(got.refilled_pages > got.refills * PAGEBLOCK_PAGES), Relaxed);
        seen.laid_out.fetch_add(u64::from(got.refills * PAGEBLOCK_PAGES < pages), Relaxed);
    }
    blocks.into_iter().for_each(|pfn| world.on(n, |cpu| cpu.free(pfn, order)).expect("it was allocated"));
}

/// Two CPUs at work, and a third that does `other` beside them.
fn beside(
    executions: usize,
    seen: &'static Seen,
    work: fn(&World<Shuttle>, usize, &Seen),
    other: impl Fn(&World<Shuttle>) + Copy + Send + Sync + 'static,
) {
    let run = move || {
        let world = Arc::new(world());
        let worker = |n| {
            let world = world.clone();
            ::shuttle::thread::spawn(move || (0..2).for_each(|_| work(&world, n, seen)))
        };
        let workers = [worker(0), worker(1)];
        other(&world);
        workers.into_iter().for_each(|worker| worker.join().expect("the thread did not panic"));
        world.settled();
        (0..WORKERS).for_each(|n| work(&world, n, seen));
        world.settled();
        (0..=WORKERS).for_each(|n| world.on(n, |cpu| cpu.drain()));
        assert_eq!(world.settled().allocated, 0);
    };
    let executions = if full() { 100 * executions } else { executions };
    shuttle::random(executions, run);
    shuttle::pct(3, executions, run);
}

fn huge() -> Order {
    Order::new(9).expect("an order")
}

/// No pageblock is handed out as one block: a free of one is refused at any moment, also while it changes from a kept block to
/// pages and back.
#[test]
fn frees_of_kept_pageblocks_are_refused() {
    static SEEN: [Seen; 2] = [const { Seen::new() }; 2];
    for (seen, work) in SEEN.iter().zip([come_and_go::<0>, come_and_go::<3>]) {
        beside(12, seen, work, |world| {
            for _ in 0..200 {
                let start = BASE.add(thread_rng().gen_range(0..PAGEBLOCKS) * PAGEBLOCK_PAGES);
                let freed = world.on(WORKERS, |cpu| cpu.free(start, huge()));
                assert!(freed.is_err(), "{start:?} was handed to nobody");
            }
        });
    }
    let [pages, _] = &SEEN;
    assert!(pages.fetched.load(Relaxed) > 0, "no CPU fetched more than it laid out, in any schedule");
    assert!(pages.laid_out.load(Relaxed) > 0, "no CPU laid out what it kept, in any schedule");
}

/// The same at the instant at which a refill lays out what is kept.
#[test]
fn a_free_of_a_pageblock_that_is_laid_out_is_refused() {
    static RACES: AtomicU64 = AtomicU64::new(0);
    let run = || {
        let world = Arc::new(world());
        let all_at_once = |work: fn(&World<Shuttle>, usize)| {
            let threads: Vec<_> = (0..WORKERS)
                .map(|n| {
                    let world = world.clone();
                    ::shuttle::thread::spawn(move || work(&world, n))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().expect("the thread did not panic"));
        };
        // One of them waits for the lock, and fetches more than it lays out.
        all_at_once(|world, n| _ = alloc(world, n).expect("memory is left"));
        let kept = |n| world.on(n, |cpu| cpu.alloc_hit(huge(), M));
        let Some((n, start)) = (0..WORKERS).find_map(|n| Some((n, kept(n)?))) else { return };
        world.on(n, |cpu| cpu.free(start, huge())).expect("it is allocated");
        // The other one is laid out part by part.
        (1..PAGEBLOCK_PAGES).for_each(|_| _ = alloc(&world, n).expect("it is laid out or kept"));
        let locks = || world.allocator().pcp(ZoneId(0), CpuId(n as u16)).events().lock_acquisitions;
        let before = locks();
        let owner = {
            let world = world.clone();
            ::shuttle::thread::spawn(move || alloc(&world, n))
        };
        for _ in 0..3 {
            let freed = world.on(WORKERS, |cpu| cpu.free(start, huge()));
            assert!(freed.is_err(), "{start:?} was handed to nobody");
        }
        assert_eq!(owner.join().expect("the thread did not panic"), Some(start), "its first page");
        assert_eq!(locks(), before);
        RACES.fetch_add(1, Relaxed);
        world.settled();
    };
    let executions = if full() { 20_000 } else { 200 };
    shuttle::random(executions, run);
    shuttle::pct(3, executions, run);
    assert!(RACES.load(Relaxed) > 0, "no CPU kept a pageblock in any schedule");
}

/// Others find what is kept when they ask for it: as a block, as a range, as a frame that is bad.
#[test]
fn kept_pageblocks_are_everybodys_who_asks() {
    static SEEN: Seen = Seen::new();
    beside(15, &SEEN, come_and_go::<0>, |world| {
        let start = |n: u64| BASE.add(n * PAGEBLOCK_PAGES);
        for _ in 0..3 {
            let n = thread_rng().gen_range(0..PAGEBLOCKS);
            world.allocator().request_drain();
            if world.on(WORKERS, |cpu| cpu.alloc_at(start(n), huge())).is_ok() {
                world.on(WORKERS, |cpu| cpu.free(start(n), huge())).expect("it is allocated");
            }
            let bad = start(n).add(thread_rng().gen_range(0..PAGEBLOCK_PAGES));
            world.on(WORKERS, |cpu| cpu.hwpoison(bad)).expect("no frame was marked before");
            let range = start(n)..start(n).add(PAGEBLOCK_PAGES);
            let taken = world.on(WORKERS, |cpu| cpu.alloc_contig_range(range.clone(), &Helpers::NONE));
            assert!(taken.is_err(), "it has a bad frame");
            // A free at the same instant by a CPU that does not answer may have taken the mark away.
            _ = world.on(WORKERS, |cpu| cpu.unpoison(bad));
        }
    });
    assert!(SEEN.laid_out.load(Relaxed) > 0, "no CPU laid out what it kept, in any schedule");
}
