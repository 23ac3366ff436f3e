//! Per-CPU page lists: a CPU allocates from them and frees to them without a lock.
//!
//! One [`Pcp`] per zone and CPU holds thirty lists: orders 0 to 9 of the three ordinary types. Linux has lists of five
//! orders, 0 to 3 and the huge one; its presets have only these (the others are in [`MoreLists`], so that the words of
//! a `Pcp` stay at their addresses). A list is a stack of block addresses in its own storage, so that a hit touches no
//! frame descriptor. Blocks leave at the head; freed blocks enter at the head (last in, first out: the memory is warm);
//! a refill enters at the tail, in the order obtained; a drain leaves at the tail (the coldest).
//!
//! # Who writes
//! The owner writes everything but `request`, `sizing` and `high_max`: the thread with the CPU's pin, or a CPU that
//! drains in the owner's place (see `turn`). Other CPUs may read any of it. Other CPUs set requests in `request`; the
//! owner serves them at its next slow call, or when it leaves. Any CPU that resizes may set `sizing` and `high_max`.
//!
//! # Invariants
//! 1. The count is the sum of the lists' blocks and of the blocks set aside, in base pages.
//! 2. A block that is set aside is also taken, but on no list: see `outgoing`. A block on a list is
//!    [`State::Taken`](crate::frame::State::Taken) with the list's order and type, and its list place names the CPU and
//!    its position.
//! 3. A list holds at most as many blocks as it has slots.
//!
//! # Counts
//! Linux counts pages at each allocation and free, and so do its presets. Otherwise a hit counts nothing: see
//! `counting`.
//!
//! # Requests to the owner
//! The requesting CPU sets a bit of `request` and then shuts the lists. A free that hits compares with its list's
//! ceiling in any case (see `list`), so it need not read `request`. The owner's next free, and its next allocation that
//! finds a list empty, take the slow path: the owner serves the request, clears the bit and opens the lists. Opening
//! exchanges a ceiling that was shut, so the owner sees the request of the CPU whose shutting it undoes, and shuts the
//! list again. A CPU that is slow to shut the last lists may do so after the owner has served the request: then the
//! next free to such a list takes the slow path once and opens it.

mod counting;
mod list;
mod local;
mod many;
mod outgoing;
mod refill;
mod turn;

use core::fmt;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::config::{Config, PcpOrders};
pub use crate::events::PcpEvents;
use crate::events::PcpWords;
use crate::frame::{OpenHead, Pageblock, PlaceTag};
use crate::platform::{Platform, Word, update};
use crate::policy::pcp::Sizing;
use crate::units::{COSTLY_ORDER, CpuId, Migratetype, NR_ORDERS, Ones, Order, PAGEBLOCK_ORDER, Pfn};
use list::{COUNTED, NO_HITS};
pub(crate) use list::{Left, List, Missed};
pub(crate) use local::Local;
use outgoing::Outgoing;
pub(crate) use turn::Turn;

/// Types with per-CPU lists. Without mobility all pageblocks are movable.
const TYPES: usize = match (cfg!(feature = "lists"), cfg!(feature = "mobility")) {
    (false, _) => 0,
    (true, false) => 1,
    (true, true) => 3,
};
/// Orders that have lists in Linux, in the order of its lists: 0 to 3, and the huge order.
const LINUX_ORDERS: usize = COSTLY_ORDER.index() + 2;
/// Number of Linux' lists. They come first, so that the presets' lists have Linux' numbers and addresses.
const LINUX_LISTS: usize = TYPES * LINUX_ORDERS;
/// Number of lists of one CPU and zone: Linux', and those of the orders in between.
pub const LISTS: usize = TYPES * (PAGEBLOCK_ORDER.index() + 1);

/// Orders in the order of their lists.
const ORDERS: [u8; LINUX_ORDERS + 5] = [0, 1, 2, 3, PAGEBLOCK_ORDER.get(), 4, 5, 6, 7, 8];
const NO_LIST: u8 = u8::MAX;
/// The first list by order.
const FIRST_LIST: [u8; NR_ORDERS] = {
    let (mut table, mut place) = ([NO_LIST; NR_ORDERS], 0);
    while place < ORDERS.len() {
        table[ORDERS[place] as usize] = (place * TYPES) as u8;
        place += 1;
    }
    table
};

/// The list of an order and a type; `None` if the order has none under any configuration.
#[inline(always)]
fn list_of(order: Order, migratetype: Migratetype) -> Option<usize> {
    let first = FIRST_LIST[order.index()];
    // CMA and high-atomic blocks are on the movable lists.
    let kind = if migratetype.is_ordinary() { migratetype } else { Migratetype::Movable };
    let kind = if cfg!(feature = "mobility") { kind.index() } else { 0 };
    (cfg!(feature = "lists") && first != NO_LIST).then_some(first as usize + kind)
}

/// Order and type by list.
const KINDS: [(Order, Migratetype); LISTS] = {
    let (mut table, mut list) = ([(Order::ZERO, Migratetype::Movable); LISTS], 0);
    while list < LISTS {
        // Without mobility all lists are movable.
        let kind = if TYPES == 3 { Migratetype::from_bits(list as u64 % 3) } else { Migratetype::Movable };
        let types = if TYPES == 3 { 3 } else { 1 };
        table[list] = (Order::from_bits(ORDERS[list / types] as u64), kind);
        list += 1;
    }
    table
};

/// Numbers of the lists whose bits are set, from `first` on and then from the lowest.
fn cyclic(lists: u64, first: usize) -> impl Iterator<Item = usize> {
    let behind = u64::MAX << first;
    Ones(lists & behind).chain(Ones(lists & !behind))
}

fn bump(word: &impl Word, by: u64) {
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Another CPU needs the pages.
pub(crate) const REQUEST_DRAIN: u64 = 1;
/// The size, or the pressure on the zone, has changed.
pub(crate) const REQUEST_RESIZE: u64 = 2;
/// The zone has isolated pageblocks. Set and cleared under its lock: while it is set, every free checks its pageblock.
const CLOSED: u64 = 16;
/// About a second has passed.
const REQUEST_TICK: u64 = 32;
/// Set by a CPU while it writes another size.
const RESIZING: u64 = 8;
/// Turns that a CPU waits for another CPU to clear [`RESIZING`], which takes a few instructions.
const RESIZE_TURNS: u32 = 1 << 16;
/// Never cleared: with poisoning every free takes the slow path.
const ALWAYS_SLOW: u64 = 4;
/// With one of these every free is a slow call, and the owner is asked for nothing.
const SLOW: u64 = CLOSED | ALWAYS_SLOW;

/// The lists of one CPU and one zone.
#[repr(C, align(128))]
pub struct Pcp<'m, P: Platform> {
    /// Requests of other CPUs. Set by any CPU, cleared by the owner.
    request: P::Word,
    /// Threshold and count, or the pages that all lists may hold: see `counting`.
    level: P::Word,
    /// The history of frees: see `counting`.
    freed: P::Word,
    /// The refill scale of the auto-tuned rules, halved by each free. Three frees make it 0; until then the threshold
    /// is 0, and these frees are no hits. The same after a free of order 1 to 3 under the v6.7 rule: see `counting`.
    alloc_factor: P::Word,
    /// The present `high`.
    high: P::Word,
    /// `batch << 32 | high_min`, in one word so that both are read together.
    sizing: P::Word,
    high_max: P::Word,
    lists: [List<'m, P>; LINUX_LISTS],
    events: PcpWords<P>,
    /// Blocks set aside. Written by the owner.
    outgoing: Outgoing<'m, P>,
    /// Whether hits count. Never changes.
    each_call: bool,
    /// Whether the rule depends on the orders of consecutive frees (v6.7): then no free of order 1 to 3 is a hit. Never
    /// changes.
    watches_orders: bool,
    /// A bit for each list that may hold blocks, unless hits count: see `counting`. Written by the owner.
    used: P::Word,
    /// The lists of orders 4 to 8, if they have any.
    more: Option<&'m MoreLists<'m, P>>,
    /// 1 while the owner is in a hit: see `turn`. Written by the owner.
    inside: P::Word,
    /// The CPU that may use the lists: see `turn`. Written by the owner, and by a CPU that drains.
    turn: P::Word,
    /// The section that last gave a block, if the zone has several. Written by the owner.
    section: P::Word,
    /// CPUs that share what lists may hold, as the owner last read; 0 while it is none of them: see `counting`. Written
    /// by the owner, and by a CPU that drains.
    sharers: P::Word,
    /// The least head word of a pageblock to which freed blocks return. Written by the owner.
    sparse: P::Word,
}

/// Lists of one CPU and zone for the orders that have no lists in Linux: 4 to 8.
#[repr(C, align(64))]
pub struct MoreLists<'m, P: Platform> {
    lists: [List<'m, P>; LISTS - LINUX_LISTS],
}

impl<P: Platform> fmt::Debug for MoreLists<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.lists.iter().map(List::len)).finish()
    }
}

impl<P: Platform> fmt::Debug for Pcp<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pcp").field("count", &self.count()).field("sizing", &self.sizing()).finish()
    }
}

/// Shuts the lists of all CPUs of a zone, so that each free checks its pageblock, or opens them, so that frees hit.
/// With the lock of the zone's first section. O(CPUs).
pub(crate) fn shut_or_open<P: Platform>(of_zone: &[Pcp<'_, P>], closed: bool) {
    // The lists of all CPUs are closed, or of none: isolating a range writes to them once. If hits count, frees check
    // in any case.
    if cfg!(feature = "lists") && !of_zone[0].counts() && of_zone[0].is_closed() != closed {
        of_zone.iter().for_each(|pcp| pcp.set_closed(closed));
    }
}

/// Most base pages that one list of a CPU can have in a zone: if all CPUs use it, and if no other CPU does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Most {
    /// A list of blocks below the pageblock order.
    pub(crate) below: [u64; 2],
    /// A list of blocks of the pageblock order.
    pub(crate) huge: [u64; 2],
}

/// Slots that a list has for the case that few CPUs use the zone.
const SLOTS_OF_FEW: u64 = 32;

/// Slots of a list under a configuration: a power of two; 1 if the order has no lists, 0 if it has none in Linux
/// either.
fn slots_per_list(config: &Config, list: usize, most: Most) -> usize {
    let (order, migratetype) = KINDS[list];
    match config.experiment.pcp_orders {
        // Linux has two lists of huge blocks: one for movable blocks, one for all others.
        _ if config.counts_each_call()
            && order == PAGEBLOCK_ORDER
            && migratetype == Migratetype::Reclaimable =>
        {
            return 1;
        }
        PcpOrders::UpToHuge => {}
        _ if list >= LINUX_LISTS => return 0,
        PcpOrders::None => return 1,
        PcpOrders::Zero if order > Order::ZERO => return 1,
        PcpOrders::UpToCostly if order > COSTLY_ORDER => return 1,
        _ => {}
    }
    let pages = if order < PAGEBLOCK_ORDER { most.below } else { most.huge };
    let [of_all, alone] =
        pages.map(|pages| (pages >> order.get()) + u64::from(config.experiment.pcp_min_refill) + 1);
    let wanted = of_all.max(alone.min(SLOTS_OF_FEW));
    wanted.min(u64::from(config.experiment.pcp_slots)).next_power_of_two() as usize
}

/// Whether lists under a configuration have [`MoreLists`].
pub(crate) fn has_more(config: &Config) -> bool {
    cfg!(feature = "lists") && config.experiment.pcp_orders == PcpOrders::UpToHuge
}

/// Slots of all lists of one CPU and zone together, and of the blocks set aside.
pub(crate) fn slots_per_pcp(config: &Config, most: Most) -> usize {
    if !cfg!(feature = "lists") {
        return 0;
    }
    let lists = (0..LISTS).map(|list| slots_per_list(config, list, most));
    lists.sum::<usize>() + outgoing::slots(config)
}

impl<'m, P: Platform> Pcp<'m, P> {
    /// Empty lists of a CPU with the boot size; the CPU begins at a section. `slots` has the length of
    /// [`slots_per_pcp`] for the same `most`; `more` is given if the configuration has lists of orders 4 to 8.
    pub(crate) fn new(
        config: &Config,
        cpu: CpuId,
        section: usize,
        most: Most,
        slots: &'m [P::Word],
        more: Option<&'m mut MaybeUninit<MoreLists<'m, P>>>,
    ) -> Self {
        let tag = PlaceTag::new(cpu);
        let each_call = config.counts_each_call();
        // Without head words each allocation sets bits.
        let marked = each_call || !config.engine.has_words();
        let hits = match (config.poison || config.fault_injection, marked) {
            (true, _) => NO_HITS,
            (false, true) => COUNTED,
            (false, false) => 0,
        };
        let mut rest = slots;
        let mut list = |number| {
            let (slots, behind) = rest.split_at(slots_per_list(config, number, most));
            rest = behind;
            let (order, migratetype) = KINDS[number];
            List::new(tag.on_list(order, migratetype), slots, hits)
        };
        let lists = core::array::from_fn(&mut list);
        let more = more.map(|more| {
            let lists = core::array::from_fn(|n| list(LINUX_LISTS + n));
            &*more.write(MoreLists { lists })
        });
        let pcp = Self {
            request: P::Word::new(if config.poison { ALWAYS_SLOW } else { 0 }),
            level: P::Word::new(if each_call { counting::level(0, 0) } else { 0 }),
            freed: P::Word::new(0),
            alloc_factor: P::Word::new(0),
            high: P::Word::new(0),
            sizing: P::Word::new(0),
            high_max: P::Word::new(0),
            lists,
            events: PcpWords::new(),
            outgoing: Outgoing::new(cpu, rest),
            each_call,
            watches_orders: config.experiment.pcp_rule.watches_orders(),
            used: P::Word::new(0),
            more,
            inside: P::Word::new(0),
            turn: P::Word::new(0),
            section: P::Word::new(section as u64),
            sharers: P::Word::new(0),
            sparse: P::Word::new(OpenHead::SPARSE),
        };
        pcp.resize(Sizing::BOOT);
        pcp
    }

    /// Whether blocks freed into a pageblock should return to the zone: many of its frames are free, and more than of
    /// the pageblock from which the CPU allocates. What returned there would be allocated again next. A racy read.
    #[inline(always)]
    pub(crate) fn is_sparse(&self, pageblock: &Pageblock<P>) -> bool {
        cfg!(feature = "mobility") && OpenHead::is_sparse(pageblock.head_word(), self.sparse.load(Relaxed))
    }

    /// Requests another size. Callable from any CPU; the owner applies it at its next call that is no hit. If several
    /// CPUs resize at the same time, the whole size of one of them remains. A CPU that does not finish within
    /// [`RESIZE_TURNS`] has died, in memory that processes share.
    pub(crate) fn resize(&self, sizing: Sizing) {
        if !cfg!(feature = "lists") {
            return;
        }
        let mut old = self.request.load(Relaxed);
        let mut turns = 0;
        loop {
            if old & RESIZING != 0 && turns < RESIZE_TURNS {
                P::relax();
                turns += 1;
                old = self.request.load(Relaxed);
                continue;
            }
            match self.request.compare_exchange(old, old | RESIZING, AcqRel, Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        self.high_max.store(u64::from(sizing.high_max), Relaxed);
        self.sizing.store(u64::from(sizing.batch) << 32 | u64::from(sizing.high_min), Relaxed);
        self.set_request(REQUEST_RESIZE);
        self.clear(RESIZING);
    }

    /// Requests the owner to drain all lists. Callable from any CPU.
    pub(crate) fn request_drain(&self) {
        if self.count() > 0 {
            self.set_request(REQUEST_DRAIN);
        }
    }

    /// Requests the owner to let its lists shrink, if they hold anything. Callable from any CPU.
    pub(crate) fn request_tick(&self) {
        if self.high() > self.sizing().high_min || self.count() > self.high() {
            self.set_request(REQUEST_TICK);
        }
    }

    /// Whether the owner has not yet served a drain request.
    pub(crate) fn drain_pending(&self) -> bool {
        self.request.load(Acquire) & REQUEST_DRAIN != 0
    }

    /// Whether each free checks its pageblock, so that none hits.
    pub(crate) fn is_closed(&self) -> bool {
        self.request.load(Relaxed) & CLOSED != 0
    }

    /// Lets every free of the owner check its pageblock, while a pageblock of the zone is isolated. Called under the
    /// zone lock.
    fn set_closed(&self, closed: bool) {
        if closed { self.set_request(CLOSED) } else { self.clear(CLOSED) }
    }

    /// The list of an order and a type; `None` if the order has none.
    #[inline(always)]
    pub(crate) fn hit_list(&self, order: Order, migratetype: Migratetype) -> Option<&List<'m, P>> {
        self.get(list_of(order, migratetype)?)
    }

    /// Whether there is a list of an order and a type, with room for blocks.
    pub(crate) fn has_list(&self, order: Order, migratetype: Migratetype) -> bool {
        self.hit_list(order, migratetype).is_some_and(|list| list.capacity() > 0)
    }

    /// A list by its number; `None` if there is none.
    #[inline(always)]
    fn get(&self, number: usize) -> Option<&List<'m, P>> {
        match number.checked_sub(LINUX_LISTS) {
            None => Some(&self.lists[number]),
            Some(number) => self.more.map(|more| &more.lists[number]),
        }
    }

    /// The list with a number that [`list_of`](Self::list_of) has returned.
    #[inline(always)]
    fn list(&self, number: usize) -> &List<'m, P> {
        self.get(number).expect("lists of these orders have been found")
    }

    /// All lists, by number.
    fn lists(&self) -> impl Iterator<Item = &List<'m, P>> {
        self.lists.iter().chain(self.more.iter().flat_map(|more| &more.lists))
    }

    /// The list of an order and a type, after a hit has failed. Reclaimable huge blocks without a list of their own are
    /// on that of the unmovable ones.
    pub(crate) fn list_of(&self, order: Order, migratetype: Migratetype) -> Option<usize> {
        let number = list_of(order, migratetype)?;
        let list = self.get(number)?;
        if order == PAGEBLOCK_ORDER && migratetype == Migratetype::Reclaimable && list.capacity() == 0 {
            return list_of(order, Migratetype::Unmovable);
        }
        Some(number)
    }

    /// Requests something of the owner. Callable from any CPU.
    pub(crate) fn set_request(&self, what: u64) {
        if !cfg!(feature = "lists") {
            return;
        }
        // Also if the bit is set already: the owner that clears it must see all earlier writes of this CPU.
        update(&self.request, AcqRel, |old| Some(old | what));
        self.lists_in_use().for_each(List::shut);
    }

    /// Lists of orders without lists stay shut.
    fn lists_in_use(&self) -> impl Iterator<Item = &List<'m, P>> {
        self.lists().filter(|list| list.capacity() > 0)
    }

    /// Clears requests that the owner has served.
    fn clear(&self, what: u64) {
        update(&self.request, AcqRel, |old| Some(old & !what));
    }

    /// The size requested last.
    #[must_use]
    pub fn sizing(&self) -> Sizing {
        let word = self.sizing.load(Relaxed);
        Sizing {
            batch: (word >> 32) as u32,
            high_min: word as u32,
            high_max: self.high_max.load(Relaxed) as u32,
        }
    }

    /// The present `high`, in base pages.
    #[must_use]
    pub fn high(&self) -> u32 {
        self.high.load(Relaxed) as u32
    }

    /// Event counters of the lists. A racy read, unless the caller is the owner.
    #[must_use]
    pub fn events(&self) -> PcpEvents {
        self.events.read()
    }

    /// Base pages that the owner has taken from the zone.
    pub(crate) fn pages_taken(&self) -> u64 {
        self.events.refilled_pages.load(Relaxed) + self.events.direct_alloc_pages.load(Relaxed)
    }

    /// Counts blocks that the owner has taken from the zone. `wanted`: the owner's lists of the zone on another node
    /// where the blocks were wanted.
    pub(crate) fn count_numa(&self, blocks: u64, wanted: Option<&Self>) {
        match wanted {
            None => bump(&self.events.numa_hit, blocks),
            Some(wanted) => {
                bump(&self.events.numa_miss, blocks);
                bump(&wanted.events.numa_foreign, blocks);
            }
        }
    }

    /// Whether a block is here whose head word names a place here. Called by any CPU that frees it.
    #[inline]
    pub(crate) fn holds(&self, order: Order, migratetype: Migratetype, position: u32, pfn: Pfn) -> bool {
        if migratetype == outgoing::ASKED {
            // Its head word alone proves it: see `outgoing`.
            return true;
        }
        self.hit_list(order, migratetype).is_some_and(|list| list.holds(position, pfn))
    }

    /// Whether a block whose head word states that it is set aside here is so; `true` for any other head word. For
    /// verification.
    pub(crate) fn is_aside_as_said(&self, order: Order, asked: Migratetype, position: u32, pfn: Pfn) -> bool {
        asked != outgoing::ASKED || self.outgoing.holds(order, position, pfn)
    }

    /// Every block on the lists or set aside, with its order, type and position. For verification.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (Order, Migratetype, u32, Pfn)> {
        let lists = self.lists().enumerate().flat_map(|(n, list)| {
            let (order, migratetype) = KINDS[n];
            list.places().map(move |place| (order, migratetype, place as u32, list.at(place)))
        });
        let outgoing = self.outgoing.blocks().zip(0..);
        lists.chain(outgoing.map(|((order, pfn), position)| (order, outgoing::ASKED, position, pfn)))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;
    use std::vec::Vec;

    use super::*;
    use crate::config::Experiment;
    use crate::platform::machine::{self, Machine};

    /// Every list under every choice of orders: its slots are a power of two that suffices if its order has lists, 1 if
    /// it has none, and 0 if Linux has no lists of it, either.
    #[test]
    fn lists_have_slots_for_what_they_may_hold() {
        type Listed = fn(u8) -> bool;
        let choices: [(PcpOrders, Listed); 5] = [
            (PcpOrders::None, |_| false),
            (PcpOrders::Zero, |k| k == 0),
            (PcpOrders::UpToCostly, |k| k <= 3),
            (PcpOrders::UpToCostlyAndHuge, |k| k <= 3 || k == 9),
            (PcpOrders::UpToHuge, |k| k <= 9),
        ];
        let most = Most { below: [100; 2], huge: [5 << 9; 2] };
        for config in [Config::framewright(), Config::linux_v6_1()] {
            for (orders, is_listed) in choices {
                let counts = config.counts_each_call();
                let experiment =
                    Experiment { pcp_orders: orders, pcp_min_refill: 2, pcp_slots: 64, ..config.experiment };
                let config = Config { experiment, ..config };
                let mut seen = [0; NR_ORDERS];
                for (list, &(order, migratetype)) in KINDS.iter().enumerate() {
                    let k = order.get();
                    seen[order.index()] += 1;
                    let in_linux = k <= 3 || k == 9;
                    let shares = counts && k == 9 && migratetype == Migratetype::Reclaimable;
                    let expected = match () {
                        () if shares => 1,
                        () if is_listed(k) && k == 9 => 8,
                        () if is_listed(k) => [64, 64, 32, 16, 16, 8, 4, 4, 4][order.index()],
                        () if in_linux => 1,
                        () => 0,
                    };
                    let slots = slots_per_list(&config, list, most);
                    assert_eq!(slots, expected, "{orders:?}, order {k}, {migratetype}, counts {counts}");
                    assert_eq!(list_of(order, migratetype), Some(list));
                }
                assert_eq!(seen[..10], [TYPES; 10]);
                assert_eq!(has_more(&config), orders == PcpOrders::UpToHuge);
            }
        }
        assert_eq!(list_of(Order::new(10).expect("an order"), Migratetype::Movable), None);
    }

    #[test]
    fn lists_are_gone_through_from_one_on_and_then_from_the_first() {
        for lists in 0..1_u64 << 6 {
            for first in 0..6 {
                let expected = (first..6).chain(0..first).filter(|n| lists >> n & 1 != 0);
                assert!(cyclic(lists, first).eq(expected), "{lists:#b} from {first}");
            }
        }
    }

    /// Another CPU resizes: it has written half of its size, and ends in the turn `ends`.
    fn resizes_beside_another(ends: Option<u32>) {
        let config = Config {
            experiment: Experiment { pcp_orders: PcpOrders::Zero, ..Config::linux_v5_4().experiment },
            ..Config::linux_v5_4()
        };
        let size = Sizing { batch: 3, high_min: 18, high_max: 18 };
        let most = Most { below: [size.high_max.into(); 2], huge: [size.high_max.into(); 2] };
        let slots: Vec<_> = (0..slots_per_pcp(&config, most)).map(|_| Word::new(0)).collect();
        let pcp: Pcp<'_, Machine> = Pcp::new(&config, CpuId(0), 0, most, slots.leak(), None);
        let pcp: &Pcp<'_, Machine> = Box::leak(Box::new(pcp));
        pcp.request.fetch_add(RESIZING, Relaxed);
        let others = move |n| {
            if Some(n) == ends {
                pcp.sizing.store(7 << 32 | 9, Relaxed);
                pcp.clear(RESIZING);
            }
        };
        let ((), waits, _) = machine::with_others(others, || pcp.resize(size));
        assert_eq!(waits, ends.unwrap_or(RESIZE_TURNS));
        assert_eq!((pcp.sizing(), pcp.request.load(Relaxed) & RESIZING), (size, 0));
    }

    #[test]
    fn of_two_sizes_at_the_same_time_the_last_one_remains_whole() {
        resizes_beside_another(Some(3));
    }

    #[test]
    fn a_cpu_that_died_while_it_resized_is_not_waited_for() {
        resizes_beside_another(None);
    }
}
