//! Allocation and free from any context: from an interrupt handler that has interrupted a call, also from one that
//! cannot be masked.
//!
//! Such code may have interrupted this CPU anywhere: in a hit, with the lock of a zone held, or while it enters the
//! lock's queue. So it touches no per-CPU list, and it takes a block from a zone, or gives it back, only if the lock is
//! free. It never waits. It needs of the interrupted call only that words are atomic; those of
//! [`OneCpu`](crate::platform::OneCpu) are not.

use core::fmt;

use super::Cpu;
use super::claim::Claim;
use crate::alloc::Allocator;
use crate::buddy::{Each, Placement, Wanted};
use crate::config::RefillCheck;
use crate::error::FreeError;
use crate::frame::{FrameUser, State};
use crate::platform::Platform;
use crate::policy::passes::Mark;
use crate::request::Request;
use crate::units::{CpuId, Migratetype, Order, Pfn};
use crate::zone::Zone;

/// The mark of a claim without a CPU: no allocator has this number. The lock separates two such claims.
const NO_CPU: CpuId = CpuId(u16::MAX);

/// Reason why [`Allocator::try_free`] has not freed a block. The state is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryFreeError {
    /// The lock is held, another call is about to free the block, or the memory of one of its frames has failed. Free
    /// it later with [`Cpu::free`].
    Busy,
    /// The free is wrong.
    Refused(FreeError),
}

impl fmt::Display for TryFreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("another call is at work there: free it later with Cpu::free"),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for TryFreeError {}

impl<P: Platform, M: FrameUser> Allocator<'_, P, M> {
    /// Allocates a block from any context, without a pin: from the zones of the CPU `near`, past all lists, down to
    /// their min marks. `None` if the lock of the section with the block is held, if only lists have one, or if there
    /// is none. It never waits: its work is bounded by the number of zones and sections. The block is freed like any
    /// other.
    ///
    /// # Panics
    /// If the allocator has no CPU `near`.
    pub fn try_alloc(&self, near: CpuId, order: Order, migratetype: Migratetype) -> Option<Pfn> {
        let (cpu, request) = (Cpu::new(self, near), Request::new(order, migratetype));
        if !migratetype.is_ordinary() || self.strikes(order) {
            return None;
        }
        self.zonelist_of(near).iter().find_map(|zone| {
            let zone = &self.zones[zone.index()];
            let is_open = request.may_use(zone.spec().kind)
                && cpu.may_leave(zone, &request, Mark::Min) >= order.pages();
            if is_open { self.try_alloc_of(zone, near, &request) } else { None }
        })
    }

    fn try_alloc_of(&self, zone: &Zone<'_, P>, near: CpuId, request: &Request<'_>) -> Option<Pfn> {
        let all = self.local(zone.id(), near, None).wanted(request.order, request.migratetype);
        // If a section is locked, or has nothing after all, the sections after it are tried.
        let sections = zone.sections();
        let from = (0..sections).map(|n| (near.index() + n) % sections);
        from.map_while(|from| zone.section_for(&all, from))
            .find_map(|(n, wanted)| self.try_take(zone, n, wanted))
    }

    fn try_take(&self, zone: &Zone<'_, P>, section: usize, wanted: Wanted) -> Option<Pfn> {
        let Wanted { order, migratetype: asked, .. } = wanted;
        let taken = zone.try_with_section(section, &self.frames, |buddy| {
            let mut taken = None;
            let balance = (self.frames.has_maps()).then(|| (zone.free_pages(), zone.free_cma_pages()));
            let mut sink = Each(|pfn| taken.replace(pfn).is_none());
            buddy.take(wanted, 1, balance, &mut sink);
            let pfn = taken?;
            if self.is_bad(pfn, order) {
                // Only a CPU may count the block as out of use: the next CPU that gets it does.
                buddy.free(pfn, order, Placement::Tail);
                return None;
            }
            self.frames.set_state(pfn, order, State::Taken { order, asked, list_place: None });
            Some(pfn)
        });
        taken?
    }

    /// Whether a check finds a block bad that was taken from a zone.
    fn is_bad(&self, pfn: Pfn, order: Order) -> bool {
        let is_overwritten = |map: crate::frame::DirectMap| map.find_unpoisoned(pfn, order).is_some();
        let checks = self.config.experiment.refill_check != RefillCheck::Off;
        checks && self.frames.find_bad(pfn, order).is_some()
            || self.config.poison && self.direct_map.is_some_and(is_overwritten)
    }

    /// Frees a block from any context, without a pin: past all lists, to its zone. It never waits.
    ///
    /// # Errors
    /// [`Busy`](TryFreeError::Busy) if a lock is held; [`Refused`](TryFreeError::Refused) if the free is wrong.
    pub fn try_free(&self, pfn: Pfn, order: Order) -> Result<(), TryFreeError> {
        let frames = &self.frames;
        let view = Cpu { cpu: NO_CPU, ..Cpu::new(self, CpuId(0)) };
        let refused = || Err(TryFreeError::Refused(view.refuse(pfn, order)));
        let info = frames.info(pfn);
        let Some(zone) = self.zones.get(info.zone().index()).filter(|zone| zone.spec().spans(pfn)) else {
            return refused();
        };
        if !frames.contains(pfn) || !info.is_present() {
            return refused();
        }
        let free = zone.try_with_section(zone.cut.number_of(pfn), &self.frames, |buddy| {
            // The properties of a pageblock change under the lock.
            let info = frames.info(pfn);
            if info.is_poisoned() {
                return Claim::Again;
            }
            let claim = view.claim_once(pfn, order, info);
            if claim == Claim::Got {
                view.fill_freed(pfn, order);
                buddy.free(pfn, order, Placement::Likely);
            }
            claim
        });
        match free.unwrap_or(Claim::Again) {
            Claim::Got => Ok(()),
            Claim::Again => Err(TryFreeError::Busy),
            Claim::Refused => refused(),
        }
    }
}
