//! The worlds of the scenarios: configurations by name, zones, and everything that can be seen from outside.

use core::fmt::Write as _;

use framewright_check::prelude::*;

use crate::behaviour::record::Trail;

pub(crate) const CPUS: usize = 3;
/// Frames that the zones of [`three_zones`] span, holes included.
pub(crate) const SPAN: u64 = 4096 + 1500;

/// A configuration by its name: a preset, or the default with something else.
#[expect(clippy::too_many_lines, reason = "a table of configurations by name")]
pub(crate) fn config(name: &str) -> Config {
    let default = Config::framewright();
    let lists = default.engine(Engine::Linux);
    let marks = default.with_marks();
    match name {
        "framewright" => default,
        "framewright_marks" => marks,
        "linux_v3_0" => Config::linux_v3_0(),
        "linux_v5_4" => Config::linux_v5_4(),
        "linux_v6_1" => Config::linux_v6_1(),
        "linux_v6_7" => Config::linux_v6_7(),
        "linux_v6_16" => Config::linux_v6_16(),
        "linux_v5_4_marks" => Config::linux_v5_4().with_marks(),
        "linux_v6_1_marks" => Config::linux_v6_1().with_marks(),
        "linux_v6_7_marks" => Config::linux_v6_7().with_marks(),
        "linux_v6_16_marks" => Config::linux_v6_16().with_marks(),
        "own_lists" => lists,
        "own_no_lists" => default.bare(),
        "own_zero" => default.orders(PcpOrders::Zero),
        "own_costly" => default.orders(PcpOrders::UpToCostly),
        "own_fixed" => default.fixed(7, 20),
        "own_slots" => default.slots(4),
        "own_fraction" => default.but(|config| config.experiment.pcp_fraction = 16),
        "own_min_refill" => default.but(|config| config.experiment.pcp_min_refill = 1),
        "own_ticket" => default.but(|config| {
            config.experiment.lock_kind = LockKind::Ticket;
            config.experiment.lock_place = LockPlace::WithOrder0Lists;
            config.experiment.lock_timing = true;
        }),
        "own_parking" => default.but(|config| {
            config.experiment.lock_kind = LockKind::Parking;
            config.experiment.lock_timing = true;
        }),
        "own_compact" => default.engine(Engine::Compact),
        "own_compact_marks" => marks.engine(Engine::Compact),
        "own_compact_slots" => default.engine(Engine::Compact).slots(4),
        "own_compact_reports" => default.engine(Engine::Compact).but(|config| {
            config.free_reporting = true;
            config.fault_injection = true;
        }),
        "own_lazy" => default.but(|config| config.lazy_pageblocks = true),
        "own_lazy_compact" => default.engine(Engine::Compact).but(|config| config.lazy_pageblocks = true),
        "own_lazy_marks" => marks.but(|config| config.lazy_pageblocks = true),
        "own_up_to_costly_and_huge" => default.orders(PcpOrders::UpToCostlyAndHuge),
        "own_poison" => default.but(|config| config.poison = true),
        "own_zeroed" => default.but(|config| config.init_on_free = true),
        "own_faults" => default.but(|config| config.fault_injection = true),
        "own_reports" => default.but(|config| config.free_reporting = true),
        "own_16k" => marks.but(|config| {
            config.page_kib = 16;
            config.free_reporting = true;
        }),
        "own_v5_4" => default.but(|config| config.experiment.pcp_rule = PcpRule::V5_4),
        "own_v6_1" => default.but(|config| config.experiment.pcp_rule = PcpRule::V6_1),
        "own_v6_7" => default.but(|config| config.experiment.pcp_rule = PcpRule::V6_7),
        "own_v6_16_lists" => lists.but(|config| config.experiment.pcp_rule = PcpRule::V6_16),
        "own_grouped" => marks.but(|config| config.experiment.avoid_fragmentation = true),
        "own_by_zone" => default.but(|config| config.experiment.zonelist_order = ListOrder::Zone),
        "own_v3_0_marks" => marks.policies(Generation::V3_0),
        "own_limits" => {
            marks.but(|config| config.experiment.limits = Limits { without_progress: 2, rounds: 5 })
        }
        "own_boost" => marks.but(|config| {
            config.boost_factor = 15_000;
            config.watermark_scale = 200;
            config.min_free_kib = 700;
        }),
        "own_tight" => marks.but(|config| config.experiment.reserve_ratios = [4, 4, 2, 0]),
        "own_cached" => marks.but(|config| config.experiment.zonelist_cache = ZonelistCache::AfterFirstZone),
        "own_cached_before" => {
            marks.but(|config| config.experiment.zonelist_cache = ZonelistCache::BeforeFirstZone)
        }
        "own_cached_clear" => {
            marks.but(|config| config.experiment.zonelist_cache = ZonelistCache::BeforeFirstZoneAndClear)
        }
        "own_zone_reclaim" => marks.but(|config| config.zone_reclaim = ZoneReclaimMode::ON),
        "own_zone_reclaim_all" => marks.but(|config| {
            config.zone_reclaim = ZoneReclaimMode::ON.and(ZoneReclaimMode::WRITE).and(ZoneReclaimMode::UNMAP);
            config.experiment.zonelist_cache = ZonelistCache::AfterFirstZone;
        }),
        "checked_under_lock" => default.check(RefillCheck::UnderZoneLock),
        "checked_after" => default.check(RefillCheck::AfterUnlock),
        "checked_lists" => Config::linux_v6_1().check(RefillCheck::AfterUnlock),
        "checked_v5_4" => Config::linux_v5_4(),
        _ => panic!("no configuration is called {name}"),
    }
}

fn zone(node: u16, kind: ZoneType, start: u64, pages: u64) -> ZoneSpec {
    ZoneSpec { node: NodeId(node), kind, start: Pfn(BASE.0 + start), pages }
}

/// Three zones on two nodes, with a hole in one and a ragged end in another.
pub(crate) fn three_zones(config: Config) -> Spec {
    let zones = [
        zone(0, ZoneType::Dma32, 0, 1024),
        zone(0, ZoneType::Normal, 1024, 2048),
        zone(1, ZoneType::Movable, 4096, 1500),
    ];
    Spec::zones(zones, CPUS)
        .memory([(BASE, 1024), (BASE.add(1024), 512), (BASE.add(1024 + 700), 1348), (BASE.add(4096), 1500)])
        .cpu_nodes([NodeId(0), NodeId(0), NodeId(1)])
        .config(config)
}

/// A machine of one node with little low memory.
pub(crate) fn one_node(config: Config) -> Spec {
    let zones = [zone(0, ZoneType::Dma, 0, 1024), zone(0, ZoneType::Normal, 1024, 3072)];
    Spec::zones(zones, CPUS).config(config)
}

/// Four nodes of which two are far and one has no CPU; zones of all types, one of which is empty.
pub(crate) fn four_nodes(config: Config) -> Spec {
    let zones = [
        zone(0, ZoneType::Dma32, 0, 1024),
        zone(0, ZoneType::Normal, 1024, 1024),
        zone(1, ZoneType::Normal, 2048, 1024),
        zone(1, ZoneType::Movable, 3072, 1024),
        zone(2, ZoneType::Normal, 4096, 1024),
        zone(3, ZoneType::Normal, 5120, 1024),
        // Without memory.
        zone(3, ZoneType::Movable, 6144, 1024),
    ];
    Spec::zones(zones, CPUS)
        .memory((0..6).map(|n| (BASE.add(1024 * n), 1024)).collect::<Vec<_>>())
        .cpu_nodes([NodeId(0), NodeId(1), NodeId(2)])
        .distances([10, 20, 30, 31, 20, 10, 40, 30, 30, 40, 10, 20, 31, 30, 20, 10])
        .config(config)
}

/// More zones than a word has bits: 24 nodes with three each.
pub(crate) fn many_zones(config: Config) -> Spec {
    let kinds = [ZoneType::Dma32, ZoneType::Normal, ZoneType::Movable];
    let zones: Vec<_> =
        (0..72).map(|n| zone(n / 3, kinds[usize::from(n % 3)], 1024 * u64::from(n), 64)).collect();
    Spec::zones(zones, CPUS).cpu_nodes([NodeId(0), NodeId(11), NodeId(23)]).config(config.spins(8))
}

/// Notes everything there is to see from outside.
///
/// # Panics
/// An invariant does not hold.
pub(crate) fn look<M: FrameUser>(world: &World<Checked, M>, trail: &mut Trail) {
    let allocator = world.allocator();
    let (free, counted) = (&mut trail.free, &mut trail.counted);
    let lists = world.free_lists();
    for order in Order::all() {
        for list in Migratetype::ALL {
            free.word(u64::from(order.get()) << 8 | list as u64);
            lists.blocks(list, order).iter().for_each(|pfn| free.word(pfn.0));
        }
    }
    for zone in allocator.zones() {
        let spec = zone.spec();
        let mut at = spec.start;
        while at < spec.end() {
            free.of(&allocator.frames().info(at));
            at = at.block_start(order(9)).add(PAGEBLOCK_PAGES);
        }
        counted.of(&(zone.free_pages(), zone.free_cma_pages(), zone.managed_pages(), zone.present_pages()));
        counted.of(&(zone.marks(), zone.is_unreclaimable(), ZoneType::ALL.map(|kind| zone.reserve(kind))));
        counted.of(&(allocator.watermarks(zone.id()), zone.events(), allocator.zone_snapshot(zone)));
        for cpu in (0..allocator.cpus()).map(|cpu| CpuId(cpu as u16)) {
            let pcp = allocator.pcp(zone.id(), cpu);
            counted.of(&(pcp.count(), pcp.high(), pcp.sizing(), pcp.events()));
        }
    }
    counted.of(&(allocator.free_pages(), allocator.pcp_pages(), allocator.hwpoisoned_pages()));
    counted.of(&(allocator.free_blocks(MAX_ORDER), allocator.free_blocks(Order::ZERO)));
    for node in 0..allocator.nodes().len() {
        counted.of(&allocator.node_events(NodeId(node as u16)));
    }
    counted.of(&(allocator.totals(), allocator.node_totals(), allocator.fault_counts()));
    write!(counted, "{}{}{}", allocator.vmstat(), allocator.zoneinfo(), allocator.buddyinfo())
        .expect("a digest takes everything");
    counted.of(&world.settled());
}

/// The order in which zones are tried from each CPU and node, and what the sizes are at the beginning.
pub(crate) fn look_at_first<M: FrameUser>(world: &World<Checked, M>, trail: &mut Trail) {
    let allocator = world.allocator();
    for cpu in (0..allocator.cpus()).map(|cpu| CpuId(cpu as u16)) {
        trail.note(&(allocator.node_of(cpu), allocator.zonelist_of(cpu)));
    }
    for node in 0..allocator.nodes().len() {
        trail.note(&allocator.zonelist_of_node(NodeId(node as u16)));
    }
    let frames = allocator.frames();
    trail.note(&(frames.len(), frames.is_empty()));
    let base = world.spec().base();
    for pfn in [
        0,
        base.0.wrapping_sub(1),
        base.0,
        base.0 + frames.len() as u64 - 1,
        base.0 + frames.len() as u64,
        u64::MAX,
    ] {
        trail.note(&frames.contains(Pfn(pfn)));
    }
    for kind in Migratetype::ALL {
        let words = world.on(0, |cpu| cpu.hit_words(kind));
        trail.note(&words.map(|words| (words.mask, words.stride, words.first, words.frames)));
    }
    look(world, trail);
}
