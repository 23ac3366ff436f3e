use std::collections::{BTreeSet, HashMap};

use super::{Attributed, Ranges, Whose, attribute};
use crate::kmem::Page;
use crate::kmem::report::{Report, What, name};
use crate::trace::EventKind::{
    self, PageAlloc, PageAllocZoneLocked, PageFree, PageFreeBatched, PagePcpuDrain,
};
use proptest::prelude::*;

const ROOT: u32 = 100;
const OTHER: u32 = 7;

/// Reports at times 0, 1, …, each of a thread.
fn run(reports: &[(u32, What)]) -> Attributed {
    let reports: Vec<Report> = (0..)
        .zip(reports)
        .map(|(time_ns, (pid, what))| Report { time_ns, cpu: 1, pid: *pid, what: what.clone() })
        .collect();
    let names = HashMap::from([(1, "framewright".to_owned()), (OTHER, "other".to_owned())]);
    attribute(reports, &Whose::Trees([ROOT].into()), &names)
}

fn page(kind: EventKind, pfn: u64, order: u8) -> What {
    What::Page(Page { kind, pfn, order, migratetype: None, gfp: 0 })
}

fn rename(pid: u32, text: &str) -> What {
    What::Rename { pid, name: name(text.as_bytes()) }
}

/// Times of the events that belong.
fn times(reports: &[(u32, What)]) -> Vec<u64> {
    run(reports).events.iter().map(|event| event.time_ns).collect()
}

#[test]
fn a_tree_is_what_its_members_fork() {
    let fork = |child| What::Fork { child };
    let reports = [
        (1, fork(ROOT)),
        (ROOT, page(PageAlloc, 1, 0)),
        (200, page(PageAlloc, 2, 0)),
        (ROOT, fork(200)),
        (200, page(PageAlloc, 3, 0)),
        (200, fork(300)),
        (300, page(PageAlloc, 4, 0)),
        (OTHER, fork(400)),
        (400, page(PageAlloc, 5, 0)),
        // The number 300 is given to another's thread.
        (OTHER, fork(300)),
        (300, page(PageAlloc, 6, 0)),
    ];
    let out = run(&reports);
    assert_eq!(out.events.iter().map(|event| event.pfn).collect::<Vec<_>>(), [1, 3, 4]);
    assert_eq!((out.threads, out.saw_root), (3, true));
    assert!(!run(&reports[1..]).saw_root);
}

/// Of a process that ran before, and has ended since: its number is another's.
#[test]
fn a_number_that_is_given_again_is_no_roots() {
    let reports = [
        (OTHER, page(PageAlloc, 1, 0)),
        (1, What::Fork { child: OTHER }),
        (OTHER, page(PageAlloc, 2, 0)),
        (1, What::Fork { child: ROOT }),
        (ROOT, page(PageAlloc, 3, 0)),
        (1, What::Fork { child: ROOT }),
        (ROOT, page(PageAlloc, 4, 0)),
    ];
    let reports = (0..).zip(reports).map(|(time_ns, (pid, what))| Report { time_ns, cpu: 1, pid, what });
    let names = HashMap::from([(OTHER, "other".to_owned())]);
    let out = attribute(reports, &Whose::Trees([OTHER, ROOT].into()), &names);
    assert_eq!(out.events.iter().map(|event| event.pfn).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn frames_stay_the_trees_until_freed_whoever_frees_them() {
    let reports = [
        (ROOT, page(PageAlloc, 8, 0)),         // 0
        (OTHER, page(PageFree, 8, 0)),         // 1: belongs
        (OTHER, page(PageFreeBatched, 8, 0)),  // 2: belongs with it
        (OTHER, page(PageFree, 8, 0)),         // not again
        (OTHER, page(PageFreeBatched, 8, 0)),  // nor this
        (OTHER, page(PageAlloc, 9, 0)),        // another's
        (OTHER, page(PageFree, 9, 0)),         // another's
        (OTHER, page(PageAlloc, 10, 0)),       // another's
        (ROOT, page(PageFree, 10, 0)),         // 8: the tree gave it back
        (OTHER, page(PageFreeBatched, 10, 0)), // 9: and this is the same free
        (ROOT, page(PageFree, 77, 0)),         // 10: from before the recording
    ];
    assert_eq!(times(&reports), [0, 1, 2, 8, 9, 10]);
}

#[test]
fn a_frame_allocated_anew_is_its_new_owners() {
    let reports = [
        (ROOT, page(PageAlloc, 8, 0)),
        // The free in between was lost.
        (OTHER, page(PageAlloc, 8, 0)),
        (OTHER, page(PageFree, 8, 0)),
        (OTHER, page(PageFreeBatched, 8, 0)),
    ];
    assert_eq!(times(&reports), [0]);
}

#[test]
fn a_block_may_be_freed_in_parts_and_by_several() {
    let reports = [
        (ROOT, page(PageAlloc, 16, 3)), // 0
        (OTHER, page(PageFree, 18, 1)), // 1
        (OTHER, page(PageFree, 18, 1)), // no: it was
        (ROOT, page(PageFree, 20, 0)),  // 3
        (OTHER, page(PageFree, 21, 0)), // 4
        (OTHER, page(PageFree, 16, 3)), // 5: the rest is among it
        (OTHER, page(PageFree, 16, 3)), // no: nothing is left
    ];
    assert_eq!(times(&reports), [0, 1, 3, 4, 5]);
}

#[test]
fn lists_and_failures_belong_to_who_ran() {
    let reports = [
        (ROOT, page(PageAllocZoneLocked, 8, 3)),
        (ROOT, page(PagePcpuDrain, 9, 0)),
        (ROOT, page(PageAlloc, 8, 0)),
        (OTHER, page(PageAllocZoneLocked, 8, 0)),
        (OTHER, page(PagePcpuDrain, 8, 0)),
        (ROOT, What::NoPage),
        (OTHER, What::NoPage),
    ];
    assert_eq!(times(&reports), [0, 1, 2]);
    assert_eq!(run(&reports).failed_allocations, 1);
}

#[test]
fn names_are_those_of_the_moment() {
    let alloc = || page(PageAlloc, 8, 0);
    let out = run(&[
        (1, What::Fork { child: ROOT }),
        (ROOT, alloc()),
        (ROOT, rename(ROOT, "make")),
        (ROOT, alloc()),
        (ROOT, What::Fork { child: 200 }),
        (200, alloc()),
        (200, rename(200, "cc1")),
        (200, alloc()),
        (ROOT, alloc()),
        (OTHER, page(PageFree, 8, 0)),
        (ROOT, alloc()),
        (0, page(PageFree, 8, 0)),
        (ROOT, alloc()),
        (999, page(PageFree, 8, 0)),
    ]);
    let names: Vec<&str> = out.events.iter().map(|event| out.comms.name(event.comm)).collect();
    assert_eq!(
        names,
        ["framewright", "make", "make", "cc1", "make", "other", "make", "swapper/1", "make", "<...>"]
    );
    assert_eq!(out.comms.len(), 6, "only names that occur");
}

proptest! {
    /// Ranges against a set of single frames.
    #[test]
    fn ranges_are_sets(steps in prop::collection::vec((any::<bool>(), 0..64_u64, 0..5_u32), 0..100)) {
        let (mut ranges, mut frames) = (Ranges::default(), BTreeSet::new());
        for (insert, start, order) in steps {
            let end = start + (1 << order);
            prop_assert_eq!(ranges.overlaps(start, end), (start..end).any(|frame| frames.contains(&frame)));
            let had = ranges.remove(start, end);
            let mut removed = false;
            for frame in start..end {
                removed |= frames.remove(&frame);
            }
            prop_assert_eq!(had, removed);
            if insert {
                ranges.insert(start, end);
                frames.extend(start..end);
            }
            let kept: BTreeSet<u64> = ranges.0.iter().flat_map(|(&start, &end)| start..end).collect();
            prop_assert_eq!(&kept, &frames);
        }
    }
}
