//! What a machine reports, one thing after the other, and the names that its threads have meanwhile.

use core::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::Page;
use crate::trace::{Comms, Event};

/// Something that one CPU reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) time_ns: u64,
    pub(crate) cpu: u16,
    /// The thread that ran.
    pub(crate) pid: u32,
    pub(crate) what: What,
}

/// What was reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// An event of the page allocator.
    Page(Page),
    /// An allocation that got no page.
    NoPage,
    /// The thread made another one.
    Fork { child: u32 },
    /// A thread was given a name.
    Rename { pid: u32, name: Name },
    /// Another event: its number and its fields in words.
    Other { id: u16, text: Box<str> },
    /// What the thread was doing: functions of the kernel by address, the innermost first; none outside the kernel.
    Sample(Box<[u64]>),
}

/// A thread's name, padded with zeros, as the kernel keeps it.
pub(crate) type Name = [u8; 16];

impl Report {
    /// The event of a page, in a thread of the name with that index.
    pub(crate) fn event(&self, page: &Page, comm: u32) -> Event {
        let &Self { time_ns, cpu, pid, .. } = self;
        let Page { kind, pfn, order, migratetype, gfp } = *page;
        Event { time_ns, pfn, gfp, pid, comm, cpu, order, migratetype, kind }
    }
}

/// Reports of several streams, each in order of time, as one. Of two at the same time, that of the earlier
/// stream comes first. O(log streams) each; one report of each stream is held.
pub(crate) fn merged<S: Iterator<Item = Report>>(mut streams: Vec<S>) -> impl Iterator<Item = Report> {
    let mut heads: Vec<Option<Report>> = streams.iter_mut().map(Iterator::next).collect();
    let time =
        |stream: usize, head: &Option<Report>| head.as_ref().map(|head| Reverse((head.time_ns, stream)));
    let mut order: BinaryHeap<_> = heads.iter().enumerate().filter_map(|(n, head)| time(n, head)).collect();
    core::iter::from_fn(move || {
        let Reverse((_, stream)) = order.pop()?;
        let report = core::mem::replace(&mut heads[stream], streams[stream].next());
        order.extend(time(stream, &heads[stream]));
        report
    })
}

/// The first 15 bytes of a name.
pub(crate) fn name(text: &[u8]) -> Name {
    let mut name = Name::default();
    for (to, &from) in name[..15].iter_mut().zip(text.split(|&byte| byte == 0).next().unwrap_or_default()) {
        *to = from;
    }
    name
}

/// The names of threads as reports go by.
#[derive(Debug, Default)]
pub(crate) struct Names {
    table: Comms,
    of_pid: HashMap<u32, u32>,
}

impl Names {
    /// Starts with the names of the threads that exist.
    pub(crate) fn new(threads: &HashMap<u32, String>) -> Self {
        let mut table = Comms::default();
        let of_pid = threads.iter().map(|(&pid, name)| (pid, table.intern(name))).collect();
        Self { table, of_pid }
    }

    /// Takes note of a fork or a new name.
    pub(crate) fn note(&mut self, report: &Report) {
        match report.what {
            // A new thread starts with its parent's name.
            What::Fork { child } => {
                if let Some(&name) = self.of_pid.get(&report.pid) {
                    self.of_pid.insert(child, name);
                }
            }
            What::Rename { pid, name } => {
                let text = name.split(|&byte| byte == 0).next().unwrap_or_default();
                self.of_pid.insert(pid, self.table.intern(&String::from_utf8_lossy(text)));
            }
            What::Page(_) | What::NoPage | What::Other { .. } | What::Sample(_) => {}
        }
    }

    /// Index in `comms` of the name of the thread that reported.
    pub(crate) fn intern(&self, report: &Report, comms: &mut Comms) -> u32 {
        match self.of_pid.get(&report.pid) {
            Some(&name) => comms.intern(self.table.name(name)),
            // What the kernel calls its idle threads, and what tracing tools call threads they know no name
            // of.
            None if report.pid == 0 => comms.intern(&format!("swapper/{}", report.cpu)),
            None => comms.intern("<...>"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Report, What, merged, name};
    use proptest::prelude::*;

    #[test]
    fn names_end_in_a_zero() {
        assert_eq!(&name(b"cc1\0junk"), b"cc1\0\0\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(&name(b"longer than the kernel keeps"), b"longer than the\0");
    }

    proptest! {
        #[test]
        fn merging_is_a_stable_sort(streams in prop::collection::vec(prop::collection::vec(0..50_u64, 0..20), 0..5)) {
            let mut streams = streams;
            let streams: Vec<Vec<Report>> = (0..)
                .zip(&mut streams)
                .map(|(cpu, times)| {
                    times.sort_unstable();
                    let report = |(pid, &time_ns)| Report { time_ns, cpu, pid, what: What::NoPage };
                    (0..).zip(times.iter()).map(report).collect()
                })
                .collect();
            let mut sorted = streams.concat();
            sorted.sort_by_key(|report| report.time_ns);
            let streams = streams.into_iter().map(Vec::into_iter).collect();
            prop_assert_eq!(merged(streams).collect::<Vec<_>>(), sorted);
        }
    }
}
