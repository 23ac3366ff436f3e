//! Per-CPU page lists: what a CPU allocates from and frees to without a lock.
//!
//! One [`Pcp`] per zone and CPU holds thirty lists: orders 0 to 9 of the three ordinary types. Linux has lists of five orders,
//! 0 to 3 and the huge one; under its presets there are no others ([`MoreLists`] apart, so that what lies in a `Pcp` stays
//! where it is). A list is a stack of block addresses in storage of its own, so that a hit touches no
//! frame descriptor. Blocks leave at the head; freed blocks enter at the head (last in, first out: the memory
//! is warm); a refill enters at the tail, in the order obtained; a drain leaves at the tail (the coldest).
//!
//! # Who writes
//! Everything but `request`, `sizing` and `high_max` is written by the owner, the thread with the CPU's pin, or by a CPU that
//! drains in the owner's place (see `turn`). Other CPUs may read any of it. `request` is how they ask; the owner answers at its
//! next slow call, or when it leaves. `sizing` and `high_max` may be set by any CPU that resizes.
//!
//! # Invariants
//! 1. The count is the sum of the lists' blocks and of those on their way back, in base pages.
//! 2. A block on its way back is taken, too, and no list's: see `outgoing`. A block on a list is
//!    [`State::Taken`](crate::frame::State::Taken) with the list's order and type, and its list place names the CPU and
//!    its position.
//! 3. A list holds at most as many blocks as it has slots.
//!
//! # How many blocks there are
//! Linux counts pages at each allocation and free, and so do its presets. Otherwise nobody counts at a hit: see `counting`.
//!
//! # How a CPU asks the owner for something
//! The asking CPU sets a bit of `request` and then shuts the lists: a free that hits looks at its list's ceiling anyway
//! (see `list`), and need not look at `request`, too. The owner's next free, and its next allocation that finds a list
//! empty, take the slow way: the owner does what is asked, clears the bit and opens the lists. Opening exchanges a
//! ceiling that was shut, so the owner sees the request of the CPU whose shutting it undoes, and shuts the list again. A
//! CPU that is slow to shut the last lists may do so when the owner has answered already: the next free to such a list
//! takes the slow way once and opens it.

mod counting;
mod joined;
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
use crate::frame::{OpenHead, Pageblock, PlaceTag};
use crate::platform::{Platform, Word};
use crate::policy::pcp::Sizing;
use crate::units::{COSTLY_ORDER, CpuId, Migratetype, NR_ORDERS, Order, PAGEBLOCK_ORDER, Pfn};
use list::Hits;
pub(crate) use list::{Left, List, ListWords, Missed};
pub(crate) use local::Local;
use outgoing::Outgoing;
pub(crate) use turn::{Drains, Turn};

/// Types with per-CPU lists.
const TYPES: usize = 3;
/// Orders that have lists in Linux, in the order of its lists: 0 to 3, and the huge order.
const LINUX_ORDERS: usize = COSTLY_ORDER.index() + 2;
/// Linux' lists. They come first, so that the presets' lists are numbered, and lie, as Linux' do.
const LINUX_LISTS: usize = TYPES * LINUX_ORDERS;
/// Lists of one CPU and zone: Linux', and those of the orders between.
pub const LISTS: usize = TYPES * (PAGEBLOCK_ORDER.index() + 1);

const NO_LIST: u8 = u8::MAX;
/// The first list by order.
const FIRST_LIST: [u8; NR_ORDERS] = {
    let mut table = [NO_LIST; NR_ORDERS];
    let mut order = 0;
    while order <= PAGEBLOCK_ORDER.index() {
        let place = if order <= COSTLY_ORDER.index() {
            order
        } else if order == PAGEBLOCK_ORDER.index() {
            LINUX_ORDERS - 1
        } else {
            order + 1
        };
        table[order] = (place * TYPES) as u8;
        order += 1;
    }
    table
};

/// The list of an order and a type; `None` if the order has none under any configuration.
#[inline(always)]
fn list_of(order: Order, migratetype: Migratetype) -> Option<usize> {
    let first = FIRST_LIST[order.index()];
    (first != NO_LIST).then_some(first as usize + waits_as(migratetype).index())
}

/// The ordinary type on whose list blocks of a type wait: CMA and high-atomic blocks on the movable one.
#[inline]
pub(crate) fn waits_as(migratetype: Migratetype) -> Migratetype {
    if migratetype.is_ordinary() { migratetype } else { Migratetype::Movable }
}

/// Order and type by list.
const KINDS: [(Order, Migratetype); LISTS] = {
    let mut table = [(Order::ZERO, Migratetype::Unmovable); LISTS];
    let mut order = 0;
    while order <= PAGEBLOCK_ORDER.index() {
        let mut of = 0;
        while of < TYPES {
            let list = FIRST_LIST[order] as usize + of;
            table[list] = (Order::new(order as u8).expect("not above the largest"), Migratetype::ALL[of]);
            of += 1;
        }
        order += 1;
    }
    table
};

/// Order and type of a list.
#[inline]
fn kind_of(list: usize) -> (Order, Migratetype) {
    KINDS[list]
}

/// The numbers of the lists whose bits are set, from `first` on and then from the lowest.
fn cyclic(lists: u64, first: usize) -> impl Iterator<Item = usize> {
    let behind = u64::MAX << first;
    let (mut now, mut later) = (lists & behind, lists & !behind);
    core::iter::from_fn(move || {
        if now == 0 {
            now = core::mem::take(&mut later);
        }
        let list = (now != 0).then(|| now.trailing_zeros() as usize)?;
        now &= now - 1;
        Some(list)
    })
}

/// What one CPU's lists of one zone have been through. Words that only the owner writes.
macro_rules! events {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What per-CPU lists have been through, since creation.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct PcpEvents { $($(#[$doc])* pub $name: u64,)* }

        #[repr(C, align(64))]
        struct EventWords<P: Platform> { $($name: P::Word,)* }

        impl<P: Platform> EventWords<P> {
            fn new() -> Self {
                Self { $($name: P::Word::new(0),)* }
            }

            fn read(&self) -> PcpEvents {
                PcpEvents { $($name: self.$name.load(Relaxed),)* }
            }
        }

        impl core::ops::AddAssign for PcpEvents {
            fn add_assign(&mut self, other: Self) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

events! {
    /// Refills that brought at least one block.
    refills,
    /// Base pages they brought.
    refilled_pages,
    /// Drains.
    drains,
    /// Base pages they took back.
    drained_pages,
    /// Blocks taken past the lists, under the zone lock.
    direct_allocs,
    /// Base pages in them.
    direct_alloc_pages,
    /// Blocks freed past the lists, under the zone lock.
    direct_frees,
    /// Base pages in them.
    direct_free_pages,
    /// Times this CPU took the zone lock.
    lock_acquisitions,
    /// Times another CPU held it first.
    lock_waits,
    /// Nanoseconds waited for it (with `lock_timing`).
    lock_wait_ns,
    /// Nanoseconds it was held (with `lock_timing`).
    lock_hold_ns,
    /// Base pages found bad and taken out of use.
    bad_pages,
    /// Blocks that were written to after they had been freed (with `poison`).
    poison_overwrites,
    /// Blocks taken here that were wanted on this zone's node. Counted where they leave the buddy lists, in refills.
    numa_hit,
    /// Blocks taken here that were wanted on another node.
    numa_miss,
    /// Blocks wanted on this zone's node that were taken on another.
    numa_foreign,
}

fn bump(word: &impl Word, by: u64) {
    word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
}

/// Another CPU wants the pages back.
const REQUEST_DRAIN: u64 = 1;
/// The size, or the pressure that the zone is under, has changed.
const REQUEST_RESIZE: u64 = 2;
/// The zone has isolated pageblocks. Set and cleared under its lock: while it is set, every free asks what the pageblock
/// is.
const CLOSED: u64 = 16;
/// About a second has passed.
const REQUEST_TICK: u64 = 32;
/// Held by a CPU that writes another size, for that long.
const RESIZING: u64 = 8;
/// Turns that a CPU waits for another one to end [`RESIZING`], which takes a few instructions.
const RESIZE_TURNS: u32 = 1 << 16;
/// Never cleared: every free takes the slow path, where memory is poisoned.
const ALWAYS_SLOW: u64 = 4;

/// One CPU's lists of one zone.
#[repr(C, align(128))]
pub struct Pcp<'m, P: Platform> {
    /// What others ask. Set by anyone, cleared by the owner.
    request: P::Word,
    /// Threshold and count, or what all lists may hold: see `counting`.
    level: P::Word,
    /// The history of frees: see `counting`.
    freed: P::Word,
    /// The refill scale of the auto-tuned rules, halved by each free. Three frees make it 0, so while it is not, the
    /// threshold is 0, and those frees are no hits. So it is after a free of order 1 to 3 under the v6.7 rule: see
    /// `counting`.
    alloc_factor: P::Word,
    /// The live `high`.
    high: P::Word,
    /// `batch << 32 | high_min`, in one word so that nobody sees one without the other.
    sizing: P::Word,
    high_max: P::Word,
    lists: [List<'m, P>; LINUX_LISTS],
    events: EventWords<P>,
    /// Blocks on their way back to the zone. Written by the owner.
    outgoing: Outgoing<'m, P>,
    /// Whether hits count. Never changes.
    each_call: bool,
    /// Whether it matters which orders are freed one after another (v6.7): then no free of order 1 to 3 is a hit. Never
    /// changes.
    watches_orders: bool,
    /// A bit for each list that may hold blocks, unless hits count: see `counting`. Written by the owner.
    used: P::Word,
    /// The lists of orders 4 to 8, if they have any.
    more: Option<&'m MoreLists<'m, P>>,
    /// Of which pageblocks a freed block may go back to the zone: see [`may_go_back`](Self::may_go_back). Written by the owner.
    goes_back_from: P::Word,
    /// 1 while the owner is in a hit: see `turn`. Written by the owner.
    inside: P::Word,
    /// Whose turn it is: see `turn`. Written by the owner, and by a CPU that drains.
    turn: P::Word,
    /// The section that gave a block last, if the zone has several. Written by the owner.
    section: P::Word,
}

/// Lists of one CPU and zone for the orders that have none in Linux: 4 to 8.
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

/// Slots of a list under a configuration, for a zone whose `high` will never exceed `high_max`: a power of two, and 1 if the
/// order has no lists; none if it has none in Linux either.
fn slots_per_list(config: &Config, list: usize, high_max: u32, batch: u32) -> usize {
    let (order, migratetype) = kind_of(list);
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
    // What may sit there at `high`, and one largest refill or free on top.
    let pages = u64::from(high_max) + (u64::from(batch) << crate::policy::pcp::MAX_SCALE);
    let wanted = (pages >> order.get()) + u64::from(config.experiment.pcp_min_refill) + 1;
    wanted.min(u64::from(config.experiment.pcp_slots)).next_power_of_two() as usize
}

/// Whether lists under a configuration have [`MoreLists`].
pub(crate) fn has_more(config: &Config) -> bool {
    config.experiment.pcp_orders == PcpOrders::UpToHuge
}

/// Slots that all lists of one CPU and zone need together, and what is set aside.
pub(crate) fn slots_per_pcp(config: &Config, largest: Sizing) -> usize {
    let lists = (0..LISTS).map(|list| slots_per_list(config, list, largest.high_max, largest.batch));
    lists.sum::<usize>() + outgoing::slots(config)
}

impl<'m, P: Platform> Pcp<'m, P> {
    /// Empty lists of a CPU, which begins at a section, with the boot size, on `slots` from [`slots_per_pcp`] for the same largest size; with `more`
    /// if its configuration has lists of orders 4 to 8.
    pub(crate) fn new(
        config: &Config,
        cpu: CpuId,
        section: usize,
        largest: Sizing,
        slots: &'m [P::Word],
        more: Option<&'m mut MaybeUninit<MoreLists<'m, P>>>,
    ) -> Self {
        let tag = PlaceTag::new(cpu);
        let each_call = config.counts_each_call();
        // Where nothing but bits says who has a block, each allocation sets some.
        let marked = each_call || !config.engine.has_words();
        let hits = match (config.poison || config.fault_injection, marked) {
            (true, _) => Hits::None,
            (false, true) => Hits::Counted,
            (false, false) => Hits::Plain,
        };
        let mut rest = slots;
        let mut list = |number| {
            let (own, behind) =
                rest.split_at(slots_per_list(config, number, largest.high_max, largest.batch));
            rest = behind;
            let (order, migratetype) = kind_of(number);
            List::new(tag.on_list(order, migratetype), own, hits)
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
            events: EventWords::new(),
            outgoing: Outgoing::new(cpu, &rest[..outgoing::slots(config)]),
            each_call,
            watches_orders: config.experiment.pcp_rule.watches_orders(),
            used: P::Word::new(0),
            more,
            goes_back_from: P::Word::new(OpenHead::SPARSE),
            inside: P::Word::new(0),
            turn: P::Word::new(0),
            section: P::Word::new(section as u64),
        };
        pcp.resize(Sizing::BOOT);
        pcp
    }

    /// What a hit of a list reads and writes; `None` if there is no such list.
    pub(crate) fn list_words(&self, order: Order, migratetype: Migratetype) -> Option<ListWords<'m, P>> {
        self.hit_list(order, migratetype).map(List::words)
    }

    /// Asks for another size. Callable from any CPU; the owner follows at its next call. Of several CPUs that resize at
    /// once, one comes last, with all of its size. A CPU that does not end within [`RESIZE_TURNS`] has died, in memory that
    /// processes share.
    pub(crate) fn resize(&self, sizing: Sizing) {
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

    /// Asks the owner to give all pages back. Callable from any CPU.
    pub(crate) fn request_drain(&self) {
        if self.count() > 0 {
            self.set_request(REQUEST_DRAIN);
        }
    }

    /// Asks the owner to let its lists shrink, if there is anything to shrink. Callable from any CPU.
    pub(crate) fn request_tick(&self) {
        if self.high() > self.sizing().high_min || self.count() > self.high() {
            self.set_request(REQUEST_TICK);
        }
    }

    /// Whether the owner has yet to answer a drain request.
    pub(crate) fn drain_pending(&self) -> bool {
        self.request.load(Acquire) & REQUEST_DRAIN != 0
    }

    /// Asks the owner to give all pages back, also if it seems to have none: it may be about to put one onto a list.
    pub(crate) fn request_drain_anyway(&self) {
        self.set_request(REQUEST_DRAIN);
    }

    /// Makes every free of the owner ask what the pageblock is, as long as a pageblock of the zone is isolated. Where hits
    /// count they do so anyway. Called under the zone lock.
    pub(crate) fn set_closed(&self, closed: bool) {
        match closed {
            _ if self.each_call => {}
            true => self.set_request(CLOSED),
            false => self.clear(CLOSED),
        }
    }

    /// Whether every free of the owner asks what the pageblock is. Read under the zone lock.
    pub(crate) fn is_closed(&self) -> bool {
        self.request.load(Relaxed) & CLOSED != 0
    }

    /// The list of an order and a type; `None` if the order has none.
    #[inline(always)]
    pub(crate) fn hit_list(&self, order: Order, migratetype: Migratetype) -> Option<&List<'m, P>> {
        self.get(list_of(order, migratetype)?)
    }

    /// A list by its number; `None` if there is none.
    #[inline(always)]
    fn get(&self, number: usize) -> Option<&List<'m, P>> {
        match number.checked_sub(LINUX_LISTS) {
            None => Some(&self.lists[number]),
            Some(other) => self.more.map(|more| &more.lists[other]),
        }
    }

    /// The list of a number that [`list_of`](Self::list_of) has returned.
    #[inline(always)]
    fn list(&self, number: usize) -> &List<'m, P> {
        self.get(number).expect("lists of these orders have been found")
    }

    /// All lists, by number.
    fn lists(&self) -> impl Iterator<Item = &List<'m, P>> {
        self.lists.iter().chain(self.more.iter().flat_map(|more| &more.lists))
    }

    /// The list of an order and a type, where a hit has failed: reclaimable huge blocks that have no list of their own wait
    /// with the unmovable ones.
    pub(crate) fn list_of(&self, order: Order, migratetype: Migratetype) -> Option<usize> {
        let number = list_of(order, migratetype)?;
        let list = self.get(number)?;
        if order == PAGEBLOCK_ORDER && migratetype == Migratetype::Reclaimable && list.capacity() == 0 {
            return list_of(order, Migratetype::Unmovable);
        }
        Some(number)
    }

    fn set_request(&self, what: u64) {
        let mut old = self.request.load(Relaxed);
        // Even if the bit is set already: the owner that clears it must see what was written before this.
        while let Err(now) = self.request.compare_exchange(old, old | what, AcqRel, Relaxed) {
            old = now;
        }
        self.lists_in_use().for_each(List::shut);
    }

    /// Lists of orders without lists stay shut.
    fn lists_in_use(&self) -> impl Iterator<Item = &List<'m, P>> {
        self.lists().filter(|list| list.capacity() > 0)
    }

    /// Clears what the owner has answered.
    fn clear(&self, what: u64) {
        let mut old = self.request.load(Relaxed);
        while let Err(now) = self.request.compare_exchange(old, old & !what, AcqRel, Relaxed) {
            old = now;
        }
    }

    /// The size asked for last.
    #[must_use]
    pub fn sizing(&self) -> Sizing {
        let word = self.sizing.load(Relaxed);
        Sizing {
            batch: (word >> 32) as u32,
            high_min: word as u32,
            high_max: self.high_max.load(Relaxed) as u32,
        }
    }

    /// The live `high`, in base pages.
    #[must_use]
    pub fn high(&self) -> u32 {
        self.high.load(Relaxed) as u32
    }

    /// Whether a freed block of this pageblock may have to go back to the zone: of a sparse one, and while blocks
    /// [merge](Self::merges), of any that has free frames. For the owner.
    #[inline(always)]
    pub(crate) fn may_go_back(&self, pageblock: &Pageblock<P>) -> bool {
        pageblock.is_from(self.goes_back_from.load(Relaxed))
    }

    /// Whether a freed block whose buddy is free goes back to the zone, where the two merge. For the owner.
    #[inline(always)]
    pub(crate) fn merges(&self) -> bool {
        self.goes_back_from.load(Relaxed) != OpenHead::SPARSE
    }

    /// Says so. By the owner.
    fn set_merges(&self, merges: bool) {
        if self.merges() != merges {
            self.goes_back_from.store(if merges { OpenHead::OPEN } else { OpenHead::SPARSE }, Relaxed);
        }
    }

    /// What the lists have been through. A racy read for others than the owner.
    #[must_use]
    pub fn events(&self) -> PcpEvents {
        self.events.read()
    }

    /// Base pages that have left the zone through these lists' owner.
    pub(crate) fn pages_taken(&self) -> u64 {
        self.events.refilled_pages.load(Relaxed) + self.events.direct_alloc_pages.load(Relaxed)
    }

    /// Counts blocks that the owner has taken from the zone; `wanted`: its lists of the zone on another node where they
    /// were wanted.
    pub(crate) fn count_numa(&self, blocks: u64, wanted: Option<&Self>) {
        match wanted {
            None => bump(&self.events.numa_hit, blocks),
            Some(wanted) => {
                bump(&self.events.numa_miss, blocks);
                bump(&wanted.events.numa_foreign, blocks);
            }
        }
    }

    /// Asks the owner to reckon with another pressure. Callable from any CPU.
    pub(crate) fn pressure_changed(&self) {
        self.set_request(REQUEST_RESIZE);
    }

    /// Whether a block, whose head word says that it sits or last sat here, sits here: asked by any CPU that frees it.
    #[inline]
    pub(crate) fn holds(&self, order: Order, migratetype: Migratetype, position: u32, pfn: Pfn) -> bool {
        if migratetype == outgoing::ASKED {
            // Its head word alone says so: see `outgoing`.
            return true;
        }
        self.hit_list(order, migratetype).is_some_and(|list| list.holds(position, pfn))
    }

    /// Whether a block whose head word says that it is set aside here is so. Yes, if the word says something else. For
    /// verification.
    pub(crate) fn is_aside_as_said(&self, order: Order, asked: Migratetype, position: u32, pfn: Pfn) -> bool {
        asked != outgoing::ASKED || self.outgoing.holds(order, position, pfn)
    }

    /// Every block on the lists or set aside, with its list's order and type and its position. For verification.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (Order, Migratetype, u32, Pfn)> {
        let lists = self.lists().enumerate().flat_map(|(n, list)| {
            let (order, migratetype) = kind_of(n);
            list.places().map(move |place| (order, migratetype, place as u32, list.at(place)))
        });
        let outgoing = self.outgoing.blocks().zip(0..);
        lists.chain(outgoing.map(|((order, pfn), position)| (order, outgoing::ASKED, position, pfn)))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;
    use crate::config::Experiment;
    use crate::platform::machine::{self, Machine};

    #[test]
    fn a_cpu_that_died_while_it_resized_is_not_waited_for() {
        let config = Config {
            experiment: Experiment { pcp_orders: PcpOrders::Zero, ..Config::linux_v5_4().experiment },
            ..Config::linux_v5_4()
        };
        let size = Sizing { batch: 3, high_min: 18, high_max: 18 };
        let slots: Vec<_> = (0..slots_per_pcp(&config, size)).map(|_| Word::new(0)).collect();
        let pcp: Pcp<'_, Machine> = Pcp::new(&config, CpuId(0), 0, size, &slots, None);
        pcp.request.fetch_add(RESIZING, Relaxed);
        machine::with_others(|_| {}, || pcp.resize(size));
        assert_eq!((pcp.sizing(), pcp.request.load(Relaxed) & RESIZING), (size, 0));
    }
}
