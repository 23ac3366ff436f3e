extern crate std;

use core::sync::atomic::Ordering::Relaxed;
use std::vec::Vec;

use super::*;
use crate::policy::testing::Xorshift;
use crate::units::CpuId;
use testing::{BASE, Store, ZONE, class_of, wanted};

/// Takes blocks. Returns their first frames, as numbers from the store's first.
fn take(store: &mut Store, wanted: Wanted, count: u64, balance: Option<(u64, u64)>, bad: u64) -> Vec<u64> {
    let mut taken = Vec::new();
    let mut sink = Each(|pfn: Pfn| {
        taken.push(pfn.0 - BASE.0);
        pfn.0 - BASE.0 != bad
    });
    let blocks = store.with(|buddy| buddy.take(wanted, count, balance, &mut sink));
    assert_eq!(blocks, taken.len() as u64);
    taken
}

/// A pageblock that is isolated and has a bad frame in use counts twice among those that need a look at each free.
#[test]
fn a_pageblock_that_is_special_twice_counts_twice() {
    let mut store = Store::section(2);
    let bad = BlockInfo::new(ZONE, Migratetype::Movable).poisoned(true);
    let both = BlockInfo::new(ZONE, Migratetype::Isolate).poisoned(true);
    let good = BlockInfo::new(ZONE, Migratetype::Movable);
    for (to, counted) in [(both, 2), (bad, 1), (both, 2), (BlockInfo::ABSENT, 0), (both, 2), (good, 0)] {
        let from = store.frames.info(Store::pageblock(1));
        store.with(|buddy| buddy.set_info(Store::pageblock(1), from, to));
        assert_eq!(crate::platform::Word::load(&store.common.special, Relaxed), counted, "{to:?}");
    }
}

/// Two pageblocks of one bin, and one of a worse: another section may have a better one.
#[test]
fn a_section_among_several_gives_what_is_in_its_best_bin() {
    for (mut store, counts) in [(Store::section(3), [5, 8, 0]), (Store::new(3, true), [13, 0, 0])] {
        store.free(0, [0, 2, 4]);
        store.free(1, [1, 3]);
        store.free(2, 8..16);
        let counted = counts.map(|_| take(&mut store, wanted(Order::ZERO), 100, None, 0).len());
        assert_eq!(counted, counts);
        store.check();
    }
}

/// The words of a section follow its pageblocks, also for buddies of different types; a word that does not is found.
#[test]
fn a_section_shows_free_buddies_of_different_types_until_one_is_taken() {
    let mut store = Store::section(4);
    store.set_type(1, Migratetype::Unmovable);
    for n in [0, 1] {
        store.with(|buddy| buddy.free(Store::pageblock(n), PAGEBLOCK_ORDER, Placement::Tail));
    }
    assert_eq!(store.check(), 2 * PAGEBLOCK_PAGES);
    let of_all = &store.common.words[3 * (WORDS - 1) + 1];
    assert_eq!(of_all.load(Relaxed) >> MIXED, 1);
    assert_eq!(take(&mut store, wanted(PAGEBLOCK_ORDER), 1, None, u64::MAX), [0]);
    assert_eq!((store.check(), of_all.load(Relaxed) >> MIXED), (PAGEBLOCK_PAGES, 0));
    for word in [of_all, &store.common.words[3 * Migratetype::Unmovable.index() + 1]] {
        let right = word.load(Relaxed);
        word.store(right + 1, Relaxed);
        assert!(!store.with(|buddy| buddy.is_as_shown()));
        word.store(right, Relaxed);
    }
    assert!(store.with(|buddy| buddy.is_as_shown()));
}

/// While more than half of the free pages are CMA, each block comes from there. A bad one stays counted.
#[test]
fn each_block_of_cma_changes_the_balance() {
    let mut store = Store::new(2, true);
    store.set_type(0, Migratetype::Cma);
    (0..2).for_each(|n| store.free(n, 0..64));
    assert_eq!(store.common.counters.free_cma_pages(), 64);
    let wanted = Wanted { may_use_cma: true, ..wanted(Order::ZERO.up()) };
    let taken = take(&mut store, wanted, 5, Some((100, 54)), 2);
    assert_eq!(taken, [0, 2, 512, 514, 516]);
    assert_eq!(
        (store.common.counters.free_pages(), store.common.counters.free_cma_pages()),
        (128 - 10, 64 - 2)
    );
}

/// Bad huge blocks of CMA stay counted as well.
#[test]
fn bad_huge_blocks_of_cma_stay_counted() {
    let mut store = Store::new(4, true);
    (0..4).for_each(|n| store.set_type(n, Migratetype::Cma));
    let all = (0..4).map(Store::pageblock);
    store.with(|buddy| all.for_each(|at| buddy.free(at, PAGEBLOCK_ORDER, Placement::Likely)));
    let wanted = Wanted { migratetype: Migratetype::Cma, ..wanted(PAGEBLOCK_ORDER) };
    assert_eq!(take(&mut store, wanted, 3, None, 512), [0, 512, 1024]);
    let counters = &store.common.counters;
    assert_eq!((counters.free_pages(), counters.free_cma_pages()), (PAGEBLOCK_PAGES, 2 * PAGEBLOCK_PAGES));
}

/// A request that takes blocks of another type, and not its pageblock, takes the smallest that suffice: also if a
/// larger one is in a pageblock with more free frames, or of the type that comes first.
#[test]
fn a_fallback_breaks_no_larger_block_than_it_must() {
    let mut store = Store::new(3, true);
    // Large enough to group by mobility.
    store.with(|buddy| buddy.count_managed(1 << 20));
    store.set_type(2, Migratetype::Reclaimable);
    store.free(0, (0..8).chain((16..128).step_by(2)));
    store.free(1, (64..80).step_by(4).flat_map(|frame| [frame, frame + 1]));
    store.free(2, 128..132);
    let unmovable = Wanted {
        migratetype: Migratetype::Unmovable,
        may_fall_back: true,
        generation: Generation::V3_0,
        ..wanted(Order::ZERO.up())
    };
    let pairs = take(&mut store, unmovable, 8, None, u64::MAX);
    assert_eq!(pairs, [512 + 64, 512 + 68, 512 + 72, 512 + 76, 1024 + 128, 1024 + 130, 0, 2]);
    store.check();
}

/// Two CPUs have freed one block at the same instant: the second free comes when its pageblock is free as a whole.
#[test]
fn frames_of_a_pageblock_that_is_free_as_a_whole_are_free_already() {
    for (order, has_words) in (0..9).flat_map(|k| [true, false].map(|words| (Order::from_bits(k), words))) {
        for whole in [false, true] {
            let mut store = Store::new(2, has_words);
            store.free(0, 0..PAGEBLOCK_PAGES);
            let count = if whole { PAGEBLOCK_PAGES >> order.get() } else { 1 };
            let run = Run { first: Store::pageblock(0), count: count as u32, order };
            store.with(|buddy| buddy.free_run(run));
            assert_eq!(store.check(), PAGEBLOCK_PAGES, "{run:?}");
            store.with(|buddy| assert_eq!(buddy.counts().refused_pages, count << order.get()));
        }
    }
}

/// Likewise of large blocks, a pageblock of which is free in part when the second free comes.
#[test]
fn a_large_block_of_which_a_frame_is_free_is_free_already() {
    for (order, open) in [(PAGEBLOCK_ORDER, 0), (MAX_ORDER, 0), (MAX_ORDER, 1)] {
        let mut store = Store::new(4, true);
        store.free(open, 3..7);
        store.with(|buddy| buddy.free_run(Run { first: BASE, count: 1, order }));
        assert_eq!(store.check(), 4, "{order}");
        store.with(|buddy| assert_eq!(buddy.counts().refused_pages, order.pages()));
    }
}

/// A caller that panics under the lock has freed what it freed, and other CPUs see it.
#[test]
fn a_hold_that_panics_counts_and_shows_its_changes() {
    for mut store in [Store::section(3), Store::new(3, true)] {
        let panics = core::panic::AssertUnwindSafe(|| {
            store.with(|buddy| {
                buddy.free(Store::pageblock(0), Order::ZERO, Placement::Likely);
                buddy.free(Store::pageblock(2), PAGEBLOCK_ORDER, Placement::Likely);
                panic!("a mistake of the caller");
            })
        });
        std::panic::catch_unwind(panics).expect_err("it panics");
        assert_eq!(store.check(), 1 + PAGEBLOCK_PAGES);
    }
}

#[test]
fn counts_of_sections_add_up_field_by_field() {
    let counts = |fallbacks, by: u64| BuddyCounts {
        fallbacks,
        fragmenting: fallbacks + by,
        steals: fallbacks + 2 * by,
        retyped: fallbacks + 3 * by,
        damaged_pages: fallbacks + 4 * by,
        rebuilt_bins: fallbacks + 5 * by,
        refused_pages: fallbacks + 6 * by,
    };
    let mut sum = counts(1, 10);
    sum += counts(200, 1000);
    assert_eq!(sum, counts(201, 1010));
}

const PAGEBLOCKS: u64 = 7;

/// A store, the frames that are free in it, and the types of its pageblocks: all that the calls below answer follows
/// from these.
struct Model {
    store: Store,
    free: Vec<bool>,
    types: [Migratetype; PAGEBLOCKS as usize],
    /// Where it is isolated, the type before that.
    before: [Option<Migratetype>; PAGEBLOCKS as usize],
}

impl Model {
    fn new(store: Store) -> Self {
        let n = PAGEBLOCKS as usize;
        Self {
            store,
            free: std::vec![false; n * 512],
            types: [Migratetype::Movable; PAGEBLOCKS as usize],
            before: [None; PAGEBLOCKS as usize],
        }
    }

    fn frames(&self, first: u64, pages: u64) -> &[bool] {
        &self.free[first as usize..(first + pages) as usize]
    }

    fn is_free(&self, first: u64, order: Order) -> bool {
        self.frames(first, order.pages()).iter().all(|&free| free)
    }

    fn is_used(&self, first: u64, pages: u64) -> bool {
        self.frames(first, pages).iter().all(|&free| !free)
    }

    fn set(&mut self, first: u64, pages: u64, free: bool) {
        self.free[first as usize..(first + pages) as usize].fill(free);
    }

    /// Takes a block off the free frames.
    #[track_caller]
    fn gone(&mut self, first: u64, order: Order) {
        assert!(first.is_multiple_of(order.pages()) && self.is_free(first, order), "{first}, order {order}");
        self.set(first, order.pages(), false);
    }

    /// Free frames of a pageblock.
    fn count(&self, n: u64) -> u64 {
        self.frames(n * 512, 512).iter().filter(|&&free| free).count() as u64
    }

    /// The blocks of an order that are free in a pageblock.
    fn blocks(&self, n: u64, order: Order) -> impl Iterator<Item = u64> {
        let starts = (n * 512..(n + 1) * 512).step_by(order.pages() as usize);
        starts.filter(move |&first| self.is_free(first, order))
    }

    /// Order of the largest free block of a pageblock.
    fn largest(&self, n: u64) -> Option<Order> {
        let orders = Order::all().rev().filter(|&order| order <= PAGEBLOCK_ORDER);
        orders.into_iter().find(|&order| self.blocks(n, order).next().is_some())
    }

    /// Largest block and class of an open pageblock.
    fn bin(&self, n: u64) -> Option<(Order, usize)> {
        let count = self.count(n);
        (1..512).contains(&count).then(|| (self.largest(n).expect("it has free frames"), class_of(count)))
    }

    /// The best bin of the open pageblocks of a type that have a block of an order.
    fn best(&self, list: Migratetype, order: Order) -> Option<(Order, usize)> {
        let open = (0..PAGEBLOCKS).filter(|&n| self.types[n as usize] == list).filter_map(|n| self.bin(n));
        open.filter(|&(largest, _)| largest >= order).min()
    }

    fn is_usable(&self, n: u64) -> bool {
        let list = self.types[n as usize];
        list.is_ordinary() || list == Migratetype::Cma
    }

    fn check(&mut self) {
        for n in 0..PAGEBLOCKS {
            let frames = (0..512).filter(|&frame| self.free[(n * 512 + frame) as usize]);
            assert_eq!(self.store.free_frames(n), frames.collect::<Vec<_>>(), "pageblock {n}");
            assert_eq!(self.store.frames.info(Store::pageblock(n)).migratetype(), self.types[n as usize]);
        }
        self.store.check();
        assert_eq!(self.store.with(|buddy| buddy.counts().rebuilt_bins), 0);
    }

    fn take(&mut self, random: &mut Xorshift, order: Order) {
        let list = match self.types[random.below(PAGEBLOCKS) as usize] {
            Migratetype::Isolate => Migratetype::Unmovable,
            list => list,
        };
        let count = 1 + random.below(40);
        let best = self.best(list, order);
        let mut taken = Vec::new();
        let mut sink = Each(|pfn: Pfn| {
            taken.push(pfn.0 - BASE.0);
            true
        });
        let request = Wanted { migratetype: list, ..wanted(order) };
        let blocks = self.store.with(|buddy| buddy.take(request, count, None, &mut sink));
        assert!(blocks == taken.len() as u64 && blocks <= count);
        if order < PAGEBLOCK_ORDER
            && let (Some(best), Some(first)) = (best, taken.first())
        {
            assert_eq!(self.bin(first / 512), Some(best), "of the best bin");
        }
        taken.iter().for_each(|first| assert_eq!(self.types[(first / 512) as usize], list));
        let is_section = self.store.is_section();
        taken.iter().for_each(|&first| self.gone(first, order));
        let left = (0..PAGEBLOCKS).filter(|&n| self.types[n as usize] == list);
        let left = match order == MAX_ORDER {
            // Halves of two types are a block of none here.
            true => left
                .filter(|n| n % 2 == 0 && n + 1 < PAGEBLOCKS)
                .any(|n| self.types[n as usize + 1] == list && self.is_free(n * 512, order)),
            false => left.filter_map(|n| self.largest(n)).any(|largest| largest >= order),
        };
        assert!(
            blocks == count || !left || (is_section && blocks > 0),
            "{blocks} of {count} blocks of {order}"
        );
    }

    #[expect(clippy::too_many_lines, reason = "a step for each call")]
    fn step(&mut self, random: &mut Xorshift) {
        let n = random.below(PAGEBLOCKS);
        let start = Store::pageblock(n);
        let orders = [random.below(11), random.below(11), 9 + random.below(2)];
        let order = Order::from_bits(if random.below(4) == 0 { orders[2] } else { orders[0].min(orders[1]) });
        let small = order.min(Order::from_bits(8));
        let first = (n * 512 + random.below(512)) / order.pages() * order.pages();
        let (pages, pfn) = (order.pages(), BASE.add(first));
        let is_inside = first + pages <= PAGEBLOCKS * 512;
        match random.below(11) {
            0 | 1 if is_inside && self.is_used(first, pages) => {
                self.store.with(|buddy| buddy.free(pfn, order, Placement::Likely));
                self.set(first, pages, true);
            }
            2 | 3 => {
                let most = if order < PAGEBLOCK_ORDER { (first / 512 + 1) * 512 } else { PAGEBLOCKS * 512 };
                let count =
                    1 + random.below((most.saturating_sub(first) / pages).max(1)).min(random.below(600));
                if first + count * pages <= most && self.is_used(first, count * pages) {
                    let run = Run { first: pfn, count: count as u32, order };
                    self.store.with(|buddy| buddy.free_run(run));
                    self.set(first, count * pages, true);
                }
            }
            4 => self.take(random, order),
            5 => {
                // Blocks that are free in part: what is free stays so, and is counted.
                let first = first / 512 * 512 + first % 512 / small.pages() * small.pages();
                let already = self.frames(first, small.pages()).iter().filter(|&&free| free).count() as u64;
                if (1..512).contains(&self.count(n)) && first / 512 == n && already < small.pages() {
                    let refused = self.store.with(|buddy| {
                        let before = buddy.counts().refused_pages;
                        buddy.free(BASE.add(first), small, Placement::Likely);
                        buddy.counts().refused_pages - before
                    });
                    assert_eq!(refused, already);
                    self.set(first, small.pages(), true);
                }
            }
            6 => {
                let first = n * 512 + random.below(512);
                let most = if random.below(2) == 0 { 30 } else { 1500 };
                let pages = (1 + random.below(most)).min(PAGEBLOCKS * 512 - first);
                let used = self.frames(first, pages).iter().position(|free| !free);
                let got = self.store.with(|buddy| buddy.take_range(BASE.add(first), pages));
                assert_eq!(
                    got.map_err(|(pfn, _)| pfn.0 - BASE.0 - first),
                    used.map_or(Ok(()), |at| Err(at as u64))
                );
                if used.is_none() {
                    self.set(first, pages, false);
                }
            }
            7 => {
                let now = self.types[n as usize];
                let pages = Some(self.count(n));
                match self.before[n as usize].take() {
                    Some(before) => {
                        assert_eq!(self.store.with(|buddy| buddy.isolate(start, None)), None);
                        assert_eq!(self.store.with(|buddy| buddy.unisolate(start, Some(CpuId(0)))), None);
                        assert_eq!(self.store.with(|buddy| buddy.unisolate(start, None)), pages);
                        self.types[n as usize] = before;
                    }
                    None if random.below(3) == 0 => {
                        assert_eq!(self.store.with(|buddy| buddy.unisolate(start, None)), None);
                        assert_eq!(self.store.with(|buddy| buddy.isolate(start, None)), pages);
                        (self.types[n as usize], self.before[n as usize]) = (Migratetype::Isolate, Some(now));
                    }
                    None => {
                        let to = Migratetype::ALL[random.below(5) as usize];
                        let wrong = Migratetype::ALL[(now as usize + 1) % 5];
                        let set =
                            |buddy: &mut Buddy<'_, '_, _, _>, from| buddy.set_pageblock_type(start, from, to);
                        assert_eq!(self.store.with(|buddy| set(buddy, Some(wrong))), None);
                        assert_eq!(
                            self.store.with(|buddy| set(buddy, Some(now).filter(|_| n.is_multiple_of(2)))),
                            pages
                        );
                        self.types[n as usize] = to;
                    }
                }
            }
            8 => {
                let is_open = (1..512).contains(&self.count(n)) && self.is_usable(n);
                let room = random.below(9) as usize;
                let expected: Vec<u64> = self.blocks(n, small).filter(|_| is_open).take(room).collect();
                let mut out = [Pfn(0); 8];
                let len = self.store.with(|buddy| buddy.take_from_pageblock(start, small, &mut out[..room]));
                assert!(out[..len].iter().map(|pfn| pfn.0 - BASE.0).eq(expected.iter().copied()));
                expected.into_iter().for_each(|first| self.gone(first, small));
            }
            9 => {
                let room = random.below(9) as usize;
                let mut out = [(Pfn(0), Order::ZERO); 8];
                let len = self.store.with(|buddy| buddy.take_whole(start, order, &mut out[..room]));
                let out: Vec<_> = out[..len].iter().map(|&(pfn, order)| (pfn.0 - BASE.0, order)).collect();
                // The largest first; a pair that begins here is one block.
                let may_merge = |n: u64| {
                    fallback::may_merge(PAGEBLOCK_ORDER, self.types[n as usize], self.types[(n ^ 1) as usize])
                };
                let is_pair =
                    (n ^ 1) < PAGEBLOCKS && self.count(n) + self.count(n ^ 1) == 1024 && may_merge(n);
                let mut expected = Vec::new();
                if self.count(n) == 512 {
                    let found = if is_pair { MAX_ORDER } else { PAGEBLOCK_ORDER };
                    let begins = !is_pair || n.is_multiple_of(2);
                    expected.extend(
                        (begins && self.is_usable(n) && found >= order && room > 0)
                            .then_some((n * 512, found)),
                    );
                } else if self.is_usable(n) {
                    let mut left = self.free.clone();
                    for found in Order::all().rev().filter(|&found| (order..PAGEBLOCK_ORDER).contains(&found))
                    {
                        for first in (n * 512..(n + 1) * 512).step_by(found.pages() as usize) {
                            let block = &mut left[first as usize..(first + found.pages()) as usize];
                            if expected.len() < room && block.iter().all(|&free| free) {
                                block.fill(false);
                                expected.push((first, found));
                            }
                        }
                    }
                }
                assert_eq!(out, expected, "pageblock {n}, order {order}");
                expected.into_iter().for_each(|(first, order)| self.gone(first, order));
            }
            10 => {
                let list = Migratetype::ALL[[0, 1, 1, 2, 4][random.below(5) as usize]];
                let (but, free) = (random.below(PAGEBLOCKS), random.below(512));
                let fits = |model: &Self, n: u64| {
                    n != but
                        && model.types[n as usize] == list
                        && model.count(n) <= free
                        && model.largest(n) >= Some(small)
                };
                let best = (0..PAGEBLOCKS)
                    .filter(|&n| fits(self, n))
                    .filter_map(|n| self.bin(n).map(|(largest, class)| (class, largest)))
                    .min();
                let found = self.store.with(|buddy| {
                    let mut out = [Pfn(0)];
                    let but = Store::pageblock(but)..Store::pageblock(but + 1);
                    let len = buddy.take_from_fuller(&but, free as u32, list, small, &mut out);
                    out[..len].first().map(|pfn| pfn.0 - BASE.0)
                });
                let bin =
                    found.and_then(|first| self.bin(first / 512)).map(|(largest, class)| (class, largest));
                assert_eq!(bin, best, "{list}, order {small}, {free} free frames");
                if let Some(first) = found {
                    assert!(fits(self, first / 512));
                    self.gone(first, small);
                }
                let first = self.store.with(|buddy| buddy.first_with(list)).map(|pfn| (pfn.0 - BASE.0) / 512);
                match self.best(list, Order::ZERO) {
                    Some(best) => assert_eq!(first.and_then(|n| self.bin(n)), Some(best)),
                    None => {
                        let whole = |n: &u64| self.types[*n as usize] == list && self.count(*n) == 512;
                        assert!(first.map_or(!(0..PAGEBLOCKS).any(|n| whole(&n)), |n| whole(&n)));
                    }
                }
            }
            _ => {}
        }
    }
}

/// Frees, takes and changes of types in any order. Against a naive model.
#[test]
fn a_store_has_the_frames_that_were_freed_and_not_taken() {
    let mut random = Xorshift(0x2545_f491_4f6c_dd1d);
    for make in
        [|| Store::new(PAGEBLOCKS, true), || Store::new(PAGEBLOCKS, false), || Store::section(PAGEBLOCKS)]
    {
        let mut model = Model::new(make());
        for _ in 0..400 {
            (0..4).for_each(|_| model.step(&mut random));
            model.check();
        }
    }
}

/// Every block near a run, below and above it: those that continue it become part of it, inside the pageblock or, for
/// huge blocks, inside the limit.
#[test]
fn a_run_grows_by_the_blocks_beside_it() {
    for (order, most) in Order::all().flat_map(|order| [(order, 1 << 11), (order, 1 << 15)]) {
        let (pages, within) = (order.pages(), if order < PAGEBLOCK_ORDER { PAGEBLOCK_PAGES } else { most });
        let base = 3 << 15;
        let mut run = Run { first: Pfn(base + within / 2), count: 1, order };
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        for _ in 0..200 {
            let end = run.first.0 + u64::from(run.count) * pages;
            let near = [run.first.0 - pages, end, run.first.0, end + pages, run.first.0 - 2 * pages];
            let pfn = near[random.below(5) as usize];
            let before = run;
            let is_inside = (base..base + within).contains(&pfn);
            let is_beside = pfn == end || pfn + pages == run.first.0;
            for not_of_it in Order::all().filter(|&not_of_it| not_of_it != order) {
                assert!(!run.extend(Pfn(pfn), not_of_it, most));
            }
            assert_eq!(run, before);
            assert_eq!(run.extend(Pfn(pfn), order, most), is_inside && is_beside, "{pfn:#x}, order {order}");
            let grown = Run { first: before.first.min(Pfn(pfn)), count: before.count + 1, order };
            assert_eq!(run, if is_inside && is_beside { grown } else { before });
        }
    }
}
