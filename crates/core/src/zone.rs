//! A zone: buddy lists, their lock, counters, and where each lies in cache lines.
//!
//! # Layout, in bytes, with 8-byte words and 64-byte lines
//! | | bytes | what shares a line with it |
//! |---|---|---|
//! | lock, `with_order0_lists` | 0–15 | the order-0 lists of the three ordinary types |
//! | free areas, 88 bytes an order | 16–983 | |
//! | isolated pageblocks | 984–991 | the end of order 10 |
//! | lock, `other_end` | 992–1007 | the end of order 10, the isolated count |
//! | lock, `own_line` | 1024–1039 | nothing |
//!
//! Linux' lock is 4 bytes and its group starts at the free areas once the lock has moved behind them; ours is
//! 16 bytes in every layout and the areas stay where they are, which leaves each sharing relation as it was.

use core::fmt;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::{Buddy, Cold, FreeAreas, Freed, LISTED_TYPES};
use crate::config::Config;
use crate::frame::FrameMap;
use crate::platform::{Platform, Word};
use crate::policy::fallback;
use crate::sync::{Locked, Waiter};
use crate::units::{MAX_ORDER, NodeId, Order, Pfn, ZoneId, ZoneType};

/// What a zone spans and is good for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpec {
    /// The node whose memory it is.
    pub node: NodeId,
    /// What its addresses are good for.
    pub kind: ZoneType,
    /// First frame; a multiple of 1024.
    pub start: Pfn,
    /// Frames spanned, holes included; at most [`MAX_ZONE_PAGES`](crate::frame::MAX_ZONE_PAGES).
    pub pages: u64,
}

impl ZoneSpec {
    /// The first frame behind the zone.
    #[must_use]
    pub const fn end(&self) -> Pfn {
        Pfn(self.start.0 + self.pages)
    }

    /// Whether the zone spans `pfn`.
    #[must_use]
    pub const fn spans(&self, pfn: Pfn) -> bool {
        pfn.0.wrapping_sub(self.start.0) < self.pages
    }
}

/// Zone counters, in base pages. Written under the zone lock, read by anyone.
#[repr(C, align(64))]
struct Counters<P: Platform> {
    /// Free pages on the buddy lists, isolated ones not counted.
    free: P::Word,
    /// Those of them in CMA pageblocks.
    free_cma: P::Word,
    /// Pages the zone was given.
    managed: P::Word,
    /// Pages of memory the zone has, whether given to it or reserved.
    present: P::Word,
}

/// How one hold of the zone lock went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hold {
    /// Whether another CPU held the lock first.
    pub waited: bool,
    /// Nanoseconds until the lock was had; 0 if `lock_timing` is off.
    pub wait_ns: u64,
    /// Nanoseconds it was held; 0 if `lock_timing` is off.
    pub hold_ns: u64,
}

/// A zone. Shared by all CPUs.
#[repr(C)]
pub struct Zone<P: Platform> {
    lists: Locked<P, FreeAreas<P>, Cold<P>>,
    counters: Counters<P>,
    id: ZoneId,
    spec: ZoneSpec,
    lock_timing: bool,
}

impl<P: Platform> fmt::Debug for Zone<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone").field("id", &self.id).field("spec", &self.spec).finish_non_exhaustive()
    }
}

impl<P: Platform> Zone<P> {
    pub(crate) fn new(id: ZoneId, spec: ZoneSpec, config: &Config) -> Self {
        Self {
            lists: Locked::new(config.lock_place, config.lock_kind, FreeAreas::new(), Cold::new()),
            counters: Counters {
                free: P::Word::new(0),
                free_cma: P::Word::new(0),
                managed: P::Word::new(0),
                present: P::Word::new(0),
            },
            id,
            spec,
            lock_timing: config.lock_timing,
        }
    }

    /// The zone's place in the zone table.
    #[must_use]
    pub const fn id(&self) -> ZoneId {
        self.id
    }

    /// What the zone spans.
    #[must_use]
    pub const fn spec(&self) -> &ZoneSpec {
        &self.spec
    }

    /// The frame that links between free blocks count from.
    pub(crate) fn link_base(&self) -> Pfn {
        self.spec.start.block_start(MAX_ORDER)
    }

    /// Free base pages on the buddy lists. A racy read; isolated pages are not counted.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.counters.free.load(Relaxed)
    }

    /// Free base pages in CMA pageblocks. A racy read.
    #[must_use]
    pub fn free_cma_pages(&self) -> u64 {
        self.counters.free_cma.load(Relaxed)
    }

    /// Base pages the zone was given.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        self.counters.managed.load(Relaxed)
    }

    /// Base pages of memory the zone has: those it was given, and those that boot found and kept.
    #[must_use]
    pub fn present_pages(&self) -> u64 {
        self.counters.present.load(Relaxed)
    }

    /// Changes the free counters. Under the zone lock: a load and a store each.
    pub(crate) fn count_free(&self, pages: i64, cma_pages: i64) {
        add(&self.counters.free, pages);
        if cma_pages != 0 {
            add(&self.counters.free_cma, cma_pages);
        }
    }

    /// Counts what was freed. Under the zone lock.
    pub(crate) fn count_freed(&self, freed: Freed) {
        self.count_free(freed.pages as i64, freed.cma as i64);
    }

    /// Adds to the managed pages. Under the zone lock.
    pub(crate) fn count_managed(&self, pages: i64) {
        add(&self.counters.managed, pages);
    }

    /// Adds to the pages present. Under the zone lock.
    pub(crate) fn count_present(&self, pages: i64) {
        add(&self.counters.present, pages);
    }

    /// Runs `f` on the buddy lists with the zone lock held, and says how the hold went.
    #[inline]
    pub(crate) fn with<'m, M, R>(
        &self,
        frames: FrameMap<'m, P, M>,
        waiter: Waiter<'_, P>,
        f: impl FnOnce(&mut Buddy<'_, 'm, P, M>) -> R,
    ) -> (R, Hold) {
        let clock = || if self.lock_timing { P::now_ns() } else { 0 };
        let asked = clock();
        let mut got = 0;
        let (result, waited) = self.lists.with(waiter, |areas, cold, waited| {
            got = clock();
            let base = self.link_base();
            let grouping = fallback::grouping(self.managed_pages(), LISTED_TYPES as u64);
            (f(&mut Buddy::new(areas, cold, frames, self.id, base, grouping)), waited)
        });
        let hold = Hold { waited, wait_ns: got.saturating_sub(asked), hold_ns: clock().saturating_sub(got) };
        (result, hold)
    }

    /// Byte offsets within the write group: the three lock places, the free areas (order 0), order 0's count,
    /// the order-10 lists, the isolated count. For tests and for the simulator's names of lines.
    #[must_use]
    pub const fn layout() -> Layout {
        let [before, after, own, hot, cold] = Locked::<P, FreeAreas<P>, Cold<P>>::offsets();
        let [lists, count, last, flags] = FreeAreas::<P>::offsets();
        Layout {
            locks: [before, after, own],
            order0_lists: hot + lists,
            order0_count: hot + count,
            order10_lists: hot + last,
            isolated_count: hot + flags,
            cold,
            counters: core::mem::offset_of!(Self, counters),
        }
    }
}

/// Byte offsets of a zone's shared fields (see [`Zone::layout`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// `with_order0_lists`, `other_end`, `own_line`.
    pub locks: [usize; 3],
    /// First list of order 0.
    pub order0_lists: usize,
    /// Block count of order 0.
    pub order0_count: usize,
    /// First list of order 10.
    pub order10_lists: usize,
    /// Count of isolated pageblocks.
    pub isolated_count: usize,
    /// Isolated lists and statistics.
    pub cold: usize,
    /// Free, free CMA, managed and present pages.
    pub counters: usize,
}

fn add(word: &impl Word, change: i64) {
    word.store(word.load(Relaxed).wrapping_add_signed(change), Relaxed);
}

/// The largest order of which `list_has` says that a list has a block.
pub(crate) fn largest_order(list_has: impl Fn(Order) -> bool) -> Option<Order> {
    Order::all().rev().find(|&order| list_has(order))
}
