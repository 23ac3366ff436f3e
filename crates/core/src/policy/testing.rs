//! What unit tests of policies and of their users share.

use super::pcp::{PcpRule, Traffic, is_small_high};
use crate::units::Order;

/// What the lists do to these counts, as plain numbers.
impl Traffic {
    /// `pages` left the lists for a caller, also after a refill.
    pub(crate) const fn on_alloc(self, pages: u32) -> Self {
        Self {
            count: self.count - pages,
            free_count: self.free_count / 2,
            free_factor: self.free_factor / 2,
            ..self
        }
    }

    /// `pages` came from a caller.
    pub(crate) const fn on_free(self, rule: PcpRule, batch: u32, pages: u32) -> Self {
        let counts = self.free_count < rule.most_counted(batch);
        Self {
            count: self.count + pages,
            free_count: if counts { self.free_count.saturating_add(pages) } else { self.free_count },
            alloc_factor: self.alloc_factor / 2,
            ..self
        }
    }

    /// A refill put `pages` onto the lists.
    pub(crate) const fn refilled(self, pages: u32) -> Self {
        Self { count: self.count + pages, ..self }
    }

    /// A drain took `pages` off the lists.
    pub(crate) const fn drained(self, pages: u32) -> Self {
        Self { count: self.count - pages, ..self }
    }

    /// Whether a free of `order`, already counted, has to ask [`Tuning::drain`](super::pcp::Tuning::drain).
    pub(crate) const fn needs_drain(self, rule: PcpRule, threshold: u32, order: Order) -> bool {
        self.count >= threshold || self.drains_all(order) || (rule.watches_orders() && is_small_high(order))
    }
}

/// A small generator, so that long histories repeat exactly.
pub(crate) struct Xorshift(pub(crate) u64);

impl Xorshift {
    /// The next number.
    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// The next number, reduced to below `n`.
    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
