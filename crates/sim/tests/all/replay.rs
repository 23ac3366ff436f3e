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
