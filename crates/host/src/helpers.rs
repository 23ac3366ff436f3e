//! Who helps an arena when its memory runs short, and the threads that reclaim in the background.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Thread;

use framewright::NodeId;
use framewright::reclaim::{Background, Migrate, Reclaim};

/// Who helps an arena.
#[derive(Default)]
pub(crate) struct Pressure {
    pub(crate) reclaim: OnceLock<Arc<dyn Reclaim + Send + Sync>>,
    pub(crate) migrate: OnceLock<Arc<dyn Migrate + Send + Sync>>,
    /// By node: the thread that reclaims in the background.
    pub(crate) threads: Box<[Mutex<Option<Thread>>]>,
    pub(crate) stopping: AtomicBool,
}

impl fmt::Debug for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pressure")
            .field("reclaim", &self.reclaim.get().is_some())
            .field("migrate", &self.migrate.get().is_some())
            .finish_non_exhaustive()
    }
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
