//! Mappings that are touched and unmapped.

use framewright::Config;
use framewright::config::Experiment;
use framewright::policy::pcp::Sizing;
use framewright_sim::Ps;
use framewright_sim::bench::Linux;
use framewright_sim::outcome::{Outcome, Pace};
use framewright_sim::page_fault::{Load, holds, run};

use crate::machine::with_tasks as model;

fn load() -> Load {
    Load {
        processes: 8,
        pages: 4096,
        user_ns: 10.0,
        slice: Ps(3_000_000_000),
        pace: Pace::default(),
        cached: 1.0,
    }
}

#[test]
fn a_hold_is_as_long_as_its_batch() {
    let hold = |batch| {
        let allocator = Linux {
            config: Config {
                experiment: Experiment { lock_timing: true, ..Config::linux_v5_4().experiment },
                ..Config::linux_v5_4()
            },
            sizing: Sizing { batch, high_min: 2 * batch, high_max: 2 * batch },
        };
        holds(&model(8, 1), &allocator, &load(), 1).expect("a world")
    };
    let (small, large) = (hold(31), hold(124));
    for n in 0..2 {
        assert!((2.5..4.5).contains(&(large[n] / small[n])), "{small:?} {large:?}");
    }
}

#[test]
fn a_page_takes_the_zone_lock_twice_in_a_batch() {
    let slice = |batch, seed| {
        let allocator = Linux {
            config: Config {
                experiment: Experiment { lock_timing: true, ..Config::linux_v5_4().experiment },
                ..Config::linux_v5_4()
            },
            sizing: Sizing { batch, high_min: 6 * batch, high_max: 6 * batch },
        };
        run(&model(8, 1), &allocator, &load(), seed).expect("a world")
    };
    let per_page = |outcome: &Outcome| {
        let (faults, frees) = (outcome.paid.faults.0, outcome.paid.frees.0);
        assert!(
            faults.abs_diff(frees) < faults / 5,
            "rounds are as they were at the start: {:?}",
            outcome.paid
        );
        outcome.locks[0][0] as f64 / faults as f64
    };
    let (small, large) = (slice(31, 1), slice(63, 1));
    assert!((0.053..0.072).contains(&per_page(&small)), "{}", per_page(&small));
    assert!((0.024..0.036).contains(&per_page(&large)), "{}", per_page(&large));
    assert_eq!(small.events.hash, slice(31, 1).events.hash);
}
