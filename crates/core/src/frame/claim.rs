//! Claim of a block by the CPU that frees it: the CPU first claims the head word, so that another CPU that frees the
//! same block at the same time is refused.
//!
//! A claimed head is that of a taken block without a list place, with 1 in the field of the position and the claiming
//! CPU in the field of the list's CPU. It is written by one compare-and-swap; the next CPU that frees the block reads
//! it.

use super::state::{ASKED, CPU, KIND, KIND_TAKEN, MARK, ORDER, SEATED};
use super::{FrameMap, ListPlace};
use crate::platform::{Platform, Word};
use crate::units::{CpuId, Migratetype, Order, Pfn};
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

const CLAIMED: u64 = 1;

/// The head word of a taken block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TakenHead(u64);

impl TakenHead {
    /// The head word, if it is that of a taken block of `order`.
    #[inline(always)]
    const fn of(word: u64, order: Order) -> Option<Self> {
        // Order and kind, without the requested type, the bit for a list place, and the mark of a bad frame.
        const MASK: u64 = (0xf | u64::MAX << (KIND - ORDER)) & !(MARK >> ORDER);
        let wanted = (KIND_TAKEN << (KIND - ORDER)) + order.get() as u64;
        if word >> ORDER & MASK == wanted { Some(Self(word)) } else { None }
    }

    /// Reads a head word, if it is that of a taken block of `order`.
    #[inline(always)]
    pub(crate) fn read(head: &impl Word, order: Order) -> Option<Self> {
        Self::of(head.load(Acquire), order)
    }

    /// Writes this head word if the block still has the head word `seen`. Returns whether it had.
    #[inline(always)]
    pub(crate) fn replaces(self, seen: Self, head: &impl Word) -> bool {
        head.compare_exchange(seen.0, self.0, AcqRel, Relaxed).is_ok()
    }

    /// Whether this still is the head word, but for the mark of a bad frame: that may come and go at any time.
    #[inline(always)]
    pub(crate) fn is_in(self, head: &impl Word) -> bool {
        self.differs_in_mark_only(head.load(Acquire))
    }

    /// Whether a word is this one, or differs from it in nothing but the mark.
    #[inline(always)]
    const fn differs_in_mark_only(self, word: u64) -> bool {
        (word ^ self.0) & !MARK == 0
    }

    /// Writes this head word back where its `claim` still is. A mark that has come or gone since stays so.
    pub(crate) fn undoes(self, claim: Self, head: &impl Word) {
        let mut seen = claim.0;
        while claim.differs_in_mark_only(seen) {
            let before = self.0 & !MARK | seen & MARK;
            match head.compare_exchange(seen, before, AcqRel, Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }

    /// Whether a CPU is about to free the block.
    pub(crate) const fn is_claimed(self) -> bool {
        self.0 & SEATED == 0 && self.0 as u32 as u64 == CLAIMED
    }

    /// The head of the same block while `cpu` frees it.
    pub(crate) const fn claimed_by(self, cpu: CpuId) -> Self {
        Self((self.0 >> ORDER << ORDER & !SEATED) + ((cpu.0 as u64) << CPU) + CLAIMED)
    }

    /// Whether the block was freed and set aside, to return to the zone.
    pub(crate) const fn is_aside(self) -> bool {
        matches!(self.asked(), Migratetype::HighAtomic)
    }

    /// The type with which the block was requested.
    pub(crate) const fn asked(self) -> Migratetype {
        Migratetype::from_bits(self.0 >> ASKED & 3)
    }

    /// Place where the block is, or last was.
    pub(crate) const fn list_place(self) -> Option<ListPlace> {
        if self.0 & SEATED == 0 {
            return None;
        }
        Some(ListPlace { cpu: CpuId((self.0 >> CPU) as u16), position: self.0 as u32 })
    }
}

impl<P: Platform, M> FrameMap<'_, P, M> {
    /// The head word of the block of `order` at `pfn`, if it is taken and has this order. `pfn` must be in a present
    /// pageblock. A CPU that sees a list place here sees the block on the list, or a later state.
    pub(crate) fn taken_head(&self, pfn: Pfn, order: Order) -> Option<TakenHead> {
        if !pfn.is_aligned(order) {
            return None;
        }
        TakenHead::read(self.head(pfn, order), order)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::State;
    use crate::platform::machine::Machine;

    type Words = <Machine as Platform>::Word;

    /// A claimed block unpacks as taken, without a list place.
    #[test]
    fn a_claimed_head_is_a_taken_one() {
        for order in Order::all() {
            for asked in [Migratetype::Unmovable, Migratetype::Movable, Migratetype::Reclaimable] {
                for list_place in [None, Some(ListPlace { cpu: CpuId(u16::MAX), position: u32::MAX })] {
                    let head = TakenHead(State::Taken { order, asked, list_place }.pack());
                    assert_eq!(
                        (head.asked(), head.list_place(), head.is_claimed()),
                        (asked, list_place, false)
                    );
                    let claimed = head.claimed_by(CpuId(7));
                    assert!(claimed.is_claimed());
                    assert_eq!(State::unpack(claimed.0), State::Taken { order, asked, list_place: None });
                    assert_ne!(claimed, head.claimed_by(CpuId(8)));
                    assert!(!head.is_aside() && !claimed.is_aside());
                    let aside = State::Taken { order, asked: Migratetype::HighAtomic, list_place };
                    assert!(TakenHead::of(aside.pack(), order).is_some_and(TakenHead::is_aside));
                    for read_as in Order::all() {
                        assert_eq!(TakenHead::of(head.0 | MARK, read_as).is_some(), read_as == order);
                    }
                }
            }
        }
    }

    /// A mark that comes or goes while a CPU has claimed a block stays so; what another CPU has claimed stays, too.
    #[test]
    fn a_claim_is_undone_but_for_the_mark() {
        let asked = Migratetype::Movable;
        let head = State::Taken { order: Order::ZERO, asked, list_place: None }.pack();
        for (before, now) in [(0, 0), (0, MARK), (MARK, 0), (MARK, MARK)] {
            let seen = TakenHead(head | before);
            let [claim, anothers] = [7, 8].map(|cpu| seen.claimed_by(CpuId(cpu)));
            let word = Words::new(claim.0 & !MARK | now);
            assert!(claim.is_in(&word) && !anothers.is_in(&word));
            seen.undoes(anothers, &word);
            assert_eq!(word.load(Relaxed), claim.0 & !MARK | now, "another CPU's");
            seen.undoes(claim, &word);
            assert_eq!(word.load(Relaxed), head | now);
        }
    }
}
