//! Costs of a page that is allocated and freed in bulk, beside one that is allocated and freed alone, in one
//! interleaved run: `cargo run --release -p framewright-host --example bulk`.

use std::time::Instant;

use framewright_host::framewright::config::Engine;
use framewright_host::{Arena, Backing, Config, Migratetype, Order, Pfn};

/// Many times what the lists hold, so that both ways get at the zone.
const PAGES: usize = 1 << 18;
const ROUNDS: usize = 25;

fn main() {
    for engine in [Engine::Framewright, Engine::Linux] {
        let config = Config { engine, ..Config::default() };
        let described = Arena::builder().pages(2 * PAGES as u64).backing(Backing::Described);
        let arena: Arena = described.config(config).build().expect("address space");
        let cpu = arena.attach().expect("a slot");
        let movable = Migratetype::Movable;
        let mut pages = vec![Pfn(0); PAGES];
        // By round: alone get and put, in bulk get and put, and put in an order that visits all pageblocks in turn.
        let mut times: [Vec<f64>; 6] = Default::default();
        let clock = |into: &mut Vec<f64>, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            into.push(start.elapsed().as_nanos() as f64 / PAGES as f64);
        };
        let visit: Vec<usize> = (0..PAGES).map(|n| n * 40_503 % PAGES).collect();
        for _ in 0..ROUNDS {
            for shuffled in [false, true] {
                let [single, get, put] = &mut times[..3] else { unreachable!("six lists") };
                clock(single, &mut || {
                    pages
                        .iter_mut()
                        .for_each(|page| *page = cpu.alloc(Order::ZERO, movable).expect("memory"));
                });
                let order: Vec<Pfn> =
                    if shuffled { visit.iter().map(|&n| pages[n]).collect() } else { pages.clone() };
                let alone = if shuffled { &mut *put } else { &mut *get };
                let give_back = |pfn: &Pfn| {
                    // SAFETY: they are ours, and have no memory.
                    unsafe { cpu.free(*pfn, Order::ZERO) }.expect("ours");
                };
                clock(alone, &mut || order.iter().for_each(give_back));
                let [single, get, put] = &mut times[3..] else { unreachable!("six lists") };
                clock(single, &mut || assert_eq!(cpu.alloc_bulk(Order::ZERO, movable, &mut pages), PAGES));
                let order: Vec<Pfn> =
                    if shuffled { visit.iter().map(|&n| pages[n]).collect() } else { pages.clone() };
                let bulk = if shuffled { put } else { get };
                // SAFETY: as above.
                clock(bulk, &mut || unsafe { cpu.free_bulk(Order::ZERO, &order) }.expect("ours"));
            }
        }
        // The best of all rounds: what others do on the machine only adds to it.
        let best = |times: &mut Vec<f64>| times.iter().copied().fold(f64::INFINITY, f64::min);
        let [get, put, random, bulk_get, bulk_put, bulk_random] = times.each_mut().map(best);
        println!("{engine:?}, ns a page: alone, in bulk, share");
        for (what, alone, bulk) in
            [("get", get, bulk_get), ("put", put, bulk_put), ("put shuffled", random, bulk_random)]
        {
            println!("  {what:<13}{alone:>7.1}{bulk:>7.1}{:>7.2}", bulk / alone);
        }
    }
}
