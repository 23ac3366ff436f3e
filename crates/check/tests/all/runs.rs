//! Frames in few runs, and ranges of a size that no block has.

use core::ops::Range;
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use framewright_check::prelude::*;

const NONE: Range<Pfn> = Pfn(0)..Pfn(0);

fn pages(runs: &[Range<Pfn>]) -> u64 {
    runs.iter().map(|run| run.end.0 - run.start.0).sum()
}

fn give_back<P: Platform<Pin = OwnedPin>, M: FrameUser>(cpu: &Cpu<'_, '_, P, M>, range: Range<Pfn>) {
    free_range(cpu, range).expect("it is allocated");
}

/// The runs of the frames whose bits are set.
fn runs_of(mask: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for n in (0..64).filter(|n| mask >> n & 1 != 0) {
        match runs.last_mut() {
            Some(run) if run.end == n => run.end = n + 1,
            _ => runs.push(n..n + 1),
        }
    }
    runs
}

/// The fewest runs that have `wanted` of these frames: the longest first.
fn fewest(mask: u64, mut wanted: u64) -> usize {
    let mut lengths: Vec<_> = runs_of(mask).iter().map(|run| run.end - run.start).collect();
    lengths.sort_unstable();
    let mut runs = 0;
    while wanted > 0
        && let Some(longest) = lengths.pop()
    {
        wanted = wanted.saturating_sub(longest);
        runs += 1;
    }
    runs
}

/// Every set of free frames among ten, across the border of two words of a map and of two pageblocks; every number of
/// frames, and room for one, two and all runs. Against a naive model.
#[test]
fn every_small_world_gives_few_runs() {
    const FRAMES: u64 = 10;
    for (config, from) in ENGINES.into_iter().flat_map(|config| [(config, 59), (config, 507)]) {
        let first = BASE.add(from);
        let world =
            Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).memory([(first, FRAMES)]).config(config.bare()).plain();
        world.on(0, |cpu| {
            for mask in 0..1_u64 << FRAMES {
                (0..FRAMES).for_each(|n| cpu.must_alloc_at(first.add(n), 0));
                let free = |mask: u64| runs_of(mask).into_iter().flatten().map(|n| first.add(n));
                free(mask).for_each(|pfn| cpu.must_free(pfn, 0));
                let count = u64::from(mask.count_ones());
                for (wanted, room) in (1..=FRAMES).flat_map(|wanted| [1, 2, 10].map(|room| (wanted, room))) {
                    let mut out = [NONE; FRAMES as usize];
                    let runs = cpu.alloc_runs(wanted, M, &mut out[..room]).to_vec();
                    let told =
                        || format!("{:?}: {wanted} of {mask:#b}, room {room}: {runs:?}", config.engine);
                    assert!(runs.windows(2).all(|two| two[0].end < two[1].start), "{}", told());
                    let frames = runs.iter().flat_map(|run| run.start.0..run.end.0);
                    let taken = frames.fold(0, |all, pfn| all | 1 << (pfn - first.0));
                    assert_eq!(taken & !mask, 0, "{}", told());
                    let best = fewest(mask, wanted);
                    if room == 10 {
                        assert_eq!(pages(&runs), wanted.min(count), "{}", told());
                        assert!(runs.len() <= 3 * best, "{}, {best} would do", told());
                    } else {
                        assert!(pages(&runs) <= wanted && runs.is_empty() == (mask == 0), "{}", told());
                    }
                    runs.into_iter().for_each(|run| give_back(cpu, run));
                    assert_eq!(cpu.allocator().free_pages(), count, "{wanted} of {mask:#b}");
                }
                free(mask).for_each(|pfn| cpu.must_alloc_at(pfn, 0));
                (0..FRAMES).for_each(|n| cpu.must_free(first.add(n), 0));
            }
        });
        assert_eq!(world.settled().free, FRAMES, "{:?}", config.engine);
    }
}

/// Whole pageblocks come as one run where they stand side by side, and what is not wanted of the last one stays free.
#[test]
fn free_memory_gives_one_run() {
    for config in ENGINES {
        let zone = Spec::one_zone(16 * PAGEBLOCK_PAGES, 1).config(config);
        for wanted in [1, 3, 255, 300, 511, 512, 513, 600, 1023, 1024, 1025, 4000, 16 * PAGEBLOCK_PAGES] {
            let world = zone.plain();
            let mut out = [NONE; 16];
            let runs = world.on(0, |cpu| cpu.alloc_runs(wanted, M, &mut out).to_vec());
            assert_eq!(pages(&runs), wanted, "{:?}, {wanted}: {runs:?}", config.engine);
            let most = if config.engine == Engine::Linux { 12 } else { 2 };
            assert!(runs.len() <= most, "{:?}, {wanted}: {runs:?}", config.engine);
            assert_eq!(world.settled().allocated, wanted);
            world.on(0, |cpu| runs.into_iter().for_each(|run| give_back(cpu, run)));
            world.drain_all();
            assert_eq!(world.settled().free, 16 * PAGEBLOCK_PAGES);
        }
    }
}

/// The rest of a request comes from a pageblock in use that has as long a run, not from as large a block as before.
#[test]
fn the_rest_of_a_request_breaks_no_larger_block_than_it_must() {
    for (engine, sections) in FORMS.into_iter().flat_map(|engine| [0, 8].map(|sections| (engine, sections))) {
        let spec = Spec::one_zone(17 * PAGEBLOCK_PAGES, 2).config(with_engine(engine).bare());
        let world = spec.sections(sections * PAGEBLOCK_PAGES).plain();
        // A quarter of the last pageblock is free.
        let last = BASE.add(16 * PAGEBLOCK_PAGES);
        world.on(0, |cpu| (0..384).for_each(|n| cpu.must_alloc_at(last.add(n), 0)));
        let mut out = [NONE; 8];
        let runs = world.on(0, |cpu| cpu.alloc_runs(1024 + 100, M, &mut out).to_vec());
        assert_eq!(pages(&runs), 1024 + 100);
        let end = last.add(384);
        assert!(runs.contains(&(end..end.add(100))), "{engine:?}, {sections} pageblocks a section: {runs:?}");
    }
}

/// A request for less than a pageblock drains the lists if no more is free outside of them than it asks for; one for a
/// pageblock or more if that is less than eight times as much.
#[test]
fn a_request_for_much_of_what_is_free_drains_the_lists() {
    for (wanted, free, drains) in [
        (511, 511, false),
        (511, 510, true),
        (511, 1000, false),
        (512, 600, true),
        (512, 4095, true),
        (512, 4096, false),
        (700, 5599, true),
        (700, 5600, false),
    ] {
        let world = Spec::one_zone(16 * PAGEBLOCK_PAGES, 1).plain();
        let zone = &world.allocator().zones()[0];
        let drained = world.on(0, |cpu| {
            let listed = cpu.must_alloc(0);
            cpu.must_free(listed, 0);
            let mut frames = (0..16 * PAGEBLOCK_PAGES).rev().map(|n| BASE.add(n));
            while zone.free_pages() > free {
                cpu.must_alloc_at(frames.next().expect("there is more"), 0);
            }
            let before = world.allocator().pcp_pages();
            assert!(before > 0 && zone.free_pages() == free);
            let mut out = vec![NONE; 8];
            let runs = cpu.alloc_runs(wanted, M, &mut out);
            assert_eq!(pages(runs), wanted);
            world.allocator().pcp_pages() < before
        });
        assert_eq!(drained, drains, "{wanted} frames, {free} are free outside of lists");
    }
}

/// The marks count free CMA memory for a range of it, and for no other range.
#[test]
fn a_contiguous_range_leaves_what_requests_of_its_kind_leave() {
    for (of_cma, min, fits) in
        [(true, 700, true), (true, 1600, false), (false, 700, false), (false, 500, true)]
    {
        let config = Config::framewright().bare().with_marks();
        let config = config.but(|config| config.min_free_kib = 4 * min);
        let world = Spec::one_zone(32 * PAGEBLOCK_PAGES, 1).config(config).plain();
        let start = |n| BASE.add(n * PAGEBLOCK_PAGES);
        // Two pageblocks of either kind are free.
        world.on(0, |cpu| (4..32).for_each(|n| cpu.must_alloc_at(start(n), 9)));
        for n in 0..2 {
            world.allocator().set_pageblock_type(start(n), Migratetype::Cma).expect("it has memory");
        }
        let first = start(if of_cma { 0 } else { 2 });
        let got =
            world.on(0, |cpu| cpu.alloc_contig_range(first..first.add(PAGEBLOCK_PAGES), &Helpers::NONE));
        assert_eq!(got.is_ok(), fits, "{of_cma}, {min}: {got:?}");
    }
}

/// A world half full after random allocations and frees of single frames.
fn churned(config: Config) -> World<Plain> {
    let world = Spec::one_zone(64 << 10, 1).config(config).plain();
    let mut rng = fastrand::Rng::with_seed(33);
    let mut held = Vec::new();
    world.on(0, |cpu| {
        for _ in 0..64 << 10 {
            held.push(cpu.must_alloc(0));
        }
        for _ in 0..300_000 {
            if held.len() < 64 << 10 && rng.bool() {
                held.push(cpu.must_alloc(0));
            } else {
                cpu.must_free(held.swap_remove(rng.usize(0..held.len())), 0);
            }
        }
        while held.len() > 32 << 10 {
            cpu.must_free(held.swap_remove(rng.usize(0..held.len())), 0);
        }
        cpu.drain();
    });
    world
}

/// Of 256 frames in memory that is half full: at most half the runs that single allocations give.
#[test]
fn a_fragmented_world_gives_half_the_runs_of_single_allocations() {
    for config in ENGINES {
        let mut out = [NONE; 256];
        let runs = churned(config).on(0, |cpu| cpu.alloc_runs(256, M, &mut out).to_vec());
        assert_eq!(pages(&runs), 256);
        let mut single: Vec<_> = churned(config).on(0, |cpu| (0..256).map(|_| cpu.must_alloc(0)).collect());
        single.sort_unstable();
        let singles = single.windows(2).filter(|two| two[0].add(1) != two[1]).count() + 1;
        println!("{:?}: {} runs, {singles} of single allocations", config.engine, runs.len());
        assert!(2 * runs.len() <= singles, "{:?}: {} runs, {singles}", config.engine, runs.len());
    }
}

/// CPUs that take runs and frames and free them in parts. No frame has two owners, and none is lost.
#[test]
fn many_cpus_take_runs() {
    for engine in STORES.into_iter().chain([Engine::Compact]) {
        schedules(if full() { 20_000 } else { 40 }, move || {
            let config = Config { engine, ..few_pages(16, 4, 12, 1) };
            let world = Spec::one_zone(96, 3).config(config).build::<Shuttle>();
            let shared = Arc::new((world, SharedOracle::new(BASE, 96)));
            shuttle_team(&shared, 3, |(world, oracle), n| take_and_free(world, oracle, n));
            shared.0.drain_all();
            assert_eq!(shared.0.settled().free, 96);
        });
    }
}

fn take_and_free(world: &World<Shuttle>, oracle: &SharedOracle, n: usize) {
    let each =
        |run: &Range<Pfn>| (run.start.0..run.end.0).map(|pfn| Block { pfn: Pfn(pfn), order: Order::ZERO });
    let mut held: Vec<Range<Pfn>> = Vec::new();
    world.on(n, |cpu| {
        for _ in 0..6 {
            let mut out = [NONE; 4];
            let wanted = thread_rng().gen_range(1..30);
            let got = cpu.alloc_runs(wanted, M, &mut out);
            got.iter().flat_map(each).for_each(|frame| oracle.handed_out(frame));
            held.extend(got.iter().cloned());
            if held.len() > 2 {
                let run = held.swap_remove(thread_rng().gen_range(0..held.len()));
                let middle = Pfn(thread_rng().gen_range(run.start.0..run.end.0));
                each(&run).for_each(|frame| oracle.giving_back(frame));
                give_back(cpu, run.start..middle);
                give_back(cpu, middle..run.end);
            }
        }
        for run in held {
            each(&run).for_each(|frame| oracle.giving_back(frame));
            give_back(cpu, run);
        }
    });
}

/// Runs leave a zone no further than its low mark, and what other types have is taken at last.
#[test]
fn runs_keep_the_low_mark_and_take_of_other_types_at_last() {
    let world = Spec::one_zone(32 << 10, 1).config(Config::framewright().with_marks()).plain();
    let mut out = [NONE; 64];
    let low = world.zone().marks().low;
    let runs = world.on(0, |cpu| cpu.alloc_runs(20 << 10, M, &mut out).to_vec());
    assert_eq!((pages(&runs), runs.len()), (20 << 10, 1));
    assert!(world.zone().free_pages() >= low);
    let mut out = [NONE; 64];
    let more = world.on(0, |cpu| cpu.alloc_runs(1 << 10, Migratetype::Unmovable, &mut out).to_vec());
    assert_eq!(pages(&more), 1 << 10, "{more:?}");
    world.on(0, |cpu| runs.into_iter().chain(more).for_each(|run| give_back(cpu, run)));
    let nothing = world.on(0, |cpu| cpu.alloc_runs(5, Migratetype::Cma, &mut [NONE]).len());
    assert_eq!(nothing, 0);
    // More than there is above the low mark: the rest comes as blocks, down to the min mark.
    let config = Config::framewright().with_marks().but(|config| config.min_free_kib = 1024);
    let world = Spec::one_zone(4096, 1).config(config.bare()).plain();
    let runs = world.on(0, |cpu| cpu.alloc_runs(4000, M, &mut out).to_vec());
    assert_eq!(
        (pages(&runs), world.zone().free_pages()),
        (4096 - world.zone().marks().min, world.zone().marks().min)
    );
}

/// Of each pageblock frame 0 is in use and frame 100 is bad: the bad one's block of 64 frames goes out of use, and the
/// rest comes in two runs.
#[test]
fn runs_leave_bad_frames_out() {
    const PAGEBLOCKS: u64 = 4;
    for check in [RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock] {
        let is_bad = |pfn: Pfn| pfn.0 % PAGEBLOCK_PAGES == 100;
        let spec = Spec::one_zone(PAGEBLOCKS * PAGEBLOCK_PAGES, 1).check(check);
        let world: World<Plain, Slot> = spec.build_with(|pfn| Slot::bad(is_bad(pfn)));
        let mut out = [NONE; 64];
        world.on(0, |cpu| {
            let held = || (0..PAGEBLOCKS).map(|n| BASE.add(n * PAGEBLOCK_PAGES));
            held().for_each(|pfn| cpu.must_alloc_at(pfn, 0));
            let runs = cpu.alloc_runs(PAGEBLOCKS * PAGEBLOCK_PAGES, M, &mut out).to_vec();
            let expected: Vec<_> =
                held().flat_map(|pfn| [pfn.add(1)..pfn.add(64), pfn.add(128)..pfn.add(512)]).collect();
            assert_eq!(runs, expected, "{check:?}");
            assert_eq!(cpu.allocator().totals().pcp.bad_pages, PAGEBLOCKS * 64, "{check:?}");
            runs.into_iter().for_each(|run| give_back(cpu, run));
            held().for_each(|pfn| cpu.must_free(pfn, 0));
        });
        world.drain_all();
        assert_eq!(world.settled().free, PAGEBLOCKS * (PAGEBLOCK_PAGES - 64), "{check:?}");
        // As many frames as were requested, also where a run with a bad one was dropped on the way; and what was taken
        // and given back is counted so.
        let world: World<Plain, Slot> =
            spec.clone().bare().build_with(|pfn| Slot::bad(pfn.0 % PAGEBLOCK_PAGES == 100));
        let runs = world.on(0, |cpu| cpu.alloc_runs(700, M, &mut out).to_vec());
        let events = world.allocator().totals().pcp;
        assert_eq!(pages(&runs), 700, "{check:?}");
        assert!(events.bad_pages > 0 && events.direct_alloc_pages > 700, "{check:?}");
        assert_eq!(events.direct_alloc_pages - events.direct_free_pages, 700, "{check:?}");
        let blocks = runs.iter().map(|run| Block::tiles(run.clone()).count() as u64).sum::<u64>();
        assert_eq!(events.direct_allocs - events.direct_frees, blocks, "{check:?}");
    }
}

/// Of two ranges the one with fewer frames in use has a bad one in use: nothing of it is moved.
#[test]
fn a_range_with_a_bad_frame_is_left_alone() {
    for config in [bare(), bare().engine(Engine::Linux)] {
        let (pages, second) = (2 * MAX_ORDER.pages(), BASE.add(2 * MAX_ORDER.pages()));
        let world = Spec::one_zone(2 * pages, 1).config(config).plain();
        world.on(0, |cpu| {
            let held = [BASE.add(7), second.add(7), second.add(8), second.add(600)];
            cpu.alloc_all(0).iter().filter(|pfn| !held.contains(pfn)).for_each(|&pfn| cpu.must_free(pfn, 0));
            cpu.hwpoison(BASE.add(7)).expect("it is there");
            let moves = core::cell::Cell::new(0);
            let move_it = mover(|_, _, _| {
                moves.set(moves.get() + 1);
                Migrated::Moved
            });
            let got = cpu.alloc_contig_with(pages, pages, M, &Helpers::NONE.with_migrate(&move_it));
            assert_eq!((got, moves.get()), (Ok(second..second.add(pages)), 3), "{:?}", config.engine);
        });
    }
}

/// A range for what does not move is in no zone and in no pageblock that blocks must leave: as a single block is not.
#[test]
fn a_range_that_stays_is_not_where_all_must_move() {
    let pages = 2 * MAX_ORDER.pages();
    let zone = |kind, start| ZoneSpec { node: NodeId(0), kind, start, pages };
    let (normal, movable) = (zone(ZoneType::Normal, BASE), zone(ZoneType::Movable, BASE.add(pages)));
    for config in ENGINES {
        let world = Spec::zones([normal, movable], 1).config(config).plain();
        world.allocator().set_pageblock_type(BASE, Migratetype::Cma).expect("it has memory");
        let got = |pages: u64, asked| {
            world
                .on(0, |cpu| cpu.alloc_contig_with(pages, 1, asked, &Helpers::NONE))
                .map_err(|error| error.why)
        };
        let whole = |start: Pfn, pages| Ok(start..start.add(pages));
        for asked in [Migratetype::Unmovable, Migratetype::Reclaimable] {
            let rest = pages - PAGEBLOCK_PAGES;
            assert_eq!(got(pages, asked), Err(AllocFailure::NoMemory), "{:?}", config.engine);
            assert_eq!(got(rest, asked), whole(BASE.add(PAGEBLOCK_PAGES), rest), "{:?}", config.engine);
            assert_eq!(got(1, asked), Err(AllocFailure::NoMemory), "{:?}", config.engine);
            assert_eq!(got(pages, M), whole(movable.start, pages), "{:?}", config.engine);
            assert_eq!(got(1, M), whole(BASE, 1), "{:?}", config.engine);
            world.on(0, |cpu| {
                give_back(cpu, BASE..BASE.add(1));
                give_back(cpu, BASE.add(PAGEBLOCK_PAGES)..movable.end());
            });
        }
    }
}

/// What is the matter with a pageblock of a small world.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Moves,
    Stays,
    Bad,
    Isolated,
    /// The first frame in use was not allocated as movable.
    Mixed,
    /// The last frame is in use, too, and was not allocated as movable: beyond a range that ends before it.
    Tail,
}

/// Makes of a world of allocated pageblocks one of these types, frames in use and fates, for a range of `pages`.
fn lay_out(world: &World<Plain>, cpu: &Cpu<'_, '_, Plain>, states: &[(Migratetype, u64, Fate)], pages: u64) {
    for (at, &(list, used, fate)) in (0..).zip(states) {
        let start = BASE.add(at * PAGEBLOCK_PAGES);
        // The first frames are in use, or those after the first one.
        let kept = start.add(if pages > 1 { at % 2 } else { 0 });
        give_back(cpu, start..kept);
        give_back(cpu, kept.add(used)..start.add(PAGEBLOCK_PAGES));
        world.allocator().set_pageblock_type(start, list).expect("it has memory");
        if fate == Fate::Bad && used > 0 {
            cpu.hwpoison(kept).expect("it is in use");
        }
        if fate == Fate::Mixed && used > 0 {
            give_back(cpu, kept..kept.add(1));
            cpu.alloc_at(kept, order(0)).expect("it is free");
        }
        if fate == Fate::Tail {
            cpu.alloc_at(start.add(PAGEBLOCK_PAGES - 1), order(0)).expect("it is free");
        }
        if fate == Fate::Isolated {
            world.allocator().isolate_pageblock(start).expect("it has memory");
        }
    }
}

/// Worlds of nine pageblocks and one that can never be had, of random types and with up to three frames in use each. Of
/// all ranges that could be had the three with the fewest frames in use are tried, of equal ones the first; without a
/// mover only free ones. Against a naive model.
#[test]
fn the_range_with_the_fewest_frames_in_use_is_had() {
    const PAGEBLOCKS: u64 = 9;
    let sizes = [(1, 1), (300, 512), (512, 512), (700, 512), (1024, 512), (1025, 1024), (1500, 1)];
    let mut rng = fastrand::Rng::with_seed(34);
    for n in 0..if full() { 1260 } else { 56 } {
        let (engine, (pages, align)) = (STORES[n % 2], sizes[n % sizes.len()]);
        let has_mover = rng.u32(0..4) > 0;
        // A move in vain out of a part of a larger range would change what the next one has in use.
        let last = if pages <= PAGEBLOCK_PAGES { Fate::Stays } else { Fate::Moves };
        let (moves, worse) = (Fate::Moves, [Fate::Bad, Fate::Isolated, Fate::Mixed, Fate::Tail]);
        let fates = [moves, moves, moves, last, last, worse[0], worse[1], worse[2], worse[3]];
        let types = [M, M, Migratetype::Reclaimable, Migratetype::Cma, Migratetype::Unmovable];
        let mut states: Vec<_> = (0..PAGEBLOCKS)
            .map(|_| (types[rng.usize(0..5)], [0, 1, 2, 3, 1, 2, 3][rng.usize(0..7)], fates[rng.usize(0..9)]))
            .collect();
        states.push((Migratetype::Unmovable, 1, Fate::Moves));
        let world = Spec::one_zone((PAGEBLOCKS + 1) * PAGEBLOCK_PAGES, 1).engine(engine).bare().plain();
        let state_at = |pfn: Pfn| states[((pfn.0 - BASE.0) / PAGEBLOCK_PAGES) as usize];
        let move_it = mover(|from, _, _| match state_at(from) {
            (_, _, Fate::Stays) => Migrated::Stays,
            (_, 1.., Fate::Mixed) => panic!("{from:?} is moved in vain"),
            _ => Migrated::Moved,
        });
        let helpers = if has_mover { Helpers::NONE.with_migrate(&move_it) } else { Helpers::NONE };
        let got = world.on(0, |cpu| {
            assert_eq!(cpu.alloc_all(PAGEBLOCK_ORDER).len(), states.len());
            lay_out(&world, cpu, &states, pages);
            cpu.alloc_contig_with(pages, align, M, &helpers)
        });
        let used_in = |&(_, used, fate): &(Migratetype, u64, Fate)| used + u64::from(fate == Fate::Tail);
        // Of a pageblock, a range has only its first `frames` frames.
        let used_of = |at: usize, frames: u64| {
            let (_, used, fate) = states[at];
            let kept = if pages > 1 { at as u64 % 2 } else { 0 };
            let tail = u64::from(fate == Fate::Tail && frames >= PAGEBLOCK_PAGES);
            (kept..kept + used).filter(|&n| n < frames).count() as u64 + tail
        };
        let can_be_had = |at: usize, frames: u64| {
            let (list, used, fate) = states[at];
            let moves = match fate {
                Fate::Bad | Fate::Mixed => false,
                Fate::Tail => frames < PAGEBLOCK_PAGES,
                _ => true,
            };
            let is_open = fate != Fate::Isolated && !(fate == Fate::Bad && used > 0);
            let has_type = frames < PAGEBLOCK_PAGES || list != Migratetype::Unmovable;
            is_open && (used_of(at, frames) == 0 || has_mover && moves && has_type)
        };
        let length = pages.div_ceil(PAGEBLOCK_PAGES) as usize;
        let step = align.div_ceil(PAGEBLOCK_PAGES) as usize;
        let starts = (0..states.len()).step_by(step).filter(|start| start + length <= states.len());
        let all_can =
            |start: &usize| (0..length).all(|n| can_be_had(start + n, pages - n as u64 * PAGEBLOCK_PAGES));
        let mut could: Vec<(u64, usize)> = starts
            .filter(all_can)
            .map(|start| (states[start..start + length].iter().map(used_in).sum(), start))
            .collect();
        could.sort_unstable();
        let stays = |start: usize| states[start].2 == Fate::Stays && used_of(start, pages) > 0;
        let best = could.iter().take(3).find(|&&(_, start)| !stays(start));
        let expected = best.map(|&(_, start)| BASE.add(start as u64 * PAGEBLOCK_PAGES));
        let told = format!("{engine:?}, {pages} at {align}, mover {has_mover}: {states:?}");
        assert_eq!(got.clone().ok(), expected.map(|start| start..start.add(pages)), "{told}");
        assert!(got.is_ok() || got.is_err_and(|error| error.why == AllocFailure::NoMemory), "{told}");
        world.settled();
    }
}

/// As long as single frames are free no other CPU is asked for what is on its lists, although blocks are wanted.
#[test]
fn runs_of_single_frames_ask_no_other_cpu() {
    let world = Spec::one_zone(PAGEBLOCK_PAGES, 2).config(with_engine(Engine::Linux)).fixed(1, 8).plain();
    let single = |pfn: Pfn| pfn.0 % 64 == 1;
    let all = (0..PAGEBLOCK_PAGES).map(|n| BASE.add(n));
    all.filter(|&pfn| !single(pfn)).for_each(|pfn| world.must_alloc_at(0, pfn, 0));
    let listed = world.must_alloc(1, 0);
    world.must_free(1, listed, 0);
    assert_eq!((world.pcp(1).count(), world.zone().free_pages()), (1, 7));
    let mut out = [NONE; 8];
    let got = world.on(0, |cpu| pages(cpu.alloc_runs(5, M, &mut out)));
    world.on(1, |cpu| cpu.answer());
    assert_eq!((got, world.pcp(1).count()), (5, 1));
    // When all of them are taken, the other CPU is asked.
    let got = world.on(0, |cpu| pages(cpu.alloc_runs(5, M, &mut out)));
    world.on(1, |cpu| cpu.answer());
    assert_eq!((got, world.pcp(1).count()), (2, 0));
}

/// Most of what is free is lent from CMA, in another section: runs come of what is not, and one run is one run.
#[test]
fn runs_are_not_taken_from_cma() {
    let section = MAX_ORDER.pages();
    let world = Spec::one_zone(2 * section, 1).sections(section).bare().plain();
    world.on(0, |cpu| {
        let run = BASE.add(1)..BASE.add(8);
        (0..section)
            .map(|n| BASE.add(n))
            .filter(|pfn| !run.contains(pfn))
            .for_each(|pfn| cpu.must_alloc_at(pfn, 0));
        for n in [0, PAGEBLOCK_PAGES] {
            let lent = world.allocator().set_pageblock_type(BASE.add(section + n), Migratetype::Cma);
            assert_eq!(lent, Some(PAGEBLOCK_PAGES));
        }
        assert_eq!(cpu.alloc_runs(7, M, &mut [NONE; 4]), [run]);
    });
}

/// A request that may not use a movable zone gets nothing of it, as runs or as many blocks.
#[test]
fn many_frames_are_of_zones_that_the_request_may_use() {
    let movable = ZoneSpec { kind: ZoneType::Movable, ..normal(0, BASE.0 + 2048, 2048) };
    for asked in ORDINARY {
        for config in ENGINES {
            let world = Spec::zones([normal(0, BASE.0, 2048), movable], 1).config(config.bare()).plain();
            // Though a pageblock of it is of the type.
            world.allocator().set_pageblock_type(movable.start, asked).expect("it has memory");
            let expected = if asked == M { 4096 } else { 2048 };
            let mut out = [NONE; 16];
            let runs = world.on(0, |cpu| cpu.alloc_runs(4096, asked, &mut out).to_vec());
            assert_eq!(pages(&runs), expected, "{asked}, {:?}", config.engine);
            world.on(0, |cpu| runs.into_iter().for_each(|run| give_back(cpu, run)));
            let mut out = vec![Pfn(0); 4096];
            let blocks = world.on(0, |cpu| cpu.alloc_bulk(Order::ZERO, asked, &mut out));
            assert_eq!(blocks as u64, expected, "{asked}, {:?}", config.engine);
        }
    }
}
