//! Cost: what a call costs does not depend on how much memory, how many zones and how many CPUs there are. Counted, not
//! timed.

use fastrand::Rng;
use framewright::config::PcpOrders;
use framewright::policy::pcp::share_of_free;
use framewright_check::platform::checked::{Checked, longest_hold, tally};
use framewright_check::prelude::*;

use super::{WAYS, Way};

/// A call whose holds of the zone lock are counted. It is made in a zone where every other frame of a quarter of it is
/// in use, and the rest free.
struct Call(&'static str, fn(&World<Checked>));

fn calls() -> Vec<Call> {
    vec![
        Call("allocations of all orders", |world| {
            for k in Order::all() {
                world.on(0, |cpu| {
                    let all: Vec<_> = core::iter::from_fn(|| cpu.alloc(k, M).ok()).take(600).collect();
                    all.iter().for_each(|&pfn| cpu.must_free(pfn, k));
                    cpu.drain();
                });
            }
        }),
        Call("offline and online", |world| {
            let end = world.zone().spec().end();
            let start = Pfn(end.0 - 8 * PAGEBLOCK_PAGES);
            let gone = world.on(0, |cpu| cpu.offline(start..end)).expect("it is free");
            assert_eq!(gone, end.0 - start.0);
            world.allocator().online(start, gone).expect("it went offline");
        }),
        Call("a bad frame", |world| {
            let bad = world.must_alloc(0, order(4));
            world.on(0, |cpu| cpu.hwpoison(bad.add(3))).expect("it is in use");
            world.must_free(0, bad, order(4));
            world.on(0, |cpu| cpu.unpoison(bad.add(3))).expect("it is bad");
        }),
        Call("a range", |world| {
            let end = world.zone().spec().end();
            let range = Pfn(end.0 - 5000)..Pfn(end.0 - 3000);
            world.on(0, |cpu| cpu.alloc_contig_range(range.clone(), &Helpers::NONE)).expect("it is free");
            world.on(0, |cpu| cpu.free_contig_range(range)).expect("it is allocated");
        }),
        Call("what there is", |world| {
            let allocator = world.allocator();
            let _ = (allocator.buddyinfo().to_string(), allocator.zoneinfo().to_string(), allocator.totals());
            let request = Request::new(MAX_ORDER, M);
            world.on(0, |cpu| cpu.explain(&request, &Helpers::NONE, |_| {}));
        }),
        Call("a reserve that goes back", |world| {
            let allocator = world.allocator();
            let zone = allocator.zones()[0].spec();
            for n in 0..zone.pages / PAGEBLOCK_PAGES / 4 {
                allocator.set_pageblock_type(zone.start.add(n * PAGEBLOCK_PAGES), Migratetype::HighAtomic);
            }
            world.on(0, |cpu| while cpu.alloc(MAX_ORDER, M).is_ok() {});
        }),
    ]
}

/// A zone of `pageblocks` pageblocks, with every other frame of its first quarter in use.
fn fragmented((_, config, sections): Way, pageblocks: u64) -> World<Checked> {
    let pages = pageblocks * PAGEBLOCK_PAGES;
    let config = config().spins(1).sections(if sections > 1 { pages / sections } else { 0 });
    let config = config.but(|config| config.experiment.lock_timing = true);
    let world: World<Checked> = Spec::one_zone(pages, 1).config(config).build();
    world.on(0, |cpu| {
        for n in 0..pageblocks * PAGEBLOCK_PAGES / 8 {
            cpu.alloc_at(BASE.add(2 * n), Order::ZERO).expect("it is free");
        }
        cpu.drain();
    });
    world
}

/// After a CPU has freed all memory, block by block: its lists hold its share of what is free, or a refill if that is
/// more, and what is on its way back.
#[test]
fn lists_hold_a_share_of_what_is_free_and_what_is_on_its_way_back() {
    let (pages, cpus) = (512 * PAGEBLOCK_PAGES, 16);
    for sections in [1, 16] {
        let section_pages = if sections > 1 { pages / sections } else { 0 };
        let world: World<Plain> = Spec::one_zone(pages, cpus).sections(section_pages).build();
        for k in (0..9).map(order) {
            world.on(0, |cpu| {
                let all: Vec<_> = cpu.alloc_all(k);
                all.into_iter().for_each(|pfn| cpu.must_free(pfn, k));
            });
            for zone in world.allocator().zones() {
                let share = share_of_free(zone.free_pages(), 1, world.allocator().config().pcp_free_part);
                let refill = (32 << k.get()).min(1024);
                let held = world.allocator().pcp(zone.id(), CpuId(0)).count();
                assert!(
                    held <= share.max(refill) + 512,
                    "{sections} sections, {k}, {:?}: {held} pages",
                    zone.id()
                );
            }
            world.on(0, |cpu| cpu.drain());
        }
    }
}

/// The longest hold of the zone lock is as long in a zone of 32 times as many pageblocks.
#[test]
fn p07_no_hold_of_a_zone_lock_grows_with_the_zone() {
    for way @ (name, ..) in WAYS {
        for Call(what, call) in calls() {
            if name == "compact" && what == "a bad frame" {
                continue;
            }
            let [small, large] = [32, if full() { 2048 } else { 1024 }].map(|pageblocks| {
                let world = fragmented(way, pageblocks);
                longest_hold(|| call(&world)).1
            });
            println!("{name}, {what}: {small} accesses, {large} in the large zone");
            assert!(large <= small + small / 2 + 64, "{name}, {what}: {small} accesses, then {large}");
        }
    }
}

/// Likewise where memory is untouched before a frame that a call names.
#[test]
fn p07_untouched_memory_is_initialised_in_holds_that_do_not_grow_with_it() {
    for config in FORMS.map(with_engine) {
        let config = config.but(|config| {
            (config.lazy_pageblocks, config.experiment.lock_timing) = (true, true);
        });
        let [small, large] = [32, 1024].map(|pageblocks| {
            let world: World<Checked> =
                Spec::one_zone(pageblocks * PAGEBLOCK_PAGES, 1).config(config).build();
            let last = BASE.add((pageblocks - 1) * PAGEBLOCK_PAGES);
            longest_hold(|| world.must_alloc_at(0, last, 0)).1
        });
        println!("{:?}: {small} accesses, {large} in the large zone", config.engine);
        assert!(large <= small + small / 2 + 64, "{:?}: {small} accesses, then {large}", config.engine);
    }
}

/// An owner of frames with nothing in them.
struct Nothing;

// SAFETY: there is nothing to be moved.
#[expect(unsafe_code, reason = "see above")]
unsafe impl Migrate for Nothing {
    unsafe fn migrate(&self, _: Pfn, _: Pfn, _: Order) -> Migrated {
        Migrated::Moved
    }
}

/// A round of background compaction does not look at the zone again after each pageblock that it has emptied.
#[test]
fn a_round_of_compaction_costs_what_it_moves_and_one_look_at_the_zone() {
    for pageblocks in [64, 2048] {
        let world: World<Checked> = Spec::one_zone(pageblocks * PAGEBLOCK_PAGES, 1).build();
        // An eighth of one pageblock in sixteen stays in use.
        let is_held = |pfn: Pfn| (pfn.0 - BASE.0).is_multiple_of(16 * PAGEBLOCK_PAGES);
        world.on(0, |cpu| {
            let all = cpu.alloc_all(order(6));
            all.into_iter().filter(|&pfn| !is_held(pfn)).for_each(|pfn| cpu.must_free(pfn, order(6)));
            cpu.drain();
        });
        let (moved, cost) = tally(|| world.on(0, |cpu| cpu.compact_proactively(NodeId(0), &Nothing).moved));
        println!("{pageblocks} pageblocks: {moved} moved, {} accesses", cost.accesses());
        assert!(moved >= 2 * PAGEBLOCK_PAGES / 8, "{moved} moved");
        assert!(cost.accesses() <= 4 * pageblocks + 1_000, "{} accesses", cost.accesses());
    }
}

/// Once all memory is initialised, an allocation that misses costs no more because boot had left some for later, but
/// for one look at whether it has.
#[test]
fn a_miss_costs_the_same_after_a_deferred_boot() {
    let spec = normal(0, BASE.0, 4096);
    let free = vec![spec.start..spec.end()];
    let rest = RestSpec { spec, present: spec.pages, free, deferred_from: BASE.add(1024), cpus: 1 };
    let how = How { split: Split::OneThread, section: 1024 };
    let [plain, deferred] = [Spec::zones([spec], 1), Spec::deferred(how, [rest], 1, 1)].map(|spec| {
        let world: World<Checked> = spec.build();
        if let Some(booting) = world.allocator().begin() {
            booting.run();
            booting.finish().expect("all is initialised");
        }
        tally(|| world.must_alloc(0, MAX_ORDER)).1.accesses()
    });
    println!("{plain} accesses, {deferred} after a deferred boot");
    assert!(deferred <= plain + 1, "{plain} accesses, {deferred} after a deferred boot");
}

/// Frames of a pageblock that has others, as boot gives back what it had reserved: their cost does not hang on what the
/// lists hold, also where no word says what a frame is.
#[test]
fn memory_beside_other_memory_is_added_at_the_same_cost_whatever_lists_hold() {
    for engine in [Engine::Linux, Engine::Framewright, Engine::Compact] {
        let memory = [(BASE, 100), (BASE.add(PAGEBLOCK_PAGES), 64 * PAGEBLOCK_PAGES)];
        let spec = Spec::one_zone(65 * PAGEBLOCK_PAGES, 4).memory(memory).engine(engine).fixed(64, 4096);
        let [few, many] = [1, 2000].map(|held| {
            let world: World<Checked> = spec.build();
            for cpu in 0..4 {
                let all: Vec<_> = (0..held).map(|_| world.must_alloc(cpu, 0)).collect();
                all.into_iter().for_each(|pfn| world.must_free(cpu, pfn, 0));
            }
            let listed = world.allocator().pcp_pages();
            let (added, cost) = tally(|| world.allocator().add_memory(BASE.add(200), 300));
            assert_eq!(added, Ok(()));
            (listed, cost.accesses())
        });
        println!("{engine:?}: {few:?}, {many:?}");
        assert!(many.1 <= few.1 + 4 * (many.0 - few.0), "{engine:?}: {few:?}, then {many:?}");
    }
}

/// A call that names a frame looks at the frame's section only, also where other sections have memory that is left
/// untouched.
#[test]
fn a_call_by_address_costs_the_same_with_any_number_of_sections() {
    for engine in FORMS {
        let [few, many] = [4, 64].map(|sections| {
            let spec = Spec::one_zone(sections * 4096, 2).engine(engine).sections(4096);
            let world: World<Checked> = spec.but(|config| config.lazy_pageblocks = true).build();
            world.must_alloc_at(0, BASE.add(4095), 0);
            let call = || {
                world.must_alloc_at(0, BASE, 0);
                world.must_free(0, BASE, 0);
                world.allocator().isolate_pageblock(BASE).expect("it has memory");
                world.allocator().unisolate_pageblock(BASE).expect("it is isolated");
                assert!(world.on(0, |cpu| cpu.offline(BASE..BASE.add(2 * PAGEBLOCK_PAGES))).is_ok());
            };
            tally(call).1.accesses()
        });
        println!("{engine:?}: {few} accesses, {many} with more sections");
        assert!(many <= few + few / 4, "{engine:?}: {few} accesses, then {many}");
    }
}

/// A world whose CPUs allocate and free at random, and the blocks in use.
struct Mixed {
    world: World<Checked>,
    held: Vec<(Pfn, Order)>,
    pages: u64,
    random: Rng,
}

impl Mixed {
    /// Any CPU allocates a block, and any CPUs free random ones until at most `most` pages are in use. Each order is
    /// half as frequent as the one below it; CPUs take turns with `types` types.
    fn step(&mut self, types: usize, most: u64) {
        let cpus = self.world.allocator().cpus();
        let k = order(self.random.u64(..).trailing_zeros().min(9) as u8);
        let cpu = self.random.usize(..cpus);
        let migratetype = Migratetype::ORDINARY[cpu % types];
        if let Ok(pfn) = self.world.on(cpu, |cpu| cpu.alloc(k, migratetype)) {
            self.held.push((pfn, k));
            self.pages += k.pages();
        }
        while self.pages > most {
            let (pfn, k) = self.held.swap_remove(self.random.usize(..self.held.len()));
            self.world.must_free(self.random.usize(..cpus), pfn, k);
            self.pages -= k.pages();
        }
    }
}

/// Lists of orders that have none in Linux take little from the others, and no memory that others need.
#[test]
fn lists_of_all_orders_cost_little_more_than_those_of_linux_and_keep_as_many_huge_pages() {
    for (cpus, types) in [(1, 1), (16, 1), (16, 3)] {
        let both = [PcpOrders::UpToCostlyAndHuge, PcpOrders::UpToHuge].map(|orders| {
            let pages = 256 * PAGEBLOCK_PAGES;
            let spec = Spec::one_zone(pages, cpus).but(|config| config.experiment.pcp_orders = orders);
            let random = Rng::with_seed(44);
            let mut mixed = Mixed { world: spec.build(), held: Vec::new(), pages: 0, random };
            let mut steps = || (0..30_000).for_each(|_| mixed.step(types, pages * 4 / 5));
            steps();
            let cost = tally(steps).1.accesses();
            mixed.world.drain_all();
            (cost / 30_000, mixed.world.allocator().free_blocks(PAGEBLOCK_ORDER))
        });
        let [(few, few_whole), (all, all_whole)] = both;
        println!(
            "{cpus} CPUs, {types} types: {few} and {all} accesses, {few_whole} and {all_whole} huge pages"
        );
        assert!(8 * all <= 9 * few, "{few} accesses, {all} with lists of all orders");
        assert!(all_whole + 2 >= few_whole, "{few_whole} huge pages, {all_whole} with lists of all orders");
    }
}

/// Lists that a CPU no longer uses take no share from the others: what it does then costs what it costs a CPU that has
/// never used them.
#[test]
fn lists_that_are_no_longer_used_cost_the_others_nothing() {
    let spec = Spec::one_zone(256 * PAGEBLOCK_PAGES, 1);
    let [fresh, after] = [0, 8].map(|orders| {
        let world: World<Checked> = spec.build();
        let all_frames = || {
            let frames: Vec<_> = (0..8192).map(|_| world.must_alloc(0, 0)).collect();
            frames.into_iter().for_each(|pfn| world.must_free(0, pfn, 0));
        };
        (0..10).for_each(|_| all_frames());
        for (k, migratetype) in (0..=orders).flat_map(|k| Migratetype::ORDINARY.map(|list| (order(k), list)))
        {
            let pfn = world.on(0, |cpu| cpu.alloc(k, migratetype)).expect("there is room");
            world.must_free(0, pfn, k);
        }
        world.on(0, |cpu| cpu.drain());
        (0..40).for_each(|_| all_frames());
        tally(all_frames).1.accesses()
    });
    println!("{fresh} accesses, {after} after other lists were in use");
    assert!(after <= fresh + fresh / 50, "{fresh} accesses, {after} after other lists were in use");
}
