//! Owners of frames, layouts, and frees of any part of what was allocated.

use core::alloc::Layout;
use core::ops::Range;
use std::rc::Rc;

use framewright::OwnedFrames;
use framewright::owned::GiveBack;
use framewright_check::prelude::*;

const ENGINES: [Engine; 3] = [Engine::Linux, Engine::Framewright, Engine::Compact];
const PAGES: u64 = 8 << 10;

fn world(engine: Engine) -> World<Plain> {
    Spec::one_zone(PAGES, 2).config(with_engine(engine)).plain()
}

fn layout(pages: u64, align: u64) -> Layout {
    Layout::from_size_align((pages * 4096) as usize, (align * 4096) as usize).expect("a layout")
}

/// Every frame is in use by one owner at most.
struct Used(Vec<bool>);

impl Used {
    fn new() -> Self {
        Self(vec![false; PAGES as usize])
    }

    fn set(&mut self, range: &Range<Pfn>, to: bool) {
        for pfn in range.start.0..range.end.0 {
            let slot = &mut self.0[(pfn - BASE.0) as usize];
            assert_ne!(*slot, to, "frame {pfn} {range:?}");
            *slot = to;
        }
    }
}

#[test]
fn a_layout_gives_its_frames_aligned_and_no_others() {
    for engine in ENGINES {
        let world = world(engine);
        world.on(0, |cpu| {
            let mut used = Used::new();
            let mut held = Vec::new();
            for (pages, align) in [
                (1, 1),
                (3, 1),
                (5, 8),
                (1, 16),
                (100, 1),
                (512, 512),
                (600, 1),
                (1024, 1024),
                (1, 1024),
                (1, 2048),
            ] {
                let range =
                    cpu.alloc_layout(layout(pages, align), Migratetype::Movable).expect("there is room");
                assert_eq!((range.end.0 - range.start.0, range.start.0 % align), (pages, 0), "{engine:?}");
                used.set(&range, true);
                held.push(range);
            }
            // One byte takes one frame, a byte more than a frame two.
            for (bytes, pages) in [(1, 1), (4097, 2)] {
                let layout = Layout::from_size_align(bytes, 1).expect("a layout");
                let range = cpu.alloc_layout(layout, Migratetype::Movable).expect("there is room");
                assert_eq!(range.end.0 - range.start.0, pages);
                held.push(range);
            }
            let nothing = Layout::from_size_align(0, 1).expect("a layout");
            assert_eq!(
                cpu.alloc_layout(nothing, Migratetype::Movable).map_err(|error| error.why),
                Err(AllocFailure::NotAllowed)
            );
            // What rounding up took has gone back.
            let pages: u64 = held.iter().map(|range| range.end.0 - range.start.0).sum();
            cpu.drain();
            assert_eq!(cpu.allocator().free_pages(), PAGES - pages, "{engine:?}");
            for range in held {
                free_range(cpu, range).expect("it was allocated");
            }
        });
        world.drain_all();
        assert_eq!(world.settled().free, PAGES, "{engine:?}");
    }
}

#[test]
fn any_part_of_an_allocation_is_freed_and_only_once() {
    for engine in ENGINES {
        let world = world(engine);
        let mut rng = fastrand::Rng::with_seed(7);
        world.on(0, |cpu| {
            for order in 0..=10_u8 {
                let order = Order::new(order).expect("an order");
                let pfn = cpu.must_alloc(order);
                let mut cuts: Vec<u64> =
                    (0..4).map(|_| rng.u64(0..=order.pages())).chain([0, order.pages()]).collect();
                cuts.sort_unstable();
                cuts.dedup();
                let mut parts: Vec<_> =
                    cuts.windows(2).map(|ends| pfn.add(ends[0])..pfn.add(ends[1])).collect();
                rng.shuffle(&mut parts);
                for (n, part) in parts.iter().enumerate() {
                    free_range(cpu, part.clone()).expect("it was allocated");
                    assert!(free_range(cpu, part.clone()).is_err(), "{engine:?}: twice");
                    let free = parts[..=n].iter().map(|part| part.end.0 - part.start.0).sum::<u64>();
                    cpu.drain();
                    assert_eq!(cpu.allocator().free_pages(), PAGES - order.pages() + free, "{engine:?}");
                }
            }
            // Frames that are no memory of the allocator.
            let outside = Pfn(BASE.0 + PAGES);
            assert!(matches!(
                free_range(cpu, outside..outside.add(1)),
                Err(FreeError { why: FreeFailure::Foreign, .. })
            ));
        });
        assert_eq!(world.settled().free, PAGES);
    }
}

/// Splits, merges and drops in random order, on two CPUs; the frames that are in use are always those of the owners.
#[test]
fn owners_hold_every_frame_once_through_splits_and_merges() {
    for engine in ENGINES {
        let world = world(engine);
        world.on(0, |cpu| {
            world.on(1, |second| {
                let mut rng = fastrand::Rng::with_seed(11);
                let mut used = Used::new();
                let mut owners: Vec<OwnedFrames<_>> = Vec::new();
                for _ in 0..4000 {
                    let n = rng.usize(0..owners.len().max(1));
                    match rng.u32(0..4) {
                        0 if owners.len() < 24 => {
                            let cpu = if rng.bool() { cpu } else { second };
                            if let Ok(frames) = cpu.alloc_frames(rng.u64(1..300), Migratetype::Movable) {
                                used.set(frames.range(), true);
                                owners.push(frames);
                            }
                        }
                        1 if n < owners.len() && owners[n].pages() > 1 => {
                            let frames = owners.swap_remove(n);
                            let (pages, range) = (frames.pages(), frames.range().clone());
                            let (low, high) = frames.split(rng.u64(1..pages));
                            assert_eq!(low.range().start..high.range().end, range);
                            assert_eq!(low.range().end, high.range().start);
                            owners.extend([low, high]);
                        }
                        2 if owners.len() > 1 => {
                            let first = owners.swap_remove(n);
                            let next = owners.iter().position(|next| next.range().start == first.range().end);
                            let next = owners.swap_remove(next.unwrap_or(0));
                            let touch = first.range().end == next.range().start;
                            match first.merge(next) {
                                Ok(both) => {
                                    assert!(touch);
                                    owners.push(both);
                                }
                                Err((first, next)) => {
                                    assert!(!touch);
                                    owners.extend([first, next]);
                                }
                            }
                        }
                        3 if n < owners.len() => {
                            let frames = owners.swap_remove(n);
                            used.set(frames.range(), false);
                            drop(frames);
                        }
                        _ => {}
                    }
                }
                let held: u64 = owners.iter().map(OwnedFrames::pages).sum();
                assert_eq!(used.0.iter().filter(|used| **used).count() as u64, held);
                cpu.drain();
                second.drain();
                assert_eq!(cpu.allocator().free_pages(), PAGES - held, "{engine:?}");
            });
        });
        world.drain_all();
        assert_eq!(world.settled().free, PAGES, "{engine:?}");
    }
}

#[test]
#[expect(unsafe_code, reason = "frames without an owner get one again")]
fn a_block_is_split_in_halves_leaked_and_taken_over() {
    let world = world(Engine::Framewright);
    world.on(0, |cpu| {
        let block = cpu.alloc_frames(8, Migratetype::Unmovable).expect("there is room");
        let start = block.range().start;
        let (low, high) = block.split(4);
        assert_eq!([&low, &high].map(|half| half.range().start), [start, start.add(4)]);
        let (range, home) = high.into_raw();
        let leaked = low.leak();
        cpu.drain();
        assert_eq!((&leaked, cpu.allocator().free_pages()), (&(start..start.add(4)), PAGES - 8));
        // SAFETY: both were given up just now.
        unsafe {
            drop(OwnedFrames::from_raw(range, home));
            drop(OwnedFrames::from_raw(leaked, home));
        }
        assert!(
            std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                let _ = cpu.alloc_frames(4, Migratetype::Movable).expect("there is room").split(4);
            }))
            .is_err()
        );
    });
    world.drain_all();
    assert_eq!(world.settled().free, PAGES);
}

/// Adjacent frames of two allocators stay two owners: each gives its own back.
#[test]
fn frames_of_two_allocators_do_not_merge() {
    let [first, second] = [(); 2].map(|()| world(Engine::Framewright));
    first.on(0, |cpu| {
        second.on(0, |second_cpu| {
            let low = cpu.alloc_frames(1, Migratetype::Movable).expect("there is room");
            let taken = cpu.alloc_frames(1, Migratetype::Movable).expect("there is room");
            let at = low.range().end;
            assert_eq!(taken.range().start, at);
            second_cpu.must_alloc_at(at, 0);
            #[expect(unsafe_code, reason = "a frame without an owner gets one")]
            // SAFETY: it was allocated just now.
            let high = unsafe { OwnedFrames::from_raw(at..at.add(1), second_cpu) };
            let (low, high) = low.merge(high).expect_err("they are of two allocators");
            drop((low, high, taken));
            cpu.drain();
            second_cpu.drain();
        });
    });
    assert_eq!([&first, &second].map(|world| world.settled().free), [PAGES; 2]);
}

/// An owner's way to its allocator, which counts how many of its kind there are.
#[derive(Clone)]
struct Counted<'c, 'a> {
    cpu: &'c Cpu<'a, 'a, Plain>,
    _count: Rc<()>,
}

#[expect(unsafe_code, reason = "an owner's way to its allocator")]
// SAFETY: as the CPU's own.
unsafe impl GiveBack for Counted<'_, '_> {
    unsafe fn free_range(&self, range: Range<Pfn>) -> Result<(), FreeError> {
        free_range(self.cpu, range)
    }

    unsafe fn split_at(&self, at: Pfn) -> Result<(), FreeError> {
        // SAFETY: by the caller's promise.
        unsafe { self.cpu.split_at(at) }
    }

    fn reaches_same(&self, peer: &Self) -> bool {
        self.cpu.reaches_same(&peer.cpu)
    }
}

/// Splits, merges and leaks leave no way to the allocator behind.
#[test]
fn an_owner_that_is_gone_has_dropped_its_way_home() {
    let world = world(Engine::Framewright);
    world.on(0, |cpu| {
        let count = Rc::new(());
        let pfn = cpu.must_alloc(2);
        #[expect(unsafe_code, reason = "a block without an owner gets one")]
        // SAFETY: it was allocated just now.
        let block = unsafe { OwnedFrames::from_raw(pfn..pfn.add(4), Counted { cpu, _count: count.clone() }) };
        let (low, high) = block.split(1);
        let (high, rest) = high.split(1);
        let both = low.merge(high).expect("they are adjacent");
        assert_eq!(Rc::strong_count(&count), 3);
        let leaked = rest.leak();
        drop(both);
        assert_eq!(Rc::strong_count(&count), 1);
        free_range(cpu, leaked).expect("it is allocated");
    });
    world.drain_all();
    assert_eq!(world.settled().free, PAGES);
}

/// A run of 4,096 frames in memory of 8,192, also while frames elsewhere are in use; none that is not there.
#[test]
fn runs_above_the_largest_block_are_found() {
    for engine in ENGINES {
        let world = world(engine);
        world.on(0, |cpu| {
            // In the middle of the second pageblock.
            cpu.alloc_at(BASE.add(PAGEBLOCK_PAGES + 77), Order::ZERO).expect("it is free");
            let range = cpu.alloc_layout(layout(4096, 2048), Migratetype::Movable).expect("there is room");
            assert_eq!(range, BASE.add(2048)..BASE.add(2048 + 4096), "{engine:?}: the first that fits");
            assert_eq!(
                cpu.alloc_layout(layout(4096, 1), Migratetype::Movable).map_err(|error| error.why),
                Err(AllocFailure::NoMemory)
            );
            let tail = cpu.alloc_layout(layout(1500, 1), Migratetype::Movable).expect("there is room");
            // A part of it, from the middle of a block to the middle of another.
            free_range(cpu, range.start.add(100)..range.start.add(3000)).expect("it was allocated");
            free_range(cpu, range.start.add(3000)..range.end).expect("it was allocated");
            free_range(cpu, range.start..range.start.add(100)).expect("it was allocated");
            free_range(cpu, tail).expect("it was allocated");
            cpu.must_free(BASE.add(PAGEBLOCK_PAGES + 77), 0_u8);
        });
        world.drain_all();
        assert_eq!(world.settled().free, PAGES, "{engine:?}");
    }
}

/// Two frames of each pageblock are in use, so that no block of order 8 is free, but runs of 299 frames are.
#[test]
fn a_layout_of_a_blocks_size_gets_a_run_where_no_block_is_free() {
    for engine in ENGINES {
        world(engine).on(0, |cpu| {
            for at in (0..PAGES / PAGEBLOCK_PAGES).flat_map(|n| [100, 400].map(|at| n * PAGEBLOCK_PAGES + at))
            {
                cpu.alloc_at(BASE.add(at), Order::ZERO).expect("it is free");
            }
            for (pages, align, fits) in [(256, 1, true), (256, 2, false), (512, 1, false)] {
                let got = cpu.alloc_layout(layout(pages, align), Migratetype::Movable);
                assert_eq!(got.is_ok(), fits && engine != Engine::Linux, "{engine:?}: {pages} at {align}");
                let Ok(range) = got else { continue };
                assert_eq!(range.end.0 - range.start.0, pages, "{engine:?}");
                free_range(cpu, range).expect("it was allocated");
            }
        });
    }
}

/// One frame of each pageblock is in use, so that no block of order 9 is free, but runs of 411 frames are.
#[test]
fn a_layout_gets_a_run_where_no_block_is_free() {
    for engine in ENGINES {
        let world = world(engine);
        world.on(0, |cpu| {
            let taken = || (0..PAGES / PAGEBLOCK_PAGES).map(|n| BASE.add(n * PAGEBLOCK_PAGES + 100));
            taken().for_each(|pfn| {
                cpu.alloc_at(pfn, Order::ZERO).expect("it is free");
            });
            let got = [cpu.alloc_layout(layout(300, 1), Migratetype::Movable), {
                cpu.alloc_split(layout(411, 1), Migratetype::Movable)
            }];
            // Lists know blocks only.
            for (range, pages) in got.into_iter().zip([300, 411]) {
                assert_eq!(range.is_ok(), engine != Engine::Linux, "{engine:?}: {range:?}");
                let Ok(range) = range else { continue };
                assert_eq!(range.end.0 - range.start.0, pages, "{engine:?}");
                free_range(cpu, range).expect("it was allocated");
            }
            for (pages, align) in [(412, 1), (300, 2), (512, 1)] {
                let why =
                    cpu.alloc_layout(layout(pages, align), Migratetype::Movable).map_err(|error| error.why);
                assert_eq!(why, Err(AllocFailure::NoMemory), "{engine:?}: {pages} at {align}");
            }
            taken().for_each(|pfn| cpu.must_free(pfn, 0_u8));
        });
        world.drain_all();
        assert_eq!(world.settled().free, PAGES, "{engine:?}");
    }
}

/// After a split into frames, each of them comes back alone, from the other CPU too; a frame that is free cannot be
/// split.
#[test]
#[expect(unsafe_code, reason = "a test that owns the range, or that shows a refusal")]
fn a_range_is_split_into_frames() {
    for engine in ENGINES {
        let world = world(engine);
        let range = world.on(0, |cpu| {
            let range = cpu.alloc_layout(layout(3000, 1), Migratetype::Movable).expect("there is room");
            // SAFETY: allocated just now; what is free is refused.
            unsafe {
                cpu.split_range(range.clone()).expect("it is allocated");
                assert!(cpu.split_range(range.end..range.end.add(1)).is_err(), "{engine:?}");
            }
            range
        });
        for pfn in (range.start.0..range.end.0).map(Pfn) {
            world.must_free((pfn.0 % 2) as usize, pfn, Order::ZERO);
        }
        world.drain_all();
        assert_eq!(world.settled().free, PAGES, "{engine:?}");
    }
}

/// An allocation of single frames comes back frame by frame, by both CPUs in any order, with every check: a second free
/// is refused, and so is a larger order. Frames beyond the layout are free.
#[test]
fn an_allocation_of_single_frames_comes_back_frame_by_frame() {
    for engine in ENGINES {
        let world = world(engine);
        let mut used = Used::new();
        for (pages, align) in [(1, 1), (2, 1), (5, 1), (8, 16), (512, 1), (700, 1024), (1024, 1), (3000, 512)]
        {
            let wanted = layout(pages, align);
            let range =
                world.on(0, |cpu| cpu.alloc_split(wanted, Migratetype::Movable)).expect("there is room");
            assert_eq!((range.end.0 - range.start.0, range.start.0 % align), (pages, 0), "{engine:?}");
            world.drain_all();
            assert_eq!(world.settled().allocated, pages, "{engine:?}");
            used.set(&range, true);
            let whole = world.on(0, |cpu| cpu.free(range.start, order(1)));
            assert!(whole.is_err(), "{engine:?}: they are single frames");
            // From both ends, by CPUs in turn.
            for n in 0..pages {
                let pfn = range.start.add(if n % 2 == 0 { n / 2 } else { pages - 1 - n / 2 });
                world.must_free((n / 3 % 2) as usize, pfn, Order::ZERO);
                let again = world.on((n % 2) as usize, |cpu| cpu.free(pfn, Order::ZERO));
                assert!(again.is_err(), "{engine:?}: freed before");
            }
            used.set(&range, false);
            world.drain_all();
            assert_eq!(world.settled().free, PAGES, "{engine:?}: {pages} frames");
        }
        let nothing = Layout::from_size_align(0, 1).expect("a layout");
        let refused = world.on(0, |cpu| cpu.alloc_split(nothing, Migratetype::Movable));
        assert_eq!(refused.map_err(|error| error.why), Err(AllocFailure::NotAllowed));
    }
}

/// Up to the largest block a layout is a block, of the type that was requested; a larger size, or a larger alignment,
/// is a range, which counts as unmovable.
#[test]
fn only_layouts_above_the_largest_block_are_ranges() {
    let world = Spec::one_zone(PAGES, 1).bare().plain();
    world.on(0, |cpu| {
        // Of the free blocks of the largest order only one is at a multiple of 2048 frames.
        let kept = [1, 3, 4, 5].map(|n| BASE.add(n * 1024));
        let all = (0..PAGES / 1024).map(|n| BASE.add(n * 1024));
        all.filter(|pfn| !kept.contains(pfn)).for_each(|pfn| cpu.must_alloc_at(pfn, MAX_ORDER));
        for (pages, align, expected) in [
            (1, 2048, Migratetype::Unmovable),
            (1025, 1, Migratetype::Unmovable),
            (1024, 1, M),
            (1, 1024, M),
            (1000, 1024, M),
        ] {
            let range = cpu.alloc_layout(layout(pages, align), M).expect("there is room");
            assert_eq!((range.end.0 - range.start.0, range.start.0 % align), (pages, 0));
            let (_, State::Taken { asked, .. }) = cpu.allocator().frames().find(range.start) else {
                panic!("{range:?} is allocated");
            };
            assert_eq!(asked, expected, "{pages} at {align}");
            free_range(cpu, range).expect("it was allocated");
        }
        for (pages, align, asked) in [(0, 512, M), (512, 3, M), (512, 512, Migratetype::Cma)] {
            let refused =
                cpu.alloc_contig_with(pages, align, asked, &Helpers::NONE).map_err(|error| error.why);
            assert_eq!(refused, Err(AllocFailure::NotAllowed), "{pages} at {align} of {asked}");
        }
    });
}

/// A frame of an allocation of single frames is freed like one of the CPU's list: where the list is empty, the first is
/// a hit.
#[test]
fn single_frames_of_an_allocation_are_hits() {
    let world = world(Engine::Framewright);
    world.on(0, |cpu| {
        // Its lists of both orders are in use.
        let pair = cpu.must_alloc(1);
        let before: Vec<Pfn> = core::iter::once(cpu.must_alloc(0))
            .chain(core::iter::from_fn(|| cpu.alloc_hit(Order::ZERO, M)))
            .collect();
        let range = cpu.alloc_split(layout(2, 1), M).expect("there is room");
        assert!(cpu.free_hit(range.start, Order::ZERO));
        assert!(!cpu.free_hit(range.start, Order::ZERO), "it is on the list");
        cpu.must_free(range.start.add(1), 0);
        before.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
        cpu.must_free(pair, 1);
    });
    world.drain_all();
    assert_eq!(world.settled().free, PAGES);
}
