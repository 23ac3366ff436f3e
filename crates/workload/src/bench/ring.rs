//! A bounded queue between one sender and one receiver.

use core::array;
use core::sync::atomic::Ordering;

use super::stage::{Backoff, Meeting, SharedWord};

/// Numbers in flight at most: 2 KiB, which stay in L1 of both.
const SLOTS: usize = 256;

/// A value that no other shares a cache line, or the neighbour that hardware prefetches, with.
#[repr(align(128))]
struct Alone<T>(T);

/// The queue. Sender and receiver each keep a copy of the other's index and look again only when that says
/// full or empty, so that the index lines move once per batch.
pub(super) struct Ring<W> {
    /// Numbers in flight at most, 1 to [`SLOTS`].
    room: u64,
    /// Sent so far; the sender writes it.
    sent: Alone<W>,
    /// Received so far; the receiver writes it.
    received: Alone<W>,
    slots: Alone<[W; SLOTS]>,
}

impl<W: SharedWord> Ring<W> {
    /// A queue that holds `room` numbers, but 1 at least and 256 at most.
    pub(super) fn new(room: usize) -> Self {
        Self {
            room: room.clamp(1, SLOTS) as u64,
            sent: Alone(W::new(0)),
            received: Alone(W::new(0)),
            slots: Alone(array::from_fn(|_| W::new(0))),
        }
    }

    /// The sending end. One thread at a time may use it.
    pub(super) fn sender<'a, G: Meeting>(&'a self, gate: &'a G) -> Sender<'a, W, G> {
        let sent = self.sent.0.load(Ordering::Relaxed);
        Sender { ring: self, gate, sent, received: self.received.0.load(Ordering::Acquire) }
    }

    /// The receiving end. One thread at a time may use it.
    pub(super) fn receiver<'a, G: Meeting>(&'a self, gate: &'a G) -> Receiver<'a, W, G> {
        let received = self.received.0.load(Ordering::Relaxed);
        Receiver { ring: self, gate, sent: self.sent.0.load(Ordering::Acquire), received }
    }
}

/// Puts numbers into a ring.
pub(super) struct Sender<'a, W, G> {
    ring: &'a Ring<W>,
    gate: &'a G,
    sent: u64,
    received: u64,
}

impl<W: SharedWord, G: Meeting> Sender<'_, W, G> {
    /// Sends one number; waits while the ring is full.
    #[inline]
    pub(super) fn send(&mut self, number: u64) {
        if self.sent.wrapping_sub(self.received) == self.ring.room {
            self.await_room();
        }
        self.ring.slots.0[self.sent as usize % SLOTS].store(number, Ordering::Relaxed);
        self.sent = self.sent.wrapping_add(1);
        self.ring.sent.0.store(self.sent, Ordering::Release);
    }

    #[cold]
    fn await_room(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            self.received = self.ring.received.0.load(Ordering::Acquire);
            if self.sent.wrapping_sub(self.received) < self.ring.room {
                return;
            }
            self.gate.check();
            self.gate.pause(&mut backoff);
        }
    }
}

/// Takes numbers out of a ring.
pub(super) struct Receiver<'a, W, G> {
    ring: &'a Ring<W>,
    gate: &'a G,
    sent: u64,
    received: u64,
}

impl<W: SharedWord, G: Meeting> Receiver<'_, W, G> {
    /// Receives one number; waits while the ring is empty.
    #[inline]
    pub(super) fn receive(&mut self) -> u64 {
        if self.received == self.sent {
            self.await_number();
        }
        let number = self.ring.slots.0[self.received as usize % SLOTS].load(Ordering::Relaxed);
        self.received = self.received.wrapping_add(1);
        self.ring.received.0.store(self.received, Ordering::Release);
        number
    }

    #[cold]
    fn await_number(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            self.sent = self.ring.sent.0.load(Ordering::Acquire);
            if self.received != self.sent {
                return;
            }
            self.gate.check();
            self.gate.pause(&mut backoff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::team::Gate;
    use core::sync::atomic::AtomicU64;
    use std::thread;

    #[test]
    fn everything_arrives_once_and_in_order() {
        for room in [0, 3, 256, 1000] {
            let (ring, gate) = (Ring::<AtomicU64>::new(room), Gate::new(2));
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut sender = ring.sender(&gate);
                    (0..5000).for_each(|number| sender.send(number));
                });
                let mut receiver = ring.receiver(&gate);
                assert!((0..5000).all(|number| receiver.receive() == number));
            });
        }
    }

    #[test]
    fn ends_can_be_taken_up_again() {
        let (ring, gate) = (Ring::<AtomicU64>::new(7), Gate::new(1));
        for number in 0..1000 {
            ring.sender(&gate).send(number);
            assert_eq!(ring.receiver(&gate).receive(), number);
        }
    }
}
