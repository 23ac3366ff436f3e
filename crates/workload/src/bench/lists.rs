//! Blocks of one order in preallocated lists: hot pair, bulk, random put, churn, and the first and the last in memory
//! that fills.

use std::sync::Mutex;

use crate::random::Rng;

use super::stage::{Done, Meeting as _, Stage};
use super::team::{Agreed, fitting};
use super::{Case, Measurement, NONE, Scale, Tally, opaque};
use crate::target::{Mobility, TargetCpu};

/// Blocks that a hot pair's thread takes first, at most; it keeps every second one.
const NEIGHBOURS: usize = 128;

/// Timed passes over a list in one round, at most: more would spend their time meeting at the gate.
const MOST_PASSES: u64 = 32;

/// See [`Workload::HotPair`](super::Workload::HotPair).
pub(super) fn hot_pair<S: Stage>(stage: &S, case: &Case, scale: &Scale) -> Measurement {
    let order = case.order;
    let neighbours = scale.blocks(order, case.cpus).min(NEIGHBOURS);
    let agreed = Agreed::new();
    let done = stage.on_cpus(case.cpus, |_, gate, cpu| {
        let mut held = vec![NONE; neighbours];
        get(cpu, order, &mut held);
        for hole in held.iter_mut().skip(1).step_by(2) {
            put(cpu, order, &[core::mem::replace(hole, NONE)]);
        }
        gate.wait();
        let count = agreed.warm_up::<S>(gate, scale.operations, |step| _ = pairs(cpu, order, step));
        let mut tally = Tally::default();
        tally.time::<S>(count, || pairs(cpu, order, count));
        gate.wait();
        put(cpu, order, &held);
        [tally]
    });
    summary(case, done, ["hot_pair_ns"])
}

/// Does the work with the order as a constant, if it is one of those that are measured by default. Callers mostly know
/// the order when they write a call, and the compiler then drops what others need: so every allocator is asked here.
macro_rules! of_known_order {
    ($order:ident, $work:expr) => {
        match $order {
            0 => {
                let $order = 0;
                $work
            }
            3 => {
                let $order = 3;
                $work
            }
            9 => {
                let $order = 9;
                $work
            }
            _ => $work,
        }
    };
}
pub(super) use of_known_order;

fn pairs<C: TargetCpu>(cpu: &mut C, order: u8, count: u64) -> u64 {
    of_known_order!(order, {
        let mut failures = 0;
        for _ in 0..count {
            match cpu.alloc(order, Mobility::Movable) {
                Some(block) => {
                    opaque(cpu);
                    cpu.free(block, order);
                }
                None => failures += 1,
            }
            opaque(cpu);
        }
        failures
    })
}

/// See [`Workload::Bulk`](super::Workload::Bulk).
pub(super) fn bulk<S: Stage>(stage: &S, case: &Case, scale: &Scale) -> Measurement {
    let order = case.order;
    let blocks = scale.blocks(order, case.cpus);
    let agreed = Agreed::new();
    let done = stage.on_cpus(case.cpus, |_, gate, cpu| {
        let mut list = vec![NONE; blocks];
        let start = S::now();
        get(cpu, order, &mut list);
        put(cpu, order, &list);
        let passes = agreed.on(gate, passes(scale, blocks).min(fitting(1, S::since(start))));
        let (mut gets, mut puts) = (Tally::default(), Tally::default());
        for _ in 0..passes {
            gate.wait();
            let failures = gets.time::<S>(blocks as u64, || get(cpu, order, &mut list));
            gate.wait();
            let start = S::now();
            put(cpu, order, &list);
            puts.add(S::since(start), blocks as u64 - failures, 0);
        }
        [gets, puts]
    });
    summary(case, done, ["bulk_get_ns", "bulk_put_ns"])
}

/// See [`Workload::RandomPut`](super::Workload::RandomPut).
pub(super) fn random_put<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    let order = case.order;
    let blocks = scale.blocks(order, case.cpus);
    let all = Mutex::new(vec![NONE; blocks * case.cpus]);
    let agreed = Agreed::new();
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut rng = Rng::of_thread(scale.seed, round, index);
        let mut list = vec![NONE; blocks];
        let mine = index * blocks..(index + 1) * blocks;
        let mut pass = || {
            let failures = get(cpu, order, &mut list);
            lock(&all)[mine.clone()].copy_from_slice(&list);
            gate.wait();
            if index == 0 {
                rng.shuffle(&mut lock(&all));
            }
            gate.wait();
            list.copy_from_slice(&lock(&all)[mine.clone()]);
            let count = list.iter().filter(|&&block| block != NONE).count() as u64;
            gate.wait();
            let mut tally = Tally::default();
            let start = S::now();
            put(cpu, order, &list);
            tally.add(S::since(start), count, failures);
            // The next pass allocates: not while another thread still measures.
            gate.wait();
            tally
        };
        let start = S::now();
        pass();
        let passes = agreed.on(gate, passes(scale, blocks).min(fitting(1, S::since(start))));
        [Tally::sum((0..passes).map(|_| pass()))]
    });
    summary(case, done, ["random_put_ns"])
}

/// See [`Workload::Churn`](super::Workload::Churn).
pub(super) fn churn<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    let order = case.order;
    let blocks = scale.blocks(order, case.cpus);
    let agreed = Agreed::new();
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut rng = Rng::of_thread(scale.seed, round, index);
        let mut list = vec![NONE; blocks];
        get(cpu, order, &mut list);
        gate.wait();
        let count = agreed.warm_up::<S>(gate, scale.operations, |step| {
            replace(cpu, order, &mut list, &mut rng, step);
        });
        let mut tally = Tally::default();
        tally.time::<S>(count, || replace(cpu, order, &mut list, &mut rng, count));
        gate.wait();
        put(cpu, order, &list);
        [tally]
    });
    summary(case, done, ["churn_ns"])
}

/// Sixteenths of a thread's share of the memory that it holds in [`filled`].
const HELD: [usize; 4] = [0, 2, 8, 15];

/// See [`Workload::Filled`](super::Workload::Filled).
pub(super) fn filled<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    let order = case.order;
    let share = scale.blocks(order, case.cpus) * 2;
    let agreed = [(); 2 * HELD.len()].map(|()| Agreed::new());
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut rng = Rng::of_thread(scale.seed, round, index);
        let mut held = Vec::new();
        let mut tallies = [Tally::default(); 2 * HELD.len()];
        for ((sixteenths, tallies), agreed) in
            HELD.into_iter().zip(tallies.chunks_mut(2)).zip(agreed.chunks(2))
        {
            let before = held.len();
            held.resize(share * sixteenths / 16, NONE);
            get(cpu, order, &mut held[before..]);
            gate.wait();
            let count = agreed[0].warm_up::<S>(gate, scale.operations, |step| _ = pairs(cpu, order, step));
            tallies[0].time::<S>(count, || pairs(cpu, order, count));
            let mut list = vec![NONE; ((share - held.len()) / 2).clamp(1, NEIGHBOURS)];
            get(cpu, order, &mut list);
            gate.wait();
            let count = agreed[1].warm_up::<S>(gate, scale.operations, |step| {
                replace(cpu, order, &mut list, &mut rng, step);
            });
            tallies[1].time::<S>(count, || replace(cpu, order, &mut list, &mut rng, count));
            gate.wait();
            put(cpu, order, &list);
        }
        put(cpu, order, &held);
        tallies
    });
    let names = ["pair_0", "churn_0", "pair_2", "churn_2", "pair_8", "churn_8", "pair_15", "churn_15"];
    summary(case, done, names.map(|name| format!("filled_{name}_ns")))
}

/// Frees a random block of the list and allocates one in its place, `steps` times.
fn replace<C: TargetCpu>(cpu: &mut C, order: u8, list: &mut [u64], rng: &mut Rng, steps: u64) -> u64 {
    of_known_order!(order, {
        let mut failures = 0;
        for _ in 0..steps {
            let index = rng.index(list.len());
            let slot = &mut list[index];
            if *slot != NONE {
                cpu.free(*slot, order);
                opaque(cpu);
            }
            *slot = cpu.alloc(order, Mobility::Movable).unwrap_or(NONE);
            failures += u64::from(*slot == NONE);
            opaque(cpu);
        }
        failures
    })
}

/// Fills the list with blocks; says how many could not be had.
fn get<C: TargetCpu>(cpu: &mut C, order: u8, list: &mut [u64]) -> u64 {
    of_known_order!(order, {
        let mut failures = 0;
        for slot in list {
            *slot = cpu.alloc(order, Mobility::Movable).unwrap_or(NONE);
            failures += u64::from(*slot == NONE);
            opaque(cpu);
        }
        failures
    })
}

/// Frees the blocks of the list, in its order.
fn put<C: TargetCpu>(cpu: &mut C, order: u8, list: &[u64]) {
    of_known_order!(order, {
        for &block in list {
            if block != NONE {
                cpu.free(block, order);
                opaque(cpu);
            }
        }
    });
}

/// Timed passes over a list of that many blocks, so that about `scale.operations` are timed.
fn passes(scale: &Scale, blocks: usize) -> u64 {
    scale.operations.div_ceil(blocks as u64).clamp(1, MOST_PASSES)
}

fn lock(list: &Mutex<Vec<u64>>) -> std::sync::MutexGuard<'_, Vec<u64>> {
    list.lock().expect("no thread panics while it holds the list")
}

/// The figures of a case from what its threads counted, one tally per metric.
pub(super) fn summary<const N: usize>(
    case: &Case,
    done: Done<[Tally; N]>,
    names: [impl AsRef<str>; N],
) -> Measurement {
    let mut measurement = Measurement { pinned: done.pinned, ..Measurement::default() };
    for (metric, name) in names.into_iter().enumerate() {
        let tally = Tally::sum(done.results.iter().map(|tallies| tallies[metric]));
        measurement.operations += tally.operations;
        measurement.failures += tally.failures;
        measurement.metrics.push(tally.metric(case.key(name.as_ref())));
    }
    measurement
}
