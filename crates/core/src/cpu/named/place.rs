//! Allocation of a given block: for device carve-outs, regions chosen by firmware or a hypervisor, memory to be tested;
//! and of what is free in a pageblock, for work on unused memory, such as giving it back to a host.

use core::fmt;
use core::ops::Range;

use crate::cpu::Cpu;
use crate::frame::{FrameUser, State};
use crate::pcp::Local;
use crate::platform::Platform;
use crate::units::{CpuId, Migratetype, Order, PAGEBLOCK_ORDER, Pfn};
use crate::zone::Zone;

/// Reason why a given block cannot be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceFailure {
    /// Not all of its frames belong to one zone of this allocator.
    Foreign,
    /// A block of this order cannot start at this frame.
    Misaligned,
    /// Some of it is in use: the first block or frame that is not free.
    InUse {
        /// First frame of that block.
        pfn: Pfn,
        /// State of that block.
        state: State,
    },
    /// Some of it is on the list of a CPU that was requested to drain, and has not done so yet.
    Listed {
        /// First frame of the block on the list.
        pfn: Pfn,
        /// The CPU.
        cpu: CpuId,
    },
    /// Some of it is in an isolated pageblock, whose frames are not handed out.
    Isolated(Pfn),
    /// Without it the zone would be below its min mark. For ranges only ([`Cpu::alloc_contig_range`]).
    BelowMark,
    /// The block was free, and a check has found it bad: it is out of use now.
    Bad,
    /// Fault injection let it fail (see [`fault`](crate::fault)).
    Injected,
}

/// A given block that could not be allocated. The state is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlaceError {
    /// Reason.
    pub why: PlaceFailure,
    /// The first frame requested.
    pub pfn: Pfn,
    /// Number of frames requested.
    pub pages: u64,
}

impl fmt::Display for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot allocate the {} frame(s) at {:?}: ", self.pages, self.pfn)?;
        match self.why {
            PlaceFailure::Foreign => f.write_str("not all of them belong to one zone of this allocator"),
            PlaceFailure::Misaligned => {
                write!(f, "a block of this order starts at a multiple of {} frames", self.pages)
            }
            PlaceFailure::InUse { pfn, state } => write!(f, "{pfn:?} is in use: {state}"),
            PlaceFailure::Listed { pfn, cpu } => {
                write!(f, "{pfn:?} is on a list of {cpu:?}, which has been asked to drain it")
            }
            PlaceFailure::Isolated(pfn) => write!(f, "the pageblock at {pfn:?} is isolated"),
            PlaceFailure::BelowMark => f.write_str("without them the zone would be below its min mark"),
            PlaceFailure::Bad => f.write_str("a check has found the memory bad"),
            PlaceFailure::Injected => f.write_str("it was made to fail"),
        }
    }
}

impl core::error::Error for PlaceError {}

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Allocates the block of `order` at `pfn`, and no other. It counts as unmovable: compaction does not move it. It
    /// is freed like any other block.
    ///
    /// If parts of it are on this CPU's lists, these are drained. Other CPUs with parts on their lists are requested to
    /// drain, and waited for as long as by a failing allocation. No mark is checked.
    ///
    /// O(orders), under the lock of one zone; plus the drains.
    ///
    /// # Errors
    /// The obstacle. The state is unchanged then, but lists may have been drained.
    pub fn alloc_at(&self, pfn: Pfn, order: Order) -> Result<(), PlaceError> {
        let error = |why| PlaceError { why, pfn, pages: order.pages() };
        if !pfn.is_aligned(order) {
            return Err(error(PlaceFailure::Misaligned));
        }
        let zone = self.zone_of(pfn, order.pages()).ok_or(error(PlaceFailure::Foreign))?;
        if self.allocator.strikes(order) {
            return Err(error(PlaceFailure::Injected));
        }
        let local = self.local(zone.id());
        let range = pfn..pfn.add(order.pages());
        let take = || self.take_frames(&local, range.clone(), false);
        self.with_lists_drained(zone, take).map_err(error)?;
        if local.accept(pfn, order) { Ok(()) } else { Err(error(PlaceFailure::Bad)) }
    }

    /// Allocates the free blocks of at least order `least` that begin in the pageblock of `pfn`, each with its own
    /// order, until `out` is full. With maps, the largest come first. Returns the number of blocks. Blocks on CPUs'
    /// lists, in reserves and in isolated pageblocks are not taken; an absent pageblock has none. Blocks that a check
    /// finds bad are out of use. Each block is freed like any other.
    ///
    /// No mark is checked: the caller keeps the blocks for a moment only. O(512), under the lock of one zone.
    pub fn take_free(&self, pfn: Pfn, least: Order, out: &mut [(Pfn, Order)]) -> usize {
        let start = pfn.block_start(PAGEBLOCK_ORDER);
        if !self.frames.contains(start) || !self.frames.info(start).is_present() {
            return 0;
        }
        let zone = &self.allocator.zones[self.frames.info(start).zone().index()];
        let taken = self.allocator.in_section_of(zone, start, Some(self.cpu), |buddy| {
            let taken = buddy.take_whole(start, least, out);
            for &(pfn, order) in &out[..taken] {
                self.frames.set_tiles(pfn..pfn.add(order.pages()), Migratetype::Movable);
            }
            taken
        });
        let local = self.local(zone.id());
        let mut good = 0;
        for n in 0..taken {
            let (pfn, order) = out[n];
            if local.is_good(pfn, order) {
                out[good] = out[n];
                good += 1;
            }
        }
        good
    }

    /// The zone that holds all `pages` frames from `pfn` on; `None` if there is none, or the first frame has no memory.
    pub(super) fn zone_of(&self, pfn: Pfn, pages: u64) -> Option<&'m Zone<'m, P>> {
        let frames = &self.allocator.frames;
        self.allocator.touch(pfn, Pfn(pfn.0.saturating_add(pages)));
        let zone = frames.contains(pfn).then(|| &self.allocator.zones[frames.info(pfn).zone().index()])?;
        let last = Pfn(pfn.0.checked_add(pages.checked_sub(1)?)?);
        (zone.spec().spans(last) && zone.spec().spans(pfn)).then_some(zone)
    }

    /// Takes free frames of one section as unmovable blocks, also isolated ones if `even_isolated`.
    pub(super) fn take_frames(
        &self,
        local: &Local<'_, 'm, P, M>,
        range: Range<Pfn>,
        even_isolated: bool,
    ) -> Result<(), PlaceFailure> {
        let frames = &self.allocator.frames;
        let is_isolated = |start: &Pfn| frames.info(*start).migratetype() == Migratetype::Isolate;
        local.under_lock(range.start, |buddy| {
            let mut isolated = Pfn::pageblocks(range.clone()).filter(|_| !even_isolated).filter(is_isolated);
            if let Some(isolated) = isolated.next() {
                return Err(PlaceFailure::Isolated(isolated));
            }
            buddy
                .take_range(range.start, range.end.0 - range.start.0)
                .map_err(|(pfn, state)| PlaceFailure::InUse { pfn, state })?;
            frames.set_tiles(range, Migratetype::Unmovable);
            Ok(())
        })
    }

    /// Tries `take` until it succeeds, or fails for another reason than a block on a CPU's list that can be drained:
    /// once for each CPU, and once more.
    pub(super) fn with_lists_drained<R>(
        &self,
        zone: &Zone<P>,
        take: impl Fn() -> Result<R, PlaceFailure>,
    ) -> Result<R, PlaceFailure> {
        let mut rounds = 0;
        loop {
            let failed = match take() {
                Ok(got) => return Ok(got),
                Err(why) => why,
            };
            let PlaceFailure::InUse { pfn, state } = failed else { return Err(failed) };
            let Some(cpu) = self.listed_on(pfn, state) else { return Err(failed) };
            rounds += 1;
            if rounds > self.allocator.cpus() || !self.bring_back(zone, cpu) {
                return Err(PlaceFailure::Listed { pfn, cpu });
            }
        }
    }

    /// The CPU on whose list the block at `pfn` is, if it is on one.
    pub(super) fn listed_on(&self, pfn: Pfn, state: State) -> Option<CpuId> {
        if state == State::Body && self.frames.is_compact() {
            // No word records it.
            return self.allocator.listed_blocks(pfn..pfn.add(1)).next().map(|(_, _, cpu)| cpu);
        }
        let State::Taken { order, asked, list_place: Some(list_place) } = state else { return None };
        let zone = self.allocator.frames.info(pfn).zone();
        self.allocator
            .pcp(zone, list_place.cpu)
            .holds(order, asked, list_place.position, pfn)
            .then_some(list_place.cpu)
    }

    /// Drains a CPU's lists of a zone. Returns whether they were drained.
    fn bring_back(&self, zone: &Zone<P>, cpu: CpuId) -> bool {
        if cpu == self.cpu {
            self.local(zone.id()).drain_all();
            return true;
        }
        let zones = self.allocator.zones.iter().filter(|listed| listed.id() == zone.id());
        self.allocator.drain_others_and_wait(Some(self.cpu), zones, Some(cpu), true);
        !self.allocator.pcp(zone.id(), cpu).drain_pending()
    }
}
