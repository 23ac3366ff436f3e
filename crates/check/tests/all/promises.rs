//! The promises of `docs/promises.md`, one test for each, named by its number: under the default, as Linux v6.7,
//! without a word per frame, and with four sections, each where the promise holds there.

mod cliffs;
mod cost;
mod flat;
mod marks;
mod memory;

use framewright_check::prelude::*;

/// A way to configure an allocator: its name, the configuration, how many sections its zone has.
type Way = (&'static str, fn() -> Config, u64);

/// Ways for which promises hold.
const WAYS: [Way; 4] = [
    ("default", Config::default, 1),
    ("linux_v6_7", Config::linux_v6_7, 1),
    ("compact", || with_engine(Engine::Compact), 1),
    ("four sections", Config::default, 4),
];

/// A world of `pageblocks` pageblocks for each way, with what `change` makes of its configuration.
fn specs(
    pageblocks: u64,
    cpus: usize,
    change: impl Fn(Config) -> Config,
) -> impl Iterator<Item = (&'static str, Spec)> {
    WAYS.into_iter().map(move |(name, config, sections)| {
        let pages = pageblocks * PAGEBLOCK_PAGES;
        let section_pages = if sections > 1 { (pages / sections).next_power_of_two() } else { 0 };
        // One thread makes all calls: a CPU that is asked answers only later.
        let config = change(config()).spins(1).sections(section_pages);
        (name, Spec::one_zone(pages, cpus).config(config))
    })
}
