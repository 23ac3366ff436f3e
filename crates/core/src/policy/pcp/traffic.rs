//! State that every allocation and free of a CPU updates.

use super::PcpRule;
use crate::units::{COSTLY_ORDER, Order};

/// Page count of one CPU's lists, and the history of their traffic.
///
/// | field | changed by | read by |
/// |---|---|---|
/// | `count` | all | all |
/// | `free_count` | free; halves on an allocation | v6.7 |
/// | `alloc_factor` | refill; halves on a free | v6.7 |
/// | `free_factor` | drain; halves on an allocation | v6.1 |
/// | `freed_high` | free, in [`Tuning::drain`](super::Tuning::drain) | v6.7 |
///
/// Every rule reads only its own fields, and v5.4 only `count`. The lists themselves keep the fields in three words and
/// update them like [`on_alloc`](Self::on_alloc) and [`on_free`](Self::on_free).
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

    /// `pages` left the lists for a caller. Also called for the allocation that follows a refill. `count` must be at
    /// least `pages`. O(1).
    #[must_use]
    pub const fn on_alloc(self, pages: u32) -> Self {
        debug_assert!(self.count >= pages);
        Self {
            count: self.count - pages,
            free_count: self.free_count / 2,
            free_factor: self.free_factor / 2,
            ..self
        }
    }

    /// `pages` came from a caller. `free_count` stops at [`PcpRule::most_counted`]. O(1).
    #[must_use]
    pub const fn on_free(self, rule: PcpRule, batch: u32, pages: u32) -> Self {
        let counts = self.free_count < rule.most_counted(batch);
        Self {
            count: self.count + pages,
            free_count: if counts { self.free_count.saturating_add(pages) } else { self.free_count },
            alloc_factor: self.alloc_factor / 2,
            ..self
        }
    }

    /// A refill put `pages` onto the lists. No history changes.
    #[must_use]
    pub const fn refilled(self, pages: u32) -> Self {
        Self { count: self.count + pages, ..self }
    }

    /// A drain took `pages` off the lists. No history changes.
    #[must_use]
    pub const fn drained(self, pages: u32) -> Self {
        debug_assert!(self.count >= pages);
        Self { count: self.count - pages, ..self }
    }

    /// Whether a free of `order`, already counted, has to ask [`Tuning::drain`](super::Tuning::drain): `count`
    /// reached `threshold` ([`Tuning::threshold`](super::Tuning::threshold)), or frees of small high orders
    /// follow one another (v6.1), or may begin to (v6.7).
    #[must_use]
    pub const fn needs_drain(self, rule: PcpRule, threshold: u32, order: Order) -> bool {
        self.count >= threshold || self.drains_all(order) || (rule.watches_orders() && is_small_high(order))
    }

    /// v6.1: an order 1 to 3 block freed after a drain and no allocation since. `free_factor` is 0 under
    /// the other rules.
    pub(super) const fn drains_all(self, order: Order) -> bool {
        is_small_high(order) && self.free_factor > 0
    }
}

/// Orders 1 to 3: those of which many on the lists fragment memory.
pub(super) const fn is_small_high(order: Order) -> bool {
    0 < order.get() && order.get() <= COSTLY_ORDER.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_halve_and_frees_add() {
        let start = Traffic { count: 100, free_count: 9, alloc_factor: 5, free_factor: 3, freed_high: true };
        let expected = Traffic { count: 98, free_count: 4, free_factor: 1, ..start };
        assert_eq!(start.on_alloc(2), expected);
        let expected = Traffic { count: 102, free_count: 11, alloc_factor: 2, ..start };
        assert_eq!(start.on_free(PcpRule::V6_1, 63, 2), expected);
        let long = Traffic { free_count: u32::MAX, ..start };
        assert_eq!(long.on_free(PcpRule::Auto, 63, 8).free_count, u32::MAX);
        assert_eq!(start.refilled(8).drained(8), start);
    }

    #[test]
    fn v6_7_counts_until_32_batches_were_freed_in_a_row() {
        // The last one that counts may go beyond.
        for (before, after) in [(0, 4), (2012, 2016), (2015, 2019), (2016, 2016), (2019, 2019)] {
            let traffic = Traffic { free_count: before, ..Traffic::NONE };
            assert_eq!(traffic.on_free(PcpRule::V6_7, 63, 4).free_count, after);
            assert_eq!(traffic.on_free(PcpRule::Auto, 63, 4).free_count, before + 4);
        }
    }
}
