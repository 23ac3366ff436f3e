//! A cache of files under memory pressure: its pages are reclaimed, in the background too, and move where large blocks
//! are wanted.
#![expect(unsafe_code, reason = "the allocator trusts the owner that a block has moved")]

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::thread;

use framewright::reclaim::{Helpers, Migrate, Migrated};
use framewright::{Migratetype, NodeId, Order, Pfn};

use crate::error::AttachError;
use crate::files::FileCache;

impl FileCache<'_> {
    /// Helpers for other allocations from the arena: this cache reclaims and moves its own pages. Other blocks are
    /// moved by the arena's mover ([`Arena::set_migrate`](crate::Arena::set_migrate)).
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        self.arena.helpers().with_reclaim(&self.cache).with_migrate(self)
    }

    /// Reclaims this cache's pages for a node in the background, on this thread, and moves them together so that huge
    /// pages become free (see [`Arena::run_background`](crate::Arena::run_background)).
    ///
    /// # Errors
    /// As [`Arena::run_background`](crate::Arena::run_background).
    pub fn run_background(&self, node: NodeId) -> Result<(), AttachError> {
        let stall = || {
            let stall = self.stall_ns.swap(0, Relaxed);
            if stall > 0 {
                thread::sleep(Duration::from_nanos(stall));
            }
        };
        self.arena.run_background_with(node, stall, || self.helpers())
    }
}

// SAFETY: each of the two it asks vouches for what it moves, and at most one of them has moved the block.
unsafe impl Migrate for FileCache<'_> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        // SAFETY: by the caller's promise; where the cache leaves the block, it has kept nothing of `to`.
        let by_cache = unsafe { self.cache.migrate(from, to, order) };
        match self.arena.helpers().mover() {
            // SAFETY: by the caller's promise: `to` is the caller's still.
            Some(mover) if by_cache == Migrated::Stays => unsafe { mover.migrate(from, to, order) },
            _ => by_cache,
        }
    }

    fn can_move(&self, from: Pfn, order: Order, asked: Migratetype) -> bool {
        let mover = || self.arena.helpers().mover();
        self.cache.can_move(from, order, asked)
            || mover().is_some_and(|mover| mover.can_move(from, order, asked))
    }
}
