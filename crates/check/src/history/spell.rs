//! Choices drawn from bytes: configurations, zones and memory.

use framewright::config::*;
use framewright::policy::Generation;
use framewright::units::*;
use framewright::zone::ZoneSpec;

/// Choices, drawn from bytes.
pub trait Draw {
    /// The next byte.
    fn byte(&mut self) -> u8;

    /// Less than `bound`, which is from 1 to 65536.
    fn below(&mut self, bound: usize) -> usize {
        let wide = if bound > 256 { usize::from(self.byte()) << 8 } else { 0 };
        (wide | usize::from(self.byte())) % bound
    }

    /// One of some values.
    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.below(values.len())]
    }

    /// A number that is mostly small, and sometimes any.
    fn number(&mut self) -> u32 {
        match self.byte() {
            255 => u32::from_le_bytes([(); 4].map(|()| self.byte())),
            small => u32::from(small),
        }
    }
}

/// The rest of an input.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(pub &'a [u8]);

impl Draw for Bytes<'_> {
    fn byte(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }
}

impl<F: FnMut() -> u8> Draw for F {
    fn byte(&mut self) -> u8 {
        self()
    }
}

pub(super) fn config(draw: &mut impl Draw) -> Config {
    let (flags, more) = (draw.byte(), draw.byte());
    let engine = match flags & 32 == 0 {
        true if more & 33 == 33 => Engine::Compact,
        true => Engine::Framewright,
        false => Engine::Linux,
    };
    Config {
        engine,
        pcp_free_part: [64, 64, 16, 1][usize::from(flags >> 6)],
        lazy_pageblocks: flags & 64 != 0,
        poison: flags & 128 != 0 && engine != Engine::Compact,
        init_on_free: more & 7 == 7,
        fault_injection: more & 24 == 24,
        free_reporting: more & 32 != 0,
        page_kib: [4, 4, 16, 64][usize::from(more >> 6)],
        keep_marks: flags & 4 != 0,
        min_free_kib: u64::from(draw.number()),
        watermark_scale: u64::from(draw.number()),
        boost_factor: u64::from(draw.number()),
        zone_reclaim: ZoneReclaimMode(draw.byte() & 7),
        compaction_proactiveness: [98, 20, 100, 0][usize::from(more >> 6)],
        experiment: experiment(flags, draw),
    }
}

fn experiment(flags: u8, draw: &mut impl Draw) -> Experiment {
    let generations = [Generation::V3_0, Generation::V6_1];
    Experiment {
        pcp_rule: draw.pick(&[PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto]),
        section_pages: if flags & 6 == 6 { 0 } else { 1024 },
        pcp_fraction: if flags & 1 == 0 { 0 } else { draw.number() },
        pcp_fixed: (flags & 2 != 0).then(|| PcpFixed { batch: draw.number(), high: draw.number() }),
        pcp_orders: draw.pick(&[
            PcpOrders::None,
            PcpOrders::Zero,
            PcpOrders::UpToCostly,
            PcpOrders::UpToCostlyAndHuge,
            PcpOrders::UpToHuge,
        ]),
        pcp_slots: if flags & 12 == 12 { draw.number() } else { 2 << draw.below(12) },
        pcp_min_refill: draw.number(),
        lock_place: draw.pick(&[LockPlace::WithOrder0Lists, LockPlace::OtherEnd, LockPlace::OwnLine]),
        lock_kind: draw.pick(&[LockKind::Ticket, LockKind::Queued, LockKind::Parking]),
        lock_timing: flags & 16 != 0,
        refill_check: draw.pick(&[RefillCheck::UnderZoneLock, RefillCheck::AfterUnlock, RefillCheck::Off]),
        pcp_reset: flags & 64 == 0,
        remote_drain_spins: draw.number() % 4,
        marks: draw.pick(&generations),
        fallback: draw.pick(&generations),
        passes: draw.pick(&generations),
        reclaim: draw.pick(&generations),
        reserve_ratios: [0; 4].map(|_: u64| u64::from(draw.number())),
        avoid_fragmentation: flags & 96 == 96,
        zonelist_order: draw.pick(&[ListOrder::Node, ListOrder::Zone, ListOrder::AsV3_0]),
        zonelist_cache: draw.pick(&[
            ZonelistCache::Off,
            ZonelistCache::AfterFirstZone,
            ZonelistCache::BeforeFirstZone,
            ZonelistCache::BeforeFirstZoneAndClear,
        ]),
        limits: Limits { without_progress: draw.number() % 4, rounds: draw.number() % 8 },
        heads_in_pageblocks: draw.number() % 2 == 1,
    }
}

/// One to three zones, mostly sound.
pub(super) fn zones(draw: &mut impl Draw) -> Vec<ZoneSpec> {
    let mut start = 1024 * draw.below(8) as u64;
    let count = 1 + draw.below(3);
    let zone = |_| {
        let (node, kind) = (NodeId(draw.below(2) as u16), draw.pick(&ZoneType::ALL));
        let mut zone = ZoneSpec { node, kind, start: Pfn(start), pages: 1 + draw.below(4096) as u64 };
        if draw.byte() > 250 {
            zone.start.0 = u64::from(draw.number()) << draw.below(60);
            zone.pages = u64::from(draw.number()) << draw.below(60);
        }
        start = zone.start.0.saturating_add(zone.pages).saturating_add(1024 * draw.below(4) as u64);
        start = (start & !1023).saturating_add(1024);
        zone
    };
    (0..count).map(zone).collect()
}

/// For each zone, all of it or two pieces with holes around them.
pub(super) fn memory(zones: &[ZoneSpec], draw: &mut impl Draw) -> Vec<(Pfn, u64)> {
    let mut ranges = Vec::new();
    for zone in zones {
        if draw.byte() < 128 {
            ranges.push((zone.start, zone.pages));
            continue;
        }
        let mut borders = [(); 4].map(|()| draw.below(1 << 16) as u64 % (zone.pages + 1));
        borders.sort_unstable();
        let pieces = [(borders[0], borders[1]), (borders[2], borders[3])];
        // Pieces that touch are given to the allocator one by one, too.
        ranges.extend(pieces.iter().filter(|(a, b)| a < b).map(|(a, b)| (zone.start.add(*a), b - a)));
    }
    ranges
}
