//! What every allocation and free of a CPU updates.

use crate::units::{COSTLY_ORDER, Order};

/// The page count of one CPU's lists and the history of their traffic.
///
/// | field | changed by | read by |
/// |---|---|---|
/// | `count` | all | all |
/// | `free_count` | free; halves on an allocation | v6.7 |
/// | `alloc_factor` | refill; halves on a free | v6.7 |
/// | `free_factor` | drain; halves on an allocation | v6.1 |
///
/// Every rule reads only its own fields, and v5.4 none but `count`; so both updates do the same for all
/// rules and need not know the rule, nor branch. The lists themselves keep the fields in three words and
/// update them as [`on_alloc`](Self::on_alloc) and [`on_free`](Self::on_free) say.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Traffic {
    /// Base pages held.
    pub count: u32,
    /// Base pages freed in a row: an allocation halves it.
    pub free_count: u32,
    /// A v6.7 refill of order 0 asks for `batch << alloc_factor`.
    pub alloc_factor: u8,
    /// A v6.1 drain gives back `batch << free_factor`, within bounds.
    pub free_factor: u8,
}

impl Traffic {
    /// No page and no history.
    pub const NONE: Self = Self { count: 0, free_count: 0, alloc_factor: 0, free_factor: 0 };

    /// `pages` left the lists for a caller. Counts the allocation that follows a refill, too. `count` must
    /// be at least `pages`. O(1).
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

    /// `pages` came back from a caller. O(1).
    #[must_use]
    pub const fn on_free(self, pages: u32) -> Self {
        Self {
            count: self.count + pages,
            free_count: self.free_count.saturating_add(pages),
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
    /// follow one another (v6.1).
    #[must_use]
    pub const fn needs_drain(self, threshold: u32, order: Order) -> bool {
        self.count >= threshold || self.drains_all(order)
    }

    /// v6.1: an order 1 to 3 block freed after a drain and no allocation since. `free_factor` is 0 under
    /// the other rules.
    pub(super) const fn drains_all(self, order: Order) -> bool {
        0 < order.get() && order.get() <= COSTLY_ORDER.get() && self.free_factor > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_halve_and_frees_add() {
        let start = Traffic { count: 100, free_count: 9, alloc_factor: 5, free_factor: 3 };
        let expected = Traffic { count: 98, free_count: 4, alloc_factor: 5, free_factor: 1 };
        assert_eq!(start.on_alloc(2), expected);
        let expected = Traffic { count: 102, free_count: 11, alloc_factor: 2, free_factor: 3 };
        assert_eq!(start.on_free(2), expected);
        assert_eq!(Traffic { free_count: u32::MAX, ..start }.on_free(8).free_count, u32::MAX);
        assert_eq!(start.refilled(8).drained(8), start);
    }
}
