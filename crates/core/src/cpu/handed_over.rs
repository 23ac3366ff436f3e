//! Frees of blocks that this CPU's hits do not know: that another CPU handed out, or that lie in another zone than its own.

use core::sync::atomic::Ordering::Release;

use super::Cpu;
use super::claim::Claim;
use crate::error::FreeError;
use crate::frame::{BlockInfo, FrameUser, TakenHead};
use crate::pcp::{List, Pcp};
use crate::platform::{Platform, Word};
use crate::units::{Migratetype, Order, Pfn, ZoneId};

impl<'m, P: Platform, M: FrameUser> Cpu<'_, 'm, P, M> {
    /// Frees a block of another zone. The most common one is of a block that another CPU handed out.
    #[inline(never)]
    pub(super) fn free_far(&self, pfn: Pfn, order: Order, error: &mut Option<FreeError>) {
        let Some(located) = self.frames.locate(pfn) else { return self.free_slow(pfn, order, error) };
        let pageblock = located.pageblock();
        let info = pageblock.info();
        let zone = info.zone();
        let Some(pcp) = self.allocator.pcp_if_any(zone, self.cpu) else {
            return self.free_slow(pfn, order, error);
        };
        if zone == self.preferred || self.home == BlockInfo::NOWHERE {
            return self.free_slow(pfn, order, error);
        }
        if let Some(migratetype) = info.ordinary_as(BlockInfo::new(zone, Migratetype::Unmovable))
            && let Some(head) = located.head(pfn, order)
            && let Some(list) = pcp.hit_list(order, migratetype)
        {
            let (top, goes_back) = (list.top(), pcp.may_go_back(pageblock));
            let is_short = if goes_back { !pcp.merges() } else { list.is_hit(top) };
            if is_short && self.claims_noted(zone, pcp, head, top) {
                return match goes_back {
                    false => list.put_at(top, head, pfn),
                    true => self.set_aside_there(pfn, order, head, list, zone),
                };
            }
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

    /// Sets a block of another zone aside that this CPU has claimed.
    #[inline(never)]
    fn set_aside_there(&self, pfn: Pfn, order: Order, head: &P::Word, list: &List<'m, P>, zone: ZoneId) {
        let pcp = self.allocator.pcp(zone, self.cpu);
        match pcp.set_aside_uncounted(pfn, order) {
            Some(word) if !pcp.is_asked() => head.store(word, Release),
            Some(word) => {
                head.store(word, Release);
                self.there(zone).answer_asked();
            }
            None => self.there(zone).free_claimed(pfn, order, head, list),
        }
    }

    /// Frees a block that another CPU handed out and that goes to this CPU's list.
    #[inline(never)]
    pub(super) fn free_handed_over(
        &self,
        pfn: Pfn,
        order: Order,
        error: &mut Option<FreeError>,
        head: &P::Word,
        list: &List<'m, P>,
    ) {
        let top = list.top();
        if list.is_hit(top) && self.claims_noted(self.preferred, self.pcp, head, top) {
            return list.put_at(top, head, pfn);
        }
        self.free_from_elsewhere(pfn, order, error, head, list);
    }

    /// Claims a block of a zone that another CPU handed out, if that CPU's lists are as when this one, whose lists of the zone are `pcp`,
    /// looked last. One comparison with what it noted then says that the block is taken, that it is not set aside, and that its order and
    /// type are those of this CPU's list with this top. `false`, and nothing has happened, if there is more to do.
    #[inline(always)]
    fn claims_noted(&self, zone: ZoneId, pcp: &Pcp<'m, P>, head: &P::Word, top: u64) -> bool {
        let Some((seen, mark)) = TakenHead::as_on(head, top) else { return false };
        if !pcp.noted(seen.place()) || !mark.replaces(seen, head) {
            return false;
        }
        let claims = pcp.noted_of(self.allocator.pcp(zone, seen.cpu())) && mark.is_in(head);
        if !claims {
            // If the word is another one by now, what follows sees that.
            seen.replaces(mark, head);
        }
        claims
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
            Some(seen) => self.claim_near(head, seen, pfn),
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
