//! Amounts that each refill and drain of a per-CPU list set moves.

use super::{PcpRule, Sizing};
use crate::units::{COSTLY_ORDER, NR_ORDERS, Order};

/// The auto-tuned rule scales a batch to at most `batch << MAX_SCALE`.
pub const MAX_SCALE: u8 = 5;

/// Shortage of memory in a zone, as its per-CPU lists see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Shortage {
    /// No shortage.
    #[default]
    None,
    /// Free pages are below the high watermark (v6.7 only).
    BelowHigh,
    /// Background reclaim works on the zone.
    Reclaim,
}

/// Page count of one CPU's lists, and the history of their traffic. The lists keep these fields in three words; where
/// hits count, each allocation and free updates them.
///
/// | field | changed by | read by |
/// |---|---|---|
/// | `count` | all | all |
/// | `free_count` | free, up to [`PcpRule::most_counted`]; halves on an allocation | v6.7 |
/// | `alloc_factor` | refill; halves on a free | v6.7 |
/// | `free_factor` | drain; halves on an allocation | v6.1 |
/// | `freed_high` | free, in [`Tuning::drain`] | v6.7 |
///
/// Every rule reads only its own fields, and v5.4 only `count`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Traffic {
    /// Base pages held.
    pub count: u32,
    /// Base pages freed in a row: an allocation halves it.
    pub free_count: u32,
    /// A v6.7 refill of order 0 brings `batch << alloc_factor`.
    pub alloc_factor: u8,
    /// A v6.1 drain gives back `batch << free_factor`, within bounds.
    pub free_factor: u8,
    /// Whether the last free was of order 1 to 3. Allocations in between do not matter.
    pub freed_high: bool,
}

impl Traffic {
    /// No pages and no history.
    pub const NONE: Self =
        Self { count: 0, free_count: 0, alloc_factor: 0, free_factor: 0, freed_high: false };

    /// v6.1: an order 1 to 3 block freed after a drain and no allocation since. `free_factor` is 0 under the other
    /// rules.
    pub(crate) const fn drains_all(self, order: Order) -> bool {
        is_small_high(order) && self.free_factor > 0
    }
}

/// Orders 1 to 3: those of which many on the lists fragment memory.
pub(crate) const fn is_small_high(order: Order) -> bool {
    0 < order.get() && order.get() <= COSTLY_ORDER.get()
}

/// State of one CPU's lists of one zone that changes between a refill and a drain.
///
/// Each method returns the new state and the amount to move. The caller moves the pages and counts them: a refill may
/// find less, and a drain of large blocks may move more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// Count and history.
    pub traffic: Traffic,
    /// The present `high`. Only rules that [move](PcpRule::moves_high) it read it.
    pub high: u32,
}

impl Tuning {
    /// Empty lists of the given size.
    #[must_use]
    pub const fn new(sizing: Sizing) -> Self {
        Self { traffic: Traffic::NONE, high: sizing.high_min }
    }

    /// The state under another size: `high` is limited to the new bounds.
    #[must_use]
    pub fn resized(self, sizing: Sizing) -> Self {
        Self { high: sizing.clamp_high(self.high), ..self }
    }

    /// Number of blocks of `order` to fetch when a list is empty. At least 1.
    ///
    /// All rules: 1 if the amount is 1, else `max(amount >> order, 2)`. Under v5.4 and v6.1 the amount is `batch`.
    /// Under v6.7 `high` first grows by `batch << a` (a = `alloc_factor`, 0 above order 0) unless the zone is under
    /// pressure; at order 0 the amount is `min(batch << a, max(high - count - batch, batch))`, and a grows, to 5 at
    /// most, if that did not limit it; if `high < batch` (the boot set) it is 1. O(1).
    #[must_use]
    pub fn refill(self, rule: PcpRule, sizing: Sizing, order: Order, pressure: Shortage) -> (Self, u32) {
        let blocks = |amount: u32| if amount <= 1 { 1 } else { (amount >> order.get()).max(2) };
        if !rule.moves_high() {
            return (self, blocks(sizing.batch));
        }
        let mut next = self.resized(sizing);
        if next.high < sizing.batch {
            return (next, 1);
        }
        let factor = if order == Order::ZERO { self.traffic.alloc_factor.min(MAX_SCALE) } else { 0 };
        let wanted = scaled(sizing.batch, factor);
        if pressure == Shortage::None {
            next.high = next.high.saturating_add(wanted).min(sizing.high_max);
        }
        if order > Order::ZERO {
            return (next, blocks(wanted));
        }
        let room =
            next.high.saturating_sub(self.traffic.count).saturating_sub(sizing.batch).max(sizing.batch);
        if wanted <= room {
            next.traffic = Traffic { alloc_factor: (factor + 1).min(MAX_SCALE), ..self.traffic };
        }
        (next, blocks(wanted.min(room)))
    }

    /// The `count` from which on a free must call [`drain`](Self::drain). To be computed again when pressure, size or
    /// state change.
    ///
    /// v5.4: `high`. v6.1: `high`, under reclaim at most four batches. v6.7: the same, but 0 while pressure still
    /// lowers `high`, since each free then lowers it, and after a free of order 1 to 3. O(1).
    #[must_use]
    pub fn threshold(self, rule: PcpRule, sizing: Sizing, pressure: Shortage) -> u32 {
        let high = match rule {
            PcpRule::V5_4 => return sizing.high_min,
            PcpRule::V6_1 => sizing.high_min,
            PcpRule::V6_7 | PcpRule::V6_16 | PcpRule::Auto => sizing.clamp_high(self.high),
        };
        let lowers = rule.moves_high() && pressure != Shortage::None && high > sizing.high_min;
        match pressure {
            _ if lowers || (rule.watches_orders() && self.traffic.freed_high) => 0,
            Shortage::Reclaim => high.min(sizing.batch.saturating_mul(4)),
            Shortage::None | Shortage::BelowHigh => high,
        }
    }

    /// Base pages to give back after a free of `order`, which is counted already. 0 below the threshold,
    /// and never more than `count`.
    ///
    /// Here `high` is the effective one: under reclaim at most four batches; under v6.7 and below the high watermark
    /// `count`, if that is at least `high_min`.
    /// * v5.4: `batch`.
    /// * v6.1: everything, if an order 1 to 3 block was freed while s = `free_factor` > 0. Else `batch << s` within
    ///   `batch` and `high - batch`; s grows, to 5 at most, if `batch << s < high - batch`. (Linux 6.1 itself had no
    ///   such bound, its long-term releases do: `nr_pcp_free` in Debian's 6.1.192.)
    /// * v6.7: `count`, at most 32 batches, if this block and the one freed before it have orders 1 to 3, a batch or
    ///   more was freed in a row before it, and `count` is at least a batch; `high` then falls by 32 batches. Else,
    ///   with r = `free_count` ([`PcpRule::Auto`]: at most 32 batches): r within `batch` and `high - batch`. Under
    ///   pressure `high` first falls by `max(r, batch)`. Without pressure, `high` becomes at least `r + batch` for the
    ///   next time, so that as much can be freed in a row again without the zone. `high` never falls below `high_min`.
    ///
    ///   (Linux demands a batch only if a CPU's part of the last cache exceeds three batches, `PCPF_FREE_HIGH_BATCH`:
    ///   it does on the machines that matter here.)
    /// * v6.16: like v6.7, but a batch and half of `high_min` must have been freed before.
    /// * v6.1 and v6.7: 1 if `high < batch` (the boot set).
    ///
    /// O(1).
    #[must_use]
    pub fn drain(self, rule: PcpRule, sizing: Sizing, order: Order, pressure: Shortage) -> (Self, u32) {
        let Sizing { batch, high_min, .. } = sizing;
        let count = self.traffic.count;
        let quota = |high: u32, amount: u32| match high {
            // Where the bounds cross the upper one applies, but a drain that is due moves at least one page.
            _ if high >= batch => amount.max(batch).min(high - batch).max(1).min(count),
            _ => 1.min(count),
        };
        match rule {
            PcpRule::V5_4 => (self, if count >= high_min { batch.min(count) } else { 0 }),
            PcpRule::V6_1 => {
                let high = self.threshold(rule, sizing, pressure);
                if self.traffic.drains_all(order) {
                    return (self, count);
                }
                if count < high {
                    return (self, 0);
                }
                let factor = self.traffic.free_factor;
                let amount = scaled(batch, factor);
                // The bound is that of the long-term releases of 6.1; 6.1 itself had none.
                let grows = high >= batch && amount < high - batch && factor < MAX_SCALE;
                let traffic = if grows {
                    Traffic { free_factor: factor.saturating_add(1), ..self.traffic }
                } else {
                    self.traffic
                };
                (Self { traffic, ..self }, quota(high, amount))
            }
            PcpRule::V6_7 | PcpRule::V6_16 | PcpRule::Auto => {
                let most = scaled(batch, MAX_SCALE);
                let mut next = self.resized(sizing);
                if rule.watches_orders() {
                    next.traffic.freed_high = is_small_high(order);
                    // If the count had reached its limit before this free, the difference is still more than a batch.
                    let before = self.traffic.free_count.saturating_sub(order.pages() as u32);
                    let in_a_row = self.traffic.freed_high && is_small_high(order);
                    let enough =
                        if rule == PcpRule::V6_16 { batch.saturating_add(high_min / 2) } else { batch };
                    if in_a_row && before >= enough && count >= batch {
                        next.high = next.high.saturating_sub(most).max(high_min);
                        return (next, count.min(most));
                    }
                }
                let run = match rule {
                    PcpRule::Auto => self.traffic.free_count.min(most),
                    _ => self.traffic.free_count,
                };
                if pressure != Shortage::None {
                    next.high = next.high.saturating_sub(run.max(batch)).max(high_min);
                }
                let high = match pressure {
                    Shortage::Reclaim => next.high.min(batch.saturating_mul(4)),
                    Shortage::BelowHigh if sizing.is_tuned() => count.max(high_min),
                    Shortage::None | Shortage::BelowHigh => next.high,
                };
                if pressure == Shortage::None && sizing.is_tuned() && count >= high {
                    next.high = sizing.clamp_high(next.high.max(run.saturating_add(batch)));
                }
                (next, if count >= high { quota(high, run) } else { 0 })
            }
        }
    }

    /// The periodic tick (v6.7): lets the lists of an idle CPU shrink. Returns the base pages to give back.
    ///
    /// `high = max(count - 32·batch, high - high/8, high_min)` while it is above `high_min`, within the bounds; then
    /// everything above `high` drains. The other rules have no tick. O(1).
    #[must_use]
    pub fn tick(self, rule: PcpRule, sizing: Sizing) -> (Self, u32) {
        if !rule.moves_high() {
            return (self, 0);
        }
        let mut next = self.resized(sizing);
        let count = self.traffic.count;
        if next.high > sizing.high_min {
            let kept = count.saturating_sub(scaled(sizing.batch, MAX_SCALE));
            next.high = sizing.clamp_high(kept.max(next.high - next.high / 8));
        }
        (next, count.saturating_sub(next.high))
    }
}

/// Order-0 pages that a v5.4 drain of `count` pages takes from each of the three type lists, which hold `held` pages.
/// O(count).
///
/// The lists take turns, starting with the second; each may give one page more than the one before it, and a turn at an
/// empty list counts. When two in a row were empty, the third gives all the remaining pages.
#[must_use]
pub fn round_robin(held: [u32; 3], count: u32) -> [u32; 3] {
    let mut taken = [0; 3];
    let mut left = count.min(held.iter().fold(0, |sum, &n| sum.saturating_add(n)));
    let (mut list, mut may_take) = (0, 0);
    while left > 0 {
        may_take += 1;
        list = (list + 1) % 3;
        if taken[list] == held[list] {
            continue;
        }
        if may_take == 3 {
            may_take = left;
        }
        let now = may_take.min(left).min(held[list] - taken[list]);
        taken[list] += now;
        left -= now;
        may_take = 0;
    }
    taken
}

/// Division of the base pages that all lists of a CPU may hold among the lists in use.
///
/// A list that may hold `d` blocks, and that refills and drains fill to its half, misses once in about `d²` random
/// allocations and frees of its order. If each order is requested half as often as the one below it, and the lists
/// share a number of pages, the misses are fewest when the pages of a list grow with the cube root of its block size. A
/// list of which these pages are fewer than eight blocks takes no share from the others: it would leave little to them,
/// and have few blocks itself.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Base pages that all lists may hold.
    pub(crate) pages: u32,
    /// Sum of the weights of the lists that take a share from the others.
    weights: u32,
}

impl Shares {
    /// `16 · 2^(k/3)`, by order.
    const WEIGHTS: [u32; NR_ORDERS] = [16, 20, 25, 32, 40, 51, 64, 81, 102, 128, 161];

    /// Shares of `pages`, for lists in use of these orders. O(lists).
    #[must_use]
    pub fn new(pages: u32, used: impl Iterator<Item = Order>) -> Self {
        let mut shares = Self { pages, weights: 0 };
        for order in used {
            shares.weights += shares.taken(order);
        }
        shares
    }

    /// In one word: the pages in the lower half.
    pub(crate) const fn pack(self) -> u64 {
        (self.weights as u64) << 32 | self.pages as u64
    }

    /// Reads a packed word.
    pub(crate) const fn unpack(word: u64) -> Self {
        Self { pages: word as u32, weights: (word >> 32) as u32 }
    }

    /// Weight that a list of an order takes from the others.
    const fn taken(self, order: Order) -> u32 {
        if self.pages >> order.get() >= 8 { Self::WEIGHTS[order.index()] } else { 0 }
    }

    /// Base pages of one list; `is_used`: it is one of the lists in use. O(1).
    #[must_use]
    pub const fn of(self, order: Order, is_used: bool) -> u32 {
        let weight = Self::WEIGHTS[order.index()];
        let others = self.weights - if is_used { self.taken(order) } else { 0 };
        (self.pages as u64 * weight as u64 / (others + weight) as u64) as u32
    }
}

/// `batch << factor`, at most `u32::MAX`.
fn scaled(batch: u32, factor: u8) -> u32 {
    let wide = u64::from(batch) << factor.min(31);
    wide.min(u64::from(u32::MAX)) as u32
}

#[cfg(test)]
mod tests;
