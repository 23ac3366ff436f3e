//! The promises of `docs/promises.md`, one test for each, named by its number: under the default, as Linux v6.7, without a word
//! per frame, and with several zones.
#![deny(unsafe_code)]

mod cost;
mod flat;
mod marks;
mod memory;
mod page;

use framewright::config::{Config, Engine, Experiment};
use framewright::units::{NodeId, Order, PAGEBLOCK_PAGES, ZoneType};
use framewright::zone::ZoneSpec;
use framewright_check::fixture::{BASE, Spec};

/// A way to configure an allocator: its name, the configuration, how many zones there are.
type Way = (&'static str, fn() -> Config, u64);

/// Ways for which promises hold.
const WAYS: [Way; 4] = [
    ("default", Config::default, 1),
    ("linux_v6_7", Config::linux_v6_7, 1),
    ("compact", || Config { engine: Engine::Compact, ..Config::framewright() }, 1),
    ("four zones", Config::default, 4),
];

/// A world of so many pageblocks for each way, with what `change` makes of its configuration.
fn specs(
    pageblocks: u64,
    cpus: usize,
    change: impl Fn(Config) -> Config,
) -> impl Iterator<Item = (&'static str, Spec)> {
    WAYS.into_iter().map(move |(name, config, zones)| {
        let all = ZoneSpec {
            node: NodeId(0),
            kind: ZoneType::Normal,
            start: BASE,
            pages: pageblocks * PAGEBLOCK_PAGES,
        };
        let zones: Vec<_> = all.divided(zones).collect();
        // One thread makes all calls: a CPU that is asked answers only later.
        let config = Config {
            experiment: Experiment { remote_drain_spins: 1, ..change(config()).experiment },
            ..change(config())
        };
        (name, Spec::zones(zones, cpus).config(config))
    })
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order of a test")
}
