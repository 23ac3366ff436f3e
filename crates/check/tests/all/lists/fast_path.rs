//! Accesses of a hit, one by one: no locked instruction, and no descriptor that it does not need.

use framewright_check::platform::checked::{self, Tally};
use framewright_check::prelude::*;

/// Runs `hit` on CPU 0 when that has some blocks on its list, with two that are in the caller's hands: the one
/// allocated last, and one allocated before others that were freed since.
/// Returns the counts, and the words read and written by structure, pageblocks and frames each counted once.
fn touched(
    engine: Engine,
    order: Order,
    migratetype: Migratetype,
    hit: impl Fn(&framewright::Cpu<'_, '_, Checked>, [Pfn; 2]),
) -> (Tally, Vec<(Place, bool, usize)>) {
    let world: World<Checked> = Spec::one_zone(1 << 16, 1).engine(engine).fixed(2048, 100_000).build();
    world.on(0, |cpu| {
        let blocks: Vec<_> = (0..3).map(|_| cpu.must_alloc_of(order, migratetype)).collect();
        // Once round, so that the list is neither new nor empty.
        cpu.must_free(blocks[2], order);
        cpu.must_free(blocks[1], order);
        assert_eq!(cpu.alloc(order, migratetype).ok(), Some(blocks[1]));
        let snapshot = world.allocator().totals();
        let ((((), accesses), tally), events) = (
            checked::tally(|| checked::trace(|| hit(cpu, [blocks[1], blocks[0]]))),
            world.allocator().totals(),
        );
        assert_eq!(snapshot, events, "a hit is not an event");
        let mut words: Vec<_> = accesses
            .iter()
            .map(|a| (world.place_of(a.address).expect("a word of the allocator's"), a.write, a.address))
            .collect();
        words.sort_unstable();
        words.dedup();
        (tally, words)
    })
}

fn words_in(words: &[(Place, bool, usize)], place: Place, write: bool) -> usize {
    words.iter().filter(|&&(p, w, _)| p == place && w == write).count()
}

fn orders() -> impl Iterator<Item = Order> {
    (0..10).map(order)
}

/// Words that a hit reads and writes only to count: level and history.
const COUNTERS: [(Engine, usize); 2] = [(Engine::Linux, 2), (Engine::Framewright, 0)];

/// If hits count, huge reclaimable blocks wait with the unmovable ones: no hit finds them there.
fn has_list(counting: Engine, order: Order, kind: Migratetype) -> bool {
    counting == Engine::Framewright || order.get() != 9 || kind != Migratetype::Reclaimable
}

/// Three reads, one write: top, floor, slot; nothing else, but level and history where hits count.
#[test]
fn an_allocation_hit_stays_within_its_lists() {
    for order in orders() {
        let all = ORDINARY.into_iter().flat_map(|kind| COUNTERS.map(|how| (kind, how)));
        for (kind, (counting, counters)) in
            all.filter(|&(kind, (counting, _))| has_list(counting, order, kind))
        {
            let (tally, words) = touched(counting, order, kind, |cpu, _| {
                cpu.must_alloc_of(order, kind);
            });
            let (loads, stores) = (3 + counters as u64, 1 + counters as u64);
            assert_eq!(tally, Tally { loads, stores, ..Tally::default() }, "order {order}, {kind}");
            assert_eq!(words_in(&words, Place::Pcps, false), 2 + counters, "{words:?}");
            assert_eq!(words_in(&words, Place::Pcps, true), 1 + counters, "{words:?}");
            assert_eq!(words_in(&words, Place::Slots, false), 1, "{words:?}");
            assert_eq!(words.len(), 4 + 2 * counters, "{words:?}");
        }
    }
}

/// If hits do not count, the block allocated last goes back on the word of its head alone: that, top, and ceiling
/// are read, slot and top are written. A block of another type than movable is first compared with the movable list's
/// top, and reads its own list's twice.
#[test]
fn the_free_of_the_last_block_touches_one_head() {
    for order in orders() {
        for (kind, tops) in [(M, 1), (Migratetype::Unmovable, 2), (Migratetype::Reclaimable, 3)] {
            let (tally, words) = touched(Engine::Framewright, order, kind, |cpu, blocks| {
                cpu.must_free(blocks[0], order);
            });
            let huge = usize::from(order.get() == 9);
            let loads = 2 + tops as u64 + u64::from(kind != M);
            assert_eq!(tally, Tally { loads, stores: 2, ..Tally::default() }, "order {order}, {kind}");
            assert_eq!(words_in(&words, Place::Pageblocks, false), huge, "{words:?}");
            assert_eq!(words_in(&words, Place::Frames, false), 1 - huge, "{words:?}");
            assert_eq!(words_in(&words, Place::Pcps, false), 1 + tops, "{words:?}");
            assert_eq!(words_in(&words, Place::Pcps, true), 1, "{words:?}");
            assert_eq!(words_in(&words, Place::Slots, true), 1, "{words:?}");
            assert_eq!(words.len(), 4 + tops, "{words:?}");
        }
    }
}

/// If hits count, one pageblock is asked what it is, and one head word where the block last sat. That is written
/// only if the block will sit elsewhere: not if the block allocated last is the first to be freed.
#[test]
fn a_free_hit_touches_one_head_and_one_pageblock() {
    for order in orders() {
        let listed = ORDINARY.into_iter().filter(|&kind| has_list(Engine::Linux, order, kind));
        for (kind, which) in listed.flat_map(|kind| [(kind, 0), (kind, 1)]) {
            let (tally, words) = touched(Engine::Linux, order, kind, |cpu, blocks| {
                cpu.must_free(blocks[which], order);
            });
            assert_eq!((tally.rmws, tally.cell_reads, tally.cell_writes, tally.relaxes), (0, 0, 0, 0));
            let count = |place, written| words_in(&words, place, written);
            assert_eq!(
                (count(Place::Pageblocks, false), count(Place::Pageblocks, true)),
                (1, 0),
                "{words:?}"
            );
            assert_eq!((count(Place::Frames, false), count(Place::Frames, true)), (1, which), "{words:?}");
            assert_eq!(words_in(&words, Place::Zones, false) + words_in(&words, Place::Zones, true), 0);
            assert_eq!(words_in(&words, Place::Slots, true), 1, "{words:?}");
            assert_eq!((tally.loads, tally.stores), (FREE_LOADS, 4 + which as u64), "order {order}, {kind}");
        }
    }
}

/// Pageblock, head, top, ceiling; history, level.
const FREE_LOADS: u64 = 6;

/// While a pageblock of the zone is isolated each free is a slow call. It neither divides the lists anew nor goes to
/// the zone before its list is at its share; hits are back when the pageblock is.
#[test]
fn a_free_beside_an_isolated_pageblock_costs_no_drain() {
    let world: World<Checked> =
        Spec::one_zone(1 << 16, 1).config(Config::framewright()).fixed(64, 1024).build();
    let far = BASE.add((1 << 16) - PAGEBLOCK_PAGES);
    world.on(0, |cpu| {
        // More than a pageblock, so that those freed first are in one that is full.
        let mut held = (0..1000).map(|_| cpu.must_alloc(0)).collect::<Vec<_>>().into_iter();
        let mut free = || checked::tally(|| cpu.must_free(held.next().expect("some are left"), 0)).1;
        free();
        let hit = free();
        world.allocator().isolate_pageblock(far).expect("it has memory");
        // The first one finds the list shut.
        free();
        for _ in 0..8 {
            let slow = free();
            assert!(slow.rmws == 0 && slow.accesses() <= 2 * hit.accesses(), "{slow:?}, a hit {hit:?}");
        }
        world.allocator().unisolate_pageblock(far).expect("it is isolated");
        free();
        assert_eq!(free(), hit);
    });
}

/// Lists that slow calls fill hold as much as those that hits fill.
#[test]
fn lists_keep_to_their_shares_beside_an_isolated_pageblock() {
    let [open, closed] = [false, true].map(|is_isolated| {
        let world = Spec::one_zone(1 << 16, 1).config(Config::framewright()).fixed(64, 1024).plain();
        if is_isolated {
            world.allocator().isolate_pageblock(BASE).expect("it has memory");
        }
        world.on(0, |cpu| {
            let held: Vec<_> = (0..8000).map(|_| cpu.must_alloc(0)).collect();
            held.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
        });
        world.allocator().pcp_pages()
    });
    assert_eq!(open, closed);
}

/// Code without calls makes hits of the ordinary types only.
#[test]
fn only_ordinary_types_have_words_to_hit() {
    let world = Spec::one_zone(1024, 1).plain();
    for kind in Migratetype::ALL {
        assert_eq!(world.on(0, |cpu| cpu.hit_words(kind)).is_some(), kind.is_ordinary(), "{kind}");
    }
}

/// For callers with a slow path of their own: a hit, whether hits count or not; a refill, unless zones keep marks; and
/// no help, so that another CPU's blocks stay on its lists.
#[test]
fn without_help_only_what_is_at_hand_is_given() {
    for config in ENGINES {
        let world = Spec::one_zone(64, 2).config(config).fixed(4, 16).plain();
        let theirs: Vec<Pfn> = (0..60).map(|_| world.must_alloc(1, 0)).collect();
        world.must_free(1, theirs[0], 0);
        let listed = world.pcp(1).count();
        world.on(0, |cpu| {
            assert_eq!(cpu.alloc_listed(Order::ZERO, M), None, "{:?}: the list is empty", config.engine);
            let first = cpu.alloc_unhelped(Order::ZERO, M).expect("a refill");
            let second = cpu.alloc_listed(Order::ZERO, M).expect("of which one is left");
            assert_ne!(first, second);
            assert_eq!(cpu.alloc_hit(Order::ZERO, M).is_some(), config.engine == Engine::Framewright);
            while cpu.alloc_unhelped(Order::ZERO, M).is_some() {}
            assert_eq!(cpu.alloc_unhelped(Order::ZERO, Migratetype::Cma), None);
        });
        world.on(1, |cpu| cpu.answer());
        assert_eq!(world.pcp(1).count(), listed, "{:?}", config.engine);
        let marks = Spec::one_zone(4096, 1).config(config.with_marks()).plain();
        assert_eq!(marks.on(0, |cpu| cpu.alloc_unhelped(Order::ZERO, M)), None);
    }
}

/// A CPU that has used up its own node, with marks and without: its pairs in another node's memory take no lock, and
/// the next block is one of its own node as soon as that has any.
#[test]
fn pairs_in_another_nodes_memory_lock_nothing() {
    for (config, order) in [Config::default(), Config::default().with_marks()]
        .into_iter()
        .flat_map(|c| orders().map(move |o| (c, o)))
    {
        let zone = |n: u16| normal(n, BASE.0 + (u64::from(n) << 16), 1 << 16);
        let world: World<Checked> = Spec::zones([zone(0), zone(1), zone(2)], 2)
            .cpu_nodes([NodeId(0), NodeId(2)])
            .config(config)
            .fixed(2048, 100_000)
            .build();
        let node_of = |pfn: Pfn| world.allocator().frames().info(pfn).zone().0;
        world.on(0, |cpu| {
            let mut held: Vec<Pfn> = Vec::new();
            while held.last().is_none_or(|&pfn| node_of(pfn) < 2) {
                held.push(cpu.must_alloc_of(order, M));
            }
            // The second free makes room on the list, the first one may drain it.
            for _ in 0..2 {
                let pfn = held.pop().expect("blocks of node 2");
                cpu.must_free(pfn, order);
                held.push(cpu.must_alloc_of(order, M));
            }
            let ((), tally) = checked::tally(|| {
                let pfn = cpu.must_alloc_of(order, M);
                assert_eq!(node_of(pfn), 2, "order {order}");
                cpu.must_free(pfn, order);
            });
            assert_eq!(tally.rmws, 0, "order {order}: {tally:?}");
            // What is on lists of the own node comes first, whichever call asks.
            for pfn in held.drain(..2) {
                assert_eq!(node_of(pfn), 0, "order {order}");
                cpu.must_free(pfn, order);
            }
            for _ in 0..2 {
                held.push(cpu.request(&Request::new(order, M)).expect("memory is left"));
                assert_eq!(held.last().map(|&pfn| node_of(pfn)), Some(0), "order {order}");
            }
            let [ours, theirs]: [Vec<Pfn>; 2] =
                [0, 1].map(|n| held.iter().copied().filter(|&p| node_of(p) == n).collect());
            for pfn in theirs {
                cpu.must_free(pfn, order);
            }
            cpu.drain();
            assert_eq!(node_of(cpu.must_alloc_of(order, M)), 1, "order {order}");
            for pfn in ours {
                cpu.must_free(pfn, order);
            }
            cpu.drain();
            assert_eq!(node_of(cpu.must_alloc_of(order, M)), 0, "order {order}");
        });
    }
}

/// Blocks of the own node that a CPU has set aside come before another node's.
#[test]
fn what_is_set_aside_comes_before_another_nodes_memory() {
    let zone = |n: u16| normal(n, BASE.0 + (u64::from(n) << 14), 1 << 14);
    let world: World<Checked> =
        Spec::zones([zone(0), zone(1)], 2).config(Config::default().orders(PcpOrders::Zero)).build();
    let node_of = |pfn: Pfn| world.allocator().frames().info(pfn).zone().0;
    world.on(0, |cpu| {
        let mut held: Vec<Pfn> = Vec::new();
        while held.last().is_none_or(|&pfn| node_of(pfn) < 1) {
            held.push(cpu.must_alloc(0));
        }
        // Pageblocks of the own node become mostly free, so that the next of their frames are set aside.
        held.sort_unstable();
        held.drain(..2000).for_each(|pfn| cpu.must_free(pfn, 0));
        while cpu.alloc_hit(Order::ZERO, M).is_some() {}
        held.drain(..3).for_each(|pfn| cpu.must_free(pfn, 0));
        assert_eq!(cpu.alloc_hit(Order::ZERO, M), None, "they are not on a list");
    });
    // All that the node has otherwise is another CPU's.
    let zone = &world.allocator().zones()[0];
    world.on(1, |cpu| {
        while zone.free_pages() > 0 {
            cpu.must_alloc(0);
        }
    });
    assert!(world.pcp(0).count() >= 3, "set aside");
    let far = world.allocator().pcp(ZoneId(1), CpuId(0));
    assert!(far.count() > 0, "there would be a hit on the other node");
    let next = world.on(0, |cpu| [(); 3].map(|()| node_of(cpu.must_alloc(0))));
    assert_eq!(next, [0; 3]);
}
