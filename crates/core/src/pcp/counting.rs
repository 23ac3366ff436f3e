//! Counts of the lists: pages held, pages freed recently, and the point at which a drain is due.
//!
//! # If hits count
//! Linux changes a count at each allocation and free, and so do its presets. `level` holds two numbers: from bit
//! [`ROOM`] on the pages that are missing until the next drain, less one; below that the count at which a drain is due.
//! So a free changes one word, and its sign tells whether to drain. `freed` holds the base pages freed, halved by each
//! allocation; its top byte is the drain scale of the v6.1 rule, which an allocation halves, too. The lowest bit of the
//! scale then moves into the page count as its top bit: no rule reads both.
//!
//! # If hits do not count
//! A hit changes only its list. A slow call computes the pages on lists when it needs them: the differences of top and
//! bottom, summed over the lists in `used`.
//!
//! Each list in `used` may hold its *share* of `high`, which grows with the size of its blocks (see [`Shares`]).
//! A free that finds the list at its share, which is its *ceiling*, drains half of it; an allocation that finds it
//! empty refills half of it. So no list empties another one, and all of them together hold at most `high`, but for one
//! block each: a list may hold one at any fullness, so that a pair of calls hits. Not so of orders 4 to 8: calls of
//! such a list whose share is less than a block, and that is empty, go past it.
//!
//! A refill raises `high` by the pages that it brings, up to the bound that the free memory sets; a tick lowers it by
//! an eighth. `level` holds the present division: it changes when a list comes into use, or when it divides more than
//! `high`, or less than seven eighths. Only then the ceilings of all lists change; otherwise a slow call opens its own
//! list only.
//!
//! Where every free is a slow call, because a pageblock of the zone is isolated or memory is poisoned, the ceiling is
//! one that no hit is below; a slow call tells from it whether the list is at its share.
//!
//! A list that is not in `used` is empty, and shut. Empty lists leave `used` when `high` has changed so far, and at one
//! in [`AGE`] refills. Not when another list comes into use: of many lists most are empty now and then, and each would
//! bring a division when it leaves and when it comes.
//!
//! Where lists of idle CPUs can be drained, what lists may hold is divided by the CPUs whose lists may hold pages of
//! the zone: its `sharers`. A CPU is one of them from its first refill, or its first free, on, until all of its lists
//! are drained; from then on they are shut, so that its next call is slow. A CPU that another one joins notices at its
//! next slow call: until then its lists may hold what they held. Elsewhere it is divided by all CPUs.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::{KINDS, LINUX_LISTS, LISTS, Pcp, SLOW, TYPES};
use crate::config::Config;
use crate::frame::PlaceTag;
use crate::pcp::list::{List, Missed};
use crate::platform::{Platform, Word};
use crate::policy::pcp::{PcpRule, Shares, Shortage, Sizing, Traffic, Tuning, breaks_pageblocks};
use crate::units::{COSTLY_ORDER, Migratetype, Ones, Order, PAGEBLOCK_ORDER, Pfn};

/// First bit of the room in `level`.
const ROOM: u32 = 30;
/// Bits of the threshold in `level`. A threshold above the pages of a zone is never reached.
const THRESHOLD: u64 = (1 << ROOM) - 1;
const _: () = assert!(crate::frame::MAX_ZONE_PAGES < THRESHOLD);

/// So many refills of any of the lists, and those that are empty are no longer in use.
pub(super) const AGE: u64 = 256;

/// First bit of the drain scale in `freed`.
const FREE_FACTOR: u32 = 56;
/// In `alloc_factor`, above the scale: the last free was of order 1 to 3.
const FREED_HIGH: u64 = 1 << 8;
/// Bits of the pages in `freed`. No list holds so many pages that a sum could exceed them.
const FREED_PAGES: u64 = (1 << FREE_FACTOR) - 1;

/// Packs a threshold and a count.
pub(super) fn level(threshold: u32, count: u32) -> u64 {
    let threshold = u64::from(threshold).min(THRESHOLD);
    threshold.wrapping_sub(1).wrapping_sub(u64::from(count)) << ROOM | threshold
}

/// Unpacks the count.
fn count_in(level: u64) -> i64 {
    (level & THRESHOLD).cast_signed() - 1 - (level.cast_signed() >> ROOM)
}

impl<'m, P: Platform> Pcp<'m, P> {
    /// Base pages on the lists, and set aside. A racy read, unless the caller is the owner, but never above the
    /// capacity.
    #[must_use]
    pub fn count(&self) -> u32 {
        if self.counts() {
            return count_in(self.level.load(Relaxed)) as u32;
        }
        let mut pages = self.outgoing.pages();
        for number in self.lists_used() {
            pages = pages.wrapping_add(self.list(number).len() << KINDS[number].0.get());
        }
        pages
    }

    /// Base pages of the listed blocks of the pageblock order, all types together. A racy read, unless the caller is
    /// the owner.
    #[must_use]
    pub fn huge_pages(&self) -> u32 {
        let first = LINUX_LISTS - TYPES;
        (first..LINUX_LISTS)
            .map(|list| self.list(list).len() << PAGEBLOCK_ORDER.get())
            .fold(0, u32::wrapping_add)
    }

    /// Numbers of the lists that may hold blocks.
    pub(super) fn lists_used(&self) -> Ones {
        Ones(if cfg!(feature = "lists") { self.used.load(Relaxed) } else { 0 })
    }

    /// If hits do not count: the present division of the pages that lists may hold.
    pub(super) fn shares(&self) -> Shares {
        Shares::unpack(self.level.load(Relaxed))
    }

    /// If hits do not count: most blocks of a list. Outside of orders 4 to 8 at least one, so that a pair of calls hits
    /// at any fullness; of these orders one of each on each CPU could be most of the free memory. Blocks of the
    /// pageblock order keep no pageblock from being whole: they may hold as much in addition, and without the bound by
    /// free memory.
    pub(super) fn share_of(&self, list: usize, shares: Shares) -> u32 {
        let (order, _) = KINDS[list];
        let pages = match order {
            PAGEBLOCK_ORDER => self.high_max.load(Relaxed) as u32 / self.sharers(),
            _ => shares.of(order, self.used.load(Relaxed) >> list & 1 != 0),
        };
        (pages >> order.get()).max(u32::from(!breaks_pageblocks(order)))
    }

    /// Whether a list is empty and may hold no block: its calls go past it.
    pub(super) fn is_passed(&self, list: usize) -> bool {
        breaks_pageblocks(KINDS[list].0)
            && !self.counts()
            && self.share_of(list, self.shares()) == 0
            && self.list(list).len() == 0
    }

    /// If hits do not count, and the lists of idle CPUs can be drained: CPUs that share what the lists of the zone may
    /// hold, as the owner last read; at least 1.
    pub(super) fn sharers(&self) -> u32 {
        if P::DRAINS_REMOTELY { (self.sharers.load(Relaxed) as u32).max(1) } else { 1 }
    }

    /// Whether this CPU shares what the lists of the zone may hold.
    pub(crate) fn is_sharer(&self) -> bool {
        self.sharers.load(Relaxed) != 0
    }

    /// Whether it has blocks on lists only if it [shares](Self::is_sharer). For verification.
    pub(crate) fn is_empty_without_share(&self) -> bool {
        let holds_nothing = || self.lists().all(|list| list.len() == 0);
        !self.is_drained_remotely() || self.is_sharer() || holds_nothing()
    }

    /// Whether hits count.
    #[inline(always)]
    pub(crate) fn counts(&self) -> bool {
        cfg!(feature = "settings") && self.each_call
    }

    /// A bit for each list that may hold blocks.
    pub(super) fn drainable(&self) -> u64 {
        match (self.counts(), self.more) {
            (false, _) => self.used.load(Relaxed),
            (true, None) => (1 << LINUX_LISTS) - 1,
            (true, Some(_)) => (1 << LISTS) - 1,
        }
    }

    /// If hits do not count: records that a list may hold blocks from now on; if that is news, the lists in use divide
    /// what they may hold once more.
    pub(super) fn note_used(&self, list: usize) {
        let used = self.used.load(Relaxed);
        if used >> list & 1 == 0 {
            self.used.store(used | 1 << list, Relaxed);
            self.open_all();
        }
    }

    pub(super) fn tuning(&self) -> Tuning {
        let freed = self.freed.load(Relaxed);
        let history = self.alloc_factor.load(Relaxed);
        Tuning {
            traffic: Traffic {
                count: self.count(),
                free_count: (freed & FREED_PAGES).min(u64::from(u32::MAX)) as u32,
                alloc_factor: history as u8,
                free_factor: (freed >> FREE_FACTOR) as u8,
                freed_high: history & FREED_HIGH != 0,
            },
            high: self.high(),
        }
    }

    /// Stores the new state of a rule: history and `high`, not the count.
    pub(super) fn set_tuning(&self, config: &Config, sizing: Sizing, pressure: Shortage, tuning: Tuning) {
        let Traffic { free_count, alloc_factor, free_factor, freed_high, .. } = tuning.traffic;
        let history = u64::from(alloc_factor) | if freed_high { FREED_HIGH } else { 0 };
        self.freed.store(u64::from(free_count) | u64::from(free_factor) << FREE_FACTOR, Relaxed);
        self.alloc_factor.store(history, Relaxed);
        self.high.store(u64::from(tuning.high), Relaxed);
        let threshold = match history {
            0 => tuning.threshold(config.experiment.pcp_rule, sizing, pressure),
            _ => 0,
        };
        self.level.store(level(threshold, self.count()), Relaxed);
    }

    /// If hits count: counts pages that came, or left if negative, and returns the level.
    #[inline(always)]
    pub(super) fn count_pages(&self, change: i64) -> i64 {
        if !self.each_call {
            return 0;
        }
        let level = self.level.load(Relaxed).wrapping_sub((change << ROOM).cast_unsigned());
        self.level.store(level, Relaxed);
        level.cast_signed()
    }

    // ---- hits ----------------------------------------------------------------------------------------------

    /// A hit, if hits do not count: takes the block at the head of a list. Touches the list and its slot only.
    #[inline(always)]
    pub(crate) fn take(&self, order: Order, migratetype: Migratetype) -> Result<Pfn, Option<Missed>> {
        let list = self.hit_list(order, migratetype).ok_or(None)?;
        self.enter();
        let taken = list.take().map_err(Some);
        self.leave();
        taken
    }

    /// A hit, if hits count or set bits, for a caller that [`take`](Self::take) has returned its reads to.
    #[inline]
    pub(crate) fn take_counted(&self, order: Order, migratetype: Migratetype, seen: Missed) -> Option<Pfn> {
        if !cfg!(feature = "settings") || !seen.may_count() {
            return None;
        }
        let list = self.hit_list(order, migratetype)?;
        if self.counts() {
            let pfn = list.take_counted(seen)?;
            self.count_taken(order);
            return Some(pfn);
        }
        self.enter();
        let taken = list.take_counted(list.seen());
        self.leave();
        taken
    }

    /// Counts a block taken from a list.
    #[inline(always)]
    pub(super) fn count_taken(&self, order: Order) {
        if self.counts() {
            self.count_pages(-(order.pages() as i64));
            self.freed.store(self.freed.load(Relaxed) >> 1, Relaxed);
        }
    }

    /// A hit, if hits do not count: puts back the block of `order` that was allocated last from one of its lists, by
    /// its head word. On `false` the state is unchanged.
    #[inline(always)]
    pub(crate) fn put_last(&self, order: Order, head: &P::Word, pfn: Pfn) -> bool {
        // A branch for each type, not an index computed from the head word: the processor predicts which list it will
        // be.
        let Some(list) = self.hit_list(order, Migratetype::Movable) else { return false };
        // Read before the head word. Of two values that it has found equal the compiler continues with the one that was
        // read first. In the other order the next allocation would wait for this block's head word, which waits for the
        // block's number, which waits for the allocation before: on an Intel processor of 2023 each pair of calls took
        // 8 ns instead of 4.
        let top = list.top();
        let place = head.load(Relaxed);
        if place == top {
            return self.put_last_on(list, top, pfn);
        }
        if PlaceTag::same_list(place, top) {
            // It left this list before others did: no other list's top names it.
            return false;
        }
        for migratetype in [Migratetype::Unmovable, Migratetype::Reclaimable] {
            let Some(list) = self.hit_list(order, migratetype) else { break };
            if place == list.top() {
                // Read once more, for the same reason.
                return self.put_last_on(list, list.top(), pfn);
            }
        }
        false
    }

    #[inline(always)]
    fn put_last_on(&self, list: &List<'m, P>, top: u64, pfn: Pfn) -> bool {
        // Only now: until here the hit has relied on nothing.
        self.enter();
        let is_put = list.put_last(top, pfn);
        self.leave();
        is_put
    }

    /// A hit, if hits do not count: puts a block that the caller may free at the head of a list, and writes its place
    /// into its head word. On `false` the state is unchanged: the list is at its ceiling, or shut.
    #[inline(always)]
    pub(crate) fn put_hit(&self, list: &List<'m, P>, head: &P::Word, pfn: Pfn) -> bool {
        self.enter();
        let is_hit = list.is_below_ceiling();
        if is_hit {
            list.put_at(list.top(), head, pfn);
        }
        self.leave();
        is_hit
    }

    /// Whether `pfn` was the last block allocated from a list, as far as the list records it.
    pub(crate) fn took_last(&self, order: Order, migratetype: Migratetype, pfn: Pfn) -> bool {
        self.list_of(order, migratetype).is_some_and(|number| self.list(number).took_last(pfn))
    }

    /// Sets aside a block that the caller may free, and writes its new head word, if it has one. On `false` the state
    /// is unchanged: there is no room, or the gate is shut.
    #[inline(always)]
    pub(crate) fn set_aside(&self, head: Option<&P::Word>, pfn: Pfn, order: Order) -> bool {
        self.enter();
        let word = self.outgoing.push(pfn, order);
        if let Some(word) = word {
            self.count_pages(order.pages() as i64);
            if let Some(head) = head {
                // Release: a CPU that sees this sees the block set aside.
                head.store(word, Release);
            }
        }
        self.leave();
        word.is_some()
    }

    /// Whether blocks are set aside, for the zone.
    pub(crate) fn has_aside(&self) -> bool {
        self.outgoing.pages() > 0
    }

    /// Counts a block that was put onto a list. Returns whether the owner must drain now.
    #[inline(always)]
    pub(crate) fn count_freed(&self, order: Order) -> bool {
        let freed = self.freed.load(Relaxed);
        // Under such a rule no scale is above the pages.
        if !self.watches_orders || freed < u64::from(PcpRule::V6_16.most_counted(self.sizing().batch)) {
            self.freed.store(freed.wrapping_add(order.pages()), Relaxed);
        }
        // After repeated frees of orders 1 to 3 the v6.1 rule drains everything; later rules drain more.
        let is_small_high = order > Order::ZERO && order <= COSTLY_ORDER;
        let looks = is_small_high && (self.watches_orders || freed >> FREE_FACTOR != 0);
        self.count_pages(order.pages() as i64) < 0 || looks
    }

    /// Halves the refill scale, as each free does; for a free that was counted already.
    pub(super) fn halve_alloc_factor(&self) {
        let history = self.alloc_factor.load(Relaxed);
        self.alloc_factor.store((history & !FREED_HIGH) >> 1 | history & FREED_HIGH, Relaxed);
    }

    // ---- ceilings ------------------------------------------------------------------------------------------

    /// Lets frees hit a list, if there is no request. Called by the owner after the list's bottom has moved, after a
    /// refill, after a request was served, and after a failed hit.
    pub(super) fn open(&self, number: usize) {
        if self.counts() {
            let list = self.list(number);
            if !self.may_hit() || (list.open_to_end() && !self.may_hit()) {
                list.shut();
            }
            return;
        }
        match self.used.load(Relaxed) >> number & 1 {
            0 => self.note_used(number),
            _ => self.open_to_share(number, self.shares()),
        }
    }

    /// Whether another CPU requests something of the owner.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        cfg!(feature = "lists") && self.request.load(Relaxed) & !SLOW != 0
    }

    /// Whether frees may hit: the owner is asked for nothing, and need not check the pageblocks of blocks.
    #[inline]
    pub(super) fn may_hit(&self) -> bool {
        !cfg!(feature = "lists") || self.request.load(Relaxed) == 0
    }

    /// If hits do not count: whether a slow free finds room on a list below its ceiling, and no request.
    pub(super) fn has_room(&self, list: &List<'m, P>) -> bool {
        list.has_room(|| self.request.load(Relaxed) & SLOW != 0)
    }

    /// Lets frees hit all lists, if there is no request. If hits do not count: all lists in use, each up to its share.
    pub(crate) fn open_all(&self) {
        if self.counts() {
            // Also the correct ones are exchanged.
            self.lists_in_use().for_each(|list| {
                list.ceiling.swap(list.end(), AcqRel);
            });
            if !self.may_hit() {
                self.lists_in_use().for_each(List::shut);
            }
            return;
        }
        self.divide(self.shares().pages);
    }

    /// If hits do not count: divides what the lists may hold among those in use, and lets frees hit each of these up to
    /// its share.
    fn divide(&self, pages: u32) {
        let shares = Shares::new(pages, self.lists_used().map(|list| KINDS[list].0));
        self.level.store(shares.pack(), Relaxed);
        self.lists_used().for_each(|number| self.open_to_share(number, shares));
    }

    /// Like [`divide`](Self::divide), without the lists that are empty: they are in use again when blocks come.
    pub(super) fn divide_anew(&self, pages: u32) {
        for number in self.lists_used() {
            let list = self.list(number);
            if list.len() == 0 {
                list.shut();
                self.used.store(self.used.load(Relaxed) & !(1 << number), Relaxed);
            }
        }
        self.divide(pages);
    }

    fn open_to_share(&self, number: usize, shares: Shares) {
        let list = self.list(number);
        let more = self.share_of(number, shares).saturating_sub(list.len());
        let place = (list.top() + u64::from(more)).min(list.end());
        let asked = self.request.load(Relaxed);
        let ceiling = if asked & SLOW == 0 { place } else { List::<P>::slow_ceiling(place) };
        if asked & !SLOW != 0 || (list.open(ceiling) && self.request.load(Relaxed) != asked) {
            list.shut();
        }
    }
}

const _: () = assert!(LISTS <= 64);

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::super::{Most, slots_per_pcp};
    use super::*;
    use crate::config::{Experiment, PcpOrders};
    use crate::platform::machine::Machine;
    use crate::policy::testing::Xorshift;
    use crate::units::CpuId;

    /// Random allocations and frees under each rule of the presets, whose hits count in packed words: the words say
    /// what the rule's own numbers say, and a free must look exactly where the rule says so.
    #[test]
    fn packed_counts_are_those_of_the_rule() {
        let sizing = Sizing { batch: 4, high_min: 16, high_max: 64 };
        for rule in [PcpRule::V5_4, PcpRule::V6_1, PcpRule::V6_7, PcpRule::V6_16] {
            let experiment =
                Experiment { pcp_rule: rule, pcp_orders: PcpOrders::Zero, ..Experiment::framewright() };
            let config = Config { experiment, ..Config::linux_v6_1() };
            let most = Most { below: [64; 2], huge: [64; 2] };
            let slots: Vec<_> = (0..slots_per_pcp(&config, most)).map(|_| Word::new(0)).collect();
            let pcp: Pcp<'_, Machine> = Pcp::new(&config, CpuId(0), 0, most, &slots, None);
            pcp.resize(sizing);
            let mut random = Xorshift(3);
            let mut below = move |n: u64| random.below(n);
            let (mut state, mut threshold) = (Tuning::new(sizing), 16);
            pcp.set_tuning(&config, sizing, Shortage::None, state);
            for step in 0..50_000 {
                let order = Order::from_bits([0, 0, 0, 1, 3, 4][below(6) as usize]);
                let pages = order.pages() as u32;
                match below(12) {
                    0 => {
                        let traffic = Traffic {
                            free_count: if rule.watches_orders() { below(130) as u32 } else { 0 },
                            alloc_factor: if rule.watches_orders() { below(6) as u8 / 3 } else { 0 },
                            free_factor: if rule == PcpRule::V6_1 { below(6) as u8 } else { 0 },
                            freed_high: rule.watches_orders() && below(4) == 0,
                            ..state.traffic
                        };
                        let pressure =
                            [Shortage::None, Shortage::BelowHigh, Shortage::Reclaim][below(3) as usize];
                        state = Tuning { traffic, high: 16 + below(49) as u32 };
                        pcp.set_tuning(&config, sizing, pressure, state);
                        let is_news = traffic.alloc_factor > 0 || traffic.freed_high;
                        threshold = if is_news { 0 } else { state.threshold(rule, sizing, pressure) };
                    }
                    1..6 if state.traffic.count >= pages => {
                        pcp.count_taken(order);
                        state.traffic = state.traffic.on_alloc(pages);
                    }
                    _ => {
                        let looks = pcp.count_freed(order);
                        state.traffic = state.traffic.on_free(rule, sizing.batch, pages);
                        let expected = state.traffic.needs_drain(rule, threshold, order);
                        assert_eq!(looks, expected, "{rule:?}, {state:?}, {threshold}");
                        if looks {
                            pcp.halve_alloc_factor();
                        }
                    }
                }
                let found = pcp.tuning();
                // Neither rule reads the other's numbers, which share a word.
                let free_count =
                    if rule.watches_orders() { found.traffic.free_count } else { state.traffic.free_count };
                let traffic = Traffic { free_count, ..found.traffic };
                assert_eq!((traffic, found.high), (state.traffic, state.high), "{rule:?}, step {step}");
                assert_eq!(pcp.count(), state.traffic.count);
                // Enough is enough.
                if state.traffic.count > 400 {
                    pcp.count_pages(-300);
                    state.traffic = state.traffic.drained(300);
                }
            }
        }
    }
}
