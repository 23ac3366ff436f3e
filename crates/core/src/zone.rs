//! A zone: free store, its lock, counters, and their cache lines.
//!
//! With maps a large zone has several *sections* (see `sections`), each with a lock and a free store. The first one is
//! in the zone, so that a zone of one section has the layout below.
//!
//! # Layout, in bytes, with 8-byte words and 64-byte lines
//! | | bytes | shares a line with |
//! |---|---|---|
//! | lock, `with_order0_lists` | 0–15 | the order-0 lists of the three ordinary types |
//! | free areas, 88 bytes an order | 16–983 | |
//! | isolated pageblocks | 984–991 | the end of order 10 |
//! | lock, `other_end` | 992–1007 | the end of order 10, the isolated count |
//! | lock, `own_line` | 1024–1039 | nothing |
//!
//! Linux' lock has 4 bytes, and its group starts at the free areas after the lock has moved to their end. Ours has 16
//! bytes in every layout and the areas stay at their offset; the same data share lines as in Linux.

mod pressure;
mod sections;

use core::fmt;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use crate::buddy::{Bitmaps, Buddy, Cold, Common, Counters, Extent, FreeAreas, Pending, Untouched};
use crate::config::{Config, Experiment};
use crate::events::ZoneEvents;
use crate::frame::FrameMap;
use crate::platform::{Platform, Word};
use crate::policy::watermark::Marks;
use crate::sync::{Locked, Waiter};
use crate::units::{NodeId, Order, Pfn, ZoneId, ZoneType};
pub(crate) use pressure::Pressure;
pub(crate) use sections::{Cut, MOST_SECTIONS};

/// Nanoseconds after a drain that brought nothing, in which no failing request begins another of the same zones.
const REST_NS: u64 = 1_000_000;

/// Range, node and type of a zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ZoneSpec {
    /// Node of the memory.
    pub node: NodeId,
    /// Zone type: DMA, DMA32, Normal or Movable.
    pub kind: ZoneType,
    /// First frame; a multiple of 1024.
    pub start: Pfn,
    /// Frames spanned, holes included; at most [`MAX_ZONE_PAGES`](crate::frame::MAX_ZONE_PAGES).
    pub pages: u64,
}

impl ZoneSpec {
    /// The first frame after the zone.
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

/// Record of one hold of the zone lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hold {
    /// Whether the CPU had to wait for the lock.
    pub waited: bool,
    /// Nanoseconds spent waiting for the lock; 0 if `lock_timing` is off.
    pub wait_ns: u64,
    /// Nanoseconds the lock was held; 0 if `lock_timing` is off.
    pub hold_ns: u64,
    /// Whether the zone's last bad frame in use went out of use in this hold: frees may hit again.
    pub is_unmarked: bool,
}

/// A part of a zone with a lock and a free store of its own.
#[repr(C)]
pub struct Section<P: Platform> {
    lists: Locked<P, FreeAreas<P>, Cold<P>>,
    extent: Extent<P>,
}

impl<P: Platform> fmt::Debug for Section<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lists.fmt(f)
    }
}

impl<P: Platform> Section<P> {
    /// Section `n` of a zone, with the frames of `range`. With maps, the maps of its free pageblocks begin at number
    /// `whole`.
    pub(crate) fn new(config: &Config, whole: usize, n: usize, range: Range<Pfn>) -> Self {
        let bitmaps = Bitmaps::new(whole, range.end.0 - range.start.0);
        let Experiment { lock_place, lock_kind, .. } = config.experiment;
        Self {
            lists: Locked::new(lock_place, lock_kind, FreeAreas::new(), Cold::new()),
            extent: Extent { untouched: Untouched::new(), bitmaps, n, range },
        }
    }
}

/// A zone. Shared by all CPUs.
#[repr(C)]
pub struct Zone<'m, P: Platform> {
    first: Section<P>,
    /// Counters, which are read without the lock, and what else the sections share.
    common: Common<'m, P>,
    /// Marks, flags, and counts of reclaim.
    pub(crate) pressure: Pressure<P>,
    spec: ZoneSpec,
    lock_timing: bool,
    /// CPUs that share the zone's pages: those of its node (see [`sharing_cpus`](crate::policy::pcp::sharing_cpus)).
    pub(crate) cpus: u32,
    /// CPUs whose lists may hold pages of the zone, unless hits count. Any CPU adds itself, and takes itself or a CPU
    /// whose lists it has drained away.
    pub(crate) sharers: P::Word,
    /// Time before which no failing request drains the lists of other CPUs again; see [`rests`](Self::rests).
    rests_until: P::Word,
    /// Division of the store into sections.
    pub(crate) cut: Cut,
    /// All sections but the first.
    more: &'m [Section<P>],
}

impl<P: Platform> fmt::Debug for Zone<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Zone")
            .field("id", &self.common.zone)
            .field("spec", &self.spec)
            .finish_non_exhaustive()
    }
}

impl<'m, P: Platform> Zone<'m, P> {
    /// `cpus` share its pages. Its store is cut as `cut` says into `first` and `more`, whose `words` are all 0.
    pub(crate) fn new(
        id: ZoneId,
        spec: ZoneSpec,
        config: &Config,
        cpus: u32,
        cut: Cut,
        (first, more, words): (Section<P>, &'m [Section<P>], &'m [P::Word]),
    ) -> Self {
        Self {
            first,
            common: Common {
                // Shown as for Linux' watermark checks. With bits the check takes the lock.
                counters: Counters::new(
                    config.keep_marks && !config.engine.has_maps(),
                    config.engine.has_maps(),
                ),
                words,
                special: P::Word::new(0),
                zone: id,
                reports: config.free_reporting,
                lazy: config.lazy_pageblocks && config.engine.has_maps() && !config.poison,
            },
            pressure: Pressure::new(),
            spec,
            lock_timing: config.experiment.lock_timing,
            cpus,
            sharers: P::Word::new(0),
            rests_until: P::Word::new(0),
            cut,
            more,
        }
    }

    /// Index in the zone table.
    #[must_use]
    pub const fn id(&self) -> ZoneId {
        self.common.zone
    }

    /// Range, node and type.
    #[must_use]
    pub const fn spec(&self) -> &ZoneSpec {
        &self.spec
    }

    /// The present watermarks, any boost included, in base pages; 0 if the zone keeps none.
    #[must_use]
    pub fn marks(&self) -> Marks {
        self.pressure.marks().boosted(self.pressure.boost())
    }

    /// Pages that requests up to type `highest` must leave, in addition to a mark.
    #[must_use]
    pub fn reserve(&self, highest: ZoneType) -> u64 {
        self.pressure.reserve(highest)
    }

    /// Event counters of reclaim in the zone.
    #[must_use]
    pub fn events(&self) -> ZoneEvents {
        self.pressure.events.read()
    }

    /// Whether background reclaim has given the zone up, until it gets a page back.
    #[must_use]
    pub fn is_unreclaimable(&self) -> bool {
        self.pressure.is_unreclaimable()
    }

    /// Counters of free and managed memory.
    pub(crate) const fn counters(&self) -> &Counters<P> {
        &self.common.counters
    }

    /// The untouched frames of each section that a range touches (see [`Config::lazy_pageblocks`]). A racy read.
    pub(crate) fn untouched(&self, within: Range<Pfn>) -> impl Iterator<Item = Range<Pfn>> {
        let end = if self.common.is_lazy() { within.end.min(self.spec.end()) } else { Pfn(0) };
        let parts = self.cut.parts(within.start.max(self.spec.start)..end);
        parts.map(|part| self.section(self.cut.number_of(part.start)).extent.untouched.range())
    }

    /// Free base pages on the buddy lists. A racy read; isolated pages are not counted.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.common.counters.free_pages()
    }

    /// Free base pages in CMA pageblocks. A racy read.
    #[must_use]
    pub fn free_cma_pages(&self) -> u64 {
        self.common.counters.free_cma_pages()
    }

    /// Managed pages: those that the zone was given.
    #[must_use]
    pub fn managed_pages(&self) -> u64 {
        self.common.counters.managed.load(Relaxed)
    }

    /// Present pages: those that the zone was given, and those that boot found and kept.
    #[must_use]
    pub fn present_pages(&self) -> u64 {
        self.common.counters.present.load(Relaxed)
    }

    /// Whether a drain of other CPUs' lists of the zone has brought nothing before `now`, at most [`REST_NS`] ago.
    /// Never, if the platform's clock stands still.
    pub(crate) fn rests(&self, now: u64) -> bool {
        // The request whose own drain it was has read the clock before that drain, and perhaps the same time: it still
        // waits for the CPUs that it has asked.
        self.rests_until.load(Relaxed).wrapping_sub(now).wrapping_sub(1) < REST_NS
    }

    /// Records that a drain of other CPUs' lists has brought nothing, although lists held blocks.
    pub(crate) fn rest(&self) {
        self.rests_until.store(P::now_ns().wrapping_add(REST_NS + 1), Relaxed);
    }

    /// Number of sections of the free store.
    #[must_use]
    pub const fn sections(&self) -> usize {
        self.cut.sections()
    }

    /// Free pageblocks, without isolated ones and untouched memory, by the bitmaps. A racy read without the lock.
    pub(crate) fn free_pageblocks<M>(&self, frames: &FrameMap<'m, P, M>) -> u64 {
        (0..self.cut.sections()).map(|n| self.section(n).extent.bitmaps.free_pageblocks(frames)).sum()
    }

    fn section(&self, n: usize) -> &Section<P> {
        if n == 0 { &self.first } else { &self.more[n - 1] }
    }

    /// Runs `f` on the store of a section with its lock held. Also returns the record of the hold. A CPU holds the lock
    /// of one section at a time.
    #[inline]
    pub(crate) fn with_section<'f, M, R>(
        &self,
        n: usize,
        frames: &FrameMap<'f, P, M>,
        waiter: Waiter<'_, P>,
        f: impl FnOnce(&mut Buddy<'_, 'f, P, M>) -> R,
    ) -> (R, Hold) {
        let (result, hold, pending) = self.with_uncounted(n, frames, waiter, f);
        self.common.counters.count(pending);
        (result, hold)
    }

    /// Like [`with_section`](Self::with_section), but the caller counts the pages, for several holds together: all CPUs
    /// of a node add to the same words.
    #[inline]
    pub(crate) fn with_uncounted<'f, M, R>(
        &self,
        n: usize,
        frames: &FrameMap<'f, P, M>,
        waiter: Waiter<'_, P>,
        f: impl FnOnce(&mut Buddy<'_, 'f, P, M>) -> R,
    ) -> (R, Hold, Pending) {
        let section = self.section(n);
        let clock = || if cfg!(feature = "settings") && self.lock_timing { P::now_ns() } else { 0 };
        let asked = clock();
        let mut got = 0;
        let (waited, (result, pending, is_unmarked)) = section.lists.with(waiter, |areas, cold, waited| {
            got = clock();
            (waited, self.hold(&section.extent, areas, cold, frames, f))
        });
        let (wait_ns, hold_ns) = (got.saturating_sub(asked), clock().saturating_sub(got));
        (result, Hold { waited, wait_ns, hold_ns, is_unmarked }, pending)
    }

    /// Like [`with_section`](Self::with_section), but only if the lock is free: `None` without a call of `f`, and
    /// without a wait, if not.
    pub(crate) fn try_with_section<'f, M, R>(
        &self,
        n: usize,
        frames: &FrameMap<'f, P, M>,
        f: impl FnOnce(&mut Buddy<'_, 'f, P, M>) -> R,
    ) -> Option<R> {
        let section = self.section(n);
        let hold = |areas: &mut _, cold: &mut _| self.hold(&section.extent, areas, cold, frames, f);
        let (result, pending, _) = section.lists.try_with(hold)?;
        self.common.counters.count(pending);
        Some(result)
    }

    /// What is done in a hold. Also returns what is counted after it, and whether the last pageblock with a bad frame
    /// in use went out of use.
    #[inline(always)]
    fn hold<'f, M, R>(
        &self,
        extent: &Extent<P>,
        areas: &mut FreeAreas<P>,
        cold: &mut Cold<P>,
        frames: &FrameMap<'f, P, M>,
        f: impl FnOnce(&mut Buddy<'_, 'f, P, M>) -> R,
    ) -> (R, Pending, bool) {
        let mut buddy = Buddy::new(areas, cold, (&self.common, extent, &self.pressure.highatomic), frames);
        let result = f(&mut buddy);
        let (pending, is_unmarked) = buddy.end();
        if pending.freed {
            self.pressure.note_freed();
        }
        (result, pending, is_unmarked)
    }

    /// Byte offsets within the write group: the three lock places, the free areas (order 0), order 0's count,
    /// the order-10 lists, the isolated count. For tests and for the simulator's names of lines.
    #[must_use]
    pub const fn layout() -> Layout {
        let [before, after, own_line, hot, cold] = Locked::<P, FreeAreas<P>, Cold<P>>::offsets();
        let [lists, count, last, flags] = FreeAreas::<P>::offsets();
        Layout {
            locks: [before, after, own_line],
            order0_lists: hot + lists,
            order0_count: hot + count,
            order10_lists: hot + last,
            isolated_count: hot + flags,
            cold,
            bins: cold + Cold::<P>::bins_offset(),
            counters: core::mem::offset_of!(Self, common.counters),
            untouched: core::mem::offset_of!(Section<P>, extent.untouched),
        }
    }
}

/// Byte offsets of a zone's shared fields (see [`Zone::layout`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// The lock's places: `with_order0_lists`, `other_end`, `own_line`.
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
    /// By type, a word with a bit for each bin that has a pageblock. Only with maps.
    pub bins: usize,
    /// Free, free CMA, managed and present pages.
    pub counters: usize,
    /// The first frame of untouched memory, and the first after it.
    pub untouched: usize,
}

/// The largest order for which `list_has` answers `true`.
pub(crate) fn largest_order(list_has: impl Fn(Order) -> bool) -> Option<Order> {
    Order::all().rev().find(|&order| list_has(order))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::machine::{Machine, show_time};
    use crate::units::NR_ORDERS;

    /// A request that reads the time of its own vain drain, as from a clock that counts milliseconds or stands still,
    /// still waits for the CPUs that it has asked; requests after that time do not drain again.
    #[test]
    fn a_zone_rests_after_the_moment_of_a_vain_drain() {
        let spec = ZoneSpec { node: NodeId(0), kind: ZoneType::Normal, start: Pfn(0), pages: 1024 };
        let config = Config::framewright();
        let first = Section::<Machine>::new(&config, 0, 0, spec.start..spec.end());
        let cut = Cut::new(&spec, &config, 1);
        let zone = Zone::new(ZoneId(0), spec, &config, 1, cut, (first, &[], &[]));
        let rests = || [0, 1, REST_NS, REST_NS + 1].map(|now| zone.rests(now));
        assert_eq!(rests(), [false; 4], "no drain was in vain");
        zone.rest();
        assert_eq!(rests(), [false, true, true, false]);
        // The last moment before the clock wraps.
        show_time(u64::MAX);
        zone.rest();
        assert_eq!((zone.rests(u64::MAX), rests()), (false, [true, true, false, false]));
    }

    /// As the table in the file's head says.
    #[test]
    fn the_layout_is_that_of_linux() {
        let Layout {
            locks,
            order0_lists,
            order0_count,
            order10_lists,
            isolated_count,
            cold,
            bins,
            counters,
            untouched,
        } = Zone::<Machine>::layout();
        assert_eq!(locks, [0, 992, 1024]);
        assert_eq!((order0_lists, order0_count), (16, 16 + 5 * 16));
        assert_eq!((order10_lists, isolated_count), (16 + 10 * 88, 16 + NR_ORDERS * 88));
        assert!(cold >= 1088 && cold.is_multiple_of(64) && counters.is_multiple_of(64));
        let section = size_of::<Section<Machine>>();
        assert!(
            (cold..section).contains(&bins) && (cold..section).contains(&untouched) && counters >= section
        );
    }
}
