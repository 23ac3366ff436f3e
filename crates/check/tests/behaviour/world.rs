//! The worlds of the scenarios: configurations by name, zones, and everything that can be seen from outside.

use core::fmt::Write as _;
use framewright::config::Experiment;

use framewright_check::prelude::*;

use crate::record::Trail;

pub(crate) const CPUS: usize = 3;
/// Frames that the zones of [`three_zones`] span, holes included.
pub(crate) const SPAN: u64 = 4096 + 1500;

/// A configuration by its name: a preset, or the default with something else.
#[expect(clippy::too_many_lines, reason = "a table of configurations by name")]
pub(crate) fn config(name: &str) -> Config {
    let own = Config::framewright();
    let lists = Config { engine: Engine::Linux, ..own };
    let marks = own.with_marks();
    match name {
        "framewright" => own,
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
        "own_no_lists" => {
            Config { experiment: Experiment { pcp_orders: PcpOrders::None, ..own.experiment }, ..own }
        }
        "own_zero" => {
            Config { experiment: Experiment { pcp_orders: PcpOrders::Zero, ..own.experiment }, ..own }
        }
        "own_costly" => {
            Config { experiment: Experiment { pcp_orders: PcpOrders::UpToCostly, ..own.experiment }, ..own }
        }
        "own_fixed" => Config {
            experiment: Experiment { pcp_fixed: Some(PcpFixed { batch: 7, high: 20 }), ..own.experiment },
            ..own
        },
        "own_slots" => Config { experiment: Experiment { pcp_slots: 4, ..own.experiment }, ..own },
        "own_fraction" => Config { experiment: Experiment { pcp_fraction: 16, ..own.experiment }, ..own },
        "own_min_refill" => Config { experiment: Experiment { pcp_min_refill: 1, ..own.experiment }, ..own },
        "own_ticket" => Config {
            experiment: Experiment {
                lock_kind: LockKind::Ticket,
                lock_place: LockPlace::WithOrder0Lists,
                lock_timing: true,
                ..own.experiment
            },
            ..own
        },
        "own_parking" => Config {
            experiment: Experiment { lock_kind: LockKind::Parking, lock_timing: true, ..own.experiment },
            ..own
        },
        "own_compact" => Config { engine: Engine::Compact, ..own },
        "own_compact_marks" => Config { engine: Engine::Compact, ..marks },
        "own_compact_slots" => Config {
            engine: Engine::Compact,
            experiment: Experiment { pcp_slots: 4, ..own.experiment },
            ..own
        },
        "own_compact_reports" => {
            Config { engine: Engine::Compact, free_reporting: true, fault_injection: true, ..own }
        }
        "own_lazy" => Config { lazy_pageblocks: true, ..own },
        "own_lazy_compact" => Config { lazy_pageblocks: true, engine: Engine::Compact, ..own },
        "own_lazy_marks" => Config { lazy_pageblocks: true, ..marks },
        "own_up_to_costly_and_huge" => Config {
            experiment: Experiment { pcp_orders: PcpOrders::UpToCostlyAndHuge, ..own.experiment },
            ..own
        },
        "own_poison" => Config { poison: true, ..own },
        "own_zeroed" => Config { init_on_free: true, ..own },
        "own_faults" => Config { fault_injection: true, ..own },
        "own_reports" => Config { free_reporting: true, ..own },
        "own_16k" => Config { page_kib: 16, free_reporting: true, ..marks },
        "own_v5_4" => Config { experiment: Experiment { pcp_rule: PcpRule::V5_4, ..own.experiment }, ..own },
        "own_v6_1" => Config { experiment: Experiment { pcp_rule: PcpRule::V6_1, ..own.experiment }, ..own },
        "own_v6_7" => Config { experiment: Experiment { pcp_rule: PcpRule::V6_7, ..own.experiment }, ..own },
        "own_v6_16_lists" => {
            Config { experiment: Experiment { pcp_rule: PcpRule::V6_16, ..lists.experiment }, ..lists }
        }
        "own_grouped" => {
            Config { experiment: Experiment { avoid_fragmentation: true, ..marks.experiment }, ..marks }
        }
        "own_by_zone" => {
            Config { experiment: Experiment { zonelist_order: ListOrder::Zone, ..own.experiment }, ..own }
        }
        "own_v3_0_marks" => Config {
            experiment: Experiment {
                marks: Generation::V3_0,
                fallback: Generation::V3_0,
                passes: Generation::V3_0,
                reclaim: Generation::V3_0,
                ..marks.experiment
            },
            ..marks
        },
        "own_limits" => Config {
            experiment: Experiment { limits: Limits { without_progress: 2, rounds: 5 }, ..marks.experiment },
            ..marks
        },
        "own_boost" => Config { boost_factor: 15_000, watermark_scale: 200, min_free_kib: 700, ..marks },
        "own_tight" => {
            Config { experiment: Experiment { reserve_ratios: [4, 4, 2, 0], ..marks.experiment }, ..marks }
        }
        "own_cached" => Config {
            experiment: Experiment { zonelist_cache: ZonelistCache::AfterFirstZone, ..marks.experiment },
            ..marks
        },
        "own_cached_before" => Config {
            experiment: Experiment { zonelist_cache: ZonelistCache::BeforeFirstZone, ..marks.experiment },
            ..marks
        },
        "own_cached_clear" => Config {
            experiment: Experiment {
                zonelist_cache: ZonelistCache::BeforeFirstZoneAndClear,
                ..marks.experiment
            },
            ..marks
        },
        "own_zone_reclaim" => Config { zone_reclaim: ZoneReclaimMode::ON, ..marks },
        "own_zone_reclaim_all" => Config {
            zone_reclaim: ZoneReclaimMode::ON.and(ZoneReclaimMode::WRITE).and(ZoneReclaimMode::UNMAP),
            experiment: Experiment { zonelist_cache: ZonelistCache::AfterFirstZone, ..marks.experiment },
            ..marks
        },
        "checked_under_lock" => Config {
            experiment: Experiment { refill_check: RefillCheck::UnderZoneLock, ..own.experiment },
            ..own
        },
        "checked_after" => Config {
            experiment: Experiment { refill_check: RefillCheck::AfterUnlock, ..own.experiment },
            ..own
        },
        "checked_lists" => Config {
            experiment: Experiment {
                refill_check: RefillCheck::AfterUnlock,
                ..Config::linux_v6_1().experiment
            },
            ..Config::linux_v6_1()
        },
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
    Spec::zones(zones, CPUS)
        .cpu_nodes([NodeId(0), NodeId(11), NodeId(23)])
        .config(Config { experiment: Experiment { remote_drain_spins: 8, ..config.experiment }, ..config })
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
