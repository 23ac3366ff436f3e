//! Which CPU slots their holders have lent.

use core::sync::atomic::{AtomicBool, Ordering};

/// By CPU slot: whether its holder has lent it, so that no other thread attaches to it while its lock is free.
#[derive(Debug)]
pub(crate) struct Lent(Box<[AtomicBool]>);

impl Lent {
    pub(crate) fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| AtomicBool::new(false)).collect())
    }

    /// Whether a slot is lent. Exact for the thread that holds its lock.
    pub(crate) fn is(&self, slot: usize) -> bool {
        self.0[slot].load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, slot: usize, is: bool) {
        self.0[slot].store(is, Ordering::Release);
    }
}
