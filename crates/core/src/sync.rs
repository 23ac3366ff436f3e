//! Locks on the platform: ticket, queued and parking; and the wrappers that make guarded data safe to access.
//!
//! This module holds the `unsafe` that locks need. Above it, guarded data is reached through `&mut`, so the
//! borrow checker carries the proof of holding the lock.
//!
//! Both kinds of lock take two words, side by side:
//!
//! | | first word | second word |
//! |---|---|---|
//! | ticket | next ticket to be taken; any arriving CPU adds | ticket being served; only the holder writes |
//! | queued | last CPU in the queue + 1, 0 if none; any arriving CPU swaps | 1 while held; arriving CPUs compare and swap, the holder clears |
//! | parking | not used | 0 free, 1 held, 2 held and a CPU may sleep; arriving CPUs swap, the holder clears |
#![expect(unsafe_code, reason = "the lock is what makes access exclusive")]

use core::cell::UnsafeCell;
use core::fmt;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::config::{LockKind, LockPlace};
use crate::platform::{Platform, SharedCell, Word};
use crate::units::CpuId;

/// A plain field of a guarded structure, reached through the platform's cell so that each access is charged and checked
/// on its own cache line. A read needs `&`, a write needs `&mut`: the cell adds nothing to Rust's own rules.
pub struct Slot<P: Platform, T: Copy>(P::Cell<T>);

impl<P: Platform, T: Copy> Slot<P, T> {
    /// A field that holds `value`.
    pub fn new(value: T) -> Self {
        Self(P::Cell::new(value))
    }

    /// Reads the field.
    #[inline]
    pub fn get(&self) -> T {
        // SAFETY: only `set` writes, and it needs `&mut self`, so there is no write while `&self` exists.
        self.0.with(|value| unsafe { *value })
    }

    /// Writes the field.
    #[inline]
    pub fn set(&mut self, value: T) {
        // SAFETY: `&mut self` is exclusive.
        self.0.with_mut(|place| unsafe { *place = value });
    }
}

impl<P: Platform, T: Copy + fmt::Debug> fmt::Debug for Slot<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A CPU's place in the queue of a queued lock. One per CPU is enough: a CPU waits for one lock at a time.
///
/// A line of its own, so that its owner polls without slowing other CPUs.
#[repr(C, align(64))]
pub struct QueueNode<P: Platform> {
    /// 1 while the owner must wait. Set by the owner, cleared by its predecessor.
    waiting: P::Word,
    /// The next CPU in the queue + 1, 0 if there is none yet. Cleared by the owner, set by that CPU.
    next: P::Word,
}

impl<P: Platform> QueueNode<P> {
    /// A node in no queue.
    #[must_use]
    pub fn new() -> Self {
        Self { waiting: P::Word::new(0), next: P::Word::new(0) }
    }
}

impl<P: Platform> Default for QueueNode<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Platform> fmt::Debug for QueueNode<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueNode").finish_non_exhaustive()
    }
}

/// The caller of a lock: the queue's nodes, and the CPU if the caller is pinned to one. A caller without a CPU (a
/// snapshot, a test) polls the lock word and takes no place in the queue.
#[derive(Debug)]
pub struct Waiter<'a, P: Platform> {
    /// One node per CPU.
    pub nodes: &'a [QueueNode<P>],
    /// The calling CPU; its pin must be held.
    pub cpu: Option<CpuId>,
}

impl<P: Platform> Clone for Waiter<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Waiter<'_, P> {}

/// Values of the second word of a parking lock; 1 means held.
const FREE: u64 = 0;
const AWAITED: u64 = 2;
/// Polls of a waiting CPU at a parking lock before it sleeps: some microseconds, as long as a hold without
/// interruption.
const POLLS: u32 = 100;

/// The bare lock, of any kind. 16 bytes on every platform with 8-byte words.
#[repr(C)]
struct RawLock<P: Platform> {
    first: P::Word,
    second: P::Word,
}

impl<P: Platform> RawLock<P> {
    fn new() -> Self {
        Self { first: P::Word::new(0), second: P::Word::new(0) }
    }

    /// Returns whether the caller had to wait.
    #[inline]
    fn acquire(&self, kind: LockKind, waiter: Waiter<'_, P>) -> bool {
        if !cfg!(feature = "smp") {
            // No other CPU can have it.
            return !self.try_set();
        }
        match kind {
            LockKind::Ticket => self.acquire_ticket(),
            LockKind::Queued => {
                // Taking the lock before CPUs that wait in the queue would be unfair: look at the queue first.
                if self.first.load(Relaxed) == 0 && self.try_set() {
                    return false;
                }
                self.acquire_queued(waiter);
                true
            }
            LockKind::Parking | LockKind::ByPlatform => {
                if self.try_set() {
                    return false;
                }
                self.acquire_parking();
                true
            }
        }
    }

    #[inline]
    fn acquire_ticket(&self) -> bool {
        let ticket = self.first.fetch_add(1, Relaxed);
        if self.second.load(Acquire) == ticket {
            return false;
        }
        while self.second.load(Acquire) != ticket {
            P::relax();
        }
        true
    }

    /// Takes the lock if no CPU has it or waits for it. Never waits.
    fn try_acquire(&self, kind: LockKind) -> bool {
        match kind {
            LockKind::Ticket => {
                let serving = self.second.load(Acquire);
                self.first.compare_exchange(serving, serving.wrapping_add(1), Acquire, Relaxed).is_ok()
            }
            LockKind::Queued | LockKind::Parking | LockKind::ByPlatform => {
                self.first.load(Relaxed) == 0 && self.try_set()
            }
        }
    }

    #[inline]
    fn try_set(&self) -> bool {
        self.second.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Polls until this CPU has the lock.
    fn spin(&self) {
        while self.second.load(Relaxed) != 0 || !self.try_set() {
            P::relax();
        }
    }

    #[cold]
    fn acquire_queued(&self, waiter: Waiter<'_, P>) {
        let Some((me, node)) = waiter.cpu.and_then(|cpu| Some((cpu, waiter.nodes.get(cpu.index())?))) else {
            return self.spin();
        };
        let me = u64::from(me.0) + 1;
        node.waiting.store(1, Relaxed);
        node.next.store(0, Relaxed);
        // Release publishes the node above to the successor that swaps us out; acquire pairs with it.
        let before = self.first.swap(me, AcqRel);
        if before != 0 {
            waiter.nodes[before as usize - 1].next.store(me, Release);
            while node.waiting.load(Acquire) != 0 {
                P::relax();
            }
        }
        // Head of the queue: the only CPU that polls the lock itself.
        self.spin();
        // Leave the queue; the next one becomes its head while we hold the lock.
        if node.next.load(Acquire) == 0 {
            if self.first.compare_exchange(me, 0, Relaxed, Relaxed).is_ok() {
                return;
            }
            while node.next.load(Acquire) == 0 {
                P::relax();
            }
        }
        waiter.nodes[node.next.load(Acquire) as usize - 1].waiting.store(0, Release);
    }

    /// Polls for about as long as an uninterrupted hold takes, then sleeps. A CPU that has slept, or is about to,
    /// leaves the word at 2, so that the holder wakes one of the CPUs that may be asleep (U. Drepper, *Futexes Are
    /// Tricky*, 2011).
    #[cold]
    fn acquire_parking(&self) {
        for _ in 0..POLLS {
            P::relax();
            if self.second.load(Relaxed) == FREE && self.try_set() {
                return;
            }
        }
        while self.second.swap(AWAITED, Acquire) != FREE {
            P::park(&self.second, AWAITED);
        }
    }

    #[inline]
    fn release(&self, kind: LockKind) {
        match kind {
            // Only the holder writes the second word, so a load and a store suffice.
            LockKind::Ticket => self.second.store(self.second.load(Relaxed).wrapping_add(1), Release),
            LockKind::Queued => self.second.store(0, Release),
            LockKind::Parking | LockKind::ByPlatform => {
                if self.second.swap(FREE, Release) == AWAITED {
                    P::unpark(&self.second);
                }
            }
        }
    }
}

/// The right to do something that one CPU at a time does: rare work, off the way of allocations and frees.
pub(crate) struct Exclusive<P: Platform>(P::Word);

impl<P: Platform> Exclusive<P> {
    pub(crate) fn new() -> Self {
        Self(P::Word::new(FREE))
    }

    /// Begins the work. Waits while another CPU is at it.
    pub(crate) fn begin(&self) -> ExclusiveTurn<'_, P> {
        while self.0.swap(AWAITED, Acquire) != FREE {
            P::park(&self.0, AWAITED);
        }
        ExclusiveTurn(self)
    }
}

/// A CPU's turn of an [`Exclusive`] work. Given back when dropped, also by a panic.
pub(crate) struct ExclusiveTurn<'a, P: Platform>(&'a Exclusive<P>);

impl<P: Platform> Drop for ExclusiveTurn<'_, P> {
    fn drop(&mut self) {
        let Exclusive(word) = self.0;
        word.store(FREE, Release);
        P::unpark(word);
    }
}

/// A value in cache lines of its own.
#[repr(C, align(64))]
struct OwnLine<T>(T);

/// Two pieces of data with one lock, which is in one of three places (see [`LockPlace`]). `hot` has the lock's places
/// around it; `cold` follows in lines of its own.
///
/// With 8-byte words: `before` at byte 0, `hot` at 16, `after` directly after `hot`, `own_line` at the next line.
#[repr(C, align(64))]
pub struct Locked<P: Platform, H, C> {
    before: RawLock<P>,
    hot: UnsafeCell<H>,
    after: RawLock<P>,
    own_line: OwnLine<RawLock<P>>,
    /// The place of the lock in use, and its kind. Never written after creation.
    place: LockPlace,
    kind: LockKind,
    cold: OwnLine<UnsafeCell<C>>,
}

// SAFETY: `hot` and `cold` are reached only through `with`, which holds the lock; the lock words are shared
// words. Moving the whole to another thread moves `H` and `C`.
unsafe impl<P: Platform, H: Send, C: Send> Sync for Locked<P, H, C> {}
// SAFETY: as above.
unsafe impl<P: Platform, H: Send, C: Send> Send for Locked<P, H, C> {}

impl<P: Platform, H, C> fmt::Debug for Locked<P, H, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locked").field("place", &self.place).field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Releases the lock when dropped, so that a panic under the lock does not leave it held.
struct ReleaseOnDrop<'a, P: Platform> {
    lock: &'a RawLock<P>,
    kind: LockKind,
}

impl<P: Platform> Drop for ReleaseOnDrop<'_, P> {
    #[inline]
    fn drop(&mut self) {
        self.lock.release(self.kind);
    }
}

impl<P: Platform, H, C> Locked<P, H, C> {
    /// Unlocked data.
    pub fn new(place: LockPlace, kind: LockKind, hot: H, cold: C) -> Self {
        Self {
            before: RawLock::new(),
            hot: UnsafeCell::new(hot),
            after: RawLock::new(),
            own_line: OwnLine(RawLock::new()),
            place,
            kind: if kind == LockKind::ByPlatform { P::LOCK } else { kind },
            cold: OwnLine(UnsafeCell::new(cold)),
        }
    }

    /// Byte offsets of the lock's three places, of `hot` and of `cold`, in this order.
    #[must_use]
    pub const fn offsets() -> [usize; 5] {
        [
            core::mem::offset_of!(Self, before),
            core::mem::offset_of!(Self, after),
            core::mem::offset_of!(Self, own_line),
            core::mem::offset_of!(Self, hot),
            core::mem::offset_of!(Self, cold),
        ]
    }

    #[inline]
    fn raw(&self) -> &RawLock<P> {
        match if cfg!(feature = "settings") { self.place } else { LockPlace::OwnLine } {
            LockPlace::WithOrder0Lists => &self.before,
            LockPlace::OtherEnd => &self.after,
            LockPlace::OwnLine => &self.own_line.0,
        }
    }

    #[inline]
    const fn kind(&self) -> LockKind {
        if !cfg!(feature = "smp") {
            // As `acquire` takes it: the second word is 1 while it is held.
            LockKind::Queued
        } else if cfg!(feature = "settings") {
            self.kind
        } else {
            P::LOCK
        }
    }

    /// Whether a CPU holds the lock. A racy read.
    pub fn is_held(&self) -> bool {
        let lock = self.raw();
        let free = if matches!(self.kind(), LockKind::Ticket) { lock.first.load(Relaxed) } else { FREE };
        lock.second.load(Relaxed) != free
    }

    /// Runs `f` on the data with the lock held. `f` also gets whether the caller had to wait.
    ///
    /// Not re-entrant: `f` must not take the same lock.
    #[inline]
    pub fn with<R>(&self, waiter: Waiter<'_, P>, f: impl FnOnce(&mut H, &mut C, bool) -> R) -> R {
        let lock = self.raw();
        let waited = lock.acquire(self.kind(), waiter);
        let _release = ReleaseOnDrop { lock, kind: self.kind() };
        // SAFETY: `place` and `kind` never change, so this is the one lock of this data, and it is held until
        // `_release` drops, after `f` has returned its borrows.
        let (hot, cold) = unsafe { (&mut *self.hot.get(), &mut *self.cold.0.get()) };
        f(hot, cold, waited)
    }

    /// Like [`with`](Self::with), but only if the lock is free: `None` without a call of `f`, and without a wait, if
    /// not. For code that may have interrupted the holder.
    pub fn try_with<R>(&self, f: impl FnOnce(&mut H, &mut C) -> R) -> Option<R> {
        let lock = self.raw();
        if !lock.try_acquire(self.kind()) {
            return None;
        }
        let _release = ReleaseOnDrop { lock, kind: self.kind() };
        // SAFETY: as in `with`.
        let (hot, cold) = unsafe { (&mut *self.hot.get(), &mut *self.cold.0.get()) };
        Some(f(hot, cold))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::boxed::Box;

    use super::*;
    use crate::platform::machine::{Machine, with_others};

    const HELD: u64 = 1;

    /// A lock that another CPU holds.
    fn held() -> &'static RawLock<Machine> {
        let lock: &'static RawLock<Machine> = Box::leak(Box::new(RawLock::new()));
        lock.second.store(HELD, Relaxed);
        lock
    }

    fn nobody() -> Waiter<'static, Machine> {
        Waiter { nodes: &[], cpu: None }
    }

    /// A CPU without a place in the queue polls until the lock is free.
    #[test]
    fn a_waiter_without_a_place_has_it_when_it_is_free() {
        let lock = held();
        let free = |n: u32| {
            if n == 3 {
                lock.second.store(FREE, Relaxed)
            }
        };
        let ((), waits, _) = with_others(free, || lock.acquire_queued(nobody()));
        assert_eq!((waits, lock.second.load(Relaxed), lock.first.load(Relaxed)), (3, HELD, 0));
    }

    /// CPU 1 comes second. While it waits for CPU 0 to make it the first, it leaves the lock alone, free or not.
    #[test]
    fn the_queue_is_kept() {
        let lock = held();
        let nodes: &'static [QueueNode<Machine>; 2] =
            Box::leak(Box::new([QueueNode::new(), QueueNode::new()]));
        lock.first.store(1, Relaxed);
        let others = |n: u32| match n {
            1 => {
                assert_eq!((lock.first.load(Relaxed), nodes[0].next.load(Relaxed)), (2, 2));
                assert_eq!(nodes[1].waiting.load(Relaxed), 1);
                lock.second.store(FREE, Relaxed);
            }
            2 => {
                assert_eq!(lock.second.load(Relaxed), FREE, "it was not its turn");
                lock.second.store(HELD, Relaxed);
                nodes[1].waiting.store(0, Relaxed);
            }
            n => {
                assert_eq!(n, 3, "it is free");
                lock.second.store(FREE, Relaxed);
            }
        };
        let waiter = Waiter { nodes, cpu: Some(CpuId(1)) };
        let (waited, waits, _) = with_others(others, || lock.acquire(LockKind::Queued, waiter));
        assert!(waited);
        assert_eq!((waits, lock.second.load(Relaxed), lock.first.load(Relaxed)), (3, HELD, 0));
    }

    /// A parking CPU polls before it sleeps: after a short hold no CPU has to be woken.
    #[test]
    fn a_short_hold_puts_nobody_to_sleep() {
        let lock = held();
        let free = |n: u32| {
            if n == 3 {
                lock.release(LockKind::Parking)
            }
        };
        let (waited, waits, woken) = with_others(free, || {
            let waited = lock.acquire(LockKind::Parking, nobody());
            assert_eq!(lock.second.load(Relaxed), HELD, "held, and awaited by nobody");
            lock.release(LockKind::Parking);
            waited
        });
        assert_eq!((waited, waits, woken, lock.second.load(Relaxed)), (true, 3, 0, FREE));
    }

    /// After its polls the CPU sleeps (here: others have a turn), and the CPU that releases the lock wakes it.
    #[test]
    fn a_long_hold_is_slept_through() {
        let lock = held();
        let free = |n: u32| {
            if n > POLLS {
                assert_eq!(lock.second.load(Relaxed), AWAITED);
                lock.release(LockKind::Parking);
            }
        };
        let ((), waits, woken) = with_others(free, || {
            lock.acquire(LockKind::Parking, nobody());
            assert_eq!(lock.second.load(Relaxed), AWAITED, "others may sleep, too");
            lock.release(LockKind::Parking);
        });
        assert_eq!((waits, woken, lock.second.load(Relaxed)), (POLLS + 1, 2, FREE));
    }
}
