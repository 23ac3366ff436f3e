//! A limit on frames for allocators that have none of their own: they take from the operating system.

use core::sync::atomic::{AtomicU64, Ordering};

/// Frames that a CPU moves between its purse and the budget at a time, at most.
const MOST_MOVED: u64 = 4096;

/// Frames that no CPU has yet.
#[derive(Debug)]
pub(crate) struct Budget {
    left: AtomicU64,
    moved: u64,
}

impl Budget {
    /// For so many CPUs at a time, whose purses then hold a sixteenth of all frames at most.
    pub(crate) fn new(frames: u64, cpus: usize) -> Self {
        let moved = (frames / 32 / cpus as u64).clamp(1, MOST_MOVED);
        Self { left: AtomicU64::new(frames), moved }
    }

    pub(crate) const fn purse(&self) -> Purse<'_> {
        Purse { budget: self, frames: 0 }
    }

    /// Takes `least` frames, more if there are more; 0 if there are not so many.
    fn take(&self, least: u64) -> u64 {
        let want = least.max(self.moved);
        let mut left = self.left.load(Ordering::Relaxed);
        loop {
            if left < least {
                return 0;
            }
            let taken = want.min(left);
            match self.left.compare_exchange_weak(left, left - taken, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return taken,
                Err(now) => left = now,
            }
        }
    }
}

/// Frames that one CPU may still allocate. In the usual case a subtraction or an addition.
#[derive(Debug)]
pub(crate) struct Purse<'a> {
    budget: &'a Budget,
    frames: u64,
}

impl Purse<'_> {
    /// Pays for a block; says whether it could.
    #[inline]
    pub(crate) fn pay(&mut self, order: u8) -> bool {
        let price = 1 << order;
        if self.frames < price && !self.refill(price) {
            return false;
        }
        self.frames -= price;
        true
    }

    /// Gets the price of a block back.
    #[inline]
    pub(crate) fn refund(&mut self, order: u8) {
        self.frames += 1 << order;
        if self.frames > 2 * self.budget.moved {
            self.bank();
        }
    }

    #[cold]
    fn refill(&mut self, price: u64) -> bool {
        self.frames += self.budget.take(price - self.frames);
        self.frames >= price
    }

    #[cold]
    fn bank(&mut self) {
        let surplus = self.frames - self.budget.moved;
        self.budget.left.fetch_add(surplus, Ordering::Relaxed);
        self.frames -= surplus;
    }
}

impl Drop for Purse<'_> {
    fn drop(&mut self) {
        self.budget.left.fetch_add(self.frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_paid_than_there_is() {
        let budget = Budget::new(1000, 2);
        let mut purse = budget.purse();
        assert_eq!((0..).take_while(|_| purse.pay(3)).count(), 125);
        assert!(!purse.pay(0));
        (0..125).for_each(|_| purse.refund(3));
        drop(purse);
        assert_eq!(budget.left.load(Ordering::Relaxed), 1000);
    }

    #[test]
    fn purses_do_not_hoard() {
        let budget = Budget::new(6400, 2);
        let (mut first, mut second) = (budget.purse(), budget.purse());
        assert_eq!((0..).take_while(|_| first.pay(0)).count(), 6400);
        (0..6400).for_each(|_| first.refund(0));
        assert!((0..).take_while(|_| second.pay(0)).count() >= 6400 - 200);
    }
}
