//! What the jobs of a recorded compile do with memory.

use std::collections::{BTreeMap, HashMap};

use framewright_sim::kernbench::{Act, Op, Process, Profile};
use framewright_workload::trace::{Event, EventKind, Trace};

/// A longer time between two events of a process is no work of its: it waited, or another one had its CPU.
const LONGEST_WORK_NS: u64 = 3_000_000;
/// A longer time begins a new operation.
const SAME_OPERATION_NS: u64 = 200_000;
/// Movable pages, as every kernel numbers them.
const MOVABLE: u8 = 1;

#[derive(Default)]
struct Recorded {
    comm: u32,
    first_ns: u64,
    last_ns: u64,
    allocated: u64,
    ops: Process,
}

impl Recorded {
    fn add(&mut self, event: &Event, act: Act) {
        let first = self.ops.is_empty();
        let gap = if first { 0 } else { event.time_ns - self.last_ns };
        if first {
            self.first_ns = event.time_ns;
        }
        self.last_ns = event.time_ns;
        // The name that it has in the end: a compiler begins as a copy of whoever makes it.
        self.comm = event.comm;
        self.allocated += u64::from(act != Act::Free);
        let work_ns = gap.min(LONGEST_WORK_NS);
        match self.ops.last_mut() {
            Some(op) if op.act == act && gap < SAME_OPERATION_NS => {
                op.pages += 1;
                op.work_ns += work_ns;
            }
            _ => self.ops.push(Op { act, pages: 1, work_ns }),
        }
    }
}

/// The processes of each run of `compiler` in a trace: it, and those that began after the run before it. Base pages only;
/// frees of what others allocated are left out. `None` if the compiler never ran.
pub(super) fn of(trace: &Trace, compiler: &str) -> Option<Profile> {
    let mut processes: BTreeMap<u32, Recorded> = BTreeMap::new();
    let mut owners: HashMap<u64, u32> = HashMap::new();
    for event in trace.events.iter().filter(|event| event.order == 0) {
        match event.kind {
            EventKind::PageAlloc => {
                owners.insert(event.pfn, event.pid);
                let movable = event.migratetype == Some(MOVABLE);
                let act = if movable { Act::Fault } else { Act::Unmovable };
                processes.entry(event.pid).or_default().add(event, act);
            }
            EventKind::PageFree if owners.remove(&event.pfn) == Some(event.pid) => {
                processes.entry(event.pid).or_default().add(event, Act::Free);
            }
            _ => {}
        }
    }
    let mut processes: Vec<Recorded> = processes.into_values().filter(|it| it.allocated > 0).collect();
    processes.sort_by_key(|process| process.first_ns);
    let mut jobs: Vec<Vec<Process>> = Vec::new();
    let mut before: Vec<Process> = Vec::new();
    let mut runs = 0;
    for process in processes {
        let compiles = trace.comms.name(process.comm) == compiler;
        runs += usize::from(compiles);
        match jobs.last_mut() {
            // What follows a compiler, such as the assembler, belongs to it until the next one.
            Some(job) if !compiles => job.push(process.ops),
            _ if compiles => {
                let mut job = core::mem::take(&mut before);
                job.push(process.ops);
                jobs.push(job);
            }
            _ => before.push(process.ops),
        }
    }
    (runs > 0).then_some(Profile { jobs })
}

#[cfg(test)]
mod tests {
    use framewright_workload::trace::{Comms, Meta};

    use super::*;
    use crate::shipped;

    fn event(kind: EventKind, time_ns: u64, pid: u32, comm: u32, pfn: u64) -> Event {
        let migratetype = (kind == EventKind::PageAlloc).then_some(1);
        Event { time_ns, pfn, gfp: 0, pid, comm, cpu: 0, order: 0, migratetype, kind }
    }

    #[test]
    fn a_job_is_a_compiler_and_what_is_around_it() {
        use EventKind::{PageAlloc, PageFree};
        let mut comms = Comms::default();
        let [sh, cc1, other] = ["sh", "cc1", "as"].map(|name| comms.intern(name));
        let events = vec![
            event(PageAlloc, 0, 1, sh, 1),
            event(PageAlloc, 10, 2, cc1, 2),
            event(PageAlloc, 1010, 2, cc1, 3),
            event(PageFree, 9_001_010, 2, cc1, 3),
            event(PageFree, 9_001_020, 2, cc1, 1),
            event(PageAlloc, 9_001_030, 3, other, 4),
            event(PageAlloc, 9_001_040, 4, cc1, 5),
        ];
        let trace = Trace { meta: Meta::default(), comms, events, notes: Vec::new() };
        let profile = of(&trace, "cc1").expect("a compiler");
        let one = |act, pages, work_ns| Op { act, pages, work_ns };
        assert_eq!(
            profile.jobs,
            [
                vec![
                    vec![one(Act::Fault, 1, 0)],
                    vec![one(Act::Fault, 2, 1000), one(Act::Free, 1, 3_000_000)],
                    vec![one(Act::Fault, 1, 0)],
                ],
                vec![vec![one(Act::Fault, 1, 0)]],
            ]
        );
        assert_eq!(of(&trace, "rustc"), None);
    }

    #[test]
    fn the_shipped_trace_has_36_jobs_of_some_nine_thousand_pages() {
        let profile = of(&shipped::trace().expect("it is built in"), "cc1").expect("a compiler");
        assert_eq!(profile.jobs.len(), 36);
        assert!((9100.0..9160.0).contains(&profile.pages_per_job()), "{}", profile.pages_per_job());
        let freed: u64 = profile
            .jobs
            .iter()
            .flatten()
            .flatten()
            .filter(|op| op.act == Act::Free)
            .map(|op| u64::from(op.pages))
            .sum();
        assert!(freed as f64 / 36.0 > 0.9 * profile.pages_per_job(), "nearly all is freed by whoever had it");
    }
}
