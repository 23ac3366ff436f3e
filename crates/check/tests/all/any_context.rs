//! Allocations and frees in the middle of a call: by an interrupt handler of the same CPU, and by other CPUs' at the
//! same time.

use std::rc::Rc;
use std::sync::Arc;

use ::shuttle::rand::{Rng, thread_rng};
use framewright::fault::FaultRule;
use framewright_check::platform::checked::interrupt;
use framewright_check::prelude::*;

const PAGES: u64 = 4 * PAGEBLOCK_PAGES;
const O: Order = Order::ZERO;

type Call = fn(&Cpu<'_, '_, Checked>, Pfn) -> Vec<(Pfn, Order)>;

/// Calls of CPU 0, which has `page` allocated. Each returns the blocks that it has allocated and kept, `page` among
/// them.
const CALLS: [(&str, Call); 15] = [
    ("alloc, a hit or a refill", |cpu, page| vec![(page, O), (cpu.must_alloc(0), O)]),
    ("alloc after a drain", |cpu, page| {
        cpu.drain();
        vec![(page, O), (cpu.must_alloc(0), O)]
    }),
    ("alloc of order 3", |cpu, page| vec![(page, O), (cpu.must_alloc(3), order(3))]),
    ("alloc of a pageblock", |cpu, page| vec![(page, O), (cpu.must_alloc(9), PAGEBLOCK_ORDER)]),
    ("alloc of another type", |cpu, page| vec![(page, O), (cpu.must_alloc_of(0, Migratetype::Unmovable), O)]),
    ("free of the last block", |cpu, page| {
        cpu.must_free(page, 0);
        vec![]
    }),
    ("frees until a list drains", |cpu, page| {
        let blocks: Vec<_> = (0..14).map(|_| cpu.must_alloc(0)).collect();
        blocks.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
        vec![(page, O)]
    }),
    ("alloc_bulk, free_bulk", |cpu, page| {
        let mut out = [Pfn(0); 20];
        assert_eq!(cpu.alloc_bulk(O, M, &mut out), 20);
        cpu.free_bulk(O, &out).expect("they are allocated");
        vec![(page, O)]
    }),
    ("split", |cpu, page| {
        let first = cpu.must_alloc(2);
        let range = first..first.add(4);
        split_and_free(cpu, range);
        vec![(page, O)]
    }),
    ("drain", |cpu, page| {
        cpu.drain();
        vec![(page, O)]
    }),
    ("alloc_at", |cpu, page| {
        let at = page.block_start(PAGEBLOCK_ORDER).add(PAGEBLOCK_PAGES / 2);
        let got = cpu.alloc_at(at, order(2)).is_ok();
        [(page, O)].into_iter().chain(got.then_some((at, order(2)))).collect()
    }),
    ("offline, online", |cpu, page| {
        let last = BASE.add(3 * PAGEBLOCK_PAGES);
        if cpu.offline(last..last.add(PAGEBLOCK_PAGES)).is_ok() {
            cpu.allocator().online(last, PAGEBLOCK_PAGES).expect("it is offline");
        }
        vec![(page, O)]
    }),
    ("alloc_contig_range", |cpu, page| {
        let range = BASE.add(2 * PAGEBLOCK_PAGES)..BASE.add(3 * PAGEBLOCK_PAGES);
        if cpu.alloc_contig_range(range.clone(), &Helpers::NONE).is_ok() {
            cpu.free_contig_range(range).expect("it is allocated");
        }
        vec![(page, O)]
    }),
    ("alloc_runs", |cpu, page| {
        let mut out = [const { Pfn(0)..Pfn(0) }; 4];
        let runs = cpu.alloc_runs(30, M, &mut out).to_vec();
        runs.into_iter().for_each(|run| split_and_free(cpu, run));
        vec![(page, O)]
    }),
    ("try_alloc, try_free", |cpu, page| {
        let got = cpu.allocator().try_alloc(cpu.id(), O, M);
        let freed = cpu.allocator().try_free(page, O).is_ok();
        (!freed).then_some(page).into_iter().chain(got).map(|pfn| (pfn, O)).collect()
    }),
];

#[expect(unsafe_code, reason = "the range is the call's own")]
fn split_and_free(cpu: &Cpu<'_, '_, Checked>, range: core::ops::Range<Pfn>) {
    // SAFETY: it was allocated just now.
    unsafe { cpu.split_range(range.clone()).and_then(|()| cpu.free_range(range)) }.expect("it is allocated");
}

/// Frames that a handler has got, and frames that it has freed.
#[derive(Default)]
struct Done {
    got: core::cell::RefCell<Vec<Pfn>>,
    freed: core::cell::RefCell<Vec<Pfn>>,
}

/// A handler that allocates two frames, frees one of them, and frees two frames that were allocated before: it does
/// so before each access that a call makes, and at each of these points it either succeeds or fails, but neither
/// waits nor breaks anything.
#[test]
fn a_handler_may_run_at_any_point_of_a_call() {
    for config in ENGINES {
        let config = Config { experiment: few_pages(16, 4, 12, 0).experiment, ..config };
        let config = Config { experiment: Experiment { section_pages: 1024, ..config.experiment }, ..config };
        for (name, call) in CALLS {
            let (mut points, mut allocs, mut frees) = (0, 0, 0);
            loop {
                let world = Rc::new(Spec::one_zone(PAGES, 2).config(config).build::<Checked>());
                let theirs = world.must_alloc(1, 0);
                let older = world.must_alloc(0, 0);
                let page = world.must_alloc(0, 0);
                let done = Rc::new(Done::default());
                let handler = {
                    let (world, done) = (world.clone(), done.clone());
                    move || {
                        let allocator = world.allocator();
                        let got: Vec<_> =
                            (0..2).filter_map(|_| allocator.try_alloc(CpuId(0), O, M)).collect();
                        let back = got.first().copied().into_iter().chain([theirs, older]);
                        let freed: Vec<_> = back.filter(|&pfn| allocator.try_free(pfn, O).is_ok()).collect();
                        for &pfn in &freed {
                            assert!(allocator.try_free(pfn, O).is_err(), "{pfn:?} was freed twice");
                        }
                        done.got.borrow_mut().extend(got);
                        done.freed.borrow_mut().extend(freed);
                    }
                };
                let (kept, has_run) = interrupt(points, handler, || world.on(0, |cpu| call(cpu, page)));
                let freed = done.freed.borrow();
                let got = done.got.borrow();
                let more = [theirs, older].into_iter().chain(got.iter().copied());
                let more = more.filter(|pfn| !freed.contains(pfn)).map(|pfn| (pfn, O));
                let held: Vec<_> = kept.into_iter().chain(more).collect();
                let pages = held.iter().map(|(_, order)| order.pages()).sum::<u64>();
                let mut frames: Vec<_> =
                    held.iter().flat_map(|(pfn, order)| pfn.0..pfn.0 + order.pages()).collect();
                frames.sort_unstable();
                assert!(
                    frames.windows(2).all(|two| two[0] < two[1]),
                    "{name}, {points}: a frame has two owners"
                );
                assert_eq!(world.settled().allocated, pages, "{name}, {points}, {:?}", config.engine);
                held.into_iter().for_each(|(pfn, order)| world.must_free(0, pfn, order));
                world.drain_all();
                assert_eq!(world.settled().free, PAGES, "{name}, {points}: {:?}", config.engine);
                if !has_run {
                    break;
                }
                points += 1;
                allocs += got.len();
                frees += freed.len();
            }
            println!("{:?}, {name}: {points} points, {allocs} allocated, {frees} freed", config.engine);
            assert!(points > 3 && allocs > 0 && frees > 0, "{name}: {points}");
        }
    }
}

/// Two CPUs allocate, free and drain; two threads without a CPU do what handlers may. No block has two owners, and
/// none is lost.
#[test]
fn handlers_of_other_cpus_at_the_same_time() {
    for engine in STORES.into_iter().chain([Engine::Compact]) {
        schedules(if full() { 20_000 } else { 100 }, move || {
            let config = Config { engine, ..few_pages(16, 4, 12, 1) };
            let world = Spec::one_zone(64, 2).config(config).build::<Shuttle>();
            let shared = Arc::new((world, SharedOracle::new(BASE, 64)));
            let held = shuttle_team(&shared, 4, |(world, oracle), n| run(world, oracle, n));
            assert_eq!(shared.0.settled().allocated, held.into_iter().sum::<u64>());
        });
    }
}

/// CPU `n`, or a handler. Returns how many frames it keeps.
fn run(world: &World<Shuttle>, oracle: &SharedOracle, n: usize) -> u64 {
    let mut held: Vec<Block> = Vec::new();
    for _ in 0..10 {
        if held.is_empty() || thread_rng().gen_ratio(2, 3) {
            let got = match n {
                0 | 1 => world.on(n, |cpu| cpu.alloc(O, M)).ok(),
                _ => world.allocator().try_alloc(CpuId(0), O, M),
            };
            if let Some(pfn) = got {
                oracle.handed_out(Block { pfn, order: O });
                held.push(Block { pfn, order: O });
            }
        } else {
            let block = held.swap_remove(thread_rng().gen_range(0..held.len()));
            oracle.giving_back(block);
            let free = |world: &World<Shuttle>| match n {
                0 | 1 => world.on(n, |cpu| cpu.free(block.pfn, O)).is_ok(),
                _ => world.allocator().try_free(block.pfn, O).is_ok(),
            };
            if !free(world) {
                assert!(n > 1, "it is allocated");
                oracle.handed_out(block);
                held.push(block);
            }
        }
    }
    held.len() as u64
}

/// What no handler gets: memory of a zone that the request may not use, and memory below the min mark.
#[test]
fn a_handler_gets_what_its_request_may_have() {
    let movable = ZoneSpec { kind: ZoneType::Movable, ..normal(0, BASE.0 + 2048, 2048) };
    // With memory behind the frames, which has not been filled: that is no sign of damage.
    let world = Spec::zones([normal(0, BASE.0, 2048), movable], 1).with_pages().plain();
    let try_alloc = |asked| world.allocator().try_alloc(CpuId(0), PAGEBLOCK_ORDER, asked);
    let got: Vec<_> = core::iter::from_fn(|| try_alloc(Migratetype::Unmovable)).collect();
    assert_eq!((got.len(), world.allocator().free_pages()), (4, 2048));
    assert_eq!(core::iter::from_fn(|| try_alloc(M)).count(), 4);

    let world = Spec::one_zone(64 * PAGEBLOCK_PAGES, 1).config(marked(Generation::V6_1)).plain();
    let got = core::iter::from_fn(|| world.allocator().try_alloc(CpuId(0), Order::ZERO, M)).count() as u64;
    let min = world.allocator().watermarks(ZoneId(0)).min;
    assert!(min > 0);
    assert_eq!(got, 64 * PAGEBLOCK_PAGES - min);
}

/// Movable requests may have what is lent from CMA, others may not; frames that are nowhere are refused.
#[test]
fn a_handler_is_told_of_wrong_frames() {
    let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).memory([(BASE, PAGEBLOCK_PAGES)]).bare().plain();
    let allocator = world.allocator();
    allocator.set_pageblock_type(BASE, Migratetype::Cma).expect("it has memory");
    for asked in [Migratetype::Unmovable, Migratetype::Reclaimable] {
        assert_eq!(allocator.try_alloc(CpuId(0), O, asked), None, "{asked}");
    }
    let pfn = allocator.try_alloc(CpuId(0), O, M).expect("it is movable");
    for wrong in [Pfn(0), BASE.add(PAGEBLOCK_PAGES), BASE.add(2 * PAGEBLOCK_PAGES), Pfn(u64::MAX), pfn.add(1)]
    {
        assert!(matches!(allocator.try_free(wrong, O), Err(TryFreeError::Refused(_))), "{wrong:?}");
    }
    assert!(matches!(allocator.try_free(pfn, order(1)), Err(TryFreeError::Refused(_))));
    assert_eq!((allocator.try_free(pfn, O), world.settled().free), (Ok(()), PAGEBLOCK_PAGES));
    assert!(world.on(0, |cpu| cpu.hit_words(Migratetype::Cma).is_none()));
}

/// Types that no request may have, and allocations that are made to fail.
#[test]
fn a_handler_gets_no_reserve_and_no_injected_fault() {
    let world = Spec::one_zone(1024, 1).but(|config| config.fault_injection = true).bare().plain();
    let allocator = world.allocator();
    for asked in [Migratetype::HighAtomic, Migratetype::Cma, Migratetype::Isolate] {
        if asked != Migratetype::Isolate {
            allocator.set_pageblock_type(BASE, asked).expect("it has memory");
        }
        assert_eq!(allocator.try_alloc(CpuId(0), O, asked), None, "{asked}");
    }
    assert!(allocator.inject(Some(&FaultRule::share(100, 0))));
    assert_eq!(allocator.try_alloc(CpuId(0), O, M), None);
    assert!(allocator.inject(None));
    assert!(allocator.try_alloc(CpuId(0), O, M).is_some());
}

/// Blocks that a check finds bad stay free: frames that are said to be bad, if they are checked, and free memory that a
/// program has written to, if it is poisoned.
#[test]
fn a_handler_gets_no_bad_block() {
    for (check, is_given) in
        [(RefillCheck::UnderZoneLock, false), (RefillCheck::AfterUnlock, false), (RefillCheck::Off, true)]
    {
        let spec = Spec::one_zone(16, 1).bare().check(check);
        let world: World<Plain, Slot> = spec.build_with(|_| Slot::bad(true));
        let got = world.allocator().try_alloc(CpuId(0), O, M);
        assert_eq!((got.is_some(), world.settled().free), (is_given, 16 - u64::from(is_given)), "{check:?}");
        let good: World<Plain, Slot> = spec.build_with(|_| Slot::bad(false));
        assert!(good.allocator().try_alloc(CpuId(0), O, M).is_some());
    }
    for writes in [false, true] {
        let world = Spec::one_zone(16, 1).bare().but(|config| config.poison = true).plain();
        (0..if writes { 16 } else { 0 }).for_each(|n| world.scribble(BASE.add(n)));
        assert_eq!(world.allocator().try_alloc(CpuId(0), O, M).is_none(), writes);
        assert_eq!(world.settled().free, if writes { 16 } else { 15 });
    }
}

/// A block of two pageblocks with a bad frame in either: the free is put off, and a CPU makes it.
#[test]
fn a_handler_leaves_blocks_with_bad_frames_to_a_cpu() {
    for bad in [7, PAGEBLOCK_PAGES + 7] {
        let world = Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).bare().plain();
        let block = world.must_alloc(0, MAX_ORDER);
        world.on(0, |cpu| cpu.hwpoison(block.add(bad))).expect("it is in use");
        assert_eq!(world.allocator().try_free(block, MAX_ORDER), Err(TryFreeError::Busy), "{bad}");
        world.must_free(0, block, MAX_ORDER);
        let account = world.settled();
        assert_eq!((account.free, account.allocated), (4 * PAGEBLOCK_PAGES - 1, 0), "{bad}");
    }
}

/// Only the first of seventeen sections has memory, and the last: whichever of the two a call of the CPU has locked, a
/// handler is given a frame of the other. No CPU looks at more than sixteen at once.
#[test]
fn a_handler_goes_on_to_a_section_that_is_not_locked() {
    let section = MAX_ORDER.pages();
    for cpu in [0, 1] {
        let mut points = 0;
        loop {
            let memory = [(BASE, 64), (BASE.add(16 * section), 64)];
            let spec = Spec::one_zone(17 * section, 2).bare().sections(section).memory(memory);
            let world = Rc::new(spec.build::<Checked>());
            let got = Rc::new(core::cell::Cell::new(None));
            let handler = {
                let (world, got) = (world.clone(), got.clone());
                move || got.set(world.allocator().try_alloc(CpuId(cpu), O, M))
            };
            let (_, has_run) = interrupt(points, handler, || world.must_alloc(0, O));
            assert!(got.get().is_some() || !has_run, "CPU {cpu}, point {points}");
            if !has_run {
                break;
            }
            points += 1;
        }
        assert!(points > 3, "{points}");
    }
}
