//! Copies of a recorded run, one on each CPU, each from a place of its own in it, as fast as they go.

use core::hint::black_box;
use std::collections::HashMap;

use framewright_trace::trace::{EventKind, Trace};

use super::{MAX_ORDER, PageCache};
use crate::bench::stage::{Meeting as _, Stage};
use crate::bench::{Measurement, NONE, Tally};
use crate::target::{Mobility, TargetCpu};

/// Passes that are timed; one before them is not.
const PASSES: usize = 2;

/// One operation on a block of the copy's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    block: u32,
    order: u8,
    /// Mobility that an allocation asks for; none frees.
    asks: Option<Mobility>,
}

/// Operations of all of a trace's CPUs, in the order of its events, for one CPU. Frees of blocks that it did not
/// allocate, and of parts of blocks, are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    steps: Vec<Step>,
    blocks: usize,
    frames: u64,
}

impl Recorded {
    /// Of the first `events` events of a trace.
    #[must_use]
    pub fn new(trace: &Trace, events: usize) -> Self {
        let mut recorded = Self::default();
        let mut live: HashMap<u64, (u32, u8)> = HashMap::new();
        let mut frames = 0_u64;
        let free = trace.free_kind();
        for event in trace.events.iter().take(events).filter(|event| event.order <= MAX_ORDER) {
            if event.kind == EventKind::PageAlloc {
                let block = recorded.blocks as u32;
                recorded.blocks += 1;
                // A frame that is allocated again was freed unseen; its block stays.
                live.insert(event.pfn, (block, event.order));
                frames += 1 << event.order;
                recorded.frames = recorded.frames.max(frames);
                let asks = Some(PageCache::AsTraced.mobility(event));
                recorded.steps.push(Step { block, order: event.order, asks });
            } else if event.kind == free
                && let Some(&(block, order)) = live.get(&event.pfn)
                && order == event.order
            {
                live.remove(&event.pfn);
                frames -= 1 << order;
                recorded.steps.push(Step { block, order, asks: None });
            }
        }
        recorded
    }

    /// Frames that a copy has in use at most, if it begins anywhere.
    #[must_use]
    pub const fn frames(&self) -> u64 {
        2 * self.frames
    }
}

/// Runs a copy on each of `cpus` CPUs: `copied_ns` is the time of an operation.
pub fn copies<S: Stage>(stage: &S, recorded: &Recorded, cpus: usize) -> Measurement {
    let Recorded { steps, blocks, .. } = recorded;
    let done = stage.on_cpus(cpus, |index, gate, cpu| {
        let (before, after) = steps.split_at(steps.len() * index / cpus);
        let mut held = vec![(NONE, 0); *blocks];
        let mut timed = Tally::default();
        for pass in 0..=PASSES {
            gate.wait();
            let start = S::now();
            let (mut operations, mut failures) = (0, 0);
            for &Step { block, order, asks } in after.iter().chain(before) {
                let held = &mut held[block as usize];
                if let Some(mobility) = asks {
                    *held = (cpu.alloc(order, mobility).unwrap_or(NONE), order);
                    failures += u64::from(held.0 == NONE);
                } else if held.0 == NONE {
                    // Its allocation comes later, because this copy began between the two.
                    continue;
                } else {
                    cpu.free(core::mem::replace(&mut held.0, NONE), order);
                }
                operations += 1;
                black_box(&mut *cpu);
            }
            let elapsed = S::since(start);
            if pass > 0 {
                timed.add(elapsed, operations, failures);
            }
            gate.wait();
            for (block, order) in &mut held {
                if *block != NONE {
                    cpu.free(core::mem::replace(block, NONE), *order);
                }
            }
        }
        timed
    });
    let timed = Tally::sum(done.results);
    Measurement {
        metrics: vec![timed.metric(format!("copied_ns[copies={cpus}]"))],
        operations: timed.operations,
        failures: timed.failures,
        pinned: done.pinned,
        ..Measurement::default()
    }
}

#[cfg(test)]
mod tests {
    use framewright_trace::trace::Event;

    use super::*;
    use crate::bench::Threads;
    use crate::oracle::Oracle;
    use crate::testing::Buddy;

    fn event(kind: EventKind, pfn: u64, order: u8) -> Event {
        Event { pfn, order, migratetype: Some(1), kind, ..Event::default() }
    }

    #[test]
    fn a_trace_of_batched_frees_alone_is_freed_by_them() {
        let events = |free| vec![event(EventKind::PageAlloc, 3, 0), event(free, 3, 0)];
        let recorded = |events| Recorded::new(&Trace { events, ..Trace::default() }, usize::MAX);
        let batched = recorded(events(EventKind::PageFreeBatched));
        assert_eq!(batched, recorded(events(EventKind::PageFree)));
        assert_eq!(batched.steps.len(), 2);
    }

    #[test]
    fn every_copy_does_all_of_it_from_a_place_of_its_own() {
        let mut events = Vec::new();
        for n in 0..100 {
            events.push(event(EventKind::PageAlloc, 8 * n, (n % 3) as u8));
            events.push(event(EventKind::PageFree, 8 * (n / 2), (n / 2 % 3) as u8));
        }
        let trace = Trace { events, ..Trace::default() };
        let recorded = Recorded::new(&trace, usize::MAX);
        // Frames 0 to 49 are freed once each; 50 blocks stay.
        assert_eq!((recorded.blocks, recorded.steps.len()), (100, 150));
        for cpus in [1, 2] {
            let target = Oracle::new(Buddy::new(1 << 14));
            let measurement = copies(&Threads(&target), &recorded, cpus);
            let findings = target.findings();
            assert_eq!(findings.violations, [""; 0]);
            assert_eq!(findings.live_frames, 0);
            assert_eq!(measurement.failures, 0);
            // The second of two copies begins half-way; the frees before that of its allocations are left out.
            let least = if cpus == 1 { 300 } else { 2 * 250 };
            assert!((least..=300 * cpus as u64).contains(&measurement.operations), "{measurement:?}");
            assert!(findings.peak_frames <= cpus as u64 * recorded.frames());
        }
    }
}
