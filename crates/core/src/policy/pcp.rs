//! Sizes of per-CPU lists and their run-time rules.
//!
//! A list set has a `count` (base pages held), a `batch` (pages that a refill or drain moves) and a `high` (a free that
//! makes `count >= high` drains). [`size`] computes batch and high from a zone; [`Tuning`] decides how much each refill
//! and drain moves.

use crate::units::{COSTLY_ORDER, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};

mod tuning;

#[cfg(test)]
pub(crate) use tuning::is_small_high;
pub use tuning::{MAX_SCALE, Shares, Shortage, Traffic, Tuning, round_robin};

/// Cap of the batch computation in v5.4 to v6.7: 1 MiB, in 4 KiB pages.
pub const BATCH_CAP: u64 = 256;
/// Cap of the batch computation in v3.0: 512 KiB, in 4 KiB pages. v3.0 counts present pages less the memory map, later
/// releases count managed pages; the other memory that boot reserves makes no difference here.
pub const BATCH_CAP_V3_0: u64 = 128;
/// Smallest fraction tunable that v6.1 and later accept, apart from 0 (off).
pub const MIN_FRACTION: u32 = 8;

/// Most freed blocks of nearly free pageblocks that a CPU sets aside before they return to the zone.
pub const MOST_ASIDE: u32 = 128;

/// Upper bound of every `high`. It keeps a count, which may exceed `high` by some blocks, within 32 bits.
const HIGH_LIMIT: u64 = i32::MAX as u64;
/// Upper bound of a batch derived from the fraction tunable (v5.4).
const FRACTION_BATCH_CAP: u64 = 96;

/// Rule for the size of per-CPU lists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PcpRule {
    /// v5.4: `high` is six batches, for any number of CPUs.
    V5_4,
    /// v6.1: `high` is the CPU's share of the low watermark, at least four batches.
    #[default]
    V6_1,
    /// v6.7 and later: like v6.1 at rest; under load `high` rises up to the CPU's share of an eighth of the zone. A
    /// drain moves more if blocks of orders 1 to 3 were freed in a row, so each call counts (see
    /// [`Engine::Linux`](crate::config::Engine::Linux)).
    V6_7,
    /// v6.16 and later: like v6.7, but a drain moves more only after more pages were freed in a row: a batch and half
    /// of the lower bound of `high`, which few lists reach.
    V6_16,
    /// Like v6.7, but without regard to the orders freed in a row, so that hits need not count. If they do not, a
    /// refill raises `high` by the pages that it brings, each list in use has a share of `high` ([`Shares`]), and
    /// half of the share moves together ([`moved_at_once`]). `high` falls to its first value when another CPU finds no
    /// memory. The lists hold at most a part of the free memory (see [`share_of_free`]), huge blocks not counted.
    Auto,
}

impl PcpRule {
    /// Whether `high` moves at run time, unless the user has fixed it.
    #[must_use]
    pub const fn moves_high(self) -> bool {
        matches!(self, Self::V6_7 | Self::V6_16 | Self::Auto)
    }

    /// Whether the rule depends on the orders of consecutive frees, so that each call counts.
    #[must_use]
    pub const fn watches_orders(self) -> bool {
        matches!(self, Self::V6_7 | Self::V6_16)
    }

    /// Limit of the count of pages freed in a row. v6.7: 32 batches. `u32::MAX` if a rule limits the count where it
    /// uses it, or does not use it.
    #[must_use]
    pub const fn most_counted(self, batch: u32) -> u32 {
        match self {
            Self::V6_7 | Self::V6_16 => batch.saturating_mul(1 << MAX_SCALE),
            Self::V5_4 | Self::V6_1 | Self::Auto => u32::MAX,
        }
    }
}

/// Size of one per-CPU list set, in base pages. All CPUs have the same size for a zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Sizing {
    /// Refill and drain unit, at least 1.
    pub batch: u32,
    /// Lower bound of `high`, and its first value.
    pub high_min: u32,
    /// Upper bound of `high`. Differs from `high_min` only where `high` is tuned at run time. Under
    /// [`PcpRule::Auto`], if the lists of idle CPUs can be drained, the CPUs that use the zone divide it.
    pub high_max: u32,
}

impl Sizing {
    /// The boot page set: every free drains immediately and a refill brings one block. In use until the lists are
    /// sized; unpopulated zones keep it.
    pub const BOOT: Self = Self::fixed(1, 0);

    const fn fixed(batch: u32, high: u32) -> Self {
        Self { batch, high_min: high, high_max: high }
    }

    /// Whether `high` moves at run time.
    #[must_use]
    pub const fn is_tuned(self) -> bool {
        self.high_min != self.high_max
    }

    /// Limits `high` to `pages`, or to `high_min` if that is more.
    #[must_use]
    pub fn within(self, pages: u32) -> Self {
        Self { high_max: self.high_max.min(pages).max(self.high_min), ..self }
    }

    /// `high` limited to the bounds.
    #[must_use]
    pub fn clamp_high(self, high: u32) -> u32 {
        high.min(self.high_max).max(self.high_min)
    }
}

/// Whether a rule accepts a value for the fraction tunable: 0 (off) and from [`MIN_FRACTION`] on; v5.4 any value. O(1).
#[must_use]
pub const fn accepts_fraction(rule: PcpRule, fraction: u32) -> bool {
    matches!(rule, PcpRule::V5_4) || fraction == 0 || fraction >= MIN_FRACTION
}

/// The batch formula of all releases, before its floor of 1: the result may be 0.
///
/// `b = max(min(pages / 1024, cap) / 4, 1)`, then `pow2floor(b + b/2) - 1`. A power of two would align batches with
/// cache sets. O(1).
#[must_use]
pub fn raw_batch(pages: u64, cap: u64) -> u64 {
    let b = ((pages / 1024).min(cap) / 4).max(1);
    (1 << b.saturating_add(b / 2).ilog2()) - 1
}

/// Base pages that one of `cpus` CPUs may keep on its lists of a zone with `free` free pages: all CPUs together keep
/// one page in `part` ([`Config::pcp_free_part`](crate::config::Config::pcp_free_part)). `cpus` are those that use the
/// zone, if the lists of idle CPUs can be drained, and else those of its node ([`sharing_cpus`]). A page on a list
/// keeps its pageblock from being whole, so lists reduce the huge pages that the free memory can give. Linux' bound is
/// an eighth of all memory, however little of it is free. O(1).
#[must_use]
pub fn share_of_free(free: u64, cpus: u32, part: u32) -> u32 {
    narrow(free / (u64::from(part.max(1)) * u64::from(cpus.max(1))))
}

/// Whether blocks of an order have no lists in Linux, and keep pageblocks from being whole: orders 4 to 8.
pub(crate) fn breaks_pageblocks(order: Order) -> bool {
    COSTLY_ORDER < order && order < PAGEBLOCK_ORDER
}

/// Number of blocks of an order that a refill brings to a list that may hold `room` blocks, and that a drain takes from
/// it: half of `room`; if the size is fixed, a batch, and at least two blocks. Blocks of orders 4 to 8, which have no
/// lists in Linux, break pageblocks: at most as many as one pageblock has. At least 1. O(1).
#[must_use]
pub fn moved_at_once(order: Order, room: u32, sizing: Sizing) -> u32 {
    let blocks = match sizing.batch {
        _ if sizing.is_tuned() => room.div_ceil(2),
        0 | 1 => 1,
        batch => (batch >> order.get()).max(2),
    };
    let most = if breaks_pageblocks(order) { (PAGEBLOCK_PAGES >> order.get()) as u32 } else { u32::MAX };
    blocks.min(room).min(most).max(1)
}

/// Number of CPUs that share a zone's pages (v6.1): those of its node; all online CPUs if it has none.
#[must_use]
pub const fn sharing_cpus(node_cpus: u32, online_cpus: u32) -> u32 {
    if node_cpus == 0 { online_cpus } else { node_cpus }
}

/// Size of each CPU's list set for one zone. With B = [`raw_batch`] and f = `fraction`:
///
/// | rule | batch | high |
/// |---|---|---|
/// | v5.4, f = 0 | max(1, B) | 6 · B |
/// | v5.4, f ≠ 0 | managed / f / 4, within 1 and 96 | managed / f |
/// | v6.1 | max(1, B) | max(total / cpus, 4 · batch), total = `low_watermark`, or managed / f if f ≠ 0 |
/// | v6.7 | max(1, B) | from the v6.1 value for f = 0 to the one for f = 8; with f ≠ 0 fixed, as v6.1 |
///
/// `managed` and `low_watermark` (with any boost) are in base pages; `cpus` comes from [`sharing_cpus`], 0 counts as 1;
/// `batch_cap` is 1 MiB in base pages ([`BATCH_CAP`]). A `high` is at most `i32::MAX`. O(1).
#[must_use]
pub fn size(
    rule: PcpRule,
    managed: u64,
    low_watermark: u64,
    cpus: u32,
    fraction: u32,
    batch_cap: u64,
) -> Sizing {
    let raw = raw_batch(managed, batch_cap);
    let batch = narrow(raw.max(1));
    let share = |total: u64| narrow((total / u64::from(cpus.max(1))).max(u64::from(batch) * 4));
    let part = |fraction: u32| managed / u64::from(fraction);
    match (rule, fraction) {
        (PcpRule::V5_4, 0) => Sizing::fixed(batch, narrow(raw.saturating_mul(6))),
        (PcpRule::V5_4, f) => {
            Sizing::fixed((part(f) / 4).clamp(1, FRACTION_BATCH_CAP) as u32, narrow(part(f)))
        }
        (PcpRule::V6_1, 0) => Sizing::fixed(batch, share(low_watermark)),
        (PcpRule::V6_1 | PcpRule::V6_7 | PcpRule::V6_16 | PcpRule::Auto, f @ 1..) => {
            Sizing::fixed(batch, share(part(f)))
        }
        (PcpRule::V6_7 | PcpRule::V6_16 | PcpRule::Auto, 0) => {
            let (rest, full) = (share(low_watermark), share(part(MIN_FRACTION)));
            // If the low watermark exceeds an eighth of the zone, the bounds would cross.
            Sizing { batch, high_min: rest, high_max: full.max(rest) }
        }
    }
}

fn narrow(pages: u64) -> u32 {
    pages.min(HIGH_LIMIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_what_a_list_may_hold_moves_at_once_or_a_batch() {
        let tuned = Sizing { batch: 63, high_min: 252, high_max: 4096 };
        let (batch, boot) = (fixed(63, 378), Sizing::BOOT);
        for (order, room, sizing, expected) in [
            (0, 4096, tuned, 2048),
            (0, 5, tuned, 3),
            (3, 2, tuned, 1),
            (3, 256, tuned, 128),
            (4, 256, tuned, 32),
            (8, 100, tuned, 2),
            (8, 3, tuned, 2),
            (9, 32, tuned, 16),
            (9, 0, tuned, 1),
            (0, 378, batch, 63),
            (3, 40, batch, 7),
            (7, 40, batch, 2),
            (0, 2, batch, 2),
            (0, 378, boot, 1),
        ] {
            let moved = Order::new(order).expect("an order of the test");
            assert_eq!(
                moved_at_once(moved, room, sizing),
                expected,
                "order {order}, room {room}, {sizing:?}"
            );
        }
    }

    const ZONE_4G: u64 = 1 << 20;

    fn size(rule: PcpRule, managed: u64, low_watermark: u64, cpus: u32, fraction: u32) -> Sizing {
        super::size(rule, managed, low_watermark, cpus, fraction, BATCH_CAP)
    }

    fn fixed(batch: u32, high: u32) -> Sizing {
        Sizing { batch, high_min: high, high_max: high }
    }

    /// Zone sizes around every power of two and every step of the v5.4 table.
    fn zone_sizes() -> impl Iterator<Item = u64> {
        let steps = [0, 3975, 8192, 12288, 24576, 45056, 90112, 176_128];
        let powers = (0..=40).map(|k| 1 << k);
        powers.chain(steps).flat_map(|n: u64| [n.saturating_sub(1), n, n + 1])
    }

    #[test]
    fn v5_4_steps_are_where_the_table_has_them() {
        let table = [
            (0, 1, 0),
            (8192, 1, 6),
            (12288, 3, 18),
            (24576, 7, 42),
            (45056, 15, 90),
            (90112, 31, 186),
            (176_128, 63, 378),
        ];
        let at = |managed| size(PcpRule::V5_4, managed, 0, 1, 0);
        let mut below = None;
        for (managed, batch, high) in table {
            if let Some(below) = below {
                assert_eq!(at(managed - 1), below, "one page below {managed}");
            }
            assert_eq!(at(managed), fixed(batch, high), "at {managed}");
            assert_eq!(at(managed + 1), fixed(batch, high), "one page above {managed}");
            below = Some(fixed(batch, high));
        }
        assert_eq!(at(1 << 40), fixed(63, 378), "the table ends at 63");
    }

    #[test]
    fn every_zone_size_falls_into_its_row() {
        let row = |managed: u64| match managed {
            0..8192 => 0,
            8192..12288 => 1,
            12288..24576 => 3,
            24576..45056 => 7,
            45056..90112 => 15,
            90112..176_128 => 31,
            _ => 63,
        };
        for managed in 0..400_000 {
            assert_eq!(raw_batch(managed, BATCH_CAP), row(managed), "{managed} pages");
        }
    }

    #[test]
    fn v3_0_stops_at_half_the_batch() {
        assert_eq!(raw_batch(ZONE_4G, BATCH_CAP_V3_0), 31);
        assert_eq!(super::size(PcpRule::V5_4, ZONE_4G, 0, 1, 0, BATCH_CAP_V3_0), fixed(31, 186));
    }

    #[test]
    fn the_256_cpu_machine_before_and_after_the_reset() {
        // DMA and DMA32 of node 0, then the Normal zones of both nodes with one section each.
        let before = [3975, 450_000, 32768, 32768].map(|managed| size(PcpRule::V5_4, managed, 0, 128, 0));
        let after = [3975, 450_000, 16_252_928, 16_777_216].map(|m| size(PcpRule::V5_4, m, 0, 128, 0));
        let lists = |zones: &[Sizing], sizing| 256 * zones.iter().filter(|&&zone| zone == sizing).count();
        assert_eq!(lists(&before, fixed(1, 0)), 256);
        assert_eq!(lists(&before, fixed(63, 378)), 256);
        assert_eq!(lists(&before, fixed(7, 42)), 512);
        assert_eq!(lists(&after, fixed(1, 0)), 256);
        assert_eq!(lists(&after, fixed(63, 378)), 768);
        // Neither some reserved pages nor a second section change what the lists say about growth.
        assert_eq!(size(PcpRule::V5_4, 32768 - 100, 0, 128, 0), fixed(7, 42));
        assert_eq!(size(PcpRule::V5_4, 2 * 32768, 0, 128, 0), fixed(15, 90));
    }

    #[test]
    fn v6_1_and_auto_on_the_larger_normal_zone() {
        let low = 22_575;
        assert_eq!(low / 128, 176, "the share is less than four batches");
        assert_eq!(size(PcpRule::V6_1, 16_777_216, low, 128, 0), fixed(63, 252));
        let auto = size(PcpRule::Auto, 16_777_216, low, 128, 0);
        assert_eq!(auto, Sizing { batch: 63, high_min: 252, high_max: 16_384 });
        assert!(auto.is_tuned());
        // With few CPUs the share counts, and a boost of the watermark with it.
        assert_eq!(size(PcpRule::V6_1, 16_777_216, low, 8, 0), fixed(63, 2821));
        assert_eq!(size(PcpRule::V6_1, 16_777_216, low + 512, 8, 0), fixed(63, 2885));
    }

    #[test]
    fn a_fraction_overrides() {
        assert_eq!(size(PcpRule::V5_4, 100_000, 0, 4, 1000), fixed(25, 100));
        assert_eq!(size(PcpRule::V5_4, 100_000, 0, 4, 8), fixed(96, 12_500));
        assert_eq!(size(PcpRule::V5_4, 100, 0, 4, 1000), fixed(1, 0));
        for rule in [PcpRule::V6_1, PcpRule::V6_7, PcpRule::Auto] {
            assert_eq!(size(rule, 16_777_216, 22_575, 128, 8), fixed(63, 16_384));
            assert_eq!(size(rule, 16_777_216, 22_575, 128, u32::MAX), fixed(63, 252));
        }
    }

    #[test]
    fn fractions_one_to_seven_are_refused_from_v6_1_on() {
        for fraction in 0..20 {
            assert!(accepts_fraction(PcpRule::V5_4, fraction));
            for rule in [PcpRule::V6_1, PcpRule::V6_7, PcpRule::Auto] {
                assert_eq!(accepts_fraction(rule, fraction), !(1..8).contains(&fraction), "{rule:?}");
            }
        }
    }

    #[test]
    fn a_node_without_cpus_shares_among_all() {
        assert_eq!(sharing_cpus(128, 256), 128);
        assert_eq!(sharing_cpus(0, 256), 256);
    }

    #[test]
    fn no_size_leaves_its_bounds() {
        for rule in [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto] {
            for cpus in [0, 1, 2, 3, 4, 127, 128, 129, 4096, 8191, 8192] {
                for fraction in [0, 1, 7, 8, 9, 1000, u32::MAX] {
                    for managed in zone_sizes().chain([u64::MAX]) {
                        for low in [0, managed / 1000, managed] {
                            let sizing = size(rule, managed, low, cpus, fraction);
                            assert!((1..=96).contains(&sizing.batch), "{sizing:?}");
                            assert!(sizing.high_min <= sizing.high_max, "{sizing:?}");
                            assert!(u64::from(sizing.high_max) <= HIGH_LIMIT, "{sizing:?}");
                            assert!(
                                rule == PcpRule::V5_4 || sizing.high_min >= 4 * sizing.batch,
                                "{sizing:?}"
                            );
                            assert!(!sizing.is_tuned() || (rule.moves_high() && fraction == 0), "{sizing:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn more_memory_never_makes_a_list_smaller_nor_more_cpus_a_larger_one() {
        for rule in [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16, PcpRule::Auto] {
            for fraction in [0, 8, 100] {
                for cpus in [1, 3, 128, 8192] {
                    let at = |managed: u64, cpus| size(rule, managed, managed / 700, cpus, fraction);
                    let mut last = at(0, cpus);
                    for managed in (0..2_000_000).step_by(64).chain((21..=40).map(|k| 1 << k)) {
                        let now = at(managed, cpus);
                        assert!(now.batch >= last.batch, "{rule:?}, {managed} pages");
                        assert!(now.high_min >= last.high_min, "{rule:?}, {managed} pages");
                        assert!(now.high_max >= last.high_max, "{rule:?}, {managed} pages");
                        let shared = at(managed, cpus + 1);
                        assert!(shared.high_max <= now.high_max, "{rule:?}, {managed} pages");
                        last = now;
                    }
                }
            }
        }
    }

    #[test]
    fn lists_keep_a_part_of_what_is_free_but_at_least_their_minimum() {
        assert_eq!(share_of_free(1 << 20, 1, 64), 1 << 14);
        assert_eq!(share_of_free(1 << 20, 4, 64), 1 << 12, "all CPUs together");
        assert_eq!(share_of_free(1 << 20, 0, 64), 1 << 14, "0 counts as 1");
        assert_eq!(share_of_free(1 << 20, 1, 16), 1 << 16);
        assert_eq!(share_of_free(1 << 20, 1, 1), 1 << 20, "all of it");
        let sizing = Sizing { batch: 63, high_min: 252, high_max: 16_384 };
        for (pages, high_max) in [(0, 252), (252, 252), (1000, 1000), (16_384, 16_384), (u32::MAX, 16_384)] {
            assert_eq!(sizing.within(pages), Sizing { high_max, ..sizing }, "{pages}");
        }
    }

    #[test]
    fn the_boot_set_keeps_nothing() {
        assert_eq!(Sizing::BOOT, fixed(1, 0));
        assert!(!Sizing::BOOT.is_tuned());
    }
}
