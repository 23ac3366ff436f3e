//! Claims: a CPU makes a block its own before it frees it, so that only one of several CPUs that free it succeeds.

use super::Cpu;
use crate::frame::{BlockInfo, FrameUser, TakenHead};
use crate::platform::Platform;
use crate::units::{Order, Pfn, ZoneId};

/// Result of an attempt to claim a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claim {
    /// Only this CPU may free the block now.
    Got,
    /// The block is not allocated. The state is unchanged.
    Refused,
    /// Another CPU has changed the head word, or is about to. Try again.
    Again,
}

impl<P: Platform, M: FrameUser> Cpu<'_, '_, P, M> {
    /// Whether the block of `order` at `pfn` is allocated: taken from the buddy lists, and not on the list where it was
    /// last placed. Racy: do not base a free on it.
    pub(super) fn may_free(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        if !self.frames.has_word(order) {
            return self.frames.is_handed_out(pfn, order);
        }
        let head = self.allocator.frames.taken_head(pfn, order);
        head.is_some_and(|head| !self.waits(pfn, order, head, info.zone()))
    }

    /// Whether the block with the head word `head` is on the list where it was last placed.
    #[inline]
    pub(super) fn waits(&self, pfn: Pfn, order: Order, head: TakenHead, zone: ZoneId) -> bool {
        head.list_place().is_some_and(|list_place| {
            let pcp = self.allocator.pcp(zone, list_place.cpu);
            pcp.holds(order, head.asked(), list_place.position, pfn)
        })
    }

    /// Claims the allocated block of `order` at `pfn` for a free by this CPU. On `false` the state is unchanged.
    ///
    /// A read of the head word and then of the list would not suffice: in between, the owner of the list may refill or
    /// drain it, even so that the same block is at the same position again. So this CPU writes its mark into the head
    /// word, and then looks at the list. It has the block if the block is on no list and the mark is still there: a
    /// refill, a drain, or a free by another CPU in between overwrites the mark, or finds it. The CPU looks at the list
    /// only then, and once: the list's owner changes its words at every call, and each look fetches them from the
    /// owner's cache. A block that is set aside is not marked: see `pcp/outgoing.rs`.
    ///
    /// Without a head word, bits record which blocks callers have: one step reads and clears them.
    pub(super) fn claim(&self, pfn: Pfn, order: Order, info: BlockInfo) -> bool {
        loop {
            match self.claim_once(pfn, order, info) {
                Claim::Got => return true,
                Claim::Refused => return false,
                // Another CPU frees the block: that free will be refused, or the block will be free.
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
        // Computed a second time: under presets the memory accesses stay as when their figures were taken.
        let waits = || self.waits(pfn, order, seen, info.zone());
        self.claim_seen(|| frames.head(pfn, order), seen, waits)
    }

    /// One attempt, on a block whose head word `seen`, read with acquire, states that it was taken from the zone.
    /// `head` finds that word; `waits` answers whether the block is on the list where it was last placed.
    #[inline(always)]
    pub(super) fn claim_seen<'h>(
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
        // The order of accesses to words that owners write at each call stays as when the presets' figures were taken.
        let looks_first = self.pcp.counts();
        if seen.is_aside() || (looks_first && waits()) {
            return Claim::Refused;
        }
        let mark = seen.claimed_by(self.cpu);
        if !mark.replaces(seen, head()) {
            return Claim::Again;
        }
        if waits() {
            seen.undoes(mark, head());
            return Claim::Refused;
        }
        if mark.is_in(head()) { Claim::Got } else { Claim::Refused }
    }
}
