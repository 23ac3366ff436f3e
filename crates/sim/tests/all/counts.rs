//! Counters of a kernel for each CPU, which it adds up now and then.

use framewright::config::Engine;
use framewright::policy::pcp::Sizing;
use framewright::{Config, Order};
use framewright_sim::bench::{Bench, Case, Linux, linux, linux_6_0};

use crate::socket::socket;

/// Times that a CPU's count is added to the totals while it allocates and frees `blocks` blocks.
fn additions(engine: Engine, order: u8, blocks: u64) -> u64 {
    let config = Config { engine, ..linux_6_0() };
    let allocator = Linux { config, sizing: Sizing { batch: 63, high_min: 1700, high_max: 1700 } };
    let order = Order::new(order).expect("an order");
    let case = Case { bench: Bench::Bulk, order, cores: 1, blocks, stands_for: blocks };
    linux(&socket(1), &allocator, &case, 1).expect("a world").events.additions
}

#[test]
fn each_block_of_a_drain_is_counted_before_the_next() {
    // Blocks of order 9 leave the lists four at a time. Each alone is more than a CPU may keep to itself.
    let (each, together) = (additions(Engine::Linux, 9, 64), additions(Engine::Framewright, 9, 64));
    assert!(each > together + 16, "{each} {together}");
}

#[test]
fn large_blocks_are_added_up_each_time_and_small_ones_now_and_then() {
    // 120 pages may stay with a CPU: the eighth block of order 4 is too much, the fourth of order 5, and each of order
    // 7.
    let [few, some, all] = [4, 5, 7].map(|order| additions(Engine::Linux, order, 64));
    assert_eq!([few, some, all], [2 * 8, 2 * 16, 2 * 64]);
}
