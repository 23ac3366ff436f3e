//! One thread allocates, another frees.

use super::lists::of_known_order;
use super::ring::{Receiver, Ring, Sender};
use super::stage::{Meeting, SharedWord, Stage};
use super::team::{Agreed, fitting};
use super::{Case, Measurement, NONE, Scale, Tally, opaque};
use crate::target::{Mobility, TargetCpu};

/// Blocks of the warm-up, at most.
const MOST_WARM: u64 = 4096;

/// In the ring: no more comes in this transfer. No frame has this number.
const END: u64 = u64::MAX - 1;

/// See [`Workload::Handoff`](super::Workload::Handoff). CPUs 2k and 2k + 1 are a pair: the even one allocates.
pub(super) fn handoff<S: Stage>(stage: &S, case: &Case, scale: &Scale) -> Measurement {
    let order = case.order;
    // The blocks on their way fill half of the memory at most.
    let room = scale.blocks(order, case.cpus);
    let rings: Vec<_> = (0..case.cpus / 2).map(|_| stage.place(Ring::<S::Word>::new(room))).collect();
    let agreed = Agreed::new();
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let ring = &rings[index / 2];
        let (mut blocks, mut alone) = (Tally::default(), Tally::default());
        if index % 2 == 0 {
            let mut sender = ring.sender(gate);
            let start = S::now();
            let warm = scale.operations.div_ceil(8).min(MOST_WARM);
            allocate(cpu, order, &mut sender, warm);
            let count = agreed.on(gate, scale.operations.min(fitting(warm, S::since(start))));
            let start = S::now();
            let failures = allocate(cpu, order, &mut sender, count);
            blocks.add(S::since(start), count, failures);
            gate.wait();
            let start = S::now();
            (0..count).for_each(|number| sender.send(number));
            sender.send(END);
            alone.add(S::since(start), count, 0);
        } else {
            let mut receiver = ring.receiver(gate);
            release(cpu, order, &mut receiver);
            let count = agreed.on(gate, u64::MAX);
            let start = S::now();
            release(cpu, order, &mut receiver);
            blocks.add(S::since(start), count, 0);
            gate.wait();
            let start = S::now();
            while core::hint::black_box(receiver.receive()) != END {}
            alone.add(S::since(start), count, 0);
        }
        [blocks, alone]
    });

    let mut measurement = Measurement { pinned: done.pinned, ..Measurement::default() };
    for (metric, name) in ["handoff_ns", "handoff_ring_ns"].into_iter().enumerate() {
        // A pair is done when its slower end is: usually the receiver, which waits for the last block.
        let pairs = done.results.chunks(2).map(|pair| Tally {
            ns: pair[0][metric].ns.max(pair[1][metric].ns),
            operations: pair[0][metric].operations,
            failures: pair[0][metric].failures,
        });
        let tally = Tally::sum(pairs);
        if metric == 0 {
            measurement.operations = tally.operations;
        }
        measurement.failures += tally.failures;
        measurement.metrics.push(tally.metric(case.key(name)));
    }
    measurement
}

/// Allocates and sends `count` times, then ends the transfer. A failure is sent as such.
fn allocate<C: TargetCpu>(
    cpu: &mut C,
    order: u8,
    sender: &mut Sender<'_, impl SharedWord, impl Meeting>,
    count: u64,
) -> u64 {
    of_known_order!(order, {
        let mut failures = 0;
        for _ in 0..count {
            let block = cpu.alloc(order, Mobility::Movable).unwrap_or(NONE);
            opaque(cpu);
            failures += u64::from(block == NONE);
            sender.send(block);
        }
        sender.send(END);
        failures
    })
}

/// Receives and frees until the transfer ends.
fn release<C: TargetCpu>(cpu: &mut C, order: u8, receiver: &mut Receiver<'_, impl SharedWord, impl Meeting>) {
    of_known_order!(
        order,
        loop {
            match receiver.receive() {
                END => return,
                NONE => {}
                block => cpu.free(block, order),
            }
            opaque(cpu);
        }
    );
}
