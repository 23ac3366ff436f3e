//! Long random histories under every configuration, judged by the oracle: all orders and types, wrong frees of
//! every kind, drains, sizes, isolation, CMA.

use framewright::config::{
    Bulk, Config, LargeHeads, LockKind, LockPlace, PcpFixed, PcpOrders, PcpRule, RefillCheck,
};
use framewright::policy::pcp::Sizing;
use framewright::units::{MAX_ORDER, Migratetype, NodeId, Order, PAGEBLOCK_PAGES, Pfn, ZoneId, ZoneType};
use framewright::zone::ZoneSpec;
use framewright_check::fixture::{BASE, Spec, World};
use framewright_check::oracle::{Block, Oracle};
use framewright_check::platform::loom::full;
use framewright_check::platform::plain::Plain;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const CPUS: usize = 3;
const ORDINARY: [Migratetype; 3] = [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable];

#[derive(Clone, Debug)]
enum Call {
    Alloc {
        order: Order,
        asked: Migratetype,
        highest: ZoneType,
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
}

#[derive(Clone, Copy, Debug)]
enum WrongFree {
    Anywhere(u64, Order),
    OtherOrder(Order),
    Inside(u64, Order),
    FreedJustNow,
}

fn order() -> impl Strategy<Value = Order> {
    prop_oneof![6 => 0..4_u8, 2 => 4..10_u8, 1 => Just(10)]
        .prop_map(|order| Order::new(order).expect("an order"))
}

fn wrong_free() -> impl Strategy<Value = WrongFree> {
    prop_oneof![
        (any::<u64>(), order()).prop_map(|(pfn, order)| WrongFree::Anywhere(pfn, order)),
        (0..8192_u64, order()).prop_map(|(n, order)| WrongFree::Anywhere(BASE.0 - 1024 + n, order)),
        order().prop_map(WrongFree::OtherOrder),
        (any::<u64>(), order()).prop_map(|(n, order)| WrongFree::Inside(n, order)),
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
    prop_oneof![
        40 => (order(), select(ORDINARY.to_vec()), zone)
            .prop_map(|(order, asked, highest)| Call::Alloc { order, asked, highest }),
        36 => any::<Index>().prop_map(Call::Free),
        8 => (any::<Index>(), wrong_free()).prop_map(|(n, what)| Call::WrongFree(n, what)),
        2 => Just(Call::Drain),
        1 => Just(Call::RequestDrain),
        1 => (0..3_u8, size).prop_map(|(zone, size)| Call::Resize(zone, size)),
        1 => any::<Index>().prop_map(Call::Isolate),
        2 => any::<Index>().prop_map(Call::Unisolate),
        1 => (any::<Index>(), select(Migratetype::ALL.to_vec())).prop_map(|(n, to)| Call::Retype(n, to)),
    ]
}

fn config() -> impl Strategy<Value = Config> {
    let lists = (
        select(vec![PcpRule::V5_4, PcpRule::V6_1, PcpRule::Auto]),
        select(vec![PcpOrders::None, PcpOrders::Zero, PcpOrders::UpToCostly, PcpOrders::UpToCostlyAndHuge]),
        prop::option::of((1..32_u32, 0..128_u32).prop_map(|(batch, high)| PcpFixed { batch, high })),
        select(vec![2, 16, 256]),
        0..9_u32,
    );
    let rest = (
        select(vec![LockPlace::WithOrder0Lists, LockPlace::OtherEnd, LockPlace::OwnLine]),
        select(vec![LockKind::Ticket, LockKind::Queued]),
        select(vec![RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock, RefillCheck::Off]),
        select(vec![Bulk::OneByOne, Bulk::Runs]),
        any::<bool>(),
        select(vec![LargeHeads::Pageblocks, LargeHeads::Frames]),
    );
    (lists, rest).prop_map(|(lists, rest)| Config {
        pcp_rule: lists.0,
        pcp_orders: lists.1,
        pcp_fixed: lists.2,
        pcp_slots: lists.3,
        pcp_min_refill: lists.4,
        lock_place: rest.0,
        lock_kind: rest.1,
        lock_timing: rest.4,
        refill_check: rest.2,
        bulk: rest.3,
        poison: rest.4,
        large_heads: rest.5,
        remote_drain_spins: 1,
        ..Config::default()
    })
}

/// Three zones on two nodes, with a hole in one and a ragged end in another.
fn spec(config: Config) -> Spec {
    let zone =
        |node, kind, start, pages| ZoneSpec { node: NodeId(node), kind, start: Pfn(BASE.0 + start), pages };
    Spec::zones(
        [
            zone(0, ZoneType::Dma32, 0, 1024),
            zone(0, ZoneType::Normal, 1024, 2048),
            zone(1, ZoneType::Movable, 4096, 1500),
        ],
        CPUS,
    )
    .memory([(BASE, 1024), (BASE.add(1024), 512), (BASE.add(1024 + 700), 1348), (BASE.add(4096), 1500)])
    .cpu_nodes([NodeId(0), NodeId(0), NodeId(1)])
    .config(config)
}

fn pageblock(n: Index) -> Pfn {
    BASE.add(n.index(11) as u64 * PAGEBLOCK_PAGES)
}

/// Everything there is to see from outside.
fn seen(world: &World<Plain>) -> String {
    let allocator = world.allocator();
    format!("{:?}{:?}{}{:?}", world.free_lists(), world.settled(), allocator.zoneinfo(), allocator.totals())
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

fn run(config: Config, calls: Vec<(usize, Call)>) {
    let spec = spec(config);
    let world: World<Plain> = spec.build();
    let mut oracle = spec.oracle();
    let mut live: Vec<Block> = Vec::new();
    let mut last = None;
    let allocator = world.allocator();
    for (cpu, call) in calls {
        match call {
            Call::Alloc { order, asked, highest } => {
                if let Ok(pfn) = world.on(cpu, |cpu| cpu.alloc_in(order, asked, highest)) {
                    let block = Block { pfn, order };
                    oracle.handed_out(block).expect("a block that nobody owns");
                    let zone = &allocator.zones()[allocator.frames().info(pfn).zone().index()];
                    assert!(zone.spec().kind <= highest, "{block:?} is beyond {highest}");
                    live.push(block);
                }
            }
            Call::Free(n) if !live.is_empty() => {
                let block = live.swap_remove(n.index(live.len()));
                world.on(cpu, |cpu| cpu.free(block.pfn, block.order)).expect("a right free was refused");
                oracle.took_back(block).expect("it was owned");
                last = Some(block);
            }
            Call::Free(_) => {}
            Call::WrongFree(n, what) => {
                let block = (!live.is_empty()).then(|| live[n.index(live.len().max(1))]);
                if let Some(block) = wrong(&oracle, block, last, what) {
                    let before = seen(&world);
                    let refused = world.on(cpu, |cpu| cpu.free(block.pfn, block.order));
                    let why = refused.expect_err("a wrong free was accepted");
                    assert_eq!(seen(&world), before, "{block:?} was refused ({why}), but something changed");
                }
            }
            Call::Drain => world.on(cpu, |cpu| cpu.drain()),
            Call::RequestDrain => allocator.request_drain(),
            Call::Resize(zone, size) => allocator.resize_pcps_of(ZoneId(zone), size),
            Call::Isolate(n) => drop(allocator.isolate_pageblock(pageblock(n))),
            Call::Unisolate(n) => drop(allocator.unisolate_pageblock(pageblock(n))),
            Call::Retype(n, to) => drop(allocator.set_pageblock_type(pageblock(n), to)),
        }
        world.check(&oracle);
    }
    world.check(&oracle);
    // Everybody goes home: all memory is back, and as large as it was.
    for block in live {
        world.on(0, |cpu| cpu.free(block.pfn, block.order)).expect("a right free was refused");
        oracle.took_back(block).expect("it was owned");
    }
    (0..CPUS).for_each(|cpu| world.on(cpu, |cpu| cpu.drain()));
    for n in 0..11 {
        allocator.unisolate_pageblock(BASE.add(n * PAGEBLOCK_PAGES));
        allocator.set_pageblock_type(BASE.add(n * PAGEBLOCK_PAGES), Migratetype::Movable);
    }
    world.check(&oracle);
    assert_eq!((world.settled().free, allocator.pcp_pages()), (spec.pages(), 0));
    assert_eq!(allocator.free_blocks(MAX_ORDER), 3, "{}", allocator.buddyinfo());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if full() { 1000 } else { 128 }, failure_persistence: None,
        ..ProptestConfig::default() })]

    #[test]
    fn any_history_under_any_configuration(
        config in config(),
        calls in prop::collection::vec((0..CPUS, call()), 1..if full() { 8000 } else { 1200 }),
    ) {
        run(config, calls);
    }
}
