//! Blocks of a given place, many together, and given ranges: with free lists, with maps, and without words.

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use framewright_check::platform::checked::tally;
use framewright_check::prelude::*;

/// Engines with a word for each block, which records whether it may be moved.
const WITH_WORDS: [Config; 2] = [ENGINES[0], ENGINES[1]];

/// A zone whose blocks wait on no CPU's list.
fn unlisted(config: Config, pages: u64) -> World<Plain> {
    Spec::one_zone(pages, 1).config(config).bare().plain()
}

#[test]
fn wrong_places_are_refused_and_change_nothing() {
    for config in ENGINES {
        let world = unlisted(config, 1024 + 100);
        let before = world.free_lists();
        world.on(0, |cpu| {
            let why = |pfn, order| cpu.alloc_at(pfn, order).expect_err("a wrong place").why;
            assert_eq!(why(Pfn(0), order(0)), PlaceFailure::Foreign);
            assert_eq!(why(Pfn(u64::MAX - 1023), order(10)), PlaceFailure::Foreign);
            assert_eq!(why(BASE.add(1124), order(0)), PlaceFailure::Foreign);
            assert_eq!(why(BASE.add(1024), order(10)), PlaceFailure::Foreign);
            assert_eq!(why(BASE.add(3), order(1)), PlaceFailure::Misaligned);
            world.allocator().isolate_pageblock(BASE).expect("a pageblock");
            assert_eq!(why(BASE, order(10)), PlaceFailure::Isolated(BASE));
            assert_eq!(why(BASE.add(7), order(0)), PlaceFailure::Isolated(BASE));
            world.allocator().unisolate_pageblock(BASE).expect("it was");
        });
        assert_eq!(world.free_lists(), before);
    }
}

#[test]
fn what_lies_on_lists_is_brought_back() {
    let listed = |world: &World<Plain>, cpu| {
        let pfn = world.must_alloc(cpu, 0);
        world.must_free(cpu, pfn, 0);
        pfn
    };
    for config in ENGINES {
        // The own list, where there is no other CPU, too.
        let alone = Spec::one_zone(4096, 1).config(config).plain();
        let pfn = listed(&alone, 0);
        alone.must_alloc_at(0, pfn, 0);
        assert_eq!(alone.settled().allocated, 1);
        let world = Spec::one_zone(4096, 2).config(config).plain();
        let mine = listed(&world, 0);
        world.must_alloc_at(0, mine, 0);
        let theirs = listed(&world, 1);
        // CPU 1 is asked, and answers at its next call.
        let listed = world.on(0, |cpu| cpu.alloc_at(theirs, order(0))).expect_err("CPU 1 does not answer");
        assert_eq!(listed.why, PlaceFailure::Listed { pfn: theirs, cpu: CpuId(1) });
        assert!(listed.to_string().contains("asked to drain"), "{listed}");
        world.on(1, |cpu| cpu.answer());
        world.must_alloc_at(0, theirs, 0);
        let again = world.on(0, |cpu| cpu.alloc_at(theirs, order(0))).expect_err("it is ours");
        assert!(matches!(again.why, PlaceFailure::InUse { pfn, .. } if pfn == theirs), "{again}");
        world.on(1, |cpu| [mine, theirs].map(|pfn| cpu.must_free(pfn, 0)));
        world.drain_all();
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), 4);
    }
}

#[test]
fn bulk_takes_all_there_is_and_gives_it_back() {
    for config in ENGINES {
        for pcp_orders in [PcpOrders::None, PcpOrders::UpToCostlyAndHuge] {
            let config = config.orders(pcp_orders);
            let world = Spec::one_zone(4096, 2).config(config).plain();
            for k in [0, 1, 3, 6, 9, 10] {
                let mut out = vec![Pfn(0); 5000];
                let count = world.on(0, |cpu| cpu.alloc_bulk(order(k), M, &mut out));
                assert_eq!(count, 4096 >> k, "order {k}");
                let mut oracle = world.spec().oracle();
                for &pfn in &out[..count] {
                    oracle.handed_out(Block { pfn, order: order(k) }).expect("a block without an owner");
                }
                world.check(&oracle);
                // In an order that visits all pageblocks in turn.
                let shuffled: Vec<_> = (0..count).map(|n| out[n * 1031 % count]).collect();
                world.on(1, |cpu| cpu.free_bulk(order(k), &shuffled)).expect("all are allocated");
                world.drain_all();
                assert_eq!(world.settled().allocated, 0);
                assert_eq!(world.allocator().free_blocks(MAX_ORDER), 4, "order {k}");
            }
        }
    }
}

#[test]
fn bulk_takes_the_lock_seldom() {
    for config in ENGINES {
        let world = Spec::one_zone(16 * 1024, 1).config(config).plain();
        let locks = || world.allocator().totals().pcp.lock_acquisitions;
        world.on(0, |cpu| {
            let mut out = vec![Pfn(0); 8192];
            let before = locks();
            assert_eq!(cpu.alloc_bulk(order(0), M, &mut out), 8192);
            let taken = locks() - before;
            assert!(taken <= 8192 / 512, "{taken} holds for 8192 pages");
            cpu.free_bulk(order(0), &out).expect("all are allocated");
            let freed = locks() - before - taken;
            assert!(freed <= 8192 / 128, "{freed} holds for 8192 pages");
        });
    }
}

#[test]
fn wrong_frees_in_bulk_are_refused_and_the_others_done() {
    for config in ENGINES {
        let world = unlisted(config, 2048);
        world.on(0, |cpu| {
            let mut out = [Pfn(0); 300];
            assert_eq!(cpu.alloc_bulk(order(0), M, &mut out), 300);
            let kept = cpu.must_alloc(2);
            let mut blocks = out.to_vec();
            // Twice near each other, twice far apart, of another order, inside another block, without an owner.
            blocks.insert(1, out[0]);
            blocks.extend([out[5], kept, kept.add(1), Pfn(3), Pfn(u64::MAX)]);
            let failed = cpu.free_bulk(order(0), &blocks).expect_err("six are wrong");
            assert_eq!((failed.refused, failed.first.why), (6, FreeFailure::NotAllocated), "{failed}");
            assert_eq!(failed.first.pfn, out[0]);
            assert_eq!(world.settled().allocated, 4);
            cpu.must_free(kept, 2);
        });
        assert_eq!(world.allocator().free_blocks(MAX_ORDER), 2);
        // Reserves are not asked for, and nothing is held.
        world.on(0, |cpu| assert_eq!(cpu.alloc_bulk(order(0), Migratetype::Cma, &mut [Pfn(0); 3]), 0));
    }
}

/// Blocks that are on the CPU's list, or set aside, are free already.
#[test]
fn what_lies_on_lists_is_refused_in_bulk() {
    for config in ENGINES {
        let world = Spec::one_zone(4096, 1).config(config).plain();
        world.on(0, |cpu| {
            let held: Vec<Pfn> = (0..6).map(|_| cpu.must_alloc(0)).collect();
            [5, 0, 1].into_iter().for_each(|n: usize| cpu.must_free(held[n], 0));
            let failed = cpu.free_bulk(order(0), &held).expect_err("three are free");
            assert_eq!((failed.refused, failed.first.why), (3, FreeFailure::NotAllocated), "{failed}");
            assert_eq!(failed.first.pfn, held[0]);
            cpu.drain();
        });
        assert_eq!(world.settled().free, 4096, "{:?}", config.engine);
    }
}

#[test]
fn bulk_leaves_the_low_mark_to_others() {
    for config in ENGINES {
        let config = config.with_marks().but(|config| config.min_free_kib = 1024);
        let world = Spec::one_zone(4096, 1).config(config).plain();
        let marks = world.zone().marks();
        assert!(marks.low > 64);
        world.on(0, |cpu| {
            let mut out = vec![Pfn(0); 4096];
            let some = (4096 - marks.low - 10) as usize;
            assert_eq!(cpu.alloc_bulk(order(0), M, &mut out[..some]), some);
            assert!(world.allocator().free_pages() >= marks.low, "others wait for memory");
            // All there is: then the rest is as for single allocations, which go down to the min mark.
            let count = some + cpu.alloc_bulk(order(0), M, &mut out[some..]);
            assert!(count as u64 >= 4096 - marks.low, "{count} taken");
            assert!(cpu.alloc(order(0), M).is_err(), "it left what single allocations get");
            // A refill of a list may go below the mark.
            assert!(world.allocator().free_pages() > marks.min / 2);
        });
    }
}

/// The low zone keeps its reserve for requests that can use no other: many blocks leave it no more than single ones do.
#[test]
fn bulk_leaves_low_memory_to_those_who_need_it() {
    let low = ZoneSpec { kind: ZoneType::Dma32, ..normal(0, BASE.0, 8192) };
    let high = normal(0, BASE.0 + 8192, 262_144);
    for config in ENGINES {
        let config = config.bare().with_marks().but(|config| config.boost_factor = 0);
        let world = Spec::zones([low, high], 1).config(config).plain();
        let (low, reserve) = (world.zone(), world.zone().reserve(ZoneType::Normal));
        assert!(reserve > low.marks().low);
        let mut out = vec![Pfn(0); 8192 + 262_144];
        world.on(0, |cpu| cpu.alloc_bulk(order(0), M, &mut out));
        assert_eq!(low.free_pages(), low.marks().min + reserve, "{:?}", config.engine);
    }
}

/// Moves the blocks of `held`, but for the pinned ones.
fn moves<'b>(held: &'b RefCell<BTreeSet<Block>>, pinned: &'b BTreeSet<Block>) -> impl Migrate + 'b {
    mover(move |from, to, order| {
        let block = Block { pfn: from, order };
        if pinned.contains(&block) || !held.borrow_mut().remove(&block) {
            return Migrated::Stays;
        }
        held.borrow_mut().insert(Block { pfn: to, order });
        Migrated::Moved
    })
}

/// Half of every pageblock in use, in blocks of several orders.
fn half_used(world: &World<Plain>) -> BTreeSet<Block> {
    world.on(0, |cpu| {
        let mut all = Vec::new();
        for n in 0.. {
            let order = order([0, 1, 0, 3, 2][n % 5]);
            let Ok(pfn) = cpu.alloc(order, M) else { break };
            all.push(Block { pfn, order });
        }
        let (kept, freed): (Vec<_>, Vec<_>) = all.into_iter().partition(|block| block.pfn.0 / 16 % 2 == 0);
        freed.into_iter().for_each(|block| cpu.must_free(block.pfn, block.order));
        cpu.drain();
        kept.into_iter().collect()
    })
}

fn disjoint(held: &BTreeSet<Block>, start: Pfn, pages: u64) -> bool {
    held.iter().all(|block| block.pfn.0 + block.order.pages() <= start.0 || start.0 + pages <= block.pfn.0)
}

#[test]
fn a_range_is_cleared_of_movable_blocks_and_had() {
    for config in WITH_WORDS {
        for (from, pages) in [(0, 512), (3, 700), (1000, 1), (600, 1024), (512, 1536)] {
            let world = Spec::one_zone(8192, 2).config(config).plain();
            let (held, pinned) = (RefCell::new(half_used(&world)), BTreeSet::new());
            let owner = moves(&held, &pinned);
            let helpers = Helpers::NONE.with_migrate(&owner);
            let (start, end) = (BASE.add(from), BASE.add(from + pages));
            let allocated = world.settled().allocated;
            world.on(0, |cpu| cpu.alloc_contig_range(start..end, &helpers)).expect("all of it moves");
            assert!(disjoint(&held.borrow(), start, pages));
            assert_eq!(world.settled().allocated, allocated + pages);
            let zone = world.zone();
            assert_eq!(world.allocator().zone_snapshot(zone).isolated_pageblocks, 0);
            // No other CPU gets any of it, and no CPU gets it twice.
            world.on(1, |cpu| {
                assert!(cpu.alloc_contig_range(start..end, &helpers).is_err());
                while let Ok(pfn) = cpu.alloc(order(0), M) {
                    assert!(pfn < start || pfn >= end);
                    held.borrow_mut().insert(Block { pfn, order: order(0) });
                }
            });
            world.on(1, |cpu| {
                if from % 512 == 0 {
                    assert!(cpu.free_contig_range(start.add(1)..end).is_err(), "it has other blocks");
                }
                assert!(cpu.free_contig_range(start..Pfn(u64::MAX)).is_err(), "beyond the zone");
                cpu.free_contig_range(start..end).expect("it is allocated");
                assert!(cpu.free_contig_range(start..end).is_err(), "freed twice");
                for block in held.take() {
                    cpu.must_free(block.pfn, block.order);
                }
            });
            world.drain_all();
            assert_eq!((world.settled().free, world.allocator().free_blocks(MAX_ORDER)), (8192, 8));
        }
    }
}

#[test]
fn a_range_that_cannot_be_had_is_left_as_it_was() {
    for config in WITH_WORDS {
        let world = Spec::one_zone(8192, 1).config(config).plain();
        let unmovable = world.on(0, |cpu| {
            cpu.must_alloc_at(BASE.add(1500), 0);
            BASE.add(1500)
        });
        let held = half_used(&world);
        let pinned: BTreeSet<_> = held
            .iter()
            .copied()
            .filter(|block| (512..1024).contains(&(block.pfn.0 - BASE.0)))
            .take(1)
            .collect();
        let stuck = pinned.iter().next().expect("a block in the second pageblock").pfn;
        let held = RefCell::new(held);
        let owner = moves(&held, &pinned);
        let helpers = Helpers::NONE.with_migrate(&owner);
        let types = || -> Vec<_> {
            (0..16).map(|n| world.allocator().frames().info(BASE.add(n * PAGEBLOCK_PAGES))).collect()
        };
        let before = (types(), world.allocator().free_pages(), world.settled());
        world.on(0, |cpu| {
            let try_range = |from, to, helpers: &Helpers<'_>| {
                cpu.alloc_contig_range(BASE.add(from)..BASE.add(to), helpers).expect_err("it cannot be had")
            };
            let in_use = |at| move |place: PlaceError| matches!(place.why, PlaceFailure::InUse { pfn, .. } if pfn == at);
            assert!(in_use(stuck)(try_range(512, 1024, &helpers).place));
            let failed = try_range(1024, 2048, &helpers);
            assert!(in_use(unmovable)(failed.place));
            assert!(failed.moved == 0 || config.engine == Engine::Linux, "{failed}");
            assert_eq!(try_range(5, 5, &helpers).place.why, PlaceFailure::Foreign);
            assert_eq!(try_range(8000, 9000, &helpers).place.why, PlaceFailure::Foreign);
            // No helper moves anything.
            assert!(matches!(try_range(2048, 3072, &Helpers::NONE).place.why, PlaceFailure::InUse { .. }));
            // A part is isolated of it.
            world.allocator().isolate_pageblock(BASE.add(4096)).expect("a pageblock");
            let isolated = PlaceFailure::Isolated(BASE.add(4096));
            assert_eq!(try_range(3584, 4700, &helpers).place.why, isolated);
            world.allocator().unisolate_pageblock(BASE.add(4096)).expect("it is isolated still");
            cpu.drain();
        });
        assert_eq!((types(), world.allocator().free_pages(), world.settled()), before);
    }
}

/// Whether a block leaves a range is its owner's to say, with maps of reclaimable blocks, too; one that was on a CPU's
/// list is no different. With maps nothing is moved in vain, and a search goes elsewhere.
#[test]
fn owners_say_which_blocks_leave_a_range() {
    let asked_types = [Migratetype::Unmovable, Migratetype::Reclaimable, M];
    for config in WITH_WORDS {
        for (asked, is_pinned) in asked_types.into_iter().flat_map(|asked| [(asked, false), (asked, true)]) {
            let world = Spec::one_zone(8192, 1).config(config).plain();
            world.on(0, |cpu| {
                let held: Vec<_> =
                    (0..100).map(|_| cpu.alloc(order(0), asked).expect("memory is free")).collect();
                let start = held[50].block_start(PAGEBLOCK_ORDER);
                let range = start..start.add(PAGEBLOCK_PAGES);
                // Of all pageblocks this one has the fewest frames in use.
                let is_in_the_way = |&pfn: &Pfn| !range.contains(&pfn) && pfn.0 % 4 > 0;
                let (_, freed): (Vec<_>, Vec<_>) = cpu.alloc_all(0).into_iter().partition(is_in_the_way);
                freed.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
                cpu.drain();
                let may_move =
                    asked == M || asked == Migratetype::Reclaimable && config.engine != Engine::Linux;
                let (stays, left) = (!may_move || is_pinned, Cell::new(0));
                let owner = choosy_mover(
                    |pfn, _| !is_pinned || pfn != held[50],
                    |from, _, _| {
                        left.set(left.get() + u64::from(range.contains(&from)));
                        Migrated::Moved
                    },
                );
                let helpers = Helpers::NONE.with_migrate(&owner);
                let searched = cpu.alloc_contig_with(PAGEBLOCK_PAGES, 1, M, &helpers);
                let told = format!("{asked:?}, pinned {is_pinned}, {:?}: {searched:?}", config.engine);
                let searched = searched.expect(&told);
                assert_eq!((searched == range, left.get() > 0), (!stays, !stays), "{told}");
                cpu.free_contig_range(searched).expect("it is allocated");
                let named = cpu.alloc_contig_range(range.clone(), &helpers);
                assert_eq!(named.is_err(), stays, "{told}");
                if let Err(failed) = named {
                    assert!(matches!(failed.place.why, PlaceFailure::InUse { .. }), "{told}");
                    assert_eq!(failed.moved, left.get(), "{told}");
                    assert!(failed.moved == 0 || config.engine == Engine::Linux, "{told}");
                }
            });
        }
    }
}

/// While an owner is asked whether a block would move, requests of its own move nothing: no owner is asked within.
#[test]
fn an_owner_that_asks_for_a_range_when_asked_does_not_ask_itself() {
    for config in WITH_WORDS {
        let world = Spec::one_zone(8192, 1).config(config).plain();
        half_used(&world);
        world.on(0, |cpu| {
            let within =
                choosy_mover(|pfn, _| panic!("{pfn:?} is asked about within"), |_, _, _| Migrated::Stays);
            let asked = Cell::new(0);
            let owner = choosy_mover(
                |_, _| {
                    let helpers = Helpers::NONE.with_migrate(&within);
                    asked.set(asked.get() + 1);
                    cpu.alloc_contig_with(PAGEBLOCK_PAGES, 1, M, &helpers).is_err()
                        && cpu.alloc_contig_range(BASE..BASE.add(PAGEBLOCK_PAGES), &helpers).is_err()
                },
                |_, _, _| Migrated::Moved,
            );
            assert!(
                cpu.alloc_contig_with(PAGEBLOCK_PAGES, 1, M, &Helpers::NONE.with_migrate(&owner)).is_ok()
            );
            assert!(asked.get() > 0);
        });
    }
}

/// The memory runs out in the middle of moving: what could not be moved stays where it is.
#[test]
fn a_range_without_a_place_to_move_to_is_left() {
    for config in WITH_WORDS {
        let world = unlisted(config, 2048);
        let held: BTreeSet<_> = world.on(0, |cpu| {
            let all = cpu.alloc_all(0);
            assert_eq!(all.len(), 2048);
            let free = all.iter().copied().filter(|pfn| pfn.0 >= BASE.0 + 1024).take(100);
            let free: BTreeSet<_> = free.collect();
            free.iter().for_each(|&pfn| cpu.must_free(pfn, 0));
            let held = all.into_iter().filter(|pfn| !free.contains(pfn));
            held.map(|pfn| Block { pfn, order: order(0) }).collect()
        });
        let (held, pinned) = (RefCell::new(held), BTreeSet::new());
        let owner = moves(&held, &pinned);
        let helpers = Helpers::NONE.with_migrate(&owner);
        world.on(0, |cpu| {
            let failed =
                cpu.alloc_contig_range(BASE..BASE.add(512), &helpers).expect_err("too much is in use");
            assert_eq!(failed.moved, 100, "{failed}");
        });
        let account = world.settled();
        assert_eq!((account.allocated, account.free), (1948, 100));
        world.on(0, |cpu| {
            held.take().into_iter().for_each(|block| cpu.must_free(block.pfn, block.order));
        });
        assert_eq!(world.allocator().free_blocks(PAGEBLOCK_ORDER), 4);
    }
}

/// A range is given up at the first block without a place, not after each of its blocks has asked for one.
#[test]
fn a_range_without_a_place_costs_no_more_than_one_with_places() {
    for (config, section) in
        [(Config::default(), 0), (Config::default(), MAX_ORDER.pages()), (Config::linux_v6_7(), 0)]
    {
        let cost = |free: usize| {
            let world: World<Checked> = Spec::one_zone(8192, 2).config(config).sections(section).build();
            let held: BTreeSet<_> = world.on(0, |cpu| {
                let mut all = cpu.alloc_all(0);
                all.sort();
                all.drain(1024..1024 + free).for_each(|pfn| cpu.must_free(pfn, 0));
                cpu.drain();
                all.into_iter().map(|pfn| Block { pfn, order: order(0) }).collect()
            });
            let (held, pinned) = (RefCell::new(held), BTreeSet::new());
            let owner = moves(&held, &pinned);
            let helpers = Helpers::NONE.with_migrate(&owner);
            let (result, tally) =
                tally(|| world.on(0, |cpu| cpu.alloc_contig_range(BASE..BASE.add(512), &helpers)));
            (result.is_ok(), tally.accesses())
        };
        let ((has_all, all), (has_none, none)) = (cost(512), cost(10));
        assert!(has_all && !has_none);
        assert!(none < all, "{none} accesses for {all}, {config:?}");
    }
}

/// Frames that no machine has, up to the last number: refused by every call that takes a frame, and nothing changes.
#[test]
fn frames_beyond_all_memory_are_refused() {
    for config in ENGINES {
        let world = unlisted(config, 2 * PAGEBLOCK_PAGES);
        let before = world.settled();
        let last = Pfn(u64::MAX);
        let far = [1, 2, PAGEBLOCK_PAGES, PAGEBLOCK_PAGES + 1, 1 << 63].map(|n| Pfn(last.0 - (n - 1)));
        for pfn in far.into_iter().flat_map(|pfn| [pfn, pfn.block_start(PAGEBLOCK_ORDER)]) {
            let allocator = world.allocator();
            assert_eq!(allocator.isolate_pageblock(pfn), None, "{pfn:?}");
            assert_eq!(allocator.unisolate_pageblock(pfn), None, "{pfn:?}");
            assert_eq!(allocator.set_pageblock_type(pfn, Migratetype::Unmovable), None, "{pfn:?}");
            for pages in [0, 1, PAGEBLOCK_PAGES, last.0 - pfn.0, u64::MAX] {
                assert!(allocator.add_memory(pfn, pages).is_err(), "{pfn:?}, {pages}");
                assert!(allocator.online(pfn, pages).is_err(), "{pfn:?}, {pages}");
            }
            world.on(0, |cpu| {
                let mut out = [(Pfn(0), Order::ZERO); 4];
                assert_eq!(cpu.take_free(pfn, Order::ZERO, &mut out), 0, "{pfn:?}");
                assert!(cpu.hwpoison(pfn).is_err() && cpu.unpoison(pfn).is_err(), "{pfn:?}");
                assert!(cpu.alloc_contig_range(pfn..last, &Helpers::NONE).is_err(), "{pfn:?}");
                assert!(cpu.free_contig_range(pfn..last).is_err() || pfn == last, "{pfn:?}");
                assert!(cpu.offline(pfn..last).is_err(), "{pfn:?}");
                for order in Order::all() {
                    assert!(cpu.alloc_at(pfn, order).is_err(), "{pfn:?}, {order:?}");
                    assert!(cpu.free(pfn, order).is_err(), "{pfn:?}, {order:?}");
                    assert!(cpu.free_bulk(order, &[pfn]).is_err(), "{pfn:?}, {order:?}");
                    assert!(!cpu.free_hit(pfn, order), "{pfn:?}, {order:?}");
                    #[expect(unsafe_code, reason = "the caller of split vouches for owning it")]
                    // SAFETY: it is refused, as it is no allocated block.
                    let split = unsafe { cpu.split(pfn, order, Order::ZERO) };
                    assert!(split.is_err(), "{pfn:?}, {order:?}");
                }
            });
        }
        assert_eq!(world.settled(), before, "{config:?}");
    }
}

/// A block whose second half is a hole cannot be had, and the hole is named.
#[test]
fn a_block_that_reaches_into_a_hole_is_not_given() {
    for engine in STORES {
        let memory = [(BASE, PAGEBLOCK_PAGES)];
        let world = Spec::one_zone(1024, 1).memory(memory).engine(engine).bare().plain();
        let error = world.on(0, |cpu| cpu.alloc_at(BASE, MAX_ORDER)).expect_err("half of it is a hole");
        let pfn = BASE.add(PAGEBLOCK_PAGES);
        assert_eq!(error.why, PlaceFailure::InUse { pfn, state: State::Reserved });
        assert_eq!(world.settled().free, PAGEBLOCK_PAGES);
    }
}

/// A range takes no pageblock behind its end: up to the end of the zone it can be had.
#[test]
fn a_whole_zone_can_be_had_as_a_range() {
    for engine in STORES {
        let world = Spec::one_zone(1024, 1).engine(engine).bare().plain();
        let all = BASE..BASE.add(1024);
        assert_eq!(world.on(0, |cpu| cpu.alloc_contig_range(all.clone(), &Helpers::NONE)), Ok(()));
        world.on(0, |cpu| cpu.free_contig_range(all)).expect("it is allocated");
        assert_eq!(world.settled().free, 1024);
    }
}

/// The first frames that a machine has: a part of a word of bits, and of a pageblock.
#[test]
fn frames_from_number_0_on_are_given() {
    for config in ENGINES {
        let world = Spec::zones([normal(0, 0, 1024)], 1).config(config).bare().plain();
        for range in [Pfn(5)..Pfn(8), Pfn(0)..Pfn(1), Pfn(3)..Pfn(200)] {
            let pages = range.end.0 - range.start.0;
            world.on(0, |cpu| cpu.alloc_contig_range(range.clone(), &Helpers::NONE)).expect("it is free");
            assert_eq!(world.settled().allocated, pages, "{range:?}, {:?}", config.engine);
            world.on(0, |cpu| cpu.free_contig_range(range)).expect("it is allocated");
        }
    }
}
