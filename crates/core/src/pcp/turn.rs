//! Whose turn it is with one CPU's lists of a zone: the owner's, or that of a CPU in need which drains them.
//!
//! A hit takes no lock. It writes `inside`, compares with a *gate* (the floor or the ceiling of its list, or the room of what is
//! set aside), moves blocks only if the gate is open, and clears `inside`: two plain stores. Everything else that the owner
//! does with its lists, a *slow call*, holds `turn`. A remote drain
//! 1. *asks*: takes `turn` if it is free, and shuts all gates;
//! 2. issues one heavy barrier for all lists that it has asked for;
//! 3. *confirms* by a second compare-and-swap of `turn`, if `inside` is 0. If not, it leaves these lists to their owner;
//! 4. drains as the owner does, and gives `turn` back. The gates stay shut until the owner's next slow call.
//!
//! # Why a hit and a drain never overlap
//! A hit writes `inside` and then reads a gate; a drain shuts the gates and then reads `inside`; the barriers between order the
//! two, so one of them sees what the other wrote. A drain that reads 0 reads what the end of a hit has written, so it sees all of
//! that hit, and a hit that begins later finds its gate shut. Gates are opened only with `turn` held. So between 2 and 4 no gate
//! opens unless the owner has taken `turn` away, and then 3 fails.
//!
//! # Who waits for whom
//! The owner takes `turn` away from a drain that has only asked, so it never waits for a CPU that was interrupted between 1 and
//! 3. It waits for a drain that has confirmed, which itself waits only for the zone lock. So the owner takes `turn` before it
//! takes any other lock. A drain never waits for an owner. [`Drains`] lets one CPU drain at a time.
//!
//! A drain that shuts a gate after it has lost its turn costs the owner one slow call: an allocation finds the block and opens the
//! floor ([`Local::pop`](super::Local)), a free opens the ceilings.
//!
//! Lists whose hits count (the presets) are never drained remotely, nor are those whose words the owner has handed out
//! ([`HitWords`](crate::cpu::HitWords)): they are asked.

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use super::Pcp;
use crate::platform::{Platform, Word};

/// No CPU's turn. The gates are as the owner has left them.
const FREE: u64 = 0;
/// No CPU's turn. A remote drain has shut the gates.
const SHUT: u64 = 1;
/// The owner is in a slow call.
const OWNER: u64 = 2;
/// A remote drain has asked.
const ASKED: u64 = 3;
/// A remote drain is at work.
const DRAINING: u64 = 4;
/// Like [`DRAINING`], and the owner waits for its end.
const AWAITED: u64 = 5;

/// The owner's turn. Given back when dropped, also when a panic passes.
pub(crate) struct Turn<'a, 'm, P: Platform>(&'a Pcp<'m, P>);

impl<P: Platform> Drop for Turn<'_, '_, P> {
    #[inline]
    fn drop(&mut self) {
        self.0.turn.store(FREE, Release);
    }
}

impl<'m, P: Platform> Pcp<'m, P> {
    /// Begins a hit. What follows up to [`leave`](Self::leave) compares with a gate before it moves a block.
    #[inline(always)]
    pub(super) fn enter(&self) {
        if P::DRAINS_REMOTELY {
            self.inside.store(1, Relaxed);
            P::light_barrier();
        }
    }

    /// Ends a hit.
    #[inline(always)]
    pub(super) fn leave(&self) {
        if P::DRAINS_REMOTELY {
            // Release: a drain that sees this sees all of the hit.
            self.inside.store(0, Release);
        }
    }

    /// Takes the owner's turn for a slow call; `None` if the owner has it already, or if these lists are never drained remotely.
    #[inline]
    pub(crate) fn take_turn(&self) -> Option<Turn<'_, 'm, P>> {
        if !P::DRAINS_REMOTELY || self.counts() {
            return None;
        }
        match self.turn.compare_exchange(FREE, OWNER, Acquire, Acquire) {
            Ok(_) => Some(Turn(self)),
            Err(OWNER) => None,
            Err(other) => Some(self.take_turn_from(other)),
        }
    }

    #[cold]
    fn take_turn_from(&self, mut turn: u64) -> Turn<'_, 'm, P> {
        loop {
            let now = match turn {
                DRAINING => self.turn.compare_exchange(DRAINING, AWAITED, Relaxed, Relaxed).map(|_| AWAITED),
                AWAITED => Ok(AWAITED),
                other => self.turn.compare_exchange(other, OWNER, Acquire, Relaxed),
            };
            match now {
                Ok(AWAITED) => {
                    P::park(&self.turn, AWAITED);
                    turn = self.turn.load(Relaxed);
                }
                Ok(_) => break,
                Err(other) => turn = other,
            }
        }
        let turn = Turn(self);
        self.open_gates();
        turn
    }

    /// Undoes what a remote drain has shut. By the owner.
    fn open_gates(&self) {
        self.lists_used().for_each(|number| self.list(number).open_floor());
        self.outgoing.open();
        self.open_all();
    }

    /// Excludes these lists from remote drains, because the owner makes hits that do not write `inside`: the turn stays the owner's.
    pub(crate) fn keep_turn(&self) {
        core::mem::forget(self.take_turn());
    }

    // ---- the CPU that drains -------------------------------------------------------------------------------

    /// Asks for the turn, and shuts all gates. `false` if it is the owner's, or if these lists are never drained remotely.
    pub(crate) fn ask(&self) -> bool {
        if !P::DRAINS_REMOTELY || self.counts() {
            return false;
        }
        let turn = self.turn.load(Relaxed);
        let asks =
            matches!(turn, FREE | SHUT) && self.turn.compare_exchange(turn, ASKED, Acquire, Relaxed).is_ok();
        if asks {
            // A list that `used` does not name is empty and shut. The owner adds to `used` only in its turn.
            self.lists_used().for_each(|number| self.list(number).shut_both_ends());
            self.outgoing.shut();
        }
        asks
    }

    /// After the barrier: confirms the turn. `false` if it is this CPU's no longer, or if the owner is in a hit.
    pub(super) fn confirm(&self) -> bool {
        if self.turn.load(Relaxed) != ASKED {
            return false;
        }
        // Acquire: all of the hit that wrote the 0.
        if self.inside.load(Acquire) != 0 {
            self.give_up();
            return false;
        }
        self.turn.compare_exchange(ASKED, DRAINING, AcqRel, Relaxed).is_ok()
    }

    /// Gives a turn back that was not confirmed, unless the owner has taken it.
    pub(crate) fn give_up(&self) {
        let _lost = self.turn.compare_exchange(ASKED, SHUT, AcqRel, Relaxed);
    }

    /// Gives a confirmed turn back.
    pub(super) fn finish(&self) {
        if self.turn.swap(SHUT, AcqRel) == AWAITED {
            P::unpark(&self.turn);
        }
    }
}

/// Nanoseconds in which no failing request begins a drain, after one that brought nothing.
const REST_NS: u64 = 1_000_000;

/// The remote drains of an allocator: one at a time.
pub(crate) struct Drains<P: Platform> {
    /// [`FREE`], or [`AWAITED`] while a CPU drains.
    busy: P::Word,
    /// Time before which no failing request begins another one.
    rests_until: P::Word,
}

/// The right to drain. Given back when dropped.
pub(crate) struct Draining<'a, P: Platform>(&'a Drains<P>);

impl<P: Platform> Drop for Draining<'_, P> {
    fn drop(&mut self) {
        self.0.busy.store(FREE, Release);
        P::unpark(&self.0.busy);
    }
}

impl<P: Platform> Drains<P> {
    pub(crate) fn new() -> Self {
        Self { busy: P::Word::new(FREE), rests_until: P::Word::new(0) }
    }

    /// Whether the last drain brought nothing, a moment ago.
    pub(crate) fn rests(&self) -> bool {
        P::DRAINS_REMOTELY && P::now_ns() < self.rests_until.load(Relaxed)
    }

    /// Notes that a drain has brought nothing, though there was something to bring.
    pub(crate) fn rest(&self) {
        self.rests_until.store(P::now_ns() + REST_NS, Relaxed);
    }

    /// Begins a drain. Waits while another CPU drains.
    pub(crate) fn begin(&self) -> Draining<'_, P> {
        while self.busy.swap(AWAITED, Acquire) != FREE {
            P::park(&self.busy, AWAITED);
        }
        Draining(self)
    }
}
