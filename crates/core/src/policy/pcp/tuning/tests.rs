extern crate std;

use super::*;
use crate::policy::testing::Xorshift;

const DEFAULT: Sizing = Sizing { batch: 63, high_min: 252, high_max: 252 };
const TUNED: Sizing = Sizing { batch: 63, high_min: 252, high_max: 16_384 };
const fn traffic(count: u32, free_count: u32, alloc_factor: u8, free_factor: u8) -> Traffic {
    Traffic { count, free_count, alloc_factor, free_factor, freed_high: false }
}

const RULES: [PcpRule; 5] = [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto];

fn order(order: u8) -> Order {
    Order::new(order).expect("an order of the test")
}

/// The sizing a rule would have next to the other two.
fn sizing_of(rule: PcpRule) -> Sizing {
    match rule {
        PcpRule::V5_4 => Sizing { batch: 63, high_min: 378, high_max: 378 },
        PcpRule::V6_1 => DEFAULT,
        PcpRule::V6_7 | PcpRule::V6_16 | PcpRule::Auto => TUNED,
    }
}

/// All sets of orders below the pageblock order: together the shares of lists with eight blocks and more are at
/// most what there is, a block more is a larger share, and no list has more blocks than one of smaller blocks. A
/// list has its share also before it is in use.
#[test]
fn lists_share_what_they_may_hold() {
    for set in 1..1_u32 << 9 {
        let orders = || (0..9).filter(move |k| set >> k & 1 != 0).map(order);
        for pages in [0, 1, 63, 200, 16_384, i32::MAX as u32] {
            let all = Shares::new(pages, orders());
            let shares: std::vec::Vec<_> = orders().map(|order| all.of(order, true)).collect();
            for (order, &share) in orders().zip(&shares) {
                let others = Shares::new(pages, orders().filter(|&beside| beside != order));
                assert_eq!(others.of(order, false), share);
            }
            let large = |&(order, _): &(Order, u32)| pages >> order.get() >= 8;
            let sum: u64 =
                orders().zip(shares.iter().copied()).filter(large).map(|(_, n)| u64::from(n)).sum();
            assert!(sum <= u64::from(pages), "{set:#b} {pages}");
            assert!(sum + 9 > u64::from(pages) || orders().any(|order| pages >> order.get() < 8));
            let takes = |share: &&u32| **share >= 8;
            assert!(shares.iter().filter(takes).is_sorted() || pages < 16_384);
            let blocks = shares.iter().zip(orders()).map(|(share, order)| share >> order.get());
            assert!(blocks.is_sorted_by(|a, b| a >= b));
        }
    }
    let five = Shares::new(200, (0..5).map(order));
    assert_eq!([0, 1, 2, 3, 4].map(|k| five.of(order(k), true)), [24, 30, 37, 48, 60]);
}

#[test]
fn a_fixed_refill_takes_a_batch_by_order() {
    for rule in [PcpRule::V5_4, PcpRule::V6_1] {
        for (k, blocks) in [(0, 63), (1, 31), (2, 15), (3, 7), (4, 3), (5, 2), (9, 2), (10, 2)] {
            let state = Tuning::new(DEFAULT);
            assert_eq!(state.refill(rule, DEFAULT, order(k), Shortage::None), (state, blocks), "order {k}");
        }
    }
    let (_, blocks) = Tuning::new(DEFAULT).refill(PcpRule::V6_1, DEFAULT, order(9), Shortage::None);
    assert_eq!(u64::from(blocks) * order(9).pages(), 1024, "more than high");
}

#[test]
fn the_boot_set_refills_one_block_and_drains_each_free() {
    for rule in RULES {
        for k in 0..=10 {
            let boot = Tuning::new(Sizing::BOOT);
            assert_eq!(boot.refill(rule, Sizing::BOOT, order(k), Shortage::None), (boot, 1));
            let freed = Tuning { traffic: boot.traffic.on_free(rule, 1, 1 << k), ..boot };
            let threshold = freed.threshold(rule, Sizing::BOOT, Shortage::None);
            assert!(freed.traffic.needs_drain(rule, threshold, order(k)));
            let (next, pages) = freed.drain(rule, Sizing::BOOT, order(k), Shortage::None);
            assert_eq!(pages, 1);
            let freed_high = rule.watches_orders() && (1..=3).contains(&k);
            assert_eq!(next, Tuning { traffic: Traffic { freed_high, ..freed.traffic }, ..freed });
        }
    }
}

/// Frees single pages until a drain falls due; returns its quota, with the pages gone.
fn free_until_drain(state: &mut Tuning, rule: PcpRule, sizing: Sizing, pressure: Shortage) -> u32 {
    loop {
        state.traffic = state.traffic.on_free(rule, sizing.batch, 1);
        if state.traffic.needs_drain(rule, state.threshold(rule, sizing, pressure), Order::ZERO) {
            let (next, pages) = state.drain(rule, sizing, Order::ZERO, pressure);
            *state = Tuning { traffic: next.traffic.drained(pages), ..next };
            if pages > 0 {
                return pages;
            }
        }
    }
}

#[test]
fn v5_4_drains_one_batch_at_high() {
    let sizing = sizing_of(PcpRule::V5_4);
    let mut state = Tuning::new(sizing);
    for _ in 0..5 {
        assert_eq!(free_until_drain(&mut state, PcpRule::V5_4, sizing, Shortage::None), 63);
        assert_eq!(state.traffic.count, 378 - 63, "the free that reached 378 drained");
    }
    // The real set of a small zone: batch 1, high 0.
    let tiny = Sizing { batch: 1, high_min: 0, high_max: 0 };
    assert_eq!(free_until_drain(&mut Tuning::new(tiny), PcpRule::V5_4, tiny, Shortage::None), 1);
}

#[test]
fn v6_1_drains_grow_while_nothing_is_allocated() {
    let mut state = Tuning::new(DEFAULT);
    for pages in [63, 126, 189, 189, 189] {
        assert_eq!(free_until_drain(&mut state, PcpRule::V6_1, DEFAULT, Shortage::None), pages);
        assert_eq!(state.traffic.count, 252 - pages);
    }
    assert_eq!(state.traffic.free_factor, 2);
    state.traffic = state.traffic.on_alloc(1);
    assert_eq!(free_until_drain(&mut state, PcpRule::V6_1, DEFAULT, Shortage::None), 126);
    state.traffic = state.traffic.on_alloc(1).on_alloc(1).on_alloc(1);
    assert_eq!(free_until_drain(&mut state, PcpRule::V6_1, DEFAULT, Shortage::None), 63);
}

#[test]
fn v6_1_drains_32_batches_at_most() {
    // As Linux 6.1.192 does in an emulator, with lists of this size.
    let sizing = Sizing { batch: 63, high_min: 7090, high_max: 7090 };
    let mut state = Tuning::new(sizing);
    for pages in [63, 126, 252, 504, 1008, 2016, 2016, 2016] {
        assert_eq!(free_until_drain(&mut state, PcpRule::V6_1, sizing, Shortage::None), pages);
    }
}

#[test]
fn v6_1_gives_all_back_when_high_orders_come_in_a_row() {
    for k in 0..=10 {
        let freed = Tuning { traffic: traffic(70, 0, 0, 1).on_free(PcpRule::V6_1, 63, 1 << k), high: 252 };
        let threshold = freed.threshold(PcpRule::V6_1, DEFAULT, Shortage::None);
        let due = freed.traffic.needs_drain(PcpRule::V6_1, threshold, order(k));
        let (next, pages) = freed.drain(PcpRule::V6_1, DEFAULT, order(k), Shortage::None);
        if (1..=3).contains(&k) {
            assert!(due);
            assert_eq!((next, pages), (freed, 70 + (1 << k)), "order {k}");
        } else {
            assert_eq!(due, k >= 8, "order {k}: only by its count");
            assert_ne!(pages, freed.traffic.count, "order {k}");
        }
        // With no drain before, a high-order free is like any other.
        let fresh = Tuning { traffic: traffic(8, 0, 0, 0), high: 252 };
        assert_eq!(fresh.drain(PcpRule::V6_1, DEFAULT, order(k), Shortage::None), (fresh, 0));
    }
}

#[test]
fn v6_1_keeps_four_batches_at_most_under_reclaim() {
    let sizing = Sizing { batch: 63, high_min: 2821, high_max: 2821 };
    let mut state = Tuning::new(sizing);
    for pages in [63, 126, 189, 189] {
        assert_eq!(free_until_drain(&mut state, PcpRule::V6_1, sizing, Shortage::Reclaim), pages);
    }
    assert_eq!(state.threshold(PcpRule::V6_1, sizing, Shortage::BelowHigh), 2821);
    assert_eq!(sizing_of(PcpRule::V5_4).high_min, {
        let sizing = sizing_of(PcpRule::V5_4);
        Tuning::new(sizing).threshold(PcpRule::V5_4, sizing, Shortage::Reclaim)
    });
}

#[test]
fn a_high_just_above_the_batch_still_drains() {
    for high in 63..=126 {
        let sizing = Sizing { batch: 63, high_min: high, high_max: high };
        let full = Tuning { traffic: traffic(high, 0, 0, 0), high };
        let (_, pages) = full.drain(PcpRule::V6_1, sizing, Order::ZERO, Shortage::None);
        assert_eq!(pages, (high - 63).max(1), "high {high}");
    }
    // The scale grows only while its amount is below the ceiling, high - batch.
    for (high, factor) in [(189, 1), (190, 2)] {
        let sizing = Sizing { batch: 63, high_min: high, high_max: high };
        let full = Tuning { traffic: traffic(high, 0, 0, 1), high };
        let (next, _) = full.drain(PcpRule::V6_1, sizing, Order::ZERO, Shortage::None);
        assert_eq!(next.traffic.free_factor, factor, "high {high}");
    }
}

#[test]
fn auto_refills_double_from_empty() {
    let mut state = Tuning::new(TUNED);
    for blocks in [63, 126, 252, 504, 1008, 2016, 2016] {
        let (next, got) = state.refill(PcpRule::Auto, TUNED, Order::ZERO, Shortage::None);
        assert_eq!(got, blocks);
        state = Tuning { traffic: next.traffic.refilled(got), ..next };
        while state.traffic.count > 0 {
            state.traffic = state.traffic.on_alloc(1);
        }
    }
    assert_eq!(state.high, 252 + 63 + 126 + 252 + 504 + 1008 + 2016 + 2016);
    assert_eq!(state.traffic.alloc_factor, MAX_SCALE);
    state.traffic = state.traffic.on_free(PcpRule::Auto, 63, 1);
    assert_eq!(state.traffic.alloc_factor, 2, "a free halves it");
    let (next, blocks) = state.refill(PcpRule::Auto, TUNED, order(9), Shortage::None);
    assert_eq!((blocks, next.high), (2, state.high + 63), "a huge refill is not scaled");
}

#[test]
fn auto_refills_stop_at_high_and_do_not_raise_it_under_pressure() {
    // No room: a batch all the same, and the factor stays.
    let full = Tuning { traffic: traffic(252, 0, 3, 0), high: 252 };
    for pressure in [Shortage::BelowHigh, Shortage::Reclaim] {
        let (next, blocks) = full.refill(PcpRule::Auto, TUNED, Order::ZERO, pressure);
        assert_eq!((next, blocks), (full, 63));
    }
    let (next, blocks) = full.refill(PcpRule::Auto, TUNED, Order::ZERO, Shortage::None);
    assert_eq!(next, Tuning { traffic: full.traffic, high: 252 + 504 });
    assert_eq!(blocks, 504 - 63, "high - count - batch");
    // A batch is all that a `high` of one batch leaves room for, and none of less than a batch.
    for (high, blocks) in [(63, 63), (62, 1)] {
        let sizing = Sizing { batch: 63, high_min: high, high_max: high };
        let (_, got) = Tuning::new(sizing).refill(PcpRule::Auto, sizing, Order::ZERO, Shortage::None);
        assert_eq!(got, blocks, "high {high}");
    }
    // The factor grows as long as the whole amount fits, to the page.
    for (count, factor) in [(188, 2), (189, 2), (190, 1)] {
        let state = Tuning { traffic: traffic(count, 0, 1, 0), high: 252 };
        let (next, _) = state.refill(PcpRule::Auto, TUNED, Order::ZERO, Shortage::None);
        assert_eq!(next.traffic.alloc_factor, factor, "{count} pages held");
    }
    let top = Tuning { traffic: traffic(0, 0, 5, 0), high: 16_000 };
    assert_eq!(top.refill(PcpRule::Auto, TUNED, Order::ZERO, Shortage::None).0.high, 16_384);
}

#[test]
fn round_robin_takes_turns_and_a_sole_list_gives_all() {
    assert_eq!(round_robin([100, 100, 100], 9), [3, 3, 3]);
    assert_eq!(round_robin([0, 100, 0], 63), [0, 63, 0]);
    assert_eq!(round_robin([100, 0, 0], 63), [63, 0, 0]);
    // Type 1, then type 0 with one turn lost: two of it for one of the other.
    assert_eq!(round_robin([100, 100, 0], 6), [4, 2, 0]);
    assert_eq!(round_robin([1, 2, 3], 100), [1, 2, 3], "no more than there is");
}

#[test]
fn auto_drains_as_much_as_was_freed_in_a_row() {
    let at = |free_count| {
        let full = Tuning { traffic: traffic(1000, free_count, 0, 0), high: 1000 };
        full.drain(PcpRule::Auto, TUNED, Order::ZERO, Shortage::None)
    };
    // The last column: what `high` has become, a batch more than was freed in a row, of which 32 batches count.
    for (run, pages, high) in [
        (0, 63, 1000),
        (62, 63, 1000),
        (63, 63, 1000),
        (64, 64, 1000),
        (500, 500, 1000),
        (937, 937, 1000),
        (938, 937, 1001),
        (2015, 937, 2078),
        (2017, 937, 2079),
        (u32::MAX, 937, 2079),
    ] {
        let (next, quota) = at(run);
        assert_eq!((quota, next.high), (pages, high), "{run} freed in a row");
    }
}

#[test]
fn v6_7_gives_much_back_when_orders_1_to_3_are_freed_in_a_row() {
    let rule = PcpRule::V6_7;
    // Pages on the lists, pages freed in a row before, orders freed: the last one's quota, and `high` then.
    let freed = |count: u32, before: u32, orders: &[u8]| {
        let mut state = Tuning { traffic: traffic(count, before, 0, 0), high: 5000 };
        let mut pages = 0;
        for &k in orders {
            state.traffic = state.traffic.on_free(rule, 63, 1 << k);
            let threshold = state.threshold(rule, TUNED, Shortage::None);
            assert!(k == 0 || state.traffic.needs_drain(rule, threshold, order(k)), "looked at");
            (state, pages) = state.drain(rule, TUNED, order(k), Shortage::None);
            state.traffic = state.traffic.drained(pages);
        }
        (pages, state.high)
    };
    assert_eq!(freed(1000, 55, &[3, 3]), (1000 + 16, 5000 - 2016), "63 were freed before the second");
    assert_eq!(freed(1000, 54, &[3, 3]), (0, 5000), "62 were");
    assert_eq!(freed(3000, 500, &[1, 2]), (2016, 5000 - 2016), "no more than 32 batches");
    assert_eq!(freed(3000, 500, &[1]), (0, 5000), "only one");
    assert_eq!(freed(3000, 500, &[1, 0, 1]), (0, 5000), "not in a row");
    assert_eq!(freed(3000, 500, &[1, 9, 1]), (0, 5000), "nor with a huge one between");
    assert_eq!(freed(46, 500, &[3, 3]), (0, 5000), "62 pages are less than a batch");
    assert_eq!(freed(47, 500, &[3, 3]), (63, 5000 - 2016));
    // What is left of a count that has stopped is enough; `high` does not fall under its minimum.
    assert_eq!(freed(100, 2023, &[3, 3]), (116, 5000 - 2016));
    let low = Tuning { traffic: Traffic { freed_high: true, ..traffic(100, 100, 0, 0) }, high: 300 };
    assert_eq!(low.drain(rule, TUNED, order(1), Shortage::Reclaim).0.high, 252);
    // An allocation between does not end the row.
    let high = Traffic { freed_high: true, ..traffic(500, 300, 0, 0) }.on_alloc(1).on_free(rule, 63, 4);
    let (_, pages) = Tuning { traffic: high, high: 5000 }.drain(rule, TUNED, order(2), Shortage::None);
    assert_eq!(pages, 503);
    // From v6.16 on half of the least `high` must have been freed, too: 126 pages here.
    for (before, pages) in [(188, 0), (189, 116)] {
        let high = Traffic { freed_high: true, ..traffic(112, before, 0, 0) }.on_free(rule, 63, 4);
        let state = Tuning { traffic: high, high: 5000 };
        assert_eq!(state.drain(PcpRule::V6_16, TUNED, order(2), Shortage::None).1, pages);
        assert_eq!(state.drain(PcpRule::V6_7, TUNED, order(2), Shortage::None).1, 116);
    }
    // The other rule of this family does not look.
    let auto = Tuning { traffic: high, high: 5000 }.drain(PcpRule::Auto, TUNED, order(2), Shortage::None);
    assert_eq!(auto.1, 0);
}

#[test]
fn auto_lowers_high_under_pressure() {
    let state = Tuning { traffic: traffic(500, 100, 0, 0), high: 1000 };
    let reclaim = state.drain(PcpRule::Auto, TUNED, Order::ZERO, Shortage::Reclaim);
    assert_eq!((reclaim.0.high, reclaim.1), (900, 100), "four batches are the effective high");
    let below = state.drain(PcpRule::Auto, TUNED, Order::ZERO, Shortage::BelowHigh);
    assert_eq!((below.0.high, below.1), (900, 100));
    let few = Tuning { traffic: traffic(100, 10, 0, 0), high: 1000 };
    let below = few.drain(PcpRule::Auto, TUNED, Order::ZERO, Shortage::BelowHigh);
    assert_eq!((below.0.high, below.1), (937, 0), "a batch at least; too few pages to drain");
    assert_eq!(few.threshold(PcpRule::Auto, TUNED, Shortage::BelowHigh), 0, "so every free must ask");
    // A size that is not tuned stays what it is.
    let fixed = Tuning { traffic: traffic(400, 300, 0, 0), high: 252 };
    let drained = fixed.drain(PcpRule::Auto, DEFAULT, Order::ZERO, Shortage::BelowHigh);
    assert_eq!((drained.0.high, drained.1), (252, 252 - 63));
    let floor = Tuning { traffic: traffic(252, 300, 0, 0), high: 300 };
    let (next, _) = floor.drain(PcpRule::Auto, TUNED, Order::ZERO, Shortage::Reclaim);
    assert_eq!(next.high, 252);
    assert_eq!(next.threshold(PcpRule::Auto, TUNED, Shortage::BelowHigh), 252);
}

#[test]
fn the_tick_shrinks_an_idle_list() {
    let tick = |count, high| {
        let (next, pages) = Tuning { traffic: traffic(count, 0, 0, 0), high }.tick(PcpRule::Auto, TUNED);
        assert_eq!(next.traffic.count, count, "the caller counts what leaves");
        (next.high, pages)
    };
    assert_eq!(tick(0, 8000), (7000, 0), "an eighth at a time");
    assert_eq!(tick(8000, 8000), (7000, 1000));
    assert_eq!(tick(12_000, 8000), (12_000 - 32 * 63, 32 * 63), "no more than 32 batches at once");
    assert_eq!(tick(0, 260), (252, 0), "not under the minimum");
    assert_eq!((tick(1000, 252), tick(5000, 252)), ((252, 748), (252, 4748)), "it does not grow");
    let idle = Tuning { traffic: traffic(400, 0, 0, 0), high: 252 };
    assert_eq!(idle.tick(PcpRule::V6_1, DEFAULT), (idle, 0));
}

#[test]
fn a_new_size_brings_high_within_its_bounds() {
    let state = Tuning { traffic: traffic(5, 1, 2, 0), high: 9000 };
    assert_eq!(state.resized(DEFAULT), Tuning { high: 252, ..state });
    assert_eq!(state.resized(TUNED), state);
    assert_eq!(Tuning { high: 0, ..state }.resized(TUNED).high, 252);
}

/// Random histories under every rule: amounts stay within bounds, pages stay within reach of `high`,
/// and no free that would drain or change something escapes the fast test.
#[test]
fn long_histories_stay_within_bounds() {
    let pressures = [Shortage::None, Shortage::None, Shortage::BelowHigh, Shortage::Reclaim];
    let orders = [0, 0, 0, 0, 1, 2, 3, 9].map(order);
    for rule in RULES {
        for sizing in [sizing_of(rule), Sizing { batch: 1, high_min: 4, high_max: 4 }, Sizing::BOOT] {
            let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
            let mut state = Tuning::new(sizing);
            let mut pressure = Shortage::None;
            for _ in 0..300_000 {
                let order = orders[random.below(8) as usize];
                let pages = order.pages() as u32;
                match random.below(200) {
                    0 => pressure = pressures[random.below(4) as usize],
                    1 => {
                        let (next, excess) = state.tick(rule, sizing);
                        assert!(excess <= next.traffic.count);
                        state = Tuning { traffic: next.traffic.drained(excess), ..next };
                    }
                    2..100 => {
                        if state.traffic.count < pages {
                            let (next, blocks) = state.refill(rule, sizing, order, pressure);
                            assert!(blocks >= 1 && blocks <= sizing.batch.max(2) << MAX_SCALE);
                            state = Tuning { traffic: next.traffic.refilled(blocks * pages), ..next };
                        }
                        state.traffic = state.traffic.on_alloc(pages);
                    }
                    _ => {
                        state.traffic = state.traffic.on_free(rule, sizing.batch, pages);
                        let threshold = state.threshold(rule, sizing, pressure);
                        let due = state.traffic.needs_drain(rule, threshold, order);
                        let (next, quota) = state.drain(rule, sizing, order, pressure);
                        assert!(due || (next, quota) == (state, 0), "{state:?} {rule:?} {pressure:?}");
                        assert!(quota <= next.traffic.count);
                        state = Tuning { traffic: next.traffic.drained(quota), ..next };
                    }
                }
                assert!((sizing.high_min..=sizing.high_max).contains(&state.high));
            }
        }
    }
}
