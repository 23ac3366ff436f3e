//! Frees of blocks that this CPU's hits do not know: that another CPU handed out, or that lie in another zone than its own.

use super::Cpu;
use super::claim::Claim;
use crate::error::FreeError;
use crate::frame::{BlockInfo, FrameUser, TakenHead};
use crate::pcp::List;
use crate::platform::Platform;
use crate::units::{Migratetype, Order, Pfn, ZoneId};

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Frees a block of another zone. The most common one is of a block that another CPU handed out.
    #[inline(never)]
    pub(super) fn free_far(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>) {
        let Some(located) = self.frames.locate(pfn) else { return self.free_slow(pfn, order, error) };
        let zone = located.pageblock().info().zone();
        let is_known = self.allocator.pcp_if_any(zone, self.cpu).is_some();
        if !is_known || zone == self.preferred || self.home == BlockInfo::NOWHERE {
            return self.free_slow(pfn, order, error);
        }
        self.free_there(pfn, order, error, zone);
    }

    /// This CPU as one that begins at a zone.
    fn there(&self, preferred: ZoneId) -> Self {
        let pcp = self.allocator.pcp(preferred, self.cpu);
        Self { preferred, pcp, home: BlockInfo::new(preferred, Migratetype::Unmovable), ..*self }
    }

    /// Frees a block of another zone as a CPU that begins there does.
    #[inline(never)]
    fn free_there(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>, zone: ZoneId) {
        self.there(zone).free_missed(pfn, order, error);
    }

    /// Frees a block that last sat on another CPU's list, or on none: it goes to this CPU's, or is set aside. What is rare lies apart,
    /// so that the rest needs little room on the stack.
    #[inline(never)]
    pub(super) fn free_from_elsewhere(
        &self,
        pfn: Pfn,
        order: Order,
        error: &mut Option<FreeError>,
        head: &P::Word,
        list: &List<'m, P>,
    ) {
        let claim = match TakenHead::read(head, order) {
            Some(seen) => self.claim_near(head, seen, pfn, order),
            None => Claim::Again,
        };
        if claim != Claim::Got {
            return self.free_unclaimed(pfn, order, error, claim);
        }
        let may_go_back = self.frames.pageblock(pfn).is_some_and(|pageblock| self.pcp.may_go_back(pageblock));
        if may_go_back || !list.put_claimed(head, pfn) {
            self.free_claimed(pfn, order, head, list);
        }
    }

    /// The same where the block could not be claimed.
    #[inline(never)]
    fn free_unclaimed(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>, claim: Claim) {
        match claim {
            Claim::Refused => *error = Some(self.refuse(pfn, order)),
            _ => self.free_slow(pfn, order, error),
        }
    }

    /// The same where it was, and may have to go back to the zone, or does not fit its list.
    #[inline(never)]
    fn free_claimed(&self, pfn: Pfn, order: Order, head: &P::Word, list: &List<'m, P>) {
        // Blocks of an order without lists are not set aside.
        let aside = list.capacity() > 0 && self.goes_back(pfn, order) && self.set_aside(pfn, order, head);
        if !aside && !list.put_claimed(head, pfn) {
            let migratetype = self.frames.info(pfn).migratetype();
            self.put_claimed(&self.local(self.preferred), pfn, order, migratetype);
        }
    }
}
