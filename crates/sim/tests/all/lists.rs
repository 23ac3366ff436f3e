//! Plain lists in simulated memory: what contention costs each of them.

use framewright::Order;
use framewright_sim::bench::{Bench, Case, list};
use framewright_sim::list_locked::Kind;

use crate::socket::socket;

/// Ns of a pair, or of an allocation and a free.
fn pair(kind: Kind, bench: Bench, cores: u16) -> f64 {
    let case = Case { bench, order: Order::ZERO, cores, blocks: 1000, stands_for: 1000 };
    let outcome = list(&socket(26), kind, &case, 1).expect("memory");
    outcome.get_ns.unwrap_or_default() + outcome.put_ns.unwrap_or_default()
}

#[test]
fn a_list_of_ones_own_costs_the_same_on_any_number_of_cores() {
    let cost = |cores| pair(Kind::Local, Bench::Repeat, cores);
    assert!(cost(26) < 1.1 * cost(1), "{} {}", cost(1), cost(26));
}

#[test]
fn whatever_all_cores_share_costs_more_the_more_they_are() {
    for kind in [Kind::Locked, Kind::Cas] {
        let [own, two, eight, all] = [1, 2, 8, 26].map(|cores| pair(kind, Bench::Repeat, cores));
        assert!(own < 0.2 * two, "{kind:?}: alone nothing moves: {own} {two}");
        assert!(two < eight && 2.0 * eight < all, "{kind:?}: {two} {eight} {all}");
    }
}

#[test]
fn every_block_comes_back() {
    for kind in [Kind::Locked, Kind::Cas, Kind::Local] {
        for bench in [Bench::Bulk, Bench::Rand] {
            assert!(pair(kind, bench, 4) > 0.0, "{kind:?} {bench}: it has enough blocks, or it panics");
        }
    }
}

#[test]
fn an_exchanged_head_succeeds_as_often_as_chance_brings_somebody_back() {
    // In the order of arrival one exchange would succeed in each round of all cores: 26 transfers. Where anybody is as likely to be next as
    // anybody else, it takes some sqrt(pi n / 2), which is 6.4 of 26 and 3.5 of 8, until somebody comes again.
    let transfers = |cores: u16| pair(Kind::Cas, Bench::Repeat, cores) / (2.0 * f64::from(cores) * 50.0);
    let [eight, all] = [8, 26].map(transfers);
    assert!((2.5..5.5).contains(&eight) && (4.5..9.0).contains(&all), "{eight} {all}");
}
