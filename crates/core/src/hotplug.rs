//! Memory hotplug: pageblocks are taken online and offline while the allocator runs.
//!
//! To take pageblocks offline, the call isolates them, so that no frame of them is handed out any more and frames freed
//! into them stay there. It drains the lists of all CPUs, and checks which blocks are left. If all frames are free,
//! they go: managed and present pages, watermarks and the sizes of per-CPU lists follow. If not, the isolation ends,
//! the state is unchanged, and the error names the blocks in the way. Their owners may move them.
//!
//! The zone lock is held for one pageblock at a time. A free frame of an isolated pageblock stays free until isolation
//! ends, and only the call that has isolated these pageblocks ends it. So all can be checked before the first one goes.
//!
//! A frame whose memory has failed ([`Cpu::hwpoison`]) is not counted while it is offline, and is out of use again when
//! it comes back. Linux from v6.2 on refuses to bring its pageblock back; Linux before that, and the `linux_*` presets,
//! forget the failure.

use core::fmt;
use core::ops::Range;

use crate::alloc::Allocator;
use crate::cpu::Cpu;
use crate::error::SetupError;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::units::{PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, Pfn};
use crate::zone::Zone;

/// Most blocks that an [`OfflineError`] names. It also has their number.
pub const HOLDERS_EXPLAINED: usize = 4;

/// A block that keeps a range from going offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// First frame of the block.
    pub pfn: Pfn,
    /// State of the block: allocated, or reserved.
    pub state: State,
}

/// Reason why a range cannot go offline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfflineFailure {
    /// The range does not consist of whole pageblocks of one zone, or none of them has memory.
    NotPageblocks,
    /// Some of the zone's memory is deferred and not initialised yet.
    NotReady,
    /// A pageblock is isolated already.
    Isolated(Pfn),
    /// This number of blocks in the range is allocated or reserved.
    InUse(u64),
}

/// A range that stays online. The state is unchanged, but CPUs may have drained their lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OfflineError {
    /// Reason.
    pub why: OfflineFailure,
    /// First frame of the range.
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
    /// Takes memory online: like [`add_memory`](Self::add_memory), and then the per-CPU lists of all zones are sized
    /// again ([`resize_pcps`](Self::resize_pcps)). The zone must span the range.
    ///
    /// # Errors
    /// As [`add_memory`](Self::add_memory).
    pub fn online(&self, start: Pfn, pages: u64) -> Result<(), SetupError> {
        let _turn = self.begin_change();
        // All of it did not exist before.
        self.add(start, pages, |_, pages| pages)?;
        self.set_sizes();
        Ok(())
    }
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Takes whole pageblocks of one zone offline; the last one may end at the zone's end. Pageblocks without memory
    /// among them do not change. Returns the pages that went offline. Other CPUs are requested to drain their lists,
    /// and waited for as long as a failing allocation would wait.
    ///
    /// Memory that comes online inside `range` during the call stays. Calls of several CPUs may overlap: each takes out
    /// what it has isolated itself, one call at a time.
    ///
    /// O(pages), plus the drains, and the sizes of all lists ([`resize_pcps`](Allocator::resize_pcps)).
    ///
    /// # Errors
    /// The reason, and the first blocks in the way. The state is unchanged then.
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
            if allocator.hold_pageblock(block, Some(self.id())).is_none() {
                self.unisolate(range.start..block);
                return Err(error(OfflineFailure::Isolated(block)));
            }
            any = true;
        }
        if !any {
            return Err(error(OfflineFailure::NotPageblocks));
        }
        self.drain_all_of(zone);
        // Not before the drain: a CPU that waits for its turn does not drain its lists.
        let _turn = allocator.begin_change();
        let taken = self.take_out(zone, &range);
        match taken {
            Ok(_) => allocator.set_sizes(),
            Err(_) => self.unisolate(range),
        }
        taken
    }

    /// The pageblocks of `range` that have memory.
    fn pageblocks(&self, range: &Range<Pfn>) -> impl Iterator<Item = Pfn> {
        let frames = self.allocator().frames();
        Pfn::pageblocks(range.clone()).filter(move |&block| frames.info(block).is_present())
    }

    fn unisolate(&self, range: Range<Pfn>) {
        for block in self.pageblocks(&range) {
            self.allocator().let_pageblock_go(block, Some(self.id()));
        }
    }

    /// Drains this CPU's lists of all zones, and the lists of all CPUs of `zone`.
    pub(crate) fn drain_all_of(&self, zone: &Zone<P>) {
        self.drain();
        let zones = self.allocator().zones().iter().filter(|listed| listed.id() == zone.id());
        self.allocator().drain_others_and_wait(Some(self.id()), zones, None, true);
    }

    /// Takes the pageblocks of `range` that this call has isolated out of the zone, if all of their blocks are free or
    /// bad.
    fn take_out(&self, zone: &Zone<P>, range: &Range<Pfn>) -> Result<u64, OfflineError> {
        let (allocator, cpu) = (self.allocator(), Some(self.id()));
        // Not those that came online since the others were isolated, nor those that another call has isolated then.
        let is_ours = |&block: &Pfn| allocator.frames().info(block).holder() == cpu;
        let isolated = || Pfn::pageblocks(range.clone()).filter(is_ours);
        let (mut count, mut holders) = (0, [None; HOLDERS_EXPLAINED]);
        for block in isolated() {
            allocator.in_section_of(zone, block, cpu, |_| {
                self.find_holders(range, block, |holder| {
                    if let Some(place) = holders.get_mut(count as usize) {
                        *place = Some(holder);
                    }
                    count += 1;
                })
            });
        }
        if count > 0 {
            return Err(OfflineError { why: OfflineFailure::InUse(count), start: range.start, holders });
        }
        let mut gone = 0;
        for block in isolated() {
            let pages = block.add(PAGEBLOCK_PAGES).min(range.end).0 - block.0;
            allocator.in_section_of(zone, block, cpu, |buddy| {
                allocator.count_hwpoisoned(-(buddy.take_offline(block) as i64));
                buddy.count_managed(-(pages as i64));
                buddy.count_present(-(pages as i64));
            });
            gone += pages;
        }
        allocator.in_section_of(zone, zone.spec().start, cpu, |buddy| allocator.shut_or_open_lists(buddy));
        Ok(gone)
    }

    /// Calls `found` with each block in the pageblock at `block` of `range` that is allocated or reserved. With the
    /// zone lock held.
    fn find_holders(&self, range: &Range<Pfn>, block: Pfn, mut found: impl FnMut(Holder)) {
        let mut at = block;
        let end = block.add(PAGEBLOCK_PAGES).min(range.end);
        while at < end {
            let (pfn, state) = self.allocator().frames().find(at);
            let next = pfn.add(state.pages());
            let holds = match state {
                State::Free { .. } => false,
                // A block that reaches beyond the range stays whole.
                State::Quarantined { .. } => pfn < range.start || next > range.end,
                State::Taken { .. } | State::Reserved | State::Body => true,
            };
            // A block of two pageblocks is found twice.
            if holds && (pfn >= block || block == range.start) {
                found(Holder { pfn, state });
            }
            at = next;
        }
    }
}
