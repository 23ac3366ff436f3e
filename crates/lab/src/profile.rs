//! Profile of a traced program: the blocks that it allocated, the allocating tasks, and the lifetimes.

use std::collections::{BTreeMap, HashMap};

use framewright_trace::trace::{Event, EventKind, Trace};
use framewright_workload::replay::{Live, Released};

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
    /// Those of them that free nothing of what the trace allocates: it was allocated before, or their thread did it
    /// in an interrupt.
    pub unseen_frees: u64,
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
    pub fn of(trace: &Trace) -> Self {
        let mut profile = Self { duration_ns: trace.duration_ns(), ..Self::default() };
        let mut comms: HashMap<u32, Share> = HashMap::new();
        let mut pages = 0_u64;
        let kept = follow(trace, |event, ended| {
            pages -= ended.iter().map(|ended| ended.pages).sum::<u64>();
            if event.kind != EventKind::PageAlloc {
                profile.frees += 1;
                profile.unseen_frees += u64::from(ended.is_empty());
                let lasts = ended.iter().filter(|ended| ended.is_last);
                profile.lifetimes_ns.extend(lasts.map(|ended| event.time_ns - ended.block.time_ns));
                return;
            }
            profile.all.add(event.order);
            profile.orders.entry(event.order).or_default().add(event.order);
            profile.types.entry(event.migratetype).or_default().add(event.order);
            comms.entry(event.comm).or_default().add(event.order);
            pages += 1 << event.order;
            profile.peak_pages = profile.peak_pages.max(pages);
        });
        for ended in kept {
            profile.kept.allocations += u64::from(ended.is_last);
            profile.kept.pages += ended.pages;
        }
        profile.lifetimes_ns.sort_unstable();
        profile.comms =
            comms.into_iter().map(|(comm, share)| (trace.comms.name(comm).to_owned(), share)).collect();
        profile.comms.sort_by(|a, b| b.1.pages.cmp(&a.1.pages).then_with(|| a.0.cmp(&b.0)));
        profile
    }

    /// A quantile of the lifetimes, in ns; `None` if no block was freed.
    pub fn lifetime_ns(&self, quantile: f64) -> Option<u64> {
        let last = self.lifetimes_ns.len().checked_sub(1)?;
        self.lifetimes_ns.get((last as f64 * quantile.clamp(0.0, 1.0)).round() as usize).copied()
    }
}

/// Pages of a block that are freed, or that the trace leaves in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended<'a> {
    /// Allocation of the block.
    pub(crate) block: &'a Event,
    pub(crate) pages: u64,
    /// Nothing of the block is left.
    pub(crate) is_last: bool,
}

/// Calls `step` for each allocation and free with what it ends: of an allocation, pages whose free was lost. A block
/// may be freed in parts. Returns what is in use after the last event. O(n log n) in the events.
pub(crate) fn follow<'a>(trace: &'a Trace, mut step: impl FnMut(&'a Event, &[Ended<'a>])) -> Vec<Ended<'a>> {
    let mut live = Live::default();
    // By block: its allocation, and how many of its pages are in use.
    let mut blocks: Vec<(&Event, u64)> = Vec::new();
    let end = |blocks: &mut [(&'a Event, u64)], released: Vec<Released>| {
        let ended = released.into_iter().filter_map(|released| {
            let (owner, order) = match released {
                Released::Whole(owner) => (owner, owner.order),
                Released::Part(owner, _, order) => (owner, order),
                Released::Unknown(..) => return None,
            };
            let (block, left) = &mut blocks[owner.slot as usize];
            *left -= 1 << order;
            Some(Ended { block, pages: 1 << order, is_last: *left == 0 })
        });
        ended.collect::<Vec<_>>()
    };
    for event in trace.allocations_and_frees() {
        let aligned = event.pfn >> event.order << event.order;
        step(event, &end(&mut blocks, live.release(aligned, event.order)));
        if event.kind == EventKind::PageAlloc {
            live.insert(aligned, event.order, blocks.len() as u32);
            blocks.push((event, 1 << event.order));
        }
    }
    end(&mut blocks, live.release_all())
}

/// `350 ns`, `1.20 ms`, `2.80 s`.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// An amount of memory in a readable unit.
pub fn size(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    match bytes >> 10 {
        kib @ ..1024 => format!("{kib} KiB"),
        ..10_240 => format!("{mib:.1} MiB"),
        _ => format!("{mib:.0} MiB"),
    }
}

/// Name of a migratetype in Linux.
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
    use framewright_trace::trace::Comms;
    use framewright_workload::replay::Plan;

    use super::*;

    #[test]
    fn sizes_are_rounded_in_a_unit_that_shows_them() {
        for (pages, text) in [
            (0, "0 KiB"),
            (1, "4 KiB"),
            (255, "1020 KiB"),
            (1000, "3.9 MiB"),
            (5000, "20 MiB"),
            (331_054, "1293 MiB"),
        ] {
            assert_eq!(size(pages << 12), text, "{pages} pages");
        }
    }

    #[test]
    fn blocks_are_counted_by_order_and_comm_and_timed_until_they_are_freed() {
        let mut comms = Comms::default();
        let (cc1, make) = (comms.intern("cc1"), comms.intern("make"));
        let event = |time_ns, kind, comm, pfn, order| Event {
            time_ns,
            comm,
            kind,
            pfn,
            order,
            migratetype: Some(1),
            ..Event::default()
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
        // Of the 512, frame 999 was freed, and the first one unseen.
        assert_eq!(profile.kept, Share { allocations: 2, pages: 511 });
        assert_eq!(Profile::default().lifetime_ns(0.5), None);
    }

    /// As a huge page is that was split: each page goes by itself, the first one not first, and is allocated again.
    #[test]
    fn a_block_that_is_freed_in_parts_is_in_use_until_the_last_of_them() {
        let event = |time_ns, kind, pfn, order| Event {
            time_ns,
            kind,
            pfn,
            order,
            migratetype: Some(1),
            ..Event::default()
        };
        let mut events = vec![
            event(0, EventKind::PageAlloc, 512, 9),
            event(1, EventKind::PageFree, 512, 0),
            event(2, EventKind::PageAlloc, 512, 0),
            event(3, EventKind::PageAlloc, 1024, 0),
        ];
        let profile = |events: &[Event]| {
            let mut comms = Comms::default();
            comms.intern("prog");
            let trace = Trace { events: events.to_vec(), comms, ..Trace::default() };
            let counts = *Plan::compile(&trace, 1).expect("it holds events").counts();
            let profile = Profile::of(&trace);
            assert_eq!((profile.peak_pages, profile.kept.pages), (counts.peak_frames, counts.live_frames));
            profile
        };
        let early = profile(&events);
        assert_eq!((early.peak_pages, early.kept), (513, Share { allocations: 3, pages: 513 }));
        assert_eq!(early.lifetimes_ns, [0; 0]);
        events.extend((1..512).map(|n| event(10 + n, EventKind::PageFree, 512 + n, 0)));
        let late = profile(&events);
        assert_eq!((late.peak_pages, late.kept), (513, Share { allocations: 2, pages: 2 }));
        assert_eq!(late.lifetimes_ns, [521]);
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        assert_eq!([350.0, 1.2e3, 1.2e6, 2.8e9].map(time), ["350 ns", "1.20 us", "1.20 ms", "2.80 s"]);
    }
}
