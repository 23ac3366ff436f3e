//! Free memory kept as bits: small worlds gone through completely, against a set of frames; long histories beside those
//! of the other engine; damage.

use std::collections::{BTreeMap, BTreeSet};

use framewright_check::exhaust::{self, Reached};
use framewright_check::prelude::*;

fn world_in(engine: Engine, pages: u64) -> World<Plain> {
    Spec::one_zone(pages, 1).engine(engine).bare().build()
}

fn world(pages: u64) -> World<Plain> {
    world_in(Engine::Framewright, pages)
}

/// What is free, said as plainly as can be: a set of frames.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Model {
    pages: u64,
    taken: BTreeSet<(Pfn, Order)>,
}

impl Model {
    fn is_free(&self, pfn: Pfn) -> bool {
        (BASE..BASE.add(self.pages)).contains(&pfn)
            && !self.taken.iter().any(|&(at, order)| (at..at.add(order.pages())).contains(&pfn))
    }

    fn has(&self, pfn: Pfn, order: Order) -> bool {
        pfn.is_aligned(order) && (0..order.pages()).all(|n| self.is_free(pfn.add(n)))
    }

    /// The free blocks, each as large as it goes, by order.
    fn blocks(&self) -> BTreeMap<Order, Vec<Pfn>> {
        let mut blocks: BTreeMap<Order, Vec<Pfn>> = BTreeMap::new();
        let mut at = BASE;
        while at < BASE.add(self.pages) {
            let largest = Order::all().rfind(|&order| self.has(at, order));
            if let Some(order) = largest {
                blocks.entry(order).or_default().push(at);
            }
            at = at.add(largest.map_or(1, Order::pages));
        }
        blocks
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Alloc(Order, Migratetype),
    Free(Block),
}

/// Explores sequences of allocations and frees of these orders and types in a zone of so many pages, with each engine.
fn explore(pages: u64, orders: &[u8], types: &[Migratetype], depth: usize) {
    for form in [Engine::Linux, Engine::Framewright, Engine::Compact] {
        println!("{:?}", explore_in(form, pages, orders, types, depth));
    }
}

fn explore_in(form: Engine, pages: u64, orders: &[u8], types: &[Migratetype], depth: usize) -> Reached {
    exhaust::reach(depth, |path: &[Action]| {
        let world = world_in(form, pages);
        let mut model = Model { pages, taken: BTreeSet::new() };
        world.on(0, |cpu| {
            for action in path {
                match *action {
                    Action::Alloc(order, asked) => match cpu.alloc(order, asked) {
                        Ok(pfn) => {
                            assert!(model.has(pfn, order), "{action:?} got {pfn}, which is not free");
                            model.taken.insert((pfn, order));
                        }
                        Err(_) => {
                            let any = (0..pages).map(|n| BASE.add(n)).find(|&pfn| model.has(pfn, order));
                            assert_eq!(any, None, "{action:?} failed");
                        }
                    },
                    Action::Free(Block { pfn, order }) => {
                        cpu.must_free(pfn, order);
                        assert!(model.taken.remove(&(pfn, order)));
                    }
                }
            }
        });
        compare(&world, &model, orders);
        let mut actions: Vec<_> =
            model.taken.iter().map(|&(pfn, order)| Action::Free(Block { pfn, order })).collect();
        for &at in orders {
            actions.extend(types.iter().map(|&asked| Action::Alloc(order(at), asked)));
        }
        // Types of pageblocks, and which pageblock of a bin comes first, decide what happens next.
        let types: Vec<_> = (0..pages.div_ceil(PAGEBLOCK_PAGES))
            .map(|n| world.allocator().frames().info(BASE.add(n * PAGEBLOCK_PAGES)).migratetype())
            .collect();
        ((model, types), actions)
    })
}

/// The same is free, in the same blocks; and no free but those of the blocks that are out is accepted.
fn compare(world: &World<Plain>, model: &Model, orders: &[u8]) {
    let account = world.settled();
    assert_eq!(account.allocated, model.taken.iter().map(|(_, order)| order.pages()).sum::<u64>());
    let free = world.free_lists();
    for (order, blocks) in model.blocks() {
        let mut found: Vec<_> = Migratetype::ALL.iter().flat_map(|&list| free.blocks(list, order)).collect();
        found.sort_unstable();
        assert_eq!(found, blocks.iter().collect::<Vec<_>>(), "order {order}");
    }
    world.on(0, |cpu| {
        // Around every block and at the ends; all frames would take too long.
        let near = model.taken.iter().flat_map(|&(at, order)| [at.0, at.0 + 1, at.0 + order.pages()]);
        for pfn in near.chain([BASE.0 - 1, BASE.0, BASE.0 + model.pages]).map(Pfn) {
            for order in
                orders.iter().map(|&at| order(at)).filter(|&order| !model.taken.contains(&(pfn, order)))
            {
                assert!(cpu.free(pfn, order).is_err(), "accepted: order {order} at {pfn}");
            }
        }
    });
    assert_eq!(world.free_lists(), free, "a refused free changed something");
}

#[test]
fn a_small_zone_of_one_type_is_the_models() {
    explore(16, &[0, 1, 2, 3, 4], &[M], if full() { 10 } else { 7 });
}

#[test]
fn so_is_one_across_words_and_pageblocks() {
    explore(PAGEBLOCK_PAGES + 200, &[0, 5, 6, 7, 8, 9], &[M], if full() { 6 } else { 4 });
}

#[test]
fn types_that_take_from_each_other_are_the_models() {
    let all = ORDINARY;
    explore(32, &[0, 1, 3], &all, if full() { 6 } else { 4 });
    explore(3 * PAGEBLOCK_PAGES, &[0, 8, 9], &all, if full() { 5 } else { 4 });
}

/// Many frames, so that pageblocks go through all classes of fullness, and come whole again.
#[test]
fn everything_comes_back_whole() {
    let pages = 8 * MAX_ORDER.pages();
    let world = world(pages);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut random = |below: usize| rng.usize(..below);
    world.on(0, |cpu| {
        for round in 0..4 {
            let mut held = Vec::new();
            while let Ok(pfn) = cpu.alloc(order([0, 0, 3, 1][round]), M) {
                held.push(pfn);
            }
            assert_eq!(world.allocator().free_pages(), 0);
            while !held.is_empty() {
                let pfn = held.swap_remove(random(held.len()));
                cpu.must_free(pfn, order([0, 0, 3, 1][round]));
                if held.len() % 997 == 0 {
                    world.settled();
                }
            }
            assert_eq!(world.allocator().free_blocks(MAX_ORDER), 8, "{}", world.allocator().buddyinfo());
        }
    });
}

/// Half of the frames of every pageblock are free; then those that are left are freed and allocated again in turn. The
/// pageblocks that are emptier give way to fuller ones.
#[test]
fn memory_becomes_contiguous_again() {
    let blocks = 64;
    let world = world(blocks * PAGEBLOCK_PAGES);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut random = |below: usize| rng.usize(..below);
    world.on(0, |cpu| {
        let mut held = Vec::new();
        while let Ok(pfn) = cpu.alloc(Order::ZERO, M) {
            held.push(pfn);
        }
        for _ in 0..held.len() / 2 {
            let pfn = held.swap_remove(random(held.len()));
            cpu.must_free(pfn, 0);
        }
        assert_eq!(world.allocator().free_blocks(PAGEBLOCK_ORDER), 0);
        for _ in 0..20 * held.len() {
            let n = random(held.len());
            cpu.must_free(held[n], 0);
            held[n] = cpu.must_alloc(0);
        }
    });
    let whole = world.allocator().free_blocks(PAGEBLOCK_ORDER);
    assert!(whole >= blocks / 2 - 1, "{whole} of {} pageblocks are whole", blocks / 2);
}

/// A small block does not break what a larger one will want, although the pageblock that has it is fuller.
#[test]
fn small_blocks_leave_large_ones_whole() {
    let world = Spec::one_zone(2 * PAGEBLOCK_PAGES, 1).bare().plain();
    world.on(0, |cpu| {
        let held = cpu.alloc_all(0);
        let start = held.iter().min().expect("there is memory").block_start(PAGEBLOCK_ORDER);
        let mut free = |n: u64| cpu.must_free(start.add(n), 0);
        (8..16).for_each(&mut free);
        // Twenty single frames in the other one.
        (0..20).for_each(|n| free(PAGEBLOCK_PAGES + 2 * n));
        for _ in 0..20 {
            let pfn = cpu.must_alloc(0);
            assert_eq!(pfn.block_start(PAGEBLOCK_ORDER), start.add(PAGEBLOCK_PAGES));
        }
        assert_eq!(cpu.alloc(order(3), M).ok(), Some(start.add(8)));
    });
}

/// LLFree's own fragmentation run, as published: everything allocated, a random half freed; then in each round a tenth
/// of the pages is freed and allocated again, one by one. With per-CPU lists, as the default has them.
#[test]
fn pages_swapped_one_by_one_leave_whole_pageblocks() {
    let blocks = 128;
    let world = Spec::one_zone(blocks * PAGEBLOCK_PAGES, 1).plain();
    let mut rng = fastrand::Rng::with_seed(5);
    let mut random = |below: usize| rng.usize(..below);
    let mut held = Vec::new();
    world.on(0, |cpu| {
        held.extend(core::iter::from_fn(|| cpu.alloc(Order::ZERO, M).ok()));
        assert_eq!(held.len() as u64, blocks * PAGEBLOCK_PAGES);
        for _ in 0..held.len() / 2 {
            let pfn = held.swap_remove(random(held.len()));
            cpu.must_free(pfn, 0);
        }
        for _ in 0..200 {
            for _ in 0..held.len() / 10 {
                let n = random(held.len());
                cpu.must_free(held[n], 0);
                held[n] = cpu.must_alloc(0);
            }
        }
    });
    world.settled();
    let used: BTreeSet<_> = held.iter().map(|pfn| pfn.block_start(PAGEBLOCK_ORDER)).collect();
    let whole = blocks - used.len() as u64;
    assert!(whole * 100 >= blocks / 2 * 98, "{whole} of {} pageblocks have no page in use", blocks / 2);
    world.on(0, |cpu| cpu.drain());
    assert!(world.allocator().free_blocks(PAGEBLOCK_ORDER) >= whole);
}

/// A block that is set aside has no owner, counts as on the lists, and goes back when a CPU asks, when its CPU leaves,
/// from time to time, and where the lists shrink.
#[test]
fn blocks_set_aside_go_back() {
    let pages = 4 * PAGEBLOCK_PAGES;
    let give_back: [fn(&World<Plain>, Pfn); 4] = [
        |world, block| {
            world.allocator().request_drain();
            world.must_free(0, block, 0);
        },
        |world, _| world.on(0, |cpu| cpu.drain()),
        |world, _| world.on(0, |cpu| cpu.tick()),
        |world, _| {
            let small = Sizing { batch: 1, high_min: 0, high_max: 0 };
            world.allocator().resize_pcps_of(ZoneId(0), small);
            // Of another order, so that it is not what was set aside.
            let last = world.must_alloc(0, 1);
            world.must_free(0, last, 1);
        },
    ];
    for (give_back, engine) in give_back.into_iter().flat_map(|how| FORMS.map(|form| (how, form))) {
        let world = Spec::one_zone(pages, 2).engine(engine).fixed(8, 16).plain();
        let held: Vec<_> = world.on(0, |cpu| (0..8).map(|_| cpu.must_alloc(Order::ZERO)).collect());
        let pcp = world.pcp(0);
        assert_eq!(pcp.count(), 0);
        let (block, orders) = (held[0], [Order::ZERO, order(1)]);
        world.must_free(0, block, 0);
        assert_eq!((pcp.count(), world.settled().on_pcp), (1, 1));
        assert_eq!(world.allocator().free_pages(), pages - 8, "the zone does not have it yet");
        for (cpu, order) in [0, 1].into_iter().flat_map(|cpu| orders.map(|order| (cpu, order))) {
            let refused = world.on(cpu, |cpu| cpu.free(block, order)).expect_err("no CPU has it");
            assert_eq!(refused.why, FreeFailure::NotAllocated, "{refused}");
            assert!(!world.on(cpu, |cpu| cpu.free_hit(block, order)));
        }
        assert_eq!(world.on(0, |cpu| cpu.alloc_hit(Order::ZERO, M)), None);
        give_back(&world, held[1]);
        let account = world.settled();
        let frames = world.allocator().frames();
        assert!(matches!(frames.find(block).1, State::Free { .. }), "{account:?}");
        world.on(0, |cpu| cpu.free(block, Order::ZERO)).expect_err("it is free");
    }
}

/// The presets of Linux hand out what was freed last.
#[test]
fn nothing_is_set_aside_with_lists() {
    let presets = [Config::linux_v3_0(), Config::linux_v5_4(), Config::linux_v6_1(), Config::linux_v6_7()];
    let lists = with_engine(Engine::Linux);
    for config in presets.into_iter().chain([lists]) {
        let world = Spec::one_zone(4 * PAGEBLOCK_PAGES, 1).config(config).plain();
        world.on(0, |cpu| {
            let held: Vec<_> = (0..40).map(|_| cpu.must_alloc(Order::ZERO)).collect();
            for block in [held[0], held[20], held[3]] {
                cpu.must_free(block, 0);
                assert_eq!(cpu.alloc(Order::ZERO, M), Ok(block), "last in, first out");
            }
        });
        world.settled();
    }
}

#[test]
fn types_are_kept_apart() {
    let world = world(64 * PAGEBLOCK_PAGES);
    world.on(0, |cpu| {
        for n in 0..8 * PAGEBLOCK_PAGES {
            let asked = [M, Migratetype::Unmovable, Migratetype::Reclaimable][(n % 3) as usize];
            let pfn = cpu.must_alloc_of(0, asked);
            assert_eq!(world.allocator().frames().info(pfn).migratetype(), asked);
        }
    });
    assert!(world.allocator().free_blocks(PAGEBLOCK_ORDER) >= 64 - 10);
}

/// A stray write to a link or to a bin: the bins are made anew, and nothing is lost.
#[test]
fn damaged_bins_are_made_anew() {
    for (block, engine) in (0..3_u64).flat_map(|block| FORMS.map(|form| (block, form))) {
        // Among them: a largest free block of orders 9 and 15, which an open pageblock cannot have.
        let wrong =
            [4 << 55 | 5 << 45 | 9 << 38, 4 << 55 | 5 << 45 | 15 << 38, 4 << 55 | 0x3ff << 45 | 8 << 38];
        let rest = [0, 4 << 55, 4 << 55 | 3 << 38, 4 << 55 | 1 << 38 | 0x7_ffff, 2 << 55 | 9 << 48];
        for value in rest.into_iter().chain(wrong) {
            let world = world_in(engine, 3 * PAGEBLOCK_PAGES);
            let held: Vec<_> = world.on(0, |cpu| {
                let all = cpu.alloc_all(0);
                assert_eq!(all.len() as u64, 3 * PAGEBLOCK_PAGES);
                let (back, held): (Vec<_>, Vec<_>) = all.into_iter().partition(|pfn| pfn.0 % 4 == 1);
                back.into_iter().for_each(|pfn| cpu.must_free(pfn, 0));
                held
            });
            world.corrupt(Spot::PageblockHead(BASE.add(block * PAGEBLOCK_PAGES)), value);
            let mut seen: BTreeSet<_> = held.iter().copied().collect();
            world.on(0, |cpu| {
                let got = cpu.alloc_all(0);
                assert!(got.iter().all(|&pfn| seen.insert(pfn)), "a frame was handed out twice");
                got.into_iter().chain(held).for_each(|pfn| cpu.must_free(pfn, 0));
            });
            let zone = world.zone();
            let counts = world.allocator().zone_snapshot(zone).counts;
            assert!(counts.rebuilt_bins > 0, "{block}, {value:#x}: {counts:?}");
        }
    }
}

/// Memory after untouched memory is added, and used, and what lies before it stays as it is.
#[test]
fn untouched_memory_ends_where_the_next_begins() {
    let half = 8 * PAGEBLOCK_PAGES;
    let world = Spec::one_zone(2 * half, 1)
        .memory([(BASE, half), (BASE.add(half), half)])
        .bare()
        .engine(Engine::Framewright)
        .but(|config| config.lazy_pageblocks = true)
        .plain();
    assert_eq!(world.settled().free, 2 * half);
    let last = BASE.add(half - PAGEBLOCK_PAGES);
    assert!(!world.allocator().frames().contains(last), "no CPU has touched it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(BASE.add(half), PAGEBLOCK_ORDER)), Ok(()));
    assert!(!world.allocator().frames().contains(last), "no CPU has asked for it");
    assert_eq!(world.on(0, |cpu| cpu.alloc_at(last, PAGEBLOCK_ORDER)), Ok(()));
    assert_eq!(world.settled().free, 2 * half - 2 * PAGEBLOCK_PAGES);
}

/// A refill takes from so many pageblocks in one hold of the lock, and leaves the others for the next one.
#[test]
fn a_refill_takes_from_thirty_two_words() {
    let world = Spec::one_zone(40 * PAGEBLOCK_PAGES, 1).fixed(64, 64).plain();
    world.on(0, |cpu| {
        for (start, n) in
            (0..40).flat_map(|n| (0..9).map(move |order| (BASE.add(n * PAGEBLOCK_PAGES), order)))
        {
            cpu.must_alloc_at(start.add(1 << n), n);
        }
        for left in [31, 7] {
            cpu.must_alloc(0);
            assert_eq!(cpu.allocator().pcp_pages(), left);
            for _ in 0..left {
                cpu.must_alloc(0);
            }
        }
        assert!(cpu.alloc(Order::ZERO, M).is_err());
    });
    world.settled();
}
