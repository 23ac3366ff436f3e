//! Turn of one CPU's lists of a zone: the owner CPU has it, or a CPU in need that drains the lists.
//!
//! A hit takes no lock. It sets `inside`, compares with a *gate* (the floor or the ceiling of its list, or the room of
//! the blocks set aside), moves blocks only if the gate is open, and clears `inside`: two plain stores. All other calls
//! of the owner on its lists, *slow calls*, hold `turn`. A remote drain
//! 1. *asks*: takes `turn` if it is free, and shuts all gates;
//! 2. issues one heavy barrier for all lists that it has asked for;
//! 3. *confirms* by a second compare-and-swap of `turn`, if `inside` is 0. If not, it leaves these lists to their
//!    owner;
//! 4. drains as the owner does, and gives `turn` back. The gates stay shut until the owner's next slow call.
//!
//! # Why a hit and a drain never overlap
//! A hit writes `inside` and then reads a gate; a drain shuts the gates and then reads `inside`; the barriers in
//! between order the two, so one of them sees the write of the other. A drain that reads 0 reads the value written at
//! the end of a hit, so it sees all writes of that hit, and a later hit finds its gate shut. Gates are opened only with
//! `turn` held. So between 2 and 4 no gate opens unless the owner has taken `turn` away, and then 3 fails.
//!
//! # Which CPU waits for which
//! The owner takes `turn` away from a drain that has only asked, so it never waits for a CPU that was interrupted
//! between 1 and 3. It waits for a drain that has confirmed, which itself waits only for the zone lock. So the owner
//! takes `turn` before it takes any other lock. A drain never waits for an owner. One CPU drains at a time
//! (`Allocator::drains`).
//!
//! A drain that shuts a gate after it has lost its turn costs the owner one slow call: an allocation finds the block
//! and opens the floor ([`Local::pop`](super::Local)), a free opens the ceilings.
//!
//! Lists whose hits count (the presets) are never drained remotely, nor are lists whose words the owner has handed out
//! ([`HitWords`](crate::cpu::HitWords)): their owners get a request.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::Pcp;
use crate::platform::{Platform, Word};

/// No CPU has the turn. The gates are as the owner has left them.
const FREE: u64 = 0;
/// No CPU has the turn. A remote drain has shut the gates.
const SHUT: u64 = 1;
/// The owner is in a slow call.
const OWNER: u64 = 2;
/// A remote drain has asked.
const ASKED: u64 = 3;
/// A remote drain has confirmed and drains.
const DRAINING: u64 = 4;
/// Like [`DRAINING`], and the owner waits for the end of the drain.
const AWAITED: u64 = 5;

/// The owner's turn. Given back when dropped, also by a panic.
pub(crate) struct Turn<'a, 'm, P: Platform>(&'a Pcp<'m, P>);

impl<P: Platform> Drop for Turn<'_, '_, P> {
    #[inline]
    fn drop(&mut self) {
        self.0.turn.store(FREE, Release);
    }
}

impl<'m, P: Platform> Pcp<'m, P> {
    /// Begins a hit, or other work of the owner that a remote drain must not take for ended. Until
    /// [`leave`](Self::leave) a hit must compare with a gate before it moves a block.
    #[inline(always)]
    pub(crate) fn enter(&self) {
        if P::DRAINS_REMOTELY {
            self.inside.store(1, Relaxed);
            P::light_barrier();
        }
    }

    /// Ends a hit.
    #[inline(always)]
    pub(crate) fn leave(&self) {
        if P::DRAINS_REMOTELY {
            // Release: a drain that sees this sees all writes of the hit.
            self.inside.store(0, Release);
        }
    }

    /// Whether a CPU in need drains these lists in the owner's place, if the owner is in no call.
    #[inline(always)]
    pub(super) fn is_drained_remotely(&self) -> bool {
        P::DRAINS_REMOTELY && !self.counts()
    }

    /// Takes the turn for a slow call of the owner; `None` if the owner has it already, or if these lists are never
    /// drained remotely.
    #[inline]
    pub(crate) fn take_turn(&self) -> Option<Turn<'_, 'm, P>> {
        if !self.is_drained_remotely() {
            return None;
        }
        match self.turn.compare_exchange(FREE, OWNER, Acquire, Acquire) {
            Ok(_) => Some(Turn(self)),
            Err(OWNER) => None,
            Err(now) => Some(self.take_turn_from(now)),
        }
    }

    #[cold]
    fn take_turn_from(&self, mut turn: u64) -> Turn<'_, 'm, P> {
        loop {
            let now = match turn {
                DRAINING => self.turn.compare_exchange(DRAINING, AWAITED, Relaxed, Relaxed).map(|_| AWAITED),
                AWAITED => Ok(AWAITED),
                seen => self.turn.compare_exchange(seen, OWNER, Acquire, Relaxed),
            };
            match now {
                Ok(AWAITED) => {
                    P::park(&self.turn, AWAITED);
                    turn = self.turn.load(Relaxed);
                }
                Ok(_) => break,
                Err(now) => turn = now,
            }
        }
        let turn = Turn(self);
        self.open_gates();
        turn
    }

    /// Opens the gates that a remote drain has shut. Only the owner calls this.
    fn open_gates(&self) {
        self.lists_used().for_each(|number| self.list(number).open_floor());
        self.outgoing.open();
        self.open_all();
    }

    /// Excludes these lists from remote drains, because the owner makes hits that do not write `inside`: the owner
    /// keeps the turn.
    pub(crate) fn keep_turn(&self) {
        core::mem::forget(self.take_turn());
    }

    // ---- the CPU that drains -------------------------------------------------------------------------------

    /// Asks for the turn, and shuts all gates. `false` if the owner has the turn, or if these lists are never drained
    /// remotely.
    pub(crate) fn ask(&self) -> bool {
        if !self.is_drained_remotely() {
            return false;
        }
        let turn = self.turn.load(Relaxed);
        let asks =
            matches!(turn, FREE | SHUT) && self.turn.compare_exchange(turn, ASKED, Acquire, Relaxed).is_ok();
        if asks {
            // A list that is not in `used` is empty and shut. The owner adds to `used` only while it has the turn.
            self.lists_used().for_each(|number| self.list(number).shut_both_ends());
            self.outgoing.shut();
        }
        asks
    }

    /// After the barrier: confirms the turn. `false` if this CPU no longer has it, or if the owner is in a hit.
    pub(super) fn confirm(&self) -> bool {
        if self.turn.load(Relaxed) != ASKED {
            return false;
        }
        // Acquire: all writes of the hit that wrote the 0.
        if self.inside.load(Acquire) != 0 {
            self.give_up();
            return false;
        }
        self.turn.compare_exchange(ASKED, DRAINING, AcqRel, Relaxed).is_ok()
    }

    /// Gives back a turn that was not confirmed, unless the owner has taken it.
    pub(crate) fn give_up(&self) {
        let _lost = self.turn.compare_exchange(ASKED, SHUT, AcqRel, Relaxed);
    }

    /// Gives back a confirmed turn.
    pub(super) fn finish(&self) {
        if self.turn.swap(SHUT, AcqRel) == AWAITED {
            P::unpark(&self.turn);
        }
    }
}
