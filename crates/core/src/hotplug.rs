//! Memory that comes and goes while the allocator runs: pageblocks taken online and offline.
//!
//! Offlining isolates the pageblocks, so that nothing in them is handed out any more and what is freed into them
//! stays there; has every CPU give back what its lists hold; and looks what is left. If all of it is free, it goes:
//! managed and present pages, watermarks and the sizes of per-CPU lists follow. If not, isolation ends, nothing has
//! changed, and the error names the blocks in the way. Moving them elsewhere is up to their owners.
//!
//! The zone lock is held for one pageblock at a time. What is free in an isolated pageblock stays so until isolation
//! ends, and only the call that has isolated these pageblocks ends it, so that all can be looked at before the first
//! one goes.
//!
//! A frame whose memory has failed ([`Cpu::hwpoison`]) is not counted while it is offline, and is out of use again
//! when it comes back. Linux, from v6.2 on, refuses to bring its pageblock back; before, and in the `linux_*`
//! presets, it is forgotten.

use core::fmt;
use core::ops::Range;

use crate::alloc::Allocator;
use crate::buddy::Buddy;
use crate::cpu::Cpu;
use crate::error::SetupError;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::units::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::Zone;

/// Blocks that an [`OfflineError`] can name. It says how many there are.
pub const HOLDERS_EXPLAINED: usize = 4;

/// A block that keeps a range from going offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its first frame.
    pub pfn: Pfn,
    /// What it is: allocated, or reserved.
    pub state: State,
}

/// Why a range cannot go offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfflineFailure {
    /// It does not consist of whole pageblocks of one zone, or none of them has memory.
    NotPageblocks,
    /// Some of the zone's memory is deferred and not initialised yet.
    NotReady,
    /// A pageblock is isolated already.
    Isolated(Pfn),
    /// Blocks in it are allocated or reserved: so many.
    InUse(u64),
}

/// A range that stays online. Nothing has changed, but CPUs may have given back what their lists held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfflineError {
    /// Why.
    pub why: OfflineFailure,
    /// Its first frame.
    pub start: Pfn,
    /// The first blocks in the way, by frame.
    pub holders: [Option<Holder>; HOLDERS_EXPLAINED],
}

impl fmt::Display for OfflineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory at {:?} stays online: ", self.start)?;
        match self.why {
            OfflineFailure::NotPageblocks => {
                f.write_str("it is no run of whole pageblocks of one zone that have memory")
            }
            OfflineFailure::NotReady => f.write_str("not all memory of its zone is initialised yet"),
            OfflineFailure::Isolated(pfn) => write!(f, "the pageblock at {pfn:?} is isolated already"),
            OfflineFailure::InUse(count) => {
                write!(f, "{count} block(s) in use")?;
                let named = self.holders.iter().flatten();
                for (n, holder) in named.enumerate() {
                    let sign = if n == 0 { ": " } else { "; " };
                    write!(f, "{sign}{:?} {}", holder.pfn, holder.state)?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for OfflineError {}

impl<P: Platform, M: FrameUser> Allocator<'_, P, M> {
    /// Takes memory online: as [`add_memory`](Self::add_memory), and the sizes of per-CPU lists follow. The zone
    /// must span it.
    ///
    /// # Errors
    /// As [`add_memory`](Self::add_memory).
    pub fn online(&self, start: Pfn, pages: u64) -> Result<(), SetupError> {
        self.add_new_memory(start, pages)?;
        self.resize_pcps();
        Ok(())
    }

    /// Like [`isolate_pageblock`](Self::isolate_pageblock), for a call that ends the isolation itself: no other
    /// caller can, so that what is free in the pageblock stays free in it.
    pub(crate) fn hold_pageblock(&self, pfn: Pfn) -> Option<u64> {
        self.with_isolation_of(pfn, |buddy| buddy.isolate(pfn, true))
    }

    /// Ends what [`hold_pageblock`](Self::hold_pageblock) has begun.
    pub(crate) fn let_pageblock_go(&self, pfn: Pfn) {
        self.with_isolation_of(pfn, |buddy| buddy.unisolate(pfn, true));
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Takes whole pageblocks of one zone offline; its last one may end where the zone does. Pageblocks without memory
    /// among them stay as they are. Returns the pages that are gone. Other CPUs are asked for what their lists hold
    /// and waited for as long as a failing allocation would.
    ///
    /// O(pages).
    ///
    /// # Errors
    /// What is in the way. Nothing has changed then.
    pub fn offline(&self, range: Range<Pfn>) -> Result<u64, OfflineError> {
        let allocator = self.allocator();
        let error = |why| OfflineError { why, start: range.start, holders: [None; HOLDERS_EXPLAINED] };
        let zone = allocator.zones().iter().find(|zone| zone.spec().spans(range.start));
        let zone = zone.filter(|zone| {
            range.start.is_aligned(PAGEBLOCK_ORDER)
                && range.end <= zone.spec().end()
                && (range.end.is_aligned(PAGEBLOCK_ORDER) || range.end == zone.spec().end())
        });
        let Some(zone) = zone else { return Err(error(OfflineFailure::NotPageblocks)) };
        allocator.touch(range.start, range.end);
        if allocator.deferred().is_some_and(|deferred| deferred.zones()[zone.id().index()].left() > 0) {
            return Err(error(OfflineFailure::NotReady));
        }
        let mut any = false;
        for block in self.pageblocks(&range) {
            if allocator.hold_pageblock(block).is_none() {
                self.unisolate(range.start..block);
                return Err(error(OfflineFailure::Isolated(block)));
            }
            any = true;
        }
        if !any {
            return Err(error(OfflineFailure::NotPageblocks));
        }
        self.drain_all_of(zone);
        let taken = self.take_out(zone, &range);
        match taken {
            Ok(_) => allocator.resize_pcps(),
            Err(_) => self.unisolate(range),
        }
        taken
    }

    /// The pageblocks of `range` that have memory.
    fn pageblocks(&self, range: &Range<Pfn>) -> impl Iterator<Item = Pfn> {
        let frames = self.allocator().frames();
        let starts = (range.start.0..range.end.0).step_by(PAGEBLOCK_PAGES as usize).map(Pfn);
        starts.filter(move |&block| frames.info(block).is_present())
    }

    fn unisolate(&self, range: Range<Pfn>) {
        for block in self.pageblocks(&range) {
            self.allocator().let_pageblock_go(block);
        }
    }

    /// This CPU's lists of all zones, and all CPUs' of `zone`.
    pub(crate) fn drain_all_of(&self, zone: &Zone<P>) {
        self.drain();
        let zones = self.allocator().zones().iter().filter(|other| other.id() == zone.id());
        self.allocator().drain_others_and_wait(Some(self.id()), zones, None, true);
    }

    /// Takes the isolated pageblocks of `range` out of the zone, if all of their blocks are free or bad.
    fn take_out(&self, zone: &Zone<P>, range: &Range<Pfn>) -> Result<u64, OfflineError> {
        let allocator = self.allocator();
        let with = |pfn: Pfn, f: &mut dyn FnMut(&mut Buddy<'_, '_, P, M>)| {
            zone.with_section(
                zone.cut().number_of(pfn),
                *allocator.frames(),
                allocator.waiter(Some(self.id())),
                f,
            );
        };
        let mut holders = Holders::default();
        for block in self.pageblocks(range) {
            with(block, &mut |_| self.find_holders(range, block, &mut holders));
        }
        if holders.count > 0 {
            let why = OfflineFailure::InUse(holders.count);
            return Err(OfflineError { why, start: range.start, holders: holders.first });
        }
        let mut gone = 0;
        for block in self.pageblocks(range) {
            let pages = block.add(PAGEBLOCK_PAGES).min(range.end).0 - block.0;
            with(block, &mut |buddy| {
                allocator.count_hwpoisoned(-(buddy.take_offline(block) as i64));
                buddy.count_managed(-(pages as i64));
                buddy.count_present(-(pages as i64));
            });
            gone += pages;
        }
        with(zone.spec().start, &mut |buddy| allocator.shut_or_open_lists(buddy));
        Ok(gone)
    }

    /// Notes the blocks in the pageblock at `block` of `range` that are allocated or reserved. With the zone lock held.
    fn find_holders(&self, range: &Range<Pfn>, block: Pfn, holders: &mut Holders) {
        let mut at = block;
        let end = block.add(PAGEBLOCK_PAGES).min(range.end);
        while at < end {
            let (pfn, state) = self.allocator().frames().find(at);
            let (pages, holds) = match state {
                State::Free { order, .. } => (order.pages(), false),
                // One that reaches beyond the range stays whole.
                State::Quarantined { order } => {
                    (order.pages(), pfn < range.start || pfn.add(order.pages()) > range.end)
                }
                State::Taken { order, .. } => (order.pages(), true),
                State::Reserved | State::Body => (1, true),
            };
            // A block of two pageblocks is met twice.
            if holds && (pfn >= block || block == range.start) {
                if let Some(place) = holders.first.get_mut(holders.count as usize) {
                    *place = Some(Holder { pfn, state });
                }
                holders.count += 1;
            }
            at = pfn.add(pages);
        }
    }
}

/// Blocks that keep a range from going offline: how many there are, and the first ones.
#[derive(Default)]
struct Holders {
    count: u64,
    first: [Option<Holder>; HOLDERS_EXPLAINED],
}
