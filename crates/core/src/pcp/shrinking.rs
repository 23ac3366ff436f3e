//! Lists that only shrink, so that other CPUs need not look at them for each block that they free.
//!
//! A CPU that frees a block which last sat on another CPU's list must know that it sits there no longer. The list's words say
//! so, but the owner writes them at each of its hits: each look fetches their line, and each hit after it fetches it back. Where
//! one CPU allocates and another frees, that was a quarter of the time.
//!
//! So a CPU that looks leaves a note. At its next refill the owner that finds it keeps its lists shut for frees, as a
//! request does, and says so in `version`, which is odd then. As long as it stays as it is, no block comes onto any of the lists: what
//! a CPU has once seen to be the top of one stays its highest place, and a block whose place is not below that has left; nor does
//! anything come below the bottom. A look is needed again when the version is another, which it is after each refill, or for a block
//! from further down. A refill counts places on from beyond those that were used before, so that blocks which were handed out before
//! it lie below the bottom.
//!
//! The owner that frees a block itself finds its list shut. Before it puts anything there it makes the version even, opens its
//! lists, and lets some refills pass before it heeds a note again.
//!
//! # Why that is enough
//! The owner alone raises a list's top, and alone writes the version. A refill raises the top first, then writes the version, then the
//! head words of the blocks. So a CPU that reads the new version sees a top at least as high as after that refill; and one that
//! reads the new head word of a block which nobody was handed reads the new version, too, and looks. A free by the owner that
//! happens before a free elsewhere has made the version even before. Of two frees at the same instant, one by
//! the owner, both may pass, as ever: see [`Cpu::free`](crate::cpu::Cpu::free).
//!
//! Only where hits do not count, and where lists of all orders are: the presets have neither these words nor the accesses.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::Pcp;
use crate::frame::PlaceTag;
use crate::platform::{Platform, Word};
use crate::units::Pfn;

/// Refills that find a note and pass, after the owner has freed a block to a list that only shrank.
const PATIENCE: u64 = 64;

/// The words of one CPU's lists of one zone.
#[repr(C, align(64))]
pub(super) struct Shrinking<P: Platform> {
    /// Odd while the lists only shrink. Written by the owner, read by every CPU that frees blocks from here.
    version: P::Word,
    /// 1 if another CPU has looked at one of the lists since the last refill that saw it. Set by others, cleared by the owner.
    watched: P::Word,
    own: Own<P>,
}

/// What the owner keeps for itself.
#[repr(C, align(64))]
struct Own<P: Platform> {
    /// Refills that may still find a note before one heeds it.
    patience: P::Word,
    /// Where the top and the bottom of another CPU's list were when this CPU last looked, and which version that CPU's lists had; 0 at
    /// first, which is no place.
    seen_top: P::Word,
    seen_bottom: P::Word,
    seen_version: P::Word,
}

impl<P: Platform> Shrinking<P> {
    /// Lists that grow and shrink.
    pub(super) fn new() -> Self {
        let zero = || P::Word::new(0);
        let own = Own { patience: zero(), seen_top: zero(), seen_bottom: zero(), seen_version: zero() };
        Self { version: zero(), watched: zero(), own }
    }

    fn is_on(&self) -> bool {
        self.version.load(Relaxed) & 1 != 0
    }
}

impl<'m, P: Platform> Pcp<'m, P> {
    fn shrinking(&self) -> Option<&'m Shrinking<P>> {
        self.more.filter(|_| !self.each_call).map(|more| &more.shrinking)
    }

    /// Whether the lists only shrink now. For verification.
    pub(crate) fn only_shrinks(&self) -> bool {
        self.shrinking().is_some_and(Shrinking::is_on)
    }

    /// Whether a free would hit a list. For verification.
    pub(crate) fn has_open_list(&self) -> bool {
        self.lists_in_use().any(|list| !list.is_shut())
    }

    /// Before the owner puts a block onto a list, or opens one: the lists grow from now on.
    pub(super) fn may_grow(&self) {
        if let Some(shrinking) = self.shrinking()
            && shrinking.is_on()
        {
            shrinking.version.store(shrinking.version.load(Relaxed) + 1, Relaxed);
        }
    }

    /// The same, because the owner frees a block to a list.
    pub(super) fn grows(&self) {
        if self.only_shrinks() {
            self.may_grow();
            self.shrinking().into_iter().for_each(|it| it.own.patience.store(PATIENCE, Relaxed));
        }
    }

    /// Behind a refill, before the head words of its blocks are written: keeps the lists shut if another CPU has left a note.
    /// `false` if they are to be opened.
    pub(super) fn shrinks(&self) -> bool {
        let Some(shrinking) = self.shrinking() else { return false };
        let is_on = shrinking.is_on();
        // Once on, it stays so: several refills may be on their way to a CPU that has looked once.
        if self.is_asked() || (!is_on && shrinking.watched.load(Relaxed) == 0) {
            return false;
        }
        let patience = shrinking.own.patience.load(Relaxed);
        if patience > 0 {
            shrinking.own.patience.store(patience - 1, Relaxed);
            return false;
        }
        if !is_on {
            self.lists_in_use().for_each(super::List::shut);
        }
        shrinking.watched.store(0, Relaxed);
        // Release: a CPU that sees the new version sees the top that the refill has left.
        shrinking.version.store((shrinking.version.load(Relaxed) + 1) | 1, Release);
        true
    }

    /// Whether a block of another CPU's lists, whose head word, `place`, says that it sits or last sat there, sits there: what
    /// [`holds`](Self::holds) says, mostly without a look at that list. For frees where hits do not count.
    #[inline(always)]
    pub(crate) fn sees_on(&self, others: &Self, place: u64, pfn: Pfn) -> bool {
        !(self.noted(place) && self.noted_of(others)) && self.looks_at(others, place, pfn)
    }

    /// The place from which on a refill sets the blocks of an empty list: while the lists only shrink, beyond all that it had before.
    /// So of a block that was handed out before a refill, its place alone tells that it is gone.
    pub(super) fn refill_from(&self, list: &super::List<'_, P>) -> u64 {
        match self.version() {
            0 => list.first_place(),
            version => list.refill_from(version & 1 != 0),
        }
    }

    /// Lets an empty list count from 0 again, where that is due.
    pub(super) fn restart(&self, list: &super::List<'_, P>) {
        match self.version() {
            0 => list.restart(),
            _ => _ = list.refill_from(false),
        }
    }

    /// 0 as long as the lists have never been such as only shrink: then no place has been skipped.
    fn version(&self) -> u64 {
        self.shrinking().map_or(0, |shrinking| shrinking.version.load(Relaxed))
    }

    /// Whether a block has left another CPU's list, from the place that its head word names, as far as this CPU has noted; it has, if
    /// that CPU's lists are [as noted](Self::noted_of).
    #[inline(always)]
    pub(crate) fn noted(&self, place: u64) -> bool {
        self.more.is_some_and(|more| {
            let own = &more.shrinking.own;
            let top = own.seen_top.load(Relaxed);
            PlaceTag::same_list(place, top) && (place >= top || place < own.seen_bottom.load(Relaxed))
        })
    }

    /// Whether another CPU's lists have only shrunk since this CPU looked last.
    #[inline(always)]
    pub(crate) fn noted_of(&self, others: &Self) -> bool {
        match (self.more, others.more) {
            (Some(own), Some(their)) => {
                their.shrinking.version.load(Relaxed) == own.shrinking.own.seen_version.load(Relaxed)
            }
            _ => false,
        }
    }

    /// A look at the list.
    #[inline(never)]
    fn looks_at(&self, others: &Self, place: u64, pfn: Pfn) -> bool {
        let (order, of) = PlaceTag::kind_of(place);
        let (Some(own), Some(their)) = (self.shrinking(), others.shrinking()) else {
            return others.holds(order, of, place as u32, pfn);
        };
        let Some(list) = others.hit_list(order, of) else { return false };
        // Acquire, and before the list is looked at: see the file's head.
        let version = their.version.load(Acquire);
        let (bottom, top, holds) = list.look(place as u32, pfn);
        if version & 1 != 0 {
            own.own.seen_bottom.store(bottom, Relaxed);
            own.own.seen_top.store(top, Relaxed);
            own.own.seen_version.store(version, Relaxed);
        }
        if their.watched.load(Relaxed) == 0 {
            their.watched.store(1, Relaxed);
        }
        holds
    }
}
