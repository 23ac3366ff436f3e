//! Profile of a traced program: the blocks that it allocated, the allocating tasks, and the lifetimes.

use std::collections::{BTreeMap, HashMap};

use framewright_trace::trace::{EventKind, Trace};

/// Allocations under one heading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Blocks.
    pub allocations: u64,
    /// Base pages of them.
    pub pages: u64,
}

impl Share {
    fn add(&mut self, order: u8) {
        self.allocations += 1;
        self.pages += 1 << order;
    }
}

/// The profile of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// All allocations.
    pub all: Share,
    /// Frees.
    pub frees: u64,
    /// From the first event to the last, in ns.
    pub duration_ns: u64,
    /// By order.
    pub orders: BTreeMap<u8, Share>,
    /// By migratetype, as Linux numbers them; none where it was not traced.
    pub types: BTreeMap<Option<u8>, Share>,
    /// By the name of the thread, most pages first.
    pub comms: Vec<(String, Share)>,
    /// Lifetimes of blocks that were freed within the trace, in ns, shortest first.
    pub lifetimes_ns: Vec<u64>,
    /// Blocks that outlived the trace.
    pub kept: Share,
    /// Most pages in use at a time, of those that were allocated within the trace.
    pub peak_pages: u64,
}

impl Profile {
    /// The profile of a trace. O(n log n) in its events.
    #[must_use]
    pub fn of(trace: &Trace) -> Self {
        let mut profile = Self { duration_ns: trace.duration_ns(), ..Self::default() };
        let mut comms: HashMap<u32, Share> = HashMap::new();
        let mut live: HashMap<u64, (u64, u8)> = HashMap::new();
        let mut pages = 0_u64;
        let free = free_kind(trace);
        for event in &trace.events {
            if event.kind == EventKind::PageAlloc {
                profile.all.add(event.order);
                profile.orders.entry(event.order).or_default().add(event.order);
                profile.types.entry(event.migratetype).or_default().add(event.order);
                comms.entry(event.comm).or_default().add(event.order);
                // A block whose free was lost counts as freed now.
                if let Some((_, order)) = live.insert(event.pfn, (event.time_ns, event.order)) {
                    pages -= 1 << order;
                }
                pages += 1 << event.order;
                profile.peak_pages = profile.peak_pages.max(pages);
            } else if event.kind == free {
                profile.frees += 1;
                if let Some((since, order)) = live.remove(&event.pfn) {
                    profile.lifetimes_ns.push(event.time_ns - since);
                    pages -= 1 << order;
                }
            }
        }
        for (_, order) in live.into_values() {
            profile.kept.add(order);
        }
        profile.lifetimes_ns.sort_unstable();
        profile.comms =
            comms.into_iter().map(|(comm, share)| (trace.comms.name(comm).to_owned(), share)).collect();
        profile.comms.sort_by(|a, b| b.1.pages.cmp(&a.1.pages).then_with(|| a.0.cmp(&b.0)));
        profile
    }

    /// A quantile of the lifetimes, in ns; `None` if no block was freed.
    #[must_use]
    pub fn lifetime_ns(&self, quantile: f64) -> Option<u64> {
        let last = self.lifetimes_ns.len().checked_sub(1)?;
        self.lifetimes_ns.get((last as f64 * quantile.clamp(0.0, 1.0)).round() as usize).copied()
    }
}

/// The kind of event that is a free: where single frees were not traced, those of lists are all there is.
pub(crate) fn free_kind(trace: &Trace) -> EventKind {
    if trace.count(EventKind::PageFree) > 0 { EventKind::PageFree } else { EventKind::PageFreeBatched }
}

/// `350 ns`, `1.20 ms`, `2.80 s`.
#[must_use]
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.3} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Name of a migratetype in Linux.
#[must_use]
pub fn type_name(migratetype: Option<u8>) -> String {
    match migratetype {
        Some(0) => "unmovable".to_owned(),
        Some(1) => "movable".to_owned(),
        Some(2) => "reclaimable".to_owned(),
        Some(number) => format!("type {number}"),
        None => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use framewright_trace::trace::{Comms, Event};

    use super::*;

    #[test]
    fn blocks_are_counted_by_order_and_comm_and_timed_until_they_are_freed() {
        let mut comms = Comms::default();
        let (cc1, make) = (comms.intern("cc1"), comms.intern("make"));
        let event = |time_ns, kind, comm, pfn, order| Event {
            time_ns,
            cpu: 0,
            pid: 7,
            comm,
            kind,
            pfn,
            order,
            migratetype: Some(1),
            gfp: 0,
        };
        let events = vec![
            event(100, EventKind::PageAlloc, cc1, 16, 0),
            event(200, EventKind::PageAlloc, make, 512, 9),
            event(300, EventKind::PageFreeBatched, cc1, 16, 0),
            event(400, EventKind::PageFree, cc1, 16, 0),
            event(500, EventKind::PageFree, cc1, 999, 0),
            // Its free was lost.
            event(600, EventKind::PageAlloc, cc1, 512, 0),
        ];
        let profile = Profile::of(&Trace { comms, events, ..Trace::default() });
        assert_eq!(profile.all, Share { allocations: 3, pages: 514 });
        assert_eq!(profile.orders[&0], Share { allocations: 2, pages: 2 });
        assert_eq!(profile.comms[0], ("make".to_owned(), Share { allocations: 1, pages: 512 }));
        assert_eq!((profile.frees, profile.duration_ns, profile.peak_pages), (2, 500, 513));
        assert_eq!(
            (profile.lifetimes_ns.as_slice(), profile.lifetime_ns(0.5)),
            ([300].as_slice(), Some(300))
        );
        assert_eq!(profile.kept, Share { allocations: 1, pages: 1 });
        assert_eq!(Profile::default().lifetime_ns(0.5), None);
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([350.0, 1.2e3, 1.2e6, 2.8e9].map(time), ["350 ns", "1.200 us", "1.20 ms", "2.80 s"]);
    }
}
