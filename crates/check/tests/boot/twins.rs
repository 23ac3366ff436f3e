//! Claims that are broken on purpose: a worker's slot, and those who take from its end, once more with one flaw each.
//! Without a flaw the twin passes, so that the flaw is what the model found.
#![expect(unsafe_code, reason = "cells hand out pointers")]

use core::sync::atomic::{Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use framewright::platform::{SharedCell, Word};
use framewright_check::platform::loom;
use framewright_check::prelude::*;
use framewright_check::refute::must_fail;

/// What is wrong with a twin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Flaw {
    /// Nothing.
    None,
    /// A worker that is at several units says that it is at one.
    HidesItsBatch,
    /// Who takes from the end looks, then writes, in two steps.
    TornTake,
    /// A worker moves its start on in two steps.
    TornDone,
    /// A worker moves its start on before its units are published: no worker does what it leaves then.
    DoneTooSoon,
    /// A unit is published before its descriptors are made.
    PublishedTooSoon,
    /// The word that publishes a unit does not publish its descriptors.
    RelaxedPublish,
    /// Who sees that word does not see them.
    RelaxedLook,
}

const UNITS: usize = 3;
/// What a descriptor has before it is made.
const UNREADY: u64 = 7;

/// A slot that holds all units, and for each one its descriptor and the word that publishes it.
struct Twin<P: Platform> {
    flaw: Flaw,
    /// `from | to << 8 | busy << 16`.
    slot: P::Word,
    present: [P::Word; UNITS],
    descriptors: [P::Cell<u64>; UNITS],
    /// How often each unit was published.
    times: [P::Word; UNITS],
}

// SAFETY: it is not, where the flaw has two at one descriptor: that is what the models must find. loom's cells check
// every access and panic instead of racing.
unsafe impl<P: Platform> Sync for Twin<P> {}
// SAFETY: as above.
unsafe impl<P: Platform> Send for Twin<P> {}

#[derive(Clone, Copy)]
struct Claim {
    from: u64,
    to: u64,
    busy: u64,
}

impl Claim {
    const fn unpack(word: u64) -> Self {
        Self { from: word & 0xff, to: word >> 8 & 0xff, busy: word >> 16 }
    }

    const fn pack(self) -> u64 {
        self.from | self.to << 8 | self.busy << 16
    }
}

impl<P: Platform> Twin<P> {
    fn new(flaw: Flaw) -> Self {
        let zeroes = || core::array::from_fn(|_| P::Word::new(0));
        Self {
            flaw,
            slot: P::Word::new(Claim { from: 0, to: UNITS as u64, busy: 0 }.pack()),
            present: zeroes(),
            descriptors: core::array::from_fn(|_| P::Cell::new(UNREADY)),
            times: zeroes(),
        }
    }

    /// Changes the slot's claim; returns what it was. `None`: it stays.
    fn change(&self, torn: bool, to: impl Fn(Claim) -> Option<Claim>) -> Option<Claim> {
        let mut word = self.slot.load(Relaxed);
        loop {
            let claim = Claim::unpack(word);
            let new = to(claim)?.pack();
            if torn {
                self.slot.store(new, Release);
                return Some(claim);
            }
            match self.slot.compare_exchange(word, new, AcqRel, Relaxed) {
                Ok(_) => return Some(claim),
                Err(now) => word = now,
            }
        }
    }

    fn clear(&self, unit: u64) {
        // SAFETY: the unit is claimed; where the flaw makes that untrue, loom's cell has panicked.
        self.descriptors[unit as usize].with_mut(|descriptor| unsafe { *descriptor = 0 });
    }

    fn publish(&self, unit: u64) {
        let order = if self.flaw == Flaw::RelaxedPublish { Relaxed } else { Release };
        self.times[unit as usize].fetch_add(1, Relaxed);
        self.present[unit as usize].store(1, order);
    }

    fn initialise(&self, units: core::ops::Range<u64>) {
        if self.flaw == Flaw::PublishedTooSoon {
            units.clone().for_each(|unit| self.publish(unit));
            return units.for_each(|unit| self.clear(unit));
        }
        units.clone().for_each(|unit| self.clear(unit));
        units.for_each(|unit| self.publish(unit));
    }

    /// One worker's turn at up to two units, which ends before they are published if it `stops`. `false` if there
    /// were none.
    fn work(&self, stops: bool) -> bool {
        let batch = |claim: Claim| 2.min(claim.to.saturating_sub(claim.from));
        let claimed = self.change(false, |claim| {
            let busy = batch(claim);
            match self.flaw {
                _ if busy == 0 => None,
                Flaw::HidesItsBatch => Some(Claim { busy: 1, ..claim }),
                Flaw::DoneTooSoon => Some(Claim { from: claim.from + busy, ..claim }),
                _ => Some(Claim { busy, ..claim }),
            }
        });
        let Some(claim) = claimed else { return false };
        let units = batch(claim);
        if stops {
            self.clear(claim.from);
            self.change(false, |claim| Some(Claim { busy: 0, ..claim }));
            return true;
        }
        self.initialise(claim.from..claim.from + units);
        if self.flaw != Flaw::DoneTooSoon {
            self.change(self.flaw == Flaw::TornDone, |claim| {
                Some(Claim { from: claim.from + units, busy: 0, ..claim })
            });
        }
        true
    }

    /// Takes a unit off the end and initialises it, for an allocation that cannot wait.
    fn take(&self) {
        let taken = self.change(self.flaw == Flaw::TornTake, |claim| {
            (claim.to > claim.from + claim.busy).then(|| Claim { to: claim.to - 1, ..claim })
        });
        if let Some(claim) = taken {
            self.initialise(claim.to - 1..claim.to);
        }
    }

    /// Uses whatever is there.
    fn allocate(&self) {
        let order = if self.flaw == Flaw::RelaxedLook { Relaxed } else { Acquire };
        for unit in 0..UNITS {
            if self.present[unit].compare_exchange(1, 2, order, Relaxed).is_ok() {
                // SAFETY: it was handed out; see `clear`.
                self.descriptors[unit].with_mut(|descriptor| unsafe {
                    assert_eq!(*descriptor, 0, "handed out before it was ready");
                    *descriptor = 1;
                });
            }
        }
    }
}

/// A worker that may stop half-way, an allocation that takes, and in the end a thread that does the rest.
fn model(flaw: Flaw, stops: bool) {
    loom::model(loom::Bounds { preemptions: 3, spins: 4 }, move || {
        let twin = ::loom::sync::Arc::new(Twin::<Loom>::new(flaw));
        let other = twin.clone();
        let thread = ::loom::thread::spawn(move || {
            other.work(stops);
        });
        // Twice: the second unit is one that a batch may hold.
        twin.take();
        twin.take();
        twin.allocate();
        thread.join().expect("the thread did not panic");
        while twin.work(false) {}
        twin.allocate();
        for unit in 0..UNITS {
            assert_eq!(twin.times[unit].load(Relaxed), 1, "unit {unit} was not initialised once");
        }
    });
}

const RACE: &[&str] = &["Causality violation", "handed out before", "not initialised once"];

#[test]
fn a_twin_without_a_flaw_passes() {
    model(Flaw::None, false);
    model(Flaw::None, true);
}

#[test]
fn every_flaw_of_a_claim_is_found() {
    for flaw in [
        Flaw::HidesItsBatch,
        Flaw::TornTake,
        Flaw::TornDone,
        Flaw::PublishedTooSoon,
        Flaw::RelaxedPublish,
        Flaw::RelaxedLook,
    ] {
        must_fail(&format!("claim, {flaw:?}"), RACE, move || model(flaw, false));
    }
    must_fail("claim, DoneTooSoon", &["not initialised once"], || model(Flaw::DoneTooSoon, true));
}
