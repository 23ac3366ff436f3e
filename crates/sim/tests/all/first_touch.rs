//! First touches of memory.

use framewright::Config;
use framewright::config::{Experiment, RefillCheck};
use framewright::policy::pcp::Sizing;
use framewright_sim::Ps;
use framewright_sim::bench::Linux;
use framewright_sim::first_touch::{Case, Warmed, run};

use crate::machine::with_tasks as model;

fn warmed(refill_check: RefillCheck, case: &Case) -> Warmed {
    let allocator = Linux {
        config: Config {
            experiment: Experiment { refill_check, lock_timing: true, ..Config::linux_v6_1().experiment },
            ..Config::linux_v6_1()
        },
        sizing: Sizing { batch: 63, high_min: 1600, high_max: 1600 },
    };
    run(&model(8, 1), &allocator, case, 1).expect("a world")
}

#[test]
fn checks_under_the_lock_disturb_others_only_until_all_is_warm() {
    let case = Case { huge_cpus: 4, huge_pages: 24, base_cpus: 4, afterwards: Ps(3_000_000_000) };
    let under = warmed(RefillCheck::UnderZoneLock, &case);
    let off = warmed(RefillCheck::Off, &case);
    let hold = |warmed: &Warmed| warmed.lock[2] as f64 / warmed.lock[0] as f64;
    assert!(hold(&under) > 1.3 * hold(&off), "{under:?} {off:?}");
    let afterwards = under.alloc_ns[2] / off.alloc_ns[2];
    let meanwhile = under.alloc_ns[1] / off.alloc_ns[1];
    assert!(meanwhile > afterwards, "meanwhile {meanwhile}, afterwards {afterwards}");
}

#[test]
fn clearing_large_memory_hides_where_it_is_checked() {
    // Nothing but first touches: bandwidth is what counts.
    let case = Case { huge_cpus: 8, huge_pages: 24, base_cpus: 0, afterwards: Ps(0) };
    let [under, off] = [RefillCheck::UnderZoneLock, RefillCheck::Off].map(|check| warmed(check, &case));
    let ratio = under.gbps / off.gbps;
    assert!((0.9..1.02).contains(&ratio), "{under:?} {off:?}");
    assert!((60.0..104.0).contains(&off.gbps), "at most eight times 12.8 GB/s: {off:?}");
}
