//! Take one cause away, and the effect that it is said to have must go.

use framewright::config::LockKind::{Queued, Ticket};
use framewright::config::LockPlace::{OwnLine, WithOrder0Lists};
use framewright_sim::engine::{Access, touch};
use framewright_sim::memory::{Mapping, Room};
use framewright_sim::{Model, Ps, Simulator};

use crate::machine::{bulk, locked, pair_ns, socket};

const CORES: u16 = 16;

/// How much longer a pair takes with the lock among the lists than with the lock in a line of its own.
fn place_effect(model: &Model) -> f64 {
    let time = |place| pair_ns(&bulk(model, &locked(Ticket, place, 31, 186), CORES, 1500, 1));
    time(WithOrder0Lists) / time(OwnLine)
}

#[test]
fn without_coherence_the_place_of_the_lock_is_all_one() {
    let model = socket(CORES);
    let (with, without) = (place_effect(&model), place_effect(&model.without_coherence()));
    assert!(with > 1.2, "pollers disturb the lists: {with}");
    assert!((without - 1.0).abs() < 0.02, "nothing moves, nothing disturbs: {without}");
}

#[test]
fn the_place_of_a_queued_lock_matters_as_far_as_stores_are_waited_for() {
    // One CPU at the head of the queue polls the lock's line: each store of the holder beside the lock needs the line
    // back.
    let effect = |model: &Model| {
        let hold = |place| {
            let outcome = bulk(model, &locked(Queued, place, 31, 186), CORES, 1500, 1);
            outcome.lock[2] as f64 / outcome.lock[0] as f64
        };
        hold(WithOrder0Lists) / hold(OwnLine)
    };
    let model = socket(CORES);
    let (with, without) = (effect(&model), effect(&Model { store_exposed: 0.0, ..model.clone() }));
    assert!(with > 1.1, "stores beside the lock are waited for: {with}");
    assert!(without < 1.0 + (with - 1.0) / 2.0, "with {with}, without {without}");
}

#[test]
fn slower_cores_take_longer_where_no_line_moves_and_little_where_lines_do() {
    let model = socket(CORES);
    let effect = |cores| {
        let time = |model: &Model| pair_ns(&bulk(model, &locked(Queued, OwnLine, 3, 18), cores, 1500, 1));
        time(&model.with_slower_cores(1.6)) / time(&model)
    };
    let (alone, contended) = (effect(1), effect(CORES));
    assert!((1.4..1.6).contains(&alone), "memory and other levels take as long as before: {alone}");
    assert!(contended < 1.0 + (alone - 1.0) / 2.0, "alone {alone}, contended {contended}");
}

#[test]
fn without_hand_over_small_batches_cost_less_more() {
    // Lists as small as early boot leaves them, and as large as they should be.
    let effect = |model: &Model| {
        let time = |batch, high| pair_ns(&bulk(model, &locked(Queued, OwnLine, batch, high), CORES, 1500, 1));
        time(7, 42) / time(63, 378)
    };
    let model = socket(CORES);
    let (with, without) = (effect(&model), effect(&model.without_hand_over()));
    assert!(with > 1.3, "{with}");
    assert!(without < 1.0 + (with - 1.0) / 2.0, "with {with}, without {without}");
}

#[test]
fn the_kind_of_lock_changes_the_order_of_scaling() {
    let hold_and_wait = |kind, cores| {
        let outcome = bulk(&socket(CORES), &locked(kind, OwnLine, 1, 4), cores, 600, 1);
        pair_ns(&outcome) / f64::from(cores)
    };
    let growth = |kind| hold_and_wait(kind, CORES) / hold_and_wait(kind, 4);
    let (ticket, queued) = (growth(Ticket), growth(Queued));
    assert!(queued < 1.2, "a hand-over costs the same, however many wait: {queued}");
    assert!(ticket > queued * 1.15, "every waiter refetches at each hand-over: {ticket}, queued {queued}");
}

/// GB/s at which `cpus` CPUs together read memory that no CPU has touched.
fn read_gbps(model: &Model, cpus: usize) -> f64 {
    const LINES: usize = 20_000;
    let mut room = Room::default();
    let memory = room.add::<[u8; 64]>(cpus * LINES);
    let mapping = Mapping::new(room.bytes()).expect("memory");
    let start = memory.at(&mapping).addr().get();
    let mut simulator = Simulator::new(model.clone(), mapping, 1).expect("memory");
    let programs = (0..cpus).map(|n| -> Box<dyn FnOnce()> {
        Box::new(move || (0..LINES).for_each(|line| touch(start + (n * LINES + line) * 64, 8, Access::Read)))
    });
    let report = simulator.run(programs.collect(), Ps(0));
    (cpus * LINES * 64) as f64 / report.mean().as_ns()
}

#[test]
fn with_infinite_bandwidth_reading_scales_without_bound() {
    let model = socket(32);
    let bounded = [1, 32].map(|cpus| read_gbps(&model, cpus));
    assert!((12.5..13.1).contains(&bounded[0]), "one core has its own bound: {bounded:?}");
    assert!((150.0..190.0).contains(&bounded[1]), "all have the node's: {bounded:?}");
    let free = [1, 32].map(|cpus| read_gbps(&model.with_infinite_bandwidth(), cpus));
    assert!(free[1] > 31.0 * free[0], "{free:?}");
}

#[test]
fn writing_large_memory_for_the_first_time_is_the_same_under_every_lock() {
    // A negative control: where a huge page is cleared at the speed of memory, the allocator does not show.
    let time = |kind| {
        let mut model = socket(CORES);
        // 2 MiB at a sixteenth of the node's bandwidth.
        model.fitted.alloc_ns = 2_097_152.0 / (130.0 / 16.0);
        let case = framewright_sim::bench::Case {
            bench: framewright_sim::bench::Bench::Bulk,
            order: framewright::Order::new(9).expect("an order"),
            cores: CORES,
            blocks: 32,
            stands_for: 32,
        };
        let allocator = locked(kind, OwnLine, 63, 378);
        framewright_sim::bench::linux(&model, &allocator, &case, 1).expect("a world").get_ns.expect("timed")
    };
    let (ticket, queued) = (time(Ticket), time(Queued));
    assert!((ticket / queued - 1.0).abs() < 0.01, "ticket {ticket}, queued {queued}");
}

#[test]
fn a_free_waits_as_long_in_a_short_run_as_in_a_long_one() {
    // Each CPU drains its lists once or twice, or eight times.
    let put = |blocks| {
        let outcome = bulk(&socket(8), &locked(Queued, OwnLine, 63, 600), 8, blocks, 1);
        outcome.put_ns.expect("timed")
    };
    let [short, long] = [800, 4800].map(put);
    assert!((short / long - 1.0).abs() < 0.1, "{short} {long}");
}
