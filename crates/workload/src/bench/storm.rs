//! Short processes: pages are faulted in over time and freed in one burst at exit.

use crate::random::Rng;

use super::lists::summary;
use super::stage::{Meeting as _, Stage};
use super::{Case, Measurement, NONE, Scale, Tally, opaque};
use crate::target::{Mobility, TargetCpu};

/// Processes that live on a thread at the same time.
const PROCESSES: usize = 4;

/// Pages of the largest process: 16 MiB. The smallest has a quarter.
const MOST_PAGES: usize = 4096;

/// Pages that a process faults in before another gets its turn, at most: what Linux maps around one fault.
const MOST_FAULTS: usize = 16;

/// A process: its pages so far, and how many it will have when it exits.
struct Process {
    pages: Vec<u64>,
    size: usize,
}

/// See [`Workload::ExitStorm`](super::Workload::ExitStorm).
pub(super) fn exit_storm<S: Stage>(stage: &S, case: &Case, scale: &Scale, round: u64) -> Measurement {
    // No more than half of the memory, if all processes were as large as they get.
    let share = scale.frames / 2 / (PROCESSES * case.cpus) as u64;
    let most = usize::try_from(share).unwrap_or(usize::MAX).clamp(4, MOST_PAGES);
    let done = stage.on_cpus(case.cpus, |index, gate, cpu| {
        let mut rng = Rng::of_thread(scale.seed, round, index);
        let mut processes: Vec<Process> = (0..PROCESSES)
            .map(|_| Process { pages: Vec::with_capacity(most), size: size(&mut rng, most) })
            .collect();
        live::<S, _>(cpu, &mut processes, &mut rng, most, scale.operations / 4);
        gate.wait();
        let start = S::now();
        let (operations, failures, exits) =
            live::<S, _>(cpu, &mut processes, &mut rng, most, scale.operations);
        let mut all = Tally::default();
        all.add(S::since(start), operations, failures);
        gate.wait();
        processes.iter_mut().for_each(|process| _ = exit::<S, _>(cpu, process));
        [all, exits]
    });
    // The frees at exit are among all operations already: do not count them twice.
    let operations = done.results.iter().map(|[all, _]| all.operations).sum();
    Measurement { operations, ..summary(case, done, ["exit_storm_ns", "exit_storm_put_ns"]) }
}

/// Lets the processes live until about `least` operations are done, and the last process that exits is gone.
/// Returns the operations, the failures, and the exits alone.
fn live<S: Stage, C: TargetCpu>(
    cpu: &mut C,
    processes: &mut [Process],
    rng: &mut Rng,
    most: usize,
    least: u64,
) -> (u64, u64, Tally) {
    let (mut operations, mut failures, mut exits) = (0, 0, Tally::default());
    while operations < least || exits.operations == 0 {
        let turn = rng.index(processes.len());
        let process = &mut processes[turn];
        let faults = (1 + rng.index(MOST_FAULTS)).min(process.size - process.pages.len());
        for _ in 0..faults {
            let page = cpu.alloc(0, Mobility::Movable).unwrap_or(NONE);
            failures += u64::from(page == NONE);
            process.pages.push(page);
            opaque(cpu);
        }
        operations += faults as u64;
        if process.pages.len() == process.size {
            let gone = exit::<S, _>(cpu, process);
            operations += gone.operations;
            exits = Tally::sum([exits, gone]);
            process.size = size(rng, most);
        }
    }
    (operations, failures, exits)
}

/// Frees all pages of a process in the order it got them, which is about the order of its addresses.
fn exit<S: Stage, C: TargetCpu>(cpu: &mut C, process: &mut Process) -> Tally {
    let start = S::now();
    let mut freed = 0;
    for page in process.pages.drain(..) {
        if page != NONE {
            cpu.free(page, 0);
            opaque(cpu);
            freed += 1;
        }
    }
    let mut tally = Tally::default();
    tally.add(S::since(start), freed, 0);
    tally
}

fn size(rng: &mut Rng, most: usize) -> usize {
    most / 4 + rng.index(most - most / 4) + 1
}
