//! Helpers of an arena when its memory runs short, and the threads that reclaim in the background.
#![expect(unsafe_code, reason = "a mover passes requests on")]

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::Thread;

use framewright::reclaim::{
    Background, Migrate, Migrated, Reclaim, ReclaimRequest, Reclaimable, Reclaimed, Release,
};
use framewright::{Migratetype, NodeId, Order, Pfn, ZoneId};

/// Helpers of an arena.
#[derive(Default)]
pub(crate) struct Pressure {
    pub(crate) reclaim: OnceLock<Arc<dyn Reclaim + Send + Sync>>,
    pub(crate) migrate: OnceLock<Arc<dyn Migrate + Send + Sync>>,
    /// By node: the thread that reclaims in the background.
    pub(crate) threads: Box<[Mutex<Option<Thread>>]>,
    pub(crate) stopping: AtomicBool,
}

impl Pressure {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { threads: (0..nodes).map(|_| Mutex::new(None)).collect(), ..Self::default() }
    }

    /// Whether background threads are to end.
    pub(crate) fn is_stopping(&self, order: Ordering) -> bool {
        self.stopping.load(order)
    }

    pub(crate) fn thread(&self, node: NodeId) -> std::sync::MutexGuard<'_, Option<Thread>> {
        self.threads[usize::from(node.0)].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Background for Pressure {
    fn wake(&self, node: NodeId) {
        // A thread that is not there yet finds the wish when it comes.
        if let Some(thread) = self.thread(node).as_ref() {
            thread.unpark();
        }
    }
}

/// Takes a background thread off its node's list, also when a panic passes.
pub(crate) struct Registered<'a> {
    pub(crate) pressure: &'a Pressure,
    pub(crate) node: NodeId,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        *self.pressure.thread(self.node) = None;
    }
}

/// A helper that the arena does not keep alive: it helps while its owner has it.
pub(crate) struct WhileAlive<T: ?Sized>(pub(crate) Weak<T>);

impl Reclaim for WhileAlive<dyn Reclaim + Send + Sync> {
    fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.0.upgrade().map(|helper| helper.reclaim(ask, to)).unwrap_or_default()
    }

    fn shrink(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
        self.0.upgrade().map(|helper| helper.shrink(ask, to)).unwrap_or_default()
    }

    fn reclaimable(&self, zone: ZoneId) -> Reclaimable {
        self.0.upgrade().map(|helper| helper.reclaimable(zone)).unwrap_or_default()
    }

    fn wait_if_congested(&self, zone: ZoneId, ms: u32) {
        if let Some(helper) = self.0.upgrade() {
            helper.wait_if_congested(zone, ms);
        }
    }

    fn wake_flushers(&self, pages: u64) {
        if let Some(helper) = self.0.upgrade() {
            helper.wake_flushers(pages);
        }
    }

    fn kill(&self) -> bool {
        self.0.upgrade().is_some_and(|helper| helper.kill())
    }
}

// SAFETY: it does what the one that it asks does, and nothing without it.
unsafe impl Migrate for WhileAlive<dyn Migrate + Send + Sync> {
    unsafe fn migrate(&self, from: Pfn, to: Pfn, order: Order) -> Migrated {
        // SAFETY: by the caller's promise.
        self.0.upgrade().map_or(Migrated::Stays, |helper| unsafe { helper.migrate(from, to, order) })
    }

    fn can_move(&self, from: Pfn, order: Order, asked: Migratetype) -> bool {
        self.0.upgrade().is_some_and(|helper| helper.can_move(from, order, asked))
    }
}
