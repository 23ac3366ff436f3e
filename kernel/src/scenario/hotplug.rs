//! CPUs go and come back, and so does memory.

use core::ops::Range;

use framewright::hotplug::OfflineFailure;
use framewright::units::{PAGEBLOCK_ORDER, SECTION_PAGES};
use framewright::{Migratetype, NodeId, Order, Pfn};

use super::support::{Books, Chain};

use crate::kernel::Kernel;
use crate::percpu::{self, State};
use crate::{log, smp};

/// Every CPU but the first: it fills its lists, stops (which empties them), starts again and allocates. Twice, for
/// what is left behind by the first time.
pub(super) fn cpus(kernel: &'static Kernel) {
    for _ in 0..2 {
        smp::everywhere(kernel, usize::MAX, &|_| {
            let pfn = kernel.alloc(Order::ZERO, Migratetype::Movable).expect("one page");
            kernel.free(pfn, Order::ZERO).unwrap_or_else(|error| panic!("{error}"));
        });
        for percpu in kernel.online().skip(1) {
            let cpu = percpu.number;
            let held = |cpu| -> u32 {
                kernel.pages.zones().iter().map(|zone| kernel.pages.pcp(zone.id(), cpu).count()).sum()
            };
            let before = held(cpu);
            smp::stop(kernel, cpu);
            assert_eq!((percpu.state(), held(cpu)), (State::Off, 0), "{cpu:?} left pages on its lists");
            log!("smpboot: {cpu:?} is now offline; it gave back {before} pages");
            smp::start(kernel, cpu);
            log!("smpboot: {cpu:?} on {:?} is online", percpu.node);
        }
        let all = kernel.pages.cpus();
        assert_eq!(kernel.online().count(), all, "a CPU is missing");
        assert!((0..all).all(|cpu| percpu::of(framewright::CpuId(cpu as u16)).is_some()));
    }
}

/// A pageblock that holds an allocated block stays. On each node the highest section that no caller holds goes, is
/// handed out no more, and comes back.
pub(super) fn memory(kernel: &'static Kernel) {
    held_memory_stays(kernel);
    for node in (0..kernel.machine.nodes() as u16).map(NodeId) {
        let Some(zone) = kernel.pages.zones().iter().rfind(|zone| zone.spec().node == node) else { continue };
        let spec = *zone.spec();
        // Whole sections: others hold memory of boot itself, which stays.
        let present = |at: u64| kernel.pages.frames().info(Pfn(at)).is_present();
        let is_whole = |range: &Range<Pfn>| {
            (range.start.0..range.end.0).step_by(PAGEBLOCK_ORDER.pages() as usize).all(present)
        };
        let numbers = spec.start.0.div_ceil(SECTION_PAGES)..spec.end().0 / SECTION_PAGES;
        let mut sections = numbers.rev().map(section).filter(is_whole);
        let before = (Books::read(kernel).0.free, zone.managed_pages(), zone.present_pages());
        let mut refused = 0;
        let gone = sections.find(|range| kernel.offline(range.clone()).inspect_err(|_| refused += 1).is_ok());
        let Some(gone) = gone else {
            assert!(spec.pages < SMALL, "no section of {node:?} can go offline");
            log!("memory: node {} is small: something lies in each of its sections", node.0);
            continue;
        };
        let pages = SECTION_PAGES;
        let after = (Books::read(kernel).0.free, zone.managed_pages(), zone.present_pages());
        assert_eq!(after, (before.0 - pages, before.1 - pages, before.2 - pages), "what is gone is counted");
        log!("memory: node {} section {:?} is offline; {refused} above it are in use", node.0, gone.start);
        must_not_come_from(kernel, &gone);
        let again = kernel.offline(gone.clone()).expect_err("it is gone");
        assert_eq!(again.why, OfflineFailure::NotPageblocks);
        kernel.pages.online(gone.start, pages).unwrap_or_else(|error| panic!("{error}"));
        let back = (Books::read(kernel).0.free, zone.managed_pages(), zone.present_pages());
        assert_eq!(back, before, "it is back");
    }
}

/// A zone with fewer pages may have something in each section: 1 GiB.
const SMALL: u64 = 8 * SECTION_PAGES;

const fn section(n: u64) -> Range<Pfn> {
    Pfn(n * SECTION_PAGES)..Pfn((n + 1) * SECTION_PAGES)
}

/// A pageblock that is allocated, and so is a whole one, as the last of a small machine's memory is not: the refusal
/// names the block, and nothing changes.
fn held_memory_stays(kernel: &Kernel) {
    let held = kernel.alloc(PAGEBLOCK_ORDER, Migratetype::Movable).unwrap_or_else(|error| panic!("{error}"));
    let refused = kernel.offline(held..held.add(PAGEBLOCK_ORDER.pages())).expect_err("it is held");
    assert!(matches!(refused.why, OfflineFailure::InUse(_)), "{refused}");
    let is_named = refused.holders.iter().flatten().any(|holder| holder.pfn == held);
    let all_named =
        matches!(refused.why, OfflineFailure::InUse(count) if count as usize <= refused.holders.len());
    assert!(is_named || !all_named, "{held:?} is not named: {refused}");
    log!("memory: {refused}");
    kernel.free(held, PAGEBLOCK_ORDER).unwrap_or_else(|error| panic!("{error}"));
}

/// Takes all huge blocks there are: none is in `gone`.
fn must_not_come_from(kernel: &Kernel, gone: &Range<Pfn>) {
    let chain = Chain::new();
    while let Ok(pfn) = kernel.alloc(PAGEBLOCK_ORDER, Migratetype::Movable) {
        assert!(!gone.contains(&pfn), "{pfn:?} is offline");
        chain.push(kernel, pfn, PAGEBLOCK_ORDER);
    }
    while let Some((pfn, order)) = chain.pop(kernel) {
        kernel.free(pfn, order).unwrap_or_else(|error| panic!("{error}"));
    }
}
