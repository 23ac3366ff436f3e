//! Whose events are whose: from all that happened on a machine to what a command and its descendants did.
//!
//! An event belongs to the command if it happened in one of the tree's threads, or if it frees frames that
//! the tree allocated. Worker threads and interrupts free much of a process's memory after it is gone, and a
//! frame's life belongs to who began it. Frames that the tree frees without having allocated them here belong
//! too: it was the tree that gave them back.
//!
//! The tree is the command's first process and all that a member forks, threads included. A thread that has
//! exited stays a member, because the kernel frees its memory under its number, until another process forks a
//! thread of that number.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::kmem::Page;
use crate::kmem::report::{Names, Report, What};
use crate::trace::{Comms, Event, EventKind, Note};

/// Processes whose events are picked.
#[derive(Clone, Debug)]
pub(super) enum Whose {
    /// Those of all threads.
    All,
    /// Those of these threads and of all that they start.
    Trees(HashSet<u32>),
}

/// Events of a command.
#[derive(Debug, Default)]
pub(super) struct Attributed {
    pub(super) events: Vec<Event>,
    /// Other events; their names are still to be filled in.
    pub(super) notes: Vec<(u16, Note)>,
    pub(super) comms: Comms,
    /// Samples by stack of the kernel's functions.
    pub(super) samples: HashMap<Box<[u64]>, u64>,
    /// Page-allocator events of the whole machine.
    pub(super) system_events: usize,
    /// Allocations of the tree that got no page.
    pub(super) failed_allocations: u64,
    /// Threads that were ever members, the first included.
    pub(super) threads: usize,
    /// The start of one of the first threads was among the reports.
    pub(super) saw_root: bool,
}

/// Picks from `reports`, which are in order of time, what is `whose`. `names` are those of the threads that
/// existed before.
pub(super) fn attribute(
    reports: impl IntoIterator<Item = Report>,
    whose: &Whose,
    names: &HashMap<u32, String>,
) -> Attributed {
    let none = HashSet::new();
    let (all, roots) = match whose {
        Whose::All => (true, &none),
        Whose::Trees(roots) => (false, roots),
    };
    let mut out = Attributed { threads: roots.len(), ..Attributed::default() };
    // Those that are started during the recording.
    let mut unborn: HashSet<u32> = roots.iter().filter(|root| !names.contains_key(root)).copied().collect();
    let mut names = Names::new(names);
    let mut tree = roots.clone();
    let mut frames = Frames::default();
    // Of all threads, those that did something.
    let mut seen = HashSet::new();

    for report in reports {
        names.note(&report);
        let member = all || tree.contains(&report.pid);
        match &report.what {
            What::Fork { child } => {
                out.saw_root |= roots.contains(child);
                if all {
                } else if member {
                    out.threads += usize::from(tree.insert(*child));
                } else if !unborn.remove(child) {
                    tree.remove(child);
                }
            }
            What::Rename { .. } => {}
            What::NoPage => out.failed_allocations += u64::from(member),
            What::Page(page) => {
                out.system_events += 1;
                if all {
                    seen.insert(report.pid);
                }
                if all || frames.belongs(page, member) {
                    let comm = names.intern(&report, &mut out.comms);
                    out.events.push(report.event(page, comm));
                }
            }
            What::Other { id, text } if member => {
                let comm = names.intern(&report, &mut out.comms);
                let Report { time_ns, cpu, pid, .. } = report;
                let note = Note { time_ns, cpu, pid, comm, name: String::new(), text: text.to_string() };
                out.notes.push((*id, note));
            }
            What::Sample(stack) if member && report.pid != 0 => {
                *out.samples.entry(stack.clone()).or_default() += 1;
            }
            What::Other { .. } | What::Sample(_) => {}
        }
    }
    out.threads += seen.len();
    out
}

/// Which frames the tree holds, and which of its frames were freed since they were last allocated.
#[derive(Debug, Default)]
struct Frames {
    held: Ranges,
    freed: Ranges,
}

impl Frames {
    /// True if an event belongs to the tree; `member`: its thread does.
    fn belongs(&mut self, page: &Page, member: bool) -> bool {
        let (start, end) = (page.pfn, page.pfn + (1 << page.order));
        match page.kind {
            EventKind::PageAlloc => {
                self.freed.remove(start, end);
                self.held.remove(start, end);
                if member {
                    self.held.insert(start, end);
                }
                member
            }
            EventKind::PageFree => {
                let belongs = self.held.remove(start, end) || member;
                self.freed.remove(start, end);
                if belongs {
                    self.freed.insert(start, end);
                }
                belongs
            }
            // Comes beside the frame's PageFree, before or after it, and shares its fate.
            EventKind::PageFreeBatched => {
                member || self.held.overlaps(start, end) || self.freed.overlaps(start, end)
            }
            EventKind::PageAllocZoneLocked | EventKind::PagePcpuDrain => member,
        }
    }
}

/// A set of frames as disjoint ranges, start to end.
#[derive(Debug, Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds frames, none of which is in the set. O(log n).
    fn insert(&mut self, start: u64, end: u64) {
        self.0.insert(start, end);
    }

    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.last_before(end).is_some_and(|(_, last)| last > start)
    }

    /// Takes frames out; whether any was in. O(log n) for each range that held one.
    fn remove(&mut self, start: u64, end: u64) -> bool {
        let mut any = false;
        while let Some((first, last)) = self.last_before(end).filter(|&(_, last)| last > start) {
            any = true;
            self.0.remove(&first);
            if last > end {
                self.0.insert(end, last);
            }
            if first < start {
                self.0.insert(first, start);
            }
        }
        any
    }

    /// The last range that starts before `end`.
    fn last_before(&self, end: u64) -> Option<(u64, u64)> {
        self.0.range(..end).next_back().map(|(&first, &last)| (first, last))
    }
}

#[cfg(test)]
mod tests;
