//! Long random histories under every configuration, judged by the oracle: all orders, types and flags, given blocks, many at
//! once, ranges that are cleared of what moves, wrong frees of every kind, drains, sizes, isolation, CMA, memory that goes
//! offline and comes back, frames that go bad, free memory that is reported, allocations that are made to fail; with both
//! sizes of descriptors, and with none.

use core::cell::RefCell;
use framewright::config::Experiment;
use std::collections::BTreeSet;

use framewright::fault::FaultRule;
use framewright_check::prelude::*;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const CPUS: usize = 3;

const FORMS: [Engine; 3] = [Engine::Linux, Engine::Framewright, Engine::Compact];

#[derive(Clone, Debug)]
enum Call {
    Alloc {
        order: Order,
        asked: Migratetype,
        highest: ZoneType,
        flags: Flags,
    },
    Free(Index),
    /// A free that must be refused, made from a live block or from thin air.
    WrongFree(Index, WrongFree),
    Drain,
    RequestDrain,
    Resize(u8, Sizing),
    Isolate(Index),
    Unisolate(Index),
    Retype(Index, Migratetype),
    Offline(Index),
    /// One of those that went offline.
    Online(Index),
    /// The block of an order that holds a frame.
    At(Index, Order),
    AllocBulk(Order, Migratetype, usize),
    /// Up to so many live blocks that have the order of one of them.
    FreeBulk(Index, usize),
    /// A range of frames.
    Contig(Index, u64),
    Hwpoison(Index),
    Unpoison(Index),
    Report(Order),
    /// A round of background compaction of a node.
    Round(NodeId),
    Inject(Option<FaultRule>),
}

/// Frames that the zones span, holes included.
const SPAN: usize = 4096 + 2548;

/// A user's slot that makes a descriptor as large as a cache line, and that refills look at.
struct Wide(#[expect(dead_code, reason = "its size is what matters")] [u64; 7]);

impl FrameUser for Wide {
    const CHECKED: bool = true;

    fn check(&self) -> Option<&'static str> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
enum WrongFree {
    Anywhere(u64, Order),
    OtherOrder(Order),
    Inside(u64, Order),
    FreedJustNow,
}

fn any_order() -> impl Strategy<Value = Order> {
    prop_oneof![6 => 0..4_u8, 2 => 4..10_u8, 1 => Just(10)].prop_map(order)
}

fn wrong_free() -> impl Strategy<Value = WrongFree> {
    prop_oneof![
        (any::<u64>(), any_order()).prop_map(|(pfn, order)| WrongFree::Anywhere(pfn, order)),
        (0..8192_u64, any_order()).prop_map(|(n, order)| WrongFree::Anywhere(BASE.0 - 1024 + n, order)),
        any_order().prop_map(WrongFree::OtherOrder),
        (any::<u64>(), any_order()).prop_map(|(n, order)| WrongFree::Inside(n, order)),
        Just(WrongFree::FreedJustNow),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let size = (1..64_u32, 0..256_u32, 0..256_u32).prop_map(|(batch, high_min, more)| Sizing {
        batch,
        high_min,
        high_max: high_min + more,
    });
    let zone = select(vec![ZoneType::Dma32, ZoneType::Normal, ZoneType::Movable]);
    let flags =
        select(vec![Flags::NONE, Flags::NONE, Flags::HIGH, Flags::NO_WAIT, Flags::ATOMIC, Flags::VICTIM]);
    prop_oneof![
        40 => (any_order(), select(ORDINARY.to_vec()), zone, flags)
            .prop_map(|(order, asked, highest, flags)| Call::Alloc { order, asked, highest, flags }),
        36 => any::<Index>().prop_map(Call::Free),
        8 => (any::<Index>(), wrong_free()).prop_map(|(n, what)| Call::WrongFree(n, what)),
        2 => Just(Call::Drain),
        1 => Just(Call::RequestDrain),
        1 => (0..3_u8, size).prop_map(|(zone, size)| Call::Resize(zone, size)),
        1 => any::<Index>().prop_map(Call::Isolate),
        2 => any::<Index>().prop_map(Call::Unisolate),
        1 => (any::<Index>(), select(Migratetype::ALL.to_vec())).prop_map(|(n, to)| Call::Retype(n, to)),
        2 => any::<Index>().prop_map(Call::Offline),
        2 => any::<Index>().prop_map(Call::Online),
        4 => (any::<Index>(), any_order()).prop_map(|(n, order)| Call::At(n, order)),
        2 => (any_order(), select(ORDINARY.to_vec()), 0..700_usize)
            .prop_map(|(order, asked, count)| Call::AllocBulk(order, asked, count)),
        4 => (any::<Index>(), 0..700_usize).prop_map(|(n, count)| Call::FreeBulk(n, count)),
        1 => (any::<Index>(), 1..1500_u64).prop_map(|(n, pages)| Call::Contig(n, pages)),
        1 => any::<Index>().prop_map(Call::Hwpoison),
        1 => any::<Index>().prop_map(Call::Unpoison),
        1 => any_order().prop_map(Call::Report),
        1 => (0..2_u8).prop_map(|node| Call::Round(NodeId(node.into()))),
        1 => prop::option::of((0..100_u8, any::<u64>()).prop_map(|(share, seed)| FaultRule::share(share, seed)))
            .prop_map(Call::Inject),
    ]
}

const LISTED_ORDERS: [PcpOrders; 5] = [
    PcpOrders::None,
    PcpOrders::Zero,
    PcpOrders::UpToCostly,
    PcpOrders::UpToCostlyAndHuge,
    PcpOrders::UpToHuge,
];

#[expect(clippy::too_many_lines, reason = "a line for each field")]
fn config() -> impl Strategy<Value = Config> {
    let lists = (
        select(vec![PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto]),
        select(LISTED_ORDERS.to_vec()),
        prop::option::of((1..32_u32, 0..128_u32).prop_map(|(batch, high)| PcpFixed { batch, high })),
        select(vec![2, 16, 256]),
        0..9_u32,
        select(vec![1, 16, 64]),
    );
    let rest = (
        select(vec![LockPlace::WithOrder0Lists, LockPlace::OtherEnd, LockPlace::OwnLine]),
        select(vec![LockKind::Ticket, LockKind::Queued]),
        select(vec![RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock, RefillCheck::Off]),
        any::<bool>(),
        (select(FORMS.to_vec()), any::<bool>()),
        (prop::bool::weighted(0.2), prop::bool::weighted(0.2), any::<bool>(), select(vec![4, 16, 64])),
    );
    let marks = (
        any::<bool>(),
        select(GENERATIONS.to_vec()),
        0..2048_u64,
        select(vec![0, 10, 1000]),
        select(vec![0, 15_000]),
        select(vec![[256, 256, 32, 0], [1, 1, 1, 1]]),
    );
    let zones = (
        select(vec![ListOrder::Node, ListOrder::Zone, ListOrder::AsV3_0]),
        select(vec![
            ZonelistCache::Off,
            ZonelistCache::AfterFirstZone,
            ZonelistCache::BeforeFirstZone,
            ZonelistCache::BeforeFirstZoneAndClear,
        ]),
        (
            select(vec![ZoneReclaimMode::OFF, ZoneReclaimMode::ON]),
            any::<bool>(),
            select(vec![0, 20, 98, 100]),
            any::<bool>(),
        ),
        (1..4_u32, 1..8_u32).prop_map(|(without_progress, rounds)| Limits { without_progress, rounds }),
        select(vec![0, 8, 100]),
        any::<bool>(),
    );
    (lists, rest, marks, zones).prop_map(|(lists, rest, marks, zones)| Config {
        keep_marks: marks.0,
        min_free_kib: marks.2,
        watermark_scale: marks.3,
        boost_factor: marks.4,
        zone_reclaim: zones.2.0,
        compaction_proactiveness: zones.2.2,
        pcp_free_part: lists.5,
        poison: rest.3 && rest.4.0 != Engine::Compact,
        init_on_free: rest.5.0,
        fault_injection: rest.5.1,
        free_reporting: rest.5.2,
        page_kib: rest.5.3,
        engine: rest.4.0,
        lazy_pageblocks: rest.4.1,
        experiment: Experiment {
            marks: marks.1,
            fallback: marks.1,
            passes: marks.1,
            reclaim: marks.1,
            reserve_ratios: marks.5,
            section_pages: if zones.2.3 { 1024 } else { 0 },
            zonelist_order: zones.0,
            zonelist_cache: zones.1,
            avoid_fragmentation: zones.2.1,
            limits: zones.3,
            pcp_fraction: zones.4,
            pcp_reset: zones.5,
            pcp_rule: lists.0,
            pcp_orders: lists.1,
            pcp_fixed: lists.2,
            pcp_slots: lists.3,
            pcp_min_refill: lists.4,
            lock_place: rest.0,
            lock_kind: rest.1,
            lock_timing: rest.3,
            refill_check: rest.2,
            remote_drain_spins: 1,
            heads_in_pageblocks: rest.3,
        },
    })
}

/// Four zones on two nodes, of which two have one type and a CPU each that may begin there, with a hole in one and a ragged end in
/// another.
fn spec(config: Config) -> Spec {
    let zone =
        |node, kind, start, pages| ZoneSpec { node: NodeId(node), kind, start: Pfn(BASE.0 + start), pages };
    Spec::zones(
        [
            zone(0, ZoneType::Dma32, 0, 1024),
            zone(0, ZoneType::Normal, 1024, 1024),
            zone(0, ZoneType::Normal, 2048, 1024),
            zone(1, ZoneType::Movable, 4096, 2548),
        ],
        CPUS,
    )
    .memory([
        (BASE, 1024),
        (BASE.add(1024), 512),
        (BASE.add(1024 + 700), 324),
        (BASE.add(2048), 1024),
        (BASE.add(4096), 2548),
    ])
    .cpu_nodes([NodeId(0), NodeId(0), NodeId(1)])
    .config(config)
}

fn pageblock(n: Index) -> Pfn {
    BASE.add(n.index(13) as u64 * PAGEBLOCK_PAGES)
}

/// Everything there is to see from outside.
fn seen<M: FrameUser>(world: &World<Plain, M>) -> String {
    let allocator = world.allocator();
    format!("{:?}{:?}{}{:?}", world.free_lists(), world.settled(), allocator.zoneinfo(), allocator.totals())
}

/// Where the pageblock at `start` ends, or its zone.
fn end_of<M: FrameUser>(world: &World<Plain, M>, start: Pfn) -> Pfn {
    let zone = world.allocator().zones().iter().find(|zone| zone.spec().spans(start));
    zone.map_or(start.add(PAGEBLOCK_PAGES), |zone| zone.spec().end().min(start.add(PAGEBLOCK_PAGES)))
}

fn wrong(oracle: &Oracle, live: Option<Block>, last: Option<Block>, what: WrongFree) -> Option<Block> {
    match what {
        WrongFree::Anywhere(pfn, order) => Some(Block { pfn: Pfn(pfn), order }),
        WrongFree::OtherOrder(order) => live.map(|block| Block { order, ..block }),
        WrongFree::Inside(n, order) => {
            live.map(|block| Block { pfn: block.pfn.add(n % block.order.pages()), order })
        }
        WrongFree::FreedJustNow => last,
    }
    .filter(|&block| oracle.judge(block).is_some())
}

fn run(config: Config, wide: bool, calls: Vec<(usize, Call)>) {
    let spec = spec(config);
    if wide && config.engine != Engine::Compact {
        run_in(&spec, &spec.build_with(|_| Wide([0; 7])), calls);
    } else {
        run_in(&spec, &spec.plain(), calls);
    }
}

/// Who owns what: moves any of it that it is asked to.
struct Owner {
    live: RefCell<Vec<Block>>,
    oracle: RefCell<Oracle>,
}

#[expect(unsafe_code, reason = "a mover vouches for what it moves")]
// SAFETY: `live` has the blocks of this test, and no other thread is at work.
unsafe impl Migrate for Owner {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        let block = Block { pfn: from, order };
        let mut live = self.live.borrow_mut();
        let Some(own) = live.iter_mut().find(|own| **own == block) else { return Migrated::Stays };
        *own = Block { pfn: to, order };
        let mut oracle = self.oracle.borrow_mut();
        oracle.took_back(block).expect("it was owned");
        oracle.handed_out(*own).expect("a place without an owner");
        Migrated::Moved
    }

    fn can_move(&self, from: Pfn, _: Order, asked: Migratetype) -> bool {
        asked == M || from.0.is_multiple_of(3)
    }
}

/// The blocks that a range is allocated as.
fn blocks_of(start: Pfn, pages: u64) -> Vec<Block> {
    let (mut at, end) = (start, start.add(pages));
    let mut blocks = Vec::new();
    while at < end {
        let fits = |order: &Order| at.is_aligned(*order) && order.pages() <= end.0 - at.0;
        let order = Order::all().rfind(fits).expect("order 0 fits");
        blocks.push(Block { pfn: at, order });
        at = at.add(order.pages());
    }
    blocks
}

/// The ways to get and to give back that go past single blocks. Returns what was handed out.
fn special<M: FrameUser>(
    world: &World<Plain, M>,
    cpu: usize,
    call: Call,
    owner: &Owner,
    bad: &mut BTreeSet<Pfn>,
) -> Vec<Block> {
    let frame = |n: Index| BASE.add(n.index(SPAN) as u64);
    match call {
        Call::At(n, order) => {
            let pfn = frame(n).block_start(order);
            let got = world.on(cpu, |cpu| cpu.alloc_at(pfn, order));
            got.ok().map(|()| Block { pfn, order }).into_iter().collect()
        }
        Call::AllocBulk(order, asked, count) => {
            let mut out = vec![Pfn(0); count >> order.get()];
            let got = world.on(cpu, |cpu| cpu.alloc_bulk(order, asked, &mut out));
            out[..got].iter().map(|&pfn| Block { pfn, order }).collect()
        }
        Call::FreeBulk(n, count) => {
            let mut live = owner.live.borrow_mut();
            if live.is_empty() {
                return Vec::new();
            }
            let order = live[n.index(live.len())].order;
            let mut freed = Vec::new();
            live.retain(|block| {
                let goes = block.order == order && freed.len() < count;
                if goes {
                    freed.push(block.pfn);
                }
                !goes
            });
            world.on(cpu, |cpu| cpu.free_bulk(order, &freed)).expect("right frees were refused");
            for pfn in freed {
                owner.oracle.borrow_mut().took_back(Block { pfn, order }).expect("it was owned");
            }
            Vec::new()
        }
        Call::Contig(n, pages) => {
            let start = frame(n);
            let helpers = Helpers::NONE.with_migrate(owner);
            let got = world.on(cpu, |cpu| cpu.alloc_contig_range(start..start.add(pages), &helpers));
            if got.is_ok() { blocks_of(start, pages) } else { Vec::new() }
        }
        Call::Hwpoison(n) => {
            match world.on(cpu, |cpu| cpu.hwpoison(frame(n))) {
                Ok(Hwpoisoned::Withdrawn | Hwpoisoned::InUse { .. }) => drop(bad.insert(frame(n))),
                Ok(Hwpoisoned::Listed(_)) | Err(_) => {}
            }
            Vec::new()
        }
        Call::Unpoison(n) => {
            let known = (!bad.is_empty()).then(|| *bad.iter().nth(n.index(bad.len())).expect("one of them"));
            let pfn = known.unwrap_or_else(|| frame(n));
            let _ = world.on(cpu, |cpu| cpu.unpoison(pfn));
            bad.remove(&pfn);
            Vec::new()
        }
        Call::Report(order) => {
            world.on(cpu, |cpu| {
                cpu.report_free(order, |blocks| {
                    let mut oracle = owner.oracle.borrow_mut();
                    for &(pfn, order) in blocks {
                        oracle.handed_out(Block { pfn, order }).expect("free memory has no owner");
                        oracle.took_back(Block { pfn, order }).expect("it was handed out just now");
                    }
                    blocks.len() % 2 == 0
                })
            });
            Vec::new()
        }
        Call::Round(node) => {
            world.on(cpu, |cpu| cpu.compact_proactively(node, owner));
            Vec::new()
        }
        Call::Inject(rule) => {
            let can = world.allocator().inject(rule.as_ref());
            assert_eq!(can, world.allocator().config().fault_injection);
            Vec::new()
        }
        _ => unreachable!("the other calls are made elsewhere"),
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each call that the allocator has")]
fn run_in<M: FrameUser>(spec: &Spec, world: &World<Plain, M>, calls: Vec<(usize, Call)>) {
    let mut offline: Vec<(Pfn, u64)> = Vec::new();
    let owner = Owner { live: RefCell::default(), oracle: RefCell::new(spec.oracle()) };
    // Frames that must not be handed out: known to be bad, and on no list of a CPU that does not know.
    let mut bad: BTreeSet<Pfn> = BTreeSet::new();
    let mut last = None;
    let allocator = world.allocator();
    for (cpu, call) in calls {
        let (mut live, mut oracle) = (owner.live.borrow_mut(), owner.oracle.borrow_mut());
        match call {
            Call::Alloc { order, asked, highest, flags } => {
                let request = Request::new(order, asked).up_to(highest).with(flags);
                let floors = Floors::before(allocator, &request);
                let got = world.on(cpu, |cpu| match (flags, highest) {
                    (Flags::NONE, ZoneType::Movable) => cpu.alloc(order, asked),
                    _ => cpu.request(&request),
                });
                floors.check(allocator, &request).expect("a zone keeps its mark");
                if let Ok(pfn) = got {
                    let block = Block { pfn, order };
                    oracle.handed_out(block).expect("a block without an owner");
                    assert!(bad.range(pfn..pfn.add(order.pages())).next().is_none(), "{block:?} is bad");
                    let zone = &allocator.zones()[allocator.frames().info(pfn).zone().index()];
                    assert!(zone.spec().kind <= highest, "{block:?} is beyond {highest}");
                    live.push(block);
                }
            }
            Call::Free(n) if !live.is_empty() => {
                let n = n.index(live.len());
                let block = live.swap_remove(n);
                world.must_free(cpu, block.pfn, block.order);
                oracle.took_back(block).expect("it was owned");
                last = Some(block);
            }
            Call::Free(_) => {}
            Call::WrongFree(n, what) => {
                let block = (!live.is_empty()).then(|| live[n.index(live.len().max(1))]);
                if let Some(block) = wrong(&oracle, block, last, what) {
                    let before = seen(world);
                    let refused = world.on(cpu, |cpu| cpu.free(block.pfn, block.order));
                    let why = refused.expect_err("a wrong free was accepted");
                    assert_eq!(seen(world), before, "{block:?} was refused ({why}), but something changed");
                }
            }
            Call::Drain => world.on(cpu, |cpu| cpu.drain()),
            Call::RequestDrain => allocator.request_drain(),
            Call::Resize(zone, size) => allocator.resize_pcps_of(ZoneId(zone), size),
            Call::Isolate(n) => drop(allocator.isolate_pageblock(pageblock(n))),
            Call::Unisolate(n) => drop(allocator.unisolate_pageblock(pageblock(n))),
            Call::Retype(n, to) => drop(allocator.set_pageblock_type(pageblock(n), to)),
            Call::Offline(n) => {
                let start = pageblock(n);
                let end = end_of(world, start);
                if let Ok(pages) = world.on(cpu, |cpu| cpu.offline(start..end)) {
                    assert_eq!(pages, end.0 - start.0, "all of it was memory");
                    oracle.went_offline(start, pages).expect("none of it has an owner");
                    // Linux, block by block, forgets them.
                    bad.retain(|&pfn| {
                        pfn < start || pfn >= end || allocator.config().engine != Engine::Linux
                    });
                    offline.push((start, pages));
                }
            }
            Call::Online(n) if !offline.is_empty() => {
                let (start, pages) = offline.swap_remove(n.index(offline.len()));
                allocator.online(start, pages).expect("it went offline");
                oracle.came_online(start, pages);
            }
            Call::Online(_) => {}
            call => {
                drop((live, oracle));
                // A range of CMA pageblocks counts what is free there.
                let request = match call {
                    Call::AllocBulk(order, asked, _) => Some(Request::new(order, asked)),
                    Call::Contig(..) => Some(Request::new(Order::ZERO, Migratetype::Movable)),
                    _ => None,
                };
                let floors = request.map(|request| (Floors::before(allocator, &request), request));
                let got = special(world, cpu, call, &owner, &mut bad);
                if let Some((floors, request)) = floors {
                    floors.check(allocator, &request).expect("a zone keeps its mark");
                }
                (live, oracle) = (owner.live.borrow_mut(), owner.oracle.borrow_mut());
                for block in got {
                    oracle.handed_out(block).expect("a block without an owner");
                    let mut frames = bad.range(block.pfn..block.pfn.add(block.order.pages()));
                    assert!(frames.next().is_none(), "{block:?} is bad");
                    live.push(block);
                }
            }
        }
        world.check(&oracle);
    }
    let (live, mut oracle) = (owner.live.into_inner(), owner.oracle.into_inner());
    world.check(&oracle);
    let _ = allocator.inject(None);
    // All that is allocated is freed, and all memory is back, in blocks as large as they were.
    for (start, pages) in offline {
        allocator.online(start, pages).expect("it went offline");
        oracle.came_online(start, pages);
    }
    for block in live {
        world.must_free(0, block.pfn, block.order);
        oracle.took_back(block).expect("it was owned");
    }
    world.drain_all();
    for pfn in (0..SPAN as u64).map(|n| BASE.add(n)) {
        let _ = world.on(0, |cpu| cpu.unpoison(pfn));
    }
    for n in 0..13 {
        allocator.unisolate_pageblock(BASE.add(n * PAGEBLOCK_PAGES));
        allocator.set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), M);
    }
    world.check(&oracle);
    assert_eq!((world.settled().free, allocator.pcp_pages()), (spec.pages(), 0));
    assert_eq!(allocator.free_blocks(MAX_ORDER), 4, "{}", allocator.buddyinfo());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if full() { 1000 } else { 128 }, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn any_history_under_any_configuration(
        config in config(),
        wide in any::<bool>(),
        calls in prop::collection::vec((0..CPUS, call()), 1..if full() { 8000 } else { 1200 }),
    ) {
        run(config, wide, calls);
    }
}
