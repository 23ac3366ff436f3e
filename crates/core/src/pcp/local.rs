//! Slow calls of per-CPU lists: refill, drain, direct allocation and free, checks.

use core::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::buddy::{Buddy, Placement, Sink, Wanted};
use crate::frame::{DirectMap, FrameMap, FrameUser, State};
use crate::policy::Generation;
use crate::policy::pcp::{PcpRule, Shortage, Tuning, round_robin, share_of_free};
use crate::policy::watermark::boost_after_steal;
use crate::sync::Waiter;
use crate::zone::{Hold, Zone};

/// One CPU's lists of one zone, with the zone that they are refilled from, for slow calls.
pub(crate) struct Local<'a, 'm, P: Platform, M> {
    pub(crate) pcp: &'a Pcp<'m, P>,
    /// The lists of all CPUs and zones: one row per zone, one column per CPU.
    pub(crate) pcps: &'m [Pcp<'m, P>],
    pub(crate) zone: &'a Zone<'m, P>,
    pub(crate) frames: &'a FrameMap<'m, P, M>,
    pub(crate) waiter: Waiter<'a, P>,
    pub(crate) config: &'a Config,
    pub(crate) direct_map: Option<DirectMap>,
    /// Whether other types give whole pageblocks only (see [`Config::avoid_fragmentation`]).
    pub(crate) avoid_fragmentation: bool,
    /// Whether a steal that fragments boosts the marks: only if background reclaim is there to work it off.
    pub(crate) boosts: bool,
    /// The owner's turn; `None` if an outer slow call has it, or a remote drain.
    pub(crate) turn: Option<Turn<'a, 'm, P>>,
    /// Base pages that a refill may take besides one block.
    pub(crate) beyond: u64,
}

impl<'m, P: Platform, M: FrameUser> Local<'_, 'm, P, M> {
    /// Serves the requests of other CPUs. Blocks that are not drained stay.
    pub(crate) fn answer(&self) {
        let asked = if cfg!(feature = "lists") { self.pcp.request.load(Relaxed) } else { 0 };
        if asked & (REQUEST_DRAIN | REQUEST_RESIZE | REQUEST_TICK) == 0 {
            return;
        }
        if asked & REQUEST_RESIZE != 0 {
            // Cleared first: a size that is set from now on is a new request.
            self.pcp.clear(REQUEST_RESIZE);
            if self.pcp.counts() {
                let sizing = self.pcp.sizing();
                let tuning = self.pcp.tuning().resized(sizing);
                self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
            } else {
                self.set_high(self.pcp.high());
            }
        }
        if asked & REQUEST_TICK != 0 {
            self.pcp.clear(REQUEST_TICK);
            self.shrink();
        }
        if asked & REQUEST_DRAIN != 0 {
            self.give_all_back();
            // Cleared last: the CPU that waits for this finds the pages in the zone.
            self.pcp.clear(REQUEST_DRAIN);
        }
        self.pcp.open_all();
    }

    /// The size of the lists. Under [`PcpRule::Auto`] at most this CPU's share of the free memory.
    pub(super) fn sizing(&self) -> Sizing {
        let sizing = self.pcp.sizing();
        if !matches!(self.config.experiment.pcp_rule, PcpRule::Auto) || !sizing.is_tuned() {
            return sizing;
        }
        // A larger drain is not cheaper if blocks merge one by one under the lock: with free lists all CPUs share.
        let (sharers, cpus) = match self.frames.has_maps() {
            true if P::DRAINS_REMOTELY => (self.pcp.sharers(), self.pcp.sharers()),
            true => (1, self.zone.cpus),
            false => (1, self.waiter.nodes.len() as u32),
        };
        let of_free = share_of_free(self.zone.free_pages(), cpus, self.config.pcp_free_part);
        sizing.within(of_free.min(sizing.high_max / sharers))
    }

    /// If hits do not count: shares what the lists of the zone may hold, from now on.
    pub(super) fn take_share(&self) {
        if !P::DRAINS_REMOTELY {
            return;
        }
        let before = self.pcp.sharers.load(Relaxed);
        let now = match before {
            0 => self.zone.sharers.fetch_add(1, Relaxed) + 1,
            _ => self.zone.sharers.load(Relaxed),
        };
        if now != before {
            self.pcp.sharers.store(now, Relaxed);
        }
    }

    /// After a drain of all lists: leaves their share to the CPUs that use the zone.
    fn give_share_up(&self) {
        if self.pcp.is_drained_remotely() && self.pcp.is_sharer() {
            self.pcp.lists_used().for_each(|number| self.pcp.list(number).shut());
            self.pcp.used.store(0, Relaxed);
            self.pcp.sharers.store(0, Relaxed);
            self.zone.sharers.fetch_add(u64::MAX, Relaxed);
        }
    }

    /// The list of an order and an ordinary type, if it may hold blocks.
    pub(super) fn list(&self, order: Order, migratetype: Migratetype) -> Option<usize> {
        if !migratetype.is_ordinary() {
            return None;
        }
        let number = self.pcp.list_of(order, migratetype)?;
        if self.pcp.list(number).capacity() > 0 { Some(number) } else { None }
    }

    /// Takes a block that is on the list already, after a hit found none. Serves requests first, as every slow call
    /// does.
    pub(crate) fn take_listed(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        self.answer();
        let listed = self.pop(self.list(order, migratetype)?, order);
        if listed.is_none() {
            // A reclaimer may have freed the pages that this call needs; and marks are checked next.
            self.give_back();
        }
        listed
    }

    /// Allocates after [`take_listed`](Self::take_listed) has found nothing: refills the list and takes a block from
    /// it, or takes a block directly if the list has no room for one.
    pub(crate) fn take_new(&self, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        let Some(number) = self.list(order, migratetype) else {
            return self.take_directly(order, migratetype, migratetype);
        };
        if self.pcp.is_passed(number) {
            let taken = self.take_directly(order, migratetype, migratetype);
            if taken.is_some() {
                // As after a refill: the list may have room for the next block.
                self.take_share();
                self.raise_high(order.pages());
            }
            return taken;
        }
        // All blocks of a refill may be bad; only an empty refill means that the zone has none.
        while self.refill(number, migratetype) > 0 {
            if let Some(pfn) = self.pop(number, order) {
                return Some(pfn);
            }
        }
        None
    }

    /// Allocates a block past the lists, from the free lists of type `from`, as a block of type `asked`.
    pub(crate) fn take_directly(&self, order: Order, from: Migratetype, asked: Migratetype) -> Option<Pfn> {
        let mut block = [Pfn(0)];
        (self.alloc_many(order, from, asked, &mut block) > 0).then_some(block[0])
    }

    /// The first intact block of a list.
    fn pop(&self, number: usize, order: Order) -> Option<Pfn> {
        let list = self.pcp.list(number);
        while let Some(pfn) = list.pop() {
            self.pcp.count_taken(order);
            if self.is_intact(pfn, order) {
                self.frames.leave_list(pfn, order);
                if P::DRAINS_REMOTELY {
                    // A remote drain has shut it, before its words were given away or after it had lost its turn.
                    list.open_floor();
                }
                return Some(pfn);
            }
        }
        None
    }

    /// Whether the poison pattern of a block is unchanged. If not, the block is quarantined.
    pub(super) fn is_intact(&self, pfn: Pfn, order: Order) -> bool {
        match self.direct_map {
            Some(map) if self.config.poison && map.find_unpoisoned(pfn, order).is_some() => {
                bump(&self.pcp.events.poison_overwrites, 1);
                self.quarantine(pfn, order);
                false
            }
            _ => true,
        }
    }

    pub(super) fn quarantine(&self, pfn: Pfn, order: Order) {
        self.frames.set_state(pfn, order, State::Quarantined { order });
        bump(&self.pcp.events.bad_pages, order.pages());
    }

    pub(crate) fn wanted(&self, order: Order, migratetype: Migratetype) -> Wanted {
        let may_use_cma = migratetype == Migratetype::Movable;
        Wanted {
            order,
            migratetype,
            may_use_cma,
            may_fall_back: true,
            generation: self.config.experiment.fallback,
            avoid_fragmentation: self.avoid_fragmentation,
        }
    }

    pub(super) fn record(&self, hold: Hold) {
        if cfg!(feature = "mobility") && hold.is_unmarked {
            self.let_frees_hit();
        }
        let events = &self.pcp.events;
        bump(&events.lock_acquisitions, 1);
        if hold.waited {
            bump(&events.lock_waits, 1);
        }
        if self.config.experiment.lock_timing {
            bump(&events.lock_wait_ns, hold.wait_ns);
            bump(&events.lock_hold_ns, hold.hold_ns);
        }
    }

    /// After the last bad frame in use of the zone went out of use: frees of all CPUs may hit again.
    #[cold]
    fn let_frees_hit(&self) {
        let cpus = self.waiter.nodes.len();
        let of_zone = &self.pcps[self.zone.id().index() * cpus..][..cpus];
        // Checked again under the lock: another CPU may have found the next bad frame.
        let open = |buddy: &mut Buddy<'_, 'm, P, M>| shut_or_open(of_zone, buddy.has_special_pageblocks());
        let _hold = self.zone.with_section(0, self.frames, self.waiter, open);
    }

    /// Takes up to `count` blocks for `sink`, in one hold of the lock of the section that would miss them least.
    /// Returns the blocks taken.
    pub(super) fn take_by(&self, wanted: Wanted, count: u64, sink: &mut impl Sink) -> u64 {
        // One copy of the store's code for all receivers is smaller, one for each receiver faster.
        #[cfg(all(feature = "lists", not(feature = "settings")))]
        let sink: &mut dyn Sink = sink;
        self.in_best_section(&wanted, |n, wanted| {
            let zone = self.zone;
            let balance = self.frames.has_maps().then(|| (zone.free_pages(), zone.free_cma_pages()));
            self.in_section(n, |buddy| {
                let boosts =
                    self.boosts && self.config.keep_marks && self.config.experiment.marks == Generation::V6_1;
                let fragmenting = if boosts { buddy.counts().fragmenting } else { 0 };
                let taken = buddy.take(wanted, count, balance, sink);
                if boosts {
                    (fragmenting..buddy.counts().fragmenting).for_each(|_| self.boost_marks());
                }
                taken
            })
        })
    }

    /// Calls `take` with the best section for a request, and what to take there; again while a section has shown more
    /// than it has. Returns the result of the last call.
    pub(crate) fn in_best_section(&self, wanted: &Wanted, mut take: impl FnMut(usize, Wanted) -> u64) -> u64 {
        let from = if self.zone.cut.is_cut() { self.pcp.section.load(Relaxed) as usize } else { 0 };
        for _ in 0..2 * self.zone.cut.sections() - 1 {
            let Some((n, wanted)) = self.zone.section_for(wanted, from) else { break };
            let taken = take(n, wanted);
            if taken > 0 {
                if n != from {
                    self.pcp.section.store(n as u64, Relaxed);
                }
                return taken;
            }
        }
        0
    }

    /// After a steal that fragments: keeps more memory free for a while, so that the next request finds blocks of its
    /// own type. Under the zone lock.
    fn boost_marks(&self) {
        let pressure = &self.zone.pressure;
        let (high, managed) = (pressure.marks().high, self.zone.managed_pages());
        let boost = boost_after_steal(pressure.boost(), high, managed, self.config.boost_factor);
        if boost != pressure.boost() {
            pressure.set_boost(boost);
            pressure.note_boosted();
        }
    }

    /// Puts a block onto the list of its order and its pageblock's type, which drains if it was at its share; back to
    /// the zone if there is no such list. The block is `Taken`, and the caller no longer owns it.
    #[inline(never)]
    pub(crate) fn put(&self, pfn: Pfn, order: Order, migratetype: Migratetype) {
        let Some(number) = self.pcp.list_of(order, migratetype) else { return self.free_direct(pfn, order) };
        let list = self.pcp.list(number);
        let is_full = !self.pcp.counts() && !self.pcp.has_room(list);
        if is_full && self.pcp.is_passed(number) {
            return self.free_direct(pfn, order);
        }
        let Some(place) = self.push(number, pfn) else { return self.free_direct(pfn, order) };
        if self.pcp.counts() {
            self.pcp.open(number);
            let is_due = self.pcp.count_freed(order) || !self.pcp.may_hit();
            self.frames.list_place(pfn, order, place);
            if is_due {
                self.after_counted_free(order, number);
            }
            return;
        }
        self.frames.list_place(pfn, order, place);
        if is_full {
            self.pcp.note_used(number);
            self.give_half_back(number);
        }
    }

    /// Pushes a block, and drains half of the list if all of its slots are in use. Returns the block's place; `None` if
    /// the list has no slots.
    fn push(&self, number: usize, pfn: Pfn) -> Option<u64> {
        let list = self.pcp.list(number);
        list.push(pfn).or_else(|| {
            if list.capacity() == 0 {
                return None;
            }
            self.drain_one(number, if list.is_worn() { list.len() } else { list.len().div_ceil(2) });
            if list.len() == 0 {
                // It counts from 0 again.
                list.fill(0..0);
                self.pcp.open(number);
            }
            list.push(pfn)
        })
    }

    /// If hits do not count: after a free to a list that was at its share, serves requests, and drains half of the
    /// share.
    fn give_half_back(&self, number: usize) {
        self.answer();
        self.take_share();
        let (room, len) = (self.room(number), self.pcp.list(number).len());
        if len > room.blocks {
            self.give_back();
            self.drain_one(number, len.min(len - room.blocks + room.unit));
        }
        self.pcp.open(number);
    }

    /// Frees a block past the lists.
    pub(crate) fn free_direct(&self, pfn: Pfn, order: Order) {
        self.under_lock(pfn, |buddy| buddy.free(pfn, order, Placement::Likely));
        bump(&self.pcp.events.direct_frees, 1);
        bump(&self.pcp.events.direct_free_pages, order.pages());
    }

    /// If hits count: after a free of `order` to a list, drains by the rule, and serves requests.
    #[cold]
    pub(crate) fn after_counted_free(&self, order: Order, number: usize) {
        self.pcp.halve_alloc_factor();
        self.answer();
        let (sizing, tuning) = (self.sizing(), self.pcp.tuning());
        let (tuning, pages) = tuning.drain(self.config.experiment.pcp_rule, sizing, order, self.pressure());
        self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
        if pages > 0 {
            let left = u64::from(pages).saturating_sub(self.give_back());
            self.drain(left, number);
        }
    }

    /// Shortage of memory in the zone. The v5.4 rule does not read it.
    pub(super) fn pressure(&self) -> Shortage {
        match self.config.experiment.pcp_rule {
            PcpRule::V5_4 => Shortage::None,
            _ => self.zone.pressure.on_lists(),
        }
    }

    /// The periodic tick: lets lists that are little used shrink (v6.7 `decay_pcp_high`).
    pub(crate) fn tick(&self) {
        self.answer();
        self.shrink();
        if !self.pcp.counts() {
            self.pcp.open_all();
        }
    }

    fn shrink(&self) {
        if self.pcp.counts() {
            let sizing = self.sizing();
            let (tuning, pages) = self.pcp.tuning().tick(self.config.experiment.pcp_rule, sizing);
            self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
            return self.drain(u64::from(pages).saturating_sub(self.give_back()), 0);
        }
        self.set_high(self.pcp.high() - self.pcp.high() / 8);
        self.give_back();
        let (mut blocks, mut lists) = ([0; LISTS], 0);
        for number in self.pcp.lists_used() {
            blocks[number] = self.pcp.list(number).len().saturating_sub(self.room(number).blocks);
            lists |= 1 << number;
        }
        self.drain_blocks(&blocks, lists, 0);
    }

    /// Drains all lists.
    pub(crate) fn drain_all(&self) {
        self.answer();
        self.give_back();
        self.drain(u64::from(self.pcp.count()), 0);
        self.give_share_up();
    }

    /// After the barrier of a remote drain: drains all lists, unless the owner is in a call. The gates stay shut.
    /// Returns the pages; `None` if the owner is in a call.
    pub(crate) fn drain_for_owner(&self) -> Option<u64> {
        if !self.pcp.confirm() {
            return None;
        }
        let pages = u64::from(self.pcp.count());
        self.give_all_back();
        self.give_share_up();
        // Cleared last: the CPU that waits for this finds the pages in the zone.
        self.pcp.clear(REQUEST_DRAIN);
        self.pcp.finish();
        Some(pages)
    }

    /// Drains everything for a CPU in need, by the owner or in its place.
    fn give_all_back(&self) {
        self.give_back();
        self.drain(u64::from(self.pcp.count()), 0);
        // The request means that memory is short, so the lists should stay short. Linux leaves `high` unchanged.
        if !self.pcp.counts() {
            // Not divided yet: a CPU in need opens no gate.
            self.pcp.high.store(u64::from(self.sizing().clamp_high(0)), Relaxed);
        } else if self.config.experiment.pcp_rule == PcpRule::Auto {
            let sizing = self.pcp.sizing();
            let tuning = Tuning { high: sizing.high_min, ..self.pcp.tuning() };
            self.pcp.set_tuning(self.config, sizing, self.pressure(), tuning);
        }
    }

    /// Sets a block of a sparse pageblock aside, to return to the zone soon. Only this CPU has the block. On `false`
    /// its order has no lists, and the state is unchanged.
    #[inline(never)]
    pub(crate) fn set_aside(&self, pfn: Pfn, order: Order) -> bool {
        if !cfg!(feature = "mobility") || self.list(order, Migratetype::Movable).is_none() {
            return false;
        }
        if P::DRAINS_REMOTELY {
            // As in `pop`.
            self.pcp.outgoing.open();
        }
        let head = self.frames.head_in_map(pfn, order);
        if !self.pcp.set_aside(head, pfn, order) {
            self.give_back();
            if !self.pcp.set_aside(head, pfn, order) {
                return false;
            }
        }
        // Every free looks for requests of other CPUs; blocks set aside return to the zone then, too.
        self.answer();
        true
    }

    /// Gives the blocks set aside back to the zone. Returns the pages.
    #[inline(never)]
    fn give_back(&self) -> u64 {
        let pages = u64::from(self.pcp.outgoing.pages());
        if pages == 0 {
            return 0;
        }
        self.free_by_section(self.pcp.outgoing.blocks());
        self.pcp.outgoing.clear();
        self.count_drained(pages);
        pages
    }

    /// Drains at least `pages` base pages if the lists have as many: from the tail of `list` first, then cyclically
    /// (Linux v6.2 `free_pcppages_bulk`). Under the v5.4 rule [`round_robin`].
    fn drain(&self, pages: u64, list: usize) {
        let mut blocks = [0; LISTS];
        let len = |n: usize| self.pcp.list(n).len();
        if self.config.experiment.pcp_rule == PcpRule::V5_4
            && self.config.experiment.pcp_orders == PcpOrders::Zero
        {
            let shares = round_robin([len(0), len(1), len(2)], pages.min(u64::from(u32::MAX)) as u32);
            blocks[..TYPES].copy_from_slice(&shares);
            return self.drain_blocks(&blocks, (1 << TYPES) - 1, 0);
        }
        let mut left = pages;
        let mut lists = 0;
        for n in cyclic(self.pcp.drainable(), list) {
            let order = KINDS[n].0.get();
            let most = (left + (1 << order) - 1) >> order;
            blocks[n] = u64::from(len(n)).min(most) as u32;
            lists |= 1 << n;
            left = left.saturating_sub(u64::from(blocks[n]) << order);
        }
        self.drain_blocks(&blocks, lists, list);
    }

    /// Drains `blocks` of each of these lists from its tail.
    fn drain_blocks(&self, blocks: &[u32; LISTS], lists: u64, first: usize) {
        let lists = cyclic(lists, 0).fold(0, |some, n| some | u64::from(blocks[n] > 0) << n);
        if lists == 0 {
            return;
        }
        self.count_drained(if self.frames.has_maps() {
            cyclic(lists, first).map(|n| self.drain_list(n, blocks[n])).sum()
        } else {
            self.drain_in_one_hold(blocks, lists, first)
        });
    }

    /// Drains `blocks` of a list from its tail.
    fn drain_one(&self, number: usize, blocks: u32) {
        if self.frames.has_maps() {
            return self.count_drained(self.drain_list(number, blocks));
        }
        let mut all = [0; LISTS];
        all[number] = blocks;
        self.drain_blocks(&all, 1 << number, number);
    }

    /// Counts a drain of base pages.
    fn count_drained(&self, pages: u64) {
        self.pcp.count_pages(-(pages as i64));
        bump(&self.pcp.events.drains, 1);
        bump(&self.pcp.events.drained_pages, pages);
    }

    /// With maps: drains `blocks` blocks of a list from its tail. Returns the pages.
    fn drain_list(&self, number: usize, blocks: u32) -> u64 {
        let ((order, _), list) = (KINDS[number], self.pcp.list(number));
        let mut left = blocks;
        while left > 0 {
            let bottom = list.places().start;
            let blocks = (0..left).map(|n| (order, list.at(bottom + u64::from(n))));
            let gone = self.free_by_section(blocks);
            list.drop_tail(gone);
            left -= gone;
        }
        if self.pcp.counts() {
            self.pcp.open(number);
        }
        u64::from(blocks) << order.get()
    }

    /// With free lists: drains `blocks` of each of these lists from its tail, in one hold of the zone lock. Returns the
    /// pages.
    fn drain_in_one_hold(&self, blocks: &[u32; LISTS], lists: u64, first: usize) -> u64 {
        self.in_section(0, |buddy| {
            for n in cyclic(lists, first) {
                let (order, _) = KINDS[n];
                many::free_each(buddy, order, self.pcp.list(n).tail(blocks[n]));
            }
        });
        let mut pages = 0;
        for n in cyclic(lists, first) {
            self.pcp.list(n).drop_tail(blocks[n]);
            self.pcp.open(n);
            pages += u64::from(blocks[n]) << KINDS[n].0.get();
        }
        pages
    }
}
