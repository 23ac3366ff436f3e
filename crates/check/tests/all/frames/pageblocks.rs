//! Pageblocks that are isolated, lent out as CMA, or retyped, while their frames are free, allocated, or half
//! of a larger block.

use framewright_check::prelude::*;

/// Four free blocks of the largest order, in the free store and not on a CPU's lists.
fn world() -> World<Checked> {
    Spec::one_zone(4 * MAX_ORDER.pages(), 1).bare().build()
}

/// The second pageblock of the first largest block.
const UPPER: Pfn = BASE.add(PAGEBLOCK_PAGES);

#[test]
fn isolation_and_its_end_leave_everything_as_it_was() {
    for engine in STORES {
        let world = Spec::one_zone(4 * MAX_ORDER.pages(), 1).engine(engine).bare().plain();
        let (before, allocator) = (world.free_lists(), world.allocator());
        assert_eq!(allocator.isolate_pageblock(UPPER), Some(PAGEBLOCK_PAGES));
        assert_eq!(allocator.isolate_pageblock(UPPER), None, "isolated already");
        assert_eq!(
            allocator.set_pageblock_type(UPPER, Migratetype::Cma),
            None,
            "it keeps the type that it will have"
        );
        assert_eq!(allocator.free_pages(), 7 * PAGEBLOCK_PAGES);
        world.settled();
        assert_eq!(allocator.unisolate_pageblock(UPPER), Some(PAGEBLOCK_PAGES));
        assert_eq!(allocator.unisolate_pageblock(UPPER), None, "isolated no longer");
        assert_eq!(allocator.frames().info(UPPER).migratetype(), M);
        world.settled();
        assert_eq!(world.free_lists().pages(), before.pages());
        assert_eq!(allocator.free_blocks(MAX_ORDER), 4);
    }
}

/// One half of a block is isolated while the whole is allocated: freed, that half stays out of use and the
/// other does not.
#[test]
fn half_of_an_allocated_block_is_isolated() {
    for isolated in [BASE, UPPER] {
        let world = world();
        world.on(0, |cpu| {
            while cpu.alloc(MAX_ORDER, M).is_ok() {}
            assert_eq!(world.allocator().isolate_pageblock(isolated), Some(0));
            cpu.must_free(BASE, MAX_ORDER);
            world.settled();
            assert_eq!(world.allocator().free_pages(), PAGEBLOCK_PAGES, "the other half is free");
            let got = cpu.alloc(PAGEBLOCK_ORDER, M);
            assert_eq!(got.ok(), Some(isolated.buddy(PAGEBLOCK_ORDER)));
            assert!(cpu.alloc(Order::ZERO, M).is_err(), "nothing else is free");
        });
        assert_eq!(world.allocator().unisolate_pageblock(isolated), Some(PAGEBLOCK_PAGES));
        assert_eq!(world.settled().free, PAGEBLOCK_PAGES);
    }
}

/// CMA pages are lent to movable requests only.
#[test]
fn cma_is_lent_to_movable_requests_only() {
    let world = world();
    for n in 0..8 {
        world
            .allocator()
            .set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), Migratetype::Cma)
            .expect("memory");
    }
    world.settled();
    world.on(0, |cpu| {
        for asked in [Migratetype::Unmovable, Migratetype::Reclaimable] {
            assert!(cpu.alloc(Order::ZERO, asked).is_err());
        }
        let pfn = cpu.must_alloc(0);
        assert_eq!(world.zone().free_cma_pages(), 8 * PAGEBLOCK_PAGES - 1);
        cpu.must_free(pfn, 0);
    });
    world.settled();
}

/// The block that was allocated last goes back to its list without a look at its pageblock, unless that is isolated:
/// then it joins the frames that are withdrawn. So also on a CPU that was not there when the pageblock was isolated.
#[test]
fn a_block_freed_into_an_isolated_pageblock_is_withdrawn() {
    for engine in [Engine::Linux, Engine::Framewright] {
        let world = Spec::one_zone(64 * MAX_ORDER.pages(), 2).engine(engine).plain();
        for order in [0, 3].map(order) {
            world.on(0, |cpu| {
                let pair = || {
                    let pfn = cpu.must_alloc(order);
                    cpu.must_free(pfn, order);
                };
                // Until lists have settled after their refill.
                (0..8).for_each(|_| pair());
                let hit = cpu.must_alloc(order);
                let listed = world.allocator().pcp_pages();
                world.allocator().isolate_pageblock(hit).expect("not isolated yet");
                cpu.must_free(hit, order);
                assert!(world.allocator().pcp_pages() <= listed, "{engine:?}: it waits on a list");
                assert!(cpu.free(hit, order).is_err(), "freed twice");
                world.settled();
                world.allocator().unisolate_pageblock(hit).expect("isolated");
                (0..8).for_each(|_| pair());
                let before = world.allocator().totals().pcp;
                pair();
                assert_eq!(world.allocator().totals().pcp, before, "{engine:?}: hits again");
            });
        }
    }
}

/// Allocates all of the zones up to `highest` but one pageblock as movable huge blocks; of that one, every second page
/// is in use, and movable.
fn mixed(world: &World<Plain>, pageblocks: usize, highest: ZoneType) {
    world.on(0, |cpu| {
        for _ in 1..pageblocks {
            cpu.alloc_in(PAGEBLOCK_ORDER, M, highest).expect("memory is left");
        }
        let singly: Vec<_> = (0..PAGEBLOCK_PAGES)
            .map(|_| cpu.alloc_in(Order::ZERO, M, highest).expect("memory is left"))
            .collect();
        singly.iter().step_by(2).for_each(|&pfn| cpu.must_free(pfn, 0));
        cpu.drain();
    });
}

/// Linux from v5.0 on, where the first zone is a Normal one with a DMA32 zone below it.
#[test]
fn a_lower_zone_comes_before_types_are_mixed() {
    let marks = |config: Config| {
        config.with_marks().but(|config| {
            config.min_free_kib = 64;
            config.boost_factor = 0;
        })
    };
    let presets = [Config::linux_v5_4(), Config::linux_v6_7(), marks(Config::linux_v6_1())];
    let zone = |kind, start| ZoneSpec { node: NodeId(0), kind, start, pages: 8 * PAGEBLOCK_PAGES };
    let normal = BASE.add(8 * PAGEBLOCK_PAGES);
    for preset in presets {
        for avoid_fragmentation in [true, false] {
            let config = preset.but(|config| config.experiment.avoid_fragmentation = avoid_fragmentation);
            let zones = [zone(ZoneType::Dma32, BASE), zone(ZoneType::Normal, normal)];
            let world = Spec::zones(zones, 1).config(config).plain();
            mixed(&world, 8, ZoneType::Normal);
            let alloc = || world.on(0, |cpu| cpu.alloc(Order::ZERO, Migratetype::Unmovable));
            let first = alloc().expect("memory is left");
            assert_eq!(first < normal, avoid_fragmentation, "{config:?}");
            // When nothing is left below, they are mixed.
            while alloc().expect("memory is left") < normal {}
            world.settled();
        }
    }
}

#[test]
fn a_refill_brings_only_what_its_own_type_has() {
    for (avoid_fragmentation, brings) in [(true, 2), (false, 10)] {
        for engine in STORES {
            let world = Spec::one_zone(8 * PAGEBLOCK_PAGES, 1)
                .engine(engine)
                .fixed(8, 2000)
                .orders(PcpOrders::Zero)
                .but(|config| {
                    config.experiment.avoid_fragmentation = avoid_fragmentation;
                    config.experiment.pcp_rule = PcpRule::V5_4;
                })
                .plain();
            world.allocator().set_pageblock_type(BASE, Migratetype::Unmovable).expect("it has memory");
            mixed(&world, 7, ZoneType::Normal);
            let size = Sizing { batch: 10, high_min: 2000, high_max: 2000 };
            world.allocator().resize_pcps_of(ZoneId(0), size);
            let refilled = || world.pcp(0).events().refilled_pages;
            let before = refilled();
            let alloc = || world.on(0, |cpu| cpu.alloc(Order::ZERO, Migratetype::Unmovable));
            assert!((0..510).all(|_| alloc().is_ok()));
            assert_eq!(refilled() - before, 510);
            alloc().expect("memory is left");
            assert_eq!(refilled() - before, 510 + brings, "{engine:?}");
            while alloc().is_ok() {}
            assert_eq!(world.settled().free, 0, "all can be had in the end");
        }
    }
}

/// A zone too small to group by mobility retypes each pageblock that it takes from.
#[test]
fn without_grouping_a_steal_retypes_whatever_is_in_use() {
    for engine in STORES {
        for (pageblocks, becomes) in [(4, Migratetype::Unmovable), (8, M)] {
            let world = Spec::one_zone(pageblocks * PAGEBLOCK_PAGES, 1).engine(engine).bare().plain();
            world.on(0, |cpu| {
                let movable = |order| cpu.must_alloc(order);
                (1..pageblocks).for_each(|_| _ = movable(PAGEBLOCK_ORDER));
                (0..300).for_each(|_| _ = movable(Order::ZERO));
                let pfn = cpu.must_alloc_of(0, Migratetype::Unmovable);
                assert_eq!(world.allocator().frames().info(pfn).migratetype(), becomes, "{engine:?}");
            });
            world.settled();
        }
    }
}

/// Linux has two lists of huge blocks, one for movable blocks and one for all others.
#[test]
fn presets_keep_huge_blocks_that_do_not_move_on_one_list() {
    for (config, refills) in [
        (Config::linux_v6_1(), 1),
        (Config::linux_v6_7(), 1),
        (Config::default().but(|config| config.experiment.pcp_min_refill = 2), 2),
    ] {
        let world = Spec::one_zone(64 * PAGEBLOCK_PAGES, 1).config(config).plain();
        let events = || world.pcp(0).events();
        world.on(0, |cpu| {
            let alloc = |asked| cpu.must_alloc_of(PAGEBLOCK_ORDER, asked);
            let unmovable = alloc(Migratetype::Unmovable);
            let reclaimable = alloc(Migratetype::Reclaimable);
            assert_eq!(events().refills, refills, "{config:?}");
            for pfn in [reclaimable, unmovable] {
                cpu.must_free(pfn, PAGEBLOCK_ORDER);
                assert!(cpu.free(pfn, PAGEBLOCK_ORDER).is_err(), "freed twice");
            }
            world.settled();
            assert_eq!(events().direct_frees + events().direct_allocs, 0);
            alloc(M);
            assert_eq!(events().refills, refills + 1);
        });
        world.settled();
    }
}

/// Two huge neighbours that are given back together merge, and count, as their pageblocks' types say.
#[test]
fn huge_neighbours_go_back_as_their_pageblocks_are() {
    let types = [M, Migratetype::Unmovable, Migratetype::Cma];
    for (a, b) in types.iter().flat_map(|&a| types.map(|b| (a, b))) {
        let world = Spec::one_zone(8 * 1024, 1).plain();
        let huge = world.on(0, |cpu| [(); 2].map(|()| cpu.must_alloc(PAGEBLOCK_ORDER)));
        let [low, high] = [huge[0].min(huge[1]), huge[0].max(huge[1])];
        assert_eq!((low.buddy(PAGEBLOCK_ORDER), high.block_start(MAX_ORDER)), (high, low));
        for (pfn, kind) in [(low, a), (high, b)] {
            world.allocator().set_pageblock_type(pfn, kind);
        }
        world.on(0, |cpu| {
            for pfn in [low, high] {
                cpu.must_free(pfn, PAGEBLOCK_ORDER);
            }
            cpu.drain();
        });
        let cma = [a, b].iter().filter(|&&kind| kind == Migratetype::Cma).count() as u64;
        assert_eq!(world.zone().free_cma_pages(), cma * PAGEBLOCK_PAGES, "{a} and {b}");
        assert_eq!((world.settled().free, world.settled().on_pcp), (8 * 1024, 0), "{a} and {b}");
    }
}

/// Frames that stay come with three times as many that go. Those that stay are in pairs of pageblocks: all blocks of
/// the largest order are free again but those that they fill, and one that they have begun.
#[test]
fn pageblocks_that_other_types_give_up_are_neighbours() {
    const PAIRS: u64 = 64;
    for config in ENGINES {
        for sections in [0, 16 * MAX_ORDER.pages()] {
            let world =
                Spec::one_zone(PAIRS * MAX_ORDER.pages(), 2).config(config).sections(sections).plain();
            let stay = PAIRS / 4 * MAX_ORDER.pages() - PAGEBLOCK_PAGES;
            let go = world.on(0, |cpu| {
                let round = |_| {
                    cpu.must_alloc_of(0, Migratetype::Unmovable);
                    [(); 3].map(|()| cpu.must_alloc(0))
                };
                (0..stay).flat_map(round).collect::<Vec<_>>()
            });
            go.iter().for_each(|&pfn| world.must_free(0, pfn, 0));
            world.drain_all();
            let whole = world.allocator().free_blocks(MAX_ORDER);
            assert!(whole >= PAIRS - PAIRS / 4 - 1, "{whole} of {PAIRS}, {:?}, {sections}", config.engine);
        }
    }
}

/// Any number may be asked for, also one that is no frame's.
#[test]
fn a_frame_that_the_map_does_not_have_is_in_no_block() {
    for engine in [Engine::Framewright, Engine::Compact, Engine::Linux] {
        let world = Spec::one_zone(4 * MAX_ORDER.pages(), 1).engine(engine).bare().plain();
        let frames = world.allocator().frames();
        let end = BASE.add(4 * MAX_ORDER.pages());
        for pfn in [Pfn(0), Pfn(BASE.0 - 1), end, Pfn(1 << 52), Pfn(u64::MAX)] {
            assert_eq!(frames.find(pfn), (pfn, State::Body), "{engine:?}");
        }
        assert!(matches!(frames.find(Pfn(end.0 - 1)).1, State::Free { .. }), "{engine:?}");
    }
}
