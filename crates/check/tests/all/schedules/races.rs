//! Races between two CPUs: checks that are repeated under a lock, and state that another CPU changes between them.
//! shuttle.

use std::sync::Arc;

use framewright::hotplug::{OfflineError, OfflineFailure};
use framewright_check::prelude::*;

use super::somewhere;

/// Two threads and few steps: a thread that stops between two given ones is met often enough.
fn races(body: impl Fn() + Copy + Send + Sync + 'static) {
    schedules(if full() { 20_000 } else { 100 }, body);
}

/// A thread is to be stopped in the middle of a call for as long as another one's call takes: bursts do that.
fn long_stops(body: impl Fn() + Copy + Send + Sync + 'static) {
    framewright_check::platform::shuttle::random(if full() { 20_000 } else { 500 }, body);
}

fn lists(engine: Engine) -> Config {
    few_pages(16, 4, 12, 3).engine(engine)
}

/// Eight frames in two runs, which CPU 1 has allocated one by one. [`BETWEEN`] them are some that it keeps.
fn two_runs(world: &World<Shuttle>) -> Vec<Pfn> {
    let mut all: Vec<_> = (0..12).map(|_| world.must_alloc(1, 0)).collect();
    all.sort();
    all.drain(4..4 + BETWEEN as usize);
    world.on(1, |cpu| cpu.drain());
    all
}

const BETWEEN: u64 = 4;

/// A block that a CPU frees with others, and another one by itself, is taken back from one of them.
#[test]
fn of_a_free_in_bulk_and_another_one_is_refused() {
    races(|| {
        for engine in STORES {
            let world = Arc::new(somewhere(64, 3).config(lists(engine)).build::<Shuttle>());
            let blocks = two_runs(&world);
            let (first, second) = (blocks.clone(), blocks);
            let (refused, freed) = shuttle_pair(
                &world,
                move |world| {
                    let done = world.on(0, |cpu| cpu.free_bulk(Order::ZERO, &first));
                    done.map_or_else(|error| error.refused, |()| 0)
                },
                move |world| {
                    let free = |&pfn: &Pfn| world.on(2, |cpu| cpu.free(pfn, Order::ZERO)).is_ok();
                    second.into_iter().rev().filter(free).count()
                },
            );
            assert_eq!(refused, freed, "each of 8 blocks is freed once");
            assert_eq!(world.settled().allocated, BETWEEN);
        }
    });
}

/// A frame goes bad while a CPU frees it with others. No frame is lost, and one that is said to be out of use is.
#[test]
fn a_frame_goes_bad_while_it_is_freed() {
    races(|| {
        for engine in STORES {
            let world = Arc::new(somewhere(64, 2).config(lists(engine)).build::<Shuttle>());
            let blocks = two_runs(&world);
            let bad = blocks[5];
            let (found, ()) = shuttle_pair(
                &world,
                move |world| {
                    let found = world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is the zone's");
                    if found == Hwpoisoned::Withdrawn {
                        let why =
                            world.on(0, |cpu| cpu.alloc_at(bad, Order::ZERO)).expect_err("it is bad").why;
                        let state = State::Quarantined { order: Order::ZERO };
                        assert_eq!(why, PlaceFailure::InUse { pfn: bad, state });
                    }
                    found
                },
                move |world| {
                    world.on(1, |cpu| cpu.free_bulk(Order::ZERO, &blocks)).expect("all are allocated");
                },
            );
            let account = world.settled();
            let (kept, rest) = (account.allocated, account.free + account.quarantined);
            assert_eq!((kept, rest), (BETWEEN, 64 - BETWEEN), "{found:?}");
            if found == Hwpoisoned::Withdrawn {
                assert_eq!(account.quarantined, 1);
            }
        }
    });
}

/// A frame goes bad while the owner of its block splits the block. When the parts are free, the frame is out of use.
#[test]
#[expect(unsafe_code, reason = "the caller of split vouches for owning the block")]
fn a_frame_goes_bad_while_its_block_is_split() {
    races(|| {
        for (engine, n) in STORES.into_iter().flat_map(|engine| [(engine, 0), (engine, 5)]) {
            // A call that waits for another CPU waits for longer than a split takes.
            let config = lists(engine).spins(200);
            let world = Arc::new(somewhere(64, 2).config(config).build::<Shuttle>());
            let pfn = world.must_alloc(1, 3);
            let (found, split) = shuttle_pair(
                &world,
                move |world| world.on(0, |cpu| cpu.hwpoison(pfn.add(n))),
                // SAFETY: the block is this thread's.
                move |world| world.on(1, |cpu| unsafe { cpu.split(pfn, order(3), Order::ZERO) }),
            );
            assert!(matches!(found, Ok(Hwpoisoned::InUse { .. })) && split.is_ok(), "{found:?}, {split:?}");
            (0..8).for_each(|n| world.must_free(1, pfn.add(n), Order::ZERO));
            world.drain_all();
            let account = world.settled();
            assert_eq!((account.free, account.quarantined), (63, 1), "{engine:?}, frame {n}");
        }
    });
}

/// Two CPUs keep a pageblock for high orders at the same instant, where one is all that may be kept.
#[test]
fn a_reserve_has_a_bound_for_all_cpus_together() {
    let config = Config::default().policies(Generation::V6_1).bare();
    races(move || {
        // Two pageblocks, in each of them one block that is large enough; both requests are served below the low mark.
        let order = order(4);
        let memory = [0, 1].map(|n| (BASE.add(n * PAGEBLOCK_PAGES), order.pages() + 8));
        let spec = somewhere(2 * PAGEBLOCK_PAGES, 2).memory(memory);
        let world = Arc::new(spec.config(config.with_marks()).build::<Shuttle>());
        let request = Request::new(order, Migratetype::Unmovable).with(Flags::ATOMIC);
        let get = move |world: &World<Shuttle>, n: usize| {
            world.on(n, |cpu| cpu.request(&request)).expect("one is left for it")
        };
        let (first, second) = shuttle_pair(&world, move |world| get(world, 0), move |world| get(world, 1));
        assert_ne!(first, second);
        let kept = [first, second].map(|pfn| world.allocator().frames().info(pfn).migratetype());
        let kept = kept.into_iter().filter(|&kind| kind == Migratetype::HighAtomic).count();
        assert_eq!(kept, 1);
        world.settled();
    });
}

/// While a CPU takes a pageblock offline, another thread ends isolations and allocates. It gets no frame that goes
/// offline.
#[test]
fn no_caller_ends_the_isolation_of_a_pageblock_that_goes_offline() {
    races(|| {
        for engine in STORES {
            let zone = somewhere(2 * PAGEBLOCK_PAGES, 2).config(lists(engine).bare());
            let world = Arc::new(zone.build::<Shuttle>());
            let goes = BASE..BASE.add(PAGEBLOCK_PAGES);
            let range = goes.clone();
            let (gone, got) = shuttle_pair(
                &world,
                move |world| world.on(0, |cpu| cpu.offline(range)),
                move |world| {
                    world.allocator().unisolate_pageblock(BASE);
                    [(); 2].map(|()| world.on(1, |cpu| cpu.alloc(PAGEBLOCK_ORDER, M)).ok())
                },
            );
            let mut got = got.into_iter().flatten();
            assert!(gone.is_err() || got.all(|pfn| !goes.contains(&pfn)), "{engine:?}: {gone:?}");
            world.settled();
        }
    });
}

/// Memory that comes online in a range that another CPU takes offline at this moment stays: that call has not isolated
/// it.
#[test]
fn memory_that_comes_online_beside_what_goes_offline_stays() {
    races(|| {
        for engine in STORES {
            let spec = somewhere(2 * PAGEBLOCK_PAGES, 2).memory([(BASE, PAGEBLOCK_PAGES)]);
            let world = Arc::new(spec.config(lists(engine).bare()).build::<Shuttle>());
            let (gone, got) = shuttle_pair(
                &world,
                |world| world.on(0, |cpu| cpu.offline(BASE..BASE.add(2 * PAGEBLOCK_PAGES))),
                |world| {
                    world.allocator().online(BASE.add(PAGEBLOCK_PAGES), PAGEBLOCK_PAGES).expect("it is new");
                    world.on(1, |cpu| cpu.alloc(PAGEBLOCK_ORDER, M)).ok()
                },
            );
            let account = world.settled();
            let (managed, present) = (world.zone().managed_pages(), world.zone().present_pages());
            assert_eq!((account.free + account.allocated, present), (managed, managed), "{engine:?}");
            assert_eq!(
                account.allocated,
                got.map_or(0, |_| PAGEBLOCK_PAGES),
                "{engine:?}: {gone:?}, {got:?}"
            );
        }
    });
}

/// Memory comes online inside a range that another CPU takes offline, and goes offline again. Whether the range is free
/// or a part of it is held: each pageblock goes with the call that has isolated it, or stays.
#[test]
fn each_call_takes_offline_what_it_has_isolated() {
    races(|| {
        for (engine, is_held) in STORES.into_iter().flat_map(|engine| [(engine, false), (engine, true)]) {
            let spec = somewhere(2 * PAGEBLOCK_PAGES, 2).memory([(BASE, PAGEBLOCK_PAGES)]);
            let world = Arc::new(spec.config(lists(engine).bare()).build::<Shuttle>());
            if is_held {
                world.must_alloc(1, Order::ZERO);
            }
            let second = BASE.add(PAGEBLOCK_PAGES);
            let (both, again) = shuttle_pair(
                &world,
                move |world| world.on(0, |cpu| cpu.offline(BASE..second.add(PAGEBLOCK_PAGES))),
                move |world| {
                    world.allocator().online(second, PAGEBLOCK_PAGES).expect("it is new");
                    world.on(1, |cpu| cpu.offline(second..second.add(PAGEBLOCK_PAGES)))
                },
            );
            let seen = format!("{engine:?}, {is_held}: {both:?}, {again:?}");
            let gone = both.unwrap_or(0) + again.unwrap_or(0);
            let left = 2 * PAGEBLOCK_PAGES - gone;
            assert!(again.is_err() || again == Ok(PAGEBLOCK_PAGES), "{seen}");
            let (account, zone) = (world.settled(), world.zone());
            assert_eq!(account.free + account.allocated, left, "{seen}");
            assert_eq!((zone.managed_pages(), zone.present_pages()), (left, left), "{seen}");
            assert_eq!(world.allocator().zone_snapshot(zone).isolated_pageblocks, 0, "{seen}");
        }
    });
}

/// Memory comes online while other memory of its zone goes offline: in the end, counts, marks and sizes of lists are
/// those of the memory that is there.
#[test]
fn counts_and_sizes_follow_where_memory_comes_and_goes() {
    races(|| {
        for pages in [1, 2].map(|sections| sections * MAX_ORDER.pages()) {
            let config = Config::default().with_marks().spins(1).sections(MAX_ORDER.pages());
            let config = config.but(|config| config.watermark_scale = 3000);
            let spec = somewhere(pages, 2).config(config).memory([(BASE, PAGEBLOCK_PAGES)]);
            let world = Arc::new(spec.build::<Shuttle>());
            let last = BASE.add(pages - PAGEBLOCK_PAGES);
            let (gone, come) = shuttle_pair(
                &world,
                |world| world.on(0, |cpu| cpu.offline(BASE..BASE.add(PAGEBLOCK_PAGES))),
                move |world| {
                    world.allocator().add_memory(last, 100)?;
                    world.allocator().online(last.add(100), 100)
                },
            );
            assert_eq!((gone, come), (Ok(PAGEBLOCK_PAGES), Ok(())));
            let zone = world.zone();
            assert_eq!((zone.managed_pages(), zone.present_pages()), (200, 200), "of {pages}");
            let sizes = || (zone.marks(), world.pcp(1).sizing());
            let (now, ()) = (sizes(), world.allocator().resize_pcps());
            assert_eq!(now, sizes(), "of {pages}");
            world.settled();
        }
    });
}

/// Frames are found bad, or good again, while their pageblock goes offline: as many are counted as are out of use, also
/// when the pageblock is back.
#[test]
fn frames_go_bad_or_good_while_their_pageblock_goes_offline() {
    races(|| {
        for (engine, were_bad) in STORES.into_iter().flat_map(|engine| [(engine, false), (engine, true)]) {
            let spec = somewhere(PAGEBLOCK_PAGES, 2).config(lists(engine).bare());
            let world = Arc::new(spec.build::<Shuttle>());
            let change = move |world: &World<Shuttle>, go_bad: bool| {
                world.on(1, |cpu| {
                    for pfn in (0..8).map(|n| BASE.add(n)) {
                        let _ = if go_bad { cpu.hwpoison(pfn).map(drop) } else { cpu.unpoison(pfn) };
                    }
                });
            };
            if were_bad {
                change(&world, true);
            }
            let (gone, ()) = shuttle_pair(
                &world,
                |world| world.on(0, |cpu| cpu.offline(BASE..BASE.add(PAGEBLOCK_PAGES))),
                move |world| change(world, !were_bad),
            );
            for _ in 0..2 {
                let (known, account) = (world.allocator().hwpoisoned_pages(), world.settled());
                assert_eq!(known, account.quarantined, "{engine:?}, {were_bad}: {gone:?}");
                let back = world.allocator().online(BASE, PAGEBLOCK_PAGES);
                assert!(back.is_err() || gone.is_ok(), "it was online");
            }
        }
    });
}

/// Two CPUs take the same pageblock offline: one does.
#[test]
fn a_pageblock_goes_offline_once() {
    races(|| {
        for engine in STORES {
            let world = Arc::new(somewhere(2 * PAGEBLOCK_PAGES, 2).config(lists(engine).bare()).build());
            let go = |world: &World<Shuttle>, n: usize| {
                world.on(n, |cpu| cpu.offline(BASE..BASE.add(PAGEBLOCK_PAGES)))
            };
            let both = shuttle_pair(&world, move |world| go(world, 0), move |world| go(world, 1));
            let gone: Vec<_> = [both.0, both.1].into_iter().flatten().collect();
            assert_eq!(gone, [PAGEBLOCK_PAGES], "{engine:?}: {both:?}");
            world.settled();
        }
    });
}

/// While a CPU allocates a range, another thread ends isolations and isolates the pageblock for itself. That
/// isolation lasts.
#[test]
fn a_range_ends_no_isolation_but_its_own() {
    races(|| {
        let zone = somewhere(2 * PAGEBLOCK_PAGES, 2).config(lists(Engine::Framewright).bare());
        let world = Arc::new(zone.build::<Shuttle>());
        let (_, isolates) = shuttle_pair(
            &world,
            |world| {
                let range = BASE..BASE.add(PAGEBLOCK_PAGES);
                world.on(0, |cpu| cpu.alloc_contig_range(range, &Helpers::NONE)).is_ok()
            },
            |world| {
                world.allocator().unisolate_pageblock(BASE);
                world.allocator().isolate_pageblock(BASE).is_some()
            },
        );
        assert_eq!(world.allocator().unisolate_pageblock(BASE).is_some(), isolates);
        world.settled();
    });
}

/// A frame goes bad, or is found good again, while another CPU frees its block: the free succeeds. One that is wrong,
/// because the block is on a list, leaves it there.
#[test]
fn a_block_is_freed_while_its_frame_goes_bad_or_good() {
    races(|| {
        for (engine, was_bad, is_free) in STORES
            .into_iter()
            .flat_map(|engine| [(false, false), (true, false), (false, true)].map(|(a, b)| (engine, a, b)))
        {
            let world = Arc::new(somewhere(64, 3).config(lists(engine)).build::<Shuttle>());
            let block = world.must_alloc(1, 0);
            if was_bad {
                world.on(2, |cpu| cpu.hwpoison(block)).expect("it is the zone's");
            }
            if is_free {
                world.must_free(1, block, 0);
            }
            let (freed, ()) = shuttle_pair(
                &world,
                move |world| world.on(0, |cpu| cpu.free(block, Order::ZERO)),
                move |world| {
                    world.on(2, |cpu| {
                        let _ = if was_bad { cpu.unpoison(block) } else { cpu.hwpoison(block).map(drop) };
                    });
                },
            );
            assert_eq!(freed.is_ok(), !is_free, "{engine:?}, {was_bad}: {freed:?}");
            let _ = world.on(2, |cpu| cpu.unpoison(block));
            world.drain_all();
            assert_eq!(world.settled().free, 64);
            assert_eq!(world.everything().len(), 64);
        }
    });
}

/// A block with a bad frame is split while another one of its pageblock is freed, of which the last bad frame goes out
/// of use. The first one's frame is still known to be bad when its part is freed.
#[test]
fn a_free_beside_a_split_does_not_forget_its_bad_frame() {
    races(|| {
        for engine in STORES {
            let world = Arc::new(somewhere(PAGEBLOCK_PAGES, 2).config(lists(engine).bare()).build());
            let [split, freed] = [0, 1].map(|cpu| world.must_alloc(cpu, 3));
            for block in [split, freed] {
                world.on(0, |cpu| cpu.hwpoison(block)).expect("it is the zone's");
            }
            shuttle_pair(
                &world,
                move |world: &World<Shuttle>| {
                    // SAFETY: the block is this thread's.
                    #[expect(unsafe_code, reason = "who splits a block vouches for owning it")]
                    world.on(0, |cpu| unsafe { cpu.split(split, order(3), Order::ZERO) }).expect("it is its");
                },
                move |world| world.must_free(1, freed, 3),
            );
            (0..8).for_each(|n| world.must_free(0, split.add(n), 0));
            assert_eq!(world.settled().quarantined, 2, "{engine:?}");
        }
    });
}

/// A frame is found good again while its block is split: it does not stay marked, so that it can be found bad once
/// more.
#[test]
fn a_frame_is_found_good_while_its_block_is_split() {
    races(|| {
        for engine in STORES {
            let world = Arc::new(somewhere(PAGEBLOCK_PAGES, 2).config(lists(engine).bare()).build());
            let block = world.must_alloc(0, 3);
            world.on(0, |cpu| cpu.hwpoison(block)).expect("it is the zone's");
            let (good, ()) = shuttle_pair(
                &world,
                move |world: &World<Shuttle>| world.on(1, |cpu| cpu.unpoison(block)),
                move |world| {
                    // SAFETY: the block is this thread's.
                    #[expect(unsafe_code, reason = "who splits a block vouches for owning it")]
                    world.on(0, |cpu| unsafe { cpu.split(block, order(3), Order::ZERO) }).expect("it is its");
                },
            );
            good.unwrap_or_else(|error| panic!("{engine:?}: {error}"));
            world.settled();
            let found = world.on(1, |cpu| cpu.hwpoison(block));
            assert_eq!(found, Ok(Hwpoisoned::InUse { pfn: block, order: Order::ZERO }), "{engine:?}");
        }
    });
}

/// A frame in the second pageblock of a block of the largest order goes bad while the block is on its way from the zone
/// to a caller, or back. It is out of use when the block is free.
#[test]
fn a_frame_goes_bad_while_its_block_of_two_pageblocks_is_on_its_way() {
    races(|| {
        for (engine, goes_back) in STORES.into_iter().flat_map(|engine| [(engine, false), (engine, true)]) {
            let zone = somewhere(2 * PAGEBLOCK_PAGES, 2).config(lists(engine).bare());
            let world = Arc::new(zone.build::<Shuttle>());
            let largest = MAX_ORDER.get();
            let held = goes_back.then(|| world.must_alloc(0, largest));
            let (got, found) = shuttle_pair(
                &world,
                move |world| match held {
                    Some(block) => {
                        world.on(0, |cpu| cpu.free(block, MAX_ORDER)).map(|()| None).expect("it is its")
                    }
                    None => world.on(0, |cpu| cpu.alloc(MAX_ORDER, Migratetype::Movable)).ok(),
                },
                |world| world.on(1, |cpu| cpu.hwpoison(BASE.add(PAGEBLOCK_PAGES + 5))),
            );
            if let Some(block) = got {
                world.must_free(0, block, largest);
            }
            let counts = world.settled();
            assert_eq!(
                (counts.quarantined, counts.free),
                (1, 2 * PAGEBLOCK_PAGES - 1),
                "{engine:?}: {found:?}"
            );
        }
    });
}

/// A frame goes bad while its block is freed, by itself or with others, by the CPU that had it on its list or by
/// another one. It is out of use when the block is free.
#[test]
fn a_frame_goes_bad_between_the_looks_of_a_free() {
    long_stops(|| {
        for (in_bulk, owner) in [(true, 1), (false, 1), (false, 2)] {
            // In bulk the bad frame is the block's first one: its word is the head word, which the free writes.
            let (order, n) = if in_bulk { (Order::ZERO, 0) } else { (order(1), 1) };
            let config = Config::default().slots(16).fixed(4, 64).spins(200);
            let world = Arc::new(somewhere(64, 3).config(config).build::<Shuttle>());
            let block = world.must_alloc(owner, order);
            let bad = block.add(n);
            let ((), found) = shuttle_pair(
                &world,
                move |world| {
                    world.on(1, |cpu| {
                        match in_bulk {
                            true => cpu.free_bulk(order, &[block]).expect("it is allocated"),
                            false => cpu.must_free(block, order),
                        }
                        cpu.answer();
                    });
                },
                move |world| world.on(0, |cpu| cpu.hwpoison(bad)).expect("it is the zone's"),
            );
            if matches!(found, Hwpoisoned::InUse { .. }) {
                let again: Vec<_> = (0..4).map(|_| world.must_alloc(1, order)).collect();
                assert!(!again.contains(&block), "{in_bulk}, {owner}: it was handed out again");
                again.into_iter().for_each(|pfn| world.must_free(1, pfn, order));
            }
            world.drain_all();
            assert_eq!(world.settled().quarantined, 1, "{in_bulk}, {owner}: {found:?}");
        }
    });
}

/// A frame is found good again while the list that it is on is drained: it does not stay marked.
#[test]
fn a_frame_is_found_good_while_its_list_is_drained() {
    long_stops(|| {
        let world = Arc::new(Spec::one_zone(64, 2).config(lists(Engine::Framewright)).build::<Shuttle>());
        let block = world.must_alloc(1, 0);
        // From now on no other CPU drains the list, and the mark comes to a frame on it.
        assert!(world.on(1, |cpu| cpu.hit_words(M)).is_some());
        world.must_free(1, block, 0);
        assert_eq!(world.on(0, |cpu| cpu.hwpoison(block)), Ok(Hwpoisoned::Listed(CpuId(1))));
        let ((), good) = shuttle_pair(
            &world,
            |world| world.on(1, |cpu| cpu.drain()),
            move |world| world.on(0, |cpu| cpu.unpoison(block)),
        );
        assert_eq!(good, Ok(()));
        world.drain_all();
        assert_eq!(world.on(0, |cpu| cpu.hwpoison(block)), Ok(Hwpoisoned::Withdrawn));
        world.settled();
    });
}

/// A frame in the second of two pageblocks goes bad while its block is on its way to a caller, when no word says how
/// large the block is. Once the frame is out of use, or found good, neither pageblock's frees look for bad frames.
#[test]
fn a_frame_that_went_bad_on_its_way_leaves_no_pageblock_marked() {
    long_stops(|| {
        for is_good in [false, true] {
            let spec = somewhere(2 * PAGEBLOCK_PAGES, 2).config(Config::default().bare().spins(200));
            let world = Arc::new(spec.build::<Shuttle>());
            world.must_alloc_at(0, BASE, PAGEBLOCK_ORDER);
            let bad = world.must_alloc(0, 0);
            world.must_free(0, bad, 0);
            let (got, found) = shuttle_pair(
                &world,
                |world| world.must_alloc(0, 0),
                move |world| world.on(1, |cpu| cpu.hwpoison(bad)),
            );
            if is_good {
                world.on(1, |cpu| cpu.unpoison(bad)).expect("it is bad");
            }
            world.must_free(0, got, 0);
            assert_eq!(world.settled().quarantined, u64::from(!is_good), "{found:?}");
            for pfn in [BASE, bad] {
                assert!(!world.allocator().frames().info(pfn).is_poisoned(), "{pfn:?}, {is_good}: {found:?}");
            }
        }
    });
}

/// Lists and marks are sized while memory comes online: in the end they are those for all of it.
#[test]
fn sizes_are_those_of_memory_that_comes_while_they_are_set() {
    races(|| {
        let config = Config::default().with_marks().spins(1).but(|config| config.watermark_scale = 3000);
        let spec = somewhere(2 * PAGEBLOCK_PAGES, 2).memory([(BASE, PAGEBLOCK_PAGES)]).config(config);
        let world = Arc::new(spec.build::<Shuttle>());
        let ((), come) = shuttle_pair(
            &world,
            |world| world.allocator().resize_pcps(),
            |world| world.allocator().online(BASE.add(PAGEBLOCK_PAGES), PAGEBLOCK_PAGES),
        );
        assert_eq!(come, Ok(()));
        let sizes = || (world.zone().marks(), world.pcp(1).sizing());
        let (now, ()) = (sizes(), world.allocator().resize_pcps());
        assert_eq!(now, sizes());
    });
}

/// Pageblocks are named while allocations let untouched memory come in: each is there for the call that names it.
#[test]
fn memory_that_comes_in_at_this_moment_can_be_named() {
    long_stops(|| {
        let config = Config::default().bare().spins(1).but(|config| config.lazy_pageblocks = true);
        let world = Arc::new(somewhere(16 * PAGEBLOCK_PAGES, 2).config(config).build::<Shuttle>());
        shuttle_pair(
            &world,
            |world: &World<Shuttle>| {
                for _ in 0..4 {
                    let _pfn = world.on(1, |cpu| cpu.alloc(MAX_ORDER, M));
                }
            },
            |world| {
                for start in (1..8).map(|n| BASE.add(n * MAX_ORDER.pages())) {
                    let gone = world.on(0, |cpu| cpu.offline(start..start.add(MAX_ORDER.pages())));
                    let in_use = |error: OfflineError| matches!(error.why, OfflineFailure::InUse(_));
                    let is_right = gone.map_or_else(in_use, |gone| gone == MAX_ORDER.pages());
                    assert!(is_right, "{start:?}: {gone:?}");
                }
            },
        );
        world.settled();
    });
}

/// A request of one node that finds nothing to drain lets none of another node fail: the page there is on the list of
/// an idle CPU.
#[test]
fn a_drain_that_brings_nothing_is_no_reason_to_drain_no_other_node() {
    schedules(if full() { 2000 } else { 300 }, || {
        let zone = |node, start| ZoneSpec { node: NodeId(node), kind: ZoneType::Normal, start, pages: 1024 };
        let second = BASE.add(1024);
        let spec = Spec::zones([zone(0, BASE), zone(1, second)], 4).memory([(BASE, 4), (second, 4)]);
        let world = spec.cpu_nodes([0, 1, 0, 1].map(NodeId)).build::<Shuttle>();
        let (here, there): (Vec<_>, Vec<_>) =
            world.alloc_all(2, 0).into_iter().partition(|&pfn| pfn < second);
        world.must_free(2, here[0], 0);
        world.must_free(1, there[0], 0);
        let world = Arc::new(world);
        let page = Request::new(Order::ZERO, M).with(Flags::THIS_NODE);
        shuttle_team(&world, 4, move |world, n| match n {
            1 => (0..8).for_each(|_| {
                world.on(1, |cpu| {
                    cpu.alloc_hit(Order::ZERO, M).into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
                });
            }),
            3 => _ = world.on(3, |cpu| cpu.alloc_with(&page, &Helpers::NONE)),
            _ => {}
        });
        // Now and then there is no barrier.
        let got = (0..20).any(|_| world.on(0, |cpu| cpu.alloc_with(&page, &Helpers::NONE)).is_ok());
        assert!(got, "{}", world.pcp(2).count());
    });
}
