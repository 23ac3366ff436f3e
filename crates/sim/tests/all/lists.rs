//! Costs of contention for one line.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use framewright::{Config, NodeId, Order, Pfn, Word as _, ZoneSpec, ZoneType};
use framewright_sim::World;
use framewright_sim::bench::{Bench, Case, list_locked};
use framewright_sim::engine::now;
use framewright_sim::platform::SimWord;
use framewright_sim::world::{Meet, Programs};

use crate::socket::socket;

#[test]
fn a_locked_list_costs_more_the_more_cores_share_it_and_gets_every_block_back() {
    // A pair, or an allocation and a free. It has as many blocks as the cores take, or it panics.
    let pair = |bench, cores| {
        let case = Case { bench, order: Order::ZERO, cores, blocks: 1000, stands_for: 1000 };
        let outcome = list_locked(&socket(26), &case, 1).expect("memory");
        outcome.get_ns.unwrap_or_default() + outcome.put_ns.unwrap_or_default()
    };
    let [alone, two, eight, all] = [1, 2, 8, 26].map(|cores| pair(Bench::Repeat, cores));
    assert!(alone < 0.2 * two, "alone nothing moves: {alone} {two}");
    assert!(two < eight && 2.0 * eight < all, "{two} {eight} {all}");
    for bench in [Bench::Bulk, Bench::Rand] {
        let [alone, four] = [1, 4].map(|cores| pair(bench, cores));
        assert!(alone < 0.5 * four, "{bench}: {alone} {four}");
    }
}

/// Ns until a core has exchanged a word that all of them exchange, again and again.
fn exchange_ns(cores: u16) -> f64 {
    const EXCHANGES: u64 = 2000;
    let zone = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 1 << 14 };
    let model = socket(26);
    let mut world: World =
        World::with_lines(&model, &[zone], Config::framewright(), None, 1, 1 + Meet::LINES).expect("a world");
    let programs = Programs::new(&mut world);
    let head = programs.place("head", SimWord::new(0));
    let took = programs.run(cores, |_, meet, _| {
        meet.wait();
        let start = now();
        for _ in 0..EXCHANGES {
            let mut seen = head.load(Acquire);
            while let Err(found) = head.compare_exchange(seen, seen + 1, AcqRel, Relaxed) {
                seen = found;
            }
        }
        now().since(start).as_ns()
    });
    assert_eq!(head.load(Acquire), u64::from(cores) * EXCHANGES);
    took.iter().sum::<f64>() / took.len() as f64 / EXCHANGES as f64
}

#[test]
fn an_exchange_succeeds_as_often_as_chance_brings_a_core_back() {
    // In the order of arrival one exchange would succeed in each round of all cores: 26 transfers of 50 ns. Where any
    // core is as likely to be next, it takes some sqrt(pi n / 2), which is 6.4 of 26 and 3.5 of 8, until one comes
    // again that knows the last value.
    let transfers = |cores: u16| exchange_ns(cores) / (f64::from(cores) * 50.0);
    let [eight, all] = [8, 26].map(transfers);
    assert!((2.5..5.5).contains(&eight) && (4.5..9.0).contains(&all), "{eight} {all}");
}
