//! The zone lock, all kinds in all three places: mutual exclusion, publication of what the last holder
//! wrote, and that no CPU waits endlessly. loom goes through every execution of two or three threads; the
//! same models must fail for locks that are broken on purpose.

use std::sync::Arc;

use framewright::sync::{Locked, QueueNode, Slot, Waiter};
use framewright_check::platform::loom::{self, Flaw};
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

const KINDS: [LockKind; 3] = [LockKind::Ticket, LockKind::Queued, LockKind::Parking];
const TWO: loom::Bounds = loom::Bounds { preemptions: 4, spins: 6 };
const THREE: loom::Bounds = loom::Bounds { preemptions: 3, spins: 6 };
const PLACES: [LockPlace; 3] = [LockPlace::WithOrder0Lists, LockPlace::OtherEnd, LockPlace::OwnLine];

/// A counter on each side of the lock's data, and the queue's nodes.
struct Guarded<P: Platform> {
    counters: Locked<P, Slot<P, u64>, Slot<P, u64>>,
    nodes: Vec<QueueNode<P>>,
}

impl<P: Platform> Guarded<P> {
    fn new(kind: LockKind, place: LockPlace, cpus: u16) -> Self {
        Self {
            counters: Locked::new(place, kind, Slot::new(0), Slot::new(0)),
            nodes: (0..cpus).map(|_| QueueNode::new()).collect(),
        }
    }

    /// Adds one to both counters as `cpu`, or without one.
    fn count(&self, cpu: Option<u16>) {
        let waiter = Waiter { nodes: &self.nodes, cpu: cpu.map(CpuId) };
        self.counters.with(waiter, |hot, cold, _waited| {
            assert_eq!(hot.get(), cold.get(), "another holder is between the two");
            hot.set(hot.get() + 1);
            cold.set(cold.get() + 1);
        });
    }

    fn total(&self) -> u64 {
        self.counters.with(Waiter { nodes: &self.nodes, cpu: None }, |hot, cold, _| {
            assert_eq!(hot.get(), cold.get());
            hot.get()
        })
    }
}

/// Each of `who` counts `times` times, all together; nothing is lost.
fn loom_model(
    kind: LockKind,
    place: LockPlace,
    who: &'static [Option<u16>],
    times: u64,
    bounds: loom::Bounds,
) {
    loom::model(bounds.widened_if_full(), move || {
        let guarded = ::loom::sync::Arc::new(Guarded::<Loom>::new(kind, place, who.len() as u16));
        let work = |cpu: Option<u16>| {
            let guarded = guarded.clone();
            move || (0..times).for_each(|_| guarded.count(cpu))
        };
        let (mine, others) = who.split_first().expect("one thread counts");
        let threads: Vec<_> = others.iter().map(|&cpu| ::loom::thread::spawn(work(cpu))).collect();
        work(*mine)();
        for thread in threads {
            thread.join().expect("the thread did not panic");
        }
        assert_eq!(guarded.total(), who.len() as u64 * times, "an increment was lost");
    });
}

#[test]
fn two_cpus_exclude_each_other_wherever_the_lock_lies() {
    for kind in KINDS {
        for place in PLACES {
            loom_model(kind, place, &[Some(0), Some(1)], 2, TWO);
        }
    }
}

#[test]
fn three_cpus_exclude_each_other() {
    for kind in KINDS {
        loom_model(kind, LockPlace::OwnLine, &[Some(0), Some(1), Some(2)], 1, THREE);
    }
}

#[test]
fn a_caller_without_a_cpu_joins_in() {
    for kind in KINDS {
        loom_model(kind, LockPlace::OwnLine, &[Some(0), Some(1), None], 1, THREE);
    }
}

#[test]
fn eight_cpus_under_random_schedules() {
    for kind in KINDS {
        let body = move || {
            let guarded = Arc::new(Guarded::<Shuttle>::new(kind, LockPlace::OwnLine, 8));
            // The ninth has no CPU.
            shuttle_team(&guarded, 9, |guarded, cpu| {
                (0..4).for_each(|_| guarded.count((cpu < 8).then_some(cpu as u16)));
            });
            assert_eq!(guarded.total(), 9 * 4, "an increment was lost");
        };
        schedules(if loom::full() { 20_000 } else { 150 }, body);
    }
}

/// The models are not blind: they fail where words keep no order, and where a read-modify-write is a load and a store.
#[test]
fn locks_over_flawed_words_are_found() {
    const FOUND: [&str; 4] =
        ["Causality violation", "an increment was lost", "another holder", "number of branches"];
    for kind in KINDS {
        let two = &[Some(0), Some(1)];
        must_fail(&format!("{kind:?}, relaxed"), &FOUND, move || {
            loom::lack(Flaw::Relaxed);
            loom_model(kind, LockPlace::OwnLine, two, 2, TWO);
        });
        must_fail(&format!("{kind:?}, torn"), &FOUND, move || {
            loom::lack(Flaw::Torn);
            loom_model(kind, LockPlace::OwnLine, two, 2, TWO);
        });
    }
}
