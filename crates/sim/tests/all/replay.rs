//! Recorded runs on virtual CPUs.

use framewright::config::Experiment;
use framewright::policy::pcp::Sizing;
use framewright::{Config, Migratetype, Order};
use framewright_sim::Ps;
use framewright_sim::bench::Linux;
use framewright_sim::replay::{Act, Copy, Op, Outcome, run};

use crate::testing::round;

fn linux() -> Linux {
    let sizing = Sizing { batch: 63, high_min: 378, high_max: 378 };
    Linux {
        config: Config {
            experiment: Experiment { lock_timing: true, ..Config::linux_v6_1().experiment },
            ..Config::linux_v6_1()
        },
        sizing,
    }
}

/// Each CPU allocates blocks and frees what its neighbour allocated.
fn copy(threads: usize, blocks: u32) -> Copy {
    let op = |slot, act| Op { gap: Ps(100_000), slot, order: Order::ZERO, act };
    let calls = |thread: u32| {
        let allocs = (0..blocks).map(|n| op(thread * blocks + n, Act::Alloc(Migratetype::Movable)));
        let next = (thread + 1) % threads as u32;
        allocs.chain((0..blocks).map(|n| op(next * blocks + n, Act::Free))).collect()
    };
    let threads: Vec<Vec<Op>> = (0..threads as u32).map(calls).collect();
    let slots = threads.len() * blocks as usize;
    Copy { threads, slots, pages: slots as u64 }
}

#[test]
fn more_copies_wait_longer_for_the_lock_and_the_same_seed_gives_the_same() {
    let model = round(4);
    let single = run(&model, &linux(), &[copy(2, 2000)], 1).expect("it fits");
    assert_eq!(single, run(&model, &linux(), &[copy(2, 2000)], 1).expect("it fits"));
    assert_eq!(single.pages, 4000);
    assert!(
        single.alloc_ns > 0.0 && single.free_ns > 0.0 && single.share > 0.0 && single.share < 1.0,
        "{single:?}"
    );
    let two = run(&model, &linux(), &[copy(2, 2000), copy(2, 2000)], 1).expect("it fits");
    assert_eq!(two.pages, 8000);
    let wait = |outcome: &Outcome| outcome.lock[1] as f64 / outcome.lock[0].max(1) as f64;
    assert!(wait(&two) > wait(&single), "{two:?} {single:?}");
}

/// Every second block of each order stays, so that the next order has no block: twice the pages in use do not suffice
/// (Robson, "Bounds for some functions concerning dynamic storage allocation", 1974).
#[test]
fn a_program_that_fragments_its_memory_gets_as_much_as_that_takes() {
    const PAGES: u64 = 1 << 14;
    let (mut ops, mut live, mut slots) = (Vec::new(), Vec::new(), 0);
    let mut used = 0;
    for order in (0..=10).filter_map(Order::new) {
        let op = |slot, order, act| Op { gap: Ps(100_000), slot, order, act };
        while used + order.pages() <= PAGES {
            ops.push(op(slots, order, Act::Alloc(Migratetype::Movable)));
            live.push((slots, order));
            slots += 1;
            used += order.pages();
        }
        let mut keep = Vec::new();
        for (n, (slot, order)) in live.drain(..).enumerate() {
            if n % 2 == 0 {
                keep.push((slot, order));
            } else {
                ops.push(op(slot, order, Act::Free));
                used -= order.pages();
            }
        }
        live = keep;
    }
    let count = |wanted: fn(Act) -> bool| {
        ops.iter().filter(|op| wanted(op.act)).map(|op| op.order.pages()).sum::<u64>()
    };
    let allocated = count(|act| matches!(act, Act::Alloc(_)));
    let fragments = Copy { threads: vec![ops], slots: slots as usize, pages: PAGES };
    let outcome = run(&round(4), &linux(), &[fragments], 1).expect("it fits");
    assert_eq!(outcome.pages, allocated);
}
