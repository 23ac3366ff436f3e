//! Lists move as many blocks as the pure rules say: random histories next to a copy of [`Tuning`].

use core::cell::{Cell, RefCell};

use framewright::policy::pcp::{Shortage, Tuning, round_robin};
use framewright_check::prelude::*;
use proptest::prelude::*;

const RULES: [PcpRule; 5] = [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto];

/// One CPU's lists, as the rules alone have them: the history, and how many blocks each list holds.
struct Lists {
    rule: PcpRule,
    sizing: Sizing,
    tuning: Tuning,
    /// By order 0 to 3 and type.
    held: [[u32; 3]; 4],
    /// Base pages refilled and drained.
    refilled: u64,
    drained: u64,
}

impl Lists {
    fn new(rule: PcpRule, sizing: Sizing) -> Self {
        Self { rule, sizing, tuning: Tuning::new(sizing), held: [[0; 3]; 4], refilled: 0, drained: 0 }
    }

    fn alloc(&mut self, order: Order, list: usize) {
        if self.held[order.index()][list] == 0 {
            let (next, blocks) = self.tuning.refill(self.rule, self.sizing, order, Shortage::None);
            let pages = blocks << order.get();
            self.tuning = next;
            self.tuning.traffic.count += pages;
            self.held[order.index()][list] += blocks;
            self.refilled += u64::from(pages);
        }
        self.held[order.index()][list] -= 1;
        let traffic = &mut self.tuning.traffic;
        traffic.count -= order.pages() as u32;
        traffic.free_count /= 2;
        traffic.free_factor /= 2;
    }

    fn free(&mut self, order: Order, list: usize, only_order_0: bool) {
        self.held[order.index()][list] += 1;
        let (traffic, pages) = (&mut self.tuning.traffic, order.pages() as u32);
        traffic.count += pages;
        traffic.alloc_factor /= 2;
        if traffic.free_count < self.rule.most_counted(self.sizing.batch) {
            traffic.free_count = traffic.free_count.saturating_add(pages);
        }
        let (next, pages) = self.tuning.drain(self.rule, self.sizing, order, Shortage::None);
        self.tuning = next;
        if pages > 0 {
            self.drain(pages, order.index() * 3 + list, only_order_0);
        }
    }

    /// From the list `first` on, in the order of the lists; by turns under v5.4.
    fn drain(&mut self, pages: u32, first: usize, only_order_0: bool) {
        let mut gone = 0;
        if self.rule == PcpRule::V5_4 && only_order_0 {
            let shares = round_robin(self.held[0], pages);
            for (held, taken) in self.held[0].iter_mut().zip(shares) {
                *held -= taken;
                gone += taken;
            }
        } else {
            for list in (0..12).map(|n| (first + n) % 12) {
                while gone < pages && self.held[list / 3][list % 3] > 0 {
                    self.held[list / 3][list % 3] -= 1;
                    gone += 1 << (list / 3);
                }
            }
        }
        self.drained += u64::from(gone);
        self.tuning.traffic.count -= gone;
    }

    fn resize(&mut self, sizing: Sizing) {
        self.sizing = sizing;
        self.tuning = self.tuning.resized(sizing);
    }

    #[track_caller]
    fn compare(&self, world: &World<Plain>) {
        let pcp = world.pcp(0);
        let events = pcp.events();
        let found = (pcp.count(), pcp.high(), events.refilled_pages, events.drained_pages);
        let should = (self.tuning.traffic.count, self.tuning.high, self.refilled, self.drained);
        assert_eq!(
            found, should,
            "count, high, pages refilled, pages drained; {:?} {:?}",
            self.rule, self.sizing
        );
    }
}

#[derive(Clone, Debug)]
enum Call {
    Alloc {
        order: u8,
        list: usize,
    },
    /// One of the live blocks.
    Free(usize),
    Drain,
    Resize(Sizing),
}

fn sizing(rule: PcpRule) -> impl Strategy<Value = Sizing> {
    (1..40_u32, 0..120_u32, 0..400_u32).prop_map(move |(batch, high_min, more)| Sizing {
        batch,
        high_min,
        high_max: if rule.moves_high() { high_min + more } else { high_min },
    })
}

fn call(rule: PcpRule) -> impl Strategy<Value = Call> {
    prop_oneof![
        40 => (prop_oneof![4 => Just(0), 1 => 1..4_u8], 0..3_usize)
            .prop_map(|(order, list)| Call::Alloc { order, list }),
        40 => any::<usize>().prop_map(Call::Free),
        1 => Just(Call::Drain),
        1 => sizing(rule).prop_map(Call::Resize),
    ]
}

/// Bursts, so that scales build up and fall again: each call is repeated.
fn history() -> impl Strategy<Value = (PcpRule, bool, Sizing, Vec<(Call, u8)>)> {
    (prop::sample::select(RULES.to_vec()), any::<bool>()).prop_flat_map(|(rule, only_order_0)| {
        let calls = prop::collection::vec((call(rule), 1..60_u8), 1..if full() { 2000 } else { 200 });
        (Just(rule), Just(only_order_0), sizing(rule), calls)
    })
}

fn world(rule: PcpRule, only_order_0: bool) -> World<Plain> {
    let pcp_orders = if only_order_0 { PcpOrders::Zero } else { PcpOrders::UpToCostly };
    // With maps, blocks of sparsely used pageblocks pass the lists by, and not all rules count each call.
    let engine = Engine::Linux;
    let config = with_engine(engine).orders(pcp_orders).but(|config| config.experiment.pcp_rule = rule);
    let config = config.but(|config| config.experiment.pcp_min_refill = 0);
    Spec::one_zone(1 << 16, 1).config(config).boot_sized().build()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if full() { 2000 } else { 200 }, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn every_refill_and_drain_is_the_rules((rule, only_order_0, first, calls) in history()) {
        let world = world(rule, only_order_0);
        let mut lists = Lists::new(rule, Sizing::BOOT);
        let mut live: Vec<(Pfn, Order)> = Vec::new();
        let asked = |list: usize| ORDINARY[list];
        world.allocator().resize_pcps_of(ZoneId(0), first);
        lists.resize(first);
        world.on(0, |cpu| cpu.answer());
        for (call, times) in calls {
            for _ in 0..times {
                match call {
                    Call::Alloc { order, list } => {
                        let order = Order::new(if only_order_0 { 0 } else { order }).expect("an order");
                        if live.len() < 4000 {
                            let pfn = world.must_alloc_of(0, order, asked(list));
                            lists.alloc(order, list);
                            live.push((pfn, order));
                        }
                    }
                    Call::Free(n) if !live.is_empty() => {
                        let (pfn, order) = live.swap_remove(n % live.len());
                        // A block waits on the list of its pageblock's type.
                        let list = world.allocator().frames().info(pfn).migratetype().index();
                        world.must_free(0, pfn, order);
                        lists.free(order, list, only_order_0);
                    }
                    Call::Free(_) => {}
                    Call::Drain => {
                        world.on(0, |cpu| cpu.drain());
                        let all = lists.tuning.traffic.count;
                        lists.drain(all, 0, only_order_0);
                    }
                    Call::Resize(sizing) => {
                        let before = world.pcp(0).high();
                        world.allocator().resize_pcps_of(ZoneId(0), sizing);
                        let pcp = world.pcp(0);
                        prop_assert_eq!(pcp.high(), before, "only the owner changes its lists");
                        world.on(0, |cpu| cpu.answer());
                        lists.resize(sizing);
                    }
                }
                lists.compare(&world);
            }
        }
        world.settled();
    }
}

/// Linux v3.0 moved 128 KiB at most, v5.4 twice as much; the same where base pages are larger.
#[test]
fn v3_0_has_half_the_batch() {
    let sizes = |config: Config| {
        let world = Spec::one_zone(1 << 18, 1).config(config).plain();
        let sizing = world.pcp(0).sizing();
        (sizing.batch, sizing.high_min)
    };
    assert_eq!(sizes(Config::linux_v3_0()), (31, 186));
    assert_eq!(sizes(Config::linux_v5_4()), (63, 378));
    assert_eq!(sizes(Config::linux_v3_0().but(|config| config.page_kib = 16)), (7, 42));
}

/// Positions on a list are counted up, and end some day: then the list is emptied, and counts from 0 again.
#[test]
fn a_list_that_has_counted_to_its_end_starts_anew() {
    starts_anew(Engine::Linux);
    starts_anew(Engine::Framewright);
}

fn starts_anew(engine: Engine) {
    let world =
        Spec::one_zone(2048, 1).engine(engine).orders(PcpOrders::Zero).slots(8).fixed(8, 1000).plain();
    let blocks: Vec<_> = (0..7).map(|_| world.must_alloc(0, 0)).collect();
    // No pageblock of theirs is mostly free, so that what is freed goes to the list.
    let held: Vec<_> = (0..480).map(|_| world.must_alloc(0, 0)).collect();
    world.on(0, |cpu| cpu.drain());
    let last = |word: u64| word >> 32 << 32 | 1 << 31;
    let top = world.corrupt(Spot::ListWord(0), 0);
    let counted = if engine == Engine::Linux { 1 << 63 } else { 0 };
    let [start, shut] = [last(top) - 3, 0];
    for (word, value) in [start, start | counted, shut, start].into_iter().enumerate() {
        world.corrupt(Spot::ListWord(word), value);
    }
    for (n, &block) in (1..).zip(&blocks) {
        world.must_free(0, block, 0);
        let account = world.settled();
        // The fourth finds the list at its end; what was there is in the zone then.
        assert_eq!(account.on_pcp, if n < 4 { n } else { n - 3 });
        assert_eq!(account.allocated, held.len() as u64 + 7 - n);
        for &block in &blocks[..n as usize] {
            assert!(world.on(0, |cpu| cpu.free(block, Order::ZERO)).is_err(), "freed twice");
        }
    }
    assert_eq!(world.allocator().totals().pcp.drained_pages, 1 + 3, "once by the test, once by the list");
    assert_eq!(world.on(0, |cpu| cpu.alloc(Order::ZERO, M)).ok(), Some(blocks[6]));
}

/// Lists keep a small part of what is free, also when more was free before: each page of theirs may be the only
/// free one of its pageblock. Blocks as large as pageblocks do not count. How small it is is the configuration's
/// choice.
#[test]
fn lists_keep_a_small_part_of_the_free_memory() {
    let [default, eighth] = [64, 8].map(|part| most_kept(part, &[0]));
    assert!(eighth > 2 * default, "of one page in 64 {default} are kept, of one in 8 {eighth}");
}

/// The CPUs of a zone's node share that part. CPUs of other nodes have zones of their own.
#[test]
fn cpus_of_other_nodes_do_not_make_lists_smaller() {
    let alone = most_kept(8, &[0]);
    assert_eq!(most_kept(8, &[0, 1, 1, 1]), alone);
    let shared = most_kept(8, &[0, 0, 1]);
    assert!(shared < alone * 3 / 4, "two share what one has: {shared} of {alone} each");
}

/// Frees and allocates in bursts where one free page in `part` may be on lists, with a CPU on each of these nodes. The
/// first is the zone's and one CPU of it is at work. Returns the most pages that were on its lists.
fn most_kept(part: u32, cpu_nodes: &[u16]) -> u32 {
    let nodes: Vec<_> = cpu_nodes.iter().map(|&node| NodeId(node)).collect();
    let sharing = cpu_nodes.iter().filter(|&&node| node == 0).count() as u32;
    let world = Spec::one_zone(1 << 17, 1).cpu_nodes(nodes).but(|config| config.pcp_free_part = part).plain();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut random = |below: usize| rng.usize(..below);
    let pcp = world.pcp(0);
    let Sizing { batch, high_min, high_max } = pcp.sizing();
    let mut most_kept = 0;
    world.on(0, |cpu| {
        let mut held = Vec::new();
        let mut kept = |live: usize| {
            let most = (((1 << 17) - live as u32) / part / sharing).max(high_min) + batch;
            let count = pcp.count();
            assert!(count <= most, "{count} pages are kept of at most {most}");
            most_kept = most_kept.max(count);
        };
        let page = || cpu.must_alloc(0);
        held.extend((0..3 << 15).map(|_| page()));
        for _ in 0..40 {
            // Bursts of frees, then of allocations: what makes `high` grow.
            let burst = random(3000);
            for _ in 0..burst {
                cpu.must_free(held.swap_remove(random(held.len())), 0);
            }
            kept(held.len());
            held.extend((0..burst).map(|_| page()));
            kept(held.len());
        }
        held.drain(..).for_each(|pfn| cpu.must_free(pfn, 0));
        cpu.must_alloc(9);
        assert!(pcp.huge_pages() > 512, "a refill brings several: {} pages", pcp.huge_pages());
    });
    assert!(high_max * sharing > 1 << 13, "the rule alone would let them keep {high_max}");
    world.settled();
    most_kept
}

/// If lists can hold little, those of several orders share it: a refill of one does not bring as much as all may
/// hold, which the next free of another would give back.
#[test]
fn short_lists_of_several_orders_do_not_take_turns() {
    let world = Spec::one_zone(1 << 15, 1).but(|config| config.pcp_free_part = 128).plain();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut random = |below: usize| rng.usize(..below);
    let moved = || {
        let events = world.pcp(0).events();
        events.refilled_pages + events.drained_pages
    };
    world.on(0, |cpu| {
        let mut held = Vec::new();
        let mut steps = |count: usize| {
            for _ in 0..count {
                // About 600 blocks of orders 0 to 4, between 500 and 700.
                if held.len() < 700 && (held.len() < 500 || random(2) == 0) {
                    let order = Order::new(random(5) as u8).expect("an order");
                    held.push((cpu.must_alloc(order), order));
                } else {
                    let (block, order) = held.swap_remove(random(held.len()));
                    cpu.must_free(block, order);
                }
            }
        };
        steps(2000);
        let before = moved();
        steps(20_000);
        let each = (moved() - before) as f64 / 20_000.0;
        assert!(each < 3.0, "{each} pages are moved for each call, of which each asks for 6 in the mean");
        held.drain(..).for_each(|(block, order)| cpu.must_free(block, order));
    });
    world.settled();
}

/// A zone with marks whose only CPU has let its lists grow: with about 2000 pages on them, as many in use, and `high`
/// far above its minimum. Returns what is in use.
fn grown(pages: u64) -> (World<Plain>, Vec<Pfn>) {
    let config = Config::default().orders(PcpOrders::Zero).but(|config| config.boost_factor = 0);
    let world = Spec::one_zone(pages, 1).config(config.with_marks()).plain();
    let blocks = world.on(0, |cpu| {
        let mut blocks: Vec<_> = (0..4000).map(|_| cpu.must_alloc(0)).collect();
        blocks.drain(..2000).for_each(|pfn| cpu.must_free(pfn, 0));
        blocks
    });
    let pcp = world.pcp(0);
    assert!(pcp.high() > 2000 && pcp.sizing().high_min < 1400, "{} {:?}", pcp.high(), pcp.sizing());
    (world, blocks)
}

/// Below the zone's high mark, frees lower `high` to its minimum and give back what is above it (v6.7).
#[test]
fn lists_shrink_while_memory_is_short() {
    let (world, mut blocks) = grown(1 << 18);
    let pcp = world.pcp(0);
    let zone = world.zone();
    let before = pcp.high();
    world.on(0, |cpu| {
        // Huge blocks do not come from the lists.
        let huge = order(9);
        while zone.free_pages() > zone.marks().high {
            cpu.must_alloc(huge);
        }
        // Its list is empty, so it looks at the zone.
        cpu.must_alloc_of(0, Migratetype::Unmovable);
        blocks.drain(..100).for_each(|pfn| cpu.must_free(pfn, 0));
    });
    assert!(pcp.high() < before, "{}", pcp.high());
    assert!(pcp.high() <= pcp.sizing().high_min + 200, "{} {:?}", pcp.high(), pcp.sizing());
    assert!(pcp.count() < pcp.sizing().high_min, "{} {:?}", pcp.count(), pcp.sizing());
    world.settled();
}

/// While background reclaim works on the zone, lists keep four batches, also those of v6.1; and as before when it is
/// over.
#[test]
fn lists_keep_four_batches_while_reclaim_works() {
    let config = Config::default().orders(PcpOrders::Zero).but(|config| {
        config.boost_factor = 0;
        config.experiment.pcp_rule = PcpRule::V6_1;
    });
    let world = Spec::one_zone(1 << 18, 1).config(config.with_marks()).plain();
    let blocks = world.on(0, |cpu| cpu.request_all(&page()));
    let pcp = world.pcp(0);
    let Sizing { batch, high_min, .. } = pcp.sizing();
    assert!(high_min > 8 * batch, "{:?}", pcp.sizing());
    let (reclaimed, rest) = blocks.split_at(2 * high_min as usize);
    let (reclaimed, count) = (RefCell::new(reclaimed.to_vec()), Cell::new(0));
    let frees = reclaimer(0, |_, to| {
        reclaimed.take().into_iter().for_each(|pfn| give(to, pfn, 0).expect("it is allocated"));
        count.set(pcp.count());
        Reclaimed::default()
    });
    let helpers = Helpers::NONE.with_reclaim(&frees);
    let asked = BackgroundRequest { order: Order::ZERO, highest: ZoneType::Normal };
    world.on(0, |cpu| cpu.background(NodeId(0), asked, &helpers));
    assert!(count.get() < 4 * batch, "{} pages on lists, batch {batch}", count.get());
    world.on(0, |cpu| {
        rest[..high_min as usize - 1].iter().for_each(|&pfn| cpu.must_free(pfn, 0));
    });
    assert!(pcp.count() > 4 * batch, "{} pages on lists, batch {batch}", pcp.count());
    world.settled();
}

/// Lists that no call uses shrink from tick to tick, and immediately when another CPU finds nothing.
#[test]
fn idle_lists_shrink() {
    let (world, _) = grown(1 << 18);
    let pcp = world.pcp(0);
    let least = pcp.sizing().high_min;
    world.on(0, |cpu| {
        let mut before = (pcp.high(), pcp.count());
        for _ in 0..100 {
            cpu.tick();
            let now = (pcp.high(), pcp.count());
            assert!(now.0 < before.0 || now.0 == least, "{before:?}, then {now:?}");
            before = now;
        }
    });
    assert_eq!(pcp.high(), least);
    assert!(pcp.count() <= least);
    world.settled();
    let (world, _) = grown(1 << 18);
    let pcp = world.pcp(0);
    world.allocator().request_drain();
    world.on(0, |cpu| cpu.answer());
    assert_eq!((pcp.count(), pcp.high()), (0, pcp.sizing().high_min));
}

/// However many blocks a refill is to bring at least, it brings no more than a list has room for.
#[test]
fn the_fewest_blocks_of_a_refill_may_be_any_number() {
    for least in [1 << 30, u32::MAX] {
        let config = Config::default().but(|config| config.experiment.pcp_min_refill = least);
        let world = Spec::one_zone(1 << 15, 1).config(config).plain();
        let pcp = || world.pcp(0);
        for order in [1, 3].map(order) {
            let pfn = world.must_alloc(0, order);
            let most = (config.experiment.pcp_slots << order.get()).min(1 << 15);
            assert!((1..most).contains(&pcp().count()), "{:?}", pcp());
            world.must_free(0, pfn, order);
            world.on(0, |cpu| cpu.drain());
        }
        world.settled();
    }
}

/// Orders that Linux has no lists for break few pageblocks: a refill brings no more than one has. Of huge blocks it
/// brings half of what a list has room for, also while the other lists may hold little.
#[test]
fn refills_of_large_orders_bring_some() {
    for (n, blocks) in [(8, 2), (7, 4), (9, 16)] {
        let world = Spec::one_zone(64 * 1024, 1).config(Config::default()).plain();
        let size = Sizing { batch: 8, high_min: 2 << 10, high_max: 32 << 10 };
        world.allocator().resize_pcps_of(ZoneId(0), size);
        let taken = world.on(0, |cpu| {
            cpu.answer();
            cpu.must_alloc(n);
            cpu.allocator().pcp(ZoneId(0), CpuId(0)).events()
        });
        assert_eq!((taken.refills, taken.refilled_pages >> n), (1, blocks), "order {n}");
        world.must_alloc(0, 3);
        let huge = if n == 9 { (blocks - 1) << n } else { 0 };
        assert_eq!(u64::from(world.pcp(0).huge_pages()), huge, "order {n}");
    }
}
