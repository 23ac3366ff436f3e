//! Memory pressure: who helps an arena when its memory runs short, and threads that reclaim in the background.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::Arc;
use std::thread;

use framewright::frame::FrameUser;
use framewright::reclaim::{Background, Helpers, Migrate, Reclaim};
use framewright::{Config, NodeId};

use crate::arena::Arena;
use crate::error::AttachError;
use crate::event::event;
use crate::helpers::Registered;

/// Longest sleep of a background thread, should a wake-up from outside the process' own threads be needed.
const NAP: Duration = Duration::from_secs(1);

impl<M: FrameUser> Arena<M> {
    /// Has `reclaim` asked for pages before an allocation fails, on the thread that allocates, with no lock
    /// held. It may free through any handle of that thread, blocks that free themselves included.
    ///
    /// An arena whose configuration keeps no watermarks (see [`Config::keep_marks`]) asks it only when memory
    /// is all gone; with [`Config::with_marks`], background threads keep ahead of that.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use framewright_host::framewright::reclaim::{ReclaimRequest, Reclaim, Reclaimed, Release};
    /// use framewright_host::{Arena, Migratetype, Order, Pfn};
    ///
    /// /// A cache of pages that can be had again: the oldest go first.
    /// #[derive(Default)]
    /// struct Cache(Mutex<Vec<Pfn>>);
    ///
    /// impl Reclaim for Cache {
    ///     fn reclaim(&self, ask: &ReclaimRequest<'_>, to: &dyn Release) -> Reclaimed {
    ///         let mut pages = self.0.lock().unwrap();
    ///         let some = pages.len().min(ask.target as usize);
    ///         let mut done = Reclaimed::default();
    ///         for pfn in pages.drain(..some) {
    ///             done.scanned += 1;
    ///             // SAFETY: the page was this cache's, and nobody else has its number.
    ///             done.freed += u64::from(unsafe { to.free(pfn, Order::ZERO) }.is_ok());
    ///         }
    ///         done
    ///     }
    /// }
    ///
    /// let arena: Arena = Arena::builder().bytes(4 << 20).build()?;
    /// let cache = Arc::new(Cache::default());
    /// arena.set_reclaim(cache.clone());
    /// let cpu = arena.attach()?;
    /// for _ in 0..10_000 {
    ///     // Ten times what there is: every page is had, because the cache gives up old ones.
    ///     let pfn = cpu.alloc(Order::ZERO, Migratetype::Movable)?;
    ///     cache.0.lock().unwrap().push(pfn);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// Returns whether it was set: an arena has one reclaimer for good.
    pub fn set_reclaim(&self, reclaim: Arc<dyn Reclaim + Send + Sync>) -> bool {
        self.pressure().reclaim.set(reclaim).is_ok()
    }

    /// Has `migrate` move blocks where a large block is wanted and memory is fragmented. Returns whether it was
    /// set: once for good.
    pub fn set_migrate(&self, migrate: Arc<dyn Migrate + Send + Sync>) -> bool {
        self.pressure().migrate.set(self.told_of(migrate)).is_ok()
    }

    /// Those who help this arena, for [`Cpu::alloc_with`](framewright::Cpu::alloc_with).
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        let pressure = self.pressure();
        Helpers {
            reclaim: pressure.reclaim.get().map(|reclaim| &**reclaim as &dyn Reclaim),
            migrate: pressure.migrate.get().map(|migrate| &**migrate as &dyn Migrate),
            background: Some(pressure),
        }
    }

    /// Reclaims for a node in the background, on this thread, until [`stop_background`](Self::stop_background):
    /// sleeps until a zone of the node falls below its low mark, then works until all are above their high
    /// marks. The arena must have been built with [`background`](crate::ArenaBuilder::background).
    ///
    /// ```
    /// use framewright_host::framewright::NodeId;
    /// use framewright_host::{Arena, Config};
    ///
    /// let config = Config::framewright().with_marks();
    /// let arena: Arena = Arena::builder().bytes(64 << 20).config(config).background().build()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| arena.run_background(NodeId(0)));
    ///     // … threads allocate …
    ///     arena.stop_background();
    /// });
    /// # Ok::<(), framewright_host::ArenaError>(())
    /// ```
    ///
    /// # Errors
    /// There is no slot for it, or another thread does this for the node.
    pub fn run_background(&self, node: NodeId) -> Result<(), AttachError> {
        self.run_background_with(node, || self.helpers())
    }

    /// The same, with other helpers than the arena's own; asked for before each run.
    pub(crate) fn run_background_with<'h>(
        &self,
        node: NodeId,
        helpers: impl Fn() -> Helpers<'h>,
    ) -> Result<(), AttachError> {
        let cpu = self.attach_background(node)?;
        let pressure = self.pressure();
        *pressure.thread(node) = Some(thread::current());
        let _registered = Registered { pressure, node };
        while !pressure.stopping.load(Ordering::Acquire) {
            match self.allocator().background_sleep(node) {
                Some(asked) => {
                    let rest = cpu.core().background(node, asked, &helpers());
                    let (freed, balanced) = (rest.total.freed, rest.balanced);
                    event!(
                        self.silent,
                        DEBUG,
                        node = node.0,
                        freed = freed,
                        balanced = balanced,
                        "background reclaim"
                    );
                    if !rest.balanced && rest.total.freed > 0 {
                        // There is more to do, and only this thread takes wishes: nobody needs to be woken.
                        let _ = self.allocator().background_wake(node, asked);
                    }
                }
                None => thread::park_timeout(NAP),
            }
        }
        Ok(())
    }

    /// Ends [`run_background`](Self::run_background) of all nodes, now and later. Does not wait for it.
    pub fn stop_background(&self) {
        let pressure = self.pressure();
        pressure.stopping.store(true, Ordering::Release);
        (0..pressure.threads.len()).for_each(|node| pressure.wake(NodeId(node as u16)));
    }

    /// Whether the configuration keeps watermarks.
    #[must_use]
    pub fn keeps_marks(&self) -> bool {
        let config: &Config = self.allocator().config();
        config.keep_marks
    }
}
