//! The 16-frame zone with per-CPU lists on, gone through completely: every sequence of allocations, frees on
//! either CPU, and drains, judged by the oracle after every step.

use framewright_check::exhaust;
use framewright_check::prelude::*;

const PAGES: u64 = 16;

fn explore(cpus: usize, orders: &[u8], steps: usize, config: Config) -> u64 {
    let spec = Spec::one_zone(PAGES, cpus).config(config);
    exhaust::every(|choices| {
        let world: World<Plain> = spec.build();
        let mut oracle = spec.oracle();
        for _ in 0..steps {
            let cpu = choices.below(cpus);
            let live: Vec<_> = oracle.live().collect();
            let what = choices.below(1 + orders.len() + live.len());
            world.on(cpu, |cpu| match what.checked_sub(1) {
                None => cpu.drain(),
                Some(n) if n < orders.len() => {
                    let order = Order::new(orders[n]).expect("an order");
                    if let Ok(pfn) = cpu.alloc(order, M) {
                        oracle.handed_out(Block { pfn, order }).expect("a block without an owner");
                    }
                }
                Some(n) => {
                    let block = live[n - orders.len()];
                    cpu.must_free(block.pfn, block.order);
                    oracle.took_back(block).expect("it was owned");
                }
            });
            world.check(&oracle);
        }
        refuses_the_rest(&world, &oracle);
        // Whatever happened, all that is free comes together again.
        for block in oracle.live() {
            world.must_free(0, block.pfn, block.order);
        }
        world.drain_all();
        assert_eq!(world.allocator().free_blocks(order(4)), 1);
    })
}

/// No free but those of blocks that are out is accepted, and a refused one changes nothing.
fn refuses_the_rest(world: &World<Plain>, oracle: &framewright_check::oracle::Oracle) {
    let lists = world.free_lists();
    let totals = world.allocator().totals();
    world.on(0, |cpu| {
        for pfn in (BASE.0 - 1..=BASE.0 + PAGES).map(Pfn) {
            for order in (0..=4).filter_map(Order::new) {
                if oracle.judge(Block { pfn, order }).is_some() {
                    assert!(cpu.free(pfn, order).is_err(), "accepted: order {order} at {pfn}");
                }
            }
        }
    });
    assert_eq!((world.free_lists(), world.allocator().totals()), (lists, totals));
}

fn small(engine: Engine) -> Config {
    with_engine(engine)
        .orders(PcpOrders::UpToCostly)
        .fixed(2, 4)
        .slots(2)
        .spins(0)
        .but(|config| config.experiment.pcp_min_refill = 2)
}

#[test]
fn every_short_history_of_one_cpu_agrees_with_the_oracle() {
    for engine in [Engine::Linux, Engine::Framewright, Engine::Compact] {
        let runs = explore(1, &[0, 1, 3], if full() { 7 } else { 6 }, small(engine));
        println!("{runs} sequences");
    }
}

/// Of a zone that is one block of order 4, that block is on the list of an order that Linux has none for.
#[test]
fn so_does_every_one_with_lists_of_all_orders() {
    let config = small(Engine::Framewright).orders(PcpOrders::UpToHuge);
    let runs = explore(1, &[0, 4], if full() { 8 } else { 7 }, config);
    println!("{runs} sequences");
}

#[test]
fn every_short_history_of_two_cpus_agrees_with_the_oracle() {
    for engine in [Engine::Linux, Engine::Framewright, Engine::Compact] {
        let runs = explore(2, &[0, 2], if full() { 6 } else { 5 }, small(engine));
        println!("{runs} sequences");
    }
}
