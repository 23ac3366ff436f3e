//! The promises of `docs/promises.md`, one test for each, named by its number: under the default, as Linux v6.7, without a word
//! per frame, and with several zones.
#![deny(unsafe_code)]

mod cost;
mod flat;
mod marks;
mod memory;
mod page;

use framewright::config::{Config, Engine, Experiment};
use framewright::units::{Order, PAGEBLOCK_PAGES};
use framewright_check::fixture::Spec;

/// A way to configure an allocator: its name, the configuration, how many zones there are.
type Way = (&'static str, fn() -> Config, u64);

/// Ways for which promises hold.
const WAYS: [Way; 4] = [
    ("default", Config::default, 1),
    ("linux_v6_7", Config::linux_v6_7, 1),
    ("compact", || Config { engine: Engine::Compact, ..Config::framewright() }, 1),
    ("four sections", Config::default, 4),
];

/// A world of so many pageblocks for each way, with what `change` makes of its configuration.
fn specs(
    pageblocks: u64,
    cpus: usize,
    change: impl Fn(Config) -> Config,
) -> impl Iterator<Item = (&'static str, Spec)> {
    WAYS.into_iter().map(move |(name, config, sections)| {
        let pages = pageblocks * PAGEBLOCK_PAGES;
        let section_pages = if sections > 1 { (pages / sections).next_power_of_two() } else { 0 };
        // One thread makes all calls: a CPU that is asked answers only later.
        let config = Config {
            experiment: Experiment { remote_drain_spins: 1, section_pages, ..change(config()).experiment },
            ..change(config())
        };
        (name, Spec::one_zone(pages, cpus).config(config))
    })
}

fn order(order: u8) -> Order {
    Order::new(order).expect("an order of a test")
}
