//! Memory pressure: who helps an arena when its memory runs short, and threads that reclaim and compact in the
//! background.

use core::sync::atomic::Ordering;
use core::time::Duration;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Instant;

use framewright::frame::FrameUser;
use framewright::reclaim::{Background, Helpers, Migrate, Reclaim};
use framewright::{Config, NodeId};

use crate::arena::Arena;
use crate::error::AttachError;
use crate::event::event;
use crate::helpers::{Registered, WhileAlive};

/// Longest sleep of a background thread, should a wake-up from outside the process' own threads be needed.
const NAP: Duration = Duration::from_secs(1);

/// Time of a background thread's next round of compaction: the first immediately.
struct Rounds {
    interval: Duration,
    next: Option<Instant>,
}

impl Rounds {
    /// Whether a round is due. It is taken to be made now, and the next is due an interval later.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.left(now).is_zero();
        if is_due {
            self.next = Some(now + self.interval);
        }
        is_due
    }

    /// Time until the next.
    fn left(&self, now: Instant) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(now))
    }
}

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
    ///             // SAFETY: the page was this cache's, and no other code has its number.
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
    /// Returns whether it was set: an arena has one reclaimer, permanently. The arena keeps it alive. So one that keeps
    /// the arena alive, such as a pool with a [`SharedArena`](crate::SharedArena) in it, is set by
    /// [`set_weak_reclaim`](Self::set_weak_reclaim) instead: otherwise neither is ever freed.
    pub fn set_reclaim(&self, reclaim: Arc<dyn Reclaim + Send + Sync>) -> bool {
        self.pressure.reclaim.set(reclaim).is_ok()
    }

    /// Like [`set_reclaim`](Self::set_reclaim), but the arena does not keep `reclaim` alive, and asks it while it is.
    pub fn set_weak_reclaim(&self, reclaim: Weak<dyn Reclaim + Send + Sync>) -> bool {
        self.set_reclaim(Arc::new(WhileAlive(reclaim)))
    }

    /// Has `migrate` move blocks where a large block is wanted and memory is fragmented; and in rounds
    /// ([`Config::compaction_round_ms`]), before a request wants one, if a thread [works in the
    /// background](Self::run_background). Returns whether it was set: once for good.
    pub fn set_migrate(&self, migrate: Arc<dyn Migrate + Send + Sync>) -> bool {
        self.pressure.migrate.set(self.annotated.annotating(migrate)).is_ok()
    }

    /// Like [`set_migrate`](Self::set_migrate), but the arena does not keep `migrate` alive, and asks it while it is.
    pub fn set_weak_migrate(&self, migrate: Weak<dyn Migrate + Send + Sync>) -> bool {
        self.set_migrate(Arc::new(WhileAlive(migrate)))
    }

    /// Those who help this arena, for [`Cpu::alloc_with`](framewright::Cpu::alloc_with).
    #[must_use]
    pub fn helpers(&self) -> Helpers<'_> {
        let pressure = &self.pressure;
        let mut helpers = Helpers::NONE.with_background(pressure);
        if let Some(reclaim) = pressure.reclaim.get() {
            helpers = helpers.with_reclaim(&**reclaim);
        }
        if let Some(migrate) = pressure.migrate.get() {
            helpers = helpers.with_migrate(&**migrate);
        }
        helpers
    }

    /// Works for a node in the background, on this thread, until [`stop_background`](Self::stop_background). It
    /// reclaims: sleeps until a zone of the node falls below its low mark, then works until all are above their high
    /// marks. And it compacts: every [`Config::compaction_round_ms`] milliseconds it makes a
    /// [round](crate::Cpu::compact_proactively), if a mover moves blocks ([`set_migrate`](Self::set_migrate)) and the
    /// configuration asks for it ([`compaction_proactiveness`](Config::compaction_proactiveness)). The arena must have
    /// been built with [`background`](crate::ArenaBuilder::background).
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
    /// A cache of pages that move: what it needs is a lock, so that no thread frees a page that moves, and a copy. Here
    /// there is no memory behind the frames, and nothing to copy.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    /// use std::sync::{Arc, Mutex};
    ///
    /// use framewright_host::framewright::reclaim::{Migrate, Migrated};
    /// use framewright_host::framewright::units::{NodeId, PAGEBLOCK_ORDER};
    /// use framewright_host::{Arena, Backing, Migratetype, Order, Pfn};
    ///
    /// #[derive(Default)]
    /// struct Cache(Mutex<BTreeSet<Pfn>>);
    ///
    /// // SAFETY: what is in the set is the cache's, and only this takes pages out of it.
    /// unsafe impl Migrate for Cache {
    ///     unsafe fn migrate(&self, from: Pfn, to: Pfn, _: Order) -> Migrated {
    ///         let mut pages = self.0.lock().unwrap();
    ///         if !pages.remove(&from) {
    ///             return Migrated::Stays;
    ///         }
    ///         pages.insert(to);
    ///         Migrated::Moved
    ///     }
    /// }
    ///
    /// let arena: Arena = Arena::builder().pages(16 << 9).backing(Backing::Described).background().build()?;
    /// let cache = Arc::new(Cache::default());
    /// arena.set_migrate(cache.clone());
    /// let cpu = arena.attach()?;
    /// let all: Vec<Pfn> = std::iter::from_fn(|| cpu.alloc(Order::ZERO, Migratetype::Movable).ok()).collect();
    /// // One page in eight stays: in each pageblock there is one.
    /// let (kept, freed): (Vec<Pfn>, Vec<Pfn>) = all.into_iter().partition(|pfn| pfn.0 % 8 == 3);
    /// cache.0.lock().unwrap().extend(kept);
    /// for pfn in freed {
    ///     // SAFETY: it is ours.
    ///     unsafe { cpu.free(pfn, Order::ZERO) }?;
    /// }
    /// cpu.drain();
    /// let huge = || arena.allocator().free_blocks(PAGEBLOCK_ORDER);
    /// assert_eq!(huge(), 0);
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| arena.run_background(NodeId(0)));
    ///     while huge() < 14 {
    ///         std::thread::yield_now();
    ///     }
    ///     arena.stop_background();
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// There is no CPU for it, or another thread does this for the node.
    pub fn run_background(&self, node: NodeId) -> Result<(), AttachError> {
        self.run_background_with(node, || (), || self.helpers())
    }

    /// Like the call above, with other helpers than the arena's own, and with work before each run of reclaim.
    pub(crate) fn run_background_with<'h>(
        &self,
        node: NodeId,
        before: impl Fn(),
        helpers: impl Fn() -> Helpers<'h>,
    ) -> Result<(), AttachError> {
        let cpu = self.attach_background(node)?;
        let pressure = &self.pressure;
        *pressure.thread(node) = Some(thread::current());
        let _registered = Registered { pressure, node };
        let config = self.allocator().config();
        let interval = Duration::from_millis(config.compaction_round_ms().into());
        let mut rounds = Rounds { interval, next: None };
        let compacts = config.compaction_proactiveness > 0;
        while !pressure.stopping.load(Ordering::Acquire) {
            let migrate = helpers().mover().filter(|_| compacts);
            if let Some(migrate) = migrate
                && rounds.is_due(Instant::now())
            {
                let done = cpu.compact_proactively_with(node, migrate);
                event!(
                    self.silent,
                    DEBUG,
                    node = node.0,
                    moved = done.moved,
                    stayed = done.stayed,
                    "background compaction"
                );
            }
            match self.allocator().background_sleep(node) {
                Some(asked) => {
                    before();
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
                        // There is more to do, and only this thread takes wishes: it need not be woken.
                        let _ = self.allocator().background_wake(node, asked);
                    }
                }
                None => {
                    let nap = migrate.map_or(NAP, |_| NAP.min(rounds.left(Instant::now())));
                    thread::park_timeout(nap);
                }
            }
        }
        Ok(())
    }

    /// Ends [`run_background`](Self::run_background) of all nodes, now and later. Does not wait for it.
    pub fn stop_background(&self) {
        let pressure = &self.pressure;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_an_interval_apart() {
        let interval = Duration::from_millis(500);
        let (mut rounds, start) = (Rounds { interval, next: None }, Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert!(rounds.is_due(start), "the first at once");
        assert_eq!((rounds.is_due(start), rounds.left(start)), (false, interval));
        assert_eq!((rounds.is_due(after(499)), rounds.left(after(499))), (false, Duration::from_millis(1)));
        // One that comes late is not made up for.
        assert!(rounds.is_due(after(1700)) && !rounds.is_due(after(2199)) && rounds.is_due(after(2200)));
    }
}
