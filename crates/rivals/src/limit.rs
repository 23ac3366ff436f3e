//! A limit on frames, for allocators that take memory from the operating system and have no limit of their own.

use core::sync::atomic::{AtomicU64, Ordering};

/// Most frames that a CPU moves between its quota and the limit at a time.
const MOST_MOVED: u64 = 4096;

/// Frames that no CPU has yet.
#[derive(Debug)]
pub(crate) struct Limit {
    left: AtomicU64,
    moved: u64,
}

impl Limit {
    /// For at most `cpus` CPUs at a time. Their quotas hold at most a sixteenth of all frames together.
    pub(crate) fn new(frames: u64, cpus: usize) -> Self {
        let moved = (frames / 32 / cpus as u64).clamp(1, MOST_MOVED);
        Self { left: AtomicU64::new(frames), moved }
    }

    pub(crate) const fn quota(&self) -> Quota<'_> {
        Quota { limit: self, frames: 0 }
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

/// Frames that one CPU may still allocate. Mostly one subtraction or addition a call.
#[derive(Debug)]
pub(crate) struct Quota<'a> {
    limit: &'a Limit,
    frames: u64,
}

impl Quota<'_> {
    /// Counts a block as allocated. Returns `false` if the limit does not allow it.
    #[inline]
    pub(crate) fn allocate(&mut self, order: u8) -> bool {
        let pages = 1 << order;
        if self.frames < pages && !self.refill(pages) {
            return false;
        }
        self.frames -= pages;
        true
    }

    /// Counts a block as freed.
    #[inline]
    pub(crate) fn free(&mut self, order: u8) {
        self.frames += 1 << order;
        if self.frames > 2 * self.limit.moved {
            self.give_back();
        }
    }

    #[cold]
    fn refill(&mut self, pages: u64) -> bool {
        self.frames += self.limit.take(pages - self.frames);
        self.frames >= pages
    }

    #[cold]
    fn give_back(&mut self) {
        let surplus = self.frames - self.limit.moved;
        self.limit.left.fetch_add(surplus, Ordering::Relaxed);
        self.frames -= surplus;
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        self.limit.left.fetch_add(self.frames, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_allocated_than_the_limit() {
        let limit = Limit::new(1000, 2);
        let mut quota = limit.quota();
        assert_eq!((0..).take_while(|_| quota.allocate(3)).count(), 125);
        assert!(!quota.allocate(0));
        (0..125).for_each(|_| quota.free(3));
        drop(quota);
        assert_eq!(limit.left.load(Ordering::Relaxed), 1000);
    }

    #[test]
    fn an_idle_quota_leaves_the_frames_to_others() {
        let limit = Limit::new(6400, 2);
        let (mut first, mut second) = (limit.quota(), limit.quota());
        assert_eq!((0..).take_while(|_| first.allocate(0)).count(), 6400);
        (0..6400).for_each(|_| first.free(0));
        assert!((0..).take_while(|_| second.allocate(0)).count() >= 6400 - 200);
    }
}
