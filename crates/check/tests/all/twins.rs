//! Locks that are broken on purpose. Each is the core's lock again with one flaw; without a flaw the twin
//! passes, so that the flaw is what the model found.

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
    /// The unlock does not publish what the holder wrote.
    RelaxedUnlock,
    /// The lock does not see what the last holder published.
    RelaxedLock,
    /// Ticket: two arriving CPUs can draw the same number.
    TornTicket,
    /// Queued: the holder looks for a free lock, then takes it, in two steps.
    TornSet,
    /// Queued: a CPU that leaves the queue does not wake its successor.
    SleepyHandOver,
    /// Queued: a CPU joins the queue before its node says that it waits, so that its predecessor's wake-up can
    /// be overwritten.
    LateWaiting,
}

/// The ticket lock, or the queued lock for two CPUs, around one cell.
struct Twin<P: Platform> {
    queued: bool,
    flaw: Flaw,
    first: P::Word,
    second: P::Word,
    waiting: [P::Word; 2],
    next: [P::Word; 2],
    value: P::Cell<u64>,
}

// SAFETY: it is not, where the flaw breaks mutual exclusion: that is what the models must find. loom's cells
// check every access and panic instead of racing.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<P: Platform> Sync for Twin<P> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "see above")]
unsafe impl<P: Platform> Send for Twin<P> {}

impl<P: Platform> Twin<P> {
    fn new(queued: bool, flaw: Flaw) -> Self {
        let zero = || P::Word::new(0);
        Self {
            queued,
            flaw,
            first: zero(),
            second: zero(),
            waiting: [zero(), zero()],
            next: [zero(), zero()],
            value: P::Cell::new(0),
        }
    }

    fn count(&self, cpu: usize) {
        if self.queued {
            self.lock_queued(cpu)
        } else {
            self.lock_ticket()
        }
        self.value.with_mut(|value| {
            // SAFETY: the lock is held; where the flaw makes that untrue, loom's cell has panicked.
            #[expect(unsafe_code, reason = "the cell hands out a raw pointer")]
            unsafe {
                *value += 1;
            }
        });
        let order = if self.flaw == Flaw::RelaxedUnlock { Relaxed } else { Release };
        let next = if self.queued { 0 } else { self.second.load(Relaxed) + 1 };
        self.second.store(next, order);
    }

    fn lock_ticket(&self) {
        let ticket = if self.flaw == Flaw::TornTicket {
            let ticket = self.first.load(Relaxed);
            self.first.store(ticket + 1, Relaxed);
            ticket
        } else {
            self.first.fetch_add(1, Relaxed)
        };
        while self.second.load(self.lock_order()) != ticket {
            P::relax();
        }
    }

    fn lock_order(&self) -> core::sync::atomic::Ordering {
        if self.flaw == Flaw::RelaxedLock { Relaxed } else { Acquire }
    }

    fn try_set(&self) -> bool {
        if self.flaw == Flaw::TornSet {
            let free = self.second.load(Acquire) == 0;
            if free {
                self.second.store(1, Relaxed);
            }
            free
        } else {
            self.second.compare_exchange(0, 1, self.lock_order(), Relaxed).is_ok()
        }
    }

    fn lock_queued(&self, cpu: usize) {
        if self.first.load(Relaxed) == 0 && self.try_set() {
            return;
        }
        let me = cpu as u64 + 1;
        let late = self.flaw == Flaw::LateWaiting;
        if !late {
            self.waiting[cpu].store(1, Relaxed);
        }
        self.next[cpu].store(0, Relaxed);
        let before = self.first.swap(me, AcqRel);
        if before != 0 {
            self.next[before as usize - 1].store(me, Release);
            if late {
                self.waiting[cpu].store(1, Relaxed);
            }
            while self.waiting[cpu].load(Acquire) != 0 {
                P::relax();
            }
        }
        while self.second.load(Relaxed) != 0 || !self.try_set() {
            P::relax();
        }
        if self.next[cpu].load(Acquire) == 0 {
            if self.first.compare_exchange(me, 0, Relaxed, Relaxed).is_ok()
                || self.flaw == Flaw::SleepyHandOver
            {
                return;
            }
            while self.next[cpu].load(Acquire) == 0 {
                P::relax();
            }
        }
        self.waiting[self.next[cpu].load(Acquire) as usize - 1].store(0, Release);
    }
}

/// Two CPUs and the main thread, which holds no CPU's node, count `times` times each.
fn model(queued: bool, flaw: Flaw, times: usize) {
    loom::model(loom::Bounds { preemptions: 3, spins: 6 }, move || {
        let twin = ::loom::sync::Arc::new(Twin::<Loom>::new(queued, flaw));
        let other = twin.clone();
        let thread = ::loom::thread::spawn(move || (0..times).for_each(|_| other.count(1)));
        (0..times).for_each(|_| twin.count(0));
        thread.join().expect("the thread did not panic");
        let total = twin.value.with(|value| {
            // SAFETY: the other thread has ended.
            #[expect(unsafe_code, reason = "the cell hands out a raw pointer")]
            unsafe {
                *value
            }
        });
        assert_eq!(total, 2 * times as u64, "an increment was lost");
    });
}

const RACE: &[&str] = &["Causality violation", "an increment was lost"];
/// loom counts the turns of an endless wait until it gives up.
const HANG: &[&str] = &["exceeded maximum number of branches", "deadlock"];

#[test]
fn twins_without_a_flaw_pass() {
    model(false, Flaw::None, 2);
    model(true, Flaw::None, 2);
}

#[test]
fn every_flaw_of_a_ticket_lock_is_found() {
    for flaw in [Flaw::RelaxedUnlock, Flaw::RelaxedLock, Flaw::TornTicket] {
        must_fail(&format!("ticket lock, {flaw:?}"), RACE, move || model(false, flaw, 2));
    }
}

#[test]
fn every_flaw_of_a_queued_lock_is_found() {
    for flaw in [Flaw::RelaxedUnlock, Flaw::RelaxedLock, Flaw::TornSet] {
        must_fail(&format!("queued lock, {flaw:?}"), RACE, move || model(true, flaw, 2));
    }
    for flaw in [Flaw::SleepyHandOver, Flaw::LateWaiting] {
        must_fail(&format!("queued lock, {flaw:?}"), HANG, move || model(true, flaw, 2));
    }
}
