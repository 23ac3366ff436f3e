//! Whose a block is that a caller frees: nobody's, this CPU's to free, or that of a CPU which frees it at the same time.

use super::Cpu;
use crate::frame::{BlockInfo, FrameUser, TakenHead};
use crate::platform::Platform;
use crate::units::{Order, Pfn, ZoneId};

/// What an attempt to claim a block came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// The block is this CPU's to free.
    Got,
    /// It is not allocated, and nothing has changed.
    Refused,
    /// Another CPU has changed its head word, or is about to: to be tried again.
    Again,
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Whether the block of `order` at `pfn` is allocated: taken from the buddy lists, and not waiting on the
    /// list where it was last placed. Of no use to one who frees it: what it says may be over at once.
    pub(super) fn may_free(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        if !self.frames.has_word(order) {
            return self.frames.is_handed_out(pfn, order);
        }
        let head = self.allocator.frames.taken_head(pfn, order);
        head.is_some_and(|head| !self.waits(pfn, order, head, info.zone()))
    }

    /// Whether the block, whose head word is `head`, waits on the list where it was last placed.
    #[inline]
    pub(super) fn waits(&self, pfn: Pfn, order: Order, head: TakenHead, zone: ZoneId) -> bool {
        head.list_place().is_some_and(|list_place| {
            let pcp = self.allocator.pcp(zone, list_place.cpu);
            pcp.holds(order, head.asked(), list_place.position, pfn)
        })
    }

    /// Makes the allocated block of `order` at `pfn` this CPU's to free, or returns `false` and changes nothing.
    ///
    /// A look at the head word and at the list alone would not do: the owner of the list may refill or drain it between
    /// the two, even so that the same block sits at the same position again. So this CPU writes its mark, looks,
    /// and has the block if it is on no list and its mark is still there: a refill, a drain, or a free by another CPU
    /// that comes between overwrites the mark, or finds it. It looks at the list only then, and once: the list's owner
    /// changes those words at every call, and each look fetches them from its cache. A block that is set aside is not
    /// marked: see `pcp/outgoing.rs`.
    ///
    /// Without a head word, bits say which blocks callers have: one step looks at them and clears them.
    pub(super) fn claim(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        loop {
            match self.claim_once(pfn, order, info) {
                Claim::Got => return true,
                Claim::Refused => return false,
                // Another CPU frees it: it will be refused, or the block will be free.
                Claim::Again => P::relax(),
            }
        }
    }

    /// One attempt.
    pub(super) fn claim_once(&self, pfn: Pfn, order: Order, info: BlockInfo) -> Claim {
        let frames = &self.allocator.frames;
        if !frames.has_word(order) {
            return if frames.take_back(pfn, order) { Claim::Got } else { Claim::Refused };
        }
        let Some(seen) = frames.taken_head(pfn, order) else { return Claim::Refused };
        // Found a second time: what presets touch is as their figures were taken.
        let waits = || self.waits(pfn, order, seen, info.zone());
        self.claim_seen(|| frames.head(pfn, order), seen, waits)
    }

    /// One such attempt by a free that knows the block's head word, and that the block is one of the preferred zone.
    #[inline(always)]
    pub(super) fn claim_near(&self, head: &P::Word, seen: TakenHead, pfn: Pfn, order: Order) -> Claim {
        self.claim_seen(|| head, seen, || self.waits(pfn, order, seen, self.zone))
    }

    /// One such attempt, on a block whose head word says that it was taken from the zone: `seen`, read with acquire. `head` finds
    /// that word, `waits` says whether the block waits on the list where it was last placed.
    #[inline(always)]
    fn claim_seen<'h>(
        &self,
        head: impl Fn() -> &'h P::Word,
        seen: TakenHead,
        waits: impl Fn() -> bool,
    ) -> Claim
    where
        P: 'h,
    {
        if seen.is_claimed() {
            return Claim::Again;
        }
        // What the lists' owners count at each call is as the presets' figures were taken.
        let looks_first = self.pcp.counts();
        if seen.is_aside() || (looks_first && waits()) {
            return Claim::Refused;
        }
        let mark = seen.claimed_by(self.cpu);
        if !mark.replaces(seen, head()) {
            return Claim::Again;
        }
        if waits() {
            seen.replaces(mark, head());
            return Claim::Refused;
        }
        if mark.is_in(head()) { Claim::Got } else { Claim::Refused }
    }
}
