//! Deferred initialisation: the part of the memory map that boot leaves for later, and how CPUs share it.
//!
//! Boot initialises little more than one section of each node's highest zone ([`first_deferred`]). Requests that cannot
//! wait for the rest grow the zone by sections (`Allocator::grow`). Later all nodes initialise the rest in parallel:
//! [`jobs`] divides it into jobs, workers [`claim`](Job::claim) chunks of a job, and go through a chunk by max-order
//! units.
//!
//! Free memory is given as ranges of frames, sorted and without overlap. `section` is a section's size in base pages
//! ([`crate::units::SECTION_PAGES`]; 0 counts as 1).

use core::ops::Range;

use super::round_up;
use crate::units::{MAX_ORDER, Order, PAGEBLOCK_ORDER, Pfn};

/// Jobs have about this many chunks for each thread, so that the last ones end together.
const CHUNKS_PER_THREAD: u64 = 4;

/// First frame of a node that boot leaves for later; `None` if boot initialises the whole node.
///
/// It is the first section-aligned frame that, counted together with the frames before it, exceeds one section.
/// `ranges` are the ranges of the node's last zone, reserved frames included. So boot initialises exactly one section
/// of a zone with an aligned start, and less than two of any other. O(ranges).
#[must_use]
pub fn first_deferred(ranges: impl IntoIterator<Item = Range<Pfn>>, section: u64) -> Option<Pfn> {
    let section = section.max(1);
    let mut seen = 0_u64;
    for range in ranges {
        let enough = range.start.0.saturating_add(section.saturating_sub(seen));
        let at = Pfn(round_up(enough, section));
        if at < range.end {
            return Some(at);
        }
        seen = seen.saturating_add(range.end.0.saturating_sub(range.start.0));
    }
    None
}

/// Order of the block at `start` that a free range gives to the buddy lists next: a pageblock if `start` is aligned and
/// a whole one is left before `end`, else 0. O(1).
#[must_use]
pub const fn release_order(start: Pfn, end: Pfn) -> Order {
    let pageblock = PAGEBLOCK_ORDER;
    if start.is_aligned(pageblock) && end.0.saturating_sub(start.0) >= pageblock.pages() {
        pageblock
    } else {
        Order::ZERO
    }
}

/// The parts of `ranges` inside `within`, in order. O(log ranges + parts).
pub fn clipped(ranges: &[Range<Pfn>], within: Range<Pfn>) -> impl Iterator<Item = Range<Pfn>> {
    let first = ranges.partition_point(|range| range.end <= within.start);
    ranges[first..]
        .iter()
        .map(move |range| range.start.max(within.start)..range.end.min(within.end))
        .take_while(|part| part.start < part.end)
}

/// How threads share deferred initialisation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Split {
    /// One thread for each node (v5.4).
    OneThread,
    /// All CPUs of the node. One job for each free range in turn, in chunks of whole max-order units (the
    /// *parallel-init* change as posted).
    AllCpus,
    /// All CPUs of the node. A job reaches to the end of its range's last section and includes the other ranges there,
    /// in chunks of whole sections (as merged for v5.8).
    #[default]
    AllCpusBySection,
}

/// Part of a node that several threads initialise together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Job {
    /// Frames of the job. A job by section may hold several free ranges, and gaps.
    pub range: Range<Pfn>,
    /// Threads, the caller's included. A single thread claims the whole range in one chunk.
    pub threads: u64,
    /// Size of a chunk, in base pages.
    pub chunk: u64,
}

impl Job {
    /// Divides `range` of `size` base pages into chunks that are multiples of `grain`:
    ///
    /// `threads = min(max(size / grain, 1), max_threads)`, and `chunk = roundup(max(size / (4 · threads), 1), grain)`.
    ///
    /// 0 counts as 1 for `grain` and `max_threads`. O(1).
    #[must_use]
    pub fn new(range: Range<Pfn>, grain: u64, max_threads: u64) -> Self {
        let size = range.end.0.saturating_sub(range.start.0);
        let threads = (size / grain.max(1)).max(1).min(max_threads.max(1));
        let share = size / threads.saturating_mul(CHUNKS_PER_THREAD);
        Self { range, threads, chunk: round_up(share.max(1), grain) }
    }

    /// The chunk that a worker claims when the job's position is `at`. It ends at the next multiple of `chunk` strictly
    /// above, or at the job's end. `None` once all is claimed. The position then moves to the end of the chunk; workers
    /// agree on it under a lock or by compare-and-swap. O(1).
    #[must_use]
    pub fn claim(&self, at: Pfn) -> Option<Range<Pfn>> {
        let end = match self.threads {
            1 => self.range.end,
            _ => Pfn(round_up(at.0.saturating_add(1), self.chunk)).min(self.range.end),
        };
        (at < self.range.end).then_some(at..end)
    }
}

/// The jobs of one node in turn: its free memory from `first_deferred` on. `node_cpus` is the number of CPUs of the
/// node, 0 counts as 1.
///
/// | split | a job covers | threads at most | grain |
/// |---|---|---|---|
/// | `OneThread` | one free range | 1 | 1024 |
/// | `AllCpus` | one free range | CPUs | 1024 |
/// | `AllCpusBySection` | the next free range, to the end of its last section | CPUs | section |
///
/// With `AllCpusBySection`, the reviewer's rule, no two jobs share a section, so no worker leaves a max-order unit half
/// done for another worker. Advancing costs O(log ranges).
pub fn jobs(
    ranges: &[Range<Pfn>],
    first_deferred: Pfn,
    split: Split,
    node_cpus: u64,
    section: u64,
) -> impl Iterator<Item = Job> {
    let mut at = first_deferred;
    core::iter::from_fn(move || {
        let range = clipped(ranges, at..Pfn(u64::MAX)).next()?;
        let job = match split {
            Split::OneThread => Job::new(range, MAX_ORDER.pages(), 1),
            Split::AllCpus => Job::new(range, MAX_ORDER.pages(), node_cpus),
            Split::AllCpusBySection => {
                Job::new(range.start..Pfn(round_up(range.end.0, section)), section, node_cpus)
            }
        };
        at = job.range.end;
        Some(job)
    })
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;
    use crate::units::SECTION_PAGES;

    const GIB: u64 = 1 << 18;

    fn span(start: u64, end: u64) -> Range<Pfn> {
        Pfn(start)..Pfn(end)
    }

    fn pages(range: &Range<Pfn>) -> u64 {
        range.end.0 - range.start.0
    }

    /// All chunks of a job in the order in which they are claimed.
    fn claims_of(job: &Job) -> impl Iterator<Item = Range<Pfn>> {
        core::iter::successors(job.claim(job.range.start), |chunk| job.claim(chunk.end))
    }

    /// Counts frame by frame, as boot does.
    fn first_deferred_by_counting(ranges: &[Range<Pfn>], section: u64) -> Option<Pfn> {
        let mut count = 0;
        for range in ranges {
            for pfn in range.start.0..range.end.0 {
                count += 1;
                if count > section && pfn % section == 0 {
                    return Some(Pfn(pfn));
                }
            }
        }
        None
    }

    #[test]
    fn an_aligned_zone_keeps_one_section_and_others_less_than_two() {
        for start in 0..3 * 8 {
            for len in 0..50 {
                let ranges = [span(start, start + len)];
                let first = first_deferred(ranges.clone(), 8);
                assert_eq!(first, first_deferred_by_counting(&ranges, 8), "{ranges:?}");
                let kept = first.map(|first| first.0 - start);
                assert!(kept.is_none_or(|kept| (8..16).contains(&kept) && (start % 8 != 0 || kept == 8)));
            }
        }
        let node = [span(4 * GIB, 384 * GIB)];
        assert_eq!(first_deferred(node.clone(), SECTION_PAGES), Some(Pfn(1_081_344)));
        assert_eq!(first_deferred([], SECTION_PAGES), None);
    }

    #[test]
    fn gaps_do_not_count_as_initialised() {
        for gap_at in 0..20 {
            for gap in 0..20 {
                for start in 0..9 {
                    let (a, b) = (start + gap_at, start + gap_at + gap);
                    let ranges = [span(start, a), span(b, b + 30)];
                    assert_eq!(
                        first_deferred(ranges.clone(), 8),
                        first_deferred_by_counting(&ranges, 8),
                        "{ranges:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn whole_pageblocks_are_released_as_one() {
        for (start, end, order) in
            [(0, 512, 9), (0, 511, 0), (1, 1024, 0), (512, 1024, 9), (512, 1023, 0), (511, 512, 0)]
        {
            assert_eq!(release_order(Pfn(start), Pfn(end)).get(), order, "{start}..{end}");
        }
        assert_eq!(release_order(Pfn(u64::MAX - 511), Pfn(u64::MAX)), Order::ZERO);
    }

    #[test]
    fn parts_are_those_of_the_ranges_within() {
        let ranges = [span(100, 900), span(950, 1024), span(1024, 3000), span(9000, 9001)];
        let parts = |within| clipped(&ranges, within).collect::<Vec<_>>();
        assert_eq!(parts(span(0, 20_000)), ranges);
        assert_eq!(parts(span(200, 960)), [span(200, 900), span(950, 960)]);
        assert_eq!(parts(span(900, 950)), []);
        assert_eq!(parts(span(1500, 1500)), []);
        assert_eq!(parts(span(3000, 9000)), []);
    }

    #[test]
    fn the_worked_machine_of_two_times_26_cores() {
        let node = [span(4 * GIB, 384 * GIB)];
        let first = first_deferred(node.clone(), SECTION_PAGES).expect("most is deferred");
        for (split, chunk, claims, head, tail) in [
            (Split::AllCpus, 479_232, 209, 356_352, None),
            (Split::AllCpusBySection, 491_520, 203, 393_216, Some(393_216)),
        ] {
            let all: Vec<_> = jobs(&node, first, split, 52, SECTION_PAGES).collect();
            assert_eq!(all.len(), 1);
            let job = &all[0];
            assert_eq!((pages(&job.range), job.threads, job.chunk), (99_581_952, 52, chunk));
            let claimed: Vec<_> = claims_of(job).collect();
            assert_eq!(claimed.len(), claims);
            assert_eq!(pages(&claimed[0]), head);
            assert!(tail.is_none_or(|tail| pages(&claimed[claims - 1]) == tail));
            assert!(claimed[1..claims - 1].iter().all(|claim| pages(claim) == chunk));
        }
        let single: Vec<_> = jobs(&node, first, Split::OneThread, 52, SECTION_PAGES).collect();
        assert_eq!(single.len(), 1);
        assert_eq!(claims_of(&single[0]).collect::<Vec<_>>(), [span(1_081_344, 384 * GIB)]);
    }

    #[test]
    fn threads_and_chunks_stay_within_their_bounds() {
        for size in [0, 1, 1023, 1024, 1025, 2047, 2048, 100_000, 1 << 30, 1 << 40] {
            for grain in [0, 1, 3, 1000, 1024, 32_768] {
                for max_threads in [0, 1, 2, 52, 8192] {
                    let job = Job::new(span(12_345, 12_345 + size), grain, max_threads);
                    assert!((1..=max_threads.max(1)).contains(&job.threads), "{job:?}");
                    assert!(job.threads == 1 || job.threads * grain <= size, "{job:?}");
                    assert!(job.chunk > 0 && job.chunk.is_multiple_of(grain.max(1)), "{job:?}");
                    if size <= 100_000 {
                        let covered: u64 = claims_of(&job).map(|claim| pages(&claim)).sum();
                        assert_eq!(covered, size, "{job:?}");
                    }
                    assert_eq!(job.claim(job.range.end), None);
                }
            }
        }
        let endless = Job::new(span(0, u64::MAX), u64::MAX, u64::MAX);
        assert_eq!(claims_of(&endless).count(), 1);
    }

    #[test]
    fn claims_follow_one_another_and_end_on_multiples() {
        let job = Job::new(span(5000, 2_000_123), 1024, 7);
        let mut at = job.range.start;
        for claim in claims_of(&job) {
            assert_eq!(claim.start, at);
            assert!(claim.end.0 % job.chunk == 0 || claim.end == job.range.end);
            assert!(claim.start < claim.end && pages(&claim) <= job.chunk);
            at = claim.end;
        }
        assert_eq!(at, job.range.end);
    }

    #[test]
    fn splits_cover_all_that_is_deferred() {
        let ranges = [
            span(0, 40_000),
            span(40_100, 70_000),
            span(70_001, 98_305),
            span(200_000, 327_680),
            span(327_700, 400_000),
        ];
        let first = Pfn(32_768);
        let deferred: u64 = clipped(&ranges, first..Pfn(u64::MAX)).map(|part| pages(&part)).sum();
        for split in [Split::OneThread, Split::AllCpus, Split::AllCpusBySection] {
            for cpus in [0, 1, 3, 64] {
                let mut at = first;
                let mut covered = 0;
                for job in jobs(&ranges, first, split, cpus, SECTION_PAGES) {
                    assert!(job.range.start >= at, "{split:?}: jobs follow one another");
                    at = job.range.end;
                    for claim in claims_of(&job) {
                        covered += clipped(&ranges, claim).map(|part| pages(&part)).sum::<u64>();
                    }
                }
                assert_eq!(covered, deferred, "{split:?} with {cpus} CPUs");
            }
        }
        let starts = |split| -> Vec<u64> {
            jobs(&ranges, first, split, 4, SECTION_PAGES).map(|job| job.range.start.0).collect()
        };
        assert_eq!(starts(Split::AllCpus), [32_768, 40_100, 70_001, 200_000, 327_700]);
        // The second range begins in the first one's last section, the third runs one frame into the next.
        assert_eq!(starts(Split::AllCpusBySection), [32_768, 65_536, 98_304, 200_000, 327_700]);
    }

    #[test]
    fn no_two_jobs_by_section_share_a_section() {
        let mut ranges = vec![];
        let mut at = 777;
        for i in 0..200_u64 {
            let end = at + 1 + i * i * 37 % 50_000;
            ranges.push(span(at, end));
            at = end + 1 + i * 7919 % 20_000;
        }
        let mut last = None;
        for job in jobs(&ranges, Pfn(0), Split::AllCpusBySection, 16, SECTION_PAGES) {
            let section = job.range.start.0 / SECTION_PAGES;
            assert!(last.is_none_or(|last| section > last));
            assert_eq!(job.range.end.0 % SECTION_PAGES, 0);
            last = Some((job.range.end.0 - 1) / SECTION_PAGES);
            for claim in claims_of(&job) {
                assert!(claim.end.0 % SECTION_PAGES == 0, "no unit is shared between workers");
            }
        }
    }
}
