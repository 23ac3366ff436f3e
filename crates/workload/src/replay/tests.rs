//! Synthetic traces on a target that is watched by the oracle.

use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::Mutex;

use framewright_trace::trace::{Event, EventKind, Trace};
use proptest::prelude::*;

use super::*;
use crate::oracle::Findings;
use crate::random::Rng;
use crate::target::{Compaction, Mobility, Move, Target, TargetCpu};
use crate::testing::{Buddy, Quirk};

use EventKind::{PageAlloc, PageAllocZoneLocked, PageFree, PageFreeBatched, PagePcpuDrain};

/// A trace of (kind, cpu, pfn, order).
fn trace(events: &[(EventKind, u16, u64, u8)]) -> Trace {
    let event = |(time_ns, &(kind, cpu, pfn, order)): (u64, &(EventKind, u16, u64, u8))| {
        let migratetype = (kind == PageAlloc).then_some(1);
        Event { time_ns, pfn, cpu, order, migratetype, kind, ..Event::default() }
    };
    Trace { events: (0..).zip(events).map(event).collect(), ..Trace::default() }
}

const FRAMES: u64 = 1 << 14;

/// Replays on a target that takes parts or not, and checks what must hold for every replay.
fn run(plan: &Plan, parts: bool) -> (Report, Findings) {
    let buddy = if parts { Buddy::new(FRAMES).with_parts() } else { Buddy::new(FRAMES) };
    let target = buddy.watched();
    let report = replay(plan, &target, &Options { sample_every: 3, window: 8 });
    let (findings, counts) = (target.findings(), plan.counts());
    assert_eq!(findings.violations, [""; 0]);
    assert_eq!(findings.live_frames, 0, "all is free in the end");
    assert_eq!(target.free_blocks(10), Some(FRAMES >> 10));
    assert_eq!(report.allocations + report.failures, counts.allocations);
    if findings.failures == 0 {
        assert_eq!(report.allocated_frames, counts.allocated_frames);
        assert_eq!(report.live_frames, counts.live_frames);
        assert_eq!(report.skipped_frees, 0);
        assert_eq!(report.part_frees + report.deferred_parts, counts.part_frees);
        assert_eq!(if parts { report.deferred_parts } else { report.part_frees }, 0);
        let last_parts = report.frees - counts.frees;
        assert!(last_parts <= report.deferred_parts);
        assert_eq!(report.frees, report.counter("frees").unwrap() - report.part_frees, "and no others");
    }
    (report, findings)
}

fn both(plan: &Plan) -> [Report; 2] {
    [run(plan, true).0, run(plan, false).0]
}

#[test]
fn pages_of_files_are_asked_for_as_told() {
    // Read ahead; the same of a whole pageblock; an anonymous page; a page table.
    const READ_AHEAD: u64 = 0x15_2c4a;
    let mut trace =
        trace(&[(PageAlloc, 0, 1, 0), (PageAlloc, 0, 512, 9), (PageAlloc, 0, 2, 0), (PageAlloc, 0, 3, 0)]);
    for (event, gfp) in trace.events.iter_mut().zip([READ_AHEAD, READ_AHEAD, 0x14_0dca, READ_AHEAD]) {
        event.gfp = gfp;
    }
    trace.events[3].migratetype = Some(0);
    let asked = |page_cache| {
        let plan = Plan::compile_with(&trace, 1, page_cache).unwrap();
        assert_eq!(plan.counts().page_cache_frames, 1);
        let mobility = |op: &plan::Op| match op.action {
            plan::Action::Alloc { mobility, .. } => mobility,
            kind => panic!("{kind:?}"),
        };
        plan.threads[0].iter().map(mobility).collect::<Vec<_>>()
    };
    use Mobility::{Movable, Reclaimable, Unmovable};
    assert_eq!(asked(PageCache::AsTraced), [Movable, Movable, Movable, Unmovable]);
    assert_eq!(asked(PageCache::Reclaimable), [Reclaimable, Movable, Movable, Unmovable]);
}

#[test]
fn a_free_waits_for_its_allocation_on_another_cpu() {
    // CPU 1 frees what CPU 0 allocates, and the other way round, many times.
    let mut events = Vec::new();
    for block in 0..2000 {
        let cpu = (block % 2) as u16;
        events.push((PageAlloc, cpu, block % 7 * 8, 3));
        events.push((PageFree, 1 - cpu, block % 7 * 8, 3));
    }
    let trace = trace(&events);
    for threads in 1..=4 {
        let plan = Plan::compile(&trace, threads).unwrap();
        assert_eq!(plan.counts().peak_frames, 8);
        assert_eq!(plan.counts().cross_thread_frees, if threads == 1 { 0 } else { 2000 });
        for report in both(&plan) {
            assert_eq!((report.allocations, report.frees, report.live_frames), (2000, 2000, 0));
            assert_eq!(report.threads, threads);
        }
    }
}

#[test]
fn parts_go_back_as_parts_or_with_the_last() {
    let trace = trace(&[
        (PageAlloc, 0, 64, 3),
        (PageFree, 1, 66, 1),
        (PageFree, 0, 64, 0),
        (PageFree, 1, 65, 0),
        (PageFree, 2, 68, 2),
        (PageAlloc, 0, 64, 0),
        (PageFree, 3, 64, 0),
    ]);
    for threads in 1..=4 {
        let plan = Plan::compile(&trace, threads).unwrap();
        let counts = plan.counts();
        assert_eq!((counts.allocations, counts.frees, counts.part_frees), (2, 1, 4));
        let [parts, whole] = both(&plan);
        assert_eq!((parts.frees, parts.part_frees, parts.deferred_parts), (1, 4, 0));
        assert_eq!((whole.frees, whole.part_frees, whole.deferred_parts), (2, 0, 4));
        assert_eq!(parts.live_frames + whole.live_frames, 0);
    }
}

#[test]
fn what_is_left_of_parts_is_freed_at_the_end() {
    let trace = trace(&[(PageAlloc, 0, 512, 9), (PageFree, 1, 600, 0), (PageAlloc, 1, 0, 4)]);
    let plan = Plan::compile(&trace, 2).unwrap();
    assert_eq!(plan.counts().live_frames, 511 + 16);
    let [parts, whole] = both(&plan);
    assert_eq!((parts.live_frames, whole.live_frames), (527, 527));
    // Each of the two live blocks spoils one huge block.
    assert_eq!(parts.free_huge_blocks, Some(FRAMES / 512 - 2));
}

#[test]
fn unknown_frames_are_there_before_the_start() {
    let trace = trace(&[(PageFree, 0, 8, 2), (PageAlloc, 1, 8, 2), (PageFree, 1, 8, 2), (PageFree, 1, 8, 2)]);
    let plan = Plan::compile(&trace, 2).unwrap();
    let counts = plan.counts();
    assert_eq!((counts.frees, counts.unknown_frees, counts.unknown_frames), (3, 2, 8));
    assert_eq!(counts.peak_frames, 8, "two before the start; one is freed before another comes");
    for report in both(&plan) {
        assert_eq!((report.allocations, report.frees, report.prepare_failures), (1, 3, 0));
    }
}

#[test]
fn a_block_that_cannot_be_had_before_the_start_is_counted_and_skipped() {
    let events: Vec<_> = (0..FRAMES / 1024 + 3).map(|block| (PageFree, 0, block * 1024, 10)).collect();
    let report = run(&Plan::compile(&trace(&events), 1).unwrap(), true).0;
    assert_eq!((report.prepare_failures, report.skipped_frees, report.failures), (3, 3, 0));
    assert_eq!(report.frees, FRAMES / 1024);
}

#[test]
fn frames_allocated_again_without_a_free_were_freed() {
    let trace = trace(&[
        (PageAlloc, 0, 16, 4),
        (PageAlloc, 1, 18, 1),
        (PageAlloc, 0, 16, 0),
        (PageAlloc, 1, 16, 3),
        (PageFree, 0, 16, 3),
    ]);
    let plan = Plan::compile(&trace, 2).unwrap();
    let counts = plan.counts();
    // Part 18-19 of the first; part 16; then what is left of 16..24 around and in the small blocks; the last is whole.
    assert_eq!(counts.frees + counts.part_frees, 2 + 4 + 1);
    assert_eq!(counts.live_frames, 8);
    both(&plan);
}

#[test]
fn a_free_of_several_blocks_is_done_piece_by_piece() {
    let trace = trace(&[(PageAlloc, 0, 32, 0), (PageAlloc, 1, 34, 1), (PageFree, 1, 32, 2)]);
    let plan = Plan::compile(&trace, 2).unwrap();
    let counts = plan.counts();
    assert_eq!((counts.unknown_frees, counts.frees), (1, 3));
    both(&plan);
}

#[test]
fn batched_frees_are_not_counted_twice() {
    let events = [
        (PageAlloc, 0, 5, 0),
        (PageFree, 0, 5, 0),
        (PageFreeBatched, 0, 5, 0),
        (PageAlloc, 1, 5, 0),
        // Older kernels report it before the free itself.
        (PageFreeBatched, 1, 5, 0),
        (PageFree, 1, 5, 0),
    ];
    let plan = Plan::compile(&trace(&events), 2).unwrap();
    let counts = plan.counts();
    assert_eq!((counts.frees, counts.unknown_frees), (2, 0));
    both(&plan);

    let only_batched = [(PageAlloc, 0, 5, 0), (PageFreeBatched, 0, 5, 0)];
    let plan = Plan::compile(&trace(&only_batched), 2).unwrap();
    let counts = plan.counts();
    assert_eq!((counts.frees, counts.live_frames), (1, 0));
    both(&plan);
}

#[test]
fn the_traced_kernels_own_traffic_is_left_out() {
    let trace = trace(&[
        (PageAllocZoneLocked, 0, 7, 0),
        (PageAllocZoneLocked, 0, 8, 3),
        (PageAlloc, 0, 7, 0),
        (PagePcpuDrain, 0, 8, 3),
        (PageAlloc, 0, 9, 2),
    ]);
    let plan = Plan::compile(&trace, 1).unwrap();
    let counts = plan.counts();
    // Nor is what cannot be a block: order 2 at frame 9.
    assert_eq!((counts.allocations, counts.frees, counts.live_frames), (1, 0, 1));
    both(&plan);
}

#[test]
fn traces_that_cannot_be_replayed_are_refused() {
    let refused = |events: &[_]| Plan::compile(&trace(events), 2).unwrap_err();
    assert!(refused(&[]).contains("no allocations"));
    assert!(refused(&[(PagePcpuDrain, 0, 0, 0)]).contains("no allocations"));
    assert!(refused(&[(PageAlloc, 0, 0, 11)]).contains("event 0 has order 11"));
}

#[test]
fn migratetypes_become_mobilities() {
    let mut trace = trace(&[(PageAlloc, 0, 0, 0); 6]);
    for (frame, (event, migratetype)) in
        trace.events.iter_mut().zip([Some(0), Some(1), Some(2), Some(3), Some(5), None]).enumerate()
    {
        event.pfn = frame as u64;
        event.migratetype = migratetype;
    }
    let target = Buddy::new(1024).with(Quirk::CannotTell).watched();
    let report = replay(&Plan::compile(&trace, 1).unwrap(), &target, &Options::default());
    assert_eq!(report.allocations, 6);
    assert_eq!(report.free_huge_blocks, None);
    assert_eq!(target.inner().asked(), [1, 4, 1]);
}

#[test]
fn a_target_that_runs_out_fails_some_and_skips_their_frees() {
    let events: Vec<_> = (0..32).map(|block| (PageAlloc, 0, block * 1024, 10)).collect();
    let frees = (0..32).map(|block| (PageFree, 1, block * 1024 + 512, 9));
    let trace = trace(&[events, frees.collect()].concat());
    let plan = Plan::compile(&trace, 2).unwrap();
    assert_eq!(plan.counts().peak_frames, 32 * 1024);
    for parts in [true, false] {
        let (report, findings) = run(&plan, parts);
        assert!(report.failures >= 32 - FRAMES / 1024 - 1, "{report:?}");
        assert_eq!(report.failures, findings.failures);
        assert_eq!(report.skipped_frees, report.failures);
    }
}

#[test]
fn figures_add_up() {
    let events: Vec<_> = (0..3000).flat_map(|_| [(PageAlloc, 0, 3, 0), (PageFree, 0, 3, 0)]).collect();
    let plan = Plan::compile(&trace(&events), 1).unwrap();
    let (report, _) = run(&plan, true);
    assert_eq!(report.operations(), 6000);
    let samples = report.alloc_latency.samples().len() + report.free_latency.samples().len();
    assert_eq!(samples, 2000, "every third");
    assert!(report.busy_ns <= report.wall_ns && report.wall_ns > 0);
    let names: Vec<_> = report.metrics().into_iter().map(|metric| metric.name).collect();
    assert_eq!(names[..4], ["wall_ms", "cpu_ms", "ns_per_operation", "cpu_ns_per_operation"]);
    assert_eq!(names.last().unwrap(), "free_huge_blocks");
    let silent = replay(&plan, &Buddy::new(64).watched(), &Options { sample_every: 0, window: 0 });
    assert_eq!((silent.alloc_latency.samples().len(), silent.operations()), (0, 6000));
}

/// A history as a kernel could report it, with losses: blocks of all orders are allocated, freed whole, in parts or
/// not at all, on any CPU; some events are dropped, some frees are of frames that no event allocated.
fn history(seed: u64, events: usize, loss: usize) -> Trace {
    let mut rng = Rng::of_thread(seed, 0, 0);
    let mut list = Vec::new();
    let mut live: HashMap<u64, u8> = HashMap::new();
    while list.len() < events {
        let cpu = rng.index(6) as u16;
        let order = [0, 0, 0, 1, 2, 3, 6][rng.index(7)];
        let start = rng.index(64) as u64 * 64;
        match live.remove(&start) {
            None => {
                list.push((PageAlloc, cpu, start, order));
                live.insert(start, order);
            }
            Some(order) if order > 0 && rng.index(2) == 0 => {
                let part = rng.index(usize::from(order)) as u8;
                let mut parts: Vec<u64> =
                    (0..1 << (order - part)).map(|index| start + (index << part)).collect();
                rng.shuffle(&mut parts);
                // Some of it may stay in use.
                let freed = parts.len() - rng.index(2) * rng.index(parts.len());
                list.extend(parts[..freed].iter().map(|&pfn| (PageFree, rng.index(6) as u16, pfn, part)));
            }
            Some(order) => list.push((PageFree, cpu, start, order)),
        }
        if rng.index(20) == 0 {
            let order = rng.index(5) as u8;
            list.push((PageFree, cpu, rng.index(256) as u64 * 16, order));
        }
    }
    list.retain(|_| loss == 0 || rng.index(100) >= loss);
    trace(&list)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_replay_is_clean(seed: u64, threads in 1_usize..5, parts: bool, loss in 0_usize..30) {
        let trace = history(seed, 1500, loss);
        let plan = Plan::compile(&trace, threads).unwrap();
        let (report, _) = run(&plan, parts);
        let counts = plan.counts();
        prop_assert_eq!(counts.allocations, trace.count(PageAlloc) as u64);
        // Each frame that is allocated, or there before, is freed or left in use.
        let freed_parts: u64 = counts.allocated_frames + counts.unknown_frames - counts.live_frames;
        prop_assert!(freed_parts >= counts.frees + counts.part_frees);
        prop_assert!(counts.peak_frames >= counts.unknown_frames.max(counts.live_frames));
        prop_assert_eq!(report.failures, 0);
    }
}

#[test]
fn one_thread_replays_the_same_way_each_time() {
    let plan = Plan::compile(&history(3, 3000, 5), 1).unwrap();
    let (first, second) = (run(&plan, true), run(&plan, true));
    assert_eq!(first.1, second.1);
    assert_eq!(first.0.free_huge_blocks, second.0.free_huge_blocks);
}

/// What a look shows, on one CPU of a target that hands out the lowest block.
#[test]
fn huge_pages_are_counted_while_the_trace_runs_and_again() {
    // Of 32 pageblocks: 3 are filled, the second of them is emptied but for one frame, which stays.
    let mut events =
        vec![(PageAlloc, 0, 0, 9), (PageAlloc, 1, 512, 8), (PageAlloc, 0, 768, 8), (PageAlloc, 1, 1024, 9)];
    events.extend((513..1024).map(|pfn| (PageFree, 0, pfn, 0)));
    events.push((PageFree, 1, 0, 9));
    let trace = trace(&events);
    let plan = Plan::compile(&trace, 2).unwrap();
    let ageing = Ageing { runs: 3, looks: events.len() as u32, one_stays_in: 0, seed: 1 };
    let target = Buddy::new(FRAMES).with_parts().watched();
    let runs = age(&trace, &plan, &target, &ageing).expect("it has a range");
    assert_eq!(target.findings().violations, [""; 0]);
    assert_eq!((target.findings().live_frames, target.free_blocks(10)), (0, Some(FRAMES >> 10)));
    let first = &runs[0];
    assert_eq!(first.looks.len(), events.len());
    let whole = FRAMES / 512;
    let full =
        first.looks.iter().find(|look| look.free == FRAMES - 3 * 512).expect("all are allocated at a time");
    assert_eq!((full.huge, full.available()), (whole - 3, 1.0));
    let end = first.looks[events.len() - 1];
    assert_eq!((end.free, end.huge), (FRAMES - 512 - 1, whole - 2));
    assert_eq!(first.end(), ((whole - 2) * 512) as f64 / (FRAMES - 513) as f64);
    assert!(first.mean() < 1.0 && first.mean() > first.end());
    // Of 29 pageblocks and 511 frames at the end, 29 can be whole.
    assert_eq!(
        (end.possible(), first.possible().1),
        (((whole - 2) * 512) as f64 / end.free as f64, end.possible())
    );
    assert!((first.mean()..=1.0).contains(&first.possible().0));
    assert_eq!(first.in_band(90, FRAMES), Some(first.mean()), "so much is free all the time");
    assert_eq!(first.in_band(10, FRAMES), None);
    assert_eq!((first.unusable[0], first.failures), (0.0, 0));
    assert!(
        (first.unusable[9] - (1.0 - first.mean())).abs() < 1e-9,
        "{} {}",
        first.unusable[9],
        first.mean()
    );
    assert_eq!(runs[1].looks, first.looks, "all that it left in use was freed");
    assert_eq!(runs, age(&trace, &plan, &target, &ageing).expect("as before"));
    // With everything staying, the second run begins with less.
    let ageing = Ageing { one_stays_in: 1, ..ageing };
    let runs = age(&trace, &plan, &target, &ageing).expect("it has a range");
    assert_eq!(runs[1].looks[0].free + 512, runs[0].looks[0].free, "the whole block stays");
    assert_eq!(target.free_blocks(10), Some(FRAMES >> 10), "and is freed at last");
}

#[test]
fn pageblocks_with_unmovable_blocks_are_counted() {
    let mut trace =
        trace(&[(PageAlloc, 0, 0, 0), (PageAlloc, 0, 512, 10), (PageFree, 0, 512, 10), (PageFree, 0, 0, 0)]);
    trace.events[0].migratetype = Some(0);
    let plan = Plan::compile(&trace, 1).unwrap();
    let ageing = Ageing { runs: 1, looks: 4, ..Ageing::default() };
    let runs = age(&trace, &plan, &Buddy::new(FRAMES).watched(), &ageing).expect("it has a range");
    // A block that is not aligned is left out.
    let counts: Vec<u64> = runs[0].looks.iter().map(|look| look.unmovable_pageblocks).collect();
    assert_eq!(counts, [1, 1, 1, 0]);
    assert_eq!(runs[0].unmovable_pageblocks(), 0.75);
}

/// A target that has rounds of compaction, of a CPU that says what they do.
struct Compacting<C>(C);

impl<C: Sync + 'static> Target for Compacting<C>
where
    for<'a> &'a C: TargetCpu,
{
    type Cpu<'a> = &'a C;

    fn attach(&self, _cpu: usize) -> &C {
        &self.0
    }

    fn frames(&self) -> Option<u64> {
        Some(FRAMES)
    }

    fn free_blocks(&self, _order: u8) -> Option<u64> {
        Some(0)
    }

    fn compaction_round_ms(&self) -> Option<u32> {
        Some(500)
    }
}

/// Single frames, of which each round of compaction moves all that can move.
struct Restless(Mutex<Vec<bool>>, AtomicU64);

impl TargetCpu for &Restless {
    fn alloc(&mut self, _order: u8, _mobility: Mobility) -> Option<u64> {
        let mut used = self.0.lock().expect("no thread panicked");
        let frame = used.iter().position(|used| !used)?;
        used[frame] = true;
        Some(frame as u64)
    }

    fn free(&mut self, frame: u64, _order: u8) {
        let was_taken = core::mem::take(&mut self.0.lock().expect("no thread panicked")[frame as usize]);
        assert!(was_taken, "{frame} is free already");
    }

    fn tick(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn compact(&mut self, by: &mut dyn Move) -> Option<Compaction> {
        let mut used = self.0.lock().expect("no thread panicked");
        let mut done = Compaction::default();
        let in_use: Vec<usize> = (0..used.len()).filter(|&frame| used[frame]).collect();
        for from in in_use {
            assert!(!by.can_move(from as u64, 1), "a frame is no block of order 1");
            let to = used.iter().rposition(|used| !used).expect("memory is left");
            if by.can_move(from as u64, 0) && by.move_block(from as u64, to as u64, 0) {
                (used[from], used[to]) = (false, true);
                done.moved += 1;
            } else {
                assert!(!by.move_block(from as u64, to as u64, 0), "{from} would not move");
                done.stayed += 1;
            }
        }
        Some(done)
    }
}

/// Blocks of order 1 begin at frame 10, others at 8. Compaction finds one of order 1 at 10.
struct Rest;

impl TargetCpu for &Rest {
    fn alloc(&mut self, order: u8, _mobility: Mobility) -> Option<u64> {
        Some(if order == 1 { 10 } else { 8 })
    }

    fn free(&mut self, _frame: u64, _order: u8) {}

    fn free_part(&mut self, _frame: u64, _part: u8, _whole: u8) -> bool {
        true
    }

    fn compact(&mut self, by: &mut dyn Move) -> Option<Compaction> {
        assert!(!by.can_move(10, 1), "it is the rest of a block");
        Some(Compaction::default())
    }
}

/// It moved as the block that had been freed in parts there before, and was freed where it no longer was.
#[test]
fn the_rest_of_a_block_is_not_taken_for_one_that_was_there_before() {
    let mut trace = trace(&[
        (PageAlloc, 0, 10, 1),
        (PageFree, 0, 10, 0),
        (PageFree, 0, 11, 0),
        (PageAlloc, 0, 8, 2),
        (PageFree, 0, 8, 1),
        (PageFree, 0, 10, 1),
    ]);
    trace.events[5].time_ns = 1_000_000_000;
    let plan = Plan::compile(&trace, 1).unwrap();
    let runs = age(&trace, &plan, &Compacting(Rest), &Ageing { runs: 2, ..Ageing::default() })
        .expect("it has a range");
    assert_eq!([runs[0].rounds, runs[1].rounds], [1, 1]);
}

/// Blocks that have moved are freed where they are, also those that earlier runs have left; what the traced kernel
/// could not move stays.
#[test]
fn blocks_are_freed_where_compaction_has_left_them() {
    // 1 and 3 can move. 2 is unmovable, and the mobility of 9, which was there before, is not known.
    let mut trace = trace(&[
        (PageAlloc, 0, 1, 0),
        (PageAlloc, 1, 2, 0),
        (PageAlloc, 1, 3, 0),
        (PageFree, 0, 1, 0),
        (PageFree, 1, 2, 0),
        (PageFree, 1, 9, 0),
    ]);
    trace.events[1].migratetype = Some(0);
    for (event, tenths) in trace.events.iter_mut().zip([0, 0, 0, 12, 12, 26]) {
        event.time_ns = tenths * 100_000_000;
    }
    for page_cache in PageCache::ALL {
        let plan = Plan::compile_with(&trace, 2, page_cache).unwrap();
        let ageing = Ageing { runs: 2, looks: 4, one_stays_in: 1, seed: 1 };
        let target = Compacting(Restless(Mutex::new(vec![false; FRAMES as usize]), AtomicU64::new(0)));
        let runs = age(&trace, &plan, &target, &ageing).expect("it has a range");
        // Both in the two rounds before 1.2 s, one in the three after it; in the second run also the one that was left.
        let seen: Vec<(u64, Compaction)> = runs.iter().map(|run| (run.rounds, run.compaction)).collect();
        let outcome = |moved, stayed| (5, Compaction { moved, stayed });
        assert_eq!(seen, [outcome(2 * 2 + 3, 2 * 2 + 3), outcome(2 * 2 + 3 + 5, 2 * 2 + 3)]);
        assert_eq!((runs[0].allocated, runs[0].moved_per_allocated()), (4, 7.0 / 4.0));
        assert_eq!(
            target.0.1.load(Ordering::Relaxed),
            2 * 2 * 2,
            "in each run two seconds, on each of two CPUs"
        );
        assert!(
            target.0.0.lock().expect("no thread panicked").iter().all(|used| !used),
            "all is free in the end"
        );
    }
    // Without compaction nothing is counted.
    let plan = Plan::compile(&trace, 2).unwrap();
    let runs = age(&trace, &plan, &Buddy::new(FRAMES).watched(), &Ageing::default()).expect("it has a range");
    assert_eq!((runs[0].rounds, runs[0].compaction), (0, Compaction::default()));
}

/// Two recordings in one file are years apart, and a clock may leap: fifteen runs of that are no more work than hours.
#[test]
fn of_a_pause_in_the_trace_the_last_hour_counts() {
    let mut trace = trace(&[(PageAlloc, 0, 1, 0), (PageFree, 0, 1, 0)]);
    trace.events[1].time_ns = u64::MAX;
    let plan = Plan::compile(&trace, 1).unwrap();
    let age_of = |goes_on: &dyn Fn() -> bool| {
        let target = Compacting(Restless(Mutex::new(vec![false; FRAMES as usize]), AtomicU64::new(0)));
        let ageing = Ageing { runs: 3, ..Ageing::default() };
        let runs = age_while(&trace, &plan, &target, &ageing, goes_on).expect("it has a range");
        (runs.iter().map(|run| run.rounds).collect::<Vec<_>>(), target.0.1.load(Ordering::Relaxed))
    };
    assert_eq!(age_of(&|| true), (vec![7200; 3], 3 * 3600));
    // An interrupt ends a run, which is then left out.
    let asked = AtomicU64::new(0);
    let (rounds, ticks) = age_of(&|| asked.fetch_add(1, Ordering::Relaxed) < 100);
    assert!(rounds.is_empty() && ticks < 100, "{ticks}");
}
